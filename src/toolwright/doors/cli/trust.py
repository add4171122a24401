"""``toolwright trust``: projects whose own configuration counts."""

from __future__ import annotations

import click

from toolwright.doors.cli import Shared, _projects, examples, shared_options


@click.command(
    "trust",
    epilog=examples(
        "toolwright trust .",
        "toolwright trust ~/work/notes --yes",
        "toolwright trust --list",
        "toolwright trust --remove ~/work/notes",
    ),
)
@click.argument("path", metavar="PATH", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--list", "is_list", is_flag=True, help="Show what is trusted.")
@click.option("--remove", "is_remove", is_flag=True, help="Trust PATH no more.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared, path: str | None, yes: bool, is_list: bool, is_remove: bool, as_json: bool
) -> int:
    """Let the toolwright.toml and the lock file of the project PATH count in full.

    What they would widen is shown first. They are remembered by place and content: once one of them changes,
    it may only narrow again, until it is trusted anew.
    """
    if is_list:
        return _projects.list_trusted(shared, as_json=as_json)
    if not path:
        raise click.UsageError("PATH is missing: name a project's folder.")
    if is_remove:
        return _projects.remove(shared, path, as_json=as_json)
    return _projects.trust(shared, path, yes=yes, as_json=as_json)
