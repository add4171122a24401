"""Calls as OpenTelemetry spans: by the conventions for generative AI, with the caller's trace as parent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import ProxyTracerProvider, StatusCode

from tests.doors.web import echoing
from tests.program import WAIT_S, environment
from toolcrib.app import Crib
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Events
from toolcrib.doors.cli.serve import build
from toolcrib.model import ToolCall
from toolcrib.spans import set_up

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER = f"00-{'a' * 32}-00f067aa0ba902b7-01"
HOST = "http://127.0.0.1:8321"


@pytest.fixture
def crib(tmp_path: Path) -> Iterator[Crib]:
    with echoing(tmp_path) as opened:
        yield opened


def span_of(crib: Crib, tool: str, arguments: dict[str, object], trace: str = "") -> ReadableSpan:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    crew = Crew(crib, Events(), spans=set_up(provider))
    call = ToolCall(id=crib.new_call_id(), tool=tool, arguments=arguments, caller="ann")
    asyncio.run(crew.call(call, door="http", trace=trace))
    assert crew.drain(WAIT_S)
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.call.id"] == call.id
    assert span.attributes["gen_ai.operation.name"] == "execute_tool"
    return span


def test_a_call_is_one_span_that_tells_neither_arguments_nor_results(crib: Crib) -> None:
    span = span_of(crib, "echo", {"text": "private"})
    assert span.name == "execute_tool echo"
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.name"] == "echo"
    assert span.attributes["gen_ai.tool.type"] == "function"
    assert "error.type" not in span.attributes
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is None
    assert "private" not in span.to_json()


def test_the_traceparent_of_the_caller_is_the_parent(crib: Crib) -> None:
    span = span_of(crib, "echo", {"text": "x"}, PARENT)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACE
    assert f"{span.context.trace_id:032x}" == TRACE


@pytest.mark.parametrize("trace", ["x", PARENT + "\r\n", PARENT.upper(), f"00-{'0' * 32}-{'0' * 16}-00"])
def test_what_is_no_traceparent_begins_a_trace_of_its_own(crib: Crib, trace: str) -> None:
    assert span_of(crib, "echo", {"text": "x"}, trace).parent is None


def test_a_failed_call_names_its_kind_and_not_its_message(crib: Crib) -> None:
    span = span_of(crib, "fail", {})
    assert span.attributes is not None
    assert span.attributes["error.type"] == "failed"
    assert span.status.status_code is StatusCode.ERROR
    assert "secret words" not in span.to_json()


def test_a_tool_that_is_none_gives_no_name(crib: Crib) -> None:
    span = span_of(crib, "made up", {})
    assert span.name == "execute_tool unknown"
    assert "made up" not in span.to_json()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "unknown_tool"


def test_without_a_provider_there_are_no_spans_to_pay_for() -> None:
    assert set_up(ProxyTracerProvider()) is None


# -- calls through the library ------------------------------------------------------------------------------

SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
tracer = trace.get_tracer("host")
"""
CALLING = """
import asyncio, json, sys
import toolcrib
from toolcrib.model import ToolCall

def echo(text: str) -> str:
    "Say it."
    return text

def fail() -> str:
    "Fail."
    raise toolcrib.Failed("secret words")

def stop() -> str:
    "Be interrupted."
    raise KeyboardInterrupt

def inner() -> str:
    "Call another."
    return shop.call("echo", {"text": "private"}).content

shop = toolcrib.open(tools=[echo, fail, stop, inner], config=toolcrib.Config(state=sys.argv[1]))
"""
TELLING = """
told = [
    {
        "name": span.name,
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "id": f"{span.context.span_id:016x}",
        "error": span.attributes.get("error.type"),
        "status": span.status.status_code.name,
        "tool": span.attributes.get("toolcrib.tool.key"),
    }
    for span in exporter.get_finished_spans()
]
assert "private" not in str([span.to_json() for span in exporter.get_finished_spans()])
print(json.dumps(told))
"""


def traced(tmp_path: Path, calls: str, before: str = SET_UP) -> list[dict[str, object]]:
    """The spans of a program that makes calls, in the order in which they ended."""
    told = TELLING if before else 'print(json.dumps([name for name in sys.modules if "telemetry" in name]))'
    said = subprocess.run(
        [sys.executable, "-c", "\n".join((before, CALLING, calls, told)), str(tmp_path / "state")],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    found: list[dict[str, object]] = json.loads(said.stdout)
    return found


def test_a_call_through_the_library_is_the_same_span_as_a_served_one(tmp_path: Path) -> None:
    spans = traced(
        tmp_path,
        """
shop.call("echo", {"text": "private"})
shop.call("fail")
shop.call("made up")
shop.call_text("echo", '{"text": "private"}')
""",
    )
    assert [span["name"] for span in spans] == [
        "execute_tool echo", "execute_tool fail", "execute_tool unknown", "execute_tool echo",
    ]  # fmt: skip
    assert [span["error"] for span in spans] == [None, "failed", "unknown_tool", None]
    assert [span["status"] for span in spans] == ["UNSET", "ERROR", "ERROR", "UNSET"]
    assert all(span["parent"] is None for span in spans)


def test_every_way_to_call_a_tool_names_its_span_alike(tmp_path: Path) -> None:
    """By its name, by its key, and as a model called it: ``read_calls`` gives keys."""
    spans = traced(
        tmp_path,
        """
(key,) = [tool.key for tool in shop.tools if tool.name == "echo"]
dialect, declared = shop.dialect("openai"), shop.declare("openai")
function = {"name": "echo", "arguments": '{"text": "private"}'}
message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
calls = dialect.read_calls(message, declared.names)
assert calls[0].tool == key != "echo"
shop.call_all(calls)
shop.call("echo", {"text": "private"})
shop.call(key, {"text": "private"})
asyncio.run(shop.call_async(key, {"text": "private"}))
""",
    )
    assert [span["name"] for span in spans] == ["execute_tool echo"] * 4


def test_a_served_call_by_key_is_named_as_one_by_name(crib: Crib) -> None:
    span = span_of(crib, crib.find("echo").key, {"text": "x"})
    assert span.name == "execute_tool echo"
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.name"] == "echo"


def test_the_span_of_the_host_is_the_parent_in_every_thread_and_task(tmp_path: Path) -> None:
    spans = traced(
        tmp_path,
        """
with tracer.start_as_current_span("turn"):
    shop.call("inner")
    shop.call_all([ToolCall(id="1", tool="echo", arguments={"text": "x"})] * 3)
    asyncio.run(shop.call_async("echo", {"text": "x"}))
""",
    )
    (turn,) = [span for span in spans if span["name"] == "turn"]
    (outer,) = [span for span in spans if span["name"] == "execute_tool inner"]
    echoes = [span["parent"] for span in spans if span["name"] == "execute_tool echo"]
    assert outer["parent"] == turn["id"]
    assert sorted(echoes, key=str) == sorted([outer["id"], *[turn["id"]] * 4], key=str)


def test_a_call_that_is_interrupted_ends_its_span(tmp_path: Path) -> None:
    calls = """
try:
    shop.call("stop")
except KeyboardInterrupt:
    pass
"""
    (span,) = traced(tmp_path, calls)
    assert (span["error"], span["status"]) == ("KeyboardInterrupt", "ERROR")


def test_tracing_that_breaks_keeps_no_call_from_running(tmp_path: Path) -> None:
    broken = """
class Broken:
    def on_start(self, span, parent_context=None): raise ValueError("broken")
    def on_end(self, span): raise ValueError("broken")
    def _on_ending(self, span): pass
    def shutdown(self): pass
    def force_flush(self, timeout_millis=0): return True

trace.get_tracer_provider().add_span_processor(Broken())
"""
    traced(tmp_path, 'assert shop.call("echo", {"text": "x"}).ok', before=SET_UP + broken)


def test_a_call_imports_nothing_of_opentelemetry(tmp_path: Path) -> None:
    assert traced(tmp_path, 'assert shop.call("echo", {"text": "x"}).ok', before="") == []


# -- served calls -------------------------------------------------------------------------------------------


def test_both_doors_take_the_callers_trace_as_parent(crib: Crib) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = build(crib, guest=Guest(name="ann"), spans=set_up(provider))
    params: dict[str, object] = {"name": "echo", "arguments": {"text": "x"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    asked = {"traceparent": PARENT, "accept": "application/json, text/event-stream"}

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
            answer = await client.post(
                "/v1/tools/echo/call", json={"arguments": {"text": "x"}}, headers=asked
            )
            assert answer.status_code == 200, answer.text
            answer = await client.post("/mcp", json=message, headers=asked)
            assert answer.status_code == 200, answer.text
            params["_meta"] = {"traceparent": OTHER}
            answer = await client.post("/mcp", json=message, headers=asked)
            assert answer.status_code == 200, answer.text
        assert await app.drain(WAIT_S)

    asyncio.run(ask())
    spans = exporter.get_finished_spans()
    assert [f"{span.context.trace_id:032x}" for span in spans] == [TRACE, TRACE, "a" * 32]
