"""When tools could write, and where: what was changed then may be theirs.

The kernel sets the time at which a file was last written, renamed or linked, and no tool can. So each host
keeps when its tools that may write ran, where they could write, and what was held meanwhile. A later host
compares: a declaration or code that was changed at such a time waits for a person. Snapshots
(``unconfirmed.py``) notice names in folders that are looked through; this holds for every other folder.

Bounded: of many runs, those that are closest together count as one.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.catalog.appeared import (
    Appearance,
    How,
    OpenHost,
    OpenHosts,
    Records,
    contents_of,
    is_confirmed,
    read_plain,
    stamp_of,
    steps,
)
from toolcrib.paths import SETTLED_NS, TICKS_NS, WRITES_FILE, is_below, is_utf8, upwards
from toolcrib.store import private

SPANS_MAX: Final = 256
"""Of one setup."""
SETUPS_MAX: Final = 32
HELD_MAX: Final = 1000
"""Where more was held, single files of it do not count as held: a person is asked once more."""
_TOOLS_MAX: Final = 3
_MILLISECOND_NS: Final = 1_000_000
_FOR_EVER: Final = 1 << 63

Spans = tuple[tuple[int, int], ...]
"""Beginnings and ends, in nanoseconds of the wall clock; in order, and none overlaps another."""


class Writes(Struct, frozen=True, kw_only=True):
    """When tools of one setup could write, and where. Every path is real."""

    roots: tuple[str, ...] = ()
    """They could write below these folders."""
    held: frozenset[str] = frozenset()
    """Not here, nor below it."""
    looked: frozenset[str] = frozenset()
    """Folders that a snapshot was taken of, so that they are known not to be others."""
    tools: tuple[str, ...] = ()
    spans: Spans = ()

    def reaches(self, path: str) -> bool:
        """Whether the tools could change, rename or replace what is at a path."""
        return (
            path not in self.roots
            and is_below(path, self.roots)
            and not any(at in self.held for at in upwards(path))
        )

    def reaches_folder(self, path: str) -> bool:
        """Whether the tools could put another folder in a folder's place. A folder above something held is a
        mount, which nothing can take the place of."""
        return (
            path not in self.looked
            and self.reaches(path)
            and not any(is_below(held, (path,)) for held in self.held)
        )

    def ran_at(self, changed_ns: int) -> bool:
        """Whether they ran when something was changed, by the time that the file system gave it."""
        # The clock of a file system stands still between its ticks: a change can seem older than it is.
        tick_ns = TICKS_NS if changed_ns % _MILLISECOND_NS else SETTLED_NS
        at = bisect_right(self.spans, (changed_ns + tick_ns, _FOR_EVER))
        return at > 0 and changed_ns <= self.spans[at - 1][1]


def joined(spans: Iterable[tuple[int, int]], count_max: int = SPANS_MAX) -> Spans:
    """Spans in order, at most so many: those that are closest together become one."""
    found: list[tuple[int, int]] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1] + TICKS_NS:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    while len(found) > count_max:
        at = min(range(1, len(found)), key=lambda number: found[number][0] - found[number - 1][1])
        found[at - 1 : at + 1] = [(found[at - 1][0], found[at][1])]
    return tuple(found)


# -- what is kept -------------------------------------------------------------------------------------------


class Past:
    """The writes of all hosts of a state folder that have ended. Any thread may ask."""

    def __init__(self, state: str | None) -> None:
        self._path = os.path.join(state, WRITES_FILE) if state is not None else ""
        self._known: tuple[object, tuple[Writes, ...]] = (None, ())

    def all(self) -> tuple[Writes, ...]:
        stamp = stamp_of(self._path) if self._path else None
        if stamp is None:
            return ()
        if self._known[0] != stamp:
            self._known = (stamp, self._read())
        return self._known[1]

    def add(self, found: Writes) -> None:
        """Keep some more. Raises StoreError: then the host must count as one that still runs."""
        if not found.spans or not found.roots:
            return
        if len(found.held) > HELD_MAX:
            found = replace(found, held=frozenset(path for path in found.held if os.path.isdir(path)))
        private.make_folders(os.path.dirname(self._path))
        with private.locked(f"{self._path}.lock"):
            setups = [*self._read()]
            for at, known in enumerate(setups):
                if (known.roots, known.held, known.looked) == (found.roots, found.held, found.looked):
                    found = _both(known, found)
                    del setups[at]
                    break
            setups.append(found)
            while len(setups) > SETUPS_MAX:
                setups[:2] = [_both(setups[0], setups[1])]
            private.replace(self._path, jsontext.compact([*map(_plain, setups)]))

    def _read(self) -> tuple[Writes, ...]:
        plain = read_plain(self._path)
        try:
            return tuple(map(_writes, plain)) if isinstance(plain, list) else ()
        except (KeyError, TypeError, ValueError):
            return ()


def _both(one: Writes, other: Writes) -> Writes:
    """Two setups as one: whatever either could change."""
    return Writes(
        roots=tuple(dict.fromkeys((*one.roots, *other.roots))),
        held=one.held & other.held,
        looked=one.looked & other.looked,
        tools=tuple(dict.fromkeys((*other.tools, *one.tools)))[:_TOOLS_MAX],
        spans=joined((*one.spans, *other.spans)),
    )


def _plain(writes: Writes) -> Mapping[str, Any]:
    return {
        "roots": [*writes.roots],
        "held": sorted(writes.held),
        "looked": sorted(writes.looked),
        "tools": [*writes.tools],
        "spans": [[*span] for span in writes.spans],
    }


def _writes(plain: Mapping[str, Any]) -> Writes:
    return Writes(
        roots=tuple(map(str, plain["roots"])),
        held=frozenset(map(str, plain["held"])),
        looked=frozenset(map(str, plain["looked"])),
        tools=tuple(map(str, plain["tools"])),
        spans=tuple((int(began), int(ended)) for began, ended in plain["spans"]),
    )


def of_host(host: OpenHost, now_ns: int) -> Writes:
    """What tools of a host that is open, or was killed, could write until now."""
    spans = ((host.since_ns, now_ns),) if host.tools else ()
    return Writes(
        roots=host.roots,
        held=frozenset(host.held),
        looked=frozenset(host.seen.names),
        tools=host.tools,
        spans=spans,
    )


# -- what was changed ---------------------------------------------------------------------------------------


def known(state: str | None) -> tuple[Writes, ...]:
    """What tools of all hosts of a state folder could write, those that are open included."""
    now_ns = time.time_ns()
    open_hosts = (of_host(host, now_ns) for host in OpenHosts(state).others())
    return (*Past(state).all(), *open_hosts)


class LeftAlone:
    """What must not be used, as far as that matters before a catalog is loaded. What is found is written
    down."""

    def __init__(self, state: str, *, with_folders: bool = True) -> None:
        self._records = Records(state)
        self._known = known(state)
        self._with_folders = with_folders

    def __call__(self, path: str) -> Appearance | None:
        found = self._records.bars(path)
        if found is None:
            found = appearance_of(path, self._records, self._known, with_folders=self._with_folders)
            if found is not None:
                self._records.put(found)
        return found


def bars_configuration(state: str, path: str, content: bytes) -> Appearance | None:
    """Why a configuration file with these bytes must not be used."""
    records = Records(state)
    found = LeftAlone(state, with_folders=False)(path)
    if found is None:
        for pending in records.pending():
            digest = contents_of(pending.path)[1].get(os.path.realpath(path))
            if digest is not None and digest != hashlib.sha256(content).hexdigest():
                return pending
    return found


class Folder(Struct, frozen=True):
    """A folder of documents."""

    real: str
    record: Appearance | None = None
    """What keeps everything in it from being used."""
    moved: Appearance | None = None
    """It, or one above it, may have been moved there by a tool."""
    is_held: bool = False
    """No tool could ever write in it."""


class Folders:
    """Folders of documents, each looked at once, and most of them by one look or none."""

    def __init__(self, records: Records, known: Sequence[Writes]) -> None:
        self._records = records
        self._known = known
        self._ran = Writes(spans=joined(span for writes in known for span in writes.spans))
        self._held = frozenset.intersection(*(writes.held for writes in known)) if known else frozenset()
        self._found: dict[str, Folder] = {}

    def of(self, path: str) -> Folder:
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._below(path) or self._look(path)
        return found

    def _below(self, path: str) -> Folder | None:
        """One whose folder tells all about it; None: it does not."""
        above, _, name = path.rpartition("/")
        records = self._records.all()
        if not above or name in ("", ".."):
            return None
        folder = self.of(above)
        if folder.is_held and not records:
            return folder
        try:
            status = os.lstat(path)
        except OSError:
            return None
        is_plain = stat.S_ISDIR(status.st_mode) and not self._ran.ran_at(status.st_ctime_ns)
        real = f"{folder.real}/{name}"
        if not is_plain or folder.moved is not None or real in records or f"{real}/" in records:
            return None
        return Folder(real, folder.record, is_held=folder.is_held or real in self._held)

    def _look(self, path: str) -> Folder:
        real = os.path.realpath(path)
        return Folder(
            real,
            self._records.bars(path),
            appearance_of(f"{path}/", self._records, self._known) if self._known else None,
            any(at in self._held for at in upwards(real)),
        )


def appearance_of(
    path: str, records: Records, known: Sequence[Writes], *, with_folders: bool = True
) -> Appearance | None:
    """Why what is at a path must not be used: it was changed while tools could write there, and no person
    confirmed it since. None: nothing of it was. With a slash at its end: all that is in a folder.
    ``with_folders``: a folder on the way counts as well. Nothing is written down."""
    places = [*steps(path)]
    if not places:
        return None
    last = "" if path.endswith("/") else places[-1]
    moved: tuple[float, list[Writes]] | None = None
    for at in reversed(places):
        confirmed = records.all().get(os.path.join(at, ""))
        if confirmed is not None and is_confirmed(confirmed):
            break  # a person said that this folder, and those above it, are theirs
        there = [writes for writes in known if writes.reaches(at)]
        if not there:
            continue
        try:
            status = os.lstat(at)
        except OSError:
            return None
        is_on_the_way = at != last and stat.S_ISDIR(status.st_mode)
        ran = [
            writes
            for writes in there
            if writes.ran_at(status.st_ctime_ns) and (not is_on_the_way or writes.reaches_folder(at))
        ]
        if not ran or records.covers(at, status.st_ctime_ns):
            continue
        if not is_on_the_way:
            at = at if is_utf8(at) else path  # Attack: a link to a name that cannot be kept
            return Appearance(path=at, at=status.st_ctime, tools=_tools(ran), how=How.CHANGED)
        moved = moved or (status.st_ctime, ran)
    if moved is None or not with_folders:
        return None
    # Attack: a folder that was there all along, with declarations in it, moved to where they are looked for.
    # No time of a file in it tells that. The folders on the way are confirmed by what they are.
    place = os.path.join(os.path.dirname(last) if last else places[-1], "")
    changed_at, ran = moved
    return Appearance(path=place, at=changed_at, tools=_tools(ran), how=How.MOVED)


def _tools(ran: Sequence[Writes]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tool for writes in reversed(ran) for tool in writes.tools))[:_TOOLS_MAX]
