"""The store as calls see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.errors import StoreError
from toolwright.store.keep import Keep


def test_a_store_that_cannot_be_looked_at_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Attack: a store that is broken on purpose, to switch a tool on again."""
    path = tmp_path / "state.sqlite"
    keep = Keep(str(path))
    assert keep.disabled(1.0) == ()
    path.symlink_to(path)
    with pytest.raises(StoreError, match=r"state\.sqlite"):
        keep.disabled(2.0)
