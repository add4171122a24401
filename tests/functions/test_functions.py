"""Functions become tools: what is read off them, what is refused, what a model never sees."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolcrib
from tests.program import WAIT_S
from tests.strategies import annotation_kinds
from toolcrib import Context
from toolcrib.dialects import DIALECTS
from toolcrib.errors import UsageError
from toolcrib.functions import Function, register
from toolcrib.model import CallFunction, DeclareOptions, Effect, Reply, Severity, Tool, ToolMode

if TYPE_CHECKING:
    from collections.abc import Sequence as OnlyForCheckers

ROOT = Path(__file__).parent.parent.parent


class Database:
    """Something that only the host has."""


@dataclasses.dataclass
class Guest:
    name: str
    age: int = 30


@toolcrib.tool
def book(
    room: str, nights: int = 1, *, guests: list[Guest] | None = None, mode: Literal["fast", "slow"] = "slow"
) -> dict[str, Any]:
    """Book a room.

    Args:
        room: Which one.
        nights: How many.
    """
    return {"room": room, "nights": nights, "guests": guests, "mode": mode}


@toolcrib.tool(
    name="rooms.list",
    description="All rooms.",
    effect="read",
    timeout_s=5,
    tags=["hotel"],
    version="1.2.0",
    idempotent=True,
    examples=[{"floor": 1}],
    namespace="hotel",
)
async def list_rooms(floor: int) -> list[str]:
    return [str(floor)]


class Hotel:
    """An object with tools."""

    def __init__(self, name: str) -> None:
        self.name = name

    @toolcrib.tool
    def greet(self, guest: str) -> str:
        """Greet."""
        return f"{self.name} greets {guest}"

    @toolcrib.tool
    @classmethod
    def stars(cls) -> int:
        """Count stars."""
        return 5

    def __call__(self, times: int) -> str:
        """Ring."""
        return self.name * times


def one(function: object, **more: Any) -> Tool:
    (tool,) = register([function], **more).tools
    return tool


def prepared(function: object, **more: Any) -> Function:
    (found,) = register([function], **more).functions.values()
    return found


def parameters(tool: Tool) -> dict[str, Any]:
    assert tool.input_schema is not None
    found = tool.input_schema.document["properties"]
    assert isinstance(found, dict)
    return found


def context() -> Context:
    return Context(call_id="c1", caller="ann")


# -- what is read off a function ----------------------------------------------------------------------------


def test_signature_types_and_docstring_give_the_tool() -> None:
    tool = one(book)
    assert (tool.key, tool.name, tool.description) == (f"python:{__name__}/book", "book", "Book a room.")
    assert tool.input_schema is not None
    assert tool.input_schema.document == {
        "type": "object",
        "properties": {
            "room": {"type": "string", "description": "Which one."},
            "nights": {"type": "integer", "description": "How many.", "default": 1},
            "guests": {
                "type": ["array", "null"],
                "items": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 30}},
                    "required": ["name"],
                    "additionalProperties": False,
                },
                "default": None,
            },
            "mode": {"type": "string", "enum": ["fast", "slow"], "default": "slow"},
        },
        "required": ["room"],
        "additionalProperties": False,
    }
    assert tool.output_schema is not None
    assert tool.output_schema.document == {"type": "object"}
    assert tool.effect is Effect.CHANGE
    assert tool.reply is Reply.BLOCKS
    assert tool.origin.path == __file__
    assert isinstance(tool.invocation, CallFunction)
    assert tool.invocation.name == f"{__name__}:book"
    assert len(tool.invocation.code) == 64


def test_the_decorator_says_what_a_signature_cannot() -> None:
    tool = one(list_rooms)
    assert (tool.key, tool.description, tool.version) == ("python:hotel/rooms.list", "All rooms.", "1.2.0")
    assert (tool.effect, tool.needs.timeout_s, tool.notes.tags) == (Effect.READ, 5, ("hotel",))
    assert tool.notes.metadata == {"idempotent": True}
    assert tool.notes.documentation == {"examples": [{"floor": 1}]}
    assert tool.output_schema is None


def test_a_decorated_function_stays_what_it_was() -> None:
    assert book("a", 2)["nights"] == 2
    assert book.__name__ == "book"


@pytest.mark.parametrize(
    ("function", "key", "names"),
    [
        (Hotel("Ritz").greet, f"python:{__name__}.Hotel/greet", ["guest"]),
        (Hotel("Ritz").stars, f"python:{__name__}.Hotel/stars", []),
        (Hotel("Ritz"), f"python:{__name__}.Hotel/hotel", ["times"]),
        (functools.partial(book, "a"), f"python:{__name__}/book", ["nights", "guests", "mode"]),
        (
            toolcrib.tool(name="slowly")(functools.partial(book, mode="slow")),
            f"python:{__name__}/slowly",
            ["room", "nights", "guests"],
        ),
        (toolcrib.tool(name="hello")(Hotel("Ritz").greet), f"python:{__name__}.Hotel/hello", ["guest"]),
        (math.floor, "python:math/floor", ["x"]),
    ],
)
def test_whatever_can_be_called_can_be_a_tool(function: object, key: str, names: list[str]) -> None:
    tool = one(function)
    assert tool.key == key
    assert list(parameters(tool)) == names


def test_modules_and_objects_bring_the_functions_that_are_marked() -> None:
    module = types.ModuleType("shop")
    vars(module).update(book=book, other=len, rooms=list_rooms)
    assert [tool.name for tool in register([module]).tools] == ["book", "rooms.list"]

    class Desk:
        @toolcrib.tool
        def ring(self) -> str:
            """Ring."""
            return "ding"

        def wait(self) -> None:
            raise AssertionError

        @property
        def bell(self) -> None:
            raise AssertionError

    assert [tool.name for tool in register([Desk()]).tools] == ["ring"]
    with pytest.raises(UsageError, match="is no function and has none"):
        register([types.ModuleType("empty")])


def test_positional_only_parameters_are_given_by_place() -> None:
    def divide(a: float, b: float = 2.0, /, *, whole: bool = False) -> float:
        """Divide."""
        return a // b if whole else a / b

    assert list(parameters(one(divide))) == ["a", "b", "whole"]
    assert prepared(divide).run({"a": 5, "whole": True}, context) == 2.0
    assert prepared(divide).run({"b": 4, "a": 5}, context) == 1.25


def test_arguments_arrive_as_the_annotated_types() -> None:
    found = prepared(book).run({"room": "a", "guests": [{"name": "ann"}]}, context)
    assert found == {"room": "a", "nights": 1, "guests": [Guest("ann", 30)], "mode": "slow"}


def test_a_default_of_none_makes_a_parameter_nullable() -> None:
    def find(name: str = None, what=None) -> None:  # type: ignore[assignment] # noqa: RUF013
        """Find."""

    assert parameters(one(find)) == {
        "name": {"type": ["string", "null"], "default": None}, "what": {"default": None},
    }  # fmt: skip


def test_a_default_that_json_cannot_write_is_not_told() -> None:
    missing = object()

    def find(name: Any = missing) -> None:
        """Find."""
        assert name is missing

    assert parameters(one(find)) == {"name": {}}
    prepared(find).run({}, context)


def test_pydantics_field_says_more_than_the_default() -> None:
    def count(
        number: int = pydantic.Field(3, ge=1, description="How many."),
        words: list[str] = pydantic.Field(default_factory=list),  # noqa: B008 - as people write it
        must: str = pydantic.Field(min_length=1),
    ) -> tuple[int, list[str], str]:
        """Count."""
        return number, words, must

    tool = one(count)
    assert parameters(tool) == {
        "number": {"type": "integer", "minimum": 1, "description": "How many.", "default": 3},
        "words": {"type": "array", "items": {"type": "string"}},
        "must": {"type": "string", "minLength": 1},
    }
    assert tool.input_schema is not None
    assert tool.input_schema.document["required"] == ["must"]
    assert prepared(count).run({"must": "x"}, context) == (3, [], "x")


# -- what the host gives, and a model never does ------------------------------------------------------------


def test_context_and_what_the_host_provides_never_appear() -> None:
    """Attack: a model that sets what only the host may give."""

    def query(
        sql: str,
        db: Database,
        here: Context,
        maybe: Context | None = None,
        other: Annotated[Database, "x"] = None,  # type: ignore[assignment]
    ) -> tuple[object, ...]:
        """Ask."""
        return sql, db, here.caller, maybe is not None, other

    database = Database()
    tool = one(query, provide={Database: database})
    assert list(parameters(tool)) == ["sql"]
    assert "Database" not in json.dumps(tool.input_schema and tool.input_schema.document)
    found = prepared(query, provide={Database: database})
    assert found.run({"sql": "x"}, context) == ("x", database, "ann", True, database)
    assert found.run({"sql": "x", "db": "mine", "here": {}}, context) == (
        "x",
        database,
        "ann",
        True,
        database,
    )


@given(st.data())
def test_injected_parameters_never_appear_whatever_stands_around_them(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4))
    kinds = {name: data.draw(annotation_kinds) for name in names}
    injected = data.draw(
        st.dictionaries(st.sampled_from("uvw"), st.sampled_from([Context, Database]), min_size=1)
    )

    def made(**_given: Any) -> None:
        """Do."""

    shuffled = data.draw(st.permutations([*kinds.items(), *injected.items()]))
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in shuffled]
    )
    tool = one(made, provide={Database: Database()})
    assert set(parameters(tool)) == set(names)


def test_a_partials_keywords_are_neither_shown_nor_open() -> None:
    """Attack: a secret that a partial binds would stand in the schema as a default, to be replaced."""

    def fetch(path: str, token: str) -> str:
        """Fetch."""
        return f"{token}:{path}"

    bound = functools.partial(fetch, token="s3cret")
    tool = one(bound)
    assert list(parameters(tool)) == ["path"]
    assert "s3cret" not in repr(tool)
    assert prepared(bound).run({"path": "a"}, context) == "s3cret:a"


# -- what cannot be a tool ----------------------------------------------------------------------------------


def unresolvable(item: OnlyForCheckers[int]) -> None:
    """Do."""


def many(*numbers: int) -> None:
    """Do."""


def anything(**more: int) -> None:
    """Do."""


def wrong_type(number: complex) -> None:
    """Do."""


def yielding() -> Iterator[int]:
    """Do."""
    yield 1


def bad_pattern(text: Annotated[str, pydantic.Field(pattern="(?=x)")]) -> None:
    """Do."""


@pytest.mark.parametrize(
    ("function", "where", "what", "fix"),
    [
        (
            unresolvable, "unresolvable", "parameter 'item': OnlyForCheckers[int] cannot be resolved",
            "TYPE_CHECKING",
        ),
        (many, "many", "parameter '*numbers'", "numbers: list[…]"),
        (anything, "anything", "parameter '**more'", "more: dict[str, …]"),
        (wrong_type, "wrong_type", "parameter 'number': complex has no JSON form", "provide="),
        (yielding, "yielding", "is a generator", "return a list"),
        (bad_pattern, "bad_pattern", "not a regular expression that runs in linear time", "look-around"),
        (Hotel.greet, "Hotel.greet", "a method without its object", "object.method"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_tool_is_refused_with_function_parameter_and_fix(
    function: Callable[..., object], where: str, what: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        register([function])
    assert caught.value.message.startswith(f"{__name__}.{where}: ")
    assert what in caught.value.message
    assert fix in (caught.value.hint or "")


def test_a_list_is_wanted() -> None:
    for thing in (book, "book", {"book": book}, types):
        with pytest.raises(UsageError, match="must be a list"):
            register(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", ["book", {"name": "x"}, Hotel, 3, lambda: None])
def test_what_is_no_function_is_refused(thing: object) -> None:
    with pytest.raises(UsageError):
        register([thing])


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "a b"}, {"name": "x" * 129}, {"effect": "destroy"}, {"timeout_s": 0},
        {"timeout_s": True}, {"tags": "one"}, {"examples": {"a": 1}}, {"examples": ["a"]},
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_where_it_stands(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"tool\({next(iter(wrong))}=…\)"):
        toolcrib.tool(**wrong)


# -- what is said about functions ---------------------------------------------------------------------------


def test_what_models_will_miss_is_a_problem() -> None:
    @toolcrib.tool(examples=[{"number": "x"}, {"number": 1}])
    def bare(number: int, other) -> None:
        pass

    found = register([bare]).problems
    assert [(problem.code, problem.severity) for problem in found] == [
        ("python.description", Severity.WARNING),
        ("python.untyped", Severity.WARNING),
        ("python.example", Severity.WARNING),
        ("python.example", Severity.WARNING),
    ]
    assert all(problem.path == __file__ and problem.line and problem.hint for problem in found)
    assert "examples[0]" in found[2].message


def test_registering_is_deterministic_and_same_names_stay_apart() -> None:
    ritz, plaza = Hotel("Ritz"), Hotel("Plaza")
    first, second = register([ritz.greet, plaza.greet]), register([ritz.greet, plaza.greet])
    assert first.tools == second.tools
    assert list(first.functions) == [f"{__name__}:Hotel.greet", f"{__name__}:Hotel.greet~2"]


def test_a_type_checker_sees_the_function_itself(tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(
        "import toolcrib\n"
        "@toolcrib.tool\n"
        "def add(a: float, b: float) -> float: return a + b\n"
        "@toolcrib.tool(effect='read')\n"
        "async def get(name: str, context: toolcrib.Context) -> str: return name\n"
        "reveal_type(add)\n"
        "reveal_type(get)\n"
        "add('x', 1)\n"
        "toolcrib.open(tools=[add, get], provide={int: 3})\n",
        encoding="utf-8",
    )
    said = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent",
            "--no-error-summary", str(program),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S * 4, check=False,
    )  # fmt: skip
    lines = [line.partition("typed.py:")[2] for line in said.stdout.splitlines()]
    assert lines == [
        '6: note: Revealed type is "def (a: float, b: float) -> float"',
        '7: note: Revealed type is "def (name: str, context: toolcrib.functions.Context) '
        '-> typing.Coroutine[Any, Any, str]"',
        '8: error: Argument 1 to "add" has incompatible type "str"; expected "float"  [arg-type]',
    ]


@dataclasses.dataclass
class Folder:
    """A folder of folders."""

    name: str
    size: tuple[int, int] = (0, 0)
    inner: list[Folder] = dataclasses.field(default_factory=list)


def sort_folder(
    folder: Folder, by: Literal["name"] | int | None = None, limits: dict[str, float] | None = None
) -> Folder:
    """Sort a folder."""
    return folder


@pytest.mark.parametrize("dialect", list(DIALECTS))
@pytest.mark.parametrize("mode", ["plain", "strict"])
def test_every_provider_can_be_told_of_functions(dialect: str, mode: str) -> None:
    tools = register([book, sort_folder, list_rooms]).tools
    options = DeclareOptions(mode=ToolMode(mode))
    declared = DIALECTS[dialect].declare(list(tools), options)
    assert set(declared.names.keys.values()) == {tool.key for tool in tools}
    assert declared.left_out == ()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` statements and `def f[T]` need Python 3.12")
def test_type_statements_and_type_parameters_are_understood() -> None:
    module = types.ModuleType("modern")
    source = (
        "type Tree = int | list[Tree]\n"
        "type Pair[T] = tuple[T, T]\n"
        "def walk[N: int](tree: Tree, pair: Pair[str], count: N) -> None:\n    'Walk.'\n"
    )
    exec(compile(source, "modern.py", "exec"), vars(module))  # noqa: S102 - syntax that older versions lack
    found = parameters(one(vars(module)["walk"]))
    assert found["tree"] == {"$ref": "#/$defs/Tree"}
    assert found["pair"]["prefixItems"] == [{"type": "string"}, {"type": "string"}]
    assert found["count"] == {"type": "integer"}


@pytest.mark.parametrize(
    ("provide", "words"),
    [
        ([Database()], "provide: must be a mapping (got list)"),
        ({"db": Database()}, "provide: 'db' is no type"),
        ({Database: Database}, "provide[Database]: must be an instance of it (got the class Database)"),
        ({Database: None}, "provide[Database]: must be an instance of it (got NoneType)"),
    ],
)
def test_what_could_not_be_provided_is_refused(provide: Any, words: str) -> None:
    def query(db: Database) -> None:
        """Query."""

    with pytest.raises(UsageError, match=re.escape(words)):
        one(query, provide=provide)
    with pytest.raises(UsageError, match=re.escape(words)):
        toolcrib.open(tools=[query], provide=provide)
