"""``toolcrib export``: exactly what a model provider would be sent."""

from __future__ import annotations

import click

from toolcrib import jsontext
from toolcrib.dialects import DIALECTS
from toolcrib.doors._documents import losses_of
from toolcrib.doors.cli import Shared, _render, examples, shared_options


@click.command(
    "export",
    epilog=examples(
        "toolcrib export --dialect anthropic",
        "toolcrib export --dialect openai --tool-mode strict get_time",
        "toolcrib export --dialect gemini --losses losses.json > request.json",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dialect", type=click.Choice(list(DIALECTS)), required=True, help="Whose wire form.")
@click.option(
    "--tool-mode", type=click.Choice(["plain", "strict"]), default="plain", show_default=True,
    help="strict: the provider enforces the schema, where it can.",
)  # fmt: skip
@click.option(
    "--losses", "losses_file", metavar="FILE", type=click.Path(),
    help="Write what the form cannot express, as JSON.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Changes nothing: the output is always JSON.")
@shared_options
@click.pass_obj
def command(
    shared: Shared,
    names: tuple[str, ...],
    dialect: str,
    tool_mode: str,
    losses_file: str | None,
    as_json: bool,
) -> None:
    """Print the provider's own JSON for the tools NAMEd, or for all of them.

    Stdout is exactly the value that goes into the request's `tools`. Tools that the provider cannot take,
    and what its form cannot express, are told on stderr and in --losses FILE.
    """
    crib = shared.crib()
    declared = crib.declare(dialect, names=names or None, mode=tool_mode)
    if losses_file is not None:
        _render.write_file(losses_file, losses_of(declared))
    _render.write_json(declared.payload)
    if shared.quiet:
        return
    if declared.note:
        click.echo(_render.printable(declared.note), err=True)
    for left in declared.left_out:
        click.echo(f"left out {_render.printable(left.tool)}: {_render.printable(left.because)}", err=True)
    if declared.losses:
        count = len(declared.losses)
        where = f"see {losses_file}" if losses_file else "--losses FILE or -v lists them"
        click.echo(f"{count} {'loss' if count == 1 else 'losses'}; {_render.printable(where)}", err=True)
    if shared.verbose:
        for loss in declared.losses:
            text = f"{loss.tool}: {jsontext.place_text(loss.pointer)}: {loss.what}"
            click.echo(f"  {_render.printable(text)}", err=True)
    _render.mention_problems(crib, shared)
