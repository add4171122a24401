"""Our frozen dataclasses behave as the standard's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright import records
from toolwright.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    a: Any
    b: Any = 5
    c: list[int] = dataclasses.field(default_factory=list)
    d: Any = dataclasses.field(default="secret", repr=False)
    e: Any = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    a: Any
    b: Any = 5
    c: list[int] = dataclasses.field(default_factory=list)
    d: Any = dataclasses.field(default="secret", repr=False)
    e: Any = dataclasses.field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class InOrder:
    first: int
    second: int = 2

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("negative")


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    first: int


values = st.none() | st.integers() | st.text(max_size=5) | st.tuples(st.integers())
given_fields = st.fixed_dictionaries(
    {"a": values},
    optional={"b": values, "c": st.lists(st.integers(), max_size=2), "d": values, "e": values},
)


@given(given_fields, given_fields)
def test_it_is_made_compared_shown_and_copied_like_the_standard_one(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    ours, theirs = Ours(**one), Theirs(**one)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert (ours == Ours(**other)) is (theirs == Theirs(**other))
    pickled = pickle.loads(pickle.dumps(ours))  # noqa: S301 - our own bytes
    for again in (copy.copy(ours), copy.deepcopy(ours), pickled):
        assert dataclasses.asdict(again) == dataclasses.asdict(ours)
    ours_changed, theirs_changed = replace(ours, **other), dataclasses.replace(theirs, **other)
    assert dataclasses.asdict(ours_changed) == dataclasses.asdict(theirs_changed)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)  # the first one is as it was


@given(given_fields, given_fields)
def test_equal_ones_have_equal_hashes(one: dict[str, Any], other: dict[str, Any]) -> None:
    made = [Ours(**{**fields, "c": tuple(fields.get("c", ()))}) for fields in (one, other)]
    if made[0] == made[1]:
        assert hash(made[0]) == hash(made[1])
    assert hash(made[0]) == hash(replace(made[0]))


def test_nothing_of_it_can_be_changed() -> None:
    ours = Ours(a=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ours.a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del ours.a
    with pytest.raises(dataclasses.FrozenInstanceError):
        ours.other = 2  # type: ignore[attr-defined]
    assert not hasattr(ours, "__dict__")


def test_each_gets_a_list_of_its_own() -> None:
    assert Ours(a=1).c is not Ours(a=1).c


@pytest.mark.parametrize("wrong", [{}, {"a": 1, "x": 2}])
def test_wrong_fields_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Ours(**wrong)
    with pytest.raises(TypeError, match="has no field 'x'"):
        replace(Ours(a=1), x=2)  # type: ignore[call-arg]


def test_positions_and_what_follows_the_constructor_count() -> None:
    assert InOrder(1) == InOrder(1, 2) == InOrder(second=2, first=1)
    other: object = Ours(a=1)
    assert InOrder(1) != other
    with pytest.raises(ValueError, match="negative"):
        InOrder(-1)


def test_without_equality_two_are_never_the_same() -> None:
    one = Same(1)
    assert one == one
    assert one != Same(1)


def test_a_class_that_is_not_frozen_is_the_standard_s_own() -> None:
    @records.dataclass
    class Open:
        a: int = 1

    made = Open()
    made.a = 2
    assert made == Open(2)
