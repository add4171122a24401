"""Files that belong to us alone: read only where nobody else could have written or read them, replaced whole,
and locked while they are changed.

For keys and secrets; ``put`` writes any file whole. Nothing here knows what is in them, and no message tells
it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from toolcrib.errors import StoreError

LOCK_S: Final = 10.0
"""How long a change waits for another program's."""
_STEP_S: Final = 0.02
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_folders(path: str) -> None:
    """Make a folder, and those above it that are missing, for us alone. Raises OSError.

    Attack: a umask that lets others write the folders above ours, as ``os.makedirs`` makes them: whoever
    renames ours there makes us forget what was switched off, locked and spent.
    """
    missing = [path]
    while (above := os.path.dirname(missing[-1])) and not os.path.lexists(above):
        missing.append(above)
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
            if os.lstat(each).st_mode & 0o700 != 0o700:  # a umask that takes it away from ourselves
                os.chmod(each, 0o700)
        except FileExistsError:
            if not os.path.isdir(each):
                raise


def folder(path: str) -> None:
    """Make a folder that only we may enter. Raises StoreError where it is somebody else's or open."""
    try:
        make_folders(path)
        status = os.lstat(path)
    except OSError as error:
        raise _trouble(path, error) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        # Attack: a link to a folder of somebody else's, who then reads or replaces what we put there.
        raise StoreError(f"{path}: it is not a folder of your own", "move it away")
    if status.st_mode & 0o077:
        raise StoreError(f"{path}: others may enter it", f"chmod 700 {path}")


def read(path: str, bytes_max: int) -> bytes | None:
    """The bytes of a file of our own; None where there is none. Raises StoreError."""
    try:
        # Attack: a link or a FIFO in the place of a key, which would be one of somebody else's choice.
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _trouble(path, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise StoreError(
                f"{path}: it is not a file of your own", "put a plain file of yours there: no folder, no link"
            )
        if status.st_mode & 0o077:
            # Attack: a copy that was made readable for others. What they may have read is no secret.
            raise StoreError(
                f"{path}: others may read it", f"chmod 600 {path}, and replace what was in it if they did"
            )
        if status.st_size > bytes_max:
            raise StoreError(f"{path}: it has more than {bytes_max:,} bytes", "move it away")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise _trouble(path, error) from None
    finally:
        os.close(descriptor)
    if len(content) > bytes_max:
        raise StoreError(f"{path}: it has more than {bytes_max:,} bytes", "move it away")
    return content


def make(path: str, content: bytes) -> None:
    """Write a file that is not there yet, whole or not at all; one that is there meanwhile stays."""
    try:
        put(path, content, replacing=False)
    except OSError as error:
        raise _trouble(path, error) from None


def replace(path: str, content: bytes) -> None:
    """Write a file in the place of an older one, whole or not at all."""
    try:
        put(path, content, replacing=True)
    except OSError as error:
        raise _trouble(path, error) from None


def put(path: str, content: bytes, *, mode: int = 0o600, replacing: bool) -> bool:
    """Put a file in its place, whole or not at all, with exactly this mode. False: one was there, and stays.
    Raises OSError."""
    folder, name = os.path.split(path)
    draft = f"{name}.{os.getpid()}.{threading.get_native_id()}.{os.urandom(4).hex()}"
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Attack: a key in a draft that a kill left behind, where nobody looks for it or removes it. So a new
        # file has no name before all is in it; one that takes another's place has a draft's for a moment.
        if not _made_nameless(held, draft if replacing else name, content, mode):
            # Attack: a link in the place of the file, or of the draft, which makes us write elsewhere.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600, dir_fd=held), "wb") as file:
                _fill(file, content, mode)
            if not replacing:
                os.link(draft, name, src_dir_fd=held, dst_dir_fd=held, follow_symlinks=False)
        if replacing:
            os.replace(draft, name, src_dir_fd=held, dst_dir_fd=held)
        os.fsync(held)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=held)
        os.close(held)
    return True


def _made_nameless(folder: int, name: str, content: bytes, mode: int) -> bool:
    """Make a file and then give it its name. False: that cannot be done here."""
    if not (nameless := getattr(os, "O_TMPFILE", 0)):
        return False
    try:
        descriptor = os.open(".", os.O_WRONLY | nameless | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, content, mode)
            source = f"/proc/self/fd/{descriptor}"
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        raise
    except OSError:  # not every file system has such files, nor every machine /proc
        return False
    return True


def _fill(file: BinaryIO, content: bytes, mode: int) -> None:
    os.fchmod(file.fileno(), mode)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def locked(path: str, wait_s: float = LOCK_S) -> Iterator[None]:
    """Hold a lock that other programs and threads honour. Raises StoreError where it is held for too long."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _trouble(path, error) from None
    try:
        ends = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise StoreError(
                        f"{path}: another program holds it for more than {wait_s:g} s", "wait for it to end"
                    ) from None
                time.sleep(_STEP_S)
        yield
    finally:
        os.close(descriptor)


def _trouble(path: str, error: OSError) -> StoreError:
    why = (error.strerror or "cannot be used").lower()
    return StoreError(f"{path}: {why}", "it must be a file of your own, in a folder that only you may enter")
