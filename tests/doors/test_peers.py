"""Whose program is at the other end of a connection: the owner's, a tool's, one that cannot be seen."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.program import bounded
from tests.wire import WAIT_S, listening_socket
from toolcrib.doors._peers import Peer, Peers, look_up
from toolcrib.sandbox import marks

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


DETACHED = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""
"""A program whose parent is gone."""
CONNECTED = """
import os, resource, socket, sys
if sys.argv[3] == "tool":
    resource.setrlimit(10, (0x746F6F6C, 0x746F6F6C))
if sys.argv[3] == "lower":
    resource.setrlimit(10, (0, 0))
if sys.argv[3] == "confined":
    import ctypes
    assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
held = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def is_owner(peer: Peer) -> bool:
    look_up([peer])
    assert peer.verdict is not None
    return peer.verdict


@contextmanager
def detached(held: socket.socket, kind: str) -> Iterator[Peer]:
    """A process that has connected, waits, and was not started by ours."""
    host, port = held.getsockname()[:2]
    started = subprocess.Popen(
        [sys.executable, "-c", DETACHED, CONNECTED, host, str(port), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    held.settimeout(WAIT_S)
    accepted, client = held.accept()
    assert started.stdout is not None
    assert started.stdin is not None
    with bounded(started):
        process = int(started.stdout.readline())
    try:
        assert Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[1] != str(
            os.getpid()
        )
        yield Peer(client[:2], (host, port))
    finally:
        accepted.close()
        started.stdin.close()
        started.stdout.close()
        started.wait(WAIT_S)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


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
        assert is_owner(Peer(client.getsockname(), held.getsockname()))


@pytest.mark.parametrize("kind", ["plain", "confined"])
def test_a_process_that_nobody_started_for_a_tool_is_the_owner(kind: str) -> None:
    with listening_socket() as held, detached(held, kind) as peer:
        assert is_owner(peer)


@pytest.mark.parametrize("kind", ["tool", "lower"])
def test_attack_a_tool_that_nothing_is_above_any_more_connects(kind: str) -> None:
    """Its supervisor and its host are gone; the mark stays, and can only be lowered."""
    with listening_socket() as held, detached(held, kind) as peer:
        assert not is_owner(peer)


@pytest.mark.parametrize("program", [CHILD, GRANDCHILD])
def test_a_process_that_we_started_is_not_however_deep_it_is(program: str) -> None:
    with listening_socket() as held, connected_from(program, held) as peer:
        assert not is_owner(peer)


@pytest.mark.parametrize("way", UNSEEN)
def test_attack_a_process_hides_its_socket(way: str) -> None:
    program = UNSEEN_BY + textwrap.dedent(UNSEEN[way]) + "print('ready', flush=True)\nsys.stdin.read()\n"
    with listening_socket() as held, connected_from(program, held, is_told=True) as peer:
        assert not is_owner(peer)


def test_attack_a_tool_has_its_connection_held_by_a_program_of_the_owner_as_well() -> None:
    program = """
import resource, socket, sys
resource.setrlimit(10, (0x746F6F6C, 0x746F6F6C))
held = socket.create_connection((sys.argv[1], int(sys.argv[2])))
with socket.socket(socket.AF_UNIX) as there:
    there.connect(sys.argv[3])
    socket.send_fds(there, [b"x"], [held.fileno()])
print("ready", flush=True)
sys.stdin.read()
"""
    with listening_socket() as held, socket.socket(socket.AF_UNIX) as here:
        here.bind(b"\0tw-test-%d" % os.getpid())
        here.listen()
        place = f"'\\0tw-test-{os.getpid()}'"
        with connected_from(program.replace("sys.argv[3]", place), held, is_told=True) as peer:
            came, _ = here.accept()
            _, descriptors, _, _ = socket.recv_fds(came, 10, 1)
            came.close()
            try:
                assert not is_owner(peer)
            finally:
                os.close(descriptors[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a control group; run the tests as root")
def test_attack_a_connection_that_was_made_in_another_control_group_is_handed_over() -> None:
    """As by a tool to the user's message bus, or to a browser, which hold whatever they are sent."""
    mounts = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    places = [line.split(" ")[1] for line in mounts if line.split(" ")[2] == "cgroup2"]
    if not places:
        pytest.skip("there is no cgroup2; mount one to run this test")
    folder = Path(places[0], f"tw-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made ({error.strerror})")
    own = Path("/proc/self/cgroup").read_text("utf-8").partition("0::")[2].partition("\n")[0]
    before = Path(places[0] + own, "cgroup.procs")
    try:
        with listening_socket() as held:
            (folder / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
            client = socket.create_connection(held.getsockname())
            assert is_owner(Peer(client.getsockname(), held.getsockname()))
            before.write_text(str(os.getpid()), encoding="utf-8")
            assert not is_owner(Peer(client.getsockname(), held.getsockname()))
            client.close()
    finally:
        before.write_text(str(os.getpid()), encoding="utf-8")
        folder.rmdir()


def test_others_are_the_owner_while_processes_of_ours_run() -> None:
    with listening_socket() as held, connected_from(CHILD, held):
        for _ in range(2):  # the second time, the first is remembered
            with socket.create_connection(held.getsockname()) as client:
                assert is_owner(Peer(client.getsockname(), held.getsockname()))


def test_peers_that_wait_are_looked_up_together() -> None:
    async def main(peers: list[Peer]) -> list[bool]:
        found = Peers()
        return await asyncio.gather(*(found.is_owner(peer) for peer in peers))

    with (
        listening_socket() as held,
        connected_from(CHILD, held) as other,
        socket.create_connection(held.getsockname()) as client,
    ):
        ours = [Peer(client.getsockname(), held.getsockname()) for _ in range(50)]
        assert asyncio.run(main([*ours, other, Peer(None, None)])) == [True] * 50 + [False] * 2


def test_the_same_holds_for_the_newer_internet() -> None:
    with socket.socket(socket.AF_INET6) as held:
        try:
            held.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no ::1; switch IPv6 on to run this test")
        held.listen()
        with socket.create_connection(held.getsockname()[:2]) as client:
            assert is_owner(Peer(client.getsockname()[:2], held.getsockname()[:2]))
        with connected_from(CHILD, held) as peer:
            assert not is_owner(peer)


def test_who_has_left_is_nobody() -> None:
    with listening_socket() as held:
        client = socket.create_connection(held.getsockname())
        address = client.getsockname()
        accepted, _ = held.accept()
        client.close()
        assert not is_owner(Peer(address, held.getsockname()))
        accepted.close()
        assert not is_owner(Peer(("127.0.0.1", 1), held.getsockname()))


def test_who_cannot_be_looked_up_is_not_the_owner() -> None:
    assert not is_owner(Peer(None, ("127.0.0.1", 1)))
    assert not is_owner(Peer(("127.0.0.1", 1), None))
    assert not is_owner(Peer(("not an address", 1), ("127.0.0.1", 2)))


def test_a_mark_that_cannot_be_read_counts_as_one() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(WAIT_S)
    assert marks.is_marked(ended.pid)
    assert not marks.is_marked(os.getpid())
