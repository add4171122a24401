"""``toolcrib check``: load and lint everything, all problems at once."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import nullcontext, redirect_stdout, suppress
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from toolcrib import jsontext
from toolcrib.app import Crib
from toolcrib.catalog import mending
from toolcrib.config import current_folder
from toolcrib.doors import _reach
from toolcrib.doors._documents import problem_record
from toolcrib.doors.cli import Shared, _render, _sarif, as_far_as_read, complain, examples, shared_options
from toolcrib.errors import SourceError, UsageError
from toolcrib.model import Effect, NotCallable, Problem, Role, Severity, Tool

if TYPE_CHECKING:
    from toolcrib.formats.capability import Migration

_FAILED = 65
_LOOK_AGAIN_S = 0.5
_PROPOSED_MAX = 12
_ALIKE_MAX = 8
"""Of what is merely suspicious so many of a kind are shown; the rest is counted."""

_ROUNDS_MAX: Final = 20


@click.command(
    "check",
    epilog=examples(
        "toolcrib check",
        "toolcrib check skills/ --strict",
        "toolcrib check --fix tools.json",
        "toolcrib check --sarif problems.sarif",
        "toolcrib check --from executable=bin --json",
        "toolcrib check groups/ --code app.tools:TOOLS",
    ),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--strict", is_flag=True, help="Let warnings fail the check too.")
@click.option("--fix", is_flag=True, help="Mend what has exactly one safe mend, then check again.")
@click.option("--watch", is_flag=True, help="Check again whenever a declaration changes, until interrupted.")
@click.option("--sarif", metavar="FILE", type=click.Path(), help="Also write the problems as SARIF 2.1.0.")
@click.option(
    "--code",
    metavar="MODULE[:NAME]",
    multiple=True,
    help="Compare with tools still declared in Python, which is imported.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (--watch: one per line).")
@shared_options
@click.pass_obj
def command(
    shared: Shared,
    paths: tuple[str, ...],
    strict: bool,
    fix: bool,
    watch: bool,
    sarif: str | None,
    code: tuple[str, ...],
    as_json: bool,
) -> int:
    """Load and lint everything at PATH (default: the sources), and show all problems at once.

    Exit status: 0 when nothing is wrong, 65 when there is an error (with --strict: or a warning).
    """
    crib = shared.crib(paths, fallback=[thing for text in code for thing in _in_code(text)])
    fixed = _mend(crib, shared, as_json) if fix else None
    status = _report(crib, shared, strict=strict, sarif=sarif, watch=watch, as_json=as_json, fixed=fixed)
    while watch:
        if not shared.quiet:
            click.echo("watching; press Ctrl-C to stop", err=True)
        _wait_for_change(crib)
        status = _report(crib, shared, strict=strict, sarif=sarif, watch=watch, as_json=as_json)
    return status


def _in_code(text: str) -> list[object]:
    """The tools that a module of the user's own declares; only one that was named on the command line."""
    module, _, name = text.partition(":")
    folder = current_folder()
    if folder not in sys.path:
        # Attack: a clone's json.py. At the end, the folder shadows nothing.
        sys.path.append(folder)
    try:
        with redirect_stdout(sys.stderr):  # what the module prints is no part of our document
            thing: object = import_module(module)
            if name:
                thing = getattr(thing, name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs whatever the module does
        what = f"--code {text}: {type(error).__name__}: {error}"
        raise UsageError(what[:500], "name a module that can be imported here, and a name in it") from None
    return [*thing] if isinstance(thing, (list, tuple)) else [thing]


def _mend(crib: Crib, shared: Shared, as_json: bool) -> int:
    """Mend until nothing changes any more: of two mends of one place the second one waits for the first."""
    fixed = 0
    unwritable: dict[str, str] = {}
    for _ in range(_ROUNDS_MAX):
        mended = mending.mend(crib.problems, [source.path for source in crib.config.sources])
        unwritable |= mended.unwritable
        if not mended.problems:
            break
        fixed += len(mended.problems)
        crib.reload()
        if not as_json and not shared.quiet:
            for problem in mended.problems:
                click.echo(f"fixed {_render.place(problem)}: {_render.printable(problem.message)}")
    for path, why in unwritable.items():
        complain(f"{_render.shown_path(path)}: cannot be mended: {why}", "make it and its folder writable")
    return fixed


def _wait_for_change(crib: Crib) -> None:
    """Look until something differs; a path that is gone for a moment, as editors do it, is waited for."""
    while True:
        time.sleep(_LOOK_AGAIN_S)
        with suppress(SourceError):
            if crib.changed():
                crib.reload()
                return


def _report(
    crib: Crib,
    shared: Shared,
    *,
    strict: bool,
    sarif: str | None,
    watch: bool,
    as_json: bool,
    fixed: int | None = None,
) -> int:
    unstated = _unstated(crib)
    problems = _reach.problems(crib, None)
    if sarif is not None:
        _render.write_file(sarif, _sarif.document(problems))
    # Who watches and is not read any more has nothing left to do.
    with nullcontext() if watch else as_far_as_read(sys.stdout):
        _tell(crib, shared, problems, unstated, fixed, as_json=as_json)
    worst = {problem.severity for problem in problems}
    return _FAILED if Severity.ERROR in worst or (strict and Severity.WARNING in worst) else 0


def _tell(
    crib: Crib,
    shared: Shared,
    problems: tuple[Problem, ...],
    unstated: list[Tool],
    fixed: int | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        _write_json(crib, problems, unstated, fixed)
    else:
        shown = [problem for problem in problems if shared.verbose or problem.severity is not Severity.INFO]
        alike = Counter[str]()
        _render.write_problems(problem for problem in shown if shared.verbose or _is_news(problem, alike))
        for kind, number in alike.items():
            if number > _ALIKE_MAX:
                click.echo(f"… and {number - _ALIKE_MAX} more [{kind}]; -v shows them")
        if shared.verbose:
            for note in crib.notes:
                click.echo(_render.printable(note))
        if not shared.quiet:
            click.echo(_summary(crib, shared, problems, fixed))
            if unstated and shared.verbose:
                click.echo(_proposal(unstated))
            elif unstated:
                count = _render.plural(len(unstated), "tool")
                click.echo(f"{count} without stated needs; -v proposes grants for them", err=True)
            migration = crib.migration()
            if migration.tools:
                click.echo(_migration_line(migration))
    sys.stdout.flush()


def _is_news(problem: Problem, alike: Counter[str]) -> bool:
    """Whether a problem is shown, or only counted as one more of its kind: what is suspicious in one tool of
    a source is often so in all of them, and must not push out of sight what is wrong."""
    if not problem.code.startswith("hygiene."):
        return True
    alike[problem.code] += 1
    return alike[problem.code] <= _ALIKE_MAX


# -- tools that do not say what they need --------------------------------------------------------------------


def _unstated(crib: Crib) -> list[Tool]:
    """The tools that may be called and follow the profile, because nobody said what they need."""
    grants = [grant for grant in crib.config.grants if grant.needs is not None]
    return [
        tool
        for tool in crib.tools
        if tool.role is Role.TOOL
        and not tool.needs.stated
        and not isinstance(tool.invocation, NotCallable)
        and not any(fnmatchcase(tool.key, grant.pattern) for grant in grants)
    ]


def _proposal(unstated: list[Tool]) -> str:
    """The beginning of a configuration that bounds these tools, to be pasted and narrowed by a person."""
    patterns: dict[str, bool] = {}
    for tool in unstated:
        scope, slash, _ = tool.key.rpartition("/")
        pattern = f"{scope}/*" if slash else tool.key
        patterns[pattern] = patterns.get(pattern, False) or tool.effect is not Effect.READ
    lines = ["# To bound the tools that state no needs; take away what they do not need."]
    for pattern, writes in [*patterns.items()][:_PROPOSED_MAX]:
        quoted = jsontext.compact(pattern).decode("utf-8")
        needs = '"fs.write", "shell.execute"' if writes else '"fs.read", "shell.execute"'
        lines += [f"[grants.{quoted}]", f"needs = [{needs}]  # also: net.http, git.write"]
    if len(patterns) > _PROPOSED_MAX:
        lines.append(f"# … and {len(patterns) - _PROPOSED_MAX} more")
    return "\n".join(map(_render.printable, lines))


def _write_json(crib: Crib, problems: tuple[Problem, ...], unstated: list[Tool], fixed: int | None) -> None:
    document: dict[str, object] = {
        "tools": crib.catalog.counted,
        "support": len(crib.tools) - crib.catalog.counted,
        "skills": len(crib.skills),
        "problems": [problem_record(problem) for problem in problems],
        "undeclared": {"tools": len(unstated), "grants": _proposal(unstated) if unstated else ""},
    }
    if fixed is not None:
        document["fixed"] = fixed
    migration = crib.migration()
    if migration.tools:
        document["migration"] = {
            "shadowed": migration.shadowed,
            "differing": migration.differing,
            "not_migrated": migration.not_migrated,
        }
    _render.write_json(document)


def _migration_line(migration: Migration) -> str:
    inside = len(migration.shadowed) + len(migration.not_migrated)
    return (
        f"of {_render.plural(inside, 'tool')} in code {len(migration.not_migrated)} are in no file yet, and "
        f"{len(migration.differing)} differ from theirs"
    )


def _summary(crib: Crib, shared: Shared, problems: tuple[Problem, ...], fixed: int | None) -> str:
    tools, skills = crib.catalog.counted, len(crib.skills)
    support = len(crib.tools) - tools
    if not (tools or skills or support or problems):
        return _render.no_tools(crib)
    counts = [(tools, "tool"), (support, "support item"), (skills, "skill")]
    text = ", ".join(_render.plural(number, noun) for number, noun in counts if number or noun == "tool")
    severities = Counter(problem.severity for problem in problems)
    text += ": " + (_render.count_problems(severities) or "no problems")
    if not shared.verbose and any(problem.severity is Severity.INFO for problem in problems):
        text += " (-v shows the notes)"
    return text + (f"; fixed {_render.plural(fixed, 'problem')}" if fixed is not None else "")
