"""The requirements and the tests know each other, in both directions."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests import cases
from tests.syntax import tree

HERE = Path(__file__).parent
KINDS = ("load", "lint", "select", "declare", "execute", "audit", "trust", "serve")
"""All kinds there are."""


def requirements() -> dict[str, str]:
    """Every requirement's id and kind."""
    found = {}
    for path in sorted((HERE / "requirements").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["requirement"]:
            found[entry["id"]] = entry["kind"]
    return found


def named_by_tests() -> Iterator[tuple[str, str]]:
    """Every id named by a ``pytest.mark.requirement`` or a conformance case, with who names it."""
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}: write requirement ids as literals"
                    yield str(argument.value), path.name
    for case in cases.cases():
        for name in case.requirements:
            yield name, case.origin


def test_every_requirement_of_the_built_kinds_is_named_by_a_test() -> None:
    named = {name for name, _ in named_by_tests()}
    built = [name for name, kind in requirements().items() if kind in KINDS]
    missing = [name for name in built if name not in named]
    assert missing == []


def test_no_test_names_an_unknown_requirement() -> None:
    known = requirements()
    assert [(name, whom) for name, whom in named_by_tests() if name not in known] == []


def test_the_manifest_of_requirements_is_whole() -> None:
    kinds = list(requirements().values())
    assert len(kinds) == 491
    assert sum(kind in KINDS for kind in kinds) == 491
