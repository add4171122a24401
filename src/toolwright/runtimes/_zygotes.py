"""The host's side of zygotes: a few pre-loaded interpreters, a child of theirs for each call.

A zygote is a service of the sandbox that runs ``_zygote.py`` inside one permit. Here they are started at the
first call, shared by threads, ended when others are needed more, when their files changed or when nobody used
them for a while. One poll loop per call writes the request, reads what comes back within its limits, and says
when to stop: at the deadline, at the button, at too much output, memory, processes or scratch space.

Nothing here knows tools or results: a request is bytes, an answer is a frame of bytes and an ``Ending``. What
a zygote says about itself is not believed where it matters: who a slot is comes from the kernel.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from toolwright import jsontext
from toolwright.catalog import files
from toolwright.model import End, Ending, Limits, Usage
from toolwright.runtimes import _zygote
from toolwright.sandbox import Cancel, Start
from toolwright.sandbox.rules import KernelRules

ZYGOTES_MAX: Final = 8
ZYGOTE_IDLE_S: Final = 300.0
SLOTS_MAX: Final = 32
"""Calls of one tool at once; more wait for their turn, within their time limit."""
IDLE_SLOTS_MAX: Final = 4
"""Slots of one zygote that stay ready when nobody calls."""
SAMPLE_S: Final = 0.05
"""How often memory and processes of a call are counted; its scratch folder at every fourth time."""

_STOP_S: Final = _zygote.SWEEP_S + 1.0
"""How long a slot may take to end a call before its whole zygote is ended."""
_PATIENCE_S: Final = 0.1
_CHUNK_BYTES: Final = 65536
_SCRATCH_ENTRIES_MAX: Final = 100_000
_SCM_CREDENTIALS: Final = 2
_CREDENTIALS: Final = struct.Struct("3i")
_WATCHED_BYTES_MAX: Final = 4 << 20
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PROCESSES_SEEN_MAX: Final = 10_000


class Service(Protocol):
    """A long-lived program inside its permit, as the supervised level keeps it."""

    @property
    def rules(self) -> KernelRules: ...

    @property
    def scratch(self) -> str: ...

    def ended(self) -> bool: ...

    def kill(self) -> None: ...


class Keeper(Protocol):
    """A level that keeps services."""

    def service(self, start: Start, channel: socket.socket) -> Service: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a zygote is made from. Equal keys share one."""

    key: Hashable
    start: Start = field(repr=False)
    loader: bytes = field(repr=False)
    spec: Callable[[KernelRules, str], bytes] = field(repr=False)
    """The spec that ``_zygote.py`` reads, once the rules and the scratch folder of the service are known."""
    source: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one call ended, and the frame that its child sent, if it did."""

    ending: Ending
    frame: bytes | None = None


class _Lost(Exception):
    """A slot or its zygote is gone."""


class Zygotes:
    """At most so many zygotes, the least recently used ended first."""

    def __init__(self, keeper: Keeper, zygotes_max: int = ZYGOTES_MAX, idle_s: float = ZYGOTE_IDLE_S) -> None:
        self._keeper = keeper
        self._zygotes_max = zygotes_max
        self._idle_s = idle_s
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Zygote] = OrderedDict()
        self._unfit: OrderedDict[Hashable, None] = OrderedDict()
        self._closed = False

    def run(self, recipe: Recipe, request: bytes, limits: Limits, cancel: Cancel) -> Answer | None:
        """Answer one request; None: no zygote can, so a cold interpreter should."""
        if self._pid != os.getpid():
            # A host that forked: these belong to the parent. They are neither used nor ended here.
            self._inherited = self._kept
            self._forget()
        began = time.monotonic()
        deadline = began + limits.timeout_s
        for _ in range(2):  # once more where it ended between being found and being used
            zygote = self._zygote(recipe)
            if zygote is None:
                return None
            try:
                slot = zygote.take(deadline, cancel)
            except _Lost:
                self._drop(recipe.key, zygote, unfit=not zygote.is_loaded)
                continue
            finally:
                zygote.leave()
            if isinstance(slot, Ending):
                if slot.end is not End.CANCELLED:
                    self._drop(recipe.key, zygote)
                return Answer(ending=slot)
            if zygote.has_threads:
                zygote.give(slot, is_good=False)
                self._drop(recipe.key, zygote, unfit=True)
                return None
            exchange = _Exchange(slot, request, limits, cancel, deadline)
            answer = None
            try:
                answer = exchange.run()
            except _Lost as lost:
                answer = exchange.lost(str(lost))
            finally:
                zygote.give(slot, is_good=exchange.is_reusable)
            if not exchange.is_reusable:
                self._drop(recipe.key, zygote)
                if not exchange.is_sent and answer.ending.end is End.NOT_STARTED:
                    continue
            return Answer(ending=replace(answer.ending, layers=zygote.layers), frame=answer.frame)
        return None

    def _zygote(self, recipe: Recipe) -> Zygote | None:
        with self._lock:
            if self._closed or recipe.key in self._unfit:
                return None
            zygote = self._kept.get(recipe.key)
            if zygote is not None:
                if not zygote.is_over and zygote.is_fresh():
                    self._kept.move_to_end(recipe.key)
                    zygote.enter()
                    return zygote
                del self._kept[recipe.key]
                zygote.retire()
            if not self._make_room():
                return None
            try:
                zygote = Zygote(self._keeper, recipe, self._idle_s)
            except OSError:
                return None
            zygote.enter()
            self._kept[recipe.key] = zygote
            return zygote

    def _make_room(self) -> bool:
        for key in [key for key, zygote in self._kept.items() if zygote.is_over]:
            self._kept.pop(key).retire()
        while len(self._kept) >= self._zygotes_max:
            key = next((key for key, zygote in self._kept.items() if not zygote.is_busy), None)
            if key is None:
                return False
            self._kept.pop(key).retire()
        return True

    def _drop(self, key: Hashable, zygote: Zygote, *, unfit: bool = False) -> None:
        with self._lock:
            if self._kept.get(key) is zygote:
                del self._kept[key]
            if unfit:
                self._unfit[key] = None
                if len(self._unfit) > 16 * self._zygotes_max:
                    self._unfit.popitem(last=False)
        zygote.end()

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


@dataclass(slots=True, eq=False)
class Slot:
    """P, as the host sees it: where it listens, who it is, and the list of its children."""

    control: socket.socket
    pid: int
    children: int

    def close(self) -> None:
        self.control.close()
        if self.children >= 0:
            os.close(self.children)
            self.children = -1


class Zygote:
    """One service and its slots. A thread listens to it; callers wait for slots."""

    def __init__(self, keeper: Keeper, recipe: Recipe, idle_s: float) -> None:
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._idle: deque[Slot] = deque()
        self._slots = 0
        self._asked = 0
        self._users = 0
        self._used_at = time.monotonic()
        self._watched: list[tuple[str, files.Fingerprint]] = []
        self._failure: Ending | None = None
        self._retired = False
        self.is_loaded = False
        self.is_over = False
        self.has_threads = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._service = keeper.service(recipe.start, theirs)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self.layers = (*self._service.rules.layers, "zygote")
        spec = recipe.spec(self._service.rules, self._service.scratch)
        self._thread = threading.Thread(
            target=self._listen, args=(recipe.loader, spec, recipe.source), name="zygote", daemon=True
        )
        self._thread.start()

    # -- callers --------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return self._users > 0 or len(self._idle) < self._slots

    def enter(self) -> None:
        with self._changed:
            self._users += 1

    def leave(self) -> None:
        with self._changed:
            self._users -= 1

    def is_fresh(self) -> bool:
        """Whether the files of the modules that were loaded are still the ones that were loaded."""
        for path, fingerprint in self._watched:
            try:
                if files.fingerprint(os.stat(path)) != fingerprint:
                    return False
            except OSError:
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
                slot = self._idle.popleft() if self._idle else None
                # One more is kept ready, so that the next caller does not wait for a fork.
                if self.is_loaded and len(self._idle) + self._asked == 0 and self._slots < SLOTS_MAX:
                    self._ask()
                if slot is not None:
                    self._used_at = time.monotonic()
                    return slot
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return Ending(end=End.TIMED_OUT, layers=self.layers)
                if cancel.is_set:
                    return Ending(end=End.CANCELLED, layers=self.layers)
                self._changed.wait(min(left_s, _PATIENCE_S))

    def give(self, slot: Slot, *, is_good: bool) -> None:
        with self._changed:
            self._used_at = time.monotonic()
            if is_good and not self.is_over and not self._retired and len(self._idle) < IDLE_SLOTS_MAX:
                self._idle.append(slot)
                self._changed.notify()
                return
            self._slots -= 1
            ends = self._retired and self._slots == len(self._idle)
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
        self._service.kill()
        with self._changed:
            self.is_over = True
            idle = list(self._idle)
            self._idle.clear()
            self._slots -= len(idle)
            self._changed.notify_all()
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

    def _listen(self, loader: bytes, spec: bytes, source: bytes) -> None:
        told = bytearray()
        try:
            self._channel.send(loader)
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
                if tag == b"Z":
                    told += body
                    if len(told) > _WATCHED_BYTES_MAX:
                        break
                    if not body:
                        self._loaded(bytes(told))
                elif tag == b"F":
                    self._failed(body)
                    break
                elif tag == b"S" and fds:
                    self._greet(socket.socket(fileno=fds.pop(0)), pid)
                else:
                    break
                for fd in fds:
                    os.close(fd)
        except OSError:
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
        facts = jsontext.read(told).value
        watched: list[tuple[str, files.Fingerprint]] = []
        threads = 1
        if isinstance(facts, dict):
            threads = facts.get("threads", 1)
            for path, *numbers in facts.get("watched", []):
                watched.append((path, (numbers[0], numbers[1], numbers[2], numbers[3])))
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
            )
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

    def __init__(self, slot: Slot, request: bytes, limits: Limits, cancel: Cancel, deadline: float) -> None:
        self.slot = slot
        self.limits = limits
        self.cancel = cancel
        self.deadline = deadline
        self.unsent: memoryview | bytes = _zygote.LENGTH.pack(len(request)) + request
        self.frame = bytearray()
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.stderr_bytes = 0
        self.child = 0
        self.scratch = ""
        self.is_sent = False
        self.ends: list[int] = []
        self.is_reusable = False
        self.end: End | None = None
        self.reason = ""
        self.status: int | None = None
        self.usage = Usage()
        self.samples = 0

    def run(self) -> Answer:
        try:
            if not self.ready():
                self.is_reusable = True
                return Answer(ending=self.ending())
            self.talk_until_the_end()
        finally:
            for fd in self.ends:
                os.close(fd)
        is_whole = self.end is None and self.is_framed()
        return Answer(ending=self.ending(), frame=bytes(self.frame) if is_whole else None)

    def lost(self, reason: str) -> Answer:
        if not self.is_sent:
            return Answer(ending=Ending(end=End.NOT_STARTED, reason=reason))
        self.end, self.reason = End.LOST, reason
        return Answer(ending=self.ending())

    def ending(self) -> Ending:
        end = self.end or End.EXITED
        signal = -self.status if self.status is not None and self.status < 0 else None
        status = 128 + signal if signal is not None else self.status
        return Ending(
            end=end,
            exit_status=status if end is End.EXITED else None,
            signal=signal if end is End.EXITED else None,
            stdout=bytes(self.stdout[: self.limits.stdout_bytes_max]),
            stderr=bytes(self.stderr[-self.limits.stderr_bytes_max :])
            if self.limits.stderr_bytes_max
            else b"",
            stdout_bytes=len(self.stdout),
            stderr_bytes=self.stderr_bytes,
            reason=self.reason,
            usage=self.usage,
        )

    # -- before ---------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Wait until the slot has a child for us; the end of its last call may come first."""
        control = self.slot.control
        poll = select.poll()
        poll.register(control, select.POLLIN)
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
            message, fds, _ = _receive(control)
            self.ends += fds
            if not message:
                raise _Lost("its slot ended")
            if message[:1] == b"R":
                if len(fds) != 3:
                    raise _Lost("too many open files")
                child, _, scratch = message[1:].partition(b" ")
                self.child, self.scratch = int(child), os.fsdecode(scratch)
                for fd in fds:
                    os.set_blocking(fd, False)
                return True
            if message[1:2] != b"S":
                raise _Lost("something of an earlier call did not end")

    # -- during ---------------------------------------------------------------------------------------------

    def talk_until_the_end(self) -> None:
        talk, out, err = self.ends
        control = self.slot.control.fileno()
        stop = self.cancel.fileno()
        poll = select.poll()
        for fd in (out, err, control, stop):
            poll.register(fd, select.POLLIN)
        self.send(talk)
        poll.register(talk, select.POLLIN | select.POLLOUT if self.unsent else select.POLLIN)
        sample_at = time.monotonic() + SAMPLE_S
        until = self.deadline
        while True:
            now = time.monotonic()
            if now >= until:
                if self.end is not None:
                    raise _Lost("it could not be ended")
                until = self.stop(End.TIMED_OUT)
                continue
            if now >= sample_at:
                sample_at = now + SAMPLE_S
                if self.end is None and (over := self.over_limit()):
                    until = self.stop(End.OVER_LIMIT, over)
            for fd, events in poll.poll(max(0.0, min(until, sample_at) - now) * 1e3 + 0.5):
                if fd == control:
                    if self.take_report():
                        self.read_rest(talk, out, err)
                        return
                elif fd == stop:
                    poll.unregister(stop)
                    if self.end is None:
                        until = self.stop(End.CANCELLED)
                elif fd == talk and events & select.POLLOUT and not events & select.POLLIN:
                    self.send(talk)
                    if not self.unsent:
                        poll.modify(talk, select.POLLIN)
                elif not self.read(fd, talk, out):
                    poll.unregister(fd)
            if self.end is None:
                if self.is_too_large():
                    until = self.stop(End.TOO_LARGE)
                elif self.is_framed():
                    if self.is_alone():
                        # Nothing of the call is left but the child itself, which waits for its end. It gets
                        # it without us: taking its memory apart is no part of the answer.
                        self.read_rest(talk, out, err)
                        if self.is_too_large():
                            until = self.stop(End.TOO_LARGE)
                            continue
                        self.kill()
                        self.is_reusable = True
                        self.usage = _usage(*_zygote.HEAD.unpack_from(self.frame)[2:])
                        return
                    self.kill()
                    until = min(until, time.monotonic() + _STOP_S)
                    self.end = self.end if until == self.deadline else None
                    with suppress(OSError, KeyError):
                        poll.unregister(talk)
                    self.wait_for_report(poll, control, talk, out, err)
                    return

    def wait_for_report(self, poll: select.poll, control: int, talk: int, out: int, err: int) -> None:
        """The answer is here, and the slot sweeps up what the call left; meanwhile its output is read."""
        until = time.monotonic() + _STOP_S
        while (left_s := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1e3):
                if fd == control:
                    if self.take_report():
                        self.read_rest(talk, out, err)
                        self.status = None
                        return
                elif fd in (out, err):
                    if not self.read(fd, talk, out):
                        poll.unregister(fd)
                else:
                    poll.unregister(fd)
        raise _Lost("what it started could not be ended")

    def send(self, talk: int) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(talk, self.unsent) :]
                self.is_sent = True
        except BlockingIOError:
            pass
        except OSError:  # nobody is there to read it
            if not self.is_sent:
                raise _Lost("its child ended before it began") from None
            self.unsent = b""

    def read(self, fd: int, talk: int, out: int) -> bool:
        """Take what lies there; False at its end."""
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if fd == talk:
            self.frame += chunk
        elif fd == out:
            room = self.limits.stdout_bytes_max + 1 - len(self.stdout)
            self.stdout += chunk[: max(0, room)]
        else:
            self.stderr_bytes += len(chunk)
            self.stderr += chunk
            if len(self.stderr) > self.limits.stderr_bytes_max + _CHUNK_BYTES:
                del self.stderr[: len(self.stderr) - self.limits.stderr_bytes_max]
        return bool(chunk)

    def read_rest(self, talk: int, out: int, err: int) -> None:
        """What was written before the end: pipes hold so much and no more."""
        for fd in (talk, out, err):
            before = -1
            while before != (before := self.read_bytes()) and not self.is_too_large():
                if not self.read(fd, talk, out):
                    break
        if self.end is None and self.is_too_large():
            self.end = End.TOO_LARGE

    def read_bytes(self) -> int:
        return len(self.frame) + len(self.stdout) + self.stderr_bytes

    def is_framed(self) -> bool:
        if len(self.frame) < _zygote.HEAD.size:
            return False
        size: int = _zygote.HEAD.unpack_from(self.frame)[1]
        return len(self.frame) >= _zygote.HEAD.size + size

    def is_too_large(self) -> bool:
        return (
            len(self.stdout) > self.limits.stdout_bytes_max
            or self.stderr_bytes > self.limits.stderr_bytes_max
            or len(self.frame) > self.limits.stdout_bytes_max + _CHUNK_BYTES
        )

    def stop(self, end: End, reason: str = "") -> float:
        """Have the call ended; the time by which that must have happened."""
        self.end, self.reason = end, reason
        self.kill()
        return time.monotonic() + _STOP_S

    def kill(self) -> None:
        with suppress(OSError):
            self.slot.control.send(b"k%d" % self.child)

    def take_report(self) -> bool:
        message, fds, _ = _receive(self.slot.control)
        for fd in fds:
            os.close(fd)
        if not message:
            raise _Lost("its slot ended")
        if message[:1] != b"E":
            return False
        swept, status, user_s, system_s, memory = _zygote.ENDED.unpack(message[1:])
        self.status = status
        self.usage = _usage(user_s, system_s, memory)
        if swept != b"S":
            raise _Lost("what it started could not be ended")
        self.is_reusable = True
        return True

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
        if looks and _bytes_below(self.scratch, scratch_max) > scratch_max:
            return f"its temporary files took more than {scratch_max} bytes"
        return ""


def _usage(user_s: float, system_s: float, memory: int) -> Usage:
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


def _bytes_below(folder: str, enough: int) -> int:
    """The space that the files in a folder take, counted until it is enough; links are not followed."""
    total = entries = 0
    waiting = [folder]
    while waiting and total <= enough and entries < _SCRATCH_ENTRIES_MAX:
        with suppress(OSError), os.scandir(waiting.pop()) as found:
            for entry in found:
                entries += 1
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
