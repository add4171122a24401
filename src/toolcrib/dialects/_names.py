"""Names that a provider takes, and the way back.

A tool keeps its own name wherever the provider takes it. Otherwise each character that is refused becomes
``_``, a name that is too long is cut and ends in a short digest of the tool's key, and of two tools that
would share a name the later one gets that digest. The way back is a table, so it is exact; it is never
computed from the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from toolcrib.model import Tool

_DIGEST_CHARS: Final = 8


class NameRule(Struct, frozen=True, kw_only=True):
    """What a provider's tool names look like."""

    refused: re.Pattern[str]
    """One character that must not stand in a name."""
    first: re.Pattern[str]
    """What the first character must be."""
    length_max: int
    reserved: frozenset[str] = frozenset()
    """Names that the provider uses itself."""

    def legal(self, own: str, key: str) -> str:
        """A legal name for a tool of the name ``own``; other tools are not looked at."""
        name = self.refused.sub("_", own)
        if not self.first.match(name):
            name = "_" + name
        return name if len(name) <= self.length_max else self.marked(name, key)

    def marked(self, name: str, mark: str) -> str:
        """``name``, cut where necessary, with a digest of ``mark``."""
        digest = hashlib.sha256(mark.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
        return f"{name[: self.length_max - _DIGEST_CHARS - 1]}_{digest}"


class Given(Struct, frozen=True):
    """The name that a tool is declared under, and why it is not the obvious one."""

    name: str
    because: str = ""


def give_names(tools: Sequence[Tool], rule: NameRule) -> dict[str, Given]:
    """A distinct legal name for every tool, by key.

    Tools whose own name is legal come first, then the order of ``tools`` decides: so nobody can take away a
    legal name, and the answer depends on nothing but the tools.
    """
    return give_names_to({tool.key: tool.spoken or tool.name for tool in tools}, rule)


def give_names_to(own: Mapping[str, str], rule: NameRule) -> dict[str, Given]:
    """The same for tools of which only the keys and their own names are at hand."""
    wanted = {key: rule.legal(name, key) for key, name in own.items()}
    owners: dict[str, str] = {}
    given: dict[str, Given] = {}
    for key in sorted(wanted, key=lambda key: own[key] != wanted[key]):
        name = wanted[key]
        because = f"its name is longer than {rule.length_max} characters" if len(own[key]) > len(name) else ""
        mark = key
        while name in owners or name in rule.reserved:
            because = f'"{wanted[key]}" is the name of {owners.get(wanted[key], "a tool of the provider")}'
            name = rule.marked(wanted[key], mark)
            mark += "'"  # a digest that is taken as well: another one
        owners[name] = key
        given[key] = Given(name, because)
    return given
