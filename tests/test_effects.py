"""The effect of a tool: who states it, who may lower it, and rules that ask before any write."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

import toolcrib
from tests.program import Said
from tests.program import toolcrib as program
from toolcrib.app import Crib
from toolcrib.catalog import effects
from toolcrib.config import Environment, resolve
from toolcrib.doors._documents import effect_source
from toolcrib.errors import ConfigError, Kind, UsageError
from toolcrib.model import Allow, Ask, Effect, NotCallable, Origin, StatedEffect, Tool, Trust
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.portable import Portable
from toolcrib.trust import rules
from toolcrib.trust.rules import Answer, rules_of

SERVER = str(Path(__file__).parent / "peers" / "odd_server.py")
GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "policy.md"
ASK = '[[policy]]\nmatch = { effect = "write" }\ndecision = "ask"\nbecause = "writes"\n'
READS = {
    "skill": "skill:notes/find",
    "manifest": "manifest:shop/read",
    "capability": "capability:journal/recall",
    "rye": "rye:files/look",
    "executable": "executable:bin/weather",
    "mcp": "mcp:files/look",
    "openapi": "openapi:pets/list_pets",
    "python": "python:host/look",
}
"""A tool of each format that only reads."""
WRITES = {
    "skill": ["skill:notes/put"],
    "manifest": ["manifest:shop/write"],
    "capability": ["capability:journal/keep", "capability:journal/strike"],
    "rye": ["rye:files/put"],
    "executable": ["executable:bin/edit"],
    "mcp": ["mcp:files/put", "mcp:strange/look", "mcp:strange/put"],
    "openapi": ["openapi:pets/add_pet", "openapi:pets/drop_pet"],
    "python": ["python:host/make", "python:host/change"],
}
"""Those that create, change, or do not say. The server `strange` is not trusted."""
STATED = "".join(
    f'[tools."{key}"]\neffect = "read"\n'
    for key in (READS["skill"], READS["manifest"], READS["rye"], READS["executable"])
)
"""What a trusted configuration says about the formats that cannot say it themselves."""


@toolcrib.tool(effect="read", namespace="host")
def look() -> str:
    """Looks."""
    return "seen"


@toolcrib.tool(effect="create", namespace="host")
def make() -> str:
    """Makes."""
    return "made"


@toolcrib.tool(namespace="host")
def change() -> str:
    """Changes."""
    return "changed"


def rye_item(name: str) -> str:
    return (
        '__version__ = "1.0.0"\n__tool_type__ = "python"\n'
        '__executor_id__ = "rye/core/runtimes/python/function"\n__category__ = "files"\n'
        f'__tool_description__ = "{name}"\n'
        'def execute(params, project_path):\n    return {"success": True}\n'
    )


def probed(name: str) -> str:
    schema = {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
    return f"#!/bin/sh\necho '{json.dumps(schema)}'\n"


def manifest_tool(name: str) -> dict[str, object]:
    return {"name": name, "description": name, "schema": {"type": "object"}, "command": ["/bin/true"]}


def capability_tool(name: str, category: str) -> dict[str, object]:
    return {"name": name, "description": name, "category": category, "metadata": {"executor": "journal"}}


FILES: Mapping[str, object] = {
    "skills/notes/SKILL.md": "# Notes\n",
    "skills/notes/tools.json": {
        "tools": [
            {"name": name, "description": name, "parameters": {"type": "object"}} for name in ("find", "put")
        ],
        "allowlist": {"git": ["find", "put"]},
        "execution": [
            {"tool": name, "binary": "git", "subcommand": name, "args": []} for name in ("find", "put")
        ],
    },
    "shop/tools.json": {"tools": [manifest_tool("read"), manifest_tool("write")]},
    "handlers/journal.py": "",
    "groups/journal_tools.json": {
        "group": "journal",
        "version": "1",
        "description": "Journal",
        "selection": {"strategy": "always"},
        "tools": [
            capability_tool("recall", "retrieval"),
            capability_tool("keep", "creation"),
            capability_tool("strike", "mutation"),
        ],
    },
    ".ai/tools/files/look.py": rye_item("look"),
    ".ai/tools/files/put.py": rye_item("put"),
    "bin/weather-tool": probed("weather"),
    "bin/edit-tool": probed("edit"),
    "pets.json": {
        "openapi": "3.1.0",
        "info": {"title": "Pets", "version": "1"},
        "servers": [{"url": "https://pets.example/"}],
        "paths": {
            "/pets": {"get": {"operationId": "list_pets"}, "post": {"operationId": "add_pet"}},
            "/pets/last": {"delete": {"operationId": "drop_pet"}},
        },
    },
}


def sources() -> str:
    server = json.dumps([sys.executable, "-I", "-S", SERVER, "names=look,put", "read=look"])
    return (
        '[[source]]\npath = "skills"\n[[source]]\npath = "shop"\n'
        '[[source]]\npath = "groups"\nhandlers = "handlers"\n[[source]]\npath = "."\nformat = "rye"\n'
        '[[source]]\npath = "bin"\nformat = "executable"\ntrusted = true\n'
        f'[[source]]\nmcp = {server}\nname = "files"\ntrusted = true\n'
        f'[[source]]\nmcp = {server}\nname = "strange"\n'
        '[[source]]\nopenapi = "pets.json"\n[trust]\nunsigned = "warn"\n'
    )


def put(folder: Path, name: str, content: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    if name.startswith("bin/"):
        path.chmod(0o755)


def home_of(folder: Path) -> Environment:
    environment = Environment.read({"PATH": os.environ["PATH"], "HOME": str(folder / "home")})
    return replace(environment, state=str(folder / "state"))


def opened(folder: Path, text: str, **more: object) -> Crib:
    """A crib on a configuration that a person named."""
    put(folder, "toolcrib.toml", text)
    home = home_of(folder)
    config = resolve(home, cwd=str(folder), file="toolcrib.toml")
    return toolcrib.open(config, environment=home, sandbox=Portable(Scratch()), **more)  # type: ignore[arg-type]


def found_in(folder: Path, text: str) -> Crib:
    """A crib on a configuration that nobody named."""
    put(folder, "toolcrib.toml", text)
    home = home_of(folder)
    return toolcrib.open(resolve(home, cwd=str(folder)), environment=home, sandbox=Portable(Scratch()))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        put(tmp_path, name, content)
    return tmp_path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Manifests alone."""
    put(tmp_path, "shop/tools.json", FILES["shop/tools.json"])
    return tmp_path


# -- asking before any write --------------------------------------------------------------------------------


def test_a_rule_about_writes_asks_before_each_in_every_format_and_lets_reading_through(
    project: Path,
) -> None:
    tools = [look, make, change]
    with opened(project, sources() + ASK + STATED, tools=tools) as crib:
        for format, key in READS.items():
            assert isinstance(crib.explain(key).decision, Allow), format
        for format, keys in WRITES.items():
            for key in keys:
                assert isinstance(crib.explain(key).decision, Ask), (format, key)
        written = {key for keys in WRITES.values() for key in keys}
        assert {*READS.values(), *written} == {*crib.catalog.keys}
    with opened(project, sources() + ASK.replace("write", "change", 1), tools=tools) as crib:
        assert isinstance(crib.explain("python:host/make").decision, Allow), "`change` is not every write"


def test_the_recipe_of_the_guide_asks_before_any_write(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (recipe,) = (block for block in blocks if 'effect = "write"' in block)
    tools = {"tools": [manifest_tool(name) for name in ("get_time", "csv_query", "write_file")]}
    put(tmp_path, "manifest/tools.json", tools)
    with opened(tmp_path, recipe) as crib:
        assert crib.rule_problems() == []
        decided = {tool.name: type(crib.explain(tool.key).decision) for tool in crib.tools}
    assert decided == {"get_time": Allow, "csv_query": Allow, "write_file": Ask}


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("write", ("create", "change")),
        (["write"], ("create", "change")),
        (["read", "write"], ("read", "create", "change")),
        ("!write", ("read",)),
        (["*", "!write"], ("read",)),
        (["write", "!create"], ("change",)),
        ("create", ("create",)),
    ],
)
def test_write_in_a_rule_is_create_or_change(match: object, fits: tuple[str, ...]) -> None:
    (rule,) = rules_of([{"match": {"effect": match}, "decision": "ask", "because": "b"}])
    assert rule.mistakes == ()
    assert tuple(each.value for each in Effect if rule.match.fits({"effect": (each.value,)})) == fits


@pytest.mark.parametrize("word", ["wr*", "Write", "writes", "wri?e"])
def test_only_the_word_itself_is_known(word: str) -> None:
    """Attack: a rule of half a word, which fits nothing that any tool has."""
    (rule,) = rules_of([{"match": {"effect": word}, "decision": "ask", "because": "b"}])
    (mistake,) = rule.mistakes
    assert mistake == f"match.effect: must be one of read, create, change, write (got {word!r})"


def test_write_is_no_effect_of_a_tool(shop: Path) -> None:
    """It is refused wherever the effect of a tool is named, and the message says what it is for."""
    table = {
        "match": {"effect": "write"},
        "decision": "ask",
        "because": "b",
        "examples": [{"call": {"effect": "write"}, "decision": "ask"}],
    }
    (rule,) = rules_of([table])
    (told,) = rules.failing(table, [rule])
    assert told.endswith(
        "must be one of read, create, change (got 'write'); 'write' is a word of `match` only"
    )
    with pytest.raises(UsageError, match=r"must be read, create, change \(got 'write'\)") as wrong:
        toolcrib.tool(effect="write")
    assert wrong.value.hint == '"write" is a word of rules only: name create or change'
    with pytest.raises(ConfigError) as refused:
        opened(shop, '[tools."manifest:*"]\neffect = "write"\n')
    assert '"write" is a word of rules only: name create or change' in refused.value.message
    assert refused.value.line == 2
    for arguments in (("list", "--effect", "write"), ("token", "create", "x", "--effect", "write")):
        said = program("--state", shop / "state", *arguments, cwd=shop, home=shop / "home")
        assert said.status == 2
        assert "'write' is a word of rules only: name create or change" in said.err


def test_a_refusal_of_writes_leaves_a_server_that_only_reads(project: Path) -> None:
    """The rule is about calls. Refusing the start of the server would refuse its reading tools as well."""
    with opened(project, sources() + ASK.replace('"ask"', '"deny"')) as crib:
        assert crib.call("mcp:files/look").ok
        error = crib.call("mcp:files/put").error
        assert error is not None
        assert error.kind is Kind.DENIED


# -- who states an effect -----------------------------------------------------------------------------------


def test_every_tool_says_who_gave_its_effect(project: Path) -> None:
    with opened(project, sources() + STATED, tools=[look, make, change]) as crib:
        told = {tool.key: effect_source(tool) for tool in crib.tools}
        assert all(
            tool.declared_effect is Effect.CHANGE for tool in crib.tools if "[tools" in tool.effect_from
        )
    unknown = "not stated, so it counts as change"
    line = 1 + (sources() + STATED).splitlines().index(f'[tools."{READS["manifest"]}"]')
    assert told["manifest:shop/read"] == (
        f'[tools."manifest:shop/read"] in toolcrib.toml:{line}, in place of change'
    )
    assert told["manifest:shop/write"] == told["skill:notes/put"] == told["executable:bin/edit"] == unknown
    assert told["capability:journal/recall"] == "category retrieval"
    assert told["openapi:pets/drop_pet"] == "method DELETE"
    assert told["mcp:files/look"] == "readOnlyHint of a trusted server"
    assert told["mcp:strange/look"] == "the server's hints do not count: it is not trusted"
    assert told["mcp:files/put"] == unknown
    assert told["python:host/make"] == "effect= of the function"
    assert told["python:host/change"] == unknown


CHANGING = Tool(
    key="manifest:shop/a", name="a", scope="shop",
    origin=Origin(format="manifest", path="/p"), invocation=NotCallable(reason="it is a test"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("own", "stated", "effect"),
    [
        ("change", [("read", True)], "read"),
        ("change", [("create", True)], "create"),
        ("create", [("read", True)], "read"),
        ("read", [("change", True)], "change"),
        ("change", [("read", True), ("create", True)], "create"),
        ("change", [("read", False)], "change"),
        ("change", [("create", False)], "change"),
        ("create", [("read", False)], "create"),
        ("read", [("create", False)], "create"),
        ("read", [("change", False)], "change"),
        ("change", [("read", True), ("create", False)], "create"),
        ("change", [("read", True), ("change", False)], "change"),
        ("change", [("create", True), ("read", False)], "create"),
    ],
)
def test_only_a_trusted_file_lowers_an_effect(own: str, stated: list[tuple[str, bool]], effect: str) -> None:
    tool = replace(CHANGING, effect=Effect(own))
    tables = [
        StatedEffect(pattern="manifest:*", effect=Effect(each), may_lower=trusted) for each, trusted in stated
    ]
    for order in (tables, tables[::-1]):
        given = effects.applied(tool, order)
        assert given.effect == effect
        assert effects.applied(given, order) == given, "whoever applies it twice gets the same"
        assert given.declared_effect in (None, own)
    assert effects.applied(tool, [replace(each, pattern="skill:*") for each in tables]) is tool


def test_attack_a_clone_that_calls_its_tools_harmless(shop: Path) -> None:
    """A configuration that was found by searching raises effects, and lowers none."""
    text = (
        '[tools."manifest:shop/read"]\neffect = "read"\n[tools."manifest:shop/write"]\neffect = "create"\n'
        '[tools."manifest:*"]\neffect = "change"\n'
    )
    with found_in(shop, text) as crib:
        assert {tool.effect for tool in crib.tools} == {Effect.CHANGE}
        told = [(problem.line, problem.message) for problem in crib.config.problems]
    why = "lowers no effect: this file was found, not named, so it may only narrow"
    assert told == [
        (2, f"tools.manifest:shop/read.effect {why}"),
        (4, f"tools.manifest:shop/write.effect {why}"),
    ]
    assert {problem.code for problem in crib.config.problems} == {"config.untrusted"}


def test_a_found_file_may_raise_what_the_user_s_own_lowered(shop: Path) -> None:
    home = home_of(shop)
    put(Path(home.user_config).parent, "config.toml", '[tools."manifest:*"]\neffect = "read"\n')
    with found_in(shop, '[tools."manifest:shop/write"]\neffect = "create"\n') as crib:
        assert [tool.effect for tool in crib.tools] == [Effect.READ, Effect.CREATE]


def test_a_trusted_file_lowers_once_a_person_reviewed_it(shop: Path) -> None:
    put(shop, "toolcrib.toml", '[[source]]\npath = "shop"\n[tools."manifest:shop/read"]\neffect = "read"\n')

    def run(*arguments: str | Path) -> Said:
        return program("--state", shop / "state", *arguments, cwd=shop, home=shop / "home")

    assert [row["effect"] for row in run("list", "--json").json] == ["change", "change"]
    said = run("trust", "toolcrib.toml", "--yes")
    assert said.status == 0, said
    assert "tools.manifest:shop/read.effect" in said.out + said.err
    assert [row["effect"] for row in run("list", "--json").json] == ["read", "change"]


def test_a_new_word_of_the_configuration_counts_though_no_declaration_changed(shop: Path) -> None:
    """The cache of compiled declarations belongs to what the configuration says."""
    for text, effect in (
        ("", Effect.CHANGE),
        ('[tools."manifest:*"]\neffect = "read"\n', Effect.READ),
        ('[tools."manifest:*"]\neffect = "create"\n', Effect.CREATE),
        ("", Effect.CHANGE),
    ):
        with opened(shop, '[[source]]\npath = "shop"\n' + text) as crib:
            assert {tool.effect for tool in crib.tools} == {effect}
        with opened(shop, '[[source]]\npath = "shop"\n' + text) as crib:
            assert crib.loaded.warm
            assert {tool.effect for tool in crib.tools} == {effect}
            crib.reload(fresh=True)
            assert {tool.effect for tool in crib.tools} == {effect}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tools = 1", 'tools: must be tables, written [tools."PATTERN"]'),
        ("[tools]\nx = 1", 'tools.x: must be a table, written [tools."PATTERN"]'),
        ('[tools."rye:*"]\neffekt = "read"', "unknown key 'tools.rye:*.effekt'"),
        ('[tools."rye:*"]\neffect = "reed"', "tools.rye:*.effect: must be one of read, create, change"),
        ('[tools."rye:*"]\neffect = ["read"]', "tools.rye:*.effect: must be a string, got a list"),
    ],
)
def test_what_cannot_be_an_effect_is_refused(text: str, says: str, shop: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        opened(shop, text)
    assert says in wrong.value.message


def test_an_effect_of_a_tool_that_does_not_exist_is_reported(shop: Path) -> None:
    text = '[[source]]\npath = "shop"\n[tools."manifest:shop/raed"]\neffect = "read"\n'
    with opened(shop, text) as crib:
        (problem,) = crib.rule_problems()
    assert (problem.code, problem.line) == ("config.no-tool", 3)
    assert problem.message == (
        "tools.manifest:shop/raed fits none of the tools that were loaded: key 'manifest:shop/raed'"
    )
    assert problem.hint == "did you mean manifest:shop/read?"


# -- what a lock and an approval are about ------------------------------------------------------------------


def journal(category: str) -> dict[str, object]:
    group: dict[str, object] = json.loads(json.dumps(FILES["groups/journal_tools.json"]))
    group["tools"] = [capability_tool("recall", category)]
    return group


GROUPS = '[[source]]\npath = "groups"\nhandlers = "handlers"\n'
LOWERED = '[tools."capability:*"]\neffect = "read"\n'


@pytest.fixture
def group(tmp_path: Path) -> Path:
    put(tmp_path, "handlers/journal.py", "def execute_recall_tool(*a, **k):\n    return {'success': True}\n")
    put(tmp_path, "groups/journal_tools.json", journal("mutation"))
    return tmp_path


def test_an_effect_that_the_configuration_lowers_is_no_drift(group: Path) -> None:
    with opened(group, GROUPS) as crib:
        pins = crib.pins()
        entries, _ = pins.locked_now(crib.tools)
        pins.approve(entries, whole=True)
    with opened(group, GROUPS + LOWERED) as crib:
        (tool,) = crib.tools
        assert (tool.effect, crib.vet(tool).trust) == (Effect.READ, Trust.PINNED)


def test_attack_a_locked_tool_that_changes_its_own_effect(group: Path) -> None:
    """What the configuration says in its place hides the change from nobody."""
    with opened(group, GROUPS + LOWERED) as crib:
        pins = crib.pins()
        entries, _ = pins.locked_now(crib.tools)
        pins.approve(entries, whole=True)
    put(group, "groups/journal_tools.json", journal("creation"))
    with opened(group, GROUPS + LOWERED) as crib:
        (tool,) = crib.tools
        vetted = crib.vet(tool)
        assert (tool.effect, vetted.trust) == (Effect.READ, Trust.DRIFTED)
        assert "what it asks for was changed" in vetted.message


def test_attack_an_approval_outlives_the_effect_that_the_tool_declared(group: Path) -> None:
    """A person said yes to a tool that reads; the same tool, which now changes, has to be asked about."""
    ask = '[[policy]]\ndecision = "ask"\nbecause = "everything is asked"\n'
    put(group, "groups/journal_tools.json", journal("retrieval"))
    with opened(group, GROUPS + ask) as crib:
        error = crib.call("recall").error
        assert error is not None
        assert error.kind is Kind.NEEDS_APPROVAL
        (question,) = crib.approvals()
        crib.answer(question.id, "approve", for_s=3600)
        assert isinstance(crib.explain("recall", {}).decision, Allow)
    with opened(group, GROUPS + ask + LOWERED) as crib:
        assert isinstance(crib.explain("recall", {}).decision, Allow), "the host's own word changes nothing"
    put(group, "groups/journal_tools.json", journal("mutation"))
    with opened(group, GROUPS + ask) as crib:
        assert isinstance(crib.explain("recall", {}).decision, Ask)


def test_a_lowered_effect_is_what_callers_are_limited_by(shop: Path) -> None:
    """A token that reaches only what reads reaches what the owner says only reads."""
    text = '[[source]]\npath = "shop"\n[tools."manifest:shop/read"]\neffect = "read"\n'
    reach = toolcrib.model.Reach(effects=frozenset({Effect.READ}))
    with opened(shop, text) as crib:
        assert [tool.name for tool in crib.catalog.offered(reach)] == ["read"]
        (declared,) = crib.declare("mcp", names=["read"]).payload
        assert declared["annotations"]["readOnlyHint"] is True


# -- where it is shown --------------------------------------------------------------------------------------


def test_the_command_line_shows_the_effect_and_who_gave_it(shop: Path) -> None:
    text = f'[[source]]\npath = "shop"\n{ASK}[tools."manifest:shop/read"]\neffect = "read"\n'
    put(shop, "toolcrib.toml", text)
    source = '[tools."manifest:shop/read"] in toolcrib.toml:7, in place of change'

    def run(*arguments: str | Path) -> Said:
        said = program(
            "--config", shop / "toolcrib.toml", "--state", shop / "state", *arguments,
            cwd=shop, home=shop / "home",
        )  # fmt: skip
        assert said.status == 0, said
        return said

    assert f"effect       read\neffect_from  {source}\n" in run("show", "read").out
    assert run("show", "read", "--json").json["effect_from"] == source
    head, row = run("list", "--effect", "read").out.splitlines()
    assert head.split()[:5] == ["NAME", "FORMAT", "EFFECT", "EFFECT", "FROM"]
    assert source in row
    assert "EFFECT FROM" not in run("list").out
    (row_json,) = run("list", "--effect", "read", "--json").json
    assert (row_json["effect"], row_json["effect_from"]) == ("read", source)
    explained = run("policy", "explain", "read").out
    assert explained.startswith("allow manifest:shop/read for ")
    assert f"\n  effect    read: {source}\n" in explained
    asked = run("policy", "explain", "write").out
    assert asked.startswith("ask manifest:shop/write for ")
    assert "\n  effect    change: not stated, so it counts as change\n" in asked
    document = run("policy", "explain", "write", "--json").json
    assert (document["effect"], document["effect_from"]) == ("change", "not stated, so it counts as change")


def test_a_rule_with_a_mistake_beside_write_refuses_more() -> None:
    (rule,) = rules_of([{"match": {"effect": ["write", "wrte"]}, "decision": "deny", "because": "b"}])
    assert rule.mistakes
    assert rule.answer is Answer.DENY
    assert all(rule.match.fits({"effect": (each.value,)}) for each in Effect)


def test_the_guide_s_configuration_is_one() -> None:
    for block in re.findall(
        r"^```toml\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        tomllib.loads(block)
