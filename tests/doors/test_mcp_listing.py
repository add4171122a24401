"""The list of tools as it is served: written piece by piece, it is what ``declare`` gives as a whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.program import WAIT_S
from toolcrib.app import Crib
from toolcrib.config import Config
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import Events
from toolcrib.doors._mcp_desk import Desk
from toolcrib.doors._mcp_listing import Listing, write
from toolcrib.doors.mcp import McpDoor
from toolcrib.mcp_wire import PIECE_BYTES
from toolcrib.model import Effect, Guest, Reach

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
def crib(folder: Path, tmp_path: Path) -> Iterator[Crib]:
    def own(text: str) -> str:
        """A function of the host's."""
        return text

    with toolcrib.open(
        str(folder), config=Config(state=str(tmp_path / "state")), tools=[own], handlers={"search": print}
    ) as opened:
        yield opened


def listed(listing: Listing) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(listing.tools)
    return found


def is_whole(crib: Crib, listing: Listing, guest: Guest = ANN) -> None:
    """It says what the whole declaration says, and leads back to the same tools."""
    declared = crib.declare("mcp", caller=guest.name, reach=guest.reach, served=True)
    assert listed(listing) == declared.payload
    assert listing.keys == declared.names.keys


def test_a_list_in_pieces_is_the_whole_declaration(crib: Crib) -> None:
    listing = write(crib, ANN)
    is_whole(crib, listing)
    assert len(listed(listing)) == 15
    assert len({tool["name"] for tool in listed(listing)}) == 15


def test_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with toolcrib.open(str(tmp_path / "none"), config=Config(state=str(tmp_path / "state"))) as crib:
        assert write(crib, ANN).tools == b"[]"


@pytest.mark.parametrize(
    "reach",
    [
        Reach(tools=("capability:*",)),
        Reach(tools=("manifest:*/copy",)),
        Reach(effects=frozenset({Effect.READ})),
        Reach(tools=()),
    ],
)
def test_a_limited_caller_gets_its_part(crib: Crib, reach: Reach) -> None:
    guest = Guest(name="bob", reach=reach)
    is_whole(crib, write(crib, guest, write(crib, guest)), guest)


@pytest.mark.parametrize("change", ["changed", "added", "removed", "renamed", "clash", "mended", "nothing"])
def test_after_a_reload_only_what_changed_is_written_again(crib: Crib, folder: Path, change: str) -> None:
    before = write(crib, ANN)
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
    crib.reload()
    after = write(crib, ANN, before)
    is_whole(crib, after)
    assert (after.tools == before.tools) is (change == "nothing")


def test_what_was_switched_off_is_gone_and_comes_back(crib: Crib) -> None:
    first = write(crib, ANN)
    key = crib.find("copy").key
    crib.disable(key)
    second = write(crib, ANN, first)
    is_whole(crib, second)
    assert "copy" not in second.keys
    crib.enable(key)
    third = write(crib, ANN, second)
    is_whole(crib, third)
    assert third.tools == first.tools


@pytest.mark.parametrize("newer", [True, False])
def test_a_response_in_pieces_is_the_whole_response(crib: Crib, folder: Path, newer: bool) -> None:
    for number in range(10, 30):
        put(folder, f"group_{number}_tools.json", group(number, f"find_{number}", description="x" * 50_000))
    crib.reload()
    listing = write(crib, ANN)
    found = Desk.listed(7, listing, newer=newer)
    pieces = [*found.pieces]
    answer = json.loads(b"".join(pieces))
    assert (answer["id"], answer["result"]["tools"]) == (7, listed(listing))
    assert ("resultType" in answer["result"]) is newer
    assert sum(map(len, pieces)) == found.size_bytes
    assert len(listing.tools) == listing.size_bytes
    assert len(pieces) > 3
    assert max(map(len, pieces)) < PIECE_BYTES + 60_000
    assert min(map(len, pieces[:-1])) >= PIECE_BYTES


def test_listings_share_what_did_not_change(crib: Crib, folder: Path) -> None:
    before = write(crib, ANN)
    put(folder, "group_2_tools.json", group(2, "find_2", "look_2", description="Looks anew."))
    crib.reload()
    after = write(crib, ANN, before)
    again = {key for key, piece in after.pieces.items() if piece.text is not before.pieces[key].text}
    assert {key for key in again if key.startswith("capability:group_2/")} == {
        "capability:group_2/find_2",
        "capability:group_2/look_2",
    }
    assert len(again) < 6  # besides, the host's own, and those whose names clash


def test_attack_many_slow_clients_each_have_a_long_list_kept_for_them(crib: Crib, folder: Path) -> None:
    """What a client has not taken yet is not even put together: one piece waits for it."""
    for number in range(10, 30):
        put(folder, f"group_{number}_tools.json", group(number, f"find_{number}", description="x" * 50_000))
    crib.reload()
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    kinds = b"application/json, text/event-stream"
    head = [(b"content-type", b"application/json"), (b"accept", kinds)]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}

    async def main() -> None:
        reads, has_part = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                has_part.set()
                await reads.wait()

        door = McpDoor(crib, Crew(crib, Events()))
        scope = {"method": "POST", "headers": head, "guest": ANN}
        serving = asyncio.create_task(door(scope, receive, send))
        await asyncio.wait_for(has_part.wait(), WAIT_S)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        assert len(sent[1]["body"]) < PIECE_BYTES + 60_000
        reads.set()
        await asyncio.wait_for(serving, WAIT_S)

    asyncio.run(main())
    body = b"".join(message["body"] for message in sent[1:])
    assert len(body) == int(dict(sent[0]["headers"])[b"content-length"]) > 1_000_000
    assert len(json.loads(body)["result"]["tools"]) == 35
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
