"""HTTP as bytes: a server on a free port of loopback, and clients that send exactly what a test says."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from toolcrib.doors._limits import Limits, server_settings
from toolcrib.doors._web import App

WAIT_S = 20.0


@dataclass(frozen=True)
class Heard:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes


def listening_socket() -> socket.socket:
    """On a free port; clients may connect at once, whoever accepts later."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    held.listen(512)
    return held


@contextmanager
def serving(app: App, limits: Limits | None = None) -> Iterator[int]:
    """A real server in a thread of its own; its port."""
    held = listening_socket()
    settings: dict[str, Any] = server_settings(limits)
    config = uvicorn.Config(app, lifespan="off", log_config=None, **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([held])), daemon=True)
    thread.start()
    try:
        yield held.getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(WAIT_S)
        held.close()
    assert not thread.is_alive()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    client = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    try:
        yield client
    finally:
        client.close()


def request(method: str, path: str, port: int, *lines: str, body: bytes = b"") -> bytes:
    """The bytes of a request; a Host and, with a body, its length and type are added where none is given."""
    given = {line.partition(":")[0].lower() for line in lines}
    head = [f"{method} {path} HTTP/1.1", *lines]
    if "host" not in given:
        head.append(f"Host: 127.0.0.1:{port}")
    if body and not given & {"content-length", "transfer-encoding"}:
        head.append(f"Content-Length: {len(body)}")
    if body and "content-type" not in given:
        head.append("Content-Type: application/json")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def heard(client: socket.socket) -> Heard | None:
    """The next response; None where the connection ended instead."""
    data = b""
    with suppress(ConnectionError):
        while b"\r\n\r\n" not in data:
            part = client.recv(65536)
            if not part:
                return None
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        while len(body) < int(headers.get("content-length", "0")):
            part = client.recv(65536)
            if not part:
                break
            body += part
        return Heard(int(first.split()[1]), headers, body)
    return None


def asked(port: int, method: str, path: str, *lines: str, body: bytes = b"") -> Heard:
    """One request on a connection of its own."""
    with connected(port) as client:
        client.sendall(request(method, path, port, *lines, body=body))
        answer = heard(client)
        assert answer is not None
        return answer
