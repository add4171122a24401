"""The newest signed text of each file that ran here, or was verified here: an older one is refused.

A signature says who saw a text, not that it is the latest one. So what ran is kept, in one file for each
folder with an ``.ai``: for each file in it and each key, the digest, version and time of the newest text, and
the digests of earlier ones. A folder has its own memory, so what lies in a clone changes nothing for others.
No signature covers a file's name, so a file with another name is compared by its text and by the id in it.

The version and the text are covered by the signature. The time is not: it finds an old file that was put
back, and not one whose time was changed as well. Nothing here verifies a signature: ``vetting.py`` does.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from shlex import quote
from typing import Any, Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.errors import StoreError
from toolcrib.store import private

SEEN: Final = "seen"
"""The folder of the state folder that holds it."""
PAST_MAX: Final = 64
"""So many earlier texts of one file are remembered."""
KEYS_MAX: Final = 8
"""Of so many keys for one file."""
BYTES_MAX: Final = 16 << 20
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class SignedFile(Struct, frozen=True, kw_only=True):
    """A file whose signature was verified."""

    path: str
    key: str
    digest: str
    """Of the text that is signed."""
    time: str
    """When it was signed, as its line says."""
    version: str = ""
    item: str = ""
    """The id that the signed text gives itself; empty: it gives none."""


class Older(Struct, frozen=True):
    """A file that is older than what was seen in its place."""

    file: SignedFile
    why: str


_Entry = dict[str, Any]
_Book = dict[str, _Entry]


class Memory:
    """What was seen, by one state folder. Any thread may ask, and several programs at once."""

    def __init__(self, state: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = os.path.join(state, SEEN)
        self._clock = clock
        self._read: dict[str, tuple[object, _Book]] = {}

    def older(self, files: Iterable[SignedFile]) -> Older | None:
        """Return the first file that is older than what was seen. Raises StoreError where that is unknown."""
        for root, group in _by_root(files):
            book = self._book(root)
            for inner, file in group:
                why = _why(book, inner, file)
                if why:
                    return Older(file, why)
        return None

    def remember(self, files: Iterable[SignedFile], *, accepts: bool = False) -> Older | None:
        """Keep files as the newest of their places, unless one is older, which is returned.

        ``accepts``: a person wants these, also where they are older. Raises StoreError where they cannot be
        kept.
        """
        for root, group in _by_root(files):
            book = self._book(root)
            if all(_is_newest(book.get(inner), file) for inner, file in group):
                continue
            try:
                private.make_folders(self._folder)
            except OSError as error:
                raise StoreError(f"{self._folder}: {(error.strerror or 'cannot be made').lower()}") from None
            with private.locked(os.path.join(self._folder, "lock")):
                # Attack: an older file that is verified before a newer one is kept, and kept after it.
                book = dict(self._book(root))
                for inner, file in group:
                    known = book.get(inner)
                    why = "" if accepts else _why(book, inner, file)
                    if why:
                        return Older(file, why)
                    book[inner] = self._entry(None if accepts and _why_older(known, file) else known, file)
                text = jsontext.compact({"seen": 1, "root": _text(root), "files": book})
                private.replace(self._path(root), text)
        return None

    def _entry(self, known: _Entry | None, file: SignedFile) -> _Entry:
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # Attack: a time in the future, which no later file would ever reach.
        newest = {
            "digest": file.digest,
            "version": file.version,
            "time": min(file.time, now),
            "item": file.item,
        }
        keys: dict[str, Any] = dict(known["keys"]) if known is not None else {}
        past: list[str] = list(known["past"]) if known is not None else []
        before = keys.pop(file.key, None)
        digests = {each["digest"] for each in [*keys.values(), *([before] if before else [])]}
        past += sorted(digests - {file.digest, *past})
        keys[file.key] = newest
        return {"keys": dict([*keys.items()][-KEYS_MAX:]), "past": past[-PAST_MAX:]}

    def _book(self, root: str) -> _Book:
        path = self._path(root)
        stamp = _stamp(path)
        read = self._read.get(root)
        if read is not None and stamp is not None and read[0] == stamp:
            return read[1]
        try:
            content = private.read(path, BYTES_MAX)
            book = {} if content is None else _book_of(content)
        except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Attack: damage that makes the host forget what it has seen.
            why = error.message if isinstance(error, StoreError) else f"{path}: it is damaged"
            raise StoreError(
                why,
                "find out what changed it; once it is removed, the next signed files that run count as new",
            ) from None
        self._read[root] = (stamp, book)
        return book

    def _path(self, root: str) -> str:
        name = hashlib.sha256(root.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return os.path.join(self._folder, f"{name}.json")


def place_of(path: str) -> tuple[str, str]:
    """The folder whose memory a file belongs to, its links followed, and the file's path in it."""
    root, marker, inner = path.rpartition("/.ai/")
    if not marker:
        root, _, inner = path.rpartition("/")
    return os.path.realpath(root or "/"), _text(inner)


def _text(path: str) -> str:
    """A path as JSON can hold it."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _by_root(files: Iterable[SignedFile]) -> Iterable[tuple[str, list[tuple[str, SignedFile]]]]:
    found: dict[str, list[tuple[str, SignedFile]]] = {}
    for file in files:
        root, inner = place_of(file.path)
        found.setdefault(root, []).append((inner, file))
    return found.items()


def _is_newest(known: _Entry | None, file: SignedFile) -> bool:
    if known is None or file.digest in known["past"]:
        return False
    newest = known["keys"].get(file.key)
    return (
        newest is not None
        and newest["digest"] == file.digest
        and (not file.version or newest["version"] == file.version)
        and (not file.item or newest["item"] == file.item)
    )


def _why(book: _Book, inner: str, file: SignedFile) -> str:
    """Why a file is older than what was seen in its place, or under another name; empty: it is not.

    Attack: an older version under a name of its own, of which nothing was seen yet.
    """
    known = book.get(inner)
    if _is_newest(known, file):
        return ""
    if why := _why_older(known, file):
        return why
    for other, entry in book.items():
        if file.digest in entry["past"]:
            return f"its text was seen here before as {other}, and another one since"
        newest = entry["keys"].get(file.key)
        is_same = file.item != "" and newest is not None and newest["item"] == file.item
        if is_same and (why := _why_older(entry, file)):
            return f"{other} has the same id, and {why}"
    return ""


def _why_older(known: _Entry | None, file: SignedFile) -> str:
    """Why a file is older than what was seen in its place; empty: it is not."""
    if known is None:
        return ""
    if file.digest in known["past"]:
        return "its text was seen here before, and another one since"
    newest = known["keys"].get(file.key)
    if newest is None or newest["digest"] == file.digest:
        return ""
    was, found = _version(newest["version"]), _version(file.version)
    if was is not None and found is not None and was != found:
        return "" if found > was else f"its version is {file.version}, and {newest['version']} was seen here"
    if file.time < newest["time"]:
        return f"it was signed at {file.time}, and one of {newest['time']} was seen here"
    return ""


def _version(text: str) -> tuple[int, ...] | None:
    found = _VERSION.fullmatch(text)
    return tuple(map(int, found.groups())) if found is not None else None


def _book_of(content: bytes) -> _Book:
    """Raises ValueError, KeyError, TypeError and AttributeError where it is none."""
    document = jsontext.loads_own(content)
    if not isinstance(document, dict) or document["seen"] != 1:
        raise ValueError
    book: _Book = {}
    for inner, entry in document["files"].items():
        keys = {
            str(key): {name: str(newest[name]) for name in ("digest", "version", "time")}
            | {"item": str(newest.get("item", ""))}
            for key, newest in entry["keys"].items()
        }
        book[str(inner)] = {"keys": keys, "past": [str(digest) for digest in entry["past"]]}
    return book


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def shown(older: Older) -> tuple[str, str]:
    """What is told of an older file: the message, and how a person takes it nevertheless."""
    path = older.file.path
    message = f"Older than what was seen here: {path}\n  Found: {older.why}"
    return (
        message,
        f"put the newer file back; or, if you mean to go back to this one: toolcrib trust {quote(path)}",
    )
