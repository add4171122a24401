"""Calls that go wrong, thousands of them, and hosts that are killed: is anything lost, left or mixed up?

    make soak                                     10,000 calls of misbehaving tools, then 500 killed hosts
    make soak ARGS="--calls 2000 --kills 50"      less of both
    make soak ARGS="--kills 0"                    only the calls
    make soak ARGS="--level portable --kills 0"   what a weaker level does not hold
    make soak ARGS=serving                        200 clients of a server, for 10 minutes
    make soak ARGS="serving --seconds 60"         for one

Prints a table for each part; exit status 1 where a goal is missed. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import faults
import serving


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=("calls", "serving"), default="calls", help="what to soak")
    parser.add_argument("--clients", type=int, default=200, help="serving: so many at once (200)")
    parser.add_argument("--seconds", type=float, default=600.0, help="serving: for so long (600)")
    parser.add_argument(
        "--pace", type=float, default=0.4, help="serving: seconds that a client rests between calls (0.4)"
    )
    parser.add_argument("--calls", type=int, default=10_000, help="calls of misbehaving tools (10,000)")
    parser.add_argument("--at-once", type=int, default=32, help="so many at a time (32)")
    parser.add_argument("--kills", type=int, default=500, help="hosts to kill under load (500)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="repeat a draw")
    parser.add_argument(
        "--level", choices=("portable", "restricted", "supervised"), help="call on this level"
    )
    parser.add_argument("--only", action="append", default=[], metavar="MODE", help="one fault; repeatable")
    parser.add_argument("--keep", action="store_true", help="keep the folders, and say where they are")
    given = parser.parse_args()
    if not Path("/proc/self/fd").is_dir():
        print("soak: what is left behind can only be seen where there is a /proc", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="toolcrib-soak-"))
    folder.chmod(0o711)
    met = True
    try:
        if given.part == "serving":
            return 0 if serving.run(given.clients, given.seconds, given.seed, given.pace, folder) else 1
        if given.calls:
            (folder / "faults").mkdir()
            met &= faults.run(
                given.calls, given.at_once, given.seed, folder / "faults", modes=given.only, level=given.level
            )
        if given.kills:
            (folder / "kill").mkdir()
            # A process of its own: hosts are forked from it, so it must never have had threads.
            argv = [sys.executable, str(Path(__file__).with_name("kill.py"))]
            argv += ["--kills", str(given.kills), "--seed", str(given.seed), str(folder / "kill")]
            argv += ["--level", given.level] if given.level else []
            sys.stdout.flush()
            met &= subprocess.run(argv, check=False).returncode == 0
    finally:
        if given.keep:
            print(f"kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
