"""What still has the former name of this program is refused with the command that moves it, or reported."""

from __future__ import annotations

import json
import os
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

import toolcrib
from tests.journal import work
from tests.program import Said
from tests.program import toolcrib as command
from tests.test_planted import confirmed, names, opened, plant, project, written
from toolcrib.config import Config, Environment, resolve
from toolcrib.errors import ConfigError, StoreError
from toolcrib.former import FORMER_NAME, name_of
from toolcrib.journal import chain, reading
from toolcrib.journal.audit import Seals, open_audit
from toolcrib.journal.segments import Bounds, Segments
from toolcrib.model import Disabled
from toolcrib.store.disabled import disabled, switch_off, switch_on
from toolcrib.store.keep import STORE_NAME, lock_memory
from toolcrib.store.sqlite import SqliteStore
from toolcrib.trust.vault import Vault

__all__ = ["project"]

CONFIG, LOCK = name_of("toolcrib.toml"), name_of("toolcrib.lock")
PASSPHRASE = name_of("TOOLCRIB_VAULT_PASSPHRASE")
DENIES = '[[policy]]\nmatch = {}\ndecision = "deny"\nbecause = "nothing runs here"\n'
TOOL = {
    "name": "get_time",
    "description": "Tell the time.",
    "schema": {"type": "object"},
    "command": ["/bin/echo", "{}"],
}
COMMANDS = (
    ("check",),
    ("list",),
    ("call", "get_time", "{}"),
    ("serve", "--stdio"),
    ("lock", "--check"),
    ("policy", "explain", "get_time"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one tool."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "tools.json").write_text(json.dumps({"tools": [TOOL]}), "utf-8")
    return folder


def run(folder: Path, *arguments: str | Path, **env: str) -> Said:
    return command(*arguments, cwd=folder, home=folder.parent / "home", env=env)


def refused(said: Said, former: Path, path: Path) -> bool:
    """Whether a command ended with 78, ran nothing, and named the command that moves the file."""
    return said.status == 78 and not said.out and f"mv {former} {path}" in said.err.replace("\n  ", "\n")


# -- configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("below", ["", "sub/folder"])
def test_a_configuration_of_the_former_name_is_refused_by_every_command(
    folder: Path, arguments: tuple[str, ...], below: str
) -> None:
    (folder / CONFIG).write_text(DENIES, "utf-8")
    where = folder / below
    where.mkdir(parents=True, exist_ok=True)
    assert refused(run(where, *arguments), folder / CONFIG, folder / "toolcrib.toml")


def test_once_it_is_moved_it_counts(folder: Path) -> None:
    (folder / CONFIG).write_text(DENIES, "utf-8")
    hint = run(folder, "list").err.splitlines()[1].strip()
    subprocess.run(hint.split(), check=True)
    assert "nothing runs here" in run(folder, "call", "get_time", "{}").err


def test_the_library_raises_what_a_wrong_configuration_raises(folder: Path) -> None:
    (folder / CONFIG).write_text("", "utf-8")
    environment = Environment.read({"HOME": str(folder.parent)})
    with pytest.raises(ConfigError) as raised:
        resolve(environment, cwd=str(folder))
    assert raised.value.exit_code == 78
    assert raised.value.file == str(folder / CONFIG)
    for name in (CONFIG, "toolcrib.toml"):
        with pytest.raises(ConfigError, match="former name"):
            toolcrib.open(config=folder / name, environment=environment)


def test_the_nearest_name_counts_and_a_new_file_stands_beside_the_former_one(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    (folder / CONFIG).write_text(DENIES, "utf-8")
    (below / "toolcrib.toml").write_text("", "utf-8")
    assert run(below, "list").status == 0, "the new one is nearer"
    (folder / "toolcrib.toml").write_text("", "utf-8")
    assert run(folder, "list").status == 0, "another program may have a file of that name"
    (below / "toolcrib.toml").rename(below / CONFIG)
    assert refused(run(below, "list"), below / CONFIG, below / "toolcrib.toml")


def test_a_file_of_another_user_in_a_shared_folder_stops_nobody(folder: Path) -> None:
    # Attack: a former name in /tmp, so that nothing below it can be called.
    (folder / CONFIG).write_text(DENIES, "utf-8")
    (folder / CONFIG).chmod(0o666)
    assert run(folder, "list").status == 0


@pytest.mark.parametrize("is_there", [False, True], ids=["no new folder", "a new folder"])
def test_the_users_own_file_of_the_former_name_is_refused(folder: Path, is_there: bool) -> None:
    own = folder.parent / "home" / ".config"
    (own / FORMER_NAME).mkdir(parents=True)
    (own / FORMER_NAME / "config.toml").write_text(DENIES, "utf-8")
    if is_there:
        (own / "toolcrib").mkdir()
    name = "config.toml" if is_there else ""
    said = run(folder, "call", "get_time", "{}")
    assert refused(said, own / FORMER_NAME / name, own / "toolcrib" / name)
    subprocess.run(said.err.splitlines()[1].split(), check=True)
    assert "nothing runs here" in run(folder, "call", "get_time", "{}").err


def test_state_in_the_former_folder_is_refused_while_there_is_none_in_the_new_one(folder: Path) -> None:
    # What was switched off would be on again.
    states = folder.parent / "home" / ".local" / "state"
    assert run(folder, "disable", "get_time").status == 0
    (states / "toolcrib").rename(states / FORMER_NAME)
    assert refused(run(folder, "list"), states / FORMER_NAME, states / "toolcrib")
    environment = Environment.read({"HOME": str(folder.parent / "home")})
    with pytest.raises(ConfigError, match="former name"):
        toolcrib.open(folder, environment=environment)
    assert run(folder, "--state", folder.parent / "other", "list").status == 0, "a folder that is named"
    (states / "toolcrib").mkdir()
    said = run(folder, "list")
    assert said.status == 78
    subprocess.run(["sh", "-c", said.err.splitlines()[1].strip()], check=True)
    assert "disabled" in run(folder, "call", "get_time", "{}").err
    (states / FORMER_NAME).mkdir(exist_ok=True)
    (states / FORMER_NAME / STORE_NAME).touch()
    assert run(folder, "list").status == 0, "what is kept in the new folder counts"


def test_a_passphrase_under_the_former_name_is_refused_and_never_told(folder: Path) -> None:
    said = run(folder, "secret", "list", **{PASSPHRASE: "correct horse"})
    assert said.status == 78
    assert "TOOLCRIB_VAULT_PASSPHRASE" in said.err
    assert "correct" not in said.err + said.out
    both = {PASSPHRASE: "correct horse", "TOOLCRIB_VAULT_PASSPHRASE": "battery staple"}
    environment = Environment.read(both)
    assert environment.passphrase == "battery staple"
    assert not environment.variables, "no tool is handed either of them"


@pytest.mark.parametrize(
    "text",
    [
        '[[policy]]\nmatch = {{key = "{0}:*"}}\ndecision = "deny"\nbecause = "no"\n',
        '[[policy]]\nmatch = {{key = ["a", "!{0}:rye/sign"]}}\ndecision = "deny"\nbecause = "no"\n',
        '[grants."{0}:rye/*"]\nneeds = []\n',
        '[tools."{0}:rye/fetch"]\neffect = "change"\n',
    ],
)
def test_a_rule_about_a_former_key_of_our_own_tools_is_refused(folder: Path, text: str) -> None:
    (folder / "toolcrib.toml").write_text(text.format(FORMER_NAME), "utf-8")
    said = run(folder, "list")
    assert said.status == 78
    assert "is a former key" in said.err
    (folder / "toolcrib.toml").write_text(f"# {FORMER_NAME}: a comment\n{text.format('toolcrib')}", "utf-8")
    assert run(folder, "list").status == 0


def test_what_was_switched_off_by_its_former_key_is_off(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / STORE_NAME))
    for tool in (f"{FORMER_NAME}:rye/sign", f"manifest:{FORMER_NAME}/t"):
        switch_off(store, Disabled(tool=tool, reason="not now"), 1.0)
    off = [each.tool for each in disabled(store, 1.0)]
    assert sorted(off) == [f"manifest:{FORMER_NAME}/t", "toolcrib:rye/sign"]
    assert switch_on(store, "toolcrib:rye/sign", 1.0)
    assert [each.tool for each in disabled(store, 1.0)] == [f"manifest:{FORMER_NAME}/t"]
    store.close()


# -- lock ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_lock_of_the_former_name_is_refused_by_every_command(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    (folder / LOCK).write_text("{}", "utf-8")
    said = run(folder, *arguments)
    assert refused(said, folder / LOCK, folder / "toolcrib.lock")
    assert "toolcrib lock" in said.err


def test_opening_a_folder_with_a_lock_of_the_former_name_raises(folder: Path) -> None:
    (folder / "toolcrib.toml").write_text('[[source]]\npath = "."\n', "utf-8")
    (folder / LOCK).write_text("{}", "utf-8")
    environment = Environment.read({"HOME": str(folder.parent)})
    with pytest.raises(ConfigError, match="former name"):
        toolcrib.open(config=folder / "toolcrib.toml", environment=environment)
    with pytest.raises(ConfigError, match="former name"):
        toolcrib.open(Config(file=str(folder / "toolcrib.toml"), state=None), environment=environment)


def test_a_lock_that_was_only_moved_says_so_until_it_is_written_again(folder: Path) -> None:
    assert run(folder, "lock").status == 0
    path = folder / "toolcrib.lock"
    text = path.read_text("utf-8").replace('"toolcrib.lock": 2', f'"{LOCK}": 1')
    assert LOCK in text
    path.write_text(text, "utf-8")
    for arguments in (("lock", "--check"), ("call", "get_time", "{}")):
        said = run(folder, *arguments)
        assert said.status == 77
        assert "former name" in said.err
        assert "`toolcrib lock`" in said.err
    assert run(folder, "lock").status == 0
    assert run(folder, "lock", "--check").status == 0


def test_attack_a_lock_deleted_under_its_former_name_still_counts(folder: Path) -> None:
    assert run(folder, "lock").status == 0
    state = str(folder.parent / "home" / ".local" / "state" / "toolcrib")
    memories = [lock_memory(state, str(folder / name)) for name in ("toolcrib.lock", LOCK)]
    os.rename(*memories)
    (folder / "toolcrib.lock").unlink()
    said = run(folder, "call", "get_time", "{}")
    assert said.status == 77
    assert "former name" in said.err
    assert run(folder, "lock", "--forget").status == 0
    assert run(folder, "call", "get_time", "{}").status == 0


@pytest.mark.parametrize("name", [CONFIG, LOCK])
def test_a_project_is_not_trusted_while_it_has_a_former_name(folder: Path, name: str) -> None:
    (folder / name).write_text("", "utf-8")
    said = run(folder.parent, "trust", "--yes", str(folder))
    assert refused(said, folder / name, folder / name_of(name).replace(FORMER_NAME, "toolcrib"))


# -- planted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CONFIG, LOCK])
def test_attack_a_tool_plants_a_former_name_so_that_nothing_can_be_called(project: Path, name: str) -> None:
    with opened(project, ".") as crib:
        assert plant(crib, written(project / name, DENIES)) is None
    with opened(project, ".") as crib:
        assert "write_note" in names(crib)
        told = [problem for problem in crib.problems if problem.code == "source.unconfirmed"]
        assert [Path(problem.path).name for problem in told] == [name]
    assert confirmed(project, name).status == 0
    with pytest.raises(ConfigError, match="former name"), opened(project, "."):
        pass


# -- journal ------------------------------------------------------------------------------------------------


def former_segment(state: Path, name: str = "00000000000000001-1-aaaaaaaa", ending: str = ".open") -> Path:
    """A segment as it was written under the former name."""
    path = state / "journal" / f"{name}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    state.chmod(0o700)
    link = sha256(f"{FORMER_NAME} journal 1\n{name}".encode()).digest()
    data = b""
    for number, body in enumerate(
        ({"what": "open", "ts": 1.0}, {"what": "begin", "ts": 2.0, "call": "old"}), 1
    ):
        frame, link = chain.framed(link, number, json.dumps(body).encode())
        data += frame
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def record(state: Path, *calls: str) -> None:
    audit = open_audit(str(state), day_file=False)
    for id in calls:
        assert audit.begin(work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id), work.tool("capability", latency="fast"))
    audit.close()


@pytest.mark.parametrize("ending", [".open", ".seg"])
def test_a_host_begins_a_segment_of_its_own_beside_those_of_the_former_name(
    tmp_path: Path, ending: str
) -> None:
    state = tmp_path / "state"
    path = former_segment(state, ending=ending)
    before = path.read_bytes()
    record(state, "a")
    record(state, "b")
    assert path.read_bytes() == before
    assert {entry.call for entry in work.records(state)} >= {"a", "b"}
    verdict = work.verdict(state)
    assert (verdict.flaws, verdict.former, verdict.ok) == ((), (path.stem,), False)


def test_a_host_that_tidies_leaves_them_alone_and_calls_none_damaged(tmp_path: Path) -> None:
    path = former_segment(tmp_path)
    before, told = path.read_bytes(), list[str]()
    bounds = Bounds(continued_bytes_max=1)
    journal = Segments(
        str(path.parent), seal=Seals(str(tmp_path)), bounds=bounds, told=told.append, clock=lambda: 1e6
    )
    journal.append([b'{"what":"begin","ts":1.0,"call":"a"}'], durable=True)
    journal.tidy()
    journal.close()
    assert (path.read_bytes(), told) == (before, [])


def test_verify_reports_them_as_unchecked_and_neither_as_whole_nor_as_tampered(tmp_path: Path) -> None:
    state = tmp_path / "state"
    path = former_segment(state)
    record(state, "a")
    said = run(tmp_path, "--state", state, "audit", "verify")
    assert said.status == 78
    assert f"{path.stem}: written under the former name ({FORMER_NAME})" in said.err
    assert "whole as far as checked: " in said.out
    document = run(tmp_path, "--state", state, "audit", "verify", "--json")
    assert document.status == 78
    found = document.json
    assert (found["ok"], found["first_bad"], found["former"]) == (False, None, [path.stem])
    assert "former name" in run(tmp_path, "--state", state, "audit", "tail").err
    assert run(tmp_path, "--state", state, "audit", "anchor", "a.json").status == 0
    path.unlink()
    assert run(tmp_path, "--state", state, "audit", "verify", "--anchor", "a.json").status == 0
    assert "former" not in run(tmp_path, "--state", state, "audit", "tail").err


def test_attack_a_segment_chained_again_in_the_former_way_is_missed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    record(state, "a")
    assert run(tmp_path, "--state", state, "audit", "anchor", "a.json").status == 0
    (path,) = (state / "journal").glob("*.open")
    former_segment(state, path.stem)
    assert run(tmp_path, "--state", state, "audit", "verify").status == 78, "not 0"
    said = run(tmp_path, "--state", state, "audit", "verify", "--anchor", "a.json")
    assert said.status == 65
    assert "the anchor names it" in said.err


def test_an_anchor_of_the_former_name_is_no_sign_of_tampering(tmp_path: Path) -> None:
    state = tmp_path / "state"
    record(state, "a")
    assert run(tmp_path, "--state", state, "audit", "anchor", "a.json").status == 0
    anchor = json.loads((tmp_path / "a.json").read_text("utf-8"))
    (tmp_path / "a.json").write_text(json.dumps({**anchor, "anchor": 1}), "utf-8")
    said = run(tmp_path, "--state", state, "audit", "verify", "--anchor", "a.json")
    assert said.status == 66
    assert "former name" in said.err


def test_only_segments_of_the_former_name_are_taken_for_such(tmp_path: Path) -> None:
    path = former_segment(tmp_path)
    data = path.read_bytes()
    assert chain.is_former(path.stem, data)
    assert not chain.is_former("another", data)
    assert not chain.is_former(path.stem, data[:40])
    assert not chain.scan(path.stem, data).records
    assert reading.former_files(str(path.parent))[0].name == path.stem


# -- vault --------------------------------------------------------------------------------------------------


def test_a_vault_of_the_former_name_says_how_to_begin_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    vault = Vault(str(state))
    vault.set("openai", "sk-1")
    path = state / "vault" / "vault.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "format": 1}), "utf-8")
    vault = Vault(str(state))
    with pytest.raises(StoreError, match="former name") as raised:
        vault.get("openai")
    move, again = str(raised.value.hint).splitlines()
    assert again.endswith("toolcrib secret set NAME")
    subprocess.run(move.split(), check=True)
    vault.set("openai", "sk-2")
    assert vault.get("openai") == "sk-2"
