"""What a server offers besides tools: texts to read (resources) and texts to begin with (prompts).

Every skill is both. A host may offer more of its own. This module knows no protocol, remembers nothing and
reads nothing itself: what of a skill a caller may read is ``own/skills.py``'s business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from msgspec import Struct

from toolcrib.app import Crib
from toolcrib.doors import _reach
from toolcrib.model import Block, Guest, Reach, Skill, TextBlock
from toolcrib.own.skills import SkillText
from toolcrib.runtimes.around import RESULT_URI

SKILL_TEMPLATE: Final = "skill://{name}/SKILL.md"
REQUEST: Final = "request"
"""The one argument of a skill's prompt."""
SAID_CHARS_MAX: Final = 64 << 10
"""Of one argument of a prompt."""
PART_BYTES: Final = 32 << 10
"""Of a kept result, in one answer."""
_OFFSET_DIGITS_MAX: Final = 13
_MARK: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Absent(Exception):
    """There is nothing of that name, or nothing that this caller may know of."""


class Withheld(Exception):
    """It is there and is not handed out; the text says why, for people and models."""


class Argument(Struct, frozen=True, kw_only=True):
    """What a prompt may be told."""

    name: str
    description: str = ""
    required: bool = False


Read: TypeAlias = Callable[[Mapping[str, str]], str | bytes]
"""A resource's content; what stood at the marks of its address is handed over. Raises Withheld."""
Begin: TypeAlias = Callable[[Mapping[str, str]], Sequence[Block]]
"""What the user says, by what the prompt was told. Raises Withheld."""


class Resource(Struct, frozen=True, kw_only=True):
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


class Prompt(Struct, frozen=True, kw_only=True):
    """Something to begin with."""

    name: str
    begin: Begin
    description: str = ""
    arguments: tuple[Argument, ...] = ()


class Offers(Struct, frozen=True, kw_only=True):
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


def offers(crib: Crib, more: Offers, *, caller: str, reach: Reach | None) -> Offers:
    """The skills that a caller may know of, and what the host offers to everybody."""

    def read(name: str) -> SkillText:
        found = crib.skill_texts(caller=caller, reach=reach, only=name)
        if not found:
            raise Absent(name)
        if found[0].withheld:
            raise Withheld(f"{name}: {found[0].withheld}")
        return found[0]

    skills = crib.known_skills(reach)
    if not skills:
        return more
    template = Resource(
        uri=SKILL_TEMPLATE,
        name="skill",
        description="The instructions of a skill, by its name.",
        media_type="text/markdown",
        read=lambda marks: read(marks["name"]).whole,
    )
    resources = [_as_resource(skill, read) for skill in skills]
    return Offers(
        resources=(*resources, template, *more.resources),
        prompts=(*(_as_prompt(skill, read) for skill in skills), *more.prompts),
    )


def kept_results(crib: Crib, guest: Guest) -> tuple[Resource, ...]:
    """Return the resources that the link in a cut result leads to, for the caller that made the call. Without
    an offset it is the beginning."""

    def read(marks: Mapping[str, str]) -> str:
        call_id, offset = marks["call_id"], marks.get("offset", "0")
        if not (offset.isascii() and offset.isdigit() and len(offset) <= _OFFSET_DIGITS_MAX):
            raise Absent(call_id)
        part = _reach.result_part(crib, guest, call_id, int(offset), PART_BYTES)
        if part is None:
            raise Absent(call_id)
        following = part["next_offset"]
        if following is None:
            return str(part["text"])
        uri = RESULT_URI.format(call_id=call_id, offset=following)
        return (
            f"{part['text']}\n… cut: {following} of {part['bytes']} bytes so far. Read on: the resource {uri}"
        )

    places = (RESULT_URI, RESULT_URI.partition("?")[0])
    return tuple(Resource(uri=place, name="result", read=read) for place in places)


def _as_resource(skill: Skill, read: Callable[[str], SkillText]) -> Resource:
    return Resource(
        uri=SKILL_TEMPLATE.replace("{name}", quote(skill.name, safe="")),
        name=skill.name,
        description=skill.description,
        media_type="text/markdown",
        read=lambda marks: read(skill.name).whole,
    )


def _as_prompt(skill: Skill, read: Callable[[str], SkillText]) -> Prompt:
    def begin(told: Mapping[str, str]) -> Sequence[Block]:
        text, wanted = read(skill.name).text.strip(), told.get(REQUEST, "").strip()
        return [TextBlock(text=f"{text}\n\n{wanted}" if wanted else text)]

    return Prompt(
        name=skill.name,
        description=skill.description,
        arguments=(Argument(name=REQUEST, description="What to do by these instructions."),),
        begin=begin,
    )
