"""TOML as text: the line of a place is the right one, or none is told."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.formats._toml import TOML_BYTES_MAX, lines_of, read


def line_of(text: str, where: str) -> int | None:
    return lines_of(text, {where}).get(where)


TEXT = '''# a = 1
top = 1

[limits]   # [serve]
"zygotes" = 1
 processes = 2
fooling = """
[serve]
port = 1
"""
list = [
  1,  # processes = 3
  [2, 3],
]
after = 'x'
serve.inner.port = 2

[[source]]
path = "a"
headers = { Accept = "x", "X.Y" = { deep = [1, { at = 2 }] } }

[ source . more ]
key = 1

[[ source ]]
path = "b"
[[source.parts]]
[[source.parts]]
name = "second"

[serve]
port = 3
[grants."rye:a.b/*"]
needs = []
'''


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n")], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("top", 2),
        ("limits", 4),
        ("limits.zygotes", 5),
        ("limits.processes", 6),
        ("limits.fooling", 7),
        ("limits.list", 11),
        ("limits.after", 15),
        ("limits.serve", 16),
        ("limits.serve.inner.port", 16),
        ("source", 18),
        ("source[0]", 18),
        ("source[0].path", 19),
        ("source[0].headers", 20),
        ("source[0].headers.Accept", 20),
        ("source[0].headers.X.Y.deep[1].at", 20),
        ("source[0].more", 22),
        ("source[0].more.key", 23),
        ("source[1]", 25),
        ("source[1].path", 26),
        ("source[1].parts[0]", 27),
        ("source[1].parts[1]", 28),
        ("source[1].parts[1].name", 29),
        ("serve", 31),
        ("serve.port", 32),
        ("grants", 33),
        ("grants.rye:a.b/*", 33),
        ("grants.rye:a.b/*.needs", 34),
        ("a", None),
        ("limits.port", None),
        ("limits.list[0]", None),  # on one of several lines
        ("source[2]", None),
        ("source[1].parts[0].name", None),
        ("", None),
    ],
)
def test_the_line_of_a_place_is_where_it_begins(text: str, where: str, line: int | None) -> None:
    read(text)
    assert line_of(text, where) == line


def test_of_two_places_that_are_written_alike_no_line_is_told() -> None:
    for text, where in (
        ('[a."b.c"]\nx = 1\n[a.b]\nc.x = 1\n', "a.b.c.x"),
        ('"a.b" = 1\na.b = 2\n', "a.b"),
        ('a = [1]\n"a[0]" = 2\n', "a[0]"),
        ('"a[0].b" = 1\na = [\n{ b = 2 },\n]\n', "a[0].b"),
        ("[a]\nb.c = '''\n'''\n\"b.c\" = 1\n", "a.b.c"),
    ):
        read(text)
        assert line_of(text, where) is None


def test_what_goes_on_over_several_lines_tells_only_where_it_begins() -> None:
    text = "a.b = [\n1]\nc = { d = '''\n''', e = 1 }\nf = 1\n"
    read(text)
    told = lines_of(text, {"a", "a.b", "a.b[0]", "c", "c.d", "c.e", "f"})
    assert told == {"a": 1, "c": 3, "f": 5}


def test_every_key_of_the_examples_stands_on_its_line() -> None:
    path = Path(__file__).parent.parent.parent / "examples" / "toolcrib.toml"
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    keys = [(name, key) for name, table in read(text).items() if isinstance(table, dict) for key in table]
    assert keys
    for name, key in keys:
        line = line_of(text, f"{name}.{key}")
        assert line is not None
        assert key in lines[line - 1]


def test_what_only_looks_like_a_header_or_an_end_is_neither() -> None:
    texts = ('"[[a]]"', "'[[a]]'", '"""\n[[a]]\n\\""" # """""', "'''\n[[a]]\n\"'''''", '"\\"[" # [')
    for value in texts:
        text = (
            f"x = {value}\ny = [ # ]\n{value}, [{{ z = {value} }}],\n]\n[[a]]\nb = {value}\n[[a]] # {{\n[c]\n"
        )
        read(text)
        lines = text.split("\n")
        headers = len(lines) - 4 - value.count("\n"), len(lines) - 2
        assert lines_of(text, {"x", "a", "a[0]", "a[1]", "a[0].b", "c"}) == {
            "x": 1,
            "a": headers[0],
            "a[0]": headers[0],
            "a[0].b": headers[0] + 1,
            "a[1]": headers[1],
            "c": headers[1] + 1,
        }


def test_a_text_that_would_take_long_to_look_through_tells_no_line() -> None:
    """Attack: a file whose mistake takes hours to tell."""
    long = "a = [\n" + "1,\n" * (TOML_BYTES_MAX // 3 - 10) + "]\nb = 1\n"
    deep = f"[a{'.a' * 999}]\n" + "b = [" + "1," * 40_000 + "]\n"
    for text, where in ((deep, "c"), (deep, f"a{'.a' * 999}.b")):
        read(text)
        assert line_of(text, where) is None
    read(long)
    assert line_of(long, "b") == len(long.splitlines()), "one look at each line is enough"
    assert line_of("a = [", "a") is None
    assert line_of("a = 1\nb = [", "a") is None


# -- against the library's reader, which is asked line by line ----------------------------------------------

WORDS = st.sampled_from(
    ["a", "b", '"a.b"', '"a[0]"', '"a[0].b"', "'b'", '""', '"."', "'#'", '"]\\""', "'[['"]
)
KEYS = st.lists(WORDS, min_size=1, max_size=3).map(" . ".join)
TEXTS = st.sampled_from(
    [
        "1",
        '"# [ \\""',
        "'\\'",
        '""',
        "''''''",
        '"""x\n# ]\\"""\n[a]\n"""""',
        "'''\\\n[[a]]\n''''",
        '"""\\\n """',
    ]
)
VALUES = st.recursive(
    TEXTS,
    lambda inner: (
        st.tuples(st.sampled_from([", ", ",\n", ", # ] '\n"]), st.lists(inner, max_size=3)).map(
            lambda list_: f"[{list_[0].join(list_[1])}]"
        )
        | st.lists(st.tuples(KEYS, inner).map(" = ".join), max_size=2).map(
            lambda items: f"{{{', '.join(items)}}}"
        )
    ),
    max_leaves=4,
)
STATEMENTS = (
    KEYS.map("[{}]".format)
    | KEYS.map("[[{}]] # [".format)
    | st.sampled_from(["", "# [[a]]"])
    | st.tuples(KEYS, VALUES).map(" = ".join)
)


def places(value: Any, at: str = "") -> Iterator[str]:
    """As they are written, one by one: two may be written alike."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        where = f"{at}[{step}]" if isinstance(value, list) else f"{at}.{step}"
        yield where.removeprefix(".")
        yield from places(item, where)


@given(st.lists(STATEMENTS, min_size=1, max_size=8))
def test_no_line_that_is_told_is_wrong(statements: list[str]) -> None:
    began: dict[str, set[int]] = {}
    line = 1
    known: list[str] = []
    text = ""
    for statement in statements:
        try:
            now = sorted(places(tomllib.loads(f"{text}{statement}\n")))
        except tomllib.TOMLDecodeError:
            continue  # it does not fit to those before it
        text += f"{statement}\n"
        for where in {each for each in now if now.count(each) > known.count(each)}:
            began.setdefault(where, set()).add(line)
        known, line = now, text.count("\n") + 1
    for where, told in lines_of(text, {*known}).items():
        assert (known.count(where), began[where]) == (1, {told}), text
