"""A peer as a contestant of calls.py, in an environment of its own: an echo tool, called as its docs say.

    python peers.py NAME ECHO_PROGRAM

Reads lines "COUNT THREADS" and answers each with "MEDIAN_NS WALL_NS WRONG", as native/bare.c does. The calls
are one after the other, in memory, without what Toolcrib does besides (isolation, record).
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

EXPECTED = {"echo": {"value": 7}}
Call = Callable[[], Awaitable[object]]


def echo(value: int) -> dict[str, dict[str, int]]:
    """Give back what was given."""
    return {"echo": {"value": value}}


async def utcp(program: str) -> Call:
    from utcp.utcp_client import UtcpClient

    step = {"command": f"{program} '{{\"value\":UTCP_ARG_value_UTCP_END}}'"}
    manual = {
        "utcp_version": "1.0.0",
        "manual_version": "1.0.0",
        "tools": [
            {
                "name": "echo",
                "description": "Give back what was given.",
                "inputs": {"type": "object", "properties": {"value": {"type": "integer"}}},
                "tool_call_template": {"name": "echo", "call_template_type": "cli", "commands": [step]},
            }
        ],
    }
    folder = tempfile.mkdtemp(prefix="toolcrib-bench-utcp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "manual.json"
    file.write_text(json.dumps(manual), encoding="utf-8")
    source = {"name": "bench", "call_template_type": "cli", "commands": [{"command": f"cat {file}"}]}
    client = await UtcpClient.create(config={"manual_call_templates": [source]})

    async def call() -> object:
        said = await client.call_tool("bench.echo", {"value": 7})
        return json.loads(said) if isinstance(said, str) else said

    return call


async def toolregistry(_program: str) -> Call:
    from toolregistry import ToolRegistry

    registry = ToolRegistry()
    registry.register(echo)
    asked = [
        {"id": "1", "type": "function", "function": {"name": "echo", "arguments": json.dumps({"value": 7})}}
    ]

    async def call() -> object:
        (said,) = registry.execute_tool_calls(asked)
        said = getattr(said, "result", said)
        return json.loads(said) if isinstance(said, str) else said

    return call


async def langchain(_program: str) -> Call:
    from langchain_core.tools import tool

    made = tool(echo)

    async def call() -> object:
        return made.invoke({"value": 7})

    return call


async def fastmcp(_program: str) -> Call:
    from fastmcp import Client, FastMCP

    server = FastMCP("bench")
    server.tool(echo)
    client = await AsyncExitStack().enter_async_context(Client(server))

    async def call() -> object:
        return (await client.call_tool("echo", {"value": 7})).data

    return call


PEERS = {"utcp": utcp, "toolregistry": toolregistry, "langchain": langchain, "fastmcp": fastmcp}


async def main() -> None:
    name, program = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    call = await PEERS[name](program)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        count = int(line.split()[0])
        times, wrong = [], 0
        began = time.perf_counter_ns()
        for _ in range(count):
            start = time.perf_counter_ns()
            answer = await call()
            times.append(time.perf_counter_ns() - start)
            wrong += answer != EXPECTED
        print(int(statistics.median(times)), time.perf_counter_ns() - began, wrong, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
