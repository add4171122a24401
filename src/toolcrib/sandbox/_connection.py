"""One running spawner: its socket, the page it shares with the host, and its end.

What is said over the socket is ``_wire.py``'s; who calls what is ``supervised.py``'s.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
from array import array
from contextlib import suppress
from typing import Final

from toolcrib.sandbox import _kernel
from toolcrib.sandbox._wire import FLAGS_AT, NAMESPACE_FDS, REQUEST, SEALED_MAX, Flag

GRACE_S: Final = 5.0
"""How long after its deadline a call may stay silent before contact counts as lost."""
INLINE_BYTES_MAX: Final = 60_000
PAGE_BYTES: Final = 4096


_GONE: Final = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
"""EBADF: another thread found the spawner gone, and has closed our end."""


class Gone(Exception):
    """The spawner is not there any more, and nobody has the request, or whoever had it ended."""


class Connection:
    """One running spawner."""

    def __init__(self, binary: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened = [theirs.fileno()]
        try:
            page = os.memfd_create("toolcrib-started", os.MFD_CLOEXEC)
            opened.append(page)
            os.ftruncate(page, PAGE_BYTES)
            self.started = mmap.mmap(page, PAGE_BYTES)
            own = os.pidfd_open(os.getpid())
            opened.append(own)
            # Where a queue is full for so long, something is wrong that waiting does not mend.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 10, 0))
            # Above 5, so that putting one in its place does not close another.
            above = [dup_above(fd, 6) for fd in opened]
            opened += above
            self.pid = os.posix_spawn(
                binary,
                ["toolcrib-spawner"],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(above, 3)],
                setpgroup=0,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.detach()
            _kernel.close_all(opened)
        self.socket = ours
        self.host = os.getpid()
        self._is_closed = False
        self.free = list(range(1, PAGE_BYTES))
        """Bytes of the page that no call uses; byte 0 is for those that found none, and is always set."""
        self.started[0] = 1

    def take_place(self) -> int:
        """A byte of the page, cleared: the supervisor sets it before it starts anything."""
        try:
            place = self.free.pop()
        except IndexError:
            return 0
        self.started[place] = 0
        return place

    def is_alone(self) -> bool:
        """Whether no other call is running."""
        return len(self.free) >= PAGE_BYTES - 2

    def give_place_back(self, place: int) -> None:
        if place:
            self.free.append(place)

    def post(self, message: bytes, fds: list[int]) -> None:
        """Send a request, by way of a file in memory where it is too long for a datagram. Raises Gone."""
        if len(message) <= INLINE_BYTES_MAX:
            self._send(message, fds)
            return
        flags = struct.unpack_from("<I", message, FLAGS_AT)[0] | Flag.PAYLOAD
        message = message[:FLAGS_AT] + struct.pack("<I", flags) + message[FLAGS_AT + 4 :]
        payload = _kernel.seal(message, "request")
        try:
            self._send(message[: REQUEST.size], [*fds, payload])
        finally:
            os.close(payload)

    def _send(self, message: bytes, fds: list[int]) -> None:
        try:
            self.socket.sendmsg((message,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds)),))
        except OSError as error:
            if error.errno not in _GONE:
                raise
            raise Gone from None

    def ask(self, message: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        """Send a request that starts no tool; the answer and its descriptors, all of them, or nothing where
        nobody speaks for long.

        Raises Gone, and OSError where there is no room for them. Attack: a tool stops the spawner and kills
        whoever would answer. It is woken where nobody does, and the next request finds somebody.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self.post(message, [theirs.fileno(), *fds])
            ours.settimeout(GRACE_S)
            try:
                answer, found, flags, _ = socket.recv_fds(
                    ours, 8192, NAMESPACE_FDS + SEALED_MAX, socket.MSG_CMSG_CLOEXEC
                )
            except TimeoutError:
                self.wake()
                return b"", []
            except ConnectionError:
                raise Gone from None
            if not answer:
                raise Gone
            if flags & socket.MSG_CTRUNC:  # one taken for another would be kept for every later call
                _kernel.close_all(found)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return answer, found

    def wake(self) -> None:
        """Have it go on, where somebody stopped it."""
        if not self._is_closed and self.host == os.getpid():
            with suppress(OSError):
                os.kill(self.pid, signal.SIGCONT)

    def close(self, wait_s: float = 2.0) -> None:
        """Hang up; the spawner ends by itself. It is reaped here because it is a child of ours, no tool's."""
        self.socket.close()
        # Once: after that its number may be another process.
        was_closed, self._is_closed = self._is_closed, True
        if was_closed or self.host != os.getpid():
            return
        with suppress(OSError, ChildProcessError):
            fd = os.pidfd_open(self.pid)
            try:
                wait = select.poll()
                wait.register(fd, select.POLLIN)
                if not wait.poll(wait_s * 1000):
                    os.kill(self.pid, signal.SIGKILL)
                    wait.poll(wait_s * 1000)
                os.waitpid(self.pid, os.WNOHANG)
            finally:
                os.close(fd)


def dup_above(fd: int, least: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
