"""Ed25519 by the library, as strict as ``signing.is_sound`` and ``is_strict`` make it; private keys as text.

Imported only when a signature is really made or verified: the library is slow to load. Knows no files.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from toolcrib.trust import signing

_PEM: Final = re.compile(
    r"-----BEGIN PRIVATE KEY-----\n(?P<body>[A-Za-z0-9+/=\n]{1,400})\n-----END PRIVATE KEY-----\n"
)
_V1: Final = bytes.fromhex("302e020100300506032b657004220420")
"""PKCS8 as RFC 8410 has it, up to the 32 bytes of the key."""
_V2: Final = {
    bytes.fromhex("3051020101300506032b657004220420"): bytes.fromhex("812100"),
    bytes.fromhex("3053020101300506032b657004220420"): bytes.fromhex("a123032100"),
}
"""The same with the public key behind it, as some libraries write it."""


@lru_cache(maxsize=4096)
def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature is the key's over the message. Total, and the same for ever, so remembered."""
    if not signing.is_sound(public) or not signing.is_strict(signature):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def make_private() -> tuple[bytes, str]:
    """A new key pair: the private key as PKCS8 in PEM form, and the public one."""
    private = Ed25519PrivateKey.generate()
    body = base64.b64encode(_V1 + private.private_bytes_raw()).decode("ascii")
    secret = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"
    return secret.encode("ascii"), signing.pem_of(private.public_key().public_bytes_raw())


def read_private(secret: bytes) -> tuple[Ed25519PrivateKey, bytes] | None:
    """A private key (PKCS8 in PEM form, without a password) and its public one; None where it is none."""
    found = _PEM.fullmatch(signing.plain_pem(secret.decode("ascii", "replace")))
    if found is None:
        return None
    try:
        der = base64.b64decode(found["body"].replace("\n", ""), validate=True)
    except ValueError:
        return None
    head, seed, behind = der[: len(_V1)], der[len(_V1) : len(_V1) + 32], der[len(_V1) + 32 :]
    if len(seed) != 32:
        return None
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = private.public_key().public_bytes_raw()
    expected = b"" if head == _V1 else _V2[head] + public if head in _V2 else None
    return (private, public) if behind == expected else None
