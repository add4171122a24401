"""Anthropic's budgets, which hold for a request as a whole; more stands in tests/conformance/dialects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects import checker
from tests.strategies import make_tool
from toolcrib.dialects import DIALECTS
from toolcrib.model import Declared, DeclareOptions, Tool, ToolMode

ANTHROPIC = DIALECTS["anthropic"]


def strictly(tools: list[Tool]) -> Declared:
    declared = ANTHROPIC.declare(tools, DeclareOptions(mode=ToolMode.STRICT))
    assert checker.check("anthropic", declared.payload) == []
    return declared


def with_properties(count: int, item: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": item for number in range(count)}, **more}


@pytest.mark.parametrize(
    ("schema", "fit", "because"),
    [
        (with_properties(0, {}), 20, "the request has room for 0 more strict tools, this tool needs 1"),
        (
            with_properties(7, {"type": "string"}),
            3,
            "the request has room for 3 more optional parameters, this tool needs 7",
        ),
        (
            with_properties(3, {"type": ["string", "null"]}, required=["p0", "p1", "p2"]),
            5,
            "the request has room for 1 more union parameters, this tool needs 3",
        ),
    ],
)
def test_tools_beyond_a_budget_are_declared_without_strict(schema: Any, fit: int, because: str) -> None:
    declared = strictly([make_tool(f"t{number}", schema) for number in range(22)])
    assert [tool.get("strict", False) for tool in declared.payload] == [True] * fit + [False] * (22 - fit)
    losses = [loss for loss in declared.losses if loss.keyword == "strict"]
    assert len(losses) == 22 - fit
    assert losses[0].what == f"declared without it: {because}"
    assert declared.payload[fit]["input_schema"] == schema


def test_a_small_tool_still_fits_after_one_that_did_not() -> None:
    large = make_tool("large", with_properties(25, {"type": "string"}))
    small = make_tool("small", with_properties(1, {"type": "string"}))
    assert [tool.get("strict", False) for tool in strictly([large, small]).payload] == [False, True]


def test_more_deferred_tools_than_anthropic_takes_are_left_out() -> None:
    tools = [make_tool(f"t{number}") for number in range(10_002)]
    declared = ANTHROPIC.declare(tools, DeclareOptions(deferred=frozenset(tool.key for tool in tools[1:])))
    assert len(declared.payload) == 10_002
    assert [item.because for item in declared.left_out] == ["Anthropic takes at most 10000 deferred tools"]


def test_properties_named_like_keywords_do_not_confuse_the_budget() -> None:
    inner = {"type": "object", "properties": {"type": {"type": "string"}, "anyOf": {"type": "string"}}}
    names = {"properties": inner, "additionalProperties": inner, "required": {"type": "string"}}
    declared = strictly([make_tool("t", {"type": "object", "properties": names, "required": list(names)})])
    assert declared.payload[0]["strict"] is True
