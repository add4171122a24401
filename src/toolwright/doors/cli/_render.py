"""How values look on a terminal and in JSON. Every text from a declaration is escaped before it is shown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import click

from toolwright import jsontext
from toolwright.model import Problem, Schema, Severity, Tool

if TYPE_CHECKING:
    from rich.console import Console

# Attack: a description that moves the cursor, recolours the terminal or reverses the reading direction to
# show something other than what is there.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


def printable(text: str) -> str:
    """The text with characters that a terminal would act on, or hide, written as escapes."""
    return _HIDDEN.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def write_json(value: Any) -> None:
    """One JSON document on stdout, and nothing else."""
    text = jsontext.compact(value).decode("utf-8")
    click.echo(_HIDDEN.sub(_json_escape, text))


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def shown_path(path: str) -> str:
    """Relative to the current folder where below it, else absolute."""
    here = os.getcwd()
    return os.path.relpath(path, here) if path == here or path.startswith(here.rstrip("/") + "/") else path


# -- problems -----------------------------------------------------------------------------------------------


def problem_record(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "severity": problem.severity.value,
        "path": shown_path(problem.path),
        "pointer": None if problem.pointer is None else jsontext.pointer_text(problem.pointer),
        "line": problem.line,
        "message": problem.message,
        "hint": problem.hint,
    }


def write_problems(problems: Iterable[Problem]) -> None:
    """``file:line: severity: message [code]``, with the hint below."""
    for problem in problems:
        where = shown_path(problem.path) + (f":{problem.line}" if problem.line else "")
        severity = click.style(problem.severity.value, fg=_COLOURS[problem.severity], bold=True)
        code = click.style(f"[{problem.code}]", dim=True)
        click.echo(f"{click.style(printable(where), bold=True)}: {severity}: {printable(problem.message)} {code}")
        if problem.hint:
            click.echo(f"    {printable(problem.hint)}")


def count_problems(problems: Sequence[Problem]) -> str:
    """``2 errors, 1 warning``, or nothing."""
    parts = []
    for severity, noun in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note")):
        number = sum(problem.severity is severity for problem in problems)
        if number:
            parts.append(plural(number, noun))
    return ", ".join(parts)


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- tools --------------------------------------------------------------------------------------------------


def tool_row(tool: Tool) -> dict[str, Any]:
    """One line of ``list --json``."""
    return {
        "name": tool.name,
        "key": tool.key,
        "format": tool.origin.format,
        "description": tool.description,
        "version": tool.version,
        "effect": tool.effect.value,
        "trust": None,
        "path": shown_path(tool.origin.path),
        "pointer": None if tool.origin.pointer is None else jsontext.pointer_text(tool.origin.pointer),
        "role": tool.role.value,
        "deprecated": tool.notes.deprecated,
    }


def tool_record(tool: Tool) -> dict[str, Any]:
    """The whole record."""
    row = tool_row(tool)
    row["line"] = tool.origin.line
    for name in (
        "scope", "spoken", "aliases", "input_schema", "output_schema", "schema_form", "invocation", "intake",
        "reply", "needs", "selection", "retry", "chain", "notes",
    ):  # fmt: skip
        row[name] = plain(getattr(tool, name))
    row["spoken"] = tool.spoken or tool.name
    return row


def plain(value: Any) -> Any:
    """A frozen value as JSON; variants of one idea carry their name as ``kind``."""
    if isinstance(value, Schema):
        return value.document
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return jsontext.loads_own(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "kind": _snake(type(value).__name__),
            **{member.name: plain(getattr(value, member.name)) for member in fields(value)},
        }
    if isinstance(value, (tuple, list, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def console() -> Console:
    """A terminal as wide as it is; a pipe gets whole lines without colours."""
    from rich.console import Console

    return Console(
        soft_wrap=not sys.stdout.isatty(),
        width=None if sys.stdout.isatty() else 200,
        highlight=False,
        emoji=False,
        markup=False,
    )


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for people; the last column takes what room there is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(column, overflow="ellipsis" if last else "fold", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console().print(table)
