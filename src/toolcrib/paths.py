"""Paths as texts: which lies below which, and which are texts at all; what the times of files tell. Pure.

Nothing is looked at, so links and ``..`` are the asker's business: ``catalog/files.py`` follows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

TEMPORARY_FOLDER: Final = "/tmp"
"""The system's own, where nobody names another."""
APPEARED_FOLDER: Final = "appeared"
"""In the state folder: what has appeared and waits for a person (``catalog/appeared.py``)."""
OPEN_HOSTS_FOLDER: Final = "open"
"""In the state folder: what hosts that run now saw when their tools began to write."""
WRITES_FILE: Final = "writes.json"
"""In the state folder: when tools of earlier hosts could write, and where (``catalog/writes.py``)."""
NOTED: Final = (APPEARED_FOLDER, OPEN_HOSTS_FOLDER, WRITES_FILE)
"""All of these: where none of them is there, no tool of a host could write anything."""
SETTLED_NS: Final = 2_000_000_000
"""Longer than any tick of a file system's clock: small ext4 volumes count in seconds, kernels before 6.13 in
hundredths. A second change within one tick leaves a file's times as they are."""
TICKS_NS: Final = 50_000_000
"""Longer than any tick of a kernel's clock."""
_MILLISECOND_NS: Final = 1_000_000


def is_below(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of the roots or lies below one. Whole components, so /a-b is not below /a.

    Nothing is below a root that is not known (""), though every absolute path begins like it.
    """
    return any(root and (path == root or path.startswith(f"{root.rstrip('/')}/")) for root in roots)


def upwards(path: str) -> Iterator[str]:
    """An absolute path, and every folder above it."""
    while True:
        yield path
        above = path.rpartition("/")[0] or "/"
        if above == path:
            return
        path = above


def is_settled(changed_ns: int, looked_ns: int, *, by_our_clock: bool = False) -> bool:
    """Whether a file that changed then, as its times say, and was looked at then shows its next change in its
    times. Where it does not, whoever remembers what it saw never learns of that change.

    ``by_our_clock``: its times come from this machine's clock, as they do in a folder of our own. Then one
    that is no whole millisecond comes from a file system that has nothing coarser than the kernel's ticks.
    """
    is_fine = by_our_clock and changed_ns % _MILLISECOND_NS != 0
    return changed_ns + (TICKS_NS if is_fine else SETTLED_NS) <= looked_ns


def is_utf8(path: str) -> bool:
    """Whether a path is a text: file names may be any bytes, and what we keep and send cannot."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
