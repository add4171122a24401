"""The host's side of zygotes: a few interpreters that stay loaded, a child of theirs for each call.

A zygote is a service of the supervised level that runs ``_zygote.py`` inside one permit. Here they are
started at the first call, shared by threads, and ended when others are needed more, when their files changed
or when nobody used them for a while. One poll loop per call writes the request, reads what comes back within
its limits, and kills the child: at its answer, at the deadline, at the button, at too much output, memory,
processes or scratch space.

Nothing here knows tools or results: a request is bytes, an answer is a frame of bytes and an ``Ending``. What
a zygote says about itself is not believed where it matters: who a slot is, and what it runs, comes from the
kernel. A tool's own top level runs in its zygote, so a hostile tool can betray its own calls, and no others.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.model import End, Ending, HeldName, Level, Limits, Permit, Run, Usage
from toolcrib.records import Discreet
from toolcrib.runtimes import _loader, _zygote
from toolcrib.sandbox import FILES_FIX, Cancel, Sandbox, Start
from toolcrib.sandbox._scratch import size
from toolcrib.sandbox.supervised import Service, Supervised

ZYGOTES_MAX: Final = 8
ZYGOTE_IDLE_S: Final = 300.0
SLOTS_MAX: Final = 32
"""Calls of one tool at once; more wait for their turn, within their time limit."""
IDLE_SLOTS_MAX: Final = 4
"""Slots of one zygote that stay ready when nobody calls."""
SAMPLE_S: Final = 0.05
"""How often memory and processes of a call are counted; its scratch folder at every fourth time."""

_CALLS_OF_A_ZYGOTE: Final = 4
"""How much more than one call may take all calls of one zygote together may have of processes: far above what
honest calls take, and low enough to stop a fork bomb before it stops the machine."""
_STOP_S: Final = _zygote.SWEEP_S + 1.0
"""How long a slot may take to end a call before its whole zygote is ended."""
_PATIENCE_S: Final = 0.1
_CROWDED_S: Final = 2.0
"""How long cold interpreters answer after descriptors were short, or a zygote was killed while it loaded."""
_CHUNK_BYTES: Final = 65536
_SCM_CREDENTIALS: Final = 2
_CREDENTIALS: Final = struct.Struct("3i")
_WATCHED_BYTES_MAX: Final = 1 << 20
_LONG_S: Final = 1e9
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PROCESSES_SEEN_MAX: Final = 10_000


class Recipe(Discreet, frozen=True, kw_only=True):
    """What a zygote is made from. Equal keys share one."""

    HIDDEN: ClassVar = (
        "start",
        "code",
        "spec",
        "source",
    )

    key: Hashable
    start: Start
    code: bytes
    """What the start's program reads first from its channel: our own modules."""
    spec: Callable[[Service], bytes]
    """What ``_zygote.py`` is told, once the service is there whose rules and folder it lives in."""
    source: bytes


class Answer(Struct, frozen=True, kw_only=True):
    """How one call ended, and the frame that its child sent, if it did."""

    ending: Ending
    frame: bytes | None = None


@lru_cache(maxsize=256)
def of_all_calls(permit: Permit) -> Permit:
    """The permit of a zygote, whose limits hold all of its calls together.

    The time limit is the host's to keep, so calls with different ones share a zygote.
    """
    limits = permit.limits
    whole = replace(
        limits,
        timeout_s=0.0,
        memory_bytes_max=limits.memory_bytes_max * SLOTS_MAX,
        processes_max=limits.processes_max * _CALLS_OF_A_ZYGOTE + 2 * SLOTS_MAX,
        scratch_bytes_max=0,  # counted for each call, so that one of them cannot end the others
    )
    return replace(permit, limits=whole)


def without_secrets(env: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The part of a call's environment that may be there before the call is: the variables of these names;
    a trailing ``*`` stands for any ending."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value
        for name, value in env.items()
        if name in names or (prefixes and name.startswith(prefixes))
    }


class _Lost(Exception):
    """A slot or its zygote is gone."""


class _Crowded(_Lost):
    """Descriptors are short, in the host or between it and the slot, and the call has not begun.

    The kernel bounds how many one user's processes may have on their way, too, and the slot ends then.
    """


class Zygotes:
    """At most so many zygotes, the least recently used ended first. Any thread may call."""

    def __init__(self, level: Supervised, zygotes_max: int, idle_s: float) -> None:
        self._level = level
        self._zygotes_max = zygotes_max
        self._idle_s = idle_s
        self._forget()

    @staticmethod
    def kept_by(sandbox: Sandbox, zygotes_max: int, idle_s: float) -> Zygotes | None:
        """Those of a sandbox that keeps services; None: it keeps none. A supervisor without Landlock is no
        such level: nothing would keep calls away from their zygote."""
        if isinstance(sandbox, Supervised) and sandbox.level is Level.SUPERVISED:
            return Zygotes(sandbox, zygotes_max, idle_s)
        return None

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Zygote] = OrderedDict()
        self._unfit: OrderedDict[Hashable, None] = OrderedDict()
        self._crowded: dict[Hashable, float] = {}
        """Until when; each for itself, so that a tool whose slots end makes no other one slow."""
        self._closed = False

    def run(self, recipe: Recipe, request: bytes, limits: Limits, cancel: Cancel) -> Answer | None:
        """Answer one request; None: no zygote can, so a cold interpreter should."""
        if self._pid != os.getpid():  # a host that forked: those that are kept belong to the parent
            self._forget()
        deadline = time.monotonic() + limits.timeout_s
        room = self._level.room
        while not room.enter(_PATIENCE_S):
            if cancel.is_set:
                return Answer(ending=Ending(end=End.CANCELLED, reason="cancelled before it started"))
            if time.monotonic() > deadline:
                reason = "too many calls at once"
                return Answer(ending=Ending(end=End.NOT_STARTED, reason=reason, hint=FILES_FIX))
        try:
            return self._answer(recipe, request, limits, cancel, deadline)
        finally:
            room.leave()

    def _answer(
        self, recipe: Recipe, request: bytes, limits: Limits, cancel: Cancel, deadline: float
    ) -> Answer | None:
        for _ in range(2):  # once more where it ended between being found and being used
            zygote = self._zygote(recipe)
            if zygote is None:
                return None
            try:
                slot = zygote.take(deadline, cancel)
            except _Crowded:
                self._forgo(recipe.key, zygote)
                continue
            except _Lost:
                zygote.end()  # then it is known how it ended
                if zygote.was_killed and not zygote.is_loaded:
                    self._forgo(recipe.key, zygote)
                else:
                    self._drop(recipe.key, zygote, unfit=not zygote.is_loaded)
                continue
            finally:
                zygote.leave()
            if isinstance(slot, Ending):
                # A file that is still being loaded when its only caller gives up is work beyond the call.
                if not zygote.is_loaded and not zygote.is_busy:
                    self._drop(recipe.key, zygote)
                return Answer(ending=slot)
            if zygote.has_threads:  # forking beside a running thread would copy its locks
                zygote.give(slot, is_good=False)
                self._drop(recipe.key, zygote, unfit=True)
                return None
            exchange = _Exchange(slot, request, limits, cancel, deadline, zygote.layers, zygote.held)
            try:
                answer = exchange.run()
            finally:
                zygote.give(slot, is_good=exchange.is_reusable)
            if exchange.is_crowded:  # the other calls of the zygote go on to their ends
                self._forgo(recipe.key, zygote)
                continue
            if not exchange.is_reusable:
                self._drop(recipe.key, zygote)
                if answer.ending.end is End.NOT_STARTED:
                    continue
            return answer
        return None

    def _zygote(self, recipe: Recipe) -> Zygote | None:
        leaving: list[Zygote] = []
        try:
            with self._lock:
                if self._closed or recipe.key in self._unfit or self._is_crowded(recipe.key):
                    return None
                zygote = self._kept.get(recipe.key)
                if zygote is not None and (zygote.is_over or not zygote.is_fresh()):
                    leaving.append(self._kept.pop(recipe.key))
                    zygote = None
                if zygote is None:
                    leaving += self._make_room()
                    if len(self._kept) >= self._zygotes_max:
                        return None
                    try:
                        zygote = Zygote(self._level, recipe, self._idle_s)
                    except OSError:
                        return None
                    self._kept[recipe.key] = zygote
                self._kept.move_to_end(recipe.key)
                zygote.enter()
                return zygote
        finally:
            for old in leaving:
                old.retire()

    def _is_crowded(self, key: Hashable) -> bool:
        until = self._crowded.get(key) if self._crowded else None
        if until is not None and time.monotonic() >= until:
            del self._crowded[key]
            until = None
        return until is not None

    def _make_room(self) -> Iterator[Zygote]:
        """Those that go, so that one more may come; none where all are busy."""
        for key in [key for key, zygote in self._kept.items() if zygote.is_over]:
            yield self._kept.pop(key)
        while len(self._kept) >= self._zygotes_max:
            key = next((key for key, zygote in self._kept.items() if not zygote.is_busy), None)
            if key is None:
                return
            yield self._kept.pop(key)

    def _drop(self, key: Hashable, zygote: Zygote, *, unfit: bool = False) -> None:
        with self._lock:
            if self._kept.get(key) is zygote:
                del self._kept[key]
            if unfit:
                self._unfit[key] = None
                if len(self._unfit) > 16 * self._zygotes_max:
                    self._unfit.popitem(last=False)
        zygote.end()

    def _forgo(self, key: Hashable, zygote: Zygote) -> None:
        """Begin no more calls in it, so that it ends with its last one, and none of its kind for a while."""
        with self._lock:
            if len(self._crowded) >= 16 * self._zygotes_max:
                self._crowded.clear()
            self._crowded[key] = time.monotonic() + _CROWDED_S
            if self._kept.get(key) is zygote:
                del self._kept[key]
        zygote.retire()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            kept = list(self._kept.values())
            self._kept.clear()
        for zygote in kept:
            zygote.end()
        for zygote in kept:
            zygote.join()


# -- one zygote ---------------------------------------------------------------------------------------------


class Slot(Struct, eq=False):
    """P, as the host sees it: where it listens, who it is, and the list of its children."""

    control: socket.socket
    pid: int
    children: int

    def close(self) -> None:
        self.control.close()
        if self.children >= 0:
            os.close(self.children)
            self.children = -1


def with_run(
    ending: Ending,
    told: Mapping[str, Any],
    *,
    argv: tuple[str, ...],
    cwd: str,
    env: Mapping[str, str],
    began: float,
) -> Ending:
    """The ending of a child's call with what its frame told of it, and the run that the record shows."""
    end: End = told.get("end", ending.end)
    status = told.get("exit_status", ending.exit_status) or 0
    stopped = end not in (End.EXITED, End.RETURNED, End.RAISED, End.UNREADABLE)
    run = Run(
        argv=argv,
        cwd=cwd,
        env_names=tuple(env),
        exit_status=None if end is End.NOT_STARTED else -1 if stopped else status,
        duration_ms=(time.monotonic() - began) * 1e3,
        stdout_bytes=ending.stdout_bytes,
        stderr_bytes=ending.stderr_bytes,
        truncated=end is End.TOO_LARGE,
    )
    return replace(ending, **told, runs=(run,))


class Zygote:
    """One service and its slots. A thread listens to it; callers wait for slots."""

    def __init__(self, level: Supervised, recipe: Recipe, idle_s: float) -> None:
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._idle: deque[Slot] = deque()
        self._slots = 0
        self._asked = 0
        self._users = 0
        self._used_at = time.monotonic()
        self._watched: list[tuple[str, tuple[object, ...]]] = []
        self._failure: Ending | None = None
        self._retired = False
        self._is_short = False
        self.is_loaded = False
        self.is_over = False
        self.has_threads = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._service = level.service(recipe.start, theirs)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self.layers = (level.level.value, *self._service.rules.layers, "zygote")
        self.held = self._service.held
        told = (recipe.code, recipe.spec(self._service), recipe.source)
        self._thread = threading.Thread(target=self._listen, args=told, name="zygote", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads for this user
            self._service.kill()
            self._channel.close()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None

    # -- callers --------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return self._users > 0 or len(self._idle) + self._asked < self._slots

    @property
    def was_killed(self) -> bool:
        """Of one that ended: whether somebody killed it."""
        return self._service.was_killed

    def enter(self) -> None:
        with self._changed:
            self._users += 1

    def leave(self) -> None:
        with self._changed:
            self._users -= 1

    def is_fresh(self) -> bool:
        """Whether starting it again would give the same: what is protected is still read-only to it, the
        files of its modules are those that were loaded, links lead where they led, and nothing has appeared
        where it would be found first."""
        if not self._service.is_held():
            return False
        for path, told in self._watched:
            try:
                match told:
                    case ("absent",):
                        is_same = not os.path.lexists(path)
                    case ("link", target):
                        is_same = os.readlink(path) == target
                    case _:
                        is_same = files.fingerprint(os.stat(path)) == told
            except (OSError, ValueError):
                return False
            if not is_same:
                return False
        return True

    def take(self, deadline: float, cancel: Cancel) -> Slot | Ending:
        """A slot of one's own, or why there is none."""
        with self._changed:
            while True:
                if self._failure is not None:
                    return self._failure
                if self.is_over:
                    raise _Lost("the zygote ended")
                if self._is_short and not self._idle:
                    raise _Crowded("too many open files")
                slot = self._idle.popleft() if self._idle else None
                # One more is kept ready, so that the next caller does not wait for a fork.
                if self.is_loaded and len(self._idle) + self._asked == 0 and self._slots < SLOTS_MAX:
                    self._ask()
                if slot is not None:
                    self._used_at = time.monotonic()
                    return slot
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return Ending(end=End.TIMED_OUT, layers=self.layers, held=self.held)
                if cancel.is_set:
                    return Ending(end=End.CANCELLED, layers=self.layers, held=self.held)
                self._changed.wait(min(left_s, _PATIENCE_S))

    def give(self, slot: Slot, *, is_good: bool) -> None:
        with self._changed:
            self._used_at = time.monotonic()
            if is_good and not self.is_over and not self._retired and len(self._idle) < IDLE_SLOTS_MAX:
                self._idle.append(slot)
                self._changed.notify()
                return
            self._slots -= 1
            ends = self._retired and not self.is_busy
            self._changed.notify()
        slot.close()
        if ends:
            self.end()

    def retire(self) -> None:
        """End as soon as the calls in flight are over."""
        with self._changed:
            self._retired = True
            busy = self.is_busy
        if not busy:
            self.end()

    def end(self) -> None:
        with self._changed:
            self.is_over = True
            idle = list(self._idle)
            self._idle.clear()
            self._slots -= len(idle)
            self._changed.notify_all()
        self._service.kill()
        for slot in idle:
            slot.close()
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # the listener wakes up and closes it

    def join(self) -> None:
        self._thread.join(_STOP_S)

    def _ask(self) -> None:
        self._asked += 1
        self._slots += 1
        with suppress(OSError):
            self._channel.send(b"+")

    # -- the listener ---------------------------------------------------------------------------------------

    def _listen(self, code: bytes, spec: bytes, source: bytes) -> None:
        told = bytearray()
        try:
            self._channel.send(code)
            for body in (spec, source):
                self._channel.send(str(len(body)).encode("ascii"))
                for at in range(0, len(body), _CHUNK_BYTES):
                    self._channel.send(body[at : at + _CHUNK_BYTES])
            while True:
                self._channel.settimeout(self._patience())
                try:
                    message, fds, pid = _receive(self._channel)
                except TimeoutError:
                    if self._is_idle():
                        break
                    continue
                tag, body = message[:1], message[1:]
                if tag == b"S" and len(fds) <= 1 and self._asked > 0:
                    if fds:
                        self._greet(socket.socket(fileno=fds[0]), pid)
                    else:
                        self._missed()
                    continue
                for fd in fds:
                    os.close(fd)
                if tag == b"F":
                    self._failed(body)
                if tag != b"Z" or len(told) > _WATCHED_BYTES_MAX:
                    break
                told += body
                if not body:
                    self._loaded(bytes(told))
        except (OSError, ValueError, TypeError):
            pass
        finally:
            self.end()
            self._channel.close()

    def _patience(self) -> float:
        return max(0.01, self._used_at + self._idle_s - time.monotonic())

    def _is_idle(self) -> bool:
        with self._changed:
            if self.is_busy or time.monotonic() < self._used_at + self._idle_s:
                self._used_at = max(self._used_at, time.monotonic() - self._idle_s / 2)
                return False
            self.is_over = True  # before anybody takes a slot of it
            return True

    def _loaded(self, told: bytes) -> None:
        """Attack: a tool's top level that speaks to us in the zygote's place. At worst it is not kept."""
        facts = jsontext.read(told).value
        match facts:
            case {"threads": int() as threads, "watched": list() as listed}:
                watched = [(str(path), tuple(numbers)) for path, *numbers in listed]
            case _:
                raise ValueError("no such message")
        with self._changed:
            self._watched = watched
            self.has_threads = threads != 1
            self.is_loaded = True
            self._ask()
            self._changed.notify_all()

    def _failed(self, body: bytes) -> None:
        facts = jsontext.read(body).value
        told = facts if isinstance(facts, dict) else {}
        with self._changed:
            self._failure = Ending(
                end=End.RAISED,
                reason=str(told.get("reason", "")),
                kind_of_value=str(told.get("kind", "")),
                stderr=str(told.get("trace", "")).encode("utf-8", "replace"),
                layers=self.layers,
                held=self.held,
            )
            self._changed.notify_all()

    def _missed(self) -> None:
        """A slot came without the descriptor that leads to it, because these are short, and is gone."""
        with self._changed:
            self._asked -= 1
            self._slots -= 1
            self._is_short = True
            self._changed.notify_all()

    def _greet(self, control: socket.socket, pid: int) -> None:
        """Lend a new slot the list of its children, which it may not open itself, and put it to use."""
        children = -1
        with suppress(OSError):
            children = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):
            socket.send_fds(control, [b"C"], [children] if children >= 0 else [])
        with self._changed:
            self._asked -= 1
            self._idle.append(Slot(control, pid, children))
            self._changed.notify()


def _receive(channel: socket.socket) -> tuple[bytes, list[int], int]:
    """A message, its descriptors, and the process that sent it, as the kernel knows it."""
    message, ancillary, _, _ = channel.recvmsg(
        _CHUNK_BYTES, socket.CMSG_SPACE(4 * 4) + socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    pid = 0
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        elif level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
    return message, fds, pid


# -- one call -----------------------------------------------------------------------------------------------


class _Exchange:
    """A call in its slot: one poll loop, from the request to the end."""

    def __init__(
        self,
        slot: Slot,
        request: bytes,
        limits: Limits,
        cancel: Cancel,
        deadline: float,
        layers: tuple[str, ...],
        held: tuple[HeldName, ...],
    ) -> None:
        self.slot = slot
        self.layers = layers
        self.held = held
        self.limits = limits
        self.cancel = cancel
        self.deadline = deadline
        self.unsent = memoryview(_loader.LENGTH.pack(len(request)) + request)
        self.frame = bytearray()
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.stderr_bytes = 0
        self.fds: list[int] = []
        self.talk = self.out = self.err = self.child_fd = -1
        self.child = 0
        self.scratch = ""
        self.is_sent = False
        self.is_unread = False
        self.is_reusable = False
        self.is_over = False
        """The answer is there, and the child has to go."""
        self.is_crowded = False
        """Nothing was started, for want of descriptors."""
        self.end: End | None = None
        self.reason = ""
        self.status: int | None = None
        self.usage = Usage()
        self.samples = 0

    def run(self) -> Answer:
        try:
            if self.wait_for_child():
                self.talk_until_the_end()
            else:
                self.is_reusable = True
        except (_Lost, OSError, ValueError, struct.error) as lost:
            # The last ones: a slot that does not keep to the protocol, because its tool changed it.
            self.end = End.LOST if self.is_sent and self.was_read() else End.NOT_STARTED
            self.reason = str(lost)
            no_room = isinstance(lost, OSError) and lost.errno in (errno.EMFILE, errno.ENFILE)
            self.is_crowded = self.end is End.NOT_STARTED and (no_room or isinstance(lost, _Crowded))
        finally:
            # The child goes last: a process that is being taken apart holds up whoever closes beside it.
            for fd in self.fds:
                if fd != self.child_fd:
                    os.close(fd)
            if self.child_fd >= 0:
                if self.is_over:
                    self.kill()
                os.close(self.child_fd)
        is_whole = self.end is None and self.is_framed()
        return Answer(ending=self.ending(), frame=bytes(self.frame) if is_whole else None)

    def ending(self) -> Ending:
        end = self.end or End.EXITED
        signal_number = -self.status if self.status is not None and self.status < 0 else None
        status = 128 + signal_number if signal_number is not None else self.status
        stderr_max = self.limits.stderr_bytes_max
        return Ending(
            end=end,
            exit_status=status if end is End.EXITED else None,
            signal=signal_number if end is End.EXITED else None,
            stdout=bytes(self.stdout[: self.limits.stdout_bytes_max]),
            stderr=bytes(self.stderr[-stderr_max:]) if stderr_max else b"",
            stdout_bytes=len(self.stdout),
            stderr_bytes=self.stderr_bytes,
            reason=self.reason,
            usage=self.usage,
            layers=self.layers,
            held=self.held,
        )

    # -- before ---------------------------------------------------------------------------------------------

    def wait_for_child(self) -> bool:
        """Wait until the slot has a child for us; the report of its last call may come first."""
        poll = select.poll()
        poll.register(self.slot.control, select.POLLIN)
        poll.register(self.cancel.fileno(), select.POLLIN)
        while True:
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                self.end = End.TIMED_OUT
                return False
            if not poll.poll(left_s * 1e3):
                continue
            if self.cancel.is_set:
                self.end = End.CANCELLED
                return False
            message, fds, _ = _receive(self.slot.control)
            self.fds += fds
            if message[:1] == b"E" and message[1:2] == b"S":
                continue
            if not message:
                raise _Crowded("its slot ended")
            if message[:1] != b"R":
                raise _Lost("something of an earlier call did not end")
            if len(fds) != 4:
                raise _Crowded("too many open files")
            self.talk, self.out, self.err, self.child_fd = fds
            child, _, scratch = message[1:].partition(b" ")
            self.child, self.scratch = int(child), os.fsdecode(scratch)
            for fd in (self.talk, self.out, self.err):
                os.set_blocking(fd, False)
            return True

    # -- during ---------------------------------------------------------------------------------------------

    def talk_until_the_end(self) -> None:
        control, stop = self.slot.control.fileno(), self.cancel.fileno()
        poll = select.poll()
        for fd in (self.out, self.err, control, stop):
            poll.register(fd, select.POLLIN)
        self.send()
        poll.register(self.talk, select.POLLIN | select.POLLOUT if self.unsent else select.POLLIN)
        sample_at = time.monotonic() + SAMPLE_S
        until = self.deadline
        is_over = False  # it is killed, for whatever reason, and its report is awaited
        while True:
            now = time.monotonic()
            if now >= until:
                if is_over:
                    raise _Lost("what it started could not be ended")
                is_over, until = True, self.stop(End.TIMED_OUT)
            elif now >= sample_at and not is_over:
                sample_at = now + SAMPLE_S
                over = self.over_limit()
                if over:
                    is_over, until = True, self.stop(End.OVER_LIMIT, over)
            wait_s = until - now if is_over else min(until, sample_at) - now
            for fd, events in poll.poll(max(0.0, wait_s) * 1e3 + 0.5):
                if fd == control:
                    self.take_report()
                    self.read_rest()
                    return
                if fd == stop:
                    poll.unregister(stop)
                    if not is_over:
                        is_over, until = True, self.stop(End.CANCELLED)
                elif fd == self.talk and events & select.POLLOUT and not events & select.POLLIN:
                    self.send()
                    if not self.unsent:
                        poll.modify(fd, select.POLLIN)
                elif not self.read(fd):
                    poll.unregister(fd)
            if is_over:
                continue
            if self.is_framed() and self.is_alone():
                # Nothing of the call is left but the child itself, which waits for its end. It gets it, and
                # the slot tidies up without us: taking memory apart is no part of the answer.
                self.read_rest()
                self.is_over = True
                self.is_reusable = True
                self.usage = _usage(*_loader.HEAD.unpack_from(self.frame)[2:])
                return
            if self.is_too_large():
                is_over, until = True, self.stop(End.TOO_LARGE)
            elif self.is_framed():
                is_over, until = True, self.stop(None)

    def send(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.talk, self.unsent) :]
                self.is_sent = True
        except BlockingIOError:
            pass
        except OSError:  # nobody is there to read it
            if not self.is_sent:
                raise _Lost("its child ended before it began") from None
            self.unsent = memoryview(b"")

    def read(self, fd: int) -> bool:
        """Take what lies there; False at its end."""
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            self.is_unread = self.is_unread or error.errno == errno.ECONNRESET
            return False
        if fd == self.talk:
            self.frame += chunk
        elif fd == self.out:
            self.stdout += chunk[: max(0, self.limits.stdout_bytes_max + 1 - len(self.stdout))]
        else:
            self.stderr_bytes += len(chunk)
            self.stderr += chunk
            del self.stderr[: max(0, len(self.stderr) - self.limits.stderr_bytes_max)]
        return bool(chunk)

    def read_rest(self) -> None:
        """What was written before the end: pipes hold so much and no more."""
        for fd in (self.talk, self.out, self.err):
            before = -1
            while before != (before := self.read_bytes()) and not self.is_too_large():
                if not self.read(fd):
                    break
        if self.end is None and self.is_too_large():
            self.end = End.TOO_LARGE

    def read_bytes(self) -> int:
        return len(self.frame) + len(self.stdout) + self.stderr_bytes

    def is_framed(self) -> bool:
        head = _loader.HEAD
        return len(self.frame) >= head.size and len(self.frame) >= head.size + head.unpack_from(self.frame)[1]

    def is_too_large(self) -> bool:
        return (
            len(self.stdout) > self.limits.stdout_bytes_max
            or self.stderr_bytes > self.limits.stderr_bytes_max
            or len(self.frame) > self.limits.stdout_bytes_max + _CHUNK_BYTES
        )

    def stop(self, end: End | None, reason: str = "") -> float:
        """Have the call ended, and the slot sweep up after it; the time by which that must have happened."""
        self.end, self.reason = end, reason
        self.kill()
        return time.monotonic() + _STOP_S

    def kill(self) -> None:
        """By its descriptor: its number may be somebody else's by now."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.child_fd, signal.SIGKILL)

    def was_read(self) -> bool:
        """Whether the child may have begun: a socket that ends with something unread in it is reset."""
        self.kill()
        gone = select.poll()
        gone.register(self.talk, 0)  # nothing but its hanging up
        gone.poll(_STOP_S * 1e3)
        while not self.is_unread and self.read(self.talk) and not self.is_too_large():
            if not gone.poll(0):
                break
        return not self.is_unread

    def take_report(self) -> None:
        message, fds, _ = _receive(self.slot.control)
        self.fds += fds
        if message[:1] != b"E":
            raise _Lost("its slot ended")
        swept, status, user_s, system_s, memory = _zygote.ENDED.unpack(message[1:])
        self.usage = _usage(user_s, system_s, memory)
        self.status = None if self.is_framed() else status
        if swept != b"S":
            raise _Lost("what it started could not be ended")
        self.is_reusable = True

    # -- what it takes --------------------------------------------------------------------------------------

    def is_alone(self) -> bool:
        """Whether the call's child has no other thread, no child, and left nothing to its slot."""
        if self.slot.children < 0:
            return False
        try:
            if os.pread(self.slot.children, 64, 0).split() != [b"%d" % self.child]:
                return False
            if os.stat(f"/proc/{self.child}/task").st_nlink != 3:
                return False
            return not _read_small(f"/proc/{self.child}/task/{self.child}/children")
        except OSError:
            return False

    def over_limit(self) -> str:
        """Which limit the call has passed, in words; nothing where none."""
        self.samples += 1
        count = memory = 0
        for pid in _descendants(self.slot.pid):
            count += 1
            with suppress(OSError, ValueError, IndexError):
                memory += int(_read_small(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
        if count > self.limits.processes_max:
            return f"it had more than {self.limits.processes_max} processes"
        if memory > self.limits.memory_bytes_max:
            return f"its processes took more than {self.limits.memory_bytes_max} bytes of memory"
        scratch_max = self.limits.scratch_bytes_max
        looks = self.samples % 4 == 0 and self.scratch
        if looks and size(self.scratch, scratch_max, self.deadline) > scratch_max:
            return f"its temporary files took more than {scratch_max} bytes"
        return ""


def _usage(user_s: float, system_s: float, memory: int) -> Usage:
    """As told, where it can be true. Attack: a child that claims what no record can hold."""
    if not (0 <= user_s < _LONG_S and 0 <= system_s < _LONG_S and 0 <= memory < 1 << 50):
        return Usage()
    return Usage(user_ms=user_s * 1e3, system_ms=system_s * 1e3, memory_bytes=memory)


def _read_small(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def _descendants(pid: int) -> Iterator[int]:
    """The children of a process and theirs, as far as the kernel tells."""
    waiting = [pid]
    seen = 0
    while waiting and seen < _PROCESSES_SEEN_MAX:
        at = waiting.pop()
        with suppress(OSError, ValueError):
            for thread in os.listdir(f"/proc/{at}/task"):
                for child in map(int, _read_small(f"/proc/{at}/task/{thread}/children").split()):
                    seen += 1
                    waiting.append(child)
                    yield child
