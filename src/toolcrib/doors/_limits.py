"""What one connection may take of a server, in time, bytes and number: the part of HTTP below a request.

uvicorn waits for ever for the head of a request, reads one of any length, and refuses everybody once there
are too many connections. Here each phase of a connection has a deadline, looked at once a second for all of
them together, so that a request pays two looks at the clock; and where there are too many connections, one
makes room: one without an accepted request, of the user, address or program that has most of them. What a
request asks for is no business of this file's.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolcrib.doors._peers import Peer, tell_apart

KEEP_ALIVE_S: Final = 75
"""A connection on which nothing comes is closed after this; longer than the minute that proxies keep one."""
UNREAD_BYTES_MAX: Final = 256 * 1024
"""Of a body that comes after the answer: with less, a client gets to read why it was refused."""
WAITING_MAX: Final = 512
"""Connections that the kernel keeps until they are accepted."""
ACCEPTED_AT_ONCE: Final = 16
"""Attack: hundreds of connections at once. asyncio would accept all of them before one makes room, and no
file descriptor would be left."""
PIPELINE_MAX: Final = 64
"""Requests that are read ahead on one connection of a server that stops."""


class Limits(Struct, frozen=True, kw_only=True):
    """Of each connection, and of all of them together."""

    head_s: float = 10.0
    """From the first byte of a request to the end of its head; and for the first byte of the first."""
    body_s: float = 60.0
    """From the first byte of a request to its last."""
    idle_s: float = KEEP_ALIVE_S + 5.0
    """Between requests, whatever comes meanwhile that is none."""
    stalled_s: float = 60.0
    """With an answer that the client does not read."""
    head_bytes_max: int = 64 * 1024
    connections_max: int = 1000
    look_every_s: float = 1.0


def connections_max() -> int:
    """As many connections as leave half of our file descriptors for everything else."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 4000 if allowed == resource.RLIM_INFINITY else max(16, min(4000, allowed // 2))


class Listening(socket.socket):
    """Where a server listens. While no file descriptor is left, whoever connects is turned away.

    Attack: calls and connections until there is none. asyncio would write a traceback for each failed try to
    accept, hundreds of them for each connection that waits, and leave it waiting.
    """

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self.turned_away: Callable[[], None] = _nothing
        """Called for each connection that was."""
        self._spare: int | None = None
        self._keep_spare()

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _SPENT:
                raise
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        try:
            super().accept()[0].close()
        except OSError as error:
            if error.errno in _SPENT:  # another thread was quicker: nobody is served by asking at once
                time.sleep(_SPENT_S)
        else:
            self.turned_away()
        self._keep_spare()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def listen(self, backlog: int = WAITING_MAX, /) -> None:
        """Let ``WAITING_MAX`` connections wait, however few are accepted at once."""
        super().listen(max(backlog, WAITING_MAX))

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _keep_spare(self) -> None:
        """One descriptor for this."""
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _nothing() -> None:
    pass


_SPENT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SPENT_S: Final = 0.01


def server_settings(limits: Limits | None = None, protocol: type[Guarded] | None = None) -> dict[str, Any]:
    """What ``uvicorn.Config`` is to be told so that the limits hold; ``protocol`` has them already."""
    return {
        "http": protocol or guarded(limits or Limits(connections_max=connections_max())),
        # Attack: a protocol that no check of ours sees.
        "ws": "none",
        "interface": "asgi3",
        "timeout_keep_alive": KEEP_ALIVE_S,
        # Attack: an address of the client's own choice. What a proxy says about others is believed nowhere.
        "proxy_headers": False,
        "server_header": False,
        "access_log": False,
    }


_LONG_HEAD: Final = "the head of the request is too long"
_READ_S: Final = 0.01
_BUSY: Final = 0
_IDLE: Final = 1
_HEAD: Final = 2
_BODY: Final = 3
_AT_ONCE: Final = 16
"""Which part of all connections makes room at once, at least."""
_LEFT: Final = select.POLLERR | select.POLLHUP | (select.POLLRDHUP if sys.platform == "linux" else 0)
"""The client has closed its end. Its request would not be answered: uvicorn ends such a connection."""


class Guarded(HttpToolsProtocol):
    """A connection whose phases have an end."""

    limits: Limits
    watch: Watch
    peer: Peer
    phase: int = _IDLE
    since: float = 0.0
    head_bytes: int = 0
    is_head_long: bool = False
    piece_bytes: int = 0
    """Of what is parsed now."""
    trailer_bytes: int = 0
    unread_bytes: int = 0
    is_answered: bool = True
    is_ending: bool = False
    """Whether the server stops: the last answer to what has come says that it is the last one."""
    is_spoilt: bool = False
    """Whether what came last is no good: nothing more is read, and the connection ends with the last answer
    to what came before."""
    stalled_at: float | None = None
    born: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.phase, self.since = _HEAD, self.loop.time()
        self.born = self.since
        self.peer = Peer(self.client, self.server)
        self.watch.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.held.discard(self)
        super().connection_lost(exc)
        # Attack: connections that end with a reset, each of which uvicorn would keep in memory until the time
        # for keeping it alive is over.
        self._end_keep_alive()
        # The last request knows the connection, and would keep it, with its buffers, for the collector.
        self.cycle = None  # type: ignore[assignment]

    def _end_keep_alive(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def data_received(self, data: bytes) -> None:
        self._end_keep_alive()
        while data and not self.is_spoilt and not self.transport.is_closing():
            # Attack: a head that is too long, and whole before anybody counts: it arrives in one read.
            room = self.limits.head_bytes_max - (self.head_bytes if self.phase == _HEAD else 0)
            self._take(data[:room])
            data = data[room:]

    def _take(self, data: bytes) -> None:
        """Parse a piece, which is no longer than the rest of a head may be."""
        self.piece_bytes = len(data)
        if self.phase != _HEAD:
            self.head_bytes = 0
        try:
            self._parse(data)
        except HttpParserError:
            if self.is_head_long:
                self.give_up(431, _LONG_HEAD)
            else:
                message = "Invalid HTTP request received."
                self.logger.warning(message)
                self.send_400_response(message)
        if self.phase == _HEAD:
            # Attack: a head without end, of which the parser keeps every byte.
            self.head_bytes += len(data)
            if self.head_bytes >= self.limits.head_bytes_max:
                self.give_up(431, _LONG_HEAD)
        elif self.phase == _BODY:
            self._count_body(len(data))

    def _count_body(self, size: int) -> None:
        if self.headers:
            # Attack: fields without end behind a chunked body: the parser keeps every byte.
            self.trailer_bytes += size
        if self.is_answered:
            # Attack: a gigabyte behind a request that was answered already, whoever refused it.
            self.unread_bytes += size
        if self.unread_bytes > UNREAD_BYTES_MAX or self.trailer_bytes > self.limits.head_bytes_max:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """Decline every offer to change to another protocol.

        Attack: a body that passes for the next request. Where a head has such an offer, the parser takes for
        the other protocol's whatever comes behind it. So the head is read once more, without the offer.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                lines = [b"%b: %b\r\n" % line for line in self.headers if line[0] != b"upgrade"]
                version = self.parser.get_http_version().encode("ascii")
                first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
                data = b"".join((first, *lines, b"\r\n", data[offer.args[0] :]))
            else:
                return

    def on_message_begin(self) -> None:
        self.phase, self.since = _HEAD, self.loop.time()
        self.unread_bytes = self.trailer_bytes = 0
        super().on_message_begin()
        scope: Any = self.scope
        scope["peer"] = self.peer

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > (
            self.limits.head_bytes_max
        ):
            # Attack: the same behind another request, where the byte at which it begins is not known.
            self.is_head_long = True
            raise ValueError(_LONG_HEAD)
        if self.url[:1] != b"/" and self.url != b"*":
            # Attack: a request line that names another host than the Host that is checked.
            raise ValueError("not a path")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("not a proxy")  # and what comes behind it is no request
        if self.parser.should_upgrade():
            return  # it is read once more
        before: Any = self.cycle
        super().on_headers_complete()
        self.phase, self.is_answered = _BODY, False
        if self.is_ending:
            self.cycle.keep_alive = False
            if self.pipeline and not getattr(before, "response_started", False):
                self._answer_both(before)
        # Attack: fields behind a chunked body, which no proxy has looked at, pass for headers.
        self.headers = []

    def _answer_both(self, before: Any) -> None:
        """The server stops, and a request has come behind another one that has told nobody that it is the
        last. Attack: requests without end, behind one that takes its time."""
        if self.loop.time() <= self.watch.until:
            before.keep_alive = True
            if len(self.pipeline) < PIPELINE_MAX:
                self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        # What is left of the piece may be the next head. Of that, only one byte surely is.
        self.head_bytes = 1 - self.piece_bytes
        # An answer may be over before the body is, where the body was not wanted.
        self.phase, self.since = (_IDLE, self.loop.time()) if self.is_answered else (_BUSY, 0.0)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.flow.write_paused:
            self.stalled_at = None
        self.is_answered = not self.pipeline
        if self.phase == _BUSY and not self.pipeline:
            self.phase, self.since = _IDLE, self.loop.time()
        if self.is_spoilt and not self.pipeline:
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        if self.stalled_at is None:
            self.stalled_at = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        # Attack: a long answer, sent in pieces, that is read a piece a minute and holds its connection for
        # hours. Its time runs until the client has all of it; a stream, which has no length, gets it anew.
        if not getattr(self.cycle, "expected_content_length", 0):
            self.stalled_at = None
        super().resume_writing()

    def end(self) -> None:
        """The server stops: the answer that is under way is the last one, or the next; where others wait
        behind it, the last of theirs."""
        self.is_ending = True
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        if self.pipeline:  # and perhaps more in the kernel, which is read now, and not when all is answered
            self.flow.resume_reading()

    def shutdown(self) -> None:
        """The server waits for nobody any more. uvicorn would close whatever has no answer under way: also
        where a request has come in part, or whole, and was not read yet."""
        self.end()
        if not self.is_answered or (self.phase == _HEAD and self.head_bytes):
            return  # it is closed after the answer, or when its time is over
        if self.phase != _BODY and self._has_come():
            self.loop.call_later(_READ_S, self.shutdown)  # by then it was read
        else:
            self.transport.close()

    def _has_come(self) -> bool:
        """Whether something lies in the kernel that nobody has read."""
        if self.transport.is_closing():
            return False
        looking = select.poll()
        looking.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(looking.poll(0))

    @property
    def is_dispensable(self) -> bool:
        """Whether no call or answer is lost with the connection."""
        return self.phase != _BUSY or self.transport.is_closing()

    def rank(self, is_readable: bool) -> int:
        """Return how much is lost if a connection without an accepted request ends: 0 nothing, 1 a request,
        2 a public answer."""
        if not self.is_dispensable:
            return 2
        return 1 if is_readable or self.head_bytes > 0 or self.phase == _BODY else 0

    def look(self, now: float) -> None:
        """End the connection where its time is over."""
        limits = self.limits
        # Attack: half a request that keeps a server from stopping, for longer than the calls under way may.
        is_late = now > self.watch.until
        if self.stalled_at is None and self.transport.is_closing():
            # Attack: the end of an answer that is never read, for which a connection that is closed waits as
            # long as its client likes. It is too little to be told of as stalled.
            self.stalled_at = now
        if self.stalled_at is not None and now - self.stalled_at > limits.stalled_s:
            # Attack: an answer that is never read, and stays in our memory.
            self.transport.abort()
        elif self.phase == _BUSY:
            return
        elif self.phase == _IDLE:
            # Attack: empty lines, which are no request but keep a connection from being idle.
            if is_late or now - self.since > limits.idle_s:
                self.transport.close()
        elif is_late or now - self.since > (limits.head_s if self.phase == _HEAD else limits.body_s):
            # Attack: a head or a body that comes one byte a minute, a thousand times over.
            self.give_up(408, "the request took too long to come")

    def send_400_response(self, msg: str) -> None:
        if self._spoil():
            return
        cycle: Any = self.cycle
        if self.phase == _BODY and not self.is_answered and getattr(cycle, "response_started", False):
            self.transport.close()  # it would be taken for a part of the answer that is under way
        else:
            super().send_400_response(msg)

    def give_up(self, status: int, reason: str) -> None:
        if self._spoil():
            return
        if self.is_answered and not self.transport.is_closing():
            body = reason.encode()
            head = (
                f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
            )
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _spoil(self) -> bool:
        """What came last is no good. Whether requests before it wait for their answers: what is said now
        would be taken for the first of these, and its call be cancelled."""
        cycle: Any = self.cycle
        if self.phase != _BODY:
            self.is_spoilt = cycle is not None and not cycle.response_complete
        elif self.pipeline:  # the newest of them is no good itself
            self.pipeline.popleft()
            self.is_spoilt = True
        if self.is_spoilt:
            self.phase, self.since = _BUSY, 0.0
        return self.is_spoilt


class Watch:
    """Looks at all connections of one server, while there are any."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self.held: set[Guarded] = set()
        self.until: float = math.inf
        """When nobody may send the rest of a request any more."""

    def end(self, until: float) -> None:
        """The server stops: every connection, those to come too, gets one more answer at most, or one to each
        request that came before the first of them was answered, and has until then to send the rest of what
        it asks."""
        self.until = until
        for connection in tuple(self.held):
            connection.end()

    def cut_off(self) -> None:
        """Wait for nobody any more. Whoever still writes an answer finds that its reader is gone."""
        for connection in tuple(self.held):
            connection.transport.abort()

    def add(self, connection: Guarded) -> None:
        connection.is_ending = self.until < math.inf
        if len(self.held) >= self._limits.connections_max:
            self._make_room(connection)
        self.held.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(self._limits.look_every_s, self._look, connection.loop)

    def _make_room(self, newest: Guarded) -> None:
        """Attack: connections that ask for nothing, until nobody else gets one."""
        for one in self._dispensable() or (newest,):
            self.held.discard(one)
            one.transport.abort()

    def _dispensable(self) -> Sequence[Guarded]:
        """Return the connections that make room for another one.

        Attack: connections one after the other, without a token, until those of the owner are closed.
        Connections without an accepted request go first: those whose client has left, then those of the user,
        address or program that has most of them, the silent ones, the oldest first. Then idle ones of the
        caller that has most.
        """
        most = self._limits.connections_max
        strangers = [one for one in self.held if one.peer.share is None]
        seen = _events(strangers)
        if left := [one for one in strangers if seen.get(one, 0) & _LEFT]:
            return left
        resting = _by(self.held, lambda one: one.peer.share if one.is_dispensable else None)
        if resting and (not strangers or len(resting[0]) > most // 2):
            return sorted(resting[0], key=lambda one: one.since or one.born)[:1]
        if not strangers:
            return ()
        groups = _by(strangers, lambda one: one.peer.group)
        if unknown := [one.peer for one in groups[0] if one.peer.is_untold]:
            # Attack: a tool connects as the same user. The event loop waits for the answer: connections that
            # come meanwhile would again be unknown.
            tell_apart(unknown)
            groups = _by(strangers, lambda one: one.peer.group)
        largest = groups[0]
        rank = {one: one.rank(bool(seen.get(one, 0) & select.POLLIN)) for one in largest}
        ranked = sorted(largest, key=lambda one: (rank[one], one.since or one.born))
        # Several at once: looking at all of them for each that comes would take all our time.
        surplus = len(largest) - len(groups[1]) if len(groups) > 1 else len(largest)
        alike = sum(rank[one] == rank[ranked[0]] for one in largest)
        return ranked[: max(1, most // _AT_ONCE, min(surplus // 2, alike))]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in tuple(self.held):
            connection.look(now)
        self._timer = loop.call_later(self._limits.look_every_s, self._look, loop) if self.held else None


def _by(connections: Iterable[Guarded], key: Callable[[Guarded], str | None]) -> list[list[Guarded]]:
    """Connections grouped, the largest group first. Those whose key is None are left out."""
    groups: dict[str, list[Guarded]] = {}
    for one in connections:
        if (name := key(one)) is not None:
            groups.setdefault(name, []).append(one)
    return sorted(groups.values(), key=len, reverse=True)


def _events(connections: Iterable[Guarded]) -> dict[Guarded, int]:
    """Return what the kernel has of those with unread bytes or an end: ``poll`` events."""
    waiting: dict[int, Guarded] = {}
    looking = select.poll()
    for one in connections:
        number = one.transport.get_extra_info("socket").fileno()
        if number >= 0:
            waiting[number] = one
            looking.register(number, select.POLLIN | _LEFT)
    return {waiting[number]: events for number, events in looking.poll(0)}


def guarded(limits: Limits) -> type[Guarded]:
    """The protocol of one server: its connections know each other."""
    return type("GuardedConnection", (Guarded,), {"limits": limits, "watch": Watch(limits)})
