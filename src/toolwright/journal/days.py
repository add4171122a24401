"""The manifest format's own log: one JSON line per call in a file per UTC day, best effort.

It stands beside the journal for programs that read that format's log. The journal decides whether a call may
run; this file never does: what cannot be written is told once, and the result stays as it is.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import orjson

_HIDDEN: Final = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class DayFile:
    """Appends lines below a folder."""

    def __init__(self, folder: str, told: Callable[[str], None]) -> None:
        self._folder = folder
        self._told = told
        self._lock = threading.Lock()
        self._warned = False

    def write(self, now: float, line: dict[str, Any]) -> None:
        """Append one line. Never raises."""
        when = datetime.fromtimestamp(now, UTC)
        path = os.path.join(self._folder, f"{when:%Y-%m-%d}.ndjson")
        try:
            text = orjson.dumps({"ts": f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z", **line})
            data = _HIDDEN.sub(_escaped, text.decode("utf-8")).encode("utf-8") + b"\n"
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            descriptor = os.open(
                path,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                0o600,
            )
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except (OSError, TypeError, ValueError) as error:
            with self._lock:
                first, self._warned = not self._warned, True
            if first:
                why = getattr(error, "strerror", None) or type(error).__name__
                self._told(f"{path}: {str(why).lower()}; the day file is not written, calls go on")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
