"""``toolcrib secret``: values that tools are handed by name; set, listed and removed, never shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final

import click

from toolcrib.catalog import files
from toolcrib.config import Config
from toolcrib.doors.cli import Shared, _render, complain, examples, shared_options
from toolcrib.errors import SourceError, UsageError
from toolcrib.formats.mcp import Server
from toolcrib.journal.audit import open_audit
from toolcrib.journal.reading import time_text
from toolcrib.journal.redaction import is_worth
from toolcrib.trust.vault import VALUE_BYTES_MAX, Vault, check_name, check_value, system_ring

_DAY_S: Final = 86_400


@click.group(
    "secret",
    epilog=examples(
        "toolcrib secret set GITHUB_TOKEN",
        "pass show openai | toolcrib secret set openai",
        "toolcrib secret list",
        "toolcrib secret remove openai",
    ),
)
def command() -> None:
    """Keep secrets for tools: names stand in configurations, values in the vault.

    A value goes to the program that needs it when it starts, and nowhere else; it is taken out of what comes
    back.
    """


@command.command("set", epilog=examples("toolcrib secret set openai --from-file key.txt"))
@click.argument("name")
@click.option("--from-file", "file", metavar="FILE", help="Read the value from FILE, or stdin (-).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def set_secret(shared: Shared, name: str, file: str | None, as_json: bool) -> None:
    """Keep a value under NAME, in the place of an older one.

    It is asked for without being shown, or read from stdin or a file; never from the command line, where
    others could see it. One line end at its end is not part of it.
    """
    check_name(name)
    value = _value(name, file)
    check_value(value)
    entry = _vault(shared).set(name, value)
    _record(shared, name, "set")
    if not is_worth(value) and not shared.quiet:
        complain(
            f"{name} is too short or too common to be taken out of what tools give back",
            "use a longer value where you can",
        )
    if as_json:
        _render.write_json({"name": name, "status": "set", "where": entry.where})
    elif not shared.quiet:
        click.echo(f"{name} is set, in the {_PLACES[entry.where]}")


@command.command("list", epilog=examples("toolcrib secret list --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def list_secrets(shared: Shared, as_json: bool) -> None:
    """Names, ages, and what refers to them in the configuration. No values."""
    entries = _vault(shared).listed()
    uses: dict[str, list[str]] = {}
    for name, where in _references(shared.resolved()):
        uses.setdefault(name, []).append(where)
    now = time.time()
    if as_json:
        _render.write_json(
            [
                {
                    "name": entry.name,
                    "where": entry.where,
                    "set_at": time_text(entry.at),
                    "age_days": max(0, int((now - entry.at) // _DAY_S)),
                    "used_by": uses.get(entry.name, []),
                }
                for entry in entries
            ]
        )
        return
    for entry in entries:
        days = max(0, int((now - entry.at) // _DAY_S))
        age = "today" if days == 0 else f"{days} days ago" if days > 1 else "yesterday"
        used = ", ".join(uses.get(entry.name, [])) or "nothing refers to it"
        click.echo(_render.printable(f"{entry.name}  set {age}, {_PLACES[entry.where]}; {used}"))
    if not entries and not shared.quiet:
        click.echo("the vault is empty", err=True)


@command.command("remove", epilog=examples("toolcrib secret remove openai"))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def remove_secret(shared: Shared, name: str, as_json: bool) -> None:
    """Forget the value under NAME."""
    check_name(name)
    if not _vault(shared).remove(name):
        raise UsageError(f"there is no secret {name!r}", "`toolcrib secret list` shows what there is")
    _record(shared, name, "removed")
    if as_json:
        _render.write_json({"name": name, "status": "removed"})
    elif not shared.quiet:
        click.echo(f"{name} is removed")


_PLACES: Final = {"file": "encrypted file", "keyring": "system's keyring"}


# -- parts --------------------------------------------------------------------------------------------------


def _vault(shared: Shared) -> Vault:
    state = shared.resolved().state
    if state is None:
        raise UsageError("there is no state folder", "name one with --state")
    # Attack: another user of the machine puts a vault of his own in the place of ours.
    files.check_state(state)

    def passphrase() -> str | None:
        """Asked for only where the vault has one: a new one gets a key file unless the variable is set."""
        given = shared.environment.passphrase or None
        if given is None and vault.has_passphrase() and sys.stdin is not None and sys.stdin.isatty():
            given = str(click.prompt("Passphrase of the vault", hide_input=True, err=True))
        return given

    vault = Vault(state, passphrase=passphrase, ring=system_ring)
    return vault


def _value(name: str, file: str | None) -> str:
    """Never from argv: every process of the machine may read it there."""
    if file is not None and file != "-":
        content, why = files.read(file, VALUE_BYTES_MAX + 2)
        if content is None:
            raise SourceError(f"{file}: {why}", "name a file that holds the value")
    elif sys.stdin is None:
        raise SourceError("stdin: it is closed", "hand the value over on stdin, or name a file")
    elif file is None and sys.stdin.isatty():
        asked = f"Value of {name} (not shown)"
        return str(click.prompt(asked, hide_input=True, confirmation_prompt=True, err=True))
    else:
        content = sys.stdin.buffer.read(VALUE_BYTES_MAX + 3)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("a secret is text in UTF-8 without NUL", "encode it first, as base64") from None
    return text.removesuffix("\n").removesuffix("\r")


def _references(config: Config) -> Iterator[tuple[str, str]]:
    """The secrets that a configuration refers to, and where."""
    for variable, name in config.secrets.items():
        yield name, f"[secrets] {variable}"
    for grant in config.grants:
        for name in grant.env:
            yield name, f'[grants."{grant.pattern}"] env'
    for source in config.sources:
        if source.openapi is not None and source.openapi.secret:
            for part in source.openapi.secret.split(","):
                name = part.rpartition("=")[2].strip()
                yield name, f"[[source]] {source.openapi.name or source.path} secret"
        if source.server:
            server = Server.read(source.server)
            for name in server.env if server.vaulted else ():
                yield name, f"[[source]] {server.name} env or headers"


def _record(shared: Shared, name: str, done: str) -> None:
    """Who set what, in the journal beside the calls; the name, and nothing of the value."""
    state = shared.resolved().state
    assert state is not None
    audit = open_audit(state)
    if not audit.note("", "secret", {"name": name, "done": done, "caller": shared.environment.user}):
        why, hint = audit.why_not
        complain(f"it is done but not recorded: {why}", hint)
    audit.close()
