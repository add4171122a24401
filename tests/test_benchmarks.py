"""The contestants of the benchmarks still run: what is measured against others must be able to take part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def takes_part(asked: str, *argv: str) -> None:
    """A contestant answers one line with what each took, what all took, and how many answers were wrong."""
    done = subprocess.run(
        [sys.executable, *argv], input=asked, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    each_ns, whole_ns, wrong = map(int, done.stdout.split())
    assert 0 < each_ns <= whole_ns
    assert wrong == 0


@pytest.mark.parametrize("who", ["ours", "whole", "theirs"])
def test_each_way_to_an_mcp_server_answers(who: str) -> None:
    takes_part("2\n", str(BENCHMARKS / "servers.py"), who, "stdio")


@pytest.mark.parametrize("who", ["grouped", "together", "least", "waiting", "audit"])
def test_each_way_to_a_durable_record_comes_to_its_end(tmp_path: Path, who: str) -> None:
    takes_part("128 64\n", str(BENCHMARKS / "callers.py"), who, str(tmp_path), str(tmp_path / "state"))
