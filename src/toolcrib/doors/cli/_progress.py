"""What a person at the terminal sees of long work: one line on stderr, wiped at the end.

Nothing is told where the work is short, where stderr is no terminal, or where somebody wants it quiet.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click

from toolcrib.doors.cli import Shared

LONG_S: Final = 1.0
_AGAIN_S: Final = 0.5


@contextmanager
def telling(shared: Shared, text: Callable[[int], str], *, after_s: float = LONG_S) -> Iterator[None]:
    """Tell of the work in the block, once it takes long; ``text`` is handed the seconds so far."""
    if shared.quiet or not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    started = time.monotonic()

    def tell() -> None:
        if over.wait(after_s):
            return
        with suppress(OSError):  # the terminal is gone: nobody looks, and the work goes on
            while True:
                click.echo(f"\r\x1b[K{text(int(time.monotonic() - started))}", nl=False, err=True)
                if over.wait(_AGAIN_S):
                    break
            click.echo("\r\x1b[K", nl=False, err=True)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@contextmanager
def counting(shared: Shared, doing: str, *, is_silent: bool) -> Iterator[Callable[[int, int], None]]:
    """As ``telling``, for the segments of the journal; gives what is told how many were read. Where programs
    are to read what comes, nothing is told."""
    read = (0, 0)

    def count(done: int, total: int) -> None:
        nonlocal read
        read = (done, total)

    if is_silent:
        yield count
        return
    with telling(shared, lambda _: f"{doing}: {read[0]:,} of {read[1]:,} segments (Ctrl-C stops it)"):
        yield count
