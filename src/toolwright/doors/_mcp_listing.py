"""What ``tools/list`` gives to one caller, written once and kept: of ten thousand tools, one at a time is in
memory, and after a reload only what changed is written again.

Decides nothing: what is offered to whom is the workshop's answer. What a request makes of it is
``_mcp_desk.py``'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from toolwright import jsontext
from toolwright.app import Workshop
from toolwright.catalog.catalog import Catalog
from toolwright.catalog.loading import LoadReport, differences
from toolwright.dialects import mcp as dialect
from toolwright.doors._entrance import Guest
from toolwright.formats.skill import READING
from toolwright.model import FOUND_FORMATS, Disabled, Tool
from toolwright.records import dataclass

_SKILL: Final = "skill "


@dataclass(frozen=True, slots=True)
class Piece:
    """One tool: its own name, and its declaration after the name; empty: it is not listed."""

    own: str
    rest: bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools that one caller sees, written already, and the way back from their names."""

    version: str
    report: LoadReport
    disabled: tuple[Disabled, ...]
    tools: bytes
    keys: Mapping[str, str]
    pieces: Mapping[str, Piece]

    @property
    def catalog(self) -> Catalog:
        return self.report.catalog


def write(workshop: Workshop, guest: Guest, earlier: Listing | None = None) -> Listing:
    """What a caller sees now. What ``earlier`` has of tools whose documents are the same is taken over."""
    version, report, disabled = workshop.version, workshop.loaded, workshop.disabled()
    refusal = workshop.gate.refusals(guest.name, disabled=disabled)

    def piece(take: Callable[[], Tool]) -> Piece:
        tool = take()
        described = None if refusal(tool) is not None else dialect.describe(tool)
        return Piece(
            tool.spoken or tool.name, jsontext.compact(described)[1:] if described is not None else b""
        )

    known: Mapping[str, Piece] = {}
    if earlier is not None and guest.reach is None and earlier.disabled == disabled:
        known = _unchanged(earlier, report)
    entries = workshop.entries(guest.reach, served=True)
    pieces = {key: known.get(key) or piece(take) for key, take in entries}
    names = dialect.names({key: each.own for key, each in pieces.items()})
    written = [
        b'{"name":%b,%b' % (jsontext.compact(names[key]), each.rest)
        for key, each in pieces.items()
        if each.rest
    ]
    keys = {names[key]: key for key, each in pieces.items() if each.rest}
    return Listing(version, report, disabled, b"[%b]" % b",".join(written), keys, pieces)


def _unchanged(earlier: Listing, report: LoadReport) -> Mapping[str, Piece]:
    """What can be taken over. Tools that stand in no file of their own are always looked at again."""
    found = differences(earlier.report, report)
    again = {*found.added, *found.removed, *found.changed}
    if any(each.startswith(_SKILL) for each in again):
        return {}
    return {
        key: piece
        for key, piece in earlier.pieces.items()
        if key not in again and key != READING and key.partition(":")[0] in FOUND_FORMATS
    }
