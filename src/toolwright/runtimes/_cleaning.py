"""Secrets out of what a server says: its answers, its last words, its reasons. Pure.

``journal/redaction.py`` does this for what is recorded; here a credential is known to have been handed to
whoever speaks, so that every usual spelling of it is looked for. It does not know where secrets come from.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from toolwright.journal.redaction import MARKER, VALUE_CHARS_MIN
from toolwright.jsontext import JsonValue


class Cleaning:
    """Takes the caller's credentials out of everything that came back.

    Attack: a server that repeats the credentials it was sent, anywhere in its answer and in any usual
    spelling, and so tells them to the model, the record and the cache.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        worth = {secret for secret in secrets if len(secret) >= VALUE_CHARS_MIN}
        self._patterns = [
            re.compile(form)
            for secret in sorted(worth, key=lambda secret: (-len(secret), secret))
            for form in _forms(secret)
        ]

    def __call__(self, data: bytes) -> bytes:
        for pattern in self._patterns:
            data = pattern.sub(_MARKER, data)
        return data

    def text(self, text: str) -> str:
        return self(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def header(self, text: str) -> str:
        return self(text.encode("latin-1", "replace")).decode("latin-1")

    def value(self, value: JsonValue) -> JsonValue:
        """A JSON value whose texts are clean, the names of members too."""
        if not self._patterns:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self.value(item) for name, item in value.items()}
        return value


_MARKER: Final = MARKER.encode("ascii")


def _forms(secret: str) -> Iterator[bytes]:
    """The patterns of a secret's spellings: as it is, in base64, and in the wide letters of UTF-16."""
    plain = secret.encode("utf-8", "surrogateescape")
    yield _spelled(secret)
    for encoded in {base64.b64encode(plain), base64.urlsafe_b64encode(plain)}:
        yield _spelled(encoded.decode("ascii").rstrip("=")) + b"(?:=|%3[dD])*"
    for wide in ("utf-16-le", "utf-16-be"):
        yield re.escape(secret.encode(wide, "surrogatepass"))


def _spelled(text: str) -> bytes:
    """A pattern for a text whose letters may be in either case, percent-encoded, or escaped as in JSON.

    Every alternative begins with a plain byte, so that a search passes quickly over other text.
    """
    return b"".join(b"(?:" + b"|".join(_spellings(char)) + b")" for char in text)


def _spellings(char: str) -> list[bytes]:
    plain = char.encode("utf-8", "surrogateescape")
    found = {
        re.escape(case.encode("utf-8", "surrogateescape")) for case in (char, char.lower(), char.upper())
    }
    with suppress(UnicodeEncodeError):  # how it goes into a header
        found.add(re.escape(char.encode("latin-1")))
    found.add(_in_hex(b"%", plain, 1))
    found.add(_in_hex(rb"\\u", char.encode("utf-16-be", "surrogatepass"), 2))
    if char in '"\\/':
        found.add(rb"\\" + re.escape(plain))
    return sorted(found, key=lambda spelling: (-len(spelling), spelling))


def _in_hex(mark: bytes, data: bytes, size: int) -> bytes:
    numbers = (data[at : at + size].hex() for at in range(0, len(data), size))
    either = (re.sub("[a-f]", lambda digit: f"[{digit[0]}{digit[0].upper()}]", number) for number in numbers)
    return b"".join(mark + number.encode("ascii") for number in either)
