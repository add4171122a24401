"""One caller's calls, however many and slow, leave room for those of others: a real server, real tools."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.program import PROGRAM, WAIT_S, bounded, environment, serving
from tests.wire import asked, connected, heard, request

ACCEPT = "Accept: application/json, text/event-stream"
TOKENS = 24
THREADS_MAX = 150
ASKS = """
[[policy]]
match = { name = "ask" }
decision = "ask"
because = "a person decides"
"""


def token(number: int) -> str:
    return f"{number:02}" + "t" * 40


def bearer(number: int) -> str:
    return f"Authorization: Bearer {token(number)}"


class Server:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes], address: str) -> None:
        self.folder = folder
        self.process = process
        self.port = int(address.rpartition(":")[2])

    def call(self, name: str, *lines: str, **more: Any) -> bytes:
        body = json.dumps({"arguments": {}, **more}).encode()
        return request("POST", f"/v1/tools/{name}/call", self.port, *lines, body=body)

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def is_well(self) -> None:
        """The owner is answered, through every door."""
        listing = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        params = {"name": "quick", "arguments": {}}
        calling = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        for body in (listing, calling):
            assert asked(self.port, "POST", "/mcp", ACCEPT, body=body).status == 200
        with connected(self.port) as client:
            client.sendall(self.call("quick"))
            answer = heard(client)
            assert answer is not None
            assert (answer.status, b"hello" in answer.body) == (200, True)
        for path in ("/v1/tools", "/v1/approvals", "/v1/audit", "/metrics", "/", "/approvals"):
            assert asked(self.port, "GET", path).status == 200, path
        assert asked(self.port, "POST", "/v1/select", body=b'{"message":"hello"}').status == 200
        with connected(self.port) as client:
            client.sendall(request("GET", "/v1/events", self.port))
            answer = heard(client)
            assert answer is not None
            assert answer.status == 200


def project(folder: Path, **serve: object) -> Path:
    folder.mkdir()
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    schema = {"type": "object", "properties": {}}
    commands = {
        "slow": ["/usr/bin/head", "-c", "1", str(fifo)],
        "quick": ["/bin/echo", "hello"],
        "ask": ["/bin/echo", "asked"],
    }
    tools = [
        {"name": name, "description": "A tool.", "command": command, "schema": schema}
        for name, command in commands.items()
    ]
    (folder / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    settings = "".join(f"{key} = {json.dumps(value)}\n" for key, value in serve.items())
    (folder / "mine.toml").write_text(f"[serve]\nwatch = false\n{settings}{ASKS}", encoding="utf-8")
    tokens = folder / "tokens"
    tokens.write_text("".join(f"caller{number} {token(number)}\n" for number in range(TOKENS)), "utf-8")
    tokens.chmod(0o600)
    return folder


@contextmanager
def served(folder: Path, **serve: object) -> Iterator[Server]:
    project(folder, **serve)
    arguments = ("--from", "tools.json", "--config", "mine.toml", "serve", "--token-file", "tokens")
    with serving(*arguments, cwd=folder, home=folder.parent / "home") as started:
        yield Server(folder, started.process, started.address)


def statuses(clients: list[socket.socket]) -> Counter[int]:
    found = Counter[int]()
    for client in clients:
        client.settimeout(WAIT_S)
        answer = heard(client)
        assert answer is not None
        found[answer.status] += 1
    return found


def running(server: Server) -> int:
    said = asked(server.port, "GET", "/metrics").body
    (line,) = (line for line in said.splitlines() if line.startswith(b"toolcrib_calls_in_flight "))
    return int(float(line.split()[1]))


def wait_for(server: Server, count: int) -> None:
    until, pause = time.monotonic() + WAIT_S, threading.Event()
    while running(server) < count:
        assert time.monotonic() < until, running(server)
        pause.wait(0.01)


def test_attack_four_hundred_calls_of_a_slow_tool_leave_the_owner_waiting(tmp_path: Path) -> None:
    with served(tmp_path / "project", connections_max=1024) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server.port)) for _ in range(400)]
        gate = os.open(server.folder / "fifo", os.O_RDWR)
        for client in clients:
            client.sendall(server.call("slow", bearer(0)))
        wait_for(server, 400)
        began = time.monotonic()
        server.is_well()
        server.is_well()
        took_s = time.monotonic() - began
        assert running(server) >= 400
        assert server.threads() < THREADS_MAX
        assert took_s < WAIT_S
        feed(gate, 400)
        assert statuses(clients) == {200: 400}
        os.close(gate)


def feed(gate: int, count: int) -> None:
    """Let so many slow calls go on, as they come."""

    def write() -> None:
        with suppress(OSError):
            for _ in range(count):
                os.write(gate, b"x")

    threading.Thread(target=write, daemon=True).start()


def test_attack_many_callers_take_all_places_together(tmp_path: Path) -> None:
    with served(tmp_path / "project", connections_max=1024) as server, ExitStack() as stack:
        gate = os.open(server.folder / "fifo", os.O_RDWR)
        clients = [stack.enter_context(connected(server.port)) for _ in range(20 * 20)]
        for number, client in enumerate(clients):
            client.sendall(server.call("slow", bearer(number % 20)))
        wait_for(server, 400)
        server.is_well()
        feed(gate, 400)
        assert statuses(clients) == {200: 400}
        os.close(gate)


def test_over_its_share_a_caller_is_told_when_to_come_again(tmp_path: Path) -> None:
    with served(tmp_path / "project", connections_max=60) as server, ExitStack() as stack:
        gate = os.open(server.folder / "fifo", os.O_RDWR)
        clients = [stack.enter_context(connected(server.port)) for _ in range(40)]
        for client in clients:
            client.sendall(server.call("slow", bearer(0)))
        refused: list[socket.socket] = []
        until = time.monotonic() + WAIT_S
        while len(refused) < 10 and time.monotonic() < until:
            refused = [client for client in clients if is_answered(client)]
        assert len(refused) == 10
        for client in refused:
            answer = heard(client)
            assert answer is not None
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        server.is_well()
        feed(gate, 30)
        assert statuses([client for client in clients if client not in refused]) == {200: 30}
        os.close(gate)


def is_answered(client: socket.socket) -> bool:
    client.settimeout(0.001)
    with suppress(TimeoutError):
        return bool(client.recv(1, socket.MSG_PEEK))
    return False


def test_attack_calls_that_wait_for_a_person_leave_no_stream_for_others(tmp_path: Path) -> None:
    with served(tmp_path / "project", connections_max=2048) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server.port)) for _ in range(300)]
        for client in clients:
            client.sendall(server.call("ask", bearer(0), approval_wait_s=30))
        until = time.monotonic() + WAIT_S
        while True:
            found = json.loads(asked(server.port, "GET", "/v1/approvals?state=waiting").body)
            if found:
                break
            assert time.monotonic() < until
        server.is_well()
        assert server.threads() < THREADS_MAX
        body = json.dumps({"decision": "approve", "for_s": 60}).encode()
        for one in found:
            assert asked(server.port, "POST", f"/v1/approvals/{one['id']}", body=body).status == 200
        assert statuses(clients[:1])[200] == 1


def test_attack_streams_of_many_callers_leave_none_for_the_owner(tmp_path: Path) -> None:
    with served(tmp_path / "project", connections_max=1024) as server, ExitStack() as stack:
        opened = Counter[int]()
        for number in range(20):
            for _ in range(20):
                client = stack.enter_context(connected(server.port))
                client.sendall(request("GET", "/v1/events", server.port, bearer(number)))
                answer = heard(client)
                assert answer is not None
                opened[answer.status] += 1
        assert opened[200] >= 256
        assert opened.keys() == {200, 429}
        server.is_well()


def answered(client: socket.socket) -> int:
    answer = heard(client)
    assert answer is not None
    return answer.status


def test_attack_silent_connections_close_one_whose_request_was_not_read_yet(tmp_path: Path) -> None:
    with served(tmp_path / "project", connections_max=60) as server, ExitStack() as stack:
        server.is_well()
        server.process.send_signal(signal.SIGSTOP)
        client = stack.enter_context(connected(server.port))
        client.sendall(server.call("quick"))
        for _ in range(200):
            stack.enter_context(connected(server.port))
        server.process.send_signal(signal.SIGCONT)
        assert answered(client) == 200


CHURN = """
import resource, socket, sys
kind, how, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "tool":
    resource.setrlimit(10, (0x746F6F6C, 0x746F6F6C))
held = []
for number in range(300):
    one = socket.create_connection(("127.0.0.1", port))
    if "half" in how:
        one.sendall(b"GET / HTTP/1.1\\r\\nX-Slow: ")
    if "closed" in how:
        one.close()
    held.append(one)
print("done", flush=True)
sys.stdin.read()
"""
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user; run the tests as root"
)


@contextmanager
def churned(server: Server, kind: str, how: str) -> Iterator[None]:
    """Another program has opened more connections than there may be; the server finds them all at once."""
    other: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": ()} if kind == "user" else {}
    server.process.send_signal(signal.SIGSTOP)
    try:
        process = subprocess.Popen(
            ["/usr/bin/python3", "-c", CHURN, kind, how, str(server.port)],
            cwd="/",
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **other,
        )
        assert process.stdout is not None
        with bounded(process):
            assert process.stdout.readline() == b"done\n"
    finally:
        server.process.send_signal(signal.SIGCONT)
    try:
        assert asked(server.port, "GET", "/healthz").status == 200  # it has accepted those before this one
        yield
    finally:
        process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("how", ["silent", "half", "closed", "half closed"])
@pytest.mark.parametrize("kind", [pytest.param("user", marks=AS_ROOT), "tool", "program"])
def test_attack_connections_of_another_user_or_program_close_those_on_which_the_owner_has_not_asked_yet(
    tmp_path: Path, kind: str, how: str
) -> None:
    with served(tmp_path / "project", connections_max=60) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server.port)) for _ in range(10)]
        for _ in range(2):
            with churned(server, kind, how):
                clients += [stack.enter_context(connected(server.port)) for _ in range(5)]
        for client in clients:
            client.sendall(server.call("quick"))
            assert answered(client) == 200


def test_attack_connections_at_once_leave_no_file_descriptor_to_look_who_has_connected(
    tmp_path: Path,
) -> None:
    """Without one, the server cannot read /proc, and would take its owner for a stranger."""
    with served(tmp_path / "project", connections_max=60) as server, ExitStack() as stack:
        server.is_well()
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 160, used + 160))
        clients = [stack.enter_context(connected(server.port)) for _ in range(10)]
        with churned(server, "program", "silent"):
            for client in clients:
                client.sendall(server.call("quick"))
                assert answered(client) == 200
            assert asked(server.port, "GET", "/v1/tools").status == 200


def test_attack_a_caller_with_most_connections_closes_those_on_which_others_have_not_asked_yet(
    tmp_path: Path,
) -> None:
    with served(tmp_path / "project", connections_max=60) as server, ExitStack() as stack:

        def fill(count: int) -> None:
            for _ in range(count):
                client = stack.enter_context(connected(server.port))
                client.sendall(request("GET", "/v1/tools", server.port, bearer(0)))
                assert answered(client) == 200

        fill(60)
        clients = [stack.enter_context(connected(server.port)) for _ in range(5)]
        fill(40)
        for client in clients:
            client.sendall(server.call("quick"))
            assert answered(client) == 200


def test_attack_calls_of_a_slow_tool_over_a_pipe_delay_no_other_tool(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    gate = os.open(folder / "fifo", os.O_RDWR)
    process = subprocess.Popen(
        [PROGRAM, "--from", "tools.json", "--config", "mine.toml", "serve", "--stdio"],
        cwd=folder,
        env=environment(tmp_path / "home"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello},
        *(
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "tools/call",
                "params": {"name": "slow", "arguments": {}},
            }
            for number in range(400)
        ),
        {
            "jsonrpc": "2.0",
            "id": "quick",
            "method": "tools/call",
            "params": {"name": "quick", "arguments": {}},
        },
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with bounded(process):
            process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
            process.stdin.flush()
            seen = [json.loads(process.stdout.readline())["id"] for _ in range(2)]
            assert seen == ["hello", "quick"]
            assert len(os.listdir(f"/proc/{process.pid}/task")) < THREADS_MAX
            feed(gate, 400)
            assert sorted(json.loads(process.stdout.readline())["id"] for _ in range(400)) == [*range(400)]
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)
        os.close(gate)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc; run it on Linux")
