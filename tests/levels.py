"""Every isolation level that works on this machine, for tests that run real processes on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from toolcrib.model import LEVELS, Level
from toolcrib.sandbox import Sandbox, probe
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.portable import Portable


@cache
def tried() -> probe.Tried:
    return probe.try_layers()


def each_level() -> list[object]:
    """For ``pytest.mark.parametrize``: a level that is missing is skipped, and says why."""
    best = LEVELS.index(tried().level)
    missing = pytest.mark.skip("this machine lacks a layer; `toolcrib doctor` names it and the fix")
    return [
        pytest.param(level, id=level, marks=[] if LEVELS.index(level) <= best else [missing])
        for level in Level
    ]


@contextmanager
def sandbox_of(level: Level) -> Iterator[Sandbox]:
    """A sandbox of exactly this level."""
    made: Sandbox
    match level:
        case Level.PORTABLE:
            made = Portable(Scratch())
        case Level.RESTRICTED:
            made = probe.restricted(landlock=tried().landlock, scratch=Scratch())
        case Level.SUPERVISED:
            made = probe.choose()
    assert made.level is level
    try:
        yield made
    finally:
        made.close()
