"""Whose program is at the other end of a connection from this machine: the owner's, or another one.

On loopback the owner of the server needs no token. Other users of the machine reach loopback as well, and so
does every tool, whichever host started it. The kernel says which user made the other end's socket, and which
processes hold it. A connection is the owner's only if a program of the owner is seen to hold it and no tool
is. Whatever cannot be seen (a process that is gone, that hides, or that runs in another PID namespace) needs
a token. Systems other than Linux do not say: there, loopback is believed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from toolcrib.sandbox import marks

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
_ATTRIBUTE: Final = struct.Struct("=HH")
_CGROUP_ID: Final = 21
_NUMBER: Final = struct.Struct("=Q")
_WAIT_S: Final = 0.5
_ANCESTORS_MAX: Final = 256
_KNOWN_MAX: Final = 16

_LOOPBACK: Final = frozenset(("127.0.0.0/8", "::1"))

Address = tuple[str, int]


class _Socket(NamedTuple):
    """The other end's socket, as the kernel has it."""

    uid: int
    inode: int
    """0: it is gone."""
    cgroup: int
    """Where the process was that made it; 0: the kernel does not say."""


_GONE: Final = _Socket(-1, 0, 0)


class Peer:
    """The other end of one connection."""

    __slots__ = ("_client", "_process", "_server", "_socket", "share", "verdict")

    def __init__(self, client: Address | None, server: tuple[str, int | None] | None) -> None:
        self._client = client
        self._server = server
        self._socket: _Socket | None = None
        self._process: int | None = None
        self.verdict: bool | None = None
        """Whether it is a program of the owner; None: that was not looked up yet."""
        self.share: str | None = None
        """The caller of the last accepted request (``_shares.py``), or None."""

    @property
    def group(self) -> str:
        """The user at the other end if it is on this machine, else its address or network. Of our own user,
        the program as well, after ``tell_apart``."""
        if self._client is None:
            return ""
        network = network_of(self._client[0])
        if not is_asked() or network not in _LOOPBACK:
            return network
        user = f"user {self.socket.uid}"
        return user if self._process is None else f"{user}, process {self._process}"

    @property
    def is_untold(self) -> bool:
        """Whether ``tell_apart`` can say more about the group."""
        return self.group == f"user {os.geteuid()}"

    @property
    def socket(self) -> _Socket:
        if self._socket is None:
            try:
                self._socket = _socket_of(self._client, self._server)
            except (OSError, ValueError, struct.error):
                self._socket = _GONE  # the kernel does not say
        return self._socket


def network_of(address: str) -> str:
    """Return the address, or the network that counts as one address.

    Attack: one machine with as many addresses as it likes: of IPv6 in its network, however short they are
    written, and of loopback.
    """
    try:
        at = ip_address(address)
    except ValueError:
        return address
    if isinstance(at, IPv6Address):
        if at.ipv4_mapped is None:
            return str(at if at.is_loopback else IPv6Address(int(at) >> 64 << 64))
        at = at.ipv4_mapped
    return "127.0.0.0/8" if at.is_loopback else str(at)


def is_asked() -> bool:
    """Whether this system can be asked whose a socket is."""
    return sys.platform.startswith("linux")


def can_tell(address: str) -> bool:
    """Whether this machine says whose a connection to one of its addresses is. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as listening,
        socket.create_connection(listening.getsockname()[:2], _WAIT_S) as client,
    ):
        peer = Peer(client.getsockname()[:2], listening.getsockname()[:2])
        look_up([peer])
    return bool(peer.verdict)


class Peers:
    """Looks up peers for one event loop, in a thread: all that wait are looked up together.

    Attack: many connections, each of them a reason to look through all processes of the machine.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "peers")
        self._waiting: list[tuple[Peer, asyncio.Future[None]]] = []
        self._looking: asyncio.Future[None] | None = None

    async def is_owner(self, peer: Peer) -> bool:
        """Whether a peer is a program of the user that we run as, and no tool."""
        if peer.verdict is None:
            found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((peer, found))
            if self._looking is None:
                self._look()
            await found
        return bool(peer.verdict)

    def _look(self) -> None:
        asked, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        self._looking = loop.run_in_executor(self._thread, look_up, [peer for peer, _ in asked])
        self._looking.add_done_callback(lambda _: self._tell(asked))

    def _tell(self, asked: Sequence[tuple[Peer, asyncio.Future[None]]]) -> None:
        self._looking = None
        for _, found in asked:
            if not found.done():
                found.set_result(None)
        if self._waiting:
            self._look()


def tell_apart(peers: Sequence[Peer]) -> None:
    """Find out which programs of our own user peers are. All tools, and what cannot be seen, count as one.

    This decides nothing about access: ``look_up`` does, when there is a request.
    """
    with suppress(OSError):  # no file descriptor is left
        holders = _holders({peer.socket.inode for peer in peers})
        for peer in peers:
            peer._process = holders.get(peer.socket.inode, 0)


def look_up(peers: Sequence[Peer]) -> None:
    """Decide about peers. One that cannot be decided about is not the owner."""
    wanted: dict[int, list[Peer]] = {}
    for peer in peers:
        if not is_asked():
            peer.verdict = True
            continue
        held = peer.socket
        # Attack: another user of the machine calls tools as its owner. Root's programs count as another
        # user's: we may not look at them.
        # Attack: a request that is sent and left, so that no process can be asked whose it was.
        if held.inode != 0 and held.uid == os.geteuid():
            wanted.setdefault(held.inode, []).append(peer)
        else:
            peer.verdict = False
    if wanted:
        with suppress(OSError):  # no file descriptor is left: they are looked up again at the next request
            holders = _holders(set(wanted))
            for inode, waiting in wanted.items():
                holder = holders.get(inode)
                for peer in waiting:
                    peer.verdict = holder is not None and _made(peer.socket, holder)


def _holders(inodes: set[int]) -> dict[int, int]:
    """A process of the owner for each socket that one is seen to hold, and no tool."""
    found: dict[int, int] = {}
    of_tools: set[int] = set()
    for process in _processes():
        # Attack: a tool with the network calls other tools, or answers the question that its own call waits
        # for. Also a tool of another host of the same user, and what that tool has left behind.
        may_be_owner = not marks.is_marked(process) and not _is_below_us(process)
        if may_be_owner and len(found) == len(inodes):
            continue
        held = inodes.intersection(_sockets(process))
        if not may_be_owner:
            # Attack: a tool has its connection held by another program as well.
            of_tools |= held
            continue
        for inode in held:
            found.setdefault(inode, process)
        if held and process not in _known:
            _known.append(process)
    return {inode: holder for inode, holder in found.items() if inode not in of_tools}


_known: Final[deque[int]] = deque(maxlen=_KNOWN_MAX)
"""Processes that were seen to connect before, which are looked at first: browsers and agents come again."""


def _processes() -> Iterator[int]:
    """The processes of our user that may be looked at: those that came before, then the newest first, because
    who connects has often just begun."""
    user = os.geteuid()
    running = sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)
    for process in (*_known, *(each for each in running if each not in _known)):
        with suppress(OSError):  # it has ended meanwhile
            if os.stat(f"/proc/{process}").st_uid == user:
                yield process


def _sockets(process: int) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                kind, _, number = os.readlink(f"/proc/{process}/fd/{name}").partition(":[")
                if kind == "socket":
                    yield int(number[:-1])


def _is_below_us(process: int) -> bool:
    """Whether we started a process, directly or not. Attack: a tool without a mark, which it gets just after
    its start where the kernel has no supervisor: what it forks before that."""
    own = os.getpid()
    if process == own:
        return False
    for _ in range(_ANCESTORS_MAX):
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return True  # it has ended meanwhile, and cannot be asked
        if process <= 1:
            return False
        if process == own:
            return True
    return True


def _made(held: _Socket, holder: int) -> bool:
    """Whether the process that holds a socket may have made it.

    Attack: a tool connects and hands its connection to a program of the owner that takes whatever it is sent:
    a message bus, a browser. They are in other control groups than the tool.
    """
    own = _cgroup_of(holder) if held.cgroup else 0
    return own in (0, held.cgroup)


def _cgroup_of(process: int) -> int:
    """The number of a process's control group; 0: it is not known."""
    with (
        suppress(OSError),
        open(f"/proc/{process}/cgroup", encoding="utf-8", errors="surrogateescape") as file,
    ):
        for line in file:
            if line.startswith("0::/"):
                return os.stat(f"{_cgroups()}/{line[4:].strip()}").st_ino
    return 0


@cache
def _cgroups() -> str:
    """Where the tree of control groups can be seen. Raises FileNotFoundError where it cannot."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, place, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return place
    raise FileNotFoundError("cgroup2")


def _socket_of(client: Address | None, server: tuple[str, int | None] | None) -> _Socket:
    """The client's socket. Raises OSError where the kernel cannot be asked."""
    if client is None or server is None or server[1] is None:
        raise ValueError("not a connection of TCP")
    at = ip_address(client[0])
    family = socket.AF_INET if at.version == 4 else socket.AF_INET6
    ends = _ENDS.pack(client[1], server[1], at.packed, ip_address(server[0]).packed)
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    asked += _REST.pack(0, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
        answer = kernel.recv(4096)
    size, kind = _HEADER.unpack_from(answer)[:2]
    if kind == _ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if number == -2:  # ENOENT
            return _GONE
        raise OSError(-number, "the kernel does not say")
    uid, inode = _OWNED.unpack_from(answer, _OWNED_AT)
    if inode == 0:
        # Attack: connections that are closed at once. The kernel then states user 0, who may be the owner.
        return _GONE
    return _Socket(uid, inode, _cgroup_in(answer[:size], _OWNED_AT + _OWNED.size))


def _cgroup_in(answer: bytes, at: int) -> int:
    """The control group among the attributes of an answer. The root's (1) says nothing: kernels give it as
    well where they do not know."""
    while at + _ATTRIBUTE.size <= len(answer):
        size, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _CGROUP_ID:
            (number,) = _NUMBER.unpack_from(answer, at + _ATTRIBUTE.size)
            return int(number) if number > 1 else 0
        if size < _ATTRIBUTE.size:
            break
        at += (size + 3) & ~3
    return 0
