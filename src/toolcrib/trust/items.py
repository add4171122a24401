"""Rye's items as files: found by their reference in the three spaces, and signed in place.

A reference is ``KIND:ID``, where ID may have ``*`` and ``?``. Signing replaces a file whole or not at all,
and never follows a link out of the item's space. What makes an item wrong is for formats to say; whoever
signs hands their problems in. Signatures themselves are made in ``signing.py``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct

from toolcrib.errors import UsageError
from toolcrib.model import RYE_SUFFIXES, Problem, Severity
from toolcrib.trust import signing
from toolcrib.trust.keys import SigningKey
from toolcrib.trust.seen import SignedFile

SYSTEM_IMMUTABLE: Final = (
    "System space items are immutable and cannot be signed. Copy to project or user space first."
)
_FOLDERS: Final = {"tool": "tools", "config": "config", "knowledge": "knowledge"}
_SUFFIXES: Final = {
    "tool": RYE_SUFFIXES,
    "config": (".yaml", ".yml", ".json", ".toml"),
    "knowledge": (".md",),
}
_OTHERS_FILES: Final = ("package.json", "package-lock.json")
"""Of other programs, which could no longer read them."""
_SKIPPED: Final = ("__pycache__", "node_modules")
_ABOUT_SIGNATURES: Final = "rye.sign.never-manual"
"""Signing is what mends it."""
_FILE_BYTES_MAX: Final = 1 << 20
_ENTRIES_MAX: Final = 100_000
_DEPTH_MAX: Final = 24


class Location(StrEnum):
    """A space, as results name it."""

    PROJECT = "project"
    USER = "user"
    SYSTEM = "system"


class Space(Struct, frozen=True, kw_only=True):
    location: Location
    root: str
    """The folder that holds ``.ai``."""


class Item(Struct, frozen=True, kw_only=True):
    """One file that a reference names."""

    kind: str
    id: str
    path: str
    location: Location
    root: str
    """The folder of its kind, which links must not lead out of."""

    @property
    def ref(self) -> str:
        return f"{self.kind}:{self.id}"

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.path)[1]


class Signed(Struct, frozen=True, kw_only=True):
    """How signing one item went; ``error`` is empty where it did."""

    item: Item
    signature: str = ""
    warnings: tuple[str, ...] = ()
    error: str = ""
    issues: tuple[str, ...] = ()


# -- finding ------------------------------------------------------------------------------------------------


def find(ref: str, spaces: Sequence[Space], location: Location | None = None) -> list[Item]:
    """The files that a reference names. Raises UsageError for what is no reference.

    Without a pattern the first space that has the item decides, as everywhere. With one, every item that fits
    counts; those of the system only where no other does.
    """
    kind, colon, wanted = ref.partition(":")
    if not colon or kind not in _FOLDERS:
        raise UsageError(
            f"{ref!r} is no reference to an item", f"write KIND:ID; kinds are {', '.join(_FOLDERS)}"
        )
    within = [space for space in spaces if location in (None, space.location)]
    if not re.search(r"[*?]", wanted):
        found = (item for space in within for item in _named(space, kind, wanted))
        return [item for item in [next(found, None)] if item is not None]
    pattern = re.compile("".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in wanted), re.S)
    items = [item for space in within for item in every(space, kind) if pattern.fullmatch(item.id)]
    ours = [item for item in items if item.location is not Location.SYSTEM]
    return ours or items


def every(space: Space, kind: str = "tool") -> Iterator[Item]:
    """Every file of a kind, sorted by path."""
    root = _root(space, kind)
    for path in sorted(_walk(root)):
        stem, suffix = os.path.splitext(path)
        if suffix in _SUFFIXES[kind] and os.path.basename(path) not in _OTHERS_FILES:
            yield Item(
                kind=kind,
                id=os.path.relpath(stem, root),
                path=path,
                location=space.location,
                root=root,
            )


def _named(space: Space, kind: str, wanted: str) -> Iterator[Item]:
    # Attack: an id that climbs out of its space.
    if any(part in ("", ".", "..") for part in wanted.split("/")) or "\0" in wanted:
        return
    root = _root(space, kind)
    for suffix in _SUFFIXES[kind]:
        path = os.path.join(root, f"{wanted}{suffix}")
        if os.path.isfile(path) and os.path.basename(path) not in _OTHERS_FILES:
            yield Item(kind=kind, id=wanted, path=path, location=space.location, root=root)


def _root(space: Space, kind: str) -> str:
    return os.path.join(space.root, ".ai", _FOLDERS[kind])


def _walk(root: str) -> Iterator[str]:
    waiting, seen = [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _ENTRIES_MAX:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        if (
                            depth < _DEPTH_MAX
                            and entry.name not in _SKIPPED
                            and not entry.name.startswith(".")
                        ):
                            waiting.append((entry.path, depth + 1))
                    elif entry.is_file():
                        yield entry.path
        except OSError:
            continue


# -- signing ------------------------------------------------------------------------------------------------


def sign(
    item: Item, key: SigningKey, now: float, *, issues: Sequence[str] = (), warnings: Sequence[str] = ()
) -> Signed:
    """Sign one item in place. ``issues`` are its errors: with any of them nothing is signed."""
    if item.location is Location.SYSTEM:
        return Signed(item=item, error=SYSTEM_IMMUTABLE)
    if issues:
        return Signed(item=item, error="Validation failed", issues=tuple(issues))
    try:
        with _Opened(item) as opened:
            content = opened.read()
            if not content.strip():
                return Signed(item=item, error="Validation failed", issues=("Tool file is empty",))
            signed, line = signing.sign(
                content,
                item.suffix,
                item.ref,
                time=datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                key_id=key.id,
                signature_of=key.sign,
            )
            opened.replace(signed)
    except ValueError as error:
        return Signed(item=item, error="Validation failed", issues=(str(error),))
    except OSError as error:
        why = error.strerror or "it cannot be written"
        return Signed(item=item, error=why if error.errno == 0 else f"cannot be signed: {why.lower()}")
    return Signed(item=item, signature=line, warnings=(*warnings, *_remarks(item, content)))


def sign_checked(item: Item, key: SigningKey | None, now: float, problems: Iterable[Problem]) -> Signed:
    """Sign one item unless something is wrong with it. ``key`` is None only for items of the system."""
    if key is None:
        return Signed(item=item, error=SYSTEM_IMMUTABLE)
    own = [each for each in problems if each.path == item.path]
    return sign(
        item,
        key,
        now,
        issues=[each.message for each in own if each.severity is Severity.ERROR],
        warnings=[
            each.message
            for each in own
            if each.severity is Severity.WARNING and each.code != _ABOUT_SIGNATURES
        ],
    )


def signed_file(signed: Signed) -> SignedFile | None:
    """What an item's new signature line says; None where it was not signed."""
    line = signing.read_line(f"{signed.signature}\n", signed.item.suffix)
    return (
        SignedFile(path=signed.item.path, key=line.key, digest=line.digest, time=line.time) if line else None
    )


def _remarks(item: Item, content: bytes) -> Iterator[str]:
    if item.suffix == ".json":
        yield "the signature line makes this file invalid for ordinary JSON readers"
    shebang = content.startswith(b"#!")
    if shebang and item.suffix in signing.SLASH_FAMILY:
        yield "the signature line stands first, so that the shebang line is no longer one: remove it"
    elif shebang and not content.startswith(b"#!/"):
        yield "the signature line stands first, since only #!/ begins a shebang line: remove the blank"


class _Opened:
    """An item's file, reached from its space's folder step by step, so that no link leads out of it."""

    def __init__(self, item: Item) -> None:
        self._root = os.path.realpath(item.root)
        real = os.path.realpath(item.path)
        below = os.path.relpath(real, self._root)
        # Attack: a link in a project that leads the pen to a file elsewhere.
        if below.startswith(os.pardir) or os.path.isabs(below):
            raise OSError(0, f"Symlink escape: {item.path} leads out of its space")
        *self._folders, self._name = below.split(os.sep)
        self._folder = -1
        self._status: os.stat_result | None = None

    def __enter__(self) -> _Opened:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._folder = os.open(self._root, flags)
        try:
            for part in self._folders:  # a link put there meanwhile is refused, not followed
                inner = os.open(part, flags, dir_fd=self._folder)
                os.close(self._folder)
                self._folder = inner
        except OSError:
            os.close(self._folder)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._folder)

    def read(self) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._name, flags, dir_fd=self._folder)
        try:
            self._status = os.fstat(descriptor)
            if not stat.S_ISREG(self._status.st_mode) or self._status.st_size > _FILE_BYTES_MAX:
                raise OSError(0, f"it is no regular file of at most {_FILE_BYTES_MAX:,} bytes")
            content = b""
            while more := os.read(descriptor, _FILE_BYTES_MAX + 1 - len(content)):
                content += more
            return content
        finally:
            os.close(descriptor)

    def replace(self, content: bytes) -> None:
        """Old or new, never half: written beside it, synced, and put in its place."""
        assert self._status is not None
        draft = f".{self._name}.{os.urandom(6).hex()}.draft"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600, dir_fd=self._folder)
        try:
            try:
                written = 0
                while written < len(content):
                    written += os.write(descriptor, content[written:])
                with suppress(PermissionError):  # only root may give a file away
                    os.fchown(descriptor, self._status.st_uid, self._status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(self._status.st_mode))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=self._folder)
            raise
        os.fsync(self._folder)
