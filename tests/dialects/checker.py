"""What providers refuse, told a second time.

This checker was written from the providers' documents and error messages, not from the dialects, and imports
nothing of them: it judges payloads as a provider's front door would. ``check`` names every rule that a
payload breaks; ``RULES`` lists all names, and each has a payload that breaks it (test_checker.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

Schema = Any
Found = Iterator[str]

RULES: dict[str, frozenset[str]] = {
    "openai": frozenset(
        {
            "shape", "tools-max", "name", "name-unique", "description-max", "root-type", "root-keyword",
            "array-items", "pattern", "id", "draft", "strict-keyword", "strict-closed", "strict-required",
            "strict-typed", "strict-format", "strict-depth", "strict-properties", "strict-enum",
            "strict-enum-chars", "strict-chars",
        }
    ),
    "anthropic": frozenset(
        {
            "shape", "name", "name-unique", "property-name", "root-type", "root-keyword", "draft",
            "examples", "defer-all", "defer-max", "strict-keyword", "strict-closed", "strict-typed",
            "strict-format", "strict-enum", "strict-min-items", "strict-reference", "strict-tools",
            "strict-optional", "strict-unions",
        }
    ),
    "gemini": frozenset(
        {
            "shape", "tools-max", "name", "name-unique", "property-name", "two-schemas", "keyword", "type",
            "enum", "format", "object-empty", "array-items", "required-unknown", "root-type",
            "json-keyword", "json-reference",
        }
    ),
    "ollama": frozenset({"shape", "name", "name-unique", "root-type", "keyword", "property"}),
    "mcp": frozenset(
        {
            "shape", "name", "name-unique", "root-type", "draft", "array-items", "output-type", "annotations",
            "header",
        }
    ),
}  # fmt: skip
RULES["openai-responses"] = (RULES["openai"] - {"description-max"}) | {"strict-stated", "defer-search"}

SAFE_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check(dialect: str, payload: Any) -> list[str]:
    """The rules that a value for the request's ``tools`` breaks."""
    checks = {
        "openai": _chat,
        "openai-responses": _responses,
        "anthropic": _anthropic,
        "gemini": _gemini,
        "ollama": _ollama,
        "mcp": _mcp,
    }
    found = sorted(set(checks[dialect](payload)))
    assert set(found) <= RULES[dialect], found
    return found


# -- schemas ------------------------------------------------------------------------------------------------

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ONES = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def nodes(schema: Schema, depth: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Every object schema with its depth, counting objects and arrays."""
    if not isinstance(schema, dict):
        return
    depth += bool({"object", "array"} & set(types(schema)))
    yield schema, depth
    for key in MAPS:
        for inner in schema.get(key, {}).values():
            yield from nodes(inner, depth)
    for key in LISTS:
        for inner in schema.get(key, []):
            yield from nodes(inner, depth)
    for key in ONES:
        yield from nodes(schema.get(key), depth)


def types(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return kind if isinstance(kind, list) else [kind]


def draft(schema: Schema) -> Found:
    if not jsonschema_rs.meta.is_valid({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"}):
        yield "draft"


def names(found: list[Any], pattern: re.Pattern[str]) -> Found:
    if not all(isinstance(name, str) and pattern.fullmatch(name) for name in found):
        yield "name"
    if len(set(map(str, found))) < len(found):
        yield "name-unique"


def shape(tool: Any, required: set[str], optional: set[str]) -> Found:
    if not isinstance(tool, dict) or not required <= tool.keys() <= required | optional:
        yield "shape"


def root(schema: Schema, refused: set[str]) -> Found:
    if schema.get("type") != "object":
        yield "root-type"
    if refused & schema.keys():
        yield "root-keyword"


# -- OpenAI -------------------------------------------------------------------------------------------------


def _chat(payload: Any) -> Found:
    functions = []
    for tool in payload:
        yield from shape(tool, {"type", "function"}, set())
        function = tool.get("function", {})
        yield from shape(function, {"name"}, {"description", "parameters", "strict"})
        if len(function.get("description", "")) > 1024:
            yield "description-max"
        functions.append(function)
    yield from _openai(functions, len(payload))


def _responses(payload: Any) -> Found:
    searches = [tool for tool in payload if tool == {"type": "tool_search"}]
    functions = [tool for tool in payload if tool not in searches]
    for tool in functions:
        yield from shape(tool, {"type", "name", "parameters"}, {"strict", "description", "defer_loading"})
        if not isinstance(tool.get("strict"), bool):
            yield "strict-stated"
    if any(tool.get("defer_loading") for tool in functions) != bool(searches):
        yield "defer-search"
    yield from _openai(functions, len(payload))


def _openai(functions: list[Any], count: int) -> Found:
    if count > 128:
        yield "tools-max"
    yield from names([function.get("name") for function in functions], SAFE_NAME)
    for function in functions:
        schema = function.get("parameters")
        if schema is None:
            continue
        yield from root(schema, {"oneOf", "anyOf", "allOf", "enum", "not"})
        yield from draft(schema)
        for node, _ in nodes(schema):
            if "array" in types(node) and "items" not in node:
                yield "array-items"
            if any(map(_hard, [node.get("pattern", ""), *node.get("patternProperties", {})])):
                yield "pattern"
            if re.search(r"[\s<>\"{}|\\^`]|[^\x00-\x7f]", node.get("$id", "")):
                yield "id"
        if function.get("strict"):
            yield from _openai_strict(schema)


def _hard(pattern: str) -> bool:
    bare = pattern.replace("\\\\", "")
    return re.search(r"\(\?<?[=!]|\\[1-9]|\\k<|\\[pP]\{|\\0", bare) is not None


def _openai_strict(schema: Schema) -> Found:
    allowed = {
        "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref",
        "$defs", "definitions", "description", "title", "pattern", "format", "multipleOf", "maximum",
        "exclusiveMaximum", "minimum", "exclusiveMinimum", "minItems", "maxItems",
    }  # fmt: skip
    formats = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    properties = enums = chars = 0
    for node, depth in nodes(schema):
        if not node.keys() <= allowed or ("$ref" in node and len(node) > 1):
            yield "strict-keyword"
        if not {"type", "$ref", "anyOf", "enum", "const"} & node.keys():
            yield "strict-typed"
        if node.get("format", "date") not in formats:
            yield "strict-format"
        if "object" in types(node) or "properties" in node:
            if node.get("additionalProperties") is not False:
                yield "strict-closed"
            if node.get("required") != list(node.get("properties", {})):
                yield "strict-required"
        if depth > 10:
            yield "strict-depth"
        texts = [value for value in [*node.get("enum", []), node.get("const")] if isinstance(value, str)]
        properties += len(node.get("properties", {}))
        enums += len(node.get("enum", []))
        chars += sum(map(len, [*node.get("properties", {}), *node.get("$defs", {}), *texts]))
        if len(node.get("enum", [])) > 250 and sum(map(len, texts)) > 15_000:
            yield "strict-enum-chars"
    if properties > 5000:
        yield "strict-properties"
    if enums > 1000:
        yield "strict-enum"
    if chars > 120_000:
        yield "strict-chars"


# -- Anthropic ----------------------------------------------------------------------------------------------


def _anthropic(payload: Any) -> Found:
    searches = [tool for tool in payload if str(tool.get("type", "")).startswith("tool_search_tool_")]
    tools = [tool for tool in payload if tool not in searches]
    yield from names([tool.get("name") for tool in payload], SAFE_NAME)
    deferred = [tool for tool in tools if tool.get("defer_loading")]
    if deferred and len(deferred) == len(payload):
        yield "defer-all"
    if len(deferred) > 10_000:
        yield "defer-max"
    strict = []
    for tool in tools:
        yield from shape(
            tool, {"name", "input_schema"}, {"description", "strict", "input_examples", "defer_loading"}
        )
        schema = tool.get("input_schema", {})
        yield from root(schema, {"oneOf", "anyOf", "allOf"})
        yield from draft(schema)
        if not all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in schema.get("properties", {})):
            yield "property-name"
        if "input_examples" in tool:
            validator = jsonschema_rs.validator_for(schema)
            if not all(validator.is_valid(example) for example in tool["input_examples"]):
                yield "examples"
        if tool.get("strict"):
            strict.append(schema)
            yield from _anthropic_strict(schema)
    every = [node for schema in strict for node, _ in nodes(schema)]
    if len(strict) > 20:
        yield "strict-tools"
    if sum(len(set(node.get("properties", {})) - set(node.get("required", []))) for node in every) > 24:
        yield "strict-optional"
    if sum("anyOf" in node or isinstance(node.get("type"), list) for node in every) > 16:
        yield "strict-unions"


def _anthropic_strict(schema: Schema) -> Found:
    allowed = {
        "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
        "allOf", "$ref", "$defs", "definitions", "default", "description", "title", "format", "pattern",
        "minItems",
    }  # fmt: skip
    formats = {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
    for node, _ in nodes(schema):
        if not node.keys() <= allowed:
            yield "strict-keyword"
        if not {"type", "$ref", "anyOf", "allOf", "enum", "const"} & node.keys():
            yield "strict-typed"
        if node.get("format", "uri") not in formats:
            yield "strict-format"
        if "object" in types(node) and node.get("additionalProperties") is not False:
            yield "strict-closed"
        if any(isinstance(value, (dict, list)) for value in node.get("enum", [])):
            yield "strict-enum"
        if node.get("minItems", 0) > 1:
            yield "strict-min-items"
        if "$ref" in node:  # written out by us, so a recursive one cannot hide
            yield "strict-reference"


# -- Gemini -------------------------------------------------------------------------------------------------


def _gemini(payload: Any) -> Found:
    functions = []
    for tool in payload:
        yield from shape(tool, {"functionDeclarations"}, set())
        functions += tool.get("functionDeclarations", [])
    if len(payload) > 1 or (payload and not functions):
        yield "shape"
    if len(functions) > 512:
        yield "tools-max"
    yield from names(
        [function.get("name") for function in functions], re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
    )
    for function in functions:
        yield from shape(function, {"name"}, {"description", "parameters", "parametersJsonSchema"})
        if "parameters" in function and "parametersJsonSchema" in function:
            yield "two-schemas"
        for field in ("parameters", "parametersJsonSchema"):
            schema = function.get(field)
            if schema is None:
                continue
            if schema.get("type") != "object":
                yield "root-type"
            if not all(
                re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) for name in schema.get("properties", {})
            ):
                yield "property-name"
        for node, _ in nodes(function.get("parameters")):
            yield from _gemini_schema(node)
        for node, _ in nodes(function.get("parametersJsonSchema")):
            if node.keys() & {"additionalProperties", "oneOf", "allOf", "not", "const", "default", "pattern"}:
                yield "json-keyword"
            if node.keys() & {"$ref", "$defs", "$id", "$schema"}:
                yield "json-reference"


def _gemini_schema(node: dict[str, Any]) -> Found:
    allowed = {
        "anyOf", "description", "enum", "format", "items", "maxItems", "maxLength", "maxProperties",
        "maximum", "minItems", "minLength", "minProperties", "minimum", "nullable", "pattern", "properties",
        "required", "type",
    }  # fmt: skip
    if not node.keys() <= allowed:
        yield "keyword"
    kind = node.get("type")
    if not isinstance(kind, str | None) or not ({"type", "anyOf"} & node.keys()):
        yield "type"
    enum = node.get("enum")
    if enum is not None and (
        kind != "string" or not enum or not all(isinstance(value, str) for value in enum)
    ):
        yield "enum"
    formats = {"string": {"enum", "date-time"}, "number": {"float", "double"}, "integer": {"int32", "int64"}}
    if "format" in node and node["format"] not in formats.get(str(kind), ()):
        yield "format"
    if kind == "object" and not node.get("properties"):
        yield "object-empty"
    if kind == "array" and "items" not in node:
        yield "array-items"
    if not set(node.get("required", [])) <= set(node.get("properties", {})):
        yield "required-unknown"


# -- Ollama -------------------------------------------------------------------------------------------------


def known(node: Any) -> set[str]:
    """The keywords of a node that JSON Schema knows; the server ignores an author's own."""
    return {keyword for keyword in node if not keyword.startswith("x-")}


def _ollama(payload: Any) -> Found:
    functions = []
    for tool in payload:
        yield from shape(tool, {"type", "function"}, set())
        functions.append(tool.get("function", {}))
    yield from names([function.get("name") for function in functions], SAFE_NAME)
    for function in functions:
        yield from shape(function, {"name", "description", "parameters"}, set())
        schema = function.get("parameters", {})
        if schema.get("type") != "object":
            yield "root-type"
        if not known(schema) <= {"type", "properties", "required"}:
            yield "keyword"
        for node, _ in nodes(schema):
            if not known(node) <= {"type", "properties", "required", "items", "enum", "anyOf", "description"}:
                yield "keyword"
            if not all(isinstance(item, dict) for item in node.get("properties", {}).values()):
                yield "property"


# -- MCP ----------------------------------------------------------------------------------------------------


def _mcp(payload: Any) -> Found:
    yield from names([tool.get("name") for tool in payload], re.compile(r"[A-Za-z0-9._-]{1,128}"))
    for tool in payload:
        yield from shape(
            tool, {"name", "inputSchema"}, {"title", "description", "outputSchema", "annotations"}
        )
        schema = tool.get("inputSchema", {})
        if schema.get("type") != "object":
            yield "root-type"
        if not jsonschema_rs.meta.is_valid(schema):
            yield "draft"
        for node, _ in nodes(schema):
            if "x-mcp-header" in node:
                yield "header"
            if "array" in types(node) and "items" not in node:
                yield "array-items"  # by the providers that clients hand the schema on to
        if tool.get("outputSchema", {"type": "object"}).get("type") != "object":
            yield "output-type"
        hints = {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
        annotations = tool.get("annotations", {})
        if not annotations.keys() <= hints or not all(
            isinstance(value, bool) for value in annotations.values()
        ):
            yield "annotations"
