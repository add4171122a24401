"""``toolcrib show``: one whole record, or what a call would run."""

from __future__ import annotations

import json
import os

import click

from toolcrib import jsontext
from toolcrib.calls import commands
from toolcrib.calls.arguments import checked
from toolcrib.doors._documents import tool_record
from toolcrib.doors.cli import Shared, _input, _render, complain, examples, shared_options
from toolcrib.errors import KINDS, Kind, UnknownTool
from toolcrib.model import Tool, ToolError

_LABEL_CHARS = 12
_FACTS = (
    "name",
    "key",
    "format",
    "role",
    "version",
    "effect",
    "effect_from",
    "trust",
    "blocked_by",
    "path",
    "pointer",
    "line",
    "description",
)
_PARTS = (
    "input_schema", "output_schema", "invocation", "intake", "reply", "needs", "selection", "retry", "chain",
    "notes",
)  # fmt: skip


@click.command(
    "show",
    epilog=examples(
        "toolcrib show get_time",
        "toolcrib show get_time --json",
        'toolcrib show get_time --argv \'{"timezone": "UTC"}\'',
        "toolcrib show skill:git/git_log --argv @arguments.json",
    ),
)
@click.argument("name")
@click.option(
    "--argv", "arguments", metavar="ARGS",
    help="Print what would run for these arguments: a JSON object, - for stdin, or @FILE.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, name: str, arguments: str | None, as_json: bool) -> int:
    """Show the tool NAME (a key or a bare name) whole; with --argv, what a call would run. Nothing is run."""
    crib = shared.crib(only=name)
    try:
        tool = crib.find(name)
    except UnknownTool:
        _render.mention_problems(crib, shared)
        raise
    if arguments is not None:
        return _show_argv(tool, _input.arguments_text(arguments), as_json)
    vetted = crib.vet(tool)
    record = {**tool_record(tool), "trust": vetted.trust.value, "blocked_by": vetted.blocked_by or None}
    if as_json:
        _render.write_json(record)
        return 0
    for key in _FACTS:
        if record[key] not in (None, ""):
            _write_fact(key, str(record[key]))
    for key in _PARTS:
        if record[key]:
            click.echo(click.style(key, bold=True))
            for line in json.dumps(record[key], indent=2, ensure_ascii=False).split("\n"):
                click.echo(f"  {_render.printable(line)}")
    return 0


def _write_fact(label: str, text: str) -> None:
    """A label and its text; further lines stand below the first, so that none of them passes for a label."""
    first, *rest = text.split("\n")
    click.echo(f"{click.style(label.ljust(_LABEL_CHARS), bold=True)} {_render.printable(first)}")
    for line in rest:
        click.echo(f"{' ' * _LABEL_CHARS} {_render.printable(line)}")


def _show_argv(tool: Tool, raw: bytes, as_json: bool) -> int:
    parsed = jsontext.read(raw) if raw.strip() else jsontext.Parsed({})
    arguments = parsed.value
    if parsed.defect is not None or parsed.duplicates or not isinstance(arguments, dict):
        why = str(parsed.defect or "")
        if parsed.duplicates:
            why = f"the key {parsed.duplicates[0].key!r} stands there twice"
        complain(
            f"ARGS must be a JSON object{why and ': ' + why}", 'for example --argv \'{"name": "value"}\''
        )
        return KINDS[Kind.INVALID_ARGUMENTS].exit_code
    fitting = checked(tool, arguments, raw.decode("utf-8"))
    found = (
        fitting
        if isinstance(fitting, ToolError)
        else commands.command(tool, fitting.arguments, fitting.raw, cwd=os.getcwd())
    )
    if isinstance(found, ToolError):
        complain(found.message, found.hint or f"`toolcrib show {tool.key}` shows what it takes")
        return KINDS[found.kind].exit_code
    record = {
        "argv": list(found.argv),
        "stdin": None if found.stdin is None else found.stdin.decode("utf-8", "replace"),
        "env": list(found.env_names),
        "cwd": os.fsencode(found.cwd).decode("utf-8", "backslashreplace"),
        "calls": found.calls,
        "notes": [*(() if isinstance(fitting, ToolError) else fitting.notes), *found.notes],
    }
    if as_json:
        _render.write_json(record)
        return 0
    for key, value in record.items():
        if value:
            _write_fact(key, value if isinstance(value, str) else jsontext.compact(value).decode("utf-8"))
    return 0
