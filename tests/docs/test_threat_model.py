"""Each claim of the threat model has a test that exists, and no case of the security battery is forgotten."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from functools import cache
from pathlib import Path

import toolcrib
from tests.conftest import shared
from tests.syntax import tree

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "threat-model.md"
TESTS = ROOT / "tests"
HEADING = "| threat | what is done | shown by |"
LINK = re.compile(r"\[`(test_[a-z0-9_]+)`\]\(\.\./(tests/[a-z0-9_/]+\.py)\)")
ATTACKERS = 9


def section(heading: str) -> str:
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert found, heading
    return found.group(1)


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def claims() -> list[list[str]]:
    """The rows of all tables of claims, the heading rows not among them."""
    parts = PAGE.read_text(encoding="utf-8").split(HEADING)[1:]
    return [row for part in parts for row in rows(HEADING + part.partition("\n\n")[0])]


@cache
def names_in(path: Path) -> frozenset[str]:
    found = (node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


def test_every_claim_is_linked_to_tests_that_exist() -> None:
    found = claims()
    assert len(found) > 60
    for threat, does, *shown in found:
        assert len(shown) == 1, threat
        assert does, threat
        links = LINK.findall(shown[0])
        assert links, f"{threat}: no test"
        assert LINK.sub("", shown[0]).strip(", ") == "", f"{threat}: something else than links"
        for name, path in links:
            assert (ROOT / path).exists(), path
            assert name in names_in(ROOT / path), f"{path}::{name}"


def test_every_attacker_in_scope_has_a_table() -> None:
    attackers = [row[0] for row in rows(section("Scope")) if not row[2].startswith("no")]
    assert len(attackers) == ATTACKERS
    for attacker in attackers:
        assert HEADING in section(attacker[0].upper() + attacker[1:]), attacker


def named_by_tests() -> set[str]:
    """The ids of the battery that tests bear, in code and in the files of conformance cases."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.battery":
                found |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    for path in TESTS.joinpath("conformance").rglob("*.toml"):
        for case in tomllib.loads(path.read_text(encoding="utf-8")).get("case", []):
            found |= set(case.get("battery", ()))
    return found


def test_every_case_of_the_battery_is_borne_by_a_test_or_listed_with_the_reason() -> None:
    document = json.loads((shared("security") / "battery.json").read_text(encoding="utf-8"))
    cases = {case["id"] for case in (document if isinstance(document, list) else document["cases"])}
    listed: list[str] = []
    for ids, why in rows(section("Cases without a test")):
        assert why, ids
        listed += ids.split(", ")
    assert len(listed) == len(set(listed))
    named = named_by_tests()
    assert named <= cases, named - cases
    assert set(listed) == cases - named


def test_every_room_that_names_an_attack_is_listed() -> None:
    source = Path(toolcrib.__file__).parent
    told = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if "Attack:" in path.read_text("utf-8")
    }
    assert {row[0].strip("`") for row in rows(section("Where the code says so"))} - {"src/native"} == told
