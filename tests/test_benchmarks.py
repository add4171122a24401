"""The contestants of the benchmarks still run: what is measured against others must be able to take part."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def takes_part(asked: str, *argv: str) -> None:
    """A contestant answers one line with what each took, what all took, and how many answers were wrong."""
    done = subprocess.run(argv, input=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    each_ns, whole_ns, wrong = map(int, done.stdout.split())
    assert 0 < each_ns <= whole_ns
    assert wrong == 0


@pytest.mark.parametrize("who", ["ours", "whole", "theirs"])
def test_each_way_to_an_mcp_server_answers(who: str) -> None:
    takes_part("2\n", sys.executable, str(BENCHMARKS / "servers.py"), who, "stdio")


@pytest.mark.parametrize("who", ["grouped", "together", "least", "audit"])
def test_each_way_to_a_durable_record_comes_to_its_end(tmp_path: Path, who: str) -> None:
    callers = str(BENCHMARKS / "callers.py")
    takes_part("128 64\n", sys.executable, callers, who, str(tmp_path), str(tmp_path / "state"))


def test_threads_that_only_wait_for_one_sync_come_to_their_end(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc); Debian, Ubuntu: apt-get install gcc libc6-dev")
    program = tmp_path / "waiting"
    source = BENCHMARKS / "native" / "waiting.c"
    subprocess.run([compiler, "-O2", "-pthread", "-o", str(program), str(source)], check=True)
    takes_part("128 64\n", str(program), str(tmp_path / "file"), "400")
    assert (tmp_path / "file").stat().st_size == 128 * 400
