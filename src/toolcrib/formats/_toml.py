"""TOML as text: read within bounds, because the library's reader has none of its own, and no positions.

Knows no format and no file; the rye format and the host's configuration read their TOML here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator
from typing import Any, Final

from toolcrib.jsontext import DEPTH_MAX, JsonObject

TOML_BYTES_MAX: Final = 100_000
_DOTS_MAX: Final = 1_000
_LOOKED_STEPS_MAX: Final = 10 * TOML_BYTES_MAX
_TOKENS: Final = (
    r'''"""(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[][{}\n]|\Z'''
)
"""What decides where a statement of TOML ends: texts, comments, brackets, and the ends of lines."""

_PLACED: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
"""How the library ends what it says."""

_Place = tuple[str | int, ...]


class Broken(ValueError):
    """A text that is no TOML, with the place where that shows (1-based)."""

    def __init__(self, message: str, what: str, line: int, column: int) -> None:
        super().__init__(message)
        self.what = what
        """The message without its place."""
        self.line = line
        self.column = column


def read(text: str) -> JsonObject:
    """Return the value of a TOML text. Raises Broken, never anything else.

    Attack: brackets nested until the reader's stack is full, or keys of so many parts that it takes hours to
    put them together. Counting bounds both from above.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > TOML_BYTES_MAX:
        what = f"it has {size:,} bytes, more than the {TOML_BYTES_MAX:,} a TOML file may have"
        raise Broken(what, what, 1, 1)
    too_deep = _too_deep(text)
    what = f"nested more than {DEPTH_MAX} levels deep"
    if too_deep is not None:
        raise Broken(what, what, *too_deep)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Broken(what, what, 1, 1) from None
    except ValueError as error:
        placed = _PLACED.fullmatch(str(error))
        if placed is None:
            raise Broken(str(error), str(error), 1, 1) from None
        line, column = placed[2], placed[3]
        if line is None:
            *above, last = text.split("\n")
            line, column = len(above) + 1, len(last) + 1
        raise Broken(str(error), placed[1], int(line), int(column)) from None


def _too_deep(text: str) -> tuple[int, int] | None:
    """Return the line and column at which a text is nested too deep; None: nowhere."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _DOTS_MAX:
            return number, 1
    if max(text.count("["), text.count("{")) <= DEPTH_MAX // 2:
        return None  # too few to be too deep
    depth = 0
    for at, char in enumerate(text):
        if char in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        elif char in "]}":
            depth -= 1
    return None


# -- where something stands ---------------------------------------------------------------------------------


def lines_of(text: str, wanted: Collection[str]) -> dict[str, int]:
    """The lines on which places (``limits.zygotes``, ``source[0].path``) begin in a text that ``read`` takes,
    as far as they can be told for sure.

    It goes through the text once more, and reads anew only the statements that may hold a place.
    """
    found: dict[str, dict[_Place, int | None]] = {}
    above = {where[: end.start()] for where in wanted for end in re.finditer(r"[.\[]", where)}
    steps = 0
    try:
        for place, line in _places(text.replace("\r\n", "\n"), above):
            steps += len(place)
            # Attack: a long list below a name of a thousand parts, each of whose items is as deep.
            if steps > _LOOKED_STEPS_MAX:
                return {}
            where = _written(place)
            if where in wanted:
                found.setdefault(where, {}).setdefault(place, line)
    except (ValueError, RecursionError):  # a text that ``read`` does not take
        return {}
    # Keys may hold dots and brackets, so that two places are written alike.
    alone = {where: line for where, places in found.items() if len(places) == 1 for line in places.values()}
    return {where: line for where, line in alone.items() if line is not None}


def _written(place: _Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def _places(text: str, above: Collection[str]) -> Iterator[tuple[_Place, int | None]]:
    """Every place, and its line where that is sure; of keys only those in tables ``above`` what is wanted. Of
    a statement that goes on over several lines, only the first word of its key is sure to be on the first."""
    table: _Place = ()
    counts: dict[_Place, int] = {}
    is_above = True
    for line, statement in _statements(text):
        if not statement.startswith("["):
            if is_above:
                value = tomllib.loads(statement)
                is_sure = "\n" not in statement
                for place in _inside(value):
                    yield (*table, *place), line if is_sure or len(place) == 1 else None
            continue
        table = ()
        here: Any = tomllib.loads(statement)
        while isinstance(here, dict) and here:
            ((name, here),) = here.items()
            table = (*table, name)
            yield table, line
            if isinstance(here, list):  # the last word of a [[header]]
                counts[table] = counts.get(table, 0) + 1
            if table in counts:
                table = (*table, counts[table] - 1)
                yield table, line
        is_above = _written(table) in above


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header or key with its value, and its first line; it ends with a line on which nothing is open."""
    start, line, first, depth = 0, 1, 1, 0
    for token in re.finditer(_TOKENS, text, re.DOTALL):
        word = token[0]
        if word in ("[", "{"):
            depth += 1
        elif word in ("]", "}"):
            depth -= 1
        line += word.count("\n")
        if word in ("\n", "") and depth <= 0:
            statement = text[start : token.start()].strip(" \t")
            if statement and not statement.startswith("#"):
                yield first, statement
            start, first, depth = token.end(), line, 0
    if depth:
        raise ValueError("no TOML")


def _inside(value: Any) -> Iterator[_Place]:
    """Every place in a value."""
    waiting: list[tuple[_Place, Any]] = [((), value)]
    while waiting:
        place, here = waiting.pop()
        if place:
            yield place
        if isinstance(here, dict):
            waiting.extend(((*place, name), item) for name, item in here.items())
        elif isinstance(here, list):
            waiting.extend(((*place, number), item) for number, item in enumerate(here))
