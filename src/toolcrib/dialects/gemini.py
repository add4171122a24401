"""Gemini's generateContent: ``functionDeclarations``, ``functionCall`` and ``functionResponse``.

A function's schema goes into ``parameters``, a small part of OpenAPI that every Gemini endpoint takes. What
that cannot say at all (an object without named properties, a value of any type) goes into
``parametersJsonSchema``, for that function only. This module sends nothing.

Sources of the rules: docs/dialects/gemini.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from toolcrib.dialects._messages import Source, calls_in, items, member
from toolcrib.dialects._names import NameRule
from toolcrib.dialects._narrowing import EnumValues, Form, Nulls
from toolcrib.dialects._wire import (
    LOCAL_ID,
    Draft,
    Rules,
    narrowed,
    pictures,
    read_call,
    text_of,
)
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Declared, DeclareOptions, NameMap, Tool, ToolCall, ToolMode, ToolResult

NAME: Final = "gemini"

# -- the rules ----------------------------------------------------------------------------------------------

_ROOT_REFUSED: Final = frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not"})
_PROPERTY_NAMES: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")  # FunctionDeclaration.parameters
_TOLD: Final = frozenset(
    {
        "default", "format", "pattern", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
        "minProperties", "maxProperties", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const",
        "prefixItems", "contains", "additionalProperties", "propertyNames", "dependentRequired", "not",
    }
)  # fmt: skip
_FORMATS: Final = {
    "string": frozenset({"date-time", "enum"}),  # "only 'enum' and 'date-time' are supported for STRING type"
    "number": frozenset({"float", "double"}),
    "integer": frozenset({"int32", "int64"}),
}

SCHEMA: Final = Form(
    provider="Gemini",
    # The fields of Schema that the Gemini API takes, less those that it was seen to refuse: default, title,
    # additionalProperties.
    keywords=frozenset(
        {
            "type", "properties", "required", "items", "enum", "anyOf", "nullable", "description", "format",
            "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
            "minProperties", "maxProperties",
        }
    ),
    told=_TOLD,
    root_refused=_ROOT_REFUSED,
    property_names=_PROPERTY_NAMES,
    formats=_FORMATS,
    nulls=Nulls.FLAG,  # a list of types is refused
    enum_values=EnumValues.STRINGS,  # "enum: only allowed for STRING type"
    write_out=True,
    array_items=True,  # "items: missing field"
    object_properties=True,  # "properties: should be non-empty for OBJECT type"
    known_required=True,  # "required[0]: property is not defined"
    typed=True,
)  # fmt: skip

JSON_SCHEMA: Final = Form(
    provider="Gemini",
    keywords=frozenset(
        {
            "type", "properties", "required", "items", "prefixItems", "enum", "anyOf", "description", "title",
            "format", "minimum", "maximum", "minItems", "maxItems",
        }
    ),
    told=_TOLD,
    root_refused=_ROOT_REFUSED,
    property_names=_PROPERTY_NAMES,
    formats=_FORMATS,
    enum_values=EnumValues.SCALARS,
    write_out=True,  # "no other properties, except those starting with $, may be set"
    known_required=True,
)  # fmt: skip

RULES: Final = Rules(
    provider="Gemini",
    names=NameRule(
        refused=re.compile(r"[^a-zA-Z0-9_-]"),  # dots and colons are legal here, and nowhere else
        first=re.compile(r"[a-zA-Z_]"),
        length_max=64,  # the type says 128; the API was seen to refuse more than 64
    ),
    form=SCHEMA,
    tools_max=512,
)

_RECORDED: Final = Form(provider="Gemini", dropped=frozenset({"additionalProperties"}))
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp"})


# -- declare ------------------------------------------------------------------------------------------------


def declare(tools: Sequence[Tool], options: DeclareOptions) -> Declared:
    draft = Draft(RULES, tools, options)
    functions: list[JsonObject] = []
    for tool, name, description in draft.tools():
        field = "parameters"
        found = narrowed(tool, _RECORDED if options.mode is ToolMode.RECORDED else SCHEMA)
        if found.document is None:
            field = "parametersJsonSchema"
            found = narrowed(tool, JSON_SCHEMA)
        schema = draft.keep(tool, found)
        if schema is None:
            continue
        function: JsonObject = {"name": name}
        if description:
            function["description"] = description
        if schema.get("properties"):  # a function without parameters has no schema
            function[field] = schema
        functions.append(function)
        draft.take(tool, name)
    return draft.declared([{"functionDeclarations": functions}] if functions else [])


# -- read and write -----------------------------------------------------------------------------------------


def read_calls(message: object, names: NameMap) -> tuple[ToolCall, ...]:
    """Read a response, of which the first candidate counts, or a candidate, a content, its parts, the calls
    in them, one of these, or a message of the Live API."""
    return tuple(
        read_call(
            names,
            position,
            call_id=member(call, "id"),
            spoken=member(call, "name"),
            arguments=member(call, "args"),
        )
        for position, call in enumerate(calls_in(message, _SOURCE))
    )


def _calls(value: JsonValue) -> list[JsonValue] | None:
    if isinstance(value, list):
        parts = value
    elif (live := _live_calls(value)) is not None:
        return live
    elif not _LIVE.isdisjoint(value):
        content = member(value, "serverContent") or member(value, "server_content")
        return _content_calls(member(content, "modelTurn") or member(content, "model_turn"))
    elif not _RESPONSE.isdisjoint(value):
        candidates = member(value, "candidates")
        if not candidates:  # the prompt was refused
            return [] if candidates in (None, []) else None
        return _content_calls(member(next(iter(items(candidates)), None), "content"))
    elif isinstance(member(value, "content"), dict):
        return _content_calls(member(value, "content"))
    elif "parts" in value or value.get("role") == "model":
        return _content_calls(value)
    else:
        parts = [value]
    return _part_calls(items(parts))


def _live_calls(value: JsonObject) -> list[JsonValue] | None:
    """Return the calls of a message of the Live API, or of its ``toolCall``; None if it has none. A part may
    have a ``toolCall`` as well: a call of the provider's own tools."""
    for holder in (value, member(value, "toolCall"), member(value, "tool_call")):
        for key in ("functionCalls", "function_calls"):
            calls = member(holder, key)
            if isinstance(calls, list):
                return _part_calls([{"functionCall": call} for call in items(calls)])
    return None


def _content_calls(content: JsonValue) -> list[JsonValue] | None:
    """Return the calls of a content; it is empty if the model was stopped before it said anything."""
    if content is not None and member(content, "role") not in (None, "model"):
        return None
    parts = member(content, "parts")
    return _part_calls(items(parts)) if parts is None or isinstance(parts, list) else None


def _part_calls(parts: list[JsonValue]) -> list[JsonValue] | None:
    calls = []
    for part in parts:
        if not isinstance(part, dict):
            return None
        # The wire says functionCall; the provider's Python library says function_call.
        call = part if "args" in part else member(part, "functionCall") or member(part, "function_call")
        if isinstance(call, dict):
            if any(call.get(key) for key in _UNFINISHED):
                return None
            calls.append(call)
        elif _PART.isdisjoint(part):
            return None
    return calls


_RESPONSE: Final = frozenset(
    {"candidates", "promptFeedback", "prompt_feedback", "usageMetadata", "usage_metadata"}
)
_LIVE: Final = frozenset(
    {
        "setupComplete", "setup_complete", "serverContent", "server_content", "toolCallCancellation",
        "tool_call_cancellation", "goAway", "go_away", "sessionResumptionUpdate", "session_resumption_update",
    }
)  # fmt: skip
"""One of these is in every message of the Live API that is no call."""
_PART: Final = frozenset(
    {
        "text", "thought", "inlineData", "inline_data", "fileData", "file_data", "executableCode",
        "executable_code", "codeExecutionResult", "code_execution_result", "toolCall", "tool_call",
        "toolResponse", "tool_response", "thoughtSignature", "thought_signature",
    }
)  # fmt: skip
"""One of these is in every part that is no call."""
_UNFINISHED: Final = ("willContinue", "will_continue", "partialArgs", "partial_args")
"""The marks of a call whose arguments are still streamed."""
_SOURCE: Final = Source(
    dialect=NAME,
    find=_calls,
    wanted="the response of client.models.generate_content(), its content, or their JSON as a dict",
)


def write_result(call: ToolCall, result: ToolResult) -> JsonObject:
    """A part; all parts of a turn stand in one user content. Images need Gemini 3 or later."""
    shown = pictures(result, _IMAGES)
    text = text_of(result, [block for block in result.blocks if block not in shown])
    response: JsonObject = {"name": call.spoken, "response": {"output" if result.ok else "error": text}}
    if not call.id.startswith(LOCAL_ID):  # an id that the model did not give must not be sent
        response = {"id": call.id, **response}
    if shown:
        parts: list[JsonValue] = [
            {"inlineData": {"mimeType": block.media_type, "data": block.data}} for block in shown
        ]
        response["parts"] = parts
    return {"functionResponse": response}
