from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Declaration:
    """Files as an author has them; the first one is the declaration itself."""

    format: str
    files: dict[str, bytes]
