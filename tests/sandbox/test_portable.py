"""Real processes at the portable level. The probed programs may sleep; the tests wait for events only."""

import gc
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib.config import Environment
from toolcrib.model import End, Ending, Limits, Permit
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox.discovery import PROBE_OUTPUT_BYTES_MAX, probe_all, probe_schema
from toolcrib.sandbox.portable import Portable

ENV = {"PATH": os.defpath}
ADDED_BY_THE_SHELL = ("PWD", "SHLVL", "_", "OLDPWD")
SCHEMA = '{"name":"weather","description":"Weather","parameters":{"type":"object","properties":{}}}'


@pytest.fixture
def program(tmp_path: Path):
    """Writes a shell script and returns its path."""

    def write(body: str, name: str = "weather-tool") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def gone(tmp_path: Path):
    """A FIFO that processes hold open, and a check that waits until none of them is left."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def all_gone() -> bool:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        while poll.poll(10_000):
            if os.read(reader, 4096) == b"":
                return True
        return False

    yield fifo, all_gone
    os.close(reader)


def ran(argv: list[str], *, stdin: bytes = b"", timeout_s: float = 10.0, stdout_max: int = 65536) -> Ending:
    limits = Limits(timeout_s=timeout_s, stdout_bytes_max=stdout_max)
    start = Start(
        program=argv[0], argv=tuple(argv), env=ENV, cwd="/", stdin=stdin, permit=Permit(limits=limits)
    )
    cancel = Cancel()
    try:
        return Portable().run(start, cancel)
    finally:
        cancel.close()


# -- asking for a schema ------------------------------------------------------------------------------------


@pytest.mark.requirement("executable.discover.flag")
def test_the_program_gets_the_single_argument_schema(program):
    path = program(f"""[ "$#:$1" = "1:--schema" ] && printf '%s' '{SCHEMA}'""")
    stdout, outcome = probe_schema(path, env=ENV)
    assert json.loads(stdout)["name"] == "weather"
    assert outcome.exit_status == 0


@pytest.mark.requirement("executable.discover.flag")
def test_a_program_that_cannot_start_is_reported_with_the_reason(program, tmp_path):
    path = program("")
    Path(path).write_text("#!/nonexistent/interpreter\n", encoding="utf-8")
    for absent in (path, str(tmp_path / "no-tool"), "a\0b"):
        stdout, outcome = probe_schema(absent, env=ENV)
        assert stdout == b""
        assert outcome.start_error
        assert outcome.exit_status is None


@pytest.mark.requirement("executable.discover.timeout")
def test_a_program_that_sleeps_is_stopped_with_all_its_children_and_others_answer(program, gone):
    fifo, all_gone = gone
    sleeper = program(f"exec 9>{fifo}\nsleep 600 &\nsleep 600", "sleeper-tool")
    good = program(f"echo '{SCHEMA}'")
    (_, slept), (stdout, answered) = probe_all([sleeper, good], env=ENV)
    assert slept.timed_out_s == 1
    assert slept.exit_status is None
    assert answered.exit_status == 0
    assert json.loads(stdout)["name"] == "weather"
    assert all_gone()


@pytest.mark.requirement("executable.discover.size")
def test_an_output_over_the_limit_is_reported_by_the_limit(program):
    exactly = program(f"head -c {PROBE_OUTPUT_BYTES_MAX} /dev/zero", "exactly-tool")
    longer = program("head -c 9000 /dev/zero", "longer-tool")
    endless = program("yes", "endless-tool")
    outcomes = probe_all([exactly, longer, endless], env=ENV, timeout_s=10)
    assert [len(stdout) for stdout, _ in outcomes] == [8191, 8191, 8191]
    assert [outcome.too_long_bytes for _, outcome in outcomes] == [None, 8191, 8191]
    assert [outcome.exit_status for _, outcome in outcomes] == [0, None, None]


@pytest.mark.requirement("executable.discover.exit-status")
def test_the_exit_status_comes_back_and_a_signal_counts_128_more(program):
    failing = program(f"echo '{SCHEMA}'; exit 1", "failing-tool")
    crashing = program("kill -SEGV $$", "crashing-tool")
    outcomes = probe_all([failing, crashing], env=ENV, timeout_s=10)
    assert [outcome.exit_status for _, outcome in outcomes] == [1, 139]


@pytest.mark.requirement("executable.discover.stderr")
def test_stderr_does_not_disturb_the_answer_and_its_end_is_kept(program):
    stdout, outcome = probe_schema(program(f"echo careful >&2; echo '{SCHEMA}'"), env=ENV)
    assert (json.loads(stdout)["name"], outcome.exit_status) == ("weather", 0)
    assert outcome.stderr_tail == "careful\n"

    chatty = program("head -c 300000 /dev/zero | tr '\\0' x >&2; echo boom >&2; exit 2", "chatty-tool")
    _, outcome = probe_schema(chatty, env=ENV, timeout_s=10)
    assert outcome.exit_status == 2
    assert outcome.stderr_tail.endswith("xboom\n")
    assert len(outcome.stderr_tail) == 2000


@pytest.mark.requirement("executable.discover.stdin")
def test_a_program_that_reads_arguments_meets_the_end_of_stdin_at_once(program):
    _, outcome = probe_schema(program("cat; echo 'no arguments' >&2; exit 3"), env=ENV)
    assert outcome.timed_out_s is None
    assert outcome.exit_status == 3
    assert outcome.stderr_tail == "no arguments\n"


@pytest.mark.requirement("executable.discover.environment")
def test_the_keys_of_the_host_are_not_visible_to_the_program(program):
    host = Environment.read({"PATH": os.defpath, "HOME": "/", "OPENAI_API_KEY": "secret"})
    stdout, outcome = probe_schema(program("env"), env=host.probe_environment())
    names = {line.partition("=")[0] for line in stdout.decode().splitlines()}
    assert outcome.exit_status == 0
    assert "PATH" in names
    assert names <= {"PATH", "LANG", *ADDED_BY_THE_SHELL}


@pytest.mark.requirement("executable.discover.environment")
def test_nothing_of_this_process_reaches_a_program_that_was_given_nothing(program):
    stdout, _ = probe_schema(program("/usr/bin/env"), env={})
    names = {line.partition("=")[0] for line in stdout.decode().splitlines()}
    assert names <= {"PATH", *ADDED_BY_THE_SHELL}


@pytest.mark.requirement("executable.discover.parallel")
def test_slow_programs_overlap_and_answer_in_the_order_they_were_asked(program, tmp_path):
    log = tmp_path / "log"
    paths = [
        program(f"echo start >>{log}; sleep 0.5; echo end >>{log}; echo {number}", f"p{number:02}-tool")
        for number in range(20)
    ]
    answers = probe_all(paths, env=ENV, timeout_s=30)
    assert [int(stdout) for stdout, _ in answers] == list(range(20))
    assert log.read_text(encoding="utf-8").split()[:2] == ["start", "start"], "two began before one had ended"


@pytest.mark.requirement("executable.discover.parallel")
def test_the_order_of_answers_does_not_follow_the_order_of_finishing(program, tmp_path):
    done = tmp_path / "done"
    first = program(f"while [ ! -e {done} ]; do sleep 0.01; done; echo first", "first-tool")
    second = program(f"echo second; : >{done}", "second-tool")
    answers = probe_all([first, second], env=ENV, timeout_s=30)
    assert [stdout for stdout, _ in answers] == [b"first\n", b"second\n"]


def test_asking_nobody_gives_nothing():
    assert probe_all([], env=ENV) == []


# -- running ------------------------------------------------------------------------------------------------


@pytest.mark.battery("E03")
def test_a_grandchild_that_holds_the_pipes_is_killed_and_not_waited_for(program, gone):
    fifo, all_gone = gone
    result = ran([program(f"exec 9>{fifo}\nsleep 600 &\necho answer")], timeout_s=60)
    assert (result.end, result.exit_status, result.stdout) == (End.EXITED, 0, b"answer\n")
    assert all_gone()


@pytest.mark.skipif(shutil.which("setsid") is None, reason="needs the setsid program")
def test_a_daemon_that_left_the_group_does_not_hold_the_call_up(program, tmp_path):
    pid_file = tmp_path / "pid"
    daemon = f"setsid sh -c 'echo $$ >{pid_file}; exec sleep 600' &"
    wait = f"while [ ! -s {pid_file} ]; do sleep 0.01; done"
    result = ran([program(f"{daemon}\n{wait}\necho ok")], timeout_s=60)
    os.kill(int(pid_file.read_text(encoding="utf-8")), 9)  # this level does not: see the module
    assert (result.end, result.exit_status, result.stdout) == (End.EXITED, 0, b"ok\n")


def test_a_program_that_closes_its_pipes_and_goes_on_meets_the_deadline(program, gone):
    fifo, all_gone = gone
    result = ran([program(f"exec 9>{fifo}\nexec >&- 2>&-\nsleep 600")], timeout_s=1.0)
    assert (result.end, result.exit_status) == (End.TIMED_OUT, None)
    assert all_gone()


def test_a_program_that_moved_to_another_group_is_stopped_at_the_deadline(gone):
    fifo, all_gone = gone
    lines = (
        "import os, time",
        f"os.open({str(fifo)!r}, os.O_WRONLY)",
        "os.setpgid(0, os.getpgid(os.getppid()))",
        "time.sleep(600)",
    )
    result = ran([sys.executable, "-S", "-c", "\n".join(lines)], timeout_s=2)
    assert result.end is End.TIMED_OUT
    assert all_gone()


def test_nothing_is_left_of_a_process_that_was_run(program):
    gc.collect()  # what tests before this one left must not be closed in the middle of it
    before = len(os.listdir("/dev/fd"))
    results = [
        ran([program("echo $$", "ends-tool")]),
        ran([program("echo $$; exec sleep 600", "sleeps-tool")], timeout_s=1.0),
        ran([program("echo $$; exec yes", "floods-tool")], stdout_max=5000),
    ]
    assert [result.end for result in results] == [End.EXITED, End.TIMED_OUT, End.TOO_LARGE]
    for result in results:
        with pytest.raises(ProcessLookupError):  # a zombie would still take a signal
            os.kill(int(result.stdout.split()[0]), 0)
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.battery("F03")
def test_stdin_and_stdout_of_a_megabyte_each_do_not_block_each_other(program):
    data = b"x" * (1 << 20)
    result = ran([program("head -c 1048576 /dev/zero; wc -c")], stdin=data, stdout_max=2 << 20)
    assert (result.end, result.exit_status) == (End.EXITED, 0)
    assert len(result.stdout) > 1 << 20
    assert int(result.stdout[1 << 20 :]) == 1 << 20


@pytest.mark.battery("F04")
def test_a_program_that_does_not_read_its_stdin_is_no_failure(program):
    result = ran([program("exec <&-; echo '{}'")], stdin=b"x" * (1 << 20))
    assert (result.end, result.exit_status, result.stdout) == (End.EXITED, 0, b"{}\n")


def test_argv_is_never_read_by_a_shell(program):
    result = ran([program("""printf '%s|' "$@" """), "; touch x", "$HOME", "*", ""])
    assert result.stdout == b"; touch x|$HOME|*||"


def test_what_was_written_before_the_end_is_read_whole(program):
    result = ran([program("head -c 60000 /dev/zero; head -c 500 /dev/zero >&2")])
    assert (len(result.stdout), len(result.stderr)) == (60000, 500)


HOST_THAT_IGNORES_ITS_CHILDREN = """
import signal, sys
from toolcrib.model import Limits, Permit
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox.portable import Portable

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
start = Start(program=sys.argv[1], argv=(sys.argv[1],), env={}, cwd="/", permit=Permit(limits=Limits()))
ending = Portable().run(start, Cancel())
print(ending.end.name, ending.exit_status, ending.hint, sep="; ")
"""


def test_a_host_that_ignores_its_children_is_told_what_to_mend(program):
    """The kernel then keeps no exit status for anybody: a failure must not pass for a success."""
    argv = [sys.executable, "-c", HOST_THAT_IGNORES_ITS_CHILDREN, program("exit 3")]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    hint = "this process must neither ignore SIGCHLD nor wait for children that are not its own"
    assert said == f"LOST; None; {hint}\n"


_LEFT = """
import os, resource
from toolcrib.sandbox._exchange import tasks_left
if os.geteuid() == 0:
    assert tasks_left() == float("inf")  # to root the limit means nothing
    os.setresuid(54321, 54321, 54321)
limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
for soft in (20, 1):
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, limit))
    print(soft - tasks_left())
"""


def test_what_a_limit_of_processes_leaves_is_counted_for_the_user_who_has_it() -> None:
    told = subprocess.run([sys.executable, "-c", _LEFT], capture_output=True, text=True, check=True).stdout
    assert [int(count) >= 1 for count in told.split()] == [True, True]  # itself, at least
