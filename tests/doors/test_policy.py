"""``toolcrib policy explain``: what is decided and why, for people and programs, with nothing run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import toolcrib

RULES = """
[[source]]
path = "tools.json"

[[policy]]
match = { caller = "guest-*" }
decision = "deny"
because = "no guests"

[[policy]]   # the second
match = { arguments = { text = "*secret*" } }
decision = "ask"
because = "a person looks first"
examples = [{ call = { arguments = { text = "a secret" } }, decision = "ask" }]

[[budget]]
match = { name = "touch" }
calls = 5
cost = 1.5
unknown_cost = 0.5
within = "1d"
because = "five a day"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tool = {
        "name": "touch",
        "description": "Leaves a mark.",
        "schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "command": ["./tools/bin/leave"],
    }
    program = tmp_path / "tools" / "bin" / "leave"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/marked\necho '{{}}'\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    return tmp_path


def explain(project: Path, *arguments: str, json_too: bool = True, status: int = 0):
    more = ("--json",) if json_too else ()
    said = toolcrib("--config", "rules.toml", "policy", "explain", *arguments, *more, cwd=project)
    assert said.status == status, said
    assert not (project / "marked").exists(), "nothing was run"
    assert not (project / ".home" / ".local" / "state" / "toolcrib" / "journal").exists()
    return said


def test_the_decision_the_rule_the_reason_and_the_permit_are_told(project: Path) -> None:
    found = explain(project, "touch", "--caller", "ann").json
    assert (found["decision"], found["rule"], found["caller"]) == ("allow", None, "ann")
    assert found["because"] == "it states no needs: profile open"
    assert (found["permit"]["profile"], found["permit"]["network"]) == ("open", True)
    place = f"{project}/rules.toml:10 policy[1]"
    assert found["depends"] == [{"rule": place, "decision": "ask", "because": "a person looks first"}]
    (left,) = found["budgets"]
    assert (left["calls_left"], left["cost_left"], left["again_s"]) == (5, 1.5, 0)
    assert left["rule"] == f"{project}/rules.toml:16 budget[0]"


def test_a_refusal_and_a_question_name_their_rules(project: Path) -> None:
    denied = explain(project, "touch", "--caller", "guest-1").json
    assert (denied["decision"], denied["because"], denied["permit"]) == ("deny", "no guests", None)
    assert denied["rule"] == f"{project}/rules.toml:5 policy[0]"
    assert denied["message"] == "denied by policy: no guests"
    asked = explain(project, "touch", '{"text": "my secret"}').json
    assert (asked["decision"], asked["rule"]) == ("ask", f"{project}/rules.toml:10 policy[1]")
    assert asked["permit"]["profile"] == "open", "what it would get"


def test_people_are_told_in_words(project: Path) -> None:
    lines = explain(project, "touch", '{"text": "my secret"}', "--caller", "ann", json_too=False).out
    assert lines.startswith("ask manifest:")
    for words in (
        "  because   a person looks first\n",
        "  rule      rules.toml:10 policy[1]\n",
        "  network   yes\n",
        "  budget    5 calls left and 1.5 left to spend within 1 d (five a day; rules.toml:16 budget[0])\n",
    ):
        assert words in lines


def test_a_wrong_call_is_explained_and_a_wrong_command_line_is_refused(project: Path) -> None:
    wrong = explain(project, "touch", '{"text": 5}').json
    assert "would be refused before any rule is asked" in wrong["notes"][0]
    explain(project, "touch", "[1]", status=2)
    explain(project, "tuch", status=64)


def test_what_is_left_after_calls_is_told_and_a_rule_that_lost_its_meaning_stops_everything(
    project: Path,
) -> None:
    for _ in range(3):
        assert toolcrib("--config", "rules.toml", "call", "touch", cwd=project).status == 0
    beyond = toolcrib("--config", "rules.toml", "call", "touch", "--json", cwd=project)
    assert beyond.status == 69
    assert beyond.json["error"]["details"]["again_s"] > 0
    wrong = RULES.replace('"a secret" } }, decision = "ask"', '"a secret" } }, decision = "deny"')
    (project / "rules.toml").write_text(wrong, encoding="utf-8")
    said = toolcrib("--config", "rules.toml", "call", "touch", cwd=project)
    assert said.status == 78
    assert "policy[1]: examples[0]: expects deny, but it is ask by" in said.err
