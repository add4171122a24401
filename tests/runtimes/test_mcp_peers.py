"""Servers that others wrote, as people use them: from PyPI and npm, over stdio and Streamable HTTP."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import installing, test_servers
from tests.test_servers import BOUND_S, written
from toolcrib.app import Crib
from toolcrib.errors import Kind
from toolcrib.model import EmbeddedResource, ImageBlock, ResourceLink, TextBlock
from toolcrib.sandbox import Cancel

NPM = installing.SERVERS / "node_modules" / "@modelcontextprotocol"
BIN = Path(sys.executable).parent
NODE = shutil.which("node")

from_npm = pytest.mark.usefixtures("npm_packages")


def everything(*arguments: str) -> list[str]:
    assert NODE is not None
    return [NODE, str(NPM / "server-everything" / "dist" / "index.js"), *arguments]


def free_port() -> int:
    """Below those that the kernel gives to whoever asks for any: none of these gets it before we use it."""
    for port in range(20_000 + os.getpid() % 10_000, 32_768):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@contextmanager
def everything_over_http() -> Iterator[str]:
    """The everything server on a free port; its URL."""
    port = free_port()
    process = subprocess.Popen(
        everything("streamableHttp"),
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening" in line:
                break
        else:
            raise AssertionError("it did not start")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def opened(folder: Path, **variables: str) -> Iterator[Crib]:
    """A crib whose servers have all answered, however slow the machine is just now."""
    with test_servers.opened(folder, None, **variables) as crib:
        if crib.problems:
            crib.reload(fresh=True)
        yield crib


def blocks(crib: Crib, tool: str, arguments: dict[str, Any]) -> list[type]:
    result = crib.call(tool, arguments)
    assert result.ok, result.error
    return [type(block) for block in result.blocks]


def test_the_time_server_from_pypi(tmp_path: Path) -> None:
    written(tmp_path, {"name": "time", "mcp": [str(BIN / "mcp-server-time")], "trusted": True})
    with opened(tmp_path) as crib:
        assert crib.problems == ()
        arguments = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
        result = crib.call("mcp:time/convert_time", arguments)
        assert isinstance(result.data, dict)
        assert result.data["time_difference"] == "-9.0h"
        wrong = crib.call("mcp:time/get_current_time", {"timezone": "No/Where"}).error
        assert wrong is not None
        assert wrong.kind is Kind.FAILED
        assert "No/Where" in wrong.message


def test_the_git_server_from_pypi(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", str(folder)], check=True, env=env)
    (folder / "new.txt").write_text("hello", encoding="utf-8")
    written(tmp_path, {"name": "git", "mcp": [str(BIN / "mcp-server-git"), "--repository", str(folder)]})
    with opened(tmp_path) as crib:
        result = crib.call("mcp:git/git_status", {"repo_path": str(folder)})
        assert result.ok, result.error
        assert "new.txt" in result.content


@from_npm
def test_the_filesystem_server_from_npm(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("hello", encoding="utf-8")
    assert NODE is not None
    program = str(NPM / "server-filesystem" / "dist" / "index.js")
    written(tmp_path, {"name": "files", "mcp": [NODE, program, str(folder)]})
    with opened(tmp_path) as crib:
        result = crib.call("mcp:files/read_text_file", {"path": str(folder / "a.txt")})
        assert result.ok, result.error
        assert result.content == "hello"
        outside = crib.call("mcp:files/read_text_file", {"path": "/etc/hostname"})
        assert not outside.ok


@from_npm
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_everything_server_from_npm(tmp_path: Path, transport: str) -> None:
    if transport == "http":
        with everything_over_http() as url:
            written(tmp_path, {"name": "all", "mcp": url})
            check_everything(tmp_path)
    else:
        written(tmp_path, {"name": "all", "mcp": everything("stdio")})
        check_everything(tmp_path, SECRET_OF_HOST="x")


def check_everything(folder: Path, **variables: str) -> None:
    with opened(folder, **variables) as crib:
        assert crib.problems == ()
        assert crib.call("mcp:all/echo", {"message": "hi"}).content == "Echo: hi"
        assert crib.call("mcp:all/get-sum", {"a": 2, "b": 3}).content == "The sum of 2 and 3 is 5."
        assert blocks(crib, "mcp:all/get-tiny-image", {}) == [TextBlock, ImageBlock, TextBlock]
        assert blocks(crib, "mcp:all/get-resource-links", {"count": 2}) == [
            TextBlock,
            ResourceLink,
            ResourceLink,
        ]
        reference = {"resourceType": "Text", "resourceId": 1}
        assert EmbeddedResource in blocks(crib, "mcp:all/get-resource-reference", reference)
        structured = crib.call("mcp:all/get-structured-content", {"location": "New York"})
        assert isinstance(structured.data, dict)
        assert "temperature" in structured.data
        annotated = crib.call("mcp:all/get-annotated-message", {"messageType": "error"})
        assert isinstance(annotated.blocks[0], TextBlock)
        assert annotated.blocks[0].more == {"annotations": {"priority": 1, "audience": ["user", "assistant"]}}
        slow = {"duration": 0.4, "steps": 4}
        running = crib.call("mcp:all/trigger-long-running-operation", slow)
        assert running.ok, running.error
        assert any(note.startswith("messages of progress") for note in running.notes)
        if variables:
            seen = json.loads(crib.call("mcp:all/get-env").content)
            assert not set(variables) & set(seen)
        late = crib.call(
            "mcp:all/trigger-long-running-operation", {"duration": 60, "steps": 2}, timeout_s=0.5
        )
        assert late.error is not None
        assert late.error.kind is Kind.TIMED_OUT
        assert crib.call("mcp:all/echo", {"message": "still"}).content == "Echo: still"


@from_npm
def test_a_list_that_is_said_to_change_and_does_not_is_read_once(tmp_path: Path) -> None:
    """The everything server says at every start that its list changed."""
    written(tmp_path, {"name": "all", "mcp": everything("stdio")})
    with opened(tmp_path) as crib:
        count = len(crib.tools)
        until = time.monotonic() + BOUND_S
        while crib._lists._refresher is not None and time.monotonic() < until:
            Cancel().wait(0.05)
    with opened(tmp_path) as crib:
        assert crib._report.warm
        assert len(crib.tools) == count
