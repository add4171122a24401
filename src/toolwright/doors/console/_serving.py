"""What whoever serves hands to the pages. Light: neither Starlette nor Jinja2 is known here."""

from __future__ import annotations

from collections.abc import Callable

from toolwright.app import Workshop
from toolwright.doors._crew import Crew
from toolwright.doors._events import Events
from toolwright.jsontext import JsonObject
from toolwright.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What the pages show, handed over by whoever serves."""

    workshop: Workshop
    events: Events
    crew: Crew | None = None
    """None: nothing runs calls here, as in tests of pages."""
    health: Callable[[], JsonObject] | None = None
    """How the host stands (``Health.report``); asked in a thread."""
