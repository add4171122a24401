"""The command line: exit codes, JSON on stdout, sentences on stderr, terminals, pipes, and bad input."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import toolcrib as library
from tests.program import PATH, PROGRAM, WAIT_S, Said, environment, toolcrib
from toolcrib.config import Environment
from toolcrib.dialects import DIALECTS
from toolcrib.doors import cli

COMMANDS = (
    "check", "list", "show", "select", "call", "policy", "approvals", "audit", "enable", "disable", "sign",
    "verify", "lock", "secret", "serve", "keys", "token", "trust", "export", "init", "doctor",
)  # fmt: skip
PROBLEM_KEYS = ["code", "severity", "path", "pointer", "line", "message", "hint"]
ROW_KEYS = [
    "name",
    "key",
    "format",
    "description",
    "version",
    "effect",
    "effect_from",
    "trust",
    "path",
    "pointer",
]

TIME = {
    "name": "get_time",
    "description": "Tell the time.",
    "schema": {"type": "object", "properties": {"zone": {"type": "string"}}, "additionalProperties": False},
    "command": ["./tools/bin/get_time"],
}
GROUP = {
    "group": "task",
    "version": "1.0.0",
    "description": "Tasks.",
    "selection": {"strategy": "keyword", "keywords": ["task"]},
    "tools": [
        {
            "name": "add_task",
            "description": "Add a task.",
            "category": "creation",
            "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}},
            "metadata": {
                "executor": "task",
                "requires_context": [],
                "cost_estimate": "low",
                "latency_estimate": "fast",
            },
        }
    ],
}


def manifest(folder: Path, *tools: Mapping[str, Any]) -> Path:
    """A manifest with its programs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tools.json"
    path.write_text(json.dumps({"tools": tools or [TIME]}, indent=2), encoding="utf-8")
    program = folder / "tools" / "bin" / "get_time"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    program.chmod(0o755)
    return path


def group(folder: Path) -> Path:
    (folder / "handlers").mkdir(parents=True)
    (folder / "handlers" / "task.py").write_text(
        "def execute_task_tool(tool_name, tool_input):\n    return {'success': True}\n", encoding="utf-8"
    )
    path = folder / "task_tools.json"
    path.write_text(json.dumps(GROUP), encoding="utf-8")
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A manifest and a capability group, both without a problem."""
    folder = tmp_path / "project"
    manifest(folder / "clock")
    group(folder / "groups")
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A manifest with a good tool, one that is dropped, and a warning."""
    folder = tmp_path / "broken"
    manifest(folder, TIME, {**TIME, "name": "bad", "command": ["bin/x"]}, {**TIME, "name": "odd", "zip": 1})
    return folder


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The program in this process, with a home of its own."""

    def run(*arguments: str | Path, **more: Any) -> Said:
        status = cli.run([str(argument) for argument in arguments], surroundings(tmp_path, **more))
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return run


def surroundings(folder: Path, **more: Any) -> Environment:
    home = folder / "home"
    return Environment(
        home=str(home),
        path=PATH,
        state=str(home / "state"),
        user_config=str(home / "config.toml"),
        user_space=str(home),
        **more,
    )


def test_check_says_why_programs_cannot_be_asked_when_the_journal_is_at_fault(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(mode=0o755)
    program = tmp_path / "bin" / "some-tool"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "journal").write_text("", encoding="utf-8")
    said = toolcrib("check", "--from", "executable=bin", "--state", str(state), cwd=tmp_path)
    assert f"cannot start: the audit journal cannot be written: {state / 'journal'}" in said.out
    assert "#!" not in said.out


def test_check_counts_tools_without_stated_needs_and_proposes_grants(
    project: Path, tmp_path: Path, here: Callable[..., Said]
) -> None:
    said = toolcrib("check", "--json", "--strict", "--from", "clock", cwd=project)
    assert (said.json["undeclared"]["tools"], said.json["problems"], said.status) == (1, [], 0)
    proposed = tomllib.loads(said.json["undeclared"]["grants"])["grants"]
    assert proposed == {"manifest:clock/*": {"needs": ["fs.write", "shell.execute"]}}
    told = toolcrib("check", "-v", "--from", "clock", cwd=project)
    block = told.out[told.out.index("# To bound") :]
    assert block.splitlines()[1] == '[grants."manifest:clock/*"]'
    (project / "granted.toml").write_text(block, encoding="utf-8")
    granted = toolcrib("check", "--config", "granted.toml", "--from", "clock", cwd=project)
    assert (granted.status, granted.err) == (0, "")


# -- the shapes that programs rely on -----------------------------------------------------------------------


def test_check_prints_one_document_with_all_problems(broken: Path) -> None:
    said = toolcrib("check", "--json", cwd=broken)
    assert said.status == 65
    assert said.err == ""
    found = said.json
    assert found["tools"] == 2
    assert [list(problem) for problem in found["problems"]] == [PROBLEM_KEYS] * len(found["problems"])
    assert {problem["severity"] for problem in found["problems"]} == {"error", "warning"}
    first = found["problems"][0]
    assert first["code"] == "manifest.command.prefix"
    text = (broken / "tools.json").read_text(encoding="utf-8")
    line = text[: text.index('"bin/x"')].count("\n") + 1
    assert (first["path"], first["pointer"], first["line"]) == ("tools.json", "/tools/1/command/0", line)


def test_list_prints_a_row_for_each_tool(project: Path) -> None:
    said = toolcrib("list", "--json", cwd=project)
    assert (said.status, said.err) == (0, "")
    rows = said.json
    assert [list(row)[: len(ROW_KEYS)] for row in rows] == [ROW_KEYS] * 2
    clock = rows[0]
    assert clock == {
        "name": "get_time",
        "key": "manifest:clock/get_time",
        "format": "manifest",
        "description": "Tell the time.",
        "version": None,
        "effect": "change",
        "effect_from": "not stated, so it counts as change",
        "trust": "unsigned",
        "path": "clock/tools.json",
        "pointer": "/tools/0",
        "role": "tool",
        "deprecated": False,
    }


def test_show_prints_the_whole_record(project: Path, here: Callable[..., Said]) -> None:
    row = next(row for row in here("list", "--json", "--from", project).json if row["name"] == "get_time")
    record = here("show", "get_time", "--json", "--from", project).json
    assert {key: record[key] for key in row} == row
    assert record["input_schema"] == TIME["schema"]
    assert record["invocation"]["kind"] == "run_process"
    assert record["invocation"]["program"] == str(project / "clock" / "tools" / "bin" / "get_time")


@pytest.mark.requirement("rye.yaml.documentation", "rye.yaml.outputs")
def test_show_prints_the_documentation_and_the_outputs(tmp_path: Path, here: Callable[..., Said]) -> None:
    place = tmp_path / ".ai" / "tools" / "ops"
    place.mkdir(parents=True)
    documentation = {"url": "https://docs.example.com", "examples": ["Deploy to production"]}
    outputs = {"deployment_id": "The id of the deployment"}
    item = {
        "tool_id": "deploy-service", "tool_type": "yaml", "version": "1.0.0", "description": "Deploy it",
        "executor_id": "rye/core/primitives/execute", "category": "ops", "config": {"command": "deploy"},
        "documentation": documentation, "outputs": outputs,
    }  # fmt: skip
    (place / "deploy-service.yaml").write_text(json.dumps(item), encoding="utf-8")
    notes = here("show", "ops/deploy-service", "--json", "--from", tmp_path).json["notes"]
    assert (notes["documentation"], notes["outputs"]) == (documentation, outputs)
    read = here("show", "ops/deploy-service", "--from", tmp_path).out
    assert "https://docs.example.com" in read
    assert "Deploy to production" in read
    assert "The id of the deployment" in read


def test_show_argv_prints_what_would_run(project: Path) -> None:
    said = toolcrib("show", "get_time", "--argv", '{"zone": "UTC"}', "--json", cwd=project)
    assert (said.status, said.err) == (0, "")
    found = said.json
    assert list(found)[:4] == ["argv", "stdin", "env", "cwd"]
    assert found["argv"] == [str(project / "clock" / "tools" / "bin" / "get_time")]
    assert found["stdin"] == '{"zone": "UTC"}'
    assert found["cwd"] == str(project)


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_export_prints_exactly_what_goes_into_the_request(
    dialect: str, project: Path, here: Callable[..., Said]
) -> None:
    said = here("export", "--dialect", dialect, "--from", project)
    assert said.status == 0
    with library.open(project, environment=surroundings(project)) as crib:
        assert said.json == crib.declare(dialect).payload
    if dialect == "gemini":
        assert [list(item) for item in said.json] == [["functionDeclarations"]]


def test_export_takes_names(project: Path, here: Callable[..., Said]) -> None:
    said = here("export", "--dialect", "anthropic", "--from", project, "capability:task/add_task")
    assert [tool["name"] for tool in said.json] == ["add_task"]


def test_an_empty_export_says_why_it_is_empty(
    tmp_path: Path, project: Path, here: Callable[..., Said]
) -> None:
    (tmp_path / "empty").mkdir()
    said = here("export", "--dialect", "openai", "--from", tmp_path / "empty")
    assert (said.status, said.json) == (0, [])
    assert said.err.startswith("there are no tools\n")
    assert here("export", "--dialect", "openai", "--from", tmp_path / "empty", "-q").err == ""
    here("disable", "add_task", "--reason", "too risky", "--from", project / "groups")
    said = here("export", "--dialect", "openai", "--from", project / "groups")
    assert (said.status, said.json) == (0, [])
    assert said.err.splitlines() == [
        "every tool was left out (1)",
        "left out capability:task/add_task: add_task is disabled: too risky",
    ]
    here("enable", "add_task", "--from", project / "groups")


def test_export_writes_losses_as_a_list(tmp_path: Path, here: Callable[..., Said]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "base64"}}}
    manifest(tmp_path / "m", {**TIME, "schema": {**schema, "patternProperties": {"^x": {}}}})
    losses = tmp_path / "losses.json"
    said = here("export", "--dialect", "gemini", "--from", tmp_path / "m", "--losses", losses)
    assert said.status == 0
    found = json.loads(losses.read_text(encoding="utf-8"))
    assert found
    assert all(list(loss) == ["tool", "pointer", "keyword", "what"] for loss in found)
    assert re.search(r"loss(es)?; see ", said.err)


def test_select_prints_names_keys_scores_and_reasons(project: Path, here: Callable[..., Said]) -> None:
    said = here("select", "add a task", "--json", "--from", project / "groups")
    assert said.json == [
        {
            "name": "add_task",
            "key": "capability:task/add_task",
            "score": None,
            "because": 'task: keyword "task"',
        }
    ]


def test_select_explains_what_was_left_out(project: Path, here: Callable[..., Said]) -> None:
    said = here("select", "hello", "--json", "--explain", "--from", project)
    assert list(said.json) == ["selected", "left_out", "note"]
    assert [row["name"] for row in said.json["selected"]] == ["get_time"]
    assert [row["name"] for row in said.json["left_out"]] == ["add_task"]
    assert said.err == ""


def test_where_nothing_fits_select_prints_an_empty_list_and_the_reason(
    project: Path, here: Callable[..., Said]
) -> None:
    said = here("select", "hello", "--json", "--from", project / "groups")
    assert (said.status, said.json) == (0, [])
    assert said.err.startswith("no tool fits this message")


def test_list_filters_by_format_and_effect(project: Path, here: Callable[..., Said]) -> None:
    def names(*options: str) -> list[str]:
        return [row["name"] for row in here("list", "--json", "--from", project, *options).json]

    assert names("--format", "capability") == ["add_task"]
    assert names("--effect", "create") == ["add_task"]
    assert names("--effect", "read") == []
    assert names("--trust", "signed") == []
    assert here("list", "--from", project, "--trust", "signed").err == "no tools\n"


def test_where_there_are_no_tools_list_says_what_to_do_as_check_does(
    tmp_path: Path, here: Callable[..., Said]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    said = here("list", "--from", place)
    assert (said.status, said.out) == (0, "")
    assert said.err == here("check", place).out
    assert "`toolcrib init NAME`" in said.err
    assert here("list", "--from", place, "-q").err == "no tools\n"


def test_list_searches_tools_of_every_format_and_filters_what_it_found(
    project: Path, tmp_path: Path, here: Callable[..., Said]
) -> None:
    names = [f"task_{number:02}" for number in range(12)]
    manifest(tmp_path / "many", *({**TIME, "name": name} for name in names))

    def found(*arguments: object) -> list[str]:
        said = here("list", "--json", "--from", project, "--from", tmp_path / "many", *arguments)
        return [row["name"] for row in said.json]

    assert found("--search", "zone OR tell AND NOT task") == ["get_time"]
    assert found("--search", "task") == ["add_task", *names[:9]]
    assert found("--search", "task", "--format", "manifest") == names[:10]
    assert found("--search", "task", "--format", "capability") == ["add_task"]
    assert found("--search", "nothing") == []


def test_a_search_for_nothing_is_wrong_usage_that_says_how_to_list_all(here: Callable[..., Said]) -> None:
    for empty in ("", "  "):
        said = here("list", "--search", empty)
        assert (said.status, said.out) == (2, "")
        assert "--search: the query is empty" in said.err
        assert "leave --search out to list all tools" in said.err


def test_list_shows_skills(tmp_path: Path, here: Callable[..., Said]) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "SKILL.md").write_text("---\ndescription: Notes.\n---\nText.\n", encoding="utf-8")
    said = here("list", "--skills", "--json", "--from", tmp_path)
    assert said.json == [{"name": "notes", "description": "Notes.", "path": str(tmp_path / "notes")}]
    said = here("list", "--from", tmp_path)
    assert (said.status, said.out) == (0, "")
    assert said.err == "no tools, but 1 skill with instructions: `toolcrib list --skills` shows them\n"


# -- exit codes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("check {project}", 0),
        ("check {broken}", 65),
        ("check {odd}", 0),
        ("check {odd} --strict", 65),
        ("check {empty}", 0),
        ("check {missing}", 66),
        ("list --from {missing}", 66),
        ("--config {missing} list", 66),
        ("show get_time --from {project}", 0),
        ("show nothing --from {project}", 64),
        ("show get_time --from {project} --argv [1]", 65),
        ("show add_task --from {project} --argv @{missing}", 66),
        ("export --dialect openai nothing --from {project}", 64),
        ("export --from {project}", 2),
        ("export --dialect nobody --from {project}", 2),
        ("export --dialect openai --losses {missing}/x --from {project}", 66),
        ("check {project} --sarif {missing}/x", 66),
        ("select", 2),
        ("select hello --context nonsense", 2),
        ("select hello --context =1", 2),
        ("select hello --limit 0", 2),
        ("list --from skil={project}", 2),
        ("list --from=", 2),
        ("list --config=", 2),
        ("list --state=", 2),
        ("nothing", 2),
        ("check --nothing", 2),
        ("init Bad.Name", 2),
        ("list --format nothing", 2),
    ],
)
def test_the_exit_code_says_what_happened(
    arguments: str, status: int, project: Path, broken: Path, tmp_path: Path, here: Callable[..., Said]
) -> None:
    (tmp_path / "empty").mkdir()
    manifest(tmp_path / "odd", {**TIME, "zip": 1})
    places = {name: tmp_path / name for name in ("project", "broken", "empty", "missing", "odd")}
    said = here(*(part.format(**places) for part in arguments.split()))
    assert said.status == status, said
    if status in (2, 64, 66, 78):
        assert said.out == ""
        assert said.err != ""


def test_an_error_is_one_sentence_and_what_to_do_next(project: Path, here: Callable[..., Said]) -> None:
    said = here("show", "get_tim", "--from", project)
    assert said.err == "toolcrib: there is no tool 'get_tim'\n  did you mean get_time?\n"


def test_a_name_that_several_formats_declare_is_refused_with_the_keys(
    tmp_path: Path, here: Callable[..., Said]
) -> None:
    manifest(tmp_path / "one")
    (tmp_path / "two").mkdir()
    group(tmp_path / "three")
    path = tmp_path / "three" / "task_tools.json"
    path.write_text(path.read_text(encoding="utf-8").replace("add_task", "get_time"), encoding="utf-8")
    said = here("show", "get_time", "--from", tmp_path)
    assert said.status == 64
    assert "manifest:one/get_time, capability:task/get_time" in said.err
    assert here("show", "capability:task/get_time", "--from", tmp_path).status == 0


def test_a_tool_that_was_left_out_is_not_simply_unknown(broken: Path, here: Callable[..., Said]) -> None:
    said = here("show", "bad", "--from", broken)
    assert said.status == 64
    assert said.err.startswith("1 error, 1 warning; `toolcrib check` shows them\n")


def test_an_unknown_command_is_corrected(here: Callable[..., Said]) -> None:
    assert "No such command 'chekc'. Did you mean 'check'?" in here("chekc").err


def test_without_a_command_the_help_is_shown(here: Callable[..., Said]) -> None:
    said = here()
    assert said.status == 2
    assert "Commands:" in said.err


def test_wrong_arguments_of_a_call_name_the_tool(project: Path, here: Callable[..., Said]) -> None:
    said = here("show", "get_time", "--argv", '{"a": 1, "a": 2}', "--from", project)
    assert said.status == 65
    assert "the key 'a' stands there twice" in said.err


@pytest.mark.parametrize("arguments", ["zone=UTC", "UTC", '["UTC"]', '"{}"', "{zone:UTC}", "{'zone': 'UTC'}"])
def test_a_call_whose_arguments_are_no_object_is_told_how_to_write_them(
    arguments: str, project: Path
) -> None:
    said = toolcrib("call", "get_time", arguments, cwd=project)
    assert said.status == 65
    assert """\n  ARGS is one JSON object, in quotes for the shell: '{"name": "value"}'\n""" in said.err
    wrong = toolcrib("call", "get_time", '{"zone": 1}', cwd=project)
    assert (wrong.status, "ARGS" in wrong.err) == (65, False)


def test_arguments_that_nobody_typed_need_no_quotes_for_the_shell(project: Path) -> None:
    (project / "arguments.json").write_text("[1]", encoding="utf-8")
    said = toolcrib("call", "get_time", "@arguments.json", cwd=project)
    assert (said.status, "shell" in said.err) == (65, False)


def test_arguments_come_from_stdin_and_from_files(project: Path) -> None:
    (project / "arguments.json").write_text('{"zone":"A"}', encoding="utf-8")
    from_file = toolcrib("show", "get_time", "--argv", "@arguments.json", "--json", cwd=project)
    assert from_file.json["stdin"] == '{"zone":"A"}'
    from_stdin = toolcrib("show", "get_time", "--argv", "-", "--json", cwd=project, stdin=b'{"zone":"B"}')
    assert from_stdin.json["stdin"] == '{"zone":"B"}'
    assert toolcrib("show", "get_time", "--argv", "-", cwd=project, stdin=b"\xff").status == 65
    too_long = b'{"a":"' + b"x" * 2_000_000 + b'"}'
    assert toolcrib("show", "get_time", "--argv", "-", cwd=project, stdin=too_long).status == 66


def test_a_context_value_is_json_or_else_text(project: Path, here: Callable[..., Said]) -> None:
    path = project / "groups" / "task_tools.json"
    rule = {"strategy": "context", "context_check": "has_project"}
    path.write_text(json.dumps({**GROUP, "selection": rule}), encoding="utf-8")

    def chosen(value: str) -> bool:
        found = here("select", "x", "--context", f"project_id={value}", "--json", "--from", path)
        assert found.status == 0
        return bool(found.json)

    assert chosen("p1")
    assert chosen('"p1"')
    assert not chosen("null")
    assert chosen("[" * 5000)  # too deep for JSON, so it is text


# -- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "--from {p} -q --state {s} list --json",
        "list --json --from {p} -q --state {s}",
        "-q list --from {p} --json",
    ],
)
def test_shared_options_stand_before_or_after_the_command(
    line: str, project: Path, tmp_path: Path, here: Callable[..., Said]
) -> None:
    said = here(*line.format(p=project, s=tmp_path / "kept").split())
    assert [row["name"] for row in said.json] == ["get_time", "add_task"]


def test_sources_before_and_after_the_command_add_up(project: Path, here: Callable[..., Said]) -> None:
    said = here("--from", project / "clock", "list", "--from", project / "groups", "--json")
    assert [row["name"] for row in said.json] == ["get_time", "add_task"]


def test_state_is_kept_where_the_option_says(
    project: Path, tmp_path: Path, here: Callable[..., Said]
) -> None:
    assert here("--state", tmp_path / "kept", "list", "--from", project).status == 0
    assert list((tmp_path / "kept" / "cache").iterdir())
    assert not (tmp_path / "home").exists()


def test_a_state_folder_that_cannot_be_written_is_no_error(project: Path, here: Callable[..., Said]) -> None:
    said = here("--state", project / "clock" / "tools.json" / "x", "list", "--from", project)
    assert (said.status, said.err) == (0, "")


def test_quiet_says_only_what_was_asked_for(broken: Path, here: Callable[..., Said]) -> None:
    assert here("list", "--from", broken).err == "1 error, 1 warning; `toolcrib check` shows them\n"
    assert here("list", "--from", broken, "-q").err == ""
    loud, quiet = here("check", broken), here("check", broken, "-q")
    assert loud.out == quiet.out + "2 tools: 1 error, 1 warning\n"


def test_verbose_names_what_was_passed_over(project: Path, here: Callable[..., Said]) -> None:
    (project / "clock" / "package.json").write_text('{"name": "x"}', encoding="utf-8")
    assert "package.json" not in here("check", project).out
    assert "package.json: not a declaration" in here("check", project, "-v").out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, here: Callable[..., Said]) -> None:
    said = here(command, "--help")
    assert said.status == 0
    assert re.search(rf"Examples:\n +toolcrib {command}\b", said.out)
    assert here(command, "-h").out == said.out
    assert not re.search(r"^  .*\.\.\.$", said.out, re.MULTILINE)  # what a command does is not cut off


def test_the_current_folder_is_the_source_where_nothing_is_named(project: Path) -> None:
    assert toolcrib("check", cwd=project).out == "2 tools: no problems\n"


def test_a_configuration_of_the_project_is_found_from_below(project: Path) -> None:
    (project / "toolcrib.toml").write_text('[[source]]\npath = "clock"\n', encoding="utf-8")
    (project / "deep" / "er").mkdir(parents=True)
    rows = toolcrib("list", "--json", cwd=project / "deep" / "er").json
    assert [(row["name"], row["path"]) for row in rows] == [
        ("get_time", str(project / "clock" / "tools.json"))
    ]


def test_what_a_found_configuration_may_not_say_is_told_with_its_line(project: Path) -> None:
    (project / "toolcrib.toml").write_text(
        '[[source]]\npath = "clock"\n\n[[source]]\npath = "groups"\nhandlers = "handlers"\n\n'
        '[trust]\nunsigned = "warn"\n\n[grants."manifest:*"]\nneeds = ["fs.read"]\n',
        encoding="utf-8",
    )
    said = toolcrib("check", "--json", cwd=project)
    told = {problem["message"].split()[0]: problem["line"] for problem in said.json["problems"]}
    assert told == {"source[1].handlers": 6, "trust.unsigned": 9, "grants": 11}


def test_paths_are_relative_below_the_current_folder_and_absolute_elsewhere(project: Path) -> None:
    inside = toolcrib("list", "--json", "--from", project / "clock", cwd=project).json
    assert [row["path"] for row in inside] == ["clock/tools.json"]
    outside = toolcrib("list", "--json", "--from", "../clock", cwd=project / "groups").json
    assert [row["path"] for row in outside] == [str(project / "clock" / "tools.json")]


def test_pointers_follow_rfc_6901(tmp_path: Path, here: Callable[..., Said]) -> None:
    manifest(tmp_path / "m", {**TIME, "a/b~c": 1})
    problems = here("check", tmp_path / "m", "--json").json["problems"]
    assert [problem["pointer"] for problem in problems] == ["/tools/0/a~1b~0c"]


# -- one program --------------------------------------------------------------------------------------------


def test_python_m_toolcrib_is_the_same_program(broken: Path) -> None:
    module = [sys.executable, "-m", "toolcrib"]
    for arguments in (["check", "--json"], ["show", "nope"]):
        assert toolcrib(*arguments, cwd=broken, program=module) == toolcrib(*arguments, cwd=broken)


def test_python_m_toolcrib_does_not_import_from_the_current_folder(project: Path) -> None:
    for name in ("click", "yaml", "orjson", "rich", "tomllib", "glob"):
        (project / f"{name}.py").write_text("raise SystemExit('imported from the project')", encoding="utf-8")
    said = toolcrib("check", cwd=project, program=[sys.executable, "-m", "toolcrib"])
    assert (said.status, said.out) == (0, "2 tools: no problems\n")
    assert said.err == "2 tools without stated needs; -v proposes grants for them\n"


def test_the_version_is_told_before_anything_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['toolcrib', '--version']\n"
        "from toolcrib.__main__ import main\n"
        "main(); assert 'click' not in sys.modules"
    )
    said = toolcrib(cwd=tmp_path, program=[sys.executable, "-c", code])
    assert (said.status, said.out) == (0, f"toolcrib {library.__version__}\n")
    assert toolcrib("-v", "--version", cwd=tmp_path).out == said.out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("toolcrib ", {f"plain,{name}" for name in COMMANDS}),
        ("toolcrib export --dialect ", {f"plain,{name}" for name in DIALECTS}),
        ("toolcrib check --st", {"plain,--strict", "plain,--state"}),
        ("toolcrib check proj", {"file,proj"}),
        ("toolcrib list --from proj", {"file,proj"}),
    ],
)
def test_the_shell_completes_commands_options_and_paths(
    words: str, offered: set[str], tmp_path: Path
) -> None:
    said = toolcrib(
        cwd=tmp_path,
        env={
            "_TOOLCRIB_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
    )
    assert (said.status, said.err) == (0, "")
    assert set(said.out.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_by_one_line(shell: str, tmp_path: Path) -> None:
    said = toolcrib(cwd=tmp_path, env={"_TOOLCRIB_COMPLETE": f"{shell}_source"})
    assert said.status == 0
    assert "_TOOLCRIB_COMPLETE" in said.out


# -- terminals, pipes, streams ------------------------------------------------------------------------------


def on_a_terminal(*arguments: str | Path, cwd: Path, columns: int = 80, **env: str) -> str:
    """What a terminal of that width gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = environment(cwd / ".home", **{"TERM": "xterm", **env})
    with subprocess.Popen(
        [PROGRAM, *arguments], cwd=cwd, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        shown = b"".join(_until_closed(ours))
    os.close(ours)
    return shown.decode("utf-8").replace("\r\n", "\n")


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        assert select.select([descriptor], [], [], WAIT_S)[0], "the terminal stayed silent"
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other side is closed
            return
        if not part:
            return
        yield part


def test_colours_are_for_terminals_only(broken: Path) -> None:
    assert "\x1b[31m" in on_a_terminal("check", cwd=broken)
    assert "\x1b[1m" in on_a_terminal("list", cwd=broken)
    assert "\x1b" not in toolcrib("check", cwd=broken).out
    assert "\x1b" not in on_a_terminal("check", cwd=broken, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("list", cwd=broken, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("show", "get_time", cwd=broken, TERM="dumb")


def test_json_has_no_colours_on_a_terminal_either(broken: Path) -> None:
    assert json.loads(on_a_terminal("check", "--json", cwd=broken))["tools"] == 2


def test_a_narrow_terminal_cuts_descriptions_and_never_names(tmp_path: Path) -> None:
    manifest(tmp_path, {**TIME, "name": "n" * 50, "description": "word " * 50})
    heading, row = on_a_terminal("list", cwd=tmp_path, columns=100, NO_COLOR="1").splitlines()
    assert heading.split() == ["NAME", "FORMAT", "EFFECT", "TRUST", "DESCRIPTION"]
    assert row.startswith("n" * 50 + "  ")
    assert row.endswith("…")
    assert len(row) <= 100
    assert "n" * 50 in on_a_terminal("list", cwd=tmp_path, columns=20, NO_COLOR="1")


def test_wide_characters_count_double_on_a_terminal(tmp_path: Path) -> None:
    manifest(tmp_path, {**TIME, "description": "説明" * 50})
    row = on_a_terminal("list", cwd=tmp_path, columns=60, NO_COLOR="1").splitlines()[1]
    cells = sum(2 if character in "説明" else 1 for character in row)
    assert 50 < cells <= 60


def test_a_pipe_gets_whole_lines(tmp_path: Path) -> None:
    manifest(tmp_path, {**TIME, "description": "word " * 100 + "end"})
    assert toolcrib("list", cwd=tmp_path, env={"COLUMNS": "40"}).out.splitlines()[1].endswith("word end")


def unread_by_anybody(
    *arguments: str, cwd: Path, streams: str = "stdout"
) -> subprocess.CompletedProcess[bytes]:
    """How a command ends when nobody is left who reads ``streams``: "stdout", "stderr" or "both"."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=cwd,
            env=environment(cwd / ".home"),
            stdout=subprocess.DEVNULL if streams == "stderr" else writing,
            stderr=subprocess.PIPE if streams == "stdout" else writing,
            timeout=WAIT_S,
            check=False,
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize("arguments", [["list", "--json"], ["check"], ["--help"], ["--version"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str], project: Path) -> None:
    ended = unread_by_anybody(*arguments, cwd=project)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("unread", ["stdout", "stderr", "both"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["call", "no_such_tool"], 64),
        (["call", "get_time", '{"x": 1}'], 65),
        (["call", "get_time", '{"x": 1}', "--json"], 65),
        (["call", "get_time", "--no-such-option"], 2),
    ],
)
def test_what_failed_is_no_success_because_nobody_reads_about_it(
    arguments: list[str], status: int, unread: str, tmp_path: Path
) -> None:
    manifest(tmp_path, {**TIME, "schema": {"type": "object", "additionalProperties": False}})
    ended = unread_by_anybody(*arguments, cwd=tmp_path, streams=unread)
    assert ended.returncode == status


@pytest.mark.parametrize("unread", ["stdout", "both"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["check"], 65),
        (["check", "--json"], 65),
        (["lock", "--check"], 77),
        (["verify"], 77),
        (["verify", "--json"], 77),
        (["audit", "verify"], 65),
        (["audit", "verify", "--json"], 65),
    ],
)
def test_a_verdict_stands_whoever_reads_it(
    arguments: list[str], status: int, unread: str, broken: Path
) -> None:
    """Attack: `verify | head` before a deployment, which took a changed tool for a good one."""
    assert toolcrib("lock", cwd=broken).status == 0
    program = broken / "tools" / "bin" / "get_time"
    program.write_text("#!/bin/sh\necho '{\"stolen\": 1}'\n", encoding="utf-8")
    for segment in broken.glob(".home/.local/state/toolcrib/journal/*.open"):
        segment.write_bytes(segment.read_bytes().replace(b'"lock"', b'"LOCK"'))
    ended = unread_by_anybody(*arguments, cwd=broken, streams=unread)
    assert ended.returncode == status


def test_attack_a_change_that_is_not_read_because_of_a_long_one_before_it_is_not_locked(
    project: Path,
) -> None:
    ended = unread_by_anybody("lock", cwd=project)
    assert ended.returncode == 74
    assert ended.stderr.startswith(b"toolcrib: nothing was locked: ")
    assert toolcrib("lock", "--check", cwd=project).status != 0
    assert toolcrib("lock", cwd=project).status == 0
    assert toolcrib("lock", "--check", cwd=project).status == 0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["token", "list"], 0),
        (["approvals", "list"], 0),
        (["approvals", "approve", "3f9a1c22b04d"], 64),
        (["trust", "--list"], 0),
        (["secret", "list"], 0),
        (["audit", "tail"], 0),
    ],
)
def test_whoever_only_looks_needs_no_place_for_a_store(
    arguments: list[str], status: int, tmp_path: Path
) -> None:
    """A service without a home, or with one that cannot be written, can be looked at."""
    home = tmp_path / "home"
    assert toolcrib(*arguments, cwd=tmp_path, home=home).status == status
    assert not home.exists()


def by_shell(command: str, cwd: Path) -> Said:
    """The program as ``$0``, started by a shell, for what only a shell can arrange."""
    return toolcrib(cwd=cwd, program=["/bin/sh", "-c", command, PROGRAM])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["list", "list --json", "--version"])
def test_output_that_cannot_be_written_is_told(command: str, project: Path) -> None:
    said = by_shell(f'"$0" {command} > /dev/full', project)
    assert said.status == 74
    assert said.err.startswith("toolcrib: the output: no space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "status"), [("call no_such_tool", 64), ("call get_time '[]'", 65), ("show no_such_tool", 64)]
)
def test_what_failed_keeps_its_status_where_stderr_is_full(command: str, status: int, tmp_path: Path) -> None:
    manifest(tmp_path)
    assert by_shell(f'"$0" {command} 2> /dev/full', tmp_path).status == status


def test_a_limit_that_leaves_no_thread_is_told_with_the_fix(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "asked-tool"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    program.chmod(0o755)
    # A stack of 4 GB for each thread, of which 2 GB of address space have no room for one.
    said = by_shell('ulimit -s 4000000 && ulimit -v 2000000 && "$0" --from executable=bin list', tmp_path)
    assert (said.status, said.out) == (71, "")
    assert said.err.startswith("toolcrib: no thread could be started\n  raise the limit of processes (ulimit")


@pytest.mark.parametrize("descriptors", [8, 9, 10, 12, 14, 16])
@pytest.mark.parametrize("has_store", [False, True])
def test_a_limit_of_descriptors_is_told_with_the_fix(
    descriptors: int, has_store: bool, tmp_path: Path
) -> None:
    manifest(tmp_path)
    if has_store:
        assert toolcrib("disable", "other", cwd=tmp_path).status == 0
    said = by_shell(f'ulimit -n {descriptors} && "$0" call get_time', tmp_path)
    # Unavailable, or of unknown outcome, as far as the descriptors went; either way with what to do.
    assert (said.status in (69, 71), "ulimit -n" in said.err) == (True, True), said


@pytest.mark.parametrize(
    "command", ["call get_time", "audit anchor", "keys generate --owner me", "disable x"]
)
def test_a_limit_of_the_size_of_files_is_told_with_the_fix(command: str, tmp_path: Path) -> None:
    manifest(tmp_path)
    said = by_shell(f'ulimit -f 0 && USER_SPACE="$PWD" "$0" --state state {command}', tmp_path)
    assert said.status != 0
    assert "ulimit -f" in said.err, said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="root, too, can write nothing there")
@pytest.mark.parametrize(
    ("command", "fix"), [("--state /proc/self audit anchor", "--state"), ("keys generate", "USER_SPACE")]
)
def test_where_the_home_cannot_be_written_the_fix_names_another_place(
    command: str, fix: str, tmp_path: Path
) -> None:
    said = by_shell(f'HOME=/proc/self "$0" {command}', tmp_path)
    assert said.status != 0
    assert fix in said.err.splitlines()[-1], said


def test_a_umask_that_takes_our_own_files_from_us_does_not(tmp_path: Path) -> None:
    manifest(tmp_path)
    for _ in range(2):
        said = by_shell('umask 777 && "$0" --state state call get_time', tmp_path)
        assert (said.status, said.err) == (0, ""), said
    made = [*(tmp_path / "state").rglob("*")]
    assert made
    assert {path.stat().st_mode & 0o677 for path in made} == {0o600}


_IGNORING = (
    "import signal, threading; from toolcrib.doors import cli; "
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
)
"""Not by a shell's trap: dash sets none for this signal."""


def test_how_children_end_is_told_to_us_although_whoever_started_us_ignores_it(project: Path) -> None:
    code = f"{_IGNORING}cli.run(['list', '-q']); print(signal.getsignal(signal.SIGCHLD).name)"
    said = toolcrib(cwd=project, program=[sys.executable, "-c", code])
    assert said.out.splitlines()[-1:] == ["SIG_DFL"], said


def test_a_thread_of_a_host_that_ignores_how_children_end_runs_commands(project: Path) -> None:
    code = (
        f"{_IGNORING}one = threading.Thread(target=cli.run, args=(['list', '-q'],)); one.start(); one.join()"
    )
    said = toolcrib(cwd=project, program=[sys.executable, "-c", code])
    assert (said.status, said.err) == (0, ""), said
    assert said.out


def test_closed_streams_are_no_error(project: Path) -> None:
    assert by_shell('"$0" list >&-', project) == Said(0, "", "")
    assert by_shell('"$0" check nowhere 2>&-', project).status == 66
    assert by_shell('"$0" show get_time --argv - <&-', project).status == 66


def test_a_current_folder_that_was_removed_is_told(project: Path) -> None:
    for arguments in ("list --json", "init x"):
        said = by_shell(f'mkdir gone; cd gone; rmdir ../gone; exec "$0" {arguments}', project)
        assert said.status == 66
        assert said.err.startswith("toolcrib: the current folder: no such file or directory")


def test_a_terminal_without_the_characters_gets_escapes_and_json_stays_utf8(tmp_path: Path) -> None:
    manifest(tmp_path / "説", {**TIME, "description": "説明"})
    env = {"PYTHONIOENCODING": "iso-8859-1"}
    shown = toolcrib("show", "get_time", cwd=tmp_path, env=env)
    assert (shown.status, shown.err) == (0, "")
    assert r"\u8aac\u660e" in shown.out
    assert r"\u8aac/tools.json" in shown.out
    rows = toolcrib("list", "--json", cwd=tmp_path, env=env).json
    assert (rows[0]["description"], rows[0]["path"]) == ("説明", "説/tools.json")


# -- text from declarations ---------------------------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u200b\ufeff\u2028\x7f\U000e0041\r"


def test_declarations_cannot_drive_the_terminal(tmp_path: Path, here: Callable[..., Said]) -> None:
    """Attack: names, descriptions and paths that recolour, hide or rewrite what a person reads."""
    folder = tmp_path / f"dir\x1b[31m\n{HOSTILE}"
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": HOSTILE}}}
    manifest(
        folder,
        {**TIME, "description": f"good\n{HOSTILE}", "schema": schema},
        {**TIME, "name": HOSTILE},
        {**TIME, "name": "worse", HOSTILE: 1, "command": [HOSTILE]},
    )
    commands = (
        ["check"], ["check", "-v"], ["list"], ["show", "get_time"], ["select", HOSTILE, "--explain"],
        ["show", HOSTILE], ["show", "get_time", "--argv", json.dumps({"a": HOSTILE})],
        ["export", "--dialect", "openai", "-v"], ["check", HOSTILE], ["--config", HOSTILE, "list"],
        ["list", "--from", f"{HOSTILE}=x"],
    )  # fmt: skip
    for command in commands:
        for more in ([], ["--json"]):
            said = here("--from", folder, *command, *more)
            assert re.findall(r"[^\n -~…]", said.out + said.err) == [], (command, said)
            assert said.status != 70


def test_escaped_json_still_says_what_was_declared(tmp_path: Path, here: Callable[..., Said]) -> None:
    manifest(tmp_path / "m", {**TIME, "description": f"line\n\t{HOSTILE}"})
    said = here("list", "--json", "--from", tmp_path / "m")
    assert said.json[0]["description"] == f"line\n\t{HOSTILE}"
    assert not re.search(r"[^ -~]", said.out.rstrip("\n"))


def test_a_declaration_cannot_forge_lines_of_a_report(tmp_path: Path, here: Callable[..., Said]) -> None:
    """Attack: a line break in a name or description that begins a line of its own."""
    forged = "x\nother.json:1: error: forged [manifest.x]"
    manifest(tmp_path / "m", {**TIME, "description": forged}, {**TIME, "name": forged}, {**TIME, forged: 1})
    for command in (["check", tmp_path / "m", "-v"], ["list", "--from", tmp_path / "m"]):
        assert not re.search("^other.json", here(*command).out, re.MULTILINE)
    shown = here("show", "get_time", "--from", tmp_path / "m").out
    assert re.search("^ +other.json", shown, re.MULTILINE)
    assert not re.search("^other.json", shown, re.MULTILINE)


# -- bad input ----------------------------------------------------------------------------------------------


def _directory(place: Path) -> None:
    (place / "tools.json").mkdir()


def _links(place: Path) -> None:
    (place / "tools.json").symlink_to("tools.json")
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    (place / "self").symlink_to(".")


def _sparse(place: Path) -> None:
    with (place / "tools.json").open("wb") as file:
        file.truncate(1 << 30)


def _fifo(place: Path) -> None:
    os.mkfifo(place / "tools.json")


def _text(text: str | bytes) -> Callable[[Path], None]:
    content = text if isinstance(text, bytes) else text.encode("utf-8")

    def make(place: Path) -> None:
        (place / "tools.json").write_bytes(content)

    return make


@pytest.mark.parametrize(
    ("make", "status", "says"),
    [
        (lambda place: None, 0, "no tools found: looked for SKILL.md"),
        (_directory, 65, "read manifest: it is a directory"),
        (_links, 65, "read manifest: its symbolic links lead in a circle"),
        (_sparse, 65, "read manifest: it has 1,073,741,824 bytes, more than the 1,048,576"),
        (_fifo, 65, "read manifest: not a regular file"),
        (_text(b"\x7fELF\x02\x01\xd0\xff"), 65, "parse manifest: line 1, column 7: not UTF-8 (byte 0xd0)"),
        (_text(""), 65, "parse manifest: line 1, column 1: the file is empty"),
        (_text('{"tools": [}'), 65, "parse manifest: line 1, column 12"),
        (_text('{"name": "x", "version": "1.0.0", "dependencies": {}}'), 0, "no tools found"),
        (_text('{"mcpServers": {"x": {"command": "npx"}}}'), 0, "a list of MCP servers"),
        (
            _text('[{"type": "function", "function": {"name": "x"}}]'),
            65,
            "not a tool declaration of a format",
        ),
        (_text('{"tools": [{"type": "function", "name": "x"}]}'), 65, "not a tool declaration of a format"),
        (_text("[" * 100_000), 65, "nested more than 100 levels deep"),
        (_text('{"tools": 5}'), 65, ""),
    ],
)
def test_what_is_no_declaration_is_told_without_a_traceback(
    make: Callable[[Path], None], status: int, says: str, tmp_path: Path, here: Callable[..., Said]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    make(place)
    said = here("check", place)
    assert said.status == status, said
    assert says in said.out
    assert "Traceback" not in said.out + said.err
    named = here("check", place / "tools.json", "--json")
    assert named.status in (0, 65, 66)
    if named.status != 66:
        assert named.json["tools"] == 0
    for command in (["list"], ["select", "x"], ["export", "--dialect", "mcp"]):
        assert here(*command, "--json", "--from", place).json == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", '{"a": 1}', "a manifest has `command` in its tools"),
        ("tools.json", "{}", "a manifest has `command` in its tools"),
        ("tools.json", '{"tools": []}', "a manifest has `command` in its tools"),
        ("package.json", '{"name": "x", "dependencies": {}}', "a manifest has `command` in its tools"),
        ("a.json", "[]", "a manifest has `command` in its tools"),
        ("a.json", "", "make it a readable JSON file"),
        ("a.toml", "a = 1", "name a folder, a JSON declaration, a SKILL.md"),
        ("a.txt", "x", "name a folder, a JSON declaration, a SKILL.md"),
        ("README", "x", "name a folder, a JSON declaration, a SKILL.md"),
        ("a.yaml", "a: 1", "not an OpenAPI 3 document"),
        ("a.py", "x = 1", "name a folder, a JSON declaration, a SKILL.md"),
        (".ai/tools/a/package.json", "{}", "declare tool_type, version"),
        (".ai/tools/a/plain.py", "x = 1", "declare tool_type, version"),
        (".ai/tools/a/plain.js", "1", "declare tool_type, version"),
        (".ai/tools/a/plain.sh", "true", "declare tool_type, version"),
        (".ai/tools/a/data.yaml", "a: 1", "declare tool_type, version"),
    ],
)
def test_a_file_that_a_person_named_and_no_format_knows_is_an_error_that_says_what_is_expected(
    name: str, text: str, says: str, tmp_path: Path, here: Callable[..., Said]
) -> None:
    path = tmp_path / "p" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    for said in (here("check", path), here("--from", path, "check")):
        assert (said.status, says in said.out) == (65, True), said
    assert here("list", "--from", path).status == 0


def test_a_program_that_a_person_named_and_that_cannot_be_run_is_an_error(
    tmp_path: Path, here: Callable[..., Said]
) -> None:
    (tmp_path / "a").write_text("x", encoding="utf-8")
    said = here("--from", f"executable={tmp_path / 'a'}", "check")
    assert (said.status, "chmod +x" in said.out) == (65, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "no such file or directory"),
        ("x" * 5000, "the path is too long"),
        ("x/" * 5000, "the path is too long"),
        ("x" * 1_000_000, "the path is too long"),
        ("tools.json/x", "a part of the path is not a directory"),
        ("loop", "its symbolic links lead in a circle"),
    ],
)
def test_a_path_that_cannot_be_read_ends_with_66(
    name: str, says: str, tmp_path: Path, here: Callable[..., Said]
) -> None:
    manifest(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    said = here("check", f"{tmp_path}/{name}")
    assert (said.status, said.out) == (66, "")
    assert said.err.splitlines()[0].endswith(says)
    assert len(said.err) < 1500


def test_a_file_without_permission_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    manifest(tmp_path / "file").chmod(0)
    manifest(tmp_path / "folder")
    (tmp_path / "folder").chmod(0)
    try:
        assert "permission denied" in toolcrib("check", "file", cwd=tmp_path).out
        said = toolcrib("check", "folder", cwd=tmp_path)
        assert said.status == 66
        assert "permission denied" in said.err
    finally:
        (tmp_path / "folder").chmod(0o700)


def test_names_that_are_not_utf8_are_told(tmp_path: Path, here: Callable[..., Said]) -> None:
    place = os.fsencode(tmp_path) + b"/bad\xff"
    os.mkdir(place)
    manifest(tmp_path / "good")
    said = here("check", tmp_path)
    assert said.status == 0
    assert r'names that are not UTF-8 are left out (1 of them, such as "bad\xff")' in said.out
    path = os.fsdecode(place)
    good = ["--from", str(tmp_path / "good")]
    for arguments, status in (
        (["check", path], 66),
        (["list", "--from", path], 66),
        (["--config", path, *good, "list"], 78),
        ([*good, "show", "\udcff"], 64),
        ([*good, "show", "get_time", "--argv", '{"zone": "\udcff"}'], 65),
        ([*good, "select", "\udcff", "--context", "\udcff=\udcff"], 0),
        (["init", "\udcff"], 2),
    ):
        said = here(*arguments)
        assert said.status == status, (arguments, said)
    assert toolcrib("list", "--json", cwd=Path(path), home=tmp_path / "home").status == 66
    argv = ["show", "get_time", "--argv", "{}", "--json", *good]
    assert toolcrib(*argv, cwd=Path(path), home=tmp_path / "home").json["cwd"].endswith(r"bad\xff")


def test_a_path_in_two_formats_words_is_a_path(tmp_path: Path, here: Callable[..., Said]) -> None:
    manifest(tmp_path / "a=b")
    assert here("check", tmp_path / "a=b").status == 0
    said = here("check", "skil=x")
    assert said.err == "toolcrib: unknown format 'skil' in 'skil=x'\n  did you mean skill=x?\n"
    assert "formats are skill, manifest" in here("check", "zzz=x").err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = \nb = 1", "not valid TOML: Invalid value (at line 1, column 5)"),
        ("\xff", "not valid TOML"),
        ("[manifst]", "unknown key 'manifst'\n  did you mean 'manifest'?"),
        ("[manifest]\nstrickt = true", "unknown key 'manifest.strickt'\n  did you mean 'strict'?"),
        ("[manifest]\nzzz = true", "unknown key 'manifest.zzz'\n  known here: strict"),
        ('[manifest]\nstrict = "yes"', "manifest.strict: must be true or false, got a string"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ("[timeouts]\ndefault_s = nan", "timeouts.default_s: must be above 0"),
        ("[timeouts]\ndefault_s = 1" + "0" * 400, "timeouts.default_s: must be above 0"),
        ('[[source]]\npath = "a\\u0000b"', "source[0].path: must not hold a NUL character"),
    ],
)
def test_a_wrong_configuration_ends_with_78(
    text: str, says: str, tmp_path: Path, here: Callable[..., Said]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(text.encode("latin-1"))
    said = here("--config", path, "list", "--json")
    assert (said.status, said.out) == (78, "")
    assert says in said.err
    assert len(said.err.splitlines()) == 2


def test_a_wrong_configuration_is_told_with_its_line(tmp_path: Path, here: Callable[..., Said]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[manifest]\n\nstrickt = true\n", encoding="utf-8")
    said = here("--config", path, "list")
    assert said.err == f"toolcrib: {path}:3: unknown key 'manifest.strickt'\n  did you mean 'strict'?\n"


def test_an_internal_error_is_told_in_a_sentence(project: Path) -> None:
    code = (
        "import sys\nfrom toolcrib.doors import cli\nfrom toolcrib.config import Environment\n"
        "sys.exit(cli.run(sys.argv[1:], environment=Environment(home='', path='', state=7, "
        "user_config='', user_space='')))"
    )
    program = [sys.executable, "-c", code]
    said = toolcrib("check", cwd=project, program=program)
    assert said.status == 70
    assert said.err.startswith("toolcrib: internal error (")
    assert "Traceback" in toolcrib("check", "-vv", cwd=project, program=program).err


# -- check: --fix, --watch, --sarif -------------------------------------------------------------------------

UNMENDED = """{
  "tools": [
    {
      "Name": "get_time",
      "description": "Keeps  its   blanks — and ünicode.",
      "schema": {"type": "object", "properties": {}, "additionalProperties": false},
      "command": ["tools/bin/get_time"],
      "zip": 1
    }
  ]
}
"""


def test_fix_mends_what_has_one_safe_mend_and_nothing_else(tmp_path: Path, here: Callable[..., Said]) -> None:
    path = manifest(tmp_path / "m")
    path.write_text(UNMENDED, encoding="utf-8")
    path.chmod(0o640)
    before = here("check", path, "--json").json["problems"]
    assert [problem["code"] for problem in before] == [
        "manifest.root.key-case", "manifest.root.unknown-keys", "manifest.command.without-dot",
    ]  # fmt: skip
    said = here("check", path, "--fix")
    assert said.status == 0
    assert said.out.splitlines()[:2] == [
        f'fixed {path}:4: tools[0].Name: key "Name" should be written "name"',
        f'fixed {path}:7: tools[0].command[0]: should be written "./tools/bin/get_time"'
        ' (got "tools/bin/get_time")',
    ]
    assert said.out.splitlines()[-1] == "1 tool: 1 warning; fixed 2 problems"
    expected = UNMENDED.replace('"Name"', '"name"').replace('"tools/bin', '"./tools/bin')
    assert path.read_text(encoding="utf-8") == expected
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["tools", "tools.json"]
    again = here("check", path, "--fix", "--json").json
    assert again["fixed"] == 0
    assert [problem["code"] for problem in again["problems"]] == ["manifest.root.unknown-keys"]


def test_fix_mends_until_nothing_changes(tmp_path: Path, here: Callable[..., Said]) -> None:
    path = manifest(tmp_path / "m")
    path.write_text(UNMENDED.replace('"command"', '"Command"'), encoding="utf-8")
    assert here("check", path, "--fix", "--json").json["fixed"] == 3
    assert here("check", path, "--fix", "--json").json["fixed"] == 0


@pytest.mark.parametrize("command", [("list",), ("call", "x"), ("token", "list"), ("secret", "list")])
def test_a_state_folder_that_is_none_is_not_told_to_be_opened_or_closed(
    tmp_path: Path, here: Callable[..., Said], command: tuple[str, ...]
) -> None:
    """Attack: root follows a hint, and takes ``/dev/null`` from every program of the machine."""
    manifest(tmp_path / "m")
    said = here("--from", tmp_path / "m", "--state", "/dev/null", *command)
    assert "chmod" not in said.err
    if command != ("list",):
        assert "/dev/null: it is not a folder" in said.err
        assert said.status != 0


def test_check_without_fix_changes_no_file(tmp_path: Path, here: Callable[..., Said]) -> None:
    path = manifest(tmp_path / "m")
    path.write_text(UNMENDED, encoding="utf-8")
    assert here("check", path).status == 0
    assert path.read_text(encoding="utf-8") == UNMENDED


def next_document(process: subprocess.Popen[bytes], deadline: float) -> Any:
    """The next line of JSON that the process prints."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0], (
        "no output in time"
    )
    return json.loads(process.stdout.readline())


def test_watch_checks_again_when_a_file_changes_until_interrupted(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    deadline = time.monotonic() + WAIT_S
    with subprocess.Popen(
        [PROGRAM, "check", "--watch", "--json", "tools.json"],
        cwd=tmp_path,
        env=environment(tmp_path / ".home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as process:
        try:
            assert next_document(process, deadline)["problems"] == []
            # Put in place whole: half a file is a change, too, and each one is told.
            beside = manifest(tmp_path / "beside")
            beside.write_text('{"tools": [', encoding="utf-8")
            beside.replace(path)
            assert [problem["code"] for problem in next_document(process, deadline)["problems"]] == [
                "manifest.root.parse-error"
            ]
            path.unlink()  # as editors do it: gone for a moment
            manifest(tmp_path / "beside", TIME, {**TIME, "name": "second"}).replace(path)
            assert next_document(process, deadline)["tools"] == 2
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 130
        finally:
            process.kill()


def test_sarif_is_written_beside_the_report(broken: Path) -> None:
    said = toolcrib("check", "--sarif", "problems.sarif", cwd=broken)
    assert said.status == 65
    document = json.loads((broken / "problems.sarif").read_text(encoding="utf-8"))
    problems = toolcrib("check", "--json", cwd=broken).json["problems"]
    (run,) = document["runs"]
    assert [
        (result["ruleId"], result["locations"][0]["physicalLocation"]["region"]["startLine"])
        for result in run["results"]
    ] == [(problem["code"], problem["line"]) for problem in problems]


# -- call: signals and keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "nohup", "status"),
    [
        (signal.SIGINT, [], 130),
        (signal.SIGTERM, [], 143),
        (signal.SIGHUP, [], 129),
        (signal.SIGHUP, ["nohup"], 0),
    ],
)
def test_a_signal_stops_a_call_and_its_number_is_told_except_the_end_of_the_terminal_under_nohup(
    tmp_path: Path, number: int, nohup: list[str], status: int
) -> None:
    manifest(tmp_path)
    (tmp_path / "tools" / "bin" / "get_time").write_text(
        "#!/bin/sh\necho $$ > new; mv new begun\nuntil [ -e go ]; do sleep 0.05; done\necho '{}'\n",
        encoding="utf-8",
    )
    deadline = time.monotonic() + WAIT_S
    with subprocess.Popen(
        [*nohup, PROGRAM, "--from", "tools.json", "call", "get_time"],
        cwd=tmp_path,
        env=environment(tmp_path / ".home"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            while not (tmp_path / "begun").exists():
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(number)
            if nohup:
                (tmp_path / "go").touch()
            assert process.wait(WAIT_S) == status
        finally:
            process.kill()
    tool = int((tmp_path / "begun").read_text(encoding="ascii"))
    assert not Path(f"/proc/{tool}").exists()
    *_, ended = toolcrib("audit", "tail", "--json", cwd=tmp_path).json
    assert (ended["what"], ended.get("kind")) == ("end", None if nohup else "cancelled")


def test_an_interrupt_while_the_program_still_loads_is_no_traceback(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'toolcrib.doors.cli':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from toolcrib.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "list"],
        cwd=tmp_path,
        env=environment(tmp_path / ".home"),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_an_empty_idempotency_key_is_refused_because_all_calls_would_share_it(
    project: Path, here: Callable[..., Said]
) -> None:
    said = here("--from", project / "clock", "call", "get_time", "--idempotency-key", "")
    assert (said.status, said.out) == (2, "")
    assert "must not be empty" in said.err


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_key_of_a_call_that_another_program_runs_is_in_progress_until_that_ends(
    tmp_path: Path, ends: str
) -> None:
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="keys-")))
    place.chmod(0o755)
    program = place / "tools" / "bin" / "slow"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ncat "{place}/gate" >/dev/null\necho done\n', encoding="utf-8")
    program.chmod(0o755)
    os.mkfifo(place / "gate")
    (place / "gate").chmod(0o666)
    tool = {"name": "slow", "description": "Waits.", "command": ["./tools/bin/slow"]}
    (place / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    command = ("--from", str(place), "call", "slow", "--idempotency-key", "k", "--json")
    try:
        with subprocess.Popen(
            [PROGRAM, *command], cwd=tmp_path, env=environment(tmp_path / ".home"), stdout=subprocess.DEVNULL
        ) as first:
            gate = os.open(place / "gate", os.O_WRONLY)  # returns when the tool runs
            during = toolcrib(*command, cwd=tmp_path)
            if ends == "killed":
                first.kill()
                first.wait(WAIT_S)
            os.close(gate)
        after = toolcrib(*command, cwd=tmp_path)
    finally:
        shutil.rmtree(place)
    assert (during.status, during.json["error"]["kind"]) == (69, "unavailable")
    assert during.json["error"]["message"].endswith("with this idempotency key is in progress")
    assert "call again with the same key" in during.json["error"]["hint"]
    if ends == "killed":
        assert (after.status, after.json["error"]["kind"]) == (71, "unknown_outcome")
    else:
        assert (after.status, after.json["ok"]) == (0, True)


# -- what is merely suspicious ------------------------------------------------------------------------------


def poisoned(folder: Path, count: int, *more: dict[str, Any]) -> None:
    program = folder / "tools" / "bin" / "x"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    tools = [
        {"name": f"t{number}", "description": f"Does\u200b {number}", "command": ["./tools/bin/x"]}
        for number in range(count)
    ]
    text = json.dumps({"tools": [*tools, *more]}, indent=1)
    (folder / "tools.json").write_text(text, encoding="utf-8")


@pytest.mark.battery("I11")
def test_invisible_characters_warn_and_strict_refuses_them(tmp_path: Path) -> None:
    poisoned(tmp_path, 1)
    said = toolcrib("check", cwd=tmp_path)
    assert said.status == 0
    assert said.out.splitlines()[0] == (
        'tools.json:3: warning: "t0": description: a character that nobody sees (U+200B ZERO WIDTH SPACE) '
        "[hygiene.hidden-characters]"
    )
    assert "\u200b" not in said.out
    assert toolcrib("check", "--strict", cwd=tmp_path).status == 65


def test_many_suspicions_of_one_kind_are_counted_and_do_not_hide_what_is_wrong(tmp_path: Path) -> None:
    poisoned(tmp_path, 30, {"name": "broken", "command": ["bin/x"]})
    said = toolcrib("check", cwd=tmp_path)
    lines = said.out.splitlines()
    assert "error" in lines[0]
    assert sum("[hygiene.hidden-characters]" in line for line in lines) == 8 + 1
    assert "… and 22 more [hygiene.hidden-characters]; -v shows them" in lines
    assert sum(line.startswith("    models read what people cannot see") for line in lines) == 1
    assert lines[-1] == "30 tools: 1 error, 30 warnings"
    verbose = toolcrib("check", "-v", cwd=tmp_path).out
    assert verbose.count("[hygiene.hidden-characters]") == 30
    assert len(toolcrib("check", "--json", cwd=tmp_path).json["problems"]) == 31


def test_a_command_may_be_done_as_if_started_in_another_folder(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    here = toolcrib("list", "--json", cwd=project)
    assert json.loads(here.out)
    for arguments in (("-C", str(project), "list", "--json"), ("list", "--json", "-C", str(project))):
        assert toolcrib(*arguments, cwd=elsewhere).out == here.out
    said = toolcrib("-C", "nowhere", "list", cwd=elsewhere)
    assert (said.status, said.err.splitlines()[0]) == (66, "toolcrib: nowhere: no such file or directory")
