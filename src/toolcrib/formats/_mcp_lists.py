"""Lists of MCP servers, as other programs write them.

Most are JSON; some have comments and trailing commas, and Codex writes TOML. What they say becomes one shape,
an object of servers with the same words, which ``mcp`` reads. Nothing is started, and no value is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from toolcrib import jsontext
from toolcrib.formats import _toml
from toolcrib.formats._node import kind_of, shown
from toolcrib.jsontext import Defect, JsonObject, JsonValue, Parsed, Pointer
from toolcrib.model import Document

CODEX: Final = "mcp_servers"
_MEMBERS: Final = ("mcpServers", CODEX, "context_servers")
_ADDRESSES: Final = ("command", "url", "httpUrl", "serverUrl")
_OTHER_FORMATS: Final = frozenset({"allowlist", "execution", "tools", "group", "openapi", "swagger", "paths"})
MARKS: Final = (b"mcpServers", b'"servers"', b"_servers", b'"command"', b'rl"')
"""A file without any of them lists no servers, unless a person says that it does."""

_OF_PROCESSES: Final = ("args", "env", "env_vars", "cwd")
_OF_URLS: Final = ("bearer_token_env_var", "http_headers", "env_http_headers", "http_headers_helper")
_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_]")

_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|/\*|[,\]}]|[^\s",/\]}]+|/')


def read(path: str, content: bytes) -> Document:
    """Read the file: TOML by its name, else JSON, with or without comments."""
    return Document(path=path, content=content, parsed=_parsed(path, content))


def _parsed(path: str, content: bytes) -> Parsed:
    if path.endswith(".toml"):
        text = jsontext.decode(content)
        if isinstance(text, Defect):
            return Parsed(defect=text)
        try:
            return Parsed(_toml.read(text))
        except _toml.Broken as error:
            return Parsed(defect=Defect(error.what, error.line, error.column))
    parsed = jsontext.read(content)
    if parsed.defect is None:
        return parsed
    text = jsontext.decode(content)
    return parsed if isinstance(text, Defect) else jsontext.read(without_comments(text).encode("utf-8"))


def lines_of(document: Document) -> dict[Pointer, int]:
    """Return the lines of the servers in Codex' list. Those of JSON are looked up later, for all files."""
    root = document.parsed.value if document.parsed is not None else None
    listed = root.get(CODEX) if isinstance(root, dict) else None
    if not document.path.endswith(".toml") or document.content is None or not isinstance(listed, dict):
        return {}
    text = document.content.decode("utf-8", "replace")
    written: dict[str, Pointer] = {f"{CODEX}.{name}": (CODEX, name) for name in listed}
    found = {written[where]: line for where, line in _toml.lines_of(text, written).items()}
    if found:
        found[CODEX,] = min(found.values())
    return found


class Owner(StrEnum):
    """Whose list it is, as far as that decides what an entry's ``timeout`` means."""

    CLAUDE = "Claude"
    """Milliseconds; fewer than 1,000 are ignored."""
    GEMINI = "Gemini CLI"
    """Milliseconds."""
    CLINE = "Cline"
    """Seconds; Roo Code has the same."""
    CODEX = "Codex"
    """Seconds, which its word for it says."""
    UNKNOWN = ""


def owner_of(path: str, member: str, entry: JsonObject) -> Owner:
    """Return whose list an entry is in, by the file's path and by words that only one program has."""
    if member == CODEX:
        return Owner.CODEX
    folder, _, name = path.rpartition("/")
    above = folder.rpartition("/")[2]
    if above in (".gemini", ".qwen") or name == "gemini-extension.json" or not _GEMINI.isdisjoint(entry):
        return Owner.GEMINI
    if above in (".roo", ".kilocode") or name in _CLINE_FILES:
        return Owner.CLINE
    if member in ("mcpServers", "") and (
        name in _CLAUDE_FILES or above == ".claude-plugin" or not _CLAUDE.isdisjoint(entry)
    ):
        return Owner.CLAUDE
    return Owner.UNKNOWN


_GEMINI: Final = frozenset({"httpUrl", "includeTools", "excludeTools", "trust", "authProviderType"})
_CLINE_FILES: Final = ("cline_mcp_settings.json", "mcp_settings.json")
_CLAUDE_FILES: Final = (".mcp.json", ".claude.json", "managed-mcp.json")
_CLAUDE: Final = frozenset({"headersHelper", "alwaysLoad", "request_timeout_ms"})
MILLISECONDS_MIN: Final = 1000
"""From here on a number without an owner is read as milliseconds; Claude ignores what is below."""


def seconds_of(timeout: float, owner: Owner) -> float | None:
    """Return the seconds that a ``timeout`` means; None: it counts for nothing."""
    is_large = timeout >= MILLISECONDS_MIN
    match owner:
        case Owner.CLAUDE if not is_large:
            return None
        case Owner.CLAUDE | Owner.GEMINI:
            return timeout / 1000
        case Owner.UNKNOWN if is_large:
            return timeout / 1000
        case _:
            return timeout


def without_comments(text: str) -> str:
    """Replace comments and trailing commas by blanks, so that places stay the same.

    A text that is not JSON besides comes out as broken as it was.
    """
    made: list[str] = []
    kept = 0
    for start, end in _superfluous(text):
        made += (text[kept:start], re.sub(r"[^\n]", " ", text[start:end]))
        kept = end
    return "".join((*made, text[kept:]))


def _superfluous(text: str) -> Iterator[tuple[int, int]]:
    """Find comments, and commas before a closing bracket, in the order in which they begin."""
    comma: int | None = None
    last = "["
    behind: list[tuple[int, int]] = []  # comments behind a comma that may be one too many
    at = 0
    while (token := _TOKEN.search(text, at)) is not None:
        word, at = token[0], token.end()
        if word.startswith(("//", "/*")):
            if word == "/*":
                end = text.find("*/", at)
                if end < 0:
                    break
                at = end + 2
            if comma is None:
                yield token.start(), at
            else:
                behind.append((token.start(), at))
            continue
        if comma is not None and word in ("]", "}"):
            yield comma, comma + 1
        yield from behind
        behind, comma = [], (token.start() if word == "," and last[-1] not in "[{," else None)
        last = word
    yield from behind


def member_of(root: JsonValue, *, is_asked_for: bool = False) -> str | None:
    """Name the member that lists MCP servers; empty: the document is the list itself. None: it lists none.

    Most programs say ``mcpServers``, some only ``servers``, which other documents have as well; in a plugin
    the root contains the names of the servers. ``is_asked_for``: a person said that it is a list.
    """
    if not isinstance(root, dict):
        return None
    for member in _MEMBERS:
        if member in root:
            return member
    if not _OTHER_FORMATS.isdisjoint(root):
        return None
    servers = root.get("servers")
    if isinstance(servers, dict) and any(map(_is_one, servers.values())):
        return "servers"
    entries = [entry for name, entry in root.items() if name != "$schema"]
    if is_asked_for:
        return "" if entries and all(isinstance(entry, dict) for entry in entries) else None
    return "" if entries and all(map(_is_one, entries)) else None


def _is_one(entry: JsonValue) -> bool:
    return isinstance(entry, dict) and any(isinstance(entry.get(key), str) for key in _ADDRESSES)


def from_codex(entry: JsonObject) -> JsonObject | str:
    """Write an entry of Codex in the words of other programs, or say what is wrong with it."""
    is_process = "command" in entry
    foreign = [key for key in (_OF_URLS if is_process else _OF_PROCESSES) if key in entry]
    if foreign:
        what = "a command" if is_process else "a url"
        return f"{foreign[0]} does not belong to a server with {what}"
    if "http_headers_helper" in entry:
        return "http_headers_helper is a program to be run for each request, which is not done here"
    literal = next((text for text in _texts(entry) if _REFERENCE.search(text)), None)
    if literal is not None:
        # Attack: a text that Codex passes on as it is, and that would be filled in with a secret here.
        return f"{shown(literal)} is plain text in Codex' list: name the variable in env_vars instead"
    made = {key: value for key, value in entry.items() if key in ("command", "args", "cwd", "url")}
    variables = entry.get("env_vars", [])
    if not isinstance(variables, list) or not all(isinstance(name, str) for name in variables):
        return f"env_vars must be a list of names (got {kind_of(variables)})"
    if is_process and (variables or "env" in entry):
        own = entry.get("env", {})
        if not isinstance(own, dict):
            return f"env must be an object (got {kind_of(own)})"
        made["env"] = {**{name: f"${{{name}}}" for name in variables}, **own}
    headers: JsonObject = {}
    for key, template in (("http_headers", "{}"), ("env_http_headers", "${{{}}}")):
        given = entry.get(key, {})
        if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
            return f"{key} must be an object of texts"
        headers |= {name: template.format(text) for name, text in given.items()}
    token = entry.get("bearer_token_env_var")
    if isinstance(token, str):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    elif token is not None:
        return f"bearer_token_env_var must be the name of a variable (got {kind_of(token)})"
    if headers:
        made["headers"] = headers
    for key, word in (
        ("tool_timeout_sec", "timeout"),
        ("enabled_tools", "enabled_tools"),
        ("disabled_tools", "disabled_tools"),
    ):
        if key in entry:
            made[word] = entry[key]
    return made


def _texts(value: JsonValue) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, (dict, list)):
            waiting += item.values() if isinstance(item, dict) else item
