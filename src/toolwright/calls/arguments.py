"""Raw arguments become checked ones, by the tool's ``Intake``: nothing starts before they fit its schema.

What differs between formats is data on the record: whether defaults are filled in, whether null counts as
absent, which names never reach the tool. Nothing here builds commands or runs anything.
"""

from __future__ import annotations

from typing import Final

from toolwright.errors import Kind
from toolwright.jsontext import JsonObject, JsonValue
from toolwright.model import Intake, Tool, ToolError
from toolwright.schema import complaints

_TOLD_MAX: Final = 5


def checked(tool: Tool, arguments: JsonObject) -> JsonObject | ToolError:
    """The arguments as the tool gets them, or what is wrong with them, the best complaint first."""
    intake = tool.intake
    given = {name: value for name, value in arguments.items() if not _is_reserved(name, intake)}
    if tool.input_schema is None:
        return given
    schema = tool.input_schema.document
    if intake.drop_null_optional:
        required = schema.get("required", ())
        given = {name: value for name, value in given.items() if value is not None or name in required}
    if intake.fill_defaults:
        given = _filled(schema, given)
    found = complaints(tool.input_schema, _as_booleans(given, intake))
    if not found:
        return given
    more = f" (and {len(found) - _TOLD_MAX} more)" if len(found) > _TOLD_MAX else ""
    return ToolError(
        kind=Kind.INVALID_ARGUMENTS,
        message="; ".join(str(complaint) for complaint in found[:_TOLD_MAX]) + more,
        hint=f"`toolwright show {tool.key}` shows what it takes",
    )


def _is_reserved(name: str, intake: Intake) -> bool:
    return any(
        name.startswith(reserved[:-1]) if reserved.endswith("*") else name == reserved
        for reserved in intake.reserved_names
    )


def _filled(schema: JsonValue, value: JsonObject) -> JsonObject:
    """Defaults of absent properties, also in nested objects that are present."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return value
    filled = dict(value)
    for name, part in properties.items():
        if name in filled:
            if isinstance(filled[name], dict):
                filled[name] = _filled(part, filled[name])
        elif isinstance(part, dict) and "default" in part:
            filled[name] = part["default"]
    return filled


def _as_booleans(arguments: JsonObject, intake: Intake) -> JsonObject:
    """What the schema is asked about: a switch also takes the words true and false, and whole numbers."""
    read = dict(arguments)
    for name in intake.lenient_booleans:
        value = read.get(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            read[name] = value.lower() == "true"
        elif type(value) is int:
            read[name] = value != 0
    return read
