"""The index over the journal: a shortcut that is never believed more than the segments."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal import work
from toolcrib.doors import _accounts
from toolcrib.errors import Kind, StoreError
from toolcrib.journal import reading
from toolcrib.journal.audit import Audit, open_audit
from toolcrib.journal.index import Index, Wanted, WantedRecords
from toolcrib.journal.segments import Bounds, Disk


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


def test_an_index_that_is_damaged_where_only_a_question_looks_is_rebuilt(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    folder = Path(work.journal(tmp_path))
    path = folder / "index.sqlite"
    questions: list[Callable[[Index], int]] = [
        lambda index: len(index.of_call("a")),
        lambda index: len(index.events()) * 2,
        lambda index: len(index.calls(Wanted(), 10).calls) * 2,
        lambda index: len(index.records(WantedRecords(), 10)),
        lambda index: sum(each.calls for each in index.load(time.time(), 3600, 2)) * 2,
    ]
    for question in questions:
        with Index(str(folder)):
            pass
        with sqlite3.connect(path) as connection:
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            roots = connection.execute(
                "SELECT rootpage FROM sqlite_master WHERE tbl_name IN ('record', 'call', 'load')"
            ).fetchall()
        connection.close()
        data = bytearray(path.read_bytes())
        for (root,) in roots:
            data[(root - 1) * size : root * size] = b"\xff" * size
        path.write_bytes(data)
        with Index(str(folder)) as index:
            assert question(index) == 2
        with Index(str(folder)) as index:
            assert question(index) == 2


def test_attack_a_question_that_cannot_be_asked_does_not_cost_the_index(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    path = Path(work.journal(tmp_path), "index.sqlite")
    with Index(work.journal(tmp_path)) as index:
        before = path.stat().st_ino
        with pytest.raises(sqlite3.OperationalError):
            index.records(WantedRecords(key="*" * 100_000), 10)
        assert path.stat().st_ino == before
        assert len(index.of_call("a")) == 2


def ahead(state: Path) -> tuple[Path, bytes]:
    """A segment and its bytes as they were before the last call, which the index knows."""
    recorded(state, "a", "b")
    (path,) = work.segment_paths(state)
    before = path.read_bytes()
    recorded(state, "gone")
    with Index(work.journal(state)) as index:
        assert index.of_call("gone")
    return path, before


def test_an_index_that_saw_a_write_which_was_taken_back_reads_the_segment_anew(tmp_path: Path) -> None:
    path, before = ahead(tmp_path)
    path.write_bytes(before)
    recorded(tmp_path, "a longer one", "c")
    with Index(work.journal(tmp_path)) as index:
        assert index.of_call("gone") == []
        assert [entry.what for entry in index.of_call("c")] == ["begin", "end"]


@pytest.mark.parametrize("size", [0, 1 << 16], ids=["cut off", "room in its place"])
def test_an_index_that_knows_more_than_the_segment_has_reads_it_anew(tmp_path: Path, size: int) -> None:
    """After a power failure, or where an older state was put back."""
    path, before = ahead(tmp_path)
    path.write_bytes(before.ljust(size, b"\0"))
    with Index(work.journal(tmp_path)) as index:
        assert index.of_call("gone") == []
        assert [row.call for row in index.calls(Wanted(), 10).calls] == ["b", "a"]


def test_a_journal_that_is_not_there_has_an_empty_index(tmp_path: Path) -> None:
    with Index(work.journal(tmp_path)) as index:
        assert index.events() == []
    assert not (tmp_path / "journal").exists()


@given(st.lists(st.text("ab%_", min_size=1, max_size=3), min_size=1), st.text("ab%_", max_size=2))
@settings(max_examples=40, deadline=None)
def test_a_call_is_found_by_the_beginning_of_its_id_and_by_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], asked: str
) -> None:
    """Whatever stands in an id: it is compared, and never a pattern."""
    state = tmp_path_factory.mktemp("index")
    recorded(state, *ids)
    expected = [entry for entry in work.records(state) if entry.call.startswith(asked)]
    with Index(work.journal(state)) as index:
        found = index.of_call(asked)
    assert [(entry.number, entry.body) for entry in found] == [
        (entry.number, entry.body) for entry in expected
    ]


@pytest.mark.parametrize("text", ["", "mine"])
def test_a_link_in_the_place_of_the_index_is_not_written_through(tmp_path: Path, text: str) -> None:
    """Attack: a link, so that the index overwrites a file of the user's."""
    recorded(tmp_path, "a")
    theirs = tmp_path / "theirs"
    theirs.write_text(text, encoding="utf-8")
    (Path(work.journal(tmp_path)) / "index.sqlite").symlink_to(theirs)
    with Index(work.journal(tmp_path)) as index:
        assert len(index.of_call("a")) == 2
    assert theirs.read_text(encoding="utf-8") == text


def test_segments_that_are_gone_leave_the_index(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    with Index(work.journal(tmp_path)) as index:
        assert index.events()
    for path in work.segment_paths(tmp_path):
        os.unlink(path)
    with Index(work.journal(tmp_path)) as index:
        assert (index.events(), index.of_call("a")) == ([], [])
    assert [*reading.entries(work.journal(tmp_path))] == []


def told(state: Path, *lines: tuple[str, float, str, str | None, float]) -> None:
    """Calls of a caller at a time, with the kind of their error or None, and how long they took."""
    now = [0.0]
    audit = open_audit(str(state), clock=lambda: now[0])
    for id, now[0], caller, kind, ms in lines:
        error = None if kind is None else work.failed("no", Kind(kind))
        audit.begin(work.call(id, caller=caller), work.FACTS)
        audit.end(work.call(id), work.result(id, error=error, spent=work.spent(ms), isolation=("level", "x")))
    audit.close()


def test_calls_come_newest_first_in_pages_and_by_what_is_asked(tmp_path: Path) -> None:
    told(
        tmp_path,
        ("a", 1000.0, "ann", None, 1.0),
        ("b", 1001.0, "bob", "failed", 2.0),
        ("c", 1002.0, "ann", "timed_out", 3.0),
        ("d", 1002.0, "ann", None, 4.0),
    )
    audit = open_audit(str(tmp_path), clock=lambda: 1003.0)
    audit.begin(work.call("e", caller="ann"), work.FACTS)
    audit.close()
    with Index(work.journal(tmp_path)) as index:

        def ids(limit: int = 10, **wanted: Any) -> list[str]:
            return [row.call for row in index.calls(Wanted(**wanted), limit).calls]

        assert ids() == ["e", "d", "c", "b", "a"]
        assert ids(caller="ANN") == ["e", "d", "c", "a"]
        assert ids(outcome="ok") == ["d", "a"]
        assert ids(outcome="failed") == ["c", "b"]
        assert ids(outcome="timed_out") == ["c"]
        assert ids(outcome="open") == ["e"]
        assert ids(since=1002.0) == ["e", "d", "c"]
        assert ids(tool="GET_TIME", caller="bob") == ["b"]
        assert ids(tool="%") == []
        first = index.calls(Wanted(), 2)
        second = index.calls(Wanted(before=first.next), 2)
        third = index.calls(Wanted(before=second.next), 2)
        assert [row.call for row in (*first.calls, *second.calls, *third.calls)] == ["e", "d", "c", "b", "a"]
        assert third.next is None
        (row,) = index.calls(Wanted(outcome="timed_out"), 1).calls
        assert (row.key, row.door, row.caller, row.ms, row.ok, row.layers) == (
            "manifest:t/get_time", "test", "ann", 3.0, False, ("level", "x"),
        )  # fmt: skip


def test_what_ended_is_counted_by_minutes_and_by_hours(tmp_path: Path) -> None:
    lines = [(f"c{at}", 7200.0 + at, "ann", "failed" if at % 4 == 0 else None, 10.0) for at in range(120)]
    told(tmp_path, *lines, ("slow", 7319.5, "ann", None, 1000.0))
    with Index(work.journal(tmp_path)) as index:
        first, second, third = index.load(7379.0, 60, 3)
        assert (first.start, first.calls, first.failed) == (7200.0, 60, 15)
        assert (second.calls, second.failed, third.calls) == (61, 15, 0)
        assert first.p50_ms == pytest.approx(10.0, rel=0.05)
        assert first.p95_ms == pytest.approx(10.0, rel=0.05)
        assert (third.p50_ms, third.p95_ms) == (None, None)
        (hour,) = index.load(7200.0, 3600, 1)
        assert (hour.calls, hour.failed) == (121, 30)
        assert [each.calls for each in index.load(7379.0, 60, 3, key="manifest:*")] == [60, 61, 0]
        assert [each.calls for each in index.load(7379.0, 60, 3, key="manifest")] == [0, 0, 0]
        assert [each.calls for each in index.load(7379.0, 60, 3, sees=lambda key: key == "")] == [0, 0, 0]
    told(tmp_path, ("later", 7330.0, "ann", None, 1.0))
    with Index(work.journal(tmp_path)) as index:  # what came since is added, and nothing is counted twice
        assert [each.calls for each in index.load(7379.0, 60, 3)] == [60, 61, 1]


def test_what_a_segment_told_goes_with_it(tmp_path: Path) -> None:
    told(tmp_path, ("a", 60.0, "ann", None, 1.0))
    with Index(work.journal(tmp_path)) as index:
        assert index.calls(Wanted(), 10).calls
    for path in work.segment_paths(tmp_path):
        path.unlink()
    with Index(work.journal(tmp_path)) as index:
        assert index.calls(Wanted(), 10).calls == ()
        assert [each.calls for each in index.load(0.0, 60, 3)] == [0, 0, 0]


def test_an_index_that_another_is_making_is_left_to_it(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    path = Path(work.journal(tmp_path)) / "index.sqlite"
    Index(work.journal(tmp_path)).__exit__()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    before = path.stat().st_ino
    with pytest.raises(StoreError, match="being made"):
        Index(work.journal(tmp_path), wait_s=0.01)
    assert path.stat().st_ino == before
    other.execute("ROLLBACK")
    other.close()
    with Index(work.journal(tmp_path)) as index:
        assert len(index.of_call("a")) == 2


# -- in steps -----------------------------------------------------------------------------------------------


def rotated(state: Path, *ids: str) -> None:
    """A call in each of as many segments, all of which but the last are closed."""
    audit = open_audit(str(state))
    for number, id in enumerate(ids):
        if number:
            audit._segments.rotate()
        audit.begin(work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id))
    audit.close()


def test_an_index_whose_making_is_stopped_goes_on_where_it_stopped(tmp_path: Path) -> None:
    rotated(tmp_path, "a", "b", "c")
    folder = work.journal(tmp_path)

    def stop(done: int, total: int) -> None:
        assert total == 3
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index(folder, progress=stop)
    with sqlite3.connect(os.path.join(folder, "index.sqlite")) as connection:
        kept = [call for (call,) in connection.execute("SELECT call FROM call ORDER BY call")]
    connection.close()
    assert kept == ["a", "b"]
    with Index(folder) as index:
        assert [row.call for row in index.calls(Wanted(), 10).calls] == ["c", "b", "a"]
        assert sum(each.calls for each in index.load(time.time(), 3600, 2)) == 3


def test_whoever_makes_the_index_lets_others_in_between_two_segments(tmp_path: Path) -> None:
    rotated(tmp_path, "a", "b", "c")
    folder = work.journal(tmp_path)
    found: list[int] = []

    def ask(done: int, _total: int) -> None:
        if done == 1:
            with Index(folder, wait_s=0.01) as other:  # which does the rest of the work, too
                found.append(len(other.calls(Wanted(), 10).calls))

    with Index(folder, progress=ask) as index:
        assert len(index.calls(Wanted(), 10).calls) == 3
        assert sum(each.calls for each in index.load(time.time(), 3600, 2)) == 3
    assert found == [3]


# -- interrupted --------------------------------------------------------------------------------------------


def places(state: Path) -> set[tuple[str, int]]:
    return {(entry.segment, entry.number) for entry in reading.interrupted(work.journal(state))}


def test_calls_that_were_interrupted_in_closed_segments_are_known_without_reading_these(
    tmp_path: Path,
) -> None:
    audit = open_audit(str(tmp_path))
    audit.begin(work.call("left"), work.FACTS)
    audit._segments.rotate()
    audit.close()
    with Index(work.journal(tmp_path)) as index:
        expected = index.interrupted(0.0)
    assert expected == places(tmp_path)
    (path,) = work.segment_paths(tmp_path, ".seg")
    path.write_bytes(bytes(path.stat().st_size))
    with Index(work.journal(tmp_path)) as index:
        assert index.interrupted(0.0) == expected
    told = _accounts.stats_document(work.journal(tmp_path), now=time.time(), window_s=3600, buckets=1)
    assert told["interrupted"] == 1


def test_a_segment_that_cannot_be_read_is_named_and_nobody_guesses_what_was_interrupted(
    tmp_path: Path,
) -> None:
    recorded(tmp_path, "a")
    (Path(work.journal(tmp_path)) / "00000000000000001-1-aa.seg").mkdir()
    with (
        Index(work.journal(tmp_path)) as index,
        pytest.raises(StoreError, match=r"00000000000000001-1-aa\.seg: it is not a regular file"),
    ):
        index.interrupted(0.0)


def test_what_others_took_in_since_says_nothing_about_hosts_that_were_not_looked_for(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    with Index(work.journal(tmp_path)) as index:
        audit = open_audit(str(tmp_path))
        audit.begin(work.call("runs"), work.FACTS)
        with Index(work.journal(tmp_path)) as other:
            assert other.interrupted(0.0) == set()
            assert index.of_call("runs")
            assert index.interrupted(0.0) == set()
        audit.close()
    with Index(work.journal(tmp_path)) as index:
        assert index.interrupted(0.0) == places(tmp_path) != set()


@pytest.mark.parametrize("is_end", [False, True], ids=["the begin's", "the end's"])
def test_a_segment_that_is_read_anew_keeps_begins_and_ends_together(tmp_path: Path, is_end: bool) -> None:
    audit = open_audit(str(tmp_path))
    audit.begin(work.call("long"), work.FACTS)
    (first,) = work.segment_paths(tmp_path)
    audit._segments.rotate()
    (second,) = work.segment_paths(tmp_path)
    before = second.read_bytes()
    audit.end(work.call("long"), work.result("long", spent=work.spent(2.0)))
    audit.close()
    with Index(work.journal(tmp_path)) as index:
        assert index.interrupted(0.0) == set()
    if is_end:
        second.write_bytes(before)
    else:
        path = first.with_suffix(".seg")
        path.write_bytes(path.read_bytes()[:-1])
    with Index(work.journal(tmp_path)) as index:
        (row,) = index.calls(Wanted(), 10).calls
        assert (row.call, row.ok, row.ms) == (("long", None, None) if is_end else ("long", True, 2.0))
        assert index.interrupted(0.0) == places(tmp_path) == ({(first.stem, 2)} if is_end else set())


MOVE = st.sampled_from(("begin", "begin", "end", "rotate", "sync fails", "leave", "ask"))
MOVES = st.lists(st.tuples(MOVE, st.booleans()), max_size=25)


@given(MOVES)
@settings(max_examples=60, deadline=None)
def test_the_index_finds_the_same_calls_interrupted_as_one_who_reads_everything(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, bool]]
) -> None:
    state = tmp_path_factory.mktemp("moves")
    folder = work.journal(state)
    hosts: dict[bool, Audit] = {}
    open_calls: dict[bool, list[str]] = {False: [], True: []}
    fails: list[OSError] = []
    begun: list[str] = []

    def sync(_descriptor: int) -> None:
        if fails:
            raise fails.pop()

    def compare() -> None:
        expected = places(state)
        with Index(folder) as index:
            assert index.interrupted(0.0) == expected
        few = set(begun[::2])
        found = reading.interrupted(folder, calls=few)
        assert found == [entry for entry in reading.interrupted(folder) if entry.call in few]

    for move, which in moves:
        audit = hosts.get(which)
        if move == "ask":
            compare()
        elif move == "leave":
            if audit is not None:
                hosts.pop(which).close()
                open_calls[which].clear()
        elif audit is None:
            hosts[which] = open_audit(
                str(state), disk=Disk(sync=sync), bounds=Bounds(flush_s=60), told=lambda text: None
            )
        elif move == "end" and open_calls[which]:
            id = open_calls[which].pop()
            audit.end(work.call(id), work.result(id))
        elif move == "rotate":
            audit._segments.rotate()
        else:
            id = f"c{len(begun)}"
            begun.append(id)
            fails.extend([OSError(5, "Input/output error")] * (move == "sync fails"))
            if audit.begin(work.call(id), work.FACTS):
                open_calls[which].append(id)
            fails.clear()
    compare()
    for audit in hosts.values():
        audit.close()
    compare()
