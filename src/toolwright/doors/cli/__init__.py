"""The command line: the table of commands, the options they share, and how mistakes are told.

One file per command, imported only when that command runs. Nothing here knows what a tool is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolwright.errors import ToolwrightError

if TYPE_CHECKING:
    from toolwright.app import Workshop
    from toolwright.config import Config

_COMMANDS = {
    "check": "Load and lint everything; show all problems at once.",
    "list": "List the tools there are.",
    "show": "Show one tool whole, or what a call would run.",
    "select": "Show which tools a message would see, and why.",
    "export": "Print what a model provider would be sent.",
    "init": "Start a new tool from a template.",
}


@dataclass
class Shared:
    """The options that may stand before or after the command."""

    sources: list[str] = field(default_factory=list)
    config: str | None = None
    state: str | None = None
    verbose: int = 0
    quiet: bool = False

    def resolved(self, more: Sequence[str] = ()) -> Config:
        from toolwright import config

        return config.resolve(
            config.Environment.read(),
            cwd=os.getcwd(),
            file=self.config,
            sources=[*self.sources, *more],
            state=self.state,
        )

    def workshop(self, more: Sequence[str] = ()) -> Workshop:
        from toolwright import app

        return app.open(self.resolved(more))


class _Group(click.Group):
    """Commands by name; a command's module is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"toolwright.doors.cli.{cmd_name}"), "command", None)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], _COMMANDS, n=1)
            if close:
                error.message = f"{error.message} Did you mean '{close[0]}'?"
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


_Command = TypeVar("_Command", bound=Callable[..., Any])


def shared_options(function: _Command) -> _Command:
    """Add the shared options; wherever they stand, they end up in one ``Shared``."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        shared = ctx.ensure_object(Shared)
        if param.name == "from_":
            shared.sources.extend(value)
        elif param.name == "verbose":
            shared.verbose += value
        elif value:
            setattr(shared, str(param.name), value)

    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Say less.", callback=keep, expose_value=False),
        click.option("-v", "--verbose", count=True, help="Say more.", callback=keep, expose_value=False),
        click.option(
            "--state", metavar="DIR", help="Folder for our own state.", callback=keep, expose_value=False
        ),
        click.option(
            "--config",
            metavar="FILE",
            help="Configuration to trust (default: toolwright.toml here or above, which may only narrow).",
            callback=keep,
            expose_value=False,
        ),
        click.option(
            "--from",
            "from_",
            multiple=True,
            metavar="[FORMAT=]PATH",
            help="A folder or file of tools; repeatable. executable=PATH allows running programs there to"
            " learn their schemas.",
            callback=keep,
            expose_value=False,
        ),
    ):
        function = option(function)
    return function


@click.command(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples:  toolwright check skills/  ·  toolwright list --json  ·  toolwright export --dialect anthropic",
)
@click.version_option(package_name="toolwright", message="%(prog)s %(version)s")
@shared_options
def group() -> None:
    """One runtime for the tools of LLM agents.

    With neither --from nor a configuration file, the tools of the current folder are used.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; never a traceback for a mistake of the user's."""
    try:
        status = group.main(list(arguments), prog_name="toolwright", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except ToolwrightError as error:
        complain(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`| head`): not an error, and the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the one catch-all of this door
        if any(argument.startswith("-vv") for argument in arguments):
            raise
        complain(f"internal error ({type(error).__name__})", "run again with -vv and report what it prints")
        return 70
    return status if isinstance(status, int) else 0


def complain(message: str, hint: str | None = None) -> None:
    """One sentence for a person on stderr, and what to do next."""
    from toolwright.doors.cli._render import printable

    click.echo(f"toolwright: {printable(message)}", err=True)
    if hint:
        click.echo(f"  {printable(hint)}", err=True)
