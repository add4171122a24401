"""What an annotation means to a model: the JSON Schema of its values, and the way from JSON to Python.

A schema says what a caller may send; the conversion makes of it what the annotation promises the function. It
is only ever given values that fit the schema. Nothing here knows functions, calls or tools, and no library of
others is imported: what looks like a constraint of annotated-types or a pydantic model is used as one.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import math
import operator
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import PurePath
from typing import Any, Final, TypeAlias
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import schema as json_schema
from toolcrib.functions import docstrings, results
from toolcrib.jsontext import JsonObject, JsonValue, Pointer, place_text

Convert: TypeAlias = Callable[[Any], Any]
_Environment: TypeAlias = Mapping[object, object]

_DEPTH_MAX: Final = 48
"""How deep annotations may be nested; a schema may be a little deeper."""


class Unsuitable(Exception):
    """An annotation that no schema can be made of."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Mismatch(Exception):
    """A value that fits the schema and still is none of the annotated type."""

    def __init__(self, message: str, pointer: Pointer = ()) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer

    def below(self, step: str | int) -> Mismatch:
        return Mismatch(self.message, (step, *self.pointer))

    def __str__(self) -> str:
        return f"{place_text(self.pointer)}: {self.message}" if self.pointer else self.message


class Family(enum.Enum):
    """What limits mean to a value: which keywords of a schema say them, if any do."""

    NUMBER = enum.auto()
    TEXT = enum.auto()
    ARRAY = enum.auto()
    OBJECT = enum.auto()
    OTHER = enum.auto()


class Shape(Struct, frozen=True):
    """One annotation, understood."""

    schema: JsonObject
    convert: Convert | None = None
    """None: the JSON value is the Python value."""
    family: Family = Family.OTHER


NO_DEFAULT: Final = object()
"""Stands for no default: None is one."""


class Member(Struct, frozen=True):
    """One field of a class, or one parameter."""

    name: str
    annotation: object
    required: bool
    default: object = NO_DEFAULT
    description: str = ""


# -- leaves --------------------------------------------------------------------------------------------------


def _reading(read: Convert, what: str) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, ArithmeticError):
            got = f'"{value[:57]}…"' if isinstance(value, str) and len(value) > 60 else repr(value)
            raise Mismatch(f"expected {what} (got {got[:61]})") from None

    return convert


def _whole(value: Any) -> Any:
    """JSON Schema counts 5.0 among the integers."""
    return value if type(value) is int else int(value)


def _decimal(value: Any) -> Decimal:
    return Decimal(str(value))


def _seconds(value: Any) -> timedelta:
    return timedelta(seconds=value)


def _base64(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


_DECIMAL_PATTERN: Final = r"^[+-]?(\d{1,1000}(\.\d{0,1000})?|\.\d{1,1000})([eE][+-]?\d{1,4})?$"
_ANY: Final = Shape({})
_NULL: Final = Shape({"type": "null"})
_LEAVES: Final[dict[object, Shape]] = {
    Any: _ANY,
    object: _ANY,
    None: _NULL,
    types.NoneType: _NULL,
    bool: Shape({"type": "boolean"}),
    int: Shape({"type": "integer"}, _whole, Family.NUMBER),
    float: Shape({"type": "number"}, _reading(float, "a number"), Family.NUMBER),
    str: Shape({"type": "string"}, None, Family.TEXT),
    datetime: Shape(
        {"type": "string", "format": "date-time"},
        _reading(datetime.fromisoformat, "a date and time such as 2026-01-31T12:00:00Z"),
    ),
    date: Shape(
        {"type": "string", "format": "date"}, _reading(date.fromisoformat, "a date such as 2026-01-31")
    ),
    time: Shape(
        {"type": "string", "format": "time"}, _reading(time.fromisoformat, "a time of day such as 12:00:00")
    ),
    timedelta: Shape(
        {"type": "number", "description": "Seconds."},
        _reading(_seconds, "a number of seconds that Python has"),
    ),
    UUID: Shape({"type": "string", "format": "uuid"}, _reading(UUID, "a UUID")),
    # Attack: 1e999999999 as a text is short, and any sum with it fills the memory.
    Decimal: Shape(
        {"type": ["number", "string"], "format": "decimal", "pattern": _DECIMAL_PATTERN},
        _reading(_decimal, "a decimal number"),
    ),
    bytes: Shape({"type": "string", "contentEncoding": "base64"}, _reading(_base64, "base64")),
    re.Pattern: Shape({"type": "string", "format": "regex"}, _reading(re.compile, "a regular expression")),
    list: Shape({"type": "array"}, list, Family.ARRAY),
    set: Shape(
        {"type": "array", "uniqueItems": True}, _reading(set, "values that a set can hold"), Family.ARRAY
    ),
    frozenset: Shape(
        {"type": "array", "uniqueItems": True},
        _reading(frozenset, "values that a set can hold"),
        Family.ARRAY,
    ),
    tuple: Shape({"type": "array"}, tuple, Family.ARRAY),
    dict: Shape({"type": "object"}, dict, Family.OBJECT),
}
_ARRAYS: Final[dict[object, Convert]] = {
    list: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    collections.deque: collections.deque,
    set: set,
    abc.Set: set,
    abc.MutableSet: set,
    frozenset: frozenset,
}
_SETS: Final = (set, frozenset, abc.Set, abc.MutableSet)
_MAPPINGS: Final[dict[object, Convert]] = {
    dict: dict,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
    collections.OrderedDict: collections.OrderedDict,
}
_WRAPPERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"})


# -- all annotations of one function -------------------------------------------------------------------------


class Shapes:
    """The annotations of one function, or of its result, with the definitions that they share."""

    def __init__(self, *, of_result: bool = False) -> None:
        self._of_result = of_result
        self._definitions: dict[str, JsonObject] = {}
        self._named: dict[object, tuple[str, list[Shape]]] = {}
        self._depth = 0

    def of(self, annotation: object, env: _Environment = types.MappingProxyType({})) -> Shape:
        """The shape of an annotation. Raises Unsuitable."""
        self._depth += 1
        try:
            if self._depth > _DEPTH_MAX:
                raise Unsuitable("annotations are nested too deep", "use a flatter type")
            return self._shape(annotation, env)
        finally:
            self._depth -= 1

    def document(self, schema: JsonObject) -> JsonObject:
        """A schema that stands alone: what is used once is written in its place, the rest into ``$defs``."""
        counts: collections.Counter[str] = collections.Counter()
        waiting: list[JsonValue] = [schema]
        while waiting:
            for name in _references(waiting.pop()):
                counts[name] += 1
                if counts[name] == 1:
                    waiting.append(self._definitions[name])
        kept = {name for name in counts if counts[name] > 1 or self._leads_to(name, name)}
        root: JsonObject = self._inlined(schema, kept)
        if root.keys() == {"$ref"} and self._of_result:  # a result's schema must say by itself: an object
            root = dict(self._inlined(self._definitions[_target(root)], kept))
        if kept:
            root = {
                **root,
                "$defs": {name: self._inlined(self._definitions[name], kept) for name in sorted(kept)},
            }
        return root

    def _leads_to(self, name: str, target: str) -> bool:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            for found in _references(self._definitions[waiting.pop()]):
                if found == target:
                    return True
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)
        return False

    def _inlined(self, value: Any, kept: set[str]) -> Any:
        if isinstance(value, list):
            return [self._inlined(item, kept) for item in value]
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("$ref"), str) and _target(value) not in kept:
            beside = {key: item for key, item in value.items() if key != "$ref"}
            return {**self._inlined(self._definitions[_target(value)], kept), **beside}
        return {key: item if key in _DATA else self._inlined(item, kept) for key, item in value.items()}

    # -- which kind -----------------------------------------------------------------------------------------

    def _shape(self, annotation: object, env: _Environment) -> Shape:
        if _is_hashable(annotation) and annotation in _LEAVES:
            return _LEAVES[annotation]
        if isinstance(annotation, typing.TypeVar):
            return self._variable(annotation, env)
        if isinstance(annotation, (str, typing.ForwardRef)):
            raise Unsuitable(f"{_shown(annotation)} cannot be resolved", _RESOLVE_HINT)
        if isinstance(annotation, dataclasses.InitVar):
            return self.of(annotation.type, env)
        supertype = getattr(annotation, "__supertype__", None)
        if supertype is not None:
            return self.of(supertype, env)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if type(annotation).__name__ == "TypeAliasType" or type(origin).__name__ == "TypeAliasType":
            return self._alias(annotation, origin, arguments, env)
        if origin is typing.Annotated:
            return self._annotated(self.of(arguments[0], env), arguments[1:])
        if _name_of(origin) in _WRAPPERS and arguments:
            return self.of(arguments[0], env)
        if origin is typing.Union or origin is types.UnionType:
            return self._union([self.of(part, env) for part in arguments])
        if origin is typing.Literal:
            return _literal(arguments)
        kind = annotation if origin is None else origin
        if kind in _ARRAYS:
            return self._array(kind, arguments, env)
        if kind is tuple:
            return self._tuple(arguments, env)
        if kind in _MAPPINGS:
            return self._mapping(kind, arguments, env)
        if isinstance(kind, type):
            return self._class(kind, annotation, arguments, env)
        raise _no_form(annotation)

    def _class(self, kind: type, annotation: object, arguments: Sequence[object], env: _Environment) -> Shape:
        if issubclass(kind, enum.Enum):
            return _enumeration(kind)
        if issubclass(kind, PurePath):
            return Shape({"type": "string", "format": "path"}, kind)
        if callable(getattr(kind, "model_json_schema", None)) and callable(
            getattr(kind, "model_validate", None)
        ):
            return self._model(kind)
        members: Callable[[], list[Member]]
        make: Callable[..., Any] = kind
        if dataclasses.is_dataclass(kind):
            members = partial(_dataclass_members, kind, self._of_result)
        elif _is_typed_dict(kind):
            members, make = partial(_typed_dict_members, kind), dict
        elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
            members = partial(_named_tuple_members, kind)
        elif issubclass(kind, (str, int, float)):
            below = next(_LEAVES[plain] for plain in (str, int, float) if issubclass(kind, plain))
            return replace(below, convert=_reading(kind, f"a {kind.__name__}"))
        else:
            raise _no_form(annotation)
        variables = getattr(kind, "__parameters__", ())
        inner = {**dict(zip(variables, (_bound(part, env) for part in arguments), strict=False))}
        name = "_".join([kind.__name__, *(_name_of(part) for part in inner.values())])
        return self._define(
            (kind, *inner.values()), name, lambda _: self._object(kind, members(), make, inner)
        )

    # -- named things, which may contain themselves ---------------------------------------------------------

    def _define(self, key: object, name: str, make: Callable[[str], Shape]) -> Shape:
        known = self._named.get(key) if _is_hashable(key) else None
        if known is None:
            name = self._free_name(re.sub(r"\W+", "_", name))
            held: list[Shape] = []
            known = (name, held)
            self._definitions[name] = {}
            if _is_hashable(key):
                self._named[key] = known
            shape = make(name)
            held.append(shape)
            self._definitions[name] = shape.schema
            return Shape({"$ref": f"#/$defs/{name}"}, shape.convert, shape.family)
        name, held = known
        if held:
            return Shape({"$ref": f"#/$defs/{name}"}, held[0].convert, held[0].family)

        def convert(value: Any) -> Any:
            inner = held[0].convert
            return value if inner is None else inner(value)

        return Shape({"$ref": f"#/$defs/{name}"}, convert)

    def _free_name(self, name: str) -> str:
        free, number = name, 2
        while free in self._definitions:
            free, number = f"{name}{number}", number + 1
        return free

    def _alias(self, annotation: Any, origin: Any, arguments: Sequence[object], env: _Environment) -> Shape:
        alias = annotation if origin is None else origin
        inner = dict(
            zip(
                getattr(alias, "__type_params__", ()), (_bound(part, env) for part in arguments), strict=False
            )
        )
        return self._define(
            (alias, *inner.values()), alias.__name__, lambda _: self.of(_meant(alias), {**env, **inner})
        )

    def _variable(self, variable: typing.TypeVar, env: _Environment) -> Shape:
        if variable in env:
            return self.of(env[variable])
        if variable.__constraints__:
            return self._union([self.of(part) for part in variable.__constraints__])
        return _ANY if variable.__bound__ is None else self.of(variable.__bound__)

    def _object(
        self, kind: type, members: Sequence[Member], make: Callable[..., Any], env: _Environment
    ) -> Shape:
        properties: JsonObject = {}
        converting: list[tuple[str, Convert]] = []
        described = docstrings.read(_own_docstring(kind)).parameters
        for member in members:
            try:
                shape = self.of(member.annotation, env)
            except Unsuitable as wrong:
                raise Unsuitable(f"{kind.__name__}.{member.name}: {wrong.message}", wrong.hint) from None
            if shape.convert is not None:
                converting.append((member.name, shape.convert))
            about = member.description or described.get(member.name, "")
            properties[member.name] = described_schema(shape.schema, about, member.default)
        schema: JsonObject = {"type": "object", "properties": properties}
        required = [member.name for member in members if member.required]
        if required:
            schema["required"] = required
        if not self._of_result:
            schema["additionalProperties"] = False
        return Shape(schema, _object_of(make, tuple(converting)), Family.OBJECT)

    def _model(self, kind: Any) -> Shape:
        """A pydantic model, by what it offers."""

        def make(own: str) -> Shape:
            mode = {"mode": "serialization"} if self._of_result else {}
            try:
                schema: JsonObject = dict(kind.model_json_schema(**mode))
            except Exception as error:  # noqa: BLE001 - what a model of others raises is not ours to know
                words = f"{kind.__name__} gives no JSON Schema: {str(error).splitlines()[0][:200]}"
                raise Unsuitable(words, "mend the model, or use a plain type") from None
            inner: JsonObject = schema.pop("$defs", {})
            names = {name: self._free_name(name) for name in inner}
            if schema.keys() == {"$ref"}:  # a model that contains itself
                names[_target(schema)] = own
                schema = inner.pop(_target(schema))
            for name, part in inner.items():
                self._definitions[names[name]] = _renamed(part, names)
            return Shape(_renamed(schema, names), _model_of(kind), Family.OBJECT)

        return self._define(kind, kind.__name__, make)

    # -- containers -----------------------------------------------------------------------------------------

    def _array(self, kind: object, arguments: Sequence[object], env: _Environment) -> Shape:
        item = self.of(arguments[0], env) if arguments else _ANY
        schema: JsonObject = {"type": "array"}
        if item.schema:
            schema["items"] = item.schema
        make = _ARRAYS[kind]
        if kind in _SETS:
            schema["uniqueItems"] = True
            make = _reading(make, "values that a set can hold")
        return Shape(schema, _array_of(make, item.convert), Family.ARRAY)

    def _tuple(self, arguments: Sequence[object], env: _Environment) -> Shape:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            item = self.of(arguments[0], env)
            schema: JsonObject = {"type": "array", "items": item.schema} if item.schema else {"type": "array"}
            return Shape(schema, _array_of(tuple, item.convert), Family.ARRAY)
        parts = [self.of(part, env) for part in arguments]
        schema = {"type": "array", "minItems": len(parts), "maxItems": len(parts)}
        if parts:
            schema |= {"prefixItems": [part.schema for part in parts], "items": False}
        converts = tuple(part.convert for part in parts)
        return Shape(schema, partial(_tuple_of, converts), Family.ARRAY)

    def _mapping(self, kind: object, arguments: Sequence[object], env: _Environment) -> Shape:
        key = self.of(arguments[0], env) if arguments else _LEAVES[str]
        value = self.of(arguments[1], env) if arguments else _ANY
        schema: JsonObject = {"type": "object"}
        if key.schema and key.schema.get("type") != "string":
            raise Unsuitable(
                f"a mapping with keys of {_shown(arguments[0])} has no JSON form",
                "JSON has texts as keys: use dict[str, …], or a list of objects",
            )
        if key.schema.keys() - {"type", "description"}:
            schema["propertyNames"] = {name: part for name, part in key.schema.items() if name != "type"}
        if value.schema:
            schema["additionalProperties"] = value.schema
        return Shape(schema, _mapping_of(_MAPPINGS[kind], key.convert, value.convert), Family.OBJECT)

    def _union(self, parts: Sequence[Shape]) -> Shape:
        others = [part for part in parts if part is not _NULL]
        has_null = len(others) < len(parts)
        if len(others) == 1:
            (only,) = others
            return Shape(_nullable(only.schema), _optional(only.convert), only.family)
        families = {part.family for part in others}
        family = families.pop() if len(families) == 1 else Family.OTHER
        schemas = [part.schema for part in parts]
        schema: JsonObject
        if all(part.keys() == {"type"} and isinstance(part["type"], str) for part in schemas):
            schema = {"type": list(dict.fromkeys(part["type"] for part in schemas))}
        else:
            schema = {"anyOf": schemas}
        if all(part.convert is None for part in others):
            return Shape(schema, None, family)
        # An integer is also a number: where both are there, it stays what it is.
        ordered = sorted(others, key=lambda part: part is _LEAVES[float])
        convert = _Alternatives(ordered, self._complete)
        return Shape(schema, _optional(convert) if has_null else convert, family)

    def _complete(self, schema: JsonObject) -> JsonObject:
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    # -- what Annotated adds --------------------------------------------------------------------------------

    def _annotated(self, shape: Shape, extras: Iterable[object]) -> Shape:
        schema = dict(shape.schema)
        checks: list[tuple[Callable[[Any], object], str]] = []
        for extra in _flat(extras):
            if isinstance(extra, str):
                schema["description"] = extra
                continue
            for name, text in (("documentation", "description"), ("description", "description")):
                if isinstance(getattr(extra, name, None), str):
                    schema[text] = getattr(extra, name)
            examples = getattr(extra, "examples", None)
            if isinstance(examples, list) and _is_json(examples):
                schema["examples"] = examples
            more = getattr(extra, "json_schema_extra", None)
            if isinstance(more, dict) and _is_json(more):
                schema |= more
            for found in _limits(extra):
                keyword = found.keyword(shape.family)
                if keyword is not None:
                    schema[keyword] = found.limit
                else:
                    checks.append((found.holds, found.words))
            pattern = getattr(extra, "pattern", None)
            pattern = getattr(pattern, "pattern", pattern)
            if isinstance(pattern, str) and shape.family is Family.TEXT:
                schema["pattern"] = pattern
            if type(extra).__name__ == "Predicate" and callable(getattr(extra, "func", None)):
                test: Callable[[Any], object] = extra.func  # type: ignore[attr-defined]
                checks.append((test, f"must satisfy {_name_of(test)}"))
        convert = _checking(shape.convert, tuple(checks)) if checks else shape.convert
        return Shape(schema, convert, shape.family)


_RESOLVE_HINT: Final = (
    "import or define the name where the function's module can see it (not in a function, and not only under "
    "TYPE_CHECKING)"
)


def unsuitable_name(error: Exception, annotation: object) -> Unsuitable:
    """For an annotation whose names could not be looked up."""
    return Unsuitable(f"{_shown(annotation)} cannot be resolved: {error}", _RESOLVE_HINT)


def described_schema(schema: JsonObject, description: str, default: object = NO_DEFAULT) -> JsonObject:
    """A schema with a text for the model and, where JSON can write it, the default."""
    schema = dict(schema)
    if description:
        schema["description"] = description
    if default is not NO_DEFAULT:
        with suppress(results.Unwritable):  # a mark of the author's own: it can be left out, that is all
            schema["default"] = results.as_data(default)
    return schema


def _no_form(annotation: object) -> Unsuitable:
    return Unsuitable(
        f"{_shown(annotation)} has no JSON form",
        "use a plain type, a dataclass, a TypedDict or a pydantic model; what only the host can give is "
        "handed over with toolcrib.open(…, provide={TYPE: object})",
    )


# -- conversions ---------------------------------------------------------------------------------------------


def _each(convert: Convert, items: Iterable[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        try:
            yield convert(item)
        except Mismatch as mismatch:
            raise mismatch.below(number) from None


def _array_of(make: Convert, item: Convert | None) -> Convert:
    if item is None:
        return make
    return lambda value: make(_each(item, value))


def _tuple_of(converts: tuple[Convert | None, ...], value: Sequence[Any]) -> tuple[Any, ...]:
    made = []
    for number, (convert, item) in enumerate(zip(converts, value, strict=True)):
        try:
            made.append(item if convert is None else convert(item))
        except Mismatch as mismatch:
            raise mismatch.below(number) from None
    return tuple(made)


def _mapping_of(make: Convert, key: Convert | None, value: Convert | None) -> Convert:
    if key is None and value is None:
        return make

    def convert(given: Mapping[str, Any]) -> Any:
        made = {}
        for name, item in given.items():
            try:
                made[name if key is None else key(name)] = item if value is None else value(item)
            except Mismatch as mismatch:
                raise mismatch.below(name) from None
        return make(made)

    return convert


def _object_of(make: Callable[..., Any], converting: tuple[tuple[str, Convert], ...]) -> Convert:
    def convert(value: Mapping[str, Any]) -> Any:
        made = dict(value)
        for name, inner in converting:
            if name in made:
                try:
                    made[name] = inner(made[name])
                except Mismatch as mismatch:
                    raise mismatch.below(name) from None
        try:
            return make(**made)
        except (ValueError, TypeError, AssertionError) as error:  # what __post_init__ does not take
            raise Mismatch(str(error)[:500] or type(error).__name__) from None

    return convert


def _model_of(kind: Any) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:
            listed = getattr(error, "errors", None)
            first = listed()[0] if callable(listed) else {}
            pointer = tuple(step for step in first.get("loc", ()) if isinstance(step, (str, int)))
            raise Mismatch(str(first.get("msg") or error)[:500], pointer) from None

    return convert


def _optional(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


class _Alternatives:
    """The first part of a union, in the author's order, that a value fits and becomes."""

    def __init__(self, parts: Sequence[Shape], complete: Callable[[JsonObject], JsonObject]) -> None:
        self._parts = parts
        self._complete = complete
        self._fits: list[tuple[Any, Convert | None]] = []

    def __call__(self, value: Any) -> Any:
        if not self._fits:  # compiled when first used: only now are all definitions there
            self._fits = [
                (json_schema.compile_schema(self._complete(part.schema)), part.convert)
                for part in self._parts
            ]
        last: Mismatch | None = None
        for validator, convert in self._fits:
            if validator.is_valid(value):
                try:
                    return value if convert is None else convert(value)
                except Mismatch as mismatch:
                    last = mismatch
        raise last or Mismatch("fits none of the alternatives")


def _checking(convert: Convert | None, checks: tuple[tuple[Callable[[Any], object], str], ...]) -> Convert:
    def checked(value: Any) -> Any:
        made = value if convert is None else convert(value)
        if made is not None:
            for holds, words in checks:
                if not holds(made):
                    raise Mismatch(words)
        return made

    return checked


# -- choices -------------------------------------------------------------------------------------------------

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


def _choices(values: Mapping[Any, object]) -> JsonObject:
    kinds = list(dict.fromkeys(_TYPES[type(value)] for value in values))
    schema: JsonObject = {"type": kinds[0] if len(kinds) == 1 else kinds}
    return {**schema, "enum": list(values)}


def _enumeration(kind: type[enum.Enum]) -> Shape:
    members = list(kind)
    if not members:
        raise Unsuitable(f"{kind.__name__} has no members", "give it some")
    by_value = all(type(member.value) in _TYPES for member in members)
    chosen: dict[Any, object] = {member.value if by_value else member.name: member for member in members}
    return Shape(_choices(chosen), chosen.__getitem__)


def _literal(arguments: Sequence[object]) -> Shape:
    values: list[tuple[Any, object]] = []
    for value in arguments:
        written = value.value if isinstance(value, enum.Enum) else value
        if type(written) not in _TYPES:
            raise Unsuitable(
                f"Literal[{_shown(value)}] has no JSON form", "use texts, numbers, true, false, None"
            )
        values.append((written, value))
    kinds = list(dict.fromkeys(_TYPES[type(written)] for written, _ in values))
    schema: JsonObject = {
        "type": kinds[0] if len(kinds) == 1 else kinds,
        "enum": [written for written, _ in values],
    }
    if all(type(value) is str or value is None for _, value in values):
        return Shape(schema)

    def convert(given: Any) -> object:
        is_bool = isinstance(given, bool)
        return next(
            value for written, value in values if written == given and isinstance(written, bool) is is_bool
        )

    return Shape(schema, convert)


def _nullable(schema: JsonObject) -> JsonObject:
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]} if kind != "null" else schema
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


# -- limits --------------------------------------------------------------------------------------------------

_NUMBERS: Final = {
    "ge": ("minimum", "at least"),
    "gt": ("exclusiveMinimum", "more than"),
    "le": ("maximum", "at most"),
    "lt": ("exclusiveMaximum", "less than"),
    "multiple_of": ("multipleOf", "a multiple of"),
}
_LENGTHS: Final = {"min_length": ("min", "at least"), "max_length": ("max", "at most")}
_COUNTED: Final = {Family.TEXT: "Length", Family.ARRAY: "Items", Family.OBJECT: "Properties"}


class _Limit(Struct, frozen=True):
    """One limit: as a keyword of the schema where it has one, else checked once the value is made."""

    name: str
    limit: Any

    def keyword(self, family: Family) -> str | None:
        if self.name in _LENGTHS:
            counted = _COUNTED.get(family)
            return f"{_LENGTHS[self.name][0]}{counted}" if counted is not None else None
        plain = type(self.limit) in (int, float) and math.isfinite(self.limit)
        return _NUMBERS[self.name][0] if family is Family.NUMBER and plain else None

    @property
    def words(self) -> str:
        if self.name in _LENGTHS:
            return f"must have a length of {_LENGTHS[self.name][1]} {self.limit}"
        return f"must be {_NUMBERS[self.name][1]} {self.limit}"

    def holds(self, value: Any) -> bool:
        return bool(_COMPARED[self.name](value, self.limit))


_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "multiple_of": lambda value, limit: value % limit == 0,
    "min_length": lambda value, limit: len(value) >= limit,
    "max_length": lambda value, limit: len(value) <= limit,
}


def _limits(extra: object) -> Iterator[_Limit]:
    for name in (*_NUMBERS, *_LENGTHS):
        limit = getattr(extra, name, None)
        if limit is not None and not callable(limit):
            yield _Limit(name, limit)


def _flat(extras: Iterable[object]) -> Iterator[object]:
    """What stands in Annotated, one by one: pydantic's Field carries a list of its own."""
    for extra in extras:
        yield extra
        metadata = getattr(extra, "metadata", None)
        if isinstance(metadata, (list, tuple)):
            yield from metadata


# -- classes -------------------------------------------------------------------------------------------------


def class_hints(kind: type) -> dict[str, Any]:
    """The annotations of a class, resolved. Raises Unsuitable."""
    try:
        return typing.get_type_hints(kind, localns={kind.__name__: kind}, include_extras=True)
    except Exception as error:  # noqa: BLE001 - looking up an author's annotation may raise anything
        raise Unsuitable(
            f"an annotation of {kind.__name__} cannot be resolved: {error}", _RESOLVE_HINT
        ) from None


def resolved(annotation: object, seen: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """An annotation with the names in it looked up. Raises whatever that raises."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, dict(seen), dict(more), include_extras=True)["it"]


def _meant(alias: Any) -> Any:
    """What an alias stands for."""
    module = sys.modules.get(alias.__module__)
    try:
        return resolved(alias.__value__, vars(module) if module else {}, {alias.__name__: alias})
    except Exception as error:  # noqa: BLE001 - looking up an author's annotation may raise anything
        raise unsuitable_name(error, alias.__name__) from None


def _dataclass_members(kind: Any, of_result: bool) -> list[Member]:
    hints = class_hints(kind)
    members = []
    for found in kind.__dataclass_fields__.values():
        is_for_init = found._field_type.name == "_FIELD_INITVAR"
        if found._field_type.name == "_FIELD_CLASSVAR" or (is_for_init if of_result else not found.init):
            continue
        default, factory = found.default, found.default_factory
        optional = default is not dataclasses.MISSING or factory is not dataclasses.MISSING
        if default is dataclasses.MISSING:
            # Any other factory may give something else each time.
            default = factory() if factory in (list, dict, set, frozenset, tuple, str) else NO_DEFAULT
        about = found.metadata.get("description", found.metadata.get("doc"))
        annotation = hints[found.name]
        members.append(
            Member(
                found.name,
                annotation.type if isinstance(annotation, dataclasses.InitVar) else annotation,
                of_result or not optional,
                NO_DEFAULT if of_result else default,
                about if isinstance(about, str) else "",
            )
        )
    return members


def _typed_dict_members(kind: Any) -> list[Member]:
    members = []
    for name, annotation in class_hints(kind).items():
        required = name in kind.__required_keys__
        inner = annotation
        while _name_of(typing.get_origin(inner)) in ("Required", "NotRequired", "ReadOnly", "Annotated"):
            wrapper = _name_of(typing.get_origin(inner))
            if wrapper in ("Required", "NotRequired"):
                required = wrapper == "Required"
            inner = typing.get_args(inner)[0]
        members.append(Member(name, annotation, required))
    return members


def _named_tuple_members(kind: Any) -> list[Member]:
    hints = class_hints(kind)
    defaults: Mapping[str, object] = getattr(kind, "_field_defaults", {})
    return [
        Member(name, hints.get(name, Any), name not in defaults, defaults.get(name, NO_DEFAULT))
        for name in kind._fields
    ]


def _is_typed_dict(kind: type) -> bool:
    return issubclass(kind, dict) and hasattr(kind, "__total__") and hasattr(kind, "__required_keys__")


def _own_docstring(kind: type) -> str:
    """What the author wrote; dataclasses and named tuples write their signature where there is nothing."""
    text = kind.__dict__.get("__doc__")
    return text if isinstance(text, str) and not text.startswith(f"{kind.__name__}(") else ""


# -- small parts ---------------------------------------------------------------------------------------------

_DATA: Final = frozenset({"default", "enum", "const", "examples"})


def _references(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield _target(value)
        for key, item in value.items():
            if key not in _DATA:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _target(value: JsonObject) -> str:
    return str(value["$ref"]).removeprefix("#/$defs/")


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: item if key in _DATA else _renamed(item, names) for key, item in value.items()}
    if isinstance(made.get("$ref"), str):
        made["$ref"] = f"#/$defs/{names.get(_target(made), _target(made))}"
    return made


def _bound(part: object, env: _Environment) -> object:
    """A type argument with the type variables of its surroundings put in."""
    if _is_hashable(part) and part in env:
        return env[part]
    variables = getattr(part, "__parameters__", ())
    if variables and not isinstance(part, type):
        return part[tuple(env.get(variable, variable) for variable in variables)]  # type: ignore[index]
    return part


def _is_json(value: object) -> bool:
    try:
        results.as_data(value)
    except results.Unwritable:
        return False
    return True


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _name_of(value: object) -> str:
    name = getattr(value, "__name__", None) or getattr(value, "_name", None)
    return name if isinstance(name, str) else str(value)


def _shown(annotation: object) -> str:
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    text = text if isinstance(text, str) else getattr(text, "__qualname__", None) or str(text)
    return text if len(text) <= 60 else f"{text[:59]}…"
