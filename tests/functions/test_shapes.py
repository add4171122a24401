"""What annotations become: the schema that a model sees, and the values that a function gets."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import annotated_types as limits
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Doc, TypeAliasType

from tests.strategies import annotated_values, annotation_kinds, json_values
from toolcrib import jsontext, schema
from toolcrib.functions import results
from toolcrib.functions.shapes import Mismatch, Shapes, Unsuitable
from toolcrib.model import Schema

T = TypeVar("T")
N = TypeVar("N", int, str)
B = TypeVar("B", bound=int)


def document(annotation: Any) -> dict[str, Any]:
    shapes = Shapes()
    return shapes.document(shapes.of(annotation).schema)


def converted(annotation: Any, value: Any) -> Any:
    """A value as the function gets it; it must fit the schema first."""
    shapes = Shapes()
    shape = shapes.of(annotation)
    assert not schema.complaints(Schema.of(shapes.document(shape.schema)), value)
    return value if shape.convert is None else shape.convert(value)


def fits(annotation: Any, value: Any) -> bool:
    return schema.fits(Schema.of(document(annotation)), value)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Odd(enum.Enum):
    HERE = (1, 2)
    THERE = (3, 4)


@dataclasses.dataclass
class Point:
    """A place.

    Attributes:
        x: How far east.
    """

    x: float
    y: float = 0.0
    tags: set[str] = dataclasses.field(default_factory=set, metadata={"description": "Words."})
    made: datetime = dataclasses.field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    hidden: int = dataclasses.field(default=3, init=False)
    kind: typing.ClassVar[str] = "point"
    start: dataclasses.InitVar[int] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)
    parent: Node | None = None


@dataclasses.dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("number must be positive")


@dataclasses.dataclass
class Box(Generic[T]):
    held: list[T]
    other: T | None = None


class Movie(TypedDict):
    title: str
    year: NotRequired[Annotated[int, "When it came out."]]


class Partial(Movie, total=False):
    rating: Required[float]
    seen: bool


class Spot(NamedTuple):
    row: int
    column: int = 0


class Account(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2, description="Whose it is.")
    friends: list[Account] = []


class NoSchema(pydantic.BaseModel):
    call: typing.Callable[[], int]


UserId = NewType("UserId", int)
Names = TypeAliasType("Names", list[str])
Tree = TypeAliasType("Tree", "int | list[Tree]")


# -- schemas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (bool, {"type": "boolean"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (int | None, {"type": ["integer", "null"]}),
        (Optional[str], {"type": ["string", "null"]}),  # noqa: UP045
        (Union[int, str, None], {"type": ["integer", "string", "null"]}),  # noqa: UP007
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (Iterable[str], {"type": "array", "items": {"type": "string"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (frozenset[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array", "minItems": 2, "maxItems": 2,
                "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False,
            },
        ),
        (dict, {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object"}),
        (
            dict[Literal["a", "b"], int],
            {
                "type": "object", "propertyNames": {"enum": ["a", "b"]},
                "additionalProperties": {"type": "integer"},
            },
        ),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "x", None], {"type": ["integer", "string", "null"], "enum": [1, "x", None]}),
        (Literal["a"] | None, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
        (Colour, {"type": "string", "enum": ["red", "green"]}),
        (Size, {"type": "integer", "enum": [1, 2]}),
        (Odd, {"type": "string", "enum": ["HERE", "THERE"]}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (time, {"type": "string", "format": "time"}),
        (timedelta, {"type": "number", "description": "Seconds."}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Path, {"type": "string", "format": "path"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (UserId, {"type": "integer"}),
        (Names, {"type": "array", "items": {"type": "string"}}),
        (N, {"type": ["integer", "string"]}),
        (B, {"type": "integer"}),
        (T, {}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (Annotated[int, Doc("How many.")], {"type": "integer", "description": "How many."}),
        (
            Annotated[int, limits.Ge(1), limits.Lt(9)],
            {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        ),
        (
            Annotated[int, limits.Interval(gt=0, le=5)],
            {"type": "integer", "exclusiveMinimum": 0, "maximum": 5},
        ),
        (Annotated[float, limits.MultipleOf(0.5)], {"type": "number", "multipleOf": 0.5}),
        (Annotated[str, limits.Len(1, 3)], {"type": "string", "minLength": 1, "maxLength": 3}),
        (
            Annotated[list[int], limits.MinLen(1)],
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        ),
        (Annotated[dict[str, Any], limits.MaxLen(2)], {"type": "object", "maxProperties": 2}),
        (Annotated[int | None, limits.Ge(0)], {"type": ["integer", "null"], "minimum": 0}),
        (
            Annotated[str, pydantic.Field(pattern="^a", description="D.", examples=["ab"])],
            {"type": "string", "description": "D.", "examples": ["ab"], "pattern": "^a"},
        ),
        (Annotated[int, pydantic.Field(gt=2)], {"type": "integer", "exclusiveMinimum": 2}),
    ],
)  # fmt: skip
def test_an_annotation_becomes_a_schema(annotation: Any, expected: dict[str, Any]) -> None:
    assert document(annotation) == expected
    assert schema.flaws(expected) == ()


def test_a_dataclass_becomes_an_object_of_what_its_constructor_takes() -> None:
    assert document(Point) == {
        "type": "object",
        "properties": {
            "x": {"type": "number", "description": "How far east."},
            "y": {"type": "number", "default": 0.0},
            "tags": {
                "type": "array", "items": {"type": "string"}, "uniqueItems": True,
                "description": "Words.", "default": [],
            },
            "made": {"type": "string", "format": "date-time"},
            "start": {"type": "integer", "default": 1},
        },
        "required": ["x"],
        "additionalProperties": False,
    }  # fmt: skip


def test_what_contains_itself_is_defined_once() -> None:
    expected = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
            "parent": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert document(Node) == {"$ref": "#/$defs/Node", "$defs": {"Node": expected}}
    assert document(Tree)["$defs"]["Tree"] == {
        "anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/Tree"}}]
    }
    deep = converted(Node, {"name": "a", "children": [{"name": "b", "parent": {"name": "c"}}]})
    assert deep == Node(name="a", children=[Node(name="b", parent=Node(name="c"))])


def test_what_is_used_once_stands_in_its_place_and_what_is_used_twice_does_not() -> None:
    @dataclasses.dataclass
    class Pair:
        one: Spot
        two: Spot
        movie: Movie

    found = document(Pair)
    assert found["properties"]["one"] == found["properties"]["two"] == {"$ref": "#/$defs/Spot"}
    assert found["properties"]["movie"]["type"] == "object"
    assert list(found["$defs"]) == ["Spot"]


def test_typed_dicts_say_which_keys_must_be_there() -> None:
    assert document(Movie)["required"] == ["title"]
    assert document(Movie)["properties"]["year"] == {"type": "integer", "description": "When it came out."}
    assert sorted(document(Partial)["required"]) == ["rating", "title"]


def test_generic_classes_take_the_types_they_are_given() -> None:
    assert document(Box[int])["properties"]["held"] == {"type": "array", "items": {"type": "integer"}}
    assert document(Box[list[str]])["properties"]["other"] == {
        "type": ["array", "null"], "items": {"type": "string"}, "default": None,
    }  # fmt: skip
    both = document(tuple[Box[int], Box[str], Box[int]])
    assert list(both["$defs"]) == ["Box_int"]


def test_pydantic_models_speak_for_themselves() -> None:
    found = document(Account)
    assert found["$defs"]["Account"]["properties"]["name"]["minLength"] == 2
    value = {"name": "ann", "friends": [{"name": "bob"}]}
    assert converted(Account, value) == Account(name="ann", friends=[Account(name="bob")])
    assert results.as_data(Account(name="ann")) == {"name": "ann", "friends": []}


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (complex, "complex has no JSON form"),
        (typing.Callable[[], None], "has no JSON form"),
        (dict[int, str], "keys of int"),
        (Literal[b"x"], "Literal"),
        (list["Missing"], "cannot be resolved"),  # type: ignore[name-defined] # noqa: F821
        (enum.Enum("Empty", []), "no members"),
        (list[complex], "complex has no JSON form"),
        (NoSchema, "NoSchema gives no JSON Schema"),
    ],
)  # fmt: skip
def test_what_has_no_json_form_is_refused_with_a_way_out(annotation: Any, words: str) -> None:
    with pytest.raises(Unsuitable, match=words) as caught:
        document(annotation)
    assert caught.value.hint


def test_a_field_without_a_json_form_is_named() -> None:
    @dataclasses.dataclass
    class Wrong:
        number: complex

    with pytest.raises(Unsuitable, match=r"Wrong\.number: complex"):
        document(Wrong)


# -- conversion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 5.0, 5),
        (float, 5, 5.0),
        (list[float], [1], [1.0]),
        (set[int], [1, 2], {1, 2}),
        (frozenset[str], ["a"], frozenset("a")),
        (tuple[int, str], [1.0, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (Sequence[int], [1], [1]),
        (dict[str, set[int]], {"a": [1]}, {"a": {1}}),
        (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
        (Colour, "red", Colour.RED),
        (Size, 2, Size.LARGE),
        (Odd, "THERE", Odd.THERE),
        (Literal[1, True], True, True),
        (Literal[Colour.RED, 3], "red", Colour.RED),
        (Literal[Colour.RED, 3], 3.0, 3),
        (datetime, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (date, "2026-01-31", date(2026, 1, 31)),
        (time, "12:30:00", time(12, 30)),
        (timedelta, 1.5, timedelta(seconds=1.5)),
        (UUID, "12345678123456781234567812345678", UUID("12345678123456781234567812345678")),
        (Path, "a/b", Path("a/b")),
        (PurePosixPath, "a", PurePosixPath("a")),
        (Decimal, 0.1, Decimal("0.1")),
        (Decimal, "1.20", Decimal("1.20")),
        (bytes, "aGk=", b"hi"),
        (Spot, {"row": 1}, Spot(1, 0)),
        (Movie, {"title": "x"}, {"title": "x"}),
        (Box[int], {"held": [1.0]}, Box([1])),
        (int | None, None, None),
        (datetime | None, None, None),
        (float | int, 5, 5),
        (Spot | Movie | str, {"title": "x"}, {"title": "x"}),
        (Spot | Movie | str, {"row": 3}, Spot(3)),
        (datetime | str, "tomorrow", "tomorrow"),
        (Annotated[Colour, "which"], "green", Colour.GREEN),
    ],
)  # fmt: skip
def test_a_value_becomes_what_the_annotation_promises(annotation: Any, value: Any, expected: Any) -> None:
    found = converted(annotation, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (datetime, "tomorrow", "expected a date and time such as 2026-01-31T12:00:00Z (got 'tomorrow')"),
        (list[date], ["2026-01-31", "x"], "[1]: expected a date such as 2026-01-31 (got 'x')"),
        (UUID, "x", "expected a UUID (got 'x')"),
        (bytes, "*", "expected base64 (got '*')"),
        (dict[str, tuple[int, UUID]], {"a": [1, "x"]}, "a[1]: expected a UUID (got 'x')"),
        (Positive, {"number": 0}, "number must be positive"),
        (list[Positive], [{"number": 0}], "[0]: number must be positive"),
        (Annotated[Decimal, limits.Gt(3)], "2", "must be more than 3"),
        (Annotated[bytes, limits.MinLen(3)], "aGk=", "must have a length of at least 3"),
        (Annotated[int, limits.Predicate(str.isdigit)], 5, ""),
    ],
)  # fmt: skip
def test_a_value_that_is_none_of_the_type_says_where_and_why(annotation: Any, value: Any, words: str) -> None:
    if not words:
        with pytest.raises(TypeError):
            converted(annotation, value)
        return
    with pytest.raises(Mismatch) as caught:
        converted(annotation, value)
    assert str(caught.value) == words


def test_a_predicate_is_asked() -> None:
    even = Annotated[int, limits.Predicate(lambda number: number % 2 == 0)]
    assert converted(even, 4) == 4
    with pytest.raises(Mismatch, match="must satisfy"):
        converted(even, 5)


def test_a_decimal_that_would_fill_the_memory_does_not_fit() -> None:
    """Attack: 1e999999999 as a text is short, and any sum with it fills the memory."""
    assert fits(Decimal, "1e99")
    assert not fits(Decimal, "1e999999999")
    assert not fits(Decimal, "9" * 5000)


def test_pydantic_says_itself_what_it_does_not_take() -> None:
    class Even(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def _even(cls, number: int) -> int:
            if number % 2:
                raise ValueError("must be even")
            return number

    with pytest.raises(Mismatch) as caught:
        converted(list[Even], [{"number": 2}, {"number": 3}])
    assert str(caught.value) == "[1].number: Value error, must be even"


# -- properties ---------------------------------------------------------------------------------------------


def belongs(annotation: Any, value: Any) -> bool:
    """What the annotation means, in so many words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return is_number and value == int(value)
    if annotation is float:
        return is_number
    if annotation in (str, bool):
        return type(value) is annotation
    if annotation is types.NoneType:
        return value is None
    if origin is Literal:
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in arguments)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return not isinstance(value, bool) and value in [member.value for member in annotation]
    if origin is Union or origin is types.UnionType:
        return any(belongs(part, value) for part in arguments)
    if origin in (list, set) or (origin is tuple and arguments[-1] is Ellipsis):
        if not isinstance(value, list) or not all(belongs(arguments[0], item) for item in value):
            return False
        return origin is not set or len({jsontext.canonical(item) for item in value}) == len(value)
    if origin is tuple:
        return (
            isinstance(value, list) and len(value) == len(arguments) and all(map(belongs, arguments, value))
        )
    if not isinstance(value, dict):
        return False
    if origin is dict:
        return all(belongs(arguments[1], item) for item in value.values())
    fields = annotation.__annotations__
    if dataclasses.is_dataclass(annotation):
        required = {
            field.name for field in dataclasses.fields(annotation) if field.default is dataclasses.MISSING
        }
    else:
        required = set(getattr(annotation, "__required_keys__", fields))
    return required <= value.keys() <= fields.keys() and all(
        belongs(fields[name], value[name]) for name in value
    )


@given(st.data())
def test_the_schema_takes_exactly_what_the_annotation_means_and_all_of_it_converts(
    data: st.DataObject,
) -> None:
    annotation = data.draw(annotation_kinds)
    value = data.draw(annotated_values(annotation) | json_values)
    shapes = Shapes()
    shape = shapes.of(annotation)
    whole = Schema.of(shapes.document(shape.schema))
    assert schema.flaws(whole) == ()
    assert schema.fits(whole, value) is belongs(annotation, value)
    if belongs(annotation, value):
        made = value if shape.convert is None else shape.convert(value)
        again = results.as_data(made)  # and back: a default that was filled in may be more than was given
        if not _has_defaults(annotation):
            assert schema.fits(whole, again)
            assert (again if shape.convert is None else shape.convert(again)) == made


def _has_defaults(annotation: Any) -> bool:
    if dataclasses.is_dataclass(annotation):
        return True
    inner = [*typing.get_args(annotation), *getattr(annotation, "__annotations__", {}).values()]
    return any(_has_defaults(part) for part in inner)
