"""The tools that the soak calls, as a manifest in a folder of their own, and how to find what they left."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolcrib import Config
from toolcrib.catalog.sources import Source
from toolcrib.errors import Kind
from toolcrib.model import Limits, ToolResult

HERE = Path(__file__).parent
LONG_BYTES = 256 << 10
"""An argument that no pipe holds, for a tool that never reads it."""
PROCESSES_MAX = 32


@dataclass(frozen=True)
class Fault:
    """One way to misbehave, how often it is drawn, and what has to come back."""

    mode: str
    weight: int
    expected: Kind | None
    """None: success."""
    right: Callable[[ToolResult, str], bool] = lambda result, nonce: True
    limit_s: tuple[float, float] | None = None
    """Its time limit is drawn from this range."""
    long: bool = False


def _echoes(result: ToolResult, nonce: str) -> bool:
    return bool(result.data == {"echo": nonce})


def _ended_by(**wanted: int) -> Callable[[ToolResult, str], bool]:
    def right(result: ToolResult, _nonce: str) -> bool:
        details = result.error.details if result.error is not None else None
        return isinstance(details, dict) and all(details.get(key) == value for key, value in wanted.items())

    return right


def _stopped(result: ToolResult, _nonce: str) -> bool:
    return result.error is not None and result.error.message.startswith("stopped: ")


FAULTS = (
    Fault("echo", 30, None, _echoes),
    Fault("three", 12, Kind.FAILED, _ended_by(exit_status=3)),
    Fault("segv", 8, Kind.FAILED, _ended_by(signal=11)),
    Fault("hang", 10, Kind.TIMED_OUT, limit_s=(0.2, 0.8)),
    Fault("stubborn", 4, Kind.TIMED_OUT, limit_s=(0.2, 0.8)),
    Fault("flood", 3, Kind.TOO_LARGE),
    Fault("loud", 2, Kind.TOO_LARGE),
    Fault("swarm", 6, None, _echoes),
    Fault("bomb", 1, Kind.FAILED, _stopped),
    Fault("daemon", 8, None, _echoes),
    Fault("holder", 8, None, _echoes),
    Fault("ignorer", 4, None, lambda result, _: result.data == {"echo": "ignored"}, long=True),
    Fault("missing", 4, Kind.UNAVAILABLE),
)


class Folder:
    """The tools in a temporary folder, and the mark by which their processes are known."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.mark = f"soak-{secrets.token_hex(4)}"
        self.project = folder / "project"
        self.state = folder / "state"
        self.started = folder / "started"
        self.compiled = False
        """Whether the tools are the C program, which starts quicker."""
        # As root, tools run as somebody else, who has to come through.
        folder.chmod(0o711)
        programs = self.project / "tools" / "bin"
        programs.mkdir(parents=True)
        self.started.touch()
        self.started.chmod(0o666)
        self._build(programs / "faulty")

    def _build(self, program: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is not None:
            for more in (["-static"], []):
                argv = [compiler, "-O2", *more, "-o", str(program), str(HERE / "faulty.c")]
                if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
                    self.compiled = True
                    break
        if not self.compiled:
            body = (HERE / "faulty.py").read_text(encoding="utf-8")
            program.write_text(f"#!{sys.executable} -IS\n{body}", encoding="utf-8")
            program.chmod(0o755)
        tools = [
            {
                "name": fault.mode,
                "description": f"Misbehave: {fault.mode}.",
                "schema": {
                    "type": "object",
                    "properties": {"nonce": {"type": "string"}, "long": {"type": "string"}},
                    "required": ["nonce"],
                    "additionalProperties": False,
                },
                "command": [
                    f"./tools/bin/{'absent' if fault.mode == 'missing' else 'faulty'}",
                    fault.mode,
                    self.mark,
                    str(self.started),
                ],
            }
            for fault in FAULTS
        ]
        (self.project / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")

    def config(self) -> Config:
        return Config(
            sources=(Source(path=str(self.project), named=True, root=str(self.root)),),
            state=str(self.state),
            limits=Limits(processes_max=PROCESSES_MAX),
        )

    # -- what is left ---------------------------------------------------------------------------------------

    def living(self) -> list[int]:
        """Processes that bear the mark."""
        mark = self.mark.encode("ascii")
        found = []
        for pid in pids():
            try:
                argv = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if mark in argv.split(b"\0"):
                found.append(pid)
        return found

    def end_all(self) -> None:
        """Whatever still bears the mark is ended: what was found was counted before."""
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def zombies(self) -> list[int]:
        """Dead processes that nobody waited for: tools by their name, and children of ours."""
        parents: dict[int, int] = {}
        dead: dict[int, str] = {}
        for pid in pids():
            try:
                text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            parents[pid] = int(parent)
            if state == "Z":
                dead[pid] = name
        ours = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
            ours |= more
        return [pid for pid, name in dead.items() if pid in ours or name == self.mark]


def pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def descriptors() -> dict[int, str]:
    """What this process has open."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that listed them
            continue
    return found


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads() -> int:
    return len(os.listdir("/proc/self/task"))
