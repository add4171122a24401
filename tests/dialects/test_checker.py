"""The checker catches what it is for: every rule has a payload that breaks it, and it alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects import checker

OBJECT = {"type": "object", "properties": {}}
CLOSED = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def with_property(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


def nested(depth: int) -> dict[str, Any]:
    return closed({"a": nested(depth - 1)}) if depth > 1 else closed({})


# -- one tool around a schema, as each dialect declares it --------------------------------------------------


def chat(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def responses(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "strict": False, "parameters": schema, **more}


def anthropic(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": schema, **more}


def gemini(*functions: Any) -> list[Any]:
    return [{"functionDeclarations": list(functions)}]


def ollama(schema: Any = OBJECT, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


def mcp(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, **more}


OPENAI_SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    ("root-type", {"properties": {}}),
    ("root-keyword", {"type": "object", "anyOf": [OBJECT]}),
    ("array-items", with_property({"type": ["array", "null"]})),
    ("pattern", with_property({"type": "string", "pattern": "^(?!x)"})),
    ("pattern", with_property({"type": "string", "pattern": r"(a)\1"})),
    ("id", with_property({"$id": "not a uri", "type": "string"})),
    ("draft", with_property({"type": "strin"})),
]
OPENAI_STRICT: list[tuple[str, dict[str, Any]]] = [
    ("strict-keyword", closed({"a": {"type": "string", "minLength": 1}})),
    ("strict-keyword", closed({"a": {"type": "string", "default": "x"}})),
    ("strict-closed", {"type": "object", "properties": {}, "required": []}),
    ("strict-required", {**closed({"a": {"type": "string"}}), "required": []}),
    ("strict-typed", closed({"a": {"description": "anything"}})),
    ("strict-format", closed({"a": {"type": "string", "format": "uri"}})),
    ("strict-depth", nested(11)),
    ("strict-properties", closed({f"p{number}": {"type": "string"} for number in range(5001)})),
    ("strict-enum", closed({"a": {"enum": list(range(1001))}})),
    ("strict-enum-chars", closed({"a": {"enum": [f"{number:0100d}" for number in range(251)]}})),
    (
        "strict-chars",
        closed(
            {f"p{number}": {"enum": [f"{number}{value:0150d}" for value in range(90)]} for number in range(9)}
        ),
    ),
]
ANTHROPIC_STRICT: list[tuple[str, dict[str, Any]]] = [
    ("strict-keyword", closed({"a": {"type": "integer", "minimum": 1}})),
    ("strict-closed", closed({"a": {**OBJECT}})),
    ("strict-typed", closed({"a": {}})),
    ("strict-format", closed({"a": {"type": "string", "format": "iri"}})),
    ("strict-enum", closed({"a": {"enum": [[1]]}})),
    ("strict-min-items", closed({"a": {"type": "array", "items": {"type": "string"}, "minItems": 2}})),
    ("strict-reference", closed({"a": {"$ref": "#"}})),
    ("strict-optional", closed({f"p{number}": {"type": "string"} for number in range(25)}, required=[])),
    ("strict-unions", closed({f"p{number}": {"type": ["string", "null"]} for number in range(17)})),
]
GEMINI_PARAMETERS: list[tuple[str, dict[str, Any]]] = [
    ("root-type", {"type": "string"}),
    ("property-name", {"type": "object", "properties": {"file-path": {"type": "string"}}}),
    ("keyword", with_property({"type": "integer", "exclusiveMinimum": 1})),
    ("keyword", with_property({"type": "string"}, additionalProperties=False)),
    ("keyword", with_property({"type": "string", "default": "x"})),
    ("type", with_property({"type": ["string", "null"]})),
    ("type", with_property({"description": "anything"})),
    ("enum", with_property({"type": "integer", "enum": [1, 2]})),
    ("enum", with_property({"type": "string", "enum": [1]})),
    ("format", with_property({"type": "string", "format": "uri"})),
    ("object-empty", with_property({"type": "object"})),
    ("array-items", with_property({"type": "array"})),
    ("required-unknown", with_property({"type": "string"}, required=["b"])),
]

BROKEN: list[tuple[str, str, Any]] = [
    ("openai", "shape", [{"type": "function", "function": {"name": "f", "command": ["x"]}}]),
    ("openai", "tools-max", [chat(name=f"f{number}") for number in range(129)]),
    ("openai", "name", [chat(name="a.b")]),
    ("openai", "name", [chat(name="x" * 65)]),
    ("openai", "name-unique", [chat(), chat()]),
    ("openai", "description-max", [chat(description="d" * 1025)]),
    *(("openai", rule, [chat(schema)]) for rule, schema in OPENAI_SCHEMAS),
    *(("openai", rule, [chat(schema, strict=True)]) for rule, schema in OPENAI_STRICT),
    ("openai-responses", "shape", [{**responses(), "command": ["x"]}]),
    ("openai-responses", "tools-max", [responses(name=f"f{number}") for number in range(129)]),
    ("openai-responses", "name", [responses(name="")]),
    ("openai-responses", "name-unique", [responses(), responses()]),
    ("openai-responses", "strict-stated", [{"type": "function", "name": "f", "parameters": OBJECT}]),
    ("openai-responses", "defer-search", [responses(defer_loading=True)]),
    ("openai-responses", "defer-search", [{"type": "tool_search"}, responses()]),
    *(("openai-responses", rule, [responses(schema)]) for rule, schema in OPENAI_SCHEMAS),
    *(("openai-responses", rule, [responses(schema, strict=True)]) for rule, schema in OPENAI_STRICT),
    ("anthropic", "shape", [anthropic(command=["x"])]),
    ("anthropic", "name", [anthropic(name="a/b")]),
    (
        "anthropic",
        "name-unique",
        [
            {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
            anthropic(name="tool_search_tool_bm25"),
        ],
    ),
    ("anthropic", "property-name", [anthropic({"type": "object", "properties": {"a b": {}}})]),
    ("anthropic", "root-type", [anthropic({"properties": {}})]),
    ("anthropic", "root-keyword", [anthropic({"type": "object", "oneOf": [OBJECT]})]),
    ("anthropic", "draft", [anthropic(with_property({"type": "array", "items": [{}]}))]),
    ("anthropic", "examples", [anthropic(with_property({"type": "string"}), input_examples=[{"a": 1}])]),
    ("anthropic", "defer-all", [anthropic(defer_loading=True)]),
    (
        "anthropic",
        "defer-max",
        [anthropic(), *(anthropic(name=f"f{number}", defer_loading=True) for number in range(10_001))],
    ),
    *(("anthropic", rule, [anthropic(schema, strict=True)]) for rule, schema in ANTHROPIC_STRICT),
    (
        "anthropic",
        "strict-tools",
        [anthropic(CLOSED, name=f"f{number}", strict=True) for number in range(21)],
    ),
    ("gemini", "shape", gemini({"name": "f", "strict": True})),
    ("gemini", "tools-max", gemini(*({"name": f"f{number}"} for number in range(513)))),
    ("gemini", "name", gemini({"name": "9lives"})),
    ("gemini", "name", gemini({"name": "x" * 65})),
    ("gemini", "name-unique", gemini({"name": "f"}, {"name": "f"})),
    (
        "gemini",
        "two-schemas",
        gemini(
            {
                "name": "f",
                "parameters": with_property({"type": "string"}),
                "parametersJsonSchema": with_property({"type": "string"}),
            }
        ),
    ),
    *(("gemini", rule, gemini({"name": "f", "parameters": schema})) for rule, schema in GEMINI_PARAMETERS),
    ("gemini", "json-keyword", gemini({"name": "f", "parametersJsonSchema": with_property({"const": 1})})),
    ("gemini", "json-reference", gemini({"name": "f", "parametersJsonSchema": with_property({"$ref": "#"})})),
    ("ollama", "shape", [{**ollama(), "strict": True}]),
    ("ollama", "name", [ollama(name="a b")]),
    ("ollama", "name-unique", [ollama(), ollama()]),
    ("ollama", "root-type", [ollama({"type": "array"})]),
    ("ollama", "keyword", [ollama(with_property({"$ref": "#/$defs/A"}))]),
    ("ollama", "keyword", [ollama({**OBJECT, "additionalProperties": False})]),
    ("ollama", "property", [ollama(with_property(True))]),
    ("mcp", "shape", [mcp(command=["x"])]),
    ("mcp", "name", [mcp(name="a/b")]),
    ("mcp", "name-unique", [mcp(), mcp()]),
    ("mcp", "root-type", [mcp({})]),
    ("mcp", "draft", [mcp(with_property({"type": "strin"}))]),
    ("mcp", "array-items", [mcp(with_property({"type": "array"}))]),
    ("mcp", "output-type", [mcp(outputSchema={"type": "array"})]),
    ("mcp", "annotations", [mcp(annotations={"readOnlyHint": "yes"})]),
    ("mcp", "header", [mcp(with_property({"type": "string", "x-mcp-header": "Token"}))]),
]


@pytest.mark.parametrize(("dialect", "rule", "payload"), BROKEN)
def test_a_payload_that_breaks_a_rule_is_caught_by_that_rule(dialect: str, rule: str, payload: Any) -> None:
    assert checker.check(dialect, payload) == [rule]


def test_every_rule_has_a_payload_that_breaks_it() -> None:
    shown: dict[str, set[str]] = {}
    for dialect, rule, _ in BROKEN:
        shown.setdefault(dialect, set()).add(rule)
    assert shown == checker.RULES


@pytest.mark.parametrize(
    ("dialect", "payload"),
    [
        ("openai", [chat(with_property({"type": "string"})), chat(CLOSED, name="g", strict=True)]),
        ("openai-responses", [{"type": "tool_search"}, responses(defer_loading=True)]),
        ("anthropic", [anthropic(CLOSED, strict=True), anthropic(name="g", description="d")]),
        ("gemini", gemini({"name": "f"}, {"name": "g", "parameters": with_property({"type": "string"})})),
        ("ollama", [ollama(with_property({"type": "string", "enum": ["a"]}))]),
        ("mcp", [mcp(annotations={"readOnlyHint": True}, outputSchema=OBJECT)]),
    ],
)
def test_a_good_payload_breaks_nothing(dialect: str, payload: Any) -> None:
    assert checker.check(dialect, payload) == []
