"""Words that were probably meant, however many are known and however long the unknown one is; and what a
programmer reads of a mistake."""

from __future__ import annotations

import ast
import errno
import os
import time
import traceback
from pathlib import Path

import pytest

import toolcrib
from tests.syntax import tree
from toolcrib.errors import ConfigError, ToolcribError, UsageError, nearest, shortage


def test_a_traceback_says_what_to_do_and_the_message_stays_alone() -> None:
    error = UsageError("unknown dialect 'claude'", "dialects are anthropic and openai")
    assert str(error) == "unknown dialect 'claude'"
    assert traceback.format_exception_only(error)[-2:] == [
        "toolcrib.errors.UsageError: unknown dialect 'claude'\n",
        "dialects are anthropic and openai\n",
    ]
    assert len(traceback.format_exception_only(ConfigError("toolcrib.toml: no such key"))) == 1


def test_the_likeliest_word_is_found_among_few_and_among_very_many() -> None:
    few = ["read_file", "write_file", "list_folder"]
    assert nearest("raed_file", few) == ["read_file"]
    many = [f"group_{number // 10}_tool_{number}" for number in range(10_000)]
    assert nearest("group_77_tool_777x", many) == ["group_77_tool_777"]


def test_attack_comparing_takes_everybodys_time_for_a_hint_to_somebody_who_is_refused() -> None:
    many = [f"capability:group_{number // 10}/tool_{number}" for number in range(20_000)]
    nearest("warm", many)  # what compares is imported once
    began = time.process_time()
    assert nearest("n" * 3_000_000, ["n"]) == []
    for number in range(10):
        nearest(f"capability:group_5/tool_99999{number}", many)
    assert time.process_time() - began < 2.0  # without a bound more than six


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (MemoryError(), "ulimit -v"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "ulimit -v"),
        (ImportError("lib.so: failed to map segment from shared object"), "ulimit -v"),
        (ImportError("lib.so: cannot create its descriptor: Cannot allocate memory"), "ulimit -v"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -n"),
        (ImportError("lib.so: cannot open shared object file: Too many open files"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (ImportError("lib.so: failed to map segment from shared object: Operation not permitted"), None),
        (ImportError("No module named 'lib'"), None),
        (OSError(errno.ENOENT, os.strerror(errno.ENOENT)), None),
        (RuntimeError("Set changed size during iteration"), None),
    ],
)
def test_what_ran_out_is_told_with_the_limit_to_raise(error: Exception, fix: str | None) -> None:
    told = shortage(error)
    assert (told is None) is (fix is None)
    assert told is None or (fix or "") in told[1]


def test_every_exception_that_a_program_can_catch_is_public_or_derives_from_a_public_one() -> None:
    bases: dict[str, set[str]] = {}
    for path in Path(toolcrib.__file__).parent.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                named = {base.id for base in node.bases if isinstance(base, ast.Name)}
                bases[node.name] = bases.get(node.name, set()) | named

    def above(name: str) -> set[str]:
        return {name}.union(*map(above, bases.get(name, ())))

    ours = {name for name in bases if "ToolcribError" in above(name)} - {"ToolcribError"}
    public = set(toolcrib.__all__) - {"ToolcribError"}
    only_of_the_command_line = {"TokenError"}
    assert {name for name in ours if public.isdisjoint(above(name))} == only_of_the_command_line
    assert {"UsageError", "EditError", "Locked"} <= ours


def test_the_reference_names_every_public_exception_with_its_exit_code() -> None:
    page = Path(__file__).parent.parent / "docs" / "reference" / "exceptions.md"
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    told = {row[0].strip("| `"): row[-1].strip(" |").split(", ")[0] for row in rows}
    kinds = {name: getattr(toolcrib, name) for name in toolcrib.__all__}
    assert told == {
        name: str(kind.exit_code)
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, ToolcribError)
    }
