"""What one connection may take: heads, bodies and answers that never end, while others are served."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from msgspec.structs import replace

from tests.wire import WAIT_S, asked, connected, heard, request, serving
from toolcrib.doors._entrance import Entrance, Guest
from toolcrib.doors._limits import Guarded, Limits, connections_max, guarded, server_settings
from toolcrib.doors._web import Receive, Scope, Send, read_body

QUICK = Limits(
    head_s=0.3,
    body_s=0.5,
    idle_s=0.4,
    stalled_s=0.3,
    look_every_s=0.05,
    head_bytes_max=8192,
    connections_max=20,
)
LONG = b"x" * (1 << 20)
GONE: dict[int, asyncio.Event] = {}
"""By port, because each server has a loop of its own."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells how long the body was; at /long it answers with 200 MB, at /measured with 4 GB and says so first,
    at /deaf it reads nothing, at /wait it waits until somebody has been at /go."""
    if scope["path"] in ("/wait", "/go"):
        gone = GONE.setdefault(scope["server"][1], asyncio.Event())
        gone.set() if scope["path"] == "/go" else await gone.wait()
    if scope["path"] == "/measured":
        head = [(b"content-length", str(4096 * len(LONG)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for number in range(4096):
            await send({"type": "http.response.body", "body": LONG, "more_body": number < 4095})
        return
    if scope["path"] in ("/long", "/static/long"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):  # once the client is gone, what is sent goes nowhere and takes no time
            await send({"type": "http.response.body", "body": LONG, "more_body": True})
        return
    if scope["path"] == "/piece":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"16384")]})
        await send({"type": "http.response.body", "body": LONG[:16384]})
        return
    size = 0 if scope["path"] == "/deaf" else len(await read_body(receive, 1 << 30))
    body = str(size).encode()
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port() -> Iterator[int]:
    with serving(Entrance(app, host_guest=Guest(name="ann"), body_bytes_max=1 << 20), QUICK) as found:
        yield found


@pytest.fixture
def patient() -> Iterator[int]:
    """Where nothing is to be given up, a machine that pauses must not be taken for a slow client."""
    limits = replace(QUICK, head_s=WAIT_S, body_s=WAIT_S, idle_s=WAIT_S, stalled_s=WAIT_S)
    with serving(Entrance(app, host_guest=Guest(name="ann"), body_bytes_max=1 << 20), limits) as found:
        yield found


def ended(client: socket.socket) -> bool:
    """Whether the server has ended it, within the time that a test waits for anything."""
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


@pytest.mark.battery("I14")
def test_heads_that_never_end_are_given_up_while_others_are_served(port: int) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(port)) for _ in range(10)]
        for client in slow:
            client.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        assert asked(port, "POST", "/", body=b"{}").body == b"2"
        for client in slow:
            answer = heard(client)
            assert answer is not None
            assert answer.status == 408
            assert ended(client)


@pytest.mark.battery("I14")
def test_a_connection_that_says_nothing_or_only_empty_lines_is_ended(port: int) -> None:
    with connected(port) as silent, connected(port) as idle:
        idle.sendall(request("GET", "/", port))
        assert heard(idle) is not None
        for _ in range(3):
            idle.sendall(b"\r\n")
        assert ended(silent)
        assert ended(idle)


@pytest.mark.battery("I14")
def test_a_head_that_is_too_long_is_refused_before_it_ends(patient: int) -> None:
    with connected(patient) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{patient}\r\nX-Long: ".encode() + b"a" * 9000)
        answer = heard(client)
        assert answer is not None
        assert answer.status == 431
        assert ended(client)
    assert asked(patient, "GET", "/").status == 200


TOO_LONG = {
    "a value": ("/", f"X-Long: {'a' * 9000}"),
    "a name": ("/", f"{'x' * 9000}: a"),
    "blanks": ("/", f"X-Long: {' ' * 9000}a"),
    "many": ("/", *(f"X-{number}: {'a' * 50}" for number in range(150))),
    "the path": (f"/{'a' * 9000}",),
}


@pytest.mark.battery("I14")
@pytest.mark.parametrize("lines", [pytest.param(lines, id=name) for name, lines in TOO_LONG.items()])
@pytest.mark.parametrize("size", [1000, 1 << 20], ids=["pieces", "at once"])
def test_a_head_that_is_too_long_is_refused_however_it_arrives(
    patient: int, lines: tuple[str, ...], size: int
) -> None:
    text = request("POST", lines[0], patient, *lines[1:], body=b"{}")
    with connected(patient) as client:
        for at in range(0, len(text), size):
            try:
                client.sendall(text[at : at + size])
            except ConnectionError:  # it was refused before its end
                break
        answer = heard(client)
        assert answer is not None
        assert answer.status == 431
        assert ended(client)
    assert asked(patient, "GET", "/").status == 200


@pytest.mark.battery("I14")
@pytest.mark.parametrize("name", ["a value", "a name", "many", "the path"])
def test_a_head_that_is_too_long_is_refused_behind_another_request(patient: int, name: str) -> None:
    path, *lines = TOO_LONG[name]
    first = request("POST", "/", patient, body=b"{}")
    with connected(patient) as client:
        client.sendall(first + request("GET", path, patient, *lines) + first)
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 OK\r\n") == 1


@pytest.mark.battery("I14")
def test_attack_fields_without_end_behind_a_chunked_body(patient: int) -> None:
    """The parser keeps each of them, and the size of the body does not count them."""
    head = request("POST", "/", patient, "Transfer-Encoding: chunked", "Content-Type: application/json")
    with connected(patient) as client:
        client.sendall(head + b"2\r\n{}\r\n0\r\n")
        sent = 0
        with suppress(ConnectionError):
            while sent < 1 << 24:
                client.sendall(b"X-Field: " + b"a" * 991 + b"\r\n")
                sent += 1002
        assert sent < 1 << 24
        assert ended(client)
    assert asked(patient, "GET", "/").status == 200


def test_a_head_may_be_as_long_as_the_limit_and_no_longer(patient: int) -> None:
    for more, status in ((0, 200), (1, 431)):
        text = request("GET", "/", patient, "X-Long: ")
        text = request("GET", "/", patient, f"X-Long: {'a' * (QUICK.head_bytes_max - len(text) + more)}")
        assert len(text) == QUICK.head_bytes_max + more
        with connected(patient) as client:
            client.sendall(text)
            answer = heard(client)
            assert answer is not None
            assert answer.status == status


@pytest.mark.battery("I14")
def test_a_body_that_comes_too_slowly_is_given_up(port: int) -> None:
    with connected(port) as client:
        client.sendall(request("POST", "/", port, "Content-Length: 100", body=b"{"))
        assert asked(port, "POST", "/", body=b"{}").body == b"2"
        assert ended(client)


@pytest.mark.battery("I14")
def test_a_chunked_body_without_end_is_refused_at_the_limit(patient: int) -> None:
    with connected(patient) as client:
        client.sendall(
            request("POST", "/", patient, "Transfer-Encoding: chunked", "Content-Type: application/json")
        )
        sent = 0
        try:
            while sent < 1 << 30:
                client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent += 65536
        except ConnectionError:  # it was ended under our hands
            pass
        assert sent < 64 << 20  # what lies in the buffers of two sockets, and no gigabyte
        assert asked(patient, "POST", "/", body=b"{}").body == b"2"


def test_attack_fields_behind_a_body_pass_for_headers(patient: int) -> None:
    """Whatever stands before us has looked at the headers, and not at those."""
    text = (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nHost: 127.0.0.1:%d\r\n\r\n"
        % patient
    )
    with connected(patient) as client:
        client.sendall(text)
        answer = heard(client)
    assert answer is not None
    assert answer.status == 421


def test_a_body_that_nobody_wants_does_not_hold_the_connection_for_ever(port: int) -> None:
    with connected(port) as client:
        client.sendall(request("POST", "/deaf", port, "Content-Length: 1000", body=b"{"))
        answer = heard(client)
        assert answer is not None
        assert answer.status == 200
        assert ended(client)


@pytest.mark.battery("I14")
def test_an_answer_that_nobody_reads_is_given_up(port: int) -> None:
    with connected(port) as client:
        client.sendall(request("GET", "/long", port))
        assert asked(port, "POST", "/", body=b"{}").body == b"2"
        # It is not read until the server has given up: then the rest is missing, and an end is there.
        client.settimeout(20)
        assert client.recv(1, socket.MSG_PEEK)
        with connected(port) as later:
            assert ended(later)  # twice as long as an answer may wait
        received = 0
        try:
            while part := client.recv(1 << 20):
                received += len(part)
        except ConnectionError:
            pass
        assert received < 64 << 20


@pytest.mark.battery("I14")
def test_the_end_of_an_answer_that_nobody_reads_holds_no_connection(port: int) -> None:
    """Attack: so little is left to be sent that nobody calls it stalled, and a connection that is closed
    waits for its client, as long as that likes, in a place that nobody else gets."""
    for _ in range(20):  # a machine that pauses for as long as a connection may be idle closes it before
        with connected(port) as client:
            client.sendall(request("GET", "/", port))
            assert heard(client) is not None
            (connection,) = (
                found
                for found in gc.get_objects()
                if isinstance(found, Guarded) and found.client == client.getsockname()
            )
            until, pause = time.monotonic() + WAIT_S, threading.Event()
            if not is_full(connection, client, port, until):
                continue
            while connection in connection.watch.held:
                assert time.monotonic() < until, "it is still there"
                pause.wait(0.01)
            return
    pytest.fail("no connection could be filled")


def is_full(connection: Guarded, client: socket.socket, port: int, until: float) -> bool:
    """Ask, without reading, until something is left to be sent, and too little to be called stalled. False:
    the connection is closed meanwhile."""
    pause = threading.Event()
    while not connection.transport.get_write_buffer_size():
        answered = connection.server_state.total_requests
        try:
            client.sendall(request("GET", "/piece", port))
        except ConnectionError:
            return False
        while connection.server_state.total_requests == answered:
            assert time.monotonic() < until
            if connection.transport.is_closing():
                return False
            pause.wait(0.001)
    return connection.stalled_at is None and not connection.transport.is_closing()


def test_attack_a_long_answer_is_read_a_piece_at_a_time(port: int) -> None:
    """What is sent in pieces has no more time than what is sent at once, however steadily it is read."""
    with connected(port) as client:
        client.sendall(request("GET", "/measured", port))
        received = 0
        try:
            while part := client.recv(1 << 16):
                received += len(part)
        except ConnectionError:
            pass
        assert (1 << 16) < received < 4096 * len(LONG)
    assert asked(port, "POST", "/", body=b"{}").body == b"2"


@pytest.mark.battery("I14")
def test_when_there_are_too_many_connections_the_one_that_waits_longest_makes_room(port: int) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connected(port)) for _ in range(QUICK.connections_max + 10)]
        for _ in range(5):
            assert asked(port, "POST", "/", body=b"{}").body == b"2"
        assert all(ended(client) for client in held)


@contextmanager
def kept(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open connections of the owner, each with an answered request."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(port)) for _ in range(count)]
        for client in clients:
            client.sendall(request("GET", "/", port))
            assert heard(client) is not None
        yield clients


def assert_kept(port: int, clients: list[socket.socket]) -> None:
    for client in clients:
        client.sendall(request("POST", "/", port, body=b"{}"))
        answer = heard(client)
        assert answer is not None
        assert answer.body == b"2"


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nX-Slow: "], ids=["silent", "half a head"])
def test_attack_connections_one_after_the_other_close_those_of_the_owner(patient: int, said: bytes) -> None:
    with kept(patient, 8) as clients, ExitStack() as stack:
        for _ in range(200):
            other = stack.enter_context(connected(patient))
            with suppress(ConnectionError):
                other.sendall(said)
        assert_kept(patient, clients)


def test_attack_answers_for_everybody_that_nobody_reads_hold_all_connections(patient: int) -> None:
    with kept(patient, 3) as clients, ExitStack() as stack:
        for _ in range(2 * QUICK.connections_max):
            other = stack.enter_context(connected(patient))
            with suppress(ConnectionError):
                other.sendall(request("GET", "/static/long", patient))
                other.recv(1)
        assert asked(patient, "POST", "/", body=b"{}").body == b"2"
        assert_kept(patient, clients)


def test_requests_on_one_connection_are_answered_one_after_the_other(patient: int) -> None:
    with connected(patient) as client:
        for size in (2, 20, 200):
            client.sendall(request("POST", "/", patient, body=b" " * size))
            answer = heard(client)
            assert answer is not None
            assert answer.body == str(size).encode()
        both = request("POST", "/", patient, body=b"{}") + request("POST", "/", patient, body=b"{ }")
        client.sendall(both)
        first = heard(client)
        assert first is not None
        assert first.body.startswith(b"2")


def test_requests_that_are_no_http_are_refused(patient: int) -> None:
    for text in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ):
        with connected(patient) as client:
            client.sendall(text)
            answer = heard(client)
            assert answer is None or answer.status == 400
    conflicting = ("Content-Length: 2", "Transfer-Encoding: chunked")
    assert asked(patient, "POST", "/", *conflicting, "Content-Type: application/json").status == 400
    assert asked(patient, "GET", "/").status == 200


SPOILT = {
    "no HTTP": b"\x16\x03\x01\x02\x00",
    "no path": b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
    "no chunk": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a head too long": b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 9000,
    "a head without end": b"GET / HTTP/1.1\r\nX-Slow: ",
    "a body without end": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("behind", [pytest.param(text, id=name) for name, text in SPOILT.items()])
def test_requests_are_answered_though_what_comes_behind_them_is_no_good(
    port: int, behind: bytes, count: int
) -> None:
    with connected(port) as client:
        client.sendall(request("GET", "/wait", port) * count + behind)
        for _ in range(2):  # by then the time of what came before is over too
            with connected(port) as silent:
                assert ended(silent)
        assert asked(port, "GET", "/go").status == 200
        answers = b"".join(iter(lambda: client.recv(65536), b""))
        assert answers.count(b"HTTP/1.1 200 OK\r\n") == answers.count(b"HTTP/1.1 ") == count
    assert asked(port, "GET", "/").status == 200


def test_the_settings_believe_no_proxy_and_speak_no_websocket() -> None:
    settings = server_settings()
    assert (settings["ws"], settings["proxy_headers"], settings["server_header"]) == ("none", False, False)
    assert 16 <= connections_max() <= 4000
    assert guarded(QUICK).watch is not guarded(QUICK).watch


@pytest.mark.battery("I14")
def test_a_connection_that_ends_with_a_reset_is_forgotten_at_once(port: int) -> None:
    """Attack: a request and a reset, again and again; each would be kept until it has been idle for long."""

    def kept() -> int:
        gc.collect()
        return sum(1 for found in gc.get_objects() if type(found).__name__ == "GuardedConnection")

    before = kept()
    for _ in range(20):
        with connected(port) as client:
            client.sendall(request("GET", "/", port))
            assert heard(client) is not None
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(20):  # each answer says that the server has been round once more
        assert asked(port, "GET", "/").status == 200
        if kept() <= before + 2:  # the last ones may still be on their way
            break
    assert kept() <= before + 2


OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
"""What clients that prefer HTTP/2 send with every request, where there is no TLS to agree on it."""


@pytest.mark.parametrize("pieces", [1, 2])
def test_attack_a_body_behind_an_offer_of_another_protocol_passes_for_a_request(
    pieces: int, patient: int
) -> None:
    """A proxy that lets the offer pass has seen one request, and would take the answer to the second one for
    that to somebody else's."""
    body = request("GET", "/go", patient)
    data = request("POST", "/", patient, *OFFER, body=body)
    cut = len(data) - len(body) if pieces == 2 else 0
    with connected(patient) as client:
        for piece in (data[:cut], data[cut:]):
            client.sendall(piece)
        answer = heard(client)
        assert answer is not None
        assert answer.body == str(len(body)).encode()
        client.sendall(request("POST", "/", patient, body=b"{}"))
        answer = heard(client)
        assert answer is not None
        assert answer.body == b"2"


def test_what_is_sent_behind_an_offer_of_another_protocol_is_answered_too(patient: int) -> None:
    with connected(patient) as client:
        offering = request("GET", "/", patient, *OFFER)
        last = request("POST", "/", patient, "Connection: close", body=b"{}")
        client.sendall(offering + offering + last)
        data = b"".join(iter(lambda: client.recv(65536), b""))
        assert data.count(b"HTTP/1.1 200 ") == 3
        assert data.endswith(b"\r\n\r\n2")


def test_whoever_takes_us_for_a_proxy_is_refused(patient: int) -> None:
    for target in ("/", "*", "example.org:80"):
        answer = asked(patient, "CONNECT", target, *OFFER)
        assert answer.status == 400
        assert answer.headers["connection"] == "close"


def test_a_head_is_not_too_long_because_of_the_request_that_it_came_behind(patient: int) -> None:
    first = request("POST", "/wait", patient, body=b"x" * QUICK.head_bytes_max)
    second = request("POST", "/", patient, body=b"{}")
    with connected(patient) as client:
        client.sendall(first + second[:20])
        assert asked(patient, "GET", "/go").status == 200
        assert heard(client) is not None
        client.sendall(second[20:])
        answer = heard(client)
        assert answer is not None
        assert (answer.status, answer.body) == (200, b"2")


def test_an_answer_under_way_is_not_mixed_with_the_refusal_of_the_body_it_did_not_wait_for(
    patient: int,
) -> None:
    with connected(patient) as client:
        client.sendall(request("GET", "/measured", patient, "Transfer-Encoding: chunked"))
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(b"no length\r\n")
        data = b""
        while part := client.recv(1 << 20):
            data = data[-64:] + part
            assert b"HTTP/1.1" not in data
