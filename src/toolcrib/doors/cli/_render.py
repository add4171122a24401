"""How values look on a terminal and in JSON. Every text from a declaration is escaped before it is shown."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.doors._documents import line_of as line_of
from toolcrib.doors._documents import shown_path as shown_path
from toolcrib.doors._visible import HIDDEN
from toolcrib.doors._visible import printable as printable
from toolcrib.errors import SourceError
from toolcrib.model import Problem, Severity

if TYPE_CHECKING:
    from toolcrib.app import Crib
    from toolcrib.doors.cli import Shared

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


def write_json(value: Any) -> None:
    """One JSON document on stdout, and nothing else."""
    text = jsontext.compact(value).decode("utf-8")
    # As bytes: JSON is UTF-8, whatever the terminal speaks.
    click.echo(re.sub(HIDDEN, _json_escape, text).encode("utf-8"))


def write_file(path: str, value: Any) -> None:
    """A value as readable JSON in a file that the user named."""
    try:
        with open(path, "wb") as file:
            file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise SourceError(f"{path}: {files.reason(error)}", "name a file that can be written") from None


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


# -- problems -----------------------------------------------------------------------------------------------


def place(problem: Problem) -> str:
    """``file:line``, or the path where there is no line."""
    line = line_of(problem)
    return printable(shown_path(problem.path)) + (f":{line}" if line else "")


def write_problems(problems: Iterable[Problem]) -> None:
    """``file:line: severity: message [code]``, and the hint below unless it was just given."""
    given = None
    for problem in problems:
        severity = click.style(problem.severity.value, fg=_COLOURS[problem.severity], bold=True)
        code = click.style(f"[{problem.code}]", dim=True)
        where = click.style(place(problem), bold=True)
        click.echo(f"{where}: {severity}: {printable(problem.message)} {code}")
        if problem.hint and problem.hint != given:
            for line in problem.hint.split("\n"):
                click.echo(f"    {printable(line)}")
        given = problem.hint


def count_problems(severities: Counter[Severity]) -> str:
    """``2 errors, 1 warning``, or nothing."""
    nouns = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note"))
    return ", ".join(plural(severities[severity], noun) for severity, noun in nouns if severities[severity])


def mention_problems(crib: Crib, shared: Shared) -> None:
    """Say on stderr that something is wrong: a tool that is missing here may have been left out for it."""
    counted = count_problems(crib.severities)
    if counted and not shared.quiet:
        click.echo(f"{counted}; `toolcrib check` shows them", err=True)


def no_tools(crib: Crib) -> str:
    """Where tools were looked for in vain, and what to do."""
    if crib.skills:
        skills = plural(len(crib.skills), "skill")
        return f"no tools, but {skills} with instructions: `toolcrib list --skills` shows them"
    named = [source.path for source in crib.config.sources if not os.path.isdir(source.path)]
    if named:
        return f"{printable(shown_path(named[0]))} declares no tools"
    return (
        "no tools found: looked for SKILL.md, tools.json, *_tools.json and .ai/tools here and one folder "
        "below; name a folder of tools (programs that describe themselves: --from executable=PATH), or "
        "start one with `toolcrib init NAME`"
    )


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- tables -------------------------------------------------------------------------------------------------

_GAP: Final = "  "
_LAST_COLUMN_MIN: Final = 20


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for people. Names are never cut; the last column takes what room the terminal leaves, and all
    it wants where the output is no terminal."""
    from rich.cells import cell_len

    table = [columns, *([printable(" ".join(cell.split())) for cell in row] for row in rows)]
    widths = [max(cell_len(row[number]) for row in table) for number in range(len(columns) - 1)]
    room = None
    if sys.stdout.isatty():
        from shutil import get_terminal_size

        room = max(get_terminal_size().columns - sum(widths) - len(_GAP) * len(widths), _LAST_COLUMN_MIN)
    lines = [_line(row, widths, room) for row in table]
    click.echo("\n".join((click.style(lines[0], bold=True), *lines[1:])))


def _line(row: Sequence[str], widths: Sequence[int], room: int | None) -> str:
    from rich.cells import cell_len, set_cell_size

    *first, last = row
    if room is not None and cell_len(last) > room:
        last = set_cell_size(last, room - 1).rstrip() + "…"
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(first, widths, strict=True))
    return _GAP.join((*padded, last)).rstrip()
