"""``toolwright check``: load and lint everything, all problems at once."""

from __future__ import annotations

import sys
import time

import click

from toolwright import app
from toolwright.catalog import mending
from toolwright.doors.cli import Shared, _render, _sarif, shared_options
from toolwright.model import Role, Severity

_LOOK_AGAIN_S = 0.5


@click.command(
    "check",
    epilog="Examples:  toolwright check  ·  toolwright check skills/ --strict  ·  toolwright check --sarif out.sarif",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@click.option("--fix", is_flag=True, help="Mend what has exactly one safe mend, then check again.")
@click.option("--watch", is_flag=True, help="Check again whenever a file changes, until interrupted.")
@click.option("--sarif", metavar="FILE", help="Also write the problems as SARIF 2.1.0.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared, paths: tuple[str, ...], strict: bool, fix: bool, watch: bool, sarif: str | None, as_json: bool
) -> int:
    """Load and lint everything at PATH (default: the sources), and show all problems at once.

    Exit status: 0 when nothing is wrong, 65 when something is (with --strict also for warnings).
    """
    workshop = shared.workshop(paths)
    fixed = mending.mend(workshop.problems) if fix else 0
    if fixed:
        workshop.reload()
    status = _report(workshop, shared, strict=strict, sarif=sarif, as_json=as_json, fixed=fixed if fix else None)
    while watch:
        if not shared.quiet:
            click.echo("watching; press Ctrl-C to stop", err=True)
        _wait_for_change(workshop)
        status = _report(workshop, shared, strict=strict, sarif=sarif, as_json=as_json, fixed=None)
    return status


def _wait_for_change(workshop: app.Workshop) -> None:
    before = workshop.stamp
    while workshop.stamp == before:
        time.sleep(_LOOK_AGAIN_S)
        workshop.reload()


def _report(
    workshop: app.Workshop, shared: Shared, *, strict: bool, sarif: str | None, as_json: bool, fixed: int | None
) -> int:
    problems = workshop.problems
    if sarif is not None:
        _sarif.write(sarif, problems)
    records = list(workshop.tools)
    support = sum(record.role is Role.SUPPORT for record in records)
    if as_json:
        document = {
            "tools": len(records) - support,
            "support": support,
            "skills": len(workshop.skills),
            "problems": [_render.problem_record(problem) for problem in problems],
        }
        if fixed is not None:
            document["fixed"] = fixed
        _render.write_json(document)
    else:
        loud = [problem for problem in problems if shared.verbose or problem.severity is not Severity.INFO]
        _render.write_problems(loud)
        if shared.verbose:
            for note in workshop.notes:
                click.echo(_render.printable(note))
        if not shared.quiet:
            click.echo(_summary(workshop, len(records) - support, support, fixed))
    sys.stdout.flush()
    worst = {problem.severity for problem in problems}
    failed = Severity.ERROR in worst or (strict and Severity.WARNING in worst)
    return 65 if failed else 0


def _summary(workshop: app.Workshop, tools: int, support: int, fixed: int | None) -> str:
    parts = [_render.plural(tools, "tool")]
    if support:
        parts.append(_render.plural(support, "support item"))
    if workshop.skills:
        parts.append(_render.plural(len(workshop.skills), "skill"))
    text = ", ".join(parts) + ": " + (_render.count_problems(workshop.problems) or "no problems")
    if fixed is not None:
        text += f"; fixed {_render.plural(fixed, 'problem')}"
    if not tools and not workshop.problems and not workshop.skills:
        text = (
            "no tools found. Looked for SKILL.md, tools.json, *_tools.json and .ai/tools here and one folder "
            "below; name a folder of tools, or start one with `toolwright init NAME`"
        )
    return text
