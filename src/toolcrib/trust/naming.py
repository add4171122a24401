"""What the configuration says of tools that do not exist: a refusal of ``delet_file`` refuses nothing.

Rules, budgets, grants and stated effects name tools.

Decides nothing and reads no file. Whether all tools were loaded that may be meant is for whoever asks to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from toolcrib.errors import nearest
from toolcrib.model import Problem, Severity, Tool
from toolcrib.trust.budgets import Budget
from toolcrib.trust.policy import names_of
from toolcrib.trust.rules import Answer, Index, Match, Patterns, Rule

CODE: Final = "config.no-tool"

_NAMING: Final = ("name", "key")
_WILD: Final = r"[*?\[]"
_TOLD_MAX: Final = 3
_MEANT_MAX: Final = 50
"""So many patterns are compared with all tools for the one that was meant: that takes its time."""
_LISTS: Final = ("policy", "budget")
"""Of which each item may stand on one of several lines."""


class Naming(NamedTuple):
    """What one rule, budget, grant or stated effect asks for, and its place in the file (``policy[0]``)."""

    place: str
    match: Match


def in_file(
    file: str,
    rules: Iterable[Rule],
    budgets: Iterable[Budget],
    tables: Mapping[str, Iterable[str]],
) -> list[Naming]:
    """What one file asks for: its rules and budgets, and the patterns of keys that name its ``tables``."""
    ruled = ((each.place, each.match) for some in (rules, budgets) for each in some)
    return [
        *(
            Naming(place.removeprefix(file).partition(" ")[2], match)
            for place, match in ruled
            if place.startswith((f"{file}:", f"{file} "))
        ),
        *(
            Naming(f"{table}.{each}", Match(subjects=(("key", Patterns(wanted=(each,))),)))
            for table, patterns in tables.items()
            for each in patterns
        ),
    ]


def look(
    asked: Sequence[Naming],
    loaded: Sequence[Tool],
    servers: Sequence[Tool],
    *,
    file: str,
    lines: Callable[[Collection[str]], Mapping[str, int]],
) -> list[Problem]:
    """Those that name tools, and none of these; of the others each pattern that fits none by itself.

    Attack: a refusal of two tools, one with a typing mistake: that the other is refused must not hide it.

    ``servers``: the records that stand for servers, whose tools may be meant where they have given no list;
    ``lines``: on which lines of the file places stand, as far as that can be told.
    """
    tools = [*loaded, *servers]
    silent = [each.key for each in servers if not any(tool.key.startswith(each.key) for tool in loaded)]
    whole = [
        (asked[number], "fits")
        for number in _fitting_none([match for _, match in asked], tools)
        if not _is_for_others(asked[number].match, silent)
    ]
    told = {place for (place, _), _ in whole}
    parts = [part for each in asked if each.place not in told for part in _parts(each)]
    single = [
        (Naming(parts[number].place, parts[number].alone), "names what fits")
        for number in _fitting_none([part.alone for part in parts], tools)
        if not _is_for_others(parts[number].rest, silent)
    ]
    if not whole and not single:
        return []
    order = {each.place: number for number, each in enumerate(asked)}
    found = sorted((*whole, *single), key=lambda each: order[each[0].place])
    words = {word: tool for tool in reversed(tools) for word in (tool.key, tool.name)}
    at = lines({*_LISTS, *(each.place for each, _ in found)})
    return [
        Problem(
            code=CODE,
            severity=Severity.WARNING,
            message=f"{place} {fits} none of the tools that were loaded: {_told(match)}",
            path=file,
            line=at.get(place) or at.get(place.partition("[")[0]),
            hint=_meant(match, words if number < _MEANT_MAX else {}),
        )
        for number, ((place, match), fits) in enumerate(found)
    ]


class _Part(NamedTuple):
    """One pattern of what is asked for."""

    place: str
    alone: Match
    rest: Match
    """It with what is asked for besides, which tells where its tools may lie."""


def _parts(asked: Naming) -> Iterator[_Part]:
    """Every pattern for tools. Of exceptions only names that are written out, each of which means a tool: one
    from a whole format may well be made before there is any."""
    subjects = dict(asked.match.subjects)
    for subject in (each for each in _NAMING if each in subjects):
        excepted = (each for each in subjects[subject].unwanted if not re.search(_WILD, each))
        for pattern in dict.fromkeys((*subjects[subject].wanted, *excepted)):
            only = {subject: Patterns(wanted=(pattern,))}
            yield _Part(
                asked.place, Match(subjects=(*only.items(),)), Match(subjects=(*(subjects | only).items(),))
            )


def _fitting_none(asked: Sequence[Match], tools: Iterable[Tool]) -> list[int]:
    """The numbers of those that ask for tools by ``name`` or ``key``, and for none that there is."""
    naming = []
    for number, match in enumerate(asked):
        subjects = tuple(each for each in match.subjects if each[0] in _NAMING and each[1].wanted)
        if subjects:
            naming.append(Rule(match=Match(subjects=subjects), answer=Answer.DENY, place=str(number)))
    index, left = Index(naming), {rule.place for rule in naming}
    for tool in tools if left else ():
        left -= {rule.place for rule in index.fitting({"name": names_of(tool), "key": (tool.key,)})}
    return sorted(map(int, left))


def _is_for_others(match: Match, silent: Sequence[str]) -> bool:
    """Whether tools may be meant that are not loaded here: those of servers that have given no list, and
    functions of a host's own program."""
    subjects = dict(match.subjects)
    keys = subjects.get("key", Patterns()).wanted or ("*",)
    if (
        any(key.startswith("python:") for key in keys)
        or "python" in subjects.get("format", Patterns()).wanted
    ):
        return True
    begins = [re.split(_WILD, key)[0] for key in keys]
    return any(key.startswith(begin) or begin.startswith(key) for begin in begins for key in silent)


def _named(match: Match) -> list[tuple[str, str]]:
    """The patterns for tools, each with what it is compared with."""
    naming = [(subject, patterns) for subject, patterns in match.subjects if subject in _NAMING]
    return [(subject, pattern) for subject, patterns in naming for pattern in patterns.wanted]


def _told(match: Match) -> str:
    told = [f"{subject} {pattern[:60]!r}" for subject, pattern in _named(match)]
    return ", ".join(told[:_TOLD_MAX]) + (" …" if len(told) > _TOLD_MAX else "")


def _meant(match: Match, words: Mapping[str, Tool]) -> str:
    """The tool that was probably meant, in the words that are asked for: a grant wants keys, not names."""
    for subject, pattern in _named(match)[:_TOLD_MAX]:
        close = [pattern] if pattern in words else nearest(pattern, [*words])
        if close:
            return f"did you mean {words[close[0]].key if subject == 'key' else words[close[0]].name}?"
    return "`toolcrib list` shows what there is"
