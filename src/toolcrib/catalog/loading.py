"""From sources to a catalog: list, read, compile, link. Never raises because of a file.

What a document means is the format's business, what the machine offers is asked here: whether a program is
installed, whether a file exists. Those answers are never cached.
"""

from __future__ import annotations

import gc
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from itertools import count
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import formats, jsontext, schema
from toolcrib.catalog import effects, files, sources
from toolcrib.catalog.cache import Cache, Damaged, Kept, Loaded, Snapshot, aliases_of, shelved
from toolcrib.catalog.catalog import Catalog
from toolcrib.catalog.sources import Asker, Candidate, Fetcher, Listing, Prober, Source
from toolcrib.model import (
    CallMcp,
    Compiled,
    Condition,
    ConditionKind,
    Document,
    Namesakes,
    Problem,
    Role,
    Rules,
    Severity,
    Skill,
    StatedEffect,
    Tool,
    Unit,
)

_AGAIN_S_MAX: Final = 86_400.0
"""However long a format would let it count that a document told nothing."""
_SHARED_MAX: Final = 5
_UNREADABLE: Final = (Damaged, OSError, ValueError, TypeError, LookupError)
"""What reading a damaged cache ends with."""
UNCONFIRMED: Final = "source.unconfirmed"
"""The code of a declaration that appeared where tools may write, and waits for a person."""
_EXCHANGED: Final = "it was changed since a person confirmed it"
_LOADS: Final = count()
_NONE: Final[Mapping[str, Any]] = {}
_Answer = TypeVar("_Answer")


class Machine(Struct, frozen=True, kw_only=True):
    """What loading may ask of the machine."""

    prober: Prober
    which: Callable[[str], str | None]
    """Where a program lies on PATH."""
    clock: Callable[[], float] = time.time
    asker: Asker | None = None
    fetcher: Fetcher | None = None
    changed: Callable[[str], files.Fingerprint] = lambda _digest: (0, 0, 0, 0)
    """When an MCP server last said that its tools are others now, by the digest of its definition."""
    rests: Callable[[str], bool] = lambda _digest: False
    """Whether a server that gave no list is left alone for now."""
    know: Callable[[Listing], None] = lambda _found: None
    """Told what the sources hold, before anything of it is read or asked."""
    progress: Callable[[int, int], None] | None = None
    """Told, from time to time, how many documents of how many have been read."""
    barred: Callable[[Listing], Mapping[str, Problem]] = lambda _found: {}
    """The documents that are left alone until a person confirms them, and why."""
    suspect: Callable[[str], Problem | None] = lambda _path: None
    """The same of one that was read to see whether it is a declaration."""


class Fresh:
    """What a load gave; offers what a ``Snapshot`` offers. What was taken over stays in the cache."""

    def __init__(self, loaded: Loaded) -> None:
        self._tools = loaded.tools
        self.keys: Sequence[str] = [tool.key for tool in loaded.tools]
        self.names: Sequence[str] = [tool.name for tool in loaded.tools]
        self.roles: Sequence[Role] = [tool.role for tool in loaded.tools]
        self.aliases = aliases_of(loaded.tools)
        self.skills = tuple(loaded.skills)
        self.units = loaded.units
        self.problems = loaded.problems

    @property
    def marks(self) -> frozenset[str]:
        return frozenset(unit.mark for unit in self.units)

    def told(self, *, errors_only: bool = False) -> Iterator[tuple[bool, Compiled]]:
        for unit in self.units:
            if not errors_only or unit.has_errors:
                yield unit.stands, unit.told

    def tool(self, index: int) -> Tool:
        tool = self._tools[index]
        return tool if (found := shelved(tool)) is None else found.take()


class Shelves:
    """A snapshot while it can be trusted; where a piece of it is damaged, everything is read anew."""

    def __init__(self, snapshot: Snapshot | Fresh, again: Callable[[], Loaded]) -> None:
        self._held = snapshot
        self._again: Callable[[], Loaded] | None = again
        self._reading = threading.Lock()

    def ask(self, question: Callable[[Snapshot | Fresh], _Answer]) -> _Answer:
        held = self._held
        try:
            return question(held)
        except _UNREADABLE:
            with self._reading:  # one reads for all who meet the damage
                if held is self._held:
                    again, self._again = self._again, None
                    if again is None:
                        raise
                    self._held = Fresh(again())
            return question(self._held)

    @property
    def keys(self) -> Sequence[str]:
        return self.ask(lambda held: held.keys)

    @property
    def names(self) -> Sequence[str]:
        return self.ask(lambda held: held.names)

    @property
    def roles(self) -> Sequence[Role]:
        return self.ask(lambda held: held.roles)

    @property
    def aliases(self) -> Sequence[tuple[int, str]]:
        return self.ask(lambda held: held.aliases)

    def tool(self, index: int) -> Tool:
        return self.ask(lambda held: held.tool(index))


class Extended:
    """A shelf with tools that lie in no file before and behind those that do."""

    def __init__(self, shelves: Shelves, more: Sequence[Tool], first: Sequence[Tool] = ()) -> None:
        self._shelves = shelves
        self._more = more
        self._first = first

    @property
    def keys(self) -> Sequence[str]:
        return [*(tool.key for tool in self._first), *self._shelves.keys, *(tool.key for tool in self._more)]

    @property
    def names(self) -> Sequence[str]:
        own, more = (tool.name for tool in self._first), (tool.name for tool in self._more)
        return [*own, *self._shelves.names, *more]

    @property
    def roles(self) -> Sequence[Role]:
        own, more = (tool.role for tool in self._first), (tool.role for tool in self._more)
        return [*own, *self._shelves.roles, *more]

    @property
    def aliases(self) -> Sequence[tuple[int, str]]:
        before = len(self._first)
        behind = before + len(self._shelves.keys)
        return [
            *((before + place, name) for place, name in self._shelves.aliases),
            *((behind + place, name) for place, name in aliases_of(self._more)),
        ]

    def tool(self, index: int) -> Tool:
        at = index - len(self._first)
        if at < 0:
            return self._first[index]
        beyond = at - len(self._shelves.keys)
        return self._shelves.tool(at) if beyond < 0 else self._more[beyond]


class LoadReport:
    """A catalog and everything that is wrong with what it was made from."""

    def __init__(
        self,
        shelves: Shelves,
        found: Listing,
        keep: Callable[[], None],
        *,
        warm: bool,
        own: Sequence[Tool] = (),
        own_problems: Sequence[Problem] = (),
        first: Sequence[Tool] = (),
    ) -> None:
        self._shelves = shelves
        self._own = (*first, *own)
        self._own_problems = own_problems
        self._found = found
        self.keep = keep
        """Write the cache, once there is time for it: the answer comes first."""
        self.warm = warm
        """True when nothing had to be read."""
        self._neighbours: Any = None
        """What all tools are to each other (``hygiene.compare``), once somebody asked about some."""
        shelf = Extended(shelves, own, first) if self._own else shelves
        self.catalog = Catalog(shelf, lambda: shelves.ask(lambda held: held.skills))

    def with_own(
        self,
        tools: Sequence[Tool],
        problems: Sequence[Problem],
        *,
        first: Sequence[Tool] = (),
        stated: Sequence[StatedEffect] = (),
    ) -> LoadReport:
        """The same with the host's own tools, which come from no file and into no cache; clashes are told.
        ``first`` stand before all others. ``stated``: the effects that the configuration gives to tools."""
        found = [*problems]
        distinct = [effects.applied(tool, stated) for tool in _distinct([*first, *tools], found)]
        others = {other.name: other for other in self.declared({tool.name for tool in distinct})}
        for tool in distinct:
            if tool.name in others:
                other = others[tool.name]
                what = f"shares its name with {other.key!r} of {other.origin.path}"
                found.append(_clash(tool, other, "catalog.name-clash", what))
        return LoadReport(
            self._shelves,
            self._found,
            self.keep,
            warm=self.warm,
            own=distinct[len(first) :],
            own_problems=found,
            first=distinct[: len(first)],
        )

    def declared(self, names: Set[str]) -> list[Tool]:
        """The callable tools of files that have one of these names."""
        found = [number for number, name in enumerate(self._shelves.names) if name in names]
        tools = (self._shelves.tool(number) for number in found)
        return [tool for tool in tools if tool.role is Role.TOOL]

    @property
    def listing(self) -> Listing:
        """What the sources held when they were looked through."""
        return self._found

    @property
    def asked(self) -> tuple[str, ...]:
        """The digests of everything that was asked for over a wire: servers and fetched documents."""
        return (*self._found.servers, *self._found.fetched)

    @property
    def rye_projects(self) -> tuple[str, ...]:
        """The folders whose ``.ai/tools`` were looked through, without the user's and the system's."""
        homes = (home for home in self._found.homes if home.place == "rye" and not home.space)
        return tuple(dict.fromkeys(home.project for home in homes))

    @property
    def servers(self) -> Mapping[str, tuple[str, str]]:
        """Every MCP server that the sources name, in one line and with the file that names it, by the digest
        of its definition."""
        return self._found.servers

    @property
    def stamp(self) -> bytes:
        """What the sources looked like: it differs when anything changed."""
        return self._found.stamp

    @property
    def folders(self) -> frozenset[str]:
        """Every folder in which a change may matter: those that were looked through, and those of files that
        were named."""
        return frozenset((*self._found.folders, *(home.folder for home in self._found.homes if home.folder)))

    @cached_property
    def version(self) -> str:
        """A short name for this state of the sources, for records."""
        own = repr([(tool.key, tool.invocation) for tool in self._own]) if self._own else ""
        return hashlib.sha256(self.stamp + own.encode("utf-8")).hexdigest()[:16]

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong or suspicious, each with its line where the file tells it."""
        return _located([*self.without_lines, *self.suspicious])

    @cached_property
    def suspicious(self) -> Sequence[Problem]:
        """What the declarations say besides what they declare. Looked for when problems are asked for, never
        while loading: it takes every tool down from the shelf. It leaves nothing out, and is in no cache."""
        found: Sequence[Problem] = import_module("toolcrib.trust.hygiene").look(
            list(self.catalog.tools), self.catalog.skills
        )
        return found

    def wrong_about(self, some: Sequence[Tool] | None, tools: Sequence[Tool]) -> list[Problem]:
        """Everything that is wrong or suspicious about some tools, without lines, and part of what is about
        others: a fraction of the work that all problems are. None: about all. ``tools``: all there are."""
        if some is None or "suspicious" in self.__dict__:
            return [*self.without_lines, *self.suspicious]
        hygiene = import_module("toolcrib.trust.hygiene")
        if self._neighbours is None:
            self._neighbours = hygiene.compare(tools)
        return [*self.without_lines, *hygiene.look(some, among=self._neighbours)]

    @cached_property
    def without_lines(self) -> Sequence[Problem]:
        """What is wrong, before the files are read again for the lines of their places."""
        return self._shelves.ask(lambda held: [*self._wrong(held)])

    @cached_property
    def severities(self) -> Counter[Severity]:
        """How much of it there is of each severity: none of it is kept."""
        if "without_lines" in self.__dict__:  # what is kept all the same need not be read again
            return Counter(problem.severity for problem in self.without_lines)
        return self._shelves.ask(lambda held: Counter(problem.severity for problem in self._wrong(held)))

    @cached_property
    def errors(self) -> Sequence[Problem]:
        """Only what is an error: cheaper, because little else of the machine is looked at."""
        return self._shelves.ask(lambda held: [*self._wrong(held, errors_only=True)])

    def _wrong(self, held: Snapshot | Fresh, *, errors_only: bool = False) -> Iterator[Problem]:
        def wanted(problem: Problem) -> bool:
            return not errors_only or problem.severity is Severity.ERROR

        yield from filter(wanted, self._found.problems)
        for _, told in held.told(errors_only=errors_only):
            yield from filter(wanted, told.problems)
        yield from filter(wanted, held.problems)
        yield from filter(wanted, self._own_problems)
        for stands, told in held.told(errors_only=errors_only):
            for condition in told.conditions if stands else ():
                if not condition.drops and wanted(condition.otherwise) and not _holds(condition):
                    yield condition.otherwise

    @property
    def units(self) -> Sequence[Kept]:
        """What each document was compiled to, as far as linking looks at it."""
        return self._shelves.ask(lambda held: held.units)

    @property
    def marks(self) -> frozenset[str]:
        """The digests of what the documents looked like."""
        return self._shelves.ask(lambda held: held.marks)

    @property
    def notes(self) -> tuple[str, ...]:
        """What only verbose output names."""
        return self._shelves.ask(lambda held: tuple(note for _, told in held.told() for note in told.notes))


class Differences(Struct, frozen=True, kw_only=True):
    """What is not the same in two states of the catalog, by the keys of tools and the names of skills."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.added) + len(self.removed) + len(self.changed)


def differences(before: LoadReport, after: LoadReport) -> Differences:
    """What a load changed. Only tools whose documents look different are taken down from the shelves."""
    old, new = {*before.catalog.keys}, {*after.catalog.keys}
    known = before.marks
    looked_at = dict.fromkeys(
        tool.key for unit in after.units if unit.mark not in known for tool in unit.compiled.tools
    )
    changed = [
        key
        for key in looked_at
        if key in old and key in new and not _is_alike(before.catalog.find(key), after.catalog.find(key))
    ]
    skills = {skill.name: skill for skill in before.catalog.skills}
    read = {skill.name: skill for skill in after.catalog.skills}
    return Differences(
        added=(*sorted(new - old), *(f"skill {name}" for name in read if name not in skills)),
        removed=(*sorted(old - new), *(f"skill {name}" for name in skills if name not in read)),
        changed=(
            *changed,
            *(f"skill {name}" for name in read if name in skills and read[name] != skills[name]),
        ),
    )


def _is_alike(old: Tool, new: Tool) -> bool:
    """Whether all of a tool is the same but where it stands in its file."""
    return replace(old, origin=new.origin) == new


def newly_wrong(before: LoadReport, after: LoadReport) -> tuple[Problem, ...]:
    """The errors of a load that the one before did not have."""
    known = {(problem.code, problem.path, problem.message) for problem in before.errors}
    return tuple(
        problem
        for problem in after.errors
        # What waits to be confirmed must not keep what was changed beside it from counting.
        if problem.code != UNCONFIRMED and (problem.code, problem.path, problem.message) not in known
    )


def load(
    wanted: Sequence[Source],
    rules: Rules,
    machine: Machine,
    *,
    rye_spaces: Callable[[], Sequence[Source]] = tuple,
    keep: Cache | None = None,
    earlier: LoadReport | None = None,
    stated: Sequence[StatedEffect] = (),
) -> LoadReport:
    """Load everything the sources hold. Raises SourceError only for a path that a person named wrongly.

    What ``earlier`` compiled, under the same rules, is taken over where the files are still the same.
    ``stated``: the effects that the configuration gives to tools.
    """
    with _without_collections():
        return _load(wanted, rules, machine, rye_spaces, keep or Cache(None), earlier, tuple(stated))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Loading makes many values and no cycles: looking for garbage among them costs a third of the time."""
    is_first = next(_LOADS) == 0
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if is_first and gc.get_freeze_count() == 0:
                # What was made here goes to the oldest generation unseen; otherwise the collector would look
                # through all of it at once as soon as it may. Once in a process: a host that loads, or opens
                # cribs, every few seconds would send its own garbage there, too, where nobody would count
                # it, and with it the descriptors of cribs that it has closed.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _load(
    wanted: Sequence[Source],
    rules: Rules,
    machine: Machine,
    rye_spaces: Callable[[], Sequence[Source]],
    kept: Cache,
    earlier: LoadReport | None,
    stated: Sequence[StatedEffect],
) -> LoadReport:
    found = sources.listing(wanted, rye_spaces=rye_spaces, changed=machine.changed)
    found.leave_alone(machine.barred(found))
    machine.know(found)
    # By digest: a definition may hold secrets, and what is kept must not.
    identity = (tuple(replace(source, server=_mark_of(source)) for source in wanted), rules, stated)
    snapshot = kept.open(identity) if earlier is None else None

    def again() -> Loaded:
        loaded = _cold(found, rules, machine, (), stated)
        kept.save(identity, loaded)
        return loaded

    if snapshot is not None:
        shelves = Shelves(snapshot, again)
        is_same = snapshot.stamp == found.stamp and _counts(snapshot.until, machine.clock())
        if is_same and _same_programs(snapshot, machine):
            return LoadReport(shelves, found, lambda: None, warm=True)
        units = shelves.ask(lambda held: held.units)
    else:
        # Whoever looks again asks again, too, where nothing was told.
        units = () if earlier is None else [kept for kept in earlier.units if kept.until is None]
    before = _standing(earlier) if earlier is not None and found.barred else {}
    try:
        loaded = _cold(found, rules, machine, units, stated, before)
    except _UNREADABLE:  # what was left in the cache is not what it was
        loaded = _cold(found, rules, machine, (), stated, before)

    def save() -> None:
        if before.keys().isdisjoint(found.barred):  # else some of it is what files said before
            kept.save(identity, loaded)

    return LoadReport(Shelves(Fresh(loaded), again), found, save, warm=False)


def _standing(earlier: LoadReport) -> dict[str, Kept]:
    """What the documents of an earlier load were compiled to, by their paths."""
    listed = zip(earlier.listing.candidates, earlier.units, strict=True)
    return {candidate.path: kept for candidate, kept in listed if kept.stands and kept.format is not None}


def _mark_of(source: Source) -> str:
    return hashlib.sha256(source.server.encode("utf-8")).hexdigest() if source.server else ""


def _same_programs(snapshot: Snapshot, machine: Machine) -> bool:
    return all((machine.which(name) is not None) is there for name, there in snapshot.programs.items())


def _cold(
    found: Listing,
    rules: Rules,
    machine: Machine,
    earlier: Sequence[Kept],
    stated: Sequence[StatedEffect],
    before: Mapping[str, Kept] = _NONE,
) -> Loaded:
    """Compile and link everything, taking over what ``earlier`` compiled from the same files. ``before``: of
    a document that is left alone what it said before, which goes on to count."""
    compiled = _compile_all(found, rules, machine, earlier)
    problems: list[Problem] = []
    programs: dict[str, bool] = {}
    units: list[Kept] = []
    standing: dict[str, list[Unit]] = {}
    for candidate, kept in zip(found.candidates, compiled, strict=True):
        if candidate.path in found.suspected and kept.format is not None:
            problem = machine.suspect(candidate.path)
            found.barred = {**found.barred, candidate.path: problem} if problem is not None else found.barred
        stands = candidate.path not in found.barred
        if not stands:
            problems.append(found.barred[candidate.path])
            if candidate.path in before:
                kept, stands = before[candidate.path], True
        for condition in kept.compiled.conditions:
            missing = _missing(condition, machine, programs) if condition.drops else None
            if missing is not None:
                stands = False
                otherwise = condition.otherwise
                problems.append(replace(otherwise, message=otherwise.message.replace("{missing}", missing)))
        units.append(replace(kept, stands=stands) if stands is not kept.stands else kept)
        if kept.format is not None and stands:
            standing.setdefault(kept.format, []).append(
                Unit(path=candidate.path, item=candidate.item, space=candidate.space, compiled=kept.compiled)
            )
    tools: list[Tool] = []
    skills: list[Skill] = []
    for name in formats.FORMATS:
        if name in standing:
            linked = formats.link(name, standing[name], rules)
            tools += linked.tools
            skills += linked.skills
            problems += linked.problems
    tools = _distinct(tools, problems)
    if stated:
        tools = [effects.applied(tool, stated) for tool in tools]
    for kept in units:
        for tool in kept.compiled.tools:
            if (found_shelved := shelved(tool)) is not None:
                found_shelved.forget()
    until = min((kept.until for kept in units if kept.until is not None), default=None)
    return Loaded(found.stamp, units, tools, skills, problems, programs, until)


def _compile_all(found: Listing, rules: Rules, machine: Machine, earlier: Sequence[Kept]) -> list[Kept]:
    now = machine.clock()
    known = {kept.mark: kept for kept in earlier if _counts(kept.until, now)}
    marks = found.marks
    if found.servers:
        before = {kept.mark: kept for kept in earlier}
        for candidate, mark in zip(found.candidates, marks, strict=True):
            if candidate.server and mark in before and machine.rests(candidate.server):
                known[mark] = before[mark]
    for candidate, mark in zip(found.candidates, marks, strict=True) if found.barred else ():
        if candidate.path in found.barred:  # neither read, nor asked for, nor started
            known[mark] = _kept(mark, None, Compiled(), now)
    fresh = [candidate for candidate, mark in zip(found.candidates, marks, strict=True) if mark not in known]
    read = _compiled(fresh, rules, machine, found.confirmed)
    return [known[mark] if mark in known else _kept(mark, *next(read), now) for mark in marks]


def _kept(mark: str, name: str | None, compiled: Compiled, now: float) -> Kept:
    until = None if compiled.again_s is None else now + min(compiled.again_s, _AGAIN_S_MAX)
    return Kept(mark, name, compiled, True, until)


def _counts(until: float | None, now: float) -> bool:
    """Whether what was told still counts. A clock that was set back must not make it count for ever."""
    return until is None or now < until <= now + _AGAIN_S_MAX


def _compiled(
    fresh: Sequence[Candidate], rules: Rules, machine: Machine, confirmed: Mapping[str, str] = _NONE
) -> Iterator[tuple[str | None, Compiled]]:
    for number, (candidate, document) in enumerate(
        sources.documents(fresh, machine.prober, machine.asker, machine.fetcher), 1
    ):
        if confirmed and not _is_confirmed(document, confirmed):
            document = replace(document, content=None, parsed=None, unreadable=_EXCHANGED)
        compiled = _compile(candidate, document, rules)
        if machine.progress is not None and (number % 200 == 0 or number == len(fresh)):
            machine.progress(number, len(fresh))
        yield compiled


def _is_confirmed(document: Document, confirmed: Mapping[str, str]) -> bool:
    """Whether the bytes that were read are those that a person confirmed. Attack: a call that runs since
    before then, and changes a file between the look at it and its reading."""
    folder = os.path.dirname(document.path)
    read = {document.path: document.content}
    read |= {os.path.join(folder, name): content for name, content in document.neighbours.items()}
    return all(
        content is None or path not in confirmed or hashlib.sha256(content).hexdigest() == confirmed[path]
        for path, content in read.items()
    )


def _compile(candidate: Candidate, document: Document, rules: Rules) -> tuple[str | None, Compiled]:
    name, compiled = formats.compile_document(document, rules)
    told = any(problem.code == "source.not-probed" for problem in compiled.problems)
    if name is None and candidate.quiet and not told:
        compiled = Compiled(notes=(f"{candidate.path}: not a declaration",))
    return name, _sound(compiled)


def _sound(compiled: Compiled) -> Compiled:
    """Leave out tools whose schema is none: their arguments could not be checked, and providers refuse the
    whole request for one of them. In a document that stands or falls as a whole one such tool takes all."""
    bad: dict[str, list[Problem]] = {}
    patterns = sum(
        schema.patterns_in(found)
        for tool in compiled.tools
        for found in (tool.input_schema, tool.output_schema)
        if found is not None
    )
    for tool in compiled.tools:
        for which, found in (("input", tool.input_schema), ("output", tool.output_schema)):
            for flaw in schema.flaws(found, patterns=patterns) if found is not None else ():
                place = jsontext.place_text(flaw.pointer)
                what = f"{place}: {flaw.message}" if place else flaw.message
                bad.setdefault(tool.key, []).append(
                    Problem(
                        code="schema.invalid",
                        message=f'"{tool.name}": {which} schema: {what}',
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
        tools=() if compiled.whole else tuple(tool for tool in compiled.tools if tool.key not in bad),
        broken=(*compiled.broken, *(tool for tool in compiled.tools if tool.key in bad and tool.chain)),
        problems=(*compiled.problems, *(problem for found in bad.values() for problem in found)),
    )


def _distinct(tools: Sequence[Tool], problems: list[Problem]) -> list[Tool]:
    """Give every tool a key of its own, and report bare names that need one."""
    taken: dict[str, Tool] = {}
    names: dict[str, Tool] = {}
    servers: dict[tuple[str, str], list[tuple[Tool, Tool]]] = {}
    for tool in tools:
        key = tool.key
        number = 2
        while key in taken:
            scope, _, name = tool.key.partition("/")
            key = f"{scope}~{number}/{name}"
            number += 1
        if key != tool.key:
            first = taken[tool.key]
            tool = tool.replace(key=key)
            problems.append(
                _clash(tool, first, "catalog.key-clash", f"has the key {first.key!r} too; its key is {key!r}")
            )
        taken[key] = tool
        if tool.role is not Role.TOOL:
            continue
        other = names.setdefault(tool.name, tool)
        if other is tool:
            continue
        same = other.origin.format == tool.origin.format
        if not (same and tool.habits.namesakes is not Namesakes.REPORTED):
            if isinstance(tool.invocation, CallMcp) and isinstance(other.invocation, CallMcp):
                servers.setdefault((other.scope, tool.scope), []).append((tool, other))
                continue
            problems.append(
                _clash(
                    tool,
                    other,
                    "catalog.name-clash",
                    f"shares its name with {other.key!r} of {other.origin.path}",
                )
            )
    problems += [_shared_names(first, second, pairs) for (first, second), pairs in servers.items()]
    return list(taken.values())


def _shared_names(first: str, second: str, pairs: Sequence[tuple[Tool, Tool]]) -> Problem:
    """Two servers with tools of the same names, told once: models know them apart by their servers' names."""
    told = ", ".join(tool.name for tool, _ in pairs[:_SHARED_MAX])
    more = f" and {len(pairs) - _SHARED_MAX} more" if len(pairs) > _SHARED_MAX else ""
    return replace(
        _clash(*pairs[0], "catalog.name-clash", ""),
        severity=Severity.INFO,
        message=f'the servers "{first}" and "{second}" share names of tools: {told}{more}',
    )


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
    wanted: dict[str, set[jsontext.Pointer]] = {}
    for problem in problems:
        if problem.line is None and problem.pointer is not None and problem.path.endswith(".json"):
            places = wanted.setdefault(problem.path, set())
            pointer = problem.pointer
            places.add(pointer)
            while pointer and (pointer := pointer[:-1]) not in places:  # the nearest place around it counts
                places.add(pointer)
    lines: dict[str, dict[jsontext.Pointer, jsontext.Span]] = {}
    for path, places in wanted.items():
        content, _ = files.read(path)
        text = jsontext.decode(content) if content is not None else None
        lines[path] = jsontext.locate(text, places) if isinstance(text, str) else {}
    return tuple(_with_line(problem, lines.get(problem.path, {})) for problem in problems)


def _with_line(problem: Problem, spans: dict[jsontext.Pointer, jsontext.Span]) -> Problem:
    if not spans or problem.line is not None or problem.pointer is None:
        return problem
    pointer = problem.pointer
    while pointer and pointer not in spans:
        pointer = pointer[:-1]
    # Not even the root has a place when the file was broken after it was read.
    return replace(problem, line=spans[pointer].line) if pointer in spans else problem
