"""What lies on the machine around a call: the ground for a decision, and the facts for the kernel's rules.

This is the I/O that ``trust/policy.py`` and ``rules.py`` do without. ``Grounds`` finds what must stay
read-only or unseen where a tool would run; ``Surroundings`` finds what a program needs to start. Both look
again only when something may have changed, because every call asks. Every path they return is real.

Nothing here decides anything, and nothing is written.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.catalog import files
from toolcrib.catalog.places import CONFIGURATION, DECLARATIONS, OF_SPACES
from toolcrib.model import CallJavaScript, CallPython, Permit, RunProcess, Tool
from toolcrib.sandbox import Start, _exchange, _git, _kernel, _placeholders
from toolcrib.sandbox.rules import DEVICES, NOBODY, Facts, KernelRules, folders_to_carve, kernel_rules
from toolcrib.trust.policy import Ground

FRESH_S: Final = 1.0
"""How long an answer holds before it is compared with the disk again."""
BINDS_MAX: Final = 900
"""Where what is protected takes more mounts than this, it is protected by its folders. The spawner makes at
most 1,024 in one namespace."""

_NAMES: Final = (*CONFIGURATION, *DECLARATIONS, *(os.path.join(".ai", name) for name in OF_SPACES))
"""What a format loads in a folder that people work in, by its name alone."""


# -- the ground for a decision ------------------------------------------------------------------------------


class Grounds:
    """Finds the ground of tools. Made once by the composition root; any thread may ask."""

    def __init__(
        self,
        *,
        hidden: Sequence[str] = (),
        guarded: Sequence[str] = (),
        temporary: Sequence[str] = (),
        git_settings: Sequence[str] = (),
        home: str = "",
    ) -> None:
        """``hidden``: our state. ``guarded``: what must stay read-only wherever it lies: the configuration
        in force, keys, the declarations of other tools. ``temporary``: the system's temporary folders.
        ``git_settings``: the user's own settings for git. ``home``: the folder that ``~`` means there."""
        self._home = home
        self._hidden = tuple(map(os.path.realpath, hidden))
        self._guarded = tuple(map(os.path.realpath, guarded))
        self._temporary = tuple(dict.fromkeys(map(os.path.realpath, temporary)))
        self._git_settings = tuple(dict.fromkeys(map(os.path.realpath, git_settings)))
        self._declared: tuple[str, ...] = ()

    def guard(self, held: Sequence[str]) -> None:
        """The folders and files of all tools that are loaded now (``catalog/places.py``).

        Attack: a tool that rewrites what another one runs, or puts a module, a handler or a declaration
        beside it, and so gets what that one is granted.
        """
        self._declared = tuple(held)

    def of(
        self, tool: Tool, *, project: str, cwd: str, named: bool, known: FoundGround | None = None
    ) -> FoundGround:
        """The ground of one tool. ``named``: a person or a trusted configuration named its source.
        ``known``: what was found with the same arguments before; the same again while it is still true."""
        now = time.monotonic()
        declared = self._declared
        # The times of files do not tell when what is unclear is over.
        if known is not None and known.declared is declared and not known.ground.unclear:
            if now - known.at < FRESH_S:
                return known
            if all(_stamp(path) == stamp for path, stamp in known.stamps):
                return replace(known, at=now)
        looked_at: dict[str, None] = {}
        ground = self._find(tool, project, cwd, named, declared, looked_at)
        return FoundGround(ground, now, declared, tuple((path, _stamp(path)) for path in looked_at))

    def _find(
        self,
        tool: Tool,
        project: str,
        cwd: str,
        named: bool,
        declared: tuple[str, ...],
        looked_at: dict[str, None],
    ) -> Ground:
        real_project, real_cwd = os.path.realpath(project), os.path.realpath(cwd)
        git, unclear = _git.Found(), ""
        try:
            git = _git.find((real_project, real_cwd), looked_at, home=self._home)
        except _git.Unclear as error:
            unclear = str(error)
        protected: dict[str, None] = {}
        for root in dict.fromkeys((real_project, real_cwd)):
            looked_at |= dict.fromkeys((root, os.path.join(root, ".ai")))
            for name in _NAMES:
                # Attack: a tool makes a link of such a name, on which nothing can be mounted.
                protected[os.path.realpath(os.path.join(root, name))] = None
        protected |= dict.fromkeys(_own_declarations(tool))
        protected |= dict.fromkeys(self._guarded)
        protected |= dict.fromkeys(declared)
        return Ground(
            project=real_project,
            cwd=real_cwd,
            protected=(
                *_bounded([path for path in protected if os.path.lexists(path)], (real_project, real_cwd)),
                *git.elsewhere,
            ),
            git=git.folders,
            git_code=git.code,
            git_absent=git.absent,
            absent=git.elsewhere_absent,
            git_settings=tuple(path for path in self._git_settings if os.path.isfile(path)),
            hidden=tuple(path for path in self._hidden if os.path.lexists(path)),
            temporary=self._temporary,
            named=named,
            unclear=unclear,
        )  # fmt: skip


class FoundGround(Struct, frozen=True):
    """A ground, when it was last seen to be true, and what tells that it no longer is."""

    ground: Ground
    at: float
    declared: tuple[str, ...]
    """What all tools together declared then."""
    stamps: tuple[tuple[str, tuple[int, int] | None], ...]


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _above(folder: str) -> Iterator[str]:
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        yield folder


def _own_declarations(tool: Tool) -> Iterator[str]:
    """The tool's own declaration and code: what a tool must not rewrite to become another one."""
    yield os.path.realpath(tool.origin.path)
    folder = os.path.dirname(os.path.realpath(tool.origin.path))
    for name in DECLARATIONS:
        yield os.path.join(folder, name)
    space, ai, _ = tool.origin.path.partition("/.ai/")
    if ai:
        for name in OF_SPACES:
            yield os.path.realpath(f"{space}/.ai/{name}")
    invocation = tool.invocation
    if isinstance(invocation, RunProcess):
        if invocation.skill_dir:
            yield os.path.realpath(invocation.skill_dir)
        if os.path.isabs(invocation.program):
            yield os.path.realpath(invocation.program)
    elif isinstance(invocation, CallPython | CallJavaScript) and invocation.file:
        yield os.path.realpath(invocation.file)


def _bounded(paths: list[str], roots: tuple[str, ...]) -> tuple[str, ...]:
    """At most ``BINDS_MAX`` mounts: many files of one folder are protected by the folder, unless it is one in
    which files may come and go. Where that is not enough, by that one as well: nothing is left out."""
    if _mounts(paths) <= BINDS_MAX:
        return tuple(paths)
    holds_root = {above for root in roots for above in (root, *_above(root))}
    together: dict[str, None] = {}
    for path in paths:
        folder = os.path.dirname(path)
        together[path if folder in holds_root else folder] = None
    if _mounts(together) <= BINDS_MAX:
        return tuple(together)
    folders = dict.fromkeys(os.path.dirname(path) for path in paths)
    while _mounts(folders) > BINDS_MAX:
        folders = dict.fromkeys(os.path.dirname(path) for path in folders)
    return tuple(folders)


def _mounts(paths: Iterable[str]) -> int:
    """How many mounts hold paths: themselves, and every folder on the way to them."""
    return len({at for path in paths for at in (path, *_above(path))})


# -- the facts for one start --------------------------------------------------------------------------------

_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store",
)  # fmt: skip
_SETTINGS: Final = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime",
    "/etc/timezone", "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf",
    "/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/passwd", "/etc/group", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/ca-certificates", "/etc/ca-certificates.conf",
    "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies",
    "/etc/mime.types", "/etc/gitconfig", "/etc/locale.alias", "/etc/alternatives", "/etc/os-release",
    "/etc/terminfo",
    # Of the machine as a whole, never of a process: /proc/PID cannot be named before the program runs, and
    # /proc itself would show every other process.
    "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/version", "/proc/uptime", "/proc/loadavg",
    "/proc/filesystems", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/ostype", "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/random", "/proc/sys/kernel/ngroups_max", "/proc/sys/kernel/cap_last_cap",
    "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count", "/proc/sys/fs/pipe-max-size",
    "/proc/sys/net/core/somaxconn",
    "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
_SETTINGS_OF_LANGUAGES: Final = ("python3", "java", "perl", "R", "php", "ruby")
"""Folders of /etc whose names begin so hold a language's own start files."""
_KERNEL: Final = ("/proc", "/sys")
_KERNEL_TYPES: Final = frozenset((
    "proc", "sysfs", "cgroup", "cgroup2", "cpuset", "resctrl", "debugfs", "tracefs", "securityfs",
    "selinuxfs", "smackfs", "configfs", "bpf", "efivarfs", "pstore", "binfmt_misc", "fusectl", "nfsd",
    "rpc_pipefs", "xenfs", "openpromfs", "s390_hypfs",
))  # fmt: skip
"""Types of file systems by which the kernel is told what to do."""
_QUEUE_TYPES: Final = frozenset({"mqueue"})
_DEVICE_TYPES: Final = frozenset({"devtmpfs"})
_MOUNTS: Final = "/proc/self/mountinfo"
_QUEUES: Final = ("/dev/mqueue",)
_TERMINALS_AND_MEMORY: Final = ("/dev/pts", "/dev/shm")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
_PREFIX_PARTS: Final = ("bin", "lib", "lib32", "lib64", "libexec", "ssl", "pyvenv.cfg")
_SHIM_PARTS: Final = (
    "bin", "lib", "libexec", "shims", "plugins", "installs", "versions", "version", "pyenv.d", "rbenv.d",
)  # fmt: skip
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
"""How spaces and the like are written in the list of mounts."""
_CHAIN_MAX: Final = 5
_HEAD_BYTES: Final = 4096
_ENTRIES_MAX: Final = 4096
_DEVICES_MAX: Final = 128
_OF_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH


def _locks() -> tuple[str, ...]:
    with suppress(OSError):  # not ours alone: nothing can be held, and no call runs that needs it
        return (_placeholders.lock_folder(),)
    return ()


class Surroundings:
    """Finds what a program needs to start, and makes the rules for it. Any thread may ask."""

    def __init__(
        self,
        *,
        landlock: int,
        seccomp: bool,
        namespaces: bool,
        empty: str = "",
    ) -> None:
        """What works was found by trying (``probe.py``). ``empty``: a folder in which nothing ever lies."""
        self._base = Facts(
            architecture=_kernel.architecture(),
            landlock=landlock,
            seccomp=seccomp,
            namespaces=namespaces,
            root=os.geteuid() == 0 and _kernel.has_capabilities(),
            system_folders=_real(_SYSTEM),
            settings=_real((*_SETTINGS, *_languages())),
            devices=_real(_DEVICES),
            kernel=_real(_KERNEL),
            queues=_real(_QUEUES),
            locks=_locks() if namespaces else (),
            empty=empty,
        )
        self._mounted: tuple[float, tuple[tuple[str, ...], ...]] = (-FRESH_S, ())

    def rules(self, start: Start, scratch: str) -> KernelRules:
        """The kernel's rules for a start."""
        return kernel_rules(start, self.facts(start, scratch))

    def facts(self, start: Start, scratch: str) -> Facts:
        base = self._base
        program = _program(start.program, start.env.get("PATH", os.defpath), _stamp(start.program))
        own = _real(start.own)
        user, group = None, None
        if base.root:
            needed = (*program.startup, *own, start.cwd, *(path for path in start.permit.read if path != "/"))
            user, group = _other_user(start.permit, start.cwd, needed)
        found = replace(
            base,
            prefixes=program.prefixes,
            startup=program.startup,
            own=own,
            scratch=scratch,
            tasks=_rounded(_exchange.tasks()),
            usable_devices=_usable_devices() if os.geteuid() == 0 and user is None else None,
            user=user,
            group=group,
        )
        if start.permit.read or start.permit.write:
            kernel, queues, device_trees = self._mounts()
            found = replace(found, kernel=kernel, queues=queues, device_trees=device_trees)
        carved = folders_to_carve(start.permit, found)
        return replace(found, entries=_entries(carved)) if carved else found

    def _mounts(self) -> tuple[tuple[str, ...], ...]:
        """Return where the kernel's own files, POSIX queues and device nodes are mounted.

        Attack: a tool under `open` sets ``core_pattern`` through the /proc of a chroot, or opens a raw disk
        in its /dev.
        """
        now = time.monotonic()
        at, found = self._mounted
        if now - at >= FRESH_S:
            mounts, base = list(_mounted()), self._base
            known = (
                (base.kernel, _KERNEL_TYPES), (base.queues, _QUEUE_TYPES), (base.device_trees, _DEVICE_TYPES)
            )  # fmt: skip
            found = tuple(
                tuple(dict.fromkeys((*paths, *(path for kind, path in mounts if kind in kinds))))
                for paths, kinds in known
            )
            self._mounted = (now, found)
        return found


class _Program(Struct, frozen=True):
    startup: tuple[str, ...]
    prefixes: tuple[str, ...]


@lru_cache(maxsize=256)
def _program(path: str, search: str, _stamp: tuple[int, int] | None) -> _Program:
    """What a program needs to start, as long as it has this stamp."""
    startup: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    _follow(path, search, startup, prefixes)
    return _Program(tuple(startup), _real(prefixes))


def _rounded(tasks: int) -> int:
    """Up to a power of two, so that rules do not differ whenever the machine starts something."""
    return 1 << max(tasks, 255).bit_length()


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that exist, made real, each once."""
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.exists(path)))


def _mounted() -> Iterator[tuple[str, str]]:
    """Yield the type of each mount of the kernel's own, and where it can be reached."""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields, _, rest = line.partition(" - ")
            kind = rest.partition(" ")[0]
            if kind not in _KERNEL_TYPES | _QUEUE_TYPES | _DEVICE_TYPES:
                continue
            device, _, place = fields.split(" ")[2:5]
            path = _OCTAL.sub(lambda found: chr(int(found[1], 8)), place)
            # Another mount may cover it, and then the path is not the kernel's.
            major, _, minor = device.partition(":")
            with suppress(OSError, ValueError):
                if os.lstat(path).st_dev == os.makedev(int(major), int(minor)):
                    yield kind, path


def _languages() -> Iterator[str]:
    with suppress(OSError):
        for name in sorted(os.listdir("/etc")):
            if name.startswith(_SETTINGS_OF_LANGUAGES):
                yield os.path.join("/etc", name)


def _follow(path: str, search: str, startup: dict[str, None], prefixes: dict[str, None]) -> None:
    """What the kernel executes to start a program: itself, a script's interpreters, their loaders."""
    waiting = [path]
    for _ in range(_CHAIN_MAX):
        if not waiting:
            return
        at = waiting.pop(0)
        real = os.path.realpath(at)
        if real in startup:
            continue
        startup[real] = None
        try:
            head = files.head(real, _HEAD_BYTES)
        except OSError:
            continue
        if head.startswith(b"#!"):
            prefixes |= dict.fromkeys(_shim_prefix(at))
            for interpreter in _interpreters(head, search):
                waiting.append(interpreter)
        else:
            loader = _loader(head)
            if loader is not None:
                startup[os.path.realpath(loader)] = None
            for place in (at, real):
                prefixes |= dict.fromkeys(_prefix(place))


def _interpreters(head: bytes, search: str) -> Iterator[str]:
    """The programs that a script's first line names: the interpreter, and what ``env`` looks up."""
    line = head[2:].partition(b"\n")[0].decode("utf-8", "surrogateescape").strip()
    words = line.split()
    if not words:
        return
    yield words[0]
    if os.path.basename(words[0]) == "env":
        for word in words[1:]:
            if not word.startswith("-") and "=" not in word:
                found = files.find_program(word, search)
                if found is not None:
                    yield found
                return


def _loader(head: bytes) -> str | None:
    """The loader that a 64-bit little-endian ELF program names."""
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
        return None
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    for number in range(count):
        at = offset + number * size
        if at + 56 > len(head):
            return None
        (kind,) = struct.unpack_from("<I", head, at)
        if kind == 3:  # PT_INTERP
            (place,) = struct.unpack_from("<Q", head, at + 8)
            (length,) = struct.unpack_from("<Q", head, at + 32)
            return head[place : place + length].rstrip(b"\0").decode("utf-8", "surrogateescape") or None
    return None


def _prefix(program: str) -> Iterator[str]:
    """The folders of an interpreter that lies in PREFIX/bin: its libraries, and the base of a venv.

    Parts of the prefix, never the prefix: with ``~/.local/bin/python`` that would be the user's own files.
    """
    folder, name = os.path.split(os.path.dirname(program))
    if name != "bin":
        return
    for part in _PREFIX_PARTS:
        yield os.path.join(folder, part)


def _shim_prefix(script: str) -> Iterator[str]:
    """The folders of a version manager (pyenv, rbenv, asdf): PREFIX/shims/python3 is a script that looks for
    the real interpreter in its PREFIX. Parts of it, as above."""
    folder, name = os.path.split(os.path.dirname(script))
    if name == "shims":
        for part in _SHIM_PARTS:
            yield os.path.join(folder, part)


def _entries(folders: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What lies in folders, links left out.

    Attack: a link in the project to a place outside of it would get the rights of its target.
    """
    found: dict[str, tuple[str, ...]] = {}
    for folder in folders:
        names: list[str] = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    names.append(entry.name)
                if len(names) >= _ENTRIES_MAX:
                    break
        found[folder] = tuple(sorted(names))
    return found


def _usable_devices() -> tuple[str, ...]:
    """Return the device nodes that every user may open, and the folders of terminals and shared memory."""
    found = dict.fromkeys(_real(_TERMINALS_AND_MEMORY))
    waiting = [DEVICES]
    while waiting and len(found) < _DEVICES_MAX:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.path in found or entry.path in _QUEUES:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISCHR(mode) and mode & _OF_OTHERS == _OF_OTHERS:
                    found[entry.path] = None
    return tuple(sorted(found))


# -- as root: who the tool should be ------------------------------------------------------------------------


def _other_user(permit: Permit, cwd: str, needed: Iterable[str]) -> tuple[int | None, int | None]:
    """As root: another user who can do what the permit allows; None where only root can.

    A tool that writes nothing but scratch can be nobody. One that writes where an ordinary user owns the
    project is that user. Else it stays root, without any capability.
    """
    if not permit.write:
        uid = gid = NOBODY
    else:
        root = next((path for path in permit.write if path != "/"), cwd)
        try:
            status = os.stat(root)
        except OSError:
            return None, None
        uid, gid = status.st_uid, status.st_gid
    if uid == 0 or not all(_reaches(path, uid, gid) for path in needed):
        return None, None
    return uid, gid


def _reaches(path: str, uid: int, gid: int) -> bool:
    """Whether a user may read a path and pass through every folder above it, by their modes."""
    at = path
    wanted = stat.S_IROTH
    while True:
        try:
            status = os.stat(at)
        except OSError:
            return False
        needs = wanted | (stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else 0)
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        if (status.st_mode >> shift) & needs != needs:
            return False
        above = os.path.dirname(at)
        if above == at:
            return True
        at, wanted = above, 0
