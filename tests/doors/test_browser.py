"""The console in a real browser: Debian's chromium, driven by Playwright, against a real ``toolwright serve``.

The story of somebody who opens it for the first time, on a phone and on a desk, by day and by night; with the
keyboard alone; without scripts. What the pages ask for, complain about or hide from a screen reader counts.

With ``SCREENSHOTS=DIR`` the images of the documentation are written there (``make screenshots``).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.program import PROGRAM, environment

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / "build" / "servers" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 15_000
START_S = 60
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
SHOTS = os.environ.get("SCREENSHOTS", "")
SHOT_BYTES_MAX = 150_000

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed; Debian, Ubuntu: apt-get install chromium"
    ),
    pytest.mark.xdist_group("browser"),
]

RULES = """
[[policy]]
match = { name = "machine_info" }
decision = "ask"
because = "it tells about this machine"
"""


# -- a server, and a browser --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A host with the examples, as `make run` serves them."""

    address: str
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "examples", folder / "examples")
    config = folder / "examples" / "toolwright.toml"
    config.write_text(config.read_text(encoding="utf-8") + RULES, encoding="utf-8")
    tomllib.loads(config.read_text(encoding="utf-8"))
    (folder / "state").mkdir(mode=0o700)
    (folder / "home").mkdir(mode=0o700)
    env = environment(folder / "home", USER="ann", LOGNAME="ann")
    options = ["--config", "examples/toolwright.toml", "--state", "state"]
    keys = [str(path) for path in (folder / "examples" / "keys").glob("*.toml")]
    subprocess.run(
        [PROGRAM, "trust", *keys], cwd=folder, env=env, check=True, capture_output=True, timeout=60
    )
    process = subprocess.Popen(
        [PROGRAM, "--quiet", *options, "serve", "--port", "0"],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = b""
        while not (found := re.search(rb"serving at (http://\S+)", said)):
            line = process.stderr.readline()
            assert line, f"it did not start: {said.decode(errors='replace')}"
            said += line
        yield Served(found[1].decode(), folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.close()
        assert process.wait(START_S) is not None
