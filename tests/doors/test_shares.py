"""What callers share: something is left for each of them, and no thread waits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.program import WAIT_S
from toolcrib.doors._entrance import NOBODY
from toolcrib.doors._shares import Queue, Shares, Turns, share_of
from toolcrib.model import Guest


def filled(shares: Shares, caller: str) -> int:
    """Let a caller take all that it may; how much that is."""
    count = 0
    while shares.may(caller):
        shares.take(caller)
        count += 1
    return count


def test_each_caller_leaves_as_much_as_it_takes() -> None:
    shares = Shares(128)
    assert [filled(shares, caller) for caller in "abcdefg"] == [64, 32, 16, 8, 4, 2, 1]
    shares.give_back("a")
    assert filled(shares, "h") == 1
    assert filled(shares, "i") == 1  # whatever the others have


def test_one_of_many_callers_still_gets_one() -> None:
    shares = Shares(16)
    assert [filled(shares, str(number)) for number in range(40)] == [8, 4, 2, 1, *[1] * 17, *[0] * 19]


def test_what_has_a_size_leaves_as_much_as_it_takes() -> None:
    shares = Shares(100)
    assert shares.may("a", 400)  # who has nothing is never kept out by the size
    shares.take("a", 30)
    assert [shares.may("a", size) for size in (40, 41)] == [True, False]
    shares.take("b", 30)
    assert [shares.may("b", size) for size in (10, 11)] == [True, False]
    shares.give_back("a", 30)
    assert (shares.total, shares.held("a"), shares.held("b")) == (30, 0, 30)


@given(
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200), most=st.integers(1, 20)
)
def test_whatever_others_do_who_has_none_gets_one(steps: list[tuple[str, bool]], most: int) -> None:
    shares, held = Shares(most), Counter[str]()
    for caller, wants in steps:
        if wants and shares.may(caller):
            shares.take(caller)
            held[caller] += 1
        elif not wants and held[caller]:
            shares.give_back(caller)
            held[caller] -= 1
        assert shares.total == held.total() <= 2 * most
        assert {caller: shares.held(caller) for caller in "abcd"} == {
            caller: held[caller] for caller in "abcd"
        }
        assert shares.may("new") or most < 3


def test_a_queue_gives_callers_and_their_kinds_of_work_in_turn() -> None:
    queue: Queue[str] = Queue()
    for item in ("a1", "a2", "a3", "b1"):
        queue.add(item[0], item, "x")
    queue.add("a", "ay", "y")
    assert queue.has("a", "y")
    assert not queue.has("b", "y")
    assert len(queue) == 5
    found = [queue.next(lambda _: True) for _ in range(6)]
    assert found == ["a1", "b1", "ay", "a2", "a3", None]


def test_a_queue_passes_over_who_may_not_have_a_turn() -> None:
    queue: Queue[str] = Queue()
    for item in ("a1", "b1", "b2"):
        queue.add(item[0], item, item)
    assert queue.next(lambda caller: caller != "a", lambda kind: kind != "b1") == "b2"
    assert queue.take_out(lambda item: item == "b1") == ["b1"]
    assert queue.next(lambda caller: caller != "a") is None
    assert queue.next(lambda _: True) == "a1"
    assert len(queue) == 0


def test_attack_hundreds_of_requests_of_one_caller_leave_no_thread_for_others() -> None:
    free, entered = threading.Event(), threading.Semaphore(0)

    def hold() -> str:
        entered.release()
        assert free.wait(WAIT_S)
        return "held"

    async def main() -> None:
        turns = Turns(8)
        busy = [asyncio.create_task(turns.run("busy", hold)) for _ in range(300)]
        assert await asyncio.to_thread(entered.acquire, timeout=WAIT_S)
        for number in range(20):
            assert await asyncio.wait_for(turns.run("calm", str, number), WAIT_S) == str(number)
        assert not any(task.done() for task in busy)
        busy[-1].cancel()
        free.set()
        results = await asyncio.gather(*busy, return_exceptions=True)
        assert Counter(map(str, results[:-1])) == {"held": 299}
        assert isinstance(results[-1], asyncio.CancelledError)
        assert await turns.run("calm", str, "after") == "after"

    asyncio.run(main())


@pytest.mark.parametrize("when", ["waiting", "given"])
def test_a_turn_that_is_given_up_is_not_lost(when: str) -> None:
    async def main() -> None:
        turns = Turns(1)
        async with turns.turn("a"):
            waiting = asyncio.create_task(turns.run("a", str, "x"))
            await asyncio.sleep(0)
            if when == "waiting":
                waiting.cancel()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.wait_for(turns.run("a", str, "y"), WAIT_S) == "y"

    asyncio.run(main())


def test_who_has_shown_no_token_is_not_counted_as_the_owner() -> None:
    shares = {share_of(guest) for guest in (NOBODY, Guest(name="ann"), Guest(name="ann", token_id="ann"))}
    assert len(shares) == 3
