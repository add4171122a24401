"""Reading the journal: every record once, in an order that can be trusted, whatever lies beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal import work
from toolcrib.errors import StoreError
from toolcrib.journal import reading, sealing
from toolcrib.journal.audit import Seals, open_audit
from toolcrib.journal.chain import Check, Head
from toolcrib.journal.segments import Segments


def written(state: Path, *calls: tuple[str, float]) -> None:
    """One host that records these calls at these times, by a clock that may go back."""
    now = [0.0]
    audit = open_audit(str(state), day_file=False, clock=lambda: now[0])
    for id, at in calls:
        now[0] = at
        assert audit.begin(work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id))
    audit.close()


times = st.lists(st.floats(1.7e9, 1.8e9), min_size=1, max_size=4)


@given(times, times, st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_last_records_keep_the_order_of_their_segment_whatever_the_clock_says(
    tmp_path_factory: pytest.TempPathFactory, one: list[float], other: list[float], count: int
) -> None:
    state = tmp_path_factory.mktemp("tail")
    written(state, *((f"one {number}", at) for number, at in enumerate(one)))
    for path in work.segment_paths(state):
        path.rename(path.with_suffix(".seg"))  # closed, so that the second host begins one of its own
    written(state, *((f"other {number}", at) for number, at in enumerate(other)))
    whole = [*reading.entries(work.journal(state))]
    last = reading.tail(work.journal(state), count)
    assert len(last) == min(count, len(whole))
    assert {(entry.segment, entry.number) for entry in last} <= {
        (entry.segment, entry.number) for entry in whole
    }
    for segment in {entry.segment for entry in last}:
        numbers = [entry.number for entry in last if entry.segment == segment]
        assert numbers == sorted(numbers)


def test_following_gives_each_record_once(tmp_path: Path) -> None:
    known: dict[str, tuple[int, Head | None]] = {}
    seen: list[str] = []
    for number in range(3):
        written(tmp_path, (f"c{number}", 1.8e9 + number))
        seen += [entry.call for entry in reading.follow(work.journal(tmp_path), known) if entry.call]
        assert [*reading.follow(work.journal(tmp_path), known)] == []
    assert seen == [f"c{number}" for number in range(3) for _ in range(2)]


# -- beside hosts that write --------------------------------------------------------------------------------


def host(state: Path) -> Segments:
    return Segments(work.journal(state), seal=Seals(str(state)))


def signed_by(state: Path) -> tuple[bytes, Check]:
    """The key that a journal is signed with, and what checks its signatures."""
    key = sealing.public_key(str(state))
    assert key is not None
    return key, sealing.checker(key)


def begun(call: str) -> list[bytes]:
    return [orjson.dumps({"what": "begin", "ts": 1.8e9, "call": call})]


def test_a_segment_that_comes_while_others_are_read_is_read_as_well(tmp_path: Path) -> None:
    with closing(host(tmp_path)) as writing:
        writing.append(begun("a"), durable=True)
        writing.rotate()
        reader = reading.entries(work.journal(tmp_path))
        seen = [next(reader)]
        writing.rotate()
        writing.append(begun("b"), durable=True)
        assert [entry.call for entry in (*seen, *reader) if entry.what == "begin"] == ["a", "b"]


def test_a_segment_that_is_begun_and_closed_while_the_journal_is_verified_is_not_missing(
    tmp_path: Path,
) -> None:
    with closing(host(tmp_path)) as writing:
        writing.append(begun("a"), durable=True)
        writing.rotate()
        key, right = signed_by(tmp_path)
        before = len(work.segment_paths(tmp_path, ".seg"))

        def check(signature: bytes, message: bytes) -> bool:
            if len(work.segment_paths(tmp_path, ".seg")) == before:
                with closing(host(tmp_path)) as other:
                    other.append(begun("b"), durable=True)
                os.utime(work.segment_paths(tmp_path)[-1], (1.0, 1.0))
                writing.tidy()
            return right(signature, message)

        verdict = reading.verify(work.journal(tmp_path), key, check)
        assert len(work.segment_paths(tmp_path, ".seg")) == before + 1
    assert verdict.flaws == ()


def test_reading_ends_beside_a_host_that_begins_segments_as_fast_as_they_are_read(tmp_path: Path) -> None:
    with closing(host(tmp_path)) as writing:
        writing.append(begun("a"), durable=True)
        writing.rotate()
        key, right = signed_by(tmp_path)
        rotations = 0

        def rotate() -> None:
            nonlocal rotations
            rotations += 1
            assert rotations < 1000, "it never ends"
            writing.rotate()

        def check(signature: bytes, message: bytes) -> bool:
            rotate()
            return right(signature, message)

        verdict = reading.verify(work.journal(tmp_path), key, check)
        assert rotations
        assert verdict.flaws == ()
        rotations = 0
        for _ in reading.entries(work.journal(tmp_path)):
            rotate()

        def look(frame: FrameType, event: str, _what: object) -> None:
            if event == "call" and frame.f_code.co_name == "filled":
                rotate()

        rotations = 0
        before = sys.getprofile()
        sys.setprofile(look)
        try:
            found = reading.interrupted(work.journal(tmp_path))
        finally:
            sys.setprofile(before)
        assert rotations
        assert found == [], "its host lives, wherever it writes by now"
    assert [entry.call for entry in reading.interrupted(work.journal(tmp_path))] == ["a"]


def test_a_host_that_comes_while_a_segment_is_read_is_not_taken_for_one_that_is_gone(tmp_path: Path) -> None:
    written(tmp_path, ("a", 1.8e9))
    with closing(host(tmp_path)) as writing:

        def look(frame: FrameType, event: str, _what: object) -> None:
            if event == "call" and frame.f_code.co_name == "filled" and writing.head is None:
                writing.append(begun("b"), durable=True)

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            found = reading.interrupted(work.journal(tmp_path))
        finally:
            sys.setprofile(before)
        assert writing.head is not None
        assert found == []
    assert [entry.call for entry in reading.interrupted(work.journal(tmp_path))] == ["b"]


def test_what_stands_before_the_damage_is_shown(tmp_path: Path) -> None:
    written(tmp_path, *((f"c{number}", 1.8e9) for number in range(5)))
    whole = work.records(tmp_path)
    (path,) = work.segment_paths(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)
    left = work.records(tmp_path)
    assert 0 < len(left) < len(whole)
    assert [entry.body for entry in left] == [entry.body for entry in whole[: len(left)]]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_segment_is_named_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    """Attack: a FIFO that nobody writes, to stop whoever reads the journal."""
    folder = tmp_path / "journal"
    folder.mkdir()
    path = folder / "1-a.seg"
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(StoreError, match=r"1-a\.seg"):
        [*reading.entries(str(folder))]
    assert [flaw.segment for flaw in work.verdict(tmp_path).flaws] == ["1-a"]


@given(st.floats(allow_nan=False))
def test_any_time_can_be_shown(ts: float) -> None:
    text = reading.time_text(ts)
    assert "1970-01-01T00:00:00.000Z" <= text <= "9999-12-31T23:59:59.999Z"


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


def test_whoever_reads_a_long_journal_is_told_how_far_it_is(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path))
    for id in "abc":
        audit.begin(work.call(id), work.FACTS)
        audit._segments.rotate()
    audit.close()
    folder = work.journal(tmp_path)
    key = sealing.public_key(str(tmp_path))
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    looks: list[Callable[[], object]] = [
        lambda: reading.verify(folder, key, sealing.checker(key or b""), progress=progress),
        lambda: [*reading.entries(folder, progress)],
        lambda: [*reading.follow(folder, {}, progress)],
        lambda: reading.tail(folder, 10, progress),
        lambda: reading.interrupted(folder, progress=progress),
    ]
    for look in looks:
        told.clear()
        look()
        assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]
