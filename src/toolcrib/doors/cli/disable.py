"""``toolcrib disable``: switch a tool off, for a while or for good."""

from __future__ import annotations

import time

import click

from toolcrib.doors.cli import Shared, _input, _switch, examples, shared_options
from toolcrib.journal.reading import time_text
from toolcrib.model import Disabled
from toolcrib.store import disabled


@click.command(
    "disable",
    epilog=examples(
        "toolcrib disable delete_event",
        'toolcrib disable delete_event --for 30m --reason "calendar is being moved"',
        "toolcrib disable capability:calendar/delete_event --json",
    ),
)
@click.argument("name")
@click.option("--for", "duration", metavar="DURATION", help="Switch it on again after 2s, 30m, 1h or 7d.")
@click.option("--reason", default="", metavar="TEXT", help="What callers are told.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, name: str, duration: str | None, reason: str, as_json: bool) -> None:
    """Switch the tool NAME (a key or a bare name) off: hidden from models, calls refused with the reason.

    It stays off over restarts, in every program that uses the same state folder. A name that is not loaded is
    fine: it holds once it is.
    """
    if not name.strip():
        raise click.UsageError("NAME must not be empty.")
    _input.check_text(name, "NAME")
    _input.check_text(reason, "--reason")
    if len(reason) > _switch.REASON_CHARS_MAX:
        raise click.UsageError(f"--reason may have {_switch.REASON_CHARS_MAX} characters.")
    now = time.time()
    until = None if duration is None else now + _input.duration_s(duration)
    with _switch.opened_store(shared) as store:
        disabled.switch_off(store, Disabled(tool=name, reason=reason, until=until), now)
    _switch.record(shared, name, enabled=False, until=until, reason=reason)
    _switch.find(shared, name)
    shown = None if until is None else time_text(until)
    _switch.answer(name, enabled=False, until=shown, reason=reason, as_json=as_json)
