"""A real server: all doors behind the entrance, on uvicorn, on a free port of loopback."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from msgspec.structs import replace

from tests.program import PATH
from toolcrib import open as open_crib
from toolcrib import tool
from toolcrib.app import Crib
from toolcrib.config import Config, Environment
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Events
from toolcrib.doors._health import Health
from toolcrib.doors._limits import server_settings
from toolcrib.doors._web import Receive, Scope, Send
from toolcrib.doors.cli.serve import build
from toolcrib.errors import Failed
from toolcrib.store.tokens import Tokens

WAIT_S = 30.0


@dataclass(frozen=True)
class Served:
    """A server that is up, and what stands behind it."""

    url: str
    crib: Crib
    events: Events
    crew: Crew
    health: Health
    client: httpx.Client
    counted: list[int]

    def requests(self) -> int:
        """How many requests came."""
        return self.counted[0]

    def settle(self) -> None:
        """Wait until all calls are over. An answer comes before its end is told to those who listen."""
        until, pause = time.monotonic() + WAIT_S, threading.Event()
        while self.crew.under_way:
            assert time.monotonic() < until, f"{self.crew.under_way} calls are not over"
            pause.wait(0.005)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(path, **more)

    def post(self, path: str, body: object, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **more)

    def call(self, name: str, arguments: object = None, **more: Any) -> httpx.Response:
        return self.post(f"/v1/tools/{name}/call", {"arguments": arguments or {}, **more})


@contextmanager
def served(
    crib: Crib,
    *,
    guest: Guest | None = None,
    tokens: Tokens | None = None,
    body_bytes_max: int = 4 << 20,
    body_timeout_s: float = 60.0,
    rate_per_minute: int = 0,
    approval_wait_s_max: float = 30.0,
) -> Iterator[Served]:
    """A server, open until the block ends. ``guest`` is who comes in without a token."""
    serving = replace(
        crib.config.serve,
        body_bytes_max=body_bytes_max,
        body_timeout_s=body_timeout_s,
        rate_per_minute=rate_per_minute,
        approval_wait_s=approval_wait_s_max,
    )
    someone = guest or (Guest(name="ann") if tokens is None else None)
    app = build(crib, serving=serving, guest=someone, tokens=tokens)
    counted = [0]

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        counted[0] += 1
        await app(scope, receive, send)

    config = uvicorn.Config(
        counting, host="127.0.0.1", port=0, lifespan="off", log_level="error", **server_settings()
    )
    server = uvicorn.Server(config)
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        running = asyncio.ensure_future(server.serve())
        while not server.started and not running.done():
            await asyncio.sleep(0.005)
        up.set()
        await asyncio.wait((running,))
        over.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    try:
        assert up.wait(WAIT_S)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:
            yield Served(url, crib, app.events, app.crew, app.health, client, counted)
    finally:
        app.events.close()
        server.should_exit = True
        assert over.wait(WAIT_S)
        thread.join(WAIT_S)
        app.crew.drain(WAIT_S)


def opened(
    state: Path,
    *,
    tools: Sequence[Callable[..., object]] = (),
    paths: Sequence[Path] = (),
    config: Config | None = None,
) -> Crib:
    """A crib with a state folder of its own."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = Environment.read()
    return open_crib(
        [str(path) for path in paths] or None,
        config=config or Config(state=str(state)),
        tools=tools,
        environment=environment,
    )


@tool
def echo(text: str) -> str:
    """Say it again."""
    return f"{text}{text}"


@tool
def fail() -> str:
    """Never works."""
    raise Failed("secret words of the tool")


@contextmanager
def echoing(home: Path) -> Iterator[Crib]:
    """A crib with a home of its own, one tool that works and one that never does."""
    environment = Environment.read({"HOME": str(home), "PATH": PATH})
    config = Config(state=str(home / "state"))
    with open_crib(config, environment=environment, tools=[echo, fail]) as crib:
        yield crib
