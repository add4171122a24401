"""The MCP server over a pipe: one client, one message on each line, in the era that its first request speaks.

The crew's threads read, one at a time: whoever read a call runs it and writes its answer, and where it turns
out to take long, another one reads on. The thread that serves only looks after them, and hears signals.
Nothing else of this process, or of what it starts, may write to the client or read what it says: see
``serve_stdio``.
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final

from toolcrib import mcp_wire as wire
from toolcrib.app import Crib
from toolcrib.doors._crew import Crew, Done, refused
from toolcrib.doors._mcp_desk import CHANGES, DOOR, MAY_NOT_CALL, Desk, Question, unread
from toolcrib.errors import Kind, ToolcribError
from toolcrib.functions import Report
from toolcrib.jsontext import JsonObject
from toolcrib.mcp_wire import NEWER, Fault, Id, Message, Shape
from toolcrib.model import Guest, Right, ToolCall, ToolResult
from toolcrib.sandbox import Cancel

if TYPE_CHECKING:
    from toolcrib.doors._offers import Offers

LINE_BYTES_MAX: Final = 10 << 20
APPROVAL_WAIT_S: Final = 600.0
DRAIN_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
_ASKED_MAX: Final = 256
_LISTENS_MAX: Final = 16
_TICK_S: Final = 0.005
_TICK_S_MAX: Final = 0.05
_IDLE_S: Final = 2.0
"""So often it is looked whether something was switched off or on."""
_RARE_MAX: Final = 256
"""Requests that wait for the thread that reads resources."""
_LAST_S: Final = 2.0
"""So long a client may take to read our last words."""


def serve_stdio(
    crib: Crib,
    crew: Crew,
    *,
    guest: Guest,
    offers: Offers | None = None,
    approval_wait_s: float = APPROVAL_WAIT_S,
    drain_s: float = DRAIN_S,
    left: Cancel | None = None,
) -> None:
    """Serve the client at this process's standard input and output until it leaves, or ``left`` is pressed
    in its place; it is pressed where the client left.

    Attack: a library, or a tool that runs in this process, prints something that the client takes for a
    message, or reads what the client says. So both ends are taken away: what is printed goes to stderr.
    """
    said, heard = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    connection = _Connection(
        crib,
        crew,
        guest,
        heard,
        said,
        desk=Desk(crib, offers),
        approval_wait_s=approval_wait_s,
        left=left or Cancel(),
    )
    try:
        connection.serve()
    finally:
        connection.close(drain_s)
        if not crew.is_reading:  # else it is held up while it writes, and must not find another file there
            os.close(heard)
        os.close(said)


class _Era(Enum):
    UNKNOWN = 0
    OLDER = 1
    NEWER = 2


class _Lines:
    """Bytes as they come into lines; one that is too long is given as None, once, and skipped."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._is_skipping = False

    def add(self, chunk: bytes) -> Iterator[bytes | None]:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if self._is_skipping:
                self._is_skipping = False
                continue
            if self._size + len(line) > LINE_BYTES_MAX:
                yield None
            else:
                yield b"".join((*self._parts, line)) if self._parts else line
            self._parts, self._size = [], 0
        if rest and not self._is_skipping:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > LINE_BYTES_MAX:
                self._parts, self._size, self._is_skipping = [], 0, True
                yield None


class _Connection:
    def __init__(
        self,
        crib: Crib,
        crew: Crew,
        guest: Guest,
        heard: int,
        out: int,
        *,
        desk: Desk,
        approval_wait_s: float,
        left: Cancel,
    ) -> None:
        self._crib = crib
        self._crew = crew
        self._guest = guest
        self._heard = heard
        self._left = left
        """Pressed where nothing more shall be read."""
        self._waiting = select.poll()
        for descriptor in (heard, self._left.fileno()):
            self._waiting.register(descriptor, select.POLLIN)
        self._lines = _Lines()
        self._out = out
        self._outbox: deque[bytes] = deque()
        """What is to be written, in this order; whoever flushes writes all of it."""
        self._approval_wait_s = approval_wait_s
        self.desk = desk
        self._writing = threading.Lock()
        self._is_gone = False
        self._ordered = 0
        self._bell = threading.Event()
        """Rung where the thread that looks after calls shall not sleep on."""
        self._sleeps = False
        """Whether it sleeps longer than a call may hold up others."""
        self._era = _Era.UNKNOWN
        self._version = ""
        """The protocol's, of the older era; empty: not initialized."""
        self._elicits = False
        self._lock = threading.Lock()
        self._under_way: dict[Id, _Call] = {}
        self._asked: dict[Id, tuple[_Call, float]] = {}
        self._listens: dict[Id, tuple[str, ...]] = {}
        """The newer era's subscriptions: the notifications that each wants."""
        self._seen = ""
        """The catalog's version that the client was told of."""
        self._rare: _RareThread | None = None

    # -- reading --------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Look after what is under way, until the client has left. Called by the main thread, which runs no
        call: a signal that comes must stop us, not a tool."""
        self._seen = self._crib.version
        self._crib.watch(self._tell_changes)
        self._crew.serve(self)
        ordered, tick_s, told_at = 0, _TICK_S, time.monotonic()
        while not (self._left.is_set or self._is_gone):
            self._sleeps = tick_s > _TICK_S
            if self._ordered != ordered:  # from here on, whoever orders sees whether we sleep
                ordered, tick_s, self._sleeps = self._ordered, _TICK_S, False
            self._bell.wait(tick_s)
            self._bell.clear()
            tick_s = min(tick_s * 2, _TICK_S_MAX if self._crew.under_way else _IDLE_S)
            self._crew.look()
            self._give_up_late()
            if time.monotonic() >= told_at + _IDLE_S:
                told_at = time.monotonic()
                self._tell_changes()

    def _give_up_late(self) -> None:
        if self._asked:
            now = time.monotonic()
            for number, (call, until) in tuple(self._asked.items()):
                if now >= until:
                    self._asked.pop(number, None)
                    call.give_up()

    def read(self) -> bytes:
        try:
            self._waiting.poll()
            chunk = b"" if self._left.is_set else os.read(self._heard, _READ_BYTES)
        except OSError:  # it cannot be read any more
            chunk = b""
        if not chunk:
            self._leave()
        return chunk

    def _leave(self) -> None:
        """Nothing more is read."""
        self._left.set()
        self._bell.set()

    def take(self, chunk: bytes) -> None:
        for line in self._lines.add(chunk):
            self._take(line)

    def _take(self, line: bytes | None) -> None:
        if line is None:
            self.write(wire.failure(None, Fault(wire.PARSE_ERROR, "Parse error: the line is too long")))
            return
        if not line.strip():
            return
        message = wire.read(line)
        if type(message) is Fault:
            self.write(wire.failure(None, message))
            return
        assert type(message) is Message
        match message.shape:
            case Shape.REQUEST:
                try:
                    fault = self._request(message)
                except ToolcribError as error:
                    fault = unread(error)
                except Exception as broken:  # noqa: BLE001 - what was read with it must be taken all the same
                    text = f"the request cannot be answered: {type(broken).__name__}"
                    fault = Fault(wire.INTERNAL_ERROR, text)
                if fault is not None:
                    self.write(wire.failure(message.id, fault))
            case Shape.NOTIFICATION:
                if message.method == "notifications/cancelled":
                    self._cancel(message.params.get("requestId"))
            case Shape.RESPONSE:
                self._hear(message)

    def _request(self, message: Message) -> Fault | None:
        is_newer = message.method != "initialize" and wire.has_envelope(message.params)
        if self._era is _Era.UNKNOWN:
            self._era = _Era.NEWER if is_newer else _Era.OLDER
        if self._era is _Era.NEWER:
            return self._request_newer(message)
        if is_newer:
            return Fault(wire.INVALID_REQUEST, "this connection was opened with initialize")
        return self._request_older(message)

    def _request_newer(self, message: Message) -> Fault | None:
        params, number = message.params, message.id
        if message.method == "initialize":
            requested = params.get("protocolVersion")
            data = {"supported": [*NEWER], "requested": requested if wire.is_id(requested) else ""}
            return Fault(wire.UNSUPPORTED_VERSION, "this connection was opened without initialize", data)
        fault = wire.check_envelope(message, None)
        if fault is not None:
            return fault
        match message.method:
            case "tools/call":
                elicits = wire.elicits(wire.meta(params)[wire.CLIENT_KEY])
                return self._call(message, newer=True, elicits=elicits)
            case "tools/list":
                return self._list(message, newer=True)
            case "server/discover":
                self.write(wire.answer(number, self.desk.discovered(self._guest)))
                return None
            case "subscriptions/listen":
                return self._listen(message)
        return self._respond(message, newer=True)

    def _request_older(self, message: Message) -> Fault | None:
        match message.method:
            case "initialize":
                found = self.desk.initialized(message.params, self._guest)
                if type(found) is Fault:
                    return found
                assert type(found) is tuple
                result, self._version, self._elicits = found
                self.write(wire.answer(message.id, result))
                return None
            case "ping":
                self.write(wire.answer(message.id, b"{}"))
                return None
        if not self._version:
            return Fault(wire.INVALID_PARAMS, "initialize first")
        match message.method:
            case "tools/call":
                return self._call(message, newer=False, elicits=self._elicits)
            case "tools/list":
                return self._list(message, newer=False)
        return self._respond(message, newer=False)

    # -- what is answered -----------------------------------------------------------------------------------

    def _list(self, message: Message, *, newer: bool) -> Fault | None:
        fault = self.desk.check_cursor(message.params)
        if fault is None:
            listing = self.desk.fresh(self._guest) or self.desk.listing(self._guest)
            self.write_long(self.desk.listed(message.id, listing, newer=newer).pieces)
        return fault

    def _call(self, message: Message, *, newer: bool, elicits: bool) -> Fault | None:
        if Right.CALL not in self._guest.rights:
            return MAY_NOT_CALL
        params, number = message.params, message.id
        assert number is not None
        asks = elicits and self.desk.may_ask(self._guest)
        if newer and (params.get("requestState") is not None or params.get("inputResponses") is not None):
            fault = self.desk.answered(self._guest, params)
            if fault is not None:
                return fault
            asks = False
        call = _Call(self, message, newer=newer, asks=asks)
        with self._lock:
            if number in self._under_way:
                return Fault(wire.INVALID_REQUEST, "id: a request of this id is under way")
            self._under_way[number] = call
        fault = call.order()
        if fault is not None:
            self.forget(number, call)
        return fault

    def call_of(self, params: JsonObject) -> ToolCall | Fault:
        try:
            listing = self.desk.known(self._guest) or self.desk.listing(self._guest)
        except ToolcribError as error:
            return unread(error)
        return self.desk.call(self._guest, params, listing.keys)

    def order(self, call: ToolCall, done: Done, cancel: Cancel, report: Report | None, trace: str) -> None:
        error = self._crew.order(call, door=DOOR, done=done, cancel=cancel, progress=report, trace=trace)
        if error is not None:
            done(refused(call, error))
            self.flush()
        self._ordered += 1
        if self._sleeps:
            self._bell.set()

    def _respond(self, message: Message, *, newer: bool) -> Fault | None:
        """Answer any other method, beside the thread that reads: a resource of the host's may be slow."""
        if self._rare is None:
            self._rare = _RareThread(self)
        return self._rare.hand(message, newer=newer)

    def respond(self, message: Message, *, newer: bool) -> None:
        try:
            found = self.desk.respond(message.method, message.params, self._guest, newer)
        except ToolcribError as error:
            found = unread(error)
        except Exception as broken:  # noqa: BLE001 - the one catch-all of this thread's boundary
            text = f"the request cannot be answered: {type(broken).__name__}"
            found = Fault(wire.INTERNAL_ERROR, text)
        if type(found) is bytes:
            self.write(wire.answer(message.id, found))
        else:
            assert type(found) is Fault
            self.write(wire.failure(message.id, found))

    def _cancel(self, number: object) -> None:
        """Nothing is answered to a request that was cancelled."""
        if not wire.is_id(number):
            return
        with self._lock:
            call = self._under_way.pop(number, None)
            self._listens.pop(number, None)
            # Attack: what was called off runs after all, because its question is answered later.
            for asked in [asked for asked, (one, _) in self._asked.items() if one is call]:
                del self._asked[asked]
        if call is not None:
            call.stop()

    def is_under_way(self, number: Id, call: _Call) -> bool:
        """Whether the request waits for its answer. False: it was answered, or cancelled, and another one may
        have come with its id."""
        return self._under_way.get(number) is call

    def forget(self, number: Id, call: _Call) -> bool:
        """The request is answered now. False: it was cancelled, so that it must not be."""
        with self._lock:
            if not self.is_under_way(number, call):
                return False
            del self._under_way[number]
            return True

    # -- asking a person ------------------------------------------------------------------------------------

    def ask(self, call: _Call, question: Question) -> bool:
        with self._lock:
            if len(self._asked) >= _ASKED_MAX or call not in self._under_way.values():
                return False
            number = secrets.token_hex(16)
            self._asked[number] = (call, time.monotonic() + self._approval_wait_s)
        self.write(wire.request(number, "elicitation/create", question.params))
        return True

    def _hear(self, message: Message) -> None:
        found = self._asked.pop(message.id, None) if message.id is not None else None
        if found is not None:
            said = message.params.get("result")
            # Beside the thread that reads: keeping an answer waits for the disk.
            threading.Thread(target=found[0].go_on, args=(said,), name="answer", daemon=True).start()

    @property
    def guest(self) -> Guest:
        return self._guest

    # -- what changes ---------------------------------------------------------------------------------------

    def _listen(self, message: Message) -> Fault | None:
        number = message.id
        assert number is not None
        found = self.desk.subscribed(number, message.params)
        if type(found) is Fault:
            return found
        assert type(found) is tuple
        kept, acknowledged = found
        with self._lock:
            if len(self._listens) >= _LISTENS_MAX:
                return Fault(wire.INTERNAL_ERROR, "too many subscriptions")
            self._listens[number] = kept
        self.write(acknowledged)
        return None

    def _tell_changes(self) -> None:
        """In whatever thread replaced the catalog, or saw that something was switched off or on."""
        version = self._crib.version
        with self._lock:
            if version == self._seen:
                return
            self._seen = version
            listens = tuple(self._listens.items())
        if self._era is _Era.OLDER and self._version:
            for method in CHANGES:
                self.write(wire.notification(method))
        for number, kept in listens:
            for method in kept:
                self.write(self.desk.changed(number, method))

    # -- writing --------------------------------------------------------------------------------------------

    def write(self, message: bytes) -> None:
        """One message, whole, from any thread."""
        self._outbox.append(message)
        self.flush()

    def write_long(self, pieces: Iterable[bytes]) -> None:
        """The same with a message that is put together while it is written."""
        with self._writing:
            for piece in pieces:
                self._write(piece)
            self._write(b"\n")

    def write_of(self, number: Id, call: _Call, message: bytes) -> None:
        """A message that belongs to a request, and must not come after its answer."""
        with self._lock:  # whoever answers forgets first, and writes then
            if not self.is_under_way(number, call):
                return
            self._outbox.append(message)
        self.flush()

    def put(self, answer: bytes) -> None:
        """An answer, to be written when the crew has told all that ended together."""
        self._outbox.append(answer)

    def flush(self) -> None:
        outbox = self._outbox
        with self._writing:
            messages = [outbox.popleft() for _ in range(len(outbox))]  # nobody else takes any meanwhile
            if messages:
                messages.append(b"")
                self._write(b"\n".join(messages))

    def _write(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest and not self._is_gone:
            try:
                rest = rest[os.write(self._out, rest) :]
            except OSError:  # the client is gone: there is nobody to tell
                self._is_gone = True
                self._bell.set()

    def close(self, drain_s: float) -> None:
        """The client said all that it will say: finish what it asked for."""
        self._leave()
        self._crew.drain(drain_s)
        if self._asked or self._listens:
            last = threading.Thread(target=self._say_last, name="last words", daemon=True)
            last.start()
            last.join(_LAST_S)
        if self._rare is not None:
            self._rare.close(drain_s)
        # Attack: a client that holds its end open and reads nothing, so that we stay for ever.
        has_written = self._writing.acquire(timeout=_LAST_S)
        self._is_gone = True
        if has_written:
            self._writing.release()

    def _say_last(self) -> None:
        while self._asked:
            self._asked.popitem()[1][0].give_up()
        for number in tuple(self._listens):
            self.write(self.desk.unsubscribed(number))


class _Call:
    """A call on its way. Its methods are called from the reading thread and from those that run calls."""

    def __init__(self, connection: _Connection, message: Message, *, newer: bool, asks: bool) -> None:
        self._connection = connection
        self._message = message
        assert message.id is not None
        self._number: Id = message.id
        self._newer = newer
        self._asks = asks
        self._cancel = Cancel()
        self._call: ToolCall | None = None
        self._question: Question | None = None
        around = wire.meta(message.params)
        token = around.get("progressToken")
        self._trace = wire.trace(message.params)
        self._report = self._tell if wire.is_id(token) else None
        self._token = token

    def order(self) -> Fault | None:
        call = self._connection.call_of(self._message.params)
        if type(call) is Fault:
            return call
        assert type(call) is ToolCall
        self._call = call
        self._connection.order(call, self._done, self._cancel, self._report, self._trace)
        return None

    def stop(self) -> None:
        self._cancel.set()

    def _tell(self, done: float, total: float | None, message: str) -> None:
        params: JsonObject = {"progressToken": self._token, "progress": done}
        if total is not None:
            params["total"] = total
        if message:
            params["message"] = message
        self._connection.write_of(self._number, self, wire.notification("notifications/progress", params))

    def _done(self, result: ToolResult) -> None:
        try:
            answer = self._answer(result)
        except Exception as broken:  # noqa: BLE001 - the one catch-all of this thread's boundary
            fault = Fault(wire.INTERNAL_ERROR, f"the answer cannot be written: {type(broken).__name__}")
            answer = wire.failure(self._number, fault)
        if answer is not None and self._connection.forget(self._number, self):
            self._connection.put(answer)

    def _answer(self, result: ToolResult) -> bytes | None:
        """The response; None: a person is being asked first."""
        assert self._call is not None
        desk, number = self._connection.desk, self._number
        _, written = desk.write(number, self._call, result, newer=self._newer)
        if not self._asks or result.error is None or result.error.kind is not Kind.NEEDS_APPROVAL:
            return written
        question = desk.question(result, written)
        if question is None:
            return written
        if self._newer:
            asked = desk.asked(self._connection.guest, self._message.params, question)
            return wire.answer(number, asked)
        self._question = question
        return None if self._connection.ask(self, question) else written

    def go_on(self, said: object) -> None:
        """What the client's person said to the question."""
        assert self._question is not None
        self._asks = False
        try:
            heard = self._connection.desk.decide(self._connection.guest, self._question.approval_id, said)
        except Exception:  # noqa: BLE001 - the one catch-all of this thread's boundary
            heard = False
        if not heard:
            self.give_up()
            return
        # One of its own for each order, which closes it. Set anew first: who stops meanwhile sets either.
        before, self._cancel = self._cancel, Cancel()
        if before.is_set:
            return
        fault = self.order()
        if fault is not None and self._connection.forget(self._number, self):
            self._connection.write(wire.failure(self._number, fault))

    def give_up(self) -> None:
        """Nobody answered: the call says that it waits."""
        assert self._question is not None
        if self._connection.forget(self._number, self):
            self._connection.write(self._question.otherwise)


class _RareThread:
    """The thread that answers what is asked rarely, one request after the other."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._waiting: queue.Queue[tuple[Message, bool] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="mcp resources", daemon=True)
        self._thread.start()

    def hand(self, message: Message, *, newer: bool) -> Fault | None:
        # Attack: a client asks on and on while one resource is slow, until our memory is full.
        if self._waiting.qsize() >= _RARE_MAX:
            return Fault(wire.INTERNAL_ERROR, "too many requests wait; ask again when one is answered")
        self._waiting.put((message, newer))
        return None

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            message, newer = asked
            self._connection.respond(message, newer=newer)

    def close(self, timeout_s: float) -> None:
        """Wait until all is answered, for so long."""
        self._waiting.put(None)
        self._thread.join(timeout_s)
