"""Where the counters of budgets are kept, and how a call takes its share before it runs.

A counter is one value in the store, so that it holds for every thread, process and restart. What a call takes
is put back only if nobody changed the counter meanwhile; so two callers never get the same last call. Where
no budget is configured nothing here is ever asked. What the numbers mean is ``budgets.py``'s business.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from toolcrib import jsontext
from toolcrib.errors import StoreError
from toolcrib.model import Charge, Deny
from toolcrib.store import ABSENT, Conflict, Store, Versioned
from toolcrib.trust import budgets
from toolcrib.trust.budgets import EMPTY, Tally
from toolcrib.trust.policy import used_up

SHELF: Final = "spent"
_TRIES_MAX: Final = 200
_SWEEP_EVERY: Final = 256
_SWEPT_MAX: Final = 256


class Spending:
    """The counters of a host. ``store`` makes the store where there is none; ``present`` only looks."""

    def __init__(self, store: Callable[[], Store], present: Callable[[], Store | None]) -> None:
        self._store = store
        self._present = present
        self._lock = threading.Lock()
        self._reserved = 0
        self._swept = ""
        """The last key that was looked at."""

    def of(self, charges: Sequence[Charge], now: float) -> Mapping[str, Tally]:
        """What was taken from the counters. Raises StoreError where nobody can say."""
        store = self._present()
        if store is None:
            return {}
        return {charge.counter: _look(store, charge, now)[0] for charge in charges}

    def reserve(self, charges: Sequence[Charge], now: float) -> Deny | None:
        """Take a call's share from all counters or from none. Raises StoreError where it cannot be kept."""
        store = self._store()
        had: list[Charge] = []
        # One at a time in this process: what would meet in the store would only be tried again.
        with self._lock:
            self._sweep(store, now)
            for charge in charges:
                try:
                    again_s = _change(store, charge, now)
                except StoreError:
                    _give_back(store, had, now)
                    raise
                if again_s != 0.0:
                    _give_back(store, had, now)
                    return used_up(charge, again_s)
                had.append(charge)
        return None

    def _sweep(self, store: Store, now: float) -> None:
        """Counters of callers and tools that are long gone, a bounded part of them, now and then."""
        self._reserved += 1
        if self._reserved % _SWEEP_EVERY != 1:
            return
        keys = store.keys(SHELF, self._swept, _SWEPT_MAX)
        self._swept = keys[-1] if len(keys) == _SWEPT_MAX else ""
        for key in keys:
            found = store.get(SHELF, key)
            with suppress(Conflict):
                if found is not None and _until(found) < now:
                    store.remove(SHELF, key, found.version)


def _change(store: Store, charge: Charge, now: float) -> float | None:
    """Take one call from a counter: 0, or in how many seconds it would fit."""
    for _ in range(_TRIES_MAX):
        tally, version = _look(store, charge, now)
        again_s = budgets.again_s(tally, charge, now)
        if again_s != 0.0:
            return again_s
        with suppress(Conflict):  # another process was faster
            more = budgets.taken(tally, charge, now)
            store.put(SHELF, charge.counter, _written(more, charge, now), version)
            return 0.0
    raise Conflict(f"{SHELF}/{charge.counter}: changed again and again", "call again")


def _give_back(store: Store, charges: Sequence[Charge], now: float) -> None:
    """What did not run after all. What cannot be given back stays taken: that never lets too much through."""
    for charge in charges:
        slot = budgets.slot_of(charge, now)
        for _ in range(_TRIES_MAX):
            tally, version = _look(store, charge, now)
            with suppress(Conflict):
                less = budgets.given_back(tally, charge, slot)
                store.put(SHELF, charge.counter, _written(less, charge, now), version)
                break


# -- one counter as bytes -----------------------------------------------------------------------------------


def _written(tally: Tally, charge: Charge, now: float) -> bytes:
    until = now + 2 * charge.within_s
    return jsontext.compact({"until": until, "slots": [list(slot) for slot in tally.slots]})


def _look(store: Store, charge: Charge, now: float) -> tuple[Tally, int]:
    """What was taken from a counter, and the version of that."""
    found = store.get(SHELF, charge.counter)
    if found is None:
        return EMPTY, ABSENT
    tally = _read(found)
    if tally is not None:
        return tally, found.version
    # Attack: damage that makes a used-up budget whole again. What cannot be read is used up, from now on for
    # the budget's time.
    tally, version = budgets.full(charge, now), found.version
    with suppress(Conflict):
        version = store.put(SHELF, charge.counter, _written(tally, charge, now), version)
    return tally, version


def _read(found: Versioned) -> Tally | None:
    try:
        plain = jsontext.loads_own(found.value)
        slots = [(int(at), int(calls), int(cost)) for at, calls, cost in plain["slots"]]
    except (ValueError, KeyError, TypeError):
        return None
    return None if any(min(slot[1:]) < 0 for slot in slots) else Tally(slots=tuple(sorted(slots)))


def _until(found: Versioned) -> float:
    try:
        return float(jsontext.loads_own(found.value)["until"])
    except (ValueError, KeyError, TypeError):
        return math.inf
