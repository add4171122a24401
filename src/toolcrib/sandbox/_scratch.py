"""Scratch folders: one for each call, private, emptied afterwards, never left behind.

They lie in a folder of this host below the system's temporary folder. A lock that the host holds while it
lives tells leftovers from folders in use, so the next host removes what a killed one could not, or what one
could not in time. Emptying follows no links and needs no deep stack: what a tool left is hostile until it is
gone.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Final

from toolcrib.paths import TEMPORARY_FOLDER

EMPTYING_S: Final = 0.05
"""How long a call, or a host that begins, waits for removing. The rest is removed in the background."""

REMOVING_S: Final = 1.0
"""How long a host that ends waits. What is not gone by then is left to the next host."""

_LOCK_SUFFIX: Final = ".lock"
_ENTRIES_MAX: Final = 100_000
_ENTRIES_PER_LOOK: Final = 1000
_STEP_S: Final = 0.1
"""The background removes for so long before it looks whether the host ends."""


_JUST_NOW_NS: Final = 20_000_000
"""Longer than a tick of the kernel's clock, and than making a folder takes."""


class Scratch:
    """The scratch folders of one host. Any thread may ask."""

    def __init__(self, base: str | None = None, *, removing_s: float = REMOVING_S) -> None:
        self._removing_s = removing_s
        self._lock = threading.Lock()
        self._parent = _private(os.path.realpath(base or TEMPORARY_FOLDER))
        self._folder, self._held = _locked(self._parent)
        # Attack: a temporary folder elsewhere, whose clock is behind ours, so that what a call made in the
        # same tick as the folder is not seen to be there.
        behind_ns = time.time_ns() - os.stat(self._folder).st_ctime_ns
        self.has_our_clock = 0 <= behind_ns < _JUST_NOW_NS
        """Whether the times of what lies in it come from this machine's clock: it was made just now."""
        self._free: list[str] = []
        self._aside: deque[str] = deque()
        self._remover: threading.Thread | None = None
        self._has_leftovers = not _remove_leftovers(self._parent, time.monotonic() + EMPTYING_S)
        if self._has_leftovers:
            self._remove_in_background()

    @property
    def folder(self) -> str:
        """Where they lie."""
        return self._folder

    def take(self) -> str:
        """An empty folder for one call, ours alone."""
        with self._lock:
            path = self._free.pop() if self._free else ""
        if not path:
            path = os.path.join(self._folder, f"s-{os.urandom(8).hex()}")
            os.mkdir(path, 0o700)
        if os.geteuid() == 0:
            os.chown(path, 0, 0)  # whoever had it before may have owned it
        return path

    def empty(self, path: str) -> bool:
        """Remove what a call left, and keep the folder. False if that takes long, or a tool removed it."""
        return _empty(path, remove=False, until=time.monotonic() + EMPTYING_S) and os.path.isdir(path)

    def give_back(self, path: str) -> None:
        """The call is over: the folder is emptied and used again, or put aside when it holds too much."""
        clean = False
        with suppress(OSError):
            clean = self.empty(path)
        with self._lock:
            (self._free if clean else self._aside).append(path)
        if not clean:
            self._remove_in_background()

    def _remove_in_background(self) -> None:
        """Attack: folders without number, or in each other without end. No call waits until they are gone."""
        with self._lock:
            if self._held < 0 or (self._remover is not None and self._remover.is_alive()):
                return
            self._remover = threading.Thread(target=self._remove_aside, name="scratch", daemon=True)
            with suppress(RuntimeError):  # no more threads for this user: left to the end
                self._remover.start()

    def _remove_aside(self) -> None:
        while True:
            with self._lock:
                path = self._aside.popleft() if self._aside else ""
                if self._held < 0 or not (path or self._has_leftovers):
                    self._remover = None
                    return
            until = time.monotonic() + _STEP_S
            if not path:
                self._has_leftovers = not _remove_leftovers(self._parent, until)
                continue
            # Attack: a tool puts something in its folder's place that nobody can empty: left to the end.
            with suppress(OSError):
                if not _empty(path, remove=True, until=until):
                    with self._lock:
                        self._aside.append(path)

    @property
    def empty_folder(self) -> str:
        """A folder in which nothing ever lies and nobody may write."""
        path = os.path.join(self._folder, "empty")
        with suppress(FileExistsError):
            os.mkdir(path, 0o555)
        return path

    def close(self) -> None:
        """Remove everything, or leave it to the next host where that takes too long."""
        with self._lock:
            self._free.clear()
            self._aside.clear()
            if self._held < 0:
                return
            held, self._held = self._held, -1
            remover = self._remover
        if remover is not None and remover.is_alive():
            remover.join()
        until = time.monotonic() + self._removing_s
        if remove(self._folder, until):
            with suppress(OSError):
                os.unlink(self._folder + _LOCK_SUFFIX)
        os.close(held)
        if self._has_leftovers:
            _remove_leftovers(self._parent, until)


def size(folder: str, enough: int, until: float = math.inf) -> int:
    """Return the space that a folder takes on disk, counted until it is more than ``enough``, or until then.
    Follows no links.

    Attack: files in a folder that its maker closed to us, or so many that counting them is the load. Both
    count as too much.
    """
    total = entries = 0
    waiting = [folder]
    while waiting and total <= enough:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    with suppress(FileNotFoundError):
                        total += max(entry.stat(follow_symlinks=False).st_blocks * 512, 512)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                    if entries > _ENTRIES_MAX:
                        return enough + 1
                    if time.monotonic() > until:
                        return total
        except FileNotFoundError:
            continue
        except OSError:
            return enough + 1
    return total


def _private(base: str) -> str:
    """The folder of all our hosts for this user.

    Attack: on a shared machine somebody makes it before us, or a link of that name, and sees or swaps what
    our tools write. One that is not ours alone is not used.
    """
    path = os.path.join(base, f"toolcrib-{os.geteuid()}")
    # As root, tools run as another user, who must pass through but not look.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    with suppress(FileExistsError):
        os.mkdir(path, mode)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        path = os.path.join(base, f"toolcrib-{os.urandom(8).hex()}")
        os.mkdir(path, 0o700)
    os.chmod(path, mode)
    return path


def _locked(parent: str) -> tuple[str, int]:
    """A new folder, and the lock that says its host lives."""
    while True:
        folder = os.path.join(parent, f"h-{os.getpid()}-{os.urandom(4).hex()}")
        path = folder + _LOCK_SUFFIX
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            # A host that cleans up may have taken the file for a leftover before it was locked.
            if _is_at(path, held):
                os.mkdir(folder, 0o711 if os.geteuid() == 0 else 0o700)
                return folder, held
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            os.close(held)
            raise
        os.close(held)


def _is_at(path: str, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _remove_leftovers(parent: str, until: float) -> bool:
    """Remove what hosts left that ended without; False if there was no time for all of it."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.endswith(_LOCK_SUFFIX):
                continue
            with suppress(OSError):
                held = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if remove(entry.path.removesuffix(_LOCK_SUFFIX), until):
                        os.unlink(entry.path)
                    elif time.monotonic() > until:
                        return False
                finally:
                    os.close(held)
    return True


def remove(path: str, until: float | None = None) -> bool:
    """Remove a folder of folders whole, as far as we may and at most until then; whether it is gone.

    Attack: a process that outlived its call (below ``supervised``) makes files as fast as we remove them, and
    the host never ends, or never begins.
    """
    with suppress(OSError):
        _make_ours(path)
        _empty(path, remove=True, until=time.monotonic() + REMOVING_S if until is None else until)
    return not os.path.lexists(path)


def _empty(path: str, *, remove: bool, until: float) -> bool:
    """Remove the entries of a folder, at least one of them; False if there was no time for all.

    A folder inside is moved to the top before it is looked into: however deep a tool nested them, two
    descriptors and no recursion are enough.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        while found := _some_entries(top):
            for name, is_folder in found:
                if not is_folder:
                    os.unlink(name, dir_fd=top)
                else:
                    _make_ours(name, top)
                    if not _move_up(name, top, until):
                        return False
                    os.rmdir(name, dir_fd=top)
                if time.monotonic() > until:
                    return False
    finally:
        os.close(top)
    if remove:
        os.rmdir(path)
    return True


def _some_entries(top: int) -> list[tuple[str, bool]]:
    """Return some entries of a folder: their names, and which are folders.

    Looking for one at a time passes all that were removed before, each time.
    """
    with os.scandir(top) as entries:
        some = islice(entries, _ENTRIES_PER_LOOK)
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in some]


def _move_up(name: str, top: int, until: float) -> bool:
    """Unlink the files of a folder and move its folders to the top; False if there was no time for all."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _make_ours(entry.name, folder)
                    os.rename(entry.name, f"x-{os.urandom(8).hex()}", src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=folder)
                if time.monotonic() > until:
                    return False
    finally:
        os.close(folder)
    return True


def _make_ours(name: str, folder: int | None = None) -> None:
    """Let us into a folder that its maker locked.

    Attack: a process that still runs puts a link in the folder's place, and we change the mode of what it
    names. So the folder itself is held before its mode is changed.
    """
    if os.geteuid() == 0 or not hasattr(os, "O_PATH"):
        return
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(held).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{held}", 0o700)
    finally:
        os.close(held)
