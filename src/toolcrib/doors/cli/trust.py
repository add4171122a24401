"""``toolcrib trust``: trust a public key or a project, or stop trusting it."""

from __future__ import annotations

import os
import stat
from typing import Any

import click

from toolcrib.catalog import files
from toolcrib.config import current_folder
from toolcrib.doors.cli import (
    Shared,
    _confirm,
    _projects,
    _render,
    _signed,
    _spaces,
    examples,
    shared_options,
)
from toolcrib.errors import SigningError, SourceError
from toolcrib.trust import keys

_KEY_SUFFIXES = (".pem", ".toml", ".pub", ".key")


@click.command(
    "trust",
    epilog=examples(
        "toolcrib trust keys/6ea18199041a1ea8.toml",
        "toolcrib trust colleague.pem --owner ada",
        "toolcrib trust --remove 6ea18199041a1ea8",
        "toolcrib trust .",
        "toolcrib trust skills/new",
        "toolcrib trust .ai/tools/text/outline-markdown.py",
        "toolcrib trust --list",
    ),
)
@click.argument("what", metavar="KEY|PATH", required=False)
@click.option("--owner", default="", metavar="NAME", help="Whose key it is, where its file does not say.")
@click.option("--yes", is_flag=True, help="Do not ask whether to trust a project.")
@click.option("--list", "is_list", is_flag=True, help="Show what is trusted, and what waits to be.")
@click.option("--remove", is_flag=True, help="Stop trusting it; for a key, its id is enough.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared, what: str | None, owner: str, yes: bool, is_list: bool, remove: bool, as_json: bool
) -> int:
    """Trust KEY or the project at PATH, confirm what appeared at PATH, or accept an older signed file PATH.

    KEY is a file (PEM, or a key file of rye's in TOML), or the id of a key that a project here brings along.
    What it signed runs from then on, so know whose it is. PATH is a folder or a toolcrib.toml: what it and
    the lock file beside it would widen is shown first, and counts until one of them changes. If a declaration
    or code appeared at PATH while tools could write there, that is shown and confirmed. If PATH is a signed
    file older than the one that ran here, it runs again.
    """
    if is_list:
        return _projects.list_trusted(shared, as_json=as_json)
    if not what:
        raise click.UsageError("KEY or PATH is missing.")
    if owner and not owner.isprintable():
        raise click.UsageError("--owner must be one line of plain text.")
    waiting = [] if remove else _confirm.waiting(shared, what)
    if waiting:
        status = _confirm.confirm(shared, waiting, yes=yes, as_json=as_json)
        if status or not _projects.has_some(what):
            return status
    elif not remove and not _projects.has_some(what) and _confirm.was_confirmed(shared, what):
        return _confirm.say_confirmed(shared, what, as_json=as_json)
    if keys.is_key_id(what) and not os.path.lexists(what):
        answer = _forget_key(shared, what) if remove else _trust_key(shared, _brought(shared, what), owner)
    elif remove and not os.path.lexists(what):
        return _projects.remove(shared, what, as_json=as_json)  # a project that is gone
    elif not remove and (content := _signed.item_of(what)) is not None:
        answer = _signed.accept(shared, what, content)
    elif (content := _key_file(what)) is not None:
        key = keys.read_key(content)
        if isinstance(key, str) and not what.endswith(_KEY_SUFFIXES):
            raise SourceError(
                f"{what}: nothing to confirm or to trust: no tool changed it, and it is no key",
                "name a key, a project's folder, or what `toolcrib trust --list` shows",
            )
        if isinstance(key, str):
            raise SourceError(f"{what}: {key}", "name a public key: a PEM or a key file in TOML")
        if not remove and (flaw := keys.flaw(content, key, _spaces.keyring(shared))) is not None:
            raise SigningError(f"{what}: {flaw}", "the file was changed; get it anew from where it came from")
        answer = _forget_key(shared, key.id) if remove else _trust_key(shared, key, owner)
    elif remove:
        return _projects.remove(shared, what, as_json=as_json)
    else:
        return _projects.trust(shared, what, yes=yes, as_json=as_json)
    if as_json:
        _render.write_json(answer)
    else:
        click.echo(_render.printable(f"{answer['path']}: {answer['status']}"))
    return 0


def _key_file(path: str) -> bytes | None:
    """The content of a file that holds a key or should; None for what can only be a project."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path}: {files.reason(error)}", "name a key, its id, or a project") from None
    if stat.S_ISDIR(status.st_mode) or _projects.is_project(path):
        return None
    content, why = files.read(path, keys.KEY_BYTES_MAX)
    if content is None:
        raise SourceError(f"{path}: {why}", "name a key, its id, or a project")
    return content


# -- keys ---------------------------------------------------------------------------------------------------


def _brought(shared: Shared, key_id: str) -> keys.KeyText:
    """A key that a source or an installed bundle brings along, whether it counts there or not."""
    environment = shared.environment
    places = [keys.public_key(keys.signing_folder(environment.user_space, environment.variables))]
    for space in (*_places(shared), *_spaces.systems()):
        path = os.path.join(keys.TrustFolder(tier=keys.Tier.PROJECT, space=space).path, f"{key_id}.toml")
        content, _ = files.read(path, keys.KEY_BYTES_MAX)
        found = keys.read_key(content) if content is not None else ""
        places.append(found if isinstance(found, keys.KeyText) else None)
    for key in places:
        if key is not None and key.id == key_id:
            return key
    raise SourceError(f"{key_id}: no key of this id lies here", "name the file of the key")


def _places(shared: Shared) -> list[str]:
    return [*dict.fromkeys((current_folder(), *(source.path for source in shared.resolved().sources)))]


def _trust_key(shared: Shared, key: keys.KeyText, owner: str) -> dict[str, Any]:
    named = keys.named(key, owner) if owner else key
    if not shared.quiet:
        whose = f" of {named.owner}" if named.owner else ""
        click.echo(_render.printable(f"key {named.id}{whose}"), err=True)
    path = keys.trust(shared.environment.user_space, named)
    return {"path": _render.shown_path(path), "status": "trusted", "id": named.id, "owner": named.owner}


def _forget_key(shared: Shared, key_id: str) -> dict[str, Any]:
    path = keys.distrust(shared.environment.user_space, key_id)
    if path is None:
        raise SigningError(
            f"{key_id}: this key is not in your trust store", "`toolcrib keys list` shows those that are"
        )
    return {"path": _render.shown_path(path), "status": "removed", "id": key_id}
