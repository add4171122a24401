"""Ed25519 as strict as it can be: one signature for one message under one key, and nothing that passes twice.

The library checks the equation; what it lets through besides is refused here before it is asked. Imported
only when a signature is really made or verified: the library is slow to load. Knows no files and no formats.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_SMALL: Final = frozenset(
    {
        0,
        1,
        _P - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""The y of the eight points of small order."""


@lru_cache(maxsize=4096)
def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature is the key's over the message. Total, and the same for ever, so remembered.

    Attack: a key of small order, for which anybody can make signatures of anything; the library takes it. And
    other spellings of one signature or key (a number above its modulus), so that one thing has two names.
    """
    if len(signature) != 64 or not is_sound(public) or not _is_point(signature[:32]):
        return False
    if int.from_bytes(signature[32:], "little") >= _L:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_sound(public: bytes) -> bool:
    """Whether these bytes can be somebody's public key: spelt in the one right way, and of full order."""
    return len(public) == 32 and _is_point(public)


def _is_point(encoded: bytes) -> bool:
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    return y < _P and y not in _SMALL
