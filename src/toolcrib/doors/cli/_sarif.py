"""Problems as SARIF 2.1.0, the form that code hosts and editors read. Nothing here writes files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from toolcrib import __version__
from toolcrib.doors._documents import line_of, shown_path
from toolcrib.model import Problem, Severity

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def document(problems: Sequence[Problem]) -> dict[str, Any]:
    codes = sorted({problem.code for problem in problems})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "toolcrib",
                        "version": __version__,
                        "rules": [{"id": code} for code in codes],
                    }
                },
                "results": [_result(problem, codes) for problem in problems],
            }
        ],
    }


def _result(problem: Problem, codes: list[str]) -> dict[str, Any]:
    text = problem.message + (f"\n{problem.hint}" if problem.hint else "")
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(problem.path)}}
    line = line_of(problem)
    if line is not None:
        place["region"] = {"startLine": line}
    return {
        "ruleId": problem.code,
        "ruleIndex": codes.index(problem.code),
        "level": _LEVELS[problem.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }


def _uri(path: str) -> str:
    shown = shown_path(path)
    return ("file://" if os.path.isabs(shown) else "") + quote(shown)
