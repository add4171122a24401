"""How late the machine itself is: a control for tests that bound how late we are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

STEP_S = 0.02
TRIES = 20

Found = TypeVar("Found")


class Lateness:
    """A thread that only sleeps and wakes, while something else is measured."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._late_s = 0.0
        self._thread.start()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            began = time.monotonic()
            is_over = self._over.wait(STEP_S)
            self._late_s += max(0.0, time.monotonic() - began - STEP_S)

    @property
    def all_s(self) -> float:
        """By how much its wakings came late, all together; a few milliseconds where the cores are free."""
        return self._late_s

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def measured() -> Iterator[Lateness]:
    lateness = Lateness()
    try:
        yield lateness
    finally:
        lateness.end()


def timely(act: Callable[[], Found], took_s: Callable[[Found], float], most_s: float) -> Found:
    """What came of an act that may take so long. One that took longer is tried again only where the machine
    itself was late by at least as much: it says nothing about us. The last one counts, whatever it is."""
    for _ in range(TRIES):
        with measured() as machine:
            found = act()
        if not 0 < took_s(found) - most_s <= machine.all_s:
            break
    return found
