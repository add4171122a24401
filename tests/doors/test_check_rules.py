"""``toolcrib check``: rules, budgets and grants that name tools which are not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.program import PATH, Said, toolcrib
from toolcrib import open as open_crib
from toolcrib.config import Environment

SERVER = str(Path(__file__).parent.parent / "peers" / "odd_server.py")
SOURCE = '[[source]]\npath = "shop"\n'
TEXTS = 'decision = "deny"\nbecause = "x"\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tools = [
        {
            "name": name,
            "description": f"The tool {name}.",
            "schema": {"type": "object"},
            "command": ["./tools/bin/x"],
        }
        for name in ("delete_file", "get_time")
    ]
    program = tmp_path / "shop" / "tools" / "bin" / "x"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "shop" / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    return tmp_path


def check(project: Path, text: str, *arguments: str, status: int = 0, cwd: Path | None = None) -> Said:
    (project / "toolcrib.toml").write_text(text, encoding="utf-8")
    named = ("--config", project / "toolcrib.toml")
    said = toolcrib(*named, "check", *arguments, cwd=cwd or project, home=project / ".home")
    assert said.status == status, said
    return said


def found(project: Path, text: str, *arguments: str, cwd: Path | None = None) -> list[dict[str, Any]]:
    problems = check(project, text, "--json", *arguments, cwd=cwd).json["problems"]
    return [problem for problem in problems if problem["code"] == "config.no-tool"]


@pytest.mark.parametrize(
    ("text", "line", "where", "asked", "hint"),
    [
        (
            f'[[policy]]\nmatch.name = "get_*"\n{TEXTS}[[policy]]\nmatch.name = "delet_file"\n{TEXTS}',
            7,
            "policy[1]",
            "name 'delet_file'",
            "did you mean delete_file?",
        ),
        (
            f'[[policy]]\n{TEXTS}[policy.match]\nkey = ["manifst:shop/*", "zzz"]\neffect = "change"\n',
            3,
            "policy[0]",
            "key 'manifst:shop/*', key 'zzz'",
            "did you mean manifest:shop/get_time?",
        ),
        (
            f'[[policy]]\nmatch = {{ name = ["zzzzz", "!get_time"] }}\n{TEXTS}',
            3,
            "policy[0]",
            "name 'zzzzz'",
            "`toolcrib list` shows what there is",
        ),
        (
            '[[budget]]\nmatch.name = "getime"\ncalls = 1\nwithin = "1h"\nbecause = "x"\n',
            3,
            "budget[0]",
            "name 'getime'",
            "did you mean get_time?",
        ),
        (
            '[grants."get_time"]\nneeds = []\n[grants."manifest:*"]\nneeds = []\n',
            3,
            "grants.get_time",
            "key 'get_time'",
            "did you mean manifest:shop/get_time?",
        ),
    ],
)
def test_a_rule_that_names_no_tool_is_told_with_its_place_and_the_nearest(
    text: str, line: int, where: str, asked: str, hint: str, project: Path
) -> None:
    """A refusal of a name with a typing mistake refuses nothing, and nobody would notice."""
    assert found(project, SOURCE + text) == [
        {
            "code": "config.no-tool",
            "severity": "warning",
            "path": "toolcrib.toml",
            "pointer": None,
            "line": line,
            "message": f"{where} fits none of the tools that were loaded: {asked}",
            "hint": hint,
        }
    ]
    said = check(project, SOURCE + text, "--strict", status=65)
    assert f"toolcrib.toml:{line}: warning: {where} fits none of the tools" in said.out


def test_attack_a_typing_mistake_beside_a_name_that_fits(project: Path) -> None:
    """The one that is refused must not hide that the other is not."""
    rules = (
        f'[[policy]]\nmatch.name = ["get_time", "delet_file", "zzzzz"]\n{TEXTS}'
        f'[[policy]]\nmatch = {{ key = "manifst:*", effect = "change" }}\n{TEXTS}'
        f'[[policy]]\nmatch = {{ name = ["*", "!delete_fil"], key = ["manifest:*", "skill:*"] }}\n{TEXTS}'
        f'[[policy]]\nmatch = {{ name = ["get_*", "!get_time", "delete_file"], key = "!rye:*" }}\n{TEXTS}'
        '[[budget]]\nmatch.name = ["get_time", "getime"]\ncalls = 1\nwithin = "1h"\nbecause = "x"\n'
    )
    fits, names = (
        "fits none of the tools that were loaded:",
        "names what fits none of the tools that were loaded:",
    )
    nothing = "`toolcrib list` shows what there is"
    told = [(each["line"], each["message"], each["hint"]) for each in found(project, SOURCE + rules)]
    assert told == [
        (3, f"policy[0] {names} name 'delet_file'", "did you mean delete_file?"),
        (3, f"policy[0] {names} name 'zzzzz'", nothing),
        (7, f"policy[1] {fits} key 'manifst:*'", nothing),
        (11, f"policy[2] {names} name 'delete_fil'", "did you mean delete_file?"),
        (11, f"policy[2] {names} key 'skill:*'", nothing),
        (19, f"budget[0] {names} name 'getime'", "did you mean get_time?"),
    ]


def test_a_host_may_ask_for_them_too(project: Path) -> None:
    """What is judged is no business of the command's: whoever has a crib is told the same."""
    file = project / "toolcrib.toml"
    file.write_text(f'{SOURCE}[[policy]]\nmatch.name = "delet_file"\n{TEXTS}', encoding="utf-8")
    environment = Environment.read({"HOME": str(project / ".home"), "PATH": PATH})
    with open_crib(config=file, environment=environment) as crib:
        (problem,) = crib.rule_problems()
    assert (problem.code, problem.path, problem.line) == ("config.no-tool", str(file), 3)
    assert problem.hint == "did you mean delete_file?"
    with open_crib(project / "shop", config=file, environment=environment) as crib:
        assert crib.rule_problems() == [], "of what was named instead the file does not speak"


def test_rules_of_a_list_are_told_where_the_list_begins(project: Path) -> None:
    text = 'policy = [\n{ decision = "deny", because = "x", match = { name = "zzz" } },\n]\n'
    (problem,) = found(project, f"# rules\n{text}{SOURCE}")
    assert (problem["line"], problem["message"].partition(" ")[0]) == (2, "policy[0]")


def test_a_rule_that_names_no_tool_by_name_is_not_told(project: Path) -> None:
    quiet = (
        f'[[policy]]\nmatch = {{ effect = "create", caller = "guest-*" }}\n{TEXTS}'
        f'[[policy]]\nmatch = {{ name = "!*", trust = "drifted" }}\n{TEXTS}'
        f'[[policy]]\nmatch = {{ name = "*_file", needs = "net.http", format = "rye" }}\n{TEXTS}'
        f'[[policy]]\nmatch = {{ key = "manifest:shop/get_time", arguments = {{ zzz = "x" }} }}\n{TEXTS}'
    )
    assert found(project, SOURCE + quiet) == []


@pytest.mark.parametrize("name", ["python:app/sum", "python:*"])
def test_functions_of_a_host_s_own_program_are_not_expected_here(name: str, project: Path) -> None:
    rules = f'[[policy]]\nmatch.key = "{name}"\n{TEXTS}[grants."{name}"]\nneeds = []\n'
    by_format = f'[[policy]]\nmatch = {{ name = "sum", format = "python" }}\n{TEXTS}'
    assert found(project, SOURCE + rules + by_format) == []
    beside = f'[[policy]]\nmatch.key = ["{name}", "manifest:shop/get_tim", "manifest:shop/*"]\n{TEXTS}'
    (problem,) = found(project, SOURCE + beside)
    assert problem["message"].endswith("loaded: key 'manifest:shop/get_tim'")


def test_what_was_not_loaded_is_not_judged(project: Path) -> None:
    rule = f'[[policy]]\nmatch.name = "delet_file"\n{TEXTS}'
    (project / "empty").mkdir()
    assert found(project, SOURCE + rule) != []
    assert found(project, f'[[source]]\npath = "empty"\n{rule}') == [], "nothing at all"
    assert found(project, SOURCE + rule, "shop") == [], "what the command line named"
    assert found(project, SOURCE + rule, "--from", "shop") == []
    assert found(project, rule) != [], "the folder of the file"
    assert found(project, rule, cwd=project / "shop") == [], "a part of it"
    assert found(project, SOURCE + rule, cwd=project / "shop") != []


def test_rules_of_the_users_own_file_are_for_all_projects(project: Path) -> None:
    own = project / ".home" / ".config" / "toolcrib" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text(
        f'[[policy]]\nmatch.name = "other"\n{TEXTS}[grants."skill:other/*"]\nneeds = []\n', encoding="utf-8"
    )
    assert found(project, SOURCE) == []
    (problem,) = found(project, f'{SOURCE}[grants."skill:mine/*"]\nneeds = []\n')
    assert problem["message"].startswith("grants.skill:mine/* fits none")
    (project / "toolcrib.toml").unlink()
    said = toolcrib("check", "--json", cwd=project, home=project / ".home")
    assert said.json["problems"] == []


def test_a_file_whose_sources_are_left_out_is_not_judged(project: Path) -> None:
    rule = f'[[policy]]\nmatch.name = "create_issue"\n{TEXTS}'
    text = f'{SOURCE}[[source]]\nname = "github"\nmcp = ["no-such-program"]\n{rule}'
    (project / "toolcrib.toml").write_text(text, encoding="utf-8")
    said = toolcrib("check", "--json", cwd=project)
    assert [problem["code"] for problem in said.json["problems"]] == ["config.untrusted"]
    (project / "toolcrib.toml").write_text(f'[skills]\nextra_dirs = ["more"]\n{rule}', encoding="utf-8")
    said = toolcrib("check", "--json", cwd=project)
    assert [problem["code"] for problem in said.json["problems"]] == ["config.untrusted"]


def test_what_a_file_that_nobody_trusts_may_not_say_hides_no_rule_that_fits_nothing(project: Path) -> None:
    """Attack: one line that is ignored anyway, so that nobody is told of a refusal that refuses nothing."""
    rule = f'[[policy]]\nmatch.name = "delet_file"\n{TEXTS}'
    allow = '[[policy]]\nbecause = "x"\ndecision = "allow"\n'
    text = f'{SOURCE}[timeouts]\ndefault_s = 9_999\n{rule}{allow}[grants."*"]\nenv = ["HOME"]\n'
    (project / "toolcrib.toml").write_text(text, encoding="utf-8")
    lines = text.split("\n")
    problems = toolcrib("check", "--json", cwd=project).json["problems"]
    told = [(problem["code"], problem["pointer"], lines[problem["line"] - 1]) for problem in problems]
    assert told == [
        ("config.untrusted", "/timeouts/default_s", "default_s = 9_999"),
        ("config.untrusted", "/grants", '[grants."*"]'),
        ("config.untrusted", "/policy/1/decision", 'decision = "allow"'),
        ("config.no-tool", None, "[[policy]]"),
    ]
    assert problems[-1]["line"] == 5


def test_tools_of_a_server_that_gave_no_list_may_be_meant(project: Path) -> None:
    def rules(*matches: str) -> str:
        asks = TEXTS.replace("deny", "ask")  # a refusal that fits the server would keep it from starting
        return "".join(f"[[policy]]\nmatch = {{ {match} }}\n{asks}" for match in matches)

    asks = rules(
        'name = "zzz"', 'key = "mcp:one/zzz"', 'key = "m*"', 'key = "mcp:two/*"', 'key = "skill:a/*"'
    )
    asks += '[grants."mcp:one/*"]\nneeds = []\n[grants."mcp:one/zzz"]\nneeds = []\n'
    gone = f'{SOURCE}[[source]]\nname = "one"\nmcp = ["no-such-program"]\n'
    told = [problem["message"].partition(" ")[0] for problem in found(project, gone + asks)]
    assert told == ["policy[3]", "policy[4]"], "another server, and another format"
    command = json.dumps([sys.executable, "-I", "-S", SERVER, "names=a"])
    there = f'{SOURCE}[[source]]\nname = "one"\nmcp = {command}\n'
    told = [problem["message"].partition(" ")[0] for problem in found(project, there + asks)]
    assert told == ["policy[0]", "policy[1]", "policy[3]", "policy[4]", "grants.mcp:one/zzz"]


def test_a_name_beside_others_may_be_of_a_server_that_gave_no_list(project: Path) -> None:
    asks = TEXTS.replace("deny", "ask")
    names, keys = '["get_time", "zzz"]', '["manifest:shop/*", "mcp:one/zzz", "mcp:two/zzz"]'
    rules = "".join(
        f"[[policy]]\nmatch = {{ {match} }}\n{asks}"
        for match in (f"name = {names}", f'name = {names}, key = "!rye:*"', 'name = "zzz", key = "!rye:*"')
    )
    rules += f"[[policy]]\nmatch.key = {keys}\n{asks}"
    gone = f'{SOURCE}[[source]]\nname = "one"\nmcp = ["no-such-program"]\n'
    (problem,) = found(project, gone + rules)
    assert problem["message"].startswith("policy[3] names what fits none")
    assert problem["message"].endswith(": key 'mcp:two/zzz'")
    assert len(found(project, SOURCE + rules)) == 5
