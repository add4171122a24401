"""Container tools. No engine runs on a test machine: a stand-in program on PATH records how it is called and
plays the engine's part, so these tests show our side of the conversation and nothing about real isolation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.levels import each_level, sandbox_of
from tests.program import toolcrib as program
from toolcrib.app import Crib
from toolcrib.config import Config, Environment, read_file
from toolcrib.errors import Kind
from toolcrib.journal.reading import entries
from toolcrib.model import Grant, Level, Limits, ToolResult

FAKE_ENGINE = """#!/bin/sh
if [ "$1" = rm ]; then echo "$@" >>"{log}"; exit 0; fi
echo "$@" >>"{log}"
{does}
"""

TELLING = """printf '{"asked":"%s","env":"TOKEN=%s OTHER=%s","stdin":"%s"}' \\
  "$*" "$TOKEN" "$OTHER" "$(tr '"' "'")"
"""
"""Says how it was called, where nothing may be written."""


class Site:
    """A project with one container tool, and a folder with the stand-in engine."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.project, self.bin = folder / "p", folder / "bin"
        self.log, self.state = folder / "log", folder / "state"
        self.bin.mkdir()
        self.log.touch()
        self.log.chmod(0o666)

    def declare(self, **config: Any) -> None:
        declaration = {
            "tool_id": "deploy-it",
            "tool_type": "yaml",
            "version": "1.0.0",
            "description": "Deploy in a container",
            "executor_id": "rye/core/primitives/execute",
            "category": "ops",
            "parameters": [{"name": "to", "type": "string", "required": True, "description": "Where"}],
            "config": {"image": "deploy:1", **config},
        }
        path = self.project / ".ai" / "tools" / "ops" / "deploy-it.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(declaration), encoding="utf-8")

    def engine(self, does: str) -> None:
        path = self.bin / "fake-engine"
        path.write_text(FAKE_ENGINE.format(log=self.log, does=does), encoding="utf-8")
        path.chmod(0o755)

    @property
    def said(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()

    @contextmanager
    def crib(
        self, level: Level = Level.PORTABLE, env: Mapping[str, str] | None = None, **config: Any
    ) -> Iterator[Crib]:
        path = f"{self.bin}:{os.environ['PATH']}"
        surroundings = replace(
            Environment.read({"PATH": path, "HOME": "/nowhere", **(env or {})}), state=str(self.state)
        )
        asked = {"container_engine": "fake-engine", "unsigned": "warn", **config}
        made = replace(Config(state=str(self.state)), **asked)
        with (
            sandbox_of(level) as sandbox,
            toolcrib.open([self.project], config=made, environment=surroundings, sandbox=sandbox) as opened,
        ):
            yield opened

    def call(self, level: Level = Level.PORTABLE, timeout_s: float | None = None, **more: Any) -> ToolResult:
        with self.crib(level, **more) as opened:
            return opened.call("ops/deploy-it", {"to": "prod"}, timeout_s=timeout_s)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.requirement("rye.yaml.config-docker")
def test_where_no_engine_is_enabled_nothing_runs(site: Site) -> None:
    site.declare()
    site.engine("echo {}")
    result = site.call(container_engine="")
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (Kind.UNAVAILABLE, "no container runtime configured")
    assert site.said == []


@pytest.mark.requirement("rye.yaml.config-docker")
@pytest.mark.parametrize("level", each_level())
def test_the_stand_in_engine_gets_the_arguments_on_stdin_and_variables_only_by_name(
    site: Site, level: Level
) -> None:
    site.declare(command="deploy", args=["--now"], entrypoint="/bin/sh", env=["TOKEN"])
    site.engine(TELLING)
    result = site.call(
        level,
        env={"TOKEN": "tok-123456", "OTHER": "other"},
        grants=(Grant(pattern="*", needs=("fs.read",)),),
        limits=Limits(processes_max=7, memory_bytes_max=64 << 20),
    )
    told = json.loads(result.content)["data"]
    asked = told["asked"]
    assert told["stdin"] == "{'to':'prod'}"
    assert asked.startswith("run --rm --interactive ")
    assert asked.endswith("--env TOKEN --entrypoint /bin/sh deploy:1 deploy --now")
    for option in ("--network none", "--pids-limit 7", f"--memory {64 << 20}", "--pull never"):
        assert option in asked
    assert told["env"] == "TOKEN=[secret TOKEN] OTHER="
    recorded = repr([entry.body for entry in entries(str(site.state / "journal"))])
    assert "tok-123456" not in recorded


def test_a_container_has_a_network_only_where_the_tool_may(site: Site) -> None:
    site.declare()
    site.engine("echo {}")
    site.call(grants=(Grant(pattern="*", needs=("net.http",)),))
    assert "--network bridge" in site.said[0]


def test_an_engine_that_does_not_answer_is_unavailable_in_its_own_words(site: Site) -> None:
    site.declare()
    site.engine("echo 'Cannot connect to the daemon' >&2; exit 125")
    result = site.call()
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (
        Kind.UNAVAILABLE,
        "the container runtime could not run it: Cannot connect to the daemon",
    )
    site.engine('echo \'{"success": false, "error": "no"}\'; exit 3')
    assert site.call().error is not None


def test_an_engine_that_is_not_installed_is_said_to_be_missing(site: Site) -> None:
    site.declare()
    result = site.call(container_engine="no-such-engine")
    assert result.error is not None
    assert result.error.message == "the container runtime no-such-engine is not installed"


def test_a_container_is_removed_when_its_client_was_stopped(site: Site) -> None:
    site.declare()
    site.engine("exec sleep 30")
    result = site.call(timeout_s=1.0)  # by then the stand-in has written what it was asked
    assert result.error is not None
    assert result.error.kind is Kind.TIMED_OUT
    name = site.said[0].split("--name ")[1].split()[0]
    assert name == f"toolcrib-{result.call_id}"
    assert site.said[-1] == f"rm --force {name}"


def test_a_found_configuration_cannot_enable_an_engine(tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.toml"
    path.write_text('[containers]\nengine = "/tmp/evil"\n', encoding="utf-8")
    found = read_file(str(path), trusted=False)
    assert found.container_engine == ""
    assert [problem.code for problem in found.problems] == ["config.untrusted"]
    assert read_file(str(path), trusted=True).container_engine == "/tmp/evil"


def test_the_command_is_shown_before_it_runs(site: Site, tmp_path: Path) -> None:
    site.declare(command="deploy")
    home = tmp_path / "home"
    home.mkdir()
    said = program(
        "--from", site.project, "show", "ops/deploy-it", "--argv", '{"to": "prod"}', cwd=tmp_path, home=home
    )
    assert said.status == 0, said
    assert "docker" in said.out
    assert "--network" in said.out
    assert site.said == []
