"""Tools that are switched off, by name, for good or until a moment, as the store keeps them.

A name that is not loaded is fine: it holds once it is. Time that is over counts at once, without anything
having to run. Who decides by them (selection, policy) gets plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from toolcrib import former, jsontext
from toolcrib.model import Disabled
from toolcrib.store import Conflict, Store

SHELF: Final = "disabled"
_PAGE: Final = 1000


def disabled(store: Store, now: float) -> tuple[Disabled, ...]:
    """What is off at this moment, in the order of names."""
    return tuple(found for found in _kept(store) if found.until is None or found.until > now)


def switch_off(store: Store, off: Disabled, now: float) -> None:
    """Keep a tool switched off; what has expired goes, so that the shelf does not grow for ever."""
    _forget_expired(store, now)
    text = jsontext.compact({"tool": off.tool, "reason": off.reason, "until": off.until})
    store.put(SHELF, off.tool, text, None)


def switch_on(store: Store, tool: str, now: float) -> bool:
    """Switch a tool on again. Whether it was off."""
    was_off = any(off.tool == tool for off in disabled(store, now))
    for key in (key for key in store.keys(SHELF, former.FORMER_NAME) if former.key_of(key) == tool):
        store.remove(SHELF, key, None)
    store.remove(SHELF, tool, None)
    return was_off


def _kept(store: Store) -> Iterator[Disabled]:
    after = ""
    while keys := store.keys(SHELF, after, _PAGE):
        for key in keys:
            found = store.get(SHELF, key)
            if found is not None:
                yield _read(key, found.value)
        after = keys[-1]


def _read(key: str, value: bytes) -> Disabled:
    try:
        plain = jsontext.loads_own(value)
        until = plain["until"]
        return Disabled(
            tool=former.key_of(str(plain["tool"])),
            reason=str(plain["reason"]),
            until=None if until is None else float(until),
        )
    except (ValueError, KeyError, TypeError):
        # Attack: damage that switches a tool on again. What cannot be read stays off.
        return Disabled(tool=key, reason="its entry in the store cannot be read")


def _forget_expired(store: Store, now: float) -> None:
    for off in list(_kept(store)):
        if off.until is not None and off.until <= now:
            found = store.get(SHELF, off.tool)
            if found is not None:
                try:
                    store.remove(SHELF, off.tool, found.version)
                except Conflict:  # switched off anew meanwhile
                    continue
