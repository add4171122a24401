"""HTTP requests before they are sent: the URL, the method and the headers, checked; and why one fails.

Nothing here connects. ``_http_client.py`` sends requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from toolcrib.model import URL_CHARS_MAX
from toolcrib.records import Discreet

if TYPE_CHECKING:
    from toolcrib.runtimes._http_client import Contact

HEADERS_SENT_MAX: Final = 100
HEADER_CHARS_MAX: Final = 16_384
SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing, so that a request may be sent again."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_URL: Final = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+?)\.?(?::([0-9]{0,5}))?")
_PORTS: Final = {"http": 80, "https": 443}
_OURS: Final = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect",
        "keep-alive", "proxy-connection", "proxy-authorization",
    }
)  # fmt: skip
"""Headers that say where a request ends or who it is for: only the client writes them."""
_RELAY: Final = ("Via", "1.1 toolcrib")


class Trouble(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"
    """We do not connect there; ``hint`` says what would permit it, if anything does."""
    MALFORMED = "malformed"
    """It cannot be sent: the URL, the method or a header is invalid."""
    UNREACHABLE = "unreachable"
    """The host does not exist, or accepts no connection."""
    UNTRUSTED = "untrusted"
    """TLS could not be set up: the certificate does not prove the name, or there is none."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The connection ended before the answer did."""
    BROKEN = "broken"
    """What came is not a valid HTTP answer."""
    TOO_LARGE = "too_large"
    """The answer went over a limit."""


class Unreached(Exception):
    """No answer. ``sent`` is False only if the server surely saw nothing of the request."""

    def __init__(self, kind: Trouble, why: str, *, hint: str | None = None, sent: bool = False) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.hint = hint
        self.sent = sent
        self.contacts: tuple[Contact, ...] = ()


def malformed(why: str, hint: str | None = None) -> Unreached:
    return Unreached(Trouble.MALFORMED, why, hint=hint)


def broken(why: str) -> Unreached:
    return Unreached(Trouble.BROKEN, f"the answer is not sound HTTP: {why}", sent=True)


class Request(Discreet, frozen=True, kw_only=True):
    """One request. Connection, length and encoding headers are not the caller's."""

    HIDDEN: ClassVar = (
        "headers",
        "body",
    )

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


class Target(Struct, frozen=True):
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
        return host if self.own_port is None else f"{host}:{self.port}"

    @property
    def own_port(self) -> int | None:
        """The port, if it is not the scheme's."""
        return None if self.port == _PORTS[self.scheme] else self.port


def target_of(url: str) -> Target:
    """Return where a URL leads. Raises Unreached for one that two readers could understand differently.

    Attack: ``http://good@bad/``, ``http://good\\@bad/``, tabs and line ends inside a URL, digits of other
    scripts: readers disagree about the host, so that what was checked is not what is connected to.
    """
    if len(url) > URL_CHARS_MAX:
        raise malformed(f"the URL has more than {URL_CHARS_MAX} characters")
    if not url.isascii():
        raise malformed("the URL has characters outside of ASCII", "percent-encode them; a host as xn--…")
    if any(char <= " " or char in "\\\x7f" for char in url):
        raise malformed("the URL has a space, a backslash or a control character", "percent-encode it")
    match = _URL.fullmatch(url)
    if match is None:
        raise malformed("the URL must begin with http:// or https://")
    scheme, authority, path, query = match[1].lower(), match[2], match[3], match[4]
    if "@" in authority:
        raise malformed("the URL holds a user name", "send credentials in a header")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise malformed("the URL's host is none")
    port = int(parts[2]) if parts[2] else _PORTS[scheme]
    if not 0 < port < 65_536:
        raise malformed(f"the URL's port is none (got {port})")
    host = parts[1].strip("[]").lower()
    if not all(0 < len(label) < 64 for label in host.split(".")) or len(host) > 253:
        raise malformed("the URL's host is none")
    return Target(scheme, host, port, (path or "/") + (query or ""))


def is_literal(host: str) -> bool:
    """Whether a host is an address in some spelling (``127.1``, ``0x7f.1``, ``::1``), or this machine."""
    last = host.rpartition(".")[2]
    is_number = last.isdigit() or re.fullmatch("0x[0-9a-f]*", last) is not None
    return ":" in host or is_number or last == "localhost"


def literal_hosts(url: str) -> frozenset[tuple[str, int]]:
    """Return the host and port of a URL whose host is an address, or this machine by its name.

    Who may be trusted to configure such a URL has named the very place; a name that leads there has not.
    """
    with suppress(Unreached):
        target = target_of(url)
        host = target.host
        if host == "localhost" or ":" in host or host.replace(".", "").isdigit():
            return frozenset({(host, target.port)})
    return frozenset()


def check_method(method: str) -> None:
    """Raise Unreached for what is no method, or would change the connection."""
    if not _TOKEN.fullmatch(method) or method.upper() in ("CONNECT", "TRACE"):
        raise malformed(f"{method[:60]!r} is not a method to send")


def check_headers(headers: Sequence[tuple[str, str]]) -> None:
    """Raise Unreached for what would end a header early or speak about the connection.

    Attack: an argument with a line end that adds headers, or a whole second request.
    """
    if len(headers) > HEADERS_SENT_MAX:
        raise malformed(f"more than {HEADERS_SENT_MAX} headers")
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise malformed(f"{name[:60]!r} is not the name of a header")
        if name.lower() in _OURS:
            raise malformed(f"the header {name} is not the caller's to set", "leave it out")
        if len(value) > HEADER_CHARS_MAX or not _VALUE.fullmatch(value):
            # The value is not shown: it may be a secret.
            raise malformed(
                f"the header {name} has a value that cannot be sent",
                f"no line ends or control characters, Latin-1 only, at most {HEADER_CHARS_MAX} characters",
            )


def header(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return all values of a header as one; ``name`` is in lower case."""
    values = [value for found, value in headers if found.lower() == name]
    return ", ".join(values) if values else None


def written_headers(request: Request, target: Target, *, is_relayed: bool) -> list[tuple[bytes, bytes]]:
    """Return all headers of a request as they are sent. ``is_relayed``: say that it is sent for another."""
    names = {name.lower() for name, _ in request.headers}
    lines = [("Host", target.authority), *request.headers]
    if is_relayed:
        # Attack: a tool has our process, which is no tool's, ask a server on loopback as its owner. A server
        # of ours never takes a relayed one for its owner's. Public ones are spared: some compress less then.
        lines.append(_RELAY)
    if "user-agent" not in names:
        lines.append(("User-Agent", "toolcrib"))
    if "accept-encoding" not in names:
        lines.append(("Accept-Encoding", "gzip, deflate"))
    if request.body is not None or request.method not in SAFE:
        lines.append(("Content-Length", str(len(request.body or b""))))
    # Spaces around a value mean nothing, and the library refuses them with the value in its message.
    return [(name.encode("ascii"), value.strip(" \t").encode("latin-1")) for name, value in lines]
