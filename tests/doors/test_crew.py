"""The threads that run served calls: none is lost, none waits for a stranger, and all is over at the end."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

import toolcrib
from tests.moments import before_storing
from tests.program import WAIT_S
from toolcrib.app import Crib
from toolcrib.config import Config
from toolcrib.doors._crew import WAITING_MAX, Crew, Mailbox, Span
from toolcrib.doors._events import EventKind, Events
from toolcrib.errors import Kind
from toolcrib.journal.reading import entries
from toolcrib.model import Tool, ToolCall, ToolResult
from toolcrib.sandbox import NEVER, Cancel

SLEEP = """{"tools": [{"name": "sleep", "description": "Sleeps.", "command": ["/bin/sleep", "60"],
  "schema": {"type": "object", "properties": {}}}]}"""


class Gate:
    """A function that waits until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()

    def hold(self) -> str:
        self.entered.release()
        assert self.free.wait(WAIT_S)
        return "held"


def echo(text: str) -> str:
    return text


@contextmanager
def crewed(tmp_path: Path, *tools: object, threads_max: int = 64) -> Iterator[tuple[Crew, Crib, Events]]:
    with toolcrib.open(Config(state=str(tmp_path / "state")), tools=tools) as crib:
        events = Events()
        crew = Crew(crib, events, threads_max=threads_max)
        yield crew, crib, events
        crew.drain(WAIT_S)


class Answers:
    """What was told, and a way to wait for it."""

    def __init__(self) -> None:
        self.results: list[ToolResult] = []
        self._told = threading.Condition()

    def done(self, result: ToolResult) -> None:
        with self._told:
            self.results.append(result)
            self._told.notify_all()

    def wait(self, count: int, crew: Crew | None = None) -> list[ToolResult]:
        """``crew``: look after it meanwhile, as the loop of a server does."""
        until = time.monotonic() + WAIT_S
        with self._told:
            while len(self.results) < count and time.monotonic() < until:
                if crew is not None:
                    crew.look()
                self._told.wait(0.005 if crew is not None else until - time.monotonic())
            assert len(self.results) >= count
            return list(self.results)


def call(crib: Crib, name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=crib.new_call_id(), tool=name, arguments=arguments, caller="someone")


def order(
    crew: Crew, crib: Crib, answers: Answers, name: str, *, share: str = "", **arguments: object
) -> bool:
    """Whether the call was taken."""
    made = call(crib, name, **arguments)
    return crew.order(made, door="test", done=answers.done, cancel=NEVER, share=share) is None


def test_every_call_is_answered_once_and_recorded_once(tmp_path: Path) -> None:
    answers = Answers()
    with crewed(tmp_path, echo) as (crew, crib, _events):
        for number in range(300):
            assert order(crew, crib, answers, "echo", text=str(number))
        results = answers.wait(300, crew)
    assert Counter(result.content for result in results) == Counter(str(number) for number in range(300))
    told = Counter((entry.what, entry.call) for entry in entries(str(tmp_path / "state" / "journal")))
    assert {told["begin", result.call_id] for result in results} == {1}
    assert {told["end", result.call_id] for result in results} == {1}


def test_calls_that_arrive_in_one_turn_begin_together(tmp_path: Path) -> None:
    """One sync for all of them, whose begins then stand next to each other."""
    answers = Answers()

    async def burst(crew: Crew, crib: Crib) -> None:
        for number in range(10):
            order(crew, crib, answers, "echo", text=str(number))

    with crewed(tmp_path, echo) as (crew, crib, _events):
        asyncio.run(_awaited(burst(crew, crib), answers, 10))
    what = [entry.what for entry in entries(str(tmp_path / "state" / "journal")) if entry.call]
    assert what == ["begin"] * 10 + ["end"] * 10


async def _awaited(first: object, answers: Answers, count: int) -> None:
    await first  # type: ignore[misc]
    await asyncio.to_thread(answers.wait, count)


def test_a_function_that_waits_holds_up_nobody_else(tmp_path: Path) -> None:
    """Attack: one tool that hangs, called first, so that all who call after it wait with it."""
    gate, answers, held = Gate(), Answers(), Answers()
    with crewed(tmp_path, gate.hold, echo) as (crew, crib, _events):
        try:
            order(crew, crib, held, "hold")
            for number in range(40):
                order(crew, crib, answers, "echo", text=str(number))
            assert len(answers.wait(40, crew)) == 40
            assert held.results == []
        finally:
            gate.free.set()
        assert held.wait(1)[0].content == "held"


def test_functions_that_wait_run_at_once(tmp_path: Path) -> None:
    gate, answers = Gate(), Answers()
    with crewed(tmp_path, gate.hold) as (crew, crib, _events):
        try:
            for _ in range(8):
                order(crew, crib, answers, "hold")
            until = time.monotonic() + WAIT_S
            entered = 0
            while entered < 8 and time.monotonic() < until:
                crew.look()
                entered += gate.entered.acquire(timeout=0.01)
            assert entered == 8
        finally:
            gate.free.set()
        assert [result.content for result in answers.wait(8)] == ["held"] * 8


def test_an_unknown_name_among_many_is_answered_like_one_alone(tmp_path: Path) -> None:
    answers = Answers()
    with crewed(tmp_path, echo) as (crew, crib, _events):
        order(crew, crib, answers, "echo", text="a")
        order(crew, crib, answers, "ecko", text="b")
        order(crew, crib, answers, "echo", text="c")
        results = answers.wait(3, crew)
        alone = crib.call("ecko", {"text": "b"})
    unknown = [result for result in results if result.error is not None]
    assert [result.error for result in unknown] == [alone.error]
    assert alone.error is not None
    assert alone.error.kind is Kind.UNKNOWN_TOOL
    assert sorted(result.content for result in results if result.ok) == ["a", "c"]


def test_draining_waits_for_what_is_under_way_and_takes_nothing_more(tmp_path: Path) -> None:
    gate, answers = Gate(), Answers()
    with crewed(tmp_path, gate.hold, echo) as (crew, crib, _events):
        order(crew, crib, answers, "hold")
        assert gate.entered.acquire(timeout=WAIT_S)
        drained: list[bool] = []
        waiting = threading.Thread(target=lambda: drained.append(crew.drain(WAIT_S)))
        waiting.start()
        until = time.monotonic() + WAIT_S
        while order(crew, crib, Answers(), "echo", text="early") and time.monotonic() < until:
            pass
        assert not order(crew, crib, answers, "echo", text="late")
        gate.free.set()
        waiting.join(WAIT_S)
        assert drained == [True]
        assert answers.wait(1)[0].content == "held"
        assert crew.under_way == 0


def test_draining_cancels_what_does_not_end(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "tools.json"
    tool.parent.mkdir()
    tool.write_text(SLEEP, encoding="utf-8")
    answers, stop = Answers(), Cancel()
    with toolcrib.open(str(tool.parent), config=Config(state=str(tmp_path / "state"))) as crib:
        crew = Crew(crib, Events())
        crew.order(call(crib, "sleep"), door="test", done=answers.done, cancel=stop)
        assert not crew.drain(0.2)
        (result,) = answers.wait(1)
    assert result.error is not None
    assert result.error.kind is Kind.CANCELLED


def test_more_calls_than_can_wait_are_refused_at_once(tmp_path: Path) -> None:
    """Attack: calls without end, until the memory is. Those of another caller are taken all the same."""
    gate, answers, others = Gate(), Answers(), Answers()
    with crewed(tmp_path, gate.hold, echo) as (crew, crib, _events):
        try:
            taken = 0
            while order(crew, crib, answers, "hold", share="busy"):
                taken += 1
                assert taken <= WAITING_MAX
            assert taken == WAITING_MAX // 2
            error = crew.order(call(crib, "hold"), door="test", done=answers.done, cancel=NEVER, share="busy")
            assert error is not None
            assert (error.kind, error.details) == (Kind.UNAVAILABLE, {"again_s": 1.0})
            assert order(crew, crib, others, "echo", share="calm", text="x")
            assert others.wait(1, crew)[0].content == "x"
        finally:
            with crew._lock:
                waiting = crew._waiting.take_out(lambda _order: True)
                for each in waiting:
                    crew._let_go(each)
            gate.free.set()


def threads_of_calls() -> int:
    return sum(thread.name == "call" for thread in threading.enumerate())


def test_attack_hundreds_of_calls_of_a_slow_tool_leave_no_thread_for_others(tmp_path: Path) -> None:
    """They wait without a thread: those of one tool, and whatever else their caller calls."""
    gate, another, answers, others = Gate(), Gate(), Answers(), Answers()

    def slow() -> str:
        return another.hold()

    with crewed(tmp_path, gate.hold, slow, echo, threads_max=64) as (crew, crib, _events):
        before = threads_of_calls()
        try:
            for _ in range(200):
                assert order(crew, crib, answers, "hold", share="busy")
                assert order(crew, crib, answers, "slow", share="busy")
            until, entered = time.monotonic() + WAIT_S, 0
            while entered < 32 and time.monotonic() < until:  # half of all
                crew.look()
                entered += gate.entered.acquire(timeout=0.001) + another.entered.acquire(timeout=0.001)
            assert entered == 32
            assert threads_of_calls() - before <= 64 + 1
            for number in range(5):
                assert order(crew, crib, others, "echo", share="calm", text=str(number))
                assert others.wait(number + 1, crew)[number].content == str(number)
            assert order(crew, crib, others, "hold", share="calm")
            while not gate.entered.acquire(timeout=0.001):
                assert time.monotonic() < until
                crew.look()
            assert answers.results == []
        finally:
            gate.free.set()
            another.free.set()
        assert len(answers.wait(400, crew)) == 400
        assert others.wait(6, crew)[5].content == "held"


def test_a_tool_at_its_limit_delays_no_other_tool_of_the_same_caller(tmp_path: Path) -> None:
    gate, answers, others = Gate(), Answers(), Answers()
    config = Config(state=str(tmp_path / "state"), calls_per_tool=2)
    with toolcrib.open(config, tools=[gate.hold, echo]) as crib:
        crew, before = Crew(crib, Events(), threads_max=16), threads_of_calls()
        try:
            for _ in range(100):
                order(crew, crib, answers, "hold")
            for number in range(20):
                order(crew, crib, others, "echo", text=str(number))
            assert len(others.wait(20, crew)) == 20
            assert threads_of_calls() - before <= 4
        finally:
            gate.free.set()
        assert [each.content for each in answers.wait(100, crew)] == ["held"] * 100
        assert crew.drain(WAIT_S)


def test_callers_who_wait_have_their_turns_one_after_the_other(tmp_path: Path) -> None:
    gate, order_of = Gate(), list[str]()
    config = Config(state=str(tmp_path / "state"), calls_per_tool=1)

    def note(who: str) -> str:
        if not order_of:
            gate.hold()
        order_of.append(who)
        return who

    with toolcrib.open(config, tools=[note]) as crib:
        crew, answers = Crew(crib, Events()), Answers()
        try:
            order(crew, crib, answers, "note", share="a", who="a")
            assert gate.entered.acquire(timeout=WAIT_S)
            for who in "aaaabbc":
                order(crew, crib, answers, "note", share=who, who=who)
        finally:
            gate.free.set()
        answers.wait(8, crew)
        assert crew.drain(WAIT_S)
    assert "".join(order_of) == "aabcabaa"


def test_a_call_that_waits_is_cancelled_without_being_begun(tmp_path: Path) -> None:
    gate, answers, stop = Gate(), Answers(), Cancel()
    config = Config(state=str(tmp_path / "state"), calls_per_tool=1)
    with toolcrib.open(config, tools=[gate.hold]) as crib:
        crew, held = Crew(crib, Events()), Answers()
        try:
            order(crew, crib, held, "hold")
            crew.order(call(crib, "hold"), door="test", done=answers.done, cancel=stop)
            stop.set()
            (result,) = answers.wait(1, crew)
            assert result.error is not None
            assert result.error.kind is Kind.CANCELLED
        finally:
            gate.free.set()
        held.wait(1, crew)
        assert crew.drain(WAIT_S)
    what = [entry.what for entry in entries(str(tmp_path / "state" / "journal")) if entry.call]
    assert what == ["begin", "end"]


def test_a_call_that_waits_longer_than_it_may_is_refused_and_told_when_to_come_again(tmp_path: Path) -> None:
    gate, answers = Gate(), Answers()
    config = Config(state=str(tmp_path / "state"), calls_per_tool=1)
    with toolcrib.open(config, tools=[gate.hold]) as crib:
        crew, held = Crew(crib, Events()), Answers()
        try:
            order(crew, crib, held, "hold")
            short = replace(call(crib, "hold"), timeout_s=0.05)
            crew.order(short, door="test", done=answers.done, cancel=Cancel())
            (result,) = answers.wait(1, crew)
            assert result.error is not None
            assert (result.error.kind, result.error.details) == (Kind.UNAVAILABLE, {"again_s": 1.0})
            assert "waited too long" in result.error.message
        finally:
            gate.free.set()
        held.wait(1, crew)
        assert crew.drain(WAIT_S)


def test_draining_answers_what_waits(tmp_path: Path) -> None:
    gate, answers = Gate(), Answers()
    config = Config(state=str(tmp_path / "state"), calls_per_tool=1)
    with toolcrib.open(config, tools=[gate.hold]) as crib:
        crew = Crew(crib, Events())
        for _ in range(20):
            crew.order(call(crib, "hold"), door="test", done=answers.done, cancel=Cancel())
        assert gate.entered.acquire(timeout=WAIT_S)
        assert not crew.drain(0.2)
        results = answers.wait(19)
        gate.free.set()
        assert {result.error.kind for result in results if result.error} == {Kind.CANCELLED}
        assert crew.drain(WAIT_S)


def test_a_door_that_fails_on_an_answer_ends_no_thread(tmp_path: Path) -> None:
    answers = Answers()

    def broken(_result: ToolResult) -> None:
        raise ValueError("the door's own mistake")

    with crewed(tmp_path, echo, threads_max=1) as (crew, crib, _events):
        crew.order(call(crib, "echo", text="a"), door="test", done=broken, cancel=NEVER)
        order(crew, crib, answers, "echo", text="b")
        assert answers.wait(1, crew)[0].content == "b"


def test_whoever_listens_hears_of_begin_and_end(tmp_path: Path) -> None:
    answers, heard = Answers(), []

    async def main(crew: Crew, crib: Crib, events: Events) -> None:
        listening = events.listen()
        first = asyncio.ensure_future(anext(listening))
        await asyncio.sleep(0)  # from here on it listens
        order(crew, crib, answers, "echo", text="a")
        for event in (
            await asyncio.wait_for(first, WAIT_S),
            await asyncio.wait_for(anext(listening), WAIT_S),
        ):
            heard.append((event.kind, event.data["call_id"]))
        await listening.aclose()

    with crewed(tmp_path, echo) as (crew, crib, events):
        asyncio.run(main(crew, crib, events))
        (result,) = answers.wait(1, crew)
    assert heard == [(EventKind.CALL_BEGUN, result.call_id), (EventKind.CALL_ENDED, result.call_id)]


def test_a_question_is_told_before_anybody_can_answer_it(tmp_path: Path) -> None:
    """Whoever listens would hear of the answer first, and then of a question that is over."""
    asks = {"match": {"name": "echo"}, "decision": "ask", "because": "costs money"}
    config = Config(state=str(tmp_path / "state"), policy=(asks,), policy_places=("here",))
    with toolcrib.open(config, tools=[echo]) as crib:
        events, answers = Events(), Answers()
        crew, told = Crew(crib, events), list[EventKind]()

        def done(result: ToolResult) -> None:
            told.extend(event.kind for event in events.recent)
            answers.done(result)

        crew.order(call(crib, "echo", text="x"), door="test", done=done, cancel=NEVER)
        (result,) = answers.wait(1, crew)
        assert crew.drain(WAIT_S)
    assert result.error is not None
    assert result.error.kind is Kind.NEEDS_APPROVAL
    assert told == [EventKind.CALL_ENDED, EventKind.APPROVAL_ASKED]
    assert [event.kind for event in events.recent] == told


def test_where_nobody_listens_the_end_of_a_quick_call_is_kept(tmp_path: Path) -> None:
    answers = Answers()
    with crewed(tmp_path, echo) as (crew, crib, events):
        order(crew, crib, answers, "echo", text="a")
        (result,) = answers.wait(1, crew)
        crew.drain(WAIT_S)
        told = [(event.kind, event.data["call_id"]) for event in events.recent]
    assert told == [(EventKind.CALL_ENDED, result.call_id)]


def test_attack_calls_of_names_without_end_are_not_kept_in_memory(tmp_path: Path) -> None:
    answers = Answers()
    size = 1 << 20
    with crewed(tmp_path, echo) as (crew, crib, events):
        for number in range(20):
            assert order(crew, crib, answers, f"{number}" * size)
        answers.wait(20, crew)
        crew.drain(WAIT_S)
        told = [event.data["tool"] for event in events.recent]
    assert len(told) >= 20
    assert max(map(len, told)) <= 512


def test_cancelling_the_task_waits_for_the_record(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "tools.json"
    tool.parent.mkdir()
    tool.write_text(SLEEP, encoding="utf-8")

    async def main(crib: Crib) -> bool:
        crew, events = Crew(crib, Events()), asyncio.Event()
        task = asyncio.create_task(crew.call(call(crib, "sleep"), door="test"))
        loop = asyncio.get_running_loop()
        crew._events.hook(lambda _event: loop.call_soon_threadsafe(events.set))
        await asyncio.wait_for(events.wait(), WAIT_S)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return await asyncio.to_thread(crew.drain, WAIT_S)
        return False

    with toolcrib.open(str(tool.parent), config=Config(state=str(tmp_path / "state"))) as crib:
        assert asyncio.run(main(crib))
    (end,) = [entry for entry in entries(str(tmp_path / "state" / "journal")) if entry.what == "end"]
    assert end.body["kind"] == "cancelled"


def test_a_mailbox_is_emptied_in_order_on_its_loop() -> None:
    done: list[tuple[int, bool]] = []

    async def main() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        mailbox, home = Mailbox(loop), threading.current_thread()

        def take(number: int) -> None:
            done.append((number, threading.current_thread() is home))
            if number == 999:
                over.set()

        def post() -> None:
            for number in range(1000):
                mailbox.post(take, number)

        threading.Thread(target=post).start()
        await asyncio.wait_for(over.wait(), WAIT_S)

    asyncio.run(main())
    assert done == [(number, True) for number in range(1000)]


def test_the_stop_button_of_a_call_is_closed_when_it_is_over(tmp_path: Path) -> None:
    """Left to the collector, the pipes of a thousand calls would fill the table of descriptors."""
    with crewed(tmp_path, echo) as (crew, crib, _):
        answers, buttons = Answers(), [Cancel() for _ in range(20)]
        pipes = [button.fileno() for button in buttons]
        for button in buttons:
            made = call(crib, "echo", text="x")
            assert crew.order(made, door="http", done=answers.done, cancel=button) is None
        answers.wait(len(buttons), crew)
        assert crew.drain(WAIT_S)
        for pipe in pipes:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(pipe)


def test_the_button_that_all_share_stays(tmp_path: Path) -> None:
    with crewed(tmp_path, echo) as (crew, crib, _):
        answers, pipe = Answers(), NEVER.fileno()
        assert order(crew, crib, answers, "echo", text="x")
        answers.wait(1, crew)
        assert crew.drain(WAIT_S)
        assert NEVER.fileno() == pipe
        os.fstat(pipe)


def test_a_function_that_interrupts_itself_is_answered_and_takes_no_thread_with_it(tmp_path: Path) -> None:
    """Whoever waits for a slow one, which runs in a thread of its own, would have waited for ever."""

    def interrupt() -> str:
        time.sleep(0.03)
        raise KeyboardInterrupt

    with crewed(tmp_path, echo, interrupt, threads_max=2) as (crew, crib, _):
        answers = Answers()
        for count in range(1, 5):
            order(crew, crib, answers, "interrupt")
            answers.wait(count, crew)
        assert [each.error.kind for each in answers.results if each.error] == [Kind.CANCELLED] * 4
        order(crew, crib, answers, "echo", text="still there")
        answers.wait(5, crew)
        assert crew.drain(WAIT_S)
        assert crew.under_way == 0
    records = Counter(entry.what for entry in entries(str(tmp_path / "state" / "journal")))
    assert (records["begin"], records["end"]) == (5, 5)


def test_calls_wait_for_a_thread_that_cannot_be_started_yet(tmp_path: Path) -> None:
    with crewed(tmp_path, echo) as (crew, crib, _):
        answers = Answers()
        before = threading.stack_size(1 << 46)  # more than there is: no thread starts
        try:
            assert order(crew, crib, answers, "echo", text="x")
            crew.look()
            assert not answers.results
        finally:
            threading.stack_size(before)
        (result,) = answers.wait(1, crew)
        assert result.error is None


def test_whoever_drains_looks_after_calls_behind_one_that_waits(tmp_path: Path) -> None:
    """Nobody else may look after them any more: the client of a pipe has left."""
    gate = Gate()
    with crewed(tmp_path, echo, gate.hold) as (crew, crib, _):
        answers = Answers()

        async def both() -> None:
            order(crew, crib, answers, "hold")
            order(crew, crib, answers, "echo", text="behind")

        asyncio.run(both())  # begun together
        draining = threading.Thread(target=crew.drain, args=(WAIT_S,))
        draining.start()
        (first,) = answers.wait(1)
        assert first.error is None
        assert not gate.free.is_set()
        gate.free.set()
        draining.join(WAIT_S)
        assert not draining.is_alive()


class BrokenSpans:
    def begin(self, call: ToolCall, tool: Tool | None, *, parent: str) -> Span:
        raise OSError("no room")


def test_whoever_traces_cannot_keep_a_call_from_running(tmp_path: Path) -> None:
    with toolcrib.open(Config(state=str(tmp_path / "state")), tools=[echo]) as crib:
        crew, answers = Crew(crib, Events(), spans=BrokenSpans()), Answers()
        order(crew, crib, answers, "echo", text="x")
        (result,) = answers.wait(1, crew)
        assert result.error is None
        assert crew.drain(WAIT_S)


def test_one_post_that_breaks_keeps_no_other() -> None:
    done: list[int] = []

    def do(number: int) -> None:
        done.append(1 // number)

    async def main() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        for number in (1, 0, 1):
            mailbox.post(do, number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert done == [1, 1]


def test_a_call_that_nothing_can_stop_is_answered_for_and_recorded_when_it_ends(tmp_path: Path) -> None:
    gate = Gate()
    with crewed(tmp_path, gate.hold) as (crew, crib, _):
        answers = Answers()
        order(crew, crib, answers, "hold")
        assert gate.entered.acquire(timeout=WAIT_S)
        assert not crew.drain(0.05)
        crew.abandon()
        (result,) = answers.wait(1)
        assert result.error is not None
        assert result.error.kind is Kind.CANCELLED
        gate.free.set()
        assert crew.drain(WAIT_S)
    what = [entry.what for entry in entries(str(tmp_path / "state" / "journal")) if entry.call]
    assert what == ["begin", "end"]


def test_stopping_a_call_that_nobody_can_stop_stops_no_other(tmp_path: Path) -> None:
    """Attack: the one button that all such calls share is pressed, and nothing runs any more."""
    gate, answers = Gate(), Answers()
    with crewed(tmp_path, gate.hold, echo) as (crew, crib, _events):
        order(crew, crib, answers, "hold")
        assert gate.entered.acquire(timeout=WAIT_S)
        try:
            crew.drain(0.01)
        finally:
            gate.free.set()
        assert not NEVER.is_set
        assert crib.call("echo", {"text": "still"}).content == "still"


# -- reading for a door --------------------------------------------------------------------------------------


class Lines:
    """A source whose lines are names of tools; what they answer is written back, whatever is flushed at once
    in one go."""

    def __init__(self, crib: Crib, crew: Crew) -> None:
        self._crib, self._crew = crib, crew
        self._heard, self.said = os.pipe()
        self._told: list[str] = []
        self._flushed = threading.Condition()
        self.flushes: list[list[str]] = []
        self.readers: list[int] = []
        self.is_over = threading.Event()

    def read(self) -> bytes:
        self.readers.append(threading.get_ident())
        chunk = os.read(self._heard, 1 << 16)
        if not chunk:
            os.close(self._heard)
            self.is_over.set()
        return chunk

    def take(self, chunk: bytes) -> None:
        for name in chunk.decode("utf-8").split():
            made = call(self._crib, name)
            self._crew.order(made, door="test", done=self._done, cancel=NEVER)

    def _done(self, result: ToolResult) -> None:
        self._told.append(str(result.content))

    def flush(self) -> None:
        with self._flushed:
            told, self._told = self._told, []
            if told:
                self.flushes.append(told)
                self._flushed.notify_all()

    def say(self, *names: str) -> None:
        os.write(self.said, (" ".join(names) + "\n").encode())

    def wait(self, count: int) -> list[list[str]]:
        """What was flushed, once so many answers were; the crew is looked after, as a server does."""
        return self.flushed(count, look=self._crew.look)

    def flushed(self, count: int, look: Callable[[], None] = lambda: None) -> list[list[str]]:
        """The same where somebody else looks after the crew."""
        until = time.monotonic() + WAIT_S
        with self._flushed:
            while sum(map(len, self.flushes)) < count and time.monotonic() < until:
                look()
                self._flushed.wait(0.005)
            assert sum(map(len, self.flushes)) >= count
            return list(self.flushes)

    def end(self) -> None:
        os.close(self.said)
        assert self.is_over.wait(WAIT_S)


@contextmanager
def reading(tmp_path: Path, *tools: object, threads_max: int = 64) -> Iterator[tuple[Lines, Crew]]:
    with crewed(tmp_path, *tools, threads_max=threads_max) as (crew, crib, _events):
        lines = Lines(crib, crew)
        crew.serve(lines)
        yield lines, crew


def ping() -> str:
    return "pong"


def test_whoever_reads_quick_calls_runs_them_and_reads_on(tmp_path: Path) -> None:
    ran: list[int] = []

    def where() -> str:
        ran.append(threading.get_ident())
        return "here"

    with reading(tmp_path, where) as (lines, _crew):
        for count in range(1, 6):
            lines.say("where")
            lines.flushed(count)  # nobody looks, who might have another thread help on a busy machine
        lines.end()
    assert ran == lines.readers[: len(ran)]


def test_what_is_read_together_begins_together_and_is_sent_at_once(tmp_path: Path) -> None:
    with reading(tmp_path, ping) as (lines, _crew):
        lines.say(*["ping"] * 16)
        assert lines.flushed(16) == [["pong"] * 16]
        lines.end()
    what = [entry.what for entry in entries(str(tmp_path / "state" / "journal")) if entry.call]
    assert what == ["begin"] * 16 + ["end"] * 16


def test_one_that_was_held_up_once_is_still_a_quick_one_and_one_that_waits_is_not(tmp_path: Path) -> None:
    """A machine that pauses for a moment must not have all that follows run one by one."""
    free = threading.Event()
    waits_s = iter((0.05, *[0.0] * 15, 0.05, 0.05, WAIT_S))

    def ping() -> str:
        free.wait(next(waits_s, 0.0))
        return "pong"

    with reading(tmp_path, ping) as (lines, _crew):
        try:
            lines.say(*["ping"] * 16)
            assert lines.flushed(16) == [["pong"] * 16]
            for count in (17, 18):
                lines.say("ping")
                lines.flushed(count)
            lines.say("ping", "ping")
            assert len(lines.flushed(19)) == 4  # one waits, and nobody had to look for the other's sake
        finally:
            free.set()
        lines.flushed(20)
        lines.end()


def test_reading_goes_on_while_a_function_waits_that_seemed_quick(tmp_path: Path) -> None:
    gate = Gate()
    with reading(tmp_path, gate.hold, ping) as (lines, _crew):
        try:
            lines.say("hold")
            assert gate.entered.acquire(timeout=WAIT_S)
            lines.say("ping")
            assert lines.wait(1) == [["pong"]]
        finally:
            gate.free.set()
        assert lines.wait(2) == [["pong"], ["held"]]
        lines.end()


def test_a_call_that_comes_when_the_loop_looks_no_longer_is_looked_after(tmp_path: Path) -> None:
    """The loop stops looking while there is nothing to do, and a call comes in that very moment."""
    gate = Gate()
    with reading(tmp_path, gate.hold, ping) as (lines, crew):

        def hold() -> None:
            sys.settrace(None)
            lines.say("hold")
            is_held.append(gate.entered.acquire(timeout=WAIT_S))

        async def main() -> None:
            crew.attend(asyncio.get_running_loop())
            lines.say("ping")
            sys.settrace(before_storing(Crew._attend, "_is_attended", hold))
            until = time.monotonic() + WAIT_S
            while not is_held and time.monotonic() < until:
                await asyncio.sleep(0.005)
            assert is_held == [True]
            lines.say("ping")
            assert await asyncio.to_thread(lines.flushed, 2) == [["pong"], ["pong"]]

        is_held: list[bool] = []
        try:
            asyncio.run(main())
        finally:
            gate.free.set()
        lines.wait(3)
        lines.end()


def test_attack_calls_that_never_end_keep_nobody_from_hearing_that_they_are_called_off(
    tmp_path: Path,
) -> None:
    gate = Gate()
    with reading(tmp_path, gate.hold, ping, threads_max=4) as (lines, crew):
        try:
            lines.say("hold", "hold")
            until, entered = time.monotonic() + WAIT_S, 0
            while entered < 2 and time.monotonic() < until:
                crew.look()
                entered += gate.entered.acquire(timeout=0.005)
            lines.say("ping")
            while crew.under_way < 3 and time.monotonic() < until:
                crew.look()
                gate.entered.acquire(timeout=0.005)
            assert crew.under_way == 3  # it was read
            assert lines.flushes == []
        finally:
            gate.free.set()
        assert sorted(chain.from_iterable(lines.wait(3))) == ["held", "held", "pong"]
        lines.say("ping")  # and whoever runs calls reads again
        assert lines.wait(4)[-1] == ["pong"]
        lines.end()


def test_what_was_read_before_the_end_is_answered_after_it(tmp_path: Path) -> None:
    gate = Gate()
    with reading(tmp_path, gate.hold) as (lines, crew):
        lines.say("hold")
        assert gate.entered.acquire(timeout=WAIT_S)
        os.close(lines.said)
        until = time.monotonic() + WAIT_S
        while not lines.is_over.is_set() and time.monotonic() < until:
            crew.look()
            lines.is_over.wait(0.005)
        gate.free.set()
        assert crew.drain(WAIT_S)
        assert lines.flushes == [["held"]]
        assert not crew.is_reading
