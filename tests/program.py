"""Runs the installed program as a user would, with nothing of this machine's environment."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(sysconfig.get_path("scripts"), "toolcrib")
PATH = "/usr/bin:/bin"
WAIT_S = 60


@dataclass(frozen=True)
class Said:
    """How a run ended and what it said; both streams are UTF-8, or reading them fails."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        assert self.out.endswith("\n"), self
        return json.loads(self.out)


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": PATH, "HOME": str(home), **more}


def toolcrib(
    *arguments: str | bytes | Path,
    cwd: Path,
    home: Path | None = None,
    stdin: bytes = b"",
    program: Sequence[str | Path] = (PROGRAM,),
    env: Mapping[str, str] | None = None,
) -> Said:
    """One run in ``cwd``. The home is a hidden folder below it, where none is given."""
    ended = subprocess.run(
        [*program, *arguments],
        cwd=cwd,
        env=environment(home or cwd / ".home", **(env or {})),
        input=stdin,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    return Said(ended.returncode, ended.stdout.decode("utf-8"), ended.stderr.decode("utf-8"))


@contextmanager
def bounded(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    """Whatever is read of it meanwhile comes to an end: after a while it is killed."""
    guard = threading.Timer(WAIT_S, process.kill)
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()


@dataclass(frozen=True)
class Serving:
    """A started ``serve`` that has said where it listens."""

    process: subprocess.Popen[bytes]
    address: str
    """Host and port."""


@contextmanager
def serving(*arguments: str | Path, cwd: Path, home: Path, **more: str) -> Iterator[Serving]:
    """``toolcrib … serve`` on a free port, ended as a user ends it."""
    process = subprocess.Popen(
        [PROGRAM, *arguments, "--port", "0"],
        cwd=cwd,
        env=environment(home, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield Serving(process, _address_of(process))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _address_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    said, until = b"", time.monotonic() + WAIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while time.monotonic() < until:
            if selector.select(1.0):
                part = os.read(process.stderr.fileno(), 65536)
                said += part
                if found := re.search(rb"serving at http://(\S+)\n", said):
                    return found[1].decode()
                if not part:
                    break
    raise AssertionError(said.decode())
