"""What JSON Schema means here: is this a schema, does a value fit, what is the best complaint, what can a
provider hold.

Draft 2020-12 by jsonschema-rs, with regular expressions that run in linear time and a retriever that always
refuses: a schema is hostile text, so it may neither burn the host's time nor make it fetch anything.

Compiling is left until the first use (``validator``), because most loaded tools are never called.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from toolwright.jsontext import JsonObject, JsonValue, Pointer, at, compact, place_text, walk
from toolwright.model import Loss, Schema

DEPTH_MAX: Final = 64
NODES_MAX: Final = 10_000
PATTERN_BYTES_MAX: Final = 1 << 20
PATTERNS_BYTES_MAX: Final = 64 << 20
"""What all patterns that are compiled together may take; many of them share it."""
PATTERN_CHARS_MAX: Final = 10_000
COMPLAINTS_MAX: Final = 50
LISTED_VALUES_MAX: Final = 2_000
"""In a value with more parts only one complaint is looked for: a single one can cost 20 KB of memory."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DIALECTS: Final = (
    _DIALECT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)

_REFERRING: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_ANCHORS: Final = frozenset({"$anchor", "$dynamicAnchor"})
_TELLING: Final = _REFERRING | _ANCHORS | {"$schema", "$id", "pattern"}
_TELLING_BYTES: Final = (b'ef":"', b'"$schema":', b'"$id":', b'"pattern":"', b'"patternProperties":')
_DATA_KEYWORDS: Final = frozenset({"const", "enum", "default", "examples"})
_MAPS_OF_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)

EMPTY_OBJECT: Final[JsonObject] = {"type": "object", "properties": {}}
TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a document is not a schema we can use, and where."""

    pointer: Pointer
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a value does not fit, and where in the value."""

    pointer: Pointer
    keyword: str
    message: str
    """Without the place: ``expected integer, got string "5"``."""

    def __str__(self) -> str:
        return f"{place_text(self.pointer)}: {self.message}" if self.pointer else self.message


# -- is it a schema? ----------------------------------------------------------------------------------------


def flaws(given: Schema | JsonValue, *, patterns: int = 0) -> tuple[Flaw, ...]:
    """What keeps a schema from being used; nothing for a good one.

    ``patterns`` is how many there are in the document around it, where that has more than this schema.
    """
    schema: JsonValue
    if isinstance(given, Schema):
        schema = given.document
        if _is_plain(given.text) and _meta(_DIALECT).is_valid(schema):
            return ()
    else:
        schema = given
    found, needs_compiling = _caps_and_references(schema)
    if found:
        return tuple(found)
    dialect = schema.get("$schema", _DIALECT) if isinstance(schema, dict) else _DIALECT
    if not isinstance(dialect, str):
        return (Flaw(("$schema",), f"expected string, got {_got(dialect)}"),)
    meta = _meta(dialect.rstrip("#"))
    if not meta.is_valid(schema):
        return tuple(dict.fromkeys(Flaw(found.pointer, found.message) for found in _complaints(meta, schema)))
    if not needs_compiling:
        return ()
    try:
        _compile(schema, {}, max(patterns, patterns_in(schema)))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        pointer = tuple(getattr(error, "instance_path", ()))
        if "regex" in str(error):
            return (
                Flaw(
                    pointer,
                    "the pattern is not a regular expression that runs in linear time",
                    "check its brackets; look-around, back references and huge repetitions are not supported",
                ),
            )
        return (Flaw(pointer, _first_line(error)),)
    return ()


class _Part(Enum):
    """What a container inside a schema is."""

    SCHEMA = 1
    NAMES = 2
    """Its keys are names of properties and the like, not keywords."""
    DATA = 3


def _is_plain(text: bytes) -> bool:
    """Whether a text is too small for any cap and has no word that needs a closer look: most are so."""
    is_small = text.count(b"{") + text.count(b"[") < DEPTH_MAX
    return is_small and not any(word in text for word in _TELLING_BYTES)


def _caps_and_references(schema: JsonValue) -> tuple[list[Flaw], bool]:
    """Limits on depth and size, and references that would leave the process; and whether the schema has
    something that only compiling it can judge."""
    found: list[Flaw] = []
    needs_compiling = False
    nodes = 0
    references: list[tuple[JsonObject, JsonValue, str]] = []
    anchors: dict[tuple[int, str], JsonObject] = {}
    # Each container with the resource that its references start from.
    stack: list[tuple[Pointer, JsonValue, JsonValue, _Part]] = [((), schema, schema, _Part.SCHEMA)]
    while stack:
        pointer, value, resource, part = stack.pop()
        nodes += 1
        if nodes > NODES_MAX:
            return [Flaw((), f"the schema has more than {NODES_MAX} parts")], False
        if len(pointer) > DEPTH_MAX:
            return [Flaw(pointer[:3], f"the schema is nested more than {DEPTH_MAX} levels deep")], False
        if isinstance(value, dict):
            if part is _Part.SCHEMA and type(value.get("$id")) is str:
                resource = value
            for key, item in value.items():
                kind = type(item)
                if kind is dict or kind is list:
                    below = part
                    if part is _Part.NAMES:
                        below = _Part.SCHEMA
                    elif part is _Part.SCHEMA and key in _MAPS_OF_SCHEMAS:
                        below = _Part.NAMES
                        if key == "patternProperties":
                            needs_compiling = True
                            if any(len(pattern) > PATTERN_CHARS_MAX for pattern in item):
                                found.append(Flaw((*pointer, key), _LONG_PATTERN))
                    elif key in _DATA_KEYWORDS:
                        below = _Part.DATA
                    stack.append(((*pointer, key), item, resource, below))
                elif kind is str and key in _TELLING and part is _Part.SCHEMA:
                    needs_compiling = True
                    if key == "pattern" and len(item) > PATTERN_CHARS_MAX:
                        found.append(Flaw((*pointer, key), _LONG_PATTERN))
                    if key in _REFERRING:
                        references.append((value, resource, item))
                    elif key in _ANCHORS:
                        anchors[id(resource), item] = value
                    found += _leads_out((*pointer, key), key, item)
        elif isinstance(value, list):
            below = _Part.DATA if part is _Part.DATA else _Part.SCHEMA
            stack += [
                ((*pointer, number), item, resource, below)
                for number, item in enumerate(value)
                if type(item) is dict or type(item) is list
            ]
    if references and not found:
        targets = {id(holder): _target(base, target, anchors) for holder, base, target in references}
        if _written_out(schema, targets) > NODES_MAX:
            # Attack: a ladder of alternatives that refer to the next rung twice; a check climbs every way.
            found.append(Flaw((), f"the schema has more than {NODES_MAX} parts, references written out"))
    return found, needs_compiling


_LONG_PATTERN: Final = f"a pattern has more than {PATTERN_CHARS_MAX:,} characters"


def patterns_in(given: Schema | JsonValue) -> int:
    """How many patterns a schema has, at most."""
    text = given.text if isinstance(given, Schema) else compact(given)
    count = text.count(b'"pattern":"')
    if b'"patternProperties":' in text:
        document = given.document if isinstance(given, Schema) else given
        named = (value.get("patternProperties") for _, value in walk(document) if isinstance(value, dict))
        count += sum(len(patterns) for patterns in named if isinstance(patterns, dict))
    return count


def _target(resource: JsonValue, reference: str, anchors: Mapping[tuple[int, str], JsonObject]) -> JsonValue:
    """What a reference inside the schema leads to; None where it leads nowhere."""
    fragment = unquote(reference[1:])
    if fragment and not fragment.startswith("/"):
        return anchors.get((id(resource), fragment))
    value = resource
    for step in fragment.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            is_index = step.isdecimal() and len(step) < 6 and int(step) < len(value)
            value = value[int(step)] if is_index else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _written_out(schema: JsonValue, targets: Mapping[int, JsonValue]) -> int:
    """How many parts there are when references are replaced by what they refer to; a circle counts once."""
    sizes: dict[int, int] = {}
    stack: list[tuple[JsonValue, bool]] = [(schema, False)]
    while stack:
        value, is_counted = stack.pop()
        if not is_counted and id(value) in sizes:
            continue
        inner = [*(value.values() if isinstance(value, dict) else value), targets.get(id(value))]
        inner = [item for item in inner if isinstance(item, (dict, list))]
        if is_counted:
            sizes[id(value)] = min(1 + sum(sizes[id(item)] for item in inner), NODES_MAX + 1)
        else:
            sizes[id(value)] = 1
            stack.append((value, True))
            stack.extend((item, False) for item in inner)
    return sizes[id(schema)]


def _leads_out(pointer: Pointer, key: str, target: str) -> Iterator[Flaw]:
    if key == "$schema":
        if target.rstrip("#") not in _DIALECTS:
            # Attack: a validator fetches an unknown dialect to learn its rules.
            yield Flaw(
                pointer,
                f"not a JSON Schema dialect we know (got {_short(target)})",
                f'remove it, or write "{_DIALECT}"',
            )
    elif key in _REFERRING and not target.startswith("#"):
        # Attack: request forgery and file reads by a reference that a validator follows.
        yield Flaw(
            pointer,
            f"{_short(target)} leads out of the schema",
            'refer to parts of the same schema only ("#/$defs/...")',
        )


# -- does a value fit? --------------------------------------------------------------------------------------


def _refuse(uri: str) -> JsonValue:
    raise ValueError(f"references are never fetched: {uri[:200]}")


def _compile(schema: JsonValue, resources: Mapping[str, JsonValue], patterns: int) -> Any:
    def retrieve(uri: str) -> JsonValue:
        return resources[uri] if uri in resources else _refuse(uri)

    return jsonschema_rs.validator_for(
        schema,
        retriever=retrieve,
        # Attack: patterns that each grow to just below their limit, in every tool of a document.
        pattern_options=jsonschema_rs.RegexOptions(
            size_limit=min(PATTERN_BYTES_MAX, PATTERNS_BYTES_MAX // max(patterns, 1))
        ),
        validate_formats=False,
    )


@lru_cache(maxsize=len(_DIALECTS))
def _meta(dialect: str) -> Any:
    """What a schema of that dialect must look like."""
    return jsonschema_rs.validator_for({"$schema": dialect, "$ref": dialect}, retriever=_refuse)


def compile_schema(schema: JsonValue, resources: Mapping[str, JsonValue] | None = None) -> Any:
    """A validator for a schema value; ``resources`` are the only documents its references may lead to."""
    return _compile(schema, resources or {}, patterns_in(schema))


@lru_cache(maxsize=1024)
def _validator(text: bytes) -> Any:
    schema = Schema(text).document
    return _compile(schema, {}, patterns_in(schema))


def complaints(schema: Schema, value: JsonValue) -> tuple[Complaint, ...]:
    """Everything wrong with a value, the best complaint first; nothing when it fits."""
    validator = _validator(schema.text)
    if validator.is_valid(value):
        return ()
    return tuple(sorted(dict.fromkeys(_complaints(validator, value, schema.document)), key=_rank))


def _complaints(validator: Any, value: JsonValue, schema: JsonValue = None) -> Iterator[Complaint]:
    for error in islice(_errors(validator, value), COMPLAINTS_MAX):
        yield _best(error, schema)


def _errors(validator: Any, value: JsonValue) -> Iterator[Any]:
    if sum(1 for _ in islice(walk(value), LISTED_VALUES_MAX + 1)) <= LISTED_VALUES_MAX:
        yield from validator.iter_errors(value)  # makes all errors before it gives the first
        return
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        yield error


def _rank(complaint: Complaint) -> tuple[int, int]:
    if "did you mean" in complaint.message:
        return 0, 0
    vague = complaint.keyword in ("anyOf", "oneOf", "not", "if", "dependentSchemas", "allOf")
    return 2 if vague else 1, len(complaint.pointer)


def _best(error: Any, schema: JsonValue) -> Complaint:
    """One complaint for one error; for alternatives, that of the alternative that came closest."""
    kind = error.kind
    name: str = kind.name
    if name in ("anyOf", "oneOf") and getattr(kind, "context", None):
        branches = [branch for branch in kind.context if branch]
        # The branch that got furthest into the value was the one that was meant; a branch of another type
        # fails at once.
        meant = max(branches, key=_progress, default=None)
        if meant is not None and (_progress(meant) > (0, 0) or len(branches) == 1):
            return _best(meant[0], schema)
        expected = [part for branch in branches for part in _types(branch)]
        if expected and len(expected) == len(branches):
            return Complaint(
                tuple(error.instance_path),
                "type",
                f"expected {' or '.join(dict.fromkeys(expected))}, got {_got(error.instance)}",
            )
    pointer: Pointer = tuple(error.instance_path)
    if name == "required":
        pointer = (*pointer, kind.property)
    return Complaint(pointer, name, _message(name, kind, error, schema))


def _progress(branch: list[Any]) -> tuple[int, int]:
    first = branch[0]
    return len(first.instance_path), 0 if first.kind.name in ("type", "const", "enum") else 1


def _types(branch: list[Any]) -> list[str]:
    return list(branch[0].kind.types) if len(branch) == 1 and branch[0].kind.name == "type" else []


def _message(name: str, kind: Any, error: Any, schema: JsonValue) -> str:
    got = _got(error.instance)
    match name:
        case "required":
            return "is required"
        case "type":
            return f"expected {' or '.join(kind.types)}, got {got}"
        case "enum":
            options = ", ".join(map(_short, kind.options[:20]))
            return f"must be one of {options} (got {got}){_meant(error.instance, kind.options)}"
        case "const":
            return f"must be {_short(kind.expected_value)} (got {got})"
        case "additionalProperties" | "unevaluatedProperties":
            unexpected = list(kind.unexpected)
            known = _properties(schema, error.schema_path)
            return f"unknown name {', '.join(map(_short, unexpected[:5]))}{_meant(unexpected[0], known)}"
        case "minimum":
            return f"must be at least {kind.limit} (got {got})"
        case "maximum":
            return f"must be at most {kind.limit} (got {got})"
        case "exclusiveMinimum":
            return f"must be more than {kind.limit} (got {got})"
        case "exclusiveMaximum":
            return f"must be less than {kind.limit} (got {got})"
        case "minLength":
            return f"must have at least {kind.limit} characters (got {got})"
        case "maxLength":
            return f"must have at most {kind.limit} characters (got {len(error.instance)})"
        case "minItems":
            return f"must have at least {kind.limit} items (got {len(error.instance)})"
        case "maxItems":
            return f"must have at most {kind.limit} items (got {len(error.instance)})"
        case "pattern":
            return f"does not match the pattern {_cut(kind.pattern)} (got {got})"
        case "uniqueItems":
            return "has items that are the same"
        case "falseSchema" if error.schema_path[-1:] == ["additionalProperties"]:
            return f"takes no names at all (got one with {got})"
        case "falseSchema":
            return f"nothing is allowed here (got {got})"
        case _:
            return _cut(_first_line(error), 200)


def _properties(schema: JsonValue, path: list[str | int]) -> list[str]:
    """The names that the object schema around a failed keyword knows."""
    try:
        return list(at(schema, path[:-1])["properties"])
    except (KeyError, IndexError, TypeError):
        return []


def _meant(word: object, known: list[Any]) -> str:
    if not isinstance(word, str):
        return ""
    names = [name for name in known if isinstance(name, str) and name != word]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    return f'; did you mean "{close[0]}"?' if close else ""


def _got(value: JsonValue) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return kinds[type(value)]
    return f"{kinds.get(type(value), 'value')} {_short(value)}"


def _short(value: JsonValue) -> str:
    return _cut(f'"{value}"' if isinstance(value, str) else compact(value).decode("utf-8"))


def _cut(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _first_line(error: object) -> str:
    return str(getattr(error, "message", None) or error).partition("\n")[0]


# -- what can a provider hold? ------------------------------------------------------------------------------
#
# A provider takes a part of JSON Schema. ``Form`` says which part, as a table; ``narrow`` walks a schema
# once, rewrites or drops what the table does not hold, and reports each change as a ``Loss``. A schema that
# the form accepts comes out as its author wrote it, key order included. Calls are checked against the
# author's schema, so narrowing can never let a wrong call through.


class Nulls(StrEnum):
    """How a form says that a value may be null."""

    AS_WRITTEN = "as written"
    TYPE_LIST = "type list"
    """``type: [T, "null"]``; an ``anyOf`` with null is rewritten."""
    FLAG = "flag"
    """``nullable: true``; type lists do not exist."""


class EnumValues(StrEnum):
    """What may stand in an ``enum``."""

    ANY = "any"
    SCALARS = "scalars"
    STRINGS = "strings"


class Patterns(StrEnum):
    """Which regular expressions may stand in ``pattern``."""

    ANY = "any"
    VALID = "valid"
    LINEAR = "linear"
    """Those without look-around, back references and Unicode classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a schema may be."""

    depth: int
    """Objects and arrays inside each other, the root included."""
    properties: int
    enum_values: int
    string_chars: int
    """Names of properties, enum values and constants together."""
    long_enum: int
    """From how many values on one enum is long,"""
    long_enum_chars: int
    """and how many characters the strings of a long enum may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The part of JSON Schema that a provider takes. The defaults take everything."""

    provider: str
    keywords: frozenset[str] | None = None
    """The only keywords that pass; None: all but ``dropped``."""
    dropped: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    """Dropped keywords whose values the description tells instead."""
    root_refused: frozenset[str] = frozenset()
    """Keywords that must not stand at the root."""
    property_names: re.Pattern[str] | None = None
    """What the names of the root's properties must look like."""
    formats: Mapping[str, frozenset[str]] | None = None
    """Values of ``format`` by type; None: any."""
    nulls: Nulls = Nulls.AS_WRITTEN
    enum_values: EnumValues = EnumValues.ANY
    min_items_max: int | None = None
    own_draft: bool = False
    """Schemas of older drafts pass as they are, when they say so."""
    write_out: bool = False
    """References are replaced by what they refer to."""
    patterns: Patterns = Patterns.ANY
    array_items: bool = False
    """Every array states its items."""
    object_properties: bool = False
    """Every object below the root names its properties."""
    known_required: bool = False
    """``required`` names only defined properties."""
    typed: bool = False
    """Every node states a type or alternatives."""
    closed: bool = False
    """Every object forbids further properties; open objects do not exist."""
    all_required: bool = False
    """Every property is required; the formerly optional ones become nullable."""
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """A schema in a provider's form; without ``document`` the form cannot hold it, ``because`` says why."""

    document: JsonObject | None
    because: str = ""
    losses: tuple[Loss, ...] = ()
    nullable: tuple[Pointer, ...] = ()
    """Places in ``document`` that became nullable: a null there means that the model left the value out."""


def narrow(schema: Schema, form: Form, tool: str) -> Narrowed:
    """``schema`` in the form of a provider, with what that cost. Never raises, whatever the schema."""
    narrowing = _Narrowing(form, tool)
    try:
        document = narrowing.whole(schema)
    except _DoesNotFit as reason:
        return Narrowed(document=None, because=str(reason))
    return Narrowed(
        document=document,
        losses=tuple(dict.fromkeys(narrowing.losses)),
        nullable=tuple(narrowing.nullable),
    )


_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLES: Final = frozenset(
    {
        "items",
        "additionalItems",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "contains",
        "contentSchema",
        "not",
        "if",
        "then",
        "else",
    }
)
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_WITHOUT_MEANING: Final = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
"""Dropping these loses nothing once references are written out."""
_ANNOTATIONS: Final = frozenset({"description", "title", "default", "examples", "$comment", "deprecated"})
_OF_NUMBERS: Final = ("format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_TYPE: Final = {
    "string": ("format", "pattern", "minLength", "maxLength"),
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
}
_LARGER: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_URI_REFERENCE: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
_TOLD_CHARS_MAX: Final = 200


class _DoesNotFit(Exception):
    """The form cannot hold this schema."""


class _Narrowing:
    """One schema on its way into one form.

    ``place`` is always an address in the author's schema, ``out`` the one in the schema that is written.
    """

    def __init__(self, form: Form, tool: str) -> None:
        self.form = form
        self.tool = tool
        self.losses: list[Loss] = []
        self.nullable: list[Pointer] = []
        self.null_kept: set[Pointer] = set()
        self.root: JsonObject = {}
        self.targets: dict[str, JsonValue] = {}
        self.nodes = 0

    def lose(self, place: Pointer, keyword: str, what: str) -> None:
        self.losses.append(Loss(tool=self.tool, pointer=place, keyword=keyword, what=what))

    def takes(self, keyword: str) -> bool:
        form = self.form
        return keyword not in form.dropped and (form.keywords is None or keyword in form.keywords)

    # -- the root -------------------------------------------------------------------------------------------

    def whole(self, schema: Schema) -> JsonObject:
        form = self.form
        try:
            document = schema.document
        except (ValueError, RecursionError):
            raise _DoesNotFit("its schema cannot be read") from None
        if form.keywords is None and self.fits(schema.text, document):
            return document
        self.root = document = self.current(document)
        always = "$ref" in document or "allOf" in document.keys() & form.root_refused
        node, active = self.opened(document, (), frozenset({"#"}), always=always)
        for keyword in _ALTERNATIVES:
            if keyword in node and (keyword in form.root_refused or not self.takes(keyword)):
                node = self.one_object(node, keyword, (), active)
        for keyword in sorted(form.root_refused & node.keys()):
            del node[keyword]
            self.lose((), keyword, f"{form.provider} does not take it at the root")
        types = node.get("type")
        if types is None:
            node = {"type": "object", **node}
            self.lose((), "type", '"object" was added')
        elif isinstance(types, list) and "object" in types:
            node["type"] = "object"
            self.lose((), "type", 'only "object" is kept')
        elif types != "object":
            raise _DoesNotFit(f"its arguments are no object (type {_short(types)})")
        node = self.named(node)
        narrowed = self.node(node, (), (), active, opened=True)
        assert isinstance(narrowed, dict)
        both = self.null_kept.intersection(map(_in_value, self.nullable))
        if both:
            # Reading a call could not tell a null that was meant from one that stands for nothing.
            raise _DoesNotFit(f"null would have two meanings at {'.'.join(map(str, min(both)))}")
        if form.limits is not None:
            _measure(narrowed, form.limits)
        return narrowed

    def fits(self, text: bytes, document: JsonObject) -> bool:
        """Whether a small schema has nothing that a lenient form could change: most have not."""
        form = self.form
        words = (b'"$', b'"pattern', b'"array"', *(f'"{keyword}"'.encode() for keyword in form.dropped))
        return (
            text.count(b"{") + text.count(b"[") < DEPTH_MAX
            and not any(word in text for word in words)
            and document.get("type") == "object"
            and form.root_refused.isdisjoint(document)
            and _meta(_DIALECT).is_valid(document)
            and self.named(document) is document
        )

    def current(self, document: JsonObject) -> JsonObject:
        """The document as draft 2020-12, which is what providers validate declarations against."""
        _bounded(document)
        dialect = document.get("$schema", _DIALECT)
        known = isinstance(dialect, str) and dialect.rstrip("#") in _DIALECTS
        if not known:
            document = {key: value for key, value in document.items() if key != "$schema"}
            self.lose((), "$schema", "not a dialect that is known")
        meta = _meta(dialect.rstrip("#") if known and self.form.own_draft else _DIALECT)
        if meta.is_valid(document):
            return document
        rewritten = {key: value for key, value in _rewritten(document).items() if key != "$schema"}
        if not _meta(_DIALECT).is_valid(rewritten):
            complaint = next(_complaints(_meta(_DIALECT), rewritten))
            raise _DoesNotFit(f"its schema is not valid: {complaint}")
        self.lose((), "$schema", "older keywords were rewritten to draft 2020-12")
        return rewritten

    def named(self, node: JsonObject) -> JsonObject:
        """The root without properties whose names the provider refuses."""
        allowed = self.form.property_names
        properties = node.get("properties", {})
        wrong = [name for name in properties if allowed is not None and not allowed.fullmatch(name)]
        for name in wrong:
            if name in node.get("required", ()):
                raise _DoesNotFit(f"{self.form.provider} refuses the name of its property {_short(name)}")
            self.lose(("properties", name), "properties", f"{self.form.provider} refuses the name")
        if not wrong:
            return node
        return {**node, "properties": {name: properties[name] for name in properties if name not in wrong}}

    # -- one node -------------------------------------------------------------------------------------------

    def node(
        self, schema: JsonValue, place: Pointer, out: Pointer, active: frozenset[str], *, opened: bool = False
    ) -> JsonValue:
        form = self.form
        if len(out) > DEPTH_MAX:
            raise _DoesNotFit("its schema is too deep when references are written out")
        if isinstance(schema, bool):
            if form.keywords is None:
                return schema
            if schema is False:
                self.lose(place, "false", "a place where nothing fits cannot be said")
            schema = {}
        if opened:
            node = dict(schema)
        else:
            node, active = self.opened(schema, place, active)
        told: list[str] = []
        if form.keywords is not None:
            node, active = self.alternatives(node, place, active)
            self.enum(node, place, told)
        if form.nulls is Nulls.FLAG:
            node = self.flagged(node, place)
        self.values(node, place, told)
        for keyword in [keyword for keyword in node if not self.takes(keyword)]:
            self.drop(node, keyword, place, told)
        if form.typed:
            self.typed(node, place)
        if form.array_items and "items" not in node and "array" in _type_list(node):
            if form.typed:
                raise _DoesNotFit(f"it has an array of anything{_at(place)}")
            node["items"] = {}
            self.lose(place, "items", f"an open one was added, which {form.provider} demands")
        is_object = "properties" in node or "object" in _type_list(node)
        if is_object:
            self.names_properties(node, place, out)
        self.children(node, place, out, active)
        if is_object:
            self.requires(node, place, out)
        if told and (out or "description" not in form.root_refused):
            node["description"] = _with(node.get("description"), told)
        return node

    def alternatives(
        self, node: JsonObject, place: Pointer, active: frozenset[str]
    ) -> tuple[JsonObject, frozenset[str]]:
        """``oneOf`` as ``anyOf``; alternatives of an object as one object; null as the form says it."""
        if "oneOf" in node and not self.takes("oneOf") and "anyOf" not in node and self.takes("anyOf"):
            node = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
            self.lose(place, "oneOf", "reads as anyOf: more than one alternative may fit")
        if "anyOf" in node and "properties" in node:
            return self.one_object(node, "anyOf", place, active), active
        arms = node.get("anyOf", [])
        some = [arm for arm in arms if not _is_null(arm)]
        rewrites = self.form.nulls is not Nulls.AS_WRITTEN and len(some) == 1 < len(arms)
        if rewrites and isinstance(some[0], dict):
            only, inside = self.opened(some[0], place, active)
            if "type" in only:
                rest = {key: value for key, value in node.items() if key != "anyOf"}
                node, active = self.both(rest, only, place), inside
                node["type"] = list(dict.fromkeys([*_type_list(only), "null"]))
                if "enum" in node:
                    node["enum"] = [*node["enum"], None]
        if "anyOf" in node and "type" in node and self.form.typed:
            arms = [{"type": node["type"], **arm} if isinstance(arm, dict) else arm for arm in node["anyOf"]]
            node = {**{key: value for key, value in node.items() if key != "type"}, "anyOf": arms}
        return node, active

    def enum(self, node: JsonObject, place: Pointer, told: list[str]) -> None:
        form = self.form
        if "const" in node and not self.takes("const") and self.takes("enum"):
            value = node.pop("const")
            node["enum"] = [value] if value in node.get("enum", [value]) else node["enum"]
        values = node.get("enum")
        if values is None or form.enum_values is EnumValues.ANY:
            return
        if form.enum_values is EnumValues.SCALARS:
            fits = not any(isinstance(value, (dict, list)) for value in values)
        else:
            kinds = {type(value) for value in values}
            fits = set(_type_list(node)) <= {"string", "null"} and str in kinds <= {str, type(None)}
        if not fits:
            told.append(_told("one of", node.pop("enum")))
            self.lose(place, "enum", f"{form.provider} does not take the values; the description tells them")
        elif form.enum_values is EnumValues.STRINGS and "type" not in node:
            node["type"] = ["string", "null"] if None in values else "string"

    def flagged(self, node: JsonObject, place: Pointer) -> JsonObject:
        """``nullable`` and one type, where the author wrote null as a type, a value or an alternative."""
        types = _type_list(node)
        arms = node.get("anyOf", [])
        some = [arm for arm in arms if not _is_null(arm)]
        nullable = node.pop("nullable", None) is True
        nullable = nullable or len(some) < len(arms) or ("null" in types and len(types) > 1)
        if len(some) < len(arms):
            node["anyOf"] = some or arms[:1]
        if "enum" in node:
            node["enum"] = [value for value in node["enum"] if value is not None]
        if isinstance(node.get("type"), list):
            types = [name for name in dict.fromkeys(types) if name != "null"] or ["null"]
            if len(types) == 1:
                node["type"] = types[0]
            else:
                node = self.split(node, types, place)
        if nullable:
            node["nullable"] = True
        return node

    def split(self, node: JsonObject, types: list[str], place: Pointer) -> JsonObject:
        """A type list as one alternative for each type."""
        if "anyOf" in node:
            self.lose(place, "type", "a type list beside anyOf cannot be said")
            return {key: value for key, value in node.items() if key != "type"}
        self.lose(place, "type", "written as anyOf")
        arms: list[JsonObject] = [{"type": name} for name in types]
        rest: JsonObject = {}
        for key, value in node.items():
            owners = [arm for arm in arms if key in _OF_TYPE.get(arm["type"], ())]
            for owner in owners:
                owner[key] = value
            if not owners and key != "type":
                rest[key] = value
        return {**rest, "anyOf": arms}

    def values(self, node: JsonObject, place: Pointer, told: list[str]) -> None:
        """Keywords that pass with some values only."""
        form = self.form
        if "format" in node and form.formats is not None and self.takes("format"):
            known = {name for kind in _type_list(node) for name in form.formats.get(kind, ())}
            if node["format"] not in known:
                self.drop(node, "format", place, told)
        if "pattern" in node and not _regular(node["pattern"], form.patterns):
            self.drop(node, "pattern", place, told)
        if not all(_regular(pattern, form.patterns) for pattern in node.get("patternProperties", ())):
            self.drop(node, "patternProperties", place, told)
        if form.min_items_max is not None and node.get("minItems", 0) > form.min_items_max:
            self.drop(node, "minItems", place, told)
        if "$id" in node and not _URI_REFERENCE.fullmatch(node["$id"]):
            self.lose(place, "$id", f"{_short(node.pop('$id'))} is no URI reference")
        if "$ref" in node and self.target(node["$ref"]) is None:
            self.lose(place, "$ref", f"{_short(node.pop('$ref'))} leads nowhere in this schema")

    def drop(self, node: JsonObject, keyword: str, place: Pointer, told: list[str]) -> None:
        value = node.pop(keyword)
        if keyword == "patternProperties" and self.form.closed:
            raise _DoesNotFit(f"it has an open object{_at(place)}")
        if keyword in _WITHOUT_MEANING and self.form.write_out:
            return
        if keyword in self.form.told and not (keyword == "additionalProperties" and isinstance(value, bool)):
            told.append(_told(keyword, value))
            self.lose(place, keyword, f"{self.form.provider} does not take it; the description tells it")
        else:
            self.lose(place, keyword, f"{self.form.provider} does not take it")

    def typed(self, node: JsonObject, place: Pointer) -> None:
        if node.keys().isdisjoint(("type", "anyOf", "enum", "const", "$ref")):
            if "properties" in node:
                node["type"] = "object"
            elif "items" in node:
                node["type"] = "array"
            else:
                raise _DoesNotFit(f"it takes a value of any type{_at(place)}")

    def children(self, node: JsonObject, place: Pointer, out: Pointer, active: frozenset[str]) -> None:
        for keyword, value in node.items():
            if keyword in _MAPS and isinstance(value, dict):
                node[keyword] = {
                    name: self.node(item, (*place, keyword, name), (*out, keyword, name), active)
                    for name, item in value.items()
                }
            elif isinstance(value, list) and (keyword in _LISTS or keyword == "items"):
                node[keyword] = [
                    self.node(item, (*place, keyword, number), (*out, keyword, number), active)
                    for number, item in enumerate(value)
                ]
            elif keyword in _SINGLES and isinstance(value, dict):
                node[keyword] = self.node(value, (*place, keyword), (*out, keyword), active)

    def names_properties(self, node: JsonObject, place: Pointer, out: Pointer) -> None:
        form = self.form
        properties = node.get("properties")
        if form.closed:
            if node.get("additionalProperties", False) is not False or (
                out and not properties and "additionalProperties" not in node
            ):
                raise _DoesNotFit(f"it has an open object{_at(place)}")
            node.setdefault("properties", {})
        elif form.object_properties and out and not properties:
            raise _DoesNotFit(f"it has an object without named properties{_at(place)}")

    def requires(self, node: JsonObject, place: Pointer, out: Pointer) -> None:
        form = self.form
        properties = node.get("properties", {})
        required = node.get("required", [])
        unknown = [name for name in required if name not in properties]
        if unknown and (form.known_required or form.closed):
            node["required"] = required = [name for name in required if name in properties]
            self.lose(place, "required", f"{', '.join(map(_short, unknown[:5]))} is no property")
        if form.all_required:
            for name, item in properties.items():
                where = (*out, "properties", name)
                if _takes_null(item):
                    self.null_kept.add(_in_value(where))
                elif name not in required:
                    properties[name] = _or_null(item)
                    self.nullable.append(where)
            node["required"] = list(properties)
        if form.closed:
            node["additionalProperties"] = False

    # -- references and conjunctions ------------------------------------------------------------------------

    def opened(
        self, schema: JsonObject, place: Pointer, active: frozenset[str], *, always: bool = False
    ) -> tuple[JsonObject, frozenset[str]]:
        """The node with its references and conjunctions written out, where the form needs it, or always."""
        self.count()
        node = dict(schema)
        while "$ref" in node and (self.form.write_out or always):
            reference = node.pop("$ref")
            target = self.target(reference)
            if target is None:
                self.lose(place, "$ref", f"{_short(reference)} leads nowhere in this schema")
            elif reference in active:
                if self.form.closed:
                    raise _DoesNotFit(f"it refers to itself{_at(place)}")
                self.lose(place, "$ref", "refers to itself; cut here")
                node = {**{key: target[key] for key in ("type", "description") if key in target}, **node}
            else:
                active = active | {reference}
                self.lose(place, "$ref", "written out in place")
                node = self.both(node, target, place)
        if "allOf" in node and (always or not self.takes("allOf")):
            self.lose(place, "allOf", "its parts were merged")
            within = active
            for part in node.pop("allOf"):
                if isinstance(part, dict):
                    opened, inside = self.opened(part, place, active, always=always)
                    within = within | inside
                    node = self.both(node, opened, place)
            active = within
        return node, active

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > NODES_MAX:
            # Attack: a few references to each other that grow without bound when they are written out.
            raise _DoesNotFit("its schema is too large when references are written out")

    def target(self, reference: str) -> JsonValue:
        """What a reference leads to inside this document; None where there is no schema."""
        if reference not in self.targets:
            self.targets[reference] = self.look_up(reference)
        return self.targets[reference]

    def look_up(self, reference: str) -> JsonValue:
        if not reference.startswith("#"):
            return None
        nodes = [node for _, node in walk(self.root) if isinstance(node, dict)]
        anchors = {(id(self.root), str(node["$anchor"])): node for node in nodes if "$anchor" in node}
        value = _target(self.root, reference, anchors)
        return value if isinstance(value, dict) and _meta(_DIALECT).is_valid(value) else None

    def both(self, first: JsonObject, second: JsonObject, place: Pointer) -> JsonObject:
        """One node that says what two say; where that is impossible the first one wins, reported."""
        merged = dict(first)
        for keyword, value in second.items():
            if keyword not in merged or keyword in _ANNOTATIONS or merged[keyword] == value:
                merged.setdefault(keyword, value)
                continue
            mine = merged[keyword]
            if keyword == "properties":
                merged[keyword] = {
                    name: {"allOf": [mine[name], value[name]]} if name in mine and name in value else item
                    for name, item in {**value, **mine}.items()
                }
            elif keyword in ("$defs", "definitions"):
                merged[keyword] = {**value, **mine}
            elif keyword == "required":
                merged[keyword] = list(dict.fromkeys([*mine, *value]))
            elif keyword == "allOf":
                merged[keyword] = [*mine, *value]
            elif keyword in _LARGER:
                merged[keyword] = max(mine, value)
            elif keyword in _SMALLER:
                merged[keyword] = min(mine, value)
            elif keyword in _SINGLES:
                parts = [part for part in (mine, value) if part is not True]
                one = parts[0] if len(parts) == 1 else {"allOf": parts}
                merged[keyword] = False if False in parts else one
            else:
                common = _common(keyword, mine, value)
                if common:
                    merged[keyword] = common
                else:
                    self.lose(place, keyword, "stands twice and cannot be merged; the first one is kept")
        return merged

    def one_object(
        self, node: JsonObject, keyword: str, place: Pointer, active: frozenset[str]
    ) -> JsonObject:
        """Alternatives as one object: all their properties, required only what each of them requires."""
        merged = {key: value for key, value in node.items() if key != keyword}
        arms = []
        for arm in node[keyword]:
            if isinstance(arm, dict):
                opened, inside = self.opened(arm, place, active, always=True)
                for inner in _ALTERNATIVES:
                    if inner in opened:
                        opened = self.one_object(opened, inner, place, inside)
                if "object" in _type_list(opened) or "type" not in opened:
                    arms.append(opened)
        if arms:
            properties = dict(merged.get("properties", {}))
            for arm in arms:
                for name, item in arm.get("properties", {}).items():
                    properties[name] = _either(properties[name], item) if name in properties else item
            required = set.intersection(*(set(arm.get("required", ())) for arm in arms))
            required.update(merged.get("required", ()))
            if properties:
                merged["properties"] = properties
            if required:
                merged["required"] = sorted(required, key=[*properties, *sorted(required)].index)
        self.lose(place, keyword, f"its {len(node[keyword])} alternatives are offered as one object")
        return merged


def _bounded(document: JsonValue) -> None:
    level = [document]
    depth = nodes = 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > DEPTH_MAX or nodes > NODES_MAX:
            raise _DoesNotFit("its schema is too large")
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]


def _rewritten(schema: JsonValue) -> JsonValue:
    """Keywords of older drafts in the words of 2020-12: tuples, and bounds that were switches."""
    if isinstance(schema, list):
        return [_rewritten(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    node = dict(schema)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    for switch, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(node.get(switch), bool) and node.pop(switch) and bound in node:
            node[switch] = node.pop(bound)
    for keyword, value in node.items():
        if keyword in _MAPS and isinstance(value, dict):
            node[keyword] = {name: _rewritten(item) for name, item in value.items()}
        elif keyword in _SINGLES or keyword in _LISTS:
            node[keyword] = _rewritten(value)
    return node


def _measure(document: JsonObject, limits: Limits) -> None:
    properties = values = chars = deepest = 0
    stack: list[tuple[JsonValue, int]] = [(document, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        depth += not {"object", "array"}.isdisjoint(_type_list(node))
        deepest = max(deepest, depth)
        names = node.get("properties", {})
        properties += len(names)
        enum = node.get("enum", [])
        values += len(enum)
        texts = [value for value in (*enum, node.get("const")) if isinstance(value, str)]
        chars += sum(map(len, names)) + sum(map(len, texts))
        if len(enum) > limits.long_enum and sum(map(len, texts)) > limits.long_enum_chars:
            raise _DoesNotFit(f"it has an enum of more than {limits.long_enum_chars} characters")
        stack.extend((item, depth) for item in (*names.values(), node.get("items"), *node.get("anyOf", ())))
    for what, count, most in (
        ("levels", deepest, limits.depth),
        ("properties", properties, limits.properties),
        ("enum values", values, limits.enum_values),
        ("characters in names and values", chars, limits.string_chars),
    ):
        if count > most:
            raise _DoesNotFit(f"it has {count} {what}, more than {most}")


def _in_value(pointer: Pointer) -> Pointer:
    """An address in a schema as the address in the values it describes; items of an array are 0."""
    steps: list[str | int] = []
    rest = list(pointer)
    while rest:
        keyword = rest.pop(0)
        if keyword == "properties":
            steps.append(rest.pop(0))
        elif keyword == "items":
            steps.append(0)
        else:  # anyOf and its number: the same value
            rest.pop(0)
    return tuple(steps)


def _takes_null(schema: JsonObject) -> bool:
    if "enum" in schema or "const" in schema:
        return None in schema.get("enum", ()) or schema.get("const", 0) is None
    if "anyOf" in schema:
        return any(_takes_null(arm) for arm in schema["anyOf"])
    return "null" in _type_list(schema)


def _or_null(schema: JsonObject) -> JsonObject:
    if "enum" not in schema and "const" not in schema:
        if "anyOf" in schema:
            return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
        return {**schema, "type": [*_type_list(schema), "null"]}
    # A null beside an enum that does not list it would be refused: the null stands as an alternative.
    outside = {key: value for key, value in schema.items() if key in ("description", "title")}
    inside = {key: value for key, value in schema.items() if key not in outside}
    return {**outside, "anyOf": [inside, {"type": "null"}]}


def _is_null(schema: JsonValue) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _type_list(node: JsonObject) -> list[str]:
    types = node.get("type", [])
    return list(types) if isinstance(types, list) else [types]


def _common(keyword: str, mine: JsonValue, other: JsonValue) -> JsonValue:
    """What two values of a keyword have in common; None where that cannot be said."""
    if keyword == "enum":
        return [value for value in mine if value in other] or None
    if keyword == "type":
        first, second = (value if isinstance(value, list) else [value] for value in (mine, other))
        common = [name for name in first if name in second or (name == "integer" and "number" in second)]
        common += [name for name in second if name == "integer" and "number" in first and name not in common]
        return common[0] if len(common) == 1 else common or None
    return None


def _either(first: JsonValue, second: JsonValue) -> JsonValue:
    arms = first["anyOf"] if isinstance(first, dict) and first.keys() == {"anyOf"} else [first]
    return first if second in arms else {"anyOf": [*arms, second]}


_BEYOND_LINEAR: Final = re.compile(r"\\[pP0]")


@lru_cache(maxsize=1024)
def _regular(pattern: str, wanted: Patterns) -> bool:
    if wanted is Patterns.ANY:
        return True
    if len(pattern) > PATTERN_CHARS_MAX:
        return False
    try:
        compile_schema({"pattern": pattern})
    except (jsonschema_rs.ValidationError, ValueError):
        if wanted is Patterns.LINEAR:
            return False
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            return False
        return True
    return wanted is Patterns.VALID or not _BEYOND_LINEAR.search(pattern.replace(r"\\", ""))


def _told(keyword: str, value: JsonValue) -> str:
    return f"{keyword}: {_cut(compact(value).decode('utf-8'), _TOLD_CHARS_MAX)}"


def _with(description: str | None, told: list[str]) -> str:
    return f"{description} ({'; '.join(told)})" if description else "; ".join(told)


def _at(place: Pointer) -> str:
    return f" at {place_text(place)}" if place else ""
