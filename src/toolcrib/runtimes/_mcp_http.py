"""A server behind a URL: every message is a POST, answered by JSON or by a stream of events.

There is no process and nothing to hold: connections are the client's (``_http_client.py``), which checks
every address it connects to. In the older era a session id goes along; a server that has forgotten it is
greeted anew. Changes of the list come over a stream that one thread reads for as long as the server keeps it
open.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from toolcrib import mcp_wire as wire
from toolcrib.jsontext import JsonObject
from toolcrib.model import HeldName
from toolcrib.runtimes import _mcp_client as client
from toolcrib.runtimes._http_client import HttpClient, HttpLimits, Reach
from toolcrib.runtimes._http_request import Request, Trouble, Unreached
from toolcrib.sandbox import NEVER, Cancel

if TYPE_CHECKING:
    from toolcrib.runtimes._http_network import Stream

_GOODBYE_S: Final = 2.0
_REPLY_S: Final = 5.0
"""For answering what a server asks in the middle of its own answer."""
_LISTEN_BYTES_MAX: Final = 256 << 20
_LISTEN_PAUSE_S: Final = 5.0
_RESUMES_MAX: Final = 3
"""How often a stream that ended without the answer is taken up again."""
_RESUME_PAUSE_S: Final = 0.5
_ID_BYTES_MAX: Final = 1024
_FIRST_EVENT_BYTES_MAX: Final = 64 << 10
_FIRST_LINES_MAX: Final = 16
_EVENTS_MAX: Final = 10_000
"""Events in the stream of one answer."""


class SessionOver(client.Unanswered):
    """The server does not know our session any more, and did nothing."""


class HttpLine:
    """The way to one server over Streamable HTTP."""

    def __init__(
        self,
        http: HttpClient,
        url: str,
        *,
        reach: Reach,
        headers: Sequence[tuple[str, str]],
        limits: client.WireLimits,
        changed: Callable[[], None],
    ) -> None:
        self._http = http
        self._url = url
        self._reach = reach
        self._headers = tuple(headers)
        self._limits = limits
        self._changed = changed
        self._numbers = client.Desk(limits)
        self._session: str | None = None
        self._version: str | None = None
        self._why: str | None = None
        self._stop = Cancel()
        self._listener: threading.Thread | None = None

    layers: tuple[str, ...] = ()
    held: tuple[HeldName, ...] | None = None

    @property
    def why_closed(self) -> str | None:
        return self._why

    def stderr(self) -> bytes:
        return b""

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        params: JsonObject,
        *,
        deadline: float,
        cancel: Cancel,
        headers: Mapping[str, str] | None = None,
        heard: client.Heard | None = None,
    ) -> client.Answer:
        if self._why is not None:
            raise client.Unanswered(self._why, sent=False)
        waiting = self._numbers.take_number(heard)
        try:
            body = client.question(waiting.number, method, params)
            return self._ask(method, waiting, body, headers or {}, deadline, cancel)
        except Unreached as no:
            raise self._unanswered(no, method, waiting.number) from None
        finally:
            self._numbers.forget(waiting)

    def _ask(
        self,
        method: str,
        waiting: client.Waiting,
        body: bytes,
        headers: Mapping[str, str],
        deadline: float,
        cancel: Cancel,
    ) -> client.Answer:
        with self._post(body, headers, deadline, cancel) as answer:
            kind = (answer.header("content-type") or "").partition(";")[0].strip().lower()
            if answer.status >= 400 or kind not in ("application/json", "text/event-stream"):
                raise self._refusal(answer, kind)
            if method == "initialize":
                # Attack: a session id that is endless, or a header of its own, and is sent back.
                session = answer.header("mcp-session-id")
                if session is not None and (len(session) > 1024 or not session.isprintable()):
                    raise client.Unanswered("its session id is none", sent=True)
                self._session = session
            if kind == "application/json":
                content, is_cut = answer.read()
                if is_cut:
                    raise self._too_long()
                found = self._answer([content], waiting, deadline, cancel)
                if found is None:
                    raise client.Unanswered("its answer is to another question", sent=True)
                return found
            events = _Events(answer, self._limits.message_bytes_max)
            found = self._answer(events, waiting, deadline, cancel)
        return found or self._resumed(events.last_id, waiting, deadline, cancel)

    def _resumed(
        self, last_id: str | None, waiting: client.Waiting, deadline: float, cancel: Cancel
    ) -> client.Answer:
        """The answer of a stream that the server ended early, on a new one that goes on after ``last_id``."""
        for _ in range(_RESUMES_MAX):
            if last_id is None or self._session is None or cancel.wait(_RESUME_PAUSE_S):
                break
            request = Request(
                method="GET",
                url=self._url,
                headers=(
                    *self._headers,
                    ("Accept", "text/event-stream"),
                    ("Last-Event-ID", last_id),
                    *self._session_headers({}),
                ),
            )
            limits = HttpLimits(body_bytes_max=self._limits.message_bytes_max)
            with self._http.stream(
                request, reach=self._reach, limits=limits, deadline=deadline, cancel=cancel
            ) as answer:
                if answer.status != 200:
                    break
                events = _Events(answer, self._limits.message_bytes_max)
                found = self._answer(events, waiting, deadline, cancel)
            if found is not None:
                return found
            last_id = events.last_id or last_id
        if cancel.is_set:
            raise Unreached(Trouble.CANCELLED, "cancelled", sent=True)
        raise client.Unanswered("the stream ended without the answer", sent=True)

    def _answer(
        self, contents: Iterable[bytes], waiting: client.Waiting, deadline: float, cancel: Cancel
    ) -> client.Answer | None:
        """The answer among what came; until then progress is told, and the server's questions answered."""
        number = waiting.number
        for count, content in enumerate(contents):
            if count >= _EVENTS_MAX:
                raise client.Unanswered(f"more than {_EVENTS_MAX} events before the answer", sent=True)
            messages = client.read(content)
            if isinstance(messages, str):
                raise client.Unanswered(f"it sent broken JSON: {messages}", sent=True)
            for message in messages:
                if "method" not in message:
                    if message.get("id") == number and type(message.get("id")) is int:
                        return client.Answer(client.answer_of(message), waiting.progress, len(content))
                elif "id" in message:
                    told = client.reply_to(message)
                    if told is not None:
                        # Attack: a server that asks and then does not take the answer, so that nobody can
                        # stop the call.
                        until = min(deadline, time.monotonic() + _REPLY_S)
                        self._send_quietly(told, until, cancel)
                elif message.get("method") == "notifications/progress":
                    waiting.progress += 1
                    params = message.get("params")
                    if (
                        waiting.heard is not None
                        and isinstance(params, dict)
                        and params.get("progressToken") == number
                    ):
                        waiting.heard(params)
                elif client.is_changed_list(message):
                    self._changed()
        return None

    def _post(
        self, body: bytes, headers: Mapping[str, str], deadline: float, cancel: Cancel
    ) -> AbstractContextManager[Stream]:
        request = Request(
            method="POST",
            url=self._url,
            headers=(
                *self._headers,
                ("Content-Type", "application/json"),
                ("Accept", "application/json, text/event-stream"),
                *self._session_headers(headers),
            ),
            body=body,
        )
        limits = HttpLimits(body_bytes_max=self._limits.message_bytes_max)
        return self._http.stream(request, reach=self._reach, limits=limits, deadline=deadline, cancel=cancel)

    def _session_headers(self, headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        if self._session is not None:
            yield "Mcp-Session-Id", self._session
        if self._version is not None and "MCP-Protocol-Version" not in headers:
            yield "MCP-Protocol-Version", self._version
        yield from headers.items()

    def tell(self, method: str, *, deadline: float, cancel: Cancel) -> None:
        self._send_quietly(wire.notification(method), deadline, cancel)

    def _send_quietly(self, message: bytes, deadline: float, cancel: Cancel) -> None:
        with suppress(Unreached), self._post(message, {}, deadline, cancel) as answer:
            answer.read()

    # -- what went wrong ------------------------------------------------------------------------------------

    def _refusal(self, answer: Stream, kind: str) -> Exception:
        """Why an answer is none: an error of the protocol in its body, or what the status says."""
        if kind == "application/json":
            content, _ = answer.read()
            messages = client.read(content)
            if not isinstance(messages, str) and len(messages) == 1:
                try:
                    client.answer_of(messages[0])
                except client.Refusal as refusal:
                    if answer.status == 404 and self._session is not None:
                        return SessionOver("its session is over", sent=False)
                    return refusal
                except client.Unanswered:
                    pass  # no message of the protocol: the status has to do
        if answer.status == 404 and self._session is not None:
            return SessionOver("its session is over", sent=False)
        if 400 <= answer.status < 500:
            words = {401: "it wants credentials", 403: "it refuses us", 404: "there is no server at its URL"}
            why = words.get(answer.status, "it refused the request")
            return Rejected(f"{why} (HTTP status {answer.status})")
        if answer.status >= 300:
            return client.Unanswered(f"it answered with HTTP status {answer.status}", sent=True)
        return client.Unanswered(f"it answered with {kind[:60] or 'no type'}, which is no message", sent=True)

    def _too_long(self) -> client.TooLong:
        return client.TooLong(f"its answer has more than {self._limits.message_bytes_max} bytes", sent=True)

    def _unanswered(self, no: Unreached, method: str, number: int) -> client.Unanswered:
        match no.kind:
            case Trouble.TIMED_OUT:
                self._give_up(method, number)
                return client.Late(no.why, sent=no.sent)
            case Trouble.CANCELLED:
                self._give_up(method, number)
                return client.Stopped(no.why, sent=no.sent)
            case Trouble.TOO_LARGE:
                return self._too_long()
        is_private = no.kind is Trouble.REFUSED and no.hint is not None
        lacks = ("net.http", "net.private") if is_private else ()
        return client.Unanswered(no.why, sent=no.sent, hint=no.hint, lacks=lacks)

    def _give_up(self, method: str, number: int) -> None:
        """The older era is told; to the stateless one the closed connection says it."""
        if self._session is None and self._version in (None, wire.NEWER[-1]):
            return
        if method not in ("initialize", "server/discover"):
            params: JsonObject = {"requestId": number, "reason": "nobody waits for it any more"}
            message = wire.notification("notifications/cancelled", params)

            def tell() -> None:
                self._send_quietly(message, time.monotonic() + _GOODBYE_S, self._stop)

            # Attack: a server that takes no more requests, so that its callers come late.
            with suppress(RuntimeError):  # no more threads for this user: it is not told
                threading.Thread(target=tell, name="mcp-cancel", daemon=True).start()

    def use(self, greeting: client.Greeting) -> None:
        """Name this version in everything that is sent from now on."""
        self._version = greeting.version

    def has_two_endpoints(self, deadline: float, cancel: Cancel) -> bool:
        """Whether a stream begins where nobody takes a POST, and names another address for them: that is the
        transport of 2024-11-05, which is not spoken here."""
        request = Request(
            method="GET", url=self._url, headers=(*self._headers, ("Accept", "text/event-stream"))
        )
        try:
            with self._http.stream(
                request,
                reach=self._reach,
                limits=HttpLimits(body_bytes_max=_FIRST_EVENT_BYTES_MAX),
                deadline=min(deadline, time.monotonic() + _GOODBYE_S),
                cancel=cancel,
            ) as answer:
                kind = (answer.header("content-type") or "").partition(";")[0].strip().lower()
                if answer.status != 200 or kind != "text/event-stream":
                    return False
                for line in islice(answer.lines(_FIRST_EVENT_BYTES_MAX), _FIRST_LINES_MAX):
                    name, _, value = line.partition(b":")
                    if name == b"event":
                        return value.strip() == b"endpoint"
        except Unreached:
            return False
        return False

    # -- changes --------------------------------------------------------------------------------------------

    def listen(self, greeting: client.Greeting) -> None:
        self.use(greeting)
        if greeting.changes and self._listener is None:
            self._listener = threading.Thread(
                target=self._listen, args=(greeting,), name="mcp-listener", daemon=True
            )
            self._listener.start()

    def _listen(self, greeting: client.Greeting) -> None:
        while not self._stop.is_set:
            try:
                if not self._hear(greeting):
                    return
            except (Unreached, client.Unanswered):
                pass  # a stream may end at any time; calls say by themselves when the server is gone
            if self._stop.wait(_LISTEN_PAUSE_S):
                return

    def _hear(self, greeting: client.Greeting) -> bool:
        """Read the stream of changes to its end. False: the server has none."""
        if greeting.is_modern:
            body = client.question("listen", "subscriptions/listen", client.listening())
            headers = wire.routing(greeting.version, "subscriptions/listen")
        else:
            body, headers = None, {}
        request = Request(
            method="GET" if body is None else "POST",
            url=self._url,
            headers=(
                *self._headers,
                ("Accept", "text/event-stream" if body is None else "application/json, text/event-stream"),
                *((("Content-Type", "application/json"),) if body is not None else ()),
                *self._session_headers(headers),
            ),
            body=body,
        )
        limits = HttpLimits(body_bytes_max=_LISTEN_BYTES_MAX)
        with self._http.stream(
            request, reach=self._reach, limits=limits, deadline=math.inf, cancel=self._stop
        ) as answer:
            kind = (answer.header("content-type") or "").partition(";")[0].strip().lower()
            if answer.status != 200 or kind != "text/event-stream":
                return False
            for content in _Events(answer, self._limits.message_bytes_max):
                messages = client.read(content)
                for message in messages if not isinstance(messages, str) else ():
                    self._numbers.count(1, len(content))
                    if client.is_changed_list(message):
                        self._changed()
        return True

    # -- the end --------------------------------------------------------------------------------------------

    def close(self, grace_s: float = 0.0) -> None:
        if self._why is not None:
            return
        self._why = "it was closed"
        self._numbers.close(self._why)
        self._stop.set()
        if self._session is None:
            return
        request = Request(
            method="DELETE", url=self._url, headers=(*self._headers, *self._session_headers({}))
        )
        with suppress(Unreached):
            self._http.send(
                request,
                reach=self._reach,
                limits=HttpLimits(body_bytes_max=1 << 16),
                deadline=time.monotonic() + _GOODBYE_S,
                cancel=NEVER,
            )


class Rejected(client.Refusal):
    """The server refused a request before it looked at it."""

    def __init__(self, why: str) -> None:
        super().__init__(0, why)


class _Events:
    """The data of each event of a stream, in the order of the lines; events without any are passed over."""

    def __init__(self, answer: Stream, bytes_max: int) -> None:
        self._answer = answer
        self._bytes_max = bytes_max
        self.last_id: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        held: list[bytes] = []
        size = 0
        for line in self._answer.lines(self._bytes_max):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if not line:
                if any(held):
                    yield b"\n".join(held)
                held, size = [], 0
            elif name == b"data":
                size += len(value) + 1
                if size > self._bytes_max:
                    raise Unreached(
                        Trouble.TOO_LARGE, f"an event went over {self._bytes_max} bytes", sent=True
                    )
                held.append(value)
            elif name == b"id" and len(value) <= _ID_BYTES_MAX and value.isascii():
                self.last_id = value.decode("ascii") if value else None
