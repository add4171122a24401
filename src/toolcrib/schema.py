"""What JSON Schema means here: is this a schema, does a value fit, what is the best complaint, what can a
provider hold.

Draft 2020-12 by jsonschema-rs, with regular expressions that run in linear time and a retriever that always
refuses: a schema is hostile text, so it may neither burn the host's time nor make it fetch anything.

Compiling is left until the first use (``validator``), because most loaded tools are never called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, unquote

import jsonschema_rs
from msgspec import Struct

from toolcrib.errors import nearest
from toolcrib.jsontext import JsonObject, JsonValue, Pointer, at, compact, place_text, walk
from toolcrib.model import Schema

DEPTH_MAX: Final = 64
NODES_MAX: Final = 10_000
PATTERN_BYTES_MAX: Final = 1 << 20
PATTERNS_BYTES_MAX: Final = 64 << 20
"""What all patterns that are compiled together may take; many of them share it."""
PATTERN_CHARS_MAX: Final = 10_000
COMPLAINTS_MAX: Final = 50
LISTED_VALUES_MAX: Final = 2_000
"""In a value with more parts only one complaint is looked for: a single one can cost 20 KB of memory. The
same holds where a schema has more than NODES_MAX, which may all be complained about."""
STEPS_MAX: Final = 3_000
"""How often parts of a schema may meet parts of a value where complaints about alternatives are wanted."""

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
DRAFTS: Final = (
    DRAFT,
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


class Flaw(Struct, frozen=True):
    """Why a document is not a schema we can use, and where."""

    pointer: Pointer
    message: str
    hint: str | None = None


class Complaint(Struct, frozen=True):
    """Why a value does not fit, and where in the value."""

    pointer: Pointer
    keyword: str
    message: str
    """Without the place: ``expected integer, got string "5"``."""
    wanted: JsonValue = None
    """What the keyword says: the types, the options, the limit, the pattern, the names that are unknown."""
    got: JsonValue = None
    """The value that does not fit."""
    advice: str = ""
    """What to write instead of a name that is unknown. The message ends with it."""

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
        if _is_plain(given.text) and meta_validator(DRAFT).is_valid(schema):
            return ()
    else:
        schema = given
    found, needs_compiling, references = _caps_and_references(schema)
    found += _endless(references)
    if found:
        return tuple(found)
    dialect = schema.get("$schema", DRAFT) if isinstance(schema, dict) else DRAFT
    if not isinstance(dialect, str):
        return (Flaw(("$schema",), f"expected string, got {_got(dialect)}"),)
    meta = meta_validator(dialect.rstrip("#"))
    if not meta.is_valid(schema):
        return tuple(
            dict.fromkeys(Flaw(found.pointer, found.message) for found in iter_complaints(meta, schema))
        )
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


def oversize(schema: JsonValue) -> tuple[Flaw, ...]:
    """Only the flaws that a schema has for its size, its depth or where its references lead."""
    return tuple(_caps_and_references(schema)[0])


def endless(schema: JsonValue) -> tuple[Flaw, ...]:
    """Only the flaws of references that lead back to themselves and never into a part of the value."""
    return tuple(_endless(_caps_and_references(schema)[2]))


class _Reference(Struct, frozen=True):
    """A reference inside a schema."""

    pointer: Pointer
    """Of its keyword."""
    holder: JsonObject
    text: str
    target: JsonValue


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


def _caps_and_references(schema: JsonValue) -> tuple[list[Flaw], bool, list[_Reference]]:
    """Check depth, size, and references that would leave the process.

    Returns the flaws, whether only compiling can judge the schema, and its references.
    """
    found: list[Flaw] = []
    needs_compiling = False
    nodes = 0
    references: list[tuple[Pointer, JsonObject, JsonValue, str]] = []
    anchors: dict[tuple[int, str], JsonObject] = {}
    # Each container with the resource that its references start from.
    stack: list[tuple[Pointer, JsonValue, JsonValue, _Part]] = [((), schema, schema, _Part.SCHEMA)]
    while stack:
        pointer, value, resource, part = stack.pop()
        nodes += 1
        if nodes > NODES_MAX:
            return [Flaw((), f"the schema has more than {NODES_MAX} parts")], False, []
        if len(pointer) > DEPTH_MAX:
            return [Flaw(pointer[:3], f"the schema is nested more than {DEPTH_MAX} levels deep")], False, []
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
                        references.append(((*pointer, key), value, resource, item))
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
    if not references or found:
        return found, needs_compiling, []
    followed = [
        _Reference(pointer, holder, text, target_of(base, text, anchors))
        for pointer, holder, base, text in references
    ]
    if _written_out(schema, {id(one.holder): one.target for one in followed}) > NODES_MAX:
        # Attack: a ladder of alternatives that refer to the next rung twice; a check climbs every way.
        found.append(Flaw((), f"the schema has more than {NODES_MAX} parts, references written out"))
    return found, needs_compiling, followed


def _endless(references: Sequence[_Reference]) -> Iterator[Flaw]:
    """Find references that lead back to themselves and never into a part of the value.

    Attack: a schema that only refers to itself. It says nothing, and a reader that follows it never ends.
    """
    by_holder: dict[int, list[_Reference]] = {}
    for one in references:
        by_holder.setdefault(id(one.holder), []).append(one)
    done: set[int] = set()
    for first in references:
        # Each schema on the way with the reference that it was left by, and what is left to look at of it.
        way: list[tuple[int, Iterator[tuple[JsonObject, _Reference | None]]]] = []
        left_by: list[_Reference | None] = []
        above: dict[int, int] = {}
        waiting: tuple[JsonObject, _Reference | None] | None = (first.holder, None)
        while waiting is not None or way:
            if waiting is not None:
                schema, reference = waiting
                waiting = None
                if id(schema) in above:
                    loop = [one for one in (*left_by[above[id(schema)] + 1 :], reference) if one is not None]
                    yield Flaw(
                        loop[0].pointer,
                        f"{short(loop[0].text)} leads back to itself and never into a part of the value",
                        "say what the value is; a schema may refer to itself below properties or items",
                    )
                elif id(schema) not in done:
                    done.add(id(schema))
                    above[id(schema)] = len(way)
                    way.append((id(schema), _in_place(schema, by_holder)))
                    left_by.append(reference)
            if way:
                waiting = next(way[-1][1], None)
                if waiting is None:
                    del above[way.pop()[0]]
                    left_by.pop()


def _in_place(
    schema: JsonObject, references: Mapping[int, Sequence[_Reference]]
) -> Iterator[tuple[JsonObject, _Reference | None]]:
    """List the schemas that judge the same value as this one, each with the reference that leads to it."""
    for one in references.get(id(schema), ()):
        if isinstance(one.target, dict):
            yield one.target, one
    for key in ("allOf", "anyOf", "oneOf"):
        listed = schema.get(key)
        yield from (
            (part, None) for part in (listed if isinstance(listed, list) else ()) if type(part) is dict
        )
    for key in ("not", "if", "then", "else"):
        if isinstance(schema.get(key), dict):
            yield schema[key], None
    for key in ("dependentSchemas", "dependencies"):
        named = schema.get(key)
        parts = named.values() if isinstance(named, dict) else ()
        yield from ((part, None) for part in parts if isinstance(part, dict))


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


def target_of(
    resource: JsonValue, reference: str, anchors: Mapping[tuple[int, str], JsonObject]
) -> JsonValue:
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
        if target.rstrip("#") not in DRAFTS:
            # Attack: a validator fetches an unknown dialect to learn its rules.
            yield Flaw(
                pointer,
                f"not a JSON Schema dialect we know (got {short(target)})",
                f'remove it, or write "{DRAFT}"',
            )
    elif key in _REFERRING and not target.startswith("#"):
        # Attack: request forgery and file reads by a reference that a validator follows.
        yield Flaw(
            pointer,
            f"{short(target)} leads out of the schema",
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


@lru_cache(maxsize=len(DRAFTS))
def meta_validator(dialect: str) -> Any:
    """What a schema of that dialect must look like."""
    return jsonschema_rs.validator_for({"$schema": dialect, "$ref": dialect}, retriever=_refuse)


def compile_schema(schema: JsonValue, resources: Mapping[str, JsonValue] | None = None) -> Any:
    """A validator for a schema value; ``resources`` are the only documents its references may lead to."""
    return _compile(schema, resources or {}, patterns_in(schema))


@lru_cache(maxsize=1024)
def _validator(text: bytes) -> Any:
    schema = Schema(text).document
    return _compile(schema, {}, patterns_in(schema))


def fits(schema: Schema, value: JsonValue) -> bool:
    """Whether a value fits; quick whatever the value is."""
    return bool(_validator(schema.text).is_valid(value))


def complaints(schema: Schema, value: JsonValue) -> tuple[Complaint, ...]:
    """What is wrong with a value, the best complaint first; nothing when it fits."""
    validator = _validator(schema.text)
    if validator.is_valid(value):
        return ()
    document = schema.document
    if any(word in schema.text for word in _MULTIPLYING) and _takes_more(document, value, STEPS_MAX):
        return _rough_complaints(document, value)
    found: dict[tuple[Pointer, str, str], Complaint] = {}
    for complaint in iter_complaints(validator, value, document):
        found.setdefault((complaint.pointer, complaint.keyword, complaint.message), complaint)
    return tuple(sorted(found.values(), key=_rank))


_MULTIPLYING: Final = (b'"anyOf":', b'"oneOf":', b'ef":"')
_SAME_VALUE: Final = frozenset({"anyOf", "oneOf", "allOf"})
_SAME_VALUE_ONCE: Final = frozenset({"not", "if", "then", "else"})
_EACH_MEMBER: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
_EACH_PLACE: Final = frozenset({"prefixItems", "items"})
_DEPENDENT: Final = frozenset({"dependentSchemas", "dependencies"})
_EACH_ITEM: Final = frozenset({"items", "contains", "additionalItems", "unevaluatedItems"})
_ROUGH_NAMES_MAX: Final = 20


def _takes_more(schema: JsonObject, value: JsonValue, steps_max: int) -> bool:
    """Whether complaints about a value would take more steps than that.

    Attack: a deep value against a schema that refers to itself in alternatives. Whether it fits is known at
    once, but the complaints of every alternative at every level are two, four, eight and soon millions.
    """
    stack: list[tuple[JsonValue, JsonValue]] = [(schema, value)]
    steps = 0
    while stack:
        part, met = stack.pop()
        steps += 1
        if steps > steps_max:
            return True
        if not isinstance(part, dict):
            continue
        members = list(met.values()) if isinstance(met, dict) else []
        for keyword, below in part.items():
            if keyword in _REFERRING:
                target = target_of(schema, below, {}) if isinstance(below, str) else None
                if target is None:  # by an anchor or another resource: nobody counts those
                    return True
                stack.append((target, met))
            elif keyword in _SAME_VALUE_ONCE:
                stack.append((below, met))
            elif keyword in _SAME_VALUE and isinstance(below, list):
                stack += [(item, met) for item in below]
            elif isinstance(below, list):
                if keyword in _EACH_PLACE and isinstance(met, list):
                    stack += zip(below, met, strict=False)
            elif keyword == "properties" and isinstance(below, dict) and isinstance(met, dict):
                stack += [(item, met[name]) for name, item in below.items() if name in met]
            elif keyword in _EACH_MEMBER:
                stack += [(below, member) for member in islice(members, steps_max)]
            elif keyword == "patternProperties" and isinstance(below, dict):
                stack += [(item, member) for item in below.values() for member in islice(members, steps_max)]
                steps += len(below) * len(members)
            elif keyword in _DEPENDENT and isinstance(below, dict):
                stack += [(item, met) for item in below.values()]
            elif keyword in _EACH_ITEM and isinstance(met, list):
                stack += [(below, item) for item in islice(met, steps_max)]
    return False


def _rough_complaints(schema: JsonObject, value: JsonValue) -> tuple[Complaint, ...]:
    """Which members of a value do not fit, without looking into them; each is asked about alone."""
    found = []
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, dict):
        required = schema.get("required")
        for name in required if isinstance(required, list) else ():
            if isinstance(name, str) and name not in value:
                found.append(Complaint((name,), "required", "is required"))
        inside = _moved(schema)
        for name in islice((name for name in properties if name in value), _ROUGH_NAMES_MAX):
            step = name.replace("~", "~0").replace("/", "~1")
            alone = {"$ref": f"#/$defs/moved/properties/{quote(step)}", "$defs": {"moved": inside}}
            try:
                good = _compile(alone, {}, patterns_in(schema)).is_valid(value[name])
            except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
                break  # an anchor or an identifier: it cannot be moved
            if not good:
                got = value[name]
                found.append(
                    Complaint((name,), "schema", f"does not fit its schema (got {_got(got)})", got=got)
                )
    return tuple(found) or (Complaint((), "schema", f"does not fit the schema (got {_got(value)})"),)


def _moved(part: JsonValue) -> JsonValue:
    """A schema whose references hold below ``#/$defs/moved``."""
    if isinstance(part, list):
        return [_moved(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: f"#/$defs/moved{item[1:]}"
        if key in _REFERRING and isinstance(item, str) and item[:2] in ("#", "#/")
        else _moved(item)
        for key, item in part.items()
    }


def iter_complaints(validator: Any, value: JsonValue, schema: JsonValue = None) -> Iterator[Complaint]:
    listed = not _is_longer(value, LISTED_VALUES_MAX) and not _is_longer(schema, NODES_MAX)
    for error in islice(_errors(validator, value, listed=listed), COMPLAINTS_MAX):
        yield _best(error, schema)


def _is_longer(value: JsonValue, limit: int) -> bool:
    return sum(1 for _ in islice(walk(value), limit + 1)) > limit


def _errors(validator: Any, value: JsonValue, *, listed: bool) -> Iterator[Any]:
    if listed:
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
                wanted=list(dict.fromkeys(expected)),
                got=error.instance,
            )
    pointer: Pointer = tuple(error.instance_path)
    if name == "required":
        pointer = (*pointer, kind.property)
    wanted = next((getattr(kind, word) for word in _WANTED if hasattr(kind, word)), None)
    message, advice = _message(name, kind, error, schema), ""
    if name in ("additionalProperties", "unevaluatedProperties"):
        advice = _advice(list(kind.unexpected), _properties(schema, error.schema_path))
    message = f"{message}; {advice}" if advice else message
    return Complaint(pointer, name, message, wanted, error.instance, advice)


_WANTED: Final = ("types", "options", "expected_value", "limit", "pattern", "unexpected")


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
            options = ", ".join(map(short, kind.options[:20]))
            return f"must be one of {options} (got {got}){_meant(error.instance, kind.options)}"
        case "const":
            return f"must be {short(kind.expected_value)} (got {got})"
        case "additionalProperties" | "unevaluatedProperties":
            return f"unknown name {', '.join(map(short, list(kind.unexpected)[:5]))}"
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
            return f"does not match the pattern {cut(kind.pattern)} (got {got})"
        case "uniqueItems":
            return "has items that are the same"
        case "falseSchema" if error.schema_path[-1:] == ["additionalProperties"]:
            return f"takes no names at all (got one with {got})"
        case "falseSchema":
            return f"nothing is allowed here (got {got})"
        case _:
            return cut(_first_line(error), 200)


_NAMES_LISTED: Final = 10
_WORD_CHARS: Final = 100


def _properties(schema: JsonValue, path: list[str | int]) -> list[str]:
    """The names that the object schema around a failed keyword knows."""
    try:
        return list(at(schema, path[:-1])["properties"])
    except (KeyError, IndexError, TypeError):
        return []


def _advice(unexpected: list[str], known: list[str]) -> str:
    """Return the name that was meant by an unknown one; if none is near, the names that there are."""
    for word in unexpected[:5]:
        meant = _nearest(word, known)
        if not meant:  # of several that it may be short for, the shortest
            meant = min((name for name in known if _are_short_for(word, name)), key=len, default="")
        if meant:
            return f'did you mean "{meant}"?'
    more = ", …" if len(known) > _NAMES_LISTED else ""
    return f"it takes {', '.join(map(short, known[:_NAMES_LISTED]))}{more}" if known else ""


def _are_short_for(word: str, name: str) -> bool:
    """Return whether one of two names leaves out letters of the other: ``tz`` and ``timezone``."""
    less, more = sorted((text[:_WORD_CHARS].casefold() for text in (word, name)), key=len)
    letters = iter(more)
    return len(less) > 1 and less[0] == more[0] and all(letter in letters for letter in less)


def _meant(word: object, known: list[Any]) -> str:
    close = _nearest(word, known) if isinstance(word, str) else ""
    return f'; did you mean "{close}"?' if close else ""


def _nearest(word: str, known: list[Any]) -> str:
    names = [name for name in known if isinstance(name, str) and name != word]
    return next(iter(nearest(word, names, likeness=0.7)), "")


def _got(value: JsonValue) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return kinds[type(value)]
    return f"{kinds.get(type(value), 'value')} {short(value)}"


def short(value: JsonValue) -> str:
    return cut(f'"{value}"' if isinstance(value, str) else compact(value).decode("utf-8"))


def cut(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _first_line(error: object) -> str:
    return str(getattr(error, "message", None) or error).partition("\n")[0]
