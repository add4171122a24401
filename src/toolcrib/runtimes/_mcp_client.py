"""A connection to an MCP server, whatever carries it: answers matched to questions, both eras' greetings.

A transport beside this file carries the bytes (``_mcp_stdio.py``, ``_mcp_http.py``); ``mcp.py`` decides what
is asked. Everything a server sends is hostile: messages are bounded, an answer nobody waits for is ignored,
and a server can ask nothing of us except whether we are there.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from toolcrib import __version__
from toolcrib import mcp_wire as wire
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import HeldName
from toolcrib.sandbox import Cancel

_MODERN: Final = wire.NEWER[-1]
"""The stateless era: every request says who asks, in which version, and what it can do."""

TOOLS_MAX: Final = 10_000
"""Tools that are taken from one server."""
PAGES_MAX: Final = 200

_VALUES_MAX: Final = 1_000_000
_BATCH_MAX: Final = 1000
_WAIT_STEP_S: Final = 0.05
_STEPS_MAX: Final = 64
_TOLD_CHARS_MAX: Final = 2000
_CLIENT: Final[JsonObject] = {"name": "toolcrib", "version": __version__}
_STAMP: Final[JsonObject] = {
    wire.VERSION_KEY: _MODERN,
    wire.CLIENT_INFO_KEY: _CLIENT,
    wire.CLIENT_KEY: {},
}


Heard: TypeAlias = Callable[[JsonObject], None]
"""Told what a server says of a call's progress."""


class WireLimits(Struct, frozen=True, kw_only=True):
    """What a server may send."""

    message_bytes_max: int = 16 << 20
    pending_max: int = 1000
    """Questions that wait for an answer on one connection."""
    unasked_max: int = 10_000
    """Messages that nobody asked for, in one window of time."""
    unasked_bytes_max: int = 64 << 20
    """The same in bytes; what a server writes to its stderr counts as well."""
    window_s: float = 10.0


# -- what may go wrong --------------------------------------------------------------------------------------


class Unanswered(Exception):
    """There is no answer. ``sent``: the server may have seen the question. ``lacks``: the needs whose grant
    would help. ``hint``: what else to do."""

    def __init__(self, why: str, *, sent: bool, hint: str | None = None, lacks: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        self.hint = hint
        self.lacks = lacks


class Late(Unanswered):
    """The time was up."""


class Stopped(Unanswered):
    """Somebody pressed the call's stop button."""


class TooLong(Unanswered):
    """The answer went over the limit."""


class Unreadable(Unanswered):
    """There is an answer, and it is none that everybody reads alike."""


class Refusal(Exception):
    """The server answered with an error of the protocol."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Answer(Struct, frozen=True):
    """What a server answered."""

    result: JsonObject
    progress: int
    """How many messages of progress came before it."""
    size: int
    """In bytes, as it came."""


# -- messages -----------------------------------------------------------------------------------------------


def question(number: int | str, method: str, params: JsonObject) -> bytes:
    """A question; a call of a tool also says under which number its progress is heard."""
    if method == "tools/call":
        params = {**params, "_meta": {**wire.meta(params), "progressToken": number}}
    return wire.request(number, method, params)


def read(content: bytes) -> list[JsonObject] | str:
    """The messages of a text (one, or a batch of the older versions), or what is wrong with it."""
    value, wrong = wire.parse(content, values_max=_VALUES_MAX)
    if wrong:
        return wrong
    messages = value if isinstance(value, list) else [value]
    if len(messages) > _BATCH_MAX:
        return f"a batch of more than {_BATCH_MAX} messages"
    if not all(isinstance(message, dict) for message in messages):
        return "not an object"
    return messages


def answer_of(message: JsonObject) -> JsonObject:
    """The result of an answer. Raises Refusal for an error, Unanswered for what is neither."""
    error = message.get("error")
    if isinstance(error, dict) and "result" not in message:
        code, text = error.get("code"), error.get("message")
        raise Refusal(
            code if isinstance(code, int) else 0,
            (text if isinstance(text, str) else "an error without a message")[:_TOLD_CHARS_MAX],
            error.get("data"),
        )
    result = message.get("result")
    if not isinstance(result, dict) or "error" in message:
        raise Unanswered("the server's answer is neither a result nor an error", sent=True)
    return result


def reply_to(message: JsonObject) -> bytes | None:
    """What a server that asks something of us is told; None for what needs no answer.

    Attack: a server that reads the user's model, files or keyboard by sampling, roots or elicitation. Nothing
    of that is offered to it.
    """
    number, method = message.get("id"), message.get("method")
    if not wire.is_id(number):
        return None
    if method == "ping":
        return wire.answer(number, b"{}")
    return wire.failure(number, wire.Fault(wire.METHOD_NOT_FOUND, "Method not found"))


def is_changed_list(message: JsonObject) -> bool:
    return message.get("method") == "notifications/tools/list_changed"


_NUMBER_BYTES_MAX: Final = 200
_NUMBER: Final = rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,15})\s*'
_NUMBERED: Final = re.compile(rb"\{\s*" + _NUMBER + rb",")
_NUMBERED_LAST: Final = re.compile(rb"\}\s*,\s*" + _NUMBER + rb"\}$")
"""Where common servers put the number of an answer: first, or last."""


# -- questions that wait ------------------------------------------------------------------------------------


class Waiting:
    """One question that waits for its answer."""

    __slots__ = ("_gate", "heard", "message", "number", "progress", "size", "steps", "unreadable", "why")

    def __init__(self, number: int, heard: Heard | None = None) -> None:
        self.number = number
        self.heard = heard
        self.steps: deque[JsonObject] = deque(maxlen=_STEPS_MAX)
        """What was said of its progress and not told yet: the newest."""
        self.message: JsonObject | None = None
        self.why: str | None = None
        self.unreadable: str | None = None
        self.progress = 0
        self.size = 0
        self._gate = threading.Lock()
        self._gate.acquire()

    def open_gate(self) -> None:
        self._gate.release()

    def wait(self, deadline: float, cancel: Cancel) -> Answer:
        """Raises Refusal or Unanswered."""
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise Late("no answer in time", sent=True)
            is_over = self._gate.acquire(timeout=min(left_s, _WAIT_STEP_S))
            self._tell_steps()
            if is_over:
                break
            if cancel.is_set:
                raise Stopped("cancelled", sent=True)
        if self.unreadable is not None:
            raise Unreadable(self.unreadable, sent=True)
        if self.message is None:
            raise Unanswered(self.why or "the connection ended", sent=True)
        return Answer(answer_of(self.message), self.progress, self.size)

    def _tell_steps(self) -> None:
        """By the thread that waits, never by the one that reads: who hears of it may take his time, or call
        another tool of the same server."""
        while self.heard is not None and self.steps:
            self.heard(self.steps.popleft())


class Desk:
    """The questions of one connection, by number. Any thread may ask; one thread hands answers in."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Waiting] = {}
        self._why: str | None = None
        self._unasked = 0
        self._unasked_bytes = 0
        self._window = time.monotonic()

    def take_number(self, heard: Heard | None = None) -> Waiting:
        with self._lock:
            if self._why is not None:
                raise Unanswered(self._why, sent=False)
            if len(self._waiting) >= self._limits.pending_max:
                raise Unanswered(f"{self._limits.pending_max} calls already wait for this server", sent=False)
            waiting = Waiting(next(self._numbers), heard)
            self._waiting[waiting.number] = waiting
            return waiting

    def forget(self, waiting: Waiting) -> None:
        with self._lock:
            self._waiting.pop(waiting.number, None)

    def hand_in(self, message: JsonObject, size: int) -> None:
        """An answer or a notification. Attack: an answer to a question nobody asked, or a second one to the
        same: neither finds anybody who waits."""
        if "method" not in message:
            number = message.get("id")
            if type(number) is int:
                with self._lock:
                    waiting = self._waiting.pop(number, None)
                if waiting is not None:
                    waiting.message, waiting.size = message, size
                    waiting.open_gate()
                    return
        elif message.get("method") == "notifications/progress":
            params = message.get("params")
            token = params.get("progressToken") if isinstance(params, dict) else None
            with self._lock:
                asked = self._waiting.get(token) if type(token) is int else None
                if asked is not None:
                    asked.progress += 1
                    if asked.heard is not None and isinstance(params, dict):
                        asked.steps.append(params)
        self.count(1, size)

    def spoil(self, line: bytes, why: str) -> bool:
        """A line that is no sound JSON, but whose number can be seen, costs the one who asked and nobody
        else: half an emoji in one tool's text must not end the calls of all others. Whether there was one."""
        found = _NUMBERED.match(line) or _NUMBERED_LAST.search(line[-_NUMBER_BYTES_MAX:])
        with self._lock:
            waiting = self._waiting.pop(int(found[1]), None) if found is not None else None
        if waiting is None:
            return False
        waiting.unreadable = why
        waiting.open_gate()
        return True

    def count(self, messages: int, size: int) -> None:
        """Raises Unanswered when a server sends more than anybody asked for."""
        limits, now = self._limits, time.monotonic()
        if now - self._window > limits.window_s:
            self._window, self._unasked, self._unasked_bytes = now, 0, 0
        self._unasked += messages
        self._unasked_bytes += size
        if self._unasked > limits.unasked_max or self._unasked_bytes > limits.unasked_bytes_max:
            raise Unanswered(
                f"it sent more than {limits.unasked_max} messages or {limits.unasked_bytes_max >> 20} MiB "
                f"that nobody asked for within {limits.window_s:g} s",
                sent=True,
            )

    def close(self, why: str) -> None:
        """Nobody will be answered any more."""
        with self._lock:
            if self._why is None:
                self._why = why
            left, self._waiting = list(self._waiting.values()), {}
        for waiting in left:
            waiting.why = why
            waiting.open_gate()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    @property
    def why_closed(self) -> str | None:
        return self._why


# -- a connection, whatever carries it ----------------------------------------------------------------------


class Line(Protocol):
    """A way to one server."""

    @property
    def layers(self) -> tuple[str, ...]:
        """What holds the server's process, where it is one of ours."""
        ...

    @property
    def held(self) -> tuple[HeldName, ...] | None:
        """The names that the server's process cannot take; None: it is no process of ours."""
        ...

    def ask(
        self,
        method: str,
        params: JsonObject,
        *,
        deadline: float,
        cancel: Cancel,
        headers: Mapping[str, str] | None = None,
        heard: Heard | None = None,
    ) -> Answer:
        """Raises Refusal or Unanswered. ``heard`` is told of progress, by the thread that asks."""
        ...

    def tell(self, method: str, *, deadline: float, cancel: Cancel) -> None:
        """Send a notification."""
        ...

    def listen(self, greeting: Greeting) -> None:
        """From now on hear of changed lists, where the server tells of them."""
        ...

    @property
    def why_closed(self) -> str | None:
        """Why nothing can be asked any more; None while it can."""
        ...

    def close(self, grace_s: float = 0.0) -> None: ...


class Greeting(Struct, frozen=True, kw_only=True):
    """What a server said about itself."""

    version: str
    name: str = ""
    server_version: str = ""
    changes: bool = False
    """It says that it tells when its tools change."""

    @property
    def is_modern(self) -> bool:
        return self.version in wire.NEWER


def stamped(params: JsonObject, greeting: Greeting | None) -> JsonObject:
    """The parameters of a request, with what the stateless era wants to know of every one."""
    if greeting is None or not greeting.is_modern:
        return params
    return {**params, "_meta": {**wire.meta(params), **_STAMP}}


def initialize(line: Line, deadline: float, cancel: Cancel) -> Greeting:
    """The greeting of the older era."""
    params: JsonObject = {"protocolVersion": wire.OLDER[-1], "capabilities": {}, "clientInfo": _CLIENT}
    result = line.ask("initialize", params, deadline=deadline, cancel=cancel).result
    version = result.get("protocolVersion")
    if version not in wire.OLDER:
        raise Unanswered(
            f"it speaks version {str(version)[:40]!r} of the protocol, which we do not", sent=True
        )
    return _greeting(str(version), result, result.get("serverInfo"))


def discover(line: Line, deadline: float, cancel: Cancel) -> Greeting:
    """The greeting of the stateless era. Raises Refusal where the server does not know it."""
    params: JsonObject = {"_meta": _STAMP}
    headers = wire.routing(_MODERN, "server/discover")
    result = line.ask("server/discover", params, deadline=deadline, cancel=cancel, headers=headers).result
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or _MODERN not in versions:
        raise Refusal(wire.UNSUPPORTED_VERSION, "it has no version of the stateless era that we know")
    return _greeting(_MODERN, result, wire.meta(result).get(wire.SERVER_KEY))


def _greeting(version: str, result: JsonObject, about: Any) -> Greeting:
    about = about if isinstance(about, dict) else {}
    offered = result.get("capabilities")
    tools = offered.get("tools") if isinstance(offered, dict) else None
    return Greeting(
        version=version,
        name=str(about.get("name", ""))[:100],
        server_version=str(about.get("version", ""))[:40],
        changes=isinstance(tools, dict) and tools.get("listChanged") is True,
    )


def list_tools(line: Line, greeting: Greeting, deadline: float, cancel: Cancel) -> list[JsonValue]:
    """All pages of a server's tools. Raises Refusal or Unanswered."""
    found: list[JsonValue] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(PAGES_MAX):
        params = stamped({"cursor": cursor} if cursor is not None else {}, greeting)
        headers = wire.routing(greeting.version, "tools/list")
        result = line.ask("tools/list", params, deadline=deadline, cancel=cancel, headers=headers).result
        tools = result.get("tools")
        if not isinstance(tools, list):
            raise Unanswered("its list of tools is no list", sent=True)
        found += tools
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str):
            return found
        if cursor in seen or len(found) > TOOLS_MAX:
            break
        seen.add(cursor)
    # Attack: a list without end, or one that leads in a circle.
    raise Unanswered(
        f"its list of tools has no end (more than {TOOLS_MAX} tools or {PAGES_MAX} pages)", sent=True
    )


def listening() -> JsonObject:
    """What the stateless era is asked in order to hear of changed lists."""
    return {"_meta": _STAMP, "notifications": {"toolsListChanged": True}}
