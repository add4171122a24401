"""A small run of the fuzzer (fuzz/fuzz.py) finds nothing, and the fuzzer finds what is planted.

`make fuzz` is the large run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "fuzz/fuzz.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_mutated_declarations_break_nothing() -> None:
    done = fuzz("--count", "1500", "--seed", "20261115", "--giants", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inputs        1,500 " in done.stdout
    assert "giants        8" in done.stdout
    assert "findings      0" in done.stdout


@pytest.mark.parametrize(
    ("planted", "workers", "said"),
    [
        ("die", 1, "input 2: killed by SIGSEGV"),
        ("hang", 1, "input 2: did not come to an end within"),
        ("grow", 1, "input 2: the process needed "),
        ("slow", 1, "input 2: took "),
        ("differ", 2, "input 2: the answer depends on the order of hashes"),
    ],
)
def test_what_is_planted_is_found(planted: str, workers: int, said: str) -> None:
    done = fuzz("--count", "60", "--giants", "0", "--workers", str(workers), "--plant", planted)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"  {said}" in done.stdout
    (inputs,) = re.findall(r"^inputs +(\d+) ", done.stdout, re.MULTILINE)
    assert int(inputs) >= 57  # the others are looked at all the same


def test_what_is_found_is_kept_and_can_be_run_again() -> None:
    done = fuzz("--count", "20", "--giants", "0", "--workers", "1", "--plant", "raise")
    assert done.returncode == 1, done.stdout + done.stderr
    (kept,) = re.findall(r"--again (build/fuzz/finding-\w+\.json)", done.stdout)
    said = json.loads((ROOT / kept).read_text(encoding="utf-8"))["wrong"]
    assert re.fullmatch(r"input 2: RecursionError \(fuzz\.py:\d+\): planted", said)
    again = fuzz("--again", kept)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"kept because: {said}" in again.stdout
