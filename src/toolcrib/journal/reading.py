"""Reading the journal for people: what is in it, whether it is whole, which calls were interrupted.

Works on the journal of a running host as well: a segment that is being written may end in half a record,
which is simply not there yet. Nothing here writes a record. ``segments.py`` does; the doors lie below.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct

from toolcrib.errors import StoreError
from toolcrib.journal import chain
from toolcrib.journal.chain import Anchor, Check, Flaw, Head
from toolcrib.journal.segments import OPEN, SEALED, TORN, filled, read_until
from toolcrib.jsontext import JsonObject
from toolcrib.records import Discreet

_DAY_S: Final = 86_400.0

OWN: Final = frozenset({"open", "close", "checkpoint", "sealed", "retired"})
"""What the journal notes about itself."""

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many segments were read, and of how many."""

_CALLS_SOUGHT_MAX: Final = 64


class Gone(StoreError):
    """A segment that was there a moment ago: it was old, and a host removed it."""


class Shorter(StoreError):
    """A segment that ends before the place from which on it was to be read."""


class SegmentFile(Struct, frozen=True):
    """A segment as it lies in the folder."""

    name: str
    path: str
    sealed: bool


class Entry(Discreet, frozen=True):
    """One record, and where it stands."""

    HIDDEN: ClassVar = ("body",)

    segment: str
    number: int
    body: JsonObject

    @property
    def what(self) -> str:
        return str(self.body.get("what", ""))

    @property
    def call(self) -> str:
        return str(self.body.get("call", ""))

    @property
    def ts(self) -> float:
        ts = self.body.get("ts")
        return float(ts) if isinstance(ts, (int, float)) else 0.0


def segment_files(folder: str) -> list[SegmentFile]:
    """Every segment, oldest first. None where there is no journal yet."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise StoreError(
            f"{folder}: not a directory",
            "find out who put it there; remove it, and put the journal back",
        ) from None
    except OSError as error:
        raise StoreError(
            f"{folder}: {(error.strerror or 'cannot be read').lower()}", "read it as the host's user"
        ) from None
    return [
        SegmentFile(name.removesuffix(ending), os.path.join(folder, name), ending == SEALED)
        for name in names
        for ending in (OPEN, SEALED)
        if name.endswith(ending)
    ]


def contents(segment: SegmentFile, offset: int = 0) -> tuple[bytes, bool]:
    """A segment's bytes from an offset on, without its room, and whether a host is writing it.

    StoreError where it cannot be read, Gone where it is no more, Shorter where it ends before the offset.
    """
    path = segment.path
    try:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:  # closed for good meanwhile
            path = path.removesuffix(OPEN) + SEALED
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{path}: it is not a regular file", "move it out of the journal's folder")
            with _held_back(descriptor) as is_ours:
                end = os.fstat(descriptor).st_size if segment.sealed else filled(descriptor)
                if end < offset:
                    raise Shorter(f"{path}: it is shorter than it was", "`toolcrib audit verify` says more")
                return read_until(descriptor, end, offset), not is_ours
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise Gone(f"{path}: it is no longer there", "try again") from None
    except OSError as error:
        raise StoreError(
            f"{path}: {(error.strerror or 'cannot be read').lower()}", "move it out of the journal's folder"
        ) from None


def _each(
    folder: str, since: float = 0.0, progress: Progress | None = None
) -> Iterator[tuple[SegmentFile, bytes, bool]]:
    """Every segment with its bytes and whether its host was there while we read, without those that go
    meanwhile.

    Segments that were last written well before ``since`` are left out; a day covers clocks that were mended.
    """
    for segment, is_new in all_files(folder, progress):
        with suppress(Gone):
            if since <= 0.0 or _written_at(segment) >= since - _DAY_S:
                data, live = contents(segment)
                yield segment, data, live or is_new


def all_files(folder: str, progress: Progress | None = None) -> Iterator[tuple[SegmentFile, bool]]:
    """Every segment, oldest first, and then, marked as new, those that came while these were read: a call may
    end in one of them. What comes while those are read is left out: beside hosts that begin segments as fast
    as we read them there would be no end."""
    first = segment_files(folder)
    yield from ((segment, False) for segment in _counted(first, progress))
    seen = {segment.name for segment in first}
    yield from ((segment, True) for segment in segment_files(folder) if segment.name not in seen)


def _counted(files: Sequence[SegmentFile], progress: Progress | None) -> Iterator[SegmentFile]:
    for done, segment in enumerate(files):
        if progress is not None:
            progress(done, len(files))
        yield segment


def _written_at(segment: SegmentFile) -> float:
    try:
        return os.stat(segment.path, follow_symlinks=False).st_mtime
    except OSError:
        return float("inf")  # renamed, or gone: reading will tell


def size_of(segment: SegmentFile) -> int:
    with suppress(OSError):
        return os.stat(segment.path, follow_symlinks=False).st_size
    return -1


def sync(folder: str) -> None:
    """What hosts have written is on the disk when this returns, so that an anchor may name it."""
    for segment in segment_files(folder):
        with suppress(OSError):
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def _held_back(descriptor: int) -> Iterator[bool]:
    """Keep hosts from continuing a segment that none of them writes; False: one does.

    A host that came between a look at the lock and the reading would be taken for one that is gone, and what
    it writes for unfinished. It begins a segment of its own instead.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def entries(folder: str, progress: Progress | None = None) -> Iterator[Entry]:
    """Every record that can be read, in the order of the segments and their numbers.

    Damage does not stop it: what stands before the first bad record of a segment is shown; ``verify`` says
    what is wrong.
    """
    for segment, data, _ in _each(folder, progress=progress):
        yield from _entries(segment.name, chain.scan(segment.name, data).records)


def _entries(name: str, records: Iterable[chain.Record]) -> Iterator[Entry]:
    for record in records:
        body = chain.body_of(record)
        if body is not None:
            yield Entry(name, record.number, body)


def tail(folder: str, count: int, progress: Progress | None = None) -> list[Entry]:
    """The last records of all segments together.

    Within a segment the number gives the order, never the clock. Between segments of several hosts the clock
    is all there is, and a record never comes before one of its own segment that has a smaller number.
    """
    rows: list[list[tuple[float, str, Entry]]] = []
    newest: list[float] = []  # a heap: the times of the last records so far
    for segment in _counted(segment_files(folder)[::-1], progress):
        if len(newest) == count and _written_at(segment) < newest[0] - _DAY_S:
            continue  # nothing in it can be among the last
        with suppress(Gone):
            data, _ = contents(segment)
            latest = 0.0
            row = []
            for entry in _entries(segment.name, chain.scan(segment.name, data).records[-count:]):
                latest = max(latest, entry.ts)
                row.append((latest, segment.name, entry))
                if len(newest) < count:
                    heapq.heappush(newest, latest)
                else:
                    heapq.heappushpop(newest, latest)
            rows.append([item for item in row if item[0] >= newest[0]])
    merged = heapq.merge(*rows, key=lambda item: item[:2])
    return [entry for _, _, entry in deque(merged, maxlen=count)]


def follow(
    folder: str, known: dict[str, tuple[int, Head | None]], progress: Progress | None = None
) -> Iterator[Entry]:
    """The records that came since the last time; ``known`` remembers how far each segment was read."""
    for segment in _counted(segment_files(folder), progress):
        offset, after = known.get(segment.name, (0, None))
        if offset and segment.sealed and offset == size_of(segment):
            continue  # nothing comes any more: hundreds of them need not be opened at each look
        try:
            data, _ = contents(segment, offset)
        except (Gone, Shorter):
            continue
        scanned = chain.scan(segment.name, data, after)
        known[segment.name] = (offset + scanned.end, scanned.head if scanned.records else after)
        yield from _entries(segment.name, scanned.records)


# -- whole? -------------------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True):
    """What a journal proves."""

    records: int
    flaws: tuple[Flaw, ...]
    torn: tuple[str, ...]
    """Unfinished records at the end of segments: what a crash leaves, not counted and not an error."""
    unsigned: int
    """Records that no checkpoint covers yet."""
    heads: tuple[Head, ...]
    former: tuple[str, ...] = ()
    """Segments written under the former name of this program, which were not checked."""

    @property
    def ok(self) -> bool:
        """Whether everything was checked, and is whole."""
        # Attack: a segment chained again in the former way, so that nothing checks it and all seems whole.
        return not self.flaws and not self.former


def verify(
    folder: str,
    key: bytes | None,
    check: Check,
    anchor: Anchor | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Check every segment, what segments say about each other, and what an anchor says about them.

    ``key`` and ``check`` are the anchor's where there is one: a key that was changed with the log proves
    nothing.
    """
    flaws: list[Flaw] = []
    torn: list[str] = []
    heads: dict[str, Head] = {}
    expected: list[tuple[Head, str]] = []
    retired: set[str] = set()
    former: list[str] = []
    records = unsigned = 0
    if anchor is not None:
        if not check(anchor.signature, chain.anchor_text(anchor.heads, anchor.time)):
            flaws.append(Flaw("anchor", 0, "the anchor's own signature is wrong"))
        else:
            expected += [(head, "the anchor names it") for head in anchor.heads]
    files: list[SegmentFile] = []
    for segment, _ in all_files(folder, progress):
        files.append(segment)
        try:
            data, live = contents(segment)
        except Gone:  # retired while we read; the record of it may stand in what was read before
            retired.add(segment.name)
            continue
        except StoreError as error:
            flaws.append(Flaw(segment.name, 0, error.message))
            continue
        left = not live and _has_room(segment, data)
        found = chain.verify_segment(segment.name, data, key, check, left=left)
        if found.flaw is not None and not found.records and chain.is_former(segment.name, data):
            former.append(segment.name)
            continue
        records += found.records
        unsigned += found.unsigned
        heads[segment.name] = found.head
        if found.flaw is not None:
            flaws.append(found.flaw)
        elif found.torn and segment.sealed and found.closed:
            flaws.append(
                Flaw(segment.name, found.head.number + 1, "something follows the end of the segment")
            )
        elif found.closed and found.unsigned:
            # Attack: a closed segment written anew by one who has no key.
            flaws.append(Flaw(segment.name, found.head.number, "the segment is closed and not signed"))
        elif found.torn and not live:
            torn.append(f"{segment.name}: {found.torn} bytes after record {found.head.number}")
        expected += [(head, f"{segment.name} builds on it") for head in found.before]
        retired.update(found.retired)
    broken = {flaw.segment for flaw in flaws}
    files += segment_files(folder)  # what was read last may name what came after it
    paths = {segment.name: segment for segment in files if segment.name not in retired}
    for head, why in expected:
        if head.segment not in paths:
            if head.segment not in retired:
                flaws.append(Flaw(head.segment, head.number, f"the segment is missing, and {why}"))
        elif head.number and head != heads.get(head.segment):
            link = _link_of(paths[head.segment], head.number)
            if link is None and head.segment not in broken:
                flaws.append(
                    Flaw(head.segment, head.number, f"it is missing, and {why}: the end was cut off")
                )
            elif link is not None and link != head.link:
                flaws.append(Flaw(head.segment, head.number, f"it was changed, and {why}"))
    return Verdict(records, tuple(flaws), tuple(torn), unsigned, tuple(heads.values()), tuple(former))


def _has_room(segment: SegmentFile, data: bytes) -> bool:
    """Whether a host had made room behind what it wrote: one that ends in order leaves none."""
    with suppress(OSError):
        return os.stat(segment.path, follow_symlinks=False).st_size > len(data)
    return False


def _link_of(segment: SegmentFile, number: int) -> bytes | None:
    """The link of one record, read anew: a host may have closed the segment since."""
    with suppress(StoreError):
        data, _ = contents(segment)
        for record in chain.scan(segment.name, data).records:
            if record.number == number:
                return record.link
    return None


def former_files(folder: str) -> list[SegmentFile]:
    """Return the segments written under the former name of this program. They are the oldest ones.

    Segments get their names in order, so the first one that was written since ends the search.
    """
    found: list[SegmentFile] = []
    for segment in segment_files(folder):
        with suppress(StoreError):
            data, _ = contents(segment)
            if chain.is_former(segment.name, data):
                found.append(segment)
            elif data:
                break
    return found


def torn_files(folder: str) -> list[str]:
    """Tails that were cut off when a host recovered."""
    try:
        return sorted(name for name in os.listdir(folder) if TORN in name)
    except OSError:
        return []


# -- calls --------------------------------------------------------------------------------------------------


def interrupted(
    folder: str,
    since: float = 0.0,
    calls: Collection[str] | None = None,
    progress: Progress | None = None,
) -> list[Entry]:
    """Calls that began and never ended, because their host is gone; all, or those that began since a time, or
    those of the given ones: few of them take little time, since hardly a record is about them.

    A host lives as long as it holds a segment. A call may begin in one of its segments and end in another.
    """
    if calls is not None and not calls:
        return []
    sought = None
    if calls is not None and len(calls) <= _CALLS_SOUGHT_MAX and all(map(str.isalnum, calls)):
        sought = [call.encode("utf-8") for call in calls]  # in JSON as they are
    begun: dict[str, tuple[object, Entry]] = {}
    ended: set[str] = set()
    living: list[object] = []
    for segment, data, live in _each(folder, since, progress):
        if sought is not None and not live and not _tells(data, sought):
            continue
        host: object = None
        records: Iterable[chain.Record] = chain.scan(segment.name, data).records
        if sought is not None:
            records = (record for record in records if _opens(record) or _tells(record.body, sought))
        for entry in _entries(segment.name, records):
            what = entry.what
            if what == "begin":
                begun[entry.call] = (host, entry)
            elif what == "end" and begun.pop(entry.call, None) is None:
                ended.add(entry.call)
            elif what == "open":
                host = entry.body.get("host")
        if live:
            living.append(host)
    return [
        entry
        for call, (host, entry) in begun.items()
        if entry.ts >= since and host not in living and call not in ended and (calls is None or call in calls)
    ]


def _opens(record: chain.Record) -> bool:
    return record.body.startswith(b'{"what":"open"')


def _tells(data: bytes, calls: Sequence[bytes]) -> bool:
    return any(call in data for call in calls)


def as_json(entry: Entry, **more: Any) -> JsonObject:
    """A record as the doors print it: its place, a time that people can read, then what it says."""
    return {
        "segment": entry.segment,
        "number": entry.number,
        "time": time_text(entry.ts),
        **entry.body,
        **more,
    }


def time_text(ts: float) -> str:
    """UTC, to the millisecond."""
    when = datetime.fromtimestamp(max(0.0, min(ts, _LATEST)), UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z"


_LATEST: Final = 253_402_300_799.0
