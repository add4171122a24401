"""The files besides its own that a tool may load: where they lie, and their bytes as they were looked at.

A chain's ``anchor`` says where the files lie that belong to a tool, ``verify_deps`` which of them are
verified before it runs. Where nothing is anchored, a verified tool loads the neighbours that its file imports
by name, and these are found here from its text. ``trust/vetting.py`` verifies what is found; the runtimes
hand these very bytes to the interpreter. Nothing here decides whether a file is good, and nothing is run.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.catalog import digests, files
from toolcrib.catalog.digests import Contents, Held
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    CallHttp,
    CallJavaScript,
    CallMcp,
    CallPython,
    End,
    PythonStyle,
    RunProcess,
    Tool,
    Trust,
    Vetted,
)

DEPENDENCIES_MAX: Final = 10_000
DEPENDENCIES_BYTES_MAX: Final = 64 << 20
SHADOWS_MAX: Final = 4_000
"""More than a lock holds of one tool, so that it is refused there."""

PYTHON_MARKERS: Final = ("__init__.py", "pyproject.toml")
# What the runtimes that come with this product do for a Python file where no item says otherwise.
_PYTHON_ANCHOR: Final[JsonObject] = {
    "enabled": True,
    "markers_any": list(PYTHON_MARKERS),
    "lib": "lib",
    "env_paths": {"PYTHONPATH": {"prepend": ["{anchor_path}", "{runtime_lib}"]}},
}
_PYTHON_DEPENDENCIES: Final[JsonObject] = {
    "enabled": True,
    "extensions": [".py", ".yaml", ".yml", ".json"],
    "exclude_dirs": ["__pycache__", ".venv", "node_modules", ".git", "config"],
}
_EXCLUDED: Final = ("__pycache__", ".venv", "node_modules", ".git")
JAVASCRIPT: Final = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
_JAVASCRIPT_SUFFIXES: Final = ("", ".js", ".mjs", ".cjs", ".ts", ".json", "/index.js")
_JAVASCRIPT_IMPORT: Final = (
    rb"""(?:\bfrom|\bimport|\bimport\s*\(|\brequire\s*\()\s*["'](\.{1,2}/[^"'\n]{1,500})["']"""
)
"""Not compiled while importing: few calls need it."""
_PARSED_BYTES_MAX: Final = 1 << 20
_MODULES: Final = (".py", ".pyc", ".so", ".pyd")
"""How the names of files end that Python imports."""


class Unfit(Exception):
    """Files that cannot be verified, or lie where they must not."""

    def __init__(self, end: End, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.end = end
        self.hint = hint


class Anchor(Struct, frozen=True, kw_only=True):
    """The folder that a tool's files belong to."""

    wish: JsonObject
    path: str
    lib: str | None = None
    """The libraries of the runtime that the anchor is from."""


class Scope(Struct, frozen=True, kw_only=True):
    """Which files of which folders a tool may load. ``folders``: as they are named, and their real paths."""

    folders: tuple[tuple[str, str], ...]
    extensions: tuple[str, ...]
    excluded: frozenset[str]
    recursive: bool


class Loaded(Struct, frozen=True, kw_only=True):
    """The files that a tool may load, as they were looked at."""

    files: tuple[Held, ...] = ()
    """In the order of their paths."""
    folders: tuple[tuple[str, str], ...] = ()
    """Of what lies in them, nothing else is loaded: as they are named, and as the files' paths begin."""

    def digest(self) -> str:
        """One digest for all of them, never empty: which files there are, and what is in them."""
        named = (part for folder in self.folders for part in folder)
        parts = (*named, "", *(part for held in self.files for part in (held.path, held.digest)))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


_SCRIPT: Final = Loaded()
"""A shell script: what it loads besides is its own business, and its own text is handed over."""


def settings_of(tool: Tool) -> JsonObject:
    """What the author's configuration says, as the format compiled it."""
    invocation = tool.invocation
    if not tool.chain or not isinstance(
        invocation, RunProcess | CallPython | CallJavaScript | CallHttp | CallMcp
    ):
        return {}
    return _settings(invocation.settings)


@lru_cache(maxsize=1024)
def _settings(text: bytes) -> JsonObject:
    """Read by everybody, changed by nobody."""
    return object_of(jsontext.loads_own(text))


def anchor_of(tool: Tool, settings: JsonObject, project: str) -> Anchor | None:
    """The anchor, where it applies."""
    wish = object_of(settings.get("anchor"))
    if isinstance(tool.invocation, CallPython):
        wish = wish or _PYTHON_ANCHOR
    if not wish:
        return None
    mode = wish.get("mode", "auto")
    if wish.get("enabled") is not True or mode not in ("auto", "always"):
        return None
    folder = os.path.dirname(file_of(tool))
    if mode == "auto" and not any(
        os.path.lexists(os.path.join(folder, marker))
        for marker in texts_of(wish.get("markers_any"))
        if marker == os.path.basename(marker)
    ):
        return None
    root = wish.get("root")
    path = {"tool_parent": os.path.dirname(folder), "project_path": project}.get(str(root), folder)
    lib, beside = wish.get("lib"), settings.get("runtime_dir")
    found = None
    if isinstance(lib, str) and lib and not os.path.isabs(lib):
        base = beside if isinstance(beside, str) else path
        found = os.path.normpath(os.path.join(base, lib))
        if not os.path.isdir(found) or not files.inside(found, os.path.realpath(base)):
            found = None
    return Anchor(wish=wish, path=path, lib=found)


def scope_of(tool: Tool, settings: JsonObject, anchor: Anchor | None) -> Scope | None:
    """What ``verify_deps`` covers; None where it is not active."""
    wish = object_of(settings.get("verify_deps"))
    if isinstance(tool.invocation, CallPython):
        wish = wish or _PYTHON_DEPENDENCIES
    scope = wish.get("scope", "anchor")
    if anchor is None or wish.get("enabled") is not True or scope == "tool_file":
        return None
    base = os.path.dirname(file_of(tool)) if scope in ("tool_dir", "tool_siblings") else anchor.path
    # Attack: code in the libraries beside a runtime, which the anchor puts before everything else.
    folders = dict.fromkeys((folder, os.path.realpath(folder)) for folder in (base, anchor.lib) if folder)
    return Scope(
        folders=tuple(folders),
        extensions=tuple(texts_of(wish.get("extensions"))),
        excluded=frozenset(texts_of(wish.get("exclude_dirs")) or _EXCLUDED),
        recursive=scope != "tool_siblings" and wish.get("recursive") is not False,
    )


def loaded(tool: Tool, project: str, contents: Contents, *, with_neighbours: bool = True) -> Loaded | None:
    """What a tool may load besides its own file; None where nothing of it is loaded by us. Raises Unfit."""
    settings = settings_of(tool)
    scope = scope_of(tool, settings, anchor_of(tool, settings, project))
    if scope is not None:
        return gather(scope, contents)
    if (
        with_neighbours
        and isinstance(tool.invocation, RunProcess)
        and tool.origin.path in tool.invocation.fixed
    ):
        return _SCRIPT
    if with_neighbours and tool.chain and isinstance(tool.invocation, CallPython | CallJavaScript):
        return neighbours(file_of(tool), contents, shadow=_is_script(tool))
    return None


class ToolFiles:
    """What ``trust/vetting.py`` asks about a tool's files."""

    def __init__(self, contents: Contents, project_of: Callable[[Tool], str]) -> None:
        self._contents = contents
        self._project_of = project_of

    def own_files(self, tool: Tool) -> tuple[str, ...]:
        return digests.own_files(tool)

    def runs(self, tool: Tool, own: Sequence[digests.Digested | None]) -> str | None:
        return digests.combined(digests.how(tool.invocation), own)

    def loads(self, tool: Tool, *, is_signed: bool) -> Loaded | Vetted | None:
        try:
            return loaded(tool, self._project_of(tool), self._contents, with_neighbours=is_signed)
        except Unfit as unfit:
            return Vetted(trust=Trust.BLOCKED, message=str(unfit), hint=unfit.hint)


# -- files in folders ---------------------------------------------------------------------------------------


def gather(scope: Scope, contents: Contents) -> Loaded:
    """Every file of a scope; all of them really lie there."""
    found: dict[str, Held] = {}
    looked_at = 0
    bytes_left = DEPENDENCIES_BYTES_MAX
    for _, root in scope.folders:
        folders = [(root, 0)]
        while folders:
            folder, depth = folders.pop()
            for entry in _entries(folder):
                looked_at += 1
                if looked_at > DEPENDENCIES_MAX:
                    raise Unfit(End.UNAVAILABLE, f"more than {DEPENDENCIES_MAX:,} files lie below the anchor")
                matches = bool(scope.extensions) and entry.name.endswith(scope.extensions)
                if entry.is_symlink():
                    # Attack: a link below the anchor to code that nobody looked at.
                    is_folder = entry.is_dir() and entry.name not in scope.excluded
                    if (matches or is_folder) and not files.inside(entry.path, root):
                        raise _escape(entry.path, root)
                if entry.is_dir(follow_symlinks=False):
                    if not scope.recursive or entry.name in scope.excluded:
                        continue
                    if depth >= files.DEPTH_MAX:
                        raise Unfit(
                            End.UNAVAILABLE, f"folders below the anchor are more than {files.DEPTH_MAX} deep"
                        )
                    folders.append((entry.path, depth + 1))
                elif matches:
                    held = _held(entry.path, bytes_left, contents)
                    # Attack: a link put in the place of a file, or of a folder on the way to it, since then.
                    if not contents.is_inside(held, root):
                        raise _escape(entry.path, root)
                    bytes_left -= held.fingerprint[0]
                    found[held.path] = held
    return Loaded(files=tuple(found[path] for path in sorted(found)), folders=scope.folders)


def _escape(path: str, root: str) -> Unfit:
    return Unfit(
        End.DENIED,
        f"Symlink escape: {os.path.relpath(path, root)}",
        "put the file itself there; what a tool loads must lie below its anchor",
    )


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise Unfit(
            End.UNAVAILABLE, f"a folder below the anchor cannot be read: {files.reason(error)}"
        ) from None


def _held(path: str, bytes_max: int, contents: Contents) -> Held:
    try:
        if os.stat(path).st_size > bytes_max:
            raise Unfit(
                End.UNAVAILABLE, f"files below the anchor have more than {DEPENDENCIES_BYTES_MAX:,} bytes"
            )
    except OSError as error:
        why = files.reason(error)
        raise Unfit(
            End.UNAVAILABLE, f"{os.path.basename(path)} below the anchor cannot be read: {why}"
        ) from None
    held = contents.file(path)
    if held is None:  # Attack: a FIFO named like a module, which would be waited for without end
        raise Unfit(End.UNAVAILABLE, f"{os.path.basename(path)} below the anchor is not a regular file")
    return held


# -- neighbours that a file imports -------------------------------------------------------------------------


def neighbours(file: str, contents: Contents, *, shadow: bool) -> Loaded | None:
    """The files beside a program that it imports by name, and those that these import.

    Attack: a signed tool whose neighbour nobody signed does the work. What is imported by a computed name is
    not found here, and so cannot be loaded by a tool that was verified. ``shadow``: they come before the
    modules of the interpreter itself.
    """
    own = contents.file(file)
    if own is None or own.content is None:
        return None
    is_python = file.endswith(".py")
    root = os.path.dirname(file)
    found: dict[str, Held] = {}
    waiting = [own]
    while waiting:
        held = waiting.pop()
        for path in _python_neighbours(held, root, shadow) if is_python else _javascript_neighbours(held):
            if path in found or path == file:
                continue
            if len(found) >= DEPENDENCIES_MAX:
                raise Unfit(End.UNAVAILABLE, f"it imports more than {DEPENDENCIES_MAX:,} files")
            known = contents.file(path)
            if known is not None:
                found[path] = known
                waiting.append(known)
    return Loaded(files=tuple(found[path] for path in sorted(found)), folders=((root, root),))


def shadows(
    file: str, contents: Contents, *, above: bool = False, text: bytes | None = None
) -> tuple[Held, ...]:
    """Return the files beside a program that it would import: those that it names, and for Python any with
    the name of a module of Python's own. ``above``: it imports from the folder above its own, too. ``text``:
    of a program that is in no file.

    Attack: a program that was approved, and `json.py` put beside it, which comes before the real one.
    """
    if file.endswith(JAVASCRIPT):
        named = neighbours(file, contents, shadow=False)
        return named.files if named is not None else ()
    own = contents.file(file) if text is None else Held(file, (0, 0, 0, 0), digests.ABSENT, text)
    if own is None:
        return ()
    root = os.path.dirname(file)
    listed: dict[str, list[tuple[str, str, bool]]] = {}
    found: dict[str, Held] = {}
    waiting = [own]
    roots = (root, os.path.dirname(root)) if above else (root,)
    stems = {stem for stem, *_ in _importable(root, listed)} & sys.stdlib_module_names
    names: list[tuple[str, list[str]]] = [(root, [stem]) for stem in stems]
    while waiting:
        held = waiting.pop()
        for name in _python_imports(held):
            names += [_place(name, held.path, base) for base in (roots[:1] if name[:1] == "." else roots)]
        for folder, parts in names:
            for path in _modules(folder, parts, listed):
                if path in found or path == file or len(found) >= SHADOWS_MAX:
                    continue
                known = contents.file(path)
                if known is not None:
                    found[path] = known
                    waiting.append(known)
        names = []
    return tuple(found[path] for path in sorted(found))


def _modules(folder: str, parts: list[str], listed: dict[str, list[tuple[str, str, bool]]]) -> Iterator[str]:
    """Whatever is importable on the way to a module: source, compiled code, extensions, packages."""
    for part in parts:
        is_package = False
        for stem, path, is_folder in _importable(folder, listed):
            if stem == part and not is_folder:
                yield path
            is_package |= stem == part and is_folder
        if not is_package:
            return
        folder = os.path.join(folder, part)
        yield from (path for stem, path, is_folder in _importable(folder, listed) if stem == "__init__")


def _importable(folder: str, listed: dict[str, list[tuple[str, str, bool]]]) -> list[tuple[str, str, bool]]:
    known = listed.get(folder)
    if known is None:
        known = listed[folder] = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, DEPENDENCIES_MAX):
                if entry.name.endswith(_MODULES):
                    known.append((entry.name.partition(".")[0], entry.path, False))
                elif "." not in entry.name and entry.is_dir():
                    known.append((entry.name, entry.path, True))
    return known


def _place(name: str, file: str, root: str) -> tuple[str, list[str]]:
    """Where the way to a module begins, and its steps."""
    if not name.startswith("."):
        return root, name.split(".")
    folder = os.path.dirname(file)
    for _ in range(len(name) - len(name.lstrip(".")) - 1):
        folder = os.path.dirname(folder)
    return folder, [part for part in name.lstrip(".").split(".") if part]


def _python_neighbours(held: Held, root: str, shadow: bool) -> Iterator[str]:
    for name in _python_imports(held):
        if not shadow and name.partition(".")[0] in sys.stdlib_module_names:
            continue
        folder, parts = _place(name, held.path, root)
        for part in parts:
            if not part:
                continue
            for path in (os.path.join(folder, part, "__init__.py"), os.path.join(folder, f"{part}.py")):
                if os.path.isfile(path):
                    yield path
            folder = os.path.join(folder, part)


@lru_cache(maxsize=256)
def _python_imports(held: Held) -> tuple[str, ...]:
    """The names of modules that a file may import, dots for relative ones before them."""
    content = held.content
    if content is None or len(content) > _PARSED_BYTES_MAX:
        return ()
    ast: Any = import_module("ast")  # slow to import, and most calls read no Python
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return ()
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found[base] = None
            joint = "" if not node.module else "."
            found |= dict.fromkeys(f"{base}{joint}{alias.name}" for alias in node.names)
    return tuple(found)


def _javascript_neighbours(held: Held) -> Iterator[str]:
    for name in _javascript_imports(held):
        base = os.path.normpath(os.path.join(os.path.dirname(held.path), name))
        for suffix in _JAVASCRIPT_SUFFIXES:
            if os.path.isfile(base + suffix):
                yield base + suffix
                break


@lru_cache(maxsize=256)
def _javascript_imports(held: Held) -> tuple[str, ...]:
    content = held.content or b""
    found = (
        match[1].decode("utf-8", "replace")
        for match in re.finditer(_JAVASCRIPT_IMPORT, content[:_PARSED_BYTES_MAX])
    )
    return tuple(dict.fromkeys(found))


# -- odds and ends ------------------------------------------------------------------------------------------


def file_of(tool: Tool) -> str:
    match tool.invocation:
        case CallPython(file=str() as file) | CallJavaScript(file=file):
            return file
        case _:
            return tool.origin.path


def _is_script(tool: Tool) -> bool:
    return isinstance(tool.invocation, CallPython) and tool.invocation.style is PythonStyle.SCRIPT


def object_of(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def texts_of(value: JsonValue) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def below(found: Loaded | None) -> tuple[tuple[str, str], ...]:
    """Path below their folder and digest of each file."""
    if found is None or not found.files:
        return ()
    _, root = found.folders[0]
    return tuple((os.path.relpath(file.path, root), file.digest) for file in found.files)
