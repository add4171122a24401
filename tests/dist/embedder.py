"""A program that uses the installed library: it runs, and mypy --strict accepts it."""

from __future__ import annotations

import sys
from typing import assert_type

import toolcrib


@toolcrib.tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def describe(tool: toolcrib.Tool) -> str:
    return f"{tool.key}: {tool.description}"


def explain(problem: toolcrib.Problem) -> str:
    return f"{problem.code}: {problem.message}" if problem.severity is toolcrib.Severity.ERROR else ""


def main(folder: str) -> str:
    assert_type(add(1, b=2), int)
    with toolcrib.open(folder, tools=[add]) as crib:
        assert_type(crib, toolcrib.Crib)
        lines = [explain(problem) for problem in crib.problems]
        lines += [describe(tool) for tool in crib.tools]
        result = crib.call("add", {"a": 2})
        assert_type(result, toolcrib.ToolResult)
        if result.error is not None:
            assert_type(result.error, toolcrib.ToolError)
            raise SystemExit(f"{result.error.message} ({result.error.hint})")
        lines += [block.text for block in result.blocks if isinstance(block, toolcrib.TextBlock)]
        return "\n".join(lines)


if __name__ == "__main__":
    print(main(sys.argv[1]))  # noqa: T201 - it is a program
