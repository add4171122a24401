"""``toolcrib lock``: approve the tools as they are, and see what changed since."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Final

import click

from toolcrib.app import Crib
from toolcrib.doors.cli import Shared, _input, _render, as_far_as_read, complain, examples, shared_options
from toolcrib.errors import SourceError, StoreError, UnknownTool, UsageError
from toolcrib.journal.audit import open_audit
from toolcrib.jsontext import JsonObject
from toolcrib.model import Tool, Trust, Vetted
from toolcrib.paths import is_below
from toolcrib.trust import lock as locks
from toolcrib.trust.lock import Drift, Entry
from toolcrib.trust.pinning import Item, Pins, is_covered

_REFUSED: Final = 77
_RECORDED_MAX: Final = 200
_GOOD: Final = (Trust.SIGNED, Trust.PINNED)
_COLOURS: Final = {
    **dict.fromkeys(("pinned", "signed"), "green"),
    **dict.fromkeys(("drifted", "tampered", "blocked"), "red"),
}


@click.command(
    "lock",
    epilog=examples(
        "toolcrib lock",
        "toolcrib lock --check",
        "toolcrib lock --update get_time",
        "toolcrib lock --update 'mcp:files/*' --json",
        "toolcrib lock --forget",
    ),
)
@click.option("--check", "check", is_flag=True, help="Write nothing; show what is not as it was locked.")
@click.option(
    "--update", "names", metavar="NAME", multiple=True,
    help="Approve only this tool again (a key, a bare name, or a key pattern with *); repeatable.",
)  # fmt: skip
@click.option(
    "--forget", is_flag=True, help="Give locking up: forget that a lock was written on this machine."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, check: bool, names: tuple[str, ...], forget: bool, as_json: bool) -> int:
    """Write down in toolcrib.lock what every tool shows to models, runs and consists of.

    From then on a tool that differs is refused until it is approved again. The lock lies beside the
    configuration file, else in the current folder, and is made to be committed. With --from, entries of
    other sources stay as they are.

    Exit status: 0 when everything is as it was locked (or now is) and verifies, 77 when something is or does
    not. A lock vouches for no tool whose signature, or that of something it needs, does not verify.
    """
    if check + bool(names) + forget > 1:
        raise click.UsageError("--check, --update and --forget exclude each other.")
    for name in names:
        _input.check_text(name, "--update")
    crib = shared.crib()
    if forget:
        return _forget(crib, as_json)
    if crib.asks:
        crib.reload(fresh=True)  # what a server says now, not what it said when it was last asked
    pins = crib.pins()
    if check:
        return _check(crib, pins, shared, as_json)
    return _write(crib, pins, shared, names, as_json)


def _forget(crib: Crib, as_json: bool) -> int:
    pins = crib.pins()
    had = pins.forget()
    if as_json:
        _render.write_json(
            [{"path": _render.shown_path(pins.path), "status": "forgotten" if had else "unknown"}]
        )
    else:
        what = "is forgotten; delete the file as well to unlock" if had else "was not written on this machine"
        click.echo(f"{_render.printable(_render.shown_path(pins.path))} {what}")
    return 0


# -- looking ------------------------------------------------------------------------------------------------


def _check(crib: Crib, pins: Pins, shared: Shared, as_json: bool) -> int:
    if not pins.exists:
        raise SourceError(f"{_render.shown_path(pins.path)}: no such file", "`toolcrib lock` writes one")
    survey = pins.survey([*crib.tools, *crib.server_records()], crib.gate.vet_signature)
    if survey.refusal is not None:
        raise _Broken(survey.refusal.message, survey.refusal.hint)
    moved = {move.key: move for move in survey.moves}
    kept = _of_others(crib, pins, shared)
    items = [item for item in survey.items if item.key not in kept]
    unsound = _unsound(crib, crib.tools)
    diffs = _Diffs(pins)
    rows: list[dict[str, Any]] = []
    for item in items:
        row: dict[str, Any] = {
            "path": _render.shown_path(item.path),
            "key": item.key,
            "status": item.trust.value,
            "change": item.change,
            "message": item.message or None,
            "diff": diffs.lines(item.drift)
            if item.trust is Trust.DRIFTED or item.change == "changed"
            else [],
            "blocked_by": _blocked_by(unsound.get(item.key)),
        }
        if item.key in unsound and _is_good(item):
            row["message"] = unsound[item.key].message
        move = moved.get(item.key)
        if move is not None:
            row["code"] = "lock.renamed" if move.is_rename else "lock.shadowed"
            row["locked_as"] = move.entry.key
        rows.append(row)
    changed = sum(not _is_good(item) for item in items)
    bad = [row for row, item in zip(rows, items, strict=True) if not _is_good(item) or item.key in unsound]
    with as_far_as_read(sys.stdout):
        if as_json:
            _render.write_json(rows)
            return _REFUSED if bad else 0
        for row in rows if shared.verbose else bad:
            _show(row)
        if not shared.quiet:
            total = _render.plural(len(rows), "tool")
            click.echo(
                f"{changed} of {total} not as locked; `toolcrib lock --update NAME` approves one as it is"
                if changed
                else f"{total} as locked"
            )
            _warn(len(bad) - changed, total)
    return _REFUSED if bad else 0


def _unsound(crib: Crib, tools: Iterable[Tool]) -> dict[str, Vetted]:
    """The tools that do not verify, by key. Attack: a lock that makes them pass as sound."""
    found = {tool.key: crib.gate.vet_signature(tool) for tool in tools if is_covered(tool)}
    return {key: vetted for key, vetted in found.items() if vetted.message}


def _blocked_by(vetted: Vetted | None) -> str | None:
    return _render.shown_path(vetted.blocked_by) if vetted is not None and vetted.blocked_by else None


def _warn(number: int, total: str) -> None:
    if number:
        does = "does" if number == 1 else "do"
        click.echo(f"{number} of {total} {does} not verify; `toolcrib verify` tells more")


class _Broken(SourceError):
    exit_code = _REFUSED


def _is_good(item: Item) -> bool:
    """As somebody else locked it is good as well: only who vouches for it is open then."""
    return item.trust in _GOOD or (item.change == "same" and item.trust is not Trust.DRIFTED)


def _show(row: dict[str, Any]) -> None:
    status = click.style(f"{row['status']:9}", fg=_COLOURS.get(row["status"], "yellow"), bold=True)
    click.echo(f"{status} {_render.printable(row['key'])}")
    if "code" in row:
        what = "the tool locked as" if row["code"] == "lock.renamed" else "takes the name of"
        click.echo(f"    {what} {_render.printable(row['locked_as'])} [{row['code']}]")
    elif row["message"] and not row["diff"]:
        if row.get("blocked_by"):
            click.echo(f"    it needs {_render.printable(row['blocked_by'])}, which does not verify:")
        for line in row["message"].split("\n"):
            click.echo(f"    {_render.printable(line)}")
    _show_lines(row["diff"])


def _show_lines(lines: Sequence[str]) -> None:
    for line in lines:
        text = _render.printable(line)
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(text[2:3]) if text.startswith("  ") else None
        click.echo(f"    {click.style(text, fg=colour) if colour else text}")


class _Diffs:
    """The differences of one run: what several tools share is shown once."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._told: set[tuple[locks.PinnedFile | None, locks.PinnedFile | None]] = set()

    def lines(self, drift: Drift | None) -> list[str]:
        if drift is None:
            return []
        pins = self._pins
        return [*locks.diff_lines(drift, was=pins.text_was, is_=pins.text_is, told=self._told)]


# -- writing ------------------------------------------------------------------------------------------------


def _write(crib: Crib, pins: Pins, shared: Shared, names: tuple[str, ...], as_json: bool) -> int:
    held, broken = pins.lock(), pins.broken
    if broken is not None:
        if names:
            raise _Broken(broken.message, broken.hint)
        complain(f"{broken.message}; it is written anew", None)
    if names and not pins.exists:
        raise SourceError(f"{_render.shown_path(pins.path)}: no such file", "`toolcrib lock` writes one")
    servers = crib.server_records()
    telling = [*servers, *(tool for tool in crib.tools if tool.origin.digest)]
    meant = [tool for tool in telling if not names or any(_is_named(crib, tool, name) for name in names)]
    diffs = _Diffs(pins)
    first = _approve_first(crib, pins, meant, diffs, as_json=as_json)
    held = pins.lock()
    if names:
        tools, without = _named(crib, held, names)
    else:
        tools, without = [*crib.tools, *servers], ()
    entries, unlockable = pins.locked_now(tools)
    kept = frozenset[str]()
    if not names:
        present = {tool.key for tool in tools}
        kept = _of_others(crib, pins, shared) if broken is None else kept
        without = tuple(key for key in sorted(held.entries) if key not in present and key not in kept)
    paths = {tool.key: tool.origin.path for tool in tools}
    rows = [
        *(_written(diffs, held.entries.get(entry.key), entry, paths[entry.key]) for entry in entries),
        *(
            {"path": held.entries[key].source, "key": key, "status": "unsigned", "change": "removed",
             "diff": []}
            for key in without
        ),
        *(
            {"path": _render.shown_path(tool.origin.path), "key": tool.key, "status": "drifted",
             "change": "refused", "message": f"{tool.name}: {why}", "diff": []}
            for tool, why in unlockable
        ),
    ]  # fmt: skip
    unsound = _unsound(crib, tools)
    for row in rows:
        if row["change"] not in ("removed", "refused") and (vetted := unsound.get(row["key"])) is not None:
            row |= {"status": vetted.trust.value, "message": vetted.message}
            row["blocked_by"] = _blocked_by(vetted)
    if not as_json:  # before it is approved: what is approved was shown
        _show_written(row for row in rows if row["change"] != "same")
    for row in rows:
        if row["key"] in first:  # also where it is called otherwise now, or cannot be locked any more
            row["diff"] = [*first[row["key"]], *row["diff"]]
            row["change"] = "changed" if row["change"] == "same" else row["change"]
    # Not by what was there to be kept: another command may have locked its own sources since.
    is_whole = not names and (broken is not None or not shared.sources)
    pins.approve(entries, without=without, whole=is_whole)
    approved = [row["key"] for row in rows if row["change"] not in ("same", "refused") or row["key"] in first]
    _record(crib, shared, approved)
    with as_far_as_read(sys.stdout):
        if as_json:
            _render.write_json(rows)
        else:
            bad = [row for row in rows if "blocked_by" in row]
            for row in bad:
                _show({**row, "diff": []})
            if not shared.quiet:
                click.echo(_summary(pins, rows, len(kept)))
                _warn(len(bad), _render.plural(len(rows), "tool"))
    return _REFUSED if unlockable or unsound else 0


def _is_named(crib: Crib, tool: Tool, name: str) -> bool:
    if fnmatchcase(tool.key, name):
        return True
    with suppress(UnknownTool):
        return crib.find(name).key == tool.key
    return False


def _approve_first(
    crib: Crib, pins: Pins, telling: list[Tool], diffs: _Diffs, *, as_json: bool
) -> dict[str, list[str]]:
    """A server that was changed is not even asked for its tools until it was approved, and a program not for
    its schema; then they are. The differences by key."""
    held = pins.lock().entries
    entries, _ = pins.locked_now(telling)
    changed = [entry for entry in entries if entry.key in held and held[entry.key] != entry]
    if not changed or pins.broken is not None:
        return {}
    paths = {tool.key: tool.origin.path for tool in telling}
    rows = [_written(diffs, held[entry.key], entry, paths[entry.key]) for entry in changed]
    _show_written(rows if not as_json else ())
    pins.approve(changed)
    crib.reload(fresh=True)
    return {row["key"]: row["diff"] for row in rows}


def _named(crib: Crib, held: locks.Lock, names: tuple[str, ...]) -> tuple[list[Tool], tuple[str, ...]]:
    """The tools that are meant, and the entries without a tool."""
    tools: dict[str, Tool] = {}
    without: dict[str, None] = {}
    there = {tool.key: tool for tool in (*crib.tools, *crib.server_records())}
    for name in names:
        if "*" in name:
            fitting = [tool for tool in there.values() if is_covered(tool) and fnmatchcase(tool.key, name)]
            gone = [key for key in held.entries if fnmatchcase(key, name)]
        else:
            gone = [key for key, entry in held.entries.items() if name in (key, entry.name)]
            try:
                fitting = [there[name] if name in there else crib.find(name)]
            except UnknownTool:
                if not gone:
                    raise
                fitting = []
        for tool in fitting:
            if not is_covered(tool):
                raise UsageError(f"{tool.key} is not locked: it is the host's own, or cannot be called")
        tools |= {tool.key: tool for tool in fitting}
        without |= dict.fromkeys(key for key in gone if key not in there)
        if not fitting and not gone:
            raise UnknownTool(f"there is no tool {name!r}", "`toolcrib list` shows what there is")
    return [*tools.values()], tuple(without)


def _written(diffs: _Diffs, old: Entry | None, new: Entry, path: str) -> dict[str, Any]:
    drift = locks.drift(old, new) if old is not None else None
    change = "added" if old is None else "same" if old == new else "changed"
    return {
        "path": _render.shown_path(path),
        "key": new.key,
        "status": Trust.PINNED.value,
        "change": change,
        "diff": diffs.lines(drift),
    }


def _show_written(rows: Iterable[dict[str, Any]]) -> None:
    is_shown = False
    with as_far_as_read(sys.stdout):
        for row in rows:
            click.echo(f"{click.style(row['change'], bold=True)} {_render.printable(row['key'])}")
            if row["change"] == "refused":
                click.echo(f"    {_render.printable(row['message'])}")
            _show_lines(row["diff"])
        is_shown = True
    # Attack: a long and harmless change in front of a bad one. Who stops reading there has approved neither.
    if not is_shown:
        raise StoreError(
            "nothing was locked: whoever reads what would be approved stopped before its end",
            "read all of it, or send it to a file",
        )


def _of_others(crib: Crib, pins: Pins, shared: Shared) -> frozenset[str]:
    """What is locked and belongs to sources that this command was not asked about: it named its own."""
    if not shared.sources:
        return frozenset()
    named = tuple(source.path for source in crib.config.sources)
    present = {tool.key for tool in (*crib.tools, *crib.server_records())}
    entries = pins.lock().entries
    return frozenset(
        key
        for key, entry in entries.items()
        if key not in present and not is_below(pins.declaration(entry), named)
    )


def _summary(pins: Pins, rows: list[dict[str, Any]], kept: int) -> str:
    counted = [
        (word, sum(row["change"] == word for row in rows))
        for word in ("added", "changed", "removed", "refused")
    ]
    counted.append(("of other sources kept", kept))
    told = ", ".join(f"{number} {word}" for word, number in counted if number) or "nothing changed"
    total = _render.plural(len(pins.lock().entries), "tool")
    return f"{_render.printable(_render.shown_path(pins.path))}: {total} locked ({told})"


def _record(crib: Crib, shared: Shared, keys: list[str]) -> None:
    """Who approved what, in the journal beside the calls."""
    state = crib.config.state
    if state is None or not keys:
        return
    audit = open_audit(state)
    told: list[Any] = keys[:_RECORDED_MAX]
    body: JsonObject = {"tools": told, "count": len(keys), "caller": shared.environment.user}
    if not audit.note("", "lock", body):
        why, hint = audit.why_not
        complain(f"the lock holds but is not recorded: {why}", hint)
    audit.close()
