"""Declarations in: one module per format, each of them pure.

A format is a module with ``NAME``, ``recognises``, ``compile_document`` and ``link``. It never imports or
runs what it reads, never raises on any bytes, and never imports another format.

Structure decides which format a JSON document is, or its place does; file names never do. Two formats'
markers together are refused, because reading such a file as one format would ignore the other's
restrictions.

A format is imported when one of its documents is read: a start from the cache reads none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from toolcrib.formats._node import Reader, kind_of, suggestion
from toolcrib.jsontext import JsonValue
from toolcrib.model import FILE_FORMATS, Compiled, Document, Linked, Problem, Rules, Severity, Unit

if TYPE_CHECKING:
    from toolcrib.formats.mcp import Server


class Format(Protocol):
    """What a format module offers."""

    NAME: str

    def recognises(self, document: Document) -> bool:
        """Whether the structure of a JSON document has this format's marker."""
        ...

    def compile_document(self, document: Document, rules: Rules) -> Compiled:
        """The document as tools and problems; never raises, whatever the bytes."""
        ...

    def link(self, units: Sequence[Unit], rules: Rules) -> Linked:
        """All documents of the format together: what only neighbours can tell."""
        ...


class _Formats(Mapping[str, Format]):
    """The formats by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Format:
        if name not in FILE_FORMATS:
            raise KeyError(name)
        return cast("Format", import_module(f"toolcrib.formats.{name}"))

    def __iter__(self) -> Iterator[str]:
        return iter(FILE_FORMATS)

    def __len__(self) -> int:
        return len(FILE_FORMATS)


FORMATS: Final = _Formats()

WANTED: Final[Mapping[str, str]] = {
    "skill": "a skill (a SKILL.md, or a tools.json with `allowlist` or `execution`)",
    "manifest": "a manifest (a JSON file whose tools have `command`)",
    "capability": "a capability group (a JSON file with `group`)",
    "rye": "a rye item (a file below .ai/tools)",
    "executable": "an executable (a program that describes itself)",
    "mcp": "a list of MCP servers (a file with `mcpServers`)",
    "openapi": "an OpenAPI document (a file with `openapi: 3.x` and `paths`)",
}
"""What a format's documents are, for people who named a path with the wrong one."""
_MARKED: Final = ("skill", "manifest", "capability", "openapi")
_DECIDED_BY_PLACE: Final = ("rye", "executable", "mcp")


def compile_document(document: Document, rules: Rules) -> tuple[str | None, Compiled]:
    """Find the document's format and compile it; None where it is no declaration at all."""
    if document.place in _DECIDED_BY_PLACE:
        # Attack: a program that prints another format's declaration to be read as one.
        return document.place, FORMATS[document.place].compile_document(document, rules)
    marked = [name for name in _MARKED if FORMATS[name].recognises(document)] if document.parsed else []
    if len(marked) > 1:
        return marked[0], _mixed(document, marked)
    if len(marked) == 1 and document.asked not in ("", marked[0]):
        return None, _another(document, marked[0])
    if document.asked == "manifest" and not marked and _has_no_tools(document):
        return None, _another(document, "")
    if marked == ["openapi"] and document.openapi is None:
        # Attack: a clone that holds a document; its tools would send requests to where it says.
        return None, _not_named(document)
    if len(marked) == 1:
        # Structure speaks louder than a neighbour or an option: reading a file as another format would
        # ignore the restrictions its author wrote down.
        name: str | None = marked[0]
    else:
        name = document.place or _probable(document)
    if name is None:
        return None, _unknown(document)
    return name, FORMATS[name].compile_document(document, rules)


def server_of(text: str) -> Server:
    """An MCP server from the line that names it."""
    found: Server = import_module("toolcrib.formats.mcp").Server.read(text)
    return found


def list_of_servers(path: str, content: bytes, *, is_asked_for: bool) -> Document | None:
    """Read a file that may list MCP servers, as other programs read it; None if it cannot be a list.

    ``is_asked_for``: a person said that it is one.
    """
    lists = import_module("toolcrib.formats._mcp_lists")
    if not is_asked_for and not any(mark in content for mark in lists.MARKS):
        return None
    found: Document = lists.read(path, content)
    return found


def servers_in(
    document: Document, *, is_asked_for: bool = False
) -> tuple[list[Server], list[str], list[Problem]] | None:
    """Return the MCP servers that a document lists, the names of those that it spoils or switches off, and
    the problems; None if it lists none."""
    root = document.parsed.value if document.parsed is not None else None
    member = import_module("toolcrib.formats._mcp_lists").member_of(root, is_asked_for=is_asked_for)
    if member is None:
        return None
    found: tuple[list[Server], list[str], list[Problem]]
    found = import_module("toolcrib.formats.mcp").servers_in(document, member)
    return found


def link(name: str, units: Sequence[Unit], rules: Rules) -> Linked:
    return FORMATS[name].link(units, rules)


def _probable(document: Document) -> str | None:
    """Whose words to use for a file that no structure tells: one that cannot be read, or that lacks the very
    marker its name promises. A tool is never made of it."""
    name = document.path.rpartition("/")[2]
    if document.parsed is not None and document.parsed.defect is None:
        root = document.parsed.value
        tools = root.get("tools") if isinstance(root, dict) else None
        if name.endswith("_tools.json") and root != {}:
            return "capability"
        is_odd = isinstance(root, dict) and tools is not None and not isinstance(tools, list)
        return "manifest" if name == "tools.json" and is_odd else None
    if name == "tools.json":
        return "manifest"
    return "capability" if document.among_groups else None


def another(asked: str, is_: str) -> tuple[str, str, str]:
    """Return the code, the message and the hint about a document of another format than it was named with.
    ``is_`` is empty if it is not known which."""
    message = f"named as {WANTED[asked]}, and it is "
    if not is_:
        return "source.other-format", f"{message}none", f"name {WANTED[asked]}, or leave {asked}= out"
    hint = f"name it as what it is: --from {is_}=PATH, or without a format"
    return "source.other-format", message + WANTED[is_], hint


def _another(document: Document, is_: str) -> Compiled:
    code, message, hint = another(document.asked, is_)
    reader = Reader(document)
    reader.add(code, message, pointer=(), hint=hint)
    return Compiled(problems=tuple(reader.problems))


def _has_no_tools(document: Document) -> bool:
    """Whether a JSON object that was named as a manifest says something, and nothing of tools."""
    parsed = document.parsed
    if parsed is None or parsed.defect is not None or not isinstance(parsed.value, dict):
        return False
    return bool(parsed.value) and not any(key.lower() == "tools" for key in parsed.value)


_MIXED = {
    ("capability", "skill"): "capability.file.detect",
    ("capability", "manifest"): "manifest.root.detect",
    ("skill", "manifest"): "skill.root.mixed-format",
    ("openapi", "skill"): "openapi.document.mixed",
    ("openapi", "manifest"): "openapi.document.mixed",
    ("openapi", "capability"): "openapi.document.mixed",
}


def _mixed(document: Document, marked: list[str]) -> Compiled:
    """Attack: a file that a reviewer reads as one format and a loader as another."""
    reader = Reader(document)
    pair, code = next((pair, code) for pair, code in _MIXED.items() if set(pair) <= set(marked))
    reader.add(
        code,
        f"mixes {pair[0]} and {pair[1]} markers",
        pointer=(),
        hint="keep the keys of one format, or make it two files",
    )
    return Compiled(problems=tuple(reader.problems))


def _not_named(document: Document) -> Compiled:
    reader = Reader(document)
    reader.add(
        "openapi.document.not-named",
        "an OpenAPI document that was only found is not loaded: its tools would call the servers it names",
        severity=Severity.INFO,
        pointer=(),
        hint="name the file itself: --from PATH",
    )
    return Compiled(problems=tuple(reader.problems))


def _unknown(document: Document) -> Compiled:
    """A JSON file of another shape: nothing is guessed."""
    reader = Reader(document)
    if document.parsed is None or document.parsed.defect is not None:
        why = document.unreadable or (document.parsed and str(document.parsed.defect)) or "no content"
        hint = "make it a readable JSON file, or leave it out of the sources"
        reader.add("source.unreadable", f"the file cannot be read: {why}", hint=hint)
        return Compiled(problems=tuple(reader.problems))
    for repeated in document.parsed.duplicates[:1]:
        reader.add(
            "source.unknown-shape",
            f'duplicate key "{repeated.key}": which one counts must not depend on the reader',
            pointer=repeated.pointer,
            line=repeated.line,
            hint="keep one of them",
        )
        return Compiled(problems=tuple(reader.problems))
    root = document.parsed.value
    if isinstance(root, dict) and root.get("tools", []) in ([], None):
        if "mcpServers" in root:
            reader.add(
                "source.not-probed",
                "a list of MCP servers, which were not asked for their tools: asking starts them",
                severity=Severity.WARNING,
                pointer=(),
                hint=f"read it, and if you trust it, name it: --from {document.path}",
            )
        if "mcpServers" in root or not document.explicit:
            return Compiled(problems=tuple(reader.problems))
    reader.add(
        "source.unknown-shape",
        "not a tool declaration of a format we know"
        + (f" (a root {kind_of(root)})" if not isinstance(root, dict) else ""),
        pointer=(),
        hint=_meant(root)
        or "a skill has `allowlist` or `execution`, a manifest has `command` in its tools, a capability "
        "group has `group`, an OpenAPI document has `openapi`, a list of MCP servers has `mcpServers`; if it "
        "belongs to another program, leave it out",
    )
    return Compiled(problems=tuple(reader.problems))


def _meant(root: JsonValue) -> str | None:
    """The marker that a misspelt key was probably meant to be."""
    keys = list(root) if isinstance(root, dict) else []
    tools = root.get("tools") if isinstance(root, dict) else root
    some = tools[:20] if isinstance(tools, list) else []
    inside = [key for tool in some if isinstance(tool, dict) for key in tool]
    for found, known in ((keys, ("allowlist", "execution", "group")), (inside, ("command",))):
        for key in found:
            meant = suggestion(key, known)
            if meant is not None:
                return f'did you mean "{meant}" where it says "{key[:60]}"?'
    return None
