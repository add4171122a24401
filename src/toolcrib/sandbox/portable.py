"""The portable level: a process by argv, with a deadline, bounded output and a process group to kill.

It works with what Linux and macOS share, so it does not restrict what the process may read, write or reach;
the stronger levels do. It holds whatever the process does: no shell, only the environment it is given, one
deadline for everything, memory bounded by the limits, and a return that waits for nobody but the process
itself.

What this level cannot do: a descendant that leaves the process group (``setsid``, a daemon) outlives the
call and the host. It cannot hold the call up, but it is not found and killed; only the supervised level does
that. Its memory, processes and scratch folder are looked at from time to time and only on Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import Final

from msgspec.structs import replace

from toolcrib.catalog import files
from toolcrib.model import End, Ending, Level
from toolcrib.sandbox import Cancel, Standing, Start, _exchange, _kernel, _standing, marks
from toolcrib.sandbox._guard import Guard
from toolcrib.sandbox._scratch import Scratch

LAYERS: Final = ("portable",)


class Portable:
    """Runs programs with what every system has."""

    level = Level.PORTABLE

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._scratch = scratch
        # Without a scratch folder it is for one question of a second, and nobody closes it.
        self._guard = Guard() if scratch is not None else None

    def run(self, start: Start, cancel: Cancel) -> Ending:
        no = _exchange.refused(start, self.level, cancel)
        if no is not None:
            return no
        began = time.monotonic()
        folder = ""
        try:
            if self._scratch is not None:
                folder = self._scratch.take()
            ending = self._ran(start, cancel, folder, began)
            return replace(ending, layers=LAYERS)
        except OSError as error:
            return _exchange.not_started(start, error, began)
        finally:
            if self._scratch is not None and folder:
                self._scratch.give_back(folder)

    def open(self, start: Start) -> Standing | Ending:
        no = _exchange.refused(start, self.level, Cancel())
        if no is not None:
            return no
        began = time.monotonic()
        scratch = self._scratch
        folder = ""
        sealed: list[int] = []
        try:
            if scratch is not None:
                folder = scratch.take()
            self._prepare()
            process = spawn(start, folder, sealed, standing=True)
        except (OSError, ValueError) as error:
            if scratch is not None and folder:
                scratch.give_back(folder)
            return _exchange.not_started(start, error, began)
        finally:
            _kernel.close_all(sealed)
        finish = partial(scratch.give_back, folder) if scratch is not None else _nothing
        try:
            return _standing.Watched(
                process, start, scratch=folder, layers=LAYERS, guard=self._guard, finish=finish
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads for this user
            finish()
            why = error.strerror if isinstance(error, OSError) else None
            return Ending(end=End.UNAVAILABLE, reason=f"cannot be watched: {why or error}")

    def _ran(self, start: Start, cancel: Cancel, folder: str, began: float) -> Ending:
        swapped = _exchange.changed(start)
        if swapped is not None:
            return Ending(end=End.DENIED, reason=f"{swapped} changed after it was checked")
        sealed: list[int] = []
        try:
            self._prepare()
            try:
                process = spawn(start, folder, sealed)
            except (OSError, ValueError) as error:  # ValueError: a NUL character
                return _exchange.not_started(start, error, began)
            return _exchange.watch(process, start, cancel, began=began, scratch=folder, guard=self._guard)
        finally:
            _kernel.close_all(sealed)

    def _prepare(self) -> None:
        if self._guard is not None:
            self._guard.prepare()

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
        if self._scratch is not None:
            self._scratch.close()


def _nothing() -> None:
    """There is no scratch folder to give back."""


def spawn(start: Start, folder: str, sealed: list[int], *, standing: bool = False) -> subprocess.Popen[bytes]:
    """Start the program, in a group of its own. Descriptors to close afterwards are added to ``sealed``.

    Where the program's bytes were checked, exactly these run: Attack: the file is swapped between the check
    and the start. A system without sealed files in memory compares them once more instead.
    """
    executable = start.program
    for path, content in start.sealed:
        if path == start.program:
            if sys.platform != "linux":
                if files.head(path, len(content) + 1) != content:
                    raise PermissionError(1, f"{path} changed after it was checked")
            else:
                sealed.append(_kernel.seal(content, os.path.basename(path)))
                executable = f"/proc/self/fd/{sealed[-1]}"
    env = dict(start.env)
    if "TMPDIR" in env:
        env["TMPDIR"] = folder
    process = subprocess.Popen(
        list(start.argv),
        executable=executable,
        stdin=subprocess.PIPE if start.stdin or standing else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=start.cwd,
        bufsize=0,
        close_fds=True,
        pass_fds=tuple(sealed),
        process_group=0,
    )
    marks.mark(process.pid)
    return process
