"""The threads that run the calls of a served workshop, for doors that live on an event loop.

Calls that arrive while others are being recorded share one sync of the journal. A quick call (a function of
the host's) is run by whoever is awake; whatever may wait gets a thread of its own at once. The crew decides
nothing: order, record and permit are the engine's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from toolwright.app import Workshop
from toolwright.doors._events import EventKind, Events
from toolwright.engine import Begun
from toolwright.errors import Kind
from toolwright.functions import PROGRESS, Report
from toolwright.jsontext import JsonObject
from toolwright.model import ToolCall, ToolError, ToolResult
from toolwright.records import dataclass
from toolwright.sandbox import Cancel

THREADS_MAX: Final = 128
WAITING_MAX: Final = 4096
"""Calls that have not begun; more are refused at once instead of being forgotten late."""
_STUCK_S: Final = 0.002
_LOOK_S: Final = 0.003
_IDLE_S: Final = 30.0
Done = Callable[[ToolResult], None]


class Span(Protocol):
    """One call, as whoever traces sees it."""

    def end(self, result: ToolResult) -> None: ...


class Spans(Protocol):
    """Whoever traces calls. ``parent`` is the caller's W3C traceparent; empty: there is none."""

    def around(self, call: ToolCall, *, parent: str) -> AbstractContextManager[Span]: ...


@dataclass(slots=True, eq=False)
class _Order:
    call: ToolCall
    cancel: Cancel
    done: Done
    door: str
    progress: Report | None = None
    begun: Begun | None = None
    trace: str = ""


class Crew:
    """Runs calls in threads that come and go with the work."""

    def __init__(
        self,
        workshop: Workshop,
        events: Events,
        *,
        threads_max: int = THREADS_MAX,
        spans: Spans | None = None,
    ) -> None:
        self._workshop = workshop
        self._events = events
        self._threads_max = threads_max
        self._spans = spans
        self._lock = threading.Lock()
        self._arrived: deque[_Order] = deque()
        self._begun: deque[_Order] = deque()
        self._idle: deque[threading.Lock] = deque()
        """A gate for each thread that rests; opening it wakes the thread."""
        self._threads = 0
        self._free = 0
        """Threads that are awake and in no call that may wait."""
        self._moved_at = 0.0
        self._under_way: set[_Order] = set()
        self._over = threading.Condition(self._lock)
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_attended = False
        self._ordered = 0

    @property
    def under_way(self) -> int:
        """How many calls were taken and are not over."""
        return len(self._under_way)

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
    ) -> bool:
        """Have a call run; ``done`` is told the result, in the thread that ran it, and ``cancel``, which must
        be this call's alone, is closed then. False: there is too much
        to do already, or the house is closing, and nothing was or will be done. ``trace``: the traceparent
        that came with the call."""
        order = _Order(call, cancel, done, door, progress, trace=trace)
        with self._lock:
            if self._is_closing or len(self._arrived) >= WAITING_MAX:
                return False
            self._under_way.add(order)
            self._arrived.append(order)
            if self._free == 0:
                self._wake()
        self._ordered += 1
        if not self._is_attended and self._loop is not None:
            self._is_attended = True
            self._loop.call_later(_LOOK_S, self._attend, self._ordered)
        return True

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``look`` called on this loop while anything is under way. From then on, calls are ordered in
        the loop's own thread."""
        self._loop = loop

    def _attend(self, ordered: int) -> None:
        self.look()
        # While calls come one after the other it stays, so that none of them pays for starting it.
        if self._loop is not None and (self._under_way or self._ordered != ordered):
            self._loop.call_later(_LOOK_S, self._attend, self._ordered)
        else:
            self._is_attended = False

    async def call(
        self,
        call: ToolCall,
        *,
        door: str,
        progress: Report | None = None,
        cancel: Cancel | None = None,
        trace: str = "",
    ) -> ToolResult:
        """Run a call. Cancelling the task kills the tool and waits for its record; ``progress`` is told in
        the call's thread."""
        loop, stop = asyncio.get_running_loop(), cancel or Cancel()
        future: asyncio.Future[ToolResult] = loop.create_future()

        def settle(result: ToolResult) -> None:
            if not future.done():
                future.set_result(result)

        def done(result: ToolResult) -> None:
            try:
                loop.call_soon_threadsafe(settle, result)
            except RuntimeError:  # the loop has ended: nobody waits any more
                return

        if not self.order(call, door=door, done=done, cancel=stop, progress=progress, trace=trace):
            return refused(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.shield(asyncio.wait([future]))
            raise

    def look(self) -> None:
        """Wake another thread where calls wait and nobody moves them on: one that seemed quick is not.
        Called every few milliseconds by whoever serves, while anything is under way."""
        with self._lock:
            if (self._arrived or self._begun) and time.monotonic() - self._moved_at > _STUCK_S:
                self._wake()

    def drain(self, timeout_s: float) -> bool:
        """Take nothing more and wait until all is over; what is not by then is cancelled and waited for.
        Whether everything ended by itself."""
        with self._over:
            self._is_closing = True
            by_itself = self._over.wait_for(lambda: not self._under_way, timeout_s)
            for order in tuple(self._under_way):
                order.cancel.set()
            self._over.wait_for(lambda: not self._under_way, timeout_s)
            while self._idle:
                self._idle.pop().release()
        return by_itself

    # -- in the threads -------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Under the lock: one more thread, where there may be one."""
        self._moved_at = time.monotonic()
        if self._idle:
            self._free += 1
            self._idle.pop().release()
        elif self._threads < self._threads_max:
            self._threads += 1
            self._free += 1
            threading.Thread(target=self._work, name=f"call {self._threads}", daemon=True).start()

    def _work(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        while self._take(gate):
            pass

    def _take(self, gate: threading.Lock) -> bool:
        """Do the next thing there is to do. False: there has been nothing for long."""
        lock = self._lock
        with lock:
            self._moved_at = time.monotonic()
            if self._begun:
                order = self._begun.popleft()
                assert order.begun is not None
                is_quick = order.begun.is_quick
                if not is_quick:
                    self._free -= 1
                    if self._free == 0 and (self._begun or self._arrived):
                        self._wake()
                fresh: list[_Order] = []
            elif self._arrived:
                fresh = list(self._arrived)
                self._arrived.clear()
            else:
                self._free -= 1
                if self._is_closing:
                    self._threads -= 1
                    return False
                self._idle.append(gate)
                fresh = []
                order = None
        if fresh:
            self._begin(fresh)
            return True
        if order is None:
            if gate.acquire(timeout=_IDLE_S):
                return True
            with lock:
                if gate in self._idle:
                    self._idle.remove(gate)
                    self._threads -= 1
                    return False
            gate.acquire()  # woken in the very moment of giving up
            return True
        self._go_on(order)
        if not is_quick:
            with lock:
                self._free += 1
        return True

    def _begin(self, orders: list[_Order]) -> None:
        by_door: dict[str, list[_Order]] = {}
        for order in orders:
            by_door.setdefault(order.door, []).append(order)
        for door, some in by_door.items():
            begun = self._workshop.begin([(order.call, order.cancel) for order in some], door=door)
            for order, each in zip(some, begun, strict=True):
                order.begun = each
        with self._lock:
            self._begun.extend(orders)

    def _go_on(self, order: _Order) -> None:
        assert order.begun is not None
        call = order.call
        self._events.tell(
            EventKind.CALL_BEGUN,
            {"call_id": call.id, "tool": call.tool, "caller": call.caller, "door": order.door},
        )
        if self._spans is None:
            result = self._run(order, order.begun)
        else:
            with self._spans.around(call, parent=order.trace) as span:
                result = self._run(order, order.begun)
                span.end(result)
        try:
            order.done(result)
            self._events.tell(EventKind.CALL_ENDED, _ended(order, result))
        finally:  # whoever waits until all is over finds everybody told
            # Not by the collector: a door's exchange lies in cycles, and their pipes would fill the table of
            # descriptors long before it comes by.
            order.cancel.close()
            with self._over:
                self._under_way.discard(order)
                if not self._under_way:
                    self._over.notify_all()

    def _run(self, order: _Order, begun: Begun) -> ToolResult:
        if order.progress is None:
            return self._workshop.go_on(begun)
        heard = PROGRESS.set(order.progress)
        try:
            return self._workshop.go_on(begun)
        finally:
            PROGRESS.reset(heard)


def _ended(order: _Order, result: ToolResult) -> JsonObject:
    error = result.error
    return {
        "call_id": result.call_id,
        "tool": order.call.tool,
        "key": result.key,
        "caller": order.call.caller,
        "door": order.door,
        "ok": error is None,
        "kind": None if error is None else error.kind.value,
        "duration_ms": result.spent.duration_ms,
        "isolation": list(result.isolation),
    }


def refused(call: ToolCall) -> ToolResult:
    """The result of a call that was not taken: nothing was run, so nothing is recorded."""
    error = ToolError(
        kind=Kind.UNAVAILABLE,
        message="too many calls are waiting, or the server is stopping",
        hint="try later",
    )
    return ToolResult(call_id=call.id, error=error)
