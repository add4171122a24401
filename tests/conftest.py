"""Fixtures that many tests use. Nothing here patches anything: homes, folders and machines are arguments."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import installing

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


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print a line on the terminal, whatever is captured."""
    capturing = pytestconfig.pluginmanager.getplugin("capturemanager")

    def write(text: str) -> None:
        with capturing.global_and_fixture_disabled():
            sys.stderr.write(f"\n{text}\n")
            sys.stderr.flush()

    return write


@pytest.fixture(scope="session")
def npm_packages(say: Callable[[str], None]) -> Path:
    """The folder of the npm packages that tests talk to; the first test that needs them installs them."""
    if reason := installing.npm_packages(say):
        pytest.skip(reason)
    return installing.SERVERS / "node_modules"


@pytest.fixture(scope="session")
def chromium(say: Callable[[str], None]) -> str:
    """The browser's command; the first test that needs it installs it, as root."""
    if reason := installing.debian("chromium", say):
        pytest.skip(reason)
    return "chromium"


@pytest.fixture(scope="session")
def musl_gcc(say: Callable[[str], None]) -> str:
    """The compiler for the other C library; the first test that needs it installs it, as root."""
    if reason := installing.debian("musl-gcc", say):
        pytest.skip(reason)
    return "musl-gcc"


SHARED = Path(__file__).parent.parent.parent / "shared"


def shared(part: str) -> Path:
    """Material that lies beside the repository and is never copied into it; skips where it is absent."""
    path = SHARED / part
    if not path.exists():
        pytest.skip(f"{part} is not beside this checkout; put the shared folder there to run this test")
    return path
