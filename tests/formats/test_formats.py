"""Which format a document is: structure or place decides, two markers are refused, nothing is guessed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import cases
from tests.conftest import shared
from tests.strategies import json_objects, json_values
from toolcrib import formats, jsontext
from toolcrib.model import Compiled, Document, OpenApiOptions, Rules, Unit

MARKED: dict[str, dict[str, Any]] = {
    "skill": {"tools": [], "allowlist": {"git": ["status"]}, "execution": []},
    "manifest": {"tools": [{"name": "a", "description": "A", "command": ["./tools/bin/a"]}]},
    "capability": {"group": "g", "selection": {"strategy": "always"}, "tools": []},
    "openapi": {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": {}},
}
"""The smallest document of each format that structure marks."""


def document(content: bytes, path: str = "/p/any.json", **more: Any) -> Document:
    return Document(path=path, content=content, parsed=jsontext.read(content), scope="p", **more)


def written(value: Any, path: str = "/p/any.json", **more: Any) -> Document:
    return document(json.dumps(value).encode(), path, **more)


def marks(found: Document) -> list[str]:
    return [name for name, format in formats.FORMATS.items() if format.recognises(found)]


def compiled(found: Document) -> tuple[str | None, list[str]]:
    name, outcome = formats.compile_document(found, Rules())
    return name, [f"{problem.code}: {problem.message}" for problem in outcome.problems]


# -- recognition --------------------------------------------------------------------------------------------


def test_no_format_claims_the_cases_of_another() -> None:
    seen = set()
    for case in cases.cases():
        own = case.origin.partition("/")[0]
        files = case.data.get("files", {})
        for name, text in files.items():
            if not name.endswith(".json") or not isinstance(text, str):
                continue
            folder = name.rpartition("/")[0]
            beside = {
                other.rpartition("/")[2]: content.encode()
                for other, content in files.items()
                if other.rpartition("/")[0] == folder and isinstance(content, str)
            }
            marked = set(marks(document(text.encode(), f"/p/{name}", neighbours=beside)))
            seen |= marked
            refused_as_mixed = any(" mixes " in problem for problem in case.data.get("problems", []))
            assert marked <= {own} or refused_as_mixed, (case.origin, name, marked)
    assert seen == set(MARKED)


def test_no_format_claims_the_real_files_of_another() -> None:
    counted = 0
    for own in ("skill", "manifest", "capability"):
        folder = shared(f"corpus/{own}")
        for entry in json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))["files"]:
            path = folder / entry["file"]
            if path.suffix == ".json" and "extra" not in path.parts:
                beside = {
                    other.name: other.read_bytes() for other in path.parent.iterdir() if other.is_file()
                }
                found = marks(document(path.read_bytes(), str(path), neighbours=beside))
                assert found in ([own], []), path  # an empty tools.json marks nothing
                counted += 1
    assert counted > 100


@pytest.mark.parametrize("name", MARKED)
def test_structure_marks_a_format_whatever_the_file_is_called(name: str) -> None:
    for path in ("/p/tools.json", "/p/x_tools.json", "/p/package.json", "/p/.ai/tools/x.json"):
        assert marks(written(MARKED[name], path)) == [name]


@pytest.mark.parametrize("name", MARKED)
def test_structure_speaks_louder_than_the_place_that_was_named(name: str) -> None:
    for place in MARKED:
        assert compiled(written(MARKED[name], place=place, openapi=OpenApiOptions()))[0] == name


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("asked", MARKED)
def test_a_document_that_was_named_with_another_format_is_an_error(name: str, asked: str) -> None:
    found, said = compiled(written(MARKED[name], asked=asked, openapi=OpenApiOptions()))
    if name == asked:
        assert found == name
        return
    assert found is None
    named, is_ = formats.WANTED[asked], formats.WANTED[name]
    assert said == [f"source.other-format: named as {named}, and it is {is_}"]


def test_a_document_that_was_named_as_a_manifest_and_has_no_tools_is_an_error() -> None:
    value: dict[str, Any]
    for value in ({"mcpServers": {}}, {"name": "package"}):
        _, said = compiled(written(value, place="manifest", asked="manifest"))
        assert said == [f"source.other-format: named as {formats.WANTED['manifest']}, and it is none"]
    for value in ({}, {"tools": []}):
        assert compiled(written(value, place="manifest", asked="manifest")) == ("manifest", [])


def test_what_a_program_prints_is_never_read_as_another_format() -> None:
    for value in MARKED.values():
        name, said = compiled(written(value, "/p/x-tool", place="executable"))
        assert name == "executable"
        assert any(line.startswith("executable.schema.required-fields: missing") for line in said)


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        (("capability", "skill"), "capability.file.detect"),
        (("capability", "manifest"), "manifest.root.detect"),
        (("skill", "manifest"), "skill.root.mixed-format"),
        (("openapi", "skill"), "openapi.document.mixed"),
        (("openapi", "manifest"), "openapi.document.mixed"),
        (("openapi", "capability"), "openapi.document.mixed"),
    ],
)
@pytest.mark.requirement("manifest.root.detect", "skill.root.mixed-format", "capability.file.detect")
def test_the_markers_of_two_formats_are_refused(pair: tuple[str, str], code: str) -> None:
    for first, second in itertools.permutations(pair):
        tools = [*MARKED[first].get("tools", []), *MARKED[second].get("tools", [])]
        mixed = {**MARKED[first], **MARKED[second], "tools": tools}
        for place in (None, *pair):
            _, said = compiled(written(mixed, place=place))
            assert said == [f"{code}: mixes {pair[0]} and {pair[1]} markers"]


def test_the_markers_of_three_formats_are_refused_too() -> None:
    mixed = {**MARKED["skill"], **MARKED["capability"], **MARKED["manifest"]}
    outcome = formats.compile_document(written(mixed), Rules())[1]
    assert outcome.tools == ()
    assert [problem.message for problem in outcome.problems] == ["mixes capability and skill markers"]


def test_a_repeated_marker_is_a_marker() -> None:
    """Attack: a member that is left out because it is repeated must not change which format reads a file."""
    texts = {
        "skill": '{"allowlist": {}, "allowlist": {}, "tools": []}',
        "capability": '{"group": "a", "group": "b", "tools": []}',
        "manifest": '{"tools": [{"name": "a", "command": [], "command": []}]}',
        "openapi": '{"openapi": "3.0.0", "openapi": "3.1.0", "paths": {}}',
    }
    for name, text in texts.items():
        assert marks(document(text.encode())) == [name]


# -- no marker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [{}, {"tools": []}, {"tools": None}, {"name": "package", "version": "1.0.0"}]
)
def test_no_marker_and_no_tools_are_no_declaration_and_no_mistake(value: Any) -> None:
    assert compiled(written(value, "/p/tools.json")) == (None, [])


@pytest.mark.parametrize(
    "value", [[], 5, "x", None, {"tools": [{"name": "a"}]}, {"tools": [{"name": "a", "comand": []}]}]
)
def test_another_shape_is_an_error_and_nothing_is_guessed(value: Any) -> None:
    name, said = compiled(written(value, "/p/tools.json"))
    assert name is None
    (line,) = said
    assert line.startswith("source.unknown-shape: not a tool declaration of a format we know")


def test_a_list_of_servers_is_named_as_what_it_is() -> None:
    _, said = compiled(written({"mcpServers": {"files": {"command": "npx"}}}, "/p/.mcp.json"))
    assert said == [
        "source.not-probed: a list of MCP servers, which were not asked for their tools: asking starts them"
    ]


def test_a_file_that_cannot_be_read_is_reported_in_the_words_of_its_likely_format() -> None:
    broken = b'{"tools": [,]}'
    defect = "line 1, column 12: expected a value (got ',')"
    assert compiled(document(broken, "/p/tools.json")) == (
        "manifest",
        [f"manifest.root.parse-error: parse manifest: {defect}"],
    )
    assert compiled(document(broken, "/p/g_tools.json", among_groups=True)) == (
        "capability",
        [f"capability.file.json-error: [Registry] JSON error in g_tools.json: {defect}"],
    )
    assert compiled(document(broken, "/p/other.json")) == (
        None,
        [f"source.unreadable: the file cannot be read: {defect}"],
    )
    assert compiled(Document(path="/p/other.json", content=None, unreadable="permission denied")) == (
        None,
        ["source.unreadable: the file cannot be read: permission denied"],
    )


# -- every format -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_format_has_its_name_and_takes_no_units(name: str) -> None:
    format = formats.FORMATS[name]
    assert name == format.NAME
    linked = formats.link(name, (), Rules())
    assert (linked.tools, linked.skills, linked.problems) == ((), (), ())
    linked = formats.link(name, [Unit(path="/p/x", compiled=Compiled())], Rules())
    assert (linked.tools, linked.skills) == ((), ())


PLACES = [(None, ".json"), *((name, ".json") for name in formats.FORMATS if name != "rye")] + [
    ("rye", suffix) for suffix in (".py", ".yaml", ".yml", ".json", ".js", ".ts", ".sh", ".toml")
]


@given(
    st.sampled_from(PLACES),
    st.binary(max_size=200)
    | json_values.map(jsontext.compact)
    | st.builds(
        lambda base, more: jsontext.compact({**base, **more}),
        st.sampled_from([*MARKED.values()]),
        json_objects,
    ),
)
def test_no_bytes_make_a_format_raise_and_the_outcome_is_always_the_same(
    place: tuple[str | None, str], content: bytes
) -> None:
    name, suffix = place
    found = document(
        content,
        f"/p/.ai/tools/x/a{suffix}",
        place=name,
        item=f"x/a{suffix}",
        project="/p",
        neighbours={"SKILL.md": content},
    )
    if suffix != ".json":
        found = Document(
            path=found.path, content=content, place=name, item=found.item, scope="x", project="/p"
        )
    first, second = (formats.compile_document(found, Rules()) for _ in range(2))
    assert first == second
    assert all(problem.code and problem.message and problem.path for problem in first[1].problems)
    if first[0] is not None:
        formats.link(first[0], [Unit(path=found.path, item=found.item, compiled=first[1])], Rules())
