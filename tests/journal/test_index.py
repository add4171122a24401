"""The index over the journal: a shortcut that is never believed more than the segments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal import work
from toolwright.journal import reading
from toolwright.journal.audit import open_audit
from toolwright.journal.index import Index


def recorded(state: Path, *ids: str) -> None:
    audit = open_audit(str(state))
    for id in ids:
        audit.begin(work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id))
    audit.close()


def test_the_index_keeps_up_and_can_be_thrown_away(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    folder = Path(work.journal(tmp_path))
    for expected in (2, 2):
        with Index(str(folder)) as index:
            assert len(index.of_call("a")) == expected
    recorded(tmp_path, "b")
    with Index(str(folder)) as index:
        assert [entry.what for entry in index.of_call("b")] == ["begin", "end"]
    (folder / "index.sqlite").unlink()
    with Index(str(folder)) as index:
        assert [entry.what for entry in index.of_call("a")] == ["begin", "end"]
    assert (folder / "index.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    recorded(tmp_path, "a")
    folder = Path(work.journal(tmp_path))
    (folder / "index.sqlite").write_bytes(content)
    with Index(str(folder)) as index:
        assert len(index.of_call("a")) == 2


def test_an_index_that_saw_a_write_which_was_taken_back_reads_the_segment_anew(tmp_path: Path) -> None:
    recorded(tmp_path, "a", "b")
    (path,) = work.segment_paths(tmp_path)
    before = path.read_bytes()
    recorded(tmp_path, "gone")
    with Index(work.journal(tmp_path)) as index:
        assert index.of_call("gone")
    path.write_bytes(before)
    recorded(tmp_path, "a longer one", "c")
    with Index(work.journal(tmp_path)) as index:
        assert index.of_call("gone") == []
        assert [entry.what for entry in index.of_call("c")] == ["begin", "end"]


def test_a_journal_that_is_not_there_has_an_empty_index(tmp_path: Path) -> None:
    with Index(work.journal(tmp_path)) as index:
        assert index.events() == []
    assert not (tmp_path / "journal").exists()


@given(st.lists(st.text("ab%_", min_size=1, max_size=3), min_size=1), st.text("ab%_", max_size=2))
@settings(max_examples=40, deadline=None)
def test_a_call_is_found_by_the_beginning_of_its_id_and_by_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], asked: str
) -> None:
    """Whatever stands in an id: it is compared, and never a pattern."""
    state = tmp_path_factory.mktemp("index")
    recorded(state, *ids)
    expected = [entry for entry in work.records(state) if entry.call.startswith(asked)]
    with Index(work.journal(state)) as index:
        found = index.of_call(asked)
    assert [(entry.number, entry.body) for entry in found] == [
        (entry.number, entry.body) for entry in expected
    ]


@pytest.mark.parametrize("text", ["", "mine"])
def test_a_link_in_the_place_of_the_index_is_not_written_through(tmp_path: Path, text: str) -> None:
    """Attack: a link, so that the index overwrites a file of the user's."""
    recorded(tmp_path, "a")
    theirs = tmp_path / "theirs"
    theirs.write_text(text, encoding="utf-8")
    (Path(work.journal(tmp_path)) / "index.sqlite").symlink_to(theirs)
    with Index(work.journal(tmp_path)) as index:
        assert len(index.of_call("a")) == 2
    assert theirs.read_text(encoding="utf-8") == text


def test_segments_that_are_gone_leave_the_index(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    with Index(work.journal(tmp_path)) as index:
        assert index.events()
    for path in work.segment_paths(tmp_path):
        os.unlink(path)
    with Index(work.journal(tmp_path)) as index:
        assert (index.events(), index.of_call("a")) == ([], [])
    assert [*reading.entries(work.journal(tmp_path))] == []
