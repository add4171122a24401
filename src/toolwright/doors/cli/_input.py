"""What a person hands over on the command line: arguments as JSON, context as pairs, durations."""

from __future__ import annotations

import os
import sys

import click

from toolwright import jsontext
from toolwright.catalog import files
from toolwright.errors import SourceError
from toolwright.jsontext import JsonValue


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
