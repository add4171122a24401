"""Strict YAML: what is read, what is refused, and that nothing raises."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values
from toolcrib.formats import _yaml
from toolcrib.formats._yaml import ParsedYaml
from toolcrib.jsontext import Duplicate

PARSERS = [yaml.CSafeLoader, yaml.SafeLoader]
"""libyaml's events and those of the pure parser that stands in for it."""


def read(text: str | bytes, **limits: Any) -> ParsedYaml:
    return _yaml.read(text if isinstance(text, bytes) else text.encode("utf-8"), **limits)


def refused(text: str | bytes, **limits: Any) -> str:
    found = read(text, **limits)
    assert found.defect is not None
    assert found.value is None
    return str(found.defect)


@given(
    st.binary(max_size=80) | st.text("ab01:-.&*!<>|{}[],\"'\\#? \n\t\x00~%@`", max_size=60).map(str.encode)
)
@pytest.mark.parametrize("parser", PARSERS)
def test_no_bytes_make_it_raise(parser: Any, content: bytes) -> None:
    found = _yaml.read(content, parser=parser)
    assert isinstance(found, ParsedYaml)
    assert found.defect is None or (found.defect.line >= 1 and found.defect.column >= 1)


@given(json_values)
def test_values_that_were_written_are_read_back(value: Any) -> None:
    assert read(yaml.safe_dump(value)).value == value


SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


@given(st.text("0123456789abfxXe+-._: ~nulyostrNO", min_size=1, max_size=10))
def test_scalars_mean_what_the_safe_loader_takes_them_to_mean(text: str) -> None:
    try:
        expected = yaml.safe_load(f"- {text}")
    except (yaml.YAMLError, ValueError):
        return
    if not isinstance(expected, list) or SEXAGESIMAL.fullmatch(text.strip()):
        return
    found = read(f"- {text}")
    if found.defect is not None:
        assert "JSON can carry" in found.defect.message or "too large" in found.defect.message
    elif isinstance(expected[0], (str, int, float, bool, type(None))):
        assert (found.value[0], type(found.value[0])) == (expected[0], type(expected[0]))


@pytest.mark.battery("A10")
@pytest.mark.parametrize(
    "text", ["1:30", "2026-01-31", "12:30:45.5", "2026-01-31T10:00:00Z", "1e3", "0b_", "="]
)
def test_what_json_has_no_value_for_stays_text(text: str) -> None:
    assert read(f"a: {text}").value == {"a": text}


@pytest.mark.battery("A10")
def test_implicit_types_are_kept_apart_from_text() -> None:
    found = read("version: 1.10\nname: no\nquoted: 'no'\nhex: 0x1F\noctal: 010\nbig: 1_000\nempty:\n")
    expected = {
        "version": 1.1,
        "name": False,
        "quoted": "no",
        "hex": 31,
        "octal": 8,
        "big": 1000,
        "empty": None,
    }
    assert found.value == expected


def test_keys_are_the_text_their_author_wrote() -> None:
    assert read("on: push\n404: lost\n1.0: v\nnull: n\n'~': t\n").value == {
        "on": "push", "404": "lost", "1.0": "v", "null": "n", "~": "t",
    }  # fmt: skip


def test_an_empty_document_is_null() -> None:
    assert read("") == ParsedYaml()
    assert read("# nothing\n").value is None
    assert read("---\n...\n").value is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: caf\xe9", "line 1, column 7: not UTF-8 (byte 0xe9)"),
        (
            b"\xef\xbb\xbfa: 1",
            "line 1, column 1: the file begins with a byte-order mark; save it as UTF-8 without one",
        ),
        ("a: 1\x00", "line 1, column 5: a NUL character is not allowed"),
        ("a: 1\nb: \x01", "line 2, column 4: a control character (0x01) is not allowed"),
        ('a: "\\0"', "line 1, column 4: a NUL character is not allowed"),
        ('"\\0": 1', "line 1, column 1: a NUL character is not allowed"),
        ("a: [", "line 1, column 5: did not find expected node content while parsing a flow node"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed in this context"),
        ("--- 1\n--- 2\n", "line 2, column 1: a second document begins here; a file holds one"),
        ("a: !foo x", "line 1, column 4: the tag !foo is not allowed here; only plain values are read"),
        ("a: ! x", "line 1, column 4: the tag ! is not allowed here; only plain values are read"),
        (
            "a: !!python/object/apply:os.system [x]",
            "line 1, column 4: the tag !!python/object/apply:os.system is not allowed here; "
            "only plain values are read",
        ),
        ("a: !!set {b}", "line 1, column 4: the tag !!set is not allowed here; only plain values are read"),
        ("a: !!int x", "line 1, column 4: not a value of the tag !!int"),
        ("&a [*a]", "line 1, column 5: the alias *a stands inside what it repeats"),
        ("[*a]", "line 1, column 2: the alias *a has no anchor before it"),
        ("? [a]\n: b", "line 1, column 3: a key must be text (got a list)"),
        ("? {a: 1}\n: b", "line 1, column 3: a key must be text (got a mapping)"),
        ("a: &x [1]\n*x : 2", "line 2, column 1: a key must be text (got an alias of something else)"),
        ("{? : 1}", "line 1, column 4: a key is missing before ':'"),
        ("a: .inf", "line 1, column 4: .inf is not a number that JSON can carry; quote it if text is meant"),
        (
            "a: -.INF",
            "line 1, column 4: -.INF is not a number that JSON can carry; quote it if text is meant",
        ),
        ("a: .NaN", "line 1, column 4: .NaN is not a number that JSON can carry; quote it if text is meant"),
        ("a: 1.0e+999", "line 1, column 4: the number is too large"),
        ("a: 1" + "0" * 4300, "line 1, column 4: the integer has more than 4300 digits"),
        ("a: 0x" + "f" * 4000, "line 1, column 4: the integer has more than 4300 digits"),
        ("<<: 3", "line 1, column 1: the merge key << is not read: write out the members that it merges"),
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(text: str | bytes, said: str) -> None:
    assert refused(text) == said


@pytest.mark.parametrize("parser", PARSERS)
def test_a_lone_surrogate_is_refused_by_both_parsers(parser: Any) -> None:
    found = _yaml.read(b'a: "\\ud800"', parser=parser)
    assert found.defect is not None
    assert found.defect.line == 1


def test_core_tags_are_plain_values() -> None:
    text = (
        "a: !!str 12\nb: !!int '12'\nc: !!float 3\nd: !!bool yes\ne: !!null ''\nf: !!seq [1]\ng: !!map {h: 1}"
    )
    assert read(text).value == {"a": "12", "b": 12, "c": 3.0, "d": True, "e": None, "f": [1], "g": {"h": 1}}


# -- aliases and limits -------------------------------------------------------------------------------------


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.battery("A08")
def test_an_alias_bomb_is_refused_before_it_unfolds() -> None:
    assert refused(bomb(9)) == "line 5, column 10: more than 10000 values, aliases written out"
    assert read(bomb(3)).defect is None


def test_aliases_count_as_if_they_were_written_out() -> None:
    text = "a: &a [1, 2, 3]\nb: [*a, *a]\n"
    assert read(text).value == {"a": [1, 2, 3], "b": [[1, 2, 3], [1, 2, 3]]}
    assert refused(text, nodes_max=12).startswith("line 2, column 9: more than 12 values")


def test_nesting_is_limited_also_through_aliases() -> None:
    assert read("[" * 100 + "]" * 100).defect is None
    assert refused("[" * 101 + "]" * 101) == "line 1, column 101: nested more than 100 levels deep"
    assert refused("[" * 100_000).endswith("nested more than 100 levels deep")
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 10))
    assert refused(chain, depth_max=8).endswith("nested more than 8 levels deep")


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: 1}\nc:\n  <<: *a\n  x: 2\n",
        "a: &a {x: 1}\nb: 1\nc: {<<: [*a]}\n",
        "a: 1\nb: 2\n<<: {x: 1}\n",
        "a: 1\nb: 2\n? <<\n: {x: 1}\n",
        "a: 1\nb:\n - <<: 3\n",
    ],
)
def test_a_merge_key_is_refused_with_its_line_and_what_to_write(text: str, parser: Any) -> None:
    found = _yaml.read(text.encode(), parser=parser)
    assert found.defect is not None
    assert found.defect.line == 3
    assert found.defect.message == "the merge key << is not read: write out the members that it merges"


def test_a_quoted_key_of_two_angles_is_a_key_like_any_other() -> None:
    assert read("a: {'<<': 1, \"b\": 2}\n").value == {"a": {"<<": 1, "b": 2}}
    assert read("a: <<\n").value == {"a": "<<"}


# -- repeated keys and lines --------------------------------------------------------------------------------


def test_a_repeated_key_is_left_out_and_listed() -> None:
    found = read("a: 1\nb: 2\na: 3\nc: {x: 1, 'x': 2}\na: 4\n")
    assert found.value == {"b": 2, "c": {}}
    assert found.duplicates == (Duplicate((), "a", 3), Duplicate(("c",), "x", 4), Duplicate((), "a", 5))


def test_every_place_has_the_line_of_its_key() -> None:
    found = read("# top\na:\n  b: 1\n  c:\n    - x\n    - y: z\nd: &d\n  e: 1\nf: *d\n")
    assert found.lines == {
        (): 2, ("a",): 2, ("a", "b"): 3, ("a", "c"): 4, ("a", "c", 0): 5, ("a", "c", 1): 6,
        ("a", "c", 1, "y"): 6, ("d",): 7, ("d", "e"): 8, ("f",): 9,
    }  # fmt: skip
