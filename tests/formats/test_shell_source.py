"""Metadata of a Bash script: comment lines and assignments, nothing expanded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.formats import _shell_source
from toolcrib.formats._source import SourceValues

WANTED = frozenset({"X", "__version__"})


@given(st.text("X='\"$`\\# {}[]:,\n01__version__", max_size=80))
def test_no_text_makes_it_raise(text: str) -> None:
    assert isinstance(_shell_source.read(text, WANTED), SourceValues)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('# X = "1.0.0"', "1.0.0"),
        ("#X: '1.0.0'", "1.0.0"),
        ("# X = two words", "two words"),
        ("# X = null", None),
        ("X=word # comment", "word"),
        ("X='two words'; echo", "two words"),
        ('readonly X="1.0.0"', "1.0.0"),
        ("declare -r X=true", True),
        ("X=", ""),
        ('# X = {\n#   "a": "}",\n#   "b": [1]\n# }\n# more', {"a": "}", "b": [1]}),
        ("X='{\n  \"a\": 1\n}'\n", {"a": 1}),
        ("if true; then\n  X=2\nfi\nX=1", "1"),
    ],
)
def test_names_are_read_from_comments_and_assignments(text: str, expected: Any) -> None:
    found = _shell_source.read(f"#!/bin/bash\n{text}\n", WANTED)
    assert found.values == {"X": expected}
    assert found.unread == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("X=$(date)", "the shell would expand it (line 1)"),
        ('X="a $HOME"', "the shell would expand it (line 1)"),
        ("X='a'\"b\"", "the shell would join it with more (line 1)"),
        ("X='a", "a quote is not closed (line 1)"),
        ('# X = {\n#   "a": ]\n# }', "not JSON: expected a value (got ']') (line 2)"),
        ('# X = {"a": 1, "a": 2}', 'duplicate key "a" (line 1)'),
    ],
)
def test_what_the_shell_would_have_to_expand_is_reported(text: str, said: str) -> None:
    found = _shell_source.read(text, WANTED)
    assert found.values == {}
    assert [item.why for item in found.unread] == [said]


def test_the_last_of_several_counts_and_lines_are_known() -> None:
    found = _shell_source.read("# X = 1\n__version__='2.0.0'\n# X = 3\n", WANTED)
    assert found.values == {"X": "3", "__version__": "2.0.0"}
    assert found.repeated == (("X", 3),)
    assert found.lines == {("X",): 3, ("__version__",): 2}
