"""What a permit means to the kernel: Landlock rules, a seccomp filter, mounts, resource limits. Pure.

The levels apply these values; nothing here touches the machine. What exists on it (which paths are there,
which interpreter a script names, who we are) comes in as ``Facts``, which ``ground.py`` finds.

Every level applies what it can: the layers that end up in force stand in ``KernelRules.layers``. A permit
that cannot be kept at all is not weakened; ``KernelRules.unavailable`` says why nothing may start.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, IntFlag
from functools import cache
from typing import Final

from msgspec import Struct, field

from toolcrib.model import Limits, Permit, Programs
from toolcrib.paths import is_below
from toolcrib.sandbox import Start

DEVICES: Final = "/dev"
NOBODY: Final = 65534
"""The user that owns nothing, under which root runs tools that write nothing."""


class Bind(Struct, frozen=True, kw_only=True):
    """One mount in the tool's own mount namespace: ``target`` shows ``source`` instead of what lies there.

    Binds are made in their order and take everything mounted below the source along. The level changes to
    the working directory after them. Attack: a directory that was entered before leads around every mount.
    """

    source: str
    target: str
    read_only: bool = True


_LIMITS: Final = Limits()


class KernelRules(Struct, frozen=True, kw_only=True):
    """Everything a level applies between fork and exec. Equal rules may share a Landlock ruleset."""

    fs_handled: int = 0
    """Landlock access bits that are refused unless a rule allows them; 0: no Landlock."""
    fs_allowed: tuple[tuple[str, int], ...] = ()
    """Path and the access bits below it. A path that is gone is left out."""
    net_handled: int = 0
    scoped: int = 0
    """Landlock scopes: abstract unix sockets, signals."""
    seccomp: bytes = b""
    """A classic BPF program; empty: none."""
    binds: tuple[Bind, ...] = ()
    """Not empty: a mount namespace (and a user namespace, unless we are root)."""
    own_ipc: bool = False
    """The same without binds. Every mount namespace comes with an IPC namespace."""
    rlimits: tuple[tuple[int, int], ...] = ()
    """Resource number and value, soft and hard alike."""
    uid: int | None = None
    """Run under another user: only as root."""
    gid: int | None = None
    drop_capabilities: bool = True
    limits: Limits = _LIMITS
    """What the supervisor samples: processes, memory, scratch."""
    layers: tuple[str, ...] = ()
    """The names of what is in force, for results and records."""
    unavailable: str = ""
    """Not empty: the permit cannot be kept here, so nothing may start; the reason."""
    hint: str | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """What of the machine matters to one start. All paths are real: no part of them is a link."""

    architecture: str = "x86_64"
    landlock: int = 0
    """The kernel's Landlock version; 0: none."""
    seccomp: bool = False
    namespaces: bool = False
    """The level can give a tool a mount namespace of its own."""
    root: bool = False
    """We are root with its capabilities."""
    system_folders: tuple[str, ...] = ()
    """The system's folders: readable, executable."""
    settings: tuple[str, ...] = ()
    """What programs read of /etc, /proc and /sys to work at all."""
    devices: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    """The kernel's own file systems, wherever they are mounted."""
    queues: tuple[str, ...] = ()
    """Where POSIX queues of other programs have names."""
    device_trees: tuple[str, ...] = (DEVICES,)
    """Where the kernel shows device nodes."""
    locks: tuple[str, ...] = ()
    """Where hosts agree about what they hold (``_placeholders.py``). Only hosts with namespaces do."""
    usable_devices: tuple[str, ...] | None = None
    """As root: the device nodes that every user may open, and the folders of terminals and shared memory.
    None: any node that the user may open."""
    prefixes: tuple[str, ...] = ()
    """Folders of the interpreter and its libraries: readable, executable."""
    startup: tuple[str, ...] = ()
    """The files that the kernel executes to start the program: itself, interpreters, their loaders."""
    own: tuple[str, ...] = ()
    """``Start.own``, made real."""
    scratch: str = ""
    empty: str = ""
    """An empty folder that stands in the place of what is hidden."""
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The folders of ``folders_to_carve``, and the names in them that are no links."""
    tasks: int = 0
    """Processes and threads that the machine runs already."""
    user: int | None = None
    """As root: another user who can reach everything that the start needs."""
    group: int | None = None


# -- Landlock -----------------------------------------------------------------------------------------------


class Fs(IntFlag):
    """Landlock's access rights, as the kernel numbers them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


FS_OF_FILES: Final = int(Fs.EXECUTE | Fs.WRITE_FILE | Fs.READ_FILE | Fs.TRUNCATE | Fs.IOCTL_DEV)
"""The rights that a rule for a plain file may hold; the others speak of folders."""
FS_BY_VERSION: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""The rights that each version of Landlock knows; later ones know all of ``Fs``."""
NET_TCP: Final = 0b11
"""bind and connect, from version 4."""
SCOPES: Final = 0b11
"""Abstract unix sockets and signals, from version 6."""

_READ: Final = int(Fs.READ_FILE | Fs.READ_DIR)
_RUN: Final = int(Fs.EXECUTE)
_WRITE: Final = int(
    Fs.WRITE_FILE | Fs.TRUNCATE | Fs.REMOVE_DIR | Fs.REMOVE_FILE | Fs.MAKE_DIR | Fs.MAKE_REG | Fs.MAKE_FIFO
    | Fs.MAKE_SYM | Fs.REFER
)  # fmt: skip
_USE_DEVICE: Final = int(Fs.READ_FILE | Fs.WRITE_FILE)
_ALL: Final = int(~(Fs.MAKE_CHAR | Fs.MAKE_BLOCK) & 0xFFFF)


def fs_known(version: int) -> int:
    """Every right that a version of Landlock knows."""
    return 0 if version < 1 else FS_BY_VERSION.get(version, (1 << 16) - 1)


def kernel_rules(start: Start, facts: Facts) -> KernelRules:
    """The rules for one start."""
    permit = start.permit
    kernel, held, hidden, devices = _closed(permit, facts)
    masks = facts.namespaces
    is_given_up = permit.unprotected and permit.profile is None
    if held and not facts.namespaces and permit.profile is None and not permit.unprotected:
        return KernelRules(
            unavailable=f"{held[0]} must stay read-only, and without mount namespaces nothing can hold it so",
            hint="allow user namespaces (`toolcrib doctor` says how), or grant fs.write.unprotected",
        )
    uid, gid, who = _who(facts)
    own_ipc = facts.namespaces and permit.unix_sockets
    layers = ["no-new-privs"]
    fs_handled = fs_known(facts.landlock)
    allowed: dict[str, int] = {}
    if fs_handled:
        layers.append("landlock")
        carve_write = () if facts.namespaces else (*kernel, *(() if is_given_up else held))
        allowed = _allowed(permit, facts, carve_write, (*devices, *(() if masks else hidden)))
    seccomp = b""
    if facts.seccomp and facts.architecture in NUMBERS:
        seccomp = seccomp_filter(
            facts.architecture,
            network=permit.network,
            unix_sockets=permit.unix_sockets,
            tracing=bool(fs_handled),
            own_ipc=own_ipc,
            watching=bool(permit.read or permit.write),
            everywhere="/" in permit.write,
        )
        layers.append("seccomp")
        if not permit.network:
            layers.append("network:none")
    binds = _binds(permit, facts, (*kernel, *held), hidden) if facts.namespaces else ()
    if binds:
        layers.append("mount-namespace")
    if binds or own_ipc:
        layers.append("ipc-namespace")
    layers += _held_layers(held, _held((*permit.read, *permit.write), permit.hidden), facts, permit, masks)
    scoped = SCOPES if facts.landlock >= 6 else 0
    if scoped:
        layers.append("scoped-signals")
    return KernelRules(
        fs_handled=fs_handled,
        fs_allowed=tuple((path, bits & fs_handled) for path, bits in allowed.items() if bits & fs_handled),
        net_handled=NET_TCP if facts.landlock >= 4 and not permit.network else 0,
        scoped=scoped & ~1 if permit.unix_sockets else scoped,
        seccomp=seccomp,
        binds=binds,
        own_ipc=own_ipc,
        rlimits=rlimits(
            permit.limits,
            tasks=facts.tasks,
            as_root=facts.root and uid is None,
            reserved_bytes=start.reserved_bytes,
        ),
        uid=uid,
        gid=gid,
        limits=permit.limits,
        layers=(*layers, "rlimits", *who),
    )


def _allowed(
    permit: Permit, facts: Facts, carve_write: Sequence[str], carve_read: Sequence[str]
) -> dict[str, int]:
    """The rights by path. ``carve_*`` are paths that must not get them though a root holds them."""
    run = _RUN if permit.programs is Programs.ANY else 0
    every = permit.profile is not None and "/" in permit.write
    found: dict[str, int] = {}

    def give(path: str, bits: int) -> None:
        if path:
            found[path] = found.get(path, 0) | bits

    for path in (*facts.system_folders, *facts.prefixes):
        give(path, _READ | run)
    for path in facts.settings:
        give(path, _READ)
    for path in facts.devices:
        give(path, _USE_DEVICE)
    for path in facts.own:
        give(path, _READ | run)
    for path in facts.startup:
        give(path, int(Fs.READ_FILE | Fs.EXECUTE))
    sockets = int(Fs.MAKE_SOCK) if permit.unix_sockets else 0
    for root in permit.read:
        for path, bits in _carved(root, _READ | run, carve_read, int(Fs.READ_DIR), facts.entries):
            give(path, bits)
    for root in permit.write:
        all_bits = _ALL if every and root == "/" else _READ | _WRITE | run | sockets
        if is_below(root, permit.git):
            # Attack: the log or the index of a repository as a link to a file that its user starts programs
            # by. The user's git writes through it. Git itself makes no links there, and no pipes.
            all_bits &= ~int(Fs.MAKE_SYM | Fs.MAKE_FIFO)
        # What may be read stays readable where writing is carved out, and the other way round.
        for path, bits in _carved(
            root, all_bits, (*carve_write, *carve_read), int(Fs.READ_DIR), facts.entries
        ):
            give(path, bits)
        for path, bits in _carved(root, _READ | run, carve_read, int(Fs.READ_DIR), facts.entries):
            give(path, bits)
    if any(path in carve_read for path in facts.device_trees):
        for path in facts.usable_devices or ():
            give(path, _READ | _WRITE | int(Fs.IOCTL_DEV) | sockets)
    give(facts.scratch, _READ | _WRITE | run | sockets)
    # Whatever has a path lies below the root, so what the root gives needs no rule of its own. The kernel
    # copies every rule at every start, and again for each call of a zygote.
    everywhere = found.get("/", 0)
    return {path: bits for path, bits in found.items() if path == "/" or bits & ~everywhere}


def _carved(
    root: str, bits: int, out: Sequence[str], for_parents: int, entries: Mapping[str, tuple[str, ...]]
) -> Iterable[tuple[str, int]]:
    """The root with all its rights, or, where it holds a path that must not get them, its other children.

    Landlock only ever adds rights below a path. A folder that holds such a path therefore gets none itself
    (no file can be made in it or renamed over), while everything beside the path keeps them.
    """
    inside = [path for path in out if is_below(path, (root,))]
    if not inside:
        yield root, bits
    elif root not in inside:
        yield root, bits & for_parents
        for name in entries.get(root, ()):
            yield from _carved(_join(root, name), bits, inside, for_parents, entries)


def folders_to_carve(permit: Permit, facts: Facts) -> tuple[str, ...]:
    """Return the folders whose entries ``Facts.entries`` must hold."""
    found: dict[str, None] = {}
    roots = (*permit.read, *permit.write)
    kernel, held, hidden, devices = _closed(permit, facts)
    by_mounts = () if facts.namespaces else (*kernel, *held, *hidden)
    for path in (*by_mounts, *devices):
        for root in roots:
            if is_below(path, (root,)):
                for folder in (root, *_between(root, path)):
                    found[folder] = None
    return tuple(found)


# -- mounts -------------------------------------------------------------------------------------------------


def _binds(permit: Permit, facts: Facts, held: Sequence[str], masked: Sequence[str]) -> tuple[Bind, ...]:
    """Masks for what is hidden, and read-only views of what is protected.

    Attack: a mount stands on a folder, so the tool renames a folder above it and builds a new one in its
    place. A folder that is itself a mount cannot be renamed, so every writable folder on the way down to a
    protected path becomes one.
    """
    found: dict[str, Bind] = {}
    for path in _held(permit.write, permit.git):
        # Attack: a folder with links in it is made elsewhere and moved into a repository. The kernel moves
        # nothing from one mount to another.
        found[path] = Bind(source=path, target=path, read_only=False)
    for path in (*held, *masked):
        for root in permit.write:
            if is_below(path, (root,)):
                for folder in _between(root, path):
                    found.setdefault(folder, Bind(source=folder, target=folder, read_only=False))
    for path in (*held, *_only_read(permit, facts)):
        found[path] = Bind(source=path, target=path)
    for path in masked:
        found[path] = Bind(source=facts.empty, target=path)
    # A folder before what lies in it: a mount over a folder would cover those made below it.
    return tuple(sorted(found.values(), key=lambda bind: (bind.target.count("/"), bind.target)))


def _only_read(permit: Permit, facts: Facts) -> tuple[str, ...]:
    """Return the roots that a tool which writes nothing may read.

    Attack: it changes the mode of its user's files, which Landlock does not cover: it closes git's
    configuration to us, or makes a hook executable.
    """
    if permit.write:
        return ()
    return tuple(root for root in _held(permit.read, permit.read) if not is_below(facts.scratch, (root,)))


def _closed(permit: Permit, facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Return what a permit's roots hold and it must not have: the kernel's own files and what is protected,
    both to write; what is hidden; and devices.

    Attack: as root a tool sets ``core_pattern`` or a control group, or reads our state from the raw disk. As
    any user it makes the host the first process that the kernel kills (``/proc/PID/oom_score_adj``).
    """
    roots = (*permit.read, *permit.write)
    return (
        _held(permit.write, facts.kernel),
        _held(permit.write, permit.protected),
        _held(roots, (*permit.hidden, *facts.queues, *(facts.locks if facts.namespaces else ()))),
        _held(roots, facts.device_trees) if facts.usable_devices is not None else (),
    )


def _held(roots: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """The outermost of the paths that lie at or below one of the roots."""
    inside = [path for path in dict.fromkeys(paths) if is_below(path, roots)]
    return tuple(
        path for path in inside if not any(other != path and is_below(path, (other,)) for other in inside)
    )


def _held_layers(
    held: Sequence[str], hidden: Sequence[str], facts: Facts, permit: Permit, masks: bool
) -> Iterable[str]:
    if held:
        if facts.namespaces:
            yield "protected:read-only"
        elif (permit.unprotected and permit.profile is None) or not facts.landlock:
            yield "protected:not-held"
        else:
            yield "protected:read-only-parents"
    if hidden:
        if masks:
            yield "state:masked"
        elif facts.landlock:
            yield "state:left-out"
        else:
            yield "state:not-held"


def _between(root: str, path: str) -> Iterable[str]:
    """The folders below ``root`` on the way to ``path``, neither included."""
    at = root.rstrip("/")
    for name in path[len(at) + 1 :].split("/")[:-1]:
        at = f"{at}/{name}"
        yield at


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


# -- who and how much ---------------------------------------------------------------------------------------


def _who(facts: Facts) -> tuple[int | None, int | None, tuple[str, ...]]:
    if not facts.root:
        return None, None, ()
    if facts.user is not None:
        return facts.user, facts.group, (f"uid:{facts.user}", "no-capabilities")
    return None, None, ("no-capabilities",)


class Rlimit(IntEnum):
    """Resources as Linux numbers them."""

    FSIZE = 1
    DATA = 2
    CORE = 4
    NPROC = 6
    NOFILE = 7
    LOCKS = 10
    SIGPENDING = 11


MARK: Final = Rlimit.LOCKS
"""The limit that marks the processes of tools, in ``/proc/PID/limits`` (``marks.py``).

Every descendant inherits it, and the filter keeps all of them from changing it. No kernel since 2.4.25
applies it to anything.
"""
MARK_MAX: Final = 0x746F6F6C
"""The largest value that marks a tool's process. Each call with a supervisor has a smaller one of its own."""


_SIGNALS_MAX: Final = 1024
"""Queued signals and POSIX timers. The kernel compares the count of the user as a whole, so that all tools
together get no more."""
_TASKS_PER_PROCESS: Final = 8
"""The kernel's count of a user's processes counts threads as well."""


def rlimits(
    limits: Limits, *, tasks: int = 4096, as_root: bool, reserved_bytes: int = 0
) -> tuple[tuple[int, int], ...]:
    """The kernel's own limits: the second line behind sampling, so looser where they would misfire.

    Data instead of address space, because runtimes reserve far more addresses than they use; twice the
    memory, because a thread's stack counts in full, and what a runtime sets aside. Processes are counted for
    the user as a whole, so those that are there already (``tasks``, of everybody) are added; for root the
    kernel ignores this one.
    """
    found = [
        (Rlimit.CORE, 0),
        (Rlimit.DATA, 2 * limits.memory_bytes_max + reserved_bytes),
        (Rlimit.FSIZE, limits.file_bytes_max),
        (Rlimit.NOFILE, limits.open_files_max),
        # Attack: POSIX timers until no other program of its user gets one.
        (Rlimit.SIGPENDING, _SIGNALS_MAX),
        # Attack: a tool connects to a server on loopback, of this host or another, as its owner.
        (MARK, MARK_MAX),
    ]
    if not as_root:
        found.append((Rlimit.NPROC, tasks + _TASKS_PER_PROCESS * limits.processes_max))
    return tuple((int(number), value) for number, value in found)


# -- seccomp ------------------------------------------------------------------------------------------------

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
_TO_ALLOW, _TO_REFUSE = -1, -2
"""Jumps to the two answers at a filter's end."""

ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32: Final = 0x40000000

# Name: (x86-64, aarch64). None where the architecture has no such call.
_CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "setrlimit": (160, 164),
    "prctl": (157, 167),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "io_setup": (206, 0),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
NUMBERS: Final = {
    name: {call: pair[place] for call, pair in _CALLS.items() if pair[place] is not None}
    for place, name in enumerate(ARCHITECTURES)
}
"""The numbers of the calls that the filter knows, by architecture."""

_OF_ITSELF: Final = {
    "sched_setparam": (0,), "sched_setscheduler": (0,), "sched_setattr": (0,), "sched_setaffinity": (0,),
    "setpriority": (1, 0), "ioprio_set": (1, 1),
}  # fmt: skip
"""Calls that a tool may make about itself, which is process 0: the place of the process among the arguments,
and where the first argument says of what kind it is, the kind that means a process."""
_BY_ARGUMENT: Final = (
    "socket", "socketpair", "clone", "clone3", "ioctl", "fcntl", "prctl", "prlimit64", "setrlimit",
    *_OF_ITSELF,
)  # fmt: skip
_SHARING: Final = (
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd",
    "msgrcv", "msgctl",
)  # fmt: skip
"""System V memory, semaphores and queues: no path or descriptor leads to them.

POSIX queues are refused to every tool. Landlock opens none, even in the tool's own IPC namespace, because a
queue's path is below no granted folder.
"""
_WATCHING: Final = ("inotify_init", "inotify_init1", "inotify_add_watch")
_MACHINE_WIDE: Final = ("io_setup",)
"""Attack: one tool takes all requests for asynchronous I/O that the machine has (``aio-max-nr``). The other
calls of the family do nothing without this one."""
_ATTRIBUTES: Final = (
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr",
)  # fmt: skip
_TRACING: Final = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "migrate_pages", "move_pages",
    "pidfd_getfd", "kcmp",
)  # fmt: skip
_NEW_NAMESPACES: Final = 0x7E020000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_SEQPACKET = 0xF, 1, 5
_NETLINK_ROUTE: Final = 0
_PR_SCHED_CORE: Final = 62
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into the terminal."""
_F_NOTIFY: Final = 1026
_LEASES: Final = (1024, 1039, 1040)
"""F_SETLEASE, F_GETDELEG, F_SETDELEG."""
_CHANGES: Final = (
    0x40086602, 0x40046602,  # FS_IOC_SETFLAGS, and as 32-bit programs write it
    0x401C5820,  # FS_IOC_FSSETXATTR
    0x40087602, 0x40047602, 0x40086603, 0x40046603,  # FS_IOC_SETVERSION, and ext4's, in both forms
    0x40806685,  # FS_IOC_ENABLE_VERITY
    0x800C6613, 0xC0506617, 0xC0406618,  # FS_IOC_SET_ENCRYPTION_POLICY, _ADD_ and _REMOVE_ENCRYPTION_KEY
    0x40047211,  # FAT_IOCTL_SET_ATTRIBUTES
    0x50009401, 0x50009417, 0x5000940E, 0x50009418,  # BTRFS_IOC_SNAP_CREATE and SUBVOL_CREATE, old and new
    0x5000940F, 0x5000943F, 0x4008941A, 0xC0C89425,  # SNAP_DESTROY, SUBVOL_SETFLAGS, SET_RECEIVED_SUBVOL
)  # fmt: skip
"""Requests of ioctl that change a file or folder of the user through a descriptor that was opened to read."""


class _Filter:
    """A classic BPF program in the making."""

    def __init__(self) -> None:
        self.words: list[tuple[int, int, int, int]] = []
        self.calls: list[tuple[int, _Filter]] = []

    def add(self, code: int, value: int, then: int = 0, otherwise: int = 0) -> None:
        self.words.append((code, then, otherwise, value))

    def answer(self, value: int) -> None:
        self.add(_RETURN, value)

    def on_call(self, number: int | None, body: _Filter) -> None:
        """Run ``body`` for one call; it must end with an answer, and an empty one refuses. See ``choose``."""
        if number is not None:
            self.calls.append((number, body))

    def choose(self) -> None:
        """Put the bodies in, to be found by halving and not one by one: the kernel walks through each filter
        it is given with every call it knows, which would cost a start a quarter of a millisecond."""
        calls = sorted(self.calls, key=lambda call: call[0])
        middle = len(calls) // 2
        below, above = (_with_answers(_choice(half)) for half in (calls[:middle], calls[middle:]))
        self.add(_AT_LEAST, calls[middle][0], len(below), 0)
        self.words += [*below, *above]

    def packed(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *word) for word in self.words)


def _refuse(code: int) -> int:
    return _ERRNO | code


def _body(*words: tuple[int, int, int, int]) -> _Filter:
    made = _Filter()
    made.words = list(words)
    return made


def _argument(number: int) -> tuple[int, int, int, int]:
    """Load the lower half of an argument: the kernel reads these as 32-bit values, whatever lies above."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * number)


@cache
def seccomp_filter(
    architecture: str,
    *,
    network: bool,
    unix_sockets: bool,
    tracing: bool,
    own_ipc: bool = False,
    watching: bool = False,
    everywhere: bool = False,
) -> bytes:
    """Return the filter for a permit.

    Foreign system calls (32-bit, x32) kill the process: their numbers mean other calls. Sockets are a list of
    families, because the kernel has forty of them. ``socketpair`` stays, since event loops need it.
    ``clone3`` hides its flags in memory, so it does not exist here and libraries fall back to ``clone``.

    ``tracing``: a Landlock domain already keeps a tool from tracing others, so it may trace its own children,
    which debuggers and leak checkers do. ``own_ipc``: it runs in an IPC namespace without other programs.
    ``watching``: it may watch folders. ``everywhere``: it may write everywhere, so also attributes, flags and
    subvolumes, and it has asynchronous I/O (``io_setup``). Landlock covers none of these.
    """
    numbers = NUMBERS[architecture]
    made = _Filter()
    made.add(_LOAD, _ARCH)
    made.add(_EQUAL, ARCHITECTURES[architecture], 1, 0)
    made.answer(_KILL)
    made.add(_LOAD, _NR)
    if architecture == "x86_64":
        made.add(_AT_LEAST, _X32, 0, 1)
        made.answer(_KILL)
    families = [
        *((_AF_INET, _AF_INET6) if network else ()),
        *((_AF_UNIX,) if unix_sockets else ()),
        *((_AF_NETLINK,) if network and unix_sockets else ()),
    ]
    made.on_call(numbers["socket"], _socket(families, with_routes=network and not unix_sockets))
    made.on_call(numbers["socketpair"], _socketpair(all_types=unix_sockets))
    made.on_call(
        numbers["clone"],
        _body(
            _argument(0),
            (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
            (_RETURN, 0, 0, _refuse(errno.EPERM)),
            (_RETURN, 0, 0, _ALLOW),
        ),
    )
    made.on_call(numbers["clone3"], _body((_RETURN, 0, 0, _refuse(errno.ENOSYS))))
    # Attack: a file outside of the permit gets flags that keep its user from changing it, or is encrypted.
    changes = () if everywhere else _CHANGES
    made.on_call(numbers["ioctl"], _by_value(1, (_TERMINAL_INPUT, errno.EPERM), (changes, errno.EOPNOTSUPP)))
    # Attack: a lease on a file that it may read: whoever opens the file waits until the lease is broken.
    notices = () if watching else (_F_NOTIFY,)
    made.on_call(numbers["fcntl"], _by_value(1, (_LEASES, errno.EPERM), (notices, errno.EACCES)))
    # Attack: the host is given a processor core of its own, or another program's to share.
    made.on_call(numbers["prctl"], _by_value(0, ((_PR_SCHED_CORE,), errno.EPERM)))
    made.on_call(numbers["prlimit64"], _prlimit())
    made.on_call(numbers["setrlimit"], _setrlimit())
    for call, (place, *kind) in _OF_ITSELF.items():
        made.on_call(numbers[call], _of_itself(place, *kind))
    # Attack: names and moments of files outside of the permit. Without folders to read there is nothing else.
    groups = [(_SHARING, own_ipc, errno.EPERM), (_TRACING, tracing, errno.EPERM)]
    groups += [(_WATCHING, watching, errno.EACCES), (_ATTRIBUTES, everywhere, errno.EOPNOTSUPP)]
    groups += [(_MACHINE_WIDE, everywhere, errno.ENOSYS)]
    by_group = {call: (is_open, error) for calls, is_open, error in groups for call in calls}
    for call, number in numbers.items():
        is_open, error = by_group.get(call, (call in _BY_ARGUMENT, errno.EPERM))
        if not is_open:
            made.on_call(number, _body() if error == errno.EPERM else _body((_RETURN, 0, 0, _refuse(error))))
    made.choose()
    return made.packed()


def _choice(calls: Sequence[tuple[int, _Filter]]) -> list[tuple[int, int, int, int]]:
    """The bodies of the calls, in the order of their numbers; every other call is allowed."""
    if len(calls) > 2:
        middle = len(calls) // 2
        below = _choice(calls[:middle])
        return [(_AT_LEAST, len(below), 0, calls[middle][0]), *below, *_choice(calls[middle:])]
    words: list[tuple[int, int, int, int]] = []
    for place, (number, body) in enumerate(calls, 1):
        other = _TO_ALLOW if place == len(calls) else len(body.words)
        words += [(_EQUAL, 0 if body.words else _TO_REFUSE, other, number), *body.words]
    return words


def _with_answers(words: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Put the two answers behind the words, and make the jumps to them. No jump is longer than 255 words."""
    places = {_TO_ALLOW: len(words), _TO_REFUSE: len(words) + 1}
    made: list[tuple[int, int, int, int]] = []
    for at, (code, then, otherwise, value) in enumerate(words):
        to_then, to_otherwise = (places[to] - at - 1 if to < 0 else to for to in (then, otherwise))
        made.append((code, to_then, to_otherwise, value))
    return [*made, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _refuse(errno.EPERM))]


def _by_value(number: int, *refused: tuple[Sequence[int], int]) -> _Filter:
    """Refuse a call where an argument has one of the values; each group of values has its own error."""
    made = _body(_argument(number))
    for values, error in refused:
        for left, value in zip(range(len(values) - 1, -1, -1), values, strict=True):
            made.add(_EQUAL, value, left, 0 if left else 1)
        if values:
            made.answer(_refuse(error))
    made.answer(_ALLOW)
    return made


def _socket(families: Sequence[int], *, with_routes: bool) -> _Filter:
    """Allow the families; say "network is unreachable" for the internet and "permission denied" for others.

    A program that gets ENETUNREACH prints words that a person, and our hint, can tell from a file it may not
    read. ``with_routes``: name look-up reads addresses and routes by netlink. Attack: other protocols of
    netlink, which carry messages to other programs, or every start of a program on the machine.
    """
    made = _body(_argument(0))
    if with_routes:
        made.add(_EQUAL, _AF_NETLINK, 0, 4)
        made.add(_LOAD, _ARGUMENTS + 8 * 2)
        made.add(_EQUAL, _NETLINK_ROUTE, 0, 1)
        made.answer(_ALLOW)
        made.answer(_refuse(errno.EACCES))
    for place, family in enumerate(families):
        made.add(_EQUAL, family, len(families) - place - 1, 0 if place < len(families) - 1 else 1)
    if families:
        made.answer(_ALLOW)
    made.add(_EQUAL, _AF_INET, 2, 0)
    made.add(_EQUAL, _AF_INET6, 1, 0)
    made.answer(_refuse(errno.EACCES))
    made.answer(_refuse(errno.ENETUNREACH))
    return made


def _of_itself(place: int, kind: int | None = None) -> _Filter:
    """Attack: the host's limits are set to nothing, and it can record no call any more, or is killed; or its
    supervisor is made to wait for idle time, and comes too late."""
    checks = [] if kind is None else [_argument(0), (_EQUAL, 0, 3, kind)]
    return _body(
        *checks,
        _argument(place),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _refuse(errno.EPERM)),
    )


def _prlimit() -> _Filter:
    """Attack: the host's limits are set to nothing, and it can record no call any more, or is killed.
    Attack: a process takes off the mark by which it is found when its supervisor is gone (``MARK``)."""
    return _body(
        _argument(0),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _refuse(errno.EPERM)),
        _argument(1),
        (_EQUAL, 0, 5, int(MARK)),
        _argument(2),
        (_ANY_BIT, 2, 0, 0xFFFFFFFF),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * 2 + 4),
        (_ANY_BIT, 0, 1, 0xFFFFFFFF),
        (_RETURN, 0, 0, _ERRNO),
        (_RETURN, 0, 0, _ALLOW),
    )


def _setrlimit() -> _Filter:
    """As ``prlimit64``. It says that it was done, as a program that lowers all of its limits expects."""
    return _body(
        _argument(0),
        (_EQUAL, 0, 1, int(MARK)),
        (_RETURN, 0, 0, _ERRNO),
        (_RETURN, 0, 0, _ALLOW),
    )


def _socketpair(*, all_types: bool) -> _Filter:
    """Attack: a datagram pair is a unix socket that can be sent to any address (a log, a service manager).
    The kernel makes one of a raw pair as well. Connected streams and packets reach only their other end."""
    family = [_argument(0), (_EQUAL, 0, 1 if all_types else 4, _AF_UNIX)]
    kind = [
        _argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_EQUAL, 2, 0, _SOCK_STREAM),
        (_EQUAL, 1, 0, _SOCK_SEQPACKET),
    ]
    answers = [(_RETURN, 0, 0, _refuse(errno.EACCES)), (_RETURN, 0, 0, _ALLOW)]
    if all_types:
        answers.reverse()
    return _body(*family, *([] if all_types else kind), *answers)
