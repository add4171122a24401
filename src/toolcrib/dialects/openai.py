"""OpenAI's two wire forms: Chat Completions (``openai``) and Responses (``openai-responses``).

Both share their schema rules; Chat wraps a function and knows neither deferral nor images in results. This
module sends nothing: above it stand the rules it was given, below it a request that somebody else makes.

Sources of the rules: docs/dialects/openai.md and docs/dialects/openai-responses.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from toolcrib.dialects._messages import (
    ENDED,
    Source,
    calls_in,
    calls_of_message,
    cut_short,
    is_chunk,
    items,
    member,
    why_cut,
)
from toolcrib.dialects._names import NameRule
from toolcrib.dialects._narrowing import Form, Limits, Patterns
from toolcrib.dialects._wire import Draft, Rules, pictures, read_call, text_of
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    Declared,
    DeclareOptions,
    ImageBlock,
    NameMap,
    SchemaForm,
    Tool,
    ToolCall,
    ToolMode,
    ToolResult,
)

# -- the rules ----------------------------------------------------------------------------------------------

NAMES: Final = NameRule(
    refused=re.compile(r"[^a-zA-Z0-9_-]"),  # FunctionDefinition.name: a-z, A-Z, 0-9, underscores and dashes
    first=re.compile(r"[a-zA-Z0-9_-]"),
    length_max=64,  # "string too long. Expected a string with maximum length 64"
)

ROOT_REFUSED: Final = frozenset({"oneOf", "anyOf", "allOf", "enum", "not"})  # "… at the top level"

PLAIN: Final = Form(
    provider="OpenAI",
    told=frozenset({"pattern"}),
    root_refused=ROOT_REFUSED,
    patterns=Patterns.LINEAR,  # "regex lookaround is not supported"
    array_items=True,  # "array schema missing items"
)

# https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas
STRICT: Final = Form(
    provider="OpenAI strict mode",
    keywords=frozenset(
        {
            "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
            "description", "title", "pattern", "format", "multipleOf", "minimum", "maximum",
            "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
        }
    ),
    told=frozenset(
        {
            "default", "format", "pattern", "minLength", "maxLength", "uniqueItems", "minProperties",
            "maxProperties",
        }
    ),
    root_refused=ROOT_REFUSED,
    formats={
        "string": frozenset(
            {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
        )
    },
    patterns=Patterns.LINEAR,
    write_out=True,  # "$ref cannot have keywords", and nulls in a recursive schema could not be told apart
    array_items=True,
    typed=True,
    closed=True,
    all_required=True,
    limits=Limits(
        depth=10,
        properties=5_000,
        enum_values=1_000,
        string_chars=120_000,
        long_enum=250,
        long_enum_chars=15_000,
    ),
)  # fmt: skip

CHAT_RULES: Final = Rules(
    provider="OpenAI Chat Completions",
    names=NAMES,
    form=PLAIN,
    strict=STRICT,
    tools_max=128,  # "array too long. Expected an array with maximum length 128"
    description_max=1024,  # Azure documents it; OpenAI's own models refused more until 2025
)

RESPONSES_RULES: Final = Rules(
    provider="OpenAI Responses",
    names=NAMES,
    form=PLAIN,
    strict=STRICT,
    tools_max=128,
    defers=True,
)

_SEARCH: Final[JsonObject] = {"type": "tool_search"}
_WITHOUT_FORMAT: Final = frozenset({"format"})
_PLAIN_ADAPTED: Final = replace(PLAIN, dropped=_WITHOUT_FORMAT)
_STRICT_ADAPTED: Final = replace(STRICT, dropped=_WITHOUT_FORMAT, told=STRICT.told - _WITHOUT_FORMAT)
_RECORDED: Final = Form(provider="OpenAI", dropped=_WITHOUT_FORMAT)
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def _parameters(draft: Draft, tool: Tool) -> tuple[JsonObject | None, bool]:
    """The schema in OpenAI's form, and whether strict mode may be asked for; None: the tool is left out."""
    if draft.options.mode is ToolMode.RECORDED:
        document = draft.plain(tool, _RECORDED)
        if document is not None:
            names = list(document.get("properties", {}))
            document = {**document, "required": names, "additionalProperties": False}
        return document, True
    plain, strict = PLAIN, STRICT
    if tool.schema_form is SchemaForm.ADAPTABLE:
        plain, strict = _PLAIN_ADAPTED, _STRICT_ADAPTED
    if draft.options.mode is ToolMode.STRICT:
        return draft.strict(tool, strict, plain)
    return draft.plain(tool, plain), False


# -- Chat Completions ---------------------------------------------------------------------------------------


class Chat:
    """``tools``, ``tool_calls`` and ``role: tool`` of Chat Completions."""

    NAME = "openai"

    def declare(self, tools: Sequence[Tool], options: DeclareOptions) -> Declared:
        draft = Draft(CHAT_RULES, tools, options)
        payload: list[JsonObject] = []
        for tool, name, description in draft.tools():
            parameters, strict = _parameters(draft, tool)
            if parameters is None:
                continue
            function: JsonObject = {"name": name}
            # A tool that states nothing but its name is declared by nothing but its name.
            if description or tool.input_schema is not None:
                function["description"] = description
            if strict:
                function["strict"] = True
            if strict or tool.input_schema is not None:
                function["parameters"] = parameters
            payload.append({"type": "function", "function": function})
            draft.take(tool, name)
        return draft.declared(payload)

    def read_calls(self, message: object, names: NameMap) -> tuple[ToolCall, ...]:
        """Read a response, of which the first choice counts, or a choice, a message, its tool calls, or one
        of these."""
        calls = []
        for position, call in enumerate(calls_in(message, _CHAT_SOURCE)):
            function, custom = member(call, "function"), member(call, "custom")
            calls.append(
                read_call(
                    names,
                    position,
                    call_id=member(call, "id"),
                    spoken=member(function or custom, "name"),
                    arguments=member(function, "arguments") if function else member(custom, "input"),
                    defect=why_cut(call),
                )
            )
        return tuple(calls)

    def write_result(self, call: ToolCall, result: ToolResult) -> JsonObject:
        """A message of its own. It holds text only and has no mark for errors: the text says it."""
        return {"role": "tool", "tool_call_id": call.id, "content": text_of(result)}


def _chat_calls(value: JsonValue) -> list[JsonValue] | None:
    choices = value if isinstance(value, list) else value.get("choices")
    first = next(iter(items(choices)), None)
    first = value if first is None and isinstance(value, dict) else first
    if isinstance(member(first, "message"), dict):
        calls = calls_of_message(first)
        return cut_short(calls) if calls and member(first, "finish_reason") == "length" else calls
    if isinstance(value, dict) and "choices" in value:
        return [] if choices == [] else None
    return calls_of_message(value)


_CHAT_SOURCE: Final = Source(
    dialect="openai",
    find=_chat_calls,
    wanted="the response of client.chat.completions.create(), its message, or their JSON as a dict",
)


# -- Responses ----------------------------------------------------------------------------------------------


class Responses:
    """``tools``, ``function_call`` and ``function_call_output`` of Responses."""

    NAME = "openai-responses"

    def declare(self, tools: Sequence[Tool], options: DeclareOptions) -> Declared:
        draft = Draft(RESPONSES_RULES, tools, options)
        payload: list[JsonObject] = []
        deferred = False
        for tool, name, description in draft.tools():
            parameters, strict = _parameters(draft, tool)
            if parameters is None:
                continue
            # strict is always stated: left out, it means "where possible" here, which makes optional fields
            # mandatory.
            function: JsonObject = {
                "type": "function",
                "name": name,
                "description": description,
                "strict": strict,
                "parameters": parameters,
            }
            if tool.key in options.deferred:
                function["defer_loading"] = True
                deferred = True
            payload.append(function)
            draft.take(tool, name)
        if deferred:  # "Deferred tools require tools.tool_search."
            payload.insert(0, dict(_SEARCH))
        return draft.declared(payload)

    def read_calls(self, message: object, names: NameMap) -> tuple[ToolCall, ...]:
        """Read a response, its list of output items, one item, or the event that ends a response, also of the
        Realtime API."""
        return tuple(
            read_call(
                names,
                position,
                call_id=member(item, "call_id"),  # not ``id``, which names the item
                spoken=_in_namespace(member(item, "name"), member(item, "namespace")),
                arguments=item.get("arguments", item.get("input")),
                defect=why_cut(item),
            )
            for position, item in enumerate(calls_in(message, _RESPONSES_SOURCE))
        )

    def write_result(self, call: ToolCall, result: ToolResult) -> JsonObject:
        """An input item: text, or text and images. There is no mark for errors: the text says it."""
        shown = pictures(result, _IMAGES)
        output: JsonValue = text_of(result, [block for block in result.blocks if block not in shown])
        if shown:
            output = [{"type": "input_text", "text": output}, *map(_picture, shown)]
        return {"type": "function_call_output", "call_id": call.id, "output": output}


def _output_calls(value: JsonValue) -> list[JsonValue] | None:
    output: JsonValue = None
    if isinstance(value, dict) and value.get("type") in ENDED:
        output = member(member(value, "response"), "output")
    elif isinstance(value, list):
        output = value
    elif "output" in value and "call_id" not in value:  # a result has both
        output = value["output"]
    elif "id" in value or "call_id" in value:
        output = [value]
    if not isinstance(output, list):
        return None
    found = items(output)
    if any(not isinstance(member(item, "type"), str) or is_chunk(item) for item in found):
        return None
    return [item for item in found if item["type"] in ("function_call", "custom_tool_call")]


_RESPONSES_SOURCE: Final = Source(
    dialect="openai-responses",
    find=_output_calls,
    wanted="the response of client.responses.create(), its output, or their JSON as a dict",
)


def _in_namespace(name: JsonValue, namespace: JsonValue) -> JsonValue:
    """A function found by search comes in a namespace of its own name; others were never declared by us."""
    return name if namespace in (None, "", name) else f"{namespace}.{name}"


def _picture(block: ImageBlock) -> JsonObject:
    return {
        "type": "input_image",
        "image_url": f"data:{block.media_type};base64,{block.data}",
        "detail": "auto",
    }


CHAT: Final = Chat()
RESPONSES: Final = Responses()
