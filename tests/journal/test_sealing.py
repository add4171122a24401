"""The journal's key: made once, ours alone, and good for nothing but what it signed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import StoreError
from toolcrib.journal import chain, sealing
from toolcrib.journal.chain import Head
from toolcrib.journal.sealing import Seal

HEAD = Head("a", 7, bytes(32))


def key_file(state: Path) -> Path:
    return state / "keys" / "journal.key"


def test_the_key_is_made_once_and_belongs_to_us_alone(tmp_path: Path) -> None:
    assert sealing.public_key(str(tmp_path)) is None
    first = Seal.of(str(tmp_path))
    assert Seal.of(str(tmp_path)).key == first.key == sealing.public_key(str(tmp_path))
    assert key_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "keys") == ["journal.key"]  # no drafts stay


def test_hosts_that_begin_at_once_have_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = {seal.key for seal in pool.map(Seal.of, [str(tmp_path)] * 16)}
    assert keys == {sealing.public_key(str(tmp_path))}


@pytest.mark.parametrize("kind", ["link", "fifo", "short", "long", "readable"])
def test_what_is_no_key_of_ours_is_not_used(tmp_path: Path, kind: str) -> None:
    """Attack: a key of somebody else's choice, or one that others have read."""
    path = key_file(tmp_path)
    path.parent.mkdir()
    match kind:
        case "link":
            (tmp_path / "theirs").write_bytes(bytes(32))
            (tmp_path / "theirs").chmod(0o600)
            path.symlink_to(tmp_path / "theirs")
        case "fifo":
            os.mkfifo(path, 0o600)
        case _:
            path.write_bytes(bytes({"short": 31, "long": 33, "readable": 32}[kind]))
            path.chmod(0o644 if kind == "readable" else 0o600)
    with pytest.raises(StoreError, match=r"journal\.key") as refused:
        Seal.of(str(tmp_path))
    assert "mode 0600" in (refused.value.hint or "")
    assert sealing.public_key(str(tmp_path)) is None


@given(st.binary(max_size=80), st.integers(0, 63), st.integers(1, 255))
def test_nothing_but_the_very_signature_is_good(message: bytes, place: int, flip: int) -> None:
    seal = Seal(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    check = sealing.checker(seal.key)
    text = chain.signed_text(HEAD, 5.0)
    signature = bytes.fromhex(seal.checkpoint(HEAD, 5.0)["signature"])
    assert check(signature, text)
    forged = bytearray(signature)
    forged[place] ^= flip
    assert not check(bytes(forged), text)
    assert check(signature, message) is (message == text)
    assert not sealing.checker(bytes(31))(signature, text)
    assert not sealing.checker(bytes(32))(signature, text)
