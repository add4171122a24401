"""The composition root: builds the rooms, owns their lifetime, and hands them to a ``Workshop``.

Nothing is decided here. This is one of the four places that import late (by whole modules), so that opening
a workshop costs only what is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from toolwright import formats, jsontext
from toolwright.catalog import files, loading, sources
from toolwright.catalog.cache import Cache
from toolwright.catalog.catalog import Catalog, Tools
from toolwright.config import Config, Environment, current_folder, named_source
from toolwright.errors import Kind, StoreError, ToolwrightError, UsageError
from toolwright.jsontext import JsonObject, JsonValue
from toolwright.model import (
    LEVELS,
    TIMEOUT_S_MAX,
    Allow,
    CallFacts,
    CallFunction,
    CallHttp,
    CallJavaScript,
    CallMcp,
    CallPython,
    Choice,
    Decision,
    Declared,
    DeclareOptions,
    Deny,
    Disabled,
    End,
    Ending,
    Level,
    Permit,
    ProbeOutcome,
    Problem,
    Rules,
    Run,
    RunContainer,
    RunProcess,
    Selected,
    Severity,
    Skill,
    Spent,
    Tool,
    ToolCall,
    ToolError,
    ToolMode,
    ToolResult,
)
from toolwright.records import dataclass, replace
from toolwright.sandbox import NEVER, Cancel, Sandbox, Standing, Start

if TYPE_CHECKING:
    from toolwright.catalog.digests import Contents
    from toolwright.dialects import Dialect
    from toolwright.formats.capability import Migration
    from toolwright.functions import Function, Report
    from toolwright.runtimes import Host
    from toolwright.runtimes.container import ContainerTools
    from toolwright.runtimes.functions import FunctionTools
    from toolwright.runtimes.http import HttpTools
    from toolwright.runtimes.mcp import McpTools
    from toolwright.runtimes.mcp import State as ServerState
    from toolwright.store import Store

STORE_NAME = "state.sqlite"
_FRESH_S = 0.01
_LIST_S = 20.0
"""For starting a server and asking it for its tools, where its definition has no time of its own."""
_SERVERS_AT_ONCE = 64
_REFRESH_S = 1.0
_REST_S = 60.0
"""How long a server that gave no list is left alone."""
_GUARDED_MAX = 5000
_LACKING = {
    Level.PORTABLE: "what tools declare is not enforced",
    Level.RESTRICTED: "the spawner does not work here, so what a tool leaves running is not ended",
}
"""What a person should know about a level before calling."""
ContextCheck = Callable[[Mapping[str, object]], object]


def open(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Config | None = None,
    *,
    config: Config | None = None,
    context_checks: Mapping[str, ContextCheck] | None = None,
    handlers: Mapping[str, object] | None = None,
    tools: Sequence[object] = (),
    provide: Mapping[Any, object] | None = None,
    fallback: Sequence[object] = (),
    in_process: bool = False,
    sandbox: Sandbox | None = None,
    environment: Environment | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Workshop:
    """Open a workshop on a folder, a file, several of them, or a ``Config``; or on functions alone.

    ``context_checks`` are the checks that capability groups name; ``handlers`` the host's own code for
    executors or groups. Both are only ever called by name, never looked up from a declaration. ``in_process``
    lets Python tools run inside this process, where nothing can stop them: for code you trust like your own.
    ``sandbox`` takes the place of the strongest level that works here.
    ``tools`` are functions of the host's own, or modules and objects with marked ones; ``provide`` says what
    their parameters of certain types are given, which no model sees. ``fallback`` are tools that are still
    declared in code, as functions or as mappings like those in a group's file: used where no file declares
    their name.
    ``progress`` is told how many documents of how many have been read.
    """
    surroundings = environment or Environment.read()
    cwd = current_folder()
    if isinstance(paths, Config):
        if config is not None:
            raise UsageError("two configurations were given", "hand over one Config")
        config, paths = paths, None
    if paths is None:
        named: list[str] = []
    elif isinstance(paths, (str, os.PathLike)):
        named = [os.fspath(paths)]
    else:
        named = [os.fspath(path) for path in paths]
    if config is None:
        config = Config(state=surroundings.state)
    if named:
        config = replace(config, sources=tuple(named_source(text, cwd) for text in named))
    elif not config.sources and not tools and not fallback:
        raise UsageError(
            "nothing to open", "name a folder, a file, a Config with sources, or hand over tools"
        )
    return Workshop(
        config,
        surroundings,
        context_checks or {},
        handlers or {},
        progress,
        own=_own_tools(tools, fallback, provide, config.rules(executors=tuple(handlers or ()))),
        in_process=in_process,
        sandbox=sandbox,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTools:
    """What the host itself brings: its functions, and tools that it still declares in code."""

    tools: tuple[Tool, ...] = ()
    fallback: tuple[Tool, ...] = ()
    problems: tuple[Problem, ...] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)


def _own_tools(
    tools: Sequence[object], fallback: Sequence[object], provide: Mapping[Any, object] | None, rules: Rules
) -> OwnTools:
    if not tools and not fallback:
        return OwnTools()
    from toolwright.formats import capability
    from toolwright.functions import register

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


class Workshop:
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
    ) -> None:
        self._own = own or OwnTools()
        self._migration: Migration | None = None
        self.config = config
        self._environment = environment
        self._checks = dict(context_checks)
        self._handlers = dict(handlers)
        self._progress = progress
        self._in_process = in_process
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._hands: Hands | None = None
        self._is_closed = False
        self._loading = threading.Lock()
        self._lists = ServerLists(config.state, lambda: self.hands, self.reload)
        with self._loading:  # a server may say at once that its list changed
            self._report = self._load()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Workshop:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what was started, finish the records, and write down what makes the next start faster."""
        self._lists.close()
        with self._lock:
            hands, self._hands = self._hands, None
            self._is_closed = True
        if hands is not None:
            hands.close()
        self._report.keep()

    # -- what there is --------------------------------------------------------------------------------------

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
        return (*self.config.problems, *self._report.problems)

    @property
    def severities(self) -> Counter[Severity]:
        """How many problems there are of each severity; cheaper than asking for the problems."""
        return Counter(problem.severity for problem in (*self.config.problems, *self._report.without_lines))

    @property
    def notes(self) -> tuple[str, ...]:
        """What only verbose output names: files that are no declarations."""
        return self._report.notes

    def find(self, name: str) -> Tool:
        """The tool of a key or a bare name. Raises UnknownTool."""
        return self.catalog.find(name)

    def changed(self) -> bool:
        """Whether the sources look different from when they were last read. Reads and runs nothing."""
        found = sources.listing(self._wanted(), rye_spaces=self._rye_spaces, changed=self._lists.changed_at)
        return found.stamp != self._report.stamp

    def reload(self, *, fresh: bool = False) -> None:
        """Look again. The catalog is replaced whole; what was taken from the old one stays valid. ``fresh``:
        ask MCP servers for their tools again, though nothing seems to have changed."""
        with self._loading:
            if fresh:
                for digest in self._report.asked:
                    self._lists.note_change(digest)
            self._report = self._load(self._report)

    def migration(self) -> Migration:
        """How far the move of tools from code (``fallback``) to files has come: what files hide, where the
        two differ, and what is still served from code."""
        from toolwright.formats.capability import Migration

        return self._migration or Migration(tools=())

    def disabled(self) -> tuple[Disabled, ...]:
        """What is switched off now, here or by another program with the same state folder."""
        if self.config.state is None:
            return ()
        with self._lock:
            hands = self._hands
        if hands is not None:
            return hands.keep.disabled(time.time())
        keep = Keep(os.path.join(self.config.state, STORE_NAME))
        try:
            return keep.disabled(time.time())
        finally:
            keep.close()

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
    ) -> Selected:
        """Which tools this message should see, and why, by the formats' own rules."""
        from toolwright.selection import rules

        return rules.select(
            self.catalog.offered(),
            message,
            context=context or {},
            checks=self._checks,
            match=rules.KeywordMatch(self.config.keyword_match),
            include_always=include_always,
            disabled=self.disabled() if disabled is None else disabled,
            now=time.time() if now is None else now,
            toolset=frozenset(toolset) if toolset is not None else None,
            limit=limit,
        )

    def search(
        self, query: str | None = None, *, item_id: str | None = None, limit: int = 10
    ) -> tuple[Choice, ...]:
        """Rye's own query language over the rye items."""
        from toolwright.selection import rules

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
    ) -> Declared:
        """The payload for a provider, the way back from its calls, and what was lost.

        Without ``names`` and ``message`` every tool is declared; with ``message`` the selected ones.
        """
        if mode not in [*ToolMode]:
            raise UsageError(f"unknown tool mode {str(mode)!r}", f"modes are {', '.join(ToolMode)}")
        offered = self.catalog.offered()
        if names is not None:
            wanted = {self.find(name).key for name in names}
            chosen = [tool for tool in offered if tool.key in wanted]
        elif message is not None:
            selected = {choice.key for choice in self.select(message, context=context).chosen}
            chosen = [tool for tool in offered if tool.key in selected]
        else:
            chosen = offered
        off = {entry.tool for entry in self.disabled()}
        if off:
            chosen = [
                tool for tool in chosen if off.isdisjoint((tool.key, tool.name, tool.spoken, *tool.aliases))
            ]
        options = DeclareOptions(
            mode=ToolMode(mode),
            deferred=frozenset(self.find(name).key for name in deferred),
            examples=examples,
            among=tuple(offered),
        )
        return self.dialect(dialect).declare(chosen, options)

    @staticmethod
    def dialect(name: str) -> Dialect:
        """A provider's wire form by name."""
        from toolwright.dialects import DIALECTS

        if name not in DIALECTS:
            raise UsageError(f"unknown dialect {name!r}", f"dialects are {', '.join(DIALECTS)}")
        return DIALECTS[name]

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
        caller: str | None = None,
        cancel: Cancel | None = None,
        progress: Report | None = None,
    ) -> ToolResult:
        """Run one call through the whole engine: begun, checked, decided, run, recorded.

        What goes wrong with the call is a value in the result; only wrong use of this method raises.
        ``progress`` is told what a function says of its own (``Context.progress``): done, total, message.
        """
        if progress is not None:
            return self._listening(
                progress,
                lambda: self.call(
                    name,
                    arguments,
                    context=context,
                    timeout_s=timeout_s,
                    dry_run=dry_run,
                    idempotency_key=idempotency_key,
                    caller=caller,
                    cancel=cancel,
                ),
            )
        given = dict(arguments or {})
        try:
            jsontext.plain(given)
        except (TypeError, ValueError, RecursionError) as error:
            if not jsontext.is_deeper(given, jsontext.DEPTH_MAX):  # that is a wrong call, not a wrong use
                hint = "use str keys and plain values"
                raise UsageError(f"arguments must be JSON: {error}", hint) from None
        _check_call(timeout_s, idempotency_key)
        call = ToolCall(
            id=new_call_id(),
            tool=name,
            arguments=given,
            caller=self._environment.user if caller is None else caller,
            context=context or {},
            timeout_s=timeout_s,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
        return self.hands.engine.call(call, cancel or NEVER)

    @staticmethod
    def _listening(progress: Report, call: Callable[[], ToolResult]) -> ToolResult:
        from toolwright.functions import PROGRESS

        heard = PROGRESS.set(progress)
        try:
            return call()
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
        caller: str | None = None,
        cancel: Cancel | None = None,
        door: str = "python",
    ) -> ToolResult:
        """As ``call``, with the arguments as a model wrote them, for formats that hand them over verbatim."""
        given, defect = read_arguments(text)
        _check_call(timeout_s, idempotency_key)
        call = ToolCall(
            id=new_call_id(),
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
        )
        return self.hands.engine.call(call, cancel or NEVER, door=door)

    async def call_async(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        context: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        caller: str | None = None,
        progress: Report | None = None,
    ) -> ToolResult:
        """As ``call``, for asyncio and trio. Cancelling the task kills the tool and waits for its record.

        With asyncio, async functions and handlers of the host's run on the very loop that awaits the call.
        """
        import anyio.to_thread

        from toolwright.runtimes import _loops

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
                    caller=caller,
                    cancel=cancel,
                    progress=progress,
                )
            finally:
                over.set()

        awaiting = _loops.CALLER.set(_loops.running())  # worker threads get a copy of the context
        try:
            result = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
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

        if not calls:
            return []
        stop = cancel or Cancel()
        engine = self.hands.engine

        def one(call: ToolCall) -> ToolResult:
            # Providers' ids are not unique across conversations; records need one that is.
            own = replace(call, id=new_call_id(), caller=call.caller or self._environment.user)
            return replace(engine.call(own, stop), call_id=call.id)

        with ThreadPoolExecutor(min(len(calls), at_once), "call") as pool:
            try:
                return list(pool.map(one, calls))
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
        with self._lock:
            if self._is_closed:
                raise UsageError("the workshop is closed", "call before its `with` block ends")
            if self._hands is None:
                self._hands = Hands(
                    self.config,
                    self._environment,
                    lambda: self._report,
                    self._handlers,
                    functions=self._own.functions,
                    in_process=self._in_process,
                    sandbox=self._sandbox,
                    lists=self._lists,
                )
            return self._hands

    # -- loading --------------------------------------------------------------------------------------------

    def _load(self, earlier: loading.LoadReport | None = None) -> loading.LoadReport:
        config = self.config
        folder = os.path.join(config.state, "cache") if config.state else None
        report = loading.load(
            self._wanted(),
            config.rules(context_checks=tuple(self._checks), executors=tuple(self._handlers)),
            loading.Machine(
                prober=self._discover,
                which=lambda name: shutil.which(name, path=self._environment.path),
                asker=self._lists.ask,
                fetch=self._fetch,
                changed=self._lists.changed_at,
                rests=self._lists.rests,
                know=self._lists.know,
                progress=self._progress,
            ),
            rye_spaces=self._rye_spaces,
            keep=Cache(folder),
            earlier=earlier,
        )
        return self._with_own(report) if self._own != OwnTools() else report

    def _with_own(self, report: loading.LoadReport) -> loading.LoadReport:
        from toolwright.formats import capability

        fallback = self._own.fallback
        declared = report.declared({tool.name for tool in fallback})
        migration = self._migration = capability.migration(declared, fallback)
        still = migration.tools[len(declared) :]
        return report.with_own([*self._own.tools, *still], [*self._own.problems, *migration.problems])

    def _discover(self, paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
        """Ask programs for their schemas: inside a closed permit, and recorded like calls."""
        from toolwright.sandbox import discovery

        if self.config.state is None:
            unrecorded = ProbeOutcome(start_error="there is no state folder to record it in")
            return [(b"", unrecorded)] * len(paths)
        return discovery.probe_all(
            paths, env=self._environment.probe_environment(), run=self.hands.run_recorded
        )

    def _fetch(self, url: str) -> tuple[bytes | None, str | None]:
        """A document that a trusted source names by its URL; the fetch is recorded like a call."""
        if self.config.state is None:
            return None, "there is no state folder to record the fetch in"
        return self.hands.fetch_recorded(url)

    def _wanted(self) -> list[sources.Source]:
        extra = (sources.Source(path=path, format="skill") for path in self.config.extra_dirs)
        return [*self.config.sources, *extra]

    def _rye_spaces(self) -> list[sources.Source]:
        user = os.path.join(self._environment.user_space, ".ai", "tools")
        spaces = [sources.Source(path=user, format="rye", space=1)] if os.path.isdir(user) else []
        return [*spaces, *_bundles()]


def _declared(catalog: Catalog) -> Iterator[str]:
    """The declarations, programs and scripts of every tool."""
    from toolwright.catalog.digests import own_files

    for tool in islice(catalog.tools, _GUARDED_MAX):
        yield tool.origin.path
        yield from own_files(tool)
        if isinstance(tool.invocation, RunProcess) and tool.invocation.skill_dir:
            yield tool.invocation.skill_dir


def _bundles() -> list[sources.Source]:
    """Installed rye bundles: the system space."""
    # Attack: a clone that passes for an installed bundle. "" on the path stands for the current folder.
    return [*sources.rye_bundles([folder for folder in sys.path if os.path.isabs(folder)])]


# -- what runs calls ----------------------------------------------------------------------------------------


def _check_call(timeout_s: float | None, idempotency_key: str | None) -> None:
    """What only a programmer can get wrong."""
    if timeout_s is not None and (type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_S_MAX):
        raise UsageError(f"timeout_s: must be above 0 and at most {TIMEOUT_S_MAX:.0f} (got {timeout_s!r})")
    if idempotency_key == "":
        raise UsageError("idempotency_key: must not be empty", "leave it out, or use a new text per request")


def new_call_id() -> str:
    """Unique among all hosts, and for a reader in the order of time."""
    return f"{time.time_ns():016x}{os.urandom(6).hex()}"


def read_arguments(text: str) -> tuple[JsonObject | None, str | None]:
    """The object that a text of arguments is, or why it is none. Blank text is the empty object."""
    if not text.strip():
        return {}, None
    parsed = jsontext.read(text.encode("utf-8", "surrogateescape"))
    if parsed.defect is not None:
        return None, str(parsed.defect)
    if parsed.duplicates:
        return None, f"the key {parsed.duplicates[0].key!r} stands there twice"
    if not isinstance(parsed.value, dict):
        return None, "arguments must be an object"
    return parsed.value, None


class Hands:
    """Everything a call needs besides the catalog: journal, store, sandbox, runtimes, engine.

    Made at the first call, because most openings of a workshop never call anything.
    """

    def __init__(
        self,
        config: Config,
        environment: Environment,
        report: Callable[[], loading.LoadReport],
        handlers: Mapping[str, object],
        *,
        functions: Mapping[str, Function],
        in_process: bool,
        sandbox: Sandbox | None,
        lists: ServerLists,
    ) -> None:
        from toolwright.catalog.digests import Contents
        from toolwright.engine import Engine, Stock
        from toolwright.journal.audit import open_audit
        from toolwright.runtimes import Host, around, process, project_of
        from toolwright.sandbox import ground
        from toolwright.trust import policy

        if config.state is None:
            raise UsageError(
                "a call must be recorded, and there is no state folder", "give the Config a state folder"
            )
        if files.is_open_to_others(config.state):
            # Attack: another user of the machine puts his own journal, key or list of what is switched off
            # in the place of ours.
            raise StoreError(f"{config.state}: others may write it", f"chmod 700 {config.state}")
        self._policy = policy
        self._project_of = project_of
        self._guarded = ""
        self._places: dict[str, tuple[str, bool]] = {}
        """Each declaration's project, and whether a person named its source: neither changes."""
        self._config = config
        self._report = report
        self._cwd = current_folder()
        self._state = config.state
        self._user = environment.user
        self._house = policy.HouseRules(
            grants=config.grants,
            undeclared=config.undeclared,
            require=config.require,
            unsigned=policy.Unsigned(config.unsigned),
            policy=policy.rules_of(config.policy),
            timeout_s=config.timeout_s,
            limits=config.limits,
        )
        # A rule that asks a person is about the calls of a server's tools, not about the server's start.
        denying = tuple(rule for rule in self._house.policy if rule.answer is policy.Answer.DENY)
        self._server_house = replace(self._house, policy=denying)
        bundles = _bundles()
        self._named = (
            *(source.path for source in config.sources if source.named or config.trusted),
            *config.extra_dirs,
            os.path.join(environment.user_space, ".ai"),
            *(source.path for source in bundles),
        )
        self.keep = Keep(os.path.join(config.state, STORE_NAME))
        self.sandbox = sandbox or _strongest()
        self.audit = open_audit(
            config.state,
            variables=environment.variables,
            patterns=config.redact,
            retention_days=config.retention_days,
            day_file=config.day_file,
        )
        self._grounds = ground.Grounds(
            hidden=[config.state],
            guarded=[path for path in (config.file, environment.user_config) if path],
            temporary=[tempfile.gettempdir()],
            git_settings=environment.git_settings(),
        )
        self._host = Host(
            sandbox=self.sandbox,
            variables=environment.variables,
            cwd=self._cwd,
            python=sys.executable,
            user_space=environment.user_space,
            system_spaces=tuple(os.path.dirname(source.path) for source in bundles),
            allow_scripts=config.allow_scripts,
            load_dotenv=config.load_dotenv,
            # Whoever names a project for calling its tools runs its code: its interpreter adds nothing.
            trusted_projects=frozenset(map(os.path.realpath, self._named)),
            handlers=handlers,
            in_process=in_process,
            container_engine=config.container_engine,
        )
        contents = self._contents = Contents()
        self._pythons = Later(lambda: _python_tools(self._host, contents, config.zygotes))
        self._https = Later(lambda: _http_tools(self._host))
        self._containers = Later(lambda: _container_tools(self._host))
        self._scripts = Later(lambda: _javascript_tools(self._host, contents, config.zygotes))
        self._lists = lists
        self._servers: McpTools | None = None
        self._making = threading.Lock()
        processes = process.ProcessTools(self._host, contents)
        self._functions = Later(lambda: _function_tools(functions, self._cwd))
        self.spill = around.Spill(os.path.join(config.state, "results"), config.result_bytes)
        self.engine = Engine(
            stock=lambda: Stock(report().catalog, report().version),
            audit=self.audit,
            decide=self.decide,
            runtimes={
                kind: around.Once(
                    around.Limited(around.Retrying(around.Watched(runtime)), config.calls_per_tool),
                    self.keep.opened,
                )
                for kind, runtime in (
                    (RunProcess, processes),
                    (CallPython, self._pythons),
                    (CallFunction, self._functions),
                    (CallHttp, self._https),
                    (RunContainer, self._containers),
                    (CallJavaScript, self._scripts),
                    (CallMcp, LaterServers(lambda: self.servers)),
                )
            },
            level=lambda: self.sandbox.level,
            contents=contents,
            spill=self.spill,
        )

    def decide(self, tool: Tool, call: ToolCall | None) -> Decision:
        """Whether a tool may run now, and with what."""
        now = time.time()
        try:
            disabled = self.keep.disabled(now)
        except StoreError as error:  # Attack: a store that is broken on purpose, to switch a tool on again
            return Deny(
                kind=Kind.UNAVAILABLE,
                message="what was switched off cannot be read, so nothing runs",
                because=error.message,
                hint=error.hint,
            )
        report = self._report()
        if report.version != self._guarded:
            self._guarded = report.version
            self._grounds.guard(_declared(report.catalog))
        path = tool.origin.path
        place = self._places.get(path)
        if place is None:
            place = (self._project_of(tool, self._host), self._policy.is_below(path, self._named))
            self._places[path] = place
        project, named = place
        return self._policy.decide(
            tool,
            call,
            trust=self._policy.trust_of(tool),
            house=self._house,
            ground=self._grounds.of(tool, project=project, cwd=self._cwd, named=named),
            state=self._policy.HostState(disabled=disabled, now=now),
        )

    def run_recorded(self, start: Start) -> Ending:
        """Run a program outside of any tool's call: begun and ended in the journal all the same."""
        from toolwright.calls.replies import kind_of

        held = self._contents.file(start.program)
        call = ToolCall(id=new_call_id(), tool=start.program, arguments={}, caller=self._user)
        digest = held.digest if held is not None else None
        facts = CallFacts(door=start.what, key=start.program, runs_digest=digest)
        if not self.audit.begin(call, facts):
            return Ending(end=End.UNAVAILABLE, reason="the audit journal cannot be written")
        if LEVELS.index(self.sandbox.level) < LEVELS.index(self._config.require):
            ending = Ending(end=End.UNAVAILABLE, reason=f"isolation level {self._config.require} is missing")
        else:
            permit = replace(start.permit, hidden=(os.path.realpath(self._state),))
            ending = self.sandbox.run(replace(start, permit=permit), Cancel())
        failed = ending.end is not End.EXITED or ending.exit_status != 0
        duration_ms = sum(run.duration_ms for run in ending.runs)
        self.audit.end(
            call,
            ToolResult(
                call_id=call.id,
                key=start.program,
                error=ToolError(kind=kind_of(ending.end), message=ending.reason or ending.end)
                if failed
                else None,
                spent=Spent(duration_ms=duration_ms, output_bytes=ending.stdout_bytes, usage=ending.usage),
                isolation=ending.layers,
                runs=tuple(replace(run, what="call") for run in ending.runs),
            ),
        )
        return ending

    # -- MCP servers ----------------------------------------------------------------------------------------

    @property
    def servers(self) -> McpTools:
        """What talks to MCP servers; made, and its module imported, when first asked for."""
        with self._making:
            if self._servers is None:
                from toolwright.runtimes.mcp import McpTools

                # Attack: the first server ever, asked before there is a state folder, reads what is written
                # there later: only what exists can be hidden.
                with suppress(OSError):
                    os.makedirs(self._state, mode=0o700, exist_ok=True)
                if not self._guarded:
                    self._grounds.guard(self._lists.declarations())
                self._servers = McpTools(
                    self._host,
                    permit_of=self._permit_server,
                    definitions=self._lists.defined,
                    opener=self._open_recorded,
                    changed=self._lists.server_changed,
                )
            return self._servers

    def _permit_server(self, tool: Tool) -> Permit | Ending:
        """What a server itself may do."""
        now = time.time()
        try:
            disabled = self.keep.disabled(now)
        except StoreError as error:
            return Ending(end=End.UNAVAILABLE, reason=error.message, hint=error.hint)
        named = self._policy.is_below(tool.origin.path, self._named)
        decision = self._policy.decide(
            tool,
            None,
            trust=self._policy.trust_of(tool),
            house=self._server_house,
            ground=self._grounds.of(tool, project=self._cwd, cwd=self._cwd, named=named),
            state=self._policy.HostState(disabled=disabled, now=now),
        )
        if isinstance(decision, Deny):
            return Ending(end=End.DENIED, reason=decision.message, hint=decision.hint)
        if not isinstance(decision, Allow):
            return Ending(end=End.DENIED, reason=f"{tool.name} needs an approval")
        return decision.permit

    def _open_recorded(self, key: str, start: Start) -> Standing | Ending:
        """Start a server: begun and ended in the journal, as far as starting it goes."""
        call = ToolCall(id=new_call_id(), tool=key, arguments={}, caller=self._user)
        if not self.audit.begin(call, CallFacts(door=start.what, key=key)):
            return Ending(end=End.UNAVAILABLE, reason="the audit journal cannot be written")
        opened = self.sandbox.open(start)
        error = (
            ToolError(kind=Kind.UNAVAILABLE, message=opened.reason) if isinstance(opened, Ending) else None
        )
        run = Run(argv=start.argv, cwd=start.cwd, env_names=tuple(sorted(start.env)))
        self.audit.end(
            call,
            ToolResult(
                call_id=call.id,
                key=key,
                error=error,
                isolation=opened.layers,
                runs=(run,),
            ),
        )
        return opened

    def fetch_recorded(self, url: str) -> tuple[bytes | None, str | None]:
        """The content behind a URL, or why there is none: begun and ended in the journal."""
        from toolwright.runtimes import _web

        call = ToolCall(id=new_call_id(), tool=url, arguments={}, caller=self._user)
        if not self.audit.begin(call, CallFacts(door="fetch", key=url)):
            return None, "the audit journal cannot be written"
        body: bytes | None = None
        why: str | None = None
        web = _web.Web()
        try:
            answer = web.send(
                _web.Request(method="GET", url=url, headers=(("Accept", "application/json, */*"),)),
                # Whoever named this very address in a trusted source has granted it, and no other.
                reach=_web.Reach(hosts=_web.literal_hosts(url)),
                limits=_web.WebLimits(body_bytes_max=files.LONG_DOCUMENT_BYTES_MAX),
                deadline=time.monotonic() + _LIST_S,
                cancel=NEVER,
            )
            if answer.truncated:
                why = f"it is longer than {files.LONG_DOCUMENT_BYTES_MAX} bytes"
            elif answer.status != 200:
                why = f"it was answered with HTTP status {answer.status}"
            else:
                body = answer.body
        except _web.Unreached as no:
            why = no.why
        finally:
            web.close()
        error = ToolError(kind=Kind.UNAVAILABLE, message=why) if why is not None else None
        self.audit.end(call, ToolResult(call_id=call.id, key=url, error=error))
        return body, why

    @property
    def warnings(self) -> tuple[str, ...]:
        lacking = _LACKING.get(self.sandbox.level)
        return (
            (f"isolation level {self.sandbox.level}: {lacking} (see `toolwright doctor`)",) if lacking else ()
        )

    def close(self) -> None:
        if self._servers is not None:
            self._servers.close()
        self._pythons.close()
        self._functions.close()
        self._https.close()
        self._scripts.close()
        self.sandbox.close()
        self.audit.close()
        self.keep.close()


class Closable(Protocol):
    """A runtime that keeps something between calls."""

    def run(self, tool: Tool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending: ...

    def close(self) -> None: ...


class LaterServers:
    """The runtime of MCP servers, looked up at each call: it is made at the first one."""

    def __init__(self, servers: Callable[[], McpTools]) -> None:
        self._servers = servers

    def run(self, tool: Tool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        return self._servers().run(tool, call, permit, cancel)


class ServerLists:
    """What MCP servers list: asked all at once, remembered on disk, and asked again when they say so."""

    def __init__(self, state: str | None, hands: Callable[[], Hands], reload: Callable[[], None]) -> None:
        self._state = state
        self._hands = hands
        self._reload = reload
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}
        self._found: sources.Listing | None = None
        self._refreshing = False
        self._doubted: set[str] = set()
        self._stop = threading.Event()

    def defined(self, digest: str) -> str | None:
        """A server by the digest of its definition."""
        found = self._known.get(digest)
        return found[0] if found is not None else None

    def ask(
        self, candidates: Sequence[sources.Candidate]
    ) -> list[tuple[bytes | None, str | None, str | None]]:
        """Each in its own permit, each start recorded. A server that is slow or dead costs its own time."""
        if self._state is None:
            return [(None, "there is no state folder to record its start in", None)] * len(candidates)
        listed = self._listed([(candidate.defined, candidate.path) for candidate in candidates])
        answers: list[tuple[bytes | None, str | None, str | None]] = []
        for candidate, found in zip(candidates, listed, strict=True):
            self._note("failed", candidate.server, there=isinstance(found, Ending))
            if isinstance(found, Ending):
                answers.append((None, found.reason or found.end.value, found.hint))
            else:
                content = jsontext.compact({"tools": found})
                self._note("listed", candidate.server, hashlib.sha256(content).hexdigest())
                answers.append((content, None, None))
        return answers

    def _listed(self, servers: Sequence[tuple[str, str]]) -> list[list[JsonValue] | Ending]:
        from concurrent.futures import ThreadPoolExecutor

        from toolwright.formats.mcp import Server, server_record

        def ask(named: tuple[str, str]) -> list[JsonValue] | Ending:
            server = Server.read(named[0])
            stated = server.definition.get("timeout")
            record = server_record(server, named[1])
            return runtime.listed(record, float(stated) if stated else _LIST_S)

        if not servers:
            return []
        runtime = self._hands().servers
        with ThreadPoolExecutor(min(len(servers), _SERVERS_AT_ONCE), "mcp-list") as pool:
            return list(pool.map(ask, servers))

    def states(self, servers: Mapping[str, tuple[str, str]]) -> tuple[ServerState, ...]:
        self._listed([*servers.values()])
        names = [formats.server_of(text).name for text, _ in servers.values()]
        found = {state.name: state for state in self._hands().servers.states()} if names else {}
        return tuple(found[name] for name in names if name in found)

    # -- changes --------------------------------------------------------------------------------------------

    def know(self, found: sources.Listing) -> None:
        """From now on this is what digests stand for."""
        self._known = {**self._known, **found.servers}
        self._found = found

    def declarations(self) -> Iterator[str]:
        """Where declarations lie, before they are read: no server that is asked by then may write them."""
        if self._found is not None:
            yield from (candidate.path for candidate in islice(self._found.candidates, _GUARDED_MAX))

    def changed_at(self, digest: str) -> tuple[int, int, int, int]:
        """When a server last said that its tools are others now; other programs of ours see it too."""
        return (0, self._noted("changed", digest), 0, 0)

    def note_change(self, digest: str) -> None:
        self._note("changed", digest)
        self._note("failed", digest, there=False)

    def rests(self, digest: str) -> bool:
        """Whether a server gave no list just now: it is not asked at every start while it is down."""
        age_s = time.time() - self._noted("failed", digest) / 1e9
        return 0 <= age_s < _REST_S

    def _noted(self, what: str, digest: str) -> int:
        """When something was noted about a server, in nanoseconds; 0: never."""
        if self._state is None:
            return 0
        try:
            return os.stat(self._mark(what, digest)).st_mtime_ns
        except OSError:
            return 0

    def _note(self, what: str, digest: str, text: str = "", *, there: bool = True) -> None:
        if self._state is None:
            return
        path = self._mark(what, digest)
        with suppress(OSError):
            if not there:
                os.unlink(path)
                return
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
                file.write(text)
            os.utime(path)

    def _mark(self, what: str, digest: str) -> str:
        assert self._state is not None
        return os.path.join(self._state, "servers", f"{digest.rpartition(':')[2]}.{what}")

    def server_changed(self, digest: str) -> None:
        """A server says that its tools are others now: it is asked again meanwhile, and believed if they are.

        Attack: a server that says so all the time. One thread asks, and pauses each time.
        """
        with self._lock:
            self._doubted.add(digest)
            if self._refreshing or self._stop.is_set():
                return
            self._refreshing = True
        threading.Thread(target=self._refresh, name="mcp-refresh", daemon=True).start()

    def _refresh(self) -> None:
        while True:
            with self._lock:
                doubted, self._doubted = self._doubted, set()
                if not doubted or self._stop.is_set():
                    self._refreshing = False
                    return
            with suppress(ToolwrightError):
                changed = [digest for digest in doubted if self._is_another(digest)]
                for digest in changed:
                    self.note_change(digest)
                if changed:
                    self._reload()
            self._stop.wait(_REFRESH_S)

    def _is_another(self, digest: str) -> bool:
        """Whether a server lists something else than it did when its list was last read."""
        if digest not in self._known:
            return False
        (listed,) = self._listed([self._known[digest]])
        if isinstance(listed, Ending):
            return False
        seen = hashlib.sha256(jsontext.compact({"tools": listed})).hexdigest()
        content, _ = files.read(self._mark("listed", digest)) if self._state is not None else (None, None)
        return content is None or content.decode("ascii", "replace") != seen

    def close(self) -> None:
        self._stop.set()


class Later:
    """A runtime that is made, and its module imported, when it is first called."""

    def __init__(self, make: Callable[[], Closable]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Closable | None = None

    def run(self, tool: Tool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made.run(tool, call, permit, cancel)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _javascript_tools(host: Host, contents: Contents, zygotes_max: int) -> Closable:
    from toolwright.runtimes.javascript import JavaScriptTools

    return JavaScriptTools(host, contents, zygotes_max=zygotes_max)


def _python_tools(host: Host, contents: Contents, zygotes_max: int) -> Closable:
    from toolwright.runtimes.python import PythonTools

    # A format with signatures is run in this process only once its signature was verified; for the others the
    # host's opt-in is all there is.
    return PythonTools(host, contents, verified=lambda tool: tool.signature is None, zygotes_max=zygotes_max)


def _function_tools(functions: Mapping[str, Function], cwd: str) -> FunctionTools:
    from toolwright.runtimes.functions import FunctionTools

    return FunctionTools(functions, cwd)


def _http_tools(host: Host) -> HttpTools:
    from toolwright.runtimes._web import Web
    from toolwright.runtimes.http import HttpTools

    return HttpTools(host, Web())


def _container_tools(host: Host) -> ContainerTools:
    from toolwright.runtimes.container import ContainerTools

    return ContainerTools(host)


def _strongest() -> Sandbox:
    from toolwright.sandbox import probe

    try:
        return probe.choose()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StoreError(
            f"{error.filename or 'the temporary folder'}: no scratch folder can be made: {why}",
            "make room there, or name another folder in TMPDIR",
        ) from None


class Keep:
    """The store of a host, opened only when something is in it or has to go in."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._parents: Store | None = None
        self._host = os.getpid()
        self._seen: tuple[object, tuple[Disabled, ...]] = (None, ())
        self._looked = -1.0

    def opened(self) -> Store:
        from toolwright.store.sqlite import SqliteStore

        with self._lock:
            if self._host != os.getpid():  # SQLite: a connection is neither used nor closed in a fork
                self._parents, self._store, self._host = self._store, None, os.getpid()
            if self._store is None:
                self._store = SqliteStore(self._path)
            return self._store

    def disabled(self, now: float) -> tuple[Disabled, ...]:
        """What is switched off, as of a hundredth of a second ago: every call asks."""
        if not self._looked <= now < self._looked + _FRESH_S:
            stamp = (_stamp(self._path), _stamp(f"{self._path}-wal"))
            if stamp == (None, None):
                self._seen = (stamp, ())
            elif self._seen[0] != stamp:
                from toolwright.store.disabled import disabled

                self._seen = (stamp, disabled(self.opened(), now))
            self._looked = now
        off = self._seen[1]
        return tuple([entry for entry in off if entry.until is None or entry.until > now]) if off else ()

    def close(self) -> None:
        with self._lock:
            if self._store is not None and self._host == os.getpid():
                self._store.close()
                self._store = None


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What tells that a file of the store changed; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # not to be seen is not to be absent
        why = (error.strerror or "cannot be read").lower()
        raise StoreError(f"{path}: {why}", "make the state folder readable for the host's user") from None
    return status.st_ino, status.st_size, status.st_mtime_ns
