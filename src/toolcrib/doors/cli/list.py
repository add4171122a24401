"""``toolcrib list``: the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from toolcrib.app import Crib
from toolcrib.doors._documents import effect_source, tool_row
from toolcrib.doors.cli import Shared, _input, _render, examples, shared_options
from toolcrib.errors import UsageError
from toolcrib.model import FILE_FORMATS, Role, Tool, Trust

FOUND_MAX = 10
_TRUST = tuple(trust.value for trust in Trust)


@click.command(
    "list",
    epilog=examples(
        "toolcrib list",
        "toolcrib list --format rye --effect read",
        "toolcrib list --skills --json",
        'toolcrib list --search "deploy AND NOT docker"',
    ),
)
@click.option("--format", "format_", type=click.Choice(FILE_FORMATS), help="Only tools of this format.")
@click.option(
    "--effect", type=_input.EffectName(),
    help="Only tools with this effect, each with who or what says so.",
)  # fmt: skip
@click.option("--trust", type=click.Choice(_TRUST), help="Only tools with this trust.")
@click.option(
    "--search", "query", metavar="QUERY",
    help='The ten best tools for a query (AND, OR, NOT, "a phrase", *).',
)  # fmt: skip
@click.option(
    "--fresh", is_flag=True, help="Ask MCP servers for their tools again, and fetch documents again."
)
@click.option("--skills", "only_skills", is_flag=True, help="The skills instead of the tools.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared,
    format_: str | None,
    effect: str | None,
    trust: str | None,
    query: str | None,
    fresh: bool,
    only_skills: bool,
    as_json: bool,
) -> None:
    """List the tools there are; problems are counted on stderr."""
    if query is not None and not query.strip():
        raise UsageError("--search: the query is empty", "leave --search out to list all tools")
    crib = shared.crib()
    if fresh:
        crib.reload(fresh=True)
    if only_skills:
        _write_skills(crib, as_json)
    else:
        found: Sequence[Tool] = crib.tools
        if query is not None:
            hits = crib.search(query, limit=len(crib.tools))
            found = [crib.find(hit.key) for hit in hits]
        wanted = [
            tool
            for tool in found
            if format_ in (None, tool.origin.format) and effect in (None, tool.effect.value)
        ]
        vetted = [(tool, crib.vet(tool).trust.value) for tool in wanted]
        names = Counter(tool.name for tool in crib.tools)
        shown = [pair for pair in vetted if trust in (None, pair[1])]
        if query is not None:
            shown = shown[:FOUND_MAX]
        if shown or as_json:
            _write_tools(shown, names, as_json, with_source=effect is not None)
        elif crib.tools or shared.quiet or (crib.problems and not crib.skills):
            click.echo("no tools", err=True)
        else:
            click.echo(_render.no_tools(crib), err=True)
    _render.mention_problems(crib, shared)


def _write_tools(
    tools: list[tuple[Tool, str]], names: Counter[str], as_json: bool, *, with_source: bool
) -> None:
    if as_json:
        _render.write_json([{**tool_row(tool), "trust": trust} for tool, trust in tools])
        return
    head = ["NAME", "FORMAT", "EFFECT", "TRUST", "DESCRIPTION"]
    rows = [_cells(tool, trust, is_shared=names[tool.name] > 1) for tool, trust in tools]
    if with_source:
        head[3:3] = ["EFFECT FROM"]
        for (tool, _), cells in zip(tools, rows, strict=True):
            cells[3:3] = [effect_source(tool)]
    _render.write_table(head, rows)


def _cells(tool: Tool, trust: str, *, is_shared: bool) -> list[str]:
    """A name that several tools have is no way to call one of them: then its key stands there."""
    effect = tool.effect.value if tool.role is Role.TOOL else f"({tool.role.value})"
    description = ("deprecated: " if tool.notes.deprecated else "") + tool.description
    return [tool.key if is_shared else tool.name, tool.origin.format, effect, trust, description]


def _write_skills(crib: Crib, as_json: bool) -> None:
    skills = [
        {"name": skill.name, "description": skill.description, "path": _render.shown_path(skill.path)}
        for skill in crib.skills
    ]
    if as_json:
        _render.write_json(skills)
    elif skills:
        rows = ((skill["name"], skill["path"], skill["description"]) for skill in skills)
        _render.write_table(("SKILL", "PATH", "DESCRIPTION"), rows)
    else:
        click.echo("no skills", err=True)
