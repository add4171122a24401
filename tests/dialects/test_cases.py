"""Runs tests/conformance/dialects: a tool in, payload and losses out; calls in; results out."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from tests.dialects import checker
from tests.strategies import make_tool
from toolcrib.dialects import DIALECTS
from toolcrib.errors import Kind
from toolcrib.jsontext import pointer_text
from toolcrib.model import (
    AudioBlock,
    Block,
    DeclareOptions,
    Effect,
    EmbeddedResource,
    ImageBlock,
    NameMap,
    Notes,
    ResourceLink,
    Schema,
    SchemaForm,
    TextBlock,
    Tool,
    ToolCall,
    ToolError,
    ToolMode,
    ToolResult,
)

FOLDER = Path(__file__).parent.parent / "conformance" / "dialects"
DECLARE = {"title", "tools", "options", "payload", "losses", "left_out"}
READ = {"title", "names", "nullable", "message", "calls"}
WRITE = {"title", "call_id", "result", "written"}


def cases(kind: str) -> Iterator[Any]:
    """The cases that have the key ``kind``, each with its dialect."""
    for path in sorted(FOLDER.rglob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            assert set(case) <= DECLARE or set(case) <= READ or set(case) <= WRITE, case["title"]
            if kind in case:
                yield pytest.param(path.parent.name, case, id=f"{path.parent.name}: {case['title']}")


def tool(stated: dict[str, Any]) -> Tool:
    return make_tool(
        stated["name"],
        stated.get("schema"),
        key=stated["name"],
        description=stated.get("description", ""),
        schema_form=SchemaForm.VERBATIM if stated.get("verbatim") else SchemaForm.ADAPTABLE,
        effect=Effect(stated.get("effect", "change")),
        output_schema=Schema.of(stated["output"]) if "output" in stated else None,
        notes=Notes(documentation={"examples": stated.get("examples", [])}),
    )


def block(stated: dict[str, Any]) -> Block:
    if "uri" in stated:
        return ResourceLink(**stated) if "name" in stated else EmbeddedResource(**stated)
    if "image" in stated:
        return ImageBlock(data=stated["image"], media_type=stated["media_type"])
    if "audio" in stated:
        return AudioBlock(data=stated["audio"], media_type=stated["media_type"])
    return TextBlock(**stated)


@pytest.mark.parametrize(("name", "case"), list(cases("payload")))
def test_tools_are_declared_as_the_case_says(name: str, case: dict[str, Any]) -> None:
    chosen = case.get("options", {})
    declared = DIALECTS[name].declare(
        [tool(stated) for stated in json.loads(case["tools"])],
        DeclareOptions(
            mode=ToolMode(chosen.get("mode", "plain")),
            deferred=frozenset(chosen.get("deferred", ())),
            examples=chosen.get("examples", False),
        ),
    )
    expected = json.loads(case["payload"])
    assert declared.payload == expected
    assert [
        f"{loss.tool} {pointer_text(loss.pointer)} {loss.keyword} {loss.what}" for loss in declared.losses
    ] == case.get("losses", [])
    assert [f"{item.tool} {item.because}" for item in declared.left_out] == case.get("left_out", [])
    assert checker.check(name, declared.payload) == []


WIRE = ("id", "tool", "arguments", "raw", "spoken", "defect", "declared")
"""What a message from a provider tells about a call."""


@pytest.mark.parametrize(("name", "case"), list(cases("message")))
def test_calls_are_read_as_the_case_says(name: str, case: dict[str, Any]) -> None:
    places = tuple(tuple(place) for place in json.loads(case.get("nullable", "[]")))
    names = NameMap(keys=case["names"], nullable=dict.fromkeys(case["names"].values(), places))
    calls = DIALECTS[name].read_calls(json.loads(case["message"]), names)
    unsaid = {"defect": None, "declared": True}
    told = [{key: value for key, value in asdict(call).items() if key in WIRE} for call in calls]
    assert told == [{**unsaid, **call} for call in json.loads(case["calls"])]
    bare = ToolCall(id="", tool="", arguments=None)
    for call in calls:  # what only the host may say never comes from the wire
        assert replace(call, **{key: getattr(bare, key) for key in WIRE}) == bare


@pytest.mark.parametrize(("name", "case"), list(cases("result")))
def test_results_are_written_as_the_case_says(name: str, case: dict[str, Any]) -> None:
    stated = json.loads(case["result"])
    error = stated.get("error")
    result = ToolResult(
        call_id="c1",
        blocks=tuple(block(item) for item in stated.get("blocks", [])),
        data=stated.get("data"),
        error=None if error is None else ToolError(**{**error, "kind": Kind(error["kind"])}),
    )
    call = ToolCall(id=case.get("call_id", "c1"), tool="k", arguments={}, spoken="spoken")
    assert DIALECTS[name].write_result(call, result) == json.loads(case["written"])


def test_every_dialect_has_cases_of_all_three_kinds() -> None:
    for kind in ("payload", "message", "result"):
        assert {param.values[0] for param in cases(kind)} == set(DIALECTS)
