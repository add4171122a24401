"""MCP over HTTP and a pipe, by raw messages: what clients of both eras and attackers get to see."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.mcp_client import (
    BOTH,
    META,
    NEWER,
    OLDER,
    WAIT_S,
    Client,
    Pipe,
    Served,
    enveloped,
    next_message,
    request,
    serving,
    start,
)
from toolcrib.config import Config, Environment, resolve
from toolcrib.doors._entrance import Guest, Right
from toolcrib.functions import Context
from toolcrib.journal.reading import entries
from toolcrib.model import Reach

ASKED = '[[policy]]\nmatch = { name = "pay" }\ndecision = "ask"\nbecause = "costs money"\n'
STARTED, RELEASE = threading.Event(), threading.Event()


def echo(text: str) -> str:
    """Say it back."""
    return text


def add(left: int, right: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": left + right}


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def count(context: Context, to: int) -> str:
    """Count, and tell how far it is."""
    for number in range(1, to + 1):
        context.progress(number, to, f"at {number}")
    return "counted"


def wait(context: Context) -> str:
    """Wait until it is cancelled or released."""
    STARTED.set()
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and not RELEASE.is_set():
        if context.cancelled:
            STARTED.clear()
            return "stopped"
        RELEASE.wait(0.01)
    return "released"


def fail() -> str:
    """Fail."""
    raise toolcrib.Failed("it broke", "mend it")


@pytest.fixture(scope="module")
def crib(tmp_path_factory: pytest.TempPathFactory) -> Iterator[toolcrib.Crib]:
    folder = tmp_path_factory.mktemp("mcp")
    rules = folder / "rules.toml"
    rules.write_text(ASKED, encoding="utf-8")
    environment = Environment.read({"HOME": str(folder), "USER": "ann"})
    found = resolve(environment, cwd=str(folder), file=str(rules))
    config = Config(state=str(folder / "state"), policy=found.policy)
    with toolcrib.open(
        config=config, environment=environment, tools=[echo, add, pay, count, wait, fail]
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(crib: toolcrib.Crib) -> Iterator[Served]:
    with serving(crib) as held:
        held.guests["reader"] = Guest(name="reader", rights=frozenset({Right.CALL}))
        held.guests["looker"] = Guest(name="looker", rights=frozenset())
        held.guests["bob"] = Guest(name="bob")
        held.guests["narrow"] = Guest(name="narrow", reach=Reach(tools=("python:*/echo",)))
        yield held


def text_of(reply: Any) -> str:
    (block,) = reply["result"]["content"]
    return str(block["text"])


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


# -- the older era ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_version_of_the_handshake_is_spoken(served: Served, version: str) -> None:
    client = served.begin(version=version)
    result = client.initialized["result"]
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["name"] == "toolcrib"
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert client.ask("ping").message == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert text_of(client.ask("tools/call", call("echo", text="hi")).message) == "hi"


def test_an_unknown_version_is_offered_the_newest_of_the_handshake(served: Served) -> None:
    reply = served.send(
        request("initialize", {"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {}})
    )
    assert reply.message["result"]["protocolVersion"] == OLDER


def test_tools_are_listed_with_schemas_and_annotations(served: Served) -> None:
    result = served.begin().ask("tools/list").message["result"]
    assert list(result) == ["tools"]
    tools = {tool["name"]: tool for tool in result["tools"]}
    assert set(tools) == {"echo", "add", "pay", "count", "wait", "fail"}
    assert tools["echo"]["inputSchema"]["properties"]["text"]["type"] == "string"
    assert tools["add"]["outputSchema"]["type"] == "object"
    assert tools["echo"]["annotations"]["readOnlyHint"] is False


def test_a_result_has_its_structured_form_and_its_text(served: Served) -> None:
    result = served.begin().ask("tools/call", call("add", left=1, right=2)).message["result"]
    assert result["structuredContent"] == {"sum": 3}
    assert json.loads(result["content"][0]["text"]) == {"sum": 3}
    assert result["isError"] is False
    assert "resultType" not in result


def test_a_tool_is_called_by_its_name_or_its_key(served: Served) -> None:
    for name in ("echo", served.crib.find("echo").key):
        assert text_of(served.begin().ask("tools/call", call(name, text="x")).message) == "x"


def test_requests_without_a_session_are_answered_for_themselves(served: Served) -> None:
    assert text_of(served.send(request("tools/call", call("echo", text="x"))).message) == "x"


def test_a_call_that_fails_is_a_result_and_an_unknown_tool_is_an_error(served: Served) -> None:
    client = served.begin()
    failed = client.ask("tools/call", call("fail")).message["result"]
    assert failed["isError"] is True
    assert "it broke" in failed["content"][0]["text"]
    wrong = client.ask("tools/call", call("echo", text=3)).message["result"]
    assert wrong["isError"] is True
    unknown = client.ask("tools/call", call("nosuch"))
    assert (unknown.status, unknown.message["error"]["code"]) == (200, -32602)
    assert unknown.message["error"]["data"]["kind"] == "unknown_tool"


@pytest.mark.parametrize("params", [{}, {"name": 3}, {"name": "echo", "arguments": []}])
def test_params_of_a_wrong_shape_are_refused(served: Served, params: Any) -> None:
    assert served.begin().ask("tools/call", params).message["error"]["code"] == -32602


def test_a_cursor_that_was_never_given_is_refused(served: Served) -> None:
    assert served.begin().ask("tools/list", {"cursor": "x"}).message["error"]["code"] == -32602


# -- the newer era ------------------------------------------------------------------------------------------


def test_the_newer_era_needs_no_session(served: Served) -> None:
    found = served.ask("server/discover").message["result"]
    assert found["supportedVersions"] == [NEWER]
    assert found["resultType"] == "complete"
    assert found["_meta"][META + "serverInfo"]["name"] == "toolcrib"
    listed = served.ask("tools/list").message["result"]
    assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
    called = served.ask("tools/call", call("echo", text="hi"))
    assert "mcp-session-id" not in called.headers
    assert (called.message["result"]["resultType"], text_of(called.message)) == ("complete", "hi")


def test_an_unknown_tool_has_a_status_in_the_newer_era(served: Served) -> None:
    reply = served.ask("tools/call", call("nosuch"))
    assert (reply.status, reply.message["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_method": "tools/list"},
        {"mcp_method": None},
        {"mcp_name": "add"},
        {"mcp_name": None},
        {"mcp_name": "=?base64?###?="},
        {"mcp_protocol_version": "2027-01-01"},
    ],
)
def test_headers_that_say_something_else_than_the_body_are_refused(
    served: Served, headers: dict[str, str | None]
) -> None:
    reply = served.ask("tools/call", call("echo", text="x"), **headers)
    assert (reply.status, reply.message["error"]["code"]) == (400, -32020)


def test_a_name_may_be_wrapped_in_its_header(served: Served) -> None:
    reply = served.ask("tools/call", call("echo", text="x"), mcp_name="=?base64?ZWNobw==?=")
    assert text_of(reply.message) == "x"


def test_a_routing_header_that_appears_twice_is_refused(served: Served) -> None:
    body, headers = enveloped("tools/list")
    connection = served.connect()
    content = json.dumps(body).encode()
    connection.putrequest("POST", "/mcp")
    for name, value in (*headers.items(), ("mcp-method", "tools/call"), ("accept", BOTH)):
        connection.putheader(name, str(value))
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(len(content)))
    connection.endheaders(content)
    response = connection.getresponse()
    assert (response.status, json.load(response)["error"]["code"]) == (400, -32020)
    connection.close()


def test_an_unsupported_version_is_told_which_are(served: Served) -> None:
    body, headers = enveloped("tools/list", {"_meta": {META + "protocolVersion": "2027-01-01"}})
    reply = served.send(body, {**headers, "mcp-protocol-version": "2027-01-01"})
    error = reply.message["error"]
    assert (reply.status, error["code"]) == (400, -32022)
    assert error["data"] == {"supported": [NEWER], "requested": "2027-01-01"}


def test_an_envelope_that_lacks_something_is_refused(served: Served) -> None:
    body = request("tools/list", {"_meta": {META + "protocolVersion": NEWER}})
    reply = served.send(body, {"mcp-protocol-version": NEWER, "mcp-method": "tools/list"})
    assert (reply.status, reply.message["error"]["code"]) == (400, -32602)
    bare = served.send(request("tools/list"), {"mcp-protocol-version": NEWER, "mcp-method": "tools/list"})
    assert (bare.status, bare.message["error"]["code"]) == (400, -32602)


def test_notifications_are_taken_and_responses_are_not(served: Served) -> None:
    headers = {"mcp-protocol-version": NEWER}
    assert served.send({"jsonrpc": "2.0", "method": "notifications/x"}, headers).status == 202
    assert served.send({"jsonrpc": "2.0", "id": 1, "result": {}}, headers).status == 400


# -- what is not MCP ----------------------------------------------------------------------------------------


@pytest.mark.battery("I05")
def test_anything_but_json_is_refused(served: Served) -> None:
    """A page of any site may post text/plain without its browser asking."""
    body = request("tools/list")
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        assert served.send(body, {"content-type": kind}).status == 415
    assert served.send(body, {"content-type": "application/json; charset=utf-8"}).status == 200


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "text/html", None])
def test_a_client_must_accept_both_forms_of_an_answer(served: Served, accept: str | None) -> None:
    assert served.send(request("tools/list"), {"accept": accept}).status == 406


def test_wildcards_accept_both(served: Served) -> None:
    assert served.send(request("ping"), {"accept": "*/*"}).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"x":' * 200 + b"1" + b"}" * 201,
        b"\xff\xfe",
    ],
)
def test_what_two_readers_could_read_differently_is_a_parse_error(served: Served, body: bytes) -> None:
    reply = served.send(body)
    assert (reply.status, reply.message["error"]["code"], reply.message["id"]) == (400, -32700, None)


@pytest.mark.parametrize(
    "body",
    [
        {"id": 1, "method": "ping"},
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": None, "method": "ping"},
        {"jsonrpc": "2.0", "id": True, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "ping"},
        {"jsonrpc": "2.0", "id": {}, "method": "ping"},
        {"jsonrpc": "2.0", "id": 2**63, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": 3},
        {"jsonrpc": "2.0", "id": 1, "method": "x" * 200},
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []},
        {"jsonrpc": "2.0", "id": 1},
        [],
        3,
    ],
)
def test_what_is_no_message_is_refused(served: Served, body: Any) -> None:
    reply = served.send(body)
    assert (reply.status, reply.message["error"]["code"]) == (400, -32600)


@pytest.mark.battery("I14")
def test_an_id_of_a_megabyte_and_a_batch_of_ten_thousand_are_refused(served: Served) -> None:
    long = served.send(request("ping", number="x" * (1 << 20)))
    assert (long.status, long.message["id"]) == (400, None)
    assert len(long.body) < 1000
    batch = served.send([request("ping", number=number) for number in range(10_000)])
    assert (batch.status, batch.message["error"]["code"]) == (400, -32600)


@pytest.mark.battery("I14")
def test_a_body_without_end_is_refused_and_others_are_served(served: Served) -> None:
    connection = served.connect()
    connection.putrequest("POST", "/mcp")
    for name, value in (("accept", BOTH), ("content-type", "application/json")):
        connection.putheader(name, value)
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
    try:
        for _ in range(16):
            connection.send(chunk)
        status = connection.getresponse().status
    except OSError:  # closed while it was still sending
        status = 413
    finally:
        connection.close()
    assert status == 413
    assert served.send(request("ping")).status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS"])
def test_other_methods_are_not_allowed(served: Served, method: str) -> None:
    reply = served.send(None, method=method)
    assert (reply.status, "POST" in reply.headers["allow"]) == (405, True)


# -- sessions -----------------------------------------------------------------------------------------------


@pytest.mark.battery("I04")
@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_a_session_of_somebody_else_and_a_guessed_one_are_not_there(served: Served, method: str) -> None:
    mine = served.begin()
    number = mine.headers["mcp-session-id"]
    changed = number[:-3] + ("AAA" if not number.endswith("AAA") else "BBB")
    body = request("tools/list") if method == "POST" else None
    for headers in (
        {"mcp-session-id": number, "authorization": "bob"},
        {"mcp-session-id": changed},
        {"mcp-session-id": "x" * 48},
        {"mcp-session-id": "0" * 5000},
        {"mcp-session-id": number + "="},
    ):
        assert served.send(body, headers, method).status == 404


@pytest.mark.battery("I04")
def test_ten_thousand_sessions_take_no_room(served: Served) -> None:
    """Ids are random, at least 128 bits long, and nothing is kept for them."""
    guest, seals = Guest(name="ann"), served.door.desk.seals
    ids = {seals.new_session(guest, version=OLDER, elicits=False).id for _ in range(10_000)}
    assert len(ids) == 10_000
    for number in ids:
        assert seals.session(number, guest) is not None
    assert len(seals._known) <= 4096


def test_ending_a_session_is_not_offered(served: Served) -> None:
    client = served.begin()
    assert served.send(None, client.headers, "DELETE").status == 405


# -- what a caller may do -----------------------------------------------------------------------------------


def test_a_caller_sees_and_calls_only_what_is_within_reach(served: Served) -> None:
    client = served.begin(authorization="narrow")
    tools = client.ask("tools/list").message["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["echo"]
    error = client.ask("tools/call", call("add", left=1, right=2)).message["error"]
    assert (error["code"], "add" in error["message"]) == (-32602, True)


def test_a_caller_without_the_right_to_call_may_look_only(served: Served) -> None:
    client = served.begin(authorization="looker")
    assert client.ask("tools/list").message["result"]["tools"]
    assert client.ask("tools/call", call("echo", text="x")).status == 403


# -- progress, cancelling, leaving --------------------------------------------------------------------------


@pytest.mark.parametrize("newer", [False, True])
def test_progress_comes_as_a_stream_before_the_answer(served: Served, newer: bool) -> None:
    params = {**call("count", to=3), "_meta": {"progressToken": "mine"}}
    reply = served.ask("tools/call", params) if newer else served.begin().ask("tools/call", params)
    assert reply.headers["content-type"] == "text/event-stream"
    *told, answer = reply.messages
    assert [message["method"] for message in told] == ["notifications/progress"] * 3
    assert told[1]["params"] == {"progressToken": "mine", "progress": 2, "total": 3, "message": "at 2"}
    assert text_of(answer) == "counted"


def test_without_a_token_nothing_is_told(served: Served) -> None:
    reply = served.begin().ask("tools/call", call("count", to=3))
    assert reply.headers["content-type"] == "application/json"


def waiting_call(served: Served, client: Client | None) -> Any:
    STARTED.clear()
    RELEASE.clear()
    connection = served.connect()
    if client is not None:
        start(connection, request("tools/call", call("wait"), 7), client.headers)
    else:
        start(connection, *enveloped("tools/call", call("wait")))
    assert STARTED.wait(WAIT_S)
    return connection


def test_a_notification_cancels_in_the_older_era(served: Served) -> None:
    client = served.begin()
    connection = waiting_call(served, client)
    other = served.begin()
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    # Attack: another session cancels by the request id that everybody uses.
    assert other.send(cancelled).status == 202
    assert STARTED.is_set()
    assert client.send(cancelled).status == 202
    answer = json.load(connection.getresponse())
    assert answer["error"]["code"] == -32800
    connection.close()


def test_leaving_cancels_in_the_newer_era_only(served: Served) -> None:
    waiting_call(served, None).close()
    end = time.monotonic() + WAIT_S
    while STARTED.is_set() and time.monotonic() < end:
        RELEASE.wait(0.01)
    assert not STARTED.is_set()
    waiting_call(served, served.begin()).close()
    assert served.send(request("ping")).status == 200
    RELEASE.wait(0.3)
    assert STARTED.is_set()
    RELEASE.set()


def test_an_answer_that_is_long_in_coming_becomes_a_stream_that_shows_life(
    crib: toolcrib.Crib,
) -> None:
    with serving(crib, ping_s=0.2) as served:
        for client in (served.begin(), None):
            connection = waiting_call(served, client)
            response = connection.getresponse()
            assert response.headers["content-type"] == "text/event-stream"
            assert response.readline() == b": ping\r\n"
            RELEASE.set()
            assert text_of(next_message(response)) == "released"
            assert response.read().strip() == b""
            connection.close()


# -- asking a person ----------------------------------------------------------------------------------------


def test_a_question_that_nobody_answers_in_time_is_left_waiting(crib: toolcrib.Crib) -> None:
    with serving(crib, approval_wait_s=0.2, ping_s=0.1) as served:
        reply = served.begin({"elicitation": {}}).ask("tools/call", call("pay", amount=41))
        asked, answer = reply.messages
        assert asked["method"] == "elicitation/create"
        assert "a person has to approve it first" in answer["result"]["content"][1]["text"]
        approval = [each for each in crib.approvals() if each.arguments == {"amount": 41}][-1]
        assert approval.state == "waiting"


def test_a_question_does_not_keep_the_server_from_ending(crib: toolcrib.Crib, pipe: Pipe) -> None:
    with serving(crib) as served:
        connection, client = served.connect(), served.begin({"elicitation": {}})
        start(connection, request("tools/call", call("pay", amount=42)), client.headers)
        response = connection.getresponse()
        assert next_message(response)["method"] == "elicitation/create"
    assert next_message(response)["result"]["isError"] is True
    connection.close()
    pipe.begin({"elicitation": {}})
    assert pipe.ask("tools/call", call("pay", amount=42))["method"] == "elicitation/create"
    out, _, code = pipe.end()
    assert (json.loads(out)["result"]["isError"], code) == (True, 0)


def answered(client: Client, number: str, action: str, **content: Any) -> int:
    result = {"action": action, **({"content": content} if content else {})}
    return client.send({"jsonrpc": "2.0", "id": number, "result": result}).status


def test_a_client_that_can_ask_a_person_does(served: Served) -> None:
    client = served.begin({"elicitation": {}})
    connection = served.connect()
    start(connection, request("tools/call", call("pay", amount=11), 5), client.headers)
    response = connection.getresponse()
    asked = next_message(response)
    assert asked["method"] == "elicitation/create"
    assert "pay" in asked["params"]["message"]
    assert '"amount":11' in asked["params"]["message"]
    assert len(asked["id"]) >= 32
    # Attack: another session, or another caller, answers for the person.
    assert answered(served.begin({"elicitation": {}}), asked["id"], "accept", decision="approve") == 202
    stranger = Client(served, {**served.begin(authorization="bob").headers}, None)
    assert answered(stranger, asked["id"], "accept", decision="approve") == 202
    assert answered(client, asked["id"], "accept", decision="approve", because="fine") == 202
    answer = next_message(response)
    assert (answer["id"], text_of(answer)) == (5, "paid 11")
    connection.close()
    approval = [each for each in served.crib.approvals() if each.arguments == {"amount": 11}][-1]
    assert (approval.answered_by, approval.answer_because) == ("ann", "fine")


@pytest.mark.parametrize(("action", "kind"), [("decline", "denied"), ("cancel", "waiting")])
def test_a_person_may_decline_or_put_it_off(served: Served, action: str, kind: str) -> None:
    client, amount = served.begin({"elicitation": {"form": {}}}), 20 + len(action)
    connection = served.connect()
    start(connection, request("tools/call", call("pay", amount=amount)), client.headers)
    response = connection.getresponse()
    assert answered(client, next_message(response)["id"], action) == 202
    assert next_message(response)["result"]["isError"] is True
    connection.close()
    approval = [each for each in served.crib.approvals() if each.arguments == {"amount": amount}][-1]
    assert approval.state == kind


@pytest.mark.parametrize("able", [{}, {"elicitation": {"url": {}}}])
def test_a_client_that_cannot_ask_is_told_that_it_waits(served: Served, able: Any) -> None:
    result = served.begin(able).ask("tools/call", call("pay", amount=12)).message["result"]
    assert result["isError"] is True
    assert "a person has to approve it first" in result["content"][1]["text"]


def test_a_caller_that_may_not_approve_is_not_asked(served: Served) -> None:
    """Attack: whoever calls, or the model that speaks through it, approves its own call."""
    client = served.begin({"elicitation": {}}, authorization="reader")
    reply = client.ask("tools/call", call("pay", amount=13))
    assert reply.headers["content-type"] == "application/json"
    assert reply.message["result"]["isError"] is True
    newer = served.ask(
        "tools/call", call("pay", amount=13), capabilities={"elicitation": {}}, authorization="reader"
    )
    assert newer.message["result"]["resultType"] == "complete"


def asked_newer(served: Served, amount: int) -> Any:
    result = served.ask("tools/call", call("pay", amount=amount), capabilities={"elicitation": {}})
    assert result.message["result"]["resultType"] == "input_required"
    return result.message["result"]


def said_newer(served: Served, state: str, amount: int, action: str = "accept", **headers: str) -> Any:
    answer = {"action": action, "content": {"decision": "approve"}}
    params = {
        **call("pay", amount=amount),
        "requestState": state,
        "inputResponses": {"approval": answer},
    }
    return served.ask("tools/call", params, capabilities={"elicitation": {}}, **headers).message


def test_the_newer_era_asks_by_its_result(served: Served) -> None:
    asked = asked_newer(served, 31)
    assert asked["inputRequests"]["approval"]["method"] == "elicitation/create"
    assert text_of(said_newer(served, asked["requestState"], 31)) == "paid 31"


def test_a_state_counts_for_its_call_and_its_caller_alone(served: Served) -> None:
    """Attack: the answer to a harmless question is shown with another call, or by another caller."""
    state = asked_newer(served, 32)["requestState"]
    assert said_newer(served, state, 3200)["error"]["code"] == -32602
    assert said_newer(served, state, 32, authorization="bob")["error"]["code"] == -32602
    assert said_newer(served, state[:-2], 32)["error"]["code"] == -32602
    assert said_newer(served, "", 32)["error"]["code"] == -32602


def test_a_person_who_puts_it_off_is_not_asked_again_at_once(served: Served) -> None:
    state = asked_newer(served, 33)["requestState"]
    answer = said_newer(served, state, 33, "cancel")["result"]
    assert (answer["resultType"], answer["isError"]) == ("complete", True)


# -- what changes -------------------------------------------------------------------------------------------


GROUP: dict[str, Any] = {
    "group": "calendar",
    "version": "1.0.0",
    "description": "D.",
    "selection": {"strategy": "always"},
    "tools": [
        {
            "name": name,
            "description": "D.",
            "category": category,
            "input_schema": {"type": "object", "properties": {}},
            "metadata": {"executor": "calendar"},
        }
        for name, category in (("get_agenda", "retrieval"), ("delete_event", "action"))
    ],
}


@pytest.fixture
def calendar(tmp_path: Path) -> Iterator[toolcrib.Crib]:
    folder = tmp_path / "groups"
    folder.mkdir()
    (folder / "calendar_tools.json").write_text(json.dumps(GROUP), encoding="utf-8")
    environment = Environment.read({"HOME": str(tmp_path), "USER": "ann"})
    with toolcrib.open(
        folder,
        config=Config(state=str(tmp_path / "state")),
        environment=environment,
        handlers={"calendar": lambda name, given, **_: {"success": True}},
    ) as opened:
        yield opened


@pytest.mark.requirement("capability.tool.category-meaning")
def test_a_category_says_whether_a_tool_only_reads(calendar: toolcrib.Crib) -> None:
    with serving(calendar) as served:
        for reply in (served.begin().ask("tools/list"), served.ask("tools/list")):
            tools = {tool["name"]: tool for tool in reply.message["result"]["tools"]}
            assert tools["get_agenda"]["annotations"]["readOnlyHint"] is True
            assert tools["delete_event"]["annotations"]["readOnlyHint"] is False


def add_tool(calendar: toolcrib.Crib, folder: Path) -> None:
    tool = {**GROUP["tools"][0], "name": "get_day"}
    changed = {**GROUP, "tools": [*GROUP["tools"], tool]}
    (folder / "groups" / "calendar_tools.json").write_text(json.dumps(changed), encoding="utf-8")
    calendar.reload()


def test_a_change_is_told_in_both_eras_and_then_listed(calendar: toolcrib.Crib, tmp_path: Path) -> None:
    with serving(calendar) as served:
        client = served.begin()
        assert len(client.ask("tools/list").message["result"]["tools"]) == 2
        older, newer = served.connect(), served.connect()
        start(older, None, client.headers, "GET")
        wanted = {"notifications": {"toolsListChanged": True}}
        start(newer, *enveloped("subscriptions/listen", wanted, number=9))
        opened = older.getresponse()
        assert opened.readline().startswith(b":")
        listening = newer.getresponse()
        acknowledged = next_message(listening)
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
        add_tool(calendar, tmp_path)
        assert next_message(opened)["method"] == "notifications/tools/list_changed"
        told = next_message(listening)
        assert told["method"] == "notifications/tools/list_changed"
        assert told["params"]["_meta"][META + "subscriptionId"] == 9
        assert len(client.ask("tools/list").message["result"]["tools"]) == 3
        assert len(served.ask("tools/list").message["result"]["tools"]) == 3
    ended = next_message(listening)
    assert (ended["id"], ended["result"]["resultType"]) == (9, "complete")
    older.close()
    newer.close()


def test_streams_go_on_while_the_store_cannot_be_read(calendar: toolcrib.Crib) -> None:
    with serving(calendar) as served:
        client = served.begin()
        older, newer = served.connect(), served.connect()
        start(older, None, client.headers, "GET")
        wanted = {"notifications": {"toolsListChanged": True}}
        start(newer, *enveloped("subscriptions/listen", wanted, number=9))
        opened, listening = older.getresponse(), newer.getresponse()
        assert opened.readline().startswith(b":")
        next_message(listening)
        assert calendar.config.state is not None
        store = Path(calendar.config.state, "state.sqlite")
        store.parent.mkdir(mode=0o700, exist_ok=True)
        store.write_bytes(b"garbage " * 1000)
        for stream in (opened, listening):
            assert next_message(stream)["method"] == "notifications/tools/list_changed"
        assert client.ask("tools/list").message["error"]["data"]["kind"] == "unavailable"
    assert next_message(listening)["result"]["resultType"] == "complete"
    older.close()
    newer.close()


@pytest.mark.battery("I14")
def test_streams_are_counted(calendar: toolcrib.Crib) -> None:
    """Attack: streams without end, until there is no room for anybody else's."""
    with serving(calendar) as served:
        client, held = served.begin(), []
        for _ in range(16):
            connection = served.connect()
            start(connection, None, client.headers, "GET")
            response = connection.getresponse()
            assert response.readline().startswith(b":")
            held.append(connection)
        assert served.send(None, client.headers, "GET").status == 429
        for connection in held:
            connection.close()


# -- a pipe -------------------------------------------------------------------------------------------------


SERVER = """
import sys, threading, time
import toolcrib
from toolcrib.config import Config, Environment, resolve
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Events
from toolcrib.doors._mcp_stdio import serve_stdio
from toolcrib.functions import Context

LEFT = []

def echo(text: str) -> str:
    '''Say it back.'''
    print("printed by a tool")
    return text

def pay(amount: int) -> str:
    '''Pay.'''
    print("paid", amount)
    return f"paid {amount}"

def count(context: Context, to: int) -> str:
    '''Count.'''
    for number in range(1, to + 1):
        context.progress(number, to, "")
    return "counted"

def trail(context: Context) -> str:
    '''Report after the end, and what is no number.'''
    context.progress(float("nan"), 1.0)
    context.progress(1, float("inf"))
    LEFT.append(context)
    return "trailed"

def late() -> str:
    '''Report for the one that is over.'''
    reporting = threading.Thread(target=LEFT.pop().progress, args=(2,))
    reporting.start()
    reporting.join()
    return "reported"

def wait(context: Context, s: float) -> str:
    '''Wait.'''
    end = time.monotonic() + s
    while time.monotonic() < end and not context.cancelled:
        time.sleep(0.01)
    return "over"

folder = sys.argv[1]
environment = Environment.read({"HOME": folder, "USER": "ann"})
found = resolve(environment, cwd=folder, file=folder + "/r.toml")
config = Config(state=folder + "/state", policy=found.policy)
tools = [echo, pay, count, wait, trail, late]
with toolcrib.open(config=config, environment=environment, tools=tools) as crib:
    serve_stdio(crib, Crew(crib, Events()), guest=Guest(name="ann"), drain_s=1.0)
"""


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    (tmp_path / "r.toml").write_text(ASKED, encoding="utf-8")
    script = tmp_path / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    with Pipe(script, str(tmp_path)) as opened:
        yield opened


def test_a_pipe_speaks_the_older_era(pipe: Pipe) -> None:
    assert pipe.ask("tools/list")["error"]["code"] == -32602  # not initialized
    assert pipe.begin()["result"]["protocolVersion"] == OLDER
    assert pipe.ask("ping", None, "p") == {"jsonrpc": "2.0", "id": "p", "result": {}}
    assert len(pipe.ask("tools/list")["result"]["tools"]) == 6
    assert text_of(pipe.ask("tools/call", call("echo", text="hi"), 3)) == "hi"
    assert pipe.ask("tools/call", call("nosuch"), 4)["error"]["code"] == -32602
    envelope = enveloped("tools/list")[0]
    assert pipe.ask("tools/list", envelope["params"])["error"]["code"] == -32600
    out, err, code = pipe.end()
    assert (out, code) == (b"", 0)
    assert b"printed by a tool" in err


def test_a_pipe_says_what_to_do_where_the_store_cannot_be_read(pipe: Pipe, tmp_path: Path) -> None:
    pipe.begin()
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "state" / "state.sqlite").write_bytes(b"garbage " * 1000)
    for method in ("tools/list", "tools/call"):
        error = pipe.ask(method, call("echo", text="hi"))["error"]
        assert (error["code"], error["data"]["kind"]) == (-32603, "unavailable")
        assert "state.sqlite: file is not a database" in error["message"]
        assert "put a backup in its place" in error["data"]["hint"]


def test_a_pipe_goes_on_while_the_store_cannot_be_read(pipe: Pipe, tmp_path: Path) -> None:
    pipe.begin()
    assert len(pipe.ask("tools/list")["result"]["tools"]) == 6
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    store = tmp_path / "state" / "state.sqlite"
    store.write_bytes(b"garbage " * 1000)

    def told() -> set[str]:
        return {pipe.read()["method"] for _ in ("tools", "prompts", "resources")}

    changes = {f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")}
    assert told() == changes
    for _ in range(2):
        assert pipe.ask("tools/list")["error"]["data"]["kind"] == "unavailable"
    store.unlink()
    assert told() == changes
    assert len(pipe.ask("tools/list")["result"]["tools"]) == 6


def test_the_id_of_a_call_of_a_pipe_that_the_store_kept_from_beginning_may_be_used_again(
    pipe: Pipe, tmp_path: Path
) -> None:
    pipe.begin()
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "state" / "state.sqlite").write_bytes(b"garbage " * 1000)
    for _ in range(2):
        error = pipe.ask("tools/call", call("echo", text="hi"), 3)["error"]
        assert error["data"]["kind"] == "unavailable"


def test_a_pipe_speaks_the_newer_era(pipe: Pipe) -> None:
    def ask(method: str, params: Any = None, able: Any = None) -> Any:
        return pipe.ask(method, enveloped(method, params, able)[0]["params"])

    assert ask("server/discover")["result"]["supportedVersions"] == [NEWER]
    assert ask("tools/list")["result"]["resultType"] == "complete"
    assert text_of(ask("tools/call", call("echo", text="x"))) == "x"
    assert pipe.ask("initialize", {})["error"]["code"] == -32022
    assert ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})["params"][
        "notifications"
    ] == {"toolsListChanged": True}
    asked = ask("tools/call", call("pay", amount=1), {"elicitation": {}})["result"]
    said = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
    state = {"requestState": asked["requestState"], "inputResponses": said}
    assert text_of(ask("tools/call", {**call("pay", amount=1), **state})) == "paid 1"


def test_calls_of_a_pipe_run_beside_each_other_and_may_be_cancelled(pipe: Pipe) -> None:
    pipe.begin()
    pipe.write(request("tools/call", call("wait", s=WAIT_S), 1))
    assert text_of(pipe.ask("tools/call", call("echo", text="quick"), 2)) == "quick"
    pipe.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    assert pipe.ask("ping", None, 3)["id"] == 3
    out, _, code = pipe.end()
    assert (out, code) == (b"", 0)  # nothing is answered to what was cancelled


def test_the_id_of_a_cancelled_call_of_a_pipe_may_be_used_again(pipe: Pipe) -> None:
    """The answer to the first one must not be taken for the second one's."""
    pipe.begin()
    pipe.write(request("tools/call", call("wait", s=WAIT_S), 1))
    assert text_of(pipe.ask("tools/call", call("echo", text="runs"), 2)) == "runs"
    pipe.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    began = time.monotonic()
    assert text_of(pipe.ask("tools/call", call("wait", s=0.5), 1)) == "over"
    assert time.monotonic() - began >= 0.5, "that was the first one's"
    out, _, code = pipe.end()
    assert (out, code) == (b"", 0)


def test_progress_of_a_pipe_is_a_number_and_ends_with_the_call(pipe: Pipe) -> None:
    pipe.begin()
    pipe.write(request("tools/call", {**call("trail"), "_meta": {"progressToken": 1}}, 1))
    assert pipe.read()["params"] == {"progressToken": 1, "progress": 1}
    assert text_of(pipe.read()) == "trailed"
    assert text_of(pipe.ask("tools/call", call("late"), 2)) == "reported"
    assert pipe.ask("ping", None, 3)["id"] == 3


def test_what_was_called_off_does_not_run_when_its_question_is_answered(pipe: Pipe) -> None:
    pipe.begin({"elicitation": {}})
    asked = pipe.ask("tools/call", call("pay", amount=6), 2)
    assert asked["method"] == "elicitation/create"
    pipe.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
    answer = {"action": "accept", "content": {"decision": "approve"}}
    pipe.write({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
    assert text_of(pipe.ask("tools/call", call("wait", s=0.3), 3)) == "over"
    out, err, code = pipe.end()
    assert (out, code) == (b"", 0)
    assert b"paid" not in err


def test_a_client_that_does_not_read_does_not_keep_a_pipe_open(pipe: Pipe) -> None:
    """Attack: a client that holds its end open and reads nothing, so that we stay for ever."""
    pipe.begin()
    for number in range(1, 31):
        pipe.write(request("tools/call", call("echo", text="x" * 20_000), number))
    assert pipe.process.stdin is not None
    pipe.process.stdin.close()
    assert pipe.process.wait(WAIT_S / 2) == 0


def test_a_pipe_tells_of_progress_and_asks_a_person(pipe: Pipe) -> None:
    pipe.begin({"elicitation": {}})
    pipe.write(request("tools/call", {**call("count", to=2), "_meta": {"progressToken": 1}}, 1))
    assert [pipe.read()["params"]["progress"] for _ in range(2)] == [1, 2]
    assert text_of(pipe.read()) == "counted"
    asked = pipe.ask("tools/call", call("pay", amount=5), 2)
    assert asked["method"] == "elicitation/create"
    pipe.write({"jsonrpc": "2.0", "id": "guessed", "result": {"action": "accept"}})
    answer = {"action": "accept", "content": {"decision": "approve"}}
    pipe.write({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
    assert text_of(pipe.read()) == "paid 5"


@pytest.mark.battery("I14")
def test_lines_of_a_pipe_have_limits(pipe: Pipe) -> None:
    pipe.begin()
    pipe.write(b"x" * ((10 << 20) + 5))
    assert pipe.read()["error"]["code"] == -32700
    pipe.write(b"not json")
    assert pipe.read()["error"]["code"] == -32700
    pipe.write(b"[" + b",".join(json.dumps(request("ping")).encode() for _ in range(1000)) + b"]")
    assert pipe.read()["error"]["code"] == -32600
    assert pipe.ask("ping", None, 2)["id"] == 2


def test_calls_that_lie_in_a_pipe_together_begin_together(pipe: Pipe, tmp_path: Path) -> None:
    """One sync for all of them, and each gets its own answer."""
    pipe.begin()
    asked = [request("tools/call", call("echo", text=f"text {number}"), number) for number in range(1, 17)]
    pipe.write(b"\n".join(json.dumps(each).encode() for each in asked))
    heard = {answer["id"]: text_of(answer) for answer in (pipe.read() for _ in asked)}
    assert heard == {number: f"text {number}" for number in range(1, 17)}
    assert pipe.end()[2] == 0
    what = [entry.what for entry in entries(str(tmp_path / "state" / "journal")) if entry.call]
    assert what == ["begin"] * 16 + ["end"] * 16


def test_a_signal_stops_the_server_of_a_pipe_and_no_function(pipe: Pipe) -> None:
    """Whatever runs is finished, and answered: a signal's exception must not be raised inside it."""
    pipe.begin()
    pipe.write(request("tools/call", call("wait", s=0.5), 1))
    assert text_of(pipe.ask("tools/call", call("echo", text="runs"), 2)) == "runs"
    pipe.process.send_signal(signal.SIGINT)
    assert text_of(pipe.read()) == "over"


def test_what_was_asked_is_answered_after_the_last_line(pipe: Pipe) -> None:
    pipe.begin()
    pipe.write(request("tools/call", call("wait", s=0.3), 1))
    out, _, code = pipe.end()
    assert (text_of(json.loads(out)), code) == ("over", 0)


SLOW = """
import sys
import threading

import toolcrib
from toolcrib.config import Config, Environment
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Events
from toolcrib.doors._mcp_stdio import serve_stdio
from toolcrib.doors._offers import Offers, Resource

LET_GO = threading.Event()

def let_go() -> str:
    '''End the wait.'''
    LET_GO.set()
    return "gone"

def read(marks):
    return "slow" if LET_GO.wait(30) else "late"

offers = Offers(resources=(Resource(uri="test://slow", name="slow", read=read),))
environment = Environment.read({"HOME": sys.argv[1], "USER": "ann"})
config = Config(state=sys.argv[1] + "/state")
with toolcrib.open(config=config, environment=environment, tools=[let_go]) as crib:
    serve_stdio(crib, Crew(crib, Events()), guest=Guest(name="ann"), offers=offers)
"""


def test_a_slow_resource_holds_up_no_call_of_a_pipe_and_fills_no_memory(tmp_path: Path) -> None:
    """Attack: a client asks on and on while one resource is slow."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW, encoding="utf-8")
    with Pipe(script, str(tmp_path)) as pipe:
        pipe.begin()
        asked = 1 + 256 + 3
        for number in range(1, asked + 1):
            pipe.write(request("resources/read", {"uri": "test://slow"}, number))
        refused = [pipe.read() for _ in range(2)]
        assert {each["error"]["code"] for each in refused} == {-32603}
        assert {each["error"]["message"] for each in refused} == {
            "too many requests wait; ask again when one is answered"
        }
        pipe.write(request("tools/call", call("let_go"), "call"))
        said = [pipe.read() for _ in range(asked - 2 + 1)]
    assert [text_of(each) for each in said if each["id"] == "call"] == ["gone"]
    read = [each["result"]["contents"][0]["text"] for each in said if "contents" in each.get("result", {})]
    assert read == ["slow"] * len(read)
    assert 256 <= len(read) <= 258
