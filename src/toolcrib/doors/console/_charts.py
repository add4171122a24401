"""Charts as values: where each bar stands, and the same in words and numbers for those who see none. Pure.

A chart is a row of bars of two parts. Templates draw them as SVG; words and labels stand beside the drawing
as ordinary text, so that they keep their size on a narrow screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from toolcrib.journal.index import Load

HEIGHT: Final = 100.0
SLOT: Final = 10.0
"""The width of one bar with the gap beside it; drawings are stretched to the width that there is."""
_GAP: Final = 2.0


class Span(Struct, frozen=True, kw_only=True):
    """A length of time that charts can show: so many stretches of so many seconds."""

    name: str
    label: str
    width_s: int
    count: int


SPANS: Final = (
    Span(name="1h", label="the last hour", width_s=60, count=60),
    Span(name="24h", label="the last 24 hours", width_s=1800, count=48),
    Span(name="7d", label="the last 7 days", width_s=3 * 3600, count=56),
    Span(name="30d", label="the last 30 days", width_s=12 * 3600, count=60),
)


class Bar(Struct, frozen=True, kw_only=True):
    x: float
    width: float
    lower_y: float
    lower_height: float
    upper_y: float
    upper_height: float


class Chart(Struct, frozen=True, kw_only=True):
    """One drawing with its words."""

    name: str
    title: str
    words: str
    width: float
    top: str
    """What the full height stands for."""
    lower: str
    upper: str
    bars: tuple[Bar, ...]


class Row(Struct, frozen=True, kw_only=True):
    """One stretch in numbers."""

    start: str
    calls: int
    failed: int
    p50: str
    p95: str


def calls_chart(loads: Sequence[Load], span: Span) -> Chart:
    calls, failed = sum(load.calls for load in loads), sum(load.failed for load in loads)
    if calls:
        busiest = max(loads, key=lambda load: load.calls)
        words = (
            f"{calls:,} calls ended in {span.label}, {failed:,} of them failed ({failed / calls:.1%}). "
            f"Most, {busiest.calls:,}, in the stretch from {moment_text(busiest.start, span)}."
        )
    else:
        words = f"No call ended in {span.label}."
    return _chart(
        "calls",
        "Calls and failures",
        words,
        [(load.failed, load.calls) for load in loads],
        top=lambda most: f"{most:,.0f}",
        parts=("failed", "ended well"),
    )


def latency_chart(loads: Sequence[Load], span: Span) -> Chart:
    timed = [load for load in loads if load.p50_ms is not None and load.p95_ms is not None]
    if timed:
        slowest = max(timed, key=lambda load: load.p95_ms or 0.0)
        words = (
            f"Of each stretch of {span.label}: half of the calls took at most the lower mark, 95 of 100 at "
            f"most the upper. The highest upper mark, {duration_text(slowest.p95_ms)}, stands in the stretch "
            f"from {moment_text(slowest.start, span)}."
        )
    else:
        words = f"No call ended in {span.label}."
    return _chart(
        "latency",
        "Latency",
        words,
        [(load.p50_ms or 0.0, load.p95_ms or 0.0) for load in loads],
        top=duration_text,
        parts=("median (p50)", "95th percentile (p95)"),
    )


def rows(loads: Sequence[Load], span: Span) -> tuple[Row, ...]:
    """What the bars stand for; stretches without calls are left out."""
    return tuple(
        Row(
            start=moment_text(load.start, span),
            calls=load.calls,
            failed=load.failed,
            p50=duration_text(load.p50_ms),
            p95=duration_text(load.p95_ms),
        )
        for load in loads
        if load.calls
    )


def _chart(
    name: str,
    title: str,
    words: str,
    heights: Sequence[tuple[float, float]],
    *,
    top: Callable[[float], str],
    parts: tuple[str, str],
) -> Chart:
    most = _round_up(max((upper for _, upper in heights), default=0.0))
    bars = []
    for at, (lower, upper) in enumerate(heights):
        if upper <= 0:
            continue
        low, high = (round(HEIGHT * min(value / most, 1.0), 2) for value in (lower, upper))
        # A bar of almost nothing is still something that happened.
        high = max(high, 1.0)
        low = max(low, 1.0) if lower > 0 else 0.0
        bars.append(
            Bar(
                x=at * SLOT + _GAP / 2,
                width=SLOT - _GAP,
                lower_y=HEIGHT - low,
                lower_height=low,
                upper_y=HEIGHT - high,
                upper_height=round(max(high - low, 0.0), 2),
            )
        )
    return Chart(
        name=name,
        title=title,
        words=words,
        width=len(heights) * SLOT,
        top=top(most) if bars else "",
        lower=parts[0],
        upper=parts[1],
        bars=tuple(bars),
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 …: where an axis may end."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 5) if step * power >= value), 10 * power)


def duration_text(ms: float | None) -> str:
    if ms is None:
        return "–"
    if ms >= 60_000:
        return f"{ms / 60_000:.1f} min"
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"


def moment_text(ts: float, span: Span) -> str:
    when = datetime.fromtimestamp(ts, UTC)
    return f"{when:%H:%M} UTC" if span.width_s < 3600 else f"{when:%d %b %H:%M} UTC"
