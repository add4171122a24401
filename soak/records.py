"""What the journal of a soak must say, read as `toolcrib audit` reads it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from toolcrib.journal import reading, sealing
from toolcrib.journal.reading import Verdict


def verdict(state: Path) -> Verdict:
    key = sealing.public_key(str(state))
    return reading.verify(journal(state), key, sealing.checker(key or b""))


def journal(state: Path) -> str:
    return os.path.join(state, "journal")


def begins_and_ends(state: Path) -> tuple[Counter[str], Counter[str], dict[str, str | None]]:
    """How often each call began and ended, and with what kind of failure."""
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    kinds: dict[str, str | None] = {}
    for entry in reading.entries(journal(state)):
        if entry.what == "begin":
            begun[entry.call] += 1
        elif entry.what == "end":
            ended[entry.call] += 1
            kinds[entry.call] = entry.body.get("kind")
    return begun, ended, kinds
