"""``toolcrib sign``: put a signature line into rye items."""

from __future__ import annotations

from typing import Any

import click

from toolcrib.doors.cli import Shared, _render, examples, shared_options
from toolcrib.trust.items import Location, Signed

_NOT_SIGNED = 77


@click.command(
    "sign",
    epilog=examples(
        "toolcrib sign tool:text/outline-markdown",
        "toolcrib sign 'tool:text/*'",
        "toolcrib sign 'tool:*' --space user --json",
    ),
)
@click.argument("refs", nargs=-1, required=True, metavar="KIND:ID...")
@click.option(
    "--space",
    type=click.Choice([location.value for location in Location]),
    help="Only items of this space; system items are never signed.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, refs: tuple[str, ...], space: str | None, as_json: bool) -> int:
    """Sign items with your key: tool:ID, config:ID or knowledge:ID; * and ? stand for any characters.

    An item with errors is not signed. `toolcrib keys generate` makes a key; signing never does.
    """
    crib = shared.crib()
    location = Location(space) if space else None
    signed = list(crib.sign(refs, location))
    if as_json:
        _render.write_json([_record(each) for each in signed])
    else:
        _write(signed)
    return _NOT_SIGNED if any(each.error for each in signed) else 0


def _record(signed: Signed) -> dict[str, Any]:
    item = signed.item
    record: dict[str, Any] = {
        "path": _render.shown_path(item.path),
        "status": "error" if signed.error else "signed",
        "item_id": item.id,
        "location": item.location.value,
    }
    if signed.error:
        return record | {"error": signed.error, "issues": list(signed.issues)}
    return record | {"signature": signed.signature, "warnings": list(signed.warnings)}


def _write(signed: list[Signed]) -> None:
    for each in signed:
        where = _render.printable(_render.shown_path(each.item.path))
        if each.error:
            click.echo(f"{where}: {click.style('not signed', fg='red')}: {_render.printable(each.error)}")
        else:
            click.echo(f"{where}: {click.style('signed', fg='green')}")
        for remark in (*each.issues, *each.warnings):
            click.echo(f"    {_render.printable(remark)}")
