"""What `make test` installs on the machine itself, it announces first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import WAIT_S

INSTALL = Path(__file__).parent / "peers" / "install.py"
APT = '#!/bin/sh\necho "apt-get $*" >&2\n'


def said(tmp_path: Path, **variables: str) -> str:
    """What the installer prints on a machine that has apt-get, and nothing else."""
    (tmp_path / "apt-get").write_text(APT, encoding="utf-8")
    (tmp_path / "apt-get").chmod(0o755)
    ended = subprocess.run(
        [sys.executable, INSTALL],
        env={"PATH": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    return ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages of the system")
def test_root_is_told_what_is_installed_unpinned_and_what_for_before_it_happens(tmp_path: Path) -> None:
    before, apt, after = said(tmp_path).partition("apt-get update")
    assert apt
    assert "chromium (for tests with a real browser)" in before
    assert "musl-tools (for tests with another C library)" in before
    assert "not pinned" in before
    assert "NO_APT=1 make test" in before
    assert "apt-get install -y -qq --no-install-recommends chromium\n" in after


def test_nothing_is_installed_if_the_person_says_so(tmp_path: Path) -> None:
    told = said(tmp_path, NO_APT="1")
    assert "apt-get update" not in told
    assert "chromium is not installed: tests with a real browser will be skipped" in told
