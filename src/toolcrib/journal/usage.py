"""What the journal says about use: how often, how long, how well. Pure.

The last thousand ends are kept in view, and a day of statistics; a tool that declared a latency and is
regularly slower than its band is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from msgspec import Struct

EVENTS_MAX: Final = 1000
WINDOW_S: Final = 86_400.0
BANDS_MS: Final = {"fast": 100.0, "medium": 1000.0}
"""The longest time a call of a declared latency should take; ``slow`` has no end."""
REGULARLY: Final = 3
"""So many calls are needed before a median says anything."""


class Event(Struct, frozen=True):
    """One call that ended."""

    ts: float
    key: str
    ok: bool
    ms: float
    kind: str | None = None
    latency: str | None = None
    cost: float | None = None
    currency: str | None = None


class ToolUse(Struct, frozen=True):
    """One tool's share."""

    key: str
    calls: int
    failed: int
    median_ms: float
    slowest_ms: float
    latency: str | None = None
    too_slow: bool = False
    """Declared faster than it regularly is."""


class Usage(Struct, frozen=True):
    """Statistics of a window of time."""

    events: int
    """Kept in view, whenever they were."""
    calls: int
    failed: int
    median_ms: float | None
    kinds: dict[str, int]
    cost: dict[str, float]
    """By currency: the sum of what the declarations estimate."""
    tools: tuple[ToolUse, ...]


def kept(events: Iterable[Event]) -> list[Event]:
    """The last events, in the order they came."""
    return list(events)[-EVENTS_MAX:]


def usage(events: Sequence[Event], now: float) -> Usage:
    """Statistics over the day before ``now``; ``events`` come in their order, the last thousand count."""
    inside = kept(events)
    recent = [event for event in inside if now - WINDOW_S <= event.ts]
    tools: dict[str, list[Event]] = defaultdict(list)
    cost: dict[str, float] = defaultdict(float)
    for event in recent:
        tools[event.key].append(event)
        if event.cost is not None:
            cost[event.currency or ""] += event.cost
    return Usage(
        events=len(inside),
        calls=len(recent),
        failed=sum(not event.ok for event in recent),
        median_ms=median(event.ms for event in recent) if recent else None,
        kinds=dict(Counter(event.kind for event in recent if event.kind is not None).most_common()),
        cost=dict(cost),
        tools=tuple(sorted((_use(key, mine) for key, mine in tools.items()), key=lambda use: -use.calls)),
    )


def _use(key: str, events: Sequence[Event]) -> ToolUse:
    times = [event.ms for event in events]
    middle = median(times)
    latency = events[-1].latency
    band = BANDS_MS.get(latency or "")
    return ToolUse(
        key=key,
        calls=len(events),
        failed=sum(not event.ok for event in events),
        median_ms=middle,
        slowest_ms=max(times),
        latency=latency,
        too_slow=band is not None and len(events) >= REGULARLY and middle > band,
    )
