"""Read git's configuration as git reads it. Pure.

Sections with subsections, comments, quotes and escapes anywhere in a value, continued lines, keys without a
value, CRLF and a byte order mark. What git refuses is refused here as well, and never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_SPACE: Final = " \t\n\r"
_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_OF_KEYS: Final = _LETTERS | frozenset("0123456789-")
_ESCAPES: Final = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"'}


class Setting(NamedTuple):
    """One setting, by its full name: section and key in small letters, the subsection as it is written."""

    name: str
    value: str | None
    """None: the key has no value, which means true."""


def settings(content: bytes) -> Iterator[Setting]:
    """Return the settings of a file in their order. Raises ValueError where git refuses it."""
    return _Reader(content).settings()


class _Reader:
    def __init__(self, content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        if "\0" in text:  # git ends a value there, and its versions differ in the rest
            self._at = self._text.index("\0")
            raise self._bad()

    def settings(self) -> Iterator[Setting]:
        section = ""
        while not self._is_at_end():
            char = self._next()
            if char in _SPACE:
                continue
            if char in "#;":
                self._skip_line()
            elif char == "[":
                section = f"{self._section()}."
            elif char in _LETTERS:
                key, value = self._key_and_value(char)
                yield Setting(section + key, value)
            else:
                raise self._bad()

    def _next(self) -> str:
        """The next character; the file ends with a line end, whether one is written or not."""
        char = self._text[self._at] if self._at < len(self._text) else "\n"
        self._at += 1
        return char

    def _is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def _bad(self) -> ValueError:
        line = self._text.count("\n", 0, max(self._at - 1, 0)) + 1
        return ValueError(f"line {line} is no configuration of git")

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _section(self) -> str:
        name: list[str] = []
        while not self._is_at_end():
            char = self._next()
            if char == "]" and name:
                return "".join(name).lower()
            if char in " \t\r":
                return f"{''.join(name).lower()}.{self._subsection()}"
            if char not in _OF_KEYS and char != ".":
                break
            name.append(char)
        raise self._bad()

    def _subsection(self) -> str:
        char = self._next()
        while char in " \t\r":
            char = self._next()
        name: list[str] = []
        if char == '"':
            while (char := self._next()) != '"':
                if char == "\\":
                    char = self._next()
                if char == "\n":
                    raise self._bad()
                name.append(char)
            if self._next() == "]":
                return "".join(name)
        raise self._bad()

    def _key_and_value(self, first: str) -> tuple[str, str | None]:
        key = [first]
        while (char := self._next()) in _OF_KEYS:
            key.append(char)
        while char in " \t":
            char = self._next()
        if char not in "=\n":
            raise self._bad()
        return "".join(key).lower(), self._value() if char == "=" else None

    def _value(self) -> str:
        value: list[str] = []
        is_quoted = False
        end = 0  # what follows is white space, which does not count at the end
        while (char := self._next()) != "\n":
            if char in _SPACE and not is_quoted:
                if value:
                    value.append(char)
                continue
            if char in "#;" and not is_quoted:
                self._skip_line()
                continue
            if char == '"':
                is_quoted = not is_quoted
            elif char != "\\":
                value.append(char)
            elif (char := self._next()) in _ESCAPES:
                value.append(_ESCAPES[char])
            elif char != "\n":
                raise self._bad()
            end = len(value)
        if is_quoted:
            raise self._bad()
        return "".join(value[:end])
