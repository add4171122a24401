"""End the processes of a call that lost its supervisor and the spawner at once, or report what is left.

Only the supervisor knows what its tool started. If it and the spawner are killed in the same moment, the
kernel hands the tool's descendants to another process (init), and no parent of ours is left to find them by.
So every process of a call inherits a mark: an unusual value of one resource limit (``rules.MARK``), which all
may read in ``/proc/PID/limits`` and none of them can change.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from importlib import import_module
from typing import Final

from toolcrib.sandbox.marks import mark_of

_ENDING_S: Final = 2.0
_PAUSE_S: Final = 0.01
_OURS: Final = (b"tw-supervisor", b"tw-spawner")


def end(mark: int) -> tuple[str, ...]:
    """End every process with the mark, and return what to note about it. Also logs what is left.

    A process whose supervisor, or the spawner, still lives is left to them, but waited for.
    """
    killed: set[int] = set()
    until = time.monotonic() + _ENDING_S
    while True:
        marked = _marked(mark)
        orphans = [pid for pid in marked if not _is_supervised(pid, marked)]
        killed.update(pid for pid in orphans if _kill(pid, mark))
        if not marked or time.monotonic() > until:
            break
        time.sleep(_PAUSE_S)
    if orphans:
        numbers = ", ".join(map(str, sorted(orphans)))
        note = f"{len(orphans)} process(es) outlived the call and could not be ended: {numbers}"
        import_module("logging").getLogger("toolcrib.sandbox").warning("%s (kill -9 %s)", note, numbers)
        return (note,)
    return (f"{len(killed)} process(es) that it left behind were killed",) if killed else ()


def _marked(mark: int) -> frozenset[int]:
    """Return the living processes that have the mark."""
    with suppress(OSError):
        return frozenset(
            int(name) for name in os.listdir("/proc") if name.isdigit() and _has(int(name), mark)
        )
    return frozenset()


def _has(pid: int, mark: int) -> bool:
    with suppress(OSError):
        return mark_of(pid) == mark and _state(pid)[0] not in (b"Z", b"X", b"")
    return False


def _state(pid: int) -> tuple[bytes, int]:
    """Return the state of a process, as one letter, and the number of its parent."""
    fields = _read(pid, "stat").rpartition(b") ")[2].split(None, 2)
    return (fields[0], int(fields[1])) if len(fields) > 1 else (b"", 0)


def _is_supervised(pid: int, marked: frozenset[int]) -> bool:
    """Whether a supervisor or a spawner is the parent of the process, or of the marked one above it.

    Attack: another host of this user that gave its call the same mark. Its supervisor lives.
    """
    at = pid
    for _ in marked:
        at = _state(at)[1]
        if at not in marked:
            break
    name = _read(at, "stat").partition(b"(")[2].rpartition(b")")[0]
    return name in _OURS and _state(at)[0] not in (b"Z", b"X")


def _kill(pid: int, mark: int) -> bool:
    """Kill a process, if it still is the one with the mark. Attack: numbers used again."""
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if _has(pid, mark):
            signal.pidfd_send_signal(held, signal.SIGKILL)
            wait = select.poll()
            wait.register(held, select.POLLIN)
            wait.poll(_PAUSE_S * 1000)
            return True
    except OSError:  # it ended meanwhile, or it belongs to another user and we may not
        pass
    finally:
        os.close(held)
    return False


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(8192)
    except OSError:
        return b""
