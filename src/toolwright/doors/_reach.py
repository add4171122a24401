"""What a guest may know of: tools, what is wrong with them, what was recorded about them. For every door.

What lies beyond a guest's reach looks absent. What a guest may do with the rest is not said here: its rights
and policy say that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from toolwright.app import Workshop
from toolwright.catalog.catalog import is_within
from toolwright.errors import UnknownTool
from toolwright.model import Effect, Problem, Reach, Tool


def near(workshop: Workshop, reach: Reach | None) -> list[Tool]:
    """Every record within a reach; None: all there are."""
    return within(workshop.tools, reach)


def within(tools: Iterable[Tool], reach: Reach | None) -> list[Tool]:
    return [tool for tool in tools if reach is None or is_within(reach, tool)]


def find(workshop: Workshop, name: str, reach: Reach | None) -> Tool:
    """The tool of a key or a name. Raises UnknownTool."""
    if reach is None:
        return workshop.find(name)
    with suppress(UnknownTool):
        tool = workshop.find(name)
        if is_within(reach, tool):
            return tool
    # Attack: a caller learns from hints and refusals which tools there are beyond its reach.
    raise UnknownTool(f"there is no tool {name[:60]!r}", "GET /v1/tools shows what there is")


def problems(workshop: Workshop, reach: Reach | None) -> tuple[Problem, ...]:
    """What is wrong. Attack: a guest who reads in the problems what tools there are beyond its reach, in
    other files, in the same, in the lock or in rules: only what names one of its own tools is for it."""
    if reach is None:
        about_files = (*workshop.lock_problems(), *workshop.signature_problems())
        return (*workshop.problems, *about_files, *workshop.rule_problems())
    own = {(tool.origin.path, tool.name) for tool in near(workshop, reach)}
    return tuple(problem for problem in workshop.problems if (problem.path, problem.name) in own)


def sees(workshop: Workshop, reach: Reach | None) -> Callable[[object], bool] | None:
    """Tells whether what was recorded under a key may be known; None: everything may. Of what is not loaded
    any more nobody knows the effect: it is for those whose reach has all of them."""
    if reach is None:
        return None
    catalog = workshop.catalog
    loaded, is_wide = frozenset(catalog.keys), reach.effects == frozenset(Effect)

    def may_see(key: object) -> bool:
        if not isinstance(key, str):
            return False
        if key in loaded:
            return is_within(reach, catalog.find(key))
        return is_wide and any(fnmatchcase(key, pattern) for pattern in reach.tools)

    return may_see
