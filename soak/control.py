"""How late the machine itself is while a soak runs: a control for how late we are.

    python control.py FOLDER

Sleeps, writes a byte to a file in FOLDER and syncs it, again and again, until its stdin is closed. Then
prints in milliseconds by how much its longest sleep came late and how long its longest sync took.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEP_S = 0.02


class Control:
    """What the other process found, once it is over."""

    late_ms = 0.0
    sync_ms = 0.0

    def __str__(self) -> str:
        return (
            f"the machine itself: late by at most {self.late_ms:.0f} ms, a sync at most {self.sync_ms:.0f} ms"
        )


@contextmanager
def beside(folder: Path) -> Iterator[Control]:
    """A process of its own: a thread would be as late as our own threads make it."""
    found = Control()
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield found
        finally:
            said, _ = process.communicate()
    found.late_ms, found.sync_ms = map(float, said.split())


def main(folder: str) -> None:
    late_s = sync_s = 0.0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        is_over = False
        while not is_over:
            began = time.monotonic()
            is_over = bool(select.select([0], [], [], STEP_S)[0])
            woken = time.monotonic()
            os.pwrite(file.fileno(), b"x", 0)
            os.fdatasync(file.fileno())
            if not is_over:
                late_s = max(late_s, woken - began - STEP_S)
            sync_s = max(sync_s, time.monotonic() - woken)
    print(late_s * 1000, sync_s * 1000)


if __name__ == "__main__":
    main(sys.argv[1])
