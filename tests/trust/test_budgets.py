"""Budgets: what is read, what a call takes, and that no stretch of time ever holds more than one says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trust.test_policy import tool
from toolcrib.model import Charge, Notes
from toolcrib.trust import budgets
from toolcrib.trust.budgets import EMPTY, Budget, Per, Tally, again_s, budgets_of, taken, used

PLAIN = {"calls": 2, "within": "1h", "because": "r"}


def charge(**more: Any) -> Charge:
    plain = {"counter": "c", "calls_max": 3, "cost_max": None, "cost": 0, "within_s": 60.0}
    return Charge(**{**plain, "because": "r", "place": "budget[0]", **more})


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"within": "1h", "because": "r"}, "needs calls or cost"),
        ({"calls": 1, "because": "r"}, "needs within"),
        ({"calls": 1, "within": "1h"}, "needs because"),
        ({**PLAIN, "calls": -1}, "calls: must be a whole number"),
        ({**PLAIN, "calls": True}, "calls: must be a whole number"),
        ({**PLAIN, "within": "0s"}, "needs within"),
        ({**PLAIN, "within": "367d"}, "needs within"),
        ({**PLAIN, "within": "1 week"}, "needs within"),
        ({**PLAIN, "cost": 1.0}, "needs unknown_cost"),
        ({**PLAIN, "cost": float("inf"), "unknown_cost": 1}, "cost: must be a number"),
        ({**PLAIN, "cost": 1.0, "unknown_cost": {"low": 1}}, "unknown_cost: must be a number, or a table"),
        ({**PLAIN, "cost": 1.0, "unknown_cost": {"other": 1, "huge": 2}}, "unknown_cost: must be"),
        ({**PLAIN, "cost": 1.0, "unknown_cost": -1}, "unknown_cost: must be"),
        ({**PLAIN, "per": "day"}, "per: must be one of together, tool, caller, both"),
        ({**PLAIN, "currency": 5}, "currency: must be a text"),
        ({**PLAIN, "match": {"moon": "x"}}, "unknown key 'match.moon'"),
        ({**PLAIN, "limit": 1}, "unknown key 'limit'"),
        ("x", "no table"),
    ],
)
def test_a_budget_that_cannot_be_understood_is_told_and_has_nothing_left(table: Any, mistake: str) -> None:
    (budget,) = budgets_of([table])
    assert any(mistake in found for found in budget.mistakes), budget.mistakes
    asked = budget.charge(tool(), "ann")
    assert again_s(EMPTY, asked, 0.0) is None


def counters(per: str) -> set[str]:
    (budget,) = budgets_of([{**PLAIN, "per": per}])
    tools = (tool(), tool(key="manifest:tools/other"))
    return {budget.charge(one, caller).counter for one in tools for caller in ("ann", "bob")}


def test_what_has_a_counter_of_its_own_is_what_the_budget_says() -> None:
    assert [len(counters(per)) for per in ("together", "tool", "caller", "both")] == [1, 2, 2, 4]
    assert [*Per] == ["together", "tool", "caller", "both"]


def test_attack_callers_cannot_write_themselves_into_another_ones_counter() -> None:
    (budget,) = budgets_of([{**PLAIN, "per": "both"}])
    found = {budget.charge(tool(key=key), caller).counter for key, caller in (("a", "b c"), ("a b", "c"))}
    assert len(found) == 2
    assert budget.charge(tool(), "\udcff").counter != budget.charge(tool(), "?").counter


def test_attack_a_projects_budget_never_counts_in_the_users_place() -> None:
    places = (
        "/home/u/config.toml:3 budget[0]",
        "/p/toolcrib.toml:1 budget[0]",
        "/p/toolcrib.toml budget[4]",
    )
    mine, theirs, moved = (budgets_of([PLAIN], [place])[0].id for place in places)
    assert mine != theirs
    assert theirs == moved, "where it stands in its file does not matter"
    reworded = budgets_of([{**PLAIN, "because": "better said"}], places[1:])[0].id
    assert reworded == theirs
    assert budgets_of([{**PLAIN, "calls": 3}], places[1:])[0].id != theirs


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ({"per_invocation": 0.1, "currency": "EUR"}, 100_000),
        ({"per_invocation": 0, "currency": "EUR"}, 0),
        ({"per_invocation": 1e-9, "currency": "EUR"}, 1),
        ({"per_invocation": 0.1, "currency": "USD"}, 500_000),
        ({"per_invocation": 0.1}, 500_000),
        # Attack: a cost that fills the budget up again, or that no sum gets over.
        ({"per_invocation": -5, "currency": "EUR"}, 500_000),
        ({"per_invocation": float("nan"), "currency": "EUR"}, 500_000),
        ({"per_invocation": float("inf"), "currency": "EUR"}, 500_000),
        ({"per_invocation": True, "currency": "EUR"}, 500_000),
        ("low", 10_000),
        ("unheard-of", 500_000),
        (None, 500_000),
        ([1], 500_000),
    ],
)
def test_a_call_costs_what_its_tool_declares_else_what_the_budget_says(cost: Any, expected: int) -> None:
    table = {"cost": 5, "currency": "EUR", "within": "1d", "because": "r"}
    (budget,) = budgets_of([{**table, "unknown_cost": {"other": 0.5, "low": 0.01}}])
    assert budget.mistakes == ()
    assert budget.charge(tool(notes=Notes(cost=cost)), "ann").cost == expected


def test_ten_dimes_are_a_dollar() -> None:
    asked, tally = charge(calls_max=None, cost_max=1_000_000, cost=100_000), EMPTY
    for _ in range(10):
        assert again_s(tally, asked, 5.0) == 0.0
        tally = taken(tally, asked, 5.0)
    assert again_s(tally, asked, 5.0) == pytest.approx(61.0)
    assert used(tally) == (10, 1_000_000)


def test_it_is_told_when_there_is_room_again_and_there_is_then() -> None:
    asked, tally = charge(), EMPTY
    for moment in (0.0, 10.0, 20.5):
        tally = taken(tally, asked, moment)
    wait = again_s(tally, asked, 30.0)
    assert wait is not None
    assert wait == pytest.approx(31.0)  # the first slot ends at 1, and counts a minute longer
    assert again_s(tally, asked, 30.0 + wait - 0.01) != 0.0
    assert again_s(tally, asked, 30.0 + wait) == 0.0
    assert again_s(EMPTY, charge(calls_max=0), 0.0) is None
    assert again_s(EMPTY, charge(cost_max=5, cost=6), 0.0) is None, "it alone is more"


def test_attack_a_clock_that_is_set_back_holds_nobody_for_longer_than_the_budgets_time() -> None:
    asked, tally = charge(calls_max=1), EMPTY
    tally = taken(tally, asked, 1e9)
    wait = again_s(tally, asked, 100.0)
    assert wait is not None
    assert 0 < wait <= 61.0
    later = budgets.current(tally, asked, 100.0)
    assert used(later) == (1, 0)


def test_what_is_given_back_is_there_again() -> None:
    asked = charge(calls_max=1, cost_max=10, cost=10)
    tally = taken(EMPTY, asked, 5.0)
    assert again_s(tally, asked, 5.0) != 0.0
    back = budgets.given_back(tally, asked, budgets.slot_of(asked, 5.0))
    assert again_s(back, asked, 5.0) == 0.0
    assert again_s(budgets.full(asked, 5.0), asked, 5.0) == pytest.approx(61.0)


@given(
    st.lists(st.floats(0, 500, allow_nan=False), max_size=60).map(sorted),
    st.integers(1, 5),
    st.sampled_from([1.0, 7.0, 60.0]),
)
def test_no_stretch_of_the_time_ever_holds_more_than_the_budget_says(
    moments: list[float], calls: int, within_s: float
) -> None:
    asked, tally, let = charge(calls_max=calls, within_s=within_s), EMPTY, []
    for moment in moments:
        if again_s(tally, asked, moment) == 0.0:
            tally = taken(tally, asked, moment)
            let.append(moment)
        assert len(tally.slots) <= budgets.SLOTS + 1
    for start in let:
        assert sum(start <= moment < start + within_s for moment in let) <= calls


@given(
    st.lists(st.tuples(st.integers(-5, 100), st.integers(0, 9), st.integers(0, 9)), max_size=9),
    st.floats(0, 200),
)
def test_counting_never_raises_and_what_is_free_is_free_when_it_was_told(slots: Any, now: float) -> None:
    tally, asked = Tally(slots=tuple(sorted(slots))), charge(calls_max=6)
    wait = again_s(tally, asked, now)
    assert wait is not None
    assert again_s(budgets.current(tally, asked, now), asked, now + wait + 1e-6) == 0.0


def test_a_budget_fits_as_a_rule_does() -> None:
    (budget,) = budgets_of([{**PLAIN, "match": {"name": "w*", "arguments": {"big": True}}}])
    assert isinstance(budget, Budget)
    assert budget.match.holds({"big": True}, "")
    assert not budget.match.holds({}, "")
