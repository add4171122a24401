"""Programs that stay, on every level: pipes, environment, limits, and nothing left when they are closed."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.levels import each_level, sandbox_of
from toolcrib.model import End, Ending, Level, Limits, Permit, Profile
from toolcrib.sandbox import Sandbox, Standing, Start, portable
from toolcrib.sandbox._scratch import Scratch

OPEN = Permit(profile=Profile.OPEN, read=("/",), write=("/",), network=True)
ECHO = "import sys\nfor line in sys.stdin:\n    print('got', line.strip(), flush=True)"
BOUND_S = 10.0


def opened(sandbox: Sandbox, code: str, permit: Permit = OPEN, env: dict[str, str] | None = None) -> Standing:
    start = Start(
        program=sys.executable,
        argv=(sys.executable, "-c", code),
        env=env or {"TMPDIR": ""},
        cwd="/",
        permit=permit,
        what="server",
    )
    made = sandbox.open(start)
    assert not isinstance(made, Ending), made
    return made


def line_of(fd: int) -> bytes:
    """One line, waited for a bounded time."""
    found, until = b"", time.monotonic() + BOUND_S
    while not found.endswith(b"\n") and time.monotonic() < until:
        if select.select([fd], [], [], 0.1)[0]:
            chunk = os.read(fd, 1)
            if not chunk:
                break
            found += chunk
    return found


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + BOUND_S
    while is_alive(pid) and time.monotonic() < until:
        select.select([], [], [], 0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("level", each_level())
def test_a_program_that_stays_answers_until_it_is_closed(level: Level) -> None:
    with sandbox_of(level) as sandbox:
        made = opened(sandbox, ECHO)
        for word in (b"one", b"two"):
            os.write(made.stdin, word + b"\n")
            assert line_of(made.stdout) == b"got " + word + b"\n"
        assert level.value in made.layers
        assert not made.ended()
        made.close()
        made.close()
        assert made.ended(BOUND_S)


@pytest.mark.parametrize("level", each_level())
def test_closing_kills_what_the_program_started(level: Level) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=-1)\n"
        "print(child.pid, flush=True)\nsys.stdin.read()"
    )
    with sandbox_of(level) as sandbox:
        made = opened(sandbox, code)
        child = int(line_of(made.stdout))
        assert is_alive(child)
        made.close()
        assert gone(child)


def test_closing_kills_a_daemon_at_the_supervised_level() -> None:
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n        time.sleep(60)\n    os._exit(0)\n"
        "sys.stdin.read()"
    )
    level = Level.SUPERVISED
    if not any(getattr(found, "id", "") == level and not found.marks for found in each_level()):  # type: ignore[attr-defined]
        pytest.skip("this machine lacks a layer; `toolcrib doctor` names it and the fix")
    with sandbox_of(level) as sandbox:
        made = opened(sandbox, code)
        daemon = int(line_of(made.stdout))
        assert is_alive(daemon)
        made.close()
        assert gone(daemon)


@pytest.mark.parametrize("level", each_level())
def test_a_program_that_ends_says_how(level: Level) -> None:
    with sandbox_of(level) as sandbox:
        made = opened(sandbox, "import sys; print('bye', file=sys.stderr); raise SystemExit(3)")
        assert made.ended(BOUND_S)
        assert "3" in made.ending
        assert line_of(made.stderr) == b"bye\n"
        made.close()


@pytest.mark.parametrize("level", each_level())
def test_it_sees_only_the_environment_it_is_given(level: Level) -> None:
    code = (
        "import os; print(sorted(n for n in os.environ if n not in ('LC_CTYPE', 'PWD')), flush=True); input()"
    )
    with sandbox_of(level) as sandbox:
        made = opened(sandbox, code, env={"TMPDIR": "", "GREETING": "hello"})
        assert line_of(made.stdout) == b"['GREETING', 'TMPDIR']\n"
        made.close()


@pytest.mark.parametrize("level", each_level())
def test_too_many_processes_end_it(level: Level) -> None:
    code = (
        "import subprocess, sys\nkept = []\n"
        "for _ in range(12):\n    try:\n"
        "        kept.append(subprocess.Popen(['/bin/cat'], stdin=-1))\n"
        "    except OSError:\n        break\n"
        "print(len(kept), flush=True)\nsys.stdin.read()"
    )
    permit = Permit(profile=Profile.OPEN, read=("/",), write=("/",), limits=Limits(processes_max=5))
    with sandbox_of(level) as sandbox:
        made = opened(sandbox, code, permit)
        count = line_of(made.stdout)
        assert made.ended(BOUND_S) or (count.strip().isdigit() and int(count) < 12)
        made.close()


@pytest.mark.parametrize("level", each_level())
def test_a_program_that_is_not_there_is_an_ending(level: Level) -> None:
    start = Start(program="/nowhere/at/all", argv=("x",), env={}, cwd="/", permit=OPEN)
    with sandbox_of(level) as sandbox:
        made = sandbox.open(start)
        if isinstance(made, Ending):
            assert made.end in (End.NOT_STARTED, End.UNAVAILABLE)
        else:
            assert made.ended(BOUND_S)
            assert made.ending == "could not be started: no such file or directory"
            made.close()


def test_a_scratch_folder_that_cannot_be_made_is_an_ending(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    shutil.rmtree(scratch.folder)
    start = Start(program=sys.executable, argv=("x",), env={"TMPDIR": ""}, cwd="/", permit=OPEN)
    made = portable.Portable(scratch).open(start)
    scratch.close()
    assert isinstance(made, Ending)
    assert (made.end, made.reason) == (End.NOT_STARTED, "No such file or directory")


SHORT = """
import os, resource, sys
from toolcrib.model import Permit, Profile
from toolcrib.runtimes import _mcp_client, _mcp_stdio
from toolcrib.sandbox import Start, _standing, portable
from toolcrib.sandbox._scratch import Scratch

permit = Permit(profile=Profile.OPEN, read=("/",), write=("/",), network=True)
argv = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
start = Start(program=sys.executable, argv=argv, env={"TMPDIR": ""}, cwd="/", permit=permit, what="server")
soft = resource.getrlimit(resource.RLIMIT_NOFILE)
folder = sys.argv[1]


def with_few(left, make):
    "Make something with so many descriptors left."
    fillers = [os.dup(0) for _ in range(max(map(int, os.listdir("/proc/self/fd"))))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1 + left, soft[1]))
    try:
        return make()
    except OSError:
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)
        for fd in fillers:
            os.close(fd)


def is_over(process):
    return process.returncode is not None


finished, failed = [], [0, 0]
for left in range(7):
    open_before = len(os.listdir("/proc/self/fd"))
    process = portable.spawn(start, folder, [], standing=True)
    made = with_few(left, lambda: _standing.Watched(
        process, start, scratch=folder, layers=(), finish=lambda: finished.append(left)
    ))
    if made is None:
        failed[0] += 1
    else:
        line = with_few(left, lambda: _mcp_stdio.StdioLine(
            made, _mcp_client.WireLimits(), changed=lambda: None, ended=lambda why: None
        ))
        if line is None:
            failed[1] += 1
        else:
            line.close()
        assert made.ended(10), "the server goes on"
    assert is_over(process), left
    assert len(os.listdir("/proc/self/fd")) == open_before, left
for left in range(2):
    sandbox = portable.Portable(Scratch())
    made = sandbox.open(start)
    line = with_few(left, lambda: _mcp_stdio.StdioLine(
        made, _mcp_client.WireLimits(), changed=lambda: None, ended=lambda why: None
    ))
    assert line is None
    assert made.ended(10), "the server goes on"
    sandbox.close()
print(*failed)
"""


def test_no_program_is_left_where_descriptors_run_out_while_it_is_taken_over(tmp_path: Path) -> None:
    """Attack: a host without descriptors starts programs that nobody watches, one at each attempt."""
    ran = subprocess.run(
        [sys.executable, "-c", SHORT, str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert int(ran.stdout.split()[0]) > 0
