"""Folders that belong to us alone, whatever the umask says."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from toolwright.store import private


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
