"""The supervised level with real programs that misbehave: how each ends, and that nothing of it is left.

The tool is ``tests/native/trouble.c``, which bounds itself. Rules are made by hand; what permits mean and
hold is shown in test_rules.py and test_attacks.py. Tests run as we are, as root also as an ordinary user,
with a spawner that has the sanitizers in it, and as if other calls were always running: these are neither
held nor looked for.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lateness import timely
from tests.native.compiling import SPAWNER, checked_spawner, compiled, musl_spawner, spawner, trouble
from tests.sandbox.hosting import NOBODY, ROOT, Elsewhere, Here, request_of, start_of
from toolcrib.model import End, Ending
from toolcrib.sandbox import NEVER, Cancel, Start, _wire, supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the spawner is for Linux")

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be somebody else; run the tests as root")
WAIT_S = 10.0
COMPANY = (pytest.param(False, id="alone"), pytest.param(True, id="in-company"))


@pytest.fixture(
    scope="module", params=["as-we-are", "as-an-ordinary-user", "sanitized", "musl", "in-company"]
)
def host(request) -> Iterator[Here | Elsewhere]:
    trouble()
    if request.param == "musl":
        request.getfixturevalue("musl_gcc")
    if request.param == "as-an-ordinary-user" and not IS_ROOT:
        pytest.skip("we are an ordinary user already; run the tests as root for both")
    made: Here | Elsewhere
    if request.param == "as-an-ordinary-user":
        made = Elsewhere(spawner(), uid=NOBODY)
    else:
        binaries = {"sanitized": checked_spawner, "musl": musl_spawner}
        binary = binaries.get(request.param, spawner)()
        made = Here(binary, in_company=request.param == "in-company")
    yield made
    made.close()


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    trouble()
    made = Here(spawner())
    yield made
    made.close()


@pytest.fixture
def new_host() -> Iterator[Callable[..., Here]]:
    """Makes hosts that a test may harm; all of them are closed, however it ends."""
    made: list[Here] = []

    def make(binary: str | None = None, **more: Any) -> Here:
        made.append(Here(binary or spawner(), **more))
        return made[-1]

    yield make
    for host in made:
        host.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach and write to."""
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="place-")))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Watch:
    """Whether the processes that hold a FIFO have come, and whether they are gone."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / f"fifo-{time.monotonic_ns()}")
        os.mkfifo(self.path)
        os.chmod(self.path, 0o666)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._poll = select.poll()

    def came(self, count: int = 1) -> None:
        """Wait for so many."""
        until = time.monotonic() + WAIT_S
        while count > 0:
            self._poll.register(self._fd, select.POLLIN)
            left_s = until - time.monotonic()
            assert left_s > 0, "nobody stayed"  # polling ends at once when whoever came has gone
            assert self._poll.poll(left_s * 1000), "nobody came"
            with suppress(BlockingIOError):
                count -= len(os.read(self._fd, count))

    def gone(self, within_s: float) -> bool:
        """Whether all of those who came are gone, waited for at most so long. False if nobody ever came."""
        self._poll.register(self._fd, 0)
        return bool(self._poll.poll(within_s * 1000))

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def watch(place: Path) -> Iterator[Watch]:
    made = Watch(place)
    yield made
    made.close()


def pressed_after(watch: Watch, count: int, folder: Path) -> str:
    """A button for ``cancel_at``, which is pressed when so many have come."""
    button = folder / "button"
    os.mkfifo(button)
    button.chmod(0o666)

    def press() -> None:
        watch.came(count)
        button.write_bytes(b"+")

    threading.Thread(target=press, daemon=True).start()
    return str(button)


def duration_s(ending: Ending) -> float:
    return ending.runs[-1].duration_ms / 1000


def in_time(most_s: float, run: Callable[..., Ending], argv: list[str], **more: object) -> Ending:
    """How it ended at its limit; run again where it ended late because the machine stood still."""

    def stopped() -> Ending:
        ending = run(argv, **more)
        assert ending.end is End.TIMED_OUT
        return ending

    return timely(stopped, duration_s, most_s)


# -- how a program ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_exit_status_is_the_programs(host, status):
    ending = host.run([trouble(), "exit", str(status)])
    assert (ending.end, ending.exit_status, ending.signal) == (End.EXITED, status, None)
    assert ending.layers == ("supervised", "by hand")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_death_by_a_signal_is_128_and_its_number(host, number):
    ending = host.run([trouble(), "signal", str(int(number))])
    assert (ending.end, ending.exit_status, ending.signal) == (End.EXITED, 128 + number, number)


def test_a_program_that_is_missing_is_not_started_and_the_reason_is_the_kernels(host, place):
    text = place / "text"
    text.write_bytes(b"no program")
    for path, reason in (
        (place / "missing", "No such file or directory"),
        (place, "Permission denied"),
        (text, "Permission denied"),
    ):
        ending = host.run([str(path)])
        assert (ending.end, ending.reason, ending.exit_status) == (End.NOT_STARTED, reason, None)
        assert ending.layers == ()
    text.chmod(0o755)
    assert host.run([str(text)]).reason == "Exec format error"


@pytest.mark.battery("C10")
def test_c10_a_working_directory_that_is_missing_is_named_and_no_other_is_taken(host, place):
    ending = host.run([trouble(), "exit", "0"], cwd=str(place / "missing"))
    assert ending.end is End.NOT_STARTED
    assert ending.reason == f"working directory {place / 'missing'}: No such file or directory"


@pytest.mark.battery("E01")
@pytest.mark.parametrize("trouble_is", ["hang", "deaf", "stop", "daemon-and-hang"])
def test_e01_the_deadline_holds_within_250_ms(host, watch, trouble_is):
    argument = [] if trouble_is == "stop" else [watch.path]
    ending = in_time(0.65, host.run, [trouble(), trouble_is, *argument], limits={"timeout_s": 0.4})
    assert (ending.end, ending.exit_status) == (End.TIMED_OUT, None)
    assert 0.4 <= duration_s(ending) <= 0.65
    assert trouble_is == "stop" or watch.gone(0.1)


@pytest.mark.battery("E02")
def test_e02_ignoring_every_signal_gains_no_time(host, watch):
    ending = in_time(0.55, host.run, [trouble(), "deaf", watch.path], limits={"timeout_s": 0.3})
    assert ending.end is End.TIMED_OUT
    assert duration_s(ending) <= 0.55
    assert watch.gone(0.1)


@pytest.mark.battery("E08")
def test_e08_a_program_that_stops_itself_still_meets_its_deadline(host):
    ending = in_time(0.55, host.run, [trouble(), "stop"], limits={"timeout_s": 0.3})
    assert ending.end is End.TIMED_OUT
    assert duration_s(ending) <= 0.55


@pytest.mark.battery("E03")
def test_e03_a_grandchild_that_holds_the_pipes_is_not_waited_for_and_ends(host, watch):
    ending = host.run([trouble(), "pipe-holder", watch.path])
    assert (ending.end, ending.exit_status, ending.stdout) == (End.EXITED, 0, b"done\n")
    assert duration_s(ending) < 5
    assert watch.gone(0.1)
    assert ending.notes == ("1 process(es) that it left behind were killed",)


@pytest.mark.battery("E04")
def test_e04_a_daemon_in_a_session_of_its_own_ends_with_its_call(host, watch):
    ending = host.run([trouble(), "daemon", watch.path, "3"])
    assert (ending.end, ending.exit_status) == (End.EXITED, 3)
    assert watch.gone(0.1)


@pytest.mark.battery("E10")
def test_e10_cancelling_ends_the_whole_tree(host, watch, place):
    button = pressed_after(watch, 2, place)
    ending = host.run([trouble(), "daemon-and-hang", watch.path], cancel_at=button)
    assert (ending.end, ending.exit_status) == (End.CANCELLED, None)
    assert duration_s(ending) < 5
    assert watch.gone(0.1)


def test_a_call_in_company_ends_as_others_do(new_host, watch, place):
    made = new_host(in_company=True)
    assert made.run([trouble(), "exit", "3"]).exit_status == 3
    assert made.run([trouble(), "echo"], stdin=b"y" * 100_000).stdout == b"y" * 100_000
    assert made.run([trouble(), "exit", "5", "x" * 100_000]).exit_status == 5
    ending = made.run([trouble(), "hang", watch.path], cancel_at=pressed_after(watch, 1, place))
    assert ending.end is End.CANCELLED
    kill_spawner(made)
    assert made.run([trouble(), "exit", "4"]).exit_status == 4


@pytest.mark.parametrize("company", COMPANY)
def test_an_interrupted_call_is_stopped_and_leaves_no_descriptor(watch, company):
    code = (
        "import os, sys\n"
        "from tests.sandbox.hosting import Here\n"
        "host = Here(sys.argv[1], in_company=bool(int(sys.argv[4])))\n"
        "host.run([sys.argv[2], 'exit', '0'])\n"
        "host.sandbox._drop_spare()\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "try:\n"
        "    host.run([sys.argv[2], 'hang', sys.argv[3]])\n"
        "except KeyboardInterrupt:\n"
        "    host.sandbox._drop_spare()\n"
        "    host.sandbox.let_go()\n"  # what it keeps for later calls
        "    print('interrupted', len(os.listdir('/proc/self/fd')) - before, flush=True)\n"
        "print(host.run([sys.argv[2], 'exit', '3']).exit_status, flush=True)\n"
        "sys.stdin.read()\n"
        "host.close()\n"
    )
    command = [sys.executable, "-c", code, spawner(), trouble(), watch.path, str(int(company))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        watch.came()
        ran.send_signal(signal.SIGINT)
        word, left = ran.stdout.readline().split()
        assert word == "interrupted"
        assert int(left) <= 0
        assert watch.gone(WAIT_S)
        assert ran.stdout.readline() == "3\n"


def test_a_call_that_was_cancelled_before_starts_nothing(here):
    cancel = Cancel()
    cancel.set()
    ending = here.sandbox.run(start_of(request_of([trouble(), "exit", "0"])), cancel)
    cancel.close()
    assert (ending.end, ending.runs) == (End.CANCELLED, ())


# -- input and output ---------------------------------------------------------------------------------------


@pytest.mark.battery("F03")
def test_f03_a_program_that_writes_a_megabyte_before_it_reads_one_does_not_stand_still(host):
    sent = os.urandom(1 << 20)
    ending = host.run([trouble(), "out-first", "16"], stdin=sent)
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)
    assert ending.stdout == b"o" * (1 << 20) + sent


@pytest.mark.battery("F04")
@pytest.mark.parametrize("what", [["close-stdin"], ["exit", "0"]])
def test_f04_a_program_that_reads_nothing_ends_as_it_ends(host, what):
    ending = host.run([trouble(), *what], stdin=b"x" * (1 << 20))
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)


@pytest.mark.battery("F01", "F02")
@pytest.mark.parametrize("what", ["flood-out", "flood-err", "flood-both"])
def test_f01_f02_output_over_its_cap_stops_the_program(host, what):
    ending = host.run([trouble(), what], limits={"stdout_bytes_max": 100_000, "stderr_bytes_max": 50_000})
    assert (ending.end, ending.exit_status) == (End.TOO_LARGE, None)
    assert len(ending.stdout) <= 100_000
    assert len(ending.stderr) <= 50_000
    assert ending.stdout_bytes > 100_000 or ending.stderr_bytes > 50_000
    # What came after the cap was passed is what pipes hold, not what it could have written.
    assert ending.stdout_bytes + ending.stderr_bytes < 1 << 20
    assert duration_s(ending) < 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others do not keep long blocks")
def test_a_host_does_not_keep_the_memory_of_long_output():
    code = (
        "import os\n"
        "from toolcrib.sandbox import _kernel\n"
        "def held(): return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')\n"
        "del (long := [bytes(8 << 20)])[:]\n"  # the C library learns to keep as much
        "before = held()\n"
        "long.append(b'x' * (4 << 20))\n"
        "del long[:]\n"
        "kept = held() - before\n"
        "_kernel.keep_no_long_blocks()\n"
        "long.append(b'x' * (4 << 20))\n"
        "del long[:]\n"
        "print(kept, held() - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    left_alone, told = map(int, ran.stdout.split())
    assert told < 1 << 20 <= left_alone


def test_output_of_exactly_the_cap_is_whole(host):
    ending = host.run([trouble(), "echo"], stdin=b"x" * 70_000, limits={"stdout_bytes_max": 70_000})
    assert (ending.end, len(ending.stdout)) == (End.EXITED, 70_000)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 16_383, 16_384, 16_385, 65_536, 65_537, 300_000])
def test_input_and_output_of_any_length_arrive_whole(host, size):
    """By the request and the report, by pipes, or one of each: 4 KiB and 16 KiB are the limits."""
    sent = os.urandom(size)
    ending = host.run([trouble(), "echo"], stdin=sent)
    assert (ending.end, ending.exit_status, ending.stdout, ending.stdout_bytes) == (End.EXITED, 0, sent, size)
    assert (ending.stderr, ending.stderr_bytes) == (b"", 0)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (8192, 8192), (16_384, 1), (1, 16_384), (60_000, 60_000)])
def test_what_goes_to_stdout_and_to_stderr_is_told_apart(host, sizes):
    script = f"head -c {sizes[0]} /dev/zero | tr '\\0' o; head -c {sizes[1]} /dev/zero | tr '\\0' e >&2"
    ending = host.run(["/bin/sh", "-c", script], env={"PATH": "/usr/bin:/bin"})
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)
    assert (ending.stdout, ending.stderr) == (b"o" * sizes[0], b"e" * sizes[1])


@pytest.mark.parametrize("limit", ["stdout_bytes_max", "stderr_bytes_max"])
def test_little_output_that_is_too_much_is_cut_and_says_so(host, limit):
    argv = ["/bin/sh", "-c", "printf 0123456789; printf 0123456789 >&2"]
    ending = host.run(argv, limits={limit: 4})
    kept = (b"0123", b"0123456789") if limit == "stdout_bytes_max" else (b"0123456789", b"6789")
    assert (ending.end, ending.exit_status, ending.stdout, ending.stderr) == (End.TOO_LARGE, None, *kept)
    assert (ending.stdout_bytes, ending.stderr_bytes) == (10, 10)


def test_a_program_that_takes_its_time_loses_none_of_what_it_wrote_before_and_after(host):
    script = "printf early; printf warned >&2; sleep 0.3; printf late"
    ending = host.run(["/bin/sh", "-c", script], env={"PATH": "/usr/bin:/bin"})
    assert (ending.end, ending.stdout, ending.stderr) == (End.EXITED, b"earlylate", b"warned")


def test_a_quick_flood_is_read_before_its_program_stands_still(host):
    ending = host.run([trouble(), "out-first", "4"], stdin=b"", limits={"timeout_s": 10.0})
    assert (ending.end, len(ending.stdout)) == (End.EXITED, 4 * 65_536)
    assert duration_s(ending) < 5


def test_a_limit_that_is_larger_than_all_memory_does_not_deny_that_a_tool_ran(host):
    ending = host.run([trouble(), "out-first", "40"], limits={"stdout_bytes_max": 1 << 46})
    assert (ending.end, ending.exit_status, len(ending.stdout)) == (End.EXITED, 0, 40 * 65_536)


@pytest.mark.parametrize(("count", "size"), [(3, 5), (16, 1000), (15, 4096), (40, 4096)])
def test_output_in_packets_arrives_whole(host, count, size):
    """With the report, in pipes that come with it, and in pipes that were handed over."""
    ending = host.run([trouble(), "packets", str(count), str(size)])
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)
    assert ending.stdout == b"p" * (count * size)


def test_attack_a_tool_takes_back_what_it_wrote_while_the_host_is_about_to_read_it(host, watch):
    """The host would wait for it, and hear nothing else: no stop, and no report."""
    until = time.monotonic() + WAIT_S
    argv = [trouble(), "steal", "100000", watch.path]
    ending = host.run(argv, cancel_s=4.0, limits={"timeout_s": 15.0})
    assert (ending.end, watch.gone(0.1)) == (End.CANCELLED, True)
    assert time.monotonic() < until


@needs_root
def test_attack_a_tool_has_so_many_descriptors_under_way_that_no_pipe_can_be_handed_over():
    """It would be told that nobody reads, and its result would lack what it wrote."""
    with Elsewhere(spawner(), uid=ALONE, open_files=512) as host:
        ending = host.run([trouble(), "descriptors"])
        assert (ending.end, ending.exit_status, ending.stdout) == (End.EXITED, 0, b"late")


ALONE = 50_000 + os.getpid() % 10_000
"""Whose descriptors under way are those of one test: the tests beside it would have no way back either."""

UNDER_WAY = """
import array, errno, os, resource, socket, sys, threading
from tests.sandbox.hosting import Here, request_of, start_of
from toolcrib.sandbox import NEVER

binary, base, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
host, ends, endings = Here(binary, base), [], []
door = os.path.join(base, "door")
os.mkfifo(door)

def run():
    argv = ["/bin/sh", "-c", 'read _ < "$0"; exec "$@"', door, *sys.argv[4:]]
    endings.append(host.sandbox.run(start_of(request_of(argv)), NEVER))

def are_too_many():
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))]
    for _ in range(16):
        ends.extend(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            ends[-1].sendmsg([b"x"], rights)
        except OSError as error:
            return error.errno == errno.ETOOMANYREFS
    return False

running = threading.Thread(target=run)
running.start()
with open(door, "w") as opened:  # once the tool waits
    assert are_too_many()
    opened.write("go\\n")
running.join()
(ending,) = endings
for end in ends:
    end.close()
host.close()
sys.stdout.buffer.write(b"%s %s;" % (ending.end.value.encode(), str(ending.exit_status).encode()))
sys.stdout.buffer.write(ending.stdout + b";" + ending.stderr)
"""


@needs_root
@pytest.mark.parametrize(
    ("argv", "stdout", "stderr"),
    [
        (["{trouble}", "out-first", "1"], b"o" * 65_536, b""),
        (["{trouble}", "packets", "16", "4000"], b"p" * 64_000, b""),
        (
            ["/bin/sh", "-c", "printf %040000d 1; printf %050000d 2 >&2"],
            b"0" * 39_999 + b"1",
            b"0" * 49_999 + b"2",
        ),
        (
            ["/bin/sh", "-c", "printf %010000d 1; printf %010000d 2 >&2"],
            b"0" * 9_999 + b"1",
            b"0" * 9_999 + b"2",
        ),
        (["/bin/sh", "-c", "printf %0300000d 1"], b"0" * 299_999 + b"1", b""),
        (["/bin/sh", "-c", "printf %0300000d 1 >&2; echo 2"], b"2\n", b"0" * 299_999 + b"1"),
        (["{trouble}", "packets", "64", "4000"], b"p" * 256_000, b""),
    ],
)
def test_attack_others_have_so_many_descriptors_under_way_that_long_output_has_no_way_back(
    place, argv, stdout, stderr
):
    """All of it comes in pieces instead: a tool that has ended must not read as lost, and one that has not,
    because its pipe is full, must not wait for its deadline."""
    argv = [part.format(trouble=trouble()) for part in argv]
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_WAY, spawner(), str(place), str(ALONE), *argv],
        cwd=ROOT, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout == b"exited 0;" + stdout + b";" + stderr, ran.stderr


@needs_root
def test_attack_a_flood_goes_on_where_no_pipe_can_be_handed_over(place):
    """It is stopped at its limit all the same, and not at its deadline."""
    flood = "head -c 100000000 /dev/zero"
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_WAY, spawner(), str(place), str(ALONE), "/bin/sh", "-c", flood],
        cwd=ROOT, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout.partition(b";")[0] == b"too_large None", ran.stderr


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize("argv", [["pause", "10000"], ["out-first", "1"]])
def test_a_host_without_a_descriptor_for_what_a_tool_writes_says_so_and_goes_on(argv, company):
    """Of a slow tool the pipes come while it runs, of long output with the report."""
    code = (
        "import os, resource, sys\n"
        "from tests.sandbox.hosting import Here, request_of, start_of\n"
        "from toolcrib.sandbox import NEVER\n"
        "company = bool(int(sys.argv[2]))\n"
        "host, taken = Here(sys.argv[1], in_company=company), []\n"
        "start = start_of(request_of(sys.argv[3:]))\n"
        "host.sandbox.run(start_of(request_of([sys.argv[3], 'exit', '0'])), NEVER)\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
        "try:\n"
        "    while True: taken.append(os.dup(0))\n"
        "except OSError:\n"
        "    for _ in range(2 if company else 0): os.close(taken.pop())\n"  # for the line, if none was made
        "ending = host.sandbox.run(start, NEVER)\n"
        "for fd in taken: os.close(fd)\n"
        "after = host.run([sys.argv[3], 'exit', '3'])\n"
        "print(ending.end.value, ending.reason, ending.hint, after.exit_status)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, spawner(), str(int(company)), trouble(), *argv],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    hint = "raise the limit of open files (ulimit -n)"
    assert ran.stdout == f"lost no descriptor was left for what it wrote {hint} 3\n", ran.stderr


# -- the process that is the tool ---------------------------------------------------------------------------


def tool_of(host: Here) -> tuple[int, int]:
    """The tool's process, or the one that is to become it, and its supervisor."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        connection = host.sandbox._connection
        for supervisor in below(connection.pid) if connection is not None else ():
            for pid in below(supervisor):
                return pid, supervisor
    raise AssertionError("there is none")


def below(pid: int) -> list[int]:
    with suppress(OSError):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
        return [int(part) for part in found.split()]
    return []


def state_of(pid: int) -> str:
    """Its letter in /proc; X where it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return "X"


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "ZX"


def supervisors_alive(spawner: int) -> set[int]:
    """By all processes: the kernel's list of children may miss some while others end."""
    every = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in every if is_supervisor(pid, spawner) and is_alive(pid)}


def is_supervisor(pid: int, spawner: int) -> bool:
    """What a tool started becomes the spawner's child, too, when its supervisor is killed."""
    with suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")
        return name.endswith("(tw-supervisor") and int(rest.split()[1]) == spawner
    return False


def are_gone(pids: set[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def marking(host: Here, mark: Path, *, before: int = 0) -> Start:
    """What makes a mark, after so many of its kind that did and are over."""
    argv = [trouble(), "write", str(mark)]
    for _ in range(before):
        assert host.run(argv).exit_status == 0
        mark.unlink()
    return start_of(request_of(argv))


def test_attack_somebody_outside_who_holds_the_pipes_of_a_call_and_writes_on(new_host, place):
    """It holds up nobody, and no later call shows what it wrote."""
    host = new_host()
    door = place / "door"
    os.mkfifo(door)
    is_over = threading.Event()

    def flood(stdout: int) -> None:
        with open(stdout, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
            while True:
                pipe.write(b"x" * 1000)
        is_over.set()

    argv = ["/bin/sh", "-c", f"read _ < {door}"]
    running = Background(host.sandbox.run, start_of(request_of(argv)), NEVER)
    with open(door, "w", encoding="ascii") as opened:  # once the tool waits
        stdout = os.open(f"/proc/{tool_of(host)[0]}/fd/1", os.O_WRONLY)
        threading.Thread(target=flood, args=(stdout,), daemon=True).start()
        opened.write("go\n")
    assert running.ending(WAIT_S).end in (End.EXITED, End.TOO_LARGE)
    assert is_over.wait(WAIT_S), "somebody can still read what it writes"
    for number in range(3):
        said = host.run([trouble(), "say", str(number)])
        assert (said.end, said.stdout) == (End.EXITED, str(number).encode("ascii"))


def test_attack_whoever_watches_a_tool_is_killed_before_it_is_tied_to_them(new_host):
    """Stopped at first sight, so that it often is not yet; nobody would end it, or keep it to its limits."""
    for _ in range(20):
        host = new_host()
        running = Background(host.sandbox.run, start_of(request_of(["/bin/sleep", "60"])), NEVER)
        held, supervisor = tool_of(host)
        connection = host.sandbox._connection
        assert connection is not None
        os.kill(held, signal.SIGSTOP)
        for pid in (connection.pid, supervisor):
            os.kill(pid, signal.SIGKILL)
        assert until(partial(are_gone, {supervisor})), "it survives"
        with suppress(ProcessLookupError):
            os.kill(held, signal.SIGCONT)
        assert until(partial(are_gone, {held})), "it runs, and nobody watches it"
        assert running.ending(WAIT_S).end is End.LOST


@pytest.mark.parametrize(
    ("most", "stdin", "reason"),
    [
        (7, b"", "the spawner hung up"),
        (8, b"", "descriptors: Too many open files"),
        (8, bytes(5000), "the spawner refused the request: Too many open files"),
    ],
)
def test_a_supervisor_without_descriptors_loses_no_call(new_host, place, most, stdin, reason):
    """Seven are its own. With none for the control socket it cannot answer, and nothing was started."""
    starved, mark = place / "starved", place / "mark"
    starved.write_text(f"#!/bin/sh\nulimit -n {most}\nexec {spawner()}\n", encoding="ascii")
    starved.chmod(0o755)
    host = new_host(str(starved))
    start = start_of(request_of([trouble(), "write", str(mark)], stdin=stdin))
    ending = host.sandbox.run(start, NEVER)
    assert (ending.end, ending.reason, mark.exists()) == (End.NOT_STARTED, reason, False)


def test_a_call_that_nobody_took_is_tried_again_and_runs_once(new_host, place):
    """The first spawner's supervisors have no room for the request; the next one's have."""
    host, mark = new_host(), place / "mark"
    host.run([trouble(), "exit", "0"])
    first = host.sandbox._connection
    for pid in (stop_spawner(host), *below(first.pid)):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (7, 7))
    os.kill(first.pid, signal.SIGCONT)
    argv = ["/bin/sh", "-c", f"echo ran >> {mark}"]
    ending = host.sandbox.run(start_of(request_of(argv)), NEVER)
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)
    assert mark.read_text(encoding="ascii") == "ran\n"
    assert host.sandbox._connection is not first


@pytest.mark.parametrize("instead", ["true", 'echo x > "$TMPDIR"', 'ln -s / "$TMPDIR"'])
def test_attack_a_tool_takes_its_scratch_folder_away_and_the_next_call_has_none(new_host, instead):
    """Where nothing but the kernel's permissions keeps it from that."""
    host = new_host()
    for _ in range(2):
        removed = host.run(["/bin/sh", "-c", f'rmdir "$TMPDIR" && {instead}'])
        assert (removed.end, removed.exit_status, removed.stderr) == (End.EXITED, 0, b"")
        later = host.run(["/bin/sh", "-c", 'test ! -h "$TMPDIR" && echo x > "$TMPDIR/file"'])
        assert (later.end, later.exit_status, later.stderr) == (End.EXITED, 0, b"")
    folder = host.sandbox._scratch.folder
    host.close()
    assert not os.path.lexists(folder)


@pytest.mark.parametrize("company", COMPANY)
def test_attack_a_copy_of_the_host_keeps_the_tool_of_an_interrupted_call_running(place, watch, company):
    """The copy has the control socket as well: that the host closes its own tells nobody."""
    code = (
        "import os, signal, sys\n"
        "from tests.sandbox.hosting import Here, request_of, start_of\n"
        "from toolcrib.sandbox import NEVER\n"
        "company = bool(int(sys.argv[4]))\n"
        "host = Here(sys.argv[1], in_company=company)\n"
        "def copied(*_):\n"
        "    copy = os.fork()\n"
        "    if copy == 0:\n"
        "        signal.alarm(60)\n"
        "        signal.pause()\n"
        "    print(copy, flush=True)\n"
        "start = start_of(request_of([sys.argv[2], 'hang', sys.argv[3]]))\n"
        "signal.signal(signal.SIGUSR1, copied)\n"
        "try:\n"
        "    host.sandbox.run(start, NEVER)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "sys.stdin.read()\n"
        "host.close()\n"
    )
    command = [sys.executable, "-c", code, spawner(), trouble(), watch.path, str(int(company))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        watch.came()
        ran.send_signal(signal.SIGUSR1)
        copy = int(ran.stdout.readline())
        try:
            ran.send_signal(signal.SIGINT)
            assert ran.stdout.readline() == "interrupted\n"
            assert watch.gone(WAIT_S)
            assert is_alive(copy)
            assert ran.poll() is None
        finally:
            os.kill(copy, signal.SIGKILL)


def test_arguments_of_a_megabyte_arrive(host):
    ending = host.run([trouble(), "length", *["a" * 65_536] * 16])
    assert (ending.end, ending.stdout) == (End.EXITED, b"16 1048576\n")


def test_arguments_that_the_kernel_refuses_are_not_started(host):
    ending = host.run([trouble(), "length", "a" * 140_000])
    assert (ending.end, ending.reason) == (End.NOT_STARTED, "Argument list too long")
    assert host.run([trouble(), "length", "a\0b"]).reason == "embedded null byte"


def test_the_environment_is_exactly_what_was_handed_over(host):
    ending = host.run([trouble(), "environment"], env={"B": "2=3", "A": "", "TMPDIR": ""})
    first, second, scratch = ending.stdout.decode("ascii").splitlines()
    assert (first, second) == ("B=2=3", "A=")
    assert scratch.startswith("TMPDIR=/")
    assert host.run([trouble(), "environment"], env={}).stdout == b""


def test_a_program_starts_in_a_clean_state(host):
    ending = host.run([trouble(), "state"], cwd="/usr", filter=True, rlimits=[[4, 0]])
    assert ending.exit_status == 0
    found = ending.stdout.decode("ascii").strip()
    assert "blocked=0 ignored=0 umask=022 group=1 nnp=1 cwd=/usr" in found
    assert found.endswith("fds=0,1,2,")


# -- limits -------------------------------------------------------------------------------------------------


def test_memory_over_the_limit_stops_the_program(host):
    ending = host.run([trouble(), "hog", "200"], limits={"memory_bytes_max": 64 << 20})
    assert (ending.end, ending.exit_status) == (End.OVER_LIMIT, None)
    assert ending.reason == f"its processes took more than {64 << 20} bytes of memory"
    assert duration_s(ending) < 5


def test_memory_that_processes_share_is_counted_once(host):
    ending = host.run([trouble(), "share", "60"], limits={"memory_bytes_max": 100 << 20})
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)


@pytest.mark.parametrize("what", ["8", "deep"])
def test_scratch_space_over_the_limit_stops_the_program(host, what):
    ending = host.run([trouble(), "fill", what], limits={"scratch_bytes_max": 4 << 20})
    assert (ending.end, ending.reason) == (
        End.OVER_LIMIT,
        f"its temporary files took more than {4 << 20} bytes",
    )


@needs_root
def test_files_hidden_in_a_closed_folder_count_as_too_much():
    with Elsewhere(spawner(), uid=NOBODY) as host:
        ending = host.run([trouble(), "fill", "hidden"], limits={"scratch_bytes_max": 4 << 20})
        assert ending.end is End.OVER_LIMIT
        ending = host.run([trouble(), "exit", "0"])
        assert ending.exit_status == 0


@pytest.mark.parametrize("kind", ["bomb", "bomb-of-sessions", "late-bomb"])
def test_a_fork_bomb_is_stopped_and_all_of_it_is_gone(host, watch, kind):
    ending = host.run([trouble(), kind, watch.path], limits={"processes_max": 32})
    assert (ending.end, ending.reason) == (End.OVER_LIMIT, "it had more than 32 processes")
    assert duration_s(ending) < 3
    assert watch.gone(0.5)


@pytest.mark.parametrize("again", range(3))
def test_a_chain_of_processes_that_each_live_for_a_moment_is_ended(host, watch, again):
    ending = host.run([trouble(), "hop", watch.path])
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)
    assert duration_s(ending) < 3
    assert watch.gone(0.1)
    assert not [note for note in ending.notes if "could not" in note]


def test_threads_count_as_well(host):
    ending = host.run([trouble(), "threads"], limits={"processes_max": 32})
    assert (ending.end, ending.reason) == (End.OVER_LIMIT, "its processes had more than 256 threads")


def test_processes_that_have_ended_do_not_count(host):
    ending = host.run([trouble(), "short-lived", "200"], limits={"processes_max": 20})
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)


# -- many at once -------------------------------------------------------------------------------------------


def mix(watch: Watch, missing: str) -> list[tuple[dict, tuple]]:
    quick = {"timeout_s": 0.5}
    return [
        (request_of([trouble(), "exit", "0"]), (End.EXITED, 0)),
        (request_of([trouble(), "exit", "3"]), (End.EXITED, 3)),
        (request_of([trouble(), "signal", "11"]), (End.EXITED, 139)),
        (request_of([trouble(), "hang"], limits=quick), (End.TIMED_OUT, None)),
        (request_of([trouble(), "flood-both"], limits={"stdout_bytes_max": 9999}), (End.TOO_LARGE, None)),
        (request_of([trouble(), "daemon", watch.path, "3"]), (End.EXITED, 3)),
        (request_of([trouble(), "pipe-holder", watch.path]), (End.EXITED, 0)),
        (request_of([trouble(), "exit", "0"], stdin=b"x" * 200_000), (End.EXITED, 0)),
        (request_of([missing]), (End.NOT_STARTED, None)),
        (request_of([trouble(), "exit", "3"], filter=True), (End.EXITED, 3)),
    ]


def children() -> set[int]:
    """Processes that count this one as their parent, zombies among them."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):
            text = Path(f"/proc/self/task/{task}/children").read_text(encoding="ascii")
            found |= {int(pid) for pid in text.split()}
    return found


@pytest.mark.battery("E11", "L01")
def test_e11_l01_many_at_once_end_each_as_they_should_and_leave_nothing(new_host, watch, place):
    made = new_host()
    made.run([trouble(), "exit", "0"])
    cases = mix(watch, str(place / "missing"))
    made.together([request for request, _ in cases] * 2, at_once=4)
    before = (set(os.listdir("/proc/self/fd")), threading.active_count(), children())
    endings = made.together([request for request, _ in cases] * 30, at_once=32)
    wrong = [
        (expected, ending)
        for (_, expected), ending in zip(cases * 30, endings, strict=True)
        if (ending.end, ending.exit_status) != expected
    ]
    assert wrong == []
    assert watch.gone(0.1)
    after = (set(os.listdir("/proc/self/fd")), threading.active_count(), children())
    assert after[1:] == before[1:]
    # Slots that wait for the next call of their kind hold a descriptor or two each; nothing else may stay.
    assert len(after[0]) - len(before[0]) <= supervised.SLOTS_MAX
    made.close()
    assert len(os.listdir("/proc/self/fd")) < len(before[0])


@pytest.mark.battery("L07")
def test_l07_with_few_descriptors_calls_wait_for_their_turn_and_all_come_through(watch, place):
    with Elsewhere(spawner(), open_files=64) as host:
        endings = host.together([request_of([trouble(), "exit", "0"])] * 200)
        assert {(ending.end, ending.exit_status) for ending in endings} == {(End.EXITED, 0)}
        # Kinds of calls whose slots would hold more descriptors than there are.
        for number in range(40):
            limits = {"memory_bytes_max": (1 << 30) + number}
            ending = host.run([trouble(), "exit", "0"], readable=["/"], limits=limits)
            assert (ending.end, ending.exit_status) == (End.EXITED, 0)


def test_a_call_that_waits_for_its_turn_can_be_cancelled(watch):
    with Elsewhere(spawner(), open_files=64) as host:
        hanging = [request_of([trouble(), "hang"], limits={"timeout_s": 2})] * 4
        waiting = request_of([trouble(), "hang"], limits={"timeout_s": 2}, cancel_s=0.5)
        endings = host.together([*hanging, *[waiting] * 4])
        assert {ending.end for ending in endings} <= {End.TIMED_OUT, End.CANCELLED, End.NOT_STARTED}
        assert End.CANCELLED in {ending.end for ending in endings[4:]}


# -- the host, the spawner and the supervisor die -----------------------------------------------------------


@pytest.mark.battery("E06")
@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY, marks=needs_root)])
def test_e06_when_the_host_is_killed_every_process_is_gone_within_a_second(watch, uid):
    host = Elsewhere(spawner(), uid=uid)
    host.post({"together": [request_of([trouble(), "daemon-and-hang", watch.path])] * 20})
    watch.came(40)
    host.kill()
    assert watch.gone(1.0)


def supervisors(sandbox: supervised.Supervised) -> list[int]:
    assert sandbox._connection is not None
    return below(sandbox._connection.pid)


class Background:
    """A call that runs while the test does something to it."""

    def __init__(self, run: Callable[..., Ending], /, *args: object, **more: object) -> None:
        self._endings: list[Ending] = []
        self._thread = threading.Thread(target=lambda: self._endings.append(run(*args, **more)))
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return bool(self._endings)

    def ending(self, within_s: float = WAIT_S * 2) -> Ending:
        self._thread.join(within_s)
        assert self._endings, "it did not end"
        return self._endings[0]


@pytest.mark.parametrize("company", COMPANY)
def test_a_spawner_that_was_killed_is_started_anew_and_no_call_is_lost(new_host, company):
    made = new_host(in_company=company)
    assert made.run([trouble(), "exit", "0"]).exit_status == 0
    assert made.sandbox._connection is not None
    os.kill(made.sandbox._connection.pid, signal.SIGKILL)
    assert made.run([trouble(), "exit", "3"]).exit_status == 3
    made.close()


def stop_spawner(made: Here) -> int:
    """From now on it makes no more supervisors; its number."""
    assert made.sandbox._connection is not None
    pid = made.sandbox._connection.pid
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: is_stopped(pid))
    return pid


def kill_spawner(made: Here) -> None:
    """With its supervisors, and nobody at the other end of the socket any more."""
    spawner_pid = stop_spawner(made)
    all_of_it = {spawner_pid, *supervisors(made.sandbox)}
    os.kill(spawner_pid, signal.SIGKILL)
    assert until(partial(are_gone, all_of_it)), "it survives"


def test_a_spawner_that_was_killed_is_started_anew_by_the_first_call_that_needs_a_namespace(new_host, place):
    made = new_host()
    if not made.sandbox.probe().works("mount-namespace"):
        pytest.skip("there are no mount namespaces here; `toolcrib doctor` says how to allow them")
    kill_spawner(made)
    bound = [(str(place), str(place), True)]
    ending = made.run([trouble(), "exit", "3"], binds=bound)
    assert (ending.end, ending.reason, ending.exit_status) == (End.EXITED, "", 3)


def test_a_spawner_that_was_killed_is_started_anew_by_a_program_that_stays(new_host):
    made = new_host()
    made.run([trouble(), "exit", "0"])
    kill_spawner(made)
    standing = made.sandbox.open(start_of(request_of(["/bin/cat"])))
    assert not isinstance(standing, Ending)
    os.write(standing.stdin, b"here")
    assert select.select([standing.stdout], [], [], WAIT_S)[0]
    assert (os.read(standing.stdout, 100), standing.ending) == (b"here", "")
    standing.close()
    kill_spawner(made)
    running, channel = service(made, ["channel"])
    channel.sendall(b"here")
    assert channel.recv(100) == b"here"
    running.kill()
    channel.close()


def test_a_spawner_that_was_killed_is_started_anew_by_the_probe(new_host):
    made = new_host()
    found = made.sandbox.probe()
    kill_spawner(made)
    assert made.sandbox.probe() == found


def test_a_program_that_is_no_spawner_answers_no_probe(new_host):
    assert new_host("/bin/true").sandbox.probe().reason == "the spawner did not answer"


def test_a_call_outlives_the_spawner_and_others_do_not_wait_for_it(new_host, watch):
    made = new_host()
    running = Background(made.run, [trouble(), "hang", watch.path], limits={"timeout_s": 3.0})
    watch.came()
    assert made.sandbox._connection is not None
    os.kill(made.sandbox._connection.pid, signal.SIGKILL)
    other = made.run([trouble(), "exit", "3"])
    assert (other.end, other.exit_status) == (End.EXITED, 3)
    assert duration_s(other) < 1
    assert not running.is_over
    assert running.ending().end is End.TIMED_OUT
    assert watch.gone(0.1)
    made.close()


@needs_root
def test_as_root_the_supervisor_of_a_long_call_goes_first_and_its_tool_does_not(new_host, watch):
    """Attack: hundreds of processes that all want to run, so that whoever should stop them waits."""
    act = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    if subprocess.run([sys.executable, "-c", act], capture_output=True, check=False).returncode:
        pytest.skip("nobody goes first here; a machine whose root has CAP_SYS_NICE would show it")
    made, cancel = new_host(), Cancel()
    running = Background(made.sandbox.run, start_of(request_of([trouble(), "hang", watch.path])), cancel)
    watch.came()
    first: list[int] = []

    def goes_first() -> bool:
        with suppress(OSError):
            policies = {pid: os.sched_getscheduler(pid) for pid in supervisors(made.sandbox)}
            first[:] = [
                pid for pid, policy in policies.items() if policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
            ]
        return bool(first)

    assert until(goes_first)
    assert len(first) == 1
    assert {os.sched_getscheduler(pid) for pid in below(first[0])} == {os.SCHED_OTHER}
    cancel.set()
    assert running.ending().end is End.CANCELLED
    cancel.close()


def test_a_call_whose_supervisor_is_killed_is_lost_and_its_daemons_are_gone(new_host, watch):
    made = new_host()
    made.run([trouble(), "exit", "0"])
    running = Background(made.run, [trouble(), "daemon-and-hang", watch.path])
    watch.came(2)
    for pid in supervisors(made.sandbox):
        os.kill(pid, signal.SIGKILL)
    ending = running.ending()
    assert (ending.end, ending.exit_status) == (End.LOST, None)
    assert watch.gone(1.0)
    assert made.run([trouble(), "exit", "3"]).exit_status == 3
    made.close()


def kill_all_of_ours(made: Here) -> None:
    """The spawner and its supervisors, so that none of them sees the others go."""
    spawner_pid = stop_spawner(made)
    for pid in (*supervisors(made.sandbox), spawner_pid):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY, marks=needs_root)])
@pytest.mark.parametrize("company", COMPANY)
def test_attack_the_spawner_and_all_supervisors_are_killed_and_a_daemon_lives_on(
    new_host, watch, uid, company
):
    made = new_host(in_company=company)
    other = Background(made.run, [trouble(), "exit", "0"])
    running = Background(made.run, [trouble(), "daemon-and-hang", watch.path], uid=uid)
    watch.came(2)
    other.ending()
    kill_all_of_ours(made)
    ending = running.ending()
    assert ending.end is End.LOST
    (note,) = ending.notes
    # The tool itself dies with its supervisor; it may be counted if that has not happened yet.
    assert note in {f"{n} process(es) that it left behind were killed" for n in (1, 2)}, ending
    assert watch.gone(0.1), "before the call has its answer"
    assert made.run([trouble(), "exit", "3"]).exit_status == 3


HIDES = """
import ctypes, os, resource, sys, time
fifo = os.open(sys.argv[1], os.O_WRONLY)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        try:
            resource.setrlimit(10, (0, 0))
            resource.prlimit(0, 10, (1, 1))
        except (OSError, ValueError):
            pass
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable
        ctypes.CDLL(None).prctl(15, b"tw-supervisor", 0, 0, 0)
        if os.fork() == 0:
            os.write(fifo, b"1")
            time.sleep(20)
        time.sleep(20)
    os._exit(0)
os.wait()
time.sleep(20)
"""


@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY, marks=needs_root)])
def test_attack_a_daemon_takes_its_mark_off_and_passes_for_a_supervisor(new_host, watch, uid):
    made = new_host()
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable
    running = Background(made.run, [python, "-I", "-S", "-c", HIDES, watch.path], filter=True, uid=uid)
    watch.came(1)
    kill_all_of_ours(made)
    ending = running.ending()
    assert ending.end is End.LOST
    assert watch.gone(0.1), ending


def test_a_service_whose_spawner_and_supervisors_are_killed_leaves_nothing(new_host, watch):
    made = new_host()
    running, channel = service(made, ["daemon-and-hang", watch.path])
    watch.came(2)
    kill_all_of_ours(made)
    running.kill()
    channel.close()
    assert watch.gone(0.1)


@needs_root
def test_processes_that_cannot_be_ended_are_named(watch):
    """As root without the right to end what belongs to others."""
    trouble()
    with Elsewhere(spawner(), may_kill=False) as host:
        host.post(request_of([trouble(), "daemon-and-hang", watch.path], uid=NOBODY))
        watch.came(2)
        (spawner_pid,) = below(host.process.pid)
        for pid in (
            host.process.pid,
            spawner_pid,
        ):  # the host would wake the spawner, which ends what is left
            os.kill(pid, signal.SIGSTOP)
            assert until(partial(is_stopped, pid))
        while rest := supervisors_alive(spawner_pid):
            for pid in rest:
                os.kill(pid, signal.SIGKILL)
            assert until(partial(are_gone, rest))
        os.kill(spawner_pid, signal.SIGKILL)
        os.kill(host.process.pid, signal.SIGCONT)
        ending = host.ending()
        assert ending.end is End.LOST
        assert len(ending.notes) == 1, (ending, watch.gone(0))
        (note,) = ending.notes
        assert note.startswith("1 process(es) outlived the call and could not be ended: ")
        os.kill(int(note.rpartition(" ")[2]), signal.SIGKILL)
        assert watch.gone(1.0)


@needs_root
def test_a_tool_that_kills_its_supervisor_takes_its_daemons_along(new_host, watch):
    """Attack: without scoped signals (Linux before 6.12) a tool of the same user can signal us."""
    made = new_host()
    ending = made.run([trouble(), "kill-parent", watch.path])
    assert ending.end is End.LOST
    assert watch.gone(1.0)
    assert made.run([trouble(), "exit", "3"]).exit_status == 3
    made.close()


def test_attack_a_tool_that_stops_its_supervisor_is_kept_to_no_limit(new_host, watch):
    """Without scoped signals, as above. Its supervisor is killed for it, and it goes with its daemons."""
    made = new_host()
    ending = made.run([trouble(), "stop-parent", watch.path])
    assert ending.end is End.LOST
    assert duration_s(ending) < WAIT_S / 2, "before its time is up"
    assert watch.gone(1.0)
    assert made.run([trouble(), "exit", "3"]).exit_status == 3


def test_attack_a_tool_that_stops_the_spawner_as_well_outlives_its_time(new_host, watch):
    made = new_host()
    ending = made.run([trouble(), "stop-spawner", watch.path], limits={"timeout_s": 1.0})
    assert (ending.end, ending.reason) == (End.LOST, "the spawner does not answer")
    assert watch.gone(1.0)
    assert made.run([trouble(), "exit", "3"]).exit_status == 3


@pytest.mark.parametrize("asks", ["a call that needs a namespace", "the probe"])
def test_attack_the_spawner_is_stopped_and_nobody_is_left_who_answers(new_host, place, asks):
    """It goes on once that was noticed, for those too that start no tool before somebody answers."""
    made = new_host()
    found = made.sandbox.probe()
    if not found.works("mount-namespace"):
        pytest.skip("there are no mount namespaces here; `toolcrib doctor` says how to allow them")
    stop_spawner(made)
    killed = set(supervisors(made.sandbox))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert until(partial(are_gone, killed))
    if asks == "the probe":
        assert made.sandbox.probe().reason == "the spawner did not answer"
        assert made.sandbox.probe() == found
    else:
        bound = [(str(place), str(place), True)]
        ending = made.run([trouble(), "exit", "3"], binds=bound)
        assert (ending.end, ending.reason) == (
            End.UNAVAILABLE,
            "no mount namespace: the spawner did not answer",
        )
        assert made.run([trouble(), "exit", "3"], binds=bound).exit_status == 3


def test_the_scratch_folder_of_a_lost_call_is_nobodys(new_host, watch):
    made = new_host()
    seen = made.run([trouble(), "environment"]).stdout
    running = Background(made.run, [trouble(), "hang", watch.path])
    watch.came()
    for pid in supervisors(made.sandbox):
        os.kill(pid, signal.SIGKILL)
    assert running.ending().end is End.LOST
    assert made.run([trouble(), "environment"]).stdout != seen
    made.close()


def test_a_copy_of_the_host_made_by_fork_has_a_spawner_of_its_own(here):
    assert here.run([trouble(), "exit", "0"]).exit_status == 0
    first = here.sandbox._connection.pid
    stop = threading.Event()

    def keep_calling() -> None:
        while not stop.is_set():
            here.run([trouble(), "exit", "0"])

    threads = [threading.Thread(target=keep_calling) for _ in range(4)]
    for thread in threads:
        thread.start()
    copies = []
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            status = 99
            signal.alarm(60)  # it must not be waited for without end
            with suppress(BaseException):
                ending = here.run([trouble(), "exit", "7"])
                status = ending.exit_status if here.sandbox._connection.pid != first else 98
                here.close()
            os._exit(status)
        copies.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in copies]
    stop.set()
    for thread in threads:
        thread.join()
    assert ends == [7] * 5
    assert here.run([trouble(), "exit", "3"]).exit_status == 3


def test_a_level_that_was_closed_starts_nothing(new_host):
    made = new_host()
    made.run([trouble(), "exit", "0"])
    assert made.sandbox._connection is not None
    pid = made.sandbox._connection.pid
    made.close()
    assert made.run([trouble(), "exit", "0"]).end is End.UNAVAILABLE
    assert not os.path.exists(f"/proc/{pid}")


def test_without_the_spawner_calls_are_unavailable_and_say_what_to_do(new_host, place):
    made = new_host(str(place / "missing"))
    ending = made.run([trouble(), "exit", "0"])
    assert (ending.end, ending.reason) == (End.NOT_STARTED, "No such file or directory")
    assert made.sandbox.probe().reason == "the spawner cannot be started: No such file or directory"
    made.close()


# -- layers -------------------------------------------------------------------------------------------------


def test_every_layer_is_found_by_using_it(here):
    probed = here.sandbox.probe()
    assert probed.reason == ""
    assert set(probed.errors) <= set(supervised.PROBES)
    assert probed.works("subreaper")
    assert probed.works("pidfd")


def test_landlock_and_the_filter_hold(host, place):
    secret = place / "secret"
    secret.write_bytes(b"x")
    secret.chmod(0o644)
    readable = [str(Path(trouble()).parent), "/dev/null"]
    ending = host.run([trouble(), "read", str(secret)], readable=readable, filter=True)
    assert (ending.exit_status, ending.stdout) == (1, b"EACCES\n")
    assert host.run([trouble(), "read", str(secret)], filter=True).exit_status == 0


@needs_root
def test_as_root_a_tool_can_be_another_user_without_any_capability(here, place):
    secret = place / "secret"
    secret.write_bytes(b"x")
    secret.chmod(0o600)
    assert b" uid=65534 " in here.run([trouble(), "state"], uid=NOBODY).stdout
    assert here.run([trouble(), "read", str(secret)], uid=NOBODY).stdout == b"EACCES\n"
    # Attack: root without capabilities still owns root's files, but passes no other barrier.
    os.chown(secret, NOBODY, NOBODY)
    assert here.run([trouble(), "read", str(secret)]).stdout == b"EACCES\n"


@pytest.fixture
def repository(host, place: Path) -> Path:
    if isinstance(host, Here):
        works = host.sandbox.probe().works("mount-namespace")
    else:
        works = "mount-namespace" not in host.ask({"probe": True})["errors"]
    if not works:
        pytest.skip("there are no mount namespaces here; `toolcrib doctor` says how to allow them")
    (place / "hooks").mkdir(mode=0o777)
    for name in ("hooks/pre-commit", "config", "file"):
        (place / name).write_bytes(b"mine\n")
        (place / name).chmod(0o666)
    for folder in (place, place / "hooks"):
        folder.chmod(0o777)
    return place


def binds(place: Path) -> list[tuple[str, str, bool]]:
    return [(str(place / name), str(place / name), True) for name in ("config", "hooks", "later")]


def test_what_is_bound_read_only_stays_so_and_the_rest_is_writable(host, repository):
    for path, status in (("file", 0), ("new", 0), ("config", 1), ("hooks/pre-commit", 1), ("hooks/new", 1)):
        ending = host.run([trouble(), "write", str(repository / path)], binds=binds(repository))
        assert (path, ending.exit_status) == (path, status), ending
    ending = host.run(
        [trouble(), "rename", str(repository / "file"), str(repository / "config")], binds=binds(repository)
    )
    assert (ending.exit_status, ending.stdout) == (1, b"EBUSY\n")


def test_a_protected_file_that_was_replaced_outside_is_still_protected(host, repository):
    """Attack, or just `git config`: a rename takes the mount away together with the old file."""
    write = [trouble(), "write", str(repository / "config")]
    assert host.run(write, binds=binds(repository)).exit_status == 1
    (repository / "replacement").write_bytes(b"new\n")
    (repository / "replacement").chmod(0o666)
    (repository / "replacement").rename(repository / "config")
    ending = host.run(write, binds=binds(repository))
    assert (ending.end, ending.exit_status, ending.stdout) == (End.EXITED, 1, b"EROFS\n")


def test_a_protected_path_that_came_later_is_protected_from_then_on(host, repository):
    write = [trouble(), "write", str(repository / "later")]
    assert host.run([trouble(), "exit", "0"], binds=binds(repository)).exit_status == 0
    (repository / "later").write_bytes(b"")
    (repository / "later").chmod(0o666)
    assert host.run(write, binds=binds(repository)).stdout == b"EROFS\n"


@needs_root
def test_another_user_runs_although_what_is_protected_lies_where_only_root_may_look(here, repository):
    """As under sudo: root's own state, below a home that the project's owner cannot pass."""
    home = repository / "hooks"
    (home / "state").mkdir()
    bound = [(str(home / "state"), str(home / "state"), True)]
    assert here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY).exit_status == 3
    home.chmod(0o700)
    for _ in range(3):
        ending = here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY)
        assert (ending.exit_status, ending.reason) == (3, "")
    assert here.run([trouble(), "read", str(home / "state")], binds=bound, uid=NOBODY).stdout == b"EACCES\n"


@needs_root
def test_a_working_directory_that_is_closed_to_root_without_its_powers_says_who_may_enter_it(here, tmp_path):
    """As under sudo, where the interpreter lies in root's home and the project in that of its user."""
    os.chown(tmp_path, NOBODY, NOBODY)
    tmp_path.chmod(0o700)
    ending = here.run([trouble(), "exit", "3"], cwd=str(tmp_path), uid=NOBODY + 1)
    assert (ending.end, ending.reason) == (
        End.NOT_STARTED,
        f"working directory {tmp_path}: Permission denied",
    )
    assert "run as the folder's owner" in ending.hint


@needs_root
def test_a_folder_that_the_tool_itself_closed_hides_no_missing_mount(here, repository):
    """Attack: a tool closes a folder of its own above a protected file, so that nobody sees that the mount
    went away with a replaced file, and opens it again."""
    bound = [(str(repository / "hooks/pre-commit"), str(repository / "hooks/pre-commit"), True)]
    os.chown(repository / "hooks", NOBODY, NOBODY)
    assert here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY).exit_status == 3
    (repository / "hooks").chmod(0)
    ending = here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY)
    assert (ending.end, ending.exit_status) == (End.NOT_STARTED, None), ending


@needs_root
def test_a_folder_that_the_tool_itself_closed_hides_nothing_that_came_later(here, repository):
    """Attack: a tool closes a folder of its own in which a protected file is missing, so that nobody sees
    that it came and is not covered, and opens it again."""
    bound = [(str(repository / "hooks/later"), str(repository / "hooks/later"), True)]
    os.chown(repository / "hooks", NOBODY, NOBODY)
    assert here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY).exit_status == 3
    (repository / "hooks/later").write_bytes(b"")
    (repository / "hooks").chmod(0)
    ending = here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY)
    assert (ending.end, ending.exit_status) == (End.NOT_STARTED, None), ending


@needs_root
def test_another_user_runs_although_something_is_missing_where_only_root_may_look(here, repository):
    bound = [(str(repository / "hooks/later"), str(repository / "hooks/later"), True)]
    (repository / "hooks").chmod(0o700)
    assert here.run([trouble(), "exit", "3"], binds=bound, uid=NOBODY).exit_status == 3


def test_a_link_in_the_place_of_a_protected_path_is_refused(host, repository):
    """Attack: the mount lands on what the link names, and the link is replaced."""
    (repository / "config").unlink()
    (repository / "config").symlink_to(repository / "file")
    ending = host.run([trouble(), "exit", "0"], binds=binds(repository))
    assert ending.end is End.UNAVAILABLE
    assert str(repository / "config") in ending.reason


def test_a_program_runs_the_bytes_that_were_checked(host, place):
    """Attack: the file is swapped between the check and the start."""
    program = place / "program"
    content = Path(trouble()).read_bytes()
    program.write_bytes(b"swapped")
    program.chmod(0o755)
    ending = host.run([str(program), "exit", "5"], sealed=[(str(program), content)])
    assert (ending.end, ending.exit_status) == (End.EXITED, 5), ending


def test_a_script_and_the_files_it_reads_are_the_bytes_that_were_checked(host, repository):
    script, part = repository / "script", repository / "part"
    for path in (script, part):
        path.write_bytes(b"#!/bin/sh\necho swapped\n")
        path.chmod(0o755)
    sealed = [(str(script), b'#!/bin/sh\n. "$(dirname "$0")/part"\n'), (str(part), b"echo checked\n")]
    ending = host.run([str(script)], sealed=sealed, env={"PATH": "/usr/bin:/bin"})
    assert (ending.exit_status, ending.stdout) == (0, b"checked\n"), ending


@pytest.mark.parametrize("way", ["{place}/real", "real", "deep/../real"])
def test_a_script_below_a_link_is_the_bytes_that_were_checked(host, place, way):
    for folder in ("real", "deep"):
        (place / folder).mkdir(mode=0o755)
        (place / folder).chmod(0o755)
    (place / "link").symlink_to(way.format(place=place))
    script = place / "link" / "script"
    script.write_bytes(b"#!/bin/sh\necho swapped\n")
    script.chmod(0o755)
    sealed = [(str(script), b"#!/bin/sh\necho checked\n")]
    ending = host.run([str(script)], sealed=sealed, env={"PATH": "/usr/bin:/bin"})
    assert (ending.exit_status, ending.stdout) == (0, b"checked\n"), ending


def test_a_script_whose_file_is_replaced_while_it_starts_is_not_believed(here, place):
    """Attack: a rename takes our mount away between our look and the interpreter's."""
    if not here.sandbox.probe().works("mount-namespace"):
        pytest.skip("there are no mount namespaces here; `toolcrib doctor` says how to allow them")
    script, go = place / "script", place / "go"
    script.write_bytes(b"#!/bin/sh\necho other\n")
    script.chmod(0o755)
    os.mkfifo(go)
    sealed = [(str(script), b'#!/bin/sh\nread line < "$1"\necho checked\n')]
    for is_replaced in (False, True):
        running = Background(here.run, [str(script), str(go)], sealed=sealed)
        with open(go, "wb") as released:  # returns when the script reads
            if is_replaced:
                (place / "new").write_bytes(b"#!/bin/sh\necho other\n")
                (place / "new").rename(script)
            released.write(b"\n")
        ending = running.ending()
        if is_replaced:
            assert (ending.end, ending.reason) == (
                End.DENIED,
                "one of its files changed while it was started",
            )
        else:
            assert (ending.end, ending.stdout) == (End.EXITED, b"checked\n")


def test_a_protected_file_that_is_replaced_all_the_time_does_not_fail_calls(here, repository):
    stop, stays = threading.Event(), threading.Lock()

    def replace() -> None:
        while not stop.wait(0.02):
            with stays:
                (repository / "new").write_bytes(b"new\n")
                (repository / "new").rename(repository / "config")

    thread = threading.Thread(target=replace)
    thread.start()
    write = [trouble(), "write", str(repository / "config")]
    endings = []
    try:
        for number in range(40):
            with stays if number % 2 else nullcontext():
                endings.append(here.run(write, binds=binds(repository)))
    finally:
        stop.set()
        thread.join()
    assert {ending.end for ending in endings} == {End.EXITED}
    # Replaced after the tool started, the file is no longer covered: a gap that the documents name.
    assert {ending.exit_status for ending in endings[1::2]} == {1}


# -- the same call again and again: the spawner restricts the next process in advance ------------------------

OFTEN = 12
"""Enough that each of the waiting supervisors has served the same kind of call more than twice."""


def test_each_of_many_equal_calls_is_a_call_of_its_own(host):
    request = {"cwd": "/usr", "filter": True, "rlimits": [[4, 0]]}
    for number in range(OFTEN):
        ending = host.run([trouble(), "echo"], stdin=b"%d" % number, **request)
        assert (ending.exit_status, ending.stdout) == (0, b"%d" % number)
        env = {"N": str(number), "TMPDIR": ""}
        ending = host.run([trouble(), "environment"], env=env, **request)
        assert ending.stdout.startswith(b"N=%d\nTMPDIR=/" % number)
        found = host.run([trouble(), "state"], **request).stdout.decode("ascii").strip()
        assert "blocked=0 ignored=0 umask=022 group=1 nnp=1 cwd=/usr" in found
        assert found.endswith("fds=0,1,2,")


def test_a_slow_or_a_wordy_call_after_many_quick_ones_comes_through_whole(host):
    """After quick calls the next one's end is looked for, and its pipes are let go of while it runs."""
    sent = os.urandom(1 << 20)
    for what, stdin, stdout in (
        (["pause", "20"], b"", b"late"),
        (["out-first", "16"], sent, b"o" * (1 << 20) + sent),
        (["close-stdin"], sent, b""),
        (["close-output"], b"", b""),
    ):
        for _ in range(OFTEN):
            assert host.run([trouble(), "echo"], stdin=b"little").stdout == b"little"
        ending = host.run([trouble(), *what], stdin=stdin)
        assert (ending.end, ending.exit_status, ending.stdout) == (End.EXITED, 0, stdout)


def test_descriptors_made_ahead_are_one_calls_alone_and_go_with_the_level(new_host):
    made = new_host()
    made.run([trouble(), "echo"], stdin=b"little")
    made.sandbox._make_spare()  # as while a quick tool runs
    (spare,) = made.sandbox._spare
    # A copy of the host must not speak through the descriptors of the original.
    pid = os.fork()
    if pid == 0:
        os._exit(len(made.sandbox._spare))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert made.sandbox._spare == [spare]
    made.run([trouble(), "echo"], stdin=b"little")
    assert spare not in made.sandbox._spare
    made.close()
    assert made.sandbox._spare == []


FEW_FILES = """
import json, os, resource, sys
from tests.sandbox.hosting import Here

kind, tool, script, company = sys.argv[1:]
sealed = [(script, b"#!/bin/sh\\necho checked\\n")]
more = {"sealed": sealed, "env": {"PATH": "/usr/bin:/bin"}}
asked = ([script], more) if kind == "sealed" else ([tool, "echo"], {})
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
found = []
for room in range(24):
    before = set(os.listdir("/proc/self/fd"))
    host = Here(in_company=company == "True")
    host.run([tool, "echo"])
    most = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.dup(0)]
    while taken[-1] < most:
        taken.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + room, hard))
    ends = {host.run(asked[0], **asked[1]).end.value for _ in range(3)}
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in taken:
        os.close(fd)
    ends_later = host.run(asked[0], **asked[1]).end.value
    host.close()
    found.append([sorted(ends), ends_later, len(set(os.listdir("/proc/self/fd")) - before)])
print(json.dumps(found))
"""


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize("kind", ["plain", "sealed"])
def test_calls_for_which_no_descriptors_are_left_cost_none_and_spoil_no_later_call(place, kind, company):
    script = place / "script"
    script.write_bytes(b"#!/bin/sh\necho swapped\n")
    script.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", FEW_FILES, kind, trouble(), str(script), str(company)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found[0][0] == ["not_started"]
    assert found[-1][0] == ["exited"]
    assert [(later, left) for _, later, left in found] == [("exited", 0)] * len(found)


def test_restrictions_hold_in_each_of_many_equal_calls(host, place):
    secret = place / "secret"
    secret.write_bytes(b"x")
    secret.chmod(0o644)
    readable = [str(Path(trouble()).parent)]
    for _ in range(OFTEN):
        ending = host.run([trouble(), "read", str(secret)], readable=readable, filter=True)
        assert (ending.exit_status, ending.stdout) == (1, b"EACCES\n")
    for _ in range(OFTEN):
        assert host.run([trouble(), "read", str(secret)], filter=True).exit_status == 0


@needs_root
def test_each_of_many_equal_calls_is_the_other_user(here):
    for _ in range(OFTEN):
        assert b" uid=65534 " in here.run([trouble(), "state"], uid=NOBODY).stdout


def test_each_of_many_equal_calls_ends_as_it_ends(host, watch):
    def run(*argv: str) -> Ending:
        """Within its limit, unless the machine stood still."""
        act: Callable[[], Ending] = partial(host.run, [trouble(), *argv], limits={"timeout_s": 0.4})
        return timely(act, duration_s, 0.4)

    for number in range(OFTEN):
        assert run("exit", str(number)).exit_status == number
        ending = run("signal", "11")
        assert (ending.exit_status, ending.signal) == (139, 11)
    for _ in range(3):
        argv = [trouble(), "daemon-and-hang", watch.path]
        ending = in_time(0.65, host.run, argv, limits={"timeout_s": 0.4})
        assert ending.end is End.TIMED_OUT
        assert 0.4 <= duration_s(ending) <= 0.65
        assert watch.gone(0.1)


def test_a_program_that_is_gone_is_not_started_however_often_it_was(host, place):
    program = place / "program"
    shutil.copyfile(trouble(), program)
    program.chmod(0o755)
    moved = place / "moved"
    for _ in range(3):
        for _ in range(OFTEN):
            assert host.run([str(program), "exit", "3"]).exit_status == 3
        program.rename(moved)
        ending = host.run([str(program), "exit", "3"])
        assert (ending.end, ending.reason) == (End.NOT_STARTED, "No such file or directory")
        moved.rename(program)


def test_a_protected_file_replaced_after_many_equal_calls_is_still_protected(host, repository):
    write = [trouble(), "write", str(repository / "config")]
    for _ in range(3):
        for _ in range(OFTEN):
            assert host.run(write, binds=binds(repository)).stdout == b"EROFS\n"
        (repository / "replacement").write_bytes(b"new\n")
        (repository / "replacement").chmod(0o666)
        (repository / "replacement").rename(repository / "config")


def waiting(sandbox: supervised.Supervised) -> set[int]:
    """Processes that are restricted in advance."""
    found: set[int] = set()
    for pid in supervisors(sandbox):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            found |= {int(each) for each in text.split()}
    return found


def until(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold in a while."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.02)
    return True


def test_a_process_that_waits_may_be_killed_or_stopped_and_the_call_still_comes_through(new_host):
    made = new_host()
    signalled: set[int] = set()
    for number in (signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM):
        for _ in range(OFTEN):
            assert made.run([trouble(), "exit", "3"]).exit_status == 3
        assert until(lambda: bool(waiting(made.sandbox)))
        for pid in waiting(made.sandbox):
            os.kill(pid, number)
            signalled.add(pid)
        for _ in range(OFTEN):
            ending = made.run([trouble(), "state"])
            # A signal that was sent while it waited is the tool's when it starts; SIGKILL came before.
            assert ending.end is End.EXITED
            assert (ending.exit_status, ending.signal) in ((0, None), (128 + number, number))
        # Where there are several supervisors, one of them may have kept its own for a later call.
        assert until(lambda: signalled.isdisjoint(waiting(made.sandbox)))
        assert made.run([trouble(), "exit", "3"]).exit_status == 3
    made.close()


def test_attack_a_process_that_waits_is_stopped_and_outlives_its_call_with_its_supervisor(new_host, place):
    flags = ("-O1", "-static", "-pthread", "-DEMBRYO_WAIT_MS=500")
    made, mark = new_host(str(compiled("impatient-spawner", SPAWNER, flags))), place / "mark"
    for _ in range(3):  # the supervisor that takes the call may have none just then
        start = marking(made, mark, before=OFTEN)
        assert until(lambda: bool(waiting(made.sandbox)))
        stopped = waiting(made.sandbox)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        ending = made.sandbox.run(start, NEVER)
        assert until(partial(are_gone, stopped)), "it waits for ever"
        assert (ending.signal is None) == mark.exists(), "what was killed may have been the call"
        mark.unlink(missing_ok=True)


def test_processes_that_wait_are_gone_after_a_while_and_with_the_level(new_host):
    made = new_host()
    for _ in range(OFTEN):
        made.run([trouble(), "exit", "0"])
    assert until(lambda: bool(waiting(made.sandbox)))
    assert until(lambda: not waiting(made.sandbox))
    for _ in range(OFTEN):
        made.run([trouble(), "exit", "0"])
    assert until(lambda: bool(waiting(made.sandbox)))
    left = [*waiting(made.sandbox), *supervisors(made.sandbox)]
    made.close()
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in left))


# -- services -----------------------------------------------------------------------------------------------


def service(here: Here, what: list[str], **more: object) -> tuple[supervised.Service, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        made = here.sandbox.service(start_of(request_of([trouble(), *what], **more)), theirs)
    ours.settimeout(WAIT_S)
    return made, ours


def test_a_service_speaks_over_its_channel_until_it_is_killed(here, watch):
    made, channel = service(here, ["channel"])
    for text in (b"one", b"two"):
        channel.sendall(text)
        assert channel.recv(100) == text
    assert not made.ended()
    assert made.ending == ""
    made.kill()
    assert made.ended()
    assert channel.recv(100) == b""
    channel.close()
    assert made.ending == "stopped: cancelled"


def test_a_service_that_hangs_is_killed_with_its_daemons(here, watch):
    made, channel = service(here, ["daemon-and-hang", watch.path])
    watch.came(2)
    made.kill()
    assert watch.gone(0.1)
    channel.close()


@pytest.mark.parametrize(
    ("what", "more", "ending"),
    [
        (["exit", "3"], {}, "exit status 3"),
        (["signal", "11"], {}, "killed by signal 11"),
        (["exit", "0"], {"program": "/missing"}, "could not be started: no such file or directory"),
    ],
)
def test_a_service_says_how_it_ended(here, what, more, ending):
    made, channel = service(here, what, **more)
    assert made.ended(WAIT_S)
    assert made.ending == ending
    made.kill()
    channel.close()


def test_the_scratch_folder_of_a_lost_service_is_nobodys(new_host, watch):
    """Attack: what is left of a service whose supervisor is dead writes into the folder of the next one."""
    made = new_host()
    first, channel = service(made, ["hang", watch.path])
    watch.came()
    killed = set(supervisors(made.sandbox))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert first.ended(WAIT_S)
    assert first.ending == "contact was lost"
    channel.close()
    assert until(partial(are_gone, killed))  # one that is dying may still take a request with it
    second, channel = service(made, ["hang", watch.path])
    watch.came()
    second.kill()
    channel.close()
    third, channel = service(made, ["hang", watch.path])
    assert second.scratch != first.scratch, "somebody may still be there"
    assert third.scratch == second.scratch, "of one that ended it is used again"
    third.kill()
    channel.close()


# -- requests that make no sense ----------------------------------------------------------------------------


@pytest.mark.parametrize("message", [b"", b"x", b"TWSQ" + bytes(84), bytes(88), os.urandom(60_000)])
def test_a_request_that_makes_no_sense_is_refused_without_harm(here, message):
    here.run([trouble(), "exit", "0"])
    connection = here.sandbox._connection
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(connection.socket, [message or b"\0"], [theirs.fileno()])
        ours.settimeout(WAIT_S)
        report = _wire.Report.read(ours.recv(4096))
    assert report is not None
    assert (report.reason, report.stage) == (_wire.Reason.NOT_STARTED, _wire.Stage.REQUEST)
    assert here.run([trouble(), "exit", "3"]).exit_status == 3
    assert here.sandbox._connection is connection
