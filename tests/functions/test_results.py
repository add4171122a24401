"""What functions return becomes plain JSON, or is refused."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from tests.strategies import json_values
from toolcrib.functions import results
from toolcrib.model import ImageBlock, TextBlock

Pair = namedtuple("Pair", "left right")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Held:
    _own: int
    when: date


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Held(1, date(2026, 1, 31)), {"_own": 1, "when": "2026-01-31"}),
        ([Held(1, date(2026, 1, 31))], [{"_own": 1, "when": "2026-01-31"}]),
        (Pair(1, {2}), {"left": 1, "right": [2]}),
        ({3, 1, 2}, [1, 2, 3]),
        ((1, 2), [1, 2]),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ({1: "a", Colour.RED: "b"}, {"1": "a", "red": "b"}),
        (Colour.RED, "red"),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00+00:00"),
        (time(12), "12:00:00"),
        (timedelta(seconds=2), 2.0),
        (Decimal("1.20"), "1.20"),
        (Path("a/b"), "a/b"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"inner": b"hi"}, {"inner": "aGk="}),
        (float("nan"), None),
        (2**80, 2**80),
        ({"big": [2**80], "when": date(2026, 1, 31)}, {"big": [2**80], "when": "2026-01-31"}),
        ("\ud800", "\ud800"),
        (["\ud800"], ["?"]),
    ],
)
def test_values_become_plain_json(value: Any, expected: Any) -> None:
    assert results.as_data(value) == expected


@given(json_values)
def test_json_stays_what_it_is(value: Any) -> None:
    assert results.as_data(value) == value


def test_nothing_of_the_hosts_own_goes_on() -> None:
    inner: list[int] = [1]
    found = results.as_data({"a": inner})
    assert isinstance(found, dict)
    found["a"].append(2)
    assert inner == [1]


def test_what_has_no_json_form_is_refused_without_its_address() -> None:
    class Secret:
        pass

    around: list[Any] = []
    around.append(around)
    for value, words in ((Secret(), "Secret"), ({"a": [Secret()]}, "Secret"), (around, "contains itself")):
        with pytest.raises(results.Unwritable, match=words) as caught:
            results.as_data(value)
        assert "0x" not in str(caught.value)


class Broken:
    def model_dump(self, **_options: object) -> Any:
        raise AttributeError("something of the object's own")


def test_an_object_that_cannot_be_written_is_named_by_its_type() -> None:
    for value in (Broken(), {"a": [Broken()]}):
        with pytest.raises(results.Unwritable) as raised:
            results.as_data(value)
        text = "its result holds a Broken, which cannot be written as JSON: AttributeError"
        assert str(raised.value) == text


def test_blocks_stay_blocks_and_are_not_mixed_with_data() -> None:
    image = ImageBlock(data="aGk=", media_type="image/png")
    assert results.as_blocks(image) == (image,)
    assert results.as_blocks(["see", image]) == (TextBlock(text="see"), image)
    assert results.as_blocks(["no", "blocks"]) == ()
    assert results.bytes_of((image, TextBlock(text="four"))) == 8
    with pytest.raises(results.Unwritable, match="mixes"):
        results.as_blocks([image, 1])
