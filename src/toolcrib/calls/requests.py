"""A call as one HTTP request: which method, to where, with which headers and body. Pure.

Method, URL and headers are the author's; arguments travel as JSON in the body, or in the query of a method
that has no body, and are never pasted into the URL. Where each argument goes by a document of its own
(``placed``), ``calls/operations.py`` says so instead. Nothing here connects, and nothing looks up a secret.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import quote

from toolcrib import jsontext
from toolcrib.errors import Kind
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import CallHttp, ToolError
from toolcrib.records import Discreet


class Outgoing(Discreet, frozen=True, kw_only=True):
    """One request as it is to be sent, but for the credentials, which the runtime adds."""

    HIDDEN: ClassVar = (
        "headers",
        "body",
    )

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


_BODILESS: Final = ("GET", "HEAD", "DELETE", "OPTIONS")
"""Methods whose arguments go into the query: what a body would mean there, nobody has said."""
QUERY_CHARS_MAX: Final = 8192
"""More than common servers take in a request line."""


def request(call: CallHttp, arguments: JsonObject) -> Outgoing | ToolError:
    """The request of a call whose arguments travel together."""
    try:
        if call.method in _BODILESS:
            url = _with_query(call.url, arguments)
            return Outgoing(method=call.method, url=url, headers=_filled(call.headers, _ACCEPT))
        body = jsontext.compact(arguments)
    except UnicodeEncodeError:
        message = "the arguments have a lone surrogate, which is no character"
        return ToolError(kind=Kind.INVALID_ARGUMENTS, message=message)
    except _TooLong:
        return ToolError(
            kind=Kind.INVALID_ARGUMENTS,
            message=f"the arguments are too long for the query of a URL (limit {QUERY_CHARS_MAX} characters)",
            hint="send less",
        )
    typed = ("Content-Type", call.media_type)
    return Outgoing(
        method=call.method, url=call.url, headers=_filled(call.headers, typed, _ACCEPT), body=body
    )


class _TooLong(Exception):
    pass


_ACCEPT: Final = ("Accept", "application/json, text/*;q=0.9, */*;q=0.5")


def _filled(headers: tuple[tuple[str, str], ...], *wanted: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The author's headers, and those of ours that the author did not set."""
    there = {name.lower() for name, _ in headers}
    return (*headers, *(pair for pair in wanted if pair[0].lower() not in there))


def _with_query(url: str, arguments: JsonObject) -> str:
    """Attack: an argument that ends the query, or names another host: everything in it is percent-encoded."""
    pairs = [
        f"{quote(name, safe='')}={quote(_text(part), safe='')}"
        for name, value in arguments.items()
        for part in (value if _is_list_of_scalars(value) else (value,))
        if part is not None
    ]
    query = "&".join(pairs)
    if len(query) > QUERY_CHARS_MAX:
        raise _TooLong
    return added_query(url, query)


def added_query(url: str, query: str) -> str:
    """A URL with more in its query; a fragment is never sent, so it goes."""
    url = url.partition("#")[0]
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{query}"


def _is_list_of_scalars(value: JsonValue) -> bool:
    return isinstance(value, list) and not any(isinstance(part, (dict, list)) for part in value)


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return jsontext.compact(value).decode("utf-8")
