"""The composition root: builds the rooms, owns their lifetime, and hands them to a ``Workshop``.

Nothing is decided here. This is one of the three places that import late (by whole modules), so that opening
a workshop costs only what is used.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from toolwright.catalog import loading, sources
from toolwright.catalog.cache import Cache
from toolwright.catalog.catalog import Catalog, Tools
from toolwright.config import Config, Environment, current_folder, named_source
from toolwright.errors import UsageError
from toolwright.model import (
    Choice,
    Declared,
    DeclareOptions,
    Disabled,
    ProbeOutcome,
    Problem,
    Selected,
    Severity,
    Skill,
    Tool,
    ToolMode,
)

if TYPE_CHECKING:
    from toolwright.dialects import Dialect

ContextCheck = Callable[[Mapping[str, object]], object]


def open(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Config | None = None,
    *,
    config: Config | None = None,
    context_checks: Mapping[str, ContextCheck] | None = None,
    handlers: Mapping[str, object] | None = None,
    environment: Environment | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Workshop:
    """Open a workshop on a folder, a file, several of them, or a ``Config``.

    ``context_checks`` are the checks that capability groups name; ``handlers`` the host's own code for
    executors or groups. Both are only ever called by name, never looked up from a declaration. ``progress``
    is told how many documents of how many have been read.
    """
    surroundings = environment or Environment.read()
    cwd = current_folder()
    if isinstance(paths, Config):
        if config is not None:
            raise UsageError("two configurations were given", "hand over one Config")
        config, paths = paths, None
    if paths is None:
        named: list[str] = []
    elif isinstance(paths, (str, os.PathLike)):
        named = [os.fspath(paths)]
    else:
        named = [os.fspath(path) for path in paths]
    if config is None:
        config = Config(state=surroundings.state)
    if named:
        from dataclasses import replace

        config = replace(config, sources=tuple(named_source(text, cwd) for text in named))
    elif not config.sources:
        raise UsageError("nothing to open", "name a folder, a file or a Config with sources")
    return Workshop(config, surroundings, context_checks or {}, handlers or {}, progress)


class Workshop:
    """An open runtime: what there is, what is wrong, what a message sees, what a provider is sent."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        context_checks: Mapping[str, ContextCheck],
        handlers: Mapping[str, object],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config = config
        self._environment = environment
        self._checks = dict(context_checks)
        self._handlers = dict(handlers)
        self._progress = progress
        self._report = self._load()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Workshop:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write down what makes the next start faster; one that is never closed loses nothing else."""
        self._report.keep()

    # -- what there is --------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        return self._report.catalog

    @property
    def tools(self) -> Tools:
        """Every record, in canonical order."""
        return self.catalog.tools

    @property
    def skills(self) -> tuple[Skill, ...]:
        return self.catalog.skills

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the declarations and the configuration, as values."""
        return (*self.config.problems, *self._report.problems)

    @property
    def severities(self) -> Counter[Severity]:
        """How many problems there are of each severity; cheaper than asking for the problems."""
        return Counter(problem.severity for problem in (*self.config.problems, *self._report.without_lines))

    @property
    def notes(self) -> tuple[str, ...]:
        """What only verbose output names: files that are no declarations."""
        return self._report.notes

    def find(self, name: str) -> Tool:
        """The tool of a key or a bare name. Raises UnknownTool."""
        return self.catalog.find(name)

    def changed(self) -> bool:
        """Whether the sources look different from when they were last read. Reads and runs nothing."""
        return sources.listing(self._wanted(), rye_spaces=self._rye_spaces).stamp != self._report.stamp

    def reload(self) -> None:
        """Look again. The catalog is replaced whole; what was taken from the old one stays valid."""
        self._report = self._load(self._report)

    # -- which tools a message sees -------------------------------------------------------------------------

    def select(
        self,
        message: str,
        *,
        context: Mapping[str, object] | None = None,
        limit: int | None = None,
        disabled: Sequence[Disabled] = (),
        now: float | None = None,
        toolset: Sequence[str] | None = None,
        include_always: bool = True,
    ) -> Selected:
        """Which tools this message should see, and why, by the formats' own rules."""
        from toolwright.selection import rules

        return rules.select(
            self.catalog.offered(),
            message,
            context=context or {},
            checks=self._checks,
            match=rules.KeywordMatch(self.config.keyword_match),
            include_always=include_always,
            disabled=disabled,
            now=time.time() if now is None else now,
            toolset=frozenset(toolset) if toolset is not None else None,
            limit=limit,
        )

    def search(
        self, query: str | None = None, *, item_id: str | None = None, limit: int = 10
    ) -> tuple[Choice, ...]:
        """Rye's own query language over the rye items."""
        from toolwright.selection import rules

        return rules.search(list(self.tools), query=query, item_id=item_id, limit=limit)

    # -- what a provider is sent ----------------------------------------------------------------------------

    def declare(
        self,
        dialect: str,
        *,
        message: str | None = None,
        context: Mapping[str, object] | None = None,
        names: Sequence[str] | None = None,
        mode: ToolMode | str = ToolMode.PLAIN,
        deferred: Sequence[str] = (),
        examples: bool = False,
    ) -> Declared:
        """The payload for a provider, the way back from its calls, and what was lost.

        Without ``names`` and ``message`` every tool is declared; with ``message`` the selected ones.
        """
        if mode not in [*ToolMode]:
            raise UsageError(f"unknown tool mode {str(mode)!r}", f"modes are {', '.join(ToolMode)}")
        offered = self.catalog.offered()
        if names is not None:
            wanted = {self.find(name).key for name in names}
            chosen = [tool for tool in offered if tool.key in wanted]
        elif message is not None:
            selected = {choice.key for choice in self.select(message, context=context).chosen}
            chosen = [tool for tool in offered if tool.key in selected]
        else:
            chosen = offered
        options = DeclareOptions(
            mode=ToolMode(mode),
            deferred=frozenset(self.find(name).key for name in deferred),
            examples=examples,
            among=tuple(offered),
        )
        return self.dialect(dialect).declare(chosen, options)

    @staticmethod
    def dialect(name: str) -> Dialect:
        """A provider's wire form by name."""
        from toolwright.dialects import DIALECTS

        if name not in DIALECTS:
            raise UsageError(f"unknown dialect {name!r}", f"dialects are {', '.join(DIALECTS)}")
        return DIALECTS[name]

    # -- loading --------------------------------------------------------------------------------------------

    def _load(self, earlier: loading.LoadReport | None = None) -> loading.LoadReport:
        config = self.config
        folder = os.path.join(config.state, "cache") if config.state else None
        return loading.load(
            self._wanted(),
            config.rules(context_checks=tuple(self._checks), executors=tuple(self._handlers)),
            loading.Machine(
                prober=partial(_probe, self._environment),
                which=lambda name: shutil.which(name, path=self._environment.path),
                progress=self._progress,
            ),
            rye_spaces=self._rye_spaces,
            keep=Cache(folder),
            earlier=earlier,
        )

    def _wanted(self) -> list[sources.Source]:
        extra = (sources.Source(path=path, format="skill") for path in self.config.extra_dirs)
        return [*self.config.sources, *extra]

    def _rye_spaces(self) -> list[sources.Source]:
        user = os.path.join(self._environment.user_space, ".ai", "tools")
        spaces = [sources.Source(path=user, format="rye", space=1)] if os.path.isdir(user) else []
        # Attack: a clone that passes for an installed bundle. "" on the path stands for the current folder.
        return [*spaces, *sources.rye_bundles([folder for folder in sys.path if os.path.isabs(folder)])]


def _probe(environment: Environment, paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
    from toolwright.sandbox import portable

    return portable.probe_all(paths, env=environment.probe_environment())
