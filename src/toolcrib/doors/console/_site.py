"""All pages of the console as one Starlette app: the groups of pages, the static files, and errors."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from toolcrib.doors.console import _activity, _catalog
from toolcrib.doors.console._frame import Frame, Guarded, Serving, Statics
from toolcrib.errors import StoreError


def site(serving: Serving) -> Guarded:
    """Built once, at the first request."""
    statics = Statics()
    frame = Frame(serving, statics)
    pages = [*_catalog.pages(frame), *_activity.pages(frame)]
    frame.know(page.path for page in pages)
    app = Starlette(
        routes=[Route("/static/{version}/{name}", statics.answer), *pages],
        exception_handlers={
            HTTPException: frame.refuse,
            StoreError: frame.say_unread,
            Exception: frame.break_down,
        },
    )
    return Guarded(app)
