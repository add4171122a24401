"""What a permit means to the kernel, as data. The attacks that prove it stand in test_attacks.py."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from toolcrib.model import Limits, Permit, Profile, Programs
from toolcrib.sandbox import Start
from toolcrib.sandbox.rules import (
    ARCHITECTURES,
    MARK,
    MARK_MAX,
    NUMBERS,
    Bind,
    Facts,
    Fs,
    Rlimit,
    folders_to_carve,
    fs_known,
    kernel_rules,
    rlimits,
    seccomp_filter,
)

FACTS = Facts(
    landlock=7, seccomp=True, namespaces=True, system_folders=("/usr",), settings=("/etc/hosts",),
    devices=("/dev/null",), prefixes=("/home/u/.pyenv/lib",), startup=("/usr/bin/x", "/lib/ld.so"),
    own=("/own",), scratch="/scratch", empty="/empty",
)  # fmt: skip
READ = Fs.READ_FILE | Fs.READ_DIR


def rules(permit: Permit, facts: Facts = FACTS):
    return kernel_rules(Start(program="/usr/bin/x", argv=("x",), env={}, cwd="/p", permit=permit), facts)


def allowed(permit: Permit, facts: Facts = FACTS) -> dict[str, Fs]:
    return {path: Fs(bits) for path, bits in rules(permit, facts).fs_allowed}


# -- Landlock -----------------------------------------------------------------------------------------------


def test_a_tool_that_states_nothing_reads_the_system_and_writes_scratch():
    found = allowed(Permit(programs=Programs.OWN))
    assert found["/usr"] == found["/own"] == found["/home/u/.pyenv/lib"] == READ
    assert found["/etc/hosts"] == READ
    assert found["/dev/null"] == Fs.READ_FILE | Fs.WRITE_FILE
    assert found["/usr/bin/x"] == found["/lib/ld.so"] == Fs.READ_FILE | Fs.EXECUTE
    writable = {path for path, bits in found.items() if bits & (Fs.WRITE_FILE | Fs.MAKE_REG)}
    assert writable == {"/dev/null", "/scratch"}
    assert not any(
        bits & Fs.EXECUTE for path, bits in found.items() if path not in ("/usr/bin/x", "/lib/ld.so")
    )


def test_other_programs_may_be_executed_only_where_it_may_read():
    found = allowed(Permit(read=("/p",), programs=Programs.ANY))
    assert all(found[path] & Fs.EXECUTE for path in ("/usr", "/p", "/own", "/scratch"))
    assert not found["/etc/hosts"] & Fs.EXECUTE


def test_the_open_profile_allows_everything_but_devices_and_still_makes_a_domain():
    made = rules(Permit(profile=Profile.OPEN, read=("/",), write=("/",), network=True, unix_sockets=True))
    bits = Fs(dict(made.fs_allowed)["/"])
    assert bits & Fs.IOCTL_DEV
    assert not bits & (Fs.MAKE_CHAR | Fs.MAKE_BLOCK)
    assert made.fs_handled == fs_known(7)
    assert made.net_handled == 0
    assert made.scoped == 0b10, "signals stay inside, abstract sockets do not have to"
    assert "network:none" not in made.layers


def test_what_the_root_gives_needs_no_rule_of_its_own():
    found = allowed(Permit(profile=Profile.OPEN, read=("/",), write=("/",)))
    assert list(found) == ["/"]
    found = allowed(Permit(profile=Profile.OPEN, read=("/",), write=("/p",)))
    assert set(found) == {"/", "/p", "/scratch", "/dev/null"}
    assert not found["/"] & Fs.WRITE_FILE


@pytest.mark.parametrize(
    ("version", "fs", "net", "scoped"),
    [(0, 0, 0, 0), (1, 0x1FFF, 0, 0), (2, 0x3FFF, 0, 0), (3, 0x7FFF, 0, 0), (4, 0x7FFF, 3, 0),
     (5, 0xFFFF, 3, 0), (6, 0xFFFF, 3, 3), (7, 0xFFFF, 3, 3), (99, 0xFFFF, 3, 3)],
)  # fmt: skip
def test_every_version_of_landlock_gets_only_bits_that_it_knows(version, fs, net, scoped):
    made = rules(Permit(write=("/p",)), replace(FACTS, landlock=version))
    assert (made.fs_handled, made.net_handled, made.scoped) == (fs, net, scoped)
    assert all(bits & ~fs == 0 for _, bits in made.fs_allowed)
    assert ("landlock" in made.layers) is bool(version)


# -- protected and hidden -----------------------------------------------------------------------------------

HELD = Permit(
    profile=Profile.PROJECT, read=("/p",), write=("/p",), hidden=("/p/state",),
    protected=("/p/.git/hooks", "/p/.git/config", "/p/toolcrib.toml", "/elsewhere/x"),
)  # fmt: skip


def test_protected_paths_are_read_only_mounts_and_what_leads_to_them_cannot_be_renamed():
    made = rules(HELD)
    assert made.binds == (
        Bind(source="/p/.git", target="/p/.git", read_only=False),
        Bind(source="/empty", target="/p/state"),
        Bind(source="/p/toolcrib.toml", target="/p/toolcrib.toml"),
        Bind(source="/p/.git/config", target="/p/.git/config"),
        Bind(source="/p/.git/hooks", target="/p/.git/hooks"),
    )
    assert {"mount-namespace", "protected:read-only", "state:masked"} <= set(made.layers)


def test_in_a_repository_that_is_its_own_root_no_link_and_no_pipe_can_be_made():
    git = ("/p/.git", "/p/.git/worktrees/w")
    held = ("/p/.git/hooks", "/p/.git/worktrees/w/gitdir")
    permit = Permit(read=("/p",), write=git, git=git, protected=held)
    made = rules(permit)
    found = {path: Fs(bits) for path, bits in made.fs_allowed}
    for folder in git:
        assert found[folder] & Fs.MAKE_REG
        assert found[folder] & Fs.REFER
        assert not found[folder] & (Fs.MAKE_SYM | Fs.MAKE_FIFO)
    assert found["/scratch"] & Fs.MAKE_SYM
    mounted = {bind.target: bind.read_only for bind in made.binds}
    assert mounted["/p/.git"] is False, "nothing can be moved into it"
    assert all(mounted[path] for path in held)


def test_a_project_keeps_its_links_although_its_repository_is_writable():
    permit = Permit(write=("/p",), git=("/p/.git",), protected=("/p/.git/hooks",))
    assert allowed(permit)["/p"] & Fs.MAKE_SYM
    assert Bind(source="/p/.git", target="/p/.git", read_only=False) in rules(permit).binds


def test_without_namespaces_a_profile_carves_and_a_stated_need_is_unavailable():
    entries = {"/p": (".git", "state", "src", "toolcrib.toml"), "/p/.git": ("hooks", "config", "objects")}
    facts = replace(FACTS, namespaces=False, entries=entries)
    assert set(folders_to_carve(HELD, facts)) == {"/p", "/p/.git"}
    made = rules(HELD, facts)
    found = {path: Fs(bits) for path, bits in made.fs_allowed}
    assert made.binds == ()
    assert found["/p/src"] & Fs.WRITE_FILE
    assert found["/p/.git/objects"] & Fs.WRITE_FILE
    for path in ("/p", "/p/.git", "/p/.git/hooks", "/p/toolcrib.toml"):
        assert not found.get(path, Fs(0)) & (Fs.WRITE_FILE | Fs.MAKE_REG | Fs.REMOVE_FILE | Fs.TRUNCATE), path
    assert found["/p"] == Fs.READ_DIR, "a right of the folder would hold for the state below it, too"
    assert found["/p/.git"] & Fs.READ_FILE
    assert "/p/state" not in found
    assert {"protected:read-only-parents", "state:left-out"} <= set(made.layers)

    stated = replace(HELD, profile=None)
    assert "must stay read-only" in rules(stated, facts).unavailable
    accepted = rules(replace(stated, unprotected=True), facts)
    assert accepted.unavailable == ""
    assert "protected:not-held" in accepted.layers
    nothing = rules(HELD, replace(facts, landlock=0))
    assert {"protected:not-held", "state:not-held"} <= set(nothing.layers)


@pytest.mark.parametrize(("version", "scoped"), [(0, False), (5, False), (6, True), (7, True)])
def test_signals_are_called_scoped_only_where_the_kernel_scopes_them(version, scoped):
    made = rules(Permit(), replace(FACTS, landlock=version))
    assert ("scoped-signals" in made.layers, bool(made.scoped)) == (scoped, scoped)


def test_paths_that_no_writable_root_holds_cost_nothing():
    made = rules(replace(HELD, write=(), read=(), protected=("/p/.git",)))
    assert (made.binds, made.unavailable) == ((), "")
    assert "mount-namespace" not in made.layers


@given(st.lists(st.sampled_from(["/p/a", "/p/a/b", "/p/c", "/p/c/d/e", "/p"]), max_size=4))
def test_carving_never_gives_a_right_at_or_above_what_is_left_out(paths):
    permit = Permit(profile=Profile.PROJECT, write=("/p",), hidden=tuple(paths))
    entries = {"/p": ("a", "c", "z"), "/p/a": ("b", "z"), "/p/c": ("d",), "/p/c/d": ("e", "z")}
    found = allowed(permit, replace(FACTS, namespaces=False, entries=entries))
    for path in paths:
        for place, bits in found.items():
            if path == place or path.startswith(f"{place}/"):
                assert not bits & ~Fs.READ_DIR, (path, place)


def test_what_a_tool_may_only_read_is_a_mount_that_is_read_only():
    found = rules(Permit(read=("/p", "/p/sub", "/q")))
    assert found.binds == (Bind(source="/p", target="/p"), Bind(source="/q", target="/q"))
    assert rules(Permit(read=("/p",), write=("/p",))).binds == ()
    assert rules(Permit(read=("/",))).binds == (), "its own folder is there, in which it may write"
    assert rules(Permit(read=("/p",)), replace(FACTS, namespaces=False)).binds == ()


@pytest.mark.parametrize(
    "permit", [Permit(read=("/tmp/p", "/tmp")), Permit(write=("/p", "/tmp")), Permit(write=("/",))]
)
def test_attack_a_tool_reaches_the_locks_of_hosts(permit):
    """It would lock what they agree by. The folder around it stays usable."""
    facts = replace(FACTS, locks=("/tmp/locks",))
    masks = [bind for bind in rules(permit, facts).binds if bind.target == "/tmp/locks"]
    assert masks == [Bind(source="/empty", target="/tmp/locks")]
    without = replace(facts, namespaces=False)
    assert rules(permit, without) == rules(permit, replace(without, locks=()))


MACHINE = replace(FACTS, kernel=("/proc", "/sys"), queues=("/dev/mqueue",))
WHOLE = Permit(profile=Profile.OPEN, read=("/",), write=("/",), network=True, unix_sockets=True)


def test_the_kernels_own_files_are_read_only_wherever_a_root_holds_them():
    made = rules(WHOLE, MACHINE)
    assert {bind.target: (bind.source, bind.read_only) for bind in made.binds} == {
        "/proc": ("/proc", True),
        "/sys": ("/sys", True),
        "/dev": ("/dev", False),
        "/dev/mqueue": ("/empty", True),
    }
    assert not {"protected:read-only", "state:masked"} & set(made.layers), "nothing of the user's is held"
    for permit in (Permit(profile=Profile.CLOSED), HELD, Permit(read=("/",), programs=Programs.ANY)):
        assert not {"/proc", "/sys"} & {bind.target for bind in rules(permit, MACHINE).binds}


def test_without_namespaces_the_kernels_own_files_are_carved_out():
    entries = {"/": ("dev", "home", "proc", "sys"), "/dev": ("mqueue", "null", "shm")}
    facts = replace(MACHINE, namespaces=False, entries=entries)
    assert set(folders_to_carve(WHOLE, facts)) == {"/", "/dev"}
    found = allowed(WHOLE, facts)
    for path in ("/", "/proc", "/sys"):
        assert not found.get(path, Fs(0)) & (Fs.WRITE_FILE | Fs.MAKE_DIR | Fs.REMOVE_FILE | Fs.TRUNCATE), path
    assert found["/proc"] & Fs.READ_FILE
    assert found["/home"] & found["/dev/shm"] & Fs.WRITE_FILE
    assert "/dev/mqueue" not in found
    given_up = Permit(write=("/",), protected=("/home/u/.git",), unprotected=True)
    assert not allowed(given_up, facts).get("/sys", Fs(0)) & Fs.WRITE_FILE


@pytest.mark.parametrize("namespaces", [False, True])
def test_as_root_only_device_nodes_that_every_user_may_open_are_given(namespaces):
    entries = {"/": ("dev", "home"), "/dev": ("null", "vda")}
    usable = ("/dev/null", "/dev/pts")
    facts = replace(FACTS, namespaces=namespaces, entries=entries, usable_devices=usable)
    for permit in (WHOLE, Permit(read=("/",))):
        assert set(folders_to_carve(permit, facts)) == {"/"}
        found = allowed(permit, facts)
        assert found["/home"] & found["/dev/null"] & found["/dev/pts"] & Fs.READ_FILE
        assert found["/"] == Fs.READ_DIR
        assert not {"/dev", "/dev/vda"} & set(found)
    assert folders_to_carve(HELD, facts) == () or not namespaces
    assert folders_to_carve(WHOLE, replace(FACTS, namespaces=True)) == ()


def test_device_nodes_of_another_tree_are_not_given_to_a_tool_that_stays_root():
    """Attack: a raw disk in the /dev of a chroot."""
    entries = {"/": ("dev", "home", "srv"), "/srv": ("dev", "www")}
    trees = ("/dev", "/srv/dev")
    facts = replace(FACTS, entries=entries, usable_devices=("/dev/null",), device_trees=trees)
    for permit in (WHOLE, Permit(read=("/",))):
        assert set(folders_to_carve(permit, facts)) == {"/", "/srv"}
        found = allowed(permit, facts)
        assert found["/srv/www"] & found["/dev/null"] & Fs.READ_FILE
        assert not found.get("/srv", Fs(0)) & ~Fs.READ_DIR
        assert not {"/dev", "/srv/dev"} & set(found)


# -- who ----------------------------------------------------------------------------------------------------


def test_as_root_the_choice_of_user_is_told():
    other = rules(Permit(), replace(FACTS, root=True, user=65534, group=65534))
    assert (other.uid, other.gid) == (65534, 65534)
    assert {"uid:65534", "no-capabilities"} <= set(other.layers)
    stays = rules(Permit(), replace(FACTS, root=True))
    assert (stays.uid, stays.drop_capabilities, "no-capabilities" in stays.layers) == (None, True, True)
    assert "no-capabilities" not in rules(Permit()).layers


def test_limits_become_the_kernels_own_as_a_second_line():
    found = dict(rlimits(Limits(), tasks=500, as_root=False))
    assert found == {
        Rlimit.CORE: 0, Rlimit.DATA: 4 << 30, Rlimit.FSIZE: 1 << 30, Rlimit.NOFILE: 1024,
        Rlimit.NPROC: 500 + 8 * 128, Rlimit.LOCKS: MARK_MAX,
        Rlimit.SIGPENDING: 1024,
    }  # fmt: skip
    assert Rlimit.NPROC not in dict(rlimits(Limits(), tasks=500, as_root=True))


# -- seccomp: a small machine that runs the filter -----------------------------------------------------------

ALLOW, KILL, EPERM = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM


def answer(program: bytes, architecture: str, call: str | int, *arguments: int) -> int:
    """What the kernel would do: classic BPF over ``struct seccomp_data``."""
    number = call if isinstance(call, int) else NUMBERS[architecture][call]
    data = struct.pack("<iIQ6Q", number, ARCHITECTURES[architecture], 0, *(*arguments, *[0] * 6)[:6])
    words = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        code, then, otherwise, k = words[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            value &= k
        elif code == 0x06:
            return int(k)
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += then if holds else otherwise


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("unix", [False, True])
def test_sockets_follow_the_permit(architecture, network, unix):
    program = seccomp_filter(architecture, network=network, unix_sockets=unix, tracing=True)

    def socket(family: int) -> int:
        return answer(program, architecture, "socket", family, 1)

    refused = 0x50000 | errno.EACCES
    assert socket(1) == (ALLOW if unix else refused)
    assert socket(2) == socket(10) == (ALLOW if network else 0x50000 | errno.ENETUNREACH)
    assert socket(2 | 1 << 40) == socket(2), "the kernel reads 32 bits"
    assert socket(16) == (ALLOW if network else refused)
    for protocol in (1, 4, 11, 15, 16):
        carries = answer(program, architecture, "socket", 16, 3, protocol)
        assert carries == (ALLOW if network and unix else refused)
    assert {socket(family) for family in (0, 3, 17, 31, 38, 40, 44)} == {refused}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("unix", [False, True])
def test_pairs_are_unix_streams_and_packets(architecture, unix):
    program = seccomp_filter(architecture, network=True, unix_sockets=unix, tracing=True)
    refused = 0x50000 | errno.EACCES
    for flags in (0, 0o2000000, 0o4000, 0o2004000, 1 << 33):
        for kind in range(16):
            for family in (0, 1, 2, 16, 30, 40, 1 | 1 << 32):
                made = answer(program, architecture, "socketpair", family, kind | flags)
                is_unix = family & 0xFFFFFFFF == 1
                assert made == (ALLOW if is_unix and (unix or kind in (1, 5)) else refused)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_namespaces_terminals_and_other_doors_stay_shut(architecture):
    program = seccomp_filter(architecture, network=True, unix_sockets=True, tracing=True)
    assert answer(program, architecture, "clone", 0x01200011) == ALLOW, "fork"
    assert answer(program, architecture, "clone", 0x003D0F00) == ALLOW, "a thread"
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(program, architecture, "clone", 17 | flag) == EPERM
    assert answer(program, architecture, "clone3") == 0x50000 | errno.ENOSYS
    assert answer(program, architecture, "ioctl", 0, 0x5401) == ALLOW
    for request in (0x5412, 0x541C, 0x5412 | 1 << 35):
        assert answer(program, architecture, "ioctl", 0, request) == EPERM
    assert answer(program, architecture, "prctl", 15) == ALLOW
    assert answer(program, architecture, "prctl", 62, 1, 4711) == EPERM
    tracing = (
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "migrate_pages", "move_pages",
        "pidfd_getfd", "kcmp",
    )  # fmt: skip
    by_argument = {
        "socket",
        "socketpair",
        "clone",
        "clone3",
        "ioctl",
        "fcntl",
        "prctl",
        "prlimit64",
        "setrlimit",
    }
    others = set(NUMBERS[architecture]) - {
        *by_argument,
        *OF_ITSELF,
        *tracing,
        *WATCHING,
        *ATTRIBUTES,
        "io_setup",
    }
    assert {answer(program, architecture, call) for call in others} == {EPERM}
    assert {answer(program, architecture, call) for call in tracing} == {ALLOW}
    without = seccomp_filter(architecture, network=True, unix_sockets=True, tracing=False)
    assert {answer(without, architecture, call) for call in tracing} == {EPERM}
    assert answer(program, architecture, 1) == ALLOW


SHARING = (
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd",
    "msgrcv", "msgctl",
)  # fmt: skip
POSIX_QUEUES = (
    "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
)  # fmt: skip
WATCHING = ("inotify_init", "inotify_init1", "inotify_add_watch")
ATTRIBUTES = (
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr",
)  # fmt: skip
OF_ITSELF = (
    "sched_setparam", "sched_setscheduler", "sched_setattr", "sched_setaffinity", "setpriority", "ioprio_set",
)  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("unix", [False, True])
def test_system_v_exists_in_an_ipc_namespace_alone_and_posix_queues_nowhere(architecture, unix):
    for own in (False, True):
        program = seccomp_filter(architecture, network=True, unix_sockets=unix, tracing=True, own_ipc=own)
        assert {answer(program, architecture, call) for call in SHARING} == {ALLOW if own else EPERM}
        assert {answer(program, architecture, call) for call in POSIX_QUEUES} == {EPERM}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("granted", [False, True])
def test_what_landlock_does_not_cover_follows_the_permit(architecture, granted):
    program = seccomp_filter(
        architecture, network=True, unix_sockets=True, tracing=True, watching=granted, everywhere=granted
    )
    groups = ((WATCHING, errno.EACCES), (ATTRIBUTES, errno.EOPNOTSUPP), (("io_setup",), errno.ENOSYS))
    for calls, error in groups:
        expected = ALLOW if granted else 0x50000 | error
        found = {answer(program, architecture, call) for call in calls if call in NUMBERS[architecture]}
        assert found == {expected}
    assert answer(program, architecture, "fcntl", 3, 1026) == (ALLOW if granted else 0x50000 | errno.EACCES)


def request(direction: int, kind: int | str, number: int, size: int) -> int:
    """A request of ioctl as the kernel's headers make it."""
    return direction << 30 | size << 16 | (ord(kind) if isinstance(kind, str) else kind) << 8 | number


CHANGES = {
    "FS_IOC_SETFLAGS": request(1, "f", 2, 8), "FS_IOC32_SETFLAGS": request(1, "f", 2, 4),
    "FS_IOC_FSSETXATTR": request(1, "X", 32, 28),
    "FS_IOC_SETVERSION": request(1, "v", 2, 8), "FS_IOC32_SETVERSION": request(1, "v", 2, 4),
    "EXT4_IOC_SETVERSION": request(1, "f", 3, 8), "EXT4_IOC32_SETVERSION": request(1, "f", 3, 4),
    "FS_IOC_ENABLE_VERITY": request(1, "f", 133, 128),
    "FS_IOC_SET_ENCRYPTION_POLICY": request(2, "f", 19, 12),
    "FS_IOC_ADD_ENCRYPTION_KEY": request(3, "f", 23, 80),
    "FS_IOC_REMOVE_ENCRYPTION_KEY": request(3, "f", 24, 64),
    "FAT_IOCTL_SET_ATTRIBUTES": request(1, "r", 0x11, 4),
    "BTRFS_IOC_SNAP_CREATE": request(1, 0x94, 1, 4096),
    "BTRFS_IOC_SUBVOL_CREATE": request(1, 0x94, 14, 4096),
    "BTRFS_IOC_SNAP_DESTROY": request(1, 0x94, 15, 4096),
    "BTRFS_IOC_SNAP_CREATE_V2": request(1, 0x94, 23, 4096),
    "BTRFS_IOC_SUBVOL_CREATE_V2": request(1, 0x94, 24, 4096),
    "BTRFS_IOC_SUBVOL_SETFLAGS": request(1, 0x94, 26, 8),
    "BTRFS_IOC_SET_RECEIVED_SUBVOL": request(3, 0x94, 37, 200),
    "BTRFS_IOC_SNAP_DESTROY_V2": request(1, 0x94, 63, 4096),
}  # fmt: skip
LOOKS = {
    "FS_IOC_GETFLAGS": request(2, "f", 1, 8), "FS_IOC_FSGETXATTR": request(2, "X", 31, 28),
    "FS_IOC_FIEMAP": request(3, "f", 11, 32), "FICLONE": request(1, 0x94, 9, 4), "FIONREAD": 0x541B,
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("everywhere", [False, True])
def test_requests_that_change_a_file_need_the_right_to_write_everywhere(architecture, everywhere):
    program = seccomp_filter(
        architecture, network=True, unix_sockets=True, tracing=True, everywhere=everywhere
    )
    expected = ALLOW if everywhere else 0x50000 | errno.EOPNOTSUPP
    for above in (0, 1 << 32, 0xFFFFFFFF << 32):
        found = {name: answer(program, architecture, "ioctl", 3, above | CHANGES[name]) for name in CHANGES}
        assert found == dict.fromkeys(CHANGES, expected), "the kernel reads 32 bits"
    assert {answer(program, architecture, "ioctl", 3, look) for look in LOOKS.values()} == {ALLOW}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("granted", [False, True])
def test_no_permit_gives_a_lease(architecture, granted):
    program = seccomp_filter(
        architecture, network=True, unix_sockets=True, tracing=True, watching=granted, everywhere=granted
    )
    for above in (0, 1 << 32, 0xFFFFFFFF << 32):
        for command in (1024, 1039, 1040):  # F_SETLEASE, F_GETDELEG, F_SETDELEG
            assert answer(program, architecture, "fcntl", 3, above | command) == EPERM, "32 bits are read"
        for command in (*range(17), 1025, *range(1028, 1039)):  # locks, flags, copies, pipes, seals
            assert answer(program, architecture, "fcntl", 3, above | command) == ALLOW


def test_an_ipc_namespace_comes_with_unix_sockets_where_there_are_namespaces():
    with_them, without = rules(Permit(unix_sockets=True)), rules(Permit())
    assert (with_them.own_ipc, with_them.binds, without.own_ipc) == (True, (), False)
    assert "ipc-namespace" in with_them.layers
    nowhere = rules(Permit(unix_sockets=True), replace(FACTS, namespaces=False))
    assert not nowhere.own_ipc
    assert answer(with_them.seccomp, "x86_64", "shmat") == ALLOW
    assert answer(nowhere.seccomp, "x86_64", "shmat") == EPERM


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_mark_of_a_call_cannot_be_changed(architecture):
    """Setting it seems to work, because programs that lower all their limits expect that."""
    program = seccomp_filter(architecture, network=True, unix_sockets=True, tracing=True)
    assert answer(program, architecture, "prlimit64", 0, MARK, 0x7FFF0000) == 0x50000
    assert answer(program, architecture, "prlimit64", 0, MARK, 0x7F << 32) == 0x50000
    assert answer(program, architecture, "prlimit64", 0, MARK | 1 << 32, 1) == 0x50000
    assert answer(program, architecture, "prlimit64", 0, MARK, 0, 0x7FFF0000) == ALLOW, "reading it"
    assert answer(program, architecture, "prlimit64", 0, 7, 0x7FFF0000) == ALLOW
    assert answer(program, architecture, "setrlimit", MARK, 1) == 0x50000
    assert answer(program, architecture, "setrlimit", 7, 1) == ALLOW


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nobody_sets_the_limits_and_the_priority_of_the_host(architecture):
    program = seccomp_filter(architecture, network=True, unix_sockets=True, tracing=True)
    for call in ("prlimit64", *OF_ITSELF[:4]):
        assert answer(program, architecture, call, 0, 7) == ALLOW, "its own"
        assert answer(program, architecture, call, 4711, 7) == EPERM
    for call, process in (("setpriority", 0), ("ioprio_set", 1)):
        assert answer(program, architecture, call, process, 0) == ALLOW, "its own"
        assert answer(program, architecture, call, process, 4711) == EPERM
        assert answer(program, architecture, call, process + 1, 0) == EPERM, "its group, with the zygote"
        assert answer(program, architecture, call, 2, 0) == EPERM, "everything of its user"


def test_foreign_calls_kill():
    program = seccomp_filter("x86_64", network=True, unix_sockets=True, tracing=True)
    assert answer(program, "x86_64", 0x40000000 + 39) == KILL
    assert answer(program, "aarch64", 172) == KILL
    assert len(program) // 8 < 4096, "the kernel takes no more"


def test_an_architecture_without_a_filter_says_so():
    made = rules(Permit(), replace(FACTS, architecture="riscv64"))
    assert made.seccomp == b""
    assert not {"seccomp", "network:none"} & set(made.layers)
