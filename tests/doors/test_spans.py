"""Calls as OpenTelemetry spans: by the conventions for generative AI, with the caller's trace as parent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import ProxyTracerProvider, StatusCode

from tests.doors.web import echoing
from tests.program import WAIT_S
from toolwright.app import Workshop
from toolwright.doors._crew import Crew
from toolwright.doors._entrance import Guest
from toolwright.doors._events import Events
from toolwright.doors._spans import set_up
from toolwright.doors.cli.serve import build
from toolwright.model import ToolCall

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER = f"00-{'a' * 32}-00f067aa0ba902b7-01"
HOST = "http://127.0.0.1:8321"


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    with echoing(tmp_path) as opened:
        yield opened


def span_of(workshop: Workshop, tool: str, arguments: dict[str, object], trace: str = "") -> ReadableSpan:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    crew = Crew(workshop, Events(), spans=set_up(provider))
    call = ToolCall(id=workshop.new_call_id(), tool=tool, arguments=arguments, caller="ann")
    asyncio.run(crew.call(call, door="http", trace=trace))
    assert crew.drain(WAIT_S)
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.call.id"] == call.id
    assert span.attributes["gen_ai.operation.name"] == "execute_tool"
    return span


def test_a_call_is_one_span_that_tells_neither_arguments_nor_results(workshop: Workshop) -> None:
    span = span_of(workshop, "echo", {"text": "private"})
    assert span.name == "execute_tool echo"
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.name"] == "echo"
    assert span.attributes["gen_ai.tool.type"] == "function"
    assert "error.type" not in span.attributes
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is None
    assert "private" not in span.to_json()


def test_the_traceparent_of_the_caller_is_the_parent(workshop: Workshop) -> None:
    span = span_of(workshop, "echo", {"text": "x"}, PARENT)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACE
    assert f"{span.context.trace_id:032x}" == TRACE


@pytest.mark.parametrize("trace", ["x", PARENT + "\r\n", PARENT.upper(), f"00-{'0' * 32}-{'0' * 16}-00"])
def test_what_is_no_traceparent_begins_a_trace_of_its_own(workshop: Workshop, trace: str) -> None:
    assert span_of(workshop, "echo", {"text": "x"}, trace).parent is None


def test_a_failed_call_names_its_kind_and_not_its_message(workshop: Workshop) -> None:
    span = span_of(workshop, "fail", {})
    assert span.attributes is not None
    assert span.attributes["error.type"] == "failed"
    assert span.status.status_code is StatusCode.ERROR
    assert "secret words" not in span.to_json()


def test_a_tool_that_is_none_gives_no_name(workshop: Workshop) -> None:
    span = span_of(workshop, "made up", {})
    assert span.name == "execute_tool unknown"
    assert "made up" not in span.to_json()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "unknown_tool"


def test_without_a_provider_there_are_no_spans_to_pay_for() -> None:
    assert set_up(ProxyTracerProvider()) is None


def test_both_doors_take_the_callers_trace_as_parent(workshop: Workshop) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = build(workshop, guest=Guest(name="ann"), spans=set_up(provider))
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
