"""A served MCP door and raw clients of it: real sockets, real pipes, no library of the protocol's."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from toolcrib.app import Crib
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Events
from toolcrib.doors._limits import Limits, guarded
from toolcrib.doors.mcp import McpDoor

WAIT_S = 30.0
NEWER = "2026-07-28"
OLDER = "2025-11-25"
BOTH = "application/json, text/event-stream"
META = "io.modelcontextprotocol/"
CALLER = Guest(name="ann")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages of a JSON answer or of a whole stream."""
        if self.headers.get("content-type") != "text/event-stream":
            return [json.loads(self.body)] if self.body else []
        events = self.body.decode().split("\r\n\r\n")
        return [json.loads(event.partition("data: ")[2]) for event in events if "data: " in event]

    @property
    def message(self) -> Any:
        return self.messages[-1]


@dataclass
class Served:
    """A door that listens on a port of the loopback. ``guests``: who a request of a token comes from."""

    port: int
    door: McpDoor
    crib: Crib
    guests: dict[str, Guest] = field(default_factory=dict)
    server: uvicorn.Server | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def send(self, body: Any, headers: Mapping[str, str | None] | None = None, method: str = "POST") -> Reply:
        connection = self.connect()
        try:
            start(connection, body, headers, method)
            response = connection.getresponse()
            return Reply(response.status, lowered(response), response.read())
        finally:
            connection.close()

    def begin(self, capabilities: Any = None, version: str = OLDER, **headers: str) -> Client:
        """A session of the older era."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        reply = self.send(request("initialize", params), headers)
        assert reply.status == 200, reply
        mine = {"mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": version, **headers}
        client = Client(self, mine, reply.message)
        assert client.send({"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202
        return client

    def ask(
        self, method: str, params: Any = None, *, capabilities: Any = None, **headers: str | None
    ) -> Reply:
        """One request of the newer era."""
        return self.send(*enveloped(method, params, capabilities, 1, **headers))


@dataclass
class Client:
    served: Served
    headers: dict[str, str]
    initialized: Any

    def send(self, body: Any, **headers: str | None) -> Reply:
        return self.served.send(body, {**self.headers, **headers})

    def ask(self, method: str, params: Any = None, number: int | str = 1) -> Reply:
        return self.send(request(method, params, number))


def request(method: str, params: Any = None, number: int | str | None = 1) -> Any:
    body = {"jsonrpc": "2.0", "id": number, "method": method}
    return body if params is None else {**body, "params": params}


def enveloped(
    method: str, params: Any = None, capabilities: Any = None, number: int = 1, **headers: str | None
) -> tuple[Any, dict[str, str | None]]:
    meta = {META + "protocolVersion": NEWER, META + "clientCapabilities": capabilities or {}}
    held = {**(params or {})}
    held["_meta"] = {**meta, **held.get("_meta", {})}
    named: dict[str, str | None] = {"mcp-protocol-version": NEWER, "mcp-method": method}
    if "name" in held:
        named["mcp-name"] = held["name"]
    changed = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(method, held, number), {**named, **changed}


def start(
    connection: http.client.HTTPConnection,
    body: Any,
    headers: Mapping[str, str | None] | None = None,
    method: str = "POST",
) -> None:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    own: dict[str, str | None] = {"content-type": "application/json", "accept": BOTH, **(headers or {})}
    kept = {name: value for name, value in own.items() if value is not None}
    connection.request(method, "/mcp", content, kept)


def lowered(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def next_message(response: http.client.HTTPResponse) -> Any:
    """The next message of a stream; comments are passed over. Bounded by the connection's timeout."""
    for line in iter(response.readline, b""):
        if line.startswith(b"data: "):
            return json.loads(line[6:])
    raise AssertionError("the stream ended")


@contextmanager
def serving(
    crib: Crib,
    guest: Guest = CALLER,
    **options: Any,
) -> Iterator[Served]:
    """Serve the door in a thread of its own. A bearer token names the guest of a request."""
    crew = Crew(crib, Events())
    listening = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()
    held: dict[str, Any] = {}

    async def main() -> None:
        door = McpDoor(crib, crew, **options)
        held["served"] = served = Served(listening.getsockname()[1], door, crib)

        def guest_of(scope: Any) -> Guest:
            token = dict(scope["headers"]).get(b"authorization", b"").decode()
            return served.guests.get(token, guest)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["guest"] = guest_of(scope)
            await door(scope, receive, send)

        config = uvicorn.Config(
            app, http=guarded(Limits()), lifespan="off", log_level="warning", access_log=False
        )
        server = uvicorn.Server(config)
        served.server, served.loop = server, asyncio.get_running_loop()
        held["server"], held["door"], held["loop"] = server, door, served.loop
        serving = asyncio.create_task(server.serve([listening]))
        ready.set()
        while not serving.done():
            crew.look()
            await asyncio.wait([serving], timeout=0.01)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield held["served"]
    finally:
        asyncio.run_coroutine_threadsafe(held["door"].close(), held["loop"]).result(WAIT_S)
        held["server"].should_exit = True
        thread.join(WAIT_S)
        crew.drain(WAIT_S)
        listening.close()
    assert not thread.is_alive()


class Pipe:
    """A program that serves MCP on its standard input and output."""

    def __init__(self, script: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._guard = threading.Timer(WAIT_S, self.process.kill)
        self._guard.daemon = True
        self._guard.start()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.cancel()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def write(self, body: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server ended"
        return json.loads(line)

    def ask(self, method: str, params: Any = None, number: int | str = 1) -> Any:
        self.write(request(method, params, number))
        return self.read()

    def begin(self, capabilities: Any = None, version: str = OLDER) -> Any:
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        answer = self.ask("initialize", params, 0)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def end(self) -> tuple[bytes, bytes, int]:
        """Say no more; what it still says, on both streams, and how it ended."""
        out, err = self.process.communicate(timeout=WAIT_S)
        return out, err, self.process.returncode
