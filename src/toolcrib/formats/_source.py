"""What can be read of a program without running it: names bound to literals, and where they stand.

The readers for Python, JavaScript and Bash return this one value. It knows no format: which names matter is
the caller's business. Nothing here decodes, parses or judges.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from toolcrib.jsontext import INTEGER_DIGITS_MAX, Defect, JsonObject, JsonValue, Pointer

PARTS_MAX: Final = 10_000
"""How many values one file may unfold to: names repeat names, so a short file can spell out a huge value."""
TEXT_MAX: Final = 1 << 20
"""How many characters may come of joining strings in one file."""
_INTEGER_BITS_MAX: Final = 14_000  # below the decimal digits that Python will print


class Unread(Struct, frozen=True):
    """A name whose value only running the program would tell, and why."""

    name: str
    line: int
    why: str


class SourceValues(Struct, frozen=True):
    """The wanted names of one program, by the author's spelling.

    ``lines`` has the 1-based line of every place; ``repeated`` the names that are bound more than once,
    with the line of the last one, which counts.
    """

    values: JsonObject = field(default_factory=dict)
    lines: dict[Pointer, int] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    repeated: tuple[tuple[str, int], ...] = ()
    defect: Defect | None = None
    refused: str | None = None
    """Why the text was not looked at, in a few words."""


class NotLiteral(Exception):
    """Raised inside the readers: a part that only running the program would tell."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


class Budget:
    """Stops a short file from unfolding without end: constants that double constants, again and again."""

    __slots__ = ("parts", "text")

    def __init__(self) -> None:
        self.parts = PARTS_MAX
        self.text = TEXT_MAX

    def part(self, line: int) -> None:
        self.parts -= 1
        if self.parts < 0:
            raise NotLiteral(f"it unfolds to more than {PARTS_MAX} values", line)

    def joined(self, text: str, line: int) -> str:
        self.text -= len(text)
        if self.text < 0:
            raise NotLiteral(f"its texts add up to more than {TEXT_MAX} characters", line)
        return text


def plain(value: JsonValue, line: int) -> JsonValue:
    """A literal, unless JSON could not carry it."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise NotLiteral("a text has a lone surrogate", line) from None
        if "\0" in value:
            raise NotLiteral("a text has a NUL character", line)
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _INTEGER_BITS_MAX:
            raise NotLiteral(f"an integer has more than {INTEGER_DIGITS_MAX} digits", line)
        return value
    if isinstance(value, float) and value - value == 0:  # neither infinite nor NaN
        return value
    raise NotLiteral(f"{type(value).__name__} is no JSON value", line)
