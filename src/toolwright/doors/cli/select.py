"""``toolwright select``: which tools a message would see, and why."""

from __future__ import annotations

import json

import click

from toolwright.doors.cli import Shared, _render, shared_options
from toolwright.model import Choice


@click.command(
    "select",
    epilog='Examples:  toolwright select "remind me tomorrow"  ·  toolwright select "hi" --context project_id=p1 --explain',
)
@click.argument("message")
@click.option("--context", "context", multiple=True, metavar="K=V", help="A value of the request's context; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N tools.")
@click.option("--explain", is_flag=True, help="Also say why the others were left out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared, message: str, context: tuple[str, ...], limit: int | None, explain: bool, as_json: bool
) -> None:
    """Show which tools MESSAGE should see by the formats' own rules."""
    workshop = shared.workshop()
    selected = workshop.select(message, context=dict(map(_pair, context)), limit=limit)
    chosen = [_row(choice) for choice in selected.chosen]
    if as_json:
        if explain:
            left_out = [_row(choice) for choice in selected.left_out]
            _render.write_json({"selected": chosen, "left_out": left_out, "note": selected.note})
        else:
            _render.write_json(chosen)
    else:
        if chosen:
            _render.write_table(("SELECTED", "BECAUSE"), ((row["name"], row["because"]) for row in chosen))
        if explain and selected.left_out:
            click.echo()
            _render.write_table(
                ("LEFT OUT", "BECAUSE"), ((choice.name, choice.because) for choice in selected.left_out)
            )
    if selected.note and not (as_json and explain):
        click.echo(_render.printable(selected.note), err=True)


def _row(choice: Choice) -> dict[str, str | float | None]:
    return {"name": choice.name, "key": choice.key, "score": choice.score, "because": choice.because}


def _pair(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"--context wants K=V, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
