"""``toolcrib serve`` as a user starts it: a real process, real requests, real signals."""

from __future__ import annotations

import http.client
import json
import os
import platform
import pty
import re
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_client import Pipe, request
from tests.program import PROGRAM, WAIT_S, Said, bounded, environment, toolcrib
from toolcrib.doors import cli
from toolcrib.doors._limits import PIPELINE_MAX

JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
IMPORTED = """
import sys
from toolcrib.doors import cli
status = cli.run(sys.argv[1:])
print("imported:", *sorted(sys.modules), file=sys.stderr)
sys.exit(status)
"""


def declare(folder: Path, *names: str, script: str = "cat") -> Path:
    """A manifest whose tools are one shell script."""
    bin_ = folder / "tools" / "bin"
    bin_.mkdir(parents=True, exist_ok=True)
    program = bin_ / "run"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    tools = [
        {
            "name": name,
            "description": f"Does {name}.",
            "schema": {"type": "object"},
            "command": ["./tools/bin/run"],
        }
        for name in names
    ]
    beside = folder / "tools.new"
    beside.write_text(json.dumps({"tools": tools}), encoding="utf-8")
    beside.replace(folder / "tools.json")
    return folder / "tools.json"


class Server:
    """A started ``serve``, with everything that it says on stderr."""

    def __init__(self, folder: Path, *arguments: str, **more: str) -> None:
        self.process = subprocess.Popen(
            [
                PROGRAM,
                "--from",
                folder,
                "--state",
                folder.parent / "state",
                "serve",
                "--port",
                "0",
                *arguments,
            ],
            cwd=folder,
            env=environment(folder.parent / "home", **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said: list[str] = []
        self._came = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        found = re.search(r"serving at http://(\S+)", self.wait_for("serving at "))
        assert found
        self.address = found[1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._came:
                self.said.append(line.decode("utf-8"))
                self._came.notify_all()
        with self._came:
            self._came.notify_all()

    def wait_for(self, text: str) -> str:
        with self._came:
            found = self._came.wait_for(
                lambda: any(text in line for line in self.said) or self.process.poll() is not None, WAIT_S
            )
            lines = [line for line in self.said if text in line]
        assert found, self.said
        assert lines, self.said
        return lines[0]

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers or (JSON if body is not None else {}))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def names(self) -> list[str]:
        status, body = self.ask("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert status == 200, body
        return [tool["name"] for tool in json.loads(body)["result"]["tools"]]

    def call(self, name: str, arguments: object = None) -> tuple[int, Any]:
        status, body = self.ask("POST", f"/v1/tools/{name}/call", {"arguments": arguments or {}})
        return status, json.loads(body)

    def end(self, number: int = signal.SIGTERM) -> int:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._reading.join(WAIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def serving(folder: Path, *arguments: str, **more: str) -> Iterator[Server]:
    server = Server(folder, *arguments, **more)
    try:
        yield server
    finally:
        server.close()


def greeting(process: subprocess.Popen[bytes]) -> bytes:
    """What a server says first, up to the last line of it."""
    lines: list[bytes] = []
    with bounded(process):
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line == b"Ctrl-C stops it.\n":
                return b"".join(lines)
    raise AssertionError(b"".join(lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    here = tmp_path / "here"
    declare(here, "echo")
    return here


def test_one_port_answers_for_mcp_the_api_the_console_and_health(folder: Path) -> None:
    with serving(folder) as server:
        server.wait_for("Ctrl-C stops it.")
        assert server.names() == ["echo"]
        status, result = server.call("echo", {"x": 1})
        assert (status, result["ok"], json.loads(result["content"])) == (200, True, {"x": 1})
        assert server.ask("GET", "/v1/tools")[0] == 200
        status, body = server.ask("GET", "/openapi.json")
        assert json.loads(body)["openapi"].startswith("3.1")
        assert server.ask("GET", "/healthz") == (200, b'{"status":"ok"}')
        status, body = server.ask("GET", "/readyz")
        assert (status, json.loads(body)["tools"]) == (200, 1)
        assert b"<html" in server.ask("GET", "/")[1]
        counted = b'toolcrib_calls_total{door="http",format="manifest",outcome="ok"} 1\n'
        wait_until(lambda: counted in server.ask("GET", "/metrics")[1])  # after the answer was sent
        assert server.end() == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == b""


def test_what_is_printed_for_mcp_hosts_is_ready_to_be_pasted(folder: Path) -> None:
    with serving(folder) as server:
        server.wait_for("Ctrl-C stops it.")
        settings = [json.loads(line) for line in server.said if line.lstrip().startswith("{")]
        cursor, code, desktop = settings
        url = f"http://{server.address}/mcp"
        assert cursor == {"mcpServers": {"toolcrib": {"type": "http", "url": url}}}
        assert code == {"servers": {"toolcrib": {"type": "http", "url": url}}}
        started = desktop["mcpServers"]["toolcrib"]
        server.end()
    said = subprocess.run(
        [started["command"], *started["args"]],
        cwd="/",
        env=environment(folder.parent / "home") | started.get("env", {}),
        input=HELLO,
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert json.loads(said.stdout.splitlines()[0])["result"]["serverInfo"]["name"]


def test_the_command_for_hosts_serves_the_same_where_a_configuration_was_found(tmp_path: Path) -> None:
    """Attack: rules of a configuration that a host, which starts us in its own folder, would go without."""
    project = tmp_path / "project"
    declare(project / "one", "first")
    declare(project / "two", "second", "third")
    (project / "toolcrib.toml").write_text(
        '[[source]]\npath = "one"\n[[source]]\npath = "two"\n'
        '[[policy]]\nmatch = { name = "third" }\ndecision = "deny"\nbecause = "not here"\n',
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [PROGRAM, "serve", "--port", "0"],
        cwd=project / "one",
        env=environment(tmp_path / "home"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        (started,) = (
            json.loads(line)["mcpServers"]["toolcrib"]
            for line in greeting(process).splitlines()
            if b'"command"' in line
        )
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)
    said = subprocess.run(
        [started["command"], *started["args"]],
        cwd="/",
        env=environment(tmp_path / "home"),
        input=HELLO,
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    listed = json.loads(said.stdout.splitlines()[-1])["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["first", "second"]


def test_the_command_for_hosts_gives_tools_of_a_folder_that_was_not_named_no_more_than_we_do(
    tmp_path: Path,
) -> None:
    """Attack: a cloned project whose tools may do more once the printed command was pasted."""
    project = tmp_path / "project"
    declare(project, "echo", script="echo '{}'")
    started_by: list[str] = [str(PROGRAM), "--state", str(tmp_path / "state")]
    process = subprocess.Popen(
        [*started_by, "serve", "--port", "0"],
        cwd=project,
        env=environment(tmp_path / "home"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        (started,) = (
            json.loads(line)["mcpServers"]["toolcrib"]
            for line in greeting(process).splitlines()
            if b'"command"' in line
        )
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)
    named = [*started_by, "--from", str(project), "serve", "--stdio"]
    printed = [started["command"], *started["args"]]
    for command, profile in ((printed, "profile:project"), (named, "profile:open")):
        said = subprocess.run(
            command,
            cwd="/",
            env=environment(tmp_path / "home"),
            input=HELLO + CALL,
            capture_output=True,
            timeout=WAIT_S,
            check=True,
        )
        answers = [json.loads(line) for line in said.stdout.splitlines()]
        assert any(answer.get("id") == 3 and "result" in answer for answer in answers), answers
        tail = [*started_by, "audit", "tail", "-n", "1", "--json"]
        recorded = subprocess.run(
            tail, cwd="/", env=environment(tmp_path / "home"), capture_output=True, timeout=WAIT_S, check=True
        )
        (end,) = json.loads(recorded.stdout)
        assert profile in end["layers"], (command, end)


def test_a_changed_file_is_seen_by_clients_and_a_broken_one_changes_nothing(folder: Path) -> None:
    with serving(folder) as server:
        assert server.names() == ["echo"]
        declare(folder, "echo", "more")
        server.wait_for("reloaded: 1 added (manifest:here/more)")
        assert server.names() == ["echo", "more"]
        beside = folder / "tools.new"
        beside.write_text('{"tools": [', encoding="utf-8")
        beside.replace(folder / "tools.json")
        server.wait_for("not reloaded, the last good tools stay")
        assert server.names() == ["echo", "more"]
        declare(folder, "more")
        server.wait_for("reloaded: 1 removed (manifest:here/echo)")
        assert server.names() == ["more"]
        _, body = server.ask("GET", "/metrics")
        assert b'toolcrib_reloads_total{outcome="ok"} 2\n' in body
        assert b'toolcrib_reloads_total{outcome="failed"} 1\n' in body


def test_it_is_ready_again_when_a_source_that_failed_is_repaired(folder: Path) -> None:
    (folder / "tools.json").write_text('{"tools": [', encoding="utf-8")
    with serving(folder) as server:
        status, body = server.ask("GET", "/readyz")
        assert (status, json.loads(body)["status"]) == (503, "not ready")
        assert str(folder).encode() not in body
        assert server.ask("GET", "/healthz")[0] == 200
        declare(folder, "echo")
        server.wait_for("reloaded: 1 added")
        assert server.ask("GET", "/readyz")[0] == 200


def test_reloads_are_told_to_whoever_listens_to_events(folder: Path) -> None:
    with serving(folder) as server:
        connection = http.client.HTTPConnection(server.address, timeout=WAIT_S)
        connection.request("GET", "/v1/events", headers={"accept": "text/event-stream"})
        response = connection.getresponse()
        assert response.status == 200
        declare(folder, "echo", "more")
        while True:
            line = response.readline()
            assert line, "the stream ended"
            if line.startswith(b"data:") and b"manifest:here/more" in line:
                break
        # A stream is no reason to stay: it ends when we do.
        assert server.end() == 0
        assert response.read() is not None
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_the_call_under_way_finish(folder: Path, number: int) -> None:
    fifo, began = folder.parent / "fifo", folder.parent / "began"
    os.mkfifo(fifo)
    declare(folder, "wait", script=f"echo begun >{began}; cat {fifo}")
    with serving(folder) as server:
        answers: list[tuple[int, Any]] = []
        calling = threading.Thread(target=lambda: answers.append(server.call("wait")))
        calling.start()
        wait_until(began.exists)
        server.process.send_signal(number)
        server.wait_for("1 call may finish")
        wait_until(lambda: is_closed(server.address))
        fifo.write_text('{"done": true}\n', encoding="utf-8")
        calling.join(WAIT_S)
        ((status, result),) = answers
        assert (status, result["ok"]) == (200, True)
        assert server.process.wait(WAIT_S) == 0
    assert [(record["what"], record.get("ok")) for record in records(folder)] == [
        ("begin", None),
        ("end", True),
    ]


def sent(server: Server, method: str, path: str, body: object = None) -> bytes:
    """A request of a client that would keep its connection."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {server.address}", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in JSON.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def connect(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def answered(connection: socket.socket) -> tuple[int, str | None]:
    """The status of the next answer, and what it says of the connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status, response.getheader("connection")


def is_read(connection: socket.socket) -> bool:
    """Whether the server has read all that was sent to it, as the kernel tells."""
    ends = [f":{address[1]:04X}" for address in (connection.getpeername(), connection.getsockname())]
    for line in Path("/proc/net/tcp").read_text("utf-8").splitlines()[1:]:
        _, own, other, _, queues = line.split()[:5]
        if own.endswith(ends[0]) and other.endswith(ends[1]):
            return int(queues.partition(":")[2], 16) == 0
    return False


LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
BY_SDK = {"jsonrpc": "2.0", "id": 1, "method": "prompts/list"}
CALLED = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}


@pytest.mark.parametrize("is_kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize(
    ("method", "path", "body", "cut", "status"),
    [
        ("GET", "/v1/tools", None, 20, 200),
        ("POST", "/v1/tools/echo/call", {}, 20, 503),
        ("POST", "/v1/tools/echo/call", {}, -1, 503),
        ("POST", "/mcp", LIST, 20, 200),
        ("POST", "/mcp", LIST, -9, 200),
        ("POST", "/mcp", BY_SDK, -9, 200),
    ],
)
def test_a_request_that_has_begun_to_come_when_it_stops_is_answered(
    folder: Path, method: str, path: str, body: object, cut: int, status: int, is_kept: bool
) -> None:
    with serving(folder) as server, connect(server) as connection:
        request = sent(server, method, path, body)
        if is_kept:
            connection.sendall(sent(server, "GET", "/healthz"))
            assert answered(connection) == (200, None)
        connection.sendall(request[:cut])
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_closed(server.address))
        connection.sendall(request[cut:])
        assert answered(connection) == (status, "close")
        assert connection.recv(1) == b""
        assert server.process.wait(WAIT_S) == 0


def test_requests_that_nobody_has_read_or_accepted_when_it_stops_are_answered(folder: Path) -> None:
    with serving(folder) as server, ExitStack() as stack:
        kept, calling = (stack.enter_context(connect(server)) for _ in range(2))
        kept.sendall(sent(server, "GET", "/healthz"))
        assert answered(kept) == (200, None)
        for _ in range(3):
            calling.sendall(sent(server, "POST", "/mcp", CALLED))
            assert answered(calling) == (200, None)
        server.process.send_signal(signal.SIGSTOP)
        fresh = [stack.enter_context(connect(server)) for _ in range(40)]
        for connection in (kept, *fresh):
            connection.sendall(sent(server, "GET", "/v1/tools"))
        calling.sendall(sent(server, "POST", "/mcp", CALLED))
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        for connection in (kept, calling, *fresh):
            # One that was read together with the signal may be answered before anybody knows of that.
            assert answered(connection)[0] == 200
            assert connection.recv(1) == b""
        assert server.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("is_mcp", [False, True], ids=["http", "mcp"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("behind", [b"", b"no HTTP"], ids=["", "spoilt"])
def test_requests_that_lie_behind_a_call_when_it_stops_are_answered(
    folder: Path, is_mcp: bool, is_late: bool, behind: bytes
) -> None:
    fifo, began = folder.parent / "fifo", folder.parent / "began"
    os.mkfifo(fifo)
    declare(folder, "wait", script=f"echo begun >{began}; head -n 1 {fifo}")
    called = CALLED | {"params": {"name": "wait", "arguments": {}}}
    path, body = ("/mcp", called) if is_mcp else ("/v1/tools/wait/call", {})
    with serving(folder) as server, connect(server) as connection, fifo.open("r+b", 0) as gate:
        connection.sendall(sent(server, "POST", path, body))
        wait_until(began.exists)

        def stop() -> None:
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("1 call may finish")
            wait_until(lambda: is_closed(server.address))

        if is_late:
            stop()
        connection.sendall(sent(server, "GET", "/v1/tools"))
        wait_until(lambda: is_read(connection))
        connection.sendall(sent(server, "POST", "/mcp", LIST))
        connection.sendall(sent(server, "POST", "/v1/tools/wait/call", {}))
        connection.sendall(sent(server, "GET", "/healthz") + behind)
        if not is_late:
            stop()
        wait_until(lambda: is_read(connection))
        gate.write(b'{"done": true}\n')
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"200", b"503", b"200"]
        assert answers.count(b"connection: close") == 1
        assert server.process.wait(WAIT_S) == 0


def test_connections_that_ask_for_nothing_keep_nobody_from_stopping(folder: Path) -> None:
    with serving(folder) as server, connect(server) as fresh, connect(server) as kept:
        kept.sendall(sent(server, "GET", "/healthz"))
        assert answered(kept) == (200, None)
        assert server.end() == 0
        assert (fresh.recv(1), kept.recv(1)) == (b"", b"")


@pytest.mark.parametrize(("path", "cut"), [("/v1/select", 20), ("/v1/select", -1), ("/mcp", -1)])
def test_attack_half_a_request_keeps_a_server_from_stopping(folder: Path, path: str, cut: int) -> None:
    """It has as long for the rest as calls under way have, and not until everything is cut off."""
    (folder / "own.toml").write_text(f'[serve]\ndrain_s = 0.2\n[[source]]\npath = "{folder}"\n', "utf-8")
    with serving(folder, "--config", str(folder / "own.toml")) as server, connect(server) as connection:
        connection.sendall(sent(server, "POST", path, LIST)[:cut])
        wait_until(lambda: is_read(connection))
        assert server.end() == 0
        # Once its head was taken, whoever reads the body finds that the client is gone.
        assert connection.recv(13) == (b"HTTP/1.1 408 " if cut > 0 else b"")
    assert not [line for line in server.said if "Traceback" in line or "exceeded" in line]


@pytest.mark.parametrize("path", ["/v1/select", "/mcp"])
def test_a_body_that_does_not_come_in_time_is_told_so(folder: Path, path: str) -> None:
    (folder / "own.toml").write_text(
        f'[serve]\nbody_timeout_s = 0.2\n[[source]]\npath = "{folder}"\n', "utf-8"
    )
    with serving(folder, "--config", str(folder / "own.toml")) as server, connect(server) as connection:
        connection.sendall(sent(server, "POST", path, LIST)[:-1])
        assert connection.recv(13) == b"HTTP/1.1 408 "
        while connection.recv(65536):  # to its end, which comes: the rest of the body is not waited for
            pass
        assert server.end() == 0


def test_attack_requests_without_end_behind_one_keep_a_server_from_stopping(folder: Path) -> None:
    began = folder.parent / "began"
    declare(folder, "wait", script=f"echo begun >{began}; sleep 60")
    (folder / "own.toml").write_text(f'[serve]\ndrain_s = 1\n[[source]]\npath = "{folder}"\n', "utf-8")
    with serving(folder, "--config", str(folder / "own.toml")) as server, connect(server) as connection:
        heard = threading.Thread(target=lambda: list(iter(lambda: read_or_over(connection), b"")))
        connection.sendall(sent(server, "POST", "/v1/tools/wait/call", {}))
        wait_until(began.exists)
        heard.start()
        server.process.send_signal(signal.SIGTERM)
        until, number = time.monotonic() + WAIT_S, 0
        with suppress(OSError):
            while time.monotonic() < until:
                connection.sendall(sent(server, "GET", "/healthz"))
                number += 1
        assert number > PIPELINE_MAX
        assert server.process.wait(WAIT_S) == 0
        heard.join(WAIT_S)
    assert not [line for line in server.said if "Traceback" in line or "exceeded" in line]


def read_or_over(connection: socket.socket) -> bytes:
    with suppress(OSError):
        return connection.recv(65536)
    return b""


def test_attack_an_answer_that_nobody_reads_keeps_a_server_from_stopping(folder: Path) -> None:
    """It is cut off after a while, and whoever reads what the server says is not told of a mistake in it."""
    declared = declare(folder, *(f"long_{number}" for number in range(60)))
    tools = json.loads(declared.read_text(encoding="utf-8"))["tools"]
    long = [tool | {"description": "It does much. " * 1000} for tool in tools]
    declared.write_text(json.dumps({"tools": long}), encoding="utf-8")
    (folder / "own.toml").write_text(f'[serve]\ndrain_s = 0\n[[source]]\npath = "{folder}"\n', "utf-8")
    with serving(folder, "--config", str(folder / "own.toml")) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = server.address.rpartition(":")
        connection.connect((host, int(port)))
        connection.sendall(sent(server, "POST", "/mcp", LIST) * 9)
        assert connection.recv(13) == b"HTTP/1.1 200 "
        assert server.end() == 0
    assert not [line for line in server.said if "Traceback" in line or "exceeded" in line]


def test_a_call_that_does_not_finish_in_time_is_stopped_and_recorded(folder: Path) -> None:
    fifo, began = folder.parent / "fifo", folder.parent / "began"
    os.mkfifo(fifo)
    declare(folder, "wait", script=f"echo begun >{began}; cat {fifo}")
    (folder / "own.toml").write_text(f'[serve]\ndrain_s = 0.2\n[[source]]\npath = "{folder}"\n', "utf-8")
    with serving(folder, "--config", str(folder / "own.toml")) as server:
        answers: list[tuple[int, Any]] = []

        def call() -> None:
            with suppress(OSError, http.client.HTTPException):
                answers.append(server.call("wait"))

        calling = threading.Thread(target=call)
        calling.start()
        wait_until(began.exists)
        assert server.end() == 0
        calling.join(WAIT_S)
    begin, end = records(folder)
    assert (begin["what"], end["what"], end["kind"]) == ("begin", "end", "cancelled")


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    fifo, began = folder.parent / "fifo", folder.parent / "began"
    os.mkfifo(fifo)
    declare(folder, "wait", script=f"echo begun >{began}; cat {fifo}")
    (folder / "own.toml").write_text(f'[serve]\ndrain_s = 3600\n[[source]]\npath = "{folder}"\n', "utf-8")
    with serving(folder, "--config", str(folder / "own.toml")) as server:

        def call() -> None:
            with suppress(OSError, http.client.HTTPException):
                server.call("wait")

        calling = threading.Thread(target=call)
        calling.start()
        wait_until(began.exists)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("1 call may finish")
        assert server.end(signal.SIGINT) == -signal.SIGINT
        calling.join(WAIT_S)


@pytest.mark.battery("I03")
def test_an_address_that_others_can_reach_is_refused_without_a_token(folder: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        said = toolcrib("--from", folder, "serve", "--host", host, "--port", "0", cwd=folder)
        assert said.status == 78, said
        assert "toolcrib token create" in said.err
        assert "--host 127.0.0.1" in said.err


def test_a_token_opens_what_others_can_reach_and_nothing_else_does(folder: Path) -> None:
    token = "t" * 43
    with serving(folder, "--host", "0.0.0.0", "--token-file", tokens(folder, token)) as server:
        # What is printed is a name under which we answer.
        assert server.ask("GET", "/v1/tools", headers={"authorization": f"Bearer {token}"})[0] == 200
        port = server.address.rpartition(":")[2]
        server.address = f"127.0.0.1:{port}"
        assert server.ask("GET", "/v1/tools")[0] == 401
        assert server.ask("GET", "/v1/tools", headers={"authorization": "Bearer " + "x" * 43})[0] == 401
        assert server.ask("GET", "/v1/tools", headers={"authorization": f"Bearer {token}"})[0] == 200
        assert server.ask("GET", "/healthz")[0] == 200
        server.wait_for("Ctrl-C stops it.")
        assert any("Bearer YOUR-TOKEN" in line for line in server.said)
        assert not any(token in line for line in server.said)


def test_a_port_that_is_taken_is_told_with_what_to_do(folder: Path) -> None:
    with serving(folder) as server:
        port = server.address.rpartition(":")[2]
        said = toolcrib("--from", folder, "serve", "--port", port, cwd=folder)
        assert said.status == 78, said
        assert "in use" in said.err
        assert "--port" in said.err


def tokens(folder: Path, token: str) -> str:
    path = folder.parent / "tokens"
    path.write_text(f"{token}\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::ffff:127.0.0.1"])
def test_an_address_that_is_none_of_this_machines_is_told_with_what_to_do(host: str, folder: Path) -> None:
    listen = ("serve", "--host", host, "--port", "0", "--token-file", tokens(folder, "t" * 43))
    said = toolcrib("--from", folder, *listen, cwd=folder)
    assert said.status == 78, said
    assert f"{f'[{host}]' if ':' in host else host}:0: " in said.err
    assert "--host" in said.err
    assert "--port" not in said.err


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]", "0:0::1"])
def test_the_loopback_of_ipv6_is_served_like_the_other_one(host: str, folder: Path) -> None:
    with serving(folder, "--host", host) as server:
        port = server.address.rpartition(":")[2]
        assert server.ask("GET", "/v1/tools")[0] == 200
        for name in ("[::1]", "localhost"):  # browsers write an address in its shortest form
            headers = {"host": f"{name}:{port}", "origin": f"http://{name}:{port}"}
            assert server.ask("GET", "/v1/tools", headers=headers)[0] == 200
        assert server.ask("GET", "/v1/tools", headers={"host": f"[::2]:{port}"})[0] == 421
        assert server.ask("GET", "/v1/tools", headers={"origin": f"http://[::2]:{port}"})[0] == 403


@pytest.mark.parametrize(
    "host", ["0", "0.0.0.0", *(pytest.param(each, marks=needs_ipv6) for each in ("::", "[::]", "0::0"))]
)
def test_every_address_is_meant_however_it_is_written(host: str, folder: Path) -> None:
    token = "t" * 43
    with serving(folder, "--host", host, "--token-file", tokens(folder, token)) as server:
        bearer = {"authorization": f"Bearer {token}"}
        assert server.ask("GET", "/v1/tools", headers=bearer)[0] == 200
        name, _, port = server.address.rpartition(":")
        assert name not in ("0", "0.0.0.0", "[::]", "[0::0]")
        called = {"host": f"{socket.gethostname()}:{port}", **bearer}
        assert server.ask("GET", "/v1/tools", headers=called)[0] == 200


def test_who_finds_no_descriptor_left_is_turned_away_without_filling_the_log(folder: Path) -> None:
    """Attack: calls and connections until no file descriptor is left, and a traceback for each of them."""
    with serving(folder) as server, ExitStack() as held:
        server.wait_for("Ctrl-C stops it.")
        pid = server.process.pid
        used = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(used) + 5, hard))
        host, _, port = server.address.rpartition(":")
        clients = [
            held.enter_context(socket.create_connection((host, int(port)), WAIT_S))
            for _ in range(max(used) + 5 - len(used) + 10)
        ]
        assert select.select(clients, [], [], WAIT_S)[0], "nobody was turned away"
        server.wait_for("connections are turned away: too many open files")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert server.ask("GET", "/healthz")[0] == 200
        held.close()
        assert server.end() == 0
        server.close()
        assert sum("turned away" in line for line in server.said) == 1
        assert not any("Traceback" in line for line in server.said), "".join(server.said)


EXTRA = ("httptools", "jinja2", "mcp", "starlette", "uvicorn", "watchfiles")
WITHOUT_EXTRA = """
import sys
sys.path[:0] = sys.argv.pop(1).split(":")
from toolcrib.doors import cli
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.fixture
def without_extra(tmp_path: Path) -> list[str | Path]:
    """The program as it is installed without the extra: the packages that are here, but for those."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("platlib", "purelib"):
        for path in Path(sysconfig.get_path(name)).iterdir():
            link = packages / path.name
            if not path.name.startswith(EXTRA) and not link.exists():
                link.symlink_to(path)
    places = f"{packages}:{Path(cli.__file__).parents[3]}"
    return [sys.executable, "-I", "-S", "-c", WITHOUT_EXTRA, places]


def test_without_the_extra_it_says_what_to_install(folder: Path, without_extra: list[str | Path]) -> None:
    said = toolcrib("--from", folder, "serve", "--port", "0", cwd=folder, program=without_extra)
    assert said.status == 78, said
    assert "uvicorn" in said.err
    assert "pip install '.[serve]'" in said.err
    assert "serve --stdio" in said.err
    said = toolcrib("--from", folder, "serve", "--stdio", cwd=folder, program=without_extra, stdin=HELLO)
    assert json.loads(said.out.splitlines()[0])["result"]["serverInfo"]["name"]


def test_where_there_is_no_tool_it_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with serving(tmp_path / "here") as server:
        assert "toolcrib init" in server.wait_for("--from")


def test_somebody_who_types_stdio_into_a_terminal_is_told_what_it_does(folder: Path) -> None:
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "--from", folder, "--state", folder.parent / "state", "serve", "--stdio"],
        cwd=folder,
        env=environment(folder.parent / "home"),
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    try:
        assert process.stderr is not None
        assert select.select([process.stderr], [], [], WAIT_S)[0]
        assert b"speaking MCP on stdin" in process.stderr.readline()
    finally:
        os.close(ours)
        process.kill()
        process.communicate(timeout=WAIT_S)


EMBEDDED = """
import toolcrib

@toolcrib.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

with toolcrib.open(tools=[add]) as crib:
    toolcrib.serve(crib, port=0)
"""


def test_a_program_that_serves_functions_of_its_own_prints_no_command_that_lacks_them(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", EMBEDDED],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        said = greeting(process)
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)
    assert b"1 tool\n" in said
    assert said.count(b'/mcp"') == 2
    assert b"--stdio" not in said


def test_stdio_takes_nothing_of_http(folder: Path) -> None:
    for extra in (("--port", "0"), ("--host", "127.0.0.1"), ("--token-file", "x")):
        assert toolcrib("--from", folder, "serve", "--stdio", *extra, cwd=folder).status == 2


def test_quiet_says_only_the_address(folder: Path) -> None:
    with serving(folder, "-q") as server:
        assert server.end() == 0
        server._reading.join(WAIT_S)
        assert server.said == [f"serving at http://{server.address}\n"]


# -- over a pipe --------------------------------------------------------------------------------------------

HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
)
CALL = b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{"x":1}}}\n'


def over_pipe(folder: Path, messages: bytes) -> tuple[Said, list[str]]:
    """A run over stdin and stdout, and the modules that it had imported at its end."""
    said = toolcrib(
        "--from", folder, "--state", folder.parent / "state", "serve", "--stdio",
        cwd=folder, stdin=messages, program=(sys.executable, "-c", IMPORTED),
    )  # fmt: skip
    found = re.search(r"^imported: (.*)$", said.err, re.MULTILINE)
    assert found, said
    return said, found[1].split()


def test_over_a_pipe_stdout_carries_the_protocol_and_nothing_else(folder: Path) -> None:
    said, _ = over_pipe(folder, HELLO + CALL)
    answers = [json.loads(line) for line in said.out.splitlines()]
    assert {answer["id"] for answer in answers if "id" in answer} == {1, 2, 3}
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert said.status == 0


def test_over_a_pipe_nothing_slow_is_imported(folder: Path) -> None:
    """The client that starts us waits for the first answer."""
    _, imported = over_pipe(folder, HELLO + CALL)
    tops = {name.partition(".")[0] for name in imported}
    slow = {"mcp", "jinja2", "starlette", "uvicorn", "httptools", "pydantic", "opentelemetry", "rich"}
    assert tops.isdisjoint(slow), tops & slow
    assert "toolcrib.doors._mcp_resources" not in imported  # it loads YAML and the journal's reader


WITHOUT_SDK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mcp", "mcp_types"):
            print("the SDK was imported:", name, file=sys.stderr)
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""
"""Loaded by the interpreter before anything of ours."""
BEGIN = {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
}  # fmt: skip
SKILL = "---\nname: notes\ndescription: About notes.\n---\nKeep them short.\n"
MUCH = """printf '{"text": "'; head -c 300000 /dev/zero | tr '\\0' x; printf '"}'"""


def uses_what_is_asked_rarely(ask: Callable[[str, object], Any]) -> None:
    uri = "skill://notes/SKILL.md"
    assert [each["uri"] for each in ask("resources/list", {})["result"]["resources"]] == [uri]
    templates = ask("resources/templates/list", {})["result"]["resourceTemplates"]
    assert [each["uriTemplate"] for each in templates] == ["skill://{name}/SKILL.md"]
    (held,) = ask("resources/read", {"uri": uri})["result"]["contents"]
    assert held == {"uri": uri, "mimeType": "text/markdown", "text": SKILL}
    assert [each["name"] for each in ask("prompts/list", {})["result"]["prompts"]] == ["notes"]
    (message,) = ask("prompts/get", {"name": "notes"})["result"]["messages"]
    assert message["content"] == {"type": "text", "text": "Keep them short."}
    ref = {"type": "ref/resource", "uri": "skill://{name}/SKILL.md"}
    completed = ask("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "n"}})
    assert completed["result"]["completion"]["values"] == ["notes"]
    content = ask("tools/call", {"name": "much", "arguments": {}})["result"]["content"]
    (part,) = ask("resources/read", {"uri": content[1]["uri"]})["result"]["contents"]
    assert "xxxxxxxx" in part["text"]
    assert ask("logging/setLevel", {"level": "info"})["error"]["code"] == -32601


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_resources_prompts_and_cut_results_need_no_sdk(folder: Path, tmp_path: Path, way: str) -> None:
    declare(folder, "much", script=MUCH)
    (folder / "notes").mkdir()
    (folder / "notes" / "SKILL.md").write_text(SKILL, encoding="utf-8")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_SDK, encoding="utf-8")
    surroundings = {"PYTHONPATH": str(tmp_path / "site")}
    if way == "http":
        with serving(folder, **surroundings) as server:
            uses_what_is_asked_rarely(
                lambda method, params: json.loads(server.ask("POST", "/mcp", request(method, params))[1])
            )
            assert server.end() == 0
            server._reading.join(WAIT_S)
            said = "".join(server.said)
    else:
        arguments = ("--from", str(folder), "--state", str(tmp_path / "state"), "serve", "--stdio")
        with Pipe(PROGRAM, *arguments, env=environment(tmp_path / "home", **surroundings)) as pipe:
            assert "prompts" in pipe.ask("initialize", BEGIN)["result"]["capabilities"]
            uses_what_is_asked_rarely(pipe.ask)
            _, err, status = pipe.end()
            assert status == 0
            said = err.decode()
    assert "the SDK was imported" not in said


def test_over_a_pipe_a_resource_is_answered_though_the_client_says_no_more(folder: Path) -> None:
    read = b'{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"skill://x/SKILL.md"}}\n'
    said, _ = over_pipe(folder, HELLO + read)
    (answer,) = [each for each in map(json.loads, said.out.splitlines()) if each.get("id") == 3]
    assert answer["error"]["code"] == -32002


def test_over_http_nothing_slow_is_imported_before_it_is_asked_for(folder: Path) -> None:
    program = "from toolcrib.doors.cli import serve; from toolcrib.doors import http, mcp; import sys; "
    program += "from toolcrib.doors.console import routes; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(folder.parent),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    tops = {name.partition(".")[0] for name in ended.stdout.split()}
    assert tops.isdisjoint({"mcp", "jinja2", "starlette", "pydantic", "opentelemetry"})


def test_over_a_pipe_a_signal_ends_it_as_if_the_client_had_left(folder: Path) -> None:
    process = subprocess.Popen(
        [PROGRAM, "--from", folder, "--state", folder.parent / "state", "serve", "--stdio"],
        cwd=folder,
        env=environment(folder.parent / "home"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(HELLO)
        process.stdin.flush()
        assert select.select([process.stdout], [], [], WAIT_S)[0]
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def test_over_a_pipe_a_signal_after_the_client_left_ends_it_at_once_and_without_a_word(folder: Path) -> None:
    """So hosts stop their servers: they hang up, wait a while, and send a signal to who is still there."""
    code = (
        "import signal, sys\n"
        "from toolcrib.doors import cli\n"
        "assert cli.run(sys.argv[1:]) == 0\n"  # stdin is at its end, so that it is on its way out
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('it goes on')\n"
    )
    state = str(folder.parent / "state")
    ended = subprocess.run(
        [sys.executable, "-c", code, "--from", folder, "--state", state, "serve", "--stdio"],
        cwd=folder,
        env=environment(folder.parent / "home"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, b"", b"")


# -- waiting ------------------------------------------------------------------------------------------------


def wait_until(condition: Any) -> None:
    until = time.monotonic() + WAIT_S
    waiting = threading.Event()
    while not condition():
        assert time.monotonic() < until
        waiting.wait(0.01)


def is_closed(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        connection.close()
    return False


def records(folder: Path) -> list[Any]:
    """The records of the journal, as the command shows them."""
    said = toolcrib("--state", folder.parent / "state", "audit", "tail", "--json", cwd=folder)
    found: list[Any] = said.json
    return [record for record in found if record["what"] in ("begin", "end")]


def test_a_call_that_becomes_long_is_let_in_and_counted_once(folder: Path) -> None:
    declare(folder, "nap", script="sleep 0.4")
    (folder / "own.toml").write_text(
        f'[serve]\nrate_per_minute = 4\n[[source]]\npath = "{folder}"\n', "utf-8"
    )
    tokens, token = folder.parent / "tokens", "t" * 43
    tokens.write_text(f"{token}\n", encoding="utf-8")
    tokens.chmod(0o600)
    with serving(
        folder, "--config", str(folder / "own.toml"), "--host", "0.0.0.0", "--token-file", str(tokens)
    ) as server:
        server.address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        head = {**JSON, "authorization": f"Bearer {token}"}
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        calling = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "nap"}}
        statuses = [server.ask("POST", "/mcp", body, head)[0] for body in (listing, *[calling] * 3)]
        assert statuses == [200] * 4
        assert server.ask("POST", "/mcp", calling, head)[0] == 429


ARENAS = """
import ctypes, re, threading
from toolcrib.doors.cli.serve import share_memory
share_memory()
held = threading.Barrier(33)
def work():
    kept = [bytearray(2000) for _ in range(100)]
    held.wait(30)
threads = [threading.Thread(target=work) for _ in range(32)]
for thread in threads:
    thread.start()
held.wait(30)
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
text, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(len(re.findall(b"<heap nr=", text.value)))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc keeps memory by threads; run it there"
)
def test_threads_share_what_is_free_of_the_memory() -> None:
    done = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, timeout=WAIT_S, check=True)
    assert int(done.stdout) <= 2
