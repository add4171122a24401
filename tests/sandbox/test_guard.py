"""What is left of a host that was killed, at the levels that have no supervisor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.levels import each_level
from toolcrib.model import Level, Limits, Permit, Profile
from toolcrib.sandbox import Start
from toolcrib.sandbox._exchange import Exchange, ExitWatch
from toolcrib.sandbox._guard import Guard

BOUND_S = 20.0
ROOT = Path(__file__).parents[2]
WEAKER = each_level()[:-1]
"""All but the supervised level."""

# A tool that hangs with a child of its own. Both are deaf to what a terminal sends, and hold the FIFO open.
TOOL = "trap '' HUP INT TERM; exec 9>\"$0\"; sleep 60 & echo x >&9; wait"

HOST = """
import os, signal, sys, threading
from tests.levels import sandbox_of
from toolcrib.model import Level, Limits, Permit, Profile
from toolcrib.sandbox import Cancel, Start

level, how, tool, fifo = sys.argv[1:]
permit = Permit(profile=Profile.OPEN, read=("/",), write=("/",), limits=Limits(timeout_s=60.0))
env = {"PATH": "/usr/bin:/bin", "TMPDIR": ""}
start = Start(program="/bin/sh", argv=("sh", "-c", tool, fifo), env=env, cwd="/", permit=permit)
with sandbox_of(Level(level)) as sandbox:
    if how == "copied":
        sandbox.run(Start(program="/bin/true", argv=("true",), env=env, cwd="/", permit=permit), Cancel())
    if how == "standing":
        made = sandbox.open(start)
    else:
        threading.Thread(target=sandbox.run, args=(start, Cancel()), daemon=True).start()
    sys.stdin.readline()
    is_held = False
    while not is_held:  # bounded by whoever waits for our answer
        with sandbox._guard._lock:
            is_held = bool(sandbox._guard._held)
    copy = os.fork() if how == "copied" else -1
    if copy == 0:
        signal.alarm(60)
        signal.pause()
    print(copy, flush=True)
    signal.pause()
"""


@contextmanager
def fifo_in(folder: Path) -> Iterator[tuple[str, int]]:
    path = folder / "held"
    os.mkfifo(path, 0o666)
    path.chmod(0o666)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield str(path), reader
    finally:
        os.close(reader)


def read(fd: int) -> bytes:
    """What comes next, or nothing where nobody holds the other end any more."""
    assert select.select([fd], [], [], BOUND_S)[0], "somebody holds it, and says nothing"
    return os.read(fd, 64)


@pytest.mark.parametrize("how", ["run", "standing", "copied"])
@pytest.mark.parametrize("level", WEAKER)
def test_attack_a_tool_goes_on_without_limits_because_its_host_was_killed(
    level: Level, how: str, tmp_path: Path
) -> None:
    """Whoever can have the host killed (by its memory, say) would be rid of time limit and watcher. Also
    where a copy of the host, made by fork, lives on."""
    tmp_path.chmod(0o755)
    with fifo_in(tmp_path) as (path, reader):
        command = [sys.executable, "-c", HOST, level, how, TOOL, path]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdin is not None
            assert host.stdout is not None
            try:
                assert read(reader) == b"x\n"
                host.stdin.write("\n")
                host.stdin.flush()
                assert select.select([host.stdout], [], [], BOUND_S)[0], "nobody holds it"
                copy = int(host.stdout.readline())
            finally:
                host.kill()
            assert host.wait(BOUND_S) == -signal.SIGKILL
            try:
                assert read(reader) == b""
            finally:
                if copy > 0:
                    os.kill(copy, signal.SIGKILL)


@contextmanager
def group() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group, and ends when its stdin does."""
    with subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def echoes(process: subprocess.Popen[bytes]) -> bool:
    """Whether it lives: it says what it was told."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x")
    process.stdin.flush()
    return read(process.stdout.fileno()) == b"x"


GUARDED = """
import os, signal, sys
from toolcrib.sandbox._guard import Guard

held, released, also = map(int, sys.argv[1:])
guard = Guard()
guard.hold(held)
guard.hold(released)
assert guard._shell > 0
os.kill(guard._shell, signal.SIGKILL)
os.waitid(os.P_PID, guard._shell, os.WEXITED | os.WNOWAIT)
guard.let_go(released)
guard.hold(also)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_held_when_the_host_dies_is_ended_also_by_a_guard_that_took_another_ones_place() -> None:
    """Attack: a tool kills the guard first."""
    with group() as held, group() as released, group() as also:
        numbers = [str(each.pid) for each in (held, released, also)]
        ran = subprocess.run([sys.executable, "-c", GUARDED, *numbers], timeout=BOUND_S, check=False)
        assert ran.returncode == -signal.SIGKILL
        assert held.wait(BOUND_S) == also.wait(BOUND_S) == -signal.SIGKILL
        assert echoes(released)


def test_a_guard_that_is_closed_ends_nobody_and_leaves_nobody() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with group() as held:
        guard = Guard()
        guard.hold(held.pid)
        shell = guard._shell
        guard.close()
        with pytest.raises(ChildProcessError):
            os.waitpid(shell, os.WNOHANG)
        assert echoes(held)
        guard.hold(held.pid)  # as late as this nobody starts another one
        assert guard._shell == shell
        guard.let_go(held.pid)
    assert len(os.listdir("/proc/self/fd")) == before


COPIED = """
import os, sys, threading
from toolcrib.sandbox._guard import Guard

heard, said = os.pipe()

def copy():
    if os.fork() == 0:
        held = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
        os.write(said, b"%d" % sum("socket:" in each for each in held))
        os._exit(0)

def started(event, arguments):
    if event == "os.posix_spawn":
        copying.start()
        copying.join(0.5)  # it may wait for us

copying = threading.Thread(target=copy)
sys.addaudithook(started)
guard = Guard()
guard.prepare()
print(os.read(heard, 8).decode())
guard.close()
"""


def test_a_copy_of_the_host_that_is_made_while_the_guard_starts_keeps_nothing_of_it() -> None:
    """The guard would not see the end of the host before that of the copy."""
    ran = subprocess.run(
        [sys.executable, "-c", COPIED],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=BOUND_S,
        check=True,
    )
    assert ran.stdout == b"0\n"


def test_attack_a_stranger_is_killed_for_a_program_whose_end_nobody_saw() -> None:
    """It hangs in the kernel, say. Whoever reaps it later says nothing, and its number is given away."""
    guard = Guard()
    with group() as held:
        permit = Permit(profile=Profile.OPEN, limits=Limits())
        start = Start(program="/bin/sh", argv=("sh",), env={}, cwd="/", permit=permit)
        exchange = Exchange(held, start, "", guard)
        exchange.exit = ExitWatch(os.getpid())  # of one who goes on
        assert exchange.finish()[0] is None
        assert guard._held == set()
    guard.close()


def ends_the_second_alone(code: str) -> None:
    """Run a host that kills itself, told of two groups: the second ends with it, and the first lives on."""
    with group() as other, group() as held:
        argv = [sys.executable, "-c", code, str(other.pid), str(held.pid)]
        assert subprocess.run(argv, timeout=BOUND_S, check=False).returncode == -signal.SIGKILL
        assert held.wait(BOUND_S) == -signal.SIGKILL
        assert echoes(other)


def test_a_host_without_a_stdin_has_a_guard_that_waits_for_its_end() -> None:
    ends_the_second_alone(
        "import os, sys\n"
        "from toolcrib.sandbox._guard import Guard\n"
        "os.close(0)\n"
        "guard = Guard()\n"
        "guard.hold(int(sys.argv[1]))\n"
        "guard.let_go(int(sys.argv[1]))\n"
        "guard.hold(int(sys.argv[2]))\n"
        "os.kill(os.getpid(), 9)\n"
    )


def test_what_a_host_without_stdin_stdout_and_stderr_prints_is_not_told_to_its_guard() -> None:
    """Attack: a tool whose output the host prints, and which says there whom to kill."""
    ends_the_second_alone(
        "import os, sys\n"
        "from contextlib import suppress\n"
        "from toolcrib.sandbox._guard import Guard\n"
        "os.closerange(0, 3)\n"
        "guard = Guard()\n"
        "guard.prepare()\n"
        "for place in range(3):\n"
        "    with suppress(OSError):\n"
        "        os.write(place, b'+ %b\\n!' % sys.argv[1].encode())\n"
        "guard.hold(int(sys.argv[2]))\n"
        "os.kill(os.getpid(), 9)\n"
    )


def test_a_guard_keeps_nothing_open_that_its_host_closes() -> None:
    """A host may let others inherit a pipe, and whoever reads from it waits for the end of all of these."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    guard = Guard()
    try:
        guard.prepare()
        os.close(writer)
        assert read(reader) == b""
    finally:
        guard.close()
        os.close(reader)
