"""Many clients of one server, good and bad, while its files change: is an answer wrong, is anything left?

The clients speak the HTTP API and MCP in both eras, over HTTP and over pipes. Some are killed in the middle
of a call, read slowly, stop in the middle of a request, or listen to events and vanish. The server is the
real ``toolcrib serve``, looked at through ``/proc``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import records
from http_wire import ANSWER_S, Answer, Wire, request
from table import Line, at_most, exactly, show
from tools import Folder, pids

from toolcrib.errors import KINDS, Kind

OLDER, NEWER = "2025-11-25", "2026-07-28"
META = "io.modelcontextprotocol/"
RELOAD_S = 3.0
QUIET_S = 40.0
"""So long everything may take to come to rest after the last client; threads that idle leave after 30 s."""
MORE_DESCRIPTORS = 32
MORE_PROCESSES = 24
"""What is kept ready for the next calls goes up and down by so much; what leaks grows with the calls."""
POOL = re.compile(r"anon_inode:\[landlock-ruleset\]|(mnt|user):\[N\]|/memfd:.*|.*/faulty")
"""Descriptors of the sandbox's pool, which holds rulesets, namespaces and programs for up to 256 calls."""
GROWTH_MIB = 32
JUDGED_S = 60.0
"""In a shorter run memory is shown and not judged: allocators are still taking what they need."""
STDIO_SHARE, WRONG_SHOWN = 0.02, 12
BODY = "# Notes\n\nAsk before you delete.\n"


# -- what is called, and what must come back ----------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One way to call, how often it is drawn, and what has to come back."""

    tool: str
    weight: int
    kind: Kind | None = None
    data: Callable[[str], object] | None = None
    text: str | None = None
    bad: bool = False
    """The arguments do not fit."""
    moves: bool = False
    """Its file is rewritten and broken meanwhile, so that it may be absent."""


def _echo(nonce: str) -> object:
    return {"echo": nonce}


CASES = (
    Case("echo", 34, data=_echo),
    Case("double", 16, data=lambda nonce: {"twice": nonce * 2}),
    Case("read_skill", 16, text=BODY),
    Case("moving", 10, data=_echo, moves=True),
    Case("three", 5, Kind.FAILED),
    Case("segv", 3, Kind.FAILED),
    Case("hang", 2, Kind.TIMED_OUT),
    Case("flood", 2, Kind.TOO_LARGE),
    Case("daemon", 3, data=_echo),
    Case("missing", 3, Kind.UNAVAILABLE),
    Case("nobody", 3, Kind.UNKNOWN_TOOL),
    Case("echo", 3, Kind.INVALID_ARGUMENTS, bad=True),
)
WEIGHTS = [case.weight for case in CASES]


def arguments_of(case: Case, nonce: str) -> dict[str, object]:
    if case.bad:
        return {"nonce": 5}
    return {"skill_name": "notes"} if case.tool == "read_skill" else {"nonce": nonce}


def compact(value: object) -> bytes:
    """Tools get the very bytes, and the C one looks for them without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def wrong_http(case: Case, nonce: str, answer: Answer) -> str:
    told = answer.json()
    kind = told["error"]["kind"] if told.get("error") else None
    if case.moves and kind == Kind.UNKNOWN_TOOL:
        return ""
    status = 200 if case.kind is None else KINDS[case.kind].http_status
    if (kind, answer.status) != (case.kind, status):
        said = told["error"]["message"] if told.get("error") else answer.body
        return f"HTTP {case.tool}: {answer.status} {kind}: {str(said)[:160]}"
    return _wrong_content(case, nonce, told["data"], told["content"])


def wrong_mcp(case: Case, nonce: str, number: object, told: Any) -> str:
    if told.get("id") != number:
        return f"MCP {case.tool}: the answer to {told.get('id')!r} for {number!r}"
    is_unknown = told.get("error", {}).get("code") == -32602
    if case.kind is Kind.UNKNOWN_TOOL or (case.moves and is_unknown):
        return "" if is_unknown else f"MCP {case.tool}: {str(told)[:160]}"
    result = told.get("result")
    if result is None or result["isError"] is not (case.kind is not None):
        said = told.get("error") or result["content"]
        return f"MCP {case.tool}: {str(said)[:200]}"
    return _wrong_content(case, nonce, result.get("structuredContent"), result["content"][0]["text"])


def _wrong_content(case: Case, nonce: str, data: object, text: str) -> str:
    if case.kind is not None:
        return ""
    if case.text is not None:
        return "" if text == case.text else f"{case.tool}: not its text: {text[:100]!r}"
    assert case.data is not None
    return "" if case.data(nonce) == data else f"{case.tool}: not what it must say: {str(data)[:160]}"


# -- the catalog --------------------------------------------------------------------------------------------

HANDLER = """def execute_pair_tool(tool_name, tool_input):
    return {"success": True, "result": {"twice": tool_input["nonce"] * 2}}
"""


class Place:
    """The tools, their configuration, and the file that changes all the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = Folder(folder)
        self.state = self.tools.state
        self.project = self.tools.project
        self._declare()
        skill = folder / "skills" / "notes"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(
            f"---\nname: notes\ndescription: Notes.\n---\n{BODY}", encoding="utf-8"
        )
        (folder / "groups").mkdir()
        (folder / "handlers").mkdir()
        (folder / "handlers" / "pair.py").write_text(HANDLER, encoding="utf-8")
        schema = {"type": "object", "properties": {"nonce": {"type": "string"}}, "required": ["nonce"]}
        double = {"name": "double", "description": "Twice.", "category": "analysis", "input_schema": schema}
        group: dict[str, Any] = {
            "group": "pair",
            "version": "1.0.0",
            "description": "D.",
            "tools": [{**double, "metadata": {"executor": "pair"}}],
        }
        group["selection"] = {"strategy": "always"}
        (folder / "groups" / "pair_tools.json").write_text(json.dumps(group), encoding="utf-8")
        (folder / "moving" / "tools" / "bin").mkdir(parents=True)
        shutil.copy2(
            self.project / "tools" / "bin" / "faulty", folder / "moving" / "tools" / "bin" / "faulty"
        )
        self.moving = folder / "moving" / "tools.json"
        self.rewrite(0)
        self.config = folder / "serve.toml"
        self.config.write_text(
            '[[source]]\npath = "project"\n[[source]]\npath = "moving"\n[[source]]\npath = "skills"\n'
            '[[source]]\npath = "groups"\nhandlers = "handlers"\n'
            '[skills]\ncontext_mode = "read_on_demand"\n'
            "[serve]\nrate_per_minute = 10000000\nheader_timeout_s = 2\nbody_timeout_s = 3\n"
            "[limits]\nprocesses = 32\n",
            encoding="utf-8",
        )

    def _declare(self) -> None:
        path = self.project / "tools.json"
        tools = [
            {
                **tool,
                "command": tool["command"][:3],
                **({"timeoutSec": 1} if tool["name"] == "hang" else {}),
            }
            for tool in json.loads(path.read_text(encoding="utf-8"))["tools"]
            if tool["name"] in {case.tool for case in CASES}
        ]
        path.write_text(json.dumps({"tools": tools}), encoding="utf-8")

    def rewrite(self, number: int) -> None:
        """The file that changes: most of the time right, sometimes broken, sometimes gone."""
        match number % 5:
            case 3:
                self.moving.write_text('{"tools": [{"name": ', encoding="utf-8")
                return
            case 4:
                self.moving.unlink(missing_ok=True)
                return
        (echo,) = (
            tool
            for tool in json.loads((self.project / "tools.json").read_text(encoding="utf-8"))["tools"]
            if tool["name"] == "echo"
        )
        draft = self.moving.with_suffix(".draft")
        draft.write_text(
            json.dumps({"tools": [{**echo, "name": "moving", "description": f"Version {number}."}]}),
            encoding="utf-8",
        )
        draft.replace(self.moving)

    def argv(self, state: Path, *more: str) -> list[str]:
        shared = ["--config", str(self.config), "--state", str(state)]
        return [sys.executable, "-m", "toolcrib", *shared, "serve", *more]

    def env(self) -> dict[str, str]:
        (self.folder / "home").mkdir(exist_ok=True)
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "LANG": "C.UTF-8"}


# -- the server, seen from outside --------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What a process has at one moment."""

    descriptors: int
    """Without those of the pool."""
    connections: int
    threads: int
    resident_bytes: int
    children: int
    """Processes below it."""
    held: Counter[str]
    """The descriptors by what they are."""


class Server:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self.log: list[str] = []

    @classmethod
    async def start(cls, place: Place) -> Server:
        process = await asyncio.create_subprocess_exec(
            *place.argv(place.state, "--port", "0"),
            cwd=place.folder,
            env=place.env(),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        told = []
        while line := (await asyncio.wait_for(process.stderr.readline(), ANSWER_S)).decode():
            told.append(line)
            if found := re.search(r"serving at http://127\.0\.0\.1:(\d+)", line):
                return cls(process, int(found[1]))
        raise RuntimeError("the server did not start: " + "".join(told))

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log.append(line.decode("utf-8", "replace").rstrip())

    def look(self) -> Look:
        base = f"/proc/{self.pid}"
        links = []
        for name in os.listdir(f"{base}/fd"):
            with suppress(OSError):
                links.append(os.readlink(f"{base}/fd/{name}"))
        sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
        ours = f":{self.port:04X}"
        connections = 0
        with open("/proc/net/tcp", encoding="ascii") as file:
            for line in file:
                parts = line.split()
                if parts[1].endswith(ours) and parts[3] != "0A" and parts[9] in sockets:
                    connections += 1
        with open(f"{base}/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        held = Counter(re.sub(r"[0-9a-f]{6,}|\d+", "N", link) for link in links)
        others = sum(many for what, many in held.items() if not POOL.fullmatch(what))
        others -= min(held["/"], held["mnt:[N]"])  # the pool holds the root of each namespace with it
        return Look(others, connections, len(os.listdir(f"{base}/task")), resident, self.children(), held)

    def children(self) -> int:
        """Processes below the server's."""
        parents = {}
        for pid in pids():
            with suppress(OSError):
                text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
                parents[pid] = int(text.rpartition(")")[2].split()[1])
        below = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in below and pid not in below}:
            below |= more
        return len(below) - 1


# -- the clients --------------------------------------------------------------------------------------------


@dataclass
class Soak:
    """What all clients share."""

    place: Place
    server: Server
    drawn: random.Random
    pace_s: float
    until: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    """Right ones, by the kind of client."""
    other: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, str | None] = field(default_factory=dict)
    """What the HTTP API said of calls, by their ids."""
    numbers: int = 0

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self.until

    def nonce(self) -> str:
        self.numbers += 1
        return f"n{self.numbers}"

    def case(self) -> Case:
        return self.drawn.choices(CASES, WEIGHTS)[0]

    def judge(self, who: str, wrong: str) -> None:
        if wrong:
            self.wrong[f"{who}: {wrong}"] += 1
        else:
            self.answers[who] += 1

    async def rest(self) -> None:
        await asyncio.sleep(self.drawn.uniform(0, 2 * self.pace_s))

    async def live(self, who: str, life: Callable[[Soak], Awaitable[None]]) -> None:
        """One client, again and again. What it did not expect is wrong."""
        while self.is_on:
            try:
                await life(self)
            except (
                OSError,
                asyncio.IncompleteReadError,
                TimeoutError,
                ValueError,
                LookupError,
                TypeError,
            ) as error:
                self.wrong[f"{who}: {type(error).__name__}: {str(error)[:120]}"] += 1
                await asyncio.sleep(0.2)


async def http_client(soak: Soak) -> None:
    wire = await Wire.open(soak.server.port)
    try:
        while soak.is_on:
            if soak.drawn.random() < 0.03:
                answer = await wire.ask("GET", "/v1/tools")
                names = {tool["name"] for tool in answer.json()["tools"]}
                soak.judge(
                    "http", "" if {"echo", "double", "read_skill"} <= names else f"GET /v1/tools: {names}"
                )
            case, nonce = soak.case(), soak.nonce()
            body = compact({"arguments": arguments_of(case, nonce)})
            answer = await wire.ask("POST", f"/v1/tools/{case.tool}/call", body)
            told = answer.json()
            soak.judge("http", wrong_http(case, nonce, answer))
            if "call_id" in told:
                soak.kinds[told["call_id"]] = told["error"]["kind"] if told["error"] else None
            await soak.rest()
    finally:
        wire.close()


def newer_request(method: str, params: dict[str, Any], number: object) -> tuple[bytes, dict[str, str]]:
    around = {META + "protocolVersion": NEWER, META + "clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": around}}
    headers = {"Accept": ACCEPT, "MCP-Protocol-Version": NEWER, "Mcp-Method": method}
    if method == "tools/call":
        headers["Mcp-Name"] = params["name"]
    return json.dumps(message).encode(), headers


ACCEPT = "application/json, text/event-stream"


async def newer_client(soak: Soak) -> None:
    wire = await Wire.open(soak.server.port)
    try:
        while soak.is_on:
            case, nonce = soak.case(), soak.nonce()
            params = {"name": case.tool, "arguments": arguments_of(case, nonce)}
            answer = await wire.ask("POST", "/mcp", *newer_request("tools/call", params, nonce))
            soak.judge("mcp newer", wrong_mcp(case, nonce, nonce, answer.message()))
            await soak.rest()
    finally:
        wire.close()


def older(method: str, params: dict[str, Any], number: object = None) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if number is None else {**message, "id": number}).encode()


HELLO = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}


async def older_client(soak: Soak) -> None:
    wire = await Wire.open(soak.server.port)
    try:
        headers = {"Accept": ACCEPT}
        answer = await wire.ask("POST", "/mcp", older("initialize", HELLO, 0), headers)
        soak.judge(
            "mcp older", "" if "notes" in answer.message()["result"]["instructions"] else "no instructions"
        )
        headers |= {"MCP-Protocol-Version": OLDER, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        answer = await wire.ask("POST", "/mcp", older("notifications/initialized", {}), headers)
        soak.judge("mcp older", "" if answer.status == 202 else f"initialized: {answer.status}")
        answer = await wire.ask("POST", "/mcp", older("tools/list", {}, "list"), headers)
        first = answer.message()["result"]["tools"][0]["name"]
        soak.judge("mcp older", "" if first == "read_skill" else f"tools/list begins with {first}")
        for number in range(1, 50):
            if not soak.is_on:
                break
            case, nonce = soak.case(), soak.nonce()
            params = {"name": case.tool, "arguments": arguments_of(case, nonce)}
            answer = await wire.ask("POST", "/mcp", older("tools/call", params, number), headers)
            soak.judge("mcp older", wrong_mcp(case, nonce, number, answer.message()))
            await soak.rest()
    finally:
        wire.close()


async def stdio_client(soak: Soak) -> None:
    """A server of its own, in a process; its state is its own, too."""
    state = soak.place.folder / f"stdio-{soak.nonce()}"
    process = await asyncio.create_subprocess_exec(
        *soak.place.argv(state, "--stdio"),
        cwd=soak.place.folder,
        env=soak.place.env(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def ask(body: bytes, number: object) -> Any:
        process.stdin.write(body + b"\n")  # type: ignore[union-attr]
        while True:
            line = await asyncio.wait_for(process.stdout.readline(), ANSWER_S)  # type: ignore[union-attr]
            told = json.loads(line)
            if "method" not in told:  # a notification that the list changed
                return told

    calls = 0
    try:
        await ask(older("initialize", HELLO, 0), 0)
        process.stdin.write(older("notifications/initialized", {}) + b"\n")
        for number in range(1, 200):
            if not soak.is_on:
                break
            case, nonce = soak.case(), soak.nonce()
            params = {"name": case.tool, "arguments": arguments_of(case, nonce)}
            told = await ask(older("tools/call", params, number), number)
            soak.judge("mcp stdio", wrong_mcp(case, nonce, number, told))
            calls += 1
            await soak.rest()
    finally:
        process.stdin.close()
        status = await asyncio.wait_for(process.wait(), ANSWER_S)
    begun, ended, _ = records.begins_and_ends(state)
    flaws = len(records.verdict(state).flaws)
    whole = set(begun.values()) | set(ended.values()) <= {1} and begun.keys() == ended.keys()
    is_right = status == 0 and whole and len(begun) >= calls and not flaws
    soak.judge("mcp stdio", "" if is_right else f"exit {status}, {len(begun)} begins, {len(ended)} ends")


async def killed_client(soak: Soak) -> None:
    """Connects, calls, and is gone before the answer."""
    wire = await Wire.open(soak.server.port)
    tool = soak.drawn.choice(["hang", "echo", "double", "daemon"])
    params = {"name": tool, "arguments": {"nonce": soak.nonce()}}
    if soak.drawn.random() < 0.5:
        body = compact({"arguments": params["arguments"]})
        wire.send("POST", f"/v1/tools/{tool}/call", body)
    else:
        wire.send("POST", "/mcp", *newer_request("tools/call", params, 1))
    await wire.writer.drain()
    await asyncio.sleep(soak.drawn.choice([0, 0.005, 0.05, 0.3]))
    wire.cut()
    soak.other["killed in a call"] += 1
    await soak.rest()


async def slow_reader(soak: Soak) -> None:
    """Takes its time to read, and must get all of it."""
    wire = await Wire.open(soak.server.port)
    try:
        nonce = "x" * 20_000
        body = compact({"arguments": {"nonce": nonce}})
        wire.send("POST", "/v1/tools/double/call", body)
        answer = await asyncio.wait_for(wire.answer(pause_s=0.1), ANSWER_S)
        soak.judge(
            "slow reader", "" if answer.json()["data"] == {"twice": nonce * 2} else "not the whole answer"
        )
    finally:
        wire.close()
    await soak.rest()


async def half_open(soak: Soak) -> None:
    """Stops in the middle of a request; the server must end it by itself, in time."""
    wire = await Wire.open(soak.server.port)
    try:
        whole = request(wire.port, "POST", "/v1/tools/echo/call", b'{"arguments": {"nonce": "half"}}')
        wire.writer.write(whole[: soak.drawn.choice([0, 10, 60, len(whole) - 5])])
        rest = await asyncio.wait_for(wire.reader.read(), ANSWER_S)
        soak.judge("half-open", "" if b" 200 " not in rest[:20] else "half a request was answered")
    except ConnectionResetError:
        soak.judge("half-open", "")
    finally:
        wire.cut()


async def listener(soak: Soak) -> None:
    """Listens to events of one kind or another, and vanishes."""
    wire = await Wire.open(soak.server.port)
    try:
        if soak.drawn.random() < 0.5:
            wire.send("GET", "/v1/events", headers={"Accept": "text/event-stream"})
        else:
            wanted = {"notifications": {"toolsListChanged": True}}
            wire.send("POST", "/mcp", *newer_request("subscriptions/listen", wanted, 1))
        status, _ = await asyncio.wait_for(wire.head(), ANSWER_S)
        # There is a limit to how many one caller may have.
        soak.judge("listener", "" if status in (200, 429, 503) else f"status {status}")
        if status == 200:
            with suppress(TimeoutError):
                await asyncio.wait_for(wire.reader.read(4096), soak.drawn.uniform(0.1, 4))
    finally:
        wire.cut()
    await soak.rest()


CLIENTS: tuple[tuple[str, int, Callable[[Soak], Awaitable[None]]], ...] = (
    ("http", 34, http_client),
    ("mcp newer", 26, newer_client),
    ("mcp older", 16, older_client),
    ("killed", 8, killed_client),
    ("slow reader", 4, slow_reader),
    ("half-open", 4, half_open),
    ("listener", 6, listener),
    ("mcp stdio", 2, stdio_client),
)


async def _reloads(soak: Soak) -> None:
    number = 0
    while soak.is_on:
        number += 1
        await asyncio.to_thread(soak.place.rewrite, number)
        soak.other["files rewritten, broken or removed"] += 1
        await asyncio.sleep(RELOAD_S * soak.drawn.uniform(0.5, 1.5))
    soak.place.rewrite(0)


async def _clients(soak: Soak, count: int, seconds: float) -> list[Look]:
    """All clients at once, for so long; the server, looked at every second."""
    soak.until = time.monotonic() + seconds
    share = count / sum(weight for _, weight, _ in CLIENTS)
    tasks = [asyncio.create_task(_reloads(soak))]
    for who, weight, life in CLIENTS:
        tasks += [asyncio.create_task(soak.live(who, life)) for _ in range(max(1, round(weight * share)))]
    looks: list[Look] = []
    while soak.is_on:
        looks.append(soak.server.look())
        await asyncio.sleep(min(1.0, max(0.05, soak.until - time.monotonic())))
    await asyncio.wait_for(asyncio.gather(*tasks), 3 * ANSWER_S)
    return looks


async def _quiet(server: Server, place: Place, descriptors: int, threads: int) -> Look:
    """Wait until the server rests, as far as it comes to rest."""
    until = time.monotonic() + QUIET_S
    while True:
        look = server.look()
        at_rest = look.connections == 0 and look.descriptors <= descriptors and look.threads <= threads
        if (at_rest and not place.tools.living()) or time.monotonic() > until:
            return look
        await asyncio.sleep(0.1)


def _metric(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))


async def _soak(count: int, seconds: float, seed: int, pace_s: float, folder: Path) -> bool:
    place = Place(folder)
    server = await Server.start(place)
    log = asyncio.create_task(server.read_log())
    soak = Soak(place, server, random.Random(seed), pace_s)
    began = time.monotonic()
    try:
        warm_s = max(2.0, seconds * 0.15)
        print(f"warming up for {warm_s:.0f} s", file=sys.stderr)
        warm = await _clients(soak, count, warm_s)
        most = max(look.threads for look in warm)
        before = await _quiet(server, place, max(look.descriptors for look in warm), most)
        print(f"{count} clients for {seconds:.0f} s", file=sys.stderr)
        looks = await _clients(soak, count, seconds)
        after = await _quiet(server, place, before.descriptors + MORE_DESCRIPTORS, most)
        left, zombies = place.tools.living(), place.tools.zombies()
        wire = await Wire.open(server.port)
        metrics = (await wire.ask("GET", "/metrics")).body.decode()
        wire.close()
    finally:
        server.process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(server.process.wait(), ANSWER_S)
        await log
        place.tools.end_all()
    took_s = time.monotonic() - began

    begun, ended, kinds = records.begins_and_ends(place.state)
    verdict = records.verdict(place.state)
    otherwise = sum(kinds.get(name, "nothing") != kind for name, kind in soak.kinds.items())
    memory = [look.resident_bytes / (1 << 20) for look in looks]
    tenth = max(1, len(memory) // 10)
    growth = statistics.median(memory[-tenth:]) - statistics.median(memory[:tenth])
    wrong = sum(soak.wrong.values())
    leaked = after.descriptors - before.descriptors > MORE_DESCRIPTORS
    more = after.held - before.held
    lines = [
        Line("right answers", f"{soak.answers.total():,}", "≥ 1", soak.answers.total() >= 1),
        exactly("wrong answers", wrong),
        exactly("connections left open", after.connections),
        Line(
            "descriptors more than before",
            f"{after.descriptors - before.descriptors}",
            f"≤ {MORE_DESCRIPTORS}",
            not leaked,
        ),
        exactly("threads more than at work", max(0, after.threads - most)),
        exactly("calls still under way", int(_metric(metrics, "toolcrib_calls_in_flight"))),
        exactly("streams still open", int(_metric(metrics, "toolcrib_open_streams"))),
        exactly("tools left running", len(left)),
        Line(
            "children more than before",
            f"{after.children - before.children}",
            f"≤ {MORE_PROCESSES}",
            after.children - before.children <= MORE_PROCESSES,
        ),
        exactly("zombies", len(zombies)),
        exactly("calls without exactly one begin", sum(begun[name] != 1 for name in begun | ended)),
        exactly("calls without exactly one end", sum(ended[name] != 1 for name in begun | ended)),
        exactly("records that tell another outcome", otherwise),
        exactly("flaws in the journal", len(verdict.flaws)),
        exactly("exit status after SIGTERM", status),
        *([at_most("server memory growth", growth, GROWTH_MIB, "MiB")] if seconds >= JUDGED_S else []),
    ]
    by_client = ", ".join(f"{who} {many:,}" for who, many in sorted(soak.answers.items()))
    others = ", ".join(f"{many:,} {what}" for what, many in sorted(soak.other.items()))
    notes = [
        f"{took_s:.0f} s, {len(begun):,} recorded calls, {len(begun) / took_s:,.0f} a second, seed {seed}",
        f"right answers: {by_client}",
        f"besides: {others}; {_metric(metrics, 'toolcrib_reloads_total'):.0f} reloads",
        f"memory {memory[0]:.0f} to {memory[-1]:.0f} MiB (most {max(memory):.0f}), threads at most "
        f"{max(look.threads for look in looks)}, connections {max(look.connections for look in looks)}",
        *(f"wrong: {text} ({many} times)" for text, many in soak.wrong.most_common(WRONG_SHOWN)),
        *(f"flaw: {flaw.segment} record {flaw.number}: {flaw.why}" for flaw in verdict.flaws[:WRONG_SHOWN]),
        *(f"server: {line}" for line in _odd(server.log)),
        *(
            f"open now and not before: {many} {what}"
            for what, many in more.most_common(WRONG_SHOWN)
            if leaked
        ),
    ]
    return show(f"{count} clients of one server, {seconds:.0f} s", lines, notes)


def _odd(log: list[str]) -> list[str]:
    """What the server said that it need not have."""
    usual = ("reloaded", "not reloaded", "stopping", "  ", "For MCP", "Claude", "VS Code", "Ctrl-C", "MCP")
    return [line for line in log if line and not line.startswith(usual)][:WRONG_SHOWN]


def run(clients: int, seconds: float, seed: int, pace_s: float, folder: Path) -> bool:
    """Serve, call, look at everything, print the table; whether all goals were met."""
    return asyncio.run(_soak(clients, seconds, seed, pace_s, folder))
