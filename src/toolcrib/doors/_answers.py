"""Calls that wait for a person's answer: one look at the store for all of them, and no thread for each.

An answer that is given here is heard at once. One that another program gives is found by looking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from toolcrib.app import Crib
from toolcrib.doors._events import Event, EventKind, Events
from toolcrib.errors import ToolcribError
from toolcrib.model import ApprovalState

LOOK_EVERY_S: Final = 1.0
"""How often it is looked whether another program has answered."""


class Answers:
    """One for all calls of a door; used on one event loop."""

    def __init__(self, crib: Crib, events: Events) -> None:
        self._crib = crib
        self._events = events
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        events.hook(self._happened)

    @contextmanager
    def heard(self, approval_id: str, after: int) -> Iterator[asyncio.Event]:
        """Set when an approval no longer waits. ``after``: the number of an event before it was asked for."""
        self._loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        self._waiting.setdefault(approval_id, set()).add(heard)
        if self._looking is None:
            self._looking = self._loop.create_task(self._look())
        if any(event.number > after and _answered(event) == approval_id for event in self._events.recent):
            heard.set()
        try:
            yield heard
        finally:
            waiting = self._waiting[approval_id]
            waiting.discard(heard)
            if not waiting:
                del self._waiting[approval_id]

    def _happened(self, event: Event) -> None:
        """In whatever thread it happens."""
        approval_id, loop = _answered(event), self._loop
        if approval_id is not None and loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the calls with it
                loop.call_soon_threadsafe(self._tell, approval_id)

    def _tell(self, approval_id: str) -> None:
        for heard in self._waiting.get(approval_id, ()):
            heard.set()

    async def _look(self) -> None:
        """Look for all of them. Attack: many calls that wait, each reading the store for itself."""
        try:
            while self._waiting:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    found = await asyncio.to_thread(self._crib.approvals)
                except ToolcribError:  # it cannot be read now; each call waits as long as it may
                    continue
                still = {one.id for one in found if one.state is ApprovalState.WAITING}
                for approval_id in self._waiting.keys() - still:
                    self._tell(approval_id)
        finally:
            self._looking = None


def _answered(event: Event) -> str | None:
    """The id of the approval that an event says is answered."""
    found = event.data.get("id") if event.kind is EventKind.APPROVAL_ANSWERED else None
    return found if isinstance(found, str) else None
