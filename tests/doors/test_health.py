"""Whether a server is alive and ready, and what its health page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import toolcrib
from tests.program import PATH
from toolcrib.app import Crib
from toolcrib.config import Config, Environment, named_source, resolve
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import EventKind, Events
from toolcrib.doors._health import Health
from toolcrib.journal.segments import Trouble


@toolcrib.tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.fixture
def crib(tmp_path: Path) -> Iterator[Crib]:
    (tmp_path / "here").mkdir()
    environment = Environment.read({"HOME": str(tmp_path), "PATH": PATH})
    config = Config(state=str(tmp_path / "state"), sources=(named_source("here", str(tmp_path)),))
    with toolcrib.open(config, environment=environment, tools=[echo]) as opened:
        yield opened


def health(crib: Crib) -> tuple[Health, Events]:
    events = Events()
    return Health(crib, Crew(crib, events), events), events


def test_it_is_ready_until_it_is_stopping(crib: Crib) -> None:
    found, _ = health(crib)
    assert found.alive() == {"status": "ok"}
    assert found.ready() == (True, {"status": "ok", "reasons": [], "tools": 1})
    found.is_draining = True
    ready, why = found.ready()
    assert not ready
    assert "stopping" in why["reasons"][0]


def test_it_is_not_ready_while_the_journal_cannot_be_written(crib: Crib) -> None:
    found, _ = health(crib)
    crib.hands.audit.trouble = Trouble("the disk is full", "make room")
    ready, why = found.ready()
    assert not ready
    assert "the disk is full" in why["reasons"][0]


def test_attack_where_the_hosts_files_lie_is_told_to_whoever_asks_whether_it_is_ready(
    crib: Crib,
) -> None:
    """It needs no token. Whoever may ask for the report is told."""
    found, _ = health(crib)
    state = crib.config.state
    crib.hands.audit.trouble = Trouble(f"{state}/journal: not a directory", "remove it")
    _, why = found.ready()
    assert why["reasons"] == ["the journal cannot be written: journal: not a directory"]
    assert found.report()["journal"]["why"] == f"{state}/journal: not a directory"


def test_attack_where_the_state_folder_lies_is_told_where_it_is_itself_at_fault(tmp_path: Path) -> None:
    (tmp_path / "no folder").write_bytes(b"")
    environment = Environment.read({"HOME": str(tmp_path), "PATH": PATH})
    state = tmp_path / "no folder" / "state"
    with toolcrib.open(Config(state=str(state)), environment=environment, tools=[echo]) as opened:
        assert opened.call("echo", {"text": "x"}).error is not None
        assert str(tmp_path) in health(opened)[0].report()["journal"]["why"]
        _, why = health(opened)[0].ready()
        assert "the journal cannot be written: " in why["reasons"][0]
        assert str(tmp_path) not in why["reasons"][0]


BAD_SCHEMA = '{"tools": [{"name": "a", "description": "A.", "command": ["x"], "schema": {"type": 7}}]}'
FAILED = {
    "no JSON": ("secret/tools.json", '{"tools": ['),
    "no tool that can be used": ("secret/tools.json", BAD_SCHEMA),
    "a server that ends": ("secret/.mcp.json", '{"mcpServers": {"x": {"command": "/bin/false"}}}'),
    "nothing there": ("secret", ""),
}


@pytest.mark.parametrize("name", FAILED)
def test_it_is_not_ready_when_every_source_failed(tmp_path: Path, name: str) -> None:
    path, text = FAILED[name]
    if text:
        (tmp_path / "secret").mkdir()
        (tmp_path / path).write_text(text, encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(f'[[source]]\npath = "{path}"\n', encoding="utf-8")
    environment = Environment.read({"HOME": str(tmp_path), "PATH": PATH})
    found = resolve(environment, cwd=str(tmp_path), file=str(file))
    with toolcrib.open(replace(found, state=str(tmp_path / "state")), environment=environment) as opened:
        ready, why = health(opened)[0].ready()
    assert not ready
    assert (why["status"], why["tools"]) == ("not ready", 0)
    assert "every source failed" in why["reasons"][0]
    assert str(tmp_path) not in str(why)
    assert "secret" not in str(why)


def test_it_is_ready_where_there_is_nothing_to_serve_and_nothing_failed(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    environment = Environment.read({"HOME": str(tmp_path), "PATH": PATH})
    config = Config(state=str(tmp_path / "state"), sources=(named_source("here", str(tmp_path)),))
    with toolcrib.open(config, environment=environment) as opened:
        assert health(opened)[0].ready() == (True, {"status": "ok", "reasons": [], "tools": 0})


def test_one_source_that_failed_beside_another_is_no_reason(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tools.json").write_text('{"tools": [', encoding="utf-8")
    environment = Environment.read({"HOME": str(tmp_path), "PATH": PATH})
    config = Config(state=str(tmp_path / "state"), sources=(named_source("here", str(tmp_path)),))
    with toolcrib.open(config, environment=environment, tools=[echo]) as opened:
        assert health(opened)[0].ready()[0]


def test_the_report_tells_isolation_sources_journal_and_the_last_reload(crib: Crib, tmp_path: Path) -> None:
    found, events = health(crib)
    events.tell(EventKind.RELOADED, {"added": ["x"]})
    report = found.report()
    assert report["isolation"]["level"] == crib.hands.sandbox.level.value
    assert {layer["name"] for layer in report["isolation"]["layers"]} >= {"landlock", "seccomp"}
    assert report["sources"] == [{"path": str(tmp_path / "here"), "format": None, "there": True}]
    assert report["journal"]["ok"]
    assert report["reload"]["added"] == ["x"]
    assert report["reload_failed"] is None
    events.tell(EventKind.RELOAD_FAILED, {"reason": "broken"})
    assert found.report()["reload_failed"]["reason"] == "broken"
    events.tell(EventKind.RELOADED, {})
    assert found.report()["reload_failed"] is None
