"""Find what the user's next git command would run or obey, around a folder. Reads files, and starts no git.

Git runs programs that its configuration names, and hooks. It finds both by way of many files: ``.git``, which
may be a file that names a folder; ``commondir`` of a linked worktree; ``config.worktree``; the configuration
of each submodule, which ``git status`` looks into; included files; ``remotes`` and ``branches``, which say
where ``git push`` leads, and the repository there has hooks as well. A tool that writes one of them chooses
what runs.
"""

from __future__ import annotations

import os
import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from toolcrib.catalog import files
from toolcrib.paths import is_below
from toolcrib.sandbox import _placeholders
from toolcrib.sandbox._placeholders import CONFIG, OF_WORKTREE

WORKTREES_MAX: Final = 32
"""With more linked worktrees, what git keeps about all of them is held as a whole."""

_OF_REPOSITORY: Final = ("hooks", CONFIG, OF_WORKTREE, "modules", "commondir", "remotes", "branches")
_OF_WORKTREE: Final = ("commondir", "gitdir", OF_WORKTREE, "modules")
_FILE_BYTES_MAX: Final = 4096
_CONFIG_BYTES_MAX: Final = 1 << 20
_INDEX_BYTES_MAX: Final = 256 << 20
_SUBMODULES_MAX: Final = 64
_INCLUDES_MAX: Final = 16
_ENTRIES_MAX: Final = 500_000
"""Of a repository's folder, when links are looked for."""
_GITLINK: Final = b"\x00\x00\xe0\x00"


class Found(Struct, frozen=True):
    """Hold the paths of git around some folders. All of them are real."""

    folders: tuple[str, ...] = ()
    """The repositories' own folders, and the files that name them."""
    code: tuple[str, ...] = ()
    """What git runs or obeys inside them."""
    absent: tuple[str, ...] = ()
    """The same, where it does not exist."""
    elsewhere: tuple[str, ...] = ()
    """What git runs or obeys outside of them: ``.git`` of submodules and linked worktrees, folders of
    submodules that are not checked out, included files, another folder of hooks."""
    elsewhere_absent: tuple[str, ...] = ()
    """The same, where it does not exist."""


def find(folders: Iterable[str], looked_at: dict[str, None], *, home: str = "") -> Found:
    """Find it for the repositories around these folders. ``looked_at`` takes what it depends on."""
    seen: dict[str, None] = {}
    code: dict[str, None] = {}
    elsewhere: dict[str, None] = {}
    for folder in dict.fromkeys(folders):
        top, own, common, named_by = _repository(folder, looked_at)
        if not own:
            continue
        seen |= dict.fromkeys((*named_by, own, common))
        code |= dict.fromkeys((*named_by, *(os.path.join(common, name) for name in _OF_REPOSITORY)))
        if own != common:
            code |= dict.fromkeys(os.path.join(own, name) for name in _OF_WORKTREE)
        looked_at |= dict.fromkeys((own, common, f"{common}/config", f"{common}/worktrees", f"{own}/index"))
        for path, is_inside in _worktrees(common):
            (code if is_inside else elsewhere)[path] = None
        elsewhere |= dict.fromkeys(_submodules(top, own))
        elsewhere |= dict.fromkeys(_named_by_configuration(top, own, common, home))
    return Found(
        folders=tuple(seen),
        code=tuple(path for path in code if _is_there(path)),
        absent=tuple(
            path for path in code if not _is_there(path) and os.path.isdir(os.path.dirname(path))
        ),
        elsewhere=tuple(path for path in elsewhere if _is_there(path)),
        elsewhere_absent=tuple(path for path in elsewhere if not _is_there(path)),
    )  # fmt: skip


def _is_there(path: str) -> bool:
    return os.path.lexists(path) and not _placeholders.is_one(path)


def _repository(folder: str, looked_at: dict[str, None]) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the top folder of the repository around a folder, its own folder, the one that it shares with
    others, and the file that names it, if any; empty texts where there is no repository."""
    while True:
        looked_at[folder] = None
        place = os.path.join(folder, ".git")
        if os.path.isdir(place):
            own = os.path.realpath(place)
            return folder, own, _common(own), ()
        if os.path.isfile(place):  # a worktree or submodule: the file names the folder
            named_by = (os.path.realpath(place),)
            looked_at[place] = None
            inside = _named_in(place, "gitdir: ", folder)
            return folder, inside or named_by[0], _common(inside) if inside else named_by[0], named_by
        above = os.path.dirname(folder)
        if above == folder:
            return "", "", "", ()
        folder = above


def _common(own: str) -> str:
    return _named_in(os.path.join(own, "commondir"), "", own) or own


def _named_in(path: str, prefix: str, base: str) -> str | None:
    """Return the folder that a file names."""
    text = _line(path)
    if not text.startswith(prefix):
        return None
    real = os.path.realpath(os.path.join(base, text.removeprefix(prefix)))
    return real if os.path.isdir(real) else None


def _line(path: str) -> str:
    with suppress(OSError):
        text = files.head(path, _FILE_BYTES_MAX).decode("utf-8", "surrogateescape").strip()
        return "" if "\0" in text else text
    return ""


def _worktrees(common: str) -> Iterator[tuple[str, bool]]:
    """Return what git obeys of each linked worktree: in the repository's folder (True), and its ``.git``."""
    folder = os.path.join(common, "worktrees")
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(folder))
    if len(names) > WORKTREES_MAX:
        yield folder, True
    for name in names[: 4 * WORKTREES_MAX]:
        inside = os.path.join(folder, name)
        if len(names) <= WORKTREES_MAX:
            for part in _OF_WORKTREE:
                yield os.path.join(inside, part), True
        place = _line(os.path.join(inside, "gitdir"))
        if os.path.isabs(place) and os.path.isfile(place):
            yield os.path.realpath(place), False


# -- submodules ---------------------------------------------------------------------------------------------


def _submodules(top: str, own: str) -> Iterator[str]:
    """Return what a tool must not write of the submodules, and of theirs: ``.git``, or, of one that is not
    checked out, its folder.

    Attack: a tool makes the ``.git`` of a submodule name a folder of its own. ``git status`` in the
    repository above looks into each submodule, and runs what the configuration there says.
    """
    waiting = [(top, own)]
    for _ in range(_SUBMODULES_MAX):
        if not waiting:
            return
        top, own = waiting.pop()
        for name in _gitlinks(own):
            folder = os.path.realpath(os.path.join(top, name))
            place = os.path.join(folder, ".git")
            if os.path.lexists(place):
                yield place
                inside = (
                    os.path.realpath(place) if os.path.isdir(place) else _named_in(place, "gitdir: ", folder)
                )
                if inside:
                    waiting.append((folder, inside))
            else:
                yield folder if os.path.isdir(folder) else place


def _gitlinks(own: str) -> Iterator[str]:
    """Return the paths of submodules that the index of a repository lists."""
    size = 32 if b"sha256" in _read(f"{own}/config", _CONFIG_BYTES_MAX) else 20
    indexes = [f"{own}/index"]
    with suppress(OSError):
        indexes += [f"{own}/{name}" for name in os.listdir(own) if name.startswith("sharedindex.")]
    for index in indexes:
        data = _read(index, _INDEX_BYTES_MAX)
        if data[:4] == b"DIRC" and _GITLINK in data:
            with suppress(IndexError, ValueError, struct.error):  # not an index after all
                yield from _gitlinks_in(data, size)


def _gitlinks_in(data: bytes, hash_size: int) -> Iterator[str]:
    version, count = struct.unpack_from(">II", data, 4)
    at, name = 12, b""
    for _ in range(count):
        begin, mode = at, data[at + 24 : at + 28]
        (flags,) = struct.unpack_from(">H", data, at + 40 + hash_size)
        at += 42 + hash_size + (2 if flags & 0x4000 and version >= 3 else 0)
        if version >= 4:  # how much of the name before is left out
            left = data[at] & 127
            while data[at] & 128:
                at += 1
                left = (left + 1 << 7) + (data[at] & 127)
            at += 1
        end = data.index(0, at)
        if version >= 4:
            name, at = name[: len(name) - left] + data[at:end], end + 1
        else:
            name, at = data[at:end], begin + (end - begin + 8) // 8 * 8
        if mode == _GITLINK:
            yield os.fsdecode(name)


# -- links ---------------------------------------------------------------------------------------------------


def links(repositories: Sequence[str], held: Iterable[str]) -> dict[str, str]:
    """Return the symbolic links in repositories' folders, with what they name; not those in what is held.

    Git writes through links, except in the folders of single objects, which are left out. At most so many
    files are looked at, those near the top first.
    """
    found: dict[str, str] = {}
    left = _ENTRIES_MAX
    done = {*held}
    of_objects = {os.path.join(repository, "objects") for repository in repositories}
    waiting = deque(repositories)
    while waiting:
        folder = waiting.popleft()
        if folder in done:
            continue
        done.add(folder)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return found
                if entry.is_symlink():
                    with suppress(OSError):  # another program has removed it
                        found[entry.path] = os.readlink(entry.path)
                elif entry.is_dir(follow_symlinks=False) and (
                    folder not in of_objects or len(entry.name) != 2
                ):
                    waiting.append(entry.path)
    return found


# -- configuration ------------------------------------------------------------------------------------------

_SECTION: Final = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"(?:[^"\\]|\\.)*")?\s*\]')
_SETTING: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")


def settings(text: str) -> Iterator[tuple[str, str]]:
    """Return the settings in a file of git's configuration that this project asks for, by their full names
    in small letters."""
    section = ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section, line = found[1].lower(), line[found.end() :]
        if found := _SETTING.match(line):
            value = re.sub(r"\s*[#;].*", "", found[2]) if '"' not in found[2] else found[2].strip('" \t')
            yield f"{section}.{found[1].lower()}", value.strip().replace("\\\\", "\\")


def _named_by_configuration(top: str, own: str, common: str, home: str) -> Iterator[str]:
    """Return the files that the configuration includes, and another folder of hooks."""
    waiting = [f"{common}/{CONFIG}", f"{common}/{OF_WORKTREE}", f"{own}/{OF_WORKTREE}"]
    seen: set[str] = set()
    while waiting and len(seen) < _INCLUDES_MAX:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        text = _read(at, _CONFIG_BYTES_MAX).decode("utf-8", "surrogateescape")
        for name, value in settings(text):
            if name in ("include.path", "includeif.path") and value:
                waiting.append(_absolute(value, os.path.dirname(at), home))
                yield waiting[-1]
            elif name == "core.hookspath" and value:
                folder = _absolute(value, top, home)
                if not is_below(top, (folder,)):  # that would be the whole project
                    yield folder


def _absolute(path: str, base: str, home: str) -> str:
    return os.path.realpath(os.path.join(*((home, path[2:]) if path.startswith("~/") else (base, path))))


def _read(path: str, most: int) -> bytes:
    with suppress(OSError):
        return files.head(path, min(os.stat(path).st_size, most))
    return b""
