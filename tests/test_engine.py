"""The way of a call: one order, one begin, one end, whatever happens in between."""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.strategies import make_tool
from toolcrib.bound import BoundTool, CatalogSnapshot
from toolcrib.catalog.catalog import Catalog
from toolcrib.catalog.digests import Contents
from toolcrib.engine import Approvals, Engine
from toolcrib.errors import Kind, StoreError, Unrecorded
from toolcrib.journal.audit import Audit, Seals
from toolcrib.journal.reading import OWN, entries
from toolcrib.journal.segments import Disk, Segments
from toolcrib.model import (
    Allow,
    Approval,
    ApprovalState,
    Ask,
    CallFacts,
    Charge,
    Decision,
    Deny,
    Effect,
    End,
    Ending,
    JsonOnStdin,
    Level,
    Limits,
    NotCallable,
    Permit,
    Reach,
    Retry,
    RunContainer,
    RunProcess,
    Schema,
    Tool,
    ToolCall,
    ToolError,
)
from toolcrib.runtimes.around import Limited, Once, Retrying, Spill
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox.portable import Portable
from toolcrib.store.leases import Leases
from toolcrib.store.sqlite import SqliteStore
from toolcrib.testing import RecordingAudit, ScriptedRuntime, catalog_of

GOOD = Ending(end=End.EXITED, exit_status=0, stdout=b"fine", stdout_bytes=4)
SCHEMA = Schema.of({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def a_tool(**more: object) -> Tool:
    run = RunProcess(program="add", encoding=JsonOnStdin(verbatim=True))
    fields = {"invocation": run, "input_schema": SCHEMA, **more}
    return replace(make_tool("add"), **fields)


def allowed(_tool: Tool, _call: ToolCall) -> Decision:
    return Allow(permit=Permit(), because="everything is allowed")


def an_engine(
    tool: Tool,
    runtime: ScriptedRuntime | Limited | Retrying | Once,
    audit: RecordingAudit | Audit,
    decide: Callable[[Tool, ToolCall], Decision] = allowed,
    level: Level = Level.SUPERVISED,
    spill: Spill | None = None,
    reserve: Callable[[Sequence[Charge]], Deny | None] = lambda _charges: None,
    approvals: Approvals | None = None,
    absence: Callable[[str, Catalog], ToolError | None] = lambda _name, _catalog: None,
) -> Engine:
    more: dict[str, Any] = {"spill": spill} if spill is not None else {}
    return Engine(
        snapshot=lambda: CatalogSnapshot(catalog_of(tool), "v1"),
        audit=audit,
        decide=lambda bound, call: decide(bound.tool, call),
        runtimes={RunProcess: runtime},
        level=lambda: level,
        contents=Contents(),
        reserve=reserve,
        approvals=None if approvals is None else lambda: approvals,
        absence=absence,
        **more,
    )


def a_call(arguments: object = None, **more: object) -> ToolCall:
    given = {"n": 1} if arguments is None else arguments
    return ToolCall(**{"id": "c1", "tool": "add", "arguments": given, **more})  # type: ignore[arg-type]


def refuse(_tool: Tool, _call: ToolCall) -> Decision:
    return Deny(message="not today", because="rule 1")


def ask(_tool: Tool, _call: ToolCall) -> Decision:
    return Ask(question="may it?", because="rule 2")


@pytest.mark.parametrize(
    ("name", "call", "endings", "decide", "kind"),
    [
        ("success", a_call(), [GOOD], allowed, None),
        ("unknown tool", replace(a_call(), tool="nope"), [], allowed, Kind.UNKNOWN_TOOL),
        ("wrong arguments", a_call({"n": "x"}), [], allowed, Kind.INVALID_ARGUMENTS),
        ("no object", replace(a_call(), arguments=None, raw="[1]", defect="x"), [], allowed,
         Kind.INVALID_ARGUMENTS),
        ("denied", a_call(), [], refuse, Kind.DENIED),
        ("asked", a_call(), [], ask, Kind.NEEDS_APPROVAL),
        ("timeout", a_call(), [Ending(end=End.TIMED_OUT)], allowed, Kind.TIMED_OUT),
        ("not started", a_call(), [Ending(end=End.NOT_STARTED, reason="x")], allowed, Kind.UNAVAILABLE),
        ("lost", a_call(), [Ending(end=End.LOST)], allowed, Kind.UNKNOWN_OUTCOME),
        ("too large", a_call(), [Ending(end=End.TOO_LARGE)], allowed, Kind.TOO_LARGE),
        ("cancelled", a_call(), [Ending(end=End.CANCELLED)], allowed, Kind.CANCELLED),
        ("failed", a_call(), [Ending(end=End.EXITED, exit_status=3)], allowed, Kind.FAILED),
        ("runtime breaks", a_call(), [RuntimeError("boom")], allowed, Kind.INTERNAL),
    ],
)  # fmt: skip
@pytest.mark.battery("J06")
def test_every_outcome_is_begun_and_ended_once(
    name: str,
    call: ToolCall,
    endings: list[Ending | Exception],
    decide: Callable[[Tool, ToolCall], Decision],
    kind: Kind | None,
) -> None:
    audit, runtime = RecordingAudit(), ScriptedRuntime(list(endings))
    result = an_engine(a_tool(), runtime, audit, decide).call(call, Cancel())
    assert (result.error.kind if result.error else None) == kind
    assert [begun.id for begun, _ in audit.begun] == ["c1"]
    assert [ended.call_id for ended in audit.ended] == ["c1"]
    assert audit.ended[0] == result
    assert len(runtime.calls) == len(endings), name


def test_a_runtime_that_ran_out_of_memory_says_so_with_the_fix() -> None:
    broken = ImportError("lib.so: failed to map segment from shared object")
    engine = an_engine(a_tool(), ScriptedRuntime([broken]), RecordingAudit(), allowed)
    error = engine.call(a_call(), Cancel()).error
    assert error is not None
    assert (error.kind, error.message) == (Kind.INTERNAL, "the runtime broke: no memory was left")
    assert error.hint is not None
    assert "ulimit -v" in error.hint


class Desk:
    """Approvals as the engine sees them: prepared answers, and what was asked for."""

    def __init__(
        self, *, asked: object = None, takes: tuple[object, ...] = (), answered: bool = False
    ) -> None:
        self.asked = asked or an_approval()
        self.takes = list(takes)
        self.answered = answered
        self.did: list[str] = []

    def ask(self, tool: Tool, call: ToolCall, question: Ask) -> Approval | ToolError:
        self.did.append("ask")
        return self._given(self.asked)  # type: ignore[return-value]

    def take(self, tool: Tool, call: ToolCall, approval_id: str) -> bool:
        self.did.append(f"take {approval_id}")
        return bool(self._given(self.takes.pop(0)))

    def wait(self, approval: Approval, stop: Cancel, timeout_s: float) -> bool:
        self.did.append("wait")
        return self.answered

    @staticmethod
    def _given(what: object) -> object:
        if isinstance(what, Exception):
            raise what
        return what


def an_approval(state: ApprovalState = ApprovalState.WAITING) -> Approval:
    return Approval(
        id="a1", key="k", caller="ann", arguments={}, question="may it?", because="rule 2", call_id="c1",
        asked_at=0.0, scope="s", arguments_digest="d", state=state,
    )  # fmt: skip


def in_turn(*decisions: Decision) -> Callable[[Tool, ToolCall], Decision]:
    left = list(decisions)
    return lambda _tool, _call: left.pop(0)


QUESTION = Ask(question="may it?", because="rule 2")
APPROVED = Allow(permit=Permit(), because="rule 2", approval="a1")
FULL = StoreError("state.sqlite: database or disk is full", "make room")


@pytest.mark.parametrize(
    ("desk", "decisions", "kind", "did"),
    [
        (Desk(), (QUESTION,), Kind.NEEDS_APPROVAL, ["ask"]),
        (Desk(asked=FULL), (QUESTION,), Kind.UNAVAILABLE, ["ask"]),
        (Desk(asked=ToolError(kind=Kind.TOO_LARGE, message="m")), (QUESTION,), Kind.TOO_LARGE, ["ask"]),
        (Desk(takes=(True,)), (APPROVED,), None, ["take a1"]),
        (Desk(takes=(False,)), (APPROVED, QUESTION), Kind.NEEDS_APPROVAL, ["take a1", "ask"]),
        (Desk(takes=(False, True)), (APPROVED, APPROVED), None, ["take a1", "take a1"]),
        (Desk(takes=(FULL,)), (APPROVED,), Kind.UNAVAILABLE, ["take a1"]),
        (Desk(takes=(Unrecorded("m"),)), (APPROVED,), Kind.NOT_AUDITED, ["take a1"]),
        (Desk(asked=an_approval(ApprovalState.APPROVED), takes=(True,)), (QUESTION, APPROVED), None,
         ["ask", "take a1"]),
        (Desk(asked=an_approval(ApprovalState.DENIED)), (QUESTION, Deny(message="no", because="b")),
         Kind.DENIED, ["ask"]),
    ],
)  # fmt: skip
def test_an_approval_is_used_before_anything_starts_and_nothing_starts_without(
    desk: Desk, decisions: tuple[Decision, ...], kind: Kind | None, did: list[str]
) -> None:
    """Attack: a store that is broken on purpose, so that nobody is asked."""
    audit, runtime = RecordingAudit(), ScriptedRuntime([GOOD])
    engine = an_engine(a_tool(), runtime, audit, in_turn(*decisions), approvals=desk)
    result = engine.call(a_call(), Cancel())
    assert (result.error.kind if result.error else None) == kind
    assert desk.did == did
    assert len(runtime.calls) == (kind is None)
    assert len(audit.begun) == len(audit.ended) == 1
    if kind is Kind.NEEDS_APPROVAL:
        assert result.error is not None
        assert result.error.details == {
            "because": "rule 2",
            "question": "may it?",
            "rule": "",
            "approval_id": "a1",
        }


def test_waiting_for_a_person_leaves_the_tool_its_whole_time() -> None:
    desk, runtime = Desk(answered=True, takes=(True,)), ScriptedRuntime([GOOD])
    allow = replace(APPROVED, permit=Permit(limits=Limits(timeout_s=7.0)))
    engine = an_engine(a_tool(), runtime, RecordingAudit(), in_turn(QUESTION, allow), approvals=desk)
    assert engine.call(a_call(approval_wait_s=60.0), Cancel()).ok
    assert desk.did == ["ask", "wait", "take a1"]
    assert runtime.calls[0][2].limits.timeout_s == 7.0


def test_edited_arguments_take_the_place_of_the_calls_and_are_checked_again() -> None:
    """Attack: edited arguments that do not fit, put into the store past whoever checked them."""
    edits = replace(APPROVED, arguments={"n": 5}, edited_by="bob")
    desk, runtime, audit = Desk(takes=(True,)), ScriptedRuntime([GOOD]), RecordingAudit()
    call = a_call(raw='{"n": 1}')
    result = an_engine(a_tool(), runtime, audit, in_turn(edits, APPROVED), approvals=desk).call(
        call, Cancel()
    )
    assert (runtime.calls[0][1].arguments, runtime.calls[0][1].raw) == ({"n": 5}, '{"n":5}')
    assert result.notes == ("the arguments were edited by bob, who approved the call",)
    wrong = replace(edits, arguments={"n": "five"})
    desk, runtime = Desk(), ScriptedRuntime([GOOD])
    result = an_engine(a_tool(), runtime, audit, in_turn(wrong), approvals=desk).call(call, Cancel())
    assert result.error is not None
    assert (result.error.kind, runtime.calls, desk.did) == (Kind.INVALID_ARGUMENTS, [], [])
    assert result.error.message.startswith("the edited arguments do not fit: n: ")


def test_edited_arguments_are_decided_about_like_any_others() -> None:
    """Attack: a person who may approve is talked into arguments that a rule refuses."""
    asked: list[ToolCall] = []

    def decide(_tool: Tool, call: ToolCall) -> Decision:
        asked.append(call)
        if call.arguments == {"n": 5}:
            return Deny(message="denied by policy: five is too much", because="five is too much")
        return replace(APPROVED, arguments={"n": 5}, edited_by="bob")

    desk, runtime = Desk(), ScriptedRuntime([GOOD])
    result = an_engine(a_tool(), runtime, RecordingAudit(), decide, approvals=desk).call(a_call(), Cancel())
    assert result.error is not None
    assert (result.error.kind, runtime.calls, desk.did) == (Kind.DENIED, [], [])
    assert "five is too much" in result.error.message
    assert [(call.arguments, call.approved_by) for call in asked] == [({"n": 1}, ""), ({"n": 5}, "bob")]


@pytest.mark.battery("J04")
@pytest.mark.parametrize(
    "call", [a_call(), a_call({"n": "x"}), a_call(dry_run=True), a_call(idempotency_key="k")]
)
@pytest.mark.parametrize("decide", [allowed, refuse, ask])
def test_nothing_runs_if_it_cannot_be_recorded(
    call: ToolCall, decide: Callable[[Tool, ToolCall], Decision]
) -> None:
    audit, runtime = RecordingAudit(refuses=True), ScriptedRuntime([GOOD])
    result = an_engine(a_tool(), runtime, audit, decide).call(call, Cancel())
    assert result.error is not None
    assert result.error.kind is Kind.NOT_AUDITED
    assert (runtime.calls, audit.ended) == ([], [])


def test_the_begin_record_is_on_the_disk_before_exec(tmp_path: Path) -> None:
    """A program that reads the journal's file finds its own begin, in the part that was synced before it."""
    journal = tmp_path / "journal"
    sizes: list[int] = []

    def sync(descriptor: int) -> None:
        os.fsync(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    def started(_call: ToolCall) -> Ending:
        (path,) = journal.glob("*.open")
        synced = sizes[-1]
        argv = ("head", "-c", str(synced), str(path))
        start = Start(program="/usr/bin/head", argv=argv, env={}, cwd="/", permit=Permit())
        return Portable().run(start, Cancel())

    audit = Audit(Segments(str(journal), seal=Seals(str(tmp_path)), disk=Disk(sync=sync)))
    result = an_engine(a_tool(), ScriptedRuntime([started]), audit).call(a_call(), Cancel())
    audit.close()
    found = [part for part in re.findall(r'"what":"(\w+)"', result.content) if part in ("begin", "end")]
    assert (result.ok, found) == (True, ["begin"])
    assert '"call":"c1"' in result.content


@pytest.mark.parametrize(("place", "recorded"), [("write", []), ("sync", ["begin"])])
def test_an_interrupt_while_a_begin_is_written_starts_nothing(
    tmp_path: Path, place: str, recorded: list[str]
) -> None:
    """What was written by then reads as interrupted."""
    interrupts = [place]

    def interrupt(now: str) -> None:
        if now in interrupts:
            interrupts.remove(now)
            raise KeyboardInterrupt

    def write(descriptor: int, data: bytes) -> int:
        interrupt("write")
        return os.write(descriptor, data)

    def sync(descriptor: int) -> None:
        interrupt("sync")
        os.fsync(descriptor)

    journal = str(tmp_path / "journal")
    runtime = ScriptedRuntime([])
    audit = Audit(Segments(journal, seal=Seals(str(tmp_path)), disk=Disk(write=write, sync=sync)))
    with pytest.raises(KeyboardInterrupt):
        an_engine(a_tool(), runtime, audit).call(a_call(), Cancel())
    assert audit.settle(0.0)
    audit.close()
    found = [entry.what for entry in entries(journal) if entry.what not in OWN]
    assert (found, runtime.calls) == (recorded, [])


def test_a_call_that_waits_for_its_place_is_on_record() -> None:
    entered, free, freed = threading.Event(), threading.Event(), list[bool]()

    def first(_call: ToolCall) -> Ending:
        entered.set()
        freed.append(free.wait(10))
        return GOOD

    class Begun(RecordingAudit):
        def begin_all(self, calls: Sequence[tuple[ToolCall, CallFacts]]) -> bool:
            if entered.is_set():
                free.set()
            return super().begin_all(calls)

    limited = Limited(ScriptedRuntime([first, GOOD]), per_tool=1)
    engine = an_engine(a_tool(), limited, Begun())
    before = threading.Thread(target=engine.call, args=(a_call(), Cancel()), daemon=True)
    before.start()
    assert entered.wait(10)
    assert engine.call(a_call(timeout_s=5), Cancel()).ok
    before.join(10)
    assert freed == [True]


def test_calls_that_begin_together_are_recorded_at_once() -> None:
    audit = RecordingAudit()
    engine = an_engine(a_tool(), ScriptedRuntime([GOOD, GOOD]), audit)
    calls = [(a_call(), Cancel()), (replace(a_call(), id="c2"), Cancel())]
    begun = engine.begin(calls)
    assert ([one.call.id for one in begun], len(audit.begun)) == (["c1", "c2"], 2)
    assert all(engine.go_on(one).ok for one in begun)


@pytest.mark.parametrize("what", ["ask", "take", "reserve"])
def test_attack_what_a_call_leaves_elsewhere_comes_after_its_begin(what: str) -> None:
    audit = RecordingAudit()
    seen: list[int] = []

    class Counting(Desk):
        def ask(self, tool: Tool, call: ToolCall, question: Ask) -> Approval | ToolError:
            seen.append(len(audit.begun))
            return super().ask(tool, call, question)

        def take(self, tool: Tool, call: ToolCall, approval_id: str) -> bool:
            seen.append(len(audit.begun))
            return True

    def reserve(_charges: Sequence[Charge]) -> Deny | None:
        seen.append(len(audit.begun))
        return None

    charge = Charge(counter="c", cost=0, calls_max=1, cost_max=None, within_s=1.0, because="b", place="p")
    decisions: dict[str, Decision] = {
        "ask": Ask(question="may it?", because="rule 2"),
        "take": Allow(permit=Permit(), because="yes", approval="a1"),
        "reserve": Allow(permit=Permit(), because="yes", charges=(charge,)),
    }
    engine = an_engine(
        a_tool(),
        ScriptedRuntime([GOOD]),
        audit,
        in_turn(decisions[what]),
        reserve=reserve,
        approvals=Counting(),
    )
    engine.call(a_call(), Cancel())
    assert seen == [1]
    assert (len(audit.begun), len(audit.ended)) == (1, 1)


def test_a_broken_runtime_tells_the_model_no_internals() -> None:
    result = an_engine(a_tool(), ScriptedRuntime([RuntimeError("/secret/path")]), RecordingAudit()).call(
        a_call(), Cancel()
    )
    assert "secret" not in result.content
    assert result.error is not None
    assert "secret" not in result.error.message


def test_an_interrupt_is_recorded_as_cancelled_and_goes_on() -> None:
    def interrupted(_call: ToolCall) -> Ending:
        raise KeyboardInterrupt

    audit = RecordingAudit()
    with pytest.raises(KeyboardInterrupt):
        an_engine(a_tool(), ScriptedRuntime([interrupted]), audit).call(a_call(), Cancel())
    assert [result.error.kind for result in audit.ended if result.error] == [Kind.CANCELLED]


def test_a_call_uses_one_catalog_to_its_end_and_its_record_names_it() -> None:
    audit = RecordingAudit()
    an_engine(a_tool(), ScriptedRuntime([GOOD]), audit).call(a_call(), Cancel())
    facts = audit.begun[0][1]
    assert (facts.catalog, facts.key) == ("v1", a_tool().key)
    assert facts.seen_digest
    assert facts.runs_digest


def test_every_call_is_recorded_with_its_own_door_and_with_what_would_run_now(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"one")
    tool = replace(a_tool(), invocation=RunProcess(program=str(program), encoding=JsonOnStdin(verbatim=True)))
    audit = RecordingAudit()
    engine = an_engine(tool, ScriptedRuntime([GOOD] * 4), audit)
    for door in ("http", "mcp", "http"):
        engine.call(a_call(), Cancel(), door=door)
    program.write_bytes(b"another")
    engine.call(a_call(), Cancel(), door="http")
    facts = [facts for _, facts in audit.begun]
    assert [each.door for each in facts] == ["http", "mcp", "http", "http"]
    assert len({each.seen_digest for each in facts}) == 1
    first, second, third, changed = (each.runs_digest for each in facts)
    assert first == second == third != changed


def test_a_dry_run_finds_checks_and_decides_and_starts_nothing() -> None:
    audit, runtime = RecordingAudit(), ScriptedRuntime([GOOD])
    engine = an_engine(a_tool(), runtime, audit)
    assert engine.call(a_call(dry_run=True), Cancel()).ok
    assert engine.call(a_call({"n": "x"}, dry_run=True), Cancel()).error is not None
    assert (runtime.calls, len(audit.begun), len(audit.ended)) == ([], 2, 2)


def test_a_missing_level_refuses_the_call_and_names_both() -> None:
    def needs_supervision(_tool: Tool, _call: ToolCall) -> Decision:
        return Allow(permit=Permit(level=Level.SUPERVISED), because="")

    runtime = ScriptedRuntime([GOOD])
    engine = an_engine(a_tool(), runtime, RecordingAudit(), needs_supervision, Level.PORTABLE)
    result = engine.call(a_call(), Cancel())
    assert result.error is not None
    assert result.error.kind is Kind.UNAVAILABLE
    assert "supervised" in result.error.message
    assert "portable" in result.error.message
    assert runtime.calls == []


@pytest.mark.requirement("rye.type.not-callable")
def test_what_cannot_be_called_says_why() -> None:
    for invocation, says in (
        (NotCallable(reason="not executable"), "not executable"),
        (RunContainer(image="busybox"), "container tools cannot be run by this version"),
    ):
        engine = an_engine(a_tool(invocation=invocation), ScriptedRuntime(), RecordingAudit())
        result = engine.call(a_call(), Cancel())
        assert result.error is not None
        assert (result.error.kind, result.error.message) == (Kind.UNAVAILABLE, says)


# -- wrappers -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.yaml.retry")
@pytest.mark.parametrize(
    ("effect", "ending", "runs", "waits"),
    [
        (Effect.READ, Ending(end=End.TIMED_OUT), 3, [1.0, 2.0]),
        (Effect.READ, Ending(end=End.LOST), 3, [1.0, 2.0]),
        (Effect.CHANGE, Ending(end=End.NOT_STARTED), 3, [1.0, 2.0]),
        (Effect.CHANGE, Ending(end=End.TIMED_OUT), 1, []),
        (Effect.CHANGE, Ending(end=End.LOST), 1, []),
        (Effect.READ, Ending(end=End.EXITED, exit_status=1), 1, []),
        (Effect.READ, Ending(end=End.DENIED), 1, []),
        (Effect.READ, Ending(end=End.REFUSED), 1, []),
    ],
)
def test_only_safe_transient_failures_are_repeated(
    effect: Effect, ending: Ending, runs: int, waits: list[float]
) -> None:
    """3 attempts, exponential, first 1 s, at most 60 s, factor 2: waits 1 s and 2 s, then the error."""
    waited: list[float] = []

    def pause(_cancel: Cancel, seconds: float) -> bool:
        waited.append(seconds)
        return False

    inner = ScriptedRuntime([ending] * 5)
    retry = Retry(max_attempts=3, backoff="exponential", initial_delay_s=1, max_delay_s=60, multiplier=2)
    retrying = Retrying(inner, pause)
    retrying.run(BoundTool(a_tool(effect=effect, retry=retry)), a_call(), Permit(), Cancel())
    assert (len(inner.calls), waited) == (runs, waits)


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ("exponential", [2.0, 6.0, 18.0, 20.0]),
        ("linear", [2.0, 4.0, 6.0, 8.0]),
        ("fixed", [2.0, 2.0, 2.0, 2.0]),
    ],
)
def test_pauses_grow_as_the_author_says(backoff: str, waits: list[float]) -> None:
    waited: list[float] = []

    def pause(_cancel: Cancel, seconds: float) -> bool:
        waited.append(seconds)
        return False

    retry = Retry(max_attempts=5, backoff=backoff, initial_delay_s=2, max_delay_s=20, multiplier=3)
    retrying = Retrying(ScriptedRuntime([Ending(end=End.NOT_STARTED)] * 5), pause)
    retrying.run(BoundTool(a_tool(retry=retry)), a_call(), Permit(), Cancel())
    assert waited == waits


@pytest.mark.parametrize(("first_s", "longest_s"), [(0.0, 0.0), (2.0, 20.0)])
def test_pauses_that_no_number_can_hold_are_the_longest_of_the_policy(
    first_s: float, longest_s: float
) -> None:
    waited: list[float] = []

    def pause(_cancel: Cancel, seconds: float) -> bool:
        waited.append(seconds)
        return False

    retry = Retry(max_attempts=60, initial_delay_s=first_s, max_delay_s=20, multiplier=1e9)
    retrying = Retrying(ScriptedRuntime([Ending(end=End.NOT_STARTED)] * 60), pause)
    ending = retrying.run(BoundTool(a_tool(retry=retry)), a_call(), Permit(), Cancel())
    assert (ending.end, waited) == (End.NOT_STARTED, [first_s, *[longest_s] * 58])


def test_a_cancelled_call_is_not_repeated() -> None:
    cancel = Cancel()
    inner = ScriptedRuntime([Ending(end=End.NOT_STARTED)] * 5)
    retrying = Retrying(inner, lambda _stop, _seconds: True)
    ending = retrying.run(BoundTool(a_tool(retry=Retry(max_attempts=5))), a_call(), Permit(), cancel)
    assert (ending.end, len(inner.calls)) == (End.CANCELLED, 1)


def test_no_more_calls_of_a_tool_run_at_once_than_allowed() -> None:
    running, most = 0, 0
    lock, gate = threading.Lock(), threading.Barrier(2, timeout=10)

    class Counting:
        def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            gate.wait()  # two at a time, or the barrier breaks
            with lock:
                running -= 1
            return GOOD

    limited = Limited(Counting(), per_tool=2)
    ends: list[End] = []
    threads = [
        threading.Thread(
            target=lambda: ends.append(limited.run(BoundTool(a_tool()), a_call(), Permit(), Cancel()).end),
            daemon=True,
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (most, ends) == (2, [End.EXITED] * 8)


def test_places_are_made_for_as_many_calls_as_are_allowed_however_they_come_and_go() -> None:
    """Whoever comes as another one leaves does not wait while there are fewer than allowed."""
    here, all_here = threading.Semaphore(0), threading.Barrier(4, timeout=20)
    quick = threading.Event()

    class Coming:
        def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
            if not quick.is_set():
                all_here.wait()  # four at once, or the barrier breaks
                here.release()
            return GOOD

    limited = Limited(Coming(), per_tool=4)

    def many(times: int) -> None:
        for _ in range(times):
            assert limited.run(BoundTool(a_tool()), a_call(), Permit(), Cancel()).end is End.EXITED

    quick.set()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, [300] * 8))
    quick.clear()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, [1] * 4))
    assert all(here.acquire(timeout=10) for _ in range(4))


def test_a_call_that_waits_too_long_for_its_turn_is_told_so() -> None:
    held = threading.Event()
    entered = threading.Event()

    class Holding:
        def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
            entered.set()
            held.wait(10)
            return GOOD

    limited = Limited(Holding(), per_tool=1)
    first = threading.Thread(
        target=lambda: limited.run(BoundTool(a_tool()), a_call(), Permit(), Cancel()), daemon=True
    )
    first.start()
    assert entered.wait(10)
    late = limited.run(BoundTool(a_tool()), a_call(), Permit(limits=Limits(timeout_s=0.05)), Cancel())
    stopped = Cancel()
    stopped.set()
    gone = limited.run(BoundTool(a_tool()), a_call(), Permit(), stopped)
    held.set()
    first.join(10)
    assert (late.end, gone.end) == (End.UNAVAILABLE, End.CANCELLED)


def test_a_place_that_is_free_goes_to_the_call_that_waits_and_not_to_one_that_gave_up() -> None:
    class Handing:
        """Each call runs until it is told to end."""

        def __init__(self) -> None:
            self.entered: queue.Queue[str] = queue.Queue()
            self.ends = {name: threading.Event() for name in ("first", "second", "other")}

        def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
            self.entered.put(call.id)
            assert self.ends[call.id].wait(10)
            return GOOD

    inner = Handing()
    limited = Limited(inner, per_tool=1)
    brief = Permit(limits=Limits(timeout_s=0.05))

    def called(name: str, tool: Tool) -> threading.Thread:
        call = replace(a_call(), id=name)
        thread = threading.Thread(
            target=lambda: limited.run(BoundTool(tool), call, Permit(), Cancel()), daemon=True
        )
        thread.start()
        return thread

    threads = [called("first", a_tool())]
    assert inner.entered.get(timeout=10) == "first"
    gave_up = limited.run(BoundTool(a_tool()), a_call(), brief, Cancel())
    threads.append(called("second", a_tool()))
    # Another tool has places of its own.
    threads.append(called("other", a_tool(key="manifest:other/add")))
    assert inner.entered.get(timeout=10) == "other"
    inner.ends["first"].set()
    assert inner.entered.get(timeout=10) == "second"
    still_full = limited.run(BoundTool(a_tool()), a_call(), brief, Cancel())
    for end in inner.ends.values():
        end.set()
    for thread in threads:
        thread.join(10)
    assert (gave_up.end, still_full.end) == (End.UNAVAILABLE, End.UNAVAILABLE)
    inner.ends["c1"] = inner.ends["first"]
    assert limited.run(BoundTool(a_tool()), a_call(), brief, Cancel()).end is End.EXITED


def test_an_interrupt_while_waiting_keeps_no_place() -> None:
    held, entered = threading.Event(), threading.Event()

    class Holding:
        def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
            entered.set()
            held.wait(10)
            return GOOD

    class Interrupted(Cancel):
        @property
        def is_set(self) -> bool:
            raise KeyboardInterrupt

    limited = Limited(Holding(), per_tool=1)
    first = threading.Thread(
        target=lambda: limited.run(BoundTool(a_tool()), a_call(), Permit(), Cancel()), daemon=True
    )
    first.start()
    assert entered.wait(10)
    with pytest.raises(KeyboardInterrupt):
        limited.run(BoundTool(a_tool()), a_call(), Permit(), Interrupted())
    held.set()
    first.join(10)
    assert limited.run(BoundTool(a_tool()), a_call(), Permit(), Cancel()).end is End.EXITED


@pytest.mark.battery("K06")
def test_an_idempotency_key_runs_once_and_a_lost_outcome_stays_unknown(tmp_path: object) -> None:
    store = SqliteStore(f"{tmp_path}/state.sqlite")
    inner = ScriptedRuntime([GOOD, RuntimeError("host died"), GOOD])
    once = Once(inner, lambda: store, Leases(f"{tmp_path}/running"))
    tool = a_tool()
    first = once.run(BoundTool(tool), a_call(idempotency_key="k1"), Permit(), Cancel())
    again = once.run(BoundTool(tool), a_call(idempotency_key="k1"), Permit(), Cancel())
    assert (first.stdout, again.stdout, len(inner.calls)) == (b"fine", b"fine", 1)
    assert "same idempotency key" in again.notes[0]
    other = once.run(BoundTool(tool), a_call({"n": 2}, idempotency_key="k1"), Permit(), Cancel())
    assert other.end is End.REFUSED
    with pytest.raises(RuntimeError):
        once.run(BoundTool(tool), a_call(idempotency_key="k2"), Permit(), Cancel())
    assert once.run(BoundTool(tool), a_call(idempotency_key="k2"), Permit(), Cancel()).end is End.LOST
    reading = replace(tool, effect=Effect.READ)
    assert once.run(BoundTool(reading), a_call(idempotency_key="k2"), Permit(), Cancel()).stdout == b"fine"
    store.close()


def test_an_idempotency_key_whose_call_started_nothing_may_be_used_again(tmp_path: object) -> None:
    store = SqliteStore(f"{tmp_path}/state.sqlite")
    inner = ScriptedRuntime([Ending(end=End.NOT_STARTED, reason="not installed"), GOOD])
    once = Once(inner, lambda: store, Leases(f"{tmp_path}/running"))
    first = once.run(BoundTool(a_tool()), a_call(idempotency_key="k"), Permit(), Cancel())
    again = once.run(BoundTool(a_tool()), a_call(idempotency_key="k"), Permit(), Cancel())
    assert (first.end, again.stdout) == (End.NOT_STARTED, b"fine")
    store.close()


def test_nothing_runs_under_an_idempotency_key_that_cannot_be_kept(tmp_path: object) -> None:
    inner = ScriptedRuntime([GOOD])
    (tmp_path / "file").write_text("", encoding="utf-8")  # type: ignore[operator]
    once = Once(inner, lambda: SqliteStore(f"{tmp_path}/file/state.sqlite"), Leases(f"{tmp_path}/running"))
    ending = once.run(BoundTool(a_tool()), a_call(idempotency_key="k"), Permit(), Cancel())
    assert (ending.end, inner.calls) == (End.UNAVAILABLE, [])
    assert "the idempotency key cannot be kept" in ending.reason
    assert ending.hint


def test_a_record_names_the_catalog_that_its_call_used(tmp_path: object) -> None:
    versions = iter(["v1", "v2", "v3"])
    audit = RecordingAudit()
    engine = Engine(
        snapshot=lambda: CatalogSnapshot(catalog_of(a_tool()), next(versions)),
        audit=audit,
        decide=lambda bound, call: allowed(bound.tool, call),
        runtimes={RunProcess: ScriptedRuntime([GOOD])},
        level=lambda: Level.SUPERVISED,
        contents=Contents(),
    )
    engine.call(a_call(), Cancel())
    assert [facts.catalog for _, facts in audit.begun] == ["v1"]
    assert next(versions) == "v2"  # asked for once: what is loaded meanwhile does not matter


def test_a_button_can_be_pressed_by_a_signal_while_its_own_thread_is_in_it() -> None:
    cancel = Cancel()
    over = threading.Event()

    def work() -> None:
        with cancel._lock:  # as a handler that runs between two steps of ``fileno``
            cancel.set()
        over.set()

    threading.Thread(target=work, daemon=True).start()
    assert over.wait(30)
    assert cancel.wait(0)


def test_why_a_tool_is_absent_is_told_only_within_the_callers_reach() -> None:
    """Attack: a key that was guessed, to hear of a server beyond a caller's reach, and its last words."""
    told = ToolError(kind=Kind.UNAVAILABLE, message="the MCP server 'pay' has not listed its tools")
    engine = an_engine(a_tool(), ScriptedRuntime([]), RecordingAudit(), absence=lambda _name, _catalog: told)

    def kind(reach: Reach | None) -> Kind:
        error = engine.call(a_call(tool="mcp:pay/send", reach=reach), Cancel()).error
        assert error is not None
        assert (error.kind is Kind.UNKNOWN_TOOL) != ("pay' has" in error.message)
        return error.kind

    assert kind(None) is Kind.UNAVAILABLE
    assert kind(Reach(tools=("mcp:pay/*",))) is Kind.UNAVAILABLE
    assert kind(Reach(tools=("mcp:mail/*", "python:*"))) is Kind.UNKNOWN_TOOL


def test_a_long_result_is_kept_aside_and_can_be_paged(tmp_path: object) -> None:
    spill = Spill(f"{tmp_path}/spill", 10_000)
    long = Ending(end=End.EXITED, exit_status=0, stdout=b"x" * 20_000, stdout_bytes=20_000)
    engine = an_engine(a_tool(), ScriptedRuntime([long]), RecordingAudit(), spill=spill)
    result = engine.call(a_call(), Cancel())
    assert result.ok
    assert result.spent.truncated
    assert len(result.content) < 10_000
    page, whole = spill.page("c1", 19_990, 100)
    assert (page, whole) == (b"x" * 10, 20_000)
    with pytest.raises(OSError, match="etc"):
        spill.page("../../etc/passwd", 0, 10)
