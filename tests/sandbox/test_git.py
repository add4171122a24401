"""What git would run or obey, found in real repositories; and that placeholders mean nothing to git."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.sandbox import _git, _placeholders

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; install it")

DATE = "2024-01-01T00:00:00Z"


def git(folder: Path, *arguments: str, check: bool = True, user: int | None = None) -> str:
    env = {
        "PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
           for what, value in (("NAME", "n"), ("EMAIL", "e"), ("DATE", DATE))},
    }  # fmt: skip
    options = ["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", "-c", "gc.auto=0"]
    done = subprocess.run(
        ["git", *options, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False,
        user=user, group=user, extra_groups=None if user is None else [],
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout + done.stderr


def repository(folder: Path, *more: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", *more)
    shutil.rmtree(folder / ".git" / "branches", ignore_errors=True)  # the older versions of git make it
    (folder / "a").write_text("a\n", encoding="utf-8")
    git(folder, "add", "a")
    git(folder, "commit", "-qm", "a")
    return folder


def find(folder: Path) -> _git.Found:
    return _git.find([os.path.realpath(folder)], {})


def inside(found: tuple[str, ...], folder: Path) -> set[str]:
    root = os.path.realpath(folder)
    return {os.path.relpath(path, root) for path in found}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


# -- what is found ------------------------------------------------------------------------------------------


def test_of_a_repository_what_exists_and_what_does_not(place):
    top = repository(place / "r")
    found = find(top)
    assert inside(found.folders, top) == {".git"}
    assert inside(found.code, top) == {".git/hooks", ".git/config"}
    assert inside(found.absent, top) == {
        ".git/config.worktree", ".git/modules", ".git/commondir", ".git/remotes", ".git/branches",
    }  # fmt: skip
    assert found.elsewhere == found.elsewhere_absent == ()
    with_placeholders = _placeholders.hold(found.absent)
    try:
        assert find(top) == found, "placeholders are not there"
    finally:
        with_placeholders.close()


def test_of_linked_worktrees_everything_that_leads_elsewhere(place):
    top = repository(place / "r")
    git(top, "worktree", "add", "-q", "../w")
    git(top, "worktree", "add", "-q", "below/x")
    found = find(top)
    for name in ("w", "x"):
        assert {f".git/worktrees/{name}/{part}" for part in ("commondir", "gitdir")} <= inside(
            found.code, top
        )
        absent = {f".git/worktrees/{name}/{part}" for part in ("config.worktree", "modules")}
        assert absent <= inside(found.absent, top)
    assert inside(found.elsewhere, top) == {"../w/.git", "below/x/.git"}
    from_there = find(place / "w")
    assert inside(from_there.folders, place) == {"w/.git", "r/.git/worktrees/w", "r/.git"}
    assert {"w/.git", "r/.git/worktrees/w/commondir", "r/.git/hooks"} <= inside(from_there.code, place)


def test_of_many_worktrees_their_folder(place):
    top = repository(place / "r")
    for number in range(_git.WORKTREES_MAX + 1):
        (top / ".git" / "worktrees" / str(number)).mkdir(parents=True)
    found = find(top)
    assert ".git/worktrees" in inside(found.code, top)
    assert not any("worktrees/" in path for path in inside((*found.code, *found.absent), top))


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
@pytest.mark.parametrize("split", [False, True])
def test_submodules_are_found_in_every_form_of_the_index(place, version, form, split):
    top = place / "r"
    top.mkdir()
    git(top, "init", "-q", f"--object-format={form}")
    git(top, "config", "index.version", version)
    names = ["a/b/one", "a/b/two", "z", "ü"]
    for name in ("a/a", "a/b/other", "last", "x" * 70):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    git(top, "add", ".")
    if version == "3":
        (top / "intended").touch()
        git(top, "add", "-N", "intended")
    if split:
        git(top, "update-index", "--split-index")
    number = "1" * (40 if form == "sha1" else 64)
    for name in names:
        git(top, "update-index", "--add", "--cacheinfo", f"160000,{number},{name}")
    for name in names[:3]:
        (top / name).mkdir(parents=True)
    (top / "z" / ".git").touch()
    found = find(top)
    assert inside(found.elsewhere, top) == {"a/b/one", "a/b/two", "z/.git"}
    assert inside(found.elsewhere_absent, top) == {"ü/.git"}


def test_submodules_of_submodules_are_found(place):
    inner = repository(place / "inner")
    middle = repository(place / "middle")
    git(middle, "submodule", "-q", "add", str(inner), "inner")
    git(middle, "commit", "-qm", "s")
    top = repository(place / "r")
    git(top, "submodule", "-q", "add", str(middle), "middle")
    git(top, "submodule", "-q", "update", "--init", "--recursive")
    found = find(top)
    assert inside(found.elsewhere, top) == {"middle/.git", "middle/inner/.git"}
    assert ".git/modules" in inside(found.code, top)
    below = find(top / "middle")
    assert inside(below.folders, top) == {"middle/.git", ".git/modules/middle"}
    assert {"middle/.git", ".git/modules/middle/config"} <= inside(below.code, top)


def test_included_configuration_and_another_folder_of_hooks_are_found(place):
    top = repository(place / "r")
    (top / "shared.config").write_text("[include]\n\tpath = more.config\n", encoding="utf-8")
    (top / "more.config").write_text("[core]\n\thooksPath = .husky\n", encoding="utf-8")
    (top / ".husky").mkdir()
    git(top, "config", "include.path", "../shared.config")
    git(top, "config", "includeIf.gitdir:/x/.path", "~/none.config")
    found = _git.find([str(top)], {}, home=str(place))
    assert inside(found.elsewhere, top) == {"shared.config", "more.config", ".husky"}
    assert inside(found.elsewhere_absent, top) == {"../none.config"}


def test_hooks_in_the_project_itself_do_not_close_it(place):
    top = repository(place / "r")
    git(top, "config", "core.hooksPath", ".")
    assert find(top).elsewhere == ()


def test_a_folder_without_repository_has_nothing(place):
    (place / "none").mkdir()
    assert find(place / "none") == _git.Found()


@pytest.mark.parametrize("text", ["", "gitdir: ", "gitdir: /gone", "gitdir: \0", "nonsense"])
def test_a_file_that_names_no_repository_is_protected_itself(place, text):
    (place / ".git").write_text(text, encoding="utf-8")
    found = find(place)
    assert inside(found.folders, place) == inside(found.code, place) == {".git"}


@given(st.binary(max_size=300), st.sampled_from([2, 3, 4, 5]), st.integers(0, 1 << 32 - 1))
def test_no_bytes_of_an_index_break_the_search(data, version, count):
    with_head = b"DIRC" + version.to_bytes(4, "big") + (count & 0xFFFFFFFF).to_bytes(4, "big") + data
    with suppress(IndexError, ValueError, struct.error):
        list(_git._gitlinks_in(with_head, 20))


# -- what cannot be told ------------------------------------------------------------------------------------


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """As a tool holds it that does not give way: every open that must not wait is refused."""
    code = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "held = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
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


@contextmanager
def closed(path: Path) -> Iterator[None]:
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


@contextmanager
def piped(path: Path) -> Iterator[None]:
    moved = path.rename(f"{path}.moved")
    os.mkfifo(path)
    try:
        yield
    finally:
        moved.replace(path)


@contextmanager
def looped(path: Path) -> Iterator[None]:
    moved = path.rename(f"{path}.moved")
    path.symlink_to(path.name)
    try:
        yield
    finally:
        moved.replace(path)


@contextmanager
def filled(path: Path) -> Iterator[None]:
    content = path.read_bytes()
    path.write_bytes(content + b"\n" * (1 << 20))
    try:
        yield
    finally:
        path.write_bytes(content)


BY_MODE = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
BY_LEASE = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")
READ = (
    "r/.git/config", "r/.git/index", "r/shared.config", "r/.git/worktrees/w/gitdir", "r/sub/.git",
    "r/.git/modules/sub/config",
)  # fmt: skip


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(
    "hide",
    [
        pytest.param(leased, marks=BY_LEASE),
        pytest.param(closed, marks=BY_MODE),
        piped,
        looped,
        filled,
    ],
)
def test_attack_a_file_of_git_is_made_unreadable_to_the_host(place, hide, name):
    """Then nobody knows the folder of hooks, the included files or the submodules that it names."""
    top, _ = superproject(place)
    git(top, "worktree", "add", "-q", "../w")
    (top / "shared.config").write_text("[core]\n\thooksPath = .husky\n", encoding="utf-8")
    git(top, "config", "include.path", "../shared.config")
    before = find(top)
    if name.endswith("index") and hide is filled:
        pytest.skip("an index may be that long")
    path = place / name
    if name == "r/sub/.git" and hide is piped:
        pytest.skip("a pipe in its place is no repository to git either")
    with hide(path), pytest.raises(_git.Unclear, match=re.escape(str(path))):
        find(top)
    assert find(top) == before


def test_attack_a_broken_configuration_hides_what_it_includes(place):
    top = repository(place / "r")
    config = top / ".git" / "config"
    for value, reason in (
        ("\\q", "line 1 is no configuration"),
        ("%(prefix)/x", "which only git can tell"),
        ("a\tb", "a tab or a carriage return"),
    ):
        config.write_text(f"[include] path = {value}\n", encoding="utf-8")
        with pytest.raises(_git.Unclear, match=reason):
            find(top)


def test_attack_an_index_that_cannot_be_understood_hides_its_submodules(place):
    top = repository(place / "r")
    (top / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\5" + _git._GITLINK * 20)
    with pytest.raises(_git.Unclear, match="it is no index of git"):
        find(top)


def test_attack_quotes_and_comments_hide_the_folder_of_hooks(place):
    top = repository(place / "r")
    (top / ".husky").mkdir()
    (top / "more.config").touch()
    with (top / ".git" / "config").open("a", encoding="utf-8") as config:
        config.write('[core]\n\thooksPath = ".husky" # shared hooks\n')
        config.write('[include]\n\tpath = ../mo"re"\\\n.config ; team\n')
    assert inside(find(top).elsewhere, top) == {".husky", "more.config"}


def test_paths_below_a_home_are_found(place):
    top = repository(place / "r")
    me = pwd.getpwuid(os.geteuid())
    git(top, "config", "--add", "include.path", "~/a")
    git(top, "config", "--add", "include.path", f"~{me.pw_name}/toolcrib-none")
    git(top, "config", "--add", "core.hooksPath", ":(optional)x")
    git(top, "config", "--add", "include.path", "~nobody-of-that-name/c")
    found = _git.find([str(top)], {}, home=str(place))
    assert set(found.elsewhere_absent) == {
        f"{place}/a", os.path.realpath(f"{me.pw_dir}/toolcrib-none"), f"{top}/x", f"{top}/:(optional)x",
    }  # fmt: skip


def test_the_configuration_of_submodules_and_worktrees_is_looked_into(place):
    top, _ = superproject(place)
    git(top, "worktree", "add", "-q", "below/w")
    git(top / "sub", "config", "core.hooksPath", ".hooks")
    git(top, "config", "core.hooksPath", ".husky")
    absent = inside(find(top).elsewhere_absent, top)
    assert {"sub/.hooks", ".husky", "below/w/.husky"} <= absent


def test_a_change_in_an_included_file_is_looked_for(place):
    top = repository(place / "r")
    git(top, "config", "include.path", "../more.config")
    looked_at: dict[str, None] = {}
    _git.find([str(top)], looked_at)
    assert {str(top / "more.config"), str(top / ".git" / "config.worktree")} <= looked_at.keys()


FOLLOWED = {"logs/x", "objects/pack/x", "objects/ff", "refs/heads/objects/aa/x", "x"}


def test_links_in_a_repository_are_found_wherever_git_would_write_through_them(place):
    folder = place / ".git"
    for name in (*FOLLOWED, "objects/aa/x", "hooks/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(place)
    repositories = [str(folder), str(folder / "refs"), str(place / "gone")]
    found = _git.links(repositories, [str(folder / "hooks")])
    assert found == {str(folder / name): str(place) for name in FOLLOWED}


# -- placeholders mean nothing ------------------------------------------------------------------------------

LOOKS = (
    "status", "status --porcelain=v2 --branch", "log --oneline", "branch -a", "worktree list",
    "config --list", "stash list", "reflog", "fsck", "describe --always", "diff HEAD", "submodule status",
    "for-each-ref", "count-objects", "ls-files -s", "show-ref --head", "rev-parse HEAD --show-toplevel",
    "rev-parse --is-bare-repository --is-inside-work-tree --git-dir", "grep a", "blame a",
)  # fmt: skip
CHANGES = (
    "gc -q", "pack-refs --all", "prune", "checkout -q -b other", "commit -q --allow-empty -m more",
    "stash -q", "stash pop -q", "reset -q --hard HEAD~1", "worktree add -q ../new", "worktree prune",
    "worktree remove --force ../new", "branch -q -D new", "rebase -q HEAD", "tag t", "fetch -q .",
    "merge -q t",
)  # fmt: skip


def plain(place: Path) -> tuple[Path, Path]:
    top = repository(place / "r")
    shutil.rmtree(top / ".git" / "hooks")
    return top, top


def main_worktree(place: Path) -> tuple[Path, Path]:
    top, _ = plain(place)
    git(top, "worktree", "add", "-q", "../w")
    return top, top


def linked_worktree(place: Path) -> tuple[Path, Path]:
    main_worktree(place)
    return place / "w", place / "w"


def superproject(place: Path) -> tuple[Path, Path]:
    repository(place / "x")
    top, _ = plain(place)
    git(top, "submodule", "-q", "add", str(place / "x"), "sub")
    git(top, "commit", "-qm", "s")
    return top, top


def submodule(place: Path) -> tuple[Path, Path]:
    top, _ = superproject(place)
    return top / "sub", top / "sub"


def work_tree_elsewhere(place: Path) -> tuple[Path, Path]:
    top, _ = plain(place)
    (place / "w").mkdir()
    (top / "a").rename(place / "w" / "a")
    git(top, "config", "core.worktree", "../../w")
    return top, top


def bare_beside_worktrees(place: Path) -> tuple[Path, Path]:
    repository(place / "origin")
    (place / "r").mkdir()
    git(place, "clone", "-q", "--bare", "origin", "r/.bare")
    (place / "r" / ".git").write_text("gitdir: ./.bare\n", encoding="utf-8")
    git(place / "r", "worktree", "add", "-q", "w")
    return place / "r", place / "r" / "w"


def with_worktree_config(place: Path) -> tuple[Path, Path]:
    top, _ = plain(place)
    git(top, "sparse-checkout", "set", "--no-cone", "/*")
    return top, top


KINDS = (
    plain, main_worktree, linked_worktree, superproject, submodule, work_tree_elsewhere,
    bare_beside_worktrees, with_worktree_config,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_git_says_and_does_the_same_with_placeholders_in_place(place, kind):
    said = []
    for with_placeholders in (False, True):
        shutil.rmtree(place)
        place.mkdir()
        held_in, runs_in = kind(place)
        held = _placeholders.hold(find(held_in).absent if with_placeholders else ())
        assert bool(held.paths) is with_placeholders
        commands = (*LOOKS, *CHANGES, *LOOKS)
        found = {
            f"{number} {each}": git(runs_in, *each.split(), check=False)
            for number, each in enumerate(commands)
        }
        held.close()
        # With its own folder as the common one, git names files by their whole path.
        said.append(
            {name: re.sub(rf"(file:)?{place}/\S*?/\.git", ".git", text) for name, text in found.items()}
        )
        assert not any(_placeholders.is_one(os.path.join(at, name))
                       for at, folders, files in os.walk(place) for name in (*folders, *files))  # fmt: skip
    assert said[0] == said[1]
