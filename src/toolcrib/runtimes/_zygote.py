"""An interpreter that stays: it loads a Python tool once and forks one child for each call.

Three kinds of process, all running this file, which the host hands over after ``_loader.py``:

* the *zygote* Z loads the tool, then forks a slot for every ``+`` on its channel;
* a *slot* P serves one call after another. It is the child-subreaper of its calls and always keeps one child
  ready, forked ahead, so that no caller waits for a fork;
* that *child* T restricts itself before it reads anything of its one call, answers, and is killed. P sweeps
  up whatever T left behind, empties the scratch folder and forks the next T.

Secrets travel only in a request, so only T ever holds them. Nothing here decides about limits in time, memory
or number: the host watches, and kills T. If the host goes away, every socket ends, and so do we.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import struct
import sys
import time
from contextlib import suppress

from toolcrib.runtimes._loader import (
    LENGTH,
    REASON_CHARS_MAX,
    Program,
    VerifiedSource,
    as_json,
    call_function,
    exception_text,
    flush,
    framed,
    speak_utf8,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal  # the public modules make enums of everything, in each child again

CHANNEL_FD = 3
CHUNK_BYTES = 65536
ENDED = struct.Struct("!ciddq")
"""Whether all is swept, the exit status (negative: the signal), user and system seconds, memory in bytes."""
SWEEP_S = 2.0
"""How long the killed may take to die before the host is told that they did not."""

_DESCRIPTOR = struct.Struct("i")
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_REFER = 1 << 13
_FILE_RIGHTS = 0b1100000000000111
_ONLY_AST = 0x400
_REHEARSALS = 20
"""More than the interpreter waits for before it adapts a piece of code."""


# -- Z: the tool, loaded once -------------------------------------------------------------------------------


def zygote() -> None:
    """Load the tool, tell the host what became of it, and fork slots until the channel ends."""
    channel = _socket.socket(fileno=CHANNEL_FD)
    os.set_inheritable(CHANNEL_FD, False)
    speak_utf8()
    spec = json.loads(_recv_chunks(channel))
    program = Program(spec, _recv_chunks(channel))
    try:
        if spec["ahead"]:
            program.load()
        else:
            import_ahead(program)
    except BaseException as error:  # noqa: BLE001 - whatever a tool's top level raises is an answer
        name, _, text = exception_text(error).partition(b"\0")
        lines = importlib.import_module("traceback").format_exception(type(error), error, error.__traceback__)
        told = {
            "kind": name.decode("utf-8"),
            "reason": text.decode("utf-8"),
            "trace": "".join(lines)[-REASON_CHARS_MAX:],
        }
        channel.send(b"F" + json.dumps(told).encode("ascii"))
        os._exit(1)
    flush()
    threading: Any = sys.modules.get("threading")
    loaded = {
        "threads": threading.active_count() if threading is not None else 1,
        "watched": watched(program),
    }
    body = json.dumps(loaded).encode("ascii")
    for at in range(0, len(body), CHUNK_BYTES - 1):
        channel.send(b"Z" + body[at : at + CHUNK_BYTES - 1])
    channel.send(b"Z")
    # Attack: a call that reads or changes the memory of the process that later calls are forked from. The
    # child's own Landlock layer stops it; where there is none, this does.
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for _ in range(_REHEARSALS):
        _rehearse(program.style)
    gc.collect()
    gc.freeze()  # so that collecting in a child does not copy every page
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # slots that end are nobody's to wait for
    number = 0
    while channel.recv(1):
        number += 1
        if os.fork() == 0:
            try:
                _Slot(channel, program, spec, number).serve()
            finally:  # also where it cannot begin: what the tool left for its end is no slot's to do
                os._exit(0)
    os._exit(0)


def _recv_chunks(channel: _socket.socket) -> bytes:
    size = int(channel.recv(32))
    body = bytearray()
    while len(body) < size:
        part = channel.recv(CHUNK_BYTES)
        if not part:
            os._exit(1)
        body += part
    return bytes(body)


def import_ahead(program: Program) -> None:
    """Import the installed modules that the top level imports, and nothing of the tool's own.

    The file itself runs later, in the child that has the call's environment, argv and ``__main__``.
    """
    program.compile()
    tree: Any = compile(program.source, program.file, "exec", _ONLY_AST, dont_inherit=True)
    for name, members in _imports(tree.body):
        if _is_installed(program, name.partition(".")[0]):
            try:
                __import__(name, fromlist=members)
            except Exception:  # noqa: BLE001 - the file itself will meet it, and may handle it
                continue


def _imports(body: list[Any]) -> list[tuple[str, list[str]]]:
    """The absolute imports among statements and in the branches of ``if``, ``try`` and ``with``."""
    found: list[tuple[str, list[str]]] = []
    for node in body:
        kind = type(node).__name__
        if kind == "Import":
            found += [(alias.name, []) for alias in node.names]
        elif kind == "ImportFrom" and not node.level and node.module and node.module != "__future__":
            found.append((node.module, [alias.name for alias in node.names if alias.name != "*"]))
        elif kind in ("If", "Try", "With"):
            if kind == "If" and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING":
                continue
            for part in ("body", "orelse", "finalbody"):
                found += _imports(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                found += _imports(handler.body)
    return found


def _is_installed(program: Program, top: str) -> bool:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(_is_below(place, program.installed) for place in places)


def _is_below(place: str, folders: list[str]) -> bool:
    return any(place.startswith(folder.rstrip("/") + "/") for folder in folders)


def watched(program: Program) -> list[tuple[str, int, int, int, int]]:
    """The files of modules that are not installed: when one changes, what was loaded is old."""
    found = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(getattr(module, "__loader__", None), VerifiedSource):
            continue  # not from the file: other bytes make another zygote
        if isinstance(path, str) and path != program.file and not _is_below(path, program.installed):
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                continue
            found[path] = (path, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
    return list(found.values())


# -- P: one call after another ------------------------------------------------------------------------------


class _Slot:
    """One call at a time, and nothing of it left when the next begins."""

    def __init__(self, channel: _socket.socket, program: Program, spec: dict[str, Any], number: int) -> None:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGCHLD])
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.program = program
        self.spec = spec
        self.number = number
        theirs, self.control = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        # The host learns who we are from the kernel, not from us, and lends us the list of our children,
        # which the rules do not let us open.
        try:
            _send_fds(channel, b"S", theirs.fileno())
        except OSError:  # too many are on their way already
            channel.send(b"S")
            os._exit(0)
        channel.close()
        theirs.close()
        _, lent, _, _ = self.control.recvmsg(
            16, _socket.CMSG_SPACE(_DESCRIPTOR.size), _socket.MSG_CMSG_CLOEXEC
        )
        self.children = _DESCRIPTOR.unpack(lent[0][2])[0] if lent else -1
        self.scratch = ""
        self.ruleset = -1
        self.rlimits = [
            (number, (value, value)) for number, value in spec["rlimits"] if _is_narrower(number, value)
        ]
        self.new_scratch()

    def new_scratch(self) -> None:
        """A scratch folder, and the rules that let the calls of this slot, and no others, use it."""
        if self.ruleset >= 0:
            os.close(self.ruleset)
        parent = os.environ.get("TMPDIR") if self.spec["scratch"] else None
        if parent:
            self.scratch = os.path.join(parent, f"call-{self.number}-{time.monotonic_ns()}")
            os.mkdir(self.scratch, 0o700)
        self.ruleset = nested_ruleset(self.spec["landlock"], self.scratch)

    def serve(self) -> None:
        while self.one_call():
            pass
        if self.scratch and empty_folder(self.scratch):
            os.rmdir(self.scratch)

    def one_call(self) -> bool:
        """Keep a child ready, wait for its end, and sweep up after it; False: the host is gone."""
        theirs, talk = _socket.socketpair()
        out_end, out = os.pipe()
        err_end, err = os.pipe()
        pid = os.fork()
        if pid == 0:
            theirs.close()
            self.control.close()
            for fd in (out_end, err_end, self.children):
                if fd >= 0:
                    os.close(fd)
            try:
                self.be_tool(talk, out, err)
            finally:
                os._exit(1)
        watch = os.pidfd_open(pid)
        ready = b"R%d %s" % (pid, os.fsencode(self.scratch))
        host_is_there = True
        try:
            _send_fds(self.control, ready, theirs.fileno(), out_end, err_end, watch)
        except OSError:
            host_is_there = False
        theirs.close()
        os.close(out_end)
        os.close(err_end)
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        # The host ends a call by killing T; all that comes on the control socket now is its end.
        if not host_is_there or watch not in [fd for fd, _ in poll.poll()]:
            host_is_there = False
            os.kill(pid, _signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        os.close(watch)
        swept = self.sweep(pid)
        # Only now: while we held the other ends, the host was not woken by each of them closing.
        os.close(out)
        os.close(err)
        talk.close()
        code = -(status & 0x7F) if status & 0x7F else status >> 8
        took = (usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024)
        try:
            self.control.send(b"E" + ENDED.pack(b"S" if swept else b"L", code, *took))
        except OSError:
            return False
        # Attack: folders without number, or in each other without end: a call is answered when they are all
        # gone. No call waits for this slot before it is ready again.
        if not empty_folder(self.scratch):
            self.new_scratch()  # the old one goes with the zygote
        return host_is_there and swept

    def be_tool(self, talk: _socket.socket, out: int, err: int) -> None:
        """T: restricted first, then the one call. Does not return."""
        os.setpgid(0, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGCHLD])
        for number, both in self.rlimits:
            resource.setrlimit(number, both)
        if self.ruleset >= 0:
            if _syscall(_LANDLOCK_RESTRICT, self.ruleset, 0) < 0:
                raise OSError(ctypes.get_errno(), "the child cannot be restricted")
            os.close(self.ruleset)
        _libc().prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # its own /proc/self is its own
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed()  # else every child draws the same numbers
        _rehearse(self.program.style)
        (size,) = LENGTH.unpack(_recv_exactly(talk, LENGTH.size))
        request: dict[str, Any] = json.loads(_recv_exactly(talk, size).decode("ascii"))
        wanted = request["env"]
        if "TMPDIR" in wanted:
            wanted["TMPDIR"] = self.scratch
        _set_environment(wanted)
        talk.sendall(self.program.answer(request))
        # The host has its answer, and ends us. Leaving by ourselves would make it wait until our memory is
        # gone.
        talk.recv(1)
        os._exit(0)

    def sweep(self, group: int) -> bool:
        """Kill every descendant: whoever loses its parent becomes our child, so an end comes."""
        deadline = time.monotonic() + SWEEP_S
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid:
                continue
            with suppress(OSError):
                os.killpg(group, _signal.SIGKILL)
            for child in self.listed():
                with suppress(OSError):
                    os.kill(child, _signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            _signal.sigtimedwait([_signal.SIGCHLD], 0.02)

    def listed(self) -> list[int]:
        if self.children < 0:
            return []
        try:
            return [int(word) for word in os.pread(self.children, 1 << 20, 0).split()]
        except (OSError, ValueError):
            return []


def empty_folder(folder: str) -> bool:
    """Remove whatever lies in a folder, closed folders included; links are removed, never followed."""
    waiting = [folder] if folder else []
    folders: list[str] = []
    try:
        while waiting:
            at = waiting.pop()
            os.chmod(at, 0o700)
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        folders.append(entry.path)
                    else:
                        os.unlink(entry.path)
        for at in reversed(folders):
            os.rmdir(at)
    except OSError:
        return False
    return True


# -- T: one call --------------------------------------------------------------------------------------------


_SAMPLE = '{"name":"","params":{"a":[1,2.5,true,null,"text"]},"project":"","context":{},"env":{"A":"b"}}'


def _rehearse(style: str) -> None:
    """Go the way of an answer before a call waits for it, in the zygote and in each child.

    In the zygote many times, so that the interpreter has adapted its code when it is forked: adapting writes
    to pages that each child would have to copy. In a child once: what it touches is copied now and not then.
    """
    request = json.loads(_SAMPLE)
    env = dict(os.environ)
    _set_environment(env | request["env"])
    _set_environment(env)
    value = call_function(_sample_tool, style if style == "handler" else "function", request)
    framed(b"V", as_json(value))
    flush()


def _sample_tool(first: object, second: object) -> object:
    return {"result": [first, second]}


def _set_environment(wanted: dict[str, str]) -> None:
    environ = os.environ
    for name in [name for name in environ if name not in wanted]:
        del environ[name]
    for name, value in wanted.items():
        if environ.get(name) != value:
            environ[name] = value


def _recv_exactly(talk: _socket.socket, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        part = talk.recv(min(size - len(body), 1 << 20))
        if not part:
            os._exit(0)
        body += part
    return bytes(body)


# -- the kernel ---------------------------------------------------------------------------------------------

_LIBC: list[Any] = []


def _libc() -> Any:
    if not _LIBC:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        _LIBC.append(libc)
    return _LIBC[0]


def _syscall(number: int, *arguments: object) -> int:
    converted = [ctypes.c_long(part) if isinstance(part, int) else part for part in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *converted))


def _send_fds(to: _socket.socket, message: bytes, *fds: int) -> None:
    packed = b"".join(map(_DESCRIPTOR.pack, fds))
    to.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])


def _is_narrower(number: int, value: int) -> bool:
    _, hard = resource.getrlimit(number)
    return hard == resource.RLIM_INFINITY or value < hard


def nested_ruleset(rules: dict[str, Any], scratch: str) -> int:
    """A Landlock layer for the children of one slot, inside the one that already holds us; -1: no Landlock.

    Attack: a call that plants code in the zygote for the next caller, or looks into another call. A domain of
    its own can neither trace nor open the memory of a process outside it, nor signal it (from version 6).
    ``allowed`` are the paths of the permit: below our scratch folder only the slot's own part is among them.
    """
    version = _syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return -1
    handled = int(rules["handled"])
    if version >= 2:
        handled |= _REFER  # every layer refuses it unless it is allowed
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", 0)
    if version >= 6:
        attributes += struct.pack("=Q", int(rules["scoped"]))
    ruleset = _syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "no ruleset")
    os.set_inheritable(ruleset, False)
    allowed = [*rules["allowed"], ["/", handled & _REFER]]
    if scratch:
        allowed.append([scratch, handled])
    for path, bits in allowed:
        try:
            at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        bits = int(bits) & handled
        if not os.path.isdir(path):
            bits &= _FILE_RIGHTS
        if bits:
            _syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", bits, at), 0)
        os.close(at)
    return ruleset
