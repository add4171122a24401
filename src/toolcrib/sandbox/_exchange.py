"""One running process, its pipes, its deadline and its limits, watched from the host's own thread.

The levels that have no supervisor share this: it feeds stdin, reads bounded output, stops the process when
its time, its output, its memory, its processes or its scratch folder go over their limits or somebody
cancels, and reaps it. It kills what it can find: the process group and the tree as /proc shows it. A
descendant that left both outlives the call; only the supervised level finds it.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import select
import selectors
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from toolcrib.catalog import files
from toolcrib.model import LEVELS, End, Ending, Level, Limits, Run, Usage
from toolcrib.sandbox import Cancel, Start, _scratch

if TYPE_CHECKING:
    import subprocess

    from toolcrib.sandbox._guard import Guard

SAMPLE_S: Final = 0.05
"""When memory, processes and scratch space are first looked at; then after twice that, and so on."""
SAMPLE_S_MAX: Final = 0.2
ALARM_S: Final = 0.02
"""How often the machine's number of tasks is looked at, which takes no time even while a bomb goes off."""

_CHUNK_BYTES: Final = 65536
_TAKEN: Final = "its exit status went to somebody else"
_NOT_TAKEN: Final = "this process must neither ignore SIGCHLD nor wait for children that are not its own"
_LEFT_IN_PIPE_BYTES_MAX: Final = 1 << 20
"""The most a pipe holds when its writer has ended (Linux lets anybody raise 64 KiB to this)."""
_DEATH_S: Final = 2.0
"""How long SIGKILL may take before we stop waiting: only a program that runs as another user resists it."""
_SWEEPS: Final = 10
_PLENTY: Final = 64
"""So many tasks that nobody needs to know exactly how many more there may be."""


def refused(start: Start, level: Level, cancel: Cancel) -> Ending | None:
    """Why a level must not start something at all."""
    if cancel.is_set:
        return Ending(end=End.CANCELLED, reason="cancelled before it started")
    wanted = start.permit.level
    if LEVELS.index(level) < LEVELS.index(wanted):
        return Ending(
            end=End.UNAVAILABLE,
            reason=f"it must run at the level {wanted}, and only {level} works here",
            hint="`toolcrib doctor` says what is missing and how to get it",
        )
    return None


def changed(start: Start) -> str | None:
    """The first sealed file, other than the program itself, whose bytes are not those that were checked."""
    for path, content in start.sealed:
        if path != start.program:
            try:
                same = files.head(path, len(content) + 1) == content
            except OSError:
                same = False
            if not same:
                return path
    return None


def not_started(start: Start, error: OSError | ValueError, began: float) -> Ending:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, OSError) and error.filename == start.cwd and start.cwd != start.program:
        reason = f"working directory {start.cwd}: {reason}"
    return Ending(end=End.NOT_STARTED, reason=reason, runs=(_run(start, None, began, 0, 0, truncated=False),))


def watch(
    process: subprocess.Popen[bytes],
    start: Start,
    cancel: Cancel,
    *,
    began: float,
    scratch: str,
    guard: Guard | None,
) -> Ending:
    """Talk to a started process until its end or one of its limits; it is gone when this returns."""
    exchange = Exchange(process, start, scratch, guard)
    limits = start.permit.limits
    try:
        end, reason = exchange.until(began + limits.timeout_s, cancel)
    except ProcessLookupError:
        end, reason = End.LOST, _TAKEN
    except OSError as error:
        end, reason = End.LOST, f"cannot be watched: {error.strerror or error}"
    finally:
        status, usage = exchange.finish()
    if end is End.EXITED and status is None:
        end, reason = End.LOST, _TAKEN
    exited = end is End.EXITED
    return Ending(
        end=end,
        hint=_NOT_TAKEN if reason is _TAKEN else None,
        exit_status=status if exited else None,
        signal=status - 128 if exited and process.returncode is not None and process.returncode < 0 and status
        else None,
        stdout=bytes(exchange.stdout[: limits.stdout_bytes_max]),
        stderr=bytes(exchange.stderr),
        stdout_bytes=exchange.stdout_bytes,
        stderr_bytes=exchange.stderr_bytes,
        reason=reason,
        usage=usage,
        runs=(
            _run(
                start, status if exited else -1, began, exchange.stdout_bytes, exchange.stderr_bytes,
                truncated=end is End.TOO_LARGE,
            ),
        ),
    )  # fmt: skip


def _run(start: Start, status: int | None, began: float, stdout: int, stderr: int, *, truncated: bool) -> Run:
    return Run(
        argv=start.argv,
        cwd=start.cwd,
        env_names=tuple(sorted(start.env)),
        exit_status=status,
        duration_ms=(time.monotonic() - began) * 1000,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        truncated=truncated,
        what=start.what,
    )


class Exchange:
    """One process, its pipes and what came through them; used by one thread."""

    def __init__(
        self, process: subprocess.Popen[bytes], start: Start, scratch: str, guard: Guard | None
    ) -> None:
        if guard is not None:
            guard.hold(process.pid)
        self.guard = guard
        self.process = process
        self.unsent = memoryview(start.stdin)
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.stdout_bytes = 0
        self.stderr_bytes = 0
        self.limits: Limits = start.permit.limits
        self.deadline = math.inf
        self.scratch = scratch
        self.exit: ExitWatch | None = None

    def until(self, deadline: float, cancel: Cancel) -> tuple[End, str]:
        """Talk until the process ends or has to: how, and why."""
        process = self.process
        self.deadline = deadline
        self.exit = ExitWatch(process.pid)
        pause_s = SAMPLE_S
        sample_at = time.monotonic() + pause_s
        calm = tasks() + self.limits.processes_max
        with selectors.DefaultSelector() as selector:
            selector.register(self.exit, selectors.EVENT_READ)
            selector.register(cancel, selectors.EVENT_READ)
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE)
            while not self.exit.ended:
                now = time.monotonic()
                if now >= deadline:
                    return End.TIMED_OUT, f"stopped after {self.limits.timeout_s:g} s"
                alarmed = calm < (running := tasks())
                if alarmed or now >= sample_at:
                    over = self.over(stopped=alarmed)
                    calm = max(calm, running)
                    if over:
                        return End.OVER_LIMIT, over
                    pause_s = min(2 * pause_s, SAMPLE_S_MAX)
                    sample_at = time.monotonic() + pause_s
                for key, _ in selector.select(min(deadline, sample_at, now + ALARM_S) - now):
                    if key.fileobj is self.exit:
                        self.exit.ended = True
                    elif key.fileobj is cancel:
                        return End.CANCELLED, "cancelled"
                    elif key.fileobj is process.stdin:
                        if not self.send():
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif not self.take(key.fd):
                        selector.unregister(key.fileobj)
                if flooded := self.flooded():
                    return End.TOO_LARGE, flooded
        return self.rest()

    def over(self, *, stopped: bool) -> str:
        """What the process and its descendants take more of than they may.

        Attack: a fork bomb is faster than whoever counts it, and takes the counter's processor. So when the
        machine's tasks have grown too much, the group stands still while it is counted.
        """
        if not stopped:
            return self.counted()
        leader = self.process.pid
        stood_still = _stands_still(leader)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGSTOP)
        over = self.counted()
        if over:
            return over
        with suppress(ProcessLookupError, PermissionError):
            if not stood_still:
                os.killpg(leader, signal.SIGCONT)
                return ""
        for pid in family(leader)[1:]:  # the leader stopped itself, and must not go on because of us
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        return ""

    def counted(self) -> str:
        limits = self.limits
        memory = count = 0
        for pid in family(self.process.pid):
            count += 1
            memory += _memory(pid)
        if count > limits.processes_max:
            return f"more than {limits.processes_max} processes"
        if memory > limits.memory_bytes_max:
            return f"more than {limits.memory_bytes_max} bytes of memory"
        most = limits.scratch_bytes_max
        if self.scratch and _scratch.size(self.scratch, most, self.deadline) > most:
            return f"more than {limits.scratch_bytes_max} bytes in the scratch folder"
        return ""

    def flooded(self) -> str:
        if self.stdout_bytes > self.limits.stdout_bytes_max:
            return f"more than {self.limits.stdout_bytes_max} bytes on stdout"
        if self.stderr_bytes > self.limits.stderr_bytes_max:
            return f"more than {self.limits.stderr_bytes_max} bytes on stderr"
        return ""

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
        is_stdout = fd == self.process.stdout.fileno()
        room = (self.limits.stdout_bytes_max if is_stdout else self.limits.stderr_bytes_max) + 1
        room -= self.stdout_bytes if is_stdout else self.stderr_bytes
        try:
            chunk = os.read(fd, min(_CHUNK_BYTES, room))
        except BlockingIOError:
            return nothing_now
        if is_stdout:
            self.stdout += chunk
            self.stdout_bytes += len(chunk)
        else:
            self.stderr += chunk
            self.stderr_bytes += len(chunk)
            del self.stderr[: max(0, len(self.stderr) - self.limits.stderr_bytes_max)]
        return bool(chunk)

    def rest(self) -> tuple[End, str]:
        """What the process wrote before it ended. Nobody is waited for: a descendant may hold the pipes."""
        self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            for _ in range(_LEFT_IN_PIPE_BYTES_MAX // _CHUNK_BYTES):
                if self.flooded() or not self.take(pipe.fileno(), nothing_now=False):
                    break
        flooded = self.flooded()
        return (End.TOO_LARGE, flooded) if flooded else (End.EXITED, "")

    def kill(self) -> None:
        """Kill the group, the process itself, which may have moved to another group, and its tree.

        Only before it is reaped: until then its number, and that of its group, cannot belong to others.
        """
        for _ in range(_SWEEPS):
            # Once it has ended, those that left its group are nobody's children any more.
            is_over = self.exit is not None and self.exit.ended
            strays = [] if is_over else [pid for pid in family(self.process.pid) if pid != self.process.pid]
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError, PermissionError):
                    kill(self.process.pid, signal.SIGKILL)
            for pid in strays:  # those that left the group but not yet the tree
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not strays:
                return

    def finish(self) -> tuple[int | None, Usage]:
        """Kill, close, reap. The exit status, or None where it is not ours to know."""
        self.kill()
        process = self.process
        if self.guard is not None:  # also where its end is not seen: reaped later, its number is another's
            self.guard.let_go(process.pid)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        if self.exit is not None:
            gone = self.exit.wait(_DEATH_S)
            self.exit.close()
            if not gone:
                return None, Usage()
        # Not process.wait(): where the child was reaped by others, it would report exit status 0.
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except ChildProcessError:
            process.returncode = 0  # nothing is left to wait for
            return None, Usage()
        process.returncode = os.waitstatus_to_exitcode(status)
        spent = Usage(
            user_ms=usage.ru_utime * 1000,
            system_ms=usage.ru_stime * 1000,
            memory_bytes=usage.ru_maxrss * (1024 if sys.platform == "linux" else 1),
        )
        return (process.returncode if process.returncode >= 0 else 128 - process.returncode), spent


class ExitWatch:
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


# -- the tree as /proc shows it -----------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """A process, its descendants and the members of its group: nothing more on systems without /proc."""
    children: dict[int, list[int]] = {}
    found = {pid: None}
    try:
        numbers = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return [pid]
    for number in numbers:
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{number}/stat", "rb") as file:
            fields = file.read(512).rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(number))
            if int(fields[2]) == pid:  # also one whose parent has ended
                found[int(number)] = None
    waiting = [*found]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found[child] = None
                waiting.append(child)
    return [*found]


def tasks() -> int:
    """How many processes and threads the machine runs; 0 where it does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb") as file:
        return int(file.read(128).split()[3].partition(b"/")[2])
    return 0


def tasks_left() -> float:
    """How many more processes and threads this user may have, at least; to root the limit means nothing."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return math.inf
    left = limit - tasks()
    if left >= _PLENTY or not os.path.isdir("/proc/self"):
        return left
    return limit - _tasks_of(os.getuid())  # which is many files to read


def _tasks_of(uid: int) -> int:
    count = 0
    for number in os.listdir("/proc"):
        if not number.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{number}/status", "rb") as file:
            told = dict(line.split(b":", 1) for line in file)
            if int(told[b"Uid"].split()[0]) == uid:
                count += int(told[b"Threads"])
    return count


def _stands_still(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(512).rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def _memory(pid: int) -> int:
    """What a process holds that is no file: private and shared memory."""
    total = 0
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total
