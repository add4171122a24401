"""``toolwright export``: exactly what a model provider would be sent."""

from __future__ import annotations

import click
import orjson

from toolwright import jsontext
from toolwright.dialects import DIALECTS
from toolwright.doors.cli import Shared, _render, shared_options
from toolwright.errors import SourceError


@click.command(
    "export",
    epilog="Examples:  toolwright export --dialect anthropic  ·  toolwright export --dialect openai --tool-mode strict get_time",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dialect", type=click.Choice(list(DIALECTS)), required=True, help="Whose wire form.")
@click.option(
    "--tool-mode", type=click.Choice(["plain", "strict"]), default="plain", show_default=True,
    help="strict: the provider enforces the schema, where it can.",
)  # fmt: skip
@click.option("--losses", "losses_file", metavar="FILE", help="Write what could not be expressed as JSON.")
@click.option("--json", "as_json", is_flag=True, hidden=True, help="Accepted; the output is always JSON.")
@shared_options
@click.pass_obj
def command(
    shared: Shared, names: tuple[str, ...], dialect: str, tool_mode: str, losses_file: str | None, as_json: bool
) -> None:
    """Print the provider's own JSON for the tools NAMEd, or for all of them.

    Stdout is exactly the value that goes into the request's `tools`. Tools that the provider cannot take,
    and what its form cannot express, are told on stderr and in --losses FILE.
    """
    workshop = shared.workshop()
    declared = workshop.declare(dialect, names=names or None, mode=tool_mode)
    _render.write_json(declared.payload)
    losses = [
        {"tool": loss.tool, "pointer": jsontext.pointer_text(loss.pointer), "keyword": loss.keyword, "what": loss.what}
        for loss in declared.losses
    ]
    losses += [
        {"tool": left.tool, "pointer": "", "keyword": "", "what": f"left out: {left.because}"}
        for left in declared.left_out
    ]
    if losses_file is not None:
        try:
            with open(losses_file, "wb") as file:
                file.write(orjson.dumps(losses, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise SourceError(f"{losses_file}: {error.strerror}", "name a file that can be written") from None
    if shared.quiet:
        return
    for left in declared.left_out:
        click.echo(f"left out {_render.printable(left.tool)}: {_render.printable(left.because)}", err=True)
    if declared.losses:
        where = f"see {losses_file}" if losses_file else "--losses FILE lists them"
        click.echo(f"{_render.plural(len(declared.losses), 'loss')[:-1] + 'es' if len(declared.losses) > 1 else '1 loss'}; {where}", err=True)
        if shared.verbose:
            for loss in declared.losses:
                place = jsontext.place_text(loss.pointer)
                click.echo(f"  {_render.printable(loss.tool)}: {_render.printable(place)}: {_render.printable(loss.what)}", err=True)
