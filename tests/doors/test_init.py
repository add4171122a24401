"""``toolcrib init``: every template passes ``check`` and does what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import PATH, WAIT_S, toolcrib
from toolcrib.model import FOUND_FORMATS

WRITTEN = {
    "skill": ["word-count/SKILL.md", "word-count/tools.json"],
    "manifest": ["word-count/tools.json", "word-count/tools/bin/word_count"],
    "capability": ["word-count/handlers/word_count.py", "word-count/word_count_tools.json"],
    "rye": ["word-count/.ai/tools/word-count/greet-someone.py"],
    "executable": ["word-count/word-count-tool"],
}
TOOL = {
    "skill": "word_count_count_lines",
    "manifest": "word_count",
    "capability": "word_count_greet",
    "rye": "word-count/greet-someone",
    "executable": "word_count",
}


@pytest.mark.parametrize("format_", FOUND_FORMATS)
def test_a_new_tool_passes_the_check(format_: str, tmp_path: Path) -> None:
    said = toolcrib("init", "--format", format_, "word-count", "--json", cwd=tmp_path)
    assert (said.status, said.err) == (0, "")
    assert sorted(said.json) == WRITTEN[format_]
    assert all((tmp_path / path).is_file() for path in said.json)
    source = ["--from", f"{'executable=' if format_ == 'executable' else ''}word-count"]
    checked = toolcrib("check", "--strict", "--json", *source, cwd=tmp_path)
    assert (checked.status, checked.json["tools"], checked.json["problems"]) == (0, 1, [])
    assert [row["name"] for row in toolcrib("list", "--json", *source, cwd=tmp_path).json] == [TOOL[format_]]


def test_the_files_and_the_next_step_are_told(tmp_path: Path) -> None:
    said = toolcrib("init", "word-count", cwd=tmp_path)
    assert sorted(said.out.split()) == WRITTEN["manifest"]
    assert said.err == "next: toolcrib check word-count\n"
    assert toolcrib(*said.err.split()[2:], cwd=tmp_path).out == "1 tool: no problems\n"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    (tmp_path / "broken").symlink_to("nowhere")
    for name in ("taken", "broken"):
        said = toolcrib("init", name, cwd=tmp_path)
        assert said.status == 2
        assert said.err.startswith(f"toolcrib: {name} exists already\n")
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../out", "a/b", "-x", "1a", "a--b", "a.b", "é", "x\n"])
def test_a_name_is_lower_case_words(name: str, tmp_path: Path) -> None:
    said = toolcrib("init", "--", name, cwd=tmp_path)
    assert said.status == 2
    assert "for example word-count" in said.err
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != ".home"] == []


def ran(program: Path | str, *arguments: str | Path, stdin: str = "") -> str:
    ended = subprocess.run(
        [program, *arguments], input=stdin, env={"PATH": PATH}, capture_output=True, text=True, timeout=WAIT_S
    )  # fmt: skip
    assert ended.returncode == 0, ended
    return ended.stdout


def test_the_templates_run(tmp_path: Path) -> None:
    for format_ in ("manifest", "executable", "capability", "rye"):
        assert toolcrib("init", "--format", format_, f"my-{format_}", cwd=tmp_path).status == 0
    greeting = {"greeting": "Hello, Ada!"}
    ada = '{"name": "Ada"}'
    manifest = tmp_path / "my-manifest" / "tools" / "bin" / "my_manifest"
    assert json.loads(ran(manifest, stdin=ada)) == greeting
    executable = tmp_path / "my-executable" / "my-executable-tool"
    assert json.loads(ran(executable, stdin=ada)) == greeting
    assert json.loads(ran(executable, "--schema"))["name"] == "my_executable"
    rye = tmp_path / "my-rye" / ".ai" / "tools" / "my-rye" / "greet-someone.py"
    result = ran(sys.executable, rye, "--params", ada, "--project-path", tmp_path)
    assert json.loads(result) == {"success": True, "output": "Hello, Ada!"}
    code = (
        "import asyncio, sys; sys.path.insert(0, sys.argv[1]); import my_capability as handlers\n"
        "print(asyncio.run(handlers.execute_my_capability_tool('my_capability_greet', {'name': 'Ada'})))"
    )
    handlers = tmp_path / "my-capability" / "handlers"
    assert ran(sys.executable, "-c", code, handlers) == "{'success': True, 'result': 'Hello, Ada!'}\n"
