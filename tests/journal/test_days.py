"""The day file: one line per call, best effort, and never a reason for anything."""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal import work
from toolcrib.journal.days import LOOK_S, DayFile, moment


@given(st.floats(0, 4e9))
def test_a_moment_is_utc_to_the_millisecond(now: float) -> None:
    text = moment(now)
    back = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()
    assert -0.0001 <= now - back < 0.0011


def test_lines_are_appended_to_the_file_of_their_day(tmp_path: Path) -> None:
    told: list[str] = []
    days = DayFile(str(tmp_path / "audit"), told.append)
    for day, line in (("2026-02-26", b"1"), ("2026-02-26", b"2"), ("2026-02-27", b"3"), ("2026-02-26", b"4")):
        days.write(day, line)
    days.close()
    assert (tmp_path / "audit" / "2026-02-26.ndjson").read_bytes() == b"1\n2\n4\n"
    assert (tmp_path / "audit" / "2026-02-27.ndjson").read_bytes() == b"3\n"
    assert (tmp_path / "audit" / "2026-02-27.ndjson").stat().st_mode & 0o777 == 0o600
    assert told == []


def test_whoever_finds_another_thread_writing_leaves_its_line_to_that_one(tmp_path: Path) -> None:
    others: list[threading.Thread] = []

    def clock() -> float:  # asked while the line before is being written
        if not others:
            other = threading.Thread(target=days.write, args=("2026-02-26", b"3"), daemon=True)
            others.append(other)
            other.start()
            other.join(10)
        return 0.0

    days = DayFile(str(tmp_path), pytest.fail, clock=clock)
    days.write("2026-02-26", b"1")
    days.write("2026-02-26", b"2")
    (other,) = others
    assert not other.is_alive(), "it waited"
    assert (tmp_path / "2026-02-26.ndjson").read_bytes() == b"1\n2\n3\n"
    days.close()


def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    days = DayFile(str(tmp_path), pytest.fail)
    days.write("2026-02-26", b"1")
    os.rename(tmp_path / "2026-02-26.ndjson", tmp_path / "rotated")
    days.write("2026-02-26", b"2")  # it still has a name, so it is still the file
    os.unlink(tmp_path / "rotated")
    days.write("2026-02-26", b"3")
    days.close()
    assert (tmp_path / "2026-02-26.ndjson").read_bytes() == b"3\n"


def test_lines_go_where_people_look_when_the_file_was_moved_replaced_or_rotated(tmp_path: Path) -> None:
    now = 100.0
    path = tmp_path / "2026-02-26.ndjson"
    days = DayFile(str(tmp_path), pytest.fail, clock=lambda: now)
    for line in (b"1", b"2"):
        days.write("2026-02-26", line)
    os.rename(path, tmp_path / "moved")
    days.write("2026-02-26", b"3")
    assert (tmp_path / "moved").read_bytes() == b"1\n2\n"
    assert path.read_bytes() == b"3\n"

    (tmp_path / "other").write_bytes(b"other\n")
    os.replace(tmp_path / "other", path)
    now += LOOK_S
    days.write("2026-02-26", b"4")
    assert path.read_bytes() == b"other\n4\n"

    # As programs that rotate logs do: the old one has a name, and is not where people look.
    os.rename(path, tmp_path / "rotated")
    path.touch()
    now += LOOK_S
    for line in (b"5", b"6"):
        days.write("2026-02-26", line)
    days.close()
    assert (tmp_path / "rotated").read_bytes() == b"other\n4\n"
    assert path.read_bytes() == b"5\n6\n"


def test_attack_a_link_to_another_file_is_put_in_the_place_of_the_one_that_is_written(tmp_path: Path) -> None:
    now = 100.0
    path, elsewhere, told = tmp_path / "d.ndjson", tmp_path / "elsewhere", list[str]()
    elsewhere.write_bytes(b"")
    days = DayFile(str(tmp_path), told.append, clock=lambda: now)
    days.write("d", b"1")
    os.rename(path, tmp_path / "moved")
    path.symlink_to(elsewhere)
    now += LOOK_S
    for line in (b"2", b"3"):
        days.write("d", line)
    days.close()
    assert (elsewhere.read_bytes(), (tmp_path / "moved").read_bytes()) == (b"", b"1\n")
    assert len(told) == 1


def test_an_interrupt_at_any_moment_lets_no_line_go_into_a_file_that_came_later(tmp_path: Path) -> None:
    """Attack: a key press when the file of yesterday is closed; its number is another file's after that."""
    moment, is_over = 0, False
    while not is_over:
        moment += 1
        folder = tmp_path / str(moment)
        days = DayFile(str(folder), pytest.fail)
        days.write("1", b"1")
        is_over = work.is_over_before(moment, partial(days.write, "2", b"2"), DayFile)
        with open(folder / "later", "wb", buffering=0) as later:
            for day in ("2", "3"):
                days.write(day, b"3")
            days.close()
            assert later.write(b"own") == 3
        assert (folder / "later").read_bytes() == b"own", moment
        assert (folder / "3.ndjson").read_bytes() == b"3\n", moment
    assert moment > 5


def test_a_line_does_not_ask_for_the_times_of_its_file(tmp_path: Path) -> None:
    """Where it did, the kernel would give every later change of every file a time of its own."""
    days = DayFile(str(tmp_path), pytest.fail, clock=lambda: 100.0)
    for line in (b"1", b"2"):
        days.write("d", line)
    asked: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, given: asked.append(given.__name__) if event == "c_call" else None)
    try:
        days.write("d", b"3")
    finally:
        sys.setprofile(before)
    assert "write" in asked
    assert not {"stat", "fstat", "lstat"} & {*asked}


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=40, deadline=None)
def test_no_text_breaks_a_line_or_hides_in_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("days")
    days = DayFile(str(folder), pytest.fail)
    days.write("d", json.dumps(text, ensure_ascii=False).encode("utf-8"))
    days.close()
    (line,) = (folder / "d.ndjson").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == text
    assert not set(line) & {"\x85", "\u2028", "\u202e", "\u200b", "\ufeff"}


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_not_written_and_told_once(tmp_path: Path, kind: str) -> None:
    """Attack: a link in the place of the file, so that lines go into another one."""
    path, elsewhere = tmp_path / "d.ndjson", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"")
    match kind:
        case "link":
            path.symlink_to(elsewhere)
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    told: list[str] = []
    days = DayFile(str(tmp_path), told.append)
    for _ in range(3):
        days.write("d", b"{}")
    assert len(told) == 1
    assert told[0].startswith(f"{path}: ")
    assert told[0].endswith("; the day file is not written, calls go on")
    assert elsewhere.read_bytes() == b""
