"""The format documents' own examples load, and their documented mistakes give their documented texts.

The documents lie beside the checkout and are read from there; nothing of them is copied.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import shared
from toolcrib import config
from toolcrib.catalog import loading
from toolcrib.model import Rules, Severity
from toolcrib.sandbox import discovery


def load(folder: Path, *sources: str) -> loading.LoadReport:
    return loading.load(
        [config.named_source(text, str(folder)) for text in sources or (".",)],
        Rules(),
        loading.Machine(
            prober=lambda paths: discovery.probe_all(paths, env={"PATH": "/usr/bin:/bin"}),
            which=lambda name: name,
        ),
    )


def errors(report: loading.LoadReport) -> list[str]:
    return [problem.message for problem in report.problems if problem.severity is Severity.ERROR]


def examples(document: str) -> list[dict[str, object]]:
    """The JSON blocks of a document that are whole declarations."""
    text = (shared("specs") / document).read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        try:
            value = json.loads(block)
        except ValueError:
            continue  # a sketch with "..." in it
        if isinstance(value, dict):
            found.append(value)
    assert found
    return found


def put(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_skill_document_s_example_loads(tmp_path: Path) -> None:
    (example,) = [value for value in examples("skill.md") if "allowlist" in value]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "SKILL.md").write_text("# Notes\n", encoding="utf-8")
    put(tmp_path / "notes" / "tools.json", example)
    report = load(tmp_path)
    assert [tool.name for tool in report.catalog.tools] == ["notesmd_cli_search"]
    assert report.problems == ()


def test_the_manifest_document_s_examples_load(tmp_path: Path) -> None:
    manifests = [value for value in examples("manifest.md") if "tools" in value]
    assert len(manifests) == 2
    for number, value in enumerate(manifests):
        put(tmp_path / str(number) / "tools.json", value)
    report = load(tmp_path)
    assert [tool.name for tool in report.catalog.tools] == ["get_time", "get_time"]
    assert errors(report) == []


MISTAKES = {
    "Missing `name`": {"command": ["/bin/true"]},
    "Empty `command`": {"name": "<name>", "command": []},
    "Relative `command[0]` not using": {"name": "<name>", "command": ["./other/x"]},
    "Relative `command[0]` that normalizes": {"name": "<name>", "command": ["./tools/bin/../hack"]},
    "Invalid `envPassthrough`": {
        "name": "<name>",
        "command": ["/bin/true"],
        "envPassthrough": ["ok", "1BAD"],
    },
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_documented_mistake_of_a_manifest_gives_its_documented_text(mistake: str, tmp_path: Path) -> None:
    text = (shared("specs") / "manifest.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(f"- {mistake}")]
    (documented,) = re.findall(r"error `(tool\[i\].*?)`(?: \(|\.|$)", line)
    put(tmp_path / "tools.json", {"tools": [MISTAKES[mistake]]})
    expected = documented.replace("tool[i]", "tool[0]").replace("[j]", "[1]").replace('"..."', '"1BAD"')
    assert expected in errors(load(tmp_path, "manifest=."))


def test_a_repeated_name_of_a_manifest_gives_its_documented_text(tmp_path: Path) -> None:
    text = (shared("specs") / "manifest.md").read_text(encoding="utf-8")
    assert 'tool[i] "<name>": duplicate name' in text
    put(tmp_path / "tools.json", {"tools": [{"name": "a", "command": ["/bin/true"]}] * 2})
    assert errors(load(tmp_path)) == ['tool[1] "a": duplicate name']


def test_the_capability_document_s_example_loads(tmp_path: Path) -> None:
    groups = [value for value in examples("capability.md") if value.get("group") == "journal"]
    (journal,) = groups
    put(tmp_path / "journal_tools.json", journal)
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "journals.py").touch()
    report = load(tmp_path)
    assert [tool.name for tool in report.catalog.tools] == ["recall_journal"]
    assert report.problems == ()


def test_the_executable_document_s_examples_load(tmp_path: Path) -> None:
    schemas = [value for value in examples("executable.md") if {"name", "parameters"} <= value.keys()]
    assert [value["name"] for value in schemas] == ["tool_name", "file_edit"]
    for value in schemas:
        program = tmp_path / "bin" / f"{str(value['name']).replace('_', '-')}-tool"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(value)}\nEND\n", encoding="utf-8")
        program.chmod(0o755)
    report = load(tmp_path, "executable=bin")
    assert [tool.name for tool in report.catalog.tools] == ["file_edit", "tool_name"]
    assert errors(report) == []


def test_the_executable_document_s_property_schemas_are_accepted(tmp_path: Path) -> None:
    properties = [value for value in examples("executable.md") if "type" in value and "name" not in value]
    assert len(properties) >= 3  # enum, array, nested object
    schema = {
        "name": "all_types",
        "description": "Has one of each",
        "parameters": {
            "type": "object",
            "properties": {f"p{n}": value for n, value in enumerate(properties)},
        },
    }
    program = tmp_path / "all-types-tool"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(schema)}\nEND\n", encoding="utf-8")
    program.chmod(0o755)
    report = load(tmp_path, "executable=.")
    assert [tool.name for tool in report.catalog.tools] == ["all_types"]
    assert errors(report) == []


# -- rye ----------------------------------------------------------------------------------------------------


def blocks(document: str, language: str) -> list[str]:
    text = (shared("specs") / document).read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found
    return found


def write(project: Path, item: str, text: str) -> None:
    path = project / ".ai" / "tools" / item
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def whole(document: str, language: str, mark: str) -> list[str]:
    """The blocks that are tools of their own, not parts of one."""
    return [block for block in blocks(document, language) if mark in block]


def test_the_rye_document_s_examples_load(tmp_path: Path) -> None:
    python, *runtimes = whole("rye.md", "python", "__tool_type__")
    write(tmp_path, "category/path/brief.py", python)
    plain, tool, server = whole("rye.md", "yaml", "tool_type:")
    write(tmp_path, "category/path/tool-name.yaml", plain)
    write(tmp_path, "mcp/context7/query-docs.yaml", tool)
    write(tmp_path, "mcp/servers/context7.yaml", server)
    (typescript,) = whole("rye.md", "typescript", "__tool_type__")
    write(tmp_path, "utility/hello_node.ts", typescript)
    (runtime,) = runtimes
    write(tmp_path, "sinks/file-sink.py", runtime.replace("# ...", "pass"))  # its last function has no body
    report = load(tmp_path, "rye=.")
    assert sorted(tool.name for tool in report.catalog.tools) == [
        "category/path/brief",
        "category/path/tool-name",
        "mcp/context7/query-docs",
        "mcp/servers/context7",
        "sinks/file-sink",
        "utility/hello_node",
    ]
    assert errors(report) == []


HEAD = """tool_id: example
tool_type: script
version: "1.0.0"
executor_id: rye/core/runtimes/python/script
category: parts
description: A part of the document in a tool of its own
"""


def test_every_part_of_a_yaml_tool_in_the_rye_document_is_accepted(tmp_path: Path) -> None:
    parts = [block for block in blocks("rye.md", "yaml")[1:] if "tool_type:" not in block]
    keys = {block.partition(":")[0] for block in parts}
    assert {
        "requires",
        "parameters",
        "input_schema",
        "output_schema",
        "retry_policy",
        "cost",
        "config",
    } <= keys
    for number, part in enumerate(parts):
        write(tmp_path, f"parts/part-{number}.yaml", HEAD.replace("example", f"part-{number}") + part)
    report = load(tmp_path, "rye=.")
    assert len(report.catalog.tools) == len(parts)
    assert errors(report) == []


def test_every_constant_of_a_python_tool_in_the_rye_document_is_accepted(tmp_path: Path) -> None:
    (python, *_) = whole("rye.md", "python", "__tool_type__")
    parts = [block for block in blocks("rye.md", "python") if block.startswith("CONFIG_")]
    assert len(parts) == 3
    for number, part in enumerate(parts):
        write(tmp_path, f"category/path/part-{number}.py", f"{python}\n\n{part}")
    report = load(tmp_path, "rye=.")
    assert len(report.catalog.tools) == len(parts)
    assert errors(report) == []
