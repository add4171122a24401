"""The skill format: ``tools.json`` beside ``SKILL.md``, with an allowlist and one execution per tool.

Marked by a root object with ``allowlist`` or ``execution``, or by a root array with ``allowlist.json`` and
``execution.json`` beside it. Each tool becomes a ``RunProcess`` whose arguments are argv elements.

A key that is not known here may be a restriction that a later version enforces, so it never passes in
silence: unless it only changes how output looks, its tool is not served.

The form in three files has a grammar of its own, which is kept where that is supported: subcommands of
several words, flags of one letter, refused paths, declared arguments only. A tool that needs more is refused.

This module does not look whether programs are installed (it states a condition) or whether scripts exist,
builds no argv and runs nothing. ``_node`` and ``_yaml`` lie above it, the loader below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from posixpath import dirname, join
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.formats import _schema_lint, _yaml
from toolcrib.formats._node import NAME_CHARS_MAX, Node, Reader, fold, key_of, kind_of, shown, suggestion
from toolcrib.jsontext import Duplicate, JsonObject, JsonValue, Parsed, Pointer, place_text
from toolcrib.model import (
    READING,
    ArgMapping,
    AsArgv,
    CallFunction,
    Compiled,
    Condition,
    ConditionKind,
    Document,
    Effect,
    Fix,
    FixPart,
    Flag,
    Habits,
    Intake,
    Linked,
    Namesakes,
    Needs,
    Origin,
    Positional,
    Problem,
    Reply,
    Resolver,
    Rules,
    RunProcess,
    Schema,
    SchemaForm,
    Severity,
    Skill,
    Switch,
    Tool,
    Unit,
)

NAME: Final = "skill"
_HABITS: Final = Habits(namesakes=Namesakes.SETTLED)
"""The key of the host's own tool that reads a skill's instructions."""
_NAMED_MAX: Final = 200
"""Skills that its description names."""

_ROOT_KEYS: Final = ("tools", "allowlist", "execution")
_TOOL_KEYS: Final = ("name", "description", "parameters")
_EXECUTION_KEYS: Final = ("tool", "binary", "subcommand", "args")
_RESOLVE_KEYS: Final = ("script", "binary", "subcommand", "args")
# Which keys of an arg mapping do something, by its kind.
_EFFECTIVE: Final = {
    "positional": ("normalizeNewlines", "resolveCommand", "allowLeadingDash"),
    "flag": ("flag", "normalizeNewlines", "resolveCommand"),
    "flagifboolean": ("flagIfTrue", "flagIfFalse"),
}
_ARG_KEYS: Final = ("param", "kind", *dict.fromkeys(key for keys in _EFFECTIVE.values() for key in keys))

_LATER_KINDS: Final = frozenset({"stdin", "workingdir", "tempfile", "literal", "envvar"})
_LATER_DISPLAY: Final = frozenset({"postProcess", "maxOutputLines", "truncationHint", "hintConditions"})
_LATER: Final = frozenset(
    {
        "absentDefault",
        "binaryWrapper",
        "condition",
        "denyAlwaysResolve",
        "denyPattern",
        "denyResolveCommand",
        "disambiguateAfterSkippedPositionals",
        "optional",
        "paramCondition",
        "readPath",
        "sideRead",
        "split",
        "subcommandOverride",
        "successExitCodes",
        "unsafePath",
        "value",
        "writePath",
    }
)

_REPLACES_OUTPUT: Final = "postProcess"
"""In three files it may be what keeps secrets out of a result, so no tool runs without it there."""

_FRONT_MATTER: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n(?:(.*?)\n)??---[ \t]*\r?(?:\n|\Z)", re.DOTALL
)
_FRONT_MATTER_START: Final = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n")


def recognises(document: Document) -> bool:
    if document.parsed is None:
        return False
    root = document.parsed.value
    if isinstance(root, dict):
        # Attack: a repeated member is left out of the value, so a second "allowlist" would turn the file
        # into a manifest that nothing restricts. Repeated or not, it marks a skill.
        keys = [*root, *(found.key for found in document.parsed.duplicates if not found.pointer)]
        return "allowlist" in keys or "execution" in keys
    return _in_three_files(document)


def compile_document(document: Document, rules: Rules) -> Compiled:
    reader = Reader(document)
    heading = _heading(document, reader)
    if heading.name in rules.skills_disabled:
        return Compiled()
    if "SKILL.md" not in document.neighbours and not document.explicit and document.unreadable is None:
        reader.add(
            "skill.location.needs-skill-md",
            "no SKILL.md beside tools.json",
            severity=Severity.WARNING,
            hint="write a SKILL.md, or name this tools.json itself as the source",
        )
        return Compiled(problems=tuple(reader.problems))
    parsed = _descriptor(document, reader)
    served = _Descriptor(parsed, document, reader, rules).read() if parsed is not None else []
    if _in_three_files(document):
        reader.problems[:] = [_in_own_file(problem, document) for problem in reader.problems]
    return Compiled(
        tools=tuple(_tool(declared, run, heading.name, document) for declared, run in served),
        problems=tuple(reader.problems),
        conditions=_conditions(heading, document),
        skills=(Skill(name=heading.name, path=dirname(document.path), description=heading.description),),
    )


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    """Skills by root and name; of two with one name the later stays, and every clash is reported."""
    found = [(unit.space, skill, unit) for unit in units for skill in unit.compiled.skills]
    found.sort(key=lambda entry: (entry[0], entry[1].name))
    kept: dict[str, tuple[Skill, Unit]] = {}
    problems: list[Problem] = []
    for _, skill, unit in found:
        replaced = kept.pop(skill.name, None)
        kept[skill.name] = (skill, unit)
        if replaced is not None:
            problems.append(
                Problem(
                    code="skill.location.root-order",
                    severity=Severity.WARNING,
                    message=f'skill "{skill.name}" in {skill.path} replaces the one in {replaced[0].path}',
                    path=unit.path,
                    name=skill.name,
                    hint="rename one of them, or leave one out, if both are meant to be there",
                )
            )
    tools = [tool for _, unit in kept.values() for tool in unit.compiled.tools]
    owners: dict[str, Tool] = {}
    for tool in tools:
        owner = owners.setdefault(tool.name, tool)
        if owner is not tool:
            problems.append(
                Problem(
                    code="skill.tools.name-unique",
                    severity=Severity.WARNING,
                    message=f"name {shown(tool.name)} is taken by {owner.key} and by {tool.key}",
                    path=tool.origin.path,
                    pointer=tool.origin.pointer,
                    name=tool.name,
                    hint="say which one by its key",
                )
            )
    return Linked(
        tools=tuple(tools), skills=tuple(skill for skill, _ in kept.values()), problems=tuple(problems)
    )


def reading_tool(skills: Sequence[Skill]) -> Tool:
    """The host's own tool that gives models the instructions of these skills when they ask for them.

    The schema neither requires a name nor lists the names: the format has its own texts for both mistakes,
    which the tool itself says.
    """
    # Attack: a skill whose name goes on after a line break, as if the host had written it.
    named = ", ".join(jsontext.plain(" ".join(skill.name.split())).decode() for skill in skills[:_NAMED_MAX])
    more = f" and {len(skills) - _NAMED_MAX} more" if len(skills) > _NAMED_MAX else ""
    about = {"type": "string", "description": f"The name of the skill: one of {named}{more}."}
    return Tool(
        key=READING,
        name="read_skill",
        scope="skills",
        description="Read the instructions of a skill before using its tools.",
        input_schema=Schema.of({"type": "object", "properties": {"skill_name": about}}),
        invocation=CallFunction(name=READING),
        reply=Reply.PLAIN_TEXT,
        needs=Needs(stated=True),
        effect=Effect.READ,
        effect_from="toolcrib itself",
        origin=Origin(format=NAME, path="toolcrib"),
        habits=_HABITS,
    )


# -- SKILL.md -----------------------------------------------------------------------------------------------


def split_front_matter(content: bytes) -> tuple[bytes | None, bytes]:
    """The front matter of a SKILL.md, None where it has none, and the text after it."""
    match = _FRONT_MATTER.match(content)
    return (match[1] or b"", content[match.end() :]) if match else (None, content)


class _Heading(Struct, frozen=True, kw_only=True):
    """What the front matter says."""

    name: str
    description: str = ""
    bins: tuple[tuple[str, ...], ...] = ()
    bins_line: int | None = None


def _heading(document: Document, reader: Reader) -> _Heading:
    """Reads leniently: a skill whose front matter is wrong keeps its folder's name and its tools."""

    def warn(message: str, line: int | None, code: str = "skill.skillmd.frontmatter") -> None:
        path = _beside(document, "SKILL.md")
        reader.problems.append(
            Problem(code=code, severity=Severity.WARNING, message=message, path=path, line=line)
        )

    def text(key: str) -> str:
        value = members.get(key)
        if value is not None and not isinstance(value, str):
            warn(f"{key}: expected text, got {kind_of(value)}", parsed.lines.get((key,)))
        return value if isinstance(value, str) else ""

    plain = _Heading(name=document.scope)
    content = document.neighbours.get("SKILL.md", b"")
    decoded = jsontext.decode(content)
    if isinstance(decoded, jsontext.Defect):
        warn(f"the front matter cannot be read: {decoded.message}", decoded.line)
        return plain
    if "\0" in decoded:
        warn("the front matter cannot be read: a NUL character is not allowed; save it as UTF-8", 1)
        return plain
    front, _ = split_front_matter(content)
    if front is None:
        if _FRONT_MATTER_START.match(content):
            warn(
                "the front matter is not closed by a line of three dashes", 1, "skill.skillmd.frontmatter-end"
            )
        return plain
    parsed = _yaml.read(b"\n" + front)  # the empty line stands for the dashes, so that lines agree
    if parsed.defect is not None:
        warn(f"the front matter cannot be read: {parsed.defect.message}", parsed.defect.line)
        return plain
    members = parsed.value if parsed.value is not None else {}
    if not isinstance(members, dict):
        warn(f"the front matter has to be a mapping (got {kind_of(members)})", 1)
        return plain
    for found in parsed.duplicates:
        warn(f'duplicate key "{found.key}" in the front matter', found.line)
    place: Pointer = ("metadata", "requires", "bins")
    bins = _bins(members)
    if bins is None:
        warn(
            "metadata.requires.bins: expected a list of program names, or of such lists",
            parsed.lines.get(place),
        )
    name = text("name")
    if len(name) > NAME_CHARS_MAX:  # every tool of the skill carries it
        warn(
            f"name: longer than {NAME_CHARS_MAX} characters (got {len(name):,})", parsed.lines.get(("name",))
        )
        name = ""
    return _Heading(
        name=name or plain.name,
        description=text("description"),
        bins=bins or (),
        bins_line=parsed.lines.get(place),
    )


def _bins(members: JsonObject) -> tuple[tuple[str, ...], ...] | None:
    """The alternatives of programs that have to be installed; None where they cannot be understood."""
    value: JsonValue = members
    for key in ("metadata", "requires", "bins"):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return ()
    if not isinstance(value, list):
        return None
    alternatives = value if value and all(isinstance(item, list) for item in value) else [value]
    if not all(isinstance(program, str) and program for programs in alternatives for program in programs):
        return None
    # An alternative without programs holds everywhere, so there is nothing to ask.
    return tuple(map(tuple, alternatives)) if all(alternatives) else ()


def _conditions(heading: _Heading, document: Document) -> tuple[Condition, ...]:
    if not heading.bins:
        return ()
    return (
        Condition(
            kind=ConditionKind.PROGRAMS,
            alternatives=heading.bins,
            drops=True,
            otherwise=Problem(
                code="skill.skillmd.frontmatter",
                severity=Severity.WARNING,
                message=f'skill "{heading.name}" skipped: missing binary {{missing}}',
                path=_beside(document, "SKILL.md"),
                line=heading.bins_line,
                name=heading.name,
                hint="install it, or put it on the PATH",
            ),
        ),
    )


# -- one file or three --------------------------------------------------------------------------------------


def _in_three_files(document: Document) -> bool:
    return (
        document.parsed is not None
        and isinstance(document.parsed.value, list)
        and "allowlist.json" in document.neighbours
        and "execution.json" in document.neighbours
    )


def _beside(document: Document, name: str) -> str:
    return join(dirname(document.path), name)


def _file_of(part: JsonValue, document: Document) -> str:
    """Where a part of a descriptor in three files stands."""
    return document.path if part == "tools" else _beside(document, f"{part}.json")


def _descriptor(document: Document, reader: Reader) -> Parsed | None:
    """The object of tools, allowlist and execution, put together where it lies in three files.

    None where there is none, or where it cannot be read, which is then reported.
    """
    if document.unreadable is not None:
        _not_parsed(reader, document.path, document.unreadable)
        return None
    if document.parsed is None:
        return None
    parts = {"tools": document.parsed}
    if _in_three_files(document):
        for part in ("allowlist", "execution"):
            parts[part] = jsontext.read(document.neighbours[f"{part}.json"])
    for part, parsed in parts.items():
        if parsed.defect is not None:
            _not_parsed(reader, _file_of(part, document), str(parsed.defect), parsed.defect.line)
    if any(parsed.defect is not None for parsed in parts.values()):
        return None
    if not isinstance(document.parsed.value, list):
        return document.parsed
    if len(parts) == 1:
        reader.add(
            "skill.root.three-file",
            "root array needs allowlist.json and execution.json beside it",
            pointer=(),
            hint='write both files, or one object with "tools", "allowlist" and "execution"',
        )
        return None
    return Parsed(
        {part: parsed.value for part, parsed in parts.items()},
        duplicates=tuple(
            Duplicate((part, *found.pointer), found.key, found.line)
            for part, parsed in parts.items()
            for found in parsed.duplicates
        ),
    )


def _not_parsed(reader: Reader, path: str, why: str, line: int | None = None) -> None:
    reader.problems.append(
        Problem(
            code="skill.root.parse-error",
            severity=Severity.WARNING,
            message=f"failed to parse {path}: {why}",
            path=path,
            line=line,
            hint="until it can be read, the skill has no tools",
        )
    )


def _in_own_file(problem: Problem, document: Document) -> Problem:
    """A problem of the object that was put together, as one of the file that the part came from."""
    if not problem.pointer:
        return problem
    return replace(problem, path=_file_of(problem.pointer[0], document), pointer=problem.pointer[1:])


# -- tools, allowlist and execution -------------------------------------------------------------------------


class _Declared(Struct, frozen=True, kw_only=True):
    """A named entry of ``tools``."""

    node: Node
    name: str
    description: str
    parameters: JsonObject | None
    """None where they cannot be used, which is reported."""
    required: frozenset[str]
    sound: bool
    mapped: set[str] = field(default_factory=set)
    """The parameters that its executions use."""


class _Descriptor:
    """One reading of one descriptor."""

    def __init__(self, parsed: Parsed, document: Document, reader: Reader, rules: Rules) -> None:
        self.document = document
        self.reader = reader
        self.rules = rules
        self.in_three_files = _in_three_files(document)
        self.root = reader.node(parsed.value)
        self.duplicates = parsed.duplicates
        self.repeated = frozenset((found.pointer, found.key) for found in parsed.duplicates)
        self.of_item: dict[Pointer, list[Duplicate]] = {}
        """The repeated members in each tool and each execution, so that many of both cost no product."""
        for found in parsed.duplicates:
            self.of_item.setdefault(found.pointer[:2], []).append(found)
        self.allowlist: dict[str, frozenset[str]] | None = None
        """None where there is no list to compare with; then no tool is served."""
        self.declared: dict[str, _Declared] = {}
        self.runs: dict[str, RunProcess | None] = {}
        """How each tool runs; None where its execution has a problem."""

    def read(self) -> list[tuple[_Declared, RunProcess]]:
        """The tools that have no problem, in the order of the file."""
        if self.root.kind != "object":
            self.root.error("skill.root.shape", f"expected object, got {self.root.kind}")
            return []
        errors = self.reader.errors
        self.keys(self.root, _ROOT_KEYS)
        self.report_repeated(found for found in self.duplicates if not found.pointer)
        tools, allowlist, execution = (
            self.part("tools", "array"),
            self.part("allowlist", "object"),
            self.part("execution", "array"),
        )
        sound = self.reader.errors == errors
        self.report_repeated(
            found
            for found in self.duplicates
            if found.pointer and (len(found.pointer) == 1 or found.pointer[0] not in ("tools", "execution"))
        )
        if allowlist is not None:
            self.allowlist = {
                binary: frozenset(subcommands) for binary, subcommands in self.allowed(allowlist)
            }
        if tools is not None:
            executed = self.executed(execution) if execution is not None else None
            for item in tools.items():
                self.tool(item, executed)
        if execution is not None:
            for entry in execution.items():
                self.execution(entry, tools_known=tools is not None)
        self.report_unmapped()
        if not sound:
            return []
        pairs = ((declared, self.runs.get(name)) for name, declared in self.declared.items())
        return [(declared, run) for declared, run in pairs if declared.sound and run is not None]

    # -- what every part needs ------------------------------------------------------------------------------

    def part(self, key: str, kind: str) -> Node | None:
        """A root member, empty where it is absent; None where it cannot be used, which is reported."""
        if ((), key) in self.repeated:
            return None
        node = self.root.get(key)
        if node is None:
            return self.reader.node([] if kind == "array" else {}, (key,))
        if node.kind != kind:
            node.error("skill.root.shape", f"expected {kind}, got {node.kind}")
            return None
        return node

    def keys(self, node: Node, known: tuple[str, ...]) -> None:
        """Report every member that the format does not know here."""
        unknown = [(key, member) for key, member in node.members() if key not in known]
        spellings = Counter(fold(key) for key in node.value) if unknown else Counter[str]()
        for key, member in unknown:
            if key in _LATER_DISPLAY and node is not self.root:
                member.say(
                    "skill.root.later-keys",
                    node.with_place(f'"{key}" belongs to a later version and has no effect'),
                    severity=Severity.WARNING,
                )
                if key == _REPLACES_OUTPUT and self.in_three_files:
                    member.say(
                        "skill.root.later-keys",
                        node.with_place(f'"{key}" replaces what the tool returns'),
                        hint="it may take secrets out of the result, so the tool is not served without it",
                    )
                continue
            if key in _LATER and node is not self.root:
                member.say(
                    "skill.root.later-keys",
                    node.with_place(f'"{key}" belongs to a later version'),
                    hint="it may restrict what the tool can do, so the tool is not served without it",
                )
                continue
            if known is _TOOL_KEYS and _schema_lint.is_schema_key(key, node.value, "parameters"):
                member.say(
                    "skill.root.unknown-key",
                    node.with_place(f'unknown key "{key}" (did you mean "parameters"?)'),
                    hint=_schema_lint.schema_key_hint(key, "parameters"),
                    fix=_schema_lint.schema_key_fix(key, node, "parameters"),
                )
                continue
            meant = None if self.reader.is_full else suggestion(key, known)
            message = node.with_place(f'unknown key "{key}"')
            if meant is not None:
                message += f' (did you mean "{meant}"?)'
            if meant is not None and fold(meant) == fold(key):
                fix = Fix(part=FixPart.KEY, new=f'"{meant}"') if spellings[fold(key)] == 1 else None
                member.say("skill.root.camel-case", message, hint=f'write "{meant}"', fix=fix)
            else:
                hint = "remove it; what is not known cannot be obeyed"
                member.say("skill.root.unknown-key", message, hint=hint)

    def report_repeated(self, duplicates: Iterable[Duplicate]) -> None:
        for found in duplicates:
            self.reader.add(
                "skill.root.duplicate-members",
                f'duplicate key "{found.key}" in {place_text(found.pointer) or "the root"}',
                pointer=found.pointer,
                line=found.line,
                hint="keep one of them; which one counts must not depend on the reader",
            )

    def text(self, node: Node, key: str, code: str, *, may_be_empty: bool = False) -> str | None:
        """A required member; None where it cannot be used, which is reported."""
        member = node.get(key)
        if member is None:
            if (node.pointer, key) not in self.repeated:
                node.error(code, f"{key} is required")
            return None
        if member.kind != "string":
            member.error(code, f"expected string, got {member.kind}")
            return None
        if not may_be_empty and not member.value.strip():
            node.error(code, f"{key} is required (got {shown(member.value)})")
            return None
        return str(member.value)

    def optional(self, node: Node, key: str, kind: str) -> JsonValue:
        """An optional member; None where it is absent, null or of another kind, which is reported."""
        member = node.get(key)
        if member is None or member.value is None:
            return None
        if member.kind != kind:
            member.error("skill.value.wrong-type", f"expected {kind}, got {member.kind}")
            return None
        return member.value

    def name_since(self, start: int, name: str | None) -> None:
        """Say whom the problems concern."""
        problems = self.reader.problems
        short = name if name is None else name[:NAME_CHARS_MAX]
        problems[start:] = [replace(problem, name=short) for problem in problems[start:]]

    # -- tools ----------------------------------------------------------------------------------------------

    def executed(self, execution: Node) -> set[str]:
        names = (entry.get("tool") for entry in execution.items())
        return {name.value for name in names if name is not None and name.kind == "string"}

    def tool(self, node: Node, executed: set[str] | None) -> None:
        if node.kind != "object":
            node.error("skill.root.shape", f"expected object, got {node.kind}")
            return
        start, errors = len(self.reader.problems), self.reader.errors
        self.keys(node, _TOOL_KEYS)
        repeated = self.of_item.get(node.pointer, [])
        inside = [found for found in repeated if found.pointer[2:3] == ("parameters",)]
        self.report_repeated(found for found in repeated if found.pointer[2:3] != ("parameters",))
        name = self.text(node, "name", "skill.tools.name-required")
        taken = name in self.declared
        if taken:
            node.error(
                "skill.tools.name-unique",
                f'name "{name}" is already taken',
                hint="the first one is kept; rename this one",
            )
        if name == "read_skill" and self.rules.read_on_demand:
            node.error(
                "skill.serve.read-skill-reserved",
                'reserved name "read_skill"',
                hint="skills are read on demand here, and this is the tool that reads them; rename yours",
            )
        description = self.optional(node, "description", "string") or ""
        described = description.strip() or (node.pointer, "description") in self.repeated
        if not described and node.here("description").kind in ("null", "string"):
            node.say(
                "skill.tools.description-optional",
                "no description",
                severity=Severity.WARNING,
                hint="say in a sentence what the tool does; models choose by it",
            )
        parameters = self.parameters(node, inside)
        if name is not None and not taken and executed is not None and name not in executed:
            node.say(
                "skill.tools.needs-execution",
                f'tool "{name}" has a schema but no execution spec',
                hint='add an entry with this name as "tool" to "execution"',
            )
        self.name_since(start, name)
        if name is not None and not taken:
            self.declared[name] = _Declared(
                node=node,
                name=name,
                description=description,
                parameters=parameters,
                required=_required(parameters),
                sound=self.reader.errors == errors,
            )

    def parameters(self, node: Node, duplicates: Sequence[Duplicate]) -> JsonObject | None:
        member = node.get("parameters")
        if member is None or member.value is None:
            return {"type": "object", "properties": {}}
        if member.kind != "object":
            member.error("skill.tools.parameters-object", f"expected object, got {member.kind}")
            return None
        # Two readers would understand two schemas: what the model sees and what is checked might differ.
        self.report_repeated(duplicates)
        if duplicates:
            return None
        _schema_lint.report(member)
        value: JsonObject = member.value
        return value

    def allowed(self, node: Node) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The pairs that may run. An entry with a problem allows nothing."""
        for binary, member in node.members():
            if binary.startswith("/"):
                member.say(
                    "skill.allowlist.binary-form",
                    f"allowlist: absolute path as binary (got {shown(binary)})",
                    severity=Severity.WARNING,
                    hint="a bare name, looked up on the PATH, works on other machines too",
                )
            elif "/" in binary or "\\" in binary:
                # Attack: whoever may write to the working directory chooses what "./x" is.
                member.say(
                    "skill.allowlist.binary-form",
                    f"allowlist: relative path as binary (got {shown(binary)})",
                    hint="write a bare name, which is looked up on the PATH",
                )
                continue
            elif binary in ("", ".", "..") or binary.startswith("-"):
                member.say(
                    "skill.allowlist.binary-form",
                    f"allowlist: not the name of a program (got {shown(binary)})",
                    hint="write a bare name, which is looked up on the PATH",
                )
                continue
            if member.kind != "array":
                member.error("skill.allowlist.shape", f"expected array of strings, got {member.kind}")
                continue
            wrong = [item for item in member.items() if item.kind != "string"]
            for item in wrong:
                item.error("skill.allowlist.shape", f"expected string, got {item.kind}")
            if not wrong:
                yield binary, tuple(member.value)

    def pair(self, node: Node, binary: str | None, subcommand: str | None, code: str) -> None:
        """Report a pair that the allowlist does not have: exact, case-sensitive, whole strings."""
        if self.allowlist is None or binary is None:
            return
        hint = 'list it in "allowlist" if it may run'
        if binary not in self.allowlist:
            node.here("binary").say(code, f"binary not allowlisted: {binary}", hint=hint)
        elif subcommand is not None and subcommand not in self.allowlist[binary]:
            node.here("subcommand").say(code, f"subcommand not allowlisted: {binary} {subcommand}", hint=hint)

    def allowed_to(
        self, binary: str, subcommand: str | None, args: Sequence[ArgMapping]
    ) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The part of the allowlist that one tool uses: with the whole of it, many tools times a long list
        would fill the memory."""
        resolvers = (arg.resolver for arg in args if not isinstance(arg, Switch))
        used = [(binary, subcommand), *((found.binary, found.subcommand) for found in resolvers if found)]
        kept: dict[str, dict[str, None]] = {}
        for name, part in used:
            if name is not None and part in (self.allowlist or {}).get(name, ()):
                kept.setdefault(name, {})[" ".join(self.words(part or ""))] = None
        return tuple((name, tuple(parts)) for name, parts in kept.items())

    def words(self, subcommand: str) -> tuple[str, ...]:
        """Return the arguments that a subcommand is: in three files, blanks separate them."""
        if self.in_three_files:
            return tuple(subcommand.split())
        return (subcommand,) if subcommand else ()

    # -- execution ------------------------------------------------------------------------------------------

    def execution(self, node: Node, *, tools_known: bool) -> None:
        if node.kind != "object":
            node.error("skill.root.shape", f"expected object, got {node.kind}")
            return
        start, errors = len(self.reader.problems), self.reader.errors
        self.keys(node, _EXECUTION_KEYS)
        self.report_repeated(self.of_item.get(node.pointer, []))
        tool = self.text(node, "tool", "skill.execution.required")
        binary = self.text(node, "binary", "skill.execution.required")
        subcommand = self.text(node, "subcommand", "skill.execution.required", may_be_empty=True)
        if tool is not None and tool not in self.declared and tools_known:
            node.error("skill.execution.tool-known", f'tool "{tool}" is not declared')
        if tool in self.runs:
            node.error(
                "skill.execution.duplicate",
                f"duplicate execution for {tool}",
                hint="keep one; which command runs must not depend on the order",
            )
        self.pair(node, binary, subcommand, "skill.allowlist.pair-load")
        if subcommand == "":
            node.here("subcommand").warn(
                "skill.execution.subcommand-empty", "an empty subcommand is left out of argv"
            )
        elif subcommand is not None and any(map(str.isspace, subcommand)):
            node.here("subcommand").say(
                "skill.execution.subcommand-one-arg",
                "subcommand contains whitespace",
                severity=Severity.INFO if self.in_three_files else Severity.WARNING,
                hint="each word is one argument; in one file it would be passed whole"
                if self.in_three_files
                else "it is passed as one argument; later versions split it",
            )
        args = self.args(node, self.declared.get(tool) if tool is not None else None)
        self.name_since(start, tool)
        if tool is not None:
            run = None
            if self.reader.errors == errors and binary is not None and self.allowlist is not None:
                run = RunProcess(
                    program=binary,
                    fixed=self.words(subcommand or ""),
                    encoding=AsArgv(args=args, refuses_paths=self.in_three_files),
                    allowlist=self.allowed_to(binary, subcommand, args),
                    skill_dir=dirname(self.document.path),
                )
            self.runs[tool] = run

    def args(self, node: Node, declared: _Declared | None) -> tuple[ArgMapping, ...]:
        args: list[ArgMapping] = []
        emitted: dict[str, str] = {}
        if self.optional(node, "args", "array") is not None:
            for item in node.here("args").items():
                if item.kind != "object":
                    item.error("skill.value.wrong-type", f"expected object, got {item.kind}")
                    continue
                param = item.value.get("param")
                if isinstance(param, str) and declared is not None:
                    declared.mapped.add(param)
                mapping = self.mapping(item)
                if mapping is None:
                    continue
                args.append(mapping)
                self.compare(item, mapping, declared)
                for text in _emits(mapping):
                    if emitted.setdefault(text, item.place) != item.place:
                        item.warn("skill.args.duplicate-param", f'"{text}" is emitted by {emitted[text]} too')
        return tuple(args)

    def report_unmapped(self) -> None:
        for declared in self.declared.values():
            if declared.name not in self.runs:
                continue
            for param in _properties(declared.parameters):
                if param not in declared.mapped:
                    place = (*declared.node.pointer, "parameters", "properties", param)
                    self.reader.node(None, place).say(
                        "skill.args.unmapped-param",
                        f"schema parameter '{param}' has no execution handler",
                        severity=Severity.WARNING,
                        name=declared.name,
                        hint='map it in "args", or take it out of the schema; models fill it in vain',
                    )

    def compare(self, node: Node, mapping: ArgMapping, declared: _Declared | None) -> None:
        """Warn where a mapping and the schema of its tool do not fit together."""
        if declared is None or declared.parameters is None:
            return
        param = mapping.param
        if param not in _properties(declared.parameters):
            node.warn("skill.args.unknown-param", f"param {shown(param)} is not a property of the schema")
        if isinstance(mapping, Positional) and param not in declared.required:
            node.warn(
                "skill.args.positional-optional",
                f"positional {shown(param)} is not required by the schema, and a call without it fails",
                hint='list it in "required"',
            )

    def mapping(self, node: Node) -> ArgMapping | None:
        """One arg mapping; None where it cannot be used, which is reported."""
        self.keys(node, _ARG_KEYS)
        kind = self.kind(node)
        flag = self.optional(node, "flag", "string")
        if_true = self.optional(node, "flagIfTrue", "string")
        if_false = self.optional(node, "flagIfFalse", "string")
        newlines = bool(self.optional(node, "normalizeNewlines", "boolean"))
        dash = bool(self.optional(node, "allowLeadingDash", "boolean"))
        resolver = self.resolver(node)
        if kind is None:
            return None
        param = self.text(node, "param", "skill.args.param-required")
        for key, member in node.members():
            if key in _ARG_KEYS[2:] and key not in _EFFECTIVE[kind]:
                member.say(
                    "skill.flagbool.misplaced-keys",
                    node.with_place(f'"{key}" has no effect on kind {kind}'),
                    severity=Severity.WARNING,
                )
        if param is None:
            return None
        if newlines and self.in_three_files:
            newlines = False
            node.here("normalizeNewlines").warn("skill.newline.warning", "has no effect in three files")
        elif newlines and kind != "flagifboolean":
            node.here("normalizeNewlines").say(
                "skill.newline.warning",
                "C:\\new becomes C:<newline>ew",
                severity=Severity.WARNING,
                hint="it cannot tell genuine backslashes from escapes; models write real newlines without it",
            )
        if kind == "positional":
            if "allowLeadingDash" in node:
                node.here("allowLeadingDash").warn(
                    "skill.positional.allow-dash-key", "loaders that do not know this key reject the file"
                )
            return Positional(
                param=param, allow_leading_dash=dash, normalize_newlines=newlines, resolver=resolver
            )
        if kind == "flag":
            return self.flag(node, param, flag, newlines, resolver)
        if if_true is None and if_false is None:
            node.warn(
                "skill.flagbool.unset",
                f"neither flagIfTrue nor flagIfFalse is set, so {shown(param)} has no effect",
            )
        return Switch(param=param, if_true=if_true, if_false=if_false)

    def flag(
        self, node: Node, param: str, flag: str | None, newlines: bool, resolver: Resolver | None
    ) -> Flag | None:
        """Map to an option and its value; in three files, the option's name decides its dashes."""
        name, dashes = flag if flag is not None else param, "--"
        if self.in_three_files:
            name = name.lstrip("-")
            dashes = "-" if len(name.encode("utf-8", "replace")) == 1 else "--"
        if not name:
            # Attack: after a bare "--" a value that begins with "-" is no longer the value of an option.
            got = shown(flag if flag is not None else param)
            node.here("flag").error("skill.value.wrong-type", f"expected the name of an option, got {got}")
            return None
        if name.startswith("-"):
            node.here("flag" if flag else "param").say(
                "skill.flag.leading-dash-name",
                "write flag without dashes",
                severity=Severity.WARNING,
                hint=f'two dashes are put in front of it, which gives "--{name}"',
            )
        return Flag(param=param, flag=name, dashes=dashes, normalize_newlines=newlines, resolver=resolver)

    def kind(self, node: Node) -> str | None:
        member = node.get("kind")
        if member is None:
            return None if (node.pointer, "kind") in self.repeated else "positional"
        kind = member.value
        if isinstance(kind, str) and kind in _EFFECTIVE:
            return kind
        if isinstance(kind, str) and kind in _LATER_KINDS:
            member.say("skill.root.later-keys", node.with_place(f'kind "{kind}" belongs to a later version'))
            return None
        lower = kind.lower() if isinstance(kind, str) else ""
        got = shown(kind) if isinstance(kind, str) else member.kind
        member.error(
            "skill.args.kind-values",
            f"expected positional, flag or flagifboolean, got {got}",
            fix=Fix(part=FixPart.VALUE, new=f'"{lower}"') if lower in _EFFECTIVE else None,
        )
        return None

    def resolver(self, mapping: Node) -> Resolver | None:
        if self.optional(mapping, "resolveCommand", "object") is None:
            return None
        errors = self.reader.errors
        node = mapping.here("resolveCommand")
        if self.in_three_files:
            # Attack: a value that the author's check refuses. There a resolver that fails rejects the call.
            node.error(
                "skill.root.later-keys",
                "in three files a resolver that fails rejects the call, which is not supported yet",
                hint="the tool is not served without it; in one file, a value stays when its resolver fails",
            )
        self.keys(node, _RESOLVE_KEYS)
        script = self.optional(node, "script", "string")
        binary = self.optional(node, "binary", "string")
        subcommand = self.optional(node, "subcommand", "string")
        args = self.optional(node, "args", "array") or []
        for item in node.here("args").items():
            if item.kind != "string":
                item.error("skill.value.wrong-type", f"expected string, got {item.kind}")
        if self.reader.errors > errors or any((node.pointer, key) in self.repeated for key in _RESOLVE_KEYS):
            return None
        if not script and not (binary and subcommand is not None):
            node.say("skill.resolve.either", "resolveCommand needs script, or binary and subcommand")
            return None
        if script and (".." in script or "/" in script or "\\" in script):
            # Attack: a script outside the skill's scripts folder, which nobody reviewed with the skill.
            node.here("script").error(
                "skill.resolve.script-name",
                f'a script name has no "..", "/" or "\\" (got {shown(script)})',
                hint="name a file that lies directly in the scripts folder of the skill",
            )
        if binary and subcommand is not None:
            self.pair(node, binary, subcommand, "skill.resolve.binary-allowlisted")
        return Resolver(args=tuple(args), script=script or None, binary=binary or None, subcommand=subcommand)


def _properties(parameters: JsonObject | None) -> JsonObject:
    properties = parameters.get("properties") if parameters is not None else None
    return properties if isinstance(properties, dict) else {}


def _required(parameters: JsonObject | None) -> frozenset[str]:
    required = parameters.get("required") if parameters is not None else None
    return frozenset(
        name for name in (required if isinstance(required, list) else []) if isinstance(name, str)
    )


def _emits(mapping: ArgMapping) -> set[str]:
    """The options that a mapping can put into argv."""
    if isinstance(mapping, Flag):
        return {f"{mapping.dashes}{mapping.flag}"}
    if isinstance(mapping, Switch):
        return {text for text in (mapping.if_true, mapping.if_false) if text is not None}
    return set()


def _tool(declared: _Declared, run: RunProcess, skill: str, document: Document) -> Tool:
    assert isinstance(run.encoding, AsArgv)
    resolvers = (arg.resolver for arg in run.encoding.args if not isinstance(arg, Switch))
    programs = [run.program, *(found.binary for found in resolvers if found and found.binary)]
    switches = [arg.param for arg in run.encoding.args if isinstance(arg, Switch)]
    pointer = declared.node.pointer
    return Tool(
        key=key_of(NAME, skill, declared.name),
        name=declared.name,
        scope=skill,
        description=declared.description,
        input_schema=Schema.of(declared.parameters or {}),
        schema_form=SchemaForm.VERBATIM,
        invocation=run,
        intake=Intake(
            drop_null_optional=True,
            lenient_booleans=tuple(dict.fromkeys(switches)),
            declared_only=_in_three_files(document)
            and isinstance(declared.node.value.get("parameters"), dict),
        ),
        reply=Reply.PLAIN_TEXT,
        needs=Needs(programs=tuple(dict.fromkeys(programs))),
        origin=Origin(
            format=NAME, path=document.path, pointer=pointer[1:] if _in_three_files(document) else pointer
        ),
        habits=_HABITS,
    )
