"""What runs calls: journal, store, sandbox, runtimes and the engine, put together and ended together.

Made at a crib's first call, so this module is imported then. Nothing is decided here: ``trust/policy.py``
decides, ``engine.py`` has the order of a call. Runtimes that most hosts never use are imported at their first
call, by whole modules.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from toolcrib.bound import BoundTool
from toolcrib.catalog import files, loading
from toolcrib.catalog.catalog import Catalog
from toolcrib.catalog.digests import Contents
from toolcrib.config import Config, Environment, own_python
from toolcrib.engine import Engine
from toolcrib.errors import Kind, StoreError, UsageError
from toolcrib.forks import IN_FORKS
from toolcrib.gate import Gate
from toolcrib.journal.audit import open_audit
from toolcrib.journal.redaction import shown_url
from toolcrib.model import (
    LEVELS,
    Allow,
    CallFacts,
    CallFunction,
    CallHttp,
    CallJavaScript,
    CallMcp,
    CallPython,
    Deny,
    End,
    Ending,
    Invocation,
    Level,
    Permit,
    Run,
    RunContainer,
    RunProcess,
    Spent,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
)
from toolcrib.runtimes import Host, Runtime, around, process, vaulted
from toolcrib.sandbox import NEVER, Cancel, Sandbox, Standing, Start
from toolcrib.servers import LIST_S, ServerLists
from toolcrib.store import private
from toolcrib.store.leases import Leases
from toolcrib.trust.secrets import Secrets, Withheld

if TYPE_CHECKING:
    from toolcrib.catalog.unconfirmed import Unconfirmed
    from toolcrib.functions import Function
    from toolcrib.runtimes._http_client import HttpClient
    from toolcrib.runtimes.container import ContainerTools
    from toolcrib.runtimes.functions import FunctionTools, Own
    from toolcrib.runtimes.http import HttpTools
    from toolcrib.runtimes.mcp import McpTools
    from toolcrib.trust.approvals import Approvals
    from toolcrib.trust.vault import Vault

_CLOSED = "the crib is closed"
_LACKING = {
    Level.PORTABLE: "what tools declare is not enforced",
    Level.RESTRICTED: "the spawner does not work here, so what a tool leaves running is not ended",
}
"""What a person should know about a level before calling."""
_DEVELOPMENT: Final = (
    "development mode: tools run though their signatures are missing, wrong or nobody's "
    "(RYE_DEV_MODE=1 and [rye] dev_mode)"
)
_KEPT: Final = (CallPython, CallJavaScript)
"""What an interpreter is kept for between calls."""
_WRITING: Final = (RunProcess, CallPython, CallJavaScript, RunContainer)
"""What may write files by itself."""
_FETCHED_AT_ONCE: Final = 16
_SETTLE_S: Final = 2.0


class _Chance:
    """Random bytes for ids, drawn many at once: each drawing lets another thread have the interpreter."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._drawn: list[str] = []

    def take(self) -> str:
        while True:
            try:
                return self._drawn.pop()
            except IndexError:
                drawn = os.urandom(6 * 256).hex()
                self._drawn = [drawn[at : at + 12] for at in range(0, len(drawn), 12)]


_CHANCE: Final = _Chance()
IN_FORKS.add(_CHANCE)  # else parent and child would give the same


class Hands:
    """Everything a call needs besides the catalog: journal, store, sandbox, runtimes, engine.

    Made at the first call, because most openings of a crib never call anything.
    """

    def __init__(
        self,
        config: Config,
        environment: Environment,
        report: Callable[[], loading.LoadReport],
        handlers: Mapping[str, object],
        *,
        functions: Mapping[str, Function],
        own: Callable[[str], Own | None],
        served: Callable[[str, Catalog], Tool | None],
        meant: Callable[[ToolCall], ToolCall],
        in_process: bool,
        sandbox: Sandbox | None,
        lists: ServerLists,
        gate: Gate,
        unconfirmed: Unconfirmed,
    ) -> None:
        if config.state is None:
            raise UsageError(
                "a call must be recorded, and there is no state folder", "give the Config a state folder"
            )
        # Attack: another user of the machine puts his own journal, key or list of what is switched off in the
        # place of ours.
        files.check_state(config.state)
        self._config = config
        self._report = report
        self._cwd = gate.cwd
        self._state = config.state
        self._user = environment.user
        self._gate = gate
        self._unconfirmed = unconfirmed
        assert gate.keep is not None
        self.keep = gate.keep
        self.audit = open_audit(
            config.state,
            variables=environment.variables,
            patterns=config.redact,
            retention_days=config.retention_days,
            day_file=config.day_file,
        )
        # Late: it starts a process, which must not be left behind.
        lowered: list[str] = []
        self.sandbox = sandbox or _strongest(environment.temporary_folder, lowered.append)
        self._lowered = "".join(f": {why}" for why in lowered)
        self._host = Host(
            sandbox=self.sandbox,
            variables=environment.variables,
            cwd=self._cwd,
            python=own_python(sys.executable, sys.exec_prefix),
            spaces=gate.spaces,
            allow_scripts=config.allow_scripts,
            load_dotenv=config.load_dotenv,
            # Whoever names a project for calling its tools runs its code: its interpreter adds nothing.
            trusted_projects=frozenset(map(os.path.realpath, gate.named)),
            handlers=handlers,
            in_process=in_process,
            secrets=Secrets(cache(partial(_vault, config.state, environment)), config.secrets),
            container_engine=config.container_engine,
            contents=gate.contents,
            is_left_alone=lambda path: unconfirmed.appeared(path) is not None,
            vet_config=lambda path, content, item: gate.vetter.vet_config(path, content, item),
        )
        contents = self._contents = gate.contents
        self._pythons = Later(lambda: _python_tools(self._host, contents, gate.is_verified, config.zygotes))
        self._https = Later(lambda: _http_tools(self._host, config))
        self._containers = Later(lambda: _container_tools(self._host))
        self._scripts = Later(lambda: _javascript_tools(self._host, contents, config.zygotes))
        self._lists = lists
        self._servers: McpTools | None = None
        self._approvals: Approvals | None = None
        self._making = threading.Lock()
        self._is_closed = False
        processes = process.ProcessTools(self._host, contents)
        self._functions = Later(lambda: _function_tools(functions, self._cwd, own))
        self.spill = around.Spill(os.path.join(config.state, "results"), config.result_bytes)
        leases = Leases(os.path.join(config.state, "running"))
        self.engine = Engine(
            snapshot=gate.snapshot,
            audit=self.audit,
            decide=gate.decide,
            reserve=gate.reserve,
            runtimes={
                kind: self._noted(
                    kind,
                    around.Once(
                        around.Limited(
                            around.Retrying(
                                around.Watched(runtime) if kind in (*_WRITING, CallMcp) else runtime
                            ),
                            config.calls_per_tool,
                            runtime,
                        ),
                        self.keep.opened,
                        leases,
                    ),
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
            approvals=lambda: self.approvals,
            arrives=lambda call, cancel: self._lists.arrives(call.tool, call.timeout_s or LIST_S, cancel),
            absence=self._absence,
            lacks=self._lacks,
            served=served,
            meant=meant,
            is_barred=lambda tool, caller: gate.refusals(caller)(tool) is not None,
        )

    def _noted(self, kind: type[Invocation], runtime: Runtime) -> Runtime:
        """A runtime that says when something of a tool's own may write. Servers say so when they start."""
        if kind not in _WRITING:
            return runtime
        return around.Noted(runtime, self._unconfirmed, stays=kind in _KEPT)

    @property
    def approvals(self) -> Approvals:
        """Questions that wait for a person; made when the first one is asked or looked at."""
        with self._making:
            if self._approvals is None:
                from toolcrib.trust.approvals import Approvals

                self._approvals = Approvals(
                    self.keep.opened,
                    present=self.keep.present,
                    note=self.audit.note_durably,
                    redact=self.audit.redaction,
                )
            return self._approvals

    @staticmethod
    def new_call_id() -> str:
        """Unique among all hosts, and for a reader in the order of time."""
        return time.time_ns().to_bytes(8, "big").hex() + _CHANCE.take()

    @contextmanager
    def _recorded(self, door: str, key: str, runs_digest: str | None = None) -> Iterator[_Record | None]:
        """Begin and end something outside of any tool's call in the journal, whatever happens in between.
        None: it cannot be recorded, so it must not be done."""
        call = ToolCall(id=self.new_call_id(), tool=key, arguments={}, caller=self._user)
        if not self.audit.begin(call, CallFacts(door=door, key=key, runs_digest=runs_digest)):
            yield None
            return
        record = _Record(ToolResult(call_id=call.id, key=key, error=_UNEXPECTED))
        try:
            yield record
        finally:
            self.audit.end(call, record.result)

    def _unrecorded(self) -> Ending:
        why, hint = self.audit.why_not
        reason = f"the audit journal cannot be written: {why}"
        return Ending(end=End.UNAVAILABLE, reason=reason, hint=hint)

    def run_recorded(self, start: Start) -> Ending:
        """Run a program outside of any tool's call: begun and ended in the journal all the same."""
        from toolcrib.calls.replies import kind_of

        held = self._contents.file(start.program)
        digest = held.digest if held is not None else None
        with self._recorded(start.what, start.program, digest) as record:
            if record is None:
                return self._unrecorded()
            if LEVELS.index(self.sandbox.level) < LEVELS.index(self._config.require):
                reason = f"isolation level {self._config.require} is missing"
                ending = Ending(end=End.UNAVAILABLE, reason=reason)
            else:
                permit = replace(start.permit, hidden=(os.path.realpath(self._state),))
                ending = self.sandbox.run(replace(start, permit=permit), Cancel())
            failed = ending.end is not End.EXITED or ending.exit_status != 0
            error = ToolError(kind=kind_of(ending.end), message=ending.reason or ending.end)
            duration_ms = sum(run.duration_ms for run in ending.runs)
            record.result = replace(
                record.result,
                error=error if failed else None,
                spent=Spent(duration_ms=duration_ms, output_bytes=ending.stdout_bytes, usage=ending.usage),
                isolation=ending.layers,
                runs=tuple(replace(run, what="call") for run in ending.runs),
            )
        return ending

    def _lacks(self, tool: Tool, permit: Permit) -> ToolError | None:
        """A secret that a start of the tool would need, and that is not there."""
        try:
            self._host.secrets.check(vaulted(self._host, tool, permit))
        except Withheld as no:
            return ToolError(kind=Kind.UNAVAILABLE, message=no.reason, hint=no.hint)
        return None

    def _absence(self, name: str, catalog: Catalog) -> ToolError | None:
        """Why there is no tool of a name: a server that is known, and has not listed its tools."""
        found = self._lists.absence(name, catalog.keys)
        return ToolError(kind=Kind.UNAVAILABLE, message=found[0], hint=found[1]) if found else None

    # -- MCP servers ----------------------------------------------------------------------------------------

    @property
    def servers(self) -> McpTools:
        """What talks to MCP servers; made, and its module imported, when first asked for. Raises UsageError
        where it would be made for nobody."""
        with self._making:
            if self._servers is None:
                if self._is_closed:
                    raise UsageError(_CLOSED, "call before its `with` block ends")
                from toolcrib.runtimes.mcp import McpTools

                # Attack: the first server ever, asked before there is a state folder, reads what is written
                # there later: only what exists can be hidden.
                with suppress(OSError):
                    private.make_folders(self._state)
                self._gate.guard(self._lists.listing)
                self._servers = McpTools(
                    self._host,
                    permit_of=self._permit_server,
                    definitions=self._lists.defined,
                    opener=self._open_recorded,
                    changed=self._lists.server_changed,
                    http_client=partial(_http_client, self._host, self._config),
                )
            return self._servers

    def keep_servers(self, digests: Collection[str]) -> None:
        """End the servers that no source and no tool's file names any more."""
        with self._making:
            servers = self._servers
        if servers is not None:
            # Attack: a server whose definition somebody took out of a project goes on with what it was
            # granted.
            servers.keep_only(digests, lambda: self._report().catalog.tools)

    def _permit_server(self, tool: Tool) -> Permit | Ending:
        """What a server itself may do."""
        decision = self._gate.decide_server(tool)
        if isinstance(decision, Deny):
            end = End.UNAVAILABLE if decision.kind is Kind.UNAVAILABLE else End.DENIED
            return Ending(end=end, reason=decision.message, hint=decision.hint)
        if not isinstance(decision, Allow):
            return Ending(end=End.DENIED, reason=f"{tool.name} needs an approval")
        return decision.permit

    def _open_recorded(self, key: str, start: Start) -> Standing | Ending:
        """Start a server: begun and ended in the journal, as far as starting it goes."""
        opened: Standing | Ending | None = None
        try:
            with self._recorded(start.what, key) as record:
                if record is None:
                    return self._unrecorded()
                if start.permit.write:
                    try:
                        self._unconfirmed.begins(key, start.permit.write, stays=True)
                    except StoreError as error:
                        reason = f"what tools may change cannot be noted: {error.message}"
                        return Ending(end=End.UNAVAILABLE, reason=reason, hint=error.hint)
                opened = self.sandbox.open(start)
                why = opened.reason if isinstance(opened, Ending) else None
                record.result = replace(
                    record.result,
                    error=ToolError(kind=Kind.UNAVAILABLE, message=why) if why is not None else None,
                    isolation=opened.layers,
                    runs=(Run(argv=start.argv, cwd=start.cwd, env_names=tuple(sorted(start.env))),),
                )
        except BaseException:
            if opened is not None and not isinstance(opened, Ending):
                opened.close()  # nobody else knows of it
            raise
        return opened

    # -- documents behind URLs ------------------------------------------------------------------------------

    def fetch_recorded(self, urls: Sequence[str]) -> list[tuple[bytes | None, str | None]]:
        """The contents behind URLs, or why there are none: each begun and ended in the journal. All at once:
        one that is slow or dead costs its own time."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(urls), _FETCHED_AT_ONCE) or 1, "fetch") as pool:
            return list(pool.map(self._fetch_recorded, urls))

    def _fetch_recorded(self, url: str) -> tuple[bytes | None, str | None]:
        with self._recorded("fetch", shown_url(url)) as record:
            if record is None:
                return None, self._unrecorded().reason
            body, why = _fetched(url, _http_client(self._host, self._config))
            error = ToolError(kind=Kind.UNAVAILABLE, message=why) if why is not None else None
            record.result = replace(record.result, error=error)
        return body, why

    @property
    def warnings(self) -> tuple[str, ...]:
        lacking = _LACKING.get(self.sandbox.level)
        told = f"isolation level {self.sandbox.level}: {lacking}{self._lowered} (see `toolcrib doctor`)"
        found = [told] if lacking else []
        if self._gate.is_development:
            found.append(_DEVELOPMENT)
        return tuple(found)

    def close(self) -> None:
        with self._making:
            self._is_closed = True
            servers = () if self._servers is None else (self._servers,)
        with ExitStack() as ending:  # whatever fails, the others end: the last ones first
            ending.callback(self.audit.close)
            # Calls that were stopped just now still record their ends; one that nothing can stop does not
            # hold up the closing for long.
            ending.callback(self.audit.settle, _SETTLE_S)
            parts = (self.sandbox, self._scripts, self._https, self._containers, self._functions)
            for part in (*parts, self._pythons, *servers):
                ending.callback(part.close)


class _Record:
    """What the journal will say about how something ended."""

    def __init__(self, result: ToolResult) -> None:
        self.result = result


_UNEXPECTED: Final = ToolError(kind=Kind.INTERNAL, message="it ended in a way that nobody expected")


def _fetched(url: str, client: HttpClient) -> tuple[bytes | None, str | None]:
    from toolcrib.runtimes._http_client import HttpLimits, Reach
    from toolcrib.runtimes._http_request import Request, Unreached, literal_hosts

    try:
        answer = client.send(
            Request(method="GET", url=url, headers=(("Accept", "application/json, */*"),)),
            # A trusted source that names this very address has granted it, and no other.
            reach=Reach(hosts=literal_hosts(url)),
            limits=HttpLimits(body_bytes_max=files.LONG_DOCUMENT_BYTES_MAX),
            deadline=time.monotonic() + LIST_S,
            cancel=NEVER,
        )
    except Unreached as no:
        return None, no.why
    # Attack: an answer that breaks its reader, and so hides every other source.
    except Exception as error:  # noqa: BLE001
        return None, f"it cannot be read ({type(error).__name__})"
    finally:
        client.close()
    if answer.truncated:
        return None, f"it is longer than {files.LONG_DOCUMENT_BYTES_MAX} bytes"
    if answer.status != 200:
        return None, f"it was answered with HTTP status {answer.status}"
    return answer.body, None


class Closable(Runtime, Protocol):
    """A runtime that keeps something between calls."""

    def close(self) -> None: ...


class Later:
    """A runtime that is made, and its module imported, when it is first called."""

    def __init__(self, make: Callable[[], Closable]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Closable | None = None
        self._is_closed = False

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    if self._is_closed:  # nobody would end what is made now
                        return Ending(end=End.UNAVAILABLE, reason=_CLOSED)
                    self._made = self._make()
                    self.run = self._made.run  # type: ignore[method-assign] # nobody has to come this way again
                made = self._made
        return made.run(bound, call, permit, cancel)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        if self._made is not None:
            self._made.close()


class LaterServers:
    """The runtime of MCP servers, looked up at each call: it is made at the first one."""

    def __init__(self, servers: Callable[[], McpTools]) -> None:
        self._servers = servers

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        try:
            servers = self._servers()
        except UsageError as closed:
            return Ending(end=End.UNAVAILABLE, reason=closed.message)
        return servers.run(bound, call, permit, cancel)


def _vault(state: str, environment: Environment) -> Vault:
    from toolcrib.trust.vault import Vault, system_ring

    return Vault(state, passphrase=lambda: environment.passphrase, ring=system_ring)


def _javascript_tools(host: Host, contents: Contents, zygotes_max: int) -> Closable:
    from toolcrib.runtimes.javascript import JavaScriptTools

    return JavaScriptTools(host, contents, zygotes_max=zygotes_max)


def _python_tools(
    host: Host, contents: Contents, verified: Callable[[BoundTool, ToolCall], bool], zygotes_max: int
) -> Closable:
    from toolcrib.runtimes.python import PythonTools

    # A format with signatures is run in this process only once its signature was verified; for the others the
    # host's opt-in is all there is.
    return PythonTools(host, contents, verified=verified, zygotes_max=zygotes_max)


def _function_tools(
    functions: Mapping[str, Function], cwd: str, own: Callable[[str], Own | None]
) -> FunctionTools:
    from toolcrib.runtimes.functions import FunctionTools

    return FunctionTools(functions, cwd, own=own)


def _http_tools(host: Host, config: Config) -> HttpTools:
    from toolcrib.runtimes.http import HttpTools

    return HttpTools(host, _http_client(host, config))


def _http_client(host: Host, config: Config) -> HttpClient:
    from toolcrib.runtimes._http_client import HttpClient, Proxy

    proxy, named = None, config.http.proxy
    if named is not None:
        login = partial(_proxy_login, host, named.secret) if named.secret else None
        proxy = Proxy(host=named.host, port=named.port, hosts=named.hosts, login=login)
    return HttpClient(ca_file=config.http.ca_file, proxy=proxy)


def _proxy_login(host: Host, name: str) -> str:
    """Return what a proxy wants to know. Looked up for each request; raises Unreached if it cannot be had."""
    from toolcrib.runtimes._http_request import Trouble, Unreached

    why, hint = f"the secret {name!r} of the proxy is missing", f"toolcrib secret set {name}"
    try:
        found = host.secrets.values(host.secrets.candidates((), (name,)))
        value = found.get(name) or host.variables.get(name) or ""
        if value and ":" not in value:
            why = f"the secret {name!r} of the proxy is not USER:PASSWORD"
    except Withheld as no:
        value, why, hint = "", no.reason, no.hint or hint
    if ":" not in value:
        raise Unreached(Trouble.UNREACHABLE, why, hint=hint)
    return value


def _container_tools(host: Host) -> ContainerTools:
    from toolcrib.runtimes.container import ContainerTools

    return ContainerTools(host)


def _strongest(temporary_folder: str, told: Callable[[str], None]) -> Sandbox:
    from toolcrib.sandbox import probe

    try:
        return probe.choose(base=temporary_folder, told=told)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StoreError(
            f"{error.filename or 'the temporary folder'}: no scratch folder can be made: {why}",
            probe.SCRATCH_FIX,
        ) from None
