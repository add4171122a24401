"""``audit``, ``enable`` and ``disable`` as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import select
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.journal import work
from tests.program import PROGRAM, WAIT_S, Said, bounded, environment, toolcrib
from toolcrib.journal.audit import Audit, open_audit
from toolcrib.store.disabled import disabled
from toolcrib.store.sqlite import SqliteStore

HOSTILE = "x\x1b]0;owned\x07\n\u202eevil"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def audit(state: Path) -> Iterator[Audit]:
    audit = open_audit(str(state), day_file=False)
    yield audit
    audit.close()


def said(state: Path, *arguments: str | Path) -> Said:
    return toolcrib("--state", state, *arguments, cwd=state.parent)


def recorded(audit: Audit, *ids: str, **result: Any) -> None:
    for id in ids:
        assert audit.begin(work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id, **result), work.tool("capability", latency="fast"))


class AtATerminal:
    """A command whose stderr is a terminal, and whose stdout is a pipe that nobody reads yet."""

    def __init__(self, state: Path, *arguments: str) -> None:
        self._terminal, theirs = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            [PROGRAM, "--state", state, *arguments],
            cwd=state.parent,
            env=environment(state.parent / ".home", TERM="xterm"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)

    def until(self, text: bytes) -> None:
        while text not in self.shown:
            assert self._reads(), "the terminal was closed"

    def to_its_end(self) -> tuple[int, bytes]:
        out, _ = self.process.communicate(timeout=WAIT_S)
        while self._reads():
            pass
        os.close(self._terminal)
        return self.process.returncode, out

    def _reads(self) -> bool:
        assert select.select([self._terminal], [], [], WAIT_S)[0], "the terminal stayed silent"
        try:
            part = os.read(self._terminal, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.shown += part
        return bool(part)


# -- tail, show, export, stats ------------------------------------------------------------------------------


def test_a_journal_that_does_not_exist_is_empty_and_whole(state: Path) -> None:
    assert said(state, "audit", "tail", "--json").json == []
    assert said(state, "audit", "export").out == ""
    assert said(state, "audit", "stats", "--json").json["calls"] == 0
    whole = said(state, "audit", "verify", "--json")
    assert (whole.status, whole.json["ok"], whole.json["records"]) == (0, True, 0)
    assert not state.exists()


def test_tail_shows_the_last_records_of_a_running_host(state: Path, audit: Audit) -> None:
    recorded(audit, "first", "second")
    rows = said(state, "audit", "tail", "-n", "3", "--json").json
    assert [(row["what"], row["call"]) for row in rows] == [
        ("end", "first"),
        ("begin", "second"),
        ("end", "second"),
    ]
    assert rows[0]["time"].endswith("Z")
    text = said(state, "audit", "tail")
    assert text.out.count("\n") == 4
    assert "ok" in text.out
    assert any(row["what"] == "open" for row in said(state, "audit", "tail", "-v", "--json").json)


def test_tail_follows_what_comes(state: Path, audit: Audit) -> None:
    recorded(audit, "first")
    following = subprocess.Popen(
        [PROGRAM, "--state", state, "audit", "tail", "--follow", "--json"],
        stdout=subprocess.PIPE,
        env=environment(state.parent),
        cwd=state.parent,
    )
    try:
        with bounded(following):
            assert following.stdout is not None
            assert [json.loads(following.stdout.readline())["call"] for _ in range(2)] == ["first", "first"]
            recorded(audit, "second")
            assert json.loads(following.stdout.readline())["call"] == "second"
    finally:
        following.terminate()
        following.communicate(timeout=WAIT_S)


def test_show_tells_all_about_one_call_of_a_running_host(state: Path, audit: Audit) -> None:
    audit.begin(work.call("abc-1"), work.FACTS)
    assert said(state, "audit", "show", "abc-1", "--json").json["status"] == "running"
    runs = (work.ran("/bin/a", what="resolver"), work.ran("/bin/b", exit_status=3))
    audit.end(work.call("abc-1"), work.result("abc-1", error=work.failed("exit status 3"), runs=runs))
    shown = said(state, "audit", "show", "abc", "--json").json
    assert (shown["call"], shown["status"]) == ("abc-1", "failed")
    assert [record["what"] for record in shown["records"]] == ["begin", "resolver", "end"]
    text = said(state, "audit", "show", "abc-1")
    assert text.status == 0
    assert "exit status 3" in text.out


def test_show_of_a_call_that_is_not_there_or_not_one(state: Path, audit: Audit) -> None:
    recorded(audit, "abc-1", "abc-2")
    for wrong in ("nothing", "abc", ""):
        found = said(state, "audit", "show", wrong)
        assert found.status == 64, wrong
        assert "audit tail" in found.err


@pytest.mark.battery("K06")
def test_k06_a_call_whose_host_died_is_shown_as_interrupted(state: Path) -> None:
    audit = open_audit(str(state))
    audit.begin(work.call("left"), work.FACTS)
    audit.close()
    assert said(state, "audit", "show", "left", "--json").json["status"] == "interrupted"
    assert said(state, "audit", "tail", "--json").json[-1]["interrupted"] is True
    assert "interrupted" in said(state, "audit", "tail").out
    assert said(state, "audit", "stats", "--json").json["interrupted"] == 1


@pytest.mark.battery("J05")
def test_j05_hostile_records_are_escaped_on_one_line(state: Path, audit: Audit) -> None:
    call = work.call("h", tool=HOSTILE, caller=HOSTILE)
    audit.begin(call, work.FACTS)
    audit.end(call, work.result("h", error=work.failed(HOSTILE), runs=(work.ran(HOSTILE),)))
    for arguments in (("tail",), ("tail", "--json"), ("show", "h"), ("show", "h", "--json"), ("export",)):
        found = said(state, "audit", *arguments)
        assert found.status == 0
        assert not set("\x1b\x07\u202e") & set(found.out), arguments
    assert len(said(state, "audit", "export").out.splitlines()) == 2
    assert len(said(state, "audit", "tail").out.splitlines()) == 2


def test_export_writes_json_lines_of_a_time_and_a_key(state: Path, audit: Audit) -> None:
    recorded(audit, "a")
    audit.note("a", "approval", {"by": "ann"})
    audit.note("", "probe", {"path": "/bin/x"})

    def lines(*options: str) -> list[str]:
        return [
            json.loads(line)["what"] for line in said(state, "audit", "export", *options).out.splitlines()
        ]

    assert lines() == ["begin", "end", "approval", "probe"]
    assert lines("--key", "manifest:*") == ["begin", "end", "approval"]
    assert lines("--key", "other") == []
    assert len(lines("--since", "1h")) == 4
    assert lines("--until", "1h") == []
    assert lines("--since", "2100-01-01") == []
    assert len(lines("--since", "2020-01-01", "--until", "2100-01-01T00:00")) == 4
    assert said(state, "audit", "export", "--since", "yesterday").status == 2


@pytest.mark.requirement("capability.meta.latency-observed", "capability.control.usage")
def test_a_long_export_tells_on_the_terminal_how_far_it_is_and_never_in_its_output(
    state: Path, audit: Audit
) -> None:
    recorded(audit, *(f"c{number}" for number in range(300)))  # more than a pipe takes, so it has to wait
    for_programs = AtATerminal(state, "audit", "export", "--json")
    for_people = AtATerminal(state, "audit", "export")
    for_people.until(b"exporting: 0 of 1 segments")
    for one in (for_people, for_programs):
        status, out = one.to_its_end()
        assert status == 0
        assert len([json.loads(line) for line in out.splitlines()]) == 600
    assert for_people.shown.endswith(b"\r\x1b[K")
    assert for_programs.shown == b""


@pytest.mark.parametrize("words", [("stats",), ("show", "a")], ids=" ".join)
def test_whoever_waits_for_the_index_is_told_so(state: Path, audit: Audit, words: tuple[str, ...]) -> None:
    recorded(audit, "a")
    assert said(state, "audit", *words).status == 0
    other = sqlite3.connect(state / "journal" / "index.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    asked = AtATerminal(state, "audit", *words)
    asked.until(b"bringing the index up to date: ")
    other.execute("ROLLBACK")
    other.close()
    status, out = asked.to_its_end()
    assert status == 0
    assert b"manifest:t/get_time" in out
    assert asked.shown.endswith(b"\r\x1b[K")


def test_stats_name_a_tool_that_is_slower_than_it_declares(state: Path, audit: Audit) -> None:
    recorded(audit, "a", "b", "c", spent=work.spent(2000.0))
    found = said(state, "audit", "stats", "--json").json
    assert (found["events"], found["calls"], found["median_ms"]) == (3, 3, 2000.0)
    (tool,) = found["tools"]
    assert (tool["latency"], tool["too_slow"]) == ("fast", True)
    assert "declared fast, regularly slower" in said(state, "audit", "stats").out


# -- verify and anchor --------------------------------------------------------------------------------------


@pytest.mark.battery("J01")
def test_j01_verify_names_the_first_bad_record_and_ends_with_65(state: Path) -> None:
    audit = open_audit(str(state))
    recorded(audit, "a", "b")
    audit.close()
    whole = said(state, "audit", "verify", "--json")
    assert (whole.status, whole.json["ok"], whole.json["first_bad"]) == (0, True, None)
    assert whole.json["records"] == 5
    assert said(state, "audit", "verify").out.startswith("whole: 5 records; 5 not covered")
    (path,) = work.segment_paths(state)
    data = bytearray(path.read_bytes())
    data[data.index(b'"call":"b"') + 8] = ord("x")
    path.write_bytes(data)
    broken = said(state, "audit", "verify", "--json")
    assert broken.status == 65
    assert broken.json["first_bad"]["record"] == 4
    assert broken.json["first_bad"]["segment"] in path.name
    text = said(state, "audit", "verify")
    assert text.status == 65
    assert "record 4" in text.err


@pytest.mark.battery("J03")
def test_j03_an_anchor_kept_elsewhere_finds_a_cut_tail_and_a_rewritten_log(state: Path) -> None:
    audit = open_audit(str(state))
    recorded(audit, "a")
    audit.close()
    kept = state.parent / "anchor.json"
    assert said(state, "audit", "anchor", kept).status == 0
    assert said(state, "audit", "verify", "--anchor", kept).status == 0
    audit = open_audit(str(state))
    recorded(audit, "b")
    audit.close()
    assert said(state, "audit", "verify", "--anchor", kept).status == 0  # more is fine
    (path,) = work.segment_paths(state)
    content = path.read_bytes()
    path.write_bytes(content[:200])
    assert said(state, "audit", "verify").status in (0, 65)
    cut = said(state, "audit", "verify", "--anchor", kept, "--json")
    assert (cut.status, cut.json["ok"]) == (65, False)
    path.unlink()
    assert said(state, "audit", "verify").status == 0  # all gone: only the anchor knows
    assert "missing" in said(state, "audit", "verify", "--anchor", kept, "--json").json["first_bad"]["why"]
    # The whole folder made anew, key and all.
    (state / "keys" / "journal.key").unlink()
    audit = open_audit(str(state))
    recorded(audit, "a", "b")
    audit.close()
    assert said(state, "audit", "verify").status == 0
    assert said(state, "audit", "verify", "--anchor", kept).status == 65


def test_an_anchor_goes_to_stdout_and_a_broken_journal_gets_none(state: Path) -> None:
    audit = open_audit(str(state))
    recorded(audit, "a")
    audit.close()
    assert set(said(state, "audit", "anchor").json) == {"anchor", "time", "heads", "key", "signature"}
    (path,) = work.segment_paths(state)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert said(state, "audit", "anchor").status == 65


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"anchor": 2}', "not JSON"])
def test_a_file_that_is_no_anchor_is_refused(state: Path, content: str) -> None:
    path = state.parent / "anchor.json"
    path.write_text(content, encoding="utf-8")
    assert said(state, "audit", "verify", "--anchor", path).status == 66
    assert said(state, "audit", "verify", "--anchor", state.parent / "nowhere").status == 66


def test_a_torn_tail_is_told_and_no_error(state: Path) -> None:
    audit = open_audit(str(state))
    recorded(audit, "a")
    audit.close()
    (path,) = work.segment_paths(state)
    with path.open("ab") as file:
        file.write(b"\x10\x00\x00")
    found = said(state, "audit", "verify")
    assert found.status == 0
    assert "3 bytes" in found.err


def test_unreadable_parts_of_a_journal_are_told_without_a_traceback(state: Path) -> None:
    audit = open_audit(str(state))
    recorded(audit, "a")
    audit.close()
    os.mkfifo(state / "journal" / "00000000000000002-1-aa.seg")
    broken = said(state, "audit", "verify", "--json")
    assert broken.status == 65
    assert "regular file" in broken.json["first_bad"]["why"]
    assert said(state, "audit", "tail").status == 74


# -- enable and disable -------------------------------------------------------------------------------------


def off(state: Path) -> dict[str, Any]:
    store = SqliteStore(str(state / "state.sqlite"))
    try:
        return {found.tool: found for found in disabled(store, time.time())}
    finally:
        store.close()


def test_disable_and_enable_answer_in_json_and_survive_restarts(state: Path) -> None:
    answer = said(state, "disable", "get_time", "--for", "30m", "--reason", "being mended", "--json")
    assert answer.status == 0
    assert list(answer.json) == ["tool", "enabled", "until", "reason"]
    assert (answer.json["tool"], answer.json["enabled"], answer.json["reason"]) == (
        "get_time",
        False,
        "being mended",
    )
    assert answer.json["until"].endswith("Z")
    assert "no tool" in answer.err  # not loaded here, and said
    found = off(state)["get_time"]
    assert found.reason == "being mended"
    assert 1700 < found.until - time.time() <= 1800
    answer = said(state, "enable", "get_time", "--json")
    assert answer.json == {"tool": "get_time", "enabled": True, "until": None, "reason": None}
    assert off(state) == {}


def test_a_switch_for_a_name_that_no_tool_has_or_that_several_have_says_so(
    state: Path, tmp_path: Path
) -> None:
    one = {"name": "get_time", "description": "T.", "command": ["/bin/true"], "schema": {"type": "object"}}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tools.json").write_text(json.dumps({"tools": [one]}), encoding="utf-8")
    mistaken = said(state, "disable", "get_tiem", "--from", tmp_path / "a")
    assert mistaken.status == 0
    assert mistaken.err == (
        "no tool 'get_tiem' is loaded here; it holds once one is (did you mean get_time?)\n"
    )
    several = said(state, "disable", "get_time", "--from", tmp_path / "a", "--from", tmp_path / "b")
    assert several.err == "the name 'get_time' belongs to 2 tools; it holds for each of them\n"
    for key in ("manifest:a/get_time", "manifest:b/get_time"):
        refused = said(state, "call", key, "--from", tmp_path / "a", "--from", tmp_path / "b")
        assert (refused.status, "is disabled" in refused.err) == (77, True)


@pytest.mark.parametrize("duration", ["2s", "30m", "1h", "7d"])
def test_durations(state: Path, duration: str) -> None:
    assert said(state, "disable", "x", "--for", duration, "--json").json["until"] is not None


@pytest.mark.parametrize("duration", ["", "0s", "5", "-1h", "1w", "1.5h", "99999999999d"])
def test_durations_that_make_no_sense(state: Path, duration: str) -> None:
    assert said(state, "disable", "x", "--for", duration).status == 2
    assert off(state) == {}


def test_for_good_and_in_words(state: Path) -> None:
    text = said(state, "disable", HOSTILE, "--reason", HOSTILE)
    assert text.status == 0
    assert "\x1b" not in text.out
    assert off(state)[HOSTILE].until is None
    assert said(state, "disable", " ").status == 2
    assert said(state, "disable", "x", "--reason", "y" * 501).status == 2


@pytest.mark.parametrize(
    "words",
    [
        ("disable", "b\udcffd"),
        ("disable", "x", "--reason", "b\udcffd"),
        ("enable", "b\udcffd"),
        ("audit", "show", "b\udcffd"),
        ("call", "x", "{}", "--idempotency-key", "b\udcffd"),
    ],
)
def test_bytes_that_are_no_text_are_refused_in_words(state: Path, words: tuple[str, ...]) -> None:
    answer = said(state, *words)
    assert answer.status == 2
    assert "is not UTF-8" in answer.err


def test_a_tool_is_switched_on_under_all_of_its_names(state: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tool = {
        "name": "get_time",
        "description": "Tell the time.",
        "schema": {"type": "object", "properties": {}},
        "command": ["./tools/bin/get_time"],
    }
    program = tmp_path / "tools" / "bin" / "get_time"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    tools.write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    (row,) = said(state, "list", "--json").json
    answer = said(state, "disable", row["key"], "--json")
    assert "no tool" not in answer.err
    assert said(state, "enable", "get_time").status == 0
    assert off(state) == {}


def test_a_damaged_store_is_named_with_the_fix(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "state.sqlite").write_bytes(b"once a database" * 500)
    found = said(state, "disable", "x")
    assert found.status == 74
    assert "state.sqlite" in found.err
    assert "move" in found.err


# -- a call from end to end, on a journal that does not play along ------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A manifest tool that leaves a mark, and says more than a model wants to read."""
    program = tmp_path / "tools" / "bin" / "leave_mark"
    program.parent.mkdir(parents=True)
    script = (
        "#!/bin/sh\necho x >> mark\nprintf '{\"text\": \"'\nseq -s , 1 3000 | tr -d '\\n'\nprintf 'é\"}'\n"
    )
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    tool = {"name": "leave_mark", "description": "Leave a mark.", "schema": {"type": "object"}}
    tool["command"] = ["./tools/bin/leave_mark"]
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    (tmp_path / "small.toml").write_text("[limits]\nresult_bytes = 1000\n", encoding="utf-8")
    return tmp_path


def called(state: Path, folder: Path, *options: str) -> Said:
    return toolcrib("--state", state, "--from", folder, *options, "call", "leave_mark", "--json", cwd=folder)


def marks(folder: Path) -> int:
    mark = folder / "mark"
    return len(mark.read_text(encoding="utf-8").splitlines()) if mark.exists() else 0


def refused(state: Path, folder: Path) -> None:
    """Nothing ran, and the caller is told why."""
    before = marks(folder)
    answer = called(state, folder)
    assert answer.status == 74, answer
    error = answer.json["error"]
    assert error["kind"] == "not_audited"
    assert str(state / "journal") in error["message"]  # which file, and why
    assert error["hint"]
    assert marks(folder) == before


def test_where_there_can_be_no_state_folder_another_one_is_proposed(folder: Path) -> None:
    (folder / "file").touch()
    answer = called(folder / "file" / "state", folder)
    assert (answer.status, answer.json["error"]["kind"]) == (74, "not_audited")
    assert "--state DIR" in answer.json["error"]["hint"]


def test_a_long_result_can_be_paged_through(state: Path, folder: Path) -> None:
    answer = called(state, folder, "--config", str(folder / "small.toml"))
    assert answer.status == 0, answer
    call_id = answer.json["call_id"]
    assert answer.json["spent"]["truncated"] is True
    assert json.loads(answer.json["content"])["call_id"] == call_id
    whole = said(state, "audit", "show", call_id, "--output", "-q")
    assert (whole.status, whole.err) == (0, "")
    assert json.loads(whole.out)["text"].endswith("2999,3000é")
    text = ""
    offset: int | None = 0
    while offset is not None:
        options = ("--output", "--offset", str(offset), "--limit", "5001", "--json")
        page = said(state, "audit", "show", call_id, *options).json
        assert (page["call"], page["bytes"], page["offset"]) == (call_id, len(whole.out.encode()), offset)
        text += page["text"]
        offset = page["next_offset"]
    assert text == whole.out
    first = said(state, "audit", "show", call_id[:20], "--output", "--limit", "10")
    assert first.out == whole.out[:10]
    assert "go on with --offset 10" in first.err


def test_a_result_that_was_not_kept_cannot_be_shown(state: Path, audit: Audit) -> None:
    recorded(audit, "abc1")
    found = said(state, "audit", "show", "abc1", "--output")
    assert found.status == 64
    assert "limits.result_bytes" in found.err
    assert said(state, "audit", "show", "abc1", "--offset", "1").status == 2
    assert said(state, "audit", "show", "abc1", "--output", "--limit", "0").status == 2


@pytest.mark.battery("J04")
@pytest.mark.parametrize("kind", ["symlink", "fifo", "file", "open to others"])
def test_j04_nothing_runs_where_the_journal_was_replaced(state: Path, folder: Path, kind: str) -> None:
    assert called(state, folder).status == 0
    journal, aside = state / "journal", state.parent / "aside"
    journal.rename(aside)
    if kind == "symlink":
        journal.symlink_to(aside)
    elif kind == "fifo":
        os.mkfifo(journal)
    elif kind == "file":
        journal.write_text("", encoding="utf-8")
    else:
        journal.mkdir()
        journal.chmod(0o777)
    refused(state, folder)
    if kind == "open to others":
        journal.rmdir()
    else:
        journal.unlink()
    aside.rename(journal)
    assert called(state, folder).status == 0
    assert marks(folder) == 2
    assert said(state, "audit", "verify").status == 0


@pytest.mark.battery("J04")
def test_j04_nothing_runs_on_a_damaged_journal_until_it_is_moved_away(state: Path, folder: Path) -> None:
    assert called(state, folder).status == 0
    (path,) = work.segment_paths(state)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(state, folder)
    assert said(state, "audit", "verify").status == 65
    path.rename(state.parent / path.name)
    assert called(state, folder).status == 0
    assert marks(folder) == 2
    assert said(state, "audit", "verify").status == 0


@pytest.mark.battery("J04", "K03")
def test_k03_nothing_runs_on_a_full_disk_and_all_is_well_once_there_is_room(
    tmp_path: Path, folder: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system of 64 KiB")
    place = tmp_path / "small"
    place.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", place]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here; a machine where root may mount shows this")
    try:
        state = place / "state"
        assert called(state, folder).status == 0
        with (place / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        (path,) = work.segment_paths(state)
        with path.open("ab", buffering=0) as file:  # the rest of the last page: what a first record may take
            file.write(bytes(-path.stat().st_size % 4096))
        refused(state, folder)
        refused(state, folder)
        (place / "filler").unlink()
        answer = called(state, folder)
        assert answer.status == 0
        assert marks(folder) == 2
        assert said(state, "audit", "verify").status == 0
        records = [json.loads(line) for line in said(state, "audit", "export").out.splitlines()]
        assert [record["what"] for record in records] == ["begin", "end"] * 2
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.battery("K06")
def test_k06_a_killed_host_s_call_is_interrupted_and_the_next_one_runs(state: Path, folder: Path) -> None:
    program = folder / "tools" / "bin" / "leave_mark"
    program.write_text("#!/bin/sh\necho x >> mark\nexec sleep 30\n", encoding="utf-8")
    host = subprocess.Popen(
        [PROGRAM, "--state", state, "--from", folder, "call", "leave_mark"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(folder / ".home"),
        cwd=folder,
    )
    try:
        until = time.monotonic() + WAIT_S
        while not marks(folder):
            assert time.monotonic() < until
            assert host.poll() is None
            threading.Event().wait(0.01)
        assert said(state, "audit", "tail", "--json").json[-1].get("interrupted") is None  # it is running
    finally:
        host.kill()
        host.wait(WAIT_S)
    row = said(state, "audit", "tail", "--json").json[-1]
    assert (row["what"], row["interrupted"]) == ("begin", True)
    assert said(state, "audit", "show", row["call"], "--json").json["status"] == "interrupted"
    assert said(state, "audit", "stats", "--json").json["interrupted"] == 1
    program.write_text("#!/bin/sh\necho x >> mark\necho '{}'\n", encoding="utf-8")
    assert called(state, folder).status == 0
    assert said(state, "audit", "show", row["call"], "--json").json["status"] == "interrupted"


def test_a_call_loads_neither_signatures_nor_the_store(state: Path, folder: Path) -> None:
    """Both cost more than the call's own records; neither is needed for one."""
    program = (sys.executable, "-X", "importtime", PROGRAM)
    for _ in range(2):
        answer = toolcrib(
            "--state", state, "--from", folder, "call", "leave_mark", cwd=folder, program=program
        )
        assert answer.status == 0
        assert marks(folder)
        loaded = {line.rpartition("|")[2].strip() for line in answer.err.splitlines()}
        assert "toolcrib.journal.segments" in loaded
        assert not {name for name in loaded if name.startswith(("cryptography", "sqlite3", "_sqlite3"))}


def test_a_tool_that_was_switched_off_is_refused_with_the_reason(state: Path, folder: Path) -> None:
    assert said(state, "disable", "leave_mark", "--reason", "being mended").status == 0
    answer = called(state, folder)
    assert answer.status == 77
    assert "being mended" in answer.json["error"]["message"]
    assert marks(folder) == 0
    assert said(state, "audit", "tail", "--json").json[-1]["kind"] == "denied"
    assert said(state, "enable", "leave_mark").status == 0
    assert called(state, folder).status == 0
