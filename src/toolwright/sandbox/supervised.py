"""The supervised level: programs started, watched and swept by the native spawner (``src/native/spawner.c``).

The host talks to it over one SEQPACKET socket: a request is one datagram with descriptors, so threads share
the socket without a lock. Each call has a control socket of its own, on which the report comes back and whose
hang-up stops the call. Nothing is forked and nothing of a tool is reaped in the host.

What this file is not: it decides nothing. ``rules.py`` says what a permit means to the kernel, the spawner
applies it, and this file carries bytes between the two. A spawner that died is started anew, once per call; a
call that may have started by then is reported as lost, never as a success and never run twice.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import resource
import select
import signal
import socket
import struct
import threading
import time
import weakref
from _socket import socket as _Socket
from _socket import socketpair as _socketpair  # the public one asks the kernel twice what it just made
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from enum import IntEnum, IntFlag
from typing import Final

from toolwright.model import End, Ending, Level, Permit, Run, Usage
from toolwright.records import dataclass, replace
from toolwright.sandbox import NOT_STARTED, Cancel, Standing, Start, _exchange, _kernel, _standing
from toolwright.sandbox._scratch import Scratch
from toolwright.sandbox.rules import Bind, Fs, KernelRules

SLOTS_MAX: Final = 256
"""Scratch folders with their rules that wait for the next call of the same kind."""
SLOT_AGE_S: Final = 30.0
"""Then paths are looked up anew, though nothing seemed to have changed."""
NAMESPACES_MAX: Final = 32
CALLS_MAX: Final = 1024
"""Calls at once, where the limit of open files allows so many; the others wait for their turn."""
GRACE_S: Final = 5.0
"""How long after its deadline a call may stay silent before contact counts as lost."""

_FILES_PER_CALL: Final = 12
"""Descriptors that a running call holds here, its slot's included."""
_FILES_OF_HOST: Final = 40
"""Descriptors that are not counted on: the interpreter's, the journal's, the spawner's."""
_ATTEMPTS_MAX: Final = 20
"""Starts that are tried where the spawner died, or a protected file is replaced again and again."""
QUICK_S: Final = 0.0015
"""A call that takes no longer is worth looking for: a processor that sleeps takes a tenth of a millisecond to
wake up, and finds its caches cold."""
_IS_PARALLEL: Final = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False
"""On a single processor, looking would keep the tool from running."""
_CLOCK_NS: Final = 50_000_000
"""Far longer than any kernel's clock for files stands still."""
_QUICK_MS: Final = 5
"""How long output is left in the pipes before anybody looks at it."""
_PIPE_BYTES_MIN: Final = 4096
"""What every pipe takes at once."""
_REPLACED: Final = (errno.ENOENT, errno.EINVAL, errno.ESTALE)
"""What mounting says where somebody replaces the file in that moment."""
_QUEUE_S: Final = 0.05
_ALIKE_MAX: Final = 256
_LARGE_BYTES: Final = 1 << 20
_TRIES: Final = 8

"""How often a call that waits for its turn looks whether it was cancelled."""
_INLINE_BYTES_MAX: Final = 60_000
_PIPE_BYTES: Final = 65_536
_CHUNK_BYTES: Final = 65_536
_PAGE_BYTES: Final = 4096
_VERSION: Final = 1
_REQUEST: Final = struct.Struct("<8I2Q10I")
_REPORT: Final = struct.Struct("<4I2i2I4Q4IQ8i")
_LIMIT: Final = struct.Struct("<IIQ")
_FLAGS_AT: Final = 12
_REQUEST_MAGIC, _REPORT_MAGIC = 0x51535754, 0x52535754
_SEALED_MAX: Final = 16
"""Files of one start whose checked bytes are shown in place of what lies at their paths."""
_NO_LIMIT: Final = (1 << 64) - 1
_TASKS_PER_PROCESS: Final = 8


class _Kind(IntEnum):
    RUN = 1
    NAMESPACE = 2
    PROBE = 3


class _Flag(IntFlag):
    RULESET = 1 << 0
    PROGRAM = 1 << 1
    CHANNEL = 1 << 2
    USER_NS = 1 << 3
    MOUNT_NS = 1 << 4
    PAYLOAD = 1 << 5
    SET_UID = 1 << 8
    SET_GID = 1 << 9
    KEEP_PROGRAM = 1 << 10


class _Reason(IntEnum):
    EXITED = 1
    NOT_STARTED = 2
    DEADLINE = 3
    CANCELLED = 4
    PROCESSES = 5
    MEMORY = 6
    SCRATCH = 7
    DONE = 8
    SWAPPED = 9


class _Stage(IntEnum):
    NONE = 0
    REQUEST = 1
    CLONE = 2
    GROUP = 3
    DESCRIPTORS = 4
    NAMESPACE = 5
    STALE = 6
    RLIMIT = 7
    IDENTITY = 8
    CAPABILITIES = 9
    CWD = 10
    NO_NEW_PRIVS = 11
    LANDLOCK = 12
    SECCOMP = 13
    EXEC = 14
    BIND = 15


_STAGES: Final = {
    _Stage.REQUEST: "the spawner refused the request",
    _Stage.CLONE: "no new process",
    _Stage.GROUP: "process group",
    _Stage.DESCRIPTORS: "descriptors",
    _Stage.NAMESPACE: "mount namespace",
    _Stage.STALE: "mount namespace out of date",
    _Stage.RLIMIT: "resource limits",
    _Stage.IDENTITY: "change of user",
    _Stage.CAPABILITIES: "capabilities",
    _Stage.NO_NEW_PRIVS: "no_new_privs",
    _Stage.LANDLOCK: "Landlock",
    _Stage.SECCOMP: "seccomp",
    _Stage.BIND: "protecting",
}

PROBES: Final = (
    "subreaper",
    "pidfd",
    "landlock",
    "seccomp",
    "mount-namespace",
    "user-namespace",
    "sealed-program",
    "proc",
)
"""The layers that ``Supervised.probe`` tries, by name."""

_READ_ONLY, _ABSENT, _SEALED = 1, 2, 4
_READ_AND_EXECUTE: Final = int(Fs.READ_FILE | Fs.EXECUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the spawner can do on this machine, found out by doing it."""

    reason: str = ""
    """Not empty: the spawner does not work at all."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """The layers that do not work, and what the kernel said. Every other one of ``PROBES`` works."""

    def works(self, layer: str) -> bool:
        return not self.reason and layer not in self.errors


@dataclass(frozen=True, slots=True)
class _Report:
    reason: int
    stage: int
    status: int
    error: int
    strays: int
    usage: Usage
    survivors: int
    """Processes that no signal has ended yet: they wait in the kernel."""
    detail: int
    probes: tuple[int, ...]
    tail: bytes

    @staticmethod
    def read(message: bytes) -> _Report | None:
        if len(message) < _REPORT.size:
            return None
        found = _REPORT.unpack_from(message)
        if found[0] != _REPORT_MAGIC or found[1] != _VERSION:
            return None
        usage = Usage(user_ms=found[8] / 1000, system_ms=found[9] / 1000, memory_bytes=found[10])
        return _Report(
            found[2], found[3], found[4], found[5], found[7], usage, found[13], found[14], found[17:],
            message[_REPORT.size :],
        )  # fmt: skip


class _Refused(Exception):
    """Nothing was started, and the ending says why."""

    def __init__(self, end: End, reason: str, hint: str | None = None, *, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.end = end
        self.hint = hint
        self.may_pass = may_pass


@dataclass(slots=True, eq=False)
class _Namespace:
    """A mount namespace with its binds, kept open so that calls can enter it instead of making one.

    ``users`` counts the slots that hold it; the last one to let go of a stale one closes it.
    """

    fds: tuple[int, ...]
    """The user namespace, where there is one, and the mount namespace."""
    sealed: tuple[int, ...]
    """The files with checked bytes that it shows: Landlock must allow these."""
    paths: tuple[str, ...]
    """Sources and targets, as the spawner reads them."""
    bind_flags: bytes
    users: int = 0
    is_stale: bool = False

    def close(self) -> None:
        _kernel.close_all((*self.fds, *self.sealed))
        self.fds = self.sealed = ()


@dataclass(slots=True, eq=False)
class _Slot:
    """What calls of one kind share, one at a time: a scratch folder, its rules and their descriptors."""

    key: object
    scratch: str
    rules: KernelRules
    layers: tuple[str, ...]
    born: float
    seen: tuple[tuple[int, int] | None, ...]
    """Which files the watched paths were when the rules were made."""
    namespace: _Namespace | None = None
    fds: tuple[int, ...] = ()
    """Of the ruleset and the sealed program, as far as there are any."""
    flags: int = 0
    prefix: bytes = b""
    """The part of the message that is the same for every call: limits and filter."""
    kit: int = 0
    """A number for all of this: the spawner may restrict the next process of the same kit in advance."""
    is_quick: bool = False
    """The call before this one was over so soon that looking for its end is cheaper than being woken."""
    changed_ns: int = -1
    """When the scratch folder last changed, as of when it was last seen to be empty."""
    taken_ns: int = 0
    """When the call that has it took it."""

    def is_untouched(self) -> bool:
        """Whether nothing was ever made in the scratch folder since it was last seen to be empty.

        A tool cannot set the time of a change. The kernel's clock may stand still for some milliseconds, so
        what changed shortly before the call is looked at again.
        """
        return self.changed_ns + _CLOCK_NS < self.taken_ns and self.changed_ns == _changed_ns(self.scratch)


class Service:
    """A program that runs until it ends, is killed, or the host goes away."""

    def __init__(
        self,
        control: _Socket,
        stderr: int,
        finish: Callable[[], None],
        rules: KernelRules,
        scratch: str,
    ) -> None:
        self.rules = rules
        """What it runs under."""
        self.scratch = scratch
        """Its own folder, which is emptied when it has ended."""
        self._lock = threading.Lock()
        self._control = control
        self._stderr = stderr
        self._finish: Callable[[], None] | None = finish
        self._report: _Report | None = None
        self._is_over = False

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it is over, waited for at most so long."""
        with self._lock:
            if self._is_over:
                return True
            wait = select.poll()
            wait.register(self._control.fileno(), select.POLLIN)
            if not wait.poll(max(0.0, timeout_s) * 1000):
                return False
            self._report = _received(self._control)
            self._is_over = True
            self._release()
            return True

    @property
    def ending(self) -> str:
        """How it ended, for people; empty while it runs."""
        if not self._is_over:
            return ""
        if self._report is None:
            return "contact was lost"
        return _how(self._report)

    def stderr(self) -> bytes:
        """What it wrote to its stderr since it was last asked; no more than a pipe holds."""
        with suppress(OSError):
            return os.read(self._stderr, _PIPE_BYTES)
        return b""

    def kill(self) -> None:
        """End it and everything it started. Returns when that is done."""
        with suppress(OSError):
            self._control.send(b"c")
        self.ended(GRACE_S)
        with self._lock:
            self._is_over = True
            self._release()

    def _release(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            self._control.close()
            os.close(self._stderr)
            self._stderr = -1
            finish()


class _Connection:
    """One running spawner."""

    def __init__(self, binary: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened = [theirs.fileno()]
        try:
            page = os.memfd_create("toolwright-started", os.MFD_CLOEXEC)
            opened.append(page)
            os.ftruncate(page, _PAGE_BYTES)
            self.started = mmap.mmap(page, _PAGE_BYTES)
            own = os.pidfd_open(os.getpid())
            opened.append(own)
            # Where a queue is full for so long, something is wrong that waiting does not mend.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 10, 0))
            # Above 5, so that putting one in its place does not close another.
            above = [_dup_above(fd, 6) for fd in opened]
            opened += above
            self.pid = os.posix_spawn(
                binary,
                ["toolwright-spawner"],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(above, 3)],
                setpgroup=0,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.detach()
            _kernel.close_all(opened)
        self.socket = ours
        self.host = os.getpid()
        self._is_closed = False
        self.free = list(range(1, _PAGE_BYTES))
        """Bytes of the page that no call uses; byte 0 is for those that found none, and is always set."""
        self.started[0] = 1

    def take_place(self) -> int:
        """A byte of the page, cleared: the supervisor sets it before it starts anything."""
        try:
            place = self.free.pop()
        except IndexError:
            return 0
        self.started[place] = 0
        return place

    def is_alone(self) -> bool:
        """Whether no other call is running."""
        return len(self.free) >= _PAGE_BYTES - 2

    def give_place_back(self, place: int) -> None:
        if place:
            self.free.append(place)

    def post(self, message: bytes, fds: list[int]) -> None:
        """Send a request, by way of a file in memory where it is too long for a datagram."""
        if len(message) <= _INLINE_BYTES_MAX:
            self.socket.sendmsg((message,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds)),))
            return
        flags = struct.unpack_from("<I", message, _FLAGS_AT)[0] | _Flag.PAYLOAD
        message = message[:_FLAGS_AT] + struct.pack("<I", flags) + message[_FLAGS_AT + 4 :]
        payload = _kernel.seal(message, "request")
        try:
            rights = array("i", [*fds, payload])
            self.socket.sendmsg(
                (message[: _REQUEST.size],), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),)
            )
        finally:
            os.close(payload)

    def ask(self, message: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        """Send a request that starts no tool; the answer and its descriptors, or nothing."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self.post(message, [theirs.fileno(), *fds])
            ours.settimeout(GRACE_S)
            try:
                answer, found, _, _ = socket.recv_fds(ours, 8192, 2 + _SEALED_MAX, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return b"", []
            return answer, found

    def close(self, wait_s: float = 2.0) -> None:
        """Hang up; the spawner ends by itself. It is reaped here because it is a child of ours, no tool's."""
        self.socket.close()
        # Once: after that its number may be another process.
        was_closed, self._is_closed = self._is_closed, True
        if was_closed or self.host != os.getpid():
            return
        with suppress(OSError, ChildProcessError):
            fd = os.pidfd_open(self.pid)
            try:
                wait = select.poll()
                wait.register(fd, select.POLLIN)
                if not wait.poll(wait_s * 1000):
                    os.kill(self.pid, signal.SIGKILL)
                    wait.poll(wait_s * 1000)
                os.waitpid(self.pid, os.WNOHANG)
            finally:
                os.close(fd)


class Supervised:
    """The level. Any thread may call; calls share one spawner."""

    level = Level.SUPERVISED

    def __init__(
        self,
        rules: Callable[[Start, str], KernelRules],
        scratch: Scratch,
        *,
        namespaces: bool = True,
        binary: str | None = None,
    ) -> None:
        """``rules``: what a start and its scratch folder mean to the kernel. ``namespaces``: whether tools
        can have mount namespaces, as ``probe`` found. ``binary``: another spawner than the installed one."""
        self._rules = rules
        self._scratch = scratch
        self._namespaces_work = namespaces
        self._binary = binary or installed()
        self._connection: _Connection | None = None
        self._slots: dict[object, list[_Slot]] = {}
        self._idle = 0
        self._namespaces: dict[object, _Namespace] = {}
        self._mounts: tuple[int, select.poll] | None = None
        self._kits = itertools.count(1)
        self._alike: dict[int, tuple[Permit, int]] = {}
        self._numbers: dict[Permit, int] = {}
        self._is_closed = False
        self._renew_locks()
        _MADE.add(self)

    def _renew_locks(self) -> None:
        """Also in a copy of the host made by fork: there the thread that held one is missing."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = CALLS_MAX * _FILES_PER_CALL if files == resource.RLIM_INFINITY else files
        self._lock = threading.Lock()
        self._slots_max = max(1, min(SLOTS_MAX, files // 16))
        self._room = threading.Semaphore(max(1, min(CALLS_MAX, (files - _FILES_OF_HOST) // _FILES_PER_CALL)))

    @property
    def room(self) -> threading.Semaphore:
        """How many calls there may be at once, those in zygotes included: descriptors are what runs out."""
        return self._room

    # -- one call -------------------------------------------------------------------------------------------

    def run(self, start: Start, cancel: Cancel) -> Ending:
        """Run one program to its end, its deadline or its limit."""
        began = time.monotonic()
        no = _exchange.refused(start, self.level, cancel)
        if no is not None:
            return no
        room = self._room
        if not room.acquire(blocking=False):
            while not room.acquire(timeout=_QUEUE_S):
                if cancel.is_set:
                    return _ending(start, End.CANCELLED, began, "cancelled before it started")
                if time.monotonic() - began > start.permit.limits.timeout_s:
                    hint = "call fewer tools at once, or raise the limit of open files (ulimit -n)"
                    return _ending(start, End.NOT_STARTED, began, "too many calls at once", hint)
        try:
            try:
                return self._run(start, cancel, began)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self.let_go()
                return self._run(start, cancel, began)
        except _Refused as refused:
            return _ending(start, refused.end, began, str(refused), refused.hint)
        except OSError as error:
            # Nothing was started, and the next call may fare better.
            return _ending(start, End.NOT_STARTED, began, _words(error))
        finally:
            room.release()

    def _run(self, start: Start, cancel: Cancel, began: float) -> Ending:
        """Raises OSError only where nothing was started."""
        for attempt in range(_ATTEMPTS_MAX):
            ending = self._try(start, cancel, began, is_last=attempt == _ATTEMPTS_MAX - 1)
            if ending is not None:
                return ending
        raise AssertionError("the last attempt has an ending")

    def _try(self, start: Start, cancel: Cancel, began: float, *, is_last: bool) -> Ending | None:
        """None: nothing was started, and trying again may help."""
        connection = self._connected()
        try:
            slot = self._take(start, connection)
        except _Refused as refused:
            if is_last or not refused.may_pass:
                raise
            return None
        exchange: _Exchange | None = None
        report: _Report | None = None
        is_sent = is_stale = False
        try:
            exchange = _Exchange(start, cancel)
            place = connection.take_place()
            try:
                timeout_s = start.permit.limits.timeout_s
                is_sent = self._send(connection, start, slot, exchange, place, timeout_s)
                sent = time.monotonic()
                looking = slot.is_quick and connection.is_alone()
                report = exchange.until_report(sent + timeout_s + GRACE_S, looking=looking)
                slot.is_quick = _IS_PARALLEL and time.monotonic() - sent < QUICK_S
                may_have_started = is_sent and bool(connection.started[place])
            finally:
                connection.give_place_back(place)
            if report is None and not may_have_started and not exchange.is_silent:
                is_sent = False
                self._disconnect(connection)
                return _ending(start, End.NOT_STARTED, began, "the spawner died") if is_last else None
            if report is not None and report.stage == _Stage.STALE and slot.namespace is not None:
                slot.namespace.is_stale = is_stale = True
                if not is_last:
                    return None
            return exchange.ending(report, slot.rules, slot.layers, began)
        finally:
            if exchange is not None:
                exchange.close()
                if exchange.stdout_bytes + exchange.stderr_bytes > _LARGE_BYTES:
                    _kernel.give_memory_back()
            if is_sent and (report is None or report.survivors):
                self._abandon(slot)
            elif is_stale:
                self._drop(slot)
            else:
                self._give_back(slot)

    def _send(
        self,
        connection: _Connection,
        start: Start,
        slot: _Slot,
        exchange: _Exchange,
        place: int,
        timeout_s: float,
        channel: int = -1,
    ) -> bool:
        """False: the spawner is gone and nobody has the request. The control socket says so as well."""
        flags, namespace, rules = slot.flags, slot.namespace, slot.rules
        fds = [exchange.theirs.fileno(), exchange.stdin_read, exchange.stdout_write, exchange.stderr_write]
        fds += slot.fds
        if channel >= 0:
            flags |= _Flag.CHANNEL
            fds.append(channel)
        paths: tuple[str, ...] = ()
        bind_flags = b""
        if namespace is not None:
            fds += namespace.fds
            paths, bind_flags = namespace.paths, namespace.bind_flags
        env = start.env
        if "TMPDIR" in env:
            env = {**env, "TMPDIR": slot.scratch}
        variables = [f"{name}={value}" for name, value in env.items()]
        text = _strings([start.program, start.cwd, slot.scratch, *start.argv, *variables, *paths])
        limits = rules.limits
        head = _REQUEST.pack(
            _REQUEST_MAGIC, _VERSION, _Kind.RUN, flags,
            _REQUEST.size + len(slot.prefix) + len(bind_flags) + len(text),
            place, max(1, round(timeout_s * 1000)) if timeout_s else 0, limits.processes_max,
            limits.memory_bytes_max, limits.scratch_bytes_max,
            rules.uid or 0, (rules.uid or 0) if rules.gid is None else rules.gid,
            len(start.argv), len(variables), len(bind_flags) // 4, len(rules.rlimits), len(rules.seccomp),
            len(text), 0, slot.kit,
        )  # fmt: skip
        is_sent = True
        try:
            connection.post(b"".join((head, slot.prefix, bind_flags, text)), fds)
        except OSError as error:
            # EBADF: another thread found the spawner gone, and has closed our end.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF):
                raise
            is_sent = False
        # Only the supervisor's copy is left: when it closes, we hear it.
        exchange.theirs.close()
        return is_sent

    # -- services -------------------------------------------------------------------------------------------

    def service(self, start: Start, channel: socket.socket) -> Service:
        """Start a program that stays, with ``channel`` as its descriptor 3 and no deadline.

        It reads nothing and its stdout goes nowhere. Raises OSError where it cannot be started; a program
        that the kernel refuses is a service that ended at once.
        """
        try:
            connection = self._connected()
            slot = self._take(start, connection)
        except _Refused as refused:
            raise OSError(errno.EACCES, str(refused)) from None
        opened: list[int] = []
        try:
            opened += os.pipe()
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.append(null)
            # A service that writes more than anybody reads loses the rest instead of standing still.
            os.set_blocking(opened[0], False)
            os.set_blocking(opened[1], False)
            exchange = _Exchange.of_service(null, opened[1])
            try:
                self._send(connection, start, slot, exchange, 0, 0.0, channel.fileno())
            except BaseException:
                exchange.close()
                raise
            return Service(
                exchange.ours, opened.pop(0), lambda: self._give_back(slot), slot.rules, slot.scratch
            )
        except BaseException as error:
            self._give_back(slot)
            if isinstance(error, _Refused):
                raise OSError(errno.EINVAL, str(error)) from None
            raise
        finally:
            _kernel.close_all(opened)

    def open(self, start: Start) -> Standing | Ending:
        """Start a program that stays, with three pipes, no deadline and its whole tree held."""
        began = time.monotonic()
        no = _exchange.refused(start, self.level, Cancel())
        if no is not None:
            return no
        try:
            return self._open(start)
        except _Refused as refused:
            return _ending(start, refused.end, began, str(refused), refused.hint)
        except OSError as error:
            return _ending(start, End.NOT_STARTED, began, _words(error))

    def _open(self, start: Start) -> Standing:
        connection = self._connected()
        slot = self._take(start, connection)
        opened: list[int] = []
        try:
            for _ in range(3):
                opened += os.pipe()
            stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = opened
            exchange = _Exchange.of_service(stdin_read, stderr_write)
            exchange.stdout_write = stdout_write
            try:
                self._send(connection, start, slot, exchange, 0, 0.0)
            except BaseException:
                exchange.close()
                raise
            own = os.dup(stderr_read)
            service = Service(exchange.ours, own, lambda: self._give_back(slot), slot.rules, slot.scratch)
        except BaseException:
            _kernel.close_all(opened)
            self._give_back(slot)
            raise
        _kernel.close_all((stdin_read, stdout_write, stderr_write))
        return _standing.Supervision(service, (stdin_write, stdout_read, stderr_read), slot.layers)

    # -- the spawner ----------------------------------------------------------------------------------------

    def _connected(self) -> _Connection:
        connection = self._connection
        if connection is not None and connection.host == os.getpid():
            return connection
        with self._lock:
            connection = self._connection
            if connection is not None and connection.host == os.getpid():
                return connection
            if self._is_closed:
                raise _Refused(End.UNAVAILABLE, "the sandbox is closed")
            if connection is not None:
                # We are a copy of the host made by fork: spawner, slots and folders are the original's.
                connection.close()
                self._forget()
                self._scratch = Scratch(os.path.dirname(os.path.dirname(self._scratch.folder)))
            if self._binary is None:
                raise _Refused(
                    End.UNAVAILABLE, "the spawner was not built", "install a C compiler, then reinstall"
                )
            self._connection = _Connection(self._binary)
            return self._connection

    def _disconnect(self, connection: _Connection) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = None
        connection.close()

    def _forget(self) -> None:
        for namespace in self._namespaces.values():
            namespace.close()
        self._namespaces.clear()
        for slots in self._slots.values():
            for slot in slots:
                _kernel.close_all(slot.fds)
        self._slots.clear()
        self._idle = 0

    def close(self) -> None:
        """End the spawner and remove the scratch folders. Running calls are stopped."""
        with self._lock:
            self._is_closed = True
            connection, self._connection = self._connection, None
            self._forget()
            if self._mounts is not None:
                os.close(self._mounts[0])
                self._mounts = None
        if connection is not None:
            connection.close()
        self._scratch.close()

    # -- slots ----------------------------------------------------------------------------------------------

    def _take(self, start: Start, connection: _Connection) -> _Slot:
        permit = start.permit
        known = self._alike.get(id(permit))
        if known is None or known[0] is not permit:
            known = self._know(permit)
        key = (
            known[1],
            start.program,
            start.own,
            start.cwd,
            start.sealed,
            start.env.get("PATH"),
            start.reserved_bytes,
        )
        seen = _identities(start)
        now = time.monotonic()
        while True:
            with self._lock:
                slots = self._slots.get(key)
                slot = slots.pop() if slots else None
                if slot is not None:
                    self._idle -= 1
                    if not slots:
                        del self._slots[key]
                    if slot.namespace is not None and self._mounts_changed():
                        for namespace in self._namespaces.values():
                            namespace.is_stale = True
            if slot is None:
                return self._make(start, connection, key, seen, now)
            is_fresh = slot.seen == seen and now - slot.born < SLOT_AGE_S
            if is_fresh and not (slot.namespace is not None and slot.namespace.is_stale):
                slot.taken_ns = time.time_ns()
                return slot
            self._drop(slot)

    def _know(self, permit: Permit) -> tuple[Permit, int]:
        """A number for all permits that are alike: hashing one costs more than a system call."""
        with self._lock:
            if len(self._alike) >= _ALIKE_MAX:
                self._alike.clear()
                self._numbers.clear()
            number = self._numbers.setdefault(_alike(permit), next(self._kits))
            known = self._alike[id(permit)] = (permit, number)
            return known

    def _make(
        self,
        start: Start,
        connection: _Connection,
        key: object,
        seen: tuple[tuple[int, int] | None, ...],
        now: float,
    ) -> _Slot:
        scratch = self._scratch.take()
        slot: _Slot | None = None
        fds: list[int] = []
        try:
            rules = self._rules(start, scratch)
            if rules.unavailable:
                raise _Refused(End.UNAVAILABLE, rules.unavailable, rules.hint)
            if rules.uid is not None:
                os.chown(scratch, rules.uid, rules.uid if rules.gid is None else rules.gid)
            slot = _Slot(key, scratch, rules, (self.level.value, *rules.layers), now, seen)
            program, shown = self._sealed(start, rules)
            if rules.binds or shown:
                slot.namespace = self._namespace(connection, rules.binds, shown)
                slot.flags |= _Flag.MOUNT_NS | (_Flag.USER_NS if len(slot.namespace.fds) == 2 else 0)
            if rules.fs_handled or rules.net_handled or rules.scoped:
                fds.append(_kernel.landlock_ruleset(rules))
                slot.flags |= _Flag.RULESET
                for fd in slot.namespace.sealed if slot.namespace is not None else ():
                    _kernel.allow_file(fds[0], fd, _READ_AND_EXECUTE & rules.fs_handled)
            if program is not None:
                fds.append(_kernel.seal(program, os.path.basename(start.program)))
                slot.flags |= _Flag.PROGRAM | (_Flag.KEEP_PROGRAM if program[:2] == b"#!" else 0)
            if rules.uid is not None:
                slot.flags |= _Flag.SET_UID
            if rules.gid is not None or rules.uid is not None:
                slot.flags |= _Flag.SET_GID
            limits = [
                _LIMIT.pack(number, 0, value if value >= 0 else _NO_LIMIT) for number, value in rules.rlimits
            ]
            slot.prefix = b"".join((*limits, rules.seccomp))
            slot.fds = tuple(fds)
            slot.kit = next(self._kits) & 0xFFFFFFFF
            return slot
        except BaseException:
            _kernel.close_all(fds)
            if slot is not None:
                self._leave(slot.namespace)
            self._scratch.give_back(scratch)
            raise

    def _sealed(self, start: Start, rules: KernelRules) -> tuple[bytes | None, tuple[tuple[str, bytes], ...]]:
        """The program's checked bytes, if they run from memory, and the files to show in place of others.

        Attack: a file is swapped between the check and the start. What only the kernel reads needs no
        namespace; what an interpreter opens by its path is shown there, or, where there are no namespaces,
        compared once more.
        """
        program = next((content for path, content in start.sealed if path == start.program), None)
        if self._namespaces_work and (rules.binds or program is None or program[:2] == b"#!"):
            if len(start.sealed) <= _SEALED_MAX:
                return None, start.sealed
        elif self._namespaces_work and len(start.sealed) == 1:
            return program, ()
        elif self._namespaces_work and len(start.sealed) <= _SEALED_MAX:
            return None, start.sealed
        swapped = _exchange.changed(start)
        if swapped is not None:
            raise _Refused(End.DENIED, f"{swapped} changed after it was checked")
        return program, ()

    def _give_back(self, slot: _Slot) -> None:
        """Keep it for the next call of its kind, if nothing of this one is left in it."""
        is_clean = False
        with suppress(OSError):
            is_clean = slot.is_untouched()
            if not is_clean:
                is_clean = not os.listdir(slot.scratch) or self._scratch.empty(slot.scratch)
                slot.changed_ns = _changed_ns(slot.scratch)
        out: _Slot | None = slot
        if is_clean:
            with self._lock:
                if not self._is_closed:
                    out = self._oldest() if self._idle >= self._slots_max else None
                    self._slots.setdefault(slot.key, []).append(slot)
                    self._idle += 1
        if out is not None:
            self._drop(out)

    def _oldest(self) -> _Slot:
        key = next(iter(self._slots))
        slots = self._slots[key]
        oldest = slots.pop(0)
        self._idle -= 1
        if not slots:
            del self._slots[key]
        return oldest

    def let_go(self) -> None:
        """Close every descriptor that is only kept for later."""
        with self._lock:
            waiting = [slot for slots in self._slots.values() for slot in slots]
            self._slots.clear()
            self._idle = 0
            for namespace in self._namespaces.values():
                namespace.is_stale = True
                if not namespace.users:
                    namespace.close()
            self._namespaces.clear()
        for slot in waiting:
            self._drop(slot)

    def _abandon(self, slot: _Slot) -> None:
        """Attack: a process that outlives its call writes into the scratch folder of the next. While somebody
        may still be there, the folder is nobody's until we close."""
        _kernel.close_all(slot.fds)
        slot.fds = ()
        self._leave(slot.namespace)

    def _drop(self, slot: _Slot) -> None:
        _kernel.close_all(slot.fds)
        slot.fds = ()
        self._leave(slot.namespace)
        self._scratch.give_back(slot.scratch)

    # -- namespaces -----------------------------------------------------------------------------------------

    def _namespace(
        self, connection: _Connection, binds: tuple[Bind, ...], shown: tuple[tuple[str, bytes], ...]
    ) -> _Namespace:
        """The namespace with these binds, made at first use and entered by every later call."""
        key = (binds, shown)
        with self._lock:
            found = self._namespaces.get(key)
            if found is not None and not found.is_stale:
                found.users += 1
                return found
            self._mounts_changed()  # what was mounted until now is in the new one
        made = _new_namespace(connection, binds, shown)
        with self._lock:
            made.users = 1
            leaving = [self._namespaces.pop(key)] if key in self._namespaces else []
            self._namespaces[key] = made
            if len(self._namespaces) > NAMESPACES_MAX:
                leaving.append(self._namespaces.pop(next(iter(self._namespaces))))
            for namespace in leaving:
                namespace.is_stale = True
                if not namespace.users:
                    namespace.close()
        return made

    def _leave(self, namespace: _Namespace | None) -> None:
        if namespace is None:
            return
        with self._lock:
            namespace.users -= 1
            if namespace.is_stale and not namespace.users:
                for key, known in list(self._namespaces.items()):
                    if known is namespace:
                        del self._namespaces[key]
                namespace.close()

    def _mounts_changed(self) -> bool:
        """Whether the machine mounted or unmounted something since this was last asked."""
        if self._mounts is None:
            fd = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
            self._mounts = (fd, select.poll())
            self._mounts[1].register(fd, select.POLLPRI)
        return bool(self._mounts[1].poll(0))

    # -- the probe ------------------------------------------------------------------------------------------

    def probe(self) -> Probed:
        """Use every layer once, in a child of the spawner, and tell what did not work."""
        try:
            return self._probe()
        except _Refused as refused:
            return Probed(reason=str(refused))
        except OSError as error:
            return Probed(reason=f"the spawner cannot be started: {_words(error)}")

    def _probe(self) -> Probed:
        connection = self._connected()
        scratch = self._scratch.take()
        fds: list[int] = []
        flags = 0
        try:
            with suppress(OSError):
                fds.append(_kernel.landlock_ruleset(KernelRules(fs_handled=int(Fs.READ_DIR))))
                flags |= _Flag.RULESET
            assert self._binary is not None
            with open(self._binary, "rb") as file:
                fds.append(_kernel.seal(file.read(), "spawner"))
            text = _strings(["", "", "", "toolwright-spawner", "--version", scratch, scratch])
            bind_flags = struct.pack("<I", _READ_ONLY)
            head = _head(_Kind.PROBE, flags | _Flag.PROGRAM, bind_flags, text, argc=2)
            answer, _ = connection.ask(b"".join((head, bind_flags, text)), fds)
        finally:
            _kernel.close_all(fds)
            self._scratch.give_back(scratch)
        report = _Report.read(answer)
        if report is None:
            self._disconnect(connection)
            return Probed(reason="the spawner did not answer")
        errors = {
            name: os.strerror(code) for name, code in zip(PROBES, report.probes, strict=True) if code != 0
        }
        # Without these a supervisor neither sees its tool's end nor finds what the tool started.
        for needed in ("pidfd", "proc"):
            if needed in errors:
                errors.setdefault("subreaper", f"{needed}: {errors[needed]}")
        return Probed(errors=errors)


class _Exchange:
    """The pipes of one call and what came through them; used by one thread.

    We keep our copies of the tool's ends until the report is there. So the pipes never hang up, which would
    only wake us for nothing: the report alone says that the tool and all it started are dead, and by then
    everything they wrote lies in the pipes. Attack: a process that holds a pipe open, here or elsewhere; it
    is not waited for.
    """

    def __init__(self, start: Start, cancel: Cancel) -> None:
        self.start = start
        self.cancelled = cancel.fileno()
        self.unsent = memoryview(start.stdin)
        self.stdout: list[bytes] = []
        self.large: mmap.mmap | None = None
        """Where stdout goes once it is long: pieces of a flood would stay with the C library for good."""
        self.stderr: list[bytes] = []
        self.stdout_bytes = self.stderr_bytes = 0
        self.stopped: End | None = None
        self.is_silent = False
        self._opened: list[int] = []
        self.ours, self.theirs = _socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened = self._opened
        try:
            opened += os.pipe()
            opened += os.pipe()
            opened += os.pipe()
            (
                self.stdin_read, self.stdin_write, self.stdout_read, self.stdout_write,
                self.stderr_read, self.stderr_write,
            ) = opened  # fmt: skip
            if len(self.unsent) > _PIPE_BYTES_MIN:
                os.set_blocking(self.stdin_write, False)
            self.feed()
            if not self.unsent:
                self._close_stdin()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_service(cls, null: int, stderr: int) -> _Exchange:
        made = cls.__new__(cls)
        made._opened = []
        made.large = None
        made.stdin_read = made.stdout_write = null
        made.stderr_write = stderr
        made.ours, made.theirs = _socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return made

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
        if self.large is not None:
            self.large.close()
        for fd in self._opened:
            os.close(fd)
        self._opened = []

    def _close_stdin(self) -> None:
        self._opened.remove(self.stdin_write)
        os.close(self.stdin_write)

    def feed(self) -> None:
        """Write what the pipe takes now."""
        with suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[os.write(self.stdin_write, self.unsent[:_PIPE_BYTES]) :]

    def until_report(self, until: float, *, looking: bool = False) -> _Report | None:
        """Carry bytes until the report comes. None: contact is lost, or (``is_silent``) nobody speaks.

        ``looking``: first look for the report again and again, for as long as a quick call takes.
        """
        wait = select.poll()
        control, stop = self.ours.fileno(), self.cancelled
        wait.register(control, select.POLLIN)
        wait.register(stop, select.POLLIN)
        if self.unsent:
            wait.register(self.stdin_write, select.POLLOUT)
        ready: list[tuple[int, int]] = []
        if looking:
            enough = time.monotonic() + QUICK_S
            while not (ready := wait.poll(0)) and time.monotonic() < enough:
                pass
        # A quick tool's output fits into the pipes: until then, being woken for it would only cost time.
        ready = ready or wait.poll(_QUICK_MS)
        wait.register(self.stdout_read, select.POLLIN)
        wait.register(self.stderr_read, select.POLLIN)
        while True:
            left_ms = (until - time.monotonic()) * 1000
            if left_ms <= 0:
                self.is_silent = True
                return None
            for fd, _ in ready or wait.poll(left_ms):
                if fd == control:
                    report = _received(self.ours)
                    self._drain()
                    return report
                if fd == stop:
                    wait.unregister(stop)
                    self._stop(End.CANCELLED)
                elif fd == self.stdout_read or fd == self.stderr_read:
                    if self.stopped is None:
                        self._read(fd)
                    else:
                        wait.unregister(fd)  # a flood is not read while it is being stopped
                else:
                    self.feed()
                    if not self.unsent:
                        wait.unregister(fd)
                        self._close_stdin()
            ready = []

    def _stop(self, end: End) -> None:
        if self.stopped is None:
            self.stopped = end
            with suppress(OSError):
                self.ours.send(b"c")

    def _read(self, fd: int) -> int:
        limits = self.start.permit.limits
        if fd == self.stdout_read:
            size = self._read_stdout(limits.stdout_bytes_max)
            self.stdout_bytes += size
            if self.stdout_bytes > limits.stdout_bytes_max:
                self._stop(End.TOO_LARGE)
        else:
            chunk = os.read(fd, _CHUNK_BYTES)
            size = len(chunk)
            self.stderr_bytes += size
            self.stderr.append(chunk)
            most = limits.stderr_bytes_max
            if self.stderr_bytes > most:
                self._stop(End.TOO_LARGE)
                joined = b"".join(self.stderr)
                self.stderr = [joined[-most:]] if most else []
        return size

    def _read_stdout(self, most: int) -> int:
        """What lies in the pipe, kept as far as the limit goes; how much it was."""
        at = self.stdout_bytes
        if at > most:
            return len(os.read(self.stdout_read, _CHUNK_BYTES))
        if at + _CHUNK_BYTES <= _LARGE_BYTES:
            chunk = os.read(self.stdout_read, _CHUNK_BYTES)
            self.stdout.append(chunk)
            return len(chunk)
        if self.large is None:
            self.large = mmap.mmap(-1, most + _CHUNK_BYTES)
            self.large[:at] = b"".join(self.stdout)
            self.stdout.clear()
        with memoryview(self.large) as whole, whole[at : at + _CHUNK_BYTES] as room:
            return os.readv(self.stdout_read, [room])

    def _kept_stdout(self) -> bytes:
        most = self.start.permit.limits.stdout_bytes_max
        if self.stdout_bytes > most:  # nobody reads the middle of a flood
            return bytes(self.large[:_CHUNK_BYTES]) if self.large else b"".join(self.stdout)[:most]
        return self.large[: self.stdout_bytes] if self.large else b"".join(self.stdout)

    def _drain(self) -> None:
        """What the dead left in the pipes."""
        wait = select.poll()
        wait.register(self.stdout_read, select.POLLIN)
        wait.register(self.stderr_read, select.POLLIN)
        # A pipe holds 1 MiB at most; somebody outside who still writes is not waited for.
        for _ in range((1 << 20) // _CHUNK_BYTES + 1):
            more = False
            for fd, _ in wait.poll(0):
                more = self._read(fd) == _CHUNK_BYTES or more
            if not more:
                return

    def ending(
        self, report: _Report | None, rules: KernelRules, layers: tuple[str, ...], began: float
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
        self, report: _Report | None, rules: KernelRules
    ) -> tuple[End, str, int | None, int | None, str | None]:
        if report is None:
            return End.LOST, "the spawner does not answer" if self.is_silent else "", None, None, None
        if report.reason == _Reason.NOT_STARTED:
            if self.stopped is End.CANCELLED:
                return End.CANCELLED, "", None, None, None
            return End.NOT_STARTED, self._why_not(report), None, None, None
        if self.stopped is not None:
            return self.stopped, "", None, None, None
        limits = rules.limits
        match report.reason:
            case _Reason.EXITED if os.WIFSIGNALED(report.status):
                number = os.WTERMSIG(report.status)
                return End.EXITED, "", 128 + number, number, None
            case _Reason.EXITED:
                return End.EXITED, "", os.WEXITSTATUS(report.status), None, None
            case _Reason.SWAPPED:
                return End.DENIED, "one of its files changed while it was started", None, None, None
            case _Reason.DEADLINE:
                return End.TIMED_OUT, "", None, None, None
            case _Reason.PROCESSES:
                what = f"it had more than {limits.processes_max} processes"
                if report.detail:
                    what = f"its processes had more than {_TASKS_PER_PROCESS * limits.processes_max} threads"
            case _Reason.MEMORY:
                what = f"its processes took more than {limits.memory_bytes_max} bytes of memory"
            case _Reason.SCRATCH:
                what = f"its temporary files took more than {limits.scratch_bytes_max} bytes"
            case _:
                return End.CANCELLED, "", None, None, None
        return End.OVER_LIMIT, what, None, None, None

    def _why_not(self, report: _Report) -> str:
        what = os.strerror(report.error)
        if report.stage == _Stage.EXEC:
            return what
        if report.stage == _Stage.CWD:
            return f"working directory {self.start.cwd}: {what}"
        return f"{_STAGES.get(_Stage(report.stage), 'start')}: {what}"


_MADE: Final[weakref.WeakSet[Supervised]] = weakref.WeakSet()


def _after_fork() -> None:
    for made in list(_MADE):
        made._renew_locks()


os.register_at_fork(after_in_child=_after_fork)


# -- small parts --------------------------------------------------------------------------------------------


def _alike(permit: Permit) -> Permit:
    """The permit without what only the exchange looks at: calls with other time limits share their slots."""
    limits = replace(permit.limits, timeout_s=0.0, stdout_bytes_max=0, stderr_bytes_max=0)
    return replace(permit, limits=limits)


def installed() -> str | None:
    """The spawner that came with this installation; None where it was not built."""
    found = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_spawner")
    return found if os.access(found, os.X_OK) else None


def _changed_ns(path: str) -> int:
    return os.stat(path, follow_symlinks=False).st_ctime_ns


def _received(control: _Socket) -> _Report | None:
    """The report; None where the supervisor hung up without one."""
    for _ in range(2):
        try:
            return _Report.read(control.recv(4096))
        except ConnectionResetError:
            # It ended without having read our "stop". The kernel says so once, then hands over what it sent.
            continue
        except OSError:
            break
    return None


def _strings(strings: list[str]) -> bytes:
    text = "\0".join(strings)
    if text.count("\0") != len(strings) - 1:
        raise _Refused(End.NOT_STARTED, "embedded null byte")
    return os.fsencode(text) + b"\0"


def _head(
    kind: _Kind, flags: int, bind_flags: bytes, text: bytes, *, argc: int = 0, sealedc: int = 0
) -> bytes:
    """Of a request that starts no tool."""
    return _REQUEST.pack(
        _REQUEST_MAGIC, _VERSION, kind, flags, _REQUEST.size + len(bind_flags) + len(text),
        0, 0, 0, 0, 0, 0, 0, argc, 0, len(bind_flags) // 4, 0, 0, len(text), sealedc, 0,
    )  # fmt: skip


def _new_namespace(
    connection: _Connection, binds: tuple[Bind, ...], shown: tuple[tuple[str, bytes], ...]
) -> _Namespace:
    targets = [*(bind.target for bind in binds), *(path for path, _ in shown)]
    paths = [path for bind in binds for path in (bind.source, bind.target)]
    paths += [path for target, _ in shown for path in (target, target)]
    words = [_READ_ONLY if bind.read_only else 0 for bind in binds] + [_READ_ONLY | _SEALED] * len(shown)
    layout = f"<{len(words)}I"
    bind_flags = struct.pack(layout, *words)
    text = _strings(["", "", "", *paths])
    head = _head(_Kind.NAMESPACE, 0, bind_flags, text, sealedc=len(shown))
    contents: list[int] = []
    try:
        for path, content in shown:
            contents.append(_kernel.seal(content, os.path.basename(path)))
        answer, fds = connection.ask(b"".join((head, bind_flags, text)), contents)
    finally:
        _kernel.close_all(contents)
    report = _Report.read(answer)
    if report is None or report.reason != _Reason.DONE or len(report.tail) != len(targets):
        _kernel.close_all(fds)
        what = "the spawner did not answer" if report is None else os.strerror(report.error)
        which = ""
        is_replaced = False
        if report is not None and report.stage == _Stage.BIND and report.detail < len(targets):
            which = f" that holds {targets[report.detail]}"
            is_replaced = report.error in _REPLACED
        raise _Refused(End.UNAVAILABLE, f"no mount namespace{which}: {what}", may_pass=is_replaced)
    present = sum(1 for gone in report.tail[len(binds) :] if not gone)
    marked = [word | (_ABSENT if gone else 0) for word, gone in zip(words, report.tail, strict=True)]
    return _Namespace(tuple(fds[present:]), tuple(fds[:present]), tuple(paths), struct.pack(layout, *marked))


def _identities(start: Start) -> tuple[tuple[int, int] | None, ...]:
    """Which files the paths of a start are now: a folder that was removed and made anew is another one."""
    found: list[tuple[int, int] | None] = []
    for path in dict.fromkeys((start.program, *start.own, *start.permit.read, *start.permit.write)):
        try:
            status = os.stat(path)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _ending(start: Start, end: End, began: float, reason: str, hint: str | None = None) -> Ending:
    """Of a call that started nothing."""
    run = Run(
        argv=start.argv,
        cwd=start.cwd,
        env_names=tuple(start.env),
        duration_ms=(time.monotonic() - began) * 1000,
        what=start.what,
    )
    return Ending(end=end, reason=reason, hint=hint, runs=(run,))


def _how(report: _Report) -> str:
    if report.reason == _Reason.NOT_STARTED:
        stage = _STAGES.get(_Stage(report.stage))
        what = os.strerror(report.error)
        return f"{NOT_STARTED}: {f'{stage}: ' if stage else ''}{what[:1].lower()}{what[1:]}"
    if report.reason != _Reason.EXITED:
        return f"stopped: {_Reason(report.reason).name.lower()}"
    if os.WIFSIGNALED(report.status):
        return f"killed by signal {os.WTERMSIG(report.status)}"
    return f"exit status {os.WEXITSTATUS(report.status)}"


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _dup_above(fd: int, least: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
