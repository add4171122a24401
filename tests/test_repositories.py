"""What a tool does to repositories, and what the user's own git then runs: nothing of the tool's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.levels import each_level
from tests.sandbox.test_git import git, repository
from tests.test_protected import TRY, all_of, attempt, opened, worked
from toolcrib.model import Level, Profile
from toolcrib.sandbox import _placeholders

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; install it")

SUPERVISED = pytest.mark.parametrize("level", each_level()[2:])
GIT = ("fs", "shell.execute", "git.write")
NAMES = ("hooks", "modules", "commondir", "config.worktree")

LEADING_OUT = {
    "commondir of a worktree": "echo $PWD/evil > .git/worktrees/w/commondir",
    "commondir renamed over": "echo $PWD/evil > x && mv x .git/worktrees/w/commondir",
    "commondir deleted": "rm .git/worktrees/w/commondir",
    "gitdir of a worktree": "echo $PWD/evil > .git/worktrees/w/gitdir",
    "configuration of a worktree": "cp evil/config .git/worktrees/w/config.worktree",
    "submodules of a worktree": "mkdir .git/worktrees/w/modules/x",
    "a worktree replaced": "mv .git/worktrees/w .git/worktrees/v && mkdir .git/worktrees/w",
    "all worktrees replaced": "mv .git/worktrees .git/w && mkdir -p .git/worktrees/w",
    "commondir": "echo $PWD/evil > .git/commondir",
    "commondir renamed": "mv .git/commondir .git/x && echo $PWD/evil > .git/commondir",
    "commondir linked": "ln -sf $PWD/evil/commondir .git/commondir",
    "commondir removed": "rm -f .git/commondir",
    "another worktree configuration": "cp evil/config .git/config.worktree",
    "hooks": "cp evil/hook .git/hooks/post-checkout",
    "hooks replaced": "mv .git/hooks .git/h && mkdir .git/hooks",
    "hooks removed": "rmdir .git/hooks",
    "a submodule": "mkdir -p .git/modules/sub && cp evil/config .git/modules/sub/config",
    "modules removed": "rmdir .git/modules",
    "git replaced": "mv .git .g && mkdir .git",
    "config": "cp evil/config .git/config",
    "its mode": "chmod 777 .git/commondir",
    "its times": "touch .git/commondir",
}
"""Attack: a tool with `git.write` makes the user's next git command run a program of its choice."""
ORDINARY = {
    "status": "git status",
    "add": "echo x > new && git add new",
    "commit": "git commit -qm new",
    "branch": "git checkout -q -b other && git checkout -q -",
    "stash": "echo y >> new && git stash -q && git stash pop -q",
    "rebase": "git commit -qam more && git rebase -q HEAD~1",
    "worktree": "git worktree add -q ../p-new other && git -C ../p-new status",
    "tag": "git tag t",
    "gc": "git gc -q",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a linked worktree beside it, and without hooks; a tool that tries its commands."""
    tmp_path.chmod(0o755)
    top = repository(tmp_path / "p")
    git(top, "worktree", "add", "-q", "../w")
    shutil.rmtree(top / ".git" / "hooks")
    plant(top, tmp_path / "marker")
    add_tool(top)
    return top


def plant(top: Path, marker: Path) -> None:
    """A folder of configuration that runs a program, as a tool could make it."""
    git(top, "init", "-q", "--bare", "evil")
    git(top / "evil", "config", "core.bare", "false")
    git(top / "evil", "config", "core.fsmonitor", f"touch {marker}; false")
    (top / "evil" / "hook").write_text(f"#!/bin/sh\ntouch {marker}\n", encoding="utf-8")
    (top / "evil" / "hook").chmod(0o755)


def add_tool(top: Path) -> None:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tool = {"name": "try", "description": "d", "schema": schema, "command": ["./tools/bin/try"]}
    (top / "tools" / "bin").mkdir(parents=True)
    (top / "tools" / "bin" / "try").write_text(TRY, encoding="utf-8")
    (top / "tools" / "bin" / "try").chmod(0o755)
    (top / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")


def nothing_ran(marker: Path, *folders: Path) -> None:
    """The user's git, in each of the folders."""
    for folder in folders:
        git(folder, "status", check=False)
        git(folder, "log", "-1", check=False)
        git(folder, "checkout", "-q", ".", check=False)
    assert not marker.exists()


def tried(top: Path, level: Level, ways: Mapping[str, str], **more: object) -> None:
    with opened(top, level, **more) as crib:  # type: ignore[arg-type]
        assert worked(crib, ways) == all_of(False, ways)
        assert worked(crib, {"ordinary": "echo x > ordinary"}) == {"ordinary": level is Level.SUPERVISED}


@SUPERVISED
def test_attack_a_tool_with_git_write_leads_the_users_git_elsewhere(project: Path, level: Level) -> None:
    before = sorted(os.listdir(project / ".git"))
    tried(project, level, LEADING_OUT, needs=GIT)
    assert sorted(os.listdir(project / ".git")) == before, "the placeholders are gone"
    assert sorted(os.listdir(project / ".git" / "worktrees" / "w")) == [
        "HEAD", "ORIG_HEAD", "commondir", "gitdir", "index", "logs",
    ]  # fmt: skip
    nothing_ran(project.parent / "marker", project, project.parent / "w")


@SUPERVISED
def test_attack_a_tool_in_a_linked_worktree_names_another_repository(project: Path, level: Level) -> None:
    tree = project.parent / "w"
    add_tool(tree)
    evil = f"echo gitdir: {project}/evil"
    ways = {
        "its .git": f"{evil} > .git",
        "its .git renamed over": f"{evil} > x && mv x .git",
        "its .git deleted": "rm .git",
        "commondir": f"echo {project}/evil > {project}/.git/worktrees/w/commondir",
        "commondir of all": f"echo {project}/evil > {project}/.git/commondir",
        "configuration": f"cp {project}/evil/config {project}/.git/worktrees/w/config.worktree",
    }
    tried(tree, level, ways, needs=GIT)
    nothing_ran(project.parent / "marker", project, tree)


@SUPERVISED
def test_git_works_with_its_grant_while_all_of_this_is_held(project: Path, level: Level) -> None:
    environment = {"HOME": "/nowhere", **{f"GIT_{who}_{what}": "n" for who in ("AUTHOR", "COMMITTER")
                                         for what in ("NAME", "EMAIL")}}  # fmt: skip
    said = " ".join(f"{name}={value}" for name, value in environment.items())
    with opened(project, level, needs=GIT) as crib:
        ordinary = {name: f"export {said}; {command}" for name, command in ORDINARY.items()}
        found = worked(crib, ordinary)
        # The new worktree would be beside the project, where the tool may not write.
        assert found == {**all_of(True, ordinary), "worktree": False}
        assert worked(crib, {"again": f"export {said}; git worktree add -q below other"}) == {"again": True}
    assert "below" in git(project, "worktree", "list")
    assert not set(os.listdir(project / ".git")) & {*NAMES}
    git(project, "fsck", "--strict")


@pytest.mark.parametrize("level", each_level()[1:])
@pytest.mark.parametrize("needs", [None, ("fs", "shell.execute")], ids=["project", "stated"])
def test_attack_a_tool_that_may_write_makes_git_status_run_a_program(
    project: Path, level: Level, needs: tuple[str, ...] | None
) -> None:
    """`git status` looks into submodules, and git into files that the configuration includes."""
    if needs is not None and level is Level.RESTRICTED:
        pytest.skip("without mount namespaces this tool is refused")
    top, sub = project, repository(project.parent / "sub")
    for name in ("sub", "bare", "gone"):
        git(top, "submodule", "-q", "add", str(sub), name)
    git(top, "submodule", "-q", "deinit", "-f", "bare", "gone")
    (top / "gone").rmdir()
    (top / "shared.config").write_text("[core]\n\tx = y\n", encoding="utf-8")
    git(top, "config", "include.path", "../shared.config")
    git(top, "config", "core.hooksPath", ".husky")
    (top / ".husky").mkdir()
    git(top, "worktree", "add", "-q", "below")
    evil = f"echo gitdir: {top}/evil"
    ways = {
        "submodule": f"{evil} > sub/.git",
        "submodule renamed over": f"{evil} > sub/x && mv sub/x sub/.git",
        "submodule replaced": f"mv sub s && mkdir sub && {evil} > sub/.git",
        "submodule that is not checked out": f"{evil} > bare/.git",
        "submodule that is not checked out, as a folder": "mkdir bare/.git",
        "submodule that is not checked out, replaced": f"rmdir bare && mkdir bare && {evil} > bare/.git",
        "linked worktree": f"{evil} > below/.git",
        "included file": "cp evil/config shared.config",
        "hooks": "cp evil/hook .husky/post-checkout",
    }
    profile = None if needs else Profile.PROJECT
    tried(top, level, ways, needs=needs, undeclared=profile)
    with opened(top, level, needs=needs, undeclared=profile) as crib:
        result = attempt(crib, f"mkdir gone && {evil} > gone/.git")
        if level is Level.SUPERVISED:
            assert "which was removed" in result.content, result
    assert not (top / "gone" / ".git").exists()
    nothing_ran(project.parent / "marker", top, top / "sub", top / "below")


@SUPERVISED
def test_what_is_held_for_one_call_is_held_while_another_ends(project: Path, level: Level) -> None:
    git_folder = project / ".git"
    ready, go = project / "ready", project / "go"
    os.mkfifo(ready)
    os.mkfifo(go)
    found: dict[str, bool] = {}
    with opened(project, level, needs=GIT) as crib:

        def long_call() -> None:
            command = f"echo > ready; cat go; echo {project}/evil > .git/commondir"
            found.update(worked(crib, {"long": command}))

        thread = threading.Thread(target=long_call)
        thread.start()
        ready.read_text(encoding="ascii")
        for _ in range(3):
            assert worked(crib, {"short": "true"}) == {"short": True}
            assert _placeholders.is_one(str(git_folder / "commondir")), "the long call needs it still"
        go.write_text("\n", encoding="ascii")
        thread.join()
        assert found == {"long": False}
        assert not set(os.listdir(git_folder)) & {*NAMES}


@SUPERVISED
def test_what_a_killed_host_leaves_means_nothing_to_git_and_goes_with_the_next_call(
    project: Path, level: Level
) -> None:
    said = git(project, "status"), git(project, "log"), git(project, "worktree", "list")
    code = (
        "import os, signal, sys, threading\nfrom pathlib import Path\n"
        "from tests.test_protected import attempt, opened\nfrom toolcrib.model import Level\n"
        "with opened(Path(sys.argv[1]), Level.SUPERVISED, needs=tuple(sys.argv[2:])) as crib:\n"
        "    threading.Thread(target=attempt, args=(crib, 'echo > ready; sleep 20')).start()\n"
        "    open('ready').read()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    os.mkfifo(project / "ready")
    root = Path(__file__).parent.parent
    killed = subprocess.run(
        [sys.executable, "-c", code, str(project), *GIT], cwd=root, check=False, timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    (project / "ready").unlink()
    assert set(os.listdir(project / ".git")) >= {*NAMES}
    assert (git(project, "status"), git(project, "log"), git(project, "worktree", "list")) == said
    with opened(project, level, needs=GIT) as crib:
        assert worked(crib, {"next": "true"}) == {"next": True}
    assert not set(os.listdir(project / ".git")) & {*NAMES}
