"""When tools could write, compared with the times of files."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.appeared import How, Records
from toolcrib.catalog.writes import HELD_MAX, SETUPS_MAX, SPANS_MAX, Past, Writes, appearance_of, joined
from toolcrib.paths import SETTLED_NS, TICKS_NS

FINE = 1_700_000_000_123_456_789
"""A time as file systems give it that count in nanoseconds."""
S = 1_000_000_000
SPANS = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**11)).map(lambda at: (at[0], at[0] + at[1]))
)


@given(SPANS, st.integers(1, 8))
def test_joined_spans_are_few_in_order_and_hold_all_that_there_was(
    spans: list[tuple[int, int]], count_max: int
) -> None:
    found = joined(spans, count_max)
    assert len(found) <= count_max
    assert list(found) == sorted(found)
    assert all(ended < began for (_, ended), (began, _) in pairwise(found))
    for began, ended in spans:
        assert any(at <= began and ended <= until for at, until in found)


def test_the_spans_that_are_closest_together_become_one() -> None:
    assert joined([(0, S), (2 * S, 3 * S), (10 * S, 11 * S)], 2) == ((0, 3 * S), (10 * S, 11 * S))


@pytest.mark.parametrize(
    ("changed", "is_during"),
    [
        (FINE, True),
        (FINE + S, True),
        (FINE + S + 1, False),
        (FINE - TICKS_NS, True),
        (FINE - TICKS_NS - 1, False),
        (FINE // S * S, True),
        (FINE // S * S - SETTLED_NS, False),
    ],
)
def test_a_change_counts_as_made_in_a_run_by_the_clock_of_its_file_system(
    changed: int, is_during: bool
) -> None:
    assert Writes(spans=((0, S), (FINE, FINE + S))).ran_at(changed) is is_during


def test_nothing_that_was_held_and_no_root_itself_counts_as_reached() -> None:
    writes = Writes(roots=("/p",), held=frozenset({"/p/groups", "/p/a/tools.json"}))
    assert writes.reaches("/p/x")
    assert not any(
        map(writes.reaches, ("/p", "/", "/p-b/x", "/p/groups", "/p/groups/x/y", "/p/a/tools.json"))
    )
    assert writes.reaches_folder("/p/b")
    assert not any(map(writes.reaches_folder, ("/p/a", "/p/groups")))


def test_what_is_kept_of_runs_is_bounded_and_never_less(tmp_path: Path) -> None:
    state = tmp_path / "state"
    past = Past(str(state))
    now = time.time_ns()
    for number in range(SETUPS_MAX + 5):
        held = frozenset({"/p/always", f"/p/{number}"})
        past.add(
            Writes(roots=("/p",), held=held, tools=("t",), spans=((now + number * S, now + number * S),))
        )
    for number in range(SPANS_MAX + 5):
        at = now + number * 10 * S
        past.add(Writes(roots=("/q",), tools=("t",), spans=((at, at),)))
    found = Past(str(state)).all()
    assert len(found) == SETUPS_MAX
    assert max(len(each.spans) for each in found) == SPANS_MAX
    for number in range(SETUPS_MAX + 5):
        assert any(each.reaches("/p/x") and each.ran_at(now + number * S) for each in found)
    assert not any(each.reaches("/p/always") for each in found)
    assert (state / "writes.json").stat().st_mode & 0o777 == 0o600
    past.add(Writes(roots=("/r",), held=frozenset(map(str, range(HELD_MAX + 1))), spans=((now, now),)))
    assert [each.held for each in past.all() if each.roots == ("/r",)] == [frozenset()]


def test_what_was_kept_and_is_damaged_or_absent_is_nothing(tmp_path: Path) -> None:
    past = Past(str(tmp_path))
    assert past.all() == ()
    for content in (b"", b"{}", b"[1]", b'[{"roots": 1}]'):
        (tmp_path / "writes.json").write_bytes(content)
        assert past.all() == ()
    assert Past(None).all() == ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p" / "a").mkdir(parents=True)
    (tmp_path / "p" / "a" / "tools.json").write_text("{}", "utf-8")
    return tmp_path / "p"


def test_a_file_is_told_before_the_folders_on_its_way(folder: Path, tmp_path: Path) -> None:
    records = Records(str(tmp_path / "state"))
    writes = [Writes(roots=(str(folder),), tools=("t",), spans=((0, time.time_ns()),))]
    path = folder / "a" / "tools.json"
    found = appearance_of(str(path), records, writes)
    assert found is not None
    assert (found.path, found.how, found.tools) == (str(path), How.CHANGED, ("t",))
    began = time.time_ns() + 2 * SETTLED_NS
    os.rename(folder / "a", folder / "b")
    at = os.stat(folder / "b").st_ctime_ns
    assert began > at
    writes = [Writes(roots=(str(folder),), tools=("t",), spans=((at, at),))]
    held = [Writes(roots=(str(folder),), held=frozenset({str(folder / "b")}), spans=((at, at),))]
    moved = appearance_of(f"{folder}/b/", records, writes)
    assert moved is not None
    assert (moved.path, moved.how) == (f"{folder}/b/", How.MOVED)
    assert appearance_of(f"{folder}/b/", records, held) is None
    assert appearance_of("/", records, writes) is None
    assert appearance_of(str(folder / "none"), records, writes) is None
