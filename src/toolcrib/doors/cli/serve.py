"""``toolcrib serve``: puts the doors together and keeps them open until a signal.

The one file that knows all doors. It decides nothing: who comes in is ``_entrance.py``'s, what one connection
may take ``_limits.py``'s, what a request means the door's it is for. ``--stdio`` imports nothing of HTTP.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from toolcrib import __version__
from toolcrib.doors.cli import Shared, _render, complain, examples, shared_options
from toolcrib.errors import ConfigError
from toolcrib.jsontext import JsonObject

if TYPE_CHECKING:
    import asyncio
    import socket

    from toolcrib.app import Crib
    from toolcrib.catalog.loading import Differences
    from toolcrib.config import Config, Serving
    from toolcrib.doors._crew import Spans
    from toolcrib.doors._events import Events
    from toolcrib.doors._limits import Listening
    from toolcrib.doors._offers import Offers
    from toolcrib.doors._web import App, Message, Receive, Scope, Send
    from toolcrib.doors.mcp import McpDoor
    from toolcrib.model import Guest
    from toolcrib.store.tokens import Tokens
    from toolcrib.watching import Watch

_ANY: Final = ("0.0.0.0", "::")
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_NAMES_MAX: Final = 100
_LATER_S: Final = 1.0
_EXTRA: Final = ("httptools", "jinja2", "starlette", "uvicorn")
"""What serving over HTTP cannot do without, of the extra; without the others it does less."""
_LINGER_S: Final = 0.25
"""How long connections that are at rest may still bring a request once nobody can connect any more."""
_WORKERS: Final = 40
"""Threads for what doors do beside the loop: as many as callers can have turns, and some for ourselves."""
_CLOSE_S: Final = 5.0
"""How long answers may take to be written once all calls are over."""


@click.command(
    "serve",
    epilog=examples(
        "toolcrib serve --from tools/",
        "toolcrib serve --port 0",
        "toolcrib serve --stdio",
        "toolcrib serve --host 0.0.0.0 --token-file tokens.txt",
    ),
)
@click.option("--host", metavar="H", help="The address to listen on (default: 127.0.0.1).")
@click.option(
    "--port", metavar="P", type=click.IntRange(0, 65_535), help="The port (default: 8321; 0: a free one)."
)
@click.option("--stdio", is_flag=True, help="Speak MCP on stdin and stdout, for a host that starts us.")
@click.option(
    "--token-file", metavar="FILE", type=click.Path(), help="Tokens that count too, one to a line."
)  # fmt: skip
@shared_options
@click.pass_obj
def command(shared: Shared, host: str | None, port: int | None, stdio: bool, token_file: str | None) -> int:
    """Serve the tools: MCP at /mcp, the HTTP API at /v1, the console at /, all on one port.

    On loopback no token is needed; any other address needs one (`toolcrib token create`). Changed files are
    read again by themselves. SIGINT and SIGTERM let calls under way finish; a second one ends at once.
    """
    if stdio:
        if host is not None or port is not None or token_file is not None:
            raise click.UsageError("--stdio listens nowhere: leave out --host, --port and --token-file.")
        return _serve_stdio(shared, shared.crib())
    if "MALLOC_ARENA_MAX" not in shared.environment.variables:
        share_memory()
    return _serve_http(
        shared, shared.resolved(), shared.crib, host, port, token_file, started_by=_own_command
    )


def share_memory() -> None:
    """Have threads share what the C library keeps of freed memory. It would hold a part for each of up to
    sixteen of them on two cores, and what is free in one helps no other: in a server of many calls that is
    more than all that is in use. Of the whole process, so that only the command does it, never a library."""
    import ctypes

    with suppress(OSError, AttributeError):  # a C library that has no such thing
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def serve(
    crib: Crib,
    *,
    host: str | None = None,
    port: int | None = None,
    stdio: bool = False,
    token_file: str | None = None,
    quiet: bool = False,
) -> None:
    """Serve an open crib until a signal ends it, as the command does: for hosts that bring functions of
    their own. ``host``, ``port`` (0: a free one) and the rest are by default as its configuration says;
    ``stdio`` speaks MCP on stdin and stdout instead. In the main thread, whose signals it takes; the crib
    stays open. Raises ConfigError where nobody may listen there."""
    shared = Shared(surroundings=crib.environment, quiet=quiet)
    if stdio:
        _serve_stdio(shared, crib)
    else:
        _serve_http(shared, crib.config, lambda: crib, host, port, token_file)


# -- the doors together -------------------------------------------------------------------------------------


class Served:
    """All doors as one ASGI app, and what they share. Made by ``build``."""

    def __init__(
        self,
        crib: Crib,
        *,
        serving: Serving,
        guest: Guest | None,
        tokens: Tokens | None = None,
        spans: Spans | None = None,
        offers: Offers | None = None,
    ) -> None:
        from toolcrib.doors._crew import Crew
        from toolcrib.doors._entrance import Entrance
        from toolcrib.doors._events import Events
        from toolcrib.doors._health import Health
        from toolcrib.doors._limits import connections_max
        from toolcrib.doors._meters import Meters
        from toolcrib.doors._shares import Turns

        self._turns = Turns()
        self.events = Events()
        self.crew = Crew(crib, self.events, spans=spans)
        self.health = Health(crib, self.crew, self.events)
        self.meters = Meters(crib, self.crew, self.events)
        self._offers = offers
        self._closing: list[Callable[[], Awaitable[object]]] = []
        self._mcp, self._http, self._console = self._doors(crib, serving)
        self._entrance = Entrance(
            self._route,
            tokens=tokens,
            host_guest=guest,
            host=serving.host,
            hosts=serving.hosts,
            origins=serving.origins,
            rate_per_minute=serving.rate_per_minute,
            body_bytes_max=serving.body_bytes_max,
            body_timeout_s=serving.body_timeout_s,
            requests_max=min(serving.connections_max, connections_max()),
        )
        self._is_attended = False

    def _doors(self, crib: Crib, serving: Serving) -> tuple[McpDoor, App, App]:
        from toolcrib.doors.console import routes
        from toolcrib.doors.http import Api
        from toolcrib.doors.mcp import McpDoor

        mcp = McpDoor(
            crib,
            self.crew,
            body_bytes_max=serving.body_bytes_max,
            body_timeout_s=serving.body_timeout_s,
            approval_wait_s=serving.approval_wait_s,
            offers=self._offers,
            turns=self._turns,
        )
        self._closing.append(mcp.close)
        api = Api(
            crib,
            self.crew,
            self.events,
            health=self.health,
            meters=self.meters,
            body_bytes_max=serving.body_bytes_max,
            body_timeout_s=serving.body_timeout_s,
            approval_wait_s_max=serving.approval_wait_s,
            turns=self._turns,
        )
        pages = routes.console(
            routes.Serving(crib=crib, events=self.events, crew=self.crew, health=self.health.report)
        )
        return mcp, api, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._entrance(scope, receive, send)
            return
        if not self._is_attended:
            from asyncio import get_running_loop

            self._is_attended = True
            self.crew.attend(get_running_loop())
        meters, path = self.meters, scope["path"]

        def counted(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                meters.request(path, message["status"])
            return send(message)

        await self._entrance(scope, receive, counted)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == "/mcp" or path == "/mcp/":
            await self._mcp(scope, receive, send)
        elif path.startswith("/v1/") or path in _OURS:
            await self._http(scope, receive, send)
        else:
            from toolcrib.doors._shares import share_of

            async with self._turns.turn(share_of(scope["guest"])):
                await self._console(scope, receive, send)

    async def drain(self, timeout_s: float) -> bool:
        """Take no more calls, wait for those under way, then let streams end. Whether all calls ended by
        themselves."""
        from asyncio import to_thread

        self.health.is_draining = True
        by_themselves = await to_thread(self.crew.drain, timeout_s)
        self.crew.abandon()
        self.events.close()
        for close in self._closing:
            await close()
        return by_themselves


_OURS: Final = frozenset(("/v1", "/openapi.json", "/healthz", "/readyz", "/metrics"))


def build(
    crib: Crib,
    *,
    serving: Serving | None = None,
    guest: Guest | None = None,
    tokens: Tokens | None = None,
    spans: Spans | None = None,
    offers: Offers | None = None,
) -> Served:
    """All doors of an open crib as one ASGI app. ``guest`` is who comes in without a token; None: nobody
    does. Under a server other than ours (``_limits.py``), that is everybody who reaches it. ``offers`` are
    resources and prompts of the host's, besides those that skills are."""
    serving = serving or crib.config.serve
    return Served(crib, serving=serving, guest=guest, tokens=tokens, spans=spans, offers=offers)


def _spans() -> Spans | None:
    """Return the spans of calls if the program set up a provider: then it has imported OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from toolcrib.spans import set_up

    return set_up()


# -- over HTTP ----------------------------------------------------------------------------------------------


def _serve_http(
    shared: Shared,
    config: Config,
    opened: Callable[[], Crib],
    host: str | None,
    port: int | None,
    token_file: str | None,
    *,
    started_by: Callable[[Shared], list[str]] | None = None,
) -> int:
    """``started_by``: the command that does the same over stdio; none where an embedder calls us."""
    import asyncio

    _need_extra()
    from toolcrib.doors._entrance import needs_token
    from toolcrib.doors.cli._owner import is_owners
    from toolcrib.model import Guest
    from toolcrib.store.keep import STORE_NAME, Keep
    from toolcrib.store.tokens import Tokens

    serving = config.serve
    serving = replace(
        serving,
        host=serving.host if host is None else host,
        port=serving.port if port is None else port,
    )
    if token_file is not None and not os.path.lexists(token_file):
        raise ConfigError(
            f"{token_file}: there is no such file", "write a token on each line, and chmod 600 it"
        )
    with ExitStack() as stack:
        keep = Keep(os.path.join(config.state, STORE_NAME)) if config.state is not None else None
        if keep is not None:
            stack.callback(keep.close)
        tokens = Tokens(keep, token_file, is_owners=is_owners(shared.environment))
        if tokens.trouble is not None:
            raise tokens.trouble
        closed = needs_token(serving.host, serving.hosts)
        if closed and not tokens.count:
            # Attack: whoever reaches the machine calls its tools.
            raise ConfigError(
                f"{serving.host}: others can reach this address, and there is no token yet, so nobody may "
                "listen",
                "make one: toolcrib token create NAME\nor listen on this machine only: --host 127.0.0.1",
            )
        listening = _listen(serving.host, serving.port)
        stack.callback(listening.close)
        listening.turned_away = _told_once(shared)
        crib = opened()
        guest = None if closed else Guest(name=shared.environment.user)
        if listening.getsockname()[0] in _ANY:  # everybody needs a token there, and may call us by our name
            serving = replace(serving, hosts=(*serving.hosts, _name()))
        served = build(crib, serving=serving, guest=guest, tokens=tokens, spans=_spans())
        address = _address(serving.host, listening)
        if guest is not None:
            _warn_of_strangers(shared, str(listening.getsockname()[0]))

        def greet() -> None:
            command = started_by(shared) if started_by is not None and not shared.quiet else []
            _greet(crib, shared, address, command, needs_token=closed)

        return asyncio.run(_run(served, serving, crib, listening, shared, greet))


def _warn_of_strangers(shared: Shared, address: str) -> None:
    """Print a warning if every request needs a token on this machine."""
    from toolcrib.doors._peers import can_tell

    with suppress(OSError):
        if not can_tell(address) and not shared.quiet:
            complain(
                "this machine does not say whose program has connected, so every request needs a token",
                "make one: toolcrib token create NAME",
            )


def _need_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serving over HTTP needs what is not installed: {', '.join(missing)}",
            "pip install '.[serve]' (in a clone of Toolcrib)\n"
            "or speak MCP on stdin and stdout, which needs none of it: "
            "toolcrib serve --stdio",
        )


def _listen(host: str, port: int) -> Listening:
    import socket

    from toolcrib.doors._limits import Listening

    try:
        found = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise ConfigError(
            f"{host}: there is no such address", "name one of this machine with --host"
        ) from None
    family, kind, protocol, _, address = found[0]
    with ExitStack() as until_it_listens:
        try:
            listening = until_it_listens.enter_context(Listening(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen()
        except OSError as error:
            is_port = error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM)
            raise ConfigError(
                f"{_joined(host.strip('[]'), port)}: {os.strerror(error.errno or 0).lower()}",
                "choose another port with --port; 0 takes a free one"
                if is_port
                else "name an address of this machine with --host: 127.0.0.1, or ::1 where it has IPv6",
            ) from None
        listening.setblocking(False)
        until_it_listens.pop_all()
    return listening


def _told_once(shared: Shared) -> Callable[[], None]:
    """Says that connections are turned away, the first time: a log must not be filled by those who come."""
    told: list[bool] = []

    def tell() -> None:
        if not told and not shared.quiet:
            complain(
                "connections are turned away: too many open files",
                "raise their limit (ulimit -n), or lower connections_max in [serve]",
            )
        told[:] = [True]

    return tell


def _accepted(listening: socket.socket) -> list[socket.socket]:
    """Everybody who has connected and waits."""
    from toolcrib.doors._limits import WAITING_MAX

    found: list[socket.socket] = []
    with suppress(OSError):  # nobody is left, or there is no room for more
        for _ in range(
            WAITING_MAX + 1
        ):  # Attack: somebody who connects as fast as we accept. So many can wait.
            came, _ = listening.accept()
            came.setblocking(False)
            found.append(came)
    return found


def _name() -> str:
    """What this machine is called where it is reached under all its addresses."""
    import socket

    return socket.gethostname()


def _address(host: str, listening: socket.socket) -> str:
    """The address as clients write it: one that the entrance takes for a name of ours."""
    bound, port = listening.getsockname()[:2]
    name = _outward(bound) if bound in _ANY else bound if host == "localhost" else host.strip("[]")
    return f"http://{_joined(name, port)}"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _outward(every: str) -> str:
    """The address of this machine that others most likely reach. Its name is none that the entrance knows,
    and may mean nothing to them."""
    import socket

    family, far, near = (
        (socket.AF_INET6, "2001:db8::1", "::1")
        if ":" in every
        else (socket.AF_INET, "192.0.2.1", "127.0.0.1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((far, 9))  # sends nothing: the kernel only chooses a route
            return str(asking.getsockname()[0])
    except OSError:
        return near


async def _run(
    served: Served,
    serving: Serving,
    crib: Crib,
    listening: socket.socket,
    shared: Shared,
    greet: Callable[[], None],
) -> int:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import uvicorn

    from toolcrib.doors._limits import (
        ACCEPTED_AT_ONCE,
        Limits,
        connections_max,
        guarded,
        server_settings,
    )

    class Server(uvicorn.Server):
        """Signals are ours: uvicorn would end before the calls are over, and raise them again."""

        def capture_signals(self) -> Any:
            from contextlib import nullcontext

            return nullcontext()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Whoever is in the door is answered: the kernel would reset those that nobody has accepted, and
            whoever has connected, or keeps a connection busy, is about to ask."""
            loop = asyncio.get_running_loop()
            made = partial(
                protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            waiting = [loop.connect_accepted_socket(made, each) for each in _accepted(listening)]
            for server in self.servers:  # at once: who connects in between is reset, and later refused
                server.close()
            await asyncio.gather(*waiting, return_exceptions=True)
            until = loop.time() + _LINGER_S
            while loop.time() < until:
                await asyncio.sleep(_LINGER_S / 25)
                if not self.server_state.connections:
                    break
            await super().shutdown(sockets)

    limits = Limits(
        head_s=serving.header_timeout_s,
        body_s=serving.body_timeout_s,
        idle_s=serving.keep_alive_s + 5.0,
        stalled_s=serving.write_timeout_s,
        head_bytes_max=serving.header_bytes_max,
        connections_max=min(serving.connections_max, connections_max()),
    )
    cut_off_s = serving.drain_s * 2 + _CLOSE_S
    protocol = guarded(limits)
    settings = server_settings(limits, protocol) | {"timeout_keep_alive": max(1, round(serving.keep_alive_s))}
    server = Server(
        uvicorn.Config(
            served,
            lifespan="off",
            log_config=None,
            # Attack: a log that is filled by requests that are none. What we do wrong is still told.
            log_level="error",
            backlog=ACCEPTED_AT_ONCE,
            loop="asyncio",
            timeout_graceful_shutdown=round(cut_off_s) + 1,  # by then nobody is left, if all is well
            **settings,
        )
    )
    served.meters.connections = lambda: len(server.server_state.connections)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_WORKERS, "work"))
    drained: list[asyncio.Task[bool]] = []

    def leave() -> None:
        server.should_exit = True
        protocol.watch.end(loop.time() + serving.drain_s)
        loop.call_later(cut_off_s, protocol.watch.cut_off)
        drained.append(loop.create_task(served.drain(serving.drain_s)))
        if not shared.quiet:
            under_way = served.crew.under_way
            what = f"; {_render.plural(under_way, 'call')} may finish" if under_way else ""
            click.echo(f"stopping{what} (again: at once)", err=True)

    _on_signals(loop, leave)
    greet()  # whoever reads the address may connect at once, and send signals
    watch = _watch(crib, served.events, shared) if serving.watch else None
    try:
        if not shared.quiet:  # beside: counting them takes all of them from the shelf
            loop.run_in_executor(None, _render.mention_problems, crib, shared)
        await server.serve(sockets=[listening])
    finally:
        if not drained:  # it ended by itself
            drained.append(loop.create_task(served.drain(serving.drain_s)))
        await drained[0]
        if watch is not None:
            await asyncio.to_thread(watch.stop)
    return 0


def _on_signals(loop: asyncio.AbstractEventLoop, leave: Callable[[], None]) -> None:
    """The first signal lets what is under way finish; a second one ends at once, as if nobody had caught it.
    The journal then tells which calls were interrupted, and the sandbox has their processes end with us."""
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            leave()
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in _signals():
        loop.add_signal_handler(number, stop, number)


def _signals() -> list[signal.Signals]:
    """Those that end us. Under nohup the end of the terminal is none."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *(() if is_kept else (signal.SIGHUP,))]


# -- over stdin and stdout ----------------------------------------------------------------------------------


def _serve_stdio(shared: Shared, crib: Crib) -> int:
    from toolcrib.doors._crew import Crew
    from toolcrib.doors._events import Events
    from toolcrib.doors._mcp_stdio import serve_stdio
    from toolcrib.model import Guest
    from toolcrib.sandbox import Cancel

    serving, events = crib.config.serve, Events()
    if sys.stdin is not None and sys.stdin.isatty() and not shared.quiet:
        click.echo(
            "speaking MCP on stdin and stdout, for a host that starts us (people want `toolcrib serve` "
            "alone); Ctrl-C stops it",
            err=True,
        )
    crew = Crew(crib, events, spans=_spans())
    # Later: whoever started us waits for the first answer now.
    watch = _watch(crib, events, shared, after_s=_LATER_S) if serving.watch else None

    left = Cancel()

    def stop(number: int, _frame: object) -> None:
        """Leave as if the client had left; one that comes after that ends at once."""
        if left.is_set:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        left.set()

    for number in _signals():
        signal.signal(number, stop)
    try:
        serve_stdio(
            crib,
            crew,
            guest=Guest(name=shared.environment.user),
            approval_wait_s=serving.approval_wait_s,
            drain_s=serving.drain_s,
            left=left,
        )
    finally:
        if watch is not None:
            watch.stop()
    return 0


# -- reading changed files again ----------------------------------------------------------------------------


def _watch(crib: Crib, events: Events, shared: Shared, *, after_s: float = 0.0) -> Watch:
    from toolcrib.doors._events import EventKind
    from toolcrib.watching import Watch

    def say(text: str) -> None:
        if not shared.quiet:
            click.echo(_render.printable(text), err=True)

    def reloaded(found: Differences) -> None:
        events.tell(EventKind.RELOADED, reload_document(crib, found))
        counts = ((found.added, "added"), (found.removed, "removed"), (found.changed, "changed"))
        told = [f"{len(names)} {what} ({_some(names)})" for names, what in counts if names]
        say(f"reloaded: {', '.join(told) or 'nothing that clients see'}")

    def failed(reason: str) -> None:
        events.tell(EventKind.RELOAD_FAILED, {"reason": reason})
        say(f"not reloaded, the last good tools stay: {reason}")

    def needs_restart(path: str) -> None:
        say(f"{_render.shown_path(path)} changed: start again to apply it")

    watch = Watch(crib, reloaded=reloaded, failed=failed, needs_restart=needs_restart)
    watch.start(after_s=after_s)
    return watch


def reload_document(crib: Crib, found: Differences) -> JsonObject:
    """What is told about a reload; long lists are cut, their lengths are not."""
    return {
        "version": crib.version,
        "tools": crib.catalog.counted,
        "added": [*found.added[:_NAMES_MAX]],
        "removed": [*found.removed[:_NAMES_MAX]],
        "changed": [*found.changed[:_NAMES_MAX]],
        "count": found.count,
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


# -- what a person is told ----------------------------------------------------------------------------------


def _greet(crib: Crib, shared: Shared, address: str, command: Sequence[str], *, needs_token: bool) -> None:
    warnings = crib.warnings()  # also makes what runs calls, so that the first one finds it
    if shared.quiet:
        click.echo(f"serving at {address}", err=True)
        return
    for line in warnings:
        complain(line)
    tools, skills = crib.catalog.counted, len(crib.skills)
    counted = _render.plural(tools, "tool") + (f", {_render.plural(skills, 'skill')}" if skills else "")
    click.echo(f"toolcrib {__version__}: {counted}", err=True)
    if not tools:
        click.echo("  name a folder of tools with --from, or begin one: toolcrib init NAME", err=True)
    lines = [
        f"serving at {address}",
        f"  console   {address}/ (open it in a browser)",
        f"  MCP       {address}/mcp",
        f"  HTTP API  {address}/v1/tools (described at {address}/openapi.json)",
        "",
        *_host_settings(shared, address, command, needs_token=needs_token),
        "",
        "Ctrl-C stops it.",
    ]
    click.echo("\n".join(lines), err=True)


def _host_settings(shared: Shared, address: str, command: Sequence[str], *, needs_token: bool) -> list[str]:
    """How MCP hosts are told about us, ready to be pasted."""
    import json

    def line(outer: str, inner: dict[str, Any]) -> str:
        return _render.printable("  " + json.dumps({outer: {"toolcrib": inner}}, ensure_ascii=False))

    remote: dict[str, Any] = {"type": "http", "url": f"{address}/mcp"}
    if needs_token:
        remote["headers"] = {"Authorization": "Bearer YOUR-TOKEN"}
    lines = [
        "For MCP hosts, one of these, in the file that the host reads:",
        "Claude Code (.mcp.json), Cursor (.cursor/mcp.json) and others, by address:",
        line("mcpServers", remote),
        "VS Code (.vscode/mcp.json), by address:",
        line("servers", remote),
    ]
    if not command:
        return lines
    local: dict[str, Any] = {"command": command[0], "args": [*command[1:]]}
    if shared.environment.user_space != shared.environment.home:
        local["env"] = {"USER_SPACE": shared.environment.user_space}
    heading = "Claude Desktop (claude_desktop_config.json) and others that start their servers:"
    return [*lines, heading, line("mcpServers", local)]


def _own_command(shared: Shared) -> list[str]:
    """The command that serves the same over stdio, from whatever folder."""
    from toolcrib.config import find_file, own_python

    program = os.path.abspath(sys.argv[0])
    is_ours = os.path.basename(program) == "toolcrib" and os.access(program, os.X_OK)
    found = [program] if is_ours else [own_python(sys.executable, sys.exec_prefix), "-m", "toolcrib"]
    for text in shared.sources:
        head, equals, path = text.partition("=")
        is_named = bool(equals) and head.isidentifier() and not os.path.exists(text)
        found += ["--from", f"{head}={os.path.abspath(path)}" if is_named else os.path.abspath(text)]
    here = os.getcwd()
    if shared.config is not None:
        found += ["--config", os.path.abspath(shared.config)]
    if shared.state is not None:
        found += ["--state", os.path.abspath(shared.state)]
    if shared.config is None and (not shared.sources or find_file(here) is not None):
        # Attack: a folder or a file that was merely found and now counts as named, so that its tools may do
        # more; or a host that goes without its rules. It is found again, wherever the host starts us.
        found += ["-C", here]
    return [*found, "serve", "--stdio"]
