"""Exceptions, and the one table of error kinds.

* ToolcribError            wrong use of the library
  + ConfigError              a configuration that cannot be used (exit 78)
  + SourceError              a named path that does not exist or cannot be read (exit 66)
  + SigningError             a key that is not there or must not be used (exit 77)
  + StoreError               what the house keeps cannot be read or written (exit 74)
  + ApprovalError            an approval that is not there, or no longer to be answered (exit 64)

Wrong declarations are ``Problem`` values and wrong calls are ``ToolError`` values; neither is raised.
Whatever the message, ``nearest`` finds the words that were probably meant. ``shortage`` knows the errors that
are nobody's mistake, because the process ran out of something.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from typing import Final

from msgspec import Struct


class ToolcribError(Exception):
    """The library was used wrongly; ``hint`` says what to do, and stands below the message in a traceback."""

    exit_code = 70

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:
            self.add_note(hint)


class ConfigError(ToolcribError):
    """A configuration that cannot be used. ``line`` is where the mistake stands in the ``file`` that the
    message begins with, where that can be told; ``str()`` says it too."""

    exit_code = 78

    def __init__(
        self, message: str, hint: str | None = None, *, file: str = "", line: int | None = None
    ) -> None:
        super().__init__(message, hint)
        self.file = file
        self.line = line

    def __str__(self) -> str:
        if self.line is None:
            return self.message
        return f"{self.file}:{self.line}{self.message.removeprefix(self.file)}"


class SourceError(ToolcribError):
    """A path named by a person that does not exist or cannot be read."""

    exit_code = 66


class StoreError(ToolcribError):
    """The state folder (store, journal, their keys) cannot be read or written; the message names the file."""

    exit_code = 74


class Unrecorded(StoreError):
    """Something that must be recorded cannot be, so it was not done."""


class ApprovalError(ToolcribError):
    """An approval that is not there, or can no longer be answered."""

    exit_code = 64


class EditError(ApprovalError):
    """Edited arguments that the tool would not take."""

    exit_code = 65


class SigningError(ToolcribError):
    """A signing key or a trust store that is not there, or that must not be used as it lies."""

    exit_code = 77


class UsageError(ToolcribError):
    """An argument that makes no sense here."""

    exit_code = 2


class UnknownTool(ToolcribError):
    """A name that belongs to no tool, or to several. ``near`` has what was probably meant."""

    exit_code = 64

    def __init__(self, message: str, hint: str | None = None, *, near: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.near = tuple(near)


class Failed(Exception):
    """Raised by a function that is a tool: its call failed, with exactly this message for the model.

    No wrong use of the library, so no ToolcribError; and not for anybody but tools to raise.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


_MEMORY: Final = "no memory was left", "raise the limit (ulimit -v, or memory.max of the container)"
_TASKS: Final = (
    "no thread could be started",
    "raise the limit of processes (ulimit -u, or pids.max of the container), or that of memory",
)
_FILES: Final = "too many open files", "raise the limit (ulimit -n), or close what others have open"
_SHORTAGES: Final = {
    "oo many open files": _FILES,
    "ile too large": ("file too large", "raise the limit of the size of files (ulimit -f)"),
    "annot allocate memory": _MEMORY,
    "failed to map segment": _MEMORY,  # a library: told as an import that failed
    "start new thread": _TASKS,
    "esource temporarily unavailable": _TASKS,
}
"""By words of the system's, of its loader's and of Python's, without the letter that may be a capital."""


def shortage(error: BaseException) -> tuple[str, str] | None:
    """What the process ran out of, and what to do about it; None where an error is about something else."""
    if isinstance(error, MemoryError):
        return _MEMORY
    is_told = isinstance(error, OSError | ImportError | RuntimeError)
    return shortage_told(str(error)) if is_told and not isinstance(error, BlockingIOError) else None


def shortage_told(why: str) -> tuple[str, str] | None:
    """The same of the words for why something could not be started."""
    if "not permitted" in why:  # a library on a disk from which nothing may be run
        return None
    return next((short for words, short in _SHORTAGES.items() if words in why), None)


class Kind(StrEnum):
    """Why a call did not succeed."""

    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    DENIED = "denied"
    NEEDS_APPROVAL = "needs_approval"
    UNAVAILABLE = "unavailable"
    NOT_AUDITED = "not_audited"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    BAD_OUTPUT = "bad_output"
    TOO_LARGE = "too_large"
    UNKNOWN_OUTCOME = "unknown_outcome"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class KindRow(Struct, frozen=True):
    """How the doors speak of one error kind."""

    exit_code: int
    http_status: int | None
    rpc_code: int | None = None
    """Of the JSON-RPC error that MCP answers with; None: a result marked as an error, for the model."""


KINDS: dict[Kind, KindRow] = {
    Kind.UNKNOWN_TOOL: KindRow(64, 404, -32602),
    Kind.INVALID_ARGUMENTS: KindRow(65, 422),
    Kind.DENIED: KindRow(77, 403),
    Kind.NEEDS_APPROVAL: KindRow(75, 409),
    Kind.UNAVAILABLE: KindRow(69, 503),
    Kind.NOT_AUDITED: KindRow(74, 503, -32603),
    Kind.TIMED_OUT: KindRow(124, 504),
    Kind.FAILED: KindRow(1, 502),
    Kind.BAD_OUTPUT: KindRow(76, 502),
    Kind.TOO_LARGE: KindRow(73, 502),
    Kind.UNKNOWN_OUTCOME: KindRow(71, 502),
    Kind.CANCELLED: KindRow(130, None),
    Kind.INTERNAL: KindRow(70, 500, -32603),
}


def did_you_mean(words: Sequence[str]) -> str:
    """Return the sentence that every face prints for words that were probably meant."""
    return f"did you mean {' or '.join(words)}?"


NEAR_MAX: Final = 3
"""How many names of tools are suggested."""
_WORD_CHARS_MAX: Final = 200
_WORDS_MAX: Final = 400


def nearest(word: str, known: Sequence[str], *, count: int = 1, likeness: float = 0.6) -> list[str]:
    """The known words that are most like one that is not known, the likeliest first; empty: none is. Of very
    many, only those are compared that begin alike."""
    # Attack: unknown names of megabytes, or one after the other to a server of ten thousand tools: comparing
    # takes a second of everybody's time, for a hint to somebody who is refused.
    if len(word) > _WORD_CHARS_MAX:
        return []
    if len(known) > _WORDS_MAX:
        known = sorted(known)
        at = bisect_left(known, word)
        known = known[max(0, at - _WORDS_MAX // 2) : at + _WORDS_MAX // 2]
    # By name: most programs make no mistake, and it is slow to import.
    found: list[str] = import_module("difflib").get_close_matches(word, known, n=count, cutoff=likeness)
    return found
