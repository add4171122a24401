"""The executable format: programs that answer ``--schema`` with a JSON description of themselves.

The place decides (a tool directory, or an option that names the file), never the content, so a document is
never recognised here by its structure. This module runs nothing: the sandbox asked the program before, and
its answer, or why there is none, lies in the document. Each program becomes a ``RunProcess`` that receives
its arguments as JSON on stdin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import splitext
from typing import Final

from toolcrib import jsontext
from toolcrib.formats import _schema_lint
from toolcrib.formats._node import Node, Reader, key_of, kind_of, shown
from toolcrib.jsontext import JsonValue
from toolcrib.model import (
    TOOL_SUFFIX,
    Compiled,
    Document,
    Habits,
    Intake,
    JsonOnStdin,
    Linked,
    Namesakes,
    Needs,
    Origin,
    ProbeOutcome,
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

NAME: Final = "executable"
NOT_EXECUTABLE: Final = "not executable"
"""What ``Document.unreadable`` says of a file that has the suffix of a tool but may not be executed."""
AGAIN_S: Final = 86_400.0
"""How long a program that gave no schema is not asked again, while its file stays the same."""
AGAIN_AFTER_TIMEOUT_S: Final = 600.0
_HABITS: Final = Habits(namesakes=Namesakes.SETTLED)

_FIELDS: Final = {"name": "string", "description": "string", "parameters": "object"}
_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object")
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_SNAKE: Final = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*")
_KEBAB: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PROVIDER_NAME_CHARS_MAX: Final = 64
_STDERR_CHARS_MAX: Final = 200
_STDOUT_BYTES_MAX: Final = 65_535
"""Of a call: more stops the program."""

# The document supports none of these. Leaving one of the first out would check less than the author wrote,
# and a reference could lead anywhere; real programs print the second, and both checkers and providers know
# them.
_REFUSED: Final = frozenset({"$ref", "$defs", "allOf", "anyOf", "oneOf", "if", "then", "else"})
_DISCOURAGED: Final = frozenset({"format", "default", "pattern"})

# Where further schemas lie inside a schema, besides properties and items. A refused keyword must not hide
# in one of them.
_SCHEMAS: Final = frozenset(
    {
        "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
        "propertyNames", "contains", "contentSchema", "not",
    }
)  # fmt: skip
_MAPS_OF_SCHEMAS: Final = frozenset({"patternProperties", "dependentSchemas", "dependencies", "definitions"})
_LISTS_OF_SCHEMAS: Final = frozenset({"prefixItems"})


def recognises(document: Document) -> bool:
    """Never: a file that prints a schema is run only because of the place it was found in."""
    return False


def compile_document(document: Document, rules: Rules) -> Compiled:
    reader = Reader(document)
    root = _answer(document, reader)
    if not _is_meant(document) and (root is None or root.value.keys().isdisjoint(_FIELDS)):
        return Compiled(problems=(_no_tool(document, reader),), again_s=_again_s(document))
    tool = _tool(document, root) if root is not None else None
    return Compiled(
        tools=(tool,) if tool is not None else (),
        problems=tuple(reader.problems),
        again_s=_again_s(document) if root is None or _is_locked(document) else None,
    )


def answer_of(shown: jsontext.JsonObject) -> bytes:
    """The answer that a program gave, by what models were shown of it."""
    return jsontext.canonical(
        {
            "name": shown["name"],
            "description": shown["description"],
            "parameters": shown["input_schema"],
        }
    )


def _is_meant(document: Document) -> bool:
    """Tell whether the file is meant to be a tool: by its name, or because a person named it."""
    file = _file(document.path)
    return document.explicit or (file.endswith(TOOL_SUFFIX) and file != TOOL_SUFFIX)


def _no_tool(document: Document, reader: Reader) -> Problem:
    """Report a program that answers no schema, as most programs do."""
    why = reader.problems[0].message if reader.problems else "it printed another object"
    return Problem(
        code="executable.discover.suffix",
        severity=Severity.INFO,
        message=f"answers no schema: {why}",
        path=document.path,
        hint="a program that is no tool may stay; name a tool NAME-tool to have this count as an error",
    )


def _is_locked(document: Document) -> bool:
    return document.probe is not None and document.probe.is_locked


def _again_s(document: Document) -> float | None:
    """How long a query that failed counts while the file stays the same.

    What the machine was to blame for is asked again at the next load, and so is what was only remembered,
    since it may have been approved by then; what may have been a busy machine soon.
    """
    probe = document.probe
    if _is_locked(document):
        return 0.0
    if document.unreadable is not None or probe is None:
        return 0.0 if document.unreadable != NOT_EXECUTABLE else None
    if probe.start_error is not None:
        return 0.0 if _is_meant(document) else AGAIN_AFTER_TIMEOUT_S
    if probe.timed_out_s is not None:
        return AGAIN_AFTER_TIMEOUT_S
    return AGAIN_S if probe.too_long_bytes is not None or probe.exit_status != 0 else None


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    """Later directories replace, one directory repeats at its peril, and the result is sorted by name."""
    kept: dict[str, tuple[Unit, Tool]] = {}
    problems: list[Problem] = []
    ordered = sorted(units, key=lambda unit: (unit.space, _file(unit.path), unit.path))
    for unit in ordered:
        for tool in unit.compiled.tools:
            earlier = kept.get(tool.name)
            if earlier is None:
                kept[tool.name] = (unit, tool)
            elif earlier[0].path != unit.path:
                problem, replaces = _meeting(earlier[0], unit, tool)
                problems.append(problem)
                if replaces:
                    kept[tool.name] = (unit, tool)
    taken = set(kept)
    tools: list[Tool] = []
    for _, tool in sorted(kept.values(), key=lambda pair: (pair[0].space, pair[0].path)):
        # An alias that is another tool's name, or an earlier tool's alias, would let a project's file
        # answer for that tool, or make its name ambiguous.
        aliases = tuple(alias for alias in tool.aliases if alias not in taken)
        taken.update(aliases)
        tools.append(tool if aliases == tool.aliases else tool.replace(aliases=aliases))
    return Linked(tools=tuple(sorted(tools, key=lambda tool: tool.name)), problems=tuple(problems))


def _meeting(earlier: Unit, later: Unit, tool: Tool) -> tuple[Problem, bool]:
    """What is said when two programs give the same name, and whether the later one replaces the earlier."""
    if earlier.space == later.space:
        return Problem(
            code="executable.discover.same-dir-duplicate",
            message=f'name "{tool.name}" is already taken by "{earlier.path}"',
            path=later.path,
            pointer=("name",),
            name=tool.name,
            hint="the first by file name is kept; remove this program or give its schema another name",
        ), False
    if _file(earlier.path) != _file(later.path):
        # A project's program could otherwise take the place of a system tool by what it prints alone.
        return Problem(
            code="executable.name.identity",
            message=f'name "{tool.name}" belongs to "{earlier.path}", which has another file name',
            path=later.path,
            pointer=("name",),
            name=tool.name,
            hint="a tool is replaced only when file name and schema name both match; rename one of the two",
        ), False
    return Problem(
        code="executable.discover.directories",
        severity=Severity.WARNING,
        message=f'"{tool.name}" of "{later.path}" replaces the one of "{earlier.path}"',
        path=later.path,
        name=tool.name,
        hint="remove one of the two if this is not meant",
    ), True


# -- did the program answer? --------------------------------------------------------------------------------


def _answer(document: Document, reader: Reader) -> Node | None:
    """The object that the program printed; None, and the reason reported, where there is none."""
    if document.unreadable == NOT_EXECUTABLE:
        reader.add(
            "executable.discover.executable-bit",
            NOT_EXECUTABLE,
            severity=Severity.ERROR if document.explicit else Severity.WARNING,
            hint="make it executable (chmod +x), or give it a name that does not end in -tool",
        )
        return None
    if document.unreadable is not None:
        reader.add("executable.discover.flag", f"cannot be asked for its schema: {document.unreadable}")
        return None
    failure = _failure(document.probe) if document.probe is not None else None
    if failure is not None and document.probe is not None:
        code, reason, hint = failure
        said = _end_of(document.probe.stderr_tail)
        reader.add(code, f"{reason}: {said}" if said else reason, hint=hint)
        return None
    if document.content is None:
        reader.add("executable.discover.flag", "was not asked for its schema")
        return None
    parsed = document.parsed if document.parsed is not None else jsontext.read(document.content)
    if parsed.defect is not None:
        reader.add(
            "executable.schema.json",
            f"invalid JSON: {parsed.defect}",
            hint="print one JSON object on stdout and nothing else; notes go to stderr",
        )
        return None
    if parsed.duplicates:  # which of the two counts would depend on the reader, so nothing else is checked
        for found in parsed.duplicates:
            reader.add(
                "executable.schema.json",
                f'invalid JSON: duplicate key "{found.key}"',
                pointer=found.pointer,
                hint="keep one of them",
            )
        return None
    root = reader.node(parsed.value)
    if root.kind != "object":
        root.say("executable.schema.json", f"not an object (got {root.kind})")
        return None
    return root


def _failure(probe: ProbeOutcome) -> tuple[str, str, str] | None:
    """Code, reason and hint of a query that failed."""
    if probe.start_error is not None:
        return (
            "executable.discover.flag",
            f"cannot start: {probe.start_error}",
            probe.start_hint or "check the interpreter in its first line (#!), or build it for this machine",
        )
    if probe.timed_out_s is not None:
        return (
            "executable.discover.timeout",
            f"timed out after {probe.timed_out_s:g}s",
            "answer --schema before anything slow is loaded or waited for",
        )
    if probe.too_long_bytes is not None:
        return (
            "executable.discover.size",
            f"schema output longer than {probe.too_long_bytes} bytes",
            "shorten the descriptions",
        )
    if probe.exit_status != 0:
        return (
            "executable.discover.exit-status",
            f"exit status {'unknown' if probe.exit_status is None else probe.exit_status}",
            "print the schema and end with exit status 0 when the only argument is --schema",
        )
    return None


def _end_of(stderr: str) -> str:
    """The end of stderr on one line; without control characters, which could rewrite a terminal."""
    line = " ".join("".join(char if char.isprintable() else " " for char in stderr).split())
    return line if len(line) <= _STDERR_CHARS_MAX else "…" + line[1 - _STDERR_CHARS_MAX :]


# -- the schema ---------------------------------------------------------------------------------------------


def _tool(document: Document, root: Node) -> Tool | None:
    for key, member in root.members():
        if _schema_lint.is_schema_key(key, root.value, "parameters"):
            member.say(
                "executable.schema.unknown-keys",
                f'unknown key "{key}" (did you mean "parameters"?)',
                severity=Severity.WARNING,
                hint=_schema_lint.schema_key_hint(key, "parameters"),
            )
        elif key not in _FIELDS:
            member.say(
                "executable.schema.unknown-keys",
                f'unknown key "{key}"{member.did_you_mean(key, _FIELDS)}',
                severity=Severity.WARNING,
                hint="it has no effect; remove it or correct its spelling",
            )
    name, description, parameters = (_field(root, key, kind) for key, kind in _FIELDS.items())
    words = _words(document.path)
    derived = words.replace("-", "_")
    if not _KEBAB.fullmatch(words):
        root.reader.add(
            "executable.name.binary-kebab",
            f"file name {shown(_file(document.path))} is not kebab-case",
            severity=Severity.WARNING,
            hint="use small letters and digits with single hyphens between words",
        )
    if name is not None:
        _check_name(name, derived)
    if description is not None and not description.value.strip():
        description.warn(
            "executable.schema.empty-description",
            "blank",
            hint="say in a sentence what the tool does; models choose by it",
        )
    if parameters is not None:
        _check_parameters(parameters)
        _schema_lint.report(parameters, required=_schema_lint.Required.NOWHERE, fixable=False)
    if root.reader.has_errors or name is None or description is None or parameters is None:
        return None
    return Tool(
        key=key_of(NAME, document.scope, name.value),
        name=name.value,
        scope=document.scope,
        aliases=(derived,) if derived != name.value else (),
        description=description.value,
        input_schema=Schema.of(parameters.value),
        schema_form=SchemaForm.ADAPTABLE,
        invocation=RunProcess(program=document.path, encoding=JsonOnStdin(verbatim=False)),
        intake=Intake(drop_null_optional=True),
        reply=Reply.ENVELOPE,
        needs=Needs(programs=(document.path,), stdout_bytes_max=_STDOUT_BYTES_MAX),
        origin=Origin(
            format=NAME, path=document.path, digest=document.probe.digest if document.probe else ""
        ),
        habits=_HABITS,
    )


def _file(path: str) -> str:
    return path.rpartition("/")[2]


def _words(path: str) -> str:
    """The file name without ``-tool`` and extension: ``file-edit`` for ``file-edit-tool``."""
    file = _file(path)
    stem = file if file.endswith(TOOL_SUFFIX) else splitext(file)[0]
    return stem.removesuffix(TOOL_SUFFIX) or file


def _field(root: Node, key: str, kind: str) -> Node | None:
    field = root.get(key)
    if field is None:
        root.say("executable.schema.required-fields", f"missing required field: {key}")
        return None
    if field.kind != kind:
        field.error("executable.schema.required-fields", f"expected {kind}, got {field.kind}")
        return None
    return field


def _check_name(name: Node, derived: str) -> None:
    if not _NAME.fullmatch(name.value):
        name.say(
            "executable.schema.name-format",
            f"invalid name: {shown(name.value)}",
            hint="use only ASCII letters, digits and underscores",
        )
        return
    if not _SNAKE.fullmatch(name.value):
        name.warn("executable.schema.name-snake", f"{shown(name.value)} is not snake_case")
    if len(name.value) > _PROVIDER_NAME_CHARS_MAX:
        name.warn(
            "executable.schema.name-length",
            f"longer than {_PROVIDER_NAME_CHARS_MAX} characters (got {len(name.value)})",
            hint="providers are given a shortened unique name",
        )
    if name.value != derived:
        name.warn(
            "executable.name.binary",
            f"{shown(name.value)} does not match the file name, which gives {shown(derived)}",
            hint="the tool goes by the schema's name; rename the file or the tool so that both agree",
        )


def _check_parameters(parameters: Node) -> None:
    kind = parameters.get("type")
    if kind is None or kind.value != "object":
        parameters.here("type").error("executable.params.type-object", f'must be "object" ({_got(kind)})')
    if "properties" not in parameters:
        parameters.here("properties").error(
            "executable.params.properties", "must be an object, which may be empty (got nothing)"
        )
    _check_schema(parameters, declares=True)


def _check_schema(schema: Node, *, declares: bool) -> None:
    """One schema and all schemas below it.

    ``declares`` is True for the schemas that describe what the model may send: the parameters themselves,
    properties and items, at every depth. What stands in other keywords (``not``, ``contains``) only narrows
    that, and is searched for refused keywords alone.
    """
    for key, member in schema.members():
        if key in _REFUSED:
            member.say(
                "executable.params.unsupported-hard",
                f"unsupported keyword {key}",
                hint="write the schema out with type, properties, items and enum",
            )
        elif key in _DISCOURAGED:
            member.say(
                "executable.params.unsupported-soft",
                f"unsupported keyword {key}",
                severity=Severity.WARNING,
                hint="it is checked and declared where possible; some providers do not see it",
            )
        elif key == "properties":
            _check_properties(member, declares=declares)
        elif key == "items":
            _check_items(member, declares=declares)
        elif key == "required" and declares:
            _check_required(member, schema.here("properties").value)
        elif key == "enum" and declares:
            _check_enum(member, schema.here("type").value)
        elif key in _MAPS_OF_SCHEMAS:
            for _, inner in member.members():
                _check_schema(inner, declares=False)
        elif key in _LISTS_OF_SCHEMAS:
            for inner in member.items():
                _check_schema(inner, declares=False)
        elif key in _SCHEMAS:
            if key == "additionalProperties":
                member.warn(
                    "executable.params.additional-properties",
                    "the runtime adds it itself where a provider needs it",
                    hint="leave it out",
                )
            _check_schema(member, declares=False)


def _check_properties(properties: Node, *, declares: bool) -> None:
    if properties.kind != "object":
        properties.error("executable.params.properties", f"must be an object (got {properties.kind})")
        return
    for name, schema in properties.members():
        if not declares:
            _check_schema(schema, declares=False)
            continue
        if not _SNAKE.fullmatch(name):
            schema.warn("executable.name.parameters-snake", f"{shown(name)} is not snake_case")
        if _check_typed(schema):
            description = schema.get("description")
            if description is None or not isinstance(description.value, str) or not description.value.strip():
                schema.warn(
                    "executable.params.property-description",
                    "no description",
                    hint="say what the value means; models read it",
                )


def _check_items(items: Node, *, declares: bool) -> None:
    if not declares:
        _check_schema(items, declares=False)
    elif items.kind != "object":
        items.error("executable.params.array-items", f"expected an object schema, got {items.kind}")
    else:
        _check_typed(items)


def _check_typed(schema: Node) -> bool:
    """A property or an item: an object schema with one of the six types. False where it is no object."""
    if schema.kind != "object":
        schema.error("executable.params.property-type", f"expected an object schema, got {schema.kind}")
        return False
    kind = schema.get("type")
    if kind is None or kind.value not in _TYPES:
        schema.here("type").error(
            "executable.params.property-type", f"must be one of {', '.join(_TYPES)} ({_got(kind)})"
        )
    elif kind.value == "array" and "items" not in schema:
        schema.warn("executable.params.array-items", "no items", hint="say what the array holds")
    elif kind.value == "object" and "properties" not in schema:
        schema.warn(
            "executable.params.nested-missing-properties", "no properties", hint="say what the object holds"
        )
    _check_schema(schema, declares=True)
    return True


def _check_required(required: Node, properties: JsonValue) -> None:
    code = "executable.params.required-consistent"
    if required.kind != "array":
        required.error(code, f"expected array of strings, got {required.kind}")
        return
    seen: set[str] = set()
    for item in required.items():
        if item.kind != "string":
            item.error(code, f"expected string, got {item.kind}")
        elif item.value in seen:
            item.say(code, f"required repeats property: {item.value}")
        else:
            seen.add(item.value)
            if not isinstance(properties, dict) or item.value not in properties:
                item.say(code, f"required names undefined property: {item.value}")


def _check_enum(enum: Node, kind: JsonValue) -> None:
    if enum.kind != "array" or not enum.value:
        got = "an empty array" if enum.kind == "array" else enum.kind
        enum.error("executable.params.enum", f"must be a non-empty array (got {got})")
    elif kind in _TYPES:
        for item in enum.items():
            if not _fits(item.value, kind):
                item.error("executable.params.enum", f"does not fit the type {kind} ({_got(item)})")


def _fits(value: JsonValue, kind: str) -> bool:
    found = kind_of(value)
    if found == "number" and kind == "integer":
        return bool(value.is_integer())
    return found == kind or (found == "integer" and kind == "number")


def _got(node: Node | None) -> str:
    if node is None:
        return "got nothing"
    return f"got {shown(node.value) if node.kind in ('string', 'integer', 'number') else node.kind}"
