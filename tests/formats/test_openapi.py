"""OpenAPI documents: large ones whole, hostile ones bounded, filters, secrets, and what the conformance cases
do not say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import toolcrib
from tests.apis import documents
from tests.strategies import json_objects, json_values, texts
from toolcrib import config, formats, jsontext, schema
from toolcrib.catalog import cache, loading
from toolcrib.catalog.sources import Source
from toolcrib.dialects import DIALECTS
from toolcrib.model import (
    CallHttp,
    Compiled,
    DeclareOptions,
    Document,
    OpenApiOptions,
    Place,
    Rules,
    Severity,
    Tool,
)

SERVER = [{"url": "https://a.example"}]


def compiled(value: Any, path: str = "/p/x.json", **options: Any) -> Compiled:
    content = json.dumps(value).encode()
    parsed = jsontext.read(content, values_max=1_000_000)
    found = Document(path=path, content=content, parsed=parsed, openapi=OpenApiOptions(**options))
    name, outcome = formats.compile_document(found, Rules())
    assert name == "openapi"
    return outcome


def api(paths: Any, version: str = "3.0.3", **more: Any) -> dict[str, Any]:
    return {"openapi": version, "servers": SERVER, "paths": paths, **more}


def one(operation: Any, *, path: str = "/a", method: str = "post", **more: Any) -> Tool:
    (tool,) = compiled(api({path: {method: operation}}, **more)).tools
    return tool


def argument(raw: Any, version: str = "3.0.3", **schemas: Any) -> Any:
    """The schema of one member of a body."""
    content = {"application/json": {"schema": {"type": "object", "properties": {"x": raw}}}}
    tool = one({"requestBody": {"content": content}}, version=version, components={"schemas": schemas})
    assert tool.input_schema is not None
    return tool.input_schema.document["properties"]["x"]


def codes(outcome: Compiled) -> list[str]:
    return [problem.code for problem in outcome.problems]


def call_of(tool: Tool) -> CallHttp:
    assert isinstance(tool.invocation, CallHttp)
    return tool.invocation


# -- large documents ----------------------------------------------------------------------------------------

LARGE = [(documents.code_host, 600, documents.HOST_LOSSES), (documents.payments, 200, {})]


@pytest.mark.parametrize(("make", "least", "losses"), LARGE)
def test_every_operation_of_a_large_document_is_a_valid_tool_or_a_named_loss(
    make: Callable[[str], Any], least: int, losses: dict[str, str]
) -> None:
    document = make("https://api.example")
    operations = {
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    outcome = compiled(document, secret="TOKEN")
    made = {}
    for tool in outcome.tools:
        assert tool.origin.pointer is not None
        _, path, method = tool.origin.pointer
        made[f"{str(method).upper()} {path}"] = tool
        for found in (tool.input_schema, tool.output_schema):
            assert found is None or schema.flaws(found) == ()
    lost = {
        problem.message.partition(": ")[0]: problem.code
        for problem in outcome.problems
        if problem.severity is Severity.ERROR
    }
    assert len(made) == len(outcome.tools) >= least
    assert lost == losses
    assert made.keys() | lost.keys() == operations
    assert not made.keys() & lost.keys()
    assert all(problem.pointer for problem in outcome.problems if problem.severity is Severity.ERROR)
    assert len({tool.key for tool in outcome.tools}) == len(outcome.tools)


@pytest.mark.parametrize(("make", "least", "losses"), LARGE)
def test_json_and_yaml_give_the_same_tools_through_the_catalog(
    make: Callable[[str], Any], least: int, losses: dict[str, str], tmp_path: Path
) -> None:
    document = make("https://api.example")
    (tmp_path / "api.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "api.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    machine = loading.Machine(prober=lambda paths: [], which=lambda name: None)
    found = []
    for name in ("api.json", "api.yaml"):
        wanted = [config.named_source(name, str(tmp_path))]
        report = loading.load(wanted, Rules(), machine)
        assert not any(problem.code.startswith("schema.") for problem in report.problems)
        found.append([(tool.key, tool.input_schema, tool.invocation) for tool in report.catalog.tools])
    assert found[0] == found[1]
    assert len(found[0]) >= least


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_declares_the_tools_of_a_large_document(name: str) -> None:
    tools = compiled(documents.code_host("https://api.example")).tools
    for start in range(0, len(tools), 100):  # no provider takes all of them at once
        some = tools[start : start + 100]
        declared = DIALECTS[name].declare(some, DeclareOptions())
        assert declared.left_out == ()
        assert set(declared.names.keys.values()) == {tool.key for tool in some}


def test_a_record_comes_back_from_the_cache_as_it_was(tmp_path: Path) -> None:
    tools = compiled(documents.payments("https://api.example"), secret="TOKEN").tools
    for tool in tools[:20]:
        assert cache.decode(Tool, cache.encode(tool)) == tool
    (tmp_path / "api.json").write_text(json.dumps(documents.payments("https://a.example")), encoding="utf-8")
    machine = loading.Machine(prober=lambda paths: [], which=lambda name: None)
    kept = cache.Cache(str(tmp_path / "state"))
    said = []
    for _ in range(2):
        report = loading.load([config.named_source("api.json", str(tmp_path))], Rules(), machine, keep=kept)
        said.append((report.warm, tuple(report.catalog.tools), report.problems))
        report.keep()
    assert [warm for warm, _, _ in said] == [False, True]
    assert said[0][1:] == said[1][1:]


def test_other_options_are_another_catalog(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(
        json.dumps(api({"/a": {"get": {"tags": ["x"]}}, "/b": {"get": {"tags": ["y"]}}})), encoding="utf-8"
    )
    machine = loading.Machine(prober=lambda paths: [], which=lambda name: None)
    kept = cache.Cache(str(tmp_path / "state"))
    names = []
    for options in (None, OpenApiOptions(tags=("x",)), OpenApiOptions(paths=("/b",), name="n")):
        source = Source(path=str(tmp_path / "api.json"), format="openapi", openapi=options)
        report = loading.load([source], Rules(), machine, keep=kept)
        report.keep()
        names.append([tool.key for tool in report.catalog.tools])
    assert names == [["openapi:api/get_a", "openapi:api/get_b"], ["openapi:api/get_a"], ["openapi:n/get_b"]]


def test_a_crib_opens_a_document_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "pets.yaml").write_text(yaml.safe_dump(api({"/a": {"get": {}}})), encoding="utf-8")
    settings = config.Config(state=str(tmp_path / "state"))
    with toolcrib.open(str(tmp_path / "pets.yaml"), config=settings) as crib:
        assert [tool.key for tool in crib.tools] == ["openapi:pets/get_a"]
        assert len(crib.declare("anthropic").payload) == 1


# -- filters ------------------------------------------------------------------------------------------------

FILTERED = api(
    {
        "/repos/{id}": {"parameters": [], "get": {"tags": ["repos"]}, "delete": {"tags": ["repos", "admin"]}},
        "/users": {"get": {"tags": ["users"]}, "post": {}},
    }
)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["get_repos_by_id", "delete_repos_by_id", "get_users", "post_users"]),
        ({"tags": ("admin", "users")}, ["delete_repos_by_id", "get_users"]),
        ({"paths": ("/repos/*",)}, ["get_repos_by_id", "delete_repos_by_id"]),
        ({"paths": ("!/repos/*",)}, ["get_users", "post_users"]),
        ({"paths": ("/*", "!/users")}, ["get_repos_by_id", "delete_repos_by_id"]),
        ({"tags": ("users",), "paths": ("/u*",)}, ["get_users"]),
    ],
)
def test_operations_are_chosen_by_tag_and_path(options: Any, names: list[str]) -> None:
    assert [tool.name for tool in compiled(FILTERED, **options).tools] == names


def test_a_filter_that_leaves_nothing_says_so() -> None:
    outcome = compiled(FILTERED, tags=("usres",))
    assert outcome.tools == ()
    assert [problem.message for problem in outcome.problems] == [
        "none of the 4 operations has the tags and paths that are asked for"
    ]


# -- authentication -----------------------------------------------------------------------------------------

SCHEMES: dict[str, dict[str, Any]] = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://x"},
    "digest": {"type": "http", "scheme": "digest"},
    "host": {"type": "apiKey", "in": "header", "name": "Host"},
}


def secured(security: Any, secret: str, **more: Any) -> Compiled:
    document = api({"/a": {"get": more}}, components={"securitySchemes": SCHEMES}, security=security)
    return compiled(document, secret=secret)


@pytest.mark.parametrize(
    ("scheme", "place", "name", "prefix"),
    [
        ("header", Place.HEADER, "X-Key", ""),
        ("query", Place.QUERY, "key", ""),
        ("cookie", Place.COOKIE, "sid", ""),
        ("bearer", Place.HEADER, "Authorization", "Bearer "),
        ("basic", Place.HEADER, "Authorization", "Basic "),
        ("oauth", Place.HEADER, "Authorization", "Bearer "),
        ("oidc", Place.HEADER, "Authorization", "Bearer "),
    ],
)
def test_a_scheme_says_how_and_the_source_says_which_secret(
    scheme: str, place: Place, name: str, prefix: str
) -> None:
    (tool,) = secured([{scheme: []}], "TOKEN").tools
    (credential,) = call_of(tool).credentials
    assert (credential.secret, credential.place, credential.name, credential.prefix) == (
        "TOKEN",
        place,
        name,
        prefix,
    )


def test_the_first_way_that_the_secrets_allow_is_taken() -> None:
    (tool,) = secured([{"digest": []}, {"header": [], "query": []}, {"bearer": []}], "TOKEN").tools
    assert [one.prefix for one in call_of(tool).credentials] == ["Bearer "]
    (tool,) = secured([{"header": [], "query": []}], "header=A, query=B").tools
    assert [(one.name, one.secret) for one in call_of(tool).credentials] == [("X-Key", "A"), ("key", "B")]


def test_a_secret_goes_where_a_parameter_of_the_same_name_would() -> None:
    (tool,) = secured(
        [{"header": []}], "TOKEN", parameters=[{"name": "x-key", "in": "header", "required": True}]
    ).tools
    assert call_of(tool).placed == ()


def test_attack_a_document_that_names_the_secret_itself() -> None:
    """A document must not choose which of the host's secrets is sent to its server."""
    hostile: Any = {
        **SCHEMES["header"],
        "x-secret": "AWS_SECRET_ACCESS_KEY",
        "secret": "AWS_SECRET_ACCESS_KEY",
    }
    document = api({"/a": {"get": {}}}, components={"securitySchemes": {"k": hostile}}, security=[{"k": []}])
    outcome = compiled(document)
    assert codes(outcome) == ["openapi.security.no-secret"]
    assert [one.secret for one in call_of(outcome.tools[0]).credentials] == [""]


def test_a_secret_for_nobody_and_a_secret_in_the_clear_are_told() -> None:
    assert codes(secured([], "TOKEN")) == ["openapi.security.unused"]
    document = api({"/a": {"get": {}}}, components={"securitySchemes": SCHEMES}, security=[{"header": []}])
    assert codes(compiled({**document, "servers": [{"url": "http://a.example"}]}, secret="T")) == [
        "openapi.server.plain"
    ]
    assert codes(compiled({**document, "servers": [{"url": "http://localhost:8080"}]}, secret="T")) == []


def test_attack_a_scheme_that_writes_a_header_of_the_client() -> None:
    assert "openapi.security.unsupported" in codes(secured([{"host": []}], "TOKEN"))


# -- servers and names --------------------------------------------------------------------------------------


def test_a_relative_server_starts_where_the_document_came_from() -> None:
    document = {**api({"/a": {"get": {}}}), "servers": [{"url": "../v2/"}]}
    (tool,) = compiled(document, base_url="https://api.example/docs/openapi.json").tools
    assert call_of(tool).url == "https://api.example/v2/a"
    del document["servers"]
    (tool,) = compiled(document, base_url="https://api.example/docs/openapi.json").tools
    assert call_of(tool).url == "https://api.example/a"


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "https://a.example/?x=1", "https://a.example#x", "https://a b", "https://a\r\nb",
     "//[", "https://{host}", "https://a.example:99999", "", "https:///x", "https://bücher.example"],
)  # fmt: skip
def test_attack_a_server_that_is_no_address(url: str) -> None:
    outcome = compiled({**api({"/a": {"get": {}}}), "servers": [{"url": url}]})
    assert (outcome.tools, codes(outcome)) == ((), ["openapi.server.unusable"])


def test_attack_a_title_that_is_the_name_of_another_api() -> None:
    """Grants go by key: the name that the owner gave the file counts before the document's own."""
    document = api({"/a": {"get": {}}}, info={"title": "github"})
    assert compiled(document, "/p/evil.json").tools[0].scope == "evil"
    assert compiled(document, "/p/openapi.json").tools[0].scope == "github"
    assert compiled(document, "/p/openapi.json", name="mine").tools[0].key == "openapi:mine/get_a"
    assert compiled(api({"/a": {"get": {}}}), "/p/openapi.json").tools[0].scope == "openapi"


def test_long_names_stay_apart() -> None:
    paths = {f"/{number}": {"get": {"operationId": "x" * 80}} for number in range(12)}
    names = [tool.name for tool in compiled(api(paths)).tools]
    assert len(set(names)) == 12
    assert all(len(name) <= 64 for name in names)


# -- schemas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "made"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (
            {"type": "string", "nullable": True, "enum": ["a"]},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"nullable": True}, {}),
        (
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            {"type": "integer", "exclusiveMinimum": 1},
        ),
        ({"type": "integer", "maximum": 1, "exclusiveMaximum": False}, {"type": "integer", "maximum": 1}),
        ({"type": "string", "example": "a"}, {"type": "string", "examples": ["a"]}),
        ({"type": "string", "x-a": 1, "xml": {}, "externalDocs": {}}, {"type": "string"}),
        (
            {"oneOf": [{"type": "string"}], "discriminator": {"propertyName": "k", "mapping": {"a": "#/a"}}},
            {"oneOf": [{"type": "string"}], "description": '"k" tells which one it is: "a".'},
        ),
        ({"$ref": "#/components/schemas/S", "maxLength": 1}, {"type": "string"}),
        ({"$ref": "#/components/schemas/S", "description": "d"}, {"type": "string", "description": "d"}),
        (
            {"type": "object", "properties": {"$ref": {"type": "string"}, "enum": {"type": "string"}}},
            {"type": "object", "properties": {"$ref": {"type": "string"}, "enum": {"type": "string"}}},
        ),
        ({"type": "array", "items": {}}, {"type": "array", "items": {}}),
        ({"type": "string", "description": "d" * 600}, {"type": "string", "description": "d" * 499 + "…"}),
    ],
)
def test_a_schema_of_3_0_in_the_words_of_2020_12(raw: Any, made: Any) -> None:
    assert argument(raw, S={"type": "string"}) == made


@pytest.mark.parametrize(
    ("raw", "made"),
    [
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True}, {"type": "string"}),
        ({"$ref": "#/components/schemas/S", "maxLength": 1}, {"type": "string", "maxLength": 1}),
        ({"$ref": "#/components/schemas/O", "minProperties": 1}, {"$ref": "#/$defs/O", "minProperties": 1}),
        ({"$ref": "#/components/schemas/S", "type": "null"}, {"allOf": [{"type": "string"}], "type": "null"}),
        ({"const": None}, {"const": None}),
        (True, True),
    ],
)  # fmt: skip
def test_a_schema_of_3_1(raw: Any, made: Any) -> None:
    others = {"S": {"type": "string"}, "O": {"type": "object", "properties": {"a": {"type": "string"}}}}
    assert argument(raw, "3.1.0", **others) == made


def test_what_is_read_only_is_no_part_of_a_request_wherever_it_is_said() -> None:
    schemas = {
        "Id": {"type": "string", "readOnly": True},
        "Base": {"type": "object", "properties": {"id": {"$ref": "#/components/schemas/Id"}, "n": {}}},
    }
    raw = {"allOf": [{"$ref": "#/components/schemas/Base"}], "required": ["id", "n"]}
    content = {"application/json": {"schema": raw}}
    tool = one({"requestBody": {"required": True, "content": content}}, components={"schemas": schemas})
    assert tool.input_schema is not None
    assert tool.input_schema.document == {
        "type": "object",
        "properties": {"n": {}},
        "required": ["n"],
        "additionalProperties": False,
    }


def test_a_reference_may_have_escapes_and_lead_anywhere_in_the_document() -> None:
    schemas: dict[str, Any] = {
        "a/b~c d": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}}
    }
    assert argument({"$ref": "#/components/schemas/a~1b~0c%20d/properties/x"}, **schemas) == {
        "type": "integer",
        "minimum": 3,
    }
    assert argument({"$ref": "#/components/schemas/a~1b~0c%20d"}, **schemas) == {"$ref": "#/$defs/a_b_c_d"}


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "http://169.254.169.254/x", "other.json#/a", "../a.yaml"]
)
def test_attack_a_reference_that_makes_the_reader_fetch(target: str) -> None:
    document = api(
        {"/a": {"get": {"parameters": [{"name": "a", "in": "query", "schema": {"$ref": target}}]}}}
    )
    outcome = compiled(document)
    assert (outcome.tools, codes(outcome)) == ((), ["openapi.reference.remote"])


def test_a_bad_definition_costs_only_the_operations_that_use_it() -> None:
    schemas = {"Bad": {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}}
    content = {
        "application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Bad"}}}
    }
    operation = {"requestBody": {"required": True, "content": content}}
    paths = {"/a": {"post": operation}, "/b": {"post": {}}, "/c": {"put": operation}}
    outcome = compiled(api(paths, components={"schemas": schemas}))
    assert [tool.name for tool in outcome.tools] == ["post_b"]
    assert [problem.message for problem in outcome.problems] == [
        'POST /a: $ref "#/nowhere" leads nowhere',
        'PUT /c: $ref "#/nowhere" leads nowhere',
    ]


# -- references in other places than schemas ----------------------------------------------------------------

WHOLE = api(
    {
        "/a/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "post": {
                "operationId": "put",
                "servers": [{"url": "https://other.example"}],
                "security": [{"key": []}],
                "parameters": [
                    {"name": "q", "in": "query", "schema": {"type": "string", "maxLength": 3}},
                    {
                        "name": "c",
                        "in": "query",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "type": "object",
                                "properties": {"text": {"type": "string"}, "more": {"type": "string"}},
                            },
                            "encoding": {"more": {"contentType": "application/json"}},
                        }
                    },
                },
                "responses": {
                    "200": {
                        "description": "it",
                        "content": {
                            "application/json": {
                                "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}
                            }
                        },
                    }
                },
            },
        }
    },
    version="3.1.0",
    components={"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
)
_POST = ("paths", "/a/{id}", "post")
_CONTENT = (*_POST, "requestBody", "content")
_ANSWER = (*_POST, "responses", "200")
HOLDING_ARGUMENTS: list[tuple[Any, ...]] = [
    ("paths",),
    ("paths", "/a/{id}"),
    ("paths", "/a/{id}", "parameters"),
    ("paths", "/a/{id}", "parameters", 0),
    _POST,
    (*_POST, "parameters"),
    (*_POST, "parameters", 0),
    (*_POST, "parameters", 0, "schema"),
    (*_POST, "parameters", 1, "content"),
    (*_POST, "parameters", 1, "content", "application/json"),
    (*_POST, "parameters", 1, "content", "application/json", "schema"),
    (*_POST, "requestBody"),
    _CONTENT,
    (*_CONTENT, "multipart/form-data"),
    (*_CONTENT, "multipart/form-data", "schema"),
    (*_CONTENT, "multipart/form-data", "schema", "properties", "text"),
    (*_CONTENT, "multipart/form-data", "encoding"),
    (*_CONTENT, "multipart/form-data", "encoding", "more"),
    (*_POST, "servers"),
    (*_POST, "security"),
]
HOLDING_NO_ARGUMENT: list[tuple[Any, ...]] = [
    ("components", "securitySchemes"),
    ("components", "securitySchemes", "key"),
    (*_POST, "responses"),
    _ANSWER,
    (*_ANSWER, "content"),
    (*_ANSWER, "content", "application/json"),
]


def referring(place: tuple[Any, ...], target: str | None = None) -> dict[str, Any]:
    """The whole document with a reference at one place: to what stood there, or to something else."""
    document: dict[str, Any] = json.loads(json.dumps(WHOLE))
    holder = jsontext.at(document, place[:-1])
    document["x-moved"] = [holder[place[-1]]]
    holder[place[-1]] = {"$ref": target or "#/x-moved/0"}
    return document


@pytest.mark.parametrize("place", HOLDING_ARGUMENTS + HOLDING_NO_ARGUMENT, ids=str)
def test_a_reference_may_stand_in_place_of_every_part(place: tuple[Any, ...]) -> None:
    (plain,) = compiled(WHOLE, secret="KEY").tools
    outcome = compiled(referring(place), secret="KEY")
    assert outcome.problems == ()
    (tool,) = outcome.tools
    assert tool.invocation == plain.invocation
    assert tool.input_schema == plain.input_schema
    assert tool.output_schema == plain.output_schema


@pytest.mark.parametrize("place", HOLDING_ARGUMENTS, ids=str)
@pytest.mark.parametrize("target", ["resources/a.yml", "#/nowhere", "#anchor"])
def test_a_reference_that_is_not_followed_is_a_problem_and_never_a_hollow_tool(
    place: tuple[Any, ...], target: str
) -> None:
    """DigitalOcean's document has a file for each operation: 659 tools without arguments came of it."""
    outcome = compiled(referring(place, target), secret="KEY")
    assert outcome.tools == ()
    (problem,) = outcome.problems
    assert (problem.severity, problem.code.startswith("openapi.reference.")) == (Severity.ERROR, True)
    assert target in problem.message


@pytest.mark.parametrize("place", HOLDING_NO_ARGUMENT, ids=str)
def test_a_reference_that_is_not_followed_costs_no_argument_elsewhere(place: tuple[Any, ...]) -> None:
    (plain,) = compiled(WHOLE, secret="KEY").tools
    (tool,) = compiled(referring(place, "resources/a.yml"), secret="KEY").tools
    assert tool.input_schema == plain.input_schema


def test_what_stands_beside_the_reference_of_an_operation_counts() -> None:
    shared = {"summary": "Shared.", "parameters": [{"name": "q", "in": "query"}]}
    document = api({"/a": {"get": {"$ref": "#/x-shared", "operationId": "own"}}})
    document["x-shared"] = shared
    (tool,) = compiled(document).tools
    assert (tool.name, tool.description) == ("own", "Shared.")
    assert [placed.argument for placed in call_of(tool).placed or ()] == ["q"]


@pytest.mark.parametrize(
    ("key", "value"), [("security", "key"), ("security", ["key"]), ("servers", "https://b.example")]
)
def test_attack_what_says_where_a_request_goes_and_who_sends_it_is_never_passed_over(
    key: str, value: Any
) -> None:
    document = json.loads(json.dumps(WHOLE))
    document["paths"]["/a/{id}"]["post"][key] = value
    outcome = compiled(document, secret="KEY")
    assert (outcome.tools, len(outcome.problems)) == ((), 1)


@pytest.mark.parametrize("key", ["$recursiveRef", "$dynamicRef"])
def test_a_reference_by_scope_is_cut_with_a_warning_and_its_operation_stays(key: str) -> None:
    """In a real document seven whole operations were lost for one such reference."""
    node: dict[str, Any] = {
        "type": "object",
        "$recursiveAnchor": True,
        "required": ["filters"],
        "properties": {
            "filters": {"type": "array", "items": {"anyOf": [{"type": "string"}, {key: "#"}]}},
            "kind": {"type": "string"},
        },
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Filter"}}}
    outcome = compiled(
        api(
            {"/a": {"post": {"requestBody": {"required": True, "content": content}}}},
            version="3.1.0",
            components={"schemas": {"Filter": node}},
        )
    )
    assert [(found.code, found.severity) for found in outcome.problems] == [
        ("openapi.schema.unsupported", Severity.WARNING)
    ]
    (tool,) = outcome.tools
    assert tool.input_schema is not None
    made = tool.input_schema.document["$defs"]["Filter"]
    assert made["properties"]["filters"] == {"type": "array", "items": {"anyOf": [{"type": "string"}, {}]}}
    assert made["required"] == ["filters"]


def test_attack_definitions_that_only_lead_to_one_another_cost_their_operations_and_are_named() -> None:
    def body(name: str) -> dict[str, Any]:
        return {"requestBody": {"content": {"application/json": {"schema": {"$ref": f"#/x/{name}"}}}}}

    schemas = {
        "A": {"allOf": [{"$ref": "#/x/B"}, {"type": "object"}]},
        "B": {"oneOf": [{"$ref": "#/x/A"}, {"type": "object", "properties": {"n": {}}}]},
        "Tree": {
            "anyOf": [{"type": "null"}, {"type": "object", "properties": {"left": {"$ref": "#/x/Tree"}}}]
        },
    }
    paths = {f"/{name}": {"post": body(name)} for name in schemas}
    outcome = compiled({**api(paths, version="3.1.0"), "x": schemas})
    assert [tool.name for tool in outcome.tools] == ["post_Tree"]
    assert codes(outcome) == ["openapi.reference.circular"] * 2


def test_attack_definitions_that_lead_to_one_another_and_were_cut_apart_in_operations_before() -> None:
    """Attack: before the operation that has both, each of two others has one definition without the other."""

    def named(name: str) -> dict[str, Any]:
        return {"$ref": f"#/components/schemas/{name}"}

    leaves = {f"p{number}": {"type": "string"} for number in range(200)}
    wide = {f"p{number}": {"type": "object", "properties": leaves} for number in range(60)}
    schemas: dict[str, Any] = {
        "A": {"allOf": [named("B")]},
        "B": {"allOf": [named("A")]},
        "Wide": {"type": "object", "properties": wide},
        "Far": {"type": "object", "properties": {"wide": named("Wide")}},
    }
    for name in ("A", "B"):
        for number in range(3):
            inner = (
                {"in": named(f"{name}{number + 1}")}
                if number < 2
                else {"in": named(name), "far": named("Far")}
            )
            schemas[f"{name}{number}"] = {"type": "object", "properties": inner}
    paths = {}
    for name in ("A0", "B0", "A"):
        body = {"type": "object", "properties": {"x": named(name)}}
        paths[f"/{name}"] = {"post": {"requestBody": {"content": {"application/json": {"schema": body}}}}}
    outcome = compiled(api(paths, version="3.1.0", components={"schemas": schemas}))
    assert [tool.name for tool in outcome.tools] == ["post_A0", "post_B0"]
    assert codes(outcome) == ["openapi.schema.cut", "openapi.schema.cut", "openapi.reference.circular"]


@pytest.mark.parametrize("method", ["GET", "Post", "query", "additionalOperations"])
def test_a_method_that_is_not_read_is_told(method: str) -> None:
    outcome = compiled(api({"/a": {method: {}, "get": {}}}, version="3.2.0"))
    assert [tool.name for tool in outcome.tools] == ["get_a"]
    assert "openapi.operation.method" in codes(outcome)


# -- hostile documents --------------------------------------------------------------------------------------


def test_attack_references_that_double_at_every_step_stay_linear() -> None:
    count = 200
    schemas: dict[str, Any] = {
        f"L{number}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/components/schemas/L{number + 1}"} for side in ("a", "b")},
        }
        for number in range(count)
    }
    schemas[f"L{count}"] = {"type": "string"}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/L0"}}}
    started = time.process_time()
    outcome = compiled(
        api({"/a": {"post": {"requestBody": {"content": content}}}}, components={"schemas": schemas})
    )
    assert time.process_time() - started < 5
    (tool,) = outcome.tools
    assert codes(outcome) == ["openapi.schema.cut"]
    assert tool.input_schema is not None
    assert schema.flaws(tool.input_schema) == ()


OTHER_PARTS = ("", "/info", "/paths", "/components", "/components/schemas", "/components/parameters/P",
               "/components/schemas/A/properties", "/paths/~1t/post")  # fmt: skip


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
@pytest.mark.parametrize("part", OTHER_PARTS)
def test_a_reference_to_what_is_no_schema_is_an_error_and_never_a_hollow_tool(
    part: str, version: str
) -> None:
    """As the schema of a parameter, of a body, of a member, and inside allOf."""
    reference = {"$ref": f"#{part}"}
    components = {
        "schemas": {"A": {"type": "object", "properties": {"x": {"type": "string"}}}},
        "parameters": {"P": {"name": "p", "in": "query", "schema": {"type": "string"}}},
    }
    for schema_ in (reference, {"allOf": [reference]}, {"type": "array", "items": reference}):
        for operation in (
            {"parameters": [{"name": "a", "in": "query", "schema": schema_}]},
            {"requestBody": {"content": {"application/json": {"schema": schema_}}}},
        ):
            info = {"title": "An API", "version": "1"}
            document = api({"/t": {"post": operation}}, version=version, components=components, info=info)
            outcome = compiled(document)
            assert outcome.tools == ()
            (problem,) = outcome.problems
            assert (problem.code, problem.severity) == ("openapi.reference.missing", Severity.ERROR)
            assert problem.message == f'POST /t: $ref "#{part}" leads to no schema'
            assert problem.hint == "refer to a schema (#/components/schemas/NAME)"


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"description": "anything"},
        {"title": "Any", "x-order": 1, "example": 5},
        {"nullable": True},
        {"type": "string", "order": 1},
        {"required": ["a"], "fieldOrder": ["a"]},
        {"propertys": {"a": {"type": "string"}}},
    ],
)
def test_a_reference_to_a_schema_that_says_little_is_followed(target: dict[str, Any]) -> None:
    body = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}}
    outcome = compiled(api({"/t": {"post": body}}, components={"schemas": {"A": target}}))
    assert len(outcome.tools) == 1
    assert "openapi.reference.missing" not in codes(outcome)


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_a_schema_that_only_refers_to_itself_is_an_error_and_never_a_hollow_tool(version: str) -> None:
    own = "#/paths/~1t/post/parameters/0/schema"
    for schema_ in ({"$ref": own}, {"allOf": [{"$ref": own}]}, {"anyOf": [{"$ref": own}, {"$ref": own}]}):
        operation = {"parameters": [{"name": "a", "in": "query", "schema": schema_}]}
        outcome = compiled(api({"/t": {"post": operation}}, version=version))
        assert (outcome.tools, codes(outcome)) == ((), ["openapi.reference.circular"])


def test_attack_a_chain_of_references_and_an_all_of_that_holds_itself() -> None:
    chain: dict[str, Any] = {
        f"C{number}": {"$ref": f"#/components/schemas/C{number + 1}"} for number in range(500)
    }
    chain["C500"] = {"type": "string"}
    chain["Self"] = {"allOf": [{"$ref": "#/components/schemas/Self"}], "type": "object"}
    paths: dict[str, Any] = {
        f"/{name}": {
            "post": {
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
                }
            }
        }
        for name in ("C0", "C450", "Self")
    }
    outcome = compiled(api(paths, components={"schemas": chain}))
    assert [tool.name for tool in outcome.tools] == ["post_C450"]
    assert codes(outcome) == ["openapi.reference.circular"] * 2
    for tool in outcome.tools:
        assert tool.input_schema is not None
        assert schema.fits(tool.input_schema, {"body": {}}) in (True, False)


def test_attack_a_schema_that_is_too_wide_is_lost_and_nothing_with_it() -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(11_000)}}
    content = {"application/json": {"schema": wide}}
    outcome = compiled(api({"/a": {"post": {"requestBody": {"content": content}}}, "/b": {"get": {}}}))
    assert [tool.name for tool in outcome.tools] == ["get_b"]
    assert codes(outcome) == ["openapi.schema.too-large"]


def test_attack_more_operations_than_anyone_can_use() -> None:
    paths: dict[str, Any] = {f"/{number}": {"get": {}} for number in range(10_001)}
    outcome = compiled(api(paths))
    assert (outcome.tools, codes(outcome)) == ((), ["openapi.operation.too-many"])
    assert len(compiled(api(paths), paths=("/1*",)).tools) == 1 + 10 + 100 + 1000 + 1


def test_attack_a_document_that_is_too_long(tmp_path: Path) -> None:
    found = Document(path="/p/a.yaml", content=b" " * ((16 << 20) + 1), place="openapi")
    _, outcome = formats.compile_document(found, Rules())
    assert codes(outcome) == ["openapi.document.unreadable"]
    (tmp_path / "long.json").write_text(json.dumps({"tools": ["x" * (1 << 20)]}), encoding="utf-8")
    machine = loading.Machine(prober=lambda paths: [], which=lambda name: None)
    report = loading.load([config.named_source("long.json", str(tmp_path))], Rules(), machine)
    (problem,) = report.problems
    assert "more than the 1,048,576 a declaration may have" in problem.message


def test_attack_a_media_type_or_a_header_name_with_a_line_break() -> None:
    operation = {
        "requestBody": {"content": {"application/json\r\nX: y": {"schema": {}}}},
        "parameters": [{"name": "X\r\nY", "in": "header", "schema": {"type": "string"}}],
        "responses": {"200": {"content": {"text/plain\r\nX: y": {}}}},
    }
    tool = one(operation)
    assert call_of(tool).headers == (("Accept", "*/*"),)
    assert call_of(tool).placed == ()


def test_many_patterns_share_the_memory_and_those_that_need_more_are_left_out() -> None:
    paths = {
        f"/{number}": {
            "get": {
                "parameters": [
                    {
                        "name": "a",
                        "in": "query",
                        "schema": {"type": "string", "pattern": f"^[a-z]{{{number}}}$"},
                    },
                    {"name": "b", "in": "query", "schema": {"type": "string", "pattern": "^\\p{L}{1,200}$"}},
                ]
            }
        }
        for number in range(1, 200)
    }
    outcome = compiled(api(paths))
    assert len(outcome.tools) == 199
    assert set(codes(outcome)) == {"openapi.schema.pattern"}
    patterns = sum(schema.patterns_in(tool.input_schema) for tool in outcome.tools if tool.input_schema)
    for tool in outcome.tools:
        assert tool.input_schema is not None
        assert schema.flaws(tool.input_schema, patterns=patterns) == ()


# -- properties ---------------------------------------------------------------------------------------------

_words = st.sampled_from(
    ["$ref", "allOf", "oneOf", "properties", "items", "type", "required", "enum", "nullable", "pattern",
     "schema", "content", "application/json", "multipart/form-data", "parameters", "requestBody", "responses",
     "200", "name", "in", "style", "explode", "servers", "security", "url", "variables", "get", "post",
     "tags", "readOnly"]
)  # fmt: skip
_leaves = st.sampled_from(
    ["#/components/schemas/A", "#/components/schemas/B", "#", "#/paths", "#/components/schemas/A/items",
     "string", "object", "array", "path", "query", "header", "cookie", "id", True, False, None, 3, -1.5,
     "deepObject", "https://a.example", "(", "\\w{999}"]
)  # fmt: skip
_wild = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=5),
    max_leaves=25,
)
_schemas = st.recursive(
    _leaves
    | st.fixed_dictionaries({"$ref": st.sampled_from(["#/components/schemas/A", "#/components/schemas/B"])}),
    lambda inner: (
        st.dictionaries(_words, inner, max_size=4)
        | st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(texts, inner, max_size=3)}
        )
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)})
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["3.0.0", "3.1.0"]),
    _wild | json_values,
    _schemas,
    _schemas,
    st.lists(_wild, max_size=3),
    json_objects,
)
def test_no_value_makes_compiling_raise_and_every_tool_is_valid(
    version: str, operation: Any, first: Any, second: Any, parameters: Any, more: Any
) -> None:
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    document = {
        **more,
        **api(
            {
                "/a/{id}": {"get": operation, "post": {"requestBody": body, "parameters": parameters}},
                "/b": operation,
            },
            version,
            components={"schemas": {"A": first, "B": second}},
        ),
    }
    outcome = compiled(document)
    assert outcome == compiled(document)
    for tool in outcome.tools:
        for found in (tool.input_schema, tool.output_schema):
            assert found is None or schema.flaws(found) == (), found


@given(st.binary(max_size=300) | json_values.map(jsontext.compact))
def test_no_bytes_make_compiling_yaml_raise(content: bytes) -> None:
    for text in (content, b"openapi: 3.1.0\npaths:\n  /a:\n    get:\n      " + content):
        found = Document(path="/p/a.yaml", content=text, place="openapi", openapi=OpenApiOptions())
        first, second = (formats.compile_document(found, Rules()) for _ in range(2))
        assert first == second
        assert first[0] == "openapi"
