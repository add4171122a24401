"""Applying the one safe mend that some problems carry.

Files are replaced whole, keep their mode and owner, and lie below the folders that were asked for: a check of
a project never writes into the user's own tools or an installed bundle. What a mend is, formats say; nothing
here decides that.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

from msgspec import Struct, field

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.jsontext import Pointer, Span
from toolcrib.model import Fix, FixPart, Problem


class Mended(Struct):
    """Which problems were mended, and which files could not be written, with the reason."""

    problems: list[Problem] = field(default_factory=list)
    unwritable: dict[str, str] = field(default_factory=dict)


def mend(problems: Sequence[Problem], roots: Sequence[str]) -> Mended:
    """Mend what can be mended in files at or below ``roots``."""
    done = Mended()
    by_path: dict[str, list[tuple[Problem, Fix]]] = {}
    for problem in problems:
        if problem.fix is not None:
            by_path.setdefault(problem.path, []).append((problem, problem.fix))
    real_roots = [os.path.realpath(root) for root in roots]
    for path, found in by_path.items():
        # Attack: a link that leads the pen out of the project.
        if os.path.islink(path) or not any(files.inside(path, root) for root in real_roots):
            continue
        try:
            done.problems += _mend_file(path, found)
        except OSError as error:
            done.unwritable[path] = files.reason(error)
    return done


def _mend_file(path: str, wanted: Sequence[tuple[Problem, Fix]]) -> list[Problem]:
    content, _ = files.read(path)
    text = jsontext.decode(content) if content is not None else None
    if not isinstance(text, str):
        return []
    edits: list[tuple[int, int, str, Problem]] = []
    if path.endswith(".json"):
        spans = jsontext.locate(text)
        renames = {(problem.pointer or (), fix) for problem, fix in wanted if fix.part is FixPart.KEY}
        claims = Counter(_renamed(pointer, fix) for pointer, fix in renames)
        for problem, fix in wanted:
            pointer = problem.pointer or ()
            if fix.part is FixPart.KEY and claims[_renamed(pointer, fix)] > 1:
                continue  # two keys would become the same one: which of them is meant, only a person knows
            if (place := _in_json(spans, pointer, fix)) is not None:
                edits.append((*place, fix.new, problem))
    else:
        starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        for problem, fix in wanted:
            if (place := _in_line(text, starts, problem.line, fix)) is not None:
                edits.append((*place, fix.new, problem))
    mended: list[Problem] = []
    pieces: list[str] = []  # from the end to the beginning
    limit = len(text)
    for start, end, new, problem in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        if end <= limit:  # two mends of one place: the earlier one waits for the next run
            pieces += (text[end:limit], new)
            limit = start
            mended.append(problem)
    if mended:
        _replace(path, (text[:limit] + "".join(reversed(pieces))).encode("utf-8"))
    return mended[::-1]


def _in_json(spans: Mapping[Pointer, Span], pointer: Pointer, fix: Fix) -> tuple[int, int] | None:
    """Where the fix goes, if the place is still there and its new name is free."""
    span = spans.get(pointer)
    if span is None:
        return None
    if fix.part is FixPart.VALUE:
        return span.start, span.end
    if fix.part is not FixPart.KEY or span.key_start is None or span.key_end is None:
        return None
    return None if _renamed(pointer, fix) in spans else (span.key_start, span.key_end)


def _renamed(pointer: Pointer, fix: Fix) -> Pointer:
    """Return the address that a member has after its key is rewritten."""
    return (*pointer[:-1], jsontext.loads_own(fix.new.encode("utf-8")))


def _in_line(text: str, starts: Sequence[int], line: int | None, fix: Fix) -> tuple[int, int] | None:
    """Where the fix goes, if its line still holds the old text exactly once."""
    if fix.old is None or line is None or line >= len(starts):
        return None
    start, end = starts[line - 1], starts[line]
    if text.count(fix.old, start, end) != 1:
        return None
    at = text.index(fix.old, start, end)
    return at, at + len(fix.old)


def _replace(path: str, content: bytes) -> None:
    status = os.stat(path)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".toolcrib-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        with suppress(OSError):  # only root may give a file away
            os.chown(temporary, status.st_uid, status.st_gid)
        os.chmod(temporary, status.st_mode & 0o7777)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
