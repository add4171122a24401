"""A tool that may write plants code or declarations for other tools to run."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.levels import each_level, sandbox_of
from tests.program import WAIT_S, Said
from tests.program import toolcrib as command
from tests.test_watching import watched
from toolcrib.app import Crib
from toolcrib.config import Environment, resolve
from toolcrib.errors import ConfigError, Kind
from toolcrib.model import Grant, Level
from toolcrib.paths import TICKS_NS

ROOT = Path(__file__).parent.parent
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
) -> Iterator[Crib]:
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
            toolcrib.open(
                replace(settings, **{"grants": grants, **more}), environment=environment, sandbox=sandbox
            ) as crib,
        ):
            yield crib
    finally:
        os.chdir(here)


def plant(crib: Crib, code: str) -> str | None:
    """What the kernel said to the writing tool; None: it could do what it wanted."""
    result = crib.call("write_note", {"code": code})
    assert result.ok, result.error
    found = json.loads(result.content)
    refused = found.get("result", found).get("refused")
    return None if refused is None else str(refused)


def written(path: Path | str, text: str = STEALS) -> str:
    make = f"import os; os.makedirs(os.path.dirname({str(path)!r}) or '.', exist_ok=True)"
    return f"{make}; open({str(path)!r}, 'w').write({text!r})"


def recalled(crib: Crib) -> Any:
    result = crib.call("recall", {})
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
    with opened(project, *sources) as crib:
        if is_loaded:
            assert recalled(crib) == HONEST
        assert plant(crib, written(path)) is not None
        assert recalled(crib) == HONEST
    assert "planted" not in "".join(
        each.read_text("utf-8", "replace") for each in (project / "handlers").rglob("*.py")
    )


FROM_ABOVE = """
from common import X
try:
    import plugin
    EXTRA = plugin.X
except ImportError:
    EXTRA = "none"

def execute_journal_tool(name, given):
    import lib.thing
    return {"success": True, "result": [X, EXTRA, lib.thing.X]}
"""


@pytest.mark.parametrize(
    "path", ["common.py", "lib/thing.py", "lib/__init__.py", "plugin.py", "plugin/__init__.py"]
)
@pytest.mark.parametrize("is_loaded", [False, True], ids=["first", "again"])
def test_a_tool_cannot_plant_what_a_handler_imports_from_the_folder_above(
    project: Path, path: str, is_loaded: bool
) -> None:
    (project / "handlers" / "journal.py").write_text(FROM_ABOVE, "utf-8")
    (project / "lib").mkdir()
    for name in ("common.py", "lib/thing.py"):
        (project / name).write_text("X = 'good'\n", "utf-8")
    grants = (
        Grant(pattern="capability:notes/*", needs=("fs.read", "fs.write")),
        Grant(pattern="capability:journal/*", needs=("fs.read",)),
    )
    with opened(project, "groups", grants=grants) as crib:
        if is_loaded:
            assert recalled(crib) == ["good", "none", "good"]
        refused = plant(crib, written(path, "X = 'planted'\n"))
        result = crib.call("recall", {})
        assert "planted" not in result.content
        if refused is not None:
            assert recalled(crib) == ["good", "none", "good"]
        else:
            assert result.error is not None
            assert result.error.kind is Kind.DENIED
            assert path.partition("/")[0] in result.error.message


def test_a_tool_cannot_declare_another_tool_in_a_folder_of_groups(project: Path) -> None:
    with opened(project, "groups") as crib:
        assert plant(crib, written("groups/evil_tools.json", group("evil", "evil", "evil"))) is not None
        assert plant(crib, written("handlers/evil.py")) is not None
        crib.reload()
        assert sorted(tool.name for tool in crib.tools) == ["recall", "write_note"]


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
        "__executor_id__ = 'rye/core/runtimes/python/script'\n"
        "__tool_description__ = 'd'\n__category__ = 'x'\n"
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
        "toolcrib.toml": "",
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
    "toolcrib.toml", "root_tools.json", "handlers/root.py", "groups/evil_tools.json",
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
def all_formats(project: Path, **more: Any) -> Iterator[Crib]:
    laid_out(project)
    env = {"PATH": f"{project}/.venv/bin:{os.environ['PATH']}"}
    with opened(project, ".", env=env, unsigned="warn", **more) as crib:
        yield crib


@pytest.mark.parametrize("needs", [("fs.read", "fs.write"), None], ids=["stated", "open"])
def test_every_folder_of_tools_is_read_only_and_the_rest_is_not(
    project: Path, needs: tuple[str, ...] | None
) -> None:
    grants = (Grant(pattern="capability:notes/*", needs=needs),)
    with all_formats(project, grants=grants) as crib:
        could = [name for name in HELD if plant(crib, written(project / name)) is None]
        assert could == []
        could_not = [name for name in WRITABLE if plant(crib, written(project / name)) is not None]
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
    with opened(project, "groups", grants=(Grant(pattern="capability:notes/*", needs=needs),)) as crib:
        assert plant(crib, f"import os; {WAYS[way]}") is not None
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
    with opened(project, "groups", grants=grants) as crib:
        assert plant(crib, written(project / "lib" / "helper.py")) is not None
        assert plant(crib, written(project / "lib" / "other.py")) is None
        assert recalled(crib) == HONEST


def test_a_source_inside_the_folder_where_another_tool_works_is_held(project: Path) -> None:
    inner = project / "work" / "deep"
    inner.mkdir(parents=True)
    (project / "groups").rename(inner / "groups")
    (project / "handlers").rename(inner / "handlers")
    with opened(project, "work/deep/groups") as crib:
        for name in ("groups/evil_tools.json", "handlers/helper/__init__.py", "handlers/journals.py"):
            assert plant(crib, written(inner / name)) is not None
        assert plant(crib, written(inner / "other.txt")) is None


def test_folders_of_tools_above_and_around_the_working_folder_stay_writable(project: Path) -> None:
    """A project that is itself a skill, or lies in one: there people work."""
    (project / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\ntext\n", "utf-8")
    with opened(project, ".") as crib:
        assert plant(crib, written(project / "notes.txt")) is None
        assert plant(crib, written(project / "SKILL.md")) is not None


def test_a_folder_of_programs_and_one_of_handlers_that_a_file_names_are_held(project: Path) -> None:
    (project / "code").mkdir()
    for path in (project / "handlers").iterdir():
        path.rename(project / "code" / path.name)
    (project / "toolcrib.toml").write_text(
        '[[source]]\npath = "groups"\nhandlers = "code"\n'
        '[[source]]\nformat = "executable"\npath = "programs"\ntrusted = true\n',
        "utf-8",
    )
    (project / "programs").mkdir()
    with opened(project, file=str(project / "toolcrib.toml")) as crib:
        assert recalled(crib) == HONEST
        for name in ("code/helper/__init__.py", "code/journals.py", "programs/evil-tool"):
            assert plant(crib, written(project / name)) is not None


# -- names that were not there -------------------------------------------------------------------------------


def problems(crib: Crib) -> list[str]:
    return [problem.message for problem in crib.problems if problem.code == "source.unconfirmed"]


def names(crib: Crib) -> list[str]:
    return sorted(tool.name for tool in crib.tools)


DECLARATIONS = {
    "evil_tools.json": group("evil", "evil", "evil"),
    "evil.json": group("evil", "evil", "evil"),
    "tools.json": json.dumps(
        {
            "tools": [
                {"name": "evil", "description": "d", "schema": {"type": "object"}, "command": ["/bin/sh"]}
            ]
        }
    ),
    "SKILL.md": "---\nname: evil\ndescription: d\n---\ntext\n",
    "evil/SKILL.md": "---\nname: evil\ndescription: d\n---\ntext\n",
    "docs/evil_tools.json": group("evil", "evil", "evil"),
    "skills/evil/SKILL.md": "---\nname: evil\ndescription: d\n---\ntext\n",
    ".ai/tools/evil.sh": "#!/bin/sh\n# rye: evil\n",
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_that_a_tool_made_in_the_project_is_not_offered_by_any_host(
    project: Path, name: str
) -> None:
    (project / "docs").mkdir()
    grants = (Grant(pattern="capability:notes/*", needs=("fs.read", "fs.write")),)
    with opened(project, ".", grants=grants) as crib:
        before = (names(crib), [skill.name for skill in crib.skills])
        assert plant(crib, written(project / name, DECLARATIONS[name])) is None
        crib.reload()
        assert (names(crib), [skill.name for skill in crib.skills]) == before
        (message,) = problems(crib)
        assert f"{project}/{name.partition('/')[0]}" in message
    with opened(project, ".") as crib:
        assert (names(crib), [skill.name for skill in crib.skills]) == before
        (message,) = problems(crib)
        assert "capability:notes/write_note" in message


@pytest.mark.parametrize("level", each_level())
@pytest.mark.parametrize("name", ["evil_tools.json", "evil/SKILL.md", "docs/evil_tools.json"])
def test_what_a_tool_made_is_written_down_when_its_host_ends(project: Path, name: str, level: Level) -> None:
    """Nothing loaded it meanwhile: one command made it, and the next one would offer it."""
    (project / "docs").mkdir()
    needs = ("fs.read", "fs.write", "fs.write.unprotected")
    with opened(
        project, ".", level=level, grants=(Grant(pattern="capability:notes/*", needs=needs),)
    ) as crib:
        before = names(crib)
        assert plant(crib, written(project / name, DECLARATIONS[name])) is None
    with opened(project, ".") as crib:
        assert names(crib) == before
        assert len(problems(crib)) == 1


def test_what_a_tool_makes_is_not_offered_by_another_host_while_the_tool_runs(project: Path) -> None:
    planting = written(project / "evil_tools.json", DECLARATIONS["evil_tools.json"])
    with opened(project, ".") as crib, ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            plant,
            crib,
            f"{planting}\nimport time\nwhile not os.path.exists('go'): time.sleep(0.01)",
        )
        until(lambda: (project / "evil_tools.json").exists())
        with opened(project, ".") as other:
            assert names(other) == ["recall", "write_note"]
            assert len(problems(other)) == 1
        (project / "go").write_text("")
        assert running.result() is None


def test_what_a_tool_made_is_not_offered_although_its_host_was_killed(project: Path) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.test_planted import opened, plant, written, DECLARATIONS\n"
        "project = Path(sys.argv[1])\n"
        "with opened(project, '.') as crib:\n"
        "    path = project / 'evil_tools.json'\n"
        "    assert plant(crib, written(path, DECLARATIONS['evil_tools.json'])) is None\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(project)], check=False, cwd=ROOT)
    assert ended.returncode == -9
    for _ in range(2):
        with opened(project, ".") as crib:
            assert names(crib) == ["recall", "write_note"]
            assert len(problems(crib)) == 1
    assert not list((project.parent / "state" / "open").iterdir())


def test_a_file_that_was_no_declaration_and_becomes_one_is_not_offered(project: Path) -> None:
    (project / "data.json").write_text("{}", "utf-8")
    with opened(project, ".") as crib:
        before = names(crib)
        assert plant(crib, written(project / "data.json", group("evil", "evil", "evil"))) is None
        crib.reload()
        assert names(crib) == before
    with opened(project, ".") as crib:
        assert names(crib) == before
        assert len(problems(crib)) == 1


def test_what_an_author_makes_while_nothing_runs_is_offered_at_once(project: Path) -> None:
    with opened(project, ".") as crib:
        assert plant(crib, written(project / "out.json", "{}")) is None
    a_moment_later(project)
    (project / "mine_tools.json").write_text(group("mine", "mine", "mine"), "utf-8")
    (project / "skills" / "new").mkdir(parents=True)
    (project / "skills" / "new" / "SKILL.md").write_text(
        "---\nname: new\ndescription: d\n---\ntext\n", "utf-8"
    )
    with opened(project, ".") as crib:
        assert "mine" in names(crib)
        assert [skill.name for skill in crib.skills] == ["new"]
        assert problems(crib) == []


def test_a_handler_that_a_tool_made_where_there_was_none_is_not_run(project: Path) -> None:
    (project / "root_tools.json").write_text(group("root", "r", "root"), "utf-8")
    (project / "handlers").rename(project / "code")
    (project / "toolcrib.toml").write_text(
        '[[source]]\npath = "groups"\nhandlers = "code"\n[[source]]\npath = "root_tools.json"\n', "utf-8"
    )
    file = str(project / "toolcrib.toml")
    with opened(project, file=file) as crib:
        assert plant(crib, written(project / "handlers" / "root.py", ROOT_HANDLER)) is None
        result = crib.call("r", {})
        assert not result.ok
        assert result.error is not None
        assert "handlers appeared" in result.error.message
        assert "toolcrib trust" in (result.error.hint or "")
    with opened(project, file=file) as crib:
        assert not crib.call("r", {}).ok
        assert [left.tool for left in crib.declare("anthropic").left_out] == ["capability:root/r"]


ROOT_HANDLER = "def execute_root_tool(name, given):\n    return {'success': True, 'result': 'planted'}\n"
IMPORTING = {
    "a module that it names": ("import beside\n", "beside.py"),
    "a package before the module": ("import beside\n", "beside/__init__.py"),
    "one of the standard library": ("import json\n", "json.py"),
    "compiled code": ("import beside\n", "beside.pyc"),
    "an extension": ("import beside\n", "beside.so"),
}


@pytest.mark.parametrize("what", IMPORTING)
@pytest.mark.parametrize("how", ["script", "module", "text"])
def test_a_program_does_not_import_what_a_tool_made_beside_it(project: Path, what: str, how: str) -> None:
    text, name = IMPORTING[what]
    (project / "run.py").write_text(f"{text}print('{{}}')\n", "utf-8")
    command = {
        "script": [sys.executable, "run.py"],
        "module": [sys.executable, "-m", "run"],
        "text": [sys.executable, "-c", f"{text}print('{{}}')"],
    }[how]
    tool = {"name": "runs", "description": "d", "schema": {"type": "object"}, "command": command}
    (project / "tools.json").write_text(json.dumps({"tools": [tool]}), "utf-8")
    if what == "a package before the module":
        (project / "beside.py").write_text("", "utf-8")
    with opened(project, ".") as crib:
        assert plant(crib, written(project / name)) is None
        result = crib.call("runs", {})
        assert result.error is not None
        assert f"{project}/{name.partition('/')[0]} appeared" in result.error.message
    with opened(project, ".") as crib:
        result = crib.call("runs", {})
        assert result.error is not None
        assert "appeared" in result.error.message


def test_a_module_that_people_add_between_calls_is_imported(project: Path) -> None:
    (project / "run.py").write_text("print('{}')\n", "utf-8")
    tools = [
        {"name": name, "description": "d", "schema": {"type": "object"}, "command": command}
        for name, command in (
            ("runs", [sys.executable, "run.py"]),
            ("writes", ["/usr/bin/touch", "made.txt"]),
        )
    ]
    (project / "tools.json").write_text(json.dumps({"tools": tools}), "utf-8")
    with opened(project, ".") as crib:
        assert crib.call("writes", {}).ok
        a_moment_later(project)
        (project / "beside.py").write_text("", "utf-8")
        (project / "run.py").write_text("import beside\nprint('{}')\n", "utf-8")
        result = crib.call("runs", {})
        assert result.ok, result.error


def test_a_configuration_that_a_tool_made_is_neither_followed_nor_passed_over(project: Path) -> None:
    with opened(project, ".") as crib:
        assert plant(crib, written(project / "toolcrib.toml", '[[source]]\npath = "evil"\n')) is None
    with pytest.raises(ConfigError, match=r"toolcrib\.toml appeared"), opened(project):
        pass
    assert confirmed(project, "toolcrib.toml").status == 0
    with opened(project) as crib:
        assert names(crib) == []


def confirmed(project: Path, path: str) -> Said:
    state = str(project.parent / "state")
    return command("--state", state, "trust", "--yes", path, cwd=project, home=project.parent / "home")


def a_moment_later(project: Path) -> None:
    """Until what was changed seems earlier than what begins from now on: the clock of a file system does not
    move between its ticks."""
    began, probe = time.time_ns(), project.parent / "tick"

    def is_later() -> bool:
        probe.write_text("", "utf-8")
        return probe.stat().st_ctime_ns > began + 2 * TICKS_NS

    until(is_later)


@pytest.mark.parametrize("path", ["evil_tools.json", "evil", "evil/SKILL.md"])
def test_a_person_confirms_what_appeared_and_it_is_used(project: Path, path: str) -> None:
    name = "evil_tools.json" if path.endswith(".json") else "evil/SKILL.md"
    with opened(project, ".") as crib:
        assert plant(crib, written(project / name, DECLARATIONS[name])) is None
    with opened(project, ".") as crib:
        assert len(problems(crib)) == 1
        said = confirmed(project, path)
        assert said.status == 0, said
        crib.reload()
        assert problems(crib) == []
        assert plant(crib, written(project / name)) is not None, "it is held from now on"
    with opened(project, ".") as crib:
        assert ("evil" in names(crib)) is (name == "evil_tools.json")
        assert [skill.name for skill in crib.skills] == (["evil"] if name != "evil_tools.json" else [])
    (project / name).write_text(DECLARATIONS[name].replace("evil", "mine", 1), "utf-8")
    with opened(project, ".") as crib:
        assert problems(crib) == [], "its author goes on to edit it"


def test_attack_what_was_confirmed_is_exchanged_before_a_host_uses_it(project: Path) -> None:
    path = project / "evil_tools.json"
    with opened(project, ".") as crib:
        assert plant(crib, written(path, DECLARATIONS["evil_tools.json"])) is None
        crib.reload()
        assert confirmed(project, "evil_tools.json").status == 0
        path.write_text(group("evil", "other", "evil"), "utf-8")
        crib.reload()
        assert names(crib) == ["recall", "write_note"]
        assert len(problems(crib)) == 1
    with opened(project, ".") as crib:
        assert names(crib) == ["recall", "write_note"]


def test_while_serving_a_declaration_in_a_shared_folder_waits_and_one_in_a_folder_of_tools_does_not(
    project: Path,
) -> None:
    with opened(project, ".") as crib, watched(crib) as told:
        (project / "groups" / "more_tools.json").write_text(group("more", "more", "more"), "utf-8")
        until(lambda: "more" in names(crib))
        (project / "mine_tools.json").write_text(group("mine", "mine", "mine"), "utf-8")
        until(lambda: problems(crib) != [])
        assert "mine" not in names(crib)
        assert confirmed(project, "mine_tools.json").status == 0
        until(lambda: "mine" in names(crib))
        assert told.failed.empty()


def test_while_serving_tools_that_write_nothing_every_declaration_is_offered_at_once(project: Path) -> None:
    (project / "groups" / "notes_tools.json").unlink()
    with opened(project, ".") as crib, watched(crib):
        (project / "mine_tools.json").write_text(group("mine", "mine", "mine"), "utf-8")
        until(lambda: "mine" in names(crib))
        assert problems(crib) == []


RYE = (
    "import os\n__version__ = '1.0.0'\n__tool_type__ = 'python'\n"
    "__executor_id__ = 'rye/core/runtimes/python/script'\n__tool_description__ = 'd'\n__category__ = 'x'\n"
    "print(os.environ.get('PLANTED'))\n"
)


def rye(project: Path, name: str = "x/note.py", text: str = RYE) -> None:
    path = project / ".ai" / "tools" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


# -- folders that no host looks through ---------------------------------------------------------------------


def tools_json(word: str, *command: str) -> str:
    tool = {"name": "evil", "description": "d", "schema": {"type": "object"}}
    return json.dumps({"tools": [{**tool, "command": [*(command or ("/bin/echo", json.dumps(word)))]}]})


EVIL = tools_json("planted")
ELSEWHERE = {
    "written": written("docs/a/deep/tools.json", EVIL),
    "written into a folder that is there": written("docs/a/tools.json", EVIL),
    "rewritten": f"open('docs/a/there/tools.json', 'w').write({EVIL!r})",
    "rewritten through a map": (
        "import mmap; file = open('docs/a/there/tools.json', 'r+b'); data = mmap.mmap(file.fileno(), 0); "
        "place = data.find(b'honest'); data[place:place + 6] = b'planty'; data.close()"
    ),
    "its times set back": (
        f"{written('docs/a/deep/tools.json', EVIL)}; os.utime('docs/a/deep/tools.json', (0, 0))"
    ),
    "a file that was there, moved": (
        "import os; os.makedirs('docs/a/deep'); os.rename('samples/one/tools.json', 'docs/a/deep/tools.json')"
    ),
    "a file that was there, linked": (
        "import os; os.makedirs('docs/a/deep'); os.link('samples/one/tools.json', 'docs/a/deep/tools.json')"
    ),
    "a link to a file that was there": (
        "import os; os.makedirs('docs/a/deep'); "
        "os.symlink('../../../samples/one/tools.json', 'docs/a/deep/tools.json')"
    ),
    "a folder that was there, moved": "import os; os.rename('samples/one', 'docs/a/deep')",
    "a folder above it, moved": "import os; os.rename('samples', 'docs/a/samples')",
    "a folder moved, and something put into it": (
        "import os; os.rename('samples/one', 'docs/a/deep'); open('docs/a/deep/out.txt', 'w')"
    ),
    "a folder exchanged for another": (
        "import os; os.rename('docs/a/there', 'old'); os.rename('samples/one', 'docs/a/there')"
    ),
    "a link to a folder that was there": "import os; os.symlink('../../samples/one', 'docs/a/deep')",
}


def lay_out(project: Path) -> None:
    for name in ("docs/a/there", "samples/one"):
        (project / name).mkdir(parents=True)
        (project / name / "tools.json").write_text(tools_json("honest"), "utf-8")
    a_moment_later(project)


def source_of(project: Path) -> str:
    """The folder below ``docs/a`` that has a declaration which was not there, or is another one."""
    for name in ("docs/a/deep", "docs/a/samples/one", "docs/a"):
        if (project / name / "tools.json").exists():
            return name
    return "docs/a/there"


@pytest.mark.parametrize("what", ELSEWHERE)
def test_attack_a_tool_plants_a_declaration_where_no_host_looks_and_a_person_names_it_later(
    project: Path, what: str
) -> None:
    lay_out(project)
    with opened(project, "groups") as crib:
        assert plant(crib, ELSEWHERE[what]) is None
    source = source_of(project)
    for _ in range(2):
        with opened(project, source) as crib:
            assert names(crib) == []
            assert "capability:notes/write_note" in problems(crib)[0]
    with opened(project, ".", cwd=project / source) as crib:
        assert "evil" not in names(crib)
    assert confirmed(project, source).status == 0
    with opened(project, source) as crib:
        assert problems(crib) == []
        is_outside = what == "a link to a file that was there"  # which no source follows
        assert set(names(crib)) == (set() if is_outside else {"evil"})


OPENAPI = (
    'openapi: 3.0.0\ninfo: {title: t, version: "1"}\nservers: [{url: http://127.0.0.1:1}]\n'
    "paths: {/x: {get: {operationId: evil, responses: {'200': {description: d}}}}}\n"
)
FORMATS = {
    "a group by its content": ("evil.json", group("evil", "evil", "evil"), "docs/a"),
    "a group that is named": ("evil.json", group("evil", "evil", "evil"), "docs/a/evil.json"),
    "a group": ("evil_tools.json", group("evil", "evil", "evil"), "docs/a"),
    "a skill": ("evil/SKILL.md", DECLARATIONS["SKILL.md"], "docs/a"),
    "a folder of skills": ("skills/evil/SKILL.md", DECLARATIONS["SKILL.md"], "docs/a/skills"),
    "a rye tool": (".ai/tools/x/evil.py", RYE, "docs/a"),
    "an OpenAPI document": ("api.yaml", OPENAPI, "openapi=docs/a/api.yaml"),
}


@pytest.mark.parametrize("what", FORMATS)
def test_attack_a_declaration_of_any_format_is_planted_where_no_host_looks(project: Path, what: str) -> None:
    name, text, source = FORMATS[what]
    kind, equals, path = source.rpartition("=")
    lay_out(project)
    (project / "docs" / "a" / "there" / "tools.json").unlink()
    a_moment_later(project)
    with opened(project, "groups") as crib:
        assert plant(crib, written(f"docs/a/{name}", text)) is None
    for _ in range(2):
        with opened_as(project, f"{kind}{equals}{project}/{path}") as crib:
            assert (names(crib), crib.skills) == ([], ())
            assert len(problems(crib)) == 1
    assert confirmed(project, path).status == 0
    with opened_as(project, f"{kind}{equals}{project}/{path}") as crib:
        assert len(names(crib)) + len(crib.skills) == 1
        assert problems(crib) == []


def test_attack_a_declaration_is_planted_where_no_host_looks_while_another_host_is_open(
    project: Path,
) -> None:
    lay_out(project)
    with opened(project, "groups") as crib:
        assert plant(crib, ELSEWHERE["written"]) is None
        with opened(project, "docs/a/deep") as other:
            assert names(other) == []
            assert len(problems(other)) == 1


def test_attack_a_declaration_is_planted_where_no_host_looks_and_the_host_is_killed(project: Path) -> None:
    lay_out(project)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.test_planted import ELSEWHERE, opened, plant\n"
        "with opened(Path(sys.argv[1]), 'groups') as crib:\n"
        "    assert plant(crib, ELSEWHERE['written']) is None\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(project)], check=False, cwd=ROOT)
    assert ended.returncode == -9
    for _ in range(2):
        with opened(project, "docs/a/deep") as crib:
            assert names(crib) == []
            assert len(problems(crib)) == 1
    assert not list((project.parent / "state" / "open").iterdir())


def test_what_people_make_and_edit_between_runs_is_offered_without_a_question(project: Path) -> None:
    lay_out(project)
    for word in ("first", "second"):
        a_moment_later(project)
        with opened(project, "groups") as crib:
            assert plant(crib, written(project / "notes" / f"{word}.txt")) is None
        a_moment_later(project)
        (project / "mine").mkdir(exist_ok=True)
        (project / "mine" / "tools.json").write_text(tools_json(word), "utf-8")
        (project / "docs" / "a" / "there" / "tools.json").write_text(tools_json(word), "utf-8")
        for source in ("mine", "docs/a/there"):
            with opened(project, source) as crib:
                assert problems(crib) == []
                assert [tool.name for tool in crib.tools] == ["evil"]


def test_what_was_confirmed_is_its_authors_to_edit_and_waits_again_when_a_tool_changes_it(
    project: Path,
) -> None:
    lay_out(project)
    with opened(project, "groups") as crib:
        assert plant(crib, ELSEWHERE["written"]) is None
    assert confirmed(project, "docs/a/deep").status == 0
    with opened(project, "docs/a/deep") as crib:
        assert crib.call("evil", {}).content == '"planted"'
    a_moment_later(project)
    (project / "docs/a/deep/tools.json").write_text(tools_json("mine"), "utf-8")
    with opened(project, "docs/a/deep") as crib:
        assert problems(crib) == []
        assert crib.call("evil", {}).content == '"mine"'
    with opened(project, "groups") as crib:
        assert plant(crib, ELSEWHERE["written"]) is None
    with opened(project, "docs/a/deep") as crib:
        assert names(crib) == []


def test_a_folder_into_which_a_tool_wrote_is_asked_about_once(project: Path) -> None:
    """It may have been moved there: its files do not tell."""
    lay_out(project)
    for number in range(2):
        with opened(project, "groups") as crib:
            assert plant(crib, written(f"docs/a/there/{number}.txt")) is None
        with opened(project, "docs/a/there") as crib:
            assert bool(problems(crib)) is (number == 0)
        if not number:
            assert "may have been moved" in confirmed(project, "docs/a/there").err


def test_data_that_tools_made_need_not_be_confirmed(project: Path) -> None:
    lay_out(project)
    with opened(project, "groups") as crib:
        assert plant(crib, written("docs/a/out/data.json", '{"a": 1}')) is None
    with opened(project, "docs/a/out") as crib:
        assert problems(crib) == []
    assert "nothing to confirm" in confirmed(project, "docs/a/out").err


SCRIPT = "docs/a/there/tools/bin/run"
CODE_ELSEWHERE = {
    "its program": ("run.sh", "#!/bin/sh\necho '\"planted\"'\n", ["./tools/bin/run.sh"]),
    "its script": ("run.py", "print('\"planted\"')\n", [sys.executable, f"{SCRIPT}.py"]),
    "a module that it imports": ("json.py", STEALS, [sys.executable, f"{SCRIPT}.py"]),
    "a package that shadows one": ("json/__init__.py", STEALS, [sys.executable, f"{SCRIPT}.py"]),
    "a package of Node": (
        "node_modules/x/index.js", "module.exports = 'planted'\n", ["/usr/bin/node", f"{SCRIPT}.js"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CODE_ELSEWHERE)
def test_attack_a_tool_plants_code_beside_a_declaration_that_no_host_looks_at(
    project: Path, what: str
) -> None:
    name, text, start = CODE_ELSEWHERE[what]
    lay_out(project)
    folder = project / "docs" / "a" / "there"
    (folder / "tools" / "bin").mkdir(parents=True)
    for script, good in (
        ("run.sh", "#!/bin/sh\necho '\"honest\"'\n"),
        ("run.py", "import json\nprint('\"honest\"')\n"),
        (
            "run.js",
            "let x = 'honest'; try { x = require('x') } catch (e) {}; console.log(JSON.stringify(x))\n",
        ),
    ):
        (folder / "tools" / "bin" / script).write_text(good, "utf-8")
        (folder / "tools" / "bin" / script).chmod(0o755)
    (folder / "tools.json").write_text(tools_json("", *start), "utf-8")
    a_moment_later(project)
    with opened(project, "docs/a/there") as crib:
        assert crib.call("evil", {}).content == '"honest"'
    with opened(project, "groups") as crib:
        assert plant(crib, written(f"docs/a/there/tools/bin/{name}", text)) is None
    for _ in range(2):
        with opened(project, "docs/a/there") as crib:
            result = crib.call("evil", {})
            assert result.error is not None, result
            assert result.error.kind is Kind.DENIED
            assert "planted" not in result.content.replace(str(project), "")
    place = str(folder / "tools" / "bin" / name.partition("/")[0])
    said = confirmed(project, place)
    assert said.status == 0, said
    with opened(project, "docs/a/there") as crib:
        result = crib.call("evil", {})
        assert result.error is None or result.error.kind is not Kind.DENIED


def test_attack_a_tool_plants_a_declaration_in_another_folder_that_it_may_write(tmp_path: Path) -> None:
    """The profile of a source that was only found lets tools write temporary folders."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    planted = temporary / "x" / "tools.json"
    for folder in (work, temporary):
        folder.mkdir()
    code = f"mkdir {planted.parent}; cp evil.txt {planted}"
    (work / "evil.txt").write_text(EVIL, "utf-8")
    (work / "tools.json").write_text(tools_json("", "/bin/sh", "-c", code), "utf-8")
    variables = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TMPDIR": str(temporary)}
    environment = replace(Environment.read(variables), state=str(tmp_path / "state"))
    here = os.getcwd()
    os.chdir(work)
    try:
        with toolcrib.open(resolve(environment, cwd=str(work)), environment=environment) as crib:
            crib.call("evil", {})
        assert planted.exists()
        settings = resolve(environment, cwd=str(work), sources=[str(planted.parent)])
        with toolcrib.open(settings, environment=environment) as crib:
            assert names(crib) == []
            assert len(problems(crib)) == 1
    finally:
        os.chdir(here)


def test_attack_a_link_to_a_name_that_is_no_text_stops_no_host(project: Path) -> None:
    lay_out(project)
    made = "import os; os.makedirs('docs/a/deep'); os.makedirs('.ai/config'); os.makedirs('bin')"
    for name in ("docs/a/deep/tools.json", ".ai/config/web.yaml", "bin/git", ".env"):
        target = os.path.join(*[".."] * name.count("/"), "worse")
        made += f"; os.symlink(b{target!r} + bytes([255]), {name!r})"
    made += "; open(b'worse' + bytes([255]), 'w').write('{}'); open(b'bin/x' + bytes([255]), 'w')"
    rye(project)
    env = {"PATH": f"{project}/bin:{os.environ['PATH']}"}
    for is_again in (False, True):
        with opened(project, ".", env=env, unsigned="warn", load_dotenv=True) as crib:
            assert is_again or plant(crib, made) is None
            assert recalled(crib) == HONEST
            result = crib.call("x/note", {})
            assert result.ok, result.error
            assert any(".env" in each for each in problems(crib))
    with opened(project, "docs/a/deep") as crib:
        assert names(crib) == []


def test_attack_a_planted_program_or_list_of_servers_is_not_even_started(project: Path) -> None:
    """Asking for what they offer runs them."""
    lay_out(project)
    ran = project.parent / "ran"
    program = f"#!/bin/sh\ntouch {ran}\n"
    servers = {"mcpServers": {"s": {"command": "/bin/sh", "args": ["-c", f"touch {ran}"]}}}
    with opened(project, "groups") as crib:
        assert (
            plant(crib, f"{written('docs/a/bin/x-tool', program)}; os.chmod('docs/a/bin/x-tool', 0o755)")
            is None
        )
        assert plant(crib, written("docs/a/.mcp.json", json.dumps(servers))) is None
    for source in ("executable=docs/a/bin", "docs/a/.mcp.json"):
        kind, equals, path = source.rpartition("=")
        with opened_as(project, f"{kind}{equals}{project}/{path}") as crib:
            assert names(crib) == []
            assert len(problems(crib)) == 1
            crib.servers()
    assert not ran.exists()


@contextmanager
def opened_as(project: Path, source: str, *, cwd: Path | None = None, state: str = "state") -> Iterator[Crib]:
    """A source as it is named on the command line."""
    variables = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    environment = replace(Environment.read(variables), state=str(project.parent / state))
    here = os.getcwd()
    os.chdir(cwd or project)
    try:
        settings = resolve(environment, cwd=os.getcwd(), sources=[source])
        with toolcrib.open(settings, environment=environment) as crib:
            yield crib
    finally:
        os.chdir(here)


def test_attack_a_tool_rewrites_a_configuration_that_a_person_names_later(project: Path) -> None:
    (project / "ci.toml").write_text('[[source]]\npath = "groups"\n', "utf-8")
    a_moment_later(project)
    with opened(project, "groups") as crib:
        assert plant(crib, written(project / "ci.toml", '[[source]]\npath = "evil"\n')) is None
    with (
        pytest.raises(ConfigError, match=r"ci\.toml changed"),
        opened(project, file=str(project / "ci.toml")),
    ):
        pass


# -- what is confirmed while a call runs ---------------------------------------------------------------------


WAITS = "#!/bin/sh\ntouch began\nwhile [ ! -e go ]; do sleep 0.01; done\n{}\necho '{{}}'\n"


def waiting(project: Path, does: str) -> None:
    """A tool that runs until it may go on, and then does something."""
    program = project / "tools" / "bin" / "waits"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(WAITS.format(does), "utf-8")
    program.chmod(0o755)
    (project / "tools.json").write_text(tools_json("", "./tools/bin/waits"), "utf-8")
    for name, content in (("honest", "honest"), ("other", "other")):
        (project / f"{name}.txt").write_text(group(content, content, content), "utf-8")


@pytest.mark.parametrize("is_served", [False, True])
def test_attack_what_is_confirmed_while_a_call_runs_is_rewritten_by_that_call(
    project: Path, is_served: bool
) -> None:
    waiting(project, "cp other.txt mine_tools.json")
    with ThreadPoolExecutor(1) as pool, opened(project, ".") as crib:
        running = pool.submit(crib.call, "evil", {})
        until((project / "began").exists)
        (project / "mine_tools.json").write_text((project / "honest.txt").read_text("utf-8"), "utf-8")
        crib.reload()
        assert "honest" not in names(crib)
        assert confirmed(project, "mine_tools.json").status == 0
        with opened(project, ".") as other:
            assert "honest" in names(other)
        if is_served:
            crib.reload()
            assert "honest" in names(crib)
        (project / "go").write_text("", "utf-8")
        assert running.result().ok
        assert "other" in (project / "mine_tools.json").read_text("utf-8")
        crib.reload()
        assert "other" not in names(crib)
        with opened(project, ".") as other:
            assert "other" not in names(other)
            assert len(problems(other)) == 1
    with opened(project, ".") as crib:
        assert "other" not in names(crib)
        assert len(problems(crib)) == 1
    assert confirmed(project, "mine_tools.json").status == 0
    with opened(project, ".") as crib:
        assert "other" in names(crib)
        assert problems(crib) == []


def test_attack_a_call_goes_on_exchanging_what_is_confirmed_while_it_runs(project: Path) -> None:
    waiting(project, "")
    flips = (
        "i=0; while [ $i -lt 4000 ] && [ ! -e stop ]; do cat other.txt > mine_tools.json; "
        "cat honest.txt > mine_tools.json; i=$((i+1)); done"
    )
    waiting(project, flips)
    with ThreadPoolExecutor(1) as pool, opened(project, ".") as crib:
        running = pool.submit(crib.call, "evil", {})
        until((project / "began").exists)
        (project / "mine_tools.json").write_text((project / "honest.txt").read_text("utf-8"), "utf-8")
        crib.reload()
        assert confirmed(project, "mine_tools.json").status == 0
        (project / "go").write_text("", "utf-8")
        for _ in range(20):
            with opened(project, ".") as other:
                assert "other" not in names(other)
        (project / "stop").write_text("", "utf-8")
        assert running.result().ok


# -- what keeps tools from running ---------------------------------------------------------------------------


LOCKS = {
    "no lock at all": "x",
    "one that names no tool": '{"toolcrib.lock": 1, "tools": {}}',
}


@pytest.mark.parametrize("what", LOCKS)
@pytest.mark.parametrize("is_named", [False, True])
def test_attack_a_tool_makes_a_lock_so_that_every_later_call_is_refused(
    project: Path, what: str, is_named: bool
) -> None:
    path = project / "toolcrib.lock"
    with opened(project, ".") as crib:
        if is_named:
            assert (
                plant(
                    crib,
                    f"{written('new', LOCKS[what])}; os.rename('new', 'toolcrib.lock')",
                )
                is None
            )
        else:
            assert plant(crib, written(path, LOCKS[what])) is None
        assert recalled(crib) == HONEST
        assert crib.lock_problems() == ()
    with opened(project, ".") as crib:
        assert recalled(crib) == HONEST
        (message,) = problems(crib)
        assert message.startswith(f"{path} appeared at ")
        assert "capability:notes/write_note" in message
    assert confirmed(project, "toolcrib.lock").status == 0
    with opened(project, ".") as crib:
        assert problems(crib) == []
        result = crib.call("recall", {})
        assert result.error is not None
        assert "toolcrib.lock" in result.error.message


def test_attack_a_tool_makes_a_lock_beside_a_configuration_above_the_working_folder(project: Path) -> None:
    (project / "toolcrib.toml").write_text('[[source]]\npath = "groups"\n', "utf-8")
    (project / "sub").mkdir()
    everything = (Grant(pattern="capability:notes/*", needs=None),)
    for is_again in (False, True):
        with opened(project, cwd=project / "sub", grants=everything, trusted=True) as crib:
            assert is_again or plant(crib, written(project / "toolcrib.lock", "x")) is None
            assert recalled(crib)["helper"] == "honest"
            assert any("toolcrib.lock appeared" in each for each in problems(crib))


@pytest.mark.parametrize("content", ["x", '{"toolcrib.lock": 1, "tools": {}}'])
def test_attack_a_tool_changes_a_lock_that_no_host_uses(project: Path, content: str) -> None:
    """It counted when it was written, so it must not be ignored."""
    sub = project / "docs" / "sub"
    sub.mkdir(parents=True)
    (sub / "tools.json").write_text(tools_json("good"), "utf-8")
    with opened_as(project, str(sub), cwd=sub, state="other") as crib:
        entries, _ = crib.pins().locked_now([*crib.tools])
        crib.pins().approve(entries, whole=True)
    a_moment_later(project)
    with opened(project, "groups") as crib:
        assert plant(crib, written(sub / "toolcrib.lock", content)) is None
    with opened_as(project, str(sub), cwd=sub) as crib:
        result = crib.call("evil", {})
        assert result.error is not None
        assert "toolcrib.lock changed at" in result.error.message
        assert "toolcrib trust" in (result.error.hint or "")


def test_attack_a_tool_writes_beside_a_lock_that_no_host_uses_so_that_it_counts_no_more(
    project: Path,
) -> None:
    sub = project / "docs" / "sub"
    sub.mkdir(parents=True)
    (sub / "tools.json").write_text(tools_json("good"), "utf-8")
    with opened_as(project, str(sub), cwd=sub, state="other") as crib:
        entries, _ = crib.pins().locked_now([*crib.tools])
        crib.pins().approve(entries, whole=True)
    (sub / "tools.json").write_text(tools_json("changed"), "utf-8")
    a_moment_later(project)
    with opened(project, "groups") as crib:
        assert plant(crib, written(sub / "out.txt")) is None
    assert confirmed(project, "docs/sub").status == 0
    with opened_as(project, str(sub), cwd=sub) as crib:
        result = crib.call("evil", {})
        assert result.error is not None
        assert "is not as it was locked" in result.error.message


def test_a_lock_that_a_person_writes_while_a_tool_runs_counts(project: Path) -> None:
    waiting(project, "")
    with ThreadPoolExecutor(1) as pool, opened(project, ".") as crib:
        running = pool.submit(crib.call, "evil", {})
        until((project / "began").exists)
        with opened(project, ".") as other:
            entries, _ = other.pins().locked_now([*other.tools])
            other.pins().approve(entries, whole=True)
        (project / "go").write_text("", "utf-8")
        assert running.result().ok
    (project / "handlers" / "journal.py").write_text(JOURNAL + "\n# changed\n", "utf-8")
    with opened(project, ".") as crib:
        result = crib.call("recall", {})
        assert result.error is not None
        assert "is not as it was locked" in result.error.message


HELD_BY_NAME = ("tools.json", "SKILL.md", "toolcrib.lock", ".ai", ".ai/tools", ".ai/config")


@pytest.mark.parametrize("name", HELD_BY_NAME)
@pytest.mark.parametrize("target", ["nothing", "handlers", "out.txt"])
def test_attack_a_tool_makes_a_link_of_a_held_name_so_that_nothing_can_be_held(
    project: Path, name: str, target: str
) -> None:
    (project / "out.txt").write_text("", "utf-8")
    code = f"import os; os.makedirs(os.path.dirname({name!r}) or '.', exist_ok=True)"
    target = os.path.relpath(project / target, (project / name).parent)
    for is_again in (False, True):
        with opened(project, "groups") as crib:
            if not is_again:
                assert plant(crib, f"{code}; os.symlink({target!r}, {name!r})") is None
            assert plant(crib, "said = 1") is None
            assert recalled(crib) == HONEST


SEARCHED = {
    "a folder that is not there": "bin",
    "the project itself": ".",
    "a folder beside the programs": "tools/none",
}


@pytest.mark.parametrize("what", SEARCHED)
def test_attack_a_tool_makes_a_program_of_a_usual_name_in_a_folder_of_path(project: Path, what: str) -> None:
    """The folder is in the project, so that tools may make it."""
    folder = os.path.normpath(project / SEARCHED[what])
    env = {"PATH": f"{folder}:.:sub:{os.environ['PATH']}"}
    (project / "tools" / "bin").mkdir(parents=True)
    (project / "tools.json").write_text(tools_json("", "/bin/sh", "-c", "echo '\"'; whoami"), "utf-8")
    program = f"{folder}/whoami"
    steals = (
        f"{written(program, '#!/bin/sh' + chr(10) + 'echo planted' + chr(10))}; os.chmod({program!r}, 0o755)"
    )
    for is_again in (False, True):
        with opened(project, ".", env=env) as crib:
            assert is_again or plant(crib, steals) is None
            assert "planted" not in crib.call("evil", {}).content
            if is_again and SEARCHED[what] != ".":
                assert any(folder in each for each in problems(crib))
    if SEARCHED[what] != ".":
        assert confirmed(project, folder).status == 0
        with opened(project, ".", env=env) as crib:
            assert "planted" in crib.call("evil", {}).content
            assert plant(crib, steals) is not None


def test_a_folder_of_path_in_the_project_that_is_there_is_searched_and_held(project: Path) -> None:
    folder = project / "bin"
    folder.mkdir()
    (folder / "whoami").write_text("#!/bin/sh\necho ours\n", "utf-8")
    (folder / "whoami").chmod(0o755)
    (project / "link").symlink_to("bin")
    (project / "tools.json").write_text(tools_json("", "/bin/sh", "-c", "whoami"), "utf-8")
    a_moment_later(project)
    for name in ("bin", "link"):
        env = {"PATH": f"{project}/{name}:{os.environ['PATH']}"}
        with opened(project, ".", env=env) as crib:
            assert "ours" in crib.call("evil", {}).content
            assert plant(crib, written(folder / "git")) is not None
            if name == "link":
                assert plant(crib, "import os; os.unlink('link'); os.symlink('docs', 'link')") is None
                assert "ours" in crib.call("evil", {}).content


def test_a_link_that_a_tool_made_to_what_it_wrote_elsewhere_is_not_followed(project: Path) -> None:
    (project / "docs").mkdir()
    skill = written(project / "docs" / "deep" / "SKILL.md", DECLARATIONS["evil/SKILL.md"])
    with opened(project, ".") as crib:
        assert plant(crib, f"{skill}; os.symlink('docs/deep', 'evil')") is None
        crib.reload()
        assert crib.skills == ()
    with opened(project, ".") as crib:
        assert crib.skills == ()
        assert len(problems(crib)) == 1


def test_a_rye_space_that_a_tool_makes_is_not_used_and_its_cache_is(project: Path) -> None:
    (project / "sub").mkdir()
    with opened(project, ".", unsigned="warn") as crib:
        assert plant(crib, written(project / "sub" / ".ai" / "cache" / "x", "data")) is None
        assert plant(crib, written(project / "sub" / ".ai" / "tools" / "x" / "note.py", RYE)) is None
        crib.reload()
        assert "x/note" not in names(crib)
        assert plant(crib, written(project / "sub" / ".ai" / "cache" / "y", "data")) is None
    assert confirmed(project, "sub/.ai").status == 0
    (project / "sub" / ".ai" / "cache" / "z").write_text("data", "utf-8")
    with opened(project, ".", unsigned="warn") as crib:
        assert "x/note" in names(crib), "data beside it is not what was confirmed"


def test_variables_of_a_file_that_a_tool_made_reach_no_other_tool(project: Path) -> None:
    rye(project)
    more: dict[str, Any] = {"unsigned": "warn", "load_dotenv": True}
    with opened(project, ".", **more) as crib:
        assert crib.call("x/note", {}).ok
        assert plant(crib, written(project / ".env", "PLANTED=1\n")) is None
        result = crib.call("x/note", {})
        assert result.ok, result.error
        assert "None" in result.content
        assert any(".env is left aside" in note for note in result.notes)
        assert any(".env appeared" in each for each in problems(crib))
    assert confirmed(project, ".env").status == 0
    with opened(project, ".", **more) as crib:
        assert "1" in said_by(crib, "x/note")
        assert problems(crib) == []
        assert plant(crib, written(project / ".env", "PLANTED=1\n")) is not None


def said_by(crib: Crib, name: str) -> str:
    result = crib.call(name, {})
    assert result.ok, result.error
    return result.content


CONFIGURED = RYE.replace(
    "print(os", "CONFIG_RESOLVE = {'path': 'web.yaml'}\nimport sys\nprint(sys.stdin.read(), os"
)
CONFIGURING = {
    "a file": written(".ai/config/web.yaml", "who: stranger\n"),
    "one that cannot be read": written(".ai/config/web.yaml", "["),
    "a link": "import os; os.makedirs('.ai/config'); os.symlink('/etc/passwd', '.ai/config/web.yaml')",
    "a link in place of the folder": (
        f"{written('stuff/web.yaml', 'who: stranger')}; os.symlink('../stuff', '.ai/config')"
    ),
}


@pytest.mark.parametrize("what", CONFIGURING)
def test_configuration_that_a_tool_made_stops_no_rye_tool_and_sets_up_none(project: Path, what: str) -> None:
    rye(project, text=CONFIGURED)
    for is_again in (False, True):
        with opened(project, ".", unsigned="warn") as crib:
            assert is_again or plant(crib, CONFIGURING[what]) is None
            result = crib.call("x/note", {})
            assert "stranger" not in said_by(crib, "x/note")
            assert any("is left aside" in note for note in result.notes)
            assert any(".ai/config" in each for each in problems(crib))
    assert confirmed(project, ".ai/config").status == 0
    if what == "a file":
        with opened(project, ".", unsigned="warn") as crib:
            assert "stranger" in said_by(crib, "x/note")
            assert problems(crib) == []


def test_an_interpreter_that_a_tool_put_into_the_project_runs_no_other_tool(project: Path) -> None:
    rye(project, text=RYE.replace("print(os", "import sys\nprint(sys.executable, os"))
    planted = written(".venv/bin/python", "#!/bin/sh\necho stranger\n")
    planted += "; os.chmod('.venv/bin/python', 0o755)"
    for is_again in (False, True):
        with opened(project, ".", unsigned="warn") as crib:
            assert is_again or plant(crib, planted) is None
            assert "stranger" not in said_by(crib, "x/note")


def test_the_environment_in_which_tools_run_is_held(project: Path) -> None:
    rye(project)
    packages = project / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n", "utf-8")
    with opened(project, ".", unsigned="warn") as crib:
        assert plant(crib, written(packages / "evil.pth")) is not None
        assert plant(crib, written(project / ".venv" / "bin" / "python")) is not None


@pytest.mark.parametrize("name", ["node_modules/lib/index.js", "package.json"])
def test_packages_that_a_tool_made_are_not_loaded_by_a_command_of_node(project: Path, name: str) -> None:
    (project / "scripts").mkdir()
    (project / "scripts" / "a.js").write_text("console.log('{}')\n", "utf-8")
    (project / "tools.json").write_text(tools_json("", "/usr/bin/node", "scripts/a.js"), "utf-8")
    with opened(project, ".") as crib:
        assert plant(crib, written(project / name, "{}")) is None
        result = crib.call("evil", {})
        assert result.error is not None
        assert "appeared" in result.error.message


@pytest.mark.parametrize(
    "name", ["node_modules/lib/index.js", "package.json", ".ai/node_modules/lib/index.js", ".ai/package.json"]
)
def test_packages_that_a_tool_made_are_not_loaded_by_javascript(project: Path, name: str) -> None:
    text = (
        'export const __version__ = "1.0.0";\nexport const __tool_type__ = "javascript";\n'
        'export const __executor_id__ = "rye/core/runtimes/node/node";\nexport const __category__ = "x";\n'
        'export const __tool_description__ = "d";\nexport default () => ({});\n'
    )
    rye(project, "x/page.mjs", text)
    with opened(project, ".", unsigned="warn") as crib:
        assert plant(crib, written(project / name, "{}")) is None
        result = crib.call("x/page", {})
        assert result.error is not None
        assert "appeared" in result.error.message


def test_the_folders_of_tools_of_another_open_host_are_held(project: Path) -> None:
    """Two servers with different projects: a tool of the one may write everything that its user may."""
    other = project.parent / "other"
    for name in ("groups", "handlers"):
        (other / name).mkdir(parents=True)
    (other / "groups" / "journal_tools.json").write_text(group("journal", "recall", "journal"), "utf-8")
    (other / "handlers" / "journal.py").write_text(JOURNAL, "utf-8")
    (other / "handlers" / "helper.py").write_text("VALUE = 'honest'\n", "utf-8")
    everything = (Grant(pattern="capability:notes/*", needs=None),)
    with opened(project, "groups", grants=everything) as crib:
        handlers, groups = other / "handlers", other / "groups"
        with opened(project, str(other / "groups"), cwd=other) as theirs, watched(theirs):
            assert plant(crib, written(handlers / "journals.py")) is not None
            assert plant(crib, written(groups / "evil_tools.json")) is not None
            assert plant(crib, written(other / "notes.txt")) is None
        until(lambda: plant(crib, written(handlers / "other.txt")) is None)


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="no virtual environment; run make to make one")
def test_a_tool_cannot_rewrite_this_very_program_or_what_it_loads(project: Path) -> None:
    code = Path(toolcrib.__file__).parent
    packages = Path(pytest.__file__).parent.parent
    everything = (Grant(pattern="capability:notes/*", needs=None),)
    with opened(project, "groups", grants=everything) as crib:
        for path in (code / "planted.py", packages / "planted.pth", packages / "sitecustomize.py"):
            try:
                assert plant(crib, written(path)) is not None
            finally:
                path.unlink(missing_ok=True)


def test_a_list_of_servers_that_was_named_is_held(project: Path) -> None:
    (project / ".mcp.json").write_text('{"mcpServers": {}}', "utf-8")
    (project / "server.py").write_text("", "utf-8")
    with opened(project, "groups", ".mcp.json") as crib:
        assert plant(crib, written(project / ".mcp.json", "{}")) is not None


def test_a_server_does_not_import_what_a_tool_made_beside_its_script(project: Path) -> None:
    ran = project.parent / "ran"
    servers = {"s": {"command": sys.executable, "args": ["server.py"]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    (project / "server.py").write_text("import json\n", "utf-8")
    with opened(project, "groups", ".mcp.json") as crib:
        assert plant(crib, written(project / "server.py")) is not None
        assert plant(crib, written(project / "json.py", f"open({str(ran)!r}, 'w')\n")) is None
        crib.reload(fresh=True)
        assert not ran.exists()
    with opened(project, "groups", ".mcp.json") as crib:
        assert any("json.py appeared" in each.message for each in crib.problems)
    assert not ran.exists()


def test_compiled_code_that_a_tool_made_is_not_run(project: Path) -> None:
    (project / "run.py").write_text("import beside\nprint('{}')\n", "utf-8")
    (project / "beside.py").write_text("", "utf-8")
    tools = [{"name": "runs", "description": "d", "schema": {"type": "object"}}]
    tools[0]["command"] = [sys.executable, "run.py"]
    (project / "tools.json").write_text(json.dumps({"tools": tools}), "utf-8")
    steals = (
        "import importlib.util, marshal, os, struct\n"
        "status = os.stat('beside.py')\n"
        "code = compile('raise SystemExit(\"planted\")', 'beside.py', 'exec')\n"
        "head = struct.pack('<III', 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)\n"
        "path = importlib.util.cache_from_source('beside.py')\n"
        "os.makedirs(os.path.dirname(path))\n"
        "open(path, 'wb').write(importlib.util.MAGIC_NUMBER + head + marshal.dumps(code))\n"
    )
    with opened(project, ".") as crib:
        assert crib.call("runs", {}).ok
        assert crib.call("runs", {}).ok, "its own run leaves nothing that would have to be confirmed"
        assert plant(crib, steals) is None
        result = crib.call("runs", {})
        assert result.error is not None
        assert "__pycache__ appeared" in result.error.message


ABOVE = """
import above

async def execute_hi_tool(name, given):
    return {"success": True, "result": above.VALUE}
"""


@pytest.mark.parametrize("has_some", [False, True], ids=["none before", "one of a person"])
def test_a_handler_that_imports_from_the_folder_above_works_again_and_again(
    project: Path, has_some: bool
) -> None:
    (project / "above.py").write_text("VALUE = 'hi'\n", "utf-8")
    (project / "handlers" / "hi.py").write_text(ABOVE, "utf-8")
    schemas = project / "tool_capabilities" / "schemas"
    schemas.mkdir(parents=True)
    (schemas / "hi_tools.json").write_text(group("hi", "hi", "hi"), "utf-8")
    if has_some:
        py_compile.compile(str(project / "above.py"), doraise=True)
    for _ in range(2):
        with opened(project, "tool_capabilities/schemas") as crib:
            for _ in range(2):
                result = crib.call("hi", {})
                assert result.ok, result.error
    assert (project / "__pycache__").exists() == has_some


@pytest.mark.parametrize("how", ["env", "first line"])
def test_two_tools_that_run_one_program_do_not_bar_each_other(project: Path, how: str) -> None:
    program = project / "program.py"
    program.write_text("#!/usr/bin/env python3\nimport beside\nprint('{}')\n", "utf-8")
    program.chmod(0o755)
    (project / "beside.py").write_text("", "utf-8")
    command = ["/usr/bin/env", "python3", str(program)] if how == "env" else [str(program)]
    tools = [
        {"name": name, "description": "d", "schema": {"type": "object"}, "command": command}
        for name in ("one", "two")
    ]
    (project / "tools.json").write_text(json.dumps({"tools": tools}), "utf-8")
    with opened(project, ".") as crib:
        for name in ("one", "two", "one"):
            result = crib.call(name, {})
            assert result.ok, result.error
    assert not (project / "__pycache__").exists()


def test_what_is_told_about_a_name_that_appeared_says_that_it_can_be_removed(project: Path) -> None:
    (project / "run.py").write_text("import beside\nprint('{}')\n", "utf-8")
    tools = [{"name": "runs", "description": "d", "schema": {"type": "object"}}]
    tools[0]["command"] = [sys.executable, "run.py"]
    (project / "tools.json").write_text(json.dumps({"tools": tools}), "utf-8")
    with opened(project, ".") as crib:
        assert plant(crib, written(project / "beside.py", "")) is None
        result = crib.call("runs", {})
        assert result.error is not None
        assert (result.error.hint or "").endswith("or remove it")
        (project / "beside.py").unlink()
        result = crib.call("runs", {})
        assert result.error is None or result.error.kind != Kind.DENIED


def test_names_that_are_no_text_keep_no_tool_from_running(project: Path) -> None:
    path = os.fsencode(project) + b"/bad\xff"
    os.mkdir(path)
    with opened(project, ".") as crib:
        assert plant(crib, written(project / "a.txt")) is None
        assert plant(crib, "import os; os.mkdir(b'worse\\xff')") is None
        crib.reload()
        assert names(crib) == ["recall", "write_note"]


def test_a_project_that_is_made_beside_this_one_is_nothing_that_appeared(project: Path) -> None:
    """Above the project handlers may lie, and nothing else of it is looked at."""
    everything = (Grant(pattern="capability:notes/*", needs=None),)
    other = project.parent / "cloned"
    with opened(project, ".", grants=everything) as crib:
        planted = written(other / "tools.json", DECLARATIONS["tools.json"])
        assert plant(crib, planted) is None
    with opened(project, str(other), cwd=other) as crib:
        assert names(crib) == ["evil"]


def test_a_project_that_is_made_in_the_users_own_folder_is_nothing_that_appeared(project: Path) -> None:
    home = project.parent
    everything = (Grant(pattern="capability:notes/*", needs=None),)
    env = {"HOME": str(home)}
    with opened(project, "groups", grants=everything, cwd=home, env=env) as crib:
        assert plant(crib, written(home / "cloned" / "tools.json", DECLARATIONS["tools.json"])) is None
        assert plant(crib, written(home / "tools.json", DECLARATIONS["tools.json"])) is None
    with opened(project, str(home / "cloned"), cwd=home / "cloned", env=env) as crib:
        assert names(crib) == ["evil"]
    with opened(project, str(home / "tools.json"), cwd=home, env=env) as crib:
        assert names(crib) == []


def test_a_declaration_that_its_author_saves_counts_at_once_but_not_while_a_tool_runs(project: Path) -> None:
    """A file that is replaced while a tool runs is held no more for the rest of that call."""
    program = project / "tools" / "bin" / "waits"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\ntouch began; while [ ! -e go ]; do sleep 0.01; done; echo '{}'\n", "utf-8")
    program.chmod(0o755)

    def save(name: str) -> None:
        tool = {"name": "waits", "description": name, "schema": {"type": "object"}}
        beside = project / "tools.new"
        beside.write_text(json.dumps({"tools": [{**tool, "command": ["./tools/bin/waits"]}]}), "utf-8")
        beside.replace(project / "tools.json")

    def told() -> str:
        return next((tool.description for tool in crib.tools if tool.name == "waits"), "")

    save("first")
    with opened(project, ".") as crib, watched(crib), ThreadPoolExecutor(1) as pool:
        save("second")
        until(lambda: told() == "second")
        (project / "go").write_text("")
        assert crib.call("waits", {}).ok
        save("third")
        until(lambda: told() == "third")
        (project / "go").unlink()
        (project / "began").unlink()
        running = pool.submit(crib.call, "waits", {})
        until((project / "began").exists)
        save("fourth")
        until(lambda: problems(crib) != [])
        assert "was replaced" in problems(crib)[0]
        assert told() == "third", "what it said before still counts"
        (project / "go").write_text("")
        assert running.result().ok
        assert confirmed(project, "tools.json").status == 0
        until(lambda: told() == "fourth")


def test_commands_tell_what_appeared_and_confirm_it(project: Path) -> None:
    def said(*arguments: str) -> Said:
        return command(
            *arguments, cwd=project, home=project.parent / "home", env={"PATH": os.environ["PATH"]}
        )

    (project / "mine.toml").write_text(
        '[[source]]\npath = "."\n[grants."capability:notes/*"]\nneeds = ["fs.read", "fs.write"]\n', "utf-8"
    )
    code = written("evil_tools.json", DECLARATIONS["evil_tools.json"])
    with_config = ("--config", "mine.toml")
    assert said(*with_config, "call", "write_note", json.dumps({"code": code})).status == 0
    checked = said(*with_config, "check")
    assert checked.status == 65
    assert "evil_tools.json appeared at" in checked.out
    assert "toolcrib trust" in checked.out
    listed = said(*with_config, "list", "--json")
    assert sorted(tool["name"] for tool in listed.json) == ["recall", "write_note"]
    assert "evil_tools.json" in said("trust", "--list").out
    refused = said("trust", "evil_tools.json")
    assert refused.status == 2
    assert said("trust", "--yes", "evil_tools.json").status == 0
    again = said("trust", "evil_tools.json")
    assert (again.status, again.out) == (
        0,
        "evil_tools.json: nothing to confirm: it is as it was confirmed\n",
    )
    assert said("trust", "evil_tools.json", "--json").json == []
    listed = said(*with_config, "list", "--json")
    assert sorted(tool["name"] for tool in listed.json) == ["evil", "recall", "write_note"]


def until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.01)
