"""The list of tools as it is served: written piece by piece, it is what ``declare`` gives as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toolwright
from toolwright.app import Workshop
from toolwright.config import Config
from toolwright.doors._mcp_listing import Listing, write
from toolwright.model import Effect, Guest, Reach

ANN = Guest(name="ann")


def group(number: int, *names: str, description: str = "Looks.", category: str = "retrieval") -> str:
    tools = [
        {
            "name": name,
            "description": description,
            "category": category,
            "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
            "metadata": {"executor": "search"},
        }
        for name in names
    ]
    about = {"group": f"group_{number}", "version": "1.0.0", "description": "A group"}
    return json.dumps({**about, "tools": tools})


def manifest(*names: str) -> str:
    tools = [
        {"name": name, "description": f"Does {name}.", "command": ["/bin/cat"], "schema": {"type": "object"}}
        for name in names
    ]
    return json.dumps({"tools": tools})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "tools"
    (found / "handlers").mkdir(parents=True)
    (found / "handlers" / "search.py").write_text("", encoding="utf-8")
    for number in range(6):
        put(found, f"group_{number}_tools.json", group(number, f"find_{number}", f"look_{number}"))
    put(found / "plain", "tools.json", manifest("copy", "find_3"))  # a name that another one has
    return found


def put(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def workshop(folder: Path, tmp_path: Path) -> Iterator[Workshop]:
    def own(text: str) -> str:
        """A function of the host's."""
        return text

    with toolwright.open(
        str(folder), config=Config(state=str(tmp_path / "state")), tools=[own], handlers={"search": print}
    ) as opened:
        yield opened


def listed(listing: Listing) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(listing.tools)
    return found


def is_whole(workshop: Workshop, listing: Listing, guest: Guest = ANN) -> None:
    """It says what the whole declaration says, and leads back to the same tools."""
    declared = workshop.declare("mcp", caller=guest.name, reach=guest.reach, served=True)
    assert listed(listing) == declared.payload
    assert listing.keys == declared.names.keys


def test_a_list_in_pieces_is_the_whole_declaration(workshop: Workshop) -> None:
    listing = write(workshop, ANN)
    is_whole(workshop, listing)
    assert len(listed(listing)) == 15
    assert len({tool["name"] for tool in listed(listing)}) == 15


def test_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with toolwright.open(str(tmp_path / "none"), config=Config(state=str(tmp_path / "state"))) as workshop:
        assert write(workshop, ANN).tools == b"[]"


@pytest.mark.parametrize(
    "reach",
    [
        Reach(tools=("capability:*",)),
        Reach(tools=("manifest:*/copy",)),
        Reach(effects=frozenset({Effect.READ})),
        Reach(tools=()),
    ],
)
def test_a_limited_caller_gets_its_part(workshop: Workshop, reach: Reach) -> None:
    guest = Guest(name="bob", reach=reach)
    is_whole(workshop, write(workshop, guest, write(workshop, guest)), guest)


@pytest.mark.parametrize("change", ["changed", "added", "removed", "renamed", "clash", "mended", "nothing"])
def test_after_a_reload_only_what_changed_is_written_again(
    workshop: Workshop, folder: Path, change: str
) -> None:
    before = write(workshop, ANN)
    match change:
        case "changed":
            put(folder, "group_2_tools.json", group(2, "find_2", "look_2", description="Looks anew."))
        case "added":
            put(folder, "group_9_tools.json", group(9, "find_9"))
        case "removed":
            (folder / "group_1_tools.json").unlink()
        case "renamed":
            put(folder, "group_2_tools.json", group(2, "seek_2", "look_2"))
        case "clash":
            put(folder / "plain", "tools.json", manifest("copy", "find_3", "find_4"))
        case "mended":
            put(folder / "plain", "tools.json", manifest("copy"))
    workshop.reload()
    after = write(workshop, ANN, before)
    is_whole(workshop, after)
    assert (after.tools == before.tools) is (change == "nothing")


def test_what_was_switched_off_is_gone_and_comes_back(workshop: Workshop) -> None:
    first = write(workshop, ANN)
    key = workshop.find("copy").key
    workshop.disable(key)
    second = write(workshop, ANN, first)
    is_whole(workshop, second)
    assert "copy" not in second.keys
    workshop.enable(key)
    third = write(workshop, ANN, second)
    is_whole(workshop, third)
    assert third.tools == first.tools
