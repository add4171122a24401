"""MCP servers behind URLs: both eras, streams and plain answers, sessions, and servers that misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from tests.lateness import measured
from tests.levels import sandbox_of
from tests.peers import nobody
from tests.runtimes.test_mcp import BOUND_S, OPEN, House, call_of, patient, result_of, tool_of
from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.errors import Kind
from toolcrib.functions import PROGRESS
from toolcrib.model import CallMcp, End, Ending, Level, Permit, TextBlock, Tool
from toolcrib.runtimes._mcp_client import WireLimits
from toolcrib.sandbox import Cancel

SDK = str(Path(__file__).parent.parent / "peers" / "sdk_server.py")


@contextmanager
def sdk_server(*options: str) -> Iterator[str]:
    """A server of the SDK on a free port; its URL."""
    process = subprocess.Popen([sys.executable, SDK, "http", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def newer() -> Iterator[str]:
    with sdk_server() as url:
        yield url


@pytest.fixture(scope="module")
def older() -> Iterator[str]:
    with sdk_server("older") as url:
        yield url


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with sdk_server("older", "json") as url:
        yield url


@contextmanager
def house_at(url: str, variables: dict[str, str] | None = None, **more: Any) -> Iterator[Remote]:
    with sandbox_of(Level.PORTABLE) as sandbox:
        house = Remote(sandbox, variables, **more)
        house.definition = {"url": url}
        try:
            yield house
        finally:
            house.tools.close()


class Remote(House):
    """A house whose one server lies behind a URL that a trusted source names."""

    definition: dict[str, Any]

    def tool(self, name: str) -> Tool:
        text = jsontext.compact({"name": "far", "definition": self.definition}).decode()
        self.tools._definitions = lambda digest: text
        settings = jsontext.compact({"key": "mcp:far/", "definition": "d"})
        return replace(tool_of(name), invocation=CallMcp(server="far", tool=name, settings=settings))

    def ask(
        self, tool: str, /, cancel: Cancel | None = None, timeout_s: float = 10.0, **arguments: Any
    ) -> Ending:
        permit = replace(OPEN, limits=replace(OPEN.limits, timeout_s=timeout_s))
        return self.tools.run(BoundTool(self.tool(tool)), call_of(arguments), permit, cancel or Cancel())


def words(ending: Ending) -> str:
    assert ending.end is End.RETURNED, ending
    return "\n".join(block.text for block in ending.blocks or () if isinstance(block, TextBlock))


# -- the SDK's own server -----------------------------------------------------------------------------------


@pytest.mark.requirement("rye.executor.mcp-http")
@pytest.mark.parametrize("which", ["newer", "older", "plain"])
def test_a_server_of_the_sdk_is_called_in_either_era(which: str, request: pytest.FixtureRequest) -> None:
    with house_at(request.getfixturevalue(which)) as house:
        assert words(house.ask("echo", text="héllo")) == "héllo"
        added = house.ask("add", left=2, right=3)
        assert (words(added), added.value) == ("5", {"result": 5})
        (state,) = house.tools.states()
        assert state.alive
        version = "2026-07-28" if which == "newer" else "2025-11-25"
        assert state.about == f"sdk 1.2.3 {version}"
        failed = result_of(house.ask("fail", text="no luck"))
        assert failed.error is not None
        assert "no luck" in failed.error.message
        listed = house.tools.listed(house.tool(""), 10.0, Cancel())
        assert isinstance(listed, list)
        assert [tool["name"] for tool in listed][:3] == ["echo", "add", "fail"]


@pytest.mark.parametrize("which", ["newer", "older"])
def test_progress_comes_in_the_stream_of_the_answer(which: str, request: pytest.FixtureRequest) -> None:
    with house_at(request.getfixturevalue(which)) as house:
        told: list[tuple[float, float | None, str]] = []
        heard = PROGRESS.set(lambda *step: told.append(step))
        try:
            assert house.ask("steps", count=3).notes == ("messages of progress: 3",)
        finally:
            PROGRESS.reset(heard)
        assert [(done, total) for done, total, _ in told] == [(0, 3), (1, 3), (2, 3)]


def test_a_change_of_the_list_is_heard_over_a_subscription(newer: str) -> None:
    with house_at(newer) as house:
        until = time.monotonic() + BOUND_S
        while not house.noticed.is_set() and time.monotonic() < until:
            house.ask("grow", name=f"grown_{time.monotonic_ns()}")
            house.noticed.wait(0.2)
        assert house.changed[0] == "d"


def test_a_change_of_the_list_is_heard_over_the_stream_of_a_session() -> None:
    with raw_server(greeted) as (url, kind), house_at(url) as house:
        house.ask("x")
        assert house.noticed.wait(BOUND_S)
        assert house.changed[0] == "d"
        headers = next(headers for method, headers, _ in kind.seen if method == "GET")
        assert (headers["Accept"], headers["Mcp-Session-Id"]) == ("text/event-stream", "s0")


@pytest.mark.parametrize("which", ["newer", "older"])
def test_a_slow_server_is_given_up_and_others_go_on(which: str, request: pytest.FixtureRequest) -> None:
    with house_at(request.getfixturevalue(which)) as house:
        words(house.ask("echo", text="x"))
        assert house.ask("wait", timeout_s=0.3, seconds=20).end is End.TIMED_OUT
        cancel, ended = Cancel(), []
        thread = threading.Thread(target=lambda: ended.append(house.ask("wait", cancel, seconds=20)))
        thread.start()
        cancel.set()
        thread.join(BOUND_S)
        assert [ending.end for ending in ended] == [End.CANCELLED]
        assert words(house.ask("echo", text="y")) == "y"


def test_many_threads_call_at_once(newer: str) -> None:
    with house_at(newer) as house:
        said: list[str] = []
        house.ask("echo", text="x")

        def ask(number: int) -> None:
            for step in range(4):
                said.append(words(house.ask("echo", text=f"{number}/{step}")))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        assert sorted(said) == sorted(f"{number}/{step}" for number in range(6) for step in range(4))


def test_credentials_go_along_by_the_name_of_a_secret() -> None:
    with sdk_server("token=s3cret", "json") as url:
        with house_at(url) as house:
            ending = house.ask("echo", text="x")
            assert ending.end is End.UNAVAILABLE
            assert "it wants credentials (HTTP status 401)" in ending.reason
        with house_at(url, variables={"TOKEN": "s3cret"}) as house:
            house.definition["headers"] = {"Authorization": "Bearer ${TOKEN}"}
            assert "was not granted" in house.ask("echo", text="x").reason
            house.tools._permit_of = lambda tool: replace(OPEN, env=("TOKEN",))
            assert words(house.ask("echo", text="x")) == "x"


# -- servers that misbehave ---------------------------------------------------------------------------------


ABOUT = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "raw"}}


class Handler(BaseHTTPRequestHandler):
    """A server of the older era whose answers to calls are what a test says."""

    protocol_version = "HTTP/1.1"
    answer: ClassVar[Callable[[Handler, dict[str, Any]], None]]
    seen: ClassVar[list[tuple[str, dict[str, str], Any]]]
    sessions: ClassVar[list[str]]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def give(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def result(self, number: object, value: Any, **headers: str) -> None:
        self.give(200, json.dumps({"jsonrpc": "2.0", "id": number, "result": value}).encode(), **headers)

    def do_GET(self) -> None:
        type(self).seen.append(("GET", dict(self.headers), None))
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        self.give(200, stream(json.dumps(changed)), "text/event-stream")

    def do_DELETE(self) -> None:
        type(self).seen.append(("DELETE", dict(self.headers), None))
        self.give(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((message.get("method", ""), dict(self.headers), message))
        match message.get("method"):
            case "server/discover":
                self.give(404)
            case "initialize":
                session = f"s{len(self.sessions)}"
                self.sessions.append(session)
                about = {"protocolVersion": "2025-06-18", **ABOUT}
                self.result(message["id"], about, Mcp_Session_Id=session)
            case "tools/call" | "tools/list":
                type(self).answer(self, message)
            case None:
                self.told()
            case _:
                self.give(202)

    def told(self) -> None:
        """We answered something that it asked."""
        self.give(202)


@contextmanager
def raw_server(
    answer: Callable[[Handler, dict[str, Any]], None],
    get: Callable[[Handler], None] | None = None,
    kind: type[Handler] = Handler,
) -> Iterator[tuple[str, type[Handler]]]:
    own: dict[str, Any] = {"answer": staticmethod(answer), "seen": [], "sessions": []}
    kind = type("Own", (kind,), {**own, **({"do_GET": get} if get is not None else {})})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp", kind
    finally:
        server.shutdown()
        server.server_close()


def spoken(number: object, text: str = "hi") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": text}]}}


def greeted(handler: Handler, message: dict[str, Any]) -> None:
    handler.give(200, json.dumps(spoken(message["id"])).encode())


def test_a_session_goes_along_and_is_ended() -> None:
    with raw_server(greeted) as (url, kind):
        with house_at(url) as house:
            assert words(house.ask("x")) == "hi"
        methods = [method for method, _, _ in kind.seen if method != "GET"]
        assert methods[:2] == ["server/discover", "initialize"]
        assert methods[2:] == ["notifications/initialized", "tools/call", "DELETE"]
        for _, headers, _ in kind.seen[2:]:
            assert headers["Mcp-Session-Id"] == "s0"
            assert headers["MCP-Protocol-Version"] == "2025-06-18"
        assert "Mcp-Session-Id" not in kind.seen[1][1]


def test_a_forgotten_session_is_begun_anew_and_the_call_made_once_more() -> None:
    def answer(handler: Handler, message: dict[str, Any]) -> None:
        if handler.headers["Mcp-Session-Id"] == "s0":
            handler.give(404)
        else:
            handler.give(200, json.dumps(spoken(message["id"])).encode())

    with raw_server(answer) as (url, kind), house_at(url) as house:
        assert words(house.ask("x")) == "hi"
        assert kind.sessions == ["s0", "s1"]


def test_a_server_that_was_restarted_lists_its_tools_in_a_new_session() -> None:
    def answer(handler: Handler, message: dict[str, Any]) -> None:
        if handler.headers["Mcp-Session-Id"] == "s0":
            handler.give(404)
        else:
            handler.result(message["id"], {"tools": [{"name": "x"}]})

    with raw_server(answer) as (url, kind), house_at(url) as house:
        assert house.tools.listed(house.tool(""), 10.0, Cancel()) == [{"name": "x"}]
        assert kind.sessions == ["s0", "s1"]


def test_a_server_that_forgets_every_session_is_unavailable() -> None:
    with raw_server(lambda handler, message: handler.give(404)) as (url, kind), house_at(url) as house:
        listed = house.tools.listed(house.tool(""), 10.0, Cancel())
        assert isinstance(listed, Ending)
        assert (listed.end, listed.reason) == (End.UNAVAILABLE, "it forgets its sessions at once")
        ending = house.ask("x")
        assert (ending.end, "forgets its sessions" in ending.reason) == (End.UNAVAILABLE, True)
        assert len(kind.sessions) == 4


def stream(*events: str) -> bytes:
    return "".join(f"event: message\ndata: {event}\n\n" for event in events).encode()


def test_questions_in_the_stream_are_answered_and_strangers_ignored() -> None:
    """Attack: a server that asks for more than it may, or answers for another's question."""

    def answer(handler: Handler, message: dict[str, Any]) -> None:
        body = b": a comment\n\n" + stream(
            json.dumps({"jsonrpc": "2.0", "id": 77, "method": "ping"}),
            json.dumps({"jsonrpc": "2.0", "id": 78, "method": "roots/list"}),
            json.dumps(spoken(message["id"] + 1, "not yours")),
            json.dumps(spoken(message["id"], "yours")),
        )
        handler.give(200, body, "text/event-stream")

    with raw_server(answer) as (url, kind), house_at(url) as house:
        assert words(house.ask("x")) == "yours"
        told = {message["id"]: message for method, _, message in kind.seen if not method and message}
        assert told[77]["result"] == {}
        assert told[78]["error"]["code"] == -32601


def test_a_call_can_be_stopped_while_the_server_does_not_take_our_answer() -> None:
    """Attack: a server that asks whether we are there, and then never reads that we are."""
    asked, over = threading.Event(), threading.Event()

    class Deaf(Handler):
        def told(self) -> None:
            asked.set()
            over.wait(BOUND_S)
            super().told()

    def answer(handler: Handler, message: dict[str, Any]) -> None:
        body = stream(json.dumps({"jsonrpc": "2.0", "id": 77, "method": "ping"}))
        handler.give(200, body, "text/event-stream")

    cancel = Cancel()

    def press() -> None:
        asked.wait(BOUND_S)
        cancel.set()

    with raw_server(answer, kind=Deaf) as (url, _), house_at(url) as house:
        threading.Thread(target=press, daemon=True).start()
        began = time.monotonic()
        ending = house.ask("x", cancel, timeout_s=BOUND_S)
        took_s = time.monotonic() - began
        over.set()
    assert asked.is_set()
    assert ending.end is End.CANCELLED
    assert took_s < BOUND_S / 2


def test_a_stream_that_the_server_ended_early_is_taken_up_again() -> None:
    def answer(handler: Handler, message: dict[str, Any]) -> None:
        type(handler).asked = message["id"]  # type: ignore[attr-defined]
        handler.give(200, b"id: 7\ndata:\n\n", "text/event-stream")

    def more(handler: Handler) -> None:
        type(handler).seen.append(("GET", dict(handler.headers), None))
        if "Last-Event-ID" in handler.headers:
            number = type(handler).asked  # type: ignore[attr-defined]
            handler.give(200, stream(json.dumps(spoken(number, "late"))), "text/event-stream")
        else:
            handler.give(405)

    with raw_server(answer, more) as (url, kind), house_at(url) as house:
        assert words(house.ask("x")) == "late"
        resumed = [headers for method, headers, _ in kind.seen if headers.get("Last-Event-ID")]
        assert [headers["Last-Event-ID"] for headers in resumed] == ["7"]


@pytest.mark.parametrize(
    ("body", "kind", "end", "reason"),
    [
        (b'{"id": 1, "id": 2}', "application/json", End.LOST, "broken JSON"),
        (b"<html>", "text/html", End.LOST, "text/html, which is no message"),
        (b"", "text/event-stream", End.LOST, "the stream ended without the answer"),
        (b"data: {\n\n", "text/event-stream", End.LOST, "broken JSON"),
        (b"x" * 5000, "application/json", End.TOO_LARGE, "more than 2000 bytes"),
        (b"data: " + b"x" * 5000 + b"\n\n", "text/event-stream", End.TOO_LARGE, "more than 2000 bytes"),
    ],
)
def test_an_answer_that_is_none_fails_its_call_and_no_other(
    body: bytes, kind: str, end: End, reason: str
) -> None:
    def answer(handler: Handler, message: dict[str, Any]) -> None:
        if message["params"]["name"] == "good":
            handler.give(200, json.dumps(spoken(message["id"])).encode())
        else:
            handler.give(200, body, kind)

    with raw_server(answer) as (url, _), house_at(url, limits=WireLimits(message_bytes_max=2000)) as house:
        ending = house.ask("bad")
        assert ending.end is end
        assert reason in ending.reason
        assert words(house.ask("good")) == "hi"


def test_a_server_that_hangs_up_leaves_the_outcome_unknown() -> None:
    def answer(handler: Handler, message: dict[str, Any]) -> None:
        handler.close_connection = True
        handler.connection.close()

    with raw_server(answer) as (url, _), house_at(url) as house:
        result = result_of(house.ask("x"))
        assert result.error is not None
        assert result.error.kind is Kind.UNKNOWN_OUTCOME


def test_nobody_there_is_unavailable_and_not_asked_at_once_again() -> None:
    with nobody() as url, house_at(url, jitter=patient) as house:
        assert house.ask("x").end is End.UNAVAILABLE
        assert "it is tried again in" in house.ask("x").reason


def test_a_server_of_two_endpoints_is_told_apart_with_what_to_do() -> None:
    class Old(Handler):
        """As servers of 2024-11-05 are: a stream that names the address for messages, and no POST here."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.give(405)

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"event: endpoint\ndata: /messages?id=1\n\n")
            self.wfile.flush()
            with suppress(OSError):
                self.connection.recv(1)  # until the client goes

    with raw_server(lambda handler, message: None, kind=Old) as (url, _), house_at(url) as house:
        ending = house.ask("x")
        assert ending.end is End.UNAVAILABLE
        assert "the old transport with two endpoints" in ending.reason
        assert "Streamable HTTP" in str(ending.hint)
    with raw_server(lambda handler, message: None) as (url, _), house_at(url) as house:
        house.definition = {"url": url, "type": "sse"}
        ending = house.ask("x")
        assert (ending.end, "Streamable HTTP" in str(ending.hint)) == (End.UNAVAILABLE, True)


def test_a_server_that_takes_no_more_requests_makes_nobody_come_late() -> None:
    """Attack: a server that lets a call hang and then does not take the word that nobody waits for it."""
    hangs, gone = threading.Event(), threading.Event()

    class Stuck(Handler):
        def give(
            self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str
        ) -> None:
            if hangs.is_set():
                gone.wait(BOUND_S)
                self.close_connection = True
            else:
                super().give(status, body, kind, **headers)

    def answer(handler: Handler, message: dict[str, Any]) -> None:
        hangs.set()
        handler.give(200)

    with raw_server(answer, kind=Stuck) as (url, _), house_at(url) as house:
        with measured() as machine:
            began = time.monotonic()
            assert house.ask("x", timeout_s=0.4).end is End.TIMED_OUT
            took_s = time.monotonic() - began
        gone.set()
    assert took_s < 0.4 + 0.25 + machine.all_s


# -- where a server may lie ---------------------------------------------------------------------------------


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/mcp",
        "http://0.0.0.0/mcp",
        "http://[::ffff:169.254.169.254]/mcp",
        "http://[fe80::1]/mcp",
        "file:///etc/passwd",
        "http://user@127.0.0.1/mcp",
    ],
)
def test_addresses_that_only_harm_are_never_reached_whoever_names_them(url: str) -> None:
    with house_at(url) as house:
        assert house.ask("x", timeout_s=5.0).end is End.UNAVAILABLE


@pytest.mark.battery("I12")
def test_a_private_address_needs_a_grant_unless_a_trusted_source_names_it(newer: str) -> None:
    """Attack: a tool's file that leads our requests to a service of this machine."""
    port = newer.rpartition(":")[2].partition("/")[0]
    with house_at(newer) as house:
        # The definition of a tool's own file is nobody's grant.
        settings = jsontext.compact({"server": {"url": f"http://127.0.0.1:{port}/mcp"}})
        tool = replace(tool_of("echo"), invocation=CallMcp(server="far", tool="echo", settings=settings))
        refused = house.tools.run(BoundTool(tool), call_of({"text": "x"}), OPEN, Cancel())
        assert refused.end is End.UNAVAILABLE
        assert "a private address" in refused.reason
        assert refused.hint is not None
        assert '[grants."rye:odd/echo"]\nneeds = ["net.http", "net.private"]' in refused.hint
        granted = replace(OPEN, private=True)
        assert words(house.tools.run(BoundTool(tool), call_of({"text": "x"}), granted, Cancel())) == "x"
        closed = house.tools.run(BoundTool(tool), call_of({"text": "x"}), Permit(), Cancel())
        assert closed.end is End.DENIED
