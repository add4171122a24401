"""Records and their chain: whatever is done to the bytes, the first bad record is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.journal import chain
from toolcrib.journal.chain import Head
from toolcrib.journal.sealing import Seal, checker

NAME = "00000000000000001-1-aa"
SEAL = Seal(Ed25519PrivateKey.from_private_bytes(b"\x01" * 32))
OTHER = Seal(Ed25519PrivateKey.from_private_bytes(b"\x02" * 32))
CHECK = checker(SEAL.key)


def text(**body: Any) -> bytes:
    return json.dumps(body).encode()


def chained(
    bodies: list[bytes], *, name: str = NAME, seal: Seal | None = SEAL, every: int = 4
) -> list[bytes]:
    """The frames of a segment, with a checkpoint after every few records."""
    link = chain.start(name)
    frames: list[bytes] = []
    for body in [text(what="open", ts=1.0), *bodies]:
        frame, link = chain.framed(link, len(frames) + 1, body)
        frames.append(frame)
        if seal is not None and len(frames) % every == 0:
            sealed = seal.checkpoint(Head(name, len(frames), link), 1.5)
            frame, link = chain.framed(link, len(frames) + 1, json.dumps(sealed).encode())
            frames.append(frame)
    return frames


def verified(data: bytes, name: str = NAME) -> chain.Verified:
    return chain.verify_segment(name, data, SEAL.key, CHECK)


BODIES = st.lists(
    st.builds(
        lambda call, more: text(what="begin", call=call, more=more), st.text(max_size=8), st.integers()
    ),
    min_size=2,
    max_size=9,
)


@given(BODIES)
def test_a_segment_that_nobody_touched_is_whole(bodies: list[bytes]) -> None:
    frames = chained(bodies)
    found = verified(b"".join(frames))
    assert (found.records, found.flaw, found.torn) == (len(frames), None, 0)
    assert found.head.number == len(frames)


@pytest.mark.battery("J01")
@settings(max_examples=200)
@given(BODIES, st.data())
def test_j01_any_edited_byte_is_found_and_the_first_bad_record_is_named(
    bodies: list[bytes], data: st.DataObject
) -> None:
    frames = chained(bodies)
    whole = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    number, seen = 0, 0
    while seen <= at:
        seen += len(frames[number])
        number += 1
    found = verified(bytes(whole))
    assert found.flaw is not None
    assert found.flaw.number == number


@pytest.mark.battery("J01")
@given(BODIES, st.data())
def test_j01_a_deleted_record_is_found(bodies: list[bytes], data: st.DataObject) -> None:
    frames = chained(bodies)
    gone = data.draw(st.integers(0, len(frames) - 2))  # the last one is a cut tail: see anchors
    found = verified(b"".join(frames[:gone] + frames[gone + 1 :]))
    assert found.flaw is not None
    assert found.flaw.number == gone + 1


@pytest.mark.battery("J01")
@given(BODIES, st.data())
def test_j01_swapped_records_are_found(bodies: list[bytes], data: st.DataObject) -> None:
    frames = chained(bodies)
    first = data.draw(st.integers(0, len(frames) - 2))
    second = data.draw(st.integers(first + 1, len(frames) - 1))
    frames[first], frames[second] = frames[second], frames[first]
    found = verified(b"".join(frames))
    assert found.flaw is not None
    assert found.flaw.number == first + 1


@pytest.mark.battery("J01")
@given(BODIES, st.data())
def test_j01_a_doubled_or_inserted_record_is_found(bodies: list[bytes], data: st.DataObject) -> None:
    frames = chained(bodies)
    source = data.draw(st.integers(0, len(frames) - 1))
    place = data.draw(st.integers(0, len(frames)))
    frames.insert(place, frames[source])
    found = verified(b"".join(frames))
    assert found.flaw is not None
    assert found.flaw.number == (source + 2 if place == source else place + 1)


@pytest.mark.battery("J01")
def test_j01_a_segment_under_another_name_is_not_itself() -> None:
    found = verified(b"".join(chained([text(what="begin")])), name="00000000000000002-1-bb")
    assert found.flaw is not None
    assert found.flaw.number == 1


@given(BODIES, st.data())
def test_half_a_record_at_the_end_is_torn_and_never_counted(bodies: list[bytes], data: st.DataObject) -> None:
    frames = chained(bodies)
    kept = data.draw(st.integers(1, len(frames[-1]) - 1))
    found = verified(b"".join(frames[:-1]) + frames[-1][:kept])
    assert (found.flaw, found.records, found.torn) == (None, len(frames) - 1, kept)


def test_room_that_was_never_filled_is_torn_too() -> None:
    found = verified(b"".join(chained([text(what="begin")])) + bytes(4096))
    assert (found.flaw, found.records, found.torn) == (None, 2, 4096)


def test_a_record_whose_later_pages_were_never_filled_is_torn_and_one_blanked_by_bytes_is_not() -> None:
    """After a power failure a file may have its length and not yet all of its pages."""
    first, second, third = chained([text(what="begin"), text(what="begin", long="x" * 6000)], seal=None)
    whole = first + second + third
    unfilled = whole[:4096] + bytes(len(whole) - 4096)
    found = verified(unfilled)
    assert (found.flaw, found.records, found.torn) == (None, 2, len(third))
    blanked = verified(whole[:4097] + bytes(50) + whole[4147:])
    assert blanked.flaw is not None
    assert blanked.flaw.number == 3
    assert verified(whole[:-1] + b"\0").flaw is not None


@given(st.lists(st.integers(1, 2000), min_size=2, max_size=12), st.data())
def test_whatever_sectors_of_unsynced_records_a_power_failure_takes_is_torn_and_no_damage(
    lengths: list[int], data: st.DataObject
) -> None:
    frames = chained([text(what="begin", long="x" * length) for length in lengths])
    synced = data.draw(st.integers(1, len(frames)))
    kept = sum(map(len, frames[:synced]))
    found = bytearray(b"".join(frames))
    for sector in data.draw(st.sets(st.integers(kept // 512, len(found) // 512))):
        start, end = max(kept, sector * 512), min(len(found), sector * 512 + 512)
        found[start:end] = bytes(max(0, end - start))
    scanned = chain.scan(NAME, bytes(found).rstrip(b"\0"), left=True)
    assert scanned.flaw is None
    assert len(scanned.records) >= synced
    assert len(scanned.records) == len(frames) or found != b"".join(frames)


def test_a_hole_is_a_flaw_where_no_power_failure_explains_it() -> None:
    first, second, *rest = chained([text(what="begin", long="x" * 3000)] + [text(what="begin")] * 3000)
    data = first + second[:500] + bytes(1024) + second[1524:] + b"".join(rest)
    assert len(data) < chain.UNSYNCED_BYTES_MAX
    assert chain.scan(NAME, data).flaw is not None
    assert chain.scan(NAME, data, left=True).flaw is None
    assert (
        chain.scan(NAME, data.ljust(len(data) + chain.UNSYNCED_BYTES_MAX, b"x"), left=True).flaw is not None
    )
    changed = first + second[:500] + second[500:600].swapcase() + second[600:] + b"".join(rest)
    assert chain.scan(NAME, changed, left=True).flaw is not None


@pytest.mark.parametrize(
    ("behind", "is_flaw"),
    [
        (["begin a", "begin b"], False),
        (["end a", "end b", "end a"], False),  # they began before, or in the segment before
        (["end a", "begin a"], False),
        (["begin a", "begin b", "end a"], True),
    ],
)
def test_attack_a_hole_made_before_calls_that_were_synced_is_told_as_a_power_failure(
    behind: list[str], is_flaw: bool
) -> None:
    bodies = [b'{"what":"%b","call":"%b"}' % (*one.encode().split(),) for one in behind]
    first, second, *rest = chained([text(what="open"), text(what="begin", long="x" * 2000), *bodies])
    scanned = chain.scan(NAME, first + bytes(len(second)) + b"".join(rest), left=True)
    assert (scanned.flaw is not None) is is_flaw
    assert len(scanned.records) == 1


# -- whoever can write the file can chain it anew -----------------------------------------------------------


@pytest.mark.battery("J03")
@pytest.mark.parametrize("seal", [OTHER], ids=["another key"])
def test_j03_a_log_rewritten_and_signed_with_another_key_is_found(seal: Seal) -> None:
    frames = chained([text(what="begin", call=str(number)) for number in range(6)], seal=seal)
    found = verified(b"".join(frames))
    assert found.flaw is not None
    assert found.flaw.number == 5
    assert "another key" in found.flaw.why


@pytest.mark.battery("J03")
def test_j03_a_log_rewritten_around_its_old_checkpoints_is_found() -> None:
    old = [chain.scan(NAME, b"".join(chained([text(what="begin", n=n) for n in range(6)]))).records]
    bodies = [record.body for record in old[0]]
    bodies[2] = text(what="begin", n="forged")
    link, frames = chain.start(NAME), []
    for number, body in enumerate(bodies):
        frame, link = chain.framed(link, number + 1, body)
        frames.append(frame)
    found = verified(b"".join(frames))
    assert found.flaw is not None
    assert (found.flaw.number, found.flaw.why) == (5, "the checkpoint was made for another record")


@pytest.mark.battery("J03")
def test_j03_a_log_rewritten_without_checkpoints_is_found_by_their_absence() -> None:
    frames = chained([text(what="begin", n=n) for n in range(chain.UNSIGNED_MAX + 5)], seal=None)
    found = verified(b"".join(frames))
    assert found.flaw is not None
    assert "without a checkpoint" in found.flaw.why


@pytest.mark.battery("J03")
@pytest.mark.parametrize("signed", [0, 1], ids=["from the start", "after a checkpoint"])
def test_j03_attack_checkpoints_stripped_from_2048_records_at_most_go_unseen(signed: int) -> None:
    """Who cannot read the key chains the rest anew without checkpoints; one record more is missed."""
    assert chain.UNSIGNED_MAX == 2048
    bodies = [text(what="begin", n=n) for n in range(chain.UNSIGNED_MAX + 1)]
    bodies = bodies[1 - signed :]  # the opening counts as well
    frames = chained(bodies, every=1, seal=SEAL)[: 2 * signed]
    link = chain.scan(NAME, b"".join(frames)).head.link if frames else chain.start(NAME)
    for body in bodies if signed else [text(what="open", ts=1.0), *bodies]:
        frame, link = chain.framed(link, len(frames) + 1, body)
        frames.append(frame)
    found = verified(b"".join(frames))
    assert found.flaw is not None
    assert found.flaw.number == 2 * signed + 2049
    assert found.flaw.why == "more than 2,048 records stand here without a checkpoint"
    found = verified(b"".join(frames[:-1]))
    assert (found.flaw, found.unsigned) == (None, 2048)


@pytest.mark.battery("J03")
def test_j03_a_record_that_calls_a_segment_old_counts_only_under_a_checkpoint() -> None:
    """Attack: a segment removed by one without the key, who chains a record that explains it."""
    bodies = [text(what="retired", segments=["00000000000000000-1-aa"]), text(what="begin")]
    assert verified(b"".join(chained(bodies, seal=None))).retired == ()
    assert verified(b"".join(chained(bodies, every=3))).retired == ("00000000000000000-1-aa",)


@pytest.mark.battery("J03")
def test_j03_a_forged_signature_is_found() -> None:
    frames = chained([text(what="begin", n=n) for n in range(3)], seal=None)
    head = chain.scan(NAME, b"".join(frames)).head
    body = SEAL.checkpoint(head, 1.0)
    body["signature"] = OTHER.checkpoint(head, 1.0)["signature"]
    frame, _ = chain.framed(head.link, head.number + 1, json.dumps(body).encode())
    found = verified(b"".join(frames) + frame)
    assert found.flaw is not None
    assert found.flaw.why == "the checkpoint's signature is wrong"


@given(st.one_of(st.none(), st.integers(), st.dictionaries(st.text(), st.text()), st.just({"anchor": 2})))
def test_what_is_no_anchor_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="not an anchor"):
        chain.read_anchor(document)


def test_an_anchor_survives_its_document() -> None:
    anchor = SEAL.anchor((Head(NAME, 3, b"\x05" * 32),), 12.5)
    assert chain.read_anchor(json.loads(json.dumps(anchor.document))) == anchor


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    found = verified(data)
    assert found.records == 0
