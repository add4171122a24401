"""The formats' own rules: which tools a message sees and why, who is switched off, and rye's query language.

Everything is an argument: tools, message, context, the host's checks and the moment come in, a ``Selected``
goes out. Nothing here ranks by meaning, remembers earlier messages or speaks a provider's dialect; above lie
the records, below the engine and the doors.

Messages are hostile text of any length, so no regular expression is built from them or from keywords: both
are cut into words once, and matching is looking words up.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

from msgspec import Struct

from toolcrib.errors import UsageError
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    Always,
    Choice,
    Deny,
    Disabled,
    OnContext,
    OnDemand,
    OnKeywords,
    Role,
    Selected,
    Selection,
    Tool,
)
from toolcrib.trust import policy

Check: TypeAlias = Callable[[Mapping[str, object]], object]
"""A host's answer to whether a context fits; anything true is a yes."""

BUILTIN_CHECKS: Final[Mapping[str, Check]] = {
    "has_project": lambda context: context.get("project_id"),
    "enable_memory": lambda context: context.get("enable_memory", True),
    "enable_tools": lambda context: context.get("enable_tools", True),
}
"""Known without registration; a registered check of the same name takes their place."""


class KeywordMatch(StrEnum):
    """How a keyword is found in a message."""

    WORD = "word"
    """As whole words; the last may carry a plural or verb ending."""
    SUBSTRING = "substring"
    """Anywhere, inside other words too, as the format's original does it."""


# -- selecting ----------------------------------------------------------------------------------------------


def select(
    tools: Sequence[Tool],
    message: str,
    *,
    context: Mapping[str, object],
    checks: Mapping[str, Check],
    match: KeywordMatch = KeywordMatch.WORD,
    include_always: bool = True,
    disabled: Sequence[Disabled] = (),
    now: float = 0.0,
    toolset: frozenset[str] | None = None,
    limit: int | None = None,
    refusal: Callable[[Tool], Deny | None] = lambda _tool: None,
) -> Selected:
    """The tools that ``message`` sees, in the order given, and the reason for each that it does not.

    ``refusal`` is what policy says about each; with ``disabled`` and ``now``, what is switched off besides.
    ``limit`` keeps the tools that the message itself speaks for before those that are shown anyway.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"limit: must not be negative (got {limit})")
    off = tuple(_in_force(disabled, now).values())
    judge = _Judge(message, context, checks, match, include_always, toolset, off, now, refusal)
    judged = [(tool, judge.verdict(tool)) for tool in tools if tool.role is Role.TOOL]
    fitting = [number for number, (_, verdict) in enumerate(judged) if verdict.why <= _Why.NO_RULE]
    if limit is not None:
        fitting = sorted(fitting, key=lambda number: judged[number][1].why)[:limit]
    within = frozenset(fitting)
    chosen: list[Choice] = []
    left_out: list[Choice] = []
    reasons: Counter[str] = Counter()
    for number, (tool, verdict) in enumerate(judged):
        if number in within:
            chosen.append(Choice(key=tool.key, name=tool.name, because=verdict.because))
            continue
        if verdict.why <= _Why.NO_RULE:
            verdict = _Verdict(_Why.LIMIT, f"over the limit of {limit}")
        left_out.append(Choice(key=tool.key, name=tool.name, because=verdict.because))
        reasons[_SUMMARY[verdict.why]] += 1
    notes = list(judge.failures)
    if not judged:
        notes.append("there are no tools to choose from")
    elif not chosen:
        summary = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
        notes.append(f"no tool fits this message: {summary}")
    return Selected(chosen=tuple(chosen), left_out=tuple(left_out), note="; ".join(notes))


def allowed(
    tool: Tool, toolset: frozenset[str] | None, disabled: Sequence[Disabled], now: float
) -> str | None:
    """Why the tool may be neither shown nor called; None when it may. Listing and calling ask the same."""
    barred = _barred(tool, toolset, disabled, now)
    return None if barred is None else barred.because


class _Why(IntEnum):
    """What decided: the reasons to show a tool, strongest first, then those to leave it out."""

    KEYWORD = 0
    CONTEXT = 1
    ALWAYS = 2
    NO_RULE = 3
    NO_KEYWORD = 4
    NO_CONTEXT = 5
    NOT_ALWAYS = 6
    ON_DEMAND = 7
    DISABLED = 8
    TOOLSET = 9
    LIMIT = 10
    POLICY = 11


_SUMMARY: Final = {
    _Why.NO_KEYWORD: "no keyword in the message",
    _Why.NO_CONTEXT: "the context does not fit",
    _Why.NOT_ALWAYS: "always shown, but left out of this request",
    _Why.ON_DEMAND: "only on demand",
    _Why.DISABLED: "disabled",
    _Why.TOOLSET: "not in the toolset",
    _Why.LIMIT: "over the limit",
    _Why.POLICY: "refused by policy",
}


class _Verdict(Struct, frozen=True):
    why: _Why
    because: str


_NO_RULE: Final = _Verdict(_Why.NO_RULE, "no rule: always shown")
_OUTSIDE: Final = _Verdict(_Why.TOOLSET, "not in the toolset")


def _in_force(disabled: Iterable[Disabled], now: float) -> dict[str, Disabled]:
    return {entry.tool: entry for entry in disabled if entry.until is None or now < entry.until}


def _barred(
    tool: Tool, toolset: frozenset[str] | None, disabled: Sequence[Disabled], now: float
) -> _Verdict | None:
    if toolset is not None and tool.name not in toolset and tool.key not in toolset:
        return _OUTSIDE
    why = policy.why_off(tool, disabled, now)
    return None if why is None else _Verdict(_Why.DISABLED, why)


class _Judge:
    """The verdicts for one message; tools of a group share one, and each check is asked once."""

    def __init__(
        self,
        message: str,
        context: Mapping[str, object],
        checks: Mapping[str, Check],
        match: KeywordMatch,
        include_always: bool,
        toolset: frozenset[str] | None,
        off: Sequence[Disabled],
        now: float,
        refusal: Callable[[Tool], Deny | None],
    ) -> None:
        self.message: _Words | _Letters = _Words(message) if match is KeywordMatch.WORD else _Letters(message)
        self.context = context
        self.checks: Mapping[str, Check] = {**BUILTIN_CHECKS, **checks}
        self.include_always = include_always
        self.toolset = toolset
        self.off = off
        self.now = now
        self.refusal = refusal
        self.by_rule: dict[tuple[str, Selection], _Verdict] = {}
        self.by_check: dict[str, bool] = {}
        self.failures: list[str] = []

    def verdict(self, tool: Tool) -> _Verdict:
        barred = _barred(tool, self.toolset, self.off, self.now)
        if barred is not None:
            return barred
        denied = self.refusal(tool)
        if denied is not None:
            off = denied.because == policy.DISABLED
            return _Verdict(_Why.DISABLED if off else _Why.POLICY, denied.message.partition("\n")[0])
        rule = tool.selection
        if rule is None:
            return _NO_RULE
        verdict = self.by_rule.get((tool.scope, rule))
        if verdict is None:
            why, because = self.follow(rule)
            verdict = _Verdict(why, f"{tool.scope}: {because}" if tool.scope else because)
            self.by_rule[tool.scope, rule] = verdict
        return verdict

    def follow(self, rule: Selection) -> tuple[_Why, str]:
        match rule:
            case Always():
                if self.include_always:
                    return _Why.ALWAYS, "always"
                return _Why.NOT_ALWAYS, "always, but such tools are left out of this request"
            case OnKeywords(keywords=keywords):
                if not keywords:
                    return _Why.NO_KEYWORD, "it has no keywords, so it is never selected"
                found = self.message.first_of(keywords)
                if found is not None:
                    return _Why.KEYWORD, f'keyword "{found}"'
                if len(keywords) == 1:
                    return _Why.NO_KEYWORD, "its keyword is not in the message"
                return _Why.NO_KEYWORD, f"none of its {len(keywords)} keywords is in the message"
            case OnContext(check=check):
                if check is None:
                    return _Why.NO_CONTEXT, "it names no context check, so it is never selected"
                if check not in self.checks:
                    return _Why.NO_CONTEXT, f'no context check "{check}" is registered'
                if self.holds(check):
                    return _Why.CONTEXT, f'context check "{check}" holds'
                return _Why.NO_CONTEXT, f'context check "{check}" does not hold'
            case OnDemand():
                return _Why.ON_DEMAND, "only on demand"

    def holds(self, check: str) -> bool:
        if check not in self.by_check:
            try:
                said = self.checks[check](self.context)
                if hasattr(type(said), "__await__"):
                    # Attack: a check that was never awaited, and so holds for everybody.
                    if hasattr(said, "close"):
                        said.close()
                    self.failures.append(f'context check "{check}" is async and counts as no')
                    said = False
                self.by_check[check] = bool(said)
            except Exception as error:  # noqa: BLE001 (the host's code may raise anything; it counts as no)
                self.by_check[check] = False
                self.failures.append(
                    f'context check "{check}" raised {type(error).__name__} and counts as no'
                )
        return self.by_check[check]


# -- keywords in messages -----------------------------------------------------------------------------------

# Scripts that write words without blanks between them, or join particles to them: each character stands for
# itself, so that a keyword is found wherever its characters stand in a row.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_TOKEN: Final = re.compile(rf"[^\W{_UNSPACED}]+|\S")
_GRAM_TOKENS_MAX: Final = 8


# Endings that a keyword may carry in a message, and what stands in the keyword instead of them.
_ENDINGS: Final = (
    ("s", ""),
    ("es", ""),
    ("ies", "y"),
    ("ed", ""),
    ("ed", "e"),
    ("ied", "y"),
    ("ing", ""),
    ("ing", "e"),
)
_STEM_CHARS_MIN: Final = 2  # "is" is no plural of "i"


def _bases(word: str) -> tuple[str, ...]:
    """What ``word`` may be a plural or verb form of, itself first."""
    if word[-1] not in "sdg":
        return (word,)
    return (
        word,
        *(
            word[: -len(ending)] + instead
            for ending, instead in _ENDINGS
            if word.endswith(ending) and len(word) - len(ending) >= _STEM_CHARS_MIN
        ),
    )


@lru_cache(maxsize=4096)
def _phrases(keywords: tuple[str, ...]) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], frozenset[str]]:
    """Keywords with their tokens, and the tokens at their ends: a message without these has none of them."""
    phrases = tuple((keyword, tuple(_TOKEN.findall(keyword.casefold()))) for keyword in keywords)
    return phrases, frozenset(tokens[-1] for _, tokens in phrases if tokens)


class _Words:
    """A message cut into words and signs."""

    def __init__(self, message: str) -> None:
        self.tokens: list[str] = _TOKEN.findall(message.casefold())
        self.bases = {token: _bases(token) for token in set(self.tokens)}
        self.known = frozenset(base for bases in self.bases.values() for base in bases)
        self.grams: dict[int, set[tuple[str, ...]]] = {}

    def first_of(self, keywords: tuple[str, ...]) -> str | None:
        """The first keyword that the message has."""
        phrases, ends = _phrases(keywords)
        if self.known.isdisjoint(ends):
            return None
        return next((keyword for keyword, tokens in phrases if self.has(tokens)), None)

    def has(self, phrase: tuple[str, ...]) -> bool:
        if not phrase or phrase[-1] not in self.known:
            return False
        count = len(phrase)
        if count == 1:
            return True
        if any(token not in self.bases for token in phrase[:-1]):
            return False
        if count <= _GRAM_TOKENS_MAX:
            return phrase in self.grams_of(count)
        head, last = list(phrase[:-1]), phrase[-1]
        return any(
            token == head[0]
            and self.tokens[start : start + count - 1] == head
            and last in self.bases[self.tokens[start + count - 1]]
            for start, token in enumerate(self.tokens[: 1 - count])
        )

    def grams_of(self, count: int) -> set[tuple[str, ...]]:
        """All rows of ``count`` tokens: built once, they make every phrase one look-up."""
        if count not in self.grams:
            rows = set(zip(*(self.tokens[start:] for start in range(count)), strict=False))
            self.grams[count] = {(*row[:-1], base) for row in rows for base in self.bases[row[-1]]}
        return self.grams[count]


class _Letters:
    """A message as a row of letters."""

    def __init__(self, message: str) -> None:
        self.text = message.casefold()
        self.seen: dict[str, bool] = {}

    def first_of(self, keywords: tuple[str, ...]) -> str | None:
        return next((keyword for keyword in keywords if self.has(keyword)), None)

    def has(self, keyword: str) -> bool:
        if keyword not in self.seen:
            self.seen[keyword] = bool(keyword.strip()) and keyword.casefold() in self.text
        return self.seen[keyword]


# -- the registry call of the capability format -------------------------------------------------------------


def enabled_tools(
    tools: Sequence[Tool],
    message: str,
    context: Mapping[str, object],
    format: str = "anthropic",
    *,
    checks: Mapping[str, Check] | None = None,
    match: KeywordMatch = KeywordMatch.WORD,
    include_always: bool = True,
    disabled: Sequence[Disabled] = (),
    now: float = 0.0,
) -> list[JsonObject]:
    """Selection and declaration in one, as hosts of the format's original call it. Dialects do it better."""
    if format not in ("anthropic", "openai"):
        raise UsageError(f"Unsupported format: {format}", "this call knows anthropic and openai")
    selected = select(
        tools,
        message,
        context=context,
        checks=checks or {},
        match=match,
        include_always=include_always,
        disabled=disabled,
        now=now,
    )
    chosen = {choice.key for choice in selected.chosen}
    by_name: dict[str, JsonObject] = {}
    for tool in tools:
        if tool.key in chosen:
            name = tool.spoken or tool.name
            schema = tool.input_schema.document if tool.input_schema else {"type": "object", "properties": {}}
            by_name.pop(name, None)  # providers refuse a name that stands twice: the later tool has it
            by_name[name] = (
                {"name": name, "description": tool.description, "input_schema": schema}
                if format == "anthropic"
                else {
                    "type": "function",
                    "function": {"name": name, "description": tool.description, "parameters": schema},
                }
            )
    return list(by_name.values())


# -- switching tools off ------------------------------------------------------------------------------------


def set_status(
    disabled: Sequence[Disabled],
    tool: str,
    enabled: bool,
    reason: str,
    duration_minutes: float | None,
    now: float,
) -> tuple[tuple[Disabled, ...], JsonObject]:
    """Switch a tool on or off: what is switched off afterwards, and the answer to give.

    A name that is not loaded is fine: it holds once it is.
    """
    off = _in_force(disabled, now)
    if not enabled and duration_minutes is not None and not 0 < duration_minutes < math.inf:
        error = f"duration_minutes: must be more than 0 (got {duration_minutes})"
        return tuple(off.values()), {"success": False, "error": error}
    off.pop(tool, None)
    if not enabled:
        until = None if duration_minutes is None else now + duration_minutes * 60
        off[tool] = Disabled(tool=tool, reason=reason, until=until)
    return tuple(off.values()), {
        "success": True,
        "action": "enabled" if enabled else "disabled",
        "tool": tool,
        "reason": reason,
        "duration_minutes": duration_minutes,
        "disabled_tools": list(off),
    }


# -- rye's query language -----------------------------------------------------------------------------------

QUERY_CHARS_MAX: Final = 1000
_HEAD_CHARS: Final = 200
_WEIGHTS: Final = {"name": 3.0, "description": 2.0, "category": 1.5, "content": 1.0}
_WEIGHT_SUM: Final = sum(_WEIGHTS.values())

_QUERY_TOKEN: Final = re.compile(r'"([^"]*)"?|([()])|([^\s()"]+)')
_BINDING: Final = {"OR": 1, "AND": 2, "NOT": 3}
_WORD: Final = re.compile(r"\w+")
_RUN: Final = re.compile(r"\S+")

_Term: TypeAlias = Callable[[str], bool]


def search(
    tools: Sequence[Tool], query: str | None = None, item_id: str | None = None, limit: int = 10
) -> tuple[Choice, ...]:
    """Return the tools that a query finds, or the one of an id. The best come first, then they are in the
    order of the spaces given, then of the names.

    Words (parts of words count), "phrases", ``*`` for any letters of a word, AND, OR, NOT, parentheses; words
    side by side are joined by AND. The query must hold for the record as a whole; a field in which it holds
    alone adds its weight to the score.
    """
    if (query is None) == (item_id is None):
        raise UsageError(
            "search: give either a query or an item_id" + (", not both" if query is not None else ""),
            "an item_id names one item, a query finds several",
        )
    if limit < 0:
        raise UsageError(f"limit: must not be negative (got {limit})")
    items = [tool for tool in tools if tool.role is not Role.SUPPORT]
    if query is None:
        found = [
            Choice(key=tool.key, name=tool.name, because="item id", score=1.0)
            for tool in items
            if item_id in (tool.name, tool.key, *tool.aliases)
        ]
        return tuple(found[:limit])
    if len(query) > QUERY_CHARS_MAX:
        raise UsageError(f"query: longer than {QUERY_CHARS_MAX} characters (got {len(query)})")
    postfix = _postfix(query)
    spaces: dict[str, int] = {}
    ranked = []
    for tool in items:
        fields = {field: text.casefold() for field, text in _fields(tool).items()}
        if _holds(postfix, " ".join(fields.values())):
            matched = [field for field, text in fields.items() if _holds(postfix, text)]
            score = round(sum(_WEIGHTS[field] for field in matched) / _WEIGHT_SUM, 4)
            because = f"matches {', '.join(matched)}" if matched else "matches across fields"
            choice = Choice(key=tool.key, name=tool.name, because=because, score=score)
            space = spaces.setdefault(_space(tool), len(spaces))
            ranked.append(((-score, space, tool.name), choice))
    ranked.sort(key=lambda entry: entry[0])
    return tuple(choice for _, choice in ranked[:limit])


def _space(tool: Tool) -> str:
    """The folder that gives an item its id: one for each space."""
    return tool.origin.path.rpartition(".")[0].removesuffix(tool.name)


def _fields(tool: Tool) -> dict[str, str]:
    notes = tool.notes
    return {
        "name": tool.name.rpartition("/")[2],
        "description": tool.description,
        "category": notes.category or "",
        "content": " ".join((notes.head[:_HEAD_CHARS], *notes.tags)),
    }


def _postfix(query: str) -> list[_Term | str]:
    """The query with operators after their operands. Nothing is wrong: what lacks an operand asks nothing."""
    output: list[_Term | str] = []
    waiting: list[str] = []

    def release(binding: int) -> None:
        while waiting and waiting[-1] != "(" and _BINDING[waiting[-1]] >= binding:
            output.append(waiting.pop())

    open_end = True  # an operand has to come next
    for phrase, bracket, word in _QUERY_TOKEN.findall(query):
        operator = word.upper() if word.upper() in _BINDING else ""
        if operator in ("AND", "OR") or bracket == ")":
            if open_end:
                output.append(_anything)
            release(_BINDING.get(operator, 0))
            if operator:
                waiting.append(operator)
            elif waiting:
                waiting.pop()
            open_end = bool(operator)
            continue
        if not open_end:  # two operands side by side
            release(_BINDING["AND"])
            waiting.append("AND")
        if operator or bracket:
            waiting.append(operator or bracket)
            open_end = True
        else:
            output.append(_term(word) if word else _contains(phrase))
            open_end = False
    if open_end:
        output.append(_anything)
    output.extend(sign for sign in reversed(waiting) if sign != "(")
    return output


def _holds(postfix: Iterable[_Term | str], text: str) -> bool:
    stack: list[bool] = []
    for part in postfix:
        if not isinstance(part, str):
            stack.append(part(text))
        elif part == "NOT":
            stack.append(not stack.pop())
        else:
            right, left = stack.pop(), stack.pop()
            stack.append((left and right) if part == "AND" else (left or right))
    return stack[-1]


def _anything(_text: str) -> bool:
    return True


def _contains(phrase: str) -> _Term:
    wanted = phrase.casefold()
    return lambda text: wanted in text


def _term(word: str) -> _Term:
    if "*" not in word:
        return _contains(word)
    first, *middle, last = word.casefold().split("*")
    words = _WORD if re.fullmatch(r"[\w*]+", word) else _RUN

    def fits(candidate: str) -> bool:
        # Piece by piece from the left: unlike a regular expression, this cannot be made to backtrack.
        if not candidate.startswith(first):
            return False
        end = len(first)
        for piece in middle:
            start = candidate.find(piece, end)
            if start < 0:
                return False
            end = start + len(piece)
        return len(candidate) - len(last) >= end and candidate.endswith(last)

    return lambda text: any(map(fits, words.findall(text)))
