"""Writing the journal: append, group sync, recover, rotate, retire.

One host writes one segment file at a time and holds its lock, so hosts that share a state folder never
share a file. A segment that is being written, or was left by a host that is gone, is called
``NAME.open``; one that is closed for good ``NAME.seg``. A torn tail is cut off into ``NAME.torn-OFFSET``,
reported, and never counted. ``NAME.new`` is a segment that is not locked yet, and nobody's business.
An open segment may end in room for records to come: zeros, which mean that nothing is there yet.
Whoever reads a segment that no host holds keeps hosts from it meanwhile; one that comes then begins another.

Many threads append at once, through the segment's pen (``pen.py``). What fails fails for all of them, and
nothing of it stays in the file. Nothing here knows what stands in a record but its own bookkeeping, and
nothing here is read for people: ``reading.py`` does that.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import orjson
from msgspec import Struct

from toolcrib import former
from toolcrib.errors import StoreError, shortage_told
from toolcrib.forks import IN_FORKS
from toolcrib.journal import chain
from toolcrib.journal.chain import Head
from toolcrib.journal.pen import Pen, write_all
from toolcrib.store import private

OPEN: Final = ".open"
SEALED: Final = ".seg"
TORN: Final = ".torn-"
_NEW: Final = ".new"

ROOM_BYTES: Final = 1 << 18
"""More room than this is never kept: what a busy host writes in one round of its background."""
_PIECE_BYTES: Final = 1 << 16
"""Room is made in pieces, so that nobody who writes waits for the whole of it; it ends where one ends."""
_PAGE_BYTES: Final = 4096
_EMPTY_PAGE: Final = bytes(_PAGE_BYTES)
_DAY_S: Final = 86_400.0


_CLOSED: Final = "the journal was closed before it was written"
_MEND: Final = "make room, mend its permissions, or name another state folder: --state DIR"


class Trouble(Exception):
    """The journal cannot be written; ``why`` names the file and the reason, ``hint`` what to do."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        short = shortage_told(why)
        self.hint = hint or (short[1] if short else _MEND)


class _Former(Trouble):
    """A segment was written under the former name of this program: no host goes on with it."""


class Sealing(Protocol):
    """Signs heads; loaded only when something is to be signed."""

    def checkpoint(self, head: Head, time: float) -> dict[str, Any]: ...


class Disk(NamedTuple):
    """What can fail in the middle of a call; tests hand in disks that do."""

    write: Callable[[int, bytes], int] = os.write
    sync: Callable[[int], None] = os.fdatasync if hasattr(os, "fdatasync") else os.fsync
    fill: Callable[[int, bytes, int], int] = os.pwrite
    """Makes room; where that fails nothing is lost."""


class Bounds(Struct, frozen=True, kw_only=True):
    """When a segment is continued, signed, rotated and removed."""

    segment_bytes_max: int = 16 << 20
    segment_age_s_max: float = _DAY_S
    continued_bytes_max: int = 1 << 18
    """A segment of a host that is gone is continued up to this size: it has to be read first."""
    flush_s: float = 0.05
    """How long an end may wait for its sync."""
    room_after: int = 64
    """So many writes of one host to a segment show that it will write more: room for them is kept."""
    signed_every: int = 256
    """After so many records a checkpoint is due: in the background, or when the host ends. Signing loads a
    library that costs more than a short call, so a host that ends after a few records leaves it to later."""
    signed_within_s: float = 30.0
    """After so long a checkpoint is due as well, in the background of a host that goes on."""
    unsigned_max: int = chain.UNSIGNED_MAX
    """So many records without a checkpoint are never exceeded: the thread that records signs."""
    idle_s: float = 3600.0
    """A segment that nobody has written to for so long is closed."""
    retired_names_max: int = 2000
    """Names of removed segments that are remembered, so that an old anchor does not miss them."""
    tidied_at_once: int = 8
    retention_days: int = 90


class _Segment(Struct, eq=False):
    """The file that is being written."""

    name: str
    pen: Pen
    made_at: float
    signed_at: float
    """When all of it was known to be signed, by the monotonic clock; of a new one, when it was opened."""
    has_signed: bool = False
    named: tuple[Head, ...] = ()
    """Segments in doubt that its opening names, until that is known to be on the disk."""
    seen: int = 0
    """Up to here everything was there when it was last looked at."""
    failed: str = ""

    @property
    def head(self) -> Head:
        return Head(self.name, self.pen.number, self.pen.link)


class Segments:
    """The journal of one host. Opens its segment at the first append; usable from any thread."""

    def __init__(
        self,
        folder: str,
        *,
        seal: Callable[[], Sealing],
        clock: Callable[[], float] = time.time,
        disk: Disk | None = None,
        bounds: Bounds | None = None,
        beside: Sequence[str] = (),
        told: Callable[[str], None] = lambda text: None,
        begin: Callable[[Callable[[], None], tuple[()]], object] = start_new_thread,
    ) -> None:
        """``beside`` are folders with a file for a call each: these go when the records of their time go.

        ``told`` hears what a person should know: repairs, segments given up. It must not raise. ``begin``
        starts the thread of the background, or raises.
        """
        self.folder = folder
        self._seal = seal
        self._clock = clock
        self._disk = disk or Disk()
        self._bounds = bounds or Bounds()
        self._beside = tuple(beside)
        self._told = told
        self._begin = begin
        self._closed = False
        self._anew()
        IN_FORKS.add(self)

    def _anew(self) -> None:
        """A host that has written nothing yet."""
        self._host = {"id": os.urandom(8).hex(), "pid": os.getpid(), "uid": os.geteuid()}
        self._lock = threading.RLock()
        """Of which segment is written. Taken before a pen, never by whoever has one alone."""
        self._segment: _Segment | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._has_tender = False
        self._tending = threading.Lock()
        """Held by the background for as long as it runs."""
        self._tended = False
        self._left_behind = False
        self._given_up: list[Head] = []
        """Of segments that were cut off under us or could not be synced: openings name them, until one that
        does is on the disk, so that they are missed where they go. One step puts one in or takes it out."""

    def renew(self) -> None:
        """In a fork: two processes that number and link in one file would break its chain for good.

        The descriptors are closed and not unlocked, since the lock is the parent's as well.
        """
        segment = self._segment
        if segment is not None:
            segment.pen.leave()
            with suppress(OSError):
                os.close(segment.pen.descriptor)
        self._anew()

    # -- appending ------------------------------------------------------------------------------------------

    def append(self, bodies: Sequence[bytes], *, durable: bool) -> None:
        """Append records that belong together. Returns when they are in the kernel, or on the disk.

        Raises Trouble; then none of them is in the journal, or, where a sync failed, that is unknown.
        """
        while True:
            segment = self._segment or self._take()
            pen = segment.pen
            try:
                number = pen.append_durably(bodies) if durable else pen.append(bodies)
            except BaseException:  # an interrupt; where it came while something was written, that is over
                if pen.is_over:
                    self._give_up(segment)
                raise
            if number > 0:
                break
            self._give_up(segment)
            if number < 0:
                raise Trouble(segment.failed or _CLOSED)
        if not durable:
            if not self._wake.is_set():
                self._rouse()
            return
        if segment.named:
            self._note_named(segment)
        if not self._has_tender:
            self._attend()

    def _look(self, segment: _Segment) -> None:
        """Whether people still find what is written: Trouble where they do not."""
        # Attack: the journal moved away under a running host, so that records go where nobody looks; or cut
        # off, so that what is missing looks like pages that a power failure left empty. The next record makes
        # a file that was cut as long as before, with zeros in between, and no record ends in one.
        path = self._path(segment.name + OPEN)
        descriptor, size = segment.pen.descriptor, segment.pen.size
        with suppress(OSError):
            own, found = os.fstat(descriptor), os.stat(path, follow_symlinks=False)
            folder = os.stat(self.folder, follow_symlinks=False)
            is_same = (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
            last = os.pread(descriptor, 1, segment.seen - 1) if segment.seen else b""
            is_whole = own.st_size >= size and last != b"\0"
            if is_same and is_whole and stat.S_ISDIR(folder.st_mode):
                segment.seen = size
                return
            if not is_whole:
                with segment.pen.placing:  # number and link of one record
                    self._given_up.append(segment.head)
        raise Trouble(f"{path}: it was taken away, or cut off, while it was being written")

    def _doubt(self, segment: _Segment) -> None:
        """After a failed sync the kernel may have thrown the pages away and call the next one a success: what
        this file holds is unknown, so nobody writes to it any more, and what we write next names it."""
        # Attack: this very file taken away, with all that was on the disk before, since nobody names it.
        if segment.pen.kept[0]:
            self._given_up.append(Head(segment.name, *segment.pen.kept))
        self._put_away(segment)

    def _note_named(self, segment: _Segment) -> None:
        """What its opening names is on the disk there."""
        # Attack: a segment in doubt taken away unseen, because another one that is synced, or was, is taken
        # for one that names it.
        named, segment.named = segment.named, ()
        for head in named:
            with suppress(ValueError):  # whoever else saw it was faster
                self._given_up.remove(head)

    def _put_away(self, segment: _Segment) -> None:
        """No host goes on with it."""
        with suppress(OSError):
            os.rename(self._path(segment.name + OPEN), self._path(segment.name + SEALED))

    def _give_up(self, segment: _Segment) -> None:
        """Where its pen failed: what was placed and not written did not happen, and the next append begins
        anew. Once, whoever comes; nothing, where the pen was ended on purpose."""
        told = ""
        with self._lock:  # whoever ends a pen on purpose has put another in its place when this is free
            if self._segment is not segment:
                return
            pen = segment.pen
            with pen.syncing, pen.writing, pen.placing:  # nobody writes, or syncs, what is closed here
                error = pen.error
                segment.failed = error.why if isinstance(error, Trouble) else self._complaint(segment, error)
                if pen.failing == "sync":
                    self._doubt(segment)
                elif pen.failing == "look":
                    self._put_away(segment)
                if pen.failing in ("sync", "look"):
                    told = f"{segment.failed}; a new segment is begun"
                self._let_go(segment)
                self._segment = None
        if told:
            self._told(told)

    @staticmethod
    def _let_go(segment: _Segment) -> None:
        """By whoever has its pen alone: what was not written whole goes, and another host may have it."""
        pen = segment.pen
        pen.end()
        with suppress(OSError):
            os.ftruncate(pen.descriptor, pen.size)
        with suppress(OSError):
            fcntl.flock(pen.descriptor, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(pen.descriptor)

    def _complaint(self, segment: _Segment, error: BaseException | None) -> str:
        told = error.strerror if isinstance(error, OSError) else "writing was interrupted"
        return f"{self._path(segment.name + OPEN)}: {(told or 'cannot be written').lower()}"

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    # -- taking a segment -----------------------------------------------------------------------------------

    def _take(self) -> _Segment:
        """Continue the newest segment that nobody holds, or begin one."""
        with self._lock:
            return self._segment or self._taken()

    def _taken(self) -> _Segment:
        if self._closed:
            raise Trouble("the journal is closed", "open the crib again")
        if not self._stop.is_set():
            self._tended = False
        try:
            with self._opened_folder() as folder:
                names = sorted((name for name in os.listdir(folder) if name.endswith(OPEN)), reverse=True)
                now = self._clock()
                for name in names:
                    segment = self._continued(folder, name, now)
                    if segment is not None:
                        break
                else:
                    named = tuple(self._given_up)
                    segment = self._begun(folder, now, names, before=named)
                    segment.named = named
        except OSError as error:
            raise Trouble(
                f"{error.filename if isinstance(error.filename, str) else self.folder}: "
                f"{(error.strerror or 'cannot be used').lower()}"
            ) from None
        self._segment = segment
        return segment

    @contextmanager
    def _opened_folder(self) -> Iterator[int]:
        """The journal's folder, made where it is missing, ours alone."""
        if not os.path.isdir(self.folder):
            with suppress(FileExistsError):
                private.make_folders(self.folder)
        # Attack: a link in place of the journal, so that records go where nobody looks.
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid():
                raise Trouble(
                    f"{self.folder}: it belongs to somebody else", "give it back to the host's user"
                )
            if status.st_mode & 0o022:
                raise Trouble(f"{self.folder}: others may write it", f"chmod 700 {self.folder}")
            yield folder
        finally:
            os.close(folder)

    def _locked(self, folder: int, name: str) -> tuple[int, int] | None:
        """Descriptor and size, without room, of a segment that is now ours; None where another holds it."""
        try:
            descriptor = os.open(
                name,
                os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                dir_fd=folder,
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Trouble(
                f"{self._path(name)}: {_kind_of(folder, name) or (error.strerror or '').lower()}",
                "make it writable, or move it out of the journal's folder",
            ) from None
        keep = False
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
                raise Trouble(
                    f"{self._path(name)}: it is not a regular file of the host's own",
                    "move it out of the journal's folder",
                )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            with suppress(FileNotFoundError):
                keep = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino == status.st_ino
            return (descriptor, filled(descriptor)) if keep else None
        finally:
            if not keep:
                os.close(descriptor)

    def _continued(self, folder: int, name: str, now: float) -> _Segment | None:
        """The segment of a host that is gone, mended; None where it is held, too large or too old."""
        made_at = min(_made_at(name), now)
        found = self._locked(folder, name)
        if found is None:
            return None
        descriptor, size = found
        keep = False
        try:
            if size > self._bounds.continued_bytes_max or now - made_at > self._bounds.segment_age_s_max:
                self._left_behind = True
                return None
            try:
                segment, mended = self._recovered(folder, name, descriptor, size, made_at)
            except _Former:  # it stays as it is, and another one is begun
                return None
            segment.named = tuple(self._given_up)
            before = _plain(segment.named)
            segment.pen.place([_own("open", now, host=self._host, before=before, **mended)])
            keep = True
            return segment
        finally:
            if not keep:
                os.close(descriptor)

    def _recovered(
        self, folder: int, name: str, descriptor: int, size: int, made_at: float
    ) -> tuple[_Segment, dict[str, Any]]:
        """Read a segment that is ours, cut off a torn tail, refuse a damaged one. Its room is ours too."""
        plain = name.removesuffix(OPEN)
        data = read_until(descriptor, size)
        scanned = chain.scan(plain, data, left=os.fstat(descriptor).st_size > size)
        if scanned.flaw is not None and not scanned.records and chain.is_former(plain, data):
            raise _Former(f"{self._path(name)}: {former.WRITTEN}")
        if scanned.flaw is not None:
            raise Trouble(
                f"{self._path(name)}: record {scanned.flaw.number} is damaged ({scanned.flaw.why})",
                f"look at it (`toolcrib audit verify`), then move {name} out of the journal's folder",
            )
        mended: dict[str, Any] = {}
        if scanned.torn:
            aside = f"{plain}{TORN}{scanned.end}"
            _write_aside(folder, aside, data[scanned.end :])
            os.ftruncate(descriptor, scanned.end)
            mended = {"torn_bytes": scanned.torn, "torn_file": aside}
            self._told(
                f"{self._path(name)}: {scanned.torn} bytes of an unfinished record were moved to {aside}"
            )
        os.lseek(descriptor, scanned.end, os.SEEK_SET)
        # What the host before left in the kernel counts for us as well, so it must be on the disk.
        self._disk.sync(descriptor)
        head = scanned.head
        signed = head.number - _unsigned(scanned.records)
        segment = self._opened(plain, descriptor, head, scanned.end, made_at, signed=signed, is_kept=True)
        segment.seen = scanned.end
        return segment, mended

    def _opened(
        self,
        name: str,
        descriptor: int,
        last: Head,
        size: int,
        made_at: float,
        *,
        signed: int,
        is_kept: bool,
    ) -> _Segment:
        pen = Pen(
            descriptor,
            last.number,
            last.link,
            size,
            write=self._disk.write,
            sync=self._disk.sync,
            look=lambda: self._look(segment),
            look_s=self._bounds.flush_s,
            is_kept=is_kept,
            checkpoint=partial(self._checkpoint, name),
            signed=signed,
            unsigned_max=self._bounds.unsigned_max,
        )
        segment = _Segment(name, pen, made_at, time.monotonic())
        return segment

    def _checkpoint(self, name: str, number: int, link: bytes) -> bytes:
        """Return the body of a checkpoint."""
        return orjson.dumps(self._loaded_seal().checkpoint(Head(name, number, link), self._clock()))

    def _loaded_seal(self) -> Sealing:
        """Return what signs. Raises Trouble: what cannot be signed is not recorded.

        Called ahead where it can be: the first time takes longer than any thread should wait for its place.
        """
        try:
            return self._seal()
        except StoreError as error:
            raise Trouble(error.message, error.hint or "fix the key") from None

    def _begun(self, folder: int, now: float, names: Sequence[str], before: Sequence[Head]) -> _Segment:
        # Newer than every other segment, also when the clock was set back: names give the order.
        newest = max((int(_made_at(name) * 1e6) for name in [*names, *os.listdir(folder)]), default=0)
        stamp = max(int(now * 1e6), newest + 1)
        name = f"{stamp:017d}-{os.getpid()}-{os.urandom(4).hex()}"
        descriptor = os.open(
            name + _NEW,
            os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=folder,
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Locked before others see it: they would take it for the segment of a host that is gone.
            os.rename(name + _NEW, name + OPEN, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)  # the name must outlive a power failure as well
        except OSError:
            with suppress(OSError):
                os.unlink(name + _NEW, dir_fd=folder)
            os.close(descriptor)
            raise
        number = max((head.number for head in before), default=0)
        last = Head(name, number, chain.start(name))
        segment = self._opened(name, descriptor, last, 0, now, signed=number, is_kept=False)
        segment.pen.place([_own("open", now, host=self._host, segment=name, before=_plain(before))])
        return segment

    # -- in the background ----------------------------------------------------------------------------------

    def _rouse(self) -> None:
        """Something waits for the background: a sync within ``flush_s``, a checkpoint, a rotation."""
        self._wake.set()
        if self._attend():
            return
        self._wake.clear()
        with suppress(Trouble, OSError):
            self._tend_once()  # so whoever writes does it

    def _attend(self) -> bool:
        """Start the background, unless it runs. False: no thread can be started."""
        with self._lock:
            if self._has_tender or self._closed:
                return True
            try:
                # `Thread.start` waits for the new thread to say that it runs. One that finds no memory for
                # its first step ends without a word, and its host waited for ever.
                self._begin(self._tend, ())
            except (RuntimeError, MemoryError):  # no more threads for this user
                return False
            self._has_tender = True
            return True

    def _tend(self) -> None:
        with self._tending:
            while True:
                self._wake.wait(self._bounds.signed_within_s)
                if self._stop.wait(self._bounds.flush_s):
                    return
                is_woken = self._wake.is_set()
                if is_woken:
                    self._wake.clear()
                if self._stop.is_set():  # since we waited for it: its waking is what was just cleared
                    return
                # The next append meets the same trouble, and tells.
                with suppress(Trouble, OSError, MemoryError):
                    if is_woken:
                        self._tend_once()
                    elif (segment := self._segment) is not None:
                        self._sign_when_due(segment)
                        segment.pen.sync()

    def _tend_once(self) -> None:
        segment = self._segment
        if segment is None:
            return
        pen = segment.pen
        if pen.writes >= self._bounds.room_after:
            while self._make_room(segment):
                pass
        if pen.is_dirty:
            pen.sync()
        if pen.is_over:
            self._give_up(segment)
            return
        self._sign_when_due(segment)
        now = self._clock()
        if (
            pen.size >= self._bounds.segment_bytes_max
            or now - segment.made_at > self._bounds.segment_age_s_max
        ):
            self.rotate()
        if not self._tended:
            self._tended = True
            self.tidy()

    def _make_room(self, segment: _Segment) -> bool:
        """A piece of room for what comes next, unless there is enough: where a record is written over zeros
        that lie on the disk, a sync has nothing but its bytes to bring there.

        Where there is none records are appended. Written and not only allocated: else each page that is
        filled for the first time changes the file's map, which a sync has to bring to the disk as well.
        """
        pen = segment.pen
        with pen.syncing, pen.writing:
            if pen.is_over:
                return False
            size = os.fstat(pen.descriptor).st_size
            missing = _PIECE_BYTES - size % _PIECE_BYTES
            if size < pen.size or size + missing > pen.size + ROOM_BYTES:
                return False  # cut off, which `_look` will find; or enough
            try:
                done = self._disk.fill(pen.descriptor, bytes(missing), size)
            except OSError:
                done = 0
            if done != missing:
                os.ftruncate(pen.descriptor, size)
                return False
            pen.soil()
            return True

    def _sign_when_due(self, segment: _Segment) -> None:
        """Sign what is many records, or old."""
        unsigned = segment.pen.number - segment.pen.signed
        if not unsigned:
            segment.signed_at = time.monotonic()
            return
        # Attack: the few records of a slow writer chained anew, days later.
        age_s = time.monotonic() - segment.signed_at
        if unsigned >= self._bounds.signed_every or age_s >= self._bounds.signed_within_s:
            self._sign()

    def _sign(self) -> None:
        """Append a checkpoint over all records so far."""
        self._loaded_seal()
        segment = self._segment
        if segment is None:
            return
        pen = segment.pen
        number = pen.sign()
        if not number:
            return
        segment.signed_at, segment.has_signed = time.monotonic(), True
        pen.write()
        if pen.written < number:
            self._give_up(segment)
            raise Trouble(segment.failed or _CLOSED)

    def rotate(self) -> None:
        """Close the segment for good, signed, and begin the next, which names it."""
        self._loaded_seal()
        with self._lock:
            old = self._segment
            if old is None:
                return
            pen = old.pen
            with pen.syncing, pen.writing, pen.placing:
                self._rotate(old)

    def _rotate(self, old: _Segment) -> None:
        """By whoever has the lock, and the old one's pen alone."""
        if old.pen.is_over:  # whoever writes next begins another
            return
        now = self._clock()
        new: _Segment | None = None
        try:
            self._close_for_good(old, _own("close", now))
            with self._opened_folder() as folder:
                new = self._begun(folder, now, (), before=(old.head,))
                self._put_all(new)  # which nobody else knows of yet
                # Attack: a segment closed for good and taken away, or cut off, unseen, because its host was
                # killed before the next one named it. So its name changes last; where it does not, a later
                # host closes it once more.
                with suppress(OSError):
                    os.rename(old.name + OPEN, old.name + SEALED, src_dir_fd=folder, dst_dir_fd=folder)
                    os.fsync(folder)
        except (OSError, Trouble) as error:
            for segment in (new, old):
                if segment is not None:
                    why = error.why if isinstance(error, Trouble) else self._complaint(old, error)
                    segment.failed = segment.failed or why
                    self._let_go(segment)
            self._segment = None
            raise Trouble(old.failed) from None
        # Only now: whoever reads before the opening of the next one is written sees by the lock that the
        # host lives, and takes no call that it runs for interrupted.
        self._segment = new
        self._note_named(old)
        old.pen.end()
        os.close(old.pen.descriptor)
        self._tended = False  # a day has passed, or much was written: old segments may be due

    def _close_for_good(self, segment: _Segment, closing: bytes) -> None:
        """By whoever has its pen alone: its last record, signed, and all of them on the disk."""
        segment.pen.place([closing])
        segment.pen.sign()
        self._put_all(segment)

    def _put_all(self, segment: _Segment) -> None:
        """By whoever has its pen alone: what was placed comes to the disk; its room goes."""
        pen = segment.pen
        data = pen.take()
        write_all(self._disk.write, pen.descriptor, data)
        size = pen.size + len(data)
        os.ftruncate(pen.descriptor, size)
        try:
            self._disk.sync(pen.descriptor)
        except OSError as error:
            segment.failed = self._complaint(segment, error)
            self._doubt(segment)
            raise
        pen.settle(size)

    def tidy(self) -> None:
        """Close segments that hosts left behind, and remove what is past its time."""
        sealed: list[Head] = []
        old: list[str] = []
        now = self._clock()
        until = now - self._bounds.retention_days * _DAY_S
        with self._opened_folder() as folder, ExitStack() as held:
            names = sorted(os.listdir(folder))
            for name in names:
                if name.endswith(OPEN) and len(sealed) < self._bounds.tidied_at_once:
                    head = self._ended(folder, name, now, held)
                    if head is not None:
                        sealed.append(head)
                elif name.endswith(SEALED) and _last_at(folder, name, now) < until:
                    old.append(name)
                elif name.endswith(_NEW) and _written_at(folder, name) < now - self._bounds.idle_s:
                    _unlink(folder, name)
            if sealed:
                # Named first, as in `rotate`; held until then, so that nobody goes on with them.
                self.append([_own("sealed", now, before=_plain(sealed))], durable=True)
                for head in sealed:
                    os.rename(
                        head.segment + OPEN, head.segment + SEALED, src_dir_fd=folder, dst_dir_fd=folder
                    )
                os.fsync(folder)
                held.close()
            if old:
                # The record that they are gone comes first, signed: else a removed segment is a missing one.
                gone = [name.removesuffix(SEALED) for name in old]
                all_gone = [*dict.fromkeys((*_retired_by(folder, old), *gone))]
                retired = _own("retired", now, segments=all_gone[-self._bounds.retired_names_max :])
                self.append([retired], durable=True)
                self._sign()
                if self._segment is not None:
                    self._segment.pen.sync()
                for name in names:
                    if name in old or any(name.startswith(f"{plain}{TORN}") for plain in gone):
                        _unlink(folder, name)
                os.fsync(folder)
        for place in self._beside:
            with suppress(OSError):
                _remove_older(place, until)

    def _ended(self, folder: int, name: str, now: float, held: ExitStack) -> Head | None:
        """Close the segment of a host that is gone, where nobody will continue it; its name is still open.

        ``held`` keeps it from others until then."""
        with self._lock:
            if self._segment is not None and self._segment.name + OPEN == name:
                return None
        try:
            found = self._locked(folder, name)
        except Trouble:
            return None
        if found is None:
            return None
        descriptor, size = found
        with ExitStack() as own:
            own.callback(os.close, descriptor)
            bounds = self._bounds
            idle = now - os.fstat(descriptor).st_mtime
            if size <= bounds.continued_bytes_max and idle < bounds.idle_s:
                return None
            try:
                segment, mended = self._recovered(folder, name, descriptor, size, _made_at(name))
            except _Former:
                return None
            except Trouble as trouble:
                self._told(trouble.why)
                return None
            self._loaded_seal()
            try:
                self._close_for_good(segment, _own("close", now, by=self._host, **mended))
            except OSError:
                # Our own segment is open already: waiting for the next opening, somebody else's sync would
                # take it for named.
                if segment.failed:
                    kept = _plain([Head(segment.name, *segment.pen.kept)])
                    self.append([_own("sealed", now, before=kept)], durable=True)
                raise
            held.push(own.pop_all())
            return segment.head

    # -- the end --------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """The last record that was linked."""
        segment = self._segment
        return segment.head if segment is not None else None

    def close(self) -> None:
        """Sync, sign what is worth it, and let go of the segment; another host may continue it."""
        self._stop.set()
        self._wake.set()
        with self._tending:
            pass  # the background has ended; one that is late sees that it must
        segment = self._segment
        if segment is not None:
            with suppress(Trouble, OSError):
                if self._left_behind and not self._tended:
                    self.tidy()
            with suppress(Trouble, OSError):
                unsigned = segment.pen.number - segment.pen.signed
                if unsigned >= self._bounds.signed_every or (unsigned and segment.has_signed):
                    self._sign()
            segment.pen.sync()
            if segment.pen.is_over:
                self._give_up(segment)
        with self._lock:
            self._closed = True
            segment, self._segment = self._segment, None
            if segment is not None:
                pen = segment.pen
                with pen.syncing, pen.writing, pen.placing:
                    pen.end()
                    with suppress(OSError):
                        if os.fstat(pen.descriptor).st_size > pen.size:
                            os.ftruncate(pen.descriptor, pen.size)
                    os.close(pen.descriptor)


# -- small parts --------------------------------------------------------------------------------------------


def _own(what: str, now: float, **more: Any) -> bytes:
    return orjson.dumps({"what": what, "ts": now, **more})


def _made_at(name: str) -> float:
    stamp = name.partition("-")[0]
    return int(stamp) / 1e6 if stamp.isascii() and stamp.isdigit() and len(stamp) <= 20 else 0.0


def _last_at(folder: int, name: str, now: float) -> float:
    """When a segment was last written, or made, if that was later. Names are given in order, so after a clock
    that once stood in the future they tell nothing, and all that came since would be kept for ever."""
    made_at = _made_at(name)
    return max(_written_at(folder, name), made_at if made_at <= now else 0.0)


# Other hosts tidy at the same time, and give new segments their names: what was listed may be gone by now.
# Attack: a closed segment taken away unseen, because the host that closed it stopped there before it said so.


def _written_at(folder: int, name: str) -> float:
    """When a file was last written; what is gone is never old."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return math.inf


def _unlink(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _plain(heads: Sequence[Head]) -> list[dict[str, Any]]:
    return [{"segment": head.segment, "number": head.number, "link": head.link.hex()} for head in heads]


def _retired_by(folder: int, names: Sequence[str]) -> Iterator[str]:
    """What segments that go now say about those that went before them: an old anchor may name these."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for name in names:
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:  # whoever removed it has told what it said
            continue
        try:
            data = read_until(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        for record in chain.scan(name.removesuffix(SEALED), data).records:
            if record.body.startswith(b'{"what":"retired"'):
                yield from chain.retired_names(chain.body_of(record))


def _remove_older(place: str, until: float) -> None:
    """Remove the files of a folder that were last written before a moment."""
    # Attack: a link in place of the folder, so that we empty another one.
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < until:
                    os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


def _kind_of(folder: int, name: str) -> str:
    with suppress(OSError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return "it is a symbolic link"
        if stat.S_ISDIR(mode):
            return "it is a directory"
        if not stat.S_ISREG(mode):
            return "it is not a regular file"
    return ""


def filled(descriptor: int) -> int:
    """Where an open segment ends, without the room after it.

    Every byte before was written when this returns, or the last record is half there: writers go forward.
    So one who reads beside a writer asks first and reads then; the other way round he might see a page as it
    was before it was written and the next one as it was after.
    """
    # Attack: the last records overwritten with zeros, so that they look like room. That is what is left when
    # they are cut off, and is found as that is: by an anchor, or by another segment that builds on them.
    size = os.fstat(descriptor).st_size
    if size % _PIECE_BYTES:
        return size
    start = max(0, size - ROOM_BYTES)
    tail = os.pread(descriptor, size - start, start)
    end = len(tail)
    while tail.endswith(_EMPTY_PAGE, 0, end):
        end -= _PAGE_BYTES
    return start + len(tail[:end].rstrip(b"\0"))


def read_until(descriptor: int, end: int, offset: int = 0) -> bytes:
    """The bytes of a file from an offset on, without what lies behind ``end``."""
    parts = []
    while part := os.pread(descriptor, min(1 << 20, max(0, end - offset)), offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _write_aside(folder: int, name: str, data: bytes) -> None:
    """Durable before the tail is cut off: what was there is never lost."""
    descriptor = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.fsync(folder)


def _unsigned(records: Sequence[chain.Record]) -> int:
    """Records after the last checkpoint; a look at the beginning of a body is enough."""
    for count, record in enumerate(reversed(records)):
        if record.body.startswith(b'{"what":"checkpoint"'):
            return count
    return len(records)
