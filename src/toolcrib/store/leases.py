"""Marks of calls that are running: locked files, which the kernel unlocks when their process ends.

A mark holds no process number: numbers are used again, and a container has numbers of its own.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from toolcrib.errors import StoreError
from toolcrib.forks import IN_FORKS
from toolcrib.store import private

_LEFT_S: Final = 86_400.0
"""So old is a mark that its host left behind when it is removed."""
_SWEPT_MAX: Final = 256


class Leases:
    """The marks of one folder, which is made at the first one. Used from many threads and programs."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: set[int] = set()
        IN_FORKS.add(self)

    def renew(self) -> None:
        """Close the descriptors of a copy made by fork. Attack: a copy that outlives its host, and keeps the
        calls of that host running for ever, as others see it."""
        held, self._held = self._held, set()
        for descriptor in held:
            with suppress(OSError):
                os.close(descriptor)

    @contextmanager
    def taken(self) -> Iterator[str]:
        """Hold a new mark; its name. Raises StoreError where it cannot be made."""
        private.folder(self._folder)
        name = os.urandom(16).hex()
        path = os.path.join(self._folder, name)
        host = os.getpid()
        descriptor = -1
        try:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(path, flags, 0o600)
                self._held.add(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise _trouble(path, error) from None
            yield name
        finally:
            if descriptor >= 0 and os.getpid() == host:
                with suppress(OSError):
                    os.unlink(path)
                self._held.discard(descriptor)
                os.close(descriptor)

    def is_held(self, name: str) -> bool:
        """Whether a live process holds a mark. Raises StoreError where that cannot be seen."""
        path = os.path.join(self._folder, os.path.basename(name))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _trouble(path, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise _trouble(path, error) from None
        finally:
            os.close(descriptor)
        return False

    def sweep(self) -> None:
        """Remove old marks that killed hosts left behind, a bounded number of them."""
        with suppress(OSError):
            for name in os.listdir(self._folder)[:_SWEPT_MAX]:
                path = os.path.join(self._folder, name)
                with suppress(OSError, StoreError):
                    if os.lstat(path).st_mtime < time.time() - _LEFT_S and not self.is_held(name):
                        os.unlink(path)


def _trouble(path: str, error: OSError) -> StoreError:
    why = (error.strerror or "cannot be used").lower()
    return StoreError(
        f"{path}: {why}",
        "name a state folder that can be written, and whose files can be locked, with --state",
    )
