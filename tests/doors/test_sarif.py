"""SARIF 2.1.0: what the standard demands of a log that code hosts read."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import unquote, urlsplit

from toolcrib import __version__
from toolcrib.doors.cli import _sarif
from toolcrib.model import Problem, Severity


def checked(*problems: Problem) -> list[dict[str, Any]]:
    """The results of the one run, after the structure around them has been checked."""
    document = _sarif.document(problems)
    assert json.loads(json.dumps(document)) == document
    assert set(document) == {"$schema", "version", "runs"}
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("toolcrib", __version__)
    rules = [rule["id"] for rule in driver["rules"]]
    assert rules == sorted(set(rules))
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"].isascii()
        assert place.get("region", {"startLine": 1})["startLine"] >= 1
    results: list[dict[str, Any]] = run["results"]
    return results


def problem(path: str, **more: Any) -> Problem:
    return Problem(code=more.pop("code", "manifest.x"), message="wrong", path=path, **more)


def uri(result: dict[str, Any]) -> str:
    address: str = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    return address


def test_no_problems_are_an_empty_run() -> None:
    assert checked() == []


def test_severities_become_levels() -> None:
    results = checked(*(problem("/x", severity=severity) for severity in Severity))
    assert [result["level"] for result in results] == ["error", "warning", "note"]


def test_codes_become_rules_once() -> None:
    results = checked(problem("/x", code="b"), problem("/y", code="a"), problem("/z", code="b"))
    assert [(result["ruleId"], result["ruleIndex"]) for result in results] == [("b", 1), ("a", 0), ("b", 1)]


def test_the_hint_stands_below_the_message() -> None:
    (result,) = checked(problem("/x", hint="do this"))
    assert result["message"]["text"] == "wrong\ndo this"


def test_a_line_becomes_a_region_and_no_line_none() -> None:
    with_line, without = checked(problem("/x", line=7), problem("/x"))
    assert with_line["locations"][0]["physicalLocation"]["region"] == {"startLine": 7}
    assert "region" not in without["locations"][0]["physicalLocation"]


def test_paths_below_the_current_folder_are_relative_addresses() -> None:
    (result,) = checked(problem(os.path.join(os.getcwd(), "a b", "50%", "ü#?.json")))
    assert urlsplit(uri(result)).scheme == ""
    assert unquote(uri(result)) == "a b/50%/ü#?.json"


def test_other_paths_are_file_addresses() -> None:
    (result,) = checked(problem("/elsewhere/a b.json"))
    assert uri(result) == "file:///elsewhere/a%20b.json"


def test_a_relative_path_with_a_colon_is_no_scheme() -> None:
    (result,) = checked(problem(os.path.join(os.getcwd(), "javascript:x.json")))
    assert urlsplit(uri(result)).scheme == ""
