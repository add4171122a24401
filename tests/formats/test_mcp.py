"""What MCP servers list becomes tools; what is wrong with it becomes problems; neighbours stay."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib import formats, jsontext
from toolcrib.formats import _mcp_lists, mcp
from toolcrib.formats.mcp import Server, server_record, servers_in
from toolcrib.model import CallMcp, Compiled, Document, Effect, Reply, Rules, Severity

SERVER = Server(name="far", definition={"url": "https://example.org/mcp", "timeout": 5}, env=("TOKEN",))
PLAIN = {"name": "a", "inputSchema": {"type": "object"}}


def compiled(tools: Any, server: Server = SERVER) -> Compiled:
    content = json.dumps({"tools": tools}).encode()
    document = Document(
        path="/p/toolcrib.toml",
        content=content,
        parsed=jsontext.read(content),
        place="mcp",
        server=server.text,
    )
    name, found = formats.compile_document(document, Rules())
    assert name == "mcp"
    return found


def codes(found: Compiled) -> list[str]:
    return [problem.code for problem in found.problems]


def test_a_tool_has_everything_that_the_server_says_about_it() -> None:
    (tool,) = compiled(
        [
            {
                "name": "get.weather",
                "title": "Weather",
                "description": "The weather of a place",
                "inputSchema": {"type": "object", "properties": {"where": {"type": "string"}}},
                "outputSchema": {"type": "object", "properties": {"degrees": {"type": "number"}}},
                "annotations": {"readOnlyHint": True, "title": "other"},
            }
        ]
    ).tools
    assert (tool.key, tool.name, tool.scope, tool.spoken) == (
        "mcp:far/get.weather",
        "get.weather",
        "far",
        "far__get.weather",
    )
    assert tool.description == "The weather of a place"
    assert tool.input_schema is not None
    assert tool.input_schema.document["properties"] == {"where": {"type": "string"}}
    assert tool.output_schema is not None
    assert (tool.reply, tool.effect, tool.retry) == (Reply.BLOCKS, Effect.CHANGE, None)
    assert (tool.needs.stated, tool.needs.env, tool.needs.timeout_s) == (False, ("TOKEN",), 5.0)
    assert tool.notes.documentation == {"title": "Weather"}
    assert tool.origin.path == "/p/toolcrib.toml"
    assert isinstance(tool.invocation, CallMcp)
    assert (tool.invocation.server, tool.invocation.tool) == ("far", "get.weather")
    assert jsontext.loads_own(tool.invocation.settings) == {"key": "mcp:far/", "definition": SERVER.digest}


def test_no_part_of_a_definition_is_in_its_tools() -> None:
    """Attack: a secret of a definition that is written to the cache with the tools."""
    secret = Server(name="s", definition={"command": "x", "env": {"KEY": "very-secret"}})
    assert "very-secret" not in repr(compiled([PLAIN], secret))
    assert Server.read(secret.text) == secret


@pytest.mark.parametrize("filtered", [{"enabledTools": ["plain"]}, {"disabledTools": ["odd"]}])
def test_a_tool_that_its_list_leaves_out_is_not_reported(filtered: dict[str, Any]) -> None:
    odd = {"name": "odd", "inputSchema": {"type": "object", "propertys": {"x": {}}}}
    found = compiled([odd, {"name": "plain"}], Server(name="s", definition={"command": "x", **filtered}))
    assert ([tool.name for tool in found.tools], codes(found)) == (["plain"], [])


@pytest.mark.battery("I10")
@pytest.mark.parametrize(
    ("hints", "effect", "repeatable"),
    [
        ({}, Effect.CHANGE, False),
        ({"readOnlyHint": True}, Effect.READ, True),
        ({"readOnlyHint": "yes"}, Effect.CHANGE, False),
        ({"destructiveHint": False}, Effect.CREATE, False),
        ({"destructiveHint": True, "idempotentHint": True}, Effect.CHANGE, True),
    ],
)
def test_hints_count_only_where_the_host_trusts_the_server(
    hints: dict[str, Any], effect: Effect, repeatable: bool
) -> None:
    entry = [{**PLAIN, "annotations": hints}]
    (distrusted,) = compiled(entry).tools
    assert (distrusted.effect, distrusted.retry) == (Effect.CHANGE, None)
    trusted = Server(name="far", definition=SERVER.definition, trusted=True)
    (tool,) = compiled(entry, trusted).tools
    assert (tool.effect, tool.retry is not None) == (effect, repeatable)


@pytest.mark.battery("I11")
@pytest.mark.parametrize(
    "name",
    ["", " ", "a\u200bb", "a\u202eb", "\U000e0041", "a\nb", "a\x1b[0m", "x" * 129, 3, None, []],
)
def test_a_name_that_cannot_be_used_leaves_its_tool_out(name: Any) -> None:
    """Attack: a name that looks like another's, by characters that nobody sees."""
    found = compiled([{**PLAIN, "name": name}, PLAIN])
    assert codes(found) == ["mcp.tool.name"]
    assert [tool.name for tool in found.tools] == ["a"]


@pytest.mark.parametrize("name", ["a b", "a/b", "größe", "工具", "a:b", "a.b-c_d", "x" * 128])
def test_odd_names_are_names(name: str) -> None:
    (tool,) = compiled([{**PLAIN, "name": name}]).tools
    assert tool.key == f"mcp:far/{name}"


@pytest.mark.parametrize("schema", [None, 3, [], "object", {"type": "string"}, {"type": ["object"]}])
def test_a_schema_that_is_none_leaves_its_tool_out(schema: Any) -> None:
    found = compiled([{"name": "bad", "inputSchema": schema}, PLAIN])
    assert codes(found) == ["mcp.tool.schema"]
    assert [tool.name for tool in found.tools] == ["a"]


def test_a_missing_type_is_an_object() -> None:
    found = compiled([{"name": "a", "inputSchema": {"properties": {}}}, {"name": "b"}])
    assert [tool.input_schema.document["type"] for tool in found.tools if tool.input_schema] == ["object"] * 2


def test_an_output_schema_that_is_none_is_left_out_and_its_tool_stays() -> None:
    found = compiled([{**PLAIN, "outputSchema": 3}])
    assert [(problem.code, problem.severity) for problem in found.problems] == [
        ("mcp.tool.schema", Severity.WARNING)
    ]
    assert found.tools[0].output_schema is None


@pytest.mark.battery("I09")
def test_the_first_of_two_tools_with_one_name_counts() -> None:
    found = compiled([{**PLAIN, "description": "first"}, {**PLAIN, "description": "second"}])
    assert codes(found) == ["mcp.tool.duplicate"]
    assert [tool.description for tool in found.tools] == ["first"]


def test_a_server_that_said_nothing_is_one_warning() -> None:
    document = Document(
        path="/p", content=None, unreadable="it is down", hint="start it", place="mcp", server=SERVER.text
    )
    (problem,) = mcp.compile_document(document, Rules()).problems
    assert (problem.code, problem.severity, problem.hint) == (
        "mcp.server.unavailable",
        Severity.WARNING,
        "start it",
    )
    assert problem.message == 'the MCP server "far" has no tools: it is down'


def test_the_record_of_a_server_stands_for_all_its_tools() -> None:
    record = server_record(SERVER, "/p")
    assert (record.key, record.name) == ("mcp:far/", "far")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.lists(st.fixed_dictionaries({"name": _JSON}, optional={"inputSchema": _JSON, "annotations": _JSON}))
)
def test_whatever_a_server_lists_nothing_raises(tools: list[Any]) -> None:
    found = compiled(tools)
    assert found.tools or found.problems or not tools


# -- lists of servers ---------------------------------------------------------------------------------------


def listed(text: str) -> tuple[list[Server], list[str]]:
    content = text.encode()
    found = servers_in(Document(path="/p/.mcp.json", content=content, parsed=jsontext.read(content)))
    return found[0], [f"{problem.code}: {problem.message}" for problem in found[2]]


def test_the_entries_of_other_hosts_are_understood() -> None:
    servers = {
        "a": {"command": "npx", "args": ["-y", "x"], "env": {"K": "${V}"}, "autoApprove": ["*"]},
        "b": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${T}"}},
        "c": {"serverUrl": "https://example.org/mcp"},
        "d": {"type": "sse", "url": "https://example.org/sse"},
        "e": {"command": "x", "cwd": "sub", "disabled": False},
        "f": {"command": "x", "disabled": True},
        "g": {"httpUrl": "https://example.org/mcp", "headers": {"X": "Bearer ${env:T}"}},
        "h": {"type": "stdio", "command": "${env:HOME}/x", "args": ["${env:A}", "${B:-c}", 3]},
    }
    found, problems = listed(json.dumps({"mcpServers": servers}))
    assert problems == []
    assert [server.definition for server in found] == [
        {"command": "npx", "args": ["-y", "x"], "env": {"K": "${V}"}, "cwd": "/p/"},
        {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${T}"}},
        {"url": "https://example.org/mcp"},
        {"url": "https://example.org/sse", "type": "sse"},
        {"command": "x", "cwd": "/p/sub"},
        {"url": "https://example.org/mcp", "headers": {"X": "Bearer ${T}"}},
        {"command": "${HOME}/x", "args": ["${A}", "${B:-c}", 3], "cwd": "/p/"},
    ]
    assert all(server.env == () and not server.trusted for server in found)
    assert mcp.names_in(found[1].definition) == ("T",)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "either a command or a url"),
        ({"command": "a", "url": "b"}, "either a command or a url"),
        ({"command": ["a"]}, "command must not be array"),
        ({"command": "a", "args": "b"}, "args must not be string"),
        ({"command": "a", "env": ["B"]}, "env must be an object"),
        ({"url": "a", "headers": 1}, "headers must be an object"),
        ({"command": "a", "timeout": True}, "timeout must not be boolean"),
        ({"command": "a", "timeout": 0}, "timeout must be above 0 and at most 86400 seconds"),
        ({"command": "a", "timeout": -1.5}, "timeout must be above 0"),
        ({"url": "a", "timeout": 86_400_001}, "at most 86400 seconds"),
        ({"command": "a", "timeout": 10**400}, "at most 86400 seconds"),
        (3, "a server must be an object"),
        ({"command": "a", "env": {"K": "x${input:key}"}}, '"${input:key}" is asked of a person'),
    ],
)
def test_an_entry_that_cannot_be_meant_is_a_problem_and_its_neighbours_stay(entry: Any, words: str) -> None:
    found, (problem,) = listed(json.dumps({"mcpServers": {"bad": entry, "good": {"command": "x"}}}))
    assert [server.name for server in found] == ["good"]
    assert words in problem


# -- how long a server may take -----------------------------------------------------------------------------


def timed(path: str, entry: dict[str, Any], member: str = "mcpServers") -> tuple[object, list[str]]:
    """The timeout of one entry in seconds, and what is said about it."""
    content = json.dumps({member: {"s": {"command": "x", **entry}} if member else None}).encode()
    (server,), _, problems = servers_in(_mcp_lists.read(path, content), member)
    said = [f"{problem.severity.value} {problem.code} {problem.message}" for problem in problems]
    return server.definition.get("timeout"), said


@pytest.mark.parametrize(
    ("path", "entry", "seconds"),
    [
        ("/p/.mcp.json", {"timeout": 30_000}, 30),
        ("/h/.claude.json", {"timeout": 1000}, 1),
        ("/p/x/.claude-plugin/plugin.json", {"timeout": 1500}, 1.5),
        ("/p/any.json", {"timeout": 2000, "alwaysLoad": True}, 2),
        ("/h/.gemini/settings.json", {"timeout": 600_000}, 600),
        ("/h/.gemini/settings.json", {"timeout": 500}, 0.5),
        ("/p/gemini-extension.json", {"timeout": 30_000}, 30),
        ("/p/any.json", {"timeout": 900, "trust": False}, 0.9),
        ("/p/any.json", {"timeout": 15_000, "includeTools": ["a"]}, 15),
        ("/h/globalStorage/settings/cline_mcp_settings.json", {"timeout": 1800}, 1800),
        ("/p/.roo/mcp.json", {"timeout": 3600}, 3600),
    ],
)
def test_a_timeout_is_read_in_the_unit_of_the_lists_owner(
    path: str, entry: dict[str, Any], seconds: float
) -> None:
    assert timed(path, entry) == (seconds, [])


def test_a_timeout_of_codex_is_in_seconds() -> None:
    found, problems = codex("[mcp_servers.a]\ncommand = 'x'\ntool_timeout_sec = 3600\n")
    assert (found[0].definition["timeout"], problems) == (3600, [])


def test_a_timeout_that_claude_ignores_does_not_count_and_is_reported() -> None:
    seconds, said = timed("/p/.mcp.json", {"timeout": 500})
    assert seconds is None
    assert said == [
        "warning mcp.servers.timeout mcpServers.s.timeout: 500 milliseconds are too few for Claude, "
        "which ignores them: the default counts"
    ]


@pytest.mark.parametrize(
    ("given", "seconds", "words"),
    [
        (30, 30, "info mcp.servers.timeout mcpServers.s.timeout: 30 is read as seconds"),
        (999, 999, "info mcp.servers.timeout mcpServers.s.timeout: 999 is read as seconds"),
        (1000, 1, "warning mcp.servers.timeout mcpServers.s.timeout: 1000 is read as milliseconds"),
    ],
)
def test_where_the_owner_of_a_list_is_not_known_check_says_how_a_timeout_was_read(
    given: int, seconds: float, words: str
) -> None:
    for path in ("/p/.cursor/mcp.json", "/p/list.json"):
        assert timed(path, {"timeout": given}) == (
            seconds,
            [f"{words}: no program is known to own this list"],
        )
    assert timed("/p/.mcp.json", {"timeout": given}, "servers")[0] == seconds, "not Claude's word"


# -- the syntaxes of lists ----------------------------------------------------------------------------------


@given(_JSON)
def test_plain_json_has_nothing_to_leave_out(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2)):
        assert _mcp_lists.without_comments(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // "b": 2,\n}', {"a": 1}),
        ('{"a": [1, 2, /* , */ ] /* end */ , } // x', {"a": [1, 2]}),
        ('{"a": "// no /* comment */ ,]"}', {"a": "// no /* comment */ ,]"}),
        (r'{"a": "\\", "b": "\"//", }', {"a": "\\", "b": '"//'}),
        ("/**/[]", []),
    ],
)
def test_comments_and_trailing_commas_are_left_out(text: str, value: Any) -> None:
    plain = _mcp_lists.without_comments(text)
    assert (len(plain), plain.count("\n")) == (len(text), text.count("\n"))
    assert jsontext.read(plain.encode()).value == value


@pytest.mark.parametrize("text", ["[1,,]", "[,]", '{"a": 1 /* ', "{'a': 1}", '{"a": 1 / 2}', "[1, 2", '"a'])
def test_what_is_broken_besides_stays_broken(text: str) -> None:
    found = _mcp_lists.read("/p/mcp.json", text.encode())
    assert found.parsed is not None
    assert found.parsed.defect is not None


@pytest.mark.parametrize("piece", ["/*", '"', "//", ",/", '"\\', "/*/", ",,"])
def test_attack_a_long_text_of_half_comments_takes_no_long_time(piece: str) -> None:
    started = time.process_time()
    _mcp_lists.without_comments(piece * (1_000_000 // len(piece)))
    assert time.process_time() - started < 10


def test_a_repeated_key_is_found_behind_comments_too() -> None:
    text = '{"mcpServers": {"a": {"command": "good"}, /* x */ "a": {"command": "evil"}}}'
    found = _mcp_lists.read("/p/mcp.json", text.encode())
    servers, names, problems = servers_in(found)
    assert (servers, names) == ([], ["a"])
    assert [problem.code for problem in problems] == ["mcp.servers.duplicate"]


@pytest.mark.parametrize(
    ("root", "member"),
    [
        ({"mcpServers": {}}, "mcpServers"),
        ({"mcp_servers": {}}, "mcp_servers"),
        ({"context_servers": {}}, "context_servers"),
        ({"servers": {"a": {"command": "x"}}, "inputs": []}, "servers"),
        ({"servers": [{"url": "https://a.example"}], "openapi": "3.1.0", "paths": {}}, None),
        ({"a": {"command": "x"}, "b": {"url": "u"}}, ""),
        ({"a": {"command": "x"}, "b": {"note": "u"}}, None),
        ({"a": {"command": ["x"]}}, None),
        ({"allowlist": {"command": "x"}}, None),
        ({"tools": {"command": "x"}}, None),
        ({}, None),
        ([], None),
        ("x", None),
    ],
)
def test_where_a_document_lists_servers(root: Any, member: str | None) -> None:
    assert _mcp_lists.member_of(root) == member


def test_a_list_that_a_person_calls_one_needs_no_mark() -> None:
    assert _mcp_lists.member_of({"a": {"note": "x"}}, is_asked_for=True) == ""
    assert _mcp_lists.member_of({"a": "x"}, is_asked_for=True) is None


def codex(text: str) -> tuple[list[Server], list[str]]:
    found = servers_in(_mcp_lists.read("/p/config.toml", text.encode()), "mcp_servers")
    return found[0], [problem.message for problem in found[2]]


def test_the_entries_of_codex_are_understood() -> None:
    found, problems = codex(
        """
[mcp_servers.a]
command = "npx"
args = ["-y", "x"]
env = {A = "1"}
env_vars = ["TOKEN"]
cwd = "sub"
tool_timeout_sec = 30
startup_timeout_sec = 5
enabled_tools = ["one"]
disabled_tools = ["two"]

[mcp_servers.b]
url = "https://example.org/mcp"
bearer_token_env_var = "B_TOKEN"
http_headers = {X = "y"}
env_http_headers = {Z = "Z_VALUE"}
"""
    )
    assert problems == []
    assert [server.definition for server in found] == [
        {
            "command": "npx", "args": ["-y", "x"], "env": {"TOKEN": "${TOKEN}", "A": "1"}, "timeout": 30,
            "cwd": "/p/sub", "enabledTools": ["one"], "disabledTools": ["two"],
        },
        {
            "url": "https://example.org/mcp",
            "headers": {"X": "y", "Z": "${Z_VALUE}", "Authorization": "Bearer ${B_TOKEN}"},
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('command = "x"\nhttp_headers = {}', "http_headers does not belong to a server with a command"),
        ('url = "x"\nargs = []', "args does not belong to a server with a url"),
        ('url = "x"\nhttp_headers_helper = "y"', "http_headers_helper is a program"),
        ('command = "x"\nargs = ["${HOME}"]', '"${HOME}" is plain text'),
        ('command = "x"\nenv_vars = "A"', "env_vars must be a list of names"),
        ('command = "x"\nenabled_tools = "a"', "enabled_tools must be a list"),
        ('url = "x"\nbearer_token_env_var = 3', "bearer_token_env_var must be the name"),
        ("enabled = true", "either a command or a url"),
    ],
)
def test_an_entry_of_codex_that_cannot_be_meant_is_a_problem(entry: str, words: str) -> None:
    found, (problem,) = codex(f"[mcp_servers.bad]\n{entry}\n\n[mcp_servers.good]\ncommand = 'x'\n")
    assert [server.name for server in found] == ["good"]
    assert words in problem


def test_a_list_of_codex_that_is_no_toml_names_the_line_and_the_column() -> None:
    for text, place in (
        ("[mcp_servers.a]\ncommand = x\n", "line 2, column 11: Invalid value"),
        ("[mcp_servers.a]\nargs = [\n", "line 3, column 1: Invalid value"),
        ("[mcp_servers.a]\r\n\r\ncommand = x", "line 3, column 11: Invalid value"),
        (f"a = 1\nb = {'[' * 101}", "line 2, column 105: nested more than 100 levels deep"),
    ):
        parsed = _mcp_lists.read("/p/config.toml", text.encode()).parsed
        assert parsed is not None
        assert str(parsed.defect) == place


def test_a_mistake_in_an_entry_of_codex_names_the_line_of_the_entry() -> None:
    text = "model = 'x'\n\n[mcp_servers.good]\ncommand = 'x'\n\n[mcp_servers.bad]\ncommand = 5\n"
    problems = servers_in(_mcp_lists.read("/p/config.toml", text.encode()), "mcp_servers")[2]
    assert [problem.line for problem in problems] == [6]


@pytest.mark.battery("I09")
def test_names_that_come_out_alike_are_a_clash() -> None:
    servers = {"a b": {"command": "x"}, "a-b": {"command": "y"}}
    found, (problem,) = listed(json.dumps({"mcpServers": servers}))
    assert [server.definition["command"] for server in found] == ["x"]
    assert problem.startswith("mcp.servers.clash")


def test_a_key_that_stands_twice_makes_the_list_none() -> None:
    """Attack: a list that a reviewer reads otherwise than a loader does."""
    found, (problem,) = listed('{"mcpServers": {"a": {"command": "good"}, "a": {"command": "evil"}}}')
    assert found == []
    assert problem.startswith("mcp.servers.duplicate")


def test_entries_that_are_no_servers_keep_their_names() -> None:
    for text, names in (
        ('{"mcpServers": {"a": {"command": "x"}, "b c": 3, "d": {"disabled": true}}}', ["b-c", "d"]),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}, "b c": {}, "!": 1}}', ["a", "b-c"]),
    ):
        content = text.encode()
        found = servers_in(Document(path="/p/.mcp.json", content=content, parsed=jsontext.read(content)))
        assert found[1] == names
