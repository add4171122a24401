"""From sources to a catalog: one bad tool costs itself, keys are unique, problems know their lines."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from toolcrib.catalog import loading
from toolcrib.catalog.cache import Cache
from toolcrib.catalog.sources import Source
from toolcrib.model import ProbeOutcome, Problem, Rules, Severity


def machine(*installed: str) -> loading.Machine:
    def prober(paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
        raise AssertionError(paths)

    return loading.Machine(prober=prober, which=lambda name: name if name in installed else None)


def load(
    *paths: Path, rules: Rules | None = None, keep: Cache | None = None, programs: Sequence[str] = ()
) -> Any:
    wanted = [Source(path=str(path), named=True) for path in paths]
    report = loading.load(wanted, rules or Rules(), machine(*programs), keep=keep)
    report.keep()
    return report


def put(path: Path, text: str | bytes | dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, dict):
        text = json.dumps(text)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "D", "command": ["/bin/true"], **more}


def errors(report: Any) -> list[str]:
    return [problem.message for problem in report.problems if problem.severity is Severity.ERROR]


def of_code(report: Any, code: str) -> list[Problem]:
    return [problem for problem in report.problems if problem.code == code]


# -- schemas ------------------------------------------------------------------------------------------------


def test_a_schema_that_is_none_drops_its_tool_and_no_other(tmp_path: Path) -> None:
    bad = tool("bad", schema={"type": "object", "properties": {"x": {"type": "text"}}})
    remote = tool("remote", schema={"$ref": "https://example.org/schema"})
    put(tmp_path / "tools.json", {"tools": [tool("first"), bad, remote, tool("last")]})
    report = load(tmp_path)
    assert [found.name for found in report.catalog.tools] == ["first", "last"]
    invalid = of_code(report, "schema.invalid")
    assert [problem.name for problem in invalid] == ["bad", "remote"]
    assert [problem.pointer for problem in invalid] == [("tools", 1), ("tools", 2)]
    assert (
        invalid[1].message
        == '"remote": input schema: $ref: "https://example.org/schema" leads out of the schema'
    )
    assert invalid[1].hint == 'refer to parts of the same schema only ("#/$defs/...")'


def test_every_flaw_of_a_schema_is_reported(tmp_path: Path) -> None:
    schema = {"properties": {"a": {"type": "x"}, "b": {"minLength": -1}}}
    put(tmp_path / "tools.json", {"tools": [tool("bad", schema=schema)]})
    assert [line.partition(": input schema: ")[2].partition(":")[0] for line in errors(load(tmp_path))] == [
        "properties.a.type",
        "properties.b.minLength",
    ]


# -- names and keys -----------------------------------------------------------------------------------------


def test_a_schema_that_is_none_does_not_hide_an_unknown_executor(tmp_path: Path) -> None:
    put(
        tmp_path / ".ai" / "tools" / "a" / "t.json",
        {
            "tool_id": "t", "tool_type": "yaml", "version": "1.0.0", "description": "D", "category": "a",
            "executor_id": "no/such", "config_schema": {"type": "object", "properties": {"a": {"$ref": "https://x.example/s"}}},
        },
    )  # fmt: skip
    report = load(tmp_path)
    assert [tool.name for tool in report.catalog.tools] == []
    assert {problem.code for problem in report.errors} == {"schema.invalid", "rye.executor.unknown"}


def test_two_tools_of_one_key_both_stay_and_the_second_gets_another(tmp_path: Path) -> None:
    put(tmp_path / "one" / "m" / "tools.json", {"tools": [tool("a")]})
    put(tmp_path / "two" / "m" / "tools.json", {"tools": [tool("a")]})
    report = load(tmp_path / "one", tmp_path / "two")
    assert [found.key for found in report.catalog.tools] == ["manifest:m/a", "manifest:m~2/a"]
    (clash,) = of_code(report, "catalog.key-clash")
    assert clash.severity is Severity.WARNING
    assert clash.message == "\"a\" has the key 'manifest:m/a' too; its key is 'manifest:m~2/a'"
    assert clash.hint == "name them by key: manifest:m/a or manifest:m~2/a"
    assert clash.path.endswith("two/m/tools.json")
    assert report.catalog.find("manifest:m~2/a").origin.path.endswith("two/m/tools.json")


def test_a_name_that_two_formats_declare_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "m" / "tools.json", {"tools": [tool("a")]})
    same = {"name": "a", "description": "D", "input_schema": {"type": "object", "properties": {}}}
    group = {"group": "g", "selection": {"strategy": "always"}, "tools": [same]}
    put(tmp_path / "g" / "g_tools.json", group)
    report = load(tmp_path)
    (clash,) = of_code(report, "catalog.name-clash")
    assert clash.message == f"\"a\" shares its name with 'manifest:m/a' of {tmp_path}/m/tools.json"
    assert clash.hint == "name them by key: manifest:m/a or capability:g/a"
    assert len(report.catalog.tools) == 2


# -- lines --------------------------------------------------------------------------------------------------


def test_problems_have_the_line_of_their_place(tmp_path: Path) -> None:
    text = """{
  "tools": [
    {
      "name": "a",
      "command": [
        "../x"
      ],
      "envPassthrough": ["TZ",
                         "1BAD"]
    },
    {"command": ["/bin/true"]}
  ]
}
"""
    put(tmp_path / "tools.json", text)
    lines = {problem.code: problem.line for problem in load(tmp_path).problems}
    assert lines == {
        "manifest.env.digit": 9,
        "manifest.command.dotdot": 6,
        "manifest.name.required": 11,
        "manifest.command.absolute": 11,
    }


def test_a_place_that_is_not_there_has_the_line_of_what_is_around_it(tmp_path: Path) -> None:
    put(
        tmp_path / "tools.json",
        '{"tools": [\n{"name": "a",\n"schema": {\n"type": "x"}, "command": ["/bin/true"]}]}',
    )
    (invalid,) = of_code(load(tmp_path), "schema.invalid")
    assert invalid.line == 2


def test_a_file_broken_after_it_was_read_costs_the_lines_and_nothing_else(tmp_path: Path) -> None:
    path = put(tmp_path / "tools.json", '{"tools": [{"name": "a", "command": ["../x"]}]}')
    for broken in (b"", b"[", b'{"tools": [', b"\xff", b"\xef\xbb\xbf{}", b'{"other": 1'):
        report = load(tmp_path)
        original = path.read_bytes()
        path.write_bytes(broken)
        (problem,) = report.problems
        assert (problem.code, problem.line) == ("manifest.command.dotdot", None)
        path.write_bytes(original)


def test_a_file_gone_after_it_was_read_costs_the_lines_and_nothing_else(tmp_path: Path) -> None:
    path = put(tmp_path / "tools.json", '{"tools": [{"name": "a", "command": ["../x"]}]}')
    report = load(tmp_path)
    path.unlink()
    assert [problem.line for problem in report.problems] == [None]


# -- the machine --------------------------------------------------------------------------------------------


def test_what_is_missing_on_the_machine_is_looked_up_each_time(tmp_path: Path) -> None:
    put(tmp_path / "tools.json", {"tools": [{**tool("a"), "command": ["./tools/bin/a"]}]})
    keep = Cache(str(tmp_path / "cache"))
    assert [problem.code for problem in load(tmp_path, keep=keep).problems] == [
        "manifest.command.missing-file"
    ]
    put(tmp_path / "tools" / "bin" / "a", "").chmod(0o755)
    warm = load(tmp_path, keep=keep)
    assert warm.warm
    assert warm.problems == ()


def test_a_skill_without_its_program_is_left_out_and_names_it(tmp_path: Path) -> None:
    put(tmp_path / "notes" / "SKILL.md", "---\nmetadata: {requires: {bins: [one, two]}}\n---\n")
    report = load(tmp_path, programs=["one"])
    assert report.catalog.skills == ()
    assert [problem.message for problem in report.problems] == ['skill "notes" skipped: missing binary two']
    assert [found.name for found in load(tmp_path, programs=["one", "two"]).catalog.skills] == ["notes"]


# -- everything at once -------------------------------------------------------------------------------------


def test_one_broken_file_hides_no_other(tmp_path: Path) -> None:
    put(tmp_path / "a" / "tools.json", b"\xff\xfe")
    put(tmp_path / "b" / "tools.json", {"tools": [tool("b")]})
    put(tmp_path / "c" / "c_tools.json", '{"group": "c", "tools": [}')
    put(tmp_path / "d" / "SKILL.md", b"---\n\xff\n---\n")
    put(tmp_path / "e" / "package.json", "{")
    put(tmp_path / ".ai" / "tools" / "f.py", "def (")
    put(tmp_path / ".ai" / "tools" / "g.yaml", "a: [")
    report = load(tmp_path)
    assert [found.name for found in report.catalog.tools] == ["b"]
    broken = {Path(problem.path).name for problem in report.problems}
    assert broken >= {"tools.json", "c_tools.json", "SKILL.md", "f.py", "g.yaml"}
    assert report.notes == (f"{tmp_path}/e/package.json: not a declaration",)


def test_formats_come_in_one_order_and_files_in_theirs(tmp_path: Path) -> None:
    for name in ("z", "a"):
        put(tmp_path / name / "tools.json", {"tools": [tool(f"{name}2"), tool(f"{name}1")]})
    assert [found.name for found in load(tmp_path).catalog.tools] == ["a2", "a1", "z2", "z1"]


def test_the_same_folder_gives_the_same_answer_twice(tmp_path: Path) -> None:
    put(tmp_path / "m" / "tools.json", {"tools": [tool("a"), tool("a"), {"command": []}]})
    first, second = load(tmp_path), load(tmp_path)
    assert list(first.catalog.tools) == list(second.catalog.tools)
    assert first.problems == second.problems
    assert first.stamp == second.stamp


_NAMES = (
    "tools.json", "m/tools.json", "s/SKILL.md", "s/tools.json", "s/allowlist.json", "s/execution.json",
    "x.json", "g/g_tools.json", ".ai/tools/x/a.py", ".ai/tools/x/b.yaml", ".ai/tools/c.js",
)  # fmt: skip
_CONTENTS = (
    b"{}", b"[]", b'{"tools":[{"command":[]}]}', b'{"group":"g"}', b'{"allowlist":{}}', b"---\n---\n",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(_NAMES), st.binary(max_size=60) | st.sampled_from(_CONTENTS)))
def test_no_files_make_a_load_raise(tmp_path_factory: Any, contents: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name, content in contents.items():
        put(folder / name, content)
    report = load(folder, keep=Cache(str(folder / "state")))
    again = load(folder, keep=Cache(str(folder / "state")))
    assert again.warm
    assert (again.problems, again.catalog.skills) == (report.problems, report.catalog.skills)
    assert list(again.catalog.tools) == list(report.catalog.tools)


def test_a_url_that_gave_nothing_is_asked_again_after_a_minute_and_others_meanwhile_are_not(
    tmp_path: Path,
) -> None:
    wanted = [Source(path=f"http://127.0.0.1/{n}", format="openapi", named=True, starts=True) for n in "ab"]
    document = b'{"openapi": "3.1.0", "info": {}, "servers": [{"url": "https://x.example"}], "paths": {}}'
    asked: list[list[str]] = []

    def fetcher(urls: Sequence[str]) -> list[tuple[bytes | None, str | None]]:
        asked.append([url[-1] for url in urls])
        return [(document, None) if url.endswith("a") else (None, "down") for url in urls]

    for now in (1000.0, 1059.0, 1061.0):
        at = replace(machine(), clock=partial(float, now), fetcher=fetcher)
        report = loading.load(wanted, Rules(), at, keep=Cache(str(tmp_path / "cache")))
        report.keep()
        assert [problem.code for problem in report.problems].count("openapi.document.unreadable") == 1
    assert asked == [["a", "b"], ["b"]]


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_loading_again_leaves_garbage_where_the_collector_looks_often(tmp_path: Path) -> None:
    """Sent to the oldest generation at each of many reloads, it would pile up there uncounted."""
    path = put(tmp_path / "tools.json", {"tools": [tool("a")]})
    before = load(path)
    gc.collect()
    gone = weakref.ref(Knot())
    put(path, {"tools": [tool("a"), tool("b")]})
    wanted = [Source(path=str(path), named=True)]
    loading.load(wanted, Rules(), machine(), earlier=before)
    gc.collect(1)
    assert gone() is None


def test_opening_again_leaves_garbage_where_the_collector_looks_often(tmp_path: Path) -> None:
    """A host that opens a crib for each request: those that it closed would pile up there uncounted, each
    with a descriptor of its cache, until none is left."""
    path = put(tmp_path / "tools.json", {"tools": [tool("a")]})
    load(path)
    gc.collect()
    gone = weakref.ref(Knot())
    load(path)
    gc.collect(1)
    assert gone() is None
