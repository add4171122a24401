"""A value with its address: what formats read through, and how they report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values, texts
from toolcrib.formats import _node
from toolcrib.formats._node import Node, Reader, did_you_mean, fold, key_of, kind_of, shown, suggestion
from toolcrib.jsontext import Duplicate
from toolcrib.model import Document, Fix, FixPart, Severity

VALUE = {"tools": [{"name": "a", "limit": None}, "x"], "note": {}}


def reader(lines: dict[tuple[str | int, ...], int] | None = None) -> Reader:
    return Reader(Document(path="/p/tools.json", content=None), lines)


def root() -> Node:
    return reader().node(VALUE)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({}, "object"),
        ([], "array"),
        ("", "string"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "number"),
        (None, "null"),
    ],
)
def test_kinds_have_their_json_names_and_true_is_no_integer(value: object, kind: str) -> None:
    assert kind_of(value) == kind
    assert reader().node(value).kind == kind


def test_a_node_knows_its_address() -> None:
    tools = root().get("tools")
    assert tools is not None
    first, second = tools.items()
    assert (first.pointer, first.place) == (("tools", 0), "tools[0]")
    assert (second.place, second.value, second.kind) == ("tools[1]", "x", "string")
    assert [(key, member.place) for key, member in first.members()] == [
        ("name", "tools[0].name"),
        ("limit", "tools[0].limit"),
    ]


def test_null_is_a_member_and_an_absent_one_is_none() -> None:
    tools = root().get("tools")
    assert tools is not None
    first = next(tools.items())
    limit = first.get("limit")
    assert limit is not None
    assert limit.value is None
    assert first.get("missing") is None
    assert "limit" in first
    assert "missing" not in first
    assert first.here("missing").pointer == ("tools", 0, "missing")
    assert first.here("name").value == "a"


def test_other_kinds_have_no_items_and_no_members() -> None:
    plain: list[object] = ["text", 5, None]
    for value in (*plain, {"a": 1}):
        assert list(reader().node(value).items()) == []
    for value in (*plain, [1]):
        node = reader().node(value)
        assert list(node.members()) == []
        assert node.get("a") is None
        assert "a" not in node
        assert node.here("a").pointer == ("a",)


def test_a_report_has_place_severity_and_everything_that_was_given() -> None:
    found = reader()
    node = found.node(VALUE).here("note")
    fix = Fix(part=FixPart.KEY, new='"notes"')
    node.error("x.a", "is wrong", name="a", hint="mend it", fix=fix)
    node.warn("x.b", "is odd")
    node.inform("x.c", "is so")
    node.say("x.d", "word for word")
    found.node(VALUE).error("x.e", "no place at the root")
    assert [(problem.severity, problem.code, problem.message) for problem in found.problems] == [
        (Severity.ERROR, "x.a", "note: is wrong"),
        (Severity.WARNING, "x.b", "note: is odd"),
        (Severity.INFO, "x.c", "note: is so"),
        (Severity.ERROR, "x.d", "word for word"),
        (Severity.ERROR, "x.e", "no place at the root"),
    ]
    first = found.problems[0]
    assert (first.path, first.pointer, first.name, first.hint, first.fix) == (
        "/p/tools.json",
        ("note",),
        "a",
        "mend it",
        fix,
    )


def test_only_errors_count_as_errors() -> None:
    found = reader()
    found.add("x.a", "odd", severity=Severity.WARNING)
    assert found.errors == 0
    found.add("x.b", "wrong")
    assert (found.errors, found.has_errors) == (1, True)


def test_a_line_is_that_of_the_place_or_of_the_nearest_around_it() -> None:
    found = reader({(): 1, ("a",): 3, ("a", "b"): 4})
    found.add("x", "m", pointer=("a", "b"))
    found.add("x", "m", pointer=("a", "c", 5))
    found.add("x", "m", pointer=("z",))
    found.add("x", "m", pointer=("a",), line=9)
    found.add("x", "m")
    assert [problem.line for problem in found.problems] == [4, 3, 1, 9, None]


def test_without_lines_none_is_made_up() -> None:
    assert reader().add("x", "m", pointer=("a",)).line is None
    assert reader({("a",): 3}).add("x", "m", pointer=("b",)).line is None


def test_the_problems_of_one_document_have_an_end() -> None:
    found = reader()
    for _ in range(_node.PROBLEMS_MAX + 50):
        found.add("x", "m", severity=Severity.WARNING)
    assert found.errors == 0
    found.add("x", "m")
    assert len(found.problems) == _node.PROBLEMS_MAX + 1
    assert found.problems[-1].code == "source.too-many-problems"
    assert (found.errors, found.has_errors) == (1, True)  # those that are not listed count


def test_long_names_are_cut_out_of_addresses() -> None:
    long = "n" * (_node.NAME_CHARS_MAX + 1)
    problem = reader().add(
        "x", "m", pointer=("a", long, "b"), name=long, fix=Fix(part=FixPart.KEY, new='"a"')
    )
    assert problem.pointer == ("a",)
    assert problem.name == "n" * _node.NAME_CHARS_MAX
    assert problem.fix is None  # it would mend another place


def test_values_are_quoted_and_cut() -> None:
    assert shown("a b") == '"a b"'
    assert shown(5) == "5"
    assert shown("x" * 100) == '"' + "x" * 58 + "…"
    assert len(shown("x" * 100)) == _node.SHOWN_CHARS_MAX
    assert shown("x" * 58) == '"' + "x" * 58 + '"'


def test_a_known_word_is_suggested_for_one_that_is_nearly_it() -> None:
    known = ("timeoutSec", "envPassthrough", "name")
    assert suggestion("timeout_sec", known) == "timeoutSec"
    assert suggestion("TIMEOUTSEC", known) == "timeoutSec"
    assert suggestion("env-passthru", known) == "envPassthrough"
    assert suggestion("nmae", known) == "name"
    assert suggestion("comment", known) is None
    assert did_you_mean("nmae", known) == ' (did you mean "name"?)'
    assert did_you_mean("comment", known) == ""
    assert fold("env-Pass_through") == "envpassthrough"


@given(texts)
def test_a_suggestion_is_always_a_known_word(word: str) -> None:
    assert suggestion(word, ("name", "Command")) in ("name", "Command", None)


@given(json_values)
def test_every_value_can_be_shown(value: object) -> None:
    assert 0 < len(shown(value)) <= _node.SHOWN_CHARS_MAX


def test_repeated_members_are_those_at_or_below_an_address() -> None:
    duplicates = [Duplicate(("a", 1), "x", 1), Duplicate(("a", 1, "b"), "y", 2), Duplicate(("a", 10), "z", 3)]
    assert [found.key for found in _node.below(duplicates, ("a", 1))] == ["x", "y"]
    assert len(_node.below(duplicates, ())) == 3


@given(
    st.lists(st.tuples(st.text("a/%2F5", min_size=1), st.text("a/%", min_size=1)), unique=True, max_size=20)
)
def test_two_tools_never_share_a_key(tools: list[tuple[str, str]]) -> None:
    assert len({key_of("skill", scope, name) for scope, name in tools}) == len(tools)
