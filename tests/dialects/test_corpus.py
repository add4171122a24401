"""Every real tool of the corpus, and every example, can be declared to every provider and called back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from msgspec.structs import replace

import toolcrib
from tests.conftest import shared
from tests.dialects import checker
from tests.dialects.test_dialects import message, names_of
from tests.strategies import make_tool
from toolcrib import config
from toolcrib.dialects import DIALECTS
from toolcrib.model import DeclareOptions, Role, Tool, ToolMode

BATCH = 100
"""Fewer than any provider takes at once."""


def corpus(name: str) -> Iterator[list[Tool]]:
    """The tools of each folder of one format."""
    folder = shared(f"corpus/{name}")
    if name == "executable":
        stated = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("schemas/*.json"))
        ]
        yield [
            make_tool(item["name"], item["parameters"], scope=str(number), description=item["description"])
            for number, item in enumerate(stated)
        ]
        return
    roots = {
        "skill": sorted(path for path in folder.iterdir() if path.is_dir()),
        "rye": sorted(path.parent for path in folder.rglob(".ai")),
    }.get(name, [folder])
    for root in roots:
        with toolcrib.open(str(root), config=config.Config()) as crib:
            yield [tool for tool in crib.tools if tool.role is Role.TOOL]


def examples() -> Iterator[list[Tool]]:
    path = Path(__file__).parent.parent.parent / "examples" / "toolcrib.toml"
    state = tempfile.mkdtemp()  # the examples' programs are asked for their schemas, which is recorded
    with toolcrib.open(replace(config.read_file(str(path), trusted=True), state=state)) as crib:
        yield [tool for tool in crib.tools if tool.role is Role.TOOL]


@lru_cache
def toolsets(name: str) -> list[list[Tool]]:
    return list(examples() if name == "examples" else corpus(name))


@pytest.mark.parametrize("mode", [ToolMode.PLAIN, ToolMode.STRICT])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ["skill", "manifest", "capability", "rye", "executable", "examples"])
def test_every_tool_is_declared_and_called_back(name: str, dialect: str, mode: ToolMode) -> None:
    count = 0
    for tools in toolsets(name):
        for some in (tools[start : start + BATCH] for start in range(0, len(tools), BATCH)):
            declared = DIALECTS[dialect].declare(some, DeclareOptions(mode=mode, among=tuple(tools)))
            assert checker.check(dialect, declared.payload) == []
            assert declared.left_out == ()
            assert sorted(names_of(dialect, declared.payload)) == sorted(declared.names.keys)
            for spoken, key in declared.names.keys.items():
                [call] = DIALECTS[dialect].read_calls(message(dialect, spoken, {}), declared.names)
                assert call.tool == key
            count += len(some)
    assert count > 0
