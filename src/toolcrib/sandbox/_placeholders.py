"""Hold names that do not exist, by placeholders that mean nothing and that a tool can only read.

A mount can hold what exists, and what git obeys in a repository need not exist: a ``commondir`` or ``hooks``
that a tool makes is obeyed by the user's next git command, in the middle of the call or later. So the host
puts a placeholder in its place, which changes nothing for git, and takes it away when the last call that
needs it is over. Calls of all hosts of a user agree by a lock in a folder that no tool sees: shared while it
is needed, exclusive to remove it, because removing it takes the mounts on it away.

They belong to the owner of the folder, who may use them: what a person makes of one stays. A host that was
killed leaves its placeholders. They mean nothing, and the next call that needs them takes them over.

Some names cannot be held. ``set_aside`` renames what took one of these.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from toolcrib.catalog import files
from toolcrib.model import HeldName
from toolcrib.paths import TEMPORARY_FOLDER, is_below
from toolcrib.sandbox import _kernel
from toolcrib.sandbox._gitconfig import settings

CONFIG: Final = "config"
OF_WORKTREE: Final = f"{CONFIG}.worktree"

_CONTENTS: Final = {
    # With this content a repository shares its own folder. (libgit2 takes "." for a folder elsewhere.)
    "commondir": b"./\n",
    CONFIG: b"",
    OF_WORKTREE: b"",
    "hooks": None,
    "modules": None,
    "remotes": None,
    "branches": None,
}
"""The content of each placeholder by its name; None: an empty folder. Every other one is an empty file, which
configuration may include."""
_MADE_NS: Final = 1_000_000 * 10**9
"""When each of them was last changed, as it says. Nothing of a user's says so."""
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES, _PAUSE_S = 500, 0.001
"""Another host removes it in that moment."""
_MARK: Final = ".toolcrib-"
"""In names of our own making; random characters follow."""
_NAME_CHARS_MAX: Final = 50
"""Of a name that is set aside: no character has more than four bytes, and a name has at most 255."""
_AT: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_CONFIG_BYTES_MAX: Final = 1 << 20
_FALSE: Final = ("false", "no", "off", "0", "")


class NotHeld(Exception):
    """A name that a tool could take cannot be held: the path, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class Held:
    """Names that are held. Close it when no process of the tool is left."""

    def __init__(self) -> None:
        self.names: tuple[HeldName, ...] = ()
        """Of them, and of what was there after all: all of it must be read-only to the tool."""
        self._ours: list[tuple[str, _Lock, int]] = []

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(name.path for name in self.names)

    def add(self, path: str, status: os.stat_result) -> None:
        self.names = (*self.names, HeldName(path=path, stamp=stamp(status)))

    def keep(self, path: str, lock: _Lock, found: int = -1) -> None:
        """Keep a lock until the end, and the placeholder that it is for, if we may open it."""
        self._ours.append((path, lock, found))

    def close(self) -> None:
        """Take away what no other call needs."""
        while self._ours:
            path, lock, found = self._ours.pop()
            if found >= 0:
                with suppress(OSError):
                    _remove(path, lock, found)
                _let_go(found)
            lock.close()


def hold(paths: Iterable[str], inside: Sequence[str] = ()) -> Held:
    """Hold the names that can be held; ``Held.paths`` says which. The others are watched by callers.

    ``inside``: folders of repositories, in which any name can be held. Raises NotHeld where a name that can
    be held is not: a tool that runs then could take it.
    """
    held = Held()
    try:
        for path in paths:
            folder, name = os.path.split(path)
            if name not in _CONTENTS and (name == ".git" or not is_below(folder, inside)):
                continue
            try:
                # Attack: a tool that still runs puts a link in its place, and we write elsewhere.
                at = _kernel.open_real(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise NotHeld(path, files.reason(error)) from None
            with _descriptor(at):
                try:
                    _hold(path, at, held)
                except OSError as error:
                    if not _is_closed_to_all(at, error):
                        raise NotHeld(path, files.reason(error)) from None
    except BaseException:
        held.close()
        raise
    return held


def _is_closed_to_all(at: int, error: OSError) -> bool:
    """Whether a tool cannot make anything in the folder either: it has at most our rights."""
    if error.errno == errno.EROFS:
        return True
    return error.errno in (errno.EACCES, errno.EPERM) and os.fstat(at).st_uid != os.geteuid()


# -- locks --------------------------------------------------------------------------------------------------


def lock_folder() -> str:
    """Return the folder of the locks, one for all hosts of this user. Raises OSError where others may use it.

    Attack: a tool locks a placeholder, which it can open, so that no host can agree about it with another.
    No tool sees this folder (``rules.py``), whatever it may read.
    """
    path = os.path.join(os.path.realpath(TEMPORARY_FOLDER), f"toolcrib-{os.geteuid()}-locks")
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(errno.EPERM, f"the folder of locks, {path}, is not ours alone")
    return path


class _Lock:
    """The lock of one name, shared while it is needed. Raises OSError where it cannot be had."""

    def __init__(self, at: int, name: str) -> None:
        status = os.fstat(at)
        key = f"{status.st_dev}:{status.st_ino}:{name}".encode("utf-8", "surrogateescape")
        self.path = os.path.join(lock_folder(), hashlib.sha256(key).hexdigest())
        for _ in range(_TRIES):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._file), os.stat(self.path)):
                    return
            except (BlockingIOError, FileNotFoundError):  # it is being removed
                pass
            os.close(self._file)
            time.sleep(_PAUSE_S)
        raise OSError(errno.EBUSY, "another host has its lock")

    def is_ours_alone(self) -> bool:
        """Make it exclusive; False where another call needs it still."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        with suppress(OSError):
            if self.is_ours_alone():
                os.unlink(self.path)
        _let_go(self._file)


def _let_go(locked: int) -> None:
    with suppress(OSError):
        fcntl.flock(locked, fcntl.LOCK_UN)  # a copy of the host made by fork may have it as well
    os.close(locked)


# -- placeholders -------------------------------------------------------------------------------------------


def is_one(path: str) -> bool:
    """Whether the path is a placeholder, of any host that lives or was killed.

    Attack: a tool makes something that passes for one. It must have their content, which means nothing.
    """
    try:
        # `.git` is never held: an empty one would mean something.
        if os.path.basename(path) == ".git" or os.lstat(path).st_mtime_ns != _MADE_NS:
            return False
        found = os.open(path, _LOOK)
    except OSError:
        return False
    try:
        return _means_nothing(found, os.path.basename(path))
    finally:
        os.close(found)


def stamp(status: os.stat_result) -> tuple[int, int, int]:
    """Return what differs once another file is there: a new one may have the inode of the old one."""
    changed_ns = 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
    return status.st_dev, status.st_ino, changed_ns


def _means_nothing(found: int, name: str) -> bool:
    content = _CONTENTS.get(name, b"")
    status = os.fstat(found)
    if status.st_mtime_ns != _MADE_NS:
        return False
    if content is None:
        return stat.S_ISDIR(status.st_mode) and not os.listdir(found)
    return stat.S_ISREG(status.st_mode) and os.pread(found, len(content) + 1, 0) == content


def _hold(path: str, at: int, held: Held) -> None:
    folder, name = os.path.split(path)
    lock = _Lock(at, name)
    is_kept = False
    try:
        if name == "commondir" and _sets_work_tree(folder):
            # One of a host that was killed before the configuration said so.
            with suppress(OSError), _descriptor(os.open(name, _LOOK, dir_fd=at)) as left:
                _remove(path, lock, left)
            return
        for _ in range(_TRIES):
            try:
                _make(at, name)
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
            except FileNotFoundError:  # a person, or a tool that still runs, removes it in that moment
                time.sleep(_PAUSE_S)
                continue
            try:
                found = os.open(name, _LOOK, dir_fd=at)
            except FileNotFoundError:
                continue
            except OSError:  # closed to us, or a link: it is there
                held.add(path, status)
                held.keep(path, lock)
                is_kept = True
                return
            if not _means_nothing(found, name):
                held.add(path, os.fstat(found))
                os.close(found)
                return
            with suppress(
                OSError
            ):  # hosts of other users have other locks, and a tool may have taken this one
                fcntl.flock(found, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _is_at(found, name, at):
                held.add(path, os.fstat(found))
                held.keep(path, lock, found)
                is_kept = True
                return
            os.close(found)
        raise OSError(errno.EBUSY, "another program removes it again and again")
    finally:
        if not is_kept:
            lock.close()


def _is_at(found: int, name: str, at: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(found), os.stat(name, dir_fd=at, follow_symlinks=False))
    return False


def _make(at: int, name: str) -> None:
    """Put a placeholder there whole, if nothing is there."""
    content = _CONTENTS.get(name, b"")
    made = _own_name()
    how = _LOOK | os.O_DIRECTORY
    if content is None:
        os.mkdir(made, 0o700, dir_fd=at)
    else:
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # Attack: a tool that still runs puts a link in its place, and we change the mode of what it names.
        with _descriptor(os.open(made, how, 0o600, dir_fd=at)) as file:
            if content:
                os.write(file, content)
            # Those who may write the folder may use it, whatever our umask and user are: the user's git adds
            # a submodule, or edits the configuration of a worktree, while a tool runs.
            folder = os.fstat(at)
            if os.geteuid() == 0:
                os.fchown(file, folder.st_uid, folder.st_gid)
            mode = stat.S_IMODE(folder.st_mode)
            os.fchmod(file, mode if content is None else mode & 0o666)
            os.utime(file, ns=(_MADE_NS, _MADE_NS))
        _kernel.rename_to_nothing(at, made, name)
    except OSError as error:
        with suppress(FileNotFoundError):
            (os.rmdir if content is None else os.unlink)(made, dir_fd=at)
        if error.errno != errno.EEXIST:
            raise


@contextmanager
def _descriptor(opened: int) -> Iterator[int]:
    try:
        yield opened
    finally:
        os.close(opened)


def _remove(path: str, lock: _Lock, found: int) -> None:
    """Attack: another call of this or another host needs it still."""
    if not lock.is_ours_alone():
        return
    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder, name = os.path.split(path)
    at = _kernel.open_real(folder)
    try:
        if not _is_still(found, name, name, at):
            return
        if _CONTENTS.get(name, b"") is None:
            os.rmdir(name, dir_fd=at)  # fails if a person has just put something in
            return
        # A person may replace the file in this moment. Rename it first, and look at what was renamed.
        moved = _own_name()
        os.rename(name, moved, src_dir_fd=at, dst_dir_fd=at)
        if _is_still(found, name, moved, at):
            os.unlink(moved, dir_fd=at)
        else:
            _kernel.rename_to_nothing(at, moved, name)
    finally:
        os.close(at)


def _is_still(found: int, name: str, place: str, at: int) -> bool:
    """Whether what is at a place in the folder is the placeholder of that name, as it was made."""
    status = os.stat(place, dir_fd=at, follow_symlinks=False)
    return os.path.samestat(os.fstat(found), status) and _means_nothing(found, name)


def _own_name() -> str:
    return f"{_MARK}{os.urandom(8).hex()}"


def set_aside(path: str) -> tuple[str, str] | None:
    """Rename what took a name that must not exist, so that git does not obey it; the old and the new path.

    None: nothing is there. Raises OSError if it cannot be renamed. Nothing is deleted: it may be a person's.

    Attack: a tool replaces a folder above the name by a link into a repository of the user's, and we move
    the ``.git`` of that one. The path was real when the tool began, so what has to go is the link.
    """
    *above, last = path.strip("/").split("/")
    walked = ""
    at = os.open("/", _AT)
    try:
        try:
            for name in above:
                inner = os.open(name, _AT, dir_fd=at)
                if stat.S_ISLNK(os.fstat(inner).st_mode):
                    os.close(inner)
                    last = name
                    break
                os.close(at)
                at, walked = inner, f"{walked}/{name}"
            os.stat(last, dir_fd=at, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        new = f"{last[:_NAME_CHARS_MAX]}{_own_name()}"
        _rename(at, last, new)
        return f"{walked}/{last}", f"{walked}/{new}"
    finally:
        os.close(at)


def remove_link(path: str) -> None:
    """Remove a symbolic link. Raises OSError if it cannot be removed, and where it is anything else."""
    folder, name = os.path.split(path)
    at = _kernel.open_real(folder)
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=at)
    finally:
        os.close(at)


def _rename(at: int, name: str, new: str) -> None:
    """Rename an entry of a folder, though a tool took the right to do so away from it."""
    try:
        os.rename(name, new, src_dir_fd=at, dst_dir_fd=at)
    except PermissionError:
        folder = f"/proc/self/fd/{at}"
        mode = stat.S_IMODE(os.fstat(at).st_mode)
        os.chmod(folder, mode | 0o300)
        try:
            os.rename(name, new, src_dir_fd=at, dst_dir_fd=at)
        finally:
            os.chmod(folder, mode)


def _sets_work_tree(folder: str) -> bool:
    """Whether the configuration says where the work tree is, or that there is none. Raises OSError where that
    cannot be told.

    Git does not believe it beside a ``commondir``: there a placeholder would mean something.
    """
    try:
        content = files.head(os.path.join(folder, CONFIG), _CONFIG_BYTES_MAX + 1)
        if len(content) > _CONFIG_BYTES_MAX:
            raise OSError(errno.EFBIG, f"{CONFIG} beside it is too long")
        return any(
            name == "core.worktree"
            or (name == "core.bare" and (value is None or value.lower() not in _FALSE))
            for name, value in settings(content)
        )
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:
        raise OSError(errno.EINVAL, f"{CONFIG} beside it: {error}") from None
