"""Two digests, never one: of what the model sees, and of what runs.

``seen`` covers name, description and schemas; ``runs`` the invocation and the bytes of the tool's own files.
The bytes are kept with their digest, so that what is started can be what was looked at. Nothing here decides
whether a digest is good.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from toolcrib import jsontext
from toolcrib.calls import commands
from toolcrib.catalog import files
from toolcrib.catalog.sources import SKILL_FILES
from toolcrib.model import CallJavaScript, CallMcp, CallPython, Invocation, RunProcess, Tool
from toolcrib.paths import is_below, is_settled

KEPT_BYTES_MAX: Final = 16 << 20
"""A longer file is digested and started where it lies."""
HELD_BYTES_MAX: Final = 64 << 20
"""All files together; when they are more, the memory is emptied."""
ABSENT: Final = "absent"
"""The digest of a file that need not be there, and is not."""
_NOBODY: Final = (0, 0, 0, 0)
_CHUNK_BYTES: Final = 1 << 20
_TURN_S: Final = 1.0
"""No reader waits longer for its turn: one who held it may be gone with a host that forked."""


class Held(Struct, frozen=True):
    """A file as it was when it was looked at."""

    path: str
    fingerprint: files.Fingerprint
    digest: str
    content: bytes | None
    """None: too long to be kept, or absent."""
    mode: int = 0


class _Kept(NamedTuple):
    """A file that is remembered."""

    held: Held
    reading: int
    """Which one that was."""
    is_settled: bool
    """Whether another fingerprint tells of the next change. Attack: a file that is written over in place
    within the same tick of the file system's clock in which it was read: what was read would be run, or taken
    for what runs, as long as nobody writes to it again."""
    real: str
    """Where it lay, every link followed. Attack: a link that leads elsewhere while the bytes are read, and
    back while their place is looked at."""
    is_link: bool
    """Whether something other than the path itself led there: the path is a link, or was turned meanwhile."""


class Digested(Protocol):
    """Something whose digest is known."""

    @property
    def digest(self) -> str: ...


class Aside(str):
    """A path of a file that need not be there: that it is absent is then part of the digest."""

    __slots__ = ()


def seen(tool: Tool) -> str:
    """The digest of what a model is told about a tool."""
    return jsontext.digest(shown(tool))


def shown(tool: Tool) -> jsontext.JsonObject:
    """What a model is told about a tool."""
    return {
        "name": tool.spoken or tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema.document if tool.input_schema else None,
        "output_schema": tool.output_schema.document if tool.output_schema else None,
    }


def own_files(tool: Tool) -> tuple[str, ...]:
    """The files of the tool's own that a call runs. Programs found by name are not its own."""
    match tool.invocation:
        case RunProcess(program=program, fixed=fixed):
            named = [program, *(part for part in fixed if part == tool.origin.path)]
            return (*(part for part in named if os.path.isabs(part)), *_scripts(tool.invocation))
        case CallPython(file=str() as file) | CallJavaScript(file=file):
            return (file,)
        case CallPython(settings=settings):
            candidates = jsontext.loads_own(settings)
            paths = candidates.get("files", ()) if isinstance(candidates, dict) else ()
            return tuple(path for path in paths if os.path.isfile(path))[:1]
        case _:
            return ()


def _scripts(run: RunProcess) -> Iterator[Aside]:
    """Attack: a resolver's script, which runs before the call, is replaced by one that nobody looked at."""
    return map(Aside, commands.resolver_scripts(run))


def how(invocation: Invocation) -> str:
    """The digest of an invocation itself, without the files it names."""
    parts = {key: plain(value) for key, value in asdict(invocation).items()}
    return jsontext.digest({"kind": type(invocation).__name__, **parts})


def plain(value: object) -> jsontext.JsonValue:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


# -- what a lock covers -------------------------------------------------------------------------------------


def pinned_files(tool: Tool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that a lock of the tool covers, and the folders in which it covers every file."""
    found: dict[str, None] = {}
    folders: tuple[str, ...] = ()
    match tool.invocation:
        case RunProcess(skill_dir=str() as folder):
            found |= dict.fromkeys(Aside(os.path.join(folder, name)) for name in SKILL_FILES)
            folders = (os.path.join(folder, "scripts"),)
        case CallPython(settings=settings, executor=str()):
            # Attack: a handler of the same name in a place that is looked at before that of the locked one.
            candidates = jsontext.loads_own(settings)
            paths = candidates.get("files", ()) if isinstance(candidates, dict) else ()
            found |= dict.fromkeys(map(Aside, paths))
    if not (isinstance(tool.invocation, CallMcp) and not tool.chain):  # a list of servers is no tool's own
        found[tool.origin.path] = None
    if tool.signature is not None:  # whatever else the record was compiled from: its chain, its server
        found |= dict.fromkeys(element.path for element in tool.signature.others)
    found |= dict.fromkeys(path for path in own_files(tool) if path not in found)
    return tuple(path for path in found if os.path.isabs(path)), folders


def combined(how_digest: str, held: Sequence[Digested | None]) -> str | None:
    """The digest of an invocation and its files; None where one could not be read."""
    if not held:
        return how_digest
    parts = [how_digest]
    for file in held:
        if file is None:
            return None
        parts.append(file.digest)
    return hashlib.sha256("\n".join(parts).encode("ascii")).hexdigest()


class Contents:
    """Own files by path, read again only when they changed. Used from many threads."""

    absent: Final = ABSENT

    def __init__(self, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._kept: dict[str, _Kept] = {}
        self._bytes = 0
        self._readings = 0
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """One at a time: many calls at once shall hold one file between them, and one descriptor."""

    def file(self, path: str) -> Held | None:
        """The file as it is now; None where it cannot be read."""
        held: Held | None = None
        try:
            seen = files.fingerprint(os.stat(path))
            kept = self._kept.get(path)
            if kept is not None and kept.is_settled and kept.held.fingerprint == seen:
                return kept.held
            held = self._read(path, seen)
        except OSError:
            pass
        if held is None and isinstance(path, Aside):
            return Held(str(path), _NOBODY, ABSENT, None)
        return held

    def is_inside(self, held: Held, root: str) -> bool:
        """Whether a file, as it was read, really lies at or below ``root`` (a real path)."""
        kept = self._kept.get(held.path)
        if kept is not None and kept.held is held and is_below(kept.real, (root,)):
            return True
        real = self.real(held)
        return real is not None and is_below(real, (root,))

    def real(self, held: Held) -> str | None:
        """Where a file, as it was read, really lies; None where another one lies by now."""
        kept = self._kept.get(held.path)
        if kept is not None and kept.held is held:
            with suppress(OSError):
                if files.fingerprint(os.lstat(kept.real)) == held.fingerprint:
                    return kept.real
        place = files.place(held.path)  # a folder above it has another name by now, or it was read again
        return place.real if place is not None and place.fingerprint == held.fingerprint else None

    def is_link(self, held: Held) -> bool:
        """Whether a file's path is a link, as it was when the file was read."""
        kept = self._kept.get(held.path)
        return kept.is_link if kept is not None and kept.held is held else os.path.islink(held.path)

    def runs(self, how_digest: str, paths: tuple[str, ...]) -> str | None:
        """The digest of what would run now; None where a file cannot be read."""
        return self.together(how_digest, tuple([self.file(path) for path in paths]))

    def together(self, how_digest: str, held: tuple[Held | None, ...]) -> str | None:
        """The digest of an invocation and its files; None where one could not be read."""
        return combined(how_digest, held)

    def _read(self, path: str, seen: files.Fingerprint) -> Held | None:
        earlier = self._readings
        is_turn = self._reading.acquire(timeout=_TURN_S)
        try:
            kept = self._kept.get(path)
            if (
                kept is not None
                and kept.held.fingerprint == seen
                and (kept.is_settled or kept.reading > earlier)  # by the first of many calls at once
            ):
                return kept.held
            self._readings = reading = self._readings + 1
            now_ns = self._clock_ns()
            found = _read(str(path))
            if found is None:
                return None
            held, real = found
            if kept is not None and kept.held == held:
                held = kept.held
            folder, name = os.path.split(held.path)
            is_link = os.path.join(os.path.realpath(folder), name) != real
            self._keep(_Kept(held, reading, is_settled(held.fingerprint[3], now_ns), real, is_link))
            return held
        finally:
            if is_turn:
                self._reading.release()

    def _keep(self, kept: _Kept) -> None:
        with self._lock:
            path, size = kept.held.path, len(kept.held.content or b"")
            before = self._kept.get(path)
            self._bytes += size - (0 if before is None else len(before.held.content or b""))
            if self._bytes > HELD_BYTES_MAX:
                self._kept.clear()
                self._bytes = size
            self._kept[path] = kept


def _read(path: str) -> tuple[Held, str] | None:
    """Read, digest and find the place through one descriptor, so that all speak of the same file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        real = files.real(descriptor, path)
        keep = status.st_size <= KEPT_BYTES_MAX
        digest, content = hashlib.sha256(), bytearray()
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            digest.update(chunk)
            if keep:
                content += chunk
                keep = len(content) <= KEPT_BYTES_MAX
    finally:
        os.close(descriptor)
    kept = bytes(content) if keep else None
    return Held(path, files.fingerprint(status), digest.hexdigest(), kept, status.st_mode), real
