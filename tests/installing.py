"""Installs what some tests need, when the first of them runs: packages of npm, a browser, another C library.

The packages of npm go to ``build/servers``, as ``tests/peers/package-lock.json`` has them. What only the
inspector's web pages need (vite) is replaced by a package of a few bytes: the tests use its command line.

The browser and musl are packages of Debian. They are installed only as root, with apt-get, if they are
missing, and not if NO_APT is set. Their versions are not pinned.

Each function returns why the tests have to be skipped, with what would enable them; empty if all is there.
It says what it installs before it does. A file lock makes the other workers wait for the one that installs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PEERS: Final = ROOT / "tests" / "peers"
SERVERS: Final = ROOT / "build" / "servers"
LOCK: Final = ROOT / "build" / "installing.lock"
FILES: Final = ("package.json", "package-lock.json")
NPM_S: Final = 600

DEBIAN: Final = {
    "chromium": ("chromium", "tests with a real browser", 600),
    "musl-gcc": ("musl-tools", "tests with another C library", 60),
}
"""A command, the package it comes in, what needs it, and how many seconds its installation may take."""

Say = Callable[[str], None]


def debian(
    command: str, say: Say, *, env: Mapping[str, str] = os.environ, uid: int | None = None, lock: Path = LOCK
) -> str:
    """Install the package that has the command, if it is missing and may be installed."""
    package, tests, limit_s = DEBIAN[command]
    path = env.get("PATH", "")
    missing = f"{package} is not installed (Debian, Ubuntu: apt-get install {package})"
    if shutil.which(command, path=path):
        return ""
    apt = shutil.which("apt-get", path=path)
    if apt is None or (os.geteuid() if uid is None else uid) != 0 or env.get("NO_APT"):
        return missing
    with _locked(lock):
        if shutil.which(command, path=path):
            return ""
        say(
            f"installing on this machine, as root, with apt-get: {package}, for {tests}\n"
            "  in the version that the machine's package sources have, unpinned; without: NO_APT=1 make test"
        )
        environment = {**env, "DEBIAN_FRONTEND": "noninteractive"}
        _run([apt, "update", "-qq"], limit_s, environment)
        install = [apt, "install", "-y", "-qq", "--no-install-recommends", package]
        failed = _run(install, limit_s, environment)
        return "" if shutil.which(command, path=path) else f"{missing}; apt-get could not: {failed}"


def npm_packages(
    say: Say, *, target: Path = SERVERS, env: Mapping[str, str] = os.environ, lock: Path = LOCK
) -> str:
    """Install the packages of npm that the lock file names, if they are not there as it says."""
    npm = shutil.which("npm", path=env.get("PATH", ""))
    if _is_installed(target):
        return ""
    if npm is None:
        return "npm is not installed (Debian, Ubuntu: apt-get install npm)"
    with _locked(lock):
        if _is_installed(target):
            return ""
        say(f"installing the npm packages of tests/peers/package-lock.json into {target}")
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copyfile(PEERS / name, target / name)
        command = [npm, "--prefix", str(target), "ci", "--ignore-scripts", "--omit=optional", "--no-audit"]
        failed = _run([*command, "--no-fund", "--loglevel=error"], NPM_S, env)
        # npm writes its own list last: without it, the next run tries again.
        return f"npm could not install its packages: {failed}; run the tests again" if failed else ""


def _is_installed(target: Path) -> bool:
    return (target / "node_modules" / ".package-lock.json").is_file() and all(
        (target / name).is_file() and (target / name).read_bytes() == (PEERS / name).read_bytes()
        for name in FILES
    )


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run(command: list[str], limit_s: int, env: Mapping[str, str]) -> str:
    """Return why it failed, or nothing."""
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else ""
