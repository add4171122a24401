"""What the package says of itself is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from trove_classifiers import classifiers

import toolcrib

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(toolcrib.__file__).parent / "py.typed").is_file()


def test_every_classifier_is_one_that_the_index_knows() -> None:
    assert set(PROJECT["classifiers"]) <= classifiers


def test_the_licence_is_stated_once_as_an_expression() -> None:
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert not [text for text in PROJECT["classifiers"] if text.startswith("License")]


def test_no_address_is_named_that_does_not_exist() -> None:
    assert "urls" not in PROJECT
    assert PROJECT["authors"] == [{"name": "The Toolcrib authors"}]


@pytest.mark.parametrize("name", ["httpcore2", "uvicorn", "watchfiles"])
def test_a_dependency_whose_internals_are_used_is_bounded(name: str) -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["serve"]]
    (requirement,) = [text for text in wanted if re.match(rf"{name}\W", text)]
    assert re.search(r">=[\d.]+,<[\d.]+$", requirement)


def test_the_version_is_the_newest_one_in_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", changes, re.MULTILINE)
    assert versions[0] == toolcrib.__version__
    assert changes.index("## Unreleased") < changes.index(f"## {versions[0]}")


def test_the_hooks_for_contributors_are_local_and_there() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    (hooks,) = [repository["hooks"] for repository in config["repos"]]
    programs = {hook["entry"].split()[0] for hook in hooks}
    assert programs <= {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python"}
    assert {hook["language"] for hook in hooks} == {"system"}
