"""Facts about a function become a record."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_objects, texts
from toolcrib.formats import FORMATS, python
from toolcrib.model import CallFunction, Compiled, Needs, Reply

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def compiled(**more: Any) -> Compiled:
    facts = {
        "name": "add", "scope": "app/tools", "target": "app.tools:add", "path": "tools.py", "line": 7,
        "description": "Add.", "input_schema": SCHEMA, **more,
    }  # fmt: skip
    return python.compile_function(python.Facts(**facts))


def test_the_record_says_what_the_facts_say() -> None:
    found = compiled(code="c0de", timeout_s=2.0, output_schema={"type": "object"})
    (tool,) = found.tools
    assert found.problems == ()
    assert tool.key == "python:app%2Ftools/add"
    assert tool.invocation == CallFunction(name="app.tools:add", code="c0de")
    assert tool.reply is Reply.BLOCKS
    assert tool.needs == Needs(stated=True, timeout_s=2.0)
    assert (tool.origin.format, tool.origin.path, tool.origin.line) == ("python", "tools.py", 7)


def test_what_a_model_will_miss_is_said_with_its_place() -> None:
    problems = compiled(description=" ", untyped=("a",), examples=({"a": "x"}, {"a": 1})).problems
    assert [problem.code for problem in problems] == [
        "python.description",
        "python.untyped",
        "python.example",
    ]
    assert {(problem.path, problem.line, problem.name) for problem in problems} == {("tools.py", 7, "add")}


def test_no_file_is_ever_read_as_one() -> None:
    assert python.NAME not in FORMATS


@given(texts, texts, st.lists(json_objects, max_size=2))
def test_compiling_is_deterministic(name: str, description: str, examples: list[dict[str, Any]]) -> None:
    more = {"name": name, "description": description, "examples": tuple(examples)}
    assert compiled(**more) == compiled(**more)
