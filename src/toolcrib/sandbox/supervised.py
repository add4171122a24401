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
import itertools
import os
import resource
import select
import signal
import socket
import struct
import threading
import time
from _socket import socket as _Socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.forks import IN_FORKS
from toolcrib.model import End, Ending, HeldName, Level, Permit, Run
from toolcrib.paths import is_settled
from toolcrib.sandbox import (
    FILES_FIX,
    Cancel,
    Room,
    Standing,
    Start,
    _exchange,
    _kernel,
    _orphans,
    _placeholders,
    _standing,
)
from toolcrib.sandbox._connection import GRACE_S, Connection, Gone
from toolcrib.sandbox._pipes import LARGE_BYTES, PIPE_BYTES, QUICK_S, Ends, Exchange, new_ends
from toolcrib.sandbox._placeholders import Held
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox._wire import (
    LIMIT,
    NO_LIMIT,
    REQUEST,
    REQUEST_MAGIC,
    SEALED_MAX,
    STOP,
    VERSION,
    Flag,
    Kind,
    Reason,
    Refused,
    Report,
    Stage,
    how,
    plain_head,
    received,
    strings,
)
from toolcrib.sandbox.rules import MARK, MARK_MAX, Bind, Fs, KernelRules

SLOTS_MAX: Final = 256
"""Scratch folders with their rules that wait for the next call of the same kind."""
SLOT_AGE_S: Final = 30.0
"""Then paths are looked up anew, though nothing seemed to have changed."""
NAMESPACES_MAX: Final = 32
FRESH_S: Final = 1.0
"""How long a look at the mounts of a program that stays holds."""
CALLS_MAX: Final = 1024
"""Calls at once, where the limit of open files allows so many; the others wait for their turn."""

_FILES_PER_CALL: Final = 12
"""Descriptors that a running call holds here, its slot's included."""
_FILES_OF_HOST: Final = 48
"""Descriptors that are not counted on: the interpreter's, the journal's, the spawner's, those made ahead."""
_ATTEMPTS_MAX: Final = 20
"""Starts that are tried where the spawner died, or a protected file is replaced again and again."""
_IS_PARALLEL: Final = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False
"""On a single processor, looking would keep the tool from running."""
_REPLACED: Final = (errno.ENOENT, errno.EINVAL, errno.ESTALE)
"""What mounting says where somebody replaces the file in that moment."""
_QUEUE_S: Final = 0.05
"""How often a call that waits for its turn looks whether it was cancelled."""
_TRIES: Final = 8

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
_STDIN, _STDIO = int(Flag.STDIN), int(Flag.STDIN | Flag.OUTPUT)
_RUN: Final = int(Kind.RUN)
_READ_AND_EXECUTE: Final = int(Fs.READ_FILE | Fs.EXECUTE)


class Probed(Struct, frozen=True, kw_only=True):
    """What the spawner can do on this machine, found out by doing it."""

    reason: str = ""
    """Not empty: the spawner does not work at all."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """The layers that do not work, and what the kernel said. Every other one of ``PROBES`` works."""

    def works(self, layer: str) -> bool:
        return not self.reason and layer not in self.errors


class _Namespace(Struct, eq=False):
    """A mount namespace with its binds, kept open so that calls can enter it instead of making one.

    ``users`` counts the slots that hold it; the last one to let go of a stale one closes it.
    """

    fds: tuple[int, ...]
    """Its root folder, the user namespace, if there is one, the mount namespace and the IPC namespace."""
    sealed: tuple[int, ...]
    """The files with checked bytes that it shows: Landlock must allow these."""
    paths: tuple[str, ...]
    """Sources and targets, as the spawner reads them."""
    bind_flags: bytes
    users: int = 0
    is_stale: bool = False
    lacks_mount: bool = False
    looked: float = 0.0
    """When its mounts were last looked at."""

    @property
    def has_user(self) -> bool:
        return len(self.fds) == 4

    def is_whole(self, age_s: float = FRESH_S) -> bool:
        """Whether every bind was still mounted at most so long ago.

        Attack, or just ``git config``: a person replaces a protected file by rename, which takes the mount
        away with the old file. A program that stays could write the new one from then on.
        """
        now, fds = time.monotonic(), self.fds
        if not self.lacks_mount and fds and now - self.looked > age_s:
            flags = struct.unpack(f"<{len(self.bind_flags) // 4}I", self.bind_flags)
            try:
                self.lacks_mount = any(
                    _kernel.is_mounted(fds[0], target) is bool(word & _ABSENT)
                    for target, word in zip(self.paths[1::2], flags, strict=True)
                    if not word & _SEALED
                )
            except OSError:  # what cannot be seen is not known to be held
                self.lacks_mount = True
            self.is_stale |= self.lacks_mount
            self.looked = now
        return not self.lacks_mount

    def close(self) -> None:
        _kernel.close_all((*self.fds, *self.sealed))
        self.fds = self.sealed = ()


class _Slot(Struct, eq=False):
    """What calls of one kind share, one at a time: a scratch folder, its rules and their descriptors."""

    key: object
    scratch: str
    rules: KernelRules
    layers: tuple[str, ...]
    born: float
    seen: tuple[object, ...]
    """Which files the watched paths were when the rules were made."""
    namespace: _Namespace | None = None
    held: Held | None = None
    """Names that are held by placeholders. A slot with them serves one call: they go with it."""
    fds: tuple[int, ...] = ()
    """Of the ruleset and the sealed program, as far as there are any."""
    flags: int = 0
    prefix: bytes = b""
    """The part of the message that is the same for every call: limits and filter."""
    limits: int = 0
    """How many limits."""
    mark: int = 0
    """The value of the limit by which processes are found whose supervisor is gone; 0: there is none."""
    kit: int = 0
    """A number for all of this: the spawner may restrict the next process of the same kit in advance."""
    is_quick: bool = False
    """The call before this one was over so soon that looking for its end is cheaper than being woken."""
    changed_ns: int = -1
    """When the scratch folder last changed, as of when it was last seen to be empty."""
    taken_ns: int = 0
    """When the call that has it took it."""

    @property
    def names(self) -> tuple[HeldName, ...]:
        return self.held.names if self.held is not None else ()

    def is_untouched(self, changed_ns: int, *, by_our_clock: bool) -> bool:
        """Whether nothing was ever made in the scratch folder since it was last seen to be empty.

        ``changed_ns``: when it last changed, as the supervisor saw it after the call; 0: it did not look.
        A tool cannot set the time of a change. What changed shortly before the call is looked at again.
        """
        is_settled_by_then = is_settled(self.changed_ns, self.taken_ns, by_our_clock=by_our_clock)
        return is_settled_by_then and self.changed_ns == (changed_ns or _changed_ns(self.scratch))


class Service:
    """A program that runs until it ends, is killed, or the host goes away."""

    def __init__(
        self,
        control: _Socket,
        stderr: int,
        finish: Callable[[Report | None], None],
        slot: _Slot,
    ) -> None:
        self.rules = slot.rules
        """What it runs under."""
        self.scratch = slot.scratch
        """Its own folder, which is emptied when it has ended."""
        self.held = slot.names
        """The names that it cannot take as long as it runs."""
        self._namespace = slot.namespace
        self._lock = threading.Lock()
        self._control = control
        self._stderr = stderr
        self._finish: Callable[[Report | None], None] | None = finish
        self._report: Report | None = None
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
            self._report = received(self._control)
            self._is_over = True
            self._release()
            return True

    def is_held(self) -> bool:
        """Whether all that is protected is still read-only to it."""
        return self._namespace is None or self._namespace.is_whole()

    @property
    def ending(self) -> str:
        """How it ended, for people; empty while it runs."""
        if not self._is_over:
            return ""
        if self._report is None:
            return "contact was lost"
        return how(self._report)

    @property
    def was_killed(self) -> bool:
        """Whether it ended because somebody killed it, or its supervisor: perhaps by no fault of its own."""
        report = self._report
        if not self._is_over or report is None:
            return self._is_over
        is_signal = report.reason == Reason.EXITED and os.WIFSIGNALED(report.status)
        return is_signal and os.WTERMSIG(report.status) == signal.SIGKILL

    def stderr(self) -> bytes:
        """What it wrote to its stderr since it was last asked; no more than a pipe holds."""
        with suppress(OSError):
            return os.read(self._stderr, PIPE_BYTES)
        return b""

    def kill(self) -> None:
        """End it and everything it started. Returns when that is done."""
        with suppress(OSError):
            self._control.send(STOP)
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
            finish(self._report)


class Supervised:
    """The level. Any thread may call; calls share one spawner."""

    level = Level.SUPERVISED

    def __init__(
        self,
        rules: Callable[[Start, str], KernelRules],
        scratch: Scratch,
        *,
        binary: str | None = None,
    ) -> None:
        """``rules``: what a start and its scratch folder mean to the kernel. ``binary``: another spawner than
        the installed one."""
        self._rules = rules
        self._scratch = scratch
        self._namespaces_work = True
        """Whether tools can have mount namespaces: whoever has probed knows (``probe.py``)."""
        self._binary = binary or installed()
        self._connection: Connection | None = None
        self._slots: dict[object, list[_Slot]] = {}
        self._idle = 0
        self._namespaces: dict[object, _Namespace] = {}
        self._mounts: tuple[int, select.poll] | None = None
        self._spare: list[Ends] = []
        """For the next call, made while the tool of the last one ran; one at most."""
        self._kits = itertools.count(1)
        self._kept: list[Held] = []
        """Of calls that may have left a process."""
        self._is_closed = False
        self._renew_locks()
        IN_FORKS.add(self)

    def renew(self) -> None:
        """In a copy of the host made by fork."""
        self._renew_locks()
        self._drop_spare()  # it is the original's as well

    def _renew_locks(self) -> None:
        """Also in a copy: there the thread that held one is missing."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = CALLS_MAX * _FILES_PER_CALL if files == resource.RLIM_INFINITY else files
        self._lock = threading.Lock()
        self._marks = itertools.count(int.from_bytes(os.urandom(4), "little"))
        self._slots_max = max(1, min(SLOTS_MAX, files // 16))
        self._room = Room(max(1, min(CALLS_MAX, (files - _FILES_OF_HOST) // _FILES_PER_CALL)))

    @property
    def room(self) -> Room:
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
        while not room.enter(_QUEUE_S):
            if cancel.is_set:
                return _ending(start, End.CANCELLED, began, "cancelled before it started")
            if time.monotonic() - began > start.permit.limits.timeout_s:
                return _ending(start, End.NOT_STARTED, began, "too many calls at once", FILES_FIX)
        try:
            try:
                return self._run(start, cancel, began)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self.let_go()
                return self._run(start, cancel, began)
        except Refused as refused:
            return _ending(start, refused.end, began, str(refused), refused.hint)
        except OSError as error:
            # Nothing was started, and the next call may fare better.
            return _ending(start, End.NOT_STARTED, began, _words(error))
        finally:
            room.leave()

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
            slot = self._take(start)
        except Refused as refused:
            if is_last or not refused.may_pass:
                raise
            return None
        exchange: Exchange | None = None
        report: Report | None = None
        is_sent = is_stale = False
        try:
            exchange = Exchange(start, cancel)
            place = connection.take_place()
            is_alone = connection.is_alone()
            try:
                timeout_s = start.permit.limits.timeout_s
                stdio = (exchange.stdin_read,) if exchange.stdin_read >= 0 else ()
                message, fds = _request(
                    start,
                    slot,
                    stdio,
                    stdin=exchange.stdin,
                    place=place,
                    timeout_s=timeout_s,
                )
                ours, theirs = self._ends()
                exchange.lines.append(ours)
                is_sent = _posted(connection, message, theirs, fds)
                sent = time.monotonic()
                if is_alone:
                    self._make_spare()
                looking = slot.is_quick and is_alone
                report = exchange.until_report(sent + timeout_s + GRACE_S, looking=looking)
                slot.is_quick = _IS_PARALLEL and time.monotonic() - sent < QUICK_S
                may_have_started = is_sent and connection.started[place] != 0
            finally:
                if report is None:
                    exchange.give_up()
                connection.give_place_back(place)
            if report is None and not may_have_started and not exchange.is_silent:
                is_sent = False
                self._disconnect(connection)
                if not is_last:
                    return None
                hint = "it may have too few descriptors: raise the limit of open files (ulimit -n)"
                return _ending(start, End.NOT_STARTED, began, "the spawner hung up", hint)
            if report is not None and report.stage == Stage.STALE and slot.namespace is not None:
                slot.namespace.is_stale = is_stale = True
                if not is_last:
                    return None
            ending = exchange.ending(report, slot.rules, slot.layers, began)
            if slot.held is not None:
                ending = replace(ending, held=slot.names)
            if report is None:
                ending = replace(ending, notes=(*ending.notes, *self._end_orphans(slot)))
            return ending
        finally:
            if exchange is not None:
                exchange.close()
                if exchange.stdout_bytes + exchange.stderr_bytes > LARGE_BYTES:
                    _kernel.keep_no_long_blocks()
            if is_sent and (report is None or report.survivors):
                self._abandon(slot)
            elif is_stale:
                self._drop(slot)
            else:
                self._give_back(slot, 0 if report is None else report.scratch_changed_ns)

    def _ends(self) -> Ends:
        try:
            return self._spare.pop()
        except IndexError:
            return new_ends()

    def _make_spare(self) -> None:
        """Whoever calls one tool after the other is spared this before the next start."""
        if self._spare:
            return
        try:
            ends = new_ends()
        except OSError:
            return
        with self._lock:
            if not self._spare and not self._is_closed:
                self._spare.append(ends)
                return
        for end in ends:
            end.close()

    # -- services -------------------------------------------------------------------------------------------

    def service(self, start: Start, channel: socket.socket) -> Service:
        """Start a program that stays, with ``channel`` as its descriptor 3 and no deadline.

        It reads nothing and its stdout goes nowhere. Raises OSError where it cannot be started; a program
        that the kernel refuses is a service that ended at once.
        """
        try:
            slot = self._take_whole(start)
        except Refused as refused:
            raise OSError(errno.EACCES, str(refused)) from None
        opened: list[int] = []
        try:
            opened += os.pipe()
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.append(null)
            # A service that writes more than anybody reads loses the rest instead of standing still.
            os.set_blocking(opened[0], False)
            os.set_blocking(opened[1], False)
            stdio = (null, null, opened[1])
            control = self._posted(start, slot, stdio, channel=channel.fileno())
            return Service(control, opened.pop(0), partial(self._ended, slot), slot)
        except BaseException as error:
            self._give_back(slot)
            if isinstance(error, Refused):
                raise OSError(errno.EINVAL, str(error)) from None
            raise
        finally:
            _kernel.close_all(opened)

    def _posted(self, start: Start, slot: _Slot, stdio: Sequence[int], *, channel: int = -1) -> _Socket:
        """Send the request for a program that stays; our end of its control socket."""
        for _ in range(_ATTEMPTS_MAX):
            connection = self._connected()
            ours, theirs = new_ends()
            try:
                message, fds = _request(start, slot, stdio, channel=channel)
                if _posted(connection, message, theirs, fds):
                    return ours
            except BaseException:
                ours.close()
                theirs.close()
                raise
            ours.close()
            self._disconnect(connection)
        raise OSError(errno.EPIPE, "the spawner hung up")

    def _ended(self, slot: _Slot, report: Report | None) -> None:
        """Of a program that stayed: as with a call, somebody may be left where nobody says that none is."""
        if report is None:
            self._end_orphans(slot)
        if report is None or report.survivors:
            self._abandon(slot)
        else:
            self._give_back(slot)

    def open(self, start: Start) -> Standing | Ending:
        """Start a program that stays, with three pipes, no deadline and its whole tree held."""
        began = time.monotonic()
        no = _exchange.refused(start, self.level, Cancel())
        if no is not None:
            return no
        try:
            return self._open(start)
        except Refused as refused:
            return _ending(start, refused.end, began, str(refused), refused.hint)
        except OSError as error:
            return _ending(start, End.NOT_STARTED, began, _words(error))

    def _open(self, start: Start) -> Standing:
        slot = self._take_whole(start)
        opened: list[int] = []
        try:
            for _ in range(3):
                opened += os.pipe()
            stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = opened
            control = self._posted(start, slot, (stdin_read, stdout_write, stderr_write))
            own = os.dup(stderr_read)
            service = Service(control, own, partial(self._ended, slot), slot)
        except BaseException:
            _kernel.close_all(opened)
            self._give_back(slot)
            raise
        _kernel.close_all((stdin_read, stdout_write, stderr_write))
        return _standing.Supervision(service, (stdin_write, stdout_read, stderr_read), slot.layers)

    # -- the spawner ----------------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.host == os.getpid():
            return connection
        with self._lock:
            connection = self._connection
            if connection is not None and connection.host == os.getpid():
                return connection
            if self._is_closed:
                raise Refused(End.UNAVAILABLE, "the sandbox is closed")
            if connection is not None:
                # We are a copy of the host made by fork: spawner, slots and folders are the original's.
                connection.close()
                self._forget()
                self._scratch = Scratch(os.path.dirname(os.path.dirname(self._scratch.folder)))
            if self._binary is None:
                raise Refused(
                    End.UNAVAILABLE, "the spawner was not built", "install a C compiler, then reinstall"
                )
            self._connection = Connection(self._binary)
            return self._connection

    def _disconnect(self, connection: Connection) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = None
        connection.close()

    def _ask(self, message: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        """What a spawner answers to a request that starts no tool; nothing where none does."""
        for _ in range(_ATTEMPTS_MAX):
            connection = self._connected()
            try:
                return connection.ask(message, fds)
            except Gone:
                self._disconnect(connection)
        return b"", []

    def _forget(self) -> None:
        self._drop_spare()
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
        while self._kept:
            self._kept.pop().close()
        self._scratch.close()

    # -- slots ----------------------------------------------------------------------------------------------

    def _take(self, start: Start) -> _Slot:
        key = (
            _alike(start.permit),
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
                return self._make(start, key, seen, now)
            is_fresh = slot.seen == seen and now - slot.born < SLOT_AGE_S
            if is_fresh and not (slot.namespace is not None and slot.namespace.is_stale):
                slot.taken_ns = time.time_ns()
                return slot
            self._drop(slot)

    def _take_whole(self, start: Start) -> _Slot:
        """A slot for a program that stays: the spawner does not start it where a mount is gone."""
        for _ in range(_ATTEMPTS_MAX):
            self._connected()
            slot = self._take(start)
            if slot.namespace is None or slot.namespace.is_whole(0.0):
                return slot
            self._drop(slot)
        raise Refused(End.UNAVAILABLE, "what must stay read-only is replaced again and again")

    def _make(self, start: Start, key: object, seen: tuple[object, ...], now: float) -> _Slot:
        scratch = self._scratch.take()
        slot: _Slot | None = None
        held: Held | None = None
        fds: list[int] = []
        try:
            if start.permit.forbidden and self._namespaces_work:
                try:
                    held = _placeholders.hold(start.permit.forbidden, start.permit.git)
                except _placeholders.NotHeld as error:
                    # Attack: a tool keeps a name from being held, and makes what git obeys there.
                    raise Refused(
                        End.UNAVAILABLE,
                        f"a name that git obeys cannot be held: {error}",
                        "look at what is there and who may write it, then call again",
                    ) from None
                protected = (*start.permit.protected, *held.paths)
                start = replace(start, permit=replace(start.permit, protected=protected))
            rules = self._rules(start, scratch)
            if rules.unavailable:
                raise Refused(End.UNAVAILABLE, rules.unavailable, rules.hint)
            if rules.uid is not None:
                os.chown(scratch, rules.uid, rules.uid if rules.gid is None else rules.gid)
            slot = _Slot(key, scratch, rules, (self.level.value, *rules.layers), now, seen, held=held)
            program, shown = self._sealed(start, rules)
            if rules.binds or shown or rules.own_ipc:
                slot.namespace = self._namespace(rules.binds, shown)
                slot.flags |= Flag.MOUNT_NS | (Flag.USER_NS if slot.namespace.has_user else 0)
            if rules.fs_handled or rules.net_handled or rules.scoped:
                fds.append(_kernel.landlock_ruleset(rules))
                slot.flags |= Flag.RULESET
                for fd in slot.namespace.sealed if slot.namespace is not None else ():
                    _kernel.allow_file(fds[0], fd, _READ_AND_EXECUTE & rules.fs_handled)
            if program is not None:
                fds.append(_kernel.seal(program, os.path.basename(start.program)))
                slot.flags |= Flag.PROGRAM | (Flag.KEEP_PROGRAM if program[:2] == b"#!" else 0)
            if rules.uid is not None:
                slot.flags |= Flag.SET_UID
            if rules.gid is not None or rules.uid is not None:
                slot.flags |= Flag.SET_GID
            slot.mark = _mark(next(self._marks))
            numbers = (*rules.rlimits, *(((MARK, slot.mark),) if slot.mark else ()))
            limits = [LIMIT.pack(number, 0, value if value >= 0 else NO_LIMIT) for number, value in numbers]
            slot.limits = len(limits)
            slot.flags = int(slot.flags)
            slot.prefix = b"".join((*limits, rules.seccomp))
            slot.fds = tuple(fds)
            slot.kit = next(self._kits) & 0xFFFFFFFF
            return slot
        except BaseException:
            _kernel.close_all(fds)
            if slot is not None:
                self._leave(slot.namespace)
            if held is not None:
                held.close()
            self._scratch.give_back(scratch)
            raise

    def _sealed(self, start: Start, rules: KernelRules) -> tuple[bytes | None, tuple[tuple[str, bytes], ...]]:
        """The program's checked bytes, if they run from memory, and the files to show in place of others.

        Attack: a file is swapped between the check and the start. What only the kernel reads needs no
        namespace; what an interpreter opens by its path is shown there, or, where there are no namespaces,
        compared once more.
        """
        program = next((content for path, content in start.sealed if path == start.program), None)
        if self._namespaces_work:
            is_shown = rules.binds or program is None or program[:2] == b"#!"
            if len(start.sealed) == 1 and not is_shown:
                return program, ()
            if len(start.sealed) <= SEALED_MAX:
                return None, start.sealed
        swapped = _exchange.changed(start)
        if swapped is not None:
            raise Refused(End.DENIED, f"{swapped} changed after it was checked")
        return program, ()

    def _give_back(self, slot: _Slot, changed_ns: int = 0) -> None:
        """Keep it for the next call of its kind, if nothing of this one is left in it."""
        is_clean = False
        try:
            is_clean = slot.is_untouched(changed_ns, by_our_clock=self._scratch.has_our_clock)
            if not is_clean:
                is_clean = self._scratch.empty(slot.scratch)
                slot.changed_ns = _changed_ns(slot.scratch)
        except OSError:
            pass
        out: _Slot | None = slot
        if is_clean and slot.held is None:
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
            self._drop_spare()
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
        may still be there, the folder is nobody's until we close.

        Attack: a tool stops the spawner, and then its supervisor, which the spawner would have killed for it.
        """
        self._wake()
        _kernel.close_all(slot.fds)
        slot.fds = ()
        self._leave(slot.namespace)
        if slot.held is not None:
            self._kept.append(slot.held)

    def _wake(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.wake()

    def _end_orphans(self, slot: _Slot) -> tuple[str, ...]:
        """End what a call left whose supervisor is gone, and return what to note about it.

        Attack: supervisor and spawner are killed in the same moment, so none of ours sees what the tool
        started.
        """
        self._wake()
        return _orphans.end(slot.mark) if slot.mark else ()

    def _drop_spare(self) -> None:
        while self._spare:
            for end in self._spare.pop():
                end.close()

    def _drop(self, slot: _Slot) -> None:
        _kernel.close_all(slot.fds)
        slot.fds = ()
        if slot.held is not None and slot.namespace is not None:
            slot.namespace.is_stale = True  # its mounts go with the placeholders
        self._leave(slot.namespace)
        if slot.held is not None:
            slot.held.close()
        self._scratch.give_back(slot.scratch)

    # -- namespaces -----------------------------------------------------------------------------------------

    def _namespace(self, binds: tuple[Bind, ...], shown: tuple[tuple[str, bytes], ...]) -> _Namespace:
        """The namespace with these binds, made at first use and entered by every later call."""
        key = (binds, shown)
        with self._lock:
            found = self._namespaces.get(key)
            if found is not None and not found.is_stale:
                found.users += 1
                return found
            self._mounts_changed()  # what was mounted until now is in the new one
        made = _new_namespace(self._ask, binds, shown)
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
        except Refused as refused:
            return Probed(reason=str(refused))
        except OSError as error:
            return Probed(reason=f"the spawner cannot be started: {_words(error)}")

    def _probe(self) -> Probed:
        self._connected()
        scratch = self._scratch.take()
        fds: list[int] = []
        flags = 0
        try:
            with suppress(OSError):
                fds.append(_kernel.landlock_ruleset(KernelRules(fs_handled=int(Fs.READ_DIR))))
                flags |= Flag.RULESET
            assert self._binary is not None
            with open(self._binary, "rb") as file:
                fds.append(_kernel.seal(file.read(), "spawner"))
            text = strings(["", "", "", "toolcrib-spawner", "--version", scratch, scratch])
            bind_flags = struct.pack("<I", _READ_ONLY)
            head = plain_head(Kind.PROBE, flags | Flag.PROGRAM, bind_flags, text, argc=2)
            answer, _ = self._ask(b"".join((head, bind_flags, text)), fds)
        finally:
            _kernel.close_all(fds)
            self._scratch.give_back(scratch)
        report = Report.read(answer)
        if report is None:
            return Probed(reason="the spawner did not answer")
        errors = {
            name: os.strerror(code) for name, code in zip(PROBES, report.probes, strict=True) if code != 0
        }
        # Without these a supervisor neither sees its tool's end nor finds what the tool started.
        for needed in ("pidfd", "proc"):
            if needed in errors:
                errors.setdefault("subreaper", f"{needed}: {errors[needed]}")
        return Probed(errors=errors)


# -- small parts --------------------------------------------------------------------------------------------


def _alike(permit: Permit) -> Permit:
    """The permit without what only the exchange looks at: calls with other time limits share their slots."""
    limits = replace(permit.limits, timeout_s=0.0, stdout_bytes_max=0, stderr_bytes_max=0)
    return replace(permit, limits=limits)


def installed() -> str | None:
    """The spawner that came with this installation; None where it was not built."""
    found = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_spawner")
    return found if os.access(found, os.X_OK) else None


def _mark(number: int) -> int:
    """Return the value of ``MARK`` with this number, or 0 if our own limit leaves no room for one."""
    own = resource.getrlimit(MARK)[1]
    most = own if 0 <= own < MARK_MAX else MARK_MAX
    return most - 1 - number % (most // 2) if most > 1 else 0


def _changed_ns(path: str) -> int:
    return os.stat(path, follow_symlinks=False).st_ctime_ns


def _new_namespace(
    ask: Callable[[bytes, list[int]], tuple[bytes, list[int]]],
    binds: tuple[Bind, ...],
    shown: tuple[tuple[str, bytes], ...],
) -> _Namespace:
    targets = [*(bind.target for bind in binds), *(path for path, _ in shown)]
    paths = [path for bind in binds for path in (bind.source, bind.target)]
    paths += [path for target, _ in shown for path in (target, target)]
    words = [_READ_ONLY if bind.read_only else 0 for bind in binds] + [_READ_ONLY | _SEALED] * len(shown)
    layout = f"<{len(words)}I"
    bind_flags = struct.pack(layout, *words)
    text = strings(["", "", "", *paths])
    head = plain_head(Kind.NAMESPACE, 0, bind_flags, text, sealedc=len(shown))
    contents: list[int] = []
    try:
        for path, content in shown:
            contents.append(_kernel.seal(content, os.path.basename(path)))
        answer, fds = ask(b"".join((head, bind_flags, text)), contents)
    finally:
        _kernel.close_all(contents)
    report = Report.read(answer)
    if report is None or report.reason != Reason.DONE or len(report.tail) != len(targets):
        _kernel.close_all(fds)
        what = "the spawner did not answer" if report is None else os.strerror(report.error)
        which = ""
        is_replaced = False
        if report is not None and report.stage == Stage.BIND and report.detail < len(targets):
            which = f" that holds {targets[report.detail]}"
            is_replaced = report.error in _REPLACED
        raise Refused(End.UNAVAILABLE, f"no mount namespace{which}: {what}", may_pass=is_replaced)
    present = sum(1 for gone in report.tail[len(binds) :] if not gone)
    marked = [word | (_ABSENT if gone else 0) for word, gone in zip(words, report.tail, strict=True)]
    return _Namespace(tuple(fds[present:]), tuple(fds[:present]), tuple(paths), struct.pack(layout, *marked))


def _posted(connection: Connection, message: bytes, theirs: _Socket, fds: Sequence[int]) -> bool:
    """Send a request with the other end of its line. False: the spawner is gone and nobody has the request.
    Our end says so as well."""
    is_sent = True
    try:
        connection.post(message, [theirs.fileno(), *fds])
    except Gone:
        is_sent = False
    # Only the supervisor's copy is left: when it closes, we hear it.
    theirs.close()
    return is_sent


def _request(
    start: Start,
    slot: _Slot,
    stdio: Sequence[int],
    *,
    stdin: bytes = b"",
    place: int = 0,
    timeout_s: float = 0.0,
    channel: int = -1,
) -> tuple[bytes, list[int]]:
    """The message, and the descriptors that go with it behind the line's.

    ``stdio``: the program's own ends of stdin, or of all three; the spawner makes those that are missing.
    """
    flags, namespace, rules = slot.flags, slot.namespace, slot.rules
    if stdio:
        flags |= _STDIN if len(stdio) == 1 else _STDIO
    fds = [*stdio, *slot.fds]
    if channel >= 0:
        flags |= int(Flag.CHANNEL)
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
    text = strings([start.program, start.cwd, slot.scratch, *start.argv, *variables, *paths])
    limits = rules.limits
    head = REQUEST.pack(
        REQUEST_MAGIC, VERSION, _RUN, flags,
        REQUEST.size + len(slot.prefix) + len(bind_flags) + len(text) + len(stdin),
        place, max(1, round(timeout_s * 1000)) if timeout_s else 0, limits.processes_max,
        limits.memory_bytes_max, limits.scratch_bytes_max,
        rules.uid or 0, (rules.uid or 0) if rules.gid is None else rules.gid,
        len(start.argv), len(variables), len(bind_flags) // 4, slot.limits, len(rules.seccomp),
        len(text), 0, slot.kit, len(stdin), 0,
    )  # fmt: skip
    return b"".join((head, slot.prefix, bind_flags, text, stdin)), fds


def _identities(start: Start) -> tuple[object, ...]:
    """Which files the paths of a start are now: a folder that was removed and made anew is another one."""
    found: list[object] = []
    for path in dict.fromkeys((start.program, *start.own, *start.permit.read, *start.permit.write)):
        known = start.known.get(path)
        if known is None:
            try:
                status = os.stat(path)
                known = (status.st_dev, status.st_ino)
            except OSError:
                pass
        found.append(known)
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


def _words(error: OSError) -> str:
    return error.strerror or str(error)
