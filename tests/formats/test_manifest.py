"""The manifest format, where a case of tests/conformance cannot say it: declarations, fixes, odd bytes, real
files, the page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import shared
from tests.strategies import json_values, texts
from toolcrib import app, jsontext
from toolcrib.catalog import mending
from toolcrib.config import Config
from toolcrib.dialects import DIALECTS
from toolcrib.formats import manifest
from toolcrib.model import Compiled, Document, Reply, Rules, RunProcess, Severity

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "manifest.md"

GET_TIME: dict[str, Any] = {
    "name": "get_time",
    "description": "Get current time for an IANA timezone",
    "schema": {
        "type": "object",
        "properties": {
            "timezone": {"type": "string", "description": "IANA timezone, e.g. Europe/Helsinki"},
            "tz": {"type": "string", "description": "Alias for timezone (deprecated)"},
        },
        "required": ["timezone"],
        "additionalProperties": False,
    },
    "command": ["./tools/bin/get_time", "--utc"],
    "timeoutSec": 5,
    "envPassthrough": ["TZ", "OAI_HTTP_TIMEOUT"],
}


def document(content: bytes | dict[str, Any], path: str = "/srv/m/tools.json") -> Document:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Document(path=path, content=text, parsed=jsontext.read(text), scope="m")


def compiled(*tools: Any, rules: Rules | None = None) -> Compiled:
    return manifest.compile_document(document({"tools": list(tools)}), rules or Rules())


def opened(tmp_path: Path, *tools: Any) -> app.Crib:
    (tmp_path / "m").mkdir(exist_ok=True)
    (tmp_path / "m" / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    return app.open(str(tmp_path / "m"), config=Config())


# -- reading ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("manifest.root.read-error")
def test_a_missing_file_is_reported_under_the_read_prefix(tmp_path: Path) -> None:
    (tmp_path / "tools.json").symlink_to(tmp_path / "missing")
    crib = app.open(str(tmp_path), config=Config())
    (problem,) = crib.problems
    assert (problem.code, problem.message) == (
        "manifest.root.read-error",
        "read manifest: no such file or directory",
    )
    assert list(crib.tools) == []


@pytest.mark.requirement("manifest.command.base-dir")
def test_a_program_is_resolved_against_the_manifest_and_not_the_working_directory() -> None:
    (tool,) = compiled(GET_TIME).tools
    assert isinstance(tool.invocation, RunProcess)
    assert os.getcwd() != "/srv/m"
    assert tool.invocation.program == "/srv/m/tools/bin/get_time"


@pytest.mark.requirement("manifest.command.windows-exe")
def test_on_windows_a_relative_program_without_exe_is_pointed_out() -> None:
    windows = Rules(windows=True)
    for program, warned in (("./tools/bin/get_time.exe", False), ("./tools/bin/get_time", True)):
        found = compiled({**GET_TIME, "command": [program]}, rules=windows)
        assert len(found.tools) == 1
        assert [problem.code for problem in found.problems] == ["manifest.command.windows-exe"] * warned


def test_a_very_long_timeout_counts_as_a_very_long_one() -> None:
    (tool,) = compiled({**GET_TIME, "timeoutSec": 10**4000}).tools
    assert tool.needs.timeout_s == 1e9


def test_a_long_name_is_cut_in_every_message() -> None:
    found = compiled({**GET_TIME, "name": "n" * 100_000, "envPassthrough": [""] * 1000})
    assert len(found.problems) == 1001
    assert max(len(problem.message) for problem in found.problems) < 200


def test_every_problem_of_a_tool_names_the_tool() -> None:
    found = compiled(
        {"name": "a", "command": ["../x"], "envPassthrough": ["1"], "schema": [], "timeoutSec": "1"}
    )
    assert len(found.problems) == 4
    assert all(problem.message.startswith('tool[0] "a": ') for problem in found.problems)


# -- what models see ----------------------------------------------------------------------------------------


@pytest.mark.requirement("manifest.declare.openai", "manifest.schema.verbatim")
def test_a_tool_is_exported_as_a_function_with_the_authors_schema(tmp_path: Path) -> None:
    declared = opened(tmp_path, GET_TIME).declare("openai")
    expected = {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Get current time for an IANA timezone",
            "parameters": GET_TIME["schema"],
        },
    }
    # As text, so that the order of the keys counts too.
    assert json.dumps(declared.payload) == json.dumps([expected])
    assert declared.losses == ()


@pytest.mark.requirement("manifest.schema.optional", "manifest.description.optional")
def test_without_schema_and_description_only_the_name_is_declared(tmp_path: Path) -> None:
    crib = opened(tmp_path, {"name": "a", "command": ["/bin/true"]})
    assert crib.declare("openai").payload == [{"type": "function", "function": {"name": "a"}}]
    (anthropic,) = crib.declare("anthropic").payload
    assert anthropic["input_schema"]["type"] == "object"
    assert "manifest.description.optional" in {problem.code for problem in crib.problems}


@pytest.mark.requirement("manifest.declare.no-leak")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_command_timeout_and_environment_are_in_no_declaration(tmp_path: Path, dialect: str) -> None:
    text = json.dumps(opened(tmp_path, GET_TIME).declare(dialect).payload)
    assert "get_time" in text
    for secret in (
        "tools/bin",
        "--utc",
        "timeoutSec",
        "timeout",
        "envPassthrough",
        "OAI_HTTP_TIMEOUT",
        "command",
    ):
        assert secret not in text


@pytest.mark.requirement("manifest.name.charset")
def test_a_name_no_provider_takes_is_declared_under_a_substitute_and_called_back(tmp_path: Path) -> None:
    crib = opened(tmp_path, {**GET_TIME, "name": "code.sandbox.js.run"})
    declared = crib.declare("openai")
    assert [entry["function"]["name"] for entry in declared.payload] == ["code_sandbox_js_run"]
    called = {"id": "1", "type": "function", "function": {"name": "code_sandbox_js_run", "arguments": "{}"}}
    (call,) = crib.dialect("openai").read_calls({"role": "assistant", "tool_calls": [called]}, declared.names)
    assert call.tool == "manifest:m/code.sandbox.js.run"
    assert crib.find(call.tool).name == "code.sandbox.js.run"


@pytest.mark.requirement("manifest.run.not-json")
def test_the_record_says_that_one_line_of_json_is_expected() -> None:
    # What is done with a line that is none belongs to the runtime; the record is all that it goes by.
    (tool,) = compiled(GET_TIME).tools
    assert tool.reply is Reply.JSON_LINE


# -- fixes --------------------------------------------------------------------------------------------------


def test_fixes_leave_the_same_tool_without_the_warning(tmp_path: Path) -> None:
    written = '{"Tools": [{"Name": "a", "description": "A",\n  "Command": ["tools//bin/a"]}]}'
    (tmp_path / "tools.json").write_text(written, encoding="utf-8")
    before = app.open(str(tmp_path), config=Config())
    assert len(mending.mend(before.problems, [str(tmp_path)]).problems) == 4
    after = app.open(str(tmp_path), config=Config())
    expected = '{"tools": [{"name": "a", "description": "A",\n  "command": ["./tools/bin/a"]}]}'
    assert (tmp_path / "tools.json").read_text(encoding="utf-8") == expected
    assert [problem.code for problem in after.problems] == ["manifest.command.missing-file"]
    assert [tool.invocation for tool in after.tools] == [tool.invocation for tool in before.tools]


def test_a_spelling_beside_the_right_one_has_no_fix() -> None:
    found = compiled({"name": "a", "Command": ["/bin/sh"], "command": ["./tools/bin/a"]})
    assert found.tools == ()
    assert [problem.fix for problem in found.problems] == [None, None]


# -- anything at all ----------------------------------------------------------------------------------------


@given(st.binary(max_size=200) | json_values.map(jsontext.compact))
def test_no_bytes_make_it_raise(content: bytes) -> None:
    found = manifest.compile_document(document(content), Rules())
    assert found == manifest.compile_document(document(content), Rules())
    assert all(problem.code.startswith("manifest.") and problem.message for problem in found.problems)


def places(value: Any, pointer: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return [found for found, _ in jsontext.walk(value, pointer)]


def with_change(pointer: tuple[Any, ...], new: Any) -> dict[str, Any]:
    """The document's example with another value in one place."""
    changed: dict[str, Any] = json.loads(json.dumps({"tools": [GET_TIME, {**GET_TIME, "name": "other"}]}))
    if pointer:
        jsontext.at(changed, pointer[:-1])[pointer[-1]] = new
    return changed


@given(st.sampled_from(places({"tools": [GET_TIME]})[2:]), json_values)
def test_no_change_of_the_example_makes_it_raise_or_costs_the_other_tool(
    pointer: tuple[Any, ...], new: Any
) -> None:
    found = manifest.compile_document(document(with_change(pointer, new)), Rules())
    assert "other" in [tool.name for tool in found.tools] or new == "other"
    dropped = 2 - len(found.tools)
    assert dropped == len(
        {problem.pointer[:2] for problem in found.problems if problem.pointer and is_error(problem)}
    )


def is_error(problem: Any) -> bool:
    return problem.severity is Severity.ERROR


@given(
    st.lists(st.sampled_from([".", "..", "tools", "bin", "x", "", "Tools", "bin\\..", "\\"]), max_size=8).map(
        "/".join
    )
    | texts
)
def test_no_relative_program_lies_outside_of_tools_bin(program: str) -> None:
    found = compiled({**GET_TIME, "command": [program]})
    for tool in found.tools:
        assert isinstance(tool.invocation, RunProcess)
        if not program.startswith("/"):
            assert os.path.normpath(tool.invocation.program) == tool.invocation.program
            assert tool.invocation.program.startswith("/srv/m/tools/bin/")
    assert len(found.tools) + len([problem for problem in found.problems if is_error(problem)]) == 1


# -- real files ---------------------------------------------------------------------------------------------


def real_files() -> list[dict[str, Any]]:
    index = json.loads((shared("corpus/manifest") / "INDEX.json").read_text(encoding="utf-8"))
    files: list[dict[str, Any]] = index["files"]
    return files


def test_real_files_give_the_tools_and_the_texts_that_are_written_down() -> None:
    folder = shared("corpus/manifest")
    assert len(real_files()) == 9
    for entry in real_files():
        path = folder / entry["file"]
        crib = app.open(str(path), config=Config())
        expected = entry["expected"]
        assert [tool.name for tool in crib.tools] == expected["tools"], entry["file"]
        errors = [problem.message for problem in crib.problems if is_error(problem)]
        assert errors == expected.get("problem_texts", []), entry["file"]
        warnings = [problem.code for problem in crib.problems if not is_error(problem)]
        assert warnings.count("manifest.command.missing-file") == expected["tools_accepted"]
        strict = app.open(str(path), config=Config(manifest_strict=True))
        assert len(strict.tools) == expected["strict_mode_tools_accepted"], entry["file"]


# -- the page -----------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_load_without_a_problem() -> None:
    examples = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        found = manifest.compile_document(document(text.encode()), Rules(manifest_strict=True))
        assert len(found.tools) == 1
        assert found.problems == ()


def test_the_page_lists_every_code() -> None:
    source = Path(manifest.__file__).read_text(encoding="utf-8")
    used = set(re.findall(r'"(manifest\.[a-z]+\.[a-z-]+)"', source)) | {"manifest.root.detect"}
    assert used == set(re.findall(r"\| `(manifest\.[a-z.-]+)`", PAGE.read_text(encoding="utf-8")))


def test_a_file_of_countless_tools_is_refused_whole() -> None:
    """Ten thousand are enough for anybody; a megabyte of tiny ones would take two hundred in memory."""
    tools = [{"name": f"t{number}", "command": ["/bin/true"]} for number in range(10_001)]
    content = json.dumps({"tools": tools}).encode()
    found = Document(path="/p/tools.json", content=content, parsed=jsontext.read(content), scope="p")
    compiled = manifest.compile_document(found, Rules())
    assert compiled.tools == ()
    assert [problem.code for problem in compiled.problems] == ["manifest.root.too-many-tools"]
