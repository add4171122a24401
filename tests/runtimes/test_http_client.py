"""Connecting out: real sockets on loopback, hostile servers, and every address that must not be reached."""

from __future__ import annotations

import gc
import gzip
import ipaddress
import math
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.peers import WAIT_S, Peer, Talk, answers, endless, hangs, nobody, once, response, tunnel
from toolcrib.runtimes._addresses import Zone, zone
from toolcrib.runtimes._http_client import Answer, HttpClient, HttpLimits, Proxy, Reach, Resolve
from toolcrib.runtimes._http_request import (
    Request,
    Trouble,
    Unreached,
    check_headers,
    literal_hosts,
    target_of,
)
from toolcrib.sandbox import Cancel

PUBLIC = "93.184.216.34"
PRIVATE = Reach(private=True)
SMALL = HttpLimits(body_bytes_max=100_000, head_bytes_max=8192, headers_max=50)


@pytest.fixture
def web() -> Iterator[HttpClient]:
    with closing(HttpClient()) as made:
        yield made


def found(*addresses: str) -> Resolve:
    """A resolver that answers the same for every name."""
    return lambda host, port: addresses


@contextmanager
def loopback(tls: ssl.SSLContext | None = None) -> Iterator[HttpClient]:
    """A web in which every name leads to this machine."""
    with closing(HttpClient(resolve=found("127.0.0.1"), tls=tls)) as made:
        yield made


def send(
    web: HttpClient,
    url: str,
    method: str = "GET",
    *,
    reach: Reach = PRIVATE,
    limits: HttpLimits = SMALL,
    within_s: float = WAIT_S,
    cancel: Cancel | None = None,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | None = None,
) -> Answer:
    return web.send(
        Request(method=method, url=url, headers=tuple(headers), body=body),
        reach=reach,
        limits=limits,
        deadline=time.monotonic() + within_s,
        cancel=cancel or Cancel(),
    )


def unreached(work: Callable[[], object]) -> Unreached:
    with pytest.raises(Unreached) as caught:
        work()
    return caught.value


# -- what goes right ----------------------------------------------------------------------------------------


def test_a_request_arrives_as_it_was_meant_and_its_answer_comes_back(web: HttpClient) -> None:
    with Peer(answers(response(b'{"a":1}', content_type="application/json"))) as peer:
        url = peer.url("/x?y=1", host="localhost")
        answer = send(web, url, "POST", headers=[("X-One", "1")], body=b"{}")
    assert (answer.status, answer.reason, answer.body) == (200, "OK", b'{"a":1}')
    assert answer.header("content-type") == "application/json"
    (asked,) = peer.asked
    assert asked.line == "POST /x?y=1 HTTP/1.1"
    assert asked.headers["host"] == f"localhost:{peer.port}"
    assert asked.headers["x-one"] == "1"
    assert asked.body == b"{}"
    (contact,) = answer.contacts
    assert (contact.method, contact.host, contact.port) == ("POST", "localhost", peer.port)
    assert (contact.address, contact.status) == ("127.0.0.1", 200)
    assert contact.received_bytes > 60
    assert "y=1" not in repr(contact)


def test_connections_are_kept_and_shared_between_threads(web: HttpClient) -> None:
    with Peer(answers(response())) as peer:
        for _ in range(20):
            assert send(web, peer.url(), "POST", body=b"x").body == b"ok"
        assert peer.connections == 1
        threads = [threading.Thread(target=send, args=(web, peer.url())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(peer.asked) == 28
        assert peer.connections <= 9


def test_a_kept_connection_is_not_used_under_another_reach(web: HttpClient) -> None:
    with Peer(answers(response())) as peer:
        send(web, peer.url(), reach=PRIVATE)
        error = unreached(lambda: send(web, peer.url(), reach=Reach()))
        assert error.kind is Trouble.REFUSED
        assert peer.connections == 1


def test_a_named_host_may_lead_to_a_private_address_and_others_may_not(web: HttpClient) -> None:
    with Peer(answers(response())) as peer:
        reach = Reach(hosts=frozenset({("localhost", peer.port)}))
        assert send(web, peer.url(host="localhost"), reach=reach).status == 200
        assert unreached(lambda: send(web, peer.url(), reach=reach)).kind is Trouble.REFUSED


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6; one with it runs this")
def test_servers_are_reached_over_ipv6(web: HttpClient) -> None:
    try:
        peer = Peer(answers(response()), address="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback; enabling it runs this")
    with peer:
        answer = send(web, peer.url(host="[::1]"))
        assert answer.contacts[0].address == "::1"
        assert peer.asked[0].headers["host"] == f"[::1]:{peer.port}"


@pytest.mark.parametrize("framing", ["chunked", "close", "empty", "head"])
def test_bodies_are_read_however_they_are_delimited(web: HttpClient, framing: str) -> None:
    said = {
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n",
        "close": b"HTTP/1.0 200 OK\r\n\r\nabcde",
        "empty": b"HTTP/1.1 204 No Content\r\n\r\n",
        "head": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    }[framing]
    with Peer(once(said)) as peer:
        answer = send(web, peer.url(), "HEAD" if framing == "head" else "GET")
    assert answer.body == (b"abcde" if framing in ("chunked", "close") else b"")


@pytest.mark.parametrize("how", ["gzip", "zlib", "raw", "joined"])
def test_compressed_bodies_are_unpacked(web: HttpClient, how: str) -> None:
    text = b"hello " * 1000
    squeezer = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(text),
        "zlib": zlib.compress(text),
        "raw": squeezer.compress(text) + squeezer.flush(),
        "joined": gzip.compress(text[:600]) + gzip.compress(text[600:]),
    }[how]
    encoding = "gzip" if how in ("gzip", "joined") else "deflate"
    with Peer(once(response(packed, content_encoding=encoding))) as peer:
        assert send(web, peer.url()).body == text
    assert peer.asked[0].headers["accept-encoding"] == "gzip, deflate"


def test_an_empty_body_may_say_that_it_is_compressed(web: HttpClient) -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with Peer(once(said)) as peer:
        assert send(web, peer.url()).body == b""


def test_interim_answers_are_passed_over(web: HttpClient) -> None:
    with Peer(once(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + response(b"done"))) as peer:
        assert send(web, peer.url()).body == b"done"


def test_events_can_be_read_line_by_line_while_they_come(web: HttpClient) -> None:
    go_on = threading.Event()

    def play(peer: Peer, talk: Talk) -> None:
        talk.request()
        talk.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        talk.say(b"9\r\ndata: 1\r\n\r\n1\r\n\n\r\n")
        go_on.wait(WAIT_S)
        talk.say(b"9\r\ndata: 2\r\r\r\n6\r\nlast\r\n\r\n0\r\n\r\n")

    with Peer(play) as peer:
        request = Request(method="GET", url=peer.url(), headers=(("Accept", "text/event-stream"),))
        with web.stream(request, reach=PRIVATE, limits=SMALL, deadline=math.inf, cancel=Cancel()) as stream:
            lines = stream.lines()
            assert next(lines) == b"data: 1"
            go_on.set()
            assert [*lines] == [b"", b"data: 2", b"", b"last"]


def test_early_answers_to_long_requests_are_heard(web: HttpClient) -> None:
    def play(peer: Peer, talk: Talk) -> None:
        talk.socket.recv(1000)
        talk.say(response(b"too much", "413 Content Too Large", connection="close"))
        talk.socket.shutdown(socket.SHUT_WR)
        talk.until_gone()

    with Peer(play) as peer:
        answer = send(web, peer.url(), "POST", body=b"x" * 500_000)
    assert (answer.status, answer.body) == (413, b"too much")


# -- which addresses ----------------------------------------------------------------------------------------

NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "192.0.0.192", "192.0.2.1", "198.51.100.1",
    "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "100.100.100.200",
    "168.63.129.16", "::", "::127.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "fe80::1",
    "fe80::1%eth0",
    "febf::1", "fec0::1", "ff02::1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "2001:db8::1", "2001:2::1",
    "2001:10::1", "100::1", "fd00:ec2::254", "fd20:ce::254", "2002:a9fe:a9fe::1", "5f00::1", "4000::1",
    "not an address", "",
]  # fmt: skip
PRIVATES = [
    "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
    "100.127.255.255", "198.18.0.1", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fc00::1", "fd12:3456::1",
    "64:ff9b::10.0.0.1", "64:ff9b::7f00:1", "2002:0a00:0001::1", "2002:7f00:1::",
    "2001:470:1:2::5efe:10.0.0.1",
]  # fmt: skip
PUBLICS = [
    PUBLIC, "1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "192.169.0.1",
    "2606:4700:4700::1111", "2001:470:1:2::1", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8", "2002:0808:0808::1",
]  # fmt: skip


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((address, Zone.NEVER) for address in NEVER),
        *((address, Zone.PRIVATE) for address in PRIVATES),
        *((address, Zone.PUBLIC) for address in PUBLICS),
    ],
)
def test_each_address_lies_in_its_zone(address: str, expected: Zone) -> None:
    assert zone(address) is expected


def _teredo(server: str, client: str) -> str:
    flipped = int(ipaddress.IPv4Address(client)) ^ 0xFFFFFFFF
    return str(
        ipaddress.IPv6Address((0x20010000 << 96) | (int(ipaddress.IPv4Address(server)) << 64) | flipped)
    )


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [("8.8.8.8", "10.0.0.1", Zone.PRIVATE), ("169.254.169.254", "8.8.8.8", Zone.NEVER),
     ("8.8.8.8", "1.1.1.1", Zone.PUBLIC)],
)  # fmt: skip
def test_teredo_is_judged_by_both_addresses_inside(server: str, client: str, expected: Zone) -> None:
    assert zone(_teredo(server, client)) is expected


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_clothes_never_make_an_address_less_harmful(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    order = [Zone.PUBLIC, Zone.PRIVATE, Zone.NEVER]
    bare = order.index(zone(str(plain)))
    for prefix in ("::ffff:", "::", "64:ff9b::"):
        if int(plain) > 1 or prefix != "::":
            assert order.index(zone(f"{prefix}{plain}")) >= bare
    six_to_four = ipaddress.IPv6Address((0x2002 << 112) | (number << 80))
    assert order.index(zone(str(six_to_four))) >= bare


@given(st.integers(0, 2**128 - 1))
@settings(deadline=None)
def test_what_is_called_public_is_never_special_to_python_either(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    if zone(str(address)) is Zone.PUBLIC and address not in ipaddress.IPv6Network("2001::/16"):
        inside = address.ipv4_mapped or address.sixtofour
        assert (inside or address).is_global or address in ipaddress.IPv6Network("64:ff9b::/96")


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "017700000001", "127.1", "127.0.1",
     "localhost", "localhost.", "LOCALHOST", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
     "[0:0:0:0:0:0:0:1]"],
)  # fmt: skip
def test_no_spelling_of_loopback_gets_through(web: HttpClient, host: str) -> None:
    with Peer(answers(response())) as peer:
        error = unreached(lambda: send(web, peer.url(host=host), reach=Reach()))
        assert (error.kind, error.sent) == (Trouble.REFUSED, False)
        assert "private address" in error.why
        assert peer.connections == 0


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    "host",
    ["0", "0.0.0.0", "169.254.169.254", "2852039166", "0xa9fea9fe", "[::]", "[::ffff:169.254.169.254]"],
)
def test_metadata_services_are_not_reached_even_where_private_addresses_are_granted(
    web: HttpClient, host: str
) -> None:
    error = unreached(lambda: send(web, f"http://{host}/latest/meta-data", reach=PRIVATE))
    assert (error.kind, error.hint) == (Trouble.REFUSED, None)
    assert "never reached" in error.why


@pytest.mark.battery("I12")
def test_a_name_that_leads_to_a_private_address_is_refused_though_another_answer_is_public() -> None:
    for addresses in (("10.0.0.7",), (PUBLIC, "127.0.0.1"), ("2606:4700::1", "::ffff:10.1.1.1")):
        web = HttpClient(resolve=found(*addresses))
        error = unreached(partial(send, web, "http://innocent.example/", reach=Reach()))
        assert error.kind is Trouble.REFUSED
        assert "innocent.example leads to a private address" in error.why


@pytest.mark.battery("I12")
def test_dns_answers_that_change_are_asked_once_and_the_checked_address_is_connected_to() -> None:
    with Peer(answers(response(connection="close"))) as peer:
        asked: list[str] = []

        def changing(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2", "169.254.169.254"]

        web = HttpClient(resolve=changing)  # nothing is kept: the server closes
        url = peer.url(host="rebind.example")
        answer = send(web, url)
        assert (asked, answer.contacts[0].address) == (["rebind.example"], "127.0.0.1")
        # A new connection asks anew, and what is new is checked anew.
        error = unreached(lambda: send(web, url))
        assert (error.kind, asked) == (Trouble.REFUSED, ["rebind.example"] * 2)
        assert peer.connections == 1


def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    with (
        Peer(answers(response())) as peer,
        closing(HttpClient(resolve=found("127.0.0.3", "127.0.0.1"))) as web,
    ):
        assert send(web, peer.url(host="two.example")).contacts[0].address == "127.0.0.1"


def test_a_name_that_does_not_exist_and_a_closed_port_are_unreachable(web: HttpClient) -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    error = unreached(lambda: send(HttpClient(resolve=unknown), "http://nobody.example/"))
    assert (error.kind, error.sent, error.why) == (
        Trouble.UNREACHABLE, False, "nobody.example: no such host",
    )  # fmt: skip
    assert "no proxy of the environment is used" in str(error.hint)
    with nobody() as url:
        error = unreached(lambda: send(web, url))
    assert (error.kind, error.sent) == (Trouble.UNREACHABLE, False)
    assert "connection refused" in error.why
    assert "no proxy of the environment is used" in str(error.hint)


def test_a_resolver_that_hangs_hears_the_deadline_and_the_button() -> None:
    release = threading.Event()
    web = HttpClient(resolve=lambda host, port: [str(release.wait(WAIT_S))])
    started = time.monotonic()
    assert unreached(lambda: send(web, "http://slow.example/", within_s=0.1)).kind is Trouble.TIMED_OUT
    cancel = Cancel()
    threading.Timer(0.05, cancel.set).start()
    assert unreached(lambda: send(web, "http://slow.example/", cancel=cancel)).kind is Trouble.CANCELLED
    assert time.monotonic() - started < WAIT_S / 2
    release.set()


# -- URLs and headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["ftp://a.example/", "file:///etc/passwd", "gopher://a/", "//a.example/", "a.example", "",
     "http:a.example",
     "http:///x", "http://", "http://user@a.example/", "http://a.example@10.0.0.1/", "http://u:p@a.example/",
     "http://a.example\\@10.0.0.1/", "http://a.example/ x", "http://a.example/\r\nX: y", "http://a.example/\t",
     "http://a.example\x00.b/", "http://a.example:99999/", "http://a.example:0/", "http://a.example:-1/",
     "http://a.example:8o/", "http://[::1/", "http://::1/", "http://[fe80::1%25eth0]/", "http://a%2eexample/",
     "http://１２７.0.0.1/", "http://bücher.example/", "http://ⓛocalhost/", "http://a,b/", "http://a b/",
     "http://.a/", "http://a..b/", "http://a../",
     f"http://{'a' * 64}.example/", f"http://{'a.' * 150}example/",
     "http://a.example/" + "x" * 20_000, "http://127.0.0.1 :80/", "http://127.0.0.1\n/"],
)  # fmt: skip
def test_a_url_that_two_readers_could_understand_differently_is_not_sent(web: HttpClient, url: str) -> None:
    error = unreached(lambda: send(web, url))
    assert (error.kind, error.sent) == (Trouble.MALFORMED, False)


@pytest.mark.parametrize(
    ("url", "host", "port", "resource"),
    [("http://A.Example", "a.example", 80, "/"), ("https://a.example./x?y#z", "a.example", 443, "/x?y"),
     ("http://[2606:4700::1]:8080?q", "2606:4700::1", 8080, "/?q"),
     ("HTTP://a_b.example:/", "a_b.example", 80, "/")],
)  # fmt: skip
def test_a_url_leads_where_it_says(url: str, host: str, port: int, resource: str) -> None:
    target = target_of(url)
    assert (target.host, target.port, target.resource) == (host, port, resource)


@given(st.text(max_size=60))
@settings(deadline=None)
def test_no_text_makes_reading_a_url_or_a_header_raise_anything_else(text: str) -> None:
    for work in (
        lambda: target_of(text),
        lambda: target_of(f"http://{text}/"),
        lambda: check_headers([(text, "x")]),
        lambda: check_headers([("X", text)]),
    ):
        with suppress(Unreached):
            work()
    if "\r" in text or "\n" in text or "\0" in text:
        assert unreached(lambda: check_headers([("X", text)])).kind is Trouble.MALFORMED


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-A", "1\r\nX-B: 2"), ("X-A", "1\nX-B: 2"), ("X-A", "1\r"), ("X-A", "a\0b"), ("X-A", "\x7f"),
     ("X-A", "☃"),
     ("X-A: 1\r\nX-B", "2"), ("X A", "1"), ("", "1"), ("X-Ä", "1"), ("Host", "evil.example"),
     ("Content-Length", "0"), ("Transfer-Encoding", "chunked"), ("connection", "upgrade"), ("Expect", "x"),
     ("X-A", "x" * 20_000)],
)  # fmt: skip
def test_header_injection_and_headers_about_the_connection_are_refused(
    web: HttpClient, name: str, value: str
) -> None:
    with Peer(answers(response())) as peer:
        error = unreached(lambda: send(web, peer.url(), headers=[(name, value)]))
        assert (error.kind, error.sent, peer.connections) == (Trouble.MALFORMED, False, 0)
        assert "X-B: 2" not in f"{error.why} {error.hint}" or name != "X-A"


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "GET / HTTP/1.1\r\nX: y\r\n\r\nGET", "", "GE T"])
def test_methods_that_are_none_or_change_the_connection_are_not_sent(web: HttpClient, method: str) -> None:
    assert unreached(lambda: send(web, "http://127.0.0.1/", method)).kind is Trouble.MALFORMED


# -- redirects ----------------------------------------------------------------------------------------------


def redirect(location: str, status: int = 302) -> bytes:
    return response(b"", f"{status} Elsewhere", location=location)


def test_redirects_are_followed_and_said(web: HttpClient) -> None:
    with Peer(answers(redirect("/two", 301), redirect("three?x=1", 308), response(b"here"))) as peer:
        answer = send(web, peer.url("/one"), headers=[("Authorization", "Bearer abcd")])
        assert (answer.body, answer.url) == (b"here", peer.url("/three?x=1"))
        assert [asked.line.split()[1] for asked in peer.asked] == ["/one", "/two", "/three?x=1"]
        assert [asked.headers.get("authorization") for asked in peer.asked] == ["Bearer abcd"] * 3
        assert [contact.status for contact in answer.contacts] == [301, 308, 200]


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/meta-data", "http://0/", "//2852039166/", "http://[::ffff:169.254.169.254]/"],
)  # fmt: skip
def test_a_redirect_to_an_address_that_is_never_reached_is_not_followed(
    web: HttpClient, location: str
) -> None:
    with Peer(answers(redirect(location))) as peer:
        error = unreached(lambda: send(web, peer.url()))
        assert (error.kind, error.sent) == (Trouble.REFUSED, True)
        assert error.why.startswith("after a redirect: ")
        assert [contact.address for contact in error.contacts] == ["127.0.0.1", ""]


@pytest.mark.battery("I12")
@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "[::1]", "localhost", "inside.example"])
def test_a_redirect_from_a_named_host_to_a_private_address_is_not_followed(host: str) -> None:
    with (
        Peer(answers(response(b"secret"))) as inner,
        Peer(answers(redirect(inner.url(host=host)))) as outer,
        loopback() as web,
    ):
        reach = Reach(hosts=frozenset({("outer.example", outer.port)}))
        error = unreached(lambda: send(web, outer.url(host="outer.example"), reach=reach))
        assert error.kind is Trouble.REFUSED
        assert inner.connections == 0


@pytest.mark.battery("I12")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_from_a_named_address_to_another_port_of_it_is_not_followed(
    web: HttpClient, host: str
) -> None:
    with (
        Peer(answers(response(b"secret"))) as inner,
        Peer(answers(redirect(inner.url(host=host)))) as outer,
        Peer(answers(redirect("/there"), response(b"here"))) as itself,
    ):
        reach = Reach(hosts=literal_hosts(outer.url(host=host)))
        error = unreached(lambda: send(web, outer.url(host=host), reach=reach))
        assert (error.kind, error.sent) == (Trouble.REFUSED, True)
        assert inner.connections == 0
        url = itself.url(host=host)
        assert send(web, url, reach=Reach(hosts=literal_hosts(url))).body == b"here"


@pytest.mark.parametrize("location", ["http://a@b/", "ftp://x/", "http://a b/", "http://ｅ.example/", "/\\x"])
def test_a_redirect_to_what_is_no_url_is_a_broken_answer(web: HttpClient, location: str) -> None:
    data = redirect("X").replace(b"X", location.encode("utf-8"), 1)
    with Peer(answers(data)) as peer:
        assert unreached(lambda: send(web, peer.url())).kind is Trouble.BROKEN


@pytest.mark.parametrize(
    "location", ["http://[", "//[::1", "http://]/", "http://[v1.x]/", "http://[::1%25]/"]
)
@pytest.mark.parametrize("redirects_max", [0, 5])
def test_a_redirect_to_half_an_address_is_a_broken_answer_and_its_connection_is_dropped(
    web: HttpClient, location: str, redirects_max: int
) -> None:
    limits = HttpLimits(redirects_max=redirects_max)
    data = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 9\r\n\r\nunread".encode()
    with Peer(answers(data)) as peer:
        error = unreached(lambda: send(web, peer.url(), limits=limits))
        assert (error.kind, error.sent) == (Trouble.BROKEN, True)
        assert [contact.status for contact in error.contacts][:1] == [302]
        assert peer.gone.wait(WAIT_S)


def test_credentials_do_not_leak_to_another_origin_by_a_redirect(web: HttpClient) -> None:
    sent = [
        ("Authorization", "Bearer s3cret"), ("Cookie", "s=s3cret"), ("X-Api-Key", "s3cret"),
        ("Proxy-Auth", "s3cret"), ("Accept", "text/x"), ("User-Agent", "me"),
    ]  # fmt: skip
    with Peer(answers(response(b"there"))) as other, Peer(answers(redirect(other.url("/t")))) as peer:
        assert send(web, peer.url(), headers=sent).body == b"there"
        assert peer.asked[0].headers["x-api-key"] == "s3cret"
        assert "s3cret" not in str(other.asked[0])
        assert (other.asked[0].headers["accept"], other.asked[0].headers["user-agent"]) == ("text/x", "me")


@pytest.mark.parametrize("headers", [(), (("Via", ""),), (("vIA", "1.1 other"), ("X-More", "1.1 other"))])
def test_attack_a_request_to_a_private_address_does_not_say_that_it_is_relayed(
    web: HttpClient, headers: tuple[tuple[str, str], ...]
) -> None:
    """A server on loopback would take it for its owner's. It says so behind a redirect as well."""
    with Peer(answers(response(b"there"))) as other, Peer(answers(redirect(other.url("/t")))) as peer:
        named = Reach(hosts=frozenset({("127.0.0.1", peer.port), ("127.0.0.1", other.port)}))
        for reach in (PRIVATE, named):
            assert send(web, peer.url(), headers=headers, reach=reach).body == b"there"
        for asked in (*peer.asked, *other.asked):
            assert asked.headers["via"].endswith("1.1 toolcrib")


def test_a_redirect_loop_ends(web: HttpClient) -> None:
    with Peer(answers(redirect("/again"))) as peer:
        error = unreached(lambda: send(web, peer.url()))
        assert (error.kind, error.why) == (Trouble.BROKEN, "more than 5 redirects")
        assert len(peer.asked) == 6


def test_what_changes_something_is_not_sent_again_to_another_place(web: HttpClient) -> None:
    with Peer(answers(redirect("/a", 307))) as peer:
        for status in (301, 302, 307, 308):
            with Peer(answers(redirect("/a", status))) as peer:
                assert send(web, peer.url(), "POST", body=b"x").status == status
                assert len(peer.asked) == 1


def test_after_303_the_answer_is_fetched_without_the_body(web: HttpClient) -> None:
    with Peer(answers(redirect("/done", 303), response(b"done"))) as peer:
        headers = [("Content-Type", "application/json"), ("X-A", "1")]
        assert send(web, peer.url(), "POST", headers=headers, body=b"{}").body == b"done"
        second = peer.asked[1]
        assert (second.line, second.body) == ("GET /done HTTP/1.1", b"")
        assert "content-type" not in second.headers
        assert second.headers["x-a"] == "1"


# -- bombs and floods ---------------------------------------------------------------------------------------

BOMB = gzip.compress(b"\0" * (32 << 20))
assert len(BOMB) < 40_000


def test_a_plain_flood_is_cut_at_the_limit(web: HttpClient) -> None:
    with Peer(endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536)) as peer:
        answer = send(web, peer.url())
        assert (len(answer.body), answer.truncated) == (100_000, True)
        assert peer.gone.wait(WAIT_S)


def test_a_length_that_is_a_lie_costs_only_the_limit(web: HttpClient) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
    with Peer(endless(head, b"x" * 65536)) as peer:
        assert send(web, peer.url()).truncated


def test_endless_chunks_are_cut_at_the_limit_also_where_they_are_tiny(web: HttpClient) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    padded = b"1;" + b"e" * 900 + b"\r\nx\r\n"
    for part in (b"1000\r\n" + b"x" * 4096 + b"\r\n", padded * 50):
        with Peer(endless(head, part)) as peer:
            answer = send(web, peer.url())
            assert answer.truncated
            assert answer.contacts[0].received_bytes < 2_000_000
            assert peer.gone.wait(WAIT_S)


@pytest.mark.parametrize("how", ["gzip", "deflate", "many members"])
def test_compressed_bombs_are_cut_at_the_limit(web: HttpClient, how: str) -> None:
    packed = {
        "gzip": BOMB,
        "deflate": zlib.compress(b"\0" * (32 << 20)),
        "many members": gzip.compress(b"\0" * 4096) * 2000,
    }[how]
    with Peer(once(response(packed, content_encoding="deflate" if how == "deflate" else "gzip"))) as peer:
        answer = send(web, peer.url())
    assert (len(answer.body), answer.truncated) == (100_000, True)


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip, deflate", "br", "zstd", "compress", "x"])
def test_layers_of_compression_and_what_was_not_asked_for_are_refused(web: HttpClient, encoding: str) -> None:
    with Peer(once(response(gzip.compress(BOMB), content_encoding=encoding))) as peer:
        assert unreached(lambda: send(web, peer.url())).kind is Trouble.BROKEN


@pytest.mark.parametrize("what", ["cut", "junk"])
def test_a_compressed_body_that_is_cut_or_none_is_no_answer(web: HttpClient, what: str) -> None:
    packed = gzip.compress(b"hello" * 100)[:-9] if what == "cut" else b"hello"
    with Peer(once(response(packed, content_encoding="gzip"))) as peer:
        error = unreached(lambda: send(web, peer.url()))
    assert (error.kind, error.sent) == (Trouble.LOST if what == "cut" else Trouble.BROKEN, True)


@pytest.mark.parametrize(
    ("head", "part"),
    [(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"), (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 4096), (b"", b"x" * 4096),
     (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
     (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0" * 4096),
     (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: b\r\n" * 100)],
)  # fmt: skip
def test_endless_heads_headers_trailers_and_interim_answers_end(
    web: HttpClient, head: bytes, part: bytes
) -> None:
    with Peer(endless(head, part)) as peer:
        assert unreached(lambda: send(web, peer.url())).kind in (Trouble.TOO_LARGE, Trouble.BROKEN)
        assert peer.gone.wait(WAIT_S)


@pytest.mark.parametrize(
    "said",
    [b"hello\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 999 x\r\n\r\n", b"HTTP/1.1 20 x\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n", b"HTTP/1.1 200 OK\r\nnocolon\r\n\r\n",
     b"HTTP/1.1 200 OK\r\n folded\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nX: a\1b\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
     b"HTTP/1.7 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 51 + b"\r\n",
     b"SSH-2.0-Server\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n" + b"x" * 16,
     b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab",
     b"HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\na",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"],
)  # fmt: skip
def test_an_answer_that_is_no_sound_http_is_broken_and_its_connection_dropped(
    web: HttpClient, said: bytes
) -> None:
    with Peer(answers(said)) as peer:
        error = unreached(lambda: send(web, peer.url()))
        assert (error.kind, error.sent) == (Trouble.BROKEN, True)
        assert peer.gone.wait(WAIT_S)


# -- slowness and loss --------------------------------------------------------------------------------------


def dripping(head: bytes) -> Callable[[Peer, Talk], None]:
    """One byte now and then: never silent for long, and never done."""

    def play(peer: Peer, talk: Talk) -> None:
        talk.request()
        talk.say(head)
        try:
            for _ in range(1000):
                talk.say(b"x")
                if peer.gone.wait(0.01):
                    return
        except OSError:
            peer.gone.set()

    return play


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_slow_server_meets_the_deadline_however_it_drips(web: HttpClient, head: bytes) -> None:
    with Peer(dripping(head)) as peer:
        started = time.monotonic()
        error = unreached(lambda: send(web, peer.url(), within_s=0.2))
        assert (error.kind, error.sent) == (Trouble.TIMED_OUT, True)
        assert 0.15 < time.monotonic() - started < WAIT_S / 2
        assert peer.gone.wait(WAIT_S)


def test_a_server_that_does_not_read_meets_the_deadline_while_sending(web: HttpClient) -> None:
    stop = threading.Event()

    def play(peer: Peer, talk: Talk) -> None:
        stop.wait(WAIT_S)

    with Peer(play) as peer:
        error = unreached(lambda: send(web, peer.url(), "POST", body=b"x" * (32 << 20), within_s=0.3))
        stop.set()
    assert (error.kind, error.sent) == (Trouble.TIMED_OUT, True)


def test_a_server_that_never_finishes_tls_meets_the_deadline(web: HttpClient) -> None:
    with Peer(hangs()) as peer:
        error = unreached(lambda: send(web, peer.url().replace("http:", "https:"), within_s=0.2))
    assert (error.kind, error.sent) == (Trouble.TIMED_OUT, False)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"])
def test_the_button_stops_a_request_at_once_and_the_server_sees_it_go(web: HttpClient, head: bytes) -> None:
    with Peer(hangs(head)) as peer:
        cancel = Cancel()
        threading.Timer(0.05, cancel.set).start()
        started = time.monotonic()
        error = unreached(lambda: send(web, peer.url(), cancel=cancel))
        assert error.kind is Trouble.CANCELLED
        assert time.monotonic() - started < WAIT_S / 2
        assert peer.gone.wait(WAIT_S)


def test_a_button_that_was_pressed_before_sends_nothing(web: HttpClient) -> None:
    cancel = Cancel()
    cancel.set()
    with Peer(answers(response())) as peer:
        error = unreached(lambda: send(web, peer.url(), cancel=cancel))
        assert (error.kind, error.sent, peer.asked) == (Trouble.CANCELLED, False, [])


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"],
)  # fmt: skip
def test_a_connection_dropped_in_the_middle_is_lost_and_nothing_is_sent_twice(
    web: HttpClient, said: bytes
) -> None:
    with Peer(once(said)) as peer:
        error = unreached(lambda: send(web, peer.url(), "POST", body=b"x"))
        assert (error.kind, error.sent) == (Trouble.LOST, True)
        assert len(peer.asked) == 1


def closing_after(first: bytes) -> Callable[[Peer, Talk], None]:
    """Keeps the connection once, and drops it unanswered when the next request comes."""

    def play(peer: Peer, talk: Talk) -> None:
        asked = talk.request()
        if asked is not None:
            peer.asked.append(asked)
            talk.say(first)
            asked = talk.request()
            if asked is not None:
                peer.asked.append(asked)

    return play


def test_a_kept_connection_that_is_dropped_is_replaced_for_what_only_reads(web: HttpClient) -> None:
    with Peer(closing_after(response()), answers(response(b"new"))) as peer:
        send(web, peer.url())
        assert send(web, peer.url()).body == b"new"
        assert peer.connections == 2


def test_a_kept_connection_that_is_dropped_leaves_the_outcome_of_a_change_unknown(web: HttpClient) -> None:
    with Peer(closing_after(response()), answers(response(b"new"))) as peer:
        send(web, peer.url())
        error = unreached(lambda: send(web, peer.url(), "POST", body=b"x"))
        assert (error.kind, error.sent) == (Trouble.LOST, True)
        assert [asked.body for asked in peer.asked] == [b"", b"x"]


def test_a_kept_connection_that_the_server_closed_meanwhile_is_not_used(web: HttpClient) -> None:
    closed = threading.Event()

    def play(peer: Peer, talk: Talk) -> None:
        talk.request()
        talk.say(response())
        talk.socket.shutdown(socket.SHUT_RDWR)
        closed.set()

    with Peer(play, answers(response(b"new"))) as peer:
        send(web, peer.url())
        assert closed.wait(WAIT_S)
        assert send(web, peer.url(), "POST", body=b"x").body == b"new"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: 1\r\n\r\n"


@pytest.mark.parametrize("first", [response(), CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + response()])
@pytest.mark.parametrize("forged", [response(b"forged"), response(b""), b"HTTP/1.1 200 OK\r\nX: ", b"\r\n"])
def test_an_answer_sent_ahead_of_its_request_is_never_taken_for_it(
    web: HttpClient, first: bytes, forged: bytes
) -> None:
    ahead = first + forged
    with Peer(answers(ahead), answers(response(b"true"))) as peer:
        assert send(web, peer.url()).body == b"ok"
        assert send(web, peer.url()).body == b"true"
        assert peer.connections == 2


@pytest.mark.parametrize("late", [1, 2])
def test_attack_an_answer_ahead_comes_with_the_last_bytes_of_a_chunk(web: HttpClient, late: int) -> None:
    go_on = threading.Event()

    def play(peer: Peer, talk: Talk) -> None:
        talk.request()
        talk.say(CHUNKED[:-late])
        go_on.wait(WAIT_S)
        talk.say(CHUNKED[-late:] + b"HTTP/1.1 204 Forged\r\n\r\n")
        talk.until_gone()

    with Peer(play, answers(response(b"true"))) as peer:
        request = Request(method="GET", url=peer.url())
        with web.stream(request, reach=PRIVATE, limits=SMALL, deadline=math.inf, cancel=Cancel()) as stream:
            chunks = stream.chunks()
            assert next(chunks) == b"ok"
            go_on.set()
            assert [*chunks] == []
        assert send(web, peer.url()).body == b"true"
        assert peer.connections == 2


def test_a_chunked_body_may_hold_blank_lines_however_it_is_cut(web: HttpClient) -> None:
    body = b"\n\r\n\n\r\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" * 3
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"%x\r\n%b\r\n0\r\nT: 1\r\n\r\n" % (len(body), body)

    def play(peer: Peer, talk: Talk) -> None:
        talk.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for step in (1, 2, 3, 7, len(data)):
            talk.request()
            for start in range(0, len(data), step):
                talk.say(data[start : start + step])

    with Peer(play) as peer:
        assert [send(web, peer.url()).body for _ in range(5)] == [body] * 5
        assert peer.connections == 1


def test_closing_ends_the_idle_connections(web: HttpClient) -> None:
    with Peer(answers(response())) as peer:
        send(web, peer.url())
        web.close()
        assert peer.gone.wait(WAIT_S)


SOUND = [
    response(b"hello"),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n",
    response(gzip.compress(b"hello" * 50), content_encoding="gzip"),
    b"HTTP/1.1 100 Continue\r\n\r\n" + response(b"", "404 Not Found"),
    response(b"", "302 Found", location="/x"),
]


@given(
    st.sampled_from(SOUND),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30), st.binary(max_size=30)), max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_whatever_a_server_says_is_an_answer_or_an_unreached_within_the_limits(
    said: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for place, removed, added in edits:
        said = said[:place] + added + said[place + removed :]
    with closing(HttpClient()) as web, Peer(once(said)) as peer, suppress(Unreached):
        assert len(send(web, peer.url()).body) <= SMALL.body_bytes_max


def test_nothing_stays_open_after_failures(web: HttpClient) -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with Peer(once(b"")) as lost, Peer(once(b"x\r\n\r\n")) as broken, Peer(hangs()) as silent:
        for peer in (lost, broken):
            unreached(partial(send, web, peer.url()))
        before = open_files()
        for _ in range(20):
            unreached(lambda: send(web, lost.url(host="localhost")))
            unreached(lambda: send(web, broken.url()))
            unreached(lambda: send(web, lost.url(), reach=Reach()))
            unreached(lambda: send(web, silent.url(), within_s=0.01))
    assert open_files() <= before


# -- TLS ----------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, str]:
    """A server's context with a certificate for this name, and the file of the authority that signed it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    try:
        proven: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        proven = x509.DNSName(name)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([proven]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "cert.pem", folder / "key.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context, str(public)


def test_tls_is_verified_by_the_name_in_the_url_and_kept(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "api.example")
    trust = ssl.create_default_context(cafile=authority)
    with Peer(answers(response(b"x" * 90_000)), tls=context) as peer, loopback(trust) as web:
        for _ in range(3):
            assert len(send(web, peer.url(host="api.example")).body) == 90_000
        assert peer.connections == 1
        assert peer.asked[0].headers["host"] == f"api.example:{peer.port}"


def test_tls_with_the_wrong_name_or_an_unknown_authority_sends_nothing(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "other.example")
    knows = ssl.create_default_context(cafile=authority)
    for tls in (knows, None):
        with Peer(answers(response()), tls=context) as peer, loopback(tls) as web:
            error = unreached(partial(send, web, peer.url(host="api.example"), "POST"))
            assert (error.kind, error.sent, peer.asked) == (Trouble.UNTRUSTED, False, [])
            assert error.why.startswith("TLS with api.example failed: ")


def test_a_server_without_tls_is_not_spoken_to_without_it(web: HttpClient) -> None:
    def play(peer: Peer, talk: Talk) -> None:
        talk.say(response())
        talk.until_gone()

    with Peer(play) as peer:
        error = unreached(lambda: send(web, peer.url().replace("http:", "https:")))
        assert (error.kind, error.sent) == (Trouble.UNTRUSTED, False)


def test_a_redirect_out_of_tls_is_not_followed(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "127.0.0.1")
    with (
        Peer(answers(response())) as plain,
        Peer(answers(redirect(plain.url())), tls=context) as peer,
        loopback(ssl.create_default_context(cafile=authority)) as web,
    ):
        error = unreached(lambda: send(web, peer.url()))
        assert (error.kind, error.why) == (
            Trouble.REFUSED, "after a redirect: the answer leads from https to http",
        )  # fmt: skip
        assert plain.connections == 0


def test_the_button_stops_a_request_over_tls(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "127.0.0.1")
    cancel = Cancel()
    script = hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    trust = ssl.create_default_context(cafile=authority)
    with Peer(script, tls=context) as peer, loopback(trust) as web:
        threading.Timer(0.1, cancel.set).start()
        assert unreached(lambda: send(web, peer.url(), cancel=cancel)).kind is Trouble.CANCELLED


def test_limits_can_be_narrowed_by_one_caller_without_touching_another(web: HttpClient) -> None:
    with Peer(answers(response(b"x" * 1000))) as peer:
        assert send(web, peer.url(), limits=replace(SMALL, body_bytes_max=10)).body == b"x" * 10
        assert len(send(web, peer.url()).body) == 1000


# -- proxies ------------------------------------------------------------------------------------------------


@contextmanager
def through(
    peer: Peer, *hosts: str, login: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[HttpClient]:
    """A client with a proxy, to which every name is this machine."""
    proxy = Proxy(host="proxy.example", port=peer.port, hosts=hosts, login=(lambda: login) if login else None)
    with closing(HttpClient(resolve=found("127.0.0.1"), tls=tls, proxy=proxy)) as made:
        yield made


def test_named_hosts_go_through_the_proxy_and_no_others() -> None:
    hosts = ("api.example", "*.wide.example")
    with Peer(answers(response(b"by proxy"))) as peer, through(peer, *hosts, login="me:s3cret") as web:
        answer = send(web, "http://api.example/x?y", reach=Reach(), headers=[("X-One", "1")])
        assert answer.body == b"by proxy"
        assert send(web, "http://a.wide.example:81/", "POST", reach=Reach(), body=b"z").status == 200
        for other in ("http://wide.example/", "http://not-api.example/", "http://api.example.evil.example/"):
            error = unreached(partial(send, web, other, reach=Reach()))
            assert (error.kind, error.contacts[0].proxy) == (Trouble.REFUSED, "")
        assert [asked.line for asked in peer.asked] == [
            "GET http://api.example/x?y HTTP/1.1", "POST http://a.wide.example:81/ HTTP/1.1",
        ]  # fmt: skip
        first = peer.asked[0].headers
        assert (first["host"], first["x-one"]) == ("api.example", "1")
        assert first["via"] == "1.1 toolcrib"
        assert first["proxy-authorization"] == "Basic bWU6czNjcmV0"
        (contact,) = answer.contacts
        assert (contact.host, contact.address) == ("api.example", "127.0.0.1")
        assert contact.proxy == f"proxy.example:{peer.port}"


@pytest.mark.battery("I12")
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f.1", "0x7f000001", "017700000001", "127.1", "localhost", "x.localhost",
     "[::1]", "[::ffff:7f00:1]", "10.0.0.1", "169.254.169.254"],
)  # fmt: skip
def test_attack_a_private_address_is_named_for_the_proxy_to_reach(host: str) -> None:
    with Peer(answers(response(b"secret"))) as peer, through(peer, host.strip("[]"), "*.1", "*.254") as web:
        error = unreached(lambda: send(web, f"http://{host}/", reach=Reach()))
        assert (error.kind, peer.connections) == (Trouble.REFUSED, 0)


@pytest.mark.battery("I12")
def test_attack_an_answer_through_the_proxy_redirects_to_a_private_address() -> None:
    there = "http://169.254.169.254/latest/meta-data"
    with Peer(answers(redirect(there))) as peer, through(peer, "api.example") as web:
        error = unreached(lambda: send(web, "http://api.example/", reach=PRIVATE))
        assert (error.kind, error.sent, len(peer.asked)) == (Trouble.REFUSED, True, 1)


def test_attack_a_proxy_at_an_address_that_is_never_reached() -> None:
    proxy = Proxy(host="169.254.169.254", port=80, hosts=("api.example",))
    with closing(HttpClient(proxy=proxy)) as web:
        assert unreached(lambda: send(web, "http://api.example/")).kind is Trouble.REFUSED


def test_tls_goes_through_the_proxy_to_the_server_and_is_verified_there(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "api.example")
    trust = ssl.create_default_context(cafile=authority)
    with (
        Peer(answers(response(b"secret")), tls=context) as server,
        Peer(tunnel()) as peer,
        through(peer, "*.example", login="me:s3cret", tls=trust) as web,
    ):
        url = server.url(host="api.example")
        for _ in range(3):
            assert send(web, url, "POST", reach=Reach(), body=b"x").body == b"secret"
        assert (peer.connections, server.connections) == (1, 1)
        assert peer.asked[0].line == f"CONNECT api.example:{server.port} HTTP/1.1"
        assert peer.asked[0].headers["proxy-authorization"] == "Basic bWU6czNjcmV0"
        assert all("proxy-authorization" not in asked.headers for asked in server.asked)
        # Attack: a proxy that leads to a server of its own.
        error = unreached(lambda: send(web, server.url(host="other.example"), "POST", reach=Reach()))
        assert (error.kind, error.sent, len(server.asked)) == (Trouble.UNTRUSTED, False, 3)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_told_without_what_it_says(scheme: str) -> None:
    said = response(b"Basic bWU6czNjcmV0", "407 bWU6czNjcmV0 me:s3cret")
    with Peer(answers(said)) as peer, through(peer, "api.example", login="me:s3cret") as web:
        error = unreached(lambda: send(web, f"{scheme}://api.example/", reach=Reach()))
    assert error.kind is Trouble.UNREACHABLE
    assert error.why == "the proxy refused the connection (HTTP status 407)"
    assert "s3cret" not in f"{error!r} {error.why} {error.hint} {error.contacts}"


@pytest.mark.parametrize(
    ("said", "kind"),
    [(b"", Trouble.UNREACHABLE), (b"HTTP/1.1 200", Trouble.UNREACHABLE), (b"hello\r\n\r\n", Trouble.BROKEN),
     (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Trouble.BROKEN),
     (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 10_000, Trouble.TOO_LARGE)],
)  # fmt: skip
def test_attack_a_proxy_that_gives_no_sound_tunnel(said: bytes, kind: Trouble) -> None:
    with Peer(once(said)) as peer, through(peer, "api.example") as web:
        error = unreached(lambda: send(web, "https://api.example/", "POST", reach=Reach()))
    assert error.kind is kind
    assert error.sent == (kind is not Trouble.UNREACHABLE)


def test_a_tunnel_to_an_untrusted_server_is_closed(tmp_path: Path) -> None:
    context, _ = certificate(tmp_path, "api.example")
    trust = ssl.create_default_context()
    with (
        Peer(answers(response()), tls=context) as server,
        Peer(tunnel()) as peer,
        through(peer, "*.example", tls=trust) as web,
    ):
        for count in (1, 2, 3):
            error = unreached(lambda: send(web, server.url(host="api.example"), reach=Reach()))
            assert (error.kind, error.sent) == (Trouble.UNTRUSTED, False)
            assert peer.gone.wait(WAIT_S)
            peer.gone.clear()
            assert (len(peer.asked), server.asked) == (count, [])


def test_authorities_of_a_file_are_trusted_besides_the_systems(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "api.example")
    resolve = found("127.0.0.1")
    with Peer(answers(response(b"here")), tls=context) as peer:
        url = peer.url(host="api.example")
        with closing(HttpClient(resolve=resolve, ca_file=authority)) as web:
            assert send(web, url).body == b"here"
        (tmp_path / "none.pem").write_text("none", encoding="utf-8")
        for name in ("none.pem", "absent.pem"):
            with closing(HttpClient(resolve=resolve, ca_file=str(tmp_path / name))) as web:
                error = unreached(partial(send, web, url))
                assert (error.kind, error.sent) == (Trouble.UNTRUSTED, False)
                assert name in error.why


# -- kept connections ---------------------------------------------------------------------------------------


def test_at_most_eight_connections_to_one_host_are_kept(web: HttpClient) -> None:
    together = threading.Barrier(12)
    closed = threading.Semaphore(0)

    def play(peer: Peer, talk: Talk) -> None:
        talk.request()
        together.wait(WAIT_S)
        talk.say(response())
        talk.until_gone()
        closed.release()

    with Peer(play) as peer:
        threads = [threading.Thread(target=send, args=(web, peer.url())) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert all(closed.acquire(timeout=WAIT_S) for _ in range(4))
        assert not closed.acquire(blocking=False)
        web.close()
        assert all(closed.acquire(timeout=WAIT_S) for _ in range(8))


def test_a_connection_in_use_is_closed_after_the_client_was(web: HttpClient) -> None:
    with Peer(answers(response())) as peer:
        request = Request(method="GET", url=peer.url())
        with web.stream(request, reach=PRIVATE, limits=SMALL, deadline=math.inf, cancel=Cancel()) as stream:
            web.close()
            assert stream.read() == (b"ok", False)
        assert peer.gone.wait(WAIT_S)


def test_redirects_and_empty_answers_keep_their_connection(web: HttpClient) -> None:
    data = (redirect("/two"), b"HTTP/1.1 204 No Content\r\n\r\n", response(b"three"))
    with Peer(answers(*data)) as peer:
        assert send(web, peer.url()).status == 204
        assert send(web, peer.url()).body == b"three"
        assert peer.connections == 1


def test_spaces_around_the_value_of_a_header_are_left_out(web: HttpClient) -> None:
    with Peer(answers(response())) as peer:
        send(web, peer.url(), headers=[("X-A", " \ta b "), ("X-B", "")])
        assert (peer.asked[0].headers["x-a"], peer.asked[0].headers["x-b"]) == ("a b", "")


def test_what_speaks_http_is_imported_at_the_first_request() -> None:
    program = "import sys; from toolcrib.runtimes import http, mcp; sys.exit('httpcore2' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
