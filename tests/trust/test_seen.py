"""Signed files that are older than what ran in their place: refused, until a person wants them back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.signed import FUNCTION, TIME, Place, answer, python
from toolcrib.app import Crib
from toolcrib.errors import Kind, StoreError
from toolcrib.model import Allow, Deny, ToolResult, Trust, Vetted
from toolcrib.trust import seen, vetting
from toolcrib.trust.seen import Memory, SignedFile

LATER, LATEST = "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z"
NAME = "tools/a/t.py"
RUNTIME = """version: "1.0.0"
tool_type: runtime
executor_id: {executor}
category: r
description: "{text}"
"""
IMPORTING = python(
    "import helper\ndef execute(params, project_path):\n    return {'success': True, 'said': helper.SAID}\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def version(text: str, number: str) -> str:
    assert '"1.0.0"' in text
    return text.replace('"1.0.0"', f'"{number}"', 1)


def said(place: Place, name: str = "a/t") -> object:
    with place.open() as crib:
        result = crib.call(name)
        assert result.ok, result.error
        assert isinstance(result.data, dict)
        return result.data["said"]


def refusal(result: ToolResult) -> str:
    assert result.error is not None, result
    assert result.error.kind is Kind.DENIED
    assert result.runs == ()
    return result.error.message


def vetted(crib: Crib, name: str = "a/t") -> Vetted:
    return crib.vet(crib.find(name))


def is_refused(place: Place, why: str, name: str = NAME) -> None:
    path = place.project / ".ai" / name
    with place.open(unsigned="warn") as crib:
        found = vetted(crib)
        assert found.trust is Trust.DRIFTED
        assert found.message == f"Older than what was seen here: {path}\n  Found: {why}"
        assert f"toolcrib trust {path}" in (found.hint or "")
        assert refusal(crib.call("a/t")) == found.message
        decision = crib.explain("a/t").decision
        assert isinstance(decision, Deny)
        assert decision.because == "drifted"


# -- what is refused ----------------------------------------------------------------------------------------


def test_attack_an_older_signed_version_runs_after_a_newer_one_ran(place: Place) -> None:
    place.write(NAME, answer("old"))
    assert said(place) == "old"
    place.write(NAME, version(answer("new"), "1.1.0"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, answer("old"))
    is_refused(place, "its text was seen here before, and another one since")
    # Also where its time, which no signature covers, says that it is the newest.
    place.write(NAME, answer("old"), time=LATEST)
    is_refused(place, "its text was seen here before, and another one since")
    place.write(NAME, version(answer("new"), "1.1.0"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, version(answer("newest"), "1.1.1"), time=LATEST)
    assert said(place) == "newest"


def test_attack_a_running_host_takes_an_older_file_for_the_one_it_knows(place: Place) -> None:
    place.write(NAME, answer("old"))
    with place.open() as crib:
        assert crib.call("a/t").ok
        place.write(NAME, answer("new"), time=LATER)
        result = crib.call("a/t")
        assert isinstance(result.data, dict)
        assert result.data["said"] == "new"
        place.write(NAME, answer("old"))
        assert refusal(crib.call("a/t")).startswith("Older than what was seen here")
        place.write(NAME, answer("new"), time=LATER)
        assert crib.call("a/t").ok


@pytest.mark.parametrize("time", [TIME, LATEST], ids=["as signed", "forged"])
def test_attack_an_older_version_that_never_ran_here_runs(place: Place, time: str) -> None:
    place.write(NAME, version(answer("new"), "1.10.0"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, version(answer("old"), "1.9.0"), time=time)
    is_refused(place, "its version is 1.9.0, and 1.10.0 was seen here")


def test_attack_a_file_of_the_same_version_that_was_signed_earlier_runs(place: Place) -> None:
    place.write(NAME, answer("new"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, answer("old"), time=TIME)
    is_refused(place, f"it was signed at {TIME}, and one of {LATER} was seen here")


def test_a_newer_version_runs_whatever_its_time_says(place: Place) -> None:
    place.write(NAME, answer("old"), time=LATEST)
    assert said(place) == "old"
    place.write(NAME, version(answer("new"), "1.0.1"), time=TIME)
    assert said(place) == "new"


def test_attack_a_time_in_the_future_that_no_later_file_reaches(place: Place) -> None:
    place.write(NAME, answer("old"), time="9999-01-01T00:00:00Z")
    assert said(place) == "old"
    place.write(NAME, answer("new"), time="9998-01-01T00:00:00Z")
    assert said(place) == "new"


def test_attack_a_text_that_ran_before_another_key_signed_a_newer_one(place: Place) -> None:
    place.write(NAME, answer("theirs"))
    assert said(place) == "theirs"
    other = place.new_key("other")
    place.trust(other)
    place.write(NAME, answer("ours"), key=other, time=TIME)
    assert said(place) == "ours"
    place.write(NAME, answer("theirs"), time=LATEST)
    is_refused(place, "its text was seen here before, and another one since")
    place.write(NAME, answer("theirs again"), time=LATEST)
    assert said(place) == "theirs again"


@pytest.mark.parametrize("needs", ["neighbour", "runtime"])
def test_attack_an_older_file_that_a_tool_needs(place: Place, needs: str) -> None:
    """The tool is blocked by it."""
    if needs == "neighbour":
        place.write(NAME, IMPORTING)
        name, text = "tools/a/helper.py", "SAID = '{}'\n"
    else:
        place.write(NAME, answer("good", executor="r/one"))
        name, text = "tools/r/one.yaml", RUNTIME.replace("{executor}", FUNCTION).replace("{text}", "{}")
    path = place.write(name, text.format("old"))
    said(place)
    place.write(name, text.format("new"), time=LATER)
    said(place)
    place.write(name, text.format("old"))
    with place.open() as crib:
        found = vetted(crib)
        assert (found.trust, found.blocked_by) == (Trust.BLOCKED, str(path))
        assert refusal(crib.call("a/t")).startswith(f"Older than what was seen here: {path}\n")


OTHER = "tools/a/u.py"
AGAIN = "its text was seen here before as tools/a/t.py, and another one since"


def test_attack_an_older_version_runs_under_another_name(place: Place) -> None:
    place.write(NAME, answer("old"))
    assert said(place) == "old"
    place.write(NAME, version(answer("new"), "1.1.0"), time=LATER)
    assert said(place) == "new"
    path = place.write(OTHER, answer("old"), time=LATEST)
    with place.open() as crib:
        message = refusal(crib.call("a/u"))
        assert message == f"Older than what was seen here: {path}\n  Found: {AGAIN}"
        assert crib.call("a/t").ok
    place.write(OTHER, version(answer("another"), "1.0.0"))
    assert said(place, "a/u") == "another"
    place.write(OTHER, answer("old"), time=LATEST)
    with place.open() as crib:
        assert refusal(crib.call("a/u")).startswith("Older than what was seen here")


def test_a_copy_of_the_newest_text_and_a_file_that_was_renamed_run(place: Place) -> None:
    place.write(NAME, answer("old"))
    assert said(place) == "old"
    place.write(NAME, version(answer("new"), "1.1.0"), time=LATER)
    assert said(place) == "new"
    place.write(OTHER, version(answer("new"), "1.1.0"), time=LATER)
    assert said(place, "a/u") == "new"
    (place.project / ".ai" / NAME).unlink()
    assert said(place, "a/u") == "new"


def test_attack_an_older_runtime_of_the_same_id_under_another_name(tmp_path: Path) -> None:
    """It never ran here, so only its id and its age tell."""
    memory = Memory(str(tmp_path))
    new = SignedFile(path="/p/.ai/tools/r/one.yaml", key="k", digest="2", time=LATER, item="r/one")
    assert memory.remember([new]) is None
    old = SignedFile(path="/p/.ai/tools/r/two.yaml", key="k", digest="1", time=TIME, item="r/one")
    found = memory.older([old])
    assert found is not None
    assert found.why == (
        f"tools/r/one.yaml has the same id, and it was signed at {TIME}, and one of {LATER} was seen here"
    )
    assert memory.remember([old]) is not None
    assert memory.remember([old], accepts=True) is None
    assert memory.older([old]) is None
    other = SignedFile(path="/p/.ai/tools/r/three.yaml", key="k", digest="3", time=TIME, item="r/three")
    unnamed = SignedFile(path="/p/.ai/tools/r/four.yaml", key="k", digest="4", time=TIME)
    assert memory.older([other, unnamed]) is None


@pytest.mark.parametrize("line", ["tool_id: r/one", 'tool_id: "r/one"  # mine', "tool_id:\tr/one"])
def test_the_id_of_a_signed_text_is_read_where_it_gives_itself_one(place: Place, line: str) -> None:
    for name, text, item in (
        ("tools/r/one.yaml", f"version: '1.0.0'\n{line}\n", "r/one"),
        ("tools/r/two.yaml", "version: '1.0.0'\n", ""),
        ("tools/r/three.py", f'"""\n{line}\n"""\n', ""),
    ):
        path = place.write(name, text)
        found = vetting.signed_file(path.read_bytes(), str(path))
        assert found is not None
        assert found.item == item


# -- what counts as seen ------------------------------------------------------------------------------------


def test_what_was_only_loaded_listed_explained_or_tried_is_not_remembered(place: Place) -> None:
    place.write(NAME, version(answer("new"), "2.0.0"), time=LATER)
    rule = {"match": {"name": "a/t"}, "decision": "deny", "because": "no"}
    with place.open(policy=(rule,)) as crib:
        refusal(crib.call("a/t"))
    with place.open() as crib:
        assert vetted(crib).trust is Trust.SIGNED
        assert isinstance(crib.explain("a/t", {}).decision, Allow)
        assert crib.call("a/t", dry_run=True).ok
    assert not (place.state / "seen").exists()
    place.write(NAME, answer("old"))
    assert said(place) == "old"


def test_attack_a_clone_that_makes_another_project_forget_or_refuse(tmp_path: Path) -> None:
    """What ran in one folder says nothing about the same item of the same key in another."""
    ours, clone = Place(tmp_path / "ours"), Place(tmp_path / "clone")
    clone.home, clone.state, clone.key = ours.home, ours.state, ours.key
    ours.write(NAME, answer("ours"))
    assert said(ours) == "ours"
    clone.write(NAME, version(answer("theirs"), "99.0.0"), time=LATEST)
    assert said(clone) == "theirs"
    assert said(ours) == "ours"
    ours.write(NAME, version(answer("newer"), "1.0.1"), time=LATER)
    assert said(ours) == "newer"


def test_a_project_by_another_name_of_its_folder_is_the_same(place: Place, tmp_path: Path) -> None:
    place.write(NAME, answer("new"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, answer("old"))
    (tmp_path / "link").symlink_to(place.project)
    place.project = tmp_path / "link"
    with place.open() as crib:
        assert vetted(crib).trust is Trust.DRIFTED


def test_a_moved_project_and_a_state_folder_that_was_reset_have_seen_nothing(place: Place) -> None:
    """As documented: who may write the state folder may make the host forget."""
    place.write(NAME, answer("new"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, answer("old"))
    shutil.rmtree(place.state / "seen")
    assert said(place) == "old"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"seen": 2}', b'{"seen": 1, "files": {"x": 1}}', b"\xff"]
)
def test_attack_a_memory_that_is_damaged_is_not_a_new_one(place: Place, content: bytes) -> None:
    place.write(NAME, answer("new"), time=LATER)
    assert said(place) == "new"
    (path,) = (place.state / "seen").glob("*.json")
    path.write_bytes(content)
    with place.open() as crib:
        found = vetted(crib)
        assert (found.trust, found.message) == (Trust.DRIFTED, f"{path}: it is damaged")
        assert refusal(crib.call("a/t")) == f"{path}: it is damaged"
    path.unlink()
    path.mkdir()
    with place.open() as crib:
        assert "not a file of your own" in refusal(crib.call("a/t"))


def test_what_cannot_be_kept_in_mind_does_not_run(place: Place) -> None:
    place.write(NAME, answer("new"))
    place.state.mkdir(mode=0o700)
    (place.state / "seen").write_bytes(b"")
    with place.open() as crib:
        result = crib.call("a/t")
        assert result.error is not None
        assert result.runs == ()
        assert result.error.kind in (Kind.UNAVAILABLE, Kind.DENIED)


def test_without_a_state_folder_nothing_is_known_and_listing_works(place: Place) -> None:
    place.write(NAME, answer("new"))
    with place.open(state=None) as crib:
        assert vetted(crib).trust is Trust.SIGNED


def test_development_mode_tells_of_an_older_file_and_runs_it(place: Place) -> None:
    place.write(NAME, answer("new"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, answer("old"))
    with place.open(dev_mode=True, env={"RYE_DEV_MODE": "1"}) as crib:
        result = crib.call("a/t")
        assert result.ok
        assert any("not verified, and run all the same: Older than" in note for note in result.notes)


# -- a person wants it back ---------------------------------------------------------------------------------


def test_a_lock_that_was_approved_counts_for_more_than_what_ran_before(place: Place) -> None:
    place.write(NAME, answer("new"), time=LATER)
    assert said(place) == "new"
    place.write(NAME, answer("old"))
    with place.open(file=str(place.project / "toolcrib.toml")) as crib:
        pins = crib.pins()
        entries, _ = pins.locked_now([*crib.tools])
        pins.approve(entries, whole=True)
        assert vetted(crib).trust is Trust.SIGNED
        assert crib.call("a/t").ok
    (place.project / "toolcrib.lock").unlink()
    shutil.rmtree(place.state / "locks")
    assert said(place) == "old"  # which ran last, because a person wanted it


def test_what_a_person_accepts_is_the_newest_from_then_on(place: Place) -> None:
    memory = Memory(str(place.state))
    place.state.mkdir(mode=0o700)
    old = SignedFile(path="/p/.ai/tools/t.py", key="k", digest="1", time=TIME, version="1.0.0")
    new = SignedFile(path="/p/.ai/tools/t.py", key="k", digest="2", time=LATER, version="2.0.0")
    older = SignedFile(
        path="/p/.ai/tools/t.py", key="k", digest="0", time="2025-01-01T00:00:00Z", version="0.9.0"
    )
    for file in (older, old, new):
        assert memory.remember([file]) is None
    assert memory.older([old]) is not None
    assert memory.remember([old], accepts=True) is None
    assert memory.older([old]) is None
    assert memory.older([older]) is not None
    assert memory.remember([new]) is None
    assert memory.older([old]) is not None


# -- the memory itself --------------------------------------------------------------------------------------


def file(digest: str, time: str = TIME, *, key: str = "k", path: str = "/p/.ai/tools/t.py") -> SignedFile:
    return SignedFile(path=path, key=key, digest=digest, time=time)


def test_attack_an_older_file_that_is_kept_after_a_newer_one(tmp_path: Path) -> None:
    """Two programs, of which the one with the older file looked first."""
    mine, theirs = Memory(str(tmp_path)), Memory(str(tmp_path))
    assert mine.older([file("old")]) is None
    assert theirs.remember([file("new", LATER)]) is None
    found = mine.remember([file("old")])
    assert found is not None
    assert found.file.digest == "old"
    assert mine.older([file("new", LATER)]) is None


def test_memory_is_bounded_and_its_files_are_ours_alone(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path))
    before = os.umask(0)
    try:
        for number in range(seen.PAST_MAX + 20):
            assert (
                memory.remember([file(str(number), f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z")])
                is None
            )
    finally:
        os.umask(before)
    assert (tmp_path / "seen").stat().st_mode & 0o777 == 0o700
    (path,) = (tmp_path / "seen").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    entry = memory._book("/p")["tools/t.py"]
    assert len(entry["past"]) == seen.PAST_MAX
    for number in range(seen.KEYS_MAX + 3):
        assert memory.remember([file(f"k{number}", LATER, key=f"key{number}")]) is None
    assert len(memory._book("/p")["tools/t.py"]["keys"]) == seen.KEYS_MAX
    assert memory.older([file("83")]) is not None


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path))
    assert memory.remember([file("1")]) is None
    (path,) = (tmp_path / "seen").glob("*.json")
    stamp = path.stat().st_mtime_ns, path.stat().st_ino
    for each in (memory, Memory(str(tmp_path))):
        assert each.remember([file("1", LATER)]) is None
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == stamp


@pytest.mark.parametrize("name", ["/p/.ai/tools/\udcff.py", "/\udcff/.ai/t.py", "/no/marker.py", "top.py"])
def test_any_path_has_a_place(tmp_path: Path, name: str) -> None:
    memory = Memory(str(tmp_path))
    assert memory.remember([file("1", path=name)]) is None
    assert memory.remember([file("2", LATER, path=name)]) is None
    assert Memory(str(tmp_path)).older([file("1", path=name)]) is not None


def test_a_memory_that_others_may_read_or_that_is_no_file_is_told(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path))
    assert memory.remember([file("1")]) is None
    (path,) = (tmp_path / "seen").glob("*.json")
    path.chmod(0o644)
    with pytest.raises(StoreError, match="others may read it"):
        Memory(str(tmp_path)).older([file("1")])
