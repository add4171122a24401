"""Paths as texts: which lies below which, and which are texts at all. Pure.

Nothing is looked at, so links and ``..`` are the asker's business: ``catalog/files.py`` follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TEMPORARY_FOLDER: Final = "/tmp"
"""The system's own, where nobody names another."""


def is_below(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of the roots or lies below one. Whole components, so /a-b is not below /a.

    Nothing is below a root that is not known (""), though every absolute path begins like it.
    """
    return any(root and (path == root or path.startswith(f"{root.rstrip('/')}/")) for root in roots)


def is_utf8(path: str) -> bool:
    """Whether a path is a text: file names may be any bytes, and what we keep and send cannot."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
