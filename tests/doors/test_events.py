"""What happens, told to whoever listens, from any thread."""

from __future__ import annotations

import asyncio
import threading

from tests.program import WAIT_S
from toolcrib.doors._events import KEPT_MAX, EventKind, Events


def test_whoever_comes_back_is_told_what_is_kept_while_others_tell() -> None:
    """An iteration over what is kept broke when an event came meanwhile, and left its listener behind."""
    events, stop = Events(), threading.Event()
    for number in range(KEPT_MAX):
        events.tell(EventKind.CALL_ENDED, {"number": number})

    def tell() -> None:
        while not stop.is_set():
            events.tell(EventKind.CALL_ENDED, {})

    async def listen() -> None:
        for _ in range(200):
            heard = events.listen(after=0)
            await anext(heard)
            await heard.aclose()

    threads = [threading.Thread(target=tell) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        asyncio.run(asyncio.wait_for(listen(), WAIT_S))
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert events.listening == 0
