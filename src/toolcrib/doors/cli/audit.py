"""``toolcrib audit``: the record of every call. Reads the journal; a running host's as well."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import click

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.doors import _accounts
from toolcrib.doors.cli import (
    Shared,
    _input,
    _progress,
    _render,
    as_far_as_read,
    complain,
    examples,
    shared_options,
)
from toolcrib.errors import SourceError, UsageError
from toolcrib.former import FORMER_NAME
from toolcrib.journal import chain, reading, sealing, usage
from toolcrib.journal.audit import RESULTS
from toolcrib.journal.chain import Anchor, Head
from toolcrib.journal.index import Index
from toolcrib.journal.reading import Entry, Verdict
from toolcrib.runtimes.around import Spill

_BROKEN = 65
_FORMER = 78
_NO_SUCH_CALL = 64
_LOOK_AGAIN_S = 0.2
_PAGE_BYTES = 64 << 10
_READING = "reading the journal"
_CHECKING = "checking the journal"
_INDEXING = "bringing the index up to date"


@click.group(
    "audit",
    epilog=examples(
        "toolcrib audit tail",
        "toolcrib audit verify --anchor anchor.json",
        "toolcrib audit export --since 7d > calls.jsonl",
    ),
)
@shared_options
def command() -> None:
    """Look at the record of every call, and prove that nobody changed it."""


def _state(shared: Shared) -> str:
    state = shared.resolved().state
    if state is None:
        raise UsageError("there is no state folder", "name one with --state")
    return state


def _folder(shared: Shared) -> str:
    """Return the journal's folder, and say on stderr what of it cannot be shown."""
    folder = _accounts.journal_of(_state(shared))
    if not shared.quiet and (older := reading.former_files(folder)):
        what = _render.plural(len(older), "segment")
        complain(f"{what} written under the former name ({FORMER_NAME}): not shown", _former_hint(folder))
    return folder


def _former_hint(folder: str) -> str:
    return f"verify them with that version, then move them out of {folder}"


# -- looking ------------------------------------------------------------------------------------------------


@command.command("tail", epilog=examples("toolcrib audit tail -n 50", "toolcrib audit tail --follow --json"))
@click.option(
    "-n", "count", type=click.IntRange(1, 100_000), default=20, metavar="N", help="How many records."
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (--follow: one per line).")
@shared_options
@click.pass_obj
def tail(shared: Shared, count: int, follow: bool, as_json: bool) -> None:
    """Show the last records. With -v also what the journal notes about itself."""
    folder = _folder(shared)
    known: dict[str, tuple[int, Head | None]] = {}
    with _progress.counting(shared, _READING, is_silent=as_json) as progress:
        if follow:  # where reading stops now is where following begins
            found = (entry for entry in reading.follow(folder, known, progress) if _shown(shared, entry))
            latest = [*deque(found, maxlen=count)]
        else:
            found = (entry for entry in reading.tail(folder, count * 4, progress) if _shown(shared, entry))
            latest = [*found][-count:]
        lost = _accounts.lost_of(folder, latest)
    if as_json and not follow:
        _render.write_json([_accounts.entry_document(entry, lost) for entry in latest])
        return
    if not latest and not follow and not shared.quiet:
        click.echo("no call was recorded yet", err=True)
    _write_entries(latest, lost, as_json)
    while follow:
        time.sleep(_LOOK_AGAIN_S)
        _write_entries(
            (entry for entry in reading.follow(folder, known) if _shown(shared, entry)), set(), as_json
        )


def _shown(shared: Shared, entry: Entry) -> bool:
    return shared.verbose > 0 or entry.what not in reading.OWN


def _write_entries(entries: Iterable[Entry], lost: set[tuple[str, int]], as_json: bool) -> None:
    for entry in entries:
        if as_json:
            _render.write_json(_accounts.entry_document(entry, lost))
            continue
        body = entry.body
        parts = [
            reading.time_text(entry.ts),
            entry.what.ljust(8),
            entry.call,
            str(body.get("key") or body.get("tool") or ""),
            _outcome(body, interrupted=(entry.segment, entry.number) in lost),
        ]
        click.echo(_render.printable("  ".join(part for part in parts if part)))


def _outcome(body: dict[str, Any], *, interrupted: bool) -> str:
    if interrupted:
        return "interrupted"
    if body.get("what") == "end":
        took = f"{body.get('ms', 0):.1f} ms"
        return f"ok {took}" if body.get("ok") else f"{body.get('kind')} {took}: {body.get('error', '')}"
    if body.get("what") in ("answer", "approved"):
        said = [str(body.get("decision") or "used"), str(body.get("approval")), "by", str(body.get("by"))]
        why = body.get("failed") or body.get("because")
        return " ".join(said) + (f": {why}" if why else "")
    run = body.get("run")
    if isinstance(run, dict):
        return f"exit {run.get('exit')}: {' '.join(map(str, run.get('argv', ())))}"
    return ""


@command.command(
    "show",
    epilog=examples(
        "toolcrib audit show 187f3a",
        "toolcrib audit show 187f3a --json",
        "toolcrib audit show 187f3a --output --offset 65536",
    ),
)
@click.argument("call_id")
@click.option(
    "--output", is_flag=True, help="Show the call's result instead, where it was kept: long ones are."
)
@click.option(
    "--offset", type=click.IntRange(0), metavar="N", help="With --output: begin after N bytes (default 0)."
)
@click.option(
    "--limit", type=click.IntRange(1, 64 << 20), metavar="N",
    help="With --output: at most N bytes (default 65536).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def show(
    shared: Shared, call_id: str, output: bool, offset: int | None, limit: int | None, as_json: bool
) -> int:
    """Show all records of one call. CALL_ID may be the start of its id."""
    if not output and (offset is not None or limit is not None):
        raise click.UsageError("--offset and --limit need --output.")
    _input.check_text(call_id, "CALL_ID")
    folder = _folder(shared)
    status = ""
    with (
        _progress.counting(shared, _INDEXING, is_silent=as_json) as progress,
        Index(folder, progress=progress) as index,
    ):
        found = index.of_call(call_id)
        exact = [entry for entry in found if entry.call == call_id]
        entries = exact or found
        ids = {entry.call for entry in entries}
        if call_id and len(ids) == 1 and not output:
            status = _accounts.status_of(index, entries)
    if not call_id or len(ids) != 1:
        several = f"{len(ids)} calls begin so" if ids and call_id else "no such call was recorded"
        complain(f"{call_id!r}: {several}", "`toolcrib audit tail` lists calls with their ids")
        return _NO_SUCH_CALL
    if output:
        return _show_output(shared, entries[0].call, offset or 0, limit or _PAGE_BYTES, as_json=as_json)
    if as_json:
        _render.write_json(
            {
                "call": entries[0].call,
                "status": status,
                "records": [reading.as_json(entry) for entry in entries],
            }
        )
        return 0
    click.echo(f"{_render.printable(entries[0].call)}: {status}")
    for entry in entries:
        click.echo(click.style(f"{reading.time_text(entry.ts)} {_render.printable(entry.what)}", bold=True))
        for name, value in entry.body.items():
            if name not in ("what", "ts", "call") and value not in (None, "", [], {}):
                text = value if isinstance(value, str) else jsontext.compact(value).decode("utf-8")
                click.echo(f"  {_render.printable(f'{name}: {text}')}")
    return 0


def _show_output(shared: Shared, call_id: str, offset: int, limit: int, *, as_json: bool) -> int:
    """A page of a kept result: whole characters, so that the next page goes on where this one ends."""
    try:
        page, size = Spill(os.path.join(_state(shared), RESULTS), 0).page(call_id, offset, limit)
    except OSError:
        complain(
            f"no result of {call_id} is kept", "only results above `limits.result_bytes` are, for a time"
        )
        return _NO_SUCH_CALL
    document = _accounts.result_part(call_id, page, size, offset)
    if as_json:
        _render.write_json(document)
        return 0
    text, end = document["text"], document["next_offset"]
    if sys.stdout.isatty():
        # Attack: output that moves the cursor or hides what is there. Pipes get what the model would get.
        text = "\n".join(_render.printable(line) for line in text.split("\n"))
    click.echo(text, nl=False)
    if end is not None and not shared.quiet:
        click.echo(f"bytes {offset} to {end} of {size}; go on with --offset {end}", err=True)
    return 0


@command.command(
    "export",
    epilog=examples(
        "toolcrib audit export > calls.jsonl",
        "toolcrib audit export --since 2026-01-01 --until 2026-02-01",
        "toolcrib audit export --since 24h --key 'manifest:*'",
    ),
)
@click.option(
    "--since", metavar="D", help="From a day (2026-01-31), a time (…T12:00) or a duration ago (7d)."
)
@click.option("--until", metavar="D", help="Up to a day, a time, or a duration ago.")
@click.option("--key", metavar="K", help="Only calls of the tool with this key; * stands for anything.")
@click.option("--json", "as_json", is_flag=True, help="Changes nothing: it is JSON lines in any case.")
@shared_options
@click.pass_obj
def export(shared: Shared, since: str | None, until: str | None, key: str | None, as_json: bool) -> None:
    """Write records to stdout in their order, a line of JSON each."""
    after = _moment(since) if since is not None else 0.0
    before = _moment(until) if until is not None else float("inf")
    folder = _folder(shared)
    # Lines that come to the same terminal tell enough, and would be torn by one that is wiped.
    is_silent = as_json or sys.stdout.isatty()
    with _progress.counting(shared, "looking for interrupted calls", is_silent=as_json) as progress:
        lost = _accounts.lost_in(folder, after, progress)
    calls: set[str] = set()
    with _progress.counting(shared, "exporting", is_silent=is_silent) as progress:
        for entry in reading.entries(folder, progress):
            if not _shown(shared, entry) or not after <= entry.ts < before:
                continue
            if key is not None:
                if fnmatchcase(str(entry.body.get("key") or ""), key):
                    calls.add(entry.call)
                elif not entry.call or entry.call not in calls:
                    continue
            _render.write_json(_accounts.entry_document(entry, lost))


def _moment(text: str) -> float:
    if text[-1:] in "smhd" and text[:-1].isdigit():
        return time.time() - _input.duration_s(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"a day is written 2026-01-31, a duration 7d (got {text[:60]!r}).") from None
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


# -- proving ------------------------------------------------------------------------------------------------


@command.command(
    "verify",
    epilog=examples("toolcrib audit verify", "toolcrib audit verify --anchor anchor.json --json"),
)
@click.option(
    "--anchor", "anchor_path", metavar="FILE", type=click.Path(), help="Heads that were kept elsewhere."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def verify(shared: Shared, anchor_path: str | None, as_json: bool) -> int:
    """Check every link and signature of the journal. With --anchor also that nothing was cut off its end.

    Exit status: 0 when all is whole, 65 when something was changed, 78 when nothing was, and some segments
    were written under the former name of this program, which only that version can check.
    """
    state = _state(shared)
    anchor = None if anchor_path is None else _read_anchor(anchor_path)
    with _progress.counting(shared, _CHECKING, is_silent=as_json) as progress:
        verdict = _accounts.verdict_of(state, anchor, progress)
    if as_json:
        with as_far_as_read(sys.stdout):
            _render.write_json(_accounts.verdict_document(verdict))
        return _status_of(verdict)
    for flaw in verdict.flaws:
        complain(
            f"{flaw.segment}: record {flaw.number}: {flaw.why}", "keep the journal as it is, and find out"
        )
    with as_far_as_read(sys.stderr):
        for text in verdict.torn:
            click.echo(f"unfinished, as after a crash: {_render.printable(text)}", err=True)
    for name in verdict.former:
        complain(f"{name}: written under the former name ({FORMER_NAME}): not checked")
    if verdict.former:
        complain(
            f"{_render.plural(len(verdict.former), 'segment')} of the former name",
            _former_hint(_accounts.journal_of(state)),
        )
    count = _render.plural(verdict.records, "record")
    with as_far_as_read(sys.stdout):
        if not verdict.flaws:
            signed = f"; {verdict.unsigned} not covered by a checkpoint yet" if verdict.unsigned else ""
            click.echo(f"{'whole as far as checked' if verdict.former else 'whole'}: {count}{signed}")
        else:
            click.echo(f"broken: {count} before the first bad one of each segment")
    return _status_of(verdict)


def _status_of(verdict: Verdict) -> int:
    if verdict.flaws:
        return _BROKEN
    return _FORMER if verdict.former else 0


@command.command(
    "anchor",
    epilog=examples("toolcrib audit anchor anchor.json", "toolcrib audit anchor | ssh vault tee a.json"),
)
@click.argument("file", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Changes nothing: an anchor is JSON.")
@shared_options
@click.pass_obj
def anchor(shared: Shared, file: str | None, as_json: bool) -> int:
    """Write the signed ends of all segments to FILE, or to stdout. Keep it where the journal is not.

    Nothing is signed while the journal is broken (exit status 65).
    """
    state = _state(shared)
    reading.sync(os.path.join(state, "journal"))
    with _progress.counting(shared, _CHECKING, is_silent=as_json) as progress:
        verdict = _accounts.verdict_of(state, progress=progress)
    if verdict.flaws:
        flaw = verdict.flaws[0]
        complain(f"{flaw.segment}: record {flaw.number}: {flaw.why}", "a broken journal is not signed")
        return _BROKEN
    document = sealing.Seal.of(state).anchor(verdict.heads, time.time()).document
    if file is None:
        _render.write_json(document)
    else:
        _render.write_file(file, document)
        if not shared.quiet:
            click.echo(f"{file}: {_render.plural(verdict.records, 'record')} anchored", err=True)
    return 0


def _read_anchor(path: str) -> Anchor:
    content, why = files.read(path)
    if content is None:
        raise SourceError(f"{path}: {why}", "name an anchor that `toolcrib audit anchor` wrote")
    try:
        return chain.read_anchor(jsontext.read(content).value)
    except ValueError as error:
        raise SourceError(f"{path}: {error}", "name a file that `toolcrib audit anchor` wrote") from None


# -- counting -----------------------------------------------------------------------------------------------


@command.command("stats", epilog=examples("toolcrib audit stats", "toolcrib audit stats --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def stats(shared: Shared, as_json: bool) -> None:
    """Show how tools were used in the last 24 hours. Counts the last 1,000 calls, and says which tools are
    slower than they declare."""
    folder, now = _folder(shared), time.time()
    with (
        _progress.counting(shared, _INDEXING, is_silent=as_json) as progress,
        Index(folder, progress=progress) as index,
    ):
        found = usage.usage(index.events(), now)
        interrupted = len(index.interrupted(now - usage.WINDOW_S))
    if as_json:
        _render.write_json(_accounts.usage_document(found, interrupted))
        return
    if not found.calls:
        click.echo("no call ended in the last 24 hours", err=True)
    else:
        rows = (
            (
                use.key,
                str(use.calls),
                str(use.failed),
                f"{use.median_ms:.1f}",
                f"{use.slowest_ms:.1f}",
                f"declared {use.latency}, regularly slower" if use.too_slow else use.latency or "",
            )
            for use in found.tools
        )
        _render.write_table(("TOOL", "CALLS", "FAILED", "MEDIAN MS", "SLOWEST MS", "LATENCY"), rows)
    for currency, amount in found.cost.items():
        click.echo(f"estimated cost: {amount:.4f} {_render.printable(currency)}".rstrip())
    if interrupted:
        click.echo(
            f"{_render.plural(interrupted, 'call')} interrupted: the host died before the end", err=True
        )
