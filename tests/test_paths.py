"""Paths as texts, and what the times of files tell."""

from __future__ import annotations

import pytest

from toolcrib.paths import SETTLED_NS, is_below, is_settled


@pytest.mark.battery("C05")
@pytest.mark.parametrize(
    ("path", "below"),
    [("/proj", True), ("/proj/file", True), ("/proj-evil/file", False), ("/pro", False), ("/", False)],
)
def test_c05_a_root_holds_whole_components_only(path: str, below: bool) -> None:
    assert is_below(path, ["/proj"]) is below
    assert is_below(path, ["/"])
    assert not is_below(path, ["", ""])


MILLISECOND, TICKS = 1_000_000, 50_000_000
THEN = 1_800_000_000_000_000_000


def test_a_file_that_changed_shortly_before_it_was_looked_at_may_change_again_unseen() -> None:
    for changed in (THEN, THEN + 1, THEN + MILLISECOND):
        assert not is_settled(changed, changed)
        assert not is_settled(changed, changed + SETTLED_NS - 1)
        assert is_settled(changed, changed + SETTLED_NS)


def test_by_our_own_clock_a_few_ticks_are_enough_where_times_are_fine() -> None:
    fine = THEN + 4_567_891
    assert not is_settled(fine, fine + TICKS - 1, by_our_clock=True)
    assert is_settled(fine, fine + TICKS, by_our_clock=True)
    assert not is_settled(fine, fine + TICKS)


@pytest.mark.parametrize("step", [MILLISECOND, 10 * MILLISECOND, 1_000 * MILLISECOND, 2_000 * MILLISECOND])
def test_where_times_may_be_coarse_our_own_clock_makes_nothing_settled(step: int) -> None:
    coarse = THEN // step * step
    assert not is_settled(coarse, coarse + SETTLED_NS - 1, by_our_clock=True)
    assert is_settled(coarse, coarse + SETTLED_NS, by_our_clock=True)


def test_what_changed_after_it_was_looked_at_is_not_settled() -> None:
    """A clock was set back, or the times are another machine's."""
    for by_our_clock in (False, True):
        assert not is_settled(THEN + 1, THEN, by_our_clock=by_our_clock)
        assert not is_settled(THEN + 3600 * SETTLED_NS, THEN, by_our_clock=by_our_clock)
