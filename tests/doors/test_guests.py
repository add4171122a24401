"""Tokens through all doors of a served process: what each may see and do, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.doors.test_serving_attacks import Server, project, served
from tests.program import toolcrib
from tests.wire import Heard, asked

RIGHTS = ("call", "approve", "audit", "admin")
HTML = "Accept: text/html"


@dataclass(frozen=True)
class House:
    server: Server
    folder: Path
    tokens: dict[str, str]

    def ask(self, who: str, method: str, path: str, *lines: str, body: object = None) -> Heard:
        text = b"" if body is None else json.dumps(body).encode()
        return asked(self.server.port, method, path, self.bearer(who), *lines, body=text)

    def bearer(self, who: str) -> str:
        return f"Authorization: Bearer {self.tokens[who]}"

    def key(self, name: str) -> str:
        return quote(f"manifest:{self.folder.name}/{name}", safe="")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = project(tmp_path_factory.mktemp("guests"))

    def made(name: str, *options: str) -> str:
        said = toolcrib("token", "create", name, *options, cwd=folder, home=folder / "home")
        assert said.status == 0, said
        return said.out.strip()

    tokens = {right: made(right, "--right", right) for right in RIGHTS}
    tokens["narrow"] = made("narrow", "--tools", "*/add", *(f"--right={right}" for right in RIGHTS))
    tokens["reader"] = made("reader", "--effect", "read")
    with served(folder, "--host", "0.0.0.0") as server:
        yield House(server, folder, tokens)


NEEDS = {
    ("POST", "/v1/tools/{add}/call"): "call",
    ("POST", "/v1/tools/{add}/disable"): "admin",
    ("POST", "/v1/tools/{add}/enable"): "admin",
    ("GET", "/v1/audit"): "audit",
    ("GET", "/v1/audit/verify"): "audit",
    ("GET", "/metrics"): "audit",
    ("GET", "/v1/approvals"): "approve",
    ("POST", "/v1/approvals/nothing"): "approve",
    ("GET", "/calls"): "audit",
    ("GET", "/approvals"): "approve",
    ("GET", "/audit"): "audit",
}
"""What is done, and the one right that it needs."""


@pytest.mark.parametrize(("method", "path"), NEEDS)
def test_what_a_right_is_for_needs_that_right_and_no_other(house: House, method: str, path: str) -> None:
    needed = NEEDS[method, path]
    where = path.replace("{add}", house.key("add"))
    lines = () if path.startswith(("/v1/", "/metrics")) else (HTML,)
    for right in RIGHTS:
        if right == needed:
            continue
        answer = house.ask(right, method, where, *lines, body={} if method == "POST" else None)
        assert answer.status == 403, (right, answer)
    if method == "GET":
        assert house.ask(needed, method, where, *lines).status == 200


def test_without_the_right_to_call_tools_are_seen_and_not_called(house: House) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
    refused = house.server.mcp(call, house.bearer("audit"))
    assert (refused.status, b"hello" in refused.body) == (403, False)
    listed = house.server.mcp({**call, "method": "tools/list", "params": {}}, house.bearer("audit"))
    assert b'"add"' in listed.body
    assert b"hello" in house.server.mcp(call, house.bearer("call")).body


def test_tools_beyond_the_reach_of_a_token_look_absent_through_every_door(house: House) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    bearer = house.bearer("narrow")
    seen = [
        house.server.mcp(call, bearer),
        house.ask("narrow", "GET", "/v1/tools"),
        house.ask("narrow", "GET", "/", HTML),
        house.ask("narrow", "GET", "/v1/problems"),
        house.ask("narrow", "GET", "/problems", HTML),
        house.ask("narrow", "POST", "/v1/select", body={"message": "call back"}),
    ]
    for answer in seen:
        assert answer.status == 200, answer
        assert b"call_back" not in answer.body
    for answer in seen[:3]:
        assert b"add" in answer.body
    hidden, absent = house.key("call_back"), house.key("nothing")
    for method, path in (
        ("GET", "/v1/tools/{}"), ("POST", "/v1/tools/{}/call"), ("GET", "/tools/{}"),
        ("POST", "/v1/tools/{}/explain"), ("POST", "/v1/tools/{}/disable"),
    ):  # fmt: skip
        lines = () if path.startswith("/v1/") else (HTML,)
        body: object = {} if method == "POST" else None
        first = house.ask("narrow", method, path.format(hidden), *lines, body=body)
        second = house.ask("narrow", method, path.format(absent), *lines, body=body)
        if not path.endswith("disable"):  # a name that is not there may be switched off as well
            assert first.status == 404, (path, first)
        assert first.status == second.status, (path, first, second)
    called = {**call, "method": "tools/call", "params": {"name": "call_back", "arguments": {"port": 1}}}
    assert b"unknown tool" in house.server.mcp(called, bearer).body
    wide = house.server.mcp(call, house.bearer("call"))
    assert b"call_back" in wide.body


def test_attack_problems_and_charts_tell_of_tools_beyond_reach(house: House) -> None:
    for name in ("add", "call_back", "call_back"):
        house.ask("call", "POST", f"/v1/tools/{house.key(name)}/call", body={"arguments": {}})
    assert b"bad_one" in house.ask("admin", "GET", "/v1/problems").body
    for path in ("/v1/problems", "/problems"):
        told = house.ask("narrow", "GET", path).body
        assert b"bad_one" not in told
        assert str(house.folder).encode() not in told
    counted = [
        int(re.findall(rb"([0-9,]+) calls? ended in the last", house.ask(who, "GET", "/audit", HTML).body)[0])
        for who in ("narrow", "audit")
    ]
    assert 0 < counted[0] < counted[1]
    stats = json.loads(house.ask("narrow", "GET", "/v1/audit/stats").body)
    assert counted[0] == stats["calls"]


def test_attack_metrics_count_the_calls_of_tools_beyond_reach(house: House) -> None:
    refused = house.ask("narrow", "GET", "/metrics")  # it has every right
    assert (refused.status, b"toolcrib_" in refused.body) == (403, False), refused
    assert b"reaches every tool" in refused.body
    assert b"toolcrib_calls_total" in house.ask("audit", "GET", "/metrics").body


def test_a_token_for_reading_sees_no_tool_that_may_change_something(house: House) -> None:
    listed = json.loads(house.ask("reader", "GET", "/v1/tools").body)
    assert listed["tools"] == []
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
    assert b"unknown tool" in house.server.mcp(call, house.bearer("reader")).body


def test_the_name_of_a_token_is_the_caller_in_records(house: House) -> None:
    assert house.ask("call", "POST", f"/v1/tools/{house.key('add')}/call", body={}).status == 200
    records = toolcrib("audit", "export", cwd=house.folder, home=house.folder / "home").out
    assert '"caller":"call"' in records.replace(": ", ":")
    for value in house.tokens.values():
        assert value not in records


@pytest.mark.parametrize(
    "path", ["/", "/v1/tools", "/mcp", "/nothing", "/login", "/static/x/y", "/metrics", "/readyz"]
)
@pytest.mark.parametrize("who", ["call", None])
def test_every_response_says_how_it_may_be_read(house: House, path: str, who: str | None) -> None:
    lines = () if who is None else (house.bearer(who),)
    answer = asked(house.server.port, "GET", path, *lines)
    assert answer.headers["x-content-type-options"] == "nosniff", answer
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_a_browser_logs_in_with_a_token_and_out_again(house: House) -> None:
    port = house.server.port
    assert asked(port, "GET", "/", HTML).headers["location"] == "/login"
    page = asked(port, "GET", "/login", HTML)
    assert page.status == 200
    origin = f"Origin: http://127.0.0.1:{port}"
    body = json.dumps({"token": house.tokens["call"]}).encode()
    assert asked(port, "POST", "/login", "Origin: https://evil.example", body=body).status == 403
    answer = asked(port, "POST", "/login", origin, body=body)
    assert answer.status == 204
    cookie = f"Cookie: {answer.headers['set-cookie'].partition(';')[0]}"
    assert asked(port, "GET", "/", HTML, cookie).status == 200
    path = f"/v1/tools/{house.key('add')}/call"
    assert asked(port, "POST", path, cookie, body=b"{}").status == 403
    assert asked(port, "POST", path, cookie, origin, body=b"{}").status == 200
    assert asked(port, "POST", "/logout", cookie, origin).status == 204
    assert asked(port, "GET", "/v1/tools", cookie).status == 401
