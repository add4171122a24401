"""Signed tools in a place that is not theirs: what ``check`` and ``verify`` tell of them. Pure.

A signature covers what is in a file, and neither its name nor its age. Where the text says its category or
its id, the format compares these with the path; a text that says nothing of its name is known by its copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from toolcrib.model import Problem, Role, Severity, Tool, Vetted
from toolcrib.trust import signing

PLACE_CODES: Final = ("rye.yaml.category-path", "rye.yaml.tool-id-match", "trust.copied")
"""Problems that say that a file is not where its text belongs."""


def older(tools: Iterable[tuple[Tool, Vetted | None]]) -> Iterator[Problem]:
    """What is told of tools that are older than what ran here, by what is known of them."""
    for tool, vetted in tools:
        if vetted is not None:
            yield Problem(
                code="trust.older",
                message=vetted.message.replace("\n  Found: ", ": "),
                path=vetted.blocked_by or tool.origin.path,
                name=tool.name,
                hint=vetted.hint,
            )


def copies(texts: Iterable[tuple[Tool, bytes]]) -> Iterator[Problem]:
    """What is told of tools whose signed text is that of a tool with another name."""
    groups: dict[tuple[str, str], list[Tool]] = {}
    for tool, content in texts:
        path = tool.origin.path
        line = signing.read_line(content.decode("utf-8", "replace"), "." + path.rpartition(".")[2])
        if line is not None and tool.role is Role.TOOL:
            groups.setdefault((line.key, line.digest), []).append(tool)
    for group in groups.values():
        for tool in group:
            others = sorted({other.name for other in group} - {tool.name})
            if others:
                yield Problem(
                    code="trust.copied",
                    severity=Severity.WARNING,
                    message=f"{tool.name} has the signed text of {', '.join(others)}; "
                    "no signature covers a name",
                    path=tool.origin.path,
                    name=tool.name,
                    hint="remove the copy, or give it a text of its own and sign it",
                )
