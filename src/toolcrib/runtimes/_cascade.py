"""Configuration files that a tool asks for: ``.ai/config`` of the project, the user and the system.

A request names one path below ``.ai/config``; each tier may have that file. ``deep_merge`` lays them over
each other, the project's on top; ``first_match`` takes the topmost. A file that cannot be read or understood
stops the call by name: a tool must never run with half of its configuration.

Nothing here knows tools, and no file outside a tier's folder is ever read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from posixpath import normpath
from types import ModuleType
from typing import Final, TypeAlias

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Trust, Vetted
from toolcrib.paths import is_below

VetConfig: TypeAlias = Callable[[str, bytes, str], Vetted]
"""What is known about the bytes of a configuration file, by its path, its content and its address."""
FIRST_MATCH: Final = "first_match"
_EXTENDS: Final = "extends"
_KEYS: Final = "keys"
_YAML: Final = (".yaml", ".yml")
_JSON: Final = ".json"


class Tier(Struct, frozen=True, kw_only=True):
    """One ``.ai/config`` folder. ``within``: where it, its links followed, must lie."""

    name: str
    folder: str
    within: str | None = None


def _yaml() -> ModuleType:
    """YAML is slow to import, and few tools ask for configuration."""
    return import_module("toolcrib.formats._yaml")


class Broken(Exception):
    """A file that is there and cannot be used; the text says which and why."""


class Tampered(Broken):
    """A signed file whose content is not what was signed."""


def resolve(
    requests: JsonValue,
    tiers: Sequence[Tier],
    hidden: Sequence[str] = (),
    vet: VetConfig | None = None,
    is_left_alone: Callable[[str], bool] = lambda _path: False,
) -> JsonValue:
    """The content for one request, or for a list of them a mapping by path. ``tiers``: topmost first.
    ``is_left_alone``: whether a file counts as one that is not there."""
    reading = _Reading(tiers, hidden, vet, is_left_alone)
    if isinstance(requests, list):
        return {
            request["path"]: reading.one(request)
            for request in requests
            if isinstance(request, dict) and isinstance(request.get("path"), str)
        }
    return reading.one(requests) if isinstance(requests, dict) else {}


class _Reading:
    def __init__(
        self,
        tiers: Sequence[Tier],
        hidden: Sequence[str],
        vet: VetConfig | None,
        is_left_alone: Callable[[str], bool],
    ) -> None:
        self.tiers = tiers
        self.hidden = hidden
        self.vet = vet
        self.is_left_alone = is_left_alone

    def one(self, request: JsonObject) -> JsonValue:
        return _one(request, self.tiers, self.read)

    def read(self, tier: Tier, path: str) -> JsonValue:
        found = _content(tier, path, self.hidden, self.is_left_alone)
        if found is None:
            return _MISSING
        real, content = found
        if self.vet is not None:
            vetted = self.vet(real, content, f"config:{path.rpartition('.')[0]}")
            # Attack: a signed configuration that somebody changed. Unsigned ones are everybody's to write.
            if vetted.trust is Trust.TAMPERED and not vetted.waived:
                raise Tampered(vetted.message)
        return _parsed(content, tier, path)


def _one(request: JsonObject, tiers: Sequence[Tier], read: Callable[[Tier, str], JsonValue]) -> JsonValue:
    path = request.get("path")
    if not isinstance(path, str) or not path:
        raise Broken("a request for configuration has no path")
    if request.get("mode") == FIRST_MATCH:
        for tier in tiers:
            found = read(tier, path)
            if found is not _MISSING:
                return {} if found is None else found
        return {}
    merged: JsonObject = {}
    for tier in reversed(tiers):
        layer = read(tier, path)
        if layer is _MISSING or layer is None:
            continue
        if not isinstance(layer, dict):
            raise Broken(f"{_shown(tier, path)}: must be a mapping to be merged")
        merged = _over(merged, {key: value for key, value in layer.items() if key != _EXTENDS})
    return merged


def _over(below: JsonObject, above: JsonObject) -> JsonObject:
    """Mappings member by member, everything else replaced."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _over(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


# -- one file -----------------------------------------------------------------------------------------------

_MISSING: Final = object()


def _content(
    tier: Tier, path: str, hidden: Sequence[str], is_left_alone: Callable[[str], bool]
) -> tuple[str, bytes] | None:
    """The real path and the bytes of one file; None where there is none."""
    slashed = path.replace("\\", "/")
    below = normpath(slashed)
    if slashed.startswith("/") or below.split("/")[0] == ".." or ":" in slashed or "\0" in slashed:
        raise Broken(f"{path}: leaves .ai/config")
    wanted = os.path.join(tier.folder, below)
    if not os.path.lexists(wanted) or is_left_alone(wanted):
        return None
    root, real = os.path.realpath(tier.folder), os.path.realpath(wanted)
    # Attack: a link in a cloned project, of the file or of a folder above it, that leads to the user's files,
    # which would be read with our rights and handed to the tool.
    if not is_below(real, (root,)) or (tier.within is not None and not is_below(root, (tier.within,))):
        raise Broken(f"Symlink escape: {_shown(tier, path)}")
    # Attack: a request for the keys that lie beside the configuration, or for what is hidden from every tool.
    if is_below(real, (os.path.join(root, _KEYS), *hidden)):
        raise Broken(f"{_shown(tier, path)}: keys are no configuration")
    content, unreadable = files.read(real, within=real)  # attack: a link that is put there by now
    if content is None:
        raise Broken(f"{_shown(tier, path)}: cannot be read: {unreadable}")
    return real, content


def _parsed(content: bytes, tier: Tier, path: str) -> JsonValue:
    if path.endswith(_YAML):
        parsed = _yaml().read(content)
        kind = "YAML"
    elif path.endswith(_JSON):
        parsed = jsontext.read(_without_comments(content), values_max=_yaml().NODES_MAX)
        kind = "JSON"
    else:
        raise Broken(f"{_shown(tier, path)}: only .yaml, .yml and .json files are configuration")
    if parsed.defect is not None:
        raise Broken(f"{_shown(tier, path)}: not {kind}: {parsed.defect}")
    for repeated in parsed.duplicates:
        raise Broken(f'{_shown(tier, path)}: duplicate key "{repeated.key}" in line {repeated.line}')
    return parsed.value


def _without_comments(content: bytes) -> bytes:
    """JSON without the signature and other comment lines at its head; their lines stay, as blanks."""
    lines = content.split(b"\n")
    for number, line in enumerate(lines):
        if not line.startswith(b"#"):
            break
        lines[number] = b""
    return b"\n".join(lines)


def _shown(tier: Tier, path: str) -> str:
    return f"configuration {path} of the {tier.name}"
