"""The manifest format's own log: one JSON line per call in a file per UTC day, best effort.

It stands beside the journal for programs that read that format's log. The journal decides whether a call may
run; this file never does: what cannot be written is told once, and the result stays as it is.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from toolcrib.forks import IN_FORKS
from toolcrib.store import private

LOOK_S: Final = 1.0
"""So often it is looked whether another file lies in the place of the one that is written."""
_HIDDEN: Final = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def moment(now: float) -> str:
    """The time as the format writes it."""
    second = int(now)
    return f"{_second(second)}.{int((now - second) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


class DayFile:
    """Appends lines below a folder. The day's file stays open while calls come."""

    def __init__(
        self, folder: str, told: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._told = told
        self._clock = clock
        self._warned = False
        self._day = self._open_path = ""
        self._file: int | None = None
        self._look_again = 0.0
        self.renew()
        IN_FORKS.add(self)

    def renew(self) -> None:
        """Nobody writes, and nothing waits. In a fork, too: what waited there is its parent's to write."""
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytes]] = deque()

    def write(self, day: str, line: bytes) -> None:
        """Append one line (JSON text) to the file of a day (``2026-02-26``). Never raises."""
        if not line.isascii():
            line = _HIDDEN.sub(_escaped, line.decode("utf-8")).encode("utf-8")
        self._waiting.append((day, line + b"\n"))
        # Whoever finds another thread writing leaves the line to that one, which looks again before it goes:
        # waiting for it would cost more than the line.
        while self._waiting and not self._lock.locked():
            with self._lock:
                self._write_waiting()

    def close(self) -> None:
        while True:
            with self._lock:
                self._write_waiting()
                self._let_go()
            if not self._waiting:  # nor has anybody left a line to us meanwhile
                return

    def _write_waiting(self) -> None:
        """Under the lock: all lines that wait, those of one day with one write."""
        while waiting := self._waiting:
            day, first = waiting.popleft()
            lines = [first]
            while waiting and waiting[0][0] == day:
                lines.append(waiting.popleft()[1])
            try:
                os.write(self._opened(day), b"".join(lines))
            except OSError as error:
                self._let_go()
                if not self._warned:
                    self._warned = True
                    why = (error.strerror or "it cannot be written").lower()
                    self._told(f"{self._path(day)}: {why}; the day file is not written, calls go on")

    def _path(self, day: str) -> str:
        return os.path.join(self._folder, f"{day}.ndjson")

    def _opened(self, day: str) -> int:
        """The file of the day; opened again when the day is over or somebody took the file away."""
        if self._file is not None and (self._day != day or not self._is_there(day, self._file)):
            self._let_go()
        if self._file is None:
            private.make_folders(self._folder)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._open_path = self._path(day)
            self._file = os.open(self._open_path, flags, 0o600)
            self._day = day
        return self._file

    def _is_there(self, day: str, file: int) -> bool:
        """Whether people find what is written: whether something lies at the path, and now and then whether
        it is the file itself.

        Whoever asks for a file's times has the kernel (6.13 and later) give its next change a time of its
        own, and every change of every file after it another one than before: the times of the journal too
        would change with each record, and a sync would have to bring them to the disk.
        """
        now = self._clock()
        if now < self._look_again:
            return os.access(self._open_path, os.F_OK)
        self._look_again = now + LOOK_S
        own = os.fstat(file)
        try:
            found = os.stat(self._path(day), follow_symlinks=False)
        except FileNotFoundError:
            return own.st_nlink > 0
        return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)

    def _let_go(self) -> None:
        file, self._file = self._file, None  # before it is closed: then its number may be another file's
        if file is not None:
            os.close(file)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
