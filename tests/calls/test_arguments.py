"""Arguments are checked, and made what each format promises its tools."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies import json_values
from toolcrib.calls.arguments import Checked, check, checked
from toolcrib.errors import Kind
from toolcrib.model import (
    AsArgv,
    Intake,
    Invocation,
    NotCallable,
    Origin,
    RunProcess,
    Schema,
    Tool,
    ToolCall,
    ToolError,
    Words,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "default": 10},
        "replace": {"type": "boolean"},
        "filter": {"type": "object", "properties": {"kind": {"type": "string", "default": "any"}}},
    },
    "required": ["query"],
    "additionalProperties": False,
}


ARGV = RunProcess(program="git", encoding=AsArgv())


def tool(schema: dict[str, Any] | None = SCHEMA, invocation: Invocation | None = None, **intake: Any) -> Tool:
    return Tool(
        key="x:y/t",
        name="t",
        scope="y",
        origin=Origin(format="x", path="/x"),
        invocation=invocation or NotCallable(reason=""),
        input_schema=None if schema is None else Schema.of(schema),
        intake=Intake(**intake),
    )


def message(found: object) -> str:
    assert isinstance(found, ToolError), found
    assert found.kind is Kind.INVALID_ARGUMENTS
    return found.message


def fitting(of: Tool, arguments: object, raw: str = "") -> Checked:
    found = checked(of, arguments, raw)
    assert isinstance(found, Checked), found
    return found


def arguments(of: Tool, given: object) -> object:
    return fitting(of, given).arguments


# -- an object, and nothing else ----------------------------------------------------------------------------


@pytest.mark.requirement("skill.args.object-arguments", "manifest.run.stdin-invalid")
@pytest.mark.parametrize(
    ("given", "raw", "words"),
    [
        (["x"], '["x"]', "arguments must be an object"),
        (["x"], "", "arguments must be an object"),
        ("x", '"x"', "arguments must be an object"),
        (None, "5", "arguments must be an object"),
        (None, "{bad", "invalid JSON: line 1, column 2: "),
        (None, "bad", "invalid JSON: line 1, column 1: "),
        (None, "{} {}", "invalid JSON: line 1, column 4: "),
        (None, '{"a":1,"a":2}', 'invalid JSON: line 1: "a" stands there twice'),
        (None, '{"a":NaN}', "invalid JSON: line 1, column 6: NaN is not a JSON number"),
        (None, '{"a":"\\u0000"}', "NUL"),
    ],
)
def test_what_is_no_object_is_refused(given: object, raw: str, words: str) -> None:
    assert words in message(checked(tool(), given, raw))
    call = ToolCall(id="1", tool="t", arguments=None, raw=raw, defect="the arguments are wrong")
    if raw:
        assert words in message(check(tool(), call))


@pytest.mark.requirement("manifest.run.stdin-empty")
def test_blank_arguments_are_an_empty_object() -> None:
    for raw in ("", " \n", "{}"):
        call = ToolCall(id="1", tool="t", arguments=None if raw != "{}" else {}, raw=raw)
        found = check(tool(None), call)
        assert isinstance(found, Checked)
        assert found.arguments == {}


def test_a_defect_that_only_the_door_saw_is_told() -> None:
    call = ToolCall(id="1", tool="t", arguments=None, raw="{}", defect="too many at once")
    assert message(check(tool(None), call)) == "too many at once"


@pytest.mark.requirement("skill.positional.nul-byte")
@pytest.mark.battery("B04", "B05")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a\0b", "has a NUL character"),
        ("\ud800", "has a lone surrogate, which is no character"),
        (["\udcff"], "has a lone surrogate, which is no character"),
        ([{"k": "\0"}], "has a NUL character"),
        ({"\0": 1}, "has a NUL character"),
    ],
)
def test_characters_that_no_program_can_be_given_are_refused_in_any_string(value: Any, words: str) -> None:
    assert words in message(checked(tool(None), {"x": value}))
    assert message(checked(tool(None, ARGV), {"x": value})).startswith("exec failed: parameter x")
    raw = json.dumps({"x": value})
    assert message(checked(tool(None, ARGV), None, raw)).startswith("exec failed: ")


def test_a_text_about_nul_is_not_nul() -> None:
    assert arguments(tool(None), {"x": "\\u0000 and null"}) == {"x": "\\u0000 and null"}


def test_values_that_json_does_not_have_are_refused() -> None:
    for value in (float("nan"), float("-inf"), object(), b"x", {1: 2}, {(1,): 2}, 10**5000, {1}):
        message(checked(tool(None), {"x": [value]}))


def test_integers_of_any_sensible_length_and_deep_values_have_their_limits() -> None:
    assert arguments(tool(None), {"x": 10**30}) == {"x": 10**30}
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    assert "nested more than 100 levels deep" in message(checked(tool(None), {"x": deep}))
    endless: list[Any] = []
    endless += [endless, endless]
    assert "hold more than 1000000 values" in message(checked(tool(None), {"x": endless}))


# -- the schema ---------------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "skill.tools.arguments-validated",
    "manifest.schema.arguments",
    "executable.call.validated",
    "capability.tool.input-validated",
)
def test_arguments_that_do_not_fit_are_refused_with_all_complaints() -> None:
    found = checked(tool(), {})
    assert message(found) == "query: is required"
    assert isinstance(found, ToolError)
    assert found.details == {"violations": [{"pointer": "/query", "message": "is required"}]}
    told = message(checked(tool(), {"query": 5, "limt": 1}))
    assert 'unknown name "limt"; did you mean "limit"?' in told
    assert "query: expected string, got integer 5" in told
    names = [f"n{number}" for number in range(30)]
    all_of_them = message(checked(tool({"type": "object", "required": names}), {}))
    assert all(f"{name}: is required" in all_of_them for name in names)


@pytest.mark.requirement("capability.tool.input-validated")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, 5),
        ({"enum": ["a"]}, "b"),
        ({"type": "array", "items": {"type": "string"}}, [1]),
        ({"minimum": 1}, 0),
        ({"maximum": 1}, 2),
    ],
)
def test_the_usual_keywords_are_checked(schema: dict[str, Any], value: object) -> None:
    of = tool({"type": "object", "properties": {"date": schema}})
    assert message(checked(of, {"date": value})).startswith("date")


@pytest.mark.requirement("manifest.schema.keywords")
def test_what_a_manifest_may_say_is_checked_and_descriptions_refuse_nothing() -> None:
    of = tool(
        {
            "type": "object",
            "properties": {
                "timezone": {
                    "type": "string",
                    "description": "Zone",
                    "default": 5,
                    "pattern": "^[A-Za-z/]+$",
                },
                "nested": {"type": "object", "additionalProperties": False, "properties": {"a": {}}},
            },
            "required": ["timezone"],
            "additionalProperties": False,
        }
    )
    assert arguments(of, {"timezone": "x"}) == {"timezone": "x"}
    assert 'unknown name "extra"' in message(checked(of, {"timezone": "x", "extra": 1}))
    assert "nested" in message(checked(of, {"timezone": "x", "nested": {"b": 1}}))
    assert "timezone" in message(checked(of, {"timezone": "1"}))


@pytest.mark.requirement("skill.tools.extra-arguments")
def test_names_that_the_schema_does_not_list_pass_unless_it_says_otherwise() -> None:
    open_schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    assert arguments(tool(open_schema), {"path": "p", "start_line": 3}) == {"path": "p", "start_line": 3}


@pytest.mark.requirement(
    "manifest.schema.no-defaults",
    "executable.params.no-defaults",
    "rye.schema.defaults",
    "capability.tool.input-default",
)
def test_defaults_are_filled_in_only_where_the_format_says_so() -> None:
    given = {"query": "a", "filter": {}}
    assert arguments(tool(), given) is given
    filled = {"query": "a", "filter": {"kind": "any"}, "limit": 10}
    found = fitting(tool(fill_defaults=True), given, '{"query": "a", "filter": {}}')
    assert found.arguments == filled
    assert json.loads(found.raw) == filled
    assert given == {"query": "a", "filter": {}}, "the caller's own value is left alone"


@pytest.mark.requirement("capability.tool.input-default", "rye.schema.defaults")
@pytest.mark.parametrize("default", [False, 0, "", None, [], {}])
def test_a_default_that_is_false_is_filled_in_as_any_other(default: object) -> None:
    of = tool({"type": "object", "properties": {"x": {"default": default}}}, fill_defaults=True)
    assert arguments(of, {}) == {"x": default}


@pytest.mark.requirement("capability.tool.input-default", "rye.schema.defaults")
@pytest.mark.parametrize("given", [None, False, 0, "", [], {}])
def test_a_value_that_was_given_is_kept_though_it_is_false(given: object) -> None:
    of = tool({"type": "object", "properties": {"x": {"default": 10}}}, fill_defaults=True)
    assert arguments(of, {"x": given}) == {"x": given}


@pytest.mark.requirement("rye.schema.defaults")
def test_the_documents_own_defaults_are_filled_in() -> None:
    schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "content": {"type": "string"},
            "timeout": {"type": "integer", "default": 120},
            "mode": {"type": "string", "enum": ["overwrite", "append"], "default": "overwrite"},
            "tags": {"type": "array", "default": []},
            "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"default": 1}}}},
        },
        "required": ["file_path", "content"],
    }
    of = tool(schema, fill_defaults=True)
    found = fitting(of, {"file_path": "a", "content": "b", "rows": [{}, {"n": 2}]}).arguments
    assert (found["timeout"], found["mode"], found["rows"]) == (120, "overwrite", [{"n": 1}, {"n": 2}])
    found["tags"].append("changed by the tool")
    assert fitting(of, {"file_path": "a", "content": "b"}).arguments["tags"] == []


@pytest.mark.requirement("executable.call.null-optional")
def test_null_for_an_optional_name_counts_as_absent_where_the_format_says_so() -> None:
    assert arguments(tool(drop_null_optional=True), {"query": "a", "limit": None}) == {"query": "a"}
    assert message(checked(tool(), {"query": "a", "limit": None})) == "limit: expected integer, got null"
    assert "query" in message(checked(tool(drop_null_optional=True), {"query": None}))
    edit = {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "replace_all": {"type": "boolean"}},
        "required": ["file_path"],
    }
    found = fitting(tool(edit, drop_null_optional=True), {"file_path": "a", "replace_all": None})
    assert (found.arguments, found.raw) == ({"file_path": "a"}, '{"file_path":"a"}')


@pytest.mark.requirement("executable.call.null-optional", "executable.call.validated")
@pytest.mark.parametrize("value", [False, 0, "", [], {}])
def test_nothing_but_null_counts_as_absent(value: object) -> None:
    given = {"x": value, "left_out": None}
    anything = {"type": "object", "properties": {"x": {}}}
    assert arguments(tool(anything, drop_null_optional=True), given) == {"x": value}
    bounded = {"type": "object", "properties": {"x": {"type": "number", "minimum": 1}}}
    assert message(checked(tool(bounded, drop_null_optional=True), given)).startswith("x: ")


@pytest.mark.requirement("skill.tools.arguments-validated")
@pytest.mark.parametrize("value", [True, "TRUE", "false", 0, 7])
def test_a_switch_takes_words_and_whole_numbers(value: object) -> None:
    given = {"query": "a", "replace": value}
    of = tool(lenient_booleans=("replace",))
    assert arguments(of, given) == given, "argv is built from the value as it came"
    assert "replace" in message(checked(of, {"query": "a", "replace": "yes"}))


@pytest.mark.requirement("rye.run.reserved-names", "rye.resolve.caller-key")
def test_reserved_names_never_reach_the_tool_and_are_noted() -> None:
    of = tool(None, reserved_names=("cwd", "resolved_config", "__*"))
    found = fitting(of, {"a": 1, "cwd": "/", "__x": 2, "resolved_config": {"k": 1}}, '{"a": 1}')
    assert (found.arguments, found.raw) == ({"a": 1}, '{"a":1}')
    assert found.notes == ('dropped, because only the runtime sets them: "cwd", "__x", "resolved_config"',)


@pytest.mark.requirement("rye.run.reserved-names")
def test_names_that_the_tools_own_schema_declares_pass() -> None:
    """The format leaves declared names out of the reserved ones."""
    schema = {"type": "object", "properties": {"timeout": {"type": "integer"}}}
    found = fitting(tool(schema, reserved_names=("cwd",)), {"timeout": 5, "cwd": "/x"})
    assert found.arguments == {"timeout": 5}


# -- the rye format's words ---------------------------------------------------------------------------------


@pytest.mark.requirement(
    "rye.schema.messages",
    "rye.schema.validated",
    "rye.schema.type-boolean",
    "rye.schema.string-limits",
    "rye.schema.array",
    "rye.schema.object",
    "rye.schema.enum-type",
    "rye.schema.bounds",
)
@pytest.mark.parametrize(
    ("name", "part", "value", "told"),
    [
        (
            "mode",
            {"enum": ["overwrite", "append"]},
            "x",
            "mode: must be one of ['overwrite', 'append'], got 'x'",
        ),
        ("n", {"enum": [1, 2]}, 3, "n: must be one of [1, 2], got 3"),
        ("n", {"type": "integer"}, "5", "n: expected integer, got string"),
        ("n", {"type": "integer"}, True, "n: expected integer, got boolean"),
        ("n", {"type": "number"}, True, "n: expected number, got boolean"),
        ("n", {"type": "integer"}, 1.5, "n: expected integer, got number"),
        ("n", {"type": "string"}, None, "n: expected string, got null"),
        ("n", {"minimum": 1}, 0, "n: must be >= 1, got 0"),
        ("replicas", {"maximum": 10}, 11, "replicas: must be <= 10, got 11"),
        ("n", {"exclusiveMinimum": 1}, 1, "n: must be > 1, got 1"),
        ("id", {"pattern": "^[a-z]+$"}, "A", "id: does not match pattern ^[a-z]+$"),
        ("p", {"minItems": 1}, [], "p: must have at least 1 items, got 0"),
        ("p", {"maxItems": 1}, [1, 2], "p: must have at most 1 items, got 2"),
        ("p", {"items": {"type": "string"}}, ["a", 5], "p[1]: expected string, got integer"),
        ("s", {"minLength": 3}, "ab", "s: must have at least 3 characters, got 2"),
        ("s", {"maxLength": 1}, "éé", "s: must have at most 1 characters, got 2"),
        ("o", {"required": ["k"]}, {}, "o.k: required field missing"),
        ("o", {"properties": {}, "additionalProperties": False}, {"e": 1}, "o.e: unknown field"),
        (
            "o",
            {"properties": {"limit": {}}, "additionalProperties": False},
            {"limt": 1},
            'o.limt: unknown field; did you mean "limit"?',
        ),
        ("o", {"uniqueItems": True}, [1, 1], "o: has items that are the same"),
    ],
)
def test_violations_have_the_shapes_of_the_field(
    name: str, part: dict[str, Any], value: object, told: str
) -> None:
    of = tool({"type": "object", "properties": {name: part}}, words=Words.FIELDS)
    assert message(checked(of, {name: value})) == f"Parameter validation failed: {told}"


@pytest.mark.requirement("rye.schema.array")
@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ({"minItems": 1}, [1], []),
        ({"maxItems": 1}, [1], [1, 2]),
        ({"items": {"type": "string"}}, ["a", "b"], ["a", 5]),
        ({"items": {"type": "array", "maxItems": 1}}, [[], [1]], [[1], [1, 2]]),
    ],
)
def test_a_list_is_checked_to_its_limits_also_where_it_came_as_a_text(
    part: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    of = tool({"type": "object", "properties": {"p": {"type": "array", **part}}}, words=Words.FIELDS)
    for value in (good, json.dumps(good)):
        assert arguments(of, {"p": value}) == {"p": good}
    for value in (bad, json.dumps(bad)):
        assert message(checked(of, {"p": value})).startswith("Parameter validation failed: p")


@pytest.mark.requirement("rye.schema.validated", "rye.schema.messages")
def test_all_violations_stand_in_one_error() -> None:
    schema = {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "n": {"minimum": 1}},
        "required": ["file_path", "f"],
    }
    told = message(checked(tool(schema, words=Words.FIELDS), {"n": 0}))
    assert told.startswith("Parameter validation failed: ")
    for words in ("file_path: required field missing", "f: required field missing", "n: must be >= 1, got 0"):
        assert words in told


@pytest.mark.requirement(
    "rye.schema.type-number", "rye.schema.string-limits", "rye.schema.bounds", "rye.schema.object"
)
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ({"type": "number"}, 3),
        ({"type": "integer"}, 1.0),
        ({"pattern": "b"}, "abc"),
        ({"maximum": 10}, 10),
        ({"minLength": 2}, "éé"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"a": 1}),
    ],
)
def test_what_fits_is_fine(part: dict[str, Any], value: object) -> None:
    of = tool({"type": "object", "properties": {"n": part}}, words=Words.FIELDS)
    assert arguments(of, {"n": value}) == {"n": value}


# -- repair -------------------------------------------------------------------------------------------------

LISTS = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}},
        "maybe": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        "either": {"type": ["string", "array"]},
        "text": {"type": "string"},
        "n": {"type": "integer"},
    },
}


def test_a_list_written_as_text_is_read_where_the_schema_wants_a_list() -> None:
    raw = '{"tags": "[\\"a\\"]", "text": "[1]"}'
    found = fitting(tool(LISTS), json.loads(raw), raw)
    assert found.arguments == {"tags": ["a"], "text": "[1]"}
    assert json.loads(found.raw) == found.arguments
    assert found.notes == ("tags: it was a text of JSON and was read as an array",)
    nested = fitting(tool(LISTS), {"where": {"ids": " [1, 2]"}, "maybe": "[]", "tags": '["b"]'})
    assert nested.arguments == {"where": {"ids": [1, 2]}, "maybe": [], "tags": ["b"]}
    assert len(nested.notes) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "[1]"},
        {"tags": "a, b"},
        {"tags": '{"a": 1}'},
        {"tags": '["a", NaN]'},
        {"tags": "["},
        {"where": "[1]"},
        {"where": '{"ids": 1, "ids": [1]}'},
        {"n": "5"},
    ],
)
def test_what_does_not_fit_when_read_is_refused_as_it_came(given: dict[str, Any]) -> None:
    (name,) = given
    assert message(checked(tool(LISTS), given)).startswith(f"{name}: expected")


def test_a_string_where_strings_are_welcome_stays_one() -> None:
    found = fitting(tool(LISTS), {"either": '["a"]', "text": "{}"})
    assert (found.arguments, found.notes) == ({"either": '["a"]', "text": "{}"}, ())


def test_what_is_wrong_besides_is_told_alone() -> None:
    assert message(checked(tool(LISTS), {"tags": '["a"]', "n": "x"})) == 'n: expected integer, got string "x"'


# -- hostile values -----------------------------------------------------------------------------------------


def took_s(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


TREE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}, "name": {"type": "string"}},
    "required": ["id"],
    "$defs": {
        "node": {
            "anyOf": [
                {"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}}, "required": ["child"]},
                {
                    "type": "object",
                    "properties": {"child": {"$ref": "#/$defs/node"}},
                    "required": ["child"],
                    "minProperties": 1,
                },
                {"type": "null"},
            ]
        }
    },
}


def nested(levels: int, leaf: object) -> Any:
    value: Any = leaf
    for _ in range(levels):
        value = {"child": value}
    return value


@pytest.mark.battery("H03")
@pytest.mark.parametrize("levels", [12, 30, 90])
def test_a_deep_wrong_value_against_alternatives_is_refused_at_once(levels: int) -> None:
    """Attack: complaints about every alternative at every level, which double with each level."""
    of = tool(TREE)
    given = {"tree": nested(levels, 5), "name": "a"}
    told = message(checked(of, given))
    assert "id: is required" in told
    assert "tree: does not fit its schema (got object)" in told
    assert "name" not in told
    assert took_s(lambda: checked(of, given)) < 0.5
    assert arguments(of, {"tree": nested(levels, None), "id": 1}) is not None


def test_a_shallow_wrong_value_against_alternatives_is_told_exactly() -> None:
    told = message(checked(tool(TREE), {"tree": nested(3, 5), "id": 1}))
    assert told == "tree.child.child.child: expected object, got integer 5"


@pytest.mark.battery("H03")
@pytest.mark.parametrize(
    "part",
    [
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "null"}},
            ]
        },
        {"$ref": "#/$defs/all"},
        {"$ref": "#named"},
    ],
)
def test_a_long_wrong_value_is_refused_at_once(part: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"x": part},
        "$defs": {
            "all": {"allOf": [{"items": {"$ref": "#/$defs/all"}}] * 2, "type": ["array", "boolean"]},
            "named": {"$anchor": "named", "items": {"oneOf": [{"type": "integer"}, {"type": "null"}]}},
        },
    }
    given = {"x": ["a"] * 50_000}
    assert "x" in message(checked(tool(schema), given)) or "schema" in message(checked(tool(schema), given))
    assert took_s(lambda: checked(tool(schema), given)) < 1


@pytest.mark.battery("H01")
def test_a_pattern_that_would_explode_elsewhere_is_checked_at_once() -> None:
    of = tool({"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}})
    assert "does not match" in message(checked(of, {"x": "a" * 40 + "!"}))
    assert took_s(lambda: checked(of, {"x": "a" * 100_000 + "!"})) < 1


@pytest.mark.battery("H02")
def test_three_thousand_objects_are_compared_at_once() -> None:
    of = tool({"type": "object", "properties": {"x": {"uniqueItems": True}}})
    items = [{"id": number, "tags": ["a", "b"]} for number in range(3000)]
    assert took_s(lambda: checked(of, {"x": items})) < 0.5
    assert "the same" in message(checked(of, {"x": [*items, items[0]]}))


@pytest.mark.battery("H06")
def test_a_pattern_means_what_ecma_262_says() -> None:
    words = tool({"type": "object", "properties": {"x": {"pattern": "^[a-z]+$"}}})
    digits = tool({"type": "object", "properties": {"x": {"pattern": "^\\d+$"}}})
    assert "does not match" in message(checked(words, {"x": "abc\n"}))
    assert "does not match" in message(checked(digits, {"x": "١٢٣"}))


@pytest.mark.battery("H07")
def test_nothing_is_coerced_to_an_integer() -> None:
    of = tool({"type": "object", "properties": {"x": {"type": "integer"}}})
    for value in (True, "1", 1.5):
        assert "expected integer" in message(checked(of, {"x": value}))
    assert arguments(of, {"x": 1.0}) == {"x": 1.0}


anything = json_values | st.text() | st.floats() | st.sampled_from(["\ud800", "\0", b"", 10**30])


# The first draw of any text builds a table of all characters, which a fresh clone has not kept yet.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([SCHEMA, LISTS, TREE, None]),
    st.dictionaries(st.sampled_from(["query", "tags", "where", "tree", "replace", "cwd", "x"]), anything),
    st.booleans(),
)
def test_checking_never_raises_and_what_it_lets_through_is_json(schema: Any, given: Any, flag: bool) -> None:
    of = tool(
        schema,
        fill_defaults=flag,
        drop_null_optional=not flag,
        lenient_booleans=("replace",),
        reserved_names=("cwd",),
        words=Words.FIELDS if flag else Words.OWN,
    )
    found = checked(of, given)
    if isinstance(found, ToolError):
        assert found.message
    else:
        assert json.loads(json.dumps(found.arguments)) == found.arguments
        assert "cwd" not in found.arguments
