"""Writing: durable, grouped, recovered, rotated, retired; and refused where the disk does not play along."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.journal import work
from tests.journal.work import until
from toolcrib.journal import chain, reading
from toolcrib.journal.audit import Seals
from toolcrib.journal.pen import Pen
from toolcrib.journal.segments import ROOM_BYTES, Bounds, Disk, Segments, Trouble
from toolcrib.store import private


def segments(state: Path, **more: Any) -> Segments:
    return Segments(work.journal(state), seal=Seals(str(state)), **more)


def body(call: str, what: str = "begin") -> bytes:
    return orjson.dumps({"what": what, "ts": 1.0, "call": call})


def calls(state: Path) -> list[str]:
    return [entry.call for entry in work.records(state)]


@contextmanager
def opened(state: Path, **more: Any):
    journal = segments(state, **more)
    try:
        yield journal
    finally:
        journal.close()


def waiting(journal: Segments) -> int:
    """Threads that wait for a sync."""
    return 0 if journal._segment is None else journal._segment.pen.waiting


def placed(journal: Segments, record: bytes) -> Pen:
    """Give a record its place in the open segment without writing it."""
    assert journal._segment is not None
    assert journal._segment.pen.place([record])
    return journal._segment.pen


# -- appending ----------------------------------------------------------------------------------------------


def test_records_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for number in range(5):
            journal.append([body(str(number))], durable=number % 2 == 0)
    assert calls(tmp_path) == ["0", "1", "2", "3", "4"]
    verdict = work.verdict(tmp_path)
    assert verdict.ok
    assert (verdict.records, verdict.unsigned) == (6, 6)  # its opening as well


def test_a_host_that_ends_early_signs_nothing_so_that_a_short_call_stays_short(tmp_path: Path) -> None:
    bounds = Bounds(signed_every=10)
    for number in range(4):
        with opened(tmp_path, bounds=bounds) as journal:
            journal.append([body(str(number)), body(str(number), "end")], durable=True)
        assert (tmp_path / "keys").exists() == (number == 3)
    assert work.verdict(tmp_path).unsigned == 0


def test_folder_and_files_belong_to_the_host_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path / "state", bounds=Bounds(signed_every=1)) as journal:
            journal.append([body("a")], durable=True)
    finally:
        os.umask(before)
    state = tmp_path / "state"
    for path, mode in ((state / "journal", 0o700), (state / "keys", 0o700)):
        assert path.stat().st_mode & 0o777 == mode
    for path in (*work.segment_paths(state), state / "keys" / "journal.key"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_durable_record_is_synced_before_append_returns(tmp_path: Path) -> None:
    sizes: list[int] = []

    def sync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)

    with opened(tmp_path, disk=Disk(sync=sync), bounds=Bounds(flush_s=WAIT)) as journal:
        journal.append([body("a")], durable=True)
        (path,) = work.segment_paths(tmp_path)
        assert sizes[-1] == path.stat().st_size
        count = len(sizes)
        journal.append([body("a", "end")], durable=False)
        assert len(sizes) == count
        assert calls(tmp_path) == ["a", "a"]  # in the kernel already
    assert len(sizes) > count  # at the latest when the journal is closed


WAIT = 60.0


@pytest.mark.parametrize("way", ["durable", "kernel"])
@pytest.mark.parametrize("is_first", [False, True])
def test_an_interrupt_at_any_moment_leaves_a_journal_that_can_be_written(
    tmp_path: Path, way: str, is_first: bool
) -> None:
    """Attack: a key press while a record is written, after which every other thread waits for ever."""

    def write(journal: Segments) -> None:
        journal.append([body("a"), body("b")], durable=way == "durable")

    def finish(journal: Segments) -> None:
        journal.append([body("z")], durable=True)
        journal.close()

    is_whole = False
    moment = 0
    while not is_whole:
        moment += 1
        state = tmp_path / str(moment)
        journal = segments(state, bounds=Bounds(flush_s=WAIT))
        if not is_first:
            journal.append([body("0")], durable=True)
        is_whole = work.is_over_before(moment, partial(write, journal), Segments, Pen)
        after = threading.Thread(target=finish, args=(journal,), daemon=True)
        after.start()
        after.join(10)
        assert not after.is_alive(), moment
        assert calls(state)[-1] == "z", moment
        assert work.verdict(state).ok, moment
    assert moment > 5


def test_attack_an_interrupt_at_any_moment_of_a_rotation_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    """Attack: a key press while a segment is closed, after which records stood behind a gap in its chain, or
    were said to be on the disk and were cut off."""
    is_whole = False
    moment = 0
    while not is_whole:
        moment += 1
        state = tmp_path / str(moment)
        with opened(state, bounds=Bounds(flush_s=WAIT)) as journal:
            journal.append([body("a")], durable=True)
            placed(journal, body("b"))
            is_whole = work.is_over_before(moment, journal.rotate, Segments, Pen)
            for _ in range(2):  # the first one may meet what was left half done
                with suppress(Trouble):
                    journal.append([body("z")], durable=True)
                    break
            else:
                raise AssertionError(moment)
        found = calls(state)
        assert (found[0], found[-1]) == ("a", "z"), moment
        assert work.verdict(state).ok, moment
    assert moment > 20


def test_an_end_is_synced_in_the_background_within_the_bound(tmp_path: Path) -> None:
    synced = threading.Event()

    def sync(descriptor: int) -> None:
        synced.set()

    with opened(tmp_path, disk=Disk(sync=sync), bounds=Bounds(flush_s=0.01)) as journal:
        journal.append([body("a", "end")], durable=False)
        assert synced.wait(WAIT)


def test_where_no_thread_can_be_started_whoever_writes_syncs_and_the_next_write_tries_again(
    tmp_path: Path,
) -> None:
    tried: list[str] = []
    synced: list[int] = []

    def begin(work: Callable[[], None], arguments: tuple[()]) -> None:
        tried.append("thread")
        raise RuntimeError("can't start new thread")

    disk = Disk(sync=synced.append)
    with opened(tmp_path, begin=begin, disk=disk, bounds=Bounds(flush_s=WAIT)) as journal:
        for call in ("a", "b"):
            synced.clear()
            journal.append([body(call, "end")], durable=False)
            assert synced, call
    assert tried == ["thread", "thread"]
    assert calls(tmp_path) == ["a", "b"]


def test_a_background_that_ends_before_its_first_step_keeps_nobody_waiting(tmp_path: Path) -> None:
    """As a thread does that finds no memory: it was started, and never says a word."""

    def work_of_the_host() -> None:
        with opened(tmp_path, begin=lambda work, arguments: None) as journal:
            journal.append([body("a", "end")], durable=False)

    host = threading.Thread(target=work_of_the_host, daemon=True)
    host.start()
    host.join(WAIT)
    assert not host.is_alive()
    assert calls(tmp_path) == ["a"]


def test_many_threads_share_one_sync(tmp_path: Path) -> None:
    """While a sync runs, everybody who comes waits for the next one, which serves them all."""
    running, release = threading.Event(), threading.Event()
    syncs = 0

    def sync(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        running.set()
        assert release.wait(WAIT)

    with opened(tmp_path, disk=Disk(sync=sync)) as journal:
        first = threading.Thread(target=journal.append, args=([body("first")],), kwargs={"durable": True})
        first.start()
        assert running.wait(WAIT)
        threads = [
            threading.Thread(target=journal.append, args=([body(str(n))],), kwargs={"durable": True})
            for n in range(32)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + WAIT
        while journal.head is None or journal.head.number < 34:  # all have linked, and wait
            assert time.monotonic() < until
            threading.Event().wait(0.001)
        release.set()
        for thread in (first, *threads):
            thread.join(WAIT)
        assert syncs <= 4
    assert sorted(calls(tmp_path)) == sorted(["first", *map(str, range(32))])
    assert work.verdict(tmp_path).ok


def test_a_thread_that_is_interrupted_while_it_waits_leaves_nobody_waiting_for_it(tmp_path: Path) -> None:
    """Ctrl-C reaches the main thread when it is the next to sync for all."""
    running, release = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        running.set()
        assert release.wait(WAIT)

    def interrupt() -> None:
        until = time.monotonic() + WAIT
        while journal.head is None or journal.head.number < 3:  # the main thread has linked, and waits
            assert time.monotonic() < until
            threading.Event().wait(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with opened(tmp_path, disk=Disk(sync=sync)) as journal:
        first = threading.Thread(target=journal.append, args=([body("a")],), kwargs={"durable": True})
        first.start()
        assert running.wait(WAIT)
        interrupting = threading.Thread(target=interrupt, daemon=True)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            journal.append([body("b")], durable=True)
        interrupting.join(WAIT)
        release.set()
        first.join(WAIT)
        after = threading.Thread(
            target=journal.append, args=([body("c")],), kwargs={"durable": True}, daemon=True
        )
        after.start()
        after.join(WAIT)
        assert not after.is_alive()
    assert calls(tmp_path) == ["a", "b", "c"]


def test_a_thread_that_is_interrupted_while_it_syncs_for_others_leaves_that_to_the_next(
    tmp_path: Path,
) -> None:
    running, release = threading.Event(), threading.Event()
    said: list[str] = []

    def sync(descriptor: int) -> None:
        running.set()
        assert release.wait(WAIT)
        said.append("sync")
        if said.count("sync") == 2:
            raise KeyboardInterrupt

    def append(call: str) -> None:
        with suppress(KeyboardInterrupt):
            journal.append([body(call)], durable=True)
            said.append("durable")

    with opened(tmp_path, disk=Disk(sync=sync), bounds=Bounds(flush_s=WAIT)) as journal:
        threads = [threading.Thread(target=append, args=(call,)) for call in "abc"]
        threads[0].start()
        assert running.wait(WAIT)
        for thread in threads[1:]:
            thread.start()
        until = time.monotonic() + WAIT
        while journal.head is None or journal.head.number < 4 or waiting(journal) < 2:
            assert time.monotonic() < until
            threading.Event().wait(0.001)
        release.set()
        for thread in threads:
            thread.join(WAIT)
        assert (said.count("sync"), said.count("durable"), said[-1]) == (3, 2, "durable")


def test_a_write_that_is_interrupted_is_taken_back(tmp_path: Path) -> None:
    """Ctrl-C is raised when the bytes are in the file already."""
    interrupted: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        done = os.write(descriptor, data)
        if b'"call":"b"' in data:
            interrupted.append(done)
            raise KeyboardInterrupt
        return done

    with opened(tmp_path, disk=Disk(write=write), bounds=ROOMY) as journal:
        journal.append([body("a")], durable=True)
        with pytest.raises(KeyboardInterrupt):
            journal.append([body("b")], durable=True)
        journal.append([body("c")], durable=True)
    assert interrupted
    assert calls(tmp_path) == ["a", "c"]
    verdict = work.verdict(tmp_path)
    assert (verdict.flaws, verdict.torn) == ((), ())


def test_threads_without_order_make_one_chain(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:

        def many(prefix: int) -> None:
            for number in range(100):
                journal.append([body(f"{prefix}-{number}")], durable=number % 10 == 0)

        threads = [threading.Thread(target=many, args=(prefix,)) for prefix in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    found = calls(tmp_path)
    assert len(found) == 800
    for prefix in range(8):
        assert [call for call in found if call.startswith(f"{prefix}-")] == [
            f"{prefix}-{number}" for number in range(100)
        ]
    assert work.verdict(tmp_path).ok


def test_two_hosts_with_one_state_folder_write_their_own_segments(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        one.append([body("one")], durable=True)
        other.append([body("other")], durable=True)
        assert len(work.segment_paths(tmp_path)) == 2
    assert sorted(calls(tmp_path)) == ["one", "other"]
    assert work.verdict(tmp_path).ok


def test_a_host_that_forks_writes_two_segments_and_breaks_none(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("before")], durable=True)
        child = os.fork()
        if child == 0:
            status = 1
            with suppress(BaseException):
                journal.append([body("child")], durable=True)
                journal.append([body("child", "end")], durable=False)
                journal.close()
                status = 0
            os._exit(status)
        journal.append([body("parent")], durable=True)
        assert os.waitpid(child, 0)[1] == 0
        journal.append([body("after")], durable=True)
    assert work.verdict(tmp_path).ok
    assert sorted(calls(tmp_path)) == ["after", "before", "child", "child", "parent"]
    assert len(work.segment_paths(tmp_path)) == 2


def test_a_later_host_continues_the_segment_that_was_left(tmp_path: Path) -> None:
    for number in range(3):
        with opened(tmp_path) as journal:
            journal.append([body(str(number))], durable=True)
    assert len(work.segment_paths(tmp_path)) == 1
    assert calls(tmp_path) == ["0", "1", "2"]
    assert work.verdict(tmp_path).ok


# -- recovery -----------------------------------------------------------------------------------------------


@pytest.mark.battery("K01")
@pytest.mark.parametrize("kept", [1, 20, 47, 48, 60])
def test_k01_a_torn_tail_is_cut_off_reported_and_never_counted(tmp_path: Path, kept: int) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a"), body("b")], durable=True)
    (path,) = work.segment_paths(tmp_path)
    whole = path.read_bytes()
    torn = whole[: kept + 10][:kept]
    path.write_bytes(whole + torn)
    verdict = work.verdict(tmp_path)
    if kept < 48 or verdict.ok:
        assert verdict.torn
    told: list[str] = []
    if not verdict.ok:
        pytest.skip("these bytes are a whole head with a wrong body, so damage")
    with opened(tmp_path, told=told.append) as journal:
        journal.append([body("c")], durable=True)
    assert calls(tmp_path) == ["a", "b", "c"]
    assert work.verdict(tmp_path).ok
    (aside,) = (tmp_path / "journal").glob("*.torn-*")
    assert aside.read_bytes() == torn
    assert aside.stat().st_mode & 0o777 == 0o600
    assert any("unfinished record" in text for text in told)


def test_attack_a_segment_whose_number_is_the_largest_there_is_breaks_no_host(tmp_path: Path) -> None:
    name = f"{int(time.time() * 1e6):017d}-1-aa"
    private.make_folders(work.journal(tmp_path))
    path = Path(work.journal(tmp_path), name + ".open")
    opening = orjson.dumps({"what": "open", "ts": 1.0})
    path.write_bytes(chain.framed(chain.start(name), (1 << 64) - 1, opening)[0])
    journal = segments(tmp_path)
    with pytest.raises(Trouble, match=r"is damaged .*number is too large"):
        journal.append([body("a")], durable=True)
    assert [flaw.why for flaw in work.verdict(tmp_path).flaws] == ["its number is too large"]
    path.rename(tmp_path / path.name)
    journal.append([body("a")], durable=True)
    journal.close()
    assert calls(tmp_path) == ["a"]


def test_a_damaged_segment_refuses_calls_until_it_is_moved_away(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a"), body("b")], durable=True)
    (path,) = work.segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    journal = segments(tmp_path)
    with pytest.raises(Trouble, match=r"is damaged") as trouble:
        journal.append([body("c")], durable=True)
    assert path.name in trouble.value.why
    path.rename(tmp_path / path.name)
    journal.append([body("c")], durable=True)
    journal.close()
    assert calls(tmp_path) == ["c"]


@pytest.mark.battery("K01")
def test_k01_a_host_killed_at_random_moments_loses_nothing_it_told(tmp_path: Path) -> None:
    chance = random.Random(20261115)
    begun: set[str] = set()
    ended: set[str] = set()
    for number in range(15):
        said = work.run_and_kill(tmp_path, after_lines=chance.randrange(1, 60), prefix=str(number))
        begun |= said.begun
        ended |= said.ended
    told: list[str] = []
    with opened(tmp_path, told=told.append) as journal:
        journal.append([body("after")], durable=True)
    verdict = work.verdict(tmp_path)
    assert verdict.ok, verdict
    entries = work.records(tmp_path)
    assert {entry.call for entry in entries if entry.what == "begin"} >= begun
    assert {entry.call for entry in entries if entry.what == "end"} >= ended
    assert len(list((tmp_path / "journal").glob("*.torn-*"))) <= 15
    assert begun
    assert ended


# -- room ahead ---------------------------------------------------------------------------------------------


class Filling:
    """A disk that tells when the journal has made itself room."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.pieces = 0

    def __call__(self, descriptor: int, data: bytes, offset: int) -> int:
        done = os.pwrite(descriptor, data, offset)
        self.pieces += 1
        if offset + done + len(data) > ROOM_BYTES:
            self.done.set()
        return done


ROOMY = Bounds(room_after=1, flush_s=0.001)


@contextmanager
def opened_with_room(state: Path, **more: Any):
    filling = Filling()
    with opened(state, **{"bounds": ROOMY, "disk": Disk(fill=filling), **more}) as journal:
        journal.append([body("first")], durable=False)
        assert filling.done.wait(WAIT)
        yield journal


def killed_with_room(state: Path) -> Path:
    """The segment of a host that was killed when it had room; its records are "a" and "b"."""
    program = """
        import os, signal, sys, threading
        from toolcrib.journal.audit import Seals
        from toolcrib.journal.segments import Bounds, Segments
        state = sys.argv[1]
        journal = Segments(state + "/journal", seal=Seals(state), bounds=Bounds(room_after=1, flush_s=0.001))
        journal.append([b'{"what":"begin","ts":1,"call":"a"}'], durable=False)
        (name,) = os.listdir(state + "/journal")
        while os.stat(state + "/journal/" + name).st_size < 200_000:
            threading.Event().wait(0.001)
        journal.append([b'{"what":"begin","ts":1,"call":"b"}'], durable=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(state)], timeout=WAIT, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    (path,) = work.segment_paths(state)
    assert path.read_bytes().endswith(bytes(100_000))
    return path


def without_room(path: Path) -> bytes:
    return path.read_bytes().rstrip(b"\0")


def test_a_host_that_goes_on_writing_has_room_that_no_reader_sees_and_leaves_none(tmp_path: Path) -> None:
    known: dict[str, tuple[int, chain.Head | None]] = {}
    with opened_with_room(tmp_path) as journal:
        (path,) = work.segment_paths(tmp_path)
        size = path.stat().st_size
        seen = [entry.call for entry in reading.follow(work.journal(tmp_path), known) if entry.call]
        journal.append([body("second")], durable=True)
        assert path.stat().st_size == size <= ROOM_BYTES + len(without_room(path))
        assert path.read_bytes().endswith(bytes(100_000))
        seen += [entry.call for entry in reading.follow(work.journal(tmp_path), known) if entry.call]
        assert seen == calls(tmp_path) == ["first", "second"]
        assert [entry.call for entry in reading.tail(work.journal(tmp_path), 1)] == ["second"]
        verdict = work.verdict(tmp_path)
        assert (verdict.ok, verdict.torn) == (True, ())
    assert path.read_bytes() == without_room(path)
    assert calls(tmp_path) == ["first", "second"]


def test_room_is_made_again_before_it_is_used_up_and_appending_goes_on_where_it_was(tmp_path: Path) -> None:
    long = orjson.dumps({"what": "begin", "ts": 1.0, "call": "long", "text": "x" * 50_000})
    with opened_with_room(tmp_path) as journal:
        for _ in range(30):
            journal.append([long], durable=False)
            journal.append([body("short")], durable=True)
    assert calls(tmp_path) == ["first", *["long", "short"] * 30]
    assert work.verdict(tmp_path).ok


def test_a_host_of_a_few_records_makes_no_room(tmp_path: Path) -> None:
    filling, synced = Filling(), threading.Event()

    def sync(descriptor: int) -> None:
        synced.set()

    with opened(tmp_path, bounds=Bounds(flush_s=0.001), disk=Disk(fill=filling, sync=sync)) as journal:
        journal.append([body("a")], durable=False)
        assert synced.wait(WAIT)  # by the background, which would have made room before
    assert filling.pieces == 0


def test_room_of_a_host_that_was_killed_is_no_torn_tail_and_is_used_by_the_next(tmp_path: Path) -> None:
    path = killed_with_room(tmp_path)
    verdict = work.verdict(tmp_path)
    assert (verdict.ok, verdict.torn, verdict.records) == (True, (), 3)
    told: list[str] = []
    with opened(tmp_path, told=told.append) as journal:
        size = path.stat().st_size
        journal.append([body("c")], durable=True)
        assert path.stat().st_size == size
    assert work.segment_paths(tmp_path) == [path]
    assert path.read_bytes() == without_room(path)
    assert calls(tmp_path) == ["a", "b", "c"]
    assert (told, reading.torn_files(work.journal(tmp_path))) == ([], [])
    assert work.verdict(tmp_path).ok


def test_half_a_record_before_room_is_torn(tmp_path: Path) -> None:
    path = killed_with_room(tmp_path)
    torn = without_room(path)[:60]
    with path.open("r+b") as file:
        file.seek(len(without_room(path)))
        file.write(torn)
    assert len(work.verdict(tmp_path).torn) == 1
    told: list[str] = []
    with opened(tmp_path, told=told.append) as journal:
        journal.append([body("c")], durable=True)
    assert calls(tmp_path) == ["a", "b", "c"]
    (aside,) = (tmp_path / "journal").glob("*.torn-*")
    assert aside.read_bytes() == torn
    assert "unfinished record" in told[0]
    assert work.verdict(tmp_path).ok


def test_records_overwritten_with_zeros_to_look_like_room_are_found_as_a_cut_tail_is(tmp_path: Path) -> None:
    path = killed_with_room(tmp_path)
    anchor = Seals(str(tmp_path))().anchor(work.verdict(tmp_path).heads, 5.0)
    assert work.verdict(tmp_path, anchor).ok
    whole = path.read_bytes()
    last = chain.scan(path.name.removesuffix(".open"), without_room(path)).records[-1]
    path.write_bytes(whole[: last.offset] + bytes(len(whole) - last.offset))
    blanked = work.verdict(tmp_path), work.verdict(tmp_path, anchor)
    path.write_bytes(whole[: last.offset])
    assert blanked == (work.verdict(tmp_path), work.verdict(tmp_path, anchor))
    assert "the end was cut off" in blanked[1].flaws[0].why


def test_closing_a_segment_cuts_its_room_and_zeros_behind_its_end_are_a_flaw(tmp_path: Path) -> None:
    with opened_with_room(tmp_path) as journal:
        journal.rotate()
        (sealed,) = work.segment_paths(tmp_path, ".seg")
        assert sealed.read_bytes() == without_room(sealed)
        assert work.verdict(tmp_path).ok
    with sealed.open("ab") as file:
        file.write(bytes(-sealed.stat().st_size % 4096 + 4096))
    assert "something follows the end" in work.verdict(tmp_path).flaws[0].why


def test_a_killed_host_s_segment_with_room_is_closed_like_any_other(tmp_path: Path) -> None:
    path = killed_with_room(tmp_path)
    with opened(tmp_path, bounds=Bounds(continued_bytes_max=1)) as journal:
        journal.append([body("c")], durable=True)
        journal.tidy()
    (sealed,) = work.segment_paths(tmp_path, ".seg")
    assert sealed.name.removesuffix(".seg") == path.name.removesuffix(".open")
    assert sealed.read_bytes() == without_room(sealed)
    assert work.verdict(tmp_path).ok


def test_a_hole_is_a_flaw(tmp_path: Path) -> None:
    """Of a running host, of one that has ended, in a closed segment."""
    with opened(tmp_path) as journal:
        for number in range(40):
            journal.append([body(str(number))], durable=True)
        (path,) = work.segment_paths(tmp_path)
        whole = path.read_bytes()
        assert punched(path, 1024, 512).flaws
        path.write_bytes(whole)
        journal.rotate()
        (sealed,) = work.segment_paths(tmp_path, ".seg")
        closed = sealed.read_bytes()
        assert punched(sealed, 1024, 512).flaws
        sealed.write_bytes(closed)
        journal.append([body("last")] * 40, durable=True)
        (path,) = work.segment_paths(tmp_path)
    assert work.verdict(tmp_path).ok
    assert punched(path, 1024, 512).flaws
    with pytest.raises(Trouble, match="is damaged"), opened(tmp_path) as journal:
        journal.append([body("after")], durable=True)


def punched(path: Path, offset: int, length: int) -> reading.Verdict:
    data = path.read_bytes()
    path.write_bytes(data[:offset] + bytes(length) + data[offset + length :])
    return work.verdict(path.parent.parent)


def test_a_hole_where_a_host_left_room_is_what_a_power_failure_leaves_and_is_named(tmp_path: Path) -> None:
    path = killed_with_room(tmp_path)
    with path.open("r+b") as file:
        file.seek(len(without_room(path)) + 2000)
        file.write(b"something of a record that came to the disk before the one in front of it")
    found = path.read_bytes()
    verdict = work.verdict(tmp_path)
    assert (verdict.ok, len(verdict.torn), verdict.records) == (True, 1, 3)
    with opened(tmp_path) as journal:
        journal.append([body("c")], durable=True)
    assert calls(tmp_path) == ["a", "b", "c"]
    (aside,) = (tmp_path / "journal").glob("*.torn-*")
    assert aside.read_bytes().strip(b"\0") in found
    assert work.verdict(tmp_path).ok


def test_attack_a_segment_with_room_is_blanked_from_its_beginning(tmp_path: Path) -> None:
    """The records behind are those of calls that ended: a hole before them is no accident of the power."""
    path = killed_with_room(tmp_path)
    with opened(tmp_path) as journal:
        journal.append([body("b", "end")], durable=True)
        found = path.read_bytes()
    path.write_bytes((bytes(70) + found[70:]).ljust(ROOM_BYTES, b"\0"))
    (flaw,) = work.verdict(tmp_path).flaws
    assert flaw.number == 1
    with pytest.raises(Trouble, match="is damaged"), opened(tmp_path) as journal:
        journal.append([body("c")], durable=True)


@pytest.mark.parametrize("done", [0, 1000])
def test_k03_where_there_is_no_room_to_be_had_records_are_appended(tmp_path: Path, done: int) -> None:
    tried = threading.Event()

    def fill(descriptor: int, data: bytes, offset: int) -> int:
        tried.set()
        if not done:
            raise OSError(errno.ENOSPC, "no space left on device")
        return os.pwrite(descriptor, data[:done], offset)

    with opened(tmp_path, disk=Disk(fill=fill), bounds=ROOMY) as journal:
        journal.append([body("a")], durable=False)
        assert tried.wait(WAIT)
        journal.append([body("b")], durable=True)
        journal.rotate()
    assert calls(tmp_path) == ["a", "b"]
    assert work.verdict(tmp_path).ok


@pytest.mark.battery("J04")
def test_j04_a_journal_cut_off_under_a_running_host_is_noticed(tmp_path: Path) -> None:
    told: list[str] = []
    with opened(tmp_path, told=told.append, bounds=Bounds(flush_s=0)) as journal:
        journal.append([body("a"), body("b")], durable=True)
        (path,) = work.segment_paths(tmp_path)
        os.truncate(path, 100)
        journal.append([body("c")], durable=False)
        os.truncate(path, 100)
        with pytest.raises(Trouble, match="cut off"):
            journal.append([], durable=True)
    assert "a new segment is begun" in told[0]


@pytest.mark.battery("J04")
@pytest.mark.parametrize("is_roomy", [False, True])
def test_j04_a_journal_cut_off_before_the_next_record_is_noticed_and_missed(
    tmp_path: Path, is_roomy: bool
) -> None:
    told: list[str] = []
    bounds = Bounds(room_after=1 if is_roomy else 1000, flush_s=0)
    filling = Filling()
    with opened(tmp_path, told=told.append, bounds=bounds, disk=Disk(fill=filling)) as journal:
        journal.append([body("a"), body("b")], durable=not is_roomy)
        assert not is_roomy or filling.done.wait(WAIT)
        journal.append([body("c")], durable=True)
        (path,) = work.segment_paths(tmp_path)
        os.truncate(path, 100)
        with pytest.raises(Trouble, match="cut off"):
            journal.append([body("d")], durable=True)
        journal.append([body("after")], durable=True)
    assert "a new segment is begun" in told[0]
    assert {flaw.segment for flaw in work.verdict(tmp_path).flaws} == {path.stem}


@pytest.mark.battery("J04")
def test_j04_a_journal_cut_off_after_the_last_record_is_missed(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=Bounds(flush_s=0)) as journal:
        journal.append([body("a"), body("b")], durable=True)
        (path,) = work.segment_paths(tmp_path)
        whole = path.stat().st_size
        placed(journal, body("c")).write()  # and the background, which would notice as well, is not woken
        os.truncate(path, whole)
        with pytest.raises(Trouble, match="cut off"):
            journal.append([], durable=True)
        journal.append([body("after")], durable=True)
    (flaw,) = work.verdict(tmp_path).flaws
    assert flaw.segment == path.stem
    assert "the end was cut off" in flaw.why


def test_whoever_reads_beside_a_writer_sees_no_damage(tmp_path: Path) -> None:
    long = orjson.dumps({"what": "begin", "ts": 1.0, "call": "long", "text": "x" * 9_000})
    with opened_with_room(tmp_path) as journal:

        def write() -> None:
            for number in range(1500):
                journal.append([long, body(str(number))], durable=False)

        writing = threading.Thread(target=write)
        writing.start()
        while writing.is_alive():
            verdict = work.verdict(tmp_path)
            assert (verdict.flaws, verdict.torn) == ((), ())
    assert len(calls(tmp_path)) == 3001


# -- rotation and retention ---------------------------------------------------------------------------------


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_rotation_closes_a_segment_signed_and_the_next_one_names_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a")], durable=True)
        journal.rotate()
        journal.append([body("b")], durable=True)
        assert len(work.segment_paths(tmp_path, ".seg")) == 1
    assert calls(tmp_path) == ["a", "b"]
    assert work.verdict(tmp_path).ok
    numbers = [entry.number for entry in work.records(tmp_path, own=True)]
    assert numbers == sorted(numbers)
    (sealed,) = work.segment_paths(tmp_path, ".seg")
    sealed.unlink()
    verdict = work.verdict(tmp_path)
    assert not verdict.ok
    assert "the segment is missing" in verdict.flaws[0].why


def test_a_call_that_runs_while_its_host_rotates_is_never_taken_for_interrupted(tmp_path: Path) -> None:
    found: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        found.append(len(reading.interrupted(work.journal(tmp_path))))
        return os.write(descriptor, data)

    with opened(tmp_path, disk=Disk(write=write)) as journal:
        journal.append([body("a")], durable=True)
        found.clear()
        journal.rotate()
        assert found == [0, 0], (
            "before the old one's last records are written, and before the new one's first"
        )
        assert reading.interrupted(work.journal(tmp_path)) == []
    assert [entry.call for entry in reading.interrupted(work.journal(tmp_path))] == ["a"]


def test_rotation_comes_by_itself_in_the_background(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=Bounds(segment_bytes_max=10_000, flush_s=0.001)) as journal:
        number = 0
        while not work.segment_paths(tmp_path, ".seg"):
            journal.append([body(str(number))], durable=number % 7 == 0)
            number += 1
            assert number < 1_000_000
    assert calls(tmp_path) == [str(count) for count in range(number)]
    assert work.verdict(tmp_path).ok


def gaps(state: Path) -> list[int]:
    """Return how many records stand before each checkpoint, and after the last one."""
    found, count = [], 0
    for entry in work.records(state, own=True):
        if entry.what == "checkpoint":
            found.append(count)
            count = 0
        else:
            count += 1
    return [*found, count]


UNATTENDED = Bounds(signed_every=10**9, flush_s=WAIT)
"""No background signs: the one that records does, where it must."""
MANY = chain.UNSIGNED_MAX


def test_a_checkpoint_comes_before_the_2049th_record_without_one_and_no_sooner(tmp_path: Path) -> None:
    assert MANY == 2048
    with opened(tmp_path, bounds=UNATTENDED) as journal:
        for number in range(MANY - 1):  # and its opening
            journal.append([body(str(number))], durable=False)
        assert gaps(tmp_path) == [MANY]
        journal.append([body("one")], durable=True)
        assert gaps(tmp_path) == [MANY, 1]
        journal.append([body("two")], durable=True)
        assert gaps(tmp_path) == [MANY, 2]
        assert work.verdict(tmp_path).ok


def test_of_records_that_come_at_once_no_more_than_2048_follow_a_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=UNATTENDED) as journal:
        journal.append([body(str(number)) for number in range(3 * MANY)], durable=True)
        journal.append([body("x" * 100_000)] * 3, durable=True)
    assert gaps(tmp_path) == [MANY, MANY, MANY, 4]
    assert work.verdict(tmp_path).ok


def test_many_writers_leave_no_more_than_2048_records_without_a_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=UNATTENDED) as journal:

        def write(size: int) -> None:
            for number in range(40):
                journal.append([body(f"{size}-{number}")] * size, durable=number % 2 == 0)

        threads = [threading.Thread(target=write, args=(size,)) for size in (1, 2, 3, 50, 64, 100, 7, 23)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = gaps(tmp_path)
    assert sum(found) == 40 * 250 + 1
    assert set(found[:-1]) == {MANY}
    assert work.verdict(tmp_path).ok


def test_a_host_killed_before_it_signed_is_signed_by_the_next_one_first(tmp_path: Path) -> None:
    journal = segments(tmp_path, bounds=UNATTENDED)
    journal.append([body(str(number)) for number in range(MANY - 1)], durable=True)
    assert journal._segment is not None
    os.close(journal._segment.pen.descriptor)  # as if it were killed
    with opened(tmp_path, bounds=UNATTENDED) as journal:
        journal.append([body("a")], durable=True)
        assert gaps(tmp_path) == [MANY, 2]
    assert len(work.segment_paths(tmp_path)) == 1
    assert work.verdict(tmp_path).ok


def test_a_segment_with_2048_records_without_a_checkpoint_can_be_closed(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=UNATTENDED) as journal:
        journal.append([body(str(number)) for number in range(MANY - 1)], durable=True)
        journal.rotate()
    assert gaps(tmp_path) == [MANY, 1, 1]  # the closing of one, the opening of the next
    assert work.verdict(tmp_path).ok


def test_what_a_slow_writer_recorded_is_signed_within_a_minute(tmp_path: Path) -> None:
    assert Bounds().signed_within_s <= 30
    bounds = Bounds(flush_s=0.001, signed_within_s=0.002)
    with opened(tmp_path, bounds=bounds) as journal:
        for durable in (True, False):
            journal.append([body("a")], durable=durable)
            until(lambda: gaps(tmp_path)[-1] == 0)
            assert work.verdict(tmp_path).unsigned == 0
        signed = len(gaps(tmp_path))
    assert len(gaps(tmp_path)) == signed  # nothing was written since, and nothing is signed twice


def test_a_host_that_has_signed_before_signs_at_its_end(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=Bounds(signed_every=10, flush_s=WAIT)) as journal:
        journal.append([body(str(number)) for number in range(10)], durable=True)
        journal._sign()
        journal.append([body("last")], durable=True)
    assert gaps(tmp_path) == [11, 1, 0]


def test_checkpoints_come_by_themselves_in_the_background(tmp_path: Path) -> None:
    with opened(tmp_path, bounds=Bounds(signed_every=10, flush_s=0.001)) as journal:
        journal.append([body(str(number)) for number in range(10)], durable=False)
        until(lambda: gaps(tmp_path) == [11, 0])


def test_a_cut_tail_is_found_with_an_anchor_and_only_with_one(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a")], durable=True)
        journal.append([body("b")], durable=True)
    verdict = work.verdict(tmp_path)
    anchor = Seals(str(tmp_path))().anchor(verdict.heads, 5.0)
    assert work.verdict(tmp_path, anchor).ok
    entries = work.records(tmp_path, own=True)
    (path,) = work.segment_paths(tmp_path)
    second = next(
        record
        for record in chain.scan(path.name.removesuffix(".open"), path.read_bytes()).records
        if record.number == entries[2].number
    )
    path.write_bytes(path.read_bytes()[: second.offset])
    assert work.verdict(tmp_path).ok
    verdict = work.verdict(tmp_path, anchor)
    assert [flaw.number for flaw in verdict.flaws] == [anchor.heads[0].number]
    assert "cut off" in verdict.flaws[0].why


def test_old_segments_go_whole_and_the_journal_still_verifies(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    with opened(tmp_path, clock=clock, bounds=Bounds(retention_days=2)) as journal:
        journal.append([body("old")], durable=True)
        journal.rotate()
        (sealed,) = work.segment_paths(tmp_path, ".seg")
        os.utime(sealed, (clock.now, clock.now))
        journal.append([body("new")], durable=True)
        clock.now += 86_400
        journal.tidy()
        assert sealed.exists()
        clock.now += 2 * 86_400
        journal.tidy()
        assert not sealed.exists()
        journal.append([body("newer")], durable=True)
    assert calls(tmp_path) == ["new", "newer"]
    assert work.verdict(tmp_path).ok


def test_segments_made_after_a_clock_that_once_stood_in_the_future_grow_old_and_go(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    future = clock.now + 70 * 365 * 86_400
    bounds = Bounds(retention_days=2)
    with opened(tmp_path, clock=Clock(future), bounds=bounds) as journal:
        journal.append([body("future")], durable=True)
        journal.rotate()
    with opened(tmp_path, clock=clock, bounds=bounds) as journal:
        journal.append([body("old")], durable=True)
        journal.rotate()
        for sealed in work.segment_paths(tmp_path, ".seg"):
            os.utime(sealed, (clock.now, clock.now))
        journal.append([body("new")], durable=True)
        clock.now += 86_400
        journal.tidy()
        assert calls(tmp_path) == ["future", "old", "new"]
        clock.now += 2 * 86_400
        journal.tidy()
    assert calls(tmp_path) == ["new"]
    assert work.verdict(tmp_path).ok


def left_behind(state: Path) -> None:
    """The segments of two hosts that are gone long since."""
    with opened(state) as one, opened(state) as other:
        one.append([body("one")], durable=True)
        other.append([body("other")], durable=True)
    for path in work.segment_paths(state):
        os.utime(path, (1.0, 1.0))


def test_segments_that_nobody_continues_are_closed_by_a_later_host(tmp_path: Path) -> None:
    left_behind(tmp_path)
    with opened(tmp_path) as journal:
        journal.append([body("later")], durable=True)
        journal.tidy()
        assert len(work.segment_paths(tmp_path, ".seg")) == 1
    assert sorted(calls(tmp_path)) == ["later", "one", "other"]
    assert work.verdict(tmp_path).ok


def test_a_segment_that_another_host_closed_is_missed_when_it_goes(tmp_path: Path) -> None:
    left_behind(tmp_path)
    with opened(tmp_path) as journal:
        journal.append([body("later")], durable=True)
        journal.tidy()
    (closed,) = work.segment_paths(tmp_path, ".seg")
    closed.unlink()
    assert "the segment is missing" in work.verdict(tmp_path).flaws[0].why


def killed_at(moment: int, state: Path, work: Callable[[Segments], None]) -> bool:
    """Run a host that is gone, as after SIGKILL, when it touches the disk for the so-manieth time in
    ``work``. False: it was over before."""
    pid = os.fork()
    if pid == 0:
        left = 0

        def come(act: Callable[..., Any]) -> Callable[..., Any]:
            def acts(*given: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return act(*given)

            return acts

        status = 1
        with suppress(BaseException):
            journal = segments(state, disk=Disk(write=come(os.write), sync=come(os.fsync)))
            journal.append([body("mine")], durable=True)
            left = moment
            work(journal)
            status = 0
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.parametrize("work_done", [Segments.rotate, Segments.tidy], ids=["rotating", "tidying"])
def test_attack_a_closed_segment_taken_away_unseen_where_its_host_was_killed_before_it_was_named(
    tmp_path: Path, work_done: Callable[[Segments], None]
) -> None:
    moment = closed = 0
    is_killed = True
    while is_killed:
        moment += 1
        state = tmp_path / str(moment)
        with opened(state) as one, opened(state) as other:
            one.append([body("one")], durable=True)
            other.append([body("other")], durable=True)
        for path in work.segment_paths(state):
            os.utime(path, (1.0, 1.0))
        is_killed = killed_at(moment, state, work_done)
        assert work.verdict(state).ok
        for path in work.segment_paths(state, ".seg"):
            closed += 1
            data = path.read_bytes()
            path.write_bytes(data[: chain.scan(path.stem, data).records[-2].offset])
            assert "the end was cut off" in work.verdict(state).flaws[0].why
            path.unlink()
            assert "the segment is missing" in work.verdict(state).flaws[0].why
            path.write_bytes(data)
        with opened(state) as later:
            later.append([body("later")], durable=True)
            later.tidy()
        assert work.verdict(state).ok
        assert sorted(calls(state)) == ["later", "mine", "one", "other"]
    assert moment > 4
    assert closed


def test_what_a_full_disk_keeps_from_being_named_is_not_closed(tmp_path: Path) -> None:
    """Else nobody would miss it, for as long as the journal is kept."""
    left_behind(tmp_path)
    is_full = False

    def write(descriptor: int, data: bytes) -> int:
        if is_full and b'"sealed"' in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)

    with opened(tmp_path, disk=Disk(write=write)) as journal:
        journal.append([body("later")], durable=True)
        is_full = True
        with pytest.raises(Trouble, match="no space left"):
            journal.tidy()
        assert not work.segment_paths(tmp_path, ".seg")
        assert work.verdict(tmp_path).ok
        is_full = False
        journal.append([body("last")], durable=True)
        for path in work.segment_paths(tmp_path):
            os.utime(path, (1.0, 1.0))
        journal.tidy()
    assert work.segment_paths(tmp_path, ".seg")
    for path in work.segment_paths(tmp_path, ".seg"):
        data = path.read_bytes()
        path.unlink()
        assert "the segment is missing" in work.verdict(tmp_path).flaws[0].why
        path.write_bytes(data)
    assert work.verdict(tmp_path).ok


def test_hosts_that_make_one_call_each_close_and_remove_what_is_old(tmp_path: Path) -> None:
    """As from a command line: no host lives long enough for the background."""
    clock = Clock(1_800_000_000.0)
    bounds = Bounds(retention_days=3, flush_s=WAIT)
    for day in range(8):
        clock.now += 86_401
        with opened(tmp_path, clock=clock, bounds=bounds) as journal:
            journal.append([body(str(day))], durable=True)
    assert len(work.segment_paths(tmp_path)) == 1
    assert len(work.segment_paths(tmp_path, ".seg")) <= 3
    assert calls(tmp_path)[-2:] == ["6", "7"]
    assert work.verdict(tmp_path).ok


def tidying(state: Path, meanwhile: Callable[[], None], **more: Any) -> Segments:
    """A host beside which another does something while this one signs what it closes or removes."""
    seals = Seals(str(state))

    def seal() -> Any:
        meanwhile()
        return seals()

    return Segments(work.journal(state), seal=seal, **more)


def test_attack_a_closed_segment_taken_away_unseen_where_another_host_begins_one_meanwhile(
    tmp_path: Path,
) -> None:
    left_behind(tmp_path)
    new = Path(work.journal(tmp_path), f"{9 * 10**16}-1-00000000.new")
    journal = tidying(tmp_path, lambda: new.unlink(missing_ok=True))
    try:
        journal.append([body("later")], durable=True)
        new.touch()
        journal.tidy()
    finally:
        journal.close()
    assert not new.exists()
    (closed,) = work.segment_paths(tmp_path, ".seg")
    closed.unlink()
    assert "the segment is missing" in work.verdict(tmp_path).flaws[0].why


def test_hosts_that_remove_what_is_old_at_once_remove_all_of_it(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    results = tmp_path / "results"
    results.mkdir()
    (results / "old").touch()
    with opened(tmp_path, clock=clock) as journal, opened(tmp_path, clock=clock) as other:
        for day in range(4):
            journal.append([body(str(day))], durable=True)
            journal.rotate()
        other.append([body("left")], durable=True)
    old = work.segment_paths(tmp_path, ".seg")
    for path in (*old, *work.segment_paths(tmp_path), results / "old"):
        os.utime(path, (clock.now, clock.now))
    clock.now += 3 * 86_400
    # The other host is faster with one of them before this one has read them, and with another before it has
    # removed any.
    faster = iter(old[:2])
    journal = tidying(
        tmp_path,
        lambda: next(faster, old[0]).unlink(missing_ok=True),
        clock=clock,
        bounds=Bounds(retention_days=2, tidied_at_once=1),
        beside=[str(results)],
    )
    try:
        journal.append([body("new")], durable=True)
        journal.tidy()
    finally:
        journal.close()
    assert next(faster, None) is None
    assert not any(path.exists() for path in old)
    assert not (results / "old").exists()
    assert work.verdict(tmp_path).ok


def test_an_anchor_holds_when_what_it_names_was_removed_and_so_was_the_record_of_that(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    anchor = None
    with opened(tmp_path, clock=clock, bounds=Bounds(retention_days=2)) as journal:
        for day in range(8):
            journal.append([body(str(day))], durable=True)
            journal.rotate()
            anchor = anchor or Seals(str(tmp_path))().anchor(work.verdict(tmp_path).heads, 5.0)
            clock.now += 86_400
            journal.tidy()
    assert len(work.segment_paths(tmp_path, ".seg")) <= 3
    assert anchor is not None
    assert work.verdict(tmp_path, anchor).ok


def test_files_beside_the_journal_go_with_the_records_of_their_time(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    for folder in (results, elsewhere):
        folder.mkdir()
        (folder / "old").write_text("x", encoding="utf-8")
        os.utime(folder / "old", (clock.now - 3 * 86_400,) * 2)
        (folder / "new").write_text("x", encoding="utf-8")
        os.utime(folder / "new", (clock.now - 86_400,) * 2)
    (tmp_path / "link").symlink_to(elsewhere)
    beside = [str(results), str(tmp_path / "link"), str(tmp_path / "nowhere")]
    with opened(tmp_path, clock=clock, bounds=Bounds(retention_days=2), beside=beside) as journal:
        journal.append([body("a")], durable=True)
        journal.tidy()
    assert [path.name for path in results.iterdir()] == ["new"]
    # Attack: a link in place of the folder, so that we empty another one.
    assert len(list(elsewhere.iterdir())) == 2


@pytest.mark.battery("J08")
def test_j08_a_clock_that_was_set_back_does_not_change_the_order(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    with opened(tmp_path, clock=clock) as journal:
        journal.append([body("a")], durable=True)
        clock.now -= 3600
        journal.append([body("b")], durable=True)
        journal.rotate()
        journal.append([body("c")], durable=True)
    assert calls(tmp_path) == ["a", "b", "c"]
    assert work.verdict(tmp_path).ok


def test_a_journal_that_others_may_write_is_not_rotated_and_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a")], durable=True)
        folder = Path(journal.folder)
        folder.chmod(0o777)
        with pytest.raises(Trouble, match="others may write it"):
            journal.rotate()
        with pytest.raises(Trouble, match="others may write it"):
            journal.append([body("b")], durable=True)
        folder.chmod(0o700)
        journal.append([body("c")], durable=True)
    assert calls(tmp_path) == ["a", "c"]
    assert work.verdict(tmp_path).ok


# -- a disk that does not play along ------------------------------------------------------------------------


@pytest.mark.battery("J04")
@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "hard link"])
def test_j04_a_segment_that_was_replaced_is_refused(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a")], durable=True)
    (path,) = work.segment_paths(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    if kind == "symlink":
        path.symlink_to(elsewhere)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        os.link(elsewhere, path)
    content = elsewhere.read_bytes()
    journal = segments(tmp_path)
    with pytest.raises(Trouble) as trouble:
        journal.append([body("b")], durable=True)
    assert path.name in trouble.value.why
    assert elsewhere.read_bytes() == content
    journal.close()


@pytest.mark.battery("J04")
@pytest.mark.parametrize("place", ["nothing", "symlink", "fifo", "file"])
def test_j04_a_journal_moved_away_under_a_running_host_is_noticed(tmp_path: Path, place: str) -> None:
    told: list[str] = []
    bounds = Bounds(flush_s=0)  # look every time
    with opened(tmp_path, told=told.append, bounds=bounds) as journal:
        journal.append([body("a")], durable=True)
        folder = tmp_path / "journal"
        folder.rename(tmp_path / "away")
        if place == "symlink":
            folder.symlink_to(tmp_path / "away")
        elif place == "fifo":
            os.mkfifo(folder)
        elif place == "file":
            folder.write_text("x", encoding="utf-8")
        with pytest.raises(Trouble, match="taken away"):
            journal.append([body("b")], durable=True)
        assert "taken away" in told[0]
        if place != "nothing":
            with pytest.raises(Trouble):
                journal.append([body("c")], durable=True)
            folder.unlink()
        journal.append([body("d")], durable=True)
    assert calls(tmp_path) == ["d"]
    assert work.verdict(tmp_path).ok


def test_a_reader_never_makes_a_host_refuse_or_count_what_is_not_there(tmp_path: Path) -> None:
    """Readers ask whether a segment is held, for which they lock it for a moment."""
    Seals(str(tmp_path))()
    over = threading.Event()
    bad: list[object] = []

    def read() -> None:
        seen = 0
        while not over.is_set():
            verdict = work.verdict(tmp_path)
            bad.extend((*verdict.flaws, *verdict.torn))
            if verdict.records < seen:
                bad.append(verdict)
            seen = verdict.records

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(40):
            with opened(tmp_path) as journal:
                journal.append([body(str(number))], durable=True)
                if number % 5 == 0:
                    journal.rotate()
    finally:
        over.set()
        for reader in readers:
            reader.join(WAIT)
    assert bad == []
    assert sorted(calls(tmp_path), key=int) == [str(number) for number in range(40)]


@pytest.mark.battery("J04")
def test_j04_a_journal_folder_that_is_a_link_or_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "journal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Trouble):
        segments(tmp_path).append([body("a")], durable=True)
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal").chmod(0o777)
    with pytest.raises(Trouble, match="others may write"):
        segments(tmp_path).append([body("a")], durable=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def failing(times: int, error: int, *, after: int = 0) -> Callable[[int, bytes], int]:
    """A write that fails ``times`` times after ``after`` good ones."""
    state = {"left": times, "good": after}

    def write(descriptor: int, data: bytes) -> int:
        if state["good"] > 0:
            state["good"] -= 1
            return os.write(descriptor, data)
        if state["left"] > 0:
            state["left"] -= 1
            raise OSError(error, os.strerror(error))
        return os.write(descriptor, data)

    return write


@pytest.mark.battery("K03", "J04")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_k03_a_write_that_fails_leaves_no_half_record_and_passes(
    tmp_path: Path, error: int, after: int
) -> None:
    disk = Disk(write=failing(1, error, after=after))
    told: list[str] = []
    reasons: list[str] = []
    with opened(tmp_path, disk=disk, bounds=Bounds(flush_s=WAIT)) as journal:
        for number in range(5):
            try:
                journal.append([body(str(number))], durable=True)
                told.append(str(number))
            except Trouble as trouble:
                reasons.append(trouble.why)
    assert len(told) == 4
    assert [os.strerror(error).lower() in why for why in reasons] == [True]
    assert calls(tmp_path) == told
    assert work.verdict(tmp_path).ok


@pytest.mark.battery("K03")
def test_k03_a_short_write_is_completed_or_taken_back(tmp_path: Path) -> None:
    def dripping(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[:7])

    with opened(tmp_path / "drips", disk=Disk(write=dripping)) as journal:
        journal.append([body("a"), body("b")], durable=True)
    assert calls(tmp_path / "drips") == ["a", "b"]

    def short(descriptor: int, data: bytes) -> int:
        if not state["stopped"]:
            state["stopped"] = True
            return os.write(descriptor, data[:30])
        raise OSError(errno.ENOSPC, "no space left on device")

    state = {"stopped": True}
    disk: dict[str, Callable[[int, bytes], int]] = {"write": os.write}
    with opened(tmp_path / "full", disk=Disk(write=lambda fd, data: disk["write"](fd, data))) as journal:
        journal.append([body("a")], durable=True)
        state["stopped"] = False
        disk["write"] = short
        with pytest.raises(Trouble):
            journal.append([body("lost")], durable=True)
        disk["write"] = os.write
        journal.append([body("b")], durable=True)
    assert calls(tmp_path / "full") == ["a", "b"]
    assert work.verdict(tmp_path / "full").ok


@pytest.mark.battery("K03")
def test_k03_everybody_who_waits_for_a_failed_write_is_told(tmp_path: Path) -> None:
    gate, inside = threading.Event(), threading.Event()
    state = {"full": False}

    def write(descriptor: int, data: bytes) -> int:
        if state["full"]:
            inside.set()
            assert gate.wait(WAIT)
            raise OSError(errno.ENOSPC, "no space left on device")
        return os.write(descriptor, data)

    failed: list[str] = []

    def one(name: str) -> None:
        try:
            journal.append([body(name)], durable=True)
        except Trouble:
            failed.append(name)

    with opened(tmp_path, disk=Disk(write=write)) as journal:
        journal.append([body("before")], durable=True)
        state["full"] = True
        threads = [threading.Thread(target=one, args=(f"t{number}",)) for number in range(8)]
        threads[0].start()
        assert inside.wait(WAIT)
        for thread in threads[1:]:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join(WAIT)
        assert sorted(failed) == [f"t{number}" for number in range(8)]
        state["full"] = False
        journal.append([body("after")], durable=True)
    assert calls(tmp_path) == ["before", "after"]
    assert work.verdict(tmp_path).ok


@pytest.mark.battery("K03")
def test_k03_after_a_failed_sync_the_segment_is_given_up(tmp_path: Path) -> None:
    """fsyncgate: the second sync of the same file would say that all is well."""
    state = {"broken": False}

    def sync(descriptor: int) -> None:
        if state["broken"]:
            state["broken"] = False
            raise OSError(errno.EIO, "input/output error")
        os.fdatasync(descriptor)

    told: list[str] = []
    with opened(tmp_path, disk=Disk(sync=sync), told=told.append, bounds=Bounds(flush_s=WAIT)) as journal:
        journal.append([body("a")], durable=True)
        (first,) = work.segment_paths(tmp_path)
        state["broken"] = True
        with pytest.raises(Trouble, match="input/output error"):
            journal.append([body("unknown")], durable=True)
        journal.append([body("b")], durable=True)
        (second,) = work.segment_paths(tmp_path)
        assert second != first
    assert "a new segment is begun" in told[0]
    assert calls(tmp_path)[-1] == "b"
    assert work.verdict(tmp_path).ok


@pytest.mark.battery("K03")
@pytest.mark.parametrize("fails", [1, 2], ids=["once", "for the one that names it as well"])
@pytest.mark.parametrize("gone", ["taken away", "cut off"])
def test_attack_a_segment_that_was_given_up_after_a_failed_sync_goes_unseen(
    tmp_path: Path, gone: str, fails: int
) -> None:
    state = {"fails": 0}

    def sync(descriptor: int) -> None:
        if state["fails"]:
            state["fails"] -= 1
            raise OSError(errno.EIO, "input/output error")
        os.fdatasync(descriptor)

    with opened(tmp_path, disk=Disk(sync=sync), bounds=Bounds(flush_s=WAIT)) as journal:
        journal.append([body("a"), body("b")], durable=True)
        (first,) = work.segment_paths(tmp_path)
        state["fails"] = fails
        for _ in range(fails):
            with pytest.raises(Trouble, match="input/output error"):
                journal.append([body("unknown")], durable=True)
        journal.append([body("after")], durable=True)
    assert work.verdict(tmp_path).ok
    path = first.with_suffix(".seg")
    whole = path.read_bytes()
    kept = chain.scan(first.stem, whole).records[3].offset  # behind the opening, a and b
    path.write_bytes(whole[:kept])
    assert work.verdict(tmp_path).ok  # what was not synced may be lost
    if gone == "taken away":
        path.unlink()
    else:
        path.write_bytes(whole[: kept - 1])
    assert {flaw.segment for flaw in work.verdict(tmp_path).flaws} == {first.stem}


@pytest.mark.battery("K03")
@pytest.mark.parametrize("how", ["synced", "kept by a rotation"])
def test_attack_a_segment_in_doubt_is_forgotten_because_another_record_is_on_the_disk(
    tmp_path: Path, how: str
) -> None:
    """What was on the disk before says nothing about who names the segment now."""
    fails: list[OSError] = []
    disk = Disk(sync=partial(synced_unless, fails))
    with opened(tmp_path, disk=disk, bounds=Bounds(flush_s=WAIT)) as journal:
        journal.append([body("a")], durable=False)
        journal.append([body("b")], durable=True)
        (first,) = work.segment_paths(tmp_path)
        fails.append(OSError(errno.EIO, "input/output error"))
        with pytest.raises(Trouble, match="input/output error"):
            journal.append([body("unknown")], durable=True)
        journal.append([body("after")], durable=how == "synced")
        if how == "kept by a rotation":
            journal.rotate()
    assert work.verdict(tmp_path).ok
    first.with_suffix(".seg").unlink()
    assert {flaw.segment for flaw in work.verdict(tmp_path).flaws} == {first.stem}


def synced_unless(fails: list[OSError], descriptor: int) -> None:
    """A sync that fails as often as it is told to."""
    if fails:
        raise fails.pop()
    os.fdatasync(descriptor)


@pytest.mark.battery("K03")
def test_k03_nobody_goes_on_with_a_segment_whose_sync_failed_while_it_was_closed(tmp_path: Path) -> None:
    fails: list[OSError] = []
    disk = Disk(sync=partial(synced_unless, fails))
    with opened(tmp_path, disk=disk, bounds=Bounds(flush_s=WAIT)) as journal:
        journal.append([body("a")], durable=True)
        (first,) = work.segment_paths(tmp_path)
        fails.append(OSError(errno.EIO, "input/output error"))
        with pytest.raises(Trouble, match="input/output error"):
            journal.rotate()
        journal.append([body("b")], durable=True)
    assert calls(tmp_path) == ["a", "b"]
    assert work.verdict(tmp_path).ok
    with opened(tmp_path) as journal:
        journal.append([body("c")], durable=True)
    path = first.with_suffix(".seg")
    assert b'"b"' not in path.read_bytes()
    assert b'"c"' not in path.read_bytes()
    path.unlink()
    assert {flaw.segment for flaw in work.verdict(tmp_path).flaws} == {first.stem}


@pytest.mark.battery("K03")
def test_attack_a_segment_begun_by_a_rotation_and_given_up_at_its_first_sync_goes_unseen(
    tmp_path: Path,
) -> None:
    """What it opened with was on the disk, and names the one before it."""
    fails: list[OSError] = []
    disk = Disk(sync=partial(synced_unless, fails))
    with opened(tmp_path, disk=disk, bounds=Bounds(flush_s=WAIT)) as journal:
        journal.append([body("a")], durable=True)
        journal.rotate()
        (second,) = work.segment_paths(tmp_path)
        fails.append(OSError(errno.EIO, "input/output error"))
        with pytest.raises(Trouble, match="input/output error"):
            journal.append([body("unknown")], durable=True)
        journal.append([body("after")], durable=True)
    assert work.verdict(tmp_path).ok
    second.with_suffix(".seg").unlink()
    assert {flaw.segment for flaw in work.verdict(tmp_path).flaws} == {second.stem}


@pytest.mark.battery("K03")
def test_attack_a_segment_left_behind_whose_sync_failed_while_it_was_closed_goes_unseen(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as journal:
        journal.append([body("a")], durable=True)
    (left,) = work.segment_paths(tmp_path)
    fails: list[OSError | None] = []

    def sync(descriptor: int) -> None:
        if fails and (error := fails.pop()) is not None:
            raise error
        os.fdatasync(descriptor)

    bounds = Bounds(flush_s=WAIT, continued_bytes_max=0)
    with opened(tmp_path, disk=Disk(sync=sync), bounds=bounds) as journal:
        journal.append([body("b")], durable=True)
        fails[:] = [OSError(errno.EIO, "input/output error"), None]  # what it was left with is synced first
        with pytest.raises(OSError, match="input/output error"):
            journal.tidy()
        journal.append([body("c")], durable=True)
    assert calls(tmp_path) == ["a", "b", "c"]
    assert work.verdict(tmp_path).ok
    left.with_suffix(".seg").unlink()
    assert {flaw.segment for flaw in work.verdict(tmp_path).flaws} == {left.stem}


@pytest.mark.battery("K03")
def test_k03_a_real_file_size_limit_in_a_real_process(tmp_path: Path) -> None:
    program = """
        import resource, sys
        from toolcrib.journal.audit import Seals
        from toolcrib.journal.segments import Segments, Trouble
        sys.dont_write_bytecode = True  # it would be cut short at the limit, and stay so
        state = sys.argv[1]
        journal = Segments(state + "/journal", seal=Seals(state))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        told, refused = [], 0
        for number in range(60):
            try:
                journal.append([b'{"what":"begin","ts":1,"call":"%d"}' % number], durable=True)
                told.append(number)
            except Trouble:
                refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.append([b'{"what":"begin","ts":1,"call":"after"}'], durable=True)
        journal.close()
        print(refused, *told)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
    )
    refused, *told = ended.stdout.split()
    assert int(refused) > 0
    assert calls(tmp_path) == [*told, "after"]
    assert work.verdict(tmp_path).ok


@pytest.mark.battery("K03", "J04")
def test_k03_a_full_file_system_refuses_and_recovers_without_a_restart(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system of 64 KiB")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("tmpfs cannot be mounted here; a machine where root may mount shows this")
    try:
        told: list[str] = []
        with opened(place) as journal:
            journal.append([body("first")], durable=True)
            (place / "filler").write_bytes(b"x")
            with (place / "filler").open("ab", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(bytes(1024))
            reasons = []
            for number in range(200):
                try:
                    journal.append([body(str(number))], durable=True)
                    told.append(str(number))
                except Trouble as trouble:
                    reasons.append(trouble.why)
            assert reasons
            assert all("no space" in why for why in reasons)
            (place / "filler").unlink()
            journal.append([body("after")], durable=True)
        assert calls(place) == ["first", *told, "after"]
        assert work.verdict(place).ok
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.battery("J04")
def test_j04_a_journal_that_may_only_be_read_refuses() -> None:
    """As an ordinary user: permissions do not hold root back."""
    program = """
        import os, sys
        from toolcrib.journal import sealing
        from toolcrib.journal.audit import Seals
        from toolcrib.journal.segments import Segments, Trouble
        "".encode("utf-16-be")  # loaded now: the interpreter may lie where an ordinary user cannot look
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        state = sys.argv[1]
        def one(call):
            journal = Segments(state + "/journal", seal=Seals(state))
            try:
                journal.append([b'{"what":"begin","ts":1,"call":"%s"}' % call.encode()], durable=True)
                return "ok"
            except Trouble as trouble:
                return trouble.why
            finally:
                journal.close()
        print(one("a"))
        (name,) = os.listdir(state + "/journal")
        os.chmod(state + "/journal/" + name, 0o400)
        print(one("file"))
        os.chmod(state + "/journal/" + name, 0o600)
        os.rename(state + "/journal/" + name, state + "/aside")
        os.chmod(state + "/journal", 0o500)
        print(one("folder"))
        os.chmod(state + "/journal", 0o700)
        print(one("b"))
    """
    with tempfile.TemporaryDirectory() as state:  # pytest's own folders are closed to other users
        if os.geteuid() == 0:
            os.chown(state, 65534, 65534)
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), state],
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    first, file, folder, last = ended.stdout.splitlines()
    assert (first, last) == ("ok", "ok")
    assert "permission denied" in file
    assert "permission denied" in folder


def test_a_closed_journal_refuses(tmp_path: Path) -> None:
    journal = segments(tmp_path)
    journal.append([body("a")], durable=True)
    journal.close()
    with pytest.raises(Trouble, match="closed"):
        journal.append([body("b")], durable=True)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    gc.collect()  # what tests before this one left must not be closed in the middle of it
    before = len(os.listdir("/proc/self/fd"))
    disk = Disk(write=failing(3, errno.ENOSPC, after=2))
    with opened(tmp_path, disk=disk) as journal:
        for number in range(10):
            with_trouble = [body(str(number))]
            try:
                journal.append(with_trouble, durable=number % 2 == 0)
            except Trouble:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_key_that_others_may_read_is_refused_for_signing(tmp_path: Path) -> None:
    Seals(str(tmp_path))()
    (tmp_path / "keys" / "journal.key").chmod(0o644)
    with opened(tmp_path, bounds=Bounds(unsigned_max=2)) as journal:
        journal.append([body("a")], durable=True)
        with pytest.raises(Trouble, match="others"):
            journal.append([body("b")], durable=True)


@pytest.mark.battery("K05")
def test_k05_a_key_made_by_two_hosts_at_once_is_one_key(tmp_path: Path) -> None:
    keys: list[bytes] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait(WAIT)
        keys.append(Seals(str(tmp_path))().key)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(set(keys)) == 1
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["journal.key"]


def test_closing_never_waits_for_a_background_that_went_back_to_sleep(tmp_path: Path) -> None:
    for number in range(120):
        journal = segments(tmp_path, bounds=Bounds(flush_s=0.0005))
        journal.append([body(str(number))], durable=False)
        threading.Event().wait(number % 12 * 1e-4)  # around the moment at which the background wakes up
        closing = threading.Thread(target=journal.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()
