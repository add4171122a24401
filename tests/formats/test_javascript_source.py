"""Constants of a JavaScript file: read by pattern, reported where only running would tell."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values
from toolcrib.formats import _javascript_source
from toolcrib.formats._javascript_source import JavaScriptSource

WANTED = frozenset({"X", "Y"})


def read(text: str) -> JavaScriptSource:
    return _javascript_source.read(text, WANTED)


def value(text: str) -> Any:
    found = read(text).found
    assert found.unread == ()
    return found.values["X"]


def why(text: str) -> str:
    found = read(text).found
    assert "X" not in found.values
    return found.unread[0].why


@given(
    st.text("abX=[](){}:,.+-*'\"`\\\n /$<>export const as ;01", max_size=80).map("export const X = ".__add__)
    | st.text()
)
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(read(text), JavaScriptSource)


@given(json_values)
def test_json_is_a_literal(given_value: Any) -> None:
    assert value(f"export const X = {json.dumps(given_value)};") == given_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export const X = 'it\\'s'", "it's"),
        ('export const X = "a" +\n  `b\nc`;', "ab\nc"),
        ("export const X = `costs \\${5}`", "costs ${5}"),
        (r"export const X = '\u00e9\u{1F600}\ud83d\ude00\x41\t'", "é😀😀A\t"),
        ("export const X = { a: 1, 'b-c': [1, 2,], 3: null, };", {"a": 1, "b-c": [1, 2], "3": None}),
        ("export const X = [-1.5, .5, 0x1F, 1_000, 1e3, +2]", [-1.5, 0.5, 31, 1000, 1000.0, 2]),
        ("export const X = { a: undefined, b: [undefined] }", {"b": [None]}),
        ("export const X = { /* c */ a: true, // d\n b: false }", {"a": True, "b": False}),
        ("export const X = ['a'] as const;", ["a"]),
        (
            "export const X = { a: 'b' as const, c: 1 } satisfies Record<string, { x: number }>;\nlet z",
            {"a": "b", "c": 1},
        ),
        ("export const X: Record<string, () => void> = { a: 1 }", {"a": 1}),
        (
            "const base = { a: 1 };\nexport const X = { ...base, base, b: [...['x'], 'y'] }",
            {"a": 1, "base": {"a": 1}, "b": ["x", "y"]},
        ),
        ("export const X = Object.freeze({ a: (1) })", {"a": 1}),
        ("const X = 1", 1),
        ("let X = 1, z = 2", 1),
        ("exports.X = 'c'", "c"),
        ("module.exports.X = 'c';", "c"),
        ("const re = /[\"'`{]/g; export const X = 1", 1),
        ("const s = '/*'; export const X = 1; const t = '*/'", 1),
        ("function f() { const X = 2 }\nexport const X = 1", 1),
        (
            "// export const X = 2\n/*\nexport const X = 3\n*/\n"
            "const t = `\nexport const X = 4\n`\nexport const X = 1",
            1,
        ),
    ],
)
def test_literals_are_read_as_their_authors_write_them(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("export const X = f()", "f is not a constant of this file (line 1)"),
        ("const f = 1;\nexport const X = f()", "it is computed (line 2)"),
        ("export const X = { a: b.c }", "b is not a constant of this file (line 1)"),
        ("export const X = X", "X is not a constant of this file (line 1)"),
        ("export const X = y;\nconst y = 1", "y is not a constant of this file (line 1)"),
        ("export const X = `a${b}`", "a template has ${...} (line 1)"),
        ("export const X = [1].concat([2])", "it is computed (line 1)"),
        ("export const X = { a: 1 }\n  .a", "it is computed (line 2)"),
        ("export const X = 'a' + 1", "it is computed (line 1)"),
        ("export const X = { [a]: 1 }", "a key is computed (line 1)"),
        ("export const X = { ...[1] }", "it spreads something else than an object (line 1)"),
        ("export const X = [...{}]", "it spreads something else than an array (line 1)"),
        ("export const X = (a) => a", "a is not a constant of this file (line 1)"),
        ("export const X = 'a\nb'", "a string is not closed (line 1)"),
        ("export const X = 12n", "it is no number that JSON can carry (line 1)"),
        ("export const X = 1e999", "float is no JSON value (line 1)"),
        ("export const X = 010", "it is no number that JSON can carry (line 1)"),
        (r"export const X = '\ud800'", "a text has a lone surrogate (line 1)"),
        (r"export const X = '\0'", "a text has a NUL character (line 1)"),
        ("export const X =", "it is computed (line 1)"),
        ("export const X = " + "[" * 200, "nested more than 100 levels deep (line 1)"),
    ],
)
def test_what_only_running_would_tell_is_reported(text: str, said: str) -> None:
    assert why(text) == said


def test_constants_that_double_constants_do_not_unfold_without_end() -> None:
    names = [f"n{number}" for number in range(40)]
    doubled = "\n".join(f"const {new} = [...{old}, ...{old}]" for old, new in pairwise(names))
    assert "more than 10000 values" in why(f"const n0 = ['x']\n{doubled}\nexport const X = n39")


@pytest.mark.parametrize(
    "text",
    [
        "[ /" * 30_000,
        "= /[a" * 30_000,
        "/*" * 50_000,
        "`" * 99_999,
        "const a:" * 20_000,
        "const x = /" * 20_000,
    ],
)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    assert read(text).found.values == {}  # reading that went back again and again would take minutes


def test_lines_repeats_and_exports_are_known() -> None:
    source = read(
        "export const X = 1;\nexport const X = {\n  a: [\n    'b',\n  ],\n};\n"
        "export default main;\nexport async function execute() {}\n"
    )
    assert source.found.values == {"X": {"a": ["b"]}}
    assert source.found.repeated == (("X", 2),)
    assert source.found.lines == {("X",): 2, ("X", "a"): 3, ("X", "a", 0): 4}
    assert source.exports == ("default", "execute")
    assert source.is_called


@pytest.mark.parametrize(
    ("text", "is_called"),
    [
        ("export default main;", True),
        ("export { main as default };", True),
        ("export {\n  other,\n  execute,\n};", True),
        ("export { other };", False),
        ("export const execute = (params) => params;", True),
        ("const execute = (params) => params;", False),
        ("exports.execute = main;", True),
        ("module.exports.default = main;", True),
        ("module.exports = { execute: main };", True),
        ("if (module.exports == null) run();", False),
        ("// export default main\nprocess.stdin.on('data', run);", False),
        ("const text = 'export default main';\nrun();", False),
        ("const text = `\nmodule.exports = main;\n`;", False),
        ("export {", False),
        ("export " * 3000 + "{" * 3000, False),
    ],
)
def test_a_file_that_exports_nothing_to_call_is_a_script(text: str, is_called: bool) -> None:
    assert read(text).is_called == is_called
