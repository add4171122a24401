"""Who may come in: in which order requests are refused, and who those are that pass."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import WAIT_S, asked, connected, heard, request, serving
from toolcrib.doors import _entrance
from toolcrib.doors._entrance import Entrance, Failures, Guest, needs_token
from toolcrib.doors._peers import Peer
from toolcrib.doors._web import App, Message, Receive, Scope, Send, read_body
from toolcrib.model import Effect, Reach, Right
from toolcrib.store import Store, tokens
from toolcrib.store.keep import STORE_NAME, Keep
from toolcrib.store.sqlite import SqliteStore
from toolcrib.store.tokens import Tokens

SERVER = ("127.0.0.1", 8321)
HOST = "127.0.0.1:8321"
OWNER = Guest(name="ann")
EVIL = "https://evil.example"


@dataclass
class Clock:
    """A time that moves only when a test says so."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Door:
    """An app that takes down who came."""

    guests: list[Guest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append(await read_body(receive))
        self.guests.append(scope["guest"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


def seen_as(*, is_owner: bool) -> Peer:
    """Return the other end of a connection that was looked up before."""
    peer = Peer(None, None)
    peer.verdict = is_owner
    return peer


def ask(
    entrance: App,
    *headers: tuple[str, str],
    method: str = "GET",
    path: str = "/v1/tools",
    host: str | None = HOST,
    body: Sequence[bytes] = (b"",),
    server: tuple[str, int | None] = SERVER,
    client: tuple[str, int] | None = ("127.0.0.1", 5),
    query: bytes = b"",
    is_owner: bool = True,
) -> Answered:
    """One request, as a server hands it over."""
    pairs = ([] if host is None else [("host", host)]) + list(headers)
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": query,
        "server": server,
        "client": client,
        "scheme": "http",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs],
        "peer": seen_as(is_owner=is_owner),
    }
    parts = [
        {"type": "http.request", "body": part, "more_body": number < len(body)}
        for number, part in enumerate(body, start=1)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        await entrance(scope, receive, send)

    asyncio.run(run())
    start, *rest = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answered(start["status"], found, b"".join(message.get("body", b"") for message in rest))


def post(entrance: App, *headers: tuple[str, str], body: bytes = b"{}", **more: Any) -> Answered:
    kept = {name for name, _ in headers}
    given = [pair for pair in (("content-type", "application/json"),) if pair[0] not in kept]
    size = [("content-length", str(len(body)))] if not kept & {"content-length", "transfer-encoding"} else []
    return ask(entrance, *headers, *given, *size, method="POST", body=(body,), **more)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    held = SqliteStore(str(tmp_path / "state" / STORE_NAME))
    yield held
    held.close()


@pytest.fixture
def guarded(tmp_path: Path, store: Store, door: Door, clock: Clock) -> Iterator[Entrance]:
    """Nobody comes in without a token."""
    keep = Keep(str(tmp_path / "state" / STORE_NAME))
    yield Entrance(door, tokens=Tokens(keep), clock=clock, now=clock)
    keep.close()


def bearer(value: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {value}")


def own(door: App, **more: Any) -> Entrance:
    """As on loopback: who has no token is the owner."""
    return Entrance(door, host_guest=OWNER, **more)


# -- host and origin ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "localhost:8321", "LOCALHOST:8321", "[::1]:8321"])
def test_our_own_names_with_our_port_pass(door: Door, host: str) -> None:
    assert ask(own(door), host=host).status == 200
    assert door.guests == [OWNER]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8321", "127.0.0.1", "127.0.0.1:80", "localhost",
     "localhost.evil.example:8321", "127.0.0.1:8321@evil.example", "127.0.0.1.nip.io:8321",
     "localhost.:8321", "", None, "[::1]:8322"],
)  # fmt: skip
def test_any_other_host_is_misdirected(door: Door, host: str | None) -> None:
    answer = ask(own(door), host=host)
    assert (answer.status, door.guests) == (421, [])
    assert json.loads(answer.body)["status"] == 421
    assert answer.headers["content-type"] == "application/problem+json"


def test_configured_hosts_pass_with_and_without_our_port(door: Door) -> None:
    entrance = own(door, hosts=("tools.example.org", "other.example.org:8443"))
    for host in ("tools.example.org", "tools.example.org:8321", "other.example.org:8443"):
        assert ask(entrance, host=host).status == 200
        assert ask(entrance, ("origin", f"https://{host}"), host=host).status == 200
    for host in ("other.example.org", "other.example.org:8321", "x.tools.example.org"):
        assert ask(entrance, host=host).status == 421


@pytest.mark.parametrize("written", ["2001:db8::1", "[2001:db8::1]"])
def test_a_configured_address_of_ipv6_passes_with_and_without_brackets(door: Door, written: str) -> None:
    entrance = own(door, hosts=(written,))
    for host in ("[2001:db8::1]", "[2001:db8::1]:8321"):
        assert ask(entrance, host=host).status == 200
    for host in ("2001:db8::1", "[2001:db8::1]:1", "[2001:db8::]:1"):
        assert ask(entrance, host=host).status == 421


def test_the_address_that_a_connection_came_to_is_a_name_of_ours(door: Door) -> None:
    entrance = own(door, host="0.0.0.0")
    assert ask(entrance, host="192.0.2.7:8321", server=("192.0.2.7", 8321)).status == 200
    assert ask(entrance, host="192.0.2.8:8321", server=("192.0.2.7", 8321)).status == 421
    assert ask(entrance, host="[2001:db8::1]:8321", server=("2001:db8::1", 8321)).status == 200
    assert ask(entrance, host="192.0.2.7:8321", server=("::ffff:192.0.2.7", 8321)).status == 200
    assert ask(entrance, host="0.0.0.0:8321", server=("192.0.2.7", 8321)).status == 421


@pytest.mark.parametrize("origin", [f"http://{HOST}", "http://localhost:8321", "https://[::1]:8321"])
def test_pages_of_ours_pass(door: Door, origin: str) -> None:
    assert post(own(door), ("origin", origin)).status == 200


@pytest.mark.battery("I01")
@pytest.mark.parametrize(
    "origin",
    [EVIL, "null", "http://127.0.0.1", "http://localhost:3000", "http://localhost:8321.evil.example", "",
     "http://127.0.0.1:8321/", "file://", "http://127.0.0.1:8321 https://evil.example", "chrome-extension://x"],
)  # fmt: skip
def test_a_page_of_somebody_elses_is_refused_before_anything_is_read(door: Door, origin: str) -> None:
    for path in ("/mcp", "/v1/tools/x/calls", "/", "/healthz", "/login"):
        answer = post(own(door), ("origin", origin), body=b"not json", path=path)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
    assert door.bodies == []


@pytest.mark.battery("I01")
def test_a_foreign_page_is_refused_even_with_a_good_token(
    guarded: Entrance, store: Store, door: Door
) -> None:
    _, value = tokens.create(store, "ci", now=1.0)
    assert post(guarded, bearer(value)).status == 200
    assert post(guarded, bearer(value), ("origin", EVIL)).status == 403
    assert len(door.guests) == 1


def test_a_host_that_is_not_ours_is_told_first_then_the_page_then_the_token(guarded: Entrance) -> None:
    foreign = (("origin", EVIL), bearer("wrong"), ("content-length", "999999999"))
    assert post(guarded, *foreign, host="evil.example").status == 421
    assert post(guarded, *foreign).status == 403
    assert post(guarded, *foreign[1:]).status == 401


def test_a_configured_page_is_answered_and_asked_for_permission(door: Door) -> None:
    entrance = own(door, origins=("https://app.example",))
    ours = ("origin", "https://app.example")
    before = ask(entrance, ours, ("access-control-request-method", "POST"), method="OPTIONS")
    assert before.status == 204
    assert before.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in before.headers
    assert door.guests == []
    answer = post(entrance, ours, ("sec-fetch-site", "cross-site"))
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert answer.headers["vary"] == "origin"
    foreign = ask(entrance, ("origin", EVIL), method="OPTIONS")
    assert (foreign.status, "access-control-allow-origin" in foreign.headers) == (403, False)
    assert "access-control-allow-origin" not in post(entrance, ("origin", f"http://{HOST}")).headers


def test_a_page_of_ours_that_is_named_besides_stays_ours(door: Door) -> None:
    entrance = own(door, hosts=("tools.example.org",), origins=("https://tools.example.org",))
    answer = post(entrance, ("origin", "https://tools.example.org"), host="tools.example.org")
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (200, False)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_foreign_page_embeds_is_refused_and_links_from_it_are_not(door: Door, site: str) -> None:
    entrance = own(door)
    fetch = ("sec-fetch-site", site)
    assert ask(entrance, fetch, ("sec-fetch-mode", "no-cors")).status == 403
    assert ask(entrance, fetch).status == 403
    assert post(entrance, fetch, ("sec-fetch-mode", "navigate")).status == 403
    assert ask(entrance, fetch, ("sec-fetch-mode", "navigate"), path="/").status == 200


@pytest.mark.parametrize(
    "name", ["host", "origin", "authorization", "content-length", "content-type", "cookie"]
)
def test_a_header_that_stands_twice_is_refused(door: Door, name: str) -> None:
    value = {"host": HOST, "origin": f"http://{HOST}"}.get(name, "1")
    twice = ((name, value), (name, value))
    assert ask(own(door), *twice, host=None if name == "host" else HOST).status == 400
    assert door.guests == []


@pytest.mark.parametrize(
    "path", ["/a\x00b", "/a\nb", "/\x7f", "/v1/../admin", "/..", "/./x", "/a\\b", "/v1/tools/\ufffd"]
)
def test_a_path_with_odd_bytes_is_refused(door: Door, path: str) -> None:
    assert ask(own(door), path=path).status == 400


def test_what_is_too_long_is_refused(door: Door) -> None:
    entrance = own(door)
    assert ask(entrance, path="/" + "a" * 9000).status == 414
    assert ask(entrance, query=b"a" * 9000).status == 414
    assert ask(entrance, bearer("x" * 9000)).status == 431
    assert ask(entrance, *((f"x-{number}", "1") for number in range(101)), path="/mcp").status == 431
    assert door.guests == []


def test_a_websocket_is_refused(door: Door) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        await own(door)({"type": "websocket", "path": "/mcp", "headers": []}, receive, send)

    asyncio.run(run())
    assert [message["type"] for message in sent] == ["websocket.close"]


# -- tokens -------------------------------------------------------------------------------------------------


def test_without_a_token_only_what_anybody_may_see_is_answered(guarded: Entrance, door: Door) -> None:
    for path in ("/v1/tools", "/mcp", "/metrics", "/openapi.json", "/", "/healthz/x", "/static"):
        answer = ask(guarded, path=path)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="toolcrib"')
    assert door.guests == []
    for path in ("/healthz", "/readyz", "/login", "/static/style.css"):
        assert ask(guarded, path=path).status == 200
    for guest in door.guests:
        assert (guest.name, guest.rights, guest.reach) == (
            "",
            frozenset(),
            Reach(tools=(), effects=frozenset()),
        )


def test_a_browser_without_a_token_is_led_to_the_login(guarded: Entrance) -> None:
    html = ("accept", "text/html,application/xhtml+xml")
    answer = ask(guarded, html, path="/tools/x")
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert ask(guarded, html, path="/v1/tools").status == 401
    assert post(guarded, html, path="/").status == 401


def test_a_good_token_says_who_it_is_and_how_far_it_reaches(
    guarded: Entrance, store: Store, door: Door
) -> None:
    token, value = tokens.create(
        store,
        "ci",
        now=1.0,
        tools=("rye:*",),
        effects=frozenset((Effect.READ,)),
        rights=frozenset((Right.CALL,)),
    )
    for spelling in (f"Bearer {value}", f"bearer {value}", f"BEARER  {value} "):
        assert ask(guarded, ("authorization", spelling)).status == 200
    assert set(door.guests) == {
        Guest(
            name="ci",
            reach=Reach(tools=("rye:*",), effects=frozenset((Effect.READ,))),
            rights=frozenset((Right.CALL,)),
            token_id=token.id,
        )
    }


def test_a_wrong_token_is_refused_even_where_none_is_needed(door: Door) -> None:
    answer = ask(own(door), bearer("tw_" + "x" * 43))
    assert answer.status == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert ask(own(door), ("authorization", "Basic YTpi")).status == 401
    assert door.guests == []


def test_a_token_without_its_scheme_is_refused_with_the_way_to_send_it(
    guarded: Entrance, store: Store, door: Door
) -> None:
    _, value = tokens.create(store, "ci", now=1.0)
    for shown in (value, f"Token {value}"):
        answer = ask(guarded, ("authorization", shown))
        assert answer.status == 401
        assert json.loads(answer.body)["hint"] == "send it as Authorization: Bearer TOKEN"
    assert door.guests == []


def test_a_revoked_token_is_refused_within_a_second(
    guarded: Entrance, store: Store, clock: Clock, door: Door
) -> None:
    _, value = tokens.create(store, "ci", now=1.0)
    assert ask(guarded, bearer(value)).status == 200
    tokens.revoke(store, "ci")
    clock.now += 0.9
    assert ask(guarded, bearer(value)).status == 401
    assert len(door.guests) == 1


def test_attack_a_token_revoked_while_it_is_decided_about_is_remembered(
    tmp_path: Path, store: Store, clock: Clock, door: Door
) -> None:

    class Asked(Tokens):
        def find(self, value: str, now: float) -> tokens.Token | None:
            found = super().find(value, now)
            if found is not None:
                tokens.revoke(store, "ci")
                clock.now += _entrance.LOOK_EVERY_S
            return found

    _, value = tokens.create(store, "ci", now=1.0)
    keep = Keep(str(tmp_path / "state" / STORE_NAME))
    entrance = Entrance(door, tokens=Asked(keep), clock=clock, now=clock)
    assert ask(entrance, bearer(value)).status == 200
    assert ask(entrance, bearer(value)).status == 401
    keep.close()


def test_a_token_is_over_when_its_time_is(guarded: Entrance, store: Store, clock: Clock) -> None:
    _, value = tokens.create(store, "ci", now=clock.now, for_s=10.0)
    assert ask(guarded, bearer(value)).status == 200
    clock.now += 9.9
    assert ask(guarded, bearer(value)).status == 200
    clock.now += 0.1
    assert ask(guarded, bearer(value)).status == 401


def test_tokens_that_cannot_be_read_are_not_called_wrong(
    guarded: Entrance, store: Store, clock: Clock
) -> None:
    _, value = tokens.create(store, "ci", now=1.0)
    store.put(tokens.SHELF, "all", b"damaged", None)
    assert ask(guarded, bearer(value)).status == 503


def test_the_last_use_of_a_token_is_kept(guarded: Entrance, store: Store, clock: Clock) -> None:
    token, value = tokens.create(store, "ci", now=1.0)
    ask(guarded, bearer(value))
    assert tokens.used_at(store, token.id) == clock.now


def test_what_a_proxy_brings_in_is_never_the_owner(door: Door) -> None:
    told = ("x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-host", "x-forwarded-proto")
    for name in (*told, "x-forwarded-port", "x-forwarded-server", "x-client-ip", "cf-connecting-ip"):
        assert ask(own(door), (name, "203.0.113.9")).status == 401
    assert door.guests == []


def test_a_token_is_needed_anywhere_but_on_loopback_without_a_proxy() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"):
        assert not needs_token(host)
        assert needs_token(host, ("tools.example.org",))
    for host in ("0.0.0.0", "::", "192.168.1.5", "myhost", "", "10.0.0.1"):
        assert needs_token(host)


# -- how often ----------------------------------------------------------------------------------------------


def test_a_caller_who_comes_too_often_is_told_when_to_come_again(
    tmp_path: Path, store: Store, door: Door, clock: Clock
) -> None:
    keep = Keep(str(tmp_path / "state" / STORE_NAME))
    entrance = Entrance(door, tokens=Tokens(keep), rate_per_minute=6, clock=clock, now=clock)
    _, busy = tokens.create(store, "busy", now=1.0)
    _, calm = tokens.create(store, "calm", now=1.0)
    assert [ask(entrance, bearer(busy)).status for _ in range(7)] == [200] * 6 + [429]
    refused = ask(entrance, bearer(busy))
    assert refused.headers["retry-after"] == "10"
    assert ask(entrance, bearer(calm)).status == 200
    clock.now += 10.0
    assert [ask(entrance, bearer(busy)).status for _ in range(2)] == [200, 429]
    clock.now += 3600.0
    assert [ask(entrance, bearer(busy)).status for _ in range(7)] == [200] * 6 + [429]
    keep.close()


def test_wrong_tokens_are_slowed_down_and_the_good_one_of_a_neighbour_is_not(
    guarded: Entrance, store: Store, clock: Clock
) -> None:
    _, value = tokens.create(store, "ci", now=1.0)
    wrong = [ask(guarded, bearer(f"tw_{number:043}")).status for number in range(30)]
    assert wrong == [401] * 10 + [429] * 20
    assert ask(guarded, bearer(value)).status == 200
    assert ask(guarded, bearer("tw_other"), client=("192.0.2.1", 5)).status == 401
    clock.now += 6.1
    assert [ask(guarded, bearer("tw_x")).status for _ in range(2)] == [401, 429]


def test_addresses_are_counted_in_a_bounded_table_and_networks_as_one() -> None:
    failures = Failures()
    for number in range(_entrance.ADDRESSES_MAX + 100):
        failures.count(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1.0)
    assert len(failures) == _entrance.ADDRESSES_MAX
    waits = [failures.count(f"2001:db8:1:2::{number:x}", 1.0) for number in range(11)]
    assert waits[:10] == [0.0] * 10
    assert waits[10] > 0


@pytest.mark.parametrize(
    "address", ["2001:db8::{}:1:1:1", "2001:db8::{}", "fe80::{}%eth0", "::ffff:192.0.2.1"]
)
def test_a_network_counts_as_one_however_short_its_addresses_are_written(address: str) -> None:
    """Attack: wrong tokens without end from the addresses of one network, in which zeros are left out."""
    failures = Failures()
    waits = [failures.count(address.format(f"{number:x}"), 1.0) for number in range(1, 12)]
    assert (waits[:10], len(failures)) == ([0.0] * 10, 1)
    assert waits[10] > 0
    assert failures.count("2001:db8:1::1", 1.0) == 0.0
    assert failures.count("192.0.2.2", 1.0) == 0.0


# -- bodies -------------------------------------------------------------------------------------------------


@pytest.mark.battery("I05")
@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "text/plain; application/json", "application/jsonx", "text/plain;charset=application/json", ""],
)  # fmt: skip
def test_what_a_form_could_send_is_not_read(door: Door, kind: str) -> None:
    for path in ("/mcp", "/v1/tools/x/calls", "/login"):
        assert post(own(door), ("content-type", kind), path=path).status == 415
    assert door.bodies == []


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_read(door: Door, kind: str) -> None:
    assert post(own(door), ("content-type", kind)).status == 200


def test_a_body_needs_a_type_and_none_needs_none(door: Door) -> None:
    entrance = own(door)
    assert ask(entrance, ("content-length", "2"), method="POST", body=(b"{}",)).status == 415
    assert ask(entrance, ("transfer-encoding", "chunked"), method="POST", body=(b"{}",)).status == 415
    assert ask(entrance, ("content-length", "0"), method="POST").status == 200
    assert ask(entrance, method="DELETE").status == 200


@pytest.mark.battery("I14")
@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "gzip, identity", "x"])
def test_a_body_that_would_unfold_is_not_read(door: Door, encoding: str) -> None:
    assert post(own(door), ("content-encoding", encoding)).status == 415
    assert door.bodies == []


def test_a_body_that_is_declared_too_large_is_refused_unread_and_the_connection_ends(door: Door) -> None:
    entrance = own(door, body_bytes_max=1000)
    answer = post(entrance, ("content-length", "999999"))
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert post(entrance, ("content-length", "1001")).status == 413
    assert post(entrance, ("content-length", "1" * 30)).status == 400
    assert door.bodies == []
    assert post(entrance, body=b" " * 1000).status == 200


def test_a_body_without_a_length_is_counted_whoever_reads_it(door: Door) -> None:
    async def careless(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    entrance = own(careless, body_bytes_max=1000)
    chunked = (("transfer-encoding", "chunked"), ("content-type", "application/json"))
    assert ask(entrance, *chunked, method="POST", body=[b"x" * 100] * 10).status == 200
    assert ask(entrance, *chunked, method="POST", body=[b"x" * 100] * 11).status == 413


# -- browsers -----------------------------------------------------------------------------------------------

PAGE = ("origin", f"http://{HOST}")


def log_in(entrance: Entrance, value: str, *headers: tuple[str, str], **more: Any) -> Answered:
    return post(entrance, *headers, body=json.dumps({"token": value}).encode(), path="/login", **more)


def cookie_of(answer: Answered) -> tuple[str, str]:
    return ("cookie", answer.headers["set-cookie"].partition(";")[0])


def test_a_login_gives_a_cookie_that_scripts_and_other_pages_cannot_use(
    guarded: Entrance, store: Store, door: Door
) -> None:
    token, value = tokens.create(store, "ann", now=1.0)
    answer = log_in(guarded, value, PAGE)
    assert answer.status == 204
    shown = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(shown.split("; "))
    assert "Secure" not in shown
    assert value not in shown
    assert len(cookie_of(answer)[1]) == len("tw_session=") + 43
    other = ("cookie", f"theme=dark; {cookie_of(answer)[1]}; x=y")
    assert ask(guarded, other, path="/").status == 200
    assert door.guests[-1] == Guest(name="ann", token_id=token.id)


def test_the_cookie_is_for_tls_only_where_the_page_came_that_way(
    tmp_path: Path, store: Store, door: Door, clock: Clock
) -> None:
    keep = Keep(str(tmp_path / "state" / STORE_NAME))
    entrance = Entrance(door, tokens=Tokens(keep), hosts=("tools.example.org",), clock=clock, now=clock)
    _, value = tokens.create(store, "ann", now=1.0)
    page = ("origin", "https://tools.example.org")
    assert log_in(entrance, value, page, host="tools.example.org").headers["set-cookie"].endswith("; Secure")
    keep.close()


def test_a_cookie_alone_changes_nothing_unless_the_page_is_ours(
    guarded: Entrance, store: Store, door: Door
) -> None:
    _, value = tokens.create(store, "ann", now=1.0)
    cookie = cookie_of(log_in(guarded, value, PAGE))
    for method in ("POST", "DELETE"):
        assert ask(guarded, cookie, method=method).status == 403
        assert ask(guarded, cookie, ("sec-fetch-site", "cross-site"), method=method).status == 403
        assert ask(guarded, cookie, ("origin", EVIL), method=method).status == 403
        assert ask(guarded, cookie, ("origin", "null"), method=method).status == 403
    assert door.guests == []
    assert post(guarded, cookie, PAGE).status == 200
    assert post(guarded, cookie, ("sec-fetch-site", "same-origin")).status == 200
    assert ask(guarded, cookie).status == 200


def test_a_session_ends_by_logout_by_time_and_with_its_token(
    guarded: Entrance, store: Store, clock: Clock
) -> None:
    _, value = tokens.create(store, "ann", now=1.0)
    first, second, third = (cookie_of(log_in(guarded, value, PAGE)) for _ in range(3))
    assert post(guarded, first, PAGE, path="/logout", body=b"").status == 204
    assert ask(guarded, first).status == 401
    assert ask(guarded, second).status == 200
    clock.now += _entrance.SESSION_S
    assert ask(guarded, second).status == 401
    fourth = cookie_of(log_in(guarded, value, PAGE))
    assert ask(guarded, fourth).status == 200
    tokens.revoke(store, "ann")
    clock.now += 0.9
    assert ask(guarded, fourth).status == 401
    assert ask(guarded, third).status == 401


def test_sessions_are_capped_and_one_caller_cannot_push_others_out(guarded: Entrance, store: Store) -> None:
    _, ann = tokens.create(store, "ann", now=1.0)
    _, bob = tokens.create(store, "bob", now=1.0)
    cookie = cookie_of(log_in(guarded, bob, PAGE))
    for _ in range(_entrance.SESSIONS_PER_TOKEN_MAX + 30):
        assert log_in(guarded, ann, PAGE).status == 204
    assert len(guarded.sessions) == _entrance.SESSIONS_PER_TOKEN_MAX + 1
    assert ask(guarded, cookie).status == 200


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a", "token": "b"}', b"\xff"]
)
def test_a_login_that_is_none_is_refused(guarded: Entrance, body: bytes) -> None:
    assert post(guarded, PAGE, body=body, path="/login").status == 400


def test_logins_with_wrong_tokens_are_slowed_down(guarded: Entrance, store: Store) -> None:
    tokens.create(store, "ann", now=1.0)
    assert [log_in(guarded, "wrong", PAGE).status for _ in range(12)] == [401] * 10 + [429] * 2
    assert post(guarded, PAGE, body=b'{"token": "' + b"x" * 5000 + b'"}', path="/login").status == 413


def test_a_made_up_cookie_is_nobody(guarded: Entrance, store: Store) -> None:
    tokens.create(store, "ann", now=1.0)
    for value in ("", "x", "tw_session=", "tw_session=x", "tw_session=" + "A" * 43, "; ; =; tw_session"):
        assert ask(guarded, ("cookie", value)).status == 401


# -- through a real server ----------------------------------------------------------------------------------


@pytest.mark.battery("I01")
@pytest.mark.battery("I05")
def test_the_same_holds_on_the_wire(door: Door) -> None:
    entrance = own(door, body_bytes_max=1000)
    with serving(entrance) as port:
        assert asked(port, "POST", "/mcp", body=b"{}").status == 200
        assert asked(port, "POST", "/mcp", f"Origin: {EVIL}", body=b"not json").status == 403
        assert asked(port, "GET", "/mcp", "Host: evil.example").status == 421
        assert asked(port, "GET", "/mcp", f"Host: 127.0.0.1:{port}", "Host: evil.example").status == 400
        assert asked(port, "GET", "http://evil.example/mcp").status == 400
        assert asked(port, "POST", "/mcp", "Content-Type: text/plain", body=b"{}").status == 415
        assert asked(port, "POST", "/mcp", "Content-Length: 99999999", body=b"{}").status == 413
        assert asked(port, "GET", "/a%00b").status == 400
        assert asked(port, "GET", "/%2e%2e/x").status == 400
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
        upgraded = asked(port, "GET", "/mcp", *upgrade, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        assert upgraded.status != 101
        assert asked(port, "GET", "/healthz").status == 200


# -- whatever comes -----------------------------------------------------------------------------------------

SOME = {
    "host": [HOST, "localhost:8321", "evil.example", "127.0.0.1", "", "[::1]:8321", "a b", "\xff"],
    "origin": [f"http://{HOST}", "null", EVIL, "", "http://127.0.0.1:8321@evil.example", "\xff"],
    "authorization": ["Bearer x", "Bearer", "", "Basic YTpi", "Bearer \xff", "bearer " + "y" * 50],
    "cookie": ["tw_session=x", "tw_session", ";;;", "a=b; tw_session=\xff"],
    "content-type": ["application/json", "text/plain", "", ";", "application/json;;;\xff"],
    "content-length": ["0", "2", "-1", "+2", "99999999", "x", "1e3", "\xb2", ""],
    "content-encoding": ["identity", "gzip", ""],
    "transfer-encoding": ["chunked", "identity", ""],
    "sec-fetch-site": ["same-origin", "cross-site", "none", ""],
    "sec-fetch-mode": ["navigate", "cors"],
    "x-forwarded-for": ["1.2.3.4"],
    "accept": ["text/html", ""],
}
PAIRS = st.sampled_from(sorted(SOME)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(SOME[name]) | st.text("ab:/ ;=\xff", max_size=9))
)


@given(
    host=st.sampled_from([HOST, HOST, HOST, None]),
    headers=st.lists(PAIRS, max_size=6),
    method=st.sampled_from(["GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "X"]),
    path=st.sampled_from(
        ["/mcp", "/v1/tools", "/", "/login", "/logout", "/healthz", "/static/x", "/..", "/\ufffd"]
    ),
    is_open=st.booleans(),
)
def test_nothing_that_comes_breaks_it_and_what_passes_was_ours(
    host: str | None, headers: list[tuple[str, str]], method: str, path: str, is_open: bool
) -> None:
    headers = headers if host is None else [("host", host), *headers]
    door = Door()
    entrance = own(door) if is_open else Entrance(door)
    answer = ask(entrance, *headers, method=method, path=path, host=None, body=(b"{}",))
    given_ = [name for name, _ in headers]
    if not door.guests:
        assert answer.status >= 300 or path in ("/login", "/logout")
        return
    found = dict(headers)
    assert given_.count("host") == 1
    assert found["host"].lower() in (HOST, "localhost:8321", "[::1]:8321")
    assert found.get("origin", f"http://{HOST}") == f"http://{HOST}"
    assert "authorization" not in found  # none of them is good
    is_owner = is_open and "x-forwarded-for" not in found and path not in ("/healthz", "/login", "/static/x")
    assert door.guests == [OWNER if is_owner else _entrance.NOBODY]
    if not is_owner:
        assert path in ("/healthz", "/login", "/static/x", "/logout")
    if method in ("POST", "DELETE", "PUT", "X") or {"content-length", "transfer-encoding"} & found.keys():
        assert found.get("content-encoding", "identity") == "identity"


@given(headers=st.lists(PAIRS, max_size=5))
def test_who_was_let_in_before_lets_in_nobody_who_would_be_refused_alone(
    headers: list[tuple[str, str]],
) -> None:
    """Attack: what the same program was allowed a moment ago, tried with other headers."""
    full = [("host", HOST), ("content-type", "application/json"), ("content-length", "2"), *headers]
    kept = list(dict(full).items())
    alone, after = Door(), Door()
    entrance = own(after)
    assert post(entrance, path="/mcp").status == 200
    answers = [
        ask(each, *kept, method="POST", path="/mcp", host=None, body=(b"{}",))
        for each in (own(alone), entrance, entrance)
    ]
    assert len({(answer.status, answer.body) for answer in answers}) == 1
    assert after.guests == [OWNER, *alone.guests, *alone.guests]


def test_attack_another_user_of_the_machine_sends_what_the_owner_has_sent(door: Door) -> None:
    entrance = own(door)
    assert post(entrance, path="/mcp").status == 200
    for _ in range(2):
        assert post(entrance, path="/mcp", is_owner=False).status == 401
    assert post(entrance, path="/mcp").status == 200
    assert door.guests == [OWNER, OWNER]


class Slow:
    """An app that has read its body and keeps it until it may go on."""

    def __init__(self) -> None:
        self.read = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = str(len(await read_body(receive))).encode()
        self.read.release()
        if scope["path"] == "/v1/slow":
            assert await asyncio.to_thread(self.may_go_on.wait, WAIT_S)
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("is_chunked", [False, True], ids=["stated", "chunked"])
def test_attack_large_bodies_of_one_caller_leave_no_memory_for_others(
    tmp_path: Path, store: Store, is_chunked: bool
) -> None:
    app, keep = Slow(), Keep(str(tmp_path / "state" / STORE_NAME))
    entrance = own(app, tokens=Tokens(keep), body_bytes_max=250_000, bodies_bytes_max=700_000)
    _, value = tokens.create(store, "ci", now=1.0)
    body, line = b"{}".ljust(200_000), "Transfer-Encoding: chunked"
    content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    with serving(entrance) as port, ExitStack() as stack:
        message = request("POST", "/v1/slow", port, *([line] if is_chunked else []), body=content)
        clients = [stack.enter_context(connected(port)) for _ in range(6)]
        for client in clients[:2]:  # half of the memory is this caller's
            client.sendall(message)
            assert app.read.acquire(timeout=WAIT_S)
        for client in clients[2:]:
            client.sendall(message)
            answer = heard(client)
            assert answer is not None
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert asked(port, "POST", "/v1/quick", body=b"{}").status == 200  # small ones are not counted
        other = f"Authorization: Bearer {value}"
        assert asked(port, "POST", "/v1/quick", other, body=body).body == b"200000"
        app.may_go_on.set()
        for client in clients[:2]:
            answer = heard(client)
            assert answer is not None
            assert (answer.status, answer.body) == (200, b"200000")
        for _ in range(3):  # nothing was kept
            assert asked(port, "POST", "/v1/quick", body=body).status == 200
    keep.close()
