"""One MCP server and the connection to it: kept, shared by all calls, and made again after it was lost.

Whoever calls first connects; a server that died or cannot be reached is tried again after a pause that grows,
and calls made meanwhile fail at once and say when. How it is reached is ``_mcp_definition.py``'s; which
servers there are, and what is asked of them, is ``mcp.py``'s.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from toolcrib import mcp_wire as wire
from toolcrib.calls.replies import grant_lines
from toolcrib.journal.redaction import Cleaning, shown_url
from toolcrib.model import End, Ending, HeldName, Permit, Tool
from toolcrib.runtimes import (
    Host,
    _mcp_http,
    _mcp_stdio,
    compiles_nothing,
    environment,
    find_program,
    first_line,
    is_python,
    vaulted,
)
from toolcrib.runtimes import _mcp_client as client
from toolcrib.runtimes._http_client import HttpClient, Reach
from toolcrib.runtimes._http_request import literal_hosts
from toolcrib.runtimes._mcp_definition import (
    TWO_ENDPOINTS,
    TWO_ENDPOINTS_HINT,
    Definition,
    Unset,
    filled,
    handed,
    is_telling,
    referred,
    told_openly,
)
from toolcrib.sandbox import Cancel, Standing, Start
from toolcrib.trust.policy import is_loader
from toolcrib.trust.secrets import Withheld

CONNECT_S: Final = 60.0
"""For starting and greeting a server, where its definition says nothing else."""
FIRST_PAUSE_S: Final = 0.5
"""Between a death and the next attempt; then twice that, and so on."""
PAUSE_S_MAX: Final = 60.0
HINT_LINES: Final = 8
"""Of a server's stderr, in a hint: an uncaught error of Python or Node has about as many."""

_GRACE_S: Final = 0.5
_CLOSE_S: Final = 5.0
_STEP_S: Final = 0.05

_Told = TypeVar("_Told")
Opener: TypeAlias = Callable[[str, Start], Standing | Ending]
"""Starts a server's process, under the server's name, and writes that down."""


class House(Protocol):
    """What a server is handed by the runtime that keeps it."""

    host: Host
    opener: Opener
    limits: client.WireLimits
    jitter: Callable[[float, float], float]

    def http_client(self) -> HttpClient: ...

    def changed(self, server: Server) -> None: ...


class State(Struct, frozen=True, kw_only=True):
    """How a server stands, for people."""

    name: str
    key: str
    where: str
    """Its command or URL; no value of a variable."""
    alive: bool
    why: str = ""
    about: str = ""
    """What it says it is."""
    stderr: str = ""
    hint: str = ""
    """What to do, where nobody could even try to reach it."""


class Unavailable(Exception):
    """There is no connection, and the ending says why."""

    def __init__(self, end: End, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.ending = Ending(end=end, reason=reason, hint=hint)


class _Attempt:
    """One attempt to connect, for all who wait for it."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.stop = Cancel()
        self.outcome: tuple[client.Line, client.Greeting] | Unavailable | None = None


def _where_to_set(name: str, definition: Definition) -> str:
    by_vault = f"toolcrib secret set {name}, or " if definition.vaulted else ""
    return f"{by_vault}set {name} for the host"


class Server:
    """One server: at most one connection, and the pause after it was lost."""

    def __init__(self, house: House, tool: Tool, definition: Definition, permit: Permit) -> None:
        self.definition = definition
        self.tool = tool
        self._house = house
        self._permit = permit
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._line: _mcp_stdio.StdioLine | _mcp_http.HttpLine | None = None
        self.greeting: client.Greeting | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._why = ""
        self._stderr = b""
        self._is_closed = False
        self._users = 0
        self._is_retired = False
        self.layers: tuple[str, ...] = ()
        """What held its process when it was last asked."""
        self.held: tuple[HeldName, ...] | None = None if definition.url else ()
        """The names that it could not take then; None: it is no process of ours."""
        # Attack: a definition that makes a known program load its author's code (`LD_PRELOAD`,
        # `NODE_OPTIONS`). Only a grant, which the host wrote, may name such a variable.
        self._left_out = frozenset(
            name for name, _ in definition.env if is_loader(name) and not {name, "*"} & {*permit.env}
        )
        self._words = self.answers = Cleaning({})
        """Take out of its words, and of its answers, what the server was handed."""
        self._note_handed({})

    def _note_handed(self, vault: Mapping[str, str]) -> None:
        """What is looked for in all it says from now on."""
        told = handed(self.definition, {**self._house.host.variables, **vault}, self._permit)
        # Attack: a server that writes its credentials to stderr or into a refusal, which goes into the cache,
        # the record and what `check` and `doctor` print.
        self._words = Cleaning({**told, **vault})
        telling = {name: value for name, value in told.items() if is_telling(name, value)}
        self.answers = Cleaning({**telling, **vault})

    def _vault(self, allowed: Callable[[str], bool]) -> dict[str, str]:
        """The secrets that it is handed now. Raises Unavailable."""
        host, permit = self._house.host, self._permit
        names = [name for name in referred(self.definition) if allowed(name)]
        own = names if self.definition.vaulted else [name for name in names if name in permit.vault]
        candidates = (*vaulted(host, self.tool, permit), *host.secrets.candidates(names, own))
        if not candidates:
            return {}
        try:
            found = host.secrets.values(dict.fromkeys(candidates))
        except Withheld as no:
            raise Unavailable(End.UNAVAILABLE, f"{self.name}: {no.reason}", no.hint) from None
        openly = told_openly(self.definition, found)
        if openly is not None:
            # Attack: a definition that puts a secret on a command line, where every process sees it.
            raise Unavailable(
                End.UNAVAILABLE,
                f"{self.name} is told {openly} on its command line, and secrets of the vault never go there",
                f'hand it over in its environment: env = ["{openly}"]',
            )
        self._note_handed(found)
        return found

    # -- connecting -----------------------------------------------------------------------------------------

    def connected(self, deadline: float, cancel: Cancel) -> tuple[client.Line, client.Greeting]:
        """The connection, made where there is none. Raises Unavailable.

        It is made by a thread of its own: a server that is slow to start is not started again and again by
        callers who have less time than it takes.
        """
        line, greeting = self._line, self.greeting
        if line is not None and greeting is not None and line.why_closed is None:
            return line, greeting
        began = time.monotonic()
        attempt = self._attempted()
        while not attempt.over.wait(min(_STEP_S, max(0.0, deadline - time.monotonic()))):
            if cancel.is_set:
                raise Unavailable(End.CANCELLED, "cancelled")
            if time.monotonic() >= deadline:
                why = f"it did not answer the greeting within {max(0.0, deadline - began):.1f} s"
                raise Unavailable(End.TIMED_OUT, f"{self.name} cannot be reached: {why}", self.hint)
        if isinstance(attempt.outcome, Unavailable):
            raise attempt.outcome
        assert attempt.outcome is not None
        return attempt.outcome

    def asked(
        self, ask: Callable[[client.Line, client.Greeting], _Told], deadline: float, cancel: Cancel
    ) -> _Told:
        """What ``ask`` gets over the connection; once more with a new session where the server has forgotten
        the old one, since nothing ran then. Raises Unavailable, Refusal or Unanswered."""
        with self._lock:
            self._users += 1
        try:
            for _ in range(2):
                line, greeting = self.connected(deadline, cancel)
                self.layers, self.held = line.layers, line.held
                try:
                    return ask(line, greeting)
                except _mcp_http.SessionOver:
                    self.forget(line)
            raise client.Unanswered("it forgets its sessions at once", sent=False)
        finally:
            with self._lock:
                self._users -= 1
                is_over = self._is_retired and not self._users
            if is_over:
                self.close()

    @property
    def name(self) -> str:
        return f"the MCP server {self.definition.name!r}"

    def _attempted(self) -> _Attempt:
        """The attempt that is under way, or a new one. Raises Unavailable while the pause lasts."""
        with self._lock:
            if self._attempt is not None and not self._attempt.over.is_set():
                return self._attempt
            if self._is_closed:
                raise Unavailable(End.UNAVAILABLE, f"{self.name} was closed")
            attempt = _Attempt()
            line, greeting = self._line, self.greeting
            if line is not None and greeting is not None and line.why_closed is None:
                attempt.outcome = (line, greeting)
                attempt.over.set()
                return attempt
            left_s = self._retry_at - time.monotonic()
            if left_s > 0:
                why = f"{self._why}; it is tried again in {left_s:.1f} s"
                raise Unavailable(End.UNAVAILABLE, f"{self.name} is down: {why}", self.hint)
            self._attempt = attempt
        try:
            threading.Thread(target=self._try, args=(attempt,), name="mcp-connect", daemon=True).start()
        except RuntimeError as error:  # no more threads for this user
            self._give_up(attempt, error)
        return attempt

    def _try(self, attempt: _Attempt) -> None:
        try:
            attempt.outcome = self._connect(attempt.stop)
        except Unavailable as no:
            attempt.outcome = no
        except Exception as error:  # noqa: BLE001 - one catch-all per thread boundary, no other
            self._give_up(attempt, error)
        finally:
            attempt.over.set()

    def _give_up(self, attempt: _Attempt, error: Exception) -> None:
        """An attempt failed by what is no fault of the server; the next one waits all the same."""
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        self.failed(why)
        attempt.outcome = Unavailable(End.UNAVAILABLE, f"{self.name} cannot be reached: {why}")
        attempt.over.set()

    def _connect(self, stop: Cancel) -> tuple[client.Line, client.Greeting]:
        now = time.monotonic()
        with self._lock:
            old, self._line, self.greeting = self._line, None, None
        if old is not None:
            old.close()
        limit_s = self.definition.timeout_s or CONNECT_S
        line: _mcp_stdio.StdioLine | _mcp_http.HttpLine | None = None
        try:
            line = self._opened()
            greeting = self._greet(line, now + limit_s, stop)
        except Unavailable as no:
            self._why = no.ending.reason
            raise
        except (client.Unanswered, client.Refusal) as no:
            if line is not None:
                line.close()
                self._stderr = line.stderr() or self._stderr
            why = self.clean(str(no))
            if isinstance(no, client.Late):
                why = f"it did not answer the greeting within {limit_s:.1f} s"
            elif isinstance(no, client.Refusal) and no.code:
                why = f"it refused the greeting: {self.clean(no.message)[:300]}"
            self.failed(why)
            hint = self.advice(no) if isinstance(no, client.Unanswered) else self.hint
            if isinstance(line, _mcp_stdio.StdioLine):
                hint = "; ".join(filter(None, (hint, self.about_environment)))
            raise Unavailable(End.UNAVAILABLE, f"{self.name} cannot be reached: {why}", hint) from None
        except BaseException:
            if line is not None:
                line.close()
            raise
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._line, self.greeting = line, greeting
        if is_late:
            line.close()
            raise Unavailable(End.UNAVAILABLE, f"{self.name} was closed")
        line.listen(greeting)
        return line, greeting

    def _greet(
        self, line: _mcp_stdio.StdioLine | _mcp_http.HttpLine, deadline: float, cancel: Cancel
    ) -> client.Greeting:
        """A process is greeted in the older era first: some end at any other first word, and those that know
        only the newer one say so. A URL is asked in the newer era first: it keeps no session."""
        if isinstance(line, _mcp_http.HttpLine):
            with suppress(client.Refusal):
                return client.discover(line, deadline, cancel)
        try:
            greeting = client.initialize(line, deadline, cancel)
        except _mcp_http.Rejected:
            if isinstance(line, _mcp_http.HttpLine) and line.has_two_endpoints(deadline, cancel):
                raise client.Unanswered(TWO_ENDPOINTS, sent=False, hint=TWO_ENDPOINTS_HINT) from None
            raise
        except client.Refusal as refusal:
            newer = refusal.code in (wire.UNSUPPORTED_VERSION, wire.METHOD_NOT_FOUND)
            if isinstance(line, _mcp_http.HttpLine) or not newer:
                raise
            return client.discover(line, deadline, cancel)
        if isinstance(line, _mcp_http.HttpLine):
            line.use(greeting)
        line.tell("notifications/initialized", deadline=deadline, cancel=cancel)
        return greeting

    def _opened(self) -> _mcp_stdio.StdioLine | _mcp_http.HttpLine:
        """Raises Unavailable."""
        definition, host, permit = self.definition, self._house.host, self._permit
        env = environment(host, self.tool, permit)
        granted = {*permit.env}

        def allowed(name: str) -> bool:
            return "*" in granted or name in granted or name in env

        vault = self._vault(allowed)
        variables = {**host.variables, **vault} if vault else host.variables
        try:
            headers = [(name, filled(text, variables, allowed)) for name, text in definition.headers]
            own_env = {
                name: filled(text, variables, allowed)
                for name, text in definition.env
                if name not in self._left_out
            }
            argv = tuple(filled(part, variables, allowed) for part in definition.command)
            url = filled(definition.url, variables, allowed)
            cwd = filled(definition.cwd, variables, allowed)
        except Unset as unset:
            name = str(unset)
            is_set = bool(variables.get(name))
            pattern = f"{definition.key}*" if definition.key else self.tool.key
            raise Unavailable(
                End.UNAVAILABLE,
                f"{self.name} needs the variable {name}, which "
                + ("it was not granted" if is_set else "is not set"),
                f'[grants."{pattern}"] env = ["{name}"]' if is_set else _where_to_set(name, definition),
            ) from None
        if url:
            return self._opened_url(url, headers)
        env |= {name: vault[name] for name in permit.env if name in vault} | own_env
        if "TMPDIR" in self.tool.needs.base_env and "TMPDIR" not in own_env:
            env["TMPDIR"] = ""
        cwd = os.path.normpath(os.path.join(host.cwd, cwd))
        # Attack: a definition with a PATH of its own, so that a known name leads to a program of its folder.
        program = _program(argv[0], host.variables.get("PATH", ""), cwd)
        is_line = " " in argv[0].strip() and not (program and os.path.exists(program))
        if program is None or is_line:
            hint = "install it, or correct the command; programs are looked up on the host's PATH"
            if is_line:
                hint = "name the program alone, and each of its arguments by itself (in a list: args)"
            raise Unavailable(
                End.UNAVAILABLE, f"{self.name} cannot be started: there is no program {argv[0]!r}", hint
            )
        if permit.write and is_python(program, argv, first_line(program)):
            compiles_nothing(env)
        start = Start(
            program=program,
            argv=argv,
            env=env,
            cwd=cwd,
            permit=permit,
            own=tuple(_named_files(argv[1:], cwd)),
            what="server",
        )
        standing = self._house.opener(definition.key or self.tool.key, start)
        if isinstance(standing, Ending):
            self.failed(standing.reason or standing.end.value)
            raise Unavailable(
                End.UNAVAILABLE, f"{self.name} cannot be started: {self._why}", standing.hint or self.hint
            )
        return _mcp_stdio.StdioLine(
            standing, self._house.limits, changed=lambda: self._house.changed(self), ended=self._died
        )

    def _opened_url(self, url: str, headers: list[tuple[str, str]]) -> _mcp_http.HttpLine:
        permit = self._permit
        if not permit.network:
            raise Unavailable(
                End.DENIED,
                f"{self.name} is reached over the network, which was not granted",
                f'[grants."{self.definition.key or self.tool.key}*"] needs = ["net.http"]',
            )
        # Whoever named this very address in a trusted source has granted it, and no other.
        hosts = literal_hosts(url) if self.definition.key else frozenset()
        return _mcp_http.HttpLine(
            self._house.http_client(),
            url,
            reach=Reach(private=permit.private, hosts=hosts),
            headers=headers,
            limits=self._house.limits,
            changed=lambda: self._house.changed(self),
        )

    # -- how it goes ----------------------------------------------------------------------------------------

    def worked(self) -> None:
        """It answered a call, so that the next death is the first one again."""
        self._failures = 0

    def failed(self, why: str) -> None:
        self._failures += 1
        self._why = self.clean(why)
        pause_s = min(PAUSE_S_MAX, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 20))
        # Not all of many servers that died together are started in the same moment.
        self._retry_at = time.monotonic() + pause_s * self._house.jitter(0.75, 1.25)

    def _died(self, why: str) -> None:
        line = self._line
        if line is None or self._is_closed:
            return  # it never was a connection, or is one no more: who made or closed it knows
        self._stderr = line.stderr()
        if self.greeting is not None:
            self.failed(why)

    def clean(self, text: str) -> str:
        """What the server said, without what it was handed."""
        return self._words.text(text)

    def _said(self, lines: int) -> str:
        return tail_of(self._words(self._line.stderr() if self._line is not None else self._stderr), lines)

    @property
    def hint(self) -> str | None:
        said = self._said(HINT_LINES)
        return "; ".join((*self.notes, *((f"its last words: {said}",) if said else ()))) or None

    @property
    def about_environment(self) -> str:
        """Say how a program gets a variable that it may lack."""
        pattern = f"{self.definition.key}*" if self.definition.key else self.tool.key
        return (
            "its environment is filtered: it has the base variables and those that its definition names; to "
            f'hand over another one: [grants."{pattern}"] env = ["NAME"]'
        )

    def advice(self, no: client.Unanswered) -> str | None:
        """What to do about an answer that did not come."""
        if not no.lacks:
            return no.hint or self.hint
        pattern = f"{self.definition.key}*" if self.definition.key else self.tool.key
        return f"{no.hint}:\n{grant_lines(pattern, no.lacks)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the definition asks for and the server does not get."""
        return tuple(
            f"{name} of its definition is left out: it makes programs load code, so a host grant must name it"
            for name in sorted(self._left_out)
        )

    def state(self) -> State:
        line, greeting = self._line, self.greeting
        alive = line is not None and greeting is not None and line.why_closed is None
        about = ""
        if greeting is not None:
            about = " ".join(filter(None, (greeting.name, greeting.server_version, greeting.version)))
        definition = self.definition
        return State(
            name=definition.name,
            key=definition.key,
            where=shown_url(definition.url) or " ".join(definition.command),
            alive=alive,
            why="" if alive else self._why,
            about=self.clean(about),
            stderr=self._said(20),
        )

    def protect(self, permit: Permit) -> None:
        """Start it again if paths must be read-only that are not: they came later, or a person has replaced
        them since it started.

        Attack: a server that was started before a tool was declared rewrites that tool's program. Calls that
        are under way are not cut off: then the next one is the first of the new start.
        """
        held = {*self._permit.protected, *self._permit.forbidden}
        line = self._line
        running = line if isinstance(line, _mcp_stdio.StdioLine) and line.why_closed is None else None
        if {*permit.protected, *permit.forbidden} <= held and (running is None or running.is_held()):
            return
        if running is not None:
            if running.is_busy:
                return
            self.forget(running)
        self._permit = permit

    def forget(self, line: client.Line) -> None:
        """Drop a connection, unless another caller has done so and there is a new one by now."""
        with self._lock:
            if self._line is line:
                self._line, self.greeting = None, None
        line.close()

    def retire(self) -> None:
        """End it as soon as nobody waits for it."""
        with self._lock:
            self._is_retired = True
            is_idle = not self._users
        if is_idle:
            self.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            line, self._line = self._line, None
            attempt = self._attempt
        if attempt is not None and not attempt.over.is_set():
            attempt.stop.set()
            attempt.over.wait(_CLOSE_S)
        if line is not None:
            line.close(_GRACE_S)


def tail_of(stderr: bytes, lines: int) -> str:
    """The last lines of what a server wrote, with nothing in them that steers a terminal."""
    kept = [line for line in stderr[-8192:].decode("utf-8", "replace").splitlines() if line.strip()]
    return "\n".join(
        "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line
        )[:300]
        for line in kept[-lines:]
    )


def _program(name: str, path: str, cwd: str) -> str | None:
    """Where a server's program lies: by its path, from the server's own folder, or on the host's PATH."""
    return os.path.normpath(os.path.join(cwd, name)) if "/" in name else find_program(name, path)


def _named_files(arguments: tuple[str, ...], cwd: str) -> Iterator[str]:
    """The files and folders that a command names: a server may read what it was started with."""
    for argument in arguments:
        if argument and not argument.startswith("-"):
            path = os.path.join(cwd, argument)
            if len(path) < 4096 and os.path.isfile(path):
                yield os.path.realpath(path)
