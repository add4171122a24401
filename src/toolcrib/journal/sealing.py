"""The journal's Ed25519 key: made at first use, kept in the state folder, used for checkpoints and anchors.

Never on the way of a call: importing the library costs more than a hundred records. A key beside the log
holds against those who can write the log and cannot read the key, and against nobody else; an anchor or
the public key kept on another machine does the rest.
"""

from __future__ import annotations

import os
from contextlib import suppress

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from toolcrib.errors import StoreError, shortage
from toolcrib.journal import chain
from toolcrib.journal.chain import Anchor, Head
from toolcrib.jsontext import JsonObject
from toolcrib.store import private

_KEY_BYTES = 32
_HINT = "the journal's key must be a file of 32 bytes that belongs to you alone (mode 0600)"


class Seal:
    """Signs heads."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.key = private.public_key().public_bytes_raw()

    @staticmethod
    def of(state: str) -> Seal:
        """The state folder's key; made where there is none. StoreError where it cannot be used."""
        path = os.path.join(state, "keys", "journal.key")
        try:
            secret = _read_secret(path) or _make_secret(path)
        except OSError as error:
            short = shortage(error)
            hint = short[1] if short else "name a state folder that can be written with --state"
            raise StoreError(f"{path}: {(error.strerror or 'cannot be made').lower()}", hint) from None
        except StoreError as error:
            raise StoreError(error.message, _HINT) from None
        return Seal(Ed25519PrivateKey.from_private_bytes(secret))

    def checkpoint(self, head: Head, time: float) -> JsonObject:
        return chain.checkpoint(head, time, self._private.sign(chain.signed_text(head, time)), self.key)

    def anchor(self, heads: tuple[Head, ...], time: float) -> Anchor:
        return Anchor(time, heads, self.key, self._private.sign(chain.anchor_text(heads, time)))


def public_key(state: str) -> bytes | None:
    """The public key of a state folder, or None where nothing was signed yet."""
    path = os.path.join(state, "keys", "journal.key")
    with suppress(StoreError):
        secret = _read_secret(path)
        if secret is not None:
            return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return None


def checker(key: bytes) -> chain.Check:
    """Checks signatures of one public key."""
    try:
        public = Ed25519PublicKey.from_public_bytes(key)
    except ValueError:
        return lambda signature, message: False

    def check(signature: bytes, message: bytes) -> bool:
        try:
            public.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return check


def _read_secret(path: str) -> bytes | None:
    secret = private.read(path, _KEY_BYTES)
    if secret is not None and len(secret) != _KEY_BYTES:
        raise StoreError(f"{path}: it is no key", _HINT)
    return secret


def _make_secret(path: str) -> bytes:
    """Write a new key whole or not at all; where two hosts begin at once, the first one's counts for both."""
    private.make_folders(os.path.dirname(path))
    private.put(path, Ed25519PrivateKey.generate().private_bytes_raw(), replacing=False)
    found = _read_secret(path)
    assert found is not None
    return found
