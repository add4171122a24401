"""Bash as text: metadata from comment lines or assignments of the same names. Nothing is run or expanded.

``# NAME = value`` and ``NAME=value`` at the beginning of a line count; a value that begins with a bracket is
JSON and may go on in the comment lines, or inside the single quotes, that follow. A value that the shell
would have to expand is reported as unread. This module knows no format.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

from toolcrib import jsontext
from toolcrib.formats._source import NotLiteral, SourceValues, Unread, plain
from toolcrib.jsontext import JsonObject, JsonValue, Pointer

_BOUND: Final = re.compile(
    r"^(?:#[ \t]*(?P<comment>[A-Za-z_]\w*)[ \t]*[=:][ \t]*"
    r"|(?:(?:export|readonly|declare(?:[ \t]+-\w+)*|local)[ \t]+)?(?P<variable>[A-Za-z_]\w*)=)",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(r"[ \t]*#[ \t]?")
_BARE: Final = re.compile(r"[^\s;#]*")
_ENDS: Final = re.compile(r"[ \t]*(?:[;#\n]|\Z)")
_WORDS: Final = {"null": None, "None": None, "true": True, "false": False}
_BRACKETS: Final = re.compile(r'"(?:\\.|[^"\\])*"|[\[{]|[\]}]')


def read(text: str, wanted: Set[str]) -> SourceValues:
    """Read the ``wanted`` names of a script. Never raises, whatever the text."""
    bound: dict[str, re.Match[str]] = {}
    repeated: dict[str, None] = {}
    for match in _BOUND.finditer(text):
        name = match["comment"] or match["variable"]
        if name in wanted:
            if name in bound:
                repeated[name] = None
            bound[name] = match
    values: JsonObject = {}
    lines: dict[Pointer, int] = {}
    unread: list[Unread] = []
    for name, match in bound.items():
        line = lines[name,] = text.count("\n", 0, match.start()) + 1
        try:
            found = _in_comment if match["comment"] else _assigned
            value = found(text, match.end(), line)
            values[name] = value if isinstance(value, (dict, list)) else plain(value, line)
        except NotLiteral as stop:
            unread.append(Unread(name, line, f"{stop.why} (line {stop.line})"))
    return SourceValues(values, lines, tuple(unread), tuple((name, lines[name,]) for name in repeated))


def _in_comment(text: str, at: int, line: int) -> JsonValue:
    end = _end_of_line(text, at)
    first = text[at:end].strip()
    if not first.startswith(("{", "[")):
        return _word(first)
    collected = [first]
    depth = _opened(first)
    while depth > 0 and (comment := _COMMENT.match(text, end + 1)):
        end = _end_of_line(text, comment.end())
        collected.append(text[comment.end() : end])
        depth += _opened(collected[-1])
    return _json("\n".join(collected), line)


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _opened(text: str) -> int:
    """How many brackets a line of JSON leaves open."""
    found = [match.group() for match in _BRACKETS.finditer(text)]
    return sum(part in ("[", "{") for part in found) - sum(part in ("]", "}") for part in found)


def _assigned(text: str, at: int, line: int) -> JsonValue:
    quote = text[at : at + 1]
    if quote and quote in "'\"":
        end = text.find(quote, at + 1)
        if end < 0:
            raise NotLiteral("a quote is not closed", line)
        body = text[at + 1 : end]
        if quote == '"' and any(char in body for char in "$`\\"):
            raise NotLiteral("the shell would expand it", line)
        if not _ENDS.match(text, end + 1):
            raise NotLiteral("the shell would join it with more", line)
        return _json(body, line) if body.lstrip().startswith(("{", "[")) else body
    word = _BARE.match(text, at)
    body = word.group() if word else ""
    if any(char in body for char in "$`\\'\"(){}[]*?<>|&"):
        raise NotLiteral("the shell would expand it", line)
    return _WORDS.get(body, body)


def _word(text: str) -> JsonValue:
    if len(text) >= 2 and text[0] in "\"'" and text[-1] == text[0]:
        return text[1:-1]
    return _WORDS.get(text, text)


def _json(text: str, line: int) -> JsonValue:
    parsed = jsontext.read(text.encode("utf-8", "surrogatepass"))
    if parsed.defect is not None:
        raise NotLiteral(f"not JSON: {parsed.defect.message}", line + parsed.defect.line - 1)
    if parsed.duplicates:
        raise NotLiteral(f'duplicate key "{parsed.duplicates[0].key}"', line + parsed.duplicates[0].line - 1)
    return parsed.value
