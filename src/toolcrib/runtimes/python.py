"""Python tools: functions, scripts and handlers, each call in a process of its own.

Where the sandbox keeps services (the supervised level), a tool is loaded once into a zygote, and a child that
was forked ahead answers each call; elsewhere each call starts an interpreter. Both run ``_zygote.py`` and
give the same endings. In the host's own process run only handlers that the host registered, and files that
were verified where the host opted in: such code cannot be stopped at its time limit.

The bytes that run are the bytes that were read and checked, handed over as bytes, never by path. Nothing here
judges what comes back; ``calls/replies.py`` does.
"""

from __future__ import annotations

import ast
import base64
import json
import marshal
import os
import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

import orjson
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.calls import commands
from toolcrib.catalog import digests, files
from toolcrib.jsontext import JsonValue
from toolcrib.model import (
    CallPython,
    End,
    Ending,
    Limits,
    Permit,
    PythonStyle,
    Run,
    Tool,
    ToolCall,
    ToolError,
)
from toolcrib.records import Discreet
from toolcrib.runtimes import (
    Host,
    _checked,
    _dependencies,
    _loader,
    _loops,
    _prepared,
    _zygote,
    _zygotes,
    handed,
    project_of,
)
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox.rules import rlimits
from toolcrib.sandbox.supervised import Service

_FUNCTIONS_KEPT: Final = 256
_FRAME_BYTES: Final = 4096
_FUNCTION: Final = ("execute",)
_RETURNED: Final = End.RETURNED  # a member of an enumeration costs more to look up

# The interpreter is handed our modules as code where it is of our own version, which saves compiling them.
_START: Final = (
    "import sys,types,marshal,_frozen_importlib_external as f\n"
    "parts=marshal.loads({read})\n"
    "for name,magic,code,text in parts:\n"
    " m=sys.modules[name]=types.ModuleType(name)\n"
    " code=marshal.loads(code) if magic==f.MAGIC_NUMBER else compile(text,'<toolcrib>','exec')\n"
    " exec(code,m.__dict__)\n"
    "for name,*_ in parts:del sys.modules[name]\n"
    "m.{way}()"
)
_COLD: Final = _START.format(read="sys.stdin.buffer.read(int(sys.argv[1]))", way="cold")
_WARM: Final = _START.format(read=f"__import__('os').read({_zygote.CHANNEL_FD},1<<20)", way="zygote")


@cache
def _code(*modules: ModuleType) -> bytes:
    """Our modules, as ``_START`` reads them."""
    parts = []
    for module in modules:
        assert module.__spec__ is not None
        loader: Any = module.__spec__.loader
        code = marshal.dumps(loader.get_code(module.__name__))
        parts.append((module.__name__, MAGIC_NUMBER, code, loader.get_source(module.__name__)))
    return marshal.dumps(parts, 2)


class PythonTools:
    """The runtime of ``CallPython``. Any number of threads may call; ``close`` ends every zygote."""

    def __init__(
        self,
        host: Host,
        contents: digests.Contents,
        *,
        verified: Callable[[BoundTool, ToolCall], bool] | None = None,
        zygotes_max: int = _zygotes.ZYGOTES_MAX,
        idle_s: float = _zygotes.ZYGOTE_IDLE_S,
    ) -> None:
        """``verified``: whether the bytes of a call were; only such files may run in this process."""
        self._host = host
        self._contents = contents
        self._verified = verified
        self._modules: OrderedDict[tuple[str, str], Callable[..., object]] = OrderedDict()
        self._lock = threading.Lock()
        self._loops = _loops.Loops()
        self._zygotes = _zygotes.Zygotes.kept_by(host.sandbox, zygotes_max, idle_s)

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        invocation = tool.invocation
        assert isinstance(invocation, CallPython)
        registered = self._registered(tool, invocation)
        if registered is not None and not tool.chain:  # a handler, which is told of no project
            request = {"name": tool.name, "params": call.arguments or {}, "context": call.context}
            return self._inside(
                lambda: registered, invocation.style, request, tool.key, (), permit.limits, cancel
            )
        project = project_of(tool, self._host)
        if project[:1] != "/":
            project = os.path.abspath(project)
        prepared = _prepared.prepare(tool, call, self._host, permit, project=project)
        if isinstance(prepared, Ending):
            return prepared
        if registered is not None:
            request = _request(tool, prepared, project, call.context)
            return self._inside(
                lambda: registered, invocation.style, request, tool.key, prepared.notes, permit.limits, cancel
            )
        found = self._file(bound, call, invocation)
        if isinstance(found, Ending):
            return found
        file, source, digest = found.path, found.content, found.digest
        names = _names(invocation, file)
        if (
            self._host.in_process
            and invocation.style is not PythonStyle.SCRIPT
            and self._verified is not None
            and self._verified(bound, call)
        ):
            load = partial(self._function, file, source, digest, names)
            request = _request(tool, prepared, project, call.context)
            return self._inside(load, invocation.style, request, file, prepared.notes, permit.limits, cancel)
        context, notes = _carried(tool, call, source, names)
        if isinstance(context, Ending):
            return context
        given = handed(self._host, bound, permit, prepared.env)
        if isinstance(given, Ending):
            return given
        interpreter = prepared.interpreter or self._host.python
        argv: tuple[str, ...] = (interpreter, file)
        stdin = b""
        if invocation.style is PythonStyle.SCRIPT:
            command = commands.command(tool, prepared.arguments, call.raw, cwd=project)
            if isinstance(command, ToolError):
                return Ending(end=End.REFUSED, reason=command.message, hint=command.hint)
            argv, stdin = (interpreter, *command.argv[1:]), command.stdin or b""
        asked = _Asked(
            tool=tool,
            style=invocation.style,
            file=file,
            source=source,
            digest=digest,
            names=names,
            permit=permit,
            interpreter=interpreter,
            env=given.env,
            cwd=prepared.cwd or self._host.cwd,
            own=(
                file,
                *prepared.own,
                *((os.path.dirname(file),) if invocation.style is PythonStyle.HANDLER else ()),
            ),
            dependencies=prepared.dependencies,
            verified=prepared.verified,
            argv=argv,
            request={"argv": argv, "stdin": stdin.decode("utf-8")}
            if invocation.style is PythonStyle.SCRIPT
            else _request(tool, prepared, project, context),
        )
        ending = given.cleaned(self._isolated(asked, cancel))
        notes = (*prepared.notes, *notes, *ending.notes)
        return replace(ending, notes=notes) if notes else ending

    def close(self) -> None:
        self._loops.close()
        if self._zygotes is not None:
            self._zygotes.close()

    # -- which code -----------------------------------------------------------------------------------------

    def _registered(self, tool: Tool, invocation: CallPython) -> Callable[..., object] | None:
        """The host's own handler: for this tool, for its executor, for its group."""
        handlers = self._host.handlers
        if not handlers or invocation.style is not PythonStyle.HANDLER:
            return None
        for key in (tool.name, invocation.executor, tool.scope):
            handler = handlers.get(key) if key is not None else None
            if handler is None:
                continue
            if callable(handler):
                return handler
            names = tuple(
                f"execute_{name}_tool" for name in dict.fromkeys((invocation.executor, key)) if name
            )
            with suppress(LookupError):
                return _loader.find_function(handler, names, str(key))
        return None

    def _file(self, bound: BoundTool, call: ToolCall, invocation: CallPython) -> _checked.Checked | Ending:
        if not bound.digests.own_files:
            kind = invocation.executor or bound.tool.scope
            return Ending(
                end=End.UNAVAILABLE,
                reason=f"No executor registered for tool type: {kind}",
                hint="put its module into the handlers directory, or register a handler for the executor",
            )
        return _checked.own_file(bound, call, self._contents)

    def _function(
        self, file: str, source: bytes, digest: str, names: tuple[str, ...]
    ) -> Callable[..., object]:
        """A verified file, loaded into this process once for its bytes."""
        with self._lock:
            function = self._modules.get((file, digest))
            if function is None:
                module = ModuleType(f"_tool_{Path(file).stem}_{digest[:8]}")
                module.__file__ = file
                exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
                function = _loader.find_function(module, names, os.path.basename(file))
                self._modules[file, digest] = function
                if len(self._modules) > _FUNCTIONS_KEPT:
                    self._modules.popitem(last=False)
            return function

    # -- in the host's own process --------------------------------------------------------------------------

    def _inside(
        self,
        load: Callable[[], Callable[..., object]],
        style: PythonStyle,
        request: dict[str, Any],
        what: str,
        notes: tuple[str, ...],
        limits: Limits,
        cancel: Cancel,
    ) -> Ending:
        """Call a function here. It sees this process, and unless it is async nothing can stop it: the host
        chose that. ``what`` is recorded as what ran."""
        began = time.perf_counter()
        end, reason, kind, result = _RETURNED, "", "", None
        hint: str | None = None
        stdout_bytes = 0
        try:
            value = _loader.call(load(), style, request)
            is_async = _loops.is_awaitable(value)
            if is_async:
                value = self._loops.finish(value, limits.timeout_s, cancel)
            kind = type(value).__name__
            took_s = time.perf_counter() - began
            if took_s > limits.timeout_s:
                end, hint = End.TIMED_OUT, _loops.late_hint(took_s, is_async=is_async)
            else:
                result = _copied(value, limits.stdout_bytes_max)
        except KeyboardInterrupt:
            raise
        except _loops.Late as late:
            end, hint = End.TIMED_OUT, late.hint
            notes = (*notes, late.note) if late.note else notes
        except _loops.GivenUp as given_up:
            end = End.CANCELLED
            notes = (*notes, given_up.note) if given_up.note else notes
        except _loops.Unfit as unfit:
            end, reason, hint = End.RAISED, str(unfit), unfit.hint
        except _TooLarge:
            end, stdout_bytes = End.TOO_LARGE, limits.stdout_bytes_max + 1
        except BaseException as error:  # noqa: BLE001 - whatever else a tool raises, leaving included, is an ending
            end, reason, kind = End.RAISED, str(error), type(error).__name__
        duration_ms = (time.perf_counter() - began) * 1e3
        run = Run(argv=(what,), cwd=self._host.cwd, duration_ms=duration_ms, note="in process")
        return Ending(
            end=end,
            reason=reason,
            hint=hint,
            value=result,
            kind_of_value=kind,
            stdout_bytes=stdout_bytes,
            layers=("in-process",),
            runs=(run,),
            notes=notes,
        )

    # -- a process of its own -------------------------------------------------------------------------------

    def _isolated(self, asked: _Asked, cancel: Cancel) -> Ending:
        if self._zygotes is not None:
            ending = _warm(self._zygotes, asked, cancel)
            if ending is not None:
                return ending
        return _cold(self._host, asked, cancel)


# -- what is asked ------------------------------------------------------------------------------------------


class _Asked(Discreet, frozen=True, kw_only=True):
    """One call for an interpreter."""

    HIDDEN: ClassVar = ("env",)

    tool: Tool
    style: PythonStyle
    file: str
    source: bytes
    digest: str
    names: tuple[str, ...]
    permit: Permit
    interpreter: str
    env: Mapping[str, str]
    cwd: str
    own: tuple[str, ...]
    dependencies: tuple[tuple[str, str], ...]
    verified: _dependencies.Loaded | None
    argv: tuple[str, ...]
    request: Mapping[str, Any]

    def base_env(self) -> dict[str, str]:
        """The part of the environment that holds no secret: the format's base."""
        return _zygotes.without_secrets(self.env, self.tool.needs.base_env)

    def is_loadable_ahead(self, base: Mapping[str, str]) -> bool:
        """Whether the file's top level may run before the call, without the call's own variables."""
        if self.style is PythonStyle.SCRIPT:
            return False
        later = self.env.keys() - base.keys() - {"PYTHONPATH"}
        return all(self.env[name] == self.interpreter for name in later)

    def spec(self, *, ahead: bool = False, service: Service | None = None) -> bytes:
        """What ``_loader.Program`` is made from and, for a zygote, how its children restrict themselves."""
        path = [part for part in self.env.get("PYTHONPATH", "").split(os.pathsep) if part]
        spec: dict[str, Any] = {
            "style": self.style.value,
            "file": self.file,
            "names": self.names,
            "path": path,
            "after": _after(self.style, self.file),
            "result_bytes_max": self.permit.limits.stdout_bytes_max,
        }
        if self.verified is not None:
            spec["verified"] = {
                "folders": self.verified.folders,
                "files": {
                    held.path: base64.b64encode(held.content).decode("ascii")
                    for held in self.verified.files
                    if held.content is not None and held.path.endswith(".py")
                },
            }
        if service is not None:
            rules = service.rules
            spec |= {
                "ahead": ahead,
                "scratch": "TMPDIR" in self.env,
                "rlimits": rlimits(self.permit.limits, as_root=False),
                # What the zygote may do, less the scratch folders of its other calls.
                "landlock": {
                    "handled": rules.fs_handled,
                    "scoped": rules.scoped,
                    "allowed": [rule for rule in rules.fs_allowed if rule[0] != service.scratch],
                },
            }
        return _bytes(spec)

    def start(self, argv: Sequence[str], **more: Any) -> Start:
        fields = {"env": self.env, "permit": self.permit, **more}
        return Start(program=self.interpreter, argv=tuple(argv), cwd=self.cwd, own=self.own, **fields)


def _after(style: PythonStyle, file: str) -> tuple[str, ...]:
    """List where a handler also imports from, after all else: the folder above its own."""
    above = os.path.dirname(os.path.dirname(file))
    # Attack: a module that another user puts into a folder above the handlers.
    return (above,) if style is PythonStyle.HANDLER and files.foreign(above) is None else ()


def _names(invocation: CallPython, file: str) -> tuple[str, ...]:
    """The functions that may take the call, the first one that is there."""
    if invocation.style is not PythonStyle.HANDLER:
        return _FUNCTION
    stems = dict.fromkeys((invocation.executor or "", os.path.splitext(os.path.basename(file))[0]))
    return tuple(f"execute_{stem}_tool" for stem in stems if stem)


def _request(
    tool: Tool, prepared: _prepared.Prepared, project: str, context: Mapping[str, object]
) -> dict[str, Any]:
    return {"name": tool.name, "params": prepared.arguments, "project": project, "context": context}


def _carried(
    tool: Tool, call: ToolCall, source: bytes, names: tuple[str, ...]
) -> tuple[dict[str, Any] | Ending, tuple[str, ...]]:
    """The part of the host's context that can travel to another process, or the refusal that names a key."""
    if not call.context or names == _FUNCTION:
        return {}, ()
    named = _parameters(source, names)
    carried: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in call.context.items():
        if named is not None and key not in named:
            continue
        try:
            json.dumps(value, allow_nan=False)
            carried[key] = value
        except (TypeError, ValueError, RecursionError):
            if named is not None or key in tool.needs.context:
                return (
                    Ending(
                        end=End.UNAVAILABLE,
                        reason=f"context {key} is a {type(value).__name__}, which JSON cannot carry",
                        hint="register a handler for it, or let verified tools run in process",
                    ),
                    (),
                )
            left_out.append(key)
    notes = (f"context left out, since JSON cannot carry it: {', '.join(left_out)}",) if left_out else ()
    return carried, notes


def _parse(source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except SystemError:
        # Before 3.11.8 and 3.12.2 a finaliser that printed a traceback meanwhile confuses it.
        return ast.parse(source)


@lru_cache(maxsize=64)
def _parameters(source: bytes, names: tuple[str, ...]) -> frozenset[str] | None:
    """The parameters that a handler names; None where it takes whatever there is, or cannot be seen."""
    try:
        body = _parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = {
        node.name: node.args for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    like = [name for name in found if name.startswith("execute_") and name.endswith("_tool")]
    name = next((name for name in names if name in found), like[0] if len(like) == 1 else None)
    if name is None or found[name].kwarg is not None:
        return None
    taken = found[name]
    return frozenset(part.arg for part in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs))


# -- a value of the host's own process ----------------------------------------------------------------------

_COPIED_BYTES_MAX: Final = 64 << 10


class _TooLarge(Exception):
    """A result with more bytes than a tool may give."""


def _copied(value: object, bytes_max: int) -> JsonValue:
    """The value as JSON reads it, so that nothing of the host's own objects goes on."""
    try:
        body = orjson.dumps(value, option=jsontext.ONLY_PLAIN)
    except TypeError:
        body = b""
    if len(body) > bytes_max:
        raise _TooLarge
    # null may stand for a number that is none, and what is long may be deep: the careful way tells.
    if not body or b"null" in body or len(body) > _COPIED_BYTES_MAX:
        body = _loader.as_json(value)
        if len(body) > bytes_max:
            raise _TooLarge
        return _read_value(body)
    return orjson.loads(body)


class _Unreadable(ValueError):
    """A result that is no JSON we read."""


def _read_value(body: bytes) -> JsonValue:
    parsed = jsontext.read(body, allow_nul=True)
    if parsed.defect is not None:
        raise _Unreadable(f"its result cannot be read: {parsed.defect}")
    return parsed.value


# -- a cold interpreter -------------------------------------------------------------------------------------


def _cold(host: Host, asked: _Asked, cancel: Cancel) -> Ending:
    """One interpreter for one call."""
    is_script = asked.style is PythonStyle.SCRIPT
    mark = secrets.token_hex(16)
    code = _code(_loader)
    parts = (asked.spec(), asked.source, _bytes({**asked.request, "mark": mark}))
    stdin = code + b"".join(_loader.LENGTH.pack(len(part)) + part for part in parts)
    argv = (asked.interpreter, "-I", "-B", "-c", _COLD, str(len(code)))
    limits = asked.permit.limits
    room = limits.stdout_bytes_max
    # The answer comes on stdout as well, behind what was printed.
    most = room if is_script else 2 * room + _FRAME_BYTES
    permit = replace(asked.permit, limits=replace(limits, stdout_bytes_max=most))
    ending = host.sandbox.run(asked.start(argv, stdin=stdin, permit=permit), cancel)
    runs = tuple(replace(run, argv=asked.argv) for run in ending.runs)
    ending = replace(ending, runs=runs)
    if is_script:
        return ending
    printed, found, frame = ending.stdout.rpartition(mark.encode("ascii"))
    printed = printed if found else ending.stdout
    ending = replace(ending, stdout=printed[:room])
    if ending.end is not End.EXITED:
        return ending
    told = _told_nothing(ending, asked)
    if len(printed) > room:
        told = {"end": End.TOO_LARGE, "exit_status": None}
    elif found:
        told = {"exit_status": None, **_told(frame, asked)}
    return replace(ending, **{"stdout_bytes": len(printed), **told})


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode("ascii")


def _told(frame: bytes, asked: _Asked) -> dict[str, Any]:
    """What a frame says about the ending of its call. Attack: a tool that writes its own frames."""
    try:
        tag, size, *_ = _loader.HEAD.unpack_from(frame)
        body = frame[_loader.HEAD.size : _loader.HEAD.size + size]
        if asked.style is PythonStyle.SCRIPT:
            return {"end": End.EXITED, "exit_status": int(body) & 0xFF}
        if tag == b"L":
            return {"end": End.TOO_LARGE, "stdout_bytes": asked.permit.limits.stdout_bytes_max + 1}
        name, _, text = body.partition(b"\0")
        kind = name.decode("utf-8", "replace")
        if tag == b"E":
            return {"end": End.RAISED, "reason": text.decode("utf-8", "replace"), "kind_of_value": kind}
        return {"end": End.RETURNED, "value": _read_value(text), "kind_of_value": kind}
    except _Unreadable as unreadable:
        return {"end": End.RAISED, "reason": str(unreadable)}
    except (struct.error, ValueError):
        return {"end": End.RAISED, "reason": "its answer cannot be read"}


def _told_nothing(ending: Ending, asked: _Asked) -> dict[str, Any]:
    """Of a call that sent no frame. Attack: ``os._exit(0)`` of a function must not look like an answer."""
    left = ending.end is End.EXITED and ending.exit_status == 0 and asked.style is not PythonStyle.SCRIPT
    return {"end": End.RAISED, "reason": "it ended its process without an answer"} if left else {}


# -- a child of a zygote ------------------------------------------------------------------------------------


def _warm(zygotes: _zygotes.Zygotes, asked: _Asked, cancel: Cancel) -> Ending | None:
    """A child that was forked ahead; None where a cold interpreter should answer."""
    began = time.monotonic()
    request = _bytes({**asked.request, "env": dict(asked.env)})
    answer = zygotes.run(_recipe(asked), request, asked.permit.limits, cancel)
    if answer is None:
        return None
    ending = answer.ending
    told = _told_nothing(ending, asked) if answer.frame is None else _told(answer.frame, asked)
    return _zygotes.with_run(ending, told, argv=asked.argv, cwd=asked.cwd, env=asked.env, began=began)


def _recipe(asked: _Asked) -> _zygotes.Recipe:
    base = asked.base_env()
    ahead = asked.is_loadable_ahead(base)
    start = asked.start(
        (asked.interpreter, "-I", "-B", "-c", _WARM),
        env={**base, "TMPDIR": ""},
        permit=_zygotes.of_all_calls(asked.permit),
    )
    key = (
        asked.file, asked.digest, asked.style, asked.names, asked.interpreter, asked.cwd, asked.own,
        asked.dependencies, asked.env.get("PYTHONPATH"), ahead, "TMPDIR" in asked.env, start.permit,
        tuple(base.items()),
    )  # fmt: skip
    return _zygotes.Recipe(
        key=key,
        start=start,
        code=_code(_loader, _zygote),
        spec=lambda service: asked.spec(ahead=ahead, service=service),
        source=asked.source,
    )
