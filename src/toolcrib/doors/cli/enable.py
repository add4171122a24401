"""``toolcrib enable``: switch a tool on again."""

from __future__ import annotations

import time

import click

from toolcrib.doors.cli import Shared, _input, _switch, examples, shared_options
from toolcrib.store import disabled
from toolcrib.trust.policy import names_of


@click.command(
    "enable",
    epilog=examples("toolcrib enable delete_event", "toolcrib enable delete_event --json"),
)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, name: str, as_json: bool) -> None:
    """Switch the tool NAME (a key or a bare name) on again, whichever of its names it was switched off by."""
    _input.check_text(name, "NAME")
    now = time.time()
    tool = _switch.find(shared, name)
    names = {name} if tool is None else {name, tool.key, *names_of(tool)}
    with _switch.opened_store(shared) as store:
        for spelling in sorted(names):
            disabled.switch_on(store, spelling, now)
    _switch.record(shared, name, enabled=True, until=None, reason="")
    _switch.answer(name, enabled=True, until=None, reason="", as_json=as_json)
