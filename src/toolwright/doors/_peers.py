"""Who is at the other end of a connection from this machine: the owner of the server, or somebody else.

On loopback nobody has to show a token, but not everybody on loopback is the owner: other users of the machine
reach it, and so do the tools that we run ourselves. The kernel knows whose socket the other end is, and which
processes hold it. Where it cannot be asked (other systems, some containers), loopback is believed; where it
can, and processes of ours run, a socket that no other program is seen to hold is nobody's.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ERROR: Final = 2
_ALL_STATES: Final = 0xFFFF_FFFF
_NO_COOKIE: Final = 0xFFFF_FFFF
_HEADER: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBBI")
_ENDS: Final = struct.Struct("!HH16s16s")
_REST: Final = struct.Struct("=III")
_OWNED: Final = struct.Struct("=II")
_OWNED_AT: Final = _HEADER.size + 4 + _ENDS.size + _REST.size + 12
_PROCESSES_MAX: Final = 4096
_ANCESTORS_MAX: Final = 256
_KNOWN_MAX: Final = 16
_WAIT_S: Final = 0.5
_GONE: Final = (-1, 0)

Address = tuple[str, int]


class Peer:
    """The other end of one connection. It is looked up once, when somebody asks."""

    __slots__ = ("_client", "_is_owner", "_server")

    def __init__(self, client: Address | None, server: tuple[str, int | None] | None) -> None:
        self._client = client
        self._server = server
        self._is_owner: bool | None = None

    def is_owner(self) -> bool:
        """Whether it is a program of the user that we run as, and none that we started for a tool."""
        if self._is_owner is None:
            self._is_owner = _is_owners(self._client, self._server)
        return self._is_owner


def _is_owners(client: Address | None, server: tuple[str, int | None] | None) -> bool:
    if client is None or server is None or server[1] is None or not sys.platform.startswith("linux"):
        return True
    try:
        found = _socket_of(client, (server[0], server[1]))
    except (OSError, ValueError, struct.error):
        return True  # the kernel does not say
    uid, inode = found
    # Attack: another user of the machine calls tools as its owner.
    # Attack: a request that is sent and left, so that nobody can be asked whose it was.
    if inode == 0 or uid not in (os.geteuid(), 0):
        return False
    if uid != os.geteuid():
        return True  # root's, whose files we may not look at; what we start runs as we do
    # Attack: a tool with the network calls other tools, or answers the question that its own call waits for.
    started = list(_descendants())
    if any(_holds(pid, inode) for pid in started):
        return False
    # Attack: the same from where we cannot see it: the socket is on its way from one process to another, in a
    # thread with files of its own, or in a process that lets nobody look. So somebody else must be seen to
    # hold it; only where nothing of ours runs, nobody needs to be.
    return not started or _is_held_by_others(inode)


def _socket_of(client: Address, server: Address) -> tuple[int, int]:
    """The user and the inode of the client's socket. Raises OSError where the kernel cannot be asked."""
    at = ip_address(client[0])
    family = socket.AF_INET if at.version == 4 else socket.AF_INET6
    ends = _ENDS.pack(client[1], server[1], at.packed, ip_address(server[0]).packed)
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    asked += _REST.pack(0, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if number == -2:  # ENOENT
            return _GONE
        raise OSError(-number, "the kernel does not say")
    uid, inode = _OWNED.unpack_from(answer, _OWNED_AT)
    return uid, inode


def _descendants() -> Iterator[int]:
    """Every process that we started, directly or not: tools stay below us, whatever they fork."""
    todo, seen = [os.getpid()], 0
    while todo and seen < _PROCESSES_MAX:
        process = todo.pop()
        with suppress(OSError):  # it has ended meanwhile
            for task in os.listdir(f"/proc/{process}/task"):
                with suppress(OSError), open(f"/proc/{process}/task/{task}/children", "rb") as file:
                    for child in file.read().split():
                        seen += 1
                        todo.append(int(child))
                        yield int(child)


def _holds(process: int, inode: int) -> bool:
    wanted = f"socket:[{inode}]"
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{process}/fd/{name}") == wanted:
                    return True
    return False


_known: Final[dict[int, None]] = {}
"""Processes that were seen to connect before, which are looked at first: browsers and agents come again."""


def _is_held_by_others(inode: int) -> bool:
    """Whether a process that we did not start holds a socket: one that came before, or else the newest first,
    because who connects has often just begun."""
    with suppress(OSError):
        running = sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)
        for process in (*_known, *running):
            if _holds(process, inode):
                if _is_below_us(process):
                    return False
                if process not in _known and len(_known) >= _KNOWN_MAX:
                    del _known[next(iter(_known))]
                _known[process] = None
                return True
    return False


def _is_below_us(process: int) -> bool:
    """Attack: a process that is forked while we look, and was not there when we looked for ours."""
    own = os.getpid()
    if process == own:
        return False
    for _ in range(_ANCESTORS_MAX):
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return True  # it has ended meanwhile: whose it was, nobody can say
        if process <= 1:
            return False
        if process == own:
            return True
    return True
