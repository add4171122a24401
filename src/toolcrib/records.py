"""Dataclasses that cost next to nothing to define.

The standard decorator looks at every field and compiles six methods for each class when its module is
imported: half of the time that a short command took went there. Here fields are looked at when somebody asks
for them, the methods of a class are shared until it has been used a few times, and only then compiled.
Everything else is the standard's own: fields, defaults, ``replace``, ``asdict``, slots.

A frozen class refuses plain assignment, and the way around it costs more than half of making a value. So a
value of many fields is filled while it belongs to a twin of its class, which is not frozen. Where values are
made for every call, ``maker`` gives a plain function that makes them in half the time.

Type checkers see the standard decorator, and so does every class that is not plain: one without slots, that
inherits, is compared and can change, has a constructor of its own, or fields that are more than a type and a
default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace

_Class = TypeVar("_Class", bound=type)
_Value = TypeVar("_Value")
_Given = ParamSpec("_Given")
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
    if cls is not None or not slots or (eq and not frozen):
        return dataclasses.dataclass(cls, slots=slots, frozen=frozen, kw_only=kw_only, eq=eq)

    def decorate(cls: Any) -> Any:
        own = cls.__dict__
        types: dict[str, Any] = own.get("__annotations__", {})
        if not _is_plain(cls, types, kw_only=kw_only):
            return dataclasses.dataclass(slots=True, frozen=frozen, kw_only=kw_only, eq=eq)(cls)
        members = {name: value for name, value in own.items() if name not in types and name not in _LEFT_OUT}
        if members.get("__doc__") is None:
            members["__doc__"] = cls.__name__
        members["__slots__"] = tuple(types)
        members["__dataclass_fields__"] = _Fields(
            {name: (kind, own.get(name, _MISSING)) for name, kind in types.items()}, kw_only
        )
        members["__dataclass_params__"] = _Params if frozen else _OpenParams
        if not kw_only:
            members["__match_args__"] = members["__slots__"]
        for name, method in (_OPEN if not frozen else _FROZEN if eq else _FROZEN_NO_EQ).items():
            members.setdefault(name, method)
        made = type(cls)(cls.__name__, (), members)
        made.__qualname__ = cls.__qualname__
        return made

    return decorate


_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY", "typing.", "dataclasses.")
_LEFT_OUT = ("__dict__", "__weakref__")


def _is_plain(cls: Any, types: Mapping[str, Any], *, kw_only: bool) -> bool:
    """Whether a class is one that this file makes as the standard would."""
    own = cls.__dict__
    if cls.__bases__ != (object,) or "__init__" in own or "__post_init__" in own:
        return False
    if ("__eq__" in own) != (own.get("__hash__") is not None):
        return False  # what the other should be is the standard's to say
    has_default = False
    for name, kind in types.items():
        default = own.get(name, _MISSING)
        if isinstance(default, dataclasses.Field):
            if not default.init or default.hash is not None or default.kw_only is not _MISSING:
                return False
            default = default.default if default.default_factory is _MISSING else None
        if default is not _MISSING and default.__class__.__hash__ is None:
            return False  # mutable: the standard says so
        if default is _MISSING and has_default and not kw_only:
            return False  # wrong by position: the standard says so
        has_default = has_default or default is not _MISSING
        if str(kind).startswith(_SPECIAL):
            return False
    return True


class _Params:
    """What a dataclass that inherits from a record asks about it."""

    init = repr = eq = frozen = True
    order = unsafe_hash = False


class _OpenParams(_Params):
    """The same of a class whose values change, and are never compared."""

    eq = frozen = False


_OURS: Final = (_Params, _OpenParams)


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
        if cls.__dict__.get("__dataclass_params__") is not _Params:
            return dataclasses.replace(value, **changes)
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
    names: dict[str, Any] = {"_Twin": twin}
    body = "".join(f" made.{name} = value.{name}\n" for name in cls.__slots__)
    exec(f"def copied(value):\n made = _Twin()\n{body} return made", names)  # noqa: S102 - our own fields
    return names["copied"]  # type: ignore[no-any-return]


def maker(cls: Callable[_Given, _Value]) -> Callable[_Given, _Value]:
    """A function that makes the values of a class, of the same arguments.

    Calling a class puts named arguments into a dict and a tuple first, which takes longer than all the rest.
    """
    if getattr(cls, "__dict__", {}).get("__dataclass_params__") is not _Params:
        return cls
    return _warming(_make, cls, _maker_text)


def changer(cls: type[_Value], *fields: str) -> Callable[..., _Value]:
    """A function that copies a value of a class with others in these fields, which it takes in this order: as
    ``replace``, in half the time."""
    return _warming(_change, cls, lambda cls, names: _changer_text(cls, names, fields), fields)


_own: Any = None
_fields: tuple[str, ...] = ()


def _make(*args: Any, **kwargs: Any) -> Any:
    """Any maker, until it has been used often enough. What it reads here stands in names of its own."""
    _use()
    return _own(*args, **kwargs)


def _change(value: Any, *changes: Any) -> Any:
    """Any changer, likewise."""
    _use()
    return _replace(value, **dict(zip(_fields, changes, strict=True)))


def _use() -> None:
    """Another use of such a function; after enough of them its code is replaced."""


def _warming(
    cold: Callable[..., Any],
    cls: Any,
    text_of: Callable[[Any, dict[str, Any]], str],
    fields: tuple[str, ...] = (),
) -> Callable[..., Any]:
    uses = 0

    def use() -> None:
        nonlocal uses
        uses += 1
        if uses > _USES_MIN:
            exec(text_of(cls, names), names)  # noqa: S102 - names of our own fields, nothing from outside
            compiled = names["compiled"]
            made.__defaults__ = compiled.__defaults__
            made.__kwdefaults__ = compiled.__kwdefaults__
            made.__code__ = compiled.__code__  # the last: another thread may be calling it

    names: dict[str, Any] = {
        "_own": cls, "_fields": fields, "_use": use, "_replace": _replace, "_MISSING": _MISSING,
    }  # fmt: skip
    made = FunctionType(cold.__code__, names)
    return made


_PLAIN = {name: getattr(object, name) for name in ("__init__", "__setattr__", "__delattr__")}
"""What a twin does not inherit: one of the last two alone would leave both slow."""


def _twin(cls: Any) -> type:
    """A class whose values may become values of ``cls``, and are not frozen until then.

    It inherits: of two classes that only have the same slots, these would be compared one by one each time.
    """
    return type(cls.__name__, (cls,), {"__slots__": (), **_PLAIN})


if not TYPE_CHECKING:
    dataclass = _dataclass
    replace = _replace


# -- the methods of a class, before and after they are compiled --------------------------------------------


def _owner(cls: Any) -> Any:
    """The record that a class is, or inherits from."""
    return next(base for base in cls.__mro__ if base.__dict__.get("__dataclass_params__") in _OURS)


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
    cls = _owner(type(self))
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


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    cls = _owner(type(self))
    if _is_warm(cls, "__eq__"):
        return _compiled(cls, "__eq__", _eq_text)(self, other)
    names = _compared(cls)
    return tuple([getattr(self, name) for name in names]) == tuple([getattr(other, name) for name in names])


def _hash(self: Any) -> int:
    cls = _owner(type(self))
    if _is_warm(cls, "__hash__"):
        return int(_compiled(cls, "__hash__", _hash_text)(self))
    return hash(tuple([getattr(self, name) for name in _compared(cls)]))


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
    parameters, made = _parameters(cls, names)
    fields = dataclasses.fields(cls)
    lines = [f" _put(self, {field.name!r}, {field.name})" for field in fields]
    if len(lines) >= _TWIN_FIELDS_MIN:
        names |= {"_Twin": _twin(cls), "_own": cls}
        lines = [
            " if self.__class__ is not _own:",  # one that inherits, and may have more than slots
            *(f" {line}" for line in lines),
            "  return",
            " _put(self, '__class__', _Twin)",
            *(f" self.{field.name} = {field.name}" for field in fields),
            " self.__class__ = _own",
        ]
    return f"def __init__({', '.join(['self', *parameters])}):\n" + "\n".join([*made, *lines] or [" pass"])


def _maker_text(cls: Any, names: dict[str, Any]) -> str:
    """The same without the detour through the class.

    Defaults of parameters that can only be named are looked up one by one, so all of them have a place here,
    behind one that nobody may fill.
    """
    parameters, made = _parameters(cls, names)
    names |= {"_Twin": _twin(cls)}
    if parameters[:1] == ["*"]:
        needed = [parameter for parameter in parameters[1:] if "=" not in parameter]
        wrong = " or ".join(["_ is not _MISSING", *(f"{parameter} is _MISSING" for parameter in needed)])
        made = [f" if {wrong}: raise TypeError({_wrong(cls, needed)!r})", *made]
        given = [f"{name}=_MISSING" if name in needed else name for name in parameters[1:]]
        parameters = ["_=_MISSING", *given]
    lines = [
        *made,
        " self = _Twin()",
        *(f" self.{field.name} = {field.name}" for field in dataclasses.fields(cls)),
        " self.__class__ = _own",
        " return self",
    ]
    return f"def compiled({', '.join(parameters)}):\n" + "\n".join(lines)


def _changer_text(cls: Any, names: dict[str, Any], changed: tuple[str, ...]) -> str:
    names |= {"_Twin": _twin(cls)}
    lines = [
        " self = _Twin()",
        *(f" self.{name} = {name if name in changed else f'_value.{name}'}" for name in cls.__slots__),
        " self.__class__ = _own",
        " return self",
    ]
    return f"def compiled(_value, {', '.join(changed)}):\n" + "\n".join(lines)


def _wrong(cls: Any, needed: list[str]) -> str:
    return f"{cls.__qualname__} takes named arguments alone, and needs: {', '.join(needed) or 'none'}"


def _parameters(cls: Any, names: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What a constructor takes, and the lines that make the defaults of which each value has its own."""
    positional: list[str] = []
    named: list[str] = []
    made: list[str] = []
    for number, field in enumerate(dataclasses.fields(cls)):
        parameter = field.name
        if field.default is not _MISSING:
            names[f"_default_{number}"] = field.default
            parameter = f"{field.name}=_default_{number}"
        elif field.default_factory is not _MISSING:
            names[f"_factory_{number}"] = field.default_factory
            parameter = f"{field.name}=_MISSING"
            made.append(f" if {field.name} is _MISSING: {field.name} = _factory_{number}()")
        (named if field.kw_only else positional).append(parameter)
    return [*positional, *(["*", *named] if named else [])], made


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


_OPEN: dict[str, Callable[..., Any]] = {"__init__": _init, "__repr__": _repr}
_FROZEN_NO_EQ: dict[str, Callable[..., Any]] = {
    **_OPEN,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _restore,
}
_FROZEN: dict[str, Callable[..., Any]] = {**_FROZEN_NO_EQ, "__eq__": _eq, "__hash__": _hash}
