"""As much HTTP as the soak's clients need, on bare connections, which can be cut, slowed and left open."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

ANSWER_S = 60.0
"""An answer that takes longer counts as none."""
HEAD_BYTES_MAX = 64 << 10


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def message(self) -> Any:
        """The JSON-RPC response: the body, or the last event of a stream."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return json.loads(self.body)
        told = [line[5:] for line in self.body.splitlines() if line.startswith(b"data:")]
        return json.loads(told[-1])


class Wire:
    """One connection."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.port = port
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        return cls(port, reader, writer)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.writer.write(request(self.port, method, path, body, headers))

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        self.send(method, path, body, headers)
        return await asyncio.wait_for(self.answer(), ANSWER_S)

    async def answer(self, pause_s: float = 0.0) -> Answer:
        """Read one answer; ``pause_s`` between small pieces of it."""
        status, headers = await self.head()
        if "content-length" in headers:
            body = await self._exactly(int(headers["content-length"]), pause_s)
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                body += await self._exactly(size, pause_s)
                await self.reader.readexactly(2)
            await self.reader.readline()
        else:
            body = b""
        return Answer(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        return int(first.split()[1]), {name.strip().lower(): value.strip() for name, value in pairs}

    async def _exactly(self, count: int, pause_s: float) -> bytes:
        if not pause_s:
            return await self.reader.readexactly(count)
        body = b""
        while len(body) < count:
            body += await self.reader.readexactly(min(max(count // 20, 64), count - len(body)))
            await asyncio.sleep(pause_s)
        return body

    def cut(self) -> None:
        """End the connection with a reset, as a client that is killed."""
        found = self.writer.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


def request(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")
