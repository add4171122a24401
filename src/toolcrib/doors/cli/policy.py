"""``toolcrib policy``: what the rules decide, and why, without running anything."""

from __future__ import annotations

from typing import Any

import click

from toolcrib.calls.arguments import read
from toolcrib.doors._accounts import decision_word, explanation_document
from toolcrib.doors._documents import effect_source
from toolcrib.doors.cli import Shared, _input, _render, examples, shared_options
from toolcrib.gate import BudgetLeft, Explanation
from toolcrib.journal.reading import time_text
from toolcrib.model import Allow, Approval, ApprovalState, Ask, Deny, Permit, Profile, Programs
from toolcrib.trust.policy import span

_COLOURS = {"allow": "green", "ask": "yellow", "deny": "red"}
_MIB = 1 << 20


@click.group(
    "policy",
    epilog=examples(
        "toolcrib policy explain get_time",
        'toolcrib policy explain write_file \'{"path": "/etc/hosts"}\' --caller ann',
    ),
)
@shared_options
def command() -> None:
    """Say what the rules of [[policy]], [[budget]] and [grants] mean for a tool."""


@command.command(
    "explain",
    epilog=examples(
        "toolcrib policy explain get_time",
        'toolcrib policy explain write_file \'{"path": "/etc/hosts"}\' --json',
    ),
)
@click.argument("name")
@click.argument("arguments", metavar="[ARGS|-|@FILE]", default="")
@click.option("--caller", metavar="WHO", help="As whom (default: the current user).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def explain(shared: Shared, name: str, arguments: str, caller: str | None, as_json: bool) -> None:
    """Show what is decided about a tool, or about a call of it.

    NAME is a key or a bare name, ARGS a JSON object. Shows the decision, the rule and its reason, the permit,
    what is left of budgets, and questions to a person that wait or were answered. Nothing is run, no server
    is started, nothing is taken from a budget.
    """
    given: dict[str, Any] | None = None
    if arguments:
        text = _input.arguments_text(arguments).decode("utf-8", "surrogateescape")
        given, defect = read(text)
        if given is None:
            raise click.UsageError(f"ARGS must be a JSON object: {defect}.")
    if caller is not None:
        _input.check_text(caller, "--caller")
    crib = shared.crib(only_look=True)
    explained = crib.explain(name, given, caller=caller)
    if as_json:
        _render.write_json(explanation_document(explained))
        return
    _write(explained)
    _render.mention_problems(crib, shared)


def _write(explained: Explanation) -> None:
    decision = explained.decision
    word = decision_word(decision)
    click.echo(
        f"{click.style(word, fg=_COLOURS[word], bold=True)} {_render.printable(explained.tool.key)} "
        f"for {_render.printable(explained.caller) or 'nobody in particular'}"
    )
    tool = explained.tool
    rows: list[tuple[str, str]] = [
        ("effect", f"{tool.effect.value}: {effect_source(tool)}"),
        ("because", decision.because),
    ]
    if decision.rule:
        rows.append(("rule", _place(decision.rule)))
    if isinstance(decision, Deny):
        rows += (("told", line) for line in decision.message.split("\n"))
        if decision.hint:
            rows.append(("to do", decision.hint))
    elif isinstance(decision, Ask):
        rows += [("told", decision.question), ("to do", "a person has to approve it; `call --yes` does")]
    rows += (("approval", _approval(one)) for one in explained.approvals)
    if explained.permit is not None:
        rows += _permit(explained.permit)
    rows += (("budget", _budget(left)) for left in explained.budgets)
    rows += (
        ("depends", f"{rule.answer.value} by {_place(rule.place)} for some arguments: {rule.because}")
        for rule in explained.depending
    )
    notes = (*explained.notes, *(decision.notes if isinstance(decision, Allow) else ()))
    rows += (("note", note) for note in notes)
    for head, text in rows:
        click.echo(f"  {head:<9} {_render.printable(text)}")


def _approval(one: Approval) -> str:
    """How a question about the tool stands."""
    until = f"until {time_text(one.until)}"
    if one.state is ApprovalState.WAITING:
        return f"{one.id} waits {until}: `toolcrib approvals approve {one.id}`"
    if one.standing:
        what = "for any arguments"
    elif one.state is ApprovalState.DENIED:
        what = "and calls like it"
    else:
        what = "for one call" if one.edited is None else "for one call, with other arguments"
    return f"{one.id} was {one.state.value} by {one.answered_by}, {what}, {until}"


def _place(place: str) -> str:
    """The place of a rule with its file as people write it."""
    file, _, number = place.rpartition(" ")
    return f"{_render.shown_path(file)} {number}" if file else number


def _permit(permit: Permit) -> list[tuple[str, str]]:
    """A permit in words."""
    limits = permit.limits
    memory = f"{limits.memory_bytes_max // _MIB} MiB"
    variables = "all of the host's" if "*" in permit.env else ", ".join(permit.env)
    rows = [
        ("reads", _roots(permit.read, "its own files and the system")),
        ("writes", _roots(permit.write, "its scratch folder")),
        (
            "network",
            "yes" + (", private addresses too" if permit.private else "") if permit.network else "no",
        ),
        ("programs", "any" if permit.programs is Programs.ANY else "its own"),
        ("variables", variables or "those that its format promises"),
        ("limits", ", ".join((f"{limits.timeout_s:g} s", memory, f"{limits.processes_max} processes"))),
        ("isolation", f"at least {permit.level.value}"),
    ]
    if permit.profile is not None:
        wide = " (one switch narrows it: [isolation] undeclared)" if permit.profile is Profile.OPEN else ""
        rows.append(("profile", f"{permit.profile.value}, because it states no needs{wide}"))
    return rows


def _roots(roots: tuple[str, ...], otherwise: str) -> str:
    if "/" in roots:
        return "everything you may, but our own state"
    return ", ".join([*map(_render.shown_path, roots), otherwise])


def _budget(left: BudgetLeft) -> str:
    parts = [f"{left.calls_left} calls left"] if left.calls_left is not None else []
    if left.cost_left is not None:
        parts.append(f"{left.cost_left:g} left to spend")
    when = "" if left.again_s == 0 else "; such a call alone is more"
    if left.again_s:
        when = f"; free again in {span(left.again_s)}"
    said = " and ".join(parts)
    return f"{said} within {span(left.within_s)}{when} ({left.because}; {_place(left.place)})"
