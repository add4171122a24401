"""Starting programs inside limits. One file per level; ``rules.py`` says what a permit means to the kernel.

This file holds what they share: what is asked of a level (``Start``), how a run is stopped from outside
(``Cancel``) and what every level offers (``Sandbox``). Nothing here knows tools, formats or replies; it takes
permits and commands and gives endings.
"""

from __future__ import annotations

import os
import select
import threading
from _queue import Empty, SimpleQueue  # in C, and without what `queue` brings along
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar, Final, Protocol

from msgspec import field

from toolcrib.model import Ending, HeldName, Level, Permit
from toolcrib.records import Discreet


class Start(Discreet, frozen=True, kw_only=True):
    """One program to run to its end."""

    HIDDEN: ClassVar = (
        "env",
        "known",
    )

    program: str
    """An absolute path."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: bytes = b""
    permit: Permit
    own: tuple[str, ...] = ()
    """The tool's own files and folders: readable, never writable."""
    sealed: tuple[tuple[str, bytes], ...] = ()
    """Files by path whose bytes were checked: these bytes run, whatever lies at the path by then."""
    known: Mapping[str, object] = field(default_factory=dict)
    """Of some of these paths, which file was there a moment ago: whatever differs from file to file."""
    reserved_bytes: int = 0
    """Memory that the program sets aside when it starts and never uses: the kernel's limit leaves room."""
    what: str = "call"
    """For the record: ``call``, ``resolver`` or ``schema``."""


class Room:
    """So many may be inside at once; the others wait for their turn."""

    def __init__(self, places: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(places):
            self._free.put(None)

    def enter(self, timeout_s: float) -> bool:
        """Whether there was a place, waited for at most so long."""
        try:
            self._free.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def leave(self) -> None:
        self._free.put(None)


class Cancel:
    """A call's stop button. Setting it wakes every level that waits on ``fileno``; once or often."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may press it while its own thread is in here
        self._set = False
        self._ends: tuple[int, int] | None = None

    def set(self) -> None:
        with self._lock:
            self._set = True
            if self._ends is not None:
                with suppress(OSError):
                    os.write(self._ends[1], b"x")

    @property
    def is_set(self) -> bool:
        return self._set

    @property
    def _has_ends(self) -> bool:
        return self._ends is not None

    def fileno(self) -> int:
        """Readable as soon as the button is pressed; made when first asked for."""
        ends = self._ends
        if ends is not None:  # every call asks, and those that nobody can stop ask the same one
            return ends[0]
        with self._lock:
            if self._ends is None:
                self._ends = os.pipe()
                if self._set:
                    os.write(self._ends[1], b"x")
            return self._ends[0]

    def wait(self, timeout_s: float) -> bool:
        """Wait until the button is pressed, at most so long; whether it was."""
        if not self.is_set:
            waiting = select.poll()  # `select` cannot watch a descriptor above 1023
            waiting.register(self.fileno(), select.POLLIN)
            waiting.poll(max(timeout_s, 0) * 1000)
        return self.is_set

    def close(self) -> None:
        if not self._has_ends:  # most are never waited for
            return
        with self._lock:
            ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)

    def __del__(self) -> None:
        self.close()  # every call has a button, and most callers never hold theirs


class _Never(Cancel):
    def set(self) -> None:
        """Attack: whoever stops one call stops all that anybody will ever make, since it is everybody's."""

    def close(self) -> None:
        """It is everybody's: others may wait on it."""

    def __del__(self) -> None:
        """It ends with the process, when there is nothing left to close it with."""


NEVER: Final[Cancel] = _Never()
"""The button of calls that nobody can stop from outside: shared, and never pressed."""


NOT_STARTED: Final = "could not be started"
"""How the ending of a program that never ran begins."""
FILES_FIX: Final = "call fewer tools at once, or raise the limit of open files (ulimit -n)"
"""What to do where no descriptor is left."""


class Standing(Protocol):
    """A program that stays. The descriptors are its pipes: ``stdin`` to write to, the others to read from."""

    stdin: int
    stdout: int
    stderr: int
    layers: tuple[str, ...]
    held: tuple[HeldName, ...]
    """The names that it cannot take as long as it runs."""

    def is_held(self) -> bool:
        """Whether all that is protected is still read-only to it: a person may have replaced it."""
        ...

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it is over, waited for at most so long."""
        ...

    @property
    def ending(self) -> str:
        """How it ended, for people; empty while it runs."""
        ...

    def hang_up(self) -> None:
        """Close its stdin, which tells it to go. Nobody may be writing to it."""
        ...

    def close(self) -> None:
        """End it and everything it started, and close its pipes. Once or often."""
        ...


class Sandbox(Protocol):
    """A level: runs a program inside its permit, or says why not. Leaves nothing running, and raises nothing.

    The engine records each call before a level hears of it.
    """

    level: Level

    def run(self, start: Start, cancel: Cancel) -> Ending: ...

    def open(self, start: Start) -> Standing | Ending:
        """Start a program that stays until it is closed; an ending where it cannot be started."""
        ...

    def close(self) -> None: ...
