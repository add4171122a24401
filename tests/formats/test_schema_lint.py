"""Probable mistakes in schemas: misspelt keywords, undescribed required names, another format's key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.program import Said
from tests.program import toolcrib as program
from toolcrib import formats, jsontext
from toolcrib.formats import _schema_lint
from toolcrib.formats._node import GUESSES_MAX, Reader
from toolcrib.formats._schema_lint import MISSPELT, UNDEFINED
from toolcrib.formats.mcp import Server
from toolcrib.model import Compiled, Document, OpenApiOptions, ProbeOutcome, Problem, Rules, Severity

RYE = {
    "tool_type": "http",
    "version": "1.0.0",
    "description": "d",
    "executor_id": "rye/core/primitives/http_client",
    "category": "x",
    "config": {"url": "https://example.org", "method": "GET"},
}


def document(path: str, value: object, **more: Any) -> Document:
    content = jsontext.plain(value)
    return Document(path=path, content=content, parsed=jsontext.read(content), scope="s", **more)


def in_format(format: str, tool: Mapping[str, Any], key: str = "") -> Compiled:
    """One tool of a format; its schema is ``tool["schema"]``, under the format's own key or the one given."""
    own = OWN[format]
    rest = {name: value for name, value in tool.items() if name != "schema"}
    entry = {"name": "t", "description": "d", **rest, key or own: tool["schema"]}
    match format:
        case "manifest":
            made = document("/p/tools.json", {"tools": [{**entry, "command": ["/bin/true"]}]})
        case "skill":
            run = {"tool": "t", "binary": "git", "subcommand": "log"}
            made = document(
                "/p/tools.json",
                {"tools": [entry], "allowlist": {"git": ["log"]}, "execution": [run]},
                explicit=True,
            )
        case "capability":
            head = {"group": "g", "version": "1", "description": "d", "selection": {"strategy": "always"}}
            made = document("/p/g_tools.json", {**head, "tools": [entry]})
        case "executable":
            made = document("/p/t-tool", entry, place="executable", probe=ProbeOutcome(exit_status=0))
        case "rye":
            item = {**RYE, **rest, key or own: tool["schema"]}
            made = document("/p/.ai/tools/x/t.json", item, place="rye", item="x/t.json")
        case "mcp":
            server = Server(name="s", definition={"command": "x"})
            made = document("/p/toolcrib.toml", {"tools": [entry]}, place="mcp", server=server.text)
        case _:
            body = {"content": {"application/json": {"schema": {"type": "object", "properties": {
                "inner": tool["schema"]}}}}}  # fmt: skip
            paths = {"/t": {"post": {"operationId": "t", "requestBody": body}}}
            servers = [{"url": "https://example.org"}]
            made = document(
                "/p/t.json",
                {"openapi": "3.1.0", "info": {}, "servers": servers, "paths": paths},
                openapi=OpenApiOptions(),
            )
    return formats.compile_document(made, Rules())[1]


OWN = {
    "manifest": "schema",
    "skill": "parameters",
    "capability": "input_schema",
    "executable": "parameters",
    "rye": "input_schema",
    "mcp": "inputSchema",
    "openapi": "",
}
"""The key under which each format keeps the schema of a tool's arguments."""
TYPED = {"type": "string", "description": "d"}


def lint(compiled: Compiled) -> list[Problem]:
    codes = (MISSPELT, UNDEFINED, "rye.schema.required-defined", "executable.params.required-consistent",
             "capability.tool.input-schema-object", "openapi.schema.keyword")  # fmt: skip
    return [problem for problem in compiled.problems if problem.code in codes]


def found(schema: object) -> list[tuple[str, str]]:
    """Each finding's place and message."""
    reader = Reader(Document(path="/p/x.json", content=None))
    looked = _schema_lint.look(schema, reader)
    return [(jsontext.pointer_text(each.pointer), each.what) for each in looked]


# -- misspelt keywords --------------------------------------------------------------------------------------

SLIPS = {
    "propertys": ({"a": TYPED}, "properties"),
    "properites": ({"a": TYPED}, "properties"),
    "property": ({"a": TYPED}, "properties"),
    "requried": (["a"], "required"),
    "require": (["a"], "required"),
    "descripton": ("d", "description"),
    "Description": ("d", "description"),
    "discription": ("d", "description"),
    "tpye": ("object", "type"),
    "types": ("object", "type"),
    "typ": ("object", "type"),
    "desc": ("d", "description"),
    "enmu": (["a"], "enum"),
    "defualt": ("a", "default"),
    "formatt": ("date", "format"),
    "patern": ("a", "pattern"),
    "itmes": (TYPED, "items"),
    "item": (TYPED, "items"),
    "min_length": (1, "minLength"),
    "maxLenght": (1, "maxLength"),
    "uniqeItems": (True, "uniqueItems"),
    "minimun": (0.5, "minimum"),
    "additional_properties": (False, "additionalProperties"),
    "additionalProperty": (False, "additionalProperties"),
    "anyof": ([TYPED], "anyOf"),
    "readonly": (True, "readOnly"),
}


@pytest.mark.parametrize(("slip", "value", "meant"), [(key, *rest) for key, rest in SLIPS.items()])
def test_a_misspelt_keyword_is_told_with_the_one_that_was_meant(slip: str, value: Any, meant: str) -> None:
    message = f'not a keyword of JSON Schema (did you mean "{meant}"?)'
    assert found({slip: value}) == [(f"/{slip}", message)]
    assert found({"properties": {"a": {"items": {slip: value}}}}) == [
        (f"/properties/a/items/{slip}", message)
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": dict.fromkeys(SLIPS, TYPED)},
        {"patternProperties": dict.fromkeys(SLIPS, TYPED)},
        {"$defs": dict.fromkeys(SLIPS, TYPED), "dependentRequired": {"tpye": ["itmes"]}},
        {"const": {"tpye": "a"}, "enum": [{"tpye": "a"}], "default": {"tpye": 1}, "examples": [{"tpye": 1}]},
        {"example": {"requried": ["a"]}, "x-tpye": "a", "x-hints": {"tpye": "a"}},
        {"required": list(SLIPS), "properties": {slip: {} for slip in SLIPS}},
        {"types": {"a": {}}, "formatt": {"a": 1}, "requried": "yes", "minimun": "1", "minLenght": True},
        {"type": "string", "types": "string", "typ": "a", "description": "d", "desc": "d"},
        {"description": "d", "descriptions": "d"},
        {"items": TYPED, "item": TYPED, "properties": {}, "property": {}, "enum": ["a"], "enums": ["a"]},
        {"cost": 5, "when": {}, "tile": "a", "name": "a", "label": "a", "options": [], "ref": "a"},
        {"order": 1, "typeof": "function", "errorMessage": "a", "enumDeprecated": [], "tsType": "a"},
        {"discriminator": {}, "xml": {}, "externalDocs": {}, "nullable": True, "id": "a", "$vocabulary": {}},
        {"optional": True, "hidden": True, "min": 1, "max": 2, "size": 3, "length": 4, "values": ["a"]},
        {"a" * 41: "x", "": {}, "_": {}, "-": [], "$": 1},
        True,
        ["propertys"],
        None,
    ],
)  # fmt: skip
def test_where_no_keyword_is_expected_nothing_is_told(schema: object) -> None:
    """Names, values, extensions, words of other readers, and words whose values no keyword would take."""
    assert found(schema) == []


def test_of_two_keywords_that_may_be_meant_both_are_named_and_none_is_put_in() -> None:
    reader = Reader(Document(path="/p/x.json", content=None))
    (finding,) = _schema_lint.look({"exclusiveMiximum": 1}, reader)
    assert '(did you mean "exclusiveMinimum" or "exclusiveMaximum"?)' in finding.what.replace(
        '"exclusiveMaximum" or "exclusiveMinimum"', '"exclusiveMinimum" or "exclusiveMaximum"'
    )
    assert finding.fix is None


@pytest.mark.parametrize(
    ("slip", "keyword", "value"),
    [
        ("propertys", "properties", {"a": TYPED}),
        ("descripton", "description", "d"),
        ("additional_properties", "additionalProperties", False),
        ("xclusiveMinimum", "exclusiveMinimum", 1),
        ("Type", "type", "string"),
    ],
)
def test_a_misspelt_keyword_beside_the_right_one_is_reported_and_not_renamed(
    slip: str, keyword: str, value: Any
) -> None:
    reader = Reader(Document(path="/p/x.json", content=None))
    (finding,) = _schema_lint.look({keyword: value, slip: value}, reader)
    assert (finding.pointer, finding.fix) == ((slip,), None)
    assert finding.what == f'not a keyword of JSON Schema (did you mean "{keyword}"?)'
    assert f'"{keyword}" is there too: move what is missing there, and remove this key' in finding.hint


def test_of_two_misspellings_of_one_keyword_neither_is_renamed() -> None:
    reader = Reader(Document(path="/p/x.json", content=None))
    schema = {"additionalproperties": False, "additional_properties": True, "tpye": "object"}
    findings = [*_schema_lint.look(schema, reader)]
    assert {each.pointer[-1]: each.fix is not None for each in findings} == {
        "additionalproperties": False,
        "additional_properties": False,
        "tpye": True,
    }


# -- names that are required --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"user": TYPED}, "required": ["usre"]}, "/required/0"),
        ({"type": "object", "required": ["a"]}, "/required/0"),
        ({"properties": {"a": {"properties": {}, "required": ["b"]}}}, "/properties/a/required/0"),
        ({"items": {"properties": {}, "required": ["b"]}}, "/items/required/0"),
        ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": False}, "/required/0"),
        ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": True}, "/required/0"),
        ({"$defs": {"a": {"properties": {}, "required": ["b"]}}, "items": {"$ref": "#/$defs/a"}},
         "/$defs/a/required/0"),
        ({"allOf": [{"properties": {"x": {"properties": {}, "required": ["y"]}}}]},
         "/allOf/0/properties/x/required/0"),
    ],
)  # fmt: skip
def test_a_required_name_without_a_property_is_told(schema: object, place: str) -> None:
    ((where, what),) = found(schema)
    assert where == place
    assert "is required and not among the properties" in what


def test_the_property_that_was_meant_is_named() -> None:
    ((_, what),) = found({"properties": {"user": {}}, "required": ["usre"]})
    assert what == '"usre" is required and not among the properties (did you mean "user"?)'


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "required": ["a"]},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {"a": {}}, "required": ["b"], "allOf": [{"properties": {"b": {}}}]},
        {"properties": {}, "required": ["b"], "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {"properties": {"a": {}}, "if": {"required": ["b"]}, "then": {"properties": {}, "required": ["c"]}},
        {"required": ["b"], "patternProperties": {"^b": {}}, "properties": {}},
        {"type": "object", "required": ["b"], "additionalProperties": {"type": "string"}},
        {"dependentSchemas": {"a": {"properties": {}, "required": ["b"]}}},
        {"not": {"type": "object", "properties": {}, "required": ["b"]}},
        {"required": ["b"]},
        {"type": "array", "required": ["b"]},
        {"type": ["object", "null"], "required": ["b"]},
        {"$defs": {"base": {"type": "object", "required": ["b"]}},
         "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {}}}]},
        {"$defs": {"a/b": {"type": "object", "required": ["b"]}},
         "anyOf": [{"$ref": "#/$defs/a~1b"}], "properties": {"b": {}}},
        {"$defs": {"base": {"type": "object", "required": ["b"]}},
         "items": {"$ref": "#/$defs/base", "properties": {"b": {}}}},
        {"properties": [], "required": ["a"]},
        {"properties": {}, "required": "a"},
        {"properties": {}, "required": [1, None, {}]},
        {"required": True, "properties": {}},
    ],
)  # fmt: skip
def test_what_another_part_may_describe_is_not_told(schema: object) -> None:
    assert found(schema) == []


# -- in all formats -----------------------------------------------------------------------------------------

SLOPPY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "descripton": "The city", "description_": "d"},
        "size": {"type": "object", "description": "d", "propertys": {"x": TYPED}},
    },
}


@pytest.mark.parametrize("format", OWN)
def test_a_misspelt_keyword_is_told_in_every_format(format: str) -> None:
    problems = [each for each in in_format(format, {"schema": SLOPPY}).problems if each.code == MISSPELT]
    told = [
        each for each in problems if "propertys" in each.message or (each.pointer or ("",))[-1] == "propertys"
    ]
    assert len(problems) == 3
    (problem,) = told
    assert problem.severity is Severity.WARNING
    assert '(did you mean "properties"?)' in problem.message
    assert problem.hint == 'nothing reads it as it is; write "properties"'
    if format == "mcp":
        assert problem.message.startswith('the MCP server "s": "t": inputSchema.properties.size.propertys: ')
        assert problem.fix is None, "the list of a server is no file of ours"
    else:
        assert (problem.pointer or ())[-3:] == ("properties", "size", "propertys")
    assert (problem.fix is not None) == (format in ("manifest", "skill", "capability", "rye"))


@pytest.mark.parametrize("format", OWN)
def test_a_required_name_without_a_property_is_told_once_in_every_format(format: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "description": "d", "properties": {"b": TYPED}, "required": ["c"]}
        },
    }
    (problem,) = lint(in_format(format, {"schema": schema}))
    assert "c" in problem.message
    (problem,) = lint(in_format(format, {"schema": {**schema["properties"]["a"], "required": ["d"]}}))  # type: ignore[index]
    assert "d" in problem.message


WORDS = ("schema", "parameters", "inputSchema", "input_schema")


@pytest.mark.parametrize(
    ("format", "word"),
    [(format, word) for format, own in OWN.items() if own for word in WORDS if word != own],
)
def test_the_schema_under_another_formats_key_is_told_with_the_own_one(format: str, word: str) -> None:
    if (format, word) == ("rye", "parameters"):  # which is a key of its own: a list of parameters
        return
    own = OWN[format]
    compiled = in_format(format, {"schema": {"type": "object", "properties": {"a": TYPED}}}, key=word)
    (problem,) = (each for each in compiled.problems if "unknown key" in each.message)
    assert problem.hint == (
        f'this format expects the schema of the arguments under "{own}"; nothing reads "{word}"'
    )
    if format not in ("executable", "mcp"):
        assert problem.fix is not None
        assert problem.fix.new == f'"{own}"'
    else:
        assert problem.fix is None


@pytest.mark.parametrize("format", [format for format, own in OWN.items() if own])
def test_a_second_schema_or_no_schema_at_all_is_not_put_in_place_of_the_own_one(format: str) -> None:
    schema = {"type": "object", "properties": {"a": TYPED}}
    other = "args_schema"
    for more in ({"schema": schema, other: schema}, {"schema": schema, other: "text"}):
        told = in_format(format, {**more}).problems
        assert not any("expects the schema" in (each.hint or "") for each in told)
    both = in_format(format, {"schema": schema, other: schema}, key="jsonSchema").problems
    assert all(each.fix is None for each in both if "expects the schema" in (each.hint or ""))


def test_a_parameter_of_openapi_without_its_schema_is_told() -> None:
    """The spelling of Swagger 2, which OpenAPI 3 does not read."""
    value = {
        "openapi": "3.0.0",
        "info": {},
        "servers": [{"url": "https://example.org"}],
        "paths": {
            "/t": {
                "get": {
                    "operationId": "t",
                    "parameters": [
                        {"name": "a", "in": "query", "type": "integer"},
                        {"name": "b", "in": "query", "parameters": {"type": "integer"}},
                        {"name": "c", "in": "query", "schema": {"type": "integer"}, "type": "ignored"},
                        {"name": "d", "in": "query"},
                    ],
                }
            }
        },
    }
    compiled = formats.compile_document(document("/p/t.json", value, openapi=OpenApiOptions()), Rules())[1]
    told = [each for each in compiled.problems if each.code == "openapi.parameter.schema"]
    assert [each.pointer for each in told] == [
        ("paths", "/t", "get", "parameters", 0, "type"),
        ("paths", "/t", "get", "parameters", 1, "parameters"),
    ]
    assert told[0].message == '"a": "type" is not read here; the parameter is taken as text'
    assert told[0].hint == 'OpenAPI 3 expects `"schema": {"type": …}` in a parameter'


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_parts_of_an_openapi_schema_may_require_what_another_part_describes(version: str) -> None:
    base = {"type": "object", "properties": {"kind": TYPED}, "required": ["kind", "size"]}
    pet = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"size": {"type": "integer"}}}]}
    paths = {
        "/t": {
            "put": {
                "operationId": "t",
                "requestBody": {"content": {"application/json": {"schema": {"properties": {
                    "pet": {"$ref": "#/components/schemas/Pet"},
                    "other": {"$ref": "#/components/schemas/Other"},
                }}}}},
            }
        }
    }  # fmt: skip
    other = {"type": "object", "properties": {"a": TYPED}, "required": ["b", "c"]}
    value = {
        "openapi": version,
        "info": {},
        "servers": [{"url": "https://example.org"}],
        "paths": paths,
        "components": {"schemas": {"Base": base, "Pet": pet, "Other": other}},
    }
    compiled = formats.compile_document(document("/p/t.json", value, openapi=OpenApiOptions()), Rules())[1]
    (problem,) = (each for each in compiled.problems if each.code == UNDEFINED)
    assert problem.pointer == ("components", "schemas", "Other", "required")
    assert problem.message == '"b", "c" are required and not among the properties'


# -- check and check --fix ----------------------------------------------------------------------------------


def written(folder: Path, tools: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / "tools.json"
    path.write_text(json.dumps({"tools": tools}, indent=1), encoding="utf-8")
    return path


def test_check_tells_the_line_and_fix_puts_in_what_was_meant(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "propertys": {"city": {"tpye": "string", "description": "d"}},
        "required": ["city", "contry"],
    }
    path = written(
        tmp_path, [{"name": "t", "description": "d", "command": ["/bin/true"], "inputSchema": schema}]
    )

    def check(*arguments: str) -> Said:
        return program("check", path, *arguments, cwd=tmp_path)

    def told() -> list[tuple[int, str]]:
        problems = check("--json").json["problems"]
        return [
            (each["line"], each["code"]) for each in problems if each["code"] != "manifest.command.absolute"
        ]

    assert told() == [(9, "manifest.root.unknown-keys")]
    assert check("--fix").out.splitlines()[-1].endswith("fixed 3 problems")
    required = [number for number, line in enumerate(path.read_text().splitlines(), 1) if "contry" in line]
    assert told() == [(required[0], UNDEFINED)], "which of the two names is wrong, only a person knows"
    assert check("--fix").out.splitlines()[-1].endswith("fixed 0 problems")
    (tool,) = json.loads(path.read_text(encoding="utf-8"))["tools"]
    assert tool["schema"]["properties"]["city"] == {"type": "string", "description": "d"}


def test_fix_never_writes_a_key_twice(tmp_path: Path) -> None:
    """Two misspellings of one keyword, two other formats' keys, two spellings of one key of the manifest."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "d"}},
        "additionalproperties": False,
        "additional_properties": True,
    }
    tool: dict[str, Any] = {"name": "t", "description": "d", "command": ["/bin/true"]}
    tools: list[dict[str, Any]] = [
        {**tool, "schema": schema},
        {**tool, "name": "u", "inputSchema": {"type": "object"}, "parameters": {"type": "object"}},
        {**tool, "name": "v", "TIMEOUTSEC": 1, "timeoutsec": 2},
    ]
    path = written(tmp_path, tools)
    before = path.read_bytes()
    said = program("check", path, "--fix", cwd=tmp_path)
    assert said.out.splitlines()[-1].endswith("fixed 0 problems")
    assert path.read_bytes() == before
    told = program("check", path, "--json", cwd=tmp_path).json["problems"]
    assert sum(each["code"] == MISSPELT for each in told) == 2


def test_fix_renames_a_key_of_a_rye_item_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / ".ai" / "tools" / "x" / "t.yaml"
    path.parent.mkdir(parents=True)
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in RYE.items())
    text += "tool_id: t\ninput_schema:\n  type: object\n  propertys:\n    a: {type: string}\n"
    path.write_text(text, encoding="utf-8")
    (problem,) = (
        each
        for each in program("check", tmp_path, "--json", cwd=tmp_path).json["problems"]
        if each["code"] == MISSPELT
    )
    assert problem["line"] == text.splitlines().index("  propertys:") + 1
    program("check", tmp_path, "--fix", cwd=tmp_path)
    assert path.read_text(encoding="utf-8") == text.replace("propertys", "properties")


# -- promises -----------------------------------------------------------------------------------------------

_keys = st.sampled_from([*_schema_lint.KEYWORDS, *SLIPS, "a", "b"]) | st.text(max_size=6)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=6),
    max_leaves=40,
)


@given(_values)
def test_no_schema_makes_it_raise_and_each_finding_is_at_a_place_of_it(schema: Any) -> None:
    reader = Reader(Document(path="/p/x.json", content=None))
    for finding in _schema_lint.look(schema, reader):
        value = schema
        for step in finding.pointer:
            value = value[step]
        assert finding.hint


def test_attack_a_schema_of_unknown_words_that_are_compared_with_every_keyword() -> None:
    reader = Reader(Document(path="/p/x.json", content=None))
    words: dict[str, Any] = {f"propert{number}": {} for number in range(3 * GUESSES_MAX)}
    list(_schema_lint.look(words, reader))
    assert not reader.guesses.more()
    assert list(_schema_lint.look({"propertys": {}}, reader)) == []
