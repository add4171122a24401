"""The HTTP API as a client sees it: a real server, real connections, every route and every status."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import jsonschema_rs
import pytest
from msgspec.structs import replace
from schemathesis.specs.openapi.definitions import OPENAPI_31

from tests.doors.web import WAIT_S, Served, opened, served
from tests.program import toolcrib as program
from tests.signed import Place
from tests.signed import python as signed_python
from toolcrib import Failed
from toolcrib.config import Config, read_file
from toolcrib.doors import http as door
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Event, EventKind
from toolcrib.doors._streams import STREAMS_PER_GUEST_MAX
from toolcrib.doors._web import BODY_TIMEOUT_S
from toolcrib.functions import tool
from toolcrib.model import Effect, Reach, Right
from toolcrib.schema import DRAFT, meta_validator

PROBLEM = "application/problem+json"
LONG = "x" * 300_000


@tool(effect="read", namespace="t")
def echo(text: str = "") -> str:
    """Says it again."""
    return text


@tool(effect="read", namespace="t")
def double(number: int) -> dict[str, int]:
    """Twice as much."""
    return {"twice": 2 * number}


@tool(effect="change", namespace="t")
def fail() -> str:
    """Never works."""
    raise Failed("it is broken", "mend it")


@tool(effect="change", namespace="t")
def pay(amount: int) -> str:
    """A rule asks about it."""
    return f"paid {amount}"


@tool(effect="read", namespace="t")
def long() -> str:
    """More than fits."""
    return LONG


TOOLS: list[Callable[..., object]] = [echo, double, fail, pay, long]
ASK = {"match": {"name": "pay"}, "decision": "ask", "because": "costs money"}


def write_program(folder: Path, name: str, script: str) -> Path:
    """A tool of the manifest format that is a program of its own."""
    path = folder / "tools" / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    said = {"name": name, "description": f"A {name}.", "schema": {"type": "object"}}
    written = {"tools": [{**said, "command": [f"./tools/bin/{name}"]}]}
    (folder / "tools.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def configured(state: Path) -> Config:
    return Config(state=str(state), policy=(ASK,), policy_places=("toolcrib.toml:1 policy[0]",))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state = tmp_path_factory.mktemp("http") / "state"
    with opened(state, tools=TOOLS, config=configured(state)) as crib, served(crib) as found:
        yield found


@pytest.fixture(scope="module")
def shapes(server: Served) -> Any:
    """What the document promises, by operation and status."""
    return server.get("/openapi.json").json()


def promised(document: Any, method: str, path: str, answer: httpx.Response) -> None:
    """The answer is one that the document promises for the route."""
    reply = document["paths"][path][method.lower()]["responses"][str(answer.status_code)]
    if answer.status_code == 304:
        return
    media = answer.headers["content-type"].partition(";")[0]
    schema = {**reply["content"][media]["schema"], "components": document["components"]}
    assert [str(each) for each in jsonschema_rs.validator_for(schema).iter_errors(answer.json())] == []


def refused(answer: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """A problem document with this status, which says these words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["type"] == "about:blank"
    for word in words:
        assert word in f"{found['detail']} {found['hint']}"
    return found


# -- what there is ------------------------------------------------------------------------------------------


def test_the_catalog_is_listed_as_the_command_does(server: Served, shapes: Any) -> None:
    answer = server.get("/v1/tools")
    promised(shapes, "GET", "/v1/tools", answer)
    found = answer.json()
    assert [row["name"] for row in found["tools"]] == [each.__name__ for each in TOOLS]
    assert found["next"] is None
    row = found["tools"][0]
    assert row["key"] == "python:t/echo"
    assert row["trust"] == "unsigned"
    validator = jsonschema_rs.validator_for({**shapes["components"]["schemas"]["ToolRow"]})
    assert all(validator.is_valid(each) for each in found["tools"])


def test_filters_narrow_the_catalog(server: Served) -> None:
    names = lambda query: [row["name"] for row in server.get(f"/v1/tools?{query}").json()["tools"]]  # noqa: E731
    assert names("effect=change") == ["fail", "pay"]
    assert names("format=manifest") == []
    assert names("trust=unsigned&effect=read") == ["echo", "double", "long"]
    assert names("trust=signed") == []


def test_a_blocked_tool_is_listed_as_that_and_names_what_blocks_it(tmp_path: Path, shapes: Any) -> None:
    place = Place(tmp_path)
    body = "import helper\n\n\ndef execute(params, project_path):\n    return {'success': True}\n"
    place.write("tools/a/t.py", signed_python(body))
    helper = place.write("tools/a/helper.py", "SAID = 1\n")
    helper.write_bytes(helper.read_bytes() + b"SAID = 2\n")
    with place.open() as crib, served(crib) as found:
        assert [row["name"] for row in found.get("/v1/tools?trust=blocked").json()["tools"]] == ["a/t"]
        answer = found.get("/v1/tools/a%2Ft")
        promised(shapes, "GET", "/v1/tools/{name}", answer)
        assert (answer.json()["trust"], answer.json()["blocked_by"]) == ("blocked", str(helper))


def test_pages_follow_each_other_to_the_end_and_lose_nothing(server: Served) -> None:
    seen, cursor, pages = [], "", 0
    while True:
        found = server.get(f"/v1/tools?page_size=2{cursor and '&cursor=' + cursor}").json()
        seen += [row["name"] for row in found["tools"]]
        pages += 1
        assert len(found["tools"]) <= 2
        if found["next"] is None:
            break
        cursor = found["next"]
    assert seen == [each.__name__ for each in TOOLS]
    assert pages == 3
    filtered = server.get("/v1/tools?page_size=1&effect=change").json()
    assert [row["name"] for row in filtered["tools"]] == ["fail"]
    rest = server.get(f"/v1/tools?page_size=1&effect=change&cursor={filtered['next']}").json()
    assert [row["name"] for row in rest["tools"]] == ["pay"]
    assert rest["next"] is None


def test_an_empty_list_says_why_it_is_empty(server: Served) -> None:
    nothing = server.get("/v1/tools?dialect=openai&format=skill").json()
    assert (nothing["tools"], nothing["note"]) == ([], "no tool fits these filters")
    assert server.get("/v1/tools?dialect=openai").json()["note"] == ""


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic", "gemini", "ollama", "mcp"])
def test_a_dialect_gives_exactly_what_goes_into_a_providers_request(
    server: Served, shapes: Any, dialect: str
) -> None:
    answer = server.get(f"/v1/tools?dialect={dialect}")
    promised(shapes, "GET", "/v1/tools", answer)
    assert answer.json()["tools"] == server.crib.declare(dialect, caller="ann").payload


def test_a_message_sees_the_selected_tools_with_the_reason(server: Served, shapes: Any) -> None:
    answer = server.get("/v1/tools?message=hello&limit=2")
    promised(shapes, "GET", "/v1/tools", answer)
    assert len(answer.json()["tools"]) == 2
    assert all(row["because"] for row in answer.json()["tools"])
    declared = server.get("/v1/tools?message=hello&limit=2&dialect=anthropic").json()
    assert [each["name"] for each in declared["tools"]] == [row["name"] for row in answer.json()["tools"]]


def test_one_record_is_found_by_name_and_by_percent_encoded_key(server: Served, shapes: Any) -> None:
    by_name = server.get("/v1/tools/double")
    promised(shapes, "GET", "/v1/tools/{name}", by_name)
    by_key = server.get(f"/v1/tools/{quote('python:t/double', safe='')}")
    assert by_name.json() == by_key.json()
    assert by_key.json()["input_schema"]["required"] == ["number"]
    refused(server.get("/v1/tools/python:t/double"), 404)
    refused(server.get("/v1/tools/duble"), 404, "double")


def test_selection_answers_as_the_command(server: Served, shapes: Any) -> None:
    plain = server.post("/v1/select", {"message": "hello", "limit": 1})
    promised(shapes, "POST", "/v1/select", plain)
    assert [each["name"] for each in plain.json()] == ["echo"]
    explained = server.post("/v1/select", {"message": "hello", "limit": 1.0, "explain": True})
    promised(shapes, "POST", "/v1/select", explained)
    assert [each["name"] for each in explained.json()["selected"]] == ["echo"]


def test_problems_are_told_as_by_check(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('{"tools": [{"name": "x", "command": "no list"}]}', encoding="utf-8")
    state = tmp_path / "state"
    with opened(state, tools=[echo], paths=[tmp_path / "tools.json"]) as crib, served(crib) as server:
        found = server.get("/v1/problems").json()
        promised(server.get("/openapi.json").json(), "GET", "/v1/problems", server.get("/v1/problems"))
    said = program("--from", tmp_path / "tools.json", "check", "--json", cwd=tmp_path).json
    assert found["problems"]
    assert {each["code"] for each in found["problems"]} == {each["code"] for each in said["problems"]}


def test_rules_that_name_no_tool_are_told_as_by_check_and_not_to_those_who_see_only_some(
    tmp_path: Path,
) -> None:
    write_program(tmp_path, "near", "cat")
    rule = '[[policy]]\nmatch.name = ["near", "naer"]\ndecision = "deny"\nbecause = "x"\n'
    file = tmp_path / "toolcrib.toml"
    file.write_text(f'[[source]]\npath = "tools.json"\n{rule}', encoding="utf-8")
    config = read_file(str(file), trusted=True)
    eve = Guest(name="eve", reach=Reach(tools=("*/near",)))
    with opened(tmp_path / "state", config=config) as crib:
        with served(crib) as server:
            answer = server.get("/v1/problems")
            promised(server.get("/openapi.json").json(), "GET", "/v1/problems", answer)
        with served(crib, guest=eve) as server:
            assert server.get("/v1/problems").json()["problems"] == []
    said = program("--config", file, "check", "--json", cwd=tmp_path).json["problems"]
    (problem,) = answer.json()["problems"]
    assert problem == {**said[-1], "path": problem["path"]}
    assert (problem["code"], problem["line"], problem["hint"]) == ("config.no-tool", 3, "did you mean near?")


def test_what_is_not_as_it_was_locked_is_told_as_by_check_and_not_to_those_who_see_only_some(
    tmp_path: Path,
) -> None:
    write_program(tmp_path, "near", "cat")
    file, state = tmp_path / "toolcrib.toml", tmp_path / "state"
    file.write_text('[[source]]\npath = "tools.json"\n', encoding="utf-8")
    state.mkdir(mode=0o700)
    shared = ("--config", file, "--state", state)
    assert program(*shared, "lock", cwd=tmp_path).status == 0
    write_program(tmp_path, "near", "date")
    config = replace(read_file(str(file), trusted=True), state=str(state))
    with opened(state, config=config) as crib:
        with served(crib) as server:
            answer = server.get("/v1/problems")
            promised(server.get("/openapi.json").json(), "GET", "/v1/problems", answer)
        with served(crib, guest=Guest(name="eve", reach=Reach(tools=("*/near",)))) as server:
            assert server.get("/v1/problems").json()["problems"] == []
    (said,) = program(*shared, "check", "--json", cwd=tmp_path).json["problems"]
    (problem,) = answer.json()["problems"]
    assert problem == {**said, "path": problem["path"]}
    assert (problem["code"], problem["severity"]) == ("lock.drifted", "error")


def test_the_lines_of_rules_are_those_of_the_file_as_it_was_read(tmp_path: Path) -> None:
    """Attack: a file whose keys take minutes to put together, in the place of the one that was read."""
    write_program(tmp_path, "near", "cat")
    rule = '[[policy]]\nmatch.name = "naer"\ndecision = "deny"\nbecause = "x"\n'
    file = tmp_path / "toolcrib.toml"
    file.write_text(f'[[source]]\npath = "tools.json"\n{rule}', encoding="utf-8")
    config = read_file(str(file), trusted=True)
    with opened(tmp_path / "state", config=config) as crib, served(crib) as server:
        for later in (f"# edited\n\n{rule}{rule}", f"a{'.a' * 40_000} = 1\n", None):
            file.write_text(later, encoding="utf-8") if later is not None else file.unlink()
            (problem,) = server.get("/v1/problems").json()["problems"]
            assert (problem["code"], problem["line"]) == ("config.no-tool", 3)


def test_attack_problems_that_name_a_tool_beyond_reach_are_not_told(tmp_path: Path) -> None:
    write_program(tmp_path, "near", "cat")
    far = {"name": "secret_plan", "command": "no list"}
    near = {"name": "near", "description": "n", "schema": {"type": "object"}, "command": ["./tools/bin/near"]}
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [near, far]}), encoding="utf-8")
    eve = Guest(name="eve", reach=Reach(tools=("*/near",)))
    with opened(tmp_path / "state", paths=[tmp_path / "tools.json"]) as crib:
        with served(crib) as server:
            assert "secret_plan" in server.get("/v1/problems").text
        with served(crib, guest=eve) as server:
            told = server.get("/v1/problems")
    assert told.json()["tools"] == 1
    assert "secret_plan" not in told.text


def test_policy_is_explained(server: Served, shapes: Any) -> None:
    answer = server.post("/v1/tools/pay/explain", {"arguments": {"amount": 1}})
    promised(shapes, "POST", "/v1/tools/{name}/explain", answer)
    assert (answer.json()["decision"], answer.json()["because"]) == ("ask", "costs money")
    assert server.post("/v1/tools/echo/explain", {}).json()["decision"] == "allow"
    refused(server.post("/v1/tools/nope/explain", {}), 404)


# -- calling ------------------------------------------------------------------------------------------------


def test_a_call_gives_the_result_document_and_is_recorded(server: Served, shapes: Any) -> None:
    answer = server.call("double", {"number": 21})
    promised(shapes, "POST", "/v1/tools/{name}/call", answer)
    found = answer.json()
    assert (answer.status_code, found["ok"], found["data"]) == (200, True, {"twice": 42})
    record = server.get(f"/v1/audit/{found['call_id']}")
    promised(shapes, "GET", "/v1/audit/{call_id}", record)
    begin, end = record.json()["records"]
    assert (begin["door"], begin["caller"], end["ok"]) == ("http", "ann", True)


@pytest.mark.parametrize(
    ("name", "arguments", "more", "status", "kind"),
    [
        ("nope", {}, {}, 404, "unknown_tool"),
        ("double", {"number": "x"}, {}, 422, "invalid_arguments"),
        ("echo", {"text": "a\x00b"}, {}, 422, "invalid_arguments"),
        ("fail", {}, {}, 502, "failed"),
        ("pay", {"amount": 1000}, {}, 409, "needs_approval"),
    ],
)
def test_a_call_that_reached_the_engine_is_answered_with_its_result_under_the_status_of_its_kind(
    server: Served, shapes: Any, name: str, arguments: object, more: Any, status: int, kind: str
) -> None:
    answer = server.call(name, arguments, **more)
    promised(shapes, "POST", "/v1/tools/{name}/call", answer)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind)
    assert answer.headers["content-type"] == "application/json"


def test_a_dry_run_runs_nothing(server: Served) -> None:
    assert server.call("fail", {}, dry_run=True).json()["ok"] is True


def test_a_timeout_of_the_callers_own_ends_the_call(tmp_path: Path) -> None:
    folder = write_program(tmp_path, "nap", "exec sleep 60")
    with opened(tmp_path / "state", paths=[folder]) as crib, served(crib) as server:
        answer = server.call("nap", timeout_s=0.2)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (504, "timed_out")


@pytest.mark.parametrize("where", ["body", "header"])
def test_calls_with_one_idempotency_key_run_once(server: Served, where: str) -> None:
    key = f"key-{where}"
    body: dict[str, Any] = {"arguments": {"text": where}}
    headers = {}
    if where == "body":
        body["idempotency_key"] = key
    else:
        headers["Idempotency-Key"] = key
    first = server.post("/v1/tools/echo/call", body, headers=headers).json()
    second = server.post("/v1/tools/echo/call", body, headers=headers).json()
    assert first["content"] == second["content"] == where
    assert any(first["call_id"] in note for note in second["notes"])
    both = {"arguments": {}, "idempotency_key": "other"}
    refused(server.post("/v1/tools/echo/call", both, headers={"Idempotency-Key": key}), 422, "differ")


def test_arguments_reach_a_tool_verbatim_where_its_format_promises_that(tmp_path: Path) -> None:
    write_program(tmp_path, "say", 'printf \'{"heard": %s}\\n\' "$(wc -c)"')
    arguments = '{ "a" : 1.50,\n  "é": "\\u00e9" }'
    with opened(tmp_path / "state", paths=[tmp_path]) as crib, served(crib) as server:
        answer = server.client.post(
            "/v1/tools/say/call",
            content=f'{{"dry_run": false, "arguments":  {arguments} }}'.encode(),
            headers={"Content-Type": "application/json; charset=utf-8"},
        )
    assert answer.json()["data"] == {"heard": len(arguments.encode())}, answer.text


def test_a_client_that_leaves_cancels_its_call(tmp_path: Path) -> None:
    folder = write_program(tmp_path, "nap", "exec sleep 60")
    begun, ended = threading.Event(), threading.Event()

    def hear(event: Event) -> None:
        if event.kind is EventKind.CALL_BEGUN:
            begun.set()
        elif event.data.get("kind") == "cancelled":
            ended.set()

    with opened(tmp_path / "state", paths=[folder]) as crib, served(crib) as server:
        server.events.hook(hear)
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), WAIT_S) as connection:
            connection.sendall(
                b"POST /v1/tools/nap/call HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                b"Content-Length: 2\r\n\r\n{}" % address.netloc.encode()
            )
            assert begun.wait(WAIT_S)
        assert ended.wait(WAIT_S)
        assert server.get("/v1/audit?outcome=cancelled").json()["records"]


def test_a_long_result_is_read_page_by_page_by_who_made_the_call_and_by_nobody_else(
    server: Served, shapes: Any
) -> None:
    result = server.call("long").json()
    assert result["spent"]["truncated"] is True
    text = ""
    offset: int | None = 0
    while offset is not None:
        answer = server.get(f"/v1/results/{result['call_id']}?offset={offset}&limit=100000")
        promised(shapes, "GET", "/v1/results/{call_id}", answer)
        text += answer.json()["text"]
        offset = answer.json()["next_offset"]
    assert text == LONG
    other = Guest(name="eve", rights=frozenset({Right.CALL}))
    with served(server.crib, guest=other) as others:
        refused(others.get(f"/v1/results/{result['call_id']}"), 404)
        theirs = others.call("long").json()["call_id"]
        assert others.get(f"/v1/results/{theirs}").status_code == 200
    far = Guest(name="far", reach=Reach(tools=("python:t/echo",)))
    with served(server.crib, guest=far) as others:
        refused(others.get(f"/v1/results/{result['call_id']}"), 404)
    refused(server.get("/v1/results/abc"), 404)


def test_while_the_server_stops_no_more_calls_are_taken(tmp_path: Path) -> None:
    with opened(tmp_path / "state", tools=[echo]) as crib, served(crib) as server:
        server.health.is_draining = True
        answer = server.call("echo")
        refused(answer, 503, "stopping")
        assert int(answer.headers["retry-after"]) > 0
        assert server.get("/readyz").status_code == 503
        assert server.get("/healthz").status_code == 200
        assert server.get("/v1/tools").status_code == 200


# -- what waits for a person --------------------------------------------------------------------------------


def test_an_approval_is_listed_answered_and_lets_the_next_call_run(server: Served, shapes: Any) -> None:
    asked = server.call("pay", {"amount": 7})
    approval_id = asked.json()["error"]["details"]["approval_id"]
    listed = server.get("/v1/approvals?state=waiting")
    promised(shapes, "GET", "/v1/approvals", listed)
    assert approval_id in [each["id"] for each in listed.json()]
    answer = server.post(f"/v1/approvals/{approval_id}", {"decision": "approve", "because": "fine"})
    promised(shapes, "POST", "/v1/approvals/{id}", answer)
    assert (answer.json()["state"], answer.json()["answer"]["by"]) == ("approved", "ann")
    assert server.call("pay", {"amount": 7}).json()["content"] == "paid 7"
    refused(server.post(f"/v1/approvals/{approval_id}", {"decision": "deny"}), 409, "over")
    refused(server.post("/v1/approvals/abcdef", {"decision": "deny"}), 404)
    refused(server.post(f"/v1/approvals/{approval_id}", {"decision": "maybe"}), 422, "decision")


@pytest.mark.parametrize(("amount", "wait"), [(8, "body"), (9, "prefer")])
def test_a_call_waits_for_the_answer_where_it_says_so(server: Served, amount: int, wait: str) -> None:
    body: dict[str, Any] = {"arguments": {"amount": amount}}
    headers = {}
    if wait == "body":
        body["approval_wait_s"] = 30
    else:
        headers["Prefer"] = "respond-async, wait=30"
    asked = threading.Event()
    server.events.hook(
        lambda event: (
            asked.set()
            if event.kind is EventKind.CALL_ENDED and event.data["kind"] == "needs_approval"
            else None
        )
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            httpx.post, f"{server.url}/v1/tools/pay/call", json=body, headers=headers, timeout=WAIT_S
        )
        assert asked.wait(WAIT_S)
        (question,) = [
            each
            for each in server.get("/v1/approvals?state=waiting").json()
            if each["arguments"] == {"amount": amount}
        ]
        edited = {"decision": "approve", "arguments": {"amount": amount + 100}}
        assert server.post(f"/v1/approvals/{question['id']}", edited).status_code == 200
        assert waiting.result(WAIT_S).json()["content"] == f"paid {amount + 100}"


def test_an_answer_given_by_another_program_ends_the_wait(server: Served, tmp_path: Path) -> None:
    asked = server.call("pay", {"amount": 10}).json()["error"]["details"]["approval_id"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.call, "pay", {"amount": 10}, approval_wait_s=30)
        said = program(
            "--state", str(server.crib.config.state), "approvals", "deny", asked, "--json", cwd=tmp_path
        )
        assert said.status == 0, said.err
        answer = waiting.result(WAIT_S)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "denied")


def test_a_wait_that_is_over_says_that_it_still_needs_approval(server: Served) -> None:
    answer = server.call("pay", {"amount": 11}, approval_wait_s=0.05)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "needs_approval")


# -- what happened ------------------------------------------------------------------------------------------


def test_the_audit_is_paged_newest_first_and_filtered(tmp_path: Path) -> None:
    with opened(tmp_path / "state", tools=TOOLS) as crib, served(crib) as server:
        for number in range(7):
            server.call("echo", {"text": str(number)})
        server.call("fail")
        document = server.get("/openapi.json").json()
        seen: list[tuple[str, int]] = []
        cursor = ""
        while True:
            answer = server.get(f"/v1/audit?page_size=5{cursor and '&cursor=' + cursor}")
            promised(document, "GET", "/v1/audit", answer)
            page = answer.json()
            seen += [(each["segment"], each["number"]) for each in page["records"]]
            if page["next"] is None:
                break
            cursor = page["next"]
        assert len(seen) == 16
        assert seen == sorted(seen, reverse=True)
        ends = server.get("/v1/audit?what=end&page_size=100").json()["records"]
        assert len(ends) == 8
        assert [each["kind"] for each in server.get("/v1/audit?outcome=failed").json()["records"]] == [
            "failed"
        ]
        assert len(server.get("/v1/audit?outcome=ok&key=python:t/e*").json()["records"]) == 7
        assert server.get("/v1/audit?key=python:t/[e]cho").json()["records"] == []
        assert server.get("/v1/audit?since=1h&outcome=ok").json()["records"] != []
        assert server.get("/v1/audit?until=1h").json()["records"] == []
        assert server.get("/v1/audit?since=2001-01-01T00:00Z&until=2002-01-01").json()["records"] == []
        refused(server.get("/v1/audit?since=yesterday"), 400, "since")
        refused(server.get("/v1/audit?cursor=x"), 400, "cursor")
        refused(server.get("/v1/audit/0000"), 404)


def test_the_audit_is_verified_and_counted_for_charts(tmp_path: Path) -> None:
    for folder in ("state", "again"):  # a part of the day that ends meanwhile parts the calls: once more
        part = time.time() // 21_600
        with opened(tmp_path / folder, tools=TOOLS) as crib, served(crib) as server:
            for _ in range(3):
                server.call("echo")
            server.call("fail")
            document = server.get("/openapi.json").json()
            verdict = server.get("/v1/audit/verify")
            answer = server.get("/v1/audit/stats?window_s=86400&buckets=4")
            only = server.get("/v1/audit/stats?key=python:t/fail&buckets=1").json()
        if time.time() // 21_600 == part:
            break
    promised(document, "GET", "/v1/audit/verify", verdict)
    assert verdict.json()["ok"] is True
    promised(document, "GET", "/v1/audit/stats", answer)
    found = answer.json()
    assert (found["calls"], found["failed"], found["bucket_s"]) == (4, 1, 21_600)
    assert [each["calls"] for each in found["buckets"]] == [0, 0, 0, 4]
    last = found["buckets"][-1]
    assert last["failed"] == 1
    assert last["p50_ms"] <= last["p95_ms"] <= last["p99_ms"]
    assert found["buckets"][0]["p50_ms"] is None
    assert only["buckets"][0]["calls"] == 1


def test_tools_are_switched_off_and_on_and_it_is_recorded(tmp_path: Path) -> None:
    with opened(tmp_path / "state", tools=[echo]) as crib, served(crib) as server:
        document = server.get("/openapi.json").json()
        tag = server.get("/v1/tools/echo").headers["etag"]
        off = server.post("/v1/tools/echo/disable", {"reason": "moved", "for_s": 3600})
        promised(document, "POST", "/v1/tools/{name}/disable", off)
        assert (off.json()["enabled"], off.json()["reason"]) == (False, "moved")
        assert server.call("echo").status_code == 403
        assert server.get("/v1/tools/echo", headers={"If-None-Match": tag}).json()["enabled"] is False
        on = server.post("/v1/tools/echo/enable", {})
        promised(document, "POST", "/v1/tools/{name}/enable", on)
        assert server.call("echo").status_code == 200
        switches = server.get("/v1/audit?what=switch").json()["records"]
        assert [(each["enabled"], each["caller"]) for each in switches] == [(True, "ann"), (False, "ann")]
        refused(server.post("/v1/tools/nope/disable", {}), 404)


def test_a_store_that_cannot_be_read_is_told_with_what_to_do_at_every_door(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with opened(state, tools=[echo]) as crib, served(crib) as server:
        (state / "state.sqlite").write_bytes(b"garbage " * 1000)
        document = server.get("/openapi.json").json()
        ready = server.get("/readyz")
        promised(document, "GET", "/readyz", ready)
        assert (ready.status_code, ready.json()["reasons"]) == (
            503,
            ["the store cannot be read, so nothing runs"],
        )
        health = server.get("/v1/health").json()
        assert (health["ready"], health["store"]["ok"]) == (False, False)
        assert "state.sqlite and its -wal and -shm away" in health["store"]["hint"]
        assert server.get("/v1/tools").json()["tools"]
        for path in ("/v1/tools/echo", "/v1/tools?message=say", "/v1/approvals"):
            assert "state.sqlite" in refused(server.get(path), 503)["hint"]
        refused(server.post("/v1/tools/echo/disable", {}), 503)
        assert server.get("/v1/audit?what=switch").json()["records"] == [], "it was not switched"
        for method in ("tools/list", "tools/call"):
            message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"name": "echo"}}
            answer = server.post("/mcp", message, headers={"Accept": "application/json, text/event-stream"})
            assert (answer.status_code, answer.json()["id"]) == (200, 7)
            error = answer.json()["error"]
            assert (error["code"], error["data"]["kind"]) == (-32603, "unavailable")
            assert "state.sqlite and its -wal and -shm away" in error["data"]["hint"]


def test_a_tool_that_was_switched_off_by_the_name_models_know_is_off_and_can_be_switched_on(
    tmp_path: Path,
) -> None:
    tool = {
        "name": "copy.it",
        "description": "Copies.",
        "schema": {"type": "object"},
        "command": ["/bin/cat"],
    }
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    with opened(tmp_path / "state", paths=[tmp_path / "tools.json"]) as crib, served(crib) as server:
        crib.disable("copy_it")
        assert server.call("copy.it").status_code == 403
        assert server.get("/v1/tools/copy.it").json()["enabled"] is False
        assert server.post("/v1/tools/copy.it/enable", {}).json()["enabled"] is True
        assert server.get("/v1/tools/copy.it").json()["enabled"] is True
        assert server.call("copy.it").status_code == 200


# -- events -------------------------------------------------------------------------------------------------


def told(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """The events of a stream."""
    event: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event:
            if "event" in event:
                yield event
            event = {}


def test_events_are_told_as_they_come_and_one_who_comes_back_is_told_what_was_missed(server: Served) -> None:
    server.settle()  # nothing of earlier calls is told any more
    with server.client.stream("GET", "/v1/events") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        events = told(stream.iter_lines())
        call_id = httpx.post(f"{server.url}/v1/tools/echo/call", json={}).json()["call_id"]
        first, second = next(events), next(events)
    assert (first["event"], second["event"]) == ("call.begun", "call.ended")
    assert json.loads(second["data"])["call_id"] == call_id
    assert json.loads(second["data"])["ok"] is True
    later = server.call("echo").json()["call_id"]
    headers = {"Last-Event-ID": second["id"]}
    with server.client.stream("GET", "/v1/events", headers=headers) as stream:
        again = next(told(stream.iter_lines()))
    assert json.loads(again["data"])["call_id"] == later
    assert again["id"] != second["id"]


def test_questions_to_a_person_and_their_answers_are_told(server: Served) -> None:
    server.settle()  # nothing of earlier calls is told any more
    with server.client.stream("GET", "/v1/events") as stream:
        events = told(stream.iter_lines())
        asked = httpx.post(f"{server.url}/v1/tools/pay/call", json={"arguments": {"amount": 500}}).json()
        approval_id = asked["error"]["details"]["approval_id"]
        httpx.post(f"{server.url}/v1/approvals/{approval_id}", json={"decision": "deny"})
        heard = [next(events) for _ in range(4)]
    assert [each["event"] for each in heard[2:]] == ["approval.asked", "approval.answered"]
    question, answer = (json.loads(each["data"]) for each in heard[2:])
    assert (question["id"], question["key"], question["caller"]) == (approval_id, "python:t/pay", "ann")
    assert (answer["id"], answer["state"]) == (approval_id, "denied")


def test_a_client_of_a_server_before_this_one_is_told_all_there_is(server: Served) -> None:
    server.call("echo")
    with server.client.stream("GET", "/v1/events", headers={"Last-Event-ID": "abc-999"}) as stream:
        first = next(told(stream.iter_lines()))
    assert int(first["id"].partition("-")[2]) == server.events.recent[0].number
    refused(server.get("/v1/events", headers={"Last-Event-ID": "nonsense"}), 400, "Last-Event-ID")


def test_one_who_was_away_for_too_long_is_told_that_something_was_missed(tmp_path: Path) -> None:
    with opened(tmp_path / "state", tools=[echo]) as crib, served(crib) as server:
        with server.client.stream("GET", "/v1/events") as stream:
            events = told(stream.iter_lines())
            server.events.tell(EventKind.RELOADED, {})
            last = next(events)["id"]
        for _ in range(600):
            server.events.tell(EventKind.RELOADED, {})
        with server.client.stream("GET", "/v1/events", headers={"Last-Event-ID": last}) as stream:
            assert next(told(stream.iter_lines()))["event"] == "missed"


def test_streams_of_one_caller_are_bounded_and_end_when_the_house_closes(tmp_path: Path) -> None:
    with opened(tmp_path / "state", tools=[echo]) as crib, served(crib) as server:
        clients = [httpx.Client(base_url=server.url, timeout=WAIT_S) for _ in range(STREAMS_PER_GUEST_MAX)]
        streams = [client.send(client.build_request("GET", "/v1/events"), stream=True) for client in clients]
        refused(server.get("/v1/events"), 429)
        server.events.close()
        for stream in streams:
            assert b"welcome" in stream.read()
        assert server.events.listening == 0
        for client in clients:
            client.close()


ENDED = {"key": "python:t/echo", "door": "http", "kind": None, "duration_ms": 1.0}


def test_a_guest_hears_of_his_own_calls_and_of_reloads_only(server: Served) -> None:
    guest = Guest(name="eve", rights=frozenset({Right.CALL}))
    with served(server.crib, guest=guest) as eve, eve.client.stream("GET", "/v1/events") as stream:
        events = told(stream.iter_lines())
        eve.events.tell(EventKind.CALL_ENDED, {**ENDED, "caller": "ann"})
        eve.events.tell(EventKind.APPROVAL_ASKED, {"id": "1", "key": "python:t/pay"})
        eve.events.tell(EventKind.CALL_ENDED, {**ENDED, "caller": "eve"})
        eve.events.tell(EventKind.RELOADED, {})
        assert json.loads(next(events)["data"])["caller"] == "eve"
        assert next(events)["event"] == "reloaded"


def test_attack_a_guest_hears_of_calls_in_its_name_beyond_its_reach(server: Served) -> None:
    """Those of a token that had the name before it, for example."""
    echo, pay = (server.crib.find(name).key for name in ("echo", "pay"))
    reach = Reach(tools=(echo,), effects=frozenset(Effect))
    for rights in (frozenset({Right.CALL}), frozenset(Right)):
        guest = Guest(name="eve", rights=rights, reach=reach)
        with served(server.crib, guest=guest) as eve, eve.client.stream("GET", "/v1/events") as stream:
            events = told(stream.iter_lines())
            eve.events.tell(EventKind.CALL_BEGUN, {"tool": pay, "caller": "eve"})
            eve.events.tell(EventKind.CALL_ENDED, {**ENDED, "key": pay, "caller": "eve"})
            eve.events.tell(EventKind.CALL_ENDED, {**ENDED, "key": echo, "caller": "eve"})
            assert json.loads(next(events)["data"])["key"] == echo


def test_reloads_tell_nobody_what_is_beyond_their_reach(server: Served) -> None:
    echo, pay = (server.crib.find(name).key for name in ("echo", "pay"))
    guest = Guest(name="eve", rights=frozenset(), reach=Reach(tools=(echo,), effects=frozenset(Effect)))
    with served(server.crib, guest=guest) as eve, eve.client.stream("GET", "/v1/events") as stream:
        events = told(stream.iter_lines())
        names = {"added": [echo, pay], "changed": [pay], "removed": ["python:t/gone"], "tools": 9}
        eve.events.tell(EventKind.RELOADED, {"version": "v", **names})
        eve.events.tell(EventKind.RELOAD_FAILED, {"reason": "/home/ann/tools.json: broken"})
        assert json.loads(next(events)["data"]) == {"version": "v", "added": [echo], "changed": []}
        assert json.loads(next(events)["data"]) == {}


# -- rights and reach ---------------------------------------------------------------------------------------

RIGHTS = [
    ("POST", "/v1/tools/echo/call", {}, Right.CALL),
    ("POST", "/v1/tools/echo/explain", {}, Right.CALL),
    ("GET", "/v1/results/abc", None, Right.CALL),
    ("POST", "/v1/tools/echo/disable", {}, Right.ADMIN),
    ("POST", "/v1/tools/echo/enable", {}, Right.ADMIN),
    ("GET", "/v1/audit", None, Right.AUDIT),
    ("GET", "/v1/audit/abc", None, Right.AUDIT),
    ("GET", "/v1/audit/verify", None, Right.AUDIT),
    ("GET", "/v1/audit/stats", None, Right.AUDIT),
    ("GET", "/metrics", None, Right.AUDIT),
    ("GET", "/v1/approvals", None, Right.APPROVE),
    ("POST", "/v1/approvals/abcd", {"decision": "deny"}, Right.APPROVE),
]


def test_what_needs_a_right_is_refused_without_it_and_nothing_else_is(server: Served) -> None:
    everything = {(each.method, each.path): each.right for each in door.ROUTES}
    assert len([right for right in everything.values() if right is not None]) == len(RIGHTS)
    with served(server.crib, guest=Guest(name="eve", rights=frozenset())) as eve:
        for method, path, body, right in RIGHTS:
            refused(eve.client.request(method, path, json=body), 403, right.value)
        for path in ("/v1/tools", "/v1/tools/echo", "/v1/problems", "/openapi.json"):
            assert eve.get(path).status_code == 200, path
        assert set(eve.get("/v1/health").json()) == {"status", "reasons", "tools"}
        assert eve.post("/v1/select", {"message": "x"}).status_code == 200


def test_context_is_the_hosts_and_not_a_remote_callers(server: Served) -> None:
    body = {"arguments": {}, "context": {"user": "root"}}
    assert server.post("/v1/tools/echo/call", body).status_code == 200
    with served(server.crib, guest=Guest(name="eve", rights=frozenset({Right.CALL}))) as eve:
        refused(eve.post("/v1/tools/echo/call", body), 403, "admin")
        assert eve.post("/v1/tools/echo/call", {"context": {}}).status_code == 200


def test_tools_beyond_reach_look_absent_everywhere(server: Served) -> None:
    server.call("fail")
    server.call("pay", {"amount": 77})
    recorded = server.get("/v1/audit?key=python:t/fail&what=end").json()["records"][0]["call"]
    reach = Reach(tools=("python:t/*",), effects=frozenset({Effect.READ}))
    with served(server.crib, guest=Guest(name="eve", reach=reach)) as eve:
        names = [row["name"] for row in eve.get("/v1/tools").json()["tools"]]
        assert names == ["echo", "double", "long"]
        gone, absent = eve.get("/v1/tools/fail"), eve.get("/v1/tools/fial")
        assert refused(gone, 404)["detail"].replace("fail", "fial") == refused(absent, 404)["detail"]
        assert gone.json()["hint"] == absent.json()["hint"]
        assert eve.call("fail").status_code == 404
        assert eve.call("echo").status_code == 200
        for path in ("explain", "disable", "enable"):
            refused(eve.post(f"/v1/tools/fail/{path}", {}), 404)
        assert {each["name"] for each in eve.post("/v1/select", {"message": "x"}).json()} == set(names)
        assert {each["name"] for each in eve.get("/v1/tools?dialect=anthropic").json()["tools"]} == set(names)
        assert eve.get("/v1/approvals").json() == []
        refused(eve.get(f"/v1/audit/{recorded}"), 404)
        keys = {each.get("key") for each in eve.get("/v1/audit?page_size=1000").json()["records"]}
        assert keys
        assert keys <= {f"python:t/{name}" for name in names}
        assert {each["key"] for each in eve.get("/v1/audit/stats").json()["tools"]} <= keys
        assert eve.get("/v1/problems").json()["tools"] == 3


# -- requests that never became a call ----------------------------------------------------------------------


@pytest.mark.battery("I05")
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_what_a_form_of_any_page_can_send_is_not_read(server: Served, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind is not None else {}
    for path in ("/v1/tools/echo/call", "/v1/select", "/v1/tools/echo/disable"):
        refused(server.client.post(path, content=b'{"arguments": {}}', headers=headers), 415)
    # Nor is nothing at all, which a page may send without asking as well.
    refused(server.client.post("/v1/tools/echo/disable"), 415)


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, ("empty", "{}")),
        (b"{", 400, ("line 1, column 2",)),
        (b'{"arguments": {"a": 1, "a": 2}}', 400, ("arguments.a", "twice")),
        (b'{"arguments": NaN}', 400, ("NaN",)),
        (b"\xff", 400, ("UTF-8",)),
        (b"[" * 200 + b"]" * 200, 400, ("100 levels",)),
        (b"[]", 422, ("object",)),
        (b'{"arguments": 5}', 422, ("arguments", "object")),
        (b'{"argument": {}}', 422, ("argument", "arguments")),
        (b'{"text": "hello"}', 422, ('unknown name "text"', "it takes arguments, context,")),
        (b'{"timeout_s": 0}', 422, ("timeout_s",)),
        (b'{"idempotency_key": ""}', 422, ("idempotency_key",)),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_place_and_fix(
    server: Served, content: bytes, status: int, words: tuple[str, ...]
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = server.client.post("/v1/tools/echo/call", content=content, headers=headers)
    refused(answer, status, *words)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limitt=1", ("limitt", "limit")),
        ("page_size=0", ("page_size",)),
        ("page_size=ten", ("page_size", "integer")),
        ("effect=write", ("effect",)),
        ("effect=", ("effect",)),
        ("effect=read&effect=read", ("twice",)),
        ("message=%ff", ("UTF-8",)),
        ("cursor=-1", ("cursor",)),
    ],
)
def test_a_query_that_is_wrong_is_refused_with_place_and_fix(
    server: Served, query: str, words: tuple[str, ...]
) -> None:
    refused(server.get(f"/v1/tools?{query}"), 400, *words)


def test_paths_and_methods_that_mean_nothing_are_told_so(server: Served) -> None:
    refused(server.get("/v1/nothing"), 404, "openapi.json")
    refused(server.get("/v1/tools/text/outline"), 404, "write its / as %2F", "openapi.json")
    refused(server.get("/v1/tools/"), 404)
    refused(server.get("/v1/tools/%ff"), 400)
    answer = server.client.delete("/v1/tools/echo")
    refused(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert server.get("/v1/tools/echo/call").headers["allow"] == "OPTIONS, POST"
    options = server.client.options("/v1/tools")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


def test_head_is_answered_as_get_without_the_body(server: Served) -> None:
    for path in ("/v1/tools", "/v1/tools/echo", "/openapi.json", "/healthz", "/v1/events"):
        answer = server.client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
    plain = {"Accept-Encoding": "identity"}
    whole = server.get("/v1/tools", headers=plain)
    assert server.client.head("/v1/tools", headers=plain).headers["content-length"] == str(len(whole.content))


def test_what_accept_does_not_take_is_not_sent(server: Served) -> None:
    refused(server.get("/v1/tools", headers={"Accept": "text/html"}), 406, "application/json")
    refused(server.get("/v1/tools", headers={"Accept": "application/json;q=0, text/*"}), 406)
    refused(server.get("/v1/events", headers={"Accept": "application/json"}), 406, "text/event-stream")
    for accept in ("*/*", "application/*", "text/html, application/json;q=0.1"):
        assert server.get("/v1/tools", headers={"Accept": accept}).status_code == 200


def test_a_body_is_counted_while_it_comes_whatever_its_length_is_said_to_be(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "state", tools=[echo]) as crib,
        served(crib, body_bytes_max=10_000) as server,
    ):
        big = b'{"arguments": {"text": "' + b"x" * 20_000 + b'"}}'
        headers = {"Content-Type": "application/json"}
        refused(server.client.post("/v1/tools/echo/call", content=big, headers=headers), 413)
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WAIT_S)
        connection.request(
            "POST",
            "/v1/tools/echo/call",
            body=iter([big[:5000], big[5000:]]),
            headers=headers,
            encode_chunked=True,
        )
        assert connection.getresponse().status == 413
        connection.close()
        small = iter([b'{"arguments": ', b'{"text": "hi"}}'])
        assert (
            server.client.post("/v1/tools/echo/call", content=small, headers=headers).json()["content"]
            == "hi"
        )


@pytest.mark.parametrize("path", ["/v1/tools/echo/call", "/mcp", "/login"])
def test_a_body_has_as_long_to_come_as_the_configuration_says(tmp_path: Path, path: str) -> None:
    with opened(tmp_path / "state", tools=[echo]) as crib, served(crib, body_timeout_s=0.2) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), BODY_TIMEOUT_S / 2) as connection:
            connection.sendall(
                b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                b"Accept: application/json, text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
                % (path.encode(), address.netloc.encode())
            )
            assert connection.recv(13) == b"HTTP/1.1 408 "


# -- tags and sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/tools", "/v1/tools/echo", "/v1/problems", "/openapi.json"])
def test_what_is_unchanged_is_not_sent_again(server: Served, path: str) -> None:
    for encoding in ("identity", "gzip"):
        first = server.get(path, headers={"Accept-Encoding": encoding})
        tag = first.headers["etag"]
        assert re.fullmatch(r'"[0-9a-f]{32}(-gzip)?"', tag)
        assert first.headers["cache-control"] == "private, no-cache"
        for given in (tag, f'W/{tag}, "x"', f'"y",{tag}', "*"):
            again = server.get(path, headers={"If-None-Match": given, "Accept-Encoding": encoding})
            assert (again.status_code, again.content) == (304, b""), given
            assert again.headers["etag"]
        assert server.get(path, headers={"If-None-Match": '"x"'}).status_code == 200


def test_a_tag_differs_for_another_query_and_for_another_caller_who_sees_other_tools(server: Served) -> None:
    tag = server.get("/v1/tools").headers["etag"]
    assert server.get("/v1/tools?effect=read").headers["etag"] != tag
    reach = Reach(effects=frozenset({Effect.READ}))
    with served(server.crib, guest=Guest(name="eve", reach=reach)) as eve:
        assert eve.get("/v1/tools", headers={"If-None-Match": tag}).status_code == 200


def test_large_answers_are_compressed_where_that_is_wanted_and_streams_never(server: Served) -> None:
    plain = server.get("/openapi.json", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WAIT_S)
    connection.request("GET", "/openapi.json", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "accept-encoding"
    assert gzip.decompress(answer.read()) == plain.content
    connection.close()
    refusing = server.get("/openapi.json", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refusing.headers
    with server.client.stream("GET", "/v1/events", headers={"Accept-Encoding": "gzip"}) as stream:
        assert "content-encoding" not in stream.headers
    assert "content-encoding" not in server.get("/healthz", headers={"Accept-Encoding": "gzip"}).headers


# -- health and the document --------------------------------------------------------------------------------


def test_health_and_metrics_are_told(server: Served, shapes: Any) -> None:
    for path in ("/healthz", "/readyz", "/v1/health"):
        answer = server.get(path)
        promised(shapes, "GET", path, answer)
        assert answer.json()["status"] == "ok"
        assert answer.headers["cache-control"] == "no-store"
    assert server.get("/v1/health").json()["isolation"]["level"]
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "toolcrib_calls_total" in metrics.text


def test_every_answer_carries_the_safe_headers(server: Served) -> None:
    for path in ("/v1/tools", "/v1/nothing", "/healthz"):
        assert server.get(path).headers["x-content-type-options"] == "nosniff"


def test_the_document_is_openapi_3_1_and_its_schemas_are_schemas() -> None:
    document = door.document()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"]
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert len(operations) == len(door.ROUTES)
    assert len({each["operationId"] for each in operations}) == len(operations)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))
            assert {"200"} <= operation["responses"].keys()
            assert all(reply["description"] for reply in operation["responses"].values())
    meta = meta_validator(DRAFT)
    schemas = [*document["components"]["schemas"].values()]
    for route in door.ROUTES:
        schemas += [each.schema for each in route.parameters]
        schemas += [route.body] if route.body is not None else []
    assert all(meta.is_valid(schema) for schema in schemas)
    official = jsonschema_rs.validator_for(OPENAPI_31)
    assert [str(each) for each in official.iter_errors(document)] == []
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert referred | {"ToolRow"} == set(document["components"]["schemas"])
