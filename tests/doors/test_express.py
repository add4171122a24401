"""Connections that one thread serves by itself: that they are, that nobody can tell, that nobody waits."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import toolwright
from tests.doors.test_shortcut import Line, text_of, wire
from tests.mcp_client import WAIT_S, Served, enveloped, serving
from tests.moments import before_storing
from toolwright.config import Config
from toolwright.doors._express import RECEIVED_BYTES_MAX, SEATS_MAX, Seat, open_express
from toolwright.doors.mcp import McpDoor

pytestmark = pytest.mark.skipif(open_express() is None, reason="needs epoll and eventfd, which Linux has")

GO_ON = threading.Event()
ENTERED = threading.Semaphore(0)
STOPPED = threading.Event()
FILL_CHARS = 900_000


def echo(text: str) -> str:
    """Give back what was given."""
    return text


def fill() -> str:
    """More than fits into the buffers of a connection."""
    return "x" * FILL_CHARS


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


@contextmanager
def express(state: Path, **options: Any) -> Iterator[Served]:
    config = Config(state=str(state))
    with (
        toolwright.open(config, tools=[echo, hold, linger]) as workshop,
        serving(workshop, short=True, **options) as held,
    ):
        assert held.ask("tools/list").status == 200  # the names are known from here on
        yield held


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with express(tmp_path_factory.mktemp("express") / "state") as held:
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
    """One call makes its head known, and one gets it on; but one that a busy machine holds up gets off."""
    end = time.monotonic() + WAIT_S
    for _ in range(2):
        assert text_of(line.ask(wire())) == "hello"
    while seats(served) != count:
        assert time.monotonic() < end, f"{seats(served)} connections instead of {count}"
        assert text_of(line.ask(wire())) == "hello"
    return line


def other(method: str) -> bytes:
    """A request that is no call."""
    body, headers = enveloped(method, {})
    content = json.dumps(body).encode()
    lines = ["POST /mcp HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += ["accept: application/json, text/event-stream"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + [f"content-length: {len(content)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def test_a_client_of_plain_calls_gets_on_and_stays(tmp_path: Path) -> None:
    with express(tmp_path / "state", long_s=WAIT_S) as served, Line(served) as line:
        for _ in range(2):
            assert text_of(line.ask(wire())) == "hello"
        until(served, 1)
        before = len(served.short)
        for number in range(100):
            assert text_of(line.ask(wire(f"{number:05}"))) == f"{number:05}"
        assert seats(served) == 1
        assert served.short[before:] == [200] * 100
        line.__exit__()
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
    GO_ON.set()
    with Line(served) as line:
        assert text_of(line.ask(wire(tool="hold"))) == "held"  # from here on its head is known
        assert ENTERED.acquire(timeout=WAIT_S)
        aboard(served, line)
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


def test_leaving_cancels_a_call_that_began_when_nobody_watched_any_more(tmp_path: Path) -> None:
    """What watches long calls stops while there are none, and a call comes in that very moment."""
    with express(tmp_path / "state", long_s=0.5) as served:  # else a machine that pauses would end the ride
        linger_and_leave(served)  # from here on its head is known
        STOPPED.clear()
        answered = [-1]
        with Line(served) as line:

            def call() -> None:
                answered.append(len(served.short))
                there_was_none = answered[-1] == answered[-2]  # since the last look
                if there_was_none and not is_called.is_set():
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


def test_what_lies_behind_a_request_of_the_longest_kind_is_read(served: Served) -> None:
    """Attack: a request that ends where one look at the connection ends. Of what came with it nothing is told
    any more, and its client would wait for ever."""
    longest = wire("x" * (RECEIVED_BYTES_MAX - len(wire("x" * 10_000)) + 10_000))
    assert len(longest) == RECEIVED_BYTES_MAX
    with Line(served) as line:
        for _ in range(2):
            assert len(text_of(line.ask(longest))) > 10_000
        aboard(served, line)
        line.socket.sendall(longest + wire("behind"))
        assert len(text_of(line.read())) > 10_000
        assert text_of(line.read()) == "behind"


def test_a_client_that_says_no_more_is_left_when_it_has_its_answer() -> None:
    """The end of what it says comes with its last request, and is told together with it: once."""
    came, told = ride(b"request", is_last=True)
    assert (came, told) == ([b"request"], (b"", b""))


def test_a_mistake_of_ours_ends_one_connection_and_holds_up_none(caplog: pytest.LogCaptureFixture) -> None:
    """What came on others with it is told once, so that it must be read; and who is not answered must not
    wait for ever."""
    came, told = ride(b"request", breaks=True)
    assert (came, told) == ([b"request"], (b"", b""))
    assert "could not be taken" in caplog.text


BEING_TOLD = threading.Event()
TOLD = threading.Event()


def test_an_answer_that_is_about_to_be_sent_when_the_server_stops_is_sent(tmp_path: Path) -> None:
    def told(_status: int) -> None:
        BEING_TOLD.set()
        assert TOLD.wait(WAIT_S)

    TOLD.set()
    with (
        toolwright.open(Config(state=str(tmp_path / "state")), tools=[echo]) as workshop,
        serving(workshop, short=True, told=told) as served,
    ):
        assert served.ask("tools/list").status == 200
        with Line(served) as line:
            aboard(served, line)
            BEING_TOLD.clear()
            TOLD.clear()
            line.socket.sendall(wire("final"))
            assert BEING_TOLD.wait(WAIT_S)
            on_the_loop(served, lambda: end_connections(served))
            on_the_loop(served, lambda: None)  # whatever closes at once has closed now
            TOLD.set()
            assert text_of(line.read()) == "final"
            assert line.reading.read() == b""


def test_an_answer_that_does_not_fit_is_whole_when_the_server_stops(tmp_path: Path) -> None:
    with (
        toolwright.open(
            Config(state=str(tmp_path / "state"), result_bytes=2 * FILL_CHARS), tools=[echo, fill]
        ) as workshop,
        serving(workshop, short=True) as served,
    ):
        assert served.ask("tools/list").status == 200
        with Line(served) as line:
            for _ in range(2):  # its head is known from here on
                assert len(line.ask(wire(tool="fill")).body) > FILL_CHARS
            aboard(served, line)

            def end() -> None:
                """Nothing comes back to the loop meanwhile."""
                for connection in connections(served):
                    own = connection.transport.get_extra_info("socket")
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                line.socket.sendall(wire(tool="fill"))
                until(served, 0)
                end_connections(served)

            on_the_loop(served, end)
            assert len(line.read().body) > FILL_CHARS
            assert line.reading.read() == b""


def test_a_rider_that_waits_is_closed_when_the_server_stops(served: Served) -> None:
    with Line(served) as line:
        aboard(served, line)
        on_the_loop(served, lambda: end_connections(served))
        assert line.reading.read() == b""
    until(served, 0)


def test_a_request_that_is_given_back_while_the_server_stops_is_answered(served: Served) -> None:
    with Line(served) as line:
        aboard(served, line)

        def end() -> None:
            """It was read, and is not back on the loop yet."""
            line.socket.sendall(other("tools/list"))
            until(served, 0)
            end_connections(served)

        on_the_loop(served, end)
        reply = line.read()
        assert {tool["name"] for tool in reply.message["result"]["tools"]} >= {"echo", "hold"}
        assert line.reading.read() == b""


def test_attack_a_request_is_read_after_its_connection_was_found_idle(served: Served) -> None:
    """While the server stops: whoever read it would answer nobody."""
    with Line(served) as line:
        aboard(served, line)

        def end() -> None:
            for connection in connections(served):
                connection.end()
            assert seats(served) == 0  # nobody else reads it from now on
            line.socket.sendall(wire("final"))
            end_connections(served)

        on_the_loop(served, end)
        assert text_of(line.read()) == "final"
        assert line.reading.read() == b""


def end_connections(served: Served) -> None:
    """As the server does when it stops."""
    for connection in connections(served):
        connection.shutdown()


def connections(served: Served) -> tuple[Any, ...]:
    assert served.server is not None
    return tuple(served.server.server_state.connections)


def on_the_loop(served: Served, do: Callable[[], None]) -> None:
    async def done() -> None:
        do()

    assert served.loop is not None
    asyncio.run_coroutine_threadsafe(done(), served.loop).result(WAIT_S)


def test_what_comes_after_the_last_answer_here_is_for_the_event_loop() -> None:
    """Attack: a request that comes in the moment in which its connection leaves. Whoever read it here would
    answer nobody, or in the middle of an answer of which a part is still to be sent."""
    express = open_express()
    assert express is not None
    answering: SimpleQueue[Seat | None] = SimpleQueue()
    came: list[bytes] = []

    def arrived(seat: Seat, data: bytes) -> bool:
        came.append(data)
        answering.put(seat)
        return True

    def read() -> None:
        while arrivals := express.read():
            express.take(arrivals)

    def answer() -> None:
        while (seat := answering.get()) is not None:
            seat.answer(b"answer", stays=False)

    def talk(clients: list[socket.socket]) -> None:
        for client in clients:
            client.sendall(b"first")
            assert client.recv(100) == b"answer"
            client.sendall(b"second")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            pairs = [socket.socketpair() for _ in range(SEATS_MAX)]
            backs = [loop.create_future() for _ in pairs]
            for back, (ours, theirs) in zip(backs, pairs, strict=True):
                stack.enter_context(ours)
                stack.enter_context(theirs).settimeout(WAIT_S)
                ours.setblocking(False)
                express.board(ours, loop, arrived, lambda *told, back=back: back.set_result(told))
            await asyncio.to_thread(talk, [theirs for _, theirs in pairs])
            assert {*await asyncio.wait_for(asyncio.gather(*backs), WAIT_S)} == {(b"", b"")}
            assert {ours.recv(100) for ours, _ in pairs} == {b"second"}

    threads = [threading.Thread(target=each, daemon=True) for each in (read, answer)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            asyncio.run(main())
    finally:
        express.ring()
        answering.put(None)
        for thread in threads:
            thread.join(WAIT_S)
        express.close()
    assert came == [b"first"] * SEATS_MAX * 10


def ride(
    request: bytes, *, is_last: bool = False, breaks: bool = False
) -> tuple[list[bytes], tuple[bytes, bytes]]:
    """Send a request to a seat, which answers it. What came there, and what went back to the event loop."""
    express = open_express()
    assert express is not None
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    came: list[bytes] = []

    async def main() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        back: asyncio.Future[tuple[bytes, bytes]] = loop.create_future()

        def arrived(seat: Seat, data: bytes) -> bool:
            came.append(data)
            if breaks:
                raise ValueError("broken")
            seat.answer(b"answer", stays=True)
            return True

        theirs.sendall(request)
        if is_last:
            theirs.shutdown(socket.SHUT_WR)
        express.board(ours, loop, arrived, lambda received, unsent: back.set_result((received, unsent)))
        express.take(express.read())
        return await asyncio.wait_for(back, WAIT_S)

    try:
        return came, asyncio.run(main())
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
