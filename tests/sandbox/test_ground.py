"""What is found around a call: real folders, real repositories."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from toolcrib.former import name_of
from toolcrib.model import JsonOnStdin, Origin, Permit, Profile, RunProcess, Tool
from toolcrib.sandbox import Start, ground
from toolcrib.sandbox.ground import Grounds, Surroundings


def tool(path: Path, **more) -> Tool:
    return Tool(
        key="manifest:t/x",
        name="x",
        scope="t",
        origin=Origin(format="manifest", path=str(path)),
        invocation=RunProcess(
            program=more.pop("program", "/bin/true"), encoding=JsonOnStdin(verbatim=True), **more
        ),
    )


def real(path: Path) -> str:
    return os.path.realpath(path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "config").write_text("", encoding="utf-8")
    (folder / "tools.json").write_text("{}", encoding="utf-8")
    (folder / "sub").mkdir()
    return folder


@pytest.mark.battery("C11")
def test_the_repository_around_a_folder_and_its_declarations_are_found(project, tmp_path):
    (project / ".ai" / "tools").mkdir(parents=True)
    configuration = {project / name for name in ("toolcrib.toml", "toolcrib.lock")}
    configuration |= {path.with_name(name_of(path.name)) for path in configuration}
    for path in configuration:
        path.write_text("", encoding="utf-8")
    state = tmp_path / "state"
    state.mkdir()
    found = (
        Grounds(hidden=[str(state)], temporary=[str(tmp_path)])
        .of(tool(project / "tools.json"), project=str(project / "sub"), cwd=str(project), named=True)
        .ground
    )
    assert found.git == (real(project / ".git"),)
    assert found.git_code == (real(project / ".git" / "hooks"), real(project / ".git" / "config"))
    wanted = {project / "tools.json", project / ".ai" / "tools", *configuration}
    assert {real(path) for path in wanted} <= set(found.protected)
    assert real(project / ".ai") not in found.protected, "tools keep data there"
    assert (found.hidden, found.temporary, found.named) == ((real(state),), (real(tmp_path),), True)


def test_a_worktree_leads_to_the_repository_that_it_shares(project, tmp_path):
    inside = project / ".git" / "worktrees" / "w"
    inside.mkdir(parents=True)
    (inside / "commondir").write_text("../..\n", encoding="utf-8")
    tree = tmp_path / "w"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {inside}\n", encoding="utf-8")
    found = Grounds().of(tool(tree / "tools.json"), project=str(tree), cwd=str(tree), named=True).ground
    assert found.git == (real(tree / ".git"), real(inside), real(project / ".git"))
    assert real(project / ".git" / "hooks") in found.git_code


def test_the_tools_own_code_is_protected(project, tmp_path):
    program = project / "tools" / "bin" / "x"
    program.parent.mkdir(parents=True)
    program.write_text("", encoding="utf-8")
    skill = project / "skills" / "notes"
    skill.mkdir(parents=True)
    found = Grounds().of(
        tool(project / "tools.json", program=str(program), skill_dir=str(skill)),
        project=str(project), cwd=str(project), named=True,
    ).ground  # fmt: skip
    assert {real(program), real(skill)} <= set(found.protected)


def test_paths_are_real_so_that_no_link_hides_what_is_protected(project, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(project)
    found = (
        Grounds().of(tool(link / "tools.json"), project=str(link), cwd=str(link / "sub"), named=True).ground
    )
    assert (found.project, found.cwd) == (real(project), real(project / "sub"))
    assert real(project / "tools.json") in found.protected


def test_what_git_would_obey_is_looked_for_again_until_it_can_be_told(project):
    """Nothing else changes in the meantime, not even a time."""
    config = project / ".git" / "config"
    config.write_text("[core\n", encoding="utf-8")
    before = config.stat()
    grounds, asked = Grounds(), tool(project / "tools.json")

    def ask(known=None):
        return grounds.of(asked, project=str(project), cwd=str(project), named=True, known=known)

    first = ask()
    assert first.ground.unclear == f"{real(config)}: line 1 is no configuration of git"
    config.write_text("[core]", encoding="utf-8")
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = ask(first).ground
    assert found.unclear == ""
    assert found.git == (real(project / ".git"),)


def test_the_answer_is_kept_until_something_changes(project):
    grounds = Grounds()
    asked = tool(project / "tools.json")

    def ask(known=None):
        return grounds.of(asked, project=str(project), cwd=str(project), named=True, known=known)

    def aged(found):
        return replace(found, at=found.at - 2 * ground.FRESH_S)

    first = ask()
    assert ask(first) is first
    assert ask(aged(first)).ground is first.ground, "looked at again, nothing changed"
    (project / "toolcrib.toml").write_text("", encoding="utf-8")
    assert ask(first) is first, "for a moment"
    assert real(project / "toolcrib.toml") in ask(aged(first)).ground.protected


def test_attack_a_tool_is_loaded_meanwhile_whose_declaration_the_known_ground_leaves_open(project):
    grounds = Grounds()
    asked, other = tool(project / "tools.json"), project / "other" / "tools.json"
    other.parent.mkdir()
    other.write_text("{}", encoding="utf-8")
    known = grounds.of(asked, project=str(project), cwd=str(project), named=True)
    grounds.guard([str(other)])
    found = grounds.of(asked, project=str(project), cwd=str(project), named=True, known=known)
    assert str(other) in found.ground.protected


def test_many_declarations_are_protected_by_their_folders(tmp_path):
    many = []
    for number in range(ground.BINDS_MAX):
        path = tmp_path / "skills" / str(number) / "tools.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}", encoding="utf-8")
        many.append(str(path))
    found = (
        Grounds(guarded=many)
        .of(tool(tmp_path / "x.json"), project=str(tmp_path), cwd=str(tmp_path), named=True)
        .ground
    )
    assert ground._mounts(found.protected) <= ground.BINDS_MAX
    assert all(any(path.startswith(f"{held}/") or path == held for held in found.protected) for path in many)


# -- the facts of a start -----------------------------------------------------------------------------------


def facts(program: str, **more):
    start = Start(
        program=program, argv=(program,), env={"PATH": more.pop("path", "/usr/bin:/bin")}, cwd="/",
        permit=more.pop("permit", Permit()), **more,
    )  # fmt: skip
    return Surroundings(landlock=7, seccomp=True, namespaces=False).facts(start, "/scratch")


def test_a_program_starts_with_its_loader():
    found = facts("/bin/sh")
    assert os.path.realpath("/bin/sh") in found.startup
    assert any("ld-" in os.path.basename(path) for path in found.startup) or sys.platform != "linux"


def test_a_script_names_its_interpreters_and_a_venv_its_libraries(tmp_path):
    inner = tmp_path / "venv" / "bin" / "interp"
    inner.parent.mkdir(parents=True)
    (tmp_path / "venv" / "lib").mkdir()
    (tmp_path / "venv" / "share").mkdir()
    shutil.copy("/bin/true", inner)
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env -S interp -x\n", encoding="utf-8")
    found = facts(str(script), path=str(inner.parent))
    assert {real(script), os.path.realpath("/usr/bin/env"), real(inner)} <= set(found.startup)
    assert real(tmp_path / "venv" / "lib") in found.prefixes
    assert real(tmp_path / "venv" / "share") not in found.prefixes, "~/.local/share is nobody's library"


def test_the_shim_of_a_version_manager_reaches_its_interpreters_and_nothing_else(tmp_path):
    home = tmp_path / "home"
    for name in ("shims", "libexec", "versions", "Documents"):
        (home / name).mkdir(parents=True)
    shim = home / "shims" / "python3"
    shim.write_text("#!/bin/sh\nexec ../libexec/manager exec python3\n", encoding="utf-8")
    shim.chmod(0o755)
    script = tmp_path / "tool"
    script.write_text("#!/usr/bin/env python3\n", encoding="utf-8")
    script.chmod(0o755)
    found = facts(str(script), path=str(shim.parent))
    assert {real(home / name) for name in ("shims", "libexec", "versions")} <= set(found.prefixes)
    assert real(home) not in found.prefixes
    assert real(home / "Documents") not in found.prefixes


def test_the_users_settings_for_git_are_found_where_they_exist(project, tmp_path):
    settings = tmp_path / ".gitconfig"
    settings.write_text("", encoding="utf-8")
    grounds = Grounds(git_settings=[str(settings), str(tmp_path / "git" / "config")])
    found = grounds.of(
        tool(project / "tools.json"), project=str(project), cwd=str(project), named=True
    ).ground
    assert found.git_settings == (real(settings),)


@pytest.mark.parametrize(
    "head", [b"", b"#!", b"#!\n", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 200, b"#!/loop"]
)
def test_any_bytes_can_be_a_program(tmp_path, head):
    program = tmp_path / "program"
    program.write_bytes(head)
    assert real(program) in facts(str(program)).startup


def test_links_are_left_out_where_entries_get_rights(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "held").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    root = real(tmp_path)
    permit = Permit(profile=Profile.PROJECT, write=(root,), protected=(f"{root}/held",))
    assert facts("/bin/true", permit=permit).entries == {root: ("held", "kept")}


def test_as_root_the_device_nodes_that_every_user_may_open_are_found():
    whole = Permit(profile=Profile.OPEN, read=("/",), write=("/",))
    found = facts("/bin/true", permit=whole).usable_devices
    if os.geteuid() != 0:
        assert found is None
        return
    assert found is not None
    assert {"/dev/null", "/dev/pts"} <= set(found)
    for path in found:
        status = os.stat(path)
        assert stat.S_ISDIR(status.st_mode) or status.st_mode & 0o006 == 0o006, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to choose; run as root")
def test_as_root_nobody_is_chosen_only_where_nobody_can_reach_everything(tmp_path):
    assert facts("/bin/true").user == 65534
    tmp_path.chmod(0o700)
    own = tmp_path / "own"
    own.write_text("", encoding="utf-8")
    assert facts("/bin/true", own=(str(own),)).user is None
    assert facts("/bin/true", permit=Permit(write=(str(tmp_path),))).user is None


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o700, 0o000])
def test_reaching_follows_the_modes_of_every_folder(tmp_path, mode):
    folder = tmp_path / "a"
    folder.mkdir()
    file = folder / "b"
    file.write_text("", encoding="utf-8")
    folder.chmod(mode)
    try:
        expected = bool(mode & stat.S_IXOTH) and ground._reaches(str(tmp_path), 12345, 12345)
        assert ground._reaches(str(file), 12345, 12345) is expected
    finally:
        folder.chmod(0o755)


def test_git_itself_agrees_about_where_its_folder_is(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed; install it to run this")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env={"PATH": os.defpath, "HOME": "/"})
    found = Grounds().of(tool(tmp_path / "x"), project=str(tmp_path), cwd=str(tmp_path), named=True).ground
    assert found.git == (real(tmp_path / ".git"),)
