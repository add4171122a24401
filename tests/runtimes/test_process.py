"""Programs: what is looked up, what is refused before a start, and what a start is made of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from tests.moments import turn
from tests.strategies import make_tool
from toolcrib.bound import BoundTool
from toolcrib.catalog import digests, files
from toolcrib.model import (
    AsArgv,
    End,
    Ending,
    JsonOnStdin,
    Level,
    Limits,
    Needs,
    Permit,
    Positional,
    Resolver,
    Run,
    RunProcess,
    Tool,
    ToolCall,
)
from toolcrib.runtimes import Host, find_program
from toolcrib.runtimes.process import RESOLVER_TIMEOUT_S_MAX, ProcessTools
from toolcrib.sandbox import Cancel, Start


class Recording:
    """A level that starts nothing, and remembers what it was asked to start."""

    level = Level.SUPERVISED

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.prints = b""

    def run(self, start: Start, cancel: Cancel) -> Ending:
        self.starts.append(start)
        run = Run(argv=start.argv, cwd=start.cwd, what=start.what)
        return Ending(end=End.EXITED, exit_status=0, stdout=self.prints, runs=(run,))

    def open(self, start: Start) -> Ending:
        return Ending(end=End.UNAVAILABLE)

    def close(self) -> None:
        pass


class Bench:
    def __init__(self, folder: Path, contents: digests.Contents | None = None) -> None:
        self.folder = folder
        self.level = Recording()
        self.contents = contents or digests.Contents()
        variables = {"PATH": f"{folder}/bin:/usr/bin:/bin", "SECRET": "hunter2"}
        host = Host(
            sandbox=self.level, variables=variables, cwd=str(folder), python="/usr/bin/python3",
            allow_scripts=True,
        )  # fmt: skip
        self.tools = ProcessTools(host, self.contents)

    def file(self, name: str, text: str = "#!/bin/sh\n", mode: int = 0o755) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return str(path)

    def run(self, run: RunProcess, cancel: Cancel | None = None, **more: Any) -> Ending:
        tool = replace(make_tool("t"), invocation=run, needs=Needs(base_env=("PATH",)))
        call = ToolCall(id="c", tool="t", arguments=more.pop("arguments", {}), **more)
        return self.tools.run(
            BoundTool(tool), call, Permit(limits=Limits(timeout_s=30.0)), cancel or Cancel()
        )

    def digest(self, run: RunProcess) -> str | None:
        tool: Tool = replace(make_tool("t"), invocation=run)
        return self.contents.runs(digests.how(run), digests.own_files(tool))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def program(path: str, **more: Any) -> RunProcess:
    return RunProcess(program=path, encoding=JsonOnStdin(verbatim=False), **more)


def test_programs_are_looked_for_in_absolute_folders_only(tmp_path: Path) -> None:
    """Attack: a PATH with ``.`` or nothing between colons, in a folder that holds a fake git."""
    here = os.getcwd()
    bench = Bench(tmp_path)
    bench.file("git")
    bench.file("real/git")
    bench.file("plain/git", mode=0o644)
    os.chdir(tmp_path)
    try:
        for path in (".", "", "bin::", "./", "..", f".:{tmp_path}/plain:{tmp_path}/real"):
            found = find_program("git", path)
            assert found == (f"{tmp_path}/real/git" if "real" in path else None)
    finally:
        os.chdir(here)
    assert find_program("./git", str(tmp_path)) is None
    assert find_program("/no/such/git", "") == "/no/such/git"  # the start itself tells


def test_a_start_has_the_checked_bytes_and_no_variable_that_was_not_asked_for(bench: Bench) -> None:
    run = program(bench.file("bin/t", "#!/bin/sh\necho 1\n"))
    assert bench.run(run, arguments={"a": 1}, runs_digest=bench.digest(run)).end is End.EXITED
    (start,) = bench.level.starts
    assert start.sealed == ((run.program, b"#!/bin/sh\necho 1\n"),)
    assert start.own == (run.program,)
    assert start.stdin == b'{"a":1}'
    assert set(start.env) == {"PATH", "TMPDIR"}, "TMPDIR names its scratch folder"


def test_a_file_that_changed_since_it_was_recorded_is_not_started(bench: Bench) -> None:
    """Attack: a file that is replaced between the check and the start."""
    run = program(bench.file("bin/t", "one"))
    recorded = bench.digest(run)
    bench.file("bin/fresh", "two")
    os.replace(bench.folder / "bin" / "fresh", run.program)
    ending = bench.run(run, runs_digest=recorded)
    assert (ending.end, bench.level.starts) == (End.DENIED, [])
    assert "changed between being checked and being started" in ending.reason


def test_a_program_that_leads_out_of_its_folder_is_denied(bench: Bench) -> None:
    """Attack: a program below the manifest that is a link to one elsewhere on the machine."""
    (bench.folder / "p").mkdir()
    (bench.folder / "p" / "t").symlink_to("/bin/true")
    ending = bench.run(program(f"{bench.folder}/p/t", beneath=f"{bench.folder}/p"))
    assert (ending.end, bench.level.starts) == (End.DENIED, [])
    inside = bench.file("p/inside")
    assert bench.run(program(inside, beneath=f"{bench.folder}/p")).end is End.EXITED


class Turned(digests.Contents):
    """Somebody turns a link while it is read, and back for everybody else."""

    def __init__(self, link: Path, read: Path, seen: Path) -> None:
        super().__init__()
        self._link, self._read_as, self._seen_as = link, read, seen

    def file(self, path: str) -> digests.Held | None:
        if path != str(self._link):
            return super().file(path)
        turn(self._link, self._read_as)
        held = super().file(path)
        turn(self._link, self._seen_as)
        return held


def test_attack_a_program_that_leads_out_of_its_folder_only_while_it_is_read(tmp_path: Path) -> None:
    link = tmp_path / "p" / "t"
    inside = Bench(tmp_path).file("p/inside")
    outside = Bench(tmp_path).file("outside", "#!/bin/sh\n# evil\n")
    bench = Bench(tmp_path, Turned(link, Path(outside), Path(inside)))
    ending = bench.run(program(str(link), beneath=f"{tmp_path}/p"))
    assert (ending.end, bench.level.starts) == (End.DENIED, [])


def test_attack_a_program_that_leads_out_again_once_its_place_was_looked_at(tmp_path: Path) -> None:
    link = tmp_path / "p" / "t"
    inside = Bench(tmp_path).file("p/inside")
    outside = Bench(tmp_path).file("outside", "#!/bin/sh\n# evil\n")
    bench = Bench(tmp_path, Turned(link, Path(outside), Path(inside)))

    def looked(frame: FrameType, event: str, _given: Any) -> Any:
        if frame.f_code is files.inside.__code__:
            if event == "return":
                turn(link, Path(outside))
            return looked
        return None

    sys.settrace(looked)
    try:
        ending = bench.run(program(str(link), beneath=f"{tmp_path}/p"))
    finally:
        sys.settrace(None)
    assert (ending.end, bench.level.starts) == (End.DENIED, [])


def test_a_file_without_the_executable_bit_is_not_started_from_memory(bench: Bench) -> None:
    ending = bench.run(program(bench.file("bin/t", mode=0o644)))
    assert (ending.end, ending.reason, bench.level.starts) == (End.NOT_STARTED, "Permission denied", [])


def test_a_program_that_is_nowhere_on_path_is_told_as_the_system_tells_it(bench: Bench) -> None:
    ending = bench.run(program("no-such-program"))
    assert (ending.end, ending.reason) == (End.NOT_STARTED, "No such file or directory")
    assert [run.argv for run in ending.runs] == [("no-such-program",)]


# -- resolvers ----------------------------------------------------------------------------------------------


def resolving(bench: Bench, count: int = 1) -> RunProcess:
    mapped = tuple(
        Positional(param=f"p{number}", resolver=Resolver(script="r", args=("$param",)))
        for number in range(count)
    )
    return RunProcess(program="git", encoding=AsArgv(args=mapped), skill_dir=str(bench.folder / "skill"))


def test_a_resolver_runs_its_checked_bytes_and_the_call_does_not_carry_them(bench: Bench) -> None:
    path = bench.file("skill/scripts/r.sh", "echo 1\n")
    bench.level.prints = b" new \n"
    run = resolving(bench)
    assert bench.run(run, arguments={"p0": "old"}, runs_digest=bench.digest(run)).end is End.EXITED
    first, last = bench.level.starts
    assert (first.what, first.argv, first.sealed) == ("resolver", ("sh", path, "old"), ((path, b"echo 1\n"),))
    assert (last.what, last.argv, last.sealed) == ("call", ("git", "new"), ())
    assert first.permit.limits.timeout_s <= RESOLVER_TIMEOUT_S_MAX
    assert last.permit.limits.timeout_s < 30.0  # what the resolver took is gone from it


def test_no_resolver_runs_once_the_files_changed(bench: Bench) -> None:
    """Attack: a resolver's script that is replaced after its digest was recorded."""
    bench.file("skill/scripts/r.sh", "echo 1\n")
    run = resolving(bench)
    recorded = bench.digest(run)
    bench.file("skill/scripts/r", "echo 2\n")  # it would be found first
    ending = bench.run(run, arguments={"p0": "old"}, runs_digest=recorded)
    assert (ending.end, bench.level.starts) == (End.DENIED, [])


def test_attack_a_resolver_that_leads_out_of_its_folder_only_while_it_is_read(tmp_path: Path) -> None:
    link = tmp_path / "skill" / "scripts" / "r"
    good = Bench(tmp_path).file("skill/scripts/good", "echo 1\n")
    evil = Bench(tmp_path).file("evil", "echo evil\n")
    turn(link, Path(good))
    bench = Bench(tmp_path, Turned(link, Path(evil), Path(good)))
    ending = bench.run(resolving(bench), arguments={"p0": "old"})
    assert [start.what for start in bench.level.starts] == ["call"]
    assert ending.runs[0].note == "leads out of the scripts folder; the value is kept"


def test_a_call_that_was_cancelled_resolves_nothing_more(bench: Bench) -> None:
    bench.file("skill/scripts/r", "echo 1\n")
    stopped = Cancel()
    stopped.set()
    ending = bench.run(resolving(bench, 3), stopped, arguments={f"p{number}": "x" for number in range(3)})
    assert (ending.end, bench.level.starts) == (End.CANCELLED, [])
