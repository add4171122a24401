"""What ``tools/list`` gives to one caller, written once and kept: of ten thousand tools, one at a time is in
memory, and after a reload only what changed is written again.

Decides nothing: what is offered to whom is the workshop's answer. What a request makes of it is
``_mcp_desk.py``'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from toolwright import jsontext
from toolwright.app import Workshop
from toolwright.catalog.catalog import Catalog
from toolwright.catalog.loading import LoadReport, differences
from toolwright.dialects import mcp as dialect
from toolwright.model import FOUND_FORMATS, READING, Disabled, Guest
from toolwright.records import dataclass, replace

_SKILL: Final = "skill "


class Piece(NamedTuple):
    """One tool: its own name, and where its declaration stands in the list, after its name."""

    own: str
    start: int
    end: int
    """At the start: it is not listed."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools that one caller sees, written already, and the way back from their names."""

    version: str
    report: LoadReport
    disabled: tuple[Disabled, ...]
    tools: bytearray
    """Not a copy of it as bytes: of ten thousand tools that would be as much again."""
    keys: Mapping[str, str]
    pieces: Mapping[str, Piece]

    @property
    def catalog(self) -> Catalog:
        return self.report.catalog


def write(workshop: Workshop, guest: Guest, earlier: Listing | None = None) -> Listing:
    """What a caller sees now. What ``earlier`` has of tools whose documents are the same is taken over."""
    version, report, disabled = workshop.version, workshop.loaded, workshop.disabled()
    refusal = workshop.gate.refusals(guest.name, disabled=disabled)
    known: Mapping[str, Piece] = {}
    if earlier is not None and guest.reach is None and earlier.disabled == disabled:
        known = _unchanged(earlier, report)
    tools = bytearray(b"[")
    pieces: dict[str, Piece] = {}
    keys: dict[str, str] = {}
    are_distinct = True
    for key, take in workshop.entries(guest.reach, served=True):
        piece = known.get(key)
        rest: bytes | bytearray = b""
        if piece is not None and earlier is not None:
            own, rest = piece.own, earlier.tools[piece.start : piece.end]
        else:
            tool = take()
            own = tool.spoken or tool.name
            if refusal(tool) is None and (described := dialect.describe(tool)) is not None:
                rest = jsontext.compact(described)[1:]
        name = dialect.legal_name(own, key)
        are_distinct = are_distinct and keys.setdefault(name, key) == key
        pieces[key] = _add(tools, name, own, rest)
    listing = Listing(version, report, disabled, _closed(tools), keys, pieces)
    return _only_listed(listing if are_distinct else _renamed(listing))


def _add(tools: bytearray, name: str, own: str, rest: bytes | bytearray) -> Piece:
    if not rest:
        return Piece(own, 0, 0)
    tools += b'{"name":%b,' % jsontext.compact(name)
    start = len(tools)
    tools += rest
    end = len(tools)
    tools += b","
    return Piece(own, start, end)


def _closed(tools: bytearray) -> bytearray:
    tools[max(len(tools) - 1, 1) :] = b"]"
    return tools


def _renamed(listing: Listing) -> Listing:
    """The same where names clash, which only all of them together decide. Most lists have no such names."""
    names = dialect.names({key: piece.own for key, piece in listing.pieces.items()})
    tools, pieces = bytearray(b"["), {}
    for key, (own, start, end) in listing.pieces.items():
        pieces[key] = _add(tools, names[key], own, listing.tools[start:end])
    keys = {name: key for key, name in names.items()}
    return replace(listing, tools=_closed(tools), keys=keys, pieces=pieces)


def _only_listed(listing: Listing) -> Listing:
    """Attack: a name that leads to a tool that is not listed."""
    keys = {name: key for name, key in listing.keys.items() if listing.pieces[key].end}
    return replace(listing, keys=keys)


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
