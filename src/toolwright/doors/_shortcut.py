"""The short way of a request: answered by a plain function, without an ASGI task, where a door can.

uvicorn makes a task, an event and three coroutines for each request, which costs more than a quick call does.
Here a POST to one path is read whole and handed to ``take`` first; whatever that declines, and whatever takes
long, goes the usual way, as if nobody had looked. Nothing is decided here: the entrance's checks are part of
``take``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from toolwright.doors._gathering import Gathering
from toolwright.doors._limits import Guarded, Limits, Watch
from toolwright.doors._web import Head, Place, Scope, Way

_OF_CONNECTION: Final = frozenset(("client", "server", "peer", "state"))
BYTES_MAX: Final = 64 * 1024
"""Of a body that is read before anybody has looked at the head."""
_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Passage:
    """One request on the short way (``_web.Way``). To the connection it looks like a cycle of uvicorn's."""

    __slots__ = (
        "_body",
        "_connection",
        "_head",
        "_scope",
        "disconnected",
        "keep_alive",
        "left",
        "response_complete",
    )

    def __init__(self, connection: Direct, head: Head, body: bytes, *, keep_alive: bool) -> None:
        self._connection = connection
        self._head = head
        self._scope: Scope | None = None
        self._body = body
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False
        self.left: Callable[[], object] | None = None
        """Told when the client has gone before its answer came."""

    @property
    def scope(self) -> Scope:
        if self._scope is None:
            place = self._connection.place
            self._scope = {
                **self._head.scope,
                "client": place.client,
                "server": place.server,
                "peer": place.peer,
                "state": {},
            }
        return self._scope

    @property
    def message_event(self) -> Passage:
        """What a connection sets when it is lost. Not kept: what holds itself is left to the collector."""
        return self

    def set(self) -> None:
        """The connection was lost."""
        if not self.response_complete and self.left is not None:
            self.left()

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """``headers`` are whole lines, without the length."""
        if self.disconnected or self.response_complete:
            return
        self.response_complete = True
        close = b"" if self.keep_alive else b"connection: close\r\n"
        head = b"%bcontent-length: %d\r\n%b%b\r\n" % (_LINES[status], len(body), headers, close)
        connection = self._connection
        connection.told(status)  # first: whoever has the answer may ask how many there were
        connection.gathering.write_now(head + body)
        connection.answered(self)

    def go_the_usual_way(self) -> None:
        """Have the app answer after all. On the event loop."""
        if not self.disconnected and not self.response_complete:
            self._connection.go_the_usual_way(self, self.scope, self._body)


Take = Callable[[Head, Place, bytes, Way], bool]
"""Whether the request was taken, and will be answered through the way."""


class Direct(Guarded):
    """A connection that offers some requests to a plain function first."""

    path: bytes
    path_text: str
    take: Take
    gathering: Gathering
    place: Place
    told: Callable[[int], object]
    held: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.gathering = Gathering(transport)
        super().connection_made(self.gathering)  # type: ignore[arg-type]
        self.place = Place(self.client, self.server, self.peer)

    def on_headers_complete(self) -> None:
        cycle: Any = self.cycle
        parser = self.parser
        if (
            self.url != self.path
            or self.expect_100_continue
            or (cycle is not None and not cycle.response_complete)  # answers go out in the order of requests
            or parser.get_method() != b"POST"
            or parser.should_upgrade()
        ):
            super().on_headers_complete()
            return
        self.hold()
        self.held = b""

    def on_body(self, body: bytes) -> None:
        held = self.held
        if held is None:
            super().on_body(body)
            return
        self.held = held + body if held else body
        if len(self.held) > BYTES_MAX:
            self._release()

    def on_message_complete(self) -> None:
        body = self.held
        if body is None:
            super().on_message_complete()
            return
        parser, scope = self.parser, cast(Scope, self.scope)
        version = parser.get_http_version()
        scope["method"], scope["path"], scope["raw_path"] = "POST", self.path_text, self.path
        scope["query_string"] = b""
        if version != "1.1":
            scope["http_version"] = version
        head = Head({name: scope[name] for name in scope if name not in _OF_CONNECTION})
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self.is_ending
        way = Passage(self, head, body, keep_alive=keep_alive)
        earlier, self.cycle = self.cycle, way  # type: ignore[assignment]
        self.busy()
        if self.take(head, self.place, body, way):
            self.held = None
            return
        self.cycle = earlier
        self._release()
        super().on_message_complete()

    def give_up(self, status: int, reason: str) -> None:
        # Held, it was handed to nobody who would answer it. A server that stops says no more, as to bodies
        # that others read.
        self.is_answered = self.is_answered or (self.held is not None and not self.is_ending)
        super().give_up(status, reason)

    def _release(self) -> None:
        body, self.held = self.held, None
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def answered(self, way: Passage) -> None:
        self.server_state.total_requests += 1
        self.rest()
        if not way.keep_alive:
            self.transport.close()
        elif self.pipeline:
            super().on_response_complete()

    def go_the_usual_way(self, way: Passage, scope: Scope, body: bytes) -> None:
        cycle = RequestResponseCycle(
            scope=scope,  # type: ignore[arg-type]
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=way.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.body += body
        cycle.more_body = False
        cycle.message_event.set()
        current: Any = self.cycle
        if current is way:  # else a later request of the same connection waits for this one already
            self.cycle = cycle
        self._start_asgi_task(cycle, self.app)


def direct(limits: Limits, path: bytes, take: Take, told: Callable[[int], object]) -> type[Direct]:
    """The protocol of one server whose requests to ``path`` are offered to ``take``; ``told`` hears the
    status of each that was answered so."""
    members: dict[str, Any] = {
        "limits": limits,
        "watch": Watch(limits),
        "path": path,
        "path_text": path.decode("ascii"),
        "take": staticmethod(take),
        "told": staticmethod(told),
    }
    return type("DirectConnection", (Direct,), members)
