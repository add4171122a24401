"""A small run of the fuzzer (fuzz/fuzz.py); `make fuzz` is the large one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_mutated_declarations_break_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "fuzz/fuzz.py", "--count", "1500", "--seed", "20261115"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inputs        1,500" in done.stdout
