"""A result that was cut can be read on through the same face, by the caller that made the call alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.mcp_client import Served, request, serving
from toolcrib.config import Config, Environment
from toolcrib.doors._entrance import Guest, Right
from toolcrib.model import Reach

LONG = "é line of text\n" * 8_000
OTHERS = {
    "eve": Guest(name="eve", rights=frozenset({Right.CALL})),
    "far": Guest(name="ann", reach=Reach(tools=("python:*/other",)), rights=frozenset({Right.CALL})),
}
LINK = re.compile(r"toolcrib://results/[0-9a-z]+\?offset=[0-9]+")


def long() -> str:
    """Say much."""
    return LONG


def table() -> dict[str, list[str]]:
    """Give much."""
    return {"rows": ["é" * 100] * 1_000}


def other() -> str:
    """Say little."""
    return "x"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("long")
    environment = Environment.read({"HOME": str(folder), "USER": "ann"})
    config = Config(state=str(folder / "state"), result_bytes=10_000)
    tools = [long, table, other]
    with (
        toolcrib.open(config=config, environment=environment, tools=tools) as opened,
        serving(opened) as held,
    ):
        held.guests.update(OTHERS)
        held.guests["auditor"] = Guest(name="paul", rights=frozenset({Right.AUDIT}))
        yield held


def ask(served: Served, era: str, method: str, params: dict[str, Any], **headers: str) -> Any:
    if era == "older":
        return served.begin(**headers).send(request(method, params)).message
    named = {"mcp-name": params["uri"]} if "uri" in params else {}
    return served.ask(method, params, **named, **headers).message


def read(served: Served, era: str, uri: str, **headers: str) -> Any:
    return ask(served, era, "resources/read", {"uri": uri}, **headers)


@pytest.mark.parametrize("era", ["older", "newer"])
def test_a_cut_result_names_a_resource_and_it_leads_to_the_rest(served: Served, era: str) -> None:
    content = ask(served, era, "tools/call", {"name": "long", "arguments": {}})["result"]["content"]
    text, link = content[0]["text"], content[1]
    assert "toolcrib audit" not in text  # no model can run a command
    assert link["type"] == "resource_link"
    assert text.endswith(f"read on: the resource {link['uri']}")
    whole, uri = text.partition("\n… cut: ")[0], link["uri"]
    for _ in range(20):
        (part,) = read(served, era, uri)["result"]["contents"]
        assert part["uri"] == uri
        assert part["mimeType"] == "text/plain"
        words, _, rest = part["text"].partition("\n… cut: ")
        whole += words
        if not rest:
            break
        (uri,) = LINK.findall(rest)
    assert whole == LONG


def test_json_that_was_cut_stays_json_and_names_the_resource(served: Served) -> None:
    content = ask(served, "newer", "tools/call", {"name": "table", "arguments": {}})["result"]["content"]
    told = json.loads(content[0]["text"])
    assert told["truncated"] is True
    assert LINK.findall(told["read_on"]) == [content[1]["uri"]]


@pytest.mark.parametrize("era", ["older", "newer"])
def test_one_client_never_reads_what_another_one_was_given(served: Served, era: str) -> None:
    """Attack: a client shows the address of another caller's result, seen in a log or guessed."""
    content = ask(served, era, "tools/call", {"name": "long", "arguments": {}})["result"]["content"]
    uri = content[1]["uri"]
    for token in OTHERS:
        answer = read(served, era, uri, authorization=token)
        assert "unknown resource" in answer["error"]["message"], token
    assert "contents" in read(served, era, uri, authorization="auditor")["result"]


def test_an_address_that_is_none_is_refused(served: Served) -> None:
    content = ask(served, "newer", "tools/call", {"name": "long", "arguments": {}})["result"]["content"]
    uri = str(content[1]["uri"]).partition("?")[0]
    for wrong in (
        f"{uri}?",
        f"{uri}?offset=-1",
        f"{uri}?offset=1e3",
        f"{uri}?offset=٣",
        f"{uri}/..?offset=0",
    ):
        assert "unknown resource" in read(served, "older", wrong)["error"]["message"], wrong
    (part,) = read(served, "newer", f"{uri}?offset=999999999")["result"]["contents"]
    assert part["text"] == ""


@pytest.mark.parametrize("era", ["older", "newer"])
def test_an_address_without_an_offset_is_the_beginning(served: Served, era: str) -> None:
    content = ask(served, era, "tools/call", {"name": "long", "arguments": {}})["result"]["content"]
    uri = str(content[1]["uri"]).partition("?")[0]
    (part,) = read(served, era, uri)["result"]["contents"]
    (same,) = read(served, era, f"{uri}?offset=0")["result"]["contents"]
    assert part["text"] == same["text"]
    assert LONG.startswith(part["text"].partition("\n… cut: ")[0])
    for token in OTHERS:
        assert "unknown resource" in read(served, era, uri, authorization=token)["error"]["message"], token


def test_nothing_more_is_listed_for_it(served: Served) -> None:
    assert ask(served, "newer", "resources/list", {})["result"]["resources"] == []
    assert ask(served, "newer", "resources/templates/list", {})["result"]["resourceTemplates"] == []


def test_each_face_names_its_own_way_to_read_on(tmp_path: Path) -> None:
    environment = Environment.read({"HOME": str(tmp_path), "USER": "ann"})
    config = Config(state=str(tmp_path / "state"), result_bytes=10_000)
    with toolcrib.open(config=config, environment=environment, tools=[long]) as opened:
        result = opened.call("long")
        assert result.content.endswith(
            f"Ask for less, or read on: Crib.result_page('{result.call_id}', offset={offset_of(result)})"
        )
        page, size = opened.result_page(result.call_id, offset=offset_of(result))
        assert size == len(LONG.encode())
        assert LONG.encode().endswith(page[-100:]) or page in LONG.encode()
        by_shell = opened.call_text("long", "{}", door="cli")
        told = f"`toolcrib audit show {by_shell.call_id} --output --offset {offset_of(by_shell)}`"
        assert by_shell.content.endswith(told)
        by_http = opened.call_text("long", "{}", door="http")
        assert by_http.content.endswith(f"GET /v1/results/{by_http.call_id}?offset={offset_of(by_http)}")


def offset_of(result: toolcrib.ToolResult) -> int:
    return len(result.content.partition("\n… cut: ")[0].encode())
