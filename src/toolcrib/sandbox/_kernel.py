"""The kernel's own calls, by ctypes: Landlock, seccomp, capabilities, users of one thread, sealed files.

Everything that restricts holds for the calling thread and its future children, never for the process: a
throw-away thread takes the rules, starts a program and ends. Nothing here decides anything; the values come
from ``rules.py``. Functions raise OSError as the kernel says it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Final

from toolcrib.sandbox.rules import FS_OF_FILES, KernelRules, fs_known

_LINUX: Final = sys.platform == "linux"
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT, _OPENAT2 = 444, 445, 446, 437
_ASK_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER: Final = 2
_AT_FDCWD: Final = -100
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS = 0x02, 0x04
_O_PATH: Final = getattr(os, "O_PATH", 0)
_CAPABILITY_VERSION_3: Final = 0x20080522
_F_ADD_SEALS: Final = 1033
_FIONREAD: Final = 0x541B
_SEAL_EVERYTHING: Final = 0x1 | 0x2 | 0x4 | 0x8
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LONG_BLOCK_BYTES: Final = 1 << 20

_RENAMEAT2: Final = {"x86_64": 316, "aarch64": 276}
_RENAME_NOREPLACE: Final = 1
_STATX: Final = {"x86_64": 332, "aarch64": 291}
_STATX_BYTES: Final = 256
_IS_MOUNT_ROOT: Final = 0x2000
_AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT = 0x100, 0x800
# setgroups, setresgid, setresuid, capset. Raw, because libc's change the user of every thread.
_CREDENTIALS: Final = {"x86_64": (116, 119, 117, 126), "aarch64": (159, 149, 147, 91)}


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    converted = [
        ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments
    ]
    result = int(_libc().syscall(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def architecture() -> str:
    """The machine's architecture as the filter knows it."""
    return os.uname().machine


# -- Landlock -----------------------------------------------------------------------------------------------


@cache
def landlock_version() -> int:
    """The kernel's Landlock version; 0 where there is none or it is switched off."""
    if not _LINUX:
        return 0
    try:
        return _syscall(_LANDLOCK_CREATE, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def landlock_ruleset(rules: KernelRules) -> int:
    """A descriptor of the ruleset; close it after use. Paths that are gone or became links are left out."""
    version = landlock_version()
    handled = rules.fs_handled & fs_known(version)
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", rules.net_handled)
    if version >= 6:
        attributes += struct.pack("=Q", rules.scoped)
    ruleset = _syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    try:
        for path, bits in rules.fs_allowed:
            _allow(ruleset, path, bits & handled)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _allow(ruleset: int, path: str, bits: int) -> None:
    try:
        at = open_real(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG):
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(at).st_mode):
            bits &= FS_OF_FILES
        if bits:
            _syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", bits, at), 0)
    finally:
        os.close(at)


def allow_file(ruleset: int, file: int, bits: int) -> None:
    """Allow a plain file that no path leads to: one that only a mount namespace shows."""
    if bits:
        _syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", bits, file), 0)


def open_real(path: str) -> int:
    """Open a path of which no part is a link.

    Attack: between finding a path and giving rights to it, a tool that still runs puts a link in its place
    and gets the rights for what the link names.
    """
    how = struct.pack("=QQQ", _O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    try:
        return _syscall(_OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    # An outer sandbox that does not know the call: the last part, at least, is checked.
    return os.open(path, _O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)


def rename_to_nothing(folder: int, name: str, to: str) -> None:
    """Rename an entry of a folder. Raises FileExistsError if the new name exists, also as an empty folder."""
    old, new = os.fsencode(name), os.fsencode(to)
    _syscall(_RENAMEAT2[architecture()], folder, old, folder, new, _RENAME_NOREPLACE)


def is_mounted(root: int, path: str) -> bool:
    """Whether something is mounted right at a path, walked from the root folder of a mount namespace.

    False also where nothing is there.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    how = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT
    try:
        where = os.fsencode(path.lstrip("/"))
        _syscall(_STATX[architecture()], root, where, how, 0, ctypes.addressof(found))
    except (FileNotFoundError, NotADirectoryError):
        return False
    attributes: int = struct.unpack_from("=Q", found, 8)[0]
    return bool(attributes & _IS_MOUNT_ROOT)


# -- restricting a thread -----------------------------------------------------------------------------------


def no_new_privileges() -> None:
    """From here on no program that the thread starts gains rights by its owner or capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def restrict_thread(ruleset: int | None, seccomp: bytes) -> None:
    """Landlock, then the filter, for the calling thread and its children. Needs ``no_new_privileges``."""
    if ruleset is not None:
        _syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    if seccomp:
        program = ctypes.create_string_buffer(seccomp, len(seccomp))
        # struct sock_fprog: a 16-bit count, padding, and a pointer.
        header = struct.pack("@HP", len(seccomp) // 8, ctypes.addressof(program))
        buffer = ctypes.create_string_buffer(header, len(header))
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(buffer), 0, 0)


def become(uid: int | None, gid: int | None) -> None:
    """Give up root for the calling thread: another user where one is named, and every capability.

    Together with ``no_new_privileges`` no program gets any of them back, though root starts it.
    """
    setgroups, setresgid, setresuid, capset = _CREDENTIALS[architecture()]
    if uid is not None:
        group = uid if gid is None else gid
        _syscall(setgroups, 0, None)
        _syscall(setresgid, group, group, group)
        _syscall(setresuid, uid, uid, uid)
    _syscall(capset, struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), struct.pack("=6I", *[0] * 6))


def _prctl(*arguments: int) -> None:
    if _libc().prctl(*(ctypes.c_ulong(value) for value in arguments)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def has_capabilities() -> bool:
    """Whether the process holds any capability at all: root in a container may hold few or none."""
    return bool(_status("CapEff"))


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


@cache
def keep_no_long_blocks() -> None:
    """From now on let the C library give a long block back when it is freed, where it knows how to.

    Left alone, it takes the first one that is freed as a sign that more will come, and from then on keeps
    twice as much for each thread; what ends a thread's memory it does not give back when asked, either.
    """
    adjust = getattr(_libc(), "mallopt", None)
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, _LONG_BLOCK_BYTES)
        adjust(_M_TRIM_THRESHOLD, _LONG_BLOCK_BYTES)


# -- sealed files -------------------------------------------------------------------------------------------


def seal(content: bytes, name: str = "sealed") -> int:
    """A file in memory that holds these bytes and can never change. Close it after use."""
    fd = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write_all(fd, content)
        os.fchmod(fd, 0o555)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_EVERYTHING)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_all(fd: int, content: bytes) -> None:
    rest: memoryview = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def pending_bytes(pipe: int) -> int:
    """How much lies in it."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, _FIONREAD, bytes(4)))[0])


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
