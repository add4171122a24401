"""What the requirements say about declarations for OpenAI; more stands in tests/conformance/dialects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import shared
from tests.strategies import make_tool
from toolcrib.dialects import DIALECTS
from toolcrib.model import (
    DeclareOptions,
    JsonOnStdin,
    Needs,
    Notes,
    Reply,
    RunProcess,
    Schema,
    SchemaForm,
    Tool,
    ToolMode,
)

CHAT = DIALECTS["openai"]
PLAIN = DeclareOptions()
STRICT = DeclareOptions(mode=ToolMode.STRICT)
RECORDED = DeclareOptions(mode=ToolMode.RECORDED)


def verbatim(name: str, schema: dict[str, Any] | None = None, **more: Any) -> Tool:
    """A tool of a format that promises the author's schema unchanged."""
    return make_tool(name, schema, schema_form=SchemaForm.VERBATIM, **more)


def function(tool: Tool, options: DeclareOptions = PLAIN) -> Any:
    [declaration] = CHAT.declare([tool], options).payload
    assert declaration["type"] == "function"
    return declaration["function"]


GET_TIME = {
    "type": "object",
    "properties": {
        "timezone": {"type": "string", "description": "IANA timezone, e.g. Europe/Helsinki"},
        "tz": {"type": "string", "description": "Alias of timezone"},
    },
    "required": ["timezone"],
    "additionalProperties": False,
}
FILE_EDIT = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string"},
        "old_string": {"type": "string"},
        "new_string": {"type": "string"},
        "replace_all": {"type": "boolean"},
    },
    "required": ["file_path", "old_string", "new_string"],
}


@pytest.mark.requirement("skill.tools.description-optional")
def test_a_skill_tool_without_description_is_declared_with_an_empty_one() -> None:
    assert function(verbatim("t", {"type": "object"})) == {
        "name": "t",
        "description": "",
        "parameters": {"type": "object"},
    }


@pytest.mark.requirement("skill.tools.parameters-verbatim")
@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic", "mcp"])
def test_keywords_that_nobody_checks_reach_the_model(dialect: str) -> None:
    schema = {"type": "object", "x-ui": "wide"}
    [declaration] = DIALECTS[dialect].declare([verbatim("t", schema)], PLAIN).payload
    assert '{"type": "object", "x-ui": "wide"}' in json.dumps(declaration)


@pytest.mark.requirement("skill.tools.parameters-absent", "capability.tool.input-schema-default")
def test_an_empty_object_schema_is_declared_as_it_is() -> None:
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    assert function(verbatim("daily", empty))["parameters"] == empty


@pytest.mark.requirement("skill.serve.declaration")
def test_a_skill_tool_has_the_chat_function_shape() -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tool = verbatim("notesmd_cli_search", schema, description="Search notes by name.")
    assert CHAT.declare([tool], PLAIN).payload == [
        {
            "type": "function",
            "function": {
                "name": "notesmd_cli_search",
                "description": "Search notes by name.",
                "parameters": schema,
            },
        }
    ]


@pytest.mark.requirement("manifest.description.optional", "manifest.schema.optional")
def test_a_manifest_tool_without_description_and_schema_has_only_a_name() -> None:
    assert CHAT.declare([verbatim("a")], PLAIN).payload == [{"type": "function", "function": {"name": "a"}}]
    for dialect in ("openai-responses", "anthropic", "ollama", "mcp"):
        [declaration] = DIALECTS[dialect].declare([verbatim("a")], PLAIN).payload
        assert '{"type": "object", "properties": {}}' in json.dumps(declaration)


@pytest.mark.requirement("manifest.schema.verbatim", "manifest.declare.openai")
def test_the_get_time_example_is_exported_unchanged_with_its_key_order() -> None:
    tool = verbatim("get_time", GET_TIME, description="Get current time for an IANA timezone")
    assert json.dumps(function(tool)) == json.dumps(
        {"name": "get_time", "description": "Get current time for an IANA timezone", "parameters": GET_TIME}
    )


@pytest.mark.requirement("manifest.declare.no-leak", "rye.yaml.documentation")
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("options", [PLAIN, STRICT, RECORDED])
def test_nothing_about_how_a_tool_runs_is_ever_sent(dialect: str, options: DeclareOptions) -> None:
    secret = "SECRET"
    tool = Tool(
        key=f"manifest:{secret}/get_time",
        name="get_time",
        scope=secret,
        origin=verbatim("x").origin,
        invocation=RunProcess(
            program=f"/{secret}",
            fixed=(secret,),
            encoding=JsonOnStdin(verbatim=True),
            env=((secret, secret),),
        ),
        description="Get current time",
        input_schema=Schema.of(GET_TIME),
        needs=Needs(env=(secret,), timeout_s=4321.0),
        reply=Reply.JSON_LINE,
        aliases=(secret,),
        version=secret,
        notes=Notes(category=secret, documentation={"url": secret, "examples": [{"timezone": secret}]}),
    )
    sent = json.dumps(DIALECTS[dialect].declare([tool], options).payload)
    assert secret not in sent
    assert "4321" not in sent


@pytest.mark.requirement("executable.declare.openai-format")
@pytest.mark.parametrize("options", [PLAIN, STRICT, RECORDED])
def test_format_is_removed_at_every_depth(options: DeclareOptions) -> None:
    url = {"type": "string", "format": "uri"}
    schema = {
        "type": "object",
        "properties": {
            "url": url,
            "list": {"type": "array", "items": url},
            "format": {"type": "object", "properties": {"inner": url}, "required": ["inner"]},
        },
        "required": ["url", "list", "format"],
    }
    parameters = function(make_tool("web_fetch", schema), options)["parameters"]
    assert parameters["properties"]["url"] == {"type": "string"}
    assert parameters["properties"]["list"]["items"] == {"type": "string"}
    assert parameters["properties"]["format"]["properties"] == {"inner": {"type": "string"}}


@pytest.mark.requirement("executable.declare.openai-format")
@pytest.mark.parametrize("dialect", ["openai", "openai-responses"])
@pytest.mark.parametrize("options", [PLAIN, STRICT, RECORDED])
@pytest.mark.parametrize(
    "around",
    [
        lambda url: {"type": "object", "additionalProperties": url},
        lambda url: {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": url}}},
        lambda url: {"type": "object", "patternProperties": {"^a": url}},
        lambda url: {"type": "object", "propertyNames": url},
        lambda url: {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": url}}}},
        lambda url: {"type": "array", "items": {"type": "array", "items": url}},
        lambda url: {"type": "array", "items": {"type": "string"}, "contains": url},
        lambda url: {"type": "array", "items": {"type": "string"}, "prefixItems": [{"type": "string"}, url]},
        lambda url: {"type": "string", "not": url},
    ],
)
def test_format_is_removed_from_every_place_that_holds_a_schema(
    around: Callable[[Any], Any], options: DeclareOptions, dialect: str
) -> None:
    def declared(url: dict[str, Any]) -> Any:
        schema = {"type": "object", "properties": {"p": around(url)}, "required": ["p"]}
        [declaration] = DIALECTS[dialect].declare([make_tool("t", schema)], options).payload
        return declaration.get("function", declaration)["parameters"]

    found = declared({"type": "string", "format": "uri"})
    assert '"format"' not in json.dumps(found)
    assert found == declared({"type": "string"}), "and nothing else is"


@pytest.mark.requirement("executable.declare.openai-strict", "executable.declare.added-properties")
def test_strict_requires_all_properties_in_their_order_and_leaves_the_record_alone() -> None:
    tool = make_tool("file_edit", FILE_EDIT, description="Edit a file.")
    declared = function(tool, STRICT)
    assert declared["strict"] is True
    assert declared["parameters"]["required"] == ["file_path", "old_string", "new_string", "replace_all"]
    assert declared["parameters"]["additionalProperties"] is False
    assert tool.input_schema is not None
    assert tool.input_schema.document == FILE_EDIT


@pytest.mark.requirement("executable.declare.openai-nested")
def test_strict_goes_to_every_depth_and_makes_optional_properties_nullable() -> None:
    nested = {"type": "object", "properties": {"since": {"type": "string"}}}
    properties = {**FILE_EDIT["properties"], "filter": nested}  # type: ignore[dict-item]
    declared = function(make_tool("file_edit", {**FILE_EDIT, "properties": properties}), STRICT)["parameters"]
    assert declared["properties"]["replace_all"] == {"type": ["boolean", "null"]}
    assert declared["properties"]["filter"] == {
        "type": ["object", "null"],
        "properties": {"since": {"type": ["string", "null"]}},
        "required": ["since"],
        "additionalProperties": False,
    }


@pytest.mark.requirement(
    "executable.declare.openai-nested", "executable.declare.anthropic", "executable.declare.gemini"
)
def test_the_recorded_mode_reproduces_the_recorded_translations() -> None:
    path = shared("corpus/executable/provider/file_edit.translations.json")
    recorded = json.loads(path.read_text(encoding="utf-8"))
    stated = recorded["canonical"]
    tool = make_tool(stated["name"], stated["parameters"], description=stated["description"])
    assert json.dumps(CHAT.declare([tool], RECORDED).payload) == json.dumps([recorded["openai"]])
    assert json.dumps(DIALECTS["anthropic"].declare([tool], RECORDED).payload) == json.dumps(
        [recorded["anthropic"]]
    )
    assert json.dumps(DIALECTS["gemini"].declare([tool], RECORDED).payload) == json.dumps(
        recorded["google"]["tools"]
    )


@pytest.mark.requirement("executable.declare.added-properties")
def test_the_recorded_mode_closes_the_root_and_leaves_the_record_alone() -> None:
    tool = make_tool("file_edit", FILE_EDIT, description="Edit a file.")
    assert function(tool, RECORDED)["parameters"]["additionalProperties"] is False
    assert tool.input_schema is not None
    assert "additionalProperties" not in tool.input_schema.document


@pytest.mark.requirement("executable.declare.anthropic", "executable.declare.added-properties")
def test_anthropic_gets_the_schema_of_an_executable_unchanged() -> None:
    tool = make_tool("file_edit", FILE_EDIT, description="Edit a file.")
    assert DIALECTS["anthropic"].declare([tool], PLAIN).payload == [
        {"name": "file_edit", "description": "Edit a file.", "input_schema": FILE_EDIT}
    ]


@pytest.mark.requirement("executable.declare.gemini")
def test_gemini_gets_one_list_without_additional_properties() -> None:
    tools = [
        make_tool("file_edit", {**FILE_EDIT, "additionalProperties": False}),
        make_tool("glob", FILE_EDIT),
    ]
    assert DIALECTS["gemini"].declare(tools, PLAIN).payload == [
        {
            "functionDeclarations": [
                {"name": "file_edit", "parameters": FILE_EDIT},
                {"name": "glob", "parameters": FILE_EDIT},
            ]
        }
    ]


@pytest.mark.requirement("rye.schema.precedence", "rye.schema.params-list")
def test_the_parameters_of_a_rye_tool_reach_every_provider() -> None:
    schema = {
        "type": "object",
        "properties": {
            "libraryId": {"type": "string"},
            "query": {"type": "string"},
            "replicas": {"type": "integer", "default": 3, "minimum": 1, "maximum": 10},
        },
        "required": ["libraryId", "query"],
    }
    for dialect in DIALECTS.values():
        sent = json.dumps(dialect.declare([make_tool("query-docs", schema)], PLAIN).payload)
        assert all(name in sent for name in ("libraryId", "query", "replicas", "required"))


def test_more_tools_than_openai_takes_are_left_out_with_the_reason() -> None:
    tools = [make_tool(f"t{number}") for number in range(130)]
    declared = CHAT.declare(tools, PLAIN)
    assert len(declared.payload) == 128
    assert [item.tool for item in declared.left_out] == ["manifest:s/t128", "manifest:s/t129"]
    assert declared.left_out[0].because == "OpenAI Chat Completions takes at most 128 tools"


def test_the_search_tool_counts_among_the_tools() -> None:
    tools = [make_tool(f"t{number}") for number in range(130)]
    declared = DIALECTS["openai-responses"].declare(tools, DeclareOptions(deferred=frozenset({tools[0].key})))
    assert len(declared.payload) == 128
    assert len(declared.left_out) == 3


def test_a_long_description_is_cut_for_chat_and_whole_for_responses() -> None:
    tool = make_tool("t", description="d" * 1043)
    declared = CHAT.declare([tool], PLAIN)
    assert declared.payload[0]["function"]["description"] == "d" * 1023 + "…"
    assert [(loss.keyword, loss.what) for loss in declared.losses] == [
        ("description", "cut to 1024 characters")
    ]
    assert DIALECTS["openai-responses"].declare([tool], PLAIN).payload[0]["description"] == "d" * 1043


def test_a_tool_that_is_left_out_has_no_losses() -> None:
    declared = CHAT.declare([make_tool("t" * 70, {"type": "array"})], STRICT)
    assert (declared.payload, declared.losses, len(declared.left_out)) == ([], (), 1)


def test_a_tool_named_twice_is_declared_once() -> None:
    tool = make_tool("t")
    assert len(CHAT.declare([tool, tool], PLAIN).payload) == 1


def test_arguments_that_no_json_text_can_hold_are_a_defect() -> None:
    """Attack: a decoded message with lone surrogates, or nested without end."""
    endless: list[Any] = []
    for _ in range(2000):
        endless = [endless]
    for arguments in ({"x": "\ud800"}, {"x": endless}, '{"x": "\ud800"}', '{"x": "\\ud800"}', "[" * 200):
        message: Any = {"tool_calls": [{"id": "c", "function": {"name": "t", "arguments": arguments}}]}
        [call] = CHAT.read_calls(message, CHAT.declare([make_tool("t")], PLAIN).names)
        assert (call.arguments, call.declared) == (None, True)
        assert call.defect is not None
        assert call.defect.startswith("the arguments are not JSON")
