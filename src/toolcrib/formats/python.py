"""The python format: a function of the host's own, described by what was read off it.

Here facts about a function become a record, and what a model will miss becomes a problem. Nothing here sees a
live function: ``toolcrib.functions`` reads signature, annotations and docstring, and hands over the facts.
It is no format of files, so ``formats.FORMATS`` does not list it: nothing on a disk is ever read as one.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from toolcrib.formats._node import key_of, shown
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    CallFunction,
    Compiled,
    Effect,
    Needs,
    Notes,
    Origin,
    Problem,
    Reply,
    Schema,
    Severity,
    Tool,
)
from toolcrib.schema import complaints

NAME: Final = "python"


class Facts(Struct, frozen=True, kw_only=True):
    """What was read off one function."""

    name: str
    scope: str
    target: str
    """Where the runtime finds it: unique in a crib."""
    code: str = ""
    """The digest of its code."""
    path: str
    line: int | None = None
    description: str = ""
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    untyped: tuple[str, ...] = ()
    """Parameters without an annotation."""
    effect: Effect | None = None
    timeout_s: float | None = None
    version: str | None = None
    tags: tuple[str, ...] = ()
    idempotent: bool = False
    examples: tuple[JsonObject, ...] = ()


def compile_function(facts: Facts) -> Compiled:
    """The function as a tool, and what should be said about it."""
    input_schema = Schema.of(facts.input_schema)
    documentation: JsonValue = {"examples": list(facts.examples)} if facts.examples else None
    tool = Tool(
        key=key_of(NAME, facts.scope, facts.name),
        name=facts.name,
        scope=facts.scope,
        description=facts.description,
        input_schema=input_schema,
        output_schema=Schema.of(facts.output_schema) if facts.output_schema is not None else None,
        version=facts.version,
        invocation=CallFunction(name=facts.target, code=facts.code),
        reply=Reply.BLOCKS,
        # It runs as the host itself, so there is nothing to grant and no profile to speak of.
        needs=Needs(stated=True, timeout_s=facts.timeout_s),
        effect=facts.effect or Effect.CHANGE,
        effect_from="effect= of the function" if facts.effect is not None else "",
        notes=Notes(
            tags=facts.tags,
            documentation=documentation,
            metadata={"idempotent": True} if facts.idempotent else None,
        ),
        origin=Origin(format=NAME, path=facts.path, line=facts.line),
    )
    return Compiled(tools=(tool,), problems=tuple(_problems(facts, input_schema)))


def _problems(facts: Facts, input_schema: Schema) -> list[Problem]:
    found = []
    if not facts.description.strip():
        found.append(
            _warning(
                facts,
                "python.description",
                "has no description",
                "give it a docstring, or `description=` (kept by `python -OO`); models choose by it",
            )
        )
    found += [
        _warning(
            facts,
            "python.untyped",
            f"parameter {shown(name)} has no annotation, so anything is accepted for it",
            "annotate it; the schema that models see comes from there",
        )
        for name in facts.untyped
    ]
    for number, example in enumerate(facts.examples):
        wrong = complaints(input_schema, example)
        if wrong:
            found.append(
                _warning(
                    facts,
                    "python.example",
                    f"examples[{number}] does not fit the function's own schema: {wrong[0]}",
                    "mend the example: models imitate it",
                )
            )
    return found


def _warning(facts: Facts, code: str, what: str, hint: str) -> Problem:
    return Problem(
        code=code,
        severity=Severity.WARNING,
        message=f'"{facts.name}" {what}',
        path=facts.path,
        line=facts.line,
        name=facts.name,
        hint=hint,
    )
