"""YAML as text: strict reading with line numbers, for every format that has YAML declarations.

Values are built in one pass over libyaml's events; no loader of PyYAML constructs anything, so no tag can
ever name a Python object. What two readers could understand differently, or what only serves to exhaust the
reader (alias bombs, endless nesting), is refused with line and column; so are merge keys (``<<``), which YAML
1.2 does not have. Scalars mean what PyYAML's safe
loader takes them to mean, because declarations in use rely on it, with two exceptions: ``1:30`` and
``2026-01-31`` stay strings, since JSON has neither sexagesimal numbers nor dates.

This module knows no format and no file. ``jsontext`` lies above it and speaks of the same things.
"""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import Any, Final

import yaml
from msgspec import Struct, field
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from toolcrib.jsontext import (
    DEPTH_MAX,
    INTEGER_DIGITS_MAX,
    Defect,
    Duplicate,
    JsonObject,
    JsonValue,
    Pointer,
    decode,
)

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # PyYAML built without libyaml: the same events, some twenty times slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

NODES_MAX: Final = 10_000
TAG_DIRECTIVES_MAX: Final = 16

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NUMBER_STARTS: Final = frozenset("+-.0123456789")
_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(?:0b(?P<binary>[01_]+)|0x(?P<hex>[0-9a-fA-F_]+)|0(?P<octal>[0-7_]+)"
    r"|(?P<decimal>0|[1-9][0-9_]*))"
)
_FLOAT: Final = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BASES: Final = {"binary": 2, "octal": 8, "hex": 16}
_INTEGER_BITS_MAX: Final = 14_000  # below the decimal digits that Python will print
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UNPRINTABLE: Final = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)

_TAG_DIRECTIVE: Final = re.compile("(?:\\A|(?<=[\n\r\x85\u2028\u2029]))%TAG")  # after every line end of YAML
_CORE: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final = frozenset({"str", "int", "float", "bool", "null"})


class ParsedYaml(Struct, frozen=True):
    """A strict reading: the value, or the defect that stopped it.

    Repeated keys are left out of ``value`` altogether, never chosen between: ``duplicates`` names them.
    ``lines`` has the 1-based line of every place as written: a member's is that of its key. Places below
    an alias are not listed; their line is that of the alias.
    """

    value: JsonValue = None
    defect: Defect | None = None
    duplicates: tuple[Duplicate, ...] = ()
    lines: dict[Pointer, int] = field(default_factory=dict)


def read(
    content: bytes,
    *,
    nodes_max: int = NODES_MAX,
    depth_max: int = DEPTH_MAX,
    lines_depth_max: int = DEPTH_MAX,
    parser: Any = _Parser,
) -> ParsedYaml:
    """Read one YAML document strictly. Never raises, whatever the bytes; an empty document is null.

    Lines of places deeper than ``lines_depth_max`` are not kept: those of a long document take more memory
    than its values.
    """
    text = decode(content)
    if isinstance(text, Defect):
        return ParsedYaml(defect=text)
    directives = list(islice(_TAG_DIRECTIVE.finditer(text), TAG_DIRECTIVES_MAX + 1))
    if len(directives) > TAG_DIRECTIVES_MAX:
        # Attack: the parser compares each of them with all others.
        line = text.count("\n", 0, directives[-1].start()) + 1
        return ParsedYaml(defect=Defect(f"more than {TAG_DIRECTIVES_MAX} %TAG directives", line, 1))
    try:
        building = _Building(parser(content), nodes_max, depth_max, lines_depth_max)
        value = building.document()
    except _Stop as stop:
        return ParsedYaml(defect=Defect(stop.message, stop.line, stop.column))
    except yaml.MarkedYAMLError as error:
        return ParsedYaml(defect=_syntax_defect(error, text))
    except yaml.YAMLError:
        return ParsedYaml(defect=_character_defect(text))
    return ParsedYaml(value, duplicates=tuple(building.duplicates), lines=building.lines)


class _Stop(Exception):
    def __init__(self, message: str, event: Any) -> None:
        super().__init__(message)
        self.message = message
        self.line: int = event.start_mark.line + 1
        self.column: int = event.start_mark.column + 1


class _Building:
    """One pass over the events of one document."""

    __slots__ = (
        "anchors", "depth_max", "duplicates", "lines", "lines_depth_max", "next", "nodes", "nodes_max",
        "open_anchors",
    )  # fmt: skip

    def __init__(self, parser: Any, nodes_max: int, depth_max: int, lines_depth_max: int) -> None:
        self.next: Any = parser.get_event
        self.nodes = 0
        self.nodes_max = nodes_max
        self.depth_max = depth_max
        self.lines_depth_max = lines_depth_max
        self.anchors: dict[str, JsonValue] = {}
        self.open_anchors: set[str] = set()
        self.lines: dict[Pointer, int] = {}
        self.duplicates: list[Duplicate] = []

    def document(self) -> JsonValue:
        self.next()  # the start of the stream
        start = self.next()
        if type(start) is StreamEndEvent:
            return None
        event = self.next()
        self.lines[()] = event.start_mark.line + 1
        value = self.value(event, ())
        self.next()  # the end of the document
        after = self.next()
        if type(after) is DocumentStartEvent:
            raise _Stop("a second document begins here; a file holds one", after)
        return value

    def value(self, event: Any, pointer: Pointer) -> JsonValue:
        kind = type(event)
        if kind is AliasEvent:
            return self.alias(event, len(pointer))
        self.nodes += 1
        if self.nodes > self.nodes_max:
            raise self.too_many(event)
        if kind is ScalarEvent:
            value = _scalar(event)
            if event.anchor is not None:
                self.anchors[event.anchor] = value
            return value
        if len(pointer) >= self.depth_max:
            raise _Stop(f"nested more than {self.depth_max} levels deep", event)
        if event.tag is not None and event.tag != _CORE + ("map" if kind is MappingStartEvent else "seq"):
            raise _refused_tag(event)
        anchor = event.anchor
        if anchor is not None:
            self.open_anchors.add(anchor)
        value = self.mapping(pointer) if kind is MappingStartEvent else self.sequence(pointer)
        if anchor is not None:
            self.open_anchors.discard(anchor)
            self.anchors[anchor] = value
        return value

    def sequence(self, pointer: Pointer) -> list[JsonValue]:
        items: list[JsonValue] = []
        while type(event := self.next()) is not SequenceEndEvent:
            here = (*pointer, len(items))
            if len(here) <= self.lines_depth_max:
                self.lines[here] = event.start_mark.line + 1
            items.append(self.value(event, here))
        return items

    def mapping(self, pointer: Pointer) -> JsonObject:
        members: JsonObject = {}
        repeated: set[str] = set()
        while type(event := self.next()) is not MappingEndEvent:
            key = self.key(event)
            line = event.start_mark.line + 1
            here = (*pointer, key)
            if key == "<<" and type(event) is ScalarEvent and event.implicit[0]:
                # Attack: members that one reader merges and another does not see, a command among them.
                raise _Stop("the merge key << is not read: write out the members that it merges", event)
            value = self.value(self.next(), here)
            if key in members or key in repeated:
                repeated.add(key)
                members.pop(key, None)
                self.duplicates.append(Duplicate(pointer, key, line))
            else:
                members[key] = value
                if len(here) <= self.lines_depth_max:
                    self.lines[here] = line
        return members

    def key(self, event: Any) -> str:
        """A key as the text the author wrote: ``on`` and ``404`` name members, they are no values here."""
        if type(event) is AliasEvent:
            value = self.alias(event, 0)
            if not isinstance(value, str):
                raise _Stop("a key must be text (got an alias of something else)", event)
            return value
        self.nodes += 1
        if type(event) is not ScalarEvent:
            what = "a mapping" if type(event) is MappingStartEvent else "a list"
            raise _Stop(f"a key must be text (got {what})", event)
        if event.tag is not None or event.style == '"':
            _scalar(event)  # refuses what no text may hold
        if event.anchor is not None:
            self.anchors[event.anchor] = event.value
        text: str = event.value
        if not text and event.implicit[0]:
            raise _Stop("a key is missing before ':'", event)
        return text

    def alias(self, event: Any, depth: int) -> JsonValue:
        name = event.anchor
        if name in self.open_anchors:
            raise _Stop(f"the alias *{name} stands inside what it repeats", event)
        if name not in self.anchors:
            raise _Stop(f"the alias *{name} has no anchor before it", event)
        value = self.anchors[name]
        # Stops alias bombs: what an alias repeats is counted as if it were written out. Measuring costs
        # what is counted, so it is bounded by the same limit.
        size, height = _measure(value)
        self.nodes += size
        if self.nodes > self.nodes_max:
            raise self.too_many(event)
        if depth + height > self.depth_max:
            raise _Stop(f"nested more than {self.depth_max} levels deep", event)
        return value

    def too_many(self, event: Event) -> _Stop:
        return _Stop(f"more than {self.nodes_max} values, aliases written out", event)


def _measure(value: JsonValue) -> tuple[int, int]:
    """How many values and keys there are, and how deep containers nest."""
    if isinstance(value, dict):
        below = [_measure(item) for item in value.values()]
        return 1 + len(value) + sum(size for size, _ in below), 1 + max((h for _, h in below), default=0)
    if isinstance(value, list):
        below = [_measure(item) for item in value]
        return 1 + sum(size for size, _ in below), 1 + max((h for _, h in below), default=0)
    return 1, 0


# -- scalars ------------------------------------------------------------------------------------------------


def _scalar(event: Any) -> JsonValue:
    text: str = event.value
    if event.tag is not None:
        return _tagged(text, event)
    if event.implicit[0]:
        if text[:1] in _NUMBER_STARTS:
            return _number(text, event)
        return _WORDS.get(text, text)
    if event.style == '"':  # only escapes can bring these in
        if "\0" in text:
            raise _Stop("a NUL character is not allowed", event)
        if found := _SURROGATE.search(text):
            raise _Stop(f"a lone surrogate (\\u{ord(found.group()):04x}) is not a character", event)
    return text


def _number(text: str, event: Event) -> JsonValue:
    if text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0"):  # the common case
        return _integer(text, 10, event)
    if match := _INTEGER.fullmatch(text):
        kind = match.lastgroup or "decimal"
        digits = match[kind].replace("_", "")
        if not digits:
            return 0 if kind == "octal" else text
        return _integer(match["sign"] + digits, _BASES.get(kind, 10), event)
    if _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        if math.isinf(number):
            raise _Stop("the number is too large", event)
        return number
    if _NOT_FINITE.fullmatch(text):
        raise _Stop(f"{text} is not a number that JSON can carry; quote it if text is meant", event)
    return text


def _integer(text: str, base: int, event: Event) -> int:
    if len(text) <= INTEGER_DIGITS_MAX:
        number = int(text, base)
        if base == 10 or number.bit_length() <= _INTEGER_BITS_MAX:
            return number
    raise _Stop(f"the integer has more than {INTEGER_DIGITS_MAX} digits", event)


def _tagged(text: str, event: Any) -> JsonValue:
    """A scalar with one of the core tags; every other tag is refused, so none can construct anything."""
    name = event.tag.removeprefix(_CORE)
    if name == event.tag or name not in _SCALAR_TAGS:
        raise _refused_tag(event)
    if "\0" in text or _SURROGATE.search(text):
        raise _Stop("the text has a character that is not allowed", event)
    if name == "str":
        return text
    value = _number(text, event) if text[:1] in _NUMBER_STARTS else _WORDS.get(text, text)
    if name == "float" and type(value) is int and value.bit_length() < 1000:
        value = float(value)
    if {"int": int, "float": float, "bool": bool, "null": type(None)}[name] is not type(value):
        raise _Stop(f"not a value of the tag !!{name}", event)
    return value


def _refused_tag(event: Any) -> _Stop:
    tag = event.tag
    shown = "!!" + tag.removeprefix(_CORE) if tag.startswith(_CORE) else tag
    return _Stop(f"the tag {shown[:60]} is not allowed here; only plain values are read", event)


# -- defects ------------------------------------------------------------------------------------------------


def _syntax_defect(error: yaml.MarkedYAMLError, text: str) -> Defect:
    message = " ".join(part for part in (error.problem, error.context) if part) or "not YAML"
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    # At the end of the text libyaml points to a line that is not there; people look for the last one.
    written = text.rstrip().split("\n")
    if line > len(written):
        line, column = len(written), len(written[-1]) + 1
    return Defect(message, line, column)


def _character_defect(text: str) -> Defect:
    found = _UNPRINTABLE.search(text)
    if found is None:
        return Defect("not YAML", 1, 1)
    at = found.start()
    what = "a NUL character" if found.group() == "\0" else f"a control character (0x{ord(found.group()):02x})"
    return Defect(
        f"{what} is not allowed", text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
    )
