"""Fixtures that many tests use. Nothing here patches anything: homes, folders and machines are arguments."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same inputs in every run, so that a failure belongs to the change that it is seen with. New inputs are
# for `make explore`; what it finds becomes an @example. No deadlines: a busy machine is not a wrong answer.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile("steady")

# Whoever runs the tests in the background (`make test &` in a script, nohup) has these ignored, and so would
# every program that a test starts and then interrupts: it would wait for ever.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="module")
def _only_its_own_garbage() -> Iterator[None]:
    """Thousands of tests are a million objects (the tests, reports, modules, what hypothesis keeps). A walk
    of the collector through all of them takes most of a second, in the midst of whatever a test measures."""
    gc.freeze()
    yield
    gc.collect()
    gc.freeze()


SHARED = Path(__file__).parent.parent.parent / "shared"


def shared(part: str) -> Path:
    """Material that lies beside the repository and is never copied into it; skips where it is absent."""
    path = SHARED / part
    if not path.exists():
        pytest.skip(f"{part} is not beside this checkout; put the shared folder there to run this test")
    return path
