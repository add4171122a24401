"""Statistics of use, straight from events and through the index over a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal import work
from toolcrib.journal import usage
from toolcrib.journal.audit import open_audit
from toolcrib.journal.index import Index
from toolcrib.journal.segments import Disk
from toolcrib.journal.usage import Event

NOW = 1_800_000_000.0


def event(
    ts: float = NOW, key: str = "k", *, ms: float = 5.0, ok: bool = True, latency: str | None = None
) -> Event:
    return Event(ts, key, ok, ms, None if ok else "failed", latency)


@pytest.mark.requirement("capability.control.usage")
def test_a_thousand_and_one_calls_keep_a_thousand_events(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path), disk=Disk(sync=lambda descriptor: None))
    for number in range(1001):
        call = work.call(f"c{number:04d}")
        audit.begin(call, work.FACTS)
        audit.end(call, work.result(call.id, spent=work.spent(float(number))))
    audit.close()
    with Index(work.journal(tmp_path)) as index:
        events = index.events()
    assert len(events) == 1000
    assert [event.ms for event in events] == [float(number) for number in range(1, 1001)]
    assert usage.usage([*events, *events], events[-1].ts).events == 1000


@pytest.mark.requirement("capability.control.usage")
def test_statistics_cover_the_last_24_hours() -> None:
    events = [
        event(NOW - 90_000, "old"),
        event(NOW - 80_000, "a", ms=1.0),
        event(NOW - 10, "a", ms=3.0, ok=False),
        event(NOW, "b", ms=8.0),
    ]
    found = usage.usage(events, NOW)
    assert (found.events, found.calls, found.failed, found.median_ms) == (4, 3, 1, 3.0)
    assert found.kinds == {"failed": 1}
    assert [(use.key, use.calls, use.failed, use.slowest_ms) for use in found.tools] == [
        ("a", 2, 1, 3.0),
        ("b", 1, 0, 8.0),
    ]


def test_no_calls_give_no_statistics() -> None:
    found = usage.usage([], NOW)
    assert (found.calls, found.median_ms, found.tools) == (0, None, ())


@pytest.mark.requirement("capability.meta.latency-observed")
@pytest.mark.parametrize(
    ("latency", "times_ms", "too_slow"),
    [
        ("fast", [2000.0] * 3, True),
        ("fast", [2000.0] * 2, False),
        ("fast", [50.0, 60.0, 5000.0], False),
        ("medium", [2000.0] * 3, True),
        ("medium", [900.0] * 3, False),
        ("slow", [9000.0] * 3, False),
        (None, [9000.0] * 3, False),
    ],
)
def test_a_tool_that_is_regularly_slower_than_it_declares_is_reported(
    latency: str | None, times_ms: list[float], too_slow: bool
) -> None:
    (use,) = usage.usage([event(ms=ms, latency=latency) for ms in times_ms], NOW).tools
    assert use.too_slow is too_slow


@pytest.mark.requirement("capability.meta.latency-observed")
def test_durations_and_the_declared_latency_come_from_the_journal(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path))
    for id in "abc":
        audit.begin(work.call(id), work.FACTS)
        audit.end(
            work.call(id), work.result(id, spent=work.spent(2000.0)), work.tool("capability", latency="fast")
        )
    audit.close()
    with Index(work.journal(tmp_path)) as index:
        events = index.events()
    (use,) = usage.usage(events, events[-1].ts).tools
    assert (use.median_ms, use.latency, use.too_slow) == (2000.0, "fast", True)
