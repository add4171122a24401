"""Fixtures that many tests use. Nothing here patches anything: homes, folders and machines are arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parent.parent.parent / "shared"


def shared(part: str) -> Path:
    """Material that lies beside the repository and is never copied into it; skips where it is absent."""
    path = SHARED / part
    if not path.exists():
        pytest.skip(f"{part} is not beside this checkout; put the shared folder there to run this test")
    return path
