"""Who counts as the owner of a server on loopback: real servers, and tools that other hosts run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.levels import each_level
from tests.peers import Peer as Talks
from tests.peers import Talk, answers
from tests.program import WAIT_S, bounded, environment, serving, toolcrib
from tests.wire import asked, heard, request
from toolcrib.doors._peers import Peer, is_asked, look_up
from toolcrib.model import Level

pytestmark = pytest.mark.skipif(not is_asked(), reason="only Linux says whose a connection is; run it there")
ROOT = Path(__file__).parents[2]
KNOCK = """#!/bin/bash
# Sends the bytes of a file to a port of loopback, and says how they were answered.
read -r said
[[ $said =~ \\"host\\":\\ ?\\"([^\\"]+)\\" ]] && host=${BASH_REMATCH[1]}
[[ $said =~ \\"port\\":\\ ?([0-9]+) ]] && port=${BASH_REMATCH[1]}
[[ $said =~ \\"file\\":\\ ?\\"([^\\"]+)\\" ]] && file=${BASH_REMATCH[1]}
exec 3<>"/dev/tcp/$host/$port" || exit 1
cat "$file" >&3
head -n 1 <&3
"""
LEAVE = """#!/bin/bash
# Leaves a process behind, which knocks when it may.
read -r said
[[ $said =~ \\"port\\":\\ ?([0-9]+) ]] && port=${BASH_REMATCH[1]}
[[ $said =~ \\"folder\\":\\ ?\\"([^\\"]+)\\" ]] && folder=${BASH_REMATCH[1]}
(setsid bash -c '
    echo $$ >"$1/left.new"; mv "$1/left.new" "$1/left"
    read -r _ <"$1/go"
    exec 3<>"/dev/tcp/127.0.0.1/$0" && cat "$1/request" >&3
    head -n 1 <&3 >"$1/answer.new"; mv "$1/answer.new" "$1/answer"
' "$port" "$folder" >/dev/null 2>&1 </dev/null &)
sleep 60
"""
HOST = """
import json, sys
import toolcrib
from tests.levels import sandbox_of
from toolcrib.config import Config
from toolcrib.model import Level

level, folder, state, arguments = sys.argv[1:]
with sandbox_of(Level(level)) as sandbox:
    with toolcrib.open(folder, config=Config(state=state), sandbox=sandbox) as crib:
        print(json.dumps(crib.call("knock", json.loads(arguments)).content))
"""
"""Another host of the same user, at a level of its own."""
ASKS = """
[serve]
watch = false
[[policy]]
match = { name = "add" }
decision = "ask"
because = "a person decides"
"""
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
DOORS = {
    "tools": ("GET", "/v1/tools", b""),
    "mcp": ("POST", "/mcp", PING),
    "call": ("POST", "/v1/tools/add/call", b'{"arguments":{}}'),
    "approvals": ("GET", "/v1/approvals", b""),
    "answer": ("POST", "/v1/approvals/0123456789abcdef", b'{"decision":"approve"}'),
    "events": ("GET", "/v1/events", b""),
    "audit": ("GET", "/v1/audit", b""),
    "console": ("GET", "/", b""),
    "metrics": ("GET", "/metrics", b""),
}


def project(folder: Path) -> Path:
    folder.mkdir()
    schema = {"type": "object", "properties": {}}
    commands = {
        "add": ["/bin/echo", "hello"],
        "knock": ["/bin/bash", str(folder / "knock")],
        "leave": ["/bin/bash", str(folder / "leave")],
    }
    tools = [
        {"name": name, "description": "A tool.", "command": command, "schema": schema}
        for name, command in commands.items()
    ]
    (folder / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    (folder / "mine.toml").write_text(ASKS, encoding="utf-8")
    (folder / "knock").write_text(KNOCK, encoding="utf-8")
    (folder / "leave").write_text(LEAVE, encoding="utf-8")
    return folder


class Server:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes], address: str) -> None:
        self.folder = folder
        self.process = process
        self.host, _, port = address.rpartition(":")
        self.port = int(port)

    def bytes_of(self, door: str) -> bytes:
        method, path, body = DOORS[door]
        accept = "Accept: application/json, text/event-stream" if door in ("mcp", "events") else "Accept: */*"
        return request(method, path, self.port, accept, f"Host: {self.host}:{self.port}", body=body)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host.strip("[]"), self.port), WAIT_S)

    def status(self, door: str = "mcp") -> int:
        """What the owner hears: this very process."""
        with self.connect() as client:
            client.sendall(self.bytes_of(door))
            answer = heard(client)
            assert answer is not None
            return answer.status

    def begun(self) -> list[str]:
        """Who called, by the journal."""
        said = toolcrib("--state", self.folder.parent / "served", "audit", "tail", "--json", cwd=self.folder)
        return [record["caller"] for record in said.json if record["what"] == "begin"]


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Server]:
    arguments = ("--from", "tools.json", "--config", "mine.toml", "--state", str(folder.parent / "served"))
    with serving(*arguments, "serve", *options, cwd=folder, home=folder.parent / "home") as started:
        yield Server(folder, started.process, started.address)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(project(tmp_path_factory.mktemp("loopback") / "project")) as found:
        assert found.status() == 200
        yield found


def arguments_of(server: Server, door: str) -> str:
    file = server.folder / f"{door}.request"
    file.write_bytes(server.bytes_of(door))
    return json.dumps({"host": server.host.strip("[]"), "port": server.port, "file": str(file)})


def knocked(server: Server, door: str) -> str:
    """How a tool is answered that ``toolcrib call`` runs, which is another host."""
    folder = server.folder
    options = ("--from", "tools.json", "--state", str(folder.parent / "other"))
    said = toolcrib(*options, "call", "knock", arguments_of(server, door), "--json", cwd=folder)
    assert said.status == 0, said
    return str(said.json["content"])


OPERATIONS = {
    "tools": ("get", "/v1/tools"),
    "approvals": ("get", "/v1/approvals"),
    "answer": ("post", "/v1/approvals/0123456789abcdef"),
    "call": ("post", "/v1/tools/add/call"),
    "disable": ("post", "/v1/tools/add/disable"),
    "led": ("get", "/led"),
}
GRANTED = """
[[source]]
name = "api"
openapi = "api.json"
{more}
[grants."openapi:api/*"]
needs = ["net.http", "net.private"]
"""


def api(folder: Path, server: str, more: str = "") -> Path:
    """A configuration with tools that are requests to a server on loopback, and may be sent there."""
    headers = [{"in": "header", "name": name, "schema": {"type": "string"}} for name in ("Via", "X-More")]
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    paths = {
        path: {method: {"operationId": name, "parameters": headers, "requestBody": body}}
        for name, (method, path) in OPERATIONS.items()
        if method == "post"
    } | {
        path: {method: {"operationId": name, "parameters": headers}}
        for name, (method, path) in OPERATIONS.items()
        if method == "get"
    }
    info = {"title": "api", "version": "1"}
    document = {"openapi": "3.0.3", "info": info, "servers": [{"url": server}], "paths": paths}
    (folder / "api.json").write_text(json.dumps(document), encoding="utf-8")
    config = folder / "api.toml"
    config.write_text(GRANTED.format(more=more), encoding="utf-8")
    return config


def redirect(there: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()


def answered(config: Path, name: str, arguments: object) -> str:
    """How a tool that is a request is answered; ``toolcrib call`` sends it, which is another host."""
    options = ("--config", str(config), "--state", str(config.parent / "sending"))
    said = toolcrib(*options, "call", name, json.dumps(arguments), "--json", cwd=config.parent)
    return said.out + said.err


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "led"])
def test_attack_a_tool_that_is_a_request_has_its_host_ask_as_the_owner(
    server: Server, tmp_path: Path, name: str
) -> None:
    """The host's own process connects, which has no mark."""
    before = server.begun()
    config = api(tmp_path, f"http://{server.host}:{server.port}")
    given: dict[str, object] = {"body": {}} if OPERATIONS[name][0] == "post" else {}
    assert "this needs a token" in answered(config, f"openapi:api/{name}", given)
    assert server.status("tools") == 200
    assert server.begun() == before


@pytest.mark.parametrize(
    "headers", [{"Via": ""}, {"Via": "1.1 another"}, {"X_More": "x"}, {"Via": "", "X_More": "Via"}]
)
def test_attack_a_tool_takes_off_what_says_that_its_request_is_a_tools(
    server: Server, tmp_path: Path, headers: dict[str, str]
) -> None:
    config = api(tmp_path, f"http://{server.host}:{server.port}")
    assert "this needs a token" in answered(config, "openapi:api/tools", headers)


def test_attack_a_redirect_leads_a_request_to_the_server_of_the_owner(server: Server, tmp_path: Path) -> None:
    there = f"http://localhost:{server.port}/v1/approvals"
    with Talks(answers(redirect(there))) as peer:
        config = api(tmp_path, peer.url().rstrip("/"))
        assert "this needs a token" in answered(config, "openapi:api/led", {})
        assert len(peer.asked) == 1


def test_attack_a_document_and_an_mcp_server_are_asked_for_as_the_owner(
    server: Server, tmp_path: Path
) -> None:
    """At the start and at each call. The address is granted because the configuration names it."""
    root = f"http://{server.host}:{server.port}"
    found = f'[[source]]\nname = "away"\nopenapi = "{root}/openapi.json"\n'
    found += f'[[source]]\nname = "served"\nmcp = "{root}/mcp"\n'
    config = api(tmp_path, root, found)
    options = ("--config", str(config), "--state", str(tmp_path / "state"))
    said = toolcrib(*options, "check", "--json", cwd=tmp_path)
    told = [problem["message"] for problem in said.json["problems"]]
    assert any("HTTP status 401" in message for message in told), told
    assert any("it wants credentials" in message for message in told), told


def test_attack_a_tool_of_the_server_itself_has_it_ask_itself_as_the_owner(tmp_path: Path) -> None:
    addresses: list[str] = []

    def lead(peer: Talks, talk: Talk) -> None:
        """To a port that is known only once the server listens."""
        answers(redirect(f"http://{addresses[0]}/v1/approvals"))(peer, talk)

    with Talks(lead) as peer:
        config = api(tmp_path, peer.url().rstrip("/"))
        arguments = ("--config", str(config), "--state", str(tmp_path / "served"))
        with serving(*arguments, "serve", cwd=tmp_path, home=tmp_path / "home") as started:
            addresses.append(started.address)
            port = int(started.address.rpartition(":")[2])
            answer = asked(port, "POST", "/v1/tools/openapi:api%2Fled/call", body=b'{"arguments":{}}')
            assert (answer.status, b"this needs a token" in answer.body) == (502, True), answer


def wait_until(condition: Callable[[], bool]) -> None:
    until, pause = time.monotonic() + WAIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < until
        pause.wait(0.01)


@pytest.mark.parametrize("door", DOORS)
def test_attack_a_tool_of_another_host_comes_in_as_the_owner(server: Server, door: str) -> None:
    """It would call other tools, or answer the question that its own call waits for."""
    before = server.begun() if door == "call" else []
    assert knocked(server, door).startswith("HTTP/1.1 401 ")
    assert server.status() == 200
    if door == "call":
        assert server.begun() == before


@pytest.mark.parametrize("level", each_level())
def test_attack_a_tool_of_another_host_at_every_level(server: Server, level: Level) -> None:
    state = str(server.folder.parent / f"other-{level}")
    ran = subprocess.run(
        [sys.executable, "-c", HOST, level, server.folder, state, arguments_of(server, "tools")],
        cwd=server.folder,
        env=environment(server.folder.parent / "home", PYTHONPATH=str(ROOT)),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert json.loads(ran.stdout).startswith("HTTP/1.1 401 ")


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.2",
        pytest.param(
            "::1", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1; switch IPv6 on")
        ),
    ],
)
def test_attack_a_tool_of_another_host_on_other_addresses_of_loopback(tmp_path: Path, host: str) -> None:
    with served(project(tmp_path / "project"), "--host", host) as server:
        assert server.status("tools") == 200
        assert knocked(server, "tools").startswith("HTTP/1.1 401 ")


def children_of(process: int) -> Iterator[int]:
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text("utf-8").split()):
                yield child
                yield from children_of(child)


def name_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text("utf-8").strip()
    return ""


def test_attack_what_a_tool_left_behind_comes_in_when_its_host_is_gone(
    server: Server, tmp_path: Path
) -> None:
    """Killed supervisors end nothing. What is left has no ancestor any more that tells what it was."""
    folder = server.folder
    os.mkfifo(tmp_path / "go")
    (tmp_path / "request").write_bytes(server.bytes_of("tools"))
    arguments = json.dumps({"port": server.port, "folder": str(tmp_path)})
    options = ("--from", "tools.json", "--state", str(tmp_path / "state"), "call", "leave", arguments)
    program = str(Path(sys.executable).with_name("toolcrib"))
    calling = subprocess.Popen(
        [program, *options],
        cwd=folder,
        env=environment(tmp_path / "home"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with bounded(calling):
        wait_until((tmp_path / "left").exists)
        left = int((tmp_path / "left").read_text("utf-8"))
        ours = [each for each in children_of(calling.pid) if name_of(each).startswith("tw-")]
        for each in (*ours, calling.pid):
            os.kill(each, signal.SIGSTOP)  # all at once: none may sweep for another
        for each in (*ours, calling.pid):
            os.kill(each, signal.SIGKILL)
        calling.wait(WAIT_S)
    try:
        go = os.open(tmp_path / "go", os.O_RDWR)
        os.write(go, b"now\n")
        wait_until(lambda: (tmp_path / "answer").exists() or not Path(f"/proc/{left}").exists())
        os.close(go)
        if (tmp_path / "answer").exists():  # else it was ended after all
            assert (tmp_path / "answer").read_text("utf-8").startswith("HTTP/1.1 401 ")
    finally:
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def test_attack_a_request_is_sent_and_left(server: Server) -> None:
    before = server.begun()
    server.process.send_signal(signal.SIGSTOP)
    with server.connect() as client:
        client.sendall(server.bytes_of("call"))
    server.process.send_signal(signal.SIGCONT)
    assert server.status() == 200  # by now the other one was read
    assert server.begun() == before


def test_attack_a_connection_is_on_its_way_to_another_process(server: Server) -> None:
    here, there = socket.socketpair()
    with here, there:
        before = refused(server)
        client = server.connect()
        socket.send_fds(here, [b"x"], [client.fileno()])
        client.sendall(server.bytes_of("tools"))
        held = client.detach()
        os.close(held)
        until = time.monotonic() + WAIT_S
        while refused(server) == before:
            assert time.monotonic() < until
        _, descriptors, _, _ = socket.recv_fds(there, 10, 1)
        with socket.socket(fileno=descriptors[0]) as again:
            again.settimeout(WAIT_S)
            answer = heard(again)
            assert answer is not None
            assert answer.status == 401


def refused(server: Server) -> int:
    """How many requests without a token were refused."""
    with server.connect() as client:
        client.sendall(server.bytes_of("metrics"))
        answer = heard(client)
        assert answer is not None
        (line,) = (
            line for line in answer.body.splitlines() if line.startswith(b"toolcrib_tokens_refused_total ")
        )
    return int(line.split()[1])


def test_a_program_of_the_owner_that_hides_needs_a_token(server: Server) -> None:
    """As one that ssh forwards, or that cannot be inspected."""
    program = """
import ctypes, socket, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
held = socket.create_connection((sys.argv[1], int(sys.argv[2])))
held.sendall(sys.stdin.buffer.read())
print(held.recv(12).decode())
"""
    if os.geteuid() == 0:
        pytest.skip("root may look at everything; run the tests as another user")
    ran = subprocess.run(
        [sys.executable, "-c", program, server.host, str(server.port)],
        input=server.bytes_of("tools"),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert ran.stdout.strip() == b"HTTP/1.1 401"


def test_the_owner_is_known_whatever_it_uses(server: Server) -> None:
    """This process is no tool, and tools of other hosts run meanwhile."""
    found: list[Any] = []
    calling = threading.Thread(target=lambda: found.append(knocked(server, "tools")))
    calling.start()
    for door in DOORS:
        assert server.status(door) not in (401, 403), door
    calling.join(WAIT_S)
    assert found
    with server.connect() as client:
        peer = Peer(client.getsockname()[:2], client.getpeername()[:2])
        look_up([peer])
        assert peer.verdict
