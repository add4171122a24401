"""Anthropic's Messages: ``tools``, ``tool_use`` and ``tool_result``.

Plain schemas pass almost untouched; strict mode has budgets for the whole request. This module sends nothing.

Sources of the rules: docs/dialects/anthropic.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from toolcrib.dialects._messages import Source, calls_in, cut_short, is_chunk, items, member, why_cut
from toolcrib.dialects._names import NameRule
from toolcrib.dialects._narrowing import EnumValues, Form, Patterns
from toolcrib.dialects._wire import Draft, Rules, examples_of, pictures, read_call, text_of
from toolcrib.jsontext import JsonObject, JsonValue, walk
from toolcrib.model import (
    Declared,
    DeclareOptions,
    ImageBlock,
    NameMap,
    Schema,
    Tool,
    ToolCall,
    ToolMode,
    ToolResult,
)
from toolcrib.schema import complaints, flaws

NAME: Final = "anthropic"

# -- the rules ----------------------------------------------------------------------------------------------

SEARCH_TOOL: Final[JsonObject] = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
DEFERRED_MAX: Final = 10_000

_ROOT_REFUSED: Final = frozenset({"oneOf", "anyOf", "allOf"})  # "… does not support … at the top level"
_PROPERTY_NAMES: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # "Property keys should match pattern …"

PLAIN: Final = Form(
    provider="Anthropic",
    root_refused=_ROOT_REFUSED,
    property_names=_PROPERTY_NAMES,
    patterns=Patterns.VALID,  # "It must match JSON Schema draft 2020-12"
)

# https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
STRICT: Final = Form(
    provider="Anthropic strict mode",
    keywords=frozenset(
        {
            "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
            "description", "title", "format", "minItems",
        }
    ),
    told=frozenset(
        {
            "default", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
            "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties",
            "maxProperties",
        }
    ),
    root_refused=frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not"}),
    property_names=_PROPERTY_NAMES,
    formats={
        "string": frozenset(
            {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
        )
    },
    enum_values=EnumValues.SCALARS,
    min_items_max=1,
    write_out=True,  # recursive references are refused, external ones too
    array_items=True,
    typed=True,
    closed=True,
)  # fmt: skip

RULES: Final = Rules(
    provider="Anthropic",
    names=NameRule(
        refused=re.compile(r"[^a-zA-Z0-9_-]"),
        first=re.compile(r"[a-zA-Z0-9_-]"),
        length_max=64,  # the documented 128 is not taken everywhere (Bedrock, tool references)
        reserved=frozenset({SEARCH_TOOL["name"]}),  # "Tool names must be unique."
    ),
    form=PLAIN,
    strict=STRICT,
    defers=True,
    has_examples=True,
)

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class Budget(Struct):
    """What all strict tools of one request may have together."""

    tools: int = 20
    optional: int = 24
    unions: int = 16

    def spend(self, document: JsonObject) -> str:
        """Take a schema's share, or say why that is not possible."""
        objects = [node for _, node in walk(document) if isinstance(node, dict)]
        # A property may be named like a keyword; then its value is a schema, not a list or False.
        optional = sum(
            len(node["properties"]) - len(node.get("required", ()))
            for node in objects
            if node.get("additionalProperties") is False
        )
        unions = sum(
            isinstance(node.get("anyOf"), list) or isinstance(node.get("type"), list) for node in objects
        )
        for what, left, wanted in (
            ("strict tools", self.tools, 1),
            ("optional parameters", self.optional, optional),
            ("union parameters", self.unions, unions),
        ):
            if wanted > left:
                return f"the request has room for {left} more {what}, this tool needs {wanted}"
        self.tools -= 1
        self.optional -= optional
        self.unions -= unions
        return ""


# -- declare ------------------------------------------------------------------------------------------------


def declare(tools: Sequence[Tool], options: DeclareOptions) -> Declared:
    draft = Draft(RULES, tools, options)
    budget = Budget()
    payload: list[JsonObject] = []
    deferred = 0
    for tool, name, description in draft.tools():
        if tool.key in options.deferred and deferred >= DEFERRED_MAX:
            draft.leave_out(tool, f"Anthropic takes at most {DEFERRED_MAX} deferred tools")
            continue
        if options.mode is ToolMode.STRICT:
            schema, strict = draft.strict(tool, STRICT, PLAIN, budget.spend)
        else:
            schema, strict = draft.plain(tool), False
        if schema is None:
            continue
        declaration: JsonObject = {"name": name}
        if description:
            declaration["description"] = description
        declaration["input_schema"] = schema
        if strict:
            declaration["strict"] = True
        if options.examples:
            _add_examples(draft, tool, declaration)
        if tool.key in options.deferred:
            declaration["defer_loading"] = True
            deferred += 1
        payload.append(declaration)
        draft.take(tool, name)
    if deferred:  # the search tool is also the one that is not deferred, which every request needs
        payload.insert(0, dict(SEARCH_TOOL))
    return draft.declared(payload)


def _add_examples(draft: Draft, tool: Tool, declaration: JsonObject) -> None:
    """The documented examples that fit the schema; one that does not would fail the whole request."""
    examples = examples_of(tool)
    schema = Schema.of(declaration["input_schema"])
    usable = not flaws(schema.document)
    good = [example for example in examples if usable and not complaints(schema, example)]
    if len(good) < len(examples):
        draft.lose(tool, "examples", f"{len(examples) - len(good)} of {len(examples)} do not fit the schema")
    if good:
        declaration["input_examples"] = good


# -- read and write -----------------------------------------------------------------------------------------


def read_calls(message: object, names: NameMap) -> tuple[ToolCall, ...]:
    """Read a message, its content, or one block. Calls of server tools are not ours."""
    return tuple(
        read_call(
            names,
            position,
            call_id=member(block, "id"),
            spoken=member(block, "name"),
            arguments=member(block, "input"),
            defect=why_cut(block),
        )
        for position, block in enumerate(calls_in(message, _SOURCE))
    )


def _calls(value: JsonValue) -> list[JsonValue] | None:
    content: JsonValue = None
    if isinstance(value, list):
        content = value
    elif "content" in value and value.get("role", "assistant") == "assistant":
        content = member(value, "content")
    elif str(value.get("type")) in _BLOCKS:
        content = [value]
    if isinstance(content, str):
        return []
    if not isinstance(content, list):
        return None
    blocks = items(content)
    if any(not isinstance(member(block, "type"), str) or is_chunk(block) for block in blocks):
        return None
    if any(block["type"] == "message" for block in blocks):  # whole messages in the place of blocks
        return None
    calls = [block for block in blocks if block["type"] == "tool_use"]
    is_cut = isinstance(value, dict) and value.get("stop_reason") in _CUT_SHORT
    return cut_short(calls) if is_cut and calls and blocks[-1] is calls[-1] else calls


_CUT_SHORT: Final = ("max_tokens", "model_context_window_exceeded")
"""What a message stopped at that is cut off in the middle of its last block."""
_BLOCKS: Final = frozenset({"tool_use", "text", "thinking", "redacted_thinking", "server_tool_use"})
"""What counts as a block without a message around it."""
_SOURCE: Final = Source(
    dialect=NAME,
    find=_calls,
    wanted="the message of client.messages.create(), its content, or their JSON as a dict",
)


def write_result(call: ToolCall, result: ToolResult) -> JsonObject:
    """A block; all blocks of a turn stand first in one user message. Errors hold text only."""
    shown = pictures(result, _IMAGES)
    content: JsonValue = text_of(result, [block for block in result.blocks if block not in shown])
    if shown:
        text = [{"type": "text", "text": content}] if content else []
        content = [*text, *map(_picture, shown)]
    block: JsonObject = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    if result.error is not None:
        block["is_error"] = True
    return block


def _picture(block: ImageBlock) -> JsonObject:
    source = {"type": "base64", "media_type": block.media_type, "data": block.data}
    return {"type": "image", "source": source}
