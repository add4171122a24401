"""The attacks of the security battery on MCP and HTTP (area I), against a served process."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.program import serving, toolcrib
from tests.wire import WAIT_S, Heard, asked, connected, heard, request

ACCEPT = "Accept: application/json, text/event-stream"
CONFIG = """
[serve]
header_timeout_s = 1
body_timeout_s = 2
write_timeout_s = 1
connections_max = 60
body_bytes_max = 1048576
watch = false
"""
CALL_BACK = """#!/bin/bash
port=$(grep -o '[0-9][0-9]*' | head -n 1)
exec 3<>/dev/tcp/127.0.0.1/$port
printf 'GET /v1/tools HTTP/1.1\\r\\nHost: 127.0.0.1:%s\\r\\nConnection: close\\r\\n\\r\\n' "$port" >&3
head -n 1 <&3
"""


def manifest(folder: Path) -> str:
    schema = {"type": "object", "properties": {"port": {"type": "integer"}}}
    commands = {"add": ["/bin/echo", "hello"], "call_back": ["/bin/bash", str(folder / "call_back")]}
    tools = [
        {"name": name, "description": "A tool.", "command": command, "schema": schema}
        for name, command in commands.items()
    ]
    wrong = {"name": "bad_one", "description": "Wrong.", "command": ["/bin/echo"], "schema": {"type": "no"}}
    return json.dumps({"tools": [*tools, wrong]})


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    port: int

    def mcp(self, message: Any, *lines: str) -> Heard:
        return asked(self.port, "POST", "/mcp", ACCEPT, *lines, body=json.dumps(message).encode())

    def is_well(self, *lines: str) -> bool:
        return self.mcp({"jsonrpc": "2.0", "id": 1, "method": "ping"}, *lines).status == 200

    def sockets(self) -> list[str]:
        """The addresses on which the process listens, as the kernel has them."""
        own: set[str] = set()
        for name in os.listdir(f"/proc/{self.process.pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(f"/proc/{self.process.pid}/fd/{name}")
                own.add(target.removeprefix("socket:[").removesuffix("]"))
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in own:
                    found.append(fields[1].partition(":")[0])
        return found


def project(folder: Path, config: str = CONFIG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tools.json").write_text(manifest(folder), encoding="utf-8")
    (folder / "mine.toml").write_text(config, encoding="utf-8")
    (folder / "call_back").write_text(CALL_BACK, encoding="utf-8")
    return folder


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Server]:
    arguments = ("--from", "tools.json", "--config", "mine.toml", "serve", *options)
    with serving(*arguments, cwd=folder, home=folder / "home") as started:
        yield Server(started.process, int(started.address.rpartition(":")[2]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(project(tmp_path_factory.mktemp("served"))) as found:
        yield found


def initialize(server: Server, *lines: str) -> str:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    answer = server.mcp(message, *lines)
    assert answer.status == 200, answer
    return answer.headers["mcp-session-id"]


# -- who may speak ------------------------------------------------------------------------------------------


@pytest.mark.battery("I01")
def test_i01_a_page_of_somebody_elses_is_refused_before_anything_is_parsed(server: Server) -> None:
    for body in (b"{}", b"not json", b'{"jsonrpc":"2.0","id":1,"method":"ping"}'):
        for origin in ("https://evil.example", "null", "http://localhost:1"):
            answer = asked(server.port, "POST", "/mcp", ACCEPT, f"Origin: {origin}", body=body)
            assert answer.status == 403
            assert "access-control-allow-origin" not in answer.headers
    assert server.is_well(f"Origin: http://127.0.0.1:{server.port}")
    assert asked(server.port, "POST", "/mcp", ACCEPT, "Host: evil.example", body=b"{}").status == 421


@pytest.mark.battery("I03")
def test_i03_without_options_only_this_machine_can_reach_us(server: Server) -> None:
    assert server.sockets() == ["0100007F"]  # 127.0.0.1, as the kernel writes it


@pytest.mark.battery("I03")
def test_i03_on_any_other_address_nobody_listens_without_a_token_and_nobody_comes_in_without_one(
    tmp_path: Path,
) -> None:
    folder = project(tmp_path / "p")
    arguments = ("--from", "tools.json", "--config", "mine.toml", "serve", "--port", "0", "--host", "0.0.0.0")
    refused = toolcrib(*arguments, cwd=folder, home=folder / "home")
    assert refused.status == 78
    assert "toolcrib token create" in refused.err
    made = toolcrib("token", "create", "ci", "--json", cwd=folder, home=folder / "home").json
    with served(folder, "--host", "0.0.0.0") as server:
        bearer = f"Authorization: Bearer {made['token']}"
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        answer = server.mcp(ping)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert server.mcp(ping, f"{bearer}x").status == 401
        assert asked(server.port, "GET", f"/v1/tools?token={made['token']}").status == 401
        assert server.mcp(ping, bearer).status == 200
        told = f"Host: {socket.gethostname()}:{server.port}"  # as the address that was printed has it
        assert server.mcp(ping, bearer, told).status == 200
        assert server.mcp(ping, bearer, "Host: evil.example").status == 421
        toolcrib("token", "revoke", "ci", cwd=folder, home=folder / "home")
        until = time.monotonic() + 1.0
        is_late = False
        while server.mcp(ping, bearer).status != 401:
            assert not is_late, "a revoked token is still good after a second"
            is_late = time.monotonic() >= until


ASKS = """
[[policy]]
match = { name = "add" }
decision = "ask"
because = "a person decides"
"""


def test_attack_a_revoked_token_lives_on_in_streams_and_in_calls_that_wait(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", CONFIG + ASKS)
    home = folder / "home"
    value = toolcrib("token", "create", "ci", cwd=folder, home=home).out.strip()
    other = toolcrib("token", "create", "other", cwd=folder, home=home).out.strip()
    bearer = f"Authorization: Bearer {value}"
    with served(folder, "--host", "0.0.0.0") as server, ExitStack() as stack:
        session = f"Mcp-Session-Id: {initialize(server, bearer)}"
        waiting, events, changes, others = (stack.enter_context(connected(server.port)) for _ in range(4))
        body = json.dumps({"arguments": {}, "approval_wait_s": 60}).encode()
        waiting.sendall(request("POST", "/v1/tools/add/call", server.port, bearer, body=body))
        events.sendall(request("GET", "/v1/events", server.port, bearer))
        changes.sendall(request("GET", "/mcp", server.port, ACCEPT, bearer, session))
        others.sendall(request("GET", "/v1/events", server.port, f"Authorization: Bearer {other}"))
        for client in (events, changes, others):
            begun = heard(client)
            assert begun is not None
            assert begun.status == 200
        until = time.monotonic() + WAIT_S
        while (
            b'"needs_approval"'
            not in asked(
                server.port, "POST", "/v1/tools/add/call", f"Authorization: Bearer {other}", body=b"{}"
            ).body
        ):
            assert time.monotonic() < until
        for path in ("/v1/tools/add/call", "/v1/tools/add/explain"):
            said = asked(server.port, "POST", path, f"Authorization: Bearer {other}", body=b"{}").body
            assert b"mine.toml:" in said  # which rule, and not where the host's files lie
            assert str(folder).encode() not in said
        toolcrib("token", "revoke", "ci", cwd=folder, home=home)
        for client in (events, changes):
            read = b""
            while not read.endswith(b"0\r\n\r\n"):
                part = client.recv(65536)  # times out where it does not end
                assert part
                read += part
        answer = heard(waiting)
        assert answer is not None
        assert answer.status == 401
        assert server.is_well(f"Authorization: Bearer {other}")
        others.setblocking(False)
        with suppress(BlockingIOError):
            assert others.recv(1 << 20)  # it goes on


def test_a_tool_that_we_run_is_not_taken_for_the_owner(server: Server) -> None:
    assert server.is_well()
    params = {"name": "call_back", "arguments": {"port": server.port}}
    answer = server.mcp({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    assert b"HTTP/1.1 401" in answer.body


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; run the tests as root")
def test_another_user_of_the_machine_is_not_taken_for_the_owner(server: Server) -> None:
    said = subprocess.run(
        ["/bin/bash", "-c", CALL_BACK],
        input=str(server.port).encode(),
        capture_output=True,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        timeout=WAIT_S,
        user=65534,
        check=True,
    )
    assert said.stdout.startswith(b"HTTP/1.1 401")


@pytest.mark.battery("I04")
def test_i04_sessions_cannot_be_guessed_shared_or_used_up(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", CONFIG + "rate_per_minute = 0\n")
    home = folder / "home"
    made = [
        toolcrib("token", "create", name, cwd=folder, home=home).out.strip() for name in ("mine", "other")
    ]
    mine, other = (f"Authorization: Bearer {value}" for value in made)
    with served(folder, "--host", "0.0.0.0") as server:
        ids = {initialize(server, mine) for _ in range(50)}
        assert len(ids) == 50
        assert min(map(len, ids)) >= 22  # 128 bits in base64
        session = f"Mcp-Session-Id: {ids.pop()}"
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert server.mcp(ping, mine, session).status == 200
        # Another client's id, seen in a log: whoever shows it is not that client.
        assert server.mcp(ping, other, session).status == 404
        assert asked(server.port, "GET", "/mcp", ACCEPT, other, session).status == 404
        assert asked(server.port, "DELETE", "/mcp", other, session).status == 404
        assert server.mcp(ping, session).status == 401
        known = session.split()[1]
        changed = ("B" if known[0] == "A" else "A") + known[1:]
        guesses = ["0" * 32, changed, known + "A", known[:-1], "../x", "\xff" * 20]
        for guess in guesses:
            assert server.mcp(ping, mine, f"Mcp-Session-Id: {guess}").status == 404
        # As many as somebody likes: each costs us nothing that stays.
        before = resident_bytes(server.process.pid)
        with connected(server.port) as client:
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            }
            message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            text = request("POST", "/mcp", server.port, ACCEPT, mine, body=json.dumps(message).encode())
            for _ in range(10_000):
                client.sendall(text)
                answer = heard(client)
                assert answer is not None
                assert answer.status == 200
        assert resident_bytes(server.process.pid) - before < 16 << 20
        assert server.mcp(ping, mine, session).status == 200


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.battery("I05")
def test_i05_what_a_form_of_any_page_could_send_is_not_read(server: Server) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = asked(server.port, "POST", "/mcp", ACCEPT, f"Content-Type: {kind}", body=body)
        assert answer.status == 415


# -- too much -----------------------------------------------------------------------------------------------


@pytest.mark.battery("I14")
def test_i14_slow_heads_are_given_up_while_others_are_served(server: Server) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(server.port)) for _ in range(100)]
        for client in slow:
            try:
                client.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: 1")
            except ConnectionError:  # it has made room already
                continue
        for _ in range(20):
            assert server.is_well()
        for client in slow:
            answer = heard(client)
            assert answer is None or answer.status == 408
    assert server.is_well()


@pytest.mark.battery("I14")
def test_i14_a_gigabyte_in_chunks_ends_at_the_limit(server: Server) -> None:
    before = resident_bytes(server.process.pid)
    sent = 0
    with connected(server.port) as client:
        lines = (ACCEPT, "Transfer-Encoding: chunked", "Content-Type: application/json")
        client.sendall(request("POST", "/mcp", server.port, *lines))
        try:
            while sent < 1 << 30:
                client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        except ConnectionError:  # ended by the server
            pass
    assert sent < 64 << 20
    assert resident_bytes(server.process.pid) - before < 32 << 20
    assert server.is_well()


@pytest.mark.battery("I14")
def test_i14_a_body_that_would_unfold_is_not_unfolded(server: Server) -> None:
    bomb = gzip.compress(b" " * (50 << 20))
    for encoding in ("gzip", "deflate", "br", "gzip, gzip"):
        answer = asked(
            server.port, "POST", "/mcp", ACCEPT, f"Content-Encoding: {encoding}", body=bomb[:60_000]
        )
        assert answer.status == 415
    assert server.is_well()


@pytest.mark.battery("I14")
def test_i14_a_batch_of_ten_thousand_runs_nothing(server: Server) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
    answer = server.mcp([call] * 10_000)
    assert answer.status == 400
    assert b"hello" not in answer.body
    assert len(answer.body) < 1000
    assert server.is_well()


@pytest.mark.battery("I14")
def test_i14_an_id_of_a_megabyte_is_not_said_back(server: Server) -> None:
    message = {"jsonrpc": "2.0", "id": "x" * 1_000_000, "method": "ping"}
    answer = server.mcp(message)
    assert answer.status == 400
    assert len(answer.body) < 1000
    assert server.mcp({"jsonrpc": "2.0", "id": 10**400, "method": "ping"}).status == 400
    assert server.mcp({**message, "id": "x" * 2_000_000}).status == 413
    deep = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001
    assert asked(server.port, "POST", "/mcp", ACCEPT, body=deep).status == 400
    assert server.is_well()


@pytest.mark.battery("I14")
def test_i14_readers_of_endless_streams_are_capped_and_calls_go_on(server: Server) -> None:
    session = f"Mcp-Session-Id: {initialize(server)}"
    statuses: list[int] = []
    with ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(connected(server.port))
            client.sendall(request("GET", "/mcp", server.port, ACCEPT, session))
            client.settimeout(WAIT_S)
            statuses.append(first_status(client))
        assert set(statuses[:10]) == {200}
        assert statuses[-1] in (429, 503)
        assert server.is_well()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
        assert b"hello" in server.mcp(call).body
    assert server.is_well()


def first_status(client: socket.socket) -> int:
    data = b""
    while b"\r\n" not in data:
        part = client.recv(4096)
        assert part, data
        data += part
    return int(data.split()[1])
