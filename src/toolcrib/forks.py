"""Copies of a host that are made by fork: what has to begin anew there. One list for all rooms.

A copy has one thread. Locks that others held are held for ever, and descriptors, counts and random bytes are
the original's as well.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forked(Protocol):
    """Begins anew in each copy, if it lives then. Must not raise: the others would not come to it."""

    def renew(self) -> None: ...


IN_FORKS: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def _after_fork() -> None:
    for made in list(IN_FORKS):
        made.renew()


os.register_at_fork(after_in_child=_after_fork)
