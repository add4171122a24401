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
chunk = pytest.importorskip("openai.types.chat.chat_completion_chunk", reason=WHY)
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
    part_of_it = {**whole, "choices": [{"index": 0, "delta": delta}]}
    item = {"type": "function_call", "id": "i", "call_id": "c", **FUNCTION}
    added = {"type": "response.output_item.added", "output_index": 0, "sequence_number": 1, "item": item}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    begun = {"type": "content_block_start", "index": 0, "content_block": block}
    part = {"functionCall": {"name": "f", "args": {}, "willContinue": True}}
    return {
        "openai": [chat.ChatCompletionChunk.model_validate(part_of_it)],
        "openai-responses": [responses.ResponseOutputItemAddedEvent.model_validate(added)],
        "anthropic": [anthropic.RawContentBlockStartEvent.model_validate(begun)],
        "gemini": [genai.Content.model_validate({"role": "model", "parts": [part]})],
    }


@pytest.mark.parametrize("name", ["openai", "openai-responses", "anthropic", "gemini"])
def test_a_chunk_of_a_stream_holds_parts_of_calls_and_raises(name: str) -> None:
    for each in chunks()[name]:
        for given in (each, [each], as_json(each, by_alias=True)):
            with pytest.raises(UsageError, match=f"^{name}: "):
                DIALECTS[name].read_calls(given, NAMES)


def in_both_forms(made: Any) -> list[Any]:
    return [made, as_json(made, by_alias=True)]


@pytest.mark.parametrize("arguments", ["", '{"q', None])
@pytest.mark.parametrize("name", ["openai", "ollama"])
def test_attack_the_first_part_of_a_streamed_call_is_run_without_arguments(
    name: str, arguments: str | None
) -> None:
    begun = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    for role in ({}, {"role": "assistant"}):
        delta = chunk.ChoiceDelta.model_validate({**role, "tool_calls": [begun]})
        some = [*in_both_forms(delta), *in_both_forms(delta.tool_calls), *in_both_forms(delta.tool_calls[0])]
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        for given in (*some, delta.model_dump(exclude_none=True), choice):
            with pytest.raises(UsageError, match="this is a chunk of a stream") as raised:
                DIALECTS[name].read_calls(given, NAMES)
            assert raised.value.hint == "collect the stream first, and hand over the whole response"


def test_a_delta_of_text_is_no_message_without_calls() -> None:
    for told in ({"role": "assistant", "content": "he"}, {"content": "he"}):
        with pytest.raises(UsageError, match="this is a chunk of a stream"):
            DIALECTS["openai"].read_calls(chunk.ChoiceDelta.model_validate(told), NAMES)


def test_whole_calls_may_be_numbered() -> None:
    """Some compatible servers do so."""
    called = {"index": 0, "id": "c", "type": "function", "function": FUNCTION}
    said = {"role": "assistant", "content": "", "tool_calls": [called]}
    made = chat.ChatCompletionMessage.model_validate(said)
    whole = {"choices": [{"index": 0, "message": said}]}
    for given in (said, [called], called, made, made.tool_calls, whole):
        calls = DIALECTS["openai"].read_calls(given, NAMES)
        assert [(call.tool, call.arguments) for call in calls] == CALL


def test_attack_an_item_of_responses_that_was_only_added_is_run_without_arguments() -> None:
    item = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": ""}
    added = responses.ResponseFunctionToolCall.model_validate({**item, "status": "in_progress"})
    for given in (*in_both_forms(added), *in_both_forms([added])):
        with pytest.raises(UsageError, match=r"^openai-responses: this is a chunk"):
            DIALECTS["openai-responses"].read_calls(given, NAMES)


@pytest.mark.parametrize("calls", [True, False])
@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
def test_a_response_that_did_not_complete_is_refused(status: str, *, calls: bool) -> None:
    made = response(calls=calls)
    made.status = status
    for given in in_both_forms(made):
        with pytest.raises(UsageError, match="so its calls may not be whole") as raised:
            DIALECTS["openai-responses"].read_calls(given, NAMES)
        assert raised.value.hint == "hand over one whose status is completed"


def test_a_cancelled_response_of_the_realtime_api_is_refused_only_with_calls() -> None:
    item = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": ""}
    for output in ([], [item]):
        done = {
            "type": "response.done",
            "event_id": "e",
            "response": {"status": "cancelled", "output": output},
        }
        made = realtime.ResponseDoneEvent.model_validate(done)
        if not output:
            assert DIALECTS["openai-responses"].read_calls(made, NAMES) == ()
            continue
        with pytest.raises(UsageError, match="this response was cancelled"):
            DIALECTS["openai-responses"].read_calls(made, NAMES)


def test_the_message_that_a_stream_of_messages_begins_with_is_refused() -> None:
    made = message(calls=False)
    made.stop_reason, made.content = None, []
    for given in in_both_forms(made):
        with pytest.raises(UsageError, match=r"^anthropic: this is a chunk of a stream"):
            DIALECTS["anthropic"].read_calls(given, NAMES)


def test_attack_a_call_that_was_cut_off_at_the_token_limit_is_run_without_arguments() -> None:
    made = message(calls=True)
    made.stop_reason = "max_tokens"
    made.content[-1].input = {}
    before = made.content[-1].model_copy(update={"id": "b"})
    made.content.insert(1, before)
    chats = chat_response(calls=True)
    chats.choices[0].finish_reason = "length"
    chats.choices[0].message.tool_calls[0].function.arguments = ""
    outs = response(calls=True)
    outs.status, outs.output[-1].status, outs.output[-1].arguments = "incomplete", "incomplete", ""
    for name, cut in (("anthropic", made), ("openai", chats), ("openai-responses", outs)):
        for given in in_both_forms(cut):
            *whole, last = DIALECTS[name].read_calls(given, NAMES)
            assert last.arguments is None
            assert last.defect == "the arguments may be cut off: the response ended before this call did"
            assert all(call.defect is None for call in whole)
            assert len(whole) == (name == "anthropic")
    made.content.append(message(calls=False).content[0])
    assert [call.defect for call in DIALECTS["anthropic"].read_calls(made, NAMES)] == [None, None]


def test_a_call_of_the_older_api_says_why_it_is_refused() -> None:
    made = chat.ChatCompletionMessage.model_validate({"role": "assistant", "function_call": FUNCTION})
    choice = {"index": 0, "message": made, "finish_reason": "function_call"}
    for given in (*in_both_forms(made), choice, {"choices": [choice]}):
        with pytest.raises(UsageError, match="holds a function_call, from before there were tools") as raised:
            DIALECTS["openai"].read_calls(given, NAMES)
        assert "as tools" in (raised.value.hint or "")


@pytest.mark.parametrize("call", [None, {}, {"id": "c"}, {"function": {"arguments": "{}"}}])
@pytest.mark.parametrize("name", ["openai", "ollama"])
def test_an_entry_that_is_no_call_is_not_passed_over(name: str, call: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name}: an entry of tool_calls has no function with a name"):
        DIALECTS[name].read_calls({"role": "assistant", "tool_calls": [call]}, NAMES)
    with pytest.raises(UsageError, match=f"^{name}: "):
        DIALECTS[name].read_calls([call], NAMES)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_attack_a_number_that_json_does_not_have_becomes_null(number: float) -> None:
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"q": [number]}}
    (call,) = DIALECTS["anthropic"].read_calls(block, NAMES)
    assert call.arguments is None
    assert call.defect == "the arguments are not JSON: they hold a number that is none (NaN or Infinity)"
    (call,) = DIALECTS["anthropic"].read_calls({**block, "input": {"q": [None, 1.5]}}, NAMES)
    assert call.arguments == {"q": [None, 1.5]}


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
