"""Whoever is left when the host dies: a small shell that ends what the host was running.

The levels without a supervisor share this. A host that is killed (SIGKILL, the kernel's killer of the
memory-hungry, a second Ctrl-C) can end nobody, and its tools would run on without a time limit. The shell
reads the numbers of running process groups from a socket of the host's; when that ends, the host is gone, and
it kills the groups that are left. It starts with the first program and ends with the sandbox.

What it cannot do: find a descendant that left its group, as little as the levels it serves. Nor is it waited
for: a host that dies in the moment between a start and the message about it leaves that one program.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import Final

from toolcrib.forks import IN_FORKS
from toolcrib.sandbox import _kernel

# No tool is ever started by a shell, and this one is told numbers alone: a second interpreter would take ten
# times its memory, and may not be there where Python is embedded.
# Signals that are meant for the host's whole group or session do not end it before the host. Nothing of what
# the host prints to is kept open, and no folder kept in use.
_SCRIPT: Final = """\
trap '' HUP INT QUIT TERM
exec >/dev/null 2>&1
cd /
held=' '
while read -r sign group; do
    case $sign in
        +) held="$held$group " ;;
        -) held="${held%% $group *} ${held#* $group }" ;;
    esac
done
for group in $held; do kill -9 "-$group"; done
"""
_SHELL: Final = "/bin/sh"
_QUIETLY: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""A host may let SIGPIPE end it; that somebody killed the shell is no reason to."""


class Guard:
    """The groups that must not outlive this host. Any thread may say so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._socket: socket.socket | None = None
        self._shell = 0
        self._is_closed = False
        IN_FORKS.add(self)

    def prepare(self) -> None:
        """A program will be started: the shell must not be, once that runs."""
        with self._lock, suppress(OSError):
            if self._socket is None:
                self._start()

    def hold(self, group: int) -> None:
        """A program was started that leads this group."""
        with self._lock:
            self._held.add(group)
            self._tell(f"+ {group}\n")

    def let_go(self, group: int) -> None:
        """It was killed. To be said before it is reaped: until then its number cannot belong to others."""
        with self._lock:
            if group in self._held:
                self._held.remove(group)
                self._tell(f"- {group}\n")

    def close(self) -> None:
        """End the shell. What is still held lives on: its host does."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _tell(self, line: str) -> None:
        # Without a shell (no program, no process, no descriptor to be had) the tool runs all the same: a
        # host that is killed then leaves it, which these levels do not promise to prevent.
        with suppress(OSError):
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.send(line.encode("ascii"), _QUIETLY)
                    return
                self._end()  # somebody killed it, or stopped it for long: another one takes its place
            self._start()

    def _start(self) -> None:
        """Another shell, which knows all that is held."""
        if self._is_closed:
            return
        with _STARTING:
            opened = [end.detach() for end in socket.socketpair()]
            ours: socket.socket | None = None
            try:
                # Neither is 0, 1 or 2, as in a host without these: what it prints would be read by the shell,
                # and putting the other one at 0 must never be nothing to do.
                for end in tuple(opened):
                    opened.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
                theirs = opened[-1]
                ours = socket.socket(fileno=opened.pop(-2))
                self._shell = os.posix_spawn(
                    _SHELL,
                    ["toolcrib-guard", "-c", _SCRIPT],
                    {},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, theirs, 0),
                        *((os.POSIX_SPAWN_CLOSE, each) for each in _inheritable()),
                    ],
                    setpgroup=0,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                )
            except BaseException:
                if ours is not None:
                    ours.close()
                raise
            finally:
                _kernel.close_all(opened)
            self._socket = ours
        ours.setblocking(False)
        ours.send("".join(f"+ {each}\n" for each in self._held).encode("ascii"), _QUIETLY)

    def _end(self) -> None:
        """First the shell, then the socket: its end would mean that the host is gone."""
        if self._socket is None:
            return
        with suppress(ChildProcessError):  # somebody else reaped it: the number may be another's
            if os.waitpid(self._shell, os.WNOHANG) == (0, 0):
                os.kill(self._shell, signal.SIGKILL)
                os.waitpid(self._shell, 0)
        self._socket.close()
        self._socket = None

    def renew(self) -> None:
        """In a copy of the host made by fork: the shell is the original's, and must see the end of that."""
        self._lock = threading.Lock()
        self._held.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _inheritable() -> list[int]:
    """What the shell would keep open after the host: a pipe, say, whose end somebody waits for."""
    found = []
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # closed meanwhile, as the one that lists them
                if int(name) > 2 and os.get_inheritable(int(name)):
                    found.append(int(name))
    return found


_STARTING: Final = threading.RLock()
"""Held while there is a socket that no guard has yet. Nobody forks meanwhile: the copy would keep it, and the
shell not see the end of the original."""


os.register_at_fork(
    before=_STARTING.acquire, after_in_parent=_STARTING.release, after_in_child=_STARTING.release
)
