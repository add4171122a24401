"""What narrowing does to schemas: it widens, it says so, and it stops where a form ends."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.strategies import bare_arguments, make_tool, values_of
from toolcrib import schema as schemas
from toolcrib.dialects import DIALECTS, anthropic, gemini, mcp, ollama, openai
from toolcrib.dialects._narrowing import Form, Narrowed, narrow
from toolcrib.model import DeclareOptions, Schema, ToolMode

thorough = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
FORMS = {
    "openai": openai.PLAIN,
    "openai strict": openai.STRICT,
    "anthropic": anthropic.PLAIN,
    "anthropic strict": anthropic.STRICT,
    "gemini": gemini.SCHEMA,
    "gemini json": gemini.JSON_SCHEMA,
    "ollama": ollama.FORM,
    "mcp": mcp.FORM,
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))


def narrowed(document: Any, form: Form) -> Narrowed:
    return narrow(Schema.of(document), form, "manifest:s/t")


def losses(found: Narrowed) -> list[tuple[str, str]]:
    """Place and keyword of each loss."""
    return [("/".join(map(str, loss.pointer)), loss.keyword) for loss in found.losses]


def of(item: Any, **more: Any) -> dict[str, Any]:
    """An object with one property ``a``."""
    return {"type": "object", "properties": {"a": item}, **more}


def as_json_schema(node: Any) -> Any:
    """Gemini's ``nullable`` in the words of JSON Schema."""
    if isinstance(node, list):
        return [as_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: as_json_schema(value) for key, value in node.items()}
    return {"anyOf": [plain, {"type": "null"}]} if plain.pop("nullable", None) is True else plain


# -- properties ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in FORMS.values() if not form.all_required])
@thorough
@given(data=st.data(), document=bare_arguments)
def test_what_the_author_accepts_the_narrowed_schema_accepts(
    form: Form, data: st.DataObject, document: Any
) -> None:
    found = narrowed(document, form)
    assume(found.document is not None)
    value = data.draw(values_of(document, document["$defs"]))
    assert schemas.complaints(Schema.of(document), value) == ()
    assert jsonschema_rs.is_valid(as_json_schema(found.document), value)


@thorough
@given(data=st.data(), document=bare_arguments)
def test_whatever_a_strict_model_sends_the_author_accepts(data: st.DataObject, document: Any) -> None:
    tool = make_tool("t", document)
    declared = DIALECTS["openai"].declare([tool], DeclareOptions(mode=ToolMode.STRICT))
    function = declared.payload[0]["function"]
    assume(function.get("strict"))
    sent = data.draw(values_of(function["parameters"], {}))
    call = {"id": "c", "function": {"name": "t", "arguments": json.dumps(sent)}}
    [read] = DIALECTS["openai"].read_calls({"tool_calls": [call]}, declared.names)
    assert tool.input_schema is not None
    assert schemas.complaints(tool.input_schema, read.arguments) == ()
    assert json.loads(read.raw) == read.arguments


# -- a schema that fits is left alone -----------------------------------------------------------------------

MODEST = {
    "type": "object",
    "required": ["timezone"],
    "properties": {
        "timezone": {"type": "string", "description": "IANA"},
        "limit": {"type": "integer", "minimum": 1},
    },
}


@pytest.mark.parametrize("form", [openai.PLAIN, anthropic.PLAIN, gemini.SCHEMA, mcp.FORM])
def test_a_schema_that_fits_comes_out_as_it_was_written(form: Form) -> None:
    found = narrowed(MODEST, form)
    assert json.dumps(found.document) == json.dumps(MODEST)
    assert found.losses == ()


@pytest.mark.parametrize("form", [openai.PLAIN, anthropic.PLAIN, mcp.FORM])
def test_keywords_that_nobody_knows_pass_where_they_are_tolerated(form: Form) -> None:
    document = of({"type": "string", "x-ui": "wide"}, **{"x-own": {"type": 5}}, examples=[{}])
    assert narrowed(document, form).document == document


# -- references ---------------------------------------------------------------------------------------------

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "$defs": {
        "Node": {
            "type": "object",
            "description": "a node",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        }
    },
}


@pytest.mark.parametrize(
    "form", [gemini.SCHEMA, gemini.JSON_SCHEMA, ollama.FORM, openai.STRICT, anthropic.STRICT]
)
def test_references_are_written_out_where_the_form_has_none(form: Form) -> None:
    item = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
    found = narrowed({**of({"$ref": "#/$defs/B"}, required=["a"]), "$defs": {"B": item}}, form)
    assert found.document is not None
    assert found.document["properties"]["a"]["properties"] == {"b": {"type": "string"}}
    assert "$defs" not in found.document
    assert losses(found) == [("properties/a", "$ref")]


def test_what_stands_beside_a_reference_is_kept() -> None:
    document = {
        **of({"$ref": "#/$defs/B", "description": "mine"}),
        "$defs": {"B": {"type": "string", "description": "its"}},
    }
    found = narrowed(document, gemini.SCHEMA)
    assert found.document == of({"type": "string", "description": "mine"})


def test_a_schema_that_refers_to_itself_is_cut_where_it_repeats() -> None:
    found = narrowed(TREE, ollama.FORM)
    inner = {"type": "array", "items": {"type": "object", "description": "a node"}}
    assert found.document == {
        "type": "object",
        "properties": {
            "root": {"type": "object", "description": "a node", "properties": {"children": inner}}
        },
    }
    assert ("properties/root/properties/children/items", "$ref") in losses(found)


@pytest.mark.parametrize("form", [openai.STRICT, anthropic.STRICT])
def test_a_schema_that_refers_to_itself_cannot_be_strict(form: Form) -> None:
    assert narrowed(TREE, form).because == "it refers to itself at properties.root.properties.children.items"


@pytest.mark.parametrize("form", [openai.PLAIN, anthropic.PLAIN, mcp.FORM])
def test_references_stay_where_the_provider_follows_them(form: Form) -> None:
    assert narrowed(TREE, form).document == TREE


@every_form
@pytest.mark.parametrize(
    "target", ["https://example.com/x.json", "other.json#/a", "#/$defs/none", "#/properties/a/x"]
)
def test_a_reference_that_leads_nowhere_is_dropped_never_followed(form: Form, target: str) -> None:
    found = narrowed(of({"$ref": target, "type": "string"}), form)
    assert found.document is not None
    assert "$ref" not in found.document["properties"]["a"]
    assert ("properties/a", "$ref") in losses(found)


def test_an_anchor_and_an_escaped_pointer_are_found() -> None:
    document = {
        **of({"$ref": "#there"}),
        "$defs": {"x/y z": {"type": "integer"}, "w": {"$anchor": "there", "$ref": "#/$defs/x~1y%20z"}},
    }
    assert narrowed(document, gemini.SCHEMA).document == of({"type": "integer"})


@every_form
def test_references_that_multiply_without_end_are_stopped(form: Form) -> None:
    """Attack: thirty definitions, each of them twice the one before, are a thousand million nodes."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 30):
        both = {"$ref": f"#/$defs/d{number - 1}"}
        definitions[f"d{number}"] = {"type": "object", "properties": {"x": both, "y": both}}
    found = narrowed({**of({"$ref": "#/$defs/d29"}), "$defs": definitions}, form)
    if form.write_out:
        assert found.because in (
            "its schema is too large when references are written out",
            "its schema is too deep when references are written out",
        )
    else:
        assert found.document is not None


@every_form
@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_conjunctions_and_alternatives_that_multiply_are_stopped(form: Form, keyword: str) -> None:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 30):
        definitions[f"d{number}"] = {keyword: [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    for document in (of({"$ref": "#/$defs/d29"}), {"type": "object", keyword: [{"$ref": "#/$defs/d29"}] * 2}):
        found = narrowed({**document, "$defs": definitions}, form)
        assert found.document is not None or "too large" in found.because


@every_form
def test_references_in_a_circle_end(form: Form) -> None:
    circle = {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}
    for document in (
        of({"$ref": "#/$defs/A"}),
        {"$ref": "#/$defs/A"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#"},
    ):
        found = narrowed({**document, "$defs": circle}, form)
        assert found.document is not None or found.because


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form.write_out])
def test_references_that_nest_too_deep_are_stopped(form: Form) -> None:
    """Attack: definitions that are shallow, but a thousand levels deep when they are written out."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 101):
        item: Any = {"$ref": f"#/$defs/d{number - 1}"}
        for _ in range(10):
            item = {"type": "object", "properties": {"x": item}}
        definitions[f"d{number}"] = item
    found = narrowed({**of({"$ref": "#/$defs/d100"}), "$defs": definitions}, form)
    assert found.because == "its schema is too deep when references are written out"


def test_a_circle_through_conjunctions_is_cut() -> None:
    again = {"allOf": [{"$ref": "#/$defs/Node"}]}
    node = {"type": "object", "properties": {"next": again, "v": {"type": "string"}}}
    found = narrowed({**of(again), "$defs": {"Node": node}}, ollama.FORM)
    assert found.document == of(
        {"type": "object", "properties": {"next": {"type": "object"}, "v": {"type": "string"}}}
    )


def test_a_circle_through_alternatives_is_cut() -> None:
    definitions = {
        "A": {"anyOf": [{"$ref": "#/$defs/B"}, {"properties": {"b": {"type": "string"}}}]},
        "B": {"anyOf": [{"$ref": "#/$defs/A"}]},
    }
    found = narrowed(
        {**of({"type": "string"}), "anyOf": [{"$ref": "#/$defs/A"}], "$defs": definitions}, ollama.FORM
    )
    assert found.document == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
    }


# -- alternatives, conjunctions and nulls -------------------------------------------------------------------


@pytest.mark.parametrize("form", [openai.PLAIN, anthropic.PLAIN, gemini.SCHEMA, ollama.FORM])
@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_alternatives_at_the_root_become_one_object(form: Form, keyword: str) -> None:
    document = {
        "type": "object",
        "properties": {"mode": {"type": "string"}},
        "required": ["mode"],
        keyword: [
            {"properties": {"id": {"type": "string"}, "n": {"type": "integer"}}, "required": ["id", "n"]},
            {"properties": {"id": {"type": "string"}, "q": {"type": "string"}}, "required": ["id"]},
        ],
    }
    found = narrowed(document, form)
    assert found.document is not None
    assert list(found.document["properties"]) == ["mode", "id", "n", "q"]
    assert found.document["required"] == ["mode", "id"]
    assert losses(found) == [("", keyword)]


def test_a_conjunction_at_the_root_is_merged() -> None:
    document = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}, "required": ["a"]},
            {
                "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"type": "string"}},
                "required": ["b"],
            },
        ]
    }
    found = narrowed(document, gemini.SCHEMA)
    assert found.document == {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }


def test_a_conjunction_that_contradicts_itself_keeps_its_first_part_and_says_so() -> None:
    found = narrowed(of({"allOf": [{"pattern": "a", "type": "string"}, {"pattern": "b"}]}), gemini.SCHEMA)
    assert found.document == of({"pattern": "a", "type": "string"})
    assert ("properties/a", "pattern") in losses(found)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        (
            {"type": ["string", "null"], "enum": ["x", None]},
            {"type": "string", "enum": ["x"], "nullable": True},
        ),
        ({"enum": ["x", None]}, {"enum": ["x"], "type": "string", "nullable": True}),
        ({"type": ["null"]}, {"type": "null"}),
        (
            {"type": ["string", "integer", "null"], "minLength": 2, "minimum": 1, "description": "d"},
            {
                "description": "d",
                "anyOf": [{"type": "string", "minLength": 2}, {"type": "integer", "minimum": 1}],
                "nullable": True,
            },
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True},
        ),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"const": "x"}, {"enum": ["x"], "type": "string"}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "description": "one of: [1,2]"}),
        (
            {"type": "integer", "exclusiveMinimum": 0, "description": "d"},
            {"type": "integer", "description": "d (exclusiveMinimum: 0)"},
        ),
        ({"type": "string", "default": "x", "title": "T"}, {"type": "string", "description": 'default: "x"'}),
        ({"type": "string", "format": "uri"}, {"type": "string", "description": 'format: "uri"'}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
    ],
)
def test_gemini_says_it_in_its_own_words(written: Any, said: Any) -> None:
    assert narrowed(of(written), gemini.SCHEMA).document == of(said)


def test_ollama_writes_an_optional_value_as_a_list_of_types() -> None:
    found = narrowed(of({"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"}), ollama.FORM)
    assert found.document == of({"description": "d", "type": ["string", "null"]})
    found = narrowed(of({"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]}), ollama.FORM)
    assert found.document == of({"type": ["string", "null"], "enum": ["x", None]})


# -- strict -------------------------------------------------------------------------------------------------


def test_strict_closes_and_requires_at_every_depth() -> None:
    document = of(
        {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        required=["a"],
    )
    found = narrowed(document, openai.STRICT)
    assert found.document == {
        "type": "object",
        "properties": {
            "a": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"n": {"type": ["integer", "null"]}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert found.nullable == (("properties", "a", "items", "properties", "n"),)
    assert found.losses == ()


@pytest.mark.parametrize(
    ("optional", "nullable"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        (
            {"type": "string", "enum": ["F"], "description": "d"},
            {"description": "d", "anyOf": [{"type": "string", "enum": ["F"]}, {"type": "null"}]},
        ),
        ({"const": 1}, {"anyOf": [{"const": 1}, {"type": "null"}]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        ),
    ],
)
def test_an_optional_property_becomes_nullable_in_strict_mode(optional: Any, nullable: Any) -> None:
    found = narrowed(of(optional), openai.STRICT)
    assert found.document is not None
    assert found.document["properties"]["a"] == nullable
    assert found.nullable == (("properties", "a"),)


@pytest.mark.parametrize(
    "already",
    [
        {"type": ["string", "null"]},
        {"enum": ["x", None]},
        {"type": "null"},
        {"const": None},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ],
)
def test_a_null_that_the_author_allows_is_not_taken_away(already: Any) -> None:
    found = narrowed(of(already), openai.STRICT)
    assert found.document is not None
    assert found.document["properties"]["a"] == already
    assert found.nullable == ()


def test_a_null_with_two_meanings_cannot_be_strict() -> None:
    document = of(
        {
            "anyOf": [
                {"type": "object", "properties": {"k": {"const": 1}, "v": {"type": "string"}}},
                {"type": "object", "properties": {"v": {"type": "null"}}, "required": ["v"]},
            ]
        }
    )
    assert narrowed(document, openai.STRICT).because == "null would have two meanings at a.v"


@pytest.mark.parametrize(
    ("item", "because"),
    [
        ({"type": "object"}, "it has an open object at properties.a"),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            "it has an open object at properties.a",
        ),
        ({"type": "object", "patternProperties": {"x": {}}}, "it has an open object at properties.a"),
        ({"description": "anything"}, "it takes a value of any type at properties.a"),
        (True, "it takes a value of any type at properties.a"),
        ({"type": "array"}, "it has an array of anything at properties.a"),
    ],
)
@pytest.mark.parametrize("form", [openai.STRICT, anthropic.STRICT])
def test_what_is_open_cannot_be_strict(form: Form, item: Any, because: str) -> None:
    found = narrowed(of(item), form)
    assert (found.document, found.because) == (None, because)


def test_an_object_that_is_closed_and_empty_can_be_strict() -> None:
    found = narrowed(of({"type": "object", "additionalProperties": False}, required=["a"]), openai.STRICT)
    assert found.document is not None
    assert found.document["properties"]["a"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {},
        "required": [],
    }


def deep(levels: int) -> dict[str, Any]:
    return of(deep(levels - 1)) if levels > 1 else of({"type": "string"})


@pytest.mark.parametrize(
    ("document", "because"),
    [
        (deep(11), "it has 11 levels, more than 10"),
        (
            {"type": "object", "properties": {f"p{number}": {"type": "null"} for number in range(5001)}},
            "it has 5001 properties, more than 5000",
        ),
        (of({"enum": list(range(1001))}), "it has 1001 enum values, more than 1000"),
        (
            of({"enum": ["x" * 100 + str(number) for number in range(251)]}),
            "it has an enum of more than 15000 characters",
        ),
        (
            of({"enum": ["x" * 1000 + str(number) for number in range(130)]}),
            "it has 130281 characters in names and values, more than 120000",
        ),
    ],
)
def test_a_schema_beyond_the_limits_cannot_be_strict(document: Any, because: str) -> None:
    assert narrowed(document, openai.STRICT).because == because


def test_arrays_are_levels_too() -> None:
    item: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        item = {"type": "array", "items": item}
    assert narrowed(of(item), openai.STRICT).because == "it has 11 levels, more than 10"


def test_ten_levels_are_taken() -> None:
    assert narrowed(deep(10), openai.STRICT).document is not None


# -- arrays -------------------------------------------------------------------------------------------------

TEXT = {"type": "string"}


@pytest.mark.parametrize("form", [openai.PLAIN, mcp.FORM])
@pytest.mark.parametrize(
    ("array", "written"),
    [
        ({"unevaluatedItems": False}, {"items": False}),
        ({"unevaluatedItems": TEXT}, {"items": TEXT}),
        ({"prefixItems": [TEXT], "unevaluatedItems": False}, {"prefixItems": [TEXT], "items": False}),
        ({"contains": TEXT, "unevaluatedItems": False}, {"contains": TEXT, "items": {}}),
    ],
)
def test_added_items_never_switch_off_unevaluated_items_in_silence(
    form: Form, array: dict[str, Any], written: dict[str, Any]
) -> None:
    found = narrowed(of({"type": "array", **array}), form)
    assert found.document == of({"type": "array", **written})
    assert losses(found)[0] == ("properties/a", "unevaluatedItems")


def test_unevaluated_items_pass_where_the_author_stated_items_or_nothing_has_to_be_added() -> None:
    for form, array in (
        (openai.PLAIN, {"items": {}, "unevaluatedItems": False}),
        (mcp.FORM, {"items": TEXT, "unevaluatedItems": False}),
        (anthropic.PLAIN, {"prefixItems": [TEXT], "unevaluatedItems": False}),
    ):
        document = of({"type": "array", **array})
        found = narrowed(document, form)
        assert (found.document, found.losses) == (document, ())


def test_a_form_that_does_not_take_unevaluated_items_takes_them_as_items() -> None:
    for form in (openai.STRICT, anthropic.STRICT, gemini.SCHEMA, ollama.FORM):
        document = narrowed(of({"type": "array", "unevaluatedItems": TEXT}), form).document
        assert document is not None
        assert document["properties"]["a"]["items"] == TEXT


def test_in_a_draft_that_does_not_know_unevaluated_items_they_are_no_items() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    found = narrowed({**draft, **of({"type": "array", "unevaluatedItems": False})}, mcp.FORM)
    assert found.document == {**draft, **of({"type": "array", "unevaluatedItems": False, "items": {}})}


# -- drafts and nonsense ------------------------------------------------------------------------------------


def test_keywords_of_older_drafts_are_rewritten() -> None:
    document = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        **of(
            {
                "type": "array",
                "items": [{"type": "number", "minimum": 1, "exclusiveMinimum": True}],
                "additionalItems": {"type": "string"},
            }
        ),
    }
    found = narrowed(document, anthropic.PLAIN)
    assert found.document == of(
        {
            "type": "array",
            "prefixItems": [{"type": "number", "exclusiveMinimum": 1}],
            "items": {"type": "string"},
        }
    )
    assert losses(found) == [("", "$schema")]


def test_mcp_keeps_an_older_draft_that_says_so() -> None:
    document = {"$schema": "http://json-schema.org/draft-07/schema#", **of({"type": "array", "items": [{}]})}
    found = narrowed(document, mcp.FORM)
    assert (found.document, found.losses) == (document, ())


@every_form
@pytest.mark.parametrize(
    ("document", "because"),
    [
        ({"type": "strin"}, 'its schema is not valid: type: must be one of "array", "boolean"...'),
        (
            {"type": "object", "properties": 5},
            "its schema is not valid: properties: expected object, got integer 5",
        ),
        ({"type": "string"}, 'its arguments are no object (type "string")'),
        (
            {"type": "object", "required": "a"},
            'its schema is not valid: required: expected array, got string "a"',
        ),
    ],
)
def test_a_schema_that_is_none_is_refused_with_the_reason(form: Form, document: Any, because: str) -> None:
    found = narrowed(document, form)
    assert found.document is None
    assert found.because.startswith(because.removesuffix("..."))


@every_form
def test_a_dialect_nobody_knows_is_dropped_never_fetched(form: Form) -> None:
    """Attack: a validator fetches an unknown dialect to learn its rules."""
    found = narrowed({"$schema": "https://example.com/evil", **of({"type": "string"})}, form)
    assert found.document is not None
    assert "$schema" not in found.document
    assert ("", "$schema") in losses(found)


@every_form
def test_a_schema_too_deep_to_walk_is_refused(form: Form) -> None:
    """Attack: nesting that exhausts the stack of whoever walks it."""
    text = b'{"properties":{"a":' * 5000 + b"{}" + b"}}" * 5000
    assert narrow(Schema(text), form, "k").document is None
    document: dict[str, Any] = {}
    for _ in range(80):
        document = {"properties": {"a": document}}
    assert narrowed(document, form).because == "its schema is too large"


def test_patterns_are_kept_where_they_are_taken() -> None:
    for pattern, kept in {
        "^[a-z]+$": True,
        "(?=x)": False,
        r"(a)\1": False,
        r"\p{L}": False,
        "[": False,
    }.items():
        found = narrowed(of({"type": "string", "pattern": pattern}), openai.PLAIN)
        assert found.document is not None
        assert ("pattern" in found.document["properties"]["a"]) is kept
    for pattern, kept in {"(?=x)": True, "[": False}.items():
        found = narrowed(of({"type": "string", "pattern": pattern}), anthropic.PLAIN)
        assert found.document is not None
        assert ("pattern" in found.document["properties"]["a"]) is kept


def test_a_property_whose_name_is_refused_is_left_out_or_refuses_the_tool() -> None:
    document = {"type": "object", "properties": {"a b": {"type": "string"}, "ok": {"type": "string"}}}
    found = narrowed(document, anthropic.PLAIN)
    assert found.document == {"type": "object", "properties": {"ok": {"type": "string"}}}
    assert losses(found) == [("properties/a b", "properties")]
    refused = narrowed({**document, "required": ["a b"]}, anthropic.PLAIN)
    assert refused.because == 'Anthropic refuses the name of its property "a b"'
