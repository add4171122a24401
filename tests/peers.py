"""A server on loopback that says exactly what a test tells it to: real sockets, raw bytes, nothing polite."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType

WAIT_S = 10.0
BYTES_MAX = 64 << 20


@dataclass
class Asked:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Talk:
    """One connection, from the server's side."""

    socket: socket.socket
    number: int
    held: bytearray = field(default_factory=bytearray)

    def request(self) -> Asked | None:
        """The next request; None when the client is gone."""
        while b"\r\n\r\n" not in self.held:
            if not self._more():
                return None
        head, _, rest = bytes(self.held).partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        length = int(headers.get("content-length", "0"))
        self.held = bytearray(rest)
        while len(self.held) < length:
            if not self._more():
                return None
        body = bytes(self.held[:length])
        del self.held[:length]
        return Asked(line, headers, body, self.number)

    def _more(self) -> bool:
        data = self.socket.recv(65536)
        self.held += data
        return bool(data)

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until_gone(self) -> bool:
        """Wait until the client closes; whether it did in time."""
        with suppress(OSError):
            while self.socket.recv(65536):
                pass
            return True
        return isinstance(self.socket, ssl.SSLSocket) or self.socket.fileno() >= 0


Script = Callable[["Peer", Talk], None]


class Peer:
    """Plays one script per connection, in order; the last one is played again for every further one."""

    def __init__(
        self, *scripts: Script, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
    ) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self.gone = threading.Event()
        """Set when a script has seen its client go."""
        self._scripts = scripts
        self._tls = tls
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.port: int = self._listener.getsockname()[1]
        self._over, self._stop = socket.socketpair()
        self._talks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://{host}:{self.port}{path}"

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.send(b"x")
        self._threads[0].join(WAIT_S)
        self._listener.close()
        for talk in self._talks:
            with suppress(OSError):
                talk.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(WAIT_S)
        for talk in self._talks:
            talk.close()
        self._over.close()
        self._stop.close()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._over], [], [])
            if self._over in ready:
                return
            connection, _ = self._listener.accept()
            connection.settimeout(WAIT_S)
            number, self.connections = self.connections, self.connections + 1
            self._talks.append(connection)
            thread = threading.Thread(target=self._play, args=(connection, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _play(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._talks.append(connection)
            script = self._scripts[min(number, len(self._scripts) - 1)]
            script(self, Talk(connection, number))
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


@contextmanager
def nobody() -> Iterator[str]:
    """A URL where nobody listens: its port is held, or a server of another test might get it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/"


def response(body: bytes = b"ok", status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer with its length; underscores in names stand for dashes."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in given.items())]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def answers(*data: bytes) -> Script:
    """Answers each request of a connection with the next of these; the last one again and again."""

    def play(peer: Peer, talk: Talk) -> None:
        count = 0
        while (asked := talk.request()) is not None:
            peer.asked.append(asked)
            talk.say(data[min(count, len(data) - 1)])
            count += 1
        peer.gone.set()

    return play


def once(data: bytes) -> Script:
    """Answers one request and closes."""

    def play(peer: Peer, talk: Talk) -> None:
        asked = talk.request()
        if asked is not None:
            peer.asked.append(asked)
            talk.say(data)

    return play


def endless(head: bytes, part: bytes) -> Script:
    """Answers one request with a head and then without end, until the client goes."""

    def play(peer: Peer, talk: Talk) -> None:
        asked = talk.request()
        if asked is not None:
            peer.asked.append(asked)
        talk.say(head)
        try:
            for _ in range(BYTES_MAX // len(part)):
                talk.say(part)
        except OSError:
            peer.gone.set()

    return play


def tunnel(head: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> Script:
    """A proxy: answers CONNECT with this head and passes everything on to that port of this machine."""

    def play(peer: Peer, talk: Talk) -> None:
        asked = talk.request()
        if asked is None:
            return
        peer.asked.append(asked)
        port = int(asked.line.split()[1].rpartition(":")[2])
        try:
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as there:
                talk.say(head)
                while ready := select.select([talk.socket, there], [], [], WAIT_S)[0]:
                    for one in ready:
                        data = one.recv(65536)
                        if not data:
                            return
                        (there if one is talk.socket else talk.socket).sendall(data)
        finally:
            peer.gone.set()

    return play


def hangs(head: bytes = b"") -> Script:
    """Answers one request with the beginning of an answer, or nothing, and waits for the client to go."""

    def play(peer: Peer, talk: Talk) -> None:
        asked = talk.request()
        if asked is not None:
            peer.asked.append(asked)
        if head:
            talk.say(head)
        if talk.until_gone():
            peer.gone.set()

    return play
