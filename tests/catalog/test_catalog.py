"""The immutable shelf: keys, bare names, aliases, clashes and suggestions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.strategies import make_tool
from toolcrib.catalog.catalog import Catalog
from toolcrib.errors import UnknownTool
from toolcrib.model import Habits, Namesakes, Role, Skill, Tool

LATER = Habits(namesakes=Namesakes.LATER)


class Shelf:
    """Tools that are all at hand."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self.taken: list[int] = []
        self.keys = [tool.key for tool in tools]
        self.names = [tool.name for tool in tools]
        self.roles = [tool.role for tool in tools]
        self.aliases = [(number, alias) for number, tool in enumerate(tools) for alias in tool.aliases]

    def tool(self, index: int) -> Tool:
        self.taken.append(index)
        return self._tools[index]


def catalog(*tools: Tool) -> Catalog:
    return Catalog(Shelf(tools))


def tool(key: str, **more: Any) -> Tool:
    rest = key.partition(":")[2]
    return make_tool(rest.rpartition("/")[2], key=key, scope=rest.rpartition("/")[0], **more)


def refusal(shelf: Catalog, name: str) -> tuple[str, str | None]:
    with pytest.raises(UnknownTool) as caught:
        shelf.find(name)
    assert caught.value.exit_code == 64
    return caught.value.message, caught.value.hint


def test_a_tool_is_found_by_its_key_and_by_its_bare_name() -> None:
    shelf = catalog(tool("manifest:m/a"), tool("skill:notes/b"))
    assert shelf.find("manifest:m/a").key == "manifest:m/a"
    assert shelf.find("b").key == "skill:notes/b"


def test_a_key_goes_before_a_name_that_looks_like_it() -> None:
    odd = make_tool("manifest:m/a", key="manifest:m/manifest:m/a", scope="m")
    shelf = catalog(odd, tool("manifest:m/a"))
    assert shelf.find("manifest:m/a").name == "a"


def test_a_name_of_several_tools_is_refused_with_their_keys() -> None:
    shelf = catalog(tool("manifest:m/a"), tool("manifest:n/a"), tool("skill:notes/a"))
    assert refusal(shelf, "a") == (
        "the name 'a' belongs to 3 tools",
        "name one by its key: manifest:m/a, manifest:n/a, skill:notes/a",
    )
    assert shelf.find("manifest:n/a").key == "manifest:n/a"


def test_where_the_format_says_so_the_later_tool_owns_a_name() -> None:
    shelf = catalog(tool("capability:g/a", habits=LATER), tool("capability:h/a", habits=LATER))
    assert shelf.find("a").key == "capability:h/a"
    assert shelf.find("capability:g/a").key == "capability:g/a"


def test_a_name_shared_with_another_format_has_no_owner() -> None:
    shelf = catalog(
        tool("manifest:m/a"), tool("capability:g/a", habits=LATER), tool("capability:h/a", habits=LATER)
    )
    assert refusal(shelf, "a")[0] == "the name 'a' belongs to 3 tools"


def test_an_executable_is_found_by_its_alias_too() -> None:
    shelf = catalog(tool("executable:bin/file_edit", aliases=("edit_file",)), tool("manifest:m/a"))
    assert shelf.find("edit_file").key == "executable:bin/file_edit"


def test_an_alias_never_takes_a_name_from_another_tool() -> None:
    shelf = catalog(tool("manifest:m/edit"), tool("executable:bin/file_edit", aliases=("edit",)))
    assert refusal(shelf, "edit") == (
        "the name 'edit' belongs to 2 tools",
        "name one by its key: manifest:m/edit, executable:bin/file_edit",
    )


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    shelf = catalog(tool("manifest:m/get_time"), tool("manifest:m/get_date"))
    assert refusal(shelf, "get_tme") == ("there is no tool 'get_tme'", "did you mean get_time or get_date?")
    assert refusal(shelf, "xyz") == ("there is no tool 'xyz'", "`toolcrib list` shows what there is")
    alike = catalog(tool("rye:notes/greet-someone"), tool("rye:x/y"))
    assert refusal(alike, "greet-someon")[1] == "did you mean greet-someone?"  # and not its key as well
    assert refusal(catalog(), "a") == ("there is no tool 'a'", "`toolcrib list` shows what there is")


def test_a_suggestion_names_a_shared_name_by_the_keys_of_its_tools() -> None:
    shelf = catalog(tool("manifest:m/get_time"), tool("skill:s/get_time"))
    assert refusal(shelf, "get_tme")[1] == "did you mean manifest:m/get_time or skill:s/get_time?"
    later = catalog(tool("capability:g/get_time", habits=LATER), tool("capability:h/get_time", habits=LATER))
    assert refusal(later, "get_tme")[1] == "did you mean get_time?"


def test_a_suggestion_never_names_a_tool_that_must_not_be_named() -> None:
    """Attack: unknown names, one after the other, until the answers spell what is hidden."""
    shelf = catalog(
        tool("manifest:m/get_time"),
        tool("manifest:m/get_tide"),
        tool("manifest:secret/get_time"),
        tool("manifest:secret/get_tile"),
    )

    def said(name: str) -> tuple[str, str | None, tuple[str, ...]]:
        unknown = shelf.unknown(name, lambda tool: not tool.key.startswith("manifest:secret/"))
        return unknown.message, unknown.hint, unknown.near

    for name in ("get_tim", "get_tile", "manifest:secret/get_tile", "manifest:secret/get_tim"):
        message, hint, near = said(name)
        assert message == f"there is no tool {name!r}"
        assert set(near) <= {"manifest:m/get_time", "get_tide", "manifest:m/get_tide"}
        assert hint is not None
        assert "secret" not in hint
    # One of two tools of a name: the name would be refused, its key is not.
    assert said("get_time")[1:] == (
        "did you mean manifest:m/get_time or get_tide?",
        ("manifest:m/get_time", "get_tide"),
    )
    assert shelf.unknown("get_time").near == ("manifest:m/get_time", "manifest:secret/get_time")


def test_parts_are_counted_and_support_is_not_and_only_tools_are_offered() -> None:
    shelf = catalog(
        tool("rye:x/a"), tool("rye:x/part", role=Role.PART), tool("rye:x/support", role=Role.SUPPORT)
    )
    assert len(shelf.tools) == 3
    assert shelf.counted == 2
    assert [found.key for found in shelf.offered()] == ["rye:x/a"]


def test_the_tools_are_a_sequence_in_their_order() -> None:
    tools = catalog(*(tool(f"manifest:m/t{number}") for number in range(4))).tools
    assert [found.name for found in tools] == ["t0", "t1", "t2", "t3"]
    assert tools[-1].name == "t3"
    assert [found.name for found in tools[1:3]] == ["t1", "t2"]
    assert repr(tools) == "<4 tools>"
    assert tools[0] in tools
    with pytest.raises(IndexError):
        tools[4]


def test_counting_and_finding_take_down_only_what_is_asked_for() -> None:
    shelf = Shelf([tool(f"manifest:m/t{number}") for number in range(100)])
    shelves = Catalog(shelf, lambda: [Skill(name="s", path="/s")])
    assert (len(shelves.tools), shelves.counted, shelves.skills[0].name) == (100, 100, "s")
    assert shelves.find("t42").name == "t42"
    assert shelf.taken == [42]
