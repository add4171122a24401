"""Hold names that do not exist, by placeholders that mean nothing and that a tool can only read.

A mount can hold what exists, and what git obeys in a repository need not exist: a ``commondir`` or ``hooks``
that a tool makes is obeyed by the user's next git command, in the middle of the call or later. So the host
puts a placeholder in its place, which changes nothing for git, and takes it away when the last call that
needs it is over. Calls of all hosts agree by a lock on it (``flock``): shared while it is needed, exclusive
to remove it, because removing it takes the mounts on it away.

A host that was killed leaves its placeholders. They mean nothing, and the next call that needs them takes
them over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from toolcrib.catalog import files
from toolcrib.sandbox import _kernel

CONFIG: Final = "config"
OF_WORKTREE: Final = f"{CONFIG}.worktree"

_CONTENTS: Final = {
    # With this content a repository shares its own folder. (libgit2 takes "." for a folder elsewhere.)
    "commondir": b"./\n",
    CONFIG: b"",
    OF_WORKTREE: b"",
    "hooks": None,
    "modules": None,
}
"""The content of each placeholder by its name; None: an empty folder."""
_MADE_NS: Final = 1_000_000 * 10**9
"""When each of them was last changed, as it says. Nothing of a user's says so."""
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES, _PAUSE_S = 500, 0.001
"""Another host removes it in that moment."""
_SETS_WORK_TREE: Final = re.compile(
    rb"(?mi)^\s*(?:\[core\])?\s*(?:worktree\s*=|bare(?!\s*=\s*(?:false|no|off|0)\s*$))"
)


class Held:
    """Names that are held. Close it when no process of the tool is left."""

    def __init__(self) -> None:
        self.paths: tuple[str, ...] = ()
        """Of them, and of what was there after all: all of it must be read-only to the tool."""
        self._locks: list[tuple[int, str]] = []

    def add(self, path: str, lock: int) -> None:
        self.paths = (*self.paths, path)
        if lock >= 0:
            self._locks.append((lock, path))

    def close(self) -> None:
        """Take away what no other call needs."""
        while self._locks:
            lock, path = self._locks.pop()
            with suppress(OSError):
                _remove(path, lock)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # a copy of the host made by fork may have it as well
            os.close(lock)


def hold(paths: Iterable[str]) -> Held:
    """Hold the names that can be held; ``Held.paths`` says which. The others are watched by callers."""
    held = Held()
    for path in paths:
        with suppress(OSError):
            _hold(path, held)
    return held


def is_one(path: str) -> bool:
    """Whether the path is a placeholder, of any host that lives or was killed.

    Attack: a tool makes something that passes for one. It must have their content, which means nothing.
    """
    if os.path.basename(path) not in _CONTENTS:
        return False
    try:
        found = os.open(path, _LOOK)
    except OSError:
        return False
    try:
        return _means_nothing(found, os.path.basename(path))
    finally:
        os.close(found)


def _means_nothing(found: int, name: str) -> bool:
    content = _CONTENTS[name]
    status = os.fstat(found)
    if status.st_mtime_ns != _MADE_NS:
        return False
    if content is None:
        return stat.S_ISDIR(status.st_mode) and not os.listdir(found)
    return stat.S_ISREG(status.st_mode) and os.pread(found, len(content) + 1, 0) == content


def _hold(path: str, held: Held) -> None:
    folder, name = os.path.split(path)
    if name not in _CONTENTS or (name == "commondir" and _sets_work_tree(folder)):
        return
    # Attack: a tool that still runs puts a link in the place of the folder, and we write elsewhere.
    at = _kernel.open_real(folder)
    try:
        for _ in range(_TRIES):
            _make(at, name)
            try:
                lock = os.open(name, _LOOK, dir_fd=at)
            except FileNotFoundError:
                continue
            except OSError:
                held.add(path, -1)  # closed to us, or a link: it is there, and not ours
                return
            if not _means_nothing(lock, name):
                os.close(lock)
                held.add(path, -1)
                return
            if _is_locked(lock, name, at):
                held.add(path, lock)
                return
            os.close(lock)
            time.sleep(_PAUSE_S)
    finally:
        os.close(at)


def _is_locked(lock: int, name: str, at: int) -> bool:
    """Whether the placeholder is there, and stays there as long as the lock is held."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=at, follow_symlinks=False))
    except OSError:  # it is being removed
        return False


def _make(at: int, name: str) -> None:
    """Put a placeholder there whole, if nothing is there."""
    content = _CONTENTS[name]
    made = f".toolcrib-{os.urandom(8).hex()}"
    if content is None:
        os.mkdir(made, dir_fd=at)
    else:
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(made, how, 0o600, dir_fd=at)
        with os.fdopen(file, "wb") as written:
            written.write(content)
    try:
        # The user's git must read it, whatever our umask and user are.
        os.chmod(made, 0o555 if content is None else 0o444, dir_fd=at)
        os.utime(made, ns=(_MADE_NS, _MADE_NS), dir_fd=at, follow_symlinks=False)
        _kernel.rename_to_nothing(at, made, name)
    except OSError as error:
        (os.rmdir if content is None else os.unlink)(made, dir_fd=at)
        if error.errno != errno.EEXIST:
            raise


def _remove(path: str, lock: int) -> None:
    """Attack: another call of this or another host needs it still."""
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    at = _kernel.open_real(os.path.dirname(path))
    try:
        name = os.path.basename(path)
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        if os.path.samestat(os.fstat(lock), status) and _means_nothing(lock, name):
            (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(name, dir_fd=at)
    finally:
        os.close(at)


def _sets_work_tree(folder: str) -> bool:
    """Whether the configuration says where the work tree is, or that there is none.

    Git does not believe it beside a ``commondir``: there a placeholder would mean something.
    """
    with suppress(OSError):
        return _SETS_WORK_TREE.search(files.head(os.path.join(folder, CONFIG), 1 << 20)) is not None
    return False
