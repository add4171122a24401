"""What ``tools/list`` gives to one caller, written once and kept, tool by tool: of ten thousand one at a
time is read, after a reload only what changed is written again, and the list is put together while it is
sent.

Decides nothing: what is offered to whom is the crib's answer. What a request makes of it is
``_mcp_desk.py``'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.app import Crib
from toolcrib.catalog.catalog import Catalog
from toolcrib.catalog.loading import LoadReport, differences
from toolcrib.dialects import mcp as dialect
from toolcrib.model import FOUND_FORMATS, READING, Disabled, Guest

_SKILL: Final = "skill "


class Piece(NamedTuple):
    """One tool: its own name, the name that is listed, and its declaration as it stands in the list."""

    own: str
    name: str
    text: bytes
    """Empty: it is not listed. Shared by the listings that have it, before and after a reload."""


class Listing(Struct, frozen=True):
    """The tools that one caller sees, written already, and the way back from their names."""

    version: str
    report: LoadReport
    disabled: tuple[Disabled, ...]
    keys: Mapping[str, str]
    pieces: Mapping[str, Piece]
    size_bytes: int
    """Of the whole list."""

    @property
    def catalog(self) -> Catalog:
        return self.report.catalog

    @property
    def tools(self) -> bytes:
        """The whole list. Of ten thousand tools it is long: what sends it takes the parts."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        yield b"["
        before = b""
        for piece in self.pieces.values():
            if piece.text:
                yield before
                yield piece.text
                before = b","
        yield b"]"


def write(crib: Crib, guest: Guest, earlier: Listing | None = None) -> Listing:
    """What a caller sees now. What ``earlier`` has of tools whose documents are the same is taken over."""
    version, report, disabled = crib.version, crib.loaded, crib.disabled()
    refusal = crib.gate.refusals(guest.name, disabled=disabled)
    known: Mapping[str, Piece] = {}
    if earlier is not None and guest.reach is None and earlier.disabled == disabled:
        known = _unchanged(earlier, report)
    pieces: dict[str, Piece] = {}
    for key, take in crib.entries(guest.reach, served=True):
        piece = known.get(key)
        if piece is None:
            tool = take()
            own = tool.spoken or tool.name
            text = b""
            if refusal(tool) is None and (described := dialect.describe(tool)) is not None:
                text = jsontext.compact(described)
            piece = Piece(own, "", text)
        pieces[key] = _named(piece, dialect.legal_name(piece.own, key))
    if len({piece.name for piece in pieces.values()}) < len(pieces):
        # Names that clash are decided about by all of them together. Most lists have none.
        names = dialect.names({key: piece.own for key, piece in pieces.items()})
        pieces = {key: _named(piece, names[key]) for key, piece in pieces.items()}
    # Attack: a name that leads to a tool that is not listed.
    keys = {piece.name: key for key, piece in pieces.items() if piece.text}
    size = sum(len(piece.text) + 1 for piece in pieces.values() if piece.text) + 1
    return Listing(version, report, disabled, keys, pieces, max(size, 2))


def _named(piece: Piece, name: str) -> Piece:
    """The same under a name, which stands first in what is listed."""
    if piece.name == name:
        return piece
    text = piece.text and _start(name) + piece.text[len(_start(piece.name)) if piece.name else 1 :]
    return Piece(piece.own, name, text)


def _start(name: str) -> bytes:
    return b'{"name":%b,' % jsontext.compact(name)


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
