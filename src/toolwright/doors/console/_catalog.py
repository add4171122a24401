"""Pages about what there is: the catalog, a tool, problems, skills."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolwright.doors.console._frame import Frame, guest_of, one_line
from toolwright.model import (
    FORMATS,
    Deny,
    Disabled,
    Effect,
    NotCallable,
    Problem,
    Role,
    Severity,
    Tool,
    Trust,
)
from toolwright.records import dataclass

ROWS_MAX: Final = 2000
"""So many tools stand on one page, which a browser filters while one types; more are paged."""
PAGE: Final = 200
_QUERY_CHARS_MAX: Final = 200
STATES: Final = {
    "callable": "callable",
    "disabled": "switched off",
    "refused": "not callable",
    "problems": "with problems",
}
TRUST_TONES: Final = {
    Trust.SIGNED: "good",
    Trust.PINNED: "good",
    Trust.UNSIGNED: "",
    Trust.UNTRUSTED: "warn",
    Trust.TAMPERED: "bad",
    Trust.DRIFTED: "bad",
}
EFFECT_TONES: Final = {Effect.READ: "", Effect.CREATE: "info", Effect.CHANGE: "accent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A tool as the catalog shows it."""

    tool: Tool
    trust: Trust
    states: tuple[str, ...]
    refused: str
    """Why it cannot be called; empty where it can."""
    off: Disabled | None
    text: str
    """What is searched."""


def pages(frame: Frame) -> list[Route]:
    catalog = CatalogPages(frame)
    return [Route("/", catalog.tools)]


class CatalogPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._workshop = frame.workshop

    def tools(self, request: Request) -> Response:
        """The catalog: all of it where a browser can hold it, else a page of it."""
        asked = {name: request.query_params.get(name, "")[:_QUERY_CHARS_MAX] for name in _FILTERS}
        rows = self._rows(request)
        fitting = {row.tool.key for row in rows if _fits(row, asked)}
        is_whole = len(rows) <= ROWS_MAX
        shown = rows if is_whole else [row for row in rows if row.tool.key in fitting]
        number, last = 1, max(1, -(-len(shown) // PAGE))
        if not is_whole:
            number = min(max(_whole_number(request.query_params.get("page", "")), 1), last)
            shown = shown[(number - 1) * PAGE : number * PAGE]
        return self._frame.page(
            request,
            "tools.html",
            {
                "asked": asked,
                "rows": shown,
                "fitting": fitting,
                "total": len(rows),
                "is_whole": is_whole,
                "page": number,
                "pages": last,
                "formats": _present(FORMATS, Counter(row.tool.origin.format for row in rows)),
                "effects": _present(Effect, Counter(row.tool.effect.value for row in rows)),
                "trusts": _present(Trust, Counter(row.trust.value for row in rows)),
                "states": STATES,
                "severities": self._workshop.severities,
                "trust_tones": TRUST_TONES,
                "effect_tones": EFFECT_TONES,
            },
        )

    def _rows(self, request: Request) -> list[Row]:
        guest = guest_of(request)
        off = self._workshop.disabled()
        refusal = self._workshop.gate.refusals(None if guest is None else guest.name, disabled=off)
        wrong = _Wrong(self._workshop.problems)
        rows = []
        for tool in self._frame.tools(request):
            if tool.role is Role.SUPPORT:
                continue
            switched = switched_off(tool, off)
            refused = why_not(tool, refusal(tool) if tool.role is Role.TOOL else None)
            states = [
                name
                for name, holds in (
                    ("callable", not refused),
                    ("disabled", switched is not None),
                    ("refused", bool(refused)),
                    ("problems", wrong.about(tool)),
                )
                if holds
            ]
            rows.append(
                Row(
                    tool=tool,
                    trust=self._workshop.vet(tool).trust,
                    states=tuple(states),
                    refused=refused,
                    off=switched,
                    text=f"{tool.key} {tool.name} {tool.description[:2000]}".lower(),
                )
            )
        return rows


_FILTERS: Final = ("q", "format", "effect", "trust", "state")


def _fits(row: Row, asked: dict[str, str]) -> bool:
    return (
        all(word in row.text for word in asked["q"].lower().split())
        and asked["format"] in ("", row.tool.origin.format)
        and asked["effect"] in ("", row.tool.effect.value)
        and asked["trust"] in ("", row.trust.value)
        and (not asked["state"] or asked["state"] in row.states)
    )


def _present(order: Iterable[str], counted: Counter[str]) -> list[tuple[str, int]]:
    return [(str(name), counted[str(name)]) for name in order if counted[str(name)]]


def _whole_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def switched_off(tool: Tool, off: Sequence[Disabled]) -> Disabled | None:
    """The switch that holds for a tool, whichever of its names it was switched off by."""
    names = {tool.key, tool.name, tool.spoken, *tool.aliases}
    now = time.time()
    return next((one for one in off if one.tool in names and (one.until is None or one.until > now)), None)


def why_not(tool: Tool, denied: Deny | None) -> str:
    """Why a tool cannot be called, in one line; empty where it can."""
    if tool.role is Role.PART:
        return "a part that other tools run on"
    if isinstance(tool.invocation, NotCallable):
        return one_line(tool.invocation.reason)
    return "" if denied is None else one_line(denied.message)


class _Wrong:
    """Which tools the problems are about: by file and, where a problem names one, by name."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        told = [problem for problem in problems if problem.severity is not Severity.INFO]
        self._whole = {problem.path for problem in told if problem.name is None}
        self._named = {(problem.path, problem.name) for problem in told if problem.name is not None}

    def about(self, tool: Tool) -> bool:
        return tool.origin.path in self._whole or (tool.origin.path, tool.name) in self._named
