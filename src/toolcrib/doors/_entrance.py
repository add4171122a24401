"""Who may come in: every request passes here before any door sees it, and before its body is read.

In this order, and it cannot be configured: which host it means (421), which page sent it (403), who it is
(401), how often it comes (429), what it brings (413, 415). What passes has ``scope["guest"]``, and doors ask
about access nothing but that. What the guest may do with a tool is decided by policy, never here.

An outer ASGI app over raw header bytes. What the same headers led to before is remembered, so that a request
costs about a microsecond; only what passed is, so that nobody can fill the memory from outside.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.doors._peers import Peer, Peers, network_of
from toolcrib.doors._shares import Shares, share_of
from toolcrib.doors._web import (
    BODY_BYTES_MAX,
    BODY_TIMEOUT_S,
    NO_STORE,
    Answer,
    App,
    BodyTooLarge,
    BodyTooSlow,
    ClientLeft,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    header,
    problem,
    read_body,
    send_answer,
)
from toolcrib.errors import ToolcribError
from toolcrib.model import Guest as Guest
from toolcrib.model import Reach
from toolcrib.model import Right as Right
from toolcrib.store.tokens import CHARS_MAX, Token, Tokens, digest_of

SAFE_HEADERS: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""What every response of every door carries."""

COOKIE: Final = b"tw_session"
SESSION_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
SESSIONS_PER_TOKEN_MAX: Final = 20
LOOK_EVERY_S: Final = 0.25
"""So long a revoked token may still be taken for a good one."""
HOLD_LOOK_S: Final = 0.5
"""How often it is looked whether the tokens of requests that last still count."""
HEADERS_MAX: Final = 100
VALUE_BYTES_MAX: Final = 8192
"""Of a header that is read here, of the path, and of the query."""
FAILURES: Final = 10
"""Wrong tokens that an address may show at once, and again each minute."""
ADDRESSES_MAX: Final = 4096
REQUESTS_MAX: Final = 1024
"""Requests under way, of all callers together; one caller alone gets half of them (``_shares.py``)."""
BODIES_BYTES_MAX: Final = 256 << 20
"""Bodies of requests under way, of all callers together; shared in the same way."""
_SMALL_DIGITS: Final = 5
"""Bodies whose length has no more digits are not counted: the number of requests bounds them."""
_PASSED_MAX: Final = 4096
_LOGIN_BYTES_MAX: Final = 4096
_SHOWN_BYTES_MAX: Final = 2 * CHARS_MAX
_SESSION_CHARS_MAX: Final = 64
_SERVERS_MAX: Final = 64
_CLOSE_BYTES_MIN: Final = 64 * 1024
_NOT_OVER: Final = math.inf

# What our own client adds for tools is among them (``runtimes/_http_request.py``).
_RELAYED: Final = frozenset((
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port",
    b"x-forwarded-server", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip",
))  # fmt: skip
_READ: Final = _RELAYED | {
    b"host", b"origin", b"authorization", b"cookie", b"content-length", b"content-type", b"content-encoding",
    b"transfer-encoding", b"sec-fetch-site", b"sec-fetch-mode",
}  # fmt: skip
_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_OPEN: Final = frozenset(("/healthz", "/readyz", "/login"))
_OPEN_BENEATH: Final = "/static/"
_MACHINES: Final = ("/mcp", "/v1/")
_ODD: Final = re.compile(r"[\x00-\x1f\x7f\ufffd\\]|/\.\.?(?:/|\Z)")
_LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")
_ANY: Final = ("", "0.0.0.0", "::", "[::]", "*")
_JSON: Final = b"application/json"


NOBODY: Final = Guest(name="", reach=Reach(tools=(), effects=frozenset()), rights=frozenset())
"""Who reads what anybody may: health, the login page and its style."""


def is_loopback(host: str) -> bool:
    """Whether what listens there can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def needs_token(host: str, hosts: Collection[str] = ()) -> bool:
    """Whether everybody has to show a token: on any address but loopback, and on loopback where a proxy
    brings in others under names of ours. Attack: the whole world, come in through the proxy, as the user."""
    return not is_loopback(host) or bool(hosts)


# -- how often ----------------------------------------------------------------------------------------------


class Bucket:
    """Holds as many requests as may come at once, and fills up steadily."""

    __slots__ = ("_at", "_level", "_per_s", "_size")

    def __init__(self, per_minute: float, now: float) -> None:
        self._size = max(1.0, float(per_minute))
        self._per_s = per_minute / 60.0
        self._level = self._size
        self._at = now

    def take(self, now: float) -> float:
        """Take one; 0 where there was one, else in how many seconds there will be."""
        level = min(self._size, self._level + max(now - self._at, 0.0) * self._per_s)
        self._at = now
        if level >= 1.0:
            self._level = level - 1.0
            return 0.0
        self._level = level
        return (1.0 - level) / self._per_s


class Failures:
    """Wrong tokens by the address that showed them. Good tokens are never counted, nor held up by the bad
    ones of a neighbour behind the same proxy."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def count(self, address: str, now: float) -> float:
        """Count one; in how many seconds the next may come, or 0."""
        block = network_of(address)
        bucket = self._buckets.pop(block, None) or Bucket(FAILURES, now)
        if len(self._buckets) >= ADDRESSES_MAX:
            # Attack: a table that grows with every address. The one that was quiet for longest goes.
            del self._buckets[next(iter(self._buckets))]
        self._buckets[block] = bucket
        return bucket.take(now)

    def __len__(self) -> int:
        return len(self._buckets)


# -- sessions of browsers -----------------------------------------------------------------------------------


class _Session(Struct, frozen=True):
    token_id: str
    until: float


class Sessions:
    """What a browser shows instead of its token: random, kept as a digest, over after a while. Gone with the
    process, and with the token."""

    def __init__(self) -> None:
        self._kept: dict[str, _Session] = {}

    def open(self, token: Token, now: float) -> str:
        value = secrets.token_urlsafe(32)
        for digest in [digest for digest, session in self._kept.items() if session.until <= now]:
            del self._kept[digest]
        own = [digest for digest, session in self._kept.items() if session.token_id == token.id]
        # Attack: sessions until there is room for nobody else's. A token's own oldest goes first.
        if len(own) >= SESSIONS_PER_TOKEN_MAX:
            del self._kept[own[0]]
        elif len(self._kept) >= SESSIONS_MAX:
            del self._kept[next(iter(self._kept))]
        until = now + SESSION_S if token.expires_at is None else min(now + SESSION_S, token.expires_at)
        self._kept[digest_of(value)] = _Session(token.id, until)
        return value

    def find(self, value: str, now: float) -> _Session | None:
        session = self._kept.get(digest_of(value))
        return session if session is not None and session.until > now else None

    def close(self, value: str) -> None:
        self._kept.pop(digest_of(value), None)

    def __len__(self) -> int:
        return len(self._kept)


# -- the entrance -------------------------------------------------------------------------------------------


class _Names(Struct, frozen=True):
    hosts: frozenset[bytes]
    origins: frozenset[bytes]


class Passed(Struct, frozen=True):
    """What headers led to: who it is (None: no token was shown) and from which page."""

    guest: Guest | None
    is_own_page: bool = False
    is_other_page: bool = False
    by_cookie: bool = False
    until: float = _NOT_OVER
    bucket: Bucket | None = None


class Entrance:
    """Wraps the app of all doors. ``host_guest`` is who comes in without a token; None: nobody does."""

    def __init__(
        self,
        app: App,
        *,
        tokens: Tokens | None = None,
        host_guest: Guest | None = None,
        host: str = "127.0.0.1",
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        rate_per_minute: int = 0,
        body_bytes_max: int = BODY_BYTES_MAX,
        body_timeout_s: float = BODY_TIMEOUT_S,
        requests_max: int = REQUESTS_MAX,
        bodies_bytes_max: int = BODIES_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._tokens = tokens or Tokens()
        self._host_guest = host_guest
        self._host = host
        self._hosts = tuple(name.lower() for name in hosts)
        self._origins = frozenset(origin.lower().rstrip("/").encode() for origin in origins)
        self._rate = rate_per_minute
        self._bytes_max = body_bytes_max
        self._body_timeout_s = body_timeout_s
        self._digits = len(str(body_bytes_max))
        self._clock = clock
        self._now = now
        self._peers = Peers()
        self._shares = Shares(requests_max)
        self._bodies = Shares(bodies_bytes_max)
        self._look_at = -math.inf
        self._names: dict[object, _Names] = {}
        self._passed: dict[object, Passed] = {}
        self._buckets: dict[str, Bucket] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._holding: dict[asyncio.Future[None], str] = {}
        self._is_looking = False
        self.failures = Failures()
        self.sessions = Sessions()
        self.refused: Counter[int] = Counter()
        """How many requests were refused, by status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        seen: dict[bytes, bytes] = {}
        is_relayed = False
        headers = scope["headers"]
        for name, value in headers:
            if name in _READ:
                if name in _RELAYED:
                    is_relayed = True
                elif name in seen:
                    # Attack: two Hosts, of which we check one and a proxy or a door takes the other.
                    await self._refuse(scope, send, _TWICE)
                    return
                else:
                    seen[name] = value
        clock = self._clock()
        if clock >= self._look_at:
            self._look(clock)
        path, method = scope["path"], scope["method"]
        host_guest: Guest | None = None
        if self._host_guest is not None and not is_relayed and _needs_owner(path, seen):
            host_guest = self._host_guest if await self._is_owner(scope) else None
        cookie = _session_of(seen.get(b"cookie")) if host_guest is None else None
        key = _kept_under(scope["server"], seen, cookie, host_guest)
        kept = self._passed
        passed = kept.get(key)
        if passed is None or (passed.until is not _NOT_OVER and passed.until <= self._now()):
            decided = self._decide(scope, seen, cookie, host_guest, clock)
            if isinstance(decided, Answer):
                await self._refuse(scope, send, decided)
                return
            passed = decided
            if passed.guest is not None:
                if len(kept) >= _PASSED_MAX:
                    kept.clear()
                kept[key] = passed
        is_plain = path == "/mcp" and len(headers) <= HEADERS_MAX and not scope["query_string"]
        if not is_plain and (odd := _odd(scope)) is not None:
            await self._refuse(scope, send, odd)
            return
        is_browser = passed.by_cookie or b"sec-fetch-site" in seen
        if is_browser and (foreign := _foreign(passed, seen, method)) is not None:
            await self._refuse(scope, send, foreign)
            return
        if passed.is_other_page:
            if method == "OPTIONS":
                await send_answer(send, _preflight(seen[b"origin"]))
                return
            send = _shared(send, seen[b"origin"])
        guest = passed.guest
        if guest is None:
            if path not in _OPEN and not path.startswith(_OPEN_BENEATH):
                await self._refuse(scope, send, _to_login(scope) or _NO_TOKEN)
                return
            guest = NOBODY
        bucket = passed.bucket
        if bucket is not None and (wait_s := bucket.take(clock)):
            await self._refuse(scope, send, _later(wait_s, "more requests than this caller may make"))
            return
        is_chunked = b"transfer-encoding" in seen
        length = seen.get(b"content-length")
        if length is None:
            needs_look = is_chunked or method not in _SAFE_METHODS
        else:  # what is plainly short enough and JSON needs no closer look
            is_short = len(length) < self._digits and length.isdigit()
            needs_look = not is_short or seen.get(b"content-type") != _JSON or b"content-encoding" in seen
        if needs_look and (unfit := _unfit(seen, method, self._bytes_max)) is not None:
            await self._refuse(scope, send, unfit)
            return
        if guest is NOBODY:
            await self._let_in(scope, receive, send, guest)
            return
        share = share_of(guest)
        size = int(length) if length is not None and len(length) > _SMALL_DIGITS else 0
        room = self._bytes_max if is_chunked else size
        if not self._shares.may(share) or (room and not self._bodies.may(share, room)):
            # Attack: so many slow requests of one caller that no connection is left for others; or so large
            # ones that no memory is.
            await self._refuse(scope, send, _later(1.0, "too many requests of this caller are under way"))
            return
        peer: Peer | None = scope.get("peer")
        if peer is not None:
            peer.share = share
        self._shares.take(share)
        if size:
            self._bodies.take(share, size)
        try:
            await self._held_in(scope, receive, send, guest, is_chunked=is_chunked)
        finally:
            self._shares.give_back(share)
            if size:
                self._bodies.give_back(share, size)

    async def _held_in(
        self, scope: Scope, receive: Receive, send: Send, guest: Guest, *, is_chunked: bool
    ) -> None:
        held: _Held | None = None
        if guest.token_id is not None:
            held = _Held(self, guest.token_id, receive, send)
            receive, send = held.receive, held.send
        if is_chunked:
            await self._counted(scope, receive, send, guest)
        else:
            await self._let_in(scope, receive, send, guest)
        if held is not None and held.is_over:
            await held.end(scope)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send, guest: Guest) -> None:
        path, method = scope["path"], scope["method"]
        scope["guest"] = guest
        if path in _SESSION_PATHS and method == "POST":
            await _SESSION_PATHS[path](self, scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _is_owner(self, scope: Scope) -> bool:
        peer: Peer | None = scope.get("peer")
        if peer is None:  # the server is not ours: who runs us in it has said who comes in without a token
            return True
        return await self._peers.is_owner(peer) if peer.verdict is None else peer.verdict

    # -- deciding -------------------------------------------------------------------------------------------

    def _decide(
        self,
        scope: Scope,
        seen: dict[bytes, bytes],
        cookie: str | None,
        host_guest: Guest | None,
        clock: float,
    ) -> Passed | Answer:
        get = seen.get
        host, origin, shown = get(b"host"), get(b"origin"), get(b"authorization")
        if any(len(value) > VALUE_BYTES_MAX for value in seen.values()):
            return _TOO_LONG
        names = self._own(scope.get("server"))
        if host is None or host.lower() not in names.hosts:
            # Attack: DNS rebinding. A page's own name is made to mean this machine, so that the browser takes
            # us for the page's own server; the Host it sends still is that name.
            return _NOT_OURS
        is_own = is_other = False
        if origin is not None:
            # Attack: any page in the user's browser talks to what listens on loopback. Also ``null``, which
            # sandboxed frames and local files send.
            is_own = origin.lower() in names.origins
            is_other = not is_own and origin.lower() in self._origins
            if not is_own and not is_other:
                return _FOREIGN
        now = self._now()
        token: Token | None = None
        until, by_cookie = _NOT_OVER, False
        if shown is not None:
            kind, _, value = shown.partition(b" ")
            token = self._tokens.find(value.strip().decode("latin-1"), now)
            if kind.lower() != b"bearer":
                return self._wrong(scope, clock, _NO_BEARER)
            if token is None or len(shown) > _SHOWN_BYTES_MAX:
                return self._wrong(scope, clock, _WRONG_TOKEN)
        elif cookie is not None and (session := self.sessions.find(cookie, now)) is not None:
            token, until, by_cookie = self._tokens.known(session.token_id, now), session.until, True
        if token is not None:
            self._note(token, now)
            until = min(until, token.expires_at or _NOT_OVER)
            guest: Guest | None = Guest(
                name=token.name, reach=token.reach, rights=token.rights, token_id=token.id
            )
        else:
            guest, by_cookie = host_guest, False
        return Passed(guest, is_own, is_other, by_cookie, until, self._bucket(guest, clock))

    def _wrong(self, scope: Scope, clock: float, answer: Answer) -> Answer:
        """Attack: tokens tried one after the other."""
        if self._tokens.trouble is not None:
            return _NO_TOKENS
        client = scope.get("client")
        wait_s = self.failures.count(client[0] if client else "", clock)
        return _later(wait_s, "too many wrong tokens") if wait_s else answer

    def _bucket(self, guest: Guest | None, clock: float) -> Bucket | None:
        if not self._rate or guest is None or guest.token_id is None:
            return None  # the owner of the machine needs no server to keep it busy
        bucket = self._buckets.get(guest.name)
        if bucket is None:
            bucket = self._buckets[guest.name] = Bucket(self._rate, clock)
        return bucket

    def _look(self, clock: float) -> None:
        self._look_at = clock + LOOK_EVERY_S
        if self._tokens.look():
            # Attack: a token that is revoked, and whose bearer is let in by what was decided before.
            self._passed.clear()

    def hold(self, token_id: str, told: asyncio.Future[None]) -> None:
        """Have ``told`` done when the token counts no more. Looked at once for all who wait."""
        self._holding[told] = token_id
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(HOLD_LOOK_S, self._look_after)

    def _look_after(self) -> None:
        for told in [told for told in self._holding if told.done()]:
            del self._holding[told]
        self._is_looking = bool(self._holding)
        if not self._is_looking:
            return
        self._look(self._clock())
        now = self._now()
        for told, token_id in self._holding.items():
            if self._tokens.known(token_id, now) is None:
                told.set_result(None)
        asyncio.get_running_loop().call_later(HOLD_LOOK_S, self._look_after)

    def _note(self, token: Token, now: float) -> None:
        if not self._tokens.is_due(token, now):
            return

        def note() -> None:
            with suppress(ToolcribError):  # when it was used last is a convenience
                self._tokens.note(token, now)

        writing = asyncio.get_running_loop().run_in_executor(None, note)
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    def _own(self, server: object) -> _Names:
        names = self._names.get(server)
        if names is None:
            if len(self._names) >= _SERVERS_MAX:
                self._names.clear()
            names = self._names[server] = _names(server, self._host, self._hosts)
        return names

    # -- answering ------------------------------------------------------------------------------------------

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Attack: websockets ignore the same-origin rule, and no door of ours speaks them.
            self.refused[403] += 1
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _refuse(self, scope: Scope, send: Send, answer: Answer) -> None:
        self.refused[answer.status] += 1
        length = header(scope, b"content-length") or b"0"
        is_long = not length.isdigit() or len(length) > 18 or int(length) > _CLOSE_BYTES_MIN
        if is_long or header(scope, b"transfer-encoding") is not None:
            # Attack: a body of a gigabyte behind a request that was refused, which would be read to its end.
            answer = Answer(answer.status, answer.body, (*answer.headers, (b"connection", b"close")))
        await send_answer(send, answer, head=scope["method"] == "HEAD")

    async def _counted(self, scope: Scope, receive: Receive, send: Send, guest: Guest) -> None:
        """A body of unknown length: counted while it comes, whoever reads it. Until its end it takes as much
        of the caller's share as it may have."""
        size, has_begun = 0, False
        share, taken = share_of(guest), self._bytes_max
        self._bodies.take(share, taken)

        async def count() -> Message:
            nonlocal size, taken
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._bytes_max:
                raise BodyTooLarge
            if not message.get("more_body", False):
                self._bodies.give_back(share, taken - size)
                taken = size
            return message

        async def watch(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._let_in(scope, count, watch, guest)
        except BodyTooLarge:
            if has_begun:
                raise
            await self._refuse(scope, send, _TOO_LARGE)
        finally:
            self._bodies.give_back(share, taken)

    async def _login(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A browser shows its token once and gets a cookie in exchange."""
        try:
            body = await read_body(receive, _LOGIN_BYTES_MAX, timeout_s=self._body_timeout_s)
        except (BodyTooLarge, BodyTooSlow) as unread:
            await self._refuse(scope, send, _TOO_LARGE if isinstance(unread, BodyTooLarge) else _TOO_SLOW)
            return
        except ClientLeft:
            return
        found = jsontext.read(body, depth_max=4)
        value = found.value.get("token") if isinstance(found.value, dict) else None
        if not isinstance(value, str):
            await self._refuse(scope, send, _NO_LOGIN)
            return
        now = self._now()
        token = self._tokens.find(value.strip(), now)
        if token is None:
            await self._refuse(scope, send, self._wrong(scope, self._clock(), _WRONG_TOKEN))
            return
        session = self.sessions.open(token, now)
        await send_answer(send, Answer(204, headers=(_cookie(scope, session, SESSION_S), *SAFE_HEADERS)))

    async def _logout(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = _session_of(header(scope, b"cookie"))
        if session is not None:
            self.sessions.close(session)
            self._passed.clear()
        await send_answer(send, Answer(204, headers=(_cookie(scope, "", 0.0), *SAFE_HEADERS)))


class _Held:
    """A request that came with a token, for as long as it lasts.

    Attack: a stream that was opened, or a call that waits for a person, and goes on when the token is revoked
    or over. To the door it looks as if the client had left.
    """

    __slots__ = (
        "_entrance",
        "_has_begun",
        "_has_come",
        "_has_ended",
        "_receive",
        "_send",
        "_token_id",
        "is_over",
    )

    def __init__(self, entrance: Entrance, token_id: str, receive: Receive, send: Send) -> None:
        self._entrance = entrance
        self._token_id = token_id
        self._receive = receive
        self._send = send
        self._has_come = self._has_begun = self._has_ended = False
        self.is_over = False

    async def receive(self) -> Message:
        if not self._has_come:  # the body: it comes soon, or not at all
            message = await self._receive()
            self._has_come = not message.get("more_body", False)
            return message
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        coming = loop.create_task(_coming(self._receive))
        self._entrance.hold(self._token_id, told)
        try:
            await asyncio.wait((told, coming), return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return coming.result()
            self.is_over = True
            return {"type": "http.disconnect"}
        finally:
            coming.cancel()
            told.cancel()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
        elif not message.get("more_body", False):
            self._has_ended = True
        await self._send(message)

    async def end(self, scope: Scope) -> None:
        """Answer what the door has left unanswered."""
        if not self._has_begun:
            await self._entrance._refuse(scope, self._send, _WRONG_TOKEN)
        elif not self._has_ended:
            await self._send({"type": "http.response.body", "body": b""})


async def _coming(receive: Receive) -> Message:
    return await receive()


_SESSION_PATHS: Final = {"/login": Entrance._login, "/logout": Entrance._logout}


def _kept_under(
    server: object, seen: dict[bytes, bytes], cookie: str | None, host_guest: Guest | None
) -> object:
    """All that a decision depends on."""
    get = seen.get
    return server, get(b"host"), get(b"origin"), get(b"authorization"), cookie, host_guest is None


def _needs_owner(path: str, seen: dict[bytes, bytes]) -> bool:
    """Whether it matters who connected: not to a token that is shown, nor for what everybody may read."""
    return b"authorization" not in seen and path not in _OPEN and not path.startswith(_OPEN_BENEATH)


# -- names --------------------------------------------------------------------------------------------------


def _names(server: object, bound: str, hosts: Sequence[str]) -> _Names:
    """Under which names we are reached at an address of ours, and the origins of pages that come from us."""
    address, port = server if isinstance(server, tuple | list) and len(server) == 2 else ("", None)
    plain = {*_LOCAL, *([] if bound in _ANY else [_bracketed(bound)])}
    if isinstance(address, str) and address and "/" not in address:
        plain.add(_bracketed(address.partition("%")[0].removeprefix("::ffff:")))
    found: set[str] = set()
    for name in plain:
        found.add(f"{name}:{port}")
        if port in (80, 443, None):
            found.add(name)
    for name in hosts:
        if name.count(":") > 1:  # an address of IPv6, whose end is no port
            name = _bracketed(name)
        found.add(name)
        if port is not None and re.search(r":\d+\Z", name) is None:
            found.add(f"{name}:{port}")
    hosts_ = frozenset(name.lower().encode() for name in found)
    origins = frozenset(scheme + name for name in hosts_ for scheme in (b"http://", b"https://"))
    return _Names(hosts_, origins)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _session_of(cookie: bytes | None) -> str | None:
    """The session that a browser shows among all its cookies, those of our neighbours on other ports too."""
    for part in cookie.split(b";") if cookie is not None else ():
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE:
            return value[:_SESSION_CHARS_MAX].decode("latin-1")
    return None


def _cookie(scope: Scope, value: str, age_s: float) -> tuple[bytes, bytes]:
    # Attack: script that reads it, pages of others that send it along, and wires that carry it in the clear.
    # The browser says itself whether its page came over TLS: a proxy's word is not needed.
    is_secure = scope.get("scheme") == "https" or (header(scope, b"origin") or b"").startswith(b"https://")
    text = f"{COOKIE.decode()}={value}; Path=/; Max-Age={age_s:.0f}; HttpOnly; SameSite=Strict"
    return b"set-cookie", (text + "; Secure" * is_secure).encode()


# -- what is refused ----------------------------------------------------------------------------------------


def _odd(scope: Scope) -> Answer | None:
    if len(scope["headers"]) > HEADERS_MAX:
        return _TOO_LONG
    if len(scope.get("raw_path") or b"") > VALUE_BYTES_MAX or len(scope["query_string"]) > VALUE_BYTES_MAX:
        return _LONG_PATH
    # Attack: bytes that mean something else to the next reader: an end, a folder above, another line.
    return _ODD_PATH if _ODD.search(scope["path"]) is not None else None


def _foreign(passed: Passed, seen: dict[bytes, bytes], method: str) -> Answer | None:
    site = seen.get(b"sec-fetch-site")
    is_looking = method in ("GET", "HEAD")
    is_ours = passed.is_own_page or site in (b"same-origin", b"none")
    # Attack: a page of somebody else's that has the browser send a form along with our cookie.
    if passed.by_cookie and not is_looking and not is_ours:
        return _FOREIGN
    # Attack: a picture or a script that is fetched from us without an Origin. Links may lead here.
    is_link = is_looking and seen.get(b"sec-fetch-mode") == b"navigate"
    is_from_others = site in (b"cross-site", b"same-site") and b"origin" not in seen
    return _FOREIGN if is_from_others and not is_link else None


def _unfit(seen: dict[bytes, bytes], method: str, bytes_max: int) -> Answer | None:
    length = seen.get(b"content-length")
    if length is not None:
        if not length.isdigit() or len(length) > 18:
            return _BAD_LENGTH
        if int(length) > bytes_max:
            return _TOO_LARGE
    if seen.get(b"content-encoding", b"identity") != b"identity":
        # Attack: a body that unfolds to a thousand times its size.
        return _ENCODED
    kind = seen.get(b"content-type")
    if kind == _JSON or method in _SAFE_METHODS:
        return None
    if kind is None:
        has_body = b"transfer-encoding" in seen or (length is not None and length.strip(b"0") != b"")
        return _NOT_JSON if has_body else None
    # Attack: what a form of any page may send without asking: text/plain, urlencoded, multipart.
    return None if kind.partition(b";")[0].strip().lower() == _JSON else _NOT_JSON


def _to_login(scope: Scope) -> Answer | None:
    """Where a person with a browser goes on who has no token yet."""
    if scope["method"] not in ("GET", "HEAD") or scope["path"].startswith(_MACHINES):
        return None
    if b"text/html" not in (header(scope, b"accept") or b""):
        return None
    return Answer(303, headers=((b"location", b"/login"), *NO_STORE, *SAFE_HEADERS))


def _later(wait_s: float, detail: str) -> Answer:
    return _refusal(429, detail, "try again later", ((b"retry-after", b"%d" % max(1, math.ceil(wait_s))),))


def _refusal(status: int, detail: str, hint: str, headers: Headers = ()) -> Answer:
    return problem(status, detail, hint=hint, headers=(*headers, *SAFE_HEADERS))


def _preflight(origin: bytes) -> Answer:
    return Answer(
        204,
        headers=(
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (
                b"access-control-allow-headers",
                b"authorization, content-type, idempotency-key, if-none-match, last-event-id, "
                b"mcp-method, mcp-name, mcp-protocol-version, mcp-session-id",
            ),
            (b"access-control-max-age", b"600"),
            (b"vary", b"origin"),
            *SAFE_HEADERS,
        ),
    )


def _shared(send: Send, origin: bytes) -> Send:
    """Let a page that the host named read the answer."""

    async def share(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"etag, mcp-session-id, retry-after, www-authenticate"),
                (b"vary", b"origin"),
            ]
        await send(message)

    return share


_BEARER: Final = b'Bearer realm="toolcrib"'
_TWICE: Final = _refusal(400, "a header that may stand once stands twice", "send it once")
_NOT_OURS: Final = _refusal(
    421, "the Host is not a name of this server", "add the name to hosts in [serve], if it is yours"
)
_FOREIGN: Final = _refusal(
    403, "the page that sent this is not ours", "add its origin to origins in [serve], if you trust it"
)
_NO_TOKEN: Final = _refusal(
    401,
    "this needs a token",
    "make one with: toolcrib token create NAME; send it as Authorization: Bearer TOKEN",
    ((b"www-authenticate", _BEARER),),
)
_NO_BEARER: Final = _refusal(
    401,
    "the Authorization is not one by Bearer",
    "send it as Authorization: Bearer TOKEN",
    ((b"www-authenticate", _BEARER),),
)
_WRONG_TOKEN: Final = _refusal(
    401,
    "the token is not known, is over or was revoked",
    "toolcrib token list shows those there are",
    ((b"www-authenticate", _BEARER + b', error="invalid_token"'),),
)
_NO_TOKENS: Final = _refusal(503, "the tokens cannot be read, so none counts", "look at the server's state")
_TOO_LARGE: Final = _refusal(413, "the body is larger than this server reads", "send less at once")
_TOO_SLOW: Final = _refusal(
    408, "the body did not come in time", "send it faster", ((b"connection", b"close"),)
)
_TOO_LONG: Final = _refusal(431, "too many headers, or one that is too long", "send less")
_LONG_PATH: Final = _refusal(414, "the path or the query is too long", "send less")
_ODD_PATH: Final = _refusal(400, "the path has bytes that mean nothing here", "percent-encode names in paths")
_BAD_LENGTH: Final = _refusal(400, "the Content-Length is not a number", "mend the client")
_ENCODED: Final = _refusal(415, "encoded bodies are not read", "send it without Content-Encoding")
_NOT_JSON: Final = _refusal(415, "only JSON is read here", "send it as Content-Type: application/json")
_NO_LOGIN: Final = _refusal(400, "this is not a login", 'send {"token": "…"}')
