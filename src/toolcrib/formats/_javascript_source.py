"""JavaScript and TypeScript as text: top-level constants read by pattern and brace matching.

There is no parser here and no interpreter: one pass skips comments, strings and blocks to find the
declarations at the top level, and a small reader takes those whose value is a literal: unquoted keys,
trailing commas, all three kinds of quotes, ``as const``, ``satisfies T``, names and spreads of other
constants of the file. What is left is reported as unread, never dropped and never guessed. This module knows
no format.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Set
from typing import Final

from msgspec import Struct, field

from toolcrib.formats._source import Budget, NotLiteral, SourceValues, Unread, plain
from toolcrib.jsontext import DEPTH_MAX, JsonObject, JsonValue, Pointer

_SKIPPED: Final = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_TEXTS: Final = r"\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?"
# A slash begins a pattern only where a value may begin; elsewhere it divides. Nothing in it is tried twice:
# a text of slashes and brackets would otherwise be read hundreds of times.
_PATTERN: Final = (
    r"(?:(?<=[(,=:\[!&|?{};])|(?<=[(,=:\[!&|?{};] )|(?<=return ))"
    r"/(?![*/])(?>[^/\\\n\[]|\\.|\[[^\]\\\n]{0,200}+(?>\\.[^\]\\\n]{0,200}+){0,50}+\]){1,500}+/"
)
_TOP: Final = re.compile(
    rf"(?:{_SKIPPED}|{_TEXTS}|{_PATTERN})|(?P<open>[(\[{{])|(?P<close>[)\]}}])"
    r"|(?<![\w$.])(?:(?:(?:export\s+)?(?:const|let|var)\s+(?P<name>[\w$]+)|(?:module\.)?exports\.(?P<member>[\w$]+))"
    r"(?=\s*[:=])|export\s+(?P<export>default\b|(?:async\s+)?function(?:\s*+\*)?+\s*+[\w$]+)"
    r"|export\s*+\{(?P<listed>[^{}]{0,4000}+)\}|(?P<whole>module\.exports(?=\s*=(?!=))))",
    re.DOTALL,
)
_CALLED: Final = ("default", "execute")
_LINE_END: Final = re.compile("\n")
_SPACE: Final = re.compile(rf"(?:\s|{_SKIPPED})*", re.DOTALL)
_ANNOTATION: Final = re.compile(r"\s*(?::(?:[^=;]|=>){0,500})?=(?![=>])")
_NUMBER: Final = re.compile(
    r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?)"
)
_STRING: Final = re.compile(
    r"\"(?P<double>(?:\\.|[^\"\\\n])*)\"|'(?P<single>(?:\\.|[^'\\\n])*)'|`(?P<template>(?:\\.|[^`\\])*)`",
    re.DOTALL,
)
_DIGITS: Final = re.compile(r"[0-9]+")
_WORD: Final = re.compile(r"[A-Za-z_$][\w$]*")
_AS_TYPE: Final = re.compile(r"(?:as|satisfies)\b")
_ESCAPE: Final = re.compile(
    r"\\(?:u\{(?P<long>[0-9a-fA-F]{1,6})\}|u(?P<short>[0-9a-fA-F]{4})|x(?P<byte>[0-9a-fA-F]{2})|(?P<other>\r\n|.))",
    re.DOTALL,
)
_ESCAPED: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "0": "\0",
    "\n": "",
    "\r\n": "",
}
_CLOSING: Final = {"{": "}", "[": "]", "(": ")", "<": ">"}
_CONTINUES: Final = frozenset(".+-*/%([?&|<>=^!`")


class JavaScriptSource(Struct, frozen=True):
    """One file, read and not run."""

    found: SourceValues = field(default_factory=SourceValues)
    exports: tuple[str, ...] = ()
    """``default`` and the functions that the file exports."""

    @property
    def is_called(self) -> bool:
        """Whether there seems to be something to call: a default export, or an exported ``execute``."""
        return not {"default", "execute"}.isdisjoint(self.exports)


def read(text: str, wanted: Set[str]) -> JavaScriptSource:
    """Read the ``wanted`` top-level names of a program. Never raises, whatever the text."""
    places: dict[str, list[int]] = {}
    exports: list[str] = []
    depth = 0
    for match in _TOP.finditer(text):
        kind = match.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth = max(depth - 1, 0)
        elif kind == "export":
            exports.append(match["export"].split()[-1].lstrip("*"))
        elif kind == "listed":
            listed = (part.split() for part in match["listed"].split(","))
            exports += [words[-1] for words in listed if words and words[-1] in _CALLED]
        elif kind == "whole":
            exports.append("default")
        elif kind is not None and depth == 0:
            places.setdefault(match[kind], []).append(match.end())
            if match[kind] in _CALLED and (kind == "member" or match.group().startswith("export")):
                exports.append(match[kind])
    values: JsonObject = {}
    unread: list[Unread] = []
    repeated: list[tuple[str, int]] = []
    whole = _Whole(text, places, [match.start() for match in _LINE_END.finditer(text)])
    lines = whole.lines
    for name, starts in places.items():
        if name not in wanted:
            continue
        line = bisect_left(whole.line_ends, starts[-1]) + 1
        lines[name,] = line
        if len(starts) > 1:
            repeated.append((name, line))
        try:
            values[name] = _Literal(whole, starts[-1]).declared((name,), 0)
        except NotLiteral as stop:
            unread.append(Unread(name, line, f"{stop.why} (line {stop.line})"))
    return JavaScriptSource(SourceValues(values, lines, tuple(unread), tuple(repeated)), tuple(exports))


class _Undefined:
    """The value of ``undefined``: a member that is not there."""


class _Whole(Struct, frozen=True):
    """The file around a literal: where names are declared, and what has been learnt on the way."""

    text: str
    places: dict[str, list[int]]
    """Where the name of each declaration ends."""
    line_ends: list[int]
    lines: dict[Pointer, int] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)


class _Literal:
    """Reads the value of one declaration; ``at`` is where in the text the reader stands."""

    def __init__(self, whole: _Whole, start: int) -> None:
        self.whole = whole
        self.text = whole.text
        self.lines = whole.lines
        self.budget = whole.budget
        self.start = start
        self.at = start

    def declared(self, pointer: Pointer | None, depth: int) -> JsonValue:
        """The whole value of the declaration whose name ends at ``start``."""
        annotation = _ANNOTATION.match(self.text, self.start)
        if annotation is None:
            raise self.stop("it has no value")
        self.at = annotation.end()
        value = self.value(pointer, depth)
        self.skip()
        if self.text[self.at : self.at + 1] in _CONTINUES and self.at < len(self.text):
            raise self.stop("it is computed")
        return None if isinstance(value, _Undefined) else value

    def stop(self, why: str) -> NotLiteral:
        return NotLiteral(why, self.line())

    def line(self) -> int:
        return bisect_left(self.whole.line_ends, self.at) + 1

    def skip(self) -> str:
        """Go to the next character that counts, and return it."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def value(self, pointer: Pointer | None, depth: int) -> JsonValue:
        value = self.operand(pointer, depth)
        while self.skip() == "+" and isinstance(value, str):
            self.at += 1
            right = self.operand(None, depth)
            if not isinstance(right, str):
                raise self.stop("it is computed")
            value = self.budget.joined(value + right, self.line())
        while _AS_TYPE.match(self.text, self.at):
            self.skip_type()
            self.skip()
        return value

    def operand(self, pointer: Pointer | None, depth: int) -> JsonValue:
        first = self.skip()
        self.budget.part(self.line())
        if depth > DEPTH_MAX:
            raise self.stop(f"nested more than {DEPTH_MAX} levels deep")
        if first == "{":
            return self.object(pointer, depth + 1)
        if first == "[":
            return self.array(pointer, depth + 1)
        if first in ('"', "'", "`") and first:
            return self.string()
        if first == "(":
            self.at += 1
            value = self.value(pointer, depth + 1)
            self.expect(")")
            return value
        if number := _NUMBER.match(self.text, self.at):
            return self.number(number)
        if word := _WORD.match(self.text, self.at):
            return self.word(word, pointer, depth)
        raise self.stop("it is computed")

    def expect(self, char: str) -> None:
        if self.skip() != char:
            raise self.stop("it is computed")
        self.at += 1

    def object(self, pointer: Pointer | None, depth: int) -> JsonObject:
        members: JsonObject = {}
        self.at += 1
        while (first := self.skip()) != "}":
            if self.text.startswith("...", self.at):
                self.at += 3
                other = self.value(pointer, depth)
                if not isinstance(other, dict):
                    raise self.stop("it spreads something else than an object")
                members |= other
            else:
                start = self.at
                key = self.string() if first in ('"', "'") and first else self.key()
                here = None if pointer is None else (*pointer, key)
                if here is not None:
                    self.lines[here] = self.line()
                if self.skip() == ":":
                    self.at += 1
                elif first not in ('"', "'"):
                    self.at = start  # {name}: the constant of that name
                value = self.value(here, depth)
                if not isinstance(value, _Undefined):
                    members[key] = value
            if self.skip() == ",":
                self.at += 1
            elif self.skip() != "}":
                raise self.stop("it is computed")
        self.at += 1
        return members

    def key(self) -> str:
        match = _WORD.match(self.text, self.at) or _DIGITS.match(self.text, self.at)
        if match is None:
            raise self.stop("a key is computed")
        self.at = match.end()
        return match.group()

    def array(self, pointer: Pointer | None, depth: int) -> list[JsonValue]:
        items: list[JsonValue] = []
        self.at += 1
        while self.skip() != "]":
            if self.text.startswith("...", self.at):
                self.at += 3
                other = self.value(None, depth)
                if not isinstance(other, list):
                    raise self.stop("it spreads something else than an array")
                items += other
            else:
                here = None if pointer is None else (*pointer, len(items))
                if here is not None:
                    self.lines[here] = self.line()
                value = self.value(here, depth)
                items.append(None if isinstance(value, _Undefined) else value)
            if self.skip() == ",":
                self.at += 1
            elif self.skip() != "]":
                raise self.stop("it is computed")
        self.at += 1
        return items

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.stop("a string is not closed")
        body: str = match[match.lastgroup or 0]
        if match.lastgroup == "template" and "${" in body.replace("\\$", ""):
            raise self.stop("a template has ${...}")
        if "\\" in body:
            body = _ESCAPE.sub(_unescaped, body)
            try:  # escapes of two halves make one character
                body = body.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise self.stop("a text has a lone surrogate") from None
        value = plain(body, self.line())
        self.at = match.end()
        assert isinstance(value, str)
        return value

    def number(self, match: re.Match[str]) -> JsonValue:
        digits = match.group().replace("_", "")
        self.at = match.end()
        if self.text[self.at : self.at + 1].isalnum():
            raise self.stop("it is no number that JSON can carry")
        try:
            is_whole = digits.lstrip("+-").isdigit() or digits.lstrip("+-")[1:2] in "xXoObB"
            return plain(int(digits, 0) if is_whole else float(digits), self.line())
        except ValueError:
            raise self.stop("it is no number that JSON can carry") from None

    def word(self, match: re.Match[str], pointer: Pointer | None, depth: int) -> JsonValue:
        word = match.group()
        if word in ("true", "false", "null"):
            self.at = match.end()
            return {"true": True, "false": False, "null": None}[word]
        if word == "undefined":
            self.at = match.end()
            return _Undefined()
        if word == "Object" and self.text.startswith(".freeze(", match.end()):
            self.at = match.end() + len(".freeze")
            return self.operand(pointer, depth + 1)
        starts = self.whole.places.get(word, [])
        earlier = bisect_left(starts, self.start)
        if earlier == 0:
            raise self.stop(f"{word} is not a constant of this file")
        self.at = match.end()
        return _Literal(self.whole, starts[earlier - 1]).declared(pointer, depth + 1)

    def skip_type(self) -> None:
        """Skip ``as T`` or ``satisfies T``: everything up to what ends the value around it."""
        closing: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if closing and char == closing[-1]:
                closing.pop()
            elif char in _CLOSING:
                closing.append(_CLOSING[char])
            elif not closing and char in ",;)]}\n":
                return
            self.at += 1


def _unescaped(match: re.Match[str]) -> str:
    if code := match["long"] or match["short"] or match["byte"]:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else "\ud800"
    return _ESCAPED.get(match["other"], match["other"])
