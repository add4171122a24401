"""The instructions of skills: their SKILL.md, for a model that asks (``read_skill``) or for its prompt.

What a skill's tools are refused for (a file that is not as it was locked, a rule, a reach that ends before
them) keeps its instructions back, too. The record of ``read_skill`` is made in ``formats/skill.py``; nothing
here declares, decides or runs anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from toolcrib.calls import replies
from toolcrib.catalog import files
from toolcrib.catalog.catalog import Catalog, is_within
from toolcrib.errors import nearest
from toolcrib.formats import skill as format
from toolcrib.formats._node import key_of
from toolcrib.gate import Gate
from toolcrib.model import READING, Deny, Effect, End, Ending, Reach, Skill, Tool, ToolCall, Trust

TEXT_BYTES_MAX: Final = 1 << 20
"""Of one SKILL.md."""
PROMPT_CHARS_MAX: Final = 256 << 10
"""Of all instructions together; skills that find no room are named."""
_CHANGED: Final = "it changed while it was read"


class SkillText(Struct, frozen=True, kw_only=True):
    """One skill with its instructions, or why they are withheld."""

    name: str
    description: str = ""
    text: str = ""
    """Without the front matter."""
    whole: str = ""
    """With it: all of SKILL.md."""
    withheld: str = ""


class _Withheld(Exception):
    """Why instructions are not given."""


class Skills:
    """The instructions of what is loaded. Any thread may ask."""

    def __init__(self, gate: Callable[[], Gate], catalog: Callable[[], Catalog]) -> None:
        self._gate = gate
        self._catalog = catalog

    def function(self, name: str) -> Callable[[ToolCall], Ending] | None:
        """What a call of ``read_skill`` runs."""
        return self.run if name == READING else None

    def run(self, call: ToolCall) -> Ending:
        """A call of ``read_skill``; its two mistakes have the format's own texts."""
        name = (call.arguments or {}).get("skill_name")
        if name is None:
            return Ending(end=End.REFUSED, reason="missing skill_name")
        known = {each.name: each for each in self.of(call.reach)}
        found = known.get(str(name))
        if found is None:
            near = tuple(nearest(str(name), [*known]))
            return Ending(end=End.REFUSED, reason=f"unknown skill: {name}", near=near)
        try:
            return Ending(end=End.RETURNED, value=_body(self._content(found, call.caller)))
        except _Withheld as withheld:
            return Ending(end=End.DENIED, reason=str(withheld))

    def of(self, reach: Reach | None) -> list[Skill]:
        """The skills that a caller may know of: with a limited reach, those that have a tool within it, and
        those that it names themselves (``skill:NAME/*``)."""
        catalog = self._catalog()
        if reach is None:
            return list(catalog.skills)
        # Attack: a caller learns from instructions what there is beyond its reach.
        near = {tool.scope for tool in _tools(catalog) if is_within(reach, tool)}
        return [skill for skill in catalog.skills if skill.name in near or _is_named(skill, reach)]

    def texts(
        self, *, caller: str | None, reach: Reach | None, only: str | None = None
    ) -> tuple[SkillText, ...]:
        """The skills a caller may know of, or the one of this name, each with its instructions or why they
        are withheld."""
        found = (skill for skill in self.of(reach) if only is None or skill.name == only)
        return tuple(self._read(skill, caller) for skill in found)

    def prompt(self, *, caller: str | None, reach: Reach | None, on_demand: bool) -> str:
        """What a host puts into a model's context about skills; empty where there are none. ``on_demand``:
        their names and what they are for, since the model reads the rest itself."""
        found = self.of(reach)
        if not found:
            return ""
        if on_demand:
            lines = [f"- {_line(skill.name)}: {_line(skill.description)}".rstrip(": ") for skill in found]
            return "\n".join(["Skills; read_skill gives the instructions of one:", *lines])[:PROMPT_CHARS_MAX]
        parts, room, left_out = [], PROMPT_CHARS_MAX, []
        for skill in found:
            read = self._read(skill, caller)
            if read.withheld:
                continue
            part = f"# Skill: {_line(skill.name)}\n\n{read.text.strip()}\n"
            if len(part) <= room:
                parts.append(part)
                room -= len(part)
            else:
                left_out.append(_line(skill.name))
        if left_out:
            parts.append(f"Left out, because all together are too long: {', '.join(left_out)}"[:2000])
        return "\n".join(parts)

    def _read(self, skill: Skill, caller: str | None) -> SkillText:
        try:
            content = self._content(skill, caller)
        except _Withheld as withheld:
            return SkillText(name=skill.name, description=skill.description, withheld=str(withheld))
        return SkillText(
            name=skill.name,
            description=skill.description,
            text=replies.visible(_body(content)),
            whole=replies.visible(content.decode("utf-8", "replace")),
        )

    def _content(self, skill: Skill, caller: str | None) -> bytes:
        gate, path = self._gate(), os.path.join(skill.path, "SKILL.md")
        root = os.path.realpath(skill.path)
        # Attack: a link in a skill's folder that shows the model a file from anywhere.
        read = files.read(path, TEXT_BYTES_MAX, within=root)  # tells what is no plain file, or too long
        if read.unreadable == files.LEADS_OUT:
            raise _Withheld("SKILL.md cannot be read: it is not a file of the skill's own folder")
        held = gate.contents.file(path) if read.content is not None else None
        if held is None or held.content is None or not gate.contents.is_inside(held, root):
            raise _Withheld(f"SKILL.md cannot be read: {read.unreadable or _CHANGED}")
        refused = self._refused(skill, caller)
        if refused is not None:
            raise _Withheld(refused)
        # Attack: instructions that are as they were locked whenever the lock is asked, and others when read.
        if gate.contents.file(path) is not held or len(held.content) > TEXT_BYTES_MAX:
            raise _Withheld(f"SKILL.md cannot be read: {_CHANGED}")
        return held.content

    def _refused(self, skill: Skill, caller: str | None) -> str | None:
        """Why a caller may not read a skill: one of its tools drifted from its lock (the lock covers SKILL.md
        with each), or none of them would be offered."""
        gate, tools = self._gate(), [tool for tool in _tools(self._catalog()) if tool.scope == skill.name]
        for tool in tools:
            vetted = gate.vet(tool, None)
            if vetted.trust is Trust.DRIFTED:
                return vetted.message
        refusal = gate.refusals(caller)
        denied = [refusal(tool) for tool in tools]
        first: Deny | None = denied[0] if denied and all(denied) else None
        return None if first is None else first.message


def _body(content: bytes) -> str:
    return format.split_front_matter(content)[1].decode("utf-8", "replace")


def _tools(catalog: Catalog) -> Sequence[Tool]:
    keys = (key for key in catalog.keys if key.startswith(f"{format.NAME}:") and key != READING)
    return [catalog.find(key) for key in keys]


def _is_named(skill: Skill, reach: Reach) -> bool:
    key = key_of(format.NAME, skill.name, "SKILL.md")
    return Effect.READ in reach.effects and any(fnmatchcase(key, pattern) for pattern in reach.tools)


def _line(text: str) -> str:
    """Attack: a name or description that goes on after a line break, as if it were the host's own words."""
    return replies.visible(" ".join(text.split()))[:1000]
