"""Rye's three spaces and their keys, as the commands about signatures see them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from toolcrib.app import Crib
from toolcrib.catalog import files, sources
from toolcrib.catalog.projects import Projects
from toolcrib.doors.cli import Shared
from toolcrib.store.keep import STORE_NAME, Keep
from toolcrib.trust.items import Location, Space
from toolcrib.trust.keys import Keyring


def systems() -> list[str]:
    """The roots of the installed bundles."""
    return list(sources.Spaces.installed("").systems)


def spaces(shared: Shared, crib: Crib) -> list[Space]:
    """In the order in which an item is looked for."""
    user = shared.environment.user_space
    found = [Space(location=Location.PROJECT, root=root) for root in crib.rye_projects if root != user]
    found.append(Space(location=Location.USER, root=user))
    return [*found, *(Space(location=Location.SYSTEM, root=root) for root in systems())]


def keyring(shared: Shared, project: str | None = None) -> Keyring:
    """The keys that count for the items of a project."""
    return Keyring(
        shared.environment.user_space,
        systems(),
        project,
        trusted=lambda: _trusted(shared, project),
    )


def _trusted(shared: Shared, project: str | None) -> Mapping[str, str]:
    """The keys of a project's own that the host trusted: ``toolcrib trust PATH``."""
    state = shared.resolved().state
    if project is None or state is None or files.is_open_to_others(state):
        return {}
    keep = Keep(os.path.join(state, STORE_NAME))
    try:
        return Projects(keep).trusted_keys(project)
    finally:
        keep.close()


def project_of(path: str) -> str | None:
    """The folder whose ``.ai`` a path lies in."""
    head, marker, _ = os.path.abspath(path).rpartition("/.ai/")
    return head if marker else None


def keyrings(shared: Shared, projects: Sequence[str]) -> list[Keyring]:
    """One for each project; one without any where there is none."""
    return [keyring(shared, project) for project in projects] or [keyring(shared)]
