"""A call becomes a request: what goes where, and that nothing leaves its place."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib import jsontext
from toolcrib.calls.requests import QUERY_CHARS_MAX, Outgoing, request
from toolcrib.errors import Kind
from toolcrib.jsontext import JsonObject
from toolcrib.model import CallHttp, ToolError

URL = "https://api.example.com/x"


def outgoing(arguments: JsonObject, **call: object) -> Outgoing:
    found = request(CallHttp(**{"url": URL, **call}), arguments)  # type: ignore[arg-type]
    assert isinstance(found, Outgoing), found
    return found


@pytest.mark.requirement("rye.type.http")
def test_a_post_carries_its_arguments_as_json_and_its_url_stays_the_authors() -> None:
    found = outgoing({"a": 1, "b": "../../x?y#z"})
    assert (found.method, found.url) == ("POST", URL)
    assert found.body == b'{"a":1,"b":"../../x?y#z"}'
    assert ("Content-Type", "application/json") in found.headers


def test_the_authors_headers_win_over_ours() -> None:
    found = outgoing({}, headers=(("content-type", "application/vnd.x+json"), ("Accept", "text/csv")))
    assert found.headers == (("content-type", "application/vnd.x+json"), ("Accept", "text/csv"))


@pytest.mark.parametrize(
    ("url", "arguments", "expected"),
    [
        (URL, {}, URL),
        (URL, {"a": 1, "b": True, "c": None, "d": 1.5}, f"{URL}?a=1&b=true&d=1.5"),
        (f"{URL}?k=v", {"a": "x y&z=1#f"}, f"{URL}?k=v&a=x%20y%26z%3D1%23f"),
        (f"{URL}#f", {"a": ["x", 2]}, f"{URL}?a=x&a=2"),
        (URL, {"a": {"b": [1]}, "c": [[1]]}, f"{URL}?a=%7B%22b%22%3A%5B1%5D%7D&c=%5B%5B1%5D%5D"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_a_method_without_a_body_carries_its_arguments_in_the_query(
    method: str, url: str, arguments: JsonObject, expected: str
) -> None:
    found = outgoing(arguments, method=method, url=url)
    assert (found.url, found.body) == (expected, None)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=5))
@settings(deadline=None)
def test_no_argument_leaves_the_query(arguments: dict[str, str]) -> None:
    found = outgoing(dict(arguments), method="GET")
    parts = urlsplit(found.url)
    assert (parts.netloc, parts.path, parts.fragment) == ("api.example.com", "/x", "")
    assert dict(parse_qsl(parts.query, keep_blank_values=True)) == arguments
    assert found.url.isascii()
    assert found.url.isprintable()


def test_what_is_too_long_or_no_text_is_the_callers_mistake() -> None:
    for method, arguments in (
        ("GET", {"a": "x" * QUERY_CHARS_MAX}),
        ("GET", {"a": "\ud800"}),
        ("POST", {"a": "\ud800"}),
    ):
        found = request(CallHttp(method=method, url=URL), arguments)
        assert isinstance(found, ToolError)
        assert found.kind is Kind.INVALID_ARGUMENTS


def test_a_request_does_not_show_its_body() -> None:
    assert "s3cret" not in repr(outgoing({"password": "s3cret"}))
    assert jsontext.loads_own(outgoing({"a": 2**70}).body or b"") == {"a": 2**70}
