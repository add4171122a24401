"""Arguments are checked, and made what each format promises its tools."""

from __future__ import annotations

from typing import Any

import pytest

from toolwright.calls.arguments import checked
from toolwright.errors import Kind
from toolwright.model import Intake, NotCallable, Origin, Schema, Tool, ToolError

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "default": 10},
        "replace": {"type": "boolean"},
        "filter": {"type": "object", "properties": {"kind": {"type": "string", "default": "any"}}},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def tool(schema: dict[str, Any] | None = SCHEMA, **intake: Any) -> Tool:
    return Tool(
        key="x:y/t",
        name="t",
        scope="y",
        origin=Origin(format="x", path="/x"),
        invocation=NotCallable(reason=""),
        input_schema=None if schema is None else Schema.of(schema),
        intake=Intake(**intake),
    )


def message(found: object) -> str:
    assert isinstance(found, ToolError)
    assert found.kind is Kind.INVALID_ARGUMENTS
    return found.message


@pytest.mark.requirement(
    "skill.tools.arguments-validated", "manifest.schema.arguments", "executable.call.validated"
)
def test_arguments_that_do_not_fit_are_refused_with_all_complaints() -> None:
    assert message(checked(tool(), {})) == "query: is required"
    told = message(checked(tool(), {"query": 5, "limt": 1}))
    assert 'unknown name "limt"; did you mean "limit"?' in told
    assert "query: expected string, got integer 5" in told


@pytest.mark.requirement(
    "manifest.schema.no-defaults", "rye.schema.defaults", "capability.tool.input-default"
)
def test_defaults_are_filled_in_only_where_the_format_says_so() -> None:
    given = {"query": "a", "filter": {}}
    assert checked(tool(), given) == given
    filled = {"query": "a", "filter": {"kind": "any"}, "limit": 10}
    assert checked(tool(fill_defaults=True), given) == filled


@pytest.mark.requirement("executable.call.null-optional")
def test_null_for_an_optional_name_counts_as_absent_where_the_format_says_so() -> None:
    assert checked(tool(drop_null_optional=True), {"query": "a", "limit": None}) == {"query": "a"}
    assert message(checked(tool(), {"query": "a", "limit": None})) == "limit: expected integer, got null"
    assert "query" in message(checked(tool(drop_null_optional=True), {"query": None}))


@pytest.mark.requirement("skill.tools.arguments-validated")
@pytest.mark.parametrize("value", [True, "TRUE", "false", 0, 7])
def test_a_switch_takes_words_and_whole_numbers(value: object) -> None:
    given = {"query": "a", "replace": value}
    assert checked(tool(lenient_booleans=("replace",)), given) == given
    assert "replace" in message(
        checked(tool(lenient_booleans=("replace",)), {"query": "a", "replace": "yes"})
    )


@pytest.mark.requirement("rye.run.reserved-names")
def test_reserved_names_never_reach_the_tool() -> None:
    intake = {"reserved_names": ("cwd", "__*")}
    assert checked(tool(None, **intake), {"a": 1, "cwd": "/", "__x": 2}) == {"a": 1}
