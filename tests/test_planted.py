"""A tool that may write plants code or declarations for other tools to run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
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
    project: Path,
    *sources: str,
    level: Level = Level.SUPERVISED,
    cwd: Path | None = None,
    file: str | None = None,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[Workshop]:
    variables = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "JOURNAL_KEY": SECRET, **(env or {})}
    environment = replace(Environment.read(variables), state=str(project.parent / "state"))
    where = cwd or project
    named = [str(project / name) for name in sources]
    settings = resolve(environment, cwd=str(where), file=file, sources=named)
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


# -- every folder of tools, and what is there in mixed ones --------------------------------------------------


def laid_out(project: Path) -> None:
    """A project with tools of every format, at its root and below."""
    program = "#!/bin/sh\necho '{}'\n"
    manifest = {
        "tools": [
            {"name": "m", "description": "m", "schema": {"type": "object"}, "command": ["./tools/bin/m"]},
            {
                "name": "script",
                "description": "s",
                "schema": {"type": "object"},
                "command": [sys.executable, "scripts/run.py"],
            },
            {
                "name": "module",
                "description": "s",
                "schema": {"type": "object"},
                "command": [sys.executable, "-m", "inner"],
            },
        ]
    }
    skill = "---\nname: greet\ndescription: d\n---\ntext\n"
    execution = {"tool": "hello", "binary": "echo", "subcommand": "hello", "args": []}
    tools = {
        "tools": [{"name": "hello", "description": "d", "parameters": {"type": "object", "properties": {}}}],
        "allowlist": {"echo": ["hello"]},
        "execution": [execution],
    }
    rye = (
        "__version__ = '1.0.0'\n__tool_type__ = 'python'\n"
        "__executor_id__ = 'rye/core/runtimes/python/script'\n__tool_description__ = 'd'\n"
        "__category__ = 'x'\n"
    )
    javascript = (
        'export const __version__ = "1.0.0";\nexport const __tool_type__ = "javascript";\n'
        'export const __executor_id__ = "rye/core/runtimes/node/node";\nexport const __category__ = "x";\n'
        'export const __tool_description__ = "d";\nexport default () => ({});\n'
    )
    for name, text in {
        "tools.json": json.dumps(manifest),
        "tools/bin/m": program,
        "scripts/run.py": "import beside\nprint('{}')\n",
        "scripts/beside.py": "",
        "inner/__init__.py": "",
        "inner/__main__.py": "print('{}')\n",
        "skills/greet/SKILL.md": skill,
        "skills/greet/tools.json": json.dumps(tools),
        "skills/greet/scripts/resolve.sh": program,
        ".ai/tools/x/note.py": rye,
        ".ai/tools/x/page.js": javascript,
        ".ai/config/web.yaml": "a: 1\n",
        ".ai/cache/kept": "old\n",
        "node_modules/lib/index.js": "",
        "package.json": "{}",
        ".venv/pyvenv.cfg": "",
        ".venv/bin/tool": program,
        ".venv/lib/python3.11/site-packages/requests.py": "",
        "docs/guide.txt": "old\n",
        "toolwright.toml": "",
        "root_tools.json": group("root", "r", "root"),
        "plain.json": json.dumps({"a": 1}),
    }.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        if text == program:
            path.chmod(0o755)


HELD = (
    "tools.json", "tools/bin/m", "tools/bin/new", "scripts/run.py", "scripts/beside.py", "scripts/json.py",
    "inner/__main__.py", "inner/new.py", "skills/greet/SKILL.md", "skills/greet/new.txt",
    "skills/evil/SKILL.md", "skills/greet/scripts/resolve.sh", ".ai/tools/x/note.py", ".ai/tools/evil.py",
    ".ai/config/web.yaml", ".ai/config/keys/trusted/k.toml", "node_modules/lib/index.js",
    "node_modules/evil/index.js", "package.json", ".venv/bin/tool", ".venv/bin/evil",
    ".venv/lib/python3.11/site-packages/sitecustomize.py", ".venv/lib/python3.11/site-packages/evil.pth",
    "toolwright.toml", "root_tools.json", "handlers/root.py", "groups/evil_tools.json",
)  # fmt: skip
WRITABLE = (
    "docs/guide.txt",
    "docs/new.txt",
    "new.txt",
    "plain.json",
    ".ai/cache/kept",
    ".ai/cache/new",
    ".ai/state/x",
)


@contextmanager
def all_formats(project: Path, **more: Any) -> Iterator[Workshop]:
    laid_out(project)
    env = {"PATH": f"{project}/.venv/bin:{os.environ['PATH']}"}
    with opened(project, ".", env=env, unsigned="warn", **more) as workshop:
        yield workshop


@pytest.mark.parametrize("needs", [("fs.read", "fs.write"), None], ids=["stated", "open"])
def test_every_folder_of_tools_is_read_only_and_the_rest_is_not(
    project: Path, needs: tuple[str, ...] | None
) -> None:
    grants = (Grant(pattern="capability:notes/*", needs=needs),)
    with all_formats(project, grants=grants) as workshop:
        could = [name for name in HELD if plant(workshop, written(project / name)) is None]
        assert could == []
        could_not = [name for name in WRITABLE if plant(workshop, written(project / name)) is not None]
        assert could_not == []


WAYS = {
    "a hard link": "os.link('handlers/helper.py', 'copy.py'); open('copy.py', 'w').write('evil')",
    "a file renamed over it": "open('n', 'w').write('evil'); os.rename('n', 'handlers/helper.py')",
    "the folder renamed": "os.rename('handlers', 'old'); os.mkdir('handlers')",
    "the folder removed": "os.unlink('handlers/helper.py')",
    "a folder exchanged": "os.mkdir('h2'); os.rename('h2', 'handlers')",
    "its mode changed": "os.chmod('handlers/helper.py', 0o777)",
    "its times changed": "os.utime('handlers/helper.py')",
    "through the descriptor of a folder": (
        "d = os.open('handlers', os.O_RDONLY); open(os.open('helper.py', os.O_WRONLY, dir_fd=d), 'w')"
    ),
    "through /proc": "open(f'/proc/{os.getppid()}/cwd/handlers/helper.py', 'w')",
    "through a link of its own": "os.symlink('handlers', 'way'); open('way/helper.py', 'w').write('evil')",
    "the end cut off": "os.truncate('handlers/helper.py', 0)",
    "an attribute": "os.setxattr('handlers/helper.py', 'user.a', b'b')",
    "one folder above renamed": "os.rename('../project', '../old')",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("needs", [("fs.read", "fs.write"), None], ids=["stated", "open"])
def test_no_way_leads_around_a_folder_that_is_held(
    project: Path, way: str, needs: tuple[str, ...] | None
) -> None:
    status = (project / "handlers" / "helper.py").stat()
    with opened(project, "groups", grants=(Grant(pattern="capability:notes/*", needs=needs),)) as workshop:
        assert plant(workshop, f"import os; {WAYS[way]}") is not None
        now = (project / "handlers" / "helper.py").stat()
        assert (project / "handlers" / "helper.py").read_text("utf-8") == "VALUE = 'honest'\n"
        assert (now.st_ino, now.st_mode, now.st_mtime_ns) == (
            status.st_ino, status.st_mode, status.st_mtime_ns,
        )  # fmt: skip


def test_a_handler_that_is_a_link_into_a_writable_folder_is_held_where_it_lies(project: Path) -> None:
    (project / "lib").mkdir()
    (project / "handlers" / "helper.py").rename(project / "lib" / "helper.py")
    (project / "handlers" / "helper.py").symlink_to("../lib/helper.py")
    grants = (
        Grant(pattern="capability:notes/*", needs=("fs.read", "fs.write")),
        Grant(pattern="capability:journal/*", needs=("fs.read",), env=("JOURNAL_KEY",)),
    )
    with opened(project, "groups", grants=grants) as workshop:
        assert plant(workshop, written(project / "lib" / "helper.py")) is not None
        assert plant(workshop, written(project / "lib" / "other.py")) is None
        assert recalled(workshop) == HONEST


def test_a_source_inside_the_folder_where_another_tool_works_is_held(project: Path) -> None:
    inner = project / "work" / "deep"
    inner.mkdir(parents=True)
    (project / "groups").rename(inner / "groups")
    (project / "handlers").rename(inner / "handlers")
    with opened(project, "work/deep/groups") as workshop:
        for name in ("groups/evil_tools.json", "handlers/helper/__init__.py", "handlers/journals.py"):
            assert plant(workshop, written(inner / name)) is not None
        assert plant(workshop, written(inner / "other.txt")) is None


def test_folders_of_tools_above_and_around_the_working_folder_stay_writable(project: Path) -> None:
    """A project that is itself a skill, or lies in one: there people work."""
    (project / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\ntext\n", "utf-8")
    with opened(project, ".") as workshop:
        assert plant(workshop, written(project / "notes.txt")) is None
        assert plant(workshop, written(project / "SKILL.md")) is not None


def test_a_folder_of_programs_and_one_of_handlers_that_a_file_names_are_held(project: Path) -> None:
    (project / "code").mkdir()
    for path in (project / "handlers").iterdir():
        path.rename(project / "code" / path.name)
    (project / "toolwright.toml").write_text(
        '[[source]]\npath = "groups"\nhandlers = "code"\n'
        '[[source]]\nformat = "executable"\npath = "programs"\ntrusted = true\n',
        "utf-8",
    )
    (project / "programs").mkdir()
    with opened(project, file=str(project / "toolwright.toml")) as workshop:
        assert recalled(workshop) == HONEST
        for name in ("code/helper/__init__.py", "code/journals.py", "programs/evil-tool"):
            assert plant(workshop, written(project / name)) is not None
