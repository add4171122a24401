"""What a docstring says: the description, and a text for each parameter. Google, NumPy and reST styles.

Only what people write about parameters is looked for; types in docstrings are not read, because annotations
say them. Nothing here is strict: what is in no known style is description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import cleandoc
from typing import Final

from msgspec import Struct

_PARAMETERS: Final = frozenset(
    {
        "args", "arguments", "attributes", "keyword args", "keyword arguments", "other parameters",
        "parameters", "params",
    }
)  # fmt: skip
_DROPPED: Final = frozenset({"raises", "returns", "see also", "warns", "yields"})
_GOOGLE_ENTRY: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:(?:\s+(.*))?$")
_NUMPY_ENTRY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?()$")
_BLANKS: Final = re.compile(r"\n{3,}")
_FIELD: Final = re.compile(r":(\w+)((?:\s+[^:]*)?):\s*(.*)$")
_PARAMETER_FIELDS: Final = frozenset(
    {"param", "parameter", "arg", "argument", "key", "keyword", "ivar", "cvar"}
)
_DROPPED_FIELDS: Final = frozenset(
    {"type", "return", "returns", "rtype", "raise", "raises", "except", "yield", "yields"}
)


class Docstring(Struct, frozen=True):
    """A docstring, taken apart."""

    description: str
    parameters: Mapping[str, str]


def read(text: str | None) -> Docstring:
    """Take a docstring apart. Never raises."""
    lines = cleandoc(text or "").splitlines()
    kept: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        section = _section(lines, at)
        field = _FIELD.match(lines[at])
        if section is not None:
            name, entry, body, at = section
            if name in _PARAMETERS:
                parameters |= _entries(entry, body)
        elif field is not None and field[1] in _PARAMETER_FIELDS | _DROPPED_FIELDS:
            body, at = _indented(lines, at + 1)
            words = field[2].split()
            if field[1] in _PARAMETER_FIELDS and words:
                parameters[words[-1].lstrip("*")] = _joined([field[3], *body])
        else:
            kept.append(lines[at])
            at += 1
    return Docstring(_BLANKS.sub("\n\n", "\n".join(kept)).strip(), parameters)


def _section(lines: list[str], at: int) -> tuple[str, re.Pattern[str], list[str], int] | None:
    """A section that begins here: its name, what its entries look like, its lines without their indentation,
    and where it ends."""
    line = lines[at]
    under = lines[at + 1] if at + 1 < len(lines) else ""
    name = line.strip().rstrip(":").lower()
    if line[:1].isspace() or name not in _PARAMETERS | _DROPPED:
        return None
    if len(under) >= 3 and not under.strip("-"):
        end = at + 2
        while end < len(lines) and not _is_underlined(lines, end):
            end += 1
        return name, _NUMPY_ENTRY, lines[at + 2 : end], end
    body, end = _indented(lines, at + 1)
    if not line.rstrip().endswith(":") or not any(map(str.strip, body)):
        return None
    return name, _GOOGLE_ENTRY, cleandoc("\n".join(["", *body])).splitlines(), end


def _is_underlined(lines: list[str], at: int) -> bool:
    under = lines[at + 1] if at + 1 < len(lines) else ""
    return (
        bool(lines[at].strip()) and not lines[at][:1].isspace() and len(under) >= 3 and not under.strip("-")
    )


def _indented(lines: list[str], at: int) -> tuple[list[str], int]:
    """The lines from here on that are indented or blank; blank ones at the end are not among them."""
    end = last = at
    while end < len(lines) and (not lines[end].strip() or lines[end][:1].isspace()):
        end += 1
        if lines[end - 1].strip():
            last = end
    return lines[at:last], last


def _entries(entry: re.Pattern[str], body: list[str]) -> dict[str, str]:
    """The parameters of a section: a line that is not indented begins one."""
    found: dict[str, str] = {}
    at = 0
    while at < len(body):
        begun = entry.match(body[at])
        more, end = _indented(body, at + 1)
        if begun is not None:
            text = _joined([begun[2] or "", *more])
            found |= {name.strip(" *"): text for name in begun[1].split(",") if text}
        at = max(end, at + 1)
    return found


def _joined(lines: list[str]) -> str:
    """One paragraph: docstrings are wrapped for people's editors, not for models."""
    return " ".join(" ".join(lines).split())
