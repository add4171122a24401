"""MCP as bytes, for our server and our client: messages, versions, the newer era's envelope and headers.

Knows no method's meaning and does no I/O. The server's methods are in ``doors/_mcp_desk.py``, the client's
connections in ``runtimes/_mcp_client.py``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Final, TypeAlias, TypeGuard

import orjson
from msgspec import Struct

from toolcrib import jsontext
from toolcrib.jsontext import JsonObject, JsonValue

OLDER: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with ``initialize``, the oldest first."""
NEWER: Final = ("2026-07-28",)
"""Versions in which every request says all that is needed to answer it."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022
REQUEST_CANCELLED: Final = -32800

STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The HTTP status of an error in the newer era; any other, and the older era: 200."""

META: Final = "io.modelcontextprotocol/"
VERSION_KEY: Final = META + "protocolVersion"
CLIENT_KEY: Final = META + "clientCapabilities"
CLIENT_INFO_KEY: Final = META + "clientInfo"
SERVER_KEY: Final = META + "serverInfo"
SUBSCRIPTION_KEY: Final = META + "subscriptionId"
IDEMPOTENCY_KEY: Final = "toolcrib/idempotencyKey"
"""In a call's ``_meta``: calls of one caller with the same key run once."""

VERSION_HEADER: Final = b"mcp-protocol-version"
METHOD_HEADER: Final = b"mcp-method"
NAME_HEADER: Final = b"mcp-name"
ROUTING: Final = frozenset({VERSION_HEADER, METHOD_HEADER, NAME_HEADER})
_NAMED: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that ``Mcp-Name`` repeats, by method."""

WRONG_CURSOR: Final = "cursor: was not given by this server"

ID_CHARS_MAX: Final = 256
"""Attack: an id of a megabyte, which every answer and every record about it would repeat."""
_METHOD_CHARS_MAX: Final = 128
_ID_MAX: Final = 2**63
Id: TypeAlias = int | str
PIECE_BYTES: Final = 128 * 1024
"""Of a long response: so much of it is held for each client, however slowly that one reads."""


class Shape(Enum):
    REQUEST = 1
    NOTIFICATION = 2
    RESPONSE = 3


class Message(Struct, frozen=True):
    """One JSON-RPC message."""

    shape: Shape
    method: str
    """Empty in a response."""
    params: JsonObject
    """Of a response: the whole message."""
    id: Id | None


class Fault(Struct, frozen=True):
    """Why a message cannot be answered as it wants."""

    code: int
    message: str
    data: JsonValue = None

    @property
    def status(self) -> int:
        return STATUS.get(self.code, 200)


# -- reading ------------------------------------------------------------------------------------------------


def parse(content: bytes, *, values_max: int, allow_nul: bool = False) -> tuple[JsonValue, str]:
    """Return a JSON value and "", or what is wrong with the text."""
    parsed = jsontext.read(content, values_max=values_max, allow_nul=allow_nul)
    if parsed.defect is not None:
        return None, str(parsed.defect)
    if parsed.duplicates:
        # Attack: two readers of one message choose differently between members of the same name.
        return None, f'the name "{parsed.duplicates[0].key[:60]}" is repeated'
    return parsed.value, ""


def read(body: bytes) -> Message | Fault:
    """Read one message of a client, strictly. A batch is refused: only one version ever had them."""
    value, wrong = parse(body, values_max=jsontext.VALUES_MAX, allow_nul=True)
    if wrong:
        return Fault(PARSE_ERROR, f"Parse error: {wrong}")
    if type(value) is not dict:
        return Fault(INVALID_REQUEST, "the body must be one JSON-RPC message, not a batch")
    if value.get("jsonrpc") != "2.0":
        return Fault(INVALID_REQUEST, 'jsonrpc: must be "2.0"')
    number = value.get("id")
    if number is None:
        if "id" in value and "error" not in value:
            return Fault(INVALID_REQUEST, "id: must be a text or an integer")
    elif not is_id(number):
        return Fault(
            INVALID_REQUEST, f"id: must be a text of at most {ID_CHARS_MAX} characters or an integer"
        )
    method = value.get("method")
    if method is None:
        if "result" in value or "error" in value:
            return Message(Shape.RESPONSE, "", value, number)
        return Fault(INVALID_REQUEST, "method: is missing")
    if type(method) is not str or not 0 < len(method) <= _METHOD_CHARS_MAX:
        return Fault(INVALID_REQUEST, f"method: must be a text of at most {_METHOD_CHARS_MAX} characters")
    params = value.get("params")
    if params is None:
        params = {}
    elif type(params) is not dict:
        return Fault(INVALID_REQUEST, "params: must be an object")
    return Message(Shape.NOTIFICATION if number is None else Shape.REQUEST, method, params, number)


def is_id(value: object) -> TypeGuard[Id]:
    """Whether a value may name a request, or the progress of one."""
    if type(value) is str:
        return len(value) <= ID_CHARS_MAX
    return type(value) is int and -_ID_MAX <= value < _ID_MAX


def meta(params: JsonObject) -> JsonObject:
    found = params.get("_meta")
    return found if type(found) is dict else {}


def check_meta(params: JsonObject) -> Fault | None:
    """Refuse a ``_meta`` that is no object: what it should say would be lost without a word."""
    found = params.get("_meta")
    if found is None or type(found) is dict:
        return None
    return Fault(INVALID_PARAMS, "_meta: must be an object")


def trace(params: JsonObject, headers: Mapping[bytes, bytes] | None = None) -> str:
    """The traceparent of a request: of its own, else of what carried it; empty: there is none."""
    said = meta(params).get("traceparent")
    if type(said) is str:
        return said
    return headers.get(b"traceparent", b"").decode("latin-1") if headers else ""


def has_envelope(params: JsonObject) -> bool:
    """Whether a request says itself that it belongs to the newer era."""
    return VERSION_KEY in meta(params)


def elicits(capabilities: JsonValue) -> bool:
    """Whether a client can put a form before a person."""
    offered = capabilities.get("elicitation") if type(capabilities) is dict else None
    return type(offered) is dict and (not offered or "form" in offered)


# -- the newer era's envelope -------------------------------------------------------------------------------


def check_envelope(message: Message, headers: Mapping[bytes, bytes] | None) -> Fault | None:
    """What is wrong with a request of the newer era; ``headers`` None: it came by a pipe.

    Attack: a proxy routes or permits by the headers, while the body asks for something else.
    """
    around = message.params.get("_meta")
    if type(around) is not dict:
        return Fault(
            INVALID_PARAMS, f"params._meta: must be an object with {VERSION_KEY!r} and {CLIENT_KEY!r}"
        )
    if VERSION_KEY not in around or CLIENT_KEY not in around:
        missing = [key for key in (VERSION_KEY, CLIENT_KEY) if key not in around]
        return Fault(INVALID_PARAMS, f"params._meta: lacks {', '.join(missing)}")
    version = around[VERSION_KEY]
    if headers is not None and (wrong := _mismatch(message, version, headers)) is not None:
        return Fault(HEADER_MISMATCH, wrong)
    if type(version) is not str:
        return Fault(INVALID_PARAMS, f"params._meta: {VERSION_KEY} must be a text")
    return unsupported(version)


def unsupported(version: str) -> Fault | None:
    if version in NEWER:
        return None
    data = {"supported": [*NEWER], "requested": version[:ID_CHARS_MAX]}
    return Fault(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _mismatch(message: Message, version: JsonValue, headers: Mapping[bytes, bytes]) -> str | None:
    said = headers.get(VERSION_HEADER)
    if said is None or said.decode("latin-1") != version:
        return "the mcp-protocol-version header does not match the request's envelope"
    if headers.get(METHOD_HEADER, b"").decode("latin-1") != message.method:
        return "the mcp-method header does not match the request's method"
    key = _NAMED.get(message.method)
    named = message.params.get(key) if key is not None else None
    if named is not None and header_text(headers.get(NAME_HEADER)) != named:
        return f"the mcp-name header does not match the request's {key!r} parameter"
    return None


def routing(version: str, method: str, name: str | None = None) -> dict[str, str]:
    """Return the headers that say over HTTP what a request is, without its body being read."""
    headers = {"MCP-Protocol-Version": version}
    if version in NEWER:
        headers["Mcp-Method"] = method
        if name is not None:
            headers["Mcp-Name"] = header_value(name)
    return headers


_PLAIN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def header_value(text: str) -> str:
    """Return a text as a header's value, wrapped in base64 if no header can carry it."""
    if _PLAIN.fullmatch(text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode('ascii')}?="


_WRAPPED: Final = re.compile(rb"=\?base64\?(.*)\?=")


def header_text(value: bytes | None) -> str | None:
    """Return the text of a header; None if there is none, or if its base64 is wrong."""
    if value is None:
        return None
    found = _WRAPPED.fullmatch(value)
    if found is None:
        return value.decode("latin-1")
    try:
        plain = base64.b64decode(found[1], validate=True)
        return plain.decode("utf-8") if base64.b64encode(plain) == found[1] else None
    except ValueError:
        return None


@lru_cache(maxsize=64)
def accepts(header: bytes) -> tuple[bool, bool]:
    """Whether an Accept header takes JSON, and whether it takes an event stream."""
    kinds = {part.partition(b";")[0].strip().lower() for part in header[:4096].split(b",")}
    any_kind = b"*/*" in kinds
    return (
        any_kind or not kinds.isdisjoint((b"application/json", b"application/*")),
        any_kind or not kinds.isdisjoint((b"text/event-stream", b"text/*")),
    )


@lru_cache(maxsize=64)
def is_json(header: bytes) -> bool:
    """Attack: a page of any site posts text/plain, which its browser does not ask us about first."""
    return header.partition(b";")[0].strip().lower() == b"application/json"


# -- writing ------------------------------------------------------------------------------------------------


def answer(number: Id | None, result: bytes) -> bytes:
    """A response, its result written already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(number), result)


class Long(Struct, frozen=True):
    """A response that may be too long to be held at once: it is sent as it is put together."""

    size_bytes: int
    pieces: Iterator[bytes]
    """All but the last have at least ``PIECE_BYTES``."""


def long_answer(number: Id | None, head: bytes, parts: Iterable[bytes], tail: bytes, size_bytes: int) -> Long:
    """A response whose result is the parts, so many bytes of them, between head and tail."""
    first = b'{"jsonrpc":"2.0","id":%b,"result":%b' % (orjson.dumps(number), head)
    last = tail + b"}"
    return Long(len(first) + size_bytes + len(last), _gathered(chain((first,), parts, (last,))))


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(gathered)
            gathered.clear()
            size = 0
    yield b"".join(gathered)


def failure(number: Id | None, fault: Fault) -> bytes:
    error: JsonObject = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = fault.data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (orjson.dumps(number), jsontext.compact(error))


def notification(method: str, params: JsonObject | None = None) -> bytes:
    message: JsonObject = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return jsontext.compact(message)


def request(number: Id, method: str, params: JsonObject) -> bytes:
    return jsontext.compact({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def event(message: bytes) -> bytes:
    """A message as one event of a stream."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message
