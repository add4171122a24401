"""Count the private words of the code's texts, and name the lines that have most of them.

``make words``, or ``python tests/words.py --path FOLDER`` for any tree. Two kinds of text are counted, per
10,000 words: docstrings, those below attributes as well; and messages, which are all other literals that read
as a sentence. Comments are not counted. It is a measure for editing: nothing fails.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
WORD: Final = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
SENTENCE_WORDS: Final = 4
WORST: Final = 10


class Row(NamedTuple):
    """A word. Per 10,000 words of docstrings: ours before the texts were edited, and six peers'."""

    word: str
    pattern: str
    before: float | None = None
    peers: float | None = None


ROWS: Final = (
    Row("nobody", "nobody", 20.4, 0.4),
    Row("told", "told", 14.6, 0.6),
    Row("stands", "stands", 14.7, 0.5),
    Row("lies", "lies", 13.9, 0.0),
    Row("whoever", "whoever", 13.7, 0.4),
    Row("what is", r"what\s+is", 33, 1.7),
    Row("somebody, everybody", "(?:some|every|any)body"),
    Row("tell, tells", "tells?"),
    Row("stand, stood", "(?:stand(?!-)|stood|standing)"),
    Row("lie, lay", "(?:lie|lay|lying)"),
    Row("who", "who"),
    Row("whose", "whose"),
    Row("of which", r"of\s+which"),
    Row("such (not: such as)", r"such(?!\s+as\b)"),
    Row("anew", "anew"),
    Row("mend, mends", "mend(?:s|ed|ing)?"),
)
PATTERNS: Final = {row.word: re.compile(rf"\b{row.pattern}\b", re.IGNORECASE) for row in ROWS}


class Texts(NamedTuple):
    """What people read in one file."""

    docstrings: list[str]
    messages: list[str]
    lines: dict[int, str]
    """The same by line, without the code around it."""


def texts_of(source: str) -> Texts:
    """Return the texts of a file. Raises SyntaxError."""
    tree = ast.parse(source)
    docstrings = {id(node): node for node in _docstrings(tree)}
    found = Texts([_text(node) for node in docstrings.values()], [], {})
    kept = set()
    for node in _literals(tree):
        text = _text(node)
        is_docstring = id(node) in docstrings
        if not is_docstring and " " in text and len(WORD.findall(text)) >= SENTENCE_WORDS:
            found.messages.append(text)
        elif not is_docstring:
            continue
        kept |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    for line, text in _strings(source):
        if line in kept:
            found.lines[line] = f"{found.lines.get(line, '')} {text}".strip()
    return found


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def _literals(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield whole literals: the parts of an f-string are not literals of their own."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _literals(child)


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


_STRINGS: Final = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def _strings(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _STRINGS:
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, line.strip()


def counted(texts: list[str]) -> tuple[int, Counter[str]]:
    """Return how many words there are, and how often each of ours is among them."""
    words = sum(len(WORD.findall(text)) for text in texts)
    hits = {name: sum(len(pattern.findall(text)) for text in texts) for name, pattern in PATTERNS.items()}
    return words, Counter(hits)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--path", type=Path, default=ROOT / "src", help="the folder to count")
    path: Path = parser.parse_args().path
    docstrings: list[str] = []
    messages: list[str] = []
    lines: list[tuple[int, str, str]] = []
    for file in sorted(path.rglob("*.py")):
        try:
            texts = texts_of(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # a template, or a test of what is no Python
            continue
        docstrings += texts.docstrings
        messages += texts.messages
        for number, line in texts.lines.items():
            hits = sum(len(pattern.findall(line)) for pattern in PATTERNS.values())
            lines.append((hits, f"{os.path.relpath(file)}:{number}", line))
    columns = {"docstrings": counted(docstrings), "messages": counted(messages)}
    print(f"{path}: " + ", ".join(f"{words:,} words of {name}" for name, (words, _) in columns.items()))
    print(f"\n{'per 10,000 words':22}{'docstrings':>12}{'messages':>12}{'before':>12}{'peers':>8}")
    for row in ROWS:
        rates = [10_000 * hits[row.word] / max(words, 1) for words, hits in columns.values()]
        anchors = ("" if anchor is None else f"{anchor:.1f}" for anchor in (row.before, row.peers))
        print(f"{row.word:22}{rates[0]:12.1f}{rates[1]:12.1f}{next(anchors):>12}{next(anchors):>8}")
    totals = [10_000 * hits.total() / max(words, 1) for words, hits in columns.values()]
    print(f"{'all of them':22}{totals[0]:12.1f}{totals[1]:12.1f}")
    print("\nthe worst lines")
    for hits, place, line in sorted(lines, key=lambda each: (-each[0], each[1]))[:WORST]:
        if hits:
            print(f"{hits}  {place}: {line}")


if __name__ == "__main__":
    main()
