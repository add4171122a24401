"""Names that providers take: legal, distinct, stable, and exact on the way back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import make_tool, tool_names
from toolcrib.dialects import DIALECTS
from toolcrib.dialects._names import NameRule, give_names
from toolcrib.model import DeclareOptions, Role, Tool

RULE = NameRule(refused=re.compile("[^a-zA-Z0-9_-]"), first=re.compile("[a-zA-Z0-9_-]"), length_max=64)
every_provider = pytest.mark.parametrize("name", [name for name in DIALECTS if name != "mcp"])


def named(*names: str, **more: Any) -> list[Tool]:
    return [make_tool(name, key=f"rye:{name}", **more) for name in names]


def spoken(dialect: str, tools: list[Tool]) -> dict[str, str]:
    """Key to declared name."""
    declared = DIALECTS[dialect].declare(tools, DeclareOptions())
    return {key: name for name, key in declared.names.keys.items()}


@every_provider
@pytest.mark.requirement("manifest.name.charset")
def test_dots_become_underscores_and_lead_back(name: str) -> None:
    declared = DIALECTS[name].declare(named("code.sandbox.js.run"), DeclareOptions())
    assert declared.names.keys == {"code_sandbox_js_run": "rye:code.sandbox.js.run"}


@every_provider
@pytest.mark.requirement("rye.id.llm-name")
def test_an_item_id_is_spoken_with_underscores(name: str) -> None:
    [tool] = named("rye/file-system/write", spoken="rye_file_system_write")
    assert spoken(name, [tool]) == {"rye:rye/file-system/write": "rye_file_system_write"}


@every_provider
@pytest.mark.requirement("rye.id.llm-name")
def test_of_two_ids_that_collapse_to_one_name_the_second_gets_another_and_it_is_reported(name: str) -> None:
    tools = [make_tool(item, key=f"rye:{item}", spoken="a_b_c") for item in ("a/b-c", "a/b_c")]
    declared = DIALECTS[name].declare(tools, DeclareOptions())
    [first, second] = declared.names.keys
    assert declared.names.keys == {"a_b_c": "rye:a/b-c", second: "rye:a/b_c"}
    assert re.fullmatch("a_b_c_[0-9a-f]{8}", second)
    assert [(loss.tool, loss.keyword, loss.what) for loss in declared.losses if loss.keyword == "name"] == [
        ("rye:a/b_c", "name", f'declared as "{second}": "a_b_c" is the name of rye:a/b-c')
    ]
    assert first == "a_b_c"


@pytest.mark.requirement("executable.schema.name-length")
@every_provider
def test_a_name_of_seventy_characters_is_shortened_and_stays_unique(name: str) -> None:
    tools = named("x" * 69 + "a", "x" * 69 + "b")
    names = spoken(name, tools)
    assert len(set(names.values())) == 2
    assert all(len(item) <= 64 and item.startswith("x" * 55) for item in names.values())


@pytest.mark.requirement("executable.schema.name-length")
@every_provider
def test_a_long_name_ends_in_the_digest_of_its_key_whoever_else_is_there(name: str) -> None:
    long, other = named("x" * 69 + "a", "x" * 69 + "b")
    alone = spoken(name, [long])[long.key]
    assert alone == spoken(name, [other, long])[long.key]
    assert alone[:56] == "x" * 55 + "_"


@every_provider
def test_a_name_stays_the_same_while_the_selection_changes(name: str) -> None:
    first, second = named("a/b.c", "a/b_c")
    dialect = DIALECTS[name]
    whole = dialect.declare([first, second], DeclareOptions(among=(first, second)))
    alone = dialect.declare([second], DeclareOptions(among=(first, second)))
    assert alone.names.spoken(second.key) == whole.names.spoken(second.key) != "a_b_c"


def test_mcp_takes_dots_and_longer_names() -> None:
    assert spoken("mcp", named("code.sandbox.js.run")) == {"rye:code.sandbox.js.run": "code.sandbox.js.run"}
    assert set(spoken("mcp", named("x" * 70)).values()) == {"x" * 70}


def test_nobody_takes_a_legal_name_away() -> None:
    assert spoken("openai", named("a.b", "a_b"))["rye:a_b"] == "a_b"


def test_the_name_of_the_providers_own_tool_is_not_free() -> None:
    [given_name] = spoken("anthropic", named("tool_search_tool_bm25")).values()
    assert re.fullmatch("tool_search_tool_bm25_[0-9a-f]{8}", given_name)


def test_a_name_begins_as_gemini_wants_it() -> None:
    assert spoken("gemini", named("9lives", "-x")) == {"rye:9lives": "_9lives", "rye:-x": "_-x"}


def test_parts_and_support_items_are_never_declared_and_take_no_names() -> None:
    part, support = named("f", role=Role.PART), make_tool("f", key="rye:other", role=Role.SUPPORT)
    tool = make_tool("f", key="rye:tool")
    for name in DIALECTS:
        assert spoken(name, [*part, support, tool]) == {"rye:tool": "f"}


def test_a_digest_that_is_taken_too_gives_way() -> None:
    tools = named("a_b", "a.b")
    taken = give_names(tools, RULE)["rye:a.b"].name
    names = {key: item.name for key, item in give_names([*tools, *named(taken)], RULE).items()}
    assert names["rye:a_b"] == "a_b"
    assert names[f"rye:{taken}"] == taken
    assert len(set(names.values())) == 3


@given(st.lists(tool_names, unique=True, max_size=8))
def test_names_are_legal_distinct_and_do_not_depend_on_chance(names: list[str]) -> None:
    tools = named(*names)
    given_names = {key: item.name for key, item in give_names(tools, RULE).items()}
    assert len(set(given_names.values())) == len(names)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in given_names.values())
    assert given_names == {key: item.name for key, item in give_names(tools, RULE).items()}
    for name in names:
        if re.fullmatch("[a-zA-Z0-9_-]{1,64}", name):
            assert given_names[f"rye:{name}"] == name
