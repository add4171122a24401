"""The workshop in examples/: it loads without a complaint, and every tool in it does what it says.

Programs are started as the formats' contracts say, with the command that the record gives; handlers and
``execute`` functions are called in this process.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import toolwright
from toolwright import config
from toolwright.calls import commands
from toolwright.model import AsArgv, Positional, Role, RunProcess, Severity, ToolError

EXAMPLES = Path(__file__).parent.parent / "examples"
RYE = EXAMPLES / "rye"
PLANETS = str(EXAMPLES / "data" / "planets.csv")

KEYS = [
    "skill:git/git_status",
    "skill:git/git_log",
    "skill:git/git_diff",
    "skill:git/git_diff_against",
    "skill:git/git_show",
    "skill:git/git_add",
    "skill:git/git_commit",
    "skill:search/find_files",
    "skill:search/search_text",
    "skill:search/read_start",
    "skill:search/count_lines",
    "manifest:manifest/get_time",
    "manifest:manifest/csv_query",
    "manifest:manifest/json_get",
    "manifest:manifest/machine_info",
    "capability:document/save_document",
    "capability:document/list_documents",
    "capability:document/read_document",
    "capability:journal/add_journal_entry",
    "capability:journal/recall_journal",
    "capability:journal/search_journal",
    "capability:task/add_task",
    "capability:task/list_tasks",
    "capability:task/complete_task",
    "rye:checks/run-unittests",
    "rye:data/diff-json",
    "rye:files/largest-files",
    "rye:files/replace-text",
    "rye:mcp/units/convert-units",
    "rye:text/find-markers",
    "rye:text/outline-markdown",
    "executable:bin/calculate",
    "executable:bin/checksum",
    "executable:bin/compare_files",
]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[toolwright.Workshop]:
    """The whole workshop, on a machine whose user has no tools of their own."""
    home = tmp_path_factory.mktemp("home")
    settings = config.read_file(str(EXAMPLES / "toolwright.toml"), trusted=True)
    environment = config.Environment.read({"HOME": str(home), "PATH": os.environ["PATH"]})
    with toolwright.open(settings, environment=environment) as opened:
        yield opened


def run(
    workshop: toolwright.Workshop,
    name: str,
    arguments: Mapping[str, Any],
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Start what the record says, with nothing more of the environment than every format gives."""
    raw = json.dumps(arguments)
    command = commands.command(workshop.find(name), dict(arguments), raw, cwd=str(cwd))
    assert not isinstance(command, ToolError), command.message
    return subprocess.run(
        command.argv,
        input=(command.stdin or b"").decode("utf-8"),
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), **(env or {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# -- the workshop --------------------------------------------------------------------------------------------


def test_the_workshop_has_exactly_these_tools(workshop):
    assert sorted(tool.key for tool in workshop.tools if tool.role is Role.TOOL) == sorted(KEYS)


def test_each_format_has_at_least_three_tools():
    formats = [key.partition(":")[0] for key in KEYS]
    assert {name for name in formats if formats.count(name) >= 3} == set(config.FORMATS)


def test_nothing_is_wrong_with_the_workshop(workshop):
    assert [problem for problem in workshop.problems if problem.severity is not Severity.INFO] == []


def test_the_server_of_a_tool_is_listed_and_not_offered(workshop):
    assert [tool.key for tool in workshop.tools if tool.role is not Role.TOOL] == ["rye:mcp/servers/units"]


def test_a_skill_may_have_instructions_alone(workshop):
    assert [skill.name for skill in workshop.skills] == ["commit-style", "git", "search"]


def test_the_groups_show_the_three_ways_of_selection(workshop):
    def groups(message: str, **context: object) -> set[str]:
        chosen = [choice.key.split(":") for choice in workshop.select(message, context=context).chosen]
        return {rest.partition("/")[0] for name, rest in chosen if name == "capability"}

    assert groups("hello") == {"journal"}
    assert groups("remind me to water the plants") == {"journal", "task"}
    assert groups("hello", project_id="p1") == {"journal", "document"}


def test_every_tool_is_explained_in_the_readme(workshop):
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [tool.key for tool in workshop.tools if f"`{tool.name}`" not in readme] == []


def test_the_commands_of_the_readme_print_what_it_says():
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    sessions = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.MULTILINE)
    assert len(sessions) >= 10
    for command, expected in sessions:
        done = subprocess.run(
            ["sh", "-c", f"{command} 2>&1"],
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert (command, done.stdout) == (command, expected)


# -- skills --------------------------------------------------------------------------------------------------

GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository on the branch main, with one commit and one file that nobody staged."""
    for name, command in (
        ("a.txt", ["git", "init", "--quiet", "--initial-branch=main"]),
        ("b.txt", ["git", "add", "a.txt"]),
        ("b.txt", ["git", "commit", "--quiet", "--message", "Begin"]),
    ):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **GIT}
        subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, check=True)
    return tmp_path


def resolved(workshop: toolwright.Workshop, name: str, value: str, cwd: Path) -> str:
    """What the resolver of a tool's positional makes of a value, run as the format says."""
    invocation = workshop.find(name).invocation
    assert isinstance(invocation, RunProcess)
    assert isinstance(invocation.encoding, AsArgv)
    (found,) = (arg.resolver for arg in invocation.encoding.args if isinstance(arg, Positional))
    assert found is not None
    if found.script is not None:
        program = ["sh", f"{invocation.skill_dir}/scripts/{found.script}.sh"]
    else:
        program = [str(found.binary), str(found.subcommand)]
    done = subprocess.run(
        [*program, *(item.replace("$param", value) for item in found.args)],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), **GIT},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    return (done.stdout.strip() or value) if done.returncode == 0 else value


def test_git_stages_commits_and_shows_what_happened(workshop, repository):
    def git(name: str, **arguments: object) -> str:
        done = run(workshop, name, arguments, repository, GIT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert git("git_status", short=True) == "?? b.txt\n"
    assert "On branch main" in git("git_status")
    git("git_add", path="b.txt")
    assert "+b.txt" in git("git_diff", staged=True)
    git("git_commit", message="Add b\n\n- because it was missing")
    (repository / "a.txt").write_text("changed\n", encoding="utf-8")
    assert "a.txt | 2 +-" in git("git_diff", stat=True)
    git("git_commit", message="Change a", all=True)
    assert [line.partition(" ")[2] for line in git("git_log", oneline=True).splitlines()] == [
        "Change a", "Add b", "Begin",
    ]  # fmt: skip
    assert git("git_log", oneline=True, max_count=1).endswith("Change a\n")
    assert git("git_log", oneline=True, message="^Add", author="Ada", since="1 year ago").endswith("Add b\n")
    assert git("git_log", author="nobody") == ""
    assert "- because it was missing" in git("git_show", revision="HEAD~1", stat=True)
    assert "+changed" in git("git_diff_against", revision="HEAD~1")


def test_a_revision_is_resolved_to_its_commit_and_kept_when_there_is_none(workshop, repository):
    commit = resolved(workshop, "git_show", "main", repository)
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    assert run(workshop, "git_show", {"revision": commit}, repository, GIT).returncode == 0
    assert resolved(workshop, "git_show", "nowhere", repository) == "nowhere"
    assert "nowhere" in run(workshop, "git_show", {"revision": "nowhere"}, repository, GIT).stderr


def test_trunk_is_resolved_to_the_main_branch_and_nothing_else_is(workshop, repository):
    assert resolved(workshop, "git_diff_against", "trunk", repository) == "main"
    assert resolved(workshop, "git_diff_against", "HEAD~1", repository) == "HEAD~1"


def test_a_value_that_looks_like_an_option_is_refused(workshop, tmp_path):
    refused = commands.command(workshop.find("git_show"), {"revision": "--output=x"}, "", cwd=str(tmp_path))
    assert isinstance(refused, ToolError)
    assert refused.message == "parameter revision must not begin with '-'"


def test_search_finds_files_and_text_and_reads_them(workshop, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "Notes.md").write_text("one\n- two\nTwofold\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("two\n", encoding="utf-8")

    def search(name: str, **arguments: object) -> str:
        return run(workshop, name, arguments, tmp_path).stdout

    assert search("find_files", pattern="*.md") == "./sub/Notes.md\n"
    assert search("find_files", pattern="notes.*") == ""
    assert search("find_files", pattern="notes.*", ignore_case=True) == "./sub/Notes.md\n"
    assert search("search_text", pattern="- t", path=".") == "./sub/Notes.md:2:- two\n"
    assert search("search_text", pattern="TWO", path="sub", ignore_case=True) == (
        "sub/Notes.md:2:- two\nsub/Notes.md:3:Twofold\n"
    )
    assert search("search_text", pattern="two", path=".", files="*.txt") == "./other.txt:1:two\n"
    assert search("search_text", pattern="Two|two", path="sub", max_count=1) == "sub/Notes.md:2:- two\n"
    assert search("search_text", pattern="Two", path="sub", whole_words=True) == ""
    assert run(workshop, "search_text", {"pattern": "x", "path": "."}, tmp_path).returncode == 1
    assert search("read_start", path="sub/Notes.md", lines=1) == "one\n"
    assert search("count_lines", path="sub/Notes.md") == "3 sub/Notes.md\n"


# -- manifest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        (
            "get_time",
            {"timezone": "UTC", "at": "2026-01-31T12:00:00+02:00"},
            {
                "timezone": "UTC",
                "time": "2026-01-31T10:00:00+00:00",
                "weekday": "Saturday",
                "unix": 1769853600,
            },
        ),
        (
            "csv_query",
            {
                "path": PLANETS,
                "columns": ["moons", "name"],
                "where": [
                    {"column": "kind", "is": "containing", "value": "GIANT"},
                    {"column": "moons", "is": "above", "value": "20"},
                ],
                "sort_by": "radius_km",
            },
            {
                "matched": 3,
                "rows": [
                    {"moons": "28", "name": "Uranus"},
                    {"moons": "146", "name": "Saturn"},
                    {"moons": "95", "name": "Jupiter"},
                ],
            },
        ),
        (
            "csv_query",
            {"path": PLANETS, "columns": ["name"], "sort_by": "moons", "descending": True, "limit": 1},
            {"matched": 8, "rows": [{"name": "Saturn"}]},
        ),
        (
            "json_get",
            {"path": str(EXAMPLES / "groups" / "task_tools.json"), "pointer": "/tools/0/name"},
            {"value": "add_task"},
        ),
        (
            "json_get",
            {"path": str(EXAMPLES / "groups" / "task_tools.json"), "pointer": "/tools", "outline": True},
            {"outline": {"length": 3, "first": ["an object with 5 members"] * 3}},
        ),
    ],
)
def test_a_manifest_program_answers_with_one_line_of_json(workshop, tmp_path, name, arguments, result):
    done = run(workshop, name, arguments, tmp_path)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert json.loads(done.stdout) == result


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("get_time", {"timezone": "Nowhere/Land"}, "unknown time zone: Nowhere/Land"),
        ("get_time", {"timezone": "../../etc/passwd"}, "unknown time zone: ../../etc/passwd"),
        ("get_time", {"at": "2026-01-31T12:00"}, "at needs an offset, as in 2026-01-31T12:00+00:00"),
        ("get_time", {"at": "noon"}, "Invalid isoformat string: 'noon'"),
        ("csv_query", {"path": "no.csv"}, "no.csv: No such file or directory"),
        ("csv_query", {}, "csv_query() missing 1 required keyword-only argument: 'path'"),
        (
            "csv_query",
            {"path": PLANETS, "sort_by": "rings"},
            "no column 'rings'; there are: name, kind, radius_km, moons, year_days",
        ),
        (
            "json_get",
            {"path": str(EXAMPLES / "groups" / "task_tools.json"), "pointer": "/tools/7"},
            "nothing at /tools/7: /tools is an array of 3",
        ),
        (
            "json_get",
            {"path": PLANETS},
            f"{PLANETS} cannot be read as JSON: Expecting value: line 1 column 1 (char 0)",
        ),
    ],
)
def test_a_manifest_program_that_fails_says_why_in_json(workshop, tmp_path, name, arguments, error):
    done = run(workshop, name, arguments, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr) == {"error": error}


def test_get_time_takes_its_default_from_the_variable_it_is_passed(workshop, tmp_path):
    assert workshop.find("get_time").needs.env == ("TZ",)
    answers = [json.loads(run(workshop, "get_time", {}, tmp_path, env).stdout) for env in ({}, {"TZ": "UTC"})]
    assert [answer["timezone"] for answer in answers] == ["UTC", "UTC"]
    assert json.loads(run(workshop, "get_time", {}, tmp_path, {"TZ": "No/Zone"}).stderr) == {
        "error": "unknown time zone: No/Zone"
    }


def test_machine_info_describes_the_machine(workshop, tmp_path):
    if not os.path.exists("/proc/meminfo"):
        pytest.skip("machine_info reads /proc, which only Linux has")
    answer = json.loads(run(workshop, "machine_info", {}, tmp_path).stdout)
    assert (answer["system"], answer["machine"]) == (os.uname().sysname, os.uname().machine)
    assert answer["processors"] >= 1
    assert 0 < answer["available_kb"] <= answer["memory_kb"]
    assert answer["load"] >= 0


# -- executables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["calculate", "checksum", "compare_files"])
def test_an_executable_describes_itself(workshop, name):
    tool = workshop.find(name)
    done = subprocess.run(
        [tool.origin.path, "--schema"],
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=60,
        check=True,
    )
    schema = json.loads(done.stdout)
    assert (schema["name"], schema["description"]) == (name, tool.description)
    assert schema["parameters"] == tool.input_schema.document


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("0.1 + 0.2", "0.3"),
        ("round(1234.5 * 1.19, 2)", "1469.06"),
        ("-(2 - 5) ** 3", "27"),
        ("sqrt(2)", "1.4142135623730950488016887242096980785696718753769"),
        ("max(1, abs(-7), 3) / 4", "1.75"),
        ("2 ** 100", "1267650600228229401496703205376"),
    ],
)
def test_calculate_gives_the_digits_that_are_right(workshop, tmp_path, expression, result):
    done = run(workshop, "calculate", {"expression": expression}, tmp_path)
    assert json.loads(done.stdout) == {"expression": expression, "result": result}


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("1 / 0", "not a number: DivisionByZero"),
        ("9 ** 9 ** 9", "not a number: Overflow"),
        ("1 +", "the expression is not complete or not arithmetic"),
        ("__import__('os').getcwd()", "not arithmetic: __import__('os').getcwd()"),
        ("open", "not arithmetic: open"),
        ("sqrt(1, 2, 3)", "sqrt takes another number of values (got 3)"),
        ("1" * 501, "the expression is longer than 500 characters"),
    ],
)
def test_calculate_refuses_what_is_no_arithmetic(workshop, tmp_path, expression, error):
    done = run(workshop, "calculate", {"expression": expression}, tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"error": error, "error_code": "INVALID_ARG"}


def test_compare_files_returns_a_diff(workshop, tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n", encoding="utf-8")
    (tmp_path / "b").write_text("1\nzwei\n3\n4\n", encoding="utf-8")

    def compare(first: str, second: str, **more: int) -> Any:
        arguments = {"first_path": first, "second_path": second, **more}
        return json.loads(run(workshop, "compare_files", arguments, tmp_path).stdout)

    assert compare("a", "b", context_lines=0) == {
        "same_lines": False,
        "added": 2,
        "removed": 1,
        "diff": "--- a\n+++ b\n@@ -2 +2 @@\n-2\n+zwei\n@@ -3,0 +4 @@\n+4",
        "truncated": False,
    }
    assert compare("a", "b", max_lines=2)["truncated"]
    assert compare("a", "a")["same_lines"]
    assert compare("a", "c") == {"error": "no such file: c", "error_code": "FILE_NOT_FOUND"}


def test_checksum_reads_files_of_any_name(workshop, tmp_path):
    (tmp_path / "-n $(id)").write_bytes(b"abc")
    done = run(workshop, "checksum", {"file_path": "-n $(id)"}, tmp_path)
    assert json.loads(done.stdout) == {
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "bytes": 3,
    }
    for arguments, code in (({"file_path": "no"}, "FILE_NOT_FOUND"), ({}, "INVALID_ARG")):
        done = run(workshop, "checksum", arguments, tmp_path)
        assert (done.returncode, json.loads(done.stdout)["error_code"]) == (0, code)


# -- capability groups ---------------------------------------------------------------------------------------


def handle(tool_name: str, tool_input: dict[str, Any], **context: Any) -> Any:
    """Call the handler of a group as a host does."""
    group = next(key for key in KEYS if key.endswith(f"/{tool_name}")).partition(":")[2].partition("/")[0]
    function = getattr(module(EXAMPLES / "handlers" / f"{group}.py"), f"execute_{group}_tool")
    result = function(tool_name, tool_input, **context)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def test_the_journal_keeps_each_users_days(tmp_path):
    ada = {"user_id": "ada", "database": str(tmp_path / "db")}
    bob = {**ada, "user_id": "bob"}
    assert handle("add_journal_entry", {"text": "Rain all day", "date": "2026-01-30"}, **ada)["success"]
    assert handle("add_journal_entry", {"text": "More RAIN", "date": "2026-01-31"}, **ada) == {
        "success": True,
        "result": "Noted under 2026-01-31.",
    }
    assert handle("recall_journal", {"date": "2026-01-30"}, **ada)["result"] == {
        "date": "2026-01-30",
        "entries": ["Rain all day"],
    }
    found = handle("search_journal", {"text": "rain", "limit": 10}, **ada)["result"]
    assert [entry["date"] for entry in found] == ["2026-01-31", "2026-01-30"]
    assert len(handle("search_journal", {"text": "rain", "limit": 1}, **ada)["result"]) == 1
    assert handle("search_journal", {"text": "%", "limit": 10}, **ada)["result"] == []
    assert handle("recall_journal", {"date": "2026-01-30"}, **bob)["result"]["entries"] == []
    assert handle("recall_journal", {"date": "yesterday"}, **ada) == {
        "success": False,
        "error": "date must be YYYY-MM-DD (got 'yesterday')",
    }


def test_a_journal_entry_without_a_date_belongs_to_today(tmp_path):
    context = {"user_id": "ada", "database": str(tmp_path / "db")}
    handle("add_journal_entry", {"text": "Now"}, **context)
    assert handle("recall_journal", {}, **context)["result"]["entries"] == ["Now"]


def test_tasks_are_listed_by_date_and_completed_by_their_user(tmp_path):
    ada = {"user_id": "ada", "database": str(tmp_path / "db")}
    some_day = handle("add_task", {"title": "Paint the fence", "priority": "low"}, **ada)["result"]["task_id"]
    soon = handle("add_task", {"title": "Pay the rent", "due": "2026-02-01"}, **ada)["result"]["task_id"]
    assert handle("list_tasks", {"status": "open"}, **ada)["result"] == [
        {"task_id": soon, "title": "Pay the rent", "due": "2026-02-01", "priority": "normal", "done": False},
        {"task_id": some_day, "title": "Paint the fence", "due": None, "priority": "low", "done": False},
    ]
    assert handle("complete_task", {"task_id": soon}, **{**ada, "user_id": "bob"}) == {
        "success": False,
        "error": f"There is no task {soon}.",
    }
    assert handle("complete_task", {"task_id": soon}, **ada)["success"]
    for status, titles in (
        ("open", ["Paint the fence"]),
        ("done", ["Pay the rent"]),
        ("all", ["Pay the rent", "Paint the fence"]),
    ):
        assert [task["title"] for task in handle("list_tasks", {"status": status}, **ada)["result"]] == titles
    due = handle("list_tasks", {"status": "all", "due_by": "2026-01-31"}, **ada)
    assert due == {"success": True, "result": []}
    assert not handle("add_task", {"title": "x", "due": "soon"}, **ada)["success"]


def test_documents_belong_to_their_project(tmp_path):
    here = {"project_id": "p1", "user_id": "ada", "database": str(tmp_path / "db")}
    there = {**here, "project_id": "p2"}
    assert handle("save_document", {"title": "Plan", "text": "First"}, **here)["success"]
    assert handle("save_document", {"title": "Plan", "text": "Second"}, **here)["success"]
    (listed,) = handle("list_documents", {}, **here)["result"]
    assert (listed["title"], listed["author"], listed["characters"]) == ("Plan", "ada", 6)
    assert handle("read_document", {"title": "Plan"}, **here)["result"] == {"title": "Plan", "text": "Second"}
    assert handle("list_documents", {}, **there)["result"] == []
    assert handle("read_document", {"title": "Plan"}, **there) == {
        "success": False,
        "error": "There is no document 'Plan'.",
    }


# -- rye -----------------------------------------------------------------------------------------------------


def execute(item_id: str, params: dict[str, Any], project: Path) -> Any:
    return module(RYE / ".ai" / "tools" / f"{item_id}.py").execute(params, str(project))


def test_outline_markdown_lists_headings_and_knows_code(tmp_path):
    text = "# One #\n\n```sh\n# no heading\n```\n## Two\n#no\n### Three\n"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    found = execute("text/outline-markdown", {"file_path": "a.md", "max_level": 2}, tmp_path)
    assert found == {
        "success": True,
        "output": [{"level": 1, "title": "One", "line": 1}, {"level": 2, "title": "Two", "line": 6}],
        "lines": 8,
    }
    assert execute("text/outline-markdown", {"file_path": "b.md"}, tmp_path) == {
        "success": False,
        "error": "b.md: No such file or directory",
    }


def test_find_markers_goes_by_its_configuration(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "lib" / "a.py").write_text("x = 1  # TODO: more\n# FIXME\n# TODOS\n", encoding="utf-8")
    (tmp_path / "old" / "b.py").write_text("# TODO\n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff TODO")
    found = execute(
        "text/find-markers", {"resolved_config": {"markers": ["TODO"], "left_out": ["old"]}}, tmp_path
    )
    assert found == {
        "success": True,
        "output": [{"file": "lib/a.py", "line": 1, "text": "x = 1  # TODO: more"}],
        "found": 1,
    }
    assert execute("text/find-markers", {"folder": ".", "limit": 1}, tmp_path)["found"] == 3
    assert not execute("text/find-markers", {"folder": "none"}, tmp_path)["success"]


def test_replace_text_replaces_only_what_is_clear(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo two\r\n")

    def replace(old: str, new: str, **more: bool) -> Any:
        params = {"file_path": "a.txt", "old_text": old, "new_text": new, **more}
        return execute("files/replace-text", params, tmp_path)

    assert replace("one", "1") == {"success": True, "file_path": "a.txt", "replaced": 1}
    assert not replace("two", "2")["success"]
    assert not replace("three", "3")["success"]
    assert replace("two", "2", replace_all=True)["replaced"] == 2
    assert (tmp_path / "a.txt").read_bytes() == b"1\r\n2 2\r\n"


@pytest.mark.parametrize(
    ("item_id", "params"),
    [
        ("text/outline-markdown", {"file_path": "../secret.md"}),
        ("text/outline-markdown", {"file_path": "link.md"}),
        ("text/find-markers", {"folder": ".."}),
        ("files/replace-text", {"file_path": "../secret.md", "old_text": "a", "new_text": "b"}),
    ],
)
def test_a_rye_tool_stays_inside_its_project(tmp_path, item_id, params):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "secret.md").write_text("a", encoding="utf-8")
    (project / "link.md").symlink_to(tmp_path / "secret.md")
    found = execute(item_id, params, project)
    assert not found["success"]
    assert found["error"].endswith("is outside the project")
    assert (tmp_path / "secret.md").read_text(encoding="utf-8") == "a"


@pytest.mark.parametrize("item_id", ["text/outline-markdown", "text/find-markers", "files/replace-text"])
def test_a_rye_tool_can_be_run_by_hand(tmp_path, item_id):
    (tmp_path / "a.md").write_text("# TODO\n", encoding="utf-8")
    params = json.dumps({"file_path": "a.md", "old_text": "TODO", "new_text": "DONE"})
    file = RYE / ".ai" / "tools" / f"{item_id}.py"
    argv = ["python3", file, "--params", params, "--project-path", tmp_path]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["success"] is True


def test_largest_files_lists_sizes_and_paths(workshop, tmp_path):
    for name, size in (("small", 1), ("large", 300), ("middle", 20)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert run(workshop, "files/largest-files", {"limit": 2}, tmp_path).stdout == "300\tlarge\n20\tmiddle\n"
    assert run(workshop, "files/largest-files", {}, tmp_path).stdout.count("\n") == 3
    failed = run(workshop, "files/largest-files", {"limit": "$(id)"}, tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "limit must be a whole number" in failed.stderr


def test_run_unittests_runs_the_tests_of_the_project(workshop):
    done = run(workshop, "checks/run-unittests", {}, RYE)
    assert done.returncode == 0
    assert "OK" in done.stderr


def node() -> str:
    """The Node that runs TypeScript as it stands; skips where there is none."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed; Node 22.18 or later runs TypeScript as it stands")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    if tuple(int(part) for part in said.strip().removeprefix("v").split(".")[:2]) < (22, 18):
        pytest.skip(f"node {said.strip()} does not run TypeScript as it stands; 22.18 or later does")
    return found


def test_diff_json_lists_differences_with_their_pointers(tmp_path):
    program = (
        "const tool = await import(process.argv[1]);"
        "console.log(JSON.stringify(tool.default(JSON.parse(process.argv[2]))));"
    )

    def diff(before: str, after: str) -> Any:
        file = str(RYE / ".ai" / "tools" / "data" / "diff-json.ts")
        params = json.dumps({"before": before, "after": after})
        argv = [node(), "--input-type=module", "--eval", program, file, params]
        return json.loads(subprocess.run(argv, capture_output=True, timeout=60, check=True).stdout)

    assert diff('{"a": 1, "b": [1], "c/d": null}', '{"a": 2, "b": [1, 3]}') == {
        "success": True,
        "output": [
            {"pointer": "/a", "change": "changed", "before": 1, "after": 2},
            {"pointer": "/b/1", "change": "added", "after": 3},
            {"pointer": "/c~1d", "change": "removed", "before": None},
        ],
        "equal": False,
    }
    assert diff('{"a": [1, {}]}', '{"a": [1, {}]}')["equal"]
    assert diff("{", "1")["error"].startswith("before is not JSON: ")


def test_the_mcp_server_converts_units():
    def request(number: int, method: str, **params: object) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def convert(number: int, value: float, from_unit: str, to_unit: str) -> str:
        arguments = {"value": value, "from_unit": from_unit, "to_unit": to_unit}
        return request(number, "tools/call", name="convert_units", arguments=arguments)

    messages = [
        request(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request(2, "tools/list"),
        convert(3, 26.2, "mile", "km"),
        convert(4, -40, "fahrenheit", "celsius"),
        convert(5, 1, "hour", "kg"),
        request(6, "no/such/method"),
    ]
    done = subprocess.run(
        ["python3", RYE / "servers" / "units.py"],
        input="\n".join(messages),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers[1]["result"]["protocolVersion"] == "2025-11-25"
    assert [tool["name"] for tool in answers[2]["result"]["tools"]] == ["convert_units"]
    said = {number: answers[number]["result"]["content"][0]["text"] for number in (3, 4, 5)}
    assert said == {
        3: "42.1648128 km",
        4: "-40 celsius",
        5: "hour is a unit of time, kg of mass",
    }
    assert [answers[number]["result"]["isError"] for number in (3, 4, 5)] == [False, False, True]
    assert answers[6]["error"]["code"] == -32601
