"""Rye's own tools, as servers offer them: execute is the call of the tool it names, and nothing more."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.moments import before_opening, turn
from tests.signed import Place, answer, python
from toolcrib.app import Crib
from toolcrib.catalog import files
from toolcrib.config import Environment, Serving, resolve
from toolcrib.errors import Kind
from toolcrib.model import Disabled, Effect, Level, Reach, ToolCall, ToolResult
from toolcrib.sandbox import NEVER
from toolcrib.store.disabled import switch_off
from toolcrib.trust import keys

FETCH, EXECUTE, SIGN = (f"toolcrib:rye/{name}" for name in ("fetch", "execute", "sign"))
ECHO = python("def execute(params, project_path):\n    return {'success': True, 'given': params}\n").replace(
    '"properties": {}', '"properties": {"n": {"type": "integer"}}'
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.write("tools/a/echo.py", ECHO)
    made.write("tools/a/other.py", answer("other"))
    return made


def within(*tools: str, effects: frozenset[Effect] = frozenset(Effect)) -> Reach:
    return Reach(tools=tools, effects=effects)


def call(
    shop: Crib, tool: str, arguments: Mapping[str, Any] | None, reach: Reach | None = None, **more: Any
) -> ToolResult:
    """As a door calls: by key, with a caller's reach."""
    given = None if arguments is None else dict(arguments)
    made = ToolCall(id=shop.new_call_id(), tool=tool, arguments=given, caller="ada", reach=reach, **more)
    (begun,) = shop.hands.engine.begin([(made, NEVER)], door="mcp")
    return shop.go_on(begun)


def names(shop: Crib, reach: Reach | None = None) -> list[str]:
    return [tool["name"] for tool in shop.declare("mcp", reach=reach, served=True).payload]


def told(result: ToolResult) -> tuple[Kind | None, str]:
    return (result.error.kind, result.error.message) if result.error else (None, "")


def outcome(result: ToolResult) -> object:
    """What a result says, without what differs between any two calls."""
    content = re.sub(r'"duration_ms":[0-9.]+', "", result.content)
    return result.key, content, result.error, result.rule, result.isolation, result.data


# -- what is offered ----------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.serve.mcp")
def test_servers_offer_fetch_and_execute_besides_the_tools_and_nobody_else_does(place: Place) -> None:
    with place.open(level=Level.PORTABLE) as shop:
        assert names(shop) == ["a_echo", "a_other", "fetch", "execute"]
        assert [tool["name"] for tool in shop.declare("mcp").payload] == ["a_echo", "a_other"]
        assert [tool.key for tool in shop.tools] == ["rye:a/echo", "rye:a/other"]
        assert shop.catalog.counted == 2
        hints = {tool["name"]: tool["annotations"] for tool in shop.declare("mcp", served=True).payload}
        assert hints["fetch"] == {"readOnlyHint": True}
        assert hints["execute"] == {"readOnlyHint": False, "destructiveHint": True}
        assert names(shop, within("rye:*")) == ["a_echo", "a_other"]
        assert names(shop, within("rye:*", FETCH)) == ["a_echo", "a_other", "fetch"]


@pytest.mark.requirement("rye.serve.mcp")
def test_without_rye_items_there_are_none_of_its_tools(tmp_path: Path) -> None:
    place = Place(tmp_path)
    tools = [{"name": "t", "description": "d", "schema": {"type": "object"}, "command": ["./tools/bin/t"]}]
    (place.project / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    with place.open(level=Level.PORTABLE) as shop:
        assert names(shop) == ["t"]
        for key in (FETCH, EXECUTE, SIGN):
            assert told(call(shop, key, {"item_id": "a/echo"}))[0] is Kind.UNKNOWN_TOOL


@pytest.mark.requirement("rye.serve.mcp")
def test_sign_is_there_only_where_the_host_says_so(place: Place) -> None:
    path = place.write("tools/a/new.py", answer("new"), signed=False)
    keys.generate(keys.signing_folder(str(place.home), {}))
    with place.open(level=Level.PORTABLE) as shop:
        assert "sign" not in names(shop)
        assert told(call(shop, SIGN, {"item_id": "tool:a/new"}))[0] is Kind.UNKNOWN_TOOL
    assert b"rye:signed" not in path.read_bytes()
    with place.open(level=Level.PORTABLE, serve=Serving(sign_tool=True)) as shop:
        assert names(shop)[-3:] == ["fetch", "execute", "sign"]
        assert told(call(shop, SIGN, {"item_id": "a/new"}))[0] is Kind.INVALID_ARGUMENTS
        assert told(call(shop, SIGN, {"item_id": "tool:a/nothing"}))[0] is Kind.INVALID_ARGUMENTS
        result = call(shop, SIGN, {"item_id": "tool:a/new"})
        assert result.error is None, result
        (signed,) = json.loads(result.content)
        assert (signed["status"], signed["item_id"]) == ("signed", "tool:a/new")
    assert b"rye:signed" in path.read_bytes()


def test_signing_ends_where_a_callers_reach_does(place: Place) -> None:
    """Attack: a token for one tool, used to vouch for another, or for everything at once."""
    place.write("tools/a/new.py", answer("new"), signed=False)
    place.write("tools/b/far.py", answer("far", "b"), signed=False)
    keys.generate(keys.signing_folder(str(place.home), {}))
    near = within("rye:a/*", SIGN)
    with place.open(level=Level.PORTABLE, serve=Serving(sign_tool=True)) as shop:
        for ref in ("tool:b/far", "tool:*", "config:x", "tool:../b/far"):
            assert told(call(shop, SIGN, {"item_id": ref}, near)) == (
                Kind.INVALID_ARGUMENTS,
                f"Tool not found: {ref}",
            )
        assert call(shop, SIGN, {"item_id": "tool:a/new"}, near).error is None
    assert b"rye:signed" not in (place.tools / "b" / "far.py").read_bytes()


# -- execute ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.serve.mcp")
@pytest.mark.parametrize("item_id", ["a/echo", "tool:a/echo", "rye:a/echo"])
def test_execute_is_the_call_of_the_tool_it_names(item_id: str, place: Place) -> None:
    with place.open(level=Level.PORTABLE) as shop:
        direct = call(shop, "rye:a/echo", {"n": 3})
        through = call(shop, EXECUTE, {"item_id": item_id, "parameters": {"n": 3}})
        assert outcome(through) == outcome(direct)
        assert json.loads(through.content)["data"]["given"] == {"n": 3}
        wrong = call(shop, EXECUTE, {"item_id": item_id, "parameters": {"n": "x"}})
        assert outcome(wrong) == outcome(call(shop, "rye:a/echo", {"n": "x"}))
        dry = call(shop, EXECUTE, {"item_id": item_id, "dry_run": True})
        assert json.loads(dry.content)["status"] == "validation_passed"
    begins = [each for each in place.records() if each["what"] == "begin"]
    assert {each["key"] for each in begins} == {"rye:a/echo"}
    kept = [
        {name: each.get(name) for name in ("key", "seen", "runs", "door", "caller")} for each in begins[:2]
    ]
    assert kept[0] == kept[1]


def test_execute_of_a_denied_tool_is_denied(place: Place) -> None:
    """Attack: execute as a way around a rule that refuses the tool."""
    rules = ({"match": {"key": "rye:a/echo"}, "decision": "deny", "because": "no"},)
    with place.open(level=Level.PORTABLE, policy=rules, policy_places=("here",)) as shop:
        refused = call(shop, EXECUTE, {"item_id": "a/echo"})
        assert told(refused)[0] is Kind.DENIED
        assert outcome(refused) == outcome(call(shop, "rye:a/echo", {}))
        assert call(shop, EXECUTE, {"item_id": "a/other"}).error is None


def test_execute_of_a_tool_that_a_person_must_approve_asks_as_the_tool_does(place: Place) -> None:
    """Attack: execute as a way around a person, or with an approval that was given for something else."""
    rules = ({"match": {"key": "rye:a/echo"}, "decision": "ask", "because": "look"},)
    with place.open(level=Level.PORTABLE, policy=rules, policy_places=("here",)) as shop:
        asked = call(shop, EXECUTE, {"item_id": "a/echo", "parameters": {"n": 1}})
        assert told(asked)[0] is Kind.NEEDS_APPROVAL
        (waiting,) = shop.approvals()
        assert (waiting.key, waiting.caller) == ("rye:a/echo", "ada")
        shop.answer(waiting.id, "approve")
        assert (
            told(call(shop, EXECUTE, {"item_id": "a/echo", "parameters": {"n": 2}}))[0] is Kind.NEEDS_APPROVAL
        )
        assert call(shop, EXECUTE, {"item_id": "a/echo", "parameters": {"n": 1}}).error is None


def test_execute_of_a_tool_beyond_reach_finds_none(place: Place) -> None:
    """Attack: execute as a way to tools that a caller may not even know of."""
    near = within("rye:a/other", EXECUTE)
    with place.open(level=Level.PORTABLE) as shop:
        hidden = call(shop, EXECUTE, {"item_id": "a/echo"}, near)
        nothing = call(shop, EXECUTE, {"item_id": "a/xxxx"}, near)
        assert told(hidden)[0] is told(nothing)[0] is Kind.UNKNOWN_TOOL
        assert hidden.content.replace("echo", "xxxx") == nothing.content
        assert call(shop, EXECUTE, {"item_id": "a/other"}, near).error is None
        reading = replace(near, effects=frozenset({Effect.READ}))
        assert told(call(shop, EXECUTE, {"item_id": "a/other"}, reading))[0] is Kind.UNKNOWN_TOOL
        # Whoever may not call execute calls nothing through it.
        assert told(call(shop, EXECUTE, {"item_id": "a/other"}, within("rye:*")))[0] is Kind.UNKNOWN_TOOL


def test_execute_of_an_unsigned_tool_is_refused(place: Place) -> None:
    """Attack: a tool that the model wrote itself, run through execute."""
    place.write("tools/a/new.py", answer("new"), signed=False)
    tampered = place.write("tools/a/bent.py", answer("bent"))
    tampered.write_bytes(tampered.read_bytes().replace(b"bent", b"evil"))
    with place.open(level=Level.PORTABLE) as shop:
        for name in ("a/new", "a/bent"):
            refused = call(shop, EXECUTE, {"item_id": name})
            assert told(refused)[0] is Kind.DENIED
            assert outcome(refused) == outcome(call(shop, f"rye:{name}", {}))


@pytest.mark.parametrize(
    "item_id",
    ["manifest:project/t", "t", "tool:t", "rye:manifest:project/t", "toolcrib:rye/execute", EXECUTE, ""],
)
def test_execute_of_anything_but_a_rye_item_finds_none(item_id: str, place: Place) -> None:
    """Attack: execute as a second way to the tools of other formats, or to itself without an end."""
    tools = [{"name": "t", "description": "d", "schema": {"type": "object"}, "command": ["./tools/bin/t"]}]
    (place.project / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    with place.open(level=Level.PORTABLE) as shop:
        assert "manifest:project/t" in shop.catalog.keys
        assert told(call(shop, EXECUTE, {"item_id": item_id}))[0] is Kind.UNKNOWN_TOOL


@pytest.mark.parametrize(
    "arguments",
    [None, {}, {"item_id": 5}, {"item_id": "a/echo", "parameters": []}, {"item_id": "a/echo", "n": 1},
     {"item_id": "a/echo", "dry_run": "yes"}],
)  # fmt: skip
def test_execute_with_wrong_arguments_runs_nothing_and_is_recorded(
    arguments: dict[str, Any] | None, place: Place
) -> None:
    with place.open(level=Level.PORTABLE) as shop:
        assert told(call(shop, EXECUTE, arguments))[0] is Kind.INVALID_ARGUMENTS
    assert [each["key"] for each in place.records() if each["what"] == "begin"] == [EXECUTE]


def test_whoever_is_refused_execute_itself_calls_nothing_through_it(place: Place) -> None:
    rules = ({"match": {"key": EXECUTE}, "decision": "deny", "because": "no"},)
    with place.open(level=Level.PORTABLE, policy=rules, policy_places=("here",)) as shop:
        assert "execute" not in names(shop)
        assert told(call(shop, EXECUTE, {"item_id": "a/echo"}))[0] is Kind.DENIED
        assert call(shop, "rye:a/echo", {}).error is None


def test_a_switched_off_tool_stays_off_through_execute(place: Place) -> None:
    with place.open(level=Level.PORTABLE) as shop:
        switch_off(shop.hands.keep.opened(), Disabled(tool="rye:a/echo", reason="broken", until=None), 0.0)
        assert told(call(shop, EXECUTE, {"item_id": "a/echo"}))[0] is Kind.DENIED


# -- fetch --------------------------------------------------------------------------------------------------


def test_fetch_gives_an_item_by_id_with_its_source(place: Place) -> None:
    with place.open(level=Level.PORTABLE) as shop:
        result = call(shop, FETCH, {"item_id": "tool:a/echo"})
        assert result.error is None, result
        found = json.loads(result.content)
        assert (found["status"], found["item_id"], found["callable"]) == ("success", "tool:a/echo", True)
        assert (found["category"], found["version"], found["trust"]) == ("a", "1.0.0", "signed")
        assert found["parameters"]["properties"] == {"n": {"type": "integer"}}
        assert found["content"] == (place.tools / "a" / "echo.py").read_text(encoding="utf-8")
        assert str(place.root) not in result.content.replace(found["content"], "")


def test_fetch_finds_by_a_query_within_a_scope(place: Place) -> None:
    place.write("tools/b/echo.py", ECHO.replace('__category__ = "a"', '__category__ = "b"'))
    with place.open(level=Level.PORTABLE) as shop:

        def found(**arguments: Any) -> list[str]:
            return [each["item_id"] for each in json.loads(call(shop, FETCH, arguments).content)["results"]]

        assert found(query="echo") == ["tool:a/echo", "tool:b/echo"]
        assert found(query="echo", limit=1) == ["tool:a/echo"]
        assert found(query="echo", scope="tool.b.*") == ["tool:b/echo"]
        assert found(query="echo AND NOT echo") == []
        for wrong in (
            {},
            {"query": "x", "item_id": "y"},
            {"query": "x", "scope": "directive"},
            {"query": "x", "limit": 0},
        ):
            assert told(call(shop, FETCH, wrong))[0] is Kind.INVALID_ARGUMENTS


def test_fetch_shows_nothing_that_its_caller_is_not_offered(place: Place) -> None:
    """Attack: fetch as a way to the source of what is hidden, denied or bent."""
    bent = place.write("tools/a/bent.py", answer("bent"))
    bent.write_bytes(bent.read_bytes().replace(b"bent", b"evil"))
    rules = ({"match": {"key": "rye:a/other"}, "decision": "deny", "because": "no"},)
    with place.open(level=Level.PORTABLE, policy=rules, policy_places=("here",)) as shop:
        for hidden, reach in (("a/other", None), ("a/bent", None), ("a/echo", within(FETCH, "rye:b/*"))):
            result = call(shop, FETCH, {"item_id": hidden}, reach)
            assert told(result) == (Kind.INVALID_ARGUMENTS, f"Tool not found: {hidden}")
            assert result.error is not None
            assert hidden not in str(result.error.hint)
        near = call(shop, FETCH, {"item_id": "tool:a/ecko"}).error
        assert near is not None
        assert near.hint == "did you mean a/echo?"
        assert json.loads(call(shop, FETCH, {"query": "other OR bent"}).content)["results"] == []


def test_fetch_follows_no_link_out_of_the_space(place: Place) -> None:
    """Attack: an item replaced by a link to a file of the user's own, to be read out to the model."""
    (place.root / "secret.py").write_text("hunter2 = 1\n", encoding="utf-8")
    with place.open(level=Level.PORTABLE, unsigned="warn") as shop:
        path = place.write("tools/a/new.py", answer("new"), signed=False)
        shop.reload()
        path.unlink()
        path.symlink_to(place.root / "secret.py")
        result = call(shop, FETCH, {"item_id": "a/new"})
        assert result.error is not None
        assert "hunter2" not in result.content


def test_attack_a_link_put_in_the_place_of_an_item_once_it_was_found_to_be_none(place: Place) -> None:
    secret = place.root / "secret.py"
    secret.write_text("hunter2 = 1\n", encoding="utf-8")
    with place.open(level=Level.PORTABLE, unsigned="warn") as shop:
        path = place.write("tools/a/new.py", answer("new"), signed=False)
        shop.reload()
        assert call(shop, FETCH, {"item_id": "a/new"}).error is None
        with before_opening(path, files.read, lambda: turn(path, secret)):
            result = call(shop, FETCH, {"item_id": "a/new"})
        assert result.error is not None
        assert "hunter2" not in result.content


def test_a_tool_named_like_a_key_of_ours_gets_none_of_its_calls(place: Place) -> None:
    """Attack: a tool whose bare name is the key of fetch, to see what it is asked."""
    tools = [{"name": FETCH, "description": "d", "schema": {"type": "object"}, "command": ["./tools/bin/t"]}]
    (place.project / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    with place.open(level=Level.PORTABLE) as shop:
        result = call(shop, FETCH, {"query": "echo"})
        assert (result.key, result.error) == (FETCH, None)


def test_sign_tool_counts_only_from_a_trusted_file(tmp_path: Path) -> None:
    """Attack: a clone whose configuration lets the model sign what it wrote."""
    (tmp_path / "toolcrib.toml").write_text("[serve]\nsign_tool = true\n", encoding="utf-8")
    found = resolve(
        Environment.read({"HOME": str(tmp_path / "home"), "PATH": ""}), cwd=str(tmp_path), sources=[]
    )
    assert not found.serve.sign_tool
