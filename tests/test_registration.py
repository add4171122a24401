"""What a host registers for capability groups, end to end: handlers, context checks, tools still in code."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import toolcrib
from tests.levels import sandbox_of
from tests.program import PATH, WAIT_S
from tests.program import toolcrib as program
from toolcrib.config import Config, Environment
from toolcrib.errors import Kind, UsageError
from toolcrib.model import Level, Severity

SCHEMA = {"type": "object", "properties": {"date": {"type": "string"}}}


def write_group(folder: Path, *names: str, group: str = "journal", **more: Any) -> Path:
    tools = [
        {
            "name": name,
            "description": f"Does {name}.",
            "category": "retrieval",
            "input_schema": SCHEMA,
            "metadata": {"executor": group},
        }
        for name in names
    ]
    document = {
        "group": group,
        "version": "1.0.0",
        "description": "D.",
        "selection": {"strategy": "always"},
        "tools": tools,
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{group}_tools.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@contextmanager
def opened(folder: Path, **more: Any) -> Iterator[toolcrib.Crib]:
    environment = Environment.read({"HOME": str(folder / "home"), "PATH": PATH})
    config = Config(state=str(folder / "state"))
    with (
        sandbox_of(Level.PORTABLE) as sandbox,
        toolcrib.open(
            folder / "groups", config=config, environment=environment, sandbox=sandbox, **more
        ) as shop,
    ):
        yield shop


def execute_journal_tool(tool_name: str, tool_input: Mapping[str, Any], user_id: str) -> dict[str, Any]:
    return {"success": True, "result": [tool_name, dict(tool_input), user_id]}


class Journal:
    """An object whose method takes the calls."""

    def execute_journal_tool(
        self, tool_name: str, tool_input: Mapping[str, Any], user_id: str
    ) -> dict[str, Any]:
        return execute_journal_tool(tool_name, tool_input, user_id)


class Caller:
    """An object that is called itself."""

    def __call__(self, tool_name: str, tool_input: Mapping[str, Any], user_id: str) -> dict[str, Any]:
        return execute_journal_tool(tool_name, tool_input, user_id)


def as_module() -> types.ModuleType:
    module = types.ModuleType("journal_handlers")
    vars(module)["execute_journal_tool"] = execute_journal_tool
    return module


# -- handlers and checks ------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.meta.handler-signature")
@pytest.mark.parametrize(
    "handlers",
    [
        {"journal": as_module()},
        {"journal": execute_journal_tool},
        {"journal": Journal()},
        {"journal": Journal().execute_journal_tool},
        {"journal": Caller()},
        {"journal": SimpleNamespace(execute_journal_tool=execute_journal_tool)},
        {"recall_journal": execute_journal_tool, "journal": print},
    ],
)
def test_a_handler_may_be_a_module_a_callable_or_an_object(
    tmp_path: Path, handlers: Mapping[str, object]
) -> None:
    write_group(tmp_path / "groups", "recall_journal")
    with opened(tmp_path, handlers=handlers) as crib:
        assert crib.problems == ()
        result = crib.call("recall_journal", {"date": "today"}, context={"user_id": "ann", "other": 1})
    assert result.data == ["recall_journal", {"date": "today"}, "ann"]
    assert result.isolation[0] == "in-process"


def test_async_handlers_run_on_the_loop_that_awaits_the_call_and_inside_of_a_running_one(
    tmp_path: Path,
) -> None:
    async def handler(tool_name: str, tool_input: Mapping[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"success": True, "result": id(asyncio.get_running_loop())}

    async def main(crib: toolcrib.Crib) -> None:
        async with asyncio.timeout(WAIT_S):
            own = id(asyncio.get_running_loop())
            awaited, plain = await crib.call_async("recall_journal"), crib.call("recall_journal")
            assert awaited.data == own
            assert plain.ok
            assert plain.data != own

    write_group(tmp_path / "groups", "recall_journal")
    with opened(tmp_path, handlers={"journal": handler}) as crib:
        asyncio.run(main(crib))
        assert crib.call("recall_journal").ok


def test_an_async_handler_is_stopped_at_its_limit(tmp_path: Path) -> None:
    async def handler(tool_name: str, tool_input: Mapping[str, Any]) -> None:
        await asyncio.sleep(WAIT_S)

    write_group(tmp_path / "groups", "recall_journal")
    with opened(tmp_path, handlers={"journal": handler}) as crib:
        result = crib.call("recall_journal", timeout_s=0.1)
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_ends_after_its_limit_is_reported(tmp_path: Path, is_async: bool) -> None:
    def handler(tool_name: str, tool_input: Mapping[str, Any]) -> dict[str, Any]:
        threading.Event().wait(0.3)  # nothing can stop it
        return {"success": True, "result": 1}

    async def stubborn(tool_name: str, tool_input: Mapping[str, Any]) -> dict[str, Any]:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            """It goes on."""
        return {"success": True, "result": 1}

    write_group(tmp_path / "groups", "recall_journal")
    with opened(tmp_path, handlers={"journal": stubborn if is_async else handler}) as crib:
        began = time.monotonic()
        result = crib.call("recall_journal", timeout_s=0.1)
        took_s = time.monotonic() - began
        error = result.error
        assert error is not None
        assert error.kind is Kind.TIMED_OUT
        assert result.data is None
        (told_s,) = re.findall(r"it ran to its end, which took ([0-9]+\.[0-9]) s", str(error.hint))
        assert (0.1 if is_async else 0.3) <= float(told_s) <= took_s + 0.05
        if not is_async:
            assert crib.call("recall_journal", timeout_s=5.0).data == 1


def test_a_check_of_the_hosts_decides_which_groups_are_seen(tmp_path: Path) -> None:
    selection = {"strategy": "context", "context_check": "is_open"}
    write_group(tmp_path / "groups", "recall_journal", selection=selection)
    with opened(
        tmp_path,
        handlers={"journal": execute_journal_tool},
        context_checks={"is_open": lambda context: context.get("hour", 0) < 18},
    ) as crib:
        assert crib.problems == ()
        assert [choice.name for choice in crib.select("x", context={"hour": 9}).chosen] == ["recall_journal"]
        assert crib.select("x", context={"hour": 19}).chosen == ()
        declared = crib.declare("anthropic", message="x", context={"hour": 9}).payload
        assert [tool["name"] for tool in declared] == ["recall_journal"]


# -- tools that are still in code ---------------------------------------------------------------------------


def recall_journal(date: str = "") -> str:
    """Does recall_journal."""
    return f"from code: {date}"


def old_tool(number: int) -> int:
    """An old one."""
    return number + 1


MAPPING = {"name": "old_mapping", "description": "Kept in code.", "input_schema": SCHEMA}


@pytest.mark.requirement("capability.migrate.fallback")
def test_a_file_goes_first_and_code_serves_the_rest(tmp_path: Path) -> None:
    write_group(tmp_path / "groups", "recall_journal")

    def handler(tool_name: str, tool_input: Mapping[str, Any]) -> dict[str, Any]:
        return {"success": True, "result": f"handled: {tool_name}"}

    with opened(
        tmp_path,
        handlers={"journal": handler, "old_mapping": handler},
        fallback=[recall_journal, old_tool, MAPPING],
    ) as crib:
        assert [tool.key for tool in crib.tools] == [
            "capability:journal/recall_journal",
            f"python:{__name__}/old_tool",
            "capability:code/old_mapping",
        ]
        assert crib.call("recall_journal").data == "handled: recall_journal"
        assert crib.call("old_tool", {"number": 1}).data == 2
        assert crib.call("old_mapping", {"date": "x"}).data == "handled: old_mapping"
        found = [(problem.code, problem.message, problem.severity) for problem in crib.problems]
    assert ("capability.migrate.fallback", "shadowed", Severity.WARNING) in found


@pytest.mark.requirement("capability.migrate.report")
def test_the_report_says_what_code_still_serves_and_where_the_two_differ(tmp_path: Path) -> None:
    write_group(tmp_path / "groups", *(f"t{number}" for number in range(29)))
    kept = [
        {"name": f"t{number}", "description": f"Does t{number}.", "input_schema": SCHEMA}
        for number in range(40)
    ]
    kept[3]["description"] = "Something else."
    with opened(tmp_path, fallback=kept, handlers={"journal": execute_journal_tool}) as crib:
        report = crib.migration()
        assert report.shadowed == tuple(f"t{number}" for number in range(29))
        assert report.differing == ("t3",)
        assert report.not_migrated == tuple(f"t{number}" for number in range(29, 40))
        assert [problem for problem in crib.problems if problem.severity is Severity.ERROR] == []
        assert len(crib.tools) == 40
        with pytest.raises(AttributeError):
            report.shadowed = ()  # type: ignore[misc]


def test_the_report_follows_the_files(tmp_path: Path) -> None:
    write_group(tmp_path / "groups", "recall_journal")
    with opened(tmp_path, fallback=[recall_journal, old_tool]) as crib:
        assert crib.migration().not_migrated == ("old_tool",)
        write_group(tmp_path / "groups", "recall_journal", "old_tool")
        crib.reload()
        assert crib.migration().not_migrated == ()
        assert [tool.origin.format for tool in crib.tools] == ["capability", "capability"]


def test_a_whole_group_may_be_kept_in_code(tmp_path: Path) -> None:
    write_group(tmp_path / "groups", "recall_journal")
    path = write_group(
        tmp_path / "code", "ring", group="bell", selection={"strategy": "keyword", "keywords": ["bell"]}
    )
    kept = json.loads(path.read_text(encoding="utf-8"))
    with opened(tmp_path, fallback=[kept]) as crib:
        assert crib.find("ring").key == "capability:bell/ring"
        assert [choice.name for choice in crib.select("the bell", limit=9).chosen] == [
            "recall_journal",
            "ring",
        ]
        assert [choice.name for choice in crib.select("else").chosen] == ["recall_journal"]


def test_without_tools_in_code_there_is_nothing_to_report(tmp_path: Path) -> None:
    write_group(tmp_path / "groups", "recall_journal")
    with opened(tmp_path) as crib:
        assert crib.migration().tools == ()


@pytest.mark.parametrize(
    "fallback",
    [[{"name": "x", "description": object()}], ["text"], [lambda: None]],
    ids=["value", "text", "lambda"],
)
def test_what_cannot_be_a_declaration_is_refused(tmp_path: Path, fallback: Sequence[object]) -> None:
    write_group(tmp_path / "groups", "recall_journal")
    with pytest.raises(UsageError), opened(tmp_path, fallback=fallback):
        pass


# -- on the command line ------------------------------------------------------------------------------------

CODE = """
import toolcrib

@toolcrib.tool
def recall_journal(date: str = "") -> str:
    "Recall."
    return date

OLD = {"name": "old", "description": "Old.", "input_schema": {"type": "object", "properties": {}}}
TOOLS = [recall_journal, OLD]
"""


def checked(folder: Path, *arguments: str) -> Any:
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop" / "kept.py").write_text(CODE, encoding="utf-8")
    write_group(folder / "groups", "recall_journal")
    return program("check", "groups", *arguments, cwd=folder, home=folder / "home")


@pytest.mark.requirement("capability.migrate.report")
def test_check_compares_with_tools_in_code(tmp_path: Path) -> None:
    said = checked(tmp_path, "--code", "shop.kept:TOOLS", "--json")
    assert said.status == 0
    document = json.loads(said.out)
    assert document["migration"] == {
        "shadowed": ["recall_journal"], "differing": ["recall_journal"], "not_migrated": ["old"],
    }  # fmt: skip
    assert {"shadowed", "not migrated: no file declares this tool"} <= {
        problem["message"] for problem in document["problems"]
    }
    assert "of 2 tools in code 1 are in no file yet, and 1 differ from theirs" in checked(
        tmp_path, "--code", "shop.kept:TOOLS"
    ).out  # fmt: skip
    assert "migration" not in json.loads(checked(tmp_path, "--json").out)


def test_code_that_cannot_be_imported_is_wrong_usage(tmp_path: Path) -> None:
    for name in ("nowhere", "shop.kept:NOTHING"):
        said = checked(tmp_path, "--code", name)
        assert said.status == 2
        assert f"--code {name}" in said.err


def test_code_that_leaves_while_it_is_imported_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    said = checked(tmp_path, "--code", "leaves", "--json")
    assert (said.status, said.out) == (2, "")
    assert "--code leaves: SystemExit: 0" in said.err


def test_what_code_prints_while_it_is_imported_stays_out_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('hello')\nTOOLS = []\n", encoding="utf-8")
    said = checked(tmp_path, "--code", "loud:TOOLS", "--json")
    assert said.status == 0
    assert json.loads(said.out)["tools"] == 1
    assert "hello" in said.err


def test_a_clones_modules_shadow_nothing(tmp_path: Path) -> None:
    """Attack: a clone's json.py, imported because the folder came first."""
    trap = tmp_path / "json.py"
    trap.write_text("raise SystemExit('pwned')\n", encoding="utf-8")
    (tmp_path / "sarif.py").write_text("", encoding="utf-8")
    said = checked(tmp_path, "--code", "shop.kept:TOOLS", "--sarif", "out.sarif")
    assert said.status == 0
    assert "pwned" not in said.err
