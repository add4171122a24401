"""Names that appeared where tools may write: nothing of ours uses them before a person confirms them.

The kernel holds what is there. In a folder that people work in it cannot hold what is not there, so that is
held by meaning. What a format would load, or a program import, and was not there before tools ran, is written
down in the state folder. Every host of that folder then leaves it alone until a person confirms it.

``Records`` are what was written down. ``OpenHosts`` are what hosts tell each other: what they saw before
their tools ran, and what they hold. A host that was killed leaves that behind, and the next one goes on from
it. Nothing here decides what is loaded or run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from toolcrib import jsontext
from toolcrib.catalog.files import fingerprint
from toolcrib.catalog.places import CONFIGURATION
from toolcrib.errors import StoreError, shortage
from toolcrib.paths import APPEARED_FOLDER, OPEN_HOSTS_FOLDER, is_settled, is_utf8
from toolcrib.store import private

FRESH_S: Final = 0.005
"""So old may be what a look at what was written down by other programs found."""
RECORDS_MAX: Final = 10_000
TREE_FILES_MAX: Final = 10_000
TREE_BYTES_MAX: Final = 64 << 20
"""A folder with more cannot be confirmed: name the folder itself as a source, or move out what is no tool."""
_TOLD_MAX: Final = 3
_STEPS_MAX: Final = 1000
_TRIES: Final = 3
_RECORD_BYTES_MAX: Final = 64 << 10


class How(StrEnum):
    """What happened to a name, in the words that a person is told."""

    APPEARED = "appeared"
    REPLACED = "was replaced"
    CHANGED = "changed"
    MOVED = "may have been moved"


class Appearance(Struct, frozen=True, kw_only=True):
    """One name that appeared."""

    path: str
    """The file, or the outermost folder, that was not there before. With a slash at its end: a folder and
    those above it, whatever is in them."""
    at: float
    """When, as the file system says."""
    tools: tuple[str, ...] = ()
    """The keys of the tools that ran, or may have run, at that time."""
    how: How = How.APPEARED
    confirmed: str = ""
    """Of what a person confirmed."""
    by: str = ""
    used_at: int = 0
    """Since when hosts use it and no tool that began before could change it, in nanoseconds; 0: until then it
    counts only while it is what was confirmed."""


class Seen(Struct, frozen=True, kw_only=True):
    """What was there before tools ran. Every path is real."""

    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """All names in the folders in which tools may make some, and from which something would be loaded."""
    declaring: frozenset[str] = frozenset()
    """Those of these folders in which a declaration may appear."""
    narrow: frozenset[str] = frozenset()
    """Those of these in which new folders count for nothing."""
    above: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Folders in which configuration is looked for, each with the names of what was there."""
    marks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Documents in them, with what tells that one changed."""
    held: frozenset[str] = frozenset()
    """Those of them that no tool could change."""
    code: frozenset[str] = frozenset()
    """Folders of ``names`` that hold code of tools, which imports from them."""

    def newest(self, path: str) -> str | None:
        """The part of a path that was not there; None: all of it was, or no one looked."""
        for at in steps(path):
            folder, name = os.path.split(at)
            names = self.names.get(folder)
            if names is None and name in CONFIGURATION:
                names = self.above.get(folder)
            if names is not None and name not in names:
                return at
        return None


# -- what was written down ----------------------------------------------------------------------------------


class Records:
    """The names that appeared, one file each. Any thread may ask; programs of ours share them."""

    def __init__(self, state: str | None) -> None:
        self._folder = os.path.join(state, APPEARED_FOLDER) if state is not None else ""
        self._known: tuple[object, Mapping[str, Appearance]] = (None, {})
        self._looked = -1.0

    @property
    def folder(self) -> str:
        return self._folder

    def all(self) -> Mapping[str, Appearance]:
        """Every record, by its path."""
        known, now = self._known, time.monotonic()
        if self._looked <= now < self._looked + FRESH_S:
            return known[1]
        stamp = stamp_of(self._folder)
        self._looked = now
        if stamp is None:
            self._known = (None, {})
            return {}
        if known[0] != stamp:
            now_ns = time.time_ns()
            found = [self._read(os.path.join(self._folder, name)) for name in _names(self._folder)]
            read = {each.path: each for each in found if each is not None}
            # Attack: a name written down in the tick of the clock in which we looked, and never seen by us.
            known = self._known = (stamp if is_settled(stamp[2], now_ns, by_our_clock=True) else None, read)
        return known[1]

    def on(self, path: str) -> list[Appearance]:
        """The records of a path and of the folders and links on the way to it, the outermost first."""
        records = self.all()
        return [records[at] for at in steps(path) if at in records] if records else []

    def bars(self, path: str) -> Appearance | None:
        """The record that keeps a path from being used; None: it may be."""
        return next((found for found in self.on(path) if not found.used_at and not is_confirmed(found)), None)

    def covers(self, path: str, changed_ns: int) -> bool:
        """Whether a person confirmed what is at a path, which was changed at that time."""
        return any(
            changed_ns <= found.used_at if found.used_at else is_confirmed(found) for found in self.on(path)
        )

    def are_settled(self) -> bool:
        """Whether all that was written down is used by now."""
        return all(found.used_at or found.how is How.MOVED for found in self.all().values())

    def pending(self) -> list[Appearance]:
        """What was confirmed, and can still be changed by a tool that began before."""
        return [
            found
            for found in self.all().values()
            if found.confirmed and not found.used_at and found.how is not How.MOVED
        ]

    def put(self, found: Appearance) -> None:
        """Write one down. Raises StoreError: what cannot be kept must not be used either."""
        private.folder(self._folder)
        if found.path not in self.all() and len(self.all()) >= RECORDS_MAX:
            raise StoreError(
                f"{self._folder}: {RECORDS_MAX:,} names wait to be confirmed",
                "`toolcrib trust --list` shows them: confirm or delete them",
            )
        body = {
            "path": found.path, "at": found.at, "tools": [*found.tools],
            "how": found.how.value,
            "confirmed": found.confirmed, "by": found.by, "used_at": found.used_at,
        }  # fmt: skip
        private.replace(self._place(found.path), jsontext.compact(body))
        self._looked = -1.0

    def remove(self, path: str) -> None:
        with suppress(OSError):
            os.unlink(self._place(path))
        self._looked = -1.0

    def _place(self, path: str) -> str:
        name = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return os.path.join(self._folder, f"{name}.json")

    def _read(self, place: str) -> Appearance | None:
        plain = read_plain(place)
        try:
            assert isinstance(plain, dict)
            return Appearance(
                path=str(plain["path"]),
                at=float(plain["at"]),
                tools=tuple(map(str, plain["tools"])),
                how=How(plain["how"]),
                confirmed=str(plain["confirmed"]),
                by=str(plain["by"]),
                used_at=int(plain["used_at"]),
            )
        except (AssertionError, KeyError, TypeError, ValueError):
            return None  # half written by a host that was killed: the next look finds the name again


def is_confirmed(found: Appearance) -> bool:
    """Whether a path is what a person confirmed."""
    return found.confirmed != "" and found.confirmed == digest_of(found.path)


def digest_of(path: str) -> str:
    """The digest of a file, or of a folder with everything below it; empty where it cannot be told. With a
    slash at the end: of which folder it is, and which are above it."""
    return _digest_of_place(path) if path.endswith("/") else contents_of(path)[0]


def _digest_of_place(path: str) -> str:
    total = hashlib.sha256()
    try:
        for at in steps(path):
            name = at.encode("utf-8", "surrogateescape")
            total.update(hashlib.sha256(name).digest() + os.lstat(at).st_ino.to_bytes(8, "big"))
    except OSError:
        return ""
    return total.hexdigest()


def contents_of(path: str) -> tuple[str, Mapping[str, str]]:
    """The digest of a file, or of a folder with everything below it, and that of each file's bytes; empty
    where it cannot be told."""
    total = hashlib.sha256()
    files: dict[str, str] = {}
    count, left = 0, TREE_BYTES_MAX
    waiting = [path]
    try:
        while waiting:
            at = waiting.pop()
            status = os.lstat(at)
            name = os.path.relpath(at, path).encode("utf-8", "surrogateescape")
            if stat.S_ISLNK(status.st_mode):
                body = b"link\0" + os.readlink(at).encode("utf-8", "surrogateescape")
            elif stat.S_ISDIR(status.st_mode):
                waiting += sorted((os.path.join(at, inner) for inner in os.listdir(at)), reverse=True)
                body = b"folder"
            elif stat.S_ISREG(status.st_mode):
                content = _content(at, left)
                left -= len(content)
                files[at] = hashlib.sha256(content).hexdigest()
                body = b"file\0" + (b"x" if status.st_mode & 0o111 else b"-") + content
            else:  # Attack: a FIFO that is waited for without end
                body = b"other"
            count += 1
            if count > TREE_FILES_MAX:
                return "", {}
            total.update(hashlib.sha256(name).digest() + hashlib.sha256(body).digest())
    except (OSError, ValueError):
        return "", {}
    return total.hexdigest(), files


def _content(path: str, bytes_max: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError("too long")
    return content


# -- what hosts tell each other -----------------------------------------------------------------------------


class OpenHost(Struct, frozen=True, kw_only=True):
    """A host that is open, or was when it was killed, and lets tools write."""

    place: str
    seen: Seen
    guarded: tuple[str, ...] = ()
    """Folders and files of its tools, which no tool may write."""
    held: tuple[str, ...] = ()
    """What none of its tools that run could ever write."""
    roots: tuple[str, ...] = ()
    """Folders below which its tools may write."""
    tools: tuple[str, ...] = ()
    """Some of those that it let write."""
    since_ns: int = 0
    """When the first of them began."""
    is_alive: bool = True


class OpenHosts:
    """One file for each host whose tools may write. Its lock says that the host is still there."""

    def __init__(self, state: str | None) -> None:
        self._folder = os.path.join(state, OPEN_HOSTS_FOLDER) if state is not None else ""
        self._lock = threading.Lock()
        self._descriptor = -1
        self._own = ""
        self._host = os.getpid()

    @property
    def folder(self) -> str:
        return self._folder

    def others(self) -> list[OpenHost]:
        """What the other hosts of the state folder saw, those that were killed included."""
        found = []
        for name in _names(self._folder):
            place = os.path.join(self._folder, name)
            if place == self._own:
                continue
            # One that is being written cannot be read for a moment.
            plain = next(filter(None, (read_plain(place) for _ in range(_TRIES))), None)
            if isinstance(plain, dict) and (host := _host(place, plain)) is not None:
                found.append(host)
        return found

    def tell(
        self,
        seen: Seen,
        guarded: Sequence[str],
        held: Collection[str],
        roots: Sequence[str],
        tools: Collection[str],
        since_ns: int,
    ) -> None:
        """Say what we saw before our tools ran, where they may write, and what no tool of any host may write.
        Raises StoreError."""
        body = jsontext.compact(
            {
                "names": {folder: sorted(names) for folder, names in seen.names.items()},
                "declaring": sorted(seen.declaring),
                "narrow": sorted(seen.narrow),
                "above": {folder: sorted(names) for folder, names in seen.above.items()},
                "marks": {path: list(mark) for path, mark in seen.marks.items()},
                "held": sorted(seen.held),
                "code": sorted(seen.code),
                "guarded": [*guarded],
                "held by all": [*held],
                "roots": [*roots],
                "tools": [*tools][:_TOLD_MAX],
                "since": since_ns,
            }
        )
        with self._lock:
            if self._descriptor < 0 or self._host != os.getpid():
                self._begin()
            try:
                os.pwrite(self._descriptor, body, 0)
                os.ftruncate(self._descriptor, len(body))
            except OSError as error:
                raise self._trouble(error) from None

    def _begin(self) -> None:
        private.folder(self._folder)
        self._host = os.getpid()
        self._own = os.path.join(self._folder, f"{os.urandom(12).hex()}.json")
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._own, flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise self._trouble(error) from None

    def _trouble(self, error: OSError) -> StoreError:
        _, hint = shortage(error) or (
            "",
            "make room on its disk, and the folder writable for the host's user",
        )
        return StoreError(f"{self._folder}: {(error.strerror or 'it cannot be written').lower()}", hint)

    def end(self) -> None:
        """We hold nothing any more, and what our tools made was looked at."""
        with self._lock:
            if self._descriptor >= 0 and self._host == os.getpid():
                with suppress(OSError):
                    os.unlink(self._own)
                os.close(self._descriptor)
            self._descriptor = -1

    def leave(self) -> None:
        """Count as a host that was killed: what our tools made was not looked at."""
        with self._lock:
            if self._descriptor >= 0 and self._host == os.getpid():
                os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def forget(host: OpenHost) -> None:
        """One that was killed, once what its tools made was looked at."""
        with suppress(OSError):
            os.unlink(host.place)


def _host(place: str, plain: Mapping[str, Any]) -> OpenHost | None:
    try:
        seen = Seen(
            names={str(folder): frozenset(map(str, names)) for folder, names in plain["names"].items()},
            declaring=frozenset(map(str, plain["declaring"])),
            narrow=frozenset(map(str, plain["narrow"])),
            above={str(folder): frozenset(map(str, names)) for folder, names in plain["above"].items()},
            marks={str(path): tuple(map(int, mark)) for path, mark in plain["marks"].items()},
            held=frozenset(map(str, plain["held"])),
            code=frozenset(map(str, plain["code"])),
        )
        return OpenHost(
            place=place,
            seen=seen,
            guarded=tuple(map(str, plain["guarded"])),
            held=tuple(map(str, plain["held by all"])),
            roots=tuple(map(str, plain["roots"])),
            tools=tuple(map(str, plain["tools"])),
            since_ns=int(plain["since"]),
            is_alive=_is_locked(place),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _is_locked(place: str) -> bool:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


# -- parts --------------------------------------------------------------------------------------------------


def steps(path: str) -> Iterator[str]:
    """Every place that an absolute path leads through, the outermost first, links followed one by one.

    Attack: a link that a tool puts on the way, so that a name leads to where it may write.
    """
    at, rest = "/", path.split("/")
    for _ in range(_STEPS_MAX):
        if not rest:
            return
        name, *rest = rest
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        place = os.path.join(at, name)
        yield place
        try:
            target = os.readlink(place)
        except OSError:
            at = place
        else:
            at = "/" if target.startswith("/") else at
            rest = [*target.split("/"), *rest]


def names_in(folder: str) -> frozenset[str]:
    """All names in a folder that are texts: no format loads others, and no program imports them."""
    try:
        return frozenset(filter(is_utf8, os.listdir(folder)))
    except OSError:
        return frozenset()


def stamp_of(folder: str) -> tuple[int, int, int] | None:
    """What tells that names in a folder came or went. Its change time is one that no tool can set."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def mark_of(path: str) -> tuple[int, ...]:
    """What tells that a file changed; empty where there is none."""
    try:
        return fingerprint(os.lstat(path))
    except OSError:
        return ()


def changed_at(path: str) -> float:
    """When a name got what it leads to, as far as the file system tells."""
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except (OSError, ValueError):
        return []


def read_plain(place: str) -> Any:
    """The JSON value of a file of ours; None where there is none."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return jsontext.loads_own(file.read())
    except (OSError, ValueError):
        return None
