"""The MCP server over HTTP: an ASGI app of its own for ``/mcp``, in both eras of the protocol.

A call is read, run by the crew and answered without a task, a model class or a framework in between. An
answer is JSON; it becomes a stream of events only where something must be sent before the end (progress, a
question to a person) or the end is long in coming.

Who may come in was decided before (``_entrance.py``). No table of sessions is kept: see ``_mcp_seals.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import Struct

from toolcrib import mcp_wire as wire
from toolcrib.app import Crib
from toolcrib.doors._crew import Crew, Mailbox, refused
from toolcrib.doors._entrance import SAFE_HEADERS, Guest, Right
from toolcrib.doors._mcp_desk import CHANGES, DOOR, MAY_NOT_CALL, Desk, Question, unread
from toolcrib.doors._mcp_seals import Session
from toolcrib.doors._offers import Offers
from toolcrib.doors._shares import Shares, Turns, share_of
from toolcrib.doors._web import (
    BODY_BYTES_MAX,
    BODY_TIMEOUT_S,
    JSON,
    BodyTooLarge,
    BodyTooSlow,
    ClientLeft,
    Receive,
    Scope,
    Send,
    left,
    read_body,
)
from toolcrib.doors._web import Message as Part
from toolcrib.errors import Kind, ToolcribError
from toolcrib.functions import Report
from toolcrib.jsontext import JsonObject
from toolcrib.mcp_wire import OLDER, Fault, Id, Message, Shape
from toolcrib.model import ToolCall, ToolResult
from toolcrib.sandbox import Cancel

T = TypeVar("T")

SESSION_HEADER: Final = b"mcp-session-id"
PING_S: Final = 15.0
"""So long a stream may be silent; and so long an answer may take before it becomes a stream."""
APPROVAL_WAIT_S: Final = 600.0
STREAMS_MAX: Final = 256
STREAMS_PER_GUEST_MAX: Final = 16
UNDER_WAY_MAX: Final = 8192
ASKED_MAX: Final = 256
"""Questions that wait for a client; of further calls it is only said that they wait."""
LONG_S: Final = 0.1
"""A call that takes longer gets somebody who watches whether its client is still there."""
_LOOK_S: Final = 2.0
"""So often a stream looks whether something was switched off or on."""
_EVENTS_WAITING_MAX: Final = 256
"""Attack: a tool that reports progress without end, for a client that does not read."""
_OLDER_HEADERS: Final = frozenset(version.encode() for version in OLDER)
_NOSNIFF: Final = SAFE_HEADERS[0]
_STREAM_HEADERS: Final = [
    _NOSNIFF,
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_PING: Final = b": ping\r\n\r\n"
_NO_SUCH_SESSION: Final = Fault(wire.INVALID_REQUEST, "Session not found")
_NOT_ACCEPTABLE: Final = Fault(
    wire.INVALID_REQUEST, "Not Acceptable: the client must accept application/json and text/event-stream"
)
_NOT_JSON: Final = Fault(wire.INVALID_REQUEST, "Unsupported Media Type: must be application/json")
_CANCELLED: Final = Fault(wire.REQUEST_CANCELLED, "Request cancelled")


class McpDoor:
    """An ASGI app. ``scope["guest"]`` is who asks."""

    def __init__(
        self,
        crib: Crib,
        crew: Crew,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        body_timeout_s: float = BODY_TIMEOUT_S,
        approval_wait_s: float = APPROVAL_WAIT_S,
        ping_s: float = PING_S,
        long_s: float = LONG_S,
        offers: Offers | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._crib = crib
        self._crew = crew
        self._body_bytes_max = body_bytes_max
        self._body_timeout_s = body_timeout_s
        self._approval_wait_s = approval_wait_s
        self._ping_s = ping_s
        self._long_s = long_s
        self._turns = turns or Turns()
        self.desk = Desk(crib, offers)
        self._under_way: dict[tuple[str, Id], _Exchange] = {}
        """What a notification of the older era may cancel."""
        self._waiting: dict[_Exchange, None] = {}
        self._ticks = 0
        self._is_ticking = False
        self._has_waited = False
        self._asked: dict[str, _Exchange] = {}
        """By the unguessable id of a question to the client."""
        self._asking = Shares(ASKED_MAX)
        self._streams: set[_Stream] = set()
        """Who listens for changes."""
        self._open = Shares(STREAMS_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        crib.watch(self._told)

    def _wait(self, exchange: _Exchange) -> None:
        """Have an exchange woken if it takes long, and found by whoever cancels it."""
        session, number = exchange.session, exchange.post.message.id
        if session is not None and number is not None and len(self._under_way) < UNDER_WAY_MAX:
            exchange.place = (session.id, number)
            self._under_way[exchange.place] = exchange
        exchange.tick = self._ticks
        self._waiting[exchange] = None
        self._has_waited = True
        if not self._is_ticking:
            self._tick_on()

    def forget(self, exchange: _Exchange) -> None:
        self._waiting.pop(exchange, None)
        place = exchange.place
        if place is not None and self._under_way.get(place) is exchange:
            self._under_way.pop(place, None)

    # -- every request --------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"]:
            case "POST":
                await self._post(scope, receive, send)
            case "GET":
                await self._get(scope, receive, send)
            case "DELETE":
                await self._delete(scope, send)
            case _:
                await _send(send, 405, b"", [(b"allow", b"GET, POST, DELETE")])

    async def close(self) -> None:
        """End the streams, each as its era ends it, and leave what people are asked waiting."""
        for exchange in tuple(self._asked.values()):
            assert exchange.question is not None
            exchange.end((200, exchange.question.otherwise))
        for stream in tuple(self._streams):
            stream.end()

    # -- POST -----------------------------------------------------------------------------------------------

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        pairs = scope["headers"]
        headers: dict[bytes, bytes] = dict(pairs)
        said = headers.get(wire.VERSION_HEADER)
        newer = said is not None and said not in _OLDER_HEADERS
        if wire.accepts(headers.get(b"accept", b"")) != (True, True):
            return await _refuse(send, 406, _NOT_ACCEPTABLE)
        if not wire.is_json(headers.get(b"content-type", b"")):
            return await _refuse(send, 415, _NOT_JSON)
        try:
            body = await self._body(receive)
        except BodyTooLarge:
            return await _refuse(send, 413, Fault(wire.INVALID_REQUEST, "the message is too long"))
        except BodyTooSlow:
            return await _refuse(send, 408, Fault(wire.INVALID_REQUEST, "the message did not come in time"))
        except ClientLeft:
            return None
        message = wire.read(body)
        if type(message) is Fault:
            return await _refuse(send, message.status, message)
        assert type(message) is Message
        if len(headers) != len(pairs) and (twice := _twice(pairs)) is not None:
            # Attack: whoever reads the first and whoever reads the last of them understand two requests.
            fault = Fault(wire.HEADER_MISMATCH, f"the {twice} header appears more than once")
            return await _refuse(send, 400, fault, message.id)
        post = _Post(receive, send, scope["guest"], message, headers)
        try:
            return await (self._post_newer(post) if newer else self._post_older(post))
        except ToolcribError as error:
            return await _refuse(send, 200, unread(error), message.id)

    async def _body(self, receive: Receive) -> bytes:
        """The message, which nearly always comes in one piece: then nobody needs to look at the clock. That
        it comes at all is watched where connections are (``_limits.py``)."""
        part = await receive()
        if part["type"] == "http.disconnect":
            raise ClientLeft
        body: bytes = part.get("body", b"")
        if len(body) > self._body_bytes_max:
            raise BodyTooLarge
        if not part.get("more_body", False):
            return body
        bytes_max = self._body_bytes_max - len(body)
        return body + await read_body(receive, bytes_max, timeout_s=self._body_timeout_s)

    async def _post_newer(self, post: _Post) -> None:
        message, send = post.message, post.send
        if message.shape is Shape.NOTIFICATION:
            # Nothing in this era is told so: a client cancels by leaving.
            fault = wire.unsupported(post.headers[wire.VERSION_HEADER].decode("latin-1"))
            return await (_empty(send) if fault is None else _refuse(send, fault.status, fault))
        if message.shape is Shape.RESPONSE:
            fault = Fault(wire.INVALID_REQUEST, "the body must be one request or notification")
            return await _refuse(send, 400, fault)
        fault = wire.check_envelope(message, post.headers)
        if fault is not None:
            return await _refuse(send, fault.status, fault, message.id)
        match message.method:
            case "tools/call":
                elicits = wire.elicits(wire.meta(message.params)[wire.CLIENT_KEY])
                return await self._call(post, None, newer=True, elicits=elicits)
            case "tools/list":
                return await self._list(post, newer=True)
            case "server/discover":
                found = await self._work(post.guest, self.desk.discovered, post.guest)
                return await _send(send, 200, wire.answer(message.id, found))
            case "subscriptions/listen":
                return await self._listen(post)
        return await self._respond(post, newer=True)

    async def _post_older(self, post: _Post) -> None:
        message, send = post.message, post.send
        session: Session | None = None
        named = post.headers.get(SESSION_HEADER)
        if named is not None and message.method != "initialize":
            session = self.desk.seals.session(named.decode("latin-1"), post.guest)
            if session is None:
                return await _refuse(send, 404, _NO_SUCH_SESSION)
        if message.shape is not Shape.REQUEST:
            if message.shape is Shape.RESPONSE:
                self._heard(post, session)
            elif message.method == "notifications/cancelled" and session is not None:
                self._cancel(session, message.params.get("requestId"))
            return await _empty(send)
        match message.method:
            case "tools/call":
                elicits = session is not None and session.elicits
                return await self._call(post, session, newer=False, elicits=elicits)
            case "tools/list":
                return await self._list(post, newer=False)
            case "ping":
                return await _send(send, 200, wire.answer(message.id, b"{}"))
            case "initialize":
                return await self._initialize(post)
        return await self._respond(post, newer=False)

    async def _initialize(self, post: _Post) -> None:
        found = await self._work(post.guest, self.desk.initialized, post.message.params, post.guest)
        if type(found) is Fault:
            return await _refuse(post.send, 200, found, post.message.id)
        assert type(found) is tuple
        result, version, elicits = found
        session = self.desk.seals.new_session(post.guest, version=version, elicits=elicits)
        head = [(SESSION_HEADER, session.id.encode())]
        return await _send(post.send, 200, wire.answer(post.message.id, result), head)

    async def _list(self, post: _Post, *, newer: bool) -> None:
        fault = self.desk.check_cursor(post.message.params)
        if fault is not None:
            return await _refuse(post.send, fault.status if newer else 200, fault, post.message.id)
        listing = self.desk.fresh(post.guest)
        if listing is None:
            listing = await self._work(post.guest, self.desk.listing, post.guest)
        found = self.desk.listed(post.message.id, listing, newer=newer)
        await post.send(_begun(200, found.size_bytes))
        for piece in found.pieces:  # each is waited for, so that a slow client has one of them in our memory
            await _more(post.send, piece)
        return await _more(post.send, b"", end=True)

    async def _respond(self, post: _Post, *, newer: bool) -> None:
        """Answer any other method."""
        message, guest = post.message, post.guest
        found = await self._work(guest, self.desk.respond, message.method, message.params, guest, newer)
        if type(found) is Fault:
            return await _refuse(post.send, found.status if newer else 200, found, message.id)
        assert type(found) is bytes
        return await _send(post.send, 200, wire.answer(message.id, found))

    def _work(self, guest: Guest, work: Callable[..., T], *given: object) -> Coroutine[Any, Any, T]:
        """Run something that takes time in a thread, in its caller's turn."""
        return self._turns.run(share_of(guest), work, *given)

    # -- calls ----------------------------------------------------------------------------------------------

    async def _call(self, post: _Post, session: Session | None, *, newer: bool, elicits: bool) -> None:
        guest, message, send = post.guest, post.message, post.send
        params, number = message.params, message.id
        assert number is not None
        if Right.CALL not in guest.rights:
            return await _refuse(send, 403, MAY_NOT_CALL, number)
        listing = self.desk.known(guest)
        if listing is None:
            listing = await self._work(guest, self.desk.listing, guest)
        asks = elicits and self.desk.may_ask(guest)
        if newer and (params.get("requestState") is not None or params.get("inputResponses") is not None):
            fault = await self._work(guest, self.desk.answered, guest, params)
            if fault is not None:
                return await _refuse(send, fault.status, fault, number)
            asks = False  # it was asked: a person who put it off is not asked again at once
        call = self.desk.call(guest, params, listing.keys)
        if type(call) is Fault:
            return await _refuse(send, call.status if newer else 200, call, number)
        assert type(call) is ToolCall
        exchange = _Exchange(self, self._crew.mailbox(), post, call, newer=newer, asks=asks, session=session)
        token = wire.meta(params).get("progressToken")
        report = exchange.reporter(token) if wire.is_id(token) else None
        self._wait(exchange)
        trace = wire.trace(params, post.headers)
        self._order(exchange, report, trace)
        return await self._answer(exchange)

    def _order(self, exchange: _Exchange, report: Report | None, trace: str) -> None:
        error = self._crew.order(
            exchange.call,
            door=DOOR,
            done=exchange.done,
            cancel=exchange.cancel,
            progress=report,
            trace=trace,
            share=share_of(exchange.post.guest),
        )
        if error is not None:
            exchange.done(refused(exchange.call, error))

    async def _answer(self, exchange: _Exchange) -> None:
        """Wait for a call that is under way, and answer it."""
        try:
            await exchange.waiter
            answer = exchange.answer
            if type(answer) is tuple and not exchange.events:
                return await _send(exchange.post.send, answer[0], answer[1])
            return await self._stream(exchange)
        except asyncio.CancelledError:  # the server stops, or nobody is left to answer
            exchange.cancel.set()
            raise
        finally:
            self.forget(exchange)

    def _tick(self) -> None:
        """Wake the exchanges that have waited since the last tick: one timer for all of them."""
        for exchange in [*self._waiting]:
            if exchange.tick < self._ticks:
                exchange.wake()
        self._ticks += 1
        self._is_ticking = False
        # While calls come one after the other it goes on, so that none of them pays for starting it.
        if self._has_waited or self._waiting:
            self._has_waited = False
            self._tick_on()

    def _tick_on(self) -> None:
        self._is_ticking = True
        asyncio.get_running_loop().call_later(self._long_s, self._tick)

    async def _stream(self, exchange: _Exchange) -> None:
        """Answer a call that takes long, tells of its progress, or has something to ask."""
        self._waiting.pop(exchange, None)
        loop, send = exchange.loop, exchange.post.send
        gone = asyncio.ensure_future(left(exchange.post.receive))
        until = loop.time() + self._ping_s
        asked_until: float | None = None
        asked, began, is_asking = "", False, False
        share = share_of(exchange.post.guest)
        try:
            while True:
                if exchange.answer is None and not exchange.events and exchange.said is None:
                    exchange.waiter = loop.create_future()
                    ends = until if asked_until is None else min(until, asked_until)
                    await asyncio.wait(
                        (exchange.waiter, gone),
                        timeout=max(ends - loop.time(), 0),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                if gone.done():
                    if exchange.newer:  # the older era says that leaving is not cancelling
                        exchange.cancel.set()
                    return None
                is_late = loop.time() >= until
                answer = exchange.answer
                if type(answer) is tuple and not began and not exchange.events:
                    return await _send(send, answer[0], answer[1])
                if not began and (exchange.events or is_late or type(answer) is Question):
                    began = True
                    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                while exchange.events:
                    await _more(send, wire.event(exchange.events.popleft()))
                    is_late, until = False, loop.time() + self._ping_s
                if is_late:
                    await _more(send, _PING)
                    until = loop.time() + self._ping_s
                if type(answer) is tuple:
                    return await _more(send, wire.event(answer[1]), end=True)
                if type(answer) is Question and not is_asking and not self._asking.may(share):
                    exchange.answer = (200, answer.otherwise)
                elif type(answer) is Question:
                    if not is_asking:
                        is_asking = True
                        self._asking.take(share)
                    exchange.question, exchange.answer = answer, None
                    asked, asked_until = secrets.token_hex(16), loop.time() + self._approval_wait_s
                    self._asked[asked] = exchange
                    exchange.events.append(wire.request(asked, "elicitation/create", answer.params))
                elif exchange.said is not None or (asked_until is not None and loop.time() >= asked_until):
                    self._asked.pop(asked, None)
                    said, asked_until, exchange.said = exchange.said, None, None
                    await self._go_on(exchange, said)
        finally:
            self._asked.pop(asked, None)
            if is_asking:
                self._asking.give_back(share)
            gone.cancel()

    async def _go_on(self, exchange: _Exchange, said: JsonObject | None) -> None:
        """A person has answered, or nobody did: call again, or say that it waits."""
        question, guest = exchange.question, exchange.post.guest
        assert question is not None
        heard = said is not None and await self._work(
            guest, self.desk.decide, guest, question.approval_id, said.get("result")
        )
        if not heard:
            exchange.answer = (200, question.otherwise)
            return
        exchange.asks = False
        listing = await self._work(guest, self.desk.listing, guest)
        if exchange.is_cancelled:  # while it was kept what the person said: that was answered already
            return
        call = self.desk.call(guest, exchange.post.message.params, listing.keys)
        assert type(call) is ToolCall
        exchange.call, exchange.cancel = call, Cancel()  # an order closes the one that it was given
        params = exchange.post.message.params
        token, trace = wire.meta(params).get("progressToken"), wire.trace(params, exchange.post.headers)
        report = exchange.reporter(token) if wire.is_id(token) else None
        self._order(exchange, report, trace)

    def _heard(self, post: _Post, session: Session | None) -> None:
        """The client's response to a question of ours.

        Attack: somebody else answers for the person. The id cannot be guessed, counts once, and only from the
        session and the caller that were asked.
        """
        number = post.message.id
        exchange = self._asked.get(number) if type(number) is str else None
        if exchange is None or session is None or exchange.session is None:
            return
        if exchange.session.id != session.id or exchange.post.guest != post.guest:
            return
        del self._asked[str(number)]
        exchange.said = post.message.params
        exchange.wake()

    def _cancel(self, session: Session, number: object) -> None:
        exchange = self._under_way.get((session.id, number)) if wire.is_id(number) else None
        if exchange is not None:
            exchange.is_cancelled = True
            exchange.cancel.set()
            if exchange.question is not None:
                exchange.end((200, wire.failure(exchange.post.message.id, _CANCELLED)))

    # -- what changes ---------------------------------------------------------------------------------------

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The older era's stream for what is told without being asked."""
        headers = dict(scope["headers"])
        said = headers.get(wire.VERSION_HEADER)
        if said is not None and said not in _OLDER_HEADERS:
            return await _send(send, 405, b"", [(b"allow", b"POST")])
        if not wire.accepts(headers.get(b"accept", b""))[1]:
            return await _refuse(send, 406, _NOT_ACCEPTABLE)
        named, guest = headers.get(SESSION_HEADER), scope["guest"]
        if named is None:
            return await _refuse(send, 400, Fault(wire.INVALID_REQUEST, "Bad Request: Missing session ID"))
        if self.desk.seals.session(named.decode("latin-1"), guest) is None:
            return await _refuse(send, 404, _NO_SUCH_SESSION)
        told = [wire.event(wire.notification(method)) for method in CHANGES]
        return await self._tell_changes(_Stream(told), guest, receive, send)

    async def _listen(self, post: _Post) -> None:
        """The newer era's: one request whose response is the stream."""
        number = post.message.id
        found = self.desk.subscribed(number, post.message.params)
        if type(found) is Fault:
            return await _refuse(post.send, 400, found, number)
        assert type(found) is tuple
        kept, acknowledged = found
        told = [wire.event(self.desk.changed(number, method)) for method in kept]
        stream = _Stream(told, wire.event(acknowledged), wire.event(self.desk.unsubscribed(number)))
        return await self._tell_changes(stream, post.guest, post.receive, post.send)

    async def _tell_changes(self, stream: _Stream, guest: Guest, receive: Receive, send: Send) -> None:
        # Attack: streams without end, until there is no room for anybody else's.
        share = share_of(guest)
        if not self._open.may(share) or self._open.held(share) >= STREAMS_PER_GUEST_MAX:
            fault = Fault(wire.INTERNAL_ERROR, "too many streams of this caller are open; close one of them")
            return await _refuse(send, 429, fault)
        loop = self._loop = asyncio.get_running_loop()
        self._open.take(share)
        self._streams.add(stream)
        version = self._crib.version
        gone = asyncio.ensure_future(left(receive))
        until = loop.time() + self._ping_s
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            await _more(send, stream.first or _PING)
            while not stream.is_over and not gone.done():
                stream.waiter = loop.create_future()
                await asyncio.wait(
                    (stream.waiter, gone), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                now = self._crib.version
                if (stream.has_changed or now != version) and not gone.done():
                    stream.has_changed, version = False, now
                    for told in stream.told:
                        await _more(send, told)
                elif loop.time() >= until:
                    await _more(send, _PING)
                    until = loop.time() + self._ping_s
            if not gone.done():
                await _more(send, stream.last, end=True)
        finally:
            gone.cancel()
            self._streams.discard(stream)
            self._open.give_back(share)

    def _told(self) -> None:
        """The catalog was replaced; in whatever thread did it."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the streams with it
                loop.call_soon_threadsafe(self._tell_all)

    def _tell_all(self) -> None:
        for stream in self._streams:
            stream.change()

    # -- DELETE ---------------------------------------------------------------------------------------------

    async def _delete(self, scope: Scope, send: Send) -> None:
        """Nothing is kept for a session, so there is nothing to end."""
        named = dict(scope["headers"]).get(SESSION_HEADER)
        if named is not None and self.desk.seals.session(named.decode("latin-1"), scope["guest"]) is None:
            return await _refuse(send, 404, _NO_SUCH_SESSION)
        return await _send(send, 405, b"", [(b"allow", b"GET, POST")])


class _Post(Struct, frozen=True):
    """One POST, read."""

    receive: Receive
    send: Send
    guest: Guest
    message: Message
    headers: dict[bytes, bytes]


class _Exchange:
    """A call on its way, between the loop that serves its client and the thread that runs it."""

    place: tuple[str, Id] | None = None
    answer: tuple[int, bytes] | Question | None = None
    """The status and the response; or what a person has to be asked first."""
    question: Question | None = None
    said: JsonObject | None = None
    is_cancelled: bool = False
    tick: int = 0
    """When it began to wait."""

    def __init__(
        self,
        door: McpDoor,
        mailbox: Mailbox,
        post: _Post,
        call: ToolCall,
        *,
        newer: bool,
        asks: bool,
        session: Session | None,
    ) -> None:
        self.door = door
        self.mailbox = mailbox
        self.post = post
        self.call = call
        self.newer = newer
        self.asks = asks
        self.session = session
        self.cancel = Cancel()
        self.waiter: asyncio.Future[None] = self.loop.create_future()
        self.events: deque[bytes] = deque()
        """What is to be sent before the answer; the call's thread adds to it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.mailbox.loop

    # -- in the thread that runs the call -------------------------------------------------------------------

    def done(self, result: ToolResult) -> None:
        try:
            answer = self._answer(result)
        except Exception as broken:  # noqa: BLE001 - the one catch-all of this thread's boundary
            fault = Fault(wire.INTERNAL_ERROR, f"the answer cannot be written: {type(broken).__name__}")
            answer = (200, wire.failure(self.post.message.id, fault))
        self.mailbox.post(self.end, answer)

    def _answer(self, result: ToolResult) -> tuple[int, bytes] | Question:
        number = self.post.message.id
        assert number is not None
        error = result.error
        if self.is_cancelled:
            return 200, wire.failure(number, _CANCELLED)
        written = self.door.desk.write(number, self.call, result, newer=self.newer)
        if self.asks and error is not None and error.kind is Kind.NEEDS_APPROVAL:
            question = self.door.desk.question(result, written[1])
            if question is not None and self.newer:
                asked = self.door.desk.asked(self.post.guest, self.post.message.params, question)
                return 200, wire.answer(number, asked)
            if question is not None:
                return question
        return written

    def reporter(self, token: Id) -> Report:
        def report(done: float, total: float | None, message: str) -> None:
            params: JsonObject = {"progressToken": token, "progress": done}
            if total is not None:
                params["total"] = total
            if message:
                params["message"] = message
            if len(self.events) < _EVENTS_WAITING_MAX:
                self.events.append(wire.notification("notifications/progress", params))
                self.mailbox.post(_Exchange.wake, self)

        return report

    # -- on the loop ----------------------------------------------------------------------------------------

    def end(self, answer: tuple[int, bytes] | Question) -> None:
        if self.answer is None:
            self.answer = answer
        self.wake()

    def wake(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)


class _Stream:
    """Somebody who listens for changes."""

    def __init__(self, told: list[bytes], first: bytes = b"", last: bytes = b"") -> None:
        self.told = told
        self.first = first
        self.last = last
        self.waiter: asyncio.Future[None] | None = None
        self.has_changed = False
        self.is_over = False

    def change(self) -> None:
        self.has_changed = True
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def _twice(pairs: list[tuple[bytes, bytes]]) -> str | None:
    counted = Counter(name for name, _ in pairs if name in wire.ROUTING or name == SESSION_HEADER)
    return next((name.decode() for name, count in counted.items() if count > 1), None)


async def _refuse(send: Send, status: int, fault: Fault, number: Id | None = None) -> None:
    await _send(send, status, wire.failure(number, fault))


async def _empty(send: Send) -> None:
    """Taken; there is nothing to say."""
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _send(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await send(_begun(status, len(body), headers))
    await send({"type": "http.response.body", "body": body})


def _begun(status: int, size_bytes: int, headers: list[tuple[bytes, bytes]] | None = None) -> Part:
    own = [(b"content-type", JSON), (b"content-length", b"%d" % size_bytes), _NOSNIFF]
    return {"type": "http.response.start", "status": status, "headers": own + headers if headers else own}


def _more(send: Send, body: bytes, *, end: bool = False) -> Coroutine[Any, Any, None]:
    return send({"type": "http.response.body", "body": body, "more_body": not end})  # type: ignore[return-value]
