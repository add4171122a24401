"""JSON as text: strict reading with positions, canonical writing, digests.

Every byte from outside comes through ``read``: duplicate keys are reported with their place, and everything
that two readers could understand differently (NaN, lone surrogates, NUL, byte-order marks, other encodings,
too deep, too long, too many values) is refused with line and column. What we wrote ourselves goes through
``loads_own``.

This module knows nothing of files or schemas. Nothing lies above it; everything may use it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from typing import Any, Final, TypeAlias

import orjson
from msgspec import Struct

JsonValue: TypeAlias = Any
"""``None | bool | int | float | str | list | dict``; precise types live where values are read."""
JsonObject: TypeAlias = dict[str, Any]
Pointer: TypeAlias = tuple[str | int, ...]

DEPTH_MAX = 100
VALUES_MAX = 100_000
"""How many values a document may hold: one that takes two bytes of text costs a reader hundreds."""
INTEGER_DIGITS_MAX = 4300


class Defect(Struct, frozen=True):
    """Why a text cannot be read, and where (1-based)."""

    message: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class Duplicate(Struct, frozen=True):
    """A member name that an object repeats; ``pointer`` leads to the object."""

    pointer: Pointer
    key: str
    line: int


class Parsed(Struct, frozen=True):
    """A strict reading: the value, or the defect that stopped it.

    Repeated members are left out of ``value`` altogether, never chosen between: ``duplicates`` names them.
    """

    value: JsonValue = None
    defect: Defect | None = None
    duplicates: tuple[Duplicate, ...] = ()


class Span(Struct, frozen=True):
    """Where a value stands in its text: offsets in characters, line 1-based; the key's too, for members."""

    line: int
    start: int
    end: int
    key_start: int | None = None
    key_end: int | None = None


# -- strict reading -----------------------------------------------------------------------------------------


_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_DIGITS = b"0" * 16
_TELLING_ESCAPE = re.compile(rb"\\u00(?:00|3[aA])")


def read(
    content: bytes, *, depth_max: int = DEPTH_MAX, values_max: int = VALUES_MAX, allow_nul: bool = False
) -> Parsed:
    """Read one JSON document strictly. Never raises, whatever the bytes.

    ``allow_nul``: an escaped NUL in a string is data, as in what a tool answers. Where names and texts become
    arguments, paths or declarations it is refused, because the next reader may end there.
    """
    value = _quick(content, depth_max, values_max)
    if value is not _DOUBTFUL:
        return Parsed(value)
    text = decode(content)
    if isinstance(text, Defect):
        return Parsed(defect=text)
    careful = _Careful(text, depth_max, values_max)
    careful.allow_nul = allow_nul
    return careful.document()


_DOUBTFUL: Final = object()


def _quick(content: bytes, depth_max: int, values_max: int = VALUES_MAX) -> JsonValue:
    """The value of a text that is beyond doubt, at the speed of orjson.

    orjson refuses what we refuse except for: repeated names (the last wins), integers beyond 64 bits (they
    become floats), NUL, too much depth and too many values. Any sign of those sends the text to the careful
    reader, whose verdict is the one that counts. Repeated names show when the value is written again: it then
    has fewer colons than the text, since each member has exactly one outside of strings, and the colons
    inside strings stay the same as long as none of them is escaped.
    """
    if _has_long_digits(content) or (b"\\u00" in content and _TELLING_ESCAPE.search(content)):
        return _DOUBTFUL
    try:
        value = orjson.loads(content)
        written = orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # it reads deeper than it writes
        return _DOUBTFUL
    if written.count(b":") != content.count(b":"):
        return _DOUBTFUL
    brackets = content.count(b"[") + content.count(b"{")
    # Before each value stands a comma or a bracket, except for the root.
    if brackets > depth_max or brackets + content.count(b",") >= values_max:
        return value if _within(value, depth_max, values_max) else _DOUBTFUL
    return value


def _has_long_digits(content: bytes) -> bool:
    """Whether an integer beyond 64 bits may be in the text; a tenth of what a regular expression costs."""
    return _LONG_DIGITS in content.translate(_DIGITS_AS_ZEROS)


def _within(value: JsonValue, depth_max: int, values_max: int) -> bool:
    level = [value]
    count = 0
    for _ in range(depth_max + 1):
        count += len(level)
        containers = [item for item in level if type(item) is dict or type(item) is list]
        if not containers or count > values_max:
            return count <= values_max
        level = [below for item in containers for below in (item.values() if type(item) is dict else item)]
    return False


def is_deeper(value: object, levels: int) -> bool:
    """Whether lists and objects lie in each other more than so many levels deep; one in itself does.

    What stands in several places is followed once for each level, so that it cannot multiply.
    """
    level: list[object] = [value]
    for _ in range(levels + 1):
        found = {id(item): item for item in level if isinstance(item, (dict, list, tuple))}
        if not found:
            return False
        level = [
            below for item in found.values() for below in (item.values() if isinstance(item, dict) else item)
        ]
    return True


def decode(content: bytes) -> str | Defect:
    """UTF-8 without a byte-order mark, or the defect."""
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return Defect("the file begins with a byte-order mark; save it as UTF-8 without one", 1, 1)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        return Defect(f"not UTF-8 (byte 0x{content[error.start]:02x})", line, column)


class _Stop(Exception):
    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


_LINE_END = re.compile("\n")
_SPACE = re.compile(r"[ \t\n\r]+")
_CHUNK = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NUMBER_GOES_ON = re.compile(r"[0-9.]")
_WORD = re.compile(r"[A-Za-z_+-][A-Za-z0-9_.+-]*")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")


class _Careful:
    """A reader that knows where it is: slower, exact about places, and the last word on what is allowed."""

    def __init__(self, text: str, depth_max: int, values_max: int = VALUES_MAX) -> None:
        self.text = text
        self.depth_max = depth_max
        self.values_max = values_max
        self.values = 0
        self.allow_nul = False
        self.duplicates: list[Duplicate] = []
        self.spans: dict[Pointer, Span] | None = None
        self.wanted: Set[Pointer] | None = None
        """The places to look up; None: all of them."""
        self.line_ends: list[int] | None = None

    def document(self) -> Parsed:
        try:
            start = self.skip(0)
            if start >= len(self.text):
                raise _Stop("the file is empty", start)
            value, end = self.value(start, ())
            end = self.skip(end)
            if end < len(self.text):
                raise _Stop(f"unexpected text after the end of the value (got {self.seen(end)})", end)
        except _Stop as stop:
            line, column = self.position(stop.at)
            return Parsed(defect=Defect(stop.message, line, column))
        return Parsed(value, duplicates=tuple(self.duplicates))

    def position(self, at: int) -> tuple[int, int]:
        return self.line(at), at - (self.text.rfind("\n", 0, at) + 1) + 1

    def line(self, at: int) -> int:
        if self.line_ends is None:
            self.line_ends = [match.start() for match in _LINE_END.finditer(self.text)]
        return bisect_left(self.line_ends, at) + 1

    def seen(self, at: int) -> str:
        return "the end of the file" if at >= len(self.text) else repr(self.text[at])

    def skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match is not None else at

    def value(self, at: int, pointer: Pointer, key: tuple[int, int] | None = None) -> tuple[JsonValue, int]:
        text = self.text
        first = text[at] if at < len(text) else ""
        self.values += 1
        if self.values > self.values_max:
            raise _Stop(f"more than {self.values_max:,} values", at)
        value: JsonValue
        if first == '"':
            value, end = self.string(at)
        elif first == "{":
            value, end = self.object(at, pointer)
        elif first == "[":
            value, end = self.array(at, pointer)
        elif first and first in "-0123456789":
            value, end = self.number(at)
        else:
            value, end = self.word(at)
        if (
            self.spans is not None
            and (self.wanted is None or pointer in self.wanted)
            and pointer not in self.spans
        ):
            self.spans[pointer] = Span(self.line(at), at, end, *(key or (None, None)))
        return value, end

    def word(self, at: int) -> tuple[JsonValue, int]:
        match = _WORD.match(self.text, at)
        word = match.group() if match else ""
        if word in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[word], at + len(word)
        if word in ("NaN", "Infinity", "+Infinity"):
            raise _Stop(f"{word} is not a JSON number", at)
        raise _Stop(f"expected a value (got {self.seen(at)})", at)

    def number(self, at: int) -> tuple[JsonValue, int]:
        match = _NUMBER.match(self.text, at)
        if match is None:
            if self.text.startswith("-Infinity", at):
                raise _Stop("-Infinity is not a JSON number", at)
            raise _Stop("expected a number after '-'", at)
        end = match.end()
        if _NUMBER_GOES_ON.match(self.text, end):
            raise _Stop("not a JSON number (a leading zero or a bare point)", at)
        if match.group(1) or match.group(2):
            number = float(match.group())
            if math.isinf(number):
                raise _Stop("the number is too large", at)
            return number, end
        if len(match.group().lstrip("-")) > INTEGER_DIGITS_MAX:
            raise _Stop(f"the integer has more than {INTEGER_DIGITS_MAX} digits", at)
        try:
            return int(match.group()), end
        except ValueError:  # the host has set Python's own limit lower
            raise _Stop("the integer has too many digits", at) from None

    def string(self, at: int) -> tuple[str, int]:
        text = self.text
        parts: list[str] = []
        here = at + 1
        while True:
            match = _CHUNK.match(text, here)
            assert match is not None
            parts.append(match.group())
            here = match.end()
            if here >= len(text):
                raise _Stop("the string is not closed", at)
            char = text[here]
            if char == '"':
                return "".join(parts), here + 1
            if char != "\\":
                raise _Stop(f"a control character stands in a string (0x{ord(char):02x}); escape it", here)
            escaped, here = self.escape(here)
            parts.append(escaped)

    def escape(self, at: int) -> tuple[str, int]:
        text = self.text
        char = text[at + 1 : at + 2]
        if char != "u":
            if char not in _ESCAPES or not char:
                raise _Stop(f"unknown escape in a string (got {char!r})", at)
            return _ESCAPES[char], at + 2
        code = self.hex4(at)
        end = at + 6
        if code == 0 and not self.allow_nul:
            raise _Stop("a NUL character (\\u0000) is not allowed", at)
        if 0xD800 <= code < 0xDC00 and text.startswith("\\u", end):
            low = self.hex4(end)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), end + 6
        if 0xD800 <= code < 0xE000:
            raise _Stop(f"a lone surrogate (\\u{code:04x}) is not a character", at)
        return chr(code), end

    def hex4(self, at: int) -> int:
        match = _HEX4.match(self.text, at + 2)
        if match is None:
            raise _Stop("\\u needs four hexadecimal digits", at)
        return int(match.group(), 16)

    def array(self, at: int, pointer: Pointer) -> tuple[list[JsonValue], int]:
        self.deeper(at, pointer)
        items: list[JsonValue] = []
        here = self.skip(at + 1)
        if self.text.startswith("]", here):
            return items, here + 1
        while True:
            value, here = self.value(here, (*pointer, len(items)))
            items.append(value)
            here = self.skip(here)
            if self.text.startswith("]", here):
                return items, here + 1
            if not self.text.startswith(",", here):
                raise _Stop(f"expected ',' or ']' (got {self.seen(here)})", here)
            comma, here = here, self.skip(here + 1)
            if self.text.startswith("]", here):
                raise _Stop("a comma stands before ']'; remove it", comma)

    def object(self, at: int, pointer: Pointer) -> tuple[JsonObject, int]:
        self.deeper(at, pointer)
        members: JsonObject = {}
        repeated: set[str] = set()
        here = self.skip(at + 1)
        if self.text.startswith("}", here):
            return members, here + 1
        while True:
            if not self.text.startswith('"', here):
                raise _Stop(f"expected a key in double quotes (got {self.seen(here)})", here)
            key_start = here
            key, here = self.string(here)
            key_end = here
            here = self.skip(here)
            if not self.text.startswith(":", here):
                raise _Stop(f"expected ':' after the key (got {self.seen(here)})", here)
            value, here = self.value(self.skip(here + 1), (*pointer, key), (key_start, key_end))
            if key in members or key in repeated:
                repeated.add(key)
                members.pop(key, None)
                self.duplicates.append(Duplicate(pointer, key, self.line(key_start)))
            else:
                members[key] = value
            here = self.skip(here)
            if self.text.startswith("}", here):
                return members, here + 1
            if not self.text.startswith(",", here):
                raise _Stop(f"expected ',' or '}}' (got {self.seen(here)})", here)
            comma, here = here, self.skip(here + 1)
            if self.text.startswith("}", here):
                raise _Stop("a comma stands before '}'; remove it", comma)

    def deeper(self, at: int, pointer: Pointer) -> None:
        if len(pointer) >= self.depth_max:
            raise _Stop(f"nested more than {self.depth_max} levels deep", at)


def locate(text: str, wanted: Set[Pointer] | None = None) -> dict[Pointer, Span]:
    """Where the values of a JSON text stand, or the ``wanted`` ones; as far as the text can be read."""
    careful = _Careful(text, DEPTH_MAX)
    careful.spans = {}
    careful.wanted = wanted
    careful.document()
    return careful.spans


# -- addresses ----------------------------------------------------------------------------------------------


def pointer_text(pointer: Pointer) -> str:
    """RFC 6901: ``/tools/0/name``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in pointer)


def place_text(pointer: Pointer) -> str:
    """For people: ``tools[0].name``; a long name is cut, because every place below it repeats it."""
    text = ""
    for step in pointer:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if len(step) <= _NAME_CHARS_MAX else step[: _NAME_CHARS_MAX - 1] + "…"
            text += f".{name}" if text else name
    return text


_NAME_CHARS_MAX: Final = 60


# -- writing ------------------------------------------------------------------------------------------------


def compact(value: JsonValue) -> bytes:
    """Compact UTF-8 that keeps key order."""
    try:
        # A copy, because orjson's own result keeps the four kilobytes it was written into.
        return b"%b" % orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


ONLY_PLAIN: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def plain(value: object) -> bytes:
    """A program's own value as JSON. Raises TypeError for anything that JSON has no form for."""
    try:
        return orjson.dumps(value, option=ONLY_PLAIN)
    except TypeError as error:
        if "Integer" not in str(error):
            raise
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def loads_own(text: bytes) -> JsonValue:
    """Read what ``compact`` wrote. Not for bytes from outside."""
    if _has_long_digits(text):  # orjson would turn an integer beyond 64 bits into a float
        return json.loads(text)
    return orjson.loads(text)


def canonical(value: JsonValue) -> bytes:
    """RFC 8785 (JSON Canonicalization Scheme)."""
    return "".join(_canonical(value)).encode("utf-8")


def digest(value: JsonValue) -> str:
    """``sha256:`` and the hexadecimal digest of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def _canonical(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for number, key in enumerate(sorted(value, key=_utf16_order)):
            yield ("," if number else "") + json.dumps(key, ensure_ascii=False) + ":"
            yield from _canonical(value[key])
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield from _canonical(item)
        yield "]"
    elif isinstance(value, float):
        yield _ecmascript_number(value)
    else:
        yield json.dumps(value, ensure_ascii=False)


def _utf16_order(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _ecmascript_number(value: float) -> str:
    """A double as ECMAScript prints it: the shortest digits, a point between 1e-7 and 1e21."""
    if math.isnan(value) or math.isinf(value):
        raise ValueError("NaN and infinities have no JSON form")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)  # where the point stands, counted from the first digit
    digits = whole + fraction
    leading_zeros = len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    point -= leading_zeros
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


# -- looking around -----------------------------------------------------------------------------------------


def walk(value: JsonValue, pointer: Pointer = ()) -> Iterator[tuple[Pointer, JsonValue]]:
    """Every value with its address, outermost first."""
    yield pointer, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*pointer, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from walk(item, (*pointer, number))


def at(value: JsonValue, pointer: Iterable[str | int]) -> JsonValue:
    """The value at an address; KeyError or IndexError where there is none."""
    for step in pointer:
        value = value[step]
    return value
