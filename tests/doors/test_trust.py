"""``toolcrib trust PATH``: a project's own configuration counts once a person reviewed it, not before."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from tests.program import PROGRAM, WAIT_S, environment, toolcrib
from toolcrib.config import Environment, resolve
from toolcrib.store.trusted import digest_of

WIDE = '[grants."*"]\nenv = ["CITY"]\n\n[skills]\nallow_scripts = true\ndisabled = ["drafts"]\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "toolcrib.toml").write_text(WIDE, encoding="utf-8")
    return folder


def ignored(project: Path, home: Path) -> list[str]:
    """The keys of the project's file that do not count."""
    found = toolcrib("check", "--json", cwd=project, home=home).json["problems"]
    return sorted(
        problem["message"].partition(" is ignored")[0]
        for problem in found
        if problem["code"] == "config.untrusted"
    )


def test_a_file_counts_after_trust_and_no_more_once_it_changed(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert ignored(project, home) == ["grants", "skills.allow_scripts"]
    done = toolcrib("trust", ".", "--yes", "--json", cwd=project, home=home)
    assert (done.status, done.err) == (0, "")
    assert done.json == [
        {
            "path": str(project / "toolcrib.toml"),
            "status": "trusted",
            "digest": digest_of(WIDE.encode()),
            "widens": [
                {"key": "skills.allow_scripts", "value": "true"},
                {"key": "grants", "value": '{"*": {"env": ["CITY"]}}'},
            ],
        }
    ]
    assert ignored(project, home) == []
    found = resolve(Environment.read({"HOME": str(home)}), cwd=str(project))
    assert (found.trusted, found.allow_scripts, found.skills_disabled) == (True, True, ("drafts",))

    (project / "toolcrib.toml").write_text(WIDE + "# more\n", encoding="utf-8")
    said = toolcrib("check", cwd=project, home=home)
    assert "this file is not what you trusted any more" in said.out
    assert f"review what changed, and if you trust it: toolcrib trust {project}/toolcrib.toml" in said.out
    assert toolcrib("trust", "--list", "--json", cwd=project, home=home).json[0]["status"] == "changed"
    (project / "toolcrib.toml").write_text(WIDE, encoding="utf-8")
    assert ignored(project, home) == []

    assert toolcrib("trust", "--remove", ".", cwd=project, home=home).status == 0
    assert ignored(project, home) == ["grants", "skills.allow_scripts"]
    assert toolcrib("trust", "--remove", ".", cwd=project, home=home).status == 2
    assert toolcrib("trust", "--list", "--json", cwd=project, home=home).json == []
    told = toolcrib("audit", "tail", "--json", cwd=project, home=home)
    assert told.out.count('"trust"') >= 2


def test_the_lock_file_is_trusted_with_its_project(project: Path, tmp_path: Path) -> None:
    (project / "toolcrib.lock").write_text("{}", encoding="utf-8")
    done = toolcrib("trust", ".", "--yes", "--json", cwd=project, home=tmp_path / "home").json
    assert [os.path.basename(item["path"]) for item in done] == ["toolcrib.toml", "toolcrib.lock"]


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 130), ("", 130)])
def test_a_terminal_is_shown_what_would_be_widened_and_asked(
    answer: str, status: int, project: Path, tmp_path: Path
) -> None:
    controller, terminal = pty.openpty()
    try:
        os.write(controller, f"{answer}\n".encode())
        ended = subprocess.run(
            [PROGRAM, "trust", "."],
            cwd=project,
            env=environment(tmp_path / "home"),
            stdin=terminal,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
    finally:
        os.close(controller)
        os.close(terminal)
    said = ended.stderr.decode()
    assert "skills.allow_scripts = true" in said
    assert 'grants = {"*": {"env": ["CITY"]}}' in said
    assert ended.returncode == status
    assert (ignored(project, tmp_path / "home") == []) is (answer == "y")


def test_without_a_terminal_nothing_is_trusted_unless_a_script_says_yes(
    project: Path, tmp_path: Path
) -> None:
    said = toolcrib("trust", ".", cwd=project, home=tmp_path / "home")
    assert said.status == 2
    assert "--yes" in said.err
    assert ignored(project, tmp_path / "home") != []


def test_what_is_shown_cannot_act_on_the_terminal(project: Path, tmp_path: Path) -> None:
    (project / "toolcrib.toml").write_text('[skills]\nextra_dirs = ["\\u001b[2Jx\\u202e"]\n', "utf-8")
    said = toolcrib("trust", ".", "--yes", cwd=project, home=tmp_path / "home")
    assert "\x1b" not in said.err + said.out
    assert "\u202e" not in said.err + said.out
    assert "skills.extra_dirs" in said.err


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [("missing", None, 66), (".", "", 2), ("tools.json", "{}", 66), ("toolcrib.toml", "nonsense = 1", 78)],
)
def test_what_cannot_be_trusted_is_said(name: str, text: str | None, status: int, tmp_path: Path) -> None:
    if name != "." and text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = toolcrib("trust", name, "--yes", cwd=tmp_path, home=tmp_path / "home")
    assert said.status == status, said


# -- attacks ------------------------------------------------------------------------------------------------


def test_a_clone_that_ships_its_own_trust_is_not_believed(project: Path, tmp_path: Path) -> None:
    """The store of a state folder inside the clone is nobody's unless the user names that folder."""
    inside = project / ".local" / "state" / "toolcrib"
    done = toolcrib("trust", ".", "--yes", "--state", inside, cwd=project, home=tmp_path / "author")
    assert done.status == 0
    for name in ("state.sqlite", ".toolcrib"):
        (project / name).write_bytes((inside / "state.sqlite").read_bytes())
    assert ignored(project, tmp_path / "home") == ["grants", "skills.allow_scripts"]


def test_a_clone_whose_file_leads_to_a_trusted_one_is_not_trusted(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    toolcrib("trust", ".", "--yes", cwd=project, home=home)
    for kind in ("link", "hard"):
        clone = tmp_path / kind
        clone.mkdir()
        if kind == "link":
            (clone / "toolcrib.toml").symlink_to(project / "toolcrib.toml")
        else:
            os.link(project / "toolcrib.toml", clone / "toolcrib.toml")
        assert ignored(clone, home) == ["grants", "skills.allow_scripts"]


def test_another_project_at_the_path_of_a_trusted_one_is_not_trusted(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    toolcrib("trust", ".", "--yes", cwd=project, home=home)
    project.rename(tmp_path / "away")
    project.mkdir()
    (project / "toolcrib.toml").write_text(WIDE, encoding="utf-8")
    assert ignored(project, home) == ["grants", "skills.allow_scripts"]
    assert ignored(tmp_path / "away", home) == ["grants", "skills.allow_scripts"]


def test_a_file_that_is_swapped_all_the_time_never_counts_but_as_it_was_trusted(
    project: Path, tmp_path: Path
) -> None:
    """Race between the digest and the reading: whatever was read, only the trusted bytes widen."""
    home = tmp_path / "home"
    toolcrib("trust", ".", "--yes", cwd=project, home=home)
    surroundings = Environment.read({"HOME": str(home)})
    code = (
        "import os, sys\n"
        "parent, turn = os.getppid(), 0\n"
        "while os.getppid() == parent:\n"
        "    turn += 1\n"
        "    with open('swap', 'w') as file: file.write(sys.argv[1 + turn % 2])\n"
        "    os.replace('swap', 'toolcrib.toml')\n"
    )
    other = WIDE.replace('"CITY"', '"*"')
    seen: set[tuple[bool, tuple[str, ...]]] = set()
    with subprocess.Popen([PROGRAM.parent / "python", "-c", code, WIDE, other], cwd=project) as swapping:
        until, count = time.monotonic() + WAIT_S, 0
        try:
            while (count < 500 or len(seen) < 2) and time.monotonic() < until:
                found = resolve(surroundings, cwd=str(project))
                granted = tuple(name for grant in found.grants for name in grant.env)
                seen.add((found.trusted, granted))
                count += 1
            assert swapping.poll() is None  # it has swapped all the while
        finally:
            swapping.kill()
    assert seen <= {(False, ()), (True, ("CITY",))}
    assert len(seen) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else's")
def test_a_store_of_somebody_else_is_not_believed(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    toolcrib("trust", ".", "--yes", cwd=project, home=home)
    store = home / ".local" / "state" / "toolcrib" / "state.sqlite"
    os.chown(store, 65534, 65534)
    assert ignored(project, home) == ["grants", "skills.allow_scripts"]


def test_a_state_folder_that_others_may_write_is_not_believed(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    toolcrib("trust", ".", "--yes", cwd=project, home=home)
    state = home / ".local" / "state" / "toolcrib"
    state.chmod(0o777)
    said = toolcrib("check", cwd=project, home=home)
    assert f"others may write {state}" in said.out
    assert toolcrib("trust", ".", "--yes", cwd=project, home=home).status == 74


def test_a_damaged_store_trusts_nothing(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    toolcrib("trust", ".", "--yes", cwd=project, home=home)
    store = home / ".local" / "state" / "toolcrib" / "state.sqlite"
    for ending in ("-wal", "-shm"):
        store.with_name(store.name + ending).unlink(missing_ok=True)
    store.write_bytes(b"no database" * 100)
    assert ignored(project, home) == ["grants", "skills.allow_scripts"]


def test_a_found_file_that_widens_nothing_asks_no_store(tmp_path: Path) -> None:
    """Looking stays cheap: SQLite is imported only where trust could matter."""
    (tmp_path / "toolcrib.toml").write_text('[skills]\ndisabled = ["x"]\n', encoding="utf-8")
    state = tmp_path / "home" / ".local" / "state" / "toolcrib"
    state.mkdir(parents=True, mode=0o700)
    (state / "state.sqlite").write_bytes(b"")
    code = (
        "import sys, toolcrib.config as c;"
        f"c.resolve(c.Environment.read({{'HOME': {str(tmp_path / 'home')!r}}}), cwd={str(tmp_path)!r});"
        "print('sqlite3' in sys.modules, 'toolcrib.store.trusted' in sys.modules)"
    )
    python = PROGRAM.parent / "python"
    ran = subprocess.run([python, "-c", code], capture_output=True, timeout=WAIT_S, check=True, text=True)
    assert ran.stdout.split() == ["False", "False"]


def test_where_nothing_waits_and_nothing_is_to_be_trusted_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "tools.json").write_text("{}", encoding="utf-8")
    for name, status in (("some", 2), ("some/tools.json", 66)):
        said = toolcrib("trust", name, cwd=tmp_path, home=tmp_path / "home")
        assert said.status == status
        assert f"{name}: nothing to confirm or to trust: no tool changed" in said.err
        assert "toolcrib trust --list" in said.err.splitlines()[1]
