"""What the host reads from a control socket: a message, and all of its descriptors or none."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sandbox.hosting import ROOT
from toolcrib.sandbox import _wire

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the spawner is for Linux")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    before = os.listdir("/proc/self/fd")
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield made
    for end in made:
        end.close()
    assert os.listdir("/proc/self/fd") == before, "descriptors are left"


def say(end: socket.socket, message: bytes, fds: list[int]) -> None:
    end.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_a_message_comes_with_its_two_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    say(theirs, b"word", [0, 1])
    message, fds, is_cut = _wire.heard(ours)
    assert (message, is_cut) == (b"word", False)
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(0).st_ino, os.fstat(1).st_ino]
    assert not any(map(os.get_inheritable, fds))
    for fd in fds:
        os.close(fd)


def test_attack_more_descriptors_than_two_are_cut_off_and_none_is_kept(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """One taken for the other would show a call's stderr as its result."""
    ours, theirs = ends
    say(theirs, b"word", [0, 1, 2, 0, 1])
    assert _wire.heard(ours) == (b"word", (), True)


def test_a_supervisor_that_hung_up_says_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    ours.send(b"unread")
    theirs.close()
    assert _wire.heard(ours) == (b"", (), False)


@pytest.mark.parametrize("message", [b"", b"x", bytes(11), bytes(_wire.REPORT.size)])
def test_what_is_no_report_is_read_as_none(message: bytes) -> None:
    assert _wire.Report.read(message) is None


def test_with_room_for_one_descriptor_of_two_none_is_kept_and_it_says_so() -> None:
    code = (
        "import array, os, resource, socket\n"
        "from toolcrib.sandbox import _wire\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1]))]\n"
        "theirs.sendmsg([b'word'], rights)\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "taken = [os.dup(0)]\n"
        "while taken[-1] < 40: taken.append(os.dup(0))\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, most))\n"
        "os.close(taken.pop())\n"
        "said = _wire.heard(ours)\n"
        "for fd in taken: os.close(fd)\n"
        "print(said, len(os.listdir('/proc/self/fd')) - before)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "(b'word', (), True) 0\n", ran.stderr
