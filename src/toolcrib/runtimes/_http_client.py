"""The one place from which this program sends HTTP requests: checked addresses, redirects, limits.

An ``HttpClient`` never reads proxies from the environment, keeps no cookies and stores nothing. Everything
the other side sends is hostile: its size, its compression, its headers and its slowness are bounded.
``Reach`` says which addresses may be reached; ``_http_network.py`` checks them when connecting, on the very
address that is connected to, so that no name, no redirect and no changed DNS answer gets around it.

It knows no tools, formats or results: the runtimes beside it turn answers and failures into endings.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, TypeVar
from urllib.parse import urljoin

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.records import Discreet
from toolcrib.runtimes._addresses import Zone, zone
from toolcrib.runtimes._http_request import (
    SAFE,
    Request,
    Target,
    Trouble,
    Unreached,
    broken,
    check_headers,
    check_method,
    header,
    is_literal,
    target_of,
)
from toolcrib.sandbox import Cancel

if TYPE_CHECKING:
    from toolcrib.runtimes._http_network import Connections, Stream

REDIRECTS_MAX: Final = 5
CONNECT_S_MAX: Final = 10.0
"""For one address; all of them together end at the deadline."""
_KEPT_ACROSS: Final = frozenset({"accept", "accept-language", "user-agent"})
"""What goes along to another origin. Attack: a redirect that collects the credentials of the first one; a
list of what may go along forgets nothing."""

_T = TypeVar("_T")
Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Host and port to addresses; raises OSError if there are none."""


def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system. Spellings such as ``2130706433`` and ``0x7f.1`` come out as plain addresses."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class HttpLimits(Struct, frozen=True, kw_only=True):
    """What one answer may cost, whatever it promises."""

    body_bytes_max: int = 8 << 20
    """Of the body as it arrives, and again of what it unpacks to."""
    head_bytes_max: int = 64 << 10
    """Of all heads of one answer together, and again of its trailer."""
    headers_max: int = 200
    redirects_max: int = REDIRECTS_MAX


class Reach(Struct, frozen=True, kw_only=True):
    """Which addresses may be reached: public ones, and private ones only if the host granted it.

    What only harms (link-local with the clouds' metadata services, multicast, reserved) is never reached.
    """

    private: bool = False
    """Loopback and private ranges, whatever the name is."""
    hosts: frozenset[tuple[str, int]] = frozenset()
    """Names or addresses, in lower case as in the URL, that may lead to private ranges, each with its port.
    Attack: a local server that was named leads on to another one that listens beside it."""

    def opens(self, host: str, port: int) -> bool:
        """Whether this name and port may lead to loopback and private ranges."""
        return self.private or (host, port) in self.hosts

    def refusal(self, host: str, port: int, address: str) -> str | None:
        """Return why this address may not be reached under this name and port, or None."""
        match zone(address):
            case Zone.PUBLIC:
                return None
            case Zone.PRIVATE:
                return None if self.opens(host, port) else "a private address"
            case _:
                return "an address that is never reached"


class Proxy(Discreet, frozen=True, kw_only=True):
    """A proxy that a trusted configuration named, and the hosts that are reached through it."""

    HIDDEN: ClassVar = ("login",)

    host: str
    port: int
    hosts: tuple[str, ...]
    """Names, or ``*.`` and a domain whose names are meant."""
    login: Callable[[], str] | None = None
    """Returns ``USER:PASSWORD``. Raises Unreached if there is none."""

    def serves(self, host: str) -> bool:
        """Whether requests for this host go through the proxy.

        Attack: an address that the proxy reaches and we must not. Addresses never go through it, in no
        spelling, so they are checked here as without a proxy.
        """
        if is_literal(host):
            return False
        return any(
            host.endswith(named[1:]) if named.startswith("*.") else host == named for named in self.hosts
        )


class Contact(Struct, frozen=True, kw_only=True):
    """One request that was sent, as records tell it: no path, no query, no header."""

    method: str
    scheme: str
    host: str
    port: int
    address: str = ""
    """Empty: there was no connection."""
    proxy: str = ""
    """The proxy that ``address`` belongs to, with its port; empty if there was none."""
    status: int | None = None
    received_bytes: int = 0
    duration_ms: float = 0.0


class Answer(Discreet, frozen=True, kw_only=True):
    """What came back, whole or cut at the limit."""

    HIDDEN: ClassVar = ("body",)

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool = False
    """There was more; ``body`` is the beginning."""
    url: str
    """Where the answer came from, after redirects."""
    contacts: tuple[Contact, ...] = ()

    def header(self, name: str) -> str | None:
        return header(self.headers, name)


class Exchange(Struct, kw_only=True):
    """One request on its way: its limits, its deadline and cancel token, and what went over the wire."""

    reach: Reach
    limits: HttpLimits
    deadline: float
    """A moment of ``time.monotonic``, or infinite."""
    cancel: Cancel
    is_safe: bool
    """It changes nothing, so it may be sent again."""
    contacts: list[Contact] = field(default_factory=list)
    """What was sent before, and in the end this one."""
    address: str = ""
    sent: int = 0
    received: int = 0

    def check(self) -> None:
        if self.cancel.is_set:
            raise Unreached(Trouble.CANCELLED, "cancelled")
        if time.monotonic() >= self.deadline:
            raise late()

    def wait(self, handle: int, event: int) -> None:
        """Wait for a descriptor."""
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise late()
        waiting = select.poll()
        waiting.register(handle, event)
        waiting.register(self.cancel.fileno(), select.POLLIN)
        waiting.poll(None if left_s == math.inf else math.ceil(left_s * 1000))
        if self.cancel.is_set:
            raise Unreached(Trouble.CANCELLED, "cancelled")

    def again(self, act: Callable[[], _T], peer: socket.socket, event: int = select.POLLIN) -> _T:
        """Try until it does not block any more."""
        while True:
            self.check()
            try:
                return act()
            except ssl.SSLWantReadError:
                self.wait(peer.fileno(), select.POLLIN)
            except ssl.SSLWantWriteError:
                self.wait(peer.fileno(), select.POLLOUT)
            except BlockingIOError:
                self.wait(peer.fileno(), event)


def late() -> Unreached:
    return Unreached(Trouble.TIMED_OUT, "it took too long")


class HttpClient:
    """Sends requests and keeps connections; for all threads of a host. ``close`` ends the idle ones."""

    def __init__(
        self,
        *,
        resolve: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
        ca_file: str = "",
        proxy: Proxy | None = None,
    ) -> None:
        """``ca_file``: authorities that are trusted besides the system's."""
        self._resolve = resolve
        self._tls = tls
        self._ca_file = ca_file
        self._proxy = proxy
        self._lock = threading.RLock()
        self._made: Connections | None = None
        self._is_closed = False

    def send(
        self, request: Request, *, reach: Reach, limits: HttpLimits, deadline: float, cancel: Cancel
    ) -> Answer:
        """Send one request and read its whole answer. ``deadline`` is a moment of ``time.monotonic``."""
        with self.stream(request, reach=reach, limits=limits, deadline=deadline, cancel=cancel) as stream:
            body, truncated = stream.read()
        return Answer(
            status=stream.status,
            reason=stream.reason,
            headers=stream.headers,
            body=body,
            truncated=truncated,
            url=stream.url,
            contacts=tuple(stream.exchange.contacts),
        )

    @contextmanager
    def stream(
        self, request: Request, *, reach: Reach, limits: HttpLimits, deadline: float, cancel: Cancel
    ) -> Iterator[Stream]:
        """Send one request and read its answer as it comes; ``deadline`` may be infinite."""
        terms = Exchange(reach=reach, limits=limits, deadline=deadline, cancel=cancel, is_safe=False)
        contacts = terms.contacts
        try:
            stream = self._follow(request, terms)
            started = time.monotonic()
            try:
                yield stream
            finally:
                stream.close()
                duration_ms = round(contacts[-1].duration_ms + (time.monotonic() - started) * 1000, 3)
                received = stream.exchange.received
                contacts[-1] = replace(contacts[-1], received_bytes=received, duration_ms=duration_ms)
        except Unreached as error:
            error.contacts = error.contacts or tuple(contacts)
            raise

    def close(self) -> None:
        with self._lock:
            self._is_closed, made = True, self._made
        if made is not None:
            made.close()

    def _follow(self, request: Request, terms: Exchange) -> Stream:
        """Send a request, and go on where its answers lead."""
        check_method(request.method)
        check_headers(request.headers)
        target = target_of(request.url)
        stream = self._exchange(request, target, terms)
        for _ in range(terms.limits.redirects_max):
            following = _redirected(request, stream)
            if following is None:
                return stream
            stream.close()
            try:
                there = target_of(following.url)
                if target.scheme == "https" and there.scheme == "http":
                    # Attack: a redirect that takes the rest of the exchange out of TLS.
                    raise Unreached(Trouble.REFUSED, "the answer leads from https to http")
                if there.origin != target.origin:
                    kept = tuple(pair for pair in following.headers if pair[0].lower() in _KEPT_ACROSS)
                    following = replace(following, headers=kept)
                stream = self._exchange(following, there, terms)
            except Unreached as error:
                error.sent = True  # the first request was
                if error.kind is Trouble.MALFORMED:
                    error.kind = Trouble.BROKEN
                error.why = f"after a redirect: {error.why}"
                raise
            request, target = following, there
        if _redirected(request, stream) is None:
            return stream
        stream.close()
        raise Unreached(Trouble.BROKEN, f"more than {terms.limits.redirects_max} redirects", sent=True)

    def _exchange(self, request: Request, target: Target, terms: Exchange) -> Stream:
        started = time.monotonic()
        proxy = self._proxy if self._proxy is not None and self._proxy.serves(target.host) else None
        exchange = replace(terms, is_safe=request.method in SAFE)
        status: int | None = None
        try:
            stream = self._connections().send(request, target, exchange, proxy)
            status = stream.status
            return stream
        finally:
            terms.contacts.append(
                Contact(
                    method=request.method,
                    scheme=target.scheme,
                    host=target.host,
                    port=target.port,
                    address=exchange.address,
                    proxy=f"{proxy.host}:{proxy.port}" if proxy is not None else "",
                    status=status,
                    received_bytes=exchange.received,
                    duration_ms=round((time.monotonic() - started) * 1000, 3),
                )
            )

    def _connections(self) -> Connections:
        with self._lock:
            if self._made is None:
                # By name: the library is slow to import, and most hosts send no request.
                network = import_module("toolcrib.runtimes._http_network")
                self._made = made = network.Connections(self._resolve, self._context)
                if self._is_closed:
                    made.close()
            return self._made

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                context = ssl.create_default_context()
                if self._ca_file:
                    try:
                        context.load_verify_locations(self._ca_file)
                    except OSError as error:
                        why = (error.strerror or type(error).__name__).lower()
                        raise Unreached(
                            Trouble.UNTRUSTED,
                            f"{self._ca_file}: {why}",
                            hint="name a file of certificates (PEM) in [http] ca_file",
                        ) from None
                self._tls = context
            return self._tls


def _redirected(request: Request, stream: Stream) -> Request | None:
    """Return the request that an answer leads to, if it is one to follow.

    What changes something is not sent again to another place: only 303 leads on from it, by reading.
    """
    location = stream.header("location")
    if stream.status not in (301, 302, 303, 307, 308) or location is None:
        return None
    if request.method not in SAFE and stream.status != 303:
        return None
    try:
        url = urljoin(request.url, location)
    except ValueError:  # Attack: ``http://[``, at which the parser itself gives up
        stream.close()
        raise broken("it leads to what is no URL") from None
    if stream.status != 303 or request.method in SAFE:
        return replace(request, url=url)
    headers = tuple(pair for pair in request.headers if not pair[0].lower().startswith("content-"))
    return Request(method="GET", url=url, headers=headers)
