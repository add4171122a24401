"""Paths as texts."""

from __future__ import annotations

import pytest

from toolwright.paths import is_below


@pytest.mark.battery("C05")
@pytest.mark.parametrize(
    ("path", "below"),
    [("/proj", True), ("/proj/file", True), ("/proj-evil/file", False), ("/pro", False), ("/", False)],
)
def test_c05_a_root_holds_whole_components_only(path: str, below: bool) -> None:
    assert is_below(path, ["/proj"]) is below
    assert is_below(path, ["/"])
    assert not is_below(path, ["", ""])
