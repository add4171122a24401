"""Folders in which programs and modules are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcrib.catalog.searched import LeftOut, cleaned


def told(left_out: list[LeftOut]) -> list[tuple[str, str]]:
    return [(each.folder, each.why) for each in left_out]


def test_folders_elsewhere_stay_whether_they_are_there_or_not(tmp_path: Path) -> None:
    value = f"/usr/bin:/nowhere:{tmp_path}-beside/bin"
    assert cleaned("PATH", value, (str(tmp_path),), None) == (value, [])


@pytest.mark.parametrize("name", ["none", "none/deeper", "../{project}/none", "link/none"])
def test_attack_a_folder_that_a_tool_could_make(name: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (project / "link").symlink_to("../elsewhere")
    folder = f"{project}/{name.format(project='project')}"
    value, left_out = cleaned("PATH", f"{folder}:/usr/bin", (str(project),), None)
    assert value == "/usr/bin"
    assert told(left_out) == [(folder, "it does not exist, and a tool could make it")]


def test_attack_a_link_that_a_tool_exchanges(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "bin").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (project / "inside").symlink_to("bin")
    (project / "outside").symlink_to("../elsewhere")
    (tmp_path / "into").symlink_to("project/bin")
    value = f"{project}/inside:{project}/outside:{tmp_path}/into"
    assert cleaned("PATH", value, (str(project),), None) == (f"{project}/bin:{tmp_path}/elsewhere", [])


@pytest.mark.parametrize("folder", ["", ".", "bin", "./bin", "bin/../bin"])
def test_attack_a_folder_that_is_another_one_in_each_folder(folder: str) -> None:
    value, _ = cleaned("PATH", f"{folder}:/usr/bin", ("/project",), None)
    assert value == "/usr/bin"


def test_attack_a_path_without_any_folder_which_shells_take_for_the_current_one() -> None:
    assert cleaned("PATH", ".", ("/project",), None)[0] == "/dev/null"
    assert cleaned("PATH", "", ("/project",), None)[0] == "/dev/null"
    assert cleaned("PYTHONPATH", "", ("/project",), None)[0] == ""


def test_a_folder_in_which_tools_work_is_no_folder_of_programs(tmp_path: Path) -> None:
    value, left_out = cleaned("PATH", f"{tmp_path}:/usr/bin", (str(tmp_path),), None)
    assert value == "/usr/bin"
    assert told(left_out) == [(str(tmp_path), "tools may write in it")]
