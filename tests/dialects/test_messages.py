"""What is read as a message: the providers' own response objects as they are, and nothing that is none."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from toolcrib.dialects import DIALECTS
from toolcrib.errors import UsageError
from toolcrib.model import NameMap

WHY = "the providers' packages are not installed; `make test` installs them (requirements/dev.txt)"
pydantic = pytest.importorskip("pydantic", reason=WHY)
chat = pytest.importorskip("openai.types.chat", reason=WHY)
responses = pytest.importorskip("openai.types.responses", reason=WHY)
anthropic = pytest.importorskip("anthropic.types", reason=WHY)
realtime = pytest.importorskip("openai.types.realtime", reason=WHY)
genai = pytest.importorskip("google.genai.types", reason=WHY)
ollama = pytest.importorskip("ollama", reason=WHY)
mcp_types = pytest.importorskip("mcp_types", reason=WHY)

NAMES = NameMap(keys={"f": "k"})
CALL = [("k", {"q": None})]
FUNCTION = {"name": "f", "arguments": '{"q": null}'}


def chat_response(*, calls: bool) -> Any:
    told = {"tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]} if calls else {}
    message = {"role": "assistant", "content": None if calls else "done", **told}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    return chat.ChatCompletion.model_validate(
        {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


def response(*, calls: bool) -> Any:
    text = {"type": "output_text", "text": "done", "annotations": []}
    said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    called = {"type": "function_call", "id": "i", "call_id": "c", **FUNCTION}
    return responses.Response.model_validate(
        {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "parallel_tool_calls": True,
            "tool_choice": {"type": "function", "name": "f"},
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}],
            "output": [{"type": "reasoning", "id": "x", "summary": []}, called if calls else said],
        }
    )


def message(*, calls: bool) -> Any:
    called = {"type": "tool_use", "id": "c", "name": "f", "input": {"q": None}}
    content = [{"type": "text", "text": "well"}, *([called] if calls else [])]
    usage = {"input_tokens": 1, "output_tokens": 1}
    return anthropic.Message.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": usage,
            "content": content,
        }
    )


def content_response(*, calls: bool) -> Any:
    part = {"functionCall": {"name": "f", "args": {"q": None}}} if calls else {"text": "done"}
    candidate = {"content": {"role": "model", "parts": [{"text": "well", "thought": True}, part]}}
    return genai.GenerateContentResponse.model_validate({"candidates": [candidate]})


def ollama_response(*, calls: bool) -> Any:
    told = {"tool_calls": [{"function": {"name": "f", "arguments": {"q": None}}}]} if calls else {}
    said = {"role": "assistant", "content": "", **told}
    return ollama.ChatResponse.model_validate({"model": "m", "done": True, "message": said})


MADE: dict[str, Any] = {
    "openai": chat_response,
    "openai-responses": response,
    "anthropic": message,
    "gemini": content_response,
    "ollama": ollama_response,
}


def parts_of(name: str, made: Any) -> dict[str, Any]:
    """A response and what programs take out of it."""
    match name:
        case "openai":
            choice = made.choices[0]
            calls = choice.message.tool_calls or []
            some = {"choices": made.choices, "choice": choice, "message": choice.message, "calls": calls}
        case "openai-responses":
            calls = made.output[1:]
            some = {"output": made.output, "as a tuple": tuple(made.output)}
        case "anthropic":
            calls = made.content[1:]
            some = {
                "content": made.content,
                "the next request's message": {"role": "assistant", "content": made.content},
            }
        case "gemini":
            candidate = made.candidates[0]
            calls = made.function_calls or []
            some = {
                "candidate": candidate,
                "content": candidate.content,
                "parts": candidate.content.parts,
                "part": candidate.content.parts[1],
                "calls": calls,
            }
        case _:
            calls = made.message.tool_calls or []
            some = {"message": made.message, "calls": calls}
    one = {"one call": calls[0]} if calls else {}
    return {"response": made, **some, **one}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("form", ["object", "wire", "python"])
def test_the_object_that_a_library_returns_is_read_whole_and_in_parts(name: str, form: str) -> None:
    for what, part in parts_of(name, MADE[name](calls=True)).items():
        given = part if form == "object" else as_json(part, by_alias=form == "wire")
        calls = DIALECTS[name].read_calls(given, NAMES)
        assert [(call.tool, call.arguments) for call in calls] == CALL, what


@pytest.mark.parametrize("name", MADE)
def test_a_message_without_calls_gives_none(name: str) -> None:
    for what, part in parts_of(name, MADE[name](calls=False)).items():
        assert DIALECTS[name].read_calls(part, NAMES) == (), what
        assert DIALECTS[name].read_calls(as_json(part, by_alias=True), NAMES) == (), what


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("other", MADE)
def test_calls_of_another_provider_are_never_overlooked(name: str, other: str) -> None:
    """Silence would end the agent's loop, as if the model had called nothing."""
    refused = []
    for what, part in parts_of(other, MADE[other](calls=True)).items():
        try:
            calls = DIALECTS[name].read_calls(part, NAMES)
        except UsageError:
            refused.append(what)
        else:
            assert [(call.tool, call.arguments) for call in calls] == CALL, what
    assert not (refused and name == other)


def test_another_providers_message_names_its_dialect() -> None:
    with pytest.raises(UsageError, match="the message holds calls in the form of anthropic") as raised:
        DIALECTS["openai"].read_calls(message(calls=True), NAMES)
    assert raised.value.hint == 'read it with crib.dialect("anthropic")'


def test_a_response_of_ollama_is_not_taken_for_one_of_openai() -> None:
    calls = [{"function": {"name": "f", "arguments": {}}}]
    response = {"model": "m", "message": {"role": "assistant", "tool_calls": calls}, "done": True}
    with pytest.raises(UsageError, match="the message holds calls in the form of ollama") as raised:
        DIALECTS["anthropic"].read_calls(response, NAMES)
    assert raised.value.hint == 'read it with crib.dialect("ollama")'


def as_json(value: Any, *, by_alias: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [as_json(item, by_alias=by_alias) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item, by_alias=by_alias) for key, item in value.items()}
    if not isinstance(value, pydantic.BaseModel):
        return value
    return value.model_dump(mode="json", by_alias=by_alias)


def test_mcp_takes_the_requests_of_its_sdk() -> None:
    params = mcp_types.CallToolRequestParams(name="f", arguments={"q": None})
    request = mcp_types.CallToolRequest(method="tools/call", params=params)
    for given in (params, request):
        (call,) = DIALECTS["mcp"].read_calls(given, NAMES)
        assert (call.tool, call.arguments) == CALL[0]
    assert DIALECTS["mcp"].read_calls({"jsonrpc": "2.0", "id": 1, "method": "ping"}, NAMES) == ()


# -- calls in other places ----------------------------------------------------------------------------------

LIVE_CALL = {"id": "c", "name": "f", "args": {"q": None}}


def test_a_message_of_geminis_live_api_gives_its_calls() -> None:
    wire = {"toolCall": {"functionCalls": [LIVE_CALL]}, "usageMetadata": {"totalTokenCount": 1}}
    made = genai.LiveServerMessage.model_validate(wire)
    for given in (wire, made, made.model_dump(mode="json"), wire["toolCall"], made.tool_call):
        (call,) = DIALECTS["gemini"].read_calls(given, NAMES)
        assert (call.id, call.tool, call.arguments) == ("c", *CALL[0])
    (call,) = DIALECTS["gemini"].read_calls({"toolCall": {"functionCalls": [{"name": "f"}]}}, NAMES)
    assert (call.tool, call.arguments) == ("k", {}), "the wire leaves empty arguments out"


@pytest.mark.parametrize(
    "wire",
    [
        {"setupComplete": {}},
        {"serverContent": {"modelTurn": {"parts": [{"text": "well"}]}, "turnComplete": True}},
        {"serverContent": {"turnComplete": True}},
        {"toolCallCancellation": {"ids": ["c"]}},
        {"toolCall": {"functionCalls": []}},
    ],
)
def test_a_message_of_geminis_live_api_without_calls_gives_none(wire: dict[str, Any]) -> None:
    for given in (wire, genai.LiveServerMessage.model_validate(wire)):
        assert DIALECTS["gemini"].read_calls(given, NAMES) == ()


def test_the_event_that_ends_a_response_is_read_like_the_response() -> None:
    item = {"type": "function_call", "id": "i", "call_id": "c", "status": "completed", **FUNCTION}
    done = {"type": "response.done", "event_id": "e", "response": {"id": "r", "output": [item]}}
    made = realtime.ResponseDoneEvent.model_validate(done)
    completed = {"type": "response.completed", "response": response(calls=True), "sequence_number": 1}
    for given in (done, made, completed):
        calls = DIALECTS["openai-responses"].read_calls(given, NAMES)
        assert [(call.id, call.tool, call.arguments) for call in calls] == [("c", *CALL[0])]
    silent = {"type": "response.completed", "response": response(calls=False), "sequence_number": 1}
    assert DIALECTS["openai-responses"].read_calls(silent, NAMES) == ()


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("form", ["object", "wire"])
def test_a_list_of_messages_never_loses_its_calls(name: str, form: str) -> None:
    """A conversation, or the responses to several requests: which of the calls are answered is not known."""
    made = [MADE[name](calls=False), MADE[name](calls=True)]
    given = made if form == "object" else [as_json(each, by_alias=True) for each in made]
    with pytest.raises(UsageError, match=f"^{name}: ") as raised:
        DIALECTS[name].read_calls(given, NAMES)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("hand over one message at a time")


BURIED: dict[str, list[Any]] = {
    "openai": [
        [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]}],
        {"id": "x", "object": "chat.completion.chunk", "choices": []},
    ],
    "openai-responses": [
        {"type": "response.output_item.done", "item": {"type": "function_call", "call_id": "c", **FUNCTION}},
        {"type": "response.function_call_arguments.done", "call_id": "c", **FUNCTION},
        {"type": "conversation.item.done", "item": {"type": "function_call", "call_id": "c", **FUNCTION}},
        [{"type": "response.done", "response": {"output": [{"type": "function_call", **FUNCTION}]}}],
        {"id": "r", "object": "response", "status": "queued", "output": []},
        {"id": "r", "object": "response", "status": "in_progress", "output": []},
    ],
    "anthropic": [
        [{"type": "message", "content": [{"type": "tool_use", "name": "f", "input": {}}]}],
        [[{"type": "tool_use", "name": "f", "input": {}}]],
        {"type": "content_block_stop", "content_block": {"type": "tool_use", "name": "f", "input": {}}},
        {"type": "message", "role": "assistant", "content": [{"type": "message", "content": []}]},
    ],
    "gemini": [
        [{"toolCall": {"functionCalls": [LIVE_CALL]}}],
        [{"text": "well", "functionCalls": [LIVE_CALL]}],
        {"toolCall": {"functionCalls": [{**LIVE_CALL, "willContinue": True}]}, "usageMetadata": {}},
        [{"role": "model", "parts": [{"functionCall": LIVE_CALL}]}],
    ],
    "ollama": [
        [{"message": {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}}],
    ],
    "mcp": [
        {"type": "tool_use", "id": "c", "name": "f", "input": {"q": 1}},
        LIVE_CALL,
        [{"method": "tools/call", "params": {"name": "f", "arguments": {}}}],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BURIED)
def test_calls_that_cannot_be_read_are_never_passed_over(name: str) -> None:
    for given in BURIED[name]:
        with pytest.raises(UsageError, match=f"^{name}: ") as raised:
            DIALECTS[name].read_calls(given, NAMES)
        assert raised.value.hint


def test_of_alternatives_only_the_first_counts() -> None:
    called, said = chat_response(calls=True).choices[0], chat_response(calls=False).choices[0]
    two = {"id": "r", "object": "chat.completion", "choices": [as_json(said, by_alias=True)]}
    two["choices"] = [*two["choices"], as_json(called, by_alias=True)]
    assert DIALECTS["openai"].read_calls(two, NAMES) == ()
    parts = content_response(calls=True).candidates[0]
    empty = content_response(calls=False).candidates[0]
    both = {"candidates": [as_json(each, by_alias=True) for each in (empty, parts)]}
    assert DIALECTS["gemini"].read_calls(both, NAMES) == ()


class Broken:
    """An object of a library that cannot be written."""

    def model_dump(self, **_options: object) -> Any:
        raise AttributeError("something of the object's own")


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("given", [Broken(), [Broken()]], ids=["whole", "part"])
def test_an_object_that_cannot_be_written_is_named_by_its_type(name: str, given: Any) -> None:
    if name == "mcp" and isinstance(given, list):
        return
    with pytest.raises(UsageError) as raised:
        DIALECTS[name].read_calls(given, NAMES)
    assert raised.value.message == f"{name}: Broken cannot be written as JSON: AttributeError"
    assert isinstance(raised.value.__cause__, AttributeError)


def test_a_part_of_a_call_that_cannot_be_written_is_named_by_its_type() -> None:
    call = {"id": "c", "type": "function", "function": Broken()}
    with pytest.raises(UsageError, match="Broken cannot be written as JSON: AttributeError"):
        DIALECTS["openai"].read_calls({"role": "assistant", "tool_calls": [call]}, NAMES)


# -- what is none -------------------------------------------------------------------------------------------

NOTHING = [
    None, "", "{}", '{"tool_calls": []}', b"{}", 5, True, {}, {"a": 1}, [1], ["x"], [None], object(),
    MagicMock(), {"error": {"message": "overloaded"}}, {"type": "error", "error": {"type": "x"}},
    {"role": "user", "content": "hello"}, [{"role": "user", "content": "hello"}], {"type": "object"},
    {"choices": None}, {"choices": {}}, {"choices": [5]}, {"tool_calls": {}}, {"message": None},
    {"output": "text"}, {"content": 5}, {"candidates": {}}, {"parts": {}}, {"method": 5}, {"params": []},
]  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    "given", NOTHING, ids=[f"{place}-{type(value).__name__}" for place, value in enumerate(NOTHING)]
)
def test_what_is_no_message_raises(name: str, given: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name}: ") as raised:
        DIALECTS[name].read_calls(given, NAMES)
    assert raised.value.hint


def test_the_message_names_what_came_and_what_is_expected() -> None:
    with pytest.raises(UsageError) as raised:
        DIALECTS["anthropic"].read_calls({"error": "secret words", "status": 529}, NAMES)
    assert (
        raised.value.message == "anthropic: no message to read calls from (got an object with error, status)"
    )
    assert raised.value.hint == (
        "hand over the message of client.messages.create(), its content, or their JSON as a dict"
    )


async def later() -> Any:
    return message(calls=True)


def test_a_response_that_was_not_awaited_says_so() -> None:
    coroutine = later()
    with pytest.raises(UsageError, match="got a coroutine") as raised:
        DIALECTS["anthropic"].read_calls(coroutine, NAMES)
    coroutine.close()
    assert raised.value.hint == "await it first"


def chunks() -> dict[str, list[Any]]:
    delta = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": FUNCTION}]}
    whole = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunk = {**whole, "choices": [{"index": 0, "delta": delta}]}
    item = {"type": "function_call", "id": "i", "call_id": "c", **FUNCTION}
    added = {"type": "response.output_item.added", "output_index": 0, "sequence_number": 1, "item": item}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    begun = {"type": "content_block_start", "index": 0, "content_block": block}
    part = {"functionCall": {"name": "f", "args": {}, "willContinue": True}}
    return {
        "openai": [chat.ChatCompletionChunk.model_validate(chunk)],
        "openai-responses": [responses.ResponseOutputItemAddedEvent.model_validate(added)],
        "anthropic": [anthropic.RawContentBlockStartEvent.model_validate(begun)],
        "gemini": [genai.Content.model_validate({"role": "model", "parts": [part]})],
    }


@pytest.mark.parametrize("name", ["openai", "openai-responses", "anthropic", "gemini"])
def test_a_chunk_of_a_stream_holds_parts_of_calls_and_raises(name: str) -> None:
    for chunk in chunks()[name]:
        for given in (chunk, [chunk], as_json(chunk, by_alias=True)):
            with pytest.raises(UsageError, match=f"^{name}: "):
                DIALECTS[name].read_calls(given, NAMES)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_raises_and_is_not_consumed(name: str) -> None:
    stream = iter([json.dumps({})])
    with pytest.raises(UsageError, match="this is a stream"):
        DIALECTS[name].read_calls(stream, NAMES)
    assert next(stream) == "{}"


def test_a_prompt_that_gemini_refused_is_a_response_without_calls() -> None:
    refused = {"promptFeedback": {"blockReason": "SAFETY"}}
    assert DIALECTS["gemini"].read_calls(refused, NAMES) == ()
    assert DIALECTS["gemini"].read_calls(genai.GenerateContentResponse.model_validate(refused), NAMES) == ()
    stopped = {"candidates": [{"finishReason": "SAFETY"}]}
    assert DIALECTS["gemini"].read_calls(stopped, NAMES) == ()
