"""The store: one suite for every implementation, then what is SQLite's own."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.program import bounded
from toolcrib.errors import StoreError
from toolcrib.model import Disabled
from toolcrib.store import ABSENT, Conflict, Store, Versioned
from toolcrib.store.disabled import SHELF, disabled, switch_off, switch_on
from toolcrib.store.migrations import MIGRATIONS
from toolcrib.store.sqlite import SqliteStore

Opener = Callable[[], Store]
WAIT_S = 60


@pytest.fixture(params=["sqlite"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store as often as wanted."""
    found: list[Store] = []

    def open_store() -> Store:
        store = {"sqlite": SqliteStore}[request.param](str(tmp_path / "state" / "state.sqlite"))
        found.append(store)
        return store

    yield open_store
    for store in found:
        store.close()


# -- the protocol -------------------------------------------------------------------------------------------


def test_what_was_put_is_there(opener: Opener) -> None:
    store = opener()
    version = store.put("shelf", "key", b"\x00value", ABSENT)
    assert store.get("shelf", "key") == Versioned(b"\x00value", version)
    assert store.get("shelf", "other") is None
    assert store.get("other", "key") is None


def test_it_is_there_for_others_and_after_a_restart(opener: Opener) -> None:
    store = opener()
    store.put("shelf", "key", b"value", None)
    assert opener().get("shelf", "key") is not None
    store.close()
    found = opener().get("shelf", "key")
    assert found is not None
    assert found.value == b"value"


def test_a_put_with_an_old_version_is_refused_and_changes_nothing(opener: Opener) -> None:
    store = opener()
    first = store.put("shelf", "key", b"1", ABSENT)
    second = store.put("shelf", "key", b"2", first)
    assert second > first
    for version in (ABSENT, first, second + 1):
        with pytest.raises(Conflict, match="shelf/key"):
            store.put("shelf", "key", b"3", version)
        with pytest.raises(Conflict):
            store.remove("shelf", "key", version)
    assert store.get("shelf", "key") == Versioned(b"2", second)


def test_none_puts_and_removes_whatever_is_there(opener: Opener) -> None:
    store = opener()
    store.put("shelf", "key", b"1", None)
    store.put("shelf", "key", b"2", None)
    store.remove("shelf", "key", None)
    store.remove("shelf", "key", None)
    assert store.get("shelf", "key") is None


def test_a_value_put_again_never_passes_for_the_one_that_was_removed(opener: Opener) -> None:
    store = opener()
    old = store.put("shelf", "key", b"1", ABSENT)
    store.remove("shelf", "key", old)
    assert store.put("shelf", "key", b"1", ABSENT) > old
    with pytest.raises(Conflict):
        store.put("shelf", "key", b"2", old)


def test_keys_come_in_order_and_in_pages(opener: Opener) -> None:
    store = opener()
    for key in ("b", "a", "ä", "c"):
        store.put("shelf", key, b"", None)
    store.put("other", "aa", b"", None)
    assert list(store.keys("shelf")) == ["a", "b", "c", "ä"]
    assert list(store.keys("shelf", "", 2)) == ["a", "b"]
    assert list(store.keys("shelf", "b", 2)) == ["c", "ä"]
    assert list(store.keys("shelf", "ä", 2)) == []


def test_of_many_who_change_the_same_version_one_wins(opener: Opener) -> None:
    opener().put("shelf", "key", b"0", ABSENT)
    stores = [opener() for _ in range(4)]
    won: list[int] = []
    barrier = threading.Barrier(len(stores))

    def add(store: Store) -> None:
        barrier.wait(WAIT_S)
        for _ in range(25):
            while True:
                found = store.get("shelf", "key")
                assert found is not None
                try:
                    won.append(store.put("shelf", "key", str(int(found.value) + 1).encode(), found.version))
                    break
                except Conflict:
                    continue

    threads = [threading.Thread(target=add, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    found = opener().get("shelf", "key")
    assert found is not None
    assert found.value == b"100"
    assert len(set(won)) == 100


# -- tools that are switched off ----------------------------------------------------------------------------


def test_a_tool_stays_off_until_its_time_is_over(opener: Opener) -> None:
    store = opener()
    switch_off(store, Disabled(tool="b", reason="too risky", until=100.0), 50.0)
    switch_off(store, Disabled(tool="a"), 50.0)
    assert disabled(store, 99.0) == (Disabled(tool="a"), Disabled(tool="b", reason="too risky", until=100.0))
    assert disabled(opener(), 100.0) == (Disabled(tool="a"),)


def test_switching_on_says_whether_it_was_off(opener: Opener) -> None:
    store = opener()
    switch_off(store, Disabled(tool="a"), 1.0)
    assert switch_on(store, "a", 2.0)
    assert not switch_on(store, "a", 2.0)
    assert not switch_on(store, "never heard of", 2.0)
    assert disabled(store, 2.0) == ()


def test_what_expired_is_forgotten_when_something_is_switched_off(opener: Opener) -> None:
    store = opener()
    switch_off(store, Disabled(tool="a", until=10.0), 1.0)
    switch_off(store, Disabled(tool="b"), 20.0)
    assert list(store.keys(SHELF)) == ["b"]


def test_an_entry_that_cannot_be_read_keeps_the_tool_off(opener: Opener) -> None:
    store = opener()
    store.put(SHELF, "a", b"{", None)
    (off,) = disabled(store, 1.0)
    assert (off.tool, off.until) == ("a", None)


# -- SQLite -------------------------------------------------------------------------------------------------


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.sqlite"


def test_the_file_and_its_folder_belong_to_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(str(path_of(tmp_path)))
        store.put("shelf", "key", b"value", None)
    finally:
        os.umask(before)
    for path in path_of(tmp_path).parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert path_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    store.close()


def test_a_damaged_file_is_named_with_the_fix(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"this was a database once" * 1000)
    path.chmod(0o600)
    with pytest.raises(StoreError) as error:
        SqliteStore(str(path))
    assert str(path) in error.value.message
    assert "move" in str(error.value.hint)
    assert error.value.exit_code == 74


def test_damage_that_shows_later_is_named_too(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    store = SqliteStore(str(path))
    for number in range(500):
        store.put("shelf", f"key{number}", os.urandom(200), None)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    store = SqliteStore(str(path))
    with pytest.raises(StoreError, match=r"state\.sqlite"):
        store.keys("shelf", "", 1000)
    store.close()


def test_a_newer_store_is_left_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    SqliteStore(str(path)).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(StoreError, match="newer version"):
        SqliteStore(str(path))


def test_attack_what_another_program_changes_is_missed_by_a_host_that_has_it_open_twice(
    tmp_path: Path,
) -> None:
    """Closing any descriptor of a file gives up all locks that the process has on it."""
    path = tmp_path / "state" / "state.sqlite"
    program = (
        "import sys; from toolcrib.store.sqlite import SqliteStore; store = SqliteStore(sys.argv[1]);"
        "store.put('shelf', sys.argv[2], b'new', None); store.close()"
    )
    first = SqliteStore(str(path))
    first.put("shelf", "key", b"old", ABSENT)
    second = SqliteStore(str(path))
    for key in ("key", "another"):
        subprocess.run([sys.executable, "-c", program, str(path), key], check=True, timeout=WAIT_S)
        for store in (first, second):
            found = store.get("shelf", key)
            assert found is not None
            assert found.value == b"new"
    second.put("shelf", "mine", b"kept", None)
    second.close()
    first.close()
    third = SqliteStore(str(path))
    assert third.keys("shelf") == ["another", "key", "mine"]
    third.close()


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_a_store_that_is_no_file_of_ours_is_refused(tmp_path: Path, kind: str) -> None:
    path = path_of(tmp_path)
    path.parent.mkdir()
    if kind == "symlink":
        (tmp_path / "elsewhere").touch()
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(StoreError, match=r"state\.sqlite"):
        SqliteStore(str(path))


@pytest.mark.battery("K05")
def test_k05_a_host_killed_while_it_changes_values_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Two values are put, one after the other: what was told is there, and nothing is half."""
    program = """
        import os, sys
        from toolcrib.store.sqlite import SqliteStore
        store = SqliteStore(sys.argv[1])
        number = int(sys.argv[2])
        while True:
            number += 1
            store.put("shelf", "key", b"%d:" % number + b"x" * 5000 + b":%d" % number, None)
            os.write(1, b"%d\\n" % number)
    """
    chance = random.Random(20261115)
    path, number = path_of(tmp_path), 0
    for _ in range(8):
        host = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(path), str(number)],
            stdout=subprocess.PIPE,
            env={"PATH": os.defpath},
        )
        assert host.stdout is not None
        lines = chance.randrange(1, 30)
        with bounded(host):
            for count, line in enumerate(host.stdout, 1):
                number = int(line) if line.endswith(b"\n") else number
                if count == lines:
                    host.send_signal(signal.SIGKILL)
        host.stdout.close()
        host.wait(WAIT_S)
        store = SqliteStore(str(path))
        found = store.get("shelf", "key")
        store.close()
        assert found is not None
        first, middle, last = found.value.split(b":")
        assert first == last
        assert middle == b"x" * 5000
        assert int(first) >= number
        number = int(first)


def test_hosts_that_make_a_store_at_once_all_get_it(tmp_path: Path) -> None:
    """SQLite refuses all but one of those that give a new file its log in the same moment."""
    program = """
        import sys
        from toolcrib.store.sqlite import SqliteStore
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(300):
            SqliteStore(f"{sys.argv[1]}/{number}/state.sqlite").close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    pipe = subprocess.PIPE
    hosts = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(4)]
    for host in hosts:
        assert host.stdout is not None
        with bounded(host):
            assert host.stdout.readline() == b"ready\n"
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write(b"\n")
        host.stdin.flush()
    said = [host.communicate(timeout=WAIT_S)[1] for host in hosts]
    assert [(host.returncode, text) for host, text in zip(hosts, said, strict=True)] == [(0, b"")] * 4
