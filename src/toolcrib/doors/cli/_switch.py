"""What commands share that switch something or look at what was: the store of the state folder, names, and
the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from toolcrib.doors.cli import Shared, _render, complain
from toolcrib.errors import UnknownTool, UsageError
from toolcrib.journal.audit import open_audit
from toolcrib.jsontext import JsonObject
from toolcrib.model import Tool
from toolcrib.store import Store
from toolcrib.store.keep import STORE_NAME, Keep
from toolcrib.trust.policy import names_of

REASON_CHARS_MAX: Final = 500


@contextmanager
def opened_store(shared: Shared) -> Iterator[Store]:
    with _kept(shared) as keep:
        yield keep.opened()


@contextmanager
def present_store(shared: Shared) -> Iterator[Store | None]:
    """The store, where there is one: whoever only looks makes none, and needs no place for it."""
    with _kept(shared) as keep:
        yield keep.present()


@contextmanager
def _kept(shared: Shared) -> Iterator[Keep]:
    state = shared.resolved().state
    if state is None:
        raise UsageError("there is no state folder", "name one with --state")
    keep = Keep(os.path.join(state, STORE_NAME))
    try:
        yield keep
    finally:
        keep.close()


def find(shared: Shared, name: str) -> Tool | None:
    """The tool of that name, where it is loaded; the switch holds in any case, which is said."""
    crib = shared.crib()
    try:
        return crib.find(name)
    except UnknownTool as error:
        if not shared.quiet:
            said = f"no tool {name!r} is loaded here; it holds once one is ({error.hint})"
            if any(name in names_of(tool) for tool in crib.tools):
                said = f"{error.message}; it holds for each of them"
            click.echo(_render.printable(said), err=True)
        return None


def record(shared: Shared, name: str, *, enabled: bool, until: float | None, reason: str) -> None:
    """Who switched what, in the journal beside the calls."""
    state = shared.resolved().state
    assert state is not None
    audit = open_audit(state)
    body: JsonObject = {
        "tool": name, "enabled": enabled, "until": until, "reason": reason, "caller": shared.environment.user,
    }  # fmt: skip
    if not audit.note("", "switch", body):
        why, hint = audit.why_not
        complain(f"the switch holds but is not recorded: {why}", hint)
    audit.close()


def answer(name: str, *, enabled: bool, until: str | None, reason: str, as_json: bool) -> None:
    if as_json:
        _render.write_json({"tool": name, "enabled": enabled, "until": until, "reason": reason or None})
        return
    text = f"{name} is {'on' if enabled else 'off'}"
    if until:
        text += f" until {until}"
    if reason:
        text += f": {reason}"
    click.echo(_render.printable(text))
