"""What a tool makes of arguments that were checked: the defaults it declares, switches set by words. Pure.

``arguments.py`` checks arguments, and fills these in where the format says so; policy judges a call by them
in any case. Nothing here knows what fits a schema, so that listing need not load what does.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Intake, Schema, Tool


def meant(tool: Tool, given: JsonObject) -> JsonObject:
    """Checked arguments as the tool will understand them: with the defaults that it declares, and switches
    as what they do. The same ones, where that is what they say. For those who judge a call by its arguments;
    commands are built from the arguments as they came."""
    schema = tool.input_schema
    document = None if schema is None else plan(schema.text).document
    whole = given if document is None else filled(document, given)
    return as_booleans(whole, tool.intake) if tool.intake.lenient_booleans else whole


class Plan(Struct, frozen=True):
    """What a schema says about filling in and leaving out."""

    required: frozenset[str]
    document: JsonObject | None
    """None: nothing in it has a default."""


@lru_cache(maxsize=1024)
def plan(text: bytes) -> Plan:
    document = Schema(text).document
    required = document.get("required")
    names = frozenset(
        name for name in (required if isinstance(required, list) else ()) if isinstance(name, str)
    )
    return Plan(names, document if b'"default":' in text else None)


def filled(schema: JsonValue, value: JsonObject) -> JsonObject:
    """With the defaults of absent properties, also in nested objects that are present."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return value
    changes: JsonObject = {}
    for name, part in properties.items():
        if name in value:
            inner = _filled_part(part, value[name])
            if inner is not value[name]:
                changes[name] = inner
        elif isinstance(part, dict) and "default" in part:
            default = part["default"]
            is_shared = isinstance(default, (dict, list))  # the tool may change what it is given
            changes[name] = jsontext.loads_own(jsontext.compact(default)) if is_shared else default
    return {**value, **changes} if changes else value


def _filled_part(schema: JsonValue, value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return filled(schema, value)
    if isinstance(value, list) and isinstance(schema, dict) and isinstance(schema.get("items"), dict):
        inner = [_filled_part(schema["items"], item) for item in value]
        return inner if any(new is not old for new, old in zip(inner, value, strict=True)) else value
    return value


def as_booleans(arguments: JsonObject, intake: Intake) -> JsonObject:
    """What the schema is asked about: a switch also takes the words true and false, and whole numbers."""
    changes: JsonObject = {}
    for name in intake.lenient_booleans:
        value = arguments.get(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            changes[name] = value.lower() == "true"
        elif type(value) is int:
            changes[name] = value != 0
    return {**arguments, **changes} if changes else arguments
