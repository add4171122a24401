"""The providers' own clients, against a server on loopback: what a client returns is read as it is, and what
``write_result`` gives goes out in its next request unchanged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import pytest

from tests.strategies import make_tool
from toolcrib.dialects import DIALECTS
from toolcrib.model import DeclareOptions, NameMap, TextBlock, ToolCall, ToolResult

WHY = "the providers' packages are not installed; `make test` installs them (requirements/dev.txt)"
openai = pytest.importorskip("openai", reason=WHY)
anthropic = pytest.importorskip("anthropic", reason=WHY)
genai = pytest.importorskip("google.genai", reason=WHY)
ollama = pytest.importorskip("ollama", reason=WHY)

TOOL = make_tool("f", {"type": "object", "properties": {"q": {"type": "string"}}}, key="k", description="d")
RESULT = ToolResult(call_id="c", blocks=(TextBlock(text="12:00"),))
FUNCTION = {"name": "f", "arguments": '{"q": "x"}'}
CHAT_CALL = {"id": "c", "type": "function", "function": FUNCTION}
ASKED = {"role": "user", "content": "what time is it?"}

ANSWERS: dict[str, Any] = {
    "openai": {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
            }
        ],
    },
    "openai-responses": {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [{"type": "function_call", "id": "i", "call_id": "c", **FUNCTION}],
    },
    "anthropic": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"q": "x"}}],
    },
    "gemini": {
        "candidates": [
            {
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [{"functionCall": {"id": "c", "name": "f", "args": {"q": "x"}}}],
                },
            }
        ]
    },
    "ollama": {
        "model": "m",
        "created_at": "2026-01-01T00:00:00Z",
        "done": True,
        "message": {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"q": "x"}}}],
        },
    },
}


class Provider:
    """A server that answers every request alike, and keeps what it was sent."""

    def __init__(self, answer: Any) -> None:
        self.heard: list[Any] = []
        heard, body = self.heard, json.dumps(answer).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    served = Provider(ANSWERS[request.param])
    yield served
    served.close()


Turn: TypeAlias = tuple[Any, Callable[[list[Any]], Any]]
"""A response, and how its conversation goes on with results."""


def chat(url: str, tools: list[Any]) -> Turn:
    client = openai.OpenAI(api_key="x", base_url=url, max_retries=0)
    response = client.chat.completions.create(model="m", messages=[ASKED], tools=tools)
    said = response.choices[0].message
    return response, lambda results: client.chat.completions.create(
        model="m", messages=[ASKED, said, *results], tools=tools
    )


def responses(url: str, tools: list[Any]) -> Turn:
    client = openai.OpenAI(api_key="x", base_url=url, max_retries=0)
    response = client.responses.create(model="m", input=[ASKED], tools=tools)
    return response, lambda results: client.responses.create(
        model="m", input=[ASKED, *response.output, *results], tools=tools
    )


def messages(url: str, tools: list[Any]) -> Turn:
    client = anthropic.Anthropic(api_key="x", base_url=url, max_retries=0)
    message = client.messages.create(model="m", max_tokens=9, messages=[ASKED], tools=tools)
    said = {"role": "assistant", "content": message.content}
    return message, lambda results: client.messages.create(
        model="m",
        max_tokens=9,
        messages=[ASKED, said, {"role": "user", "content": results}],
        tools=tools,
    )


def contents(url: str, tools: list[Any]) -> Turn:
    client = genai.Client(api_key="x", http_options={"base_url": url})
    response = client.models.generate_content(model="m", contents="what time?", config={"tools": tools})
    said = response.candidates[0].content
    return response, lambda results: client.models.generate_content(
        model="m",
        contents=[genai.types.UserContent("what time?"), said, {"role": "user", "parts": results}],
        config={"tools": tools},
    )


def ollama_chat(url: str, tools: list[Any]) -> Turn:
    client = ollama.Client(host=url)
    response = client.chat(model="m", messages=[ASKED], tools=tools)
    return response, lambda results: client.chat(
        model="m", messages=[ASKED, response.message, *results], tools=tools
    )


@pytest.mark.parametrize(
    ("provider", "turn", "sent"),
    [
        ("openai", chat, lambda body: body["messages"][2]),
        ("openai-responses", responses, lambda body: body["input"][2]),
        ("anthropic", messages, lambda body: body["messages"][2]["content"][0]),
        ("gemini", contents, lambda body: body["contents"][2]["parts"][0]),
        ("ollama", ollama_chat, lambda body: body["messages"][2]),
    ],
    indirect=["provider"],
    ids=list(ANSWERS),
)
def test_a_clients_response_is_read_and_its_next_request_takes_the_result(
    provider: Provider,
    turn: Callable[[str, list[Any]], Turn],
    sent: Callable[[Any], Any],
    request: pytest.FixtureRequest,
) -> None:
    dialect = DIALECTS[request.node.callspec.id]
    declared = dialect.declare([TOOL], DeclareOptions())
    response, go_on = turn(provider.url, declared.payload)
    (call,) = dialect.read_calls(response, declared.names)
    assert (call.tool, call.arguments) == ("k", {"q": "x"})
    assert call.id == ("local#0" if dialect.NAME == "ollama" else "c")  # its library drops the id
    written = dialect.write_result(call, RESULT)
    go_on([written])
    assert sent(provider.heard[-1]) == written


def test_ollama_streams_whole_calls_and_each_chunk_is_read() -> None:
    chunk = ollama.ChatResponse.model_validate({**ANSWERS["ollama"], "done": False})
    (call,) = DIALECTS["ollama"].read_calls(chunk, NameMap(keys={"f": "k"}))
    assert isinstance(call, ToolCall)
    assert call.arguments == {"q": "x"}
