"""Frozen dataclasses that cost next to nothing to define.

The standard decorator compiles six methods for each class when its module is imported: a third of the time
that a short command took went there. Here ``__init__`` is compiled when a class is first used, and the other
methods are shared. Everything else is the standard's own: fields, defaults, ``replace``, ``asdict``, slots.

Type checkers see the standard decorator, and so does a class that is not frozen and slotted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

_Class = TypeVar("_Class", bound=type)
_MISSING = dataclasses.MISSING
_put = object.__setattr__


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
            cls.__doc__ = ""  # the standard would ask for a signature, which is slow
        own: Mapping[str, object] = vars(cls)
        shared = {**_SHARED, **(_EQUALITY if eq else {})}
        kept = {name for name in shared if name in own and own[name] is not None}
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        for name, method in shared.items():
            if name not in kept:
                setattr(made, name, method)
        made.__init__ = _first_init(made)
        return made  # type: ignore[no-any-return]

    return decorate


if not TYPE_CHECKING:
    dataclass = _dataclass


def _first_init(cls: Any) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            cls.__init__ = _compiled_init(cls)
        _compiled_init(cls)(self, *args, **kwargs)

    return __init__


def _compiled_init(cls: Any) -> Callable[..., None]:
    """The constructor that the standard would have made."""
    names: dict[str, Any] = {"_put": _put, "_MISSING": _MISSING}
    positional: list[str] = []
    named: list[str] = []
    body: list[str] = []
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
        body.append(f" _put(self, {field.name!r}, {value})")
    parameters = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    text = f"def __init__({parameters}):\n" + "\n".join(body or [" pass"])
    exec(text, names)  # noqa: S102 - names of our own fields, nothing from outside
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


# -- what all of them share ---------------------------------------------------------------------------------


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__dataclass_fields__])


def _compared(self: Any) -> tuple[Any, ...]:
    fields = self.__dataclass_fields__.values()
    return tuple([getattr(self, field.name) for field in fields if field.compare])


def _repr(self: Any) -> str:
    shown = [
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    ]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self is other or _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(_compared(self))


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
_EQUALITY: dict[str, Callable[..., Any]] = {"__eq__": _eq, "__hash__": _hash}
