"""How the benchmarks measure: rows with goals, medians of interleaved rounds, contestants in processes of
their own."""

from __future__ import annotations

import gc
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass
class Row:
    name: str
    value: float
    unit: str
    goal: float
    met: bool
    detail: str = ""
    at_least: bool = False
    """The goal is a floor, not a ceiling."""


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(rounds: int, **works: Callable[[], object]) -> dict[str, float]:
    """The median of each work, all of them once per round."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(timed(work))
    return {name: statistics.median(found) for name, found in times.items()}


def ratio(name: str, value: float, yardstick: float, goal: float) -> Row:
    found = value / yardstick
    detail = f"{value * 1000:.1f} ms to {yardstick * 1000:.1f} ms"
    return Row(name, round(found, 2), "x", goal, found <= goal, detail)


# -- contestants --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """So many calls of one contestant."""

    median_s: float
    """Of one call."""
    wall_s: float
    """Of all of them together."""
    count: int


class WrongAnswer(Exception):
    """A contestant that answers wrongly is not measured."""


class Contestant:
    """A process that makes calls when it is asked to, and checks every answer.

    It is written lines "COUNT THREADS" and answers each with "MEDIAN_NS WALL_NS WRONG".
    """

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def calls(self, count: int, threads: int = 1) -> Round:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{count} {threads}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise WrongAnswer(f"{self.name} ended ({self._process.wait()})")
        median_ns, wall_ns, wrong = map(int, line.split())
        if wrong:
            raise WrongAnswer(f"{self.name}: {wrong} of {count} answers were wrong")
        return Round(median_ns / 1e9, wall_ns / 1e9, count)

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


RESTED = " rested"


def contested(
    rounds: int, contestants: Sequence[Contestant], count: int, threads: int = 1, *, rested: int = 0
) -> dict[str, list[Round]]:
    """All contestants once per round, in turn, after one round that does not count.

    Whoever waits for its turn finds processors asleep and caches cold. ``rested``: so many calls come first,
    and are found apart, under the contestant's name and ``RESTED``.
    """
    found: dict[str, list[Round]] = {}
    for number in range(rounds + 1):
        for contestant in contestants:
            for name, wanted in ((contestant.name + RESTED, rested), (contestant.name, count)):
                done = (
                    contestant.calls(wanted if number else max(1, wanted // 4), threads) if wanted else None
                )
                if number and done is not None:
                    found.setdefault(name, []).append(done)
    return found


def medians(rounds: Sequence[Round]) -> float:
    return statistics.median(one.median_s for one in rounds)


def per_second(rounds: Sequence[Round]) -> float:
    return statistics.median(one.count / one.wall_s for one in rounds)
