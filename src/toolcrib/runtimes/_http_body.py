"""Unpack the body of an HTTP answer, a bounded piece at a time. It reads nothing; its caller has limits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from toolcrib.runtimes._http_request import Trouble, Unreached, broken, header

_PIECE_BYTES: Final = 64 << 10


class Unpacking:
    """Takes one layer of compression off, a bounded piece at a time.

    Attack: a few kilobytes that unpack to gigabytes, once or in layers. Pieces are handed out as they come,
    so the reader's limit stops them; more than one layer is refused.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._held = b""
        self._unpack = zlib.decompressobj(31) if encoding == "gzip" else None

    @staticmethod
    def of(headers: Sequence[tuple[str, str]]) -> Unpacking | None:
        encoding = (header(headers, "content-encoding") or "").strip().lower()
        if encoding in ("", "identity"):
            return None
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise broken("its body is encoded in a way that was not asked for")
        return Unpacking(encoding.removeprefix("x-"))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._unpack is None:  # deflate: with or without zlib's two bytes, and servers do both
            self._held += data
            if len(self._held) < 2:
                return
            data = self._held
            is_zlib = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._unpack = zlib.decompressobj(15 if is_zlib else -15)
        try:
            while True:
                piece = self._unpack.decompress(data, _PIECE_BYTES)
                data = self._unpack.unconsumed_tail
                if piece:
                    yield piece
                if self._unpack.eof:
                    data = self._unpack.unused_data
                    if self._encoding != "gzip" or not data:
                        return
                    self._unpack = zlib.decompressobj(31)  # gzip files may be joined
                elif not data and len(piece) < _PIECE_BYTES:
                    return
        except zlib.error:
            raise broken(f"its body is not {self._encoding}") from None

    def end(self) -> None:
        """Raise Unreached if the body ended too early."""
        if self._unpack is None or not self._unpack.eof:
            raise Unreached(Trouble.LOST, "the compressed body ended too early", sent=True)
