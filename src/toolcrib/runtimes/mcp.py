"""Tools of MCP servers: which servers there are, what is asked of them, and what came back.

One ``Server`` (``_mcp_server.py``) stands for one definition (``_mcp_definition.py``) under one permit. This
file knows no catalog, policy or record: who may start a server, and where that is written down, is handed in.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from msgspec.structs import replace

from toolcrib import mcp_wire as wire
from toolcrib.bound import BoundTool
from toolcrib.dialects.mcp import read_blocks
from toolcrib.functions import PROGRESS, Report
from toolcrib.journal.redaction import Cleaning
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import CallMcp, Effect, End, Ending, Permit, Run, TextBlock, Tool, ToolCall
from toolcrib.runtimes import Host, _mcp_http, project_of
from toolcrib.runtimes import _mcp_client as client
from toolcrib.runtimes._http_client import HttpClient
from toolcrib.runtimes._mcp_definition import (
    TWO_ENDPOINTS,
    TWO_ENDPOINTS_HINT,
    Definition,
    definition_of,
    placed,
    reference,
    reference_of,
)
from toolcrib.runtimes._mcp_server import Opener, Server, State, Unavailable
from toolcrib.sandbox import Cancel

_CLOSE_THREADS: Final = 16
_STEP_CHARS_MAX: Final = 1000
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
        http_client: Callable[[], HttpClient] = HttpClient,
        limits: client.WireLimits | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``permit_of``: what a server with a key of its own may do. ``definitions``: servers by the digest
        of their definitions. ``opener`` starts processes and records that. ``changed``: a server's tools are
        others now."""
        self.host = host
        self.opener = opener
        self.limits = limits or client.WireLimits()
        self.jitter = jitter
        self._permit_of = permit_of
        self._definitions = definitions
        self._told = changed
        self._make_http = http_client
        self._http: HttpClient | None = None
        self._lock = threading.Lock()
        self._servers: dict[object, Server] = {}
        self._owners: dict[object, Tool] = {}
        self._last: dict[str, tuple[Permit, Server]] = {}
        """The answer to the same question as before, by the server's key: every call asks."""
        self._is_closed = False

    # -- calls ----------------------------------------------------------------------------------------------

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        invocation = tool.invocation
        assert isinstance(invocation, CallMcp)
        began = time.monotonic()
        deadline = began + permit.limits.timeout_s
        server = self._server(tool, invocation, permit)
        if isinstance(server, Ending):
            return server

        report = PROGRESS.get()
        steps = None if report is None else _Steps(report, server.clean)

        def ask(line: client.Line, greeting: client.Greeting) -> client.Answer:
            return self._ask(tool, invocation, call, line, greeting, deadline, cancel, steps)

        try:
            answer = server.asked(ask, deadline, cancel)
        except Unavailable as no:
            return replace(no.ending, held=server.held)
        except client.Refusal as refusal:
            server.worked()
            ending = Ending(end=End.RAISED, reason=server.clean(refusal.message))
        except client.Unanswered as no:
            ending = _unanswered(server, no)
        else:
            server.worked()
            cleaning = server.answers.fresh()
            ending = _ending(answer, permit, cleaning)
            ending = replace(ending, notes=(*ending.notes, *cleaning.notes()))
        run = Run(
            argv=("tools/call", invocation.server, invocation.tool),
            duration_ms=(time.monotonic() - began) * 1000,
            stdout_bytes=ending.stdout_bytes,
            exit_status=None,
            truncated=ending.end is End.TOO_LARGE,
        )
        notes = (*server.notes, *ending.notes, *(steps.notes if steps is not None else ()))
        return replace(ending, runs=(run,), layers=server.layers, held=server.held, notes=notes)

    def _ask(
        self,
        tool: Tool,
        invocation: CallMcp,
        call: ToolCall,
        line: client.Line,
        greeting: client.Greeting,
        deadline: float,
        cancel: Cancel,
        heard: client.Heard | None,
    ) -> client.Answer:
        arguments = call.arguments or {}
        params = client.stamped({"name": invocation.tool, "arguments": arguments}, greeting)
        headers = wire.routing(greeting.version, "tools/call", invocation.tool)
        if greeting.is_modern and isinstance(line, _mcp_http.HttpLine) and tool.input_schema is not None:
            headers |= param_headers(tool.input_schema.document, arguments)
        return line.ask("tools/call", params, deadline=deadline, cancel=cancel, headers=headers, heard=heard)

    # -- lists ----------------------------------------------------------------------------------------------

    def listed(self, tool: Tool, timeout_s: float, cancel: Cancel) -> list[JsonValue] | Ending:
        """The tools of the server that a record stands for, or why there are none."""
        invocation = tool.invocation
        assert isinstance(invocation, CallMcp)
        server = self._server(tool, invocation, Permit())
        if isinstance(server, Ending):
            return server
        deadline = time.monotonic() + timeout_s

        def ask(line: client.Line, greeting: client.Greeting) -> list[JsonValue]:
            return client.list_tools(line, greeting, deadline, cancel)

        try:
            return [server.answers.value(entry) for entry in server.asked(ask, deadline, cancel)]
        except Unavailable as no:
            return no.ending
        except client.Refusal as refusal:
            reason = f"it does not list its tools: {server.clean(refusal.message)[:300]}"
            return Ending(end=End.UNAVAILABLE, reason=reason)
        except client.Stopped:
            return Ending(end=End.CANCELLED)
        except client.Unanswered as no:
            why = f"it did not list its tools within {timeout_s:g} s"
            if not isinstance(no, client.Late):
                why = server.clean(no.why)
            return Ending(end=End.UNAVAILABLE, reason=why, hint=server.hint)

    def states(self) -> tuple[State, ...]:
        """Every server that was ever asked for."""
        with self._lock:
            servers = list(self._servers.values())
        return tuple(server.state() for server in servers)

    # -- servers --------------------------------------------------------------------------------------------

    def _server(self, tool: Tool, invocation: CallMcp, permit: Permit) -> Server | Ending:
        key, digest = reference(invocation.settings)
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
            definition = placed(definition, project_of(tool, self.host), self.host.spaces.user)
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
                return Ending(end=End.UNAVAILABLE, reason="the crib is closed")
            server = self._servers.get(place)
            if server is None:
                server = self._servers[place] = Server(self, tool, definition, permit)
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
                effect_from="",
                declared_effect=None,
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
                    reference_of(server.tool) not in digests
                    if server.definition.key
                    else server.definition not in own
                )
            }
            for place in others:
                del self._servers[place]
            gone = {*others.values()}
            self._last = {key: last for key, last in self._last.items() if last[1] not in gone}
            self._owners = {
                place: owner for place, owner in self._owners.items() if reference_of(owner) in digests
            }
        _each(Server.retire, others.values())

    def _own_definition(self, tool: Tool) -> Definition | None:
        """The server that a tool's own file defines, if it defines one."""
        invocation = tool.invocation
        if not isinstance(invocation, CallMcp) or reference(invocation.settings)[1]:
            return None
        definition = definition_of(invocation.server, "", invocation.settings)
        if isinstance(definition, str):
            return None
        return placed(definition, project_of(tool, self.host), self.host.spaces.user)

    def changed(self, server: Server) -> None:
        """Called by readers: a server says that its tools are others now."""
        if server.definition.key:
            self._told(reference_of(server.tool))

    def http_client(self) -> HttpClient:
        with self._lock:
            if self._http is None:
                self._http = self._make_http()
            return self._http

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            servers = list(self._servers.values())
            http, self._http = self._http, None
        _each(Server.close, servers)
        if http is not None:
            http.close()


def _each(end: Callable[[Server], None], servers: Collection[Server]) -> None:
    """All at once: each may take its grace."""
    if servers:
        with ThreadPoolExecutor(min(_CLOSE_THREADS, len(servers)), "mcp-close") as pool:
            list(pool.map(end, servers))


# -- what came back -----------------------------------------------------------------------------------------


class _Steps:
    """Tells whoever listens what a server says of a call's progress."""

    def __init__(self, report: Report, clean: Callable[[str], str]) -> None:
        self._report = report
        self._clean = clean
        self.notes: tuple[str, ...] = ()

    def __call__(self, params: JsonObject) -> None:
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if self.notes or isinstance(done, bool) or not isinstance(done, (int, float)):
            return
        # Attack: a server that tells its credentials, or endless words, where results are not looked at.
        words = self._clean(message)[:_STEP_CHARS_MAX] if isinstance(message, str) else ""
        try:
            self._report(done, total if type(total) in (int, float) else None, words)
        except Exception as error:  # noqa: BLE001 - the host's mistake must not lose the server's answer
            self.notes = (f"its progress was told no further: {type(error).__name__}",)


def _unanswered(server: Server, no: client.Unanswered) -> Ending:
    match no:
        case client.Late():
            return Ending(end=End.TIMED_OUT, hint=server.hint)
        case client.Stopped():
            return Ending(end=End.CANCELLED)
        case client.TooLong():
            return Ending(end=End.TOO_LARGE, reason=server.clean(no.why))
        case client.Unreadable():
            return Ending(end=End.UNREADABLE, reason=f"{server.name}: {server.clean(no.why)}")
    end = End.LOST if no.sent else End.UNAVAILABLE
    return Ending(end=end, reason=f"{server.name}: {server.clean(no.why)}", hint=server.advice(no))


def _ending(answer: client.Answer, permit: Permit, cleaning: Cleaning) -> Ending:
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
                found[f"Mcp-Param-{token}"] = wire.header_value(text)
            waiting.append((inner, held, depth + 1))
    return found
