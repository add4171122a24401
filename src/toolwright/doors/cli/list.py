"""``toolwright list``: the catalog."""

from __future__ import annotations

import click

from toolwright.config import FORMATS
from toolwright.doors.cli import Shared, _render, shared_options
from toolwright.model import Effect, Role

_TRUST = ("signed", "pinned", "unsigned", "untrusted", "tampered", "drifted")


@click.command(
    "list",
    epilog="Examples:  toolwright list  ·  toolwright list --format rye --effect read  ·  toolwright list --json",
)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Only tools of this format.")
@click.option("--effect", type=click.Choice([effect.value for effect in Effect]), help="Only tools of this effect.")
@click.option("--trust", type=click.Choice(_TRUST), help="Only tools of this trust.")
@click.option("--search", "query", metavar="QUERY", help="Rye items by rye's own query (AND, OR, NOT, \"phrase\", *).")
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
    only_skills: bool,
    as_json: bool,
) -> None:
    """List the tools there are; problems are counted on stderr."""
    workshop = shared.workshop()
    if only_skills:
        skills = [
            {"name": skill.name, "description": skill.description, "path": _render.shown_path(skill.path)}
            for skill in workshop.skills
        ]
        if as_json:
            _render.write_json(skills)
        else:
            _render.write_table(("SKILL", "PATH", "DESCRIPTION"), ((s["name"], s["path"], s["description"]) for s in skills))
        return
    if query is not None:
        tools = [workshop.find(choice.key) for choice in workshop.search(query)]
    else:
        tools = list(workshop.tools)
    tools = [
        tool
        for tool in tools
        if (format_ is None or tool.origin.format == format_) and (effect is None or tool.effect == effect)
    ]
    if trust is not None:
        click.echo("signatures are not verified by this version, so no tool has a trust yet", err=True)
        tools = []
    if as_json:
        _render.write_json([_render.tool_row(tool) for tool in tools])
    elif tools:
        _render.write_table(
            ("NAME", "FORMAT", "EFFECT", "DESCRIPTION"),
            (
                (
                    tool.name,
                    tool.origin.format,
                    tool.effect.value if tool.role is Role.TOOL else f"({tool.role.value})",
                    ("deprecated: " if tool.notes.deprecated else "") + tool.description,
                )
                for tool in tools
            ),
        )
    elif not shared.quiet:
        click.echo("no tools", err=True)
    counted = _render.count_problems(workshop.problems)
    if counted and not shared.quiet:
        click.echo(f"{counted}; `toolwright check` shows them", err=True)
