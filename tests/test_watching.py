"""Changed files are read again by themselves, broken ones replace nothing, and storms starve nobody."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event

import pytest

import toolcrib
from tests.program import PATH, WAIT_S
from tests.program import toolcrib as toolcrib_
from toolcrib.app import Crib
from toolcrib.catalog.loading import Differences
from toolcrib.config import Config, Environment, resolve
from toolcrib.watching import SAFETY_S, Watch


def surroundings(folder: Path) -> Environment:
    return Environment.read({"HOME": str(folder / "home"), "PATH": PATH})


def declare(folder: Path, *names: str, description: str = "Does it.") -> Path:
    tools = [
        {"name": name, "description": description, "schema": {"type": "object"}, "command": ["/bin/cat"]}
        for name in names
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tools.json"
    replaced(path, json.dumps({"tools": tools}))
    return path


def replaced(path: Path, text: str) -> None:
    """As editors save: written beside it, and put in its place."""
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


class Told:
    """What a watch told, in order."""

    def __init__(self) -> None:
        self.reloaded: Queue[Differences] = Queue()
        self.failed: Queue[str] = Queue()
        self.restart: Queue[str] = Queue()


@contextmanager
def watched(crib: Crib, poll_s: float | None = None, kind: type[Watch] = Watch) -> Iterator[Told]:
    told = Told()
    watch = kind(
        crib,
        reloaded=told.reloaded.put,
        failed=told.failed.put,
        needs_restart=told.restart.put,
        poll_s=poll_s,
    )
    watch.start()
    assert watch.wait_armed(WAIT_S)
    try:
        yield told
    finally:
        watch.stop()


@contextmanager
def opened(folder: Path) -> Iterator[Crib]:
    with toolcrib.open(folder / "here", environment=surroundings(folder)) as crib:
        yield crib


@pytest.mark.parametrize("poll_s", [None, 0.05], ids=["told", "polling"])
def test_a_changed_file_is_read_again_and_what_changed_is_told_by_key(
    tmp_path: Path, poll_s: float | None
) -> None:
    declare(tmp_path / "here", "one", "two")
    with opened(tmp_path) as crib, watched(crib, poll_s) as told:
        before = crib.catalog
        declare(tmp_path / "here", "two", "three")
        found = told.reloaded.get(timeout=WAIT_S)
        assert found == Differences(added=("manifest:here/three",), removed=("manifest:here/one",))
        assert [tool.name for tool in crib.tools] == ["two", "three"]
        assert [tool.name for tool in before.tools] == ["one", "two"], "what was taken before stays valid"
        declare(tmp_path / "here", "two", "three", description="Does something else.")
        found = told.reloaded.get(timeout=WAIT_S)
        assert set(found.changed) == {"manifest:here/two", "manifest:here/three"}
        assert not found.added
        assert not found.removed
        assert told.failed.empty()


def test_a_broken_file_keeps_the_last_good_catalog_and_is_told_once_until_it_is_mended(
    tmp_path: Path,
) -> None:
    path = declare(tmp_path / "here", "one")
    with opened(tmp_path) as crib, watched(crib) as told:
        version = crib.version
        replaced(path, '{"tools": [{"name": "one", ')
        reason = told.failed.get(timeout=WAIT_S)
        assert str(path) in reason
        assert [tool.name for tool in crib.tools] == ["one"]
        assert crib.version == version
        declare(tmp_path / "here", "one", "two")
        assert told.reloaded.get(timeout=WAIT_S).added == ("manifest:here/two",)
        assert told.failed.empty()
        assert [tool.name for tool in crib.tools] == ["one", "two"]


def test_a_broken_file_does_not_take_other_files_away(tmp_path: Path) -> None:
    declare(tmp_path / "here" / "a", "one")
    declare(tmp_path / "here" / "b", "two")
    with opened(tmp_path) as crib, watched(crib) as told:
        replaced(tmp_path / "here" / "b" / "tools.json", "{")
        told.failed.get(timeout=WAIT_S)
        assert sorted(tool.name for tool in crib.tools) == ["one", "two"]
        assert crib.find("one").name == "one"


def test_new_folders_and_removed_ones_are_noticed(tmp_path: Path) -> None:
    declare(tmp_path / "here" / "a", "one")
    with opened(tmp_path) as crib, watched(crib) as told:
        (tmp_path / "there").mkdir()
        declare(tmp_path / "there", "two")
        (tmp_path / "there").rename(tmp_path / "here" / "b")
        assert told.reloaded.get(timeout=WAIT_S).added == ("manifest:b/two",)
        declare(tmp_path / "here" / "b", "two", "three")
        assert told.reloaded.get(timeout=WAIT_S).added == ("manifest:b/three",)
        shutil.rmtree(tmp_path / "here" / "a")
        assert told.reloaded.get(timeout=WAIT_S).removed == ("manifest:a/one",)


def test_a_source_that_is_replaced_whole_is_still_watched(tmp_path: Path) -> None:
    declare(tmp_path / "here", "one")
    declare(tmp_path / "there", "two")
    with opened(tmp_path) as crib, watched(crib) as told:
        (tmp_path / "here").rename(tmp_path / "gone")
        (tmp_path / "there").rename(tmp_path / "here")
        names = set()
        while "manifest:here/two" not in names:
            names |= {*told.reloaded.get(timeout=WAIT_S).added}
        declare(tmp_path / "here", "two", "three")
        while "manifest:here/three" not in names:  # told by the kernel, not found when all is compared
            names |= {*told.reloaded.get(timeout=SAFETY_S / 2).added}
        assert {tool.name for tool in crib.tools} == {"two", "three"}


def test_a_folder_that_went_away_and_came_back_is_watched_again(tmp_path: Path) -> None:
    """The kernel watches a folder, not its name: without a new look, changes would be seen by chance."""
    declare(tmp_path / "here", "one")
    declare(tmp_path / "there", "two")
    with opened(tmp_path) as crib, watched(crib) as told:
        (tmp_path / "here").rename(tmp_path / "gone")
        assert "no such file" in told.failed.get(timeout=WAIT_S)
        assert [tool.name for tool in crib.tools] == ["one"]
        (tmp_path / "there").rename(tmp_path / "here")
        assert told.reloaded.get(timeout=SAFETY_S / 2).added == ("manifest:here/two",)
        for name in ("three", "four"):
            declare(tmp_path / "here", name)
            assert told.reloaded.get(timeout=SAFETY_S / 2).added == (f"manifest:here/{name}",)


def test_a_folder_that_is_removed_and_made_again_in_steps_is_told_at_each_step(tmp_path: Path) -> None:
    path = declare(tmp_path / "here", "one")
    with opened(tmp_path) as crib, watched(crib) as told:
        path.unlink()
        assert told.reloaded.get(timeout=SAFETY_S / 2) == Differences(removed=("manifest:here/one",))
        path.parent.rmdir()
        assert "no such file" in told.failed.get(timeout=SAFETY_S / 2)
        path.parent.mkdir()
        assert told.reloaded.get(timeout=SAFETY_S / 2) == Differences()
        declare(tmp_path / "here", "two")
        assert told.reloaded.get(timeout=SAFETY_S / 2) == Differences(added=("manifest:here/two",))
        assert [tool.name for tool in crib.tools] == ["two"]


def test_a_folder_that_comes_back_before_it_would_be_told_of_is_watched_again(tmp_path: Path) -> None:
    """It was not there when it was looked for, and nobody was watching yet when it came."""
    declare(tmp_path / "here", "one")
    is_gone = Event()

    class Late(Watch):
        def _there(self, folders: frozenset[str]) -> list[str]:
            found = super()._there(folders)
            if is_gone.is_set() and str(tmp_path / "here") not in found:
                is_gone.clear()
                declare(tmp_path / "beside", "two")
                (tmp_path / "beside").rename(tmp_path / "here")
            return found

    with opened(tmp_path) as crib, watched(crib, kind=Late) as told:
        is_gone.set()
        (tmp_path / "here").rename(tmp_path / "gone")
        assert "no such file" in told.failed.get(timeout=WAIT_S)
        assert told.reloaded.get(timeout=WAIT_S).added == ("manifest:here/two",)
        declare(tmp_path / "here", "three")
        assert told.reloaded.get(timeout=SAFETY_S / 2).added == ("manifest:here/three",)


def test_files_that_change_without_end_are_read_far_less_often_than_they_change(tmp_path: Path) -> None:
    """Attack: a storm of changes that starves the calls."""
    declare(tmp_path / "here", "one")
    with opened(tmp_path) as crib, watched(crib) as told:
        count = 300
        for number in range(count):
            declare(tmp_path / "here", "one", f"n{number}")
        last = f"manifest:here/n{count - 1}"
        reloads, seen = 0, False
        while not seen:
            seen = last in told.reloaded.get(timeout=WAIT_S).added
            reloads += 1
        assert reloads < count / 2


def test_other_files_in_the_folder_replace_nothing(tmp_path: Path) -> None:
    declare(tmp_path / "here", "one")
    with opened(tmp_path) as crib, watched(crib) as told:
        (tmp_path / "here" / "notes.log").write_text("x", encoding="utf-8")
        declare(tmp_path / "here", "one", "two")
        assert told.reloaded.get(timeout=WAIT_S).added == ("manifest:here/two",)
        assert told.reloaded.empty()
        assert told.failed.empty()


def test_a_changed_configuration_is_named_and_not_read(tmp_path: Path) -> None:
    declare(tmp_path / "here", "one")
    file = tmp_path / "toolcrib.toml"
    file.write_text('[[source]]\npath = "here"\n', encoding="utf-8")
    environment = surroundings(tmp_path)
    config = resolve(environment, cwd=str(tmp_path), file=str(file))
    with toolcrib.open(config, environment=environment) as crib, watched(crib) as told:
        replaced(file, '[[source]]\npath = "elsewhere"\n')
        assert told.restart.get(timeout=WAIT_S) == str(file)
        assert [tool.name for tool in crib.tools] == ["one"]


def test_a_swap_that_somebody_else_causes_is_told_too(tmp_path: Path) -> None:
    declare(tmp_path / "here", "one")
    with opened(tmp_path) as crib:
        told = Told()
        Watch(crib, reloaded=told.reloaded.put, failed=told.failed.put)  # not started
        declare(tmp_path / "here", "one", "two")
        crib.reload()
        assert told.reloaded.get(timeout=WAIT_S).added == ("manifest:here/two",)


def test_a_sound_reload_gives_back_only_errors_that_are_new(tmp_path: Path) -> None:
    declare(tmp_path / "here" / "a", "one")
    declare(tmp_path / "here" / "b", "two")
    replaced(tmp_path / "here" / "b" / "tools.json", "{")
    with opened(tmp_path) as crib:
        assert [tool.name for tool in crib.tools] == ["one"]
        declare(tmp_path / "here" / "a", "one", "three")
        assert crib.reload(sound=True) == ()
        assert [tool.name for tool in crib.tools] == ["one", "three"]
        replaced(tmp_path / "here" / "a" / "tools.json", "[")
        (problem,) = crib.reload(sound=True)
        assert problem.path == str(tmp_path / "here" / "a" / "tools.json")
        assert [tool.name for tool in crib.tools] == ["one", "three"]
        crib.reload()
        assert len(crib.tools) == 0


def test_functions_alone_leave_nothing_to_watch(tmp_path: Path) -> None:
    config = Config(state=str(tmp_path / "state"))
    with toolcrib.open(config, environment=surroundings(tmp_path), tools=[len_of]) as crib:
        with watched(crib) as told:
            assert [tool.name for tool in crib.tools] == ["len_of"]
        assert told.failed.empty()


@toolcrib.tool
def len_of(text: str) -> int:
    """How long a text is."""
    return len(text)


WATCHING = """
import sys, toolcrib
from toolcrib.watching import Watch
def ignore(_): pass
with toolcrib.open("here") as crib:
    watch = Watch(crib, reloaded=ignore, failed=ignore, needs_restart=ignore)
    watch.start()
    assert watch.wait_armed(60)
    assert crib.lock_problems() == ()
    assert crib.call("here", {}).ok
    watch.stop()
    print("toolcrib.trust.pinning" in sys.modules)
"""


@pytest.mark.parametrize("locked", [False, True], ids=["without a lock", "with one"])
def test_what_watches_for_a_lock_reads_none_where_there_is_none(tmp_path: Path, locked: bool) -> None:
    """Each call is decided with a lock that was read, though it be empty."""
    declare(tmp_path / "here", "here")
    if locked:
        done = toolcrib_("--from", "here", "lock", cwd=tmp_path)
        assert done.status == 0, done.err
    program = (sys.executable, "-c", WATCHING)
    done = toolcrib_(cwd=tmp_path, program=program)
    assert (done.status, done.out) == (0, f"{locked}\n"), done.err
