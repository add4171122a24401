"""A tool that may write plants code or declarations for other tools to run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toolwright
from tests.levels import sandbox_of
from toolwright.app import Workshop
from toolwright.config import Environment, resolve
from toolwright.model import Grant, Level

SECRET = "hunter2-of-the-journal"

WRITER = """
import traceback

def execute_notes_tool(name, given):
    found = {}
    try:
        exec(given["code"], found)
    except OSError as error:
        return {"success": True, "result": {"refused": error.strerror}}
    return {"success": True, "result": {"said": found.get("said")}}
"""
JOURNAL = """
import os
import helper

def execute_journal_tool(name, given):
    return {"success": True, "result": {"helper": helper.VALUE, "secret": os.environ.get("JOURNAL_KEY")}}
"""
STEALS = "raise SystemExit('planted code ran')\n"


def group(name: str, tool: str, executor: str) -> str:
    properties = {"code": {"type": "string"}} if executor == "notes" else {}
    schema = {"type": "object", "properties": properties}
    listed = {
        "name": tool,
        "description": tool,
        "input_schema": schema,
        "metadata": {"executor": executor},
    }
    return json.dumps({"group": name, "selection": {"strategy": "always"}, "tools": [listed]})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two groups: one whose tool may write files, and one whose tool has a secret."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "project"
    for name in ("groups", "handlers"):
        (folder / name).mkdir(parents=True)
    (folder / "groups" / "notes_tools.json").write_text(group("notes", "write_note", "notes"), "utf-8")
    (folder / "groups" / "journal_tools.json").write_text(group("journal", "recall", "journal"), "utf-8")
    (folder / "handlers" / "notes.py").write_text(WRITER, "utf-8")
    (folder / "handlers" / "journal.py").write_text(JOURNAL, "utf-8")
    (folder / "handlers" / "helper.py").write_text("VALUE = 'honest'\n", "utf-8")
    return folder


@contextmanager
def opened(
    project: Path, *sources: str, level: Level = Level.SUPERVISED, cwd: Path | None = None, **more: Any
) -> Iterator[Workshop]:
    environment = replace(
        Environment.read({"PATH": os.environ["PATH"], "HOME": "/nowhere", "JOURNAL_KEY": SECRET}),
        state=str(project.parent / "state"),
    )
    where = cwd or project
    settings = resolve(environment, cwd=str(where), sources=[str(project / name) for name in sources])
    grants = (
        Grant(pattern="capability:notes/*", needs=("fs.read", "fs.write")),
        Grant(pattern="capability:journal/*", needs=(), env=("JOURNAL_KEY",)),
    )
    here = os.getcwd()
    os.chdir(where)
    try:
        with (
            sandbox_of(level) as sandbox,
            toolwright.open(
                replace(settings, **{"grants": grants, **more}), environment=environment, sandbox=sandbox
            ) as workshop,
        ):
            yield workshop
    finally:
        os.chdir(here)


def plant(workshop: Workshop, code: str) -> str | None:
    """What the kernel said to the writing tool; None: it could do what it wanted."""
    result = workshop.call("write_note", {"code": code})
    assert result.ok, result.error
    found = json.loads(result.content)
    refused = found.get("result", found).get("refused")
    return None if refused is None else str(refused)


def written(path: Path | str, text: str = STEALS) -> str:
    make = f"import os; os.makedirs(os.path.dirname({str(path)!r}) or '.', exist_ok=True)"
    return f"{make}; open({str(path)!r}, 'w').write({text!r})"


def recalled(workshop: Workshop) -> Any:
    result = workshop.call("recall", {})
    assert result.ok, result.error
    found = json.loads(result.content)
    return found.get("result", found)


HONEST = {"helper": "honest", "secret": "[secret JOURNAL_KEY]"}
IN_HANDLERS = {
    "a module that another handler imports": "handlers/helper.py",
    "a package that shadows the module": "handlers/helper/__init__.py",
    "an alias that is found before the handler": "handlers/journals.py",
    "the handler itself": "handlers/journal.py",
    "compiled code of the module": "handlers/__pycache__/helper.cpython-311.pyc",
    "an extension module": "handlers/helper.abi3.so",
    "a module of the standard library": "handlers/os.py",
}


@pytest.mark.parametrize("what", IN_HANDLERS)
@pytest.mark.parametrize("sources", [("groups",), (".",)], ids=["groups", "project"])
@pytest.mark.parametrize("is_loaded", [False, True], ids=["first", "again"])
def test_a_tool_cannot_plant_what_another_tools_handler_would_run(
    project: Path, what: str, sources: tuple[str, ...], is_loaded: bool
) -> None:
    path = project / IN_HANDLERS[what]
    with opened(project, *sources) as workshop:
        if is_loaded:
            assert recalled(workshop) == HONEST
        assert plant(workshop, written(path)) is not None
        assert recalled(workshop) == HONEST
    assert "planted" not in "".join(
        each.read_text("utf-8", "replace") for each in (project / "handlers").rglob("*.py")
    )


def test_a_tool_cannot_declare_another_tool_in_a_folder_of_groups(project: Path) -> None:
    with opened(project, "groups") as workshop:
        assert plant(workshop, written("groups/evil_tools.json", group("evil", "evil", "evil"))) is not None
        assert plant(workshop, written("handlers/evil.py")) is not None
        workshop.reload()
        assert sorted(tool.name for tool in workshop.tools) == ["recall", "write_note"]
