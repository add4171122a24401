"""Folders and files that belong to us alone, whatever the umask says and whenever we are killed."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from toolcrib.store import private


def modes(top: Path) -> dict[str, int]:
    return {
        os.path.relpath(folder, top): stat.S_IMODE(os.stat(folder).st_mode) for folder, _, _ in os.walk(top)
    }


def test_the_folders_above_ours_are_made_for_us_alone_too(tmp_path: Path) -> None:
    """Attack: a umask that lets others rename our folder in one that was made for it."""
    there = tmp_path / "there"
    there.mkdir(0o755)
    before = os.umask(0)
    try:
        private.make_folders(str(there / "a" / "b" / "c"))
        private.make_folders(str(there / "a" / "b" / "c"))
        private.make_folders(f"{there}/a/d/")
    finally:
        os.umask(before)
    assert modes(there) == {".": 0o755, "a": 0o700, "a/b": 0o700, "a/b/c": 0o700, "a/d": 0o700}


def test_a_folder_lies_as_deep_as_the_system_lets_it(tmp_path: Path) -> None:
    (tmp_path / "stays").touch()
    deep = str(tmp_path) + "/a" * 1500
    private.make_folders(deep)
    os.removedirs(deep)  # too deep for whoever removes what tests leave


def test_what_is_no_folder_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private.make_folders(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        private.make_folders(str(tmp_path / "file" / "a"))
    (tmp_path / "link").symlink_to("nowhere")
    for nowhere in (str(tmp_path / "link" / "a"), ""):
        with pytest.raises(FileNotFoundError):
            private.make_folders(nowhere)


# -- files put in their place -------------------------------------------------------------------------------


def killed_at(line: int, do: Callable[[], object]) -> bool:
    """Do it in a process of its own that is killed before the so-manieth line of ``private``; False: it came
    to its end first."""
    child = os.fork()
    if child == 0:
        seen = 0

        def trace(frame: FrameType, event: str, _given: Any) -> Any:
            nonlocal seen
            if frame.f_code.co_filename != private.__file__:
                return None
            seen += event == "line"
            if seen == line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            do()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_attack_a_kill_while_a_key_is_made_leaves_no_copy_of_it_behind(tmp_path: Path) -> None:
    path = tmp_path / "key"
    line = 1
    while killed_at(line, lambda: private.make(str(path), b"secret")):
        assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] in ([], [("key", b"secret")])
        path.unlink(missing_ok=True)
        line += 1
    assert line > 10
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"secret", 0o600)


def test_a_kill_while_a_file_is_replaced_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    line, drafts = 1, 0
    path.write_bytes(b"old")
    while killed_at(line, lambda: private.replace(str(path), b"new")):
        assert path.read_bytes() in (b"old", b"new")
        left = [each for each in tmp_path.iterdir() if each != path]
        assert [each.read_bytes() for each in left] in ([], [b"new"])
        drafts += len(left)
        for each in left:
            each.unlink()
        path.write_bytes(b"old")
        line += 1
    assert path.read_bytes() == b"new"
    assert drafts <= 4  # between getting a name and losing it


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may leave /proc behind; run the tests as root")
def test_where_files_cannot_be_named_later_drafts_are_and_go(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.chroot(tmp_path)  # where there is no /proc
            assert private.put("/file", b"one", replacing=False)
            assert not private.put("/file", b"two", replacing=False)
            assert private.put("/file", b"three", mode=0o644, replacing=True)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    (file,) = tmp_path.iterdir()
    assert (file.name, file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == ("file", b"three", 0o644)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_what_is_put_is_there_whole_with_its_mode_or_stays_what_it_was(tmp_path: Path, mode: int) -> None:
    path = str(tmp_path / "file")
    before = os.umask(0o777)
    try:
        assert private.put(path, b"one", mode=mode, replacing=False)
        assert not private.put(path, b"two", mode=mode, replacing=False)
        assert Path(path).read_bytes() == b"one"
        assert private.put(path, b"three", mode=mode, replacing=True)
    finally:
        os.umask(before)
    assert (Path(path).read_bytes(), stat.S_IMODE(os.stat(path).st_mode)) == (b"three", mode)
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_in_the_place_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "file").symlink_to("elsewhere")
    assert not private.put(str(tmp_path / "file"), b"ours", replacing=False)
    assert private.put(str(tmp_path / "file"), b"ours", replacing=True)
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("replacing", [False, True])
def test_a_folder_in_the_place_of_a_file_stays(tmp_path: Path, replacing: bool) -> None:
    (tmp_path / "file" / "in").mkdir(parents=True)
    if replacing:
        with pytest.raises(IsADirectoryError):
            private.put(str(tmp_path / "file"), b"ours", replacing=True)
    else:
        assert not private.put(str(tmp_path / "file"), b"ours", replacing=False)
    assert os.listdir(tmp_path) == ["file"]
