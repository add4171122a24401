"""Rye's executor chain: from a tool through its runtimes to the primitive that starts a process.

Knows the executors that the format's own projects use, the short names for them, and which of them this
product has a runtime for. ``link`` puts all rye items together: which item an id means, what its chain is,
and what only neighbours can tell (a missing server, two ids with one spoken name). What the runtimes of the
chain wish for (environment, anchor, a command of their own) goes into the settings of the tool's invocation,
so that one record is all that a run needs.

The settings are JSON: ``config``, ``config_resolve``, ``env_config``, ``anchor`` and ``verify_deps`` as the
author wrote them; ``actions`` (the parameters that only some actions have), ``params_option`` (the file has
an option ``--params``), ``plain_script`` (a JavaScript file that exports nothing to call; only until it is
compiled), ``expand`` (program and arguments hold templates), ``runtime_dir`` (where the runtime lies that the
anchor is from). ``runtimes/_settings.py`` reads them.

It reads no declaration: ``rye`` compiles the items that come in here. Nothing is verified here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.formats._node import seconds
from toolcrib.jsontext import JsonObject, JsonValue, compact, loads_own
from toolcrib.model import (
    RYE_SUFFIXES,
    CallJavaScript,
    CallMcp,
    CallPython,
    Invocation,
    JavaScriptStyle,
    JsonOnStdin,
    Linked,
    NotCallable,
    Problem,
    PythonStyle,
    Role,
    RunProcess,
    Severity,
    Tool,
    Unit,
)

DATA_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
JAVASCRIPT: Final = frozenset({".js", ".ts", ".mjs", ".cjs"})
SERVER: Final = "mcp_server"
"""The member of a server record's notes that holds its connection."""
RUNTIME: Final = "runtime"
"""The member of a runtime record's notes that holds what it wishes for the tools it runs."""
NAMES: Final = "env_names"
"""The member of these wishes that lists the host's variables they name."""
COMMANDING: Final = ("command", "args", "input_data", "env", "timeout")
"""Members of ``config`` that the invocation itself says."""
TIMEOUT_S: Final = 300.0
MCP_TIMEOUT_S: Final = 60.0
CHAIN_MAX: Final = 10

_TEMPLATE: Final = re.compile(r"\$?\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
_VERSION_CHARS_MAX: Final = 100
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")

_SPACES: Final = ("project", "user", "system")
_SYSTEM: Final = 2


class Runtime(Enum):
    """What this product has for an executor."""

    FUNCTION = "function"
    SCRIPT = "script"
    NODE = "node"
    SHELL = "shell"
    MCP = "mcp"
    PROCESS = "process"
    HTTP = "http"


class _Known(Struct, frozen=True):
    runtime: Runtime | None
    executor: str | None


_EXECUTE: Final = "rye/core/primitives/execute"
_SUBPROCESS: Final = "rye/core/primitives/subprocess"
_PROCESS_PRIMITIVES: Final = (_EXECUTE, _SUBPROCESS)
# The items of the format's own core, under their present and their first names: a project need not bring
# them, so it runs where no bundle is installed.
_KNOWN: Final = {
    _EXECUTE: _Known(Runtime.PROCESS, None),
    _SUBPROCESS: _Known(Runtime.PROCESS, None),
    "rye/core/primitives/http_client": _Known(Runtime.HTTP, None),
    "rye/core/runtimes/python/function": _Known(Runtime.FUNCTION, _EXECUTE),
    "rye/core/runtimes/python/script": _Known(Runtime.SCRIPT, _EXECUTE),
    "rye/core/runtimes/node/node": _Known(Runtime.NODE, _EXECUTE),
    "rye/core/runtimes/bash/bash": _Known(Runtime.SHELL, _EXECUTE),
    "rye/core/runtimes/mcp/http": _Known(Runtime.MCP, _EXECUTE),
    "rye/core/runtimes/mcp/stdio": _Known(Runtime.MCP, _EXECUTE),
    "rye/core/runtimes/state-graph/runtime": _Known(None, _EXECUTE),
    "rye/core/runtimes/python_function_runtime": _Known(Runtime.FUNCTION, _SUBPROCESS),
    "rye/core/runtimes/python_script_runtime": _Known(Runtime.SCRIPT, _SUBPROCESS),
    "rye/core/runtimes/python_runtime": _Known(Runtime.SCRIPT, _SUBPROCESS),
    "rye/core/runtimes/node_runtime": _Known(Runtime.NODE, _SUBPROCESS),
    "rye/core/runtimes/bash_runtime": _Known(Runtime.SHELL, _SUBPROCESS),
    "rye/core/runtimes/mcp_http_runtime": _Known(Runtime.MCP, _SUBPROCESS),
    "rye/core/runtimes/mcp_stdio_runtime": _Known(Runtime.MCP, _SUBPROCESS),
}
ALIASES: Final = {
    "python": "rye/core/runtimes/python/function",
    "python/function": "rye/core/runtimes/python/function",
    "python/script": "rye/core/runtimes/python/script",
    "python_runtime": "rye/core/runtimes/python/script",
    "node": "rye/core/runtimes/node/node",
    "node/node": "rye/core/runtimes/node/node",
    "bash": "rye/core/runtimes/bash/bash",
    "bash/bash": "rye/core/runtimes/bash/bash",
    "mcp/http": "rye/core/runtimes/mcp/http",
    "mcp/stdio": "rye/core/runtimes/mcp/stdio",
    "http_client": "rye/core/primitives/http_client",
    "subprocess": _EXECUTE,
}


def runtime_of(executor: str) -> Runtime | None:
    """What this product runs for an executor; None where it has nothing for it."""
    known = _KNOWN.get(ALIASES.get(executor, executor))
    return known.runtime if known else None


def no_runtime(executor: str) -> str:
    """The words for a call of a tool whose executor this product has nothing for."""
    return f"no runtime for {executor}"


def by_file(runtime: Runtime, path: str, settings: JsonObject) -> Invocation | None:
    """What runs a program file by one of our own runtimes; None where that runtime has no use for it."""
    suffix = _suffix(path)
    settings = dict(settings)
    takes_option = settings.pop("params_option", None)
    is_script = settings.pop("plain_script", None)
    if suffix == ".sh" and runtime in (Runtime.SHELL, Runtime.PROCESS):
        return RunProcess(
            program="bash", fixed=(path,), encoding=JsonOnStdin(verbatim=False), settings=compact(settings)
        )
    if suffix in JAVASCRIPT and runtime is Runtime.NODE:
        style = JavaScriptStyle.SCRIPT if is_script else JavaScriptStyle.FUNCTION
        return CallJavaScript(file=path, style=style, settings=compact(settings))
    if suffix == ".py" and runtime is Runtime.FUNCTION:
        return CallPython(style=PythonStyle.FUNCTION, file=path, settings=compact(settings))
    if suffix == ".py" and runtime is Runtime.SCRIPT:
        if takes_option:
            settings["params_option"] = True
        return CallPython(style=PythonStyle.SCRIPT, file=path, settings=compact(settings))
    return None


def by_command(
    command: str, args: Iterable[str], settings: JsonObject, env: tuple[tuple[str, str], ...] = ()
) -> RunProcess:
    """What runs a command that an author wrote; templates in it are left to the call."""
    args = tuple(args)
    settings = {key: value for key, value in settings.items() if key != "config" or value}
    written = (command, *args, *(value for _, value in env))
    is_relative = "/" in command and not command.startswith("/")
    if is_relative or any("{" in part and _TEMPLATE.search(part) for part in written):
        settings["expand"] = True
    return RunProcess(
        program=command, fixed=args, encoding=JsonOnStdin(verbatim=False), env=env, settings=compact(settings)
    )


def argument(value: JsonValue) -> str:
    """A scalar as the author wrote it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class _Item(Struct, frozen=True):
    """A loaded item in its place."""

    tool: Tool
    space: int
    root: str
    """The ``.ai/tools`` that contains it."""
    is_broken: bool = False
    """Errors of its own leave it out. It keeps its id, so that nothing else takes its place."""

    @property
    def correction(self) -> str:
        """What to do about an item that is broken."""
        return f"correct the errors of {self.tool.origin.path} first"

    @property
    def executor(self) -> str | None:
        return self.tool.chain[1] if len(self.tool.chain) > 1 else None

    @property
    def wishes(self) -> JsonObject:
        """What a runtime wishes for the tools it runs."""
        notes = self.tool.notes.metadata
        found = notes.get(RUNTIME) if isinstance(notes, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def folder(self) -> str:
        return self.tool.origin.path.rpartition("/")[0]


class _Stop(Exception):
    def __init__(
        self, code: str, message: str, hint: str | None = None, pointer: str = "executor_id"
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.pointer = pointer


def link(units: Sequence[Unit]) -> Linked:
    """All items together, first hit first: project, user, system; within one root by suffix."""
    return _Linking(units).link()


class _Linking:
    def __init__(self, units: Sequence[Unit]) -> None:
        self.problems: list[Problem] = []
        self.items: list[_Item] = []
        """Those that an id leads to."""
        self.broken: list[_Item] = []
        """The same, where errors of their own leave them out."""
        self.by_id: dict[str, list[_Item]] = {}
        self.gather(units)

    def link(self) -> Linked:
        tools = []
        for item in self.items:
            try:
                tools.append(self.resolved(item))
            except _Stop as stop:
                self.stopped(item, stop)
        for item in self.broken:  # its author gets all problems at once
            try:
                self.resolved(item)
            except _Stop as stop:
                self.stopped(item, stop)
        return Linked(tools=tuple(self.spoken(tools)), problems=tuple(self.problems))

    def stopped(self, item: _Item, stop: _Stop) -> None:
        self.say(item.tool, stop.code, stop.message, stop.hint, Severity.ERROR, stop.pointer)

    def say(
        self,
        tool: Tool,
        code: str,
        message: str,
        hint: str | None,
        severity: Severity = Severity.WARNING,
        pointer: str | None = None,
    ) -> None:
        path = tool.origin.path
        self.problems.append(
            Problem(
                code=code,
                message=message,
                path=path,
                severity=severity,
                pointer=tuple(pointer.split(".")) if pointer and _suffix(path) in DATA_SUFFIXES else None,
                name=tool.name,
                hint=hint,
            )
        )

    # -- which item an id means -----------------------------------------------------------------------------

    def gather(self, units: Sequence[Unit]) -> None:
        """Find what each id leads to, and report what no id leads to."""
        # A file with errors still takes its id: what stands behind it must not come up in its place unseen.
        meant = [unit for unit in units if unit.compiled.tools or unit.compiled.broken]
        winners: dict[tuple[str, str], Unit] = {}
        for unit in sorted(meant, key=_suffix_rank):
            winners.setdefault((_root(unit), _item_id(unit)), unit)
        first_of: dict[str, Unit] = {}
        for unit in sorted(meant, key=lambda unit: unit.space):
            root, item_id = _root(unit), _item_id(unit)
            winner = winners[root, item_id]
            for tool in unit.compiled.broken if winner is unit else ():
                item = _Item(tool, unit.space, root, is_broken=True)
                self.by_id.setdefault(item_id, []).append(item)
                if first_of.setdefault(item_id, unit) is unit:
                    self.broken.append(item)
            for tool in unit.compiled.tools:
                if winner is not unit:
                    self.say(
                        tool,
                        "rye.id.extension-order",
                        f'"{item_id}" is found as {_name(winner)} first; this file is not used',
                        "keep one of the two files, or rename one",
                    )
                    continue
                item = _Item(tool, unit.space, root)
                self.by_id.setdefault(item_id, []).append(item)
                before = first_of.setdefault(item_id, unit)
                if before is unit:
                    self.items.append(item)
                else:
                    self.say(
                        tool,
                        "rye.id.spaces",
                        f'"{item_id}" of {_space(unit.space)} space is shadowed by {before.path}',
                        "rename one of them if both are meant to be used",
                    )

    def find(self, wanted: str, asker: _Item) -> _Item | None:
        """Return the item that an id means for ``asker``: of its own root, then of the spaces below it."""
        candidates = self.by_id.get(wanted, [])
        for found in candidates:
            if found.root == asker.root:
                return found
        for found in candidates:
            if found.space >= asker.space and found.space > 0:
                return found
        return None

    # -- the chain of one item ------------------------------------------------------------------------------

    def resolved(self, item: _Item) -> Tool:
        tool = item.tool
        if item.executor is None:
            return tool
        chain, runtimes = self.chain(item)
        tool = _signed_with(tool.replace(chain=chain), runtimes)
        if tool.role is not Role.TOOL:
            return tool
        if (failed := self.too_old_or_new([item, *runtimes])) is not None:
            self.say(
                tool,
                "rye.executor.version-constraints",
                failed,
                "change the version, or the runtime's child_constraints",
                pointer="version",
            )
            return tool.replace(invocation=NotCallable(reason=failed))
        tool = self.with_timeout(tool, runtimes)
        if runtime_of(chain[1]) is None:
            return self.by_own_runtime(tool, runtimes)
        if isinstance(tool.invocation, CallMcp):
            return self.with_server(item, tool, tool.invocation)
        invocation = tool.invocation
        if isinstance(invocation, (RunProcess, CallPython, CallJavaScript)) and runtimes:
            # Our own runtime runs it; what an item of that id wishes besides its command still counts.
            settings = compact(_with_wishes(loads_own(invocation.settings), runtimes))
            tool = replace(_with_names(tool, runtimes), invocation=replace(invocation, settings=settings))
        return tool

    def by_own_runtime(self, tool: Tool, runtimes: Sequence[_Item]) -> Tool:
        """A runtime that is not one of ours: it runs by the command it names, or by ours that it leads to."""
        chain = tool.chain
        invocation: Invocation | None = None
        if chain[-1] in _PROCESS_PRIMITIVES and chain[1] not in _KNOWN:
            invocation = self.commanded(tool, runtimes) or self.led_to(tool, runtimes)
        if invocation is not None:
            programs = (invocation.program,) if isinstance(invocation, RunProcess) else ()
            tool = _with_names(tool, runtimes)
            return tool.replace(invocation=invocation, needs=replace(tool.needs, programs=programs))
        reason = no_runtime(chain[1]) if chain[-1] in _KNOWN else f"Unknown primitive: {chain[-1]}"
        self.say(
            tool,
            "rye.executor.unavailable",
            f'{_executor_key(tool)}: no runtime here for "{chain[1]}"; it is listed and cannot be called',
            "use one of the documented runtimes, or give the runtime a config.command",
            pointer="executor_id",
        )
        return tool.replace(invocation=NotCallable(reason=reason))

    def commanded(self, tool: Tool, runtimes: Sequence[_Item]) -> Invocation | None:
        written = tool.invocation
        if not isinstance(written, RunProcess):
            return None
        for runtime in runtimes:
            config = runtime.wishes.get("config")
            command = config.get("command") if isinstance(config, dict) else None
            if not isinstance(config, dict) or not isinstance(command, str) or not command:
                continue
            listed = config.get("args") or []
            if not isinstance(listed, list) or any(isinstance(part, (dict, list)) for part in listed):
                return None
            args = [argument(part) for part in listed if part is not None]
            path = tool.origin.path
            if not _TEMPLATE.search(path):  # then the record itself says which file runs
                args = [path if part == "{tool_path}" else part for part in args]
            env = config.get("env")
            pairs = env.items() if isinstance(env, dict) else ()
            own = dict(written.env)
            merged = {name: argument(value) for name, value in pairs if not isinstance(value, (dict, list))}
            settings = _with_wishes(loads_own(written.settings), runtimes)
            return by_command(command, args, settings, tuple((merged | own).items()))
        return None

    def led_to(self, tool: Tool, runtimes: Sequence[_Item]) -> Invocation | None:
        """The first of our own runtimes further down the chain."""
        written = tool.invocation
        known = next(filter(None, map(runtime_of, tool.chain[1:])), None)
        if not isinstance(written, RunProcess) or known is None:
            return None
        settings = _with_wishes(loads_own(written.settings), runtimes)
        if _suffix(tool.origin.path) not in DATA_SUFFIXES:
            return by_file(known, tool.origin.path, settings)
        if not written.program or known is not Runtime.PROCESS:
            return None
        config = {key: value for key, value in settings.get("config", {}).items() if key not in COMMANDING}
        return by_command(written.program, written.fixed, {**settings, "config": config}, written.env)

    def with_timeout(self, tool: Tool, runtimes: Sequence[_Item]) -> Tool:
        """The runtime's own limit where the tool has none."""
        if tool.needs.timeout_s is not None or isinstance(tool.invocation, CallMcp):
            return tool
        timeout_s = TIMEOUT_S
        for runtime in runtimes:
            config = runtime.wishes.get("config")
            stated = config.get("timeout") if isinstance(config, dict) else None
            if isinstance(stated, (int, float)) and not isinstance(stated, bool) and stated > 0:
                timeout_s = seconds(stated)
                break
        return tool.replace(needs=replace(tool.needs, timeout_s=timeout_s))

    def too_old_or_new(self, items: Sequence[_Item]) -> str | None:
        """What the runtimes of a chain say about the versions of those they run."""
        for child, parent in pairwise(items):
            limits = parent.wishes.get("child_constraints")
            version = _version(child.tool.version)
            if not isinstance(limits, dict) or version is None:
                continue
            for stated in (limits, limits.get(child.tool.name)):  # for all of them, and for this one
                if not isinstance(stated, dict):
                    continue
                least, most = _version(stated.get("min_version")), _version(stated.get("max_version"))
                said = f"Version constraint failed: '{child.tool.name}' version {child.tool.version}"
                if least is not None and version < least:
                    return f"{said} < minimum required {stated['min_version']}"
                if most is not None and version > most:
                    return f"{said} > maximum allowed {stated['max_version']}"
        return None

    def chain(self, item: _Item) -> tuple[tuple[str, ...], list[_Item]]:
        """The ids from the tool to its primitive, and the items among them that are there."""
        chain = [item.tool.name]
        runtimes: list[_Item] = []
        wanted = item.executor
        asker: _Item | None = item
        while wanted is not None:
            found = self.find(wanted, asker) if asker is not None else None
            if found is not None and found.is_broken:
                raise _Stop("rye.executor.unknown", f"Executor not found: {wanted}", found.correction)
            if found is None and wanted not in _KNOWN:
                if wanted in ALIASES:
                    if len(chain) == 1:
                        self.aliased(item.tool, wanted)
                    wanted = ALIASES[wanted]
                    continue
                raise self.missing(wanted, asker)
            if wanted in chain:
                raise _Stop(
                    "rye.executor.cycle",
                    f"Circular dependency detected: {wanted}",
                    "let one of them name a runtime that does not lead back",
                )
            chain.append(wanted)
            if len(chain) > CHAIN_MAX:
                raise _Stop(
                    "rye.executor.depth",
                    f"Chain too deep (max {CHAIN_MAX}): {item.tool.name}. Name a runtime nearer to the end",
                )
            # What this product knows itself counts as a system item without neighbours.
            asker, wanted = (found, found.executor) if found else (None, _KNOWN[wanted].executor)
            if found is not None:
                runtimes.append(found)
        return tuple(chain), runtimes

    def aliased(self, tool: Tool, short: str) -> None:
        self.say(
            tool,
            "rye.executor.aliases",
            f'{_executor_key(tool)}: "{short}" is short for "{ALIASES[short]}"',
            "write the whole id; short names exist in the document only",
            pointer="executor_id",
        )

    def missing(self, wanted: str, asker: _Item | None) -> _Stop:
        above = [found for found in self.by_id.get(wanted, []) if asker and found.space < asker.space]
        if asker is not None and above:
            # Attack: a cloned project that slips its own runtime under a tool of the user or the system.
            return _Stop(
                "rye.executor.space-rule",
                f"Tool '{asker.tool.name}' from {_space(asker.space)} space cannot depend on '{wanted}' from "
                f"{_space(above[0].space)} space. Lower precedence spaces cannot depend on higher precedence "
                "spaces.",
            )
        return _Stop(
            "rye.executor.unknown",
            f"Executor not found: {wanted}",
            "name an item below .ai/tools or one of the documented runtimes",
        )

    def with_server(self, item: _Item, tool: Tool, call: CallMcp) -> Tool:
        """The connection goes into the call's settings, so that one record is all that runs need."""
        server = self.find(call.server, item)
        if server is not None and server.is_broken:
            message = f'config.server: "{call.server}" has errors'
            raise _Stop("rye.yaml.mcp-server-ref", message, server.correction, pointer="config.server")
        notes = server.tool.notes.metadata if server is not None else None
        if server is None or not isinstance(notes, dict) or SERVER not in notes:
            raise _Stop(
                "rye.yaml.mcp-server-ref",
                f'config.server: there is no server "{call.server}"'
                if server is None
                else f'config.server: "{call.server}" is not an mcp_server',
                "name the item id of an mcp_server file below .ai/tools",
                pointer="config.server",
            )
        tool = _signed_with(tool, [server])  # Attack: a signed tool that talks to a server nobody signed
        connection: JsonObject = notes[SERVER]
        settings = {**loads_own(call.settings), "server": connection}
        timeout_s = tool.needs.timeout_s
        if timeout_s is None:
            stated = connection.get("timeout", 0)
            timeout_s = seconds(stated) if type(stated) in (int, float) and stated > 0 else MCP_TIMEOUT_S
        return replace(
            tool,
            invocation=replace(call, settings=compact(settings)),
            needs=replace(tool.needs, timeout_s=timeout_s),
        )

    # -- names for models -----------------------------------------------------------------------------------

    def spoken(self, tools: Sequence[Tool]) -> Iterator[Tool]:
        owners: dict[str, Tool] = {}
        for tool in tools:
            if tool.role is not Role.TOOL:
                yield tool
                continue
            name, number = tool.spoken, 1
            while name in owners:
                number += 1
                name = f"{tool.spoken}_{number}"
            if number > 1:
                self.say(
                    tool,
                    "rye.id.llm-name",
                    f'"{owners[tool.spoken].name}" and "{tool.name}" are both spoken {tool.spoken}; '
                    f"this one is declared as {name}",
                    "rename one of the files",
                )
                tool = tool.replace(spoken=name)
            owners[name] = tool
            yield tool


def _with_wishes(settings: JsonObject, runtimes: Sequence[_Item]) -> JsonObject:
    """A tool's settings with what its runtimes wish besides: the tool's own count first, then the nearest."""
    merged = dict(settings)
    for runtime in runtimes:
        wishes = runtime.wishes
        for key in ("anchor", "verify_deps"):
            if key not in merged and isinstance(wishes.get(key), dict):
                merged[key] = wishes[key]
                if key == "anchor":
                    merged["runtime_dir"] = runtime.folder
        wished, own = wishes.get("env_config"), merged.get("env_config", {})
        if isinstance(wished, dict):
            both = [config["env"] for config in (wished, own) if isinstance(config.get("env"), dict)]
            env = {name: value for variables in both for name, value in variables.items()}
            merged["env_config"] = {**wished, **own, **({"env": env} if env else {})}
        config = wishes.get("config")
        if isinstance(config, dict):
            kept = {key: value for key, value in config.items() if key not in COMMANDING}
            if kept or "config" in merged:
                merged["config"] = {**kept, **merged.get("config", {})}
    return merged


def _with_names(tool: Tool, runtimes: Sequence[_Item]) -> Tool:
    """A tool that asks for the host's variables that its runtimes name."""
    named = [name for runtime in runtimes for name in runtime.wishes.get(NAMES, ())]
    if not named:
        return tool
    return tool.replace(needs=replace(tool.needs, env=tuple(dict.fromkeys((*tool.needs.env, *named)))))


def _signed_with(tool: Tool, items: Sequence[_Item]) -> Tool:
    """A tool with the files of every item that it runs by: all of them are verified with it.

    Attack: a signed tool copied into a project that slips a runtime of its own under it.
    """
    others = tuple(item.tool.signature for item in items if item.tool.signature is not None)
    if tool.signature is None or not others:
        return tool
    return tool.replace(signature=replace(tool.signature, others=(*tool.signature.others, *others)))


def _version(text: JsonValue) -> tuple[int, ...] | None:
    found = _VERSION.fullmatch(text) if isinstance(text, str) and len(text) <= _VERSION_CHARS_MAX else None
    return tuple(map(int, found.groups())) if found is not None else None


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2]


def _executor_key(tool: Tool) -> str:
    return "executor_id" if _suffix(tool.origin.path) in DATA_SUFFIXES else "__executor_id__"


def _suffix_rank(unit: Unit) -> int:
    suffix = _suffix(unit.item)
    return RYE_SUFFIXES.index(suffix) if suffix in RYE_SUFFIXES else len(RYE_SUFFIXES)


def _name(unit: Unit) -> str:
    return unit.path.rpartition("/")[2]


def _space(space: int) -> str:
    return _SPACES[min(space, _SYSTEM)]


def _root(unit: Unit) -> str:
    return unit.path.removesuffix(unit.item)


def _item_id(unit: Unit) -> str:
    return unit.item.removesuffix(_suffix(unit.item))
