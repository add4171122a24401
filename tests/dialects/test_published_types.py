"""The providers' own published types take what the dialects write, and give what they read.

TypedDicts ignore unknown keys, so a value counts as taken only when it comes back unchanged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies import make_tool, toolsets
from toolcrib.dialects import DIALECTS
from toolcrib.errors import Kind
from toolcrib.model import (
    AudioBlock,
    DeclareOptions,
    EmbeddedResource,
    ImageBlock,
    NameMap,
    ResourceLink,
    TextBlock,
    Tool,
    ToolCall,
    ToolError,
    ToolMode,
    ToolResult,
)

WHY = "the providers' packages are not installed; `make test` installs them (requirements/dev.txt)"
pydantic = pytest.importorskip("pydantic", reason=WHY)
openai_chat = pytest.importorskip("openai.types.chat", reason=WHY)
openai_responses = pytest.importorskip("openai.types.responses", reason=WHY)
openai_inputs = pytest.importorskip("openai.types.responses.response_input_item_param", reason=WHY)
anthropic_types = pytest.importorskip("anthropic.types", reason=WHY)
genai_types = pytest.importorskip("google.genai.types", reason=WHY)
ollama_types = pytest.importorskip("ollama._types", reason=WHY)
mcp_methods = pytest.importorskip("mcp_types.methods", reason=WHY)

thorough = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
options = st.builds(DeclareOptions, mode=st.sampled_from(ToolMode), examples=st.booleans())

RESULTS = [
    ToolResult(call_id="c1", blocks=(TextBlock(text="12:00"),), data={"n": 1}),
    ToolResult(call_id="c1", blocks=(TextBlock(text="x"), ImageBlock(data="AAAA", media_type="image/png"))),
    ToolResult(
        call_id="c1",
        blocks=(
            AudioBlock(data="AAAA", media_type="audio/wav"),
            ResourceLink(uri="file:///x", name="x", media_type="text/plain"),
            EmbeddedResource(uri="file:///y", text="y"),
            EmbeddedResource(uri="file:///z", data="AAAA", media_type="application/pdf"),
        ),
    ),
    ToolResult(
        call_id="c1",
        blocks=(ImageBlock(data="AAAA", media_type="image/png"),),
        error=ToolError(kind=Kind.FAILED, message="broke", hint="mend it"),
    ),
    ToolResult(call_id="c1"),
]
CALL = ToolCall(id="c1", tool="k", arguments={}, spoken="f")
every_result = pytest.mark.parametrize("result", RESULTS)


def plain(value: Any) -> Any:
    """Lazy iterators and models as JSON values."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return (
        value
        if value is None or isinstance(value, (str, bytes, int, float))
        else [plain(item) for item in value]
    )


def takes(kind: Any, value: Any) -> bool:
    adapter = pydantic.TypeAdapter(kind)  # must outlive the iterators that it returns
    return bool(plain(adapter.validate_python(value)) == value)


CHAT_TOOLS = pydantic.TypeAdapter(openai_chat.ChatCompletionToolUnionParam)
RESPONSES_TOOLS = pydantic.TypeAdapter(openai_responses.ToolParam)
ANTHROPIC_TOOLS = pydantic.TypeAdapter(anthropic_types.ToolUnionParam)


# -- declarations -------------------------------------------------------------------------------------------


@thorough
@given(toolset=toolsets(), chosen=options, data=st.data())
def test_openai_and_anthropic_take_every_declaration(
    toolset: list[Tool], chosen: DeclareOptions, data: st.DataObject
) -> None:
    deferred = frozenset(data.draw(st.sets(st.sampled_from([tool.key for tool in toolset] or ["none"]))))
    chosen = DeclareOptions(mode=chosen.mode, examples=chosen.examples, deferred=deferred)
    for name, adapter in (
        ("openai", CHAT_TOOLS),
        ("openai-responses", RESPONSES_TOOLS),
        ("anthropic", ANTHROPIC_TOOLS),
    ):
        for tool in DIALECTS[name].declare(toolset, chosen).payload:
            assert plain(adapter.validate_python(tool)) == tool


@thorough
@given(toolset=toolsets(), mode=st.sampled_from([ToolMode.PLAIN, ToolMode.STRICT]))
def test_gemini_takes_every_declaration(toolset: list[Tool], mode: ToolMode) -> None:
    for tool in DIALECTS["gemini"].declare(toolset, DeclareOptions(mode=mode)).payload:
        taken = genai_types.Tool.model_validate(tool)
        dumped = taken.model_dump(by_alias=True, exclude_none=True, mode="json")
        assert lower_types(dumped) == tool


def lower_types(value: Any) -> Any:
    """Gemini's library writes types in capitals."""
    if isinstance(value, list):
        return [lower_types(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item.lower() if key == "type" and isinstance(item, str) else lower_types(item)
        for key, item in value.items()
    }


@thorough
@given(toolset=toolsets())
def test_ollama_takes_every_declaration(toolset: list[Tool]) -> None:
    for tool in DIALECTS["ollama"].declare(toolset, DeclareOptions()).payload:
        taken = ollama_types.Tool.model_validate(tool)
        assert taken.function.name == tool["function"]["name"]


def test_ollama_loses_nothing_of_a_flat_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "q": {"type": "string", "minLength": 1, "default": "x", "description": "words"},
            "by": {"type": ["string", "null"], "enum": ["date", "size", None]},
            "tags": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
        },
        "required": ["q"],
        "additionalProperties": False,
    }
    [tool] = DIALECTS["ollama"].declare([make_tool("f", schema, description="d")], DeclareOptions()).payload
    request = ollama_types.ChatRequest(model="m", messages=[], tools=[ollama_types.Tool.model_validate(tool)])
    assert request.model_dump(exclude_none=True)["tools"] == [tool]


@thorough
@given(toolset=toolsets())
def test_mcp_takes_every_list_in_both_eras(toolset: list[Tool]) -> None:
    listed = DIALECTS["mcp"].declare(toolset, DeclareOptions()).payload
    mcp_methods.validate_server_result("tools/list", "2025-11-25", {"tools": listed})
    mcp_methods.validate_server_result(
        "tools/list",
        "2026-07-28",
        {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": listed},
    )


# -- results ------------------------------------------------------------------------------------------------


@every_result
def test_every_provider_takes_every_result(result: ToolResult) -> None:
    written = {name: dialect.write_result(CALL, result) for name, dialect in DIALECTS.items()}
    assert takes(openai_chat.ChatCompletionToolMessageParam, written["openai"])
    assert takes(openai_inputs.FunctionCallOutput, written["openai-responses"])
    assert takes(anthropic_types.ToolResultBlockParam, written["anthropic"])
    content = genai_types.Content.model_validate({"role": "user", "parts": [written["gemini"]]})
    assert content.parts[0].function_response.name == "f"
    message = ollama_types.Message.model_validate(written["ollama"])
    assert (message.role, message.tool_name) == ("tool", "f")
    mcp_methods.validate_server_result("tools/call", "2025-11-25", written["mcp"])
    mcp_methods.validate_server_result("tools/call", "2026-07-28", written["mcp"])


# -- calls --------------------------------------------------------------------------------------------------


def read(name: str, message: Any) -> list[tuple[str, str, Any]]:
    calls = DIALECTS[name].read_calls(message, NameMap(keys={"f": "k"}))
    return [(call.id, call.tool, call.arguments) for call in calls]


def test_what_the_published_types_say_is_read() -> None:
    """Each message is first made by the provider's own type, then read."""
    function = {"name": "f", "arguments": json.dumps({"q": "x"})}
    chat = openai_chat.ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
    )
    assert read("openai", chat.model_dump(mode="json")) == [("c", "k", {"q": "x"})]

    items = pydantic.TypeAdapter(openai_responses.ResponseOutputItem)
    item = items.validate_python({"type": "function_call", "call_id": "c", **function})
    output = {"output": [items.dump_python(item, mode="json")]}
    assert read("openai-responses", output) == [("c", "k", {"q": "x"})]

    message = anthropic_types.Message.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "x",
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"q": "x"}}],
        }
    )
    assert read("anthropic", message.model_dump(mode="json")) == [("c", "k", {"q": "x"})]

    part = {"functionCall": {"id": "c", "name": "f", "args": {"q": "x"}}}
    response = genai_types.GenerateContentResponse.model_validate(
        {"candidates": [{"content": {"role": "model", "parts": [part]}}]}
    )
    assert read("gemini", response.model_dump(mode="json")) == [("c", "k", {"q": "x"})]
    assert read("gemini", response.model_dump(mode="json", by_alias=True)) == [("c", "k", {"q": "x"})]

    call = {"function": {"name": "f", "arguments": {"q": "x"}}}
    ollama = ollama_types.ChatResponse.model_validate(
        {"model": "m", "message": {"role": "assistant", "content": "", "tool_calls": [call]}}
    )
    assert read("ollama", ollama.model_dump(mode="json")) == [("local#0", "k", {"q": "x"})]

    params = {"name": "f", "arguments": {"q": "x"}}
    mcp_methods.validate_client_request("tools/call", "2025-11-25", params)
    assert read("mcp", {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}) == [
        ("7", "k", {"q": "x"})
    ]
