"""The threads that run the calls of a server.

A door orders calls from its event loop; or it has these threads read for it (``Source``): whoever read a call
runs it, so that no thread has to be woken for it. A caller whose calls take all that it may have, or all that
a tool may run of, waits without a thread.

Calls that arrive while others are being recorded share one sync of the journal, and quick ones (functions of
the host's) that are over together share one write. Whatever may wait gets a thread of its own at once; a
function that turns out to wait keeps its thread, and another one goes on with the rest. The crew decides
nothing: order, record and permit are the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from toolcrib.app import Crib
from toolcrib.doors._events import EventKind, Events
from toolcrib.doors._shares import Queue, Shares
from toolcrib.engine import Engine, FinishedCall, StartedCall
from toolcrib.errors import Kind
from toolcrib.functions import PROGRESS, Report
from toolcrib.jsontext import JsonObject
from toolcrib.model import Tool, ToolCall, ToolError, ToolResult
from toolcrib.sandbox import Cancel

THREADS_MAX: Final = 128
"""Calls that run at once, of all callers together; one caller alone gets half of them (``_shares.py``)."""
WAITING_MAX: Final = 4096
"""Calls under way, of all callers together; more are refused at once instead of being forgotten late."""
QUEUE_S: Final = 60.0
"""A call that has not begun after so long is refused."""
AGAIN_S: Final = 1.0
"""When to come again, for who is refused."""
TOGETHER_MAX: Final = 64
"""Calls that begin with one sync, or end with one write."""
_STUCK_S: Final = 0.002
_SYNC_S: Final = 0.05
_UNREAD_S: Final = 0.01
"""After so long another thread reads on: the one that read last is busy with what it read."""
_LOOK_S: Final = 0.003
_LOOKS_IDLE: Final = 40
"""After so many looks with nothing to see nobody looks any more."""
_DRAIN_LOOK_S: Final = 0.02
_SWEEP_S: Final = 0.05
"""How often it is looked whether what waits was cancelled, or waits too long."""
_SLOW_S: Final = 0.005
_PACES_MAX: Final = 4096
_NAME_CHARS_MAX: Final = 512
_IDLE_S: Final = 30.0
_LOG: Final = logging.getLogger("toolcrib.doors")
Done = Callable[[ToolResult], None]
Counted = Callable[[str, str, str | None, float], object]
T = TypeVar("T")


class Span(Protocol):
    """One call, as whoever traces sees it."""

    def current(self) -> AbstractContextManager[object]:
        """What is traced inside belongs to this call."""
        ...

    def end(self, result: ToolResult) -> None: ...


class Spans(Protocol):
    """Whoever traces calls. ``parent`` is the caller's W3C traceparent; empty: there is none."""

    def begin(self, call: ToolCall, tool: Tool | None, *, parent: str) -> Span: ...


class _Order(Struct, eq=False):
    call: ToolCall
    cancel: Cancel
    done: Done
    door: str
    share: str
    """Of the caller who is counted for it."""
    until: float
    """When it is refused if it has not begun."""
    is_admitted: bool = False
    """Whether it counts as running; else it waits for its turn, and holds nothing."""
    progress: Report | None = None
    begun: StartedCall | None = None
    over: FinishedCall | None = None
    trace: str = ""
    span: Span | None = None


Came = TypeVar("Came", bound=Sized)


class Source(Protocol[Came]):
    """Where messages of clients come from. One thread at a time reads and takes, now this one, now that."""

    def read(self) -> Came:
        """Wait for what comes. Empty: nothing will any more, and nobody asks again."""
        ...

    def take(self, came: Came, /) -> None:
        """Order what was read."""
        ...

    def flush(self) -> None:
        """Send what ``done`` was told: once for all that ended together, in any thread. Never raises."""
        ...


class Mailbox:
    """What threads have for a loop to do: one waking of the loop for all that was put in before it came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posts: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_told = False

    def post(self, do: Callable[[T], object], given: T) -> None:
        """Have ``do(given)`` done on the loop; in vain where the loop has ended."""
        self._posts.append((do, given))
        if self._is_told:
            return
        self._is_told = True
        try:
            self.loop.call_soon_threadsafe(self._empty)
        except RuntimeError:  # the loop has ended: nobody waits any more
            self._posts.clear()

    def _empty(self) -> None:
        self._is_told = False  # first: whatever is put in from now on is told anew
        posts = self._posts
        while posts:
            do, given = posts.popleft()
            try:
                do(given)
            except Exception:  # noqa: BLE001 - one door's mistake must not keep the others' posts
                _LOG.exception("what a thread had for the loop could not be done")


class Crew:
    """Runs calls in threads that come and go with the work. All that is to do lies where every thread finds
    it, so that none has to be waited for."""

    def __init__(
        self,
        crib: Crib,
        events: Events,
        *,
        threads_max: int = THREADS_MAX,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._crib = crib
        self._events = events
        self._lock = threading.Lock()
        self._room = Shares(WAITING_MAX)
        """Of calls under way."""
        self._running = Shares(threads_max)
        """Of those that were admitted."""
        self._tools: Counter[str] = Counter()
        """How many of each tool were."""
        self._per_tool = crib.config.calls_per_tool
        self._waiting: Queue[_Order] = Queue()
        """Not admitted yet: others of the same caller, or of the same tool, run."""
        self._refused: list[_Order] = []
        """Waited in vain; to be answered by a thread."""
        self._swept_at = 0.0
        self._threads_max = 2 * threads_max + 1
        """A thread for each that may be admitted, and one that reads. So none is missing to hear that calls
        are cancelled, however many of them never end."""
        self._arrived: deque[_Order] = deque()
        self._begun: deque[_Order] = deque()
        self._over: list[_Order] = []
        self._idle: deque[threading.Lock] = deque()
        """A gate for each thread that rests; opening it wakes the thread."""
        self._threads = 0
        self._free = 0
        """Threads that are awake and in no call that may wait."""
        self._moved_at = 0.0
        self._source: Source[Any] | None = None
        self._is_open = False
        """Whether the source may still bring something."""
        self._is_read = False
        """Whether a thread reads it, or takes what it read."""
        self._read_at = 0.0
        self._paces: dict[str, float] = {}
        """How long the last calls of a quick tool took, on the whole: one that waits gets threads of its own,
        one that was held up once by a busy machine does not."""
        self._under_way: set[_Order] = set()
        self._settled = threading.Condition(self._lock)
        self.counted: Counted = lambda _door, _key, _kind, _duration_ms: None
        """Told of every call that is over, in the thread that ran it; ``kind`` of its error, or None."""
        self._is_closing = False
        self._is_waking = False
        self._mailbox: Mailbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_attended = False
        self._ordered = 0

    @cached_property
    def _engine(self) -> Engine:
        """Made at the first call, like everything that only calls need."""
        return self._crib.hands.engine

    @property
    def under_way(self) -> int:
        """How many calls were taken and are not over."""
        return len(self._under_way)

    @property
    def is_reading(self) -> bool:
        """Whether a thread still uses the source."""
        return self._is_read

    def mailbox(self) -> Mailbox:
        """Return the mailbox of the running loop."""
        box, loop = self._mailbox, asyncio.get_running_loop()
        if box is None or box.loop is not loop:
            box = self._mailbox = Mailbox(loop)
        return box

    # -- from the doors -------------------------------------------------------------------------------------

    def order(
        self,
        call: ToolCall,
        *,
        door: str,
        done: Done,
        cancel: Cancel,
        progress: Report | None = None,
        trace: str = "",
        share: str = "",
    ) -> ToolError | None:
        """Have a call run; ``done`` is called with the result, in the thread that ran it, and ``cancel``,
        which must be this call's alone, is closed then. The call's ``id`` must be a ``new_call_id``.
        ``trace``: the traceparent that came with the call. ``share``: who is counted for it.

        Return why the call was not taken, or None. Then nothing was or will be done."""
        until = time.monotonic() + min(call.timeout_s or QUEUE_S, QUEUE_S)
        order = _Order(call, cancel, done, door, share, until, progress=progress, trace=trace)
        with self._lock:
            if self._is_closing:
                return _STOPPING
            if not self._room.may(share):
                return _NO_ROOM
            self._room.take(share)
            self._under_way.add(order)
            self._ordered += 1
            if not self._is_attended and self._loop is not None:
                with suppress(RuntimeError):  # the loop has ended: whoever drains us looks
                    self._loop.call_soon_threadsafe(self._begin_looking)
            if not self._is_next(order):
                self._waiting.add(share, order, _shown(call))
                return None
            self._admit(order)
            if self._free or self._is_waking:
                return None
            self._is_waking = True
        try:
            # What arrives in the same turn of the loop begins together; and a thread that starts while the
            # loop still reads would only take the interpreter away from it.
            asyncio.get_running_loop().call_soon(self._wake_up)
        except RuntimeError:  # no loop here
            self._wake_up()
        return None

    def _is_next(self, order: _Order) -> bool:
        """Whether a call need not wait. Under the lock.

        Attack: hundreds of calls of one slow tool, each waiting in a thread, until none is left for the calls
        of others.
        """
        tool = _shown(order.call)
        return (
            not self._waiting.has(order.share, tool)
            and self._running.may(order.share)
            and self._has_place(tool)
        )

    def _has_place(self, tool: str) -> bool:
        return self._tools[tool] < self._per_tool

    def _admit(self, order: _Order) -> None:
        """Under the lock."""
        order.is_admitted = True
        self._running.take(order.share)
        self._tools[_shown(order.call)] += 1
        self._arrived.append(order)

    def _let_go(self, order: _Order) -> None:
        """A call is over. Under the lock."""
        self._under_way.discard(order)
        self._room.give_back(order.share)
        if order.is_admitted:
            self._running.give_back(order.share)
            tool = _shown(order.call)
            self._tools[tool] -= 1
            if not self._tools[tool]:
                del self._tools[tool]

    def _wake_up(self) -> None:
        with self._lock:
            self._is_waking = False
            if self._arrived and self._free == 0:
                self._wake()

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``look`` called on this loop while anything is under way. From then on, calls are ordered in
        the loop's own thread, or by a source."""
        self._loop = loop

    def _begin_looking(self) -> None:
        """On the loop, which alone begins and ends it: else it would be begun twice."""
        if not self._is_attended:
            self._is_attended = True
            self._attend(0)

    def _attend(self, idle: int) -> None:
        self.look()
        # While calls come one after the other it stays, so that none of them pays for starting it.
        idle = 0 if self._under_way or self._ordered else idle + 1
        if idle < _LOOKS_IDLE:
            self._ordered = 0
            assert self._loop is not None
            self._loop.call_later(_LOOK_S, self._attend, idle)
            return
        self._is_attended = False  # first: whatever was ordered by one that saw us look still is there
        if self._under_way or self._ordered:
            self._begin_looking()

    async def call(
        self,
        call: ToolCall,
        *,
        door: str,
        progress: Report | None = None,
        cancel: Cancel | None = None,
        trace: str = "",
        share: str = "",
    ) -> ToolResult:
        """Run a call. Cancelling the task kills the tool and waits for its record; ``progress`` is told in
        the call's thread."""
        stop, mailbox = cancel or Cancel(), self.mailbox()
        future: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()

        def settle(result: ToolResult) -> None:
            if not future.done():
                future.set_result(result)

        def done(result: ToolResult) -> None:
            mailbox.post(settle, result)

        error = self.order(
            call, door=door, done=done, cancel=stop, progress=progress, trace=trace, share=share
        )
        if error is not None:
            return refused(call, error)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.shield(asyncio.wait([future]))
            raise

    def serve(self, source: Source[Any]) -> None:
        """Read a source to its end, in the threads that run what it brings."""
        with self._lock:
            self._source, self._is_open = source, True
            self._wake()

    def look(self) -> None:
        """Wake another thread where calls wait, or a source, and nobody moves them on: one that seemed quick
        is not. Called every few milliseconds by whoever serves, while anything is under way."""
        if not (self._has_work or self._waiting or self._is_unread):
            return
        with self._lock:
            self._sweep()
            if self._is_stuck():
                self._wake()

    def _sweep(self) -> None:
        """Find what waits in vain. Under the lock."""
        now = time.monotonic()
        if not self._waiting or now < self._swept_at + _SWEEP_S:
            return
        self._swept_at = now
        self._refused += self._waiting.take_out(lambda order: order.cancel.is_set or order.until < now)

    def drain(self, timeout_s: float) -> bool:
        """Take nothing more and wait until all is over; what is not by then is cancelled and waited for.
        Whether everything ended by itself."""
        with self._settled:
            self._is_closing = True
            by_itself = self._settle(timeout_s)
            for order in tuple(self._under_way):
                order.cancel.set()
            self._settle(timeout_s)
            while self._idle:
                self._free += 1
                self._idle.pop().release()
        return by_itself

    def abandon(self) -> None:
        """After ``drain``: answer for the calls that nothing could stop. Their records have no end, which
        reads as interrupted; should one end after all, that is recorded, and its answer comes too late."""
        error = ToolError(kind=Kind.CANCELLED, message="the server stopped before the call was over")
        self._hand_over(
            [(order, ToolResult(call_id=order.call.id, error=error)) for order in tuple(self._under_way)]
        )

    def _settle(self, timeout_s: float) -> bool:
        """Under the lock: wait until nothing is under way, and look after what waits, as nobody else may do
        any more. Whether nothing is."""
        until = time.monotonic() + timeout_s
        while self._under_way and (left_s := until - time.monotonic()) > 0:
            self._settled.wait(min(left_s, _DRAIN_LOOK_S))
            self._sweep()
            if self._is_stuck():
                self._wake()
        return not self._under_way

    @property
    def _has_work(self) -> bool:
        return bool(self._arrived or self._begun or self._over or self._refused)

    @property
    def _is_unread(self) -> bool:
        return self._is_open and not self._is_read and not self._is_closing

    def _is_stuck(self) -> bool:
        now = time.monotonic()
        if self._has_work and now - self._moved_at > _STUCK_S:
            return True
        return self._is_unread and now - self._read_at > _UNREAD_S

    # -- in the threads -------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Under the lock: one more thread, where there may be one."""
        self._moved_at = self._read_at = time.monotonic()
        if self._idle:
            self._free += 1
            self._idle.pop().release()
        elif self._threads < self._threads_max and _started(self._work):
            self._threads += 1
            self._free += 1

    def _work(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        while True:
            try:
                self._run_begun()
                self._end_over()
                self._answer_refused()
                fresh = self._taken()
                if fresh:
                    self._begin(fresh)
                elif not (self._read() or self._rest(gate)):
                    return
            except Exception:  # noqa: BLE001 - the thread counts as one that works: it must not just end
                _LOG.exception("a thread that runs calls met a mistake of ours")

    def _read(self) -> bool:
        """Read, where nobody else does. False: there is nothing to read for this thread."""
        with self._lock:
            if not self._is_unread:
                return False
            if self._has_work:
                return True
            self._is_read = True
            self._free -= 1
        self._read_once()
        return True

    def _read_once(self) -> None:
        """By the one thread that reads; whatever it orders, it is free to run itself."""
        source, came = self._source, b""
        assert source is not None
        try:
            try:
                came = source.read()
            finally:
                with self._lock:
                    self._free += 1
                    self._moved_at = time.monotonic()
            if came:
                source.take(came)
        finally:
            with self._lock:
                self._is_open = bool(came)
                self._is_read = False
                self._read_at = time.monotonic()

    def _run_begun(self) -> None:
        """Run what has begun, quick ones one after the other. Taking from a deque needs no lock."""
        begun = self._begun
        while begun and len(self._over) < TOGETHER_MAX:
            try:
                order = begun.popleft()
            except IndexError:  # another thread took the last one
                return
            self._moved_at = time.monotonic()
            if self._is_quick(order):
                self._run(order)
                continue
            with self._lock:
                self._free -= 1
                if self._free == 0 and (self._has_work or self._is_unread):
                    self._wake()
            try:
                self._go_on(order)
            finally:
                with self._lock:
                    self._free += 1

    def _end_over(self) -> None:
        if not self._over:  # before this thread rests or reads, it looks again under the lock
            return
        with self._lock:
            over, self._over = self._over, []
        if over:
            self._end(over)

    def _answer_refused(self) -> None:
        if not self._refused:
            return
        with self._lock:
            waited, self._refused = self._refused, []
        self._tell(
            [(order, refused(order.call, _CANCELLED if order.cancel.is_set else _WAITED)) for order in waited]
        )

    def _taken(self) -> list[_Order]:
        arrived = self._arrived
        fresh: list[_Order] = []
        if not arrived:
            return fresh
        with self._lock:
            while arrived and len(fresh) < TOGETHER_MAX:
                fresh.append(arrived.popleft())
        return fresh

    def _rest(self, gate: threading.Lock) -> bool:
        """Wait until there is something to do. False: there has been nothing for long."""
        with self._lock:
            if self._has_work:
                return True
            self._free -= 1
            if self._is_closing:
                self._threads -= 1
                return False
            self._idle.append(gate)
        if gate.acquire(timeout=_IDLE_S):
            return True
        with self._lock:
            if gate in self._idle:
                self._idle.remove(gate)
                self._threads -= 1
                return False
        gate.acquire()  # woken in the very moment of giving up
        return True

    def _is_quick(self, order: _Order) -> bool:
        assert order.begun is not None
        if not order.begun.is_quick:
            return False
        return self._paces.get(_shown(order.call), 0.0) < _SLOW_S

    def _note_pace(self, order: _Order, took_s: float) -> None:
        name = _shown(order.call)
        pace = self._paces.get(name)
        if pace is None:
            if len(self._paces) >= _PACES_MAX:
                self._paces.clear()
            pace = 0.0
        is_first = pace < _SLOW_S / 2  # it may have been the machine that paused: once does not count
        pace += (took_s - pace) / 4
        self._paces[name] = min(pace, _SLOW_S * 0.9) if is_first else pace

    def _begin(self, orders: Sequence[_Order]) -> None:
        by_door: dict[str, list[_Order]] = {}
        for order in orders:
            by_door.setdefault(order.door, []).append(order)
        taken: list[_Order] = []
        for door, some in by_door.items():
            # A slow disk is no reason for another thread: what comes meanwhile shares the next sync.
            self._moved_at = self._read_at = time.monotonic() + _SYNC_S
            try:
                begun = self._engine.begin([(order.call, order.cancel) for order in some], door=door)
            except Exception as broken:  # noqa: BLE001 - the catch-all of this thread: nobody may wait for ever
                self._tell([(order, _broken(order.call, broken)) for order in some])
                continue
            for order, each in zip(some, begun, strict=True):
                order.begun = each
            taken += some
        self._moved_at = self._read_at = time.monotonic()
        with self._lock:
            self._begun.extend(taken)
        is_heard = self._events.listening > 0
        for order in taken:
            call = order.call
            if not is_heard and order.begun is not None and order.begun.is_quick:
                continue  # it will have ended before anybody could come and look
            told = {"call_id": call.id, "tool": _shown(call), "caller": call.caller, "door": order.door}
            self._events.tell(EventKind.CALL_BEGUN, told)

    def _run(self, order: _Order) -> None:
        """A quick one; its end is recorded with others'."""
        assert order.begun is not None
        began = time.monotonic()
        try:
            if order.progress is None and self._spans is None:
                order.over = self._engine.run(order.begun)
            else:
                with self._accompanied(order):
                    order.over = self._engine.run(order.begun)
        except BaseException as broken:  # noqa: BLE001 - the catch-all of this thread: nobody may wait for ever
            order.over = self._engine.give_up(order.begun, _why_broken(broken))
        self._note_pace(order, time.monotonic() - began)
        with self._lock:
            self._over.append(order)

    def _end(self, orders: Sequence[_Order]) -> None:
        try:
            results = self._engine.end([order.over for order in orders if order.over is not None])
        except Exception as broken:  # noqa: BLE001 - as above
            results = [_broken(order.call, broken) for order in orders]
        self._tell(list(zip(orders, results, strict=True)))

    def _go_on(self, order: _Order) -> None:
        assert order.begun is not None
        began = time.monotonic()
        try:
            if order.progress is None and self._spans is None:
                result = self._crib.go_on(order.begun)
            else:
                with self._accompanied(order):
                    result = self._crib.go_on(order.begun)
        except BaseException as broken:  # noqa: BLE001 - an interrupt of the function's own making, too
            result = _broken(order.call, broken)  # whose end was recorded before it was raised
        if order.begun.is_quick:
            self._note_pace(order, time.monotonic() - began)
        self._tell([(order, result)])

    @contextmanager
    def _accompanied(self, order: _Order) -> Iterator[None]:
        """What runs inside is traced, and its progress told, where somebody wants that."""
        heard = PROGRESS.set(order.progress) if order.progress is not None else None
        try:
            if self._spans is None:
                yield
                return
            try:
                tool = self._crib.catalog.look(order.call.tool)
                order.span = self._spans.begin(order.call, tool, parent=order.trace)
                inside = order.span.current()
            except Exception:  # noqa: BLE001 - whoever traces must not keep a call from running
                _LOG.exception("%s cannot be traced", order.call.id)
                inside = nullcontext()
            with inside:
                yield
        finally:
            if heard is not None:
                PROGRESS.reset(heard)

    def _hand_over(self, ended: Sequence[tuple[_Order, ToolResult]]) -> None:
        for order, result in ended:
            try:
                order.done(result)
            except Exception:  # noqa: BLE001 - one door's mistake must not keep the others waiting
                _LOG.exception("the answer to %s could not be handed over", order.call.id)
        if self._source is not None:
            self._source.flush()

    def _tell(self, ended: Sequence[tuple[_Order, ToolResult]]) -> None:
        for order, result in ended:
            if _is_question(result):  # first: whoever hears of it may answer it at once
                self._note_end(order, result)
        self._hand_over(ended)
        for order, result in ended:
            # Not by the collector: a door's exchange lies in cycles, and their pipes would fill the table of
            # descriptors long before it comes by.
            order.cancel.close()
            if not _is_question(result):
                self._note_end(order, result)
        with self._settled:  # last: whoever waits until all is over finds everybody told
            for order, _result in ended:
                self._let_go(order)
            while (following := self._waiting.next(self._running.may, self._has_place)) is not None:
                self._admit(following)
            if not self._under_way:
                self._settled.notify_all()

    def _note_end(self, order: _Order, result: ToolResult) -> None:
        """Tell those who count, listen and trace."""
        error = result.error
        kind = None if error is None else error.kind.value
        try:
            self.counted(order.door, result.key, kind, result.spent.duration_ms)
            self._events.tell(EventKind.CALL_ENDED, _ended(order, result, kind))
            if error is not None and error.kind is Kind.NEEDS_APPROVAL:
                self._events.tell(EventKind.APPROVAL_ASKED, _asked(order, error, result.key))
            if order.span is not None:
                order.span.end(result)
        except Exception:  # noqa: BLE001 - it is over all the same
            _LOG.exception("the end of %s could not be told", order.call.id)


def _is_question(result: ToolResult) -> bool:
    return result.error is not None and result.error.kind is Kind.NEEDS_APPROVAL


def _started(work: Callable[[], None]) -> bool:
    try:
        threading.Thread(target=work, name="call", daemon=True).start()
    except RuntimeError as error:  # none is to be had now: whoever looks after us tries again
        _LOG.warning("calls wait for a thread: %s", error)
        return False
    return True


def _shown(call: ToolCall) -> str:
    """Attack: calls of tools whose names have megabytes, hundreds of which would be kept in what is told and
    remembered of them."""
    return call.tool[:_NAME_CHARS_MAX]


def _ended(order: _Order, result: ToolResult, kind: str | None) -> Callable[[], JsonObject]:
    """What is told of a call that is over; of the result itself nothing is kept."""
    call, door = order.call, order.door
    call_id, tool, caller, key = result.call_id, _shown(call), call.caller, result.key
    duration_ms, isolation = result.spent.duration_ms, result.isolation

    def told() -> JsonObject:
        return {
            "call_id": call_id,
            "tool": tool,
            "key": key,
            "caller": caller,
            "door": door,
            "ok": kind is None,
            "kind": kind,
            "duration_ms": duration_ms,
            "isolation": list(isolation),
        }

    return told


def _asked(order: _Order, error: ToolError, key: str) -> JsonObject:
    details = error.details if isinstance(error.details, dict) else {}
    return {
        "id": details.get("approval_id"),
        "key": key,
        "caller": order.call.caller,
        "call_id": order.call.id,
        "question": error.message,
    }


def _broken(call: ToolCall, broken: BaseException) -> ToolResult:
    """The result of a call that ended in an exception."""
    return ToolResult(call_id=call.id, error=_why_broken(broken))


def _why_broken(broken: BaseException) -> ToolError:
    """As the engine records it."""
    if isinstance(broken, KeyboardInterrupt):
        return ToolError(kind=Kind.CANCELLED, message="interrupted")
    return ToolError(kind=Kind.INTERNAL, message=f"the call broke: {type(broken).__name__}")


def refused(call: ToolCall, error: ToolError) -> ToolResult:
    """The result of a call that was not taken, or waited in vain: nothing was run, so nothing is recorded."""
    return ToolResult(call_id=call.id, error=error)


_LATER: Final[JsonObject] = {"again_s": AGAIN_S}
_NO_ROOM: Final = ToolError(
    kind=Kind.UNAVAILABLE,
    message="too many calls of this caller are under way",
    hint=f"call again in {AGAIN_S:.0f} s, or when some of them have ended",
    details=_LATER,
)
_WAITED: Final = ToolError(
    kind=Kind.UNAVAILABLE,
    message="the call waited too long for its turn, and was not begun",
    hint=f"call again in {AGAIN_S:.0f} s, or when some of them have ended",
    details=_LATER,
)
_CANCELLED: Final = ToolError(kind=Kind.CANCELLED, message="cancelled while it waited for its turn")
_STOPPING: Final = ToolError(
    kind=Kind.UNAVAILABLE, message="the server is stopping, and takes no more calls", hint="call again later"
)
