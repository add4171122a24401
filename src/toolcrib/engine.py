"""The way of a call: begin, find, check, decide, run, reply, end. In this order, for every call, always.

The order cannot be configured. Retry, idempotency and limits wrap a runtime (``runtimes/around.py``); they
cannot get around policy or audit. The engine knows no format, no provider and no kernel: it asks the rooms
above it and puts their answers together. What calls it (doors, the agent loop) lies below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.bound import BoundTool, CatalogSnapshot
from toolcrib.calls import arguments, replies
from toolcrib.catalog.catalog import Catalog, is_within
from toolcrib.catalog.digests import Contents
from toolcrib.errors import Kind, StoreError, Unrecorded, did_you_mean, shortage
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    LEVELS,
    Allow,
    Approval,
    ApprovalState,
    Ask,
    CallFacts,
    CallFunction,
    Charge,
    Decision,
    Deny,
    Invocation,
    Level,
    NotCallable,
    Permit,
    Reply,
    Role,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
)
from toolcrib.runtimes import Runtime
from toolcrib.sandbox import Cancel

_OWN: Final = "toolcrib:"
"""How the keys of the house's own tools begin."""
_ROUNDS_MAX: Final = 1000
"""How often one call may find that another one has used the approval that it waited for."""


class Audit(Protocol):
    """Where calls are recorded. True only when durable; one end for each begin."""

    @property
    def why_not(self) -> tuple[str, str]:
        """Why the last begin could not be written, and what to do."""
        ...

    def begin_all(self, calls: Sequence[tuple[ToolCall, CallFacts]]) -> bool: ...

    def end_all(self, calls: Sequence[tuple[ToolCall, ToolResult, Tool | None]]) -> list[ToolResult]: ...


class Approvals(Protocol):
    """Where questions wait for a person. Raises StoreError where that cannot be kept or recorded."""

    def ask(self, tool: Tool, call: ToolCall, question: Ask) -> Approval | ToolError: ...

    def take(self, tool: Tool, call: ToolCall, approval_id: str) -> bool:
        """Use an approval up, durably, before anything starts. False: it no longer counts."""
        ...

    def wait(self, approval: Approval, stop: Cancel, timeout_s: float) -> bool:
        """Whether the question no longer waits, waited for at most so long."""
        ...


class StartedCall(Struct, frozen=True):
    """A call that is recorded as begun, and what it was recorded with."""

    call: ToolCall
    cancel: Cancel
    facts: CallFacts
    snapshot: CatalogSnapshot
    since: float
    """When it came, by a clock that is never set back."""
    bound: BoundTool | None
    is_later: bool = False
    """Not begun yet: it begins by itself when it goes on."""
    why_not: tuple[str, str] | None = None
    """Why it could not be recorded, and what to do; nothing may run then."""

    @property
    def is_quick(self) -> bool:
        """Whether it most likely takes no longer than starting a thread would: a function of the host's."""
        return self.bound is not None and isinstance(self.bound.tool.invocation, CallFunction)


class FinishedCall(Struct, frozen=True):
    """A call that has run, and whose end is not recorded yet."""

    call: ToolCall
    result: ToolResult
    tool: Tool | None
    is_recorded: bool = True
    """Whether its begin was: only then does it get an end."""
    interrupt: BaseException | None = None
    """What stopped it from outside, to be raised once the end is recorded."""


class _Refused(Exception):
    """A call that ends before anything ran."""

    def __init__(self, error: ToolError, tool: Tool | None = None, rule: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.tool = tool
        self.rule = rule


class Engine:
    """One engine serves all doors and threads of a host."""

    def __init__(
        self,
        *,
        snapshot: Callable[[], CatalogSnapshot],
        audit: Audit,
        decide: Callable[[BoundTool, ToolCall], Decision],
        runtimes: Mapping[type[Invocation], Runtime],
        level: Callable[[], Level],
        contents: Contents,
        spill: Callable[[Tool, ToolResult, str], ToolResult] = lambda _tool, result, _door: result,
        reserve: Callable[[Sequence[Charge]], Deny | None] = lambda _charges: None,
        approvals: Callable[[], Approvals] | None = None,
        arrives: Callable[[ToolCall, Cancel], bool] = lambda _call, _cancel: False,
        absence: Callable[[str, Catalog], ToolError | None] = lambda _name, _catalog: None,
        lacks: Callable[[Tool, Permit], ToolError | None] = lambda _tool, _permit: None,
        served: Callable[[str, Catalog], Tool | None] = lambda _key, _catalog: None,
        meant: Callable[[ToolCall], ToolCall] = lambda call: call,
        is_barred: Callable[[Tool, str], bool] = lambda _tool, _caller: False,
    ) -> None:
        """``arrives`` waits for a tool that is on its way; True: it may be there now. ``absence``: why there
        is no tool of a name, where that is not the name's fault. ``lacks``: what a tool could not start
        without, for calls that start nothing. ``served`` knows tools that stand in no list, by their keys;
        ``meant`` the call that a call of one of them stands for: rye's ``execute`` begins as the call of the
        tool that it names. ``is_barred``: whether a caller is not offered a tool, whatever the arguments."""
        self._snapshot = snapshot
        self._audit = audit
        self._decide = decide
        self._runtimes = runtimes
        self._level = level
        self._contents = contents
        self._spill = spill
        self._reserve = reserve
        self._approvals = approvals
        self._arrives = arrives
        self._absence = absence
        self._lacks = lacks
        self._served = served
        self._meant = meant
        self._is_barred = is_barred

    def call(self, call: ToolCall, cancel: Cancel, *, door: str = "python") -> ToolResult:
        """Run one call from begin to end. Never raises because of a tool, a declaration or an argument."""
        (started,) = self.begin(((call, cancel),), door=door)
        return self.go_on(started)

    def begin(self, calls: Sequence[tuple[ToolCall, Cancel]], *, door: str = "python") -> list[StartedCall]:
        """Record that calls begin. The records are on the disk when this returns, or nothing may run.

        Calls that arrive together share one sync, in whatever threads they go on. Hand each to ``go_on``, or
        to ``run`` and then ``end``, once: a begin without an end reads as interrupted. A name that only
        waiting may bring is not waited for while others wait too.
        """
        now, snapshot, alone = time.monotonic(), self._snapshot(), len(calls) == 1
        started = [self._found(call, cancel, now, snapshot, door, alone=alone) for call, cancel in calls]
        recorded = [(each.call, each.facts) for each in started if not each.is_later]
        if recorded and not self._audit.begin_all(recorded):
            why_not = self._audit.why_not
            return [each if each.is_later else replace(each, why_not=why_not) for each in started]
        return started

    def _found(
        self,
        call: ToolCall,
        cancel: Cancel,
        now: float,
        snapshot: CatalogSnapshot,
        door: str,
        *,
        alone: bool,
    ) -> StartedCall:
        """A call with its tool, if there is one, and with what its begin will be recorded with."""
        if call.tool.startswith(_OWN):
            call = self._meant(call)
        bound = self._look_up(snapshot, call)
        if bound is None and alone and self._arrives(call, cancel):
            snapshot = self._snapshot()
            bound = self._look_up(snapshot, call)
        facts = self._facts(bound, snapshot.version, door)
        return StartedCall(call, cancel, facts, snapshot, now, bound, bound is None and not alone)

    def go_on(self, started: StartedCall) -> ToolResult:
        """Run a call that has begun to its end."""
        finished = self.run(started)
        (result,) = self.end([finished])
        if finished.interrupt is not None:
            raise finished.interrupt
        return result

    def run(self, started: StartedCall) -> FinishedCall:
        """Find, check, decide, run and reply. What it gives must be handed to ``end``: the result may go out
        only when its end is in the kernel."""
        if started.is_later:
            (started,) = self.begin(((started.call, started.cancel),), door=started.facts.door)
        call, bound = started.call, started.bound
        tool = bound.tool if bound is not None else None
        if started.why_not is not None:
            return self._unrecorded(call, tool, started.why_not)
        interrupt: BaseException | None = None
        try:
            if bound is None:
                raise _Refused(self._unknown(started.snapshot.catalog, call, started.facts.door))
            result = self._through(bound, call, started.facts, started.cancel)
        except _Refused as refused:
            result = replace(self._refusal(call, refused.error, refused.tool), rule=refused.rule)
        except Unrecorded as no:
            error = ToolError(kind=Kind.NOT_AUDITED, message=no.message, hint=no.hint)
            result = self._refusal(call, error, tool)
        except Exception as broken:  # noqa: BLE001 - one catch-all per thread boundary, no other
            what, hint = shortage(broken) or (type(broken).__name__, None)
            error = ToolError(kind=Kind.INTERNAL, message=f"the runtime broke: {what}", hint=hint)
            result = self._refusal(call, error, tool)
        except BaseException as stopped:  # noqa: BLE001 - raised again when the end is recorded
            interrupt = stopped
            is_interrupt = isinstance(stopped, KeyboardInterrupt)
            kind = Kind.CANCELLED if is_interrupt else Kind.INTERNAL
            message = "interrupted" if is_interrupt else "stopped without an answer"
            result = self._refusal(call, ToolError(kind=kind, message=message), tool)
        if not result.spent.duration_ms:  # nothing ran: what was spent was spent here
            spent = replace(result.spent, duration_ms=round((time.monotonic() - started.since) * 1000, 3))
            result = replace(result, spent=spent)
        return FinishedCall(call, result, tool, interrupt=interrupt)

    def give_up(self, started: StartedCall, error: ToolError) -> FinishedCall:
        """In the place of ``run``, for a call that has begun and cannot be run."""
        tool = started.bound.tool if started.bound is not None else None
        is_recorded = started.why_not is None and not started.is_later
        return FinishedCall(
            started.call, self._refusal(started.call, error, tool), tool, is_recorded=is_recorded
        )

    def end(self, finished: Sequence[FinishedCall]) -> list[ToolResult]:
        """Record how calls ended, in the kernel together, and give the results that may go out."""
        if len(finished) == 1 and finished[0].is_recorded:  # most often
            one = finished[0]
            return self._audit.end_all(((one.call, one.result, one.tool),))
        recorded = [(one.call, one.result, one.tool) for one in finished if one.is_recorded]
        ended = self._audit.end_all(recorded)
        if len(ended) == len(finished):
            return ended
        left = iter(ended)
        return [next(left) if one.is_recorded else one.result for one in finished]

    # -- find -----------------------------------------------------------------------------------------------

    def _look_up(self, snapshot: CatalogSnapshot, call: ToolCall) -> BoundTool | None:
        bound = snapshot.called(call.tool)
        if bound is None:
            # Attack: a tool whose bare name is the key of one of the house's own, to get its calls.
            tool = self._served(call.tool, snapshot.catalog) or snapshot.catalog.look(call.tool)
            if tool is None:
                return None
            bound = snapshot.bind(call.tool, tool)
        # Attack: a caller learns from refusals which tools there are beyond its reach.
        return bound if call.reach is None or is_within(call.reach, bound.tool) else None

    def _unknown(self, catalog: Catalog, call: ToolCall, door: str) -> ToolError:
        """Return the error for a name without a tool, or with one that this caller must not know of."""
        # Attack: a caller learns by a key that it guessed which servers there are beyond its reach, and what
        # one of them wrote to stderr.
        if call.reach is None or any(fnmatchcase(call.tool, each) for each in call.reach.tools):
            absent = self._absence(call.tool, catalog)
            if absent is not None:
                return absent

        def may(tool: Tool) -> bool:
            # Attack: a caller learns from suggestions which tools there are that it is not offered.
            is_near = call.reach is None or is_within(call.reach, tool)
            try:
                return tool.role is Role.TOOL and is_near and not self._is_barred(tool, call.caller)
            except StoreError:  # what is switched off cannot be read
                return False

        if call.spoken and not call.declared:  # a model's, which has no other names than those it was told
            return self._without(f"there is no tool {call.tool!r}", call.near, door)
        try:
            unknown = catalog.unknown(call.tool, may)
        except (OSError, ImportError) as broken:
            short = shortage(broken)
            if short is None:
                raise
            # Its declaration may be unread for the same reason.
            return ToolError(kind=Kind.UNAVAILABLE, message=short[0], hint=short[1])
        return self._without(unknown.message, unknown.near, door, unknown.hint)

    @staticmethod
    def _without(message: str, near: Sequence[str], door: str, hint: str | None = None) -> ToolError:
        if not near:
            hint = f"{_LISTS.get(door, '`toolcrib list`')} shows what there is"
            return ToolError(kind=Kind.UNKNOWN_TOOL, message=message, hint=hint)
        details: JsonObject = {"did_you_mean": list(near)}
        return ToolError(
            kind=Kind.UNKNOWN_TOOL, message=message, hint=hint or did_you_mean(near), details=details
        )

    def _facts(self, bound: BoundTool | None, version: str, door: str) -> CallFacts:
        """What the begin of a call is recorded with: the same as for the last one while its files are."""
        if bound is None:
            return CallFacts(door=door, catalog=version)
        digests = bound.digests
        runs = self._contents.runs(digests.how, digests.own_files) if digests.own_files else digests.how
        facts = bound.facts.get(door)
        if facts is None or facts.runs_digest != runs:
            facts = bound.facts[door] = CallFacts(
                door=door,
                key=bound.tool.key,
                format=bound.tool.origin.format,
                catalog=version,
                seen_digest=digests.seen,
                runs_digest=runs,
            )
        return facts

    # -- check, decide, run, reply --------------------------------------------------------------------------

    def _through(self, bound: BoundTool, call: ToolCall, facts: CallFacts, cancel: Cancel) -> ToolResult:
        tool = bound.tool
        if isinstance(tool.invocation, NotCallable):
            reason = tool.invocation.reason
            raise _Refused(ToolError(kind=Kind.UNAVAILABLE, message=reason), tool)

        checked = arguments.checked(tool, call.arguments, call.raw, defect=call.defect)
        if isinstance(checked, ToolError):
            raise _Refused(checked, tool)
        call = replace(
            call,
            arguments=checked.arguments,
            raw=checked.raw,
            runs_digest=facts.runs_digest,
            seen_digest=facts.seen_digest,
        )

        allowed, edited = self._allowed(bound, call, cancel)
        permit, notes = allowed.permit, checked.notes + allowed.notes
        if edited is not None:
            raw = edited.raw or jsontext.compact(edited.arguments).decode("utf-8")
            call = replace(call, arguments=edited.arguments, raw=raw)
            notes = (*notes, f"the arguments were edited by {allowed.edited_by}, who approved the call")
        if call.dry_run:
            if (lacking := self._lacks(tool, permit)) is not None:
                raise _Refused(lacking, tool, allowed.rule)
            return self._decided(replies.dry_run(tool, call, permit), notes, allowed)

        runtime = self._runtimes.get(type(tool.invocation))
        if runtime is None:
            what = _KINDS_OF_TOOL.get(type(tool.invocation).__name__, "such")
            message = f"{what} tools cannot be run by this version"
            raise _Refused(ToolError(kind=Kind.UNAVAILABLE, message=message), tool, allowed.rule)
        if allowed.charges and (used_up := self._reserve(allowed.charges)) is not None:
            raise _Refused(_denial(used_up), tool, used_up.rule)
        ending = runtime.run(bound, call, permit, cancel)
        result = self._spill(tool, replies.reply(tool, call, ending, permit=permit), facts.door)
        return self._decided(result, notes, allowed) if notes or allowed.rule else result

    def _allowed(
        self, bound: BoundTool, call: ToolCall, cancel: Cancel
    ) -> tuple[Allow, arguments.Checked | None]:
        """The permit, and the arguments that take the place of the call's, where a person edited them."""
        tool = bound.tool
        until: float | None = None
        for _ in range(_ROUNDS_MAX):
            decision = self._decide(bound, call)
            if isinstance(decision, Allow):
                edited = None if decision.arguments is None else self._edited(tool, decision)
                if edited is not None:
                    decision = self._allowed_edited(bound, call, decision, edited)
                if decision.permit.level is not _LEAST:  # which every machine has
                    self._hold_to_level(tool, decision)
                if not decision.approval or call.dry_run or self._take(tool, call, decision.approval):
                    return decision, edited
            elif isinstance(decision, Deny):
                raise _Refused(_denial(decision), tool, decision.rule)
            else:
                until = time.monotonic() + call.approval_wait_s if until is None else until
                self._ask(tool, call, decision, cancel, until)
        error = ToolError(
            kind=Kind.NEEDS_APPROVAL, message="each approval was used by another call", hint="call again"
        )
        raise _Refused(error, tool)

    def _ask(self, tool: Tool, call: ToolCall, ask: Ask, cancel: Cancel, until: float) -> None:
        """Keep the question for a person. Returns only where it was answered, so that it is decided anew."""
        details = {"because": ask.because, "rule": ask.rule, "question": ask.question}
        hint = "a person has to approve it first"
        if self._approvals is not None and not call.dry_run:
            try:
                approval = self._approvals().ask(tool, call, ask)
                if isinstance(approval, ToolError):
                    raise _Refused(replace(approval, details=details), tool, ask.rule)
                if approval.state is not ApprovalState.WAITING:
                    return
                left_s = until - time.monotonic()
                if left_s > 0 and self._approvals().wait(approval, cancel, left_s):
                    return
            except StoreError as error:  # Attack: a store that is broken on purpose, so that nobody is asked
                raise self._unkept(error, tool) from None
            details["approval_id"] = approval.id
            if cancel.is_set:
                message = "cancelled while it waited for an approval"
                stopped = ToolError(kind=Kind.CANCELLED, message=message, details=details)
                raise _Refused(stopped, tool, ask.rule)
            hint = f"`toolcrib approvals approve {approval.id}` lets the next identical call run"
        raise _Refused(
            ToolError(kind=Kind.NEEDS_APPROVAL, message=ask.question, hint=hint, details=details),
            tool,
            ask.rule,
        )

    def _take(self, tool: Tool, call: ToolCall, approval_id: str) -> bool:
        if self._approvals is None:
            return False
        try:
            return self._approvals().take(tool, call, approval_id)
        except StoreError as error:
            raise self._unkept(error, tool) from None

    @staticmethod
    def _unkept(error: StoreError, tool: Tool) -> _Refused:
        if isinstance(error, Unrecorded):
            return _Refused(ToolError(kind=Kind.NOT_AUDITED, message=error.message, hint=error.hint), tool)
        message = f"approvals cannot be kept, so nothing was run: {error.message}"
        return _Refused(ToolError(kind=Kind.UNAVAILABLE, message=message, hint=error.hint), tool)

    @staticmethod
    def _edited(tool: Tool, allowed: Allow) -> arguments.Checked:
        """Attack: edited arguments that do not fit, put into the store past whoever checked them."""
        checked = arguments.checked(tool, allowed.arguments)
        if isinstance(checked, ToolError):
            hint = f"answer it again: `toolcrib approvals approve {allowed.approval}`"
            message = f"the edited arguments do not fit: {checked.message}"
            raise _Refused(replace(checked, message=message, hint=hint), tool)
        return checked

    def _allowed_edited(
        self, bound: BoundTool, call: ToolCall, allowed: Allow, edited: arguments.Checked
    ) -> Allow:
        """What the house says to the arguments that will run. Attack: a person who may approve is talked into
        arguments that a rule refuses. Whoever edited them has answered what a rule would ask."""
        mended = replace(call, arguments=edited.arguments, raw=edited.raw, approved_by=allowed.edited_by)
        decision = self._decide(bound, mended)
        if isinstance(decision, Allow):
            return replace(
                decision, approval=allowed.approval, arguments=allowed.arguments, edited_by=allowed.edited_by
            )
        message = decision.message if isinstance(decision, Deny) else decision.question
        error = ToolError(
            kind=decision.kind if isinstance(decision, Deny) else Kind.NEEDS_APPROVAL,
            message=f"the edited arguments are refused: {message}",
            hint=f"answer it again: `toolcrib approvals approve {allowed.approval}`",
            details={"because": decision.because},
        )
        raise _Refused(error, bound.tool, decision.rule)

    def _hold_to_level(self, tool: Tool, allowed: Allow) -> None:
        level, required = self._level(), allowed.permit.level
        if LEVELS.index(level) < LEVELS.index(required):
            raise _Refused(
                ToolError(
                    kind=Kind.UNAVAILABLE,
                    message=f"isolation level {required} is required; this machine has {level}",
                    hint="`toolcrib doctor` says what is missing",
                ),
                tool,
            )

    @staticmethod
    def _decided(result: ToolResult, notes: tuple[str, ...], allowed: Allow) -> ToolResult:
        """The result with what was noted before it ran, and which rule let it."""
        return replace(result, notes=(*notes, *result.notes), rule=allowed.rule)

    def _unrecorded(self, call: ToolCall, tool: Tool | None, why_not: tuple[str, str]) -> FinishedCall:
        why, hint = why_not
        message = f"the audit journal cannot be written, so nothing was run: {why}"
        error = ToolError(kind=Kind.NOT_AUDITED, message=message, hint=hint)
        result = self._refusal(call, error, tool)
        return FinishedCall(call, result, tool, is_recorded=False)

    def _refusal(self, call: ToolCall, error: ToolError, tool: Tool | None) -> ToolResult:
        default = Reply.PLAIN_TEXT if tool is not None else self._default_reply()
        return replies.refusal(call, error, tool=tool, default=default)

    def _default_reply(self) -> Reply:
        """How an unknown name is answered: as the tools there are, where they are all of one kind."""
        catalog = self._snapshot().catalog
        return catalog.tools[0].reply if len(catalog.formats) == 1 else Reply.PLAIN_TEXT


def _denial(denied: Deny) -> ToolError:
    details: JsonObject = {"because": denied.because}
    if denied.rule:
        details["rule"] = denied.rule
    if denied.again_s is not None:
        details["again_s"] = denied.again_s
    return ToolError(kind=denied.kind, message=denied.message, hint=denied.hint, details=details)


_LISTS: Final = {"mcp": "`tools/list`", "http": "GET /v1/tools"}
"""What lists the tools, by door."""
_LEAST: Final = LEVELS[0]
_KINDS_OF_TOOL: Final = {
    "CallJavaScript": "JavaScript",
    "CallHttp": "HTTP",
    "CallMcp": "MCP",
    "RunContainer": "container",
}
