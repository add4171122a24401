"""Tokens: random, kept as digests, revoked at once, and never guessed from what is kept."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.errors import StoreError, ToolcribError
from toolcrib.model import Effect, Reach, Right
from toolcrib.paths import SETTLED_NS
from toolcrib.store import Store, tokens
from toolcrib.store.keep import STORE_NAME, Keep
from toolcrib.store.sqlite import SqliteStore
from toolcrib.store.tokens import TokenError, Tokens

LONG = "x" * 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    held = SqliteStore(str(tmp_path / "state" / STORE_NAME))
    yield held
    held.close()


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    held = Keep(str(tmp_path / "state" / STORE_NAME))
    yield held
    held.close()


def secret_file(path: Path, text: str) -> str:
    path.write_text(text, encoding="ascii")
    path.chmod(0o600)
    return str(path)


def test_a_token_is_256_random_bits_and_only_its_digest_is_kept(store: Store, tmp_path: Path) -> None:
    made = [tokens.create(store, f"name-{number}", now=1.0) for number in range(20)]
    values = {value for _, value in made}
    assert len(values) == 20
    for token, value in made:
        assert value.startswith("tw_")
        assert len(value) == 3 + 43  # 256 bits in base64
        assert token.digest == tokens.digest_of(value)
    written = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    for value in values:
        assert value.encode() not in written
        assert value[3:].encode() not in written


def test_what_was_made_is_listed_as_it_was_made(store: Store) -> None:
    token, _ = tokens.create(
        store,
        "ci",
        now=100.0,
        tools=("rye:*", "skill:x"),
        effects=frozenset((Effect.READ,)),
        rights=frozenset((Right.CALL, Right.AUDIT)),
        for_s=60.0,
    )
    assert tokens.listed(store) == (token,)
    assert token.reach == Reach(tools=("rye:*", "skill:x"), effects=frozenset((Effect.READ,)))
    assert (token.created_at, token.expires_at) == (100.0, 160.0)
    assert not token.is_over(159.0)
    assert token.is_over(160.0)
    wide, _ = tokens.create(store, "wide", now=100.0)
    assert wide.reach is None


def test_a_name_belongs_to_one_token_until_it_is_over(store: Store) -> None:
    tokens.create(store, "ci", now=1.0, for_s=10.0)
    with pytest.raises(TokenError, match="there is a token of that name"):
        tokens.create(store, "ci", now=2.0)
    tokens.create(store, "ci", now=11.0)
    assert [token.created_at for token in tokens.listed(store)] == [11.0]


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-x", "é", "a" * 65, "a/b", "a\x00"])
def test_a_name_that_would_confuse_records_is_refused(store: Store, name: str) -> None:
    with pytest.raises(TokenError, match="not a name"):
        tokens.create(store, name, now=1.0)


def test_there_are_at_most_so_many(store: Store) -> None:
    tokens.create(store, "first", now=1.0)
    held = store.get(tokens.SHELF, "all")
    assert held is not None
    (plain,) = json.loads(held.value)
    many = [{**plain, "id": str(number), "name": f"n{number}"} for number in range(tokens.TOKENS_MAX)]
    store.put(tokens.SHELF, "all", json.dumps(many).encode(), None)
    with pytest.raises(TokenError, match="already"):
        tokens.create(store, "one-more", now=1.0)


def test_revoking_takes_an_id_or_a_name_and_says_where_there_is_none(store: Store) -> None:
    first, _ = tokens.create(store, "first", now=1.0)
    tokens.create(store, "second", now=1.0)
    tokens.note_use(store, first.id, 5.0)
    assert tokens.used_at(store, first.id) == 5.0
    assert tokens.revoke(store, first.id) == first
    assert tokens.used_at(store, first.id) is None
    assert tokens.revoke(store, "second").name == "second"
    with pytest.raises(TokenError, match="no such token"):
        tokens.revoke(store, "second")


def test_tokens_made_and_revoked_at_the_same_time_are_all_counted(store: Store, tmp_path: Path) -> None:
    other = SqliteStore(str(tmp_path / "state" / STORE_NAME))
    failed: list[ToolcribError] = []

    def make(held: Store, name: str) -> None:
        try:
            for number in range(5):
                tokens.create(held, f"{name}-{number}", now=1.0)
        except ToolcribError as error:  # told to the test's own thread
            failed.append(error)

    threads = [
        threading.Thread(target=make, args=(held, name)) for held, name in ((store, "a"), (other, "b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    other.close()
    assert failed == []
    assert len(tokens.listed(store)) == 10


def test_a_running_server_sees_new_and_revoked_tokens_at_its_next_look(keep: Keep, store: Store) -> None:
    seen = Tokens(keep)
    token, value = tokens.create(store, "ci", now=1.0)
    assert seen.find(value, 2.0) is None
    assert seen.look()
    assert seen.find(value, 2.0) == token
    assert seen.known(token.id, 2.0) == token
    assert not seen.look()
    store.put("elsewhere", "x", b"1", None)
    assert not seen.look()  # something else changed
    tokens.revoke(store, "ci")
    assert seen.look()
    assert seen.find(value, 2.0) is None
    assert seen.known(token.id, 2.0) is None


def test_a_wrong_or_expired_token_is_nobodys(keep: Keep, store: Store) -> None:
    _, value = tokens.create(store, "ci", now=1.0, for_s=10.0)
    seen = Tokens(keep)
    assert seen.find(value, 10.9) is not None
    assert seen.find(value, 11.0) is None
    for wrong in ("", value[:-1], value + "x", value.upper(), tokens.digest_of(value), "\udcff"):
        assert seen.find(wrong, 2.0) is None


def test_tokens_that_cannot_be_read_let_nobody_in(keep: Keep, store: Store) -> None:
    _, value = tokens.create(store, "ci", now=1.0)
    seen = Tokens(keep)
    store.put(tokens.SHELF, "all", b'[{"name": "ci"}]', None)
    assert seen.look()
    assert seen.find(value, 2.0) is None
    assert isinstance(seen.trouble, StoreError)
    store.put(tokens.SHELF, "all", b"[]", None)
    seen.look()
    assert seen.trouble is None


def test_the_last_use_is_due_once_an_hour(keep: Keep, store: Store) -> None:
    token, _ = tokens.create(store, "ci", now=1.0)
    seen = Tokens(keep)
    assert seen.is_due(token, 10_000.0)
    assert not seen.is_due(token, 10_001.0)
    assert seen.is_due(token, 13_601.0)
    seen.note(token, 13_601.0)
    assert tokens.used_at(store, token.id) == 13_601.0


def test_a_server_without_any_token_makes_no_store(tmp_path: Path) -> None:
    seen = Tokens(Keep(str(tmp_path / "state" / STORE_NAME)))
    assert seen.count == 0
    assert not (tmp_path / "state").exists()


def test_a_file_holds_tokens_with_and_without_names(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "tokens", f"# ours\nann {LONG}a\n\n{LONG}b\n")
    first, second = tokens.read_file(path)
    assert (first.name, first.digest, first.reach) == ("ann", tokens.digest_of(f"{LONG}a"), None)
    assert (second.name, second.rights) == ("token-4", frozenset(Right))
    seen = Tokens(file=path)
    assert seen.find(f"{LONG}a", 1.0) == first
    os.truncate(path, 0)
    assert seen.look()
    assert seen.find(f"{LONG}a", 1.0) is None
    assert seen.trouble is not None


@pytest.mark.parametrize("looked_s_after", [0.0, 3600.0])
def test_attack_a_token_taken_out_of_its_file_by_an_edit_that_keeps_size_and_time(
    tmp_path: Path, looked_s_after: float
) -> None:
    path = secret_file(tmp_path / "tokens", f"ann {LONG}a\n")
    status = os.stat(path)
    now = status.st_ctime_ns + int(looked_s_after * 1e9)
    seen = Tokens(file=path, clock_ns=lambda: now)
    assert seen.find(f"{LONG}a", 1.0) is not None
    Path(path).write_text(f"ann {LONG}b\n", encoding="utf-8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert seen.look()
    assert seen.find(f"{LONG}a", 1.0) is None


def test_a_file_of_tokens_that_changed_just_now_is_read_again_however_it_looks(tmp_path: Path) -> None:
    """Attack: an edit within the same tick of the file system's clock in which the file was looked at."""
    path = secret_file(tmp_path / "tokens", f"ann {LONG}a\n")
    changed = os.stat(path).st_ctime_ns
    assert tokens.file_stamp(path, changed) != tokens.file_stamp(path, changed)
    later = changed + SETTLED_NS
    assert tokens.file_stamp(path, later) == tokens.file_stamp(path, later)


@pytest.mark.parametrize(
    "text", ["short", f"a b {LONG}", f"ann {LONG}\nann {LONG}", "", f"x {LONG}\x01", "#\n"]
)
def test_a_file_with_a_mistake_is_refused_and_nothing_of_it_is_shown(tmp_path: Path, text: str) -> None:
    path = secret_file(tmp_path / "tokens", text)
    with pytest.raises(StoreError) as told:
        tokens.read_file(path)
    assert LONG not in str(told.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_holds_no_secrets(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    secret_file(path, LONG)
    path.chmod(mode)
    with pytest.raises(StoreError, match="others may read it"):
        tokens.read_file(str(path))


def test_a_file_that_is_a_link_or_missing_is_refused(tmp_path: Path) -> None:
    secret_file(tmp_path / "tokens", LONG)
    (tmp_path / "link").symlink_to(tmp_path / "tokens")
    for name in ("link", "missing"):
        with pytest.raises(StoreError):
            tokens.read_file(str(tmp_path / name))


def test_two_tokens_of_one_name_would_be_one_caller_so_neither_counts(
    keep: Keep, store: Store, tmp_path: Path
) -> None:
    _, value = tokens.create(store, "ann", now=1.0)
    seen = Tokens(keep, secret_file(tmp_path / "tokens", f"ann {LONG}"))
    assert seen.trouble is not None
    assert seen.find(value, 2.0) is None
    assert seen.find(LONG, 2.0) is None


def test_attack_a_token_is_named_like_the_owner(keep: Keep, store: Store, tmp_path: Path) -> None:
    """A caller is its name: it would read the owner's results and hear of the owner's calls."""

    def is_owners(name: str) -> bool:
        return name.lower() == "ann"

    for name in ("ann", "ANN"):
        with pytest.raises(TokenError, match="the owner's name"):
            tokens.create(store, name, now=1.0, is_owners=is_owners)
        path = secret_file(tmp_path / "tokens", f"ci {LONG}\n{name} {LONG}")
        with pytest.raises(StoreError, match=f"{path}:2: {name}: this is the owner's name"):
            tokens.read_file(path, is_owners)
    assert tokens.listed(store) == ()
    _, good = tokens.create(store, "ci", now=1.0, is_owners=is_owners)
    seen = Tokens(keep, is_owners=is_owners)
    assert seen.find(good, 2.0) is not None
    token, value = tokens.create(store, "Ann", now=1.0)
    assert seen.look()
    assert seen.trouble is not None
    assert seen.trouble.hint is not None
    assert f"token revoke {token.id}" in seen.trouble.hint
    assert seen.find(value, 2.0) is None
    tokens.revoke(store, token.id)
    assert seen.look()
    assert seen.find(good, 2.0) is not None
