"""The composition root: builds the rooms, owns their lifetime, and hands them to a ``Workshop``.

Nothing is decided here. This is one of the five places that import late (by whole modules), so that opening
a workshop costs only what is used.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toolwright import jsontext
from toolwright.catalog import loading, sources
from toolwright.catalog.cache import Cache
from toolwright.catalog.catalog import Catalog, Tools
from toolwright.config import Config, Environment, current_folder, named_source, resolve
from toolwright.errors import UnknownTool, UsageError
from toolwright.model import (
    TIMEOUT_S_MAX,
    Choice,
    Declared,
    DeclareOptions,
    Disabled,
    ProbeOutcome,
    Problem,
    Rules,
    Selected,
    Severity,
    Skill,
    Tool,
    ToolCall,
    ToolMode,
    ToolResult,
)
from toolwright.records import dataclass, replace
from toolwright.sandbox import NEVER, Cancel, Sandbox
from toolwright.servers import ServerLists
from toolwright.store.keep import STORE_NAME, Keep

if TYPE_CHECKING:
    from toolwright.dialects import Dialect
    from toolwright.formats.capability import Migration
    from toolwright.functions import Function, Report
    from toolwright.hands import Hands
    from toolwright.runtimes._mcp_server import State as ServerState

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
    only: str | None = None,
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
    ``config`` may be the path of a file: it counts as with ``--config``, over the user's own.
    ``progress`` is told how many documents of how many have been read.
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
        named = [os.fspath(path) for path in paths]
    if config is None:
        config = Config(state=surroundings.state)
    else:
        config = _read_config(config, surroundings, cwd, alone=bool(tools or fallback))
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
    is_unnamed = found.sources == (sources.Source(path=cwd, named=True),)
    return replace(found, sources=()) if alone and is_unnamed else found


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
    if not tools and not fallback and provide is None:
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
        only: str | None = None,
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
        self._is_loaded = False
        self._lists = ServerLists(
            config.state, lambda: self.hands.servers, self._look_again, _server_of_key(only)
        )
        try:
            with self._loading:  # a server may say at once that its list changed
                self._report = self._load()
                self._is_loaded = True
        except BaseException:  # nobody gets this workshop, so nobody else could end what it started
            self._end()
            raise

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
        import anyio.to_thread

        # Beside the loop: what is cancelled on it must come to its end there, and be recorded.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def close(self) -> None:
        """End what was started, finish the records, and write down what makes the next start faster."""
        self._end()
        self._report.keep()

    def _end(self) -> None:
        self._lists.close()
        with self._lock:
            hands, self._hands = self._hands, None
            self._is_closed = True
        if hands is not None:
            hands.close()

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
        try:
            return self.catalog.find(name)
        except UnknownTool as unknown:
            absence = self._lists.absence(name, self.catalog.keys)
            if absence is None:
                raise
            message, hint = absence
            raise UnknownTool(f"{unknown.message}: {message}", hint) from None

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
                    self._lists.renew(digest)
            self._report = self._load(self._report)
            left = self._lists.settle()
            with self._lock:
                hands = self._hands
            if hands is not None:
                hands.keep_servers(left)

    def _look_again(self) -> None:
        """A server's list came after the catalog was made, or is another now."""
        with self._loading:
            if not self._is_loaded:  # the opening failed: there is nothing to replace
                return
        self.reload()

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
        given = dict(arguments or {})
        try:
            jsontext.plain(given)
        except (TypeError, ValueError, RecursionError) as error:
            if not jsontext.is_deeper(given, jsontext.DEPTH_MAX):  # that is a wrong call, not a wrong use
                hint = "use str keys and plain values"
                raise UsageError(f"arguments must be JSON: {error}", hint) from None
        _check_call(timeout_s, idempotency_key)
        call = ToolCall(
            id=self.hands.new_call_id(),
            tool=name,
            arguments=given,
            caller=self._environment.user if caller is None else caller,
            context=context or {},
            timeout_s=timeout_s,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
        if progress is None:
            return self.hands.engine.call(call, cancel or NEVER)
        from toolwright.functions import PROGRESS

        heard = PROGRESS.set(progress)
        try:
            return self.hands.engine.call(call, cancel or NEVER)
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
        from toolwright.calls.arguments import read

        given, defect = read(text)
        _check_call(timeout_s, idempotency_key)
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
            own = replace(call, id=self.hands.new_call_id(), caller=call.caller or self._environment.user)
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
                from toolwright.hands import Hands

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
                fetcher=self._fetch,
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


def _server_of_key(key: str | None) -> str | None:
    """The MCP server whose tool a key names."""
    format, _, rest = (key or "").partition(":")
    server, slash, _ = rest.partition("/")
    return server if format == "mcp" and slash else None


# -- what runs calls ----------------------------------------------------------------------------------------


def _check_call(timeout_s: float | None, idempotency_key: str | None) -> None:
    """What only a programmer can get wrong."""
    if timeout_s is not None and (type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_S_MAX):
        raise UsageError(f"timeout_s: must be above 0 and at most {TIMEOUT_S_MAX:.0f} (got {timeout_s!r})")
    if idempotency_key == "":
        raise UsageError("idempotency_key: must not be empty", "leave it out, or use a new text per request")
