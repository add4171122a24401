"""The crib: opened on anything, asked for everything, and never deciding by itself."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.program import PATH, WAIT_S
from toolcrib.config import Config, Environment, resolve
from toolcrib.dialects import DIALECTS
from toolcrib.errors import SourceError, UnknownTool, UsageError
from toolcrib.journal.reading import entries
from toolcrib.model import Effect, Reach


def surroundings(folder: Path) -> Environment:
    return Environment.read({"HOME": str(folder / "home"), "PATH": PATH})


def manifest(folder: Path, *names: str) -> Path:
    tools = [
        {
            "name": name,
            "description": f"Does {name}.",
            "schema": {"type": "object", "properties": {"x": {"type": "string"}}},
            "command": ["./tools/bin/run"],
        }
        for name in names
    ]
    (folder / "tools" / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "tools" / "bin" / "run"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    path = folder / "tools.json"
    path.write_text(json.dumps({"tools": tools}), encoding="utf-8")
    return path


def group(folder: Path, selection: Mapping[str, Any], *, executor: str = "notes") -> Path:
    tool = {
        "name": "add_note",
        "description": "Add a note.",
        "category": "creation",
        "input_schema": {"type": "object", "properties": {}},
        "metadata": {
            "executor": executor, "requires_context": [], "cost_estimate": "low", "latency_estimate": "fast",
        },
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "notes_tools.json"
    document: dict[str, Any] = {
        "group": "notes",
        "version": "1.0.0",
        "description": "Notes.",
        "tools": [tool],
    }
    document["selection"] = selection
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def rye(folder: Path, category: str, name: str) -> None:
    place = folder / ".ai" / "tools" / category
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.py").write_text(
        f'__version__ = "1.0.0"\n__tool_type__ = "python"\n__category__ = "{category}"\n'
        f'__executor_id__ = "rye/core/runtimes/python/function"\n__tool_description__ = "Do the {name}"\n'
        'CONFIG_SCHEMA = {"type": "object", "properties": {}}\n'
        "def execute(params, project_path):\n    return {}\n",
        encoding="utf-8",
    )


def names(crib: toolcrib.Crib) -> list[str]:
    return [tool.name for tool in crib.tools]


# -- opening ------------------------------------------------------------------------------------------------


def test_a_folder_a_file_and_several_can_be_opened(tmp_path: Path) -> None:
    one, two = manifest(tmp_path / "one", "a"), manifest(tmp_path / "two", "b")
    home = surroundings(tmp_path)
    assert names(toolcrib.open(tmp_path, environment=home)) == ["a", "b"]
    assert names(toolcrib.open(str(one), environment=home)) == ["a"]
    assert names(toolcrib.open([two, str(one.parent)], environment=home)) == ["b", "a"]
    assert names(toolcrib.open(f"manifest={one.parent}", environment=home)) == ["a"]


def test_a_configuration_can_be_opened(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")
    (tmp_path / "toolcrib.toml").write_text('[[source]]\npath = "one"\n', encoding="utf-8")
    home = surroundings(tmp_path)
    config = resolve(home, cwd=str(tmp_path))
    assert names(toolcrib.open(config, environment=home)) == ["a"]
    assert names(toolcrib.open(config=config, environment=home)) == ["a"]


def test_paths_take_the_place_of_a_configurations_sources(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")
    manifest(tmp_path / "two", "b")
    home = surroundings(tmp_path)
    config = resolve(home, cwd=str(tmp_path), sources=["one"])
    assert names(toolcrib.open(tmp_path / "two", config=config, environment=home)) == ["b"]


def test_nothing_to_open_and_two_configurations_are_refused(tmp_path: Path) -> None:
    home = surroundings(tmp_path)
    ways: list[Any] = [None, [], Config()]
    for nothing in ways:
        with pytest.raises(UsageError, match="nothing to open"):
            toolcrib.open(nothing, environment=home)
    with pytest.raises(UsageError, match="two configurations"):
        toolcrib.open(Config(), config=Config(), environment=home)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or directory"):
        toolcrib.open(tmp_path / "missing", environment=surroundings(tmp_path))


def test_a_wrong_declaration_is_a_value(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a", "")
    with toolcrib.open(tmp_path, environment=surroundings(tmp_path)) as crib:
        assert names(crib) == ["a"]
        assert [problem.severity for problem in crib.problems] == [toolcrib.Severity.ERROR]


def test_a_crib_can_be_entered_both_ways(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")

    async def asked() -> list[str]:
        async with toolcrib.open(tmp_path, environment=surroundings(tmp_path)) as crib:
            return names(crib)

    with toolcrib.open(tmp_path, environment=surroundings(tmp_path)) as crib:
        assert names(crib) == asyncio.run(asked())


def test_state_is_kept_only_where_there_is_a_folder_for_it(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")
    home = surroundings(tmp_path)
    with toolcrib.open(tmp_path / "one", config=Config(), environment=home):
        pass
    assert not (tmp_path / "home").exists()
    with toolcrib.open(tmp_path / "one", environment=home):
        assert not (tmp_path / "home").exists()  # the answer first, the cache when the crib closes
    assert os.listdir(os.path.join(home.state, "cache"))


# -- what there is ------------------------------------------------------------------------------------------


def test_tools_are_found_by_key_and_by_name(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a", "b")
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    assert crib.find("a") == crib.find("manifest:one/a") == crib.tools[0]
    with pytest.raises(UnknownTool, match="there is no tool 'c'"):
        crib.find("c")


def test_a_reload_sees_what_changed_and_leaves_what_was_taken(tmp_path: Path) -> None:
    path = manifest(tmp_path / "one", "a")
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    before = crib.tools
    assert not crib.changed()
    manifest(path.parent, "a", "b")
    assert crib.changed()
    assert names(crib) == ["a"]
    crib.reload()
    assert not crib.changed()
    assert names(crib) == ["a", "b"]
    assert [tool.name for tool in before] == ["a"]


def test_looking_for_changes_runs_nothing(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "broken-tool"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    home = surroundings(tmp_path)
    with toolcrib.open(f"executable={program.parent}", environment=home) as crib:
        asked = [entry.what for entry in entries(f"{home.state}/journal")]
        assert asked == ["open", "begin", "end"]
        assert not crib.changed()
        assert [entry.what for entry in entries(f"{home.state}/journal")] == asked


def test_further_skill_folders_come_after_the_sources(tmp_path: Path) -> None:
    for name in ("one", "more/two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "SKILL.md").write_text("---\ndescription: D.\n---\n", encoding="utf-8")
    (tmp_path / "x.toml").write_text(
        '[[source]]\npath = "one"\n[skills]\nextra_dirs = ["more"]\n', encoding="utf-8"
    )
    home = surroundings(tmp_path)
    crib = toolcrib.open(resolve(home, cwd=str(tmp_path), file="x.toml"), environment=home)
    assert [skill.name for skill in crib.skills] == ["one", "two"]


def test_a_bundle_in_the_current_folder_is_no_installed_one(tmp_path: Path) -> None:
    """Attack: a clone that passes for an installed rye bundle, where Python searches the current folder."""
    rye(tmp_path / "evil", "x", "t")
    (tmp_path / "evil-1.dist-info").mkdir()
    (tmp_path / "evil-1.dist-info" / "entry_points.txt").write_text(
        "[rye.bundles]\nevil = evil:bundle\n", encoding="utf-8"
    )
    rye(tmp_path / "mine", "y", "t")
    code = "import toolcrib; print([tool.origin.path for tool in toolcrib.open('mine').tools])"
    for path, shown in (("", False), (str(tmp_path), True)):
        env = {"HOME": str(tmp_path / "home"), "PATH": PATH, **({"PYTHONPATH": path} if path else {})}
        said = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert said.stderr == ""
        assert ("evil" in said.stdout) is shown
        assert "mine/.ai/tools/y/t.py" in said.stdout


def test_a_tool_of_an_installed_bundle_works_on_the_current_project_not_on_the_bundle(tmp_path: Path) -> None:
    """Attack: a bundle's tool that may write where the code of every other project's tools comes from."""
    site = tmp_path / "site"
    rye(site / "core", "x", "t")
    (site / "core-1.dist-info").mkdir()
    (site / "core-1.dist-info" / "entry_points.txt").write_text(
        "[rye.bundles]\ncore = core:bundle\n", encoding="utf-8"
    )
    rye(tmp_path / "mine", "y", "t")
    code = (
        "import toolcrib\n"
        "from toolcrib import Config\n"
        "from toolcrib.config import named_source\n"
        "from toolcrib.model import Profile\n"
        "config = Config(sources=(named_source('.', '.'),), undeclared=Profile.PROJECT, unsigned='warn')\n"
        "print(toolcrib.open(config).explain('rye:x/t').permit.write)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "mine",
        env={"HOME": str(tmp_path / "home"), "PATH": PATH, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert said.stderr == ""
    assert str(tmp_path / "mine") in said.stdout
    assert str(site) not in said.stdout


# -- which tools a message sees -----------------------------------------------------------------------------


def test_the_hosts_checks_decide_about_context(tmp_path: Path) -> None:
    group(tmp_path / "g", {"strategy": "context", "context_check": "is_weekend"})
    crib = toolcrib.open(
        tmp_path / "g",
        context_checks={"is_weekend": lambda context: context.get("day") == "sat"},
        environment=surroundings(tmp_path),
    )
    assert [choice.name for choice in crib.select("x", context={"day": "sat"}).chosen] == ["add_note"]
    assert crib.select("x", context={"day": "mon"}).chosen == ()
    assert crib.select("x").note


class AsyncCheck:
    async def __call__(self, context: object) -> bool:
        return False


async def async_check(context: object) -> bool:
    return False


@pytest.mark.parametrize(
    "check",
    [async_check, AsyncCheck(), functools.partial(async_check), True, "x"],
    ids=["async", "object", "partial", "bool", "text"],
)
def test_a_context_check_that_could_not_be_asked_is_refused(tmp_path: Path, check: Any) -> None:
    group(tmp_path / "g", {"strategy": "context", "check": "mine"})
    with pytest.raises(UsageError, match="context_checks\\['mine'\\]: must"):
        toolcrib.open(tmp_path / "g", context_checks={"mine": check}, environment=surroundings(tmp_path))


def test_wrong_types_are_wrong_uses(tmp_path: Path) -> None:
    group(tmp_path / "g", {"strategy": "always"})
    wrong: Any = 5
    with pytest.raises(UsageError, match=r"a Config was expected \(got int\)"):
        toolcrib.open(wrong)
    with toolcrib.open(tmp_path / "g", environment=surroundings(tmp_path)) as crib:
        for use in (
            lambda: crib.call(wrong),
            lambda: crib.call("add_note", {}, caller=wrong),
            lambda: crib.call("add_note", {}, context=wrong),
            lambda: crib.call("add_note", {}, idempotency_key=wrong),
            lambda: crib.call_text(wrong, "{}"),
            lambda: crib.call_text("add_note", wrong),
            lambda: crib.call_all(wrong),
            lambda: crib.find(wrong),
            lambda: crib.explain(wrong),
            lambda: crib.select(wrong),
            lambda: crib.disable(wrong),
            lambda: crib.enable(wrong),
        ):
            with pytest.raises(UsageError, match=r"must be a .*\(got int\)"):
                use()
        assert crib.disabled() == ()


def test_the_configuration_says_how_keywords_match(tmp_path: Path) -> None:
    group(tmp_path / "g", {"strategy": "keyword", "keywords": ["may"]})
    home = surroundings(tmp_path)
    word = toolcrib.open(tmp_path / "g", environment=home)
    assert word.select("maybe").chosen == ()
    substring = toolcrib.open(tmp_path / "g", config=Config(keyword_match="substring"), environment=home)
    assert [choice.name for choice in substring.select("maybe").chosen] == ["add_note"]


def test_the_hosts_handlers_stand_in_for_files(tmp_path: Path) -> None:
    group(tmp_path / "g", {"strategy": "always"}, executor="hosted")
    home = surroundings(tmp_path)
    assert toolcrib.open(tmp_path / "g", environment=home).problems
    assert toolcrib.open(tmp_path / "g", handlers={"hosted": print}, environment=home).problems == ()


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ([print], "must be a mapping (got list)"),
        ({3: print}, "must be under the name"),
        ({"hosted": "module"}, "is no function and has none (got str)"),
        ({"hosted": object()}, "is no function and has none (got object)"),
        ({"hosted": Path}, "Path is a class"),
    ],
)
def test_handlers_that_could_not_be_called_are_refused(tmp_path: Path, handlers: Any, words: str) -> None:
    group(tmp_path / "g", {"strategy": "always"}, executor="hosted")
    with pytest.raises(UsageError, match=re.escape(words)):
        toolcrib.open(tmp_path / "g", handlers=handlers, environment=surroundings(tmp_path))


def test_an_object_with_the_function_is_a_handler(tmp_path: Path) -> None:
    class Hosted:
        def execute_hosted_tool(self, name: str, arguments: object) -> str:
            return name

    group(tmp_path / "g", {"strategy": "always"}, executor="hosted")
    home = surroundings(tmp_path)
    assert toolcrib.open(tmp_path / "g", handlers={"hosted": Hosted()}, environment=home).problems == ()


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def deploy_all() -> str:
    """Deploy everything."""
    return "deployed"


def test_a_configuration_can_be_named_by_its_path(tmp_path: Path) -> None:
    group(tmp_path / "g", {"strategy": "keyword", "keywords": ["may"]})
    file = tmp_path / "mine.toml"
    file.write_text('[selection]\nkeyword_match = "substring"\n', encoding="utf-8")
    home = surroundings(tmp_path)
    for named in (file, str(file)):
        crib = toolcrib.open(tmp_path / "g", config=named, environment=home)
        assert crib.config.keyword_match == "substring"
        assert crib.config.trusted
        assert [tool.name for tool in crib.tools] == ["add_note"]
    alone = toolcrib.open(tools=[add], config=file, environment=home)
    assert [tool.name for tool in alone.tools] == ["add"]
    wrong: Any = {"selection": {}}
    with pytest.raises(UsageError, match=r"config: must be a Config, or the path .*\(got dict\)"):
        toolcrib.open(tmp_path / "g", config=wrong, environment=home)
    with pytest.raises(SourceError, match="no such file"):
        toolcrib.open(tmp_path / "g", config=tmp_path / "none.toml", environment=home)


def test_tools_of_every_format_are_searched_by_ryes_language(tmp_path: Path) -> None:
    rye(tmp_path, "web", "deploy")
    rye(tmp_path, "web", "test")
    manifest(tmp_path / "one", "deploy_site", "other")
    group(tmp_path / "g", {"strategy": "always"})
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path), tools=[deploy_all])
    found = [choice.name for choice in crib.search("deploy OR nothing")]
    assert sorted(found) == ["deploy_all", "deploy_site", "web/deploy"]
    assert [choice.name for choice in crib.search("note")] == ["add_note"]
    assert [choice.name for choice in crib.search(item_id="one/other")] == []
    assert [choice.name for choice in crib.search(item_id="manifest:one/other")] == ["other"]
    assert [choice.name for choice in crib.search(item_id="web/test")] == ["web/test"]
    with pytest.raises(UsageError):
        crib.search()
    for empty in ("", " \t\n"):
        with pytest.raises(UsageError, match="the query is empty") as raised:
            crib.search(empty)
        assert raised.value.hint == "say what to look for, or read `crib.tools`"


# -- what a provider is sent --------------------------------------------------------------------------------


def test_all_named_or_selected_tools_are_declared(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a", "b")
    group(tmp_path / "g", {"strategy": "keyword", "keywords": ["note"]})
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))

    def declared(**more: Any) -> list[str]:
        return [tool["name"] for tool in crib.declare("anthropic", **more).payload]

    assert declared() == ["a", "b", "add_note"]
    assert declared(names=["manifest:one/b"]) == ["b"]
    assert declared(message="hello") == ["a", "b"]
    assert declared(message="a note") == ["a", "b", "add_note"]
    with pytest.raises(UnknownTool):
        declared(names=["nothing"])


def test_an_empty_payload_says_why_it_is_empty(tmp_path: Path) -> None:
    group(tmp_path / "g", {"strategy": "keyword", "keywords": ["note"]})
    rules = ({"match": {"name": "add_note"}, "decision": "deny", "because": "not now"},)
    home = surroundings(tmp_path)
    crib = toolcrib.open(tmp_path / "g", environment=home)
    for dialect in DIALECTS:
        found = crib.declare(dialect, message="hello")
        assert (found.payload, found.left_out) == ([], ())
        assert found.note == "no tool fits this message: no keyword in the message (1)"
    assert crib.declare("openai", message="a note").note == ""
    assert crib.declare("openai").note == ""
    assert crib.declare("openai", names=[]).note == "no tool was named"
    refused = toolcrib.open(Config(sources=crib.config.sources, policy=rules), environment=home)
    found = refused.declare("openai")
    assert [left.because for left in found.left_out] == ["denied by policy: not now"]
    assert found.note == "every tool was left out (1)"
    (tmp_path / "empty").mkdir()
    empty = toolcrib.open(tmp_path / "empty", environment=home)
    assert empty.declare("openai").note == "there are no tools"
    assert empty.declare("openai", message="x").note == "there are no tools to choose from"


def test_calls_that_no_dialect_has_read_are_refused(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")
    call: Any = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    with toolcrib.open(tmp_path, environment=surroundings(tmp_path)) as crib:
        assert crib.call_all([]) == []
        with pytest.raises(UsageError, match=r"calls must be ToolCalls \(got dict\)"):
            crib.call_all([call])


def test_a_context_check_that_fails_is_told_with_what_is_declared(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")
    group(tmp_path / "g", {"strategy": "context", "context_check": "broken"})
    checks = {"broken": lambda _context: 1 / 0}
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path), context_checks=checks)
    found = crib.declare("openai", message="hello")
    assert len(found.payload) == 1
    assert found.note == 'context check "broken" raised ZeroDivisionError and counts as no'


def test_a_named_part_of_another_tool_is_left_out_with_its_reason(tmp_path: Path) -> None:
    rye(tmp_path, "web", "deploy")
    manifest(tmp_path / "one", "a")
    library = tmp_path / ".ai" / "tools" / "web" / "words.yaml"
    library.write_text(
        "tool_type: library\nexecutor_id: null\ncategory: web\nversion: 1.0.0\ndescription: words\n",
        encoding="utf-8",
    )
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    found = crib.declare("openai", names=["rye:web/words"])
    assert (found.payload, found.note) == ([], "every tool was left out (1)")
    assert [left.because for left in found.left_out] == ["it is a part of other tools"]
    found = crib.declare("openai", names=["rye:web/words", "manifest:one/a"])
    assert (len(found.payload), found.note) == (1, "")


def test_named_tools_that_are_not_declared_are_told_in_the_order_of_their_names(tmp_path: Path) -> None:
    rye(tmp_path, "web", "deploy")
    for name in ("words", "signs", "forms", "lists"):
        (tmp_path / ".ai" / "tools" / "web" / f"{name}.yaml").write_text(
            "tool_type: library\nexecutor_id: null\ncategory: web\nversion: 1.0.0\ndescription: words\n",
            encoding="utf-8",
        )
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    names = ["rye:web/words", "rye:web/signs", "rye:web/forms", "rye:web/lists"]
    assert [left.tool for left in crib.declare("openai", names=names).left_out] == names


def test_a_named_tool_out_of_reach_is_not_counted_and_not_named(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a", "b")
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    reach = Reach(tools=("manifest:one/a",), effects=frozenset(Effect))
    found = crib.declare("openai", names=["manifest:one/b"], reach=reach)
    assert (found.payload, found.left_out, found.note) == ([], (), "no named tool is within reach")


def test_names_do_not_move_while_the_selection_does(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "same")
    manifest(tmp_path / "two", "same")
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    together = crib.declare("openai").names
    for key in ("manifest:one/same", "manifest:two/same"):
        assert crib.declare("openai", names=[key]).names.spoken(key) == together.spoken(key)


@pytest.mark.parametrize("name", list(DIALECTS))
def test_every_dialect_answers_by_its_name(name: str) -> None:
    assert toolcrib.Crib.dialect(name) is DIALECTS[name]


def test_an_unknown_dialect_or_mode_is_refused(tmp_path: Path) -> None:
    manifest(tmp_path / "one", "a")
    crib = toolcrib.open(tmp_path, environment=surroundings(tmp_path))
    with pytest.raises(UsageError, match="unknown dialect 'nobody'"):
        crib.declare("nobody")
    with pytest.raises(UsageError, match="unknown tool mode 'loose'"):
        crib.declare("openai", mode="loose")


# -- the package --------------------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import toolcrib; "
        "print(sorted(name for name in set(sys.modules) - before if name.partition('.')[0] != 'typing'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env={}, capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    loaded = [name for name in said.stdout.strip("[]\n").replace("'", "").split(", ") if "toolcrib" in name]
    assert loaded == ["toolcrib"]


def test_public_names_are_listed_and_others_are_not_there() -> None:
    assert set(toolcrib.__all__) <= set(dir(toolcrib))
    assert not hasattr(toolcrib, "nothing")


def test_the_version_is_another_one_while_what_is_switched_off_cannot_be_read(tmp_path: Path) -> None:
    """Those who tell of a reload, or wait for one, look at it, and must not break."""
    path = manifest(tmp_path / "p", "one")
    state = tmp_path / "state"
    config = Config(state=str(state))
    with toolcrib.open(path, config=config, environment=surroundings(tmp_path)) as crib:
        told: list[str] = []
        crib.watch(lambda: told.append(crib.version))
        before = crib.version
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "state.sqlite").write_bytes(b"garbage " * 1000)
        manifest(tmp_path / "p", "one", "two")
        crib.reload()
        assert len(crib.tools) == 2
        assert told == [crib.version]
        (state / "state.sqlite").unlink()
        assert len({before, *told, crib.version}) == 3
