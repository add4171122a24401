"""What the MCP door hands to clients to be shown again: session ids and the state of a question.

Both say all that the door needs to know, and are authenticated by a key that lives as long as the process. So
there is no table of sessions that somebody could fill, and no id that somebody could guess.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.jsontext import JsonObject
from toolcrib.mcp_wire import OLDER
from toolcrib.model import Guest

_NONCE_BYTES: Final = 16
_MAC_BYTES: Final = 16
_SESSION_BYTES: Final = _NONCE_BYTES + 2 + _MAC_BYTES
_KNOWN_MAX: Final = 4096
_ELICITS: Final = 1
STATE_S: Final = 3600.0
"""So long a question of the newer era may be answered by the request that shows its state."""
_STATE_CHARS_MAX: Final = 4096


class Session(Struct, frozen=True):
    """What a client of the older era said of itself when it began."""

    id: str
    version: str
    elicits: bool
    """It can put a form before a person."""


class Seals:
    """One for all sessions of a process."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._known: dict[tuple[str, str, str | None], Session] = {}
        """Ids that were checked, by whom they belong to: checking one again costs more than looking it up."""

    def new_session(self, guest: Guest, *, version: str, elicits: bool) -> Session:
        plain = secrets.token_bytes(_NONCE_BYTES) + bytes((OLDER.index(version), _ELICITS if elicits else 0))
        text = base64.urlsafe_b64encode(plain + self._mac(b"session", plain, guest)).rstrip(b"=").decode()
        return Session(text, version, elicits)

    def session(self, text: str, guest: Guest) -> Session | None:
        """The session of an id; None where it was never given to this caller.

        Attack: another client's id, seen in a log, lets somebody answer or cancel for it. Attack: guessing.
        """
        place = (text, guest.name, guest.token_id)
        known = self._known.get(place)
        if known is None:
            known = self._read(text, guest)
            if known is not None:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[place] = known
        return known

    def _read(self, text: str, guest: Guest) -> Session | None:
        held = _decoded(text, _SESSION_BYTES)
        if held is None or len(held) != _SESSION_BYTES:
            return None
        plain, mac = held[:-_MAC_BYTES], held[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(b"session", plain, guest)):
            return None
        number, bits = plain[_NONCE_BYTES], plain[_NONCE_BYTES + 1]
        return Session(text, OLDER[number], bool(bits & _ELICITS))

    def state(self, guest: Guest, approval_id: str, params: JsonObject) -> str:
        """What a client of the newer era shows with the answer to a question about this call."""
        plain = jsontext.compact([approval_id, int(self._clock() + STATE_S), _about(params)])
        return base64.urlsafe_b64encode(self._mac(b"state", plain, guest) + plain).rstrip(b"=").decode()

    def approval(self, guest: Guest, state: str, params: JsonObject) -> str | None:
        """The approval that a shown state is about; None where it is not ours, not this caller's, too old, or
        about another call.

        Attack: the answer to a harmless question is shown with the arguments of another call.
        """
        held = _decoded(state, _STATE_CHARS_MAX)
        if held is None or len(held) <= _MAC_BYTES:
            return None
        mac, plain = held[:_MAC_BYTES], held[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(b"state", plain, guest)):
            return None
        approval_id, until, about = jsontext.loads_own(plain)
        return approval_id if self._clock() < until and about == _about(params) else None

    def _mac(self, purpose: bytes, plain: bytes, guest: Guest) -> bytes:
        who = jsontext.compact([guest.name, guest.token_id])
        text = b"\0".join((purpose, hashlib.sha256(who).digest(), plain))
        return hmac.digest(self._key, text, "sha256")[:_MAC_BYTES]


def _about(params: JsonObject) -> str:
    return jsontext.digest([params.get("name"), params.get("arguments") or {}])


def _decoded(text: str, chars_max: int) -> bytes | None:
    """Only the one spelling that we wrote."""
    if len(text) > 2 * chars_max or not text.isascii():
        return None
    try:
        held = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return held if base64.urlsafe_b64encode(held).rstrip(b"=").decode() == text else None
