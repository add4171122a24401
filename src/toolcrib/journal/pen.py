"""One open segment, written by many threads: records get their place, come into the kernel, onto the disk.

Each thread places its records under one short lock, and the first that comes to the disk writes, or syncs,
for all that wait (leader and followers; no thread per record, no polling). What fails fails for all of them,
and nothing is written after it. A record is known by its number: what is written, or synced, is so up to one.

Nothing here knows what a record says, opens, renames or closes a file, or reports anything: ``segments.py``
does.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from toolcrib.journal.chain import UNSIGNED_MAX, framed


class _Waiter:
    """A thread that waits for a run, or is told to lead the next one."""

    __slots__ = ("gate", "leads")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False


class _Together:
    """Work that many threads want done and that one run does for all who asked before it began.

    Nobody is passed over: a waiter goes on only after a run that began when it was already waiting.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._state = threading.Lock()
        self._is_busy = False
        self._waiting: list[_Waiter] = []
        self.turn = threading.Lock()
        """Held during a run; whoever else holds it keeps runs away."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def done(self, is_done_already: Callable[[], bool] | None = None) -> None:
        """Return when a run that began after this call has ended, or none is needed any more."""
        state = self._state
        mine: _Waiter | None = None
        leads = is_done = False
        covered: Sequence[_Waiter] = ()
        # An interrupt comes where a function is entered or left. All stands in this one, and in these blocks,
        # because one that left nobody to lead would let everybody wait for ever.
        try:
            with state:
                if is_done_already is not None and is_done_already():
                    return
                if self._is_busy:
                    mine = _Waiter()
                    self._waiting.append(mine)
                else:
                    self._is_busy = leads = True
            if mine is not None:
                mine.gate.acquire()
                leads = mine.leads
            if leads:
                with self.turn:
                    if self._waiting:  # who comes after this look waits for the next run
                        with state:
                            covered, self._waiting = self._waiting, []
                    self._work()
            is_done = True
        finally:
            if leads or (mine is not None and not is_done):
                told: Sequence[_Waiter] = ()
                try:
                    with state:
                        if not is_done:  # the others wait for the next one
                            covered, self._waiting = (), [*covered, *self._waiting]
                            if mine is not None and mine in self._waiting:
                                self._waiting.remove(mine)
                        told = covered
                        if leads or (mine is not None and mine.leads):
                            if waiting := self._waiting:
                                leader, self._waiting = waiting[0], waiting[1:]
                                leader.leads = True
                                told = [*covered, leader]
                            else:
                                self._is_busy = False
                    for waiter in told:
                        waiter.gate.release()
                except BaseException:
                    for waiter in told:
                        with suppress(RuntimeError):  # who has gone on does not mind
                            waiter.gate.release()
                    raise


class Pen:
    """One open segment that many threads write.

    ``syncing``, ``writing`` and ``placing`` are locks: while one thread holds ``syncing``, no other syncs.
    Take them in this order. Each is taken and released by one C call, so an interrupt leaves none held.
    """

    def __init__(
        self,
        descriptor: int,
        number: int,
        link: bytes,
        size: int,
        *,
        write: Callable[[int, bytes], int] = os.write,
        sync: Callable[[int], None] = os.fsync,
        look: Callable[[], None] = lambda: None,
        look_s: float = 0.05,
        is_kept: bool = False,
        checkpoint: Callable[[int, bytes], bytes],
        signed: int | None = None,
        unsigned_max: int = UNSIGNED_MAX,
    ) -> None:
        """Write on from ``size``, after the record of this number and link.

        ``checkpoint`` returns the body of a checkpoint over the record of a number and link; it may raise.
        ``signed`` is the number of the last checkpoint, if that is not the last record. ``look`` is called
        after a sync, at most every ``look_s`` seconds. It raises if readers would find another file; then
        nothing counts as synced. ``is_kept``: what is in the file is on the disk.
        """
        self.descriptor = descriptor
        self.number = number
        """Number of the last record that has its place."""
        self.link = link
        self.size = size
        """Bytes in the kernel: the end of the file, without its room."""
        self.written = number
        """Number of the last record in the kernel."""
        self.writes = 0
        self.signed = number if signed is None else signed
        """Number of the last checkpoint, or of the record before the first."""
        self.kept = (number, link) if is_kept else (0, b"")
        """Number and link of the last record on the disk; 0: none is known to be there."""
        self.is_over = False
        """Nothing is placed any more: it was ended, or it failed."""
        self.error: BaseException | None = None
        """Why it failed; None also if the thread that had it alone did not finish."""
        self.failing = ""
        """What failed: "write", "sync", or "look"; empty: nothing did."""
        self._write_to = write
        self._sync_to = sync
        self._look = look
        self._look_s = look_s
        self._checkpoint = checkpoint
        self._unsigned_max = unsigned_max
        self._look_at = 0.0
        self._frames: list[bytes] = []
        self._last = (number, link)
        """Of the last record in the kernel."""
        self._is_soiled = False
        self._is_lent = False
        self._is_left = False
        self._make_turns()

    def _make_turns(self) -> None:
        self._lock = threading.RLock()  # which only its owner can release: see `place`
        # Locks are taken in this order: the turn of syncs, the turn of writes, the lock.
        self._writes = _Together(self._write)
        self._syncs = _Together(self._sync)
        self.syncing, self.writing, self.placing = self._syncs.turn, self._writes.turn, self._lock

    @property
    def waiting(self) -> int:
        """Threads that wait for a sync."""
        return self._syncs.waiting

    @property
    def is_dirty(self) -> bool:
        """Whether anything in the kernel is not on the disk."""
        return self._is_soiled or self.kept[0] < self.written

    def place(self, bodies: Sequence[bytes]) -> int:
        """Give records their place in the chain; the number of the last. 0: it is over, they have none.

        A checkpoint gets its place before a record that would be one too many without one. Raises what
        ``checkpoint`` raises; then none of them has a place.
        """
        lock = self._lock
        if self._is_left:
            return 0
        try:
            lock.acquire()  # not `with`, here and in `_write`: every call comes this way twice
            if self.is_over:
                number = 0
            else:
                number, link, signed, frames = self.number, self.link, self.signed, []
                for body in bodies:
                    # Attack: records that no checkpoint covers are chained anew by one who has no key. What
                    # many threads, or one with many records, place here at once counts as well.
                    if number - signed >= self._unsigned_max:
                        frame, link = framed(link, number + 1, self._checkpoint(number, link))
                        number = signed = number + 1
                        frames.append(frame)
                    number += 1
                    frame, link = framed(link, number, body)
                    frames.append(frame)
                # All of them or none: an interrupt comes before these, or after them.
                self.number, self.link, self.signed = number, link, signed
                self._frames.extend(frames)
        except BaseException:
            with suppress(RuntimeError):  # an interrupt came while it was another's
                lock.release()
            raise
        lock.release()
        return number

    def sign(self) -> int:
        """Place a checkpoint over all records without one; the number of the last record. 0: it is over."""
        with self._lock:
            if self.is_over:
                return 0
            if self.number > self.signed:
                number = self.number + 1
                frame, link = framed(self.link, number, self._checkpoint(self.number, self.link))
                self.number, self.link, self.signed = number, link, number
                self._frames.append(frame)
            return self.number

    def append(self, bodies: Sequence[bytes]) -> int:
        """As ``place``; returns when they are in the kernel. -1: they were placed, and it failed before."""
        number = self.place(bodies)
        if not number:
            return 0
        self._writes.done()
        return number if self.written >= number else -1

    def append_durably(self, bodies: Sequence[bytes]) -> int:
        """As ``append``; returns when they are on the disk."""
        number = self.place(bodies)
        if not number:
            return 0
        return number if self.keep(number) else -1  # which writes first: a thread waits once, not twice

    def write(self) -> None:
        """Return when all that was placed before is in the kernel, or it failed."""
        if not self._is_left:
            self._writes.done()

    def keep(self, number: int) -> bool:
        """Return when records up to this one are on the disk. False: they never will be."""
        if self.kept[0] < number and not self._is_left:
            self._syncs.done(lambda: self.kept[0] >= number)
        return self.kept[0] >= number

    def sync(self) -> None:
        """Return when all that is in the kernel is on the disk, or it failed."""
        if not self._is_left:
            self._syncs.done()

    # -- runs -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write all that waits. Runs in one thread at a time."""
        lock = self._lock
        next_frames: list[bytes] = []
        taken: list[bytes] | None = None
        try:
            try:
                lock.acquire()
                if self._is_lent and not self.is_over:
                    # Whoever took them is gone: without them the chain would have a gap.
                    self._fail("write", None)
                if self._frames and not self.is_over:
                    taken, self._frames = self._frames, next_frames
                    last = self.number, self.link
            except BaseException:
                with suppress(RuntimeError):
                    lock.release()
                raise
            lock.release()
            if taken is None:
                return
            data = taken[0] if len(taken) == 1 else b"".join(taken)
            write_all(self._write_to, self.descriptor, data)
            self.size += len(data)
            self.writes += 1
            self._last = last
            self.written = last[0]
        except BaseException as error:  # an interrupt, too: what was taken would be missing in the chain
            if taken is not None:
                self._fail("write", error)
            if not isinstance(error, OSError):
                raise

    def _sync(self) -> None:
        """Write all that waits and sync it. Runs in one thread at a time."""
        with self._writes.turn:
            self._write()
        if self.is_over or not self.is_dirty:
            return
        last, was_soiled, self._is_soiled = self._last, self._is_soiled, False
        failing = "sync"
        try:
            self._sync_to(self.descriptor)
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + self._look_s
                failing = "look"
                self._look()
        except BaseException as error:
            self._is_soiled = was_soiled
            if isinstance(error, Exception):
                self._fail(failing, error)
                return
            raise  # an interrupt: the next one syncs
        self.kept = last

    def _fail(self, what: str, error: BaseException | None) -> None:
        """What was placed and not written did not happen."""
        with self._lock:
            # A sync that fails says more than a write, what was written is unknown too; and what people do
            # not find.
            if what != "write" or not self.failing:
                self.failing, self.error = what, error
            self.is_over = True
            self._frames = []

    # -- for the thread that holds all three ----------------------------------------------------------------

    def take(self) -> bytes:
        """Return what was placed and not written.

        The caller writes, syncs and settles it, or gives the pen up. If an interrupt keeps it from both, the
        next write fails.
        """
        taken, self._frames = self._frames, []
        self._is_lent = self._is_lent or bool(taken)
        return b"".join(taken)

    def settle(self, size: int) -> None:
        """Note that all that was placed is on the disk, and that the file has this size."""
        self.size = size
        self.writes += 1
        self._last = self.kept = self.number, self.link
        self.written = self.number
        self._is_soiled = self._is_lent = False

    def soil(self) -> None:
        """Note that something else was written to the file, and has to be synced."""
        self._is_soiled = True

    def end(self) -> None:
        """Place nothing any more; what was placed and not written never will be."""
        self.is_over = True
        self._frames = []

    def leave(self) -> None:
        """Leave it to the parent, in a fork: nothing waits, and nothing is written, here."""
        self.is_over = self._is_left = True
        self._make_turns()  # whoever had them is not in this process


def write_all(write: Callable[[int, bytes], int], descriptor: int, data: bytes) -> None:
    """Write the whole, or raise why it does not fit."""
    done = write(descriptor, data)
    while done != len(data):  # after a short write: the rest, or the reason
        data = data[max(done, 0) :]
        done = write(descriptor, data)
        if done <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
