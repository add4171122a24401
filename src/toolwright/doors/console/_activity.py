"""Pages about what happens: live calls, approvals, the audit, health."""

from __future__ import annotations

from starlette.routing import Route

from toolwright.doors.console._frame import Frame


def pages(frame: Frame) -> list[Route]:
    del frame
    return []
