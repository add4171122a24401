"""A journal that cannot be written: the call is refused, nothing runs, nothing is lost, and when the cause is
gone everything goes on. With real full disks, read-only folders and damaged files, from the command line and
in a host that lives on."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import toolcrib
from tests.program import PROGRAM, WAIT_S, Said, environment
from tests.program import toolcrib as program
from toolcrib.config import Config
from toolcrib.errors import Kind
from toolcrib.journal import reading, sealing

NOT_AUDITED = 74
TRIES_MAX = 100
"""A file system gives room by the page, so some records still fit when it is full."""

_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_libc = ctypes.CDLL(None, use_errno=True)


class Place:
    """A project whose one tool leaves a line in a file each time it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.state = folder / "state"
        self.journal = self.state / "journal"
        self.ran = folder / "ran"
        tool = self.project / "tools" / "bin" / "mark"
        tool.parent.mkdir(parents=True)
        tool.write_text('#!/bin/sh\ncat >/dev/null\necho ran >>"$1"\necho {}\n', encoding="utf-8")
        tool.chmod(0o755)
        self.ran.touch()
        self.ran.chmod(0o666)
        declared = {
            "name": "mark",
            "description": "Leave a mark.",
            "command": ["./tools/bin/mark", str(self.ran)],
        }
        (self.project / "tools.json").write_text(json.dumps({"tools": [declared]}), encoding="utf-8")

    def call(self) -> Said:
        return program("--from", self.project, "--state", self.state, "call", "mark", cwd=self.folder)

    def open(self) -> toolcrib.Crib:
        return toolcrib.open(str(self.project), config=Config(state=str(self.state)))

    @property
    def runs(self) -> int:
        return len(self.ran.read_text(encoding="ascii").splitlines())

    def segment(self) -> Path:
        (found,) = self.journal.glob("*.open")
        return found

    def assert_refused(self) -> Said:
        before = self.runs
        said = self.call()
        assert said.status == NOT_AUDITED, said
        assert "not_audited" in said.err, said
        assert self.runs == before, "it ran though it could not be recorded"
        return said

    def assert_works(self) -> None:
        before = self.runs
        said = self.call()
        assert said.status == 0, said
        assert self.runs == before + 1

    def assert_whole(self, unended: int = 0, refused: int = 0) -> None:
        """Every run has one begin and one end, and the chain holds.

        ``unended``: so many hosts told that they could not write the end before they were over. ``refused``:
        so many calls are on record, and nothing of them ran.
        """
        journal = str(self.journal)
        key = sealing.public_key(str(self.state))
        verdict = reading.verify(journal, key, sealing.checker(key or b""))
        assert verdict.flaws == ()
        begun: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        for entry in reading.entries(journal):
            if entry.what == "begin":
                begun[entry.call] += 1
            elif entry.what == "end":
                ended[entry.call] += 1
        assert set(begun.values()) | set(ended.values()) == {1}
        assert ended.keys() <= begun.keys()
        assert len(begun) - len(ended) == unended == len(reading.interrupted(journal))
        assert len(begun) == self.runs + refused


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- no room ------------------------------------------------------------------------------------------------


@contextmanager
def mounted(source: str, target: Path, kind: str, flags: int, options: str = "") -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount; run the tests as root to see this one")
    arguments = (source.encode(), bytes(target), kind.encode(), flags, options.encode() or None)
    if _libc.mount(*arguments) != 0:
        pytest.skip(f"this machine refuses the mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        assert _libc.umount2(bytes(target), 2) == 0


@contextmanager
def small_disk(place: Place) -> Iterator[Callable[[], Path]]:
    """The state on a disk of its own; what is handed over fills it up and returns the filler."""
    place.state.mkdir(mode=0o700)
    with mounted("tmpfs", place.state, "tmpfs", 0, "size=2m,mode=700"):

        def fill() -> Path:
            filler = place.state / "filler"
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    return filler

        yield fill


def test_a_full_disk_refuses_calls_until_there_is_room_again(place: Place) -> None:
    with small_disk(place) as fill:
        place.assert_works()
        filler = fill()
        unended = 0
        for _ in range(TRIES_MAX):
            before = place.runs
            said = place.call()
            if said.status:
                break
            unended += "could not be written to the audit journal" in said.err
        assert said.status == NOT_AUDITED, said
        assert place.runs == before
        filler.unlink()
        place.assert_works()
        place.assert_whole(unended, refused="cannot be noted" in said.err)


def test_a_host_that_lives_on_refuses_while_its_disk_is_full_and_then_goes_on(place: Place) -> None:
    with small_disk(place) as fill, place.open() as crib:
        assert crib.call("mark").ok
        filler = fill()
        results = []
        for _ in range(TRIES_MAX):
            results.append(crib.call("mark"))
            if not results[-1].ok:
                break
        error = results[-1].error
        assert error is not None
        assert error.kind is Kind.NOT_AUDITED
        assert place.runs == len(results)  # one before the disk was full, and all but the last of these
        filler.unlink()
        assert crib.call("mark").ok
        crib.close()
        place.assert_whole()


def test_a_limit_on_the_length_of_files_refuses_like_a_full_disk(place: Place) -> None:
    """For everybody: no mount is needed. The limit is the host's own and comes from outside."""
    place.assert_works()
    limit = place.segment().stat().st_size + 100
    before = place.runs
    ended = subprocess.run(
        [PROGRAM, "--from", place.project, "--state", place.state, "call", "mark"],
        cwd=place.folder,
        # Python itself would leave compiled files cut short at the limit, for everybody who comes later.
        env={**environment(place.folder / ".home"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == NOT_AUDITED, ended
    assert place.runs == before
    place.assert_works()
    place.assert_whole()


# -- no permission ------------------------------------------------------------------------------------------


def test_a_journal_on_a_read_only_mount_refuses_calls(place: Place) -> None:
    place.assert_works()
    with mounted(str(place.journal), place.journal, "", _MS_BIND):
        again = (b"", bytes(place.journal), b"", _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None)
        assert _libc.mount(*again) == 0
        place.assert_refused()
    place.assert_works()
    place.assert_whole()


@pytest.mark.skipif(os.geteuid() == 0, reason="root ignores modes; run the tests as an ordinary user")
@pytest.mark.parametrize("what", ["folder", "segment"])
def test_a_journal_that_may_not_be_written_refuses_calls(place: Place, what: str) -> None:
    place.assert_works()
    path = place.journal if what == "folder" else place.segment()
    mode = path.stat().st_mode
    if what == "folder":  # the segment is gone too, so that a new one has to be made in it
        place.segment().rename(place.folder / "aside.open")
    path.chmod(0o500 if what == "folder" else 0o400)
    try:
        place.assert_refused()
    finally:
        path.chmod(mode)
    place.assert_works()


# -- damage -------------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    """One byte in the middle, as a bad disk or a bad person leaves it."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_journal_refuses_calls_until_its_segment_is_put_aside(place: Place) -> None:
    place.assert_works()
    place.assert_works()
    segment = place.segment()
    damage(segment)
    place.assert_refused()
    verified = program("--state", place.state, "audit", "verify", cwd=place.folder)
    assert verified.status != 0
    assert segment.name.removesuffix(".open") in verified.out + verified.err
    # What the hint says: look at it, then move it out of the journal's folder. Nothing of it is thrown away.
    segment.rename(place.folder / segment.name)
    place.assert_works()
    verdict = program("--state", place.state, "audit", "verify", cwd=place.folder)
    assert verdict.status == 0, verdict


def _to_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def _to_fifo(path: Path, _elsewhere: Path) -> None:
    os.mkfifo(path, 0o600)


def _to_folder(path: Path, _elsewhere: Path) -> None:
    path.mkdir(mode=0o700)


def _to_file(path: Path, _elsewhere: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("replaced", [_to_link, _to_fifo, _to_folder])
def test_a_segment_that_is_no_file_refuses_calls(
    place: Place, replaced: Callable[[Path, Path], None]
) -> None:
    """Attack: something else in the segment's place, so that records go where nobody looks, or nowhere."""
    place.assert_works()
    segment, aside = place.segment(), place.folder / "aside.open"
    segment.rename(aside)
    content = aside.read_bytes()
    replaced(segment, aside)
    place.assert_refused()
    assert aside.read_bytes() == content
    shutil.rmtree(segment) if segment.is_dir() and not segment.is_symlink() else segment.unlink()
    aside.rename(segment)
    place.assert_works()
    place.assert_whole()


@pytest.mark.parametrize("replaced", [_to_link, _to_fifo, _to_file])
def test_a_journal_folder_that_is_none_refuses_calls(
    place: Place, replaced: Callable[[Path, Path], None]
) -> None:
    """Attack: a link in place of the journal, so that records go where nobody looks."""
    place.assert_works()
    aside = place.folder / "aside"
    place.journal.rename(aside)
    names = sorted(os.listdir(aside))
    replaced(place.journal, aside)
    place.assert_refused()
    assert sorted(os.listdir(aside)) == names
    place.journal.unlink()
    aside.rename(place.journal)
    place.assert_works()
    place.assert_whole()


def test_half_a_record_is_put_aside_and_the_call_goes_on(place: Place) -> None:
    """What a crash leaves is no damage: it is cut off, kept, and told in the next record."""
    place.assert_works()
    segment = place.segment()
    content = segment.read_bytes()
    segment.write_bytes(content + content[:40])
    place.assert_works()
    assert len(reading.torn_files(str(place.journal))) == 1
    told = [entry for entry in reading.entries(str(place.journal)) if entry.body.get("torn_file")]
    assert len(told) == 1
    place.assert_whole()


def test_a_host_killed_in_the_middle_of_a_call_leaves_it_interrupted(place: Place) -> None:
    tool = place.project / "tools" / "bin" / "mark"
    working = tool.read_text(encoding="utf-8")
    told = place.folder / "told"
    os.mkfifo(told)
    told.chmod(0o666)
    tool.write_text(f"#!/bin/sh\necho started >'{told}'\nexec sleep 60\n", encoding="utf-8")
    inlet = os.open(told, os.O_RDONLY | os.O_NONBLOCK)
    host = subprocess.Popen(
        [PROGRAM, "--from", place.project, "--state", place.state, "call", "mark"],
        cwd=place.folder,
        env=environment(place.folder / ".home"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert select.select([inlet], [], [], WAIT_S)[0], "the tool did not start"
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
        os.close(inlet)
    lost = reading.interrupted(str(place.journal))
    assert [entry.what for entry in lost] == ["begin"]
    tool.write_text(working, encoding="utf-8")
    place.assert_works()
    assert [entry.call for entry in reading.interrupted(str(place.journal))] == [lost[0].call]
