"""Registered functions, called through the whole engine: results, failures, limits, loops, progress."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, TypedDict

import pydantic
import pytest

import toolcrib
from tests.levels import sandbox_of
from tests.program import PATH, WAIT_S
from toolcrib import Context
from toolcrib.config import Config, Environment
from toolcrib.errors import Kind
from toolcrib.journal.reading import entries
from toolcrib.model import Grant, Level, ToolCall, ToolResult
from toolcrib.sandbox import Cancel

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@contextmanager
def opened(folder: Path, *functions: object, **more: Any) -> Iterator[toolcrib.Crib]:
    """A crib of functions alone, in a folder of its own."""
    environment = Environment.read({"HOME": str(folder / "home"), "PATH": PATH})
    config = more.pop("config", Config(state=str(folder / "state")))
    with (
        sandbox_of(Level.PORTABLE) as sandbox,
        toolcrib.open(
            tools=functions, config=config, environment=environment, sandbox=sandbox, **more
        ) as shop,
    ):
        yield shop


def result_of(
    folder: Path, function: Any, arguments: dict[str, Any] | None = None, **more: Any
) -> ToolResult:
    with opened(folder, toolcrib.tool(name="it")(function)) as crib:
        return crib.call("it", arguments or {}, **more)


@dataclasses.dataclass
class Booking:
    room: str
    when: date
    guests: list[str] = dataclasses.field(default_factory=list)


class Answer(TypedDict):
    total: int


class Model(pydantic.BaseModel):
    name: str


# -- results ------------------------------------------------------------------------------------------------


def test_functions_alone_are_a_crib(tmp_path: Path) -> None:
    @toolcrib.tool
    def add(a: float, b: float) -> float:
        """Add."""
        return a + b

    with opened(tmp_path, add) as crib:
        assert [tool.name for tool in crib.tools] == ["add"]
        assert crib.problems == ()
        result = crib.call("add", {"a": 1, "b": 2})
        assert (result.ok, result.content, result.data) == (True, "3.0", 3.0)
        assert result.isolation == ("in-process",)
        declared = crib.declare("openai").payload
        assert declared[0]["function"]["name"] == "add"
        records = [entry.what for entry in entries(str(tmp_path / "state" / "journal"))]
    assert records == ["open", "begin", "end"]


@pytest.mark.parametrize(
    ("value", "content", "data"),
    [
        ("text", "text", None),
        (None, "", None),
        (3, "3", 3),
        (True, "true", True),
        ([1, "a"], '[1,"a"]', [1, "a"]),
        (
            Booking("a", date(2026, 1, 31)),
            '{"room":"a","when":"2026-01-31","guests":[]}',
            {"room": "a", "when": "2026-01-31", "guests": []},
        ),
        (Model(name="x"), '{"name":"x"}', {"name": "x"}),
        ({1: {2}}, '{"1":[2]}', {"1": [2]}),
    ],
)  # fmt: skip
def test_what_is_returned_becomes_text_and_data(tmp_path: Path, value: Any, content: str, data: Any) -> None:
    result = result_of(tmp_path, lambda: value)
    assert (result.error, result.content, result.data) == (None, content, data)


def test_content_blocks_go_through(tmp_path: Path) -> None:
    image = toolcrib.ImageBlock(data="aGk=", media_type="image/png")
    result = result_of(tmp_path, lambda: ["a picture", image])
    assert result.blocks == (toolcrib.TextBlock(text="a picture"), image)
    assert result_of(tmp_path, lambda: image).blocks == (image,)


def test_arguments_arrive_as_their_types_and_come_back_as_json(tmp_path: Path) -> None:
    def rebook(booking: Booking, by: int = 1) -> Booking:
        assert isinstance(booking, Booking)
        assert isinstance(booking.when, date)
        return dataclasses.replace(booking, when=date.fromordinal(booking.when.toordinal() + by))

    given = {"room": "a", "when": "2026-01-31", "guests": ["ann"]}
    result = result_of(tmp_path, rebook, {"booking": given})
    assert result.data == {**given, "when": "2026-02-01"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "booking: is required"),
        ({"booking": {"room": 1, "when": "2026-01-31"}}, "booking.room: expected string"),
        (
            {"booking": {"room": "a", "when": "soon"}},
            "booking.when: expected a date such as 2026-01-31 (got 'soon')",
        ),
        ({"booking": {"room": "a", "when": "2026-01-31"}, "here": {}}, 'unknown name "here"'),
    ],
)  # fmt: skip
def test_wrong_arguments_say_where_and_why_and_nothing_runs(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    def never(booking: Booking, here: Context) -> None:
        raise AssertionError

    result = result_of(tmp_path, never, arguments)
    assert result.error is not None
    assert result.error.kind is Kind.INVALID_ARGUMENTS
    assert message in result.error.message


def test_integers_of_any_length_are_written_or_refused(tmp_path: Path) -> None:
    for number in (2**63 - 1, -(2**63), 2**64, 10**100):
        assert result_of(tmp_path, lambda number=number: number).content == str(number)
    result = result_of(tmp_path, lambda: 10**5000)
    assert result.error is not None
    assert result.error.kind is Kind.FAILED
    assert "no JSON form" in result.error.message


def test_a_hint_is_a_text_that_can_be_sent(tmp_path: Path) -> None:
    def fails() -> None:
        raise toolcrib.Failed("no \ud800", hint="try \ud800 again")

    result = result_of(tmp_path, fails)
    assert result.error is not None
    assert result.error.hint == "try ? again"
    assert result.error.message == "no ?"


def test_a_result_that_breaks_its_promise_is_refused(tmp_path: Path) -> None:
    def count() -> Answer:
        return {"total": "many"}  # type: ignore[typeddict-item]

    result = result_of(tmp_path, count)
    assert result.error is not None
    assert result.error.kind is Kind.BAD_OUTPUT
    assert "total: expected integer" in result.error.message


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (b"raw", Kind.FAILED, "it returned bytes"),
        (object(), Kind.FAILED, "its result holds a object"),
        ({"a": [object()]}, Kind.FAILED, "has no JSON form"),
        ([toolcrib.TextBlock(text="x"), 1], Kind.FAILED, "mixes content blocks"),
    ],
)
def test_what_no_model_can_read_is_refused(tmp_path: Path, value: Any, kind: Kind, words: str) -> None:
    result = result_of(tmp_path, lambda: value)
    assert result.error is not None
    assert result.error.kind is kind
    assert words in result.error.message
    assert result.error.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * (20 << 20),
        lambda: "é" * (5 << 20),
        lambda: ["x" * (1 << 20)] * 20,
        lambda: toolcrib.ImageBlock(data="x" * (20 << 20), media_type="image/png"),
    ],
)
def test_a_result_that_is_too_large_does_not_go_through(tmp_path: Path, make: Any) -> None:
    result = result_of(tmp_path, make)
    assert result.error is not None
    assert result.error.kind is Kind.TOO_LARGE
    assert len(result.content) < 1000


def test_a_long_result_is_kept_aside(tmp_path: Path) -> None:
    with opened(tmp_path, toolcrib.tool(name="it")(lambda: "x" * (1 << 20))) as crib:
        result = crib.call("it")
        assert result.spent.truncated
        assert crib.result_page(result.call_id)[1] == 1 << 20


# -- failures -----------------------------------------------------------------------------------------------


def test_a_failure_speaks_to_the_model_in_its_own_words(tmp_path: Path) -> None:
    def book() -> None:
        raise toolcrib.Failed("room 7 is taken", hint="try room 8")

    result = result_of(tmp_path, book)
    assert result.error is not None
    assert (result.error.kind, result.error.message, result.error.hint) == (
        Kind.FAILED, "room 7 is taken", "try room 8",
    )  # fmt: skip
    assert result.content == "error: room 7 is taken"


def test_any_other_exception_gives_type_and_message_and_the_log_the_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise KeyError("id")

    with caplog.at_level(logging.ERROR, "toolcrib.functions"):
        result = result_of(tmp_path, broken)
    assert result.error is not None
    assert result.error.message == "KeyError: 'id'"
    assert "Traceback" not in result.content
    assert "broken" in caplog.text
    assert "runtimes/functions.py" not in caplog.text


def test_leaving_and_odd_exceptions_are_endings(tmp_path: Path) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for error, message in ((SystemExit(3), "SystemExit: 3"), (Odd(), "Odd")):

        def raising(error: BaseException = error) -> None:
            raise error

        result = result_of(tmp_path, lambda raising=raising: raising())
        assert result.error is not None
        assert result.error.message == message


def test_an_interrupt_goes_on_and_is_recorded(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with opened(tmp_path, interrupted) as crib:
        with pytest.raises(KeyboardInterrupt):
            crib.call("interrupted")
        (end,) = [entry for entry in entries(str(tmp_path / "state" / "journal")) if entry.what == "end"]
    assert "cancelled" in repr(end.body)


# -- time ---------------------------------------------------------------------------------------------------


@pytest.mark.battery("E12")
def test_a_function_that_is_not_async_cannot_be_stopped_and_is_reported(tmp_path: Path) -> None:
    def slow(here: Context) -> bool:
        while not here.cancelled:
            threading.Event().wait(0.01)
        return here.left_s == 0

    result = result_of(tmp_path, slow, timeout_s=0.1)
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT
    assert "cannot be stopped" in (result.error.hint or "")


def test_an_async_function_is_cancelled_at_its_limit(tmp_path: Path) -> None:
    seen: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    began = time.monotonic()
    result = result_of(tmp_path, slow, timeout_s=0.1)
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT
    assert result.notes == ()
    assert seen == ["cancelled"]
    assert time.monotonic() - began < WAIT_S


def test_a_function_that_cancels_itself_has_failed(tmp_path: Path) -> None:
    async def restless() -> None:
        raise asyncio.CancelledError

    result = result_of(tmp_path, restless)
    assert result.error is not None
    assert result.error.kind is Kind.FAILED
    assert result.error.message == "RuntimeError: it was cancelled, and not by its caller"


def test_its_own_timeout_is_a_failure_like_any_other(tmp_path: Path) -> None:
    async def slow() -> None:
        raise TimeoutError("the server is slow")

    result = result_of(tmp_path, slow)
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (Kind.FAILED, "TimeoutError: the server is slow")


def test_an_async_function_that_refuses_to_stop_is_given_up(tmp_path: Path) -> None:
    stop = threading.Event()

    async def stubborn() -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    try:
        with opened(tmp_path, stubborn) as crib:
            result = crib.call("stubborn", timeout_s=0.1)
            stop.set()
    finally:
        stop.set()
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT
    assert "still runs" in result.notes[0]


def test_an_async_function_that_swallows_its_cancellation_is_told_so(tmp_path: Path) -> None:
    async def swallowing() -> str:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            return "done"
        return ""

    result = result_of(tmp_path, swallowing, timeout_s=0.1)
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT
    assert "asyncio.CancelledError" in (result.error.hint or "")
    assert "not async" not in (result.error.hint or "")


def test_a_press_on_the_button_stops_an_async_function(tmp_path: Path) -> None:
    began, cancel = threading.Event(), Cancel()

    async def slow() -> None:
        began.set()
        await asyncio.sleep(WAIT_S)

    with opened(tmp_path, slow) as crib, ThreadPoolExecutor(1) as pool:
        call = pool.submit(crib.call, "slow", cancel=cancel)
        assert began.wait(WAIT_S)
        cancel.set()
        result = call.result(WAIT_S)
    assert result.error is not None
    assert result.error.kind is Kind.CANCELLED


# -- loops --------------------------------------------------------------------------------------------------


async def where() -> dict[str, Any]:
    """Where."""
    await asyncio.sleep(0)
    return {"loop": id(asyncio.get_running_loop()), "tenant": TENANT.get()}


def test_async_functions_of_plain_calls_share_one_loop(tmp_path: Path) -> None:
    with opened(tmp_path, where) as crib:
        TENANT.set("ann")
        loops = [crib.call("where").data for _ in range(2)]
        with ThreadPoolExecutor(4) as pool:
            loops += [
                future.result(WAIT_S).data for future in [pool.submit(crib.call, "where") for _ in range(8)]
            ]
        assert len({found["loop"] for found in loops}) == 1
        assert [found["tenant"] for found in loops[:2]] == ["ann", "ann"]


async def stop_loop() -> None:
    """Stop."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(WAIT_S)


async def leave_from_a_task() -> None:
    """Leave."""

    async def leave() -> None:
        raise SystemExit(4)

    task = asyncio.create_task(leave())
    await asyncio.sleep(WAIT_S)
    await task


@pytest.mark.parametrize("ends_loop", [stop_loop, leave_from_a_task])
def test_a_function_that_ends_the_event_loop_fails_and_the_next_one_runs(
    tmp_path: Path, ends_loop: Any
) -> None:
    async def quick() -> int:
        return 1

    with opened(tmp_path, toolcrib.tool(name="ends")(ends_loop), quick) as crib:
        for _ in range(2):
            result = crib.call("ends")
            assert result.error is not None
            assert result.error.kind is Kind.FAILED
            assert "stopped the event loop" in result.error.message
            assert crib.call("quick").data == 1
        assert crib.call("ends").error is not None
    gc.collect()  # asyncio tells of the tasks that ended it when they are collected: here, and nowhere else


def test_a_call_inside_an_async_function_must_be_awaited(tmp_path: Path) -> None:
    async def inner() -> int:
        return 1

    async def blocking() -> str:
        error = crib.call("inner").error
        return f"{error.message}: {error.hint}" if error else ""

    async def awaiting() -> Any:
        return (await crib.call_async("inner")).data

    with opened(tmp_path, inner, blocking, awaiting) as crib:
        began = time.monotonic()
        said = crib.call("blocking").content
        assert time.monotonic() - began < WAIT_S
        assert "blocks the event loop" in said
        assert "call_async" in said
        assert crib.call("awaiting").data == 1


def test_a_call_that_never_began_says_so(tmp_path: Path) -> None:
    blocked, free = threading.Event(), threading.Event()
    ran: list[str] = []

    async def block() -> None:
        blocked.set()
        free.wait(WAIT_S)

    async def quick() -> None:
        ran.append("quick")

    with opened(tmp_path, block, quick) as crib, ThreadPoolExecutor(1) as pool:
        first = pool.submit(crib.call, "block")
        try:
            assert blocked.wait(WAIT_S)
            result = crib.call("quick", timeout_s=0.1)
        finally:
            free.set()
        assert first.result(WAIT_S).ok
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT
    assert "never began" in (result.error.hint or "")
    assert result.notes == ()
    assert ran == []


def test_what_never_began_is_let_go_when_its_loop_stops(tmp_path: Path) -> None:
    """Else the interpreter complains, some time later and somewhere else, that it was never awaited."""
    blocked, free = threading.Event(), threading.Event()

    async def stop() -> None:
        blocked.set()
        free.wait(WAIT_S)
        await asyncio.sleep(0)  # in this turn the other one becomes a task, which the next one would start
        asyncio.get_running_loop().stop()

    async def quick() -> None:
        raise AssertionError("it was given up before it began")

    with opened(tmp_path, stop, quick) as crib, ThreadPoolExecutor(1) as pool:
        first = pool.submit(crib.call, "stop")
        try:
            assert blocked.wait(WAIT_S)
            result = crib.call("quick", timeout_s=0.1)
        finally:
            free.set()
        first.result(WAIT_S)
    gc.collect()  # the complaint, if there is one, comes now and fails the test
    assert result.error is not None
    assert "never began" in (result.error.hint or "")


def until_cancelled(seen: list[str]) -> tuple[Callable[[], Awaitable[None]], asyncio.Event]:
    """A function that runs until it is cancelled, and when it began."""
    began = asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    return slow, began


def test_closing_cancels_what_runs_on_the_callers_loop(tmp_path: Path) -> None:
    seen: list[str] = []

    async def main() -> ToolResult:
        slow, began = until_cancelled(seen)
        with opened(tmp_path, slow) as crib:
            call = asyncio.create_task(crib.call_async("slow"))
            await asyncio.wait_for(began.wait(), WAIT_S)
        return await asyncio.wait_for(call, WAIT_S)

    result = asyncio.run(main())
    assert seen == ["cancelled"]
    assert result.error is not None
    assert result.error.kind is Kind.CANCELLED


def recorded(folder: Path) -> list[tuple[str, object]]:
    found = entries(str(folder / "state" / "journal"))
    return [(entry.what, entry.body.get("error")) for entry in found if entry.what in ("begin", "end")]


@pytest.mark.parametrize("way", ["with", "async with", "close"])
def test_a_call_that_closing_cancels_is_recorded_before_the_journal_closes(tmp_path: Path, way: str) -> None:
    seen: list[str] = []

    async def main() -> ToolResult:
        slow, began = until_cancelled(seen)
        with sandbox_of(Level.PORTABLE) as sandbox:
            environment = Environment.read({"HOME": str(tmp_path / "home"), "PATH": PATH})
            config = Config(state=str(tmp_path / "state"))
            crib = toolcrib.open(tools=[slow], config=config, environment=environment, sandbox=sandbox)
            call = asyncio.create_task(crib.call_async("slow"))
            await asyncio.wait_for(began.wait(), WAIT_S)
            match way:
                case "with":
                    with crib:
                        """Leaving it closes it."""
                case "async with":
                    async with crib:
                        """The same, beside the loop."""
                    assert seen == ["cancelled"]
                case "close":
                    await asyncio.to_thread(crib.close)
                    assert seen == ["cancelled"]
            assert [what for what, _ in recorded(tmp_path)] == ["begin", "end"]
            return await asyncio.wait_for(call, WAIT_S)

    result = asyncio.run(main())
    assert seen == ["cancelled"]
    assert result.error is not None
    assert result.error.kind is Kind.CANCELLED
    assert not any("could not be written" in note for note in result.notes)
    assert len(result.notes) == (1 if way == "with" else 0)


def test_a_call_that_nothing_can_stop_does_not_hold_up_the_closing_for_long(tmp_path: Path) -> None:
    gate, began = threading.Event(), threading.Event()

    def stuck() -> str:
        began.set()
        gate.wait(WAIT_S)
        return "late"

    with ThreadPoolExecutor(1) as pool:
        try:
            with opened(tmp_path, stuck) as crib:
                call = pool.submit(crib.call, "stuck")
                assert began.wait(WAIT_S)
                since = time.monotonic()
            assert time.monotonic() - since < WAIT_S / 2
        finally:
            gate.set()
        assert call.result(WAIT_S).content == "late"


def test_async_functions_run_on_the_loop_that_awaits_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            TENANT.set("bob")
            own = id(asyncio.get_running_loop())
            results = await asyncio.gather(*(crib.call_async("where") for _ in range(8)))
            assert {found.data["loop"] for found in results} == {own}
            assert {found.data["tenant"] for found in results} == {"bob"}
            # A plain call inside of a loop blocks it, and works all the same.
            assert crib.call("where").data["loop"] != own

    with opened(tmp_path, where) as crib:
        asyncio.run(main())


def test_what_belongs_to_a_loop_can_be_used(tmp_path: Path) -> None:
    async def main() -> list[str]:
        queue: asyncio.Queue[str] = asyncio.Queue(1)

        async def put(word: str, queue: asyncio.Queue[str]) -> int:
            """Put."""
            await queue.put(word)
            return queue.qsize()

        with opened(tmp_path, put, provide={asyncio.Queue[str]: queue}) as crib:
            found = []
            calls = [asyncio.ensure_future(crib.call_async("put", {"word": word})) for word in "abc"]
            for _ in calls:
                found.append(await asyncio.wait_for(queue.get(), WAIT_S))
            assert all(result.ok for result in await asyncio.gather(*calls))
        return sorted(found)

    assert asyncio.run(main()) == ["a", "b", "c"]


@pytest.mark.battery("E10")
def test_cancelling_the_task_cancels_the_function_and_waits_for_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        began, ended = asyncio.Event(), []

        async def slow() -> None:
            """Wait."""
            began.set()
            try:
                await asyncio.sleep(WAIT_S)
            finally:
                ended.append("ended")

        with opened(tmp_path, slow) as crib:
            task = asyncio.ensure_future(crib.call_async("slow"))
            await asyncio.wait_for(began.wait(), WAIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["ended"]
            records = [entry.what for entry in entries(str(tmp_path / "state" / "journal"))]
            assert records == ["open", "begin", "end"]

    asyncio.run(main())


def test_sync_functions_do_not_block_the_loop(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def meet() -> bool:
        """Meet."""
        both.wait(WAIT_S)
        return True

    async def main() -> list[ToolResult]:
        with opened(tmp_path, meet) as crib:
            return [*await asyncio.gather(crib.call_async("meet"), crib.call_async("meet"))]

    assert [result.data for result in asyncio.run(main())] == [True, True]


# -- what the host gives ------------------------------------------------------------------------------------


def test_the_context_tells_of_the_call_and_hears_of_progress(tmp_path: Path) -> None:
    seen: list[Context] = []
    heard: list[tuple[float, float | None, str]] = []

    def work(here: Context) -> str:
        seen.append(here)
        here.progress(1, 2, "half")
        here.progress(2)
        return here.call_id

    with opened(tmp_path, work) as crib:
        result = crib.call(
            "work",
            context={"user_id": "u"},
            caller="ann",
            timeout_s=20,
            progress=lambda *told: heard.append(told),
        )
        crib.call("work")
        one = ToolCall(id="provider-1", tool="work", arguments={}, conversation="talk")
        crib.call_all([one])
    here = seen[0]
    assert (here.call_id, here.caller, here.context) == (result.call_id, "ann", {"user_id": "u"})
    assert here.tool == f"python:{__name__}/work"
    assert 0 < here.deadline - time.monotonic() <= 20
    assert heard == [(1, 2, "half"), (2, None, "")]
    assert seen[2].conversation == "talk"
    with pytest.raises(TypeError):
        here.context["user_id"] = "other"  # type: ignore[index]
    with pytest.raises(AttributeError):
        here.caller = "bob"  # type: ignore[misc]


def test_progress_is_heard_from_async_calls_too(tmp_path: Path) -> None:
    heard: list[float] = []

    async def work(here: Context) -> None:
        """Work."""
        here.progress(1)

    async def main() -> None:
        with opened(tmp_path, work) as crib:
            await crib.call_async("work", progress=lambda done, _total, _message: heard.append(done))

    asyncio.run(main())
    assert heard == [1]


def test_policy_and_switches_hold_for_functions_too(tmp_path: Path) -> None:
    def change() -> None:
        """Change."""
        raise AssertionError

    rule = {"match": {"format": "python"}, "decision": "deny", "because": "not today"}
    config = Config(state=str(tmp_path / "state"), policy=(rule,), grants=(Grant(pattern="*", needs=()),))
    with opened(tmp_path, change, config=config) as crib:
        result = crib.call("change")
    assert result.error is not None
    assert result.error.kind is Kind.DENIED


def test_a_retried_key_gives_the_first_answer_again(tmp_path: Path) -> None:
    ran: list[int] = []

    def once() -> list[object]:
        """Once."""
        ran.append(1)
        return ["done", toolcrib.ImageBlock(data="aGk=", media_type="image/png")]

    with opened(tmp_path, once) as crib:
        first, second = (crib.call("once", idempotency_key="k") for _ in range(2))
    assert ran == [1]
    assert first.blocks == second.blocks


# -- names --------------------------------------------------------------------------------------------------


def test_clashes_are_told_and_keys_tell_apart(tmp_path: Path) -> None:
    def one() -> int:
        """One."""
        return 1

    def other() -> int:
        """Two."""
        return 2

    with opened(tmp_path, one, toolcrib.tool(name="one")(other)) as crib:
        codes = [problem.code for problem in crib.problems]
        assert codes == ["catalog.key-clash", "catalog.name-clash"]
        keys = [tool.key for tool in crib.tools]
        assert [crib.call(key).data for key in keys] == [1, 2]
        assert crib.call("one").error is not None


def test_functions_stand_beside_files_and_survive_a_reload(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    (folder / "tools" / "bin").mkdir(parents=True)
    (folder / "tools" / "bin" / "run").write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    (folder / "tools" / "bin" / "run").chmod(0o755)
    (folder / "tools.json").write_text(
        '{"tools":[{"name":"add","description":"D.","schema":{"type":"object","properties":{}},'
        '"command":["./tools/bin/run"]}]}',
        encoding="utf-8",
    )

    def add(a: int) -> int:
        """Add."""
        return a + 1

    environment = Environment.read({"HOME": str(tmp_path / "home"), "PATH": PATH})
    for _ in range(2):  # the second one starts from the cache
        with toolcrib.open(folder, tools=[add], environment=environment) as crib:
            assert [tool.origin.format for tool in crib.tools] == ["manifest", "python"]
            assert [problem.code for problem in crib.problems] == ["catalog.name-clash"]
            crib.reload()
            assert crib.call(f"python:{__name__}/add", {"a": 1}).data == 2
