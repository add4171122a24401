"""Doubles and builders for tests, ours and those of embedders: public, and as small as their protocols.

Nothing here is used by the runtime itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.bound import BoundTool
from toolcrib.catalog.catalog import Catalog
from toolcrib.model import CallFacts, End, Ending, Permit, Role, Tool, ToolCall, ToolResult
from toolcrib.sandbox import Cancel


class FixedClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class MemoryShelf:
    """Tools in memory, as a catalog takes them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tuple(tools)
        self.keys = [tool.key for tool in tools]
        self.names = [tool.name for tool in tools]
        self.roles: list[Role] = [tool.role for tool in tools]
        self.aliases = [(number, alias) for number, tool in enumerate(tools) for alias in tool.aliases]

    def tool(self, index: int) -> Tool:
        return self._tools[index]


def catalog_of(*tools: Tool) -> Catalog:
    """A catalog of these tools."""
    return Catalog(MemoryShelf(tools))


class ScriptedRuntime(Struct):
    """Answers with prepared endings, one after the other, and remembers what it was asked."""

    endings: list[Ending | Exception | Callable[[ToolCall], Ending]] = field(default_factory=list)
    calls: list[tuple[Tool, ToolCall, Permit]] = field(default_factory=list)

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        self.calls.append((bound.tool, call, permit))
        answer = self.endings.pop(0) if self.endings else Ending(end=End.EXITED, exit_status=0)
        if isinstance(answer, Exception):
            raise answer
        return answer(call) if callable(answer) else answer


class RecordingAudit:
    """Keeps begins and ends in memory; ``refuses`` makes it a journal that cannot be written."""

    def __init__(self, *, refuses: bool = False, loses_ends: bool = False) -> None:
        self.refuses = refuses
        self.loses_ends = loses_ends
        self.begun: list[tuple[ToolCall, CallFacts]] = []
        self.ended: list[ToolResult] = []
        self._lock = threading.Lock()
        self.why_not = ("it was told to refuse", "tell it otherwise")

    def begin(self, call: ToolCall, facts: CallFacts) -> bool:
        return self.begin_all([(call, facts)])

    def begin_all(self, calls: Sequence[tuple[ToolCall, CallFacts]]) -> bool:
        with self._lock:
            if not self.refuses:
                self.begun.extend(calls)
        return not self.refuses

    def end(self, call: ToolCall, result: ToolResult, tool: Tool | None = None) -> ToolResult:
        return self.end_all([(call, result, tool)])[0]

    def end_all(self, calls: Sequence[tuple[ToolCall, ToolResult, Tool | None]]) -> list[ToolResult]:
        results = [result for _call, result, _tool in calls]
        if self.loses_ends:
            note = "the end of this call could not be recorded"
            return [replace(result, notes=(*result.notes, note)) for result in results]
        with self._lock:
            self.ended.extend(results)
        return results
