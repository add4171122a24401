"""``toolwright show``: one whole record, or what a call would run."""

from __future__ import annotations

import os

import click
import orjson

from toolwright import jsontext
from toolwright.calls import commands
from toolwright.doors.cli import Shared, _render, complain, shared_options
from toolwright.errors import KINDS, SourceError
from toolwright.catalog import files
from toolwright.model import Tool, ToolError


@click.command(
    "show",
    epilog="Examples:  toolwright show get_time  ·  toolwright show skill:git/git_log --argv '{\"count\": 3}'",
)
@click.argument("name")
@click.option("--argv", "arguments", metavar="ARGS", help="Print what would run for these arguments (JSON, - or @FILE).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, name: str, arguments: str | None, as_json: bool) -> int:
    """Show the tool NAME (a key or a bare name) whole; with --argv, what a call would run. Nothing is run."""
    tool = shared.workshop().find(name)
    if arguments is not None:
        return _show_argv(tool, _arguments_text(arguments), as_json)
    record = _render.tool_record(tool)
    if as_json:
        _render.write_json(record)
        return 0
    for key in ("name", "key", "format", "description", "version", "effect", "path", "line"):
        if record[key] not in (None, ""):
            click.echo(f"{click.style(key, bold=True):<12} {_render.printable(str(record[key]))}")
    for key in ("input_schema", "output_schema", "invocation", "intake", "needs", "selection", "retry", "chain", "notes"):
        if record[key]:
            text = orjson.dumps(record[key], option=orjson.OPT_INDENT_2).decode("utf-8")
            click.echo(f"{click.style(key, bold=True)}\n{_render.printable(text)}")
    return 0


def _show_argv(tool: Tool, raw: str, as_json: bool) -> int:
    parsed = jsontext.read(raw.encode("utf-8", "surrogateescape")) if raw.strip() else jsontext.Parsed({})
    arguments = parsed.value
    if parsed.defect is not None or parsed.duplicates or not isinstance(arguments, dict):
        why = str(parsed.defect or (f"duplicate key {parsed.duplicates[0].key!r}" if parsed.duplicates else ""))
        complain(f"ARGS must be a JSON object{': ' + why if why else ''}", 'for example --argv \'{"name": "value"}\'')
        return 65
    found = commands.command(tool, arguments, raw, cwd=os.getcwd())
    if isinstance(found, ToolError):
        complain(found.message, found.hint)
        return KINDS[found.kind].exit_code
    record = {
        "argv": list(found.argv),
        "stdin": None if found.stdin is None else found.stdin.decode("utf-8", "replace"),
        "env": list(found.env_names),
        "cwd": found.cwd,
        "calls": found.calls,
        "notes": list(found.notes),
    }
    if as_json:
        _render.write_json(record)
        return 0
    for key, value in record.items():
        click.echo(f"{click.style(key, bold=True):<8} {_render.printable(jsontext.compact(value).decode('utf-8'))}")
    return 0


def _arguments_text(text: str) -> str:
    if text == "-":
        return click.get_text_stream("stdin").read(files.DOCUMENT_BYTES_MAX)
    if text.startswith("@"):
        content, why = files.read(text[1:])
        if content is None:
            raise SourceError(f"{text[1:]}: {why}", "name a file that holds a JSON object")
        return content.decode("utf-8", "surrogateescape")
    return text
