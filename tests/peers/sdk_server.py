"""A server made with the official SDK: over stdio, or over HTTP on a free port of this machine's loopback.

Arguments: ``stdio``, or ``http`` with ``json`` (answers as JSON instead of streams), ``older`` (only the era
of sessions) and ``token=VALUE`` (wants it in Authorization). Over HTTP the port is the first line on stdout.
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sdk", version="1.2.3", log_level="ERROR")
Message = MutableMapping[str, Any]


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@server.tool()
def fail(text: str) -> str:
    raise ToolError(text)


@server.tool()
async def steps(count: int, context: Context[Any]) -> str:
    for number in range(count):
        await context.report_progress(number, count)
    return "done"


@server.tool()
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
async def grow(name: str, context: Context[Any]) -> str:
    def grown() -> str:
        return f"from {name}"

    server.add_tool(grown, name=name)
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()
    return "grown"


class Gate:
    """Lets requests through that have the token and are of the era that is served."""

    def __init__(self, app: Any, token: str, older: bool) -> None:
        self.app = app
        self.token = token
        self.older = older

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        headers = dict(scope.get("headers", ()))
        status = 0
        if scope["type"] == "http":
            if self.token and headers.get(b"authorization") != f"Bearer {self.token}".encode():
                status = 401
            elif self.older and headers.get(b"mcp-protocol-version") == b"2026-07-28":
                status = 400
        if status:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await self.app(scope, receive, send)


def main() -> None:
    options = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if "stdio" in options:
        server.run("stdio")
        return
    app = Gate(
        server.streamable_http_app(json_response="json" in options),
        options.get("token", ""),
        "older" in options,
    )
    # With its protocol named, the event loop sends small answers at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main()
