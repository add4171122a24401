"""HTTP tools from end to end: a declaration, the whole engine, a real server on loopback, the journal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.peers import WAIT_S, Peer, answers, endless, hangs, nobody, once, response
from toolcrib.app import Crib
from toolcrib.bound import BoundTool
from toolcrib.config import Environment, HttpSettings, ProxySettings, resolve
from toolcrib.errors import Kind
from toolcrib.journal.reading import entries
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    CallHttp,
    Credential,
    End,
    Grant,
    Level,
    Limits,
    Origin,
    Permit,
    Place,
    Profile,
    Tool,
    ToolCall,
    ToolResult,
)
from toolcrib.runtimes import Host, http
from toolcrib.runtimes._http_client import HttpClient
from toolcrib.runtimes.http import HttpTools
from toolcrib.sandbox import Cancel
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.portable import Portable

GRANTED = (Grant(pattern="rye:*", needs=("net.http", "net.private")),)
JSON = {"content_type": "application/json"}


def declare(project: Path, url: str | None, name: str = "api/ask", **more: Any) -> Path:
    config = {**({"url": url} if url is not None else {}), **more.pop("config", {})}
    declaration = {
        "tool_id": name.rpartition("/")[2],
        "tool_type": "http",
        "version": "1.0.0",
        "description": "Ask a server",
        "executor_id": "http_client",
        "category": name.rpartition("/")[0],
        "parameters": [{"name": "q", "type": "string", "required": False, "description": "What"}],
        "config": config,
        **more,
    }
    path = project / ".ai" / "tools" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(declaration), encoding="utf-8")
    return path


@contextmanager
def crib(project: Path, *, env: Mapping[str, str] | None = None, **config: Any) -> Iterator[Crib]:
    surroundings = replace(
        Environment.read({"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **(env or {})}),
        state=str(project.parent / "state"),
    )
    found = resolve(surroundings, cwd=str(project), sources=[str(project)])
    config = {"unsigned": "warn", "grants": GRANTED, **config}
    with toolcrib.open(
        replace(found, **config), environment=surroundings, sandbox=Portable(Scratch())
    ) as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "p"
    folder.mkdir()
    return folder


def ask(project: Path, arguments: JsonObject | None = None, **config: Any) -> ToolResult:
    call = {key: config.pop(key) for key in ("timeout_s", "cancel", "idempotency_key") if key in config}
    with crib(project, **config) as opened:
        return opened.call("api/ask", arguments or {}, **call)


def records(project: Path) -> list[JsonObject]:
    bodies = [entry.body for entry in entries(str(project.parent / "state" / "journal"))]
    return [body for body in bodies if body["what"] != "open"]


def kind(result: ToolResult) -> Kind | None:
    return result.error.kind if result.error is not None else None


# -- the requirement ----------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.type.http")
def test_an_http_tool_posts_its_parameters_as_json(project: Path) -> None:
    with Peer(answers(response(b'{"answer": 42}', **JSON))) as peer:
        declare(project, peer.url("/x"), config={"method": "POST"})
        result = ask(project, {"q": "../?a=b#c"})
    (asked,) = peer.asked
    assert (asked.line, asked.body) == ("POST /x HTTP/1.1", b'{"q":"../?a=b#c"}')
    assert asked.headers["content-type"] == "application/json"
    said = json.loads(result.content)
    assert (said["status"], said["data"], said["item_id"]) == ("success", {"answer": 42}, "api/ask")
    assert said["chain"] == ["api/ask", "rye/core/primitives/http_client"]


@pytest.mark.requirement("rye.type.http")
def test_without_a_url_there_is_nothing_to_run(project: Path) -> None:
    declare(project, None)
    result = ask(project)
    assert (kind(result), result.error and result.error.message) == (Kind.UNAVAILABLE, "nothing to run")


@pytest.mark.requirement("rye.type.http")
@pytest.mark.parametrize(
    ("requires", "config"),
    [
        (["fs.read"], {"grants": ()}),
        (None, {"grants": (), "undeclared": Profile.PROJECT}),
        (None, {"grants": (), "undeclared": Profile.CLOSED}),
        (None, {"grants": (Grant(pattern="*", needs=("fs",)),)}),
    ],
)
def test_a_host_that_does_not_permit_outgoing_requests_sends_none(
    project: Path, requires: list[str] | None, config: dict[str, Any]
) -> None:
    with Peer(answers(response())) as peer:
        declare(project, peer.url(), requires=requires)
        result = ask(project, **config)
        assert peer.connections == 0
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (Kind.DENIED, "outgoing requests are not permitted")
    assert result.error.hint == 'to permit them:\n[grants."rye:api/ask"]\nneeds = ["net.http"]'


@pytest.mark.battery("I12")
@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "localhost", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("needs", [None, ("net.http",), ("net",)])
def test_a_tool_does_not_reach_this_machine_unless_that_is_granted_by_name(
    project: Path, host: str, needs: tuple[str, ...] | None
) -> None:
    grants = (Grant(pattern="*", needs=needs),) if needs is not None else ()
    with Peer(answers(response())) as peer:
        declare(project, peer.url(host=host))
        result = ask(project, grants=grants)
        assert peer.connections == 0
    assert result.error is not None
    assert result.error.kind is Kind.DENIED
    assert "leads to a private address" in result.error.message
    assert result.error.hint is not None
    assert result.error.hint.endswith('[grants."rye:api/ask"]\nneeds = ["net.http", "net.private"]')


def test_a_declaration_that_asks_for_private_addresses_does_not_get_them(project: Path) -> None:
    with Peer(answers(response())) as peer:
        declare(project, peer.url(), requires=["net.http", "net.private"])
        result = ask(project, grants=())
        assert peer.connections == 0
    assert kind(result) is Kind.DENIED
    assert any("net.private gives nothing" in note for note in result.notes)


@pytest.mark.battery("I12")
def test_metadata_services_stay_closed_whatever_is_granted(project: Path) -> None:
    declare(project, "http://169.254.169.254/latest/meta-data/")
    result = ask(project)
    assert kind(result) is Kind.DENIED
    assert result.error is not None
    assert result.error.hint is None


# -- templates, credentials and what is told of them --------------------------------------------------------


def test_url_and_headers_are_the_authors_and_their_templates_see_only_what_the_tool_may(
    project: Path,
) -> None:
    secret = "tok-12345678"
    with Peer(answers(response(b'{"echo": "tok-12345678"}', **JSON))) as peer:
        declare(
            project,
            "{base}/${VERSION:-v1}",
            config={
                "base": peer.url(""),
                "method": "get",
                "headers": {"Authorization": "Bearer ${API_TOKEN}", "X-Number": 3, "X-Q": "{q}${q:-none}"},
                "q": "author",
            },
        )
        result = ask(project, {"q": "caller"}, env={"API_TOKEN": secret, "OTHER": "x"})
    (asked,) = peer.asked
    assert asked.line == "GET /v1?q=caller HTTP/1.1"
    assert (asked.headers["authorization"], asked.headers["x-number"]) == (f"Bearer {secret}", "3")
    assert asked.headers["x-q"] == "authornone"
    # A server that repeats what it was sent does not tell it to the model.
    assert json.loads(result.content)["data"] == {"echo": "[secret API_TOKEN]"}
    assert secret not in repr(result) + repr(records(project))


def test_a_template_that_nobody_knows_is_not_sent(project: Path) -> None:
    with Peer(answers(response())) as peer:
        declare(project, peer.url(), config={"headers": {"Authorization": "Bearer ${API_TOKEN}"}})
        result = ask(project)
        assert peer.connections == 0
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (
        Kind.UNAVAILABLE,
        "config.headers.Authorization: nothing is known for ${API_TOKEN}",
    )


def test_header_injection_through_a_variable_is_refused_without_showing_it(project: Path) -> None:
    with Peer(answers(response())) as peer:
        declare(project, peer.url(), config={"headers": {"X-Token": "${API_TOKEN}"}})
        result = ask(project, env={"API_TOKEN": "tok-12345678\r\nX-Evil: 1"})
        assert peer.connections == 0
    assert kind(result) is Kind.UNAVAILABLE
    assert "tok-12345678" not in repr(result) + repr(records(project))


@pytest.mark.parametrize(
    ("config", "code"),
    [({"method": "CONNECT"}, "rye.type.http"), ({"method": 3}, "rye.type.http"),
     ({"headers": ["a"]}, "rye.type.http"), ({"headers": {"a": {}}}, "rye.type.http")],
)  # fmt: skip
def test_a_wrong_configuration_is_reported_when_it_is_loaded(
    project: Path, config: dict[str, Any], code: str
) -> None:
    declare(project, "https://api.example.com/", config=config)
    with crib(project) as opened:
        assert code in [problem.code for problem in opened.problems]


@pytest.mark.parametrize(
    ("method", "expected"), [("GET", Kind.FAILED), ("POST", Kind.UNKNOWN_OUTCOME)]
)  # fmt: skip
@pytest.mark.parametrize("location", ["/again", "file:///etc/hosts"])
def test_a_redirect_that_is_not_followed_leaves_reading_no_doubt(
    project: Path, method: str, expected: Kind, location: str
) -> None:
    with Peer(answers(*[response(b"", "303 See Other", location=location)] * 20)) as peer:
        declare(project, peer.url("/one"), config={"method": method})
        result = ask(project)
    assert kind(result) is expected


def test_the_record_names_whom_was_connected_to_and_no_query_or_header(project: Path) -> None:
    with Peer(answers(response(b"", "302 Found", location="/two"), response(b"hi"))) as peer:
        declare(project, peer.url("/one?fixed=zebra"), config={"method": "GET"})
        result = ask(project, {"q": "needle"})
        assert result.ok
    bodies = records(project)
    runs = [body["run"] for body in bodies if "run" in body]
    assert [run["argv"] for run in runs] == [["GET", f"http://127.0.0.1:{peer.port}"]] * 2
    assert [run["note"] for run in runs] == [
        "connected to 127.0.0.1, status 302", "connected to 127.0.0.1, status 200",
    ]  # fmt: skip
    assert all(run["stdout_bytes"] > 0 and run["ms"] > 0 for run in runs)
    assert [body["what"] for body in bodies] == ["begin", "redirect", "end"]
    assert "needle" not in repr(bodies)
    assert "zebra" not in repr(bodies)
    assert result.spent.attempts == 1


# -- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"a": [1]}', "application/json; charset=utf-8", {"a": [1]}),
        (b"[1]", "application/problem+json", [1]),
        (b'{"a":1,"a":2}', "application/json", '{"a":1,"a":2}'),
        (b"{bad", "application/json", "{bad"),
        ("gr\u00fcn".encode(), "text/plain", "gr\u00fcn"),
        ("gr\u00fcn".encode("latin-1"), "text/plain; charset=iso-8859-1", "gr\u00fcn"),
        (b"\xff\xfe\x00", "image/png", {"media_type": "image/png", "base64": "//4A"}),
        (b"\xff", "text/plain", "\ufffd"),
        (b"6869", "text/plain; charset=hex", "6869"),
        (b"", "text/plain", None),
    ],
)
def test_a_body_becomes_what_its_type_says(
    project: Path, body: bytes, content_type: str, expected: object
) -> None:
    with Peer(answers(response(body, content_type=content_type))) as peer:
        declare(project, peer.url())
        assert json.loads(ask(project).content)["data"] == expected


def test_a_failure_says_its_status_and_the_beginning_of_its_body(project: Path) -> None:
    with Peer(answers(response(b"no such thing " * 1000, "404 Not Found"))) as peer:
        declare(project, peer.url())
        result = ask(project)
    assert result.error is not None
    assert result.error.kind is Kind.FAILED
    assert result.error.message.startswith("HTTP 404 Not Found: no such thing")
    assert len(result.error.message) < 2100


def test_a_change_that_is_led_elsewhere_fails_instead_of_going_there(project: Path) -> None:
    with Peer(answers(response(b"", "307 Temporary Redirect", location="/b"))) as peer:
        declare(project, peer.url())
        result = ask(project)
        assert len(peer.asked) == 1
    assert kind(result) is Kind.FAILED


def test_a_flood_a_slow_server_a_lost_connection_and_no_server_have_kinds_of_their_own(project: Path) -> None:
    with Peer(endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536)) as peer:
        declare(project, peer.url())
        assert kind(ask(project, limits=Limits(stdout_bytes_max=10_000))) is Kind.TOO_LARGE
        assert peer.gone.wait(WAIT_S)
    with Peer(hangs()) as peer:
        declare(project, peer.url())
        result = ask(project, timeout_s=0.2)
        assert kind(result) is Kind.TIMED_OUT
        assert peer.gone.wait(WAIT_S)
    with Peer(once(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")) as peer:
        declare(project, peer.url())
        assert kind(ask(project)) is Kind.UNKNOWN_OUTCOME
    with nobody() as url:
        declare(project, url)
        result = ask(project)
    assert result.error is not None
    assert (result.error.kind, "connection refused" in result.error.message) == (Kind.UNAVAILABLE, True)


def test_the_button_stops_a_call(project: Path) -> None:
    cancel = Cancel()
    with Peer(hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")) as peer:
        declare(project, peer.url())
        threading.Timer(0.1, cancel.set).start()
        assert kind(ask(project, cancel=cancel)) is Kind.CANCELLED
        assert peer.gone.wait(WAIT_S)


def test_a_change_whose_answer_leads_to_a_refused_place_has_an_unknown_outcome(project: Path) -> None:
    with Peer(answers(response(b"", "303 See Other", location="http://169.254.169.254/"))) as peer:
        declare(project, peer.url())
        assert kind(ask(project)) is Kind.UNKNOWN_OUTCOME
        declare(project, peer.url(), config={"method": "GET"})
        assert kind(ask(project)) is not Kind.UNKNOWN_OUTCOME


# -- again --------------------------------------------------------------------------------------------------

RETRY = {"max_attempts": 3, "initial_delay": 0.01, "max_delay": 2}


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_request_that_was_turned_away_is_sent_again_when_the_server_asks_for_it(
    project: Path, status: str
) -> None:
    busy = response(b"busy", status, retry_after="0")
    with Peer(answers(busy, busy, response(b"done"))) as peer:
        declare(project, peer.url(), retry_policy=RETRY)
        result = ask(project, {"q": "x"})
    assert (result.ok, result.spent.attempts, len(peer.asked)) == (True, 3, 3)
    assert [body["what"] for body in records(project)] == ["begin", "attempt", "attempt", "end"]


def test_a_server_may_name_the_date_of_the_next_request(project: Path) -> None:
    """By its own clock, which need not be ours."""
    sent, then = "Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:01 GMT"
    busy = response(b"busy", "503 Service Unavailable", date=sent, retry_after=then)
    with Peer(answers(busy, response(b"done"))) as peer:
        declare(project, peer.url(), retry_policy=RETRY)
        result = ask(project, {"q": "x"})
    assert (result.ok, result.spent.attempts) == (True, 2)


@pytest.mark.parametrize(
    ("value", "sent", "again_s"),
    [
        ("Fri, 31 Dec 9999 23:59:59 GMT", None, http.AGAIN_S_MAX),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None, 0.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "yesterday", 0.0),
        ("Mon, 32 Foo 99999999999 99:99:99 GMT", None, None),
        ("Mon, 1 Jan 0000 00:00:00 +9999", None, None),
        ("soon", None, None),
        ("1" * 10, None, None),
        ("\u0663", None, None),
        ("x" * 10_000, None, None),
    ],
)
def test_whatever_date_a_server_names_the_wait_is_bounded(
    value: str, sent: str | None, again_s: float | None
) -> None:
    """Attack: a date that nobody can read, or of another age."""
    assert http._again_s(value, sent) == again_s


@pytest.mark.parametrize(
    "answer",
    [
        response(b"", "503 Service Unavailable"),
        response(b"", "500 Internal Server Error", retry_after="0"),
        response(b"", "429 Too Many Requests", retry_after="3600"),
        response(b"", "503 Service Unavailable", retry_after="3600"),
        response(b"", "503 Service Unavailable", retry_after="Wed, 21 Oct 2099 07:28:00 GMT"),
    ],
)
def test_what_may_have_been_done_or_takes_too_long_is_not_sent_again(project: Path, answer: bytes) -> None:
    with Peer(answers(answer)) as peer:
        declare(project, peer.url(), retry_policy=RETRY)
        assert kind(ask(project)) is Kind.FAILED
        assert len(peer.asked) == 1


def test_nobody_at_home_is_tried_again_and_a_lost_change_is_not(project: Path) -> None:
    with Peer(once(b"")) as peer:
        declare(project, peer.url(), retry_policy=RETRY)
        assert kind(ask(project)) is Kind.UNKNOWN_OUTCOME
        assert len(peer.asked) == 1
        gone = peer.url()
    declare(project, gone, retry_policy=RETRY)
    result = ask(project)
    assert (kind(result), result.spent.attempts) == (Kind.UNAVAILABLE, 3)


def test_the_same_idempotency_key_sends_one_request(project: Path) -> None:
    with Peer(answers(response(b'{"n":1}', **JSON), response(b'{"n":2}', **JSON))) as peer:
        declare(project, peer.url())
        with crib(project) as opened:
            said = [opened.call("api/ask", {}, idempotency_key="k").content for _ in range(2)]
        assert len(peer.asked) == 1
    assert json.loads(said[0])["data"] == json.loads(said[1])["data"] == {"n": 1}


def test_calls_of_one_crib_share_a_connection(project: Path) -> None:
    with Peer(answers(response())) as peer:
        declare(project, peer.url())
        with crib(project) as opened:
            assert all(opened.call("api/ask", {}).ok for _ in range(5))
            assert peer.connections == 1
        assert peer.gone.wait(WAIT_S)


# -- behind a proxy -----------------------------------------------------------------------------------------


def test_a_tool_goes_through_the_proxy_of_the_configuration_and_its_secret_is_told_nowhere(
    project: Path,
) -> None:
    with Peer(answers(response(b"by proxy"))) as peer:
        declare(project, "http://api.example/x")
        proxy = ProxySettings(host="127.0.0.1", port=peer.port, hosts=("api.example",), secret="PROXY_LOGIN")
        settings: dict[str, Any] = {
            "http": HttpSettings(proxy=proxy),
            "grants": (Grant(pattern="rye:*", needs=("net.http",)),),
        }
        result = ask(project, env={"PROXY_LOGIN": "me:s3cret"}, **settings)
        assert json.loads(result.content)["data"] == "by proxy"
        assert peer.asked[0].headers["proxy-authorization"] == "Basic bWU6czNjcmV0"
        (_, end) = records(project)
        said = json.dumps(end)
        assert f"connected to 127.0.0.1, the proxy 127.0.0.1:{peer.port}, status 200" in said
        assert "s3cret" not in said
        for env in ({}, {"PROXY_LOGIN": "s3cret"}):
            result = ask(project, env=env, **settings)
            assert result.error is not None
            assert (result.error.kind, result.error.hint) == (
                Kind.UNAVAILABLE, "toolcrib secret set PROXY_LOGIN",
            )  # fmt: skip
            assert "s3cret" not in repr(result)
        assert len(peer.asked) == 1


# -- credentials by name ------------------------------------------------------------------------------------


def run_with(credential: Credential, url: str, *, env: tuple[str, ...], secret: str = "user:pä55") -> Any:
    tool = Tool(
        key="openapi:x/y",
        name="y",
        scope="x",
        origin=Origin(format="openapi", path="/x.json"),
        invocation=CallHttp(method="GET", url=url, credentials=(credential,)),
    )
    sandbox = Portable(Scratch())
    assert sandbox.level is Level.PORTABLE
    host = Host(sandbox=sandbox, variables={"TOKEN": secret}, cwd="/", python="")
    tools = HttpTools(host, HttpClient())
    try:
        permit = Permit(network=True, private=True, env=env)
        call = ToolCall(id="1", tool="y", arguments={"a": "b"})
        return tools.run(BoundTool(tool), call, permit, Cancel())
    finally:
        tools.close()
        sandbox.close()


@pytest.mark.parametrize(
    ("place", "prefix", "header", "expected"),
    [
        (Place.HEADER, "Bearer ", "x-key", "Bearer user:p\u00e455"),
        (Place.HEADER, "Basic ", "x-key", "Basic dXNlcjpww6Q1NQ=="),
        (Place.COOKIE, "", "cookie", "X-Key=user%3Ap%C3%A455"),
        (Place.QUERY, "", None, "/?a=b&X-Key=user%3Ap%C3%A455"),
    ],
)
def test_a_credential_goes_where_it_belongs_and_only_there(
    place: Place, prefix: str, header: str | None, expected: str
) -> None:
    echoed = response(b"user:p\xc3\xa455 user%3Ap%C3%A455 dXNlcjpww6Q1NQ==")
    with Peer(answers(echoed)) as peer:
        credential = Credential(secret="TOKEN", place=place, name="X-Key", prefix=prefix)
        ending = run_with(credential, peer.url(), env=("TOKEN",))
    (asked,) = peer.asked
    assert (asked.headers[header] if header is not None else asked.line.split()[1]) == expected
    assert (ending.end, ending.value) == (End.RETURNED, " ".join(["[secret TOKEN]"] * 3))
    assert ending.notes == ("3 secrets were taken out of what came back: TOKEN",)
    assert "user:p" not in repr(ending)
    assert ending.runs[0].env_names == ("TOKEN",)


def raw(head: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def told(secret: str, answer: bytes) -> Any:
    """The ending of a call whose server repeats the credential somewhere."""
    with Peer(answers(answer)) as peer:
        credential = Credential(secret="TOKEN", place=Place.HEADER, name="X-Key")
        ending = run_with(credential, peer.url(), env=("TOKEN",), secret=secret)
    assert secret.lower() not in f"{ending} {ending.value} {ending.reason}".lower()
    return ending


TOKEN = "Tok/En-9xZ~1"
_AS_JSON = "application/json"


@pytest.mark.parametrize("spelled", [TOKEN, TOKEN.lower(), "Tok%2FEn-9xZ%7e1", r"Tok\u002fEn-9xZ~1"])
def test_a_status_line_does_not_tell_the_credential(spelled: str) -> None:
    assert told(TOKEN, raw(f"401 no {spelled}!")).reason == "HTTP 401 no [secret TOKEN]!"


def test_a_content_type_does_not_tell_the_credential_in_any_case() -> None:
    value = told(TOKEN, raw(f"200 OK\r\nContent-Type: image/{TOKEN}", b"\xff\xfe\xfd")).value
    assert value == {"media_type": "image/[secret token]", "base64": "//79"}


@pytest.mark.parametrize(
    ("spelled", "media_type"),
    [
        (TOKEN.encode(), "text/plain"),
        (TOKEN.upper().encode(), "text/plain"),
        (b"Tok\\/En-9xZ~1", _AS_JSON),
        (b"\\u0054ok\\u002fEn-9x\\u005A~1", _AS_JSON),
        (b"\\u0054ok\\u002FEn-9x\\u005a~1", "text/plain"),
        (b"Tok%2fEn-9xZ%7E1", _AS_JSON),
        (b"VG9rL0VuLTl4Wn4x", _AS_JSON),
    ],
)
def test_a_body_does_not_tell_the_credential_however_it_is_spelled(spelled: bytes, media_type: str) -> None:
    body = b'{"a": "<' + spelled + b'>"}'
    for status in ("200 OK", "400 no"):
        ending = told(TOKEN, raw(f"{status}\r\nContent-Type: {media_type}", body))
        value = ending.value if status == "200 OK" else ending.reason
        assert "<[secret TOKEN]>" in (value["a"] if isinstance(value, dict) else value)


def test_a_body_does_not_tell_the_credential_in_wide_letters_or_as_the_header_had_it() -> None:
    wide = TOKEN.encode("utf-16-le")
    assert told(TOKEN, raw("200 OK\r\nContent-Type: text/plain; charset=utf-16", wide)).value is not None
    latin = raw("200 OK\r\nContent-Type: text/plain; charset=iso-8859-1", "<gehäuse>".encode("latin-1"))
    assert told("gehäuse", latin).value == "<[secret TOKEN]>"


def test_a_redirect_does_not_tell_the_credential_as_a_host() -> None:
    ending = told("Key-12345", raw("302 Found\r\nLocation: http://Key-12345.invalid/"))
    assert ending.end is not End.RETURNED
    assert "[secret TOKEN].invalid" in ending.reason
    assert ending.runs[-1].argv[1] == "http://***REDACTED***.invalid:80"


def test_a_credential_that_was_not_granted_is_not_looked_up() -> None:
    with Peer(answers(response())) as peer:
        credential = Credential(secret="TOKEN", place=Place.HEADER, name="X-Key")
        ending = run_with(credential, peer.url(), env=())
        assert peer.connections == 0
    assert (ending.end, ending.reason) == (End.UNAVAILABLE, "the credential TOKEN is missing")
    assert ending.hint == 'hand it over:\n[grants."openapi:x/y"]\nenv = ["TOKEN"]'
