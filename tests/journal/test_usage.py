"""Statistics of use, straight from events and through the index over a journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.journal import work
from toolwright.errors import StoreError
from toolwright.journal import reading, usage
from toolwright.journal.audit import open_audit
from toolwright.journal.index import Index
from toolwright.journal.segments import Disk
from toolwright.journal.usage import Event

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


# -- the index ----------------------------------------------------------------------------------------------


def recorded(state: Path, *ids: str) -> None:
    audit = open_audit(str(state))
    for id in ids:
        audit.begin(work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id))
    audit.close()


def test_the_index_keeps_up_and_can_be_thrown_away(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    folder = Path(work.journal(tmp_path))
    for expected in (2, 2):
        with Index(str(folder)) as index:
            assert len(index.of_call("a")) == expected
    recorded(tmp_path, "b")
    with Index(str(folder)) as index:
        assert [entry.what for entry in index.of_call("b")] == ["begin", "end"]
    (folder / "index.sqlite").unlink()
    with Index(str(folder)) as index:
        assert [entry.what for entry in index.of_call("a")] == ["begin", "end"]
    assert (folder / "index.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    recorded(tmp_path, "a")
    folder = Path(work.journal(tmp_path))
    (folder / "index.sqlite").write_bytes(content)
    with Index(str(folder)) as index:
        assert len(index.of_call("a")) == 2


def test_an_index_that_saw_a_write_which_was_taken_back_reads_the_segment_anew(tmp_path: Path) -> None:
    recorded(tmp_path, "a", "b")
    (path,) = work.segment_paths(tmp_path)
    before = path.read_bytes()
    recorded(tmp_path, "gone")
    with Index(work.journal(tmp_path)) as index:
        assert index.of_call("gone")
    path.write_bytes(before)
    recorded(tmp_path, "a longer one", "c")
    with Index(work.journal(tmp_path)) as index:
        assert index.of_call("gone") == []
        assert [entry.what for entry in index.of_call("c")] == ["begin", "end"]


def test_a_journal_that_is_not_there_has_an_empty_index(tmp_path: Path) -> None:
    with Index(work.journal(tmp_path)) as index:
        assert index.events() == []
    assert not (tmp_path / "journal").exists()


# -- what readers leave out ---------------------------------------------------------------------------------


def test_the_last_records_are_found_without_reading_segments_of_long_ago(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    moment = [now]
    audit = open_audit(str(tmp_path), day_file=False, clock=lambda: moment[0])
    for day in range(4):
        moment[0] = now - (10 - 3 * day) * 86_400
        audit._segments.rotate()  # nothing to do on the first day
        call = work.call(f"day {day}")
        assert audit.begin(call, work.FACTS)
        if day != 1:
            audit.end(call, work.result(call.id))
    audit.close()
    for path in (*work.segment_paths(tmp_path, ".seg"), *work.segment_paths(tmp_path)):
        made_at = int(path.name.partition("-")[0]) / 1e6
        os.utime(path, (made_at, made_at))
    oldest = work.segment_paths(tmp_path, ".seg")[0]
    folder = work.journal(tmp_path)
    everything = [entry for entry in reading.tail(folder, 1000) if entry.what in ("begin", "end")]
    assert [entry.call for entry in everything] == ["day 0"] * 2 + ["day 1"] + ["day 2"] * 2 + ["day 3"] * 2
    assert [entry.call for entry in reading.interrupted(folder)] == ["day 1"]
    oldest.unlink()
    os.mkfifo(oldest)  # whoever looks at it complains
    os.utime(oldest, (now - 10 * 86_400,) * 2)
    with pytest.raises(StoreError):
        reading.interrupted(folder)
    assert [entry.call for entry in reading.tail(folder, 7) if entry.call][-1] == "day 3"
    assert [entry.call for entry in reading.interrupted(folder, now - 8 * 86_400)] == ["day 1"]
    assert reading.interrupted(folder, now - 5 * 86_400) == []
