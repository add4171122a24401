"""What whoever serves hands to the pages. Light: neither Starlette nor Jinja2 is known here."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from toolcrib.app import Crib
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import Events
from toolcrib.jsontext import JsonObject


class Serving(Struct, frozen=True, kw_only=True):
    """What the pages show, handed over by whoever serves."""

    crib: Crib
    events: Events
    crew: Crew | None = None
    """None: nothing runs calls here, as in tests of pages."""
    health: Callable[[], JsonObject] | None = None
    """How the host stands (``Health.report``); asked in a thread."""
