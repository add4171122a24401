"""Where coroutines of the host's own process run: on the caller's event loop, else on one of ours.

A call made with ``call_async`` runs its coroutine on the loop that awaits it, so that what belongs to that
loop (clients, pools, locks) works. Any other call uses one loop in a thread of its own, the same for all
calls, so that such things work there too. A coroutine is cancelled at its time limit or when its caller gives
up, and what awaits it does not wait for one that refuses to stop. Nothing here knows tools or results.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolcrib.sandbox import Cancel

if TYPE_CHECKING:
    import asyncio

_STEP_S: Final = 0.05
_GRACE_S: Final = 2.0
"""How long one that was cancelled may take to come to its end."""

CALLER: Final[ContextVar[asyncio.AbstractEventLoop | None]] = ContextVar("toolcrib_caller", default=None)
"""The loop that awaits the call which runs here."""


ON_ITS_OWN: Final = "it did not stop when it was cancelled, and still runs"
_WHEN_ITS_LOOP_RUNS: Final = "it is cancelled, and stops when its event loop runs again"


def late_hint(took_s: float, *, is_async: bool) -> str:
    """What is said of one that came to its end after its time limit."""
    why = "a function that is not async cannot be stopped; look at Context.cancelled in it"
    if is_async:
        why = "it went on when it was cancelled; let asyncio.CancelledError through"
    return f"it ran to its end, which took {took_s:.1f} s: {why}, or allow it more time"


class Late(Exception):
    """It was cancelled at its time limit."""

    def __init__(self, *, stopped: bool, begun: bool = True) -> None:
        super().__init__()
        self.stopped = stopped
        """False: it goes on all the same."""
        self.note = "" if stopped else ON_ITS_OWN
        self.hint = None if begun else _BLOCKED


class GivenUp(Exception):
    """It was cancelled because its caller gave up, or because everything ends."""

    def __init__(self, *, stopped: bool, note: str = "") -> None:
        super().__init__()
        self.note = note or ("" if stopped else ON_ITS_OWN)
        """What is to be said of it besides."""


class Unfit(Exception):
    """There is no loop that could bring it to its end."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


_BLOCKED: Final = (
    "it never began: another function blocks the event loop; let that one await, or do its work in "
    "asyncio.to_thread"
)


def _stopped() -> Unfit:
    return Unfit(
        "the function stopped the event loop, or another one on the same loop did",
        "a function must neither stop the loop that runs it nor leave the program from a task of its own",
    )


_PLAIN: Final = frozenset({dict, list, str, int, bool, float, type(None)})


def is_awaitable(value: object) -> bool:
    kind = type(value)
    return kind not in _PLAIN and hasattr(kind, "__await__")  # a name that is not there takes long to find


def running() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs in this thread, if one does."""
    loop: asyncio.AbstractEventLoop | None = import_module("asyncio")._get_running_loop()
    return loop


class Loops:
    """Awaits for threads that have no loop. Used from many threads; ``close`` cancels what runs, wherever it
    does, and ends our own loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._host = 0
        self._running: set[_Running] = set()
        self._is_closed = False

    def finish(self, value: Any, limit_s: float, cancel: Cancel) -> object:
        """Await a value. Raises what it raises, ``Late``, ``GivenUp`` or ``Unfit``."""
        asyncio = import_module("asyncio")
        try:
            running = self._begin(asyncio, value, limit_s)
        except BaseException:
            _drop(value)
            raise
        deadline = time.monotonic() + limit_s + _GRACE_S
        try:
            while not running.over.wait(_STEP_S):
                if cancel.is_set:
                    raise GivenUp(stopped=running.cancel())
                if time.monotonic() > deadline:
                    begun = running.begun
                    running.give_up()
                    raise Late(stopped=not begun, begun=begun)
                if not running.loop.is_running() and running.loop is not self._own:
                    raise _stopped()
        except KeyboardInterrupt:
            running.cancel()
            raise
        finally:
            with self._lock:
                self._running.discard(running)
        return running.outcome()

    def close(self) -> None:
        with self._lock:
            loop, thread, self._own = self._own, self._thread, None
            self._is_closed = True
            left = [*self._running] if self._host in (0, os.getpid()) else []
        for one in left:
            one.give_up()
        here = running() if left else None
        deadline = time.monotonic() + _GRACE_S
        for one in left:
            if one.loop is here:
                # This thread would wait for itself; and whoever waits for the answer must write down how the
                # call ended before the journal closes.
                one.let_go()
            else:
                one.over.wait(max(deadline - time.monotonic(), 0.0))
        if loop is not None and thread is not None and self._host == os.getpid():
            with suppress(RuntimeError):  # a function has ended it
                loop.call_soon_threadsafe(loop.stop)
            if thread is not threading.current_thread():
                thread.join(_GRACE_S)

    def _begin(self, asyncio: Any, value: Any, limit_s: float) -> _Running:
        with self._lock:
            if self._is_closed:
                raise GivenUp(stopped=True)
            loop = self._loop(asyncio)
            one = _Running(asyncio, loop, value, limit_s)
            self._running.add(one)
        work = one.run()
        try:
            told = asyncio.run_coroutine_threadsafe(work, loop)  # takes this thread's context along
        except RuntimeError:  # it was closed just now
            work.close()
            with self._lock:
                self._running.discard(one)
            raise _stopped() from None
        told.add_done_callback(lambda _told: one.drop_unbegun())
        return one

    def _loop(self, asyncio: Any) -> asyncio.AbstractEventLoop:
        caller, here = CALLER.get(), asyncio._get_running_loop()
        if caller is not None and caller.is_running() and here is not caller:
            return caller
        is_ours = self._host == os.getpid()  # a fork has the loop and not its thread
        if self._own is None or self._thread is None or not is_ours or not self._thread.is_alive():
            self._own, self._host = asyncio.new_event_loop(), os.getpid()
            self._thread = threading.Thread(
                target=self._serve, args=(asyncio, self._own), name="toolcrib-loop", daemon=True
            )
            self._thread.start()
        elif here is self._own:
            raise Unfit(
                "an async function waits for another one, and blocks the event loop that both need",
                "await crib.call_async(…) in async functions",
            )
        assert self._own is not None
        return self._own

    def _serve(self, asyncio: Any, loop: Any) -> None:
        asyncio.set_event_loop(loop)
        try:
            with suppress(SystemExit, KeyboardInterrupt):  # of a task that a function began
                loop.run_forever()
            with self._lock:
                if self._own is loop:  # nobody asked for that: the next call gets a new one
                    self._own = None
                ended = [one for one in self._running if one.loop is loop]
            for one in ended:
                one.is_orphaned = True
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):
                loop.run_until_complete(
                    asyncio.sleep(0)
                )  # what was handed over becomes a task, or never does
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):
                if left:
                    loop.run_until_complete(asyncio.wait(left, timeout=_GRACE_S))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            with self._lock:
                ended = [one for one in self._running if one.loop is loop]
            for one in ended:
                one.abandon()


def _drop(value: Any) -> None:
    """Let go of what was not awaited and never will be."""
    if hasattr(value, "close"):
        value.close()


class _Running:
    """One awaited value."""

    def __init__(self, asyncio: Any, loop: asyncio.AbstractEventLoop, value: Any, limit_s: float) -> None:
        self.loop = loop
        self.over = threading.Event()
        self.begun = False
        self.is_orphaned = False
        """Its loop was stopped under it."""
        self._asyncio = asyncio
        self._value = value
        self._limit_s = limit_s
        self._task: Any = None
        self._given_up = False
        self._is_let_go = False
        self._result: object = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        self._task = self._asyncio.current_task()
        is_too_late = self._given_up
        if is_too_late:
            _drop(self._value)
            self._error = GivenUp(stopped=True)
            self.over.set()
            return
        self.begun = True
        limit = self._asyncio.timeout(self._limit_s)
        try:
            async with limit:
                self._result = await self._value
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            if self._is_let_go:
                return
            late = isinstance(error, TimeoutError) and limit.expired()
            cancelled = isinstance(error, self._asyncio.CancelledError)
            if late:
                self._error = Late(stopped=True)
            elif cancelled and self._given_up:
                self._error = GivenUp(stopped=True)
            elif cancelled and self.is_orphaned:
                self._error = _stopped()
            elif cancelled:
                self._error = RuntimeError("it was cancelled, and not by its caller")
            else:
                self._error = error
        finally:
            self.over.set()

    def give_up(self) -> None:
        """Cancel it; it comes to its end some time later, if ever."""
        self._given_up = True
        with suppress(RuntimeError):  # the loop is closed, and everything on it over
            if self._task is not None:
                self.loop.call_soon_threadsafe(self._task.cancel)

    def cancel(self) -> bool:
        """Cancel it; whether it came to its end."""
        self.give_up()
        return self.loop.is_closed() or self.over.wait(_GRACE_S) or not self.begun

    def let_go(self) -> None:
        """Nobody waits for it any more, though it has not come to its end yet."""
        if not self.over.is_set():
            self._error = GivenUp(stopped=False, note=_WHEN_ITS_LOOP_RUNS)
            self._is_let_go = True
            self.over.set()

    def drop_unbegun(self) -> None:
        """Its task is over; where that was cancelled before its first step, nobody awaited the value."""
        if not self.begun:
            _drop(self._value)

    def abandon(self) -> None:
        """Its loop is gone."""
        if not self.over.is_set():
            self._error = GivenUp(stopped=True) if self._given_up else _stopped()
            self.over.set()

    def outcome(self) -> object:
        if self._error is not None:
            raise self._error
        return self._result
