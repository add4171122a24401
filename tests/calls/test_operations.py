"""Calls of an API's operations as requests: every style, nothing that leaves its place, and a server that
checks each request by the document the tools were made from."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolcrib
from tests.apis import documents
from tests.apis.arguments import Arguments
from tests.apis.checker import Checker, Wrong
from tests.strategies import json_values
from toolcrib.calls.operations import operation_request
from toolcrib.calls.requests import Outgoing
from toolcrib.catalog.sources import Source
from toolcrib.config import Environment
from toolcrib.errors import Kind
from toolcrib.model import (
    CallHttp,
    Credential,
    Grant,
    OpenApiOptions,
    Place,
    Placed,
    Tool,
    ToolError,
)

URL = "https://a.example/v1/items/{id}/parts"


def placed(place: Place, style: str = "form", *, explode: bool = True, **more: Any) -> Placed:
    return Placed(argument="x", place=place, name=more.pop("name", "x"), style=style, explode=explode, **more)


def request(*where: Placed, value: Any = None, url: str = "https://a.example/p", **more: Any) -> Outgoing:
    made = operation_request(CallHttp(url=url, placed=where, **more), {"x": value})
    assert isinstance(made, Outgoing), made
    return made


def refusal(*where: Placed, value: Any = None, url: str = "https://a.example/p", **more: Any) -> ToolError:
    made = operation_request(CallHttp(url=url, placed=where, **more), {"x": value})
    assert isinstance(made, ToolError), made
    return made


def path_of(value: Any, style: str = "simple", *, explode: bool = False) -> str:
    made = request(
        placed(Place.PATH, style, explode=explode), value=value, url="https://a.example/{x}/end", method="GET"
    )
    return made.url.removeprefix("https://a.example/").removesuffix("/end")


def query_of(value: Any, style: str = "form", *, explode: bool = True, **more: Any) -> str:
    return urlsplit(request(placed(Place.QUERY, style, explode=explode, **more), value=value).url).query


# -- styles -------------------------------------------------------------------------------------------------

COLOURS = ["blue", "black"]
RGB = {"R": 100, "G": 200}


@pytest.mark.parametrize(
    ("style", "explode", "value", "written"),
    [
        ("simple", False, "blue", "blue"),
        ("simple", False, COLOURS, "blue,black"),
        ("simple", False, RGB, "R,100,G,200"),
        ("simple", True, RGB, "R=100,G=200"),
        ("label", False, "blue", ".blue"),
        ("label", False, COLOURS, ".blue,black"),
        ("label", True, COLOURS, ".blue.black"),
        ("label", False, RGB, ".R,100,G,200"),
        ("label", True, RGB, ".R=100.G=200"),
        ("matrix", False, "blue", ";x=blue"),
        ("matrix", False, COLOURS, ";x=blue,black"),
        ("matrix", True, COLOURS, ";x=blue;x=black"),
        ("matrix", False, RGB, ";x=R,100,G,200"),
        ("matrix", True, RGB, ";R=100;G=200"),
        ("simple", False, True, "true"),
        ("simple", False, 5.0, "5"),
        ("simple", False, "a,b/c", "a%2Cb%2Fc"),
    ],
)
def test_path_styles(style: str, explode: bool, value: Any, written: str) -> None:
    assert path_of(value, style, explode=explode) == written


@pytest.mark.parametrize(
    ("style", "explode", "value", "written"),
    [
        ("form", True, "blue", "x=blue"),
        ("form", True, "", "x="),
        ("form", True, COLOURS, "x=blue&x=black"),
        ("form", False, COLOURS, "x=blue,black"),
        ("form", False, ["a,b", "c"], "x=a%2Cb,c"),
        ("form", True, RGB, "R=100&G=200"),
        ("form", False, RGB, "x=R,100,G,200"),
        ("spaceDelimited", False, COLOURS, "x=blue%20black"),
        ("pipeDelimited", False, COLOURS, "x=blue%7Cblack"),
        ("spaceDelimited", True, COLOURS, "x=blue&x=black"),
        ("deepObject", True, RGB, "x%5BR%5D=100&x%5BG%5D=200"),
        (
            "deepObject",
            True,
            {"a": [{"b": 1}, {"b": 2}]},
            "x%5Ba%5D%5B0%5D%5Bb%5D=1&x%5Ba%5D%5B1%5D%5Bb%5D=2",
        ),
        ("deepObject", True, ["a", "b"], "x%5B0%5D=a&x%5B1%5D=b"),
        ("deepObject", True, 5, "x=5"),
        ("form", True, [], ""),
        ("form", False, [], ""),
        ("form", True, None, ""),
        ("form", True, {}, ""),
        ("form", True, [1, None, 2.5], "x=1&x=2.5"),
        ("form", True, [{"a": 1}], "x=%7B%22a%22%3A1%7D"),
    ],
)
def test_query_styles(style: str, explode: bool, value: Any, written: str) -> None:
    assert query_of(value, style, explode=explode) == written


def test_a_parameter_with_a_media_type_is_written_in_it() -> None:
    assert query_of({"a": 1}, media_type="application/json") == "x=%7B%22a%22%3A1%7D"
    assert query_of("a b", media_type="text/plain") == "x=a%20b"
    assert query_of(None, media_type="application/json") == "x=null"


@pytest.mark.parametrize(
    ("explode", "value", "written"),
    [
        (False, COLOURS, "blue,black"),
        (False, RGB, "R,100,G,200"),
        (True, RGB, "R=100,G=200"),
        (False, 3, "3"),
    ],
)
def test_header_styles(explode: bool, value: Any, written: str) -> None:
    made = request(placed(Place.HEADER, "simple", explode=explode, name="X-A"), value=value)
    assert made.headers == (("X-A", written),)


def test_cookies_stand_in_one_header() -> None:
    where = (
        placed(Place.COOKIE),
        Placed(argument="y", place=Place.COOKIE, name="y", explode=False),
    )
    made = operation_request(CallHttp(url="https://a.example/", placed=where), {"x": "a; b", "y": ["c", "d"]})
    assert isinstance(made, Outgoing)
    assert made.headers == (("Cookie", "x=a%3B%20b; y=c,d"),)


# -- bodies -------------------------------------------------------------------------------------------------


def body_of(value: Any, kind: str, **more: Any) -> tuple[bytes | None, str | None]:
    made = request(
        placed(more.pop("place", Place.MEMBER), more.pop("style", "field"), **more),
        value=value,
        media_type=kind,
    )
    return made.body, dict(made.headers).get("Content-Type")


def test_json_bodies() -> None:
    assert body_of("ü", "application/json") == ('{"x":"ü"}'.encode(), "application/json")
    assert body_of(None, "application/json") == (b'{"x":null}', "application/json")
    assert body_of([1], "application/a+json", place=Place.BODY) == (b"[1]", "application/a+json")


def test_form_bodies() -> None:
    kind = "application/x-www-form-urlencoded"
    assert body_of("a b&c", kind) == (b"x=a%20b%26c", kind)
    assert body_of(["a", "b"], kind) == (b"x=a&x=b", kind)
    assert body_of({"a": 1}, kind) == (b"x=%7B%22a%22%3A1%7D", kind)
    assert body_of({"a": 1}, kind, style="deepObject") == (b"x%5Ba%5D=1", kind)
    assert body_of(None, kind) == (b"x=", kind)
    assert body_of({"a": 1, "b": ["c", "d"]}, kind, place=Place.BODY) == (b"a=1&b=c&b=d", kind)


def test_text_and_bytes() -> None:
    assert body_of("ü", "text/plain", place=Place.BODY) == ("ü".encode(), "text/plain")
    assert body_of("AAE=", "application/octet-stream", place=Place.BODY)[0] == b"\0\1"
    error = refusal(placed(Place.BODY), value="!", media_type="application/octet-stream")
    assert (error.kind, error.message) == (Kind.INVALID_ARGUMENTS, "x: must be base64: its bytes are sent")


def test_parts() -> None:
    body, kind = body_of("hello", "multipart/form-data")
    boundary = (kind or "").partition("boundary=")[2]
    expected = f'--{boundary}\r\nContent-Disposition: form-data; name="x"\r\n\r\nhello\r\n--{boundary}--\r\n'
    assert body == expected.encode()
    body, _ = body_of("AAE=", "multipart/form-data", media_type="application/octet-stream")
    assert body is not None
    assert b'name="x"; filename="x"\r\nContent-Type: application/octet-stream\r\n\r\n\0\1\r\n' in body
    body, _ = body_of({"a": 1}, "multipart/form-data")
    assert body is not None
    assert b'\r\nContent-Type: application/json\r\n\r\n{"a":1}\r\n' in body


def test_a_body_that_is_optional_is_left_out_and_one_that_is_required_is_not() -> None:
    call = CallHttp(url="https://a.example/", placed=(placed(Place.MEMBER, "field"),))
    without = operation_request(call, {})
    assert isinstance(without, Outgoing)
    assert (without.body, without.headers) == (None, ())
    required = CallHttp(url=call.url, placed=call.placed, settings=b'{"body":"required"}')
    made = operation_request(required, {})
    assert isinstance(made, Outgoing)
    assert made.body == b"{}"


def test_the_authors_headers_come_first_and_the_method_is_the_authors() -> None:
    made = request(
        placed(Place.HEADER, "simple", name="X-A"), value="v", method="PUT", headers=(("Accept", "a/b"),)
    )
    assert (made.method, made.headers) == ("PUT", (("Accept", "a/b"), ("X-A", "v")))


# -- attacks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["..", ".", "../admin", "a/../b", "..\\b", "%2e%2e", "%2e%2e%2fb", ["a", "../b"]]
)
def test_attack_a_path_argument_that_goes_up(value: Any) -> None:
    error = refusal(placed(Place.PATH, "simple", explode=False), value=value, url="https://a.example/{x}/end")
    assert error.kind is Kind.INVALID_ARGUMENTS
    assert error.message.startswith("x: must not ")


@pytest.mark.parametrize("value", ["", [], {}, None, [None], [""]])
def test_attack_an_empty_path_argument_that_makes_it_another_path(value: Any) -> None:
    assert refusal(placed(Place.PATH, "simple"), value=value, url="https://a.example/{x}").kind is (
        Kind.INVALID_ARGUMENTS
    )


@pytest.mark.parametrize(
    "value", ["?admin=1", "#x", "a/b", "a\\b", "%2F", "\r\nHost: b", "a\0", "//evil.example", "@b"]
)
def test_attack_characters_that_end_a_segment(value: str) -> None:
    written = path_of(value)
    assert not set(written) & set("?#/\\ \r\n\0@")
    assert unquote(written) == value


def test_attack_two_arguments_that_make_dots_together() -> None:
    call = CallHttp(
        url="https://a.example/{x}{y}/end",
        placed=(
            placed(Place.PATH, "simple"),
            Placed(argument="y", place=Place.PATH, name="y", style="simple"),
        ),
    )
    made = operation_request(call, {"x": ".", "y": "."})
    assert isinstance(made, ToolError)
    assert "dots alone" in made.message


def test_attack_a_mark_in_an_argument_is_not_filled_again() -> None:
    call = CallHttp(
        url="https://a.example/{x}/{y}",
        placed=(
            placed(Place.PATH, "simple"),
            Placed(argument="y", place=Place.PATH, name="y", style="simple"),
        ),
    )
    made = operation_request(call, {"x": "{y}", "y": "z"})
    assert isinstance(made, Outgoing)
    assert made.url == "https://a.example/%7By%7D/z"


@pytest.mark.parametrize("reserved", [False, True])
def test_attack_a_query_value_that_becomes_another_parameter(reserved: bool) -> None:
    value = "a&admin=1#x+y%26z"
    query = query_of(value, reserved=reserved)
    assert parse_qsl(query) == [("x", value)]


def test_attack_an_object_that_takes_the_place_of_another_parameter_or_the_key() -> None:
    spread = placed(Place.QUERY)
    other = Placed(argument="y", place=Place.QUERY, name="limit")
    secret = (Credential(secret="S", place=Place.QUERY, name="api_key"),)
    for name in ("limit", "api_key"):
        made = operation_request(
            CallHttp(url="https://a.example/", placed=(spread, other), credentials=secret), {"x": {name: "1"}}
        )
        assert isinstance(made, ToolError)
        assert made.message == f'x: a member must not be called "{name}"'


def test_attack_a_name_with_brackets_that_reads_as_another_place() -> None:
    assert "brackets" in refusal(placed(Place.QUERY, "deepObject"), value={"a][b": 1}).message


@pytest.mark.parametrize(
    "value", ["a\r\nHost: evil", "a\nb", "a\0b", "ü", " a", "a ", ["a\r\nb"], {"k\r\nv": 1}]
)
def test_attack_a_header_value_that_begins_another_header(value: Any) -> None:
    assert refusal(placed(Place.HEADER, "simple", name="X-A"), value=value).kind is Kind.INVALID_ARGUMENTS


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "Host",
        "content-length",
        "Cookie",
        "Transfer-Encoding",
        "Connection",
        "Accept",
        "X-Key",
        "a b",
    ],
)
def test_attack_an_argument_that_sets_a_header_of_the_request_itself(name: str) -> None:
    error = refusal(
        placed(Place.HEADER, "simple", name=name),
        value="v",
        headers=(("Accept", "*/*"),),
        credentials=(Credential(secret="S", place=Place.HEADER, name="X-Key"),),
    )
    assert error.message == f'x: the header "{name}" is not set by arguments'


def test_attack_an_item_with_the_delimiter_of_its_list() -> None:
    assert refusal(placed(Place.HEADER, "simple", name="X-A"), value=["a,b"]).kind is Kind.INVALID_ARGUMENTS
    for style, item in (("spaceDelimited", "a b"), ("pipeDelimited", "a|b")):
        error = refusal(placed(Place.QUERY, style, explode=False), value=[item])
        assert "parts the items" in error.message


def test_attack_an_object_that_sets_other_cookies() -> None:
    assert "cookies" in refusal(placed(Place.COOKIE), value={"session": "stolen"}).message


def test_attack_a_value_that_ends_its_part_and_begins_another() -> None:
    _, kind = body_of("a", "multipart/form-data")
    boundary = (kind or "").partition("boundary=")[2]
    value = f'a\r\n--{boundary}\r\nContent-Disposition: form-data; name="admin"\r\n\r\n1'
    body, other = body_of(value, "multipart/form-data")
    assert body is not None
    own = (other or "").partition("boundary=")[2].encode()
    assert body.count(b"--" + own) == 2
    body, _ = body_of("a", "multipart/form-data", name='x"\r\nX: y')
    assert body is not None
    assert b'name="x%22%0D%0AX: y"\r\n' in body


def test_attack_arguments_without_an_end() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    assert "levels" in refusal(placed(Place.QUERY, "deepObject"), value=deep).message
    assert refusal(placed(Place.QUERY), value=["a"] * 20_000).kind is Kind.INVALID_ARGUMENTS
    assert refusal(placed(Place.QUERY), value="a" * 70_000).kind is Kind.TOO_LARGE
    huge = refusal(placed(Place.BODY), value="a" * (33 << 20), media_type="text/plain")
    assert huge.kind is Kind.TOO_LARGE


def test_a_lone_surrogate_is_refused_everywhere() -> None:
    for place in (Place.PATH, Place.QUERY, Place.HEADER, Place.COOKIE, Place.MEMBER, Place.BODY):
        error = refusal(
            placed(place, "simple"),
            value="\ud800",
            url="https://a.example/{x}" if place is Place.PATH else "https://a.example/",
        )
        assert error.kind is Kind.INVALID_ARGUMENTS


def test_an_argument_that_nobody_placed_is_refused() -> None:
    made = operation_request(CallHttp(url="https://a.example/", placed=()), {"x": 1})
    assert isinstance(made, ToolError)
    assert made.message == "x: the operation has no such argument"


def test_without_a_secret_nothing_is_sent() -> None:
    missing = (Credential(secret="", place=Place.HEADER, name="Authorization", prefix="Bearer "),)
    error = refusal(placed(Place.QUERY), value=1, credentials=missing)
    assert error.kind is Kind.UNAVAILABLE
    assert error.message == "the operation needs authentication, and no secret is configured for it"


# -- properties ---------------------------------------------------------------------------------------------


@given(
    json_values | st.text(max_size=12) | st.lists(st.text("./\\%2eF?#;,= ", max_size=6), max_size=3),
    st.sampled_from(["simple", "label", "matrix"]),
    st.booleans(),
)
def test_a_path_argument_never_changes_the_other_segments(value: Any, style: str, explode: bool) -> None:
    call = CallHttp(url=URL.replace("{id}", "{x}"), placed=(placed(Place.PATH, style, explode=explode),))
    made = operation_request(call, {"x": value})
    if isinstance(made, ToolError):
        assert made.kind is Kind.INVALID_ARGUMENTS
        return
    split = urlsplit(made.url)
    assert (split.scheme, split.netloc, split.query, split.fragment) == ("https", "a.example", "", "")
    segments = split.path.split("/")
    assert (segments[:3], segments[4:]) == (["", "v1", "items"], ["parts"])
    assert unquote(segments[3]) not in ("", ".", "..")


_placed = st.builds(
    Placed,
    argument=st.just("x"),
    place=st.sampled_from(list(Place)),
    name=st.sampled_from(["x", "a[b]", "X-A", "ü", 'q"', ""]),
    style=st.sampled_from(
        ["form", "simple", "label", "matrix", "spaceDelimited", "pipeDelimited", "deepObject", "field"]
    ),
    explode=st.booleans(),
    media_type=st.sampled_from([None, "application/json", "text/plain", "application/octet-stream"]),
    reserved=st.booleans(),
)


@given(
    _placed,
    json_values | st.text(max_size=8),
    st.sampled_from(
        [
            "application/json",
            "text/plain",
            "multipart/form-data",
            "application/x-www-form-urlencoded",
            "image/png",
        ]
    ),
)
def test_no_value_makes_it_raise_and_no_request_has_more_than_it_should(
    where: Placed, value: Any, media_type: str
) -> None:
    call = CallHttp(
        url="https://a.example/p/{x}" if where.place is Place.PATH else "https://a.example/p",
        placed=(where,),
        media_type=media_type,
    )
    made = operation_request(call, {"x": value})
    assert made == operation_request(call, {"x": value})
    if isinstance(made, Outgoing):
        assert made.url.isascii()
        assert made.url.startswith("https://a.example/p")
        assert not set(made.url) & set(" \r\n#\\")
        for name, text in made.headers:
            assert name in ("X-A", "x", "Cookie", "Content-Type")
            assert text.isprintable() or "\t" in text
            assert not set(text) & set("\r\n\0")


# -- a server that checks -----------------------------------------------------------------------------------

CALLS = 1_000


@dataclass
class Desk:
    """A server and what it thinks of the requests it got."""

    port: int = 0
    checker: Checker | None = None
    wrong: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


@contextmanager
def checking_server() -> Iterator[Desk]:
    desk = Desk()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            assert desk.checker is not None
            try:
                operation, told = desk.checker.check(self.command, self.path, self.headers.items(), body)
                desk.seen.add(operation)
                status, answer = 200, json.dumps({"operation": operation, "told": told}).encode()
            except (Wrong, ValueError, KeyError) as wrong:
                desk.wrong.append(f"{self.command} {self.path} {body[:300]!r}: {wrong!r}")
                status, answer = 400, json.dumps(str(wrong)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = handle_any

        def log_message(self, *args: object) -> None:
            """The test looks at the desk."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    desk.port = server.server_address[1]
    try:
        yield desk
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def opened(document: dict[str, Any], folder: Path) -> Iterator[toolcrib.Crib]:
    """A crib on the document, with a secret, that may reach a server on this machine."""
    path = folder / "api.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    options = OpenApiOptions(secret="TOKEN")
    config = toolcrib.Config(
        sources=(Source(path=str(path), format="openapi", named=True, openapi=options),),
        state=str(folder / "state"),
        grants=(Grant(pattern="openapi:*", needs=("net.http", "net.private"), env=("TOKEN",)),),
    )
    surroundings = Environment.read({"HOME": str(folder), "PATH": "/usr/bin:/bin", "TOKEN": "t0ken-of-ann"})
    with toolcrib.open(config, environment=surroundings) as crib:
        yield crib


def as_texts(value: Any) -> Any:
    """What a request can say of a value: no nulls and nothing empty, and everything plain as text."""
    if isinstance(value, dict):
        made = {key: as_texts(item) for key, item in value.items()}
        return {key: item for key, item in made.items() if item not in (None, [], {})} or None
    if isinstance(value, list):
        return [item for item in map(as_texts, value) if item is not None] or None
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        value
        if value is None
        else str(int(value) if isinstance(value, float) and value == int(value) else value)
    )


def expected(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the server must have understood."""
    assert isinstance(tool.invocation, CallHttp)
    told: dict[str, Any] = {}
    for one in tool.invocation.placed or ():
        if one.argument in arguments:
            value = arguments[one.argument]
            if one.place is Place.BODY:
                told["body"] = value
            elif one.place is Place.MEMBER:
                told.setdefault("body", {})[one.name] = value
            else:
                told[f"{one.place.value} {one.name}"] = value
    return told


@pytest.mark.parametrize(
    ("make", "base_path", "operations"),
    [(documents.code_host, "/api/v3", 600), (documents.payments, "/api", 200)],
)
def test_a_server_that_checks_by_the_document_gets_only_valid_requests(
    make: Any, base_path: str, operations: int, tmp_path: Path
) -> None:
    random = Random(20260728)
    refused: list[str] = []
    sent = compared = 0
    with checking_server() as desk:
        document = make(f"http://127.0.0.1:{desk.port}/api")
        desk.checker = Checker(document, base_path)
        with opened(document, tmp_path) as crib:
            tools = list(crib.tools)
            assert len(tools) >= operations
            # Every operation once, then at random: at most so many refusals, or the loop would not end.
            for tool in [*tools, *(random.choice(tools) for _ in range(3 * CALLS))]:
                if sent >= CALLS:
                    break
                assert tool.input_schema is not None
                arguments = Arguments(tool.input_schema, random).some()
                result = crib.call(tool.key, arguments)
                if result.error is not None and result.error.kind is Kind.INVALID_ARGUMENTS:
                    refused.append(result.error.message)
                    continue
                sent += 1
                assert result.ok, (tool.name, arguments, result.error, desk.wrong)
                if result.data is not None:  # null: the answer to HEAD has no body
                    compared += 1
                    understood = as_texts(result.data["told"]) or {}
                    assert understood == (as_texts(expected(tool, arguments)) or {}), (tool.name, arguments)
    assert sent == CALLS
    assert compared > 0.9 * CALLS
    assert desk.wrong == []
    assert len(refused) < CALLS / 4, refused[:20]
    assert len(desk.seen) > 0.9 * len(tools)


def test_the_server_would_notice_a_wrong_request() -> None:
    document = documents.payments("http://127.0.0.1:1/api")
    checker = Checker(document, "/api")
    good = "/api/v1/charges?limit=5&created%5Bgt%5D=3"
    assert checker.check("GET", good, [], b"") == (
        "GET /v1/charges",
        {"query limit": 5, "query created": {"gt": 3}},
    )
    for method, target, headers, body in (
        ("GET", "/api/v1/charges?limit=500", [], b""),
        ("GET", "/api/v1/charges?limit=x", [], b""),
        ("GET", "/api/v1/charges?created=a", [], b""),
        ("GET", "/api/v1/charges?unknown=1", [], b""),
        ("GET", "/api/v1/nothing", [], b""),
        ("GET", "/api/v1/charges/not-an-id", [], b""),
        ("GET", "/api/v1/charges", [], b"body"),
        ("POST", "/api/v1/files", [], b""),
        ("POST", "/api/v1/charges", [("Content-Type", "application/x-www-form-urlencoded")], b"amount=x"),
        ("POST", "/api/v1/charges", [("Content-Type", "application/json")], b"{}"),
    ):
        with pytest.raises(Wrong):
            checker.check(method, target, headers, body)


def test_bytes_come_back_as_they_went() -> None:
    data = bytes(range(256))
    made = request(
        placed(Place.BODY), value=base64.b64encode(data).decode(), media_type="application/octet-stream"
    )
    assert made.body == data
