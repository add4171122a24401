"""The day file: one line per call, best effort, and never a reason for anything."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.journal.days import DayFile, moment


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


def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    days = DayFile(str(tmp_path), pytest.fail)
    days.write("2026-02-26", b"1")
    os.rename(tmp_path / "2026-02-26.ndjson", tmp_path / "rotated")
    days.write("2026-02-26", b"2")  # it still has a name, so it is still the file
    os.unlink(tmp_path / "rotated")
    days.write("2026-02-26", b"3")
    days.close()
    assert (tmp_path / "2026-02-26.ndjson").read_bytes() == b"3\n"


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
