"""What a tool does to repositories, and what the user's own git then runs: nothing of the tool's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import toolcrib
from tests.levels import each_level
from tests.sandbox.hosting import NOBODY
from tests.sandbox.test_git import git, repository
from tests.test_protected import TRY, all_of, attempt, opened, worked
from toolcrib.errors import Kind
from toolcrib.model import Level, Profile, ToolResult
from toolcrib.sandbox import _placeholders

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; install it")

SUPERVISED = pytest.mark.parametrize("level", each_level()[2:])
OWNERS = [
    pytest.param(None, id="same-user"),
    pytest.param(
        NOBODY, id="other-user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="run the tests as root")
    ),
]
GIT = ("fs", "shell.execute", "git.write")
NAMES = ("hooks", "modules", "commondir", "config.worktree", "remotes", "branches")

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
    "where to push": "echo URL: $PWD/evil > .git/remotes/origin",
    "where to push, as a branch": "echo $PWD/evil > .git/branches/origin",
    "git replaced": "mv .git .g && mkdir .git",
    "config": "cp evil/config .git/config",
    "its mode": "chmod 777 .git/commondir",
    "its times": "touch .git/commondir",
}
"""Attack: a tool with `git.write` makes the user's next git command run a program of its choice."""
NAMED = "export HOME=/nowhere " + " ".join(
    f"GIT_{who}_{what}=n" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
)
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
    shutil.copy(top / "evil" / "hook", top / "evil" / "hooks" / "pre-receive")


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
        git(folder, "push", "-q", "origin", "HEAD:pushed", check=False)
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
    with opened(project, level, needs=GIT) as crib:
        ordinary = {name: f"{NAMED}; {command}" for name, command in ORDINARY.items()}
        found = worked(crib, ordinary)
        # The new worktree would be beside the project, where the tool may not write.
        assert found == {**all_of(True, ordinary), "worktree": False}
        assert worked(crib, {"again": f"{NAMED}; git worktree add -q below other"}) == {"again": True}
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
            assert "gone/.git appeared while it ran and is now" in result.content, result
    assert not (top / "gone" / ".git").exists()
    nothing_ran(project.parent / "marker", top, top / "sub", top / "below")


@SUPERVISED
def test_attack_a_submodule_that_becomes_a_link_costs_another_repository_nothing(
    project: Path, level: Level
) -> None:
    """Where nothing may appear, what appeared has to go: the link, and not what it leads to."""
    other = repository(project.parent / "other")
    git(project, "submodule", "-q", "add", str(other), "gone")
    git(project, "submodule", "-q", "deinit", "-f", "gone")
    (project / "gone").rmdir()
    with opened(project, level, needs=("fs", "shell.execute")) as crib:
        result = attempt(crib, "ln -s ../other gone")
    assert f"{project}/gone appeared while it ran and is now" in result.content
    assert not (project / "gone").is_symlink()
    assert git(other, "status", "--porcelain") == ""


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


MADE = "mkdir $TMPDIR/x && ln -s $PWD/../victim $TMPDIR/x/HEAD"
MOVED = "perl -e 'rename $ENV{TMPDIR} . q(/x)"
LEADING_OUT_BY_LINKS = {
    "the log": "rm .git/logs/HEAD; ln -s $PWD/../victim .git/logs/HEAD",
    "the folder of logs": "mv .git/logs .git/l; ln -s $PWD/.. .git/logs",
    "the message": "ln -sf $PWD/../victim .git/COMMIT_EDITMSG",
    "the index": "mv .git/index .git/i; ln -s $PWD/../victim .git/index",
    "a folder of objects": "rm -r .git/objects/pack; ln -s $PWD/.. .git/objects/pack",
    "what git obeys": "rm .git/logs/HEAD; ln -s ../config .git/logs/HEAD",
    "a hard link": "ln ../victim .git/logs/HEAD2",
    "a hard link to what git obeys": "ln .git/config .git/logs/HEAD3",
    "a folder with links, moved": f"{MADE} && {MOVED}, q(.git/y) or die'",
    "a pipe": "mkfifo .git/logs/pipe",
}
"""Attack: the user's git writes through links in the repository's folder, into the file that they name."""


IN_THE_REPOSITORY = {
    "commit": "git commit -q --allow-empty -m new",
    "branch": "git branch b/c && git branch -f b/c HEAD && git update-ref -d refs/heads/b/c",
    "notes": "git notes add -m note",
    "pack": "git pack-refs --all && git gc -q && git fsck",
    "index": "git update-index --split-index && git reset -q",
}
"""What git does in its folder alone."""


@SUPERVISED
def test_attack_with_git_write_alone_no_link_leads_the_users_git_out(project: Path, level: Level) -> None:
    victim = project.parent / "victim"
    victim.write_text("mine\n", encoding="ascii")
    victim.chmod(0o666)
    with opened(project, level, needs=("fs.read", "shell.execute", "git.write")) as crib:
        assert worked(crib, LEADING_OUT_BY_LINKS) == all_of(False, LEADING_OUT_BY_LINKS)
        allowed = {
            "files and folders": "mkdir .git/x && echo > .git/x/y && mv .git/x .git/logs",
            "hard links": "ln .git/HEAD .git/h",
            "a link elsewhere, moved": f"{MADE} && {MOVED}, $ENV{{TMPDIR}} . q(/y) or die'",
            **{name: f"{NAMED}; {command}" for name, command in IN_THE_REPOSITORY.items()},
        }
        assert worked(crib, allowed) == all_of(True, allowed)
    git(project, "commit", "-q", "--allow-empty", "-m", "more", check=False)
    assert victim.read_text(encoding="ascii") == "mine\n"


@SUPERVISED
@pytest.mark.parametrize(
    "way", ["the log", "the folder of logs", "the message", "the index", "what git obeys"]
)
def test_attack_with_the_whole_project_writable_no_link_is_left_in_the_repository(
    project: Path, level: Level, way: str
) -> None:
    victim = project.parent / "victim"
    victim.write_text("mine\n", encoding="ascii")
    config = (project / ".git" / "config").read_text(encoding="utf-8")
    with opened(project, level, needs=GIT) as crib:
        result = attempt(crib, LEADING_OUT_BY_LINKS[way])
        assert result.error is not None
        assert result.error.kind is Kind.DENIED
        assert "appeared while it ran and was removed" in result.error.message
        assert worked(crib, {"moved": f"{MADE} && {MOVED}, q(.git/y) or die'"}) == {"moved": False}
        assert worked(crib, {"in the project": "ln -s ../victim link"}) == {"in the project": True}
    git(project, "commit", "-q", "--allow-empty", "-m", "more", check=False)
    git(project, "checkout", "-q", "-b", "another", check=False)
    assert victim.read_text(encoding="ascii") == "mine\n"
    assert sorted(os.listdir(project.parent)) == ["p", "state", "victim", "w"]
    assert (project / ".git" / "config").read_text(encoding="utf-8") == config


# -- a person works in the repository while a tool runs -----------------------------------------------------


@pytest.fixture(params=OWNERS)
def owner(request: pytest.FixtureRequest) -> int | None:
    """The user of the repository and of its git; None: ours."""
    uid: int | None = request.param
    return uid


@pytest.fixture
def owned(owner: int | None) -> Iterator[Path]:
    """A repository without hooks beside another one, where every user may go."""
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="project-")))
    try:
        place.chmod(0o755)
        repository(place / "other")
        top = repository(place / "p")
        git(top, "config", "extensions.worktreeConfig", "true")
        shutil.rmtree(top / ".git" / "hooks")
        add_tool(top)
        if owner is not None:
            for path in (place, *place.rglob("*")):
                os.chown(path, owner, owner)
        yield top
    finally:
        shutil.rmtree(place)


@contextmanager
def running(crib: toolcrib.Crib, top: Path, command: str = "true") -> Iterator[list[ToolResult]]:
    """A call that runs while the body does, and its command after the body; then the list has the result."""
    meeting = top / "meeting"
    os.mkfifo(meeting)
    os.chown(meeting, top.stat().st_uid, -1)
    results: list[ToolResult] = []

    def call() -> None:
        results.append(attempt(crib, f"echo > meeting; cat meeting; {command}"))

    thread = threading.Thread(target=call)
    thread.start()
    meeting.read_text(encoding="ascii")
    try:
        yield results
    finally:
        meeting.write_text("\n", encoding="ascii")
        thread.join()
        meeting.unlink()


@SUPERVISED
def test_what_a_person_does_in_a_repository_while_a_tool_runs_works_and_stays(
    owned: Path, owner: int | None, level: Level
) -> None:
    git_folder, hook = owned / ".git", owned / ".git" / "hooks" / "post-commit"
    with opened(owned, level, needs=GIT) as crib:
        with running(crib, owned) as results:
            assert {*NAMES} <= {*os.listdir(git_folder)}
            git(owned, "submodule", "-q", "add", "../other", "sub", user=owner)
            git(owned, "config", "--worktree", "person.name", "one", user=owner)
            write = f"echo 'echo > ../ran' > {hook} && chmod +x {hook}"
            subprocess.run(["sh", "-c", write], user=owner, check=True)
        assert results[0].ok, results
        changed = {note.split()[0] for note in results[0].notes if "changed while the tool ran" in note}
        assert changed == {f"{git_folder}/config", f"{git_folder}/config.worktree"}
        assert worked(crib, {"next": "true"}) == {"next": True}
    assert "commondir" not in os.listdir(git_folder)
    assert git(owned, "config", "person.name", user=owner) == "one\n"
    git(owned, "config", "--worktree", "person.name", "two", user=owner)
    git(owned, "commit", "-qm", "with a submodule", user=owner)
    assert (owned.parent / "ran").exists(), "the hook is there"
    assert (owned / "sub" / "a").exists()
    assert git(owned, "status", "--porcelain", user=owner) == "?? tools.json\n?? tools/\n"


@SUPERVISED
def test_what_a_person_makes_of_a_placeholder_is_held_from_the_next_call_on(
    owned: Path, owner: int | None, level: Level
) -> None:
    """Attack: a tool changes the hook that a person wrote while it ran, then or in its next call."""
    hook = owned / ".git" / "hooks" / "post-commit"
    with opened(owned, level, needs=GIT) as crib:
        with running(crib, owned, "echo evil > .git/hooks/post-commit") as results:
            subprocess.run(["sh", "-c", f"echo good > {hook}"], user=owner, check=True)
        assert json.loads(results[0].content) == {"worked": False}
        assert worked(crib, {"hook": "echo evil > .git/hooks/post-commit"}) == {"hook": False}
    assert hook.read_text(encoding="ascii") == "good\n"
