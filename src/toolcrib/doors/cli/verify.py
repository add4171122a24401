"""``toolcrib verify``: what is known about the bytes of every tool."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.app import Crib
from toolcrib.catalog import files
from toolcrib.doors.cli import Shared, _render, _signed, _spaces, as_far_as_read, examples, shared_options
from toolcrib.errors import SourceError
from toolcrib.model import Trust, Vetted
from toolcrib.paths import is_below
from toolcrib.trust import items, placing, signing, vetting
from toolcrib.trust.keys import Keyring
from toolcrib.trust.seen import Memory, SignedFile

_UNVERIFIED = 77
_HINTS = {True: "take the link away", False: "make it readable"}
_COLOURS = {Trust.SIGNED: "green", Trust.PINNED: "green", Trust.UNSIGNED: "yellow"}


class _Row(Struct, frozen=True, kw_only=True):
    path: str
    vetted: Vetted
    name: str
    """The tool's key, or the item's reference."""
    warnings: tuple[str, ...] = ()
    verified: tuple[SignedFile, ...] = ()
    """The files that were verified for it."""


@click.command(
    "verify",
    epilog=examples(
        "toolcrib verify",
        "toolcrib verify --json",
        "toolcrib verify .ai/tools/text/outline-markdown.py",
    ),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, paths: tuple[str, ...], as_json: bool) -> int:
    """Say of every tool at PATH (default: of all sources) whether its bytes are those that somebody signed.

    A PATH that is a signed file is verified as it is. Nothing is run. Exit status: 0, or 77 when something
    does not verify; a tool of a format without signatures does where no lock file says otherwise.
    """
    single = [path for path in paths if _is_item(path)]
    rows = [_of_file(shared, path) for path in single]
    others = [path for path in paths if path not in single]
    if others or not paths:
        crib = shared.crib(others)
        rows += _of_crib(shared, crib)
        _signed.remember(shared, [file for row in rows for file in row.verified])
        if not shared.quiet:
            rings = _spaces.keyrings(shared, crib.rye_projects)
            with as_far_as_read(sys.stderr):
                for problem in (problem for keyring in rings for problem in keyring.now().problems()):
                    where = _render.printable(_render.shown_path(problem.path))
                    click.echo(f"{where}: {_render.printable(problem.message)}", err=True)
    with as_far_as_read(sys.stdout):
        if as_json:
            _render.write_json([_record(row) for row in rows])
        else:
            _write(rows)
    return _UNVERIFIED if any(row.vetted.message for row in rows) else 0


# -- what is verified ---------------------------------------------------------------------------------------


def _of_crib(shared: Shared, crib: Crib) -> Iterator[_Row]:
    """Every file of rye's spaces, then the tools of the formats that have no signatures."""
    tools = {tool.origin.path: tool for tool in crib.tools if tool.signature is not None}
    warnings = _warnings(crib)
    known = _signed.memory(shared)
    seen: set[str] = set()
    for space in _spaces.spaces(shared, crib):
        if space.location is not items.Location.PROJECT and not crib.rye_projects:
            continue  # no source has anything to do with rye
        keyring = _spaces.keyring(shared, space.root if space.location is items.Location.PROJECT else None)
        for item in items.every(space):
            if item.path not in seen:
                seen.add(item.path)
                tool = tools.get(item.path)
                if tool is None:  # a library, or a file that is wrong
                    row = _of_item(item, keyring, known)
                else:
                    vetted = crib.vet(tool)
                    verified = crib.gate.signed_files(tool) if vetted.trust is Trust.SIGNED else ()
                    row = _Row(path=item.path, vetted=vetted, name=tool.key, verified=verified)
                is_signed = row.vetted.trust is not Trust.UNSIGNED
                yield replace(row, warnings=warnings.get(item.path, ())) if is_signed else row
    for tool in crib.tools:
        if tool.origin.path not in seen:
            yield _Row(path=tool.origin.path, vetted=crib.vet(tool), name=tool.key)


def _warnings(crib: Crib) -> dict[str, tuple[str, ...]]:
    """What says that a file is not in its own place, by path."""
    found: dict[str, tuple[str, ...]] = {}
    for problem in (*crib.problems, *crib.signature_problems()):
        if problem.code in placing.PLACE_CODES:
            found[problem.path] = (*found.get(problem.path, ()), problem.message)
    return found


def _of_item(item: items.Item, keyring: Keyring, known: Memory | None) -> _Row:
    # Attack: a link in a clone that makes whoever looks at it read a file of his own. Such a file is no item:
    # nothing loads it, and `sign` refuses it in the same words.
    escapes = not is_below(os.path.realpath(item.path), (os.path.realpath(item.root),))
    content, why = (None, "Symlink escape: it leads out of its space") if escapes else files.read(item.path)
    if content is None:
        vetted = Vetted(trust=Trust.TAMPERED, message=f"{item.path}: {why}", hint=_HINTS[escapes])
        return _Row(path=item.path, vetted=vetted, name=item.ref)
    vetted = vetting.check(content, path=item.path, suffix=item.suffix, item=item.ref, keys=keyring.now())
    vetted = _signed.unless_older(known, item.path, content, vetted)
    file = vetting.signed_file(content, item.path) if vetted.trust is Trust.SIGNED else None
    return _Row(path=item.path, vetted=vetted, name=item.ref, verified=(file,) if file is not None else ())


def _is_item(path: str) -> bool:
    """Whether a path is a file that carries a signature, or lies where one is expected."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path}: {files.reason(error)}", "name a file or folder that exists") from None
    suffix = os.path.splitext(path)[1]
    if not stat.S_ISREG(status.st_mode) or suffix not in signing.SUFFIXES:
        return False
    if _spaces.project_of(path) is not None:
        return True
    content, _ = files.read(path)
    text = content.decode("utf-8", "replace") if content is not None else ""
    return signing.is_later(text) or signing.read_line(text, suffix) is not None


def _of_file(shared: Shared, path: str) -> _Row:
    content, why = files.read(path)
    if content is None:
        raise SourceError(f"{path}: {why}", "name a file that can be read")
    stem, suffix = os.path.splitext(os.path.abspath(path))
    project = _spaces.project_of(path)
    kind, below = "knowledge" if suffix in signing.DOCUMENTS else "tool", os.path.basename(stem)
    if project is not None:
        folder, _, inner = os.path.relpath(stem, os.path.join(project, ".ai")).partition("/")
        kind, below = {"tools": "tool", "config": "config"}.get(folder, kind), inner or below
    user = os.path.realpath(shared.environment.user_space)
    own = project is None or os.path.realpath(project) == user
    vetted = vetting.check(
        content,
        path=path,
        suffix=suffix,
        item=f"{kind}:{below}",
        keys=_spaces.keyring(shared, None if own else project).now(),
    )
    place = os.path.abspath(path)
    vetted = _signed.unless_older(_signed.memory(shared), place, content, vetted)
    warnings: tuple[str, ...] = ()
    if project is not None and kind == "tool" and vetted.trust is not Trust.UNSIGNED:
        warnings = _warnings(shared.crib([os.path.join(project, ".ai", "tools")])).get(place, ())
    return _Row(path=place, vetted=vetted, name=f"{kind}:{below}", warnings=warnings)


# -- the answer ---------------------------------------------------------------------------------------------


def _record(row: _Row) -> dict[str, Any]:
    return {
        "path": _render.shown_path(row.path),
        "status": row.vetted.trust.value,
        "name": row.name,
        "signer": row.vetted.signer or None,
        "blocked_by": _render.shown_path(row.vetted.blocked_by) if row.vetted.blocked_by else None,
        "message": row.vetted.message or None,
        "hint": row.vetted.hint,
        "warnings": list(row.warnings),
    }


def _write(rows: Iterable[_Row]) -> None:
    for row in rows:
        trust = row.vetted.trust
        status = click.style(trust.value.ljust(9), fg=_COLOURS.get(trust, "red"))
        where = _render.printable(_render.shown_path(row.path))
        # A file may declare many tools: the name tells which of them is meant.
        parts = (f"{status} {_render.printable(row.name)}", where, row.vetted.signer)
        click.echo("  ".join(part for part in parts if part))
        if row.vetted.blocked_by:
            what = _render.shown_path(row.vetted.blocked_by)
            click.echo(f"    it needs {_render.printable(what)}, which does not verify:")
        for line in row.vetted.message.split("\n") if row.vetted.message else ():
            click.echo(f"    {_render.printable(line)}")
        for warning in row.warnings:
            click.echo(f"    {click.style('warning', fg='yellow')}: {_render.printable(warning)}")
