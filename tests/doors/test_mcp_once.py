"""Idempotency keys over MCP: a call that is sent again runs once, in both eras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import toolcrib
from tests.mcp_client import Served, serving
from toolcrib.config import Config, Environment
from toolcrib.doors._entrance import Guest

KEY = "toolcrib/idempotencyKey"
COUNTED: list[str] = []


def tally(word: str) -> str:
    """Count how often it ran."""
    COUNTED.append(word)
    return f"{len(COUNTED)} {word}"


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("once")
    environment = Environment.read({"HOME": str(folder), "USER": "ann"})
    config = Config(state=str(folder / "state"))
    COUNTED.clear()
    with (
        toolcrib.open(config=config, environment=environment, tools=[tally]) as opened,
        serving(opened) as held,
    ):
        held.guests["bob"] = Guest(name="bob")
        yield held


def both(served: Served, word: str, meta: dict[str, Any], **headers: str) -> list[Any]:
    """The answers to one call in the older era, and to the same in the newer one."""
    params = {"name": "tally", "arguments": {"word": word}, "_meta": meta}
    older = served.begin(**headers).ask("tools/call", params).message
    return [older, served.ask("tools/call", params, **headers).message]


def texts(replies: list[Any]) -> list[str]:
    return [block["text"] for reply in replies for block in reply["result"]["content"]]


def test_calls_of_one_caller_with_one_key_run_once_whatever_the_era(served: Served) -> None:
    once = {KEY: "order-17"}
    assert texts(both(served, "x", once) + both(served, "x", once)) == ["1 x"] * 4
    assert COUNTED == ["x"]
    assert texts(both(served, "x", once, authorization="bob")) == ["2 x"] * 2
    for text in texts(both(served, "y", once)):
        assert "this idempotency key was used with other arguments" in text
    assert texts(both(served, "x", {})) == ["3 x", "4 x"]


@pytest.mark.parametrize("key", ["", 5, "a b", "x" * 201, "é", {"a": 1}])
def test_a_key_that_is_none_is_refused_and_nothing_runs(served: Served, key: object) -> None:
    for reply in both(served, "x", {KEY: key}):
        assert reply["error"]["code"] == -32602
        assert KEY in reply["error"]["message"]
    assert COUNTED == []
