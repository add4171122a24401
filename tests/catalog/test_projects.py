"""Whether a person trusted what a project brings along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.catalog.projects import Projects
from toolcrib.store import trusted
from toolcrib.store.keep import Keep


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    kept = Keep(str(tmp_path / "state" / "state.sqlite"))
    yield kept
    kept.close()


def bring(project: Path, name: str, text: bytes = b"key") -> str:
    path = project.joinpath(*trusted.KEYS, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return str(path)


def trust(keep: Keep, path: str) -> None:
    trusted.trust(keep.opened(), path, trusted.digest_of(Path(path).read_bytes()))


def test_keys_count_while_every_one_of_them_is_as_it_was_trusted(keep: Keep, tmp_path: Path) -> None:
    projects = Projects(keep)
    first, second = bring(tmp_path, "a.toml"), bring(tmp_path, "b.toml")
    assert not projects.trusted_keys(str(tmp_path))
    trust(keep, first)
    assert not projects.trusted_keys(str(tmp_path))
    trust(keep, second)
    assert projects.trusted_keys(str(tmp_path))
    bring(tmp_path, "b.toml", b"another key")
    assert not projects.trusted_keys(str(tmp_path))


def test_keys_beyond_what_is_looked_at_make_none_count(keep: Keep, tmp_path: Path) -> None:
    """Attack: so many keys that the last one, which is opened by its name, is never asked about."""
    projects = Projects(keep)
    for number in range(trusted.KEYS_MAX):
        trust(keep, bring(tmp_path, f"{number:016x}.toml"))
    assert projects.trusted_keys(str(tmp_path))
    bring(tmp_path, "ffffffffffffffff.toml")
    assert not projects.trusted_keys(str(tmp_path))


def test_without_a_store_nothing_is_trusted(tmp_path: Path) -> None:
    bring(tmp_path, "a.toml")
    projects = Projects(None)
    assert not projects.trusted_keys(str(tmp_path))
    assert not projects.is_trusted(str(tmp_path / "toolcrib.lock"), "")


def test_a_state_folder_that_others_may_write_trusts_nothing(keep: Keep, tmp_path: Path) -> None:
    """Attack: another user of the machine writes down for us what we trust."""
    projects = Projects(keep)
    path = bring(tmp_path, "a.toml")
    trust(keep, path)
    digest = trusted.digest_of(b"key")
    assert projects.trusted_keys(str(tmp_path))
    assert projects.is_trusted(path, digest)
    (tmp_path / "state").chmod(0o777)
    assert not projects.trusted_keys(str(tmp_path))
    assert not projects.is_trusted(path, digest)
