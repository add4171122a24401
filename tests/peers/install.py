"""Installs what tests talk to: npm packages into build/servers, as the lock file says, and a browser.

``make test`` runs it. Without npm it says so and installs none of them: the tests that need them skip. What
only the inspector's web pages need (vite) has a stand-in of a few bytes: the tests use its command line. The
browser is Debian's, installed only where that is possible (root, apt-get) and there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "build" / "servers"
FILES = ("package.json", "package-lock.json")

BROWSER = "chromium"
APT_S = 600


def main() -> int:
    install_browser()
    install_packages()
    return 0


def install_browser() -> None:
    if shutil.which(BROWSER) is not None:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        sys.stderr.write(
            f"{BROWSER} is not installed: tests with a real browser will be skipped "
            f"(Debian, Ubuntu: apt-get install {BROWSER})\n"
        )
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        [apt, "update", "-qq"],
        [apt, "install", "-y", "-qq", "--no-install-recommends", BROWSER],
    ):
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.DEVNULL, timeout=APT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is None or done.returncode != 0:
            sys.stderr.write(f"{BROWSER} could not be installed: tests with a real browser will be skipped\n")
            return


def install_packages() -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.stderr.write("npm is not installed: tests that talk to MCP servers from npm will be skipped\n")
        return
    same = all(
        (TARGET / name).is_file() and (TARGET / name).read_bytes() == (HERE / name).read_bytes()
        for name in FILES
    )
    if same and (TARGET / "node_modules" / ".package-lock.json").is_file():
        return
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
            "the packages from npm could not be installed: tests that need them will be skipped\n"
        )


if __name__ == "__main__":
    sys.exit(main())
