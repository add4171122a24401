"""The command line: the table of commands, the options they share, and how mistakes are told.

One file per command, imported only when that command runs. Nothing here knows what a tool is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct, field

from toolcrib.errors import SourceError, ToolcribError, nearest, shortage

if TYPE_CHECKING:
    import signal as _signal

    from click.shell_completion import CompletionItem

    from toolcrib.app import Crib
    from toolcrib.config import Config, Environment
else:
    import _signal  # the public module makes enums of everything, which commands would wait for

_LONG_LOAD = 500

_COMMANDS = {
    "check": "Load and lint everything; show all problems at once.",
    "list": "List the tools there are.",
    "show": "Show one tool whole, or what a call would run.",
    "select": "Show which tools a message would see, and why.",
    "call": "Run one call through the whole engine.",
    "policy": "Explain what the rules decide about a tool or a call.",
    "approvals": "Answer the calls that wait for a person.",
    "audit": "Show and verify the record of every call.",
    "lock": "Approve the tools as they are, and see what changed since.",
    "enable": "Switch a tool on again.",
    "disable": "Switch a tool off, for a while or for good.",
    "sign": "Sign rye items with your key.",
    "verify": "Say which tools are signed, pinned, changed or unknown.",
    "keys": "Make, list and show keys.",
    "trust": "Trust a public key or a project, or stop trusting it.",
    "secret": "Keep values for tools, by name; none is ever shown.",
    "token": "Let others use what is served; each token is shown once.",
    "export": "Print what a model provider would be sent.",
    "init": "Start a new tool from a template.",
    "serve": "Serve the tools: MCP, the HTTP API and the console, on one port or stdio.",
    "doctor": "Say what works on this machine, and how to get what does not.",
}
_MESSAGE_CHARS_MAX = 1000
_OUTPUT_LOST = 74  # EX_IOERR
_NO_ROOM = 71  # EX_OSERR: the machine, or what it lets us have


class Shared(Struct, eq=False):
    """The options that may stand before or after the command."""

    surroundings: Environment | None = None
    sources: list[str] = field(default_factory=list)
    config: str | None = None
    state: str | None = None
    verbose: int = 0
    quiet: bool = False

    @property
    def environment(self) -> Environment:
        from toolcrib.config import Environment

        if self.surroundings is None:
            self.surroundings = Environment.read()
        return self.surroundings

    def resolved(self, more: Sequence[str] = ()) -> Config:
        from msgspec.structs import replace

        from toolcrib import config

        resolved = config.resolve(
            self.environment,
            cwd=config.current_folder(),
            file=self.config,
            sources=[*self.sources, *more],
            state=self.state,
        )
        if not more:
            return resolved
        # Attack: a list of servers in a clone, named only to be looked at: that starts none of them.
        kept, looked_at = resolved.sources[: -len(more)], resolved.sources[-len(more) :]
        only = tuple(replace(source, starts=source.format == "mcp") for source in looked_at)
        return replace(resolved, sources=(*kept, *only))

    def crib(
        self,
        more: Sequence[str] = (),
        fallback: Sequence[object] = (),
        *,
        only: str | None = None,
        only_look: bool = False,
    ) -> Crib:
        """``only``: the one tool that the command is about."""
        from toolcrib import app

        progress = None if self.quiet or not sys.stderr.isatty() else _tell_progress
        crib = app.open(
            self.resolved(more),
            fallback=fallback,
            environment=self.environment,
            progress=progress,
            only_look=only_look,
            only=only,
        )
        click.get_current_context().call_on_close(crib.close)
        return crib


def _tell_progress(done: int, total: int) -> None:
    """How far a long load has come, on one line that is wiped at the end."""
    if total >= _LONG_LOAD:
        text = f"reading {done:,} of {total:,} declarations" if done < total else ""
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


class _Group(click.Group):
    """Commands by name; a command's module is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]  # `list` is a module of this package as soon as it was imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"toolcrib.doors.cli.{cmd_name}"), "command", None)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = nearest(args[0], [*_COMMANDS])
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.ensure_object(Shared).environment.colours:
            ctx.color = False
        return super().invoke(ctx)


_Command = TypeVar("_Command", bound=Callable[..., Any])


def shared_options(function: _Command) -> _Command:
    """Add the shared options; wherever they stand, they end up in one ``Shared``."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        shared = ctx.ensure_object(Shared)
        if param.name == "from_":
            shared.sources.extend(value)
        elif param.name == "verbose":
            shared.verbose += value
        elif param.name == "quiet":
            shared.quiet |= value
        elif value is not None:
            if not value:
                raise click.UsageError(f"{param.opts[0]} needs a path.", ctx)
            setattr(shared, str(param.name), value)

    def go(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        try:
            os.chdir(value)
        except OSError as error:
            reason = (error.strerror or "cannot be used").lower()
            raise SourceError(f"{value}: {reason}", "name a folder with -C") from None

    for option in (
        click.option(
            "-C", "folder", metavar="DIR", type=click.Path(), callback=go, expose_value=False, is_eager=True,
            help="Do everything as if started in this folder.",
        ),
        click.option(
            "-q", "--quiet", is_flag=True, callback=keep, expose_value=False,
            help="Say only what was asked for: no counts, no advice.",
        ),
        click.option(
            "-v", "--verbose", count=True, callback=keep, expose_value=False,
            help="Say more: notes, and what was passed over (-vv: how an internal error came about).",
        ),
        click.option(
            "--state", metavar="DIR", type=click.Path(), callback=keep, expose_value=False,
            help="Folder for our own state (default: the platform's state folder).",
        ),
        click.option(
            "--config", metavar="FILE", type=click.Path(), callback=keep, expose_value=False,
            help="Configuration to trust (default: toolcrib.toml here or above, which may only narrow).",
        ),
        click.option(
            "--from", "from_", multiple=True, metavar="[FORMAT=]PATH", callback=keep, expose_value=False,
            shell_complete=_complete_source,
            help="A folder or file of tools; repeatable. executable=PATH allows running programs there to "
            "learn their schemas.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def examples(*lines: str) -> str:
    """The end of a help text: command lines to copy, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.command(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "toolcrib check skills/",
        "toolcrib list --json",
        "toolcrib export --dialect anthropic",
    ),
)
@click.version_option(package_name="toolcrib", message="%(prog)s %(version)s")
@shared_options
def group() -> None:
    """One runtime for the tools of LLM agents.

    With neither --from nor a configuration file, the tools of the current folder are used.
    """


def run(arguments: Sequence[str], environment: Environment | None = None) -> int:
    """Run one command line and return its exit status; never a traceback for a mistake of the user's."""
    if _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN:
        # Whoever started us so (`trap '' CHLD`) would have the kernel throw away how tools end.
        with suppress(ValueError):  # not the main thread: a host of its own, which is told by its calls
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    os.umask(os.umask(0o077) & 0o077)  # one that keeps us from what we made ourselves is a mistake
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before we were started
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):  # a character that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        status = group.main(
            [*arguments],
            prog_name="toolcrib",
            standalone_mode=False,
            obj=Shared(surroundings=environment),
        )
        sys.stdout.flush()
    except click.ClickException as error:
        with as_far_as_read(sys.stderr):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except ToolcribError as error:
        complain(str(error), error.hint)
        return error.exit_code
    except SystemExit:
        return 0  # click ends so after a completion, and when the reader went away: `| head` is no error
    except BrokenPipeError:
        _give_up(sys.stdout)
        return 0
    except OSError as error:
        if short := shortage(error):  # of a module of ours, or of Python's, as well
            what, fix = short
            complain(f"{error.filename}: {what}" if error.filename else what, fix)
            return _NO_ROOM
        from toolcrib.catalog import files

        _give_up(sys.stdout)
        where = error.filename or "the output"
        complain(f"{where}: {files.reason(error)}", "make room, or choose another place")
        return _OUTPUT_LOST
    except Exception as error:  # the one catch-all of this door
        if any(argument.startswith("-vv") for argument in arguments):
            raise
        if short := shortage(error):
            complain(*short)
            return _NO_ROOM
        complain(f"internal error ({type(error).__name__})", "run again with -vv and report what it prints")
        return 70
    return status if isinstance(status, int) else 0


def _give_up(stream: IO[str]) -> None:
    """What is still in the buffer goes nowhere, so that the interpreter does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def as_far_as_read(stream: IO[str]) -> Iterator[None]:
    """Where whoever read it went away, the rest is not said, nor where stderr cannot be written: there is no
    other place to say that. How it ended still stands in the exit status."""
    try:
        yield
    except OSError as error:
        if stream is not sys.stderr and not isinstance(error, BrokenPipeError):
            raise
        _give_up(stream)


def complain(message: str, hint: str | None = None) -> None:
    """One sentence for a person on stderr, and what to do next."""
    from toolcrib.doors.cli._render import printable

    if len(message) > _MESSAGE_CHARS_MAX:
        message = f"{message[: _MESSAGE_CHARS_MAX // 2]}…{message[-_MESSAGE_CHARS_MAX // 2 :]}"
    with as_far_as_read(sys.stderr):
        click.echo(f"toolcrib: {printable(message)}", err=True)
        for line in hint.split("\n") if hint else ():
            click.echo(f"  {printable(line)}", err=True)
