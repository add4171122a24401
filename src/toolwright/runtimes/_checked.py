"""A tool's own file as it was checked: the bytes that may run, or why nothing does.

For runtimes that hand bytes to an interpreter. It reads through ``digests.Contents`` and starts nothing.
"""

from __future__ import annotations

from toolwright.catalog import digests
from toolwright.model import End, Ending, Tool, ToolCall
from toolwright.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One file, read once."""

    path: str
    content: bytes
    digest: str


def own_file(tool: Tool, call: ToolCall, contents: digests.Contents) -> Checked | Ending:
    """The first of the tool's own files, of which there must be one."""
    own = digests.own_files(tool)
    held = contents.file(own[0])
    if held is None:
        return Ending(end=End.NOT_STARTED, reason=f"{own[0]} cannot be read")
    if held.content is None:
        return Ending(end=End.NOT_STARTED, reason=f"{own[0]} is longer than {digests.KEPT_BYTES_MAX} bytes")
    # Attack: a file that is replaced between the check and the start. These bytes run, or nothing does.
    if (
        (
            call.runs_digest is not None
            and contents.runs(digests.how(tool.invocation), own) != call.runs_digest
        )
        or (again := contents.file(own[0])) is None
        or again.digest != held.digest
    ):
        return Ending(
            end=End.DENIED,
            reason="the tool's files changed between being checked and being started",
            hint="call it again once nobody is writing to them",
        )
    return Checked(path=own[0], content=held.content, digest=held.digest)
