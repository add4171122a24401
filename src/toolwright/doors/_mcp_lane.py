"""Where the MCP door ends and the official SDK begins: who we say we are, and what the SDK's lane must offer.

The door itself answers what is asked often (``initialize``, ``server/discover``, ``ping``, ``tools/list``,
``tools/call``, ``subscriptions/listen``). Everything else, such as resources, prompts and completions, is
answered by ``_mcp_sdk.py``, which is imported when it is first needed: that takes seconds. Nothing here knows
HTTP or a pipe.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol, cast

from toolwright import __version__
from toolwright.app import Workshop
from toolwright.jsontext import JsonObject
from toolwright.model import Guest

if TYPE_CHECKING:
    from toolwright.doors._offers import Offers
    from toolwright.doors._web import Receive, Scope, Send

LANE: Final = "toolwright.doors._mcp_sdk"
"""Has ``open_lane(workshop: Workshop, *, more: Offers | None) -> Lane``."""
SERVER: Final[JsonObject] = {"name": "toolwright", "title": "Toolwright", "version": __version__}
"""``serverInfo`` of both eras."""
OLDER: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with ``initialize``, the oldest first."""
NEWER: Final = ("2026-07-28",)
"""Versions in which every request says all that is needed to answer it."""


class Lane(Protocol):
    """What answers the rarer methods. One for all doors of a host; never asked for the door's own methods."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of either era, statelessly. The body was read and is received again;
        ``scope["guest"]`` is who asks, and what a session said of itself was checked."""
        ...

    async def answer(self, message: JsonObject, *, guest: Guest, version: str) -> JsonObject | None:
        """The response to one JSON-RPC request of a connection that speaks ``version``; None to a
        notification."""
        ...

    async def close(self) -> None:
        """End what was started. Called once, on the loop of ``handle`` or ``answer``."""
        ...


def capabilities(*, is_whole: bool) -> JsonObject:
    """What the server can do; ``is_whole``: with the SDK's lane."""
    offered: JsonObject = {"tools": {"listChanged": True}}
    if is_whole:
        offered["prompts"] = {"listChanged": True}
        offered["resources"] = {"listChanged": True, "subscribe": False}
        offered["completions"] = {}
    return offered


def has_lane() -> bool:
    """Whether there is an SDK to answer the rarer methods; imports nothing of it."""
    return find_spec("mcp") is not None and find_spec(LANE) is not None


def open_lane(workshop: Workshop, more: Offers | None = None) -> Lane:
    """Import the lane, which takes seconds; ``more`` is what the host offers besides skills."""
    return cast("Lane", import_module(LANE).open_lane(workshop, more=more))
