"""The native makers and changers of records: values as the functions in Python make them, and no leaks."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright import app, engine, model, records
from toolwright.calls import arguments, commands, replies
from toolwright.records import changer, dataclass, maker
from toolwright.runtimes import Handed, _prepared
from toolwright.sandbox import Start, _wire

pytestmark = pytest.mark.skipif(
    records._NATIVE is None, reason="_values was not built; a C compiler builds it"
)

RECORDS = [
    cls
    for cls in (
        *(value for value in vars(model).values() if isinstance(value, type)),
        engine.Begun, engine.Over, arguments.Checked, commands.Command, replies._Said, Handed,
        _prepared.Prepared, Start, _wire.Report,
    )
    if cls.__dict__.get("__dataclass_params__") is records._Params
]  # fmt: skip
"""Every class that a maker is made of, and all the others of the model."""
some_for_each = settings(max_examples=max(1, settings().max_examples // 10))
"""There are many of them."""


def in_python(cls: Any) -> Callable[..., Any]:
    """The maker that stands in where the native one was not built."""
    return records._warming(records._make, cls, records._maker_text)


def changes_in_python(cls: Any, *fields: str) -> Callable[..., Any]:
    return records._warming(
        records._change, cls, lambda cls, names: records._changer_text(cls, names, fields), fields
    )


def is_native(function: Any) -> bool:
    return type(function) is type(len)


def values_of(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__slots__]


def outcome(make: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The type and the values of what is made, or the type of what is raised."""
    try:
        made = make(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - compared by the test
        return type(error)
    return type(made), values_of(made)


def test_the_records_that_are_made_for_every_call_are_made_natively() -> None:
    assert len(RECORDS) > 60
    for made in (
        app._call, engine._begun, engine._over, engine._as_promised, engine._as_checked, replies._result,
        replies._saying, _wire._report,
    ):  # fmt: skip
        assert is_native(made)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@some_for_each
@given(st.data())
def test_it_makes_of_any_arguments_what_the_one_in_python_makes_or_raises(
    cls: Any, data: st.DataObject
) -> None:
    names = [*records._written(cls)]
    native, plain = maker(cls), in_python(cls)
    assert is_native(native)
    for _ in range(3):
        chosen = data.draw(
            st.one_of(st.just(names), st.lists(st.sampled_from([*names, "none_of_it"]), unique=True))
        )
        kwargs = {name: data.draw(st.integers() | st.text(max_size=3)) for name in chosen}
        args = data.draw(st.one_of(st.just([]), st.lists(st.integers(), max_size=len(names) + 1)))
        found = outcome(native, args, kwargs)
        assert found == outcome(plain, args, kwargs) == outcome(cls, args, kwargs)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_all_of_it_by_name_is_filled_and_frozen(cls: Any) -> None:
    names = [*records._written(cls)]
    native = maker(cls)
    made = native(**dict(zip(names, map(str, range(len(names))), strict=True)))
    assert values_of(made) == [*map(str, range(len(names)))]
    assert made == made
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(made, name)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@some_for_each
@given(st.data())
def test_it_changes_what_the_one_in_python_changes(cls: Any, data: st.DataObject) -> None:
    names = [*records._written(cls)]
    fields = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    made = maker(cls)(**dict(zip(names, map(str, range(len(names))), strict=True)))
    before = values_of(made)
    native, plain = changer(cls, *fields), changes_in_python(cls, *fields)
    assert is_native(native)
    given_ = data.draw(st.lists(st.integers(), min_size=len(fields), max_size=len(fields)))
    for _ in range(3):
        changed = native(made, *given_)
        assert (type(changed), values_of(changed)) == (cls, values_of(plain(made, *given_)))
        assert values_of(made) == before
    for wrong in ([], [made, *given_, 1], [made, *given_[1:], 1, 2]):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            native(*wrong)
        with pytest.raises((TypeError, ValueError, AttributeError)):
            plain(*wrong)
    with pytest.raises(TypeError):
        native(made, *given_, none_of_it=1)


# -- factories ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    a: Any = 1
    b: list[int] = dataclasses.field(default_factory=list)
    c: dict[str, int] = dataclasses.field(default_factory=dict)


def test_what_a_factory_makes_is_each_value_s_own() -> None:
    make = maker(Fresh)
    one, other = make(), make(a=2)
    assert (one.b, one.c, other.a) == ([], {}, 2)
    assert one.b is not other.b
    assert one.c is not other.c
    given_ = [1]
    assert make(b=given_).b is given_


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_a_factory_that_raises_leaves_no_value_behind(raised: type[BaseException]) -> None:
    def fails() -> int:
        raise raised

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Failing:
        a: Any
        b: Any = dataclasses.field(default_factory=list)
        c: Any = dataclasses.field(default_factory=fails)

    make = maker(Failing)
    shared = object()
    assert make(a=shared, c=1).a is shared
    before = sys.getrefcount(shared)
    for _ in range(100):
        with pytest.raises(raised):
            make(a=shared)
    gc.collect()
    assert sys.getrefcount(shared) == before
    assert not [one for one in gc.get_objects() if type(one) is Failing]


# -- classes that are laid out otherwise --------------------------------------------------------------------


class Inheriting(Fresh):
    """Its values have a dictionary as well."""


class Slotted(Fresh):
    __slots__ = ("more",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InDict:
    a: Any = 1
    b: Any = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    a: int
    b: int = 2

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


@dataclass(slots=True, eq=False)
class Open:
    a: Any
    b: Any = 2
    c: list[int] = dataclasses.field(default_factory=list)


def test_a_class_that_inherits_or_is_the_standard_s_is_its_own_maker() -> None:
    for cls in (Inheriting, Slotted, InDict, Checked):
        assert maker(cls) is cls


@pytest.mark.parametrize("cls", [Inheriting, Slotted, InDict, Checked])
def test_a_class_that_is_none_of_ours_is_changed_in_python(cls: Any) -> None:
    change = changer(cls, "a")
    assert not is_native(change)
    for number in range(records._USES_MIN):
        changed = change(cls(a=number), number + 1)
        assert (type(changed), changed.a) == (cls, number + 1)


def test_a_value_of_a_class_that_inherits_is_changed_in_python_and_keeps_its_class() -> None:
    change = changer(Fresh, "a")
    assert is_native(change)
    assert change(Fresh(a=1), 2).a == 2
    for _ in range(records._USES_MIN):
        changed = change(Inheriting(a=1, b=[3]), 2)
        assert (changed.a, changed.b) == (2, [3])


def test_one_that_can_change_is_changed_and_its_empty_slots_are_told() -> None:
    change = changer(Open, "b")
    made = Open(1)
    assert (change(made, 5).a, change(made, 5).b, made.b) == (1, 5, 2)
    del made.a
    for _ in range(records._USES_MIN * 2):
        with pytest.raises(AttributeError):
            change(made, 5)


def native_maker(cls: type, names: tuple[str, ...], slow: Callable[..., Any]) -> Any:
    """Of any class: what the native one is told of it is what we say."""
    missing = (dataclasses.MISSING,) * len(names)
    return records._NATIVE.maker(cls, slow, lambda: (names, missing, missing, (), True), dataclasses.MISSING)


class Computed:
    __slots__ = ("_hidden",)

    def __init__(self, a: Any = 0) -> None:
        self._hidden = a

    @property
    def a(self) -> Any:
        return self._hidden


class WithDict:
    def __init__(self, a: Any = 0) -> None:
        self.a = a


class Missing:
    __slots__ = ("other",)

    def __init__(self, a: Any = 0) -> None:
        self.other = a


@pytest.mark.parametrize("cls", [Computed, WithDict, Missing, int, type("Empty", (), {})])
def test_a_class_without_a_slot_of_that_name_is_made_by_the_function_in_python(cls: Any) -> None:
    used: list[Any] = []

    def slow(*args: Any, **named: Any) -> Any:
        used.append((args, named))
        return cls()

    make = native_maker(cls, ("a",), slow)
    for _ in range(3):
        assert type(make(5)) is cls
        assert type(make(a=6)) is cls
    assert used == [((5,), {}), ((), {"a": 6})] * 3


@pytest.mark.parametrize(
    "told", [None, (), ("a",), (("a",), (), (), (), True), (("a",) * 65, (1,) * 65, (1,) * 65, (), True), 5]
)
def test_a_class_of_which_nothing_sensible_is_told_is_made_by_the_function_in_python(told: Any) -> None:
    make = records._NATIVE.maker(Open, lambda *_: "slowly", lambda: told, dataclasses.MISSING)
    assert [make(1), make(2)] == ["slowly", "slowly"]


def test_what_is_told_may_fail_once_for_good_and_an_interrupt_comes_out_and_is_tried_again() -> None:
    raised: list[type[BaseException]] = [KeyboardInterrupt, SystemExit, RuntimeError]

    def learn() -> Any:
        raise raised.pop(0)

    make = records._NATIVE.maker(Open, lambda *_: "slowly", learn, dataclasses.MISSING)
    for each in (KeyboardInterrupt, SystemExit):
        with pytest.raises(each):
            make(1)
    assert [make(1), make(2)] == ["slowly", "slowly"]
    assert raised == []


def test_places_in_the_code_that_name_other_fields_do_not_get_into_each_others_way() -> None:
    make = maker(Fresh)
    named: dict[str, Any] = {"c": {"y": 1}, "a": 7}
    for _ in range(50):
        assert (make(a=1).a, make(b=[2]).b, make(c={"x": 3}).c) == (1, [2], {"x": 3})
        one, other = make(a=1, b=[2]), make(b=[2], a=1)
        assert (one.a, one.b) == (other.a, other.b) == (1, [2])
        made = make(**named)  # the tuple of the names is new each time
        assert (made.a, made.b, made.c) == (7, [], {"y": 1})
        with pytest.raises(TypeError):
            make(x=1)  # type: ignore[call-arg]


# -- nothing is lost ----------------------------------------------------------------------------------------


def _pages() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="it is Linux that tells")
def test_a_hundred_thousand_values_keep_no_reference_and_no_memory() -> None:
    make, change, in_order = maker(Fresh), changer(Fresh, "a", "c"), maker(Open)
    shared, listed = object(), [1]
    named: dict[str, Any] = {"a": shared}

    def often(times: int) -> None:
        for _ in range(times):
            made = make(a=shared, b=listed)
            change(made, shared, listed)
            make(a=shared)
            in_order(shared, listed)
            make(**named)  # the tuple of the names is new each time
            with suppress(TypeError):
                make(a=shared, x=1)  # type: ignore[call-arg]

    often(1000)
    total = getattr(sys, "gettotalrefcount", lambda: 0)
    before = (sys.getrefcount(shared), sys.getrefcount(listed), sys.getrefcount(None))
    pages, references = _pages(), total()
    often(100_000)
    assert (sys.getrefcount(shared), sys.getrefcount(listed)) == before[:2]
    assert abs(sys.getrefcount(None) - before[2]) < 1000
    assert abs(total() - references) < 1000
    assert (_pages() - pages) * os.sysconf("SC_PAGE_SIZE") < 4 << 20


def test_a_maker_that_nobody_uses_any_more_lets_go_of_what_it_held() -> None:
    shared = object()

    def slow(*_: object) -> object:
        return shared

    before = sys.getrefcount(slow)
    for _ in range(100):
        make = native_maker(Open, ("a", "b", "c"), slow)
        make(1, 2, 3)
        make(a=1, b=2, c=3)
        make(1)
        del make
    assert sys.getrefcount(slow) == before
