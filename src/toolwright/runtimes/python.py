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
import json
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from toolwright import jsontext
from toolwright.catalog import digests
from toolwright.jsontext import JsonValue
from toolwright.model import (
    CallPython,
    End,
    Ending,
    Limits,
    Permit,
    PythonStyle,
    Run,
    Tool,
    ToolCall,
)
from toolwright.runtimes import Host, _settings, _zygote, _zygotes, environment, project_of
from toolwright.sandbox import Cancel, Start
from toolwright.sandbox.rules import KernelRules, rlimits
from toolwright.sandbox.supervised import Supervised

_FUNCTIONS_KEPT: Final = 256
_NO_LANDLOCK: Final = {"handled": 0, "scoped": 0, "allowed": []}

_START: Final = (
    "import sys,types;m=types.ModuleType('_toolwright');sys.modules[m.__name__]=m;"
    "exec(compile({read},'<toolwright>','exec'),m.__dict__);m.{way}()"
)
_COLD: Final = _START.format(read="sys.stdin.buffer.read(int(sys.argv[1]))", way="cold")
_WARM: Final = _START.format(read=f"__import__('os').read({_zygote.CHANNEL_FD},1<<20)", way="zygote")


class PythonTools:
    """The runtime of ``CallPython``. Any number of threads may call; ``close`` ends every zygote."""

    def __init__(
        self,
        host: Host,
        contents: digests.Contents,
        *,
        verified: Callable[[Tool], bool] | None = None,
        zygotes_max: int = _zygotes.ZYGOTES_MAX,
        idle_s: float = _zygotes.ZYGOTE_IDLE_S,
    ) -> None:
        """``verified``: whether a tool's bytes were checked; only such files may run in this process."""
        self._host = host
        self._contents = contents
        self._verified = verified
        self._modules: OrderedDict[tuple[str, str], Callable[..., object]] = OrderedDict()
        self._lock = threading.Lock()
        keeper = host.sandbox
        self._zygotes = (
            _zygotes.Zygotes(keeper, zygotes_max, idle_s) if isinstance(keeper, Supervised) else None
        )

    def run(self, tool: Tool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        invocation = tool.invocation
        assert isinstance(invocation, CallPython)
        project = os.path.abspath(project_of(tool, self._host))
        prepared = _settings.prepare(tool, call, self._host, permit, project=project)
        if isinstance(prepared, Ending):
            return prepared
        registered = self._registered(tool, invocation)
        if registered is not None:
            return _inside(tool, call, prepared, project, lambda: registered, "")
        found = self._file(tool, call, invocation)
        if isinstance(found, Ending):
            return found
        file, source, digest = found
        names = _names(invocation, file)
        if (
            self._host.in_process
            and invocation.style is not PythonStyle.SCRIPT
            and self._verified is not None
            and self._verified(tool)
        ):
            load = lambda: self._function(file, source, digest, names, invocation.style)  # noqa: E731
            return _inside(tool, call, prepared, project, load, file)
        context, notes = _carried(tool, call, source, names)
        if isinstance(context, Ending):
            return context
        asked = _Asked(
            tool=tool,
            style=invocation.style,
            file=file,
            source=source,
            digest=digest,
            names=names,
            permit=permit,
            interpreter=prepared.interpreter or self._host.python,
            env=_environment(self._host, tool, permit, prepared),
            cwd=prepared.cwd or self._host.cwd,
            own=(
                file,
                *prepared.own,
                *((os.path.dirname(file),) if invocation.style is PythonStyle.HANDLER else ()),
            ),
            dependencies=prepared.dependencies,
            argv=_argv(invocation, prepared, file, project, self._host),
            request={
                "name": tool.name,
                "params": prepared.arguments,
                "project": project,
                "context": context,
            },
        )
        ending = self._isolated(asked, cancel)
        notes = (*prepared.notes, *notes, *ending.notes)
        return replace(ending, notes=notes) if notes else ending

    def close(self) -> None:
        if self._zygotes is not None:
            self._zygotes.close()

    # -- which code -----------------------------------------------------------------------------------------

    def _registered(self, tool: Tool, invocation: CallPython) -> Callable[..., object] | None:
        """The host's own handler: for this tool, for its executor, for its group."""
        if invocation.style is not PythonStyle.HANDLER or not self._host.handlers:
            return None
        for key in (tool.name, invocation.executor, tool.scope):
            handler = self._host.handlers.get(key) if key is not None else None
            if handler is None:
                continue
            if callable(handler):
                return handler
            names = [f"execute_{name}_tool" for name in dict.fromkeys((invocation.executor, key)) if name]
            with suppress(LookupError):
                return _zygote.find_function(handler, names, str(key))
        return None

    def _file(self, tool: Tool, call: ToolCall, invocation: CallPython) -> tuple[str, bytes, str] | Ending:
        own = digests.own_files(tool)
        if not own:
            kind = invocation.executor or tool.scope
            return Ending(
                end=End.UNAVAILABLE,
                reason=f"No executor registered for tool type: {kind}",
                hint="put its module into the handlers directory, or register a handler for the executor",
            )
        held = self._contents.file(own[0])
        if held is None:
            return Ending(end=End.NOT_STARTED, reason=f"{own[0]} cannot be read")
        if held.content is None:
            return Ending(
                end=End.NOT_STARTED, reason=f"{own[0]} is longer than {digests.KEPT_BYTES_MAX} bytes"
            )
        # Attack: a file that is replaced between the check and the start. These bytes run, or nothing does.
        if (
            call.runs_digest is not None
            and self._contents.runs(digests.how(invocation), own) != call.runs_digest
        ) or self._contents.file(own[0]) is not held:
            return Ending(
                end=End.DENIED,
                reason="the tool's files changed between being checked and being started",
                hint="call it again once nobody is writing to them",
            )
        return own[0], held.content, held.digest

    def _function(
        self, file: str, source: bytes, digest: str, names: list[str], style: PythonStyle
    ) -> Callable[..., object]:
        """A verified file, loaded into this process once for its bytes."""
        with self._lock:
            function = self._modules.get((file, digest))
            if function is None:
                module = ModuleType(f"_tool_{Path(file).stem}_{digest[:8]}")
                module.__file__ = file
                exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
                function = _zygote.find_function(module, names, os.path.basename(file))
                self._modules[file, digest] = function
                if len(self._modules) > _FUNCTIONS_KEPT:
                    self._modules.popitem(last=False)
            return function

    # -- a process of its own -------------------------------------------------------------------------------

    def _isolated(self, asked: _Asked, cancel: Cancel) -> Ending:
        if self._zygotes is not None:
            ending = _warm(self._zygotes, asked, cancel)
            if ending is not None:
                return ending
        return _cold(self._host, asked, cancel)


# -- what is asked ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One call for an interpreter."""

    tool: Tool
    style: PythonStyle
    file: str
    source: bytes
    digest: str
    names: list[str]
    permit: Permit
    interpreter: str
    env: Mapping[str, str]
    cwd: str
    own: tuple[str, ...]
    dependencies: tuple[tuple[str, str], ...]
    argv: tuple[str, ...]
    request: Mapping[str, Any]

    def base_env(self) -> dict[str, str]:
        """The part of the environment that holds no secret: the format's base."""
        exact = self.tool.needs.base_env
        prefixes = tuple(name[:-1] for name in exact if name.endswith("*"))
        return {
            name: value
            for name, value in self.env.items()
            if name in exact or (prefixes and name.startswith(prefixes))
        }

    def is_loadable_ahead(self) -> bool:
        """Whether the file's top level may run before the call, without the call's own variables."""
        if self.style is PythonStyle.SCRIPT:
            return False
        later = set(self.env) - set(self.base_env()) - {"PYTHONPATH"}
        return all(self.env[name] == self.interpreter for name in later)

    def spec(self, *, ahead: bool, rules: KernelRules | None = None, scratch: str = "") -> dict[str, Any]:
        path = [part for part in self.env.get("PYTHONPATH", "").split(os.pathsep) if part]
        return {
            "style": self.style.value,
            "file": self.file,
            "names": self.names,
            "path": path,
            "ahead": ahead,
            "result_bytes_max": self.permit.limits.stdout_bytes_max,
            "scratch": "TMPDIR" in self.env,
            "rlimits": rlimits(self.permit.limits, as_root=False),
            "landlock": _NO_LANDLOCK if rules is None else _nested(rules, scratch),
        }

    def call(self) -> dict[str, Any]:
        request = dict(self.request)
        if self.style is PythonStyle.SCRIPT:
            request = {"argv": self.argv, "stdin": _json(self.request["params"])}
        return {**request, "env": dict(self.env)}

    def start(self, argv: Sequence[str], **more: Any) -> Start:
        fields = {"env": self.env, "permit": self.permit, **more}
        return Start(program=self.interpreter, argv=tuple(argv), cwd=self.cwd, own=self.own, **fields)


def _environment(host: Host, tool: Tool, permit: Permit, prepared: _settings.Prepared) -> dict[str, str]:
    env = {**environment(host, tool, permit), **prepared.env}
    if "TMPDIR" in tool.needs.base_env:
        env["TMPDIR"] = ""  # the scratch folder of the call takes its place
    return env


def _names(invocation: CallPython, file: str) -> list[str]:
    """The functions that may take the call, the first one that is there."""
    if invocation.style is not PythonStyle.HANDLER:
        return ["execute"]
    stems = dict.fromkeys((invocation.executor or "", Path(file).stem))
    return [f"execute_{stem}_tool" for stem in stems if stem]


def _argv(
    invocation: CallPython, prepared: _settings.Prepared, file: str, project: str, host: Host
) -> tuple[str, ...]:
    interpreter = prepared.interpreter or host.python
    if invocation.style is not PythonStyle.SCRIPT:
        return (interpreter, file)
    argv: tuple[str, ...] = (interpreter, file, "--project-path", project)
    settings = jsontext.loads_own(invocation.settings)
    if isinstance(settings, dict) and settings.get("params_option"):
        argv += ("--params", _json(prepared.arguments))
    return argv


def _json(value: JsonValue) -> str:
    return jsontext.compact(value).decode("utf-8")


def _carried(
    tool: Tool, call: ToolCall, source: bytes, names: list[str]
) -> tuple[dict[str, Any] | Ending, tuple[str, ...]]:
    """The part of the host's context that can travel to another process, or the refusal that names a key."""
    if not call.context:
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


def _parameters(source: bytes, names: list[str]) -> frozenset[str] | None:
    """The parameters that a handler names; None where it takes whatever there is, or cannot be seen."""
    try:
        body = ast.parse(source).body
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


# -- in the host's own process ------------------------------------------------------------------------------


def _inside(
    tool: Tool,
    call: ToolCall,
    prepared: _settings.Prepared,
    project: str,
    load: Callable[[], Callable[..., object]],
    file: str,
) -> Ending:
    """Call a function here. It sees this process, and nothing can stop it: the host chose that."""
    invocation = tool.invocation
    assert isinstance(invocation, CallPython)
    began = time.perf_counter()
    request = {
        "name": tool.name,
        "params": prepared.arguments,
        "project": project,
        "context": call.context,
    }
    value: object = None
    try:
        value = _zygote.call_function(load(), invocation.style.value, request)
        body = _zygote.as_json(value)
        ending = Ending(end=End.RETURNED, value=_read_value(body), kind_of_value=type(value).__name__)
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is an ending
        ending = Ending(end=End.RAISED, reason=str(error), kind_of_value=type(error).__name__)
    duration_ms = (time.perf_counter() - began) * 1e3
    run = Run(
        argv=(file or tool.key,), cwd=os.path.abspath(os.curdir), duration_ms=duration_ms, note="in process"
    )
    return replace(ending, layers=("in-process",), runs=(run,), notes=prepared.notes)


class _Unreadable(ValueError):
    """A result that is no JSON we read."""


def _read_value(body: bytes) -> JsonValue:
    parsed = jsontext.read(body)
    if parsed.defect is not None:
        raise _Unreadable(f"its result cannot be read: {parsed.defect}")
    return parsed.value


# -- a cold interpreter -------------------------------------------------------------------------------------


@cache
def _loader() -> bytes:
    return Path(_zygote.__file__).read_bytes()


def _frames(*parts: bytes) -> bytes:
    return b"".join(_zygote.LENGTH.pack(len(part)) + part for part in parts)


def _cold(host: Host, asked: _Asked, cancel: Cancel) -> Ending:
    """One interpreter for one call."""
    mark = secrets.token_hex(16)
    loader = _loader()
    spec = asked.spec(ahead=False)
    request = {**asked.call(), "mark": mark}
    stdin = loader + _frames(_bytes(spec), asked.source, _bytes(request))
    argv = (asked.interpreter, "-I", "-c", _COLD, str(len(loader)))
    ending = host.sandbox.run(asked.start(argv, stdin=stdin), cancel)
    runs = tuple(replace(run, argv=asked.argv) for run in ending.runs)
    ending = replace(ending, runs=runs)
    if asked.style is PythonStyle.SCRIPT or ending.end is not End.EXITED:
        return ending
    printed, found, frame = ending.stdout.rpartition(mark.encode("ascii"))
    if not found:
        return _ended_without_answer(ending)
    return _answered(replace(ending, stdout=printed, stdout_bytes=len(printed)), frame, asked.permit.limits)


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode("ascii")


def _answered(ending: Ending, frame: bytes, limits: Limits) -> Ending:
    """What a frame says, as the ending of a run that is over."""
    tag, size, *_ = _zygote.HEAD.unpack_from(frame)
    body = frame[_zygote.HEAD.size : _zygote.HEAD.size + size]
    if tag == b"X":
        status = int(body)
        return replace(ending, end=End.EXITED, exit_status=status, signal=None)
    ending = replace(ending, exit_status=None, signal=None)
    if tag == b"L":
        return replace(ending, end=End.TOO_LARGE, stdout_bytes=limits.stdout_bytes_max + 1)
    kind, _, rest = body.partition(b"\0")
    name = kind.decode("utf-8", "replace")
    if tag == b"E":
        return replace(ending, end=End.RAISED, reason=rest.decode("utf-8", "replace"), kind_of_value=name)
    try:
        return replace(ending, end=End.RETURNED, value=_read_value(rest), kind_of_value=name)
    except _Unreadable as unreadable:
        return replace(ending, end=End.RAISED, reason=str(unreadable), kind_of_value="")


def _ended_without_answer(ending: Ending) -> Ending:
    """A function that ended its process. Attack: ``os._exit(0)`` must not look like an answer."""
    if ending.exit_status == 0:
        return replace(ending, end=End.RAISED, reason="it ended its process without an answer", exit_status=0)
    return ending


# -- a child of a zygote ------------------------------------------------------------------------------------


def _warm(zygotes: _zygotes.Zygotes, asked: _Asked, cancel: Cancel) -> Ending | None:
    """A child that was forked ahead; None where a cold interpreter should answer."""
    began = time.monotonic()
    limits = asked.permit.limits
    answer = zygotes.run(_recipe(asked), _bytes(asked.call()), limits, cancel)
    if answer is None:
        return None
    ending = answer.ending
    if answer.frame is not None:
        ending = _answered(ending, answer.frame, limits)
    elif ending.end is End.EXITED and asked.style is not PythonStyle.SCRIPT:
        ending = _ended_without_answer(ending)
    stopped = ending.end not in (End.EXITED, End.RETURNED, End.RAISED)
    run = Run(
        argv=asked.argv,
        cwd=asked.cwd,
        env_names=tuple(asked.env),
        exit_status=None if ending.end is End.NOT_STARTED else -1 if stopped else ending.exit_status or 0,
        duration_ms=(time.monotonic() - began) * 1e3,
        stdout_bytes=ending.stdout_bytes,
        stderr_bytes=ending.stderr_bytes,
        truncated=ending.end is End.TOO_LARGE,
    )
    return replace(ending, runs=(run,))


def _recipe(asked: _Asked) -> _zygotes.Recipe:
    ahead = asked.is_loadable_ahead()
    # The time limit is the host's to keep, so calls with different ones share a zygote; its own limits hold
    # all of its calls together.
    limits = asked.permit.limits
    many = _zygotes.SLOTS_MAX
    whole = replace(
        limits,
        timeout_s=0.0,
        memory_bytes_max=limits.memory_bytes_max * many,
        processes_max=limits.processes_max * many,
        scratch_bytes_max=limits.scratch_bytes_max * many,
    )
    start = asked.start(
        (asked.interpreter, "-I", "-c", _WARM),
        env={**asked.base_env(), "TMPDIR": ""},
        permit=replace(asked.permit, limits=whole),
    )
    path = asked.env.get("PYTHONPATH", "")
    key = (
        asked.file, asked.digest, asked.style, tuple(asked.names), asked.interpreter, asked.cwd, asked.own,
        asked.dependencies, path, ahead, "TMPDIR" in asked.env, start.permit, tuple(start.env.items()),
    )  # fmt: skip

    def spec(rules: KernelRules, scratch: str) -> bytes:
        return _bytes(asked.spec(ahead=ahead, rules=rules, scratch=scratch))

    return _zygotes.Recipe(key=key, start=start, loader=_loader(), spec=spec, source=asked.source)


def _nested(rules: KernelRules, scratch: str) -> dict[str, Any]:
    """The layer of one call: what its zygote may do, less the scratch folders of its other calls."""
    return {
        "handled": rules.fs_handled,
        "scoped": rules.scoped,
        "allowed": [(path, bits) for path, bits in rules.fs_allowed if path != scratch],
    }
