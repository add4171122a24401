"""``trust PATH`` for what appeared where tools may write: a person says that it is theirs."""

from __future__ import annotations

import os
import sys
from typing import Final

import click
from msgspec.structs import replace

from toolcrib import config
from toolcrib.catalog import appeared, files
from toolcrib.catalog.appeared import Appearance, Records
from toolcrib.doors.cli import Shared, _render, complain
from toolcrib.errors import SourceError, StoreError, UsageError
from toolcrib.journal.audit import open_audit
from toolcrib.journal.reading import time_text
from toolcrib.jsontext import JsonObject
from toolcrib.paths import is_below

_GIVEN_UP: Final = 130
_LISTED_MAX: Final = 20


def waiting(shared: Shared, path: str) -> list[Appearance]:
    """What waits to be confirmed at, below or around a path."""
    real = _real(path)
    found = Records(_state(shared)).all().values()
    return [
        each
        for each in found
        if not each.is_used
        and not each.confirmed
        and (is_below(each.path, (real,)) or is_below(real, (each.path,)))
    ]


def listed(shared: Shared) -> list[JsonObject]:
    """Everything that waits to be confirmed."""
    return [
        {"path": each.path, "status": "waits", "at": time_text(each.at), "by": ", ".join(each.tools)}
        for _, each in sorted(Records(_state(shared)).all().items())
        if not each.is_used and not each.confirmed
    ]


def confirm(shared: Shared, found: list[Appearance], *, yes: bool, as_json: bool) -> int:
    """Show what appeared, ask, and remember it as it was shown."""
    state = _state(shared)
    if files.is_open_to_others(state):
        # Attack: another user of the machine confirms what a tool planted.
        raise StoreError(f"{state}: others may write it", f"chmod 700 {state}")
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
        items.append({"path": each.path, "status": "confirmed", "digest": digest, "tools": [*each.tools]})
    _record(shared, state, [each.path for each in found])
    if as_json:
        _render.write_json(items)
    elif not shared.quiet:
        for item in items:
            click.echo(_render.printable(f"{item['path']}: confirmed"))
    return 0


def _show(found: Appearance) -> None:
    who = ", ".join(found.tools) or "a tool"
    what = "was replaced" if found.was_there else "appeared"
    text = f"{found.path} {what} at {time_text(found.at)}, while {who} could write there"
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
