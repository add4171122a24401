"""Programs that stay, on every level: pipes, environment, limits, and nothing left when they are closed."""

from __future__ import annotations

import os
import select
import sys
import time

import pytest

from tests.levels import each_level, sandbox_of
from toolwright.model import End, Ending, Level, Limits, Permit, Profile
from toolwright.sandbox import Sandbox, Standing, Start

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
        pytest.skip("this machine lacks a layer; `toolwright doctor` names it and the fix")
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
            assert "No such file" in made.ending
            made.close()
