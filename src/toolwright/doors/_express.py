"""Connections that one thread reads, serves and answers by itself, while nobody else has to be woken.

A call that goes from the event loop's thread to another one and back costs more in waking and in cold caches
than a quick tool does. So a connection whose client sends plain calls, one after the other, is not watched by
the event loop but here, by one of the threads that run calls (``_crew.py``): it waits for requests, runs what
came together and sends the answers. If a call takes long, another thread goes on waiting in its place, so
nothing is held up. Whatever is not a plain call goes back to the event loop, with all bytes that came.

Nothing is parsed or decided here. A seat has a descriptor of its own for the connection's socket, because the
event loop may close its own at any time.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import Final

SEATS_MAX: Final = 256
RECEIVED_BYTES_MAX: Final = 16 * 1024
"""Of one look at a connection; what is longer goes back to the event loop."""
_TOGETHER_MAX: Final = 64
_LOG: Final = logging.getLogger("toolwright.doors")

Arrived = Callable[["Seat", bytes], bool]
"""In the waiting thread: what came in one piece, and whether it was taken. Its answer goes to the seat."""
Back = Callable[[bytes, bytes], object]
"""On the event loop: what came and was not taken, and what is still to be sent. Called once, unless the seat
was dropped."""


class Seat:
    """One connection that is watched here."""

    __slots__ = (
        "_arrived",
        "_back",
        "_express",
        "_is_busy",
        "_is_late",
        "_is_left",
        "_loop",
        "_turn",
        "socket",
    )

    def __init__(
        self, express: Express, own: socket.socket, loop: AbstractEventLoop, arrived: Arrived, back: Back
    ) -> None:
        self.socket = own
        self._express = express
        self._loop = loop
        self._arrived = arrived
        self._back = back
        self._turn = threading.Lock()
        """Held for whatever is done with the socket: the number of a closed one may be another's already."""
        self._is_busy = False
        self._is_late = False
        """Something came while a request was under way: the event loop knows what to do about that."""
        self._is_left = False

    def read(self, event: int) -> None:
        """In the thread that waits: something has come."""
        with self._turn:
            if self._is_left:
                return
            if self._is_busy:
                self._is_late = True
                return
            try:
                data = self.socket.recv(RECEIVED_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            self._is_busy = True
            # Attack: more than one look takes, or the end of what the client says behind its last request.
            # Both were told with what was read now, and are not told again: the event loop finds them.
            self._is_late = len(data) == RECEIVED_BYTES_MAX or event != select.EPOLLIN
        try:
            is_taken = bool(data) and self._arrived(self, data)
        except Exception:  # noqa: BLE001 - what came on the other connections must be read all the same
            _LOG.exception("a request on the express could not be taken")
            data, is_taken = b"", False
            self._end()
        if not is_taken and self.drop():
            self._go_back(data)

    def answer(self, data: bytes, *, stays: bool) -> None:
        """Send the answer to what came; in any thread. Not ``stays``: it was the last one."""
        with self._turn:
            if self._is_left:
                return
            try:
                sent = self.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:  # the client has gone: the event loop finds that out by itself
                sent = len(data)
                stays = False
            # Attack: a request that comes now. Whoever read it before the connection has left would answer
            # nobody, or in the middle of this answer; so it is not free in between.
            if stays and sent == len(data) and not self._is_late:
                self._is_busy = False
                return
            self._drop()
        self._go_back(b"", data[sent:])

    def call_back(self) -> bool:
        """Have it come back after the answer that is on its way; nobody may close the connection before.
        False: there is none, and it is watched here no longer."""
        with self._turn:
            self._is_late = True
            if self._is_busy or self._is_left:
                return True
            # Attack: a request that is read here after it was found idle, and answered to nobody.
            self._drop()
            return False

    @property
    def is_left(self) -> bool:
        return self._is_left

    def _end(self) -> None:
        """Have the event loop find that the connection is over."""
        with self._turn, suppress(OSError):
            if not self._is_left:
                self.socket.shutdown(socket.SHUT_RDWR)

    def drop(self) -> bool:
        """Watch it here no longer; whether it still was."""
        with self._turn:
            return self._drop()

    def _drop(self) -> bool:
        """In its turn."""
        if self._is_left:
            return False
        self._is_left = True
        self._express.forget(self)
        self.socket.close()
        return True

    def _go_back(self, received: bytes, unsent: bytes = b"") -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._back, received, unsent)


Arrivals = list[tuple[int, int]]
"""Of which descriptors, and what."""


class Express:
    """All such connections of one server: where a crew reads from (``_crew.Source``)."""

    def __init__(self) -> None:
        self._seats: dict[int, Seat] = {}
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._seats)

    def board(
        self, sock: socket.socket, loop: AbstractEventLoop, arrived: Arrived, back: Back
    ) -> Seat | None:
        """Watch a connection here, which the event loop must watch no longer. None: there is no room."""
        if self._is_closed or len(self._seats) >= SEATS_MAX:
            return None
        try:
            own = sock.dup()
        except OSError:
            return None
        number = own.fileno()
        seat = self._seats[number] = Seat(self, own, loop, arrived, back)
        try:
            # Edge triggered: each arrival is told once, also one that was there before.
            self._epoll.register(number, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        except OSError:  # more than the kernel watches for one user
            del self._seats[number]
            own.close()
            return None
        return seat

    def forget(self, seat: Seat) -> None:
        """By the seat, in its turn."""
        number = seat.socket.fileno()
        del self._seats[number]
        self._epoll.unregister(number)

    def read(self) -> Arrivals:
        """Wait until something comes. Empty: it was closed."""
        return [] if self._is_closed else self._epoll.poll()

    def take(self, arrivals: Arrivals) -> None:
        """Hand on what has come, and what comes meanwhile: what is handed on together shares one sync."""
        count = 0
        while arrivals:
            for number, event in arrivals:
                seat = self._seats.get(number)
                if seat is not None:
                    seat.read(event)
            count += len(arrivals)
            arrivals = self._epoll.poll(0) if count < _TOGETHER_MAX and not self._is_closed else []

    def flush(self) -> None:
        """Every answer was sent when it was there."""

    def ring(self) -> None:
        """Have nobody read any more: whoever does comes back."""
        self._is_closed = True
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """After ``ring``, when nobody reads."""
        for seat in tuple(self._seats.values()):
            seat.drop()
        self._epoll.close()
        os.close(self._bell)


def open_express() -> Express | None:
    """None where the kernel has no such thing: then all is left to the event loop."""
    return Express() if hasattr(select, "epoll") and hasattr(os, "eventfd") else None
