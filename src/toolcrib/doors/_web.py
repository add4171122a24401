"""What the doors that speak HTTP share: reading bodies within limits, answers as values, problem documents.

ASGI as it is, without a framework: a scope, ``receive`` and ``send``. Who may do what is decided before
(``_entrance.py``), what is done after; this file only reads and writes.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.jsontext import JsonObject, JsonValue

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
BODY_BYTES_MAX: Final = 4 << 20
BODY_TIMEOUT_S: Final = 30.0
NO_STORE: Final[Headers] = ((b"cache-control", b"no-store"),)
_GZIP_BYTES_MIN: Final = 1400
"""What fits into one packet gains nothing."""
_GZIP_BYTES_MAX: Final = 64 << 20
_GZIP_LEVEL: Final = 1


class BodyTooLarge(Exception):
    """Attack: a body without end, whatever length was declared. The answer is 413, and the connection is
    closed."""


class BodyTooSlow(Exception):
    """Attack: a body that comes one byte a minute and holds its place. The answer is 408."""


class ClientLeft(Exception):
    """Nobody waits for an answer any more; none is written."""


class Answer(Struct, frozen=True):
    """A whole response, before it is sent."""

    status: int
    body: bytes = b""
    headers: Headers = ()


# -- reading ------------------------------------------------------------------------------------------------


def header(scope: Scope, name: bytes) -> bytes | None:
    """The one header of a (lower-case) name; the first where there are several."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def media_type(scope: Scope) -> str:
    """What the body is said to be, without parameters and in lower case; empty: it is not said."""
    return (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")


async def read_body(
    receive: Receive, bytes_max: int = BODY_BYTES_MAX, *, timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """The whole body, counted while it comes. Raises BodyTooLarge, BodyTooSlow or ClientLeft."""
    message = await _next(receive, timeout_s)
    first: bytes = message.get("body", b"")
    if len(first) > bytes_max:
        raise BodyTooLarge
    if not message.get("more_body", False):
        return first
    parts, size = [first], len(first)
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while message.get("more_body", False):
        message = await _next(receive, until - loop.time())
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise BodyTooLarge
        parts.append(part)
    return b"".join(parts)


async def _next(receive: Receive, timeout_s: float) -> Message:
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
    except TimeoutError:
        raise BodyTooSlow from None
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of some work, which is cancelled when the client leaves. Raises ClientLeft. The body must
    have been read."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        raise ClientLeft
    finally:
        gone.cancel()
        task.cancel()


async def left(receive: Receive) -> None:
    """Wait until the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


# -- writing ------------------------------------------------------------------------------------------------


def json_answer(value: JsonValue, status: int = 200, headers: Headers = ()) -> Answer:
    return json_bytes(jsontext.compact(value), status, headers)


def json_bytes(body: bytes, status: int = 200, headers: Headers = ()) -> Answer:
    """An answer of JSON that was written before."""
    return Answer(status, body, ((b"content-type", JSON), *headers))


def problem(status: int, detail: str, *, hint: str | None = None, headers: Headers = ()) -> Answer:
    """A problem document (RFC 9457): for requests that never became a call. ``detail`` says what is wrong
    here, ``hint`` what to do; both are written by us, with foreign texts quoted and cut."""
    document: JsonObject = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "hint": hint,
    }
    kept = ((b"content-type", PROBLEM), *NO_STORE, *headers)
    return Answer(status, jsontext.compact(document), kept)


def squeezed(answer: Answer, scope: Scope) -> Answer:
    """The answer with gzip, where the client takes it and it is worth it."""
    size = len(answer.body)
    if not _GZIP_BYTES_MIN <= size <= _GZIP_BYTES_MAX or not _takes_gzip(scope):
        return answer
    # A compressed form is another representation: caches keep it apart, and its tag differs (RFC 9110).
    headers = tuple(
        (name, value[:-1] + b'-gzip"' if name == b"etag" else value) for name, value in answer.headers
    )
    more = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
    body = gzip.compress(answer.body, _GZIP_LEVEL, mtime=0)
    return replace(answer, body=body, headers=(*headers, *more))


def _takes_gzip(scope: Scope) -> bool:
    for part in (header(scope, b"accept-encoding") or b"").lower().split(b","):
        name, _, weight = part.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


async def send_answer(send: Send, answer: Answer, *, head: bool = False) -> None:
    """Send a whole response; ``head``: as to HEAD, without its body."""
    headers = list(answer.headers)
    if answer.status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
