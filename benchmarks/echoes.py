"""An echo tool behind the MCP server of each contestant, one to a process, over HTTP or stdio.

    python echoes.py ours|fastmcp|sdk|sdk-low http PORT STATE
    python echoes.py ours|fastmcp|sdk|sdk-low|floor stdio STATE

Ours checks the arguments and writes every call to the journal in STATE; the others do what they do by
themselves: the SDK's low-level server does not check arguments. ``floor`` is no server: it appends each line
to a file, syncs it and gives the text back, which no server with a durable record can do faster.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys


def echo(text: str) -> str:
    """Give back what was given."""
    return text


def ours(port: int | None, state: str) -> None:
    import toolcrib
    from toolcrib.config import Config

    with toolcrib.open(Config(state=state), tools=[echo]) as crib:
        toolcrib.serve(crib, port=port, stdio=port is None, quiet=True)


def fastmcp(port: int | None, _state: str) -> None:
    from fastmcp import FastMCP

    server = FastMCP("echo")
    server.tool(echo)
    if port is None:
        server.run(transport="stdio", show_banner=False, log_level="ERROR")
    else:
        server.run(
            transport="http",
            host="127.0.0.1",
            port=port,
            stateless_http=True,
            json_response=True,
            show_banner=False,
            log_level="ERROR",
        )


def sdk(port: int | None, _state: str) -> None:
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("echo", log_level="ERROR")
    server.tool()(echo)
    if port is None:
        server.run("stdio")
    else:
        app = server.streamable_http_app(stateless_http=True, json_response=True)
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def sdk_low(port: int | None, _state: str) -> None:
    import mcp_types as types
    import uvicorn
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def list_tools(_context: object, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=schema)])

    async def call_tool(_context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        said = types.TextContent(type="text", text=(params.arguments or {})["text"])
        return types.CallToolResult(content=[said])

    server = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)

    async def speak() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    if port is None:
        asyncio.run(speak())
    else:
        app = server.streamable_http_app(stateless_http=True, json_response=True)
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def floor(_port: int | None, state: str) -> None:
    os.makedirs(state, exist_ok=True)
    journal = os.open(os.path.join(state, "lines"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        text = message["params"].get("arguments", {}).get("text", "")
        os.write(journal, line)
        os.fdatasync(journal)
        result = {"content": [{"type": "text", "text": text}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


SERVERS = {"floor": floor, "ours": ours, "fastmcp": fastmcp, "sdk": sdk, "sdk-low": sdk_low}

if __name__ == "__main__":
    who, how, *rest = sys.argv[1:]
    SERVERS[who](int(rest[0]) if how == "http" else None, rest[-1])
