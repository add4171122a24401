"""Raw arguments become checked ones, by the tool's ``Intake``: nothing starts before they fit its schema.

What differs between formats is data on the record: whether defaults are filled in, whether null counts as
absent, which names never reach the tool, in which words a caller is told. Nothing here builds commands or
runs anything. Most arguments fit as they come, so that way is short: nothing is parsed, copied or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import orjson
from msgspec import Struct

from toolcrib import jsontext
from toolcrib.calls.meaning import as_booleans, filled, plan
from toolcrib.errors import Kind
from toolcrib.jsontext import JsonObject, JsonValue, Pointer, place_text, pointer_text
from toolcrib.model import (
    AsArgv,
    CallFunction,
    Intake,
    Positional,
    RunProcess,
    Schema,
    Switch,
    Tool,
    ToolCall,
    ToolError,
    Words,
)
from toolcrib.schema import COMPLAINTS_MAX, Complaint, complaints, cut, fits

_JSON_SPACE: Final = " \t\r\n"
_VALUES_MAX: Final = 1_000_000
"""On one level of nesting."""
_INTEGER_BITS_MAX: Final = 14_000
"""As many as 4,300 digits have, about: longer ones are refused in texts, too."""


class Checked(Struct, frozen=True):
    """Arguments that fit."""

    arguments: JsonObject
    """As the tool gets them."""
    raw: str
    """Their text: as it came, or written anew where something was changed."""
    notes: tuple[str, ...] = ()
    """What was changed that the caller should know of: names dropped, values repaired."""


def read(text: str) -> tuple[JsonObject | None, str | None]:
    """The object that a text of arguments is, or why it is none. Blank text is the empty object."""
    if not text.strip():
        return {}, None
    parsed = jsontext.read(text.encode("utf-8", "surrogateescape"))
    if parsed.defect is not None:
        return None, str(parsed.defect)
    if parsed.duplicates:
        return None, f"the key {parsed.duplicates[0].key!r} stands there twice"
    if not isinstance(parsed.value, dict):
        return None, "arguments must be an object"
    return parsed.value, None


def check(tool: Tool, call: ToolCall) -> Checked | ToolError:
    """The arguments of a call as the tool gets them, or what is wrong with them."""
    return checked(tool, call.arguments, call.raw, defect=call.defect)


def checked(
    tool: Tool, arguments: JsonValue, raw: str = "", *, defect: str | None = None
) -> Checked | ToolError:
    """The arguments as the tool gets them, or everything that is wrong with them, the best complaint first.

    ``raw`` is their text where they came as one, ``defect`` what whoever read it found wrong with it.
    """
    if arguments is None and defect is None and not raw.strip(_JSON_SPACE):
        arguments = {}
    if not isinstance(arguments, dict):
        return _no_object(tool, raw, defect)
    wrong = _not_json(tool, arguments)
    if wrong is not None:
        return _refused(tool, wrong)
    if isinstance(tool.invocation, RunProcess):
        unmapped = _no_element(tool.invocation, arguments)
        if unmapped is not None:
            return _refused(tool, unmapped)
    intake = tool.intake
    given: JsonObject = arguments
    notes: tuple[str, ...] = ()
    if intake.reserved_names:
        given, notes = _without_reserved(given, intake)
    schema = tool.input_schema
    if schema is not None:
        if intake.declared_only:
            undeclared = _undeclared(schema, given)
            if undeclared is not None:
                return _refused(
                    tool, f"tool {tool.name}: undeclared parameter '{undeclared}' (not in schema)"
                )
        if intake.drop_null_optional and None in given.values():
            required = plan(schema.text).required
            given = {name: value for name, value in given.items() if value is not None or name in required}
        if intake.fill_defaults and (document := plan(schema.text).document) is not None:
            given = filled(document, given)
        asked = as_booleans(given, intake) if intake.lenient_booleans else given
        if not fits(schema, asked):
            given, repairs, found = _repaired(schema, given, asked)
            if found:
                return _misfit(tool, found)
            notes += repairs
    if given is not arguments:
        raw = jsontext.compact(given).decode("utf-8")
    return Checked(given, raw, notes)


# -- is it an object that JSON can hold? --------------------------------------------------------------------


def _no_element(invocation: RunProcess, arguments: JsonObject) -> str | None:
    """Why a value cannot be an element of argv, in the format's words, which come before the schema's."""
    if not isinstance(invocation.encoding, AsArgv):
        return None
    for mapping in invocation.encoding.args:
        value = arguments.get(mapping.param, "")
        is_null = value is None and isinstance(mapping, Positional)
        if is_null or (isinstance(value, (list, dict)) and not isinstance(mapping, Switch)):
            return f"parameter {mapping.param} must be a string, number, or boolean"
    return None


def _refused(tool: Tool, message: str, details: JsonValue = None) -> ToolError:
    hint = f"`toolcrib show {tool.key}` shows what it takes"
    if isinstance(tool.invocation, CallFunction):  # known in the host's own process alone
        hint = "the schema of its arguments says what it takes"
    return ToolError(kind=Kind.INVALID_ARGUMENTS, message=message, hint=hint, details=details)


def _takes_argv(tool: Tool) -> bool:
    return isinstance(tool.invocation, RunProcess) and isinstance(tool.invocation.encoding, AsArgv)


def _no_object(tool: Tool, raw: str, defect: str | None) -> ToolError:
    parsed = jsontext.read(raw.encode("utf-8", "surrogatepass")) if raw.strip(_JSON_SPACE) else None
    if parsed is None or (parsed.defect is None and not parsed.duplicates):
        is_object = parsed is not None and isinstance(parsed.value, dict)
        return _refused(tool, defect if defect and is_object else "arguments must be an object")
    if parsed.duplicates:
        again = parsed.duplicates[0]
        return _refused(tool, f"invalid JSON: line {again.line}: {_quoted(again.key)} stands there twice")
    message = f"invalid JSON: {parsed.defect}"
    if _takes_argv(tool) and ("NUL" in message or "surrogate" in message):
        message = f"exec failed: {parsed.defect}"
    return _refused(tool, message)


def _quoted(text: str) -> str:
    return f'"{cut(text)}"'


def _not_json(tool: Tool, arguments: JsonObject) -> str | None:
    """What JSON, or a program, could not be given; a host may call with any Python values."""
    try:
        written = orjson.dumps(arguments)
    except TypeError:
        pass  # an integer beyond 64 bits is fine, other things are not
    else:
        is_flat = (
            len(written) <= jsontext.DEPTH_MAX
            or written.count(b"{") + written.count(b"[") <= jsontext.DEPTH_MAX
        )
        # NUL is written as an escape, and what is no number as null.
        if is_flat and b"\\u0000" not in written and b"null" not in written:
            return None
    level: list[tuple[Pointer, JsonValue]] = [((), arguments)]
    for _ in range(jsontext.DEPTH_MAX):
        below: list[tuple[Pointer, JsonValue]] = []
        for pointer, value in level:
            wrong = _wrong_value(value)
            if wrong is not None:
                place = place_text(pointer) or "the arguments"
                return f"exec failed: parameter {place} {wrong}" if _takes_argv(tool) else f"{place}: {wrong}"
            if isinstance(value, dict):
                below += [((*pointer, key), item) for key, item in value.items()]
            elif isinstance(value, (list, tuple)):
                below += [((*pointer, number), item) for number, item in enumerate(value)]
        if not below:
            return None
        if len(below) > _VALUES_MAX:
            # A slip of the host: a list that holds itself twice, so that it doubles with every level.
            return f"the arguments hold more than {_VALUES_MAX} values"
        level = below
    return f"the arguments are nested more than {jsontext.DEPTH_MAX} levels deep"


def _wrong_value(value: JsonValue) -> str | None:
    if isinstance(value, str):
        return _wrong_text(value)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "has a name that is no text"
        return next((found for key in value if (found := _wrong_text(key)) is not None), None)
    if isinstance(value, float) and not math.isfinite(value):
        return "is no number that JSON has"
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS_MAX:
        return "is an integer of too many digits"
    if value is None or isinstance(value, (bool, int, float, list, tuple)):
        return None
    return f"is nothing that JSON can write ({type(value).__name__})"


def _wrong_text(text: str) -> str | None:
    if "\0" in text:
        # Attack: what was checked is longer than what a program would see.
        return "has a NUL character"
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        # Attack: Python would turn some of them into raw bytes that were never checked as text.
        return "has a lone surrogate, which is no character"
    return None


# -- what the intake says -----------------------------------------------------------------------------------


def _without_reserved(given: JsonObject, intake: Intake) -> tuple[JsonObject, tuple[str, ...]]:
    """Attack: a caller who sets what only the runtime sets: paths, variables, resolved configuration."""
    exact, prefixes = _reserved(intake.reserved_names)
    dropped = [name for name in given if name in exact or name.startswith(prefixes)]
    if not dropped:
        return given, ()
    kept = {name: value for name, value in given.items() if name not in dropped}
    listed = ", ".join(_quoted(name) for name in dropped[:10])
    return kept, (f"dropped, because only the runtime sets them: {listed}",)


def _undeclared(schema: Schema, given: JsonObject) -> str | None:
    """Return the first argument that the schema does not declare.

    Attack: a model guesses an argument that the author kept from it by leaving it out of the schema.
    """
    properties = schema.document.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return next((cut(name) for name in given if name not in known), None)


@lru_cache(maxsize=1024)
def _reserved(names: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Whole names, and the beginnings of names (those that end in ``*``)."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return frozenset(name for name in names if not name.endswith("*")), prefixes


# -- repair -------------------------------------------------------------------------------------------------


def _repaired(
    schema: Schema, given: JsonObject, asked: JsonObject
) -> tuple[JsonObject, tuple[str, ...], tuple[Complaint, ...]]:
    """Models write an array or object as a string of JSON at times. Where the schema wants one and takes no
    string, the string is read, strictly; where the value then fits, it counts and a note says so."""
    found = complaints(schema, asked)
    read = {complaint.pointer: value for complaint in found for value in _read_text(complaint)}
    if not read:
        return given, (), found
    left = complaints(schema, _with(asked, read))
    fitting = {
        pointer: value
        for pointer, value in read.items()
        if not any(complaint.pointer[: len(pointer)] == pointer for complaint in left)
    }
    if not fitting:
        return given, (), found
    if len(fitting) < len(read):
        left = complaints(schema, _with(asked, fitting))
    notes = tuple(
        f"{place_text(pointer)}: it was a text of JSON and was read as an {_type_of(value)}"
        for pointer, value in fitting.items()
    )
    return _with(given, fitting), notes, left


def _read_text(complaint: Complaint) -> Iterator[JsonValue]:
    text = complaint.got
    wanted = complaint.wanted if complaint.keyword == "type" else ("array", "object")
    if not isinstance(text, str) or complaint.keyword not in ("type", "schema") or not complaint.pointer:
        return
    if text.lstrip(_JSON_SPACE)[:1] not in ("[", "{"):
        return
    parsed = jsontext.read(text.encode("utf-8", "surrogatepass"))
    if parsed.defect is None and not parsed.duplicates and _type_of(parsed.value) in wanted:
        yield parsed.value


def _with(value: JsonObject, changes: dict[Pointer, JsonValue]) -> JsonObject:
    """A copy with other values at these places."""
    copy: JsonObject = jsontext.loads_own(jsontext.compact(value))
    for pointer, new in changes.items():
        jsontext.at(copy, pointer[:-1])[pointer[-1]] = new
    return copy


# -- what is wrong, in words --------------------------------------------------------------------------------


def _misfit(tool: Tool, found: tuple[Complaint, ...]) -> ToolError:
    in_fields = tool.intake.words is Words.FIELDS
    told = [
        text for complaint in found for text in (_in_fields(complaint) if in_fields else [str(complaint)])
    ]
    message = "; ".join(told)
    if len(found) >= COMPLAINTS_MAX:
        message += "; and perhaps more"
    if in_fields:
        message = f"Parameter validation failed: {message}"
    places: JsonValue = [
        {"pointer": pointer_text(complaint.pointer), "message": complaint.message} for complaint in found
    ]
    return _refused(tool, message, {"violations": places})


_BOUNDS: Final = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
_LENGTHS: Final = {
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}


def _in_fields(complaint: Complaint) -> list[str]:
    """The message shapes of ``Words.FIELDS``."""
    place, keyword, wanted, got = (
        place_text(complaint.pointer),
        complaint.keyword,
        complaint.wanted,
        complaint.got,
    )
    if keyword == "required":
        what = "required field missing"
    elif keyword == "enum":
        what = f"must be one of {cut(repr(wanted), 200)}, got {cut(repr(got))}"
    elif keyword == "type":
        what = f"expected {' or '.join(wanted)}, got {_type_of(got)}"
    elif keyword in _BOUNDS:
        what = f"must be {_BOUNDS[keyword]} {wanted}, got {cut(str(got))}"
    elif keyword in _LENGTHS and isinstance(got, (str, list)):
        what = f"must have {_LENGTHS[keyword].format(wanted)}, got {len(got)}"
    elif keyword == "pattern":
        what = f"does not match pattern {cut(str(wanted), 200)}"
    elif keyword == "additionalProperties" and isinstance(wanted, list):
        names = [place_text((*complaint.pointer, name)) for name in wanted[:10]]
        told = [f"{name}: unknown field" for name in names]
        return [*told, complaint.advice] if complaint.advice else told
    else:
        return [str(complaint)]
    return [f"{place}: {what}" if place else what]


def _type_of(value: JsonValue) -> str:
    """The name JSON Schema has for a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", tuple: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)
