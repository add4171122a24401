"""Pages about what there is: the catalog, a tool, problems, skills.

They only look: what a page's script does (a call, a switch) goes to ``/v1``, like everybody's.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolcrib.dialects import DIALECTS
from toolcrib.doors import _reach
from toolcrib.doors._accounts import decision_word, journal_of, page_of
from toolcrib.doors._documents import effect_source, line_of, shown_path
from toolcrib.doors.console._charts import duration_text
from toolcrib.doors.console._forms import form, parameters
from toolcrib.doors.console._frame import Frame, guest_of, one_line
from toolcrib.errors import StoreError
from toolcrib.journal.index import WantedRecords
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    FORMATS,
    Deny,
    Disabled,
    Effect,
    Guest,
    LeftOut,
    Loss,
    NotCallable,
    Permit,
    Problem,
    Programs,
    Right,
    Role,
    Severity,
    Tool,
    Trust,
)
from toolcrib.trust.policy import switch_of

ROWS_MAX: Final = 2000
"""So many tools, or problems, stand on one page, which a browser filters while one types; more are paged."""
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
    Trust.BLOCKED: "bad",
}
EFFECT_TONES: Final = {Effect.READ: "", Effect.CREATE: "info", Effect.CHANGE: "accent"}
SEVERITY_TONES: Final = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.INFO: "info"}
_SEVERITIES: Final = tuple(Severity)
_OF_THE_HOST: Final = ("config.", "lock.")
"""Codes of what is wrong with the configuration, its rules or the lock, and not with one declaration."""
_INSTRUCTIONS_CHARS_MAX: Final = 100_000
_MIB: Final = 1 << 20
_RECENT: Final = 8
_SEARCHED_CHARS: Final = 2000


class Sent(Struct, frozen=True, kw_only=True):
    """What one provider would be sent of a tool."""

    dialect: str
    payload: list[JsonObject]
    spoken: str
    losses: tuple[Loss, ...]
    left_out: tuple[LeftOut, ...]


class Wrong(Struct, frozen=True, kw_only=True):
    """A problem as the page shows it."""

    problem: Problem
    line: int | None
    text: str
    fits: bool


class Part(Struct, frozen=True, kw_only=True):
    """One page of a long list."""

    start: int
    page: int
    pages: int
    beside: tuple[tuple[str, str, str], ...]
    """The pages before and behind it: the word, the relation and the query of the link."""


class Row(Struct, frozen=True, kw_only=True):
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
    return [
        Route("/", catalog.tools),
        Route("/tools/{key:path}", catalog.tool),
        Route("/skills", catalog.skills),
        Route("/problems", catalog.problems),
        Route("/login", login(frame)),
    ]


def login(frame: Frame) -> Callable[[Request], Response]:
    """Where a browser shows its token once; ``Entrance`` takes it."""

    def page(request: Request) -> Response:
        return frame.page(request, "login.html")

    return page


class CatalogPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._crib = frame.crib

    def tools(self, request: Request) -> Response:
        """The catalog: all of it where a browser can hold it, else a page of it."""
        asked = {name: request.query_params.get(name, "")[:_QUERY_CHARS_MAX] for name in _FILTERS}
        every, reach = list(self._crib.tools), guest_of(request).reach
        tools = [tool for tool in _reach.within(every, reach) if tool.role is not Role.SUPPORT]
        is_whole, part = len(tools) <= ROWS_MAX, None
        if is_whole:
            row = self._row(request, None, every)
            shown = [row(tool) for tool in tools]
            fitting = {each.tool.key for each in shown if _fits(each, asked)}
            found = len(fitting)
        else:
            near: list[Tool] = [tool for tool in tools if _looks_fit(tool, asked)]
            if asked["trust"] or asked["state"]:  # only then is every one of them looked into
                row = self._row(request, None if asked["state"] == "problems" else (), every)
                near = [tool for tool in near if _fits(row(tool), asked)]
            found, part = len(near), _part(request, len(near), asked)
            near = near[part.start : part.start + PAGE]
            row = self._row(request, near, every)
            shown = [row(tool) for tool in near]
            fitting = {each.tool.key for each in shown}
        trusts: list[tuple[str, int | None]] = [(each.value, None) for each in Trust]
        if is_whole:
            trusts = _present(Trust, Counter(each.trust.value for each in shown))
        return self._frame.page(
            request,
            "tools.html",
            {
                "asked": asked,
                "rows": shown,
                "fitting": fitting,
                "found": found,
                "total": len(tools),
                "part": part,
                "formats": _present(FORMATS, Counter(tool.origin.format for tool in tools)),
                "effects": _present(Effect, Counter(tool.effect.value for tool in tools)),
                "trusts": trusts,
                "states": STATES,
                "severities": self._severities(request, None if part else every),
                "warnings": self._crib.warnings(),
                "unread": self._switched()[1],
                "trust_tones": TRUST_TONES,
                "effect_tones": EFFECT_TONES,
                "effect_source": effect_source,
            },
        )

    def _switched(self) -> tuple[tuple[Disabled, ...], StoreError | None]:
        """What is switched off; or why that cannot be read, so that nothing runs: a page about tools shows
        them all the same."""
        try:
            return self._crib.disabled(), None
        except StoreError as error:
            return (), error

    def _severities(self, request: Request, whole: Sequence[Tool] | None) -> Counter[Severity]:
        """How many problems the page of them shows; of a catalog that is not shown whole those alone that
        are found without looking at every tool."""
        crib = self._crib
        if guest_of(request).reach is not None:
            return Counter()
        if whole is None:
            return crib.severities
        about_files = (*crib.lock_problems(), *crib.signature_problems())
        told = (*crib.wrong_about(None, whole), *about_files, *crib.rule_problems())
        return Counter(problem.severity for problem in told)

    def tool(self, request: Request) -> Response:
        """One tool: what it takes, what it may do, what others are told of it, and a form to try it."""
        tool = self._frame.find(request, request.path_params["key"])
        guest = guest_of(request)
        explained = self._crib.explain(tool.key, caller=guest.name)
        off, unread = self._switched()
        schema = None if tool.input_schema is None else tool.input_schema.document
        output = None if tool.output_schema is None else tool.output_schema.document
        denied = explained.decision if isinstance(explained.decision, Deny) else None
        return self._frame.page(
            request,
            "tool.html",
            {
                "tool": tool,
                "vetted": self._crib.vet(tool),
                "is_locked": self._crib.gate.is_locked,
                "explained": explained,
                "decision": decision_word(explained.decision),
                "permit": list(permit_words(explained.permit)) if explained.permit else [],
                "off": switch_of(tool, off, time.time()),
                "refused": why_not(tool, denied),
                "to_do": "" if denied is None else denied.hint or "",
                "schema": schema,
                "parameters": parameters(schema),
                "form": form(schema),
                "output": output,
                "given": parameters(output),
                "place": place(tool.origin.path, tool.origin.line),
                "sent": self._sent(tool, guest) if tool.role is Role.TOOL and unread is None else [],
                "recent": self._recent(request, tool),
                "problems": [problem for problem in self._crib.problems if is_about(problem, tool, guest)],
                "trust_tones": TRUST_TONES,
                "effect_tones": EFFECT_TONES,
                "effect_source": effect_source,
                "severity_tones": SEVERITY_TONES,
            },
        )

    def _sent(self, tool: Tool, guest: Guest) -> list[Sent]:
        """What each provider would be sent of a tool, under the name that it has among all others."""
        sent = []
        for dialect in DIALECTS:
            declared = self._crib.declare(dialect, names=[tool.key], caller=guest.name, reach=guest.reach)
            sent.append(
                Sent(
                    dialect=dialect,
                    payload=declared.payload,
                    spoken=declared.names.spoken(tool.key) or "",
                    losses=declared.losses,
                    left_out=declared.left_out,
                )
            )
        return sent

    def _recent(self, request: Request, tool: Tool) -> list[JsonObject] | None:
        """How the last calls of a tool ended; None where the guest may not know."""
        state = self._crib.config.state
        if Right.AUDIT not in guest_of(request).rights or state is None:
            return None
        try:
            found = page_of(
                journal_of(state),
                WantedRecords(what="end", key=tool.key),
                before=None,
                count=_RECENT,
                sees=lambda key: key == tool.key,
            )
        except (StoreError, OSError):  # the page of the audit says what is wrong with it
            return None
        return [
            {
                "call": str(record["call"]),
                "time": str(record["time"]),
                "ok": bool(record.get("ok")),
                "kind": str(record.get("kind") or "failed"),
                "took": duration_text(record.get("ms")),
            }
            for record in found["records"]
        ]

    def problems(self, request: Request) -> Response:
        """What is wrong, by file, the worst first: in a long list nobody looks for what stops everything
        behind what is merely suspicious in one of many tools."""
        asked = {name: request.query_params.get(name, "")[:_QUERY_CHARS_MAX] for name in ("q", "severity")}
        told = sorted(_reach.problems(self._crib, guest_of(request).reach), key=_weight)
        counted = Counter(problem.severity.value for problem in told)
        wrong, part = [_wrong(problem, asked) for problem in told], None
        found = sum(each.fits for each in wrong)
        if len(told) > ROWS_MAX:
            part = _part(request, found, asked)
            wrong = [each for each in wrong if each.fits][part.start : part.start + PAGE]
        groups: dict[str, list[Wrong]] = {}
        for each in wrong:
            groups.setdefault(shown_path(each.problem.path), []).append(each)
        return self._frame.page(
            request,
            "problems.html",
            {
                "asked": asked,
                "groups": groups,
                "total": len(told),
                "found": found,
                "part": part,
                "severities": _present(Severity, counted),
                "tones": SEVERITY_TONES,
            },
        )

    def skills(self, request: Request) -> Response:
        """Skills and their instructions, as plain text: markup from outside is never drawn."""
        guest = guest_of(request)
        shown, tools = [], [tool for tool in self._frame.tools(request) if tool.origin.format == "skill"]
        found = self._crib.skill_texts(caller=guest.name, reach=guest.reach)
        texts = {each.name: each for each in found}
        for skill in self._crib.known_skills(guest.reach):
            if skill.name not in texts:  # it came meanwhile
                continue
            text, withheld = texts[skill.name].whole, texts[skill.name].withheld
            shown.append(
                {
                    "skill": skill,
                    "place": shown_path(skill.path),
                    "text": text[:_INSTRUCTIONS_CHARS_MAX],
                    "cut": len(text) > _INSTRUCTIONS_CHARS_MAX,
                    "withheld": withheld,
                    "tools": [tool for tool in tools if os.path.dirname(tool.origin.path) == skill.path],
                }
            )
        return self._frame.page(request, "skills.html", {"skills": shown})

    def _row(
        self, request: Request, some: Sequence[Tool] | None, every: Sequence[Tool]
    ) -> Callable[[Tool], Row]:
        """What looks into tools, at one moment; for problems only into some (None: into all)."""
        gate, (off, unread) = self._crib.gate, self._switched()
        refusal = gate.refusals(guest_of(request).name, disabled=off)
        wrong, now = _Wrong(self._crib.wrong_about(some, every)), time.time()

        def look(tool: Tool) -> Row:
            switched = switch_of(tool, off, now)
            refused = why_not(tool, refusal(tool) if tool.role is Role.TOOL else None)
            if unread is not None and tool.role is Role.TOOL:
                refused = refused or "what was switched off cannot be read"
            holds = {
                "callable": not refused,
                "disabled": switched is not None,
                "refused": bool(refused),
                "problems": wrong.about(tool),
            }
            return Row(
                tool=tool,
                trust=gate.vet(tool, None).trust,
                states=tuple(name for name, does in holds.items() if does),
                refused=refused,
                off=switched,
                text=_text(tool),
            )

        return look


_FILTERS: Final = ("q", "format", "effect", "trust", "state")


def _text(tool: Tool) -> str:
    """What is searched of a tool."""
    return f"{tool.key} {tool.name} {tool.description[:_SEARCHED_CHARS]}".lower()


def _looks_fit(tool: Tool, asked: dict[str, str]) -> bool:
    return (
        asked["format"] in ("", tool.origin.format)
        and asked["effect"] in ("", tool.effect.value)
        and (not asked["q"] or all(word in _text(tool) for word in asked["q"].lower().split()))
    )


def _fits(row: Row, asked: dict[str, str]) -> bool:
    return (
        asked["trust"] in ("", row.trust.value)
        and (not asked["state"] or asked["state"] in row.states)
        and _looks_fit(row.tool, asked)
    )


def _present(order: Iterable[str], counted: Counter[str]) -> list[tuple[str, int | None]]:
    return [(str(name), counted[str(name)]) for name in order if counted[str(name)]]


def _part(request: Request, count: int, asked: dict[str, str]) -> Part:
    """The page that is asked for, of so many rows; where there is none such, the nearest."""
    text, last = request.query_params.get("page", ""), max(1, -(-count // PAGE))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    number = min(max(number, 1), last)
    given = {name: value for name, value in asked.items() if value}
    beside = tuple(
        (label, rel, urlencode({**given, "page": at}))
        for label, rel, at in (("Previous", "prev", number - 1), ("Next", "next", number + 1))
        if 1 <= at <= last
    )
    return Part(start=(number - 1) * PAGE, page=number, pages=last, beside=beside)


def _weight(problem: Problem) -> tuple[int, bool]:
    return _SEVERITIES.index(problem.severity), not problem.code.startswith(_OF_THE_HOST)


def _wrong(problem: Problem, asked: dict[str, str]) -> Wrong:
    text = f"{shown_path(problem.path)} {problem.code} {problem.message} {problem.hint or ''}".lower()
    fits = asked["severity"] in ("", problem.severity.value)
    fits = fits and all(word in text for word in asked["q"].lower().split())
    return Wrong(problem=problem, line=line_of(problem), text=text, fits=fits)


def why_not(tool: Tool, denied: Deny | None) -> str:
    """Why a tool cannot be called, in one line; empty where it can."""
    if tool.role is Role.PART:
        return "a part that other tools run on"
    if isinstance(tool.invocation, NotCallable):
        return one_line(tool.invocation.reason)
    return "" if denied is None else one_line(denied.message.partition("\n")[0])


def place(path: str, line: int | None) -> str:
    return shown_path(path) + (f":{line}" if line else "")


def is_about(problem: Problem, tool: Tool, guest: Guest) -> bool:
    """Whether a problem belongs on a tool's page. What is about its whole file may name others: it is for
    those who may know of them."""
    names = (None, tool.name) if guest.reach is None else (tool.name,)
    return problem.path == tool.origin.path and problem.name in names


def permit_words(permit: Permit) -> Iterator[tuple[str, str]]:
    """What a tool is given, in words."""
    limits = permit.limits
    yield "Reads", _roots(permit.read, "its own files and the system")
    yield "Writes", _roots(permit.write, "its scratch folder")
    private = ", private addresses too" if permit.private else ""
    yield "Network", f"yes{private}" if permit.network else "no"
    yield "Programs", "any" if permit.programs is Programs.ANY else "its own"
    variables = "all of the host’s" if "*" in permit.env else ", ".join(permit.env)
    yield "Variables", variables or "those that its format promises"
    memory = f"{limits.memory_bytes_max // _MIB:,} MiB"
    yield "Limits", f"{limits.timeout_s:g} s, {memory}, {limits.processes_max} processes"
    yield "Isolation", f"{permit.level.value} or stronger"
    if permit.profile is not None:
        yield "Profile", f"{permit.profile.value}, because it states no needs"


def _roots(roots: tuple[str, ...], otherwise: str) -> str:
    if "/" in roots:
        return "everything you may, but our own state"
    shown = ("the current folder" if path == "." else path for path in map(shown_path, roots))
    return ", ".join([*shown, otherwise])


class _Wrong:
    """Which tools the problems are about: by file and, where a problem names one, by name."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        told = [problem for problem in problems if problem.severity is not Severity.INFO]
        self._whole = {problem.path for problem in told if problem.name is None}
        self._named = {(problem.path, problem.name) for problem in told if problem.name is not None}

    def about(self, tool: Tool) -> bool:
        return tool.origin.path in self._whole or (tool.origin.path, tool.name) in self._named
