"""Installs what tests talk to: npm packages into build/servers, as the lock file says, a browser and musl.

``make test`` runs it. Without npm it says so and installs none of them: the tests that need them skip. What
only the inspector's web pages need (vite) has a stand-in of a few bytes: the tests use its command line.

The browser and musl, the other C library, are packages of Debian. They are installed only as root, with
apt-get, if they are missing, and not if NO_APT is set. Their versions are not pinned, so it says what it
installs and what for before it does.
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

DEBIAN = {
    "chromium": ("chromium", "tests with a real browser", 600),
    "musl-gcc": ("musl-tools", "tests with another C library", 60),
}
"""A command, the package it comes in, what is skipped without it, and how many seconds it is worth."""


def main() -> int:
    install_from_debian()
    install_packages()
    return 0


def install_from_debian() -> None:
    missing = [what for command, what in DEBIAN.items() if shutil.which(command) is None]
    if not missing:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0 or os.environ.get("NO_APT"):
        for package, tests, _ in missing:
            sys.stderr.write(
                f"{package} is not installed: {tests} will be skipped "
                f"(Debian, Ubuntu: apt-get install {package})\n"
            )
        return
    what = ", ".join(f"{package} (for {tests})" for package, tests, _ in missing)
    sys.stderr.write(
        f"installing on this machine, as root, with apt-get: {what}\n"
        "  in the version that the machine's package sources have, not pinned; without: NO_APT=1 make test\n"
    )
    sys.stderr.flush()
    _run([apt, "update", "-qq"], max(limit_s for _, _, limit_s in missing))
    for package, tests, limit_s in missing:
        if not _run([apt, "install", "-y", "-qq", "--no-install-recommends", package], limit_s):
            sys.stderr.write(f"{package} could not be installed: {tests} will be skipped\n")


def _run(command: list[str], limit_s: int) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


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
