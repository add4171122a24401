"""A wrong name is answered with the name that was meant: in the same words for the library, the command line,
HTTP, MCP and every dialect, and never with the name of a tool that is hidden from the caller."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.doors.web import served
from tests.mcp_client import Served, serving
from tests.program import toolcrib as program
from tests.signed import Place, answer
from toolcrib.config import Config, Environment
from toolcrib.dialects import DIALECTS
from toolcrib.doors._entrance import Guest
from toolcrib.errors import Kind
from toolcrib.model import Reach, ToolCall

MEANT = "did you mean get_weather?"
UNKNOWN_NAME = 'unknown name "tz"; did you mean "timezone"?'
HIDDEN = ("get_wether_secret", "get_wether_off", "get_wether_denied")


def get_weather(city: str, timezone: str = "UTC") -> str:
    """Tell the weather."""
    return f"{city}, {timezone}"


def get_wether_secret() -> str:
    """Beyond the reach of some."""
    return "secret"


def get_wether_off() -> str:
    """Switched off."""
    return "off"


def get_wether_denied() -> str:
    """Denied by a rule."""
    return "denied"


@pytest.fixture(scope="module")
def crib(tmp_path_factory: pytest.TempPathFactory) -> Iterator[toolcrib.Crib]:
    folder = tmp_path_factory.mktemp("near")
    rules = ({"match": {"name": "get_wether_denied"}, "decision": "deny", "because": "no"},)
    config = Config(state=str(folder / "state"), policy=rules, policy_places=("here",))
    environment = Environment.read({"HOME": str(folder), "USER": "ann"})
    tools = [get_weather, get_wether_off, get_wether_denied]
    with toolcrib.open(config=config, environment=environment, tools=tools) as opened:
        opened.disable("get_wether_off", reason="too wet")
        yield opened


def asked(crib: toolcrib.Crib, name: str, arguments: dict[str, Any]) -> tuple[ToolCall, Any]:
    call = ToolCall(id="1", tool=name, arguments=arguments, spoken=name)
    (result,) = crib.call_all([call])
    return call, result


# -- the same words -----------------------------------------------------------------------------------------


def test_the_library_has_the_near_name_as_a_hint_and_as_data(crib: toolcrib.Crib) -> None:
    result = crib.call("get_wether", {})
    assert result.error is not None
    assert result.content == "error: Unknown tool: get_wether"  # the text of the format stays as it is
    assert (result.error.kind, result.error.hint) == (Kind.UNKNOWN_TOOL, MEANT)
    assert result.error.details == {"did_you_mean": ["get_weather"]}
    wrong = crib.call("get_weather", {"city": "x", "tz": "y"})
    assert wrong.error is not None
    assert wrong.error.message == UNKNOWN_NAME


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_is_told_the_near_name_in_every_dialect(crib: toolcrib.Crib, dialect: str) -> None:
    call, result = asked(crib, "get_wether", {})
    written = json.dumps(DIALECTS[dialect].write_result(call, result))
    assert "error: Unknown tool: get_wether" in written
    assert written.count(MEANT) == 1
    call, result = asked(crib, "get_weather", {"city": "x", "tz": "y"})
    written = json.dumps(DIALECTS[dialect].write_result(call, result))
    assert json.dumps(UNKNOWN_NAME)[1:-1] in written
    assert "toolcrib show" not in written


def test_a_call_over_http_has_the_near_name(crib: toolcrib.Crib) -> None:
    with served(crib) as server:
        answer = server.call("get_wether")
        assert answer.status_code == 404
        assert answer.json()["error"]["hint"] == MEANT
        assert answer.json()["error"]["details"] == {"did_you_mean": ["get_weather"]}
        assert answer.json()["content"] == f"error: Unknown tool: get_wether\n{MEANT}"
        answer = server.call("get_weather", {"city": "x", "tz": "y"})
        assert answer.json()["error"]["message"] == UNKNOWN_NAME
        assert server.get("/v1/tools/get_weather_").json()["hint"].startswith("did you mean get_weather")


def ask(server: Served, era: str, name: str, arguments: dict[str, Any], **headers: str) -> Any:
    params = {"name": name, "arguments": arguments}
    if era == "older":
        return server.begin(**headers).ask("tools/call", params).message
    return server.ask("tools/call", params, **headers).message


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[toolcrib.Crib]:
    """A crib whose tool ``t/a`` models know by another name."""
    place = Place(tmp_path_factory.mktemp("spoken"))
    place.write("tools/t/a.py", answer("x", "t"))
    with place.open() as opened:
        yield opened


@pytest.mark.parametrize("era", ["older", "newer"])
def test_over_mcp_the_near_name_is_one_that_models_have(spoken: toolcrib.Crib, era: str) -> None:
    with serving(spoken) as server:
        for name in ("t_aa", "t_as"):
            error = ask(server, era, name, {})["error"]
            assert error["data"]["hint"] == "did you mean t_a?"


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic", "gemini", "ollama"])
def test_in_a_dialect_the_near_name_is_one_that_was_declared(spoken: toolcrib.Crib, dialect: str) -> None:
    names = spoken.declare(dialect).names
    assert "t_a" in names.keys
    function = {"name": "t_aa", "arguments": "{}"}
    message = {
        "openai": {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]},
        "openai-responses": {"type": "function_call", "call_id": "1", **function},
        "anthropic": {"type": "tool_use", "id": "1", "name": "t_aa", "input": {}},
        "gemini": {"functionCall": {"name": "t_aa", "args": {}}},
        "ollama": {"role": "assistant", "tool_calls": [{"function": function}]},
    }[dialect]
    (call,) = DIALECTS[dialect].read_calls(message, names)
    (result,) = spoken.call_all([call])
    assert json.dumps(DIALECTS[dialect].write_result(call, result)).count("did you mean t_a?") == 1


@pytest.mark.parametrize("era", ["older", "newer"])
def test_a_call_over_mcp_has_the_near_name(crib: toolcrib.Crib, era: str) -> None:
    with serving(crib) as server:
        error = ask(server, era, "get_wether", {})["error"]
        assert error["message"] == f"Unknown tool: get_wether; {MEANT}"
        assert error["data"] == {"kind": "unknown_tool", "hint": MEANT}
        result = ask(server, era, "get_weather", {"city": "x", "tz": "y"})["result"]
        assert [block["text"] for block in result["content"]] == [f"error: {UNKNOWN_NAME}"]
        nothing = ask(server, era, "xyz", {})["error"]
        assert (nothing["message"], nothing["data"]["hint"]) == (
            "Unknown tool: xyz",
            "`tools/list` shows what there is",
        )


def test_the_command_line_prints_the_near_name(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"timezone": {"type": "string"}}, "additionalProperties": False}
    tool = {"name": "get_weather", "description": "d", "schema": schema, "command": ["./tools/bin/run"]}
    (tmp_path / "tools" / "bin").mkdir(parents=True)
    (tmp_path / "tools" / "bin" / "run").write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    (tmp_path / "tools" / "bin" / "run").chmod(0o755)
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")

    def said(*arguments: str) -> str:
        state = ("--state", tmp_path / "state")
        return program("call", *arguments, "--from", tmp_path, *state, cwd=tmp_path).err

    assert said("get_wether") == f"toolcrib: unknown_tool: unknown tool: get_wether\n  {MEANT}\n"
    assert said("get_weather", '{"tz": "x"}').startswith(f"toolcrib: invalid_arguments: {UNKNOWN_NAME}\n")


# -- never what is hidden -----------------------------------------------------------------------------------

NARROW = Guest(name="bob", reach=Reach(tools=("python:*/get_weather",)))


def hidden_from(texts: Sequence[str]) -> bool:
    return not any(name in text for name in HIDDEN for text in texts)


def test_a_tool_that_is_off_or_denied_is_never_suggested(crib: toolcrib.Crib) -> None:
    for name in ("get_wether_of", "get_wether_denie", "get_wether_", "get_wether_off2"):
        result = crib.call(name, {})
        assert result.error is not None
        assert hidden_from([str(result.error.hint), str(result.error.details)]), name


def test_nothing_is_suggested_while_what_is_off_cannot_be_read(tmp_path: Path) -> None:
    environment = Environment.read({"HOME": str(tmp_path), "USER": "ann"})
    config = Config(state=str(tmp_path / "state"))
    with toolcrib.open(config=config, environment=environment, tools=[get_weather]) as opened:
        opened.disable("get_weather", reason="too wet")
        opened.enable("get_weather")
    for path in (tmp_path / "state").glob("state.sqlite*"):
        path.unlink()
    (tmp_path / "state" / "state.sqlite").write_bytes(b"garbage " * 1000)
    with toolcrib.open(config=config, environment=environment, tools=[get_weather]) as opened:
        error = opened.call("get_wether", {}).error
        assert error is not None
        assert (error.kind, error.details) == (Kind.UNKNOWN_TOOL, None)


def test_a_tool_beyond_the_callers_reach_is_never_suggested(tmp_path: Path) -> None:
    """Attack: a caller of one tool who spells out, name by name, what else there is."""
    environment = Environment.read({"HOME": str(tmp_path), "USER": "ann"})
    config = Config(state=str(tmp_path / "state"))
    tools = [get_weather, get_wether_secret]
    names = ("get_wether_secret", "get_wether_secre", "get_wether", "get_wether_s")
    with toolcrib.open(config=config, environment=environment, tools=tools) as opened:
        with serving(opened, NARROW) as server:
            for era in ("older", "newer"):
                for name in names:
                    error = ask(server, era, name, {})["error"]
                    assert hidden_from([json.dumps(error).replace(name, "")]), name
                assert MEANT in ask(server, era, "get_wether", {})["error"]["message"]
        with served(opened, guest=NARROW) as door:
            for name in names:
                for answer in (door.call(name), door.get(f"/v1/tools/{name}")):
                    assert answer.status_code == 404
                    assert hidden_from([answer.text.replace(name, "")]), name
            assert MEANT in door.get("/v1/tools/get_wether").text
