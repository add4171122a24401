"""The budgets of ``[[budget]]``: how much may be called or spent within a time, and what is left. Pure.

A budget counts in slots, a sixtieth of its time each, and a slot counts until all of it has gone by: so no
stretch of that time ever holds more than the budget says, whenever it begins. Costs are whole millionths, so
that a hundred cents are one. Where the counters are kept, and that two callers never get the same last call,
is ``spending.py``'s business; what a refusal means is ``policy.py``'s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from toolcrib import jsontext
from toolcrib.jsontext import JsonValue
from toolcrib.model import Charge, Tool
from toolcrib.trust.rules import Match, match_of

BUDGET_KEYS: Final = ("match", "calls", "cost", "currency", "unknown_cost", "within", "per", "because")
SLOTS: Final = 60
MILLION: Final = 1_000_000
_CALLS_MAX: Final = 10**12
_COST_MAX: Final = 1e12
_ESTIMATES: Final = ("low", "medium", "high")
_DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WITHIN_S_MAX: Final = 366 * 86_400


class Per(StrEnum):
    """What has a counter of its own."""

    TOGETHER = "together"
    """All that fits shares one."""
    TOOL = "tool"
    CALLER = "caller"
    BOTH = "both"
    """Each caller of each tool."""


class Budget(Struct, frozen=True, kw_only=True):
    """One ``[[budget]]``. With ``mistakes`` it was not understood, and has nothing left for what it fits."""

    match: Match = field(default_factory=Match)
    calls: int | None = None
    cost: float | None = None
    currency: str = ""
    unknown_cost: float | Mapping[str, float] = 0.0
    """What a call counts whose tool does not say; or that for each of the words ``low``, ``medium``, ``high``
    and for ``other``."""
    within_s: float = 3600.0
    per: Per = Per.TOGETHER
    because: str = ""
    place: str = ""
    id: str = ""
    """The same as long as the budget stays the same, wherever it stands in its file."""
    mistakes: tuple[str, ...] = ()

    def charge(self, tool: Tool, caller: str) -> Charge:
        """What one call takes from the budget."""
        of_tool, of_caller = self.per in (Per.TOOL, Per.BOTH), self.per in (Per.CALLER, Per.BOTH)
        owner = [tool.key if of_tool else None, _written(caller) if of_caller else None]
        return Charge(
            counter=f"{self.id}.{_short(owner)}",
            calls_max=0 if self.mistakes else self.calls,
            cost_max=None if self.cost is None else _millionths(self.cost),
            cost=0 if self.cost is None else _millionths(self._cost_of(tool)),
            within_s=self.within_s,
            because=self.because,
            place=self.place,
        )

    def _cost_of(self, tool: Tool) -> float:
        cost = tool.notes.cost
        if isinstance(cost, Mapping) and self.currency in ("", cost.get("currency")):
            # Attack: a declaration whose cost is negative, so that calling it fills the budget up again.
            amount: Any = cost.get("per_invocation")
            if _is_amount(amount):
                return float(amount)
        if isinstance(self.unknown_cost, Mapping):
            word = cost if isinstance(cost, str) else "other"
            return self.unknown_cost.get(word, self.unknown_cost["other"])
        return self.unknown_cost


def _written(text: str) -> str:
    """Any text as one that UTF-8 has a form for."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _short(value: JsonValue) -> str:
    return jsontext.digest(value).removeprefix("sha256:")[:32]


def _millionths(amount: float) -> int:
    return max(round(amount * MILLION), 1) if amount > 0 else 0


# -- reading budgets ----------------------------------------------------------------------------------------


def budgets_of(tables: Sequence[object], places: Sequence[str] = ()) -> tuple[Budget, ...]:
    """The budgets of ``[[budget]]`` tables. Total: one that it cannot read has nothing to spend."""
    return tuple(
        _budget(table, places[number] if number < len(places) else f"budget[{number}]")
        for number, table in enumerate(tables)
    )


def _budget(table: object, place: str) -> Budget:
    if not isinstance(table, Mapping):
        return Budget(because="a budget that is no table", place=place, id=place, mistakes=("no table",))
    mistakes = [f"unknown key {str(key)[:60]!r}" for key in table if key not in BUDGET_KEYS]
    match = match_of(table.get("match", {}), mistakes)
    calls, cost, per = table.get("calls"), table.get("cost"), table.get("per", Per.TOGETHER.value)
    if calls is None and cost is None:
        mistakes.append("needs calls or cost")
    if calls is not None and (type(calls) is not int or not 0 <= calls <= _CALLS_MAX):
        mistakes.append("calls: must be a whole number that is not negative")
        calls = 0
    if cost is not None and not _is_amount(cost):
        mistakes.append("cost: must be a number that is not negative")
        cost = 0
    unknown = table.get("unknown_cost")
    if cost is not None and unknown is None:
        mistakes.append("needs unknown_cost: what a call counts whose tool does not say what it costs")
    if unknown is not None and not _is_amount(unknown) and not _are_amounts(unknown):
        mistakes.append(
            f"unknown_cost: must be a number, or a table of numbers for other, {', '.join(_ESTIMATES)}"
        )
        unknown = None
    currency, because = table.get("currency", ""), table.get("because")
    if not isinstance(currency, str):
        mistakes.append("currency: must be a text")
        currency = ""
    if per not in [*Per]:
        mistakes.append(f"per: must be one of {', '.join(Per)} (got {str(per)[:60]!r})")
        per = Per.TOGETHER
    if not isinstance(because, str) or not because.strip():
        mistakes.append("needs because")
        because = "a budget that gives no reason"
    within_s = duration_s(table.get("within"))
    if within_s is None:
        mistakes.append("needs within: 2s, 30m, 1h or 7d, at most 366d")
        within_s = 3600.0
    return Budget(
        match=match,
        calls=calls,
        cost=None if cost is None else float(cost),
        currency=currency,
        unknown_cost=unknown if unknown is not None else 0.0,
        within_s=within_s,
        per=Per(per),
        because=because,
        place=place,
        id=_identity(table, place),
        mistakes=tuple(mistakes),
    )


def _identity(table: Mapping[Any, Any], place: str) -> str:
    """The file that it stands in, and what it says about counting: counters outlive a better reason.

    Attack: a project whose budget is word for word the user's own, so that it counts in the user's place.
    """
    file = re.sub(r"(:\d+)? ?budget\[\d+\]$", "", place)
    said = {str(key): repr(table[key]) for key in table if key != "because"}
    return _short([_written(file), {_written(key): _written(text) for key, text in said.items()}])


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _COST_MAX


def _are_amounts(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and "other" in value
        and set(value) <= {"other", *_ESTIMATES}
        and all(map(_is_amount, value.values()))
    )


def duration_s(text: object) -> float | None:
    """``2s``, ``30m``, ``1h``, ``7d`` in seconds; None for anything else."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    seconds = int(found.group(1)) * _UNIT_S[found.group(2)] if found else 0
    return float(seconds) if 0 < seconds <= _WITHIN_S_MAX else None


# -- counting -----------------------------------------------------------------------------------------------


class Tally(Struct, frozen=True, kw_only=True):
    """What was taken from one counter: slot, calls, cost in millionths; the oldest first."""

    slots: tuple[tuple[int, int, int], ...] = ()


EMPTY: Final = Tally()


def slot_of(charge: Charge, now: float) -> int:
    return math.floor(now * SLOTS / charge.within_s)


def current(tally: Tally, charge: Charge, now: float) -> Tally:
    """What still counts. A clock that was set back must not hold anybody for longer than the budget's time:
    what lies in the future counts as taken now."""
    here = slot_of(charge, now)
    slots = tuple(slot for slot in tally.slots if slot[0] >= here - SLOTS)
    ahead = [slot for slot in slots if slot[0] > here]
    if not ahead:
        return tally if slots == tally.slots else Tally(slots=slots)
    kept = Tally(slots=tuple(slot for slot in slots if slot[0] <= here))
    return _added(kept, here, sum(calls for _, calls, _ in ahead), sum(cost for _, _, cost in ahead))


def used(tally: Tally) -> tuple[int, int]:
    """Calls, and cost in millionths."""
    return sum(calls for _, calls, _ in tally.slots), sum(cost for _, _, cost in tally.slots)


def again_s(tally: Tally, charge: Charge, now: float) -> float | None:
    """In how many seconds the call fits: 0 now, None never."""
    now_counts = current(tally, charge, now)
    calls, cost = used(now_counts)
    if _fits(charge, calls, cost):
        return 0.0
    for slot, its_calls, its_cost in now_counts.slots:
        calls, cost = calls - its_calls, cost - its_cost
        if _fits(charge, calls, cost):
            free_at = (slot + 1 + SLOTS) * charge.within_s / SLOTS
            return max(free_at - now, 0.001)
    return None


def _fits(charge: Charge, calls: int, cost: int) -> bool:
    if charge.calls_max is not None and calls + 1 > charge.calls_max:
        return False
    return charge.cost_max is None or cost + charge.cost <= charge.cost_max


def taken(tally: Tally, charge: Charge, now: float) -> Tally:
    """The tally after one more call."""
    return _added(current(tally, charge, now), slot_of(charge, now), 1, charge.cost)


def given_back(tally: Tally, charge: Charge, slot: int) -> Tally:
    """The tally without one call that was taken in a slot and did not run."""
    return Tally(
        slots=tuple(
            (at, max(calls - 1, 0), max(cost - charge.cost, 0)) if at == slot else (at, calls, cost)
            for at, calls, cost in tally.slots
        )
    )


def full(charge: Charge, now: float) -> Tally:
    """Of a counter that cannot be read: nothing is left until the budget's time has gone by."""
    return Tally(slots=((slot_of(charge, now), _CALLS_MAX, round(_COST_MAX) * MILLION),))


def _added(tally: Tally, slot: int, calls: int, cost: int) -> Tally:
    counts = {at: (its_calls, its_cost) for at, its_calls, its_cost in tally.slots}
    before = counts.get(slot, (0, 0))
    counts[slot] = (before[0] + calls, before[1] + cost)
    return Tally(slots=tuple((at, *counts[at]) for at in sorted(counts)))
