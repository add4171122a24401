"""The capability format: groups of tools, each group with a rule that says which messages see it.

Marked by a string ``group`` at the root. Each tool becomes a call of a Python handler that
``metadata.executor`` names. This module imports no handler and does not look whether one exists (it states a
condition), and it selects nothing: the rule travels on the record, and ``selection`` reads it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.formats import _schema_lint
from toolcrib.formats._node import NAME_CHARS_MAX, TOOLS_MAX, Node, Reader, key_of, shown
from toolcrib.jsontext import Duplicate, JsonValue, Parsed, compact, place_text
from toolcrib.model import (
    Always,
    CallPython,
    Compiled,
    Condition,
    ConditionKind,
    Document,
    Effect,
    Habits,
    Intake,
    Linked,
    Namesakes,
    Needs,
    Notes,
    OnContext,
    OnKeywords,
    Origin,
    Problem,
    PythonStyle,
    Reply,
    Rules,
    Schema,
    Selection,
    Severity,
    Tool,
    Unit,
)

NAME: Final = "capability"
_HABITS: Final = Habits(namesakes=Namesakes.LATER)

_GROUP_KEYS: Final = ("group", "version", "description", "selection", "tools")
_SELECTION_KEYS: Final = ("strategy", "keywords", "context_check")
_TOOL_KEYS: Final = ("name", "description", "category", "input_schema", "metadata")
_METADATA_KEYS: Final = ("executor", "requires_context", "cost_estimate", "latency_estimate")

_STRATEGIES: Final = ("always", "keyword", "context")
_EFFECTS: Final = {
    "creation": Effect.CREATE,
    "retrieval": Effect.READ,
    "mutation": Effect.CHANGE,
    "analysis": Effect.READ,
}
_COSTS: Final = ("low", "medium", "high")
_LATENCIES: Final = ("fast", "medium", "slow")
_BUILTIN_CHECKS: Final = frozenset({"has_project", "enable_memory", "enable_tools"})
_CONTEXT_KEYS: Final = frozenset(
    {
        "user_id",
        "daemon_id",
        "conversation_id",
        "calendar_manager",
        "memory",
        # not documented, but real files use them
        "self_manager",
        "user_manager",
        "project_id",
    }
)
_HANDLER_ALIASES: Final = {"journal": "journals"}

_SEMVER: Final = re.compile(
    r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}"
    r"(?:-(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_MODULE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

KEYWORDS_MAX: Final = 1_000
_VERSION: Final = "1.0.0"
_GUESSED_AMONG_MAX: Final = 16
_NO_INPUT: Final = Schema.of({"type": "object", "properties": {}})
_NEVER: Final = OnKeywords()


def recognises(document: Document) -> bool:
    parsed = document.parsed
    if parsed is None or not isinstance(parsed.value, dict):
        return False
    return isinstance(parsed.value.get("group"), str) or _repeats(parsed.duplicates, "group")


def compile_document(document: Document, rules: Rules) -> Compiled:
    group = _Group(document, rules)
    group.read()
    return Compiled(
        tools=tuple(group.tools), problems=tuple(group.reader.problems), conditions=tuple(group.conditions)
    )


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    """A group belongs to the last file that declares it, a bare name to the last group that declares it."""
    problems: list[Problem] = []
    holders: dict[str, Unit] = {}
    for unit in units:
        if unit.compiled.tools:
            group = unit.compiled.tools[0].scope
            if group in holders:
                problems.append(_replaced(group, holders[group], unit))
            holders[group] = unit
    kept = [unit for unit in units if unit.compiled.tools and holders[unit.compiled.tools[0].scope] is unit]
    tools = [tool for unit in kept for tool in unit.compiled.tools]
    owners: dict[str, int] = {}
    for number, tool in enumerate(tools):
        earlier = owners.get(tool.name)
        if earlier is not None:
            problems.append(_shared_name(tools[earlier], tool))
            # The model sees each name once, so the earlier tool is spoken of with its group's name.
            tools[earlier] = tools[earlier].replace(spoken=f"{tools[earlier].scope}_{tool.name}")
        owners[tool.name] = number
    return Linked(tools=tuple(tools), problems=tuple(problems))


def handler_files(executor: str, directories: Iterable[str]) -> tuple[str, ...]:
    """Where the code of an executor may lie, in the order in which it is looked for."""
    modules = [_HANDLER_ALIASES[executor], executor] if executor in _HANDLER_ALIASES else [executor]
    return tuple(f"{directory}/{module}.py" for directory in directories for module in modules)


# -- tools that are still declared in code -------------------------------------------------------------------


class Migration(Struct, frozen=True, kw_only=True):
    """How far the move from tools registered in code to tools declared in files has come."""

    tools: tuple[Tool, ...]
    """What there is to use: the tools of files, then those of code that no file declares."""
    shadowed: tuple[str, ...] = ()
    """Names registered in code that a file declares too; the file's is used."""
    differing: tuple[str, ...] = ()
    """Shadowed names whose description or input schema is not the same in the file."""
    not_migrated: tuple[str, ...] = ()
    """Names registered in code that no file declares."""
    problems: tuple[Problem, ...] = ()


def compile_mappings(given: Sequence[Mapping[str, JsonValue]], rules: Rules) -> Compiled:
    """Declarations that are kept in code: whole groups, or single tools, which form the group ``code``."""
    single = [dict(tool) for tool in given if "group" not in tool]
    groups = [dict(group) for group in given if "group" in group]
    if single:
        groups.append({"group": "code", "selection": {"strategy": "always"}, "tools": single})
    tools: list[Tool] = []
    problems: list[Problem] = []
    for group in groups:
        name = group["group"] if isinstance(group["group"], str) else ""
        document = Document(path=f"{name}_tools.json", content=None, parsed=Parsed(value=group))
        # Whoever declares in code has the code: that no file is named for it is nothing to complain about.
        compiled = compile_document(document, replace(rules, executors=(*rules.executors, name)))
        tools += compiled.tools
        problems += compiled.problems
    in_code = [tool.replace(origin=replace(tool.origin, path="code")) for tool in tools]
    return Compiled(tools=tuple(in_code), problems=tuple(replace(found, path="code") for found in problems))


def migration(file_tools: Sequence[Tool], code_tools: Sequence[Tool]) -> Migration:
    """Put tools of files before tools of code, and say what that hides and what is still to be moved."""
    declared = {tool.name: tool for tool in file_tools}
    shadowed = [tool for tool in code_tools if tool.name in declared]
    differing = [tool for tool in shadowed if _differences(tool, declared[tool.name])]
    fallback = [tool for tool in code_tools if tool.name not in declared]
    problems = [
        *(
            _in_code(
                tool,
                "capability.migrate.fallback",
                "shadowed",
                hint=f"{_file_name(declared[tool.name].origin.path)} declares {tool.name} too and is used; "
                "remove the declaration in code",
            )
            for tool in shadowed
        ),
        *(
            _in_code(
                tool,
                "capability.migrate.report",
                f"differs from {_file_name(declared[tool.name].origin.path)}: "
                + " and ".join(_differences(tool, declared[tool.name])),
                hint=f"make sure that the file says what is meant by {tool.name}",
            )
            for tool in differing
        ),
        *(
            _in_code(
                tool,
                "capability.migrate.report",
                "not migrated: no file declares this tool",
                hint=f"declare {tool.name} in a group file",
                severity=Severity.INFO,
            )
            for tool in fallback
        ),
    ]
    return Migration(
        tools=(*file_tools, *fallback),
        shadowed=tuple(tool.name for tool in shadowed),
        differing=tuple(tool.name for tool in differing),
        not_migrated=tuple(tool.name for tool in fallback),
        problems=tuple(problems),
    )


def _differences(ours: Tool, theirs: Tool) -> list[str]:
    return [part for part in ("description", "input_schema") if getattr(ours, part) != getattr(theirs, part)]


def _in_code(
    tool: Tool, code: str, message: str, *, hint: str, severity: Severity = Severity.WARNING
) -> Problem:
    return Problem(
        code=code,
        severity=severity,
        message=message,
        hint=hint,
        name=tool.name,
        path=tool.origin.path,
        pointer=tool.origin.pointer,
        line=tool.origin.line,
    )


# -- one document --------------------------------------------------------------------------------------------


class _Group:
    """One reading of one document."""

    def __init__(self, document: Document, rules: Rules) -> None:
        self.document = document
        self.rules = rules
        self.reader = Reader(document)
        self.file = _file_name(document.path)
        self.duplicates = document.parsed.duplicates if document.parsed else ()
        self.group: str | None = None
        self.version = _VERSION
        self.description = ""
        self.selection: Selection = _NEVER
        self.tools: list[Tool] = []
        self.names: set[str] = set()
        self.conditions: list[Condition] = []
        self.handlers: dict[str, bytes] = {}
        """Executors met so far, with the settings of their calls."""

    def read(self) -> None:
        parsed = self.document.parsed
        if self.document.unreadable is not None or parsed is None:
            self.reader.add(
                "capability.file.other-error",
                f"[Registry] Error loading {self.file}: {self.document.unreadable or 'no content'}",
                hint="make it a readable file with a JSON object, or leave it out of the sources",
            )
            return
        if parsed.defect is not None:
            self.reader.add(
                "capability.file.json-error",
                f"[Registry] JSON error in {self.file}: {parsed.defect}",
                line=parsed.defect.line,
                hint="mend the JSON there",
            )
            return
        root = self.reader.node(parsed.value)
        if root.kind != "object":
            self.cannot_load(root, f"expected an object with a group, got {root.kind}")
            return
        in_tools: dict[str | int, list[Duplicate]] = {}
        for repeated in self.duplicates:
            if repeated.pointer[:1] == ("tools",) and len(repeated.pointer) > 1:
                in_tools.setdefault(repeated.pointer[1], []).append(repeated)
            else:
                self.repeated(repeated)
        self.group = self.name_of_group(root)
        if "group" in root:
            self.unknown_keys(root, _GROUP_KEYS)
        self.version = self.semantic_version(root)
        self.description = self.about(root)
        self.selection = self.rule(root)
        tools = root.get("tools")
        if tools is not None and tools.kind != "array":
            self.cannot_load(tools, f"tools must be an array, got {tools.kind}")
        elif tools is not None and len(tools.value) > TOOLS_MAX:
            self.cannot_load(tools, f"more than {TOOLS_MAX:,} tools (got {len(tools.value):,})")
        elif tools is not None:
            for number, item in enumerate(tools.items()):
                self.tool(item, in_tools.get(number, ()))

    # Most members are right at first sight. Looking at the bare value first costs a fraction of what a node
    # costs, and a catalog has tens of thousands of them; a node is made where something has to be said.

    # -- the group ------------------------------------------------------------------------------------------

    def name_of_group(self, root: Node) -> str | None:
        node = root.get("group")
        if node is None:
            if not _repeats(self.duplicates, "group"):
                self.missing(root, "capability.file.missing-field", "group")
            return None
        if node.kind != "string" or not node.value.strip():
            node.error(
                "capability.group.required",
                f"must be a non-empty string (got {_got(node)})",
                hint="name the group; no tool of this file is loaded without it",
            )
            return None
        group: str = node.value
        if len(group) > NAME_CHARS_MAX:  # every tool of the file carries it
            node.error(
                "capability.group.required",
                f"must not be longer than {NAME_CHARS_MAX} characters (got {len(group):,})",
                hint="shorten it; no tool of this file is loaded without a name for the group",
            )
            return None
        if self.file != f"{group}_tools.json":
            self.reader.add(
                "capability.file.name",
                f"the file of group {shown(group)} should be called {shown(f'{group}_tools.json')}"
                f" (got {shown(self.file)})",
                severity=Severity.WARNING,
                hint="rename the file, or the group",
            )
        return group

    def semantic_version(self, root: Node) -> str:
        version = root.value.get("version", _VERSION)
        if type(version) is str and _SEMVER.fullmatch(version):
            return version
        node = root.here("version")
        node.warn(
            "capability.group.version",
            f"must be a semantic version (got {_got(node)})",
            hint=f'write three numbers, such as "{_VERSION}"',
        )
        return node.value if node.kind == "string" else _VERSION

    def about(self, root: Node) -> str:
        description = root.value.get("description", "")
        if type(description) is str:
            return description
        node = root.here("description")
        node.warn("capability.group.description", f"must be a string (got {node.kind})")
        return ""

    def rule(self, root: Node) -> Selection:
        """When messages see the group. A rule that cannot be understood shows it to none."""
        simple = _simple_rule(root.value.get("selection"))
        if simple is not None:
            return simple
        node = root.get("selection")
        if node is not None and node.value is not None and node.kind != "object":
            node.error(
                "capability.group.strategy-values",
                f"must be an object with the strategy always, keyword or context (got {node.kind})",
                hint="until then the group is never selected",
            )
            return _NEVER
        if node is None or node.value is None:
            self.never(root)
            return _NEVER
        self.unknown_keys(node, _SELECTION_KEYS)
        keywords = self.keywords(node.get("keywords"))
        check = self.context_check(node.get("context_check"))
        strategy = node.get("strategy")
        if strategy is None or strategy.value is None:
            self.never(node)
            return _NEVER
        match strategy.value:
            case "always":
                return Always(keywords=keywords)
            case "keyword":
                given = node.get("keywords")
                if given is None or given.value in (None, []):
                    (given or node).warn(
                        "capability.group.keyword-needs-keywords",
                        "strategy keyword without keywords never selects the group",
                        hint="list the words of messages that need these tools",
                    )
                return OnKeywords(keywords=keywords)
            case "context":
                return self.on_context(node, check)
        strategy.error(
            "capability.group.strategy-values",
            f"must be always, keyword or context (got {_got(strategy)})"
            f"{strategy.did_you_mean(strategy.value, _STRATEGIES) if strategy.kind == 'string' else ''}",
            hint="until then the group is never selected",
        )
        return _NEVER

    def never(self, node: Node) -> None:
        if self.group is not None:
            node.say(
                "capability.group.selection-default",
                f"group {self.group} can never be selected",
                severity=Severity.WARNING,
                hint='give it a "selection" with the strategy always, keyword or context',
            )

    def keywords(self, node: Node | None) -> tuple[str, ...]:
        if node is None or node.value is None:
            return ()
        code = "capability.group.keywords-type"
        if node.kind != "array":
            node.error(
                code,
                f"must be an array of strings (got {node.kind})",
                hint="put every keyword into the array; until then none counts",
            )
            return ()
        if len(node.value) > KEYWORDS_MAX:
            # Attack: every tool of the group carries them, and every message is compared with all.
            node.error(
                code,
                f"more than {KEYWORDS_MAX:,} keywords (got {len(node.value):,})",
                hint="keep the words that tell these tools from others; until then none counts",
            )
            return ()
        keywords: list[str] = []
        for item in node.items():
            if item.kind != "string":
                item.error(code, f"must be a string (got {item.kind})")
            elif not item.value.strip():
                item.error(code, "an empty keyword would match every message", hint="remove it")
            else:
                keywords.append(item.value)
        return tuple(keywords)

    def context_check(self, node: Node | None) -> str | None:
        if node is None or node.value is None:
            return None
        if node.kind != "string":
            node.error("capability.group.context-check", f"must be the name of a check (got {node.kind})")
            return None
        return str(node.value)

    def on_context(self, node: Node, check: str | None) -> OnContext:
        known = _BUILTIN_CHECKS.union(self.rules.context_checks)
        if check not in known and (check is not None or node.value.get("context_check") is None):
            (node.get("context_check") or node).warn(
                "capability.group.context-check",
                "strategy context without a context_check never selects the group"
                if check is None
                else f"no check is registered as {shown(check)}, so the group is never selected"
                f"{node.did_you_mean(check, known)}",
                hint="name a registered check: " + ", ".join(sorted(known)),
            )
        return OnContext(check=check)

    # -- one tool -------------------------------------------------------------------------------------------

    def tool(self, node: Node, duplicates: Iterable[Duplicate]) -> None:
        before = self.reader.errors
        if node.kind != "object":
            self.cannot_load(node, f"{node.place} must be an object, got {node.kind}")
            return
        for repeated in duplicates:
            self.repeated(repeated)
        self.unknown_keys(node, _TOOL_KEYS)
        name = self.name(node)
        description = self.tool_description(node)
        category, effect, effect_from = self.category(node)
        schema = self.input_schema(node)
        metadata = self.metadata(node.get("metadata"))
        executor = self.executor(metadata) if metadata is not None else None
        context = self.requires_context(metadata) if metadata is not None else ()
        cost = self.estimate(metadata, "cost_estimate", "capability.meta.cost", _COSTS)
        latency = self.estimate(metadata, "latency_estimate", "capability.meta.latency", _LATENCIES)
        failed = self.reader.errors > before
        if failed or name is None or description is None or self.group is None:
            return
        self.names.add(name)
        self.tools.append(
            Tool(
                key=key_of(NAME, self.group, name),
                name=name,
                scope=self.group,
                description=description,
                version=self.version,
                input_schema=schema,
                invocation=CallPython(
                    style=PythonStyle.HANDLER,
                    executor=executor,
                    settings=self.handler(node, name, executor),
                ),
                intake=Intake(fill_defaults=True),
                reply=Reply.SUCCESS_DICT,
                needs=Needs(context=context),
                selection=self.selection,
                effect=effect,
                effect_from=effect_from,
                habits=_HABITS,
                notes=Notes(category=category, cost=cost, latency=latency, documentation=self.description),
                origin=Origin(format=NAME, path=self.document.path, pointer=node.pointer),
            )
        )

    def name(self, tool: Node) -> str | None:
        simple = tool.value.get("name")
        if type(simple) is str and simple.strip() and simple not in self.names:
            return simple
        node = self.text(tool, "name", "capability.tool.name")
        if node is None:
            return None
        name: str = node.value
        if not name.strip():
            node.error("capability.tool.name", f"must not be empty (got {shown(name)})")
            return None
        if name in self.names:
            node.error(
                "capability.tool.name",
                f"{shown(name)} is already taken",
                name=name,
                hint="the first one is kept; rename this one",
            )
            return None
        return name

    def tool_description(self, tool: Node) -> str | None:
        simple = tool.value.get("description")
        if type(simple) is str and simple.strip():
            return simple
        node = self.text(tool, "description", "capability.tool.description")
        if node is None:
            return None
        if not node.value.strip():
            node.warn(
                "capability.tool.description", "is empty", hint="say what the tool does; models choose by it"
            )
        return str(node.value)

    def text(self, tool: Node, key: str, code: str) -> Node | None:
        node = tool.get(key)
        if node is None:
            self.missing(tool, code, key)
        elif node.kind != "string":
            node.error(code, f"must be a string (got {node.kind})")
            return None
        return node

    def category(self, tool: Node) -> tuple[str, Effect, str]:
        """Return the category, its effect, and where that comes from."""
        category = tool.value.get("category", "retrieval")
        if type(category) is str and category in _EFFECTS:
            given = (
                f"category {category}" if "category" in tool.value else f"no category, which means {category}"
            )
            return category, _EFFECTS[category], given
        node = tool.here("category")
        node.warn(
            "capability.tool.category-values",
            f"must be creation, retrieval, mutation or analysis (got {_got(node)})",
            hint="it counts as mutation, because a tool of unknown effect must not pass as read-only",
        )
        return "mutation", Effect.CHANGE, "a category that does not exist, which counts as mutation"

    def input_schema(self, tool: Node) -> Schema | None:
        node = tool.get("input_schema")
        if node is not None:
            _schema_lint.report(node, required=_schema_lint.Required.BELOW)
        if _is_simple_schema(tool.value.get("input_schema")):
            return Schema.of(tool.value["input_schema"])
        if node is None:
            return _NO_INPUT
        code = "capability.tool.input-schema-object"
        if node.kind != "object":
            node.error(code, f"must be an object (got {node.kind})")
            return None
        kind = node.get("type")
        if kind is None:
            node.error(code, "has no type", hint='add "type": "object"')
        elif kind.value != "object":
            kind.error(code, f'must be "object" (got {_got(kind)})')
        properties = node.get("properties")
        if properties is not None and properties.kind != "object":
            properties.error(code, f"must be an object (got {properties.kind})")
            return None
        required = node.get("required")
        if required is not None and required.kind != "array":
            required.error(code, f"must be an array of property names (got {required.kind})")
        elif required is not None and required.value:
            defined = properties.value if properties is not None else {}
            # Comparing all with all would let a hostile file burn time.
            guess = max(len(defined), len(required.value)) <= _GUESSED_AMONG_MAX
            for item in required.items():
                if item.kind != "string":
                    item.error(code, f"must be a property name (got {item.kind})")
                elif item.value not in defined:
                    item.error(
                        code,
                        f"{shown(item.value)} is not among the properties"
                        f"{item.did_you_mean(item.value, defined) if guess else ''}",
                        hint="define the property, or take it out of required",
                    )
        return Schema.of(node.value)

    def metadata(self, node: Node | None) -> Node | None:
        if node is None or node.value is None:
            return None
        if node.kind != "object":
            node.error("capability.meta.optional", f"must be an object (got {node.kind})")
            return None
        self.unknown_keys(node, _METADATA_KEYS)
        return node

    def executor(self, metadata: Node) -> str | None:
        simple = metadata.value.get("executor")
        if simple is None or (type(simple) is str and _MODULE_NAME.fullmatch(simple)):
            return simple
        node = metadata.here("executor")
        if node.kind != "string":
            node.error(
                "capability.meta.executor-module", f"must be the name of a handler module (got {node.kind})"
            )
            return None
        if node.value not in self.rules.executors and not _MODULE_NAME.fullmatch(node.value):
            # "../x" or "a/b" would run code from outside of the handlers directory.
            node.error(
                "capability.meta.executor-module",
                f"must be a plain module name (got {shown(node.value)})",
                hint="name NAME for handlers/NAME.py: letters, digits and underscores only",
            )
            return None
        return str(node.value)

    def handler(self, tool: Node, name: str, executor: str | None) -> bytes:
        """The settings of the call; what this machine has to have for it is asked once per executor."""
        registered = self.rules.executors and not {executor, self.group, name}.isdisjoint(
            self.rules.executors
        )
        if executor is None:
            if not registered:
                (tool.get("metadata") or tool).say(
                    "capability.meta.optional",
                    "no executor",
                    severity=Severity.WARNING,
                    name=name,
                    hint="without one it can be called only when the host registers a handler for it",
                )
            return b"{}"
        settings = self.handlers.get(executor)
        if settings is None:
            files = handler_files(executor, self.document.handlers)
            settings = self.handlers[executor] = compact({"files": files})
            if not registered:
                self.conditions.append(self.has_handler(tool.here("metadata").here("executor"), name, files))
        return settings

    def has_handler(self, node: Node, name: str, files: tuple[str, ...]) -> Condition:
        module = files[0].rpartition("/")[2] if files else f"{node.value}.py"
        return Condition(
            kind=ConditionKind.ANY_FILE,
            subjects=files,
            otherwise=Problem(
                code="capability.meta.executor-alias",
                severity=Severity.WARNING,
                message=node.with_place(f"no handler was found for executor {shown(node.value)}"),
                path=self.document.path,
                pointer=node.pointer,
                name=name,
                hint=f"put {module} into a folder handlers beside the schemas or their parent, or register a "
                "handler for the executor",
            ),
        )

    def requires_context(self, metadata: Node) -> tuple[str, ...]:
        simple = metadata.value.get("requires_context")
        if simple is None:
            return ()
        if type(simple) is list and all(type(key) is str and key in _CONTEXT_KEYS for key in simple):
            return tuple(dict.fromkeys(simple))
        node = metadata.here("requires_context")
        code = "capability.meta.context-keys"
        if node.kind != "array":
            node.error(code, f"must be an array of context keys (got {node.kind})")
            return ()
        for item in node.items():
            if item.kind != "string":
                item.error(code, f"must be a context key (got {item.kind})")
            elif item.value not in _CONTEXT_KEYS:
                item.warn(
                    code,
                    f"unusual context key {shown(item.value)}{item.did_you_mean(item.value, _CONTEXT_KEYS)}",
                    hint="calls are refused unless the host provides a value under exactly this key",
                )
        return tuple(dict.fromkeys(key for key in node.value if isinstance(key, str)))

    def estimate(self, metadata: Node | None, key: str, code: str, known: tuple[str, ...]) -> str | None:
        if metadata is None:
            return None
        simple = metadata.value.get(key)
        if simple is None or (type(simple) is str and simple in known):
            return simple
        node = metadata.here(key)
        if node.value not in known:
            node.warn(code, f"must be {known[0]}, {known[1]} or {known[2]} (got {_got(node)})")
        return node.value if node.kind == "string" else None

    # -- said at several places -----------------------------------------------------------------------------

    def cannot_load(self, node: Node, why: str) -> None:
        node.say("capability.file.other-error", f"[Registry] Error loading {self.file}: {why}")

    def missing(self, node: Node, code: str, key: str) -> None:
        node.say(
            code,
            f"[Registry] Missing required field in {self.file}: '{key}'",
            hint=f'give {node.place or "the file"} a "{key}"',
        )

    def repeated(self, found: Duplicate) -> None:
        place = place_text(found.pointer)
        self.reader.add(
            "capability.file.duplicate-members",
            f"{place + ': ' if place else ''}duplicate key {shown(found.key)}",
            pointer=found.pointer,
            line=found.line,
            hint="keep one of them; which one counts must not depend on the reader",
        )

    def unknown_keys(self, node: Node, known: tuple[str, ...]) -> None:
        for key in node.value:
            if known is _TOOL_KEYS and _schema_lint.is_schema_key(key, node.value, "input_schema"):
                node.here(key).warn(
                    "capability.tool.unknown-keys",
                    'unknown key (did you mean "input_schema"?)',
                    hint=_schema_lint.schema_key_hint(key, "input_schema"),
                    fix=_schema_lint.schema_key_fix(key, node, "input_schema"),
                )
            elif key not in known:
                node.here(key).warn(
                    "capability.tool.unknown-keys",
                    f"unknown key{node.did_you_mean(key, known)}",
                    hint="it has no effect; remove it or correct its spelling",
                )


def _simple_rule(selection: JsonValue) -> Selection | None:
    """The rule of a selection that has nothing but a strategy and good keywords."""
    if type(selection) is not dict or selection.keys() - {"strategy", "keywords"}:
        return None
    keywords = selection.get("keywords", [])
    if type(keywords) is not list or len(keywords) > KEYWORDS_MAX:
        return None
    if not all(type(word) is str and word.strip() for word in keywords):
        return None
    strategy = selection.get("strategy")
    if strategy == "always":
        return Always(keywords=tuple(keywords))
    return OnKeywords(keywords=tuple(keywords)) if strategy == "keyword" and keywords else None


def _is_simple_schema(schema: JsonValue) -> bool:
    if type(schema) is not dict or schema.get("type") != "object":
        return False
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    return (
        type(properties) is dict
        and type(required) is list
        and all(type(name) is str and name in properties for name in required)
    )


# -- all documents -------------------------------------------------------------------------------------------


def _replaced(group: str, earlier: Unit, later: Unit) -> Problem:
    first, second = _told_apart(earlier.path, later.path)
    return Problem(
        code="capability.group.unique",
        message=f"group: {shown(group)} is declared by {first} and by {second}, which replaces it",
        path=later.path,
        pointer=("group",),
        hint="rename one of the groups, or put their tools into one file",
    )


def _shared_name(earlier: Tool, later: Tool) -> Problem:
    assert later.origin.pointer is not None
    pointer = (*later.origin.pointer, "name")
    return Problem(
        code="capability.tool.name-collision",
        message=f"{place_text(pointer)}: {shown(later.name)} is declared by groups {shown(earlier.scope)} "
        f"and {shown(later.scope)}; the bare name means the one of {shown(later.scope)}",
        path=later.origin.path,
        pointer=pointer,
        name=later.name,
        hint=f"rename one; both can be called by their keys, {earlier.key} and {later.key}",
    )


def _told_apart(first: str, second: str) -> tuple[str, str]:
    """The ends of two paths from where they begin to differ: file names, where these differ."""
    ours, theirs = first.split("/"), second.split("/")
    count = 1
    while ours[-count:] == theirs[-count:] and count < max(len(ours), len(theirs)):
        count += 1
    return "/".join(ours[-count:]), "/".join(theirs[-count:])


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _repeats(duplicates: Iterable[Duplicate], key: str) -> bool:
    return any(found.key == key and not found.pointer for found in duplicates)


def _got(node: Node) -> str:
    return shown(node.value) if node.kind in ("string", "integer", "number") else node.kind
