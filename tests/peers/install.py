"""Installs the npm servers, clients and checks of tests into build/servers, exactly as the lock file says.

``make test`` runs it. Without npm it says so and installs nothing: the tests that need the servers skip. What
only the inspector's web pages need (vite) has a stand-in of a few bytes: the tests use its command line.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "build" / "servers"
FILES = ("package.json", "package-lock.json")


def main() -> int:
    npm = shutil.which("npm")
    if npm is None:
        sys.stderr.write("npm is not installed: tests that talk to MCP servers from npm will be skipped\n")
        return 0
    same = all(
        (TARGET / name).is_file() and (TARGET / name).read_bytes() == (HERE / name).read_bytes()
        for name in FILES
    )
    if same and (TARGET / "node_modules" / ".package-lock.json").is_file():
        return 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(HERE / name, TARGET / name)
    command = [
        npm,
        "ci",
        "--ignore-scripts",
        "--omit=optional",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]
    done = subprocess.run(command, cwd=TARGET, check=False)
    if done.returncode != 0:
        sys.stderr.write(
            "the MCP servers from npm could not be installed: tests that need them will be skipped\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
