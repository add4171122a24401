"""``toolcrib token``: who may use the server; made, listed and revoked. A value is shown once."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from toolcrib.catalog import files
from toolcrib.doors.cli import Shared, _input, _render, _switch, complain, examples, shared_options
from toolcrib.doors.cli._owner import is_owners
from toolcrib.journal.audit import open_audit
from toolcrib.journal.reading import time_text
from toolcrib.jsontext import JsonObject
from toolcrib.model import Effect, Right
from toolcrib.store import tokens
from toolcrib.store.tokens import Token


@click.group(
    "token",
    epilog=examples(
        "toolcrib token create laptop",
        "toolcrib token create ci --tools 'rye:*' --effect read --right call --for 30d",
        "toolcrib token list",
        "toolcrib token revoke ci",
    ),
)
def command() -> None:
    """Let others use what `toolcrib serve` serves: each with a token of their own, as far as it reaches."""


@command.command(
    "create",
    short_help="Make a token for NAME, and print it this once.",
    epilog=examples("toolcrib token create ci --effect read --for 30d --json"),
)
@click.argument("name")
@click.option("--tools", multiple=True, metavar="PATTERN", help="Only tools whose key fits; repeatable.")
@click.option(
    "--effect", "effects", multiple=True, type=_input.EffectName(),
    help="Only tools of this effect; repeatable (default: all).",
)  # fmt: skip
@click.option(
    "--right", "rights", multiple=True, type=click.Choice([str(right) for right in Right]),
    help="What it may do besides looking; repeatable (default: call).",
)  # fmt: skip
@click.option("--for", "duration", metavar="DURATION", help="It is over after 2s, 30m, 1h or 7d.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, with the value.")
@shared_options
@click.pass_obj
def create_token(
    shared: Shared,
    name: str,
    tools: Sequence[str],
    effects: Sequence[str],
    rights: Sequence[str],
    duration: str | None,
    as_json: bool,
) -> None:
    """Make a token for NAME, the caller in records and rules, and print it: this once, and never again.

    NAME cannot be your user name: what you call without a token is recorded under it.
    """
    for pattern in tools:
        _input.check_text(pattern, "--tools")
    for_s = None if duration is None else _input.duration_s(duration)
    _refuse_open_state(shared)
    with _switch.opened_store(shared) as store:
        token, value = tokens.create(
            store,
            name,
            now=time.time(),
            tools=tools or ("*",),
            effects=frozenset(map(Effect, effects)) or frozenset(Effect),
            rights=frozenset(map(Right, rights)) or frozenset((Right.CALL,)),
            for_s=for_s,
            is_owners=is_owners(shared.environment),
        )
    _record(shared, token, "created")
    if as_json:
        _render.write_json({**_shown(token), "token": value})
        return
    click.echo(value)
    if not shared.quiet:
        click.echo("keep it now: only its digest is stored, and nobody can show it again", err=True)


@command.command("list", epilog=examples("toolcrib token list --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def list_tokens(shared: Shared, as_json: bool) -> None:
    """Who has a token, how far it reaches, and when it was last used. No values: there are none."""
    now = time.time()
    _refuse_open_state(shared)
    with _switch.present_store(shared) as store:
        found: list[tuple[Token, float | None]] = []
        if store is not None:
            found = [(token, tokens.used_at(store, token.id)) for token in tokens.listed(store)]
    if as_json:
        _render.write_json([{**_shown(token), **_standing(token, used, now)} for token, used in found])
        return
    for token, used in found:
        over = "for good" if token.expires_at is None else f"until {time_text(token.expires_at)}"
        ended = ", over" if token.is_over(now) else ""
        rights = ", ".join(sorted(token.rights)) or "only looking"
        reach = " ".join(token.tools)
        if len(token.effects) < len(Effect):
            reach += f" ({', '.join(sorted(token.effects))})"
        last = "never used" if used is None else f"last used {time_text(used)}"
        click.echo(_render.printable(f"{token.id}  {token.name}  {rights}; {reach}; {over}{ended}; {last}"))
    if not found and not shared.quiet:
        click.echo("there is no token", err=True)


@command.command(
    "revoke",
    short_help="Let a token count no more, within a second.",
    epilog=examples("toolcrib token revoke ci"),
)
@click.argument("which", metavar="ID|NAME")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def revoke_token(shared: Shared, which: str, as_json: bool) -> None:
    """Let a token count no more: in running servers within a second, its browser sessions too."""
    _input.check_text(which, "ID|NAME")
    _refuse_open_state(shared)
    with _switch.opened_store(shared) as store:
        token = tokens.revoke(store, which)
    _record(shared, token, "revoked")
    if as_json:
        _render.write_json({"id": token.id, "name": token.name, "status": "revoked"})
    elif not shared.quiet:
        click.echo(f"{token.name} is revoked")


# -- parts --------------------------------------------------------------------------------------------------


def _refuse_open_state(shared: Shared) -> None:
    state = shared.resolved().state
    if state is not None:
        # Attack: another user of the machine puts a store with a token of his own in the place of ours.
        files.check_state(state)


def _shown(token: Token) -> JsonObject:
    return {
        "id": token.id,
        "name": token.name,
        "tools": list(token.tools),
        "effects": sorted(token.effects),
        "rights": sorted(token.rights),
        "created_at": time_text(token.created_at),
        "expires_at": None if token.expires_at is None else time_text(token.expires_at),
    }


def _standing(token: Token, used: float | None, now: float) -> JsonObject:
    return {
        "last_used_at": None if used is None else time_text(used),
        "status": "over" if token.is_over(now) else "good",
    }


def _record(shared: Shared, token: Token, done: str) -> None:
    """Who let whom in, in the journal beside the calls."""
    state = shared.resolved().state
    assert state is not None
    audit = open_audit(state)
    body: JsonObject = {"id": token.id, "name": token.name, "done": done, "caller": shared.environment.user}
    if not audit.note("", "token", body):
        why, hint = audit.why_not
        complain(f"it is done but not recorded: {why}", hint)
    audit.close()
