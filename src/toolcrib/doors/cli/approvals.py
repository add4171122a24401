"""``toolcrib approvals``: the calls that wait for a person, and the answers to them."""

from __future__ import annotations

import click

from toolcrib import jsontext
from toolcrib.app import open_approvals
from toolcrib.calls import arguments as reading
from toolcrib.doors._accounts import approval_item
from toolcrib.doors.cli import Shared, _input, _render, examples, shared_options
from toolcrib.errors import EditError
from toolcrib.journal.reading import time_text
from toolcrib.journal.redaction import MARKER
from toolcrib.model import Approval, ApprovalState
from toolcrib.trust.approvals import TEXT_CHARS_MAX, Answer


@click.group(
    "approvals",
    epilog=examples(
        "toolcrib approvals list",
        'toolcrib approvals approve 3f9a1c22b04d --because "reviewed with Ann"',
        "toolcrib approvals deny 3f9a1c22b04d",
    ),
)
@shared_options
def command() -> None:
    """Answer the calls that wait for a person: those for which a rule of the policy says `ask`.

    An approval lets the next identical call run, once: the same tool, unchanged, the same caller, the same
    arguments.
    """


@command.command(
    "list", epilog=examples("toolcrib approvals list", "toolcrib approvals list --waiting --json")
)
@click.option("--waiting", is_flag=True, help="Only those that nobody has answered.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def list_(shared: Shared, waiting: bool, as_json: bool) -> None:
    """List the calls that wait, and what became of earlier ones. The oldest come first."""
    with open_approvals(shared.resolved(), shared.environment) as approvals:
        found = [one for one in approvals.all() if not waiting or one.state is ApprovalState.WAITING]
    if as_json:
        _render.write_json([approval_item(one) for one in found])
        return
    if not found and not shared.quiet:
        click.echo("no call waits for a person", err=True)
    for one in found:
        _write(one)


@command.command(
    "approve",
    epilog=examples(
        "toolcrib approvals approve 3f9a1c22b04d",
        'toolcrib approvals approve 3f9a --for 1h --because "while we migrate"',
        "toolcrib approvals approve 3f9a --arguments '{\"amount\": 10}'",
    ),
)
@click.argument("approval_id", metavar="ID")
@click.option(
    "--for", "duration", metavar="D",
    help="Let every call of the tool by this caller run for 30m, 1h or 7d, whatever the arguments.",
)  # fmt: skip
@click.option(
    "--arguments", "edited", metavar="JSON",
    help="Let the call run with these arguments instead (also - or @FILE).",
)  # fmt: skip
@click.option("--because", default="", metavar="TEXT", help="Why, for the record.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def approve(
    shared: Shared, approval_id: str, duration: str | None, edited: str | None, because: str, as_json: bool
) -> None:
    """Let the next call like the one that waits run, once. ID may be the start of an id."""
    _check(approval_id, because)
    if duration is not None and edited is not None:
        raise click.UsageError("--for is for any arguments, so it cannot stand with --arguments.")
    for_s = None if duration is None else _input.duration_s(duration)
    if edited is None:
        _answer(shared, approval_id, Answer.APPROVE, because, for_s, as_json=as_json)
        return
    given, defect = reading.read(_input.arguments_text(edited).decode("utf-8", "surrogateescape"))
    if given is None:
        raise EditError(f"--arguments: {defect}", "hand over one JSON object")
    # What was edited is checked against the tool's schema, so the tool has to be loaded.
    told = shared.crib().answer(approval_id, Answer.APPROVE, arguments=given, because=because)
    _tell(shared, told, as_json=as_json)


@command.command(
    "deny", epilog=examples('toolcrib approvals deny 3f9a1c22b04d --because "ask Ann before you delete"')
)
@click.argument("approval_id", metavar="ID")
@click.option("--because", default="", metavar="TEXT", help="Why, for the record and for the model.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def deny(shared: Shared, approval_id: str, because: str, as_json: bool) -> None:
    """Refuse a call that waits, and calls like it for an hour. Also ends an approval."""
    _check(approval_id, because)
    _answer(shared, approval_id, Answer.DENY, because, None, as_json=as_json)


def _check(approval_id: str, because: str) -> None:
    _input.check_text(approval_id, "ID")
    _input.check_text(because, "--because")
    if len(because) > TEXT_CHARS_MAX:
        raise click.UsageError(f"--because may have {TEXT_CHARS_MAX} characters.")


def _answer(
    shared: Shared, approval_id: str, answer: Answer, because: str, for_s: float | None, *, as_json: bool
) -> None:
    with open_approvals(shared.resolved(), shared.environment) as approvals:
        by = shared.environment.user
        told = approvals.answer(approval_id, answer, by=by, because=because, for_s=for_s)
    _tell(shared, told, as_json=as_json)


def _tell(shared: Shared, told: Approval, *, as_json: bool) -> None:
    if as_json:
        _render.write_json(approval_item(told))
    elif not shared.quiet:
        _write(told)


def _write(one: Approval) -> None:
    """All of it: nobody shall approve what was cut off. Attack: arguments that hide behind a narrow window,
    or that a terminal acts on."""
    state = f"{one.state} until {time_text(one.until)}" if one.state in _TIMED else one.state.value
    click.echo(click.style(f"{one.id}  {_render.printable(one.key)}  {state}", bold=True))
    lines = [
        f"asked by {one.caller} at {time_text(one.asked_at)}: {one.question}",
        f"arguments: {jsontext.compact(one.arguments).decode('utf-8')}",
    ]
    if one.edited is not None:
        lines.append(f"edited to: {jsontext.compact(one.edited).decode('utf-8')}")
    if hidden := sum(text.count(MARKER) for text in lines):
        # Attack: what a person should not see, dressed up as a credential.
        lines.append(f"not shown: {hidden} {'part' if hidden == 1 else 'parts'} that looked like a secret")
    if one.standing:
        lines.append("for any arguments")
    if one.answered_at is not None:
        why = f": {one.answer_because}" if one.answer_because else ""
        lines.append(f"answered by {one.answered_by} at {time_text(one.answered_at)}{why}")
    for line in lines:
        click.echo(f"  {_render.printable(line)}")


_TIMED = (ApprovalState.WAITING, ApprovalState.APPROVED, ApprovalState.DENIED)
