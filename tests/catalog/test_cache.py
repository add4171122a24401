"""The warm cache: the same answer without reading, and never anybody else's answer.

What is claimed: a cache that is damaged, cut short, foreign, writable by others, made by other code or for
other rules is not used, and the load gives what the files say. What is not claimed: whoever may write as the
user can write a cache with the right digests.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolcrib
from tests.strategies import argument_schemas, json_values, texts
from toolcrib.catalog import cache, loading
from toolcrib.catalog.cache import Cache, decode, encode, shelved
from toolcrib.catalog.catalog import Catalog
from toolcrib.catalog.loading import LoadReport
from toolcrib.catalog.sources import Source
from toolcrib.errors import UnknownTool
from toolcrib.formats import executable
from toolcrib.model import (
    Always,
    AsArgv,
    CallFunction,
    CallHttp,
    CallJavaScript,
    CallMcp,
    CallPython,
    Credential,
    Effect,
    Fix,
    FixPart,
    Flag,
    Intake,
    JsonOnStdin,
    Needs,
    NotCallable,
    Notes,
    OnContext,
    OnDemand,
    OnKeywords,
    Origin,
    Place,
    Placed,
    Positional,
    ProbeOutcome,
    Problem,
    PythonStyle,
    Reply,
    Resolver,
    Retry,
    Role,
    Rules,
    RunContainer,
    RunProcess,
    Schema,
    SchemaForm,
    Severity,
    Switch,
    Tool,
)

# -- values -------------------------------------------------------------------------------------------------

some = st.lists(texts, max_size=3).map(tuple)
maybe = st.none() | texts
settings = st.dictionaries(texts, json_values, max_size=2).map(lambda value: json.dumps(value).encode())
pointers = st.none() | st.lists(texts | st.integers(0, 99), max_size=3).map(tuple)
durations = st.none() | st.floats(0, 1e9)
resolvers = st.none() | st.builds(Resolver, args=some, script=maybe, binary=maybe, subcommand=maybe)
mappings = (
    st.builds(Positional, param=texts, allow_leading_dash=st.booleans(), resolver=resolvers)
    | st.builds(Flag, param=texts, flag=texts, normalize_newlines=st.booleans(), resolver=resolvers)
    | st.builds(Switch, param=texts, if_true=maybe, if_false=maybe)
)
encodings = st.builds(JsonOnStdin, verbatim=st.booleans()) | st.builds(
    AsArgv, args=st.lists(mappings, max_size=3).map(tuple)
)
invocations = st.one_of(
    st.builds(
        RunProcess,
        program=texts,
        fixed=some,
        encoding=encodings,
        allowlist=st.none() | st.lists(st.tuples(texts, some), max_size=2).map(tuple),
        skill_dir=maybe,
        env=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    ),
    st.builds(CallPython, style=st.sampled_from(PythonStyle), file=maybe, executor=maybe, settings=settings),
    st.builds(CallJavaScript, file=texts, settings=settings),
    st.builds(
        CallHttp,
        url=texts,
        settings=settings,
        placed=st.none()
        | st.lists(
            st.builds(Placed, argument=texts, place=st.sampled_from(Place), name=texts), max_size=2
        ).map(tuple),
        credentials=st.lists(
            st.builds(Credential, secret=texts, place=st.sampled_from(Place), name=texts), max_size=2
        ).map(tuple),
    ),
    st.builds(CallFunction, name=texts),
    st.builds(CallMcp, server=texts, tool=texts, settings=settings),
    st.builds(RunContainer, image=texts, command=some, entrypoint=maybe, env_names=some),
    st.builds(NotCallable, reason=texts),
)
selections = st.none() | st.one_of(
    st.builds(Always, keywords=some),
    st.builds(OnKeywords, keywords=some),
    st.builds(OnContext, check=maybe),
    st.builds(OnDemand),
)
schema_values = st.none() | argument_schemas().map(Schema.of)
odd_json = json_values | st.integers(-(2**90), 2**90) | st.lists(st.integers(-(2**90), 2**90), max_size=2)
whole_tools = st.builds(
    Tool,
    key=texts,
    name=texts,
    scope=texts,
    origin=st.builds(
        Origin, format=texts, path=texts, pointer=pointers, line=st.none() | st.integers(1, 10**6)
    ),
    invocation=invocations,
    description=texts,
    spoken=texts,
    aliases=some,
    role=st.sampled_from(Role),
    input_schema=schema_values,
    output_schema=schema_values,
    schema_form=st.sampled_from(SchemaForm),
    version=maybe,
    intake=st.builds(Intake, fill_defaults=st.booleans(), lenient_booleans=some, reserved_names=some),
    reply=st.sampled_from(Reply),
    needs=st.builds(
        Needs, stated=st.booleans(), capabilities=some, env=some, context=some, timeout_s=durations
    ),
    selection=selections,
    effect=st.sampled_from(Effect),
    retry=st.none()
    | st.builds(Retry, max_attempts=st.integers(1, 9), backoff=texts, multiplier=st.floats(1, 9)),
    chain=some,
    notes=st.builds(
        Notes,
        cost=odd_json,
        tags=some,
        documentation=odd_json,
        metadata=json_values,
        deprecated=st.booleans(),
    ),
)
problems = st.builds(
    Problem,
    code=texts,
    message=texts,
    path=texts,
    severity=st.sampled_from(Severity),
    pointer=pointers,
    line=st.none() | st.integers(1, 99),
    name=maybe,
    hint=maybe,
    fix=st.none() | st.builds(Fix, new=texts, part=st.none() | st.sampled_from(FixPart), old=maybe),
)


@given(whole_tools)
def test_a_tool_is_the_same_after_it_was_kept(tool: Tool) -> None:
    again = decode(Tool, encode(tool))
    assert again == tool
    assert repr(again) == repr(tool)  # 1, 1.0 and True are equal, and not the same
    for which in ("input_schema", "output_schema"):
        ours, theirs = getattr(tool, which), getattr(again, which)
        assert (ours and ours.text) == (theirs and theirs.text)


@given(st.lists(problems, max_size=3).map(tuple))
def test_problems_are_the_same_after_they_were_kept(found: tuple[Problem, ...]) -> None:
    assert repr(decode(tuple[Problem, ...], encode(found))) == repr(found)


# -- loads --------------------------------------------------------------------------------------------------

TOOL = {"name": "alpha", "description": "A", "command": ["./tools/bin/alpha"], "schema": {"type": "object"}}


class Bench:
    """A folder of declarations, a state folder, and a machine that counts what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.state = folder / "state" / "cache"
        self.folder.mkdir()
        self.asked: list[str] = []
        self.installed = {"git"}
        self.rules = Rules()
        self.answers = True
        self.outcome = ProbeOutcome(timed_out_s=1.0)
        self.now = 1_000_000.0

    def put(self, name: str, text: str | dict[str, Any]) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return path

    def rewrite(self, path: Path, text: str) -> None:
        """Change a file so that its clock shows it: two writes within one tick look the same to a stat."""
        before = path.stat().st_ctime_ns
        while True:
            path.write_text(text, encoding="utf-8")
            if path.stat().st_ctime_ns != before:
                return

    def program(self, name: str) -> Path:
        path = self.put(f"bin/{name}-tool", "#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def prober(self, paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
        self.asked += [os.path.basename(path) for path in paths]
        if not self.answers:
            return [(b"", self.outcome) for _ in paths]
        names = [os.path.basename(path).removesuffix("-tool") for path in paths]
        schema = {"type": "object", "properties": {}}
        printed = [{"name": name, "description": "D", "parameters": schema} for name in names]
        return [(json.dumps(one).encode(), ProbeOutcome(exit_status=0)) for one in printed]

    def load(self, *, keep: bool = True, earlier: LoadReport | None = None) -> LoadReport:
        sources = [Source(path=str(self.folder), named=True)]
        if (self.folder / "bin").is_dir():
            sources.append(Source(path=str(self.folder / "bin"), format="executable", probe=True))
        machine = loading.Machine(
            prober=self.prober,
            which=lambda name: f"/bin/{name}" if name in self.installed else None,
            clock=lambda: self.now,
        )
        kept = Cache(str(self.state)) if keep else None
        report = loading.load(sources, self.rules, machine, keep=kept, earlier=earlier)
        report.keep()
        return report

    def file(self) -> Path:
        (file,) = self.state.iterdir()
        return file


def everything(report: LoadReport) -> tuple[Any, ...]:
    """All that a load tells, by every way of asking."""
    catalog = report.catalog
    return (
        repr(list(catalog.tools)),
        repr(report.problems),
        repr(catalog.skills),
        report.notes,
        report.stamp,
        len(catalog.tools),
        catalog.counted,
        [tool.key for tool in catalog.offered()],
        [catalog.find(tool.key) == tool for tool in catalog.tools],
        [by_name(catalog, name) for tool in catalog.tools for name in (tool.name, *tool.aliases)],
    )


def by_name(catalog: Catalog, name: str) -> str:
    try:
        return catalog.find(name).key
    except UnknownTool as unknown:
        return f"{unknown.message} {unknown.hint}"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def simple(bench: Bench) -> Bench:
    """One manifest with a tool, a warning and an error; warm."""
    bench.put("m/tools.json", {"tools": [TOOL, {"name": "beta", "command": []}]})
    assert not bench.load().warm
    assert bench.load().warm
    return bench


RYE = """__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "hello"
__tool_description__ = "Says hello"
CONFIG_SCHEMA = {"type": "object", "properties": {}}


def execute(params, project_path):
    return {"success": True}
"""


def put_every_format(bench: Bench) -> None:
    bench.put(
        "m/tools.json", {"tools": [TOOL, {"name": "beta", "command": []}, {**TOOL, "schema": {"type": "x"}}]}
    )
    group = {"group": "g", "selection": {"strategy": "keyword", "keywords": ["time"]}}
    tool = {
        "name": "now",
        "description": "N",
        "category": "retrieval",
        "input_schema": {"type": "object", "properties": {}},
    }
    bench.put("g/g_tools.json", {**group, "tools": [{**tool, "metadata": {"cost_estimate": 10**30}}, tool]})
    bench.put("skills/notes/SKILL.md", "---\nname: n\nmetadata: {requires: {bins: [git]}}\n---\nText\n")
    bench.put("skills/gone/SKILL.md", "---\nmetadata: {requires: {bins: [missing]}}\n---\n")
    execution = [
        {"tool": "st", "binary": "git", "subcommand": "status", "args": [{"param": "p", "kind": "flag"}]}
    ]
    parameters = {"type": "object", "properties": {"p": {"type": "string"}}}
    bench.put(
        "skills/notes/tools.json",
        {
            "tools": [{"name": "st", "description": "S", "parameters": parameters}],
            "allowlist": {"git": ["status"]},
            "execution": execution,
        },
    )
    bench.put(".ai/tools/hello/say.py", RYE)
    bench.put(".ai/tools/hello/broken.yaml", "a: [")
    bench.put("x/package.json", {"name": "no declaration"})
    for name in ("one", "two", "three"):
        bench.program(name)


def test_a_warm_load_tells_what_a_cold_one_tells_for_every_format(bench: Bench) -> None:
    put_every_format(bench)
    cold = bench.load(keep=False)
    first, warm = bench.load(), bench.load()
    assert (cold.warm, first.warm, warm.warm) == (False, False, True)
    assert {tool.origin.format for tool in cold.catalog.tools} == {
        "manifest", "capability", "skill", "rye", "executable",
    }  # fmt: skip
    assert len(cold.problems) > 5
    assert cold.notes
    assert everything(cold) == everything(first) == everything(warm)


CHANGES: dict[str, Callable[[Bench], object]] = {
    "another tool": lambda bench: bench.put("n/tools.json", {"tools": [{**TOOL, "name": "new"}]}),
    "a tool of the same name": lambda bench: bench.put("n/tools.json", {"tools": [{**TOOL, "name": "now"}]}),
    "a tool of the same key": lambda bench: bench.put("x/m/tools.json", {"tools": [TOOL]}),
    "a group that was declared before": lambda bench: bench.put(
        "h/g_tools.json", (bench.folder / "g" / "g_tools.json").read_text(encoding="utf-8")
    ),
    "a tool that is gone": lambda bench: (bench.folder / "m" / "tools.json").unlink(),
    "an error": lambda bench: bench.put("n/tools.json", {"tools": [{"name": "bad", "command": []}]}),
    "a broken chain": lambda bench: bench.put(".ai/tools/rye/core/runtimes/python/function.yaml", "a: ["),
    "a program that is gone": lambda bench: bench.installed.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_taken_over_from_the_cache_tells_what_reading_it_again_tells(
    bench: Bench, change: str
) -> None:
    put_every_format(bench)
    bench.load()
    warm = bench.load()
    assert warm.warm
    CHANGES[change](bench)
    later = bench.load(earlier=warm)
    assert everything(later) == everything(bench.load(keep=False))
    assert {type(tool) for tool in later.catalog.tools} <= {Tool}
    assert later.severities == Counter(problem.severity for problem in later.without_lines)
    bench.put("m/tools.json", {"tools": [{**TOOL, "description": "Another."}]})
    last = bench.load(earlier=later)
    assert everything(last) == everything(bench.load(keep=False))
    warm_again = bench.load()  # from what was written of records that were never decoded
    assert warm_again.warm
    assert everything(warm_again) == everything(last)


def test_a_broken_file_that_is_taken_over_keeps_its_id(bench: Bench) -> None:
    """Attack: a file that waits behind a broken one of its id comes up as soon as anything else changes."""
    bench.put(".ai/tools/a/t.py", "def execute(:")
    one = {"tool_id": "t", "tool_type": "yaml", "version": "1.0.0", "description": "D", "category": "a"}
    command = {"executor_id": "rye/core/primitives/execute", "config": {"command": "ls"}}
    bench.put(".ai/tools/a/t.yaml", {**one, **command})
    bench.put("m/tools.json", {"tools": [TOOL]})
    before = bench.load()
    assert [tool.name for tool in before.catalog.tools if tool.name == "a/t"] == []
    bench.put("m/tools.json", {"tools": [{**TOOL, "description": "Another."}]})
    after = bench.load()
    assert not after.warm
    assert everything(after) == everything(bench.load(keep=False))
    assert [tool.name for tool in after.catalog.tools if tool.name == "a/t"] == []


def test_what_is_taken_over_is_not_decoded(bench: Bench) -> None:
    put_every_format(bench)
    bench.load()
    warm = bench.load()
    bench.put("n/tools.json", {"tools": [{**TOOL, "name": "new"}]})
    after = bench.load(earlier=warm)
    tools = [tool for unit in after.units for tool in unit.compiled.tools]
    taken = [found for tool in tools if (found := shelved(tool)) is not None]
    assert len(taken) == len(tools) - 1
    assert all(tool._whole is None for tool in taken)  # linking dropped what it decoded


@pytest.mark.parametrize("when", ["before", "after"])
def test_damage_is_noticed_around_a_load_that_takes_over_what_was_kept(bench: Bench, when: str) -> None:
    put_every_format(bench)
    bench.load()
    file = bench.file()
    good = file.read_bytes()
    more = {"tools": [{**TOOL, "name": "now"}]}
    for start in range(0, len(good), 293):
        warm = bench.load()
        assert warm.warm
        new = bench.put("n/tools.json", more)
        later = bench.load(keep=False, earlier=warm) if when == "after" else None
        with file.open("r+b") as opened:
            opened.seek(start)
            opened.write(b"\xff" * 293)
        later = later or bench.load(keep=False, earlier=warm)
        assert everything(later) == everything(bench.load(keep=False))
        new.unlink()
        new.parent.rmdir()
        file.write_bytes(good)
        file.chmod(0o600)


def test_what_was_damaged_meanwhile_is_not_kept_again(bench: Bench) -> None:
    """Records that were taken over are copied as they lie, and get a new digest."""
    bench.put("m/tools.json", {"tools": [{**TOOL, "description": "Says hello"}]})
    bench.load()
    warm = bench.load()
    expected = everything(warm)  # all of it was read, and found to be good
    file = bench.file()
    good = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(good.index(b"Says hello"))
        opened.write(b"Says hullo")
    bench.put("n/tools.json", {"tools": [{**TOOL, "name": "new"}]})
    bench.load(earlier=warm)
    shutil.rmtree(bench.folder / "n")
    assert everything(bench.load()) == expected


def test_a_warm_load_asks_no_program_and_writes_nothing(bench: Bench) -> None:
    bench.program("one")
    bench.load()
    before = bench.file().stat()
    assert bench.asked == ["one-tool"]
    assert bench.load().warm
    assert bench.asked == ["one-tool"]
    assert bench.file().stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("change", ["size", "time", "content", "file", "new", "gone", "moved", "link"])
def test_every_change_of_a_file_is_noticed(simple: Bench, change: str) -> None:
    path = simple.folder / "m" / "tools.json"
    text = path.read_text(encoding="utf-8")
    status = path.stat()
    match change:
        case "size":
            path.write_text(text.replace("alpha", "alphabet"), encoding="utf-8")
        case "time":
            os.utime(path, ns=(1, 1))
        case "content":  # of the same length, with the old time put back
            simple.rewrite(path, text.replace("alpha", "omega"))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        case "file":
            other = simple.put("other", text.replace("alpha", "omega"))
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(other, path)
        case "new":
            simple.put("n/tools.json", {"tools": [{**TOOL, "name": "new"}]})
        case "gone":
            path.unlink()
        case "moved":
            (simple.folder / "m").rename(simple.folder / "n")
        case "link":
            target = simple.put("target/x.json", text.replace("alpha", "omega"))
            path.unlink()
            path.symlink_to(target)
    changed = simple.load()
    assert not changed.warm
    assert everything(changed) == everything(simple.load(keep=False))
    assert simple.load().warm


def test_of_many_files_only_the_changed_one_is_read_again(bench: Bench) -> None:
    for number in range(8):
        bench.program(f"p{number}")
    bench.load()
    assert len(bench.asked) == 8
    bench.asked.clear()
    bench.rewrite(bench.folder / "bin" / "p3-tool", "#!/bin/sh\n# changed\n")
    changed = bench.load()
    assert bench.asked == ["p3-tool"]
    assert not changed.warm
    assert everything(changed) == everything(bench.load(keep=False))


@pytest.mark.parametrize(
    ("outcome", "code", "span_s"),
    [
        (ProbeOutcome(timed_out_s=1.0), "executable.discover.timeout", executable.AGAIN_AFTER_TIMEOUT_S),
        (ProbeOutcome(exit_status=3), "executable.discover.exit-status", executable.AGAIN_S),
        (ProbeOutcome(too_long_bytes=9), "executable.discover.size", executable.AGAIN_S),
        (ProbeOutcome(start_error="no journal"), "executable.discover.flag", 0.0),
    ],
)
def test_a_program_that_gave_no_schema_is_asked_again_after_a_while(
    bench: Bench, outcome: ProbeOutcome, code: str, span_s: float
) -> None:
    bench.program("odd")
    bench.program("other")
    bench.answers, bench.outcome = False, outcome
    assert [problem.code for problem in bench.load().problems] == [code] * 2
    bench.asked.clear()
    if span_s:
        bench.now += span_s - 1
        remembered = bench.load()
        assert (remembered.warm, bench.asked) == (True, [])
        assert [problem.code for problem in remembered.problems] == [code] * 2
        bench.now += 2
    bench.answers = True
    report = bench.load()
    assert sorted(bench.asked) == ["odd-tool", "other-tool"]
    assert (report.problems, len(report.catalog.tools)) == ((), 2)
    assert bench.load().warm


def test_a_file_among_programs_that_cannot_be_started_is_not_tried_at_every_load(bench: Bench) -> None:
    path = bench.put("bin/README", "Our programs.\n")
    path.chmod(0o755)
    bench.answers, bench.outcome = False, ProbeOutcome(start_error="no first line")
    bench.load()
    bench.asked.clear()
    assert (bench.load().warm, bench.asked) == (True, [])
    bench.now += executable.AGAIN_AFTER_TIMEOUT_S + 1
    bench.load()
    assert bench.asked == ["README"]


@pytest.mark.parametrize("how", ["changed", "looked again", "clock set back"])
def test_a_program_that_gave_no_schema_is_asked_at_once_when_there_is_a_reason(
    bench: Bench, how: str
) -> None:
    path = bench.program("odd")
    bench.program("good")
    bench.answers = False
    first = bench.load()
    bench.answers = True
    bench.asked.clear()
    if how == "changed":
        path.write_text("#!/bin/sh\necho mended\n", encoding="utf-8")
        asked = ["odd-tool"]
    else:
        bench.now -= 90_000 if how == "clock set back" else 0
        asked = ["good-tool", "odd-tool"]
    report = bench.load(earlier=first if how == "looked again" else None)
    assert sorted(bench.asked) == asked
    assert len(report.catalog.tools) == len(asked)


def test_a_program_that_comes_or_goes_changes_the_answer_of_a_warm_load(bench: Bench) -> None:
    bench.put("notes/SKILL.md", "---\nmetadata: {requires: {bins: [[rg], [grep, sed]]}}\n---\n")
    assert [found.message for found in bench.load().problems] == ['skill "notes" skipped: missing binary rg']
    assert bench.load().warm
    bench.installed |= {"grep"}
    assert bench.load().catalog.skills == ()
    bench.installed |= {"sed"}
    came = bench.load()
    assert not came.warm
    assert ([skill.name for skill in came.catalog.skills], came.problems) == (["notes"], ())
    bench.installed.clear()
    assert bench.load().catalog.skills == ()


def test_other_rules_have_another_cache(simple: Bench) -> None:
    simple.rules = Rules(manifest_strict=True)
    strict = simple.load()
    assert not strict.warm
    assert list(strict.catalog.tools) == []
    simple.rules = Rules()
    assert simple.load().warm
    assert len(list(simple.state.iterdir())) == 2


# -- damage -------------------------------------------------------------------------------------------------


def test_no_flipped_bit_changes_an_answer(simple: Bench) -> None:
    expected = everything(simple.load(keep=False))
    file = simple.file()
    good = file.read_bytes()
    noticed = 0
    places = range(0, len(good), 3)
    for at in places:
        file.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        assert everything(simple.load()) == expected, at
        noticed += file.read_bytes() == good
    assert noticed == len(places)  # and each time the damaged file was replaced by a good one


def test_no_cut_and_no_addition_changes_an_answer(simple: Bench) -> None:
    expected = everything(simple.load(keep=False))
    file = simple.file()
    good = file.read_bytes()
    for length in range(0, len(good), 13):
        file.write_bytes(good[:length])
        assert everything(simple.load()) == expected, length
        assert file.read_bytes() == good
    for added in (b"\0", b"x" * 10_000):
        file.write_bytes(good + added)
        assert everything(simple.load()) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"toolcrib cache 2\n",
        b"toolcrib cache 2\n" + b"\xff" * 100,
        b"toolcrib cache 2\n" + b"\0" * 1000,
        b"{}",
    ],
)
def test_a_file_that_is_no_cache_is_replaced(simple: Bench, content: bytes) -> None:
    expected = everything(simple.load(keep=False))
    file = simple.file()
    good = file.read_bytes()
    file.write_bytes(content)
    report = simple.load()
    assert not report.warm
    assert everything(report) == expected
    assert file.read_bytes() == good


def test_a_planted_cache_with_other_tools_is_not_believed(simple: Bench) -> None:
    file = simple.file()
    good = file.read_bytes()
    assert good.count(b"tools/bin/alpha") >= 1
    for old, new in (
        (b"tools/bin/alpha", b"../../bin/shell"),
        (b'"alpha"', b'"omega"'),
        (b"m/alpha", b"m/omega"),
    ):
        assert old in good
        file.write_bytes(good.replace(old, new))
        report = simple.load()
        assert [tool.key for tool in report.catalog.tools] == ["manifest:m/alpha"]
        assert report.catalog.find("alpha").invocation.program.endswith("/tools/bin/alpha")  # type: ignore[union-attr]


def test_a_cache_of_laxer_rules_in_the_place_of_a_stricter_one_is_not_used(simple: Bench) -> None:
    lax = simple.file()
    simple.rules = Rules(manifest_strict=True)
    simple.load()
    (strict,) = set(simple.state.iterdir()) - {lax}
    shutil.copyfile(lax, strict)
    report = simple.load()
    assert not report.warm
    assert list(report.catalog.tools) == []


# -- whose file it is ---------------------------------------------------------------------------------------


def test_the_cache_belongs_to_the_user_alone(simple: Bench) -> None:
    assert stat.S_IMODE(simple.file().stat().st_mode) == 0o600
    assert stat.S_IMODE(simple.state.stat().st_mode) == 0o700
    assert simple.file().name.endswith(".cache")  # and no unfinished file is left beside it


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_cache_that_others_may_write_is_rebuilt(simple: Bench, mode: int) -> None:
    simple.file().chmod(mode)
    assert not simple.load().warm
    assert stat.S_IMODE(simple.file().stat().st_mode) == 0o600
    assert simple.load().warm


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_cache_of_another_user_is_rebuilt(simple: Bench) -> None:
    os.chown(simple.file(), 65534, 65534)
    assert not simple.load().warm
    assert simple.file().stat().st_uid == os.geteuid()
    assert simple.load().warm


def in_place_of(file: Path, what: str) -> None:
    good = file.read_bytes()
    file.unlink()
    match what:
        case "link":
            (file.parent.parent / "good").write_bytes(good)
            (file.parent.parent / "good").chmod(0o600)
            file.symlink_to(file.parent.parent / "good")
        case "fifo":
            os.mkfifo(file)
        case "folder":
            file.mkdir()


@pytest.mark.parametrize("what", ["link", "fifo", "folder"])
def test_what_is_no_plain_file_is_not_used_and_not_waited_for(simple: Bench, what: str) -> None:
    expected = everything(simple.load(keep=False))
    in_place_of(simple.file(), what)
    report = simple.load()
    assert not report.warm
    assert everything(report) == expected
    if what != "folder":
        assert stat.S_ISREG(simple.file().lstat().st_mode)


def test_where_nothing_can_be_written_a_load_is_only_not_faster(simple: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "below", Path("/proc/self/nowhere")):
        simple.state = folder
        for _ in range(2):
            report = simple.load()
            assert not report.warm
            assert [tool.name for tool in report.catalog.tools] == ["alpha"]


def test_without_a_folder_nothing_is_kept(simple: Bench) -> None:
    kept = Cache(None)
    assert kept.open("anything") is None
    assert not simple.load(keep=False).warm


# -- other code ---------------------------------------------------------------------------------------------


def test_a_cache_made_by_other_code_is_not_used(simple: Bench, tmp_path: Path) -> None:
    ours = simple.file()
    package = tmp_path / "other" / "toolcrib"
    shutil.copytree(Path(toolcrib.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "formats" / "manifest.py").open("a", encoding="utf-8") as file:
        file.write("\n# another version\n")
    program = f"""
from toolcrib.catalog import loading
from toolcrib.catalog.cache import Cache
from toolcrib.catalog.sources import Source
from toolcrib.model import Rules
machine = loading.Machine(prober=lambda paths: [], which=lambda name: name)
source = Source(path={str(simple.folder)!r}, named=True)
report = loading.load([source], Rules(), machine, keep=Cache({str(simple.state)!r}))
assert not report.warm
report.keep()
assert loading.load([source], Rules(), machine, keep=Cache({str(simple.state)!r})).warm
"""
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(package.parent)}, check=True
    )
    (theirs,) = set(simple.state.iterdir()) - {ours}
    assert simple.load().warm
    os.replace(theirs, ours)
    assert not simple.load().warm


# -- lifetimes ----------------------------------------------------------------------------------------------


def test_a_catalog_outlives_the_cache_it_came_from(simple: Bench) -> None:
    expected = everything(simple.load(keep=False))
    warm = simple.load()
    simple.file().unlink()
    shutil.rmtree(simple.state)
    assert warm.warm
    assert everything(warm) == expected


def test_damage_after_opening_is_noticed_when_it_is_met(simple: Bench) -> None:
    expected = everything(simple.load(keep=False))
    file = simple.file()
    good = file.read_bytes()
    for start in range(0, len(good), 97):
        warm = simple.load()
        assert warm.warm
        with file.open("r+b") as opened:
            opened.seek(start)
            opened.write(b"\xff" * 97)
        assert everything(warm) == expected
        file.write_bytes(good)
        file.chmod(0o600)


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_whoever_meets_damage_while_another_reads_anew_gets_the_answer_too(
    simple: Bench, is_reloaded: bool
) -> None:
    simple.load()
    warm = simple.load()
    if is_reloaded:
        simple.put("n/tools.json", {"tools": [{**TOOL, "name": "new"}]})
        warm = simple.load(keep=False, earlier=warm)
    expected = everything(simple.load(keep=False))
    file = simple.file()
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    together = threading.Barrier(8)

    def one(_: int) -> tuple[Any, ...]:
        together.wait(60)
        return everything(warm)

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(one, range(8))] == [expected] * 8


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to count open files")
def test_no_open_file_is_left_behind(simple: Bench) -> None:
    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(20):
        simple.load()
    simple.file().write_bytes(b"damaged")
    simple.load()
    assert count() == before


def test_loads_at_the_same_time_do_not_disturb_each_other(simple: Bench) -> None:
    expected = everything(simple.load(keep=False))
    file = simple.file()

    def one(number: int) -> tuple[Any, ...]:
        if number % 3 == 0:
            file.unlink(missing_ok=True)
        return everything(simple.load())

    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(one, range(40)))
    assert [path.name for path in simple.state.iterdir()] == [file.name]


def test_the_magic_line_names_the_version_of_the_layout() -> None:
    assert cache._MAGIC.startswith(b"toolcrib cache ")
    assert cache._MAGIC.endswith(b"\n")
