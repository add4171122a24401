"""Ollama's ``/api/chat``: the shape of Chat Completions, with arguments as objects.

The server takes any schema and silently shows the model only a part of it. So the schema is narrowed to that
part, and descriptions tell the rest. This module sends nothing.

Sources of the rules: docs/dialects/ollama.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from toolcrib.dialects._messages import Source, calls_in, calls_of_message, member
from toolcrib.dialects._names import NameRule
from toolcrib.dialects._narrowing import Form, Nulls
from toolcrib.dialects._wire import LOCAL_ID, Draft, Rules, read_call, text_of
from toolcrib.jsontext import JsonObject
from toolcrib.model import Declared, DeclareOptions, NameMap, Tool, ToolCall, ToolResult

NAME: Final = "ollama"

FORM: Final = Form(
    provider="Ollama",
    keywords=frozenset({"type", "properties", "required", "items", "enum", "anyOf", "description"}),
    extensions=True,  # the server leaves them out; a format may promise that they are sent
    told=frozenset(
        {
            "default", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
            "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties",
            "maxProperties", "const", "additionalProperties", "prefixItems", "not",
        }
    ),
    root_refused=frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not", "description"}),
    nulls=Nulls.TYPE_LIST,
    write_out=True,
)  # fmt: skip

RULES: Final = Rules(
    provider="Ollama",
    names=NameRule(  # no rule is documented: OpenAI's, because models are trained on it
        refused=re.compile(r"[^a-zA-Z0-9_-]"), first=re.compile(r"[a-zA-Z0-9_-]"), length_max=64
    ),
    form=FORM,
)


def declare(tools: Sequence[Tool], options: DeclareOptions) -> Declared:
    draft = Draft(RULES, tools, options)
    payload: list[JsonObject] = []
    for tool, name, description in draft.tools():
        parameters = draft.plain(tool)
        if parameters is None:
            continue
        function = {"name": name, "description": description, "parameters": parameters}
        payload.append({"type": "function", "function": function})
        draft.take(tool, name)
    return draft.declared(payload)


def read_calls(message: object, names: NameMap) -> tuple[ToolCall, ...]:
    """Read a response, a chunk of a stream (calls come whole), a message, its tool calls, or one of these."""
    return tuple(
        read_call(
            names,
            position,
            call_id=member(call, "id"),
            spoken=member(member(call, "function"), "name"),
            arguments=member(member(call, "function"), "arguments"),
        )
        for position, call in enumerate(calls_in(message, _SOURCE))
    )


_SOURCE: Final = Source(
    dialect=NAME,
    find=calls_of_message,
    wanted="the response of client.chat(), its message, or their JSON as a dict",
)


def write_result(call: ToolCall, result: ToolResult) -> JsonObject:
    """A message of its own. Images on it are not documented: the text describes them."""
    message: JsonObject = {"role": "tool", "tool_name": call.spoken, "content": text_of(result)}
    if not call.id.startswith(LOCAL_ID):
        message["tool_call_id"] = call.id
    return message
