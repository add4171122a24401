"""The network below httpcore2, and what is read from it: checked addresses, deadlines, strict answers.

httpcore2 keeps connections and speaks HTTP/1.1 (by h11). Its backend here resolves names, checks every
address, connects to the checked one, obeys the deadline and the cancel token, and passes on the bytes of one
answer and no more. Imported at the first request: httpcore2 is slow to import.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import httpcore2
from msgspec.structs import replace

from toolcrib.runtimes._addresses import Zone, zone
from toolcrib.runtimes._http_body import Unpacking
from toolcrib.runtimes._http_client import CONNECT_S_MAX, Exchange, Proxy, Reach, Resolve, late
from toolcrib.runtimes._http_request import (
    Request,
    Target,
    Trouble,
    Unreached,
    broken,
    header,
    malformed,
    written_headers,
)
from toolcrib.sandbox import Cancel

ADDRESSES_MAX: Final = 8
LOOKUPS_MAX: Final = 32
"""Names being looked up at once: a resolver that hangs must not gather threads."""
KEPT_PER_HOST: Final = 8
KEPT_MAX: Final = 64
IDLE_S: Final = 30.0
IDLE_UNSAFE_S: Final = 4.0
"""Common servers drop an idle connection after five seconds, and a request that meets the drop may or may not
have been seen: what must not be repeated takes a connection that is younger."""
_READ_BYTES: Final = 64 << 10
_NO_PROXY: Final = "no proxy of the environment is used: [http] proxy names one"
_LINE_END: Final = re.compile(rb"\r?\n")
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] [1-5][0-9]{2}(?: [^\n]*)?\r?\n")
_FIELDS: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r?\n)*\r?\n")


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


# -- a connection -------------------------------------------------------------------------------------------


class _Connection(httpcore2.NetworkStream):
    """A connected socket that passes on the bytes of one answer at a time."""

    def __init__(self, peer: socket.socket, address: str, exchange: Exchange, *, is_tunnel: bool) -> None:
        self._peer = peer
        self._address = address
        self._exchange = exchange
        self._is_kept = False
        self._is_tunnel = is_tunnel
        """Only the proxy is asked so far: the server has seen nothing."""
        self._heard = time.monotonic()
        self._unread = bytearray()
        self._passed = b""
        """The last two bytes that were passed on."""
        self._head_bytes = 0
        self._is_head = self._is_chunked = False
        self._left = math.inf

    def expect_body(self, left: float, *, is_chunked: bool) -> None:
        """Pass on a body of this length from now on; infinite: to its last chunk, or until it is closed."""
        self._is_head, self._is_chunked, self._left = False, is_chunked, left

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        exchange: Exchange = timeout
        if exchange is not self._exchange:
            self._exchange, self._is_kept = exchange, True
            exchange.sent = exchange.received = 0
            if not exchange.is_safe and time.monotonic() - self._heard > IDLE_UNSAFE_S:
                raise httpcore2.ConnectionNotAvailable
        exchange.address = self._address
        self._is_head, self._head_bytes = True, 0
        view = memoryview(buffer)
        try:
            while view:
                send = partial(self._peer.send, view[:_READ_BYTES])
                count = exchange.again(send, self._peer, select.POLLOUT)
                exchange.sent += 0 if self._is_tunnel else count
                view = view[count:]
        except OSError as error:
            if not exchange.sent:
                raise self._lost(_reason(error)) from None
            # It may have answered (413) and closed before it had read everything.
            raise httpcore2.WriteError from None

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        """Read no byte behind the end of an answer.

        Attack: bytes behind the end, which h11 would keep and read as the answer to the next request. Heads
        and chunked bodies end with a blank line, so what is passed on at once ends with the first one.
        """
        if self._is_head:
            return self._read_head()
        if not self._unread and not self._receive():
            if self._left == math.inf and not self._is_chunked:
                return b""
            raise self._lost()
        count = len(self._unread)
        if self._is_chunked:
            begun = self._passed.endswith((b"\n", b"\n\r"))
            end = (_LINE_END.match(self._unread) if begun else None) or _BLANK_LINE.search(self._unread)
            count = end.end() if end is not None else count
        else:
            count = int(min(count, self._left))
            self._left -= count
        return self._pass_on(count)

    def _read_head(self) -> bytes:
        """Read one head, interim or final, and not a byte of what follows.

        Attack: heads and headers without end; folded headers and odd bytes that others read differently.
        """
        limits, start = self._exchange.limits, 0
        while (end := _BLANK_LINE.search(self._unread, start)) is None:
            start = max(len(self._unread) - 2, 0)
            if self._head_bytes + start > limits.head_bytes_max:
                break
            if b"\n" in self._unread and not _STATUS_LINE.match(self._unread):
                raise broken("there is no status line")
            if not self._receive():
                raise self._lost()
        self._head_bytes += end.end() if end is not None else limits.head_bytes_max
        if end is None or self._head_bytes > limits.head_bytes_max:
            why = f"the head of the answer went over {limits.head_bytes_max} bytes"
            raise Unreached(Trouble.TOO_LARGE, why, sent=True)
        head = self._pass_on(end.end())
        status_line = _STATUS_LINE.match(head)
        if status_line is None:
            raise broken("there is no status line")
        if not _FIELDS.fullmatch(head, status_line.end()):
            raise broken("a header that is none")
        if head.count(b"\n") - 2 > limits.headers_max:
            raise broken(f"more than {limits.headers_max} headers")
        return head

    def _pass_on(self, count: int) -> bytes:
        data = bytes(self._unread[:count])
        del self._unread[:count]
        self._passed = (self._passed + data)[-2:]
        return data

    def _receive(self) -> bool:
        exchange, peer = self._exchange, self._peer
        try:
            data = exchange.again(lambda: peer.recv(_READ_BYTES), peer)
        except OSError as error:
            raise self._lost(_reason(error)) from None
        exchange.received += len(data)
        self._unread += data
        self._heard = time.monotonic()
        return bool(data)

    def _lost(self, why: str = "") -> Exception:
        exchange = self._exchange
        if self._is_kept and not exchange.received and (exchange.is_safe or not exchange.sent):
            # The server dropped the idle connection: again on another, if it surely processed nothing.
            return httpcore2.ConnectionNotAvailable()
        if self._is_tunnel:
            return Unreached(Trouble.UNREACHABLE, "the proxy ended the connection")
        said = f"the connection was lost: {why}" if why else "the connection ended before the answer did"
        return Unreached(Trouble.LOST, said, sent=exchange.sent > 0)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: Any = None
    ) -> httpcore2.NetworkStream:
        exchange: Exchange = timeout
        try:
            if self._unread:  # Attack: a proxy that says what the server behind it would say
                raise broken("the proxy said more than was asked for")
            self._peer = peer = ssl_context.wrap_socket(
                self._peer, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            exchange.again(peer.do_handshake, peer)
        except BaseException as error:
            self.close()
            if isinstance(error, ssl.SSLError):
                said = getattr(error, "verify_message", None) or error.reason or "no common ground"
                raise Unreached(
                    Trouble.UNTRUSTED,
                    f"TLS with {server_hostname} failed: {said}",
                    hint="the certificate must prove this very name; [http] ca_file names more authorities",
                ) from None
            if isinstance(error, OSError):
                raise Unreached(Trouble.UNREACHABLE, f"{server_hostname}: {_reason(error)}") from None
            if isinstance(error, ValueError):  # TLS has names of its own that it does not take
                raise malformed("the URL's host is none") from None
            raise
        self._is_tunnel = False
        return self

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return None
        # Attack: bytes sent ahead of a request as its answer. A connection that is not quiet is dropped.
        try:
            waiting = select.poll()
            waiting.register(self._peer.fileno(), select.POLLIN)
            pending = self._peer.pending() if isinstance(self._peer, ssl.SSLSocket) else 0
            return bool(self._unread or pending or waiting.poll(0))
        except (OSError, ValueError):
            return True

    def close(self) -> None:
        with suppress(OSError):
            self._peer.close()


# -- connecting ---------------------------------------------------------------------------------------------


class _Backend(httpcore2.NetworkBackend):
    """Connects to checked addresses only."""

    def __init__(
        self, resolve: Resolve, lookups: threading.BoundedSemaphore, reach: Reach, *, is_tunnel: bool
    ) -> None:
        self._resolve = resolve
        self._lookups = lookups
        self._reach = reach
        self._is_tunnel = is_tunnel

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        """Connect to an address that was checked.

        Attack: a name that answers with a public address when it is checked and with a private one when it is
        connected to. It is resolved once; what was checked is what is connected to, and the kernel is asked
        afterwards whom it connected.
        """
        exchange: Exchange = timeout
        exchange.sent = exchange.received = 0
        addresses = self._checked_addresses(host, port, exchange)
        why = "no address"
        for number, address in enumerate(addresses):
            now = time.monotonic()
            share_s = min(CONNECT_S_MAX, (exchange.deadline - now) / (len(addresses) - number))
            try:
                peer = self._connected(host, port, address, replace(exchange, deadline=now + share_s))
                return _Connection(peer, address, exchange, is_tunnel=self._is_tunnel)
            except OSError as error:
                why = _reason(error)
            except Unreached as error:
                if error.kind is not Trouble.TIMED_OUT or time.monotonic() >= exchange.deadline:
                    raise
                why = "nobody answered in time"
        raise Unreached(
            Trouble.UNREACHABLE,
            f"{host} port {port}: {why}",
            hint=f"check the host and port, and that this machine may reach them; {_NO_PROXY}",
        )

    def _connected(self, host: str, port: int, address: str, exchange: Exchange) -> socket.socket:
        peer = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = peer.connect_ex((address, port))
            if code in (errno.EINPROGRESS, errno.EAGAIN):
                exchange.wait(peer.fileno(), select.POLLOUT)
                exchange.check()
                code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            there = str(peer.getpeername()[0])
            refusal = self._reach.refusal(host, port, there)
            if refusal is not None or ipaddress.ip_address(there) != ipaddress.ip_address(address):
                raise Unreached(Trouble.REFUSED, f"{host} was connected to another address than was checked")
            return peer
        except BaseException:
            peer.close()
            raise

    def _checked_addresses(self, host: str, port: int, exchange: Exchange) -> Sequence[str]:
        found = self._look_up(host, port, exchange)
        for address in found:  # all of them: one that is refused taints the answer
            refusal = self._reach.refusal(host, port, address)
            if refusal is not None:
                hint = "only a host grant of net.private opens private ranges"
                raise Unreached(
                    Trouble.REFUSED,
                    f"{host} leads to {refusal} ({address})",
                    hint=hint if zone(address) is Zone.PRIVATE else None,
                )
        return found[:ADDRESSES_MAX]

    def _look_up(self, host: str, port: int, exchange: Exchange) -> Sequence[str]:
        """Look up a host, in a thread: a resolver obeys no deadline and no cancel token."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        if not self._lookups.acquire(blocking=False):
            raise Unreached(Trouble.UNREACHABLE, "too many names are being looked up", hint="try again later")
        found: list[Sequence[str]] = []
        done = Cancel()

        def look() -> None:
            try:
                found.append(list(self._resolve(host, port)))
            except (OSError, UnicodeError):
                found.append([])
            finally:
                self._lookups.release()
                done.set()

        try:
            threading.Thread(target=look, name="lookup", daemon=True).start()
        except RuntimeError:
            self._lookups.release()
            raise Unreached(Trouble.UNREACHABLE, "no thread can be started to look up names") from None
        exchange.wait(done.fileno(), select.POLLIN)
        if not found:
            raise late()
        if not found[0]:
            raise Unreached(
                Trouble.UNREACHABLE,
                f"{host}: no such host",
                hint=f"check the name, and DNS on this machine; {_NO_PROXY}",
            )
        return found[0]


# -- answers ------------------------------------------------------------------------------------------------


class Stream:
    """An answer whose body is still coming. Read it in one way, once, before it is closed."""

    def __init__(
        self, response: httpcore2.Response, request: Request, exchange: Exchange, done: Callable[[], None]
    ) -> None:
        self.status = response.status
        reason = response.extensions["reason_phrase"].decode("latin-1")[:200]
        self.reason = "".join(filter(str.isprintable, reason))
        self.headers = tuple(
            (str(name, "latin-1"), str(value, "latin-1")) for name, value in response.headers
        )
        self.url = request.url
        self.exchange = exchange
        self._response = response
        self._done: Callable[[], None] | None = done
        self._is_cut = False
        if self.status < 200:
            raise broken("it changes the protocol, which was not asked for")
        length, is_chunked = self.header("content-length"), self.header("transfer-encoding") is not None
        if is_chunked and length is not None:
            # Attack: two lengths, so that the next answer begins inside this one.
            raise broken("its length is stated in more than one way")
        has_body = request.method != "HEAD" and self.status not in (204, 304)
        left = (math.inf if length is None else int(length)) if has_body else 0
        response.extensions["network_stream"].expect_body(left, is_chunked=has_body and is_chunked)
        self._is_empty = not left
        self._unpacking = None if self._is_empty else Unpacking.of(self.headers)
        if self._is_empty:  # only a connection that was read to the end of its answer is kept
            for _ in self._raw():
                pass

    def header(self, name: str) -> str | None:
        """Return the value of a header; its name is in lower case."""
        return header(self.headers, name)

    def _raw(self) -> Iterator[bytes]:
        with _explained(self.exchange):
            yield from self._response.iter_stream()

    def chunks(self) -> Iterator[bytes]:
        """Yield the body in pieces, unpacked. Raises Unreached, also (``TOO_LARGE``) when the limit is
        reached: by then everything up to the limit was yielded."""
        bytes_max = self.exchange.limits.body_bytes_max
        left = wire_left = bytes_max
        try:
            for data in () if self._is_empty else self._raw():
                wire_left -= len(data)
                for piece in (data,) if self._unpacking is None else self._unpacking.pieces(data):
                    self.exchange.check()
                    if len(piece) > left:
                        yield piece[:left]
                        raise self._over()
                    left -= len(piece)
                    yield piece
                # Attack: chunks of one byte each, which cost more to send than they hold.
                if wire_left < 0 or self.exchange.received > 8 * bytes_max + 4 * _READ_BYTES:
                    raise self._over()
            if self._unpacking is not None and wire_left < bytes_max:
                self._unpacking.end()
        except Unreached as error:
            error.sent = True
            raise

    def _over(self) -> Unreached:
        self._is_cut = True
        limit = self.exchange.limits.body_bytes_max
        return Unreached(Trouble.TOO_LARGE, f"the answer went over {limit} bytes", sent=True)

    def lines(self, bytes_max: int = 1 << 20) -> Iterator[bytes]:
        """Yield the body by lines, without their ends (LF, CR or both). Raises Unreached for a longer one."""
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
        """Return the whole body, and whether it was cut at the limit."""
        parts: list[bytes] = []
        try:
            parts.extend(self.chunks())
        except Unreached:
            if not self._is_cut:
                raise
        return b"".join(parts), self._is_cut

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, and drop it otherwise."""
        done, self._done = self._done, None
        if done is not None:
            done()


@contextmanager
def _explained(exchange: Exchange) -> Iterator[None]:
    """Turn what httpcore2 raises into Unreached. Its words may hold what a server sent: they are left out."""
    try:
        yield
    except Unreached as error:
        error.sent = error.sent or exchange.sent > 0
        raise
    except httpcore2.ProxyError as error:
        raise _proxy_refused(str(error)) from None
    except httpcore2.RemoteProtocolError:
        raise broken("its head or its chunks are malformed") from None
    except httpcore2.LocalProtocolError:
        raise malformed("the request is not sound HTTP") from None


def _proxy_refused(said: str) -> Unreached:
    status = re.match("[0-9]{3}", said)
    return Unreached(
        Trouble.UNREACHABLE,
        f"the proxy refused the connection (HTTP status {status[0] if status else 'unknown'})",
        hint="check [http] proxy, and its secret",
    )


# -- requests and kept connections --------------------------------------------------------------------------


class _Pool(httpcore2.ConnectionPool):
    """Connections to one origin under one set of rules."""

    users = 0


class Connections:
    """Sends requests over kept connections: a pool for each origin under one set of rules.

    A connection that was opened under a wider permit is not used under a narrower one, nor in a fork.
    """

    def __init__(self, resolve: Resolve, context: Callable[[], ssl.SSLContext]) -> None:
        self._resolve = resolve
        self._context = context
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)
        self._lock = threading.Lock()
        self._pools: dict[object, _Pool] = {}
        """The least recently used first."""
        self._is_closed = False

    def send(self, request: Request, target: Target, exchange: Exchange, proxy: Proxy | None) -> Stream:
        """Send a request and read the head of its answer. The stream must be closed."""
        exchange.check()
        is_relayed = proxy is not None or exchange.reach.opens(target.host, target.port)
        sent = httpcore2.Request(
            request.method,
            httpcore2.URL(
                scheme=target.scheme, host=target.host, port=target.own_port, target=target.resource
            ),
            headers=written_headers(request, target, is_relayed=is_relayed),
            content=request.body or b"",
            # Handed to the backend as it is: it carries the deadline and the cancel token.
            extensions={"timeout": dict.fromkeys(("connect", "read", "write"), exchange)},
        )
        login = proxy.login() if proxy is not None and proxy.login is not None else ""
        through = None if proxy is None else (proxy.host, proxy.port)
        key = (target.origin, exchange.reach, through, login, os.getpid())
        pool = self._pool(key, target, exchange.reach, proxy, login)
        response: httpcore2.Response | None = None

        def done() -> None:
            try:
                if response is not None:
                    response.close()
            finally:
                self._give_back(key, pool)

        try:
            with _explained(exchange):
                response = pool.handle_request(sent)
            if proxy is not None and response.status == 407:
                raise _proxy_refused("407")  # Attack: a proxy that repeats our credentials in its page
            return Stream(response, request, exchange, done)
        except BaseException:
            done()
            raise

    def close(self) -> None:
        """Close the idle connections, and the others as soon as they are."""
        with self._lock:
            self._is_closed = True
            unused = [key for key, pool in self._pools.items() if not pool.users]
            pools = [self._pools.pop(key) for key in unused]
        for pool in pools:
            pool.close()

    def _pool(self, key: object, target: Target, reach: Reach, proxy: Proxy | None, login: str) -> _Pool:
        with self._lock:
            pool = self._pools.pop(key, None) or self._new_pool(target, reach, proxy, login)
            self._pools[key] = pool
            pool.users += 1
            return pool

    def _new_pool(self, target: Target, reach: Reach, proxy: Proxy | None, login: str) -> _Pool:
        through, is_tls = None, target.scheme == "https"
        if proxy is not None:
            # It resolves the name, so only its own address is checked here; it is the configuration's word.
            reach = Reach(hosts=frozenset({(proxy.host, proxy.port)}))
            user, _, password = login.encode().partition(b":")
            url = httpcore2.URL(scheme="http", host=proxy.host, port=proxy.port, target="/")
            through = httpcore2.Proxy(url, auth=(user, password) if login else None)
        is_tunnel = is_tls and through is not None
        return _Pool(
            ssl_context=self._context() if is_tls else None,
            proxy=through,
            max_connections=None,
            max_keepalive_connections=KEPT_PER_HOST,
            keepalive_expiry=IDLE_S,
            network_backend=_Backend(self._resolve, self._lookups, reach, is_tunnel=is_tunnel),
        )

    def _give_back(self, key: object, pool: _Pool) -> None:
        with self._lock:
            pool.users -= 1
            dropped = []
            # A tunnel that failed half-way is neither idle nor closed, and would be kept for ever.
            if not pool.users and (self._is_closed or not _is_idle(pool)):
                dropped.append(self._pools.pop(key))
            unused = {key: len(each.connections) for key, each in self._pools.items() if not each.users}
            over = sum(unused.values()) - KEPT_MAX
            for oldest, count in unused.items():
                if over > 0:
                    dropped.append(self._pools.pop(oldest))
                    over -= count
        for each in dropped:
            each.close()


def _is_idle(pool: _Pool) -> bool:
    """Whether a pool that is not in use keeps connections, and only good ones."""
    connections = pool.connections
    return bool(connections) and all(connection.is_idle() for connection in connections)
