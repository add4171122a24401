"""The store of a host as calls see it: opened only when something is in it or has to go in.

SQLite is slow to import and most hosts never switch anything off, so a look at the file's stamp answers what
every call asks. What is in the store, and how, ``store/__init__`` and ``sqlite.py`` say.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Final

from toolcrib.errors import StoreError
from toolcrib.model import LOCKS, Disabled
from toolcrib.paths import is_settled
from toolcrib.store import Store

STORE_NAME: Final = "state.sqlite"
FRESH_S: Final = 0.005
"""So old may be what a look at what was switched found, and an answer made of it as much again: a hundredth
of a second in all."""


def lock_memory(state: str, lock: str) -> str:
    """The folder in which a host remembers what it approved of one lock, by the lock's path."""
    name = hashlib.sha256(os.path.realpath(lock).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(state, LOCKS, name)


class Keep:
    """The store of a host, opened only when something is in it or has to go in."""

    def __init__(self, path: str, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._parents: Store | None = None
        self._host = os.getpid()
        self._seen: tuple[object, tuple[Disabled, ...]] = (None, ())
        self._looked = (-1.0, 0)
        """When it was last looked at what is switched off, and after how many switches."""
        self.switched = 0
        """How often something was switched here."""

    @property
    def folder(self) -> str:
        """Where it lies."""
        return os.path.dirname(self._path)

    def opened(self) -> Store:
        with self._lock:
            if self._host != os.getpid():  # SQLite: a connection is neither used nor closed in a fork
                self._parents, self._store, self._host = self._store, None, os.getpid()
            if self._store is None:
                self._store = import_module("toolcrib.store.sqlite").SqliteStore(self._path)
            return self._store

    def present(self) -> Store | None:
        """The store, where there is one: whoever only looks makes none."""
        return None if self._store is None and _stamp(self._path) is None else self.opened()

    def stamp(self) -> object:
        """What differs whenever the store changed; the same for as long as there is none."""
        found = _stamp(self._path), _stamp(f"{self._path}-wal")
        # Attack: a tool switched off, or a token revoked, within the same tick of the file system's clock in
        # which we looked: the log is written over in place, so that its size tells nothing, and we never look
        # again. What changed just now differs from everything.
        now = self._clock_ns()
        return found if all(stamp is None or is_settled(stamp[2], now) for stamp in found) else object()

    def disabled(self, now: float) -> tuple[Disabled, ...]:
        """What is switched off, as of a moment ago: every call asks."""
        # Attack: a tool switched off while somebody looks, whose look is then taken for one that came after.
        switched = self.switched
        at, after = self._looked
        if after != switched or not at <= now < at + FRESH_S:
            stamp = self.stamp()
            if stamp == (None, None):
                self._seen = (stamp, ())
            elif self._seen[0] != stamp:
                disabled = import_module("toolcrib.store.disabled").disabled
                self._seen = (stamp, disabled(self.opened(), now))
            self._looked = (now, switched)
        off = self._seen[1]
        return tuple([entry for entry in off if entry.until is None or entry.until > now]) if off else ()

    def look_again(self) -> None:
        """What was switched here counts at once."""
        self.switched += 1

    def close(self) -> None:
        with self._lock:
            if self._store is not None and self._host == os.getpid():
                self._store.close()
                self._store = None


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What tells that a file of the store changed; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # not to be seen is not to be absent
        why = (error.strerror or "cannot be read").lower()
        raise StoreError(f"{path}: {why}", "make the state folder readable for the host's user") from None
    return status.st_ino, status.st_size, status.st_mtime_ns
