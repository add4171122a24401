"""Find what the user's next git command would run or obey, around a folder. Reads files, and starts no git.

Git runs programs that its configuration names, and hooks. It finds both by way of many files: ``.git``, which
may be a file that names a folder; ``commondir`` of a linked worktree; ``config.worktree``; the configuration
of each submodule, which ``git status`` looks into; included files; ``remotes`` and ``branches``, which say
where ``git push`` leads, and the repository there has hooks as well. A tool that writes one of them chooses
what runs.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from toolcrib.catalog import files
from toolcrib.paths import is_below
from toolcrib.sandbox import _placeholders
from toolcrib.sandbox._gitconfig import Setting, settings
from toolcrib.sandbox._placeholders import CONFIG, OF_WORKTREE

WORKTREES_MAX: Final = 32
"""With more linked worktrees, what git keeps about all of them is held as a whole."""

_OF_REPOSITORY: Final = ("hooks", CONFIG, OF_WORKTREE, "modules", "commondir", "remotes", "branches")
_OF_WORKTREE: Final = ("commondir", "gitdir", OF_WORKTREE, "modules")
_FILE_BYTES_MAX: Final = 4096
_CONFIG_BYTES_MAX: Final = 1 << 20
_INDEX_BYTES_MAX: Final = 256 << 20
_SUBMODULES_MAX: Final = 1000
_INCLUDES_MAX: Final = 256
_TRIES: Final = 5
"""Another program may write a file at that moment."""
_NOTHING_THERE: Final = (errno.ENOENT, errno.ENOTDIR)
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


class Unclear(Exception):
    """It cannot be told what git would run or obey: the file, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def find(folders: Iterable[str], looked_at: dict[str, None], *, home: str = "") -> Found:
    """Find it for the repositories around these folders. ``looked_at`` takes what it depends on.

    Raises Unclear where something is there that cannot be read, or that git alone understands.
    """
    return _Search(looked_at, home).find(folders)


class _Search:
    def __init__(self, looked_at: dict[str, None], home: str) -> None:
        self._looked_at = looked_at
        self._home = home

    def find(self, folders: Iterable[str]) -> Found:
        seen: dict[str, None] = {}
        code: dict[str, None] = {}
        elsewhere: dict[str, None] = {}
        for folder in dict.fromkeys(folders):
            top, own, common, named_by = self._repository(folder)
            if not own:
                continue
            seen |= dict.fromkeys((*named_by, own, common))
            code |= dict.fromkeys((*named_by, *(os.path.join(common, name) for name in _OF_REPOSITORY)))
            if own != common:
                code |= dict.fromkeys(os.path.join(own, name) for name in _OF_WORKTREE)
            self._looked_at |= dict.fromkeys((own, common, f"{common}/worktrees"))
            repositories = {(top, own): None}
            for path, is_inside in self._worktrees(common, repositories):
                (code if is_inside else elsewhere)[path] = None
            elsewhere |= dict.fromkeys(self._submodules(top, own, repositories))
            elsewhere |= dict.fromkeys(self._named_by_configuration(repositories))
        return Found(
            folders=tuple(seen),
            code=tuple(path for path in code if _is_there(path)),
            absent=tuple(
                path for path in code if not _is_there(path) and os.path.isdir(os.path.dirname(path))
            ),
            elsewhere=tuple(path for path in elsewhere if _is_there(path)),
            elsewhere_absent=tuple(path for path in elsewhere if not _is_there(path)),
        )  # fmt: skip

    def _repository(self, folder: str) -> tuple[str, str, str, tuple[str, ...]]:
        """Return the top folder of the repository around a folder, its own folder, the one that it shares
        with others, and the file that names it, if any; empty texts where there is no repository."""
        while True:
            self._looked_at[folder] = None
            place = os.path.join(folder, ".git")
            mode = _mode(place)
            if stat.S_ISDIR(mode):
                own = os.path.realpath(place)
                return folder, own, self._common(own), ()
            if stat.S_ISREG(mode):  # a worktree or submodule: the file names the folder
                named_by = (os.path.realpath(place),)
                inside = self._named_in(place, "gitdir: ", folder)
                common = self._common(inside) if inside else named_by[0]
                return folder, inside or named_by[0], common, named_by
            above = os.path.dirname(folder)
            if above == folder:
                return "", "", "", ()
            folder = above

    def _common(self, own: str) -> str:
        return self._named_in(os.path.join(own, "commondir"), "", own) or own

    def _named_in(self, path: str, prefix: str, base: str) -> str | None:
        """Return the folder that a file names."""
        text = self._line(path)
        if not text.startswith(prefix):
            return None
        real = os.path.realpath(os.path.join(base, text.removeprefix(prefix)))
        return real if stat.S_ISDIR(_mode(real)) else None

    def _line(self, path: str) -> str:
        text = self._read(path, _FILE_BYTES_MAX).decode("utf-8", "surrogateescape").strip()
        return "" if "\0" in text else text

    def _read(self, path: str, most: int) -> bytes:
        """Return what a file holds, and nothing where there is none.

        Attack: a tool closes a file to us, by its mode or a lease, or puts a pipe in its place, so that we
        see nothing to protect in what git reads later.
        """
        self._looked_at[path] = None
        for _ in range(_TRIES):
            try:
                size = os.stat(path).st_size
                content = files.head(path, min(size, most) + 1)
            except OSError as error:
                if error.errno in _NOTHING_THERE or path == os.devnull:
                    return b""
                raise Unclear(path, files.reason(error)) from None
            if len(content) > most:
                raise Unclear(path, f"it has more than {most:,} bytes")
            if len(content) == size:
                return content
        raise Unclear(path, "it changes while it is looked at")

    def _worktrees(
        self, common: str, repositories: dict[tuple[str, str], None]
    ) -> Iterator[tuple[str, bool]]:
        """Return what git obeys of each linked worktree: in the repository's folder (True), and its ``.git``.
        Put the worktrees with the ``repositories``."""
        folder = os.path.join(common, "worktrees")
        names = _names(folder)
        if len(names) > WORKTREES_MAX:
            yield folder, True
        if len(names) > 4 * WORKTREES_MAX:
            raise Unclear(folder, f"it has more than {4 * WORKTREES_MAX} entries")
        for name in names:
            inside = os.path.join(folder, name)
            if len(names) <= WORKTREES_MAX:
                for part in _OF_WORKTREE:
                    yield os.path.join(inside, part), True
            place = self._line(os.path.join(inside, "gitdir"))
            if os.path.isabs(place) and stat.S_ISREG(_mode(place)):
                repositories[os.path.realpath(os.path.dirname(place)), os.path.realpath(inside)] = None
                yield os.path.realpath(place), False

    # -- submodules -----------------------------------------------------------------------------------------

    def _submodules(self, top: str, own: str, repositories: dict[tuple[str, str], None]) -> Iterator[str]:
        """Return what a tool must not write of the submodules, and of theirs: ``.git``, or, of one that is
        not checked out, its folder. Put the submodules with the ``repositories``.

        Attack: a tool makes the ``.git`` of a submodule name a folder of its own. ``git status`` in the
        repository above looks into each submodule, and runs what the configuration there says.
        """
        waiting = [(top, own)]
        seen: set[tuple[str, str]] = set()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            if len(seen) > _SUBMODULES_MAX:
                raise Unclear(top, f"it has more than {_SUBMODULES_MAX} submodules")
            seen.add(each)
            repositories[each] = None
            for name in self._gitlinks(each[1]):
                folder = os.path.realpath(os.path.join(each[0], name))
                place = os.path.join(folder, ".git")
                if os.path.lexists(place):
                    yield place
                    is_folder = stat.S_ISDIR(_mode(place))
                    inside = (
                        os.path.realpath(place) if is_folder else self._named_in(place, "gitdir: ", folder)
                    )
                    if inside:
                        waiting.append((folder, inside))
                else:
                    yield folder if os.path.isdir(folder) else place

    def _gitlinks(self, own: str) -> Iterator[str]:
        """Return the paths of submodules that the index of a repository lists."""
        names = [f"{own}/{name}" for name in _names(own) if name.startswith("sharedindex.")]
        size = 0
        for index in (f"{own}/index", *names):
            data = self._read(index, _INDEX_BYTES_MAX)
            if data[:4] == b"DIRC" and _GITLINK in data:
                size = size or self._hash_size(own)
                try:
                    yield from list(_gitlinks_in(data, size))
                except (IndexError, ValueError, struct.error):
                    raise Unclear(index, "it is no index of git") from None

    def _hash_size(self, own: str) -> int:
        found = "sha1"
        for name, value in self._settings(f"{self._common(own)}/{CONFIG}"):
            if name == "extensions.objectformat" and value is not None:
                found = value
        return 32 if found == "sha256" else 20

    # -- configuration --------------------------------------------------------------------------------------

    def _settings(self, path: str) -> list[Setting]:
        content = self._read(path, _CONFIG_BYTES_MAX)
        try:
            return list(settings(content))
        except ValueError as error:
            raise Unclear(path, str(error)) from None

    def _named_by_configuration(self, repositories: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Return the files that the configuration includes, under whatever condition, and other folders of
        hooks."""
        for top, own in repositories:
            common = self._common(own)
            waiting = [f"{common}/{CONFIG}", f"{common}/{OF_WORKTREE}", f"{own}/{OF_WORKTREE}"]
            seen: set[str] = set()
            while waiting:
                at = waiting.pop()
                if at in seen:
                    continue
                if len(seen) > _INCLUDES_MAX:
                    raise Unclear(at, f"more than {_INCLUDES_MAX} files are included")
                seen.add(at)
                for name, value in self._settings(at):
                    is_include = name == "include.path" or (
                        name.startswith("includeif.") and name.endswith(".path")
                    )
                    if not value or not (is_include or name == "core.hookspath"):
                        continue
                    for path in self._named(value, os.path.dirname(at) if is_include else top, at):
                        if is_include:
                            waiting.append(path)
                            yield path
                        elif not is_below(top, (path,)):  # that would be the whole project
                            yield path

    def _named(self, value: str, base: str, by: str) -> Iterator[str]:
        """Return what a path in the configuration may name.

        Attack: the versions of git differ, so we protect what one of them names and another obeys another.
        """
        if "\t" in value or "\r" in value:
            raise Unclear(by, "a path has a tab or a carriage return in it")
        if value.startswith("%(prefix)/"):
            raise Unclear(by, "a path begins with %(prefix), which only git can tell")
        for path in dict.fromkeys((value, value.removeprefix(":(optional)"))):
            if path.startswith("~"):
                user, _, rest = path[1:].partition("/")
                home = _home_of(user) if user else self._home
                if home:
                    yield os.path.realpath(os.path.join(home, rest.lstrip("/")))
            elif path:
                yield os.path.realpath(os.path.join(base, path))


def _is_there(path: str) -> bool:
    return os.path.lexists(path) and not _placeholders.is_one(path)


def _mode(path: str) -> int:
    """Return what kind of file a path leads to; 0: nothing is there."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return 0
        raise Unclear(path, files.reason(error)) from None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return []
        raise Unclear(folder, files.reason(error)) from None


def _home_of(user: str) -> str:
    with suppress(KeyError, UnicodeEncodeError):
        return pwd.getpwnam(user).pw_dir
    return ""


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
