"""Questions that wait for a person: kept, answered and used up once, whatever races or breaks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from tests.program import bounded
from tests.strategies import make_tool
from toolcrib import jsontext
from toolcrib.errors import ApprovalError, Kind, StoreError, Unrecorded, UsageError
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    Allow,
    Approval,
    ApprovalState,
    Ask,
    Decision,
    Deny,
    JsonOnStdin,
    RunProcess,
    Tool,
    ToolCall,
    ToolError,
    Vetted,
)
from toolcrib.sandbox import NEVER, Cancel
from toolcrib.store import Conflict, Store, Versioned
from toolcrib.store.sqlite import SqliteStore
from toolcrib.testing import FixedClock
from toolcrib.trust import approvals as kept
from toolcrib.trust import policy
from toolcrib.trust.approvals import SHELF, Answer, Approvals
from toolcrib.trust.rules import rules_of

WAIT_S = 60
NOW = 1_700_000_000.0
ASKS = policy.HouseRules(policy=rules_of([{"decision": "ask", "because": "costs money"}]))
GROUND = policy.Ground(project="/p", cwd="/p")
QUESTION = Ask(question="May pay run? (costs money)", because="costs money")
TOOL = replace(make_tool("pay"), invocation=RunProcess(program="pay", encoding=JsonOnStdin(verbatim=True)))


def a_call(arguments: JsonObject | None = None, **more: Any) -> ToolCall:
    given: dict[str, Any] = {
        "id": "c1", "tool": "pay", "arguments": {"n": 1} if arguments is None else arguments,
        "caller": "ann", "seen_digest": "seen", "runs_digest": "runs", **more,
    }  # fmt: skip
    return ToolCall(**given)


def decided(tool: Tool, call: ToolCall, state: policy.HostState) -> Decision:
    house = policy.Policy(ASKS)
    terms = house.terms(tool, vetted=Vetted(), ground=GROUND, caller=call.caller)
    return house.decide(terms, call, state)


class Desk:
    """Approvals on a real store, with a clock that is moved and a journal that can be looked at."""

    def __init__(self, store: Path | Store, **more: Any) -> None:
        self.clock = FixedClock(NOW)
        self.notes: list[tuple[str, str, JsonObject]] = []
        self.refuses = False
        self.store: Store = SqliteStore(str(store)) if isinstance(store, Path) else store
        self.approvals = Approvals(lambda: self.store, note=self._note, clock=self.clock, **more)

    def _note(self, call_id: str, what: str, body: JsonObject) -> str | None:
        if self.refuses:
            return "the disk is full"
        self.notes.append((call_id, what, body))
        return None

    def asked(self, call: ToolCall | None = None, tool: Tool = TOOL) -> Approval:
        found = self.approvals.ask(tool, call or a_call(), QUESTION)
        assert isinstance(found, Approval), found
        return found

    def refused(self, call: ToolCall) -> ToolError:
        found = self.approvals.ask(TOOL, call, QUESTION)
        assert isinstance(found, ToolError), found
        return found

    def decide(self, call: ToolCall | None = None, tool: Tool = TOOL) -> Decision:
        call = call or a_call()
        state = policy.HostState(approvals=self.approvals.of(tool, call), now=self.clock())
        return decided(tool, call, state)

    def approve(self, name: str, **more: Any) -> Approval:
        return self.approvals.answer(name, Answer.APPROVE, by="bob", **more)

    def deny(self, name: str, **more: Any) -> Approval:
        return self.approvals.answer(name, Answer.DENY, by="bob", **more)

    def take(self, call: ToolCall | None = None) -> bool:
        """As the engine does it: only what was decided to count is used."""
        call = call or a_call()
        decision = self.decide(call)
        return (
            isinstance(decision, Allow)
            and bool(decision.approval)
            and self.approvals.take(TOOL, call, decision.approval)
        )

    def states(self) -> list[str]:
        return [one.state.value for one in self.approvals.all()]


OpenDesk = Callable[..., Desk]


@pytest.fixture
def open_desk(tmp_path: Path) -> Iterator[OpenDesk]:
    """Desks on one store, each with a connection of its own."""
    with ExitStack() as opened:

        def made(**more: Any) -> Desk:
            desk = Desk(tmp_path / "s.sqlite", **more)
            opened.callback(desk.store.close)
            return desk

        yield made


@pytest.fixture
def desk(open_desk: OpenDesk) -> Desk:
    return open_desk()


# -- asking -------------------------------------------------------------------------------------------------


def test_identical_calls_share_one_question(desk: Desk) -> None:
    first = desk.asked()
    assert desk.asked(a_call({"n": 1}, id="c2")) == first
    assert desk.asked(a_call({"n": 2})).id != first.id
    assert desk.asked(a_call(caller="eve")).id != first.id
    assert (first.state, first.until) == (ApprovalState.WAITING, NOW + kept.WAITING_S)
    assert (first.question, first.because) == ("May pay run? (costs money)", "costs money")
    assert first.call_id == "c1"
    assert len(desk.states()) == 3


def test_arguments_are_the_same_whatever_their_order(desk: Desk) -> None:
    assert desk.asked(a_call({"a": 1, "b": [1.0]})).id == desk.asked(a_call({"b": [1], "a": 1})).id
    assert desk.asked(a_call({"n": 9007199254740993})).id != desk.asked(a_call({"n": 9007199254740992})).id
    assert desk.asked(a_call({"n": True})).id != desk.asked(a_call({"n": 1})).id


def test_a_question_that_nobody_answers_expires_and_is_asked_anew(desk: Desk) -> None:
    first = desk.asked()
    desk.clock.move(kept.WAITING_S)
    assert desk.states() == ["expired"]
    with pytest.raises(ApprovalError, match="expired"):
        desk.approve(first.id)
    second = desk.asked()
    assert second.id != first.id
    assert desk.states() == ["expired", "waiting"]


def test_a_model_cannot_flood_the_person_who_answers(desk: Desk) -> None:
    """Attack: a model that asks until somebody approves everything unread."""
    made = [desk.asked(a_call({"n": number})) for number in range(kept.WAITING_PER_CALLER_MAX)]
    refused = desk.refused(a_call({"n": "one more"}))
    assert refused.kind is Kind.UNAVAILABLE
    assert "32 calls of this caller wait" in refused.message
    assert desk.asked(a_call({"n": 0})).id == made[0].id  # the same question is none more
    desk.asked(a_call(caller="eve"))
    desk.deny(made[0].id)
    desk.asked(a_call({"n": "one more"}))
    callers = kept.WAITING_MAX // kept.WAITING_PER_CALLER_MAX
    for number in range(kept.WAITING_MAX - len([s for s in desk.states() if s == "waiting"])):
        desk.asked(a_call({"n": number}, caller=f"c{number % callers}"))
    assert "256 calls wait" in desk.refused(a_call(caller="new")).message


def test_what_is_over_is_kept_for_a_week_and_then_forgotten(desk: Desk) -> None:
    desk.approve(desk.asked().id)
    assert desk.take()
    assert desk.states() == ["used"]
    desk.clock.move(kept.KEPT_S + kept.APPROVED_S + 1)
    desk.asked(a_call({"n": 2}))
    assert desk.states() == ["waiting"]


def test_nothing_is_asked_that_a_person_could_not_read_whole(desk: Desk) -> None:
    """Attack: arguments so long that the harmful part lies behind what a person reads."""
    refused = desk.refused(a_call({"text": "x" * kept.ARGUMENTS_BYTES_MAX}))
    assert (refused.kind, desk.states()) == (Kind.TOO_LARGE, [])


def test_nothing_is_asked_where_nobody_knows_what_would_run(desk: Desk) -> None:
    assert desk.refused(a_call(runs_digest=None)).kind is Kind.UNAVAILABLE
    assert desk.approvals.of(TOOL, a_call(runs_digest=None)) == ()


def test_secrets_are_neither_kept_nor_shown(open_desk: OpenDesk) -> None:
    desk = open_desk(redact=lambda text: text.replace("hunter2", "***REDACTED***"))
    one = desk.asked(a_call({"deep": [{"hunter2": "my hunter2"}], "n": 1}))
    shown = {"deep": [{"***REDACTED***": "my ***REDACTED***"}], "n": 1}
    assert (one.arguments, desk.approvals.all()[0].arguments) == (shown, shown)
    told = desk.approve(one.id, arguments={"n": "hunter2"})
    assert told.edited == {"n": "***REDACTED***"}
    decision = desk.decide(a_call({"deep": [{"hunter2": "my hunter2"}], "n": 1}))
    assert isinstance(decision, Allow)
    assert decision.arguments == {"n": "hunter2"}
    assert "hunter2" not in jsontext.compact([*desk.notes]).decode()


def test_texts_are_bounded(desk: Desk) -> None:
    question = Ask(question="q" * 10_000, because="b" * 10_000)
    one = desk.approvals.ask(TOOL, a_call(caller="c" * 10_000), question)
    assert isinstance(one, Approval)
    assert max(map(len, (one.question, one.because, one.caller))) == kept.TEXT_CHARS_MAX
    with pytest.raises(UsageError, match="500 characters"):
        desk.approve(one.id, because="x" * 501)


# -- answering ----------------------------------------------------------------------------------------------


def test_an_approval_lets_one_call_run(desk: Desk) -> None:
    one = desk.asked()
    assert isinstance(desk.decide(), Ask)
    told = desk.approve(one.id, because="reviewed")
    assert (told.state, told.answered_by, told.answer_because) == (ApprovalState.APPROVED, "bob", "reviewed")
    decision = desk.decide()
    assert isinstance(decision, Allow)
    assert (decision.approval, decision.arguments) == (one.id, None)
    assert desk.approvals.take(TOOL, a_call(), one.id)
    assert not desk.approvals.take(TOOL, a_call(), one.id)
    assert isinstance(desk.decide(), Ask)
    assert desk.asked().id != one.id
    assert sorted(desk.states()) == ["used", "waiting"]
    assert [(call, what) for call, what, _ in desk.notes] == [("c1", "answer"), ("c1", "approved")]
    assert desk.notes[0][2]["by"] == "bob"
    assert desk.notes[0][2]["because"] == "reviewed"
    assert desk.notes[0][2]["decision"] == "approve"


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": {"n": 2}},
        {"caller": "eve"},
        {"seen_digest": "another description"},
        {"runs_digest": "another program"},
        {"runs_digest": None},
    ],
)
def test_an_approval_is_for_that_call_alone(desk: Desk, other: JsonObject) -> None:
    """Attack: approve, then swap the tool, the arguments or the caller."""
    one = desk.approve(desk.asked().id)
    call = a_call(**other)
    assert isinstance(desk.decide(call), Ask)
    assert not desk.approvals.take(TOOL, call, one.id)
    assert not desk.approvals.take(replace(TOOL, key="manifest:s/other"), a_call(), one.id)
    # Not even where it is handed over by mistake: policy compares for itself.
    for tool, asked in ((TOOL, call), (replace(TOOL, key="manifest:s/other"), a_call())):
        state = policy.HostState(approvals=desk.approvals.of(TOOL, a_call()), now=NOW)
        assert isinstance(decided(tool, asked, state), Ask)


def test_a_denial_refuses_identical_calls_for_an_hour_with_the_reason(desk: Desk) -> None:
    one = desk.asked()
    desk.deny(one.id, because="too much")
    decision = desk.decide()
    assert isinstance(decision, Deny)
    assert decision.message == "a person denied this call: too much"
    assert decision.because == f"approval {one.id} was denied by bob"
    assert decision.hint == "it may be asked for again in 1 h"
    assert isinstance(desk.decide(a_call({"n": 2})), Ask)
    assert isinstance(desk.decide(a_call(approved_by="ann")), Deny)  # a yes in advance does not undo it
    desk.clock.move(kept.DENIED_S)
    assert isinstance(desk.decide(), Ask)
    assert desk.asked().id != one.id
    assert desk.states() == ["denied", "waiting"]


def test_an_answer_may_be_changed_until_a_call_has_used_it(desk: Desk) -> None:
    one = desk.asked()
    desk.approve(one.id)
    desk.deny(one.id)
    assert isinstance(desk.decide(), Deny)
    desk.approve(one.id)
    assert desk.take()
    for answer in (desk.approve, desk.deny):
        with pytest.raises(ApprovalError, match="used"):
            answer(one.id)


def test_a_denial_that_is_over_cannot_be_turned_into_an_approval_that_nobody_finds(desk: Desk) -> None:
    one = desk.asked()
    desk.deny(one.id)
    desk.clock.move(kept.DENIED_S)
    for _ in range(2):
        with pytest.raises(ApprovalError, match="denied, and over"):
            desk.approve(one.id)
        desk.asked()


def test_a_lasting_approval_that_another_one_replaces_is_over(desk: Desk) -> None:
    """Two of them at once come of calls that asked before the first answer."""
    first, second = desk.asked(), desk.asked(a_call({"n": 2}))
    desk.approve(first.id, for_s=60)
    desk.approve(second.id, for_s=3600)
    states = {one.id: one.state for one in desk.approvals.all()}
    assert states == {first.id: ApprovalState.EXPIRED, second.id: ApprovalState.APPROVED}
    desk.deny(second.id)
    assert not isinstance(desk.decide(), Allow)
    assert not isinstance(desk.decide(a_call({"n": 3})), Allow)


def test_an_approval_that_nobody_uses_expires(desk: Desk) -> None:
    desk.approve(desk.asked().id)
    desk.clock.move(kept.APPROVED_S)
    assert desk.states() == ["expired"]
    assert isinstance(desk.decide(), Ask)
    assert not desk.take()


def test_an_approval_may_last_for_the_tool_whatever_the_arguments(desk: Desk) -> None:
    one = desk.asked()
    told = desk.approve(one.id, for_s=3600)
    assert (told.standing, told.until) == (True, NOW + 3600)
    for number in range(3):
        assert desk.take(a_call({"n": number}, id=f"c{number}"))
    assert isinstance(desk.decide(a_call(caller="eve")), Ask)
    assert isinstance(desk.decide(a_call(runs_digest="another program")), Ask)
    assert desk.states() == ["approved"]
    assert [what for _, what, _ in desk.notes] == ["answer", *["approved"] * 3]
    desk.clock.move(3600)
    assert isinstance(desk.decide(), Ask)
    assert desk.states() == ["expired"]
    desk.approve(desk.asked().id, for_s=60)
    assert desk.states() == ["expired", "approved"]


def test_an_approval_that_lasts_can_be_taken_back(desk: Desk) -> None:
    one = desk.approve(desk.asked().id, for_s=3600)
    assert desk.take(a_call({"n": 7}))
    decision = desk.decide(a_call({"n": 8}))
    desk.deny(one.id, because="enough")
    assert isinstance(desk.decide(), Deny)
    assert isinstance(desk.decide(a_call({"n": 8})), Ask)
    assert isinstance(decision, Allow)  # decided a moment before: what counts is what holds when it is used
    assert not desk.approvals.take(TOOL, a_call({"n": 8}), decision.approval)


def test_edited_arguments_come_with_who_edited_them(desk: Desk) -> None:
    one = desk.asked()
    desk.approve(one.id, arguments={"n": 5}, because="less")
    decision = desk.decide()
    assert isinstance(decision, Allow)
    assert (decision.arguments, decision.edited_by, decision.approval) == ({"n": 5}, "bob", one.id)
    assert isinstance(desk.decide(a_call({"n": 5})), Ask)  # what was asked is what is approved
    assert desk.take()
    assert desk.notes[0][2]["edited"] == desk.notes[1][2]["edited"] == ["n"]
    assert desk.notes[1][2]["edited_digest"] == jsontext.digest({"n": 5})


def test_ids_may_be_shortened_and_wrong_ones_are_told(desk: Desk) -> None:
    one = desk.asked()
    assert desk.approvals.find(one.id[:4]).id == one.id
    for name in ("", one.id[:3], f"{one.id}0", "nosuch"):
        with pytest.raises(ApprovalError, match="no such approval"):
            desk.approve(name)
    assert desk.notes == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"for_s": 0.0},
        {"for_s": -1.0},
        {"for_s": kept.FOR_S_MAX + 1},
        {"for_s": float("nan")},
        {"for_s": 60.0, "arguments": {"n": 1}},
        {"arguments": {"n": "x" * kept.ARGUMENTS_BYTES_MAX}},
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(desk: Desk, wrong: JsonObject) -> None:
    one = desk.asked()
    with pytest.raises(UsageError):
        desk.approve(one.id, **wrong)
    with pytest.raises(UsageError):
        desk.deny(one.id, for_s=60.0)
    assert (desk.states(), desk.notes) == (["waiting"], [])


def test_a_yes_in_advance_settles_the_question_that_waits(desk: Desk) -> None:
    desk.asked()
    call = a_call(id="c2", approved_by="ann")
    decision = desk.decide(call)
    assert isinstance(decision, Allow)
    assert desk.approvals.take(TOOL, call, decision.approval)
    (one,) = desk.approvals.all()
    assert (one.state, one.answered_by, one.used_by) == (ApprovalState.USED, "ann", "c2")
    again = desk.decide(call)
    assert isinstance(again, Allow)
    assert again.approval == ""


# -- nothing unrecorded, nothing twice ----------------------------------------------------------------------


def test_an_answer_that_cannot_be_recorded_does_not_count(desk: Desk) -> None:
    one = desk.asked()
    desk.refuses = True
    with pytest.raises(Unrecorded, match="the disk is full"):
        desk.approve(one.id)
    assert desk.states() == ["waiting"]
    assert isinstance(desk.decide(), Ask)


def test_a_use_that_cannot_be_recorded_lets_nothing_run_and_is_spent(desk: Desk) -> None:
    one = desk.approve(desk.asked().id)
    desk.refuses = True
    with pytest.raises(Unrecorded):
        desk.approvals.take(TOOL, a_call(), one.id)
    assert desk.states() == ["used"]


def test_two_who_answer_at_once_do_not_both_count(open_desk: OpenDesk) -> None:
    ours, theirs = open_desk(), open_desk()
    one = ours.asked()
    # The other one answers between our reading and our writing: the record is written in between.
    note = ours._note

    def meanwhile(call_id: str, what: str, body: JsonObject) -> str | None:
        if not theirs.notes:
            theirs.deny(one.id, because="no")
        return note(call_id, what, body)

    ours.approvals = Approvals(lambda: ours.store, note=meanwhile, clock=ours.clock)
    for more in ({}, {"for_s": 60.0}):
        theirs.notes.clear()
        with pytest.raises(ApprovalError, match="changed meanwhile"):
            ours.approve(one.id, **more)
    assert isinstance(ours.decide(), Deny)
    assert [body.get("failed") is not None for _, _, body in ours.notes] == [False, True, False, True]


@pytest.mark.parametrize("at_once", [50])
def test_of_many_identical_calls_one_uses_the_approval(open_desk: OpenDesk, at_once: int) -> None:
    """Attack: two identical calls at once, and one approval."""
    desks = [open_desk() for _ in range(4)]
    one = desks[0].approve(desks[0].asked().id)
    gate = threading.Barrier(at_once)

    def use(number: int) -> tuple[bool, str]:
        desk, call = desks[number % 4], a_call(id=f"c{number}")
        gate.wait(WAIT_S)
        took = desk.approvals.take(TOOL, call, one.id)
        return took, "" if took else desk.asked(call).id

    with ThreadPoolExecutor(at_once) as pool:
        used = list(pool.map(use, range(at_once)))
    assert [took for took, _ in used].count(True) == 1
    assert len({again for took, again in used if not took}) == 1  # the others share one new question
    assert sorted(desks[0].states()) == ["used", "waiting"]
    assert sum(len(desk.notes) for desk in desks) == 2


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.trust.test_approvals import Desk, TOOL, a_call
from pathlib import Path
desk = Desk(Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
took = desk.approvals.take(TOOL, a_call(id=sys.argv[4]), sys.argv[3])
print("took" if took else desk.asked(a_call(id=sys.argv[4])).id, flush=True)
"""


def test_of_many_programs_one_uses_the_approval_and_the_others_share_a_question(
    desk: Desk, tmp_path: Path
) -> None:
    one = desk.approve(desk.asked().id)
    root = str(Path(__file__).parent.parent.parent)
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(PROGRAM),
                root,
                str(tmp_path / "s.sqlite"),
                one.id,
                f"p{n}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for n in range(4)
    ]
    try:
        for program in started:
            assert program.stdout is not None
            with bounded(program):
                assert program.stdout.readline() == "ready\n"
        for program in started:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        said = [program.communicate(timeout=WAIT_S)[0].strip() for program in started]
    finally:
        for program in started:
            program.kill()
            program.communicate()
    assert said.count("took") == 1
    assert len(set(said)) == 2


# -- broken stores ------------------------------------------------------------------------------------------


class Broken:
    """A store that fails at a step: a full disk, a lock that another program holds, damage."""

    def __init__(self, inner: Store, *steps: str) -> None:
        self.inner = inner
        self.steps = steps

    def _or_fail(self, step: str) -> None:
        if step in self.steps:
            raise StoreError("state.sqlite: database or disk is full", "make room")

    def put(self, shelf: str, key: str, value: bytes, version: int | None) -> int:
        self._or_fail("put")
        return self.inner.put(shelf, key, value, version)

    def get(self, shelf: str, key: str) -> Versioned | None:
        self._or_fail("get")
        return self.inner.get(shelf, key)

    def keys(self, shelf: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        self._or_fail("keys")
        return self.inner.keys(shelf, after, limit)

    def remove(self, shelf: str, key: str, version: int | None) -> None:
        self._or_fail("remove")
        self.inner.remove(shelf, key, version)

    def close(self) -> None:
        self.inner.close()


def test_a_store_that_breaks_uses_nothing_up_and_forgets_nothing(desk: Desk) -> None:
    one = desk.approve(desk.asked().id)
    whole = desk.store
    steps: list[Callable[[], object]] = [
        lambda: desk.asked(a_call({"n": 2})),
        lambda: desk.approve(one.id),
        lambda: desk.approvals.take(TOOL, a_call(), one.id),
    ]
    for step in steps:
        desk.store = Broken(whole, "put")
        with pytest.raises(StoreError, match="disk is full"):
            step()
    desk.store = Broken(whole, "get")
    with pytest.raises(StoreError):
        desk.decide()
    desk.store = whole
    assert desk.states() == ["approved"]
    assert desk.take()


def test_a_lasting_approval_that_was_half_made_is_found_once(desk: Desk) -> None:
    one = desk.asked()
    whole = desk.store
    desk.store = Broken(whole, "remove")
    with pytest.raises(StoreError):
        desk.approve(one.id, for_s=60)
    desk.store = whole
    (found,) = desk.approvals.all()
    assert (found.id, found.state, found.standing) == (one.id, ApprovalState.APPROVED, True)
    desk.deny(one.id)
    assert not isinstance(desk.decide(), Allow)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"state":"approved"}', b"\xff", b"null"])
def test_what_cannot_be_read_was_not_approved(desk: Desk, damage: bytes) -> None:
    one = desk.approve(desk.asked().id)
    (name,) = desk.store.keys(SHELF)
    desk.store.put(SHELF, name, damage, None)
    assert isinstance(desk.decide(), Ask)
    assert not desk.approvals.take(TOOL, a_call(), one.id)
    assert desk.asked().id != one.id
    assert desk.states() == ["waiting"]


# -- waiting ------------------------------------------------------------------------------------------------


def waiting(desk: Desk, one: Approval, stop: Cancel = NEVER) -> Iterator[list[bool]]:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(desk.approvals.wait(one, stop, WAIT_S)))
    thread.start()
    yield found
    thread.join(WAIT_S)
    assert not thread.is_alive()
    yield found


@pytest.mark.parametrize("answer", [Answer.APPROVE, Answer.DENY])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_waiting_ends_with_the_answer_wherever_it_is_given(
    open_desk: OpenDesk, answer: Answer, where: str
) -> None:
    ours = open_desk()
    theirs = ours if where == "here" else open_desk()
    one = ours.asked()
    steps = waiting(ours, one)
    assert next(steps) == []
    theirs.approvals.answer(one.id, answer, by="bob")
    assert next(steps) == [True]
    assert ours.approvals._bells == {}


def test_waiting_ends_when_an_approval_lasts(desk: Desk) -> None:
    one = desk.asked()
    steps = waiting(desk, one)
    next(steps)
    desk.approve(one.id, for_s=60)
    assert next(steps) == [True]


def test_waiting_can_be_stopped_and_runs_out(desk: Desk) -> None:
    one, stop = desk.asked(), Cancel()
    steps = waiting(desk, one, stop)
    next(steps)
    stop.set()
    assert next(steps) == [False]
    assert not desk.approvals.wait(one, NEVER, 0.01)
    desk.clock.move(kept.WAITING_S)
    assert desk.approvals.wait(one, NEVER, WAIT_S)  # expired: nobody answers any more
    assert desk.approvals._bells == {}


# -- the whole machine --------------------------------------------------------------------------------------


class Memory:
    """A store in memory, as small as its protocol."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Versioned] = {}
        self.newest = 0

    def _expect(self, shelf: str, key: str, version: int | None) -> None:
        found = self.kept.get((shelf, key))
        if version is not None and version != (found.version if found else 0):
            raise Conflict(key)

    def put(self, shelf: str, key: str, value: bytes, version: int | None) -> int:
        self._expect(shelf, key, version)
        self.newest += 1
        self.kept[shelf, key] = Versioned(value, self.newest)
        return self.newest

    def get(self, shelf: str, key: str) -> Versioned | None:
        return self.kept.get((shelf, key))

    def keys(self, shelf: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        return sorted(key for at, key in self.kept if at == shelf and key > after)[:limit]

    def remove(self, shelf: str, key: str, version: int | None) -> None:
        self._expect(shelf, key, version)
        self.kept.pop((shelf, key), None)

    def close(self) -> None:
        self.kept.clear()


class Machine(RuleBasedStateMachine):
    """Whatever is asked, answered, called and waited for: runs never exceed approvals, and a call runs only
    where the last word on it, in time, was a yes."""

    def __init__(self) -> None:
        super().__init__()
        self.d = Desk(Memory())
        self.runs = 0

    numbers = st.integers(0, 2)

    def _open(self, n: int) -> Approval | None:
        digest = jsontext.digest({"n": n})
        found = [one for one in self.d.approvals.all() if one.arguments_digest == digest]
        now = self.d.clock()
        live = [one for one in found if one.state is not ApprovalState.USED and now < one.until]
        for one in found:
            if one not in live:  # nothing brings back what is over
                with pytest.raises(ApprovalError):
                    self.d.approve(one.id)
        return live[-1] if live else None

    @rule(n=numbers)
    def call(self, n: int) -> None:
        call = a_call({"n": n})
        decision = self.d.decide(call)
        match decision:
            case Allow():
                assert self.d.approvals.take(TOOL, call, decision.approval)
                self.runs += 1
            case Ask():
                one = self.d.approvals.ask(TOOL, call, QUESTION)
                assert isinstance(one, Approval)
                assert one.state is ApprovalState.WAITING
            case Deny():
                pass

    @rule(n=numbers, because=st.text(max_size=5))
    def approve(self, n: int, because: str) -> None:
        one = self._open(n)
        if one is not None:
            self.d.approve(one.id, because=because)
            assert isinstance(self.d.decide(a_call({"n": n})), Allow)

    @rule(n=numbers)
    def edit(self, n: int) -> None:
        one = self._open(n)
        if one is not None:
            self.d.approve(one.id, arguments={"n": 10 + n})
            decision = self.d.decide(a_call({"n": n}))
            assert isinstance(decision, Allow)
            assert decision.arguments == {"n": 10 + n}

    @rule(n=numbers)
    def approve_for_a_while(self, n: int) -> None:
        one = self._open(n)
        if one is not None:
            self.d.approve(one.id, for_s=100.0)

    @rule(n=numbers)
    def deny(self, n: int) -> None:
        one = self._open(n)
        if one is not None:
            self.d.deny(one.id)
            assert isinstance(self.d.decide(a_call({"n": n})), Deny)

    @rule(seconds=st.sampled_from([1.0, 99.0, kept.DENIED_S, kept.WAITING_S, kept.KEPT_S]))
    def time_goes_by(self, seconds: float) -> None:
        self.d.clock.move(seconds)

    @invariant()
    def a_run_has_its_answer(self) -> None:
        told = [body for _, what, body in self.d.notes if what == "approved"]
        assert len(told) == self.runs
        answers = [body for _, what, body in self.d.notes if what == "answer"]
        for body in told:
            mine = [answer for answer in answers if answer["approval"] == body["approval"]]
            assert any(answer["decision"] == "approve" for answer in mine)
            lasting = any(answer["for_s"] for answer in mine)
            uses = sum(other["approval"] == body["approval"] for other in told)
            assert uses == 1 or lasting

    @invariant()
    def no_two_questions_are_the_same(self) -> None:
        found = [one for one in self.d.approvals.all() if one.state is ApprovalState.WAITING]
        assert len({one.arguments_digest for one in found}) == len(found)
        assert len({one.id for one in self.d.approvals.all()}) == len(self.d.approvals.all())


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30)
