"""Runs the installed program as a user would, with nothing of this machine's environment."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(sysconfig.get_path("scripts"), "toolwright")
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


def toolwright(
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
