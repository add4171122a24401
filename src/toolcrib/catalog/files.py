"""Contained, bounded reads: the only place where declarations are opened.

Every path comes from outside, so a read never blocks (no FIFOs, no devices), never grows beyond a limit and
never leaves the folder it was asked to look in. Programs are looked for here too.
Nothing here understands what it reads.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, NamedTuple, TypeAlias

from toolcrib.errors import StoreError
from toolcrib.paths import is_below

DOCUMENT_BYTES_MAX: Final = 1 << 20
LONG_DOCUMENT_BYTES_MAX: Final = 16 << 20
"""For OpenAPI documents, which describe a whole service."""
ENTRIES_MAX: Final = 100_000
DEPTH_MAX: Final = 24
LEADS_OUT: Final = "it leads out of its folder"
_LOOKING: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC

Fingerprint: TypeAlias = tuple[int, int, int, int]
"""Size, modification time, inode and change time: when one of them differs, the file is read anew."""


class FileRead(NamedTuple):
    """The bytes, or why there are none."""

    content: bytes | None
    unreadable: str | None


class Place(NamedTuple):
    """Where a file really lies, every link followed, and which file it is: both of one look."""

    real: str
    fingerprint: Fingerprint


def fingerprint(status: os.stat_result) -> Fingerprint:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def read(path: str, limit: int = DOCUMENT_BYTES_MAX, *, within: str | None = None) -> FileRead:
    """Read a regular file of at most ``limit`` bytes. ``within``: the real path at or below which the very
    file that is read must lie."""
    try:
        # Attack: a FIFO or a device in a cloned project would hang or flood the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # Attack: links that lead out, to learn what there is elsewhere by why each of them cannot be read.
        is_out = within is not None and not is_below(os.path.realpath(path), (within,))
        return FileRead(None, LEADS_OUT if is_out else reason(error))
    try:
        status = os.fstat(descriptor)
        if within is not None and not is_below(real(descriptor, path), (within,)):
            return FileRead(None, LEADS_OUT)
        if not stat.S_ISREG(status.st_mode):
            return FileRead(
                None, "it is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            )
        if status.st_size > limit:
            return FileRead(None, too_long(status.st_size, limit))
        content = os.read(descriptor, status.st_size + 1)
        while len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
            content += more
    except OSError as error:
        return FileRead(None, reason(error))
    finally:
        os.close(descriptor)
    if len(content) > limit:
        return FileRead(None, too_long(len(content), limit))
    return FileRead(content, None)


def place(path: str) -> Place | None:
    """Where a file really lies; None where it cannot be found. Whoever has bytes of the same fingerprint has
    those of the file that lies there."""
    try:
        descriptor = os.open(path, _LOOKING)
        try:
            return Place(real(descriptor, path), fingerprint(os.fstat(descriptor)))
        finally:
            os.close(descriptor)
    except OSError:
        return None


def real(descriptor: int, path: str) -> str:
    """Where the file lies that was opened by a path."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # a system without: that no link came to the end of the path is known, at least
        found = os.path.realpath(path)
        if not os.path.samestat(os.lstat(found), os.fstat(descriptor)):
            raise OSError(errno.ESTALE, "it changed while it was looked at") from None
        return found


def head(path: str, count: int) -> bytes:
    """The first bytes of a regular file. Raises OSError, also where it is something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.read(descriptor, count)
    finally:
        os.close(descriptor)


def too_long(size: int, limit: int) -> str:
    return f"it has {size:,} bytes, more than the {limit:,} a declaration may have"


_REASONS: Final = {
    errno.ENOENT: "no such file or directory",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.EISDIR: "it is a directory",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.ENAMETOOLONG: "the path is too long",
}


def reason(error: OSError) -> str:
    """The operating system's refusal in plain words, without a path."""
    return _REASONS.get(error.errno or 0) or (error.strerror or "it cannot be read").lower()


def inside(path: str, root: str) -> bool:
    """Whether a path, its links followed, lies below ``root`` (a real path)."""
    try:
        return os.path.commonpath((os.path.realpath(path, strict=True), root)) == root
    except (OSError, ValueError):
        return False


def is_open_to_others(folder: str) -> bool:
    """Whether somebody else may put files into a folder; False where there is none."""
    try:
        return bool(os.stat(folder).st_mode & 0o022)
    except OSError:
        return False


def check_state(path: str) -> None:
    """Raise StoreError where a state folder is none, or one that others may write."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return  # it is made when it is needed, or says why it cannot be
    if not is_folder:
        # Not a word of chmod: of a device of the machine's, root would take it from everybody.
        raise StoreError(f"{path}: it is not a folder", "name a folder of your own: --state DIR")
    if is_open_to_others(path):
        raise StoreError(f"{path}: others may write it", f"chmod 700 {path}")


def foreign(path: str) -> str | None:
    """Why what lies at a path may be somebody else's doing, in a few words; None: only ours, or the system's.

    The user's own group counts as the user: many systems give everybody one.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    if status.st_uid not in (0, os.geteuid()):
        return "it belongs to another user"
    if status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid not in (0, os.getegid())):
        return f"other users may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def find_program(name: str, path: str) -> str | None:
    """The absolute path of a program.

    Attack: a PATH whose entry is ``.`` or relative, in a folder that holds a fake ``git``: such entries are
    passed over.
    """
    if name.startswith("/"):
        return name
    if "/" in name:
        return None
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if os.path.isabs(folder) and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None
