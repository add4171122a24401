"""The immutable shelf: every tool under its key, and bare names resolved by their format's own rule.

A catalog is never changed, only replaced. It knows no files: what is on it was put there by ``loading``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, Protocol, overload

from toolcrib.errors import NEAR_MAX, UnknownTool, did_you_mean, nearest
from toolcrib.model import Namesakes, Reach, Role, Skill, Tool

_LOOKED_AT_MAX: Final = 8
"""How many are looked at, where some must not be named."""


class Shelf(Protocol):
    """Tools in canonical order, possibly decoded only when they are taken down."""

    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def roles(self) -> Sequence[Role]: ...
    @property
    def aliases(self) -> Sequence[tuple[int, str]]:
        """Further bare names, each with the place of its tool."""
        ...

    def tool(self, index: int) -> Tool: ...


class Tools(Sequence[Tool]):
    """The tools of a catalog as a sequence."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def __len__(self) -> int:
        return len(self._shelf.keys)

    @overload
    def __getitem__(self, index: int) -> Tool: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tool]: ...
    def __getitem__(self, index: int | slice) -> Tool | Sequence[Tool]:
        if isinstance(index, slice):
            return [self._shelf.tool(number) for number in range(*index.indices(len(self)))]
        return self._shelf.tool(range(len(self))[index])

    def __iter__(self) -> Iterator[Tool]:
        return map(self._shelf.tool, range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} tools>"


def is_within(reach: Reach, tool: Tool) -> bool:
    """Whether a caller of this reach may know of the tool at all."""
    return tool.effect in reach.effects and any(fnmatchcase(tool.key, each) for each in reach.tools)


class Catalog:
    """All that was loaded."""

    def __init__(self, shelf: Shelf, skills: Callable[[], Sequence[Skill]] = tuple) -> None:
        self._shelf = shelf
        self._skills = skills
        self._by_key: dict[str, int] | None = None
        self._by_name: dict[str, list[int]] | None = None

    @property
    def skills(self) -> tuple[Skill, ...]:
        return tuple(self._skills())

    @property
    def tools(self) -> Tools:
        """Every record, the uncallable ones too, in canonical order."""
        return Tools(self._shelf)

    @property
    def keys(self) -> Sequence[str]:
        return self._shelf.keys

    @property
    def formats(self) -> frozenset[str]:
        """The formats that have anything here."""
        return frozenset(key.partition(":")[0] for key in self._shelf.keys)

    @property
    def counted(self) -> int:
        """How many tools and parts there are; support items are neighbours, not tools."""
        return sum(1 for role in self._shelf.roles if role != Role.SUPPORT)

    def offered(self, reach: Reach | None = None) -> list[Tool]:
        """The tools that may be shown to a model, as far as the caller's reach goes."""
        offered = (take() for _key, take in self.entries())
        return [tool for tool in offered if reach is None or is_within(reach, tool)]

    def entries(self) -> Iterator[tuple[str, Callable[[], Tool]]]:
        """The keys of the tools that may be shown to a model, and what takes each down from the shelf."""
        shelf = self._shelf
        for number, (key, role) in enumerate(zip(shelf.keys, shelf.roles, strict=True)):
            if role == Role.TOOL:
                yield key, partial(shelf.tool, number)

    def find(self, name: str) -> Tool:
        """The tool of a key or a bare name. Raises UnknownTool for none and for several."""
        found = self.look(name)
        if found is None:
            raise self.unknown(name)
        return found

    def look(self, name: str) -> Tool | None:
        """Return the tool of a key or a bare name; None for none and for several."""
        by_key = self._keys()
        if name in by_key:
            return self._shelf.tool(by_key[name])
        found = self._named(name)
        return self._shelf.tool(found[0]) if len(found) == 1 else None

    def unknown(self, name: str, may: Callable[[Tool], bool] | None = None) -> UnknownTool:
        """Return the error for a name of no tool, or of several. ``may``: which tools it may name.

        Attack: a caller reads in a suggestion which tools there are that it must not know of.
        """
        keys, by_key = self._shelf.keys, self._keys()

        def shown(numbers: Sequence[int]) -> list[int]:
            return [number for number in numbers if may is None or may(self._shelf.tool(number))]

        several = [keys[number] for number in shown(self._named(name))]
        if len(several) > 1:
            message, hint = f"the name {name!r} belongs to {len(several)} tools", "name one by its key: "
            return UnknownTool(message, hint + ", ".join(several), near=several[:_LOOKED_AT_MAX])
        close = dict.fromkeys(several, "")
        for word in nearest(
            name, [*self._names(), *by_key], count=NEAR_MAX if may is None else _LOOKED_AT_MAX
        ):
            numbers = [by_key[word]] if word in by_key else self._named(word)
            for number in shown(numbers):
                # A tool's name and its key are alike: one of them is enough. A shared name calls none.
                close.setdefault(keys[number], word if len(numbers) == 1 else "")
        near = [word or key for key, word in close.items()][:NEAR_MAX]
        hint = did_you_mean(near) if near else "`toolcrib list` shows what there is"
        return UnknownTool(f"there is no tool {name!r}", hint, near=near)

    def _named(self, name: str) -> list[int]:
        """Return the tools that a bare name may mean, by the rule of their format.

        Attack: a server that calls its tool by the key of another's, to get its calls while that one is down.
        What looks like a key is one.
        """
        format, _, rest = name.partition(":")
        if "/" in rest and format in self.formats:
            return []
        found = self._names().get(name, [])
        if len(found) > 1:
            formats = {self._shelf.keys[number].partition(":")[0] for number in found}
            last = self._shelf.tool(found[-1])
            if len(formats) == 1 and last.habits.namesakes is Namesakes.LATER:
                return found[-1:]
        return found

    def _keys(self) -> dict[str, int]:
        if self._by_key is None:
            self._by_key = {key: number for number, key in enumerate(self._shelf.keys)}
        return self._by_key

    def _names(self) -> dict[str, list[int]]:
        if self._by_name is None:
            by_name: dict[str, list[int]] = {}
            for number, name in enumerate(self._shelf.names):
                by_name.setdefault(name, []).append(number)
            for number, alias in self._shelf.aliases:
                by_name.setdefault(alias, []).append(number)
            self._by_name = by_name
        return self._by_name
