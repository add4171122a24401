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
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolwright.sandbox import Cancel

if TYPE_CHECKING:
    import asyncio

_STEP_S: Final = 0.05
_GRACE_S: Final = 2.0
"""How long one that was cancelled may take to come to its end."""

CALLER: Final[ContextVar[asyncio.AbstractEventLoop | None]] = ContextVar("toolwright_caller", default=None)
"""The loop that awaits the call which runs here."""


class Late(Exception):
    """It was cancelled at its time limit."""

    def __init__(self, *, stopped: bool) -> None:
        super().__init__()
        self.stopped = stopped
        """False: it goes on all the same."""


class GivenUp(Exception):
    """It was cancelled because its caller gave up."""

    def __init__(self, *, stopped: bool) -> None:
        super().__init__()
        self.stopped = stopped


def is_awaitable(value: object) -> bool:
    return hasattr(type(value), "__await__")


def running() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs in this thread, if one does."""
    loop: asyncio.AbstractEventLoop | None = import_module("asyncio")._get_running_loop()
    return loop


class Loops:
    """Awaits for threads that have no loop. Used from many threads; ``close`` ends our own loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._host = 0

    def finish(self, value: Any, limit_s: float, cancel: Cancel) -> object:
        """Await a value. Raises what it raises, ``Late`` or ``GivenUp``."""
        asyncio = import_module("asyncio")
        running = _Running(asyncio, value, limit_s)
        loop = self._loop(asyncio)
        asyncio.run_coroutine_threadsafe(running.run(), loop)  # takes this thread's context variables along
        deadline = time.monotonic() + limit_s + _GRACE_S
        try:
            while not running.over.wait(_STEP_S):
                if cancel.is_set:
                    raise GivenUp(stopped=running.cancel(loop))
                if time.monotonic() > deadline or not loop.is_running():
                    raise Late(stopped=False)
        except KeyboardInterrupt:
            running.cancel(loop)
            raise
        return running.outcome()

    def close(self) -> None:
        with self._lock:
            loop, thread, self._own = self._own, self._thread, None
        if loop is not None and thread is not None and self._host == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_GRACE_S)

    def _loop(self, asyncio: Any) -> asyncio.AbstractEventLoop:
        caller = CALLER.get()
        if caller is not None and caller.is_running() and asyncio._get_running_loop() is not caller:
            return caller
        with self._lock:
            if self._own is None or self._host != os.getpid():  # a fork has the loop and not its thread
                self._own, self._host = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(
                    target=_serve, args=(asyncio, self._own), name="toolwright-loop", daemon=True
                )
                self._thread.start()
            return self._own


def _serve(asyncio: Any, loop: Any) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_GRACE_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class _Running:
    """One awaited value."""

    def __init__(self, asyncio: Any, value: Any, limit_s: float) -> None:
        self.over = threading.Event()
        self._asyncio = asyncio
        self._value = value
        self._limit_s = limit_s
        self._task: Any = None
        self._given_up = False
        self._result: object = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        self._task = self._asyncio.current_task()
        if self._given_up:  # before it began
            self._task.cancel()
        limit = self._asyncio.timeout(self._limit_s)
        try:
            async with limit:
                self._result = await self._value
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            late = isinstance(error, TimeoutError) and limit.expired()
            cancelled = isinstance(error, self._asyncio.CancelledError)
            if late:
                self._error = Late(stopped=True)
            elif cancelled and self._given_up:
                self._error = GivenUp(stopped=True)
            elif cancelled:
                self._error = RuntimeError("it was cancelled, and not by its caller")
            else:
                self._error = error
        finally:
            self.over.set()

    def cancel(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Cancel it; whether it came to its end."""
        self._given_up = True
        try:
            if self._task is not None:
                loop.call_soon_threadsafe(self._task.cancel)
        except RuntimeError:  # the loop is closed, and everything on it over
            return True
        return self.over.wait(_GRACE_S)

    def outcome(self) -> object:
        if self._error is not None:
            raise self._error
        return self._result
