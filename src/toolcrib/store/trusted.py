"""Files of projects that a person reviewed and trusts: by the place they lie at and the bytes they had.

A file is trusted where the real path of its folder, its name, that folder itself and the digest of its bytes
are what they were. Whoever asks hands over the digest of the bytes that he read and goes on to use: nothing
is read again here. What follows from trust (``config.py``) and who may give it is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.errors import StoreError
from toolcrib.paths import is_utf8
from toolcrib.store import Store

SHELF: Final = "trusted"
TRUSTED_MAX: Final = 10_000
"""Files that are remembered."""
_PAGE: Final = 1000


class Standing(StrEnum):
    """How a file stands to what was trusted."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    UNKNOWN = "unknown"


class Trusted(Struct, frozen=True, kw_only=True):
    """One file that was trusted, and when."""

    path: str
    digest: str
    folder: int
    """The inode of its folder. Attack: another project put at the path of a trusted one, with the same
    configuration and other programs."""
    at: float = 0.0
    by: str = ""


def digest_of(content: bytes) -> str:
    """What bytes are remembered by."""
    return hashlib.sha256(content).hexdigest()


def place_of(path: str) -> str:
    """Where a file really lies: its folder's real path, and its own name.

    Attack: a clone whose configuration is a link to one that is trusted elsewhere. Its relative paths start
    at the clone, so what counts is where the link lies, not where it leads.
    """
    absolute = os.path.abspath(path)
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def standing(store: Store, path: str, digest: str) -> Standing:
    """How a file that had these bytes when it was read stands to what was trusted."""
    place = place_of(path)
    held = store.get(SHELF, place) if is_utf8(place) else None
    found = _read(place, held.value) if held is not None else None
    if found is None:
        return Standing.UNKNOWN
    same = found.digest == digest and found.folder == _folder(place)
    return Standing.TRUSTED if same else Standing.CHANGED


def is_trusted(store: Store, path: str, digest: str) -> bool:
    """Whether a file that had these bytes when it was read is trusted."""
    return standing(store, path, digest) is Standing.TRUSTED


def trust(store: Store, path: str, digest: str, *, now: float = 0.0, by: str = "") -> Trusted:
    """Remember a file as a person reviewed it."""
    place = place_of(path)
    folder = _folder(place)
    if not is_utf8(place):
        raise StoreError(f"{place}: its path is not UTF-8", "rename it, and the folders that it lies in")
    if folder is None:
        raise StoreError(f"{place}: its folder cannot be looked at", "name a project that exists")
    if store.get(SHELF, place) is None and sum(1 for _ in _keys(store)) >= TRUSTED_MAX:
        raise StoreError(f"{TRUSTED_MAX:,} files are trusted already", "take some away: trust --remove PATH")
    found = Trusted(path=place, digest=digest, folder=folder, at=now, by=by)
    text = {"digest": digest, "folder": folder, "at": now, "by": by}
    store.put(SHELF, place, jsontext.compact(text), None)
    return found


def forget(store: Store, path: str) -> bool:
    """Trust a file no more. Whether it was trusted."""
    place = place_of(path)
    if not is_utf8(place):
        return False
    was = store.get(SHELF, place) is not None
    store.remove(SHELF, place, None)
    return was


def listed(store: Store) -> tuple[Trusted, ...]:
    """Every file that was trusted, in the order of paths."""
    found: list[Trusted] = []
    for key in _keys(store):
        held = store.get(SHELF, key)
        if held is not None:
            # What cannot be read is still named: it can be taken away.
            found.append(_read(key, held.value) or Trusted(path=key, digest="", folder=-1))
    return tuple(found)


def _keys(store: Store) -> Iterator[str]:
    after = ""
    while keys := store.keys(SHELF, after, _PAGE):
        yield from keys
        after = keys[-1]


def _read(place: str, value: bytes) -> Trusted | None:
    try:
        plain = jsontext.loads_own(value)
        return Trusted(
            path=place,
            digest=str(plain["digest"]),
            folder=int(plain["folder"]),
            at=float(plain["at"]),
            by=str(plain["by"]),
        )
    except (ValueError, KeyError, TypeError):
        return None  # Attack: damage that trusts something. What cannot be read trusts nothing.


def _folder(place: str) -> int | None:
    try:
        return os.stat(os.path.dirname(place)).st_ino
    except OSError:
        return None


# -- the keys of projects -----------------------------------------------------------------------------------

KEYS: Final = (".ai", "config", "keys", "trusted")
"""The folders in which the trusted keys of a space lie."""
KEYS_MAX: Final = 1_000
"""In one folder."""


def key_files(project: str) -> tuple[str, ...]:
    """The key files that a project brings along, in the order of their names; at most one more than may be:
    whoever trusts them trusts all of them, or none."""
    folder = os.path.join(project, *KEYS)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))
    except OSError:
        return ()
    return tuple(os.path.join(folder, name) for name in names[: KEYS_MAX + 1])
