"""What is counted while serving, read back as Prometheus reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.doors.web import echoing
from toolcrib.app import Crib
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import EventKind, Events
from toolcrib.doors._meters import ROUTES, Meters, route_class
from toolcrib.model import ToolCall


@pytest.fixture
def crib(tmp_path: Path) -> Iterator[Crib]:
    with echoing(tmp_path) as opened:
        yield opened


def samples(text: bytes) -> dict[str, float]:
    """Every sample by its name and labels, as the library of Prometheus reads them."""
    families = [*text_string_to_metric_families(text.decode("utf-8"))]
    assert all(
        family.documentation and family.type in ("counter", "gauge", "histogram") for family in families
    )
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
        name = f"{sample.name}{{{labels}}}" if labels else sample.name
        assert name not in found, "each series once"
        found[name] = sample.value
    return found


def call(crib: Crib, crew: Crew, tool: str, **arguments: object) -> None:
    asked = ToolCall(id=crib.new_call_id(), tool=tool, arguments=arguments, caller="zebra")
    asyncio.run(crew.call(asked, door="http"))


def test_calls_are_counted_by_door_format_and_outcome_and_never_by_a_name_of_the_caller(
    crib: Crib,
) -> None:
    events = Events()
    crew = Crew(crib, events)
    meters = Meters(crib, crew, events)
    call(crib, crew, "echo", text="x")
    call(crib, crew, "echo", text="y")
    call(crib, crew, "fail")
    call(crib, crew, 'no-such-tool"}\n')
    assert crew.drain(10.0)
    text = meters.text()
    found = samples(text)
    assert found['toolcrib_calls_total{door="http",format="python",outcome="ok"}'] == 2
    assert found['toolcrib_calls_total{door="http",format="python",outcome="failed"}'] == 1
    assert found['toolcrib_calls_total{door="http",format="",outcome="unknown_tool"}'] == 1
    assert found['toolcrib_call_duration_seconds_count{door="http"}'] == 4
    assert found['toolcrib_call_duration_seconds_bucket{door="http",le="+Inf"}'] == 4
    assert found["toolcrib_calls_in_flight"] == 0
    assert found["toolcrib_catalog_tools"] == 2
    assert found["toolcrib_journal_trouble"] == 0
    assert found["toolcrib_approvals_waiting"] == 0
    # Attack: names of tools that are none become series without end.
    assert b"no-such-tool" not in text
    assert b"zebra" not in text


def test_buckets_only_grow(crib: Crib) -> None:
    events = Events()
    meters = Meters(crib, Crew(crib, events), events)
    for duration_ms in (0.1, 1.0, 3.0, 70.0, 1e9):
        meters.call("mcp", "rye:a/b", None, duration_ms)
    found = samples(meters.text())
    counts = [value for name, value in found.items() if name.startswith("toolcrib_call_duration_seconds_b")]
    assert counts == sorted(counts)
    assert found['toolcrib_call_duration_seconds_bucket{door="mcp",le="0.001"}'] == 2
    assert found['toolcrib_call_duration_seconds_bucket{door="mcp",le="60.0"}'] == 4
    assert counts[-1] == 5


def test_requests_reloads_and_refusals_are_counted(crib: Crib) -> None:
    events = Events()
    meters = Meters(crib, Crew(crib, events), events, connections=lambda: 3)
    for path, status in (("/mcp", 200), ("/mcp", 200), ("/v1/tools", 401), ("/x/y", 429), ("/readyz", 503)):
        meters.request(path, status)
    events.tell(EventKind.RELOADED, {})
    events.tell(EventKind.RELOAD_FAILED, {"reason": "x"})
    found = samples(meters.text())
    assert found['toolcrib_http_requests_total{route="mcp",status="200"}'] == 2
    assert found['toolcrib_http_requests_total{route="health",status="503"}'] == 1
    assert found["toolcrib_tokens_refused_total"] == 1
    assert found["toolcrib_rate_limited_total"] == 1
    assert found['toolcrib_reloads_total{outcome="ok"}'] == 1
    assert found['toolcrib_reloads_total{outcome="failed"}'] == 1
    assert found["toolcrib_open_connections"] == 3


@pytest.mark.parametrize(
    "path", ["/", "/mcp", "/mcp/", "/v1/tools", "/v1/events", "/healthz", "/metrics", "/a", "/openapi.json"]
)  # fmt: skip
def test_every_path_belongs_to_one_of_few_classes(path: str) -> None:
    assert route_class(path) in ROUTES
