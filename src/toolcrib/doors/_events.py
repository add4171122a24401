"""What happens in a server, told to whoever listens: calls, approvals, reloads.

Not a record: the journal is. A listener that reads too slowly loses its place, never anybody's time, and is
told that it missed something.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from typing import Final

from toolcrib.jsontext import JsonObject

KEPT_MAX: Final = 512
"""Events that one who comes back may still be told."""
BEHIND_MAX: Final = 1024
LISTENERS_MAX: Final = 512
"""Those who listen are counted by caller before (``_streams.py``)."""


class EventKind(StrEnum):
    CALL_BEGUN = "call.begun"
    CALL_ENDED = "call.ended"
    APPROVAL_ASKED = "approval.asked"
    APPROVAL_ANSWERED = "approval.answered"
    RELOADED = "reloaded"
    RELOAD_FAILED = "reload.failed"
    MISSED = "missed"


class Event:
    """One thing that happened. Numbers only grow. What is told may be put together when somebody asks."""

    __slots__ = ("_told", "kind", "number")

    def __init__(self, number: int, kind: EventKind, told: JsonObject | Callable[[], JsonObject]) -> None:
        self.number = number
        self.kind = kind
        self._told = told

    @property
    def data(self) -> JsonObject:
        if callable(self._told):
            self._told = self._told()
        return self._told


class TooManyListeners(Exception):
    """Attack: streams without end, until there is no room for anybody else's."""


class Events:
    """One for all doors of a host. Told from any thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._lock = threading.Lock()
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, deque[Event], asyncio.Event]] = {}
        self._hooks: list[Callable[[Event], object]] = []
        self._is_closed = False

    def hook(self, told: Callable[[Event], object]) -> None:
        """Have every event told at once, in the thread where it happens: for what must not wait."""
        self._hooks.append(told)

    @property
    def recent(self) -> tuple[Event, ...]:
        """The last events, the oldest first."""
        return tuple(self._kept)

    @property
    def latest(self) -> int:
        """The number of the last event; 0: there was none."""
        recent = self.recent
        return recent[-1].number if recent else 0

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def tell(self, kind: EventKind, told: JsonObject | Callable[[], JsonObject]) -> None:
        """``told``: what is known of it, or what puts that together; nothing that is large is kept for it."""
        event = Event(next(self._numbers), kind, told)
        self._kept.append(event)
        for hear in self._hooks:
            hear(event)
        if not self._listeners:
            return
        with self._lock:
            listeners = list(self._listeners.values())
        for loop, queue, woken in listeners:
            queue.append(event)
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:  # its loop has ended, and it with it
                continue

    def close(self) -> None:
        """Let every stream end once it has told what there was to tell: the house is closing."""
        with self._lock:
            self._is_closed = True
            listeners = list(self._listeners.values())
        for loop, _queue, woken in listeners:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:  # its loop has ended, and it with it
                continue

    async def listen(self, after: int | None = None) -> AsyncGenerator[Event, None]:
        """The events from now on, or from after the one of this number, as far as they are kept. Raises
        TooManyListeners."""
        queue: deque[Event] = deque(maxlen=BEHIND_MAX)
        woken, key = asyncio.Event(), object()
        with self._lock:
            if len(self._listeners) >= LISTENERS_MAX:
                raise TooManyListeners
            self._listeners[key] = (asyncio.get_running_loop(), queue, woken)
        # A copy, made in one step: others tell meanwhile, and an iteration would break.
        earlier = [event for event in tuple(self._kept) if after is not None and event.number > after]
        last = after
        try:
            for event in earlier:
                last = event.number
                yield event
            while True:
                while queue:
                    event = queue.popleft()
                    if last is not None and event.number <= last:
                        continue
                    if last is not None and event.number > last + 1:
                        yield Event(event.number - 1, EventKind.MISSED, {"count": event.number - last - 1})
                    last = event.number
                    yield event
                woken.clear()
                if not queue:
                    if self._is_closed:
                        return
                    await woken.wait()
        finally:
            with self._lock:
                self._listeners.pop(key, None)
