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
from typing import Any, Final

from msgspec import Struct, field

from toolcrib import jsontext
from toolcrib.catalog.files import fingerprint
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
_RECORD_BYTES_MAX: Final = 64 << 10


class Appearance(Struct, frozen=True, kw_only=True):
    """One name that appeared."""

    path: str
    """The file, or the outermost folder, that was not there before."""
    at: float
    """When, as the file system says."""
    tools: tuple[str, ...] = ()
    """The keys of the tools that ran, or may have run, at that time."""
    digest: str = ""
    """Of what it held when it was noticed."""
    was_there: bool = False
    """Something else was there before: it was replaced."""
    confirmed: str = ""
    """Of what a person confirmed."""
    by: str = ""
    is_used: bool = False
    """A host uses it since it was confirmed, and holds it: from then on only people can have changed it."""


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

    def above(self, path: str) -> Appearance | None:
        """The record of a path, or of a folder or link on the way to it; None: nothing was written down."""
        records = self.all()
        return next((records[at] for at in steps(path) if at in records), None) if records else None

    def bars(self, path: str) -> Appearance | None:
        """The record that keeps a path from being used; None: it may be."""
        found = self.above(path)
        if found is None or found.is_used:
            return None
        return None if found.confirmed and found.confirmed == digest_of(found.path) else found

    def put(self, found: Appearance) -> None:
        """Write one down. Raises StoreError: what cannot be kept must not be used either."""
        private.folder(self._folder)
        if found.path not in self.all() and len(self.all()) >= RECORDS_MAX:
            raise StoreError(
                f"{self._folder}: {RECORDS_MAX:,} names wait to be confirmed",
                "`toolcrib trust --list` shows them: confirm or delete them",
            )
        body = {
            "path": found.path, "at": found.at, "tools": [*found.tools], "digest": found.digest,
            "was_there": found.was_there,
            "confirmed": found.confirmed, "by": found.by, "is_used": found.is_used,
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
        plain = _read(place)
        try:
            assert plain is not None
            return Appearance(
                path=str(plain["path"]),
                at=float(plain["at"]),
                tools=tuple(map(str, plain["tools"])),
                digest=str(plain["digest"]),
                was_there=plain["was_there"] is True,
                confirmed=str(plain["confirmed"]),
                by=str(plain["by"]),
                is_used=plain["is_used"] is True,
            )
        except (AssertionError, KeyError, TypeError, ValueError):
            return None  # half written by a host that was killed: the next look finds the name again


def bars_configuration(state: str | None, path: str) -> Appearance | None:
    """The record that keeps a configuration file from being used."""
    return Records(state).bars(path)


def digest_of(path: str) -> str:
    """The digest of a file, or of a folder with everything below it; empty where it cannot be told."""
    total = hashlib.sha256()
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
                body = b"file\0" + (b"x" if status.st_mode & 0o111 else b"-") + content
            else:  # Attack: a FIFO that is waited for without end
                body = b"other"
            count += 1
            if count > TREE_FILES_MAX:
                return ""
            total.update(hashlib.sha256(name).digest() + hashlib.sha256(body).digest())
    except (OSError, ValueError):
        return ""
    return total.hexdigest()


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
    tools: tuple[str, ...] = ()
    """Some of those that it let write."""
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
            plain = _read(place)
            if plain is not None and (host := _host(place, plain)) is not None:
                found.append(host)
        return found

    def tell(self, seen: Seen, guarded: Sequence[str], tools: Collection[str]) -> None:
        """Say what we saw before our tools ran, and what no tool of any host may write. Raises StoreError."""
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
                "tools": [*tools][:_TOLD_MAX],
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
        guarded, tools = tuple(map(str, plain["guarded"])), tuple(map(str, plain["tools"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return OpenHost(place=place, seen=seen, guarded=guarded, tools=tools, is_alive=_is_locked(place))


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


def _read(place: str) -> Mapping[str, Any] | None:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            plain = jsontext.loads_own(file.read())
    except (OSError, ValueError):
        return None
    return plain if isinstance(plain, dict) else None
