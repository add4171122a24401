"""``toolcrib keys``: make, list and show keys."""

from __future__ import annotations

import os
from typing import Any

import click

from toolcrib.doors.cli import Shared, _render, _spaces, examples, shared_options
from toolcrib.errors import SourceError
from toolcrib.trust import keys


@click.group(
    "keys",
    epilog=examples(
        "toolcrib keys generate --owner ada",
        "toolcrib keys list",
        "toolcrib keys show > ada.pem",
    ),
)
@shared_options
def command() -> None:
    """Make the key that signs, and look at those that are trusted."""


def _folder(shared: Shared) -> str:
    return keys.signing_folder(shared.environment.user_space, shared.environment.variables)


@command.command("list", epilog=examples("toolcrib keys list --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def list_(shared: Shared, as_json: bool) -> None:
    """List the keys known here. Those of your trust store, of installed bundles and of the projects.

    A key that does not count is listed with the reason.
    """
    own = keys.public_key(_folder(shared))
    found: dict[str, keys.KeyFile] = {}
    standing = [ring.now() for ring in _spaces.keyrings(shared, shared.crib().rye_projects)]
    for now in standing:
        found.update({file.path: file for file in now.files()})
    rows = [_row(file, own) for file in found.values()]
    if as_json:
        _render.write_json(rows)
    elif rows:
        cells = ((row["id"], row["owner"], row["tier"], row["status"], _note(row)) for row in rows)
        _render.write_table(("KEY", "OWNER", "TIER", "STATUS", "NOTE"), cells)
    else:
        click.echo("no key is trusted", err=True)
    if not shared.quiet:
        for problem in {each.path: each for now in standing for each in now.problems()}.values():
            if problem.code == "trust.open-folder":
                click.echo(_render.printable(f"{problem.path}: {problem.message}"), err=True)


def _row(file: keys.KeyFile, own: keys.KeyText | None) -> dict[str, Any]:
    return {
        "path": _render.shown_path(file.path),
        "status": "trusted" if file.counts else "ignored",
        "id": file.id,
        "owner": file.owner,
        "tier": file.tier.value,
        "signed_by": file.signed_by or None,
        "yours": own is not None and own.public == file.public,
        "why": file.ignored,
    }


def _note(row: dict[str, Any]) -> str:
    return str(row["why"]) if row["why"] else "yours" if row["yours"] else ""


@command.command("generate", epilog=examples("toolcrib keys generate --owner ada"))
@click.option("--owner", default="", metavar="NAME", help="Whose key it is (default: your user name).")
@click.option("--no-trust", is_flag=True, help="Do not put it into your own trust store.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def generate(shared: Shared, owner: str, no_trust: bool, as_json: bool) -> None:
    """Make your key pair, and trust it yourself. A key that is there is never overwritten."""
    folder = _folder(shared)
    key = keys.named(keys.generate(folder), owner or shared.environment.user)
    if not no_trust:
        keys.trust(shared.environment.user_space, key)
    if as_json:
        _render.write_json(
            {"path": _render.shown_path(folder), "status": "generated", "id": key.id, "trusted": not no_trust}
        )
    else:
        click.echo(f"{_render.printable(_render.shown_path(folder))}: key {key.id}")


@command.command("show", epilog=examples("toolcrib keys show", "toolcrib keys show 6ea18199041a1ea8"))
@click.argument("key_id", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def show(shared: Shared, key_id: str | None, as_json: bool) -> None:
    """Print a public key, to hand to those who shall trust it. In PEM form; by default your own."""
    own = keys.public_key(_folder(shared))
    path = os.path.join(_folder(shared), keys.PUBLIC_NAME)
    shown: tuple[str, str, str, str] | None = None
    if own is not None and key_id in (None, own.id):
        shown = (own.id, "", path, own.pem)
    elif key_id is not None:
        for ring in _spaces.keyrings(shared, shared.crib().rye_projects):
            for file in ring.now().files():
                if file.id == key_id and file.pem:
                    shown = shown or (file.id, file.owner, file.path, file.pem)
    if shown is None:
        missing = f"{key_id}: no such key" if key_id else "there is no key of your own"
        raise SourceError(missing, "`toolcrib keys list` shows them; `toolcrib keys generate` makes one")
    found_id, owner, where, pem = shown
    if as_json:
        where = _render.shown_path(where)
        _render.write_json({"path": where, "status": "public", "id": found_id, "owner": owner, "pem": pem})
    else:
        click.echo(pem, nl=False)
