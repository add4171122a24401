"""Finding documents: which files a place holds, in a stable order. Nothing here interprets content.

A folder that was named without a format is looked at together with its immediate sub-folders: skills (a
``SKILL.md``), ``tools.json``, groups (``*_tools.json`` and other JSON files that carry a marker), and
``.ai/tools`` below it. Folders of executables are only looked at when they were named as such, because
asking a program for its schema runs it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

import orjson
from msgspec import Struct
from msgspec.structs import asdict, replace

from toolcrib import formats, jsontext
from toolcrib.catalog import files
from toolcrib.catalog.files import Fingerprint
from toolcrib.errors import SourceError
from toolcrib.model import (
    RYE_SUFFIXES,
    TOOL_SUFFIX,
    Document,
    OpenApiOptions,
    ProbeOutcome,
    Problem,
    Severity,
)
from toolcrib.paths import is_below, is_utf8
from toolcrib.records import Discreet

if TYPE_CHECKING:
    from toolcrib.formats.mcp import Server

SKIPPED: Final = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "build", "dist"})
_SKIPPED_BELOW_RYE: Final = frozenset({"__pycache__", "node_modules", ".git", ".venv"})
_LEADS_OUT: Final = "a link that leads out of the source is not followed"
PROGRAMS_MAX: Final = 256
"""Executables that a folder may have for all of them to be asked for their schemas."""
_LISTS: Final = (".json", ".jsonc", ".toml")
"""How files end that may list MCP servers."""
SKILL_FILES: Final = ("SKILL.md", "tools.json", "allowlist.json", "execution.json")
"""What is read of a skill, and what a lock of its tools covers."""

Asker: TypeAlias = Callable[[Sequence["Candidate"]], Sequence[tuple[bytes | None, str | None, str | None]]]
"""Asks MCP servers for their tools, all at once, in the order given: what they said, or why they said
nothing and what to do about it. Starts them."""
_LONG_VALUES_MAX: Final = 1_000_000
Fetcher: TypeAlias = Callable[[Sequence[str]], Sequence[tuple[bytes | None, str | None]]]
"""The contents behind URLs, all at once, in the order given, or why there are none."""

Prober: TypeAlias = Callable[[Sequence[str]], Sequence[tuple[bytes, ProbeOutcome]]]
"""Asks programs for their schemas, in the order given. Runs them."""


class Source(Discreet, frozen=True, kw_only=True):
    """A place where declarations are found."""

    HIDDEN: ClassVar = ("server",)

    path: str
    """Absolute."""
    format: str | None = None
    probe: bool = False
    """Whether programs of this place may be run to learn their schemas, and what servers that it lists say
    about the effects of their tools counts."""
    handlers: str | None = None
    named: bool = False
    """A person named it, so that a missing path is their mistake and not a detail of the machine."""
    found: bool = False
    """It is the current folder, which is used because nothing else is named: no one vouches for its tools."""
    space: int | None = None
    root: str = ""
    """The folder that whoever named the source vouches for; empty: the source itself."""
    server: str = ""
    """An MCP server that the file at ``path`` names, in one line; it may hold secrets."""
    starts: bool = False
    """Whether MCP servers that this source lists may be started."""
    openapi: OpenApiOptions | None = None
    """What is said about the document of a source with the format ``openapi``."""


class Candidate(NamedTuple):
    """A document that may be there: where it is and what its files' fingerprints are; nothing is read yet."""

    path: str
    files: tuple[tuple[str, Fingerprint], ...]
    place: str | None = None
    item: str = ""
    scope: str = ""
    space: int = 0
    explicit: bool = False
    quiet: bool = False
    """A file whose name promises nothing: without a marker it is simply no declaration."""
    project: str = ""
    handlers: tuple[str, ...] = ()
    unreadable: str | None = None
    among_groups: bool = False
    server: str = ""
    """The digest of an MCP server's definition."""
    defined: str = ""
    """The definition itself, which is only ever in memory."""
    openapi: OpenApiOptions | None = None
    url: str = ""
    """The URL of a document that is fetched, which is only ever in memory: it may hold secrets."""
    asked: str = ""
    """The format that its source was named with."""


class _Home(NamedTuple):
    """What the candidates of one folder have in common."""

    folder: str
    place: str | None
    scope: str
    space: int
    project: str = ""
    below: str | None = None
    """The path of the folder below the root that gives its documents their identity."""
    handlers: tuple[str, ...] = ()
    among_groups: bool = False
    server: str = ""
    openapi: OpenApiOptions | None = None
    fetched: str = ""
    """The digest of a URL."""
    asked: str = ""


class _Row(NamedTuple):
    """One candidate of a home, by number. In a listing these are bare tuples: a warm start makes ten
    thousand of them and needs nothing but their text."""

    home: int
    names: tuple[str, ...]
    prints: tuple[Fingerprint, ...]
    explicit: bool = False
    quiet: bool = False
    unreadable: str | None = None


class Listing:
    """What the sources hold."""

    def __init__(self, *, entries: int = 0, servers: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.homes: list[_Home] = []
        self.rows: list[tuple[Any, ...]] = []
        self.problems: list[Problem] = []
        self.entries = entries
        self.paths: set[str] = set()
        self.folders: list[str] = []
        """Every folder whose entries were looked at, for whoever waits for changes. Not part of the stamp."""
        self.whole: list[str] = []
        """Folders in which everything belongs to tools, with what lies below. Not part of the stamp."""
        self.links: list[str] = []
        """Documents that are links, and folders of them. Not part of the stamp."""
        self.fetched: dict[str, str] = {}
        """The URLs of documents that are fetched, by their digests. Not part of the stamp."""
        self.servers = dict(servers or {})
        """MCP servers, each with the file that names it, by the digest of its definition. Not part of the
        stamp: a definition may hold secrets."""
        self.barred: Mapping[str, Problem] = {}
        """The documents that are left alone until a person confirms them, and why: part of the stamp."""
        self.suspected: set[str] = set()
        """Files that a tool may have changed and that may be declarations: left alone where they are some."""
        self.confirmed: dict[str, str] = {}
        """Files that count only with the bytes that a person confirmed, and the digests of these: part of the
        stamp."""
        self.owners: dict[tuple[str, str], str] = {}
        """The path of the source that named a server or an API first, by format and name."""

    def leave_alone(self, barred: Mapping[str, Problem]) -> None:
        """Count no document of these paths, and start no server that one of them names."""
        self.barred = barred
        self.servers = {digest: named for digest, named in self.servers.items() if named[1] not in barred}

    def home(self, home: _Home) -> int:
        self.homes.append(home)
        return len(self.homes) - 1

    @cached_property
    def candidates(self) -> list[Candidate]:
        return [self._candidate(_Row._make(row)) for row in self.rows]

    def _candidate(self, row: _Row) -> Candidate:
        home = self.homes[row.home]
        paths = [f"{home.folder}/{name}" for name in row.names]
        return Candidate(
            paths[0],
            tuple(zip(paths, row.prints, strict=True)),
            home.place,
            "" if home.below is None else home.below + row.names[0],
            home.scope,
            home.space,
            row.explicit,
            row.quiet,
            home.project,
            home.handlers,
            row.unreadable,
            home.among_groups,
            home.server,
            self.servers[home.server][0] if home.server in self.servers else "",
            home.openapi,
            self.fetched[home.fetched] if home.fetched else "",
            home.asked,
        )

    @property
    def stamp(self) -> bytes:
        """What was seen, as text: the same stamp means that nothing has changed."""
        if not self.barred and not self.suspected and not self.confirmed:
            return self._stamp
        left = sorted(self.barred), sorted(self.suspected - self.barred.keys())
        return self._stamp + orjson.dumps([left, sorted(self.confirmed.items())])

    @cached_property
    def _stamp(self) -> bytes:
        return orjson.dumps([[tuple(home) for home in self.homes], self.rows], default=asdict)

    @property
    def marks(self) -> list[str]:
        """A digest for each candidate: the same mark means that its document has not changed."""
        return [
            hashlib.blake2b(
                orjson.dumps((tuple(self.homes[row[0]]), row[1:], *self._standing(row)), default=asdict),
                digest_size=12,
            ).hexdigest()
            for row in self.rows
        ]

    def _standing(self, row: tuple[Any, ...]) -> list[Any]:
        """What a document's mark holds besides its files. Attack: a tool changes a file that it has mapped
        into memory, so that its times stay, and what was compiled from it before is taken for what is there
        once a person confirms it."""
        if not self.barred and not self.confirmed:
            return []
        paths = [f"{self.homes[row[0]].folder}/{name}" for name in row[1]]
        digests = [self.confirmed[path] for path in paths if path in self.confirmed]
        return [["barred"]] if paths[0] in self.barred else [digests] if digests else []


def listing(
    sources: Sequence[Source],
    *,
    rye_spaces: Callable[[], Sequence[Source]] = tuple,
    changed: Callable[[str], Fingerprint] = lambda _digest: _NEVER,
) -> Listing:
    """All candidates of all sources, in the order given. ``rye_spaces`` are asked for when a rye item is
    among them: a project's tools may chain to the user's and the system's. ``changed`` tells when an MCP
    server last said that its tools are others now."""
    found = Listing()
    for rank, source in enumerate(sources):
        _Look(found, source, rank, changed).look()
    if any(home.place == "rye" for home in found.homes):
        for source in rye_spaces():
            _Look(found, source, source.space or 0).look()
    return found


class _Look:
    """One source, looked through."""

    def __init__(
        self,
        found: Listing,
        source: Source,
        rank: int,
        changed: Callable[[str], Fingerprint] = lambda _digest: _NEVER,
    ) -> None:
        self.changed = changed
        self.found = found
        self.source = source
        self.rank = rank
        self.told = len(found.problems)
        """How many problems there were before."""
        self.root = ""
        """The real folder that links must not lead out of."""
        is_asked_for = source.named or source.format == "openapi"
        self.openapi = source.openapi or (OpenApiOptions() if is_asked_for else None)

    def look(self) -> None:
        path = self.source.path
        if not is_utf8(path):
            self.missing("its name is not UTF-8")
            return
        named = self.source.openapi
        if named is not None and named.name and not self.claims("openapi", named.name, path):
            return
        if _is_url(path):
            self.fetched(path)
            return
        if self.source.server:
            self.server(path, formats.server_of(self.source.server))
            return
        try:
            status = os.stat(path)
        except OSError as error:
            self.missing(files.reason(error))
            return
        is_folder = stat.S_ISDIR(status.st_mode)
        self.root = os.path.realpath(path if is_folder else os.path.dirname(path))
        if is_folder:
            if not os.access(path, os.R_OK | os.X_OK):
                self.missing("permission denied")
                return
            self.folder(path)
        else:
            self.file(path, status)

    def missing(self, why: str) -> None:
        if self.source.named or self.source.found:
            raise SourceError(
                f"{_printable(self.source.path)}: {why}",
                "name a folder of tools or a declaration file that can be read",
            )
        self.warn(
            "source.missing",
            f"{why}: the source has no tools",
            _printable(self.source.path),
            "correct its path in the configuration, or remove the source",
        )

    def warn(self, code: str, message: str, path: str, hint: str | None) -> None:
        self.found.problems.append(
            Problem(code=code, severity=Severity.WARNING, message=message, path=path, hint=hint)
        )

    # -- folders --------------------------------------------------------------------------------------------

    def folder(self, path: str) -> None:
        match self.source.format:
            case None:
                self.any_folder(path)
            case "skill":
                names = self.names(path)
                if "SKILL.md" in names or "tools.json" in names:
                    self.skill(path, names, explicit=True)
                elif not self.skill_root(path, names):
                    self.nothing(path, "no skills", "no SKILL.md or tools.json, here or one folder below")
            case "manifest":
                names = self.names(path)
                if "tools.json" in names:
                    self.json_files(path, names, "manifest", "tools.json")
                else:
                    self.nothing(path, "no manifest", "no tools.json")
            case "capability":
                names = self.names(path)
                if not any(name.endswith(".json") for name in names):
                    self.nothing(path, "no groups", "no JSON file")
                self.json_files(path, names, "capability")
            case "rye":
                inner = os.path.join(path, ".ai", "tools")
                if os.path.isdir(inner):
                    if self.contained(inner, None):
                        self.rye_tree(inner, path)
                elif "/.ai/tools/" in f"{path}/":
                    self.rye_tree(path, _project_of(path))
                else:
                    self.refuse(path, "there is no .ai/tools in this folder")
            case "executable":
                self.executables(path)
            case "mcp":
                self.refuse(path, "a list of MCP servers is a file, and this is a folder")
            case "openapi":
                self.refuse(path, "an OpenAPI document is a file, and this is a folder")
            case other:
                raise AssertionError(other)

    def any_folder(self, path: str) -> None:
        names = self.names(path)
        if "/.ai/tools/" in f"{path}/":
            self.rye_tree(path, _project_of(path))
            return
        self.look_into(path, names)
        for name in sorted(name for name in names if not name.endswith(".json")):
            if name.startswith(".") or name in SKIPPED or not _is_folder(names[name]):
                continue
            inner = os.path.join(path, name)
            if not self.contained(inner, names[name]):
                continue
            if names[name].is_symlink() and self.looked_at_anyway(inner):
                continue
            inner_names = self.names(inner)
            self.look_into(inner, inner_names)
            if name == "skills":
                self.skill_root(inner, inner_names)

    def looked_at_anyway(self, link: str) -> bool:
        """Whether a link leads to the source or to a folder of it, whose tools would come twice."""
        target = os.path.realpath(link)
        return target == self.root or os.path.dirname(target) == self.root

    def look_into(self, path: str, names: Mapping[str, os.DirEntry[str]]) -> None:
        if "SKILL.md" in names:
            self.skill(path, names)
        else:
            self.json_files(path, names)
        if ".ai" in names:
            tools = os.path.join(path, ".ai", "tools")
            if os.path.isdir(tools) and self.contained(tools, None):
                self.rye_tree(tools, path)

    def json_files(
        self,
        path: str,
        names: Mapping[str, os.DirEntry[str]],
        place: str | None = None,
        only: str | None = None,
    ) -> None:
        """The JSON files of a folder, or one of them that was named."""
        found = [only] if only else sorted(name for name in names if name.endswith(".json"))
        if not found:
            return
        home = self.found.home(
            _Home(
                path,
                place,
                self.scope(path),
                self.rank,
                handlers=self.handlers(path),
                among_groups=any(name.endswith("_tools.json") for name in names),
                openapi=self.openapi if only else None,
                asked=self.source.format or "",
            )
        )
        if only is None and "tools.json" not in names:
            self.add_plain(home, found, names)
            return
        for name in found:
            if name == "tools.json":
                wanted = [name, *(other for other in SKILL_FILES if other in names and other != name)]
            elif name in SKILL_FILES and "tools.json" in names and not only:
                continue
            else:
                wanted = [name]
            is_quiet = place is None and not only and not name.endswith("tools.json")
            self.add(home, wanted, names, explicit=only is not None, quiet=is_quiet)

    def skill_root(self, path: str, names: Mapping[str, os.DirEntry[str]]) -> bool:
        """Look for skills in the folders of a folder. Return whether there are any."""
        before = len(self.found.rows)
        has_any = self.skills_of(path, names)
        if len(self.found.rows) > before:
            self.found.whole.append(path)
        return has_any

    def skills_of(self, path: str, names: Mapping[str, os.DirEntry[str]]) -> bool:
        has_any = False
        for name in sorted(names):
            if name.startswith(".") or not _is_folder(names[name]):
                continue
            inner = os.path.join(path, name)
            if not self.contained(inner, names[name]):
                continue
            if names[name].is_symlink():
                if os.path.realpath(inner) in (self.root, os.path.realpath(path)):
                    continue
                self.found.links.append(inner)
            inner_names = self.names(inner)
            if "SKILL.md" in inner_names:
                self.skill(inner, inner_names)
            elif "tools.json" in inner_names:
                self.json_files(inner, inner_names)
            else:
                continue
            has_any = True
        return has_any

    def skill(self, path: str, names: Mapping[str, os.DirEntry[str]], *, explicit: bool = False) -> None:
        main = "tools.json" if "tools.json" in names else "SKILL.md"
        asked = self.source.format or ""
        home = self.found.home(_Home(path, "skill", os.path.basename(path), self.rank, asked=asked))
        beside = (name for name in SKILL_FILES if name in names and name != main)
        self.add(home, [main, *beside], names, explicit=explicit)

    def handlers(self, path: str) -> tuple[str, ...]:
        """List the folders that may contain the handlers of this folder's groups: in it, beside it, beside
        its parent."""
        if self.source.handlers:
            return (self.source.handlers,)
        parent = os.path.dirname(path)
        above = dict.fromkeys((path, parent, os.path.dirname(parent)))
        return tuple(f"{folder}/handlers" for folder in above if self.is_ours(folder))

    def is_ours(self, folder: str) -> bool:
        """Tell whether handlers in this folder belong to the source.

        Attack: code beside a clone, in a folder that anyone may write to, passes for its handlers. Above what
        a person named, only folders count that no other user may write to.
        """
        source = self.source
        if is_below(folder, (source.path if source.named else source.root or source.path,)):
            return True
        if not source.named or not source.root:
            return False
        handlers = f"{folder}/handlers"
        return os.path.isdir(handlers) and not any(map(files.foreign, (folder, handlers)))

    def scope(self, path: str) -> str:
        below = os.path.relpath(path, self.source.path)
        if below == "." or below.startswith(".."):
            return os.path.basename(path) or "root"
        return below

    def rye_tree(self, path: str, project: str, below: str = "", depth: int = 0) -> None:
        names = self.names(path)
        if not depth:
            self.found.whole.append(path)
        home: int | None = None
        for name in sorted(name for name in names if not name.startswith("_")):
            if names[name].is_dir(follow_symlinks=False):
                if name not in _SKIPPED_BELOW_RYE and depth < files.DEPTH_MAX:
                    self.rye_tree(f"{path}/{name}", project, f"{below}{name}/", depth + 1)
            elif name.endswith(RYE_SUFFIXES):
                if home is None:
                    home = self.found.home(
                        _Home(path, "rye", below[:-1], self.source.space or 0, project, below)
                    )
                self.add_plain(home, (name,), names)

    def executables(self, path: str) -> None:
        names = self.names(path)
        if not self.source.probe:
            self.not_probed(path)
            return
        if self.is_anybodys(path):
            return
        self.found.whole.append(path)
        named = {name for name in names if name.endswith(TOOL_SUFFIX) and name != TOOL_SUFFIX}
        found: dict[str, os.stat_result] = {}
        for name in sorted(names):
            try:
                status = names[name].stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and (status.st_mode & 0o111 or name in named):
                found[name] = status
        if not found:
            why = "no file with its executable bit set"
            self.nothing(path, "nothing executable", why, "make the programs executable (chmod +x)")
        wanted = [name for name in found if name in named] if len(found) > PROGRAMS_MAX else [*found]
        for name in wanted:
            self.executable(f"{path}/{name}", found[name])
        if len(wanted) < len(found):
            passed = (
                f"{len(found) - len(wanted):,} of {len(found):,} programs were not asked for their schemas"
            )
            self.warn(
                "executable.discover.suffix",
                f"{passed}: in a folder of more than {PROGRAMS_MAX}, only those named NAME-tool are",
                path,
                "name one by its path: --from executable=PATH/NAME; or give it a name that ends in -tool",
            )

    def executable(self, path: str, status: os.stat_result, *, explicit: bool = False) -> None:
        if not self.source.probe:
            self.not_probed(path)
            return
        if path in self.found.paths or self.is_anybodys(path):
            return
        if explicit and self.is_anybodys(os.path.dirname(path)):
            return
        self.found.paths.add(path)
        runs = bool(status.st_mode & 0o111) and os.access(path, os.X_OK)
        folder, name = os.path.split(path)
        home = self.found.home(_Home(folder, "executable", os.path.basename(folder), self.rank))
        self.found.rows.append(
            (home, (name,), (files.fingerprint(status),), explicit, False, None if runs else "not executable")
        )

    def is_anybodys(self, path: str) -> bool:
        """Whether somebody else could put a program of theirs here; then it is told, and nothing is run.

        Attack: another user of the machine who may write to a folder of tools has them run as us.
        """
        why = files.foreign(path)
        if why is None:
            return False
        self.warn(
            "executable.discover.writable-dir",
            f"programs here are not run: {why}",
            path,
            f"chmod go-w {os.path.basename(path)}, and make sure that it is your own",
        )
        return True

    def not_probed(self, path: str) -> None:
        self.warn(
            "source.not-probed",
            "programs here were not asked for their schemas, because asking runs them",
            path,
            "name the folder yourself: --from executable=PATH",
        )

    # -- files ----------------------------------------------------------------------------------------------

    def file(self, path: str, status: os.stat_result) -> None:
        folder, name = os.path.split(path)
        if self.source.format == "executable":
            self.executable(path, status, explicit=True)
            return
        names = self.names(folder)
        if name not in names:
            self.missing("it cannot be read")
        elif name == "SKILL.md":
            if self.is_asked_as("skill", path):
                self.skill(folder, names, explicit=True)
        elif self.source.format == "rye" or "/.ai/tools/" in path:
            if not self.is_asked_as("rye", path):
                return
            head, marker, item = path.rpartition("/.ai/tools/")
            if not marker:
                self.refuse(
                    path, "a rye tool gets its id from its path below .ai/tools, and this file is not there"
                )
                return
            home = _Home(
                folder, "rye", os.path.dirname(item), self.source.space or 0, head, item[: -len(name)]
            )
            self.add(self.found.home(home), [name], names, explicit=True)
        elif (self.source.format == "mcp" or name.endswith(_LISTS)) and self.servers(path):
            return
        elif self.source.format == "openapi" or (
            self.source.named and self.source.format is None and _is_openapi_only(name, status)
        ):
            scope, asked = os.path.basename(folder), self.source.format or ""
            home = _Home(folder, "openapi", scope, self.rank, openapi=self.openapi, asked=asked)
            self.add(self.found.home(home), [name], names, explicit=True)
        elif name.endswith(".json"):
            place = self.source.format
            if place is None and name == "tools.json" and "SKILL.md" in names:
                place = "skill"
            if place == "skill":
                scope, asked = os.path.basename(folder), self.source.format or ""
                home = _Home(folder, place, scope, self.rank, asked=asked)
                beside = (other for other in SKILL_FILES if other in names and other != name)
                self.add(self.found.home(home), [name, *beside], names, explicit=True)
            else:
                self.json_files(folder, names, place, name)
        else:
            what = "a declaration: no format of tools has files like this one"
            self.refuse(path, f"not {formats.WANTED.get(self.source.format or '', what)}")

    # -- what is fetched ------------------------------------------------------------------------------------

    def fetched(self, url: str) -> None:
        """A document behind a URL, where it may be fetched. Attack: a clone that makes us send requests."""
        if not self.source.starts:
            self.refuse(_shown(url), "only a configuration that a person named may have documents fetched")
            return
        folder, _, name = _shown(url).rpartition("/")
        digest = hashlib.sha256(url.encode("utf-8")).hexdigest()
        self.found.fetched[digest] = url
        home = _Home(folder, "openapi", "", self.rank, openapi=self.openapi, fetched=digest)
        self.found.rows.append((self.found.home(home), (name,), (self.changed(digest),), True, False, None))

    # -- MCP servers ----------------------------------------------------------------------------------------

    def servers(self, path: str) -> bool:
        """Whether a named file is a list of MCP servers; then they are candidates, where they may start."""
        if self.source.format not in (None, "mcp"):
            return False
        is_asked_for = self.source.format == "mcp"
        content, why = files.read(path)
        document = None
        if content is not None:
            document = formats.list_of_servers(path, content, is_asked_for=is_asked_for)
        listed = formats.servers_in(document, is_asked_for=is_asked_for) if document is not None else None
        if listed is None:
            defect = document.parsed.defect if document is not None and document.parsed is not None else None
            # Another format's file may be broken JSON as well; TOML that names servers is no other's.
            is_list = is_asked_for or (defect is not None and not path.endswith(".json"))
            if is_list:
                reason = defect or why or "there is no object mcpServers in it"
                self.refuse(path, f"not a list of MCP servers: {reason}", defect)
            return is_list
        if not self.source.starts:
            self.not_asked(path)
            return True
        servers, others, problems = listed
        self.found.problems += problems
        for name in others:
            self.claims("mcp", name, path)
        for server in servers:
            self.server(path, replace(server, trusted=True) if self.source.probe else server)
        return True

    def server(self, path: str, server: Server) -> None:
        if not self.claims("mcp", server.name, path):
            return
        digest = server.digest
        folder, name = os.path.split(path)
        home = _Home(folder, "mcp", server.name, self.rank, server=digest)
        self.found.servers[digest] = (server.text, path)
        self.found.rows.append((self.found.home(home), (name,), (self.changed(digest),), True, False, None))

    def claims(self, format: str, name: str, path: str) -> bool:
        """Whether this source is the first to name a server or an API so; the others are left out.

        Attack: a second server of the same name, which gets the first one's name, and whatever was granted
        to that, as soon as the first one is down. A name belongs to who named it first, alive or not, and
        nothing of the others is started or asked.
        """
        owner = self.found.owners.get((format, name))
        if owner is None:
            self.found.owners[format, name] = path
            return True
        code, what = _CLASHES[format]
        self.found.problems.append(
            Problem(
                code=code,
                message=f'another {what} is called "{name}": this one is left out',
                path=_shown(path) if _is_url(path) else path,
                name=name,
                hint=f"give each {what} a name of its own",
            )
        )
        return False

    def not_asked(self, path: str) -> None:
        """Attack: a clone whose list of servers is a list of programs to run."""
        self.warn(
            "source.not-probed",
            "a list of MCP servers, which were not asked for their tools: asking starts them",
            path,
            f"read it, and if you trust it, name it: --from {path}",
        )

    def refuse(self, path: str, why: str, defect: jsontext.Defect | None = None) -> None:
        hint = "name a folder, a JSON declaration, a SKILL.md, an OpenAPI document, or a file below .ai/tools"
        self.found.problems.append(
            Problem(
                code="source.unknown-file",
                message=why,
                path=path,
                line=defect.line if defect is not None else None,
                hint=hint if defect is None else "correct the file at that place, or name another one",
            )
        )

    def nothing(self, path: str, what: str, why: str, hint: str = "") -> None:
        """Report a folder that has nothing of the format it was named with, unless a problem says why."""
        if len(self.found.problems) > self.told:
            return
        asked = self.source.format or ""
        self.found.problems.append(
            Problem(
                code="source.nothing",
                severity=Severity.ERROR if self.source.named else Severity.WARNING,
                message=f"{what} in this folder: {why}",
                path=path,
                hint=hint or f"name a folder with {formats.WANTED[asked]}, or leave {asked}= out",
            )
        )

    def is_asked_as(self, format: str, path: str) -> bool:
        """Return whether a file was named with its own format, or with none; else report it."""
        if self.source.format in (None, format):
            return True
        code, message, hint = formats.another(self.source.format, format)
        self.found.problems.append(Problem(code=code, message=message, path=path, hint=hint))
        return False

    # -- the ground -----------------------------------------------------------------------------------------

    def names(self, path: str) -> dict[str, os.DirEntry[str]]:
        """The entries of a folder, at most so many in all."""
        room = max(0, files.ENTRIES_MAX - self.found.entries)
        self.found.folders.append(path)
        try:
            with os.scandir(path) as entries:
                names = {}
                for entry in islice(entries, room + 1):
                    name = entry.name
                    names[name] = entry
                    if name.endswith(RYE_SUFFIXES):
                        # Asked in the folder's own order, the kernel answers faster; the entry remembers.
                        try:
                            entry.stat()
                        except OSError:
                            continue  # told where the entry is used
        except OSError as error:
            self.unreadable(path, f"the folder cannot be read: {files.reason(error)}")
            return {}
        is_first = self.found.entries <= files.ENTRIES_MAX
        self.found.entries += len(names)
        if len(names) > room:
            why = f"more than {files.ENTRIES_MAX:,} entries to look at"
            hint = "name the folder that holds the tools instead of one far above it"
            if self.source.named or self.source.found:
                raise SourceError(f"{self.source.path}: {why}", hint)
            if is_first:
                self.unreadable(path, f"{why}: nothing from here on is looked at", hint)
            return {}
        foreign = [name for name in names if not name.isascii() and not is_utf8(name)]
        for name in foreign:
            del names[name]
        if foreign:
            self.unreadable(
                path,
                f"names that are not UTF-8 are left out ({len(foreign)} of them, such as"
                f' "{_printable(min(foreign))}")',
                "rename what is meant to be a tool",
            )
        return names

    def unreadable(self, path: str, why: str, hint: str | None = None) -> None:
        self.warn("source.unreadable", why, path, hint)

    def contained(self, path: str, entry: os.DirEntry[str] | None) -> bool:
        """Whether a folder really lies in the source. Attack: a link in a clone that leads into HOME."""
        if entry is not None and not entry.is_symlink():
            return True
        if files.inside(path, self.root):
            return True
        self.warn("source.link", _LEADS_OUT, path, "name its target as a source of its own")
        return False

    def add_plain(self, home: int, wanted: Iterable[str], names: Mapping[str, os.DirEntry[str]]) -> None:
        """Documents of one file each. Nearly all of many are such: this loop is most of a warm start."""
        folder, place = self.found.homes[home][:2]
        seen, add = self.found.paths, self.found.rows.append
        for name in wanted:
            path = f"{folder}/{name}"
            if path in seen:
                continue
            seen.add(path)
            entry = names[name]
            unreadable = None
            print_ = (0, 0, 0, 0)
            try:
                status = entry.stat()
            except OSError as error:
                unreadable = files.reason(error)
            else:
                print_ = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
                if entry.is_symlink():
                    self.found.links.append(path)
                    if not files.inside(path, self.root):
                        unreadable = _LEADS_OUT
            add(
                (
                    home,
                    (name,),
                    (print_,),
                    False,
                    place is None and not name.endswith("tools.json"),
                    unreadable,
                )
            )

    def add(
        self,
        home: int,
        wanted: Sequence[str],
        names: Mapping[str, os.DirEntry[str]],
        *,
        explicit: bool = False,
        quiet: bool = False,
    ) -> None:
        """A document of several files, the first of which it is known by."""
        folder = self.found.homes[home].folder
        main = f"{folder}/{wanted[0]}"
        if main in self.found.paths:
            return
        self.found.paths.add(main)
        prints: list[Fingerprint] = []
        unreadable = None
        for name in wanted:
            path = f"{folder}/{name}"
            entry = names[name]
            try:
                status = entry.stat()
            except OSError as error:
                unreadable = unreadable or files.reason(error)
                prints.append((0, 0, 0, 0))
                continue
            # A file that a person named may be a link to anywhere; what lies beside it may not.
            if entry.is_symlink():
                self.found.links.append(path)
                if path != self.source.path and not files.inside(path, self.root):
                    unreadable = unreadable or _LEADS_OUT
            prints.append(files.fingerprint(status))
        self.found.rows.append((home, tuple(wanted), tuple(prints), explicit, quiet, unreadable))


_NEVER: Final[Fingerprint] = (0, 0, 0, 0)
_CLASHES: Final = {
    "mcp": ("mcp.servers.clash", "MCP server"),
    "openapi": ("openapi.source.clash", "OpenAPI source"),
}


def _is_url(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _shown(url: str) -> str:
    # By name: few sources are URLs.
    shown: str = import_module("toolcrib.journal.redaction").shown_url(url)
    return shown


def _is_openapi_only(name: str, status: os.stat_result) -> bool:
    """Whether a named file can be nothing else: YAML outside of ``.ai/tools``, or longer than the other
    formats' declarations may be."""
    if name.endswith((".yaml", ".yml")):
        return True
    return name.endswith(".json") and status.st_size > files.DOCUMENT_BYTES_MAX


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle, or through a folder we may not enter
        return False


def _printable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _project_of(path: str) -> str:
    """The project of a path at or below its ``.ai/tools``."""
    return f"{path}/".partition("/.ai/tools/")[0]


class Spaces(Struct, frozen=True, kw_only=True):
    """Rye's spaces that belong to no project. Each is the folder that holds an ``.ai``."""

    user: str = ""
    systems: tuple[str, ...] = ()
    """Of installed bundles, in the order in which items are looked for."""

    @staticmethod
    def installed(user: str) -> Spaces:
        """The user's space, and those of the bundles that are installed now."""
        folders = (source.path for source in installed_bundles())
        return Spaces(user=user, systems=tuple(os.path.dirname(os.path.dirname(path)) for path in folders))

    def project_of(self, path: str) -> str | None:
        """The project that a declaration lies in; None: in none, or in a space that is nobody's project."""
        root, marker, _ = path.partition("/.ai/tools/")
        return root if marker and root != self.user and root not in self.systems else None


def installed_bundles() -> list[Source]:
    """Installed rye bundles: the system space."""
    # Attack: a clone that passes for an installed bundle. "" on the path stands for the current folder.
    return [*rye_bundles([folder for folder in sys.path if os.path.isabs(folder)])]


def rye_bundles(search_path: Sequence[str]) -> list[Source]:
    """The ``.ai/tools`` of installed bundles (entry points ``rye.bundles``), sorted by name.

    Reads the installed metadata as text: asking importlib would cost more than loading, and importing a
    bundle to learn where it lies would run it.
    """
    found: dict[str, str] = {}
    for folder in search_path:
        for path in sorted(_entry_points(folder)):
            content, _ = files.read(path)
            if content is None or b"[rye.bundles]" not in content:
                continue
            for line in content.decode("utf-8", "replace").partition("[rye.bundles]")[2].splitlines():
                name, equals, target = (part.strip() for part in line.partition("="))
                if line.lstrip().startswith("["):
                    break
                module = target.partition(":")[0]
                tools = os.path.join(folder, *module.split("."), ".ai", "tools")
                if equals and name not in found and os.path.isdir(tools):
                    found[name] = tools
    return [Source(path=found[name], format="rye", space=2) for name in sorted(found)]


def _entry_points(folder: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                path = f"{folder}/{name}/entry_points.txt"
                if os.path.isfile(path):
                    yield path


# -- reading ------------------------------------------------------------------------------------------------


def documents(
    candidates: Sequence[Candidate],
    prober: Prober,
    asker: Asker | None = None,
    fetcher: Fetcher | None = None,
) -> Iterator[tuple[Candidate, Document]]:
    """Read candidates; programs among them are asked for their schemas, all at once, and so are servers
    and what lies behind URLs."""
    standing = [found for found in candidates if found.place == "mcp"]
    listed = iter(asker(standing) if asker is not None and standing else [_UNASKED] * len(standing))
    asked = [found.path for found in candidates if found.place == "executable" and not found.unreadable]
    answers = dict(zip(asked, prober(asked), strict=True)) if asked else {}
    urls = [found.url for found in candidates if found.url]
    fetched = iter(fetcher(urls) if fetcher is not None and urls else [_UNFETCHED] * len(urls))
    for candidate in candidates:
        if candidate.place == "mcp":
            yield candidate, _listed(candidate, *next(listed))
        elif candidate.url:
            yield candidate, _document(candidate, *next(fetched), {}, None)
        elif candidate.path in answers and candidate.place == "executable":
            content, outcome = answers[candidate.path]
            yield candidate, _document(candidate, content, None, {}, outcome)
        elif candidate.unreadable is not None:
            yield candidate, _document(candidate, None, candidate.unreadable, {}, None)
        else:
            yield candidate, _read(candidate)


_UNASKED: Final = (None, "nobody here asks servers", None)
_UNFETCHED: Final = (None, "nobody here fetches documents")


def _listed(candidate: Candidate, content: bytes | None, why: str | None, hint: str | None) -> Document:
    """What a server listed, as it would lie in a file."""
    return Document(
        path=candidate.path,
        content=content,
        unreadable=why,
        hint=hint,
        parsed=jsontext.read(content, values_max=_LISTED_VALUES_MAX) if content is not None else None,
        place="mcp",
        scope=candidate.scope,
        space=candidate.space,
        explicit=True,
        server=candidate.defined,
    )


_LISTED_VALUES_MAX: Final = 2_000_000


def _read(candidate: Candidate) -> Document:
    (main, _), *beside = candidate.files
    is_long = candidate.place == "openapi"
    content, unreadable = files.read(
        main, files.LONG_DOCUMENT_BYTES_MAX if is_long else files.DOCUMENT_BYTES_MAX
    )
    neighbours = {}
    for path, _ in beside:
        read, why = files.read(path)
        if read is not None:
            neighbours[os.path.basename(path)] = read
        elif unreadable is None:
            unreadable = f"{os.path.basename(path)}: {why}"
    if main.endswith("/SKILL.md") and candidate.place == "skill" and content is not None:
        neighbours["SKILL.md"] = content
        content = None
    return _document(candidate, content, unreadable, neighbours, None)


def _document(
    candidate: Candidate,
    content: bytes | None,
    unreadable: str | None,
    neighbours: Mapping[str, bytes],
    probe: ProbeOutcome | None,
) -> Document:
    is_json = candidate.place == "executable" or candidate.path.endswith(".json")
    if content is not None and _is_url(candidate.path):
        is_json = content.lstrip()[:1] == b"{"
    parsed = None
    if content is not None and is_json:
        is_long = candidate.place == "openapi"
        parsed = jsontext.read(content, values_max=_LONG_VALUES_MAX if is_long else jsontext.VALUES_MAX)
        if len(content) > files.DOCUMENT_BYTES_MAX and not _says_openapi(parsed):
            unreadable = files.too_long(len(content), files.DOCUMENT_BYTES_MAX)
            content = parsed = None
    return Document(
        path=candidate.path,
        content=content,
        unreadable=unreadable,
        parsed=parsed,
        place=candidate.place,
        item=candidate.item,
        scope=candidate.scope,
        space=candidate.space,
        explicit=candidate.explicit,
        neighbours=neighbours,
        handlers=candidate.handlers,
        among_groups=candidate.among_groups,
        probe=probe,
        project=candidate.project,
        openapi=candidate.openapi,
        asked=candidate.asked,
    )


def _says_openapi(parsed: jsontext.Parsed) -> bool:
    """Whether a long document may be as long as it is: those of the other formats may not."""
    return parsed.defect is not None or (isinstance(parsed.value, dict) and "openapi" in parsed.value)
