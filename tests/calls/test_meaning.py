"""What a tool makes of its arguments: declared defaults at any depth, switches as what they do."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.journal import work
from toolcrib.calls.meaning import meant
from toolcrib.model import Intake, Schema, Tool

PART = {"type": "object", "properties": {"mode": {"default": "safe"}, "tags": {"default": ["a"]}}}
SCHEMA = {
    "type": "object",
    "properties": {"force": {"default": True}, "one": PART, "many": {"type": "array", "items": PART}},
}


def tool(schema: dict[str, Any] | None = None, **intake: Any) -> Tool:
    held = None if schema is None else Schema.of(schema)
    return replace(work.tool(), input_schema=held, intake=Intake(**intake))


def test_declared_defaults_stand_for_what_is_absent_and_for_nothing_else() -> None:
    filled = {"mode": "safe", "tags": ["a"]}
    given: dict[str, Any] = {"force": None, "one": {}, "many": [{}, {"mode": "wild", "tags": []}]}
    assert meant(tool(SCHEMA), given) == {
        "force": None,
        "one": filled,
        "many": [filled, {"mode": "wild", "tags": []}],
    }
    assert given["one"] == {}, "what runs is as it came"
    assert meant(tool(SCHEMA), {}) == {"force": True}, "nobody gave the part that has defaults inside"


@pytest.mark.parametrize("schema", [None, {"type": "object"}, {"properties": {"force": {"type": "boolean"}}}])
def test_arguments_that_say_what_they_mean_are_the_same_ones(schema: dict[str, Any] | None) -> None:
    given = {"force": "TRUE"}
    assert meant(tool(schema), given) is given


@pytest.mark.parametrize(
    ("value", "does"), [("TRUE", True), ("false", False), (7, True), (0, False), ("yes", "yes"), (1.5, 1.5)]
)
def test_switches_are_what_they_do(value: object, does: object) -> None:
    assert meant(tool(lenient_booleans=("force",)), {"force": value}) == {"force": does}
