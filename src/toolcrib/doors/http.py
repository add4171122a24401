"""The HTTP API: ``/v1``, its OpenAPI document, health and metrics, over ASGI.

Translates and decides nothing: who may come in is decided before (``_entrance.py``), what a call may do by
the engine. A call that reached the engine is answered with its result document, under the status of its
error's kind; everything else that goes wrong is a problem document. ``ROUTES``, at the end, says what there
is: requests are checked by it and ``/openapi.json`` is written from it.

What takes time (files, the store, the journal) is done in threads; calls are the crew's; nobody's thread
waits for a person.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

import toolcrib
from toolcrib import jsontext
from toolcrib.app import Crib
from toolcrib.catalog.catalog import is_within
from toolcrib.doors import _accounts, _documents, _reach, _shapes, _streams
from toolcrib.doors._answers import LOOK_EVERY_S, Answers
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import SAFE_HEADERS
from toolcrib.doors._events import EventKind, Events
from toolcrib.doors._health import Health
from toolcrib.doors._meters import CONTENT_TYPE, Meters
from toolcrib.doors._routes import (
    Parameter,
    Reply,
    Route,
    Table,
    Wrong,
    methods_of,
    openapi,
    read_headers,
    read_object,
    read_path,
    read_query,
    shape,
)
from toolcrib.doors._shapes import PAGE, SHAPES
from toolcrib.doors._shares import Turns, share_of
from toolcrib.doors._web import (
    BODY_BYTES_MAX,
    BODY_TIMEOUT_S,
    NO_STORE,
    Answer,
    BodyTooLarge,
    BodyTooSlow,
    ClientLeft,
    Headers,
    Receive,
    Scope,
    Send,
    header,
    json_answer,
    json_bytes,
    media_type,
    problem,
    read_body,
    send_answer,
    squeezed,
    unless_left,
)
from toolcrib.errors import (
    KINDS,
    ApprovalError,
    EditError,
    Kind,
    StoreError,
    ToolcribError,
    UnknownTool,
    UsageError,
)
from toolcrib.journal.index import Mark, WantedRecords
from toolcrib.journal.reading import time_text
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    Approval,
    ApprovalState,
    Guest,
    JsonOnStdin,
    Right,
    RunProcess,
    Tool,
    ToolCall,
    ToolResult,
)
from toolcrib.sandbox import Cancel
from toolcrib.trust.policy import switch_of

T = TypeVar("T")
_LOG: Final = logging.getLogger("toolcrib.http")
DOOR: Final = "http"
PAGE_BYTES: Final = 64 << 10
_IN_THREAD_BYTES: Final = 256 << 10
_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*([0-9]{1,6})\s*(?:$|[,;])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NUL: Final = "\x00"

_PRIVATE: Final[Headers] = ((b"cache-control", b"private, no-cache"),)
"""May be kept by the client alone, and is asked about each time (by its tag)."""


class Request(Struct, frozen=True, kw_only=True):
    """A request that fits its route."""

    scope: Scope
    receive: Receive
    send: Send
    guest: Guest
    path: Mapping[str, str]
    query: Mapping[str, JsonValue]
    headers: Mapping[str, JsonValue]
    body: JsonObject
    content: bytes
    """The body as it came."""
    is_head: bool


Handler: TypeAlias = "Callable[[Api, Request], Awaitable[Answer | None]]"
"""None: it has answered by itself."""


class Api:
    """The API of one crib."""

    def __init__(
        self,
        crib: Crib,
        crew: Crew,
        events: Events,
        *,
        health: Health,
        meters: Meters,
        body_bytes_max: int = BODY_BYTES_MAX,
        body_timeout_s: float = BODY_TIMEOUT_S,
        approval_wait_s_max: float = _shapes.WAIT_S_MAX,
        turns: Turns | None = None,
    ) -> None:
        self._crib = crib
        self._crew = crew
        self._events = events
        self._health = health
        self._meters = meters
        self._bytes_max = body_bytes_max
        self._body_timeout_s = body_timeout_s
        self._wait_s_max = approval_wait_s_max
        self._table = Table(ROUTES)
        self._document: bytes = jsontext.compact(document())
        self._streams = _streams.Streams(crib, events)
        self._turns = turns or Turns()
        self._verifying = Turns(1)
        self._answers = Answers(crib, events)

    def _work(
        self, request: Request, work: Callable[..., T], /, *given: object, **named: object
    ) -> Awaitable[T]:
        """Run something that takes time in a thread, in its caller's turn."""
        return self._turns.run(share_of(request.guest), work, *given, **named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        is_head = scope["method"] == "HEAD"
        try:
            answer = await self._answered(scope, receive, send)
        except ClientLeft:
            return
        except BodyTooLarge:
            more = ((b"connection", b"close"),)
            answer = problem(
                413, "the body is larger than this server reads", hint="send less at once", headers=more
            )
        except BodyTooSlow:
            answer = problem(408, "the body did not come in time", headers=((b"connection", b"close"),))
        except Wrong as wrong:
            again = () if wrong.again_s is None else ((b"retry-after", b"%d" % wrong.again_s),)
            answer = problem(wrong.status, wrong.detail, hint=wrong.hint, headers=again)
        except ToolcribError as error:
            answer = problem(_status(error), error.message, hint=error.hint)
        except Exception:  # noqa: BLE001 - the one catch-all of this door
            _LOG.exception("a request was not answered as it should be")
            answer = problem(500, "something broke in the server; its log says what")
        if answer is None:
            return
        if len(answer.body) > _IN_THREAD_BYTES:
            answer = await self._turns.run(share_of(scope["guest"]), squeezed, answer, scope)
        else:
            answer = squeezed(answer, scope)
        answer = replace(answer, headers=(*answer.headers, *SAFE_HEADERS))
        await send_answer(send, answer, head=is_head)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
        routes, path = self._table.find(raw_path)
        method: str = scope["method"]
        if not routes:
            hint = "/openapi.json describes what there is"
            if raw_path.startswith(b"/v1/tools/"):
                hint = f"a name is one segment: write its / as %2F; {hint}"
            raise Wrong(404, "there is nothing at this path", hint)
        allow = ((b"allow", methods_of(routes)),)
        if method == "OPTIONS":
            return Answer(204, headers=(*allow, *NO_STORE))
        route = routes.get("GET" if method == "HEAD" else method)
        if route is None:
            hint = f"use {methods_of(routes).decode('ascii')}"
            return problem(405, f"{method[:20]} means nothing here", hint=hint, headers=allow)
        guest: Guest = scope["guest"]
        if route.right is not None and route.right not in guest.rights:
            raise _forbidden(route.right)
        _check_accept(scope, route.media)
        read_path(route, path)
        query = read_query(route, scope["query_string"])
        headers = read_headers(route, scope["headers"])
        body: JsonObject = {}
        content = b""
        if route.body is not None:
            # Attack: what a form of any page may send without asking (text/plain, urlencoded, multipart).
            if media_type(scope) != "application/json":
                raise Wrong(415, "only JSON is read here", "send it as Content-Type: application/json")
            content = await read_body(receive, self._bytes_max, timeout_s=self._body_timeout_s)
            body = read_object(route, content)
        request = Request(
            scope=scope,
            receive=receive,
            send=send,
            guest=guest,
            path=path,
            query=query,
            headers=headers,
            body=body,
            content=content,
            is_head=method == "HEAD",
        )
        return await route.handle(self, request)

    # -- what there is --------------------------------------------------------------------------------------

    async def tools(self, request: Request) -> Answer:
        return await self._tagged(request, lambda: self._tools(request))

    def _tools(self, request: Request) -> JsonObject:
        query, guest = request.query, request.guest
        start, count = int(query.get("cursor", 0)), query.get("page_size", PAGE)
        if "dialect" in query:
            return self._declared(request)
        if "message" in query:
            selected = self._crib.select(
                query["message"], limit=query.get("limit"), caller=guest.name, reach=guest.reach
            )
            found = [(self._crib.find(choice.key), choice) for choice in selected.chosen]
            rows = [
                {**row, "score": choice.score, "because": choice.because}
                for tool, choice in found
                if (row := self._row(tool, query)) is not None
            ]
            following = str(start + count) if start + count < len(rows) else None
            return {"tools": rows[start : start + count], "next": following, "note": selected.note}
        rows = []
        tools = self._crib.tools
        for number in range(start, len(tools)):
            tool = tools[number]
            if guest.reach is not None and not is_within(guest.reach, tool):
                continue
            row = self._row(tool, query)
            if row is not None and len(rows) == count:
                return {"tools": rows, "next": str(number)}
            if row is not None:
                rows.append(row)
        return {"tools": rows, "next": None}

    def _row(self, tool: Tool, query: Mapping[str, JsonValue]) -> JsonObject | None:
        """A tool's line, where the filters let it through."""
        if query.get("format") not in (None, tool.origin.format):
            return None
        if query.get("effect") not in (None, tool.effect.value):
            return None
        trust = self._crib.vet(tool).trust.value
        if query.get("trust") not in (None, trust):
            return None
        return {**_documents.tool_row(tool), "trust": trust}

    def _declared(self, request: Request) -> JsonObject:
        """In a provider's form: whole, because it is what goes into a request's ``tools``."""
        query, guest, crib = request.query, request.guest, self._crib
        offered = crib.catalog.offered(guest.reach)
        note = ""
        if "message" in query:
            selected = crib.select(
                query["message"], limit=query.get("limit"), caller=guest.name, reach=guest.reach
            )
            note = selected.note
            chosen = {choice.key for choice in selected.chosen}
            offered = [tool for tool in offered if tool.key in chosen]
        if offered and query.keys() & {"format", "effect", "trust"}:
            offered = [tool for tool in offered if self._row(tool, query) is not None]
            note = note if offered else "no tool fits these filters"
        declared = crib.declare(
            query["dialect"],
            names=[tool.key for tool in offered],
            mode=query.get("tool_mode", "plain"),
            caller=guest.name,
            reach=guest.reach,
        )
        return {
            "tools": declared.payload,
            "next": None,
            "note": note or declared.note,
            "left_out": [{"tool": left.tool, "because": left.because} for left in declared.left_out],
            "losses": [loss for loss in _documents.losses_of(declared) if loss["pointer"] or loss["keyword"]],
        }

    async def tool(self, request: Request) -> Answer:
        return await self._tagged(request, lambda: self._tool(request))

    def _tool(self, request: Request) -> JsonObject:
        tool = self._find(request)
        vetted = self._crib.vet(tool)
        return {
            **_documents.tool_record(tool),
            "trust": vetted.trust.value,
            "blocked_by": vetted.blocked_by or None,
            "enabled": switch_of(tool, self._crib.disabled(), time.time()) is None,
        }

    def _find(self, request: Request) -> Tool:
        """The tool that a path names. Raises UnknownTool."""
        return _reach.find(self._crib, request.path["name"], request.guest.reach)

    async def skills(self, request: Request) -> Answer:
        return await self._tagged(request, lambda: self._skills(request))

    def _skills(self, request: Request) -> JsonObject:
        guest, crib = request.guest, self._crib
        found = crib.skill_texts(caller=guest.name, reach=guest.reach)
        return {
            "context_mode": crib.config.context_mode,
            "instructions": crib.instructions(caller=guest.name, reach=guest.reach),
            "skills": [
                {
                    "name": skill.name,
                    "description": skill.description,
                    "text": skill.text,
                    "withheld": skill.withheld or None,
                }
                for skill in found
            ],
        }

    async def problems(self, request: Request) -> Answer:
        return await self._tagged(request, lambda: self._problems(request))

    def _problems(self, request: Request) -> JsonObject:
        reach, crib = request.guest.reach, self._crib
        count = crib.catalog.counted if reach is None else len(_reach.near(crib, reach))
        found = _reach.problems(crib, reach)
        return {"tools": count, "problems": [_documents.problem_record(each) for each in found]}

    async def select(self, request: Request) -> Answer:
        body, guest = request.body, request.guest
        selected = await self._work(
            request,
            self._crib.select,
            body["message"],
            context=body.get("context"),
            limit=body.get("limit"),
            caller=guest.name,
            reach=guest.reach,
        )
        chosen = [_documents.choice_row(choice) for choice in selected.chosen]
        if not body.get("explain"):
            return json_answer(chosen, headers=NO_STORE)
        left_out = [_documents.choice_row(choice) for choice in selected.left_out]
        whole = {"selected": chosen, "left_out": left_out, "note": selected.note}
        return json_answer(whole, headers=NO_STORE)

    async def explain(self, request: Request) -> Answer:
        guest = request.guest

        def explained() -> JsonObject:
            tool = self._find(request)
            found = self._crib.explain(tool.key, request.body.get("arguments"), caller=guest.name)
            document = _accounts.explanation_document(found)
            return document if Right.ADMIN in guest.rights else _accounts.without_places(document)

        return json_answer(await self._work(request, explained), headers=NO_STORE)

    # -- calling --------------------------------------------------------------------------------------------

    async def call(self, request: Request) -> Answer:
        body, guest = request.body, request.guest
        if self._health.is_draining:
            raise Wrong(
                503,
                "the server is stopping, and takes no more calls",
                "call another one, or later",
                again_s=10,
            )
        if body.get("context") and Right.ADMIN not in guest.rights:
            # Attack: a remote caller, or the model behind it, says itself whose data a tool is to work on.
            raise Wrong(
                403,
                "context comes from the host: it needs the right `admin`",
                "leave context out, or have a token made with the right admin",
            )
        key, sent = body.get("idempotency_key"), request.headers.get("idempotency-key")
        if key is not None and sent is not None and key != sent:
            raise Wrong(422, "Idempotency-Key and idempotency_key differ", "send one of them")
        call = self._asked(request, key if key is not None else sent)
        wait_s = min(self._wait_s(request), self._wait_s_max)
        trace = (header(request.scope, b"traceparent") or b"").decode("latin-1")
        result = await unless_left(request.receive, self._called(guest, call, wait_s, trace))
        status = 200 if result.error is None else KINDS[result.error.kind].http_status or 503
        document = _documents.result_document(result)
        if result.error is not None and Right.ADMIN not in guest.rights:
            details = document["error"]["details"]
            if isinstance(details, dict) and "rule" in details:  # Attack: where the host's files lie
                document["error"]["details"] = {**details, "rule": _accounts.base_name(details["rule"])}
        details = None if result.error is None else result.error.details
        again_s = details.get("again_s") if isinstance(details, dict) else None
        again = () if again_s is None else ((b"retry-after", b"%d" % max(1, math.ceil(again_s))),)
        return json_answer(document, status, (*NO_STORE, *again))

    def _asked(self, request: Request, idempotency_key: str | None) -> ToolCall:
        body, guest, name = request.body, request.guest, request.path["name"]
        arguments, raw, defect = body.get("arguments", {}), "", None
        text = request.content.decode("utf-8")
        if "\\u0000" in text and _has_nul(arguments):
            # Attack: a NUL at which the next reader of a path or an argument ends.
            arguments, defect = None, "a NUL character (\\u0000) is not allowed"
        elif "arguments" in body and self._is_verbatim(name):
            span = jsontext.locate(text, {("arguments",)})[("arguments",)]
            raw = text[span.start : span.end]
        return ToolCall(
            id=self._crib.new_call_id(),
            tool=name,
            arguments=arguments,
            raw=raw,
            defect=defect,
            caller=guest.name,
            reach=guest.reach,
            context=body.get("context") or {},
            timeout_s=body.get("timeout_s"),
            dry_run=body.get("dry_run", False),
            idempotency_key=idempotency_key,
        )

    def _is_verbatim(self, name: str) -> bool:
        """Whether the tool's format promises it the text of the arguments as it came."""
        try:
            invocation = self._crib.catalog.find(name).invocation
        except UnknownTool:
            return False
        encoding = invocation.encoding if isinstance(invocation, RunProcess) else None
        return isinstance(encoding, JsonOnStdin) and encoding.verbatim

    @staticmethod
    def _wait_s(request: Request) -> float:
        """How long a call may wait for a person: as its body says, else as ``Prefer`` does."""
        if "approval_wait_s" in request.body:
            return float(request.body["approval_wait_s"])
        found = _WAIT.search((header(request.scope, b"prefer") or b"").decode("latin-1"))
        return float(found[1]) if found is not None else 0.0

    async def _called(self, guest: Guest, call: ToolCall, wait_s: float, trace: str) -> ToolResult:
        before = self._events.latest
        share = share_of(guest)
        result = await self._crew.call(call, door=DOOR, cancel=Cancel(), trace=trace, share=share)
        error = result.error
        if wait_s <= 0 or error is None or error.kind is not Kind.NEEDS_APPROVAL:
            return result
        details = error.details if isinstance(error.details, dict) else {}
        approval_id = details.get("approval_id")
        if not isinstance(approval_id, str) or not await self._was_answered(approval_id, before, wait_s):
            return result
        again = replace(call, id=self._crib.new_call_id())
        return await self._crew.call(again, door=DOOR, cancel=Cancel(), trace=trace, share=share)

    async def _was_answered(self, approval_id: str, before: int, wait_s: float) -> bool:
        """Wait for an answer, given here or by another program. No thread waits, and no listener."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        with self._answers.heard(approval_id, before) as heard:
            while not heard.is_set():
                left_s = until - loop.time()
                if left_s <= 0 or self._health.is_draining:
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                        await heard.wait()
        return True

    async def result(self, request: Request) -> Answer:
        call_id, offset = request.path["call_id"], request.query.get("offset", 0)
        limit = request.query.get("limit", PAGE_BYTES)

        def part() -> JsonObject:
            found = _reach.result_part(self._crib, request.guest, call_id, offset, limit)
            if found is None:
                raise Wrong(404, f"no result of {call_id} is kept", "only long results are, for a time")
            return found

        return json_answer(await self._work(request, part), headers=NO_STORE)

    # -- what waits for a person ----------------------------------------------------------------------------

    async def approvals(self, request: Request) -> Answer:
        wanted = request.query.get("state")
        found = await self._work(request, self._shown, request.guest)
        items = [_accounts.approval_item(one) for one in found if wanted in (None, one.state.value)]
        return json_answer(items, headers=NO_STORE)

    def _shown(self, guest: Guest) -> list[Approval]:
        sees = self._sees(guest)
        return [one for one in self._crib.approvals() if sees is None or sees(one.key)]

    async def answer(self, request: Request) -> Answer:
        approval_id, body, guest = request.path["id"], request.body, request.guest

        def answered() -> Approval:
            if not any(one.id == approval_id for one in self._shown(guest)):
                raise Wrong(404, f"there is no approval {approval_id}", "GET /v1/approvals lists them")
            return self._crib.answer(
                approval_id,
                body["decision"],
                arguments=body.get("arguments"),
                because=body.get("because"),
                for_s=body.get("for_s"),
                by=guest.name,
            )

        told = await self._work(request, answered)
        item = _accounts.approval_item(told)
        self._events.tell(
            EventKind.APPROVAL_ANSWERED,
            {"id": told.id, "key": told.key, "state": told.state.value, "by": guest.name},
        )
        return json_answer(item, headers=NO_STORE)

    # -- what happened --------------------------------------------------------------------------------------

    def _journal(self) -> str | None:
        state = self._crib.config.state
        return None if state is None else _accounts.journal_of(state)

    def _sees(self, guest: Guest) -> Callable[[object], bool] | None:
        return _reach.sees(self._crib, guest.reach)

    async def audit(self, request: Request) -> Answer:
        folder, query = self._journal(), request.query
        if folder is None:
            return json_answer({"records": [], "next": None}, headers=NO_STORE)
        wanted = WantedRecords(
            what=query.get("what"),
            key=query.get("key"),
            outcome=query.get("outcome"),
            since=_moment(query.get("since")),
            until=_moment(query.get("until")),
        )

        def page() -> JsonObject:
            return _accounts.page_of(
                folder,
                wanted,
                before=Mark.read(query.get("cursor", "")),
                count=query.get("page_size", PAGE),
                sees=self._sees(request.guest),
            )

        return json_answer(await self._work(request, page), headers=NO_STORE)

    async def audited(self, request: Request) -> Answer:
        call_id = request.path["call_id"]
        found = await self._work(request, self._recorded, request.guest, call_id)
        if found is None:
            raise Wrong(404, f"no call {call_id} was recorded", "GET /v1/audit lists calls")
        return json_answer(found, headers=NO_STORE)

    def _recorded(self, guest: Guest, call_id: str) -> JsonObject | None:
        folder = self._journal()
        return None if folder is None else _accounts.call_document(folder, call_id, self._sees(guest))

    async def verify(self, request: Request) -> Answer:
        state = self._crib.config.state
        if state is None:
            raise Wrong(503, "there is no state folder, so there is no journal")
        async with self._verifying.turn(share_of(request.guest)):
            # Attack: many verifications at once, each reading the whole journal.
            verdict = await self._work(request, _accounts.verdict_of, state)
        return json_answer(_accounts.verdict_document(verdict), headers=NO_STORE)

    async def stats(self, request: Request) -> Answer:
        folder, query = self._journal(), request.query
        if folder is None:
            raise Wrong(503, "there is no state folder, so there is no journal")

        def counted() -> JsonObject:
            return _accounts.stats_document(
                folder,
                now=time.time(),
                window_s=query.get("window_s", 86_400),
                buckets=query.get("buckets", 48),
                key=query.get("key"),
                sees=self._sees(request.guest),
            )

        return json_answer(await self._work(request, counted), headers=NO_STORE)

    # -- switching ------------------------------------------------------------------------------------------

    async def disable(self, request: Request) -> Answer:
        body = request.body

        def off() -> JsonObject:
            tool = self._find(request)
            reason, for_s = body.get("reason", ""), body.get("for_s")
            until = self._crib.disable(tool.key, reason=reason, for_s=for_s, by=request.guest.name).until
            shown = None if until is None else time_text(until)
            return {"tool": tool.key, "enabled": False, "until": shown, "reason": reason or None}

        return json_answer(await self._work(request, off), headers=NO_STORE)

    async def enable(self, request: Request) -> Answer:
        def on() -> JsonObject:
            tool = self._find(request)
            self._crib.enable(tool.key, by=request.guest.name)
            return {"tool": tool.key, "enabled": True, "until": None, "reason": None}

        return json_answer(await self._work(request, on), headers=NO_STORE)

    # -- what happens ---------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Answer | None:
        if request.is_head:
            return Answer(200, headers=_streams.HEADERS)
        heard = request.headers.get("last-event-id")
        await self._streams.tell(request.guest, heard, request.receive, request.send)
        return None

    # -- how the server stands ------------------------------------------------------------------------------

    async def health(self, request: Request) -> Answer:
        if Right.ADMIN not in request.guest.rights:
            _, summary = self._health.ready()
            return json_answer(summary, headers=NO_STORE)
        report = await self._work(request, self._health.report)
        status = "ok" if report.get("ready", True) else "not ready"
        return json_answer({"status": status, **report}, headers=NO_STORE)

    async def alive(self, request: Request) -> Answer:
        return json_answer(self._health.alive(), headers=NO_STORE)

    async def ready(self, request: Request) -> Answer:
        is_ready, why = self._health.ready()
        return json_answer(why, 200 if is_ready else 503, NO_STORE)

    async def metrics(self, request: Request) -> Answer:
        if request.guest.reach is not None:
            # Attack: a caller watches how often tools beyond its reach are called, and how that ends. The
            # counts are of all tools together, and cannot be cut down to some.
            raise Wrong(
                403,
                "this counts the calls of all tools, also of those beyond your reach",
                "have a token made that reaches every tool",
            )
        text = await self._work(request, self._meters.text)
        return Answer(200, text, ((b"content-type", CONTENT_TYPE), *NO_STORE))

    async def openapi(self, request: Request) -> Answer:
        return _with_tag(request, self._document)

    async def _tagged(self, request: Request, make: Callable[[], JsonObject]) -> Answer:
        """An answer with a strong tag of its very bytes, or that they are as they were."""
        body = await self._work(request, lambda: jsontext.compact(make()))
        return _with_tag(request, body)


def _with_tag(request: Request, body: bytes) -> Answer:
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode("ascii")
    known = header(request.scope, b"if-none-match") or b""
    given = [each.strip().removeprefix(b"W/").replace(b'-gzip"', b'"') for each in known.split(b",")[:20]]
    kept: Headers = ((b"etag", tag), *_PRIVATE)
    if tag in given or given == [b"*"]:
        return Answer(304, headers=kept)
    return json_bytes(body, headers=kept)


def _status(error: ToolcribError) -> int:
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    return 500


_STATUSES: Final[Mapping[type[ToolcribError], int]] = {
    UnknownTool: 404,
    EditError: 422,
    ApprovalError: 409,
    StoreError: 503,
    UsageError: 422,
}


def _forbidden(right: Right) -> Wrong:
    return Wrong(403, f"this needs the right `{right.value}`", "have a token made that has it")


def _check_accept(scope: Scope, media: str) -> None:
    accept = header(scope, b"accept")
    if accept is None or not accept.strip():
        return
    kind = media.partition("/")[0]
    for part in accept.decode("latin-1").lower().split(",")[:50]:
        name, *parameters = [piece.strip() for piece in part.split(";")]
        takes = name in ("*/*", media, f"{kind}/*") or name == "application/problem+json"
        if takes and not any(re.fullmatch(r"q=0(\.0{0,3})?", each.replace(" ", "")) for each in parameters):
            return
    raise Wrong(406, f"this is answered as {media}", f"send Accept: {media}")


def _moment(text: str | None) -> float | None:
    """A day, a time or a duration ago, as seconds since the epoch."""
    if text is None:
        return None
    if text[-1] in _UNIT_S:
        return time.time() - int(text[:-1]) * _UNIT_S[text[-1]]
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


def _has_nul(value: JsonValue) -> bool:
    return any(
        _NUL in text
        for _, each in jsontext.walk(value)
        for text in (each if isinstance(each, dict) else (each,))
        if isinstance(text, str)
    )


# -- the table ----------------------------------------------------------------------------------------------

_JSON: Final = "application/json"
_STREAM: Final = "text/event-stream"
_TEXT: Final = "text/plain"
_PROBLEM: Final = {"application/problem+json": shape("Problem")}
_RESULT: Final = {_JSON: shape("Result")}
_TAG: Final = {"ETag": "The tag of these very bytes, for If-None-Match."}

_NAME: Final = Parameter(
    name="name",
    place="path",
    about="A key or a bare name, as one percent-encoded segment (`rye%2Ffile-system%2Fwrite`).",
    schema=_shapes.NAME,
)
_CALL_ID: Final = Parameter(
    name="call_id", place="path", about="The id of a call, from its result.", schema=_shapes.CALL_ID
)
_KNOWN_TAG: Final = Parameter(
    name="If-None-Match", place="header", about="A tag that was given before.", schema={"type": "string"}
)
_KEY: Final = Parameter(
    name="key", about="Only of tools with this key; * stands for anything.", schema=_shapes.FILTER
)
_UNCHANGED: Final = Reply(about="It is as it was when this tag was given.", headers=_TAG)


def _given(schema: JsonObject, about: str = "As asked.") -> Reply:
    return Reply(about=about, contents={_JSON: schema})


def _tagged_reply(schema: JsonObject) -> dict[int, Reply]:
    return {200: Reply(about="As asked.", contents={_JSON: schema}, headers=_TAG), 304: _UNCHANGED}


def _call_replies() -> dict[int, Reply]:
    kinds: dict[int, list[Kind]] = {}
    for kind, row in KINDS.items():
        kinds.setdefault(row.http_status or 503, []).append(kind)
    failed = {
        status: Reply(about=f"The call ended with: {', '.join(some)}.", contents=_RESULT)
        for status, some in kinds.items()
    }
    return {200: Reply(about="The call succeeded.", contents=_RESULT), **failed}


ROUTES: Final[tuple[Route[Handler], ...]] = (
    Route(
        method="GET",
        path="/v1/tools",
        name="list_tools",
        title="The catalog, or the part that a message should see, in our form or a provider's",
        about=(
            "With `message` the selected tools, with score and reason. With `dialect` exactly what goes into "
            "a provider's request as `tools`, whole, with what was left out or lost."
        ),
        handle=Api.tools,
        parameters=(
            Parameter(name="dialect", about="A provider's form.", schema=_shapes.DIALECT),
            Parameter(
                name="tool_mode",
                about="With dialect: strict lets the provider enforce the schema, where it can.",
                schema=_shapes.one_of(["plain", "strict"]),
            ),
            Parameter(name="message", about="Only what it should see.", schema=_shapes.QUERY_MESSAGE),
            Parameter(name="limit", about="With message: at most so many tools.", schema=_shapes.LIMIT),
            Parameter(name="format", about="Only tools of this format.", schema=_shapes.FORMAT),
            Parameter(name="effect", about="Only tools with this effect.", schema=_shapes.EFFECT),
            Parameter(name="trust", about="Only tools with this trust.", schema=_shapes.TRUST),
            Parameter(
                name="cursor", about="`next` of the page before, as it was given.", schema=_shapes.TOOL_CURSOR
            ),
            Parameter(name="page_size", about="At most so many at once.", schema=_shapes.PAGE_SIZE),
            _KNOWN_TAG,
        ),
        replies=_tagged_reply(shape("ToolPage")),
    ),
    Route(
        method="GET",
        path="/v1/tools/{name}",
        name="show_tool",
        title="One whole record",
        handle=Api.tool,
        parameters=(_NAME, _KNOWN_TAG),
        replies=_tagged_reply(shape("Tool")),
    ),
    Route(
        method="POST",
        path="/v1/tools/{name}/call",
        name="call_tool",
        title="Call a tool",
        about=(
            "Answered with the result document whatever became of the call, under the status of its error's "
            "kind; with a problem document where it never became one. The call is cancelled when the client "
            "leaves. Its arguments reach the tool as the very text that was sent where its format promises "
            "that, else written anew."
        ),
        handle=Api.call,
        right=Right.CALL,
        parameters=(
            _NAME,
            Parameter(
                name="Idempotency-Key",
                place="header",
                about="As `idempotency_key` in the body: 1 to 200 visible ASCII characters.",
                schema={"type": "string", "pattern": "^[!-~]{1,200}$"},
            ),
        ),
        body=_shapes.CALL_BODY,
        replies=_call_replies(),
    ),
    Route(
        method="POST",
        path="/v1/tools/{name}/explain",
        name="explain_tool",
        title="What policy decides about a tool or a call of it, and why; nothing is run",
        handle=Api.explain,
        right=Right.CALL,
        parameters=(_NAME,),
        body=_shapes.EXPLAIN_BODY,
        replies={200: _given(shape("Explanation"))},
    ),
    Route(
        method="POST",
        path="/v1/tools/{name}/disable",
        name="disable_tool",
        title="Switch a tool off, for a while or for good",
        handle=Api.disable,
        right=Right.ADMIN,
        parameters=(_NAME,),
        body=_shapes.DISABLE_BODY,
        replies={200: _given(shape("Switched"))},
    ),
    Route(
        method="POST",
        path="/v1/tools/{name}/enable",
        name="enable_tool",
        title="Switch a tool on again",
        handle=Api.enable,
        right=Right.ADMIN,
        parameters=(_NAME,),
        body=_shapes.ENABLE_BODY,
        replies={200: _given(shape("Switched"))},
    ),
    Route(
        method="POST",
        path="/v1/select",
        name="select_tools",
        title="Which tools a message should see, and why",
        about="With `explain` an object that also names what was left out.",
        handle=Api.select,
        body=_shapes.SELECT_BODY,
        replies={200: _given(shape("Selection"))},
    ),
    Route(
        method="GET",
        path="/v1/skills",
        name="list_skills",
        title="The skills, and what a host puts into a model's context about them",
        about="`instructions` is that text; where it is withheld from this caller, `withheld` says why.",
        handle=Api.skills,
        parameters=(_KNOWN_TAG,),
        replies=_tagged_reply(shape("Skills")),
    ),
    Route(
        method="GET",
        path="/v1/problems",
        name="list_problems",
        title="What is wrong with the declarations, the configuration and what was locked",
        about="Of rules and the lock only those are told who may see every tool.",
        handle=Api.problems,
        parameters=(_KNOWN_TAG,),
        replies=_tagged_reply(shape("Problems")),
    ),
    Route(
        method="GET",
        path="/v1/audit",
        name="list_records",
        title="The record of every call, the newest first",
        handle=Api.audit,
        right=Right.AUDIT,
        parameters=(
            Parameter(name="what", about="Only records of this kind.", schema=_shapes.WHAT),
            _KEY,
            Parameter(
                name="outcome",
                about="Only calls that ended so: ok, failed, or an error kind.",
                schema=_shapes.OUTCOME,
            ),
            Parameter(
                name="since", about="From a day, a time (UTC) or a duration ago.", schema=_shapes.MOMENT
            ),
            Parameter(name="until", about="Up to a day, a time or a duration ago.", schema=_shapes.MOMENT),
            Parameter(
                name="cursor",
                about="`next` of the page before, as it was given.",
                schema=_shapes.AUDIT_CURSOR,
            ),
            Parameter(name="page_size", about="At most so many at once.", schema=_shapes.PAGE_SIZE),
        ),
        replies={200: _given(shape("AuditPage"))},
    ),
    Route(
        method="GET",
        path="/v1/audit/verify",
        name="verify_records",
        title="Whether the journal is whole",
        handle=Api.verify,
        right=Right.AUDIT,
        replies={200: _given(shape("Verdict"))},
    ),
    Route(
        method="GET",
        path="/v1/audit/stats",
        name="count_calls",
        title="How tools were used: of the last day, and in equal parts of a window of time",
        handle=Api.stats,
        right=Right.AUDIT,
        parameters=(
            Parameter(
                name="window_s",
                about="How far back the parts go, in seconds.",
                schema={"type": "integer", "minimum": 60, "maximum": 90 * 86_400, "default": 86_400},
            ),
            Parameter(
                name="buckets",
                about="In at most so many parts, each of whole minutes or hours.",
                schema={"type": "integer", "minimum": 1, "maximum": 500, "default": 48},
            ),
            _KEY,
        ),
        replies={200: _given(shape("Stats"))},
    ),
    Route(
        method="GET",
        path="/v1/audit/{call_id}",
        name="show_call",
        title="All records of one call",
        handle=Api.audited,
        right=Right.AUDIT,
        parameters=(_CALL_ID,),
        replies={200: _given(shape("AuditCall"))},
    ),
    Route(
        method="GET",
        path="/v1/results/{call_id}",
        name="read_result",
        title="A part of a result that was too long to be handed over",
        about="One's own; everybody's with the right `audit`.",
        handle=Api.result,
        right=Right.CALL,
        parameters=(
            _CALL_ID,
            Parameter(
                name="offset",
                about="Begin after so many bytes: `next_offset` of the part before.",
                schema={"type": "integer", "minimum": 0, "maximum": 1 << 40, "default": 0},
            ),
            Parameter(
                name="limit",
                about="At most so many bytes.",
                schema={"type": "integer", "minimum": 16, "maximum": 1 << 20, "default": PAGE_BYTES},
            ),
        ),
        replies={200: _given(shape("ResultPart"))},
    ),
    Route(
        method="GET",
        path="/v1/approvals",
        name="list_approvals",
        title="The calls that wait for a person, and what became of earlier ones",
        handle=Api.approvals,
        right=Right.APPROVE,
        parameters=(
            Parameter(name="state", about="Only those in this state.", schema=_shapes.one_of(ApprovalState)),
        ),
        replies={200: _given({"type": "array", "items": shape("Approval")})},
    ),
    Route(
        method="POST",
        path="/v1/approvals/{id}",
        name="answer_approval",
        title="Answer one, or change an answer that no call has used",
        handle=Api.answer,
        right=Right.APPROVE,
        parameters=(
            Parameter(
                name="id", place="path", about="The id of the approval, whole.", schema=_shapes.APPROVAL_ID
            ),
        ),
        body=_shapes.ANSWER_BODY,
        replies={
            200: _given(shape("Approval")),
            409: Reply(about="It is over, or changed meanwhile.", contents=_PROBLEM),
        },
    ),
    Route(
        method="GET",
        path="/v1/events",
        name="listen",
        title="What happens, as server-sent events: calls, approvals, reloads",
        about=(
            "One's own calls; everybody's with the right `audit`; questions with the right `approve`. A "
            "client that comes back with Last-Event-ID is told what it missed, as far as it is kept, or that "
            "it missed something (`missed`). A stream ends after an hour."
        ),
        handle=Api.events,
        parameters=(
            Parameter(
                name="Last-Event-ID",
                place="header",
                about="The id of the last event that was read.",
                schema={"type": "string", "pattern": "^[0-9a-f]{1,16}-[0-9]{1,15}$"},
            ),
        ),
        media=_STREAM,
        replies={200: Reply(about="Events, one after the other.", contents={_STREAM: {"type": "string"}})},
    ),
    Route(
        method="GET",
        path="/v1/health",
        name="show_health",
        title="How the server stands",
        about="The whole report with the right `admin`, else whether it is ready.",
        handle=Api.health,
        replies={200: _given(shape("Health"))},
    ),
    Route(
        method="GET",
        path="/openapi.json",
        name="describe",
        title="This document",
        handle=Api.openapi,
        parameters=(_KNOWN_TAG,),
        replies=_tagged_reply({"type": "object"}),
    ),
    Route(
        method="GET",
        path="/healthz",
        name="live",
        title="Whether the server lives",
        handle=Api.alive,
        replies={200: _given(shape("Health"))},
    ),
    Route(
        method="GET",
        path="/readyz",
        name="ready",
        title="Whether new work should be sent here",
        handle=Api.ready,
        replies={200: _given(shape("Health")), 503: _given(shape("Health"), "Not now; `reasons` says why.")},
    ),
    Route(
        method="GET",
        path="/metrics",
        name="measure",
        title="Prometheus metrics",
        about="They count everybody's calls, so they are for those who reach every tool.",
        handle=Api.metrics,
        right=Right.AUDIT,
        media=_TEXT,
        replies={200: Reply(about="Prometheus text.", contents={_TEXT: {"type": "string"}})},
    ),
)

_WRONG: Final[Sequence[tuple[HTTPStatus, str]]] = (
    (HTTPStatus.BAD_REQUEST, "The query, a header or the JSON text is wrong; the detail names the place."),
    (HTTPStatus.UNAUTHORIZED, "A token is needed, or this one does not count."),
    (HTTPStatus.FORBIDDEN, "The right for it is missing, or the page that sent it is not ours."),
    (HTTPStatus.NOT_FOUND, "There is no such thing, or none for this caller."),
    (HTTPStatus.METHOD_NOT_ALLOWED, "The method means nothing here; `Allow` lists those that do."),
    (HTTPStatus.NOT_ACCEPTABLE, "What `Accept` asks for is not to be had."),
    (HTTPStatus.REQUEST_TIMEOUT, "The body did not come in time."),
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large."),
    (HTTPStatus.REQUEST_URI_TOO_LONG, "The path or the query is too long."),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The body is not JSON, or is compressed."),
    (HTTPStatus.MISDIRECTED_REQUEST, "The Host is not a name of this server."),
    (HTTPStatus.UNPROCESSABLE_ENTITY, "The body is JSON that does not fit; the detail names the place."),
    (HTTPStatus.TOO_MANY_REQUESTS, "Too many requests of this caller; `Retry-After` says when again."),
    (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "Too many headers, or one that is too long."),
    (HTTPStatus.INTERNAL_SERVER_ERROR, "Something broke in the server; its log says what."),
    (HTTPStatus.SERVICE_UNAVAILABLE, "The server is stopping, or what it keeps cannot be read."),
)


def document() -> JsonObject:
    """The OpenAPI document of this API."""
    return openapi(
        ROUTES,
        title="Toolcrib",
        about="Tools for LLM agents behind one API: list, select, call, approve, audit.",
        version=toolcrib.__version__,
        shapes=SHAPES,
        problems={status.value: Reply(about=about, contents=_PROBLEM) for status, about in _WRONG},
    )
