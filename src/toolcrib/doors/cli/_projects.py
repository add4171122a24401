"""``trust PATH``, ``trust --list`` and ``trust --remove`` for projects: what their files would widen is
shown, and what a person agreed to is remembered by place and bytes."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

import click

from toolcrib import config
from toolcrib.catalog import files
from toolcrib.doors.cli import Shared, _confirm, _render, _switch, complain
from toolcrib.errors import SourceError, UsageError
from toolcrib.journal.audit import open_audit
from toolcrib.journal.reading import time_text
from toolcrib.jsontext import JsonObject
from toolcrib.model import LOCK_NAME
from toolcrib.store import Store, trusted

_GIVEN_UP: Final = 130


def is_project(path: str) -> bool:
    """Whether an argument of ``trust`` names a project: its folder, or one of its own two files."""
    return os.path.isdir(path) or os.path.basename(path) in (config.FILE_NAME, LOCK_NAME)


def has_some(path: str) -> bool:
    """Whether there is something to trust of a project: its configuration, its lock or keys of its own."""
    if not is_project(path):
        return False
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    names = (config.FILE_NAME, LOCK_NAME)
    is_there = any(os.path.lexists(os.path.join(folder, name)) for name in names)
    return is_there or bool(trusted.key_files(folder))


def trust(shared: Shared, path: str, *, yes: bool, as_json: bool) -> int:
    """Show what a project's files would widen, ask, and remember them as they were shown."""
    _refuse_open_state(shared)
    folder = _folder(path)
    reviewed = _reviewed(shared, folder)
    vouching = _vouching(folder)
    if not as_json:
        _show(reviewed, vouching)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "whether to trust it is asked on a terminal, and there is none", "--yes, once you read it"
            )
        if not click.confirm("Trust these files as they are now?", default=False, err=True):
            complain("nothing was trusted")
            return _GIVEN_UP
    items: list[JsonObject] = []
    now = time.time()
    with _switch.opened_store(shared) as store:
        for file, content, widening in (
            *((one.path, one.content, one.widening) for one in reviewed),
            *((place, content, ()) for place, content in vouching),
        ):
            # Attack: a file that is swapped while a person reads. What was shown is what is remembered.
            digest = trusted.digest_of(content)
            kept = trusted.trust(store, file, digest, now=now, by=shared.environment.user)
            widens = [{"key": key, "value": value} for key, value in widening]
            items.append({"path": kept.path, "status": "trusted", "digest": digest, "widens": widens})
    _record(shared, [str(item["path"]) for item in items], is_trusted=True)
    if as_json:
        _render.write_json(items)
    elif not shared.quiet:
        for item in items:
            click.echo(_render.printable(f"{item['path']}: trusted"))
    return 0


def list_trusted(shared: Shared, *, as_json: bool) -> int:
    """What is trusted, and whether it still is what was trusted."""
    with _switch.present_store(shared) as store:
        items = [] if store is None else [_standing(store, entry) for entry in trusted.listed(store)]
    items += _confirm.listed(shared)
    if as_json:
        _render.write_json(items)
    for item in () if as_json else items:
        click.echo(_render.printable(f"{item['status']}  {item['path']}  since {item['at']}"))
    if not items and not as_json and not shared.quiet:
        click.echo("no project is trusted", err=True)
    return 0


def _standing(store: Store, entry: trusted.Trusted) -> JsonObject:
    content, _ = files.read(entry.path)
    status = "missing"
    if content is not None:
        same = trusted.is_trusted(store, entry.path, trusted.digest_of(content))
        status = "trusted" if same else "changed"
    return {"path": entry.path, "status": status, "at": time_text(entry.at), "by": entry.by}


def remove(shared: Shared, path: str, *, as_json: bool) -> int:
    """Trust a project no more; one that is not there any more can be named by its folder, too."""
    is_file = os.path.basename(path) in (config.FILE_NAME, LOCK_NAME)
    folder = os.path.dirname(os.path.abspath(path)) if is_file else os.path.abspath(path)
    places = [os.path.join(folder, name) for name in (config.FILE_NAME, LOCK_NAME)]
    keys = os.path.join(os.path.realpath(folder), *trusted.KEYS, "")
    with _switch.opened_store(shared) as store:
        if not is_file:  # its keys, too, those that are not there any more included
            places += [entry.path for entry in trusted.listed(store) if entry.path.startswith(keys)]
        gone = [trusted.place_of(place) for place in places if trusted.forget(store, place)]
    if not gone:
        raise UsageError(f"{path}: it is not trusted", "`toolcrib trust --list` shows what is")
    _record(shared, gone, is_trusted=False)
    if as_json:
        _render.write_json([{"path": place, "status": "removed"} for place in gone])
    elif not shared.quiet:
        for place in gone:
            click.echo(_render.printable(f"{place}: not trusted any more"))
    return 0


# -- parts --------------------------------------------------------------------------------------------------


def _refuse_open_state(shared: Shared) -> None:
    state = shared.resolved().state
    if state is not None:
        files.check_state(state)


def _folder(path: str) -> str:
    absolute = os.path.join(config.current_folder(), path)
    if not os.path.lexists(absolute):
        raise SourceError(f"{path}: no such file or directory", "name a project's folder")
    if not is_project(absolute):
        raise UsageError(
            f"{path}: neither a project's folder nor its {config.FILE_NAME}", "name the folder it lies in"
        )
    return os.path.normpath(absolute if os.path.isdir(absolute) else os.path.dirname(absolute))


def _reviewed(shared: Shared, folder: str) -> list[config.Reviewed]:
    for name in (config.FILE_NAME, LOCK_NAME):
        config.refuse_former(folder, name, shared.resolved().state)
    path = os.path.join(folder, config.FILE_NAME)
    if not os.path.lexists(path):
        if not os.path.lexists(os.path.join(folder, LOCK_NAME)) and not trusted.key_files(folder):
            raise UsageError(
                f"{folder}: nothing to confirm or to trust: no tool changed its declarations, and it has no "
                f"{config.FILE_NAME}, no {LOCK_NAME} and no keys of its own",
                "its tools can be called if you name the folder: --from; "
                "`toolcrib trust --list` shows what waits",
            )
        return []
    return [config.review(shared.environment, path)]


def _vouching(folder: str) -> list[tuple[str, bytes]]:
    """What would vouch for the project's tools: its lock, and keys of its own."""
    found = []
    keys = trusted.key_files(folder)
    if len(keys) > trusted.KEYS_MAX:
        raise SourceError(f"{folder}: it has more than {trusted.KEYS_MAX:,} keys", "remove some of them")
    for path in (os.path.join(folder, LOCK_NAME), *keys):
        if os.path.lexists(path):
            content, why = files.read(path, files.LONG_DOCUMENT_BYTES_MAX)
            if content is None:
                raise SourceError(f"{path}: {why}", "make it readable, or remove it")
            found.append((path, content))
    return found


def _show(reviewed: list[config.Reviewed], vouching: list[tuple[str, bytes]]) -> None:
    for one in reviewed:
        said = "would widen:" if one.widening else "widens nothing; it counts already"
        click.echo(_render.printable(f"{one.path} {said}"), err=True)
        for key, value in one.widening:
            click.echo(f"  {_render.printable(key)} = {_render.printable(value)}", err=True)
    for path, _ in vouching:
        what = "the tools it pins" if os.path.basename(path) == LOCK_NAME else "the tools it signed"
        click.echo(_render.printable(f"{path} would vouch for {what}"), err=True)


def _record(shared: Shared, paths: list[str], *, is_trusted: bool) -> None:
    """Who trusted what, in the journal beside the calls."""
    state = shared.resolved().state
    assert state is not None
    audit = open_audit(state)
    body: JsonObject = {"paths": [*paths], "trusted": is_trusted, "caller": shared.environment.user}
    if not audit.note("", "trust", body):
        why, hint = audit.why_not
        complain(f"it holds but is not recorded: {why}", hint)
    audit.close()
