"""What a person hands over on the command line: arguments as JSON, context as pairs, durations, names."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Final

import click

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.errors import SourceError
from toolcrib.jsontext import JsonValue
from toolcrib.model import WRITE, Effect

_DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class EffectName(click.Choice):  # type: ignore[type-arg]  # generic in some versions only
    """The name of an effect."""

    def __init__(self) -> None:
        super().__init__([effect.value for effect in Effect])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == WRITE:
            self.fail(f"{WRITE!r} is a word of rules only: name create or change.", param, ctx)
        return super().convert(value, param, ctx)


def arguments_text(text: str) -> bytes:
    """The text of ARGS: itself, or what stdin (``-``) or a file (``@FILE``) holds."""
    if text == "-":
        if sys.stdin is None:  # closed before we were started: descriptor 0 is by now another file
            raise SourceError("stdin: it is closed", "hand a JSON object over on stdin")
        content = sys.stdin.buffer.read(files.DOCUMENT_BYTES_MAX + 1)
        if len(content) > files.DOCUMENT_BYTES_MAX:
            raise SourceError(f"stdin: more than {files.DOCUMENT_BYTES_MAX:,} bytes", "send a shorter object")
        return content
    if text.startswith("@"):
        read, why = files.read(text[1:])
        if read is None:
            raise SourceError(f"{text[1:] or '@'}: {why}", "name a file that holds a JSON object")
        return read
    return os.fsencode(text)


def context_of(pairs: tuple[str, ...]) -> dict[str, JsonValue]:
    """``K=V`` pairs: V as JSON where it is JSON, else as text."""
    return dict(map(_pair, pairs))


def _pair(text: str) -> tuple[str, JsonValue]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"--context wants K=V, for example project_id=p1 (got {text!r}).")
    if value.lower() in ("true", "false"):  # as people and Python write them
        return key, value.lower() == "true"
    parsed = jsontext.read(os.fsencode(value))
    return key, value if parsed.defect is not None or parsed.duplicates else parsed.value


def duration_s(text: str) -> int:
    """``2s``, ``30m``, ``1h``, ``7d`` in seconds."""
    found = _DURATION.fullmatch(text.strip())
    seconds = int(found.group(1)) * _UNIT_S[found.group(2)] if found else 0
    if not 0 < seconds <= 100 * 365 * 86_400:
        raise click.UsageError(f"a duration is written 2s, 30m, 1h or 7d (got {text[:60]!r}).")
    return seconds


def check_text(text: str, what: str) -> None:
    """Refuse bytes that are no text: nothing that we keep or look up can hold them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise click.UsageError(f"{what} is not UTF-8 (got {text[:60]!r}).") from None
