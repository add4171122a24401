"""Tools of MCP servers: connections that are kept, shared by all calls, and made again after they were lost.

One ``_Server`` stands for one definition under one permit. Whoever calls first connects; a server that died
or cannot be reached is tried again after a pause that grows, and calls made meanwhile fail at once and say
when. This file knows no catalog, policy or record: who may start a server, and where that is written down, is
handed in.
"""

from __future__ import annotations

import base64
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from toolwright import jsontext
from toolwright.calls.replies import grant_lines
from toolwright.dialects.mcp import read_blocks
from toolwright.journal.redaction import is_secret_name, shown_url
from toolwright.jsontext import JsonObject, JsonValue
from toolwright.model import (
    BASE_ENV,
    TIMEOUT_S_MAX,
    CallMcp,
    Effect,
    End,
    Ending,
    Permit,
    Run,
    TextBlock,
    Tool,
    ToolCall,
)
from toolwright.records import dataclass, replace
from toolwright.runtimes import Host, _mcp_http, _mcp_stdio, _web, environment, find_program, project_of
from toolwright.runtimes import _mcp_wire as wire
from toolwright.runtimes._cleaning import Cleaning
from toolwright.sandbox import Cancel, Standing, Start
from toolwright.trust.policy import is_loader

CONNECT_S: Final = 60.0
"""For starting and greeting a server, where its definition says nothing else."""
FIRST_PAUSE_S: Final = 0.5
"""Between a death and the next attempt; then twice that, and so on."""
PAUSE_S_MAX: Final = 60.0
TWO_ENDPOINTS: Final = "it speaks the old transport with two endpoints (sse), which this version does not"
TWO_ENDPOINTS_HINT: Final = (
    'name its Streamable HTTP address (type "http"; often the same host with /mcp instead of /sse), or a '
    "newer release of the server"
)
HINT_LINES: Final = 3
"""Of a server's stderr, in a hint."""

_GRACE_S: Final = 0.5
_CLOSE_S: Final = 5.0
_STEP_S: Final = 0.05
_CLOSE_THREADS: Final = 16
_TELLING_CHARS_MIN: Final = 8
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_Told = TypeVar("_Told")
Opener: TypeAlias = Callable[[str, Start], Standing | Ending]
"""Starts a server's process, under the server's name, and writes that down."""


# -- what a server is ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """How a server is reached. Values with ``${NAME}`` are filled in when it is."""

    name: str
    key: str = ""
    """The key that stands for the server in grants and rules; empty: it runs as the tool that calls it."""
    command: tuple[str, ...] = ()
    url: str = ""
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    timeout_s: float | None = None


@lru_cache(maxsize=1024)
def _reference(settings: bytes) -> tuple[str, str]:
    """The key and the digest by which settings refer to a server; empty where they hold the definition."""
    held = jsontext.loads_own(settings)
    assert isinstance(held, dict)
    return str(held.get("key", "")), str(held.get("definition", ""))


@lru_cache(maxsize=1024)
def definition_of(name: str, key: str, text: bytes) -> Definition | str:
    """A definition as its author wrote it, or what is wrong with it."""
    held = jsontext.loads_own(text)
    given = held.get("definition" if key else "server") if isinstance(held, dict) else None
    if not isinstance(given, dict):
        return "it has no definition"
    command, url = given.get("command"), given.get("url")
    argv = [command] if isinstance(command, str) else command if isinstance(command, list) else []
    argv = [*argv, *_texts(given.get("args"))]
    if not url and not (argv and all(isinstance(part, str) and part for part in argv[:1])):
        return "it has neither a url nor a command"
    if given.get("transport", given.get("type")) == "sse":
        return TWO_ENDPOINTS
    timeout = given.get("timeout")
    return Definition(
        name=name,
        key=key,
        command=tuple(map(str, argv)) if not url else (),
        url=url if isinstance(url, str) else "",
        env=_pairs(given.get("env")),
        headers=_pairs(given.get("headers")),
        cwd=given["cwd"] if isinstance(given.get("cwd"), str) else "",
        timeout_s=float(min(timeout, TIMEOUT_S_MAX))
        if isinstance(timeout, (int, float)) and timeout > 0
        else None,
    )


@lru_cache(maxsize=1024)
def _placed(definition: Definition, project: str, user_space: str) -> Definition:
    """A definition of a tool's own file: it stands in its project, and its texts may name places."""

    def put_in(text: str) -> str:
        return text.replace("{project_path}", project).replace("{user_space}", user_space)

    return replace(
        definition,
        command=tuple(map(put_in, definition.command)),
        url=put_in(definition.url),
        env=tuple((name, put_in(text)) for name, text in definition.env),
        headers=tuple((name, put_in(text)) for name, text in definition.headers),
        cwd=os.path.join(project, put_in(definition.cwd)),
    )


def _texts(value: JsonValue) -> Iterator[str]:
    for item in value if isinstance(value, list) else ():
        yield item if isinstance(item, str) else jsontext.compact(item).decode("utf-8")


def _pairs(value: JsonValue) -> tuple[tuple[str, str], ...]:
    """Names with their values, or names alone, whose values are the host's own."""
    if isinstance(value, dict):
        return tuple((name, text) for name, text in zip(value, _texts([*value.values()]), strict=True))
    return tuple((name, f"${{{name}}}") for name in _texts(value))


def _reference_of(tool: Tool) -> str:
    assert isinstance(tool.invocation, CallMcp)
    return _reference(tool.invocation.settings)[1]


class _Unset(Exception):
    """A value that may not be filled in, or is not there."""


def _filled(text: str, variables: Mapping[str, str], allowed: Callable[[str], bool]) -> str:
    """A text with its ``${NAME}`` filled in. Attack: a definition that sends any variable of the host
    anywhere: only names that were granted have values here."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if allowed(name) and variables.get(name):
            return variables[name]
        if default is not None:
            return default
        raise _Unset(name)

    return _VARIABLE.sub(value, text)


def _handed(definition: Definition, variables: Mapping[str, str], permit: Permit) -> dict[str, str]:
    """The values that a server is handed and nobody else is to learn, by their names."""
    texts = (*definition.command, definition.url, definition.cwd)
    named = (text for _, text in (*definition.env, *definition.headers))
    names = {match[1] for text in (*texts, *named) for match in _VARIABLE.finditer(text)} | {*permit.env}
    if "*" in permit.env:
        names |= {name for name in variables if is_secret_name(name)}
    found = {
        name: variables[name]
        for name in sorted(names)
        if variables.get(name) and (is_secret_name(name) or not _is_base(name))
    }
    written = {name: text for name, text in definition.env if is_secret_name(name)}
    for name, text in definition.headers:
        if is_secret_name(name.replace("-", "_")) or name.lower() in ("authorization", "cookie"):
            written[name] = text.rpartition(" ")[2]
    for number, text in enumerate(_within(definition.url)):
        written[f"url {number}"] = text
    return {**{name: text for name, text in written.items() if not _VARIABLE.search(text)}, **found}


def _is_base(name: str) -> bool:
    return any(name == known or (known[-1] == "*" and name.startswith(known[:-1])) for known in BASE_ENV)


def _within(url: str) -> Iterator[str]:
    """The parts of a URL that may be secrets: the password, and the values of its query."""
    with suppress(ValueError):
        parts = urlsplit(url)
        yield from (unquote(text) for text in (parts.password,) if text)
        yield from (text for name, text in parse_qsl(parts.query) if is_secret_name(name) or len(text) >= 16)


def _is_telling(name: str, value: str) -> bool:
    """Whether a value is taken out of answers, too: a region or a folder is what a call may be about."""
    is_place = os.path.isabs(value) and os.path.exists(value)
    return is_secret_name(name) or (len(value) >= _TELLING_CHARS_MIN and not is_place)


# -- one server ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
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


class _Unavailable(Exception):
    """There is no connection, and the ending says why."""

    def __init__(self, end: End, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.ending = Ending(end=end, reason=reason, hint=hint)


class _Attempt:
    """One attempt to connect, for all who wait for it."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.stop = Cancel()
        self.outcome: tuple[wire.Line, wire.Greeting] | _Unavailable | None = None


class _Server:
    """One server: at most one connection, and the pause after it was lost."""

    def __init__(self, house: McpTools, tool: Tool, definition: Definition, permit: Permit) -> None:
        self.definition = definition
        self.tool = tool
        self._house = house
        self._permit = permit
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._line: _mcp_stdio.StdioLine | _mcp_http.HttpLine | None = None
        self.greeting: wire.Greeting | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._why = ""
        self._stderr = b""
        self._is_closed = False
        self._users = 0
        self._is_retired = False
        self.layers: tuple[str, ...] = ()
        """What held its process when it was last asked."""
        # Attack: a definition that makes a known program load its author's code (`LD_PRELOAD`,
        # `NODE_OPTIONS`). Only a grant, which the host wrote, may name such a variable.
        self._left_out = frozenset(
            name for name, _ in definition.env if is_loader(name) and not {name, "*"} & {*permit.env}
        )
        handed = _handed(definition, house.host.variables, permit)
        # Attack: a server that writes its credentials to stderr or into a refusal, which goes into the cache,
        # the record and what `check` and `doctor` print.
        self._words = Cleaning(handed.values())
        self.answers = Cleaning(value for name, value in handed.items() if _is_telling(name, value))
        """Takes out of answers what the server was handed."""

    # -- connecting -----------------------------------------------------------------------------------------

    def connected(self, deadline: float, cancel: Cancel) -> tuple[wire.Line, wire.Greeting]:
        """The connection, made where there is none. Raises _Unavailable.

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
                raise _Unavailable(End.CANCELLED, "cancelled")
            if time.monotonic() >= deadline:
                waited_s = time.monotonic() - began
                why = f"it did not answer the greeting within {waited_s:.1f} s"
                raise _Unavailable(End.TIMED_OUT, f"{self.name} cannot be reached: {why}", self.hint)
        if isinstance(attempt.outcome, _Unavailable):
            raise attempt.outcome
        assert attempt.outcome is not None
        return attempt.outcome

    def asked(
        self, ask: Callable[[wire.Line, wire.Greeting], _Told], deadline: float, cancel: Cancel
    ) -> _Told:
        """What ``ask`` gets over the connection; once more with a new session where the server has forgotten
        the old one, since nothing ran then. Raises _Unavailable, Refusal or Unanswered."""
        with self._lock:
            self._users += 1
        try:
            for _ in range(2):
                line, greeting = self.connected(deadline, cancel)
                self.layers = line.layers
                try:
                    return ask(line, greeting)
                except _mcp_http.SessionOver:
                    self.forget(line)
            raise wire.Unanswered("it forgets its sessions at once", sent=False)
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
        """The attempt that is under way, or a new one. Raises _Unavailable while the pause lasts."""
        with self._lock:
            if self._attempt is not None and not self._attempt.over.is_set():
                return self._attempt
            if self._is_closed:
                raise _Unavailable(End.UNAVAILABLE, f"{self.name} was closed")
            attempt = _Attempt()
            line, greeting = self._line, self.greeting
            if line is not None and greeting is not None and line.why_closed is None:
                attempt.outcome = (line, greeting)
                attempt.over.set()
                return attempt
            left_s = self._retry_at - time.monotonic()
            if left_s > 0:
                why = f"{self._why}; it is tried again in {left_s:.1f} s"
                raise _Unavailable(End.UNAVAILABLE, f"{self.name} is down: {why}", self.hint)
            self._attempt = attempt
        try:
            threading.Thread(target=self._try, args=(attempt,), name="mcp-connect", daemon=True).start()
        except RuntimeError as error:  # no more threads for this user
            self._give_up(attempt, error)
        return attempt

    def _try(self, attempt: _Attempt) -> None:
        try:
            attempt.outcome = self._connect(attempt.stop)
        except _Unavailable as no:
            attempt.outcome = no
        except Exception as error:  # noqa: BLE001 - one catch-all per thread boundary, no other
            self._give_up(attempt, error)
        finally:
            attempt.over.set()

    def _give_up(self, attempt: _Attempt, error: Exception) -> None:
        """An attempt failed by what is no fault of the server; the next one waits all the same."""
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        self.failed(why)
        attempt.outcome = _Unavailable(End.UNAVAILABLE, f"{self.name} cannot be reached: {why}")
        attempt.over.set()

    def _connect(self, stop: Cancel) -> tuple[wire.Line, wire.Greeting]:
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
        except _Unavailable as no:
            self._why = no.ending.reason
            raise
        except (wire.Unanswered, wire.Refusal) as no:
            if line is not None:
                line.close()
                self._stderr = line.stderr() or self._stderr
            why = self.clean(str(no))
            if isinstance(no, wire.Late):
                why = f"it did not answer the greeting within {limit_s:.1f} s"
            elif isinstance(no, wire.Refusal) and no.code:
                why = f"it refused the greeting: {self.clean(no.message)[:300]}"
            self.failed(why)
            hint = self.advice(no) if isinstance(no, wire.Unanswered) else self.hint
            raise _Unavailable(End.UNAVAILABLE, f"{self.name} cannot be reached: {why}", hint) from None
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
            raise _Unavailable(End.UNAVAILABLE, f"{self.name} was closed")
        line.listen(greeting)
        return line, greeting

    def _greet(
        self, line: _mcp_stdio.StdioLine | _mcp_http.HttpLine, deadline: float, cancel: Cancel
    ) -> wire.Greeting:
        """A process is greeted in the older era first: some end at any other first word, and those that know
        only the newer one say so. A URL is asked in the newer era first: it keeps no session."""
        if isinstance(line, _mcp_http.HttpLine):
            with suppress(wire.Refusal):
                return wire.discover(line, deadline, cancel)
        try:
            greeting = wire.initialize(line, deadline, cancel)
        except _mcp_http.Rejected:
            if isinstance(line, _mcp_http.HttpLine) and line.has_two_endpoints(deadline, cancel):
                raise wire.Unanswered(TWO_ENDPOINTS, sent=False, hint=TWO_ENDPOINTS_HINT) from None
            raise
        except wire.Refusal as refusal:
            newer = refusal.code in (wire.UNSUPPORTED_VERSION, wire.METHOD_NOT_FOUND)
            if isinstance(line, _mcp_http.HttpLine) or not newer:
                raise
            return wire.discover(line, deadline, cancel)
        if isinstance(line, _mcp_http.HttpLine):
            line.use(greeting)
        line.tell("notifications/initialized", deadline=deadline, cancel=cancel)
        return greeting

    def _opened(self) -> _mcp_stdio.StdioLine | _mcp_http.HttpLine:
        """Raises _Unavailable."""
        definition, host, permit = self.definition, self._house.host, self._permit
        env = environment(host, self.tool, permit)
        granted = {*permit.env}

        def allowed(name: str) -> bool:
            return "*" in granted or name in granted or name in env

        try:
            headers = [(name, _filled(text, host.variables, allowed)) for name, text in definition.headers]
            own_env = {
                name: _filled(text, host.variables, allowed)
                for name, text in definition.env
                if name not in self._left_out
            }
            argv = tuple(_filled(part, host.variables, allowed) for part in definition.command)
            url = _filled(definition.url, host.variables, allowed)
            cwd = _filled(definition.cwd, host.variables, allowed)
        except _Unset as unset:
            name = str(unset)
            is_set = bool(host.variables.get(name))
            pattern = f"{definition.key}*" if definition.key else self.tool.key
            raise _Unavailable(
                End.UNAVAILABLE,
                f"{self.name} needs the variable {name}, which "
                + ("it was not granted" if is_set else "is not set"),
                f'[grants."{pattern}"] env = ["{name}"]' if is_set else f"set {name} for the host",
            ) from None
        if url:
            return self._opened_url(url, headers)
        env |= own_env
        if "TMPDIR" in self.tool.needs.base_env and "TMPDIR" not in own_env:
            env["TMPDIR"] = ""
        cwd = os.path.normpath(os.path.join(host.cwd, cwd))
        # Attack: a definition with a PATH of its own, so that a known name leads to a program of its folder.
        program = _program(argv[0], host.variables.get("PATH", ""), cwd)
        if program is None:
            raise _Unavailable(
                End.UNAVAILABLE,
                f"{self.name} cannot be started: there is no program {argv[0]!r}",
                "install it, or correct the command; programs are looked up on the host's PATH",
            )
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
            raise _Unavailable(
                End.UNAVAILABLE, f"{self.name} cannot be started: {self._why}", standing.hint or self.hint
            )
        return _mcp_stdio.StdioLine(
            standing, self._house.limits, changed=lambda: self._house.changed(self), ended=self._died
        )

    def _opened_url(self, url: str, headers: list[tuple[str, str]]) -> _mcp_http.HttpLine:
        permit = self._permit
        if not permit.network:
            raise _Unavailable(
                End.DENIED,
                f"{self.name} is reached over the network, which was not granted",
                f'[grants."{self.definition.key or self.tool.key}*"] needs = ["net.http"]',
            )
        # Whoever named this very address in a trusted source has granted it, and no other.
        hosts = _web.literal_hosts(url) if self.definition.key else frozenset()
        return _mcp_http.HttpLine(
            self._house.web(),
            url,
            reach=_web.Reach(private=permit.private, hosts=hosts),
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

    def advice(self, no: wire.Unanswered) -> str | None:
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
        """Start anew, where paths must be held read-only now that were not when it started.

        Attack: a server that was started before a tool was declared rewrites that tool's program. Calls that
        are under way are not cut off: then the next one is the first of the new start.
        """
        held = {*self._permit.protected, *self._permit.forbidden}
        if {*permit.protected, *permit.forbidden} <= held:
            return
        line = self._line
        if isinstance(line, _mcp_stdio.StdioLine) and line.why_closed is None:
            if line.is_busy:
                return
            self.forget(line)
        self._permit = permit

    def forget(self, line: wire.Line) -> None:
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


# -- the runtime --------------------------------------------------------------------------------------------


class McpTools:
    """The runtime of ``CallMcp``. Any thread may call."""

    def __init__(
        self,
        host: Host,
        *,
        permit_of: Callable[[Tool], Permit | Ending],
        definitions: Callable[[str], str | None],
        opener: Opener,
        changed: Callable[[str], None] = lambda _digest: None,
        web: Callable[[], _web.Web] | None = None,
        limits: wire.WireLimits | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``permit_of``: what a server with a key of its own may do. ``definitions``: servers by the digest
        of their definitions. ``opener`` starts processes and records that. ``changed``: a server's tools are
        others now."""
        self.host = host
        self.opener = opener
        self.limits = limits or wire.WireLimits()
        self.jitter = jitter
        self._permit_of = permit_of
        self._definitions = definitions
        self._told = changed
        self._make_web = web or _web.Web
        self._web: _web.Web | None = None
        self._lock = threading.Lock()
        self._servers: dict[object, _Server] = {}
        self._owners: dict[object, Tool] = {}
        self._last: dict[str, tuple[Permit, _Server]] = {}
        """The answer to the same question as before, by the server's key: every call asks."""
        self._is_closed = False

    # -- calls ----------------------------------------------------------------------------------------------

    def run(self, tool: Tool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        invocation = tool.invocation
        assert isinstance(invocation, CallMcp)
        began = time.monotonic()
        deadline = began + permit.limits.timeout_s
        server = self._server(tool, invocation, permit)
        if isinstance(server, Ending):
            return server

        def ask(line: wire.Line, greeting: wire.Greeting) -> wire.Answer:
            return self._ask(tool, invocation, call, line, greeting, deadline, cancel)

        try:
            answer = server.asked(ask, deadline, cancel)
        except _Unavailable as no:
            return no.ending
        except wire.Refusal as refusal:
            server.worked()
            ending = Ending(end=End.RAISED, reason=server.clean(refusal.message))
        except wire.Unanswered as no:
            ending = _unanswered(server, no)
        else:
            server.worked()
            ending = _ending(answer, permit, server.answers)
        run = Run(
            argv=("tools/call", invocation.server, invocation.tool),
            duration_ms=(time.monotonic() - began) * 1000,
            stdout_bytes=ending.stdout_bytes,
            exit_status=None,
            truncated=ending.end is End.TOO_LARGE,
        )
        return replace(ending, runs=(run,), layers=server.layers, notes=(*server.notes, *ending.notes))

    def _ask(
        self,
        tool: Tool,
        invocation: CallMcp,
        call: ToolCall,
        line: wire.Line,
        greeting: wire.Greeting,
        deadline: float,
        cancel: Cancel,
    ) -> wire.Answer:
        arguments = call.arguments or {}
        params = wire.stamped({"name": invocation.tool, "arguments": arguments}, greeting)
        headers = wire.routing(greeting, "tools/call", _header_value(invocation.tool))
        if greeting.is_modern and isinstance(line, _mcp_http.HttpLine) and tool.input_schema is not None:
            headers |= param_headers(tool.input_schema.document, arguments)
        return line.ask("tools/call", params, deadline=deadline, cancel=cancel, headers=headers)

    # -- lists ----------------------------------------------------------------------------------------------

    def listed(self, tool: Tool, timeout_s: float, cancel: Cancel) -> list[JsonValue] | Ending:
        """The tools of the server that a record stands for, or why there are none."""
        invocation = tool.invocation
        assert isinstance(invocation, CallMcp)
        server = self._server(tool, invocation, Permit())
        if isinstance(server, Ending):
            return server
        deadline = time.monotonic() + timeout_s

        def ask(line: wire.Line, greeting: wire.Greeting) -> list[JsonValue]:
            return wire.list_tools(line, greeting, deadline, cancel)

        try:
            return [server.answers.value(entry) for entry in server.asked(ask, deadline, cancel)]
        except _Unavailable as no:
            return no.ending
        except wire.Refusal as refusal:
            reason = f"it does not list its tools: {server.clean(refusal.message)[:300]}"
            return Ending(end=End.UNAVAILABLE, reason=reason)
        except wire.Stopped:
            return Ending(end=End.CANCELLED)
        except wire.Unanswered as no:
            why = f"it did not list its tools within {timeout_s:g} s"
            if not isinstance(no, wire.Late):
                why = server.clean(no.why)
            return Ending(end=End.UNAVAILABLE, reason=why, hint=server.hint)

    def states(self) -> tuple[State, ...]:
        """Every server that was ever asked for."""
        with self._lock:
            servers = list(self._servers.values())
        return tuple(server.state() for server in servers)

    # -- servers --------------------------------------------------------------------------------------------

    def _server(self, tool: Tool, invocation: CallMcp, permit: Permit) -> _Server | Ending:
        key, digest = _reference(invocation.settings)
        text = self._definitions(digest) if digest else None
        if digest and text is None:
            reason = f"the MCP server {invocation.server!r} is defined otherwise now"
            return Ending(end=End.UNAVAILABLE, reason=reason, hint="load the tools again")
        settings = text.encode("utf-8") if text is not None else invocation.settings
        definition = definition_of(invocation.server, key, settings)
        if isinstance(definition, str):
            reason = f"the MCP server {invocation.server!r}: {definition}"
            hint = TWO_ENDPOINTS_HINT if definition is TWO_ENDPOINTS else None
            return Ending(end=End.UNAVAILABLE, reason=reason, hint=hint)
        if not definition.key:
            definition = _placed(definition, project_of(tool, self.host), self.host.user_space)
        if definition.key:
            tool = self._owner(tool, definition)
            found = self._permit_of(tool)
            if isinstance(found, Ending):
                return found
            permit = found
            last = self._last.get(tool.key)
            if last is not None and last[0] is permit and last[1].definition is definition:
                return last[1]
        # What only bounds one call makes no other server.
        limits = replace(permit.limits, timeout_s=0.0, stdout_bytes_max=0, stderr_bytes_max=0)
        alike = replace(permit, limits=limits, protected=(), forbidden=())
        place = (definition, alike)
        with self._lock:
            if self._is_closed:
                return Ending(end=End.UNAVAILABLE, reason="the workshop is closed")
            server = self._servers.get(place)
            if server is None:
                server = self._servers[place] = _Server(self, tool, definition, permit)
            elif definition.key:
                server.tool = tool  # the same server by another definition, of which changes are told now
        server.protect(permit)
        with self._lock:
            if definition.key:
                self._last[tool.key] = (permit, server)
            return server

    def _owner(self, tool: Tool, definition: Definition) -> Tool:
        """The record that stands for a tool's server, the same one for each of its tools.

        Attack: what is granted to one tool widens what another's calls run in. All run in what the server
        itself was granted.
        """
        place = (definition, tool.origin.path)
        owner = self._owners.get(place)
        if owner is None:
            owner = self._owners[place] = replace(
                tool,
                key=definition.key,
                name=definition.name,
                spoken="",
                aliases=(),
                effect=Effect.CHANGE,
                input_schema=None,
                output_schema=None,
                description="",
            )
        return owner

    def keep_only(self, digests: Collection[str], tools: Callable[[], Iterable[Tool]] = tuple) -> None:
        """End the servers that were defined by others than these, as soon as nobody waits for them: by
        sources, of which ``digests`` are left, and by the files of ``tools``."""
        with self._lock:
            has_own = any(not server.definition.key for server in self._servers.values())
        own = {*map(self._own_definition, tools())} if has_own else set()
        with self._lock:
            others = {
                place: server
                for place, server in self._servers.items()
                if (
                    _reference_of(server.tool) not in digests
                    if server.definition.key
                    else server.definition not in own
                )
            }
            for place in others:
                del self._servers[place]
            gone = {*others.values()}
            self._last = {key: last for key, last in self._last.items() if last[1] not in gone}
            self._owners = {
                place: owner for place, owner in self._owners.items() if _reference_of(owner) in digests
            }
        _each(_Server.retire, others.values())

    def _own_definition(self, tool: Tool) -> Definition | None:
        """The server that a tool's own file defines, if it defines one."""
        invocation = tool.invocation
        if not isinstance(invocation, CallMcp) or _reference(invocation.settings)[1]:
            return None
        definition = definition_of(invocation.server, "", invocation.settings)
        if isinstance(definition, str):
            return None
        return _placed(definition, project_of(tool, self.host), self.host.user_space)

    def changed(self, server: _Server) -> None:
        """Called by readers: a server says that its tools are others now."""
        if server.definition.key:
            self._told(_reference_of(server.tool))

    def web(self) -> _web.Web:
        with self._lock:
            if self._web is None:
                self._web = self._make_web()
            return self._web

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            servers = list(self._servers.values())
            web, self._web = self._web, None
        _each(_Server.close, servers)
        if web is not None:
            web.close()


def _each(end: Callable[[_Server], None], servers: Collection[_Server]) -> None:
    """All at once: each may take its grace."""
    if servers:
        with ThreadPoolExecutor(min(_CLOSE_THREADS, len(servers)), "mcp-close") as pool:
            list(pool.map(end, servers))


# -- what came back -----------------------------------------------------------------------------------------


def _unanswered(server: _Server, no: wire.Unanswered) -> Ending:
    match no:
        case wire.Late():
            return Ending(end=End.TIMED_OUT, hint=server.hint)
        case wire.Stopped():
            return Ending(end=End.CANCELLED)
        case wire.TooLong():
            return Ending(end=End.TOO_LARGE, reason=server.clean(no.why))
        case wire.Unreadable():
            return Ending(end=End.UNREADABLE, reason=f"{server.name}: {server.clean(no.why)}")
    end = End.LOST if no.sent else End.UNAVAILABLE
    return Ending(end=end, reason=f"{server.name}: {server.clean(no.why)}", hint=server.advice(no))


def _ending(answer: wire.Answer, permit: Permit, cleaning: Cleaning) -> Ending:
    if answer.size > permit.limits.stdout_bytes_max:
        return Ending(end=End.TOO_LARGE, stdout_bytes=answer.size)
    # Attack: a server that repeats the credentials it was handed, and so tells them to the model.
    result = cleaning.value(answer.result)
    assert isinstance(result, dict)
    if result.get("resultType", "complete") != "complete":
        reason = "the server wants more input from a person, which it cannot be given here"
        return Ending(end=End.RAISED, reason=reason)
    content = result.get("content", [])
    if not isinstance(content, list):
        # Attack: a result that other readers understand, and that looks like an empty success here.
        reason = f"its result is none: content must be a list (got {_kind_of(content)})"
        return Ending(end=End.UNREADABLE, reason=reason, stdout_bytes=answer.size)
    blocks, odd = read_blocks(content)
    structured = result.get("structuredContent")
    notes: tuple[str, ...] = ()
    if structured is not None and not isinstance(structured, dict):
        notes = (f"structuredContent is no object (got {_kind_of(structured)}), so it was left out",)
    if odd:
        notes = (*notes, f"content of kinds that nobody here knows was left out: {odd}")
    if answer.progress:
        notes = (*notes, f"messages of progress: {answer.progress}")
    if result.get("isError") is True:
        text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        reason = text or "it failed without saying why"
        return Ending(end=End.RAISED, reason=reason, blocks=blocks, notes=notes, stdout_bytes=answer.size)
    return Ending(
        end=End.RETURNED,
        value=structured if isinstance(structured, dict) else None,
        blocks=blocks,
        notes=notes,
        stdout_bytes=answer.size,
    )


def _kind_of(value: JsonValue) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", dict: "an object"}
    return names.get(type(value), "a list" if isinstance(value, list) else "null")


# -- headers of the stateless era ---------------------------------------------------------------------------


def _header_value(text: str) -> str:
    """A text as a header's value; what does not fit into one goes in base64."""
    if _HEADER_SAFE.fullmatch(text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode('ascii')}?="


def param_headers(schema: JsonObject, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments that the server's own schema wants repeated in headers, so that it is routed by them.

    Attack: a schema that names a header of ours: every one begins with ``Mcp-Param-`` and goes to the server
    that wrote the schema, which gets the argument anyway.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[JsonValue, Any, int]] = [(schema, arguments, 0)]
    while waiting and len(found) < 32:
        part, value, depth = waiting.pop()
        properties = part.get("properties") if isinstance(part, dict) else None
        if not isinstance(properties, dict) or not isinstance(value, Mapping) or depth > 8:
            continue
        for name, inner in properties.items():
            if not isinstance(inner, dict) or value.get(name) is None:
                continue
            held = value[name]
            token = inner.get("x-mcp-header")
            if isinstance(token, str) and _TOKEN.fullmatch(token) and isinstance(held, (str, int, float)):
                text = str(held).lower() if isinstance(held, bool) else str(held)
                found[f"Mcp-Param-{token}"] = _header_value(text)
            waiting.append((inner, held, depth + 1))
    return found
