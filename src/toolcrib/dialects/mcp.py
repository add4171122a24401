"""MCP's ``tools/list`` and ``tools/call``, in the words that both eras (2025-11-25, 2026-07-28) understand.

Sources of the rules: docs/dialects/mcp.md. The protocol around these values is a door's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from toolcrib.dialects._messages import Source, calls_in, member
from toolcrib.dialects._names import NameRule, give_names_to
from toolcrib.dialects._narrowing import Form, narrow
from toolcrib.dialects._wire import Draft, Rules, narrowed, read_call, text_of
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    AudioBlock,
    Block,
    Declared,
    DeclareOptions,
    Effect,
    EmbeddedResource,
    ImageBlock,
    NameMap,
    ResourceLink,
    TextBlock,
    Tool,
    ToolCall,
    ToolResult,
)

NAME: Final = "mcp"

FORM: Final = Form(
    provider="MCP",
    # Attack: an author's x-mcp-header makes clients copy an argument, perhaps a secret, into HTTP headers
    # that proxies log; a wrong one makes them drop the tool.
    dropped=frozenset({"x-mcp-header"}),
    own_draft=True,
    array_items=True,  # clients hand the schema on to providers, which refuse the whole request
)
_OUTPUT: Final = replace(FORM, array_items=False)

RULES: Final = Rules(
    provider="MCP",
    names=NameRule(
        refused=re.compile(r"[^A-Za-z0-9._-]"), first=re.compile(r"[A-Za-z0-9._-]"), length_max=128  # SEP-986
    ),
    form=FORM,
)  # fmt: skip

_ANNOTATIONS: Final[dict[Effect, JsonObject]] = {
    Effect.READ: {"readOnlyHint": True},
    Effect.CREATE: {"readOnlyHint": False, "destructiveHint": False},
    Effect.CHANGE: {"readOnlyHint": False, "destructiveHint": True},
}


def declare(tools: Sequence[Tool], options: DeclareOptions) -> Declared:
    draft = Draft(RULES, tools, options)
    payload: list[JsonObject] = []
    for tool, name, description in draft.tools():
        schema = draft.plain(tool)
        if schema is None:
            continue
        output = _output(tool)
        if output is None and tool.output_schema is not None:
            draft.lose(tool, "outputSchema", "the schema of the result is not one of an object")
        payload.append({"name": name, **_described(tool, description, schema, output)})
        draft.take(tool, name)
    return draft.declared(payload)


def describe(tool: Tool) -> JsonObject | None:
    """The declaration of one tool without its name, which only all of them together decide (``names``). None:
    it cannot be declared."""
    schema = narrowed(tool, FORM).document
    return None if schema is None else _described(tool, tool.description, schema, _output(tool))


def legal_name(own: str, key: str) -> str:
    """The name of a tool, if no other one has it."""
    return RULES.names.legal(own, key)


def names(own: Mapping[str, str]) -> dict[str, str]:
    """The names under which tools are declared, by their keys; given are their own names."""
    return {key: given.name for key, given in give_names_to(own, RULES.names).items()}


def _described(tool: Tool, description: str, schema: JsonObject, output: JsonObject | None) -> JsonObject:
    return {
        **({"description": description} if description else {}),
        "inputSchema": schema,
        **({"outputSchema": output} if output is not None else {}),
        "annotations": dict(_ANNOTATIONS[tool.effect]),
    }


def _output(tool: Tool) -> JsonObject | None:
    """The schema of the result, where it is one of an object: the older era knows no other."""
    schema = tool.output_schema
    if schema is None or schema.document.get("type") != "object":
        return None
    return narrow(schema, _OUTPUT, tool.key).document


def read_calls(message: object, names: NameMap) -> tuple[ToolCall, ...]:
    """Read a ``tools/call`` request or its ``params``. One request is one call; other methods are none."""
    calls = calls_in(message, _SOURCE)
    number = member(message, "id")
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return tuple(
        read_call(
            names,
            0,
            call_id=str(number) if is_number else number,
            spoken=member(call, "name"),
            arguments=member(call, "arguments"),
        )
        for call in calls
    )


def _calls(value: JsonValue) -> list[JsonValue] | None:
    if not isinstance(value, dict):
        return None
    if value.get("method", "tools/call") != "tools/call":
        return [] if isinstance(value["method"], str) else None
    params = member(value, "params") if "params" in value else value
    if "method" not in value and "arguments" not in value and not _OTHER_ARGUMENTS.isdisjoint(value):
        return None
    return [params] if isinstance(params, dict) and isinstance(params.get("name"), str) else None


_OTHER_ARGUMENTS: Final = frozenset({"input", "args"})
"""Where calls of other providers have their arguments, which would be lost."""
_SOURCE: Final = Source(dialect=NAME, find=_calls, wanted="a tools/call request, or its params")


def write_result(call: ToolCall, result: ToolResult) -> JsonObject:
    """The ``result`` of the response. The newer era wants ``resultType``, the older one ignores it."""
    content: list[JsonObject] = []
    has_text = False
    for block in result.blocks:
        has_text = has_text or type(block) is TextBlock
        content.append(write_block(block))
    if not has_text:
        text = text_of(result, ())
        content = [{"type": "text", "text": text}, *content] if text else content
    else:
        content += ({"type": "text", "text": text} for text in result.advice)
    reply: JsonObject = {"resultType": "complete", "content": content}
    if isinstance(result.data, dict):
        reply["structuredContent"] = result.data
    reply["isError"] = result.error is not None
    return reply


def write_block(block: Block) -> JsonObject:
    """One block of content."""
    more = block.more or {}
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text, **more}
        case ImageBlock(data=data, media_type=media_type):
            return {"type": "image", "data": data, "mimeType": media_type, **more}
        case AudioBlock(data=data, media_type=media_type):
            return {"type": "audio", "data": data, "mimeType": media_type, **more}
        case ResourceLink(uri=uri, name=name, media_type=media_type):
            kind = {"mimeType": media_type} if media_type else {}
            return {"type": "resource_link", "uri": uri, "name": name, **kind, **more}
        case EmbeddedResource(uri=uri, text=text, data=data, media_type=media_type):
            kind = {"mimeType": media_type} if media_type else {}
            held = {"text": text} if text is not None else {"blob": data or ""}
            inner = more.get("resource")
            inner = inner if isinstance(inner, dict) else {}
            rest = {key: value for key, value in more.items() if key != "resource"}
            return {"type": "resource", "resource": {"uri": uri, **kind, **held, **inner}, **rest}


def read_blocks(content: JsonValue) -> tuple[tuple[Block, ...], int]:
    """The content of a server's result as blocks, and how many there were of kinds that we do not know."""
    found: list[Block] = []
    odd = 0
    for item in content if isinstance(content, list) else ():
        block = _read_block(item) if isinstance(item, dict) else None
        if block is None:
            odd += 1
        else:
            found.append(block)
    return tuple(found), odd


def _read_block(item: JsonObject) -> Block | None:
    match item:
        case {"type": "text", "text": str() as text}:
            return TextBlock(text=text, more=_rest(item, "text"))
        case {"type": "image", "data": str() as data, "mimeType": str() as kind}:
            return ImageBlock(data=data, media_type=kind, more=_rest(item, "data", "mimeType"))
        case {"type": "audio", "data": str() as data, "mimeType": str() as kind}:
            return AudioBlock(data=data, media_type=kind, more=_rest(item, "data", "mimeType"))
        case {"type": "resource_link", "uri": str() as uri, "name": str() as name}:
            more = _rest(item, "uri", "name", "mimeType")
            return ResourceLink(uri=uri, name=name, media_type=_text(item.get("mimeType")), more=more)
        case {"type": "resource", "resource": {"uri": str() as uri} as inner}:
            rest = _rest(inner, "uri", "mimeType", "text", "blob")
            more = {**(_rest(item, "resource") or {}), **({"resource": rest} if rest else {})} or None
            return EmbeddedResource(
                uri=uri,
                text=_text(inner.get("text")),
                data=_text(inner.get("blob")),
                media_type=_text(inner.get("mimeType")),
                more=more,
            )
    return None


def _rest(item: JsonObject, *known: str) -> JsonObject | None:
    return {key: value for key, value in item.items() if key != "type" and key not in known} or None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
