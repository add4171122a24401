"""Who is at the other end of a connection: we ourselves, a process of ours, somebody who has left."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.program import bounded
from tests.wire import WAIT_S, listening_socket
from toolwright.doors._peers import Peer

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux says whose socket it is; run the tests there"
)
CHILD = """
import socket, sys
held = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sys.stdin.read()
"""
GRANDCHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, *sys.argv[1:]], stdin=subprocess.PIPE)
sys.stdin.read()
child.communicate()
"""

UNSEEN = {
    "lets_nobody_look": """
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        held = socket.create_connection(place)
        """,
    "on_its_way_to_a_process": """
        here, there = socket.socketpair()
        held = socket.create_connection(place)
        socket.send_fds(here, [b"x"], [held.fileno()])
        held.close()
        """,
    "on_its_way_on_its_way": """
        here, there = socket.socketpair()
        outer = socket.socketpair()
        held = socket.create_connection(place)
        socket.send_fds(here, [b"x"], [held.fileno()])
        held.close()
        socket.send_fds(outer[0], [b"x"], [there.fileno()])
        there.close()
        """,
    "a_thread_with_files_of_its_own": """
        def connect():
            assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
            global held
            held = socket.create_connection(place)
            done.set()
            over.wait()
        done, over = threading.Event(), threading.Event()
        threading.Thread(target=connect, daemon=True).start()
        done.wait()
        """,
}
"""Ways to hold a socket that none of a process's files shows."""
UNSEEN_BY = """
import ctypes, socket, sys, threading
place = (sys.argv[1], int(sys.argv[2]))
"""


@contextmanager
def connected_from(program: str, held: socket.socket, *, is_told: bool = False) -> Iterator[Peer]:
    """A process of ours that has connected and waits; ``is_told``: it says when it does."""
    host, port = held.getsockname()[:2]
    child = subprocess.Popen(
        [sys.executable, "-c", program, host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    held.settimeout(WAIT_S)
    accepted, client = held.accept()
    try:
        if is_told:
            assert child.stdout is not None
            with bounded(child):
                assert child.stdout.readline() == b"ready\n"
        yield Peer(client[:2], (host, port))
    finally:
        accepted.close()
        child.communicate(timeout=WAIT_S)


def test_a_program_of_our_own_user_that_we_did_not_start_is_the_owner() -> None:
    with listening_socket() as held, socket.create_connection(held.getsockname()) as client:
        peer = Peer(client.getsockname(), held.getsockname())
        assert peer.is_owner()
        assert peer.is_owner()


@pytest.mark.parametrize("program", [CHILD, GRANDCHILD])
def test_a_process_that_we_started_is_not_however_deep_it_is(program: str) -> None:
    with listening_socket() as held, connected_from(program, held) as peer:
        assert not peer.is_owner()


@pytest.mark.parametrize("way", UNSEEN)
def test_attack_a_process_that_we_started_hides_its_socket(way: str) -> None:
    program = UNSEEN_BY + textwrap.dedent(UNSEEN[way]) + "print('ready', flush=True)\nsys.stdin.read()\n"
    with listening_socket() as held, connected_from(program, held, is_told=True) as peer:
        assert not peer.is_owner()


def test_others_are_the_owner_while_processes_of_ours_run() -> None:
    with listening_socket() as held, connected_from(CHILD, held):
        for _ in range(2):  # the second time, the first is remembered
            with socket.create_connection(held.getsockname()) as client:
                assert Peer(client.getsockname(), held.getsockname()).is_owner()


def test_the_same_holds_for_the_newer_internet() -> None:
    with socket.socket(socket.AF_INET6) as held:
        try:
            held.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no ::1; switch IPv6 on to run this test")
        held.listen()
        with socket.create_connection(held.getsockname()[:2]) as client:
            assert Peer(client.getsockname()[:2], held.getsockname()[:2]).is_owner()
        with connected_from(CHILD, held) as peer:
            assert not peer.is_owner()


def test_who_has_left_is_nobody() -> None:
    with listening_socket() as held:
        client = socket.create_connection(held.getsockname())
        address = client.getsockname()
        accepted, _ = held.accept()
        client.close()
        assert not Peer(address, held.getsockname()).is_owner()
        accepted.close()
        assert not Peer(("127.0.0.1", 1), held.getsockname()).is_owner()


def test_where_nobody_can_say_loopback_is_believed() -> None:
    assert Peer(None, ("127.0.0.1", 1)).is_owner()
    assert Peer(("127.0.0.1", 1), None).is_owner()
    assert Peer(("not an address", 1), ("127.0.0.1", 2)).is_owner()
