"""Connections that one thread serves by itself: that they are, that nobody can tell, that nobody waits."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import toolwright
from tests.doors.test_shortcut import Line, text_of, wire
from tests.mcp_client import WAIT_S, Served, enveloped, serving
from tests.moments import before_storing
from toolwright.config import Config
from toolwright.doors._express import SEATS_MAX, Seat, open_express
from toolwright.doors.mcp import McpDoor

pytestmark = pytest.mark.skipif(open_express() is None, reason="needs epoll and eventfd, which Linux has")

GO_ON = threading.Event()
ENTERED = threading.Semaphore(0)
STOPPED = threading.Event()


def echo(text: str) -> str:
    """Give back what was given."""
    return text


def hold() -> str:
    """Wait until it is let go."""
    ENTERED.release()
    assert GO_ON.wait(WAIT_S)
    return "held"


def linger(context: toolwright.Context) -> str:
    """Wait until it is cancelled."""
    ENTERED.release()
    pause = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if context.cancelled:
            STOPPED.set()
            return "stopped"
        pause.wait(0.01)
    return "never stopped"


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state = tmp_path_factory.mktemp("express") / "state"
    config = Config(state=str(state))
    with (
        toolwright.open(config, tools=[echo, hold, linger]) as workshop,
        serving(workshop, short=True) as held,
    ):
        assert held.ask("tools/list").status == 200  # the names are known from here on
        yield held


def seats(served: Served) -> int:
    assert served.express is not None
    return len(served.express)


def until(served: Served, count: int) -> None:
    """Wait until so many connections are on the express."""
    end, pause = time.monotonic() + WAIT_S, threading.Event()
    while seats(served) != count:
        assert time.monotonic() < end, f"{seats(served)} connections instead of {count}"
        pause.wait(0.005)


def aboard(served: Served, line: Line, count: int = 1) -> Line:
    for _ in range(2):
        assert text_of(line.ask(wire())) == "hello"
    until(served, count)
    return line


def other(method: str) -> bytes:
    """A request that is no call."""
    body, headers = enveloped(method, {})
    content = json.dumps(body).encode()
    lines = ["POST /mcp HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += ["accept: application/json, text/event-stream"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + [f"content-length: {len(content)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def test_a_client_of_plain_calls_gets_on_and_stays(served: Served) -> None:
    with Line(served) as line:
        aboard(served, line)
        before = len(served.short)
        for number in range(100):
            assert text_of(line.ask(wire(f"{number:05}"))) == f"{number:05}"
        assert seats(served) == 1
        assert served.short[before:] == [200] * 100
    until(served, 0)


def test_what_is_no_plain_call_goes_back_to_the_event_loop(served: Served) -> None:
    with Line(served) as line:
        aboard(served, line)
        reply = line.ask(other("tools/list"))
        assert {tool["name"] for tool in reply.message["result"]["tools"]} >= {"echo", "hold"}
        aboard(served, line)
        assert line.ask(b"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n").status in (400, 406)
        aboard(served, line)


def test_a_request_in_pieces_and_a_row_of_requests(served: Served) -> None:
    with Line(served) as line:
        aboard(served, line)
        request = wire("pieces")
        for at in range(0, len(request), 50):
            line.socket.sendall(request[at : at + 50])
        assert text_of(line.read()) == "pieces"
        aboard(served, line)
        line.socket.sendall(b"".join(wire(f"{number:05}") for number in range(50)))
        assert [text_of(line.read()) for _ in range(50)] == [f"{number:05}" for number in range(50)]
        aboard(served, line)


def test_requests_that_come_while_one_is_under_way_are_answered_in_their_order(served: Served) -> None:
    """Attack: the second answer before the first, which a proxy would give to somebody else."""
    GO_ON.clear()
    with Line(served) as line:
        for _ in range(2):
            GO_ON.set()
            line.ask(wire(tool="hold"))
            assert ENTERED.acquire(timeout=WAIT_S)
        until(served, 1)
        GO_ON.clear()
        line.socket.sendall(wire(tool="hold"))
        assert ENTERED.acquire(timeout=WAIT_S)
        line.socket.sendall(wire("second") + wire("third"))
        with Line(served) as another:
            assert text_of(another.ask(wire())) == "hello"
        GO_ON.set()
        assert [text_of(line.read()) for _ in range(3)] == ["held", "second", "third"]


def test_a_known_head_with_another_body_behind_it_is_read_as_a_row(served: Served) -> None:
    """Attack: request smuggling by a head that was seen before: its length is part of it."""
    with Line(served) as line:
        aboard(served, line)
        line.socket.sendall(wire() + b"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert text_of(line.read()) == "hello"
        assert line.read().status in (400, 406)


def test_one_that_takes_long_keeps_nobody_waiting(served: Served) -> None:
    GO_ON.set()
    with Line(served) as slow, Line(served) as quick:
        assert text_of(slow.ask(wire(tool="hold"))) == "held"  # from here on its head is known
        assert ENTERED.acquire(timeout=WAIT_S)
        aboard(served, slow)
        aboard(served, quick, 2)
        GO_ON.clear()
        slow.socket.sendall(wire(tool="hold"))
        assert ENTERED.acquire(timeout=WAIT_S)
        for number in range(20):
            assert text_of(quick.ask(wire(f"{number:05}"))) == f"{number:05}"
        until(served, 1)  # it has gone back to the event loop
        GO_ON.set()
        assert text_of(slow.read()) == "held"
        aboard(served, slow, 2)


def linger_and_leave(served: Served) -> None:
    STOPPED.clear()
    with Line(served) as line:
        aboard(served, line)
        line.socket.sendall(wire(tool="linger"))
        assert ENTERED.acquire(timeout=WAIT_S)
    assert STOPPED.wait(WAIT_S)
    until(served, 0)


def test_leaving_cancels_a_call(served: Served) -> None:
    linger_and_leave(served)


def test_leaving_cancels_a_call_that_began_when_nobody_watched_any_more(served: Served) -> None:
    """What watches long calls stops while there are none, and a call comes in that very moment."""
    linger_and_leave(served)  # from here on its head is known
    STOPPED.clear()
    answered = [-1]
    with Line(served) as line:

        def call() -> None:
            answered.append(len(served.short))
            if answered[-1] == answered[-2] and not is_called.is_set():  # there was none since the last look
                line.socket.sendall(wire(tool="linger"))
                assert ENTERED.acquire(timeout=WAIT_S)
                is_called.set()

        is_called = threading.Event()
        aboard(served, line)
        assert served.loop is not None
        served.loop.call_soon_threadsafe(sys.settrace, before_storing(McpDoor._tick, "_is_ticking", call))
        assert text_of(line.ask(wire())) == "hello"
        assert is_called.wait(WAIT_S)
        served.loop.call_soon_threadsafe(sys.settrace, None)
    assert STOPPED.wait(WAIT_S)
    until(served, 0)


def test_an_answer_that_does_not_fit_is_sent_on_by_the_event_loop() -> None:
    """Attack: a client that does not read would hold the one thread that serves all others."""
    express = open_express()
    assert express is not None
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    answer = bytes(range(256)) * 10_000

    async def main() -> None:
        came: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

        def arrived(seat: Seat, data: bytes) -> bool:
            assert data == b"request"
            seat.answer(answer, stays=True)
            return True

        express.board(
            ours,
            asyncio.get_running_loop(),
            arrived,
            lambda received, unsent: came.set_result((received, unsent)),
        )
        theirs.sendall(b"request")
        express.take(await asyncio.to_thread(express.read))
        received, unsent = await asyncio.wait_for(came, WAIT_S)
        assert (received, len(express)) == (b"", 0)
        assert 0 < len(unsent) < len(answer)
        sent = len(answer) - len(unsent)
        assert b"".join(iter_exactly(theirs, sent)) + unsent == answer

    try:
        asyncio.run(main())
    finally:
        ours.close()
        theirs.close()
        express.close()


def iter_exactly(sock: socket.socket, count: int) -> Iterator[bytes]:
    sock.settimeout(WAIT_S)
    while count > 0:
        data = sock.recv(min(count, 65536))
        assert data
        count -= len(data)
        yield data


def test_the_express_has_room_for_so_many(served: Served) -> None:
    """Attack: connections without end, each of which costs a second descriptor. The others are served as
    well, by the event loop."""
    lines = [Line(served) for _ in range(SEATS_MAX + 5)]
    try:
        for _ in range(2):
            for line in lines:
                assert text_of(line.ask(wire())) == "hello"
        until(served, SEATS_MAX)
    finally:
        for line in lines:
            line.__exit__()
    until(served, 0)
