"""What a guest may know of: tools, what is wrong with them, what was recorded about them. For every door.

What lies beyond a guest's reach looks absent. What a guest may do with the rest is not said here: its rights
and policy say that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from toolcrib.app import Crib
from toolcrib.catalog.catalog import is_within
from toolcrib.doors import _accounts
from toolcrib.errors import UnknownTool, UsageError, did_you_mean
from toolcrib.jsontext import JsonObject
from toolcrib.model import Effect, Guest, Problem, Reach, Right, Tool


def near(crib: Crib, reach: Reach | None) -> list[Tool]:
    """Every record within a reach; None: all there are."""
    return within(crib.tools, reach)


def within(tools: Iterable[Tool], reach: Reach | None) -> list[Tool]:
    return [tool for tool in tools if reach is None or is_within(reach, tool)]


def find(crib: Crib, name: str, reach: Reach | None) -> Tool:
    """The tool of a key or a name. Raises UnknownTool."""
    if reach is None:
        return crib.find(name)
    with suppress(UnknownTool):
        tool = crib.find(name)
        if is_within(reach, tool):
            return tool
    # Attack: a caller learns from hints and refusals which tools there are beyond its reach.
    unknown = crib.catalog.unknown(name, lambda tool: is_within(reach, tool))
    hint = did_you_mean(unknown.near) if unknown.near else "GET /v1/tools shows what there is"
    raise UnknownTool(f"there is no tool {name[:60]!r}", hint, near=unknown.near)


def problems(crib: Crib, reach: Reach | None) -> tuple[Problem, ...]:
    """What is wrong. Attack: a guest who reads in the problems what tools there are beyond its reach, in
    other files, in the same, in the lock or in rules: only what names one of its own tools is for it."""
    if reach is None:
        about_files = (*crib.lock_problems(), *crib.signature_problems())
        return (*crib.problems, *about_files, *crib.rule_problems())
    own = {(tool.origin.path, tool.name) for tool in near(crib, reach)}
    return tuple(problem for problem in crib.problems if (problem.path, problem.name) in own)


def result_part(crib: Crib, guest: Guest, call_id: str, offset: int, limit: int) -> JsonObject | None:
    """Return a part of a kept result; None if there is none that this caller may read.

    Attack: another caller's result, by an id that was seen or guessed. A caller reads its own results. With
    the right to read the records of all calls, it reads those within its reach.
    """
    state = crib.config.state
    folder = _accounts.journal_of(state) if state is not None else None
    if folder is None:
        return None
    found = _accounts.call_document(folder, call_id, sees(crib, guest.reach))
    if found is None:
        return None
    callers = {each.get("caller") for each in found["records"] if each["what"] == "begin"}
    if Right.AUDIT not in guest.rights and callers != {guest.name}:
        return None
    try:
        page, size = crib.result_page(call_id, offset=offset, limit=limit)
    except UsageError:
        return None
    return _accounts.result_part(call_id, page, size, offset)


def sees(crib: Crib, reach: Reach | None) -> Callable[[object], bool] | None:
    """Tells whether what was recorded under a key may be known; None: everything may. Of what is not loaded
    any more nobody knows the effect: it is for those whose reach has all of them."""
    if reach is None:
        return None
    catalog = crib.catalog
    loaded, is_wide = frozenset(catalog.keys), reach.effects == frozenset(Effect)

    def may_see(key: object) -> bool:
        if not isinstance(key, str):
            return False
        if key in loaded:
            return is_within(reach, catalog.find(key))
        return is_wide and any(fnmatchcase(key, pattern) for pattern in reach.tools)

    return may_see
