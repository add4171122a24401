"""What serving costs: ``tools/call`` over HTTP and stdio beside FastMCP's and the SDK's servers, a list of
10,000 tools, the start of a server, its memory, and a reload.

All servers run the same echo function in their own process, one server to a process, taking turns under the
same load; ours checks the arguments and has every call in its journal, on the disk before it runs. HTTP is
measured by wrk (Debian's package), because Python clients cost more than the servers.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from declarations import write_json
from measuring import ROOT, Row, WrongAnswer

ECHOES = str(Path(__file__).parent / "echoes.py")
CONNECTIONS = 16
ROUND_S = 3
STDIO_CALLS = 400
STDIO_AT_ONCE = 16
STDIO_CALLS_AT_ONCE = 1600
TOOLS = 10_000
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
WAIT_S = 60.0


def serving(rounds: int) -> list[Row]:
    return [*_over_http(rounds), *_over_stdio(rounds), *_many_tools(rounds)]


# -- HTTP ----------------------------------------------------------------------------------------------------


def _over_http(rounds: int) -> list[Row]:
    wrk = shutil.which("wrk") or _installed_wrk()
    if wrk is None:
        print("without wrk HTTP is not measured (Debian, Ubuntu: apt-get install wrk)", file=sys.stderr)
        return []
    names = ("ours", "fastmcp", "sdk-low", "sdk")
    found: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=_disk()) as folder:
        script = Path(folder) / "call.lua"
        script.write_text(_lua(), encoding="utf-8")
        ports = {name: stack.enter_context(_served(name, folder)) for name in names}
        for number in range(rounds + 1):
            for name in names:
                rate = _load(wrk, ports[name], script, 1 if number == 0 else ROUND_S)
                if number:
                    found[name].append(rate)
        for name in names:
            _check(ports[name], name)
    ours = found["ours"]
    rows = []
    for name, what, goal in (
        ("fastmcp", "FastMCP", 7.0),
        ("sdk-low", "the SDK's low-level server, which checks nothing", 2.0),
    ):
        value = round(statistics.median(a / b for a, b in zip(ours, found[name], strict=True)), 2)
        detail = f"{statistics.median(ours):,.0f}/s to {statistics.median(found[name]):,.0f}/s"
        label = f"MCP tools/call over HTTP, {CONNECTIONS} connections, to {what}"
        rows.append(Row(label, value, "x", goal, value >= goal, detail, at_least=True))
    print(f"the SDK's MCPServer: {statistics.median(found['sdk']):,.0f}/s", file=sys.stderr)
    return rows


def _lua() -> str:
    headers = "\n".join(
        f'wrk.headers["{name}"] = "{value}"' for name, value in _headers("tools/call").items()
    )
    return f'wrk.method = "POST"\nwrk.body = [[{_request(1).decode()}]]\n{headers}\n'


def _headers(method: str) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        **({"Mcp-Name": "echo"} if method == "tools/call" else {}),
    }


def _request(number: int, text: str = "hello") -> bytes:
    params = {"name": "echo", "arguments": {"text": text}, "_meta": META}
    asked = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return json.dumps(asked, separators=(",", ":")).encode()


def _load(wrk: str, port: int, script: Path, seconds: int) -> float:
    argv = [wrk, "-t1", f"-c{CONNECTIONS}", f"-d{seconds}", "-s", str(script), f"http://127.0.0.1:{port}/mcp"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise WrongAnswer(said)
    rate = re.search(r"Requests/sec:\s*([\d.]+)", said)
    assert rate is not None, said
    return float(rate[1])


def _check(port: int, name: str) -> None:
    """Some answers, one after the other, each for another text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for number in range(50):
        connection.request("POST", "/mcp", _request(number, f"text {number}"), _headers("tools/call"))
        answer = json.loads(connection.getresponse().read())
        if answer["id"] != number or answer["result"]["content"][0]["text"] != f"text {number}":
            raise WrongAnswer(f"{name}: {answer}")
    connection.close()


@contextmanager
def _served(name: str, folder: str) -> Iterator[int]:
    port = _free_port()
    state = os.path.join(folder, name)
    server = subprocess.Popen(
        [sys.executable, ECHOES, name, "http", str(port), state], stderr=subprocess.DEVNULL
    )
    try:
        _reachable(port, server)
        _check(port, name)
        yield port
    finally:
        server.terminate()
        server.wait(30)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _reachable(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise WrongAnswer(f"{server.args!r} does not listen ({server.poll()})")


def _installed_wrk() -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    subprocess.run(["apt-get", "install", "-y", "-qq", "wrk"], capture_output=True, check=False)
    return shutil.which("wrk")


def _disk() -> str:
    """A folder on a real disk: in memory a sync would cost nothing."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    return str(folder)


# -- stdio ---------------------------------------------------------------------------------------------------


def _over_stdio(rounds: int) -> list[Row]:
    found: dict[str, list[float]] = {"ours": [], "fastmcp": [], "floor": []}
    first: dict[str, list[float]] = {"ours": [], "fastmcp": [], "floor": []}
    rates: dict[str, list[float]] = {"ours": [], "fastmcp": [], "sdk-low": [], "sdk": []}
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=_disk()) as folder:
        for _ in range(rounds):
            for name in found:
                began, taken = _spoken(name, os.path.join(folder, name))
                first[name].append(began)
                found[name].append(taken)
            for name in rates:
                rates[name].append(_at_once(name, os.path.join(folder, name)))
    ours, theirs, floor = (statistics.median(found[name]) for name in ("ours", "fastmcp", "floor"))
    value = round(theirs / ours, 2)
    start = round(statistics.median(first["ours"]), 3)
    beside = f"FastMCP {statistics.median(first['fastmcp']):.2f} s"
    pairs = zip(rates["ours"], rates["fastmcp"], strict=True)
    together = round(statistics.median(ours / theirs for ours, theirs in pairs), 2)
    rate, other, low, high = (f"{statistics.median(each):,.0f}/s" for each in rates.values())
    return [
        Row(
            "MCP tools/call over stdio, FastMCP's time to ours",
            value,
            "x",
            10.0,
            value >= 10.0,
            f"{ours * 1e6:.0f} µs to {theirs * 1e6:.0f} µs; an echo that only syncs: {floor * 1e6:.0f} µs",
            at_least=True,
        ),
        Row(
            f"MCP tools/call over stdio, {STDIO_AT_ONCE} at once, to FastMCP",
            together,
            "x",
            10.0,
            together >= 10.0,
            f"{rate} to {other}; the SDK's low-level server {low}, its MCPServer {high}",
            at_least=True,
        ),
        Row("MCP over stdio, start to first answer", start, "s", 0.3, start < 0.3, beside),
    ]


@contextmanager
def _speaking(name: str, state: str) -> Iterator[Pipe]:
    """A server of its own process, initialized."""
    with subprocess.Popen(
        [sys.executable, ECHOES, name, "stdio", state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        pipe = Pipe(name, server)
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "b", "version": "1"},
        }
        pipe.ask({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello})
        pipe.send(_line({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        yield pipe
        pipe.close()
        server.wait(30)


class Pipe:
    """What a client says to a server, and hears of it."""

    def __init__(self, name: str, server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._name = name
        self._said, self._heard = server.stdin, server.stdout

    def send(self, text: bytes) -> None:
        self._said.write(text)
        self._said.flush()

    def receive(self) -> bytes:
        """What has come, whether it is whole lines or not."""
        chunk = os.read(self._heard.fileno(), 1 << 20)
        if not chunk:
            raise WrongAnswer(f"{self._name} ended")
        return chunk

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to the only request."""
        self.send(_line(message))
        heard = b""
        while True:
            heard += self.receive()
            *lines, heard = heard.split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if "id" in answer:
                    return answer

    def check(self, numbers: list[int], answers: list[dict[str, Any]]) -> None:
        """Whether each of these calls was answered once, and rightly."""
        for answer in answers:
            if answer["result"]["content"][0]["text"] != f"text {answer['id']}":
                raise WrongAnswer(f"{self._name}: {answer}")
        if sorted(answer["id"] for answer in answers) != numbers:
            raise WrongAnswer(f"{self._name}: not every call was answered once")

    def close(self) -> None:
        self._said.close()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _call(number: int) -> dict[str, Any]:
    params = {"name": "echo", "arguments": {"text": f"text {number}"}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def _spoken(name: str, state: str) -> tuple[float, float]:
    """Seconds from the start to the first answer, and the median of a call after that."""
    began = time.perf_counter()
    with _speaking(name, state) as pipe:
        first = 0.0
        times = []
        for number in range(STDIO_CALLS):
            asked = time.perf_counter()
            answer = pipe.ask(_call(number))
            times.append(time.perf_counter() - asked)
            if number == 0:
                first = time.perf_counter() - began
            pipe.check([number], [answer])
    return first, statistics.median(times[STDIO_CALLS // 10 :])


def _at_once(name: str, state: str) -> float:
    """Calls a second while 16 wait for their answers: as many as are answered together are asked together.
    Written before and read after the time is taken, because a client in Python costs as much as a server."""
    with _speaking(name, state) as pipe:
        for count in (STDIO_AT_ONCE, STDIO_CALLS_AT_ONCE):  # the first ones are not measured
            requests = [_line(_call(number)) for number in range(count)]
            heard: list[bytes] = []
            answered, asked = 0, STDIO_AT_ONCE
            began = time.perf_counter()
            pipe.send(b"".join(requests[:asked]))
            while answered < count:
                chunk = pipe.receive()
                heard.append(chunk)
                lines = chunk.count(b"\n")
                answered += lines
                if asked < count:
                    pipe.send(b"".join(requests[asked : asked + lines]))
                    asked += lines
            taken = time.perf_counter() - began
            pipe.check(list(range(count)), list(map(json.loads, b"".join(heard).splitlines())))
    return STDIO_CALLS_AT_ONCE / taken


# -- many tools ----------------------------------------------------------------------------------------------


def _many_tools(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=_disk()) as folder:
        tools, state = Path(folder) / "tools", os.path.join(folder, "state")
        write_json(tools, TOOLS)
        with _serving_folder(tools, state):  # fills the cache; closing writes it
            pass
        lists, starts, sizes, reloads, later = [], [], [], [], []
        for turn in range(rounds):
            with _serving_folder(tools, state) as (port, taken, pid):
                starts.append(taken)
                _list(port)  # the first one is written, the others are sent as they are kept
                lists += [_list(port) for _ in range(5)]
                sizes.append(_peak_mib(pid))
                reloads.append(_reload(port, tools, f"Changed in turn {turn}."))
                later.append(_peak_mib(pid))
    listed, started, size, again = map(statistics.median, (lists, starts, sizes, reloads))
    after = f"{statistics.median(later):.0f} MiB after a reload"
    return [
        Row(f"tools/list of {TOOLS:,} tools over HTTP", round(listed * 1000, 1), "ms", 25.0, listed <= 0.025),
        Row(f"serve {TOOLS:,} tools, start to first answer", round(started, 2), "s", 1.0, started < 1.0),
        Row(f"serve {TOOLS:,} tools, memory", round(size, 1), "MiB", 100.0, size < 100.0, after),
        Row(f"one file of {TOOLS:,} changed, until clients see it", round(again, 2), "s", 1.0, again < 1.0),
    ]


@contextmanager
def _serving_folder(tools: Path, state: str) -> Iterator[tuple[int, float, int]]:
    port = _free_port()
    argv = [sys.executable, "-m", "toolcrib", "--from", str(tools), "--state", state]
    began = time.perf_counter()
    server = subprocess.Popen(
        [*argv, "serve", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _reachable(port, server)
        _ask(port, "server/discover", {})
        yield port, time.perf_counter() - began, server.pid
    finally:
        server.terminate()
        server.wait(60)


def _ask(port: int, method: str, params: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    began = time.perf_counter()
    connection.request("POST", "/mcp", json.dumps(body).encode(), _headers(method))
    said = connection.getresponse().read()
    taken = time.perf_counter() - began
    connection.close()
    return taken, json.loads(said)


def _list(port: int) -> float:
    taken, answer = _ask(port, "tools/list", {})
    if len(answer["result"]["tools"]) != TOOLS:
        raise WrongAnswer(f"{len(answer['result']['tools'])} tools were listed")
    return taken


def _reload(port: int, tools: Path, description: str) -> float:
    """Until a list shows what a file says since now. Clients are told by a notification as well."""
    file = tools / "group_4711_tools.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    document["tools"][0]["description"] = description
    written = file.with_suffix(".new")
    written.write_text(json.dumps(document), encoding="utf-8")
    written.replace(file)
    began = time.perf_counter()
    while time.perf_counter() - began < WAIT_S:
        _taken, answer = _ask(port, "tools/list", {})
        if any(tool.get("description") == description for tool in answer["result"]["tools"]):
            return time.perf_counter() - began
    raise WrongAnswer("the change was never seen")


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    size = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert size is not None
    return int(size[1]) / 1024
