"""What JSON Schema means here: is this a schema, does a value fit it, what is the best complaint.

Draft 2020-12 by jsonschema-rs, with regular expressions that run in linear time and a retriever that always
refuses: a schema is hostile text, so it may neither burn the host's time nor make it fetch anything.

Compiling is left until the first use (``validator``), because most loaded tools are never called.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema_rs

from toolwright.jsontext import JsonObject, JsonValue, Pointer, at, compact, place_text
from toolwright.model import Schema

DEPTH_MAX: Final = 64
NODES_MAX: Final = 10_000
PATTERN_BYTES_MAX: Final = 1 << 20
COMPLAINTS_MAX: Final = 50

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DIALECTS: Final = (
    _DIALECT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)

_REFERRING: Final = ("$ref", "$dynamicRef", "$schema")
_DATA_KEYWORDS: Final = ("const", "enum", "default", "examples")

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


def flaws(schema: JsonValue) -> tuple[Flaw, ...]:
    """What keeps ``schema`` from being used; nothing for a good one."""
    found = tuple(_caps_and_references(schema))
    if found:
        return found
    dialect = schema.get("$schema", _DIALECT) if isinstance(schema, dict) else _DIALECT
    if not isinstance(dialect, str):
        return (Flaw(("$schema",), f"expected string, got {_got(dialect)}"),)
    meta = _meta(dialect.rstrip("#"))
    if not meta.is_valid(schema):
        return tuple(Flaw(found.pointer, found.message) for found in _complaints(meta, schema))
    if not _mentions(schema, "pattern", "patternProperties", "$ref", "$dynamicRef"):
        return ()  # nothing left that only compiling can tell
    try:
        _compile(schema, {})
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        pointer = tuple(getattr(error, "instance_path", ()))
        if "regex" in str(error):
            return (
                Flaw(
                    pointer,
                    "the pattern is not a regular expression that runs in linear time",
                    "check its brackets; look-around and back references are not supported",
                ),
            )
        return (Flaw(pointer, _first_line(error)),)
    return ()


def _caps_and_references(schema: JsonValue) -> Iterator[Flaw]:
    """Limits on depth and size, and references that would leave the process."""
    nodes = 0
    stack: list[tuple[Pointer, JsonValue, bool]] = [((), schema, False)]
    while stack:
        pointer, value, is_data = stack.pop()
        nodes += 1
        if nodes > NODES_MAX:
            yield Flaw((), f"the schema has more than {NODES_MAX} parts")
            return
        if len(pointer) > DEPTH_MAX:
            yield Flaw(pointer[:3], f"the schema is nested more than {DEPTH_MAX} levels deep")
            return
        if isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, (dict, list)):
                    stack.append(((*pointer, key), item, is_data or key in _DATA_KEYWORDS))
                elif isinstance(item, str) and not is_data and key in _REFERRING:
                    yield from _leads_out((*pointer, key), key, item)
        elif isinstance(value, list):
            stack.extend(
                ((*pointer, number), item, is_data)
                for number, item in enumerate(value)
                if isinstance(item, (dict, list))
            )


def _leads_out(pointer: Pointer, key: str, target: str) -> Iterator[Flaw]:
    if key == "$schema":
        if target.rstrip("#") not in _DIALECTS:
            # Attack: a validator fetches an unknown dialect to learn its rules.
            yield Flaw(
                pointer,
                f"not a JSON Schema dialect we know (got {_short(target)})",
                f'remove it, or write "{_DIALECT}"',
            )
    elif not target.startswith("#"):
        # Attack: request forgery and file reads by a reference that a validator follows.
        yield Flaw(
            pointer,
            f"{_short(target)} leads out of the schema",
            'refer to parts of the same schema only ("#/$defs/...")',
        )


def _mentions(value: JsonValue, *keys: str) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if any(key in item for key in keys):
                return True
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


# -- does a value fit? --------------------------------------------------------------------------------------


def _refuse(uri: str) -> JsonValue:
    raise ValueError(f"references are never fetched: {uri[:200]}")


def _compile(schema: JsonValue, resources: Mapping[str, JsonValue]) -> Any:
    def retrieve(uri: str) -> JsonValue:
        return resources[uri] if uri in resources else _refuse(uri)

    return jsonschema_rs.validator_for(
        schema,
        retriever=retrieve,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX),
        validate_formats=False,
    )


@lru_cache(maxsize=len(_DIALECTS))
def _meta(dialect: str) -> Any:
    """What a schema of that dialect must look like."""
    return jsonschema_rs.validator_for({"$schema": dialect, "$ref": dialect}, retriever=_refuse)


def compile_schema(schema: JsonValue, resources: Mapping[str, JsonValue] | None = None) -> Any:
    """A validator for a schema value; ``resources`` are the only documents its references may lead to."""
    return _compile(schema, resources or {})


@lru_cache(maxsize=1024)
def _validator(text: bytes) -> Any:
    return _compile(Schema(text).document, {})


def complaints(schema: Schema, value: JsonValue) -> tuple[Complaint, ...]:
    """Everything wrong with a value, the best complaint first; nothing when it fits."""
    validator = _validator(schema.text)
    if validator.is_valid(value):
        return ()
    return tuple(sorted(_complaints(validator, value, schema.document), key=_rank))


def _complaints(validator: Any, value: JsonValue, schema: JsonValue = None) -> Iterator[Complaint]:
    for error in islice(validator.iter_errors(value), COMPLAINTS_MAX):
        yield _best(error, schema)


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
            options = [_short(option) for option in kind.options]
            return f"must be one of {', '.join(options[:20])} (got {got}){_meant(error.instance, kind.options)}"
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
