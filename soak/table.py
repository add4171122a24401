"""What was looked for, what was found, and whether that is good enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    what: str
    found: str
    goal: str
    met: bool


def exactly(what: str, found: int, goal: int = 0) -> Line:
    return Line(what, f"{found:,}", f"{goal:,}", found == goal)


def at_most(what: str, found: float, goal: float, unit: str) -> Line:
    return Line(what, f"{found:,.1f} {unit}", f"≤ {goal:,.0f} {unit}", found <= goal)


def show(title: str, lines: list[Line], notes: list[str]) -> bool:
    """Print a table; whether every goal was met."""
    width = max(len(line.what) for line in lines)
    print(f"\n{title}")
    for line in lines:
        verdict = "met" if line.met else "MISSED"
        print(f"  {line.what:<{width}}  {line.found:>14}  goal {line.goal:<12} {verdict}")
    for note in notes:
        print(f"  {note}")
    return all(line.met for line in lines)
