"""A few of the races between verifying and replacing (``races.py``); `make races` runs ten thousand."""

from __future__ import annotations

import pytest

from tests.trust import races

COUNT = 300
ROUNDS_MAX = 10


@pytest.mark.requirement("rye.run.same-bytes")
@pytest.mark.battery("G09")
@pytest.mark.parametrize("subject", races.subjects())
def test_no_race_makes_unverified_bytes_run(subject: str) -> None:
    each = COUNT * races.SUBJECTS[subject] // (sum(races.SUBJECTS.values()) * len(races.KINDS))
    tallies: list[races.Tally] = []
    for first in range(0, ROUNDS_MAX * len(races.KINDS), len(races.KINDS)):
        tallies += [races.race(kind, subject, each, number) for number, kind in enumerate(races.KINDS, first)]
        if any(tally.ran for tally in tallies) and any(tally.refused for tally in tallies):
            break  # a busy machine may need more of them to win one
    assert [tally.unverified for tally in tallies] == [0] * len(tallies)
    assert [tally.other for tally in tallies] == [0] * len(tallies), tallies
    # Calls got through while the replacing went on, and others met it.
    assert sum(tally.ran for tally in tallies) > 0
    assert sum(tally.refused for tally in tallies) > 0


@pytest.mark.battery("G09")
def test_verifying_bytes_and_then_starting_the_path_loses_the_same_race() -> None:
    assert races.naive(5_000, 1).unverified > 0
