"""The way of a call: begin, find, check, decide, run, reply, end. In this order, for every call, always.

The order cannot be configured. Retry, idempotency and limits wrap a runtime (``runtimes/around.py``); they
cannot get around policy or audit. The engine knows no format, no provider and no kernel: it asks the rooms
above it and puts their answers together. What calls it (doors, the agent loop) lies below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from toolwright.calls import arguments, replies
from toolwright.catalog import digests
from toolwright.catalog.catalog import Catalog
from toolwright.errors import Kind, UnknownTool
from toolwright.model import (
    LEVELS,
    Allow,
    Ask,
    CallFacts,
    Decision,
    Deny,
    Invocation,
    Level,
    NotCallable,
    Reply,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
)
from toolwright.records import dataclass, replace
from toolwright.runtimes import Runtime
from toolwright.sandbox import Cancel

_KNOWN_MAX: Final = 4096


class Audit(Protocol):
    """Where calls are recorded. True only when durable; one end for each begin."""

    @property
    def why_not(self) -> tuple[str, str]:
        """Why the last begin could not be written, and what to do."""
        ...

    def begin(self, call: ToolCall, facts: CallFacts) -> bool: ...

    def end(self, call: ToolCall, result: ToolResult, tool: Tool | None = None) -> ToolResult: ...


@dataclass(frozen=True, slots=True)
class Stock:
    """A catalog and its version. A call uses one to its end, whatever is loaded meanwhile."""

    catalog: Catalog
    version: str


@dataclass(frozen=True, slots=True)
class _Known:
    """A tool, with what every call of it asks again."""

    tool: Tool
    seen: str
    how: str
    own_files: tuple[str, ...]


class _Refused(Exception):
    """A call that ends before anything ran."""

    def __init__(self, error: ToolError, tool: Tool | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.tool = tool


class Engine:
    """One engine serves all doors and threads of a host."""

    def __init__(
        self,
        *,
        stock: Callable[[], Stock],
        audit: Audit,
        decide: Callable[[Tool, ToolCall], Decision],
        runtimes: Mapping[type[Invocation], Runtime],
        level: Callable[[], Level],
        contents: digests.Contents,
        spill: Callable[[Tool, ToolResult], ToolResult] = lambda _tool, result: result,
        arrives: Callable[[ToolCall, Cancel], bool] = lambda _call, _cancel: False,
        absence: Callable[[str, Catalog], ToolError | None] = lambda _name, _catalog: None,
    ) -> None:
        """``arrives`` waits for a tool that is on its way; True: it may be there now. ``absence``: why there
        is no tool of a name, where that is not the name's fault."""
        self._stock = stock
        self._audit = audit
        self._decide = decide
        self._runtimes = runtimes
        self._level = level
        self._contents = contents
        self._spill = spill
        self._arrives = arrives
        self._absence = absence
        self._known: tuple[str, dict[str, _Known]] = ("", {})

    def call(self, call: ToolCall, cancel: Cancel, *, door: str = "python") -> ToolResult:
        """Run one call from begin to end. Never raises because of a tool, a declaration or an argument."""
        started = time.monotonic()
        stock = self._stock()
        known, unknown = self._look_up(stock, call.tool)
        if known is None and self._arrives(call, cancel):
            stock = self._stock()
            known, unknown = self._look_up(stock, call.tool)
        facts = self._facts(known, stock.version, door)
        if not self._audit.begin(call, facts):
            why, hint = self._audit.why_not
            message = f"the audit journal cannot be written, so nothing was run: {why}"
            error = ToolError(kind=Kind.NOT_AUDITED, message=message, hint=hint)
            return self._refusal(call, error, known.tool if known else None)
        tool = known.tool if known is not None else None
        result: ToolResult | None = None
        try:
            if known is None:
                error = ToolError(kind=Kind.UNKNOWN_TOOL, message=unknown.message, hint=unknown.hint)
                raise _Refused(self._absence(call.tool, stock.catalog) or error)
            result = self._through(known, call, facts.runs_digest, cancel)
        except _Refused as refused:
            result = self._refusal(call, refused.error, refused.tool)
        except KeyboardInterrupt:
            result = self._refusal(call, ToolError(kind=Kind.CANCELLED, message="interrupted"), tool)
            raise
        except Exception as broken:  # noqa: BLE001 - one catch-all per thread boundary, no other
            message = f"the runtime broke: {type(broken).__name__}"
            result = self._refusal(call, ToolError(kind=Kind.INTERNAL, message=message), tool)
        finally:
            if result is None:
                error = ToolError(kind=Kind.INTERNAL, message="stopped without an answer")
                result = self._refusal(call, error, tool)
            if not result.spent.duration_ms:  # nothing ran: what was spent was spent here
                spent = replace(result.spent, duration_ms=round((time.monotonic() - started) * 1000, 3))
                result = replace(result, spent=spent)
            result = self._audit.end(call, result, tool)
        return result

    # -- find -----------------------------------------------------------------------------------------------

    def _look_up(self, stock: Stock, name: str) -> tuple[_Known | None, UnknownTool]:
        version, known = self._known
        if version != stock.version:
            known = {}
            self._known = (stock.version, known)
        found = known.get(name)
        if found is not None:
            return found, _NOBODY
        try:
            tool = stock.catalog.find(name)
        except UnknownTool as error:
            return None, error
        found = _Known(tool, digests.seen(tool), digests.how(tool.invocation), digests.own_files(tool))
        if len(known) < _KNOWN_MAX:
            known[name] = found
        return found, _NOBODY

    def _facts(self, known: _Known | None, version: str, door: str) -> CallFacts:
        if known is None:
            return CallFacts(door=door, catalog=version)
        return CallFacts(
            door=door,
            key=known.tool.key,
            format=known.tool.origin.format,
            catalog=version,
            seen_digest=known.seen,
            runs_digest=self._contents.runs(known.how, known.own_files),
        )

    # -- check, decide, run, reply --------------------------------------------------------------------------

    def _through(self, known: _Known, call: ToolCall, runs_digest: str | None, cancel: Cancel) -> ToolResult:
        tool = known.tool
        if isinstance(tool.invocation, NotCallable):
            reason = tool.invocation.reason
            raise _Refused(ToolError(kind=Kind.UNAVAILABLE, message=reason), tool)

        checked = arguments.check(tool, call)
        if isinstance(checked, ToolError):
            raise _Refused(checked, tool)
        call = replace(call, arguments=checked.arguments, raw=checked.raw, runs_digest=runs_digest)

        allowed = self._allowed(tool, call)
        permit, notes = allowed.permit, (*checked.notes, *allowed.notes)
        if call.dry_run:
            return self._with_notes(replies.dry_run(tool, call, permit), notes)

        runtime = self._runtimes.get(type(tool.invocation))
        if runtime is None:
            what = _KINDS_OF_TOOL.get(type(tool.invocation).__name__, "such")
            message = f"{what} tools cannot be run by this version"
            raise _Refused(ToolError(kind=Kind.UNAVAILABLE, message=message), tool)
        ending = runtime.run(tool, call, permit, cancel)
        result = self._spill(tool, replies.reply(tool, call, ending, permit=permit))
        return self._with_notes(result, notes)

    def _allowed(self, tool: Tool, call: ToolCall) -> Allow:
        match self._decide(tool, call):
            case Deny(message=message, hint=hint, kind=kind, because=because):
                raise _Refused(
                    ToolError(kind=kind, message=message, hint=hint, details={"because": because}), tool
                )
            case Ask(question=question, because=because):
                raise _Refused(
                    ToolError(
                        kind=Kind.NEEDS_APPROVAL,
                        message=question,
                        hint="a person has to approve it first",
                        details={"because": because},
                    ),
                    tool,
                )
            case Allow() as allowed:
                level, required = self._level(), allowed.permit.level
                if LEVELS.index(level) < LEVELS.index(required):
                    raise _Refused(
                        ToolError(
                            kind=Kind.UNAVAILABLE,
                            message=f"isolation level {required} is required; this machine has {level}",
                            hint="`toolwright doctor` says what is missing",
                        ),
                        tool,
                    )
                return allowed

    @staticmethod
    def _with_notes(result: ToolResult, notes: tuple[str, ...]) -> ToolResult:
        return replace(result, notes=(*notes, *result.notes)) if notes else result

    def _refusal(self, call: ToolCall, error: ToolError, tool: Tool | None) -> ToolResult:
        default = Reply.PLAIN_TEXT if tool is not None else self._default_reply()
        return replies.refusal(call, error, tool=tool, default=default)

    def _default_reply(self) -> Reply:
        """How an unknown name is answered: as the tools there are, where they are all of one kind."""
        catalog = self._stock().catalog
        return catalog.tools[0].reply if len(catalog.formats) == 1 else Reply.PLAIN_TEXT


_NOBODY: Final = UnknownTool("")
_KINDS_OF_TOOL: Final = {
    "CallJavaScript": "JavaScript",
    "CallHttp": "HTTP",
    "CallMcp": "MCP",
    "RunContainer": "container",
}
