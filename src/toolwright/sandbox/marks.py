"""The mark of a tool's processes: a limit that they inherit and cannot raise, and that the kernel shows.

The server reads it to tell tools, of any host, from programs of the owner on loopback. Linux only.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

from toolwright.sandbox.rules import TOOL_LOCKS, Rlimit

_LINE: Final = b"\nMax file locks "


def mark(process: int) -> None:
    """Mark a process that was just started, at levels that cannot do it before the start."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):  # it has ended
            resource.prlimit(process, int(Rlimit.LOCKS), (TOOL_LOCKS, TOOL_LOCKS))


def is_marked(process: int) -> bool:
    """Whether a process belongs to a tool. True as well if that cannot be read: it has ended."""
    try:
        with open(f"/proc/{process}/limits", "rb") as file:
            _soft, hard = file.read().partition(_LINE)[2].split(maxsplit=2)[:2]
    except (OSError, ValueError):
        return True
    # Attack: a tool lowers the limit further, to look like none.
    return hard != b"unlimited" and int(hard) <= TOOL_LOCKS
