"""What holds for every dialect, whatever the tools: nothing raises, payloads are legal, names lead back."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.dialects import checker
from tests.strategies import json_objects, json_values, make_tool, scalars, toolsets
from toolcrib.dialects import DIALECTS
from toolcrib.errors import UsageError
from toolcrib.model import DeclareOptions, NameMap, Role, Tool, ToolMode

thorough = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def names_of(dialect: str, payload: list[Any]) -> list[str]:
    """The names that a payload declares, provider's own tools aside."""
    if dialect == "gemini":
        return [function["name"] for tool in payload for function in tool["functionDeclarations"]]
    if dialect in ("openai", "ollama"):
        return [tool["function"]["name"] for tool in payload]
    return [tool["name"] for tool in payload if "tool_search" not in tool.get("type", "")]


def message(dialect: str, spoken: str, arguments: dict[str, Any]) -> Any:
    """A model's call, as the provider sends it."""
    text = json.dumps(arguments)
    return {
        "openai": {
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": spoken, "arguments": text}}]
        },
        "openai-responses": {
            "output": [{"type": "function_call", "call_id": "c1", "name": spoken, "arguments": text}]
        },
        "anthropic": {"content": [{"type": "tool_use", "id": "c1", "name": spoken, "input": arguments}]},
        "gemini": {"parts": [{"functionCall": {"id": "c1", "name": spoken, "args": arguments}}]},
        "ollama": {
            "message": {"tool_calls": [{"id": "c1", "function": {"name": spoken, "arguments": arguments}}]}
        },
        "mcp": {"id": "c1", "method": "tools/call", "params": {"name": spoken, "arguments": arguments}},
    }[dialect]


options = st.builds(
    DeclareOptions, mode=st.sampled_from([ToolMode.PLAIN, ToolMode.STRICT]), examples=st.booleans()
)


@thorough
@given(data=st.data(), toolset=toolsets(), chosen=options)
def test_a_payload_keeps_every_rule_of_its_provider(
    data: st.DataObject, toolset: list[Tool], chosen: DeclareOptions
) -> None:
    deferred = frozenset(data.draw(st.sets(st.sampled_from([tool.key for tool in toolset] or ["none"]))))
    for name, dialect in DIALECTS.items():
        declared = dialect.declare(toolset, replace(chosen, deferred=deferred))
        assert (name, checker.check(name, declared.payload)) == (name, [])


@thorough
@given(toolset=toolsets(json_objects), mode=st.sampled_from(ToolMode))
def test_a_schema_that_is_none_never_raises_and_harms_no_neighbour(
    toolset: list[Tool], mode: ToolMode
) -> None:
    good = make_tool("good_neighbour", {"type": "object", "properties": {"a": {"type": "string"}}})
    for name, dialect in DIALECTS.items():
        declared = dialect.declare([*toolset, good], DeclareOptions(mode=mode))
        assert good.key in declared.names.keys.values()
        if mode is not ToolMode.RECORDED:
            assert (name, checker.check(name, declared.payload)) == (name, [])


@thorough
@given(toolset=toolsets(), arguments=json_objects, mode=st.sampled_from([ToolMode.PLAIN, ToolMode.RECORDED]))
def test_a_call_comes_back_to_the_tool_it_was_declared_for(
    toolset: list[Tool], arguments: dict[str, Any], mode: ToolMode
) -> None:
    keys = {tool.key for tool in toolset if tool.role is Role.TOOL}
    for name, dialect in DIALECTS.items():
        declared = dialect.declare(toolset, DeclareOptions(mode=mode))
        assert sorted(names_of(name, declared.payload)) == sorted(declared.names.keys)
        assert {*declared.names.keys.values(), *(item.tool for item in declared.left_out)} == keys
        for spoken, key in declared.names.keys.items():
            [call] = dialect.read_calls(message(name, spoken, arguments), declared.names)
            assert (call.tool, call.declared, call.arguments, call.id) == (key, True, arguments, "c1")


@thorough
@given(toolset=toolsets(st.just({"type": "object"})), data=st.data())
def test_names_do_not_depend_on_the_selection(toolset: list[Tool], data: st.DataObject) -> None:
    part = data.draw(st.lists(st.sampled_from(toolset), unique_by=lambda tool: tool.key)) if toolset else []
    for dialect in DIALECTS.values():
        whole = dialect.declare(toolset, DeclareOptions(among=tuple(toolset)))
        some = dialect.declare(part, DeclareOptions(among=tuple(toolset)))
        assert some.names.keys.items() <= whole.names.keys.items()


@thorough
@given(toolset=toolsets(), mode=st.sampled_from(ToolMode))
def test_declaring_is_deterministic_and_changes_no_tool(toolset: list[Tool], mode: ToolMode) -> None:
    before = [tool.input_schema.text if tool.input_schema else b"" for tool in toolset]
    for dialect in DIALECTS.values():
        first = dialect.declare(toolset, DeclareOptions(mode=mode))
        second = dialect.declare(toolset, DeclareOptions(mode=mode))
        assert json.dumps(first.payload) == json.dumps(second.payload)
        assert first.losses == second.losses
    assert before == [tool.input_schema.text if tool.input_schema else b"" for tool in toolset]


@thorough
@given(value=json_values)
def test_any_json_value_is_read_as_a_message_or_refused(value: Any) -> None:
    for dialect in DIALECTS.values():
        with suppress(UsageError):
            assert isinstance(dialect.read_calls(value, NameMap(keys={})), tuple)


HOSTILE = st.recursive(
    st.one_of(scalars, st.sampled_from(["function_call", "tool_use", "f", "{}", "["])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "choices", "message", "tool_calls", "function", "custom", "name", "arguments", "output",
                "type", "call_id", "content", "input", "candidates", "parts", "functionCall", "args",
                "params", "id",
            ]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(value=HOSTILE)
def test_a_message_of_the_right_words_in_the_wrong_places_is_read_or_refused(value: Any) -> None:
    names = NameMap(keys={"f": "k"}, nullable={"k": (("properties", "a", "items", "properties", "b"),)})
    for dialect in DIALECTS.values():
        with suppress(UsageError):
            for call in dialect.read_calls(value, names):
                assert (call.arguments is None) == (call.defect is not None)
                assert call.declared == (call.tool == "k")
