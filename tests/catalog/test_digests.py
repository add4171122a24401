"""The digests of what a model sees and of what runs, and the bytes that are kept with them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from tests.moments import turn
from tests.strategies import json_objects, make_tool
from toolcrib.catalog import digests, files
from toolcrib.model import (
    AsArgv,
    CallPython,
    Invocation,
    JsonOnStdin,
    Origin,
    Positional,
    PythonStyle,
    Resolver,
    RunProcess,
    Schema,
    Tool,
)

STDIN = JsonOnStdin(verbatim=True)


def tool_of(invocation: Invocation, path: str = "tools.json") -> Tool:
    origin = Origin(format="manifest", path=path)
    return replace(make_tool("t", {"type": "object"}), invocation=invocation, origin=origin)


def resolving(skill_dir: Path, script: str) -> RunProcess:
    mapping = Positional(param="q", resolver=Resolver(script=script, args=("$param",)))
    return RunProcess(program="git", encoding=AsArgv(args=(mapping,)), skill_dir=str(skill_dir))


def runs(contents: digests.Contents, run: RunProcess) -> str | None:
    return contents.runs(digests.how(run), digests.own_files(tool_of(run)))


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


# -- what the model sees ------------------------------------------------------------------------------------


@given(json_objects, json_objects)
def test_equal_schemas_are_seen_equal_and_others_are_not(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = (digests.seen(make_tool("t", schema)) for schema in (one, other))
    assert (first == second) == (Schema.of(one) == Schema.of(other))


def test_what_the_model_does_not_see_is_not_in_the_digest_of_what_it_sees() -> None:
    tool = make_tool("t", {"type": "object"})
    seen = digests.seen(tool)
    for same in (replace(tool, version="2"), replace(tool, key="manifest:other/t")):
        assert digests.seen(same) == seen
    for other in (
        replace(tool, description="other"),
        replace(tool, spoken="other"),
        replace(tool, output_schema=Schema.of({})),
        replace(tool, input_schema=None),
    ):
        assert digests.seen(other) != seen


# -- what runs ----------------------------------------------------------------------------------------------


def test_own_files_are_absolute_and_programs_found_by_name_are_not_among_them() -> None:
    def own(invocation: Invocation, path: str = "/p/tool.sh") -> tuple[str, ...]:
        return digests.own_files(tool_of(invocation, path))

    assert own(RunProcess(program="/p/bin/a", encoding=STDIN)) == ("/p/bin/a",)
    assert own(RunProcess(program="git", fixed=("status",), encoding=STDIN)) == ()
    shell = RunProcess(program="bash", fixed=("/p/tool.sh", "/etc/passwd"), encoding=STDIN)
    assert own(shell) == ("/p/tool.sh",)
    assert own(CallPython(style=PythonStyle.FUNCTION, file="/p/tool.py")) == ("/p/tool.py",)


def test_another_byte_in_a_file_or_in_the_invocation_is_another_digest(tmp_path: Path) -> None:
    contents = digests.Contents()
    run = RunProcess(program=write(tmp_path / "a", "one"), encoding=STDIN)
    one = runs(contents, run)
    assert one == runs(contents, run)
    assert one == runs(digests.Contents(), run)
    assert one != runs(contents, replace(run, fixed=("x",)))
    write(tmp_path / "fresh", "two")
    os.replace(tmp_path / "fresh", tmp_path / "a")
    assert one != runs(contents, run)
    (tmp_path / "a").unlink()
    assert runs(contents, run) is None


def test_a_resolver_script_is_one_of_the_files_that_run(tmp_path: Path) -> None:
    """Attack: a script that runs before the call is replaced, and no digest shows it."""
    contents = digests.Contents()
    run = resolving(tmp_path, "daily")
    seen = [runs(contents, run)]
    for name, text in (("daily.sh", "echo 1"), ("daily.sh", "echo 22"), ("daily", "echo 1")):
        write(tmp_path / "scripts" / name, text)
        seen.append(runs(contents, run))
    assert None not in seen
    assert len(set(seen)) == 4


def test_a_resolver_script_that_leads_out_of_its_folder_is_no_file_of_the_tool(tmp_path: Path) -> None:
    assert digests.own_files(tool_of(resolving(tmp_path, "../../etc/profile"))) == ()


# -- the bytes that are kept --------------------------------------------------------------------------------


def test_the_bytes_are_kept_with_their_digest_until_the_file_is_another(tmp_path: Path) -> None:
    contents = digests.Contents()
    path = write(tmp_path / "a", "one")
    held = contents.file(path)
    assert held is not None
    assert held.content == b"one"
    assert contents.file(path) is held
    write(tmp_path / "fresh", "two")
    os.replace(tmp_path / "fresh", path)
    again = contents.file(path)
    assert again is not None
    assert again.content == b"two"
    assert again.digest != held.digest


@pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="needs files whose times tell nothing: Linux"
)
def test_attack_a_file_written_over_in_the_tick_in_which_it_was_read() -> None:
    """Of a thread's name in /proc neither size nor times change with it, as those of any file do not within
    one tick of its file system's clock."""
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    with open(path, "r+", encoding="utf-8") as name:
        was, status = name.read(), os.fstat(name.fileno())
        now = [status.st_ctime_ns]
        contents = digests.Contents(clock_ns=lambda: now[0])

        def seen_after(text: str) -> bytes | None:
            name.seek(0)
            name.write(text)
            name.flush()
            assert files.fingerprint(os.stat(path)) == files.fingerprint(status)
            held = contents.file(path)
            assert held is not None
            return held.content

        try:
            assert seen_after("first") == b"first\n"
            assert seen_after("second") == b"second\n"
            now[0] += 1_999_000_000
            assert seen_after("third") == b"third\n"
            assert seen_after("fourth") == b"fourth\n"
            now[0] += 1_000_000
            assert seen_after("fifth") == b"fifth\n"
            assert seen_after("sixth") == b"fifth\n", "from now on its times would tell, if it were a file"
        finally:
            name.seek(0)
            name.write(was)


def test_files_that_were_just_written_are_not_counted_again_with_each_reading(tmp_path: Path) -> None:
    """Otherwise reading them a few times would fill the memory of all files, and empty it."""
    contents = digests.Contents()
    long, short = tmp_path / "long", write(tmp_path / "short", "x")
    long.write_bytes(bytes(digests.KEPT_BYTES_MAX))
    kept = contents.file(short)
    for _ in range(1 + digests.HELD_BYTES_MAX // digests.KEPT_BYTES_MAX):
        assert contents.file(str(long)) is not None
    assert contents.file(short) is kept


def test_a_file_that_is_too_long_is_digested_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(digests.KEPT_BYTES_MAX + 1)
    held = digests.Contents().file(str(path))
    assert held is not None
    assert held.content is None
    assert len(held.digest) == 64


def test_what_is_no_regular_file_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    contents = digests.Contents()
    assert contents.file(str(tmp_path / "pipe")) is None
    assert contents.file(str(tmp_path)) is None
    absent = contents.file(digests.Aside(tmp_path / "gone"))
    assert absent is not None
    assert (absent.digest, absent.content) == (digests.ABSENT, None)


def test_a_path_is_a_link_only_where_its_own_name_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    program = tmp_path / "real" / "t"
    program.write_text("one", encoding="utf-8")
    (tmp_path / "folder").symlink_to("real")
    link = tmp_path / "t"
    link.symlink_to("real/t")
    contents = digests.Contents()
    through_folder, through_link = contents.file(f"{tmp_path}/folder/t"), contents.file(str(link))
    assert through_folder is not None
    assert not contents.is_link(through_folder)
    assert through_link is not None
    assert contents.is_link(through_link)
    os.replace(program, link)  # the very file is there now; renaming it changed it, so it is looked at again
    held = contents.file(str(link))
    assert held is not None
    assert held is not through_link
    assert not contents.is_link(held)
    assert not contents.is_link(through_link), "as it is now, where what was read is not kept any more"


def test_where_a_file_lies_is_found_anew_once_a_folder_above_it_has_another_name(tmp_path: Path) -> None:
    """Releases that are renamed, with a link to the current one: the file itself does not change by that."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "t.py").write_bytes(b"x")
    current = tmp_path / "current"
    turn(current, first)
    contents = digests.Contents()
    held = contents.file(str(current / "t.py"))
    assert held is not None
    assert contents.real(held) == str(first / "t.py")
    first.rename(second)
    turn(current, second)
    assert contents.file(str(current / "t.py")) is held
    assert contents.real(held) == str(second / "t.py")
    assert contents.is_inside(held, str(second))
    (second / "t.py").unlink()
    (second / "t.py").write_bytes(b"y")
    assert contents.real(held) is None
    assert not contents.is_inside(held, str(tmp_path / "elsewhere"))
