"""The pipes of one call at the supervised level, and what came through them.

It carries bytes until the report is there and says how the call ended; what a report means on the wire is
``_wire.py``'s.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import time
from _socket import socket as Socket
from _socket import socketpair  # the public one asks the kernel twice what it just made
from contextlib import suppress
from typing import Final, TypeAlias

from toolcrib.model import End, Ending, Run, Usage
from toolcrib.sandbox import Cancel, Start, _kernel
from toolcrib.sandbox._wire import (
    STAGES,
    STDIN_BYTES_MAX,
    STOP,
    TASKS_PER_PROCESS,
    Reason,
    Report,
    Stage,
    heard,
)
from toolcrib.sandbox.rules import KernelRules

QUICK_S: Final = 0.0015
"""A call that takes no longer is worth looking for: a processor that sleeps takes a tenth of a millisecond to
wake up, and finds its caches cold."""
LARGE_BYTES: Final = 1 << 20
PIPE_BYTES: Final = 65_536
CHUNK_BYTES: Final = 65_536
_CLOSED_TO_ROOT: Final = (
    "root's tools run without its powers: run as the folder's owner, or give that user a program to run "
    "(one that lies in root's home is closed to everybody else)"
)
"""The folder's owner could enter it, and is whom the tool would run as if it could read all that it needs."""

Ends: TypeAlias = tuple[Socket, Socket]
"""The control socket of one call, our end and the supervisor's. Attack: descriptors that serve a second call,
while somebody still holds those of the first. They may be made ahead, but they are never used again."""


def new_ends() -> Ends:
    return socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Exchange:
    """What goes to the tool of one call and what comes from it; used by one thread.

    Little input goes with the request, and what a quick tool writes comes back with the report. Of a tool
    that takes its time, or writes more, the supervisor hands us the pipes, and long input has one of ours.

    The report alone says that the tool and all it started are dead, and by then everything they wrote lies in
    the pipes. Attack: a process that holds a pipe open, here or elsewhere; it is not waited for.
    """

    def __init__(self, start: Start, cancel: Cancel) -> None:
        self.start = start
        self.stdin = start.stdin
        """What goes with the request."""
        self.unsent = memoryview(b"")
        """What goes through a pipe of ours."""
        self.stdin_read = self.stdin_write = self.stdout_read = self.stderr_read = -1
        self.stdout: list[bytes] = []
        self.large: mmap.mmap | None = None
        """Where stdout goes once it is long: pieces of a flood would stay with the C library for good."""
        self.stderr: list[bytes] = []
        self.stdout_bytes = self.stderr_bytes = 0
        self.stopped: End | None = None
        self.is_silent = self.is_cut = False
        self.lines: list[Socket] = []
        """Our end of the line, once there is one."""
        self.opened: list[int] = []
        try:
            self.cancelled = cancel.fileno()  # perhaps made now, and there may be no descriptor left
            if len(start.stdin) > STDIN_BYTES_MAX:
                self.stdin, self.unsent = b"", memoryview(start.stdin)
                self.stdin_read, self.stdin_write = os.pipe()
                self.opened += (self.stdin_read, self.stdin_write)
                os.set_blocking(self.stdin_write, False)
                self.feed()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for line in self.lines:
            line.close()
        if self.large is not None:
            self.large.close()
        for fd in self.opened:
            os.close(fd)
        self.opened = []

    def _close(self, fd: int) -> None:
        self.opened.remove(fd)
        os.close(fd)

    def feed(self) -> None:
        """Write what the pipe takes now; close it when that was all."""
        with suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[os.write(self.stdin_write, self.unsent[:PIPE_BYTES]) :]
            self._close(self.stdin_write)

    def until_report(self, until: float, *, looking: bool = False) -> Report | None:
        """Carry bytes until the report comes. None: contact is lost, or (``is_silent``) nobody speaks.

        ``looking``: first look for the report again and again, for as long as a quick call takes.
        """
        wait = select.poll()
        (line,) = self.lines
        control, stop = line.fileno(), self.cancelled
        wait.register(control, select.POLLIN)
        wait.register(stop, select.POLLIN)
        if self.unsent:
            wait.register(self.stdin_write, select.POLLOUT)
        if self.stdout_read >= 0:
            wait.register(self.stdout_read, select.POLLIN)
            wait.register(self.stderr_read, select.POLLIN)
        ready: list[tuple[int, int]] = []
        if looking:
            enough = time.monotonic() + QUICK_S
            while not (ready := wait.poll(0)) and time.monotonic() < enough:
                pass
        while True:
            left_ms = (until - time.monotonic()) * 1000
            if left_ms <= 0:
                self.is_silent = True
                return None
            for fd, _ in ready or wait.poll(left_ms):
                if fd == control:
                    message, rights, is_cut = heard(line)
                    self.opened += rights
                    report = self._told(message, rights, is_cut)
                    if report is None or report.reason != Reason.RUNNING:
                        return report
                    if self.stopped is None and self.stdout_read >= 0:
                        wait.register(self.stdout_read, select.POLLIN)
                        wait.register(self.stderr_read, select.POLLIN)
                elif fd == stop:
                    wait.unregister(stop)
                    self._stop(End.CANCELLED)
                elif fd == self.stdout_read or fd == self.stderr_read:
                    # A flood is not read while it is being stopped.
                    if self.stopped is not None or self._read(fd) == 0:
                        wait.unregister(fd)
                else:
                    self.feed()
                    if not self.unsent:
                        wait.unregister(fd)
            ready = []

    def _told(self, message: bytes, rights: tuple[int, ...], is_cut: bool) -> Report | None:
        """What the supervisor says, and with it what the tool wrote, or the pipes where that lies.

        None: it hung up.
        """
        report = Report.read(message)
        if rights:
            self.stdout_read, self.stderr_read = rights
        if is_cut:
            self.is_cut = True
            self._stop(End.LOST)
        if report is not None and report.tail:
            self._take(report.tail[: report.stdout_bytes], report.tail[report.stdout_bytes :])
        if report is not None and report.reason != Reason.RUNNING and self.stdout_read >= 0:
            self._drain()
        return report

    def give_up(self) -> None:
        """Nobody waits for the report any more.

        Attack: a copy of the host, made by fork, has our end as well. Closing ours would tell nobody, and the
        tool would go on.
        """
        self._stop(End.CANCELLED)

    def _stop(self, end: End) -> None:
        if self.stopped is None:
            self.stopped = end
            for line in self.lines:
                with suppress(OSError):
                    line.send(STOP)

    def _take(self, stdout: bytes, stderr: bytes) -> None:
        """What came with the report, or before it, in pieces, where the pipes could not come."""
        limits = self.start.permit.limits
        self.stdout.append(stdout)
        self.stdout_bytes += len(stdout)
        self._keep_stderr(stderr)
        if self.stdout_bytes > limits.stdout_bytes_max or self.stderr_bytes > limits.stderr_bytes_max:
            self._stop(End.TOO_LARGE)

    def _read(self, fd: int) -> int:
        """What lies in the pipe; how much it was. 0: its end; -1: nothing, and there may be more later."""
        try:
            return self._read_now(fd)
        except BlockingIOError:
            # Attack: a tool reads from its own stdout, by its name in /proc, what we were told is there.
            return -1

    def _read_now(self, fd: int) -> int:
        limits = self.start.permit.limits
        if fd == self.stdout_read:
            size = self._read_stdout(limits.stdout_bytes_max)
            self.stdout_bytes += size
            if self.stdout_bytes > limits.stdout_bytes_max:
                self._stop(End.TOO_LARGE)
        else:
            chunk = os.read(fd, CHUNK_BYTES)
            size = len(chunk)
            self._keep_stderr(chunk)
            if self.stderr_bytes > limits.stderr_bytes_max:
                self._stop(End.TOO_LARGE)
        return size

    def _keep_stderr(self, more: bytes) -> None:
        """Of all of it, the end that the limit leaves: why a program broke stands there."""
        most = self.start.permit.limits.stderr_bytes_max
        self.stderr_bytes += len(more)
        self.stderr.append(more)
        if self.stderr_bytes > most:
            self.stderr = [b"".join(self.stderr)[-most:] if most else b""]

    def _read_stdout(self, most: int) -> int:
        """What lies in the pipe, kept as far as the limit goes; how much it was."""
        at = self.stdout_bytes
        if at > most:
            return len(os.read(self.stdout_read, CHUNK_BYTES))
        if self.large is None and at + CHUNK_BYTES > LARGE_BYTES:
            # Where there is no memory for all that it may write, there may be for what it does.
            with suppress(OSError):
                self.large = mmap.mmap(-1, most + CHUNK_BYTES)
                self.large[:at] = b"".join(self.stdout)
                self.stdout.clear()
        if self.large is None:
            chunk = os.read(self.stdout_read, CHUNK_BYTES)
            self.stdout.append(chunk)
            return len(chunk)
        with memoryview(self.large) as whole, whole[at : at + CHUNK_BYTES] as room:
            return os.readv(self.stdout_read, [room])

    def _kept_stdout(self) -> bytes:
        most = self.start.permit.limits.stdout_bytes_max
        if self.stdout_bytes > most:  # nobody reads the middle of a flood
            return bytes(self.large[:CHUNK_BYTES]) if self.large else b"".join(self.stdout)[:most]
        return self.large[: self.stdout_bytes] if self.large else b"".join(self.stdout)

    def _drain(self) -> None:
        """What the dead left in the pipes; somebody outside who still writes is not waited for.

        A read gives no more than one packet where the tool made its pipe one of packets (``O_DIRECT``).
        """
        for fd in (self.stdout_read, self.stderr_read):
            left = _kernel.pending_bytes(fd)
            while left > 0 and (size := self._read(fd)) > 0:
                left -= size

    def ending(
        self, report: Report | None, rules: KernelRules, layers: tuple[str, ...], began: float
    ) -> Ending:
        end, reason, status, number, hint = self._outcome(report, rules)
        is_own = end is End.EXITED
        limits = self.start.permit.limits
        run = Run(
            argv=self.start.argv,
            cwd=self.start.cwd,
            env_names=tuple(self.start.env),
            exit_status=status if is_own else None if end is End.NOT_STARTED else -1,
            duration_ms=(time.monotonic() - began) * 1000,
            stdout_bytes=self.stdout_bytes,
            stderr_bytes=self.stderr_bytes,
            truncated=self.stdout_bytes > limits.stdout_bytes_max
            or self.stderr_bytes > limits.stderr_bytes_max,
            what=self.start.what,
        )
        notes: tuple[str, ...] = ()
        if report is not None and report.strays and end is End.EXITED:
            notes = (f"{report.strays} process(es) that it left behind were killed",)
        if report is not None and report.survivors:
            notes = (*notes, f"{report.survivors} process(es) could not be killed yet")
        return Ending(
            end=end,
            exit_status=status,
            signal=number,
            stdout=self._kept_stdout(),
            stderr=b"".join(self.stderr),
            stdout_bytes=self.stdout_bytes,
            stderr_bytes=self.stderr_bytes,
            reason=reason,
            hint=hint,
            usage=report.usage if report is not None else Usage(),
            layers=layers if end is not End.NOT_STARTED else (),
            runs=(run,),
            notes=notes,
        )

    def _outcome(
        self, report: Report | None, rules: KernelRules
    ) -> tuple[End, str, int | None, int | None, str | None]:
        if report is None:
            return End.LOST, "the spawner does not answer" if self.is_silent else "", None, None, None
        if report.reason == Reason.NOT_STARTED:
            if self.stopped is End.CANCELLED:
                return End.CANCELLED, "", None, None, None
            closed = report.stage == Stage.CWD and report.error == errno.EACCES and os.geteuid() == 0
            hint = _CLOSED_TO_ROOT if closed else None
            return End.NOT_STARTED, self._why_not(report), None, None, hint
        if self.is_cut:
            hint = "raise the limit of open files (ulimit -n)"
            return End.LOST, "no descriptor was left for what it wrote", None, None, hint
        if self.stopped is not None:
            return self.stopped, "", None, None, None
        limits = rules.limits
        match report.reason:
            case Reason.EXITED if os.WIFSIGNALED(report.status):
                number = os.WTERMSIG(report.status)
                return End.EXITED, "", 128 + number, number, None
            case Reason.EXITED:
                return End.EXITED, "", os.WEXITSTATUS(report.status), None, None
            case Reason.SWAPPED:
                return End.DENIED, "one of its files changed while it was started", None, None, None
            case Reason.DEADLINE:
                return End.TIMED_OUT, "", None, None, None
            case Reason.PROCESSES:
                what = f"it had more than {limits.processes_max} processes"
                if report.detail:
                    what = f"its processes had more than {TASKS_PER_PROCESS * limits.processes_max} threads"
            case Reason.MEMORY:
                what = f"its processes took more than {limits.memory_bytes_max} bytes of memory"
            case Reason.SCRATCH:
                what = f"its temporary files took more than {limits.scratch_bytes_max} bytes"
            case _:
                return End.CANCELLED, "", None, None, None
        return End.OVER_LIMIT, what, None, None, None

    def _why_not(self, report: Report) -> str:
        what = os.strerror(report.error)
        if report.stage == Stage.EXEC:
            return what
        if report.stage == Stage.CWD:
            return f"working directory {self.start.cwd}: {what}"
        return f"{STAGES.get(Stage(report.stage), 'start')}: {what}"
