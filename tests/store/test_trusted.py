"""Files that a person trusts: by place, folder and bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.errors import StoreError
from toolcrib.store import Store, trusted
from toolcrib.store.sqlite import SqliteStore
from toolcrib.store.trusted import Standing

OLD, NEW = trusted.digest_of(b"old"), trusted.digest_of(b"new")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    held = SqliteStore(str(tmp_path / "state" / "state.sqlite"))
    yield held
    held.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "toolcrib.toml").write_bytes(b"old")
    return folder


def test_the_same_bytes_at_the_same_place_are_trusted_and_nothing_else(store: Store, project: Path) -> None:
    path = str(project / "toolcrib.toml")
    assert trusted.standing(store, path, OLD) is Standing.UNKNOWN
    trusted.trust(store, path, OLD, now=5.0, by="ann")
    assert trusted.is_trusted(store, path, OLD)
    assert trusted.standing(store, path, NEW) is Standing.CHANGED
    assert not trusted.is_trusted(store, str(project / "toolcrib.lock"), OLD)
    (entry,) = trusted.listed(store)
    assert (entry.path, entry.digest, entry.at, entry.by) == (path, OLD, 5.0, "ann")
    assert trusted.forget(store, path)
    assert not trusted.forget(store, path)
    assert not trusted.is_trusted(store, path, OLD)


def test_a_project_is_found_by_any_way_that_leads_to_its_folder(store: Store, project: Path) -> None:
    link = project.parent / "link"
    link.symlink_to(project)
    trusted.trust(store, str(link / "toolcrib.toml"), OLD)
    assert trusted.is_trusted(store, str(project / "toolcrib.toml"), OLD)


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_file_of_another_project_that_leads_to_a_trusted_one_is_not_trusted(
    kind: str, store: Store, project: Path
) -> None:
    trusted.trust(store, str(project / "toolcrib.toml"), OLD)
    other = project.parent / "other"
    other.mkdir()
    if kind == "link":
        (other / "toolcrib.toml").symlink_to(project / "toolcrib.toml")
    else:
        os.link(project / "toolcrib.toml", other / "toolcrib.toml")
    assert not trusted.is_trusted(store, str(other / "toolcrib.toml"), OLD)


def test_another_folder_at_the_place_of_a_trusted_one_is_not_trusted(store: Store, project: Path) -> None:
    path = str(project / "toolcrib.toml")
    trusted.trust(store, path, OLD)
    project.rename(project.parent / "away")
    project.mkdir()
    (project / "toolcrib.toml").write_bytes(b"old")
    assert trusted.standing(store, path, OLD) is Standing.CHANGED


def test_an_entry_that_cannot_be_read_trusts_nothing_and_can_be_taken_away(
    store: Store, project: Path
) -> None:
    path = str(project / "toolcrib.toml")
    for damage in (b"", b"{}", b"[]", b'{"digest":1', b'{"digest":"x","folder":"y","at":0,"by":""}'):
        store.put(trusted.SHELF, path, damage, None)
        assert trusted.standing(store, path, OLD) is Standing.UNKNOWN
        assert [entry.path for entry in trusted.listed(store)] == [path]
    assert trusted.forget(store, path)


def test_a_file_below_a_folder_whose_name_is_no_text_cannot_be_trusted(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xff")
    folder.mkdir()
    path = str(folder / "toolcrib.toml")
    assert trusted.standing(store, path, OLD) is Standing.UNKNOWN
    assert not trusted.forget(store, path)
    with pytest.raises(StoreError, match="its path is not UTF-8"):
        trusted.trust(store, path, OLD)
