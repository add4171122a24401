"""``toolcrib select``: which tools a message would see, and why."""

from __future__ import annotations

import click

from toolcrib.doors._documents import choice_row
from toolcrib.doors.cli import Shared, _input, _render, examples, shared_options
from toolcrib.model import Choice


@click.command(
    "select",
    epilog=examples(
        'toolcrib select "remind me tomorrow"',
        'toolcrib select "read the plan" --context project_id=p1 --explain',
    ),
)
@click.argument("message")
@click.option(
    "--context", "context", multiple=True, metavar="K=V",
    help="A value of the request's context, JSON or else text; repeatable.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N tools.")
@click.option("--explain", is_flag=True, help="Also say why the others were left out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared, message: str, context: tuple[str, ...], limit: int | None, explain: bool, as_json: bool
) -> None:
    """Show which tools MESSAGE should see by the formats' own rules."""
    values = _input.context_of(context)
    crib = shared.crib()
    selected = crib.select(message, context=values, limit=limit)
    chosen = [choice_row(choice) for choice in selected.chosen]
    if as_json and explain:
        left_out = [choice_row(choice) for choice in selected.left_out]
        _render.write_json({"selected": chosen, "left_out": left_out, "note": selected.note})
    elif as_json:
        _render.write_json(chosen)
    else:
        if chosen:
            _write_choices("SELECTED", selected.chosen)
        if explain and selected.left_out:
            if chosen:
                click.echo()
            _write_choices("LEFT OUT", selected.left_out)
    if selected.note and not (as_json and explain):
        click.echo(_render.printable(selected.note), err=True)
    _render.mention_problems(crib, shared)


def _write_choices(heading: str, choices: tuple[Choice, ...]) -> None:
    _render.write_table((heading, "BECAUSE"), ((choice.name, choice.because) for choice in choices))
