"""What callers share, so that none of them takes what another needs: threads, places, requests under way.

A caller may have as much as is still free: one alone gets half, the next a quarter, and so on. So there is
something left for the next caller, however many calls the others make. What is more than that waits, callers
in turn, or is refused. Nothing here waits in a thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from toolcrib.model import Guest

T = TypeVar("T")


def share_of(guest: Guest) -> str:
    """Return who is counted for what a guest does: its token, the owner, or everybody who has shown none."""
    return guest.token_id or f"without {guest.name}"


WORKING_MAX: Final = 16
"""Of what doors do beside the event loop (listing, selecting, reading records), at once."""


class Shares:
    """How much of a number of places each caller has. Not safe for threads by itself."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self.total = 0

    def may(self, caller: str, size: int = 1) -> bool:
        """Whether a caller may have one more, or so many. One that has none gets them beyond the number, so
        that no others, however many they are, keep it out."""
        held = self._held[caller]
        if held == 0:
            return self.total < 2 * self._most
        return held + size <= self._most - self.total

    def held(self, caller: str) -> int:
        return self._held[caller]

    def take(self, caller: str, size: int = 1) -> None:
        self._held[caller] += size
        self.total += size

    def give_back(self, caller: str, size: int = 1) -> None:
        self.total -= size
        self._held[caller] -= size
        if not self._held[caller]:
            del self._held[caller]


class Queue(Generic[T]):
    """What waits: callers in turn, each caller's kinds of work in turn, and each kind in its order."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has(self, caller: str, kind: str = "") -> bool:
        return kind in self._callers.get(caller, ())

    def add(self, caller: str, item: T, kind: str = "") -> None:
        kinds = self._callers.setdefault(caller, OrderedDict())
        kinds.setdefault(kind, deque()).append(item)
        self._count += 1

    def next(self, may: Callable[[str], bool], may_kind: Callable[[str], bool] = lambda _: True) -> T | None:
        """Take out the next item whose caller and kind may have a turn."""
        for caller, kinds in self._callers.items():
            if not may(caller):
                continue
            for kind in kinds:
                if may_kind(kind):
                    return self._take(caller, kind)
        return None

    def _take(self, caller: str, kind: str) -> T:
        kinds = self._callers[caller]
        item = kinds[kind].popleft()
        self._count -= 1
        kinds.move_to_end(kind)
        if not kinds[kind]:
            del kinds[kind]
        self._callers.move_to_end(caller)
        if not kinds:
            del self._callers[caller]
        return item

    def take_out(self, is_wanted: Callable[[T], bool]) -> list[T]:
        """Take out all items of a kind, wherever they wait."""
        found: list[T] = []
        for caller, kinds in [*self._callers.items()]:
            for kind, items in [*kinds.items()]:
                wanted = [item for item in items if is_wanted(item)]
                if not wanted:
                    continue
                found += wanted
                kinds[kind] = deque(item for item in items if item not in wanted)
                if not kinds[kind]:
                    del kinds[kind]
            if not kinds:
                del self._callers[caller]
        self._count -= len(found)
        return found


class Turns:
    """Places that callers have in turn, on one event loop; who waits for one holds nothing."""

    def __init__(self, most: int = WORKING_MAX) -> None:
        self._shares = Shares(most)
        self._waiting: Queue[tuple[str, asyncio.Future[None]]] = Queue()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        if self._waiting.has(caller) or not self._shares.may(caller):
            came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(caller, (caller, came))
            try:
                await came
            except asyncio.CancelledError:
                if came.done() and not came.cancelled():  # it was given just now
                    self._give_back(caller)
                raise
        else:
            self._shares.take(caller)
        try:
            yield
        finally:
            self._give_back(caller)

    async def run(self, caller: str, work: Callable[..., T], /, *given: object, **named: object) -> T:
        """Run something that takes time in a thread, in the caller's turn."""
        async with self.turn(caller):
            return await asyncio.to_thread(work, *given, **named)

    def _give_back(self, caller: str) -> None:
        self._shares.give_back(caller)
        while (found := self._waiting.next(self._shares.may)) is not None:
            who, came = found
            if not came.done():  # else its request is over
                self._shares.take(who)
                came.set_result(None)
