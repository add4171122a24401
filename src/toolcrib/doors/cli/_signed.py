"""Signed files for ``trust`` and ``verify``: which one is older than what ran here, and taking it back."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

from toolcrib.catalog import files
from toolcrib.doors.cli import Shared, _render, _spaces, complain
from toolcrib.errors import SigningError, SourceError, StoreError
from toolcrib.journal.audit import open_audit
from toolcrib.model import Trust, Vetted
from toolcrib.trust import keys, seen, signing, vetting
from toolcrib.trust.seen import Memory, SignedFile


def memory(shared: Shared) -> Memory | None:
    """What signed files ran here; None where there is no state folder of our own."""
    state = shared.resolved().state
    return None if state is None or files.is_open_to_others(state) else Memory(state)


def item_of(path: str) -> bytes | None:
    """The content of a file that carries a signature line and is no key."""
    suffix = os.path.splitext(path)[1]
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return None
    if not is_file or suffix not in signing.SUFFIXES:
        return None
    content, _ = files.read(path)
    if content is None or not isinstance(keys.read_key(content), str):
        return None
    return content if signing.read_line(content.decode("utf-8", "replace"), suffix) else None


def unless_older(known: Memory | None, path: str, content: bytes, vetted: Vetted) -> Vetted:
    """What is known of a file whose signature is good, once it was asked what has run here before."""
    file = vetting.signed_file(content, path) if vetted.trust is Trust.SIGNED else None
    if known is None or file is None:
        return vetted
    try:
        older = known.older([file])
    except StoreError as error:
        return Vetted(trust=Trust.DRIFTED, message=error.message, hint=error.hint)
    if older is None:
        return vetted
    message, hint = seen.shown(older)
    return Vetted(trust=Trust.DRIFTED, message=message, hint=hint)


def remember(shared: Shared, verified: Sequence[SignedFile]) -> None:
    """Keep in mind what was verified; what cannot be is told."""
    known = memory(shared)
    if known is None or not verified:
        return
    try:
        known.remember(verified)
    except StoreError as error:
        complain(f"what was verified is not kept in mind: {error.message}", error.hint)


def accept(shared: Shared, path: str, content: bytes) -> dict[str, Any]:
    """Take a signed file as the newest of its place, also where it is older than what ran here."""
    place = os.path.abspath(path)
    project = _spaces.project_of(place)
    user = os.path.realpath(shared.environment.user_space)
    own = project is None or os.path.realpath(project) == user
    vetted = vetting.check(
        content,
        path=path,
        suffix=os.path.splitext(path)[1],
        item=f"tool:{os.path.basename(os.path.splitext(path)[0])}",
        keys=_spaces.keyring(shared, None if own else project).now(),
    )
    file = vetting.signed_file(content, place)
    if vetted.trust is not Trust.SIGNED or file is None:
        raise SigningError(vetted.message or f"{path}: it carries no signature", vetted.hint)
    known = memory(shared)
    if known is None:
        raise SourceError(
            f"{path}: there is no state folder of your own to keep it in", "name one: --state DIR"
        )
    known.remember([file], accepts=True)
    _record(shared, place)
    return {"path": _render.shown_path(place), "status": "accepted", "id": file.key, "owner": ""}


def _record(shared: Shared, path: str) -> None:
    """Who wanted an older file back, in the journal beside the calls."""
    state = shared.resolved().state
    assert state is not None
    audit = open_audit(state)
    if not audit.note("", "trust", {"paths": [path], "trusted": True, "caller": shared.environment.user}):
        why, hint = audit.why_not
        complain(f"it holds but is not recorded: {why}", hint)
    audit.close()
