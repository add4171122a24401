"""What runs inside a Python tool's own process: the loader, and the zygote that forks one child per call.

The host hands this file's text to the tool's interpreter, so it imports the standard library alone and works
in interpreters older and newer than the host's. Two ways in:

``cold()``: one interpreter, one call. Program and request come on stdin; the answer is the last thing on
stdout, behind a mark that only this call knows.

``zygote()``: a long-lived process Z that loads the tool once. For each concurrent call it forks a *slot* P,
which lives on: P is the child-subreaper of its calls, and keeps exactly one child T, forked ahead, that waits
for its one call. T restricts itself before it reads anything of the call, answers, and is killed; P sweeps up
whatever T left behind, empties the scratch folder and forks the next T.

Secrets travel only in a request, so only T ever holds them. Nothing here decides about limits in time, memory
or number: the host watches and says when to stop. If the host goes away, every socket ends, and so do we.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import types
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CHANNEL_FD = 3
CHUNK_BYTES = 65536
LENGTH = struct.Struct("!Q")
HEAD = struct.Struct("!cQddQ")
"""An answer: its tag, its length, and what it took: user and system seconds, memory in bytes. The tags are V
(a value: its type's name and JSON), E (an exception: its type's name and text), X (a script's exit status)
and L (a value too long to be sent)."""
REASON_CHARS_MAX = 20_000
SWEEP_S = 2.0
"""How long the killed may take to die before the host is told that they did not."""
PIPED_BYTES_MAX = 60_000
"""What a pipe holds without a reader."""

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_REFER = 1 << 13
_FILE_RIGHTS = 0b1100000000000111


# -- values as JSON -----------------------------------------------------------------------------------------


def as_json(value: object) -> bytes:
    """Any value as JSON: what JSON cannot carry becomes its ``str``, a number that is none becomes null."""
    try:
        text = json.dumps(value, default=str, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8")
    except (TypeError, ValueError):  # keys that are no text, NaN, half a surrogate pair
        plain = _plain(value, ())
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _plain(value: object, above: tuple[int, ...]) -> object:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, (dict, list, tuple)):
        if id(value) in above:
            raise ValueError("the result contains itself")
        inside = (*above, id(value))
        if isinstance(value, dict):
            return {_key(key): _plain(part, inside) for key, part in value.items()}
        return [_plain(part, inside) for part in value]
    return _plain(str(value), above)


def _key(key: object) -> str:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(key).encode("utf-8", "replace").decode("utf-8")


# -- the tool -----------------------------------------------------------------------------------------------


class Program:
    """A tool's file: its code, and what became of it when it was loaded."""

    def __init__(self, spec: dict[str, Any], source: bytes) -> None:
        self.style: str = spec["style"]
        self.file: str = spec["file"]
        self.names: list[str] = spec["names"]
        self.result_bytes_max: int = spec["result_bytes_max"]
        self.source = source
        self.installed = [entry for entry in sys.path if entry]
        folder = os.path.dirname(self.file)
        if self.style == "script":
            sys.path[:] = [folder, *spec["path"], *self.installed]
        else:  # neighbours can be imported, and shadow nothing
            sys.path[:] = [*spec["path"], *self.installed, folder]
        self.code: types.CodeType | None = None
        self.function: Callable[..., object] | None = None

    def compile(self) -> types.CodeType:
        if self.code is None:
            self.code = compile(self.source, self.file, "exec", dont_inherit=True)
        return self.code

    def load(self) -> Callable[..., object]:
        """Run the file's top level, once, and find the function that calls go to."""
        if self.function is None:
            code = self.compile()
            stem = os.path.splitext(os.path.basename(self.file))[0]
            module = types.ModuleType(f"_tool_{stem}")
            module.__file__ = self.file
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, origin=self.file)
            sys.modules[module.__name__] = module  # dataclasses and pickle look for it there
            exec(code, module.__dict__)  # noqa: S102 - the tool, in its own process
            self.function = self.find(module)
            if getattr(getattr(self.function, "__code__", None), "co_flags", 0) & 0x80:
                importlib.import_module("asyncio")
            if self.style == "handler":
                importlib.import_module("inspect")
        return self.function

    def find(self, module: types.ModuleType) -> Callable[..., object]:
        return find_function(module, self.names, os.path.basename(self.file))

    def import_ahead(self) -> None:
        """Import the installed modules that the top level imports, and nothing of the tool's own.

        The file itself runs later, in the child that has the call's environment, argv and ``__main__``.
        """
        self.compile()
        tree: Any = compile(self.source, self.file, "exec", 0x400, dont_inherit=True)  # PyCF_ONLY_AST
        for name, members in _imports(tree.body):
            if self.is_installed(name.partition(".")[0]):
                try:
                    __import__(name, fromlist=members)
                except Exception:  # noqa: BLE001 - the file itself will meet it, and may handle it
                    continue

    def is_installed(self, top: str) -> bool:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            return False
        if spec is None:
            return False
        if spec.origin in ("built-in", "frozen"):
            return True
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        return bool(places) and all(self.is_below_installed(place) for place in places)

    def is_below_installed(self, place: str) -> bool:
        return any(place.startswith(entry.rstrip("/") + "/") for entry in self.installed)

    def watched(self) -> list[tuple[str, int, int, int, int]]:
        """The files of modules that are not installed: when one changes, what was loaded is old."""
        found = {}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and path != self.file and not self.is_below_installed(path):
                try:
                    status = os.stat(path)
                except (OSError, ValueError):
                    continue
                found[path] = (
                    path,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ino,
                    status.st_ctime_ns,
                )
        return list(found.values())

    # -- one call -------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> bytes:
        """Run the tool for one request and return the frame that answers it. Never raises."""
        if self.style == "script":
            return framed(b"X", str(self.run_script(request)).encode("ascii"))
        try:
            value = call_function(self.load(), self.style, request)
            body = as_json(value)
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is an answer
            report_exception(error)
            return _flushed(framed(b"E", exception_text(error)))
        if len(body) > self.result_bytes_max:
            return _flushed(framed(b"L", b""))
        return _flushed(framed(b"V", type(value).__name__.encode("utf-8", "replace") + b"\0" + body))

    def run_script(self, request: dict[str, Any]) -> int:
        """The file as ``__main__``, as the interpreter itself would run it; its exit status."""
        give_stdin(request["stdin"].encode("utf-8"))
        sys.argv[:] = request["argv"][1:]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = request["argv"]
        main = types.ModuleType("__main__")
        main.__file__ = self.file
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        status = 0
        try:
            exec(self.compile(), main.__dict__)  # noqa: S102
        except SystemExit as leaving:
            status = exit_status(leaving)
        except BaseException as error:  # noqa: BLE001 - an uncaught exception is exit status 1
            report_exception(error)
            status = 1
        return _leave(status)


def find_function(module: object, names: list[str], where: str) -> Callable[..., Any]:
    """The function of one of these names, or the only one that is named like a handler."""
    for name in names:
        found: Callable[..., Any] | None = getattr(module, name, None)
        if callable(found):
            return found
    if names and names[0].startswith("execute_"):
        like = [name for name in dir(module) if name.startswith("execute_") and name.endswith("_tool")]
        if len(like) == 1:
            return find_function(module, like, where)
    raise LookupError(f"{where} has no {names[0] if names else 'execute'}()")


def call_function(function: Callable[..., object], style: str, request: dict[str, Any]) -> object:
    """Call, and wait for the answer of a coroutine."""
    if style == "handler":
        context = named_context(function, request["context"])
        value = function(request["name"], request["params"], **context)
    else:
        value = function(request["params"], request["project"])
    if hasattr(type(value), "__await__"):
        asyncio = importlib.import_module("asyncio")
        value = asyncio.run(_awaited(value))
    return value


async def _awaited(value: Any) -> object:
    return await value


def named_context(function: Callable[..., object], context: dict[str, Any]) -> dict[str, Any]:
    """The part of the context that a handler names, after the tool's name and its input."""
    inspect = importlib.import_module("inspect")
    parameters = list(inspect.signature(function).parameters.values())[2:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        wanted = dict(context)
    else:
        wanted = {p.name: context[p.name] for p in parameters if p.name in context}
    missing = [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.default is p.empty
        and p.name not in context
    ]
    if missing:
        raise LookupError(f"missing context: {', '.join(missing)}")
    return wanted


def exit_status(leaving: SystemExit) -> int:
    """What the interpreter makes of ``sys.exit``: none is 0, a number itself, anything else is said aloud."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{leaving.code}\n")
    return 1


def exception_text(error: BaseException) -> bytes:
    try:
        text = str(error)[:REASON_CHARS_MAX]
    except Exception:  # noqa: BLE001 - an exception whose text raises has none
        text = ""
    return type(error).__name__.encode("utf-8", "replace") + b"\0" + text.encode("utf-8", "replace")


def report_exception(error: BaseException) -> None:
    """The stack trace, on stderr alone: without our own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    with suppress(Exception):  # a tool may have broken its own stderr
        sys.excepthook(type(error), error.with_traceback(trace), trace)


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


def framed(tag: bytes, body: bytes) -> bytes:
    own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    took = (
        own.ru_utime + theirs.ru_utime,
        own.ru_stime + theirs.ru_stime,
        1024 * max(own.ru_maxrss, theirs.ru_maxrss),
    )
    return HEAD.pack(tag, len(body), *took) + body


def _flush() -> bool:
    """Whether everything that was printed is out."""
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            done = False
    return done


def _flushed(frame: bytes) -> bytes:
    _flush()
    return frame


def _leave(status: int) -> int:
    """What an interpreter does before it ends: wait for threads, run what was registered, flush."""
    try:
        threading: Any = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        importlib.import_module("atexit")._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - as the interpreter: it is reported, and changes nothing
        report_exception(error)
    return status if _flush() or status else 120


def give_stdin(content: bytes) -> None:
    """Put bytes on descriptor 0: a pipe where they fit into one, else a file in memory."""
    if len(content) <= PIPED_BYTES_MAX:
        end, start = os.pipe()
        os.write(start, content)
        os.close(start)
    else:
        end = os.memfd_create("stdin")
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(end, rest) :]
        os.lseek(end, 0, os.SEEK_SET)
    os.dup2(end, 0)
    os.close(end)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open


def set_environment(wanted: dict[str, str]) -> None:
    environ = os.environ
    for name in [name for name in environ if name not in wanted]:
        del environ[name]
    for name, value in wanted.items():
        if environ.get(name) != value:
            environ[name] = value


def speak_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


# -- one interpreter, one call ------------------------------------------------------------------------------


def cold() -> None:
    """Answer the one request on stdin, then end."""
    speak_utf8()
    frames = sys.stdin.buffer
    spec = json.loads(_read_frame(frames))
    source = _read_frame(frames)
    request = json.loads(_read_frame(frames))
    mark = request.pop("mark").encode("ascii")
    program = Program(spec, source)
    frame = program.answer(request)
    if program.style == "script":
        os._exit(int(frame[HEAD.size :]))
    rest = memoryview(mark + frame)
    while rest:
        rest = rest[os.write(1, rest) :]
    os._exit(0)


def _read_frame(stream: Any) -> bytes:
    (size,) = LENGTH.unpack(stream.read(LENGTH.size))
    body: bytes = stream.read(size)
    return body


# -- the zygote ---------------------------------------------------------------------------------------------


def zygote() -> None:
    """Load the tool once, then fork a slot for every ``+`` on the channel."""
    channel = socket.socket(fileno=CHANNEL_FD)
    channel.set_inheritable(False)
    speak_utf8()
    spec = json.loads(_recv_chunks(channel))
    program = Program(spec, _recv_chunks(channel))
    try:
        if spec["ahead"]:
            program.load()
        else:
            program.import_ahead()
    except BaseException as error:  # noqa: BLE001 - whatever a tool's top level raises is an answer
        name, _, text = exception_text(error).partition(b"\0")
        trace = "".join(
            importlib.import_module("traceback").format_exception(type(error), error, error.__traceback__)
        )
        told = {
            "kind": name.decode("utf-8"),
            "reason": text.decode("utf-8"),
            "trace": trace[-REASON_CHARS_MAX:],
        }
        channel.send(b"F" + json.dumps(told).encode("utf-8", "replace"))
        os._exit(1)
    _flush()
    threading: Any = sys.modules.get("threading")
    loaded = {
        "threads": threading.active_count() if threading is not None else 1,
        "watched": program.watched(),
    }
    for part in _chunks(json.dumps(loaded).encode("utf-8")):
        channel.send(b"Z" + part)
    channel.send(b"Z")
    # Attack: a call that reads or changes the memory of the process that later calls are forked from. The
    # child's own Landlock layer stops it; where there is none, this does.
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _rehearse()
    gc.collect()
    gc.freeze()  # so that collecting in a child does not copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # slots that end are nobody's to wait for
    number = 0
    while channel.recv(1):
        number += 1
        if os.fork() == 0:
            _Slot(channel, program, spec, number).serve()
    os._exit(0)


def _recv_chunks(channel: socket.socket) -> bytes:
    size = int(channel.recv(32))
    body = bytearray()
    while len(body) < size:
        part = channel.recv(CHUNK_BYTES)
        if not part:
            os._exit(1)
        body += part
    return bytes(body)


def _chunks(body: bytes) -> list[bytes]:
    return [body[at : at + CHUNK_BYTES - 1] for at in range(0, len(body), CHUNK_BYTES - 1)]


class _Slot:
    """P: one call at a time, and nothing of it left when the next begins."""

    def __init__(
        self,
        channel: socket.socket,
        program: Program,
        spec: dict[str, Any],
        number: int,
    ) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.program = program
        self.spec = spec
        theirs, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.number = number
        self.scratch = ""
        # The host learns who we are from the kernel, not from us, and lends us the list of our children,
        # which the rules do not let us open.
        socket.send_fds(channel, [b"S"], [theirs.fileno()])
        channel.close()
        theirs.close()
        _, fds, _, _ = socket.recv_fds(self.control, 16, 1)
        self.children = fds[0] if fds else -1
        self.ruleset = -1
        self.new_scratch()

    def new_scratch(self) -> None:
        """A scratch folder, and the rules that let the calls of this slot, and no others, use it."""
        if self.ruleset >= 0:
            os.close(self.ruleset)
        parent = os.environ.get("TMPDIR") if self.spec["scratch"] else None
        self.scratch = ""
        if parent:
            made = time.monotonic_ns()
            self.scratch = os.path.join(parent, f"call-{self.number}-{made}")
            os.mkdir(self.scratch, 0o700)
        self.ruleset = nested_ruleset(self.spec["landlock"], self.scratch)

    def serve(self) -> None:
        try:
            while self.one_call():
                pass
        finally:
            if self.scratch:
                shutil.rmtree(self.scratch, ignore_errors=True)
            os._exit(0)

    def one_call(self) -> bool:
        """Keep a child ready, wait for its end or for the word to end it, and sweep up after it."""
        theirs, talk = socket.socketpair()
        out_end, out = os.pipe()
        err_end, err = os.pipe()
        pid = os.fork()
        if pid == 0:
            theirs.close()
            os.close(out_end)
            os.close(err_end)
            self.control.close()
            if self.children >= 0:
                os.close(self.children)
            try:
                _become_tool(self.program, self.spec, talk, out, err, self.ruleset, self.scratch)
            finally:
                os._exit(1)
        watch = os.pidfd_open(pid)
        goes_on = True
        try:
            told = b"R%d %s" % (pid, os.fsencode(self.scratch))
            socket.send_fds(self.control, [told], [theirs.fileno(), out_end, err_end])
        except OSError:
            goes_on = False
        theirs.close()
        os.close(out_end)
        os.close(err_end)
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        stop = b"k%d" % pid
        if not goes_on:
            os.kill(pid, signal.SIGKILL)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if watch in ready:
                break
            message = self.control.recv(32)
            if not message:
                goes_on = False
                poll.unregister(self.control)
            if not message or message == stop:  # a word for an earlier child comes too late
                os.kill(pid, signal.SIGKILL)
        os.close(watch)
        _, status, usage = os.wait4(pid, 0)
        swept = self.sweep(pid)
        if not empty_folder(self.scratch):
            self.new_scratch()  # the old one goes with the zygote
        # Only now: while we held the other ends, the host was not woken by each of them closing.
        os.close(out)
        os.close(err)
        talk.close()
        if goes_on:
            code = -(status & 0x7F) if status & 0x7F else status >> 8
            ended = (
                b"S" if swept else b"L",
                code,
                usage.ru_utime,
                usage.ru_stime,
                usage.ru_maxrss * 1024,
            )
            try:
                self.control.send(b"E" + ENDED.pack(*ended))
            except OSError:
                return False
        return goes_on and swept

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
                os.killpg(group, signal.SIGKILL)
            for child in self.listed():
                with suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            signal.sigtimedwait([signal.SIGCHLD], 0.02)

    def listed(self) -> list[int]:
        if self.children < 0:
            return []
        try:
            return [int(word) for word in os.pread(self.children, 1 << 20, 0).split()]
        except (OSError, ValueError):
            return []


ENDED = struct.Struct("!cidd" + "q")
"""Whether all is swept, the exit status (negative: the signal), user and system seconds, memory in bytes."""


def _become_tool(
    program: Program,
    spec: dict[str, Any],
    talk: socket.socket,
    out: int,
    err: int,
    ruleset: int,
    scratch: str,
) -> None:
    """T: restricted first, then the one call. Does not return."""
    os.setpgid(0, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number, value in spec["rlimits"]:
        _, hard = resource.getrlimit(number)
        if hard == resource.RLIM_INFINITY or value < hard:
            resource.setrlimit(number, (value, value))
    if ruleset >= 0:
        if _libc().syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_long(ruleset), ctypes.c_long(0)) < 0:
            raise OSError(ctypes.get_errno(), "the child cannot be restricted")
        os.close(ruleset)
    _libc().prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # its own /proc/self is its own
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()  # else every child draws the same numbers
    _rehearse()
    request = _receive_request(talk)
    wanted = request["env"]
    if "TMPDIR" in wanted:
        wanted["TMPDIR"] = scratch
    set_environment(wanted)
    talk.sendall(program.answer(request))
    # The host has its answer, and ends us. Leaving by ourselves would make it wait until our memory is gone.
    talk.recv(1)
    os._exit(0)


def _receive_request(talk: socket.socket) -> dict[str, Any]:
    (size,) = LENGTH.unpack(_recv_exactly(talk, LENGTH.size))
    request: dict[str, Any] = json.loads(_recv_exactly(talk, size))
    return request


def _recv_exactly(talk: socket.socket, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        part = talk.recv(min(size - len(body), 1 << 20))
        if not part:
            os._exit(0)
        body += part
    return bytes(body)


_SAMPLE = b'{"name":"","params":{"a":[1,2.5,true,null,"text"]},"project":"","context":{},"env":{"A":"b"}}'


def _rehearse() -> None:
    """Go the way of an answer once, so that the memory it touches is ours before a call waits for it."""
    one, other = socket.socketpair()
    for _ in range(2):
        one.sendall(LENGTH.pack(len(_SAMPLE)) + _SAMPLE)
        request = _receive_request(other)
        request["env"].update(os.environ)
        set_environment(request["env"])
        set_environment({name: value for name, value in request["env"].items() if name != "A"})
        value = call_function(
            lambda params, project: {"success": params, "result": project}, "function", request
        )
        body = as_json(value)
        other.sendall(_flushed(framed(b"V", type(value).__name__.encode("utf-8") + b"\0" + body)))
        one.recv(CHUNK_BYTES)
    one.close()
    other.close()


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
    os.set_inheritable(ruleset, False)
    return ruleset
