"""Scratch folders: private, emptied whatever a tool left, and never left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.sandbox import _kernel, _scratch
from toolcrib.sandbox._scratch import Scratch, size


def test_folders_are_private_different_and_gone_afterwards(tmp_path):
    scratch = Scratch(str(tmp_path))
    first, second = scratch.take(), scratch.take()
    assert first != second
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o700
    scratch.give_back(first)
    assert scratch.take() == first
    scratch.close()
    scratch.close()
    assert not os.path.exists(scratch.folder)
    (left,) = tmp_path.iterdir()
    assert list(left.iterdir()) == []


def test_whatever_a_tool_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "base").mkdir()
    scratch = Scratch(str(tmp_path / "base"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x", encoding="utf-8")
    folder = Path(scratch.take())
    (folder / "link").symlink_to(outside)
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "link").symlink_to(outside / "kept")
    (folder / "deep" / "deeper" / "file").write_text("x", encoding="utf-8")
    os.mkfifo(folder / "fifo")
    (folder / "locked").mkdir()
    (folder / "locked" / "file").write_text("x", encoding="utf-8")
    (folder / "locked").chmod(0o000)
    scratch.give_back(str(folder))
    assert os.listdir(folder) == []
    assert (outside / "kept").read_text(encoding="utf-8") == "x"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755
    scratch.close()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: these tests make many."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("kind", ["files", "folders", "in each other"])
def test_attack_so_much_that_the_answer_waits_until_it_is_removed(quick, kind):
    """It is put aside, the next call gets another folder, and the background removes it."""
    scratch = Scratch(str(quick), removing_s=60)
    folder = scratch.take()
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    for number in range(20_000):
        if kind == "files":
            os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
            continue
        os.mkdir(str(number % 10 if kind == "in each other" else number))
        if kind == "in each other":
            os.chdir(str(number % 10))
    os.fchdir(before)
    os.close(before)

    def give_back() -> float:
        began = time.monotonic()
        scratch.give_back(folder)
        return time.monotonic() - began

    assert give_back() < 20 * _scratch.EMPTYING_S, "without that limit it takes longer"
    until = time.monotonic() + 60
    while os.path.exists(folder) and time.monotonic() < until:
        assert scratch.take() != folder, "the next call does not get what is not empty"
    assert not os.path.exists(folder), "what was put aside is removed meanwhile"
    scratch.close()
    assert not os.path.exists(scratch.folder)


def test_something_is_removed_in_any_case(quick):
    """Attack: so many entries that looking at them takes all the time that there is."""
    (quick / "top" / "a" / "b").mkdir(parents=True)
    (quick / "top" / "a" / "file").touch()
    for _ in range(10):
        if _scratch.remove(str(quick / "top"), 0.0):
            break
    assert not (quick / "top").exists()


def test_attack_a_process_that_outlives_its_call_makes_files_as_fast_as_they_are_removed(quick):
    """It makes no more than it may, and ends by itself."""
    code = (
        "import os, signal, sys\n"
        "signal.alarm(60)\n"
        "os.chdir(sys.argv[1])\n"
        "for number in range(150_000):\n"
        "    os.mkdir(str(number))\n"
        "    if number == 30_000: print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    scratch = Scratch(str(quick), removing_s=0.1)
    with subprocess.Popen([sys.executable, "-c", code, scratch.take()], stdout=subprocess.PIPE) as survivor:
        try:
            assert survivor.stdout is not None
            assert survivor.stdout.readline() == b"ready\n"
            scratch.close()
            assert os.path.isdir(scratch.folder), "it did not go on until nothing was made any more"
        finally:
            survivor.kill()
    Scratch(str(quick), removing_s=60.0).close()
    assert not os.path.exists(scratch.folder), "a later host removes it"
    (left,) = quick.iterdir()
    assert list(left.iterdir()) == []


def test_leftovers_of_a_killed_host_are_removed_and_those_of_a_living_one_are_not(tmp_path):
    code = (
        "import os, signal, sys\nfrom toolcrib.sandbox._scratch import Scratch\n"
        "s = Scratch(sys.argv[1])\nopen(s.take() + '/x', 'w').close()\nprint(s.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    dead = done.stdout.strip()
    assert os.path.isdir(dead)
    living = Scratch(str(tmp_path))
    other = Scratch(str(tmp_path))
    assert not os.path.exists(dead)
    assert os.path.isdir(living.folder)
    other.close()
    living.close()


@pytest.mark.skipif(
    _kernel.landlock_version() == 0, reason="nothing else makes a folder fail alone; needs Landlock"
)
def test_a_disk_that_has_room_for_a_lock_and_none_for_a_folder_says_so_and_keeps_no_lock(tmp_path):
    """As a full disk does: a file without content needs no room on it. Here the kernel refuses folders."""
    Scratch(str(tmp_path)).close()
    code = (
        "import ctypes, signal, struct, sys\nfrom toolcrib.sandbox import _scratch\n"
        "signal.alarm(60)\n"
        "call = ctypes.CDLL(None, use_errno=True).syscall\n"
        "ruleset = call(444, struct.pack('=Q', 1 << 7), ctypes.c_size_t(8), 0)\n"
        "assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0 and call(446, ruleset, 0) == 0\n"
        "try: _scratch.Scratch(sys.argv[1])\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.split() == ["PermissionError"], done.stderr
    (left,) = tmp_path.iterdir()
    assert list(left.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else; run as root")
def test_a_folder_that_somebody_else_made_is_not_used(tmp_path):
    planted = tmp_path / "toolcrib-0"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    scratch = Scratch(str(tmp_path))
    assert not scratch.folder.startswith(f"{planted}/")
    scratch.close()


def test_a_link_in_the_place_of_our_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"toolcrib-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    scratch = Scratch(str(tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    scratch.close()


def test_size_counts_what_is_on_disk_and_follows_no_links(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert 100_000 <= size(str(tmp_path), 1 << 30) < 200_000
    assert size(str(tmp_path / "gone"), 1) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root; run as an ordinary user")
def test_a_folder_that_is_closed_to_us_counts_as_too_much(tmp_path):
    """Attack: files in a folder that their maker closed, so that nobody counts them."""
    (tmp_path / "closed").mkdir(mode=0o000)
    assert size(str(tmp_path), 1000) > 1000
    (tmp_path / "closed").chmod(0o700)


def test_what_is_no_folder_counts_as_too_much(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert size(str(tmp_path / "file"), 1000) == 1001
