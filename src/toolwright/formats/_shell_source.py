"""Bash as text: metadata from comment lines or from assignments of the same names. Nothing is run or expanded.

``# NAME = value`` and ``NAME=value`` at the beginning of a line count; a value that begins with a bracket is
JSON and may go on in the comment lines, or inside the single quotes, that follow. A value that the shell
would have to expand is reported as unread. This module knows no format.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

from toolwright import jsontext
from toolwright.formats._source import NotLiteral, SourceValues, Unread, plain
from toolwright.jsontext import JsonObject, JsonValue, Pointer

_BOUND: Final = re.compile(
    r"^(?:#[ \t]*(?P<comment>[A-Za-z_]\w*)[ \t]*[=:][ \t]*"
    r"|(?:(?:export|readonly|declare(?:[ \t]+-\w+)*|local)[ \t]+)?(?P<variable>[A-Za-z_]\w*)=)",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(r"^[ \t]*#[ \t]?", re.MULTILINE)
_WORDS: Final = {"null": None, "None": None, "true": True, "false": False}
_BRACKETS: Final = re.compile(r'"(?:\\.|[^"\\])*"|[\[{]|[\]}]')


def read(text: str, wanted: Set[str]) -> SourceValues:
    """Read the ``wanted`` names of a script. Never raises, whatever the text."""
    values: JsonObject = {}
    lines: dict[Pointer, int] = {}
    unread: dict[str, Unread] = {}
    repeated: dict[str, int] = {}
    for match in _BOUND.finditer(text):
        name = match["comment"] or match["variable"]
        if name not in wanted:
            continue
        line = text.count("\n", 0, match.start()) + 1
        if (name,) in lines:
            repeated[name] = line
        lines[name,] = line
        values.pop(name, None)
        unread.pop(name, None)
        try:
            rest = text[match.end() :]
            value = _in_comment(rest, line) if match["comment"] else _assigned(rest, line)
            values[name] = plain(value, line) if not isinstance(value, (dict, list)) else value
        except NotLiteral as stop:
            unread[name] = Unread(name, line, f"{stop.why} (line {stop.line})")
    return SourceValues(values, lines, tuple(unread.values()), tuple(repeated.items()))


def _in_comment(rest: str, line: int) -> JsonValue:
    first, _, below = rest.partition("\n")
    first = first.strip()
    if not first.startswith(("{", "[")):
        return _word(first)
    collected = [first]
    for following in below.split("\n"):
        if _closed("\n".join(collected)) or not following.lstrip().startswith("#"):
            break
        collected.append(_COMMENT.sub("", following, count=1))
    return _json("\n".join(collected), line)


def _closed(text: str) -> bool:
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match.group() in "[{":
            depth += 1
        elif match.group() in "]}":
            depth -= 1
    return depth <= 0


def _assigned(rest: str, line: int) -> JsonValue:
    quote = rest[:1]
    if quote in ("'", '"') and quote:
        end = rest.find(quote, 1)
        if end < 0:
            raise NotLiteral("a quote is not closed", line)
        body = rest[1:end]
        if quote == '"' and any(char in body for char in "$`\\"):
            raise NotLiteral("the shell would expand it", line)
        if not re.match(r"[ \t]*(?:[;#\n]|\Z)", rest[end + 1 :]):
            raise NotLiteral("the shell would join it with more", line)
        if body.lstrip().startswith(("{", "[")):
            return _json(body, line)
        return body
    word = re.match(r"[^\s;#]*", rest)
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
