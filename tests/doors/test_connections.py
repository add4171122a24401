"""MCP calls on kept connections, byte by byte: one answer to each request, in order."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

import toolcrib
from tests.mcp_client import BOTH, WAIT_S, Reply, Served, enveloped, serving
from tests.moments import before_storing
from toolcrib.config import Config
from toolcrib.doors.mcp import McpDoor

GO_ON = threading.Event()
ENTERED = threading.Semaphore(0)
STOPPED = threading.Event()
FILL_CHARS = 900_000


def echo(text: str) -> str:
    """Give back what was given."""
    return text


def fill() -> str:
    """Return more than fits into the buffers of a connection."""
    return "x" * FILL_CHARS


def hold() -> str:
    """Wait until the test lets it go."""
    ENTERED.release()
    assert GO_ON.wait(WAIT_S)
    return "held"


def linger(context: toolcrib.Context) -> str:
    """Wait until it is cancelled."""
    ENTERED.release()
    pause = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if context.cancelled:
            STOPPED.set()
            return "stopped"
        pause.wait(0.01)
    return "never stopped"


@contextmanager
def listening(state: Path, **options: Any) -> Iterator[Served]:
    config = Config(state=str(state), result_bytes=2 * FILL_CHARS)
    with (
        toolcrib.open(config, tools=[echo, fill, hold, linger]) as crib,
        serving(crib, **options) as held,
    ):
        yield held


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with listening(tmp_path / "state") as held:
        yield held


def wire(text: str = "hello", *, tool: str = "echo", head: str = "", path: str = "/mcp") -> bytes:
    """Return a whole call of the newer era."""
    arguments = {"text": text} if tool == "echo" else {}
    return post(*enveloped("tools/call", {"name": tool, "arguments": arguments}), head=head, path=path)


def other(method: str) -> bytes:
    """Return a whole request that is no call."""
    return post(*enveloped(method, {}))


def post(body: Any, headers: dict[str, str | None], *, head: str = "", path: str = "/mcp") -> bytes:
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


def on_the_loop(served: Served, do: Callable[[], None]) -> None:
    async def done() -> None:
        do()

    assert served.loop is not None
    asyncio.run_coroutine_threadsafe(done(), served.loop).result(WAIT_S)


def end_connections(served: Served) -> None:
    """What a server that stops does with each of its connections."""
    assert served.server is not None
    for connection in tuple(served.server.server_state.connections):
        connection.shutdown()


# -- order ---------------------------------------------------------------------------------------------------


def test_many_calls_on_one_connection(served: Served) -> None:
    with Line(served) as line:
        for number in range(100):
            reply = line.ask(wire(str(number)))
            assert (reply.status, text_of(reply)) == (200, str(number))


def test_pipelined_calls_are_answered_in_their_order(served: Served) -> None:
    with Line(served) as line:
        line.socket.sendall(b"".join(wire(str(number)) for number in range(50)))
        assert [text_of(line.read()) for _ in range(50)] == [str(number) for number in range(50)]


def test_attack_requests_that_come_while_one_is_under_way_are_answered_first(served: Served) -> None:
    """A proxy would give the second answer to the client of the first request."""
    GO_ON.clear()
    with Line(served) as line, Line(served) as another:
        line.socket.sendall(wire(tool="hold"))
        assert ENTERED.acquire(timeout=WAIT_S)
        line.socket.sendall(wire("second") + wire("third"))
        assert text_of(another.ask(wire())) == "hello"
        GO_ON.set()
        assert [text_of(line.read()) for _ in range(3)] == ["held", "second", "third"]


def test_attack_another_request_behind_a_head_that_was_seen_before(served: Served) -> None:
    """Request smuggling: a server that knows a head by its bytes could take the rest for its body."""
    with Line(served) as line:
        for _ in range(3):
            line.socket.sendall(wire() + b"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert text_of(line.read()) == "hello"
            assert line.read().status in (400, 406)


def test_attack_a_request_states_its_length_twice(served: Served) -> None:
    """Request smuggling: two readers find two ends."""
    for head in ("transfer-encoding: chunked", "content-length: 5"):
        with Line(served) as line:
            line.socket.sendall(wire(head=head))
            assert line.reading.readline().split()[1] == b"400"


def test_what_is_no_call_is_answered_between_calls(served: Served) -> None:
    with Line(served) as line:
        for _ in range(3):
            assert text_of(line.ask(wire())) == "hello"
            reply = line.ask(other("tools/list"))
            assert {tool["name"] for tool in reply.message["result"]["tools"]} >= {"echo", "hold"}
        assert line.ask(wire(path="/mcp?x=1")).status == 200


@pytest.mark.parametrize("size", [1, 7, 50])
def test_a_request_in_pieces(served: Served, size: int) -> None:
    request = wire("pieces")
    with Line(served) as line:
        for _ in range(2):
            for at in range(0, len(request), size):
                line.socket.sendall(request[at : at + size])
            assert text_of(line.read()) == "pieces"


@pytest.mark.parametrize("size", [16_384, 65_536, 200_000])
def test_a_long_body_and_a_request_behind_it(served: Served, size: int) -> None:
    with Line(served) as line:
        line.socket.sendall(wire("x" * size) + wire("behind"))
        assert text_of(line.read()) == "x" * size
        assert text_of(line.read()) == "behind"


def test_a_connection_that_shall_close_is_closed(served: Served) -> None:
    with Line(served) as line:
        reply = line.ask(wire(head="connection: close"))
        assert (text_of(reply), reply.headers["connection"]) == ("hello", "close")
        assert line.reading.read() == b""


def test_http_1_0_is_answered_and_closed(served: Served) -> None:
    with Line(served) as line:
        assert text_of(line.ask(wire().replace(b"HTTP/1.1", b"HTTP/1.0", 1))) == "hello"
        assert line.reading.read() == b""


# -- calls that take long ------------------------------------------------------------------------------------


def test_a_call_that_takes_long_delays_nobody_and_is_answered(served: Served) -> None:
    GO_ON.clear()
    with Line(served) as slow, Line(served) as quick:
        slow.socket.sendall(wire(tool="hold"))
        assert ENTERED.acquire(timeout=WAIT_S)
        for number in range(20):
            assert text_of(quick.ask(wire(str(number)))) == str(number)
        GO_ON.set()
        assert text_of(slow.read()) == "held"
        assert text_of(slow.ask(wire("after"))) == "after"


def linger_and_leave(served: Served) -> None:
    STOPPED.clear()
    with Line(served) as line:
        assert text_of(line.ask(wire())) == "hello"
        line.socket.sendall(wire(tool="linger"))
        assert ENTERED.acquire(timeout=WAIT_S)
    assert STOPPED.wait(WAIT_S)


def test_leaving_cancels_a_call(served: Served) -> None:
    linger_and_leave(served)


def test_leaving_cancels_a_call_that_has_taken_long(served: Served) -> None:
    STOPPED.clear()
    with Line(served) as line, Line(served) as quick:
        line.socket.sendall(wire(tool="linger"))
        assert ENTERED.acquire(timeout=WAIT_S)
        for number in range(200):
            assert text_of(quick.ask(wire(str(number)))) == str(number)
        line.__exit__()
        assert STOPPED.wait(WAIT_S)


def test_leaving_cancels_a_call_that_began_when_the_timer_stopped(tmp_path: Path) -> None:
    """The timer for long calls stops while there are none, and a call arrives at that moment."""
    with listening(tmp_path / "state", long_s=0.05) as served:
        STOPPED.clear()
        is_called = threading.Event()
        with Line(served) as line:

            def call() -> None:
                if not is_called.is_set():
                    line.socket.sendall(wire(tool="linger"))
                    is_called.set()

            assert served.loop is not None
            served.loop.call_soon_threadsafe(sys.settrace, before_storing(McpDoor._tick, "_is_ticking", call))
            with Line(served) as another:
                assert text_of(another.ask(wire())) == "hello"
            assert is_called.wait(WAIT_S)
            assert ENTERED.acquire(timeout=WAIT_S)
            served.loop.call_soon_threadsafe(sys.settrace, None)
        assert STOPPED.wait(WAIT_S)


# -- a server that stops -------------------------------------------------------------------------------------


def test_a_connection_that_waits_is_closed_when_the_server_stops(served: Served) -> None:
    with Line(served) as line:
        assert text_of(line.ask(wire())) == "hello"
        on_the_loop(served, lambda: end_connections(served))
        assert line.reading.read() == b""


@pytest.mark.parametrize("request_", [wire("final"), other("tools/list")], ids=["call", "list"])
def test_a_request_that_nobody_has_read_when_the_server_stops_is_answered(
    served: Served, request_: bytes
) -> None:
    with Line(served) as line:
        assert text_of(line.ask(wire())) == "hello"

        def end() -> None:
            """On the loop, so that it reads nothing in between."""
            line.socket.sendall(request_)
            end_connections(served)

        on_the_loop(served, end)
        assert line.read().status == 200
        assert line.reading.read() == b""


def test_a_call_under_way_when_the_server_stops_is_answered(served: Served) -> None:
    GO_ON.clear()
    with Line(served) as line:
        line.socket.sendall(wire(tool="hold"))
        assert ENTERED.acquire(timeout=WAIT_S)
        on_the_loop(served, lambda: end_connections(served))
        GO_ON.set()
        reply = line.read()
        assert (text_of(reply), reply.headers["connection"]) == ("held", "close")
        assert line.reading.read() == b""


def test_a_long_answer_is_whole_though_the_server_stops(served: Served) -> None:
    with Line(served) as line:
        assert text_of(line.ask(wire())) == "hello"

        def end() -> None:
            assert served.server is not None
            for connection in tuple(served.server.server_state.connections):
                own = connection.transport.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            line.socket.sendall(wire(tool="fill"))
            end_connections(served)

        on_the_loop(served, end)
        assert len(line.read().body) > FILL_CHARS
        assert line.reading.read() == b""


# -- many connections ----------------------------------------------------------------------------------------


def test_several_hundred_connections_are_all_served(served: Served) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(served)) for _ in range(300)]
        for _ in range(2):
            for line in lines:
                line.socket.sendall(wire())
            for line in lines:
                assert text_of(line.read()) == "hello"


def test_a_client_that_does_not_read_delays_nobody(served: Served) -> None:
    with Line(served) as deaf, Line(served) as line:
        deaf.socket.sendall(wire(tool="fill") * 20)
        for number in range(20):
            assert text_of(line.ask(wire(str(number)))) == str(number)
        for _ in range(20):
            assert len(text_of(deaf.read())) == FILL_CHARS


def test_a_connection_that_ended_is_not_left_to_the_collector(served: Served) -> None:
    """Where calls come by the thousand, cycles of garbage would be most of a server's memory."""

    def left() -> int:
        return sum(type(each) is RequestResponseCycle for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = left()
        for _ in range(10):
            with Line(served) as line:
                assert line.ask(wire()).status == 200
                assert line.ask(other("tools/list")).status == 200
        until = time.monotonic() + WAIT_S
        while left() > before and time.monotonic() < until:
            served.ask("ping")
        assert left() <= before
    finally:
        gc.enable()
