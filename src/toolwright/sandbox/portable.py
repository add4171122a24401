"""The portable level: a process by argv, with a deadline, bounded output and a process group to kill.

It works with what Linux and macOS share, so it does not restrict what the process may read, write or reach;
the stronger levels do. It holds whatever the process does: no shell, only the environment it is given, one
deadline for everything, memory bounded by the limits, and a return that waits for nobody but the process
itself.

What this level cannot do: a descendant that leaves the process group (``setsid``, a daemon) outlives the
call. It cannot hold the call up, but it is not found and killed; only the supervised level does that.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from toolwright.model import ProbeOutcome

PROBE_TIMEOUT_S: Final = 1.0
PROBE_OUTPUT_BYTES_MAX: Final = 8191
PROBES_AT_ONCE: Final = 8
"""Enough that sleepers do not add up, few enough that interpreters starting together keep their second."""

_PROBE_STDERR_BYTES_MAX: Final = 2000
_CHUNK_BYTES: Final = 65536
_LEFT_IN_PIPE_BYTES_MAX: Final = 1 << 20
"""The most a pipe holds when its writer has ended (Linux lets anybody raise 64 KiB to this)."""
_DEATH_S: Final = 2.0
"""How long SIGKILL may take before we stop waiting: only a program that runs as another user resists it."""


class End(StrEnum):
    """How a run came to its end."""

    EXITED = "exited"
    NOT_STARTED = "not_started"
    TIMED_OUT = "timed_out"
    TOO_LONG = "too_long"
    LOST = "lost"
    """It ended, but somebody else in this process reaped it: its status is unknown, which is not success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run: how it ended and what it wrote."""

    end: End
    exit_status: int | None = None
    """Only when it exited by itself; 128 + signal for death by a signal."""
    stdout: bytes = b""
    """The beginning: at most the limit."""
    stderr: bytes = b""
    """The end: at most the limit."""
    reason: str = ""
    """Why it could not be started."""


def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    env: Mapping[str, str],
    cwd: str,
    timeout_s: float,
    stdout_max: int,
    stderr_max: int,
) -> Ran:
    """Run one program to its end, its deadline or its limit, whichever comes first.

    ``argv[0]`` is a path, or a name looked up on the PATH of ``env``. More than ``stdout_max`` bytes on
    stdout stop the program; of stderr the last ``stderr_max`` bytes are kept. When this returns, the process
    is reaped and its group is killed, also after a normal end: a child left behind must not go on working
    for a call that is over.
    """
    deadline = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            bufsize=0,
            close_fds=True,
            process_group=0,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        return Ran(end=End.NOT_STARTED, reason=_reason(error))
    exchange = _Exchange(process, stdin, stdout_max, stderr_max)
    try:
        end = exchange.until(deadline)
    except OSError as error:
        return Ran(end=End.LOST, reason=f"cannot be watched: {_reason(error)}")
    finally:
        status = exchange.finish()
    if end is End.EXITED and status is None:
        end = End.LOST
    return Ran(
        end=end,
        exit_status=status if end is End.EXITED else None,
        stdout=bytes(exchange.stdout[:stdout_max]),
        stderr=bytes(exchange.stderr),
    )


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _descendants(pid: int) -> list[int]:
    """The children of a process, and theirs, as far as /proc tells: nothing on systems that have none."""
    children: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for number in numbers:
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{number}/stat", "rb") as file:
            parent = int(file.read(512).rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(number)
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found


class _Exchange:
    """One process, its pipes and what came through them; used by one thread."""

    def __init__(
        self, process: subprocess.Popen[bytes], stdin: bytes, stdout_max: int, stderr_max: int
    ) -> None:
        self.process = process
        self.unsent = memoryview(stdin)
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.stdout_max = stdout_max
        self.stderr_max = stderr_max
        self.watch: _ExitWatch | None = None

    def until(self, deadline: float) -> End:
        """Talk until the process ends, the deadline passes or stdout is too long."""
        process = self.process
        self.watch = _ExitWatch(process.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(self.watch, selectors.EVENT_READ)
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE)
            while not self.watch.ended:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return End.TIMED_OUT
                for key, _ in selector.select(left_s):
                    if key.fileobj is self.watch:
                        self.watch.ended = True
                    elif key.fileobj is process.stdin:
                        if not self.send():
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif not self.take(key.fd):
                        selector.unregister(key.fileobj)
                if len(self.stdout) > self.stdout_max:
                    return End.TOO_LONG
        return self.rest()

    def send(self) -> bool:
        """Write what stdin takes now; False when there is no more to write."""
        assert self.process.stdin is not None
        try:
            self.unsent = self.unsent[os.write(self.process.stdin.fileno(), self.unsent[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # it does not read its stdin, which is its own affair
            return False
        return len(self.unsent) > 0

    def take(self, fd: int, *, nothing_now: bool = True) -> bool:
        """Read what lies in stdout or stderr; False at its end, ``nothing_now`` where it is empty so far."""
        assert self.process.stdout is not None
        ours = fd == self.process.stdout.fileno()
        try:
            room = self.stdout_max + 1 - len(self.stdout) if ours else _CHUNK_BYTES
            chunk = os.read(fd, min(_CHUNK_BYTES, room))
        except BlockingIOError:
            return nothing_now
        if ours:
            self.stdout += chunk
        else:
            self.stderr += chunk
            del self.stderr[: max(0, len(self.stderr) - self.stderr_max)]
        return bool(chunk)

    def rest(self) -> End:
        """What the process wrote before it ended. Nobody is waited for: a descendant may hold the pipes."""
        self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            for _ in range(_LEFT_IN_PIPE_BYTES_MAX // _CHUNK_BYTES):
                if not self.take(pipe.fileno(), nothing_now=False):
                    break
        return End.TOO_LONG if len(self.stdout) > self.stdout_max else End.EXITED

    def kill(self) -> None:
        """Kill the group, and the process itself, which may have moved to another group.

        Only before it is reaped: until then its number, and that of its group, cannot belong to others.
        """
        is_over = self.watch is not None and self.watch.ended
        strays = [] if is_over else _descendants(self.process.pid)
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self.process.pid, signal.SIGKILL)
        for pid in strays:  # those that left the group but not yet the tree
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def finish(self) -> int | None:
        """Kill, close, reap. The exit status, or None where it is not ours to know."""
        self.kill()
        process = self.process
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        if self.watch is not None:
            gone = self.watch.wait(_DEATH_S)
            self.watch.close()
            if not gone:
                return None
        # Not process.wait(): where the child was reaped by others, it would report exit status 0.
        try:
            _, status = os.waitpid(process.pid, 0)
        except ChildProcessError:
            process.returncode = 0  # nothing is left to wait for
            return None
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


class _ExitWatch:
    """Becomes readable when our child ends, and leaves it to be reaped by us alone.

    Waiting for the end of its output instead would wait for every descendant that inherited the pipes.
    """

    def __init__(self, pid: int) -> None:
        self.ended = False
        if sys.platform == "linux":
            self._fd = os.pidfd_open(pid)
        else:
            self._queue = select.kqueue()
            self._fd = self._queue.fileno()
            exits = select.kevent(
                pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
            )
            try:
                self._queue.control([exits], 0)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    self._queue.close()
                    raise
                self.ended = True  # it ended before it could be watched

    def fileno(self) -> int:
        return self._fd

    def wait(self, timeout_s: float) -> bool:
        if not self.ended:
            with selectors.DefaultSelector() as selector:
                selector.register(self, selectors.EVENT_READ)
                self.ended = bool(selector.select(timeout_s))
        return self.ended

    def close(self) -> None:
        if sys.platform == "linux":
            os.close(self._fd)
        else:
            self._queue.close()


# -- asking a program for its schema ------------------------------------------------------------------------


def probe_schema(
    path: str,
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
    output_bytes_max: int = PROBE_OUTPUT_BYTES_MAX,
    env: Mapping[str, str],
) -> tuple[bytes, ProbeOutcome]:
    """Run ``path --schema`` and return what it printed and how that went.

    It sees ``env`` and nothing else, so give it no credentials. It stands in the root folder while it
    answers: nothing in the folder we happen to be in, named by a relative entry of PATH for example, can
    change the answer.
    """
    ran = run(
        [os.path.abspath(path), "--schema"],
        stdin=b"",
        env=env,
        cwd="/",
        timeout_s=timeout_s,
        stdout_max=output_bytes_max,
        stderr_max=_PROBE_STDERR_BYTES_MAX,
    )
    return ran.stdout, ProbeOutcome(
        exit_status=ran.exit_status,
        timed_out_s=timeout_s if ran.end is End.TIMED_OUT else None,
        too_long_bytes=output_bytes_max if ran.end is End.TOO_LONG else None,
        start_error=ran.reason if ran.end is End.NOT_STARTED else None,
        stderr_tail=ran.stderr.decode("utf-8", "replace"),
    )


def probe_all(
    paths: Sequence[str],
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
    output_bytes_max: int = PROBE_OUTPUT_BYTES_MAX,
    env: Mapping[str, str],
) -> list[tuple[bytes, ProbeOutcome]]:
    """Ask several programs at once; the answers stand in the order of ``paths``, whoever ends first."""
    if not paths:
        return []
    ask = partial(probe_schema, timeout_s=timeout_s, output_bytes_max=output_bytes_max, env=env)
    with ThreadPoolExecutor(min(len(paths), PROBES_AT_ONCE), "probe") as pool:
        return list(pool.map(ask, paths))
