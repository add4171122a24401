"""Rye's executor chain: from a tool through its runtimes to the primitive that starts a process.

Knows the executors that the format's own projects use, the short names for them, and which of them this
product has a runtime for. ``link`` puts all rye items together: which item an id means, what its chain is,
and what only neighbours can tell (a missing server, two ids with one spoken name).

It reads no declaration: ``rye`` compiles the items that come in here. Nothing is verified here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from toolwright.formats._node import seconds
from toolwright.jsontext import JsonObject, compact, loads_own
from toolwright.model import CallMcp, Linked, NotCallable, Problem, Role, Severity, Tool, Unit

SUFFIXES: Final = (".py", ".yaml", ".yml", ".json", ".js", ".ts", ".mjs", ".cjs", ".sh", ".toml")
"""In the order in which an id is looked up."""
DATA_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
SERVER: Final = "mcp_server"
"""The member of a server record's notes that holds its connection."""
MCP_TIMEOUT_S: Final = 60.0
CHAIN_MAX: Final = 10

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


@dataclass(frozen=True, slots=True)
class _Known:
    runtime: Runtime | None
    executor: str | None


_EXECUTE: Final = "rye/core/primitives/execute"
_SUBPROCESS: Final = "rye/core/primitives/subprocess"
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


@dataclass(frozen=True, slots=True)
class _Item:
    """A loaded item in its place."""

    tool: Tool
    space: int
    root: str
    """The ``.ai/tools`` it lies in."""

    @property
    def executor(self) -> str | None:
        return self.tool.chain[1] if len(self.tool.chain) > 1 else None


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
        self.by_id: dict[str, list[_Item]] = {}
        self.gather(units)

    def link(self) -> Linked:
        tools = []
        for item in self.items:
            try:
                tools.append(self.resolved(item))
            except _Stop as stop:
                self.say(item.tool, stop.code, stop.message, stop.hint, Severity.ERROR, stop.pointer)
        return Linked(tools=tuple(self.spoken(tools)), problems=tuple(self.problems))

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
        meant = [unit for unit in units if unit.compiled.tools or _is_broken(unit)]
        winners: dict[tuple[str, str], Unit] = {}
        for unit in sorted(meant, key=_suffix_rank):
            winners.setdefault((_root(unit), _item_id(unit)), unit)
        first_of: dict[str, Unit] = {}
        for unit in sorted(meant, key=lambda unit: unit.space):
            root, item_id = _root(unit), _item_id(unit)
            winner = winners[root, item_id]
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
        """The item that an id means for ``asker``: of its own root, then of the spaces below it."""
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
        executor = item.executor
        if executor is None:
            return tool
        chain = self.chain(item)
        tool = replace(tool, chain=chain)
        if tool.role is not Role.TOOL:
            return tool
        if runtime_of(chain[1]) is None:
            last = chain[-1]
            reason = no_runtime(executor) if last in _KNOWN else f"Unknown primitive: {last}"
            self.say(
                tool,
                "rye.executor.unavailable",
                f'{_executor_key(tool)}: no runtime here for "{chain[1]}"; it is listed and cannot be called',
                "use one of the documented runtimes to make it callable",
                pointer="executor_id",
            )
            return replace(tool, invocation=NotCallable(reason=reason))
        if isinstance(tool.invocation, CallMcp):
            return self.with_server(item, tool, tool.invocation)
        return tool

    def chain(self, item: _Item) -> tuple[str, ...]:
        chain = [item.tool.name]
        wanted = item.executor
        asker: _Item | None = item
        while wanted is not None:
            found = self.find(wanted, asker) if asker is not None else None
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
        return tuple(chain)

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
                tool = replace(tool, spoken=name)
            owners[name] = tool
            yield tool


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2]


def _executor_key(tool: Tool) -> str:
    return "executor_id" if _suffix(tool.origin.path) in DATA_SUFFIXES else "__executor_id__"


def _suffix_rank(unit: Unit) -> int:
    suffix = _suffix(unit.item)
    return SUFFIXES.index(suffix) if suffix in SUFFIXES else len(SUFFIXES)


def _name(unit: Unit) -> str:
    return unit.path.rpartition("/")[2]


def _space(space: int) -> str:
    return _SPACES[min(space, _SYSTEM)]


def _is_broken(unit: Unit) -> bool:
    return any(problem.severity is Severity.ERROR for problem in unit.compiled.problems)


def _root(unit: Unit) -> str:
    return unit.path.removesuffix(unit.item)


def _item_id(unit: Unit) -> str:
    return unit.item.removesuffix(_suffix(unit.item))
