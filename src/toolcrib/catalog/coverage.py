"""What a lock covers of a tool: its files, how it runs wherever the folder lies, and the machine's programs.

Pure but for looking which of several files is there. Reading them, and comparing, is ``trust/pinning.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import asdict

from toolcrib import jsontext
from toolcrib.calls import commands
from toolcrib.catalog import digests
from toolcrib.journal.redaction import is_secret_name, shown_url
from toolcrib.model import CallJavaScript, CallMcp, CallPython, PythonStyle, RunProcess, Tool
from toolcrib.paths import is_below
from toolcrib.trust.lock import ANCHOR, Watched, ordered

_CODE: Final = (".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".rb", ".pl", ".php", ".jar")


def watched(
    tool: Tool,
    *,
    base: str,
    home: str,
    defined: Callable[[str], str | None],
) -> Watched:
    """What a lock in ``base`` looks at for a tool. ``defined`` knows MCP servers by their digests."""
    invocation = tool.invocation
    near = (base, home, os.path.dirname(tool.origin.path))
    foreign = tuple(path for path in digests.own_files(tool) if not is_below(path, near))
    pinned, folders = digests.pinned_files(tool)
    source, programs, started = "", list[str](), tuple[str, ...]()
    parts = {key: digests.plain(value) for key, value in asdict(invocation).items()}
    if "settings" in parts:
        parts["settings"] = jsontext.loads_own(str(parts["settings"]).encode("utf-8"))
    match invocation:
        case RunProcess(program=program, allowlist=allowlist):
            programs = [program, *(binary for binary, _ in allowlist or ())]
            started = (program,) if program.startswith("/") else ()
            if any(commands.resolver_scripts(invocation)):
                programs.append("sh")
        case CallJavaScript():
            programs = ["node"]
        case CallMcp(settings=settings):
            if tool.key.endswith("/"):  # the server itself, whichever of its tools is called
                parts["tool"] = ""
            named = jsontext.loads_own(settings)
            assert isinstance(named, dict)
            text = defined(str(named.get("definition", "")))
            if text is not None:
                server = _without_secrets(jsontext.loads_own(text.encode("utf-8")))
                parts["settings"] = server
                source = f"mcp server {server['name']}"
                command, scripts = _started(server["definition"], os.path.dirname(tool.origin.path), base)
            else:
                held = named.get("server")
                project = tool.origin.path.partition("/.ai/tools/")[0]
                command, scripts = _started(held if isinstance(held, dict) else {}, project, base)
            programs, pinned = [command], tuple(dict.fromkeys((*pinned, *scripts)))
    kind: jsontext.JsonObject = {"kind": type(invocation).__name__, **parts}
    return Watched(
        how=digests.how(invocation),
        placed=jsontext.digest(_placed(kind, ((base, ANCHOR), (home, f"{ANCHOR}~")))),
        seen=digests.seen(tool),
        shown=ordered(digests.shown(tool)),
        own=digests.own_files(tool),
        files=tuple(path for path in pinned if path not in foreign),
        folders=folders,
        programs=tuple(dict.fromkeys((*(name for name in programs if name and "/" not in name), *foreign))),
        started=started,
        imports_above=isinstance(invocation, CallPython) and invocation.style is PythonStyle.HANDLER,
        source=source,
    )


def _is_code(path: str) -> bool:
    return os.path.isfile(path) and (path.endswith(_CODE) or os.access(path, os.X_OK))


def _started(definition: Mapping[str, Any], folder: str, base: str) -> tuple[str, tuple[str, ...]]:
    """The program that starts a server, and the code below the lock's folder that it is handed. What else it
    is handed may be data, which changes."""
    told = definition.get("command")
    words = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    more = definition.get("args")
    words = [word for word in (*words, *(more if isinstance(more, list) else ())) if isinstance(word, str)]
    cwd = definition.get("cwd")
    place = os.path.join(folder, cwd.replace("{project_path}", folder) if isinstance(cwd, str) else "")
    paths = (os.path.normpath(os.path.join(place, word.replace("{project_path}", folder))) for word in words)
    found = tuple(path for path in paths if is_below(path, (base,)) and _is_code(path))
    return words[0] if words else "", found


def _placed(value: jsontext.JsonValue, roots: tuple[tuple[str, str], ...]) -> jsontext.JsonValue:
    """A value without the places where folders lie on this machine."""
    if isinstance(value, dict):
        return {key: _placed(part, roots) for key, part in value.items()}
    if isinstance(value, list):
        return [_placed(part, roots) for part in value]
    if isinstance(value, str):
        for folder, mark in roots:
            if value == folder or value.startswith(f"{folder}/"):
                return mark + value[len(folder) :]
    return value


def _without_secrets(server: Any) -> Any:
    """A server's definition as a lock covers it. Attack: a secret that is written out in a definition, and is
    guessed from the digest that gets committed."""
    definition = dict(server["definition"])
    for part in ("env", "headers"):
        held = definition.get(part)
        if isinstance(held, dict):
            definition[part] = {
                name: text if _is_reference(text) or not is_secret_name(name.replace("-", "_")) else None
                for name, text in held.items()
            }
    if isinstance(definition.get("url"), str):
        definition["url"] = shown_url(definition["url"])
    return {**server, "definition": definition}


def _is_reference(text: object) -> bool:
    return isinstance(text, str) and "${" in text
