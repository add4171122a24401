"""Isolation proved by attack: real programs try to get out, at every level that restricts.

Each test hands a program a permit and lets it try. The last test runs all of them again as an ordinary user,
because much of what holds one does not hold root, and the other way round.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lateness import timely
from toolcrib.model import End, Ending, Level, Limits, Permit, Profile, Programs
from toolcrib.sandbox import Cancel, Sandbox, Start, _kernel, probe
from toolcrib.sandbox import rules as _rules
from toolcrib.sandbox._scratch import Scratch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the levels that restrict are for Linux")

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable
ENV = {"PATH": "/usr/bin:/bin", "TMPDIR": ""}
CLOSED = Permit(profile=Profile.CLOSED)
OPEN = Permit(profile=Profile.OPEN, read=("/",), write=("/",), network=True, unix_sockets=True)


@pytest.fixture(scope="module", params=[Level.RESTRICTED, Level.SUPERVISED])
def level(request) -> Iterator[Sandbox]:
    tried = probe.try_layers()
    if tried.level is not request.param and request.param is Level.SUPERVISED:
        pytest.skip(f"the level does not work here: {tried.spawner.reason}; `make native` builds the spawner")
    if not (tried.landlock and tried.seccomp):
        pytest.skip(f"Landlock or seccomp does not work here: {tried}; a newer kernel would enable it")
    if request.param is Level.RESTRICTED:
        sandbox: Sandbox = probe.restricted(landlock=tried.landlock, scratch=Scratch())
    else:
        sandbox = probe.choose()
    yield sandbox
    sandbox.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A project that every user of the machine could reach."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="project-")))
    folder.chmod(0o755)
    (folder / "notes.txt").write_text("mine\n", encoding="utf-8")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(level: Sandbox, argv: list[str], permit: Permit, cwd: Path | str = "/", **more) -> Ending:
    cancel = Cancel()
    try:
        return level.run(
            Start(program=argv[0], argv=tuple(argv), env=ENV, cwd=str(cwd), permit=permit, **more), cancel
        )
    finally:
        cancel.close()


def shell(level: Sandbox, script: str, permit: Permit, cwd: Path | str = "/", **more) -> Ending:
    return run(level, ["/bin/sh", "-c", script], permit, cwd, **more)


def python(level: Sandbox, script: str, permit: Permit, cwd: Path | str = "/", *args: str) -> Ending:
    return run(level, [PYTHON, "-I", "-S", "-c", script, *args], permit, cwd)


def project(place: Path, *, write: bool = True, **more) -> Permit:
    return Permit(profile=Profile.PROJECT, read=(str(place),), write=(str(place),) if write else (), **more)


# -- what it needs works ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["/bin/sh", "-c", "echo ok"],
        ["/bin/bash", "-c", "cat <(echo ok)"],
        [PYTHON, "-c", "import json, ssl, tempfile; tempfile.TemporaryFile().close(); print('ok')"],
        ["/usr/bin/env", "echo", "ok"],
        ["/usr/bin/node", "-e", "console.log('ok')"],
        ["/usr/bin/git", "--version"],
        [PYTHON, "-c", "import asyncio; asyncio.run(asyncio.sleep(0)); print('ok')"],
        [PYTHON, "-c", "import subprocess; subprocess.run(['/bin/echo', 'ok'], check=True)"],
    ],
)
def test_ordinary_programs_work_in_the_narrowest_profile(level, argv):
    if not os.path.exists(argv[0]):
        pytest.skip(f"{argv[0]} is not installed; install it to run this")
    ending = run(level, argv, CLOSED)
    assert (ending.end, ending.exit_status, ending.stderr) == (End.EXITED, 0, b"")
    assert b"ok" in ending.stdout or b"git version" in ending.stdout


def test_the_scratch_folder_is_its_own_and_is_empty_afterwards(level):
    ending = shell(level, 'cd "$TMPDIR" && mkdir -p a/b && echo x > a/b/c && ls && pwd', CLOSED)
    assert ending.exit_status == 0, ending.stderr
    names, folder = ending.stdout.decode().split()
    assert names == "a"
    assert not os.path.exists(os.path.join(folder, "a"))


def test_making_renaming_and_deleting_files_at_the_project_root_works(level, place):
    script = "echo new > b && mv b notes.txt && cat notes.txt && rm notes.txt && mkdir d && rmdir d && ls"
    ending = shell(level, script, project(place), place)
    assert (ending.exit_status, ending.stdout) == (0, b"new\n"), ending.stderr


# -- reading ------------------------------------------------------------------------------------------------


@pytest.mark.battery("D01")
@pytest.mark.parametrize("permit", [CLOSED, OPEN], ids=["closed", "open"])
def test_the_hosts_environment_cannot_be_read_through_proc(level, permit):
    script = "import sys; print(open(f'/proc/{sys.argv[1]}/environ', 'rb').read())"
    for what in ("environ", "maps", "mem", "fd/0"):
        ending = python(level, script.replace("environ", what), permit, "/", str(os.getpid()))
        assert ending.exit_status == 1, what
        assert b"PermissionError" in ending.stderr, what
    # Nor its supervisor's or parent's.
    parent = python(level, "import os; open(f'/proc/{os.getppid()}/environ').read()", permit)
    assert parent.exit_status == 1


@pytest.mark.battery("D01")
def test_the_environment_holds_only_what_was_handed_over(level):
    ending = run(level, ["/usr/bin/env"], CLOSED)
    assert {line.partition("=")[0] for line in ending.stdout.decode().splitlines()} == {"PATH", "TMPDIR"}


@pytest.mark.battery("D05")
def test_d05_no_shell_function_of_the_host_reaches_bash(level):
    env = {**ENV, "BASH_FUNC_ls%%": "() { echo PWNED; }"}
    start = Start(
        program="/bin/bash", argv=("bash", "-c", "ls /usr"), cwd="/", permit=CLOSED,
        env={name: value for name, value in env.items() if not name.startswith("BASH_FUNC_")},
    )  # fmt: skip
    assert b"PWNED" not in level.run(start, Cancel()).stdout


def test_other_peoples_files_are_closed_unless_the_profile_opens_them(level, place):
    secret = place / "secret"
    secret.write_text("key\n", encoding="utf-8")
    for permit in (CLOSED, Permit(), Permit(network=True)):
        ending = run(level, ["/bin/cat", str(secret)], permit)
        assert (ending.exit_status, ending.stdout) == (1, b"")
    assert run(level, ["/bin/cat", str(secret)], project(place)).stdout == b"key\n"
    for path in (os.path.expanduser("~"), "/etc/shadow", "/root", "/var/log", "/proc/1/environ"):
        ending = shell(level, f"cat {path}; cat {path}/*; ls {path}/", project(place))
        assert ending.exit_status != 0, path
        assert ending.stdout == b"", path


@pytest.mark.parametrize("profile", ["open", "project", "stated"])
def test_our_own_state_is_never_readable_or_writable(level, place, profile):
    state = place / "state"
    state.mkdir(mode=0o755)
    (state / "journal").write_text("record\n", encoding="utf-8")
    roots = (str(place),)
    permit = {
        "open": OPEN,
        "project": project(place),
        "stated": Permit(read=roots, write=roots, programs=Programs.ANY),
    }[profile]
    permit = Permit(**{**_fields(permit), "hidden": (str(state),)})
    ending = shell(
        level, "cat state/journal; echo x >> state/journal; rm -rf state; echo done", permit, place
    )
    assert b"record" not in ending.stdout
    assert b"done" in ending.stdout
    assert (state / "journal").read_text(encoding="utf-8") == "record\n"


def _fields(permit: Permit) -> dict:
    return {name: getattr(permit, name) for name in Permit.__struct_fields__}


# -- writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["closed", "read", "project"])
def test_nothing_outside_the_granted_roots_can_be_written(level, place, kind):
    outside = place / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    inside = place / "inside"
    inside.mkdir(mode=0o777)
    inside.chmod(0o777)
    (outside / "file").write_text("kept", encoding="utf-8")
    (outside / "file").chmod(0o666)
    (inside / "link").symlink_to(outside)
    permit = {
        "closed": CLOSED,
        "read": Permit(read=(str(place),), programs=Programs.ANY),
        "project": Permit(profile=Profile.PROJECT, read=(str(inside),), write=(str(inside),)),
    }[kind]
    script = (
        "echo x > ../outside/new; echo x > link/new; echo x > ../outside/file; : > ../outside/file; "
        "rm -f ../outside/file; mv ../outside/file ../outside/other; ln ../outside/file hard; mkdir link/d; "
        "truncate -s 0 ../outside/file; true"
    )
    shell(level, script, permit, inside)
    assert sorted(os.listdir(outside)) == ["file"]
    assert (outside / "file").read_text(encoding="utf-8") == "kept"
    assert not (inside / "hard").exists()


@pytest.fixture
def repository(place: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed; install it to run this")
    subprocess.run(["git", "init", "-q", str(place)], check=True, env={**ENV, "HOME": str(place)})
    (place / "toolcrib.toml").write_text("# ours\n", encoding="utf-8")
    (place / ".git" / "hooks").mkdir(exist_ok=True)
    return place


ATTACKS_ON_PROTECTED = """
echo evil > .git/hooks/post-checkout
echo evil >> .git/config
echo evil > toolcrib.toml
rm -f toolcrib.toml
mv toolcrib.toml other.toml
mv .git .git2 && mkdir -p .git/hooks && echo evil > .git/hooks/post-checkout
rm -rf .git
ln -f notes.txt .git/config
mkdir -p x && mv x .git
echo fine > sub/file
echo done
"""


@pytest.mark.battery("C11")
@pytest.mark.parametrize("with_git", [False, True], ids=["no-grant", "git.write"])
@pytest.mark.parametrize("profile", ["open", "project", "stated"])
def test_c11_protected_paths_inside_a_writable_root_stay_as_they_are(level, repository, profile, with_git):
    place = repository
    (place / "sub").mkdir()
    git = place / ".git"
    held = (git / "hooks", git / "config") if with_git else (git,)
    protected = (str(place / "toolcrib.toml"), *map(str, held))
    roots = (str(place),)
    permit = {
        "open": Permit(**{**_fields(OPEN), "protected": protected}),
        "project": project(place, protected=protected),
        "stated": Permit(read=roots, write=roots, protected=protected, programs=Programs.ANY),
    }[profile]
    config = (git / "config").read_text(encoding="utf-8")
    ending = shell(level, ATTACKS_ON_PROTECTED, permit, place)
    if profile == "stated" and level.level is Level.RESTRICTED:
        assert ending.end is End.UNAVAILABLE
        assert "must stay read-only" in ending.reason
        return
    assert ending.stdout.endswith(b"done\n"), ending
    assert (git / "config").read_text(encoding="utf-8") == config
    assert not (git / "hooks" / "post-checkout").exists()
    assert (place / "toolcrib.toml").read_text(encoding="utf-8") == "# ours\n"
    assert (place / "sub" / "file").read_text(encoding="utf-8") == "fine\n"
    held_by = "protected:read-only" if level.level is Level.SUPERVISED else "protected:read-only-parents"
    assert held_by in ending.layers


def test_git_commit_works_with_its_grant_though_hooks_and_configuration_are_held(level, repository):
    place = repository
    git = place / ".git"
    roots = (str(place),)
    permit = Permit(
        read=roots, write=roots, programs=Programs.ANY,
        protected=(str(git / "hooks"), str(git / "config"), str(place / "toolcrib.toml")),
    )  # fmt: skip
    script = (
        "git -c user.name=n -c user.email=e add notes.txt && "
        "git -c user.name=n -c user.email=e commit -q -m first && git log --format=%s && git gc -q"
    )
    ending = shell(level, script, permit, place)
    if level.level is Level.RESTRICTED:
        assert ending.end is End.UNAVAILABLE
    else:
        assert (ending.exit_status, ending.stdout) == (0, b"first\n"), ending


def test_the_host_can_accept_that_protected_paths_are_not_held(level, repository):
    roots = (str(repository),)
    permit = Permit(
        read=roots,
        write=roots,
        protected=(str(repository / ".git"),),
        unprotected=True,
        programs=Programs.ANY,
    )
    ending = shell(level, "echo x > new && echo ok", permit, repository)
    assert ending.stdout == b"ok\n", ending


def test_a_link_in_the_project_does_not_carry_rights_outside(level, place):
    """At the level that carves, every entry of the project gets its own rule: a link must get none."""
    outside = Path(tempfile.mkdtemp())
    try:
        outside.chmod(0o777)
        (place / "link").symlink_to(outside)
        (place / "toolcrib.toml").write_text("", encoding="utf-8")
        permit = project(place, protected=(str(place / "toolcrib.toml"),))
        shell(level, "echo x > link/new", permit, place)
        assert os.listdir(outside) == []
    finally:
        shutil.rmtree(outside)


# -- the network --------------------------------------------------------------------------------------------

CONNECT = """
import socket, sys
kind = {"tcp": (socket.AF_INET, socket.SOCK_STREAM), "udp": (socket.AF_INET, socket.SOCK_DGRAM),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM), "unix": (socket.AF_UNIX, socket.SOCK_STREAM),
        "abstract": (socket.AF_UNIX, socket.SOCK_STREAM), "packet": (socket.AF_PACKET, socket.SOCK_RAW),
        "netlink": (socket.AF_NETLINK, socket.SOCK_RAW), "vsock": (40, socket.SOCK_STREAM)}[sys.argv[1]]
where = sys.argv[2]
s = socket.socket(*kind)
if sys.argv[1] in ("tcp", "udp"):
    s.connect(("127.0.0.1", int(where)))
    s.send(b"hello")
elif sys.argv[1] == "unix":
    s.connect(where)
elif sys.argv[1] == "abstract":
    s.connect(chr(0) + where)
print("connected")
"""


@pytest.fixture
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A TCP server on loopback, and what reached it."""
    reached: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        try:
            while True:
                connection, _ = server.accept()
                with connection:
                    reached.append(connection.recv(16))
        except OSError:
            pass

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1], reached
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


@pytest.mark.parametrize("kind", ["tcp", "udp", "tcp6", "packet", "netlink", "vsock"])
def test_the_network_is_closed_unless_granted(level, listening, kind):
    port, reached = listening
    for permit in (CLOSED, Permit(), Permit(unix_sockets=True)):
        ending = python(level, CONNECT, permit, "/", kind, str(port))
        assert (ending.exit_status, ending.stdout) == (1, b""), ending
        words = b"Network is unreachable" if kind in ("tcp", "udp", "tcp6") else b"Permission denied"
        assert words in ending.stderr
        assert "network:none" in ending.layers
    assert reached == []
    if kind in ("tcp", "udp"):
        assert python(level, CONNECT, Permit(network=True), "/", kind, str(port)).stdout == b"connected\n"


def test_unix_sockets_are_closed_unless_granted(level, place):
    path = place / "socket"
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as abstract:
        by_path.bind(str(path))
        path.chmod(0o777)
        by_path.listen()
        name = f"toolcrib-{os.getpid()}-{place.name}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        for kind, where in (("unix", str(path)), ("abstract", name)):
            for permit in (project(place), Permit(network=True)):
                ending = python(level, CONNECT, permit, "/", kind, where)
                assert (ending.exit_status, ending.stdout) == (1, b""), ending
            assert python(level, CONNECT, OPEN, "/", kind, where).stdout == b"connected\n"


PAIRS = """
import array, ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def pair(family, kind):
    ends = (ctypes.c_int * 2)()
    if libc.socketpair(family, kind, 0, ends):
        raise OSError(ctypes.get_errno(), "socketpair")
    return [socket.socket(family, kind & 15, 0, fileno=end) for end in ends]
def rights(one, where):
    one.sendmsg([b"injected"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))], 0, where)
def connected(one, where):
    one.connect(where)
    one.send(b"injected")
def spent(one, where):  # a pair whose other end is gone, and that was shut down
    one.shutdown(socket.SHUT_RDWR)
    connected(one, where)
where = (sys.argv[1], chr(0) + sys.argv[2])
for kind in (1, 2, 3, 4, 5, 6, 10):
    for flags in (0, 0o2000000, 0o4000, 0o2004000):
        for to in where:
            for act in (lambda s, to: s.sendto(b"injected", to), rights, connected, spent):
                try:
                    ours, theirs = pair(socket.AF_UNIX, kind | flags)
                except OSError as error:
                    continue
                theirs.close()
                try:
                    act(ours, to)
                except OSError as error:
                    pass
for family in range(2, 46):
    for kind in (1, 2, 3, 5):
        try:
            pair(family, kind)
        except OSError as error:
            continue
        print("pair of family", family)
print("done")
"""


def test_attack_a_pair_of_sockets_that_is_sent_to_another_address(level, place):
    path = place / "log"
    name = f"toolcrib-log-{os.getpid()}-{place.name}"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as by_path,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
    ):
        by_path.bind(str(path))
        abstract.bind(f"\0{name}")
        path.chmod(0o777)
        place.chmod(0o777)
        for permit in (project(place), CLOSED, Permit(), Permit(network=True, programs=Programs.ANY)):
            ending = python(level, PAIRS, permit, "/", str(path), name)
            assert ending.stdout == b"done\n", ending
            for log in (by_path, abstract):
                log.settimeout(0)
                with pytest.raises(BlockingIOError):
                    log.recv(16)


def test_event_loops_and_processes_still_get_their_pairs(level):
    script = (
        "import asyncio, multiprocessing, socket\nasyncio.run(asyncio.sleep(0))\n"
        "a, b = multiprocessing.Pipe()\na.send(1); print(b.recv())\n"
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); a.send(b'2'); print(b.recv(1))\n"
    )
    ending = run(level, [PYTHON, "-c", script], CLOSED)
    assert ending.stdout == b"1\nb'2'\n", ending


NETLINK = """
import socket, sys
for protocol in range(0, 32):
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
        print(protocol)
    except OSError:
        pass
"""


def test_with_the_network_netlink_tells_routes_and_carries_nothing_else(level):
    assert python(level, NETLINK, Permit(network=True)).stdout == b"0\n"
    assert python(level, NETLINK, CLOSED).stdout == b""


# -- what belongs to no process -----------------------------------------------------------------------------

IPC_CALLS = {
    name: _rules.NUMBERS[_kernel.architecture()].get(name, -1)
    for name in (*_rules._SHARING, "mq_open", "mq_unlink", "sched_setaffinity", "fcntl", "io_setup")
}
IPC = f"""
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NR = {IPC_CALLS!r}
def call(name, *arguments):
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    done = libc.syscall(ctypes.c_long(NR[name]), *words)
    if done == -1:
        raise OSError(ctypes.get_errno(), name)
    return done
"""
MEET = (
    IPC
    + """
segment, queue, semaphore, name = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
room = ctypes.create_string_buffer(256)
message = ctypes.create_string_buffer(b"\\1" + b"\\0" * 7 + b"evil")
step = ctypes.create_string_buffer(b"\\0\\0\\1\\0\\0\\0")
def attach():
    at = call("shmat", segment, 0, 0)
    ctypes.memmove(at, b"evil", 4)
def peek():
    index = 0
    while True:  # every segment of the machine, also those of others
        try:
            call("shmctl", index, 15, room)
            return
        except OSError:
            if index > 200:
                raise
        index += 1
attacks = {
    "attach a segment": attach,
    "list segments": peek,
    "remove a segment": lambda: call("shmctl", segment, 0, 0),
    "take a message": lambda: call("msgrcv", queue, room, 100, 0, 0o4000),
    "send a message": lambda: call("msgsnd", queue, message, 4, 0o4000),
    "remove a queue": lambda: call("msgctl", queue, 0, 0),
    "set a semaphore": lambda: call("semctl", semaphore, 0, 16, 7),
    "step a semaphore": lambda: call("semop", semaphore, step, 1),
    "unlink a queue": lambda: call("mq_unlink", name),
    "open a queue": lambda: call("mq_open", name, 2, 0, 0),
}
for what, act in attacks.items():
    try:
        act()
        print("worked:", what)
    except OSError as error:
        pass
for file in ("/dev/mqueue/" + name.decode(),):
    for act in (lambda: os.unlink(file), lambda: os.close(os.open(file, os.O_RDONLY))):
        try:
            act()
            print("worked:", file)
        except OSError:
            pass
print("done")
"""
)
OWN = (
    IPC
    + """
segment = call("shmget", 0, 4096, 0o1600)
at = call("shmat", segment, 0, 0)
ctypes.memmove(at, b"mine", 4)
print(ctypes.string_at(at, 4))
call("shmctl", segment, 0, 0)
"""
)


@pytest.fixture
def shared() -> Iterator[tuple[list[str], Callable[[], bytes]]]:
    """A segment, a queue, a semaphore and a POSIX queue of another program of the same user."""
    space: dict[str, Any] = {}
    exec(IPC, space)  # noqa: S102
    call = space["call"]
    name = f"toolcrib-{os.getpid()}"
    segment, queue, semaphore = (
        call("shmget", 0, 4096, 0o1600),
        call("msgget", 0, 0o1600),
        call("semget", 0, 1, 0o1600),
    )
    at = call("shmat", segment, 0, 0)
    message = ctypes.create_string_buffer(b"\1" + b"\0" * 7 + b"mine")
    try:
        posix = call("mq_open", name.encode(), 0o100 | 2, 0o600, 0)
        ctypes.memmove(at, b"mine", 4)
        call("msgsnd", queue, message, 4, 0)

        def look() -> bytes:
            room = ctypes.create_string_buffer(256)
            size = call("msgrcv", queue, room, 100, 0, 0o4000)
            call("msgsnd", queue, room, size, 0)
            os.close(call("mq_open", name.encode(), 2, 0, 0))
            value = call("semctl", semaphore, 0, 12, 0)
            return b"%s %s %d" % (ctypes.string_at(at, 4), room.raw[8 : 8 + size], value)

        yield [str(segment), str(queue), str(semaphore), name], look
        os.close(posix)
    finally:
        space["libc"].shmdt(ctypes.c_void_p(at))
        for remove, number in (("shmctl", segment), ("msgctl", queue)):
            call(remove, number, 0, 0)
        call("semctl", semaphore, 0, 0, 0)
        call("mq_unlink", name.encode())


@pytest.mark.parametrize("kind", ["no-needs", "closed", "project", "unix", "open"])
def test_a_tool_cannot_attach_a_segment_of_another_program(level, place, shared, kind):
    """Nor take its messages, set its semaphores or unlink its queues: none of them has a path."""
    arguments, look = shared
    roots = (str(place),)
    permit = {
        "no-needs": Permit(),
        "closed": CLOSED,
        "project": project(place),
        "unix": Permit(unix_sockets=True, read=roots, write=roots),
        "open": OPEN,
    }[kind]
    ending = python(level, MEET, permit, "/", *arguments)
    assert ending.stdout == b"done\n", ending
    assert look() == b"mine mine 0"


@pytest.mark.parametrize("kind", ["unix", "open"])
def test_with_unix_sockets_a_tool_has_segments_of_its_own_where_there_are_namespaces(level, place, kind):
    roots = (str(place),)
    permit = Permit(unix_sockets=True, read=roots, write=roots) if kind == "unix" else OPEN
    ending = python(level, OWN, permit)
    if "ipc-namespace" in ending.layers:
        assert ending.stdout == b"b'mine'\n", ending
    else:
        assert b"PermissionError" in ending.stderr, ending
        assert level.level is Level.RESTRICTED


POSIX_QUEUE = (
    IPC
    + """
try:
    call("mq_open", b"own", 0o100 | 2, 0o600, 0)
    print("opened")
except OSError as error:
    print(error.errno)
"""
)


@pytest.mark.parametrize("kind", ["closed", "unix", "open"])
def test_posix_message_queues_are_refused_in_every_profile_and_with_unix_sockets(level, place, kind):
    roots = (str(place),)
    unix = Permit(unix_sockets=True, read=roots, write=roots)
    permit = {"closed": CLOSED, "unix": unix, "open": OPEN}[kind]
    assert python(level, POSIX_QUEUE, permit).stdout == f"{errno.EPERM}\n".encode()


WATCH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0o4000)
if watch < 0:
    print("none")
    raise SystemExit
print("watches" if libc.inotify_add_watch(watch, sys.argv[1].encode(), 0xFFF) >= 0 else "refused")
"""
NOTICE = """
import fcntl, os
folder = os.open("/usr", os.O_RDONLY)
try:
    fcntl.fcntl(folder, fcntl.F_NOTIFY, 1)
    print("watches")
except OSError as error:
    print(error.errno)
"""


def test_a_tool_without_folders_to_read_watches_none(level, place):
    for permit in (CLOSED, Permit(), Permit(network=True)):
        assert python(level, WATCH, permit, "/", str(place)).stdout == b"none\n"
        assert python(level, NOTICE, permit).stdout == f"{errno.EACCES}\n".encode()
    assert python(level, WATCH, project(place), "/", str(place)).stdout == b"watches\n"
    assert python(level, NOTICE, project(place)).stdout == b"watches\n"


def test_attack_a_tool_that_only_reads_changes_the_mode_of_its_users_files(level, place):
    """It would close git's configuration to the host. In its own folder it may do so, as programs do."""
    if level.level is not Level.SUPERVISED:
        pytest.skip("only mounts keep the mode of files, and this level has none; use the level supervised")
    note = place / "notes.txt"
    if os.geteuid() == 0:  # then tools run as a user of their own
        os.chown(note, _rules.NOBODY, _rules.NOBODY)
    mode = note.stat().st_mode
    script = """
import os, sys
held = os.open(sys.argv[1], os.O_RDONLY)
path = sys.argv[1]
for act in (lambda: os.chmod(path, 0), lambda: os.fchmod(held, 0), lambda: os.utime(path, (0, 0))):
    try:
        act()
        print("worked")
    except OSError as error:
        print(error.errno)
with open(f"{os.environ['TMPDIR']}/x", "w") as file:
    os.fchmod(file.fileno(), 0o711)
os.chmod(f"{os.environ['TMPDIR']}/x", 0o700)
print("works")
"""
    ending = python(level, script, Permit(read=(str(place),)), "/", str(note))
    assert ending.stdout == f"{errno.EROFS}\n".encode() * 3 + b"works\n", ending
    assert note.stat().st_mode == mode


def test_attributes_of_files_outside_the_permit_cannot_be_set(level, place):
    note = place / "notes.txt"
    try:
        os.setxattr(note, "user.kept", b"1")
    except OSError:
        pytest.skip("this file system has no extended attributes; use ext4, xfs or btrfs for temporary files")
    script = """
import ctypes, os, sys
for act in (
    lambda: os.setxattr(sys.argv[1], "user.kept", b"2"),
    lambda: os.removexattr(sys.argv[1], "user.kept"),
    lambda: os.setxattr(sys.argv[1], "user.kept", b"2", follow_symlinks=False),
):
    try:
        act()
        print("worked")
    except OSError as error:
        print(error.errno)
"""
    refused = f"{errno.EOPNOTSUPP}\n".encode() * 3
    for permit in (CLOSED, Permit(), project(place)):
        ending = python(level, script, permit, "/", str(note))
        assert ending.stdout == refused, ending
    assert os.getxattr(note, "user.kept") == b"1"
    assert python(level, script, OPEN, "/", str(note)).stdout.startswith(b"worked\n")


LEASE = (
    IPC
    + """
import fcntl
for command in (1024, 1 << 32 | 1024, 0xFFFFFFFF << 32 | 1024):  # the kernel reads 32 bits
    try:
        call("fcntl", os.open(sys.argv[1], os.O_RDONLY), command, fcntl.F_RDLCK)
        print("leased")
    except OSError as error:
        print(error.errno)
"""
)


@pytest.mark.parametrize("profile", ["project", "open"])
def test_no_tool_leases_a_file_so_that_its_user_waits_to_open_it(level, place, profile):
    """Attack: a lease on `toolcrib.toml`, `tools.json` or a program stops everything that opens it."""
    note = place / "notes.txt"
    with note.open("rb") as held:
        try:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:
            pytest.skip("this file system has no leases; use ext4, xfs or btrfs for temporary files")
    permit = project(place) if profile == "project" else OPEN
    ending = python(level, LEASE, permit, "/", str(note))
    assert ending.stdout == f"{errno.EPERM}\n".encode() * 3, ending


FLAGS = """
import array, fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
flags = array.array("l", [0])
fcntl.ioctl(file, 0x80086601, flags)
flags[0] |= 0x40  # not to be dumped, which any owner may set, as the flags of ext4 against being changed
for request in (0x40086602, 0x40046602):
    try:
        fcntl.ioctl(file, request, flags)
        print("worked")
    except OSError as error:
        print(error.errno)
"""


def test_the_flags_of_a_file_that_may_only_be_read_cannot_be_set(level, place):
    note = place / "notes.txt"
    flags = array.array("l", [0])
    with note.open("rb") as file:
        try:
            fcntl.ioctl(file, 0x80086601, flags)
        except OSError:
            pytest.skip("this file system has no flags; use ext4, xfs or btrfs for temporary files")
        for permit in (project(place), Permit(read=(str(place),)), Permit(write=(str(place),))):
            ending = python(level, FLAGS, permit, "/", str(note))
            assert ending.stdout == f"{errno.EOPNOTSUPP}\n".encode() * 2, ending
        after = array.array("l", [0])
        fcntl.ioctl(file, 0x80086601, after)
        assert after == flags
    assert python(level, FLAGS, OPEN, "/", str(note)).stdout.startswith(b"worked\n")


ASYNCHRONOUS = (
    IPC
    + """
import ctypes
try:
    call("io_setup", 4096, ctypes.byref(ctypes.c_ulong()))
    print("worked")
except OSError as error:
    print(error.errno)
"""
)


def test_a_tool_takes_none_of_the_machines_asynchronous_requests(level, place):
    """Attack: a tool without any need takes all of `aio-max-nr`, and no database on the machine starts."""
    for permit in (CLOSED, Permit(), project(place)):
        assert python(level, ASYNCHRONOUS, permit).stdout == f"{errno.ENOSYS}\n".encode()


QUEUED = """
import ctypes, errno, os, resource, signal, time
for _ in range(1000):  # at one level the limits are set just after the start
    if resource.getrlimit(resource.RLIMIT_SIGPENDING)[0] <= 1024:
        break
    time.sleep(0.005)
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
sent = 0
while sent < 5000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, ctypes.c_void_p(0)) == 0:
    sent += 1
print(sent, ctypes.get_errno() == errno.EAGAIN)
"""


@pytest.mark.parametrize("permit", [CLOSED, OPEN], ids=["closed", "open"])
def test_a_tool_takes_few_of_the_signals_and_timers_of_its_user(level, permit):
    """Attack: a tool queues signals, or makes POSIX timers, until no program of its user can."""
    sent, refused = python(level, QUEUED, permit).stdout.split()
    assert refused == b"True"
    assert 0 < int(sent) <= 1024


# -- processes ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(_kernel.landlock_version() < 6, reason="Landlock holds signals from version 6")
@pytest.mark.parametrize("permit", [CLOSED, OPEN], ids=["closed", "open"])
def test_the_host_cannot_be_killed_or_traced(level, permit):
    script = """
import ctypes, os, signal, sys
pid = int(sys.argv[1])
for act in (lambda: os.kill(pid, signal.SIGTERM), lambda: os.kill(os.getppid(), signal.SIGKILL),
            lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGTERM)):
    try:
        act()
        print("reached")
    except PermissionError:
        print("refused")
libc = ctypes.CDLL(None, use_errno=True)
print("traced" if libc.ptrace(16, pid, 0, 0) == 0 else "refused")
"""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        ending = python(level, script, permit, "/", str(os.getpid()))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ending.stdout.split() == [b"refused"] * 4, ending
    assert came == []


AFFINITY = (
    IPC
    + """
pid = int(sys.argv[1])
try:
    mask = ctypes.create_string_buffer(b"\\1" + b"\\0" * 127)
    call("sched_setaffinity", pid, 128, mask)
    print("worked")
except OSError as error:
    print(error.errno)
"""
)


@pytest.mark.parametrize("profile", ["closed", "open"])
def test_a_tool_moves_itself_to_other_processors_and_neither_the_host_nor_its_supervisor(level, profile):
    permit = CLOSED if profile == "closed" else OPEN
    before = os.sched_getaffinity(0)
    if os.geteuid() == 0:  # a tool that is another user may not, whatever the filter says
        permit = OPEN
    refused = f"{errno.EPERM}\n".encode()
    assert python(level, AFFINITY, permit, "/", str(os.getpid())).stdout == refused
    assert os.sched_getaffinity(0) == before
    parent = AFFINITY.replace("int(sys.argv[1])", "os.getppid()")
    assert python(level, parent, permit).stdout == refused
    assert python(level, AFFINITY, permit, "/", "0").stdout == b"worked\n"


@pytest.mark.parametrize(
    "script",
    [
        "import os; os.unshare(0x10000000)" if hasattr(os, "unshare") else "l.unshare(0x10000000) and 1/0",
        "l.unshare(0x00020000) and 1/0",
        "l.mount(b'/tmp', b'/mnt', None, 4096, None) and 1/0",
        "l.syscall(425, 1, None) + 1 or 1/0",
        "l.syscall(321, 0, None, 0) + 1 or 1/0",
        "l.setns(0, 0) and 1/0",
        "l.syscall(250, 0, 0, 0, 0) + 1 or 1/0",
    ],
)
@pytest.mark.skipif(_kernel.architecture() != "x86_64", reason="the call numbers are those of x86-64")
def test_system_calls_that_open_doors_are_refused(level, script):
    code = f"import ctypes\nl = ctypes.CDLL(None, use_errno=True)\n{script}"
    for permit in (CLOSED, OPEN):
        ending = python(level, code, permit)
        assert ending.exit_status == 1, ending


@pytest.mark.skipif(_kernel.architecture() != "x86_64", reason="x32 and i386 exist on x86-64 only")
def test_system_calls_of_a_foreign_architecture_kill(level):
    code = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39); print('lived')"
    ending = python(level, code, OPEN)
    assert (ending.signal, ending.stdout) == (signal.SIGSYS, b"")


def test_only_its_own_program_starts_without_shell_execute(level):
    own = Permit(programs=Programs.OWN)
    assert shell(level, "echo own", own).stdout == b"own\n"
    ending = shell(level, "/bin/ls /usr", own)
    assert (ending.exit_status, ending.stdout) == (126, b"")
    assert shell(level, "/bin/ls /usr", Permit(programs=Programs.ANY)).exit_status == 0


def test_a_script_starts_with_its_interpreter_though_only_its_own_program_may(level, place):
    script = place / "tool"
    script.write_text("#!/usr/bin/env python3\nprint('script')\n", encoding="utf-8")
    script.chmod(0o755)
    if shutil.which("python3", path=ENV["PATH"]) is None:
        pytest.skip("python3 is not in /usr/bin; install it to run this")
    ending = run(level, [str(script)], Permit(), own=(str(script),))
    assert ending.stdout == b"script\n", ending


def test_no_program_gains_rights_by_its_owner(level):
    ending = shell(level, "grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status", OPEN)
    values = dict(line.split() for line in ending.stdout.decode().splitlines())
    assert values == {"NoNewPrivs:": "1", "CapEff:": "0" * 16, "CapPrm:": "0" * 16}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; run as root")
def test_as_root_a_tool_that_writes_nothing_is_nobody_and_one_that_writes_is_the_owner(level, place):
    ending = run(level, ["/usr/bin/id", "-u"], CLOSED)
    assert (ending.stdout, "uid:65534" in ending.layers) == (b"65534\n", True)
    permit = project(place)
    assert run(level, ["/usr/bin/id", "-u"], permit, place).stdout == b"0\n", "root's own project"
    os.chown(place, 12345, 12345)
    ending = shell(level, "id -u; echo mine > made; echo x > $TMPDIR/x && echo scratch", permit, place)
    assert ending.stdout == b"12345\nscratch\n", ending
    assert (place / "made").stat().st_uid == 12345


# -- the machine itself -------------------------------------------------------------------------------------

MACHINE = """
import glob, os, stat, sys
host = sys.argv[1]
files = [
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/swappiness",
    "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/mtrr",
    *glob.glob("/proc/irq/*/smp_affinity")[:2],
    *(f"/proc/{host}/{name}" for name in ("oom_score_adj", "autogroup", "coredump_filter", "clear_refs")),
    f"/proc/{host}/comm", f"/proc/{host}/mem",
    *glob.glob("/sys/kernel/mm/*/*")[:9], "/sys/power/state", "/sys/kernel/uevent_helper",
    *glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:9], *glob.glob("/sys/kernel/debug/*")[:9],
    *glob.glob("/sys/module/*/parameters/*")[:9], "/dev/mem", "/dev/port", "/dev/kmsg",
]
def walk(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False) and entry.name not in ("pts", "shm"):
            yield from walk(entry.path)
        elif stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode):
            yield entry.path
ways = [(path, os.O_WRONLY) for path in files if os.path.isfile(path) or path.startswith("/dev")]
ways += [(path, os.O_RDONLY) for path in walk("/dev")]
for path, how in ways:
    try:
        os.close(os.open(path, how))
        print("opened", path)
    except OSError:
        pass
for each in ("/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*/")):
    folder = f"{each}/toolcrib"
    try:
        os.mkdir(folder)
        print("made", folder)
        os.rmdir(folder)
    except OSError:
        pass
print(len(ways) > 3)
"""


@pytest.mark.parametrize("permit", [CLOSED, OPEN], ids=["closed", "open"])
def test_no_profile_lets_a_tool_change_the_kernel_or_read_a_raw_disk(level, permit):
    """Attack: as root, a tool under `open` sets `core_pattern`, and the kernel runs its program as root."""
    ending = python(level, MACHINE, permit, "/", str(os.getpid()))
    assert ending.stdout == b"True\n" or (permit is CLOSED and ending.exit_status == 1), ending


APART = """
import json, os, signal, subprocess, sys, threading
from toolcrib.model import Level, Permit, Profile
from toolcrib.sandbox import Cancel, Start, probe
from toolcrib.sandbox._scratch import Scratch

level, place, python, script, during = sys.argv[1:]
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
mount("--make-rshared", "/")
for name in ("proc", "sys", "dev"):
    os.makedirs(f"{place}/a chroot/{name}")
    mount("--rbind", f"/{name}", f"{place}/a chroot/{name}")
os.makedirs(f"{place}/held/below")
for name in ("ready", "go"):
    os.mkfifo(f"{place}/{name}")
tried = probe.try_layers()
if level == "RESTRICTED":
    sandbox = probe.restricted(landlock=tried.landlock, scratch=Scratch())
else:
    sandbox = probe.choose()
    if sandbox.level is not Level.SUPERVISED or not sandbox.probe().works("mount-namespace"):
        raise SystemExit(77)
permit = Permit(
    profile=Profile.OPEN, read=("/",), write=("/",), network=True, unix_sockets=True,
    protected=(f"{place}/held",),
)
def mount_while_it_runs():
    with open(f"{place}/ready", "rb") as ready:
        ready.read(1)
    mount("-t", "tmpfs", "x", f"{place}/held/below")
    with open(f"{place}/go", "wb") as go:
        go.write(b"+")
if during == "mount":
    threading.Thread(target=mount_while_it_runs, daemon=True).start()
ending = sandbox.run(
    Start(program=python, argv=(python, "-I", "-S", "-c", script, place, str(os.getpid())),
          env={"PATH": "/usr/bin:/bin", "TMPDIR": ""}, cwd=place, permit=permit),
    Cancel(),
)
sandbox.close()
print(json.dumps([ending.stdout.decode(), repr(ending)]))
"""


def apart(level: Sandbox, place: Path, script: str, during: str = "") -> tuple[str, str]:
    """What a tool under `open` says on a machine with other mounts: stdout, and all of its ending."""
    inside = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Um", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("unshare does not work here; install util-linux and allow user namespaces to run this")
    done = subprocess.run(
        [*inside, sys.executable, "-c", APART, level.level.name, str(place), PYTHON, script, during],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("there are no mount namespaces here; `toolcrib doctor` says how to allow them")
    assert done.returncode == 0, done.stderr
    stdout, whole = json.loads(done.stdout)
    return stdout, whole


def test_the_kernels_files_are_read_only_wherever_they_are_mounted(level, place):
    """Attack: as root, a tool under `open` sets `core_pattern` through the /proc of a chroot, and reads a raw
    disk in its /dev."""
    script = """
import glob, os, stat, sys
root, host = sys.argv[1] + "/a chroot", sys.argv[2]
def tries(path, how):
    try:
        os.close(os.open(path, how))
        print("opened", path)
    except OSError:
        pass
for path in (
    "proc/sys/kernel/core_pattern", "proc/sys/vm/swappiness", "proc/sysrq-trigger",
    f"proc/{host}/oom_score_adj", f"proc/{host}/comm", f"proc/{host}/coredump_filter",
    *(path[1:] for path in glob.glob("/sys/kernel/mm/*/*")[:9] if os.path.isfile(path)),
):
    tries(f"{root}/{path}", os.O_WRONLY)
for entry in os.scandir("/dev"):
    if stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode):
        tries(f"{root}{entry.path}", os.O_RDONLY)
with open(f"{root}/proc/{host}/stat") as file:
    print(file.read(1) != "")
"""
    stdout, whole = apart(level, place, script)
    assert stdout == "True\n", whole


def test_what_is_mounted_below_a_protected_folder_while_a_tool_runs_is_not_writable(level, place):
    """Attack: a tool waits until something is mounted in a protected folder, which comes without the hold."""
    script = """
import os, sys
place = sys.argv[1]
with open(place + "/ready", "wb") as ready:
    ready.write(b"+")
with open(place + "/go", "rb") as go:
    print(go.read(1))
try:
    with open(place + "/held/below/made", "w"):
        print("wrote")
except OSError:
    print("refused")
"""
    stdout, whole = apart(level, place, script, "mount")
    assert stdout == "b'+'\nrefused\n", whole


def test_what_programs_need_of_proc_and_dev_works_in_the_profile_open(level):
    script = """
import os, pty, tempfile
for name in ("/dev/null", "/dev/stderr", "/proc/self/fd/2"):
    with open(name, "w") as file:
        file.write("x")
for name in ("/dev/urandom", "/dev/zero", "/proc/self/status", "/sys/devices/system/cpu/online"):
    with open(name, "rb") as file:
        file.read(1)
ours, theirs = os.openpty()
os.write(theirs, b"1")
assert os.read(ours, 1) == b"1"
os.close(os.open(os.ttyname(theirs), os.O_RDWR | os.O_NOCTTY))
with tempfile.TemporaryFile(dir="/dev/shm") as file:
    file.write(b"x")
print("ok")
"""
    ending = python(level, script, OPEN)
    assert ending.stdout == b"ok\n", ending


# -- exhaustion ---------------------------------------------------------------------------------------------


def limited(**limits) -> Permit:
    return Permit(profile=Profile.CLOSED, limits=Limits(**{"timeout_s": 20.0, **limits}))


def test_memory_over_the_limit_stops_the_call(level):
    hog = "import time\nkept = bytearray(150 << 20)\ntime.sleep(60)"
    ending = python(level, hog, limited(memory_bytes_max=100 << 20))
    assert (ending.end, "memory" in ending.reason) == (End.OVER_LIMIT, True), ending
    swarm = (
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        kept = bytearray(60 << 20)\n        time.sleep(60)\ntime.sleep(60)"
    )
    ending = python(level, swarm, limited(memory_bytes_max=150 << 20))
    assert (ending.end, "memory" in ending.reason) == (End.OVER_LIMIT, True), ending


def test_one_allocation_far_over_the_limit_fails_at_once(level):
    ending = python(level, "bytearray(3 << 30)", limited(memory_bytes_max=256 << 20))
    assert ending.end is End.OVER_LIMIT or b"MemoryError" in ending.stderr, ending


def test_a_fork_bomb_is_stopped(level):
    # Bounded by itself: were it not stopped, the machine that runs the tests must live on.
    bomb = (
        "import os, time\nfor _ in range(300):\n    if os.fork() == 0:\n        time.sleep(10)\n"
        "        os._exit(0)\n    time.sleep(0.001)\ntime.sleep(10)"
    )
    ending = python(level, bomb, limited(processes_max=50, timeout_s=10.0))
    assert (ending.end, "processes" in ending.reason) == (End.OVER_LIMIT, True), ending


def test_scratch_space_over_the_limit_stops_the_call(level):
    fill = 'i=0; while :; do head -c 5000000 /dev/zero > "$TMPDIR/f$i"; i=$((i+1)); sleep 0.01; done'
    ending = shell(level, fill, limited(scratch_bytes_max=20 << 20))
    assert (ending.end, ending.reason != "") == (End.OVER_LIMIT, True), ending


def test_one_file_over_the_limit_is_cut_short(level):
    ending = shell(
        level, 'sleep 0.2; head -c 5000000 /dev/zero > "$TMPDIR/f"; wc -c < "$TMPDIR/f"',
        limited(file_bytes_max=1_000_000),
    )  # fmt: skip
    assert ending.stdout.strip() == b"1000000", ending


def test_open_files_over_the_limit_are_refused(level):
    script = "import os, time\ntime.sleep(0.2)\nkept = [os.dup(0) for _ in range(200)]"
    ending = python(level, script, limited(open_files_max=64))
    assert b"Too many open files" in ending.stderr, ending


ENDLESS = {
    "deep": "while True: os.mkdir('d'); os.chdir('d')",
    "wide": "for n in itertools.count(): os.mkdir(str(n))",
    "both": "for n in itertools.count(): os.makedirs(f'{n}/a/b/c')",
    "files": "for n in itertools.count(): os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))",
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("most", [256 << 20, 1 << 40], ids=["limited", "without-limit"])
def test_attack_folders_without_end_are_answered_in_time(level, kind, most):
    """Counting them, and removing them, must not delay the answer, nor the next call."""
    script = f"import itertools, os\nos.chdir(os.environ['TMPDIR'])\n{ENDLESS[kind]}"

    def act() -> tuple[Ending, float]:
        began = time.monotonic()
        return python(level, script, limited(timeout_s=1.0, scratch_bytes_max=most)), time.monotonic() - began

    ending, took_s = timely(act, lambda found: found[1], 2.0)
    assert ending.end in (End.TIMED_OUT, End.OVER_LIMIT), ending
    assert took_s < 2.0

    def again() -> tuple[Ending, float]:
        began = time.monotonic()
        return shell(level, 'ls "$TMPDIR"', CLOSED), time.monotonic() - began

    ending, took_s = timely(again, lambda found: found[1], 1.0)
    assert (ending.exit_status, ending.stdout) == (0, b"")
    assert took_s < 1.0


def test_a_deep_tree_in_the_scratch_folder_is_removed(level):
    script = (
        "import os\nos.chdir(os.environ['TMPDIR'])\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')"
    )
    assert python(level, script, CLOSED).end in (End.EXITED, End.OVER_LIMIT)
    again = shell(level, 'ls "$TMPDIR"', CLOSED)
    assert (again.exit_status, again.stdout) == (0, b"")


# -- starting -----------------------------------------------------------------------------------------------


@pytest.mark.battery("C10")
def test_c10_a_working_directory_that_is_missing_is_an_error_and_nothing_else_is_used(level, place):
    missing = place / "gone"
    ending = run(level, ["/bin/pwd"], CLOSED, missing)
    assert ending.end is End.NOT_STARTED
    assert ending.reason == f"working directory {missing}: No such file or directory"


def test_a_file_swapped_after_the_check_is_never_run(level, place):
    program = place / "tool"
    program.write_text("#!/bin/sh\necho evil\n", encoding="utf-8")
    program.chmod(0o755)
    checked = b"#!/bin/sh\necho checked\n"
    ending = run(level, [str(program)], CLOSED, sealed=((str(program), checked),), own=(str(program),))
    assert b"evil" not in ending.stdout
    assert ending.stdout == b"checked\n" or ending.end is End.DENIED, ending


def test_a_level_below_the_one_required_starts_nothing(level, place):
    permit = Permit(profile=Profile.CLOSED, level=Level.SUPERVISED)
    ending = run(level, ["/bin/echo", "ran"], permit)
    if level.level is Level.SUPERVISED:
        assert ending.stdout == b"ran\n"
    else:
        assert (ending.end, ending.stdout) == (End.UNAVAILABLE, b"")
        assert "supervised" in ending.reason


# -- as an ordinary user ------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user; as root this runs all again as one")
def test_all_of_this_holds_for_an_ordinary_user(request):
    root = Path(__file__).parent.parent.parent
    site = [path for path in sys.path if path.endswith("site-packages")]
    interpreter = sys.executable if _nobody_runs([sys.executable]) else PYTHON
    env = {
        "PATH": ENV["PATH"],
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), *site]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if not _nobody_runs([interpreter, "-c", "import pytest, orjson, toolcrib"], env):
        pytest.skip("no Python that an ordinary user can run has our dependencies; install one in /usr")
    home = tempfile.mkdtemp()
    os.chown(home, 65534, 65534)
    try:
        done = subprocess.run(
            [interpreter, "-m", "pytest", "-q", "-o", f"cache_dir={home}/cache",
             "-c", str(root / "pyproject.toml"), "--rootdir", str(root),
             f"--basetemp={home}/base", str(Path(__file__))],
            user=65534, group=65534, extra_groups=[], cwd=home, env={**env, "HOME": home}, check=False,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def _nobody_runs(argv: list[str], env: dict[str, str] | None = None) -> bool:
    try:
        return (
            subprocess.run(
                [*argv, *(["-c", ""] if len(argv) == 1 else [])],
                user=65534, group=65534, extra_groups=[], env=env or {}, check=False, capture_output=True,
                cwd="/", timeout=60,
            ).returncode
            == 0
        )  # fmt: skip
    except OSError:
        return False
