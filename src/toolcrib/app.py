"""The composition root: builds the rooms, owns their lifetime, and hands them to a ``Crib``.

Nothing is decided here. This is one of the five places that import late (by whole modules), so that opening
a crib costs only what is used.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.catalog import effects, files, loading, sources
from toolcrib.catalog.cache import Cache
from toolcrib.catalog.catalog import Catalog, Tools, is_within
from toolcrib.config import (
    Config,
    Environment,
    check_rules,
    current_folder,
    lines_of,
    lock_folder,
    named_source,
    refuse_former,
    refuse_former_state,
    resolve,
    searchable,
)
from toolcrib.errors import EditError, Kind, StoreError, UnknownTool, Unrecorded, UsageError
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    LOCK_NAME,
    READING,
    TIMEOUT_S_MAX,
    Approval,
    Choice,
    Declared,
    DeclareOptions,
    Disabled,
    Document,
    LeftOut,
    ProbeOutcome,
    Problem,
    Reach,
    Role,
    Rules,
    Selected,
    Severity,
    Skill,
    Tool,
    ToolCall,
    ToolError,
    ToolMode,
    ToolResult,
    Trust,
    Vetted,
)
from toolcrib.paths import NOTED
from toolcrib.sandbox import NEVER, Cancel, Sandbox
from toolcrib.servers import ServerLists
from toolcrib.store.keep import STORE_NAME, Keep

if TYPE_CHECKING:
    from toolcrib.catalog.places import Code, Places
    from toolcrib.catalog.unconfirmed import Unconfirmed
    from toolcrib.dialects import Dialect
    from toolcrib.engine import StartedCall
    from toolcrib.formats.capability import Migration
    from toolcrib.functions import Function, Report
    from toolcrib.gate import Explanation, Gate
    from toolcrib.hands import Hands
    from toolcrib.own.items import RyeTools
    from toolcrib.own.skills import Skills, SkillText
    from toolcrib.runtimes._mcp_server import State as ServerState
    from toolcrib.runtimes.functions import Own
    from toolcrib.spans import GenAiSpans
    from toolcrib.trust.approvals import Approvals
    from toolcrib.trust.items import Location, Signed
    from toolcrib.trust.lock import Watched
    from toolcrib.trust.pinning import MadeByTools, Pins
    from toolcrib.trust.vetting import Vetter

ContextCheck = Callable[[Mapping[str, object]], object]


def open(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Config | None = None,
    *,
    config: Config | str | os.PathLike[str] | None = None,
    context_checks: Mapping[str, ContextCheck] | None = None,
    handlers: Mapping[str, object] | None = None,
    tools: Sequence[object] = (),
    provide: Mapping[Any, object] | None = None,
    fallback: Sequence[object] = (),
    in_process: bool = False,
    sandbox: Sandbox | None = None,
    environment: Environment | None = None,
    progress: Callable[[int, int], None] | None = None,
    only_look: bool = False,
    only: str | None = None,
) -> Crib:
    """Open a crib on a folder, a file, several of them, or a ``Config``; or on functions alone.

    ``context_checks`` are the checks that capability groups name; ``handlers`` the host's own code for
    executors or groups. Both are only ever called by name, never looked up from a declaration. ``in_process``
    lets Python tools run inside this process, where nothing can stop them: for code you trust like your own.
    ``sandbox`` takes the place of the strongest level that works here.
    ``tools`` are functions of the host's own, or modules and objects with marked ones; ``provide`` says what
    their parameters of certain types are given, which no model sees. ``fallback`` are tools that are still
    declared in code, as functions or as mappings like those in a group's file: used where no file declares
    their name.
    ``config`` may be the path of a file: it counts as with ``--config``, over the user's own.
    ``progress`` is told how many documents of how many have been read.
    ``only_look``: loading starts no server and no program and fetches nothing; what they once said counts.
    ``only`` is the one tool that will be used: where it is the key of an MCP server's tool, no other server
    is asked for its tools, and this one is waited for.
    """
    surroundings = environment or Environment.read()
    cwd = current_folder()
    if context_checks:
        _check_checks(context_checks)
    if handlers is not None:
        _check_handlers(handlers)
    if isinstance(paths, Config):
        if config is not None:
            raise UsageError("two configurations were given", "hand over one Config")
        config, paths = paths, None
    if paths is None:
        named: list[str] = []
    elif isinstance(paths, (str, os.PathLike)):
        named = [os.fspath(paths)]
    else:
        try:
            named = [os.fspath(path) for path in paths]
        except TypeError:
            what = f"a path, a list of paths or a Config was expected (got {type(paths).__name__})"
            raise UsageError(what, "name a folder or a file as a text") from None
    if config is None:
        config = Config(state=surroundings.state)
    else:
        config = _read_config(config, surroundings, cwd, alone=bool(tools or fallback))
    if config.state == surroundings.state:
        refuse_former_state(surroundings.state)
    locked = refuse_former(lock_folder(config, surroundings), LOCK_NAME, config.state)
    config = replace(config, problems=(*config.problems, *locked)) if locked else config
    if named:
        config = replace(config, sources=tuple(named_source(text, cwd) for text in named))
    elif not config.sources and not tools and not fallback:
        raise UsageError(
            "nothing to open", "name a folder, a file, a Config with sources, or hand over tools"
        )
    return Crib(
        config,
        surroundings,
        context_checks or {},
        handlers or {},
        progress,
        own=_own_tools(tools, fallback, provide, config.rules(executors=tuple(handlers or ()))),
        in_process=in_process,
        sandbox=sandbox,
        only_look=only_look,
        only=only,
    )


def _read_config(config: object, environment: Environment, cwd: str, *, alone: bool) -> Config:
    """A configuration, or the one of a file that the host names. ``alone``: there are tools without sources,
    so that the current folder is not looked at where nothing else is named."""
    if isinstance(config, Config):
        return config
    if not isinstance(config, (str, os.PathLike)):
        what = type(config).__name__
        raise UsageError(f"config: must be a Config, or the path of a configuration file (got {what})")
    found = resolve(environment, cwd=cwd, file=os.fspath(config))
    return replace(found, sources=()) if alone and all(each.found for each in found.sources) else found


def _check_checks(checks: Mapping[str, object]) -> None:
    import inspect

    for name, check in checks.items():
        where = f"context_checks[{name!r}]"
        if not callable(check):
            raise UsageError(f"{where}: must be a function (got {type(check).__name__})")
        if inspect.iscoroutinefunction(check) or inspect.iscoroutinefunction(type(check).__call__):
            # Attack: what an async check gives is true before anybody has awaited it.
            raise UsageError(f"{where}: must not be async", "look it up before, and hand it over in context=")


def _check_handlers(handlers: object) -> None:
    if not isinstance(handlers, Mapping):
        what = type(handlers).__name__
        raise UsageError(f"handlers: must be a mapping (got {what})", "write handlers={EXECUTOR: FUNCTION}")
    for name, handler in handlers.items():
        where = f"handlers[{name!r}]"
        if not isinstance(name, str):
            raise UsageError(f"{where}: must be under the name of an executor, a group or a tool")
        if isinstance(handler, type):
            raise UsageError(f"{where}: {handler.__name__} is a class", "hand over an instance")
        named = (each for each in dir(handler) if each.startswith("execute_") and each.endswith("_tool"))
        if not callable(handler) and not any(named):
            raise UsageError(
                f"{where}: is no function and has none (got {type(handler).__name__})",
                f"hand over a function, or a module or object with execute_{name}_tool",
            )


class OwnTools(Struct, frozen=True, kw_only=True):
    """What the host itself brings: its functions, and tools that it still declares in code."""

    tools: tuple[Tool, ...] = ()
    fallback: tuple[Tool, ...] = ()
    problems: tuple[Problem, ...] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)


def _own_tools(
    tools: Sequence[object], fallback: Sequence[object], provide: Mapping[Any, object] | None, rules: Rules
) -> OwnTools:
    if not tools and not fallback and provide is None:
        return OwnTools()
    from toolcrib.formats import capability
    from toolcrib.functions import register

    ours = register(tools, provide=provide)
    functions = [thing for thing in fallback if not isinstance(thing, Mapping)]
    groups = [thing for thing in fallback if isinstance(thing, Mapping)]
    theirs = register(functions, provide=provide, taken=ours.functions)
    try:
        plain = [jsontext.loads_own(jsontext.plain(dict(group))) for group in groups]
    except (TypeError, ValueError) as error:
        raise UsageError(f"fallback: a declaration must be JSON: {error}", "use plain values") from None
    kept = capability.compile_mappings(plain, rules)
    return OwnTools(
        tools=ours.tools,
        fallback=(*theirs.tools, *kept.tools),
        problems=(*ours.problems, *theirs.problems, *kept.problems),
        functions={**ours.functions, **theirs.functions},
    )


class Crib:
    """An open runtime: what there is, what is wrong, what a message sees, what a provider is sent."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        context_checks: Mapping[str, ContextCheck],
        handlers: Mapping[str, object],
        progress: Callable[[int, int], None] | None = None,
        *,
        own: OwnTools | None = None,
        in_process: bool = False,
        sandbox: Sandbox | None = None,
        only_look: bool = False,
        only: str | None = None,
    ) -> None:
        check_rules(config)
        self._own = own or OwnTools()
        self._migration: Migration | None = None
        self.config = config
        self._environment, self._left_out = searchable(environment, config)
        self._checks = dict(context_checks)
        self._handlers = dict(handlers)
        self._progress = progress
        self._in_process = in_process
        self._sandbox = sandbox
        self._only_look = only_look
        self._lock = threading.Lock()
        self._hands: Hands | None = None
        self._gate: Gate | None = None
        self._closing: Gate | None = None
        """The gate while the crib closes: what tools made is looked at when all have ended."""
        self._is_closed = False
        self._loading = threading.Lock()
        self._is_loaded = False
        self._watchers: list[Callable[[], object]] = []
        self._looking = (0.0, 0.0)
        """Seconds that looking for changes has taken lately, and until when they were counted."""
        self._lists = ServerLists(
            config.state, lambda: self.hands.servers, self._look_again, _server_of_key(only)
        )
        try:
            with self._loading:  # a server may say at once that its list changed
                self._report = self._load()
                self._is_loaded = True
        except BaseException:  # nobody gets this crib, so nobody else could end what it started
            self._end()
            raise

    def __enter__(self) -> Crib:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Crib:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import anyio.to_thread

        # Beside the loop: what is cancelled on it must come to its end there, and be recorded.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    @cached_property
    def unconfirmed(self) -> Unconfirmed:
        """What appeared where tools may write, and is not used before a person confirms it."""
        from toolcrib.catalog.unconfirmed import Unconfirmed

        def gate() -> Gate:
            return self._closing or self.gate

        return Unconfirmed(
            self.config.state,
            cwd=current_folder(),
            places=self._placed,
            may_write=lambda folder: gate().may_write(folder) if self._is_loaded else None,
            imports=lambda path, text, above: gate().imported(path, text, above),
            code=self._code,
        )

    def _placed(self) -> tuple[sources.Listing, Places]:
        """What is listed, and what belongs to tools; while we load, as far as it is listed."""
        gate, listed = self._closing or self.gate, self._lists.listing
        return gate.places() if self._is_loaded or listed is None else (listed, gate.places_of(listed))

    def _code(self, tool: Tool) -> Code:
        listed = self._lists.listing
        return (self._closing or self.gate).code_of(tool, {} if listed is None else listed.servers)

    def _unconfirmed(self) -> Unconfirmed | None:
        """The same, where anything can have appeared: most hosts that only look import nothing for it."""
        if "unconfirmed" in self.__dict__:
            return self.unconfirmed
        state = self.config.state
        is_there = state is not None and any(os.path.lexists(f"{state}/{name}") for name in NOTED)
        return self.unconfirmed if is_there else None

    def _made_by_tools(self, path: str) -> MadeByTools | None:
        """Why a file that is found by its name must not be used."""
        unconfirmed = self._unconfirmed()
        record = None if unconfirmed is None else unconfirmed.appeared(path)
        if record is None:
            return None
        from toolcrib.catalog.appeared import How
        from toolcrib.catalog.unconfirmed import words_of
        from toolcrib.trust.pinning import MadeByTools

        return MadeByTools(*words_of(record), is_new=record.how is How.APPEARED)

    def _set_aside(self) -> tuple[Problem, ...]:
        """The files that set up tools, and do not count, because a tool may have made them."""
        unconfirmed = self._unconfirmed()
        if unconfirmed is None or not (unconfirmed.records.all() or unconfirmed.past.all()):
            return ()
        from toolcrib.catalog.unconfirmed import problem_of

        files = (self._closing or self.gate).settings_files()
        found = [(path, unconfirmed.appeared(path)) for path in files]
        found += [(each.folder, each.record) for each in self._left_out]
        return tuple(problem_of(record, path) for path, record in found if record is not None)

    def _barred(self, found: sources.Listing) -> Mapping[str, Problem]:
        unconfirmed = self._unconfirmed()
        return {} if unconfirmed is None else unconfirmed.problems(found)

    def close(self) -> None:
        """End what was started, finish the records, and write down what makes the next start faster."""
        self._end()
        if not self._only_look:
            self._report.keep()

    def _end(self) -> None:
        self._lists.close()
        with self._lock:
            hands, self._hands = self._hands, None
            gate, self._gate = self._gate, None
            self._is_closed = True
        try:
            if hands is not None:
                hands.close()
            if gate is not None and "unconfirmed" in self.__dict__:
                self._closing = gate
                known = [*self.catalog.tools, *self.server_records()] if self._is_loaded else []
                self.unconfirmed.close(known)
        finally:
            if gate is not None:
                gate.close()

    # -- what there is --------------------------------------------------------------------------------------

    @property
    def environment(self) -> Environment:
        """What was read of the host's surroundings when it was opened."""
        return self._environment

    @property
    def catalog(self) -> Catalog:
        return self._report.catalog

    @property
    def tools(self) -> Tools:
        """Every record, in canonical order."""
        return self.catalog.tools

    @property
    def skills(self) -> tuple[Skill, ...]:
        return self.catalog.skills

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the declarations and the configuration, as values."""
        return (*self.config.problems, *self._set_aside(), *self._report.problems)

    def wrong_about(self, some: Sequence[Tool] | None, tools: Sequence[Tool]) -> list[Problem]:
        """The problems about some tools (None: about all), without lines, and part of what is about others:
        much cheaper than asking for the problems. ``tools``: every record."""
        return [*self.config.problems, *self._set_aside(), *self._report.wrong_about(some, tools)]

    @property
    def severities(self) -> Counter[Severity]:
        """How many problems there are of each severity, without what is merely suspicious (``hygiene``): much
        cheaper than asking for the problems."""
        told = (*self.config.problems, *self._set_aside())
        return Counter(problem.severity for problem in told) + self._report.severities

    @property
    def version(self) -> str:
        """Differs whenever the catalog, or what is switched off in it, does: what was listed before may then
        be listed differently. Also where what is switched off cannot be read: those who wait for another
        version must live to see it."""
        try:
            off = ",".join(entry.tool for entry in self.disabled())
        except StoreError:
            off = "?"
        return f"{self._report.version}-{off}" if off else self._report.version

    def watch(self, told: Callable[[], object]) -> None:
        """Have ``told`` called whenever the catalog was replaced by another, in the thread that did it."""
        self._watchers.append(told)

    @property
    def notes(self) -> tuple[str, ...]:
        """What only verbose output names: files that are no declarations."""
        return self._report.notes

    @property
    def rye_projects(self) -> tuple[str, ...]:
        """The projects of the sources that have rye items, each the folder that holds ``.ai``."""
        return self._report.rye_projects

    def find(self, name: str) -> Tool:
        """The tool of a key or a bare name. Raises UnknownTool."""
        _check_text("name", name)
        try:
            return self._served(name, self.catalog) or self.catalog.find(name)
        except UnknownTool as unknown:
            absence = self._lists.absence(name, self.catalog.keys)
            if absence is None:
                raise
            message, hint = absence
            raise UnknownTool(f"{unknown.message}: {message}", hint) from None

    @property
    def asks(self) -> bool:
        """Whether some of what there is was asked for over a wire."""
        return bool(self._report.asked)

    def pins(self) -> Pins:
        """The lock of the sources, whether there is one yet or not."""
        return self.gate.pins

    def _pins(self, gate: Gate) -> Pins:
        from toolcrib.catalog import coverage
        from toolcrib.catalog.projects import Projects
        from toolcrib.runtimes._dependencies import shadows
        from toolcrib.trust.pinning import Pins

        home, held, projects = self._environment.user_space, gate.contents, Projects(gate.keep)

        def pins_in(folder: str, other: Callable[[str], Pins] | None = None) -> Pins:
            def watch(tool: Tool) -> Watched:
                return coverage.watched(tool, base=folder, home=home, defined=self._lists.defined)

            return Pins(
                folder,
                home=home,
                state=self.config.state,
                path=self._environment.path,
                contents=held,
                watch=watch,
                trusted=projects.is_trusted,
                other=other,
                shadows=lambda path, above: shadows(path, held, above=above),
                made_by_tools=self._made_by_tools,
            )

        return pins_in(lock_folder(self.config, self._environment), pins_in)

    def server_records(self) -> list[Tool]:
        """The records that stand for the MCP servers of the sources themselves."""
        if not self._report.servers:
            return []
        from toolcrib.formats import mcp

        named = self._report.servers.values()
        return [mcp.server_record(mcp.Server.read(text), path) for text, path in named]

    def lock_problems(self) -> tuple[Problem, ...]:
        """What is not as it was locked; nothing where there is no lock. Reads the files of every tool."""
        if not self.gate.is_locked:
            return ()
        return tuple(self.pins().problems([*self.tools, *self.server_records()], self.gate.vet_signature))

    def signature_problems(self) -> tuple[Problem, ...]:
        """Signed tools that are older than what ran here, or have the signed text of another tool. Reads the
        files of every signed tool."""
        from toolcrib.trust import placing

        tools = [tool for tool in self.tools if tool.signature is not None and tool.signature.key]
        held = ((tool, self.gate.contents.file(tool.origin.path)) for tool in tools)
        texts = [(tool, file.content) for tool, file in held if file is not None and file.content is not None]
        older = ((tool, self.gate.older(tool)) for tool in tools)
        return (*placing.older(older), *placing.copies(texts))

    def rule_problems(self) -> list[Problem]:
        """Return what the project's file says of tools that do not exist: rules, budgets, grants, effects.

        Not those of the user's own file, which speaks for all projects, nor those of a file above the folder
        that was loaded, nor where sources were left out or others named instead: what they name may be there.
        """
        from toolcrib.trust import naming
        from toolcrib.trust.budgets import budgets_of
        from toolcrib.trust.rules import rules_of

        config, file = self.config, self.config.file
        if file is None or file == self._environment.user_config or not self.tools:
            return []
        if any(source.named and source.root for source in config.sources):
            return []  # by ``named_source``, in place of those that the file speaks of
        ignored = [problem.pointer or () for problem in config.problems]
        if any(key[:1] == ("source",) or key == ("skills", "extra_dirs") for key in ignored):
            return []
        if any(problem.code == "source.not-probed" for problem in self._report.without_lines):
            return []
        here = self.gate.cwd
        if os.path.normpath(os.path.dirname(file)) != here and all(
            source.found and source.path == here for source in config.sources
        ):
            return []
        grants = zip(config.grants, config.grant_files, strict=True)
        asked = naming.in_file(
            file,
            rules_of(config.policy, config.policy_places),
            budgets_of(config.budgets, config.budget_places),
            {
                "grants": [grant.pattern for grant, grant_file in grants if grant_file == file],
                "tools": [each.pattern for each in config.effects if each.file == file],
            },
        )
        if not asked:  # as mostly; no tool is taken from the shelf for it
            return []
        lines = partial(lines_of, config.file_text)
        return naming.look(asked, self.tools, self.server_records(), file=file, lines=lines)

    def changed(self) -> bool:
        """Whether the sources look different from when they were last read. Reads and runs nothing."""
        found = sources.listing(self._wanted(), rye_spaces=self._rye_spaces, changed=self._lists.changed_at)
        found.leave_alone(self._barred(found))
        return found.stamp != self._report.stamp

    def _has_changed(self) -> bool:
        """As ``changed``, for refused calls. Attack: refused calls without end, so that a host of many tools
        does nothing but look at its files: a second of looking is free, then it takes a tenth of the time."""
        began = time.monotonic()
        spent_s, at = self._looking
        spent_s = max(0.0, spent_s - (began - at) / 10)
        if spent_s > 1.0:
            return False
        changed = self.changed()
        now = time.monotonic()
        self._looking = (spent_s + now - began, now)
        return changed

    def reload(self, *, fresh: bool = False, sound: bool = False) -> tuple[Problem, ...]:
        """Look again. The catalog is replaced whole; what was taken from the old one stays valid. ``fresh``:
        ask MCP servers for their tools again, though nothing seems to have changed. ``sound``: where what is
        found has errors that what is there has not, nothing is replaced, and they are given back."""
        with self._loading:
            if fresh:
                for digest in self._report.asked:
                    self._lists.renew(digest)
            before = self._report
            found = self._load(before)
            wrong = loading.newly_wrong(before, found) if sound else ()
            if wrong:
                return wrong
            self._report = found
            left = self._lists.settle()
            with self._lock:
                hands = self._hands
            if hands is not None:
                hands.keep_servers(left)
        if self._report.version != before.version:
            for told in self._watchers:
                told()
        return ()

    @property
    def loaded(self) -> loading.LoadReport:
        """What the last load gave: for whoever compares it with a later one."""
        return self._report

    def _look_again(self) -> None:
        """A server's list came after the catalog was made, or is another now."""
        with self._loading:
            if not self._is_loaded:  # the opening failed: there is nothing to replace
                return
        self.reload()

    def migration(self) -> Migration:
        """How far the move of tools from code (``fallback``) to files has come: what files hide, where the
        two differ, and what is still served from code."""
        from toolcrib.formats.capability import Migration

        return self._migration or Migration(tools=())

    def disabled(self) -> tuple[Disabled, ...]:
        """What is switched off now, here or by another program with the same state folder."""
        if self.config.state is None:
            return ()
        with self._lock:
            gate = self._gate
        if gate is not None:
            return gate.disabled(time.time())
        keep = Keep(os.path.join(self.config.state, STORE_NAME))
        try:
            return keep.disabled(time.time())
        finally:
            keep.close()

    def disable(
        self, name: str, *, reason: str = "", for_s: float | None = None, by: str | None = None
    ) -> Disabled:
        """Switch a tool off, for good or for a while, in every program with this state folder. Recorded
        before it counts; raises Unrecorded where it cannot be."""
        from toolcrib.store.disabled import switch_off

        _check_text("name", name)
        now = time.time()
        off = Disabled(tool=name, reason=reason, until=None if for_s is None else now + for_s)
        self._note_switch(off, enabled=False, by=by)
        switch_off(self.hands.keep.opened(), off, now)
        self._tell_switched()
        return off

    def enable(self, name: str, *, by: str | None = None) -> None:
        """Switch a tool on again, whichever of its names it was switched off by."""
        from toolcrib.store.disabled import switch_on
        from toolcrib.trust.policy import names_of

        try:
            tool = self.find(name)
            names = {name, tool.key, *names_of(tool)}
        except UnknownTool:
            names = {name}
        self._note_switch(Disabled(tool=name), enabled=True, by=by)
        for each in sorted(names):
            switch_on(self.hands.keep.opened(), each, time.time())
        self._tell_switched()

    def _note_switch(self, off: Disabled, *, enabled: bool, by: str | None) -> None:
        caller = self._environment.user if by is None else by
        self.disabled()  # what cannot be read cannot be changed: nothing is recorded that does not happen
        why = self.hands.audit.note_durably(
            "",
            "switch",
            {
                "tool": off.tool,
                "enabled": enabled,
                "until": off.until,
                "reason": off.reason,
                "caller": caller,
            },
        )
        if why is not None:
            raise Unrecorded(f"nothing was switched, because it cannot be recorded: {why}")

    def _tell_switched(self) -> None:
        self.hands.keep.look_again()
        for told in self._watchers:
            told()

    # -- what waits for a person ----------------------------------------------------------------------------

    def approvals(self) -> tuple[Approval, ...]:
        """The calls that wait, or waited, for a person, here or in another program with the same state
        folder; the oldest first."""
        if self.config.state is None:
            return ()
        with self._approvals() as approvals:
            return approvals.all()

    def answer(
        self,
        approval_id: str,
        decision: str,
        *,
        arguments: Mapping[str, object] | None = None,
        because: str | None = None,
        for_s: float | None = None,
        by: str | None = None,
    ) -> Approval:
        """Answer a question (``approve`` or ``deny``), or change an answer that no call has used yet.

        ``arguments`` take the place of the call's; ``for_s`` makes the approval last for the tool, whatever
        the arguments. ``by`` is who answers, where the host knows better than this process's environment.
        The answer is recorded before it counts. Raises ApprovalError where there is nothing to answer.
        """
        from toolcrib.trust.approvals import Answer

        if decision not in [*Answer]:
            raise UsageError(f"unknown decision {str(decision)[:60]!r}", f"say {' or '.join(Answer)}")
        with self._approvals() as approvals:
            edited = None if arguments is None else self._edited(approvals.find(approval_id), arguments)
            return approvals.answer(
                approval_id,
                Answer(decision),
                by=self._environment.user if by is None else by,
                because=because or "",
                for_s=for_s,
                arguments=edited,
            )

    def _edited(self, approval: Approval, given: Mapping[str, object]) -> JsonObject:
        """Arguments that a person wrote in the place of others, once the tool would take them."""
        from toolcrib.calls.arguments import checked
        from toolcrib.journal.redaction import MARKER

        try:
            text = jsontext.plain(dict(given))
        except (TypeError, ValueError, RecursionError) as error:
            raise EditError(f"the edited arguments must be JSON: {error}") from None
        if MARKER.encode() in text:
            raise EditError(
                f"the edited arguments hold {MARKER}, which stands for a secret that is not shown",
                "write what shall run in its place",
            )
        edited: JsonObject = jsontext.loads_own(text)
        try:
            tool = self.find(approval.key)
        except UnknownTool:
            raise EditError(
                f"{approval.key}: it is not loaded here, so edited arguments cannot be checked",
                "answer where its source is, or name it with --from",
            ) from None
        found = checked(tool, edited)
        if isinstance(found, ToolError):
            raise EditError(f"the edited arguments do not fit: {found.message}", found.hint)
        return edited

    @contextmanager
    def _approvals(self) -> Iterator[Approvals]:
        with self._lock:
            hands = self._hands
        if hands is not None:
            yield hands.approvals
            return
        with open_approvals(self.config, self._environment) as approvals:
            yield approvals

    # -- the house's own tools ------------------------------------------------------------------------------

    def instructions(self, *, caller: str | None = None, reach: Reach | None = None) -> str:
        """What a host puts into a model's context about the skills: their instructions, or, where models read
        these on demand, what skills there are. Empty where there are none."""
        on_demand = self.config.context_mode != "full"
        return self._skills.prompt(caller=caller, reach=reach, on_demand=on_demand) if self.skills else ""

    def skill_texts(
        self, *, caller: str | None = None, reach: Reach | None = None, only: str | None = None
    ) -> tuple[SkillText, ...]:
        """Every skill that a caller may know of, or the one of a name, with its instructions, or why they are
        withheld."""
        return self._skills.texts(caller=caller, reach=reach, only=only)

    def known_skills(self, reach: Reach | None) -> list[Skill]:
        """The skills that a caller may know of; reads nothing."""
        return self._skills.of(reach)

    def sign(self, refs: Sequence[str], location: Location | None = None) -> tuple[Signed, ...]:
        """Sign the rye items that references (``tool:ID``; ``*``, ``?``) name, with the user's key. Raises
        UnknownTool where one names nothing, SigningError without a key; nothing is signed then."""
        from toolcrib.trust import items, keys

        environment = self._environment
        user, systems = environment.user_space, sources.Spaces.installed("").systems
        spaces = [items.Space(location=items.Location.PROJECT, root=root) for root in self.rye_projects]
        spaces = [space for space in spaces if space.root != user]
        spaces.append(items.Space(location=items.Location.USER, root=user))
        spaces += (items.Space(location=items.Location.SYSTEM, root=root) for root in systems)
        found: dict[str, items.Item] = {}
        for ref in refs:
            named = items.find(ref, spaces, location)
            if not named:
                hint = "`toolcrib list --format rye` shows the tools; --from names a project"
                raise UnknownTool(f"no item fits {ref!r}", hint)
            found |= {item.path: item for item in named}
        key = None
        if any(item.location is not items.Location.SYSTEM for item in found.values()):
            key = keys.load_signing_key(keys.signing_folder(user, environment.variables))
        now = time.time()
        signed = tuple(items.sign_checked(item, key, now, self.problems) for item in found.values())
        if self.gate.memory is not None:  # who signs an older text again wants it
            lines = (items.signed_file(each) for each in signed)
            with suppress(StoreError):  # it is refused then, and says how to have it back
                self.gate.memory.remember([line for line in lines if line is not None], accepts=True)
        return signed

    @cached_property
    def _skills(self) -> Skills:
        from toolcrib.own.skills import Skills

        return Skills(lambda: self.gate, lambda: self.catalog)

    @cached_property
    def _rye(self) -> RyeTools:
        from toolcrib.own.items import RyeTools

        sign = self.sign if self.config.serve.sign_tool else None
        return RyeTools(lambda: self.gate, lambda: self.catalog, sign)

    def _served(self, key: str, catalog: Catalog) -> Tool | None:
        """One of the tools that stand in no list."""
        return self._rye.find(key, catalog) if key.startswith("toolcrib:") else None

    def _own_function(self, name: str) -> Own | None:
        return self._rye.function(name) if name.startswith("toolcrib:") else self._skills.function(name)

    def _offered(self, reach: Reach | None, *, served: bool) -> list[Tool]:
        return [take() for _key, take in self.entries(reach, served=served)]

    def entries(self, reach: Reach | None, *, served: bool) -> Iterator[tuple[str, Callable[[], Tool]]]:
        """The keys of the tools that a caller of this reach may know of, and what takes each from the shelf:
        for whoever has many of them and wants to keep none. ``served``: as a server offers them."""
        is_full = self.config.context_mode == "full"
        for key, take in self.catalog.entries():
            if reach is None:
                yield key, take
            elif key == READING and not is_full:
                # Attack: a caller learns from the list of skills what there is beyond its reach.
                for tool in self._reading_tools(self._skills.of(reach)):
                    yield tool.key, partial(_same, tool)
            elif is_within(reach, tool := take()):
                yield key, partial(_same, tool)
        for tool in self._rye.offered(self.catalog, reach) if served else ():
            yield tool.key, partial(_same, tool)

    # -- which tools a message sees -------------------------------------------------------------------------

    def select(
        self,
        message: str,
        *,
        context: Mapping[str, object] | None = None,
        limit: int | None = None,
        disabled: Sequence[Disabled] | None = None,
        now: float | None = None,
        toolset: Sequence[str] | None = None,
        include_always: bool = True,
        caller: str | None = None,
        reach: Reach | None = None,
    ) -> Selected:
        """Which tools this message should see, and why, by the formats' own rules. What policy would refuse
        to ``caller`` (default: the current user) is left out, with the reason; what is beyond ``reach`` is
        not mentioned."""
        from toolcrib.selection import rules

        _check_text("message", message)
        return rules.select(
            self._offered(reach, served=False),
            message,
            context=context or {},
            checks=self._checks,
            match=rules.KeywordMatch(self.config.keyword_match),
            include_always=include_always,
            refusal=self.gate.refusals(caller, disabled=disabled, now=now),
            toolset=frozenset(toolset) if toolset is not None else None,
            limit=limit,
        )

    def search(
        self, query: str | None = None, *, item_id: str | None = None, limit: int = 10
    ) -> tuple[Choice, ...]:
        """Search the tools of all formats with rye's query language, or find the one of a name or key."""
        from toolcrib.selection import rules

        if query is not None and not query.strip():  # which would find the first ten of all tools
            raise UsageError("search: the query is empty", "say what to look for, or read `crib.tools`")
        return rules.search(list(self.tools), query=query, item_id=item_id, limit=limit)

    # -- what a provider is sent ----------------------------------------------------------------------------

    def declare(
        self,
        dialect: str,
        *,
        message: str | None = None,
        context: Mapping[str, object] | None = None,
        names: Sequence[str] | None = None,
        mode: ToolMode | str = ToolMode.PLAIN,
        deferred: Sequence[str] = (),
        examples: bool = False,
        caller: str | None = None,
        reach: Reach | None = None,
        served: bool = False,
    ) -> Declared:
        """The payload for a provider, the way back from its calls, and what was lost.

        Without ``names`` and ``message`` every tool is declared; with ``message`` the selected ones. What
        policy would refuse to ``caller`` (default: the current user) is left out, with the reason.
        ``served``: as a server offers them, with rye's own tools where there are rye items. An empty payload
        has its reason in ``note``.
        """
        if mode not in [*ToolMode]:
            raise UsageError(f"unknown tool mode {str(mode)!r}", f"modes are {', '.join(ToolMode)}")
        offered = self._offered(reach, served=served)
        barred: list[LeftOut] = []
        note = "" if offered else "there are no tools"
        chosen = offered
        if names is not None:
            wanted = {tool.key: tool for tool in map(self.find, names)}
            chosen = [tool for tool in offered if tool.key in wanted]
            there = {tool.key for tool in offered}
            for key, tool in wanted.items():
                if key not in there and (reach is None or is_within(reach, tool)):
                    is_tool = tool.role is Role.TOOL
                    because = "only servers offer it" if is_tool else "it is a part of other tools"
                    barred.append(LeftOut(tool=key, because=because))
            note = note or ("" if wanted else "no tool was named")
        elif message is not None:
            found = self.select(message, context=context, caller=caller, reach=reach)
            selected = {choice.key for choice in found.chosen}
            chosen = [tool for tool in offered if tool.key in selected]
            note = found.note
        refusal = self.gate.refusals(caller)
        refused = {tool.key: denied for tool in chosen if (denied := refusal(tool)) is not None}
        for key, denied in refused.items():
            barred.append(LeftOut(tool=key, because=denied.message.partition("\n")[0]))
        options = DeclareOptions(
            mode=ToolMode(mode),
            deferred=frozenset(self.find(name).key for name in deferred),
            examples=examples,
            among=tuple(offered),
        )
        declared = self.dialect(dialect).declare(
            [tool for tool in chosen if tool.key not in refused], options
        )
        left_out = (*declared.left_out, *barred)
        if not declared.payload and not note:
            note = (
                f"every tool was left out ({len(left_out)})" if left_out else "no named tool is within reach"
            )
        return replace(declared, left_out=left_out, note=note)

    @staticmethod
    def dialect(name: str) -> Dialect:
        """A provider's wire form by name."""
        from toolcrib.dialects import DIALECTS

        if name not in DIALECTS:
            raise UsageError(f"unknown dialect {name!r}", f"dialects are {', '.join(DIALECTS)}")
        return DIALECTS[name]

    # -- what may run ---------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gate:
        """What decides, for listing, explaining and calling; made when first asked for."""
        with self._lock:
            return self._the_gate()

    def _the_gate(self) -> Gate:
        if self._is_closed:
            raise UsageError("the crib is closed", "call before its `with` block ends")
        if self._gate is None:
            from toolcrib.gate import Gate

            self._gate = Gate(
                self.config,
                self._environment,
                lambda: self._report,
                pins=self._pins,
                vetter=self._vetter,
                unconfirmed=self._unconfirmed,
            )
        return self._gate

    def explain(
        self, name: str, arguments: Mapping[str, object] | None = None, *, caller: str | None = None
    ) -> Explanation:
        """What policy decides about a tool, or about a call with these arguments: the rule, the permit, what
        is left of budgets. Nothing is run. Raises UnknownTool."""
        tool = self.find(name)
        if arguments is None:
            return self.gate.explain(tool, None, caller)
        from toolcrib.calls.arguments import check

        asking = self._environment.user if caller is None else caller
        call = ToolCall(id="", tool=tool.key, arguments=dict(arguments), caller=asking)
        checked = check(tool, call)
        if isinstance(checked, ToolError):
            note = f"a call with these arguments would be refused before any rule is asked: {checked.message}"
            explained = self.gate.explain(tool, call)
            return replace(explained, notes=(note, *explained.notes))
        explained = self.gate.explain(tool, replace(call, arguments=checked.arguments, raw=checked.raw))
        return replace(explained, notes=(*checked.notes, *explained.notes))

    # -- calling --------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        context: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        approval_wait_s: float | None = None,
        caller: str | None = None,
        cancel: Cancel | None = None,
        progress: Report | None = None,
    ) -> ToolResult:
        """Run one call through the whole engine: begun, checked, decided, run, recorded.

        What goes wrong with the call is a value in the result; only wrong use of this method raises.
        ``progress`` is told what a function (``Context.progress``) or an MCP server says of its own: done,
        total, message.
        ``approval_wait_s``: so long a call that a rule asks about waits for the answer, which any thread or
        program may give (``answer``); none of it counts as the tool's time. Without it, or when it is over,
        the call ends with ``needs_approval``, and the next identical one finds the answer.
        """
        try:
            given = dict(arguments or {})
        except (TypeError, ValueError):
            got = type(arguments).__name__
            hint = "`call_text` takes JSON text, as a model wrote it" if got == "str" else "hand over a dict"
            raise UsageError(f"arguments must be a mapping (got {got})", hint) from None
        try:
            jsontext.plain(given)
        except (TypeError, ValueError, RecursionError) as error:
            if not jsontext.is_deeper(given, jsontext.DEPTH_MAX):  # that is a wrong call, not a wrong use
                hint = "use str keys and plain values"
                raise UsageError(f"arguments must be JSON: {error}", hint) from None
        if (
            type(name) is not str
            or caller is not None
            or context is not None
            or timeout_s is not None
            or idempotency_key is not None
            or approval_wait_s is not None
        ):
            _check_call(name, caller, context, timeout_s, idempotency_key, approval_wait_s)
        hands = self._hands or self.hands  # every call comes here, and a property takes longer than the look
        call = ToolCall(
            id=hands.new_call_id(),
            tool=name,
            arguments=given,
            caller=self._environment.user if caller is None else caller,
            context=context or {},
            timeout_s=timeout_s,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
            approval_wait_s=approval_wait_s or 0.0,
        )
        if progress is None:
            return self._run(call, cancel or NEVER)
        from toolcrib.functions import PROGRESS

        heard = PROGRESS.set(progress)
        try:
            return self._run(call, cancel or NEVER)
        finally:
            PROGRESS.reset(heard)

    def call_text(
        self,
        name: str,
        text: str,
        *,
        context: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        dry_run: bool = False,
        approved_by: str = "",
        idempotency_key: str | None = None,
        approval_wait_s: float | None = None,
        caller: str | None = None,
        cancel: Cancel | None = None,
        door: str = "python",
    ) -> ToolResult:
        """As ``call``, with the arguments as a model wrote them, for formats that hand them over verbatim."""
        from toolcrib.calls.arguments import read

        _check_text("text", text)
        given, defect = read(text)
        _check_call(name, caller, context, timeout_s, idempotency_key, approval_wait_s)
        call = ToolCall(
            id=self.hands.new_call_id(),
            tool=name,
            arguments=given,
            raw=text,
            defect=defect,
            caller=self._environment.user if caller is None else caller,
            context=context or {},
            timeout_s=timeout_s,
            dry_run=dry_run,
            approved_by=approved_by,
            idempotency_key=idempotency_key,
            approval_wait_s=approval_wait_s or 0.0,
        )
        return self._run(call, cancel or NEVER, door)

    def new_call_id(self) -> str:
        """An id for a call's record, unique among all hosts."""
        return self.hands.new_call_id()

    def _run(self, call: ToolCall, cancel: Cancel, door: str = "python") -> ToolResult:
        engine = (self._hands or self.hands).engine

        def run() -> ToolResult:
            (begun,) = engine.begin(((call, cancel),), door=door)
            return self.go_on(begun)

        spans = _spans()
        return run() if spans is None else spans.run(call, self.catalog.look(call.tool), run)

    def go_on(self, begun: StartedCall) -> ToolResult:
        """Run a call; where it was refused and the sources changed meanwhile, load them and ask once more.

        A tool whose file changed is not run as it was declared before: what is declared, what is verified and
        what runs must be one. Both attempts are recorded.
        """
        result = (self._hands or self.hands).engine.go_on(begun)
        if result.error is None or result.error.kind is not Kind.DENIED or not self._has_changed():
            return result
        if self.reload(sound=True):
            return result
        # It has waited for a person once, who answered about the tool as it was: what is asked now is told
        # at once, and no call waits longer than it said.
        again = replace(begun.call, id=self.hands.new_call_id(), approval_wait_s=0.0)
        return self.hands.engine.call(again, begun.cancel, door=begun.facts.door)

    async def call_async(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        context: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        approval_wait_s: float | None = None,
        caller: str | None = None,
        progress: Report | None = None,
    ) -> ToolResult:
        """As ``call``, for asyncio and trio. Cancelling the task kills the tool and waits for its record.

        With asyncio, async functions and handlers of the host's run on the very loop that awaits the call.
        """
        import anyio.to_thread

        from toolcrib.runtimes import _loops

        cancel, over, lock = Cancel(), threading.Event(), threading.Lock()
        state = {"begun": False, "given_up": False}

        def work() -> ToolResult | None:
            with lock:
                if state["given_up"]:
                    return None
                state["begun"] = True
            try:
                return self.call(
                    name,
                    arguments,
                    context=context,
                    timeout_s=timeout_s,
                    dry_run=dry_run,
                    idempotency_key=idempotency_key,
                    approval_wait_s=approval_wait_s,
                    caller=caller,
                    cancel=cancel,
                    progress=progress,
                )
            finally:
                over.set()

        awaiting = _loops.CALLER.set(_loops.running())  # worker threads get a copy of the context
        try:
            # Calls that wait for a person get threads of their own: the others shall not wait for them.
            limiter = anyio.CapacityLimiter(1) if approval_wait_s else None
            result = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
        except anyio.get_cancelled_exc_class():
            with lock:
                state["given_up"] = True
                begun = state["begun"]
            if begun:  # the tree is killed and the end recorded before the cancellation goes on
                cancel.set()
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(over.wait)
            raise
        finally:
            _loops.CALLER.reset(awaiting)
        assert result is not None
        return result

    def call_all(
        self, calls: Sequence[ToolCall], *, at_once: int = 16, cancel: Cancel | None = None
    ) -> list[ToolResult]:
        """The calls of one message, concurrently; the answers stand in the order of the calls.

        A call's ``tool`` is a key or a name; an id of the provider's stays in the result.
        """
        from concurrent.futures import ThreadPoolExecutor

        given: object = calls
        if not isinstance(given, Sequence):
            got = f"calls must be a list of ToolCalls (got {type(calls).__name__})"
            raise UsageError(got, "hand over what `read_calls` of a dialect gave")
        if not calls:
            return []
        for each in given:
            if not isinstance(each, ToolCall):
                got = f"calls must be ToolCalls (got {type(each).__name__})"
                raise UsageError(got, "hand over what `read_calls` of a dialect gave")
        stop = cancel or Cancel()

        def one(call: ToolCall) -> ToolResult:
            # Providers' ids are not unique across conversations; records need one that is.
            own = replace(call, id=self.hands.new_call_id(), caller=call.caller or self._environment.user)
            return replace(self._run(own, stop), call_id=call.id)

        # Each thread gets a copy of the context: what is traced around this call is the parent of all.
        contexts = [copy_context() for _ in calls]
        with ThreadPoolExecutor(min(len(calls), at_once), "call") as pool:
            try:
                return list(pool.map(lambda context, call: context.run(one, call), contexts, calls))
            except BaseException:  # an interrupt: leaving the pool waits for the calls, so they are stopped
                stop.set()
                raise

    def result_page(self, call_id: str, *, offset: int = 0, limit: int = 64 << 10) -> tuple[bytes, int]:
        """A part of a result that was too long to be handed over, and how many bytes the whole has."""
        try:
            return self.hands.spill.page(call_id, offset, limit)
        except OSError:
            raise UsageError(f"no result is kept under {call_id!r}", "only long results are kept") from None

    def servers(self) -> tuple[ServerState, ...]:
        """How the MCP servers of the sources stand. Those that were not asked for anything yet are, now."""
        return self._lists.states(self._report.servers)

    def warnings(self) -> tuple[str, ...]:
        """What a person should know before calling: limits that cannot be enforced on this machine."""
        return self.hands.warnings

    @property
    def hands(self) -> Hands:
        """What runs calls; made when first asked for."""
        hands = self._hands
        if hands is not None:
            return hands
        with self._lock:
            gate = self._the_gate()  # which a closed crib has no more
            if self._hands is None:
                from toolcrib.hands import Hands

                self._hands = Hands(
                    self.config,
                    self._environment,
                    lambda: self._report,
                    self._handlers,
                    functions=self._own.functions,
                    own=self._own_function,
                    served=self._served,
                    meant=lambda call: self._rye.inner(call),
                    in_process=self._in_process,
                    sandbox=self._sandbox,
                    lists=self._lists,
                    gate=gate,
                    unconfirmed=self.unconfirmed,
                )
            return self._hands

    def vet(self, tool: Tool) -> Vetted:
        """What is known about a tool's bytes as they lie there now. Runs nothing."""
        return self.gate.vet(tool, None)

    @staticmethod
    def _vetter(gate: Gate) -> Vetter:
        """What vets the files that were looked at: one, for calls and for listing."""
        from toolcrib.catalog.projects import Projects
        from toolcrib.runtimes._dependencies import ToolFiles
        from toolcrib.trust import keys, vetting

        spaces, cwd = gate.spaces, gate.cwd
        projects = Projects(gate.keep)
        rings = keys.Keyrings(spaces.user, spaces.systems, trusted=projects.trusted_keys)
        return vetting.Vetter(
            gate.contents,
            rings.now,
            ToolFiles(gate.contents, lambda tool: spaces.project_of(tool.origin.path) or cwd),
            is_development=gate.is_development,
            takes_unsigned=gate.takes_unsigned,
        )

    # -- loading --------------------------------------------------------------------------------------------

    def _load(self, earlier: loading.LoadReport | None = None) -> loading.LoadReport:
        config = self.config
        folder = os.path.join(config.state, "cache") if config.state else None
        report = loading.load(
            self._wanted(),
            config.rules(context_checks=tuple(self._checks), executors=tuple(self._handlers)),
            loading.Machine(
                prober=_not_probed if self._only_look else self._discover,
                which=self._which,
                asker=self._lists.recall if self._only_look else self._lists.ask,
                fetcher=_not_fetched if self._only_look else self._fetch,
                changed=self._lists.changed_at,
                rests=self._lists.rests,
                know=self._lists.know,
                progress=self._progress,
                barred=self._barred,
                suspect=lambda path: self.unconfirmed.suspect(path),
            ),
            rye_spaces=self._rye_spaces,
            keep=Cache(folder),
            earlier=earlier,
            stated=config.effects,
        )
        first = self._reading_tools(report.catalog.skills) if config.context_mode != "full" else ()
        return self._with_own(report, first) if first or self._own != OwnTools() else report

    def _reading_tools(self, skills: Sequence[Skill]) -> tuple[Tool, ...]:
        """What models read skills with, where they get none of their texts unasked."""
        from toolcrib.formats import skill

        return (effects.applied(skill.reading_tool(skills), self.config.effects),) if skills else ()

    def _with_own(self, report: loading.LoadReport, first: Sequence[Tool]) -> loading.LoadReport:
        from toolcrib.formats import capability

        fallback = self._own.fallback
        declared = report.declared({tool.name for tool in fallback})
        migration = self._migration = capability.migration(declared, fallback)
        still = migration.tools[len(declared) :]
        own, problems = [*self._own.tools, *still], [*self._own.problems, *migration.problems]
        return report.with_own(own, problems, first=first, stated=self.config.effects)

    def _which(self, name: str) -> str | None:
        from shutil import which

        return which(name, path=self._environment.path)

    def _discover(self, paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
        """Ask programs for their schemas: inside a closed permit, and recorded like calls."""
        from toolcrib.sandbox import discovery

        if self.config.state is None:
            unrecorded = ProbeOutcome(start_error="there is no state folder to record it in")
            return [(b"", unrecorded)] * len(paths)
        contents = self.gate.contents
        before = [contents.file(path) for path in paths]
        answers = {path: answer for path in paths if (answer := self._as_locked(path)) is not None}
        asked = [path for path in paths if path not in answers]
        if asked:
            told = discovery.probe_all(
                asked, env=self._environment.probe_environment(), run=self.hands.run_recorded
            )
            answers |= zip(asked, told, strict=True)
        found = []
        for path, held in zip(paths, before, strict=True):
            body, outcome = answers[path]
            if held is not None and contents.file(path) is held:
                found.append((body, replace(outcome, digest=held.digest)))
            elif outcome.start_error is None:
                # Attack: one program answers for another that takes its place meanwhile.
                found.append((b"", ProbeOutcome(start_error="it changed while it was asked")))
            else:
                found.append((body, outcome))
        return found

    def _as_locked(self, path: str) -> tuple[bytes, ProbeOutcome] | None:
        """What a program said when it was locked, where it is not as it was locked; None: it may be asked.

        Attack: a locked program that is replaced, and runs as soon as tools are loaded: to be asked for its
        schema. A person has to approve it first.
        """
        from toolcrib.formats import executable

        entry = self.gate.locked(path, executable.NAME)
        if entry is None:
            return None
        body = executable.answer_of(entry.document)
        document = Document(path=path, content=body, place=executable.NAME)
        for tool in executable.compile_document(document, Rules()).tools:
            if self.gate.vet(replace(tool, key=entry.key), None).trust is not Trust.DRIFTED:
                return None
        return body, ProbeOutcome(exit_status=0, is_locked=True)

    def _fetch(self, urls: Sequence[str]) -> Sequence[tuple[bytes | None, str | None]]:
        """Documents that trusted sources name by their URLs; each fetch is recorded like a call."""
        if self.config.state is None:
            return [(None, "there is no state folder to record the fetch in")] * len(urls)
        return self.hands.fetch_recorded(urls)

    def _wanted(self) -> list[sources.Source]:
        extra = (sources.Source(path=path, format="skill") for path in self.config.extra_dirs)
        return [*self.config.sources, *extra]

    def _rye_spaces(self) -> list[sources.Source]:
        user = os.path.join(self._environment.user_space, ".ai", "tools")
        spaces = [sources.Source(path=user, format="rye", space=1)] if os.path.isdir(user) else []
        return [*spaces, *sources.installed_bundles()]


@contextmanager
def open_approvals(config: Config, environment: Environment) -> Iterator[Approvals]:
    """The approvals of a state folder alone, without loading or starting anything."""
    from toolcrib.journal.audit import open_audit
    from toolcrib.trust.approvals import Approvals

    if config.state is None:
        raise UsageError("there is no state folder", "name one with --state")
    # Attack: another user of the machine puts approvals of his own in the place of ours.
    files.check_state(config.state)
    keep = Keep(os.path.join(config.state, STORE_NAME))
    audit = open_audit(
        config.state,
        variables=environment.variables,
        patterns=config.redact,
        retention_days=config.retention_days,
        day_file=False,
    )
    try:
        yield Approvals(keep.opened, present=keep.present, note=audit.note_durably, redact=audit.redaction)
    finally:
        audit.close()
        keep.close()


def _spans() -> GenAiSpans | None:
    """Return the spans of calls if the program set up a provider: then it has imported OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from toolcrib import spans

    return spans.set_up()


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a text (got {type(value).__name__})")


def _same(tool: Tool) -> Tool:
    return tool


def _not_probed(paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
    return [(b"", ProbeOutcome(start_error="nothing is started only to look"))] * len(paths)


def _not_fetched(urls: Sequence[str]) -> Sequence[tuple[bytes | None, str | None]]:
    return [(None, "nothing is fetched only to look")] * len(urls)


def _server_of_key(key: str | None) -> str | None:
    """The MCP server whose tool a key names."""
    format, _, rest = (key or "").partition(":")
    server, slash, _ = rest.partition("/")
    return server if format == "mcp" and slash else None


def _check_call(
    name: object,
    caller: object,
    context: object,
    timeout_s: float | None,
    idempotency_key: str | None,
    wait_s: float | None,
) -> None:
    """What only a programmer can get wrong."""
    _check_text("name", name)
    if caller is not None:
        _check_text("caller", caller)
    if context is not None and not isinstance(context, Mapping):
        raise UsageError(f"context must be a mapping (got {type(context).__name__})")
    if idempotency_key is not None:
        _check_text("idempotency_key", idempotency_key)
    if wait_s is not None and (type(wait_s) not in (int, float) or not 0 <= wait_s <= TIMEOUT_S_MAX):
        raise UsageError(f"approval_wait_s: must be 0 to {TIMEOUT_S_MAX:.0f} (got {wait_s!r})")
    if timeout_s is not None and (type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_S_MAX):
        raise UsageError(f"timeout_s: must be above 0 and at most {TIMEOUT_S_MAX:.0f} (got {timeout_s!r})")
    if idempotency_key == "":
        raise UsageError("idempotency_key: must not be empty", "leave it out, or use a new text per request")
