"""Pages about what happens: live calls, approvals, the audit, health.

They read what the commands read: the journal's index, the approvals of the state folder. Reading happens in
threads, never on the loop. An answer to an approval goes to ``/v1``, like everybody's; what changes while a
page is open, its script hears from ``/v1/events``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolcrib import __version__
from toolcrib.doors import _accounts, _reach
from toolcrib.doors._shares import Turns, share_of
from toolcrib.doors.console import _charts
from toolcrib.doors.console._frame import Frame, guest_of, pretty, require
from toolcrib.errors import Kind
from toolcrib.journal import reading
from toolcrib.journal.index import CallRow, Index, Load, Page, Wanted
from toolcrib.journal.reading import Entry
from toolcrib.journal.redaction import MARKER
from toolcrib.jsontext import JsonObject
from toolcrib.model import Approval, ApprovalState, Right
from toolcrib.paths import is_below

LIVE_ROWS: Final = 100
PAGE_ROWS: Final = 50
ANSWERED_ROWS: Final = 50
RECORDS_MAX: Final = 500
"""Of one call that are shown; a call has a handful."""
_TEXT_CHARS_MAX: Final = 200
"""Of a condition: nobody looks for more."""

SINCE: Final = (
    ("", "whenever", 0.0),
    ("1h", "in the last hour", 3600.0),
    ("24h", "in the last 24 hours", 86_400.0),
    ("7d", "in the last 7 days", 7 * 86_400.0),
    ("30d", "in the last 30 days", 30 * 86_400.0),
)
OUTCOMES: Final = ("ok", "failed", "open", *(kind.value for kind in Kind if kind is not Kind.FAILED))
LASTS: Final = (
    ("", "once, for these arguments"),
    ("900", "for 15 minutes, whatever the arguments"),
    ("3600", "for an hour, whatever the arguments"),
    ("28800", "for 8 hours, whatever the arguments"),
    ("86400", "for a day, whatever the arguments"),
)
"""How long an approval may be made to last, in seconds as ``/v1/approvals`` takes them."""

T = TypeVar("T")


def pages(frame: Frame) -> list[Route]:
    activity = Activity(frame)
    return [
        Route("/calls", activity.calls),
        Route("/approvals", activity.approvals),
        Route("/audit", activity.audit),
        Route("/audit/verify", activity.verify),
        Route("/audit/{call_id}", activity.record),
        Route("/health", activity.health),
    ]


class Line(Struct, frozen=True, kw_only=True):
    """A call as a row of a table."""

    call: str
    when: tuple[str, str]
    tool: str
    key: str | None
    """None: there is no such tool any more, or it was a question of the house's own."""
    caller: str
    door: str
    outcome: str
    ok: bool | None
    took: str
    layers: tuple[str, ...]


class Activity:
    """The pages, over one server."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._verifying = Turns(1)
        self._asking = Turns(1)

    # -- calls ----------------------------------------------------------------------------------------------

    async def calls(self, request: Request) -> Response:
        """The last calls; the page's script adds those that come."""
        require(request, Right.AUDIT)
        found = await self._asked(request, lambda index: index.calls(Wanted(), LIVE_ROWS))
        lines = self._lines(request, found)
        return self._frame.page(
            request, "calls.html", {"lines": lines, "rows_max": LIVE_ROWS, "outcomes": OUTCOMES}
        )

    def _lines(self, request: Request, page: Page) -> list[Line]:
        """Attack: a guest with a narrow reach who learns from records what else there is."""
        known, sees = frozenset(self._frame.crib.catalog.keys), self._sees(request)
        return [_line(row, known) for row in page.calls if sees is None or sees(row.key)]

    def _sees(self, request: Request) -> Callable[[object], bool] | None:
        return _reach.sees(self._frame.crib, guest_of(request).reach)

    # -- approvals ------------------------------------------------------------------------------------------

    async def approvals(self, request: Request) -> Response:
        require(request, Right.APPROVE)
        found = await asyncio.to_thread(self._frame.crib.approvals)
        if (sees := self._sees(request)) is not None:
            found = tuple(one for one in found if sees(one.key))
        waiting = [_question(one) for one in found if one.state is ApprovalState.WAITING]
        answered = [_question(one) for one in reversed(found) if one.state is not ApprovalState.WAITING]
        values = {"waiting": waiting, "answered": answered[:ANSWERED_ROWS], "lasts": LASTS}
        return self._frame.page(request, "approvals.html", values)

    # -- audit ----------------------------------------------------------------------------------------------

    async def audit(self, request: Request) -> Response:
        require(request, Right.AUDIT)
        asked = request.query_params
        now = time.time()
        span = next((each for each in _charts.SPANS if each.name == asked.get("span")), _charts.SPANS[1])
        conditions = {
            name: asked.get(name, "")[:_TEXT_CHARS_MAX] for name in ("tool", "caller", "outcome", "since")
        }
        if conditions["outcome"] not in OUTCOMES:
            conditions["outcome"] = ""
        ago = next((ago_s for name, _, ago_s in SINCE if name == conditions["since"]), 0.0)
        wanted = Wanted(
            tool=conditions["tool"].strip(),
            caller=conditions["caller"].strip(),
            outcome=conditions["outcome"],
            since=now - ago if ago else 0.0,
            before=_cursor(asked.get("before")),
        )

        sees = self._sees(request)  # Attack: a guest with a narrow reach who learns how busy all else is

        def ask(index: Index) -> tuple[Page, tuple[Load, ...]]:
            return index.calls(wanted, PAGE_ROWS), index.load(now, span.width_s, span.count, sees=sees)

        page, loads = await self._asked(request, ask)
        kept = {name: value for name, value in conditions.items() if value}
        older = None
        if page.next is not None:
            began, call = page.next
            older = "/audit?" + urlencode({**kept, "span": span.name, "before": f"{began!r}_{call}"})
        return self._frame.page(
            request,
            "audit.html",
            {
                "lines": self._lines(request, page),
                "older": older,
                "is_first": wanted.before is None,
                "conditions": conditions,
                "outcomes": OUTCOMES,
                "since": SINCE,
                "spans": [
                    (each, "/audit?" + urlencode({**kept, "span": each.name})) for each in _charts.SPANS
                ],
                "span": span,
                "charts": (_charts.calls_chart(loads, span), _charts.latency_chart(loads, span)),
                "numbers": _charts.rows(loads, span),
                "first": _charts.moment_text(loads[0].start, span),
            },
        )

    async def record(self, request: Request) -> Response:
        """All that is recorded about one call."""
        require(request, Right.AUDIT)
        call = str(request.path_params["call_id"])[:_TEXT_CHARS_MAX]

        def look(index: Index) -> tuple[list[Entry], str]:
            found = [entry for entry in index.of_call(call) if entry.call == call]
            return found, _accounts.status_of(index, found) if found else ""

        entries, status = await self._asked(request, look)
        if not entries or not _accounts.may_see(self._sees(request), entries):
            raise HTTPException(404, "No such call was recorded.")
        begin = next((entry.body for entry in entries if entry.what == "begin"), {})
        tool = begin.get("key") or begin.get("tool") or "(unknown)"
        return self._frame.page(
            request,
            "record.html",
            {
                "call": call,
                "status": status,
                "ok": {"ok": True, "running": None}.get(status, False),
                "tool": tool,
                "is_known": tool in frozenset(self._frame.crib.catalog.keys),
                "records": [
                    {
                        "what": entry.what,
                        "when": _moment(entry.ts),
                        "place": f"{entry.segment}, record {entry.number}",
                        "fields": [
                            (name, value)
                            for name, value in entry.body.items()
                            if name not in ("what", "ts", "call") and value not in (None, "", [], {})
                        ],
                    }
                    for entry in entries[:RECORDS_MAX]
                ],
                "hidden": max(0, len(entries) - RECORDS_MAX),
            },
        )

    async def verify(self, request: Request) -> Response:
        require(request, Right.AUDIT)
        began = time.perf_counter()
        # Attack: many verifications at once, each reading the whole journal.
        async with self._verifying.turn(share_of(guest_of(request))):
            verdict = await asyncio.to_thread(_accounts.verdict_of, self._state())
        values = {"verdict": verdict, "took": _charts.duration_text((time.perf_counter() - began) * 1000)}
        return self._frame.page(request, "verify.html", values)

    # -- health ---------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """How the host stands. Where its files lie, and what its servers are, is for those who may look
        after it."""
        report = self._frame.serving.health
        if report is None:
            raise HTTPException(503, "Nothing is served here, so there is nothing to tell.")
        told = await asyncio.to_thread(report)
        guest = guest_of(request)
        keeps = guest.reach is None and bool({Right.AUDIT, Right.ADMIN} & guest.rights)
        now = time.time()
        return self._frame.page(
            request,
            "health.html",
            {
                "told": told,
                "keeps": keeps,
                "version": __version__,
                "up": _ago(now - told["started_at"]),
                "started": _moment(told["started_at"]),
                "sources": await asyncio.to_thread(self._sources, told["sources"]) if keeps else [],
                "missing": [layer for layer in told["isolation"]["layers"] if not layer["works"]],
                "reload": _reload(told["reload"], now),
                "failed": _reload(told["reload_failed"], now),
            },
        )

    def _sources(self, sources: Sequence[JsonObject]) -> list[tuple[JsonObject, int]]:
        """With the number of tools that each brought."""
        counted = Counter(tool.origin.path for tool in self._frame.crib.tools)
        return [
            (source, sum(count for path, count in counted.items() if is_below(path, (source["path"],))))
            for source in sources
        ]

    # -- the journal ----------------------------------------------------------------------------------------

    def _state(self) -> str:
        state = self._frame.crib.config.state
        if state is None:
            raise HTTPException(503, "There is no state folder, so nothing is recorded, and nothing runs.")
        return state

    def _folder(self) -> str:
        return _accounts.journal_of(self._state())

    async def _asked(self, request: Request, question: Callable[[Index], T]) -> T:
        folder = self._folder()

        def ask() -> T:
            with Index(folder) as index:
                return question(index)

        # One at a time, callers in turn: the first question may have to build the index, and the others
        # should not hold a thread meanwhile.
        async with self._asking.turn(share_of(guest_of(request))):
            return await asyncio.to_thread(ask)


def _line(row: CallRow, known: Container[str]) -> Line:
    return Line(
        call=row.call,
        when=_moment(row.begun),
        tool=row.key or row.tool,
        key=row.key if row.key in known else None,
        caller=row.caller,
        door=row.door,
        outcome="open" if row.ok is None else "ok" if row.ok else row.kind or "failed",
        ok=row.ok,
        took=_charts.duration_text(row.ms),
        layers=row.layers,
    )


def _question(one: Approval) -> dict[str, Any]:
    shown = pretty(one.arguments)
    return {
        "id": one.id,
        "key": one.key,
        "caller": one.caller,
        "asked": _moment(one.asked_at),
        "until": _moment(one.until),
        "question": one.question,
        "because": one.because,
        "call": one.call_id,
        "arguments": one.arguments,
        # Attack: what a person should not see, dressed up as a credential.
        "hidden": shown.count(MARKER),
        "state": one.state.value,
        "standing": one.standing,
        "edited": one.edited,
        "answered_by": one.answered_by,
        "answered": None if one.answered_at is None else _moment(one.answered_at),
        "answer_because": one.answer_because,
        "used_by": one.used_by,
    }


def _moment(ts: float) -> tuple[str, str]:
    """A time for programs, and for people."""
    text = reading.time_text(ts)
    return text, f"{text[:10]} {text[11:19]} UTC"


def _ago(seconds: float) -> str:
    """How long something has lasted, in the two largest units."""
    left, parts = max(0, int(seconds)), []
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts[:2]) or "less than a second"


def _reload(told: JsonObject | None, now: float) -> dict[str, Any] | None:
    if told is None:
        return None
    why = [str(told[name]) for name in ("reason", "hint") if told.get(name)]
    at = float(told.get("at", now))
    return {"ok": told.get("ok") is True, "ago": _ago(now - at), "why": why}


def _cursor(text: str | None) -> tuple[float, str] | None:
    """Where a page ended, as its link says it; a link that was changed begins at the newest."""
    began, mark, call = (text or "")[:_TEXT_CHARS_MAX].partition("_")
    try:
        return (float(began), call) if mark else None
    except ValueError:
        return None
