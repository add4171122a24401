"""A value with its address, so that every message names file, place and name.

Formats read declarations only through ``Node``; what is wrong goes into the ``Reader`` it came from, all at
once, and reading goes on. This module knows JSON kinds and addresses; it knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from toolcrib.errors import nearest
from toolcrib.jsontext import Duplicate, JsonValue, Pointer, place_text
from toolcrib.model import Document, Fix, Problem, Severity

SHOWN_CHARS_MAX: Final = 60
PROBLEMS_MAX: Final = 10_000
"""How many problems of one document are listed; a hostile file has one for each of its bytes."""
GUESSES_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 200
"""How much of a name goes into the address of a problem: a long one times many problems fills the memory."""

_KINDS: Final = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def kind_of(value: JsonValue) -> str:
    """The JSON name of a value's type."""
    return _KINDS.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """A value for a message: quoted and cut."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    by_folded = {fold(name): name for name in known}
    if fold(word) in by_folded:
        return by_folded[fold(word)]
    close = nearest(fold(word), [*by_folded], likeness=0.75)
    return by_folded[close[0]] if close else None


def fold(word: str) -> str:
    """Spellings that differ only in case, underscores and hyphens fold to one."""
    return word.replace("_", "").replace("-", "").casefold()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "x"?)``, or nothing."""
    meant = suggestion(word, known)
    return f' (did you mean "{meant}"?)' if meant is not None else ""


def key_of(format: str, scope: str, name: str) -> str:
    """``format:scope/name``. A slash in the scope is escaped: otherwise the tool ``b/c`` of ``a`` and the
    tool ``c`` of ``a/b`` would share a key, and with it whatever was granted to one of them."""
    return f"{format}:{scope.replace('%', '%25').replace('/', '%2F')}/{name}"


TOOLS_MAX: Final = 10_000
"""In one document. Attack: a file of tiny tools that takes two hundred times its size in memory."""

SECONDS_MAX: Final = 10.0**9


def seconds(value: int | float) -> float:
    """A number of seconds as a float. Attack: an integer of hundreds of digits, which no float can hold."""
    return float(min(value, SECONDS_MAX))


class Guesses:
    """Counts how often the word that was probably meant is looked for in one document.

    Attack: a file of unknown words, each of which is compared with every known one.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = GUESSES_MAX

    def more(self) -> bool:
        """Count one more search; return whether it may be made."""
        self._left -= 1
        return self._left >= 0


class Reader:
    """Collects what is wrong with one document."""

    __slots__ = ("errors", "guesses", "lines", "path", "problems")

    def __init__(self, document: Document, lines: Mapping[Pointer, int] | None = None) -> None:
        self.path = document.path
        self.lines = lines
        """Lines of places, where the syntax knows them; JSON places are looked up later."""
        self.problems: list[Problem] = []
        self.errors = 0
        """How many errors there are, listed or not."""
        self.guesses = Guesses()

    def node(self, value: JsonValue, pointer: Pointer = ()) -> Node:
        return Node(self, value, pointer)

    def add(
        self,
        code: str,
        message: str,
        *,
        severity: Severity = Severity.ERROR,
        pointer: Pointer | None = None,
        line: int | None = None,
        name: str | None = None,
        hint: str | None = None,
        fix: Fix | None = None,
    ) -> Problem:
        if line is None and pointer is not None and self.lines:
            line = self.line(pointer)
        address = _cut(pointer) if pointer is not None else None
        problem = Problem(
            code=code,
            message=message,
            path=self.path,
            severity=severity,
            pointer=address,
            line=line,
            name=name if name is None else name[:NAME_CHARS_MAX],
            hint=hint,
            fix=fix if address == pointer else None,
        )
        self.errors += severity is Severity.ERROR
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        elif len(self.problems) == PROBLEMS_MAX:
            self.problems.append(
                Problem(
                    code="source.too-many-problems",
                    message=f"more than {PROBLEMS_MAX:,} problems: the others are not listed",
                    path=self.path,
                    hint="mend those that are, and check again",
                )
            )
        return problem

    def line(self, pointer: Pointer) -> int | None:
        """The line of a place, or of the nearest place around it."""
        lines = self.lines or {}
        while pointer not in lines:
            if not pointer:
                return None
            pointer = pointer[:-1]
        return lines[pointer]

    @property
    def has_errors(self) -> bool:
        return self.errors > 0

    @property
    def is_full(self) -> bool:
        return len(self.problems) > PROBLEMS_MAX


def _cut(pointer: Pointer) -> Pointer:
    """The address, or that of the nearest place around it whose names are not too long."""
    for number, step in enumerate(pointer):
        if isinstance(step, str) and len(step) > NAME_CHARS_MAX:
            return pointer[:number]
    return pointer


class Node:
    """One value of a declaration, with its address and its reader."""

    __slots__ = ("kind", "pointer", "reader", "value")

    def __init__(self, reader: Reader, value: JsonValue, pointer: Pointer) -> None:
        self.reader = reader
        self.value = value
        self.pointer = pointer
        self.kind = _KINDS.get(type(value)) or kind_of(value)

    @property
    def place(self) -> str:
        """``tools[0].name``"""
        return place_text(self.pointer)

    def __contains__(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def get(self, key: str) -> Node | None:
        """The member, or None where it is absent; null is a member."""
        value = self.value
        if type(value) is dict and key in value:
            return Node(self.reader, value[key], (*self.pointer, key))
        return None

    def here(self, key: str) -> Node:
        """The address a member has or would have."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return Node(self.reader, value, (*self.pointer, key))

    def items(self) -> Iterator[Node]:
        """The items of an array; nothing for other kinds."""
        if isinstance(self.value, list):
            for number, item in enumerate(self.value):
                yield Node(self.reader, item, (*self.pointer, number))

    def members(self) -> Iterator[tuple[str, Node]]:
        """The members of an object; nothing for other kinds."""
        if isinstance(self.value, dict):
            for key, item in self.value.items():
                yield key, Node(self.reader, item, (*self.pointer, key))

    def did_you_mean(self, word: str, known: Iterable[str]) -> str:
        """`` (did you mean "x"?)``, or nothing; guessing is costly and ends where nobody reads it."""
        return "" if self.reader.is_full else did_you_mean(word, known)

    def say(
        self,
        code: str,
        message: str,
        *,
        severity: Severity = Severity.ERROR,
        name: str | None = None,
        hint: str | None = None,
        fix: Fix | None = None,
    ) -> Problem:
        """Report ``message`` word for word at this place."""
        return self.reader.add(
            code, message, severity=severity, pointer=self.pointer, name=name, hint=hint, fix=fix
        )

    def error(self, code: str, what: str, **more: object) -> Problem:
        """Report ``place: what`` as an error."""
        return self.say(code, self.with_place(what), **more)  # type: ignore[arg-type]

    def warn(self, code: str, what: str, **more: object) -> Problem:
        """Report ``place: what`` as a warning."""
        return self.say(code, self.with_place(what), severity=Severity.WARNING, **more)  # type: ignore[arg-type]

    def inform(self, code: str, what: str, **more: object) -> Problem:
        """Report ``place: what`` as information."""
        return self.say(code, self.with_place(what), severity=Severity.INFO, **more)  # type: ignore[arg-type]

    def with_place(self, what: str) -> str:
        place = self.place
        return f"{place}: {what}" if place else what


def below(duplicates: Iterable[Duplicate], pointer: Pointer) -> list[Duplicate]:
    """The repeated members at or below an address."""
    return [found for found in duplicates if found.pointer[: len(pointer)] == pointer]
