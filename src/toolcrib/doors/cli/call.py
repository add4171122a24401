"""``toolcrib call``: run one call through the whole engine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from toolcrib import jsontext
from toolcrib.doors._documents import result_document
from toolcrib.doors.cli import (
    Shared,
    _input,
    _progress,
    _render,
    as_far_as_read,
    complain,
    examples,
    shared_options,
)
from toolcrib.errors import KINDS, Kind
from toolcrib.model import TIMEOUT_S_MAX, ToolResult
from toolcrib.sandbox import Cancel

_LONG_S = 2.0
_NEVER_RAN = (Kind.UNKNOWN_TOOL, Kind.DENIED, Kind.UNAVAILABLE)
"""Kinds whose cause may be a problem: a tool that was left out, a setting that was ignored."""


@click.command(
    "call",
    epilog=examples(
        'toolcrib call get_time \'{"timezone": "UTC"}\'',
        "toolcrib call rye:files/replace-text @arguments.json --dry-run",
        'echo \'{"city": "Oslo"}\' | toolcrib call weather - --timeout 5 --json',
        "toolcrib call recall_journal '{}' --context user_id=ann",
    ),
)
@click.argument("name")
@click.argument("arguments", metavar="[ARGS|-|@FILE]", default="")
@click.option(
    "--context", "context", multiple=True, metavar="K=V",
    help="A value of the call's context, JSON or else text; repeatable. Only the host gives these.",
)  # fmt: skip
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Stop the call after S seconds.")
@click.option("--yes", is_flag=True, help="Approve an `ask` as the current user; never overrides `deny`.")
@click.option("--dry-run", is_flag=True, help="Find, check and decide; run nothing. Recorded all the same.")
@click.option(
    "--idempotency-key", metavar="KEY",
    help="Calls with the same KEY run once; later ones get the first one's result.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(
    shared: Shared,
    name: str,
    arguments: str,
    context: tuple[str, ...],
    timeout_s: float | None,
    yes: bool,
    dry_run: bool,
    idempotency_key: str | None,
    as_json: bool,
) -> int:
    """Call the tool NAME (a key or a bare name) with ARGS, a JSON object, and print what a model would see.

    The exit status tells the kind of failure: 1 the tool failed, 64 no such tool, 65 wrong arguments, 69
    something it needs is missing, 75 a person has to approve it first, 77 denied, 124 timed out.
    """
    if timeout_s is not None and not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise click.UsageError(f"--timeout must be above 0 and at most {TIMEOUT_S_MAX:.0f} seconds.")
    if idempotency_key == "":  # a script's variable that was never set: all its calls would be one
        raise click.UsageError("--idempotency-key must not be empty.")
    if idempotency_key is not None:
        _input.check_text(idempotency_key, "--idempotency-key")
    values = _input.context_of(context)
    raw = _input.arguments_text(arguments) if arguments else b""
    crib = shared.crib(only=name)
    if not shared.quiet:
        for line in crib.warnings():
            complain(line)
    cancel = Cancel()

    def running(seconds: int) -> str:
        return f"{_render.printable(name)} has been running for {seconds} s (Ctrl-C stops it)"

    with _stopped_by_signals(cancel) as came, _progress.telling(shared, running, after_s=_LONG_S):
        result = crib.call_text(
            name,
            raw.decode("utf-8", "surrogateescape"),
            context=values,
            timeout_s=timeout_s,
            dry_run=dry_run,
            approved_by=shared.environment.user if yes else "",
            idempotency_key=idempotency_key,
            door="cli",
            cancel=cancel,
        )
    if as_json:
        with as_far_as_read(sys.stdout):
            _render.write_json(result_document(result))
    else:
        _write(result, shared, arguments)
        if result.error is not None and result.error.kind in _NEVER_RAN:
            with as_far_as_read(sys.stderr):
                _render.mention_problems(crib, shared)
    if result.error is None:
        return 0
    if came and result.error.kind is Kind.CANCELLED:
        return 128 + came[0]  # as the shell tells which signal it was
    return KINDS[result.error.kind].exit_code


def _write(result: ToolResult, shared: Shared, arguments: str) -> None:
    content = result.content
    if sys.stdout.isatty():
        # Attack: output that moves the cursor or hides what is there. Pipes get what the model would get.
        content = "\n".join(_render.printable(line) for line in content.split("\n"))
    if content:
        with as_far_as_read(sys.stdout):
            click.echo(content, nl=not content.endswith("\n"))
    with as_far_as_read(sys.stderr):
        _write_rest(result, shared, arguments)


def _write_rest(result: ToolResult, shared: Shared, arguments: str) -> None:
    for note in result.notes:
        if not shared.quiet:
            click.echo(f"note: {_render.printable(note)}", err=True)
    if result.error is not None:
        message = " ".join(result.error.message.split())  # the lines as they were stand on stdout
        hint = result.error.hint
        if result.error.kind is Kind.NEEDS_APPROVAL:
            hint = f"{hint}\n--yes approves this one call"
        elif result.error.kind is Kind.INVALID_ARGUMENTS and _is_mistyped(arguments):
            hint = f'ARGS is one JSON object, in quotes for the shell: \'{{"name": "value"}}\'\n{hint}'
        complain(f"{result.error.kind}: {message}", hint)
    if shared.verbose:
        click.echo(
            f"{result.call_id} {result.spent.duration_ms:.1f} ms, {', '.join(result.isolation)}", err=True
        )


def _is_mistyped(arguments: str) -> bool:
    """Whether what was typed is no JSON object, as where a shell took the quotes out of it."""
    if arguments.startswith("@") or arguments == "-":
        return False
    return not isinstance(jsontext.read(os.fsencode(arguments)).value, dict)


@contextmanager
def _stopped_by_signals(cancel: Cancel) -> Iterator[list[int]]:
    """An interrupt stops the call, which still ends as it should: the tree killed, the end recorded.

    Gives the signals that came. Under ``nohup`` the end of the terminal is no interrupt.
    """
    came: list[int] = []

    def stop(number: int, _frame: Any) -> None:
        came.append(number)
        cancel.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    kept = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        cancel.close()
