"""Fixtures that many tests use. Nothing here patches anything: homes, folders and machines are arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two tests share a core with others that start hundreds of processes: how long a draw took says nothing here.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

SHARED = Path(__file__).parent.parent.parent / "shared"


def shared(part: str) -> Path:
    """Material that lies beside the repository and is never copied into it; skips where it is absent."""
    path = SHARED / part
    if not path.exists():
        pytest.skip(f"{part} is not beside this checkout; put the shared folder there to run this test")
    return path
