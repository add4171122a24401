"""The manifest format: ``tools.json`` with argv commands under ``./tools/bin`` and JSON on stdin.

Marked by a ``tools[]`` item with ``command``. Each item becomes a ``RunProcess`` that receives the model's
arguments verbatim on stdin. This module does not look whether programs exist (it states a condition), does
not resolve links and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import dirname, normpath
from typing import Final

from toolcrib.formats import _schema_lint
from toolcrib.formats._node import TOOLS_MAX, Node, Reader, key_of, shown
from toolcrib.jsontext import Duplicate, JsonValue, Pointer, compact
from toolcrib.model import (
    Compiled,
    Condition,
    ConditionKind,
    Document,
    Fix,
    FixPart,
    Habits,
    Intake,
    JsonOnStdin,
    Linked,
    Needs,
    Origin,
    Problem,
    Reply,
    Rules,
    RunProcess,
    Schema,
    SchemaForm,
    Severity,
    Tool,
    Unit,
)

NAME: Final = "manifest"
_HABITS: Final = Habits(day_line=True)

_TOOL_KEYS: Final = ("name", "description", "schema", "command", "timeoutSec", "envPassthrough")
_ENV_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_PROVIDER_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LOADER_NAMES: Final = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "NODE_OPTIONS"})
_TIMEOUT_S_MAX: Final = 10**9  # as good as none; an integer of any length can stand in the file

# Problems that the field's loader lets pass; where it stops at one, it is never one of these.
_OURS: Final = frozenset(
    {"manifest.root.duplicate-members", "manifest.root.key-case", "manifest.schema.type"}
)
_PARSE: Final = "parse manifest: "


def recognises(document: Document) -> bool:
    parsed = document.parsed
    if parsed is None or not isinstance(parsed.value, dict):
        return False
    tools = _folded(parsed.value, "tools")
    if not isinstance(tools, list):
        return False
    # A repeated member is left out of the value, and marks the format all the same.
    for tool in tools:
        if type(tool) is dict and _has_folded(tool, "command"):
            return True
    return any(found.key.lower() == "command" and len(found.pointer) == 2 for found in parsed.duplicates)


def compile_document(document: Document, rules: Rules) -> Compiled:
    reader = Reader(document)
    if document.unreadable is not None or document.parsed is None:
        reader.add(
            "manifest.root.read-error",
            f"read manifest: {document.unreadable or 'no content'}",
            hint="make it a readable file with a JSON object, or leave it out of the sources",
        )
        return Compiled(problems=tuple(reader.problems))
    if document.parsed.defect is not None:
        defect = document.parsed.defect
        code = (
            "manifest.root.json-strict"
            if "byte-order mark" in defect.message
            else "manifest.root.parse-error"
        )
        reader.add(
            code,
            f"{_PARSE}{defect}",
            line=defect.line,
            hint="mend the JSON there; if the file belongs to another program, leave it out of the sources",
        )
        return Compiled(problems=tuple(reader.problems))
    manifest = _Manifest(document, reader, rules)
    manifest.read()
    if rules.manifest_strict and reader.has_errors:
        return Compiled(problems=tuple(sorted(reader.problems, key=_field_order)))
    return Compiled(
        tools=tuple(manifest.tools),
        problems=tuple(reader.problems),
        conditions=tuple(manifest.conditions),
        whole=rules.manifest_strict,
    )


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    """Manifests know nothing of each other: their tools stand side by side under their own keys."""
    return Linked(tools=tuple(tool for unit in units for tool in unit.compiled.tools))


def _field_order(problem: Problem) -> int:
    """The field's loader decodes the whole file before it checks the first tool."""
    if problem.severity is not Severity.ERROR:
        return 3
    if problem.code in _OURS:
        return 2
    return 0 if problem.message.startswith(_PARSE) else 1


def _folded(value: dict[str, JsonValue], key: str) -> JsonValue:
    if key in value:
        return value[key]
    return next((item for name, item in value.items() if len(name) == len(key) and name.lower() == key), None)


def _has_folded(value: dict[str, JsonValue], key: str) -> bool:
    return key in value or any(len(name) == len(key) and name.lower() == key for name in value)


class _Manifest:
    """One reading of one document."""

    def __init__(self, document: Document, reader: Reader, rules: Rules) -> None:
        assert document.parsed is not None
        self.document = document
        self.reader = reader
        self.rules = rules
        self.root = reader.node(document.parsed.value)
        self.duplicates: dict[Pointer, list[Duplicate]] = {}
        """Repeated members by the root member or tool they are in."""
        for found in document.parsed.duplicates:
            self.duplicates.setdefault(found.pointer[:2], []).append(found)
        self.folder = document.path.rpartition("/")[0]
        self.tools: list[Tool] = []
        self.conditions: list[Condition] = []
        self.seen: set[str] = set()

    def read(self) -> None:
        if self.root.kind != "object":
            self.root.say(
                "manifest.root.parse-error",
                f"{_PARSE}expected an object with tools, got {self.root.kind}",
            )
            return
        members = self.members(self.root, ("tools",), "")
        tools = members.get("tools") if members is not None else None
        for place, found in self.duplicates.items():
            if tools is None or place[:1] != tools.pointer:
                for repeated in found:
                    self.repeated(repeated, "manifest")
        if tools is None or tools.value is None:
            return
        if tools.kind != "array":
            tools.say("manifest.root.parse-error", f"{_PARSE}tools must be an array, got {tools.kind}")
            return
        if len(tools.value) > TOOLS_MAX:
            tools.say(
                "manifest.root.too-many-tools",
                f"{_PARSE}more than {TOOLS_MAX:,} tools (got {len(tools.value):,})",
                hint="split the file",
            )
            return
        for index, item in enumerate(tools.items()):
            self.tool(index, item)

    def repeated(self, found: Duplicate, whom: str, name: str | None = None) -> None:
        self.reader.add(
            "manifest.root.duplicate-members",
            f'{whom}: duplicate key "{found.key}"',
            pointer=found.pointer,
            line=found.line,
            name=name,
            hint="keep one of them; which one would run must not depend on the reader",
        )

    def members(self, node: Node, known: tuple[str, ...], whom: str) -> dict[str, Node] | None:
        """The documented members under their canonical names; None when two spellings of one clash."""
        found: dict[str, Node] = {}
        clash = False
        # Attack: a hundred thousand unknown keys, each of which has all others looked through.
        lacks_schema = "schema" in known and not _has_folded(node.value, "schema")
        for key, member in node.members():
            if key in known:
                canonical: str | None = key
            else:
                canonical = next((name for name in known if name.lower() == key.lower()), None)
            if canonical is None and lacks_schema and _schema_lint.is_schema_key(key, node.value, "schema"):
                member.warn(
                    "manifest.root.unknown-keys",
                    f'unknown key {key} (did you mean "schema"?)',
                    hint=_schema_lint.schema_key_hint(key, "schema"),
                    fix=_schema_lint.schema_key_fix(key, node, "schema"),
                )
                continue
            if canonical is None:
                member.warn(
                    "manifest.root.unknown-keys",
                    f"unknown key {key}{member.did_you_mean(key, known)}",
                    hint="it has no effect; remove it or correct its spelling",
                )
                continue
            if canonical in found:
                member.say(
                    "manifest.root.key-case",
                    f'{whom or "manifest"}: two spellings of "{canonical}" in one object',
                    hint=f'keep one "{canonical}"',
                )
                clash = True
                continue
            if key != canonical:
                is_only = sum(other.lower() == key.lower() for other in node.value) == 1
                member.warn(
                    "manifest.root.key-case",
                    f'key {shown(key)} should be written "{canonical}"',
                    fix=Fix(part=FixPart.KEY, new=f'"{canonical}"') if is_only else None,
                )
            found[canonical] = member
        return None if clash else found

    def tool(self, index: int, node: Node) -> None:
        before = self.reader.errors
        if node.kind != "object":
            node.say(
                "manifest.root.wrong-types", self.typed(f"tool[{index}]: must be an object, got {node.kind}")
            )
            return
        name = self.name_of(node)
        # Cut: a long name times many problems would fill the memory.
        whom = f"tool[{index}] {shown(name)}" if name else f"tool[{index}]"
        repeats = self.duplicates.get(node.pointer, ())
        for repeated in repeats:
            self.repeated(repeated, whom, name)
        members = self.members(node, _TOOL_KEYS, whom)
        if members is None or any(repeated.pointer == node.pointer for repeated in repeats):
            return  # what the tool consists of is not known
        name = self.name(index, members.get("name"), node)
        description = self.text(members.get("description"), whom, "description")
        schema = self.schema(members.get("schema"), whom, name)
        command = self.command(members.get("command"), node, whom)
        timeout_s = self.timeout(members.get("timeoutSec"), whom)
        env = self.env(members.get("envPassthrough"), whom)
        program = self.program(members.get("command"), command, whom) if command else None
        failed = self.reader.errors > before
        if failed or name is None or command is None or program is None:
            return
        if not description:
            node.warn(
                "manifest.description.optional",
                "no description",
                name=name,
                hint="say in a sentence what the tool does; models choose by it",
            )
        key = key_of(NAME, self.document.scope, name)
        self.tools.append(
            Tool(
                key=key,
                name=name,
                scope=self.document.scope,
                description=description or "",
                input_schema=schema,
                schema_form=SchemaForm.VERBATIM,
                invocation=RunProcess(
                    program=program,
                    fixed=tuple(command[1:]),
                    encoding=JsonOnStdin(verbatim=True),
                    beneath=None
                    if command[0].startswith("/")
                    else f"{dirname(self.document.path)}/tools/bin",
                ),
                intake=Intake(),
                reply=Reply.JSON_LINE,
                needs=Needs(base_env=("PATH", "HOME"), programs=(program,), env=env, timeout_s=timeout_s),
                origin=Origin(format=NAME, path=self.document.path, pointer=node.pointer),
                habits=_HABITS,
            )
        )
        self.conditions.append(
            Condition(
                kind=ConditionKind.EXECUTABLE_FILE,
                subjects=(program,),
                otherwise=Problem(
                    code="manifest.command.missing-file",
                    severity=Severity.WARNING,
                    message=f"{whom}: program {shown(command[0])} does not exist or is not executable",
                    path=self.document.path,
                    pointer=(*members["command"].pointer, 0),
                    name=name,
                    hint="build or install it, and make it executable (chmod +x)",
                ),
            )
        )

    def typed(self, message: str) -> str:
        """The field refuses a whole file for one wrong type, under its parse prefix; strict mode does too."""
        return f"{_PARSE}{message}" if self.rules.manifest_strict else message

    def name_of(self, node: Node) -> str | None:
        value = _folded(node.value, "name")
        return value if isinstance(value, str) and value.strip() else None

    def name(self, index: int, node: Node | None, tool: Node) -> str | None:
        if node is not None and node.value is not None and node.kind != "string":
            node.say(
                "manifest.root.wrong-types",
                self.typed(f"tool[{index}]: name must be a string, got {node.kind}"),
            )
            return None
        name: str = node.value if node is not None and node.value is not None else ""
        if not name.strip():
            code = "manifest.name.whitespace" if name else "manifest.name.required"
            tool.say(code, f"tool[{index}]: name is required", hint='give it a "name"')
            return None
        assert node is not None
        if name in self.seen:
            node.say(
                "manifest.name.unique",
                f"tool[{index}] {shown(name)}: duplicate name",
                name=name,
                hint="the first one is kept; rename this one",
            )
            return None
        self.seen.add(name)
        if name != name.strip():
            node.warn("manifest.name.whitespace", f"blanks around the name {shown(name)}", name=name)
        if not _PROVIDER_NAME.fullmatch(name):
            node.warn(
                "manifest.name.charset",
                f"{shown(name)} cannot be a provider's function name",
                name=name,
                hint="it is declared under a substitute and called back under its own name",
            )
        return name

    def text(self, node: Node | None, whom: str, key: str) -> str | None:
        if node is None or node.value is None:
            return None
        if node.kind != "string":
            node.say(
                "manifest.root.wrong-types", self.typed(f"{whom}: {key} must be a string, got {node.kind}")
            )
            return None
        return str(node.value)

    def schema(self, node: Node | None, whom: str, name: str | None) -> Schema | None:
        if node is None or node.value is None:
            return None
        if node.kind != "object":
            node.say("manifest.schema.type", f"{whom}: schema must be an object, got {node.kind}")
            return None
        _schema_lint.report(node, name)
        return Schema.of(node.value)

    def command(self, node: Node | None, tool: Node, whom: str) -> list[str] | None:
        if node is None or node.value is None or node.value == []:
            (node or tool).say(
                "manifest.command.required",
                f"{whom}: command must have at least program name",
                hint='for example "command": ["./tools/bin/NAME"]',
            )
            return None
        if node.kind != "array":
            node.say(
                "manifest.root.wrong-types",
                self.typed(f"{whom}: command must be an array of strings, got {node.kind}"),
            )
            return None
        for item in node.items():
            if item.kind != "string":
                item.say(
                    "manifest.command.strings",
                    self.typed(f"{whom}: command[{item.pointer[-1]}] must be a string, got {item.kind}"),
                )
                return None
        return list(node.value)

    def timeout(self, node: Node | None, whom: str) -> float | None:
        if node is None or node.value is None:
            return None
        if node.kind != "integer":
            fraction = node.kind == "number"
            node.say(
                "manifest.timeout.integer" if fraction else "manifest.root.wrong-types",
                self.typed(
                    f"{whom}: timeoutSec must be a whole number of seconds, "
                    f"got {node.value if fraction else node.kind}"
                ),
            )
            return None
        if node.value <= 0:
            node.warn(
                "manifest.timeout.nonpositive",
                f"timeoutSec {shown(node.value)} counts as not given",
                hint="remove it, or give a positive number of seconds",
            )
            return None
        return float(min(node.value, _TIMEOUT_S_MAX))

    def env(self, node: Node | None, whom: str) -> tuple[str, ...]:
        if node is None or node.value is None:
            return ()
        if node.kind != "array":
            node.say(
                "manifest.root.wrong-types",
                self.typed(f"{whom}: envPassthrough must be an array of strings, got {node.kind}"),
            )
            return ()
        names: dict[str, None] = {}
        for number, item in enumerate(node.items()):
            where = f"{whom}: envPassthrough[{number}]"
            if item.kind != "string":
                item.say(
                    "manifest.root.wrong-types", self.typed(f"{where}: must be a string, got {item.kind}")
                )
                continue
            written = item.value.strip()
            name = written.upper()
            if not name:
                item.say("manifest.env.empty", f"{where}: empty name")
            elif not _ENV_NAME.fullmatch(name) or not written.isascii():  # "ß" upper-cased is "SS"
                code = "manifest.env.digit" if name[0].isdigit() else "manifest.env.invalid"
                item.say(code, f'{where}: invalid name "{item.value}" (must match [A-Z_][A-Z0-9_]*)')
            elif name not in names:
                names[name] = None
                if name in _LOADER_NAMES or name.startswith("DYLD_"):
                    item.warn(
                        "manifest.env.loader-names",
                        f"{name} changes how programs are loaded",
                        hint="it reaches the tool only with a grant of the host",
                    )
        return tuple(names)

    def program(self, node: Node | None, command: list[str], whom: str) -> str | None:
        """The absolute program path, by the field's three checks in their order."""
        assert node is not None
        raw = command[0]
        first = Node(self.reader, raw, (*node.pointer, 0))
        if raw.startswith("/"):
            first.warn(
                "manifest.command.absolute",
                f"absolute program {shown(raw)}",
                hint="absolute paths are meant for tests; put the program under ./tools/bin/",
            )
            return raw
        slashed = raw.replace("\\", "/")
        normal = normpath(slashed) if slashed else ""
        if normal.startswith("//"):  # POSIX keeps two leading slashes; it is an absolute path all the same
            normal = normal[1:]
        if normal == ".." or normal.startswith("../"):
            first.say(
                "manifest.command.dotdot",
                f"{whom}: command[0] must not start with '..' or escape tools/bin (got \"{raw}\")",
                hint="put the program under ./tools/bin/",
            )
            return None
        if normal.startswith("tools/"):
            normal = f"./{normal}"
        if normal == "tools":
            normal = "./tools"
        if not normal.startswith("./tools/bin/"):
            if slashed == "./tools/bin" or slashed.startswith("./tools/bin/"):
                code = "manifest.command.escape-dir" if normal == "./tools/bin" else "manifest.command.escape"
                first.say(
                    code,
                    f'{whom}: command[0] escapes ./tools/bin after normalization (got "{raw}" -> "{normal}")',
                )
                return None
            code = "manifest.command.prefix" if "/" in slashed or not raw else "manifest.command.bare-name"
            first.say(
                code if raw else "manifest.command.strings",
                f"{whom}: relative command[0] must start with ./tools/bin/",
                hint="put the program under ./tools/bin/ beside this file",
            )
            return None
        if not slashed.startswith("./"):
            first.warn(
                "manifest.command.without-dot",
                f"should be written {shown(normal)} (got {shown(raw)})",
                fix=Fix(part=FixPart.VALUE, new=compact(normal).decode("utf-8")),
            )
        if self.rules.windows and not normal.lower().endswith(".exe"):
            first.warn(
                "manifest.command.windows-exe",
                f"on Windows the program needs the .exe suffix (got {shown(raw)})",
            )
        return f"{self.folder}/{normal[2:]}" if self.folder else normal
