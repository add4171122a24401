"""What a served workshop offers besides tools: texts to read (resources) and texts to begin with (prompts).

Every skill is both. A host may offer more of its own. This module knows no protocol and remembers nothing: a
SKILL.md is read when it is asked for, contained and bounded, and never where its skill is not as locked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from toolwright.app import Workshop
from toolwright.catalog import files
from toolwright.catalog.catalog import is_within
from toolwright.formats.skill import split_front_matter
from toolwright.model import Block, Reach, Skill, TextBlock, Tool, Trust
from toolwright.records import dataclass

SKILL_TEMPLATE: Final = "skill://{name}/SKILL.md"
SKILL_FILE: Final = "SKILL.md"
REQUEST: Final = "request"
"""The one argument of a skill's prompt."""
SAID_CHARS_MAX: Final = 64 << 10
"""Of one argument of a prompt."""
_REFUSED: Final = frozenset({Trust.UNTRUSTED, Trust.TAMPERED, Trust.DRIFTED})
_MARK: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Absent(Exception):
    """There is nothing of that name, or nothing that this caller may know of."""


class Withheld(Exception):
    """It is there and is not handed out; the text says why, for people and models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What a prompt may be told."""

    name: str
    description: str = ""
    required: bool = False


Read: TypeAlias = Callable[[Mapping[str, str]], str | bytes]
"""A resource's content; what stood at the marks of its address is handed over. Raises Withheld."""
Begin: TypeAlias = Callable[[Mapping[str, str]], Sequence[Block]]
"""What the user says, by what the prompt was told. Raises Withheld."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something to read. An address with ``{marks}`` stands for many, and is listed as a template."""

    uri: str
    name: str
    read: Read
    description: str = ""
    media_type: str = "text/plain"

    @property
    def is_template(self) -> bool:
        return _MARK.search(self.uri) is not None

    def fits(self, uri: str) -> dict[str, str] | None:
        """What stands at the marks, where an address is one of this resource's; else None."""
        parts = _MARK.split(self.uri)
        # Attack: a slash or a second address at a mark, to get at what lies elsewhere.
        pattern = "".join(
            f"(?P<{part}>[^/?#]+)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
        )
        found = re.fullmatch(pattern, uri)
        return None if found is None else {name: unquote(text) for name, text in found.groupdict().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Something to begin with."""

    name: str
    begin: Begin
    description: str = ""
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What is offered to one caller."""

    resources: tuple[Resource, ...] = ()
    prompts: tuple[Prompt, ...] = ()

    def resource(self, uri: str) -> tuple[Resource, dict[str, str]]:
        """The resource of an address, and what stood at its marks. Raises Absent."""
        for each in self.resources:
            if each.uri == uri:
                return each, {}
        for each in self.resources:
            if each.is_template and (marks := each.fits(uri)) is not None:
                return each, marks
        raise Absent(uri)

    def prompt(self, name: str) -> Prompt:
        """Raises Absent."""
        for each in self.prompts:
            if each.name == name:
                return each
        raise Absent(name)


def offers(workshop: Workshop, reach: Reach | None, more: Offers) -> Offers:
    """The skills that a caller may know of, and what the host offers to everybody."""
    skills = shown(workshop, reach)

    def by_name(marks: Mapping[str, str]) -> str:
        return read(workshop, _named(skills, marks["name"]))

    template = Resource(
        uri=SKILL_TEMPLATE,
        name="skill",
        description="The instructions of a skill, by its name.",
        media_type="text/markdown",
        read=by_name,
    )
    resources = [_as_resource(workshop, skill) for skill in skills]
    return Offers(
        resources=(*resources, *((template,) if skills else ()), *more.resources),
        prompts=(*(_as_prompt(workshop, skill) for skill in skills), *more.prompts),
    )


def skill_uri(name: str) -> str:
    return SKILL_TEMPLATE.replace("{name}", quote(name, safe=""))


def shown(workshop: Workshop, reach: Reach | None) -> list[Skill]:
    """The skills that a caller may know of: those of whose tools it may know, and those that its reach names
    themselves (``skill:NAME/*``)."""
    skills = list(workshop.skills)
    if reach is None:
        return skills
    near = {tool.scope for tool in workshop.tools if tool.origin.format == "skill" and is_within(reach, tool)}
    patterns = reach.tools
    return [
        skill
        for skill in skills
        if skill.name in near
        or any(fnmatchcase(f"skill:{skill.name}/{SKILL_FILE}", pattern) for pattern in patterns)
    ]


def read(workshop: Workshop, skill: Skill) -> str:
    """A skill's SKILL.md. Raises Absent, and Withheld where it is not as it was locked."""
    root = os.path.realpath(skill.path)
    path = os.path.join(skill.path, SKILL_FILE)
    # Attack: a link in a cloned project that makes a resource of somebody's private key.
    if not files.inside(path, root):
        raise Absent(skill.name)
    held = files.read(path)
    if held.content is None:
        raise Withheld(f"{skill.name}: its {SKILL_FILE} cannot be read: {held.unreadable}")
    for tool in _tools_of(workshop, skill):
        vetted = workshop.vet(tool)
        # Attack: instructions that are changed after somebody approved them: a lock covers them with the
        # skill's tools, and what is not as locked is told to no model.
        if vetted.trust in _REFUSED:
            raise Withheld(vetted.message or f"{skill.name}: it is {vetted.trust}")
    if files.read(path).content != held.content:
        # Attack: another text for the moment in which the lock is compared.
        raise Withheld(f"{skill.name}: its {SKILL_FILE} changes while it is read")
    return held.content.decode("utf-8", "replace")


def _tools_of(workshop: Workshop, skill: Skill) -> list[Tool]:
    return [
        tool
        for tool in workshop.tools
        if tool.origin.format == "skill" and os.path.dirname(tool.origin.path) == skill.path
    ]


def _named(skills: Sequence[Skill], name: str) -> Skill:
    for skill in skills:
        if skill.name == name:
            return skill
    raise Absent(name)


def _as_resource(workshop: Workshop, skill: Skill) -> Resource:
    def content(marks: Mapping[str, str]) -> str:
        return read(workshop, skill)

    return Resource(
        uri=skill_uri(skill.name),
        name=skill.name,
        description=skill.description,
        media_type="text/markdown",
        read=content,
    )


def _as_prompt(workshop: Workshop, skill: Skill) -> Prompt:
    def begin(told: Mapping[str, str]) -> Sequence[Block]:
        _, body = split_front_matter(read(workshop, skill).encode())
        text = body.decode("utf-8", "replace").strip()
        wanted = told.get(REQUEST, "").strip()
        return [TextBlock(text=f"{text}\n\n{wanted}" if wanted else text)]

    return Prompt(
        name=skill.name,
        description=skill.description,
        arguments=(Argument(name=REQUEST, description="What to do by these instructions."),),
        begin=begin,
    )
