"""Whether a person trusted what a project brings along: its keys, its lock.

Every call may ask, so files and store are looked at again only where they changed. What was trusted, and how
it is remembered, is ``store/trusted.py``; what follows from it, keys and locks themselves decide.
"""

from __future__ import annotations

import os

from toolwright.catalog import files
from toolwright.errors import StoreError
from toolwright.store import Store, trusted
from toolwright.store.keep import Keep


class Projects:
    """The projects that a host trusts. Any thread may ask."""

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self._known: dict[str, tuple[object, bool]] = {}

    def has_trusted_keys(self, project: str) -> bool:
        """Whether a project's own keys are trusted as they are now: every one of them, or none counts.

        Attack: a key that is added to a trusted project later, and tools signed by it.
        """
        found = trusted.key_files(project)
        # Attack: so many keys that the last one, which is opened by its name, is never asked about.
        if not 0 < len(found) <= trusted.KEYS_MAX or self._keep is None:
            return False
        try:
            seen = (self._keep.stamp(), found, tuple(files.fingerprint(os.stat(path)) for path in found))
            known = self._known.get(project)
            if known is None or known[0] != seen:
                store = self._keep.present()
                is_so = store is not None and all(_is_trusted(store, path) for path in found)
                known = self._known[project] = (seen, is_so)
        except (OSError, StoreError):  # what cannot be read vouches for nothing
            return False
        return known[1]

    def is_trusted(self, path: str, digest: str) -> bool:
        """Whether a file is trusted with these bytes."""
        try:
            store = None if self._keep is None else self._keep.present()
            return store is not None and trusted.is_trusted(store, path, digest)
        except StoreError:
            return False


def _is_trusted(store: Store, path: str) -> bool:
    content, _ = files.read(path)
    return content is not None and trusted.is_trusted(store, path, trusted.digest_of(content))
