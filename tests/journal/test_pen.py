"""The pen: it writes one chain whoever writes, keeps its promises, and leaves no thread waiting.

How a journal uses it is tested in test_segments.py.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.journal.work import until
from tests.strategies import record_bodies
from toolcrib.journal import chain
from toolcrib.journal.pen import Pen, write_all

WAIT_S = 60.0
NAME = "00000000000000001-1-abcdef01"


class Interrupted(BaseException):
    """As a key press is: no Exception."""


@contextmanager
def opened(**more: Any) -> Iterator[Pen]:
    """A pen for a new file."""
    how = {
        "write": os.write,
        "sync": os.fdatasync,
        "look": nothing,
        "look_s": 0.05,
        "checkpoint": checkpoint,
        "unsigned_max": 1 << 40,
        **more,
    }
    with TemporaryFile(buffering=0) as file:
        yield Pen(file.fileno(), 0, chain.start(NAME), 0, **how)


def nothing() -> None:
    pass


def checkpoint(number: int, link: bytes) -> bytes:
    return b"checkpoint of %d" % number


def content(pen: Pen) -> bytes:
    return os.pread(pen.descriptor, os.fstat(pen.descriptor).st_size, 0)


def scanned(pen: Pen) -> list[chain.Record]:
    """What stands in the file, where that is one chain and nothing else."""
    found = chain.scan(NAME, content(pen))
    assert (found.flaw, found.torn) == (None, 0)
    assert [record.number for record in found.records] == list(range(1, len(found.records) + 1))
    return found.records


def started(work: Callable[..., object], *given: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=given, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "it waits for ever"


def asleep(thread: threading.Thread) -> None:
    """Wait until a thread waits: it sleeps whenever one looks."""
    place = Path(f"/proc/self/task/{thread.native_id}/stat")
    if place.exists():
        looks = 0

        def is_asleep() -> bool:
            nonlocal looks
            looks = looks + 1 if place.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "S" else 0
            return looks == 5

        until(is_asleep)


# -- the same bytes -----------------------------------------------------------------------------------------

WAYS = ("place", "append", "append_durably")


@given(
    steps=st.lists(st.tuples(st.sampled_from([*WAYS, "write", "sync", "keep"]), record_bodies), max_size=12),
    pieces=st.integers(1, 2000) | st.none(),
)
@example(steps=[("append", [b"x" * size]) for size in range(200)], pieces=None)
@example(steps=[("append_durably", [bytes(1 << 20), b""])], pieces=None)
def test_whatever_is_appended_in_whatever_way_is_one_chain(
    steps: list[tuple[str, list[bytes]]], pieces: int | None
) -> None:
    """Also where each write takes but a piece of what it is given."""

    def write(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[:pieces])

    with opened(**({} if pieces is None else {"write": write})) as pen:
        link = chain.start(NAME)
        frames: list[bytes] = []
        for way, bodies in steps:
            _stepped(pen, way, bodies)
            for body in bodies if way in WAYS else ():
                frame, link = chain.framed(link, len(frames) + 1, body)
                frames.append(frame)
            assert (pen.number, pen.link) == (len(frames), link)
        pen.sync()
        assert content(pen) == b"".join(frames)
        assert (pen.size, pen.written, pen.kept[0]) == (len(content(pen)), len(frames), len(frames))
        assert len(scanned(pen)) == len(frames)


def _stepped(pen: Pen, way: str, bodies: list[bytes]) -> object:
    if way in WAYS:
        return getattr(pen, way)(bodies)
    return pen.keep(max(0, pen.number - 1)) if way == "keep" else getattr(pen, way)()


def _state(pen: Pen) -> tuple[object, ...]:
    return (
        pen.number, pen.link, pen.size, pen.written, pen.writes, pen.kept, pen.waiting, pen.is_dirty,
        pen.is_over, pen.error, pen.failing,
    )  # fmt: skip


# -- what it answers ----------------------------------------------------------------------------------------


def test_numbers_tell_what_has_its_place_what_is_written_and_what_is_kept() -> None:
    with opened() as pen:
        assert (pen.number, pen.written, pen.kept, pen.is_dirty) == (0, 0, (0, b""), False)
        assert pen.place([b"a", b"b"]) == 2
        assert (pen.number, pen.written, pen.size) == (2, 0, 0)
        assert pen.append((b"c",)) == 3
        assert (pen.written, pen.kept[0], pen.is_dirty, pen.writes) == (3, 0, True, 1)
        assert pen.size == len(content(pen))
        assert pen.keep(2)
        assert (pen.kept, pen.is_dirty) == ((3, pen.link), False)
        assert pen.append_durably([b"d"]) == 4
        assert pen.kept == (4, pen.link)
        assert [record.body for record in scanned(pen)] == [b"a", b"b", b"c", b"d"]


def test_a_number_beyond_the_last_is_never_kept() -> None:
    with opened() as pen:
        pen.append([b"a"])
        assert [pen.keep(number) for number in (2, 3, 2**63, 2**64 - 1)] == [False] * 4
        assert pen.keep(1)
        assert pen.append([b"b"]) == 2


def test_one_that_goes_on_with_what_is_there_counts_it_as_kept() -> None:
    with TemporaryFile(buffering=0) as file:
        how: dict[str, Any] = {
            "write": os.write,
            "sync": os.fdatasync,
            "look": nothing,
            "look_s": 0.0,
            "checkpoint": checkpoint,
        }
        pen = Pen(file.fileno(), 7, b"l" * 32, 100, is_kept=True, **how)
        assert (pen.number, pen.link, pen.size) == (7, b"l" * 32, 100)
        assert (pen.written, pen.kept, pen.is_dirty) == (7, (7, b"l" * 32), False)
        assert pen.append([b"a"]) == 8
        assert content(pen) == chain.framed(b"l" * 32, 8, b"a")[0]


def test_what_soils_the_file_is_synced_with_what_comes_next() -> None:
    synced: list[int] = []
    with opened(sync=synced.append) as pen:
        pen.append_durably([b"a"])
        pen.sync()
        assert len(synced) == 1, "there was nothing new"
        with pen.syncing, pen.writing:
            pen.soil()
        assert pen.is_dirty
        pen.sync()
        assert (len(synced), pen.is_dirty) == (2, False)


def test_what_is_taken_and_settled_counts_as_kept_and_the_chain_goes_on() -> None:
    with opened() as pen:
        pen.place([b"a", b"b"])
        with pen.syncing, pen.writing, pen.placing:
            data = pen.take()
            assert pen.take() == b""
            write_all(os.write, pen.descriptor, data)
            pen.soil()
            pen.settle(len(data))
        assert (pen.size, pen.written, pen.kept, pen.is_dirty) == (len(data), 2, (2, pen.link), False)
        assert pen.append([b"c"]) == 3
        assert len(scanned(pen)) == 3


@pytest.mark.parametrize("more", [[], [b"b"]])
def test_attack_an_interrupt_between_taking_and_settling_leaves_no_gap_in_the_chain(
    more: list[bytes],
) -> None:
    with opened() as pen:
        pen.append([b"0"])
        pen.place([b"a"])
        with pen.syncing, pen.writing, pen.placing:
            pen.take()
        pen.place(more)
        ended(started(pen.write))
        assert (pen.is_over, pen.failing, pen.written) == (True, "write", 1)
        assert pen.append([b"c"]) == 0
        assert not pen.keep(2)
        assert [record.body for record in scanned(pen)] == [b"0"]


def test_nothing_is_placed_by_one_that_was_ended() -> None:
    with opened() as pen:
        pen.append([b"a"])
        pen.place([b"b"])
        with pen.syncing, pen.writing, pen.placing:
            pen.end()
        assert [getattr(pen, way)([b"c"]) for way in WAYS] == [0, 0, 0]
        assert (pen.is_over, pen.failing, pen.error) == (True, "", None)
        pen.write()
        pen.sync()
        assert not pen.keep(2)
        assert [record.body for record in scanned(pen)] == [b"a"]


def test_nothing_is_written_or_waited_for_where_it_was_left() -> None:
    with opened() as pen:
        pen.append([b"a"])
        pen.place([b"b"])
        with ExitStack() as held:
            held.enter_context(pen.syncing)
            held.enter_context(pen.writing)
            pen.leave()
            assert [getattr(pen, way)([b"c"]) for way in WAYS] == [0, 0, 0]
            assert not pen.keep(1)
            pen.write()
            pen.sync()
        assert [record.body for record in scanned(pen)] == [b"a"]


@pytest.mark.parametrize(
    "wrong",
    [None, 1, "text", b"bytes", [None], [1], ["text"], [b"a", "text"], (b"a", 1), [[b"a"]], {"a": 1}],
    ids=repr,
)
def test_what_is_no_record_is_refused_and_nothing_is_lost(wrong: Any) -> None:
    with opened() as pen:
        pen.append([b"a"])
        pen.place([b"b"])
        before = _state(pen)
        for way in WAYS:
            with pytest.raises(TypeError):
                getattr(pen, way)(wrong)
            assert _state(pen) == before
        with pytest.raises(TypeError):
            pen.keep("1")  # type: ignore[arg-type]
        assert pen.append([b"c"]) == 3
        assert [record.body for record in scanned(pen)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda bodies: bodies.append(7), TypeError),
        (lambda bodies: bodies.__setitem__(0, None), TypeError),
        (lambda bodies: bodies.pop(), 1),
        (lambda bodies: None, 2),
    ],
    ids=["longer", "wrong", "shorter", "same"],
)
def test_a_list_that_is_changed_while_it_waits_for_its_place_breaks_nothing(
    change: Callable[[list[Any]], object], said: object
) -> None:
    found: list[object] = []

    def place() -> None:
        try:
            found.append(pen.place(bodies))
        except TypeError as error:
            found.append(type(error))

    bodies: list[Any] = [b"a", b"b"]
    with opened() as pen:
        with pen.placing:
            threads = [started(place), started(pen.append, [b"after"])]
            for thread in threads:
                asleep(thread)
            change(bodies)
        ended(*threads)
        assert found == [said]
        assert b"after" in [record.body for record in scanned(pen)]


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_a_checkpoint_is_placed_over_the_record_before_it() -> None:
    seen: list[tuple[int, bytes]] = []

    def signs(number: int, link: bytes) -> bytes:
        seen.append((number, link))
        return b"signed"

    with opened(checkpoint=signs, unsigned_max=3) as pen:
        assert pen.sign() == 0  # there is nothing to sign
        assert pen.append([b"a", b"b", b"c"]) == 3
        assert seen == []
        assert pen.append([b"d"]) == 5
        records = scanned(pen)
        assert [record.body for record in records] == [b"a", b"b", b"c", b"signed", b"d"]
        assert seen == [(3, records[2].link)]
        assert pen.sign() == pen.sign() == 6
        assert (pen.signed, pen.number) == (6, 6)
        pen.write()
        assert seen[1:] == [(5, scanned(pen)[4].link)]


def test_one_that_goes_on_counts_what_is_unsigned_already() -> None:
    with opened(signed=-2, unsigned_max=3) as pen:
        pen.append([b"a", b"b"])
        assert [record.body for record in scanned(pen)] == [b"a", b"checkpoint of 1", b"b"]


def test_what_cannot_be_signed_has_no_place_and_nothing_is_lost() -> None:
    def fails(number: int, link: bytes) -> bytes:
        raise OSError(errno.EACCES, "no key")

    with opened(checkpoint=fails, unsigned_max=3) as pen:
        pen.append([b"a", b"b"])
        before = _state(pen)
        for way in WAYS:
            with pytest.raises(OSError, match="no key"):
                getattr(pen, way)([b"c", b"d"])
            assert _state(pen) == before
        with pytest.raises(OSError, match="no key"):
            pen.sign()
        assert _state(pen) == before
        assert pen.append([b"c"]) == 3
        ended(started(pen.append_durably, []))
        assert [record.body for record in scanned(pen)] == [b"a", b"b", b"c"]


# -- what fails ---------------------------------------------------------------------------------------------


def test_a_write_that_fails_ends_it_with_its_reason() -> None:
    with opened(write=os.write) as pen:
        pen.append([b"a"])
        null = os.open(os.devnull, os.O_RDONLY)
        kept = os.dup(pen.descriptor)
        try:
            os.dup2(null, pen.descriptor)  # nothing can be written to it
            assert pen.append([b"b"]) == -1
        finally:
            os.dup2(kept, pen.descriptor)
            os.close(kept)
            os.close(null)
        assert isinstance(pen.error, OSError)
        assert (pen.failing, pen.error.errno, pen.error.strerror) == (
            "write", errno.EBADF, os.strerror(errno.EBADF),
        )  # fmt: skip
        assert pen.append([b"c"]) == 0
        assert [record.body for record in scanned(pen)] == [b"a"]


@pytest.mark.parametrize("done", [0, -1])
def test_a_disk_that_takes_nothing_any_more_is_full(done: int) -> None:
    with opened(write=lambda descriptor, data: done) as pen:
        ended(started(pen.append, [b"a"]))
        assert isinstance(pen.error, OSError)
        assert (pen.failing, pen.error.errno, pen.written) == ("write", errno.ENOSPC, 0)


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [(OSError(errno.EIO, "broken"), False), (ValueError("wrong"), True), (Interrupted(), True)],
    ids=["system", "mistake", "interrupt"],
)
def test_what_a_write_raises_ends_it_for_all_and_what_is_no_answer_of_the_disk_is_raised(
    error: BaseException, is_raised: bool
) -> None:
    def write(descriptor: int, data: bytes) -> int:
        raise error

    for way in ("append", "append_durably"):
        with opened(write=write) as pen:
            if is_raised:
                with pytest.raises(type(error)):
                    getattr(pen, way)([b"a"])
            else:
                assert getattr(pen, way)([b"a"]) == -1
            assert (pen.failing, pen.error, pen.is_over) == ("write", error, True)
            ended(started(pen.sync))


@pytest.mark.parametrize("part", ["sync", "look"])
def test_a_sync_or_a_look_that_fails_ends_it_and_an_interrupt_leaves_it_to_the_next(part: str) -> None:
    errors: list[BaseException | None] = []

    def work(*given: int) -> None:
        if errors and (error := errors.pop()) is not None:
            raise error

    with opened(look_s=0.0, **{part: work}) as pen:
        pen.append_durably([b"a"])
        errors.append(Interrupted())
        with pytest.raises(Interrupted):
            pen.append_durably([b"b"])
        assert (pen.kept[0], pen.is_over, pen.is_dirty) == (1, False, True)
        pen.sync()
        assert (pen.kept[0], pen.is_dirty) == (2, False)
        wrong = ValueError("anything")
        errors.append(wrong)
        assert pen.append_durably([b"c"]) == -1
        assert (pen.failing, pen.error, pen.kept[0], pen.written) == (part, wrong, 2, 3)
        assert pen.append_durably([b"d"]) == 0


@pytest.mark.parametrize("part", ["sync", "look"])
def test_attack_a_write_that_fails_after_a_sync_did_does_not_hide_it(part: str) -> None:
    """What a failed sync leaves is unknown, so nobody may go on with it; a full disk leaves all whole."""
    syncing, writing, failed, release = (threading.Event() for _ in range(4))
    is_late = False

    def fails(*given: int) -> None:
        syncing.set()
        assert release.wait(WAIT_S)
        raise OSError(errno.EIO, "unknown")

    def write(descriptor: int, data: bytes) -> int:
        if not is_late:
            return os.write(descriptor, data)
        writing.set()
        assert failed.wait(WAIT_S)
        raise OSError(errno.ENOSPC, "full")

    with opened(write=write, **{part: fails}) as pen:
        first = started(pen.append_durably, [b"a"])
        assert syncing.wait(WAIT_S)
        is_late = True
        second = started(pen.append, [b"b"])
        assert writing.wait(WAIT_S)
        release.set()
        until(lambda: pen.failing == part)
        failed.set()
        ended(first, second)
        assert pen.failing == part
        assert isinstance(pen.error, OSError)
        assert pen.error.errno == errno.EIO


def test_a_look_comes_after_a_sync_and_no_more_often_than_it_should() -> None:
    done: list[str] = []
    often = {"sync": lambda descriptor: done.append("sync"), "look": lambda: done.append("look")}
    with opened(look_s=0.0, **often) as pen:
        pen.append_durably([b"a"])
        pen.append_durably([b"b"])
        assert done == ["sync", "look"] * 2
    done.clear()
    with opened(look_s=1e6, **often) as pen:
        pen.append_durably([b"a"])
        pen.append_durably([b"b"])
        assert done == ["sync", "look", "sync"]


# -- many threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", ["kernel", "python"])
def test_threads_without_order_and_one_that_wants_it_alone_make_one_chain(disk: str) -> None:
    """Nobody is passed over: whoever wants the pen alone gets it while all others write without a pause."""
    count, rounds, alone = 32, 100, 100
    said: list[tuple[int, bytes]] = []
    own: list[bytes] = []
    is_done = threading.Event()

    def write(prefix: int) -> None:
        for number in range(rounds):
            body = b"%d-%d" % (prefix, number)
            if number % 3:
                placed = pen.append([body])
                assert pen.written >= placed
            else:
                placed = pen.append_durably([body])
                assert pen.kept[0] >= placed
            said.append((placed, body))

    def disturb() -> None:
        turns = 0
        while turns < alone or not is_done.is_set():
            turns += 1
            if turns % 4 == 0:
                with pen.syncing, pen.writing, pen.placing:
                    data = pen.take()
                    write_all(os.write, pen.descriptor, data)
                    pen.settle(pen.size + len(data))
            elif turns % 4 == 1:
                with pen.syncing, pen.writing:
                    pen.soil()
            elif turns % 4 == 2:
                with pen.placing:
                    own.append(b"own-%d" % turns)
                    number, link = pen.number, pen.link
                    assert pen.place([own[-1]]) == number + 1
                    assert pen.link == chain.framed(link, number + 1, own[-1])[1]
            else:
                pen.sync()

    how = {} if disk == "kernel" else {"write": _write, "sync": _sync}
    with opened(**how) as pen:
        disturbing = started(disturb)
        threads = [started(write, prefix) for prefix in range(count)]
        ended(*threads)
        is_done.set()
        ended(disturbing)
        pen.sync()
        assert (pen.kept[0], pen.waiting, pen.is_over, pen.error) == (pen.number, 0, False, None)
        assert pen.size == len(content(pen))
        records = scanned(pen)
        placed = {record.number: record.body for record in records}
        assert len(said) == count * rounds
        assert all(placed[number] == body for number, body in said)
        bodies = [record.body for record in records]
        assert sorted(bodies) == sorted([body for _, body in said] + own)
        for prefix in range(count):
            assert [body for body in bodies if body.startswith(b"%d-" % prefix)] == [
                b"%d-%d" % (prefix, number) for number in range(rounds)
            ]


def _write(descriptor: int, data: bytes) -> int:
    return os.write(descriptor, data[:1000])


def _sync(descriptor: int) -> None:
    pass


def test_everybody_who_waits_is_told_when_it_ends() -> None:
    running, release = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        running.set()
        assert release.wait(WAIT_S)
        raise OSError(errno.EIO, "broken")

    said: list[int] = []
    with opened(sync=sync) as pen:
        first = started(lambda: said.append(pen.append_durably([b"a"])))
        assert running.wait(WAIT_S)
        others = [started(lambda: said.append(pen.append_durably([b"b"]))) for _ in range(8)]
        until(lambda: pen.waiting == 8)
        release.set()
        ended(first, *others)
        assert said == [-1] * 9
        assert pen.waiting == 0


@contextmanager
def interrupting(is_due: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the main thread, once, when it waits; told again until it was heard, since a thread that is
    about to wait hears nothing."""
    heard = threading.Event()

    def hear(*given: object) -> None:
        if not heard.is_set():
            heard.set()
            raise Interrupted

    def tell() -> None:
        until(is_due)
        while not heard.wait(0.01):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, hear)
    telling = started(tell)
    try:
        yield
    finally:
        ended(telling)
        signal.signal(signal.SIGUSR1, before)


def test_whoever_is_interrupted_while_it_waits_for_a_sync_leaves_nobody_waiting() -> None:
    running, release = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        running.set()
        assert release.wait(WAIT_S)

    with opened(sync=sync) as pen:
        first = started(pen.append_durably, [b"a"])
        assert running.wait(WAIT_S)
        with pytest.raises(Interrupted), interrupting(lambda: pen.waiting == 1):
            pen.append_durably([b"b"])
        assert pen.waiting == 0
        after = [started(pen.append_durably, [b"c"]) for _ in range(4)]
        until(lambda: pen.waiting == 4)
        release.set()
        ended(first, *after)
        assert pen.kept[0] == 6
        assert len(scanned(pen)) == 6


@pytest.mark.parametrize("turn", ["syncing", "writing", "placing"])
def test_whoever_is_interrupted_while_it_waits_for_a_turn_leaves_it_to_the_next(turn: str) -> None:
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with getattr(pen, turn):
            taken.set()
            assert release.wait(WAIT_S)

    with opened() as pen:
        holding = started(hold)
        assert taken.wait(WAIT_S)
        with pytest.raises(Interrupted), interrupting(taken.is_set), getattr(pen, turn):
            raise AssertionError("it was taken")
        release.set()
        ended(holding, started(pen.append_durably, [b"a"]))
        with getattr(pen, turn):
            pass
        assert len(scanned(pen)) == 1


def test_whoever_is_interrupted_while_it_waits_for_its_place_has_none() -> None:
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pen.placing:
            taken.set()
            assert release.wait(WAIT_S)

    with opened() as pen:
        holding = started(hold)
        assert taken.wait(WAIT_S)
        others = [started(pen.append, [b"b"]) for _ in range(4)]
        with pytest.raises(Interrupted), interrupting(taken.is_set):
            pen.append([b"a"])
        release.set()
        ended(holding, *others)
        assert [record.body for record in scanned(pen)] == [b"b"] * 4


@pytest.mark.parametrize("turn", ["syncing", "writing", "placing"])
def test_a_turn_that_was_not_taken_cannot_be_let_go(turn: str) -> None:
    """Else one that was interrupted would let go what another has."""
    with opened() as pen:
        with getattr(pen, turn):
            pass
        with pytest.raises(RuntimeError):
            getattr(pen, turn).__exit__(None, None, None)
        assert pen.append_durably([b"a"]) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="other systems do not fork")
def test_a_copy_that_leaves_it_neither_hangs_nor_writes_whatever_others_were_doing() -> None:
    is_done = threading.Event()

    def write() -> None:
        while not is_done.is_set():
            pen.append([b"x" * 100])

    with opened() as pen:
        threads = [started(write) for _ in range(4)]
        until(lambda: pen.writes > 10)
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(WAIT_S))
                status = 1
                with suppress(BaseException):
                    pen.leave()
                    said = [pen.append([b"c"]), pen.append_durably([b"c"]), pen.keep(pen.number + 1)]
                    pen.write()
                    pen.sync()
                    with pen.syncing, pen.writing, pen.placing:
                        pen.end()
                    status = 0 if said == [0, 0, False] and pen.waiting == 0 else 2
                os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        is_done.set()
        ended(*threads)
        assert {record.body for record in scanned(pen)} == {b"x" * 100}


ENDS = """
import os, sys, tempfile, threading
from toolcrib.journal.pen import Pen

file, enough = tempfile.TemporaryFile(buffering=0), threading.Event()
how = {"write": os.write, "sync": os.fdatasync, "look": lambda: None, "look_s": 0.0}
how["checkpoint"] = lambda number, link: b"signed"
pen = Pen(file.fileno(), 0, bytes(32), 0, **how)

def write():
    while True:
        if pen.append_durably([b"x"]) > 100:
            enough.set()

def hold():
    while True:
        with pen.syncing, pen.writing, pen.placing:
            pass

for work in [write] * 6 + [hold] * 2:
    threading.Thread(target=work, daemon=True).start()
assert enough.wait(60)
"""


def test_a_host_that_ends_while_others_write_ends() -> None:
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


# -- what it holds ------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_memory_does_not_grow_with_what_is_written() -> None:
    with opened() as pen:

        def write(count: int) -> None:
            for number in range(count):
                pen.append([b"x" * 150, b"y" * (number % 100)])
                with suppress(TypeError):
                    pen.place([None])  # type: ignore[list-item]
            pen.append_durably([b"z" * 1000] * 3000)  # more than is kept for what comes

        write(1_000)
        gc.collect()
        before = resident_bytes()
        write(100_000)
        gc.collect()
        assert resident_bytes() - before < 16 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_memory_does_not_grow_with_the_pens_that_were_used() -> None:
    def sync(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    def use(count: int) -> None:
        for _ in range(count):
            with opened(sync=sync) as pen:
                pen.place([b"x" * 10_000])
                assert pen.append_durably([b"y"]) == -1
                assert pen.error is not None
                with pen.syncing, pen.writing, pen.placing:
                    pen.take()
        gc.collect()

    use(200)
    before = resident_bytes()
    use(2_000)
    assert resident_bytes() - before < 8 << 20


def test_a_pen_that_is_dropped_lets_go_of_all_that_it_was_handed() -> None:
    """Also where what it met refers to it."""

    class Works:
        def __init__(self) -> None:
            self.pens: list[Pen] = []

        def __call__(self, *given: object) -> int:
            raise OSError(errno.EIO, "broken") if self.pens else ValueError("wrong")

    for is_known in (False, True):
        for part in ("write", "sync", "look"):
            works = Works()
            with opened(**{part: works}) as pen:
                if is_known:
                    works.pens.append(pen)
                with suppress(ValueError):
                    pen.append_durably([b"a"])
                assert pen.failing == part
                gone = weakref.ref(works)
                del works, pen
            gc.collect()
            assert gone() is None, part
