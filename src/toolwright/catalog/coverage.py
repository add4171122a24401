"""What a lock covers of a tool: its files, how it runs wherever the folder lies, and the machine's programs.

Pure but for looking which of several files is there. Reading them, and comparing, is ``trust/pinning.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from toolwright import jsontext
from toolwright.calls import commands
from toolwright.catalog import digests
from toolwright.journal.redaction import is_secret_name, shown_url
from toolwright.model import CallJavaScript, CallMcp, RunProcess, Tool
from toolwright.trust.lock import ANCHOR, Watched, ordered


def watched(
    tool: Tool,
    *,
    base: str,
    home: str,
    item: Callable[[str], str | None],
    defined: Callable[[str], str | None],
) -> Watched:
    """What a lock in ``base`` looks at for a tool. ``defined`` knows MCP servers by their digests."""
    invocation = tool.invocation
    pinned, folders = digests.pinned_files(tool, item)
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
        files=pinned,
        folders=folders,
        programs=tuple(dict.fromkeys(name for name in programs if name and "/" not in name)),
        started=started,
        source=source,
    )


def _started(definition: Mapping[str, Any], folder: str, base: str) -> tuple[str, tuple[str, ...]]:
    """The program that starts a server, and the files below the lock's folder that it is handed."""
    told = definition.get("command")
    words = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    more = definition.get("args")
    words = [word for word in (*words, *(more if isinstance(more, list) else ())) if isinstance(word, str)]
    cwd = definition.get("cwd")
    place = os.path.join(folder, cwd.replace("{project_path}", folder) if isinstance(cwd, str) else "")
    paths = (os.path.normpath(os.path.join(place, word.replace("{project_path}", folder))) for word in words)
    found = tuple(path for path in paths if path.startswith(f"{base}/") and os.path.isfile(path))
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
