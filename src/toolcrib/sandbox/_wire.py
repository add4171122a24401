"""What the host and the native spawner say to each other: requests and reports, as bytes.

The other half of each layout is in ``src/native/spawner.c``. Nothing here sends, starts or decides.
"""

from __future__ import annotations

import os
import socket
import struct
from _socket import socket as Socket
from enum import IntEnum, IntFlag
from typing import Final

from msgspec import Struct

from toolcrib.model import End, Usage
from toolcrib.sandbox import NOT_STARTED, _kernel

VERSION: Final = 6
REQUEST: Final = struct.Struct("<8I2Q12I")
REPORT: Final = struct.Struct("<4I2i2I4Q4Iq8i")
LIMIT: Final = struct.Struct("<IIQ")
FLAGS_AT: Final = 12
REQUEST_MAGIC, REPORT_MAGIC = 0x51535754, 0x52535754
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(2 * 4)
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
STOP: Final = b"c"
"""What the host says on the control socket: the call is to end."""
STDIN_BYTES_MAX: Final = 4096
"""What goes with a request; for more, the tool gets a pipe of the host's."""
OUTPUT_BYTES_MAX: Final = 16 << 10
"""What comes back with a report; of more, the pipes do."""
_HEARD_BYTES: Final = REPORT.size + OUTPUT_BYTES_MAX
SEALED_MAX: Final = 16
"""Files of one start whose checked bytes are shown in place of what lies at their paths."""
NAMESPACE_FDS: Final = 4
"""Descriptors that come with a namespace, besides those of checked files."""
NO_LIMIT: Final = (1 << 64) - 1
TASKS_PER_PROCESS: Final = 8


class Refused(Exception):
    """Nothing was started, and the ending says why."""

    def __init__(self, end: End, reason: str, hint: str | None = None, *, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.end = end
        self.hint = hint
        self.may_pass = may_pass


class Kind(IntEnum):
    RUN = 1
    NAMESPACE = 2
    PROBE = 3


class Flag(IntFlag):
    RULESET = 1 << 0
    PROGRAM = 1 << 1
    CHANNEL = 1 << 2
    USER_NS = 1 << 3
    MOUNT_NS = 1 << 4
    PAYLOAD = 1 << 5
    STDIN = 1 << 6
    OUTPUT = 1 << 7
    SET_UID = 1 << 8
    SET_GID = 1 << 9
    KEEP_PROGRAM = 1 << 10


class Reason(IntEnum):
    EXITED = 1
    NOT_STARTED = 2
    DEADLINE = 3
    CANCELLED = 4
    PROCESSES = 5
    MEMORY = 6
    SCRATCH = 7
    DONE = 8
    SWAPPED = 9
    RUNNING = 10


class Stage(IntEnum):
    NONE = 0
    REQUEST = 1
    CLONE = 2
    GROUP = 3
    DESCRIPTORS = 4
    NAMESPACE = 5
    STALE = 6
    RLIMIT = 7
    IDENTITY = 8
    CAPABILITIES = 9
    CWD = 10
    NO_NEW_PRIVS = 11
    LANDLOCK = 12
    SECCOMP = 13
    EXEC = 14
    BIND = 15


STAGES: Final = {
    Stage.REQUEST: "the spawner refused the request",
    Stage.CLONE: "no new process",
    Stage.GROUP: "process group",
    Stage.DESCRIPTORS: "descriptors",
    Stage.NAMESPACE: "mount namespace",
    Stage.STALE: "mount namespace out of date",
    Stage.RLIMIT: "resource limits",
    Stage.IDENTITY: "change of user",
    Stage.CAPABILITIES: "capabilities",
    Stage.NO_NEW_PRIVS: "no_new_privs",
    Stage.LANDLOCK: "Landlock",
    Stage.SECCOMP: "seccomp",
    Stage.BIND: "protecting",
}


class Report(Struct, frozen=True):
    reason: int
    stage: int
    status: int
    error: int
    strays: int
    usage: Usage
    survivors: int
    """Processes that no signal has ended yet: they wait in the kernel."""
    detail: int
    stdout_bytes: int
    """Of ``tail``; the rest of it is stderr."""
    scratch_changed_ns: int
    """When the scratch folder last changed, as of when all that ran was dead; 0: nobody looked."""
    probes: tuple[int, ...]
    tail: bytes

    @staticmethod
    def read(message: bytes) -> Report | None:
        if len(message) < REPORT.size:
            return None
        found = REPORT.unpack_from(message)
        if found[0] != REPORT_MAGIC or found[1] != VERSION:
            return None
        usage = Usage(user_ms=found[8] / 1000, system_ms=found[9] / 1000, memory_bytes=found[10])
        return Report(
            found[2], found[3], found[4], found[5], found[7], usage, found[13], found[14], found[15],
            found[16], found[17:], message[REPORT.size :],
        )  # fmt: skip


def heard(control: Socket) -> tuple[bytes, tuple[int, ...], bool]:
    """The next message, the descriptors that came with it, all of them or none, and whether there was no room
    for them. An empty message: the supervisor hung up."""
    for _ in range(2):
        try:
            message, parts, flags, _ = control.recvmsg(_HEARD_BYTES, _RIGHTS_BYTES, _CLOSE_ON_EXEC)
        except ConnectionResetError:
            # It ended without having read our "stop". The kernel says so once, then hands over what it sent.
            continue
        except OSError:
            break
        is_cut = flags & _CUT != 0
        if not parts:
            return message, (), is_cut
        rights = parts[0][2]
        fds = struct.unpack(f"{len(rights) // 4}i", rights[: len(rights) // 4 * 4])
        if is_cut:  # one taken for the other would show a call's stderr as its result
            _kernel.close_all(fds)
            fds = ()
        return message, fds, is_cut
    return b"", (), False


def received(control: Socket) -> Report | None:
    """The report of a program that has its own pipes; None where the supervisor hung up without one."""
    return Report.read(heard(control)[0])


def strings(strings: list[str]) -> bytes:
    text = "\0".join(strings)
    if text.count("\0") != len(strings) - 1:
        raise Refused(End.NOT_STARTED, "embedded null byte")
    return os.fsencode(text) + b"\0"


def plain_head(
    kind: Kind, flags: int, bind_flags: bytes, text: bytes, *, argc: int = 0, sealedc: int = 0
) -> bytes:
    """Of a request that starts no tool."""
    return REQUEST.pack(
        REQUEST_MAGIC, VERSION, kind, flags, REQUEST.size + len(bind_flags) + len(text),
        0, 0, 0, 0, 0, 0, 0, argc, 0, len(bind_flags) // 4, 0, 0, len(text), sealedc, 0, 0, 0,
    )  # fmt: skip


def how(report: Report) -> str:
    if report.reason == Reason.NOT_STARTED:
        stage = STAGES.get(Stage(report.stage))
        what = os.strerror(report.error)
        return f"{NOT_STARTED}: {f'{stage}: ' if stage else ''}{what[:1].lower()}{what[1:]}"
    if report.reason != Reason.EXITED:
        return f"stopped: {Reason(report.reason).name.lower()}"
    if os.WIFSIGNALED(report.status):
        return f"killed by signal {os.WTERMSIG(report.status)}"
    return f"exit status {os.WEXITSTATUS(report.status)}"
