"""What a call of an MCP server's tool costs through us beside the official client: the connection alone, and
the whole way of a call (checked, decided, recorded on disk before it runs).

All call the same server of the official SDK, over a connection that is kept, each in a process of its own.
Run by itself with ``ours``, ``whole`` or ``theirs``, and ``stdio`` or a URL, this file is one contestant.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from measuring import ROOT, Contestant, Row, contested, medians

SERVER = str(ROOT / "tests" / "peers" / "sdk_server.py")
COUNT = 60
GOAL = 1.3


def reaching(rounds: int) -> list[Row]:
    rows = []
    for name, place in (("stdio", _stdio()), ("Streamable HTTP", _http())):
        with place as where, ExitStack() as stack:
            contestants = []
            for who in ("ours", "whole", "theirs"):
                contestant = Contestant(who, [sys.executable, __file__, who, where])
                stack.callback(contestant.close)
                contestants.append(contestant)
            found = contested(rounds, contestants, COUNT)
        theirs = medians(found["theirs"])
        for who, what in (("ours", "connection alone"), ("whole", "whole call")):
            taken = medians(found[who])
            value = round(taken / theirs, 2)
            detail = f"{taken * 1000:.2f} ms to {theirs * 1000:.2f} ms"
            label = f"MCP over {name}, {what}, to the official client's"
            rows.append(Row(label, value, "x", GOAL, value <= GOAL, detail))
    return rows


@contextmanager
def _stdio() -> Iterator[str]:
    yield "stdio"


@contextmanager
def _http() -> Iterator[str]:
    server = subprocess.Popen([sys.executable, SERVER, "http"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/mcp"
    finally:
        server.kill()
        server.communicate()


# -- one contestant -----------------------------------------------------------------------------------------


def _orders() -> Iterator[int]:
    for line in sys.stdin:
        yield int(line.split()[0])


def _report(times_ns: list[int], wrong: int) -> None:
    print(int(statistics.median(times_ns)), sum(times_ns), wrong, flush=True)


def ours(where: str, *, whole: bool = False) -> None:
    import toolcrib
    from toolcrib.bound import BoundTool
    from toolcrib.config import Environment, resolve
    from toolcrib.model import Allow, Block, TextBlock, ToolCall
    from toolcrib.sandbox import Cancel

    with tempfile.TemporaryDirectory() as folder:
        value = f'["{sys.executable}", "{SERVER}", "stdio"]' if where == "stdio" else f'"{where}"'
        path = Path(folder, "toolcrib.toml")
        path.write_text(f'[[source]]\nname = "sdk"\nmcp = {value}\n', encoding="utf-8")
        home = Environment.read()
        config = resolve(home, cwd=folder, file=str(path), state=f"{folder}/state")
        # On a busy machine the server may need longer to start than an opening waits for one of many.
        with toolcrib.open(config, environment=home, only="mcp:sdk/echo") as crib:
            bound, runtime = BoundTool(crib.find("mcp:sdk/echo")), crib.hands.servers
            decision = crib.gate.decide(bound, None)
            assert isinstance(decision, Allow)
            for count in _orders():
                times, wrong = [], 0
                for number in range(count):
                    arguments = {"text": f"word {number}"}
                    blocks: tuple[Block, ...] | None
                    began = time.perf_counter_ns()
                    if whole:
                        blocks = crib.call("mcp:sdk/echo", arguments).blocks
                    else:
                        call = ToolCall(id="x", tool=bound.tool.key, arguments=arguments)
                        blocks = runtime.run(bound, call, decision.permit, Cancel()).blocks
                    times.append(time.perf_counter_ns() - began)
                    wrong += blocks != (TextBlock(text=f"word {number}"),)
                _report(times, wrong)


def theirs(where: str) -> None:
    from mcp import Client, StdioServerParameters

    async def run() -> None:
        server = (
            StdioServerParameters(command=sys.executable, args=[SERVER, "stdio"])
            if where == "stdio"
            else where
        )
        async with Client(server) as client:
            call: Callable[..., Awaitable[Any]] = client.call_tool
            while (count := await asyncio.to_thread(next, orders, None)) is not None:
                await measure(call, count)

    async def measure(call: Callable[..., Awaitable[Any]], count: int) -> None:
        times, wrong = [], 0
        for number in range(count):
            began = time.perf_counter_ns()
            result = await call("echo", {"text": f"word {number}"})
            times.append(time.perf_counter_ns() - began)
            wrong += result.content[0].text != f"word {number}"
        _report(times, wrong)

    orders = _orders()
    asyncio.run(run())


if __name__ == "__main__":
    contestants: dict[str, Callable[[str], None]] = {
        "ours": ours,
        "whole": partial(ours, whole=True),
        "theirs": theirs,
    }
    contestants[sys.argv[1]](sys.argv[2])
