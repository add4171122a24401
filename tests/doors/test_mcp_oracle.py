"""Our MCP server and the official SDK's answer alike, over HTTP and on a pipe, in every version.

The same messages go to two hosts (``tests/peers/mcp_oracle.py`` is the SDK's), and the answers are compared
as JSON. ``plain`` takes out what may differ, and only this: the state that a client shows again with an
answer, and the words of protocol errors, which are left to the server (their codes and statuses are
compared). Headers are not compared: one server answers with JSON where the other opens a stream for one
event. Where ours differs on purpose, ``OTHERWISE`` and ``OUR_MISTAKES`` name it.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.mcp_client import Pipe, enveloped, request
from tests.mcp_hosts import CATALOG, HOST, WAIT_S, Host, host

OLDER = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEWER = "2026-07-28"
META = "io.modelcontextprotocol/"
BOTH = "application/json, text/event-stream"
CLIENT = {"name": "test", "version": "1"}


@dataclass(frozen=True)
class Said:
    """An answer: its status, and its message where there is one."""

    status: int
    message: Any
    session: str | None = field(default=None, compare=False)


def ask(served: Host, body: bytes, **headers: str) -> Said:
    """Send one message and read the whole answer; of a stream, the event that answers."""
    place = urlsplit(served.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WAIT_S)
    try:
        sent = {"content-type": "application/json", "accept": BOTH, **headers}
        kept = {name.replace("_", "-"): value for name, value in sent.items() if value}
        connection.request("POST", place.path, body, kept)
        response = connection.getresponse()
        text, kind = response.read().decode("utf-8"), response.getheader("content-type", "")
    finally:
        connection.close()
    session = response.getheader("mcp-session-id")
    if "event-stream" in kind:
        told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        (message,) = [each for each in told if "method" not in each]
        return Said(response.status, message, session)
    return Said(response.status, json.loads(text) if text.startswith("{") else None, session)


def encoded(method: str, params: object = None, number: object = 1, **more: object) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "id": number, "method": method, **more}
    if params is not None:
        message["params"] = params
    return json.dumps(message).encode()


class Older:
    """A client that shook hands."""

    def __init__(self, served: Host, version: str, *, able: dict[str, object] | None = None) -> None:
        self.served, self.version = served, version
        params = {"protocolVersion": version, "capabilities": able or {}, "clientInfo": CLIENT}
        self.greeting = ask(served, encoded("initialize", params, 0))
        self.session = self.greeting.session or ""
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        self.acknowledged = self.post(told)

    def post(self, body: bytes, **headers: str) -> Said:
        sent = {"mcp_session_id": self.session, "mcp_protocol_version": self.version, **headers}
        return ask(self.served, body, **sent)


def newer(
    served: Host,
    method: str,
    params: Mapping[str, object] | None = None,
    *,
    number: object = 1,
    **headers: str,
) -> Said:
    """One request of the newer era, its envelope and its headers as they should be, or as told otherwise."""
    given = dict(params or {})
    around = {META + "protocolVersion": NEWER, META + "clientCapabilities": {}, META + "clientInfo": CLIENT}
    given["_meta"] = {**around, **given.pop("_meta", {})}  # type: ignore[dict-item]
    name = given.get("name") or given.get("uri")
    sent = {"mcp_protocol_version": NEWER, "mcp_method": method, "mcp_name": str(name) if name else ""}
    return ask(served, encoded(method, given, number), **{**sent, **headers})


def plain(said: Said) -> Said:
    """An answer without what may differ; see above."""
    message = said.message
    if isinstance(message, dict) and isinstance(message.get("error"), dict):
        error = message["error"]
        own = (
            isinstance(error.get("data"), dict) and "kind" in error["data"]
        )  # the tool's, not the protocol's
        message = {**message, "error": error if own else {"code": error["code"]}}
    text = re.sub(r'"requestState": "[^"]*"', '"requestState": "…"', json.dumps(message))
    return Said(said.status, json.loads(text))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    home = tmp_path_factory.mktemp("oracle")
    with host(CATALOG, home / "a", "served") as ours, host(CATALOG, home / "b", "sdk") as theirs:
        yield ours, theirs


CALLS: dict[str, dict[str, object]] = {
    "text": {"name": "test_simple_text", "arguments": {}},
    "no arguments at all": {"name": "test_simple_text"},
    "image": {"name": "test_image_content", "arguments": {}},
    "sound": {"name": "test_audio_content", "arguments": {}},
    "resource": {"name": "test_embedded_resource", "arguments": {}},
    "several blocks": {"name": "test_multiple_content_types", "arguments": {}},
    "data": {"name": "add", "arguments": {"a": 1, "b": 2.5}},
    "progress unheard": {"name": "test_tool_with_progress", "arguments": {}},
    "progress heard": {
        "name": "test_tool_with_progress", "arguments": {}, "_meta": {"progressToken": "p"}
    },
    "process": {"name": "json_schema_2020_12_tool", "arguments": {"name": "Ada"}},
    "failure": {"name": "test_error_handling", "arguments": {}},
    "wrong arguments": {"name": "add", "arguments": {"a": "one"}},
    "extra arguments": {"name": "json_schema_2020_12_tool", "arguments": {"more": 1}},
    "too slow": {"name": "too_slow", "arguments": {}},
    "too much": {"name": "too_much", "arguments": {}},
    "no JSON": {"name": "unreadable", "arguments": {}},
    "denied": {"name": "forbidden", "arguments": {}},
    "no program": {"name": "nowhere", "arguments": {}},
    "needs approval": {"name": "test_elicitation", "arguments": {"message": "hello"}},
    "unknown tool": {"name": "nothing", "arguments": {}},
    "by its key": {"name": "python:__main__/add", "arguments": {"a": 1, "b": 1}},
    "no name": {"arguments": {}},
    "a name that is none": {"name": 7, "arguments": {}},
    "arguments that are none": {"name": "add", "arguments": [1, 2]},
}  # fmt: skip
TEMPLATE: dict[str, object] = {"type": "ref/resource", "uri": "skill://{name}/SKILL.md"}
PROMPT: dict[str, object] = {"type": "ref/prompt", "name": "greeting"}
ARGUMENT: dict[str, object] = {"name": "name", "value": "gr"}
COMPLETED: dict[str, dict[str, object]] = {
    "of a prompt": {"ref": PROMPT, "argument": ARGUMENT},
    "of an unknown template": {"ref": {**TEMPLATE, "uri": "test://{x}"}, "argument": ARGUMENT},
    "of an unknown mark": {"ref": TEMPLATE, "argument": {"name": "nothing", "value": ""}},
    "in a context": {"ref": TEMPLATE, "argument": ARGUMENT, "context": {"arguments": {"a": "b"}}},
    "in an empty context": {"ref": TEMPLATE, "argument": ARGUMENT, "context": {}},
    "without anything": {},
    "without a ref": {"argument": ARGUMENT},
    "without an argument": {"ref": TEMPLATE},
    "of another kind": {"ref": {"type": "ref/tool", "name": "add"}, "argument": ARGUMENT},
    "of a ref that is none": {"ref": "x", "argument": ARGUMENT},
    "of a template without a uri": {"ref": {"type": "ref/resource"}, "argument": ARGUMENT},
    "of a prompt without a name": {"ref": {"type": "ref/prompt"}, "argument": ARGUMENT},
    "of an argument without a value": {"ref": TEMPLATE, "argument": {"name": "name"}},
    "of a value that is none": {"ref": TEMPLATE, "argument": {"name": "name", "value": 7}},
    "in a context that is none": {"ref": TEMPLATE, "argument": ARGUMENT, "context": "x"},
    "in a context of no texts": {
        "ref": TEMPLATE, "argument": ARGUMENT, "context": {"arguments": {"a": 7}}
    },
}  # fmt: skip
OTHERS: dict[str, tuple[str, dict[str, object] | None]] = {
    "ping": ("ping", None),
    "tools/list": ("tools/list", None),
    "tools/list with params": ("tools/list", {}),
    "tools/list with a wrong cursor": ("tools/list", {"cursor": "x"}),
    "resources/list": ("resources/list", None),
    "resources/list with a wrong cursor": ("resources/list", {"cursor": "x"}),
    "resources/templates/list": ("resources/templates/list", None),
    "resources/read": ("resources/read", {"uri": "skill://greeting/SKILL.md"}),
    "resources/read by template": ("resources/read", {"uri": "test://template/7/data"}),
    "resources/read of nothing": ("resources/read", {"uri": "skill://nothing/SKILL.md"}),
    "resources/read of bytes": ("resources/read", {"uri": "test://static-binary"}),
    "resources/read of a kept result that is none": ("resources/read", {"uri": "toolcrib://results/x?offset=0"}),
    "resources/read of what is withheld": ("resources/read", {"uri": "test://withheld"}),
    "resources/read of what breaks": ("resources/read", {"uri": "test://broken"}),
    "resources/read of too much": ("resources/read", {"uri": "test://long"}),
    "resources/read without a uri": ("resources/read", {}),
    "resources/read of a uri that is none": ("resources/read", {"uri": 7}),
    "resources/read without params": ("resources/read", None),
    "resources/list with a cursor that is none": ("resources/list", {"cursor": 7}),
    "resources/list with a cursor of nothing": ("resources/list", {"cursor": None}),
    "resources/list beyond the end": ("resources/list", {"cursor": "1000"}),
    "resources/templates/list with a wrong cursor": ("resources/templates/list", {"cursor": "-1"}),
    "prompts/list": ("prompts/list", None),
    "prompts/get": ("prompts/get", {"name": "greeting", "arguments": {"request": "Greet Ada."}}),
    "prompts/list with a wrong cursor": ("prompts/list", {"cursor": "x"}),
    "prompts/get of an image": ("prompts/get", {"name": "test_prompt_with_image"}),
    "prompts/get of a resource": (
        "prompts/get",
        {"name": "test_prompt_with_embedded_resource", "arguments": {"resourceUri": "test://a"}},
    ),
    "prompts/get with arguments": (
        "prompts/get",
        {"name": "test_prompt_with_arguments", "arguments": {"arg1": "a", "arg2": "b"}},
    ),
    "prompts/get of what breaks": ("prompts/get", {"name": "test_prompt_that_breaks"}),
    "prompts/get of nothing": ("prompts/get", {"name": "nothing"}),
    "prompts/get without a name": ("prompts/get", {}),
    "prompts/get of a name that is none": ("prompts/get", {"name": ["greeting"]}),
    "prompts/get with arguments that are none": ("prompts/get", {"name": "greeting", "arguments": ["x"]}),
    "prompts/get with an argument that is no text": (
        "prompts/get", {"name": "greeting", "arguments": {"request": 7}}
    ),
    "prompts/get with an argument of nothing": (
        "prompts/get", {"name": "greeting", "arguments": {"request": None}}
    ),
    "prompts/get with too much": (
        "prompts/get", {"name": "greeting", "arguments": {"request": "x" * ((64 << 10) + 1)}}
    ),
    "prompts/get without what it needs": ("prompts/get", {"name": "test_prompt_with_arguments"}),
    "completion/complete": (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "skill://{name}/SKILL.md"},
            "argument": {"name": "name", "value": "gr"},
        },
    ),
    **{f"completion/complete {what}": ("completion/complete", params) for what, params in COMPLETED.items()},
    "server/discover": ("server/discover", None),
    "an unknown method": ("tools/sing", {}),
    "a method that this server lacks": ("logging/setLevel", {"level": "info"}),
    "resources/subscribe": ("resources/subscribe", {"uri": "test://static-text"}),
    "resources/unsubscribe": ("resources/unsubscribe", {"uri": "test://static-text"}),
    "tasks/list": ("tasks/list", {}),
    "a method of the server's": ("sampling/createMessage", {}),
}  # fmt: skip
BODIES: dict[str, bytes] = {
    "no JSON": b"{",
    "empty": b"",
    "not UTF-8": b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}',
    "a batch": b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]',
    "a text": b'"ping"',
    "no version of JSON-RPC": b'{"id": 1, "method": "ping"}',
    "another version of JSON-RPC": b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
    "an id that is none": b'{"jsonrpc": "2.0", "id": [1], "method": "ping"}',
    "params that are none": b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}',
    "neither method nor result": b'{"jsonrpc": "2.0", "id": 1}',
    "a notification": b'{"jsonrpc": "2.0", "method": "notifications/nothing"}',
}


FAILING = frozenset(
    {
        "unknown tool", "no name", "a name that is none", "arguments that are none",
        "tools/list with a wrong cursor", "resources/list with a wrong cursor", "resources/read of nothing",
        "resources/read without a uri", "prompts/get of nothing", "prompts/get without what it needs",
        "an unknown method", "a method that this server lacks", "resources/subscribe",
        "resources/unsubscribe", "tasks/list", "a method of the server's",
        "resources/read of a kept result that is none", "resources/read of what is withheld",
        "resources/read of what breaks", "resources/read of too much", "resources/read of a uri that is none",
        "resources/read without params", "resources/list with a cursor that is none",
        "resources/templates/list with a wrong cursor", "prompts/list with a wrong cursor",
        "prompts/get of what breaks", "prompts/get without a name", "prompts/get of a name that is none",
        "prompts/get with arguments that are none", "prompts/get with an argument that is no text",
        "prompts/get with an argument of nothing", "prompts/get with too much",
        "completion/complete without anything", "completion/complete without a ref",
        "completion/complete without an argument", "completion/complete of another kind",
        "completion/complete of a ref that is none", "completion/complete of a template without a uri",
        "completion/complete of a prompt without a name",
        "completion/complete of an argument without a value",
        "completion/complete of a value that is none", "completion/complete in a context that is none",
        "completion/complete in a context of no texts",
    }
)  # fmt: skip
"""What is answered with an error of the protocol; all else with a result."""
OTHERWISE: dict[str, tuple[int, int | None]] = {
    "a batch": (-32600, -32602),
    "a text": (-32600, -32602),
    "no version of JSON-RPC": (-32600, -32602),
    "another version of JSON-RPC": (-32600, -32602),
    "an id that is none": (-32600, None),
    "params that are none": (-32600, -32602),
    "neither method nor result": (-32600, -32602),
}
"""After a handshake, what is no message is to us an invalid request, as JSON-RPC says; to the SDK a request
with invalid params, or (None) a notification, which it takes without a word."""


OUR_MISTAKES = frozenset({"resources/read of what breaks", "prompts/get of what breaks"})
"""After a handshake the SDK tells the client the words of an exception, under the code 0. We do not."""


@pytest.mark.parametrize("version", [*OLDER, "2023-01-01", NEWER, "nonsense"])
def test_both_servers_shake_hands_alike(hosts: tuple[Host, Host], version: str) -> None:
    ours, theirs = (Older(each, version) for each in hosts)
    assert plain(ours.greeting) == plain(theirs.greeting)
    assert ours.session
    assert theirs.session


@pytest.mark.parametrize("version", [OLDER[0], OLDER[-1]])
@pytest.mark.parametrize("what", CALLS)
def test_both_servers_call_alike_after_a_handshake(hosts: tuple[Host, Host], what: str, version: str) -> None:
    ours, theirs = (Older(each, version).post(encoded("tools/call", CALLS[what])) for each in hosts)
    assert ("error" in ours.message) == (what in FAILING)
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("what", OTHERS)
def test_both_servers_answer_alike_after_a_handshake(
    hosts: tuple[Host, Host], what: str, version: str
) -> None:
    ours, theirs = (Older(each, version).post(encoded(*OTHERS[what])) for each in hosts)
    assert ("error" in ours.message) == (what in FAILING or what == "server/discover")
    if what in OUR_MISTAKES:
        assert ours.message["error"] == {"code": -32603, "message": "Internal server error"}
        assert theirs.message["error"]["code"] == 0
    else:
        assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe"])
def test_a_method_that_we_lack_is_unknown_whatever_its_params_are(
    hosts: tuple[Host, Host], method: str
) -> None:
    """The SDK checks the params of every method of the protocol first."""
    ours, theirs = (Older(each, OLDER[-1]).post(encoded(method, {"level": 7})) for each in hosts)
    assert [each.message["error"]["code"] for each in (ours, theirs)] == [-32601, -32602]


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "resources/list", "prompts/get"])
def test_both_servers_refuse_alike_a_meta_that_is_none(hosts: tuple[Host, Host], method: str) -> None:
    params = {"name": "greeting" if method == "prompts/get" else "add", "_meta": 7}
    ours, theirs = (Older(each, OLDER[-1]).post(encoded(method, params)) for each in hosts)
    assert ours.message["error"] == {"code": -32602, "message": "_meta: must be an object"}
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("what", CALLS)
def test_both_servers_call_alike_in_the_newer_era(hosts: tuple[Host, Host], what: str) -> None:
    ours, theirs = (newer(each, "tools/call", CALLS[what]) for each in hosts)
    assert ("error" in ours.message) == (what in FAILING)
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("what", OTHERS)
def test_both_servers_answer_alike_in_the_newer_era(hosts: tuple[Host, Host], what: str) -> None:
    ours, theirs = (newer(each, *OTHERS[what]) for each in hosts)
    assert ("error" in ours.message) == (what in FAILING or what == "ping")
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("what", BODIES)
def test_both_servers_refuse_alike_what_is_no_message(hosts: tuple[Host, Host], what: str) -> None:
    ours, theirs = (Older(each, OLDER[-1]).post(BODIES[what]) for each in hosts)
    if what in OTHERWISE:
        code, their_code = OTHERWISE[what]
        assert (ours.status, ours.message["error"]["code"]) == (400, code)
        assert theirs.message is None if their_code is None else theirs.message["error"]["code"] == their_code
    else:
        assert plain(ours) == plain(theirs)
    ours, theirs = (ask(each, BODIES[what], mcp_protocol_version=NEWER, mcp_method="ping") for each in hosts)
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("number", [0, -1, 2**53, "", "text", "ä"])
def test_both_servers_say_the_id_again_as_it_was(hosts: tuple[Host, Host], number: object) -> None:
    ours, theirs = (Older(each, OLDER[-1]).post(encoded("ping", number=number)) for each in hosts)
    assert ours.message == {"jsonrpc": "2.0", "id": number, "result": {}}
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_method": "tools/call"},
        {"mcp_method": ""},
        {"mcp_protocol_version": "2030-01-01"},
        {"accept": "text/html"},
        {"accept": "application/json"},
    ],
    ids=str,
)
def test_both_servers_refuse_alike_wrong_headers_of_the_newer_era(
    hosts: tuple[Host, Host], headers: dict[str, str]
) -> None:
    ours, theirs = (newer(each, "tools/list", None, **headers) for each in hosts)
    assert ours.status >= 400
    assert plain(ours).status == plain(theirs).status


@pytest.mark.parametrize(
    "around",
    [
        {META + "protocolVersion": "2030-01-01"},
        {META + "protocolVersion": 7},
        {META + "protocolVersion": OLDER[-1]},
        {META + "clientCapabilities": {"elicitation": {}}},
    ],
    ids=str,
)
def test_both_servers_read_the_envelope_alike(hosts: tuple[Host, Host], around: dict[str, object]) -> None:
    ours, theirs = (newer(each, "tools/list", {"_meta": around}) for each in hosts)
    assert plain(ours) == plain(theirs)


def test_both_servers_ask_alike_for_an_approval(hosts: tuple[Host, Host]) -> None:
    able: dict[str, object] = {META + "clientCapabilities": {"elicitation": {"form": {}}}}
    params = {"name": "test_elicitation", "arguments": {"message": "may I"}}
    ours, theirs = (newer(each, "tools/call", {**params, "_meta": able}) for each in hosts)
    assert ours.message["result"]["resultType"] == "input_required"
    assert plain(ours) == plain(theirs)
    done = []
    for each, asked in zip(hosts, (ours, theirs), strict=True):
        reply = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
        more = {"inputResponses": reply, "requestState": asked.message["result"]["requestState"]}
        done.append(newer(each, "tools/call", {**params, **more, "_meta": able}))
    assert done[0].message["result"]["content"] == [{"type": "text", "text": "User response: may I"}]
    assert plain(done[0]) == plain(done[1])


def test_both_servers_refuse_alike_a_session_that_is_none(hosts: tuple[Host, Host]) -> None:
    ours, theirs = (ask(each, encoded("ping"), mcp_session_id="nothing") for each in hosts)
    assert ours.status == 404
    assert plain(ours).status == plain(theirs).status


def over_pipe(home: Path, server: str, version: str) -> dict[str, Said]:
    """What a server answers on a pipe to all that is asked above, one after the other."""
    asked = {**{what: ("tools/call", params) for what, params in CALLS.items()}, **OTHERS}
    found = {}
    with Pipe(HOST, str(CATALOG), str(home / server), server) as pipe:
        if version != NEWER:
            found["initialize"] = Said(200, pipe.begin(version=version))
        for number, (what, (method, params)) in enumerate(asked.items(), 1):
            sent = enveloped(method, params)[0]["params"] if version == NEWER else params
            pipe.write(request(method, sent, number))
            while (answer := pipe.read()).get("id") != number:
                assert "method" in answer, answer
            found[what] = plain(Said(200, answer))
        assert pipe.end()[2] == 0
    return found


@pytest.mark.parametrize("version", [*OLDER, NEWER])
def test_both_servers_answer_alike_on_a_pipe(tmp_path: Path, version: str) -> None:
    ours, theirs = (over_pipe(tmp_path, server, version) for server in ("stdio", "sdk-stdio"))
    assert len(ours) >= len(CALLS) + len(OTHERS)
    for what in ours:
        if what in OUR_MISTAKES and version != NEWER:
            assert (ours[what].message["error"], theirs[what].message["error"]) == (
                {"code": -32603},
                {"code": 0},
            )
        else:
            assert ours[what] == theirs[what], what
