"""A tool of one catalog, with what the stages of a call worked out from it.

``CatalogSnapshot`` makes one ``BoundTool`` for each tool that is called. It is dropped with its catalog, so
nothing in it is ever cleared or compared with another tool. Each field has one stage that reads and sets it:

    engine     digests, facts
    gate       terms, ground, vetting, locks, code, newest, remembered
    runtimes   environment, started, program, begins

A field is set in one step, so any thread may. What depends on files, a clock or the store carries what it was
worked out from, and its stage compares that before it uses the rest. This file works nothing out but digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from toolcrib.catalog import digests
from toolcrib.catalog.catalog import Catalog
from toolcrib.model import CallFacts, Tool
from toolcrib.records import Discreet

if TYPE_CHECKING:
    from toolcrib.catalog.digests import Held
    from toolcrib.catalog.unconfirmed import SharedCode
    from toolcrib.sandbox.ground import FoundGround
    from toolcrib.trust.pinning import LockNotes
    from toolcrib.trust.policy import Terms
    from toolcrib.trust.seen import SignedFile
    from toolcrib.trust.vetting import Vetting


class ToolDigests(Struct, frozen=True):
    """What identifies a tool in the records of its calls."""

    seen: str
    """Of what a model is told."""
    how: str
    """Of the invocation, without the files it names."""
    own_files: tuple[str, ...]
    """The files that a call runs."""


class ToolEnvironment(Discreet, frozen=True):
    """What a tool sees of the host's environment, under what it was granted."""

    HIDDEN: ClassVar = ("env", "secrets")

    granted: tuple[tuple[str, ...], tuple[str, ...]]
    """The permit's names: variables, and those whose values may come out of the vault."""
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    vaulted: tuple[str, ...]
    """Variables whose values are looked up in the vault for each start, and not kept."""


class StartedFiles(Struct, frozen=True):
    """What a tool's files mean for its start: the same until one of them changes."""

    held: tuple[Held | None, ...]
    own: tuple[str, ...]
    sealed: tuple[tuple[str, bytes], ...]
    known: Mapping[str, object]


class BoundTool:
    """A tool and what its calls so far worked out."""

    __slots__ = (
        "_digests", "begins", "code", "environment", "facts", "ground", "locks", "newest", "program",
        "remembered", "started", "terms", "tool", "vetting",
    )  # fmt: skip

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._digests: ToolDigests | None = None
        self.facts: dict[str, CallFacts] = {}
        """By door: what the last call was recorded with."""
        self.terms: Terms | None = None
        """Those of the last caller."""
        self.ground: FoundGround | None = None
        self.vetting: Vetting | None = None
        self.locks: LockNotes = {}
        self.code: SharedCode | None = None
        self.newest: tuple[SignedFile, ...] | None = None
        """The files that are known to be no older than what ran here."""
        self.remembered: tuple[SignedFile, ...] | None = None
        """The files that are kept in mind as what ran here last."""
        self.environment: ToolEnvironment | None = None
        self.started: StartedFiles | None = None
        self.program: tuple[str, Held] | None = None
        """The program that nothing spoke against, and its file as it was then."""
        self.begins: tuple[str, tuple[Held | None, ...], bytes] | None = None
        """A program, the files as they were, and the first line of the program."""

    def __repr__(self) -> str:
        return f"BoundTool({self.tool.key})"

    @property
    def digests(self) -> ToolDigests:
        """The tool's digests; worked out when first asked for, since a list needs none."""
        if self._digests is None:
            tool = self.tool
            self._digests = ToolDigests(
                digests.seen(tool), digests.how(tool.invocation), digests.own_files(tool)
            )
        return self._digests


class CatalogSnapshot:
    """A catalog and its version, with its bound tools. A call uses one to its end, whatever is loaded
    meanwhile."""

    def __init__(self, catalog: Catalog, version: str) -> None:
        self.catalog = catalog
        self.version = version
        self._by_name: dict[str, BoundTool] = {}
        self._by_key: dict[str, BoundTool] = {}

    def called(self, name: str) -> BoundTool | None:
        """The tool that was called by this name before."""
        return self._by_name.get(name)

    def bind(self, name: str, tool: Tool) -> BoundTool:
        """Keep the tool that this name leads to. Names that lead to a tool are as few as the catalog says."""
        bound = self._by_key.setdefault(tool.key, BoundTool(tool))
        return self._by_name.setdefault(name, bound)

    def look(self, tool: Tool) -> BoundTool:
        """The bound tool for one who has a record at hand. One that was never called is not kept: a list may
        be about ten thousand of them."""
        bound = self._by_key.get(tool.key)
        # A catalog that was read warm decodes a record each time, so that the same tool is another object.
        return bound if bound is not None and bound.tool == tool else BoundTool(tool)
