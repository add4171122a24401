"""Frozen dataclasses that cost next to nothing to define.

The standard decorator looks at every field and compiles six methods for each class when its module is
imported: half of the time that a short command took went there. Here fields are looked at when somebody asks
for them, the methods of a class are shared until it has been used a few times, and only then compiled.
Everything else is the standard's own: fields, defaults, ``replace``, ``asdict``, slots.

A frozen class refuses plain assignment, and the way around it costs more than half of making a value. So a
value of many fields is filled while it belongs to a twin of its class: the same slots, and not frozen.

Type checkers see the standard decorator, and so does a class that is not frozen and slotted, or inherits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace

_Class = TypeVar("_Class", bound=type)
_MISSING = dataclasses.MISSING
_put = object.__setattr__
_USES_MIN = 8
"""So often a method is used before it is compiled: most commands make a few values of each kind and end."""
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

    def decorate(cls: Any) -> Any:
        own = cls.__dict__
        types: dict[str, Any] = own.get("__annotations__", {})
        if cls.__bases__ != (object,) or any(str(kind).startswith(_SPECIAL) for kind in types.values()):
            return dataclasses.dataclass(slots=True, frozen=True, kw_only=kw_only, eq=eq)(cls)
        members = {name: value for name, value in own.items() if name not in types and name not in _LEFT_OUT}
        if members.get("__doc__") is None:
            members["__doc__"] = cls.__name__
        members["__slots__"] = tuple(types)
        members["__dataclass_fields__"] = _Fields(
            {name: (kind, own.get(name, _MISSING)) for name, kind in types.items()}, kw_only
        )
        if not kw_only:
            members["__match_args__"] = tuple(types)
        for name, method in _SHARED.items():
            members.setdefault(name, method)
        for name, method in _WARMING.items() if eq and "__eq__" not in own else _NO_EQ.items():
            members[name] = method
        made = type(cls)(cls.__name__, (), members)
        made.__qualname__ = cls.__qualname__
        return made

    return decorate


_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY", "typing.", "dataclasses.")
_LEFT_OUT = ("__dict__", "__weakref__")


class _Fields:
    """The fields of a class, as the standard knows them: made when first asked for."""

    __slots__ = ("kw_only", "written")

    def __init__(self, written: dict[str, tuple[Any, Any]], kw_only: bool) -> None:
        self.written = written
        """Type and default of each, as they stand in the class."""
        self.kw_only = kw_only

    def __get__(self, value: object, cls: Any) -> dict[str, dataclasses.Field[Any]]:
        found: dict[str, Any] = {}
        for name, (kind, default) in self.written.items():
            field: Any = (
                default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
            )
            if isinstance(default, (list, dict, set)):
                raise ValueError(f"mutable default {type(default)} for field {name} is not allowed")
            field.name, field.type, field.kw_only = name, kind, self.kw_only
            field._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            found[name] = field
        cls.__dataclass_fields__ = found
        return found


def _replace(value: Any, /, **changes: Any) -> Any:
    """As ``dataclasses.replace``, without going through the constructor."""
    cls: Any = type(value)
    copied = _COPIES.get(cls)
    if copied is None:
        copied = _COPIES[cls] = _Copying(cls)
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


class _Copying:
    """The slow way, until it has been gone often enough."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.twin = _twin(cls)
        self.uses = 0

    def __call__(self, value: Any) -> Any:
        self.uses += 1
        if self.uses > _USES_MIN:
            _COPIES[self.cls] = copied = _copy_of(self.cls, self.twin)
            return copied(value)
        made: Any = object.__new__(self.twin)
        for name in self.cls.__slots__:
            setattr(made, name, getattr(value, name))
        return made


def _copy_of(cls: Any, twin: type) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"_new": object.__new__, "_Twin": twin}
    body = "".join(f" made.{name} = value.{name}\n" for name in cls.__slots__)
    exec(f"def copied(value):\n made = _new(_Twin)\n{body} return made", names)  # noqa: S102 - our own fields
    return names["copied"]  # type: ignore[no-any-return]


def _twin(cls: Any) -> type:
    """A class with the same slots in the same order, whose values may become values of ``cls``."""
    return type(cls.__name__, (), {"__slots__": cls.__slots__})


if not TYPE_CHECKING:
    dataclass = _dataclass
    replace = _replace


# -- the methods of a class, before and after they are compiled --------------------------------------------


def _written(cls: Any) -> dict[str, tuple[Any, Any]]:
    found: Any = cls.__dict__["__dataclass_fields__"]
    if isinstance(found, _Fields):
        return found.written
    return {name: (field.type, field) for name, field in found.items()}


_USES: dict[tuple[Any, str], int] = {}


def _is_warm(cls: Any, method: str) -> bool:
    uses = _USES[cls, method] = _USES.get((cls, method), 0) + 1
    return uses > _USES_MIN


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    """Any constructor, for a while; what is wrong with a call is told by the compiled one."""
    cls = type(self)
    written = _written(cls)
    if args and len(args) <= len(getattr(cls, "__match_args__", ())):
        named = dict(zip(written, args, strict=False))
        if named.keys().isdisjoint(kwargs):
            args, kwargs = (), named | kwargs
    if args or _is_warm(cls, "__init__") or not kwargs.keys() <= written.keys():
        _compiled(cls, "__init__", _init_text)(self, *args, **kwargs)
        return
    values: list[Any] = []
    for name, (_, default) in written.items():
        if name in kwargs:
            value = kwargs[name]
        elif isinstance(default, dataclasses.Field):
            value = default.default if default.default_factory is _MISSING else default.default_factory()
        else:
            value = default
        if value is _MISSING:
            _compiled(cls, "__init__", _init_text)(self, **kwargs)
            return
        values.append(value)
    for name, value in zip(written, values, strict=True):
        _put(self, name, value)
    if hasattr(cls, "__post_init__"):
        self.__post_init__()


def _eq(self: Any, other: object) -> Any:
    cls = type(self)
    if type(other) is not cls:
        return NotImplemented
    if _is_warm(cls, "__eq__"):
        return _compiled(cls, "__eq__", _eq_text)(self, other)
    return self is other or all(getattr(self, name) == getattr(other, name) for name in _compared(cls))


def _hash(self: Any) -> int:
    cls = type(self)
    if _is_warm(cls, "__hash__"):
        return int(_compiled(cls, "__hash__", _hash_text)(self))
    return hash(tuple([getattr(self, name) for name in _compared(cls)]))


_NO_EQ: dict[str, Callable[..., Any]] = {"__init__": _init}
_WARMING: dict[str, Callable[..., Any]] = {**_NO_EQ, "__eq__": _eq, "__hash__": _hash}


def _compiled(cls: Any, name: str, text_of: Callable[[Any, dict[str, Any]], str]) -> Callable[..., Any]:
    """A method of the class's own, which takes the place of the shared one."""
    names: dict[str, Any] = {"_put": _put, "_MISSING": _MISSING}
    exec(text_of(cls, names), names)  # noqa: S102 - names of our own fields, nothing from outside
    compiled: Callable[..., Any] = names[name]
    compiled.__qualname__ = f"{cls.__qualname__}.{name}"
    setattr(cls, name, compiled)
    return compiled


def _compared(cls: Any) -> list[str]:
    return [
        name
        for name, (_, default) in _written(cls).items()
        if not isinstance(default, dataclasses.Field) or default.compare is not False
    ]


def _hash_text(cls: Any, names: dict[str, Any]) -> str:
    return f"def __hash__(self):\n return hash({_tuple(cls, 'self')})"


def _eq_text(cls: Any, names: dict[str, Any]) -> str:
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is not self.__class__:\n  return NotImplemented\n"
        f" return self is other or {_tuple(cls, 'self')} == {_tuple(cls, 'other')}"
    )


def _tuple(cls: Any, owner: str) -> str:
    return f"({''.join(f'{owner}.{name},' for name in _compared(cls))})"


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
    if len(body) < _TWIN_FIELDS_MIN:
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
