"""Real clients against a host that really serves: the official SDK's in both eras, FastMCP's, the inspector.

Each talks to a process of its own, over HTTP and over a pipe.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import fastmcp
import mcp_types as types
import pytest
from fastmcp.client.transports import StdioTransport
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.mcp_hosts import WAIT_S, Host, command, copy_catalog, host, inspect
from tests.program import PROGRAM

ERAS = ("2026-07-28", "legacy")
WAYS = ("http", "stdio")
SKILL = "skill://greeting/SKILL.md"
Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("clients")
    with host(copy_catalog(folder / "catalog"), folder / "home", "served") as found:
        yield found


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(way: str, era: str, served: Host, tmp_path: Path) -> Connect:
    """What connects the SDK's client."""
    if way == "http":
        return partial(Client, served.url, mode=era, read_timeout_seconds=WAIT_S)
    program, *rest = command(served.folder, tmp_path / "home", "stdio")
    return partial(
        Client, StdioServerParameters(command=program, args=rest), mode=era, read_timeout_seconds=WAIT_S
    )


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Until it is over, or has taken too long."""

    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await work()

    anyio.run(bounded)


def text(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def test_the_sdks_client_lists_calls_and_reads(connect: Connect, era: str) -> None:
    async def work() -> None:
        async with connect() as client:
            assert client.protocol_version == (era if era != "legacy" else "2025-11-25")
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert "forbidden" not in listed
            assert listed["add"].input_schema["required"] == ["a", "b"]
            assert listed["add"].output_schema is not None
            added = await client.call_tool("add", {"a": 1, "b": 2})
            assert added.structured_content == {"sum": 3.0}
            assert not added.is_error
            failed = await client.call_tool("test_error_handling")
            assert failed.is_error
            wrong = await client.call_tool("add", {"a": "one", "b": 2})
            assert wrong.is_error
            assert text(wrong) == 'error: a: expected number, got string "one"'
            with pytest.raises(MCPError, match="unknown tool: nothing"):
                await client.call_tool("nothing")

    run(work)


def test_the_sdks_client_reads_skills_as_resources_and_prompts(connect: Connect, era: str) -> None:
    async def work() -> None:
        async with connect() as client:
            resources = {str(each.uri): each for each in (await client.list_resources()).resources}
            assert resources[SKILL].description == "How guests are greeted."
            templates = (await client.list_resource_templates()).resource_templates
            assert "skill://{name}/SKILL.md" in {each.uri_template for each in templates}
            (content,) = (await client.read_resource(SKILL)).contents
            assert isinstance(content, types.TextResourceContents)
            assert (content.mime_type, content.text[:20]) == ("text/markdown", "---\nname: greeting\nd")
            assert "greeting" in {each.name for each in (await client.list_prompts()).prompts}
            prompt = await client.get_prompt("greeting", {"request": "Greet Ada."})
            (message,) = prompt.messages
            assert isinstance(message.content, types.TextContent)
            assert message.content.text.startswith("# Greeting")
            assert message.content.text.endswith("\n\nGreet Ada.")
            found = await client.complete(
                types.ResourceTemplateReference(uri="skill://{name}/SKILL.md"),
                {"name": "name", "value": "gr"},
            )
            assert found.completion.values == ["greeting"]
            with pytest.raises(MCPError, match="unknown resource") as absent:
                await client.read_resource("skill://nothing/SKILL.md")
            assert absent.value.error.code == (-32002 if era == "legacy" else -32602)

    run(work)


def test_the_sdks_client_is_told_how_far_a_call_is(connect: Connect) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def work() -> None:
        async with connect() as client:
            result = await client.call_tool("test_tool_with_progress", progress_callback=hear)
            assert text(result) == "done"
        assert heard == [(0, 100, "step 0"), (50, 100, "step 50"), (100, 100, "step 100")]

    run(work)


def test_a_call_that_the_sdks_client_gives_up_is_stopped(connect: Connect) -> None:
    async def work() -> None:
        async with connect() as client:
            with anyio.CancelScope() as scope:

                async def give_up(progress: float, total: float | None, message: str | None) -> None:
                    scope.cancel()

                await client.call_tool("wait_until_stopped", progress_callback=give_up)
            assert scope.cancelled_caught
            stopped = await client.call_tool("was_stopped")
            assert json.loads(text(stopped)) is True

    run(work)


def test_the_sdks_client_is_asked_for_approvals(connect: Connect, tmp_path: Path) -> None:
    asked: list[str] = []
    replies: list[types.ElicitResult] = []

    async def answer(context: object, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return replies.pop()

    async def work() -> None:
        async with connect(elicitation_callback=answer) as client:
            told = {"message": f"from {tmp_path.name}"}
            replies.append(types.ElicitResult(action="accept", content={"decision": "approve"}))
            allowed = await client.call_tool("test_elicitation", told)
            assert text(allowed) == f"User response: {told['message']}"
            assert "a person shall see it" in asked[0]
            assert told["message"] in asked[0]
            replies.append(types.ElicitResult(action="decline"))
            denied = await client.call_tool("test_elicitation", told)
            assert denied.is_error
        assert (len(asked), replies) == (2, [])
        async with connect() as client:  # it cannot ask anybody
            waiting = await client.call_tool("test_elicitation", {"message": "unasked"})
            assert waiting.is_error

    run(work)


def test_the_sdks_client_hears_that_the_list_changed(
    connect: Connect, era: str, way: str, served: Host
) -> None:
    """A file changes; whoever listens is told, and the next list has the new tool."""
    name = f"new_{way}_{'newer' if era != 'legacy' else 'older'}"
    told = anyio.Event()

    def change() -> None:
        path = served.folder / "tools.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["tools"].append({**document["tools"][0], "name": name})
        path.write_text(json.dumps(document), encoding="utf-8")

    async def hear(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    async def work() -> None:
        async with connect(message_handler=hear) as client:
            assert name not in {tool.name for tool in (await client.list_tools()).tools}
            if era == "legacy":
                change()
                await told.wait()
            else:
                async with client.listen(tools_list_changed=True) as changes:
                    change()
                    await anext(aiter(changes))
            assert name in {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}

    run(work)


def test_the_program_itself_serves_the_sdks_client_on_a_pipe(era: str, served: Host, tmp_path: Path) -> None:
    rest = ["--config", str(served.folder / "toolcrib.toml"), "--state", str(tmp_path / "state")]
    started = StdioServerParameters(command=str(PROGRAM), args=[*rest, "serve", "--stdio"])

    async def work() -> None:
        async with Client(started, mode=era, read_timeout_seconds=WAIT_S) as client:
            said = await client.call_tool("json_schema_2020_12_tool", {"name": "Ada"})
            assert text(said) == '{"name":"Ada"}'
            assert len((await client.read_resource(SKILL)).contents) == 1

    run(work)


def test_fastmcps_client_lists_and_calls(way: str, served: Host, tmp_path: Path) -> None:
    program, *rest = command(served.folder, tmp_path / "home", "stdio")
    place: Any = served.url if way == "http" else StdioTransport(program, rest)

    async def work() -> None:
        async with fastmcp.Client(place, timeout=WAIT_S) as client:
            assert "add" in {tool.name for tool in await client.list_tools()}
            added = await client.call_tool("add", {"a": 1, "b": 2})
            assert added.structured_content == {"sum": 3.0}
            failed = await client.call_tool("test_error_handling", raise_on_error=False)
            assert failed.is_error
            (content,) = await client.read_resource(SKILL)
            assert "good morning" in content.text
            prompt = await client.get_prompt("greeting")
            assert len(prompt.messages) == 1

    run(work)


def test_the_inspector_lists_and_calls(way: str, served: Host, npm_packages: Path, tmp_path: Path) -> None:
    place = [served.url, "--transport", "http"]
    if way == "stdio":
        place = command(served.folder, tmp_path / "served", "stdio")
    listed = inspect(npm_packages, tmp_path / "home", *place, "--method", "tools/list")
    assert "add" in {tool["name"] for tool in listed["tools"]}
    called = ("--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=1", "--tool-arg", "b=2")
    added = inspect(npm_packages, tmp_path / "home", *place, *called)
    assert added["structuredContent"] == {"sum": 3}
    read = inspect(npm_packages, tmp_path / "home", *place, "--method", "resources/read", "--uri", SKILL)
    assert "good morning" in read["contents"][0]["text"]
