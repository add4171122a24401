"""Records, the chain that links them, and what a checkpoint signs. Pure: bytes in, values out.

A segment is a row of records. Each begins with a head of 48 bytes (little endian): the length of the body
(4), its number (8), its link (32) and a checksum of these (4); then the body. The link is the SHA-256 of
the link before, the length, the number and the body; the first one builds on the name of the segment. So
an edited, deleted, swapped, doubled or inserted record breaks the chain at a place that can be named.

A chain proves order, not completeness or origin: whoever can write the file can chain it anew, and a tail
that was cut off is not missed. Checkpoints (signed heads, as records of the chain) answer the first,
anchors (signed heads kept elsewhere) the second. Nothing here reads files or holds keys; signatures are
checked by a function that is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from struct import Struct
from typing import Final
from zlib import crc32

import msgspec

from toolcrib import former, jsontext
from toolcrib.jsontext import JsonObject

BODY_BYTES_MAX: Final = 1 << 20
HEAD_BYTES: Final = 48
NUMBER_MAX: Final = (1 << 63) - 1
UNSIGNED_MAX: Final = 2048
"""At most so many records follow a checkpoint, or the start, before the next. A host signs before it writes
one more (``pen.py``), and ``verify_segment`` refuses one more."""

_NUMBERED: Final = Struct("<IQ")
_WHOLE_HEAD: Final = Struct("<IQ32sI")
_numbered: Final = _NUMBERED.pack
_checksum: Final = Struct("<I").pack
_PAGE_BYTES: Final = 4096
_SECTOR_BYTES: Final = 512
UNSYNCED_BYTES_MAX: Final = 1 << 20
"""More than this, behind a place that a power failure left empty, is not explained by the failure."""
_OF_CALL: Final = re.compile(rb'\{"what":"(begin|end)"')
_SEED: Final = b"toolcrib journal 2\n"
_SIGNED: Final = b"toolcrib checkpoint 2\n"
_ANCHORED: Final = b"toolcrib anchor 2\n"
_ANCHOR_VERSION: Final = 2

Check = Callable[[bytes, bytes], bool]
"""Whether a signature belongs to a message."""


class Head(msgspec.Struct, frozen=True):
    """The last record of a segment: where the next one links to."""

    segment: str
    number: int
    link: bytes


class Record(msgspec.Struct, frozen=True):
    """One record as it lies in its segment."""

    number: int
    offset: int
    link: bytes
    body: bytes

    @property
    def end(self) -> int:
        return self.offset + HEAD_BYTES + len(self.body)


class Flaw(msgspec.Struct, frozen=True):
    """The first bad record of a segment, and what is wrong with it."""

    segment: str
    number: int
    why: str


def start(segment: str) -> bytes:
    """What the first record of a segment links to."""
    return sha256(_SEED + segment.encode("utf-8")).digest()


def is_former(segment: str, data: bytes) -> bool:
    """Return whether a segment begins as this program began them under its former name."""
    first = alone(memoryview(data)[: HEAD_BYTES + BODY_BYTES_MAX], 0)
    if first is None:
        return False
    before = sha256(former.JOURNAL_SEED + segment.encode("utf-8")).digest()
    return sha256(before + _numbered(len(first.body), first.number) + first.body).digest() == first.link


def framed(before: bytes, number: int, body: bytes) -> tuple[bytes, bytes]:
    """A record's bytes and its link."""
    numbered = _numbered(len(body), number)
    link = sha256(before + numbered + body).digest()
    head = numbered + link
    return head + _checksum(crc32(head)) + body, link


# -- reading ------------------------------------------------------------------------------------------------


class Scanned(msgspec.Struct, frozen=True):
    """The whole records at the beginning of some bytes, and what follows them."""

    records: list[Record]
    head: Head
    """Of the last whole record; number 0 where there is none."""
    end: int
    """Where the last whole record ends."""
    flaw: Flaw | None = None
    """A record that is there and wrong."""
    torn: int = 0
    """Bytes after the last whole record that begin another: a write that did not come to its end."""


def scan(segment: str, data: bytes, after: Head | None = None, *, left: bool = False) -> Scanned:
    """Read and check records, where ``after`` is the one before the first of them.

    ``left``: by a host that did not come to its end. Where the power went, what was not synced has holes.
    """
    records: list[Record] = []
    link = start(segment) if after is None else after.link
    number = after.number if after is not None else None
    size = len(data)
    at = end = 0
    why = ""
    while size - at >= HEAD_BYTES:
        end = at + HEAD_BYTES
        length, found, linked, checksum = _WHOLE_HEAD.unpack_from(data, at)
        if crc32(data[at : at + HEAD_BYTES - 4]) != checksum:
            why = "its head is damaged"
            break
        if length > BODY_BYTES_MAX:
            why = "it is too long"
            break
        end += length
        if end > size:
            break
        if number is not None and found != number + 1:
            why = f"record {found} stands in its place"
            break
        # Attack: a segment whose last number is the largest there is, so that no host can go on with it.
        if found > NUMBER_MAX:
            why = "its number is too large"
            break
        body = data[at + HEAD_BYTES : end]
        if sha256(link + data[at : at + _NUMBERED.size] + body).digest() != linked:
            why = "its link does not fit: it, or what stood before it, was changed"
            break
        records.append(Record(found, at, linked, body))
        link, number, at = linked, found, end
    head = Head(segment, number or 0, link)
    torn = size - at
    if why and (_is_unfilled(data, at, end) or (left and _is_unsynced(data, at, end))):
        why = ""
    flaw = Flaw(segment, (number or 0) + 1, why) if why else None
    return Scanned(records, head, at, flaw, 0 if flaw else torn)


def _is_unfilled(data: bytes, at: int, end: int) -> bool:
    """Whether the record from ``at`` to ``end`` is what a power failure leaves: pages that were never filled.

    From some page inside the record on, or from its beginning, everything is zero; no body ends so. For one
    who blanks records on purpose that is the same as cutting them off: see anchors.
    """
    filled = len(data.rstrip(b"\0"))
    return filled <= at or -(-filled // _PAGE_BYTES) * _PAGE_BYTES < end


def _is_unsynced(data: bytes, at: int, end: int) -> bool:
    """Whether a sector of the record from ``at`` to ``end`` was never filled, whatever follows it.

    Records that were written and not synced come to the disk in any order where there was room for them.
    """
    # Attack: a hole made on purpose where a host left room. What is behind it is then not counted, as if it
    # were cut off, but named, and kept when a host goes on. Without room, or with whole calls behind it, a
    # hole is a flaw.
    bounds = [at, *range(at - at % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    pieces = (data[start:stop] for start, stop in pairwise(bounds))
    is_empty = any(not piece.strip(b"\0") for piece in pieces)
    return is_empty and len(data) - at <= UNSYNCED_BYTES_MAX and not _is_synced_behind(data, at)


def _is_synced_behind(data: bytes, at: int) -> bool:
    """Whether a call begins and ends behind a place. Its begin was synced, with all that stood before it,
    when its end was written: no failure of the power explains what is missing before such a call."""
    begun: set[str] = set()
    for found in _OF_CALL.finditer(data, at + HEAD_BYTES):
        start, end = found.start() - HEAD_BYTES, found.start() + BODY_BYTES_MAX
        record = alone(memoryview(data)[start:end], start)
        call = None if record is None else (body_of(record) or {}).get("call")
        if not isinstance(call, str):
            continue
        if found[1] == b"begin":
            begun.add(call)
        elif call in begun:
            return True
    return False


def alone(data: bytes | memoryview, offset: int) -> Record | None:
    """The record at the beginning of some bytes, without its neighbours, so that its link is not checked."""
    if len(data) < HEAD_BYTES:
        return None
    length, number, link, checksum = _WHOLE_HEAD.unpack_from(data)
    if crc32(data[: HEAD_BYTES - 4]) != checksum or len(data) < HEAD_BYTES + length:
        return None
    return Record(number, offset, link, bytes(data[HEAD_BYTES : HEAD_BYTES + length]))


# -- checkpoints and anchors --------------------------------------------------------------------------------


def signed_text(head: Head, time: float) -> bytes:
    """What a checkpoint signs."""
    return _SIGNED + jsontext.canonical(
        {"segment": head.segment, "number": head.number, "link": head.link.hex(), "time": time}
    )


def checkpoint(head: Head, time: float, signature: bytes, key: bytes) -> JsonObject:
    """The body of a checkpoint record; it signs the record before it."""
    return {
        "what": "checkpoint",
        "ts": time,
        "segment": head.segment,
        "number": head.number,
        "link": head.link.hex(),
        "key": key.hex(),
        "signature": signature.hex(),
    }


def checkpoint_flaw(body: JsonObject, before: Head, key: bytes, check: Check) -> str | None:
    """What is wrong with a checkpoint that follows the record ``before``, if anything."""
    try:
        claimed = Head(str(body["segment"]), int(body["number"]), bytes.fromhex(body["link"]))
        signature, signer = bytes.fromhex(body["signature"]), bytes.fromhex(body["key"])
        time = float(body["ts"])
    except (KeyError, TypeError, ValueError):
        return "the checkpoint cannot be read"
    if claimed != before:
        return "the checkpoint was made for another record"
    if signer != key:
        return f"the checkpoint is signed by another key ({signer.hex()[:16]}…)"
    return None if check(signature, signed_text(claimed, time)) else "the checkpoint's signature is wrong"


class Anchor(msgspec.Struct, frozen=True):
    """Signed heads that can be kept elsewhere: what they name must still be in the journal."""

    time: float
    heads: tuple[Head, ...]
    key: bytes
    signature: bytes

    @property
    def document(self) -> JsonObject:
        return {
            "anchor": _ANCHOR_VERSION,
            "time": self.time,
            "heads": [_plain(head) for head in self.heads],
            "key": self.key.hex(),
            "signature": self.signature.hex(),
        }


def anchor_text(heads: Sequence[Head], time: float) -> bytes:
    """What an anchor signs."""
    return _ANCHORED + jsontext.canonical({"time": time, "heads": [_plain(head) for head in heads]})


def read_anchor(document: object) -> Anchor:
    """The anchor of a JSON document. ValueError where it is none."""
    if isinstance(document, dict) and document.get("anchor") == former.ANCHOR_VERSION:
        raise ValueError(f"{former.WRITTEN}: check it with that version")
    try:
        if not isinstance(document, dict) or document["anchor"] != _ANCHOR_VERSION:
            raise ValueError
        heads = tuple(
            Head(str(head["segment"]), int(head["number"]), bytes.fromhex(head["link"]))
            for head in document["heads"]
        )
        return Anchor(
            float(document["time"]),
            heads,
            bytes.fromhex(document["key"]),
            bytes.fromhex(document["signature"]),
        )
    except (KeyError, TypeError, ValueError):
        raise ValueError("this is not an anchor") from None


def _plain(head: Head) -> JsonObject:
    return {"segment": head.segment, "number": head.number, "link": head.link.hex()}


# -- whole segments -----------------------------------------------------------------------------------------


class Verified(msgspec.Struct, frozen=True):
    """What the bytes of one segment prove."""

    records: int
    head: Head
    flaw: Flaw | None
    torn: int
    unsigned: int
    """Records after the last checkpoint."""
    closed: bool
    """The last record says that the segment is closed."""
    before: tuple[Head, ...]
    """Records of other segments that this one builds on."""
    retired: tuple[str, ...]
    """Segments that this one says were removed because they were old, under a checkpoint."""


def verify_segment(
    segment: str, data: bytes, key: bytes | None, check: Check, *, left: bool = False
) -> Verified:
    """Check every link and every checkpoint; without a ``key`` no checkpoint can be right."""
    scanned = scan(segment, data, left=left)
    flaw = scanned.flaw
    before: list[Head] = []
    retired: list[str] = []
    unsigned_retired: list[str] = []
    unsigned = 0
    closed = False
    last = Head(segment, 0, start(segment))
    for number, record in enumerate(scanned.records):
        body = body_of(record)
        why: str | None = None
        what = body.get("what") if body is not None else None
        if body is None:
            why = "its body is not JSON"
        elif number == 0 and what != "open":
            why = "the segment does not begin with its opening"
        elif what == "checkpoint":
            why = (
                "the checkpoint cannot be checked: the public key is missing"
                if key is None
                else checkpoint_flaw(body, last, key, check)
            )
            unsigned = -1
            # Attack: a segment removed, and a record chained to the end that calls it old: needs the key.
            retired += unsigned_retired
            unsigned_retired = []
        elif what in ("open", "sealed"):
            before += _heads(body.get("before"))
        elif what == "retired":
            unsigned_retired += retired_names(body)
        unsigned += 1
        # Attack: checkpoints taken out, and what they signed chained anew, by one who has no key.
        if unsigned > UNSIGNED_MAX:
            why = why or f"more than {UNSIGNED_MAX:,} records stand here without a checkpoint"
        if why:
            return Verified(
                number,
                last,
                Flaw(segment, record.number, why),
                0,
                unsigned,
                False,
                tuple(before),
                tuple(retired),
            )
        closed = what == "close" or (closed and what == "checkpoint")
        last = Head(segment, record.number, record.link)
    return Verified(
        len(scanned.records),
        scanned.head,
        flaw,
        scanned.torn,
        unsigned,
        closed,
        tuple(before),
        tuple(retired),
    )


def body_of(record: Record) -> JsonObject | None:
    """What a record says; None where that is no JSON object."""
    try:
        body = jsontext.loads_own(record.body)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def retired_names(body: JsonObject | None) -> list[str]:
    """The segments that a record says were removed."""
    names = body.get("segments") if body is not None else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _heads(plain: object) -> Iterator[Head]:
    for head in plain if isinstance(plain, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            yield Head(str(head["segment"]), int(head["number"]), bytes.fromhex(head["link"]))
