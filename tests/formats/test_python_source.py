"""Constants of a Python file: folded where the file tells them, reported where only running would."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values
from toolcrib.formats import _python_source
from toolcrib.formats._python_source import Function, PythonSource

WANTED = frozenset({"X", "__version__", "SCHEMA"})


def read(text: str) -> PythonSource:
    return _python_source.read(text, WANTED)


def value(text: str) -> Any:
    found = read(text).found
    assert found.unread == ()
    return found.values["X"]


def why(text: str) -> str:
    found = read(text).found
    assert "X" not in found.values
    return found.unread[0].why


@given(st.text("abX=[](){}:,.+-*'\"\\\n #@\t01~not lambda if else f\x00é", max_size=80))
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(read(text), PythonSource)


@given(json_values)
def test_every_literal_is_read_as_python_reads_it(given_value: Any) -> None:
    assert value(f"X = {given_value!r}") == given_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A = 'x'\nX = A", "x"),
        ("A = 1\nX = A\nA = 2", 1),
        ("X = 'a' 'b' + \"c\"", "abc"),
        ("A = 3\nX = f'v{A}.0'", "v3.0"),
        ("X = (1, 2)", [1, 2]),
        ("X = {'b', 'a', 'b'}", ["b", "a"]),
        ("A = ['x']\nX = [*A, 'y'] + A", ["x", "y", "x"]),
        ("A = {'a': 1}\nX = {**A, 'b': 2} | {'a': 3}", {"a": 3, "b": 2}),
        ("A = {'a': 1}\nX = dict(A, b=2, **{'c': 3})", {"a": 1, "c": 3, "b": 2}),
        ("A = {'b': 1, 'a': 2}\nX = list(A)", ["b", "a"]),
        ("A = {'b': 1, 'a': 2}\nX = sorted(A.keys()) + list(A.values())", ["a", "b", 1, 2]),
        ("X = tuple()", []),
        ("A = {'a': [5, 6]}\nX = A['a'][-1]", 6),
        ("X = -1.5", -1.5),
        ("X = 60 * 60 - 1 + 0.5", 3599.5),
        ("X: dict = None", None),
        ("A = B = 'x'\nX = [A, B]", ["x", "x"]),
        ("if __name__ == '__main__':\n    X = 2\nX = 1", 1),
    ],
)
def test_constants_of_the_file_are_folded(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("X = f()", "it calls f() (line 1)"),
        ("X = {'a': mod.f()}", "it calls f() (line 1)"),
        ("X = Y", "Y is not a constant of this file (line 1)"),
        ("X = Y\nY = 1", "Y is not a constant of this file (line 1)"),
        ("from y import Y\nX = Y", "Y is changed in line 1 (line 2)"),
        ("Y = [1]\nY.append(2)\nX = Y", "Y is changed in line 2 (line 3)"),
        ("Y = {}\nX = Y\nY['a'] = 1", "Y is changed in line 3 (line 2)"),
        ("Y = 1\nY += 1\nX = Y", "Y is changed in line 2 (line 3)"),
        ("Y = {}\nfor k in 'ab':\n    Y[k] = 1\nX = Y", "Y is changed in line 3 (line 4)"),
        ("X = {}\nX['a'] = 1", "line 2 changes it (line 2)"),
        ("try:\n    X = 1\nexcept Exception:\n    X = 2", "it is not bound by a plain assignment (line 2)"),
        ("X, Y = 1, 2", "it is not bound by a plain assignment (line 1)"),
        ("X = [n for n in 'ab']", "it is computed (line 1)"),
        ("X = 'a' * 3", "it is computed (line 1)"),
        ("X = not True", "it is computed (line 1)"),
        ("X = f'{1:>1000000000}'", "it is computed (line 1)"),
        ("X = 2 ** 99999999", "it is computed (line 1)"),
        ("X = 9" + "9" * 400 + " * 9" + "9" * 400, "it is computed (line 1)"),
        ("X = b'x'", "bytes is no JSON value (line 1)"),
        ("X = ...", "ellipsis is no JSON value (line 1)"),
        ("X = 1e999", "float is no JSON value (line 1)"),
        ("X = {1: 2}", "the key 1 is not a string (line 1)"),
        ("X = '\\ud800'", "a text has a lone surrogate (line 1)"),
        ("X = '\\0'", "a text has a NUL character (line 1)"),
        ("X = 0x" + "f" * 5000, "an integer has more than 4300 digits (line 1)"),
        ("X = [][0]", "it is computed (line 1)"),
        ("X = sorted([1, 'a'])", "it calls sorted() (line 1)"),
        ("X = " + "[" * 150 + "]" * 150, "nested more than 100 levels deep (line 1)"),
    ],
)
def test_what_only_running_would_tell_is_reported(text: str, said: str) -> None:
    assert why(text) == said


def test_constants_that_double_constants_do_not_unfold_without_end() -> None:
    names = [f"n{number}" for number in range(40)]
    doubled = "\n".join(f"{new} = {old} + {old}" for old, new in pairwise(names))
    assert "more than 10000 values" in why(f"n0 = ['x']\n{doubled}\nX = n39")
    assert "10000 values" in why(f"n0 = 'x'\n{doubled}\nX = n39")
    long = "x" * 90_000
    assert "1048576 characters" in why(f"n0 = '{long}'\n{doubled}\nX = n5")


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "(" * 5000,
        "x = " + "-" * 90_000 + "1",
        "x = " + "not " * 20_000 + "1",
        "x = " + "1+" * 45_000 + "1",
        "x = a" + ".b" * 45_000,
        "x = " + "lambda:" * 5000 + "1",
        "if 1: pass\n" + "elif 1: pass\n" * 7_000,
    ],
)
def test_endless_nesting_is_a_defect_and_nothing_worse(text: str) -> None:
    defect = read(text).found.defect
    assert defect is not None
    assert "nested" in defect.message


def test_a_long_file_is_not_parsed_because_its_tree_would_fill_the_memory() -> None:
    found = read("X = 1\n" + "#" * _python_source.SOURCE_BYTES_MAX).found
    assert found.refused == "it has 131,078 bytes, more than the 131,072 a Python file may have"
    assert found.values == {}
    assert read("X = 1\n".ljust(_python_source.SOURCE_BYTES_MAX)).found.values == {"X": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def execute(:", "line 1, column 13: invalid syntax"),
        ("x = 1\nif x:\n", "line 2, column 6: expected an indented block after 'if' statement on line 2"),
    ],
)
def test_a_syntax_error_has_its_line(text: str, said: str) -> None:
    assert str(read(text).found.defect).startswith(said)


def test_a_nul_character_is_a_defect() -> None:
    assert read("x = 1\0").found.defect is not None


def test_a_doubtful_escape_is_no_warning_of_ours() -> None:
    assert value("X = '\\d'") == "\\d"


def test_of_several_bindings_the_last_counts_and_is_named() -> None:
    found = read("X = 1\n\nX = 2\n").found
    assert found.values == {"X": 2}
    assert found.repeated == (("X", 3),)


def test_every_place_of_a_literal_has_its_line() -> None:
    found = read(
        "MODES = [\n    'a',\n]\nX = {\n    'type': 'object',\n    'enum': MODES,\n    **{'more':\n 1},\n}\n"
    ).found
    assert found.lines == {
        ("X",): 4, ("X", "type"): 5, ("X", "enum"): 6, ("X", "enum", 0): 2, ("X", "more"): 7,
    }  # fmt: skip


def test_what_a_module_offers_is_known_without_importing_it() -> None:
    source = read(
        '"""Docs."""\nfrom x import *\nasync def execute(params, project_path, *rest, more=1, **all): ...\n'
        "class Tool:\n    def run(self): ...\n"
        'if "__main__" == __name__:\n    parser.add_argument("-p", "--params", required=True)\n'
        'parser.add_argument("--project-path")\n'
    )
    assert source.has_docstring
    assert source.has_main
    assert source.functions == {"execute": Function(("params", "project_path", "*rest", "more", "**all"), 3)}
    assert source.bound == {"*", "execute", "Tool"}
    assert source.options == {"-p": True, "--params": True, "--project-path": False}


@pytest.mark.parametrize(
    "hidden",
    [
        '(__executor_id__ := "other")',
        "try:\n    pass\nexcept* ValueError:\n    __executor_id__ = 'other'",
        "match 'other':\n    case __executor_id__:\n        pass",
        "try:\n    1 / 0\nexcept ZeroDivisionError as __executor_id__:\n    pass",
        "def f():\n    global __executor_id__\n    __executor_id__ = 'other'\nf()",
    ],
)
def test_a_name_that_is_bound_in_hiding_is_not_guessed(hidden: str) -> None:
    """A reviewer must not read one executor while Python binds another."""
    found = _python_source.read(f'__executor_id__ = "seen"\n{hidden}\n', frozenset({"__executor_id__"})).found
    assert "__executor_id__" not in found.values
    assert [item.name for item in found.unread] == ["__executor_id__"]
