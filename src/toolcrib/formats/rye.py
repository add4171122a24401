"""The rye format: signed tool files below ``.ai/tools``, addressed by their path.

The place decides, never the content: Python by syntax tree, JavaScript and TypeScript by pattern, Bash by
comment lines, YAML and JSON as data, TOML as configuration that is only listed. All of them say the same
things under the same names, so one reader (``_Item``) checks them all; where they differ is how a name is
spelt (``version`` or ``__version__``).

Nothing is imported, run or expanded here, and signatures are recognised but not verified. ``_rye_parameters``
knows about schemas, ``_rye_chain`` about executors and about all items together.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from posixpath import normpath
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.formats import (
    _javascript_source,
    _python_source,
    _rye_chain,
    _rye_parameters,
    _schema_lint,
    _shell_source,
    _toml,
    _yaml,
)
from toolcrib.formats._node import Node, Reader, seconds, shown
from toolcrib.formats._python_source import PythonSource
from toolcrib.formats._rye_chain import NAMES, RUNTIME, SERVER, Runtime
from toolcrib.formats._source import SourceValues, Unread
from toolcrib.jsontext import Defect, Duplicate, JsonObject, JsonValue, Pointer
from toolcrib.model import (
    CallHttp,
    CallMcp,
    CallPython,
    Compiled,
    Document,
    Fix,
    FixPart,
    Habits,
    Intake,
    Invocation,
    JsonOnStdin,
    Linked,
    Namesakes,
    Needs,
    NotCallable,
    Notes,
    Origin,
    Problem,
    PythonStyle,
    Reply,
    Retry,
    Role,
    Rules,
    RunContainer,
    RunProcess,
    Schema,
    Severity,
    Signature,
    Tool,
    Unit,
    Words,
)

NAME: Final = "rye"
_HABITS: Final = Habits(namesakes=Namesakes.SETTLED)

_REQUIRED: Final = ("tool_type", "version", "description", "executor_id", "category")
_KEYS: Final = (
    "tool_id", *_REQUIRED, "name", "requires", "parameters", "outputs", "actions", "tags", "config",
    "input_schema", "output_schema", "config_schema", "timeout", "retry_policy", "cost", "documentation",
    "metadata", "config_resolve", "env_config", "anchor", "verify_deps", "child_constraints",
)  # fmt: skip
_UPPER: Final = ("config_schema", "config_resolve", "env_config", "input_schema", "output_schema")
_IN_CODE: Final = {
    **{key: f"__{key}__" for key in _KEYS if key != "name"},
    **{key: key.upper() for key in _UPPER},
    "description": "__tool_description__",
}
"""How programs spell the keys that data files write as they are."""
_FROM_CODE: Final = {name: key for key, name in _IN_CODE.items()}
_WANTED: Final = frozenset(_IN_CODE.values())
_MARKING: Final = tuple(_IN_CODE[key] for key in _REQUIRED)
_MARKING_DATA: Final = ("tool_id", "tool_type", "executor_id", "category")
"""Keys that other files have no use for: a JSON file with none of them is not meant for us."""

_CALLABLE: Final = frozenset({"python", "script", "mcp", "yaml", "http"})
_PARTS: Final = frozenset({"mcp_server", "primitive", "runtime", "library"})
_OBSERVED: Final = frozenset(
    {
        "javascript", "config", "config-schema", "extractor", "parser", "processor", "executor", "graph",
        "email_provider",
    }
)  # fmt: skip
_RUNTIMES_OF_TYPE: Final = {
    "python": {Runtime.FUNCTION, Runtime.SCRIPT},
    "mcp": {Runtime.MCP},
    "http": {Runtime.HTTP, Runtime.PROCESS},
    "javascript": {Runtime.NODE},
}
_DATA_RUNTIMES: Final = {Runtime.MCP, Runtime.SCRIPT, Runtime.PROCESS, Runtime.HTTP, Runtime.SHELL}
_JAVASCRIPT: Final = _rye_chain.JAVASCRIPT
_RUNTIMES_OF_SUFFIX: Final = {
    ".py": {Runtime.FUNCTION, Runtime.SCRIPT},
    ".sh": {Runtime.PROCESS, Runtime.SHELL},
    **{suffix: {Runtime.NODE} for suffix in _JAVASCRIPT},
    **dict.fromkeys(_rye_chain.DATA_SUFFIXES, _DATA_RUNTIMES),
}
_RESERVED: Final = (
    "env", "tool_path", "tool_dir", "tool_parent", "anchor_path", "runtime_lib", "project_path",
    "user_space", "system_space", "cwd", "timeout", "server", "tool_name", "server_config_path",
    "fixed_params", "params_key",
)  # fmt: skip
_ALWAYS_RESERVED: Final = ("resolved_config", "__*")
"""Names that only the runtime sets, also where a schema declares them; ``*`` stands for any ending."""
_REQUESTS_MAX: Final = 32
_WISHES: Final = ("config", "env_config", "anchor", "verify_deps", "child_constraints")
"""What a runtime may say about the tools it runs."""
_FIXED_LINE_CHARS_MAX: Final = 1000
_PLAIN_FOLDER: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")
_PATHS_PER_LINE_MAX: Final = 20

_SEMVER: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_KEBAB: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_WORD: Final = re.compile(r"[A-Za-z]{3,}")
_DOTTED: Final = re.compile(r"[A-Za-z0-9_*-]+(?:\.[A-Za-z0-9_*-]+)*")
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ENV_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_SIGNATURE_LIKE: Final = re.compile(
    r"^(?:#|//)[ \t]*(?:rye|kiwi-mcp):(?:signed|validated):[^\n]*", re.MULTILINE
)
_SIGNATURE: Final = re.compile(
    r"(?:#|//) rye:signed:[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z:[0-9a-f]{64}"
    r":[A-Za-z0-9_-]+={0,2}:(?P<key>[0-9a-f]{16})(?:\|[^\n]+)?"
)
_LATER_SIGNATURE: Final = re.compile(r"(?:#!/[^\n]*\n)?(?:#|//)[ \t]*ryeos:signed:")
_HEAD_CHARS: Final = 200
_SIGNATURE_WITHIN: Final = 1000
_ABSOLUTE: Final = r"(?:/(?:home|Users|root|tmp|var|etc|usr|opt|srv|mnt|media|private|Volumes)/|[A-Za-z]:\\)"
_HARD_PATH: Final = re.compile(rf"""(?P<quote>["'`])(?P<path>{_ABSOLUTE}[^"'`\n]*)(?P=quote)""")
_HARD_PATH_VALUE: Final = re.compile(rf"{_ABSOLUTE}.*")
_CONTAINMENT: Final = {
    ".py": ("is_relative_to", "relative_to(", "commonpath", "commonprefix"),
    **dict.fromkeys(_JAVASCRIPT, ("relative(", "startsWith(", "realpath")),
}


def recognises(document: Document) -> bool:
    """Nothing in a file tells that it is one of ours: its place does."""
    return False


def compile_document(document: Document, rules: Rules) -> Compiled:
    compiled = _compile(document)
    if compiled.broken or not any(found.severity is Severity.ERROR for found in compiled.problems):
        return compiled
    return replace(compiled, broken=(_unread(document),))


def _unread(document: Document) -> Tool:
    """Make the record that keeps the id of a file which cannot be read as a tool."""
    item = document.item or document.path.rpartition("/")[2]
    item_id = item.removesuffix(_suffix(item))
    return Tool(
        key=f"{NAME}:{item_id}",
        name=item_id,
        scope=item_id.rpartition("/")[0],
        invocation=NotCallable(reason="the file has errors"),
        origin=Origin(format=NAME, path=document.path),
    )


def _compile(document: Document) -> Compiled:
    suffix = _suffix(document.item or document.path)
    reader = _ItemReader(document, suffix)
    text = _text(document, reader)
    if text is None:
        return reader.compiled()
    if _LATER_SIGNATURE.match(text):
        reader.add(
            "rye.file.later-format",
            "later signature format, not verified here",
            line=1 + text.startswith("#!"),
            hint="files of the later rewrite are not loaded; keep a copy in the dated format",
        )
        return reader.compiled()
    declared = _declared(suffix, text, document, reader)
    if isinstance(declared, Compiled):
        return declared
    signature = Signature(
        key=_signature(text, reader),
        item=f"tool:{reader.item_id}",
        path=document.path,
        digest=hashlib.sha256(document.content or b"").hexdigest(),
    )
    return _Item(document, reader, suffix, text, declared, signature).read()


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    return _rye_chain.link(units)


class _ItemReader(Reader):
    """Speaks of programs by line and of data files by place, and names the item in every problem."""

    __slots__ = ("by_line", "item_id")

    def __init__(self, document: Document, suffix: str) -> None:
        super().__init__(document)
        self.by_line = suffix not in _rye_chain.DATA_SUFFIXES
        self.item_id = (document.item or document.path.rpartition("/")[2]).removesuffix(suffix)

    def add(
        self,
        code: str,
        message: str,
        *,
        severity: Severity = Severity.ERROR,
        pointer: Pointer | None = None,
        line: int | None = None,
        name: str | None = None,
        hint: str | None = None,
        fix: Fix | None = None,
    ) -> Problem:
        if self.by_line and pointer is not None:
            line, pointer = line or self.line(pointer), None
        return super().add(
            code,
            message,
            severity=severity,
            pointer=pointer,
            line=line,
            name=name or self.item_id,
            hint=hint,
            fix=fix,
        )

    def compiled(self, *tools: Tool) -> Compiled:
        if self.has_errors:
            return Compiled(broken=tools, problems=tuple(self.problems))
        return Compiled(tools=tools, problems=tuple(self.problems))


# -- from bytes to names and values -------------------------------------------------------------------------


class _Declared(Struct, frozen=True):
    """What one file declares, in whatever language."""

    values: JsonObject
    spelling: Mapping[str, str] = field(default_factory=dict)
    """How this language spells a key; keys that are not here are written as they are."""
    unread: Mapping[str, Unread] = field(default_factory=dict)
    duplicates: Sequence[Duplicate] = ()
    python: PythonSource | None = None
    is_called: bool = True
    """JavaScript: the file exports what is called; else it is a script."""


def _suffix(path: str) -> str:
    return "." + path.rpartition(".")[2]


def _text(document: Document, reader: Reader) -> str | None:
    if document.content is None:
        why = document.unreadable or "no content"
        if "link" in why:
            reader.add("rye.id.contained", f"Symlink escape: {document.path}", hint=why)
        else:
            reader.add("rye.file.unreadable", f"the file cannot be read: {why}")
        return None
    if not document.content.strip():
        reader.add("rye.file.empty", "Tool file is empty", hint="declare a tool in it, or remove it")
        return None
    text = jsontext.decode(document.content)
    if isinstance(text, Defect):
        reader.add("rye.file.encoding", str(text), line=text.line, hint="save it as UTF-8")
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _declared(suffix: str, text: str, document: Document, reader: _ItemReader) -> _Declared | Compiled:
    if suffix in (".yaml", ".yml"):
        return _from_yaml(text, document, reader)
    if suffix == ".json":
        return _from_json(text, document, reader)
    if suffix == ".py":
        return _from_python(text, document, reader)
    if suffix in _JAVASCRIPT:
        script = _javascript_source.read(text, _WANTED)
        declared = _from_code(script.found, document, reader, "rye.js.export-const")
        return declared if isinstance(declared, Compiled) else replace(declared, is_called=script.is_called)
    if suffix == ".sh":
        return _from_code(_shell_source.read(text, _WANTED), document, reader, "rye.sh.metadata")
    if suffix == ".toml":
        return _configuration(text, document, reader)
    return _no_tool(document, reader)


def _no_tool(document: Document, reader: Reader) -> Compiled:
    if document.explicit:  # a person takes it for a tool
        reader.add(
            "rye.file.not-a-tool",
            "not a rye tool: it has no metadata of one",
            hint=f"declare {', '.join(_REQUIRED)} in it, or name a file that does",
        )
    return Compiled(problems=tuple(reader.problems), notes=(f"{document.path}: not a tool",))


def _from_yaml(text: str, document: Document, reader: Reader) -> _Declared | Compiled:
    parsed = _yaml.read(text.encode("utf-8"))
    if parsed.defect is not None:
        reader.add("rye.file.broken-yaml", f"not YAML: {parsed.defect}", line=parsed.defect.line)
        return Compiled(problems=tuple(reader.problems))
    if parsed.value is None:
        reader.add("rye.file.empty", "Tool file is empty", hint="declare a tool in it, or remove it")
        return Compiled(problems=tuple(reader.problems))
    if not isinstance(parsed.value, dict) or "lockfileVersion" in parsed.value:
        return _no_tool(document, reader)
    keys = {*parsed.value, *(found.key for found in parsed.duplicates if not found.pointer)}
    # Data files of other programs lie among tools. Some have a version of their own; none has more.
    if keys.isdisjoint(_MARKING_DATA) and not {"version", "description"} <= keys:
        return _no_tool(document, reader)
    reader.lines = parsed.lines
    return _Declared(parsed.value, duplicates=parsed.duplicates)


def _from_json(text: str, document: Document, reader: Reader) -> _Declared | Compiled:
    parsed = document.parsed
    if parsed is None or parsed.defect is not None:
        # A signature or a shebang makes the file something that only rye reads; its line stays, as blanks.
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if not line.startswith("#"):
                break
            lines[number] = ""
        parsed = jsontext.read("\n".join(lines).encode("utf-8"), values_max=_yaml.NODES_MAX)
    elif len(text) > _yaml.NODES_MAX:
        parsed = jsontext.read(text.encode("utf-8"), values_max=_yaml.NODES_MAX)  # as many as YAML may have
    if parsed.defect is not None:
        reader.add("rye.file.broken-json", f"not JSON: {parsed.defect}", line=parsed.defect.line)
        return Compiled(problems=tuple(reader.problems))
    keys = [
        *(parsed.value if isinstance(parsed.value, dict) else ()),
        *(found.key for found in parsed.duplicates),
    ]
    if not any(key in keys for key in _MARKING_DATA):
        return _no_tool(document, reader)
    return _Declared(parsed.value, duplicates=parsed.duplicates)


def _from_python(text: str, document: Document, reader: Reader) -> _Declared | Compiled:
    source = _python_source.read(text, _WANTED)
    if source.found.refused is not None:
        reader.add("rye.file.unreadable", f"the file cannot be read: {source.found.refused}")
        return Compiled(problems=tuple(reader.problems))
    if source.found.defect is not None:
        reader.add(
            "rye.file.broken-python", f"not Python: {source.found.defect}", line=source.found.defect.line
        )
        return Compiled(problems=tuple(reader.problems))
    return _from_code(source.found, document, reader, "rye.python.computed", source)


def _from_code(
    found: SourceValues, document: Document, reader: Reader, code: str, python: PythonSource | None = None
) -> _Declared | Compiled:
    unread = {item.name: item for item in found.unread}
    if not any(name in found.values or name in unread for name in _MARKING):
        return _no_tool(document, reader)
    reader.lines = found.lines
    for name, line in found.repeated:
        reader.add(
            "rye.python.last-assign",
            f"{name} is assigned more than once; the last one counts",
            severity=Severity.WARNING,
            line=line,
            hint="keep one assignment",
        )
    for item in found.unread:
        reader.add(
            code,
            f"{item.name} is not a literal",
            severity=Severity.ERROR if item.name in _DECISIVE else Severity.WARNING,
            line=item.line,
            hint=f"{item.why}; only constants of this file are read, because nothing is run to load a tool",
        )
    return _Declared(found.values, _IN_CODE, unread, python=python)


_DECISIVE: Final = (_IN_CODE["tool_type"], _IN_CODE["executor_id"])
"""Without them nobody can tell what would run."""


def _configuration(text: str, document: Document, reader: _ItemReader) -> Compiled:
    """A TOML file: listed, never called."""
    values: JsonObject = {}
    try:
        values = _toml.read(text)
    except _toml.Broken as error:
        code = "rye.file.unreadable" if len(text) > _toml.TOML_BYTES_MAX else "rye.file.broken-toml"
        reader.add(code, f"not TOML: {error}", line=error.line)
    description, version = values.get("description"), values.get("version")
    return reader.compiled(
        Tool(
            key=f"{NAME}:{reader.item_id}",
            name=reader.item_id,
            scope=reader.item_id.rpartition("/")[0],
            role=Role.SUPPORT,
            description=description if isinstance(description, str) else "",
            version=version if isinstance(version, str) else None,
            invocation=NotCallable(reason="configuration only"),
            reply=Reply.ITEM,
            origin=Origin(format=NAME, path=document.path),
            habits=_HABITS,
            notes=Notes(category=reader.item_id.rpartition("/")[0], head=_body(text)[:_HEAD_CHARS]),
        )
    )


# -- the signature line -------------------------------------------------------------------------------------


def _signature(text: str, reader: Reader) -> str | None:
    """The id of the key that the signature line names; whether the signature holds is not asked here.

    None where there is none. A line that looks like a signature and is none is reported.
    """
    found = _SIGNATURE_LIKE.search(text[:_SIGNATURE_WITHIN])
    if found is None:
        return None
    line = text.count("\n", 0, found.start()) + 1
    at_top = line == 1 or (line == 2 and text.startswith("#!/") and found.group().startswith("#"))
    if at_top and (signed := _SIGNATURE.fullmatch(found.group())):
        return signed["key"]
    reader.add(
        "rye.sign.never-manual",
        "a placeholder or malformed signature line: the item counts as unsigned"
        if at_top
        else "a signature line that is not the first line: the item counts as unsigned",
        severity=Severity.WARNING,
        line=line,
        hint="signing the file writes this line; never write it by hand",
    )
    return None


def _body(text: str) -> str:
    """The text without shebang and signature line."""
    if text.startswith("#!"):
        text = text.partition("\n")[2]
    return text.partition("\n")[2] if _SIGNATURE_LIKE.match(text) else text


# -- one item -----------------------------------------------------------------------------------------------


class _Item:
    """One reading of one declaration."""

    def __init__(
        self,
        document: Document,
        reader: _ItemReader,
        suffix: str,
        text: str,
        declared: _Declared,
        signature: Signature,
    ) -> None:
        self.document = document
        self.reader = reader
        self.suffix = suffix
        self.text = text
        self.declared = declared
        self.signature = signature
        self.root = reader.node(declared.values)
        keys = _FROM_CODE if declared.spelling else {}
        self.members = {keys.get(name, name): member for name, member in self.root.members()}
        self.is_data = suffix in _rye_chain.DATA_SUFFIXES
        self.item_id = reader.item_id
        self.folder = self.item_id.rpartition("/")[0]

    def member(self, key: str) -> Node | None:
        """The value of a key, however the language spells it."""
        return self.members.get(key)

    def place(self, key: str) -> Node:
        """The address a key has or would have."""
        return self.root.here(self.declared.spelling.get(key, key))

    def read(self) -> Compiled:
        if self.is_later():
            return self.reader.compiled()
        for repeated in self.declared.duplicates:
            self.reader.add(
                "rye.yaml.duplicate-keys",
                f'duplicate key "{repeated.key}"',
                pointer=repeated.pointer,
                line=repeated.line,
                hint="keep one of them; which one counts must not depend on the reader",
            )
        tool_type = self.text_of("tool_type")
        version = self.version()
        description = self.description(tool_type)
        role, executor = self.executor(tool_type)
        self.category()
        if self.is_data:
            self.tool_id(role)
            self.unknown_keys()
        if role is Role.SUPPORT:
            invocation: Invocation = NotCallable(reason="not executable")
            return self.compiled(role, version, description, executor, invocation)
        self.resolve_requests()
        self.object_of("config", "rye.yaml.config-command")
        if role is Role.PART:
            invocation = self.part(tool_type)
            return self.compiled(role, version, description, executor, invocation)
        runtime = _rye_chain.runtime_of(executor) if executor is not None else None
        invocation = self.invocation(tool_type, executor, runtime)
        if executor is not None and tool_type is not None:
            self.consistency(tool_type, executor, runtime)
        return self.compiled(role, version, description, executor, invocation)

    def is_later(self) -> bool:
        """Whether the later rewrite wrote this: its words mean other things, so nothing else is said."""
        executor, command = self.member("executor_id"), self.setting("command")
        for node, mark in ((executor, "@"), (command, "bin:")):
            if node is not None and node.kind == "string" and node.value.startswith(mark):
                node.error(
                    "rye.file.later-format",
                    f"{shown(node.value)} belongs to the later rewrite of the format; it is not loaded",
                    hint="keep a copy in the dated format",
                )
                return True
        return False

    def compiled(
        self, role: Role, version: str | None, description: str, executor: str | None, invocation: Invocation
    ) -> Compiled:
        parameters: Schema | None = None
        needs, retry = Needs(), None
        output_schema: Schema | None = None
        if role is not Role.SUPPORT:
            parameters = self.parameters()
            output_schema = _rye_parameters.output(self.member("output_schema"))
        if role is Role.TOOL:
            needs = self.needs(invocation)
            retry = self.retry()
            self.advice(parameters, needs)
        tool = Tool(
            key=f"{NAME}:{self.item_id}",
            name=self.item_id,
            scope=self.folder,
            spoken=self.item_id.replace("/", "_").replace("-", "_"),
            role=role,
            description=description,
            version=version,
            input_schema=parameters,
            output_schema=output_schema,
            invocation=invocation,
            intake=Intake(fill_defaults=True, reserved_names=_reserved(parameters), words=Words.FIELDS),
            reply=Reply.ITEM,
            needs=needs,
            retry=retry,
            chain=(self.item_id, executor) if executor is not None else (self.item_id,),
            origin=Origin(format=NAME, path=self.document.path),
            signature=self.signature,
            habits=_HABITS,
            notes=self.notes(),
        )
        return self.reader.compiled(tool)

    # -- the required fields --------------------------------------------------------------------------------

    def text_of(self, key: str, *, or_empty: bool = False) -> str | None:
        """A required text; what is missing or no text is reported."""
        node = self.member(key)
        if node is None or node.value is None or (node.value == "" and not or_empty):
            self.missing(key)
            return None
        if node.kind != "string":
            node.say(
                self.required_code(key), f"Field '{key}' must be a string, got {type(node.value).__name__}"
            )
            return None
        return str(node.value)

    def missing(self, key: str) -> None:
        name = self.declared.spelling.get(key, key)
        repeated = any(not found.pointer and found.key == key for found in self.declared.duplicates)
        if name not in self.declared.unread and not repeated:
            self.reader.add(
                self.required_code(key),
                f"Missing required field: {key}",
                hint=f"add {name}{': ...' if self.is_data else ' = ...'}",
            )

    def required_code(self, key: str) -> str:
        if not self.is_data:
            return "rye.python.required-vars"
        return "rye.yaml.executor-present" if key == "executor_id" else "rye.yaml.required"

    def version(self) -> str | None:
        node = self.member("version")
        if node is not None and node.value is not None and node.kind != "string":
            node.say(
                "rye.yaml.version-string",
                f"Field 'version' must be a string (semver), got {type(node.value).__name__}",
                hint='put it in quotes: "1.0.0"',
            )
            return None
        version = self.text_of("version")
        if version is not None and not _SEMVER.fullmatch(version):
            assert node is not None
            node.say("rye.yaml.semver", f"Field 'version' must be semver format (X.Y.Z), got '{version}'")
            return None
        return version

    def description(self, tool_type: str | None) -> str:
        node = self.member("description")
        if (node is None or not node.value) and tool_type in ("runtime", "library"):
            self.reader.add(
                "rye.python.runtime-description",
                "no description",
                severity=Severity.WARNING,
                hint="say in a sentence what it is for",
            )
            return ""
        return self.text_of("description") or ""

    def executor(self, tool_type: str | None) -> tuple[Role, str | None]:
        """What the item is, by its type and executor."""
        node = self.member("executor_id")
        in_table = tool_type in _CALLABLE or tool_type in _PARTS
        if tool_type is not None and not in_table and (node is None or node.value is None):
            self.place("tool_type").warn(
                "rye.type.support-item",
                f"{shown(tool_type)} without an executor is a support item: listed, not callable",
                hint="name an executor if it is meant to be called",
            )
            return Role.SUPPORT, None
        role = Role.PART if tool_type in _PARTS else Role.TOOL
        executor: str | None = None
        if node is None or node.value is not None:
            executor = self.text_of("executor_id")
        elif tool_type in _CALLABLE:
            node.error(
                "rye.executor.null-types",
                f'must name a runtime for tool_type "{tool_type}" (got null)',
                hint="null is for primitive, runtime, library and mcp_server",
            )
        if tool_type is not None and not in_table and tool_type not in _OBSERVED:
            self.place("tool_type").warn(
                "rye.type.observed",
                f"unknown type {shown(tool_type)}",
                hint=f"known types: {', '.join(sorted(_CALLABLE | _PARTS))}",
            )
        return role, executor

    def line_of(self, key: str) -> int | None:
        return self.reader.line((self.declared.spelling.get(key, key),)) if self.reader.lines else None

    def category(self) -> None:
        category = self.text_of("category", or_empty=True)
        if category is None or category == self.folder:
            return
        name = self.declared.spelling.get("category", "category")
        line = self.line_of("category")
        self.place("category").say(
            "rye.yaml.category-path",
            f"Field 'category' value '{category}' must match path category '{self.folder}'",
            hint=f'write "{self.folder}", or move the file; sign it again afterwards',
            fix=self.category_fix(name, category, line),
        )

    def category_fix(self, name: str, category: str, line: int | None) -> Fix | None:
        # Attack: a folder whose name ends the string it is written into and goes on as code.
        if not _PLAIN_FOLDER.fullmatch(self.folder):
            return None
        if self.suffix == ".json":
            return Fix(part=FixPart.VALUE, new=f'"{self.folder}"')
        written = self.text.split("\n")[line - 1] if line is not None else ""
        if len(written) > _FIXED_LINE_CHARS_MAX or not category:
            return None
        value = rf"""(["'`]?){re.escape(category)}\1"""
        found = re.fullmatch(
            rf"""(?:#\s*|export\s+const\s+)?["']?{re.escape(name)}["']?\s*(?::[^"'`=]*)?[:=]\s*{value}\s*;?\s*(?:#.*|//.*)?""",
            written.strip(),
        )
        if found is None or written.count(category) != 1:
            return None
        return Fix(old=category, new=self.folder)

    # -- keys of data files ---------------------------------------------------------------------------------

    def tool_id(self, role: Role) -> None:
        stem = self.item_id.rpartition("/")[2]
        node = self.member("tool_id")
        if node is None or node.value is None:
            self.reader.add(
                "rye.yaml.tool-id-default",
                f'no tool_id: the file name gives it ("{stem}")',
                severity=Severity.WARNING,
                hint=f"add tool_id: {stem}",
            )
            return
        if node.kind != "string" or not _KEBAB.fullmatch(node.value):
            node.warn("rye.yaml.tool-id-kebab", f"not in kebab-case (got {shown(node.value)})")
        if node.kind == "string" and node.value not in (stem, self.item_id):
            node.warn(
                "rye.yaml.tool-id-match",
                f"{shown(node.value)} is neither the file name nor the item id",
                hint=f"the tool is addressed as {self.item_id}",
            )
        elif role is Role.TOOL and node.kind == "string" and _WORD.fullmatch(node.value):
            node.inform(
                "rye.lint.names", f"{shown(node.value)} is a very general name", hint="say what it acts on"
            )

    def unknown_keys(self) -> None:
        for key, member in self.root.members():
            if _schema_lint.is_schema_key(key, self.root.value, "input_schema") and key not in _KEYS:
                member.say(
                    "rye.yaml.unknown-keys",
                    f'unknown key {key} (did you mean "input_schema"?)',
                    severity=Severity.WARNING,
                    hint=_schema_lint.schema_key_hint(key, "input_schema"),
                    fix=_schema_lint.schema_key_fix(key, self.root, "input_schema"),
                )
            elif key not in _KEYS:
                member.say("rye.yaml.unknown-keys", f"unknown key {key}", severity=Severity.INFO)

    # -- what runs ------------------------------------------------------------------------------------------

    def setting(self, key: str) -> Node | None:
        """A member of ``config``."""
        config = self.member("config")
        found = config.get(key) if config is not None else None
        return found if found is not None and found.value is not None else None

    def text_setting(self, key: str) -> str | None:
        node = self.setting(key)
        return node.value if node is not None and node.kind == "string" and node.value else None

    def settings(self) -> JsonObject:
        """What a runtime needs to know of the author's wishes."""
        kept: JsonObject = {}
        for key in ("config", "config_resolve", "env_config", "anchor", "verify_deps"):
            node = self.member(key)
            if node is None or not node.value:
                continue
            if node.kind != "object" and key in ("env_config", "anchor", "verify_deps"):
                node.say(
                    "rye.yaml.wrong-type",
                    node.with_place(f"must be an object (got {node.kind})"),
                    severity=Severity.WARNING,
                )
                continue
            kept[key] = node.value
        actions = _rye_parameters.of_actions(
            self.member("input_schema"),
            self.member("config_schema"),
            self.member("parameters"),
            self.member("actions"),
        )
        return {**kept, "actions": actions} if actions else kept

    def part(self, tool_type: str | None) -> Invocation:
        if tool_type == SERVER and self.text_setting("url") is None and self.text_setting("command") is None:
            self.place("config").warn(
                "rye.yaml.mcp-server",
                "a server needs a url, or a command and args",
                hint="tools of this server cannot be called until it has one",
            )
        source = self.declared.python
        if source is not None and "execute" not in source.bound:
            return NotCallable(reason="no execute() in this file: other tools import it")
        return NotCallable(reason="not executable")

    def invocation(self, tool_type: str | None, executor: str | None, runtime: Runtime | None) -> Invocation:
        if tool_type == "mcp":
            return self.mcp()
        if executor is None:
            return NotCallable(reason="not executable")
        if runtime is None:
            return self.pending()
        if runtime not in _RUNTIMES_OF_SUFFIX[self.suffix]:
            return NotCallable(reason=f"{executor} cannot run a {self.suffix} file")
        if self.is_data:
            return self.from_config(tool_type, runtime)
        found = _rye_chain.by_file(runtime, self.document.path, self.program_settings())
        assert found is not None  # by the table of suffixes
        return found

    def program_settings(self) -> JsonObject:
        source = self.declared.python
        takes_option = source is not None and "--params" in source.options
        settings = self.settings()
        if takes_option:
            settings["params_option"] = True
        if not self.declared.is_called:
            settings["plain_script"] = True
        return settings

    def pending(self) -> Invocation:
        """What only linking can complete, when it has found the runtime; without a program nothing starts."""
        if self.is_data:
            return self.process(self.text_setting("command") or "", self.arguments(), self.settings())
        return RunProcess(
            program="",
            fixed=(self.document.path,),
            encoding=JsonOnStdin(verbatim=False),
            settings=jsontext.compact(self.program_settings()),
        )

    def from_config(self, tool_type: str | None, runtime: Runtime) -> Invocation:
        """What a data file runs: whatever its configuration names."""
        wrong = self.setting("command")
        if wrong is not None and wrong.kind != "string":
            wrong.error("rye.yaml.config-command", f"must be the name of a program (got {wrong.kind})")
            return NotCallable(reason="nothing to run")
        image, command, script = (self.text_setting(key) for key in ("image", "command", "script"))
        if runtime is Runtime.MCP:
            return self.mcp()
        if image is not None:
            return RunContainer(
                image=image,
                command=(command, *self.arguments()) if command is not None else (),
                entrypoint=self.text_setting("entrypoint"),
                env_names=self.env_names(),
            )
        if tool_type == "http" or runtime is Runtime.HTTP:
            url = self.text_setting("url")
            if url is not None:
                return self.http(url)
        elif command is not None and runtime is Runtime.SHELL:
            return self.process("bash", ("-c", command), self.besides_the_command())
        elif command is not None:
            return self.process(command, self.arguments(), self.besides_the_command())
        elif script is not None and runtime is Runtime.SCRIPT and self.contained(script):
            folder = self.document.path.rpartition("/")[0]
            return CallPython(
                style=PythonStyle.SCRIPT,
                file=f"{folder}/{normpath(script)}",
                settings=jsontext.compact(self.settings()),
            )
        config = self.place("config")
        if config.kind in ("object", "null"):  # else reported already
            config.warn(
                "rye.yaml.nothing-to-run",
                "nothing to run: there is neither a command nor a script nor a url",
                hint="add config.command, or write the tool in a language that has a runtime",
            )
        return NotCallable(reason="nothing to run")

    def http(self, url: str) -> Invocation:
        method, headers = self.setting("method"), self.setting("headers")
        wanted = method.value.upper() if method is not None and method.kind == "string" else None
        if method is not None and wanted not in _METHODS:
            method.error(
                "rye.type.http", f"not a method to send (got {shown(method.value)})", hint=", ".join(_METHODS)
            )
            return NotCallable(reason="nothing to run")
        if headers is not None and headers.kind != "object":
            headers.error("rye.type.http", f"must be a mapping of names to values (got {headers.kind})")
        pairs = []
        for name, member in headers.members() if headers is not None else ():
            if member.kind in ("object", "array", "null"):
                member.error("rye.type.http", f"must be a value (got {member.kind})")
            else:
                pairs.append((name, _rye_chain.argument(member.value)))
        settings = self.settings()
        config = {key: value for key, value in settings["config"].items() if key != "headers"}
        return CallHttp(
            method=wanted or "POST",
            url=url,
            headers=tuple(pairs),
            settings=jsontext.compact({**settings, "config": config}),
        )

    def contained(self, path: str) -> bool:
        """Attack: a path that leads out of where it belongs, by being absolute or by dots."""
        slashed = path.replace("\\", "/")
        return not (slashed.startswith("/") or normpath(slashed).split("/")[0] == ".." or ":" in slashed)

    def besides_the_command(self) -> JsonObject:
        """The settings without what the command itself says."""
        settings = self.settings()
        config = settings.get("config")
        if isinstance(config, dict):
            settings["config"] = {
                key: value for key, value in config.items() if key not in _rye_chain.COMMANDING
            }
        return settings

    def process(self, program: str, fixed: tuple[str, ...], settings: JsonObject) -> RunProcess:
        env = self.setting("env")
        pairs = []
        for name, member in env.members() if env is not None else ():
            if self.is_variable(name, member):
                pairs.append((name, _rye_chain.argument(member.value)))
        return _rye_chain.by_command(program, fixed, settings, tuple(pairs))

    def is_variable(self, name: str, member: Node) -> bool:
        if member.kind in ("object", "array", "null"):
            member.error("rye.yaml.config-env-forms", f"must be a value (got {member.kind})")
        elif not name or "=" in name:
            member.error("rye.yaml.config-env-forms", f"not the name of a variable (got {shown(name)})")
        else:
            return True
        return False

    def arguments(self) -> tuple[str, ...]:
        node = self.setting("args")
        if node is None:
            return ()
        if node.kind != "array":
            node.error("rye.yaml.config-command", f"must be a list of arguments (got {node.kind})")
            return ()
        found = []
        for item in node.items():
            if item.kind in ("object", "array", "null"):
                item.error("rye.yaml.config-command", f"must be one argument (got {item.kind})")
            else:
                found.append(_rye_chain.argument(item.value))
        return tuple(found)

    def env_names(self) -> tuple[str, ...]:
        """The variables of the host that the author names: a list in ``env``, or ``${NAME}`` in values."""
        names: dict[str, None] = {}
        env = self.setting("env")
        for item in env.items() if env is not None else ():
            if item.kind == "string" and item.value:
                names[item.value] = None
            else:
                item.error("rye.yaml.config-env-forms", f"must be a name (got {shown(item.value)})")
        if env is not None and env.kind not in ("array", "object"):
            env.error("rye.yaml.config-env-forms", f"must be a mapping or a list of names (got {env.kind})")
        env_config = self.member("env_config")
        chosen = env_config.get("env") if env_config is not None else None
        for name, member in chosen.members() if chosen is not None else ():
            self.is_variable(name, member)
        for mapping in (env, chosen):
            for _, member in mapping.members() if mapping is not None else ():
                if member.kind == "string":
                    names.update(dict.fromkeys(_ENV_REFERENCE.findall(member.value)))
        return tuple(names)

    def mcp(self) -> Invocation:
        server, tool = self.text_setting("server"), self.text_setting("tool_name")
        for key, value in (("server", server), ("tool_name", tool)):
            if value is None:
                self.place("config").error(
                    "rye.yaml.mcp-tool-name",
                    f"{key} is required",
                    hint="name the server's item id and its tool",
                )
        path = self.text_setting("server_config_path")
        if path is not None and server is not None and not path.endswith(f"/.ai/tools/{server}.yaml"):
            self.place("config").here("server_config_path").warn(
                "rye.yaml.mcp-config-path",
                "points to another file than config.server, which counts",
                hint="remove it; it is derived from config.server",
            )
        if server is None or tool is None:
            return NotCallable(reason="nothing to run")
        return CallMcp(server=server, tool=tool, settings=jsontext.compact(self.settings()))

    def consistency(self, tool_type: str, executor: str, runtime: Runtime | None) -> None:
        """Type, file and runtime should fit; and a program should have what its runtime calls."""
        node = self.place("executor_id")
        if runtime is not None and runtime not in _RUNTIMES_OF_TYPE.get(tool_type, (runtime,)):
            node.warn(
                "rye.type.executor-consistent", f'{shown(executor)} does not fit tool_type "{tool_type}"'
            )
        if runtime is not None and runtime not in _RUNTIMES_OF_SUFFIX[self.suffix]:
            node.warn("rye.type.language-consistent", f"{shown(executor)} does not fit a {self.suffix} file")
        if self.declared.python is not None:
            self.python_rules(tool_type, runtime, self.declared.python)

    def python_rules(self, tool_type: str, runtime: Runtime | None, source: PythonSource) -> None:
        add = self.reader.add
        if not source.has_docstring:
            add(
                "rye.python.structure",
                "no docstring",
                severity=Severity.WARNING,
                line=1,
                hint="begin the file with a sentence about what the tool does",
            )
        function = source.functions.get("execute")
        if runtime is Runtime.FUNCTION and not source.bound & {"execute", "*"}:
            add(
                "rye.python.needs-execute",
                f"No execute() in {self.document.path}",
                severity=Severity.ERROR if tool_type == "python" else Severity.WARNING,
                hint="define execute(params, project_path) at module level, or use the script runtime",
            )
        if function is not None and [name.lstrip("_") for name in function.parameters] != [
            "params",
            "project_path",
        ]:
            add(
                "rye.python.execute-arity",
                f"execute() takes ({', '.join(function.parameters)}), not (params, project_path)",
                severity=Severity.WARNING,
                line=function.line,
                hint="it is called with exactly these two",
            )
        if not source.has_main:
            add(
                "rye.cli.fallback",
                'no if __name__ == "__main__" block',
                severity=Severity.WARNING,
                hint="with one, people can run the tool by itself",
            )
        elif runtime is Runtime.SCRIPT and source.options.get("--params"):
            add(
                "rye.cli.fallback",
                "the command line requires --params, although parameters come on standard input",
                severity=Severity.WARNING,
                hint="read them from standard input when the option is absent",
            )

    # -- everything optional --------------------------------------------------------------------------------

    def object_of(self, key: str, code: str, *, severity: Severity = Severity.ERROR) -> JsonObject | None:
        node = self.member(key)
        if node is None or node.value is None:
            return None
        if node.kind != "object":
            node.say(code, node.with_place(f"must be an object (got {node.kind})"), severity=severity)
            return None
        return dict(node.value)

    def parameters(self) -> Schema | None:
        return _rye_parameters.read(
            self.member("input_schema"),
            self.member("config_schema"),
            self.member("parameters"),
            self.member("actions"),
        )

    def resolve_requests(self) -> None:
        node = self.member("config_resolve")
        if node is None or node.value is None:
            return
        requests = list(node.items()) if node.kind == "array" else [node]
        if len(requests) > _REQUESTS_MAX:
            node.error("rye.resolve.inject", f"more than {_REQUESTS_MAX} files are asked for")
        for request in requests:
            if request.kind != "object":
                request.error("rye.resolve.inject", f"must be an object with a path (got {request.kind})")
                continue
            path, mode = request.get("path"), request.get("mode")
            if path is None or path.kind != "string" or not path.value:
                request.error("rye.resolve.inject", "needs a path below .ai/config")
            elif not self.contained(path.value):
                path.error(
                    "rye.resolve.contained",
                    f"leaves .ai/config (got {shown(path.value)})",
                    hint="write a path relative to .ai/config, without dots",
                )
            if mode is not None and mode.value not in ("deep_merge", "first_match"):
                mode.error(
                    "rye.resolve.mode-values",
                    f"must be deep_merge or first_match (got {shown(mode.value)})",
                )

    def needs(self, invocation: Invocation) -> Needs:
        requires = self.member("requires")
        capabilities: list[str] = []
        stated = requires is not None and requires.value is not None
        if requires is not None and stated and requires.kind != "array":
            requires.error("rye.yaml.requires", "not a list", hint="for example requires: [fs.write]")
        for item in requires.items() if requires is not None else ():
            if item.kind == "string" and _DOTTED.fullmatch(item.value):
                capabilities.append(item.value)
            else:
                item.error("rye.yaml.requires", f"not a dotted name (got {shown(item.value)})")
        return Needs(
            stated=stated,
            capabilities=tuple(dict.fromkeys(capabilities)),
            programs=(invocation.program,)
            if isinstance(invocation, RunProcess) and invocation.program
            else (),
            env=tuple(dict.fromkeys((*self.env_names(), *_sent_names(invocation)))),
            timeout_s=self.timeout(),
        )

    def timeout(self) -> float | None:
        """The tool's own limit; where it has none, linking takes the runtime's."""
        node = self.member("timeout")
        if node is not None and node.value is not None:
            if type(node.value) is int and node.value > 0:
                return seconds(node.value)
            node.error(
                "rye.yaml.timeout", f"must be a positive whole number of seconds (got {shown(node.value)})"
            )
            return None
        configured = self.setting("timeout")
        if configured is not None and type(configured.value) in (int, float) and configured.value > 0:
            return seconds(configured.value)
        return None

    def retry(self) -> Retry | None:
        node = self.member("retry_policy")
        if node is None or self.object_of("retry_policy", "rye.yaml.retry-values") is None:
            return None
        attempts, backoff = node.get("max_attempts"), node.get("backoff_type")
        if attempts is not None and (type(attempts.value) is not int or attempts.value < 1):
            attempts.error(
                "rye.yaml.retry-values", f"must be a whole number from 1 (got {shown(attempts.value)})"
            )
        if backoff is not None and backoff.value not in ("exponential", "linear", "fixed"):
            backoff.error(
                "rye.yaml.retry-values", f"must be exponential, linear or fixed (got {shown(backoff.value)})"
            )
        numbers: dict[str, float] = {}
        for key, default in (("initial_delay", 1.0), ("max_delay", 60.0), ("backoff_multiplier", 2.0)):
            number = node.get(key)
            numbers[key] = default
            if number is not None and (type(number.value) not in (int, float) or number.value < 0):
                number.error("rye.yaml.retry-values", f"must not be negative (got {shown(number.value)})")
            elif number is not None:
                numbers[key] = seconds(number.value)
        if self.reader.has_errors:
            return None
        return Retry(
            max_attempts=attempts.value if attempts is not None else 1,
            backoff=backoff.value if backoff is not None else "exponential",
            initial_delay_s=numbers["initial_delay"],
            max_delay_s=numbers["max_delay"],
            multiplier=numbers["backoff_multiplier"],
        )

    def notes(self) -> Notes:
        cost, documentation, metadata = (
            self.object_of(key, "rye.yaml.wrong-type", severity=Severity.WARNING)
            for key in ("cost", "documentation", "metadata")
        )
        marks = {
            mark: bool(metadata and metadata.get(mark) is True) for mark in ("deprecated", "experimental")
        }
        for mark, is_set in marks.items():
            if is_set:
                self.place("metadata").here(mark).warn("rye.yaml.metadata-deprecated", f"the tool is {mark}")
        outputs = self.member("outputs")
        if self.text_of_type() == RUNTIME:
            wishes = {
                key: node.value for key in _WISHES if (node := self.member(key)) is not None and node.value
            }
            if names := self.env_names():
                wishes[NAMES] = list(names)
            metadata = {**(metadata or {}), RUNTIME: wishes}
        if self.text_of_type() == SERVER:
            metadata = {**(metadata or {}), SERVER: self.object_of("config", "rye.yaml.wrong-type") or {}}
        return Notes(
            category=self.folder,
            cost=cost,
            tags=self.tags(),
            documentation=documentation,
            outputs=outputs.value if outputs is not None else None,
            metadata=metadata,
            deprecated=marks["deprecated"],
            experimental=marks["experimental"],
            head=_body(self.text)[:_HEAD_CHARS],
        )

    def text_of_type(self) -> JsonValue:
        node = self.member("tool_type")
        return node.value if node is not None else None

    def tags(self) -> tuple[str, ...]:
        node = self.member("tags")
        if node is None or node.value is None:
            return ()
        good = [item.value for item in node.items() if item.kind == "string"]
        if node.kind != "array" or len(good) != len(node.value):
            node.warn("rye.yaml.wrong-type", f"must be a list of texts (got {node.kind})")
        return tuple(good)

    # -- advice ---------------------------------------------------------------------------------------------

    def advice(self, parameters: Schema | None, needs: Needs) -> None:
        _rye_parameters.advise(
            self.member("input_schema"),
            self.member("config_schema"),
            self.member("parameters"),
            snake_case=self.suffix == ".py",
        )
        if _WORD.fullmatch(self.item_id):
            self.reader.add(
                "rye.lint.names",
                f"{shown(self.item_id)} is a very general name",
                severity=Severity.INFO,
                hint="say what it acts on, as in deploy-kubernetes",
            )
        checks = _CONTAINMENT.get(self.suffix, ())
        if checks and parameters is not None and not any(check in self.text for check in checks):
            for name in _rye_parameters.path_like(parameters.document):
                self.reader.add(
                    "rye.call.path-check",
                    f"the parameter {shown(name)} is a path and nothing checks that it stays in the project",
                    severity=Severity.WARNING,
                    hint="for example: if not path.is_relative_to(project): return an error",
                )
        self.hard_paths()
        uses = {name.split(".")[0] for name in needs.capabilities} & {"net", "shell", "process"}
        if uses and self.member("timeout") is None and self.member("retry_policy") is None:
            self.reader.add(
                "rye.lint.error-handling",
                f"requires {min(uses)} and has neither timeout nor retry_policy",
                severity=Severity.INFO,
                hint="say how long it may take and whether it may be tried again",
            )

    def hard_paths(self) -> None:
        if self.is_data:
            config = self.member("config")
            found = (
                [
                    (pointer, value)
                    for pointer, value in jsontext.walk(config.value, config.pointer)
                    if isinstance(value, str) and _HARD_PATH_VALUE.fullmatch(value)
                ]
                if config is not None
                else []
            )
            for pointer, value in found:
                Node(self.reader, value, pointer).warn(
                    "rye.lint.hardcoded-paths",
                    f"absolute path {shown(value)}",
                    hint="resolve it against the project",
                )
            return
        for number, line in enumerate(self.text.split("\n"), 1):
            if self.reader.is_full:
                return
            if not ("/" in line or "\\" in line) or line.lstrip().startswith(("#", "//", "*")):
                continue
            for match in islice(_HARD_PATH.finditer(line), _PATHS_PER_LINE_MAX):
                self.reader.add(
                    "rye.lint.hardcoded-paths",
                    f"absolute path {shown(match['path'])}",
                    severity=Severity.WARNING,
                    line=number,
                    hint="resolve paths against project_path",
                )


def _reserved(parameters: Schema | None) -> tuple[str, ...]:
    """Names that never reach the tool, unless its own schema declares them."""
    if parameters is None:
        return (*_RESERVED, *_ALWAYS_RESERVED)
    properties = parameters.document.get("properties")
    declared = properties if isinstance(properties, dict) else {}
    return (*(name for name in _RESERVED if name not in declared), *_ALWAYS_RESERVED)


def _sent_names(invocation: Invocation) -> list[str]:
    """The variables that a request's URL and headers name."""
    if not isinstance(invocation, CallHttp):
        return []
    written = (invocation.url, *(value for _, value in invocation.headers))
    return [name for text in written for name in _ENV_REFERENCE.findall(text)]
