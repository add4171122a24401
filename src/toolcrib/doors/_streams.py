"""What happens in a server, as streams of server-sent events: who may hear what, and since when.

What is told comes from ``_events.py``, which knows nobody; who listens was let in by ``_entrance.py``.
Nothing here is a record: the journal is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

from toolcrib import jsontext
from toolcrib.app import Crib
from toolcrib.doors import _reach
from toolcrib.doors._entrance import SAFE_HEADERS
from toolcrib.doors._events import Event, EventKind, Events, TooManyListeners
from toolcrib.doors._routes import Wrong
from toolcrib.doors._shares import Shares, share_of
from toolcrib.doors._web import NO_STORE, ClientLeft, Headers, Receive, Send, unless_left
from toolcrib.errors import UnknownTool
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Guest, Right

STREAM_S_MAX: Final = 3600.0
"""A stream ends after so long; whoever reads it comes back and says where it was."""
STREAMS_MAX: Final = 256
STREAMS_PER_GUEST_MAX: Final = 16
KEEP_ALIVE_S: Final = 15.0
STALLED_S: Final = 60.0
HEADERS: Final[Headers] = (
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
    *NO_STORE,
)


class Streams:
    """The streams of one server."""

    def __init__(self, crib: Crib, events: Events) -> None:
        self._crib = crib
        self._events = events
        self._epoch = f"{time.time_ns():x}"
        """Tells this server's events from those of one before it, whose numbers began at 1 as well."""
        self._open = Shares(STREAMS_MAX)

    async def tell(self, guest: Guest, heard: str | None, receive: Receive, send: Send) -> None:
        """Answer with what happens, until the guest leaves or the house closes. ``heard``: the id of the last
        event that the guest has. Raises Wrong where there is no room for another stream."""
        share = share_of(guest)
        if not self._open.may(share) or self._open.held(share) >= STREAMS_PER_GUEST_MAX:
            # Attack: streams of one caller, or of a few, until there is no room for others.
            raise Wrong(429, "too many streams of this caller are open", "close one of them", again_s=60)
        after = self._last_heard(heard)
        self._open.take(share)
        try:
            async with aclosing(self._told(guest, after)) as told:
                opening = await anext(told)
                start = {"type": "http.response.start", "status": 200, "headers": [*HEADERS, *SAFE_HEADERS]}
                await send(start)
                await send({"type": "http.response.body", "body": opening, "more_body": True})
                await unless_left(receive, _sent(send, told))
        except TooManyListeners:
            raise Wrong(503, "too many streams are open", "try again later", again_s=60) from None
        finally:
            self._open.give_back(share)

    def _last_heard(self, sent: str | None) -> int | None:
        """The number of the last event that a client has; None: it comes for the first time."""
        if sent is None:
            return None
        epoch, _, number = sent.partition("-")
        return min(int(number), self._events.latest) if epoch == self._epoch else 0

    async def _told(self, guest: Guest, after: int | None) -> AsyncGenerator[bytes, None]:
        """Events as bytes; something at least every few seconds, for proxies that close what is quiet."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STREAM_S_MAX
        async with aclosing(self._events.listen(after)) as events:
            coming = asyncio.ensure_future(anext(events))
            # The listener is there once the generator runs: before anything is said.
            await asyncio.sleep(0)
            if coming.done() and isinstance(coming.exception(), TooManyListeners):
                raise TooManyListeners
            recent = self._events.recent
            opening = b"retry: 2000\n: welcome\n\n"
            if after is not None and recent and recent[0].number > after + 1:
                opening += self._written(Event(recent[0].number - 1, EventKind.MISSED, {"count": None}))
            yield opening
            try:
                while loop.time() < until:
                    await asyncio.wait((coming,), timeout=KEEP_ALIVE_S)
                    if not coming.done():
                        yield b": still here\n\n"
                        continue
                    try:
                        event = coming.result()
                    except StopAsyncIteration:  # the house is closing
                        return
                    coming = asyncio.ensure_future(anext(events))
                    if self._may_hear(guest, event):
                        yield self._written(self._as_heard(guest, event))
            finally:
                coming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming

    def _written(self, event: Event) -> bytes:
        data = jsontext.compact(event.data).decode("utf-8")
        return f"id: {self._epoch}-{event.number}\nevent: {event.kind.value}\ndata: {data}\n\n".encode()

    def _may_hear(self, guest: Guest, event: Event) -> bool:
        """Reloads anybody; calls their caller, and who may read the records; questions who may answer.
        No guest hears of calls and questions beyond its reach.

        Attack: a token of a name that another one had before, with a wider reach.
        """
        data, kind = event.data, event.kind
        if kind in (EventKind.CALL_BEGUN, EventKind.CALL_ENDED):
            may_hear = data.get("caller") == guest.name or Right.AUDIT in guest.rights
        elif kind in (EventKind.APPROVAL_ASKED, EventKind.APPROVAL_ANSWERED):
            may_hear = Right.APPROVE in guest.rights
        else:
            return True
        if not may_hear or guest.reach is None:
            return may_hear
        return self._is_within(guest, data.get("key") or data.get("tool"))

    def _as_heard(self, guest: Guest, event: Event) -> Event:
        """Attack: a caller learns from reloads which tools there are beyond its reach, or where our files
        lie. Of what was removed nothing can be looked up any more."""
        if event.kind is EventKind.RELOAD_FAILED and Right.ADMIN not in guest.rights:
            return Event(event.number, event.kind, {})
        if event.kind is not EventKind.RELOADED or guest.reach is None:
            return event
        heard: JsonObject = {"version": event.data.get("version")}
        for part in ("added", "changed"):
            names = event.data.get(part)
            heard[part] = [
                name for name in (names if isinstance(names, list) else ()) if self._is_within(guest, name)
            ]
        return Event(event.number, event.kind, heard)

    def _is_within(self, guest: Guest, name: JsonValue) -> bool:
        with suppress(UnknownTool):
            return isinstance(name, str) and bool(_reach.find(self._crib, name, guest.reach))
        return False


async def _sent(send: Send, told: AsyncGenerator[bytes, None]) -> None:
    async for part in told:
        # Attack: a client that reads nothing and keeps its place.
        try:
            async with asyncio.timeout(STALLED_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            raise ClientLeft from None
    await send({"type": "http.response.body", "body": b""})
