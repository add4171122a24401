"""A project's root through a tool: files can be made, saved and deleted; what others run stays as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

import toolcrib
from tests.levels import each_level, sandbox_of
from toolcrib.config import Environment, HttpSettings, resolve
from toolcrib.errors import Kind
from toolcrib.former import name_of
from toolcrib.model import Grant, Level, Profile, ToolResult

ORDINARY = {
    "make": "echo new > made.txt",
    "save": "echo saved > saved.new && mv saved.new kept.txt",
    "change": "echo changed > changed.txt",
    "delete": "rm gone.txt",
    "folder": "mkdir folder && echo x > folder/x",
}
BELOW = {"below": "echo x > sub/made.txt && mv sub/made.txt sub/kept.txt"}
REPOSITORY = {"index": "echo x > .git/index.lock && rm .git/index.lock"}
PROTECTED = {
    "hook": "echo evil > .git/hooks/pre-commit",
    "hook of a new name": "echo evil > .git/hooks/pre-push",
    "hooks replaced": "mv .git/hooks .git/old && mkdir .git/hooks",
    "git config": "echo evil >> .git/config",
    "git config renamed over": "echo evil > .git/config.lock && mv .git/config.lock .git/config",
    "git replaced": "mv .git .old && mkdir -p .git/hooks",
    "git deleted": "rm -rf .git",
    "manifest": "echo '{}' > tools.json",
    "manifest renamed over": "echo '{}' > new.json && mv new.json tools.json",
    "manifest deleted": "rm tools.json",
    "own program": "echo evil >> tools/bin/try",
    "own program replaced": "echo evil > evil && mv evil tools/bin/try",
    "tools replaced": "mv tools old-tools",
    "rye tool": "echo evil > .ai/tools/evil.py",
    "ai replaced": "mv .ai .old-ai && mkdir .ai",
    "configuration": "echo '[trust]' > toolcrib.toml",
    "authorities": "echo evil >> authorities.pem",
    "authorities replaced": "echo evil > new.pem && mv new.pem authorities.pem",
    "configuration renamed over": "echo evil > new.toml && mv new.toml toolcrib.toml",
    "configuration of the former name": f"echo '[trust]' > {name_of('toolcrib.toml')}",
}
"""Attack: a tool that may write to the project plants code that runs later, with more rights."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a repository, declarations, ordinary files, and a tool that tries what it is told."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "p"
    for name in (".git/hooks", ".ai/tools", "tools/bin", "sub"):
        (folder / name).mkdir(parents=True)
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tool = {"name": "try", "description": "d", "schema": schema, "command": ["./tools/bin/try"]}
    for name, text in (
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", "[core]\n"),
        (".git/hooks/pre-commit", "#!/bin/sh\n"),
        (".ai/tools/a.py", ""),
        ("tools.json", json.dumps({"tools": [tool]})),
        ("toolcrib.toml", ""),
        ("authorities.pem", ""),
        (name_of("toolcrib.toml"), ""),
        ("tools/bin/try", TRY),
        ("kept.txt", "old\n"),
        ("changed.txt", "old\n"),
        ("gone.txt", "old\n"),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "tools" / "bin" / "try").chmod(0o755)
    return folder


TRY = """#!/bin/sh
# Runs the command in its arguments, which hold no quotes of JSON, and says whether it worked.
command=$(sed -e 's/^{"command": *"//' -e 's/"}$//')
if said=$(sh -c "$command" 2>&1); then echo '{"worked":true}'; else echo '{"worked":false}'; fi
"""


@contextmanager
def opened(
    project: Path, level: Level, *, undeclared: Profile | None = None, needs: tuple[str, ...] | None = None
) -> Iterator[toolcrib.Crib]:
    environment = replace(
        Environment.read({"PATH": os.environ["PATH"], "HOME": "/nowhere"}),
        state=str(project.parent / "state"),
    )
    settings = resolve(environment, cwd=str(project), sources=[str(project)])
    grants = (Grant(pattern="manifest:*", needs=needs),) if needs is not None else ()
    http = HttpSettings(ca_file=str(project / "authorities.pem"))
    settings = replace(settings, undeclared=undeclared, grants=grants, http=http)
    here = os.getcwd()
    os.chdir(project)
    try:
        with (
            sandbox_of(level) as sandbox,
            toolcrib.open(settings, environment=environment, sandbox=sandbox) as crib,
        ):
            yield crib
    finally:
        os.chdir(here)


def attempt(crib: toolcrib.Crib, command: str) -> ToolResult:
    assert '"' not in command
    return crib.call("try", {"command": command})


def worked(crib: toolcrib.Crib, commands: Mapping[str, str]) -> dict[str, bool]:
    found = {}
    for name, command in commands.items():
        result = attempt(crib, command)
        assert result.ok, result.error
        found[name] = json.loads(result.content)["worked"]
    return found


def looks(project: Path) -> dict[str, str]:
    """What must stay as it was: every path of it, with its content."""
    own = ("toolcrib.toml", name_of("toolcrib.toml"), "authorities.pem")
    names = (".git", ".ai", "tools", "tools.json", *own)
    paths = [path for name in names for path in (project / name, *(project / name).rglob("*"))]
    return {
        str(path.relative_to(project)): path.read_text(encoding="utf-8") if path.is_file() else ""
        for path in paths
    }


def all_of(answer: bool, *commands: Mapping[str, str]) -> dict[str, bool]:
    return {name: answer for some in commands for name in some}


@pytest.mark.parametrize("level", each_level())
@pytest.mark.parametrize("undeclared", [None, Profile.PROJECT], ids=["default", "project"])
def test_files_at_the_root_of_a_project_can_be_made_saved_and_deleted(
    project: Path, level: Level, undeclared: Profile | None
) -> None:
    with opened(project, level, undeclared=undeclared) as crib:
        # Without mount namespaces a folder that holds what is protected is itself read-only.
        at_root = level is not Level.RESTRICTED
        found = worked(crib, {**ORDINARY, **BELOW})
        assert found == {**all_of(at_root, ORDINARY), "change": True, "below": True}
        if at_root:
            assert (project / "kept.txt").read_text(encoding="utf-8") == "saved\n"
            assert not (project / "gone.txt").exists()
        else:
            assert "protected:read-only-parents" in attempt(crib, "true").isolation


@pytest.mark.battery("C11")
@pytest.mark.parametrize("level", each_level())
@pytest.mark.parametrize("undeclared", [None, Profile.PROJECT], ids=["default", "project"])
def test_a_tool_cannot_plant_code_in_hooks_configuration_or_declarations(
    project: Path, level: Level, undeclared: Profile | None
) -> None:
    before = looks(project)
    with opened(project, level, undeclared=undeclared) as crib:
        if level is Level.PORTABLE:
            assert any("not enforced" in line for line in crib.warnings())
            return
        assert worked(crib, {**PROTECTED, **REPOSITORY}) == all_of(False, PROTECTED, REPOSITORY)
    assert looks(project) == before


@pytest.mark.battery("C11")
@pytest.mark.parametrize("level", each_level())
def test_the_grant_for_git_opens_the_repository_and_neither_hooks_nor_config(
    project: Path, level: Level
) -> None:
    before = looks(project)
    with opened(project, level, needs=("fs", "shell.execute", "git.write")) as crib:
        if level is Level.RESTRICTED:
            error = attempt(crib, "true").error
            assert error is not None
            assert error.kind is Kind.UNAVAILABLE
            assert "fs.write.unprotected" in (error.hint or "")
            return
        assert worked(crib, {**ORDINARY, **REPOSITORY}) == all_of(True, ORDINARY, REPOSITORY)
        if level is Level.SUPERVISED:
            # Deleting a repository is writing to it; its hooks and its config stay even then.
            tried = {name: command for name, command in PROTECTED.items() if name != "git deleted"}
            assert worked(crib, tried) == all_of(False, tried)
            after = looks(project)
            assert {name: after.get(name) for name in before} == before
