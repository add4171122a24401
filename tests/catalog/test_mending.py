"""Mending: exactly the place that a problem names, in files that were asked for, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolcrib.catalog.mending import mend
from toolcrib.jsontext import Pointer
from toolcrib.model import Fix, FixPart, Problem


def rename(path: Path, pointer: Pointer, new: str) -> Problem:
    return Problem(code="x", message="m", path=str(path), pointer=pointer, fix=Fix(part=FixPart.KEY, new=new))


def rewrite(path: Path, pointer: Pointer, new: str) -> Problem:
    return Problem(
        code="x", message="m", path=str(path), pointer=pointer, fix=Fix(part=FixPart.VALUE, new=new)
    )


def reword(path: Path, line: int | None, old: str | None, new: str) -> Problem:
    return Problem(code="x", message="m", path=str(path), line=line, fix=Fix(old=old, new=new))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "tools.json"
    path.write_bytes(b'{ "Name" : "a",\r\n\t"list": [1,  2, "\\u00fc"] }\n')
    return path


def test_a_key_and_a_value_are_replaced_and_every_other_byte_stays(document: Path) -> None:
    problems = [rename(document, ("Name",), '"name"'), rewrite(document, ("list", 1), '"two"')]
    mended = mend(problems, [str(document.parent)])
    assert mended.problems == problems
    assert document.read_bytes() == b'{ "name" : "a",\r\n\t"list": [1,  "two", "\\u00fc"] }\n'


def test_a_problem_without_a_fix_is_left(document: Path) -> None:
    before = document.read_bytes()
    mended = mend([Problem(code="x", message="m", path=str(document))], [str(document.parent)])
    assert (mended.problems, document.read_bytes()) == ([], before)


def test_a_place_that_is_gone_is_left(document: Path) -> None:
    before = document.read_bytes()
    gone = [
        rename(document, ("other",), '"x"'),
        rewrite(document, ("list", 9), "1"),
        rename(document, (), '"x"'),
    ]
    assert mend(gone, [str(document.parent)]).problems == []
    assert document.read_bytes() == before


def test_a_new_name_that_is_taken_would_make_a_repeated_key(document: Path) -> None:
    before = document.read_bytes()
    assert mend([rename(document, ("Name",), '"list"')], [str(document.parent)]).problems == []
    assert document.read_bytes() == before


def test_of_two_mends_that_would_write_the_same_key_none_is_made(document: Path) -> None:
    document.write_bytes(b'{"a": 1, "b": 2, "in": {"a": 3}}')
    clash = [rename(document, ("a",), '"c"'), rename(document, ("b",), '"\\u0063"')]
    inner = rename(document, ("in", "a"), '"c"')
    assert mend([*clash, inner], [str(document.parent)]).problems == [inner]
    assert document.read_bytes() == b'{"a": 1, "b": 2, "in": {"c": 3}}'


def test_of_two_mends_of_one_place_one_waits(document: Path) -> None:
    outer = rewrite(document, ("list",), "[]")
    inner = rewrite(document, ("list", 0), "7")
    assert mend([outer, inner], [str(document.parent)]).problems == [inner]
    assert mend([outer, inner], [str(document.parent)]).problems == [inner]


def test_a_line_is_mended_where_the_old_text_stands_once(tmp_path: Path) -> None:
    path = tmp_path / "tool.py"
    path.write_bytes("a = 1\x0c\nb = ü = old\r\nold old\nc = old".encode())
    problems = [reword(path, 2, "old", "new"), reword(path, 3, "old", "new"), reword(path, 4, "old", "new")]
    mended = mend(problems, [str(tmp_path)])
    assert mended.problems == [problems[0], problems[2]]
    assert path.read_bytes() == "a = 1\x0c\nb = ü = new\r\nold old\nc = new".encode()


@pytest.mark.parametrize(("line", "old"), [(None, "a"), (99, "a"), (1, None), (1, "missing")])
def test_a_line_that_does_not_hold_the_text_is_left(
    line: int | None, old: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "tool.py"
    path.write_text("a = 1\n", encoding="utf-8")
    assert mend([reword(path, line, old, "b")], [str(tmp_path)]).problems == []
    assert path.read_text(encoding="utf-8") == "a = 1\n"


def test_mode_and_neighbours_stay(document: Path) -> None:
    document.chmod(0o604)
    assert mend([rename(document, ("Name",), '"name"')], [str(document)]).problems
    assert document.stat().st_mode & 0o7777 == 0o604
    assert [entry.name for entry in document.parent.iterdir()] == ["tools.json"]


def test_files_outside_of_the_roots_are_not_written(document: Path, tmp_path: Path) -> None:
    """Attack: a check of one project that writes into the user's own tools."""
    before = document.read_bytes()
    (tmp_path / "project").mkdir()
    assert mend([rename(document, ("Name",), '"name"')], [str(tmp_path / "project")]).problems == []
    assert document.read_bytes() == before


def test_links_are_not_followed(document: Path, tmp_path: Path) -> None:
    """Attack: a link in a project that leads the pen elsewhere."""
    before = document.read_bytes()
    project = tmp_path / "project"
    project.mkdir()
    (project / "tools.json").symlink_to(document)
    (project / "folder").symlink_to(tmp_path)
    problems = [
        rename(project / "tools.json", ("Name",), '"name"'),
        rename(project / "folder" / "tools.json", ("Name",), '"name"'),
    ]
    assert mend(problems, [str(project)]).problems == []
    assert document.read_bytes() == before
    assert (project / "tools.json").is_symlink()


def test_what_is_no_text_is_left(tmp_path: Path) -> None:
    for name, content in (("a.json", b"\xff"), ("b.json", b"\xef\xbb\xbf{}"), ("c.py", b"\xff")):
        path = tmp_path / name
        path.write_bytes(content)
        assert mend([rename(path, ("a",), '"b"'), reword(path, 1, "a", "b")], [str(tmp_path)]).problems == []
        assert path.read_bytes() == content
    assert mend([rename(tmp_path / "gone.json", ("a",), '"b"')], [str(tmp_path)]).problems == []


def test_a_folder_that_cannot_be_written_is_named(document: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    document.parent.chmod(0o500)
    try:
        mended = mend([rename(document, ("Name",), '"name"')], [str(document.parent)])
    finally:
        document.parent.chmod(0o700)
    assert (mended.problems, mended.unwritable) == ([], {str(document): "permission denied"})
