"""Tools compared with their lock: at every call, in a survey of all of them, and when a person locks them.

A lock lies where it is committed, and so where whoever sends a change can change it, too. Therefore the host
keeps what it approved itself, in its state folder: an entry that says something else than this host approved
refuses the tool, a lock that is gone refuses all, and only what this host approved, or a project that it
trusts, vouches for a tool. A lock that merely came with a project may refuse, never allow.

What an entry is and how a difference is told is ``lock.py``; what a tool's files are, ``catalog/digests.py``.
Whether a tool that differs may run is policy's business.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import former, jsontext
from toolcrib.errors import SourceError, StoreError
from toolcrib.model import (
    LOCK_NAME,
    LOCKS,
    CallFunction,
    CallMcp,
    NotCallable,
    Problem,
    Role,
    Severity,
    Tool,
    ToolCall,
    Trust,
    Vetted,
)
from toolcrib.paths import is_settled, is_utf8
from toolcrib.store import private
from toolcrib.store.keep import lock_memory
from toolcrib.trust import lock as locks
from toolcrib.trust.lock import Drift, Entry, Lock, Move, PinnedFile, Watched

TEXT_BYTES_MAX: Final = 256 << 10
"""A longer file is not kept for showing later how it changed."""
TEXTS_BYTES_MAX: Final = 16 << 20
"""Of one lock."""

_APPROVED: Final = "approved.json"
_GUARD: Final = "guard"
_DEPTH_MAX: Final = 24
_KNOWN_MAX: Final = 4096
_FRESH_S: Final = 0.01
_NO_STAMP: Final = (0, 0, 0, 0, 0)
_CHECK: Final = "`toolcrib lock --check` shows the difference"
_FORGOTTEN: Final = (
    "what was locked on this machine cannot be read",
    "run `toolcrib lock` again, or `toolcrib lock --forget`",
)
_IMPORTING: Final = (".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
_PINNED: Final = Vetted(trust=Trust.PINNED)
_REFUSED: Final = (Trust.UNTRUSTED, Trust.TAMPERED, Trust.DRIFTED, Trust.BLOCKED)

_Stamp = tuple[int, int, int, int, int]


class Held(Protocol):
    """A file as it was when it was looked at."""

    @property
    def digest(self) -> str: ...
    @property
    def content(self) -> bytes | None: ...
    @property
    def mode(self) -> int: ...


class Beside(Held, Protocol):
    """The same with its path."""

    @property
    def path(self) -> str: ...


class Contents(Protocol):
    """Files by path, read again only when they changed."""

    @property
    def absent(self) -> str:
        """The digest of a file that need not be there, and is not."""
        ...

    def file(self, path: str) -> Held | None: ...

    def together(self, how_digest: str, held: tuple[Any, ...]) -> str | None: ...


class Item(Struct, frozen=True, kw_only=True):
    """How one tool, or one entry without a tool, stands to the lock."""

    key: str
    path: str
    """The declaration; for an entry without a tool, as the lock names it."""
    trust: Trust
    change: str
    """``same``, ``changed``, ``added`` (the lock does not know it) or ``removed`` (no tool of that key)."""
    message: str = ""
    drift: Drift | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """How all tools stand to the lock."""

    items: tuple[Item, ...] = ()
    moves: tuple[Move, ...] = ()
    refusal: Vetted | None = None
    """Why everything is refused: the lock is broken, or gone."""


class _Book(Struct, frozen=True, kw_only=True):
    """The lock and what this host approved of it, as they were read."""

    lock: Lock
    approved: Mapping[str, Entry]
    programs: Mapping[str, str]
    """Where the programs of the machine lay when this host approved the entries that name them."""
    names: Mapping[str, Entry]
    trusted: bool = False
    refusal: Vetted | None = None


class _Look(Struct, frozen=True):
    """One look at a tool's files and programs. Everything that is compared is compared with the same look.

    Attack: a file that is good whenever the lock is asked, and another one whenever the call is.
    """

    paths: tuple[str, ...]
    held: tuple[Held | None, ...]
    programs: tuple[tuple[str, str], ...]
    """Names, each with where it really lies."""


class _Finding(Struct, frozen=True):
    """What is known about a tool for the very files that were looked at."""

    book: _Book
    look: _Look | None
    trust: Trust | None
    """DRIFTED; UNSIGNED: the lock does not know it; PINNED: approved here; None: as another locked it."""
    message: str = ""


class MadeByTools(Struct, frozen=True):
    """Why a file must not be used: a tool may have made it, or changed it."""

    message: str
    hint: str
    is_new: bool
    """There was none before."""


class Pinned(Struct, eq=False):
    """What one lock said of one tool last, and for which files."""

    watched: Watched
    found: _Finding | None = None
    objection: tuple[_Book, _Look, Vetted | None] | None = None


LockNotes: TypeAlias = "dict[Pins, Pinned]"
"""Of one tool, by the locks that were asked: the host's own, and others that were written on this machine."""


class _Unlockable(Exception):
    """A tool whose files cannot be pinned, and why."""


def is_covered(tool: Tool) -> bool:
    """Whether a lock speaks about a tool: not about what nobody can call, nor about the host's own code."""
    return (
        tool.role is Role.TOOL
        and not isinstance(tool.invocation, (CallFunction, NotCallable))
        and tool.origin.path != "code"
    )


def is_server(tool: Tool) -> bool:
    """Whether a record stands for an MCP server itself."""
    return isinstance(tool.invocation, CallMcp) and tool.key.endswith("/")


class Pins:
    """The lock in one folder, for one host. Used from many threads."""

    def __init__(
        self,
        folder: str,
        *,
        home: str,
        state: str | None,
        path: str,
        contents: Contents,
        watch: Callable[[Tool], Watched],
        trusted: Callable[[str, str], bool] = lambda _path, _digest: False,
        other: Callable[[str], Pins] | None = None,
        shadows: Callable[[str, bool], Sequence[Beside]] = lambda _path, _above: (),
        made_by_tools: Callable[[str], MadeByTools | None] = lambda _path: None,
    ) -> None:
        """``other`` makes those of another folder's lock; ``shadows`` are the files beside a program
        that it would import. ``made_by_tools``: why a file must not be used."""
        self._shadows = shadows
        self._made_by_tools = made_by_tools
        self.path = os.path.join(folder, LOCK_NAME)
        self._folder = folder
        self._home = home
        self._search = [each for each in path.split(os.pathsep) if os.path.isabs(each)]
        self._contents = contents
        self._watch = watch
        self._trusted = trusted
        self._state = state
        self._memory = lock_memory(state, self.path) if state is not None else None
        formerly = os.path.join(folder, former.name_of(LOCK_NAME))
        self._former = lock_memory(state, formerly) if state is not None else ""
        """What this host approved of the lock under its former name."""
        self._was_locked = os.path.lexists(os.path.join(self._former, _APPROVED)) if self._former else False
        self._other = other
        self._others: dict[str, tuple[_Stamp, tuple[Pins, ...]]] = {}
        self._made: dict[str, Pins] = {}
        self._reading = threading.Lock()
        self._read: tuple[tuple[_Stamp | None, _Stamp | None], _Book | None] | None = None
        self._listed: dict[str, tuple[tuple[tuple[str, _Stamp], ...], tuple[str, ...]]] = {}
        self._missing: dict[str, tuple[str, _Stamp, Held]] = {}
        self._programs: dict[str, tuple[tuple[tuple[str, _Stamp], ...], str]] = {}
        self._fresh: set[str] = set()
        self._searched = -1.0

    # -- one call -------------------------------------------------------------------------------------------

    def vet(
        self, tool: Tool, call: ToolCall | None, vetted: Vetted, notes: LockNotes | None = None
    ) -> Vetted:
        """What is known about a tool's bytes once its lock was asked, too. ``notes`` are this tool's, to be
        handed in again the next time: what was compared is compared again only where a file changed."""
        notes = {} if notes is None else notes
        if vetted.trust in _REFUSED or not is_covered(tool):
            return vetted
        book = self._book()
        if book is not None and book.refusal is not None:
            return book.refusal
        found = None
        if book is not None:
            watched = self._noted(tool, notes).watched
            found = self._finding(book, tool, notes)
            if found.trust is Trust.DRIFTED:
                hint = f"{_CHECK}, `toolcrib lock --update {tool.key}` approves it"
                return Vetted(trust=Trust.DRIFTED, message=found.message, hint=hint)
            # Attack: a file that is replaced between the digest of the call and this look. Runtimes let run
            # what the call's digest says, so it must speak of the files that were compared with the lock.
            if found.trust is not Trust.UNSIGNED and self._is_swapped(call, watched, found.look):
                return _swapped(tool)
            if found.trust is Trust.PINNED:
                return _PINNED if vetted.trust is Trust.UNSIGNED and not vetted.message else vetted
        # Attack: calling by another lock, or none, so that the one in which it was approved is not asked: a
        # configuration that turns up or is gone, another current folder. Approved here is approved anywhere.
        for other in self._elsewhere(tool.origin.path):
            objection = other.objection(tool, call, notes)
            if objection is not None:
                return objection
        if found is None or found.trust is not Trust.UNSIGNED:
            return vetted
        if is_server(tool):  # asking a new server what it offers is no call of what it offers
            return vetted
        if vetted.trust is not Trust.UNSIGNED or tool.signature is not None:
            return vetted
        hint = f"look at it, then `toolcrib lock --update {tool.key}` approves it"
        return Vetted(trust=Trust.UNSIGNED, message=found.message, hint=hint)

    def holds(self, notes: LockNotes) -> bool:
        """Whether the tool of these notes was as it was approved, when it was last vetted."""
        pinned = notes.get(self)
        return pinned is not None and pinned.found is not None and pinned.found.trust is Trust.PINNED

    def _is_swapped(self, call: ToolCall | None, watched: Watched, look: _Look | None) -> bool:
        return call is not None and self._runs(watched, look) != call.runs_digest

    # -- locks of other folders -----------------------------------------------------------------------------

    def entry_of(self, path: str, format: str) -> Entry | None:
        """What was locked of the tool of a format that a file declares: by this lock, by what this host
        approved of it, or by another lock that is asked about the file."""
        for pins in (self, *self._elsewhere(path)):
            book, shown = pins._book(), pins._shown(path)
            for entry in (*book.lock.entries.values(), *book.approved.values()) if book is not None else ():
                if entry.source == shown and entry.key.partition(":")[0] == format:
                    return entry
        return None

    def _elsewhere(self, path: str) -> tuple[Pins, ...]:
        """The locks above a declaration, and above where we are, that were written on this machine."""
        if self._other is None or self._state is None:
            return ()
        stamp = _stamp(os.path.join(self._state, LOCKS))
        if stamp == _NO_STAMP:
            return ()
        folder = os.path.dirname(path) if os.path.isabs(path) else ""
        known = self._others.get(folder)
        if known is None or known[0] != stamp:
            if len(self._others) >= _KNOWN_MAX:
                self._others.clear()
            known = self._others[folder] = (stamp, tuple(self._written_above(folder)))
        return known[1]

    def _written_above(self, folder: str) -> Iterator[Pins]:
        assert self._state is not None
        assert self._other is not None
        starts = [self._folder, folder, os.path.realpath(folder)] if folder else [self._folder]
        with suppress(OSError):
            starts.append(os.getcwd())
        places = dict.fromkeys(place for start in starts for place in _above(start))
        memories: dict[str, str] = {}
        for place in places:
            memory = lock_memory(self._state, os.path.join(place, LOCK_NAME))
            if memory != self._memory and os.path.isdir(memory):
                memories.setdefault(memory, place)
        for memory, place in memories.items():
            if memory not in self._made:
                self._made[memory] = self._other(place)
            yield self._made[memory]

    def objection(self, tool: Tool, call: ToolCall | None, notes: LockNotes) -> Vetted | None:
        """Why a tool that is called by another lock must not run: this host approved it otherwise, here."""
        book = self._book()
        if book is None:
            return None
        pinned = self._noted(tool, notes)
        watched = pinned.watched
        source = watched.source or self._shown(tool.origin.path)
        entries = book.lock.entries if book.trusted else book.approved
        siblings = [entry for entry in entries.values() if entry.source == source]
        if not siblings:
            return None
        if book.refusal is not None:
            return replace(book.refusal, hint=f"in {self._folder}: {book.refusal.hint}")
        there = f"it was locked in {self._folder}: there {_CHECK}, `toolcrib lock --update NAME` approves it"
        try:
            look = self._look(watched)
        except _Unlockable as why:
            return Vetted(trust=Trust.DRIFTED, message=f"{tool.name}: {why}", hint=there)
        known = pinned.objection
        if known is None or known[0] is not book or known[1] != look:
            found = self._object(tool, siblings, watched, look)
            objection = Vetted(trust=Trust.DRIFTED, message=found, hint=there) if found else None
            known = pinned.objection = (book, look, objection)
        if known[2] is None and self._is_swapped(call, watched, look):
            return _swapped(tool)
        return known[2]

    def _object(self, tool: Tool, siblings: Sequence[Entry], watched: Watched, look: _Look) -> str:
        entry = next((entry for entry in siblings if entry.name == tool.name), None)
        if entry is None:
            return f"{tool.name} was added to what was locked"
        try:
            differs = locks.drift(entry, self._entry(tool, watched, look))
        except _Unlockable as why:
            return f"{tool.name}: {why}"
        return differs.sentence if differs is not None else ""

    def _finding(self, book: _Book, tool: Tool, notes: LockNotes) -> _Finding:
        pinned = self._noted(tool, notes)
        try:
            look = self._look(pinned.watched)
        except _Unlockable as why:
            return _Finding(book, None, Trust.DRIFTED, f"{tool.name}: {why}")
        known = pinned.found
        if known is not None and known.book is book and known.look == look:
            return known
        pinned.found = found = _Finding(book, look, *self._judge(book, tool, pinned.watched, look))
        return found

    def _judge(self, book: _Book, tool: Tool, watched: Watched, look: _Look) -> tuple[Trust | None, str]:
        entry, approved = book.lock.entries.get(tool.key), book.approved.get(tool.key)
        if entry is None:
            if approved is not None and not book.trusted:
                # Attack: taking an entry out of the lock, so that the tool counts as one nobody looked at.
                return Trust.DRIFTED, f"{tool.name}: its entry was taken out of {LOCK_NAME}"
            owner = book.names.get(tool.name) if not is_server(tool) else None
            if owner is not None:
                # Attack: a new tool that takes the name under which a model knows an approved one.
                message = f"{tool.key} takes the name {tool.name}, which is locked as {owner.key}"
                return Trust.DRIFTED, message
            return Trust.UNSIGNED, f"{tool.name} is not in {LOCK_NAME}"
        try:
            now = self._entry(tool, watched, look)
        except _Unlockable as why:
            return Trust.DRIFTED, f"{tool.name}: {why}"
        differs = locks.drift(entry, now)
        if differs is not None:
            return Trust.DRIFTED, differs.sentence
        if book.trusted:
            return Trust.PINNED, ""
        if approved is None:
            return None, ""
        if approved != entry:
            # Attack: a change that comes with a lock changed to fit it.
            message = f"{tool.name}: {LOCK_NAME} says something else than was approved on this machine"
            return Trust.DRIFTED, message
        for name, is_ in look.programs:
            was = book.programs.get(name)
            if was and is_ and was != is_:
                # Attack: a program of the same name in a folder that comes earlier on PATH.
                message = f"{tool.name}: the program {os.path.basename(name)} was {was} and is {is_}"
                return Trust.DRIFTED, message
        return Trust.PINNED, ""

    # -- a tool as it is now --------------------------------------------------------------------------------

    def now(self, tool: Tool) -> Entry:
        """The entry of a tool as it is. Raises _Unlockable."""
        watched = self._watch(tool)
        return self._entry(tool, watched, self._look(watched))

    def _look(self, watched: Watched) -> _Look:
        paths = self._paths(watched)
        stamps: dict[str, _Stamp] = {}
        held = tuple([self._file(path, stamps) for path in paths])
        names = self._named_programs(watched, paths, held)
        for path, file in zip(watched.files, held, strict=False):
            if file is not None and _imports(path, file, watched):
                beside = self._shadows(path, watched.imports_above)
                more = {each.path: each for each in beside if each.path not in paths}
                paths, held = (*paths, *more), (*held, *more.values())
        return _Look(paths, held, tuple([(name, self._program(name)) for name in names]))

    def _file(self, path: str, stamps: dict[str, _Stamp]) -> Held | None:
        """A file as it is. One that need not be there, and was not, is looked for again only when its folder
        changed. ``stamps`` are the folders that were looked at just now."""
        missing = self._missing.get(path)
        if missing is not None:
            folder, stamp, held = missing
            now = stamps.get(folder)
            if now is None:
                now = stamps[folder] = _stamp(folder)
            if now == stamp:
                return held
            del self._missing[path]
        folder = os.path.dirname(path)
        stamp = stamps.get(folder) or _stamp(folder)
        found = self._contents.file(path)
        if found is not None and found.digest == self._contents.absent and _is_settled(stamp):
            if len(self._missing) >= _KNOWN_MAX:
                self._missing.clear()
            self._missing[path] = (folder, stamp, found)
        return found

    def _runs(self, watched: Watched, look: _Look | None) -> str | None:
        """The digest that a call would carry which runs what was looked at."""
        assert look is not None
        places = look.paths
        own = tuple(
            [
                look.held[places.index(path)] if path in places else self._contents.file(path)
                for path in watched.own
            ]
        )
        return self._contents.together(watched.how, own)

    def _entry(self, tool: Tool, watched: Watched, look: _Look) -> Entry:
        by_path = dict(zip(look.paths, look.held, strict=True))
        files: dict[str, PinnedFile] = {}
        for path, file in by_path.items():
            if file is None:
                raise _Unlockable(f"{self._shown(path)} cannot be read")
            if not is_utf8(path):
                raise _Unlockable("a file of it has a name that is not UTF-8")
            if file.digest != self._contents.absent:
                shown = self._shown(path)
                digest, mode = f"sha256:{file.digest}", locks.mode_text(file.mode)
                files[shown] = PinnedFile(path=shown, digest=digest, mode=mode)
        if len(files) > locks.FILES_MAX:
            raise _Unlockable(f"it has more than {locks.FILES_MAX:,} files")
        own = [by_path[path] for path in watched.own if path in by_path]
        programs = {os.path.basename(name): os.path.basename(real) for name, real in look.programs}
        return Entry(
            key=tool.key,
            name=tool.name,
            source=watched.source or self._shown(tool.origin.path),
            seen=watched.seen,
            shown=watched.shown,
            asks=locks.ordered(_asked(tool)),
            runs=locks.runs_digest(watched.placed, (file.digest for file in own if file is not None)),
            files=tuple(files[path] for path in sorted(files)),
            programs=tuple(sorted(programs.items())),
        )

    def _noted(self, tool: Tool, notes: LockNotes) -> Pinned:
        pinned = notes.get(self)
        if pinned is None:
            pinned = notes[self] = Pinned(self._watch(tool))
        return pinned

    def _paths(self, watched: Watched) -> tuple[str, ...]:
        """Every file that is pinned."""
        if not watched.folders:
            return watched.files
        inside = (path for folder in watched.folders for path in self._inside(folder))
        return tuple(dict.fromkeys((*watched.files, *inside)))

    def _inside(self, folder: str) -> tuple[str, ...]:
        """Every file in a folder, listed again only when it or a folder in it changed."""
        known = self._listed.get(folder)
        if known is not None and all(_stamp(path) == stamp for path, stamp in known[0]):
            return known[1]
        folders: list[tuple[str, _Stamp]] = []
        found: list[str] = []
        _list(folder, folders, found, _DEPTH_MAX)
        inside = tuple(sorted(found))
        if all(_is_settled(stamp) for _, stamp in folders):
            if len(self._listed) >= _KNOWN_MAX:
                self._listed.clear()
            self._listed[folder] = (tuple(folders), inside)
        return inside

    def _shown(self, path: str) -> str:
        """A path as the lock holds it: beside the lock, else in the user's home, else from the lock on."""
        for root, mark in ((self._folder, ""), (self._home, "~/")):
            if len(root) > 1 and path.startswith(f"{root}/"):
                return mark + path[len(root) + 1 :]
        return os.path.relpath(path, self._folder) if os.path.isabs(path) else path

    def _absolute(self, shown: str) -> str:
        if shown.startswith("~/"):
            return os.path.join(self._home, shown[2:])
        return os.path.normpath(os.path.join(self._folder, shown))

    # -- programs of the machine ----------------------------------------------------------------------------

    def _named_programs(
        self, watched: Watched, paths: Sequence[str], held: Sequence[Held | None]
    ) -> Iterator[str]:
        yield from watched.programs
        for started in watched.started:
            for path, file in zip(paths, held, strict=True):
                if path == started and file is not None and file.content is not None:
                    name = interpreter(file.content[:512])
                    if name:
                        yield name
                    break

    def _program(self, name: str) -> str:
        """Where a program really lies, as of a hundredth of a second ago; empty where there is none. Searched
        for again only when a folder that is searched, or the program itself, changed."""
        known, now = self._programs.get(name), time.monotonic()
        if not self._searched <= now < self._searched + _FRESH_S:
            self._searched = now
            self._fresh.clear()
        if known is not None and name in self._fresh:
            return known[1]
        self._fresh.add(name)
        if known is not None and all(_stamp(path) == stamp for path, stamp in known[0]):
            return known[1]
        stamps: list[tuple[str, _Stamp]] = []
        real = ""
        for folder in self._search if "/" not in name else ("",):
            candidate = os.path.join(folder, name)
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                real = os.path.realpath(candidate)
                stamps.append((candidate, _stamp(candidate)))
                break
            stamps.append((folder or candidate, _stamp(folder or candidate)))
        self._programs[name] = (tuple(stamps), real)
        return real

    # -- the lock and what was approved ---------------------------------------------------------------------

    def _book(self) -> _Book | None:
        """The lock as it is now; None where there is none and never was."""
        # What was approved first: it is written last, so that no lock looks gone which is just being made.
        approved = _stamp_of(self._approved_path) if self._memory else None
        stamps = (_stamp_of(self.path), approved)
        read = self._read
        if read is not None and read[0] == stamps:
            return read[1]
        with self._reading:
            made = self._made_by_tools(self.path) if stamps[0] is not None and approved is None else None
            if made is not None and made.is_new:
                # Attack: a tool makes a lock where there was none, one that is broken or names other tools,
                # and so keeps every tool from running. It counts once a person confirmed it.
                return None
            if made is not None:
                # Attack: a tool changes the lock of a project, so that it counts no more.
                refusal = Vetted(trust=Trust.DRIFTED, message=made.message, hint=made.hint)
                return _Book(lock=Lock(), approved={}, programs={}, names={}, refusal=refusal)
            is_locked = stamps != (None, None) or self._was_locked
            book = self._read_book(*stamps) if is_locked else None
            self._read = (stamps, book)
        return book

    @property
    def _approved_path(self) -> str:
        assert self._memory is not None
        return os.path.join(self._memory, _APPROVED)

    def _read_book(self, there: _Stamp | None, approved_there: _Stamp | None) -> _Book:
        def refuse(message: str, hint: str) -> _Book:
            refusal = Vetted(trust=Trust.DRIFTED, message=message, hint=hint)
            mine = locks.read(text) if text else Lock()
            approved = mine.entries if isinstance(mine, Lock) else {}
            return _Book(lock=Lock(), approved=approved, programs={}, names={}, refusal=refusal)

        text, programs = b"", dict[str, str]()
        if approved_there == _NO_STAMP:
            why = _read_plain(self._approved_path, 0)
            return refuse(
                f"what was locked on this machine cannot be read: {self._approved_path}: {why!s}",
                "make the state folder readable for you, or name another: --state DIR",
            )
        if approved_there is not None:
            remembered = _read_approved(self._approved_path)
            if remembered is None:
                # Attack: damage that makes the host forget what it approved.
                return refuse(*_FORGOTTEN)
            text, programs = remembered
        if there is None and approved_there is None:
            # Attack: deleting the lock unlocks, because it had another name when it was written.
            return refuse(
                f"{LOCK_NAME} is not there, and this folder was locked under the former name of the file",
                "look at your tools, and run `toolcrib lock`; `toolcrib lock --forget` gives locking up",
            )
        if there is None:
            # Attack: deleting the lock unlocks.
            return refuse(
                f"{LOCK_NAME} is gone, and was written on this machine",
                "restore it, or run `toolcrib lock` again; `toolcrib lock --forget` gives locking up",
            )
        content = _read_plain(self.path, locks.BYTES_MAX)
        if isinstance(content, str):
            return refuse(f"{LOCK_NAME}: {content}", "put a readable lock there: `toolcrib lock`")
        found = locks.read(content)
        if isinstance(found, locks.Defect):
            line = f":{found.line}" if found.line else ""
            return refuse(f"{LOCK_NAME}{line}: {found.message}", found.hint)
        # What was approved is nearly always what is there: it is read a second time only where it is not.
        approved = found if text == content else locks.read(text) if text else Lock()
        if isinstance(approved, locks.Defect):
            return refuse(*_FORGOTTEN)
        trusted = self._trusted(self.path, hashlib.sha256(content).hexdigest())
        return _Book(
            lock=found,
            approved=approved.entries,
            programs=programs,
            names=locks.names(found),
            trusted=trusted,
        )

    # -- all tools ------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a lock, or one was written here."""
        return self._book() is not None

    @property
    def broken(self) -> Vetted | None:
        """Why everything is refused, where it is."""
        book = self._book()
        return book.refusal if book is not None else None

    def survey(self, tools: Iterable[Tool], vetted: Callable[[Tool], Vetted]) -> Survey:
        """How all tools stand to the lock."""
        book = self._book()
        if book is None or book.refusal is not None:
            return Survey(refusal=book.refusal if book is not None else None)
        items: list[Item] = []
        there: set[str] = set()
        entries: list[Entry] = []
        for tool in filter(is_covered, tools):
            there.add(tool.key)
            entry = book.lock.entries.get(tool.key)
            found = self.vet(tool, None, vetted(tool))
            drift = None
            with suppress(_Unlockable):
                now = self.now(tool)
                entries.append(now)
                approved = book.approved.get(tool.key) if not book.trusted else None
                drift = (locks.drift(approved, now) if approved else None) or (
                    locks.drift(entry, now) if entry else None
                )
            # Attack: a changed tool that passes as locked, because its broken signature was told instead.
            has_changed = found.trust is Trust.DRIFTED or drift is not None
            change = "added" if entry is None else "changed" if has_changed else "same"
            items.append(
                Item(
                    key=tool.key,
                    path=tool.origin.path,
                    trust=found.trust,
                    change=change,
                    message=found.message,
                    drift=drift,
                )
            )
        for key, entry in sorted(book.lock.entries.items()):
            if key not in there:
                gone = f"{entry.name} is locked, and there is no such tool"
                items.append(
                    Item(key=key, path=self.declaration(entry),
                         trust=Trust.DRIFTED, change="removed", message=gone)
                )  # fmt: skip
        return Survey(items=tuple(items), moves=tuple(locks.moves(book.lock, entries)))

    def problems(self, tools: Iterable[Tool], vetted: Callable[[Tool], Vetted]) -> Iterator[Problem]:
        """What ``check`` tells about the lock."""
        survey = self.survey(tools, vetted)
        if survey.refusal is not None:
            yield Problem(
                code="lock.unreadable",
                message=survey.refusal.message,
                path=self.path,
                hint=survey.refusal.hint,
            )
        moved = {move.key: move for move in survey.moves}
        renamed = {move.entry.key for move in survey.moves if move.is_rename}
        for item in survey.items:
            move = moved.get(item.key)
            approve = f"look at it, then `toolcrib lock --update {item.key}` approves it"
            severity = Severity.WARNING
            if move is not None and move.is_rename:
                code, message = "lock.renamed", f"{item.key} is locked as {move.entry.key}"
            elif move is not None:
                code = "lock.shadowed"
                message = f"{item.key} takes the name {move.entry.name}, which is locked as {move.entry.key}"
            elif item.change == "added":
                code, message = "lock.unlocked", item.message or f"{item.key} is not in {LOCK_NAME}"
            elif item.change == "removed":
                if item.key in renamed:
                    continue
                code, message = "lock.left-over", item.message
                approve = f"`toolcrib lock --update {item.key}` takes it out of the lock"
            elif item.trust is Trust.DRIFTED or item.change == "changed":
                code, message, severity = "lock.drifted", item.message, Severity.ERROR
                if item.drift is not None and item.trust is not Trust.DRIFTED:
                    message = item.drift.sentence
                approve = f"{_CHECK}, `toolcrib lock --update {item.key}` approves it"
            else:
                continue
            yield Problem(
                code=code, severity=severity, message=message, path=item.path, name=item.key, hint=approve
            )

    def text_was(self, file: PinnedFile) -> str | None:
        """A file's text as it was approved here; None where it was not kept."""
        if self._memory is None:
            return None
        content = _read_plain(os.path.join(self._memory, "texts", file.digest[7:]), TEXT_BYTES_MAX)
        return _text(content) if isinstance(content, bytes) else None

    def text_is(self, file: PinnedFile) -> str | None:
        content = _read_plain(self._absolute(file.path), TEXT_BYTES_MAX, follow=True)
        return _text(content) if isinstance(content, bytes) else None

    # -- locking --------------------------------------------------------------------------------------------

    def locked_now(self, tools: Iterable[Tool]) -> tuple[list[Entry], list[tuple[Tool, str]]]:
        """The entries of all tools as they are, and the tools that cannot be locked, each with why."""
        entries: list[Entry] = []
        unlockable: list[tuple[Tool, str]] = []
        for tool in filter(is_covered, tools):
            try:
                entries.append(self.now(tool))
            except _Unlockable as why:
                unlockable.append((tool, str(why)))
        return entries, unlockable

    def lock(self) -> Lock:
        """What is locked now; empty where there is no lock, or one that cannot be read."""
        book = self._book()
        return book.lock if book is not None else Lock()

    def declaration(self, entry: Entry) -> str:
        """Where an entry's declaration lies, or lay; the entry's own word where it comes from no file."""
        return self._absolute(entry.source) if entry.files else entry.source

    def approve(self, entries: Sequence[Entry], *, without: Iterable[str] = (), whole: bool = False) -> None:
        """Write entries into the lock, and remember that this host approved them. ``whole``: the lock holds
        nothing else afterwards. Raises SourceError and StoreError."""
        gone = tuple(without)
        with self._guarded():
            book = self._book()
            if book is not None and book.refusal is not None and not whole:
                raise SourceError(book.refusal.message, book.refusal.hint)
            held = Lock() if whole or book is None else book.lock
            mine = Lock() if whole or book is None else Lock(book.approved)
            held = held.with_entries(entries, without=gone)
            mine = mine.with_entries(entries, without=gone)
            _write_plain(self.path, locks.write(held), 0o644)
            self._remember(mine, {} if whole or book is None else book.programs, entries)
            self._read = None

    def forget(self) -> bool:
        """Forget that this host ever wrote a lock here. Whether it had."""
        if self._was_locked:
            os.unlink(os.path.join(self._former, _APPROVED))
        had, self._was_locked, self._read = self._was_locked, False, None
        if self._memory is None or _stamp_of(self._approved_path) is None:
            return had
        with self._guarded():
            os.unlink(self._approved_path)
            self._keep_texts(())
            self._read = None
        return True

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """One writer at a time, so that none takes back what another approved."""
        if self._memory is None:
            raise StoreError("there is no state folder to remember it in", "name one with --state")
        try:
            private.make_folders(self._memory)
        except OSError as error:
            why = (error.strerror or "it cannot be written").lower()
            raise StoreError(f"{self._memory}: {why}", "make the state folder writable") from None
        with private.locked(os.path.join(self._memory, _GUARD)):
            yield

    def _remember(self, mine: Lock, programs: Mapping[str, str], entries: Sequence[Entry]) -> None:
        names = {name for entry in entries for name, _ in entry.programs}
        known = {name for name in self._programs if os.path.basename(name) in names}
        places = {**programs, **{name: self._program(name) for name in known}}
        document = {"tools": locks.write(mine).decode("utf-8"), "programs": places}
        _write_plain(self._approved_path, jsontext.compact(document), 0o600)
        self._keep_texts(file for key in sorted(mine.entries) for file in mine.entries[key].files)

    def _keep_texts(self, files: Iterable[PinnedFile]) -> None:
        """Copies of what was approved, for showing later how it changed; best effort, and bounded."""
        assert self._memory is not None
        folder = os.path.join(self._memory, "texts")
        wanted: dict[str, None] = {}
        room = TEXTS_BYTES_MAX
        with suppress(OSError):
            private.make_folders(folder)
            for file in files:
                name = file.digest[7:]
                path = os.path.join(folder, name)
                if name in wanted:
                    continue
                if (stamp := _stamp_of(path)) is not None:
                    size = stamp[0]
                else:
                    content = _read_plain(self._absolute(file.path), TEXT_BYTES_MAX, follow=True)
                    if (
                        not isinstance(content, bytes)
                        or hashlib.sha256(content).hexdigest() != name
                        or _text(content) is None
                    ):
                        continue
                    size = len(content)
                    if size <= room:
                        _write_plain(path, content, 0o600)
                if size <= room:
                    wanted[name] = None
                    room -= size
            for name in os.listdir(folder):
                if name not in wanted:
                    os.unlink(os.path.join(folder, name))


# -- small things -------------------------------------------------------------------------------------------


def _imports(path: str, file: Held, watched: Watched) -> bool:
    """Whether a pinned file is code that imports what lies beside it."""
    if path.endswith(_IMPORTING):
        return True
    head = file.content[:512] if path in watched.started and file.content is not None else b""
    return os.path.basename(interpreter(head)).startswith(("python", "pypy"))


def _swapped(tool: Tool) -> Vetted:
    return Vetted(
        trust=Trust.DRIFTED,
        message=f"{tool.name}: its files are being changed",
        hint="call it again once nobody is writing to them",
    )


def _above(folder: str) -> Iterator[str]:
    """A folder and all that it lies in."""
    while folder != os.path.dirname(folder):
        yield folder
        folder = os.path.dirname(folder)
    yield folder


def interpreter(head: bytes) -> str:
    """What the first line of a program names to run it: a path, or a name for PATH; empty where nothing."""
    line = head.partition(b"\n")[0]
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].decode("utf-8", "replace").split()
    if words and os.path.basename(words[0]) == "env":
        rest = (word for word in words[1:] if not word.startswith("-") and "=" not in word)
        return next(rest, "")
    return words[0] if words and os.path.isabs(words[0]) else ""


def _asked(tool: Tool) -> jsontext.JsonObject:
    needs = tool.needs
    return {
        # Not what the configuration makes of it: that is the host's own word, and no change of the tool.
        "effect": (tool.declared_effect or tool.effect).value,
        "needs": sorted(needs.capabilities) if needs.stated else None,
        "env": sorted(needs.env),
    }


def _text(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _stamp(path: str) -> _Stamp:
    """What tells that a file or folder, or what a link leads to, changed."""
    try:
        status = os.stat(path)
    except OSError:
        return _NO_STAMP
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns, status.st_dev


def _is_settled(stamp: _Stamp) -> bool:
    """Whether the next change shows. Attack: a file that is added to a folder within the same tick of the
    file system's clock in which we looked, so that the folder seems unchanged. By the time of its last change
    of any kind: that of its modification can be set back."""
    return is_settled(stamp[3], time.time_ns())


def _stamp_of(path: str) -> _Stamp | None:
    """The same of a path itself; None where there is nothing."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # not to be seen is not to be absent
        return _NO_STAMP
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns, status.st_dev


def _list(folder: str, folders: list[tuple[str, _Stamp]], found: list[str], depth: int) -> None:
    folders.append((folder, _stamp(folder)))
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        raise _Unlockable(f"{os.path.basename(folder)} cannot be listed") from None
    for entry in inside:
        if len(found) >= locks.FILES_MAX or depth <= 0:
            raise _Unlockable(f"{os.path.basename(folder)} holds too many files")
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                _list(entry.path, folders, found, depth - 1)
        elif entry.is_dir():
            # Attack: a folder of scripts that is a link, so that its files change where nobody looks.
            raise _Unlockable(f"{entry.name} is a link to a folder, which a lock cannot cover")
        else:
            found.append(entry.path)


def _read_approved(path: str) -> tuple[bytes, dict[str, str]] | None:
    """The text of the lock that was approved, and where programs lay then."""
    content = _read_plain(path, 2 * locks.BYTES_MAX)
    if not isinstance(content, bytes):
        return None
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        told = jsontext.loads_own(content)
        places = {str(name): str(place) for name, place in told["programs"].items()}
        return told["tools"].encode("utf-8"), places
    return None


def _read_plain(path: str, limit: int, *, follow: bool = False) -> bytes | str:
    """A regular file's bytes, or why there are none. Attack: a link, a FIFO or a device in its place."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            return "it is a link"
        return (error.strerror or "it cannot be read").lower()
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # before it is made a file, which no folder can be
        os.close(descriptor)
        return "it is no regular file"
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit + 1)
    return content if len(content) <= limit else f"it has more than {limit:,} bytes"


def _write_plain(path: str, content: bytes, mode: int) -> None:
    """Put a file in its place whole. Attack: a link in its place, which leads elsewhere."""
    there = _stamp_of(path)
    if there is not None and not stat.S_ISREG(os.lstat(path).st_mode):
        raise SourceError(f"{path}: is a link, or no regular file", "take it away, then lock again")
    try:
        private.put(path, content, mode=mode, replacing=True)
    except OSError as error:
        why = (error.strerror or "it cannot be written").lower()
        raise SourceError(f"{path}: {why}", "make its folder writable") from None
