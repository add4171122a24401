"""The vault: what it keeps, what it notices, and what it never tells."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.program import WAIT_S
from toolcrib.errors import StoreError, UsageError
from toolcrib.store import private
from toolcrib.trust import vault as module
from toolcrib.trust.secrets import Secrets, Withheld
from toolcrib.trust.vault import SECRETS_MAX, VALUE_BYTES_MAX, Locked, Vault, system_ring

VALUE = "sk-very-secret-value-é-0815"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def path_of(state: Path) -> Path:
    return state / "vault" / "vault.json"


def changed(state: Path, change: Any) -> None:
    """Write the file as somebody else would, who has no key."""
    held = json.loads(path_of(state).read_text(encoding="utf-8"))
    change(held)
    path_of(state).write_text(json.dumps(held), encoding="utf-8")


# -- keeping ------------------------------------------------------------------------------------------------


def test_a_value_is_kept_found_by_another_host_and_removed(state: Path) -> None:
    vault = Vault(str(state), clock=lambda: 1000.5)
    assert vault.get("openai") is None
    assert vault.listed() == ()
    assert not vault.remove("openai")
    assert not state.exists()  # looking makes nothing
    vault.set("openai", "older")
    vault.set("openai", VALUE)
    vault.set("other", "multi\nline\n")
    another = Vault(str(state))
    assert (another.get("openai"), another.get("other")) == (VALUE, "multi\nline\n")
    assert [(entry.name, entry.at, entry.where) for entry in another.listed()] == [
        ("openai", 1000.5, "file"),
        ("other", 1000.5, "file"),
    ]
    assert another.remove("openai")
    assert (vault.get("openai"), vault.holds("openai"), vault.holds("other")) == (None, False, True)


def test_no_value_lies_open_and_nobody_else_may_read_the_files(state: Path) -> None:
    vault = Vault(str(state))
    vault.set("openai", VALUE)
    for folder, _, names in os.walk(state):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for name in names:
            found = Path(folder, name)
            assert stat.S_IMODE(found.stat().st_mode) == 0o600
            assert VALUE.encode() not in found.read_bytes()
    assert VALUE not in repr(vault) + repr(vault.listed()) + repr(vars(vault))


def test_two_vaults_with_the_same_values_have_nothing_in_common(state: Path, tmp_path: Path) -> None:
    for place in (state, tmp_path / "other"):
        Vault(str(place)).set("openai", VALUE)
        Vault(str(place)).set("openai2", VALUE)
    texts = [path_of(place).read_text(encoding="utf-8") for place in (state, tmp_path / "other")]
    sealed = [entry["sealed"] for text in texts for entry in json.loads(text)["entries"].values()]
    assert len(set(sealed)) == 4


@pytest.mark.parametrize("name", ["", "1x", "a b", "a/b", "../x", "a\n", "ä", "x" * 129, "a:b", "-x"])
def test_a_name_that_is_none_is_refused(name: str, state: Path) -> None:
    with pytest.raises(UsageError):
        Vault(str(state)).set(name, VALUE)


@pytest.mark.parametrize("value", ["", "a\0b", "\udc80x", "x" * (VALUE_BYTES_MAX + 1)])
def test_a_value_that_no_variable_could_carry_is_refused_and_not_told(value: str, state: Path) -> None:
    with pytest.raises(UsageError) as refused:
        Vault(str(state)).set("name", value)
    assert not value or value not in f"{refused.value.message} {refused.value.hint}"
    assert not state.exists()


def test_more_secrets_than_a_vault_holds_are_refused(state: Path) -> None:
    vault = Vault(str(state))
    vault.set("first", VALUE)
    held = json.loads(path_of(state).read_text(encoding="utf-8"))
    entry = held["entries"]["first"]
    held["entries"] |= {f"n{number}": entry for number in range(SECRETS_MAX)}
    path_of(state).write_text(json.dumps(held), encoding="utf-8")
    with pytest.raises(StoreError):  # one more than there may be: somebody else wrote it
        Vault(str(state)).get("first")


def test_writers_in_many_threads_and_programs_lose_nothing(state: Path) -> None:
    code = (
        "import sys; from toolcrib.trust.vault import Vault\n"
        "for n in range(8): Vault(sys.argv[1]).set(f'{sys.argv[2]}{n}', 'value')"
    )
    with ThreadPoolExecutor(4) as pool:
        programs = [
            subprocess.Popen([sys.executable, "-c", code, str(state), name]) for name in ("first", "second")
        ]
        vault = Vault(str(state))
        list(pool.map(lambda number: vault.set(f"thread{number}", "value"), range(16)))
        assert [program.wait(WAIT_S) for program in programs] == [0, 0]
    assert len(Vault(str(state)).listed()) == 32
    assert sorted(os.listdir(state / "vault")) == ["lock", "vault.json"]  # no drafts are left


def test_a_vault_that_is_held_too_long_is_said_to_be(state: Path) -> None:
    vault = Vault(str(state))
    vault.set("name", VALUE)
    lock = str(state / "vault" / "lock")
    with (
        private.locked(lock),
        pytest.raises(StoreError, match="another program holds it"),
        private.locked(lock, 0.05),
    ):
        pytest.fail("two hold it")


# -- noticing -----------------------------------------------------------------------------------------------


def swap(held: Any) -> None:
    entries = held["entries"]
    entries["a"], entries["b"] = entries["b"], entries["a"]


@pytest.mark.parametrize(
    "change",
    [
        swap,
        lambda held: held["entries"].pop("b"),
        lambda held: held["entries"].update(c=held["entries"]["a"]),
        lambda held: held["entries"]["a"].update(at=5),
        lambda held: held["entries"]["a"].update(sealed=held["entries"]["a"]["sealed"][:-4] + "AAA="),
        lambda held: held["entries"]["a"].update(more=1),
        lambda held: held.update(whole="0" * 64),
        lambda held: held.update(key={"kind": "scrypt", "salt": "AAAA", "n": 1 << 40, "r": 8, "p": 1}),
        lambda held: held.update(key={"kind": "none"}),
        lambda held: held.update(entries=[]),
        lambda held: held.update(format=9),
    ],
    ids=["swapped", "removed", "added", "older", "sealed", "member", "mac", "bomb", "keyless", "list", "new"],
)
def test_a_vault_that_somebody_else_changed_hands_over_nothing(change: Any, state: Path) -> None:
    """Attack: values swapped between names, entries removed or added, a passphrase that takes all memory."""
    vault = Vault(str(state))
    vault.set("a", VALUE)
    vault.set("b", "another-value")
    changed(state, change)
    for host in (vault, Vault(str(state), passphrase=lambda: "a passphrase")):
        with pytest.raises(StoreError) as noticed:
            host.get("a")
        assert VALUE not in f"{noticed.value.message} {noticed.value.hint}"
        with pytest.raises(StoreError):
            host.listed()
        with pytest.raises(StoreError):
            host.set("c", VALUE)


def test_values_that_are_swapped_are_noticed_even_without_the_mac(state: Path) -> None:
    """The name is bound to each value: with a right MAC over a wrong order it still does not open."""
    vault = Vault(str(state))
    vault.set("a", VALUE)
    vault.set("b", "another-value")
    key = (state / "keys" / "vault.key").read_bytes()
    held = json.loads(path_of(state).read_text(encoding="utf-8"))
    swap(held)
    body = module._Held(held["key"], held["entries"], "")
    held["whole"] = module._mac(body, key)
    path_of(state).write_text(json.dumps(held), encoding="utf-8")
    with pytest.raises(StoreError, match="does not fit its key"):
        Vault(str(state)).get("a")


def test_a_key_that_is_missing_or_another_opens_nothing(state: Path) -> None:
    Vault(str(state)).set("a", VALUE)
    key = state / "keys" / "vault.key"
    kept = key.read_bytes()
    key.write_bytes(os.urandom(32))
    with pytest.raises(StoreError, match="does not fit its key"):
        Vault(str(state)).get("a")
    key.unlink()
    with pytest.raises(StoreError, match="key is missing"):
        Vault(str(state)).get("a")
    with pytest.raises(StoreError):  # and no new key takes its place
        Vault(str(state)).set("b", VALUE)
    key.write_bytes(kept)
    key.chmod(0o600)
    assert Vault(str(state)).get("a") == VALUE


@pytest.mark.parametrize("which", ["vault/vault.json", "keys/vault.key"])
@pytest.mark.parametrize("trouble", ["link", "open", "fifo", "foreign", "folder", "long"])
def test_a_file_that_is_not_ours_alone_is_refused(which: str, trouble: str, state: Path) -> None:
    """Attack: a link, a FIFO, a file that others may read or that is somebody else's."""
    Vault(str(state)).set("a", VALUE)
    path = state / which
    if trouble == "link":
        path.rename(path.with_name("real"))
        path.symlink_to(path.with_name("real"))
    elif trouble == "open":
        path.chmod(0o644)
    elif trouble == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif trouble == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can make a file of somebody else's")
        os.chown(path, 65534, 65534)
    elif trouble == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(b" " * (module.FILE_BYTES_MAX + 1))
    with pytest.raises(StoreError):
        Vault(str(state)).get("a")


def test_a_folder_that_others_may_enter_is_refused(state: Path) -> None:
    Vault(str(state)).set("a", VALUE)
    (state / "vault").chmod(0o750)
    with pytest.raises(StoreError, match="others may enter it"):
        Vault(str(state)).get("a")


def test_a_folder_that_is_a_link_is_refused(state: Path, tmp_path: Path) -> None:
    state.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (state / "vault").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        Vault(str(state)).set("a", VALUE)
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"format":2}', b"\xff" * 10, b"[" * 5000])
def test_a_file_that_is_no_vault_is_refused(content: bytes, state: Path) -> None:
    Vault(str(state)).set("a", VALUE)
    path_of(state).write_bytes(content)
    with pytest.raises(StoreError):
        Vault(str(state)).get("a")


# -- passphrases --------------------------------------------------------------------------------------------


def test_a_vault_with_a_passphrase_opens_with_it_alone(state: Path) -> None:
    Vault(str(state), passphrase=lambda: "correct horse").set("a", VALUE)
    assert not (state / "keys" / "vault.key").exists()
    assert Vault(str(state), passphrase=lambda: "correct horse").get("a") == VALUE
    for given in (None, "", "wrong horse"):
        host = Vault(str(state), passphrase=lambda given=given: given)  # type: ignore[misc]
        assert host.has_passphrase()
        assert host.holds("a")  # names are not hidden
        with pytest.raises(Locked):
            host.get("a")
        with pytest.raises(Locked):
            host.set("b", VALUE)
    with pytest.raises(UsageError, match="at least"):
        Vault(str(state.with_name("new")), passphrase=lambda: "short").set("a", VALUE)


# -- the system's keyring -----------------------------------------------------------------------------------


class MemoryRing:
    """A keyring as the package offers it, in memory."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.broken = False

    def get_password(self, service: str, name: str) -> str | None:
        if self.broken:
            raise RuntimeError(f"locked: {[*self.held.values()]}")
        return self.held.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        if self.broken:
            raise RuntimeError(f"locked: {value}")
        self.held[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.held[service, name]


def test_values_go_into_a_keyring_where_there_is_one(state: Path) -> None:
    ring = MemoryRing()
    vault = Vault(str(state), ring=lambda: ring)
    assert vault.set("a", VALUE).where == "keyring"
    assert [*ring.held.values()] == [VALUE]
    assert vault.get("a") == VALUE
    with pytest.raises(StoreError, match="cannot be used here"):
        Vault(str(state)).get("a")
    ring.broken = True
    with pytest.raises(StoreError) as told:
        vault.get("a")
    assert VALUE not in f"{told.value.message} {told.value.hint}"
    with pytest.raises(StoreError) as told:
        vault.set("b", VALUE)
    assert VALUE not in f"{told.value.message} {told.value.hint}"
    ring.broken = False
    assert vault.remove("a")
    assert ring.held == {}


def test_the_systems_keyring_is_found_or_is_not_there() -> None:
    if find_spec("keyring") is None:
        assert system_ring() is None
        pytest.skip("the extra is not installed: `pip install '.[keyring]'` and a desktop enable more")
    ring = system_ring()
    assert ring is None or hasattr(ring, "get_password")


# -- references ---------------------------------------------------------------------------------------------


def test_only_names_that_somebody_wrote_down_mean_secrets(state: Path) -> None:
    """Attack: a declaration that asks for every usual name."""
    vault = Vault(str(state))
    vault.set("openai", VALUE)
    vault.set("GITHUB_TOKEN", "gh-value")
    secrets = Secrets(lambda: vault, {"OPENAI_API_KEY": "openai"})
    declared = ("GITHUB_TOKEN", "OPENAI_API_KEY", "openai", "EDITOR")
    assert secrets.candidates(declared, ()) == ("OPENAI_API_KEY",)
    assert secrets.candidates(declared, ("GITHUB_TOKEN",)) == ("OPENAI_API_KEY", "GITHUB_TOKEN")
    assert secrets.values(("OPENAI_API_KEY", "GITHUB_TOKEN", "EDITOR")) == {
        "OPENAI_API_KEY": VALUE,
        "GITHUB_TOKEN": "gh-value",
    }
    assert Secrets().candidates(declared, declared) == ()
    assert VALUE not in repr(secrets)


def test_a_secret_that_is_missing_is_named_with_the_way_to_set_it(state: Path) -> None:
    secrets = Secrets(lambda: Vault(str(state)), {"OPENAI_API_KEY": "openai"})
    with pytest.raises(Withheld) as no:
        secrets.values(("OPENAI_API_KEY",))
    assert (no.value.reason, no.value.hint) == (
        "the secret 'openai' is not in the vault ([secrets] OPENAI_API_KEY)",
        "toolcrib secret set openai",
    )


def test_a_host_without_secrets_imports_no_encryption(state: Path) -> None:
    code = (
        "import sys; from toolcrib.trust.secrets import Secrets\n"
        "from toolcrib.trust.vault import Vault\n"
        "Secrets(lambda: Vault(sys.argv[1]), {}).values(('A', 'B'))\n"
        "print([name for name in ('cryptography', 'keyring', 'sqlite3') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(state)], capture_output=True, timeout=WAIT_S, check=True, text=True
    )
    assert ran.stdout.strip() == "[]"
    assert not state.exists()
