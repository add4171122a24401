"""Which parts of the disk belong to tools: what no tool may write, and where tools and people work together.

Three kinds of paths. *Folders* hold only declarations or code of tools: handlers, groups, skills,
``.ai/tools``, programs. No tool may write anything in them. *Mixed* folders hold other things as well: the
project, the working directory, and every folder above these. There only the *files* that a format loads or a
tool runs are held; the rest stays writable. ``sandbox/ground.py`` holds what is found here.

Nothing is read but names and links, and nothing here decides what a tool may do. Every path is real.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from toolcrib import formats, former, jsontext
from toolcrib.catalog.sources import SKILL_FILES, Listing
from toolcrib.model import CallFunction, CallJavaScript, CallMcp, CallPython, RunProcess, Tool
from toolcrib.paths import upwards

if TYPE_CHECKING:
    from toolcrib.formats.mcp import Server

_CONFIGURATION: Final = ("toolcrib.toml", "toolcrib.lock")
CONFIGURATION: Final = (*_CONFIGURATION, *map(former.name_of, _CONFIGURATION))
"""Attack: a tool that plants a file under a former name, which every later call is refused for."""
DECLARATIONS: Final = (*SKILL_FILES, "toolpack.json")
"""What a format reads in any folder that is looked at, by its name alone."""
OF_SPACES: Final = ("tools", "config", "lockfiles")
"""What of a space's ``.ai`` is declarations, code, keys and configuration; the rest is data of its tools."""
CODE: Final = (
    ".py", ".pyc", ".pyz", ".pyd", ".so", ".pth", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts",
    ".node", ".wasm", ".sh", ".bash", ".rb", ".pl", ".pm", ".php", ".lua", ".jar",
)  # fmt: skip
"""How the names of files end that an interpreter runs or imports."""
_INTERPRETERS: Final = (
    "python", "node", "deno", "bun", "ruby", "perl", "php", "lua", "sh", "bash", "dash", "zsh",
)  # fmt: skip
_OF_NODE: Final = ("node", "bun", "deno")
"""Those of them that look for packages in each folder above a file."""
_SKIPPED: Final = ("__pycache__", "node_modules")

Imports = Callable[[str, bytes | None, bool], Iterable[str]]
"""Return the files that code would import now: beside its own file, and if so asked in the folder above that,
too. The bytes are those of code that is in no file: of a command that an interpreter is handed."""


class Around(Struct, frozen=True, kw_only=True):
    """What of a host matters to where its tools are."""

    cwd: str
    home: str = ""
    """The user's own folder."""
    user: str = ""
    """The root of rye's user space."""
    search: tuple[str, ...] = ()
    """Where programs and modules are looked for: PATH, and what a grant hands over of its like."""
    handlers: tuple[str, ...] = ()
    """Folders of handlers that a configuration names."""
    names: tuple[str, ...] = ()
    """What else is read by its name in a project."""
    named: tuple[str, ...] = ()
    """The paths of sources."""


class Places(Struct, frozen=True, kw_only=True):
    """What belongs to tools. Every path is real."""

    roots: tuple[str, ...] = ()
    """Where tools run."""
    folders: tuple[str, ...] = ()
    """Read-only for tools, whole. None lies in another one."""
    files: tuple[str, ...] = ()
    """In mixed folders: read-only for tools, themselves alone."""
    mixed: tuple[str, ...] = ()
    """Folders in which tools may make files, and a format or a program may find one."""
    declaring: tuple[str, ...] = ()
    """Those of them in which a declaration may appear: a source looks through them, or people work there."""
    narrow: tuple[str, ...] = ()
    """Those of these in which folders count for nothing: the user's home, and what lies above it."""
    code: tuple[str, ...] = ()
    """Mixed folders that hold code, which imports from them."""
    shared: frozenset[str] = frozenset()
    """The keys of tools whose code lies, or would lie, in mixed folders."""

    @property
    def held(self) -> tuple[str, ...]:
        return (*self.folders, *self.files)


def find(
    found: Listing, around: Around, tools: Iterable[Tool] = (), imports: Imports | None = None
) -> Places:
    """The places of everything that is listed and loaded. Without ``tools``: of what is listed."""
    finding = _Finding(found, around, imports)
    finding.spaces()
    finding.documents()
    finding.sources()
    for tool in tools:
        finding.tool(tool)
    return finding.places()


class _Finding:
    """One look."""

    def __init__(self, found: Listing, around: Around, imports: Imports | None) -> None:
        self.found = found
        self.around = around
        self.imports = imports
        self.projects = {home.project for home in found.homes if home.place == "rye" and not home.space}
        self.worked_in = tuple({*map(os.path.realpath, filter(None, (around.cwd, *self.projects)))})
        """Where tools run: these folders, and all above them, are mixed."""
        self.above = {at for folder in self.worked_in for at in upwards(folder)}
        self.folders: dict[str, None] = {}
        self.spelled: set[str] = set()
        """The same as they are named, links and all."""
        self.files: dict[str, None] = {}
        self.mixed: dict[str, None] = {}
        self.declaring: dict[str, None] = dict.fromkeys(self.worked_in)
        self.ours_by_name: set[str] = set()
        """Folders that a source looks through."""
        self.shared: dict[str, None] = {}
        self.ours = {*self.worked_in}
        """Folders whose programs are tools, and not the machine's."""
        self.code_in: dict[str, None] = {}
        """Mixed folders that hold code, which imports from them."""
        self.known: dict[str, str | None] = {}

    def places(self) -> Places:
        folders = tuple(folder for folder in self.folders if not self.covers(os.path.dirname(folder)))
        declaring = tuple(path for path in self.declaring if not self.covers(path))
        home = set(upwards(os.path.realpath(self.around.home))) if self.around.home else set()
        mixed = {**self.mixed, **self.declaring, **self.code_in}
        return Places(
            roots=self.worked_in,
            folders=folders,
            files=tuple(path for path in self.files if not self.covers(path)),
            mixed=tuple(path for path in mixed if not self.covers(path)),
            declaring=declaring,
            narrow=tuple(path for path in declaring if path in home and path not in self.ours_by_name),
            code=tuple(path for path in self.code_in if not self.covers(path)),
            shared=frozenset(self.shared),
        )

    # -- kinds of folders -----------------------------------------------------------------------------------

    def is_spelled(self, path: str) -> bool:
        """Whether a path is one of those folders by its name alone, or below one: most are, and following
        every link on the way to ten thousand of them takes longer than everything else here."""
        return any(at in self.spelled for at in upwards(path))

    def covers(self, path: str) -> bool:
        """Whether a real path is, or lies below, a folder that is held whole."""
        return any(at in self.folders for at in upwards(path))

    def real(self, folder: str) -> str | None:
        """The real path of a folder; None where there is none."""
        if folder not in self.known:
            real = os.path.realpath(folder)
            self.known[folder] = real if os.path.isdir(real) else None
        return self.known[folder]

    def folder(self, path: str) -> None:
        """A folder that holds nothing but tools, unless people work in it, too."""
        if self.is_spelled(path):
            return
        real = self.real(path)
        if real is None:
            self.absent(path)
        elif real in self.above:
            self.mixed[real] = None
        else:
            self.spelled.add(path)
            if not self.covers(real):
                self.folders[real] = None
                self.led_to_by_links(real)

    def home(self, path: str) -> None:
        """A folder of declarations: one of tools, unless it is a repository that people work in."""
        real = self.real(path)
        if real is not None and os.path.lexists(os.path.join(real, ".git")):
            self.mixed[real] = None
        else:
            self.folder(path)

    def led_to_by_links(self, folder: str) -> None:
        """Attack: a handler that is a link to a file in a folder where tools may write."""
        for entry in _entries(folder):
            if entry.is_symlink():
                real = os.path.realpath(entry.path)
                if os.path.lexists(real) and not self.covers(real):
                    self.files[real] = None

    def absent(self, path: str) -> None:
        """Something that a format or a program looks for and that is not there: it would appear in the
        nearest folder above it that exists."""
        at = os.path.dirname(path)
        while (real := self.real(at)) is None and at != os.path.dirname(at):
            at = os.path.dirname(at)
        if real is not None and not self.covers(real):
            self.mixed[real] = None

    def file(self, path: str) -> None:
        """A file that a format loads."""
        if os.path.lexists(path):
            self.files[os.path.realpath(path)] = None
        else:
            self.absent(path)

    def code(self, path: str) -> None:
        """A file that a tool runs. Its folder is where it imports from."""
        if not os.path.lexists(path):
            self.absent(path)
            return
        real = os.path.realpath(path)
        if self.covers(real):
            return
        self.home(os.path.dirname(real))
        if not self.covers(real):
            self.files[real] = None
            self.imports_from(os.path.dirname(real), real)

    def imports_from(self, folder: str, path: str, text: bytes | None = None, *, above: bool = False) -> None:
        """Hold what code imports from a mixed folder: its own, or the one ``above`` it."""
        self.code_in[folder] = None
        if os.path.isdir(compiled := os.path.join(folder, "__pycache__")):
            self.folder(compiled)
        for imported in self.imports(path, text, above) if self.imports is not None else ():
            if not (above and os.path.dirname(path) in upwards(imported)):  # its own folder is held already
                self.imported(os.path.realpath(imported), folder)

    def imported(self, path: str, folder: str) -> None:
        """A neighbour that code imports: the file itself, or the whole package that it lies in."""
        below = path[len(folder) + 1 :] if path.startswith(f"{folder}/") else ""
        package = os.path.join(folder, below.partition("/")[0])
        if "/" in below and package not in self.above:
            self.folder(package)
        elif not self.covers(path):
            self.files[path] = None

    # -- what is listed -------------------------------------------------------------------------------------

    def spaces(self) -> None:
        """Configuration, declarations and keys by their names, where tools run and in rye's spaces."""
        for root in self.worked_in:
            for name in (*CONFIGURATION, *DECLARATIONS, *self.around.names):
                self.file(os.path.join(root, name))
        for root in dict.fromkeys((*self.worked_in, self.around.user)):
            space = os.path.join(root, ".ai")
            if root and (real := self.real(space)) is not None:
                self.declaring[real] = None
                for name in OF_SPACES:
                    if os.path.isdir(os.path.join(space, name)):
                        self.folder(os.path.join(space, name))
        for project in self.projects:  # where Python tools look for an interpreter
            self.environment_of(os.path.join(project, ".venv", "bin", "python"))
        for folder in self.around.handlers:
            self.folder(folder)
        for folder in self.around.search:
            self.searched(folder)

    def searched(self, folder: str) -> None:
        """A folder of PATH or of modules. Attack: a program or module put into one that lies in the project.
        What lies elsewhere is the user's, as it is without us."""
        real = self.real(folder)
        if real is None or not any(at in self.worked_in for at in upwards(real)):
            return
        prefix = os.path.dirname(real)
        is_whole = os.path.basename(real) in ("bin", ".bin") and (
            os.path.isfile(os.path.join(prefix, "pyvenv.cfg")) or os.path.basename(prefix) == "node_modules"
        )
        self.folder(prefix if is_whole else real)

    def environment_of(self, program: str) -> None:
        """The environment that a program of a project is in. Attack: a module that a tool puts into it."""
        for at in upwards(os.path.realpath(os.path.dirname(program))):
            if not any(up in self.worked_in for up in upwards(os.path.dirname(at))):
                return
            if os.path.basename(at) == "node_modules" or os.path.isfile(os.path.join(at, "pyvenv.cfg")):
                self.folder(at)
                return

    def documents(self) -> None:
        for folder in self.found.whole:
            self.folder(folder)
        names: dict[int, list[str]] = {}
        for row in self.found.rows:
            if not row[4]:  # one whose name promises nothing is looked at with its tools
                names.setdefault(row[0], []).extend(row[1])
        for number in names:
            home = self.found.homes[number]
            if home.fetched or self.is_spelled(home.folder):
                continue
            if home.place == "skill":
                self.folder(home.folder)
            elif home.place not in ("mcp", "openapi"):
                self.home(home.folder)
            if home.among_groups or home.place == "capability":
                for folder in home.handlers:
                    if os.path.isdir(folder):
                        self.folder(folder)
        for number, some in names.items():
            home = self.found.homes[number]
            if not home.fetched and not self.is_spelled(home.folder):
                for name in some:
                    self.file(os.path.join(home.folder, name))
        for path in self.found.links:
            real = os.path.realpath(path)
            if os.path.isdir(real):
                self.folder(real)
            elif not self.covers(real):
                self.file(real)
        for path in self.around.named:
            if os.path.isfile(path):
                self.file(path)
        for text, path in self.found.servers.values():
            self.server(formats.server_of(text), path)

    def sources(self) -> None:
        """The folders that were looked through for declarations, and hold none yet."""
        for folder in self.found.folders:
            if self.is_spelled(folder) or (real := self.real(folder)) is None or self.covers(real):
                continue
            self.ours.add(real)
            self.ours_by_name.add(real)
            if real not in self.above and self.is_of_tools(real):
                self.home(folder)
            self.declaring[real] = None

    def is_of_tools(self, folder: str) -> bool:
        """Whether every folder in a folder is one of tools, and there is one."""
        inner = [
            entry.path
            for entry in _entries(folder)
            if entry.name[:1] != "." and entry.name not in _SKIPPED and entry.is_dir()
        ]
        return bool(inner) and all(self.covers(os.path.realpath(path)) for path in inner)

    # -- what is loaded -------------------------------------------------------------------------------------

    def tool(self, tool: Tool) -> None:
        """The declaration of a tool, its code, and where its code imports from."""
        invocation = tool.invocation
        if isinstance(invocation, CallFunction):
            return
        if os.path.isabs(tool.origin.path) and not isinstance(invocation, CallMcp):
            self.declared(tool.origin.path)
        if isinstance(invocation, RunProcess):
            if invocation.skill_dir:
                self.folder(invocation.skill_dir)
            if invocation.beneath is not None:
                self.folder(invocation.beneath)
        code = code_of(tool, self.around.cwd)
        self.runs(code)
        is_handler = isinstance(invocation, CallPython) and invocation.file is None
        if is_handler:
            self.handlers(code.files)
        if (
            is_handler
            or tool.chain
            or code.texts
            or code.modules
            or not all(map(self.is_spelled, code.files))
        ):
            self.shared[tool.key] = None

    def runs(self, code: Code) -> None:
        """What a tool or a server runs."""
        for path in code.files:
            self.program(path)
        for folder, text in code.texts:
            real = self.real(folder)
            if real is not None and not self.covers(real):
                self.imports_from(real, os.path.join(real, "-c.py"), text)
        for at in code.modules:
            self.modules(at)

    def declared(self, path: str) -> None:
        if not self.is_spelled(path):
            self.home(os.path.dirname(path))
            if not self.is_spelled(path):
                self.file(path)

    def program(self, path: str) -> None:
        """A file that is run: one of the machine is held alone, one of a source with its folder."""
        self.environment_of(path)
        real = os.path.realpath(path)
        if any(at in self.folders or at in self.ours for at in upwards(os.path.dirname(real))):
            self.code(path)
        elif not os.path.lexists(path):
            self.absent(path)
        elif real.endswith(CODE):
            self.code(path)
        else:
            self.files[real] = None

    def handlers(self, paths: Iterable[str]) -> None:
        """Where the handler may lie. Attack: one in a place that is looked at first, put there later."""
        for path in paths:
            real = self.real(os.path.dirname(path))
            if real is None:
                self.absent(os.path.dirname(path))
            else:
                self.folder(real)
                above = os.path.dirname(real)
                if not self.covers(above):
                    self.imports_from(above, os.path.join(real, os.path.basename(path)), above=True)

    def modules(self, at: str) -> None:
        """Where Node looks for packages, and for what kind of module a file is."""
        real = self.real(at)
        if real is None or self.covers(real):
            return
        if any(up in self.worked_in for up in upwards(real)):
            self.mixed[real] = None
        if os.path.isdir(path := os.path.join(real, "node_modules")):
            self.folder(path)
        if os.path.isfile(path := os.path.join(real, "package.json")):
            self.file(path)

    def server(self, server: Server, path: str) -> None:
        """The code that a list of MCP servers starts."""
        code = server_code(server, path)
        self.runs(code)
        if code.texts or not all(map(self.is_spelled, code.files)):
            self.shared[server.key] = None


# -- what one tool runs -------------------------------------------------------------------------------------


class Code(Struct, frozen=True, kw_only=True):
    """What a tool runs, as its record says: whether it is there is not looked at."""

    files: tuple[str, ...] = ()
    """Programs and scripts: of some that may stand for one another, all."""
    texts: tuple[tuple[str, bytes], ...] = ()
    """Folders that code is run in and imports from, each with the text of that code."""
    modules: tuple[str, ...] = ()
    """Folders above its files in which an interpreter looks for packages and settings."""


def code_of(tool: Tool, cwd: str) -> Code:
    """The code of a tool that is run in a folder."""
    match tool.invocation:
        case RunProcess(program=program, fixed=fixed):
            return command_code((program, *fixed), cwd)
        case CallPython(file=str() as file):
            return Code(files=(file,))
        case CallPython(settings=settings):
            candidates = jsontext.loads_own(settings)
            paths = candidates.get("files", ()) if isinstance(candidates, dict) else ()
            return Code(files=tuple(path for path in paths if isinstance(path, str)))
        case CallJavaScript(file=file):
            return Code(files=(file,), modules=tuple(upwards(os.path.dirname(file))))
    return Code()


def server_code(server: Server, path: str) -> Code:
    """The code that an MCP server is started from, which a file at a path names."""
    definition = server.definition
    command, arguments, cwd = (definition.get(name) for name in ("command", "args", "cwd"))
    if not isinstance(command, str):
        return Code()
    words = [word for word in (arguments if isinstance(arguments, list) else ()) if isinstance(word, str)]
    folder = os.path.dirname(path)
    return command_code((command, *words), os.path.join(folder, cwd) if isinstance(cwd, str) else folder)


def command_code(words: Sequence[str], cwd: str) -> Code:
    """The program of a command, and what an interpreter is told to run: a file, a module or a text."""
    own = (os.path.normpath(os.path.join(cwd, words[0])),) if "/" in words[0] else ()
    name = os.path.basename(words[0]).rstrip("0123456789.")
    if not name.endswith(_INTERPRETERS):
        return Code(files=own)
    is_isolated = False
    for at, word in enumerate(words[1:], 1):
        told = words[at + 1] if at + 1 < len(words) else ""
        if "\0" in word + told:
            break
        if not word.startswith("-"):
            file = os.path.normpath(os.path.join(cwd, word))
            modules = tuple(upwards(os.path.dirname(file))) if name.endswith(_OF_NODE) else ()
            return Code(files=(*own, file), modules=modules)
        if name.endswith("python") and word[1:2] != "-":
            is_isolated |= "I" in word or "P" in word  # then it imports nothing from where it runs
            if word[-1] in "cm":
                text = told if word[-1] == "c" else f"import {told}"
                texts = () if is_isolated else ((cwd, text.encode("utf-8", "replace")),)
                return Code(files=own, texts=texts)
    return Code(files=own)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []
