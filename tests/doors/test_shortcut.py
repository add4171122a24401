"""The short way of a request: what it answers, when it steps aside, and that nobody can tell."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

import toolwright
from tests.mcp_client import BOTH, WAIT_S, Reply, Served, enveloped, serving
from toolwright.config import Config
from toolwright.doors._entrance import Entrance, Guest, Passed
from toolwright.doors._shortcut import BYTES_MAX, Passage
from toolwright.doors._web import Head, Place

LONG = threading.Event()
ENTERED = threading.Semaphore(0)
STOPPED = threading.Event()


def echo(text: str) -> str:
    """Give back what was given."""
    return text


def hold() -> str:
    """Wait until it is let go."""
    ENTERED.release()
    assert LONG.wait(WAIT_S)
    return "held"


def linger(context: toolwright.Context) -> str:
    """Wait until it is cancelled."""
    ENTERED.release()
    until = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if context.cancelled:
            STOPPED.set()
            return "stopped"
        until.wait(0.01)
    return "never stopped"


@contextmanager
def short(state: Path, **options: Any) -> Iterator[Served]:
    with (
        toolwright.open(Config(state=str(state)), tools=[echo, hold, linger]) as workshop,
        serving(workshop, short=True, **options) as held,
    ):
        assert held.ask("tools/list").status == 200  # the names are known from here on
        yield held


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with short(tmp_path_factory.mktemp("short") / "state") as held:
        yield held


def wire(text: str = "hello", *, tool: str = "echo", head: str = "", path: str = "/mcp") -> bytes:
    """A whole request of the newer era."""
    body, headers = enveloped(
        "tools/call", {"name": tool, "arguments": {"text": text} if tool == "echo" else {}}
    )
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", f"accept: {BOTH}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(content)}", *([head] if head else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class Line:
    """A connection, byte by byte."""

    def __init__(self, served: Served) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), WAIT_S)
        self.reading = self.socket.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.close()
        self.socket.close()

    def read(self) -> Reply:
        status = int(self.reading.readline().split()[1])
        headers = {}
        for line in iter(self.reading.readline, b"\r\n"):
            name, _, value = line.decode().strip().partition(": ")
            headers[name.lower()] = value
        if "content-length" in headers:
            return Reply(status, headers, self.reading.read(int(headers["content-length"])))
        body = b""
        while size := int(self.reading.readline(), 16):
            body += self.reading.read(size)
            self.reading.readline()
        self.reading.readline()
        return Reply(status, headers, body)

    def ask(self, request: bytes) -> Reply:
        self.socket.sendall(request)
        return self.read()


def text_of(reply: Reply) -> str:
    found: Any = reply.message["result"]["content"][0]["text"]
    return str(found)


def test_a_plain_call_goes_the_short_way(tmp_path: Path) -> None:
    with short(tmp_path / "state", long_s=WAIT_S) as served, Line(served) as line:
        reply = line.ask(wire())
        assert served.short == [200]
    assert (reply.status, text_of(reply), reply.headers["content-type"]) == (200, "hello", "application/json")


def test_what_is_no_plain_call_goes_the_usual_way(served: Served) -> None:
    before = len(served.short)
    assert served.ask("tools/list").status == 200
    assert served.ask("tools/call", {"name": 7}).status == 400
    assert served.send(b"{").status == 400
    progress = {"name": "echo", "arguments": {"text": "a"}, "_meta": {"progressToken": 1}}
    assert served.ask("tools/call", progress).status == 200
    assert served.short[before:] == []


def test_many_requests_on_one_connection(served: Served) -> None:
    with Line(served) as line:
        texts = [text_of(line.ask(wire(str(number)))) for number in range(50)]
    assert texts == [str(number) for number in range(50)]


def test_pipelined_requests_are_answered_in_their_order(served: Served) -> None:
    with Line(served) as line:
        line.socket.sendall(b"".join(wire(str(number)) for number in range(20)))
        texts = [text_of(line.read()) for _ in range(20)]
    assert texts == [str(number) for number in range(20)]


def test_a_body_that_comes_in_pieces(served: Served) -> None:
    request = wire("pieces")
    with Line(served) as line:
        for at in range(0, len(request), 7):
            line.socket.sendall(request[at : at + 7])
        assert text_of(line.read()) == "pieces"


@pytest.mark.parametrize("size", [BYTES_MAX - 2000, BYTES_MAX, BYTES_MAX * 3])
def test_a_body_longer_than_is_read_ahead(served: Served, size: int) -> None:
    with Line(served) as line:
        assert text_of(line.ask(wire("x" * size))) == "x" * size


def test_a_call_that_takes_long_is_answered_all_the_same(served: Served) -> None:
    LONG.clear()
    with Line(served) as line, Line(served) as other:
        line.socket.sendall(wire(tool="hold"))
        assert ENTERED.acquire(timeout=WAIT_S)
        for number in range(3):  # and meanwhile others are
            assert text_of(other.ask(wire(str(number)))) == str(number)
        threading.Timer(0.4, LONG.set).start()  # after it has changed ways
        assert text_of(line.read()) == "held"
        assert text_of(line.ask(wire("after"))) == "after"


def test_leaving_cancels_a_call_on_either_way(served: Served) -> None:
    for long in (False, True):
        STOPPED.clear()
        with Line(served) as line:
            line.socket.sendall(wire(tool="linger"))
            assert ENTERED.acquire(timeout=WAIT_S)
            if long:
                with Line(served) as other:
                    for _ in range(200):  # more than the time after which it changes ways
                        other.ask(wire())
        assert STOPPED.wait(WAIT_S)


def test_a_connection_that_shall_close_is_closed(served: Served) -> None:
    with Line(served) as line:
        reply = line.ask(wire(head="connection: close"))
        assert text_of(reply) == "hello"
        assert reply.headers["connection"] == "close"
        assert line.reading.read() == b""


def test_http_1_0_is_answered_and_closed(served: Served) -> None:
    with Line(served) as line:
        assert text_of(line.ask(wire().replace(b"HTTP/1.1", b"HTTP/1.0", 1))) == "hello"
        assert line.reading.read() == b""


def test_another_path_or_a_query_is_not_taken(served: Served) -> None:
    before = len(served.short)
    with Line(served) as line:
        line.ask(wire(path="/mcp?x=1"))
    assert served.short[before:] == []


def test_a_request_in_two_minds_about_its_length_is_refused(served: Served) -> None:
    """Attack: request smuggling. Two lengths, or a length and chunks, read differently by two readers."""
    for head in ("transfer-encoding: chunked", "content-length: 5"):
        with Line(served) as line:
            line.socket.sendall(wire(head=head))
            assert line.reading.readline().split()[1] == b"400"


def test_both_ways_say_the_same(served: Served, tmp_path: Path) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "echo", "arguments": {"text": "a"}}),
        ("tools/call", {"name": "echo", "arguments": {"text": 7}}),
        ("tools/call", {"name": "echo", "arguments": {}}),
        ("tools/call", {"name": "nobody", "arguments": {}}),
        ("tools/call", {"name": "echo", "arguments": []}),
        ("tools/call", {"name": "echo", "arguments": {"text": "\ud800"}}),
    ]
    with (
        toolwright.open(Config(state=str(tmp_path / "state")), tools=[echo, hold, linger]) as workshop,
        serving(workshop) as usual,
    ):
        usual.ask("tools/list")
        for method, params in requests:
            short, long = served.ask(method, params), usual.ask(method, params)
            assert (short.status, short.message) == (long.status, long.message)


# -- the entrance of the short way --------------------------------------------------------------------------


class Neighbour:
    """The other end of a connection."""

    def __init__(self, *, is_owner: bool) -> None:
        self._is_owner = is_owner

    def is_owner(self) -> bool:
        return self._is_owner


def scope_of(*headers: tuple[str, str], peer: Neighbour | None = None) -> dict[str, Any]:
    own = {"host": "127.0.0.1:8321", "content-type": "application/json", "content-length": "2"}
    pairs = [(name, value) for name, value in own.items() if name not in dict(headers)]
    return {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "server": ("127.0.0.1", 8321),
        "client": ("127.0.0.1", 5),
        "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in [*pairs, *headers]],
        "peer": peer or Neighbour(is_owner=True),
    }


def admitted(entrance: Entrance, scope: dict[str, Any]) -> Passed | None:
    """Who comes in by the short way."""
    return entrance.admit(Head(scope), Place(scope["client"], scope["server"], scope["peer"]))


def come_in(entrance: Entrance, scope: dict[str, Any]) -> int:
    """The status by the usual way."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(entrance(scope, receive, send))
    return int(sent[0]["status"])


async def door(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def test_nobody_is_admitted_whom_the_usual_way_has_not_let_in() -> None:
    entrance = Entrance(door, host_guest=Guest(name="ann"))
    assert admitted(entrance, scope_of()) is None
    assert come_in(entrance, scope_of()) == 200
    passed = admitted(entrance, scope_of())
    assert passed is not None
    assert passed.guest == Guest(name="ann")


@pytest.mark.parametrize(
    "headers",
    [
        [("host", "evil.example")],
        [("origin", "https://evil.example")],
        [("authorization", "Bearer wrong")],
        [("content-type", "text/plain")],
        [("content-length", str(1 << 40))],
        [("content-encoding", "gzip")],
        [("transfer-encoding", "chunked")],
        [("x-forwarded-for", "10.0.0.1")],
        [("cookie", "tw_session=a")],
        [("sec-fetch-site", "cross-site")],
        [("host", "127.0.0.1:8321"), ("host", "127.0.0.1:8321")],
    ],
    ids=lambda headers: str(headers[0][0]),
)
def test_what_is_not_plain_is_left_to_the_usual_way(headers: list[tuple[str, str]]) -> None:
    """Attack: whatever the entrance refuses, tried on the way that was made for speed."""
    entrance = Entrance(door, host_guest=Guest(name="ann"))
    assert come_in(entrance, scope_of()) == 200
    come_in(entrance, scope_of(*headers))
    assert admitted(entrance, scope_of(*headers)) is None


def test_another_user_of_the_machine_is_not_admitted_as_its_owner() -> None:
    """Attack: the owner's own requests have opened the short way, and a neighbour's look the same."""
    entrance = Entrance(door, host_guest=Guest(name="ann"))
    assert come_in(entrance, scope_of()) == 200
    neighbour = Neighbour(is_owner=False)
    assert admitted(entrance, scope_of(peer=neighbour)) is None
    assert come_in(entrance, scope_of(peer=neighbour)) == 401
    assert admitted(entrance, scope_of(peer=neighbour)) is None


def test_what_goes_the_usual_way_after_all_is_counted_once() -> None:
    guest = Guest(name="ann", token_id="t1")
    entrance = Entrance(door, host_guest=guest, rate_per_minute=10, clock=lambda: 0.0)
    assert come_in(entrance, scope_of()) == 200
    for _ in range(50):
        passed = admitted(entrance, scope_of())
        assert passed is not None
        assert passed.bucket is not None
        passed.bucket.put_back()
    taken = 0
    while admitted(entrance, scope_of()) is not None:
        taken += 1
    assert taken == 9
    assert come_in(entrance, scope_of()) == 429


def test_a_connection_that_ended_is_not_left_to_the_collector(served: Served) -> None:
    """Where calls come by the thousand, what lies in cycles is most of a server's memory."""

    def left() -> int:
        return sum(type(each) in (Passage, RequestResponseCycle) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = left()
        for _ in range(10):
            with Line(served) as line:
                assert line.ask(wire()).status == 200
                assert line.ask(wire(path="/mcp?usual")).status == 200
        until = time.monotonic() + WAIT_S
        while left() > before and time.monotonic() < until:
            served.ask("ping")
        assert left() <= before
    finally:
        gc.enable()
