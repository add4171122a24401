"""From sources to a catalog: list, read, compile, link. Never raises because of a file.

What a document means is the format's business, what the machine offers is asked here: whether a program is
installed, whether a file exists. Those answers are never cached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from toolwright import formats, jsontext, schema
from toolwright.catalog import cache, files, sources
from toolwright.catalog.cache import Cache, Loaded, Snapshot, Stale
from toolwright.catalog.catalog import Catalog, PlainShelf
from toolwright.catalog.sources import Candidate, Listing, Prober, Source
from toolwright.model import (
    Compiled,
    Condition,
    ConditionKind,
    Document,
    Problem,
    Role,
    Rules,
    Severity,
    Skill,
    Tool,
    Unit,
)

@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What loading may ask of the machine."""

    prober: Prober
    which: Callable[[str], str | None]
    """Where a program lies on PATH."""


class LoadReport:
    """A catalog and everything that is wrong with what it was made from."""

    def __init__(
        self,
        catalog: Catalog,
        problems: Callable[[], Sequence[Problem]],
        conditions: Callable[[], Sequence[Condition]],
        *,
        stamp: Sequence[object],
        notes: Sequence[str] = (),
        warm: bool = False,
    ) -> None:
        self.catalog = catalog
        self.notes = tuple(notes)
        self.stamp = stamp
        """What the sources looked like: it differs when anything changed."""
        self.warm = warm
        """True when nothing had to be read."""
        self._problems = problems
        self._conditions = conditions

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong, each with its line where the file tells it."""
        unmet = [found.otherwise for found in self._conditions() if not _holds(found)]
        return _located([*self._problems(), *unmet])


def load(
    wanted: Sequence[Source],
    rules: Rules,
    machine: Machine,
    *,
    rye_spaces: Callable[[], Sequence[Source]] = tuple,
    keep: Cache | None = None,
) -> LoadReport:
    """Load everything the sources hold. Raises SourceError only for a path that a person named wrongly."""
    found = sources.listing(wanted, rye_spaces=rye_spaces)
    kept = keep or Cache(None)
    identity = (tuple(wanted), rules)
    snapshot = kept.open(identity)
    if snapshot is not None:
        try:
            return _warm(snapshot, found, machine)
        except Stale:
            pass
    loaded, notes = _cold(found, rules, machine, snapshot)
    kept.save(identity, loaded)
    catalog = Catalog(PlainShelf(loaded.tools), loaded.skills)
    return LoadReport(
        catalog,
        lambda: [*found.problems, *loaded.problems],
        lambda: loaded.conditions,
        stamp=loaded.stamp,
        notes=notes,
    )


def _warm(snapshot: Snapshot, found: Listing, machine: Machine) -> LoadReport:
    stamp = found.stamp
    if snapshot.stamp != cache.stamp_text(stamp):
        raise Stale("the folders have changed")
    if any((machine.which(name) is not None) is not there for name, there in snapshot.programs.items()):
        raise Stale("programs have come or gone")
    return LoadReport(
        Catalog(snapshot, snapshot.skills),
        lambda: [*found.problems, *snapshot.problems],
        lambda: snapshot.conditions,
        stamp=stamp,
        warm=True,
    )


def _cold(
    found: Listing, rules: Rules, machine: Machine, snapshot: Snapshot | None
) -> tuple[Loaded, list[str]]:
    stamp = found.stamp
    units = _units(found.candidates, cache.unit_marks(stamp), rules, machine, snapshot)
    problems: list[Problem] = []
    conditions: list[Condition] = []
    programs: dict[str, bool] = {}
    standing: dict[str, list[Unit]] = {}
    for name, unit in units:
        compiled = unit.compiled
        problems += compiled.problems
        dropped = False
        for condition in compiled.conditions:
            if not condition.drops:
                conditions.append(condition)
                continue
            missing = _missing(condition, machine, programs)
            if missing is not None:
                dropped = True
                otherwise = condition.otherwise
                problems.append(replace(otherwise, message=otherwise.message.replace("{missing}", missing)))
        if name is not None and not dropped:
            standing.setdefault(name, []).append(unit)
    tools: list[Tool] = []
    skills: list[Skill] = []
    for name in formats.FORMATS:
        if name in standing:
            linked = formats.link(name, standing[name], rules)
            tools += linked.tools
            skills += linked.skills
            problems += linked.problems
    tools = _distinct(tools, problems)
    kept = {tool.origin.path for tool in tools}
    loaded = Loaded(
        stamp=stamp,
        units=units,
        tools=tools,
        skills=skills,
        problems=problems,
        conditions=[condition for condition in conditions if condition.otherwise.path in kept],
        programs=programs,
    )
    return loaded, [note for _, unit in units for note in unit.compiled.notes]


def _units(
    candidates: Sequence[Candidate],
    marks: Sequence[str],
    rules: Rules,
    machine: Machine,
    snapshot: Snapshot | None,
) -> list[tuple[str | None, Unit]]:
    """Every candidate compiled; those that an earlier load compiled from the same files are taken over."""
    known: dict[str, tuple[str | None, Unit]] = {}
    if snapshot is not None:
        with suppress(cache.Damaged):
            known = snapshot.units(marks)
    fresh = [candidate for candidate, mark in zip(candidates, marks, strict=True) if mark not in known]
    read = {
        candidate.path: _compile(candidate, document, rules)
        for candidate, document in sources.documents(fresh, machine.prober)
    }
    return [
        known[mark] if mark in known else read[candidate.path]
        for candidate, mark in zip(candidates, marks, strict=True)
    ]


def _compile(candidate: Candidate, document: Document, rules: Rules) -> tuple[str | None, Unit]:
    name, compiled = formats.compile_document(document, rules)
    if name is None and candidate.quiet:
        compiled = Compiled(notes=(f"{candidate.path}: not a declaration",))
    return name, Unit(
        path=candidate.path, item=candidate.item, space=candidate.space, compiled=_sound(compiled)
    )


def _sound(compiled: Compiled) -> Compiled:
    """Leave out tools whose schema is none: their arguments could not be checked, and providers refuse the
    whole request for one of them."""
    bad: dict[str, list[Problem]] = {}
    for tool in compiled.tools:
        for which, found in (("input", tool.input_schema), ("output", tool.output_schema)):
            for flaw in schema.flaws(found.document) if found is not None else ():
                place = jsontext.place_text(flaw.pointer)
                bad.setdefault(tool.key, []).append(
                    Problem(
                        code="schema.invalid",
                        message=f'"{tool.name}": {which} schema: {place + ": " if place else ""}{flaw.message}',
                        path=tool.origin.path,
                        pointer=tool.origin.pointer,
                        line=tool.origin.line,
                        name=tool.name,
                        hint=flaw.hint,
                    )
                )
    if not bad:
        return compiled
    return replace(
        compiled,
        tools=tuple(tool for tool in compiled.tools if tool.key not in bad),
        problems=(*compiled.problems, *(problem for found in bad.values() for problem in found)),
    )


def _distinct(tools: Sequence[Tool], problems: list[Problem]) -> list[Tool]:
    """Give every tool a key of its own, and report bare names that need one."""
    taken: dict[str, Tool] = {}
    names: dict[str, Tool] = {}
    for tool in tools:
        key = tool.key
        number = 2
        while key in taken:
            name, _, rest = tool.key.partition(":")
            key = f"{name}:{tool.scope}~{number}{rest[len(tool.scope):]}"
            number += 1
        if key != tool.key:
            first = taken[tool.key]
            problems.append(_clash(tool, first, "catalog.key-clash", f"has the key {tool.key!r} too; its key is {key!r}"))
            tool = replace(tool, key=key)
        taken[key] = tool
        if tool.role is not Role.TOOL:
            continue
        other = names.setdefault(tool.name, tool)
        same = other.origin.format == tool.origin.format
        if other is not tool and not (same and tool.origin.format in _OWN_NAME_RULES):
            problems.append(
                _clash(tool, other, "catalog.name-clash", f"shares its name with {other.key!r} of {other.origin.path}")
            )
    return list(taken.values())


_OWN_NAME_RULES: Final = frozenset({"skill", "capability", "rye", "executable"})


def _clash(tool: Tool, other: Tool, code: str, what: str) -> Problem:
    return Problem(
        code=code,
        severity=Severity.WARNING,
        message=f'"{tool.name}" {what}',
        path=tool.origin.path,
        pointer=tool.origin.pointer,
        line=tool.origin.line,
        name=tool.name,
        hint=f"name them by key: {other.key} or {tool.key}",
    )


# -- what the machine says ----------------------------------------------------------------------------------


def _missing(condition: Condition, machine: Machine, programs: dict[str, bool]) -> str | None:
    """None when one alternative is complete, else what the first one lacks."""
    lacking: list[str] = []
    for alternative in condition.alternatives:
        for name in alternative:
            if name not in programs:
                programs[name] = machine.which(name) is not None
        missing = [name for name in alternative if not programs[name]]
        if not missing:
            return None
        lacking = lacking or missing
    return ", ".join(lacking) if condition.alternatives else None


def _holds(condition: Condition) -> bool:
    match condition.kind:
        case ConditionKind.EXECUTABLE_FILE:
            return all(os.path.isfile(path) and os.access(path, os.X_OK) for path in condition.subjects)
        case ConditionKind.ANY_FILE:
            return any(os.path.isfile(path) for path in condition.subjects)
        case ConditionKind.PROGRAMS:
            return True


def _located(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Look up the lines of places in JSON files, reading each file once."""
    wanted = {
        problem.path
        for problem in problems
        if problem.line is None and problem.pointer is not None and problem.path.endswith(".json")
    }
    lines: dict[str, dict[jsontext.Pointer, jsontext.Span]] = {}
    for path in wanted:
        content, _ = files.read(path)
        text = jsontext.decode(content) if content is not None else None
        lines[path] = jsontext.locate(text) if isinstance(text, str) else {}
    return tuple(_with_line(problem, lines.get(problem.path, {})) for problem in problems)


def _with_line(problem: Problem, spans: dict[jsontext.Pointer, jsontext.Span]) -> Problem:
    if not spans or problem.line is not None or problem.pointer is None:
        return problem
    pointer = problem.pointer
    while pointer not in spans:
        pointer = pointer[:-1]
    return replace(problem, line=spans[pointer].line)
