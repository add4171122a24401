"""Measures what the goals in docs/performance.md speak of, side by side with their yardsticks in one run.

Prints a table and writes build/bench.json: [{"name", "value", "unit", "goal", "met"}]. Ratios compare things
measured in the same interleaved rounds on the same machine; times alone mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from calls import calling
from deciding import deciding
from declarations import write_json, write_python, write_yaml
from measuring import ROOT, Row, interleaved, ratio, timed
from servers import reaching
from serving import serving

import toolcrib

COUNT = 10_000


# -- measuring ----------------------------------------------------------------------------------------------


def read_all(folder: Path) -> None:
    for path in sorted(folder.rglob("*.json")):
        path.read_text(encoding="utf-8")


def stat_all(folder: Path) -> None:
    stack = [str(folder)]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    entry.stat()


def opened(folder: Path, state: Path | None, expected: int) -> toolcrib.Crib:
    """A crib that can answer. Its cache is written when it closes, after the answer."""
    crib = toolcrib.open(str(folder), config=toolcrib.Config(state=None if state is None else str(state)))
    assert len(crib.tools) == expected, (len(crib.tools), crib.problems[:3])
    return crib


def cold(folder: Path, expected: int) -> None:
    opened(folder, None, expected)


def loading(work: Path, rounds: int) -> list[Row]:
    rows = []
    folder, state = work / "json", work / "state-json"
    write_json(folder, COUNT)
    found = interleaved(rounds, read=lambda: read_all(folder), cold=lambda: cold(folder, COUNT))
    rows.append(
        ratio("10,000 JSON declarations, cold, to reading the files", found["cold"], found["read"], 4.0)
    )
    closing = timed(opened(folder, state, COUNT).close)
    found = interleaved(rounds * 3, stat=lambda: stat_all(folder), warm=lambda: opened(folder, state, COUNT))
    rows.append(ratio("10,000 JSON declarations, warm, to scandir+stat", found["warm"], found["stat"], 2.0))
    rows[0].detail += f"; writing the cache at close {closing * 1000:.0f} ms"
    for name, write in (("YAML", write_yaml), ("Python", write_python)):
        folder = work / name
        write(folder, COUNT)
        seconds = interleaved(max(1, rounds // 2), cold=partial(cold, folder, COUNT))["cold"]
        rows.append(Row(f"10,000 {name} declarations, cold", round(seconds, 2), "s", 6.0, seconds <= 6.0))
    return rows


def run(*argv: str) -> None:
    subprocess.run(
        argv, check=True, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    )


def starting(rounds: int) -> list[Row]:
    python = sys.executable
    program = str(Path(python).parent / "toolcrib")
    works: dict[str, Callable[[], None]] = {
        "pass": lambda: run(python, "-c", "pass"),
        "version": lambda: run(program, "--version"),
        "help": lambda: run(program, "--help"),
        "import": lambda: run(python, "-c", "import toolcrib"),
    }
    for work in works.values():
        work()
    found = interleaved(rounds * 5, **works)
    over = (found["import"] - found["pass"]) * 1000
    return [
        ratio("toolcrib --version, to python -c pass", found["version"], found["pass"], 1.5),
        ratio("toolcrib --help, to python -c pass", found["help"], found["pass"], 7.0),
        Row("import toolcrib, over python -c pass", round(over, 1), "ms", 60.0, over <= 60.0),
    ]


_MEMORY = """
import resource, sys, toolcrib
crib = toolcrib.open(sys.argv[1], config=toolcrib.Config(state=None))
assert len(list(crib.tools)) == int(sys.argv[2])
for line in open("/proc/self/status", encoding="ascii"):
    if line.startswith("VmRSS"):
        print(int(line.split()[1]) / 1024)
"""


def memory(work: Path) -> list[Row]:
    found = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(work / "json"), str(COUNT)],
        check=True,
        capture_output=True,
        text=True,
    )
    mebibytes = float(found.stdout)
    return [
        Row("whole process with 10,000 loaded tools", round(mebibytes, 1), "MiB", 100.0, mebibytes <= 100.0)
    ]


PARTS = ("starting", "deciding", "loading", "calling", "reaching", "serving")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; repeatable")
    given = parser.parse_args()
    parts = given.only or PARTS
    work = Path(tempfile.mkdtemp(prefix="toolcrib-bench-"))
    rows: list[Row] = []
    skipped: list[str] = []
    try:
        if "starting" in parts:
            rows += starting(given.rounds)
        if "deciding" in parts:
            rows += deciding(work, given.rounds)
        if "calling" in parts:
            found, skipped = calling(work, given.rounds)
            rows += found
        if "reaching" in parts:
            rows += reaching(given.rounds)
        if "serving" in parts:
            rows += serving(given.rounds)
        if "loading" in parts:
            rows += [*loading(work, given.rounds), *memory(work)]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        verdict = "met" if row.met else "MISSED"
        goal = f"{'≥' if row.at_least else '≤'} {row.goal}"
        print(f"{row.name:<{width}}  {row.value:>8} {row.unit:<3}  goal {goal:>7} {row.unit:<3}  {verdict}")
        if row.detail:
            print(f"    {row.detail}")
    for reason in skipped:
        print(f"not measured: {reason}")
    (ROOT / "build").mkdir(exist_ok=True)
    kept = ("name", "value", "unit", "goal", "met")
    report = [{key: asdict(row)[key] for key in kept} for row in rows]
    (ROOT / "build" / "bench.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
