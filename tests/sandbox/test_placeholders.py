"""Names that do not exist, held while they are needed: shared between hosts, and gone afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sandbox.test_git import git
from tests.sandbox.test_git import repository as repository_of_git
from toolcrib.sandbox import _placeholders
from toolcrib.sandbox._placeholders import NotHeld, hold, is_one

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="they are held by mounts, which are Linux'")

FOLDERS = ("hooks", "modules", "remotes", "branches")
NAMES = ("commondir", "config", "config.worktree", *FOLDERS)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / ".git"
    folder.mkdir()
    return folder


def paths(repository: Path) -> list[str]:
    return [str(repository / name) for name in NAMES]


def test_what_is_missing_lies_there_while_it_is_held_and_nothing_afterwards(repository):
    held = hold(paths(repository))
    assert held.paths == tuple(paths(repository))
    assert sorted(os.listdir(repository)) == sorted(NAMES)
    assert all(map(is_one, held.paths))
    assert (repository / "commondir").read_text(encoding="ascii") == "./\n"
    held.close()
    assert os.listdir(repository) == []
    held.close()


@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o700])
def test_those_who_may_write_the_folder_may_use_them_whatever_the_umask_is(repository, mode):
    """An ordinary user's git adds a submodule or edits the configuration of a worktree meanwhile."""
    repository.chmod(mode)
    before = os.umask(0o077)
    try:
        held = hold(paths(repository))
    finally:
        os.umask(before)
    assert {name: (repository / name).stat().st_mode & 0o7777 for name in NAMES} == {
        **dict.fromkeys(NAMES, mode & 0o666),
        **dict.fromkeys(FOLDERS, mode),
    }
    held.close()
    assert os.listdir(repository) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_they_belong_to_the_owner_of_the_folder(repository):
    os.chown(repository, 65534, 65533)
    held = hold(paths(repository))
    owners = {(status.st_uid, status.st_gid) for status in map(os.stat, held.paths)}
    assert owners == {(65534, 65533)}
    held.close()


def test_names_that_mean_something_else_are_not_made(repository):
    assert hold([str(repository / "HEAD"), str(repository / "gone" / "hooks")]).paths == ()
    assert os.listdir(repository) == []


def test_what_is_there_after_all_is_left_alone(repository):
    (repository / "hooks").mkdir()  # as empty as a placeholder
    (repository / "config").write_text("[core]\n", encoding="utf-8")
    (repository / "modules").symlink_to("/etc")
    held = hold(paths(repository))
    assert held.paths == tuple(paths(repository))
    assert not is_one(str(repository / "hooks"))
    held.close()
    assert sorted(os.listdir(repository)) == ["config", "hooks", "modules"]


def test_the_last_one_that_needs_them_takes_them_away(repository):
    first, second = hold(paths(repository)), hold(paths(repository))
    first.close()
    assert sorted(os.listdir(repository)) == sorted(NAMES), "the second call needs them still"
    third = hold(paths(repository))
    second.close()
    assert sorted(os.listdir(repository)) == sorted(NAMES)
    third.close()
    assert os.listdir(repository) == []


def leave(paths: list[str]) -> None:
    """Let a host be killed while it holds them."""
    code = (
        "import os, signal, sys\nfrom toolcrib.sandbox._placeholders import hold\n"
        "held = hold(sys.argv[1:])\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, *paths], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert all(map(is_one, paths))


def test_what_a_killed_host_left_is_taken_over(repository):
    leave(paths(repository))
    held = hold(paths(repository))
    held.close()
    assert os.listdir(repository) == []


def test_what_a_person_made_of_what_a_killed_host_left_stays(repository):
    leave(paths(repository))
    (repository / "modules" / "sub").mkdir()
    (repository / "config").write_text("[core]\n", encoding="utf-8")
    hold(paths(repository)).close()
    assert sorted(os.listdir(repository)) == ["config", "modules"]
    assert os.listdir(repository / "modules") == ["sub"]


def test_what_a_killed_host_left_goes_when_it_would_mean_something(repository):
    path = str(repository / "commondir")
    leave([path])
    (repository / "config").write_text("[core]\n\tworktree = ../../w\n", encoding="utf-8")
    assert hold([path]).paths == ()
    assert os.listdir(repository) == ["config"]


def test_hosts_that_hold_and_let_go_at_once_leave_nothing(repository):
    code = (
        "import sys\nfrom toolcrib.sandbox._placeholders import hold, is_one\n"
        "for _ in range(300):\n"
        "    held = hold(sys.argv[1:])\n"
        "    assert len(held.paths) == len(sys.argv) - 1, held.paths\n"
        "    assert all(map(is_one, held.paths)), 'another host took them away'\n"
        "    held.close()\n"
    )
    hosts = [subprocess.Popen([sys.executable, "-c", code, *paths(repository)]) for _ in range(4)]
    assert [host.wait(120) for host in hosts] == [0] * 4
    assert os.listdir(repository) == []


def test_what_the_user_makes_of_one_is_kept(repository):
    held = hold(paths(repository))
    (repository / "hooks").chmod(0o755)
    (repository / "hooks" / "pre-commit").touch()
    (repository / "config").unlink()
    (repository / "config").write_text("[core]\n", encoding="utf-8")
    held.close()
    assert sorted(os.listdir(repository)) == ["config", "hooks"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; install it")
def test_git_replaces_one_and_the_file_stays(tmp_path):
    top = repository_of_git(tmp_path / "r")
    git(top, "config", "extensions.worktreeConfig", "true")
    held = hold([str(top / ".git" / "config.worktree")])
    git(top, "config", "--worktree", "a.b", "c")
    held.close()
    assert git(top, "config", "--worktree", "a.b") == "c\n"
    assert (top / ".git" / "config.worktree").stat().st_mode & 0o200, "git keeps the mode of what was there"


def test_what_a_person_puts_there_while_it_is_removed_is_kept(repository):
    """As often as it takes: a file that is renamed over one, by a program that knows nothing of locks."""
    code = (
        "import os, sys\n"
        "for number in range(2000):\n"
        "    with open(f'{sys.argv[1]}.lock', 'w') as file: file.write(str(number))\n"
        "    os.rename(f'{sys.argv[1]}.lock', sys.argv[1])\n"
        "    for _ in range(100_000):\n"  # for a moment it has another name
        "        try:\n"
        "            with open(sys.argv[1]) as file: assert file.read() == str(number)\n"
        "            os.unlink(sys.argv[1])\n"
        "            break\n"
        "        except FileNotFoundError: pass\n"
        "    else: raise SystemExit('it is gone')\n"
    )
    path = repository / "config"
    person = subprocess.Popen([sys.executable, "-c", code, path])
    while person.poll() is None:
        hold([str(path)]).close()
    assert person.returncode == 0
    assert os.listdir(repository) == []


@pytest.mark.parametrize("name", NAMES)
def test_attack_something_of_a_tool_passes_for_one(repository, name):
    """Its time of change is not enough: its content must mean nothing."""
    path = repository / name
    if name in FOLDERS:
        path.mkdir()
        (path / "evil").touch()
    else:
        path.write_text("../evil\n" if name == "commondir" else "[core]\n", encoding="ascii")
    os.utime(path, ns=(_placeholders._MADE_NS, _placeholders._MADE_NS))
    assert not is_one(str(path))
    hold([str(path)]).close()
    assert path.exists()


def test_attack_a_link_in_the_place_of_the_folder_leads_elsewhere(repository, tmp_path):
    (tmp_path / "link").symlink_to(repository)
    with pytest.raises(NotHeld, match="link/hooks"):
        hold([str(tmp_path / "link" / "hooks")])
    assert os.listdir(repository) == []


def lock_of(path: Path) -> str:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        lock = _placeholders._Lock(folder, path.name)
        lock.close()
        return lock.path
    finally:
        os.close(folder)


@contextmanager
def taken_by_a_tool(path: Path) -> Iterator[None]:
    """A program that may only read it opens it and locks it, whenever it is there."""
    code = (
        "import fcntl, os, sys\n"
        "held = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.flock(held, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tool:
        assert tool.stdin is not None
        assert tool.stdout is not None
        try:
            assert tool.stdout.readline() == b"held\n"
            yield
        finally:
            tool.stdin.close()


@pytest.mark.parametrize("name", NAMES)
def test_attack_a_tool_locks_a_placeholder_so_that_it_is_not_held(repository, name):
    path = str(repository / name)
    leave([path])
    with taken_by_a_tool(repository / name):
        first, second = hold([path]), hold([path])
        assert first.paths == second.paths == (path,)
        first.close()
        assert is_one(path)
        second.close()
    hold([path]).close()
    assert os.listdir(repository) == []


def test_a_name_that_nobody_gets_to_hold_lets_nothing_run(repository):
    """Another program holds the lock that only hosts can open."""
    lock = lock_of(repository / "hooks")
    with open(lock, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotHeld, match="another host has its lock"):
            hold([str(repository / "commondir"), str(repository / "hooks")])
    assert os.listdir(repository) == []
    os.unlink(lock)


def test_attack_a_tool_takes_away_what_a_placeholder_is_made_of(repository):
    """It sees the name under which one is made, before it has its own: nothing runs without it."""
    code = (
        "import os, sys\nprint('runs', flush=True)\n"
        "while True:\n"
        "    for name in os.listdir(sys.argv[1]):\n"
        "        if name.startswith('.toolcrib-'):\n"
        "            try: os.unlink(f'{sys.argv[1]}/{name}')\n"
        "            except OSError: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(repository)], stdout=subprocess.PIPE) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == b"runs\n"
        try:
            for _ in range(300):
                held = hold([str(repository / "commondir")])
                assert is_one(held.paths[0])
                held.close()
        finally:
            tool.kill()


def test_an_included_file_inside_a_repository_is_held_and_others_are_not(repository, tmp_path):
    inside, outside = str(repository / "team.config"), str(tmp_path / "team.config")
    held = hold([inside, outside, str(repository / ".git")], [str(repository)])
    assert held.paths == (inside,)
    assert is_one(inside)
    assert (repository / "team.config").read_bytes() == b""
    held.close()
    assert os.listdir(repository) == []


@pytest.mark.parametrize("config", ["[core", "[core] a = \\q\n", "\n" * (1 << 20) + "\n"])
def test_attack_a_configuration_that_cannot_be_told_lets_nothing_run(repository, config):
    (repository / "config").write_text(config, encoding="utf-8")
    with pytest.raises(NotHeld, match="commondir: config beside it"):
        hold([str(repository / "hooks"), str(repository / "commondir")])
    assert os.listdir(repository) == ["config"]


def test_locks_are_gone_when_nobody_needs_them(repository):
    (repository / "config").write_text("[core]\n", encoding="utf-8")
    locks = [lock_of(repository / name) for name in NAMES]
    held = hold(paths(repository))
    assert [os.path.exists(lock) for lock in locks] == [name != "config" for name in NAMES]
    assert os.stat(_placeholders.lock_folder()).st_mode & 0o077 == 0
    held.close()
    assert not any(map(os.path.exists, locks))


@pytest.mark.parametrize(
    ("config", "is_held"),
    [
        ("[core]\n\tbare = false\n", True),
        ("[core]\n\tworktree = ../../w\n", False),
        ("[core]\n\tbare = true\n", False),
        ("[core] bare\n", False),
        ("[worktree]\n\tguess = true\n", True),
        ("", True),
    ],
)
def test_a_repository_that_says_where_its_work_tree_is_gets_no_commondir(repository, config, is_held):
    """Beside a `commondir` git does not believe that, so there a placeholder would mean something."""
    (repository / "config").write_text(config, encoding="utf-8")
    path = str(repository / "commondir")
    held = hold([path])
    assert held.paths == ((path,) if is_held else ())
    held.close()
