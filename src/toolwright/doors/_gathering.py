"""A connection's way out that sends in one go what one turn of the event loop has to say.

The server writes head and body of an answer apart; each would be a packet and a system call of its own.
Nothing is held back longer than to the end of the turn.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

_LARGE_BYTES: Final = 64 * 1024
"""What is longer fills packets by itself, and would only be copied once more."""


class Gathering:
    """In the place of an asyncio transport: gathers what is written, and hands on everything else."""

    __slots__ = ("_inner", "_loop", "_parts")

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        parts = self._parts
        if len(data) > _LARGE_BYTES:
            self.flush()
            self._inner.write(data)
            return
        if not parts:
            self._loop.call_soon(self.flush)
        parts.append(data)

    def write_now(self, data: bytes) -> None:
        """What is an answer by itself: there is nothing to gather."""
        if self._parts:
            self.write(data)
        else:
            self._inner.write(data)

    def flush(self) -> None:
        parts = self._parts
        if parts:
            self._parts = []
            self._inner.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._inner.close()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size() + sum(map(len, self._parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
