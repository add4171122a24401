"""The public surface is what was accepted: nothing is lost, added or changed without a word about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests import surface

ACCEPT = (
    "If this is meant, run `make surface` and commit tests/surface.toml with it. For what is lost or\n"
    'changed, add a line under "Unreleased" in CHANGELOG.md: people and programs rely on it.'
)


def differences(before: Mapping[str, surface.Entries], now: Mapping[str, surface.Entries]) -> list[str]:
    """Return what was lost, added and changed, an entry at a time."""
    found = []
    for section in sorted(before.keys() | now.keys()):
        old, new = before.get(section, {}), now.get(section, {})
        found += [f"lost     {section}: {name}  ({old[name]})" for name in sorted(old.keys() - new.keys())]
        found += [f"added    {section}: {name}  ({new[name]})" for name in sorted(new.keys() - old.keys())]
        found += [
            f"changed  {section}: {name}\n         was  {old[name]}\n         is   {new[name]}"
            for name in sorted(old.keys() & new.keys())
            if old[name] != new[name]
        ]
    return found


def test_the_public_surface_is_what_was_accepted(tmp_path: Path) -> None:
    now = surface.collect(tmp_path)
    found = differences(surface.read(), now)
    assert not found, "\n".join(["the public surface is not that of tests/surface.toml:", *found, ACCEPT])
    assert surface.FILE.read_text(encoding="utf-8") == surface.text_of(now), "run `make surface`"


def test_no_section_of_the_surface_is_empty() -> None:
    empty = {section for section, entries in surface.read().items() if not entries}
    assert empty == set()


def test_each_way_to_differ_is_named() -> None:
    before = {"commands": {"a": "flag", "b": "text"}, "metrics": {"m": "gauge"}}
    now = {"commands": {"b": "integer", "c": "flag"}, "metrics": {"m": "gauge"}}
    assert [line.split()[:3] for line in differences(before, now)] == [
        ["lost", "commands:", "a"],
        ["added", "commands:", "c"],
        ["changed", "commands:", "b"],
    ]


def test_entries_are_read_as_they_were_written() -> None:
    entries = {"one": {'a "b" \\ [c]': "x\ty = é", "…": ""}, "two": {"3": "4"}}
    assert surface.parsed(surface.text_of(entries)) == entries
