"""How an MCP server is reached: a definition as its author wrote it, with the values that are filled in.

Pure but for one look whether a value is a folder. ``_mcp_server.py`` keeps the connection to what is defined
here; nothing here connects, starts or decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.journal.redaction import is_secret_name, url_secrets
from toolcrib.jsontext import JsonValue
from toolcrib.model import BASE_ENV, TIMEOUT_S_MAX, CallMcp, Permit, Tool

TWO_ENDPOINTS: Final = "it speaks the old transport with two endpoints (sse), which this version does not"
TWO_ENDPOINTS_HINT: Final = (
    'name its Streamable HTTP address (type "http"; often the same host with /mcp instead of /sse), or a '
    "newer release of the server"
)

_TELLING_CHARS_MIN: Final = 8
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Definition(Struct, frozen=True, kw_only=True):
    """How a server is reached. Values with ``${NAME}`` are filled in when it is."""

    name: str
    key: str = ""
    """The key that stands for the server in grants and rules; empty: it runs as the tool that calls it."""
    command: tuple[str, ...] = ()
    url: str = ""
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    timeout_s: float | None = None
    vaulted: bool = False
    """A configuration that counts wrote it: its names may mean secrets of the vault."""


@lru_cache(maxsize=1024)
def reference(settings: bytes) -> tuple[str, str]:
    """The key and the digest by which settings refer to a server; empty where they hold the definition."""
    held = jsontext.loads_own(settings)
    assert isinstance(held, dict)
    return str(held.get("key", "")), str(held.get("definition", ""))


@lru_cache(maxsize=1024)
def definition_of(name: str, key: str, text: bytes) -> Definition | str:
    """A definition as its author wrote it, or what is wrong with it."""
    held = jsontext.loads_own(text)
    given = held.get("definition" if key else "server") if isinstance(held, dict) else None
    if not isinstance(given, dict):
        return "it has no definition"
    command, url = given.get("command"), given.get("url")
    argv = [command] if isinstance(command, str) else command if isinstance(command, list) else []
    argv = [*argv, *_texts(given.get("args"))]
    if not url and not (argv and all(isinstance(part, str) and part for part in argv[:1])):
        return "it has neither a url nor a command"
    if given.get("transport", given.get("type")) == "sse":
        return TWO_ENDPOINTS
    timeout = given.get("timeout")
    return Definition(
        name=name,
        key=key,
        command=tuple(map(str, argv)) if not url else (),
        url=url if isinstance(url, str) else "",
        env=_pairs(given.get("env")),
        headers=_pairs(given.get("headers")),
        cwd=given["cwd"] if isinstance(given.get("cwd"), str) else "",
        timeout_s=float(min(timeout, TIMEOUT_S_MAX))
        if isinstance(timeout, (int, float)) and timeout > 0
        else None,
        vaulted=bool(key) and held.get("vaulted") is True,
    )


@lru_cache(maxsize=1024)
def placed(definition: Definition, project: str, user_space: str) -> Definition:
    """A definition of a tool's own file: it stands in its project, and its texts may name places."""

    def put_in(text: str) -> str:
        return text.replace("{project_path}", project).replace("{user_space}", user_space)

    return replace(
        definition,
        command=tuple(map(put_in, definition.command)),
        url=put_in(definition.url),
        env=tuple((name, put_in(text)) for name, text in definition.env),
        headers=tuple((name, put_in(text)) for name, text in definition.headers),
        cwd=os.path.join(project, put_in(definition.cwd)),
    )


def _texts(value: JsonValue) -> Iterator[str]:
    for item in value if isinstance(value, list) else ():
        yield item if isinstance(item, str) else jsontext.compact(item).decode("utf-8")


def _pairs(value: JsonValue) -> tuple[tuple[str, str], ...]:
    """Names with their values, or names alone, whose values are the host's own."""
    if isinstance(value, dict):
        return tuple((name, text) for name, text in zip(value, _texts([*value.values()]), strict=True))
    return tuple((name, f"${{{name}}}") for name in _texts(value))


def reference_of(tool: Tool) -> str:
    assert isinstance(tool.invocation, CallMcp)
    return reference(tool.invocation.settings)[1]


class Unset(Exception):
    """A value that may not be filled in, or is not there."""


def filled(text: str, variables: Mapping[str, str], allowed: Callable[[str], bool]) -> str:
    """A text with its ``${NAME}`` filled in. Attack: a definition that sends any variable of the host
    anywhere: only names that were granted have values here."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if allowed(name) and variables.get(name):
            return variables[name]
        if default is not None:
            return default
        raise Unset(name)

    return _VARIABLE.sub(value, text)


def handed(definition: Definition, variables: Mapping[str, str], permit: Permit) -> dict[str, str]:
    """The values that a server is handed and nobody else is to learn, by their names."""
    names = {*referred(definition), *permit.env}
    if "*" in permit.env:
        names |= {name for name in variables if is_secret_name(name)}
    found = {
        name: variables[name]
        for name in sorted(names)
        if variables.get(name) and (is_secret_name(name) or not _is_base(name))
    }
    written = {name: text for name, text in definition.env if is_secret_name(name)}
    for name, text in definition.headers:
        if is_secret_name(name.replace("-", "_")) or name.lower() in ("authorization", "cookie"):
            written[name] = text.rpartition(" ")[2]
    for number, text in enumerate(url_secrets(definition.url)):
        written[f"url {number}"] = text
    return {**{name: text for name, text in written.items() if not _VARIABLE.search(text)}, **found}


def _is_base(name: str) -> bool:
    return any(name == known or (known[-1] == "*" and name.startswith(known[:-1])) for known in BASE_ENV)


def referred(definition: Definition) -> dict[str, None]:
    """The variables that a definition refers to."""
    texts = (*definition.command, definition.url, definition.cwd)
    named = (text for _, text in (*definition.env, *definition.headers))
    return dict.fromkeys(match[1] for text in (*texts, *named) for match in _VARIABLE.finditer(text))


def told_openly(definition: Definition, vault: Mapping[str, str]) -> str | None:
    """The first secret of a vault that a definition would put on a command line, where every process of the
    machine sees it."""
    for text in (*definition.command, definition.cwd):
        for match in _VARIABLE.finditer(text):
            if match[1] in vault:
                return match[1]
    return None


def is_telling(name: str, value: str) -> bool:
    """Whether a value is taken out of answers, too: a region or a folder is what a call may be about."""
    is_place = os.path.isabs(value) and os.path.exists(value)
    return is_secret_name(name) or (len(value) >= _TELLING_CHARS_MIN and not is_place)
