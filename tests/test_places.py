"""Names that lead elsewhere, and programs that answer badly, through the library as people use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import toolcrib
from tests.program import PATH
from toolcrib.config import Environment, resolve
from toolcrib.errors import Kind

TOOL = '''"""Say hello."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "{category}"
__tool_description__ = "Say hello"


def execute(params: dict, project_path: str) -> dict:
    return {{"success": True}}
'''


def surroundings(folder: Path) -> Environment:
    return replace(
        Environment.read({"HOME": str(folder / "home"), "PATH": PATH}), state=str(folder / "state")
    )


@pytest.mark.battery("C07")
@pytest.mark.parametrize(
    "name", ["../../etc/x", "a//b", "a/./b", "a%2Fhello", "a\0b", "/etc/passwd", "a/../a/hello", "rye:../x"]
)
def test_an_item_id_that_is_a_path_finds_nothing(name: str, tmp_path: Path) -> None:
    home = tmp_path / "p" / ".ai" / "tools" / "a"
    home.mkdir(parents=True)
    (home / "hello.py").write_text(TOOL.format(category="a"), encoding="utf-8")
    environment = surroundings(tmp_path)
    config = resolve(environment, cwd=str(tmp_path), sources=[str(tmp_path / "p")])
    with toolcrib.open(config, environment=environment) as crib:
        assert crib.find("a/hello").name == "a/hello"
        result = crib.call(name, {})
        assert result.error is not None
        assert result.error.kind is Kind.UNKNOWN_TOOL
        assert "\0" not in result.content


@pytest.mark.battery("C08")
def test_a_category_that_is_not_the_folder_is_told_with_both(tmp_path: Path) -> None:
    home = tmp_path / "p" / ".ai" / "tools" / "a"
    home.mkdir(parents=True)
    (home / "hello.py").write_text(TOOL.format(category="b"), encoding="utf-8")
    environment = surroundings(tmp_path)
    config = resolve(environment, cwd=str(tmp_path), sources=[str(tmp_path / "p")])
    with toolcrib.open(config, environment=environment) as crib:
        (told,) = [problem for problem in crib.problems if "category" in problem.code]
        assert "'a'" in told.message
        assert "'b'" in told.message


@pytest.mark.battery("F09")
def test_a_program_that_answers_badly_is_left_out_and_its_neighbours_load(tmp_path: Path) -> None:
    good = """echo '{"name":"good","description":"d","parameters":{"type":"object","properties":{}}}'"""
    bodies = {
        "good": good,
        "banner": f"echo Welcome; {good}",
        "flood": "yes",
        "hang": "sleep 60",
        "fails": f"{good}; exit 1",
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in bodies.items():
        path = folder / f"{name}-tool"
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    environment = surroundings(tmp_path)
    config = resolve(environment, cwd=str(tmp_path), sources=[f"executable={folder}"])
    with toolcrib.open(config, environment=environment) as crib:
        assert [tool.name for tool in crib.tools] == ["good"]
        told = {Path(problem.path).name for problem in crib.problems}
        assert told >= {"banner-tool", "flood-tool", "hang-tool", "fails-tool"}
