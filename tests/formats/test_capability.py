"""The capability format, where a case of tests/conformance cannot show it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import shared
from toolcrib import app, jsontext
from toolcrib.config import Config
from toolcrib.formats import capability
from toolcrib.model import (
    Always,
    CallPython,
    Compiled,
    ConditionKind,
    Document,
    NotCallable,
    OnKeywords,
    Origin,
    Rules,
    Schema,
    Severity,
    Tool,
    Unit,
)
from toolcrib.selection import rules

RULES = Rules()


def document(content: bytes | object, path: str = "schemas/g_tools.json", **more: Any) -> Document:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Document(path=path, content=text, parsed=jsontext.read(text), place="capability", **more)


def compiled(content: bytes | object, path: str = "schemas/g_tools.json", **more: Any) -> Compiled:
    return capability.compile_document(document(content, path, **more), RULES)


def group(name: str, *tools: str, executor: str = "demo") -> dict[str, Any]:
    return {
        "group": name,
        "selection": {"strategy": "always"},
        "tools": [
            {"name": tool, "description": f"Does {tool}.", "metadata": {"executor": executor}}
            for tool in tools
        ],
    }


def units(*groups: dict[str, Any]) -> list[Unit]:
    paths = [f"schemas/{found['group']}_tools.json" for found in groups]
    return [
        Unit(path=path, compiled=compiled(found, path)) for path, found in zip(paths, groups, strict=True)
    ]


def opened(folder: Path, *groups: dict[str, Any]) -> app.Crib:
    """A folder with a file for each group and nothing else."""
    folder.mkdir(exist_ok=True)
    for found in groups:
        (folder / f"{found['group']}_tools.json").write_text(json.dumps(found), encoding="utf-8")
    return app.open(str(folder), config=Config(state=str(folder.parent / "state")))


def names(tools: Sequence[Tool]) -> list[str]:
    return [tool.name for tool in tools]


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.file.missing-dir")
def test_no_files_are_no_groups_and_no_problem() -> None:
    linked = capability.link((), RULES)
    assert linked.tools == ()
    assert linked.problems == ()


@pytest.mark.requirement("capability.file.reload")
def test_tools_of_a_removed_file_are_gone_after_a_reload() -> None:
    journal, task = units(group("journal", "recall_journal"), group("task", "add_task"))
    assert names(capability.link([journal, task], RULES).tools) == ["recall_journal", "add_task"]
    assert names(capability.link([journal], RULES).tools) == ["recall_journal"]


@pytest.mark.requirement("capability.file.reload")
def test_a_deleted_file_takes_its_tools_with_it_when_the_folder_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    with opened(folder, group("journal", "recall_journal"), group("task", "add_task")) as crib:
        assert names(crib.tools) == ["recall_journal", "add_task"]
    (folder / "task_tools.json").unlink()
    assert names(opened(folder).tools) == ["recall_journal"], "whatever the cache remembers"
    crib.reload()
    assert names(crib.tools) == ["recall_journal"]


@pytest.mark.requirement("capability.file.other-error")
def test_a_file_that_cannot_be_read_is_reported_with_its_name() -> None:
    found = capability.compile_document(
        Document(path="schemas/x.json", content=None, unreadable="permission denied", place="capability"),
        RULES,
    )
    assert [problem.message for problem in found.problems] == [
        "[Registry] Error loading x.json: permission denied"
    ]


@pytest.mark.requirement("capability.file.detect")
@pytest.mark.parametrize(
    ("content", "marked"),
    [
        ({"group": "g", "tools": []}, True),
        ({"group": ""}, True),
        (b'{"group": "a", "group": "b"}', True),
        ({"group": 5, "tools": []}, False),
        ({"tools": [{"group": "g"}]}, False),
        (["group"], False),
        (b"{", False),
    ],
)
def test_a_string_group_at_the_root_marks_the_format(content: bytes | object, marked: bool) -> None:
    assert capability.recognises(document(content)) is marked


# -- groups and names ----------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.tool.name-collision")
def test_a_name_of_two_groups_is_declared_once_and_means_the_later_one() -> None:
    linked = capability.link(units(group("file", "read_file"), group("docs", "read_file")), RULES)
    assert [tool.key for tool in linked.tools] == ["capability:file/read_file", "capability:docs/read_file"]
    declared = rules.enabled_tools(linked.tools, "", {})
    assert [(tool["name"]) for tool in declared] == ["file_read_file", "read_file"]
    (problem,) = linked.problems
    assert problem.severity is Severity.ERROR
    assert '"file"' in problem.message
    assert '"docs"' in problem.message


def test_three_groups_of_one_name_are_three_declarations() -> None:
    linked = capability.link(units(group("a", "x"), group("b", "x"), group("c", "x")), RULES)
    assert [tool["name"] for tool in rules.enabled_tools(linked.tools, "", {})] == ["a_x", "b_x", "x"]
    assert len(linked.problems) == 2


def test_a_tool_that_is_left_out_does_not_take_its_name_from_a_good_one() -> None:
    found = compiled(
        {
            "group": "g",
            "selection": {"strategy": "always"},
            "tools": [
                {"name": "a", "metadata": {"executor": "demo"}},
                {"name": "a", "description": "Works.", "metadata": {"executor": "demo"}},
            ],
        }
    )
    assert [tool.description for tool in found.tools] == ["Works."]
    assert [problem.code for problem in found.problems] == ["capability.tool.description"]


# -- handlers ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.meta.executor-alias", "capability.meta.executor-module")
def test_the_handler_is_looked_for_under_its_alias_first() -> None:
    found = compiled(group("journal", "recall", "list", executor="journal"), handlers=("near", "far"))
    files = ("near/journals.py", "near/journal.py", "far/journals.py", "far/journal.py")
    (condition,) = found.conditions
    assert condition.kind is ConditionKind.ANY_FILE
    assert condition.subjects == files
    assert not condition.drops
    for tool in found.tools:
        assert isinstance(tool.invocation, CallPython)
        assert jsontext.loads_own(tool.invocation.settings) == {"files": list(files)}
    assert capability.handler_files("calendar", ["handlers"]) == ("handlers/calendar.py",)


@pytest.mark.requirement("capability.meta.executor-alias")
def test_a_registered_executor_needs_no_file() -> None:
    registered = Rules(executors=("calendar",))
    found = capability.compile_document(document(group("g", "agenda", executor="calendar")), registered)
    assert found.conditions == ()
    assert names(found.tools) == ["agenda"]


@pytest.mark.requirement("capability.meta.executor-lazy")
def test_loading_and_selecting_import_no_handler(tmp_path: Path) -> None:
    handlers = tmp_path / "handlers"
    handlers.mkdir()
    trace = tmp_path / "imported"
    (handlers / "eager_demo.py").write_text(f"open({str(trace)!r}, 'w').close()\n", encoding="utf-8")
    sizes = (3, 2, 5, 6, 2, 4, 4, 3)
    groups = [
        group(f"g{number}", *(f"t{number}_{count}" for count in range(size)), executor="eager_demo")
        for number, size in enumerate(sizes)
    ]
    found = [
        Unit(
            path=f"schemas/{each['group']}_tools.json",
            compiled=compiled(each, f"schemas/{each['group']}_tools.json", handlers=(str(handlers),)),
        )
        for each in groups
    ]
    tools = capability.link(found, RULES).tools
    assert len(tools) == 29
    assert len(rules.select(tools, "hello", context={}, checks={}).chosen) == 29
    assert not trace.exists()
    assert "eager_demo" not in sys.modules


@pytest.mark.requirement("capability.meta.executor-lazy")
def test_without_a_handlers_folder_everything_loads_and_nothing_is_imported(tmp_path: Path) -> None:
    sizes = (3, 2, 5, 6, 2, 4, 4, 3)
    groups = [
        group(f"g{number}", *(f"t{number}_{count}" for count in range(size)), executor="antigravity")
        for number, size in enumerate(sizes)
    ]
    crib = opened(tmp_path / "schemas", *groups)
    assert len(crib.tools) == 29
    assert {problem.code for problem in crib.problems} == {"capability.meta.executor-alias"}
    assert len(crib.select("hello").chosen) == 29
    assert "antigravity" not in sys.modules, "a module of the standard library, which any import would find"


@pytest.mark.requirement("capability.meta.cost", "capability.meta.latency")
@pytest.mark.parametrize(
    ("key", "known", "others"),
    [
        ("cost_estimate", ["low", "medium", "high"], ["free", "Low", "fast", "slow", ""]),
        ("latency_estimate", ["fast", "medium", "slow"], ["instant", "Fast", "low", "high", ""]),
    ],
)
def test_an_estimate_is_one_of_three_words(key: str, known: list[str], others: list[str]) -> None:
    def told(value: str) -> list[str]:
        one = group("g", "a") | {"description": "A group"}
        one["tools"][0]["metadata"][key] = value
        found = compiled(one)
        assert names(found.tools) == ["a"]
        notes = found.tools[0].notes
        assert (notes.cost if key == "cost_estimate" else notes.latency) == value
        return [problem.code for problem in found.problems if "estimate" in problem.message]

    assert [told(value) for value in known] == [[]] * 3
    code = {"cost_estimate": "capability.meta.cost", "latency_estimate": "capability.meta.latency"}[key]
    assert [told(value) for value in others] == [[code]] * len(others)


@pytest.mark.requirement("capability.meta.cost", "capability.meta.latency")
@pytest.mark.parametrize("key", ["cost_estimate", "latency_estimate"])
@pytest.mark.parametrize("value", [5, 0, False, [], ["low"], {}, {"usd": 1}])
def test_an_estimate_that_is_no_word_is_a_warning_and_drops_nothing(key: str, value: object) -> None:
    one = group("g", "a") | {"description": "A group"}
    one["tools"][0]["metadata"][key] = value
    found = compiled(one)
    assert names(found.tools) == ["a"]
    notes = found.tools[0].notes
    assert (notes.cost, notes.latency) == (None, None)
    told = [(problem.code, problem.severity) for problem in found.problems if "estimate" in problem.message]
    code = {"cost_estimate": "capability.meta.cost", "latency_estimate": "capability.meta.latency"}[key]
    assert told == [(code, Severity.WARNING)]


@pytest.mark.requirement("capability.tool.input-default")
def test_a_handler_sees_the_defaults_of_what_was_left_out(tmp_path: Path) -> None:
    one = group("g", "a")
    one["tools"][0]["input_schema"] = {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": ["integer", "null"], "default": 10},
            "all": {"type": "boolean", "default": False},
            "filter": {"type": "object", "properties": {"kind": {"type": "string", "default": "any"}}},
        },
    }
    (tmp_path / "g_tools.json").write_text(json.dumps(one), encoding="utf-8")
    seen: list[object] = []

    def handler(_: str, given: dict[str, Any]) -> dict[str, Any]:
        seen.append(given)
        return {"success": True, "result": None}

    settings = Config(state=str(tmp_path / "state"))
    with app.open(str(tmp_path), config=settings, handlers={"demo": handler}) as crib:
        calls: list[dict[str, Any]] = [
            {},
            {"limit": 3, "all": True},
            {"limit": None, "query": "", "filter": {}},
        ]
        for call in calls:
            assert crib.call("a", call).ok
    assert seen == [
        {"limit": 10, "all": False},
        {"limit": 3, "all": True},
        {"limit": None, "all": False, "query": "", "filter": {"kind": "any"}},
    ]


@pytest.mark.requirement("capability.select.order")
def test_tools_come_by_group_file_and_then_as_the_file_has_them(tmp_path: Path) -> None:
    crib = opened(
        tmp_path / "schemas",
        group("journal", "recall_journal"),
        group("calendar", "create_event", "get_agenda", "cancel_event"),
    )
    assert [choice.name for choice in crib.select("hello").chosen] == [
        "create_event",
        "get_agenda",
        "cancel_event",
        "recall_journal",
    ]


# -- tools still in code -------------------------------------------------------------------------------------


def in_code(name: str, description: str = "", schema: dict[str, Any] | None = None) -> Tool:
    return Tool(
        key=f"python:code/{name}",
        name=name,
        scope="code",
        description=description or f"Does {name}.",
        input_schema=Schema.of(schema or {"type": "object", "properties": {}}),
        invocation=NotCallable(reason="in a test"),
        origin=Origin(format="python", path="agent.py", line=7),
    )


@pytest.mark.requirement("capability.migrate.fallback")
def test_a_tool_of_a_file_goes_before_one_of_code() -> None:
    (ours,) = compiled(group("journal", "recall_journal"), "schemas/journal_tools.json").tools
    migration = capability.migration([ours], [in_code("recall_journal"), in_code("old_tool")])
    assert [tool.key for tool in migration.tools] == [
        "capability:journal/recall_journal",
        "python:code/old_tool",
    ]
    assert migration.shadowed == ("recall_journal",)
    (shadowed, _) = migration.problems
    assert (shadowed.code, shadowed.message, shadowed.severity, shadowed.name) == (
        "capability.migrate.fallback",
        "shadowed",
        Severity.WARNING,
        "recall_journal",
    )
    assert (shadowed.path, shadowed.line) == ("agent.py", 7)


@pytest.mark.requirement("capability.migrate.report")
def test_the_report_lists_what_is_not_migrated_and_what_differs() -> None:
    ours = compiled(group("g", *(f"t{number}" for number in range(29)))).tools
    code = [
        in_code("t0"),
        in_code("t1", description="Does something else."),
        in_code("t2", schema={"type": "object", "properties": {"x": {"type": "string"}}}),
        *(in_code(f"t{number}") for number in range(3, 40)),
    ]
    migration = capability.migration(ours, code)
    assert migration.not_migrated == tuple(f"t{number}" for number in range(29, 40))
    assert len(migration.not_migrated) == 11
    assert migration.differing == ("t1", "t2")
    messages = [
        problem.message for problem in migration.problems if problem.code == "capability.migrate.report"
    ]
    assert messages[:2] == [
        "differs from g_tools.json: description",
        "differs from g_tools.json: input_schema",
    ]
    assert len(messages) == 2 + 11


# -- real files ----------------------------------------------------------------------------------------------


def test_real_files_load_as_expected() -> None:
    folder = shared("corpus/capability")
    index = json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))
    seen = 0
    for entry in index["files"]:
        expected = entry["expected"]
        path = folder / entry["file"]
        doc = document(path.read_bytes(), str(path), handlers=("nowhere",))
        if expected.get("not_a_group_file"):
            assert not capability.recognises(doc)
            continue
        seen += 1
        assert capability.recognises(doc)
        found = capability.compile_document(doc, RULES)
        assert found.problems == ()
        assert names(found.tools) == expected["tools"]
        assert {tool.scope for tool in found.tools} == {expected["group"]}
        rule = found.tools[0].selection
        assert isinstance(rule, Always if expected["strategy"] == "always" else OnKeywords)
        assert len(rule.keywords) == expected["keywords"]
        calls = [tool.invocation for tool in found.tools if isinstance(tool.invocation, CallPython)]
        assert {call.executor for call in calls} == set(expected["executors"])
        context = {key for tool in found.tools for key in tool.needs.context}
        assert context == set(expected["requires_context"])
        assert [condition.otherwise.code for condition in found.conditions] == [
            "capability.meta.executor-alias" for _ in expected["executors"]
        ]
    assert seen == 5


@pytest.mark.requirement("capability.migrate.report")
def test_real_tools_kept_in_code_are_compared_with_the_files() -> None:
    folder = shared("corpus/capability")
    ours = capability.link(
        [
            Unit(path=str(path), compiled=compiled(path.read_bytes(), str(path)))
            for path in sorted((folder / "schemas").glob("*.json"))
        ],
        RULES,
    ).tools
    lists = json.loads((folder / "extra" / "legacy_tools.json").read_text(encoding="utf-8"))
    code = [
        in_code(tool["name"], tool["description"], tool["input_schema"])
        for tools in lists.values()
        for tool in tools
    ]
    migration = capability.migration(ours, code)
    assert len(code) == 127
    assert len(migration.shadowed) + len(migration.not_migrated) == 127
    assert set(migration.shadowed) <= set(names(ours))


# -- any bytes -----------------------------------------------------------------------------------------------

EXAMPLE = group("g", "a", "b") | {"version": "1.0.0", "description": "A group"}
KEYS = st.sampled_from(
    ["group", "version", "description", "selection", "strategy", "keywords", "context_check", "tools", "name",
     "category", "input_schema", "type", "properties", "required", "metadata", "executor", "requires_context",
     "cost_estimate", "latency_estimate", "", "x"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["always", "keyword", "context", "object", "g", "../x", "retrieval", "", " ", "has_project"]
)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(st.binary() | VALUES | st.dictionaries(KEYS, VALUES))
@example({"group": "g", "selection": {"strategy": []}, "tools": [{"name": {}, "metadata": {"executor": {}}}]})
def test_no_bytes_make_it_raise_and_the_outcome_is_always_the_same(content: bytes | object) -> None:
    first = compiled(content)
    assert first == compiled(content)
    linked = capability.link([Unit(path="schemas/g_tools.json", compiled=first)], RULES)
    assert linked.tools == first.tools
    for tool in first.tools:
        assert tool.key.startswith("capability:")
        assert tool.name.strip()
    for problem in first.problems:
        assert problem.code.startswith("capability.")
        assert "\n" not in problem.message


@given(st.lists(st.tuples(st.integers(min_value=0), VALUES), min_size=1, max_size=3))
def test_one_broken_place_never_hides_a_neighbour(changes: list[tuple[int, Any]]) -> None:
    whole = json.loads(json.dumps(EXAMPLE))
    for number, value in changes:  # break the first tool only
        keys = list(whole["tools"][0])
        whole["tools"][0][keys[number % len(keys)]] = value
    assert "b" in names(compiled(whole).tools)
