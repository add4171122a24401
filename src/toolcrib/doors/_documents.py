"""Records as JSON documents, the same for every door: tools, problems, choices, results.

What has been recorded or decided (approvals, explanations, audit) is in ``_accounts.py``, which has more to
import. Nothing here is written anywhere: how a document is shown is the door's business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.jsontext import JsonObject
from toolcrib.model import Choice, Declared, Problem, Schema, TextBlock, Tool, ToolResult

_LINED: Final = (
    ".json", ".yaml", ".yml", ".py", ".js", ".ts", ".mjs", ".cjs", ".sh", ".toml", ".md",
)  # fmt: skip


def shown_path(path: str) -> str:
    """Relative to the current folder where below it, else absolute."""
    here = os.getcwd()
    return os.path.relpath(path, here) if path == here or path.startswith(here.rstrip("/") + "/") else path


def problem_record(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "severity": problem.severity.value,
        "path": shown_path(problem.path),
        "pointer": None if problem.pointer is None else jsontext.pointer_text(problem.pointer),
        "line": line_of(problem),
        "message": problem.message,
        "hint": problem.hint,
    }


def line_of(problem: Problem) -> int | None:
    """The line to go to: of the place, or the first of the file where something is missing altogether."""
    return problem.line or (1 if problem.path.endswith(_LINED) else None)


def tool_row(tool: Tool) -> dict[str, Any]:
    """One line of ``list --json``."""
    return {
        "name": tool.name,
        "key": tool.key,
        "format": tool.origin.format,
        "description": tool.description,
        "version": tool.version,
        "effect": tool.effect.value,
        "effect_from": effect_source(tool),
        "trust": None,
        "path": shown_path(tool.origin.path),
        "pointer": None if tool.origin.pointer is None else jsontext.pointer_text(tool.origin.pointer),
        "role": tool.role.value,
        "deprecated": tool.notes.deprecated,
    }


def effect_source(tool: Tool) -> str:
    """Return who or what says which effect a tool has, for people."""
    source = tool.effect_from or "not stated, so it counts as change"
    declared = tool.declared_effect
    return source if declared in (None, tool.effect) else f"{source}, in place of {declared}"


def tool_record(tool: Tool) -> dict[str, Any]:
    """The whole record."""
    row = tool_row(tool)
    row["line"] = tool.origin.line
    for name in (
        "scope", "spoken", "aliases", "input_schema", "output_schema", "schema_form", "invocation", "intake",
        "reply", "needs", "selection", "retry", "chain", "notes",
    ):  # fmt: skip
        row[name] = plain(getattr(tool, name))
    row["spoken"] = tool.spoken or tool.name
    return row


def plain(value: Any) -> Any:
    """A frozen value as JSON; variants of one idea carry their name as ``kind``."""
    if isinstance(value, Schema):
        return value.document
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return jsontext.loads_own(value)
    if isinstance(value, Struct):
        return {
            "kind": _snake(type(value).__name__),
            **{name: plain(getattr(value, name)) for name in value.__struct_fields__},
        }
    if isinstance(value, (tuple, list, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def choice_row(choice: Choice) -> JsonObject:
    return {"name": choice.name, "key": choice.key, "score": choice.score, "because": choice.because}


def losses_of(declared: Declared) -> list[dict[str, str]]:
    return [
        *(
            {
                "tool": loss.tool,
                "pointer": jsontext.pointer_text(loss.pointer),
                "keyword": loss.keyword,
                "what": loss.what,
            }
            for loss in declared.losses
        ),
        *(
            {"tool": left.tool, "pointer": "", "keyword": "", "what": f"left out: {left.because}"}
            for left in declared.left_out
        ),
    ]


def result_document(result: ToolResult) -> JsonObject:
    """The result document."""
    error = result.error
    return {
        "call_id": result.call_id,
        "key": result.key,
        "ok": result.ok,
        "content": "\n".join([result.content, *result.advice]),
        "blocks": [plain(block) for block in result.blocks if not isinstance(block, TextBlock)],
        "data": result.data,
        "error": None
        if error is None
        else {
            "kind": error.kind.value,
            "message": error.message,
            "hint": error.hint,
            "details": error.details,
        },
        "spent": {
            "duration_ms": result.spent.duration_ms,
            "output_bytes": result.spent.output_bytes,
            "truncated": result.spent.truncated,
        },
        "isolation": list(result.isolation),
        "notes": list(result.notes),
    }
