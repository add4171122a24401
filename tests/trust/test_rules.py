"""Rules: the cases of tests/conformance/policy, what is a mistake, and that nothing makes them raise."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib import formats
from toolcrib.trust import rules
from toolcrib.trust.rules import Answer, ByArgument, Index, rules_of, strongest

CASES = [
    (f"{path.stem}: {case['title']}", case)
    for path in sorted((Path(__file__).parent.parent / "conformance" / "policy").glob("*.toml"))
    for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]
]


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[title for title, _ in CASES])
def test_a_case_says_what_it_says(case: dict[str, Any]) -> None:
    tables = tomllib.loads(case["policy"]).get("policy", [])
    read = rules_of(tables)
    assert [rule.mistakes for rule in read] == [()] * len(read)
    for one in case["calls"]:
        word, _, number = one["says"].partition(" ")
        examples = {"examples": [{"call": one["call"], "decision": word}]}
        assert list(rules.failing(examples, read)) == [], one
        seen, arguments = rules._example(examples["examples"][0], [])
        found = strongest(read, seen, arguments)
        assert (found.place if found else "") == (f"policy[{number}]" if number else ""), one


WHY = {"decision": "deny", "because": "r"}


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"decision": "deny"}, "needs because"),
        ({"decision": "deny", "because": " "}, "needs because"),
        ({"because": "r"}, "needs decision"),
        (
            {"because": "r", "decision": "perhaps"},
            "decision: must be one of deny, ask, allow (got 'perhaps')",
        ),
        ({**WHY, "note": 1}, "unknown key 'note'"),
        ({**WHY, "match": "all"}, "match: must be a table"),
        ({**WHY, "match": {"moon": "full"}}, "unknown key 'match.moon'"),
        ({**WHY, "match": {"name": 5}}, "match.name: must be a pattern or a list of patterns"),
        ({**WHY, "match": {"name": []}}, "match.name: must not be empty"),
        ({**WHY, "match": {"name": [""]}}, "match.name: must not be empty"),
        ({**WHY, "match": {"effect": "chnage"}}, "match.effect: must be one of read, create, change"),
        ({**WHY, "match": {"format": ["rye", "ry"]}}, "match.format: must be one of skill, manifest"),
        ({**WHY, "match": {"trust": "!sined"}}, "match.trust: must be one of signed, pinned"),
        ({**WHY, "match": {"arguments": "x"}}, "match.arguments: must be a table of arguments"),
        ({**WHY, "match": {"arguments": {}}}, "match.arguments: must be a table of arguments"),
        ({**WHY, "match": {"arguments": {"a": {}}}}, "match.arguments.a: must be a pattern, a value, or"),
        ({**WHY, "match": {"arguments": {"a": {"size": 1}}}}, "unknown key 'match.arguments.a.size'"),
        ({**WHY, "match": {"arguments": {"a": {"min": "1"}}}}, "match.arguments.a.min: must be a number"),
        ({**WHY, "match": {"arguments": {"a": {"max": float("nan")}}}}, "a.max: must be a number"),
        ({**WHY, "match": {"arguments": {"a": {"present": 1}}}}, "a.present: must be true or false"),
        (
            {**WHY, "match": {"arguments": {"a": {"present": False, "min": 1}}}},
            "present = false stands alone",
        ),
        ({**WHY, "match": {"arguments": {"a": {"under": "etc"}}}}, "a.under: must be an absolute path"),
        ({**WHY, "match": {"arguments": {"a": [1, "x"]}}}, "a: must be a pattern or a list of patterns"),
        ({**WHY, "match": {"arguments": {"/**/b/**": "x"}}}, "has more than one **"),
        (5, "no table"),
    ],
)
def test_what_cannot_be_understood_is_told_and_refuses_more_never_less(table: Any, mistake: str) -> None:
    (rule,) = rules_of([table])
    assert any(mistake in found for found in rule.mistakes), rule.mistakes
    assert rule.because
    (allowing,) = rules_of([{**table, "decision": "allow"}]) if isinstance(table, dict) else (rule,)
    if allowing.mistakes and allowing.answer is Answer.ALLOW:
        assert rules.in_order([allowing]) == []


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ({"call": {"name": "a"}, "decision": "allow"}, "expects allow, but it is deny by policy[0]"),
        ({"call": {"name": "b"}, "decision": "deny"}, "expects deny, but it is allow: no rule fits"),
        ({"call": {"nme": "a"}, "decision": "deny"}, "unknown key 'call.nme'"),
        ({"call": {"effect": "reed"}, "decision": "deny"}, "call.effect: must be one of read"),
        ({"call": {"name": 5}, "decision": "deny"}, "call.name: must be a text or a list of texts"),
        ({"call": {"arguments": 5}, "decision": "deny"}, "call.arguments: must be a table"),
        ({"call": {}, "decision": "no"}, "decision: must be one of deny, ask, allow"),
        ({"call": {}, "decision": "deny", "x": 1}, "unknown key 'x'"),
        ({"decision": "deny"}, "must be a table with call and decision"),
        (7, "must be a table with call and decision"),
    ],
)
def test_an_example_that_does_not_hold_is_told(example: Any, says: str) -> None:
    table = {**WHY, "match": {"name": "a"}, "examples": [example]}
    (told,) = rules.failing(table, rules_of([table]))
    assert told.startswith("examples[0]: ")
    assert says in told


def test_every_format_there_is_can_be_named() -> None:
    for name in (*formats.FORMATS, "python"):
        (rule,) = rules_of([{**WHY, "match": {"format": name}}])
        assert not rule.mistakes, name


def test_attack_a_value_of_thousands_of_digits_passes_no_rule() -> None:
    (rule,) = rules_of([{**WHY, "match": {"arguments": {"n": "5*"}}}])
    assert rule.match.holds({"n": 10**5000}, "")
    (rule,) = rules_of([{**WHY, "match": {"arguments": {"n": {"min": 1}}}}])
    assert rule.match.holds({"n": 10**5000}, "")
    assert rule.match.holds({"n": "0" * 500 + "5"}, "")
    assert not rule.match.holds({"n": "x" * 500}, "")


def test_attack_arguments_that_nobody_could_read_fit_every_rule() -> None:
    (rule,) = rules_of([{**WHY, "match": {"arguments": {"path": "/etc/*"}}}])
    assert rule.match.holds(None, "")


# -- promises -----------------------------------------------------------------------------------------------

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_patterns = st.sampled_from(["*", "a*", "b", "!a", "?", "[ab]", "ab", ""])
_tests = (
    _patterns
    | st.lists(_patterns, max_size=2)
    | st.booleans()
    | st.integers(-3, 3)
    | st.dictionaries(
        st.sampled_from([*rules.TEST_KEYS, "odd"]), _json | st.sampled_from(["/a", "b*"]), max_size=2
    )
)
_matches = st.dictionaries(
    st.sampled_from(["name", "key", "needs", "caller"]),
    _patterns | st.lists(_patterns, max_size=2),
    max_size=3,
) | st.fixed_dictionaries(
    {
        "arguments": st.dictionaries(
            st.sampled_from(["a", "b", "/a/0", "/*/a", "/**", "/"]), _tests, max_size=2
        )
    },
    optional={"name": _patterns},
)
_tables = st.fixed_dictionaries(
    {"decision": st.sampled_from([*Answer])},
    optional={"match": _matches, "because": st.text(max_size=3)},
)
_words = st.lists(st.sampled_from(["a", "b", "ab", "abc", ""]), max_size=2).map(tuple)
_seen = st.fixed_dictionaries(dict.fromkeys(rules.SUBJECTS, _words))
_arguments = st.none() | st.dictionaries(st.sampled_from(["a", "b", "c"]), _json, max_size=3)


@given(st.lists(_tables | _json, max_size=4), _seen, _arguments)
def test_no_table_and_no_arguments_make_a_rule_raise(tables: Any, seen: Any, arguments: Any) -> None:
    read = rules_of(tables)
    found = strongest(read, seen, arguments, "/w")
    assert found is None or found.because
    for table in tables:
        assert all(isinstance(told, str) for told in rules.failing(table, read))


@given(st.lists(_tables, max_size=8), _seen, _arguments)
def test_the_indexes_find_the_very_rule_that_looking_at_all_of_them_finds(
    tables: Any, seen: Any, arguments: Any
) -> None:
    read = rules_of(tables)
    fitting = [rule for rule in Index(read).fitting(seen) if rule.match.fits(seen)]
    assert ByArgument(fitting).first(arguments, "/w") == strongest(read, seen, arguments, "/w")
