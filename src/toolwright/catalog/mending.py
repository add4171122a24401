"""Applying the one safe mend that some problems carry. Files are replaced whole, and only where the text is
still what the problem spoke of."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from toolwright import jsontext
from toolwright.catalog import files
from toolwright.model import FixPart, Problem


def mend(problems: Sequence[Problem]) -> int:
    """Mend what can be mended; how many problems that were."""
    by_path: dict[str, list[Problem]] = {}
    for problem in problems:
        if problem.fix is not None:
            by_path.setdefault(problem.path, []).append(problem)
    return sum(_mend_file(path, found) for path, found in by_path.items())


def _mend_file(path: str, problems: Sequence[Problem]) -> int:
    content, _ = files.read(path)
    if content is None or os.path.islink(path):
        return 0
    text = jsontext.decode(content)
    if not isinstance(text, str):
        return 0
    edits = _json_edits(text, problems) if path.endswith(".json") else _line_edits(text, problems)
    edits.sort(reverse=True)
    done = 0
    limit = len(text)
    for start, end, new in edits:
        if end <= limit:  # two mends of one place: the later one waits for the next run
            text = text[:start] + new + text[end:]
            limit = start
            done += 1
    if done:
        _replace(path, text.encode("utf-8"))
    return done


def _json_edits(text: str, problems: Sequence[Problem]) -> list[tuple[int, int, str]]:
    spans = jsontext.locate(text)
    edits = []
    for problem in problems:
        span = spans.get(problem.pointer or ())
        if span is None or problem.fix is None:
            continue
        if problem.fix.part is FixPart.VALUE:
            edits.append((span.start, span.end, problem.fix.new))
        elif problem.fix.part is FixPart.KEY and span.key_start is not None and span.key_end is not None:
            edits.append((span.key_start, span.key_end, problem.fix.new))
    return edits


def _line_edits(text: str, problems: Sequence[Problem]) -> list[tuple[int, int, str]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits = []
    for problem in problems:
        fix = problem.fix
        if fix is None or fix.old is None or problem.line is None or problem.line >= len(starts):
            continue
        start, end = starts[problem.line - 1], starts[problem.line]
        line = text[start:end]
        if line.count(fix.old) == 1:
            at = start + line.index(fix.old)
            edits.append((at, at + len(fix.old), fix.new))
    return edits


def _replace(path: str, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".toolwright-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
