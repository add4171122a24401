"""MCP's messages as bytes: what our server and our client share."""

from __future__ import annotations

import json

import pytest
from mcp.shared import inbound

from toolcrib import mcp_wire as wire
from toolcrib.mcp_wire import Fault, Message
from toolcrib.runtimes import _mcp_client

NAMES = ["add", "a b", " a", "a ", "", "é", "名前", "a\nb", "a\tb", "=?base64?YQ==?=", "x" * 300, "\x7f"]


@pytest.mark.parametrize("text", NAMES)
def test_a_header_carries_every_text_as_the_sdk_writes_and_reads_it(text: str) -> None:
    value = wire.header_value(text)
    assert value.isascii()
    assert wire.header_text(value.encode()) == text
    assert inbound.decode_header_value(value) == text
    assert wire.header_text(inbound.encode_header_value(text).encode()) == text


@pytest.mark.parametrize(
    "value", [b"=?base64?###?=", b"=?base64?YR==?=", b"=?base64?/w==?=", b"=?base64?Y?="]
)
def test_a_header_of_wrong_base64_has_no_text(value: bytes) -> None:
    assert wire.header_text(value) is None
    assert inbound.decode_header_value(value.decode()) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b'{"a": 1, "a": 2}', 'the name "a" is repeated'),
        (b'{"a": NaN}', "line 1"),
        (b"\xff", "UTF-8"),
        (b"[1, 2, 3, 4]", "values"),
    ],
)
def test_what_two_readers_could_read_differently_is_refused_with_its_place(text: bytes, wrong: str) -> None:
    assert wrong in wire.parse(text, values_max=3)[1]


def test_what_the_client_asks_is_what_the_server_reads() -> None:
    sent = _mcp_client.question(7, "tools/call", {"name": "add", "_meta": {"a": 1}})
    read = wire.read(sent)
    assert isinstance(read, Message)
    assert (read.method, read.id) == ("tools/call", 7)
    assert read.params == {"name": "add", "_meta": {"a": 1, "progressToken": 7}}
    greeting = _mcp_client.Greeting(version=wire.NEWER[-1])
    read = wire.read(_mcp_client.question(8, "tools/list", _mcp_client.stamped({}, greeting)))
    assert isinstance(read, Message)
    headers = {
        name.lower().encode(): value.encode()
        for name, value in wire.routing(greeting.version, "tools/list").items()
    }
    assert wire.check_envelope(read, headers) is None
    wrong = wire.check_envelope(read, {**headers, wire.METHOD_HEADER: b"tools/call"})
    assert isinstance(wrong, Fault)
    assert wrong.code == wire.HEADER_MISMATCH


@pytest.mark.parametrize("number", [1, "a", -(2**63)])
def test_a_server_that_asks_whether_we_are_there_is_answered(number: int | str) -> None:
    answer = _mcp_client.reply_to({"id": number, "method": "ping"})
    assert answer is not None
    assert json.loads(answer) == {"jsonrpc": "2.0", "id": number, "result": {}}


@pytest.mark.parametrize("number", [2**64, "x" * 257, None, True, 1.5, [1]])
def test_attack_an_id_that_cannot_be_an_id_is_not_said_back_to_a_server(number: object) -> None:
    for method in ("ping", "sampling/createMessage"):
        assert _mcp_client.reply_to({"id": number, "method": method}) is None
