"""What the house keeps between runs: small values on shelves, each with a version.

The protocol is all that others may rely on; ``sqlite.py`` is the embedded implementation. No transaction
stays open across a call: whoever changes a value reads it, and puts it back with the version he read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from toolcrib.errors import StoreError

ABSENT = 0
"""The version of a value that is not there."""


class Conflict(StoreError):
    """Somebody else changed the value meanwhile: read it again."""


class Versioned(Struct, frozen=True):
    """A value and its version, which grows with every put."""

    value: bytes
    version: int


class Store(Protocol):
    """Every method is atomic and durable when it returns, and raises StoreError where it cannot be."""

    def put(self, shelf: str, key: str, value: bytes, version: int | None) -> int:
        """Keep a value and return its new version.

        ``version`` is the one that must be there (ABSENT: none), else Conflict; None puts in any case.
        """
        ...

    def get(self, shelf: str, key: str) -> Versioned | None: ...

    def keys(self, shelf: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        """At most ``limit`` keys behind ``after``, in order."""
        ...

    def remove(self, shelf: str, key: str, version: int | None) -> None:
        """Take a value away; ``version`` as in ``put``."""
        ...

    def close(self) -> None: ...
