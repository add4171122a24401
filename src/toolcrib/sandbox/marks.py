"""The mark of a tool's processes: a limit that they inherit, cannot raise, and that the kernel shows.

The server reads it before it takes a program on loopback for its owner. A level reads it to find what a call
left behind. Linux only.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

from toolcrib.sandbox.rules import MARK, MARK_MAX

_LINE: Final = b"\nMax file locks "


def mark(process: int) -> None:
    """Mark a process that was just started, at levels that cannot do it before the start."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):  # it has ended
            resource.prlimit(process, int(MARK), (MARK_MAX, MARK_MAX))


def mark_of(process: int) -> int | None:
    """Return the value of the mark of a process, or None if it has none. Raises OSError if it has ended."""
    try:
        with open(f"/proc/{process}/limits", "rb") as file:
            _soft, hard = file.read().partition(_LINE)[2].split(maxsplit=2)[:2]
    except ValueError:
        raise OSError(f"/proc/{process}/limits does not show the limit") from None
    return None if hard == b"unlimited" else int(hard)


def is_marked(process: int) -> bool:
    """Return whether a process belongs to a tool. True as well if that cannot be read: it has ended."""
    try:
        mark = mark_of(process)
    except OSError:
        return True
    # Attack: a tool lowers the limit further, to look like none.
    return mark is not None and mark <= MARK_MAX
