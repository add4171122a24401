"""Frozen dataclasses that cost next to nothing to define.

The standard decorator compiles six methods for each class when its module is imported: a third of the time
that a short command took went there. Here ``__init__`` is compiled when a class is first used, and the other
methods are shared. Everything else is the standard's own: fields, defaults, ``replace``, ``asdict``, slots.

A frozen class refuses plain assignment, and the way around it costs more than half of making a value. So a
value of many fields is filled while it belongs to a twin of its class: the same slots, and not frozen.

Type checkers see the standard decorator, and so does a class that is not frozen and slotted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace

_Class = TypeVar("_Class", bound=type)
_MISSING = dataclasses.MISSING
_put = object.__setattr__
_TWIN_FIELDS_MIN = 4
"""With fewer fields, changing the class twice costs more than it saves."""


def _dataclass(
    cls: _Class | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
) -> Any:
    if cls is not None or not (frozen and slots):
        return dataclasses.dataclass(cls, slots=slots, frozen=frozen, kw_only=kw_only, eq=eq)

    def decorate(cls: _Class) -> _Class:
        if cls.__doc__ is None:
            cls.__doc__ = cls.__name__  # the standard would ask for a signature, which is slow
        own: Mapping[str, object] = vars(cls)
        kept = {name for name in (*_SHARED, "__eq__") if own.get(name) is not None}
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        for name, method in _SHARED.items():
            if name not in kept:
                setattr(made, name, method)
        made.__init__ = _first(made, "__init__", _init_text)
        if eq and "__eq__" not in kept:
            made.__eq__ = _first(made, "__eq__", _eq_text)
            made.__hash__ = _first(made, "__hash__", _hash_text)
        return made  # type: ignore[no-any-return]

    return decorate


def _replace(value: Any, /, **changes: Any) -> Any:
    """As ``dataclasses.replace``, without going through the constructor."""
    cls: Any = type(value)
    copied = _COPIES.get(cls)
    if copied is None:
        copied = _COPIES[cls] = _copy_of(cls)
    made = copied(value)
    for name, change in changes.items():
        try:
            setattr(made, name, change)
        except AttributeError:
            raise TypeError(f"{cls.__qualname__} has no field {name!r}") from None
    made.__class__ = cls
    return made


_COPIES: dict[Any, Callable[[Any], Any]] = {}
"""For each class the function that copies a value of it into a twin."""


def _copy_of(cls: Any) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"_new": object.__new__, "_Twin": _twin(cls)}
    body = "".join(f" made.{name} = value.{name}\n" for name in cls.__dataclass_fields__)
    exec(f"def copied(value):\n made = _new(_Twin)\n{body} return made", names)  # noqa: S102 - our own fields
    return names["copied"]  # type: ignore[no-any-return]


def _twin(cls: Any) -> type:
    """A class with the same slots in the same order, whose values may become values of ``cls``."""
    return type(cls.__name__, (), {"__slots__": cls.__slots__})


if not TYPE_CHECKING:
    dataclass = _dataclass
    replace = _replace


def _first(cls: Any, name: str, text_of: Callable[[Any, dict[str, Any]], str]) -> Callable[..., Any]:
    """A method that is compiled when it is first called, and takes its own place then."""

    def method(*args: Any, **kwargs: Any) -> Any:
        names: dict[str, Any] = {"_put": _put, "_MISSING": _MISSING}
        exec(text_of(cls, names), names)  # noqa: S102 - names of our own fields, nothing from outside
        compiled: Callable[..., Any] = names[name]
        compiled.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, compiled)
        return compiled(*args, **kwargs)

    method.__name__ = name
    return method


def _hash_text(cls: Any, names: dict[str, Any]) -> str:
    return f"def __hash__(self):\n return hash({_tuple(cls, 'self')})"


def _eq_text(cls: Any, names: dict[str, Any]) -> str:
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is not self.__class__:\n  return NotImplemented\n"
        f" return self is other or {_tuple(cls, 'self')} == {_tuple(cls, 'other')}"
    )


def _tuple(cls: Any, owner: str) -> str:
    compared = [field.name for field in dataclasses.fields(cls) if field.compare]
    return f"({''.join(f'{owner}.{name},' for name in compared)})"


def _init_text(cls: Any, names: dict[str, Any]) -> str:
    """The constructor that the standard would have made."""
    positional: list[str] = []
    named: list[str] = []
    body: list[tuple[str, str]] = []
    for number, field in enumerate(dataclasses.fields(cls)):
        value = field.name
        parameter = field.name
        if field.default is not _MISSING:
            names[f"_default_{number}"] = field.default
            parameter = f"{field.name}=_default_{number}"
        elif field.default_factory is not _MISSING:
            names[f"_factory_{number}"] = field.default_factory
            parameter = f"{field.name}=_MISSING"
            value = f"_factory_{number}() if {field.name} is _MISSING else {field.name}"
        if field.init:
            (named if field.kw_only else positional).append(parameter)
        elif field.default is not _MISSING:
            value = f"_default_{number}"
        body.append((field.name, value))
    if len(body) < _TWIN_FIELDS_MIN or cls.__bases__ != (object,):
        lines = [f" _put(self, {name!r}, {value})" for name, value in body]
    else:
        names |= {"_Twin": _twin(cls), "_own": cls}
        lines = [f" self.{name} = {value}" for name, value in body]
        lines = [" _put(self, '__class__', _Twin)", *lines, " self.__class__ = _own"]
    parameters = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    return f"def __init__({parameters}):\n" + "\n".join(lines or [" pass"])


# -- what all of them share ---------------------------------------------------------------------------------


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__dataclass_fields__])


def _repr(self: Any) -> str:
    shown = [
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    ]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> tuple[Any, ...]:
    return _values(self)


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        _put(self, name, value)


_SHARED: dict[str, Callable[..., Any]] = {
    "__repr__": _repr,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _restore,
}
