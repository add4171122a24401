"""Calls and results for the journal's tests, and a real host process that can be killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from toolcrib.errors import Kind
from toolcrib.journal import reading, sealing
from toolcrib.journal.chain import Anchor
from toolcrib.journal.reading import Entry, Verdict
from toolcrib.model import (
    CallFacts,
    Habits,
    JsonOnStdin,
    Needs,
    Notes,
    Origin,
    Run,
    RunProcess,
    Spent,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
)

WAIT_S = 60
FACTS = CallFacts(
    door="test", key="manifest:t/get_time", format="manifest", catalog="1", runs_digest="sha256:aa"
)


def is_over_before(moment: int, run: Callable[[], None], *of: type) -> bool:
    """Interrupt what runs when it enters or leaves its so-manieth function, where the interpreter looks for
    signals. Functions count that are in the files ``of`` these classes. True: it was over before."""
    count = 0
    files = {each.__module__ for each in of}

    def look(frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        if event in ("call", "c_return") and frame.f_globals.get("__name__") in files:
            count += 1
            if count == moment:
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        run()
    except KeyboardInterrupt:
        return False
    finally:
        sys.setprofile(before)
    return True


def until(is_so: Callable[[], bool]) -> None:
    """Wait, with a bound, for what no event reports."""
    pause = threading.Event()
    for _ in range(WAIT_S * 1000):
        if is_so():
            return
        pause.wait(0.001)
    raise AssertionError("it never was so")


def call(id: str = "c1", **more: Any) -> ToolCall:
    return ToolCall(**{"id": id, "tool": "get_time", "arguments": {"zone": "UTC"}, **more})


def result(id: str = "c1", *, error: ToolError | None = None, **more: Any) -> ToolResult:
    return ToolResult(call_id=id, key="manifest:t/get_time", error=error, **more)


def failed(message: str, kind: Kind = Kind.FAILED) -> ToolError:
    return ToolError(kind=kind, message=message)


def tool(
    format: str = "manifest", *, env: tuple[str, ...] = (), cost: Any = None, latency: str | None = None
) -> Tool:
    return Tool(
        key=f"{format}:t/get_time",
        name="get_time",
        scope="t",
        origin=Origin(format=format, path="/t/tools.json"),
        invocation=RunProcess(program="/t/get_time", encoding=JsonOnStdin(verbatim=True)),
        needs=Needs(env=env),
        habits=Habits(day_line=format == "manifest"),
        notes=Notes(cost=cost, latency=latency),
    )


def ran(*argv: str, **more: Any) -> Run:
    return Run(
        **{"argv": argv or ("/t/get_time",), "cwd": "/t", "exit_status": 0, "duration_ms": 1.5, **more}
    )


def spent(ms: float) -> Spent:
    return Spent(duration_ms=ms)


def journal(state: Path) -> str:
    return str(state / "journal")


def records(state: Path, *, own: bool = False) -> list[Entry]:
    """What stands in the journal, without what it notes about itself."""
    return [entry for entry in reading.entries(journal(state)) if own or entry.what not in reading.OWN]


def bodies(state: Path) -> list[dict[str, Any]]:
    return [entry.body for entry in records(state)]


def verdict(state: Path, anchor: Anchor | None = None) -> Verdict:
    key = anchor.key if anchor is not None else sealing.public_key(str(state))
    return reading.verify(journal(state), key, sealing.checker(key or bytes(32)), anchor)


def segment_paths(state: Path, ending: str = ".open") -> list[Path]:
    return sorted((state / "journal").glob(f"*{ending}"))


# -- a host that can be killed ------------------------------------------------------------------------------

_HOST = """
    import os, sys, threading
    from toolcrib.journal.audit import open_audit
    from toolcrib.model import CallFacts, ToolCall, ToolResult

    state, threads, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    audit = open_audit(state)
    facts = CallFacts(door="test", key="k", format="manifest")

    def work(number):
        count = 0
        while True:
            call = ToolCall(id=f"{prefix}-{number}-{count}", tool="t", arguments={})
            if not audit.begin(call, facts):
                os._exit(9)
            os.write(1, f"begun {call.id}\\n".encode())
            audit.end(call, ToolResult(call_id=call.id))
            os.write(1, f"ended {call.id}\\n".encode())
            count += 1

    for number in range(threads):
        threading.Thread(target=work, args=(number,)).start()
"""


@dataclass(frozen=True)
class Killed:
    """What a host had told the world before it was killed."""

    begun: frozenset[str]
    ended: frozenset[str]


def run_and_kill(state: Path, *, after_lines: int, prefix: str, threads: int = 4) -> Killed:
    """Run a host under load and kill it with SIGKILL once it has said so many lines; no clock is involved."""
    host = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_HOST), str(state), str(threads), prefix],
        stdout=subprocess.PIPE,
        env={"PATH": os.defpath},
    )
    assert host.stdout is not None
    said: list[bytes] = []
    try:
        for line in host.stdout:
            said.append(line)
            if len(said) == after_lines:
                host.send_signal(signal.SIGKILL)
    finally:
        host.kill()
        host.stdout.close()
        host.wait(WAIT_S)
    whole = [line.decode().split() for line in said if line.endswith(b"\n")]
    return Killed(
        frozenset(id for what, id in whole if what == "begun"),
        frozenset(id for what, id in whole if what == "ended"),
    )
