"""What runs inside a Python tool's own process: loads its file, calls it, answers with a frame of bytes.

The host hands this module to the tool's interpreter as code or as text, so it imports the standard library
alone, as little of it as possible, and works in interpreters older and newer than the host's. ``cold()`` is
one interpreter for one call: everything comes on stdin, and the answer is the last thing on stdout, behind a
mark that only this call knows. ``_zygote.py`` uses the same parts for interpreters that stay.

Nothing here restricts anything; whoever starts the interpreter did.
"""

from __future__ import annotations

import binascii
import builtins
import importlib
import importlib.machinery
import json
import os
import resource
import struct
import sys
import types
from contextlib import suppress
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LENGTH = struct.Struct("!Q")
HEAD = struct.Struct("!cQddQ")
"""An answer: its tag, its length, and what it took: user and system seconds, memory in bytes. The tags are V
(a value: its type's name and JSON), E (an exception: its type's name and text), X (a script's exit status)
and L (a value too long to be sent)."""
REASON_CHARS_MAX = 20_000
PIPED_BYTES_MAX = 60_000
"""What a pipe holds without a reader."""


# -- values as JSON -----------------------------------------------------------------------------------------


_encode = json.JSONEncoder(default=str, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def as_json(value: object) -> bytes:
    """Any value as JSON: what JSON cannot carry becomes its ``str``, a number that is none becomes null."""
    try:
        return _encode(value).encode("utf-8")
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
            sys.path[:] = [*spec["path"], *self.installed, folder, *spec.get("after", ())]
        verified = spec.get("verified")
        if verified is not None:
            serve_verified(verified, self.installed, self.file, source)
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
                with suppress(Exception):  # the call will meet it as well
                    context_names(self.function)
        return self.function

    def find(self, module: types.ModuleType) -> Callable[..., object]:
        return find_function(module, self.names, os.path.basename(self.file))

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
            frame = framed(b"E", exception_text(error))
        else:
            kind = type(value).__name__.encode("utf-8", "replace")
            frame = (
                framed(b"V", kind + b"\0" + body) if len(body) <= self.result_bytes_max else framed(b"L", b"")
            )
        flush()
        return frame

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


# -- verified modules ---------------------------------------------------------------------------------------


def serve_verified(told: dict[str, Any], installed: list[str], file: str, source: bytes) -> None:
    """From now on import what lies in certain folders from these bytes, and from nowhere else.

    Attack: a module that is replaced after it was verified, slipped in beside it, or left as compiled code in
    ``__pycache__``. Nothing in these folders is opened by the import system.
    """
    files = {path: binascii.a2b_base64(body) for path, body in told["files"].items()}
    files[file] = source
    # By name alone: whoever replaces a folder by a link while we look must not lead us elsewhere.
    for named, real in told["folders"]:
        for path in [path for path in files if path.startswith(f"{real}/")]:
            files[named + path[len(real) :]] = files[path]
    folders = tuple(f"{folder}/" for pair in told["folders"] for folder in pair)
    others = tuple(folder.rstrip("/") + "/" for folder in installed)

    def finder(entry: str) -> VerifiedFolder:
        folder = os.path.abspath(entry) + "/"
        if not folder.startswith(folders) or folder.startswith(others):
            raise ImportError(f"{entry} holds nothing that was verified")
        return VerifiedFolder(folder, files)

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()


class VerifiedFolder:
    """What the import system asks about one folder."""

    def __init__(self, folder: str, files: dict[str, bytes]) -> None:
        self.folder = folder
        self.files = files

    def find_spec(self, name: str, target: object = None) -> importlib.machinery.ModuleSpec | None:
        base = self.folder + name.rpartition(".")[2]
        for path, inside in ((f"{base}/__init__.py", [base]), (f"{base}.py", None)):
            if path in self.files:
                loader: Any = VerifiedSource(path, self.files)
                spec = importlib.machinery.ModuleSpec(
                    name, loader, origin=path, is_package=inside is not None
                )
                spec.has_location = True
                spec.submodule_search_locations = inside
                return spec
        if any(path.startswith(f"{base}/") for path in self.files):
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [base]
            return spec
        if any(os.path.lexists(base + suffix) for suffix in self.suffixes()):
            raise ImportError(f"{name}: {base} was not verified, so it is not imported", name=name)
        return None

    @staticmethod
    def suffixes() -> list[str]:
        return ["/__init__.py", *importlib.machinery.all_suffixes()]

    def invalidate_caches(self) -> None:
        """Nothing is remembered: all there is was handed over."""


class VerifiedSource:
    """One module, from the bytes that were verified."""

    def __init__(self, path: str, files: dict[str, bytes]) -> None:
        self.path = path
        self.files = files

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - the tool's, in its own process

    def get_code(self, name: str) -> types.CodeType:
        return compile(self.files[self.path], self.path, "exec", dont_inherit=True)

    def get_source(self, name: str) -> str:
        return self.files[self.path].decode("utf-8", "replace")

    def get_filename(self, name: str) -> str:
        return self.path

    def is_package(self, name: str) -> bool:
        return self.path.endswith("/__init__.py")

    def get_data(self, path: str) -> bytes:
        known = self.files.get(os.path.abspath(path))
        if known is not None:
            return known
        with open(path, "rb") as file:
            return file.read()


def find_function(module: object, names: Sequence[str], where: str) -> Callable[..., Any]:
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
    value = call(function, style, request)
    if hasattr(type(value), "__await__"):
        asyncio = importlib.import_module("asyncio")
        value = asyncio.run(_awaited(value))
    return value


def call(function: Callable[..., object], style: str, request: dict[str, Any]) -> object:
    """Call. A coroutine is for whoever asked to bring to its end: the host has its own ways."""
    if style == "handler":
        context = named_context(function, request["context"])
        return function(request["name"], request["params"], **context)
    return function(request["params"], request["project"])


async def _awaited(value: Any) -> object:
    return await value


def named_context(function: Callable[..., object], context: dict[str, Any]) -> dict[str, Any]:
    """The part of the context that a handler names, after the tool's name and its input."""
    try:
        named, required = context_names(function)
    except TypeError:  # an object that can be called and not be remembered
        named, required = context_names.__wrapped__(function)
    if not context and not required:
        return {}
    missing = [name for name in required if name not in context]
    if missing:
        raise LookupError(f"missing context: {', '.join(missing)}")
    return {key: value for key, value in context.items() if named is None or key in named}


@lru_cache(maxsize=256)
def context_names(function: Callable[..., object]) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """The names of the context that a handler takes (None: whatever there is) and those it must have."""
    if type(function) is types.FunctionType and not function.__dict__ and function.__code__.co_argcount >= 2:
        return plain_context_names(function)
    inspect = importlib.import_module("inspect")
    parameters = list(inspect.signature(function).parameters.values())[2:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return (
        None if takes_all else frozenset(p.name for p in named),
        tuple(p.name for p in named if p.default is p.empty),
    )


def plain_context_names(function: types.FunctionType) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """The same of a function that nothing wraps, read off its code: ``inspect`` takes longer to import than a
    call takes, and every child of a zygote would carry it."""
    code = function.__code__
    names = code.co_varnames
    first = max(2, code.co_posonlyargcount)
    has_default = code.co_argcount - len(function.__defaults__ or ())
    keywords = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    takes_all = code.co_flags & 0x08
    return (
        None if takes_all else frozenset((*names[first : code.co_argcount], *keywords)),
        (
            *names[first : max(first, has_default)],
            *(name for name in keywords if name not in (function.__kwdefaults__ or {})),
        ),
    )


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


def framed(tag: bytes, body: bytes) -> bytes:
    own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    took = (
        own.ru_utime + theirs.ru_utime,
        own.ru_stime + theirs.ru_stime,
        1024 * max(own.ru_maxrss, theirs.ru_maxrss),
    )
    return HEAD.pack(tag, len(body), *took) + body


def flush() -> bool:
    """Whether everything that was printed is out."""
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            done = False
    return done


def _leave(status: int) -> int:
    """What an interpreter does before it ends: wait for threads, run what was registered, flush."""
    try:
        threading: Any = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        importlib.import_module("atexit")._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - as the interpreter: it is reported, and changes nothing
        report_exception(error)
    return status if flush() or status else 120


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


def speak_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


# -- one interpreter, one call ------------------------------------------------------------------------------


def cold() -> None:
    """Answer the one request on stdin, then end."""
    speak_utf8()
    spec, source, request = (_read_frame() for _ in range(3))
    program = Program(json.loads(spec), source)
    asked = json.loads(request)
    frame = program.answer(asked)
    if program.style == "script":
        os._exit(int(frame[HEAD.size :]))
    rest = memoryview(asked["mark"].encode("ascii") + frame)
    while rest:
        rest = rest[os.write(1, rest) :]
    os._exit(0)


def _read_frame() -> bytes:
    (size,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
    return sys.stdin.buffer.read(size)
