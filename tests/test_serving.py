"""What servers hand to models: hints, codes and texts of the formats as they are, answers in order."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.doors.web import Served, served
from tests.levels import sandbox_of
from tests.program import PATH, WAIT_S
from tests.signed import Place, answer
from toolcrib.app import Crib
from toolcrib.config import Environment, resolve
from toolcrib.dialects import DIALECTS
from toolcrib.jsontext import JsonObject
from toolcrib.model import Level, ToolCall


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@contextmanager
def opened(root: Path, source: str, context_mode: str = "full", **more: Any) -> Iterator[Crib]:
    surroundings = replace(
        Environment.read({"HOME": str(root / "home"), "PATH": PATH}), state=str(root / "state")
    )
    found = replace(resolve(surroundings, cwd=str(root), sources=[source]), context_mode=context_mode)
    with (
        sandbox_of(Level.PORTABLE) as sandbox,
        toolcrib.open(found, environment=surroundings, sandbox=sandbox, **more) as shop,
    ):
        yield shop


@pytest.mark.requirement("capability.tool.category-meaning")
def test_a_category_reaches_mcp_as_a_hint_about_the_effect(tmp_path: Path) -> None:
    categories = {
        "get_agenda": "retrieval",
        "rate_week": "analysis",
        "add_event": "creation",
        "delete_event": "mutation",
    }
    document = {
        "group": "calendar",
        "version": "1.0.0",
        "description": "D.",
        "selection": {"strategy": "always"},
        "tools": [
            {"name": name, "description": "D.", "category": category, "input_schema": {"type": "object"}}
            for name, category in categories.items()
        ],
    }
    path = tmp_path / "calendar_tools.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with opened(tmp_path, str(path), handlers={"calendar": lambda *_: {}}) as shop:
        payload = shop.declare("mcp", served=True).payload
        hints = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in payload}
    assert hints == {"get_agenda": True, "rate_week": True, "add_event": False, "delete_event": False}


EXECUTABLE = """#!/bin/sh
if [ "$1" = "--schema" ]; then
  echo '{"name": "edit", "description": "Edits.", "parameters": {"type": "object", "properties": {}}}'
  exit 0
fi
cat >/dev/null
"""


@pytest.mark.requirement("executable.call.codes-kept")
@pytest.mark.parametrize("code", ["NOT_UNIQUE", "FILE_NOT_FOUND", "PERMISSION_DENIED", "MISSING_CREDENTIALS"])
def test_a_tools_own_codes_and_help_reach_every_model_unchanged(code: str, tmp_path: Path) -> None:
    told = {"error": "it stands there twice", "error_code": code, "help": "Give more of the line around it."}
    program(tmp_path / "tools" / "edit-tool", EXECUTABLE + f"echo '{json.dumps(told)}'\n")
    with opened(tmp_path, f"executable={tmp_path / 'tools'}") as shop:
        (tool,) = shop.tools
        given = ToolCall(id="1", tool=tool.key, arguments={})
        (result,) = shop.call_all([given])
        assert json.loads(result.content)["result"] == told
        for dialect in DIALECTS.values():
            wire = dialect.write_result(given, result)
            assert told in list(_objects(wire)), wire


def _objects(value: Any) -> Iterator[JsonObject]:
    """Every mapping in a value, those in texts of JSON as well."""
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _objects(part)


@pytest.mark.requirement("manifest.run.concurrent")
def test_a_slow_and_a_fast_call_of_one_message_run_together_and_answer_in_order(tmp_path: Path) -> None:
    """The slow one ends only after the fast one has: one after the other, they would never end."""
    go = tmp_path / "go"
    program(
        tmp_path / "tools" / "bin" / "slow",
        f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.02; done\necho '\"slow\"'\n",
    )
    program(tmp_path / "tools" / "bin" / "fast", f"#!/bin/sh\ntouch {go}\necho '\"fast\"'\n")
    tools = [
        {
            "name": name,
            "description": name,
            "schema": {"type": "object"},
            "command": [f"./tools/bin/{name}"],
            "timeoutSec": int(WAIT_S),
        }
        for name in ("slow", "fast")
    ]
    (tmp_path / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    with opened(tmp_path, str(tmp_path)) as shop:
        answers: list[tuple[str, str]] = []
        calls = [ToolCall(id=f"id-{name}", tool=name, arguments={}, raw="{}") for name in ("slow", "fast")]

        def work() -> None:
            answers.extend((each.call_id, each.content) for each in shop.call_all(calls))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(WAIT_S)
        assert answers == [("id-slow", '"slow"'), ("id-fast", '"fast"')]


# -- through the wires --------------------------------------------------------------------------------------

ACCEPT = {"Accept": "application/json, text/event-stream"}


def rpc(server: Served, method: str, params: JsonObject) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return server.client.post("/mcp", json=message, headers=ACCEPT).json()


def hello(server: Served) -> Any:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return rpc(server, "initialize", about)["result"]


def write_skill(root: Path) -> Path:
    folder = root / "skills" / "notes"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: notes\ndescription: Keeps.\n---\nAsk first.\n", "utf-8")
    return root / "skills"


@pytest.mark.requirement("skill.serve.read-skill", "skill.serve.read-skill-errors", "skill.run.model-error")
def test_read_skill_is_the_first_tool_over_mcp_and_http(tmp_path: Path) -> None:
    with (
        opened(tmp_path, str(write_skill(tmp_path)), context_mode="read_on_demand") as shop,
        served(shop) as server,
    ):
        assert hello(server)["instructions"].endswith("- notes: Keeps.")
        listed = rpc(server, "tools/list", {})["result"]["tools"]
        assert listed[0]["name"] == "read_skill"
        assert server.get("/v1/tools").json()["tools"][0]["name"] == "read_skill"
        for arguments, text in (
            ({"skill_name": "notes"}, "Ask first.\n"),
            ({}, "error: missing skill_name"),
            ({"skill_name": "x"}, "error: unknown skill: x"),
        ):
            result = rpc(server, "tools/call", {"name": "read_skill", "arguments": arguments})["result"]
            assert result["content"] == [{"type": "text", "text": text}]
            assert result["isError"] is text.startswith("error: ")
            assert server.call("read_skill", arguments).json()["content"] == text
        assert server.call("foo").json()["content"] == "error: unknown tool: foo"


@pytest.mark.requirement("skill.serve.context-mode")
def test_without_a_setting_the_instructions_are_handed_over_whole(tmp_path: Path) -> None:
    with opened(tmp_path, str(write_skill(tmp_path))) as shop, served(shop) as server:
        text = "# Skill: notes\n\nAsk first.\n"
        assert hello(server)["instructions"] == text
        assert rpc(server, "tools/list", {})["result"]["tools"] == []
        told = server.get("/v1/skills").json()
        assert (told["context_mode"], told["instructions"]) == ("full", text)
        assert told["skills"] == [
            {"name": "notes", "description": "Keeps.", "text": "Ask first.\n", "withheld": None}
        ]


@pytest.mark.requirement("executable.call.codes-kept")
def test_a_tools_own_code_passes_both_wires(tmp_path: Path) -> None:
    told = {"error": "it stands there twice", "error_code": "NOT_UNIQUE", "help": "Give more of it."}
    program(tmp_path / "tools" / "edit-tool", EXECUTABLE + f"echo '{json.dumps(told)}'\n")
    with opened(tmp_path, f"executable={tmp_path / 'tools'}") as shop, served(shop) as server:
        result = rpc(server, "tools/call", {"name": "edit", "arguments": {}})["result"]
        assert told in list(_objects(result))
        assert server.call("edit").json()["data"] == told


@pytest.mark.requirement("rye.serve.mcp")
def test_ryes_own_tools_are_served_over_mcp_and_nowhere_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("tools/a/one.py", answer("one"))
    place.write("tools/a/two.py", answer("two"))
    rules = ({"match": {"key": "rye:a/two"}, "decision": "deny", "because": "no"},)
    with (
        place.open(level=Level.PORTABLE, policy=rules, policy_places=("here",)) as shop,
        served(shop) as server,
    ):
        names = [tool["name"] for tool in rpc(server, "tools/list", {})["result"]["tools"]]
        assert names == ["a_one", "fetch", "execute"]
        assert [tool["name"] for tool in server.get("/v1/tools").json()["tools"]] == ["a/one", "a/two"]

        def execute(item_id: str) -> Any:
            given = {"name": "execute", "arguments": {"item_id": item_id}}
            return rpc(server, "tools/call", given)["result"]

        assert '"said":"one"' in json.dumps(execute("a/one")).replace("\\", "").replace(" ", "")
        assert execute("a/two")["isError"]
        found = rpc(server, "tools/call", {"name": "fetch", "arguments": {"query": "bytes"}})["result"]
        assert [each["item_id"] for each in found["structuredContent"]["results"]] == ["tool:a/one"]
