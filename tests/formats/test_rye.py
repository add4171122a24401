"""The rye format, where a case of tests/conformance cannot say it: spaces, chains, fixes, declarations, odd
bytes, real files, the page."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import shared
from tests.strategies import json_values
from toolcrib import app, formats, jsontext, schema
from toolcrib.catalog import mending
from toolcrib.config import Config, Environment
from toolcrib.dialects import DIALECTS
from toolcrib.formats import rye
from toolcrib.model import (
    RYE_SUFFIXES,
    CallJavaScript,
    CallPython,
    Compiled,
    DeclareOptions,
    Document,
    Fix,
    JavaScriptStyle,
    Linked,
    NotCallable,
    Problem,
    PythonStyle,
    Role,
    Rules,
    Severity,
    Tool,
    Unit,
)

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "rye.md"
ROOTS = ("/srv/p/.ai/tools/", "/srv/u/.ai/tools/", "/srv/s/.ai/tools/")


def document(item: str, text: str | bytes, space: int = 0) -> Document:
    content = text if isinstance(text, bytes) else text.encode("utf-8")
    return Document(
        path=ROOTS[space] + item,
        content=content,
        parsed=jsontext.read(content) if item.endswith(".json") else None,
        place="rye",
        item=item,
        space=space,
        project="/srv/p",
    )


def compiled(item: str, text: str | bytes) -> Compiled:
    return rye.compile_document(document(item, text), Rules())


def linked(*items: tuple[str, int, str]) -> Linked:
    """Items by id with suffix, space and text."""
    units = []
    for item, space, text in items:
        found = document(item, text, space)
        units.append(
            Unit(path=found.path, item=item, space=space, compiled=rye.compile_document(found, Rules()))
        )
    return rye.link(units, Rules())


def python(category: str, executor: str = "rye/core/runtimes/python/function", **more: Any) -> str:
    lines = [
        '"""Says hello."""',
        '__version__ = "1.0.0"',
        '__tool_type__ = "python"',
        f"__executor_id__ = {executor!r}",
        f"__category__ = {category!r}",
        '__tool_description__ = "Say hello"',
        *(f"{name} = {value!r}" for name, value in more.items()),
        "def execute(params, project_path):\n    return {'success': True}",
        "if __name__ == '__main__':\n    execute({}, '.')",
    ]
    return "\n".join(lines)


def yaml(category: str, **more: Any) -> str:
    return json.dumps(
        {
            "tool_id": "t",
            "tool_type": "yaml",
            "version": "1.0.0",
            "description": "List files",
            "executor_id": "rye/core/primitives/execute",
            "category": category,
            "config": {"command": "ls"},
            **more,
        }
    )


def errors(problems: Any) -> list[str]:
    return [
        f"{problem.code}: {problem.message}" for problem in problems if problem.severity is Severity.ERROR
    ]


# -- spaces and chains --------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.id.spaces")
def test_the_first_space_wins_and_the_shadowed_item_is_reported() -> None:
    found = linked(
        ("a/b.py", 1, python("a")), ("a/b.yaml", 0, yaml("a", tool_id="b")), ("a/c.py", 2, python("a"))
    )
    assert [(tool.name, tool.origin.path) for tool in found.tools] == [
        ("a/b", "/srv/p/.ai/tools/a/b.yaml"),
        ("a/c", "/srv/s/.ai/tools/a/c.py"),
    ]
    assert [
        (problem.severity, problem.code, problem.path, problem.message) for problem in found.problems
    ] == [
        (
            Severity.WARNING,
            "rye.id.spaces",
            "/srv/u/.ai/tools/a/b.py",
            '"a/b" of user space is shadowed by /srv/p/.ai/tools/a/b.yaml',
        )
    ]


@pytest.mark.requirement("rye.id.spaces")
def test_project_goes_before_user_and_user_before_system() -> None:
    every = [("a/b.py", space, python("a")) for space in (2, 1, 0)]
    found = linked(*every)
    assert [tool.origin.path for tool in found.tools] == ["/srv/p/.ai/tools/a/b.py"]
    assert [(problem.code, problem.message) for problem in found.problems] == [
        ("rye.id.spaces", '"a/b" of user space is shadowed by /srv/p/.ai/tools/a/b.py'),
        ("rye.id.spaces", '"a/b" of system space is shadowed by /srv/p/.ai/tools/a/b.py'),
    ]
    found = linked(*every[:2])
    assert [tool.origin.path for tool in found.tools] == ["/srv/u/.ai/tools/a/b.py"]
    assert [problem.path for problem in found.problems] == ["/srv/s/.ai/tools/a/b.py"]
    assert linked(*every[:1]).tools[0].origin.path == "/srv/s/.ai/tools/a/b.py"


IN_ORDER = [".py", ".yaml", ".yml", ".json", ".js", ".ts", ".mjs", ".cjs", ".sh", ".toml"]


def item_of(suffix: str, executor: str | None = None) -> str:
    """An item in the language of a suffix, whose id is ``a/t``."""
    if suffix == ".py":
        return python("a", executor or "rye/core/runtimes/python/function")
    if suffix == ".toml":
        return "x = 1\n"
    if suffix in (".yaml", ".yml", ".json"):
        return yaml("a", executor_id=executor or "rye/core/primitives/execute")
    runtime = executor or f"rye/core/runtimes/{'bash/bash' if suffix == '.sh' else 'node/node'}"
    values = {
        "__version__": "1.0.0",
        "__tool_type__": "script" if suffix == ".sh" else "javascript",
        "__executor_id__": runtime,
        "__category__": "a",
        "__tool_description__": "Say hello",
    }
    line = "# {} = {}\n" if suffix == ".sh" else "export const {} = '{}';\n"
    return "".join(line.format(name, value) for name, value in values.items())


@pytest.mark.requirement("rye.id.extension-order")
@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(IN_ORDER, 2)))
def test_of_two_files_of_one_id_the_earlier_suffix_counts(first: str, second: str) -> None:
    files = [(f"a/t{suffix}", 0, item_of(suffix)) for suffix in (first, second)]
    for order in (files, files[::-1]):
        found = linked(*order)
        assert [tool.origin.path for tool in found.tools] == [f"/srv/p/.ai/tools/a/t{first}"]
        assert [(problem.code, problem.path, problem.message) for problem in found.problems] == [
            (
                "rye.id.extension-order",
                f"/srv/p/.ai/tools/a/t{second}",
                f'"a/t" is found as t{first} first; this file is not used',
            )
        ]


@pytest.mark.requirement("rye.id.extension-order")
def test_the_suffixes_that_are_looked_for_are_those_that_are_ranked() -> None:
    assert list(RYE_SUFFIXES) == IN_ORDER


@pytest.mark.requirement("rye.id.user-space", "rye.id.spaces")
def test_the_user_space_is_the_home_folder_or_what_user_space_names(tmp_path: Path) -> None:
    for root in ("project", "home", "elsewhere"):
        folder = tmp_path / root / ".ai" / "tools" / "a"
        folder.mkdir(parents=True)
        (folder / f"{root}.py").write_text(python("a"), encoding="utf-8")

    def names(**variables: str) -> list[str]:
        environment = Environment.read({"HOME": str(tmp_path / "home"), **variables})
        crib = app.open(str(tmp_path / "project"), config=Config(), environment=environment)
        return [tool.name for tool in crib.tools]

    assert Environment.read({"HOME": "/home/me", "USER_SPACE": "/srv/u"}).user_space == "/srv/u"
    assert names() == ["a/project", "a/home"]
    assert names(USER_SPACE=str(tmp_path / "elsewhere")) == ["a/project", "a/elsewhere"]


@pytest.mark.requirement("rye.executor.space-rule")
def test_a_user_tool_cannot_chain_to_a_runtime_of_the_project() -> None:
    runtime = yaml("my", tool_type="runtime")
    found = linked(
        ("my/fast.yaml", 0, runtime),
        ("a/t.py", 1, python("a", "my/fast")),
        ("b/t.py", 0, python("b", "my/fast")),
    )
    assert [tool.name for tool in found.tools] == ["my/fast", "b/t"]
    assert errors(found.problems) == [
        "rye.executor.space-rule: Tool 'a/t' from user space cannot depend on 'my/fast' from project space. "
        "Lower precedence spaces cannot depend on higher precedence spaces."
    ]


SPACES = ("project", "user", "system")


@pytest.mark.requirement("rye.executor.space-rule")
@pytest.mark.parametrize("tool", range(3), ids=SPACES)
@pytest.mark.parametrize("executor", range(3), ids=SPACES)
def test_a_tool_depends_on_items_of_its_own_space_and_of_those_below_it(tool: int, executor: int) -> None:
    """Attack: an item of the user that a system tool runs by, or one of the project under either."""
    found = linked(("my/fast.yaml", executor, yaml("my", tool_type="runtime")),
                   ("a/t.py", tool, python("a", "my/fast")))  # fmt: skip
    may = tool <= executor
    assert ("a/t" in [each.name for each in found.tools]) == may
    assert (
        errors(found.problems) == []
        if may
        else [
            f"rye.executor.space-rule: Tool 'a/t' from {SPACES[tool]} space cannot depend on 'my/fast' from "
            f"{SPACES[executor]} space. Lower precedence spaces cannot depend on higher precedence spaces."
        ]
    )


@pytest.mark.requirement("rye.executor.aliases")
@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("python", "rye/core/runtimes/python/function"),
        ("python_runtime", "rye/core/runtimes/python/script"),
        ("python/function", "rye/core/runtimes/python/function"),
        ("python/script", "rye/core/runtimes/python/script"),
        ("node/node", "rye/core/runtimes/node/node"),
        ("mcp/http", "rye/core/runtimes/mcp/http"),
        ("http_client", "rye/core/primitives/http_client"),
        ("subprocess", "rye/core/primitives/execute"),
    ],
)
def test_a_short_name_of_an_executor_is_resolved_with_a_warning(short: str, whole: str) -> None:
    found = linked(("a/t.yaml", 0, yaml("a", tool_type="runtime", executor_id=short)))
    assert found.tools[0].chain[:2] == ("a/t", whole)
    assert [(problem.code, problem.severity, problem.message) for problem in found.problems] == [
        ("rye.executor.aliases", Severity.WARNING, f'executor_id: "{short}" is short for "{whole}"')
    ]


def test_a_project_tool_may_chain_to_a_runtime_of_the_user() -> None:
    found = linked(
        ("a/t.py", 0, python("a", "my/fast")), ("my/fast.yaml", 1, yaml("my", tool_type="runtime"))
    )
    assert found.tools[0].chain == ("a/t", "my/fast", "rye/core/primitives/execute")
    assert errors(found.problems) == []


def chain_of(length: int) -> list[tuple[str, int, str]]:
    """A tool and runtimes that make a chain of ``length`` elements, the primitive included."""
    ids = [f"r/r{number}" for number in range(length - 2)]
    executors = [*ids[1:], "rye/core/primitives/execute"]
    runtimes = [
        (f"{name}.yaml", 0, yaml("r", tool_type="runtime", executor_id=executor))
        for name, executor in zip(ids, executors, strict=True)
    ]
    return [("a/t.py", 0, python("a", ids[0])), *runtimes]


def test_a_tool_carries_what_its_whole_chain_was_compiled_from() -> None:
    """Attack: a signed tool copied into a project that slips a runtime of its own under it."""
    signature = "# rye:signed:2026-04-09T00:59:52Z:" + "4f" * 32 + ":cG3p:4b987fd4e40303ac\n"
    tool_text = signature + python("a", executor="my/fast")
    for signed, expected in ((signature, "4b987fd4e40303ac"), ("", None)):
        runtime = signed + yaml("my", tool_id="fast", tool_type="runtime")
        found = linked(("a/t.py", 0, tool_text), ("my/fast.yaml", 0, runtime))
        (tool,) = (tool for tool in found.tools if tool.name == "a/t")
        assert tool.signature is not None
        assert (tool.signature.key, tool.signature.item) == ("4b987fd4e40303ac", "tool:a/t")
        assert tool.signature.digest == hashlib.sha256(tool_text.encode()).hexdigest()
        (other,) = tool.signature.others
        assert (other.key, other.item) == (expected, "tool:my/fast")
        assert other.path.endswith("/.ai/tools/my/fast.yaml")
        assert other.digest == hashlib.sha256(runtime.encode()).hexdigest()


@pytest.mark.requirement("rye.executor.depth")
def test_a_chain_has_at_most_ten_elements() -> None:
    found = linked(*chain_of(10))
    assert errors(found.problems) == []
    assert len(found.tools[0].chain) == 10
    found = linked(*chain_of(11))
    assert errors(found.problems) == [
        "rye.executor.depth: Chain too deep (max 10): a/t. Name a runtime nearer to the end"
    ]
    assert "a/t" not in [tool.name for tool in found.tools]


def test_a_primitive_of_the_project_is_known_and_not_run() -> None:
    primitive = yaml("rye/core/primitives", tool_type="primitive", executor_id=None)
    found = linked(
        ("a/t.yaml", 0, yaml("a", executor_id="rye/core/primitives/foo")),
        ("rye/core/primitives/foo.yaml", 0, primitive),
    )
    assert found.tools[0].invocation == NotCallable(reason="Unknown primitive: rye/core/primitives/foo")
    assert [problem.code for problem in found.problems] == ["rye.executor.unavailable"]


def test_a_broken_file_keeps_its_id_so_that_nothing_else_takes_its_place() -> None:
    found = linked(("a/t.py", 0, "def execute(:"), ("a/t.yaml", 0, yaml("a")))
    assert found.tools == ()
    assert [problem.code for problem in found.problems] == ["rye.id.extension-order"]


def test_a_broken_file_keeps_its_id_against_the_spaces_behind_its_own() -> None:
    found = linked(("a/t.py", 0, "def execute(:"), ("a/t.yaml", 1, yaml("a")))
    assert found.tools == ()
    assert [problem.code for problem in found.problems] == ["rye.id.spaces"]


@pytest.mark.requirement("rye.executor.unknown")
def test_a_file_with_another_error_does_not_hide_its_unknown_executor() -> None:
    found = linked(("a/t.yaml", 0, yaml("a", version=1, executor_id="no/such")))
    assert found.tools == ()
    assert errors(found.problems) == ["rye.executor.unknown: Executor not found: no/such"]


@pytest.mark.requirement("rye.yaml.mcp-server-ref")
def test_a_file_with_another_error_does_not_hide_its_missing_server() -> None:
    config = {"server": "a/gone", "tool_name": "ask"}
    found = linked(
        ("a/t.yaml", 0, yaml("a", version=1, tool_type="mcp", executor_id="mcp/http", config=config))
    )
    assert errors(found.problems) == ['rye.yaml.mcp-server-ref: config.server: there is no server "a/gone"']


def test_a_chain_does_not_pass_by_a_runtime_that_is_broken() -> None:
    runtime = yaml("my", tool_type="runtime", config={"command": "sh"})
    found = linked(
        ("a/t.yaml", 0, yaml("a", executor_id="my/fast")),
        ("my/fast.yaml", 0, "version: ["),
        ("my/fast.json", 1, runtime),
    )
    assert found.tools == ()
    told = [problem for problem in found.problems if problem.code == "rye.executor.unknown"]
    assert [(problem.message, problem.hint) for problem in told] == [
        ("Executor not found: my/fast", "correct the errors of /srv/p/.ai/tools/my/fast.yaml first")
    ]


@pytest.mark.requirement("rye.id.spaces")
@pytest.mark.parametrize("asker", [0, 1])
@pytest.mark.parametrize("in_project", [False, True])
def test_a_chain_does_not_pass_by_a_broken_runtime_of_another_space(asker: int, in_project: bool) -> None:
    runtime = yaml("my", tool_type="runtime", config={"command": "sh"})
    more = [("my/fast.yaml", 0, runtime)] if in_project and asker == 1 else []
    found = linked(
        ("a/t.yaml", asker, yaml("a", executor_id="my/fast")),
        *more,
        ("my/fast.yaml", 1, yaml("my", tool_type="runtime", version=1, config={"command": "sh"})),
        ("my/fast.yaml", 2, runtime),
    )
    assert "a/t" not in [tool.name for tool in found.tools]
    assert errors(found.problems) == ["rye.executor.unknown: Executor not found: my/fast"]


@pytest.mark.requirement("rye.id.spaces")
def test_a_broken_file_with_the_id_of_a_documented_runtime_keeps_it() -> None:
    found = linked(
        ("a/t.py", 0, python("a")),
        ("rye/core/runtimes/python/function.yaml", 0, "version: ["),
    )
    assert found.tools == ()
    assert errors(found.problems) == [
        "rye.executor.unknown: Executor not found: rye/core/runtimes/python/function"
    ]


@pytest.mark.requirement("rye.yaml.mcp-server-ref")
def test_a_server_with_errors_is_not_used_and_no_other_takes_its_place() -> None:
    server = {
        "tool_type": "mcp_server",
        "executor_id": None,
        "config": {"transport": "stdio", "command": "x"},
    }
    found = linked(
        (
            "a/t.yaml",
            0,
            yaml("a", tool_type="mcp", executor_id="mcp/http", config={"server": "a/s", "tool_name": "ask"}),
        ),
        ("a/s.yaml", 1, yaml("a", tool_id="s", version=1, **server)),
        ("a/s.yaml", 2, yaml("a", tool_id="s", **server)),
    )
    assert "a/t" not in [tool.name for tool in found.tools]
    assert errors(found.problems) == ['rye.yaml.mcp-server-ref: config.server: "a/s" has errors']


def test_items_of_two_projects_do_not_serve_each_other() -> None:
    one = document("a/t.py", python("a", "my/fast"))
    two = Document(path="/srv/q/.ai/tools/my/fast.yaml", item="my/fast.yaml", place="rye", content=b"")
    two_compiled = rye.compile_document(document("my/fast.yaml", yaml("my", tool_type="runtime")), Rules())
    found = rye.link(
        [
            Unit(path=one.path, item=one.item, compiled=rye.compile_document(one, Rules())),
            Unit(path=two.path, item=two.item, compiled=two_compiled),
        ],
        Rules(),
    )
    assert errors(found.problems) == ["rye.executor.unknown: Executor not found: my/fast"]


def test_a_python_tool_may_be_as_long_as_the_longest_real_one() -> None:
    text = python("a") + "\n"
    text += "# x\n" * ((103_289 - len(text)) // 4)
    assert [tool.name for tool in compiled("a/t.py", text).tools] == ["a/t"]


# -- types --------------------------------------------------------------------------------------------------

CALLABLE = ["python", "script", "mcp", "yaml", "http"]
PARTS = ["mcp_server", "primitive", "runtime", "library"]


def of_type(tool_type: str, executor: str | None, **more: Any) -> Compiled:
    config = {"command": "ls", "url": "https://example.com", "server": "a/s", "tool_name": "ask"}
    return compiled("a/t.yaml", yaml("a", tool_type=tool_type, executor_id=executor, config=config, **more))


def codes(found: Compiled, prefix: str = "rye.type.") -> list[str]:
    return [problem.code for problem in found.problems if problem.code.startswith(prefix)]


@pytest.mark.requirement("rye.type.table")
@pytest.mark.parametrize("tool_type", CALLABLE + PARTS)
def test_every_type_of_the_table_is_known(tool_type: str) -> None:
    executors = {"mcp": "rye/core/runtimes/mcp/http", "python": "rye/core/runtimes/python/script"}
    found = of_type(tool_type, executors.get(tool_type, "rye/core/primitives/execute"))
    assert [tool.role for tool in found.tools] == [Role.PART if tool_type in PARTS else Role.TOOL]
    assert codes(found) == []


@pytest.mark.requirement("rye.executor.null-types")
@pytest.mark.parametrize("tool_type", CALLABLE)
def test_a_callable_type_needs_an_executor(tool_type: str) -> None:
    found = of_type(tool_type, None)
    assert found.tools == ()
    assert errors(found.problems) == [
        f'rye.executor.null-types: executor_id: must name a runtime for tool_type "{tool_type}" (got null)'
    ]


@pytest.mark.requirement("rye.executor.null-types")
@pytest.mark.parametrize("tool_type", PARTS)
def test_a_part_may_do_without_an_executor(tool_type: str) -> None:
    found = of_type(tool_type, None)
    assert [(tool.role, tool.chain) for tool in found.tools] == [(Role.PART, ("a/t",))]
    assert found.problems == ()


@pytest.mark.requirement("rye.type.observed")
@pytest.mark.parametrize(
    "tool_type",
    [
        "javascript", "config", "config-schema", "extractor", "parser", "processor", "executor", "graph",
        "email_provider",
    ],
)  # fmt: skip
def test_a_type_seen_in_real_files_passes_in_silence(tool_type: str) -> None:
    found = of_type(tool_type, "rye/core/runtimes/state-graph/runtime")
    assert [tool.role for tool in found.tools] == [Role.TOOL]
    assert found.problems == ()


@pytest.mark.requirement("rye.type.observed")
def test_another_type_loads_with_a_warning() -> None:
    found = of_type("foo", "rye/core/runtimes/state-graph/runtime")
    assert [tool.role for tool in found.tools] == [Role.TOOL]
    assert codes(found, "") == ["rye.type.observed"]


@pytest.mark.requirement("rye.type.executor-consistent")
@pytest.mark.parametrize(
    ("tool_type", "executor", "fits"),
    [
        ("python", "runtimes/python/function", True),
        ("python", "runtimes/python/script", True),
        ("python", "runtimes/node/node", False),
        ("python", "primitives/http_client", False),
        ("mcp", "runtimes/mcp/http", True),
        ("mcp", "runtimes/mcp/stdio", True),
        ("mcp", "runtimes/python/function", False),
        ("http", "primitives/http_client", True),
        ("http", "primitives/execute", True),
        ("http", "runtimes/python/script", False),
        ("http", "runtimes/mcp/http", False),
        ("javascript", "runtimes/node/node", True),
        ("javascript", "runtimes/python/function", False),
        ("yaml", "runtimes/python/script", True),
        ("script", "runtimes/bash/bash", True),
    ],
)
def test_type_and_executor_belong_together(tool_type: str, executor: str, fits: bool) -> None:
    found = of_type(tool_type, f"rye/core/{executor}")
    assert len(found.tools) == 1
    assert codes(found).count("rye.type.executor-consistent") == (not fits)


@pytest.mark.requirement("rye.type.language-consistent")
@pytest.mark.parametrize(
    ("suffix", "fitting"),
    [
        (".py", {"runtimes/python/function", "runtimes/python/script"}),
        (".js", {"runtimes/node/node"}),
        (".ts", {"runtimes/node/node"}),
        (".mjs", {"runtimes/node/node"}),
        (".cjs", {"runtimes/node/node"}),
        (".sh", {"runtimes/bash/bash", "primitives/execute"}),
    ],
)
def test_suffix_and_executor_belong_together(suffix: str, fitting: set[str]) -> None:
    for executor in (
        "runtimes/python/function", "runtimes/python/script", "runtimes/node/node", "runtimes/bash/bash",
        "primitives/execute", "primitives/http_client", "runtimes/mcp/http",
    ):  # fmt: skip
        found = compiled(f"a/t{suffix}", item_of(suffix, f"rye/core/{executor}"))
        assert len(found.tools) == 1
        assert codes(found).count("rye.type.language-consistent") == (executor not in fitting), executor


@pytest.mark.requirement("rye.lint.error-handling")
@pytest.mark.parametrize("need", ["net.http", "shell.execute", "process.spawn"])
def test_network_and_processes_want_a_timeout_or_a_retry_policy(need: str) -> None:
    def told(**more: Any) -> list[tuple[str, Severity]]:
        found = of_type("yaml", "rye/core/primitives/execute", requires=[need], **more)
        return [
            (problem.message, problem.severity)
            for problem in found.problems
            if problem.code == "rye.lint.error-handling"
        ]

    kind = need.partition(".")[0]
    assert told() == [(f"requires {kind} and has neither timeout nor retry_policy", Severity.INFO)]
    assert told(timeout=5) == []
    assert told(retry_policy={"max_attempts": 2}) == []


@pytest.mark.requirement("rye.lint.error-handling")
@pytest.mark.parametrize("requires", [["net.http"], ["fs.read", "net.http"], ["fs.read", "fs.write", "net"]])
def test_any_need_of_any_file_that_reaches_out_wants_a_limit(requires: list[str]) -> None:
    told = [("rye.lint.error-handling", "requires net and has neither timeout nor retry_policy")]

    def found(text: str, item: str) -> list[tuple[str, str]]:
        problems = compiled(item, text).problems
        return [(each.code, each.message) for each in problems if each.code == told[0][0]]

    assert found(python("a", __requires__=requires), "a/t.py") == told
    assert found(python("a", __requires__=requires, __timeout__=5), "a/t.py") == []
    assert found(yaml("a", requires=requires), "a/t.yaml") == told
    assert found(yaml("a", requires=requires, timeout=5), "a/t.yaml") == []


@pytest.mark.requirement("rye.lint.error-handling")
def test_other_needs_want_none() -> None:
    found = of_type("yaml", "rye/core/primitives/execute", requires=["fs.write", "network"])
    assert codes(found, "rye.lint.error") == []


# -- what runs ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.file.no-code-at-load")
def test_a_tool_that_removes_files_when_imported_removes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / ".ai" / "tools" / "a"
    folder.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("alive", encoding="utf-8")
    text = f"import os\nos.remove({str(victim)!r})\n" + python("a")
    (folder / "t.py").write_text(text, encoding="utf-8")
    crib = app.open(
        str(tmp_path), config=Config(), environment=Environment.read({"HOME": str(tmp_path / "home")})
    )
    assert [tool.name for tool in crib.tools] == ["a/t"]
    assert victim.read_text(encoding="utf-8") == "alive"


@pytest.mark.requirement(
    "rye.file.toml-config-only", "rye.python.class-not-callable", "rye.yaml.nothing-to-run"
)
def test_what_cannot_be_called_says_why_and_is_never_declared(tmp_path: Path) -> None:
    folder = tmp_path / ".ai" / "tools" / "a"
    folder.mkdir(parents=True)
    files = {
        "limits.toml": "x = 1\n",
        "sink.py": python("a").replace('"python"', '"runtime"').replace("def execute", "def run"),
        "library.yaml": yaml("a", tool_type="library", executor_id=None),
        "collect.yaml": yaml("a", tool_type="config", executor_id=None),
        "hello.py": python("a"),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    crib = app.open(
        str(tmp_path),
        config=Config(unsigned="warn"),
        environment=Environment.read({"HOME": str(tmp_path / "home")}),
    )
    reasons = {
        tool.name: tool.invocation.reason for tool in crib.tools if isinstance(tool.invocation, NotCallable)
    }
    assert reasons == {
        "a/limits": "configuration only",
        "a/sink": "no execute() in this file: other tools import it",
        "a/library": "not executable",
        "a/collect": "not executable",
    }
    assert [entry["function"]["name"] for entry in crib.declare("openai").payload] == ["a_hello"]


@pytest.mark.requirement("rye.yaml.actions")
def test_the_parameters_of_the_chosen_action_are_validated() -> None:
    actions = {
        "deploy": {
            "description": "Deploy",
            "parameters": [{"name": "service_name", "type": "string", "required": True}],
        },
        "rollback": {"parameters": [{"name": "deployment_id", "type": "string", "required": True}]},
    }
    (tool,) = compiled("a/t.yaml", yaml("a", actions=actions)).tools
    assert tool.input_schema is not None
    assert schema.flaws(tool.input_schema) == ()

    def complaints(arguments: dict[str, Any]) -> list[str]:
        assert tool.input_schema is not None
        return [str(found.pointer) for found in schema.complaints(tool.input_schema, arguments)]

    assert complaints({"action": "rollback"}) == ["('deployment_id',)"]
    (missing,) = schema.complaints(tool.input_schema, {"action": "rollback"})
    assert str(missing) == "deployment_id: is required"
    assert complaints({"action": "rollback", "deployment_id": "7"}) == []
    assert complaints({"action": "deploy", "service_name": "web"}) == []
    assert complaints({}) == ["('action',)"]
    assert complaints({"action": "burn"}) == ["('action',)"]


@pytest.mark.requirement("rye.yaml.documentation")
def test_documentation_is_kept_and_not_declared() -> None:
    text = yaml("a", documentation={"url": "https://docs.example.com", "examples": ["Deploy to production"]})
    (tool,) = compiled("a/t.yaml", text).tools
    assert tool.notes.documentation == {
        "url": "https://docs.example.com",
        "examples": ["Deploy to production"],
    }
    declared = DIALECTS["anthropic"].declare([tool], DeclareOptions())
    assert "Deploy to production" not in json.dumps(declared.payload)


@pytest.mark.requirement("rye.yaml.tags")
def test_tags_and_the_beginning_of_the_body_are_kept_for_search() -> None:
    signature = "# rye:signed:2026-04-09T00:59:52Z:" + "4f" * 32 + ":cG3p:4b987fd4e40303ac\n"
    (tool,) = compiled(
        "a/t.py", f"#!/usr/bin/env python3\n{signature}" + python("a", __tags__=["kubernetes"])
    ).tools
    assert tool.notes.tags == ("kubernetes",)
    assert tool.notes.category == "a"
    assert tool.notes.head.startswith('"""Says hello."""')
    assert len(tool.notes.head) == 200


@pytest.mark.requirement("rye.resolve.inject", "rye.yaml.timeout")
def test_the_authors_settings_travel_with_the_call() -> None:
    resolve = [{"path": "agent/agent.yaml", "mode": "deep_merge"}]
    (tool,) = compiled("a/t.py", python("a", CONFIG_RESOLVE=resolve, __timeout__=5)).tools
    assert tool.invocation == CallPython(
        style=PythonStyle.FUNCTION,
        file="/srv/p/.ai/tools/a/t.py",
        settings=jsontext.compact({"config_resolve": resolve}),
    )
    assert tool.needs.timeout_s == 5.0


@pytest.mark.requirement("rye.js.default-export")
@pytest.mark.parametrize(
    ("end", "style"),
    [
        ("export default (params) => params;\n", JavaScriptStyle.FUNCTION),
        ("process.stdin.on('data', (text) => console.log(String(text)));\n", JavaScriptStyle.SCRIPT),
    ],
)
def test_a_javascript_file_without_an_export_is_a_script(end: str, style: JavaScriptStyle) -> None:
    head = (
        "export const __version__ = '1.0.0';\nexport const __tool_type__ = 'javascript';\n"
        "export const __executor_id__ = 'node/node';\nexport const __category__ = 'a';\n"
        "export const __tool_description__ = 'Says it again.';\n"
    )
    (tool,) = compiled("a/t.js", head + end).tools
    assert tool.invocation == CallJavaScript(file="/srv/p/.ai/tools/a/t.js", style=style)


# -- fixes --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.lint.category-dir")
@pytest.mark.parametrize(
    ("name", "line", "mended"),
    [
        ("t.py", '__category__ = "file-system"  # where', '__category__ = "rye/file-system"  # where'),
        ("t.py", "__category__: str = 'file-system'", "__category__: str = 'rye/file-system'"),
        ("t.yaml", "category: file-system", "category: rye/file-system"),
        ("t.yaml", "'category': \"file-system\"", "'category': \"rye/file-system\""),
        (
            "t.ts",
            "export const __category__ = `file-system`;",
            "export const __category__ = `rye/file-system`;",
        ),
        ("t.sh", "# __category__ = file-system", "# __category__ = rye/file-system"),
        ("t.json", '{"category": "file-system"}', '{"category": "rye/file-system"}'),
    ],
)
def test_a_wrong_category_can_be_mended(tmp_path: Path, name: str, line: str, mended: str) -> None:
    path = tmp_path / name
    text = (
        line
        if name.endswith(".json")
        else f"# one\n{line}\n# three\n"
        if name != "t.ts"
        else f"// one\n{line}\n"
    )
    path.write_text(text, encoding="utf-8")
    given_document = Document(
        path=str(path),
        content=text.encode(),
        parsed=jsontext.read(text.encode()) if name.endswith(".json") else None,
        place="rye",
        item=f"rye/file-system/{name}",
    )
    (problem,) = [
        found
        for found in rye.compile_document(given_document, Rules()).problems
        if found.code == "rye.yaml.category-path"
    ]
    assert problem.hint == 'write "rye/file-system", or move the file; sign it again afterwards'
    assert mending.mend([problem], [str(tmp_path)]).problems == [problem]
    assert path.read_text(encoding="utf-8") == text.replace(line, mended)


def test_a_category_that_is_not_written_out_is_not_mended() -> None:
    found = compiled("rye/a/t.py", 'BASE = "x"\n__category__ = BASE + "/a"\n')
    problems: list[tuple[str, Fix | None]] = [(problem.code, problem.fix) for problem in found.problems]
    assert ("rye.yaml.category-path", None) in problems


# -- the document's own examples ----------------------------------------------------------------------------


def blocks() -> dict[str, list[str]]:
    text = (shared("specs") / "rye.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        found.setdefault(language, []).append(block)
    return found


@pytest.mark.requirement(
    "rye.python.runtime-description", "rye.js.export-const", "rye.schema.precedence", "rye.type.observed"
)
def test_every_example_of_the_document_loads() -> None:
    examples = blocks()
    found = linked(
        ("category/path/tool.py", 0, examples["python"][0]),
        ("category/path/tool_name.yaml", 0, examples["yaml"][1]),
        ("mcp/context7/query-docs.yaml", 0, examples["yaml"][2]),
        ("mcp/servers/context7.yaml", 0, examples["yaml"][3]),
        ("utility/hello_node.ts", 0, examples["typescript"][0]),
        ("sinks/file_sink.py", 0, examples["python"][-1].replace("# ...", "...")),
    )
    roles = {tool.name: tool.role for tool in found.tools}
    assert roles == {
        "category/path/tool": Role.TOOL,
        "category/path/tool_name": Role.TOOL,
        "mcp/context7/query-docs": Role.TOOL,
        "mcp/servers/context7": Role.PART,
        "utility/hello_node": Role.TOOL,
        "sinks/file_sink": Role.PART,
    }
    query = next(tool for tool in found.tools if tool.name == "mcp/context7/query-docs")
    assert query.input_schema is not None
    assert query.input_schema.document["required"] == ["libraryId", "query"]


def test_every_optional_field_of_the_document_is_accepted() -> None:
    for block in blocks()["yaml"][4:]:
        fields = {
            "tool_id": "t", "tool_type": "yaml", "version": '"1.0.0"', "executor_id": "subprocess",
            "category": "a", "description": "d", "config": '{command: "true"}',
        }  # fmt: skip
        own = re.findall(r"^(\w+):", block, re.MULTILINE)
        text = "".join(f"{key}: {value}\n" for key, value in fields.items() if key not in own) + block
        assert errors(compiled("a/t.yaml", text).problems) == [], text


# -- real files ---------------------------------------------------------------------------------------------


def real_projects() -> dict[str, list[dict[str, Any]]]:
    """The entries of the corpus by the project that holds them; only files below .ai/tools are tools."""
    folder = shared("corpus/rye")
    projects: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))["files"]:
        root, marker, item = entry["file"].partition("/.ai/tools/")
        if marker:
            projects.setdefault(str(folder / root), []).append({**entry, "item": item})
        else:
            assert entry["expected"]["tools_accepted"] == 0
    return projects


@pytest.mark.requirement(
    "rye.type.support-item", "rye.file.not-a-tool", "rye.file.later-format", "rye.yaml.unknown-keys"
)
def test_real_files_give_what_is_written_down() -> None:
    seen = 0
    for root, entries in real_projects().items():
        units = []
        for entry in entries:
            path = f"{root}/.ai/tools/{entry['item']}"
            content = Path(path).read_bytes()
            parsed = jsontext.read(content) if path.endswith(".json") else None
            found = Document(
                path=path, content=content, parsed=parsed, place="rye", item=entry["item"], project=root
            )
            units.append(Unit(path=path, item=entry["item"], compiled=rye.compile_document(found, Rules())))
        whole = rye.link(units, Rules())
        for entry, unit in zip(entries, units, strict=True):
            tools = [tool for tool in whole.tools if tool.origin.path == unit.path]
            problems = [
                *unit.compiled.problems,
                *(found for found in whole.problems if found.path == unit.path),
            ]
            agree(entry, tools, problems)
            seen += 1
    assert seen == 86


DIFFERENCES = {
    found["file"]: found
    for found in tomllib.loads(
        (Path(__file__).parent.parent / "corpus_differences.toml").read_text(encoding="utf-8")
    )["difference"]
}


def agree(entry: dict[str, Any], tools: list[Tool], problems: list[Problem]) -> None:
    expected, file = entry["expected"], entry["file"]
    wrong = [problem for problem in problems if problem.severity is Severity.ERROR]
    if any("npm file" in note for note in entry["notes"]) or f"rye/{file}" in DIFFERENCES:
        # decided since, or listed as a difference: rye.file.not-a-tool
        assert (tools, problems) == ([], []), file
        return
    if expected.get("reading") == "literal":  # decided since: rye.type.support-item
        assert [tool.role for tool in tools] == [Role.SUPPORT], file
        assert wrong == [], file
    else:
        assert len([tool for tool in tools if tool.role is not Role.SUPPORT]) == expected["tools_accepted"], (
            file
        )
        texts = {problem.message for problem in wrong} | {
            f"{problem.code}: {problem.message}" for problem in wrong
        }
        assert len(wrong) == len(expected.get("problems", [])), file
        assert set(expected.get("problems", [])) <= texts, file
    for code, words in expected.get("lint", {}).items():
        told = [problem.message for problem in problems if problem.code == code]
        assert len(told) == len(words), (file, code)
        assert all(any(word in message for message in told) for word in words), (file, code)


# -- odd bytes ----------------------------------------------------------------------------------------------

SUFFIXES = st.sampled_from(
    [".py", ".yaml", ".yml", ".json", ".js", ".ts", ".mjs", ".cjs", ".sh", ".toml", ".md"]
)


@given(SUFFIXES, st.binary(max_size=60) | st.text("a:{}[]\"'=#_\n \\", max_size=60).map(str.encode))
def test_no_bytes_make_it_raise(suffix: str, content: bytes) -> None:
    found = compiled(f"a/t{suffix}", content)
    assert found.tools == () or suffix == ".toml"


KEYS = st.sampled_from(rye._KEYS)
VALUES = json_values | st.sampled_from(
    [
        {"properties": {"a": {"type": "str", "default": 1}}, "required": ["b"]},
        [{"name": "a", "type": "integer", "default": "x", "enum": []}],
        {"command": "x", "args": [[]], "env": {"a": []}},
        {"image": "x", "env": ["A", 5]},
        {"a": {"parameters": [{"name": "x"}]}},
        "mcp", "http", "runtime", "mcp_server", "rye/core/runtimes/mcp/http", "rye/core/runtimes/bash/bash",
        "python",
    ]
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES, max_size=8), st.sampled_from([".json", ".yaml", ".py"]))
@example({"executor_id": "mcp", "tool_type": {}, "config": [{"name": "a"}]}, ".json")
@example({"executor_id": "mcp", "tool_type": {}, "config": "x"}, ".yaml")
def test_no_value_of_any_key_makes_it_raise(members: dict[str, Any], suffix: str) -> None:
    base: dict[str, Any] = json.loads(yaml("a", tool_id="t-1"))
    values = {**base, **members}
    if suffix == ".py":
        text = "\n".join(f"{rye._IN_CODE.get(key, key)} = {value!r}" for key, value in values.items())
    else:
        text = json.dumps(values)
    name, found = formats.compile_document(document(f"a/t-1{suffix}", text), Rules())
    assert name == "rye"
    linked_again = rye.link(
        [Unit(path=f"{ROOTS[0]}a/t-1{suffix}", item=f"a/t-1{suffix}", compiled=found)], Rules()
    )
    assert len(linked_again.tools) <= len(found.tools) <= 1
    assert bool(errors(found.problems)) == (found.tools == ())


@given(
    st.sampled_from(["..", ".", "a", "b.yaml", "", "\\..", "/", "C:", "~"])
    .flatmap(
        lambda _: st.lists(st.sampled_from(["..", ".", "a", "b.yaml", "", "\\..", "\\", "C:"]), max_size=6)
    )
    .map("/".join)
)
@pytest.mark.requirement("rye.resolve.contained")
def test_no_configuration_path_leaves_its_folder(path: str) -> None:
    found = compiled("a/t.yaml", yaml("a", config_resolve={"path": path}))
    if found.tools:
        assert not path.startswith("/")
        assert os.path.normpath(f"/srv/config/{path}").startswith("/srv/config")


# -- the page -----------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_load_without_a_problem() -> None:
    text = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"`\.ai/tools/([\w./-]+)`:?\n\n```\w+\n(.*?)```", text, re.DOTALL)
    assert {item.rpartition(".")[2] for item, _ in examples} == {"py", "yaml", "ts", "sh", "toml", "json"}
    units = []
    for item, text in examples:
        found = document(item, text)
        units.append(Unit(path=found.path, item=item, compiled=rye.compile_document(found, Rules())))
    whole = rye.link(units, Rules())
    assert [problem for unit in units for problem in unit.compiled.problems] == []
    assert whole.problems == ()
    assert len(whole.tools) == len(examples)


def test_the_page_lists_every_code() -> None:
    folder = Path(rye.__file__).parent
    source = "".join(
        (folder / name).read_text(encoding="utf-8")
        for name in ("rye.py", "_rye_chain.py", "_rye_parameters.py")
    )
    used = set(re.findall(r'"(rye\.[a-z]+\.[a-z-]+)"', source))
    assert used == set(re.findall(r"\| `(rye\.[a-z.-]+)`", PAGE.read_text(encoding="utf-8")))


HUGE = "9" * 400


@pytest.mark.parametrize(
    "members",
    [
        {"timeout": int(HUGE)},
        {"config": {"command": "x", "timeout": int(HUGE)}},
        {"retry_policy": {"max_attempts": 2, "max_delay": int(HUGE)}},
    ],
)
def test_numbers_that_no_float_can_hold_are_capped(members: dict[str, Any]) -> None:
    found = compiled("a/t-1.yaml", yaml("a", tool_id="t-1", **members))
    assert [problem.code for problem in found.problems if problem.severity is Severity.ERROR] == []
    assert found.tools


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a/t.js", "export function" + " " * 400_000 + "1"),
        ("a/t.py", '__version__ = "1.0.0"\nx = [' + '"/tmp/";' * 60_000),
        ("a/t.py", "__version__ = '1.0.0'\n__category__ = " + "'x' if y else" * 20_000),
    ],
)
def test_long_lines_take_no_long_time(name: str, text: str) -> None:
    started = time.process_time()
    compiled(name, text)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("folder", ['z"; open("x","w"); y="', "a'b", "c: d", "a`b", "x y", "é"])
@pytest.mark.parametrize("name", ["t.py", "t.yaml", "t.ts", "t.json"])
def test_a_folder_whose_name_is_code_is_never_written_into_a_file(folder: str, name: str) -> None:
    """A mend writes the folder's name into the source: it must not be able to end the string it stands in."""
    text = {
        "t.py": '__version__ = "1.0.0"\n__category__ = "a"\n',
        "t.ts": 'export const __version__ = "1.0.0";\nexport const __category__ = "a";\n',
    }.get(name, yaml("a"))
    found = compiled(f"{folder}/{name}", text)
    wrong = [problem for problem in found.problems if problem.code == "rye.yaml.category-path"]
    assert wrong
    assert [problem.fix for problem in wrong] == [None]


def test_a_chained_assignment_is_not_mended() -> None:
    found = compiled("b/t.py", '__version__ = "1.0.0"\n__category__ = other = "a"\n')
    assert [problem.fix for problem in found.problems if problem.code == "rye.yaml.category-path"] in (
        [],
        [None],
    )
