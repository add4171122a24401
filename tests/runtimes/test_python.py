"""Python tools run for real, on every level this machine has: cold interpreters and zygotes alike."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.lateness import timely
from tests.levels import each_level, sandbox_of
from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.catalog import digests
from toolcrib.model import (
    CallPython,
    End,
    Ending,
    Level,
    Limits,
    Needs,
    Origin,
    Permit,
    Profile,
    PythonStyle,
    Reply,
    Tool,
    ToolCall,
)
from toolcrib.runtimes import Host, _loader, _zygotes
from toolcrib.runtimes.python import PythonTools
from toolcrib.sandbox import Cancel
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.ground import Surroundings
from toolcrib.sandbox.supervised import Supervised, installed

LIMITS = Limits(timeout_s=20.0)
SYSTEM_PYTHON = "/usr/bin/python3"
PATH = "/usr/bin:/bin"


@dataclass(slots=True, kw_only=True)
class Bench:
    """A project, a level and the runtime; what a test needs to call a tool."""

    root: Path
    host: Host
    runtime: PythonTools
    level: Level
    permit: Permit

    def write(self, name: str, source: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return path

    def function(self, source: str, name: str = "tool.py", **more: Any) -> Tool:
        path = self.write(name, source)
        return self.tool(CallPython(style=PythonStyle.FUNCTION, file=str(path)), path, **more)

    def script(self, source: str, name: str = "tool.py", settings: bytes = b"{}", **more: Any) -> Tool:
        path = self.write(name, source)
        invocation = CallPython(style=PythonStyle.SCRIPT, file=str(path), settings=settings)
        return self.tool(invocation, path, **more)

    def handler(self, executor: str | None, name: str = "do_it", group: str = "group", **more: Any) -> Tool:
        names = ("journals", executor) if executor == "journal" else (executor,)
        listed = [str(self.root / "handlers" / f"{module}.py") for module in names if module]
        invocation = CallPython(
            style=PythonStyle.HANDLER, executor=executor, settings=jsontext.compact({"files": listed})
        )
        return self.tool(
            invocation, self.root / "group.json", name=name, scope=group, reply=Reply.SUCCESS_DICT, **more
        )

    def tool(self, invocation: CallPython, path: Path, **more: Any) -> Tool:
        fields: dict[str, Any] = {"key": "test:a/tool", "name": "a/tool", "scope": "a", "reply": Reply.ITEM}
        fields |= more
        return Tool(origin=Origin(format="test", path=str(path)), invocation=invocation, **fields)

    def call(self, tool: Tool, arguments: dict[str, Any] | None = None, **more: Any) -> Ending:
        permit = more.pop("permit", self.permit)
        cancel = more.pop("cancel", None) or Cancel()
        call = ToolCall(id="c", tool=tool.key, arguments=arguments or {}, **more)
        try:
            return self.runtime.run(BoundTool(tool), call, permit, cancel)
        finally:
            cancel.close()

    def limited(self, **more: Any) -> Permit:
        return replace(self.permit, limits=replace(LIMITS, **more))


@contextmanager
def bench_at(root: Path, level: Level, **more: Any) -> Iterator[Bench]:
    """A bench with a sandbox and zygotes of its own."""
    runtime_more = {key: more.pop(key) for key in ("zygotes_max", "idle_s", "verified") if key in more}
    variables = {"PATH": PATH, "HOME": str(root), "LANG": "C.UTF-8", "TOKEN": "s3cret-value"}
    fields: dict[str, Any] = {"variables": variables, "cwd": str(root), "python": sys.executable} | more
    with sandbox_of(level) as sandbox:
        host = Host(sandbox=sandbox, **fields)
        runtime = PythonTools(host, digests.Contents(), **runtime_more)
        permit = Permit(profile=Profile.CLOSED, read=(str(root),), limits=LIMITS)
        try:
            yield Bench(root=root, host=host, runtime=runtime, level=level, permit=permit)
        finally:
            runtime.close()


@pytest.fixture(scope="module", params=each_level())
def level_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_at(tmp_path_factory.mktemp(request.param.value).resolve(), request.param) as bench:
        yield bench


@pytest.fixture
def bench(level_bench: Bench, tmp_path: Path) -> Bench:
    """The level's bench in a folder of its own: sandboxes and zygotes are shared, files are not."""
    root = tmp_path.resolve()
    return dataclasses.replace(level_bench, root=root, permit=replace(level_bench.permit, read=(str(root),)))


@pytest.fixture(params=each_level()[-1:])
def warm_with(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes benches at the supervised level with zygotes of their own."""
    with ExitStack() as opened:
        yield lambda **more: opened.enter_context(bench_at(tmp_path.resolve(), request.param, **more))


@pytest.fixture
def warm(warm_with: Callable[..., Bench]) -> Bench:
    return warm_with()


@pytest.fixture
def portable_with(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes benches at the level that is there on every machine."""
    with ExitStack() as opened:
        yield lambda **more: opened.enter_context(bench_at(tmp_path.resolve(), Level.PORTABLE, **more))


def is_gone(pid: int, within_s: float = 1.0) -> bool:
    """Whether a process is dead (a zombie is: it runs no more), waited for on its own end."""
    deadline = time.monotonic() + within_s
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(watch)


def word_of(fifo: Path) -> str:
    """What a tool writes to a FIFO, waited for no longer than a call may take."""
    end = os.open(fifo, os.O_RDWR)  # opened for reading alone, it would wait until somebody writes
    try:
        assert select.select([end], [], [], LIMITS.timeout_s)[0], "nobody wrote"
        return os.read(end, 4096).decode("utf-8")
    finally:
        os.close(end)


def processes_below(pid: int) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        at = waiting.pop()
        with suppress(OSError, ValueError):
            for task in os.listdir(f"/proc/{at}/task"):
                text = Path(f"/proc/{at}/task/{task}/children").read_text(encoding="ascii")
                children = {int(word) for word in text.split()}
                found |= children
                waiting += children
    return found


def test_a_link_that_leads_out_of_its_space_is_not_run(bench: Bench) -> None:
    """Attack: a link that led to a file of the project when it was loaded, and leads to another's now."""
    source = "def execute(params, project_path):\n    return {'success': True, 'data': %r}\n"
    project = dataclasses.replace(bench, root=bench.root / "project")
    tool = project.function(source % "own", ".ai/tools/tool.py")
    assert project.call(tool).value == {"success": True, "data": "own"}
    path = Path(tool.origin.path)
    for target, end in (("lib.py", End.RETURNED), ("../outside.py", End.DENIED)):
        (project.root / target).write_text(source % target, encoding="utf-8")
        path.unlink()
        path.symlink_to(f"../../{target}")
        assert project.call(tool).end is end


# -- functions ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.executor.function", "rye.call.signature")
def test_a_function_gets_its_parameters_and_the_project_as_absolute_text(bench: Bench) -> None:
    tool = bench.function(
        "def execute(params, project_path):\n"
        "    kind = type(project_path).__name__\n"
        "    return {'success': True, 'params': params, 'project': project_path, 'kind': kind}\n"
    )
    ending = bench.call(tool, {"a": 1, "text": "ä ${HOME} {a}"})
    assert ending.end is End.RETURNED, ending
    assert ending.value == {
        "success": True,
        "params": {"a": 1, "text": "ä ${HOME} {a}"},
        "project": bench.runtime._host.cwd,
        "kind": "str",
    }
    assert ending.kind_of_value == "dict"
    assert len(ending.runs) == 1
    assert ending.runs[0].argv[1] == str(bench.root / "tool.py")


@pytest.mark.requirement("rye.call.signature")
def test_the_project_dot_becomes_its_absolute_path(portable_with: Callable[..., Bench]) -> None:
    there = os.getcwd()
    bench = portable_with(cwd=".")
    bench.permit = replace(bench.permit, read=("/",))
    tool = bench.function("def execute(params, project_path):\n    return project_path\n")
    assert bench.call(tool).value == there


@pytest.mark.requirement("rye.call.async")
def test_an_async_execute_is_awaited(bench: Bench) -> None:
    tool = bench.function(
        "import asyncio\n"
        "async def execute(params, project_path):\n"
        "    await asyncio.sleep(0)\n"
        "    return {'success': True, 'n': params['n'] + 1}\n"
    )
    assert bench.call(tool, {"n": 1}).value == {"success": True, "n": 2}


@pytest.mark.requirement("rye.call.stdout-protected")
def test_prints_stay_out_of_the_result(bench: Bench) -> None:
    tool = bench.function(
        "import os, sys\n"
        "def execute(params, project_path):\n"
        "    print('debug')\n"
        "    os.write(1, b'raw ')\n"
        "    print('warned', file=sys.stderr)\n"
        "    return {'success': True}\n"
    )
    ending = bench.call(tool)
    assert ending.value == {"success": True}
    assert ending.stdout == b"raw debug\n"
    assert ending.stderr == b"warned\n"


@pytest.mark.requirement("rye.call.json-result")
def test_what_json_cannot_carry_becomes_text(bench: Bench) -> None:
    tool = bench.function(
        "import datetime, decimal, pathlib\n"
        "class Odd:\n"
        "    def __str__(self): return 'odd'\n"
        "def execute(params, project_path):\n"
        "    return {'success': True, 'data': pathlib.Path('a'), 'day': datetime.date(2026, 1, 2),\n"
        "            'odd': [Odd(), float('nan'), float('-inf'), 1e308], 'many': {1, }, (1, 2): 3, None: 4,\n"
        "            'half': '\\ud800', 'long': 2 ** 70, 'price': decimal.Decimal('1.10')}\n"
    )
    assert bench.call(tool).value == {
        "success": True,
        "data": "a",
        "day": "2026-01-02",
        "odd": ["odd", None, None, 1e308],
        "many": "{1}",
        "(1, 2)": 3,
        "null": 4,
        "half": "?",
        "long": 2**70,
        "price": "1.10",
    }


@pytest.mark.requirement("rye.call.exception")
def test_an_exception_is_its_text_and_the_trace_goes_to_the_log(bench: Bench) -> None:
    tool = bench.function("def execute(params, project_path):\n    raise ValueError('bad')\n")
    ending = bench.call(tool)
    assert (ending.end, ending.reason, ending.kind_of_value) == (End.RAISED, "bad", "ValueError")
    assert b"Traceback" in ending.stderr
    assert b'tool.py", line 2' in ending.stderr
    assert b"toolcrib" not in ending.stderr
    assert b"Traceback" not in ending.stdout


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise SystemExit('left')", "left"),
        ("raise KeyboardInterrupt", ""),
        ("x = {}; x['x'] = x; return x", "the result contains itself"),
        ("return execute(params, project_path)", "maximum recursion depth exceeded"),
        ("import os; os._exit(0)", "it ended its process without an answer"),
    ],
)
def test_every_other_way_out_is_a_failure(bench: Bench, body: str, reason: str) -> None:
    tool = bench.function(f"def execute(params, project_path):\n    {body}\n")
    ending = bench.call(tool)
    assert ending.end is End.RAISED
    assert ending.reason.startswith(reason)


@pytest.mark.battery("E11")
def test_a_function_that_ends_its_process_leaves_its_status(bench: Bench) -> None:
    tool = bench.function(
        "import ctypes, os\n"
        "def execute(params, project_path):\n"
        "    os._exit(3) if params['how'] == 'exit' else ctypes.string_at(0)\n"
    )
    ending = bench.call(tool, {"how": "exit"})
    assert (ending.end, ending.exit_status, ending.signal) == (End.EXITED, 3, None)
    ending = bench.call(tool, {"how": "segv"})
    assert (ending.end, ending.exit_status, ending.signal) == (End.EXITED, 128 + 11, signal.SIGSEGV)


def test_a_file_that_cannot_be_loaded_says_why(bench: Bench) -> None:
    for source, kind, reason in (
        ("import no_such_module_here\n", "ModuleNotFoundError", "No module named 'no_such_module_here'"),
        ("def execute(:\n", "SyntaxError", "invalid syntax"),
        ("raise RuntimeError('at the top')\n", "RuntimeError", "at the top"),
        ("x = 1\n", "LookupError", "tool.py has no execute()"),
    ):
        ending = bench.call(bench.function(source))
        assert (ending.end, ending.kind_of_value) == (End.RAISED, kind), ending
        assert ending.reason.startswith(reason)
        assert bytes(kind, "ascii") in ending.stderr


def test_a_changed_file_is_the_code_that_runs(bench: Bench) -> None:
    for number in range(3):
        tool = bench.function(f"def execute(params, project_path):\n    return {{'version': {number}}}\n")
        assert bench.call(tool).value == {"version": number}


def test_a_changed_neighbour_is_imported_anew(bench: Bench) -> None:
    source = "import neighbour\ndef execute(params, project_path):\n    return neighbour.VALUE\n"
    for number in range(3):
        bench.write("neighbour.py", f"VALUE = {number}  {'#' * number}\n")
        assert bench.call(bench.function(source)).value == number


def test_a_neighbour_shadows_nothing(bench: Bench) -> None:
    bench.write("json.py", "raise RuntimeError('the wrong one')\n")
    tool = bench.function("import json\ndef execute(params, project_path):\n    return json.loads('[1]')\n")
    assert bench.call(tool).value == [1]


@pytest.mark.requirement("rye.run.anchor")
def test_the_folders_of_an_anchor_come_first_on_the_path_of_an_isolated_call(bench: Bench) -> None:
    bench.write("pack/__init__.py", "")
    bench.write("pack/base64.py", "VALUE = 'of the anchor'\n")
    bench.write("pack/lib/more.py", "VALUE = 'of the library'\n")
    source = (
        "import base64, more, os, sys\n"
        "def execute(params, project_path):\n"
        "    return [base64.VALUE, more.VALUE, os.environ['PYTHONPATH'], sys.path[0]]\n"
    )
    chain = ("pack/tool", "rye/core/runtimes/python/function", "rye/core/primitives/execute")
    pack, lib = str(bench.root / "pack"), str(bench.root / "pack" / "lib")
    for _ in range(2):
        ending = bench.call(bench.function(source, "pack/tool.py", chain=chain))
        assert ending.value == ["of the anchor", "of the library", f"{pack}:{lib}", pack], ending
    bench.write("pack/lib/more.py", "VALUE = 'changed'\n")
    assert bench.call(bench.function(source, "pack/tool.py", chain=chain)).value[1] == "changed"


def test_bytes_run_that_were_checked(bench: Bench) -> None:
    """Attack: a file swapped between check and start: nothing runs."""
    tool = bench.function("def execute(params, project_path):\n    return 'checked'\n")
    contents = digests.Contents()
    checked = contents.runs(digests.how(tool.invocation), digests.own_files(tool))
    assert bench.call(tool, runs_digest=checked).value == "checked"
    bench.function("def execute(params, project_path):\n    return 'swapped'\n")
    ending = bench.call(tool, runs_digest=checked)
    assert ending.end is End.DENIED


def test_calls_share_no_memory(bench: Bench) -> None:
    """Attack: a call that leaves something for the next caller in the module's globals or in the process."""
    tool = bench.function(
        "import json, os\n"
        "SEEN = []\n"
        "def execute(params, project_path):\n"
        "    SEEN.append(params['n'])\n"
        "    json.planted = True if params['n'] == 1 else getattr(json, 'planted', False)\n"
        "    os.environ['PLANTED'] = 'x' if params['n'] == 1 else os.environ.get('PLANTED', '')\n"
        "    return [SEEN, json.planted, os.environ['PLANTED']]\n"
    )
    assert bench.call(tool, {"n": 1}).value == [[1], True, "x"]
    for number in (2, 3, 4):
        assert bench.call(tool, {"n": number}).value == [[number], False, ""]


# -- scripts ------------------------------------------------------------------------------------------------

SCRIPT = (
    "import json, sys\n"
    "if __name__ == '__main__':\n"
    "    params = json.load(sys.stdin)\n"
    "    print(json.dumps({'argv': sys.argv, 'params': params, 'name': __name__, 'file': __file__}))\n"
    "    print('note', file=sys.stderr)\n"
    "    sys.exit(params.get('exit', 0))\n"
)


@pytest.mark.requirement("rye.executor.script")
def test_a_script_is_a_program_with_its_arguments_and_parameters(bench: Bench) -> None:
    tool = bench.script(SCRIPT)
    ending = bench.call(tool, {"a": 1})
    project = bench.runtime._host.cwd
    assert (ending.end, ending.exit_status) == (End.EXITED, 0)
    assert json.loads(ending.stdout) == {
        "argv": [str(bench.root / "tool.py"), "--project-path", project],
        "params": {"a": 1},
        "name": "__main__",
        "file": str(bench.root / "tool.py"),
    }
    assert ending.stderr == b"note\n"
    assert ending.runs[0].argv == (sys.executable, str(bench.root / "tool.py"), "--project-path", project)


@pytest.mark.requirement("rye.cli.params")
def test_a_script_that_declares_params_gets_them_in_argv_as_well(bench: Bench) -> None:
    source = (
        "import argparse, json, sys\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--params", required=True)\n'
        'parser.add_argument("--project-path")\n'
        "args = parser.parse_args()\n"
        "print(json.dumps([args.params, sys.stdin.read(), args.project_path]))\n"
    )
    tool = bench.script(source, settings=b'{"params_option":true}')
    ending = bench.call(tool, {"a": "ä"})
    assert json.loads(ending.stdout) == ['{"a":"ä"}', '{"a":"ä"}', bench.runtime._host.cwd]


@pytest.mark.parametrize(
    ("body", "status", "stderr"),
    [
        ("sys.exit()", 0, b""),
        ("sys.exit(3)", 3, b""),
        ("sys.exit('no')", 1, b"no\n"),
        ("raise ValueError('bad')", 1, b"ValueError: bad\n"),
        ("os._exit(7)", 7, b""),
        ("os.kill(os.getpid(), 9)", 137, b""),
        ("atexit.register(print, 'late', file=sys.stderr)", 0, b"late\n"),
        ("threading.Thread(target=lambda: print('thread', file=sys.stderr)).start()", 0, b"thread\n"),
    ],
)
def test_a_script_ends_as_under_the_interpreter(bench: Bench, body: str, status: int, stderr: bytes) -> None:
    ending = bench.call(bench.script(f"import atexit, os, sys, threading\n{body}\n"))
    assert (ending.end, ending.exit_status) == (End.EXITED, status)
    assert ending.stderr.endswith(stderr)
    assert bool(ending.stderr) == bool(stderr)


@pytest.mark.battery("F03", "F04")
def test_large_parameters_and_large_output_do_not_block_each_other(bench: Bench) -> None:
    big = "x" * 1_000_000
    tool = bench.script(
        "import sys\nprint('y' * 1_000_000)\nprint(len(sys.stdin.read()))\n"
        if bench.level
        else ""  # pragma: no cover
    )
    ending = bench.call(tool, {"big": big})
    assert ending.stdout == b"y" * 1_000_000 + b"\n" + str(len(big) + 10).encode() + b"\n"
    assert bench.call(bench.script("print('ok')\n"), {"big": big}).stdout == b"ok\n"


# -- handlers -----------------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "capability.meta.handler-signature",
    "capability.meta.executor-module",
    "capability.meta.context-not-model",
)
def test_a_handler_gets_the_context_it_names_from_the_host_alone(bench: Bench) -> None:
    bench.write(
        "handlers/calendar.py",
        "async def execute_calendar_tool(tool_name, tool_input, user_id, limit=10):\n"
        "    return {'success': True, 'result': [tool_name, tool_input, user_id, limit]}\n",
    )
    tool = bench.handler("calendar")
    ending = bench.call(tool, {"user_id": "admin"}, context={"user_id": "u", "memory": object()})
    assert ending.value == {"success": True, "result": ["do_it", {"user_id": "admin"}, "u", 10]}


@pytest.mark.requirement("capability.meta.handler-signature")
def test_a_synchronous_handler_that_takes_everything_gets_what_can_travel(bench: Bench) -> None:
    bench.write(
        "handlers/notes.py",
        "def execute_notes_tool(tool_name, tool_input, **context):\n"
        "    return {'success': True, 'result': context}\n",
    )
    ending = bench.call(bench.handler("notes"), context={"user_id": "u", "memory": object()})
    assert ending.value == {"success": True, "result": {"user_id": "u"}}
    assert any("memory" in note for note in ending.notes)


def test_a_handler_imports_from_the_folder_that_its_handlers_are_a_package_of(bench: Bench) -> None:
    """As in the original, whose server runs in that folder."""
    bench.write("calendar_manager.py", "WHO = 'the manager'\n")
    bench.write("json.py", "raise RuntimeError('the wrong one')\n")
    bench.write("handlers/shared.py", "WHO = 'shared'\n")
    bench.write("handlers/words.py", "WHO = 'a neighbour'\n")
    bench.write(
        "handlers/calendar.py",
        "import json, words\n"
        "from calendar_manager import WHO\n"
        "from handlers.shared import WHO as SHARED\n"
        "def execute_calendar_tool(tool_name, tool_input):\n"
        "    return {'success': True, 'result': [WHO, SHARED, words.WHO, json.dumps({})]}\n",
    )
    ending = bench.call(bench.handler("calendar"))
    assert ending.value == {"success": True, "result": ["the manager", "shared", "a neighbour", "{}"]}, ending


def test_a_function_does_not_import_from_the_folder_above_its_own(bench: Bench) -> None:
    bench.write("above.py", "WHO = 'above'\n")
    tool = bench.function("import above\ndef execute(params, project_path):\n    return 1\n", "a/tool.py")
    assert bench.call(tool).kind_of_value == "ModuleNotFoundError"


def test_a_handler_does_not_import_from_a_folder_that_other_users_may_write_to(bench: Bench) -> None:
    bench.write("planted.py", "WHO = 'another user'\n")
    bench.write(
        "handlers/a.py", "import planted\ndef execute_a_tool(tool_name, tool_input):\n    return {}\n"
    )
    bench.root.chmod(0o777)
    try:
        assert bench.call(bench.handler("a")).kind_of_value == "ModuleNotFoundError"
    finally:
        bench.root.chmod(0o755)


@pytest.mark.parametrize(
    "function",
    [
        lambda name, given: None,
        lambda name, given, user, limit=1: None,
        lambda name, given, user=1, *more, key, other=2: None,
        lambda name, given, /, user, *, key=1: None,
        lambda name, given, user, limit=1, /, key=2: None,
        lambda name, given=1, user=2, **context: None,
        lambda name, *more, key: None,
        lambda *, name, given, key: None,
        lambda *more, **context: None,
    ],
)
def test_the_names_of_a_context_are_those_that_inspect_finds(function: Callable[..., object]) -> None:
    @functools.wraps(function)
    def wrapped(*given: object, **named: object) -> object:
        return function(*given, **named)

    assert _loader.context_names(function) == _loader.context_names(wrapped)


def test_a_handler_s_process_holds_no_modules_that_nobody_asked_for(bench: Bench) -> None:
    bench.write(
        "handlers/bare.py",
        "import sys\n"
        "def execute_bare_tool(tool_name, tool_input, **context):\n"
        "    large = {'asyncio', 'inspect', 'signal', 'socket', 'subprocess', 'typing'}\n"
        "    return {'success': True, 'result': sorted(large & set(sys.modules))}\n",
    )
    assert bench.call(bench.handler("bare")).value == {"success": True, "result": []}


def test_a_live_object_that_a_handler_needs_is_refused_by_name(bench: Bench) -> None:
    source = "def execute_notes_tool(tool_name, tool_input, memory):\n    return {}\n"
    bench.write("handlers/notes.py", source)
    ending = bench.call(bench.handler("notes"), context={"memory": object()})
    assert (ending.end, "memory" in ending.reason) == (End.UNAVAILABLE, True)
    bench.write("handlers/notes.py", source.replace("memory", "**context"))
    tool = bench.handler("notes", needs=Needs(context=("memory",)))
    ending = bench.call(tool, context={"memory": object()})
    assert (ending.end, "memory" in ending.reason) == (End.UNAVAILABLE, True)


@pytest.mark.requirement("capability.meta.executor-alias")
def test_an_executor_is_looked_up_by_alias_then_by_its_own_name(bench: Bench) -> None:
    handler = (
        "def execute_journal_tool(tool_name, tool_input):\n    return {{'success': True, 'result': '{0}'}}\n"
    )
    bench.write("handlers/journal.py", handler.format("journal.py"))
    assert bench.call(bench.handler("journal")).value == {"success": True, "result": "journal.py"}
    bench.write("handlers/journals.py", handler.format("journals.py"))
    assert bench.call(bench.handler("journal")).value == {"success": True, "result": "journals.py"}


@pytest.mark.requirement("capability.call.unknown", "capability.meta.executor-alias")
def test_an_executor_without_a_handler_is_said_in_the_formats_words(bench: Bench) -> None:
    ending = bench.call(bench.handler("file"))
    assert (ending.end, ending.reason) == (End.UNAVAILABLE, "No executor registered for tool type: file")


@pytest.mark.requirement("capability.meta.handler-result")
def test_a_handler_that_raises_or_is_missing_fails(bench: Bench) -> None:
    bench.write("handlers/a.py", "def execute_a_tool(tool_name, tool_input):\n    raise KeyError('id')\n")
    ending = bench.call(bench.handler("a"))
    assert (ending.end, ending.reason, ending.kind_of_value) == (End.RAISED, "'id'", "KeyError")
    bench.write("handlers/a.py", "def execute_a_tool(tool_name, tool_input, memory):\n    return {}\n")
    assert bench.call(bench.handler("a")).reason == "missing context: memory"
    bench.write("handlers/b.py", "def something_else():\n    pass\n")
    assert bench.call(bench.handler("b")).reason == "b.py has no execute_b_tool()"


@pytest.mark.requirement("capability.meta.executor-alias", "capability.meta.handler-signature")
def test_registered_handlers_win_and_get_live_objects(portable_with: Callable[..., Bench]) -> None:
    memory = object()
    seen: list[object] = []

    async def execute_journal_tool(tool_name: str, tool_input: object, memory: object) -> dict[str, object]:
        seen.append(memory)
        return {"success": True, "result": [tool_name, tool_input]}

    def by_name(tool_name: str, tool_input: object) -> dict[str, object]:
        return {"success": True, "result": "by name"}

    handlers = {"journal": SimpleNamespace(execute_journal_tool=execute_journal_tool), "other": by_name}
    bench = portable_with(handlers=handlers)
    bench.write("handlers/journals.py", "raise RuntimeError('not this one')\n")
    ending = bench.call(bench.handler("journal"), {"a": 1}, context={"memory": memory, "user_id": "u"})
    assert ending.value == {"success": True, "result": ["do_it", {"a": 1}]}
    assert seen == [memory]
    assert ending.layers == ("in-process",)
    assert bench.call(bench.handler("journal", name="other")).value == {"success": True, "result": "by name"}
    assert bench.call(bench.handler(None, group="other")).value == {"success": True, "result": "by name"}

    def broken(tool_name: str, tool_input: object) -> None:
        raise KeyError("id")

    def leaving(tool_name: str, tool_input: object) -> None:
        sys.exit("enough")

    bench = portable_with(handlers={"group": broken, "other": leaving})
    assert bench.call(bench.handler(None)).end is End.RAISED
    ending = bench.call(bench.handler(None, name="other"))
    assert (ending.end, ending.reason, ending.kind_of_value) == (End.RAISED, "enough", "SystemExit")


@pytest.mark.parametrize("value", ["x" * 3000, [None] * 1000, {"a": object(), "b": "x" * 3000}])
def test_what_a_handler_returns_is_bounded_like_other_output(
    portable_with: Callable[..., Bench], value: object
) -> None:
    """Attack: an answer of megabytes from inside, where no pipe counts it."""
    bench = portable_with(
        handlers={"group": lambda tool_name, tool_input: {"success": True, "result": value}}
    )
    ending = bench.call(bench.handler(None), permit=bench.limited(stdout_bytes_max=2000))
    assert (ending.end, ending.value, ending.stdout_bytes) == (End.TOO_LARGE, None, 2001)
    assert bench.call(bench.handler(None)).end is End.RETURNED


# -- in the host's own process ------------------------------------------------------------------------------

INSIDE = (
    "import os\nasync def execute(params, project_path):\n    return {'success': True, 'pid': os.getpid()}\n"
)


@pytest.mark.battery("E12")
def test_a_file_runs_in_process_only_when_the_host_opted_in_and_it_was_verified(
    portable_with: Callable[..., Bench],
) -> None:
    for in_process, verified, inside in (
        (False, True, False),
        (True, False, False),
        (True, True, True),
    ):
        bench = portable_with(in_process=in_process, verified=lambda _tool, _call, answer=verified: answer)
        ending = bench.call(bench.function(INSIDE))
        assert isinstance(ending.value, dict)
        assert (ending.value["pid"] == os.getpid()) is inside
        assert ("in-process" in ending.layers) is inside


@pytest.mark.battery("E12")
def test_a_function_that_catches_everything_is_stopped_all_the_same(bench: Bench) -> None:
    tool = bench.function(
        "def execute(params, project_path):\n"
        "    while True:\n"
        "        try:\n"
        "            while True: pass\n"
        "        except BaseException: pass\n"
    )
    began = time.monotonic()
    ending = bench.call(tool, permit=bench.limited(timeout_s=0.5))
    assert ending.end is End.TIMED_OUT
    assert time.monotonic() - began < 5.0


# -- stopping -----------------------------------------------------------------------------------------------

DAEMON = (
    "import os, time\n"
    "def execute(params, project_path):\n"
    "    read, write = os.pipe()\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0:\n"
    "            os.write(write, str(os.getpid()).encode())\n"
    "            time.sleep(60)\n"
    "        os._exit(0)\n"
    "    pid = int(os.read(read, 32))\n"
    "    os.wait()\n"
    "    if params.get('hang'): time.sleep(60)\n"
    "    return pid\n"
)


@pytest.mark.battery("E01", "E08")
@pytest.mark.parametrize("hang", ["time.sleep(60)", "os.kill(os.getpid(), 19)", "signal.pause()"])
def test_a_call_ends_at_its_time_limit(bench: Bench, hang: str) -> None:
    tool = bench.function(f"import os, signal, time\ndef execute(params, project_path):\n    {hang}\n")
    bench.call(bench.function("def execute(params, project_path):\n    pass\n", "other.py"))
    began = time.monotonic()
    ending = bench.call(tool, permit=bench.limited(timeout_s=1.0))
    assert ending.end is End.TIMED_OUT
    assert 0.9 < time.monotonic() - began < 4.0
    assert ending.runs[0].exit_status == -1


def test_loading_ends_at_the_time_limit_too_and_at_the_button(bench: Bench) -> None:
    """Who loads says who it is: zygotes of other tests make processes of their own meanwhile."""
    ready = bench.root / "ready"
    os.mkfifo(ready)
    source = (
        "import os, time\n"
        f"with open({str(ready)!r}, 'w') as file: file.write(f'{{os.getpid()}} ')\n"
        "began = time.monotonic()\nwhile time.monotonic() < began + 20: pass\n"
    )
    tool = bench.function(source + "def execute(params, project_path):\n    return 1\n")
    permit = replace(bench.permit, write=(str(bench.root),), unprotected=True)
    short = replace(permit, limits=replace(LIMITS, timeout_s=0.5))
    cancel, said = Cancel(), b""
    came = os.open(ready, os.O_RDWR)
    try:
        assert bench.call(tool, permit=short).end is End.TIMED_OUT
        if select.select([came], [], [], 0)[0]:
            said += os.read(came, 4096)

        def press() -> None:
            nonlocal said
            if select.select([came], [], [], LIMITS.timeout_s)[0]:
                said += os.read(came, 4096)
                cancel.set()

        thread = threading.Thread(target=press)
        thread.start()
        assert bench.call(tool, permit=permit, cancel=cancel).end is End.CANCELLED
        thread.join()
    finally:
        os.close(came)
    assert said
    assert all(is_gone(int(pid)) for pid in said.split())


@pytest.mark.battery("L01")
def test_a_caller_that_waits_in_vain_harms_nobody(warm: Bench) -> None:
    started, go = warm.root / "started", warm.root / "go"
    os.mkfifo(started)
    tool = warm.function(
        "import os, time\n"
        "def execute(params, project_path):\n"
        "    with open(params['started'], 'w') as file: file.write('x')\n"
        "    for _ in range(1000):\n"
        "        if os.path.exists(params['go']): break\n"
        "        time.sleep(0.01)\n"
        "    return 'done'\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    short = replace(permit, limits=replace(LIMITS, timeout_s=0.3))
    arguments = {"started": str(started), "go": str(go)}
    many = _zygotes.SLOTS_MAX
    reader = os.open(started, os.O_RDWR)
    try:
        with ThreadPoolExecutor(many) as pool:
            running = [pool.submit(warm.call, tool, arguments, permit=permit) for _ in range(many)]
            seen = b""
            while len(seen) < many and select.select([reader], [], [], 20)[0]:
                seen += os.read(reader, many)
            late = warm.call(tool, arguments, permit=short)
            go.write_text("", encoding="utf-8")
            assert late.end is End.TIMED_OUT
            assert [ending.result(20).value for ending in running] == ["done"] * many
    finally:
        os.close(reader)


@pytest.mark.battery("E10")
def test_the_button_stops_a_call(bench: Bench) -> None:
    ready = bench.root / "ready"
    os.mkfifo(ready)
    tool = bench.function(
        "import time\n"
        "def execute(params, project_path):\n"
        "    with open(params['ready'], 'w') as file: file.write('x')\n"
        "    time.sleep(60)\n"
    )
    permit = replace(bench.permit, write=(str(bench.root),), unprotected=True)
    cancel = Cancel()

    def press() -> None:
        word_of(ready)
        cancel.set()

    thread = threading.Thread(target=press)
    thread.start()
    ending = bench.call(tool, {"ready": str(ready)}, cancel=cancel, permit=permit)
    thread.join(10)
    assert ending.end is End.CANCELLED


def test_a_call_that_was_stopped_before_it_began_does_not_run(bench: Bench) -> None:
    cancel = Cancel()
    cancel.set()
    tool = bench.function("def execute(params, project_path):\n    return 1\n")
    assert bench.call(tool, cancel=cancel).end is End.CANCELLED


@pytest.mark.battery("E03", "E04")
def test_a_daemon_is_dead_when_the_call_is_over(warm: Bench) -> None:
    tool = warm.function(DAEMON)
    for _ in range(3):
        ending = warm.call(tool)
        assert isinstance(ending.value, int), ending
        assert not Path(f"/proc/{ending.value}").exists()
    script = warm.script(DAEMON + "print(execute({}, ''), flush=True)\n", "script.py")
    ending = warm.call(script)
    assert ending.exit_status == 0
    assert not Path(f"/proc/{int(ending.stdout)}").exists()


@pytest.mark.battery("E03")
def test_a_child_that_holds_the_pipes_delays_nobody(warm: Bench) -> None:
    tool = warm.function(
        "import subprocess\n"
        "def execute(params, project_path):\n"
        "    return subprocess.Popen(['sleep', '60']).pid\n"
    )
    began = time.monotonic()
    ending = warm.call(tool)
    assert time.monotonic() - began < 5.0
    assert isinstance(ending.value, int)
    assert not Path(f"/proc/{ending.value}").exists()


def test_threads_that_go_on_are_ended_with_the_call(warm: Bench) -> None:
    path = warm.root / "out"
    tool = warm.function(
        "import threading, time\n"
        "def write(path):\n"
        "    while True:\n"
        "        with open(path, 'w') as file: file.write('x')\n"
        "def execute(params, project_path):\n"
        "    threading.Thread(target=write, args=(params['path'],), daemon=True).start()\n"
        "    return True\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    assert warm.call(tool, {"path": str(path)}, permit=permit).value is True
    path.unlink(missing_ok=True)
    assert not path.exists()


# -- limits -------------------------------------------------------------------------------------------------


@pytest.mark.battery("F01", "F02")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_stops_the_call(bench: Bench, stream: str) -> None:
    tool = bench.function(
        f"import sys\ndef execute(params, project_path):\n    while True: sys.{stream}.write('y' * 1000)\n"
    )
    ending = bench.call(tool, permit=bench.limited(stdout_bytes_max=100_000, stderr_bytes_max=100_000))
    assert ending.end is End.TOO_LARGE
    assert len(ending.stdout) <= 100_000
    assert len(ending.stderr) <= 100_000
    assert max(ending.stdout_bytes, ending.stderr_bytes) > 100_000


def test_a_result_over_its_limit_is_too_large(bench: Bench) -> None:
    tool = bench.function("def execute(params, project_path):\n    return 'x' * params['n']\n")
    permit = bench.limited(stdout_bytes_max=200_000)
    assert bench.call(tool, {"n": 300_000}, permit=permit).end is End.TOO_LARGE
    assert len(str(bench.call(tool, {"n": 150_000}, permit=permit).value)) == 150_000


def test_memory_is_bounded(warm: Bench) -> None:
    tool = warm.function(
        "import time\n"
        "def execute(params, project_path):\n"
        "    held = []\n"
        "    while True: held.append(bytearray(8 << 20)); time.sleep(0.01)\n"
    )
    ending = warm.call(tool, permit=warm.limited(memory_bytes_max=200 << 20))
    assert (ending.end, ending.reason) == (
        End.OVER_LIMIT,
        f"its processes took more than {200 << 20} bytes of memory",
    )


def test_a_fork_bomb_is_stopped_and_nothing_is_left(warm: Bench) -> None:
    tool = warm.function(
        "import os, time\n"
        "def execute(params, project_path):\n"
        "    for _ in range(150):\n"  # bounded by itself: a test that fails must not take the machine along
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            time.sleep(5)\n"
        "            os._exit(0)\n"
        "        time.sleep(0.02)\n"
        "    time.sleep(5)\n"
    )
    warm.call(tool, permit=warm.limited(timeout_s=0.01))  # the zygote is there
    before = processes_below(os.getpid())
    ending = warm.call(tool, permit=warm.limited(processes_max=20))
    assert (ending.end, ending.reason) == (End.OVER_LIMIT, "it had more than 20 processes")
    after = {pid for pid in processes_below(os.getpid()) - before if not is_gone(pid, 0)}
    assert len(after) <= 8  # a zygote, its slots and their next children


def test_scratch_is_bounded_private_and_empty_for_every_call(warm: Bench) -> None:
    tool = warm.function(
        "import os, time\n"
        "def execute(params, project_path):\n"
        "    place = os.environ['TMPDIR']\n"
        "    left = os.listdir(place)\n"
        "    os.makedirs(place + '/a/b')\n"
        "    open(place + '/a/b/c', 'w').write('x')\n"
        "    os.chmod(place + '/a/b', 0)\n"
        "    os.symlink('/etc', place + '/link')\n"
        "    if params.get('fill'):\n"
        "        with open(place + '/big', 'wb') as file:\n"
        "            while True: file.write(bytes(1 << 20)); file.flush(); time.sleep(0.01)\n"
        "    return [place, left]\n"
    )
    for _ in range(4):
        value = warm.call(tool).value
        assert isinstance(value, list)
        assert value[1] == []
    ending = warm.call(tool, {"fill": True}, permit=warm.limited(scratch_bytes_max=10 << 20))
    assert (ending.end, ending.reason) == (
        End.OVER_LIMIT,
        f"its temporary files took more than {10 << 20} bytes",
    )


def test_attack_folders_without_end_are_answered_in_time(warm: Bench) -> None:
    tool = warm.function(
        "import os\n"
        "def execute(params, project_path):\n"
        "    os.chdir(os.environ['TMPDIR'])\n"
        "    n = 0\n"
        "    while params.get('fill'): os.makedirs(f'{n}/a/b'); n += 1\n"
        "    return os.listdir('.')\n"
    )
    warm.call(tool)

    def act() -> tuple[Ending, float]:
        began = time.monotonic()
        ending = warm.call(tool, {"fill": True}, permit=warm.limited(timeout_s=1.0))
        return ending, time.monotonic() - began

    ending, took_s = timely(act, lambda found: found[1], 2.0)
    assert ending.end in (End.TIMED_OUT, End.OVER_LIMIT)
    assert took_s < 2.0
    assert warm.call(tool).value == []


def test_names_that_do_not_exist_are_held_as_long_as_a_zygote_lives(tmp_path: Path) -> None:
    """Attack: a tool makes a ``commondir`` between two calls, while its zygote waits."""
    place = tmp_path.resolve() / "git"
    place.mkdir()
    with bench_at(tmp_path.resolve(), Level.SUPERVISED) as warm:
        tool = warm.function(
            "def execute(params, project_path):\n"
            f"    try: open('{place}/commondir', 'w').write('evil')\n"
            "    except OSError as error: return type(error).__name__\n"
        )
        roots = (str(tmp_path.resolve()),)
        permit = replace(warm.permit, read=roots, write=roots, forbidden=(f"{place}/commondir",))
        for _ in range(3):
            assert warm.call(tool, permit=permit).value in ("OSError", "PermissionError")
        assert (place / "commondir").read_text(encoding="ascii") == "./\n"
    assert os.listdir(place) == []


def test_attack_a_zygote_writes_a_protected_file_that_a_person_has_replaced(tmp_path: Path) -> None:
    """The mount that held it is gone with the old file, so another zygote takes its place."""
    config = tmp_path.resolve() / "config"
    config.write_text("mine", encoding="ascii")
    with bench_at(tmp_path.resolve(), Level.SUPERVISED) as warm:
        tool = warm.function(
            "def execute(params, project_path):\n"
            f"    try: open('{config}', 'w').write('evil')\n"
            "    except OSError: return 'refused'\n"
        )
        roots = (str(config.parent),)
        permit = replace(warm.permit, read=roots, write=roots, protected=(str(config),))
        assert warm.call(tool, permit=permit).value == "refused"
        (config.parent / "config.lock").write_text("mine", encoding="ascii")
        (config.parent / "config.lock").replace(config)
        until = time.monotonic() + 20
        while (ending := warm.call(tool, permit=permit)).value is None and time.monotonic() < until:
            config.write_text("mine", encoding="ascii")  # the last look at the mounts counts for a moment
        assert (ending.value, "zygote" in ending.layers) == ("refused", True)
    assert config.read_text(encoding="ascii") == "mine"


def test_a_call_does_not_see_the_scratch_folder_of_another(warm: Bench) -> None:
    """Attack: two callers of one tool; one looks for the files of the other."""
    ready, go = warm.root / "ready", warm.root / "go"
    os.mkfifo(ready)
    os.mkfifo(go)
    tool = warm.function(
        "import os\n"
        "def execute(params, project_path):\n"
        "    place = os.environ['TMPDIR']\n"
        "    if 'look' in params:\n"
        "        found = {}\n"
        "        steal, plant = lambda p: open(p + '/secret').read(), lambda p: open(p + '/new', 'w')\n"
        "        for act in (os.listdir, steal, plant):\n"
        "            try: act(params['look']); found[str(len(found))] = 'done'\n"
        "            except OSError as error: found[str(len(found))] = type(error).__name__\n"
        "        return found\n"
        "    open(place + '/secret', 'w').write('mine')\n"
        "    with open(params['ready'], 'w') as file: file.write(place)\n"
        "    with open(params['go']) as file: file.read()\n"
        "    return sorted(os.listdir(place))\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(warm.call, tool, {"ready": str(ready), "go": str(go)}, permit=permit)
        place = word_of(ready)
        second = warm.call(tool, {"look": place}, permit=permit)
        go.write_text("x", encoding="utf-8")
        assert first.result(20).value == ["secret"]
    assert second.value == {"0": "PermissionError", "1": "PermissionError", "2": "PermissionError"}


# -- secrets and the zygote ---------------------------------------------------------------------------------


@pytest.mark.battery("D01")
def test_only_the_call_that_was_granted_a_secret_holds_it(warm: Bench) -> None:
    tool = warm.function(
        "import os\n"
        "AT_THE_TOP = os.environ.get('TOKEN')\n"
        "def execute(params, project_path):\n"
        "    return [AT_THE_TOP, os.environ.get('TOKEN'), os.getppid()]\n"
    )
    ending = warm.call(tool)
    assert isinstance(ending.value, list)
    assert ending.value[:2] == [None, None]
    ending = warm.call(tool, permit=replace(warm.permit, env=("TOKEN",)))
    assert isinstance(ending.value, list)
    assert ending.value[:2] == ["[secret TOKEN]", "[secret TOKEN]"]
    for pid in processes_below(os.getpid()):
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"s3cret-value" not in environ, pid
    assert warm.call(tool).value[:2] == [None, None]


def test_a_zygote_holds_no_secret_in_its_memory(warm: Bench) -> None:
    """Attack: a later call, or whoever reaches the zygote, searches its memory for an earlier secret."""
    tool = warm.function("import os\ndef execute(params, project_path):\n    return os.getppid()\n")
    slot = warm.call(tool, permit=replace(warm.permit, env=("TOKEN",))).value
    assert isinstance(slot, int)
    if os.geteuid() != 0:
        pytest.skip("only root may read the memory of a process that is closed to its owner")
    for pid in (
        slot,
        int(Path(f"/proc/{slot}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1]),
    ):
        assert not _memory_holds(pid, b"s3cret-value")


def _memory_holds(pid: int, needle: bytes) -> bool:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            if "w" in mode and "[v" not in line:
                begin, end = (int(word, 16) for word in span.split("-"))
                memory.seek(begin)
                with suppress(OSError):
                    if needle in memory.read(end - begin):
                        return True
    return False


def test_a_call_cannot_plant_code_in_the_zygote(warm: Bench) -> None:
    """Attack: a call that plants code in the zygote for the next one: by ptrace, /proc/PID/mem or signals."""
    tool = warm.function(
        "import ctypes, errno, os\n"
        "def attempt(action):\n"
        "    try: return repr(action())\n"
        "    except OSError as error: return errno.errorcode[error.errno]\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def trace(pid):\n"
        "    if libc.ptrace(0x4206, pid, None, None) < 0: raise OSError(ctypes.get_errno(), 'ptrace')\n"
        "def execute(params, project_path):\n"
        "    found = {}\n"
        "    for pid in {os.getppid(), *params.get('pids', [])} - {os.getpid()}:\n"
        "        found[str(pid)] = [\n"
        "            attempt(lambda: trace(pid)),\n"
        "            attempt(lambda: open(f'/proc/{pid}/mem', 'r+b')),\n"
        "            attempt(lambda: open(f'/proc/{pid}/environ', 'rb').read()),\n"
        "            attempt(lambda: os.kill(pid, 9)),\n"
        "            attempt(lambda: os.killpg(os.getpgid(pid), 9)),\n"
        "            attempt(lambda: open(f'/proc/{pid}/fd/3', 'rb')),\n"
        "        ]\n"
        "    return found\n"
    )
    everything = replace(warm.permit, profile=Profile.OPEN, read=("/",), write=("/",))
    for permit in (warm.permit, everything):
        assert warm.call(tool, permit=permit).end is End.RETURNED
        mine = sorted(processes_below(os.getpid()))
        value = warm.call(tool, {"pids": [os.getpid(), *mine]}, permit=permit).value
        assert isinstance(value, dict)
        assert len(value) > 3
        living = [errors for errors in value.values() if "ESRCH" not in errors]
        assert living
        for errors in living:
            assert {*errors} <= {"EPERM", "EACCES", "ENOENT", "EROFS"}, value
        assert warm.call(tool, permit=permit).end is End.RETURNED


def test_a_call_does_not_inherit_the_ways_to_the_host(warm: Bench) -> None:
    """Attack: a call that speaks to the host, or takes the next request, over a descriptor it kept."""
    tool = warm.function(
        "import os, stat\n"
        "def execute(params, project_path):\n"
        "    found = {}\n"
        "    for fd in range(256):\n"
        "        try: found[str(fd)] = stat.filemode(os.fstat(fd).st_mode)[0]\n"
        "        except OSError: pass\n"
        "    return found\n"
    )
    for _ in range(3):
        found = warm.call(tool).value
        assert isinstance(found, dict)
        assert (found["1"], found["2"]) == ("p", "p")
        others = {kind for fd, kind in found.items() if int(fd) > 2}
        assert sorted(kind for fd, kind in found.items() if int(fd) > 2) == ["s"], others


@pytest.mark.parametrize(
    "message",
    [
        "b''",
        "b'Z{'",
        "b'Z[1]'",
        'b\'Z{"threads":1,"watched":[[]]}\'',
        "b'S'",
        "b'F'",
        "b'F{}'",
        "b'?' * 1000",
    ],
)
def test_a_tool_that_speaks_in_the_zygotes_place_harms_itself_alone(warm: Bench, message: str) -> None:
    """Attack: a file's top level runs in the zygote, which has a way to the host."""
    hostile = warm.function(
        "import os, socket\n"
        "try:\n"
        f"    with socket.socket(fileno=os.dup(3)) as way: way.send({message}); way.send(b'Z')\n"
        "except OSError: pass\n"
        "def execute(params, project_path):\n    return 'mine'\n"
    )
    honest = warm.function("def execute(params, project_path):\n    return 'fine'\n", "honest.py")
    assert warm.call(honest).value == "fine"
    fds = []
    for _ in range(12):
        ending = warm.call(hostile)
        assert ending.end is End.RAISED or ending.value == "mine", ending
        fds.append(len(os.listdir("/proc/self/fd")))
    until = time.monotonic() + 10  # those of the last one may still be closing, in a thread of its own
    while (left := len(os.listdir("/proc/self/fd"))) > min(fds[:6]) and time.monotonic() < until:
        Cancel().wait(0.02)
    assert left <= min(fds[:6]), (left, fds)
    assert warm.call(honest).value == "fine"


@pytest.mark.parametrize(
    "frame",
    [
        "b'x' * 100",
        "struct.pack('!cQddQ', b'X', 2, 0, 0, 0) + b'zz'",
        "struct.pack('!cQddQ', b'V', 2, 0, 0, 0) + b'zz'",
        "struct.pack('!cQddQ', b'?', 0, float('nan'), -1.0, 1 << 63)",
        "struct.pack('!cQddQ', b'V', 1 << 62, 0, 0, 0) + b'dict' + bytes(8)",
    ],
)
def test_a_call_that_writes_its_own_answer_is_no_success(warm: Bench, frame: str) -> None:
    """Attack: a call that finds the socket its answer goes through."""
    tool = warm.function(
        "import os, stat, struct\n"
        "def execute(params, project_path):\n"
        "    for fd in range(3, 64):\n"
        "        try:\n"
        f"            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, {frame})\n"
        "        except OSError: pass\n"
        "    os._exit(0)\n"
    )
    ending = warm.call(tool)
    assert ending.end in (End.RAISED, End.TOO_LARGE), ending
    assert ending.usage.user_ms >= 0
    assert warm.call(tool).end is ending.end


def test_a_zygote_that_dies_is_replaced(warm: Bench) -> None:
    tool = warm.function("import os\ndef execute(params, project_path):\n    return os.getppid()\n")
    slot = warm.call(tool).value
    assert isinstance(slot, int)
    zygote = int(Path(f"/proc/{slot}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    os.kill(zygote, signal.SIGKILL)
    assert is_gone(slot)
    again = warm.call(tool)
    assert again.end is End.RETURNED, again
    assert again.value != slot


@pytest.mark.parametrize("whom", ["zygote", "supervisor"])
def test_a_zygote_that_was_killed_while_it_loaded_is_tried_again_later(warm: Bench, whom: str) -> None:
    """Cold interpreters answer meanwhile; it used to be the last attempt of the whole host."""
    ready = warm.root / "ready"
    os.mkfifo(ready)
    tool = warm.function(
        "import os, stat, time\n"
        f"if stat.S_ISFIFO(os.stat({str(ready)!r}).st_mode):\n"
        f"    with open({str(ready)!r}, 'w') as file: file.write(f'{{os.getpid()}} {{os.getppid()}}')\n"
        "    time.sleep(60)\n"
        "def execute(params, project_path):\n"
        "    return 'fine'\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(warm.call, tool, permit=permit)
        zygote, supervisor = map(int, word_of(ready).split())
        ready.unlink()
        ready.write_text("", encoding="ascii")
        os.kill(zygote if whom == "zygote" else supervisor, signal.SIGKILL)
        cold = first.result()
    assert (cold.value, "zygote" in cold.layers) == ("fine", False), cold
    until = time.monotonic() + 10
    while "zygote" not in (again := warm.call(tool, permit=permit)).layers:
        assert again.value == "fine", again
        assert time.monotonic() < until, "no zygote is made any more"


def test_a_slot_that_cannot_begin_does_nothing_of_what_the_tool_left_for_its_end(warm: Bench) -> None:
    """It has no folder to make its own in, since somebody took that away."""
    ready, mark = warm.root / "ready", warm.root / "mark"
    os.mkfifo(ready)
    tool = warm.function(
        "import atexit, os, time\n"
        f"atexit.register(lambda: os.close(os.open({str(mark)!r}, os.O_CREAT | os.O_WRONLY)))\n"
        "def execute(params, project_path):\n"
        "    if 'ready' in params:\n"
        "        with open(params['ready'], 'w') as file: file.write('+')\n"
        "        time.sleep(60)\n"
        "    return os.environ['TMPDIR']\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    folder = warm.call(tool, permit=permit).value
    assert isinstance(folder, str)
    Path(folder).parent.rename(Path(folder).parent.with_name("away"))
    stops = [Cancel(), Cancel()]
    with ThreadPoolExecutor(2) as pool, open(os.open(ready, os.O_RDWR), "rb", buffering=0) as came:
        for stop in stops:  # both slots that there are, so that another one is asked for
            pool.submit(warm.call, tool, {"ready": str(ready)}, permit=permit, cancel=stop)
            assert came.read(1) == b"+"
        third = warm.call(tool, permit=permit)
        for stop in stops:
            stop.set()
    assert (third.end, "zygote" in third.layers) == (End.RETURNED, False), third
    assert not mark.exists()


def test_a_slot_that_dies_during_a_call_is_never_a_success(warm: Bench) -> None:
    ready = warm.root / "ready"
    os.mkfifo(ready)
    tool = warm.function(
        "import os, time\n"
        "def execute(params, project_path):\n"
        "    if 'ready' in params:\n"
        "        with open(params['ready'], 'w') as file: file.write(f'{os.getpid()} {os.getppid()}')\n"
        "        time.sleep(60)\n"
        "    return 'fine'\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(warm.call, tool, {"ready": str(ready)}, permit=permit)
        child, slot = map(int, word_of(ready).split())
        os.kill(slot, signal.SIGKILL)
        assert lost.result(20).end is End.LOST
    assert is_gone(child)
    assert warm.call(tool, permit=permit).value == "fine"


def test_a_tool_that_starts_threads_while_loading_runs_cold(warm: Bench) -> None:
    """Forking beside a running thread would copy its locks: each call gets an interpreter of its own."""
    tool = warm.function(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "def execute(params, project_path):\n    return threading.active_count()\n"
    )
    for _ in range(2):
        ending = warm.call(tool)
        assert ending.value == 2
        assert "zygote" not in ending.layers


def test_where_no_thread_listens_to_a_zygote_a_cold_interpreter_answers(warm: Bench) -> None:
    tool = warm.function("def execute(params, project_path):\n    return 'fine'\n")
    before = threading.stack_size(1 << 46)  # more than there is: no thread starts
    try:
        cold = warm.call(tool)
    finally:
        threading.stack_size(before)
    assert (cold.value, "zygote" in cold.layers) == ("fine", False), cold
    later = warm.call(tool)
    assert (later.value, "zygote" in later.layers) == ("fine", True), later


@pytest.mark.requirement("rye.executor.function")
def test_the_second_call_needs_no_interpreter_start(warm: Bench) -> None:
    loads = warm.root / "loads"
    loads.mkdir()
    tool = warm.function(
        f"import os, tempfile\nhandle, _ = tempfile.mkstemp(dir={str(loads)!r})\n"
        "def execute(params, project_path):\n    return os.getpid()\n"
    )
    permit = replace(warm.permit, write=(str(warm.root),), unprotected=True)
    pids = [warm.call(tool, permit=permit).value for _ in range(4)]
    assert len(set(map(str, pids))) == 4
    assert len(list(loads.iterdir())) == 1


def test_zygotes_are_few_and_the_least_used_goes_first(warm_with: Callable[..., Bench]) -> None:
    bench = warm_with(zygotes_max=2)
    source = "import os\ndef execute(params, project_path):\n    return os.getppid()\n"
    tools = [bench.function(source, f"t{number}.py") for number in range(3)]
    slots = [bench.call(tool).value for tool in (tools[0], tools[1], tools[0], tools[2])]
    assert is_gone(int(str(slots[1])))
    assert not is_gone(int(str(slots[0])), 0)
    assert not is_gone(int(str(slots[3])), 0)


def test_an_idle_zygote_ends_by_itself(warm_with: Callable[..., Bench]) -> None:
    bench = warm_with(idle_s=0.3)
    tool = bench.function("import os\ndef execute(params, project_path):\n    return os.getppid()\n")
    slot = bench.call(tool).value
    assert isinstance(slot, int)
    assert is_gone(slot, 5.0)
    assert bench.call(tool).end is End.RETURNED


@pytest.mark.battery("L01")
def test_many_calls_at_once_get_their_own_answers_and_leave_nothing(warm: Bench) -> None:
    bench = warm
    tools: list[tuple[Tool, Callable[[int, Ending], bool]]] = [
        (
            bench.function("def execute(params, project_path):\n    return params['n'] * 2\n", "double.py"),
            lambda n, ending: ending.value == n * 2,
        ),
        (
            bench.function("import os\ndef execute(params, project_path):\n    os._exit(3)\n", "exit.py"),
            lambda n, ending: ending.exit_status == 3,
        ),
        (
            bench.function(DAEMON, "daemon.py"),
            lambda n, ending: ending.end is End.RETURNED and is_gone(int(str(ending.value)), 0),
        ),
        (
            bench.function(
                "def execute(params, project_path):\n    raise ValueError(params['n'])\n", "raise.py"
            ),
            lambda n, ending: ending.reason == str(n),
        ),
        (
            bench.script("import json, sys\nprint(json.load(sys.stdin)['n'])\nsys.exit(4)\n", "script.py"),
            lambda n, ending: ending.stdout == f"{n}\n".encode() and ending.exit_status == 4,
        ),
    ]
    for tool, fits in tools:
        assert fits(1, bench.call(tool, {"n": 1}))
    fds = len(os.listdir("/proc/self/fd"))

    def one(n: int) -> bool:
        tool, fits = tools[n % len(tools)]
        return fits(n, bench.call(tool, {"n": n}))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(100)))
    bench.runtime.close()
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert isinstance(bench.host.sandbox, Supervised)
    assert bench.host.sandbox._connection is not None
    # Below its own spawner: zygotes that other tests share make processes of theirs meanwhile.
    left = [pid for pid in processes_below(bench.host.sandbox._connection.pid) if _is_python(pid)]
    assert left == []


def _is_python(pid: int) -> bool:
    with suppress(OSError):
        return b"<toolcrib>" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.mark.skipif(installed() is None, reason="the spawner is not built; a C compiler at install builds it")
def test_without_landlock_there_are_no_zygotes(tmp_path: Path) -> None:
    """Attack: nothing but Landlock keeps a call from tracing or signalling the zygote of later calls."""
    surroundings = Surroundings(landlock=0, seccomp=True, namespaces=False)
    sandbox = Supervised(surroundings.rules, Scratch())
    sandbox.level = Level.PORTABLE
    host = Host(sandbox=sandbox, variables={"PATH": PATH}, cwd=str(tmp_path), python=sys.executable)
    runtime = PythonTools(host, digests.Contents())
    permit = Permit(profile=Profile.CLOSED, read=(str(tmp_path),), limits=LIMITS)
    bench = Bench(root=tmp_path, host=host, runtime=runtime, level=Level.PORTABLE, permit=permit)
    tool = bench.function("def execute(params, project_path):\n    return 1\n")
    for _ in range(2):
        ending = bench.call(tool)
        assert (ending.value, "zygote" in ending.layers) == (1, False)
    assert bench.call(tool, permit=replace(permit, level=Level.SUPERVISED)).end is End.UNAVAILABLE
    runtime.close()
    sandbox.close()


def test_the_host_may_fork(warm: Bench) -> None:
    """A forked copy of the host neither uses nor ends the zygotes of its parent."""
    tool = warm.function("import os\ndef execute(params, project_path):\n    return os.getppid()\n")
    slot = warm.call(tool).value
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            warm.runtime.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not is_gone(int(str(slot)), 0)
    assert warm.call(tool).end is End.RETURNED


@pytest.mark.skipif(not os.access(SYSTEM_PYTHON, os.X_OK), reason=f"no {SYSTEM_PYTHON} on this machine")
def test_another_interpreter_than_the_hosts_runs_tools_too(warm_with: Callable[..., Bench]) -> None:
    bench = warm_with(python=SYSTEM_PYTHON)
    tool = bench.function(
        "import os, sys\n"
        "def execute(params, project_path):\n    return [sys.version_info[:2], sys.executable]\n"
    )
    for _ in range(2):
        value = bench.call(tool).value
        assert isinstance(value, list)
        assert os.path.realpath(value[1]) == os.path.realpath(SYSTEM_PYTHON)


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, b'{"a":1}'),
        ([True, None, "ä"], '[true,null,"ä"]'.encode()),
        ({1: 2, 1.5: 3, False: 4}, b'{"1":2,"1.5":3,"false":4}'),
        (float("inf"), b"null"),
        ({"x": float("nan")}, b'{"x":null}'),
        ({("a",): 1}, b"{\"('a',)\":1}"),
    ],
)
def test_any_value_is_json_in_the_end(value: object, text: bytes) -> None:
    assert _loader.as_json(value) == text


def test_a_zygote_keeps_at_most_its_slots(warm: Bench) -> None:
    before = processes_below(os.getpid())
    tool = warm.function(
        "import time\ndef execute(params, project_path):\n    time.sleep(0.05)\n    return params['n']\n"
    )
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda n: warm.call(tool, {"n": n}).value, range(24)))
    assert found == list(range(24))
    assert _zygotes.IDLE_SLOTS_MAX < 12
    slots = [pid for pid in processes_below(os.getpid()) - before if _is_python(pid) and not is_gone(pid, 0)]
    assert len(slots) <= 1 + 2 * (_zygotes.IDLE_SLOTS_MAX + 2) + 12


def test_a_nul_in_what_a_function_returns_is_data(bench: Bench) -> None:
    tool = bench.function("def execute(params, project):\n    return {'a': 'b\\0c'}\n")
    assert bench.call(tool).value == {"a": "b\0c"}


# -- few descriptors ----------------------------------------------------------------------------------------

FEW = """
import collections, resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.runtimes.test_python import bench_at
from toolcrib.model import Level
with bench_at(Path(sys.argv[1]), Level.SUPERVISED) as bench:
    tool = bench.function("def execute(params, project):\\n    return {'n': params['n']}\\n")
    with ThreadPoolExecutor(100) as pool:
        endings = list(pool.map(lambda n: bench.call(tool, {"n": n}), range(200)))
    later = bench.call(tool, {"n": 1})
wrong = [ending for n, ending in enumerate(endings) if ending.value != {"n": n}]
print(collections.Counter((ending.end.value, ending.reason) for ending in wrong), later.value)
"""


@pytest.mark.battery("L07")
def test_l07_calls_of_a_zygote_wait_for_their_turn_where_descriptors_are_few(
    warm_with: Callable[..., Bench], tmp_path: Path
) -> None:
    assert warm_with().level is Level.SUPERVISED
    done = subprocess.run(
        [sys.executable, "-c", FEW, str(tmp_path.resolve())],
        cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("Counter() {'n': 1}\n", "")
