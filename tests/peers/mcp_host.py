"""A host that serves the tools, resources and prompts which MCP's conformance suite asks for by name.

Run as ``python mcp_host.py CATALOG HOME SERVER``. ``SERVER`` is ``served`` (as `toolcrib serve` does) or
``stdio`` (as `toolcrib serve --stdio`); ``sdk`` and ``sdk-stdio`` put the official SDK's server in its
place (``mcp_oracle.py``). On HTTP the first line of stdout is the port, and the end of stdin ends the host.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn

import toolcrib
from toolcrib import AudioBlock, Context, Crib, EmbeddedResource, Failed, ImageBlock, TextBlock
from toolcrib.config import Environment
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Events
from toolcrib.doors._mcp_stdio import serve_stdio
from toolcrib.doors._offers import Argument, Offers, Prompt, Resource, Withheld
from toolcrib.doors._web import App, Receive, Scope, Send
from toolcrib.doors.cli.serve import build
from toolcrib.model import Block
from toolcrib.watching import Watch

WAIT_S = 60.0
STOPPED = threading.Event()
ANN = Guest(name="ann")
"""May do anything, as whoever asks from the same machine."""


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"".join(
    (
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")),
        _chunk(b"IEND", b""),
    )
)
"""One red pixel."""
WAV = (
    b"RIFF"
    + struct.pack("<I", 44)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    + b"data"
    + struct.pack("<I", 8)
    + b"\x80" * 8
)
"""A millisecond of silence."""
IMAGE = ImageBlock(data=base64.b64encode(PNG).decode(), media_type="image/png")


# -- tools ---------------------------------------------------------------------------------------------------


@toolcrib.tool
def test_simple_text() -> str:
    """A text."""
    return "This is a simple text response for testing."


@toolcrib.tool
def test_image_content() -> ImageBlock:
    """An image."""
    return IMAGE


@toolcrib.tool
def test_audio_content() -> AudioBlock:
    """A sound."""
    return AudioBlock(data=base64.b64encode(WAV).decode(), media_type="audio/wav")


@toolcrib.tool
def test_embedded_resource() -> EmbeddedResource:
    """A resource."""
    return EmbeddedResource(
        uri="test://embedded-resource", text="This is an embedded resource content.", media_type="text/plain"
    )


@toolcrib.tool
def test_multiple_content_types() -> list[Block]:
    """A text, an image and a resource."""
    held = EmbeddedResource(
        uri="test://mixed-content-resource", text='{"test":"data","value":123}', media_type="application/json"
    )
    return [TextBlock(text="Multiple content types test:"), IMAGE, held]


@toolcrib.tool
def test_tool_with_progress(context: Context) -> str:
    """Tells how far it is, three times."""
    for done in (0, 50, 100):
        context.progress(done, 100, f"step {done}")
    return "done"


@toolcrib.tool
def test_error_handling() -> str:
    """Always fails."""
    raise Failed("This tool intentionally returns an error for testing")


@toolcrib.tool
def test_elicitation(message: str) -> str:
    """Runs once a person let it."""
    return f"User response: {message}"


@toolcrib.tool
def add(a: float, b: float) -> dict[str, float]:
    """Adds two numbers, and says so in data."""
    return {"sum": a + b}


@toolcrib.tool
def wait_until_stopped(context: Context) -> str:
    """Takes long, unless somebody stops it."""
    context.progress(0, None, "waiting")
    never = threading.Event()
    while not context.cancelled:
        never.wait(0.01)
    STOPPED.set()
    return "stopped"


@toolcrib.tool
def was_stopped() -> bool:
    """Whether the last call of the one that waits was stopped: within a minute."""
    found = STOPPED.wait(WAIT_S)
    STOPPED.clear()
    return found


@toolcrib.tool(timeout_s=0.05)
def too_slow(context: Context) -> str:
    """Takes longer than it may."""
    never = threading.Event()
    while not context.cancelled:
        never.wait(0.01)
    return "late"


@toolcrib.tool
def too_much() -> str:
    """Says more than a tool may."""
    return "x" * (9 << 20)


@toolcrib.tool
def unreadable() -> object:
    """Returns what JSON cannot carry."""
    return object()


@toolcrib.tool
def forbidden() -> str:
    """Is refused by a rule."""
    return "never"


TOOLS = [
    test_simple_text, test_image_content, test_audio_content, test_embedded_resource,
    test_multiple_content_types, test_tool_with_progress, test_error_handling, test_elicitation, add,
    wait_until_stopped, was_stopped, too_slow, too_much, unreadable, forbidden,
]  # fmt: skip


# -- resources and prompts -----------------------------------------------------------------------------------


def _data(marks: Mapping[str, str]) -> str:
    number = marks["id"]
    return json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})


def _withhold(marks: Mapping[str, str]) -> str:
    raise Withheld("not today")


def _break(marks: Mapping[str, str]) -> Any:
    raise RuntimeError("the password is 12345")


def _embed(told: Mapping[str, str]) -> Sequence[Block]:
    return [
        EmbeddedResource(
            uri=told["resourceUri"], text="Embedded resource content for testing.", media_type="text/plain"
        ),
        TextBlock(text="Please process the embedded resource above."),
    ]


OFFERS = Offers(
    resources=(
        Resource(
            uri="test://static-text",
            name="static text",
            read=lambda marks: "This is the content of the static text resource.",
        ),
        Resource(
            uri="test://static-binary", name="static image", media_type="image/png", read=lambda marks: PNG
        ),
        Resource(uri="test://template/{id}/data", name="template", media_type="application/json", read=_data),
        Resource(uri="test://withheld", name="withheld", read=_withhold),
        Resource(uri="test://broken", name="broken", read=_break),
        Resource(uri="test://long", name="long", read=lambda marks: "x" * ((4 << 20) + 1)),
    ),
    prompts=(
        Prompt(
            name="test_simple_prompt",
            description="Says one sentence.",
            begin=lambda told: [TextBlock(text="This is a simple prompt for testing.")],
        ),
        Prompt(
            name="test_prompt_with_arguments",
            description="Says what it was told.",
            arguments=(Argument(name="arg1", required=True), Argument(name="arg2", required=True)),
            begin=lambda told: [
                TextBlock(text=f"Prompt with arguments: arg1='{told['arg1']}', arg2='{told['arg2']}'")
            ],
        ),
        Prompt(
            name="test_prompt_with_embedded_resource",
            description="Holds a resource.",
            arguments=(Argument(name="resourceUri", required=True),),
            begin=_embed,
        ),
        Prompt(
            name="test_prompt_with_image",
            description="Holds an image.",
            begin=lambda told: [IMAGE, TextBlock(text="Please analyze the image above.")],
        ),
        Prompt(name="test_prompt_that_breaks", description="Fails.", begin=_break),
    ),
)


def crib(catalog: Path, home: Path) -> Crib:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    surroundings = Environment.read({"PATH": "/usr/bin:/bin", "HOME": str(home), "USER": "ann"})
    return toolcrib.open(config=catalog / "toolcrib.toml", tools=TOOLS, environment=surroundings)


async def serve(app: App) -> None:
    """On a free port of loopback, which is told on stdout, until stdin ends."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    # With the protocol named: only then does asyncio send small answers at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    serving = asyncio.create_task(server.serve([listening]))
    await asyncio.to_thread(sys.stdin.buffer.read)
    server.should_exit = True
    server.force_exit = True
    await serving


async def by_sdk_alone(opened: Crib, *, stdio: bool) -> None:
    crew = Crew(opened, Events())
    oracle = import_module("mcp_oracle").Oracle(opened, crew, OFFERS, ANN)  # the SDK's import takes seconds

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["guest"] = ANN
        await oracle.handle(scope, receive, send)

    await (oracle.serve_stdio() if stdio else serve(app))
    await oracle.close()
    await asyncio.to_thread(crew.drain, WAIT_S)


async def as_served(opened: Crib) -> None:
    app = build(opened, guest=ANN, offers=OFFERS)
    watch = Watch(opened, reloaded=lambda found: None, failed=lambda reason: None)
    watch.start()
    await serve(app)
    await app.drain(WAIT_S)
    await asyncio.to_thread(watch.stop)


def on_a_pipe(opened: Crib) -> None:
    watch = Watch(opened, reloaded=lambda found: None, failed=lambda reason: None)
    watch.start()
    serve_stdio(opened, Crew(opened, Events()), guest=ANN, offers=OFFERS)
    watch.stop()


def main() -> None:
    catalog, home, server = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    with crib(catalog, home) as opened:
        match server:
            case "sdk" | "sdk-stdio":
                asyncio.run(by_sdk_alone(opened, stdio=server == "sdk-stdio"))
            case "served":
                asyncio.run(as_served(opened))
            case "stdio":
                on_a_pipe(opened)


if __name__ == "__main__":
    main()
