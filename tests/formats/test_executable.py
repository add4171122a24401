"""What cases of files cannot show: any bytes, units in any order, looking again, real schemas, the page."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import shared
from toolcrib import jsontext, schema
from toolcrib.catalog import loading, sources
from toolcrib.catalog.cache import Cache
from toolcrib.catalog.sources import Source
from toolcrib.dialects import DIALECTS
from toolcrib.formats import executable
from toolcrib.model import (
    Compiled,
    DeclareOptions,
    Document,
    Permit,
    ProbeOutcome,
    Problem,
    Rules,
    Schema,
    Severity,
    Tool,
    ToolMode,
    Unit,
)
from toolcrib.sandbox import Cancel, Start, discovery, portable

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "executable.md"
ENV = {"PATH": "/usr/bin:/bin"}
WEATHER = {
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City"}}},
}


def document(content: bytes, path: str = "/tools/weather-tool", **more) -> Document:
    return Document(
        path=path,
        content=content,
        parsed=jsontext.read(content),
        place="executable",
        scope="tools",
        **{"probe": ProbeOutcome(exit_status=0), **more},
    )


def compiled(value: object, path: str = "/tools/weather-tool") -> Compiled:
    return executable.compile_document(document(json.dumps(value).encode(), path), Rules())


def only_tool(found: Compiled) -> Tool:
    (tool,) = found.tools
    return tool


def parameters_of(found: Compiled) -> Schema:
    stored = only_tool(found).input_schema
    assert stored is not None
    return stored


def codes(problems: Sequence[Problem]) -> list[str]:
    return [problem.code for problem in problems]


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def load(folder: Path, *, prober=None, keep: Cache | None = None) -> loading.LoadReport:
    report = loading.load(
        [Source(path=str(folder), format="executable", probe=True)],
        Rules(),
        loading.Machine(
            prober=prober or (lambda paths: discovery.probe_all(paths, env=ENV)), which=lambda name: name
        ),
        keep=keep,
    )
    report.keep()
    return report


# -- any document -------------------------------------------------------------------------------------------

KEYWORDS = ["type", "properties", "required", "items", "enum", "not", "anyOf", "prefixItems", "x", "$ref"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("aB_é\n\0", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5),
    max_leaves=20,
)
types = st.sampled_from(["object", "array", "string", "integer", "null"]) | values


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(content):
    found = executable.compile_document(document(content), Rules())
    assert found.problems or found.tools


@given(
    st.fixed_dictionaries(
        {"type": types, "properties": values}, optional={"required": values, "items": values}
    )
)
def test_no_schema_makes_it_raise_and_whatever_is_kept_is_a_schema(parameters):
    found = compiled({**WEATHER, "parameters": parameters})
    assert found == compiled({**WEATHER, "parameters": parameters}), "reading is deterministic"
    if any(problem.severity is Severity.ERROR for problem in found.problems):
        assert found.tools == ()
    else:
        assert parameters_of(found).document == parameters


@pytest.mark.requirement("executable.discover.directory-decides")
def test_no_content_makes_a_document_an_executable():
    for content in (json.dumps(WEATHER).encode(), b"{}", b"[]", b"#!/bin/sh\n"):
        assert not executable.recognises(document(content))


@pytest.mark.requirement("executable.discover.parallel")
def test_twenty_programs_are_listed_by_name_whichever_answers_first(tmp_path):
    done = tmp_path / "done"
    for number in reversed(range(20)):
        answer = json.dumps({**WEATHER, "name": f"p{number:02}"})
        wait = {0: f"while [ ! -e {done} ]; do sleep 0.01; done", 19: f": >{done}"}.get(number, "")
        write_program(tmp_path / "bin" / f"p{number:02}-tool", f"#!/bin/sh\n{wait}\necho '{answer}'\n")
    report = load(tmp_path / "bin", prober=lambda paths: discovery.probe_all(paths, env=ENV, timeout_s=30))
    assert [tool.name for tool in report.catalog.tools] == [f"p{number:02}" for number in range(20)]
    assert report.problems == ()


@pytest.mark.requirement("executable.discover.size")
def test_8191_bytes_are_accepted_and_8192_are_not(tmp_path):
    for name, size in (("fits", 8191), ("long", 8192)):
        answer = json.dumps({**WEATHER, "name": name}).ljust(size - 1)
        write_program(tmp_path / f"{name}-tool", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    report = load(tmp_path, prober=lambda paths: discovery.probe_all(paths, env=ENV, timeout_s=30))
    assert [tool.name for tool in report.catalog.tools] == ["fits"]
    assert [(problem.code, problem.message) for problem in report.problems] == [
        ("executable.discover.size", "schema output longer than 8191 bytes")
    ]


def test_a_document_without_an_answer_is_a_problem_and_no_tool():
    for found in (
        Document(path="/tools/x-tool", content=None),
        Document(path="/tools/x-tool", content=None, unreadable="permission denied"),
        Document(path="/tools/x-tool", content=None, probe=ProbeOutcome()),
    ):
        result = executable.compile_document(found, Rules())
        assert result.tools == ()
        assert len(result.problems) == 1


@pytest.mark.requirement("executable.discover.stderr")
def test_only_the_end_of_a_long_stderr_is_shown():
    probe = ProbeOutcome(exit_status=1, stderr_tail="x" * 1900 + "\n boom\n")
    (problem,) = executable.compile_document(document(b"{}", probe=probe), Rules()).problems
    assert problem.message.startswith("exit status 1: …xxx")
    assert problem.message.endswith("xxx boom")
    assert len(problem.message) < 250


# -- meaning ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("executable.params.required-optional")
def test_without_required_nothing_is_required():
    assert schema.complaints(parameters_of(compiled(WEATHER)), {}) == ()


@pytest.mark.requirement("executable.params.extra-keywords")
def test_further_keywords_are_checked():
    count = {"type": "integer", "description": "How many", "minimum": 1}
    found = compiled({**WEATHER, "parameters": {"type": "object", "properties": {"count": count}}})
    assert found.problems == ()
    assert schema.complaints(parameters_of(found), {"count": 1}) == ()
    assert [str(complaint) for complaint in schema.complaints(parameters_of(found), {"count": 0})] != []


@pytest.mark.requirement("executable.params.extra-keywords")
@pytest.mark.parametrize(
    ("kind", "keywords", "good", "bad"),
    [
        ("integer", {"minimum": 1}, 1, 0),
        ("integer", {"maximum": 9}, 9, 10),
        ("number", {"exclusiveMinimum": 0}, 0.5, 0),
        ("number", {"exclusiveMaximum": 9}, 8.5, 9),
        ("number", {"multipleOf": 2}, 4, 3),
        ("string", {"minLength": 2}, "ab", "a"),
        ("string", {"maxLength": 2}, "ab", "abc"),
        ("string", {"const": "x"}, "x", "y"),
        ("array", {"minItems": 1}, ["a"], []),
        ("array", {"maxItems": 1}, ["a"], ["a", "b"]),
        ("array", {"uniqueItems": True}, ["a", "b"], ["a", "a"]),
        ("array", {"contains": {"const": "a"}}, ["b", "a"], ["b"]),
        ("array", {"contains": {"const": "a"}, "minContains": 2}, ["a", "a"], ["a", "b"]),
        ("array", {"contains": {"const": "a"}, "maxContains": 1}, ["a", "b"], ["a", "a"]),
        ("object", {"minProperties": 1}, {"a": 1}, {}),
        ("object", {"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
        ("object", {"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
        ("object", {"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_every_further_keyword_is_checked_without_a_warning(
    kind: str, keywords: dict, good: object, bad: object
):
    part = {"type": kind, "description": "P", **keywords}
    part |= {"items": {"type": "string"}} if kind == "array" else {}
    part |= {"properties": {}} if kind == "object" else {}
    found = compiled({**WEATHER, "parameters": {"type": "object", "properties": {"p": part}}})
    assert found.problems == ()
    assert schema.complaints(parameters_of(found), {"p": good}) == ()
    assert schema.complaints(parameters_of(found), {"p": bad}) != ()


@pytest.mark.requirement("executable.declare.openai-format")
@pytest.mark.parametrize("dialect", ["openai", "openai-responses"])
@pytest.mark.parametrize("mode", ToolMode)
def test_a_programs_format_never_reaches_openai_and_is_kept_on_the_record(dialect: str, mode: ToolMode):
    url = {"type": "string", "description": "Address", "format": "uri"}
    when = {"type": "string", "description": "Day", "format": "date"}
    properties = {"url": url, "format": when}
    tool = only_tool(
        compiled(
            {
                **WEATHER,
                "parameters": {"type": "object", "properties": properties, "required": ["url", "format"]},
            }
        )
    )
    [declared] = DIALECTS[dialect].declare([tool], DeclareOptions(mode=mode)).payload
    declared = declared.get("function", declared)
    assert declared["parameters"]["properties"] == {
        "url": {"type": "string", "description": "Address"},
        "format": {"type": "string", "description": "Day"},
    }
    assert tool.input_schema is not None
    assert tool.input_schema.document["properties"] == properties


def test_the_order_of_the_authors_keys_is_kept():
    parameters = {
        "type": "object",
        "required": [],
        "properties": {"z": {"type": "string"}, "a": {"type": "string"}},
    }
    found = compiled({**WEATHER, "parameters": parameters})
    assert parameters_of(found).text == json.dumps(parameters, separators=(",", ":")).encode()


# -- neighbours ---------------------------------------------------------------------------------------------


def unit(path: str, name: str, space: int = 0) -> Unit:
    return Unit(path=path, space=space, compiled=compiled({**WEATHER, "name": name}, path))


@pytest.mark.requirement("executable.discover.sorted")
def test_the_result_is_sorted_by_name_whatever_the_order_of_the_units():
    units = [unit("/b/zeta-tool", "zeta"), unit("/b/alpha-tool", "alpha"), unit("/a/mid-tool", "mid", 1)]
    for order in (units, units[::-1]):
        assert [tool.name for tool in executable.link(order, Rules()).tools] == ["alpha", "mid", "zeta"]


@pytest.mark.requirement("executable.discover.directories")
def test_the_last_of_three_directories_is_used_and_each_replacement_reported():
    units = [unit(f"/{folder}/file-read-tool", "file_read", space) for space, folder in enumerate("sup")]
    for order in (units, units[::-1]):
        linked = executable.link(order, Rules())
        assert [tool.origin.path for tool in linked.tools] == ["/p/file-read-tool"]
        assert [(problem.code, problem.path) for problem in linked.problems] == [
            ("executable.discover.directories", "/u/file-read-tool"),
            ("executable.discover.directories", "/p/file-read-tool"),
        ]
        assert "/u/file-read-tool" in linked.problems[1].message
        assert "/p/file-read-tool" in linked.problems[1].message


@pytest.mark.requirement("executable.discover.same-dir-duplicate")
def test_of_one_directory_the_first_by_file_name_is_kept():
    units = [unit("/t/file_read-tool", "file_read"), unit("/t/file-read-tool", "file_read")]
    linked = executable.link(units, Rules())
    assert [tool.origin.path for tool in linked.tools] == ["/t/file-read-tool"]
    assert [(problem.code, problem.path) for problem in linked.problems] == [
        ("executable.discover.same-dir-duplicate", "/t/file_read-tool")
    ]


def test_a_program_that_was_found_twice_is_one_program():
    linked = executable.link([unit("/t/x-tool", "x"), unit("/t/x-tool", "x", 1)], Rules())
    assert len(linked.tools) == 1
    assert linked.problems == ()


@pytest.mark.requirement("executable.name.identity")
def test_a_tool_is_found_by_its_name_and_by_its_files_name(tmp_path):
    text = json.dumps({**WEATHER, "name": "edit"})
    write_program(tmp_path / "file-edit-tool", f"#!/bin/sh\necho '{text}'\n")
    catalog = load(tmp_path).catalog
    assert catalog.find("edit").key == catalog.find("file_edit").key


# -- looking again ------------------------------------------------------------------------------------------


@pytest.mark.requirement("executable.discover.refresh")
def test_a_program_that_is_gone_is_forgotten(tmp_path):
    program = write_program(tmp_path / "tools" / "weather-tool", f"#!/bin/sh\necho '{json.dumps(WEATHER)}'\n")
    keep = Cache(str(tmp_path / "cache"))
    assert [tool.name for tool in load(program.parent, keep=keep).catalog.tools] == ["weather"]
    program.unlink()
    assert list(load(program.parent, keep=keep).catalog.tools) == []


@pytest.mark.requirement("executable.discover.cache")
def test_a_second_start_runs_no_program_that_is_unchanged(tmp_path):
    asked: list[list[str]] = []

    def prober(paths: Sequence[str]) -> list[tuple[bytes, ProbeOutcome]]:
        asked.append([os.path.basename(path) for path in paths])
        return discovery.probe_all(paths, env=ENV)

    tools = tmp_path / "tools"
    for name in ("weather", "other"):
        text = json.dumps({**WEATHER, "name": name})
        write_program(tools / f"{name}-tool", f"#!/bin/sh\necho '{text}'\n")
    keep = Cache(str(tmp_path / "cache"))
    load(tools, prober=prober, keep=keep)
    assert asked == [["other-tool", "weather-tool"]]
    load(tools, prober=prober, keep=keep)
    assert len(asked) == 1
    changed = json.dumps({**WEATHER, "description": "Now with rain"})
    write_program(tools / "weather-tool", f"#!/bin/sh\necho '{changed}'\n")
    report = load(tools, prober=prober, keep=keep)
    assert asked[1:] == [["weather-tool"]]
    assert report.catalog.find("weather").description == "Now with rain"
    assert report.catalog.find("other").description == "Weather of a city"


# -- real schemas -------------------------------------------------------------------------------------------


def test_what_real_programs_print_is_accepted_with_the_warnings_on_record(tmp_path):
    """Stand-in programs print the texts; the outcomes are those of the corpus's own index."""
    corpus = shared("corpus/executable")
    entries = json.loads((corpus / "INDEX.json").read_text(encoding="utf-8"))["files"]
    entries = [entry for entry in entries if "tools_accepted" in entry["expected"]]
    assert entries
    programs = [
        str(write_program(tmp_path / f"p{number}-tool", f"#!/bin/sh\ncat '{corpus / entry['file']}'\n"))
        for number, entry in enumerate(entries)
    ]
    for entry, (stdout, outcome) in zip(entries, discovery.probe_all(programs, env=ENV), strict=True):
        expected = entry["expected"]
        path = f"/tools/{expected['tools'][0].replace('_', '-')}-tool"
        found = executable.compile_document(document(stdout, path, probe=outcome), Rules())
        assert len(stdout) == expected["output_bytes"]
        assert [tool.name for tool in found.tools] == expected["tools"]
        lint: dict[str, list[str]] = {}
        for problem in found.problems:
            lint.setdefault(problem.code, []).append(": ".join(map(str, (problem.pointer or ())[-2:])))
        assert lint == expected.get("lint", {})


@pytest.mark.requirement("executable.name.binary")
def test_a_name_that_still_carries_the_suffix_is_told_apart_from_the_file():
    found = compiled({**WEATHER, "name": "bash_tool"}, "/tools/bash-tool")
    assert codes(found.problems) == ["executable.name.binary"]
    assert only_tool(found).aliases == ("bash",)


# -- the page for authors -----------------------------------------------------------------------------------


def examples() -> list[tuple[str, str]]:
    """The programs of the page, each with the file name it is saved under."""
    page = PAGE.read_text(encoding="utf-8")
    return re.findall(r"```(?:python|sh)\n(.*?)```.*?`([a-z-]+-tool)`", page, re.DOTALL)


def test_the_programs_of_the_page_load_without_a_problem_and_run(tmp_path):
    for text, name in examples():
        write_program(tmp_path / name, text)
    report = load(tmp_path)
    assert report.problems == ()
    assert [tool.name for tool in report.catalog.tools] == ["disk_free", "word_count"]
    for name, arguments, key in (
        ("disk_free", b"{}", "free_kib"),
        ("word_count", b'{"text": "a b"}', "words"),
    ):
        path = report.catalog.find(name).origin.path
        start = Start(
            program=path, argv=(path,), env=ENV, cwd=str(tmp_path), stdin=arguments, permit=Permit()
        )
        ran = portable.Portable().run(start, Cancel())
        assert isinstance(json.loads(ran.stdout)[key], int)


def test_the_page_lists_every_code():
    files = (executable.__file__, sources.__file__)
    source = "".join(Path(file).read_text(encoding="utf-8") for file in files)
    used = set(re.findall(r'"(executable\.[a-z]+\.[a-z-]+)"', source))
    assert used == set(re.findall(r"\| `(executable\.[a-z.-]+)`", PAGE.read_text(encoding="utf-8")))
