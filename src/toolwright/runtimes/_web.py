"""The one place from which this program connects to anything: HTTP/1.1 to checked addresses, within limits.

A ``Web`` keeps connections and sends requests. It never reads proxies from the environment, keeps no cookies
and stores nothing. Everything the other side sends is hostile: its size, its compression, its headers and its
slowness are bounded. ``Reach`` says which addresses may be reached; they are checked when connecting, on the
very address that is connected to, so that no name, no redirect and no changed DNS answer gets around it.

It knows no tools, formats or results: the runtimes beside it turn answers and failures into endings.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import re
import select
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from enum import StrEnum
from functools import partial
from typing import Final, TypeAlias, TypeVar
from urllib.parse import urljoin

from toolwright.model import URL_CHARS_MAX
from toolwright.records import dataclass, replace
from toolwright.runtimes._addresses import Zone, zone
from toolwright.sandbox import Cancel

REDIRECTS_MAX: Final = 5
ADDRESSES_MAX: Final = 8
HEADERS_SENT_MAX: Final = 100
HEADER_CHARS_MAX: Final = 16_384
LOOKUPS_MAX: Final = 32
"""Names being looked up at once: a resolver that hangs must not gather threads."""

_READ_BYTES: Final = 64 << 10
_INFORMATIONAL_MAX: Final = 8
_KEPT_PER_PEER: Final = 8
_KEPT_MAX: Final = 64
_IDLE_S: Final = 30.0
_IDLE_UNSAFE_S: Final = 4.0
"""Common servers drop an idle connection after five seconds, and a request that meets the drop may or may not
have been seen: what must not be repeated takes a connection that is younger."""
SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing, so that a request may be sent again."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: (.*))?", re.DOTALL)
_URL: Final = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+?)\.?(?::([0-9]{0,5}))?")
_NO_PROXY: Final = "no proxy of the environment is used"
"""Said where nobody is reached: it may be how all others get out of here."""
_OURS: Final = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect",
        "keep-alive", "proxy-connection", "proxy-authorization",
    }
)  # fmt: skip
"""Headers that say where a request ends or who it is for: only this file writes them."""
_KEPT_ACROSS: Final = frozenset({"accept", "accept-language", "user-agent"})
"""What goes along to another origin. Attack: a redirect that collects the credentials of the first one; a
list of what may go along forgets nothing."""


# -- what is asked and answered -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Connection, length and encoding headers are not the caller's."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """What one answer may cost, whatever it promises."""

    body_bytes_max: int = 8 << 20
    """Of the body as it arrives, and again of what it unpacks to."""
    head_bytes_max: int = 64 << 10
    headers_max: int = 200
    connect_s_max: float = 10.0
    """For one address; all of them together end at the deadline."""
    redirects_max: int = REDIRECTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Which addresses may be reached: public ones, and private ones only where the host granted it.

    What only harms (link-local with the clouds' metadata services, multicast, reserved) is never reached.
    """

    private: bool = False
    """Loopback and private ranges, whatever the name is."""
    hosts: frozenset[tuple[str, int]] = frozenset()
    """Names or addresses, in lower case as in the URL, that may lead to private ranges, each with its port.
    Attack: a local server that was named leads on to another one that listens beside it."""

    def refusal(self, host: str, port: int, address: str) -> str | None:
        """Why this address may not be reached under this name and port, or None."""
        match zone(address):
            case Zone.PUBLIC:
                return None
            case Zone.PRIVATE:
                return None if self.private or (host, port) in self.hosts else "a private address"
            case _:
                return "an address that is never reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """One request that was sent, as records tell it: no path, no query, no header."""

    method: str
    scheme: str
    host: str
    port: int
    address: str = ""
    """Empty: there was no connection."""
    status: int | None = None
    received_bytes: int = 0
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, whole or cut at the limit."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    truncated: bool = False
    """There was more; ``body`` is the beginning."""
    url: str
    """Where the answer came from, after redirects."""
    contacts: tuple[Contact, ...] = ()

    def header(self, name: str) -> str | None:
        return _header(self.headers, name)


class Trouble(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"
    """We do not connect there; ``hint`` says what would open it, where anything does."""
    MALFORMED = "malformed"
    """It cannot be sent: the URL, the method or a header is none."""
    UNREACHABLE = "unreachable"
    """No such host, or nobody accepts the connection."""
    UNTRUSTED = "untrusted"
    """TLS could not be set up: the certificate does not prove the name, or there is none."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The connection ended before the answer did."""
    BROKEN = "broken"
    """What came is not a sound HTTP answer."""
    TOO_LARGE = "too_large"
    """The head of the answer went over its limit."""


class Unreached(Exception):
    """No answer. ``sent`` is False only where the peer surely saw nothing of the request."""

    def __init__(self, kind: Trouble, why: str, *, hint: str | None = None, sent: bool = False) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.hint = hint
        self.sent = sent
        self.contacts: tuple[Contact, ...] = ()


# -- names -------------------------------------------------------------------------------------------------

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Host and port to addresses; raises OSError where there are none."""


def resolve(host: str, port: int) -> Sequence[str]:
    """What the system says. Spellings such as ``2130706433`` and ``0x7f.1`` come out as plain addresses."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


# -- requests, checked --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads."""

    scheme: str
    host: str
    """Lower case, without brackets and final dot."""
    port: int
    resource: str
    """Path and query, as they go into the request line."""

    @property
    def origin(self) -> tuple[str, str, int]:
        return (self.scheme, self.host, self.port)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS: Final = {"http": 80, "https": 443}


def target_of(url: str) -> Target:
    """Where a URL leads. Raises Unreached for one that two readers could understand differently.

    Attack: ``http://good@bad/``, ``http://good\\@bad/``, tabs and line ends inside a URL, digits of other
    scripts: readers disagree about the host, so that what was checked is not what is connected to.
    """
    if len(url) > URL_CHARS_MAX:
        raise _malformed(f"the URL has more than {URL_CHARS_MAX} characters")
    if not url.isascii():
        raise _malformed("the URL has characters outside of ASCII", "percent-encode them; a host as xn--…")
    if any(char <= " " or char in "\\\x7f" for char in url):
        raise _malformed("the URL has a space, a backslash or a control character", "percent-encode it")
    match = _URL.fullmatch(url)
    if match is None:
        raise _malformed("the URL must begin with http:// or https://")
    scheme, authority, path, query = match[1].lower(), match[2], match[3], match[4]
    if "@" in authority:
        raise _malformed("the URL holds a user name", "send credentials in a header")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise _malformed("the URL's host is none")
    port = int(parts[2]) if parts[2] else _PORTS[scheme]
    if not 0 < port < 65_536:
        raise _malformed(f"the URL's port is none (got {port})")
    host = parts[1].strip("[]").lower()
    if not all(0 < len(label) < 64 for label in host.split(".")) or len(host) > 253:
        raise _malformed("the URL's host is none")
    return Target(scheme, host, port, (path or "/") + (query or ""))


def literal_hosts(url: str) -> frozenset[tuple[str, int]]:
    """The host and port of a URL, where the host is an address or this machine by its name: whoever may be
    trusted to write it down has named the very place. A name that only leads there has not."""
    with suppress(Unreached):
        target = target_of(url)
        host = target.host
        if host == "localhost" or ":" in host or host.replace(".", "").isdigit():
            return frozenset({(host, target.port)})
    return frozenset()


def check_headers(headers: Sequence[tuple[str, str]]) -> None:
    """Raises Unreached for what would end a header early or speak about the connection.

    Attack: an argument with a line end that adds headers, or a whole second request.
    """
    if len(headers) > HEADERS_SENT_MAX:
        raise _malformed(f"more than {HEADERS_SENT_MAX} headers")
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise _malformed(f"{name[:60]!r} is not the name of a header")
        if name.lower() in _OURS:
            raise _malformed(f"the header {name} is not the caller's to set", "leave it out")
        if len(value) > HEADER_CHARS_MAX or not _VALUE.fullmatch(value):
            # The value is not shown: it may be a secret.
            raise _malformed(
                f"the header {name} has a value that cannot be sent",
                f"no line ends or control characters, Latin-1 only, at most {HEADER_CHARS_MAX} characters",
            )


def _malformed(why: str, hint: str | None = None) -> Unreached:
    return Unreached(Trouble.MALFORMED, why, hint=hint)


def _refused(why: str, hint: str | None = None) -> Unreached:
    return Unreached(Trouble.REFUSED, why, hint=hint)


def _header(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    """All values of a header as one, as HTTP says they may be read."""
    values = [value for found, value in headers if found.lower() == name]
    return ", ".join(values) if values else None


def _written(request: Request, target: Target) -> bytes:
    names = {name.lower() for name, _ in request.headers}
    lines = [f"{request.method} {target.resource} HTTP/1.1", f"Host: {target.authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    if "user-agent" not in names:
        lines.append("User-Agent: toolwright")
    if "accept-encoding" not in names:
        lines.append("Accept-Encoding: gzip, deflate")
    if request.body is not None or request.method not in SAFE:
        lines.append(f"Content-Length: {len(request.body or b'')}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (request.body or b"")


# -- a connection -------------------------------------------------------------------------------------------


_T = TypeVar("_T")


class _Wire:
    """A connected socket that waits no longer than the deadline and hears the cancel button."""

    def __init__(self, peer: socket.socket, address: str) -> None:
        self.socket = peer
        self.address = address
        self.idle_since = 0.0
        self.sent = 0
        self.received = 0
        self.unread = bytearray()
        self._deadline = math.inf
        self._cancel = Cancel()

    def take(self, deadline: float, cancel: Cancel) -> None:
        """For the next request."""
        self._deadline, self._cancel = deadline, cancel
        self.sent = self.received = 0

    def is_quiet(self) -> bool:
        """Whether an idle connection is still one. Attack: bytes sent ahead of a request as its answer."""
        waiting = select.poll()
        waiting.register(self.socket, select.POLLIN)
        pending = self.socket.pending() if isinstance(self.socket, ssl.SSLSocket) else 0
        return not self.unread and not pending and not waiting.poll(0)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()

    def connect(self, target: tuple[str, int]) -> None:
        code = self.socket.connect_ex(target)
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            self.wait(select.POLLOUT)
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def shake_hands(self, context: ssl.SSLContext, host: str) -> None:
        wrapped = context.wrap_socket(self.socket, server_hostname=host, do_handshake_on_connect=False)
        self.socket = wrapped
        self._again(wrapped.do_handshake)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self._again(partial(self.socket.send, view[:_READ_BYTES]), select.POLLOUT)
            self.sent += count
            view = view[count:]

    def receive(self) -> bytes:
        data = self._again(lambda: self.socket.recv(_READ_BYTES))
        self.received += len(data)
        return data

    def _again(self, act: Callable[[], _T], event: int = select.POLLIN) -> _T:
        while True:
            self.check()
            try:
                return act()
            except ssl.SSLWantReadError:
                self.wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self.wait(select.POLLOUT)
            except BlockingIOError:
                self.wait(event)

    def check(self) -> None:
        if self._cancel.is_set:
            raise Unreached(Trouble.CANCELLED, "cancelled")
        if time.monotonic() >= self._deadline:
            raise _late()

    def wait(self, event: int) -> None:
        _wait(self.socket.fileno(), event, self._deadline, self._cancel)

    # -- reading --------------------------------------------------------------------------------------------

    def line(self, bytes_max: int) -> bytes:
        """The next line without its end. Raises Unreached for one that is longer."""
        start = 0
        while (end := self.unread.find(b"\n", start)) < 0:
            if len(self.unread) > bytes_max:
                raise _too_large(bytes_max)
            start = len(self.unread)
            self.unread += self._more()
        if end > bytes_max:
            raise _too_large(bytes_max)
        found = bytes(self.unread[:end])
        del self.unread[: end + 1]
        return found.removesuffix(b"\r")

    def some(self, bytes_max: float) -> bytes:
        """At least one byte and at most so many."""
        data = bytes(self.unread) if self.unread else self._more()
        self.unread.clear()
        if len(data) > bytes_max:
            data, rest = data[: int(bytes_max)], data[int(bytes_max) :]
            self.unread += rest
        return data

    def _more(self) -> bytes:
        data = self.receive()
        if not data:
            raise Unreached(Trouble.LOST, "the connection ended before the answer did", sent=True)
        return data


def _wait(handle: int, event: int, deadline: float, cancel: Cancel) -> None:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise _late()
    waiting = select.poll()
    waiting.register(handle, event)
    waiting.register(cancel.fileno(), select.POLLIN)
    waiting.poll(None if left_s == math.inf else math.ceil(left_s * 1000))
    if cancel.is_set:
        raise Unreached(Trouble.CANCELLED, "cancelled")


def _late() -> Unreached:
    return Unreached(Trouble.TIMED_OUT, "it took too long")


def _too_large(bytes_max: int) -> Unreached:
    return Unreached(Trouble.TOO_LARGE, f"the head of the answer went over {bytes_max} bytes", sent=True)


def _broken(why: str) -> Unreached:
    return Unreached(Trouble.BROKEN, f"the answer is not sound HTTP: {why}", sent=True)


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    keeps: bool
    """HTTP/1.1, and nobody said that the connection closes."""


def _read_head(wire: _Wire, limits: WebLimits) -> _Head:
    """The head of the final answer. Attack: heads, headers or interim answers without end."""
    left = limits.head_bytes_max
    for _ in range(_INFORMATIONAL_MAX):
        line = wire.line(left)
        left -= len(line) + 1
        match = _STATUS.fullmatch(line)
        if match is None:
            raise _broken("there is no status line")
        status = int(match[2])
        headers, left = _read_headers(wire, left, limits.headers_max)
        if status >= 200:
            said = (_header(headers, "connection") or "").lower()
            keeps = match[1] == b"1" and "close" not in said
            reason = (match[3] or b"").decode("latin-1")[:200]
            return _Head(status, "".join(filter(str.isprintable, reason)), headers, keeps)
        if status == 101:
            raise _broken("it changes the protocol, which nobody asked for")
    raise _broken("too many interim answers")


def _read_headers(wire: _Wire, left: int, count_max: int) -> tuple[tuple[tuple[str, str], ...], int]:
    found: list[tuple[str, str]] = []
    while line := wire.line(left):
        left -= len(line) + 1
        if len(found) >= count_max:
            raise _broken(f"more than {count_max} headers")
        name, colon, value = line.decode("latin-1").partition(":")
        value = value.strip(" \t")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise _broken("a header that is none")
        found.append((name, value))
    return tuple(found), left


# -- bodies -------------------------------------------------------------------------------------------------


class _Framing(StrEnum):
    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


def _framing(method: str, head: _Head) -> tuple[_Framing, int]:
    """How the body is delimited. Attack: two ways at once, so that the next answer begins inside this one."""
    if method == "HEAD" or head.status in (204, 304):
        return _Framing.NONE, 0
    coding, length = _header(head.headers, "transfer-encoding"), _header(head.headers, "content-length")
    if coding is not None:
        if coding.strip().lower() != "chunked" or length is not None:
            raise _broken("its length is stated in more than one way")
        return _Framing.CHUNKED, 0
    if length is None:
        return _Framing.CLOSE, 0
    values = {value.strip() for value in length.split(",")}
    (value, *others) = values
    if others or not value.isascii() or not value.isdigit() or len(value) > 18:
        raise _broken("its length is none")
    return (_Framing.LENGTH, int(value)) if int(value) else (_Framing.NONE, 0)


def _raw_body(wire: _Wire, framing: _Framing, length: int, limits: WebLimits) -> Iterator[bytes]:
    """The body as it arrives, to its very end."""
    if framing is _Framing.LENGTH:
        while length:
            data = wire.some(length)
            length -= len(data)
            yield data
    elif framing is _Framing.CHUNKED:
        while size := _chunk_size(wire.line(1024)):
            while size:
                data = wire.some(size)
                size -= len(data)
                yield data
            if wire.line(64):
                raise _broken("a chunk is longer than it says")
        _read_headers(wire, limits.head_bytes_max, limits.headers_max)
    elif framing is _Framing.CLOSE:
        if wire.unread:
            yield wire.some(math.inf)
        while data := wire.receive():
            yield data


def _chunk_size(line: bytes) -> int:
    size = line.partition(b";")[0].strip()
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
        raise _broken("a chunk without a size")
    return int(size, 16)


class _Unpacking:
    """Takes one layer of compression off, a bounded piece at a time.

    Attack: a few kilobytes that unpack to gigabytes, once or in layers. Pieces are handed out as they come,
    so the reader's limit stops them; more than one layer is refused.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._held = b""
        self._unpack = zlib.decompressobj(31) if encoding == "gzip" else None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._unpack is None:  # deflate: with or without zlib's two bytes, and servers do both
            self._held += data
            if len(self._held) < 2:
                return
            data = self._held
            is_zlib = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._unpack = zlib.decompressobj(15 if is_zlib else -15)
        try:
            while True:
                piece = self._unpack.decompress(data, _READ_BYTES)
                data = self._unpack.unconsumed_tail
                if piece:
                    yield piece
                if self._unpack.eof:
                    data = self._unpack.unused_data
                    if self._encoding != "gzip" or not data:
                        return
                    self._unpack = zlib.decompressobj(31)  # gzip files may be joined
                elif not data and len(piece) < _READ_BYTES:
                    return
        except zlib.error:
            raise _broken(f"its body is not {self._encoding}") from None

    @property
    def is_whole(self) -> bool:
        return self._unpack is not None and self._unpack.eof


def _unpacking(headers: Sequence[tuple[str, str]]) -> _Unpacking | None:
    encoding = (_header(headers, "content-encoding") or "").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return _Unpacking("gzip")
    if encoding == "deflate":
        return _Unpacking("deflate")
    raise _broken("its body is encoded in a way that was not asked for")


class Stream:
    """An answer whose body is still coming. Read it in one way, once, inside its ``with``."""

    def __init__(
        self, web: Web, key: _Key, wire: _Wire, method: str, head: _Head, limits: WebLimits, url: str
    ) -> None:
        self.status = head.status
        self.reason = head.reason
        self.headers = head.headers
        self.url = url
        self._web = web
        self._key = key
        self._wire = wire
        self._limits = limits
        self._framing, length = _framing(method, head)
        self._unpacking = _unpacking(head.headers) if self._framing is not _Framing.NONE else None
        self._raw = _raw_body(wire, self._framing, length, limits)
        self._keeps = head.keeps and self._framing is not _Framing.CLOSE
        self._is_whole = self._framing is _Framing.NONE
        self._is_cut = False
        self.contacts: Sequence[Contact] = ()
        """What was sent for it, redirects included; whole when its ``with`` is over."""

    def header(self, name: str) -> str | None:
        """The value of a header, its name in lower case."""
        return _header(self.headers, name)

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces, unpacked. Raises Unreached, also (``TOO_LARGE``) when the limit is reached:
        by then everything up to the limit was handed out."""
        left = wire_left = self._limits.body_bytes_max
        try:
            for data in self._raw:
                wire_left -= len(data)
                for piece in (data,) if self._unpacking is None else self._unpacking.pieces(data):
                    self._wire.check()
                    if len(piece) > left:
                        yield piece[:left]
                        raise self._over()
                    left -= len(piece)
                    yield piece
                if wire_left < 0 or self._wire.received > 8 * self._limits.body_bytes_max + _READ_BYTES * 4:
                    raise self._over()
        except OSError as error:
            raise _lost(error) from None
        except Unreached as error:
            error.sent = True
            raise
        is_empty = wire_left == self._limits.body_bytes_max
        if self._unpacking is not None and not is_empty and not self._unpacking.is_whole:
            raise Unreached(Trouble.LOST, "the compressed body ended too early", sent=True)
        self._is_whole = True

    def _over(self) -> Unreached:
        self._is_cut = True
        limit = self._limits.body_bytes_max
        return Unreached(Trouble.TOO_LARGE, f"the answer went over {limit} bytes", sent=True)

    def lines(self, bytes_max: int = 1 << 20) -> Iterator[bytes]:
        """The body by lines, without their ends (LF, CR or both). Raises Unreached for a longer one."""
        held = bytearray()
        after_cr = False
        for chunk in self.chunks():
            if after_cr and chunk.startswith(b"\n"):
                chunk = chunk[1:]
            if not chunk:
                after_cr = False
                continue
            after_cr = chunk.endswith(b"\r")
            parts = re.split(rb"\r\n|\n|\r", chunk)
            held += parts[0]
            for part in parts[1:]:
                if len(held) > bytes_max:
                    break
                yield bytes(held)
                held = bytearray(part)
            if len(held) > bytes_max:
                raise Unreached(Trouble.TOO_LARGE, f"a line went over {bytes_max} bytes", sent=True)
        if held:
            yield bytes(held)

    def read(self) -> tuple[bytes, bool]:
        """The whole body, and whether it was cut at the limit."""
        parts: list[bytes] = []
        try:
            parts.extend(self.chunks())
        except Unreached:
            if not self._is_cut:
                raise
            return b"".join(parts), True
        return b"".join(parts), False

    @property
    def received_bytes(self) -> int:
        return self._wire.received

    def close(self) -> None:
        """Keeps the connection where the answer ended as it should, and drops it otherwise."""
        if self._is_whole and self._keeps:
            self._web.keep(self._key, self._wire)
        else:
            self._wire.close()


def _lost(error: OSError) -> Unreached:
    why = (error.strerror or type(error).__name__).lower()
    return Unreached(Trouble.LOST, f"the connection was lost: {why}", sent=True)


# -- the web ------------------------------------------------------------------------------------------------

_Key: TypeAlias = tuple[tuple[str, str, int], Reach, int]


@dataclass(frozen=True, slots=True)
class _Terms:
    """Under which one request is sent, redirects included."""

    reach: Reach
    limits: WebLimits
    deadline: float
    cancel: Cancel
    contacts: list[Contact] = field(default_factory=list)
    """What happened so far, for the record."""


class Web:
    """Sends requests and keeps connections; for all threads of a host. ``close`` ends the idle ones."""

    def __init__(self, *, resolve: Resolve = resolve, tls: ssl.SSLContext | None = None) -> None:
        self._resolve = resolve
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: dict[_Key, list[_Wire]] = {}
        self._is_closed = False
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)

    def send(
        self, request: Request, *, reach: Reach, limits: WebLimits, deadline: float, cancel: Cancel
    ) -> Answer:
        """One request and its whole answer. ``deadline`` is a moment of ``time.monotonic``."""
        terms = _Terms(reach, limits, deadline, cancel)
        with self._streaming(request, terms) as stream:
            body, truncated = stream.read()
        return Answer(
            status=stream.status,
            reason=stream.reason,
            headers=stream.headers,
            body=body,
            truncated=truncated,
            url=stream.url,
            contacts=tuple(terms.contacts),
        )

    @contextmanager
    def stream(
        self, request: Request, *, reach: Reach, limits: WebLimits, deadline: float, cancel: Cancel
    ) -> Iterator[Stream]:
        """One request and an answer that is read as it comes; ``deadline`` may be infinite."""
        with self._streaming(request, _Terms(reach, limits, deadline, cancel)) as stream:
            yield stream

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            wires = [wire for kept in self._idle.values() for wire in kept]
            self._idle.clear()
        for wire in wires:
            wire.close()

    # -- redirects ------------------------------------------------------------------------------------------

    @contextmanager
    def _streaming(
        self,
        request: Request,
        terms: _Terms,
    ) -> Iterator[Stream]:
        started = time.monotonic()
        try:
            stream = self._follow(request, terms)
            stream.contacts = terms.contacts
            started = time.monotonic()
            try:
                yield stream
            finally:
                self._finish(terms.contacts, stream, started)
                stream.close()
        except Unreached as error:
            error.contacts = error.contacts or tuple(terms.contacts)
            raise

    @staticmethod
    def _finish(contacts: list[Contact], stream: Stream, started: float) -> None:
        last = contacts[-1]
        duration_ms = round(last.duration_ms + (time.monotonic() - started) * 1000, 3)
        contacts[-1] = replace(last, received_bytes=stream.received_bytes, duration_ms=duration_ms)

    def _follow(
        self,
        request: Request,
        terms: _Terms,
    ) -> Stream:
        if not _TOKEN.fullmatch(request.method) or request.method.upper() in ("CONNECT", "TRACE"):
            raise _malformed(f"{request.method[:60]!r} is not a method to send")
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
                    raise _refused("the answer leads from https to http")
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

    # -- one exchange ---------------------------------------------------------------------------------------

    def _exchange(
        self,
        request: Request,
        target: Target,
        terms: _Terms,
    ) -> Stream:
        started = time.monotonic()
        contact = Contact(method=request.method, scheme=target.scheme, host=target.host, port=target.port)
        key = (target.origin, terms.reach, os.getpid())
        is_safe = request.method in SAFE
        wire = self._take(key, _IDLE_S if is_safe else _IDLE_UNSAFE_S)
        is_kept = wire is not None
        stream: Stream | None = None
        try:
            if wire is None:
                wire = self._open(target, terms)
            try:
                stream = self._ask(wire, key, request, target, terms)
            except Unreached as error:
                # The server dropped the idle connection: again, where it surely processed nothing.
                unseen = not wire.received and (is_safe or not wire.sent)
                if not (is_kept and error.kind is Trouble.LOST and unseen):
                    raise
                wire = self._open(target, terms)
                stream = self._ask(wire, key, request, target, terms)
            return stream
        finally:
            duration_ms = round((time.monotonic() - started) * 1000, 3)
            if wire is not None:
                contact = replace(contact, address=wire.address, received_bytes=wire.received)
            status = stream.status if stream is not None else None
            terms.contacts.append(replace(contact, status=status, duration_ms=duration_ms))

    def _ask(
        self,
        wire: _Wire,
        key: _Key,
        request: Request,
        target: Target,
        terms: _Terms,
    ) -> Stream:
        wire.take(terms.deadline, terms.cancel)
        try:
            try:
                wire.send(_written(request, target))
            except OSError:
                if not wire.sent:
                    raise
                # It may have answered (413) and closed before it had read everything.
            return Stream(
                self, key, wire, request.method, _read_head(wire, terms.limits), terms.limits, request.url
            )
        except Unreached as error:
            wire.close()
            error.sent = wire.sent > 0
            raise
        except OSError as error:
            wire.close()
            lost = _lost(error)
            lost.sent = wire.sent > 0
            raise lost from None
        except BaseException:
            wire.close()
            raise

    # -- connecting -----------------------------------------------------------------------------------------

    def _open(self, target: Target, terms: _Terms) -> _Wire:
        """A new connection to an address that was checked.

        Attack: a name that answers with a public address when it is checked and with a private one when it is
        connected to. It is resolved once; what was checked is what is connected to, and the kernel is asked
        afterwards whom it connected.
        """
        deadline, cancel = terms.deadline, terms.cancel
        addresses = self._addresses(target, terms)
        why = "no address"
        for number, address in enumerate(addresses):
            now = time.monotonic()
            share_s = min(terms.limits.connect_s_max, (deadline - now) / (len(addresses) - number))
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            wire: _Wire | None = None
            try:
                wire = _Wire(socket.socket(family, socket.SOCK_STREAM), address)
                wire.socket.setblocking(False)
                wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire.take(min(deadline, now + share_s), cancel)
                wire.connect((address, target.port))
                peer = str(wire.socket.getpeername()[0])
                refusal = terms.reach.refusal(target.host, target.port, peer)
                if refusal is not None or ipaddress.ip_address(peer) != ipaddress.ip_address(address):
                    raise _refused(f"{target.host} was connected to another address than was checked")
                wire.take(deadline, cancel)
                if target.scheme == "https":
                    wire.shake_hands(self._context(), target.host)
                return wire
            except ssl.SSLError as error:
                _drop(wire)
                said = (
                    error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
                )
                raise Unreached(
                    Trouble.UNTRUSTED,
                    f"TLS with {target.host} failed: {said or 'no common ground'}",
                    hint="the certificate must prove this very name; SSL_CERT_FILE can name more authorities",
                ) from None
            except ValueError:  # TLS has names of its own that it does not take
                _drop(wire)
                raise _malformed("the URL's host is none") from None
            except OSError as error:
                _drop(wire)
                why = (error.strerror or type(error).__name__).lower()
            except Unreached as error:
                _drop(wire)
                if error.kind is not Trouble.TIMED_OUT or time.monotonic() >= deadline:
                    raise
                why = "nobody answered in time"
            except BaseException:
                _drop(wire)
                raise
        raise Unreached(
            Trouble.UNREACHABLE,
            f"{target.host} port {target.port}: {why}",
            hint=f"check the host and port, and that this machine may reach them; {_NO_PROXY}",
        )

    def _addresses(self, target: Target, terms: _Terms) -> Sequence[str]:
        found = self._look_up(target, terms)
        for address in found:  # all of them: one that is refused taints the answer
            refusal = terms.reach.refusal(target.host, target.port, address)
            if refusal is not None:
                raise _refused(
                    f"{target.host} leads to {refusal} ({address})",
                    "only a host grant of net.private opens private ranges"
                    if zone(address) is Zone.PRIVATE
                    else None,
                )
        return found[:ADDRESSES_MAX]

    def _look_up(self, target: Target, terms: _Terms) -> Sequence[str]:
        """The addresses of a host, in a thread: a resolver hears neither deadlines nor buttons."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(target.host))]
        if not self._lookups.acquire(blocking=False):
            raise Unreached(Trouble.UNREACHABLE, "too many names are being looked up", hint="try again later")
        found: list[Sequence[str]] = []
        reading, writing = os.pipe()

        def look() -> None:
            try:
                found.append(list(self._resolve(target.host, target.port)))
            except (OSError, UnicodeError):
                found.append([])
            finally:
                self._lookups.release()
                os.close(writing)

        try:
            try:
                threading.Thread(target=look, name="lookup", daemon=True).start()
            except RuntimeError:  # no thread can be started
                found.append([])
                self._lookups.release()
                os.close(writing)
            _wait(reading, select.POLLIN, terms.deadline, terms.cancel)
        finally:
            os.close(reading)
        if not found:
            raise _late()
        if not found[0]:
            raise Unreached(
                Trouble.UNREACHABLE,
                f"{target.host}: no such host",
                hint=f"check the name, and DNS on this machine; {_NO_PROXY}",
            )
        return found[0]

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return self._tls

    # -- kept connections -----------------------------------------------------------------------------------

    def _take(self, key: _Key, idle_s: float) -> _Wire | None:
        """The youngest idle connection, where one is still good."""
        while True:
            with self._lock:
                kept = self._idle.get(key)
                if not kept:
                    return None
                wire = kept.pop()
                if not kept:
                    del self._idle[key]
            if time.monotonic() - wire.idle_since <= idle_s and wire.is_quiet():
                return wire
            wire.close()

    def keep(self, key: _Key, wire: _Wire) -> None:
        """Take a connection back whose answer is over."""
        wire.take(math.inf, Cancel())
        wire.idle_since = time.monotonic()
        dropped: list[_Wire] = [wire]
        if wire.is_quiet():
            with self._lock:
                if not self._is_closed:
                    kept = self._idle.setdefault(key, [])
                    kept.append(wire)
                    dropped = [kept.pop(0)] if len(kept) > _KEPT_PER_PEER else []
                    if sum(map(len, self._idle.values())) > _KEPT_MAX:
                        oldest = min(self._idle, key=lambda key: self._idle[key][0].idle_since)
                        dropped.append(self._idle[oldest].pop(0))
                        if not self._idle[oldest]:
                            del self._idle[oldest]
        for old in dropped:
            old.close()


def _drop(wire: _Wire | None) -> None:
    if wire is not None:
        wire.close()


def _redirected(request: Request, stream: Stream) -> Request | None:
    """The request that an answer leads to, where it is one to follow.

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
        raise _broken("it leads to what is no URL") from None
    if stream.status != 303 or request.method in SAFE:
        return replace(request, url=url)
    headers = tuple(pair for pair in request.headers if not pair[0].lower().startswith("content-"))
    return Request(method="GET", url=url, headers=headers)
