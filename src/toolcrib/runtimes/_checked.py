"""A tool's own file as it was checked: the bytes that may run, or why nothing does.

For runtimes that hand bytes to an interpreter. It reads through ``digests.Contents`` and starts nothing.
"""

from __future__ import annotations

import os

from msgspec import Struct

from toolcrib.bound import BoundTool
from toolcrib.catalog import digests
from toolcrib.model import End, Ending, ToolCall
from toolcrib.paths import is_below


class Checked(Struct, frozen=True, kw_only=True):
    """One file, read once."""

    path: str
    content: bytes
    digest: str
    real: str = ""
    """Where it really lies: its path with every link followed."""


def own_file(bound: BoundTool, call: ToolCall, contents: digests.Contents) -> Checked | Ending:
    """The first of the tool's own files, of which there must be one."""
    own = bound.digests.own_files
    files_held = tuple([contents.file(path) for path in own])
    held = files_held[0]
    real = os.path.realpath(own[0]) if held is None else contents.real(held)
    space, marker, _ = own[0].partition("/.ai/tools/")
    # Attack: a link that led to a file of its own space when it was loaded, and leads out of it now.
    if marker and real is not None and not is_below(real, (os.path.realpath(space),)):
        return Ending(
            end=End.DENIED,
            reason=f"{own[0]} leads out of its space",
            hint="put the file itself there, or a link to another file of the same project",
        )
    if held is None:
        return Ending(end=End.NOT_STARTED, reason=f"{own[0]} cannot be read")
    if held.content is None:
        return Ending(end=End.NOT_STARTED, reason=f"{own[0]} is longer than {digests.KEPT_BYTES_MAX} bytes")
    # Attack: a file that is replaced between the check and the start. These bytes run, or nothing does.
    # Attack: one that is put back for every look at it but this one. The digest is that of these very bytes.
    is_same = call.runs_digest in (None, digests.combined(bound.digests.how, files_held))
    if not is_same or real is None:
        return Ending(
            end=End.DENIED,
            reason="the tool's files changed between being checked and being started",
            hint="call it again once nobody is writing to them",
        )
    return Checked(path=own[0], content=held.content, digest=held.digest, real=real)
