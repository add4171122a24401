"""A request to the spawner in one step. The tests are the spawner, at the other end of a socket."""

from __future__ import annotations

import array
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.hosting import ROOT
from toolwright.sandbox import _connection, _wire

pytestmark = pytest.mark.skipif(
    _connection.ASK is None, reason="_post was not built; a C compiler builds it, on Linux"
)
WAIT_S = 10.0


def _report(reason: _wire.Reason) -> bytes:
    head = struct.pack("<3I", _wire.REPORT_MAGIC, _wire.VERSION, reason)
    return head.ljust(_wire.REPORT.size, b"\0")


RUNNING, REPORT = _report(_wire.Reason.RUNNING), _report(_wire.Reason.EXITED)


class Spawner:
    """Hears one request and answers it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.button, self.press = os.pipe()
        self.opened: list[int] = []
        self.lines: list[Any] = []
        self.line: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def hear(self) -> tuple[bytes, list[int]]:
        """The request, and what came behind its line."""
        message, fds, _, _ = socket.recv_fds(self.theirs, 65_536, 64)
        self.line = socket.socket(fileno=fds[0])
        return message, fds[1:]

    def answer(self, message: bytes, fds: tuple[int, ...] = ()) -> None:
        """Whatever is asked, say this; nothing: hang up."""

        def answer() -> None:
            self.hear()
            assert self.line is not None
            if message:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                self.line.sendmsg([message], rights)
            else:
                self.line.close()

        self._thread = threading.Thread(target=answer)
        self._thread.start()

    def ask(
        self, message: bytes = b"request", fds: tuple[int, ...] = (), within_s: float = WAIT_S, stop: int = -1
    ) -> Any:
        assert _connection.ASK is not None
        button = self.button if stop < 0 else stop
        until = time.monotonic() + within_s
        return _connection.ASK(self.ours, message, [*fds], button, until, self.opened, self.lines)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(WAIT_S)
        for one in (self.ours, self.theirs, self.line, *self.lines):
            if one is not None:
                one.close()
        for fd in (self.button, self.press, *self.opened):
            os.close(fd)


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    before = os.listdir("/proc/self/fd")
    made = Spawner()
    yield made
    made.close()
    assert os.listdir("/proc/self/fd") == before, "descriptors are left"


def test_the_request_arrives_with_its_line_and_its_descriptors(spawner: Spawner) -> None:
    assert spawner.ask(b"asked", (spawner.button,), within_s=0) is None
    message, fds = spawner.hear()
    assert (message, [os.fstat(fd).st_ino for fd in fds]) == (b"asked", [os.fstat(spawner.button).st_ino])
    for fd in fds:
        os.close(fd)
    (line,) = spawner.lines
    assert spawner.line is not None
    spawner.line.send(b"word")
    assert line.recv(10) == b"word"
    assert not os.get_inheritable(line.fileno())


def test_after_the_report_the_line_is_closed(spawner: Spawner) -> None:
    spawner.answer(REPORT + b"output")
    assert spawner.ask() == (REPORT + b"output", (), False)
    assert (spawner.lines, spawner.opened) == ([], [])
    assert spawner.line is not None
    with pytest.raises(BrokenPipeError):
        spawner.line.send(b"anybody?")


@pytest.mark.parametrize("message", [b"", b"x", REPORT[:11]])
def test_what_is_no_report_is_the_last_word_as_well(spawner: Spawner, message: bytes) -> None:
    spawner.answer(message)
    assert spawner.ask() == (message, (), False)
    assert spawner.lines == []


def test_of_a_call_that_runs_on_the_line_and_the_pipes_stay(spawner: Spawner) -> None:
    spawner.answer(RUNNING, (spawner.button, spawner.press))
    message, fds, is_cut = spawner.ask()
    assert (message, [*fds], is_cut) == (RUNNING, spawner.opened, False)
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(spawner.button).st_ino] * 2
    assert not any(map(os.get_inheritable, fds))
    assert len(spawner.lines) == 1


def test_more_descriptors_than_two_are_cut_off_and_none_is_kept(spawner: Spawner) -> None:
    spawner.answer(REPORT, (spawner.button,) * 3)
    assert spawner.ask() == (REPORT, (), True)
    assert (spawner.opened, spawner.lines) == ([], [])


@pytest.mark.parametrize("message", [REPORT, RUNNING])
def test_with_no_room_for_descriptors_none_is_kept_and_it_says_so(message: bytes) -> None:
    code = (
        "import os, resource, sys\n"
        "from tests.native import test_post\n"
        "spawner = test_post.Spawner()\n"
        "spawner.answer(bytes.fromhex(sys.argv[1]), (spawner.button, spawner.press))\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "taken, free = [os.dup(0)], 3\n"  # both ends of the line, and what the spawner hears
        "while taken[-1] < 40: taken.append(os.dup(0))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, most))\n"
        "for fd in taken[-free:]: os.close(fd)\n"
        "said = spawner.ask()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "print(said[1:], spawner.opened, len(spawner.lines))\n"
        "spawner.close()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, message.hex()],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # The end that was sent is closed by then, so that one of the two has room.
    assert ran.stdout == f"((), True) [] {int(message == RUNNING)}\n", ran.stderr


@pytest.mark.parametrize("until_s", [-1e9, -1.0, 0.0, float("-inf"), float("nan")])
def test_a_moment_that_is_past_is_not_waited_for(spawner: Spawner, until_s: float) -> None:
    assert spawner.ask(within_s=until_s) is None
    assert spawner.hear() == (b"request", [])
    assert len(spawner.lines) == 1


def test_a_moment_that_never_comes_is_waited_for(spawner: Spawner) -> None:
    spawner.answer(REPORT)
    assert spawner.ask(within_s=float("inf")) == (REPORT, (), False)


def test_a_button_that_was_pressed_before_ends_the_wait_and_not_the_call(spawner: Spawner) -> None:
    os.write(spawner.press, b"+")
    assert spawner.ask() is None
    assert spawner.hear() == (b"request", [])
    assert len(spawner.lines) == 1


@pytest.mark.parametrize("gone", ["hung up", "closed"])
def test_where_the_spawner_is_gone_it_says_so_and_leaves_nothing(spawner: Spawner, gone: str) -> None:
    (spawner.theirs if gone == "hung up" else spawner.ours).close()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number says which
        spawner.ask()
    assert caught.value.errno == (errno.EPIPE if gone == "hung up" else errno.EBADF)
    assert caught.value.errno in _connection._GONE
    assert (spawner.opened, spawner.lines) == ([], [])


def test_a_descriptor_that_is_none_is_refused_and_nothing_is_left(spawner: Spawner) -> None:
    for wrong in (-1, 1 << 20, 1 << 40):
        with pytest.raises(OSError, match="Bad file descriptor"):
            spawner.ask(fds=(wrong,))
    assert spawner.lines == []


def test_arguments_that_are_none_of_its_own_are_refused(spawner: Spawner) -> None:
    ask: Any = _connection.ASK
    right = [spawner.ours, b"request", [], spawner.button, 0.0, [], []]
    for given in ([], right[:-1], [*right, 1]):
        with pytest.raises(TypeError):
            ask(*given)
    wrong: list[Any] = [object(), "text", (), "button", "soon", (), None]
    for place, one in enumerate(wrong):
        with pytest.raises((TypeError, AttributeError)):
            ask(*right[:place], one, *right[place + 1 :])
    for many in ([0] * 64, ["a"], [0, None]):
        with pytest.raises(TypeError):
            ask(*right[:2], many, *right[3:])
    spawner.theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        spawner.hear()  # nothing was sent


# -- signals ------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, socket, sys, threading, time
from tests.native import test_post

def interrupted(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, interrupted)
signal.signal(signal.SIGUSR2, lambda *_: heard.append("noise"))
heard = []
spawner = test_post.Spawner()
before = os.listdir("/proc/self/fd")

def trouble():
    spawner.hear()  # from here on it waits, or is about to
    while not is_waiting():
        pass
    os.kill(os.getpid(), signal.SIGUSR2)
    while not heard or not is_waiting():
        pass
    os.kill(os.getpid(), signal.SIGUSR1)

def is_waiting():
    with open(f"/proc/self/task/{os.getpid()}/syscall") as file:
        return file.read().split()[0] in ("7", "73", "271")  # poll, ppoll

thread = threading.Thread(target=trouble)
thread.start()
try:
    spawner.ask()
except KeyboardInterrupt:
    print("interrupted")
thread.join()
spawner.line.settimeout(10)
print(heard, spawner.line.recv(10), spawner.line.recv(10), spawner.lines, spawner.opened)
spawner.line.close()
print(len(os.listdir("/proc/self/fd")) - len(before))
"""


def test_a_signal_that_raises_stops_the_call_and_one_that_does_not_lets_it_wait_on() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout == "interrupted\n['noise'] b'c' b'' [] []\n0\n", ran.stderr


def test_an_interrupt_as_soon_as_it_has_returned_leaves_nothing_that_nobody_knows(spawner: Spawner) -> None:
    """What it returns is lost then: that the line and the pipes are in the lists is all there is."""
    spawner.answer(RUNNING, (spawner.button, spawner.press))

    def look(_frame: object, event: str, what: object) -> None:
        if event == "c_return" and what is _connection.ASK:
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        with pytest.raises(KeyboardInterrupt):
            spawner.ask()
    finally:
        sys.setprofile(before)
    assert len(spawner.opened) == 2
    assert len(spawner.lines) == 1


def test_a_full_queue_is_waited_for_and_an_interrupt_comes_out() -> None:
    code = (
        "import os, signal, socket, struct, sys\n"
        "from tests.native import test_post\n"
        "spawner = test_post.Spawner()\n"
        "before = os.listdir('/proc/self/fd')\n"
        "spawner.ours.setblocking(False)\n"
        "try:\n"
        "    while True: spawner.ours.send(b'x' * 1000)\n"
        "except BlockingIOError: pass\n"
        "spawner.ours.setblocking(True)\n"
        "spawner.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('@ll', 30, 0))\n"
        "print('full', flush=True)\n"
        "try: spawner.ask()\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "print(os.listdir('/proc/self/fd') == before)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == "full\n"
        until = time.monotonic() + WAIT_S
        state = ""
        while state != "S":  # it waits in the kernel, for the queue
            assert time.monotonic() < until
            state = Path(f"/proc/{ran.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        ran.send_signal(signal.SIGINT)
        assert ran.stdout.readline() == "interrupted\n"
        assert ran.stdout.readline() == "True\n"
