"""Our dataclasses behave as the standard's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib import engine, model, records
from toolcrib.calls import arguments, commands, replies
from toolcrib.records import changer, dataclass, maker, replace
from toolcrib.runtimes import Handed, _prepared
from toolcrib.sandbox import Start, _wire

RECORDS = [
    cls
    for cls in (
        *(value for value in vars(model).values() if isinstance(value, type)),
        engine.Begun, engine.Over, arguments.Checked, commands.Command, replies._Said, Handed,
        _prepared.Prepared, Start, _wire.Report,
    )
    if cls.__dict__.get("__dataclass_params__") is records._Params
]  # fmt: skip
"""Every class with a maker, and all others of the model."""
some_for_each = settings(max_examples=max(1, settings().max_examples // 10))
"""There are many of them."""


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


@dataclass(frozen=True, slots=True)
class InPlace:
    first: int
    second: int = 2


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


@dataclass(slots=True, eq=False)
class Counting:
    name: str
    times: int = 0
    seen: list[int] = dataclasses.field(default_factory=list)
    left: int = 3
    right: int = 4


def test_one_that_can_change_is_made_shown_and_copied_like_the_standard_one() -> None:
    for number in range(20):
        made, other = Counting("a", number), Counting("a", times=number)
        made.times += 1
        made.seen.append(number)
        assert (made.times, other.times, made.seen, other.seen) == (number + 1, number, [number], [])
        assert made == made
        assert other != Counting("a", number)
        assert len({made, other}) == 2
        assert repr(other) == f"Counting(name='a', times={number}, seen=[], left=3, right=4)"
        assert replace(other, left=5).left == 5
        assert copy.copy(made).seen is made.seen
        with pytest.raises(AttributeError):
            made.more = 1  # type: ignore[attr-defined]
        with pytest.raises(TypeError):
            Counting()  # type: ignore[call-arg]


def test_one_that_says_itself_what_is_equal_is_compared_so() -> None:
    @dataclass(frozen=True, slots=True)
    class Folded:
        text: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Folded) and self.text.lower() == other.text.lower()

        def __hash__(self) -> int:
            return hash(self.text.lower())

    for _ in range(20):
        assert Folded("A") == Folded("a")
        assert len({Folded("A"), Folded(text="a"), Folded("b")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Folded("a").text = "b"  # type: ignore[misc]


def test_one_that_says_what_is_equal_and_nothing_of_hashes_has_the_standard_s() -> None:
    @dataclass(frozen=True, slots=True)
    class Ours:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Ours)

    @dataclasses.dataclass(frozen=True, slots=True)
    class Theirs:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Theirs)

    assert (Ours(1) == Ours(2), hash(Ours(1))) == (Theirs(1) == Theirs(2), hash(Theirs(1)))


class Inheriting(Ours):
    """Without slots, so its values have a dictionary as well."""


def test_a_class_that_inherits_makes_its_own_values_before_and_after_the_methods_are_compiled() -> None:
    for number in range(20):
        made = Inheriting(a=number)
        made.__dict__["more"] = 1
        assert (type(made), made.a, made.b, made.c) == (Inheriting, number, 5, [])
        assert made == Inheriting(a=number)
        assert made != Ours(a=number)
        assert Ours(a=number) == Ours(a=number)
        assert replace(made, b=6).b == 6
        assert type(replace(made, b=6)) is Inheriting


def test_the_standard_decorator_can_inherit_from_one() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(Ours):
        f: int = 7

    assert (More(a=1).f, More(a=1, f=2).f, More(a=1).b) == (7, 2, 5)


def test_warming_changes_no_answer() -> None:
    nan = float("nan")
    one, other = Ours(a=nan, c=[1]), Ours(a=nan, c=[1])
    assert {one == other for _ in range(20)} == {True}  # the same object, as in tuples of the standard


def test_what_is_more_than_a_type_and_a_default_is_made_by_the_standard() -> None:
    @dataclass(frozen=True, slots=True)
    class OwnMethods:
        a: int
        b: int = dataclasses.field(default=3, init=False)

        def __hash__(self) -> int:
            return 42

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnMethods)

    assert hash(OwnMethods(1)) == 42
    assert OwnMethods(1) == OwnMethods(2)
    with pytest.raises(TypeError):
        OwnMethods(1, b=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass(frozen=True, slots=True)
        class Mutable:
            a: list[int] = []  # noqa: RUF012

    with pytest.raises(TypeError, match="non-default"):

        @dataclass(frozen=True, slots=True)
        class Misplaced:
            a: int = 1
            b: int  # type: ignore[misc]


def test_a_factory_that_fails_leaves_a_value_of_the_class() -> None:
    def fails() -> int:
        raise RuntimeError

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Failing:
        a: int
        b: int = 2
        c: int = 3
        d: int = dataclasses.field(default_factory=fails)

    for _ in range(12):
        value = Failing(a=1, d=4)
        with pytest.raises(RuntimeError):
            value.__init__(a=2)  # type: ignore[misc]
        assert type(value) is Failing
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.a = 5  # type: ignore[misc]


def test_replacing_a_field_of_a_record_that_checks_itself_checks_again() -> None:
    with pytest.raises(ValueError, match="negative"):
        replace(InOrder(1), first=-1)


@given(st.lists(given_fields, min_size=1, max_size=records._USES_MIN * 3))
def test_a_maker_makes_what_its_class_does_before_and_after_it_is_compiled(
    many: list[dict[str, Any]],
) -> None:
    make = maker(Ours)
    for fields in many:
        made = make(**fields)
        assert type(made) is Ours
        assert made == Ours(**fields)
        assert made.e == Ours(**fields).e
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.a = 1  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            del made.a


def test_a_maker_refuses_what_its_class_refuses_before_and_after_it_is_compiled() -> None:
    make: Any = maker(Ours)
    for _ in range(records._USES_MIN * 2):
        for args, kwargs in (((), {}), ((1,), {}), ((), {"a": 1, "z": 2})):
            with pytest.raises(TypeError):
                make(*args, **kwargs)
        assert make(a=1) == Ours(a=1)
    assert make(a=1).c is not make(a=1).c


def test_a_class_that_is_no_plain_record_is_its_own_maker() -> None:
    assert maker(InOrder) is InOrder
    assert maker(Theirs) is Theirs


def test_many_threads_may_use_a_maker_while_it_is_compiled() -> None:
    for _ in range(50):
        make = maker(InPlace)
        with ThreadPoolExecutor(4) as pool:
            assert all(found == InPlace(1, 3) for found in pool.map(make, [1] * 40, [3] * 40))


@given(st.lists(st.tuples(given_fields, values, values), min_size=1, max_size=records._USES_MIN * 3))
def test_a_changer_changes_what_replace_does_before_and_after_it_is_compiled(
    many: list[tuple[dict[str, Any], Any, Any]],
) -> None:
    change = changer(Ours, "d", "a")
    for fields, d, a in many:
        value = Ours(**fields)
        changed = change(value, d, a)
        assert type(changed) is Ours
        assert changed == replace(value, d=d, a=a)
        assert changed.e == value.e
        assert value == Ours(**fields)


def test_a_changer_takes_as_many_values_as_it_has_fields() -> None:
    change = changer(Ours, "d", "a")
    for _ in range(records._USES_MIN * 2):
        with pytest.raises((TypeError, ValueError)):
            change(Ours(a=1), 2)
        assert change(Ours(a=1), 2, 3) == Ours(a=3, d=2)


def values_of(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__slots__]


def outcome(make: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the type and the values of what is made, or the type of what is raised."""
    try:
        made = make(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - compared by the test
        return type(error)
    return type(made), values_of(made)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@some_for_each
@given(st.data())
def test_a_maker_makes_of_any_arguments_what_its_class_makes_or_raises(cls: Any, data: st.DataObject) -> None:
    names = list(cls.__slots__)
    make = maker(cls)
    chosen = data.draw(
        st.one_of(st.just(names), st.lists(st.sampled_from([*names, "none_of_it"]), unique=True))
    )
    kwargs = {name: data.draw(st.integers() | st.text(max_size=3)) for name in chosen}
    args = data.draw(st.one_of(st.just([]), st.lists(st.integers(), max_size=len(names) + 1)))
    for _ in range(records._USES_MIN * 2):
        assert outcome(make, args, kwargs) == outcome(cls, args, kwargs)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_what_a_maker_made_is_frozen_and_a_changer_changes_each_of_its_fields(cls: Any) -> None:
    names = list(cls.__slots__)
    make = maker(cls)
    fields = dict(zip(names, map(str, range(len(names))), strict=True))
    for _ in range(records._USES_MIN * 2):
        made = make(**fields)
        assert values_of(made) == [*map(str, range(len(names)))]
        for name in names:
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(made, name, 1)
            with pytest.raises(dataclasses.FrozenInstanceError):
                delattr(made, name)
    for name in names:
        change = changer(cls, name)
        for _ in range(records._USES_MIN * 2):
            changed = change(made, "new")
            assert (type(changed), values_of(changed)) == (cls, values_of(make(**{**fields, name: "new"})))
            assert values_of(made) == [*map(str, range(len(names)))]
