"""All Hypothesis strategies: JSON, schemas, names, tools."""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any, Literal, NamedTuple, TypedDict, Union, get_args, get_origin

from hypothesis import strategies as st

from toolcrib.errors import Kind
from toolcrib.model import (
    CallFacts,
    Effect,
    NotCallable,
    Notes,
    Origin,
    Role,
    Run,
    Schema,
    SchemaForm,
    Spent,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
)

# -- JSON ---------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e6, 1e6) | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)

# -- records of the journal ---------------------------------------------------------------------------------

record_bodies = st.lists(
    st.binary(max_size=300) | st.sampled_from([b"", b"\0" * 64, b"x" * 5000]), max_size=4
)

# -- schemas ------------------------------------------------------------------------------------------------

property_names = st.sampled_from(
    ["a", "b", "file_path", "filter", "type", "properties", "anyOf", "items"]
) | st.text("abcXYZ019_-. é/$", min_size=1, max_size=8)
_patterns = st.sampled_from(["^[a-z]+$", "(?=x)x", r"(a)\1", r"\p{L}+", "a{2,3}", r"^\d+\.\d*$"])
_formats = st.sampled_from(["uri", "date-time", "date", "email", "uuid", "int32", "float", "regex", "x-own"])
_type_names = st.sampled_from(["string", "number", "integer", "boolean", "object", "array", "null"])
_references = st.sampled_from(["#/$defs/A", "#/$defs/B", "#/$defs/missing", "#", "#/properties/a"])
_counts = st.integers(0, 5)
_bounds = st.integers(-10, 10)
_annotations: list[st.SearchStrategy[dict[str, Any]]] = [
    st.just({}),
    st.just({"description": "what it is"}),
    st.fixed_dictionaries({"default": json_values}),
    st.fixed_dictionaries({"title": texts, "x-ui": json_values}),
    st.just({"deprecated": True, "$comment": "kept", "examples": [1]}),
]


def _node(required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda node, annotations: {**node, **annotations},
        st.fixed_dictionaries(required, optional=optional or {}),
        st.one_of(_annotations),
    )


_strings = _node(
    {"type": st.just("string")},
    {"minLength": _counts, "maxLength": _counts, "pattern": _patterns, "format": _formats},
)
_numbers = _node(
    {"type": st.sampled_from(["number", "integer"])},
    {"minimum": _bounds, "maximum": _bounds, "exclusiveMinimum": _bounds, "multipleOf": st.integers(1, 5)},
)
_words = _node({"type": st.just("string"), "enum": st.lists(texts, min_size=1, max_size=4, unique=True)})
_tame_leaves = st.one_of(_strings, _numbers, _words, _node({"type": st.just("boolean")}))
_wild_leaves = st.one_of(
    _tame_leaves,
    _node({"type": st.lists(_type_names, min_size=1, max_size=3, unique=True)}, {"minLength": _counts}),
    _node({"enum": st.lists(scalars, min_size=1, max_size=4, unique_by=repr)}),
    _node({"const": json_values}),
    _node({"$ref": _references}),
    _node({"type": _type_names}),
    st.just({}),
    st.booleans(),
)


def _required(properties: dict[str, Any], more: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*properties, *more]), max_size=3, unique=True)


def _tame_objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Closed or silent objects with named properties: what a strict mode can hold."""
    return st.dictionaries(property_names, inner, min_size=1, max_size=4).flatmap(
        lambda properties: _node(
            {"type": st.just("object"), "properties": st.just(properties)},
            {"required": _required(properties, []), "additionalProperties": st.just(False)},
        )
    )


def _wild_objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any objects; what they require is mostly, but not always, one of their properties."""
    return st.dictionaries(property_names, inner, max_size=3).flatmap(
        lambda properties: _node(
            {"type": st.just("object"), "properties": st.just(properties)},
            {
                "required": _required(properties, ["missing"]),
                "additionalProperties": st.booleans() | inner,
                "patternProperties": st.dictionaries(_patterns, inner, max_size=1),
                "minProperties": _counts,
            },
        )
    )


def _nullable(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


def _tame_above(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _tame_objects(inner),
        _node({"type": st.just("array"), "items": inner}, {"minItems": _counts}),
        _node({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        inner.map(_nullable),
    )


def _wild_above(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    properties = {"properties": st.dictionaries(property_names, inner, max_size=2)}
    return st.one_of(
        _wild_objects(inner),
        _node(
            {"type": st.just("array")}, {"items": inner, "maxItems": _counts, "uniqueItems": st.booleans()}
        ),
        _node({"type": st.just("array"), "prefixItems": some}, {"items": inner}),
        _node({"anyOf": some}, {"type": _type_names}),
        _node({"oneOf": some}, properties),
        _node({"allOf": some}, properties),
        _node({"not": inner}, {"if": inner, "then": inner}),
        inner.map(_nullable),
    )


tame_schemas = st.recursive(_tame_leaves, _tame_above, max_leaves=6)
wild_schemas = st.recursive(_wild_leaves, _wild_above, max_leaves=6)
tame_arguments = _tame_objects(tame_schemas)


@st.composite
def argument_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas of arguments: objects mostly, some with definitions, some with an odd root."""
    tame = draw(st.booleans())
    inner = tame_schemas if tame else wild_schemas
    if draw(st.booleans()):
        inner = inner | _node({"$ref": _references})
        definitions = {"$defs": draw(st.fixed_dictionaries({"A": inner, "B": inner}))}
    else:
        definitions = {}
    if tame or draw(st.booleans()):
        return {**draw(_tame_objects(inner)), **definitions}
    return {
        **draw(_wild_objects(inner) | wild_schemas.filter(lambda schema: isinstance(schema, dict))),
        **definitions,
    }


_bare_leaves = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "boolean")]),
    st.just({"type": ["string", "null"]}),
    st.just({"type": "string", "enum": ["x", "y"]}),
    st.just({"enum": ["x", None]}),
    st.just({"$ref": "#/$defs/A"}),
)
_plain_names = st.sampled_from(["a", "b", "items", "properties", "anyOf"])


def _bare_objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(_plain_names, inner, min_size=1, max_size=3).flatmap(
        lambda properties: st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.just(properties),
                "required": _required(properties, []),
                "additionalProperties": st.just(False),
            }
        )
    )


def _bare_above(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _bare_objects(inner),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        inner.map(_nullable),
    )


_bare = st.recursive(_bare_leaves, _bare_above, max_leaves=8)
_referred = st.sampled_from(
    [
        {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
        {"type": "array", "items": {"type": "string", "enum": ["x"]}},
    ]
)
bare_arguments = st.builds(
    lambda schema, referred: {**schema, "$defs": {"A": referred}}, _bare_objects(_bare), _referred
)
"""Schemas of structure alone (types, alternatives, nulls, references), which ``values_of`` can fill."""


def values_of(schema: Any, definitions: Any) -> st.SearchStrategy[Any]:
    """Values that fit one of the schemas above, or what a dialect made of it."""
    if "$ref" in schema:
        return values_of(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([values_of(arm, definitions) for arm in schema["anyOf"]])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_values_of_type(kind, schema, definitions) for kind in kinds])


def _values_of_type(kind: str, schema: Any, definitions: Any) -> st.SearchStrategy[Any]:
    if kind == "object":
        members = {name: values_of(item, definitions) for name, item in schema.get("properties", {}).items()}
        required = {name: members.pop(name) for name in schema.get("required", [])}
        return st.fixed_dictionaries(required, optional=members)
    if kind == "array":
        return st.lists(values_of(schema["items"], definitions), max_size=2)
    return {
        "string": st.sampled_from(["", "x", "z"]),
        "integer": st.integers(-3, 3),
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


# -- tools --------------------------------------------------------------------------------------------------

tool_names = st.one_of(
    st.from_regex(r"[a-z]{1,8}(_[a-z]{1,8}){0,3}", fullmatch=True),
    st.sampled_from(
        [
            "a/b-c", "a/b_c", "a_b_c", "code.sandbox.js.run", "rye/file-system/write",
            "tool_search_tool_bm25", "x" * 64, "x" * 65, "x" * 200, "9lives", "-", "é", "日本語", " spaced ",
            "__proto__", "local#0",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80),
)  # fmt: skip


def make_tool(name: str, schema: dict[str, Any] | None = None, *, scope: str = "s", **more: Any) -> Tool:
    """A tool record for tests; everything that does not matter has a plain value."""
    more.setdefault("key", f"manifest:{scope}/{name}")
    return Tool(
        name=name,
        scope=scope,
        origin=Origin(format="manifest", path="tools.json"),
        invocation=NotCallable(reason="only declared"),
        input_schema=None if schema is None else Schema.of(schema),
        **more,
    )


@st.composite
def tools(draw: st.DrawFn, schema: st.SearchStrategy[Any] | None = None) -> Tool:
    """Any tool a format could compile, and some that none would."""
    return make_tool(
        draw(tool_names),
        draw(st.one_of(st.none(), *[schema if schema is not None else argument_schemas()] * 3)),
        scope=draw(st.sampled_from(["s", "t"])),
        description=draw(texts | st.just("d" * 2000)),
        schema_form=draw(st.sampled_from(SchemaForm)),
        effect=draw(st.sampled_from(Effect)),
        output_schema=draw(st.none() | argument_schemas().map(Schema.of)),
        role=draw(st.sampled_from([Role.TOOL, Role.TOOL, Role.TOOL, Role.PART, Role.SUPPORT])),
        notes=Notes(
            documentation=draw(
                st.none() | st.fixed_dictionaries({"examples": st.lists(json_values, max_size=2)})
            )
        ),
    )


def toolsets(schema: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[list[Tool]]:
    """Tools as a catalog holds them: no key twice."""
    return st.lists(tools(schema), max_size=6, unique_by=lambda tool: tool.key)


# -- annotations of Python functions ------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


_simple_annotations = st.sampled_from(
    [int, float, str, bool, Literal["a", "b"], Literal[1, "x", None], Colour, Level]
)
_field_names = st.lists(st.sampled_from(["a", "b", "c", "deep", "type"]), min_size=1, max_size=3, unique=True)


@st.composite
def _classes(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    fields = {name: draw(inner) for name in draw(_field_names)}
    kind = draw(st.sampled_from(["dataclass", "typed dict", "partial typed dict", "named tuple"]))
    if kind == "dataclass":
        optional = draw(st.integers(0, len(fields)))
        parts: list[Any] = []
        for number, (name, annotation) in enumerate(fields.items()):
            has_default = number >= len(fields) - optional
            parts.append(
                (name, annotation, dataclasses.field(default=None)) if has_default else (name, annotation)
            )
        return dataclasses.make_dataclass("Made", parts)
    if kind == "named tuple":
        return NamedTuple("Made", list(fields.items()))
    return TypedDict("Made", fields, total=kind == "typed dict")  # type: ignore[operator]


annotation_kinds: st.SearchStrategy[Any] = st.recursive(
    _simple_annotations,
    lambda inner: st.one_of(
        inner.map(lambda part: list[part]),  # type: ignore[valid-type]
        inner.map(lambda part: tuple[part, ...]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda parts: tuple.__class_getitem__(parts)),
        inner.map(lambda part: dict[str, part]),  # type: ignore[valid-type]
        inner.map(lambda part: part | None),
        st.tuples(inner, inner).map(lambda parts: Union[parts]),  # noqa: UP007
        _simple_annotations.map(lambda part: set[part]),  # type: ignore[valid-type]
        _classes(inner),
    ),
    max_leaves=5,
)
"""Annotations of parameters, classes among them."""


def annotated_values(annotation: Any) -> st.SearchStrategy[Any]:
    """JSON values that fit an annotation, most of the time."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-5, 5) | st.just(2.0),
        float: st.integers(-5, 5) | st.floats(-5, 5),
        str: texts,
        bool: st.booleans(),
        Colour: st.sampled_from(["red", "green"]),
        Level: st.sampled_from([1, 2, 2.0]),
        type(None): st.none(),
    }
    if annotation in simple:
        return simple[annotation]
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (list, set) or (origin is tuple and arguments[-1] is Ellipsis):
        return st.lists(annotated_values(arguments[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(annotated_values, arguments)).map(list)
    if origin is dict:
        return st.dictionaries(texts, annotated_values(arguments[1]), max_size=2)
    if origin is Union or origin is types.UnionType:
        return st.one_of(*map(annotated_values, arguments))
    fields = annotation.__annotations__
    return st.fixed_dictionaries({}, optional={name: annotated_values(part) for name, part in fields.items()})


# -- what is recorded of calls ------------------------------------------------------------------------------

# Put together here, so that nobody's scanner of secrets takes this file for a leak.
credentials = st.one_of(
    st.text("abcXYZ019-", min_size=10, max_size=14).map(lambda rest: "xoxb-" + rest),  # 15 to 19 characters
    st.text("ABCXYZ019", min_size=16, max_size=16).map(lambda rest: "AKIA" + rest),
    st.text("abcXYZ019", min_size=36, max_size=40).map(lambda rest: "ghp_" + rest),
    st.just("-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow"),
)
"""Texts that look like well-known credentials."""


class OwnText(str):
    __slots__ = ()


class OddText(enum.StrEnum):
    """What it is as a text is not what it stands for."""

    ONE = "one"

    def __new__(cls, value: str) -> OddText:
        made = str.__new__(cls, "looks like this")
        made._value_ = value
        return made


class OwnInt(int):
    pass


class OwnDict(dict[str, Any]):
    pass


plain_texts = st.text(
    st.characters(min_codepoint=32, exclude_characters='"\\', exclude_categories=["Cs"]), max_size=30
)
nasty_texts = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(max_codepoint=0x2F), max_size=8),
    st.sampled_from(
        ["\x00", "\x7f", '"', "\\", "\x1f", "\u2028", "\ud800", "\udcff", "é", "😀", "\n", "a" * 5000]
    ),
    st.text(min_size=1, max_size=3).map(lambda text: text * 4000),
    plain_texts.map(OwnText),
    st.just(OddText.ONE),
)
_names = plain_texts | nasty_texts | st.builds("{}{}".format, st.sampled_from(["", "-", "a "]), credentials)
moments = st.one_of(
    st.floats(0, 2**34),
    st.floats(),
    st.sampled_from([0.0, 1e-6, 9e-6, 1e-5, -0.0, -1.5]),
    st.integers(0, 2**70),
)
durations = st.one_of(
    st.floats(0, 1e7),
    st.floats(),
    st.sampled_from([0.0, 0.0004, 0.001, 0.0015, -3.5]),
    st.integers(-3, 10**20),
)
counts = st.one_of(
    st.integers(0, 2**64 + 1),
    st.integers(),
    st.booleans(),
    st.integers(0, 9).map(OwnInt),
    st.sampled_from([2**64 - 1, 2**64]),
)


_argument_names = st.one_of(plain_texts, plain_texts, _names)
arguments_of_calls = st.one_of(
    st.dictionaries(_argument_names, json_values, max_size=5),
    st.dictionaries(_argument_names, nasty_texts | counts | st.floats(), max_size=3),
    st.integers(60, 70).map(lambda many: {f"name {number}": number for number in range(many)}),
    st.dictionaries(plain_texts, scalars, max_size=3).map(OwnDict),
    st.none(),
    st.lists(scalars, max_size=3),
    st.dictionaries(st.integers() | st.booleans(), scalars, max_size=3),
)
"""Arguments as they may come, and some that are none."""
calls_of_any_kind = st.builds(
    ToolCall,
    id=plain_texts | nasty_texts,
    tool=plain_texts | _names,
    arguments=arguments_of_calls,
    raw=texts,
    caller=plain_texts | _names,
    conversation=plain_texts | _names,
    dry_run=st.sampled_from([False, False, False, False, True]),
    approved_by=st.sampled_from(["", "", "", "", "somebody"]),
    idempotency_key=st.sampled_from([None, None, None, None, "once"]),
)
_maybe_text = st.none() | plain_texts | nasty_texts
facts_of_any_kind = st.builds(
    CallFacts,
    door=plain_texts | nasty_texts,
    key=_maybe_text,
    format=_maybe_text,
    catalog=plain_texts | nasty_texts,
    seen_digest=_maybe_text,
    runs_digest=_maybe_text,
)
_layers = st.lists(plain_texts, max_size=3).map(tuple)
runs_of_any_kind = st.builds(
    Run,
    argv=st.lists(plain_texts | nasty_texts | credentials, max_size=3).map(tuple),
    cwd=plain_texts | nasty_texts,
    env_names=st.lists(plain_texts, max_size=3).map(tuple),
    exit_status=st.none() | st.integers(-1, 255) | counts,
    duration_ms=durations,
    stdout_bytes=st.integers(0, 10**7) | counts,
    stderr_bytes=st.integers(0, 10**7) | counts,
    truncated=st.booleans(),
    note=st.just("") | plain_texts | nasty_texts,
)
results_of_any_kind = st.builds(
    ToolResult,
    call_id=plain_texts,
    key=st.sampled_from(["", None]) | plain_texts | nasty_texts,
    error=st.sampled_from([None, None, None, ToolError(kind=Kind.FAILED, message="no")]),
    spent=st.builds(
        Spent,
        duration_ms=durations,
        output_bytes=st.integers(0, 10**7) | counts,
        truncated=st.booleans(),
        attempts=st.just(1) | counts,
    ),
    isolation=_layers | nasty_texts.map(lambda text: (text,)),
    notes=st.just(()) | _layers,
    rule=st.just("") | plain_texts,
)
"""Ends of calls, with values that are none of their types."""


# -- git's configuration ------------------------------------------------------------------------------------

_CONFIG_PARTS = (
    "[core]\n", "[include]\n", '[includeIf "gitdir:~/x/"]\n', '[a "b\\"c\\\\d"]\r\n', "[a.B]", '[a "', "[",
    "]", "hooksPath", "path", " = ", "=", "x", "Ü", "3", "-", ".", '"', '\\"', "\\\\", "\\n", "\\t", "\\b",
    "\\x", "\\", "\\\n", "\\\r\n", "\n", "\r\n", "\r", " ", "  ", "\t", "#", ";", " # more", "\ufeff", "~/",
    "../a",
)  # fmt: skip
_CONFIG_VALUES = tuple(part for part in _CONFIG_PARTS if "[" not in part and part not in ("\n", "\r\n"))


def git_configurations() -> st.SearchStrategy[bytes]:
    """Texts that git reads as its configuration, and such that it refuses."""
    value = st.lists(st.sampled_from(_CONFIG_VALUES), max_size=8).map("".join)
    line = st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", "\t", "[core] ", '[include "x"]', "[include]"]),
        st.sampled_from(["path", "hooksPath", "a-1"]),
        st.sampled_from(["=", " = ", "\t=", " "]),
        value,
        st.sampled_from(["\n", "\r\n", ""]),
    )
    loose = st.lists(st.sampled_from(_CONFIG_PARTS), max_size=20).map("".join)
    text = st.one_of(st.lists(line, max_size=4).map("".join), loose)
    return st.builds("{}{}".format, st.sampled_from(["", "", "\ufeff"]), text).map(str.encode)
