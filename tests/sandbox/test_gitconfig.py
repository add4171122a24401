"""Git's configuration, read as git itself reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from toolcrib.sandbox._gitconfig import settings

WHITE = bytes.maketrans(b"\t\r", b"  ")
"""Between words and outside quotes some versions of git keep white space, and others make spaces of it."""


def as_git_reads(content: bytes, folder: Path) -> list[bytes] | None:
    """What git lists, each as `name LF value`; None: it refuses the file."""
    path = folder / "config"
    path.write_bytes(content)
    done = subprocess.run(
        ["git", "config", "--file", path, "--no-includes", "--list", "-z"],
        cwd=folder, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"},
    )  # fmt: skip
    return done.stdout.translate(WHITE).split(b"\0")[:-1] if done.returncode == 0 else None


def as_we_read(content: bytes) -> list[bytes] | None:
    try:
        found = list(settings(content))
    except ValueError:
        return None
    texts = [name if value is None else f"{name}\n{value}" for name, value in found]
    return [text.encode("utf-8", "surrogateescape").translate(WHITE) for text in texts]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; install it")
@given(content=strategies.git_configurations())
def test_every_text_is_read_or_refused_as_git_does(content, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    assert as_we_read(content) == as_git_reads(content, folder)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('hooksPath = ".husky" # shared hooks', ".husky"),
        ('hooksPath = "../shared.cfg" ; team', "../shared.cfg"),
        ('hooksPath = a"3"', "a3"),
        ("hooksPath = in\\\nc4", "inc4"),
        ("hooksPath = in\\\r\nc4\r\n", "inc4"),
        ('hooksPath = "a\\"5"', 'a"5'),
        ('hooksPath = "a # b" c', "a # b c"),
        ("hooksPath = a\\\\b", "a\\b"),
        ("HOOKSPATH=  a  ; b", "a"),
        ('hooksPath = ""', ""),
        ("hooksPath", None),
    ],
)
def test_attack_a_value_in_a_form_that_git_alone_understands(line, value, tmp_path):
    content = f"\ufeff[Core] {line}".encode()
    assert list(settings(content)) == [("core.hookspath", value)]
    if shutil.which("git") is not None:
        listed = b"core.hookspath" + (b"" if value is None else b"\n" + value.encode())
        assert as_git_reads(content, tmp_path) == [listed]


@pytest.mark.parametrize(
    "text",
    ['[core] a = "b\n', "[core] a = \\q\n", "[core", '[core "a]\n', "=", "[core] a b\n", "[core] a = \0"],
)
def test_what_git_refuses_is_refused(text):
    with pytest.raises(ValueError, match="line 1 is no configuration of git"):
        list(settings(text.encode()))


@given(st.binary(max_size=300))
def test_no_bytes_break_reading_it(content):
    with suppress(ValueError):
        for name, _ in settings(content):
            assert name
