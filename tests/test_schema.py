"""Is it a schema, does a value fit, what is the best complaint. Attacks on schemas are in test_battery.py,
narrowing for providers in tests/dialects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given

from tests import strategies
from toolcrib import jsontext, schema
from toolcrib.model import Schema


def told(document: dict[str, Any], value: Any) -> list[str]:
    return [str(found) for found in schema.complaints(Schema.of(document), value)]


def flaws(document: Any) -> list[tuple[str, str]]:
    return [("/".join(map(str, found.pointer)), found.message) for found in schema.flaws(document)]


# -- is it a schema? ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {},
        True,
        False,
        {"type": "object", "properties": {}},
        {"type": ["string", "null"], "format": "date", "minLength": 1, "pattern": "^[a-z]+$"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"$defs": {"a": {"$anchor": "here", "type": "string"}}, "$ref": "#here"},
        {"$id": "https://example.org/tool", "properties": {"a": {"$ref": "#"}}},
        {"default": {"$ref": "https://example.org/"}, "enum": [{"$schema": "x"}], "const": {"pattern": "["}},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}, "$id": {}, "enum": {}}},
        {"x-order": 3, "title": "unknown keywords are none of our business"},
        {"maximum": 10**400, "minLength": 10**30, "multipleOf": 1e-320},
    ],
)
def test_a_schema_has_no_flaws(document: Any) -> None:
    assert flaws(document) == []
    if isinstance(document, dict):
        assert schema.flaws(Schema.of(document)) == ()
        schema.complaints(Schema.of(document), {"a": 1})


@pytest.mark.parametrize(
    ("document", "place", "message"),
    [
        ([], "", "expected boolean or object, got array"),
        ({"minLength": "5"}, "minLength", 'expected integer, got string "5"'),
        (
            {"type": "strin"},
            "type",
            'must be one of "array", "boolean", "integer", "null", "number", "object", "string" '
            '(got string "strin"); did you mean "string"?',
        ),
        (
            {"properties": {"a": {"required": True}}},
            "properties/a/required",
            "expected array, got boolean true",
        ),
        ({"minLength": -1}, "minLength", "must be at least 0 (got integer -1)"),
        ({"required": ["a", "a"]}, "required", "has items that are the same"),
        ({"pattern": "["}, "pattern", "the pattern is not a regular expression that runs in linear time"),
        ({"pattern": "(?=a)"}, "pattern", "the pattern is not a regular expression that runs in linear time"),
        (
            {"pattern": r"(a)\1"},
            "pattern",
            "the pattern is not a regular expression that runs in linear time",
        ),
        (
            {"patternProperties": {"(": {}}},
            "patternProperties/(",
            "the pattern is not a regular expression that runs in linear time",
        ),
        ({"$ref": "#/$defs/none"}, "", "Pointer '/$defs/none' does not exist"),
        ({"$ref": 5}, "$ref", "expected string, got integer 5"),
        ({"$schema": 5}, "$schema", "expected string, got integer 5"),
        ({"$id": "::"}, "", "Invalid URI reference '::': unexpected character at index 0"),
    ],
)
def test_a_flaw_is_told_with_its_place(document: Any, place: str, message: str) -> None:
    assert (place, message) in flaws(document)
    if isinstance(document, dict):
        assert schema.flaws(Schema.of(document)) == schema.flaws(document)


def test_the_hint_of_a_pattern_says_what_is_not_supported() -> None:
    (flaw,) = schema.flaws({"pattern": "(?<=a)b"})
    assert (
        flaw.hint == "check its brackets; look-around, back references and huge repetitions are not supported"
    )


def test_size_and_depth_have_limits() -> None:
    wide: dict[str, Any] = {"properties": {f"p{number}": {} for number in range(schema.NODES_MAX)}}
    assert flaws(wide) == [("", "the schema has more than 10000 parts")]
    deep: dict[str, Any] = {}
    for _ in range(schema.DEPTH_MAX // 2 + 1):
        deep = {"properties": {"a": deep}}
    assert [message for _, message in flaws(deep)] == ["the schema is nested more than 64 levels deep"]
    assert flaws(deep["properties"]["a"]) == []


@pytest.mark.parametrize(
    ("document", "pointer", "text"),
    [
        ({"$ref": "#"}, "$ref", "#"),
        ({"type": "object", "$ref": "#"}, "$ref", "#"),
        ({"allOf": [{"$ref": "#"}], "type": "object"}, "allOf[0].$ref", "#"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "anyOf[1].$ref", "#"),
        ({"oneOf": [{"$ref": "#"}]}, "oneOf[0].$ref", "#"),
        ({"not": {"$ref": "#"}}, "not.$ref", "#"),
        ({"if": {"$ref": "#"}, "then": {}}, "if.$ref", "#"),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "dependentSchemas.a.$ref", "#"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "$defs.a.$ref",
            "#/$defs/b",
        ),
        (
            {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
            "$defs.a.allOf[0].$ref",
            "#/$defs/a",
        ),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "properties.a.$ref", "#/properties/a"),
        ({"$anchor": "n", "$ref": "#n"}, "$ref", "#n"),
        ({"$dynamicAnchor": "n", "$dynamicRef": "#n"}, "$dynamicRef", "#n"),
        ({"$dynamicAnchor": "n", "allOf": [{"$dynamicRef": "#n"}]}, "allOf[0].$dynamicRef", "#n"),
        (
            {"$dynamicAnchor": "n", "$dynamicRef": "#n", "$ref": "#/$defs/a", "$defs": {"a": {}}},
            "$dynamicRef",
            "#n",
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "$recursiveAnchor": True,
                "anyOf": [{"$recursiveRef": "#"}],
            },
            "anyOf[0].$recursiveRef",
            "#",
        ),
    ],
)
def test_attack_a_schema_that_only_refers_to_itself(document: Any, pointer: str, text: str) -> None:
    """It says nothing, and a reader that follows the reference never ends."""
    (flaw,) = schema.flaws(document)
    assert (jsontext.place_text(flaw.pointer), flaw.message) == (
        pointer,
        f'"{text}" leads back to itself and never into a part of the value',
    )
    assert "below properties or items" in (flaw.hint or "")


@pytest.mark.parametrize(
    "document",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"prefixItems": [{"$ref": "#"}]},
        {"additionalProperties": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}},
        {"patternProperties": {"^a": {"$ref": "#"}}},
        {"propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"maxLength": 3}}},
        {"contains": {"$ref": "#"}},
        {"unevaluatedProperties": {"$ref": "#"}},
        {"$dynamicAnchor": "n", "properties": {"next": {"$dynamicRef": "#n"}}},
        {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}},
        {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {"anyOf": [{"type": "null"}, {"properties": {"left": {"$ref": "#/$defs/tree"}}}]}
            },
        },
    ],
)
def test_a_schema_may_refer_to_itself_for_parts_of_the_value(document: Any) -> None:
    assert schema.flaws(document) == ()


def test_references_count_as_what_they_refer_to() -> None:
    def ladder(rungs: int) -> dict[str, Any]:
        defs: dict[str, Any] = {f"r{rungs}": {"type": "string"}}
        for rung in range(rungs):
            defs[f"r{rung}"] = {"anyOf": [{"$ref": f"#/$defs/r{rung + 1}"}] * 2}
        return {"$defs": defs, "$ref": "#/$defs/r0"}

    refused = [("", "the schema has more than 10000 parts, references written out")]
    assert flaws(ladder(8)) == []
    assert flaws(ladder(16)) == refused
    by_anchor = {
        "$defs": {
            "a": {"$anchor": "a", "anyOf": [{"$ref": "#b"}] * 150},
            "b": {"$anchor": "b", "allOf": [{}] * 150},
        }
    }
    assert flaws({**by_anchor, "$ref": "#a"}) == refused
    inside_of_its_own = {"properties": {"a": {"$id": "https://example.org/inner", **ladder(16)}}}
    assert flaws(inside_of_its_own) == refused


@given(strategies.argument_schemas())
def test_a_text_that_looks_plain_is_judged_like_its_value(document: dict[str, Any]) -> None:
    assert schema.flaws(Schema.of(document)) == schema.flaws(document)


@given(strategies.json_values)
def test_no_value_makes_the_check_raise(value: Any) -> None:
    assert all(found.message for found in schema.flaws(value))


# -- does a value fit? --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "value", "expected"),
    [
        ({"type": "integer"}, "5", ['expected integer, got string "5"']),
        ({"type": ["integer", "null"]}, {}, ["expected null or integer, got object"]),
        ({"required": ["a"]}, {}, ["a: is required"]),
        ({"properties": {"a": {"required": ["b"]}}}, {"a": {}}, ["a.b: is required"]),
        (
            {"enum": ["day", "week"]},
            "weak",
            ['must be one of "day", "week" (got string "weak"); did you mean "week"?'],
        ),
        ({"enum": [1, None]}, 2, ["must be one of 1, null (got integer 2)"]),
        ({"const": "x"}, "y", ['must be "x" (got string "y")']),
        (
            {"properties": {"limit": {}}, "additionalProperties": False},
            {"limmit": 1},
            ['unknown name "limmit"; did you mean "limit"?'],
        ),
        (
            {"properties": {"c": {}}, "additionalProperties": False},
            {"a": 1, "b": 2},
            ['unknown name "a", "b"; it takes "c"'],
        ),
        (
            {"properties": {"at": {}, "timezone": {}}, "additionalProperties": False},
            {"tz": 1},
            ['unknown name "tz"; did you mean "timezone"?'],
        ),
        (
            {"properties": {"tz": {}, "at": {}}, "additionalProperties": False},
            {"x": 1, "timezone": 1},
            ['unknown name "x", "timezone"; did you mean "tz"?'],
        ),
        (
            {"properties": {"include_deleted": {}, "identifier": {}}, "additionalProperties": False},
            {"ID": 1},
            ['unknown name "ID"; did you mean "identifier"?'],
        ),
        (
            {"properties": {f"p{number:02}": {} for number in range(12)}, "additionalProperties": False},
            {"x": 1},
            ['unknown name "x"; it takes "' + '", "'.join(f"p{number:02}" for number in range(10)) + '", …'],
        ),
        ({"additionalProperties": False}, {"a": 1}, ["takes no names at all (got one with integer 1)"]),
        ({"properties": {"a": False}}, {"a": 1}, ["a: nothing is allowed here (got integer 1)"]),
        ({"minimum": 1}, 0, ["must be at least 1 (got integer 0)"]),
        ({"maximum": 1}, 1.5, ["must be at most 1 (got number 1.5)"]),
        ({"exclusiveMinimum": 1}, 1, ["must be more than 1 (got integer 1)"]),
        ({"exclusiveMaximum": 1}, 1, ["must be less than 1 (got integer 1)"]),
        ({"minLength": 2}, "a", ['must have at least 2 characters (got string "a")']),
        ({"maxLength": 2}, "abc", ["must have at most 2 characters (got 3)"]),
        ({"minItems": 2}, [1], ["must have at least 2 items (got 1)"]),
        ({"maxItems": 1}, [1, 2], ["must have at most 1 items (got 2)"]),
        ({"pattern": "^a$"}, "b", ['does not match the pattern ^a$ (got string "b")']),
        ({"uniqueItems": True}, [1, 1], ["has items that are the same"]),
        ({"items": {"type": "string"}}, ["a", 1], ["[1]: expected string, got integer 1"]),
        (
            {"properties": {"a": {"items": {"type": "string"}}}},
            {"a": [None]},
            ["a[0]: expected string, got null"],
        ),
    ],
)
def test_a_complaint_says_what_to_change(document: dict[str, Any], value: Any, expected: list[str]) -> None:
    assert told(document, value) == expected


def test_long_values_are_cut() -> None:
    (complaint,) = told({"type": "integer"}, "x" * 1000)
    assert complaint == 'expected integer, got string "' + "x" * 58 + "…"


def test_of_alternatives_the_one_that_was_meant_speaks() -> None:
    document = {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        ]
    }
    assert told(document, {"path": 5}) == ["path: expected string, got integer 5"]
    assert told(document, {}) == ["path: is required"]
    assert told({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5) == [
        "expected string or null, got integer 5"
    ]


def test_the_best_complaint_comes_first_and_none_comes_twice() -> None:
    document = {
        "properties": {"limit": {"type": "integer"}, "order": {"anyOf": [{"const": 1}, {"const": 2}]}},
        "required": ["name"],
        "additionalProperties": False,
        "allOf": [{"required": ["name"]}],
    }
    found = told(document, {"limmit": 1, "order": 3})
    assert found[0] == 'unknown name "limmit"; did you mean "limit"?'
    assert found.count("name: is required") == 1


def test_complaints_have_an_end() -> None:
    found = schema.complaints(Schema.of({"items": {"type": "string"}}), list(range(1000)))
    assert len(found) == schema.COMPLAINTS_MAX


def test_formats_are_remarks_and_defaults_are_never_filled_in() -> None:
    document = {"properties": {"a": {"format": "uri", "default": 1}}}
    value: dict[str, Any] = {"a": "no uri"}
    assert told(document, value) == []
    assert told(document, {}) == []
    assert value == {"a": "no uri"}


def test_references_lead_only_to_the_resources_handed_in() -> None:
    document = {"$ref": "https://example.org/other"}
    given_resources = {"https://example.org/other": {"type": "string"}}
    assert schema.compile_schema(document, given_resources).is_valid("x")
    assert not schema.compile_schema(document, given_resources).is_valid(5)
    with pytest.raises(Exception, match="references are never fetched"):
        schema.compile_schema(document)


@given(strategies.argument_schemas(), strategies.json_values)
def test_a_schema_without_flaws_judges_every_value(document: dict[str, Any], value: Any) -> None:
    assume(not schema.flaws(document))
    found = schema.complaints(Schema.of(document), value)
    assert (found == ()) == schema.compile_schema(document).is_valid(value)
    assert all(complaint.message for complaint in found)
