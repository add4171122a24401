"""``trust PATH`` for what appeared where tools may write: a person says that it is theirs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

import click
from msgspec.structs import replace

from toolcrib import config
from toolcrib.catalog import appeared, files, sources, writes
from toolcrib.catalog.appeared import Appearance, How, Records, is_confirmed
from toolcrib.catalog.sources import Source
from toolcrib.catalog.unconfirmed import declares
from toolcrib.doors.cli import Shared, _render, complain
from toolcrib.errors import SourceError, UsageError
from toolcrib.journal.audit import open_audit
from toolcrib.journal.reading import time_text
from toolcrib.jsontext import JsonObject
from toolcrib.paths import is_below

_GIVEN_UP: Final = 130
_LISTED_MAX: Final = 20


def waiting(shared: Shared, path: str) -> list[Appearance]:
    """What waits to be confirmed at, below or around a path: what was written down, and what no host has
    looked at yet."""
    real = _real(path)
    records = Records(_state(shared))
    found = {
        each.path: each
        for each in records.all().values()
        if _waits(each) and (is_below(each.path, (real,)) or is_below(real, (each.path,)))
    }
    known = writes.known(_state(shared))
    for place in _declared(real) if known and os.path.lexists(real) else ():
        each = writes.appearance_of(place, records, known)
        if each is not None and not any(is_below(each.path, (path,)) for path in found):
            found[each.path] = each
    return [*found.values()]


def was_confirmed(shared: Shared, path: str) -> bool:
    """Whether what is at a path, or around it, was confirmed before, and still is what was confirmed."""
    found = Records(_state(shared)).on(_real(path))
    return bool(found) and not any(map(_waits, found))


def _waits(found: Appearance) -> bool:
    return not found.used_at and not is_confirmed(found)


def _declared(path: str) -> list[str]:
    """The files at a path, or in a folder that is looked through like a source."""
    if not os.path.isdir(path):
        return [path]
    with suppress(SourceError):  # more than a source may hold
        found = sources.listing([Source(path=path)])
        return [
            file
            for candidate in found.candidates
            if not candidate.quiet or declares(candidate)
            for file, _ in candidate.files
        ]
    return []


def listed(shared: Shared) -> list[JsonObject]:
    """Everything that waits to be confirmed."""
    return [
        {"path": each.path, "status": "waits", "at": time_text(each.at), "by": ", ".join(each.tools)}
        for _, each in sorted(Records(_state(shared)).all().items())
        if _waits(each)
    ]


def confirm(shared: Shared, found: list[Appearance], *, yes: bool, as_json: bool) -> int:
    """Show what appeared, ask, and remember it as it was shown."""
    state = _state(shared)
    # Attack: another user of the machine confirms what a tool planted.
    files.check_state(state)
    # Attack: a file that is swapped while a person reads. What was shown is what is remembered.
    digests = {each.path: appeared.digest_of(each.path) for each in found}
    for each in found:
        if not digests[each.path]:
            raise SourceError(
                f"{each.path}: it cannot be read whole, or is more than can be confirmed at once",
                "move out what is no declaration and no code of a tool",
            )
    if not as_json:
        for each in found:
            _show(each)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "whether to confirm it is asked on a terminal, and there is none", "--yes, once you read it"
            )
        if not click.confirm("Is all of this yours, as it is now?", default=False, err=True):
            complain("nothing was confirmed")
            return _GIVEN_UP
    records = Records(state)
    items: list[JsonObject] = []
    for each in found:
        digest = digests[each.path]
        records.put(replace(each, confirmed=digest, by=shared.environment.user))
        if each.how is not How.MOVED:  # its folder changed with it, and is the one that was shown
            place = os.path.join(os.path.dirname(each.path), "")
            records.put(replace(each, path=place, how=How.MOVED, confirmed=appeared.digest_of(place)))
        items.append({"path": each.path, "status": "confirmed", "digest": digest, "tools": [*each.tools]})
    _record(shared, state, [each.path for each in found])
    if as_json:
        _render.write_json(items)
    elif not shared.quiet:
        for item in items:
            click.echo(_render.printable(f"{item['path']}: confirmed"))
    return 0


def say_confirmed(shared: Shared, path: str, *, as_json: bool) -> int:
    """Say that there is nothing to do."""
    if as_json:
        _render.write_json([])
    elif not shared.quiet:
        click.echo(_render.printable(f"{path}: nothing to confirm: it is as it was confirmed"))
    return 0


def _show(found: Appearance) -> None:
    who = ", ".join(found.tools) or "a tool"
    text = f"{found.path} {found.how} at {time_text(found.at)}, while {who} could write there"
    click.echo(_render.printable(text), err=True)
    if os.path.isdir(found.path):
        inner = sorted(
            os.path.relpath(os.path.join(folder, name), found.path)
            for folder, _, names in os.walk(found.path)
            for name in names
        )
        for name in inner[:_LISTED_MAX]:
            click.echo(f"  {_render.printable(name)}", err=True)
        if len(inner) > _LISTED_MAX:
            click.echo(f"  … and {len(inner) - _LISTED_MAX} more files", err=True)


def _state(shared: Shared) -> str:
    """The state folder, without reading a configuration: one that appeared may be what is to be confirmed."""
    given = shared.state
    return shared.environment.state if given is None else os.path.join(config.current_folder(), given)


def _real(path: str) -> str:
    """A path, the links on the way to it followed, and itself not."""
    absolute = os.path.normpath(os.path.join(config.current_folder(), path))
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def _record(shared: Shared, state: str, paths: list[str]) -> None:
    """Who confirmed what, in the journal beside the calls."""
    audit = open_audit(state)
    body: JsonObject = {"paths": [*paths], "confirmed": True, "caller": shared.environment.user}
    if not audit.note("", "trust", body):
        why, hint = audit.why_not
        complain(f"it holds but is not recorded: {why}", hint)
    audit.close()
