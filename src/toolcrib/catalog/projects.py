"""Whether a person trusted what a project brings along: its keys, its lock.

Every call may ask, so files and store are looked at again only where they changed. What was trusted, and how
it is remembered, is ``store/trusted.py``; what follows from it, keys and locks themselves decide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from toolcrib.catalog import files
from toolcrib.errors import StoreError
from toolcrib.store import Store, trusted
from toolcrib.store.keep import Keep

_NONE: Final[Mapping[str, str]] = {}


class Projects:
    """The projects that a host trusts. Any thread may ask."""

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self._known: dict[str, tuple[object, Mapping[str, str]]] = {}

    def trusted_keys(self, project: str) -> Mapping[str, str]:
        """The key files of a project that are trusted, with the digests of their bytes: every one that lies
        there now, or none counts.

        Attack: a key that is added to a trusted project later, and tools signed by it.
        """
        found = trusted.key_files(project)
        # Attack: so many keys that the last one, which is opened by its name, is never asked about.
        if not 0 < len(found) <= trusted.KEYS_MAX or self._keep is None or self._is_open():
            return _NONE
        try:
            seen = (self._keep.stamp(), found, tuple(files.fingerprint(os.stat(path)) for path in found))
            known = self._known.get(project)
            if known is None or known[0] != seen:
                store = self._keep.present()
                known = self._known[project] = (seen, _NONE if store is None else _trusted(store, found))
        except (OSError, StoreError):  # what cannot be read vouches for nothing
            return _NONE
        return known[1]

    def is_trusted(self, path: str, digest: str) -> bool:
        """Whether a file is trusted with these bytes."""
        try:
            store = None if self._keep is None or self._is_open() else self._keep.present()
            return store is not None and trusted.is_trusted(store, path, digest)
        except StoreError:
            return False

    def _is_open(self) -> bool:
        """Attack: another user of the machine writes down for us what we trust."""
        return self._keep is not None and files.is_open_to_others(self._keep.folder)


def _trusted(store: Store, paths: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        content, _ = files.read(path)
        if content is None or not trusted.is_trusted(store, path, digest := trusted.digest_of(content)):
            return _NONE
        found[path] = digest
    return found
