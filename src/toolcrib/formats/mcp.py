"""The MCP format: the tools that a server lists, and the files and settings that say which servers there are.

A document here is a server's answer to ``tools/list``, with the definition that the answer was asked under.
Everything in it is the server's word: names and schemas are checked, hints about effects count only where
the host trusts the server, and a tool is known by its server's name, so that no server can speak for another.

Nothing is started or asked here: ``runtimes/mcp.py`` talks to servers, and the app hands their answers in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from posixpath import join
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.formats import _schema_lint
from toolcrib.formats._mcp_lists import (
    CODEX,
    MILLISECONDS_MIN,
    Owner,
    from_codex,
    lines_of,
    owner_of,
    seconds_of,
)
from toolcrib.formats._node import TOOLS_MAX, Node, Reader, key_of, kind_of, seconds, shown
from toolcrib.jsontext import JsonObject, JsonValue, compact, digest, loads_own, place_text
from toolcrib.model import (
    TIMEOUT_S_MAX,
    CallMcp,
    Compiled,
    Document,
    Effect,
    Linked,
    Needs,
    Notes,
    Origin,
    Problem,
    Reply,
    Retry,
    Rules,
    Schema,
    Severity,
    Tool,
    Unit,
)

NAME: Final = "mcp"
TIMEOUT_S: Final = 60.0
"""For one call, where the definition says nothing else."""
SERVERS_MAX: Final = 500
NOT_ASKED: Final = "it was not asked, because another server's tool was wanted"
"""Why a server that nobody needs just now has no list."""

_NAME_CHARS_MAX: Final = 128
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_ENV_REFERENCE: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_PROMPT: Final = re.compile(r"\$\{(?:input|command):[^}]*\}")
_ENABLED: Final = ("enabledTools", "enabled_tools", "includeTools", "available_tools")
_DISABLED: Final = ("disabledTools", "disabled_tools", "excludeTools")
"""Which tools of a server a list lets through, in the words of several programs."""
_DEFINED: Final = ("command", "args", "env", "cwd", "url", "headers", "timeout")


# -- which servers there are --------------------------------------------------------------------------------


class Server(Struct, frozen=True, kw_only=True):
    """A server that was named, and how it is reached."""

    name: str
    definition: JsonObject
    """``command`` and ``args`` or ``url``, with ``env``, ``headers``, ``cwd`` and ``timeout``."""
    env: tuple[str, ...] = ()
    """Variables of the host that whoever named it lets it have."""
    trusted: bool = False
    """What it says about the effects of its tools is believed."""
    vaulted: bool = False
    """A configuration that counts wrote it, so that the names in it may mean secrets of the vault."""

    @property
    def key(self) -> str:
        """What stands for the server itself in grants and rules: ``mcp:NAME/*`` fits it and its tools."""
        return key_of(NAME, self.name, "")

    @property
    def text(self) -> str:
        """The whole of it as one line, for handing on in memory: it may hold secrets, so it is never kept."""
        told: JsonObject = {"definition": self.definition, "env": list(self.env), "trusted": self.trusted}
        if self.vaulted:
            told["vaulted"] = True
        return compact({"name": self.name, **told}).decode("utf-8")

    @property
    def digest(self) -> str:
        return digest(loads_own(self.text.encode("utf-8")))

    @staticmethod
    def read(text: str) -> Server:
        """What ``text`` wrote."""
        told = loads_own(text.encode("utf-8"))
        assert isinstance(told, dict)
        return Server(
            name=told["name"],
            definition=told["definition"],
            env=tuple(told["env"]),
            trusted=told["trusted"],
            vaulted=told.get("vaulted") is True,
        )


def names_in(definition: JsonObject) -> tuple[str, ...]:
    """The variables that the values of a definition refer to."""
    texts: list[JsonValue] = [definition.get("url"), definition.get("command"), definition.get("cwd")]
    for key in ("args", "env", "headers"):
        held = definition.get(key)
        texts += held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()
    found = (name for text in texts if isinstance(text, str) for name in _REFERENCE.findall(text))
    return tuple(dict.fromkeys(found))


def servers_in(
    document: Document, member: str = "mcpServers"
) -> tuple[list[Server], list[str], list[Problem]]:
    """Return the servers of a list (``.mcp.json``) that are switched on, the names of the others, and the
    problems. No other source can use those names. ``member``: where the list is; empty: it is the document
    itself.

    Attack: a namesake elsewhere, which gets what was granted to an entry that is switched off, or that a
    mistake has spoilt.
    """
    reader = Reader(document, lines_of(document))
    assert document.parsed is not None
    assert isinstance(document.parsed.value, dict)
    root = reader.node(document.parsed.value)
    for repeated in document.parsed.duplicates[:1]:
        reader.add(
            "mcp.servers.duplicate",
            f'the key "{repeated.key[:60]}" stands there twice: readers would differ about which one counts',
            pointer=repeated.pointer,
            line=repeated.line,
            hint="keep one of them",
        )
        root_value = document.parsed.value
        listed, place = (root_value.get(member), (member,)) if member else (root_value, ())
        twice = [other.key for other in document.parsed.duplicates if other.pointer == place]
        names = map(_plain_name, [*twice, *(listed if isinstance(listed, dict) else ())])
        return [], [*dict.fromkeys(filter(_SERVER_NAME.fullmatch, names))][:SERVERS_MAX], reader.problems
    found: dict[str, Server | None] = {}
    folder = document.path.rpartition("/")[0]
    entries = root.get(member) if member else root
    if entries is not None and not isinstance(entries.value, dict):
        what = f"must be an object with a server under each name (got {kind_of(entries.value)})"
        entries.error("mcp.servers.wrong", what)
    for number, (name, entry) in enumerate(entries.members() if entries is not None else ()):
        if number >= SERVERS_MAX:
            reader.add("mcp.servers.wrong", f"more than {SERVERS_MAX} servers: the others are left out")
            break
        if not member and name == "$schema":
            continue
        plain = _plain_name(name)
        if not _SERVER_NAME.fullmatch(plain):
            entry.error("mcp.servers.wrong", f"{shown(name)} has no ASCII letter or digit to be known by")
            continue
        if plain in found:
            entry.error(
                "mcp.servers.clash",
                f"{shown(name)} is known as {plain!r}, and so is another server",
                hint="rename one of them",
            )
            continue
        found[plain] = None
        if not isinstance(entry.value, dict):
            entry.error("mcp.servers.wrong", f"a server must be an object (got {kind_of(entry.value)})")
            continue
        if entry.value.get("disabled") is True or entry.value.get("enabled") is False:
            continue
        told = from_codex(entry.value) if member == CODEX else entry.value
        definition = told if isinstance(told, str) else _definition(told, folder)
        if not isinstance(definition, str) and "timeout" in definition:
            definition = _timed(definition, owner_of(document.path, member, entry.value), entry)
        if isinstance(definition, str):
            hint = "give it a command with args, or a url, and a timeout or none"
            entry.error("mcp.servers.wrong", definition, hint=hint)
            continue
        found[plain] = Server(name=plain, definition=definition)
    servers = [server for server in found.values() if server is not None]
    return servers, [name for name, server in found.items() if server is None], reader.problems


def _timed(definition: JsonObject, owner: Owner, entry: Node) -> JsonObject | str:
    """Return a definition with its ``timeout`` in seconds, or what is wrong with that.

    A unit that had to be guessed is reported, and so is a number that the list's owner ignores.
    """
    given = definition["timeout"]
    # Attack: a number of hundreds of digits, which no float can hold and no clock can wait for.
    wanted = None if not 0 < given <= TIMEOUT_S_MAX * 1000 else seconds_of(given, owner)
    if wanted is None and 0 < given < MILLISECONDS_MIN:
        entry.here("timeout").warn(
            "mcp.servers.timeout",
            f"{given} milliseconds are too few for {owner}, which ignores them: the default counts",
            hint=f"write milliseconds, at least {MILLISECONDS_MIN}",
        )
        return {key: value for key, value in definition.items() if key != "timeout"}
    if wanted is None or wanted > TIMEOUT_S_MAX:
        return f"timeout must be above 0 and at most {TIMEOUT_S_MAX:.0f} seconds"
    if owner is Owner.UNKNOWN:
        unit = "seconds" if wanted == given else "milliseconds"
        entry.here("timeout").say(
            "mcp.servers.timeout",
            entry.here("timeout").with_place(
                f"{given} is read as {unit}: no program is known to own this list"
            ),
            severity=Severity.INFO if wanted == given else Severity.WARNING,
            hint="name the server in toolcrib.toml, where `timeout` is in seconds",
        )
    return {**definition, "timeout": wanted}


def _plain_name(name: str) -> str:
    """The name by which an entry is known, in keys and to models."""
    return _ODD.sub("-", name).strip("-.")[:64]


def _definition(entry: JsonObject, folder: str) -> JsonObject | str:
    """The part of an entry that we go by, or what is wrong with it."""
    held = {key: entry[key] for key in _DEFINED if entry.get(key) is not None}
    for name in ("httpUrl", "serverUrl"):
        if "url" not in held and isinstance(entry.get(name), str):
            held["url"] = entry[name]
    kind = entry.get("type", entry.get("transport"))
    if kind == "sse":
        held["type"] = "sse"
    if ("url" in held) == ("command" in held):
        return "a server has either a command or a url"
    for key, wanted in (
        ("command", str),
        ("url", str),
        ("cwd", str),
        ("args", list),
        ("timeout", (int, float)),
    ):
        if key in held and (not isinstance(held[key], wanted) or isinstance(held[key], bool)):
            return f"{key} must not be {kind_of(held[key])}"
    for key in ("env", "headers"):
        if not isinstance(held.get(key, {}), dict):
            return f"{key} must be an object (got {kind_of(held[key])})"
    for key, names in (("enabledTools", _ENABLED), ("disabledTools", _DISABLED)):
        for name in names:
            tools = entry.get(name)
            if tools is None:
                continue
            if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
                # Attack: a restriction that is passed over because it is not written as one.
                return f"{name} must be a list of names of tools (got {kind_of(tools)})"
            if key in held and key == "enabledTools":  # two spellings: what both let through
                tools = [tool for tool in tools if tool in held[key]]
            held[key] = tools if key == "enabledTools" else [*held.get(key, []), *tools]
    if any("\0" in text for text in _strings(held)):
        return "a NUL character is in it"
    prompt = next((found[0] for text in _strings(held) if (found := _PROMPT.search(text))), None)
    if prompt is not None:
        # Otherwise the server would be handed these very words in the place of a secret.
        return f"{shown(prompt)} is asked of a person by another program: write ${{NAME}}, a variable"
    held = {key: _with_plain_references(value) for key, value in held.items()}
    if "command" in held:
        held["cwd"] = join(folder, str(held.get("cwd", "")))
    return held


def _with_plain_references(value: JsonValue) -> JsonValue:
    """``${env:NAME}``, as some hosts write it, is ``${NAME}``."""
    if isinstance(value, str):
        return _ENV_REFERENCE.sub(r"${\1}", value)
    if isinstance(value, list):
        return [_with_plain_references(item) if isinstance(item, str) else item for item in value]
    if isinstance(value, dict):
        return {
            key: _with_plain_references(item) if isinstance(item, str) else item
            for key, item in value.items()
        }
    return value


def _strings(value: JsonValue) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item


# -- one server's tools -------------------------------------------------------------------------------------


def recognises(document: Document) -> bool:
    """Never by structure: what a server lists is known by having been asked for."""
    return False


def server_record(server: Server, path: str) -> Tool:
    """The record that stands for the server itself: what may be granted to it, and how it is reached."""
    timeout = server.definition.get("timeout")
    timeout_s = seconds(timeout) if isinstance(timeout, (int, float)) and timeout > 0 else TIMEOUT_S
    settings = compact({"key": server.key, "definition": server.digest})
    return Tool(
        key=server.key,
        name=server.name,
        scope=server.name,
        origin=Origin(format=NAME, path=path),
        invocation=CallMcp(server=server.name, tool="", settings=settings),
        reply=Reply.BLOCKS,
        needs=Needs(env=server.env, timeout_s=timeout_s),
    )


def compile_document(document: Document, rules: Rules) -> Compiled:
    reader = Reader(document)
    parsed = document.parsed
    if not document.server:
        reader.add("mcp.server.unavailable", "nobody named the server that listed this", pointer=())
        return Compiled(problems=tuple(reader.problems))
    server = Server.read(document.server)
    listed = parsed.value if parsed is not None and isinstance(parsed.value, dict) else None
    if document.unreadable is not None or listed is None:
        why = document.unreadable or "its answer is no list of tools"
        what = "has no tools" if listed is None else "is not there, and its tools are those it listed last"
        reader.add(
            "mcp.server.unavailable",
            f'the MCP server "{server.name}" {what}: {why}',
            severity=Severity.INFO if why == NOT_ASKED else Severity.WARNING,
            name=server.name,
            hint=document.hint or "`toolcrib doctor` shows how it stands; its tools come back when it does",
        )
    if listed is None:
        return Compiled(problems=tuple(reader.problems), again_s=0.0)
    compiled = _Reading(server, document, reader).compiled(listed.get("tools"))
    return compiled if document.unreadable is None else replace(compiled, again_s=0.0)


class _Reading:
    """One list of tools."""

    def __init__(self, server: Server, document: Document, reader: Reader) -> None:
        self.server = server
        self.reader = reader
        self.record = server_record(server, document.path)
        self.tools: dict[str, Tool] = {}

    def compiled(self, listed: JsonValue) -> Compiled:
        only = self.server.definition.get("enabledTools")
        without = self.server.definition.get("disabledTools", [])
        for number, entry in enumerate(listed if isinstance(listed, list) else ()):
            if number >= TOOLS_MAX:
                self.say("mcp.tool.too-many", f"more than {TOOLS_MAX} tools: the others are left out")
                break
            name = entry.get("name") if isinstance(entry, dict) else None
            if name in without or (only is not None and isinstance(name, str) and name not in only):
                continue
            tool = self.tool(number, entry)
            if tool is None:
                continue
            if tool.name in self.tools:
                # Attack: a second tool of the same name that takes the first one's calls.
                self.say(
                    "mcp.tool.duplicate", f'it lists "{tool.name}" twice: the first one counts', tool.name
                )
                continue
            self.tools[tool.name] = tool
        return Compiled(tools=tuple(self.tools.values()), problems=tuple(self.reader.problems))

    def say(
        self,
        code: str,
        what: str,
        name: str | None = None,
        severity: Severity = Severity.ERROR,
        hint: str | None = None,
    ) -> None:
        message = f'the MCP server "{self.server.name}": {what}'
        self.reader.add(code, message, severity=severity, name=name, hint=hint or "its author has to mend it")

    def tool(self, number: int, entry: JsonValue) -> Tool | None:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str):
            self.say("mcp.tool.name", f"tool {number} has no name")
            return None
        if not name.strip() or len(name) > _NAME_CHARS_MAX or any(map(_is_unseen, name)):
            # Attack: a name that looks like another's, by characters that nobody sees.
            self.say(
                "mcp.tool.name", f"tool {number} has a name that cannot be used: {shown(_escaped(name))}"
            )
            return None
        schema = entry.get("inputSchema", {"type": "object"})
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            self.say("mcp.tool.schema", f'"{name}": inputSchema must describe an object', name)
            return None
        schema = schema if "type" in schema else {"type": "object", **schema}
        for key in entry:
            if _schema_lint.is_schema_key(key, entry, "inputSchema"):
                hint = _schema_lint.schema_key_hint(key, "inputSchema")
                self.say(
                    "mcp.tool.schema", f'"{name}": unknown key {shown(key)}', name, Severity.WARNING, hint
                )
        self.look(name, "inputSchema", schema)
        output = entry.get("outputSchema")
        if output is not None and not isinstance(output, dict):
            self.say("mcp.tool.schema", f'"{name}": outputSchema is no schema', name, Severity.WARNING)
            output = None
        self.look(name, "outputSchema", output)
        title, description = entry.get("title"), entry.get("description")
        hints = entry.get("annotations")
        hints = hints if isinstance(hints, dict) else {}
        if not isinstance(title, str):
            title = hints.get("title")
        text = description if isinstance(description, str) else title if isinstance(title, str) else ""
        invocation = self.record.invocation
        assert isinstance(invocation, CallMcp)
        effect, effect_from = self.effect(hints)
        idempotent = self.server.trusted and hints.get("idempotentHint") is True
        metadata: JsonObject = {"annotations": hints} if hints else {}
        if idempotent:
            metadata["idempotent"] = True
        return replace(
            self.record,
            key=key_of(NAME, self.server.name, name),
            name=name,
            # Attack: the tool `c` of a server `a_b`, which a model would know by the name of `b_c` of `a`.
            spoken=f"{self.server.name}__{name}",
            description=text,
            invocation=replace(invocation, tool=name),
            input_schema=Schema.of(schema),
            output_schema=Schema.of(output) if output is not None else None,
            effect=effect,
            effect_from=effect_from,
            retry=Retry(max_attempts=2) if effect is Effect.READ or idempotent else None,
            notes=Notes(
                documentation={"title": title} if isinstance(title, str) and title != text else None,
                metadata=metadata or None,
            ),
        )

    def look(self, name: str, which: str, schema: JsonValue) -> None:
        """Warn of probable mistakes in a schema that the server listed."""
        for found in _schema_lint.look(schema, self.reader):
            place = place_text((which, *found.pointer))
            self.say(found.code, f'"{name}": {place}: {found.what}', name, Severity.WARNING, found.hint)

    def effect(self, hints: JsonObject) -> tuple[Effect, str]:
        """Return what a call does to the world, and where that comes from.

        Attack: a server that calls a destructive tool harmless, so that it runs unasked or twice. Its hints
        count only if the host trusts it. Otherwise the tool counts as one that changes.
        """
        reads, destroys = hints.get("readOnlyHint"), hints.get("destructiveHint")
        if not self.server.trusted:
            has_hints = isinstance(reads, bool) or isinstance(destroys, bool)
            return Effect.CHANGE, "the server's hints do not count: it is not trusted" if has_hints else ""
        if reads is True:
            return Effect.READ, "readOnlyHint of a trusted server"
        if isinstance(destroys, bool):
            return (Effect.CHANGE if destroys else Effect.CREATE), "destructiveHint of a trusted server"
        return Effect.CHANGE, ""


def _is_unseen(char: str) -> bool:
    """Controls, formats, what is no character, line and paragraph ends: nothing that a name is made of."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escaped(name: str) -> str:
    return name[:_NAME_CHARS_MAX].encode("unicode_escape").decode("ascii")


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    """Servers stand side by side: no two have one name, because a name belongs to whoever names it first.

    Names with two underscores may still come out alike for models; dialects tell them apart, and we say so.
    """
    tools = tuple(tool for unit in units for tool in unit.compiled.tools)
    first: dict[str, Tool] = {}
    problems = [
        Problem(
            code="mcp.tool.spoken-clash",
            severity=Severity.WARNING,
            message=f'models would know {tool.key} and {first[tool.spoken].key} as "{tool.spoken}"',
            path=tool.origin.path,
            name=tool.name,
            hint="rename one of the servers; until then both names get an ending of their own",
        )
        for tool in tools
        if first.setdefault(tool.spoken, tool) is not tool
    ]
    return Linked(tools=tools, problems=tuple(problems))
