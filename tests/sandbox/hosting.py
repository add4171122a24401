"""A host of its own, in a process of its own: to be killed, or to be an ordinary user.

Run as a program it reads one JSON request per line and answers each with one. Everything is imported before
the user is changed, since the interpreter may lie where that user cannot look.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from toolwright.model import Ending, Limits, Permit
from toolwright.sandbox import Cancel, Start, _kernel
from toolwright.sandbox._scratch import Scratch
from toolwright.sandbox.rules import Bind, KernelRules, seccomp_filter
from toolwright.sandbox.supervised import Supervised

NOBODY = 65534
_PR_SET_DUMPABLE = 4

def rules_from(request: dict[str, Any], limits: Limits) -> KernelRules:
    """Rules made by hand: ``binds``, ``readable`` (then nothing else is), ``filter``, ``rlimits``, ``uid``."""
    readable = request.get("readable")
    return KernelRules(
        fs_handled=0b1111 if readable is not None else 0,
        fs_allowed=tuple((path, 0b1101) for path in readable or ()),
        seccomp=seccomp_filter(os.uname().machine, network=False, unix_sockets=False, tracing=True)
        if request.get("filter")
        else b"",
        binds=tuple(Bind(source=a, target=b, read_only=c) for a, b, c in request.get("binds", ())),
        rlimits=tuple((number, value) for number, value in request.get("rlimits", ())),
        uid=request.get("uid"),
        gid=request.get("uid"),
        limits=limits,
        layers=("by hand",),
    )

def start_from(request: dict[str, Any]) -> Start:
    argv = tuple(request["argv"])
    return Start(
        program=request.get("program", argv[0]),
        argv=argv,
        env=request.get("env", {"TMPDIR": ""}),
        cwd=request.get("cwd", "/"),
        stdin=base64.b64decode(request.get("stdin", "")),
        permit=Permit(limits=Limits(**{"timeout_s": 20.0, **request.get("limits", {})})),
        sealed=tuple((path, base64.b64decode(content)) for path, content in request.get("sealed", ())),
    )

def run(sandbox: Supervised, requests: dict[Permit, dict[str, Any]], request: dict[str, Any]) -> Ending:
    start = start_from(request)
    cancel = Cancel()
    timer = threading.Timer(request["cancel_s"], cancel.set) if "cancel_s" in request else None
    if timer is not None:
        timer.start()
    try:
        return sandbox.run(start, cancel)
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
        cancel.close()

class Here:
    """The level in this process."""

    def __init__(self, binary: str | None = None, base: str | None = None) -> None:
        self._request = threading.local()
        self.scratch = Scratch(base)
        self.sandbox = Supervised(self._rules, self.scratch, binary=binary)

    def _rules(self, start: Start, scratch: str) -> KernelRules:
        return rules_from(self._request.now, start.permit.limits)

    def run(self, argv: list[str], **request: Any) -> Ending:
        self._request.now = {**request, "argv": argv}
        if "stdin" in request:
            self._request.now["stdin"] = base64.b64encode(request["stdin"]).decode()
        if "sealed" in request:
            self._request.now["sealed"] = [
                (path, base64.b64encode(content).decode()) for path, content in request["sealed"]
            ]
        return run(self.sandbox, {}, self._request.now)

    def close(self) -> None:
        self.sandbox.close()

class Elsewhere:
    """The level in another process, perhaps as another user; answers as ``Here`` does."""

    def __init__(self, binary: str | None, *, uid: int | None = None, open_files: int | None = None) -> None:
        arguments = {"binary": binary, "uid": uid, "open_files": open_files}
        root = Path(__file__).resolve().parent.parent.parent
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sandbox.hosting", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{root}:{root / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or b'{"broken": true}')
        return answer

    def run(self, argv: list[str], **request: Any) -> Ending:
        request["argv"] = argv
        if "stdin" in request:
            request["stdin"] = base64.b64encode(request["stdin"]).decode()
        if "sealed" in request:
            request["sealed"] = [(path, base64.b64encode(content).decode()) for path, content in request["sealed"]]
        answer = self.ask(request)
        for name in ("stdout", "stderr"):
            answer[name] = base64.b64decode(answer[name])
        for name in ("layers", "notes"):
            answer[name] = tuple(answer[name])
        return Ending(**answer)

    def close(self) -> None:
        self.process.communicate(timeout=20)

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

def main() -> None:
    arguments = json.loads(sys.argv[1])
    if arguments["open_files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments["open_files"],) * 2)
    base = tempfile.mkdtemp(prefix="toolwright-host-")
    if arguments["uid"] is not None:
        os.chown(base, arguments["uid"], arguments["uid"])
        os.setgroups([])
        os.setresgid(*[arguments["uid"]] * 3)
        os.setresuid(*[arguments["uid"]] * 3)
        # As a login of this user would be: changing the user hides a process from itself.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    here = Here(arguments["binary"], base)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request.get("probe"):
            probed = here.sandbox.probe()
            answer: dict[str, Any] = {"reason": probed.reason, "errors": dict(probed.errors)}
        elif "together" in request:
            answer = {"ends": together(here, request["together"])}
        else:
            here._request.now = request
            ending = run(here.sandbox, {}, request)
            answer = {
                "end": ending.end,
                "exit_status": ending.exit_status,
                "signal": ending.signal,
                "stdout": base64.b64encode(ending.stdout).decode(),
                "stderr": base64.b64encode(ending.stderr).decode(),
                "stdout_bytes": ending.stdout_bytes,
                "stderr_bytes": ending.stderr_bytes,
                "reason": ending.reason,
                "layers": ending.layers,
                "notes": ending.notes,
            }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    here.close()
    os.rmdir(base) if not os.listdir(base) else None

def together(here: Here, requests: list[dict[str, Any]]) -> list[str]:
    ends: list[str] = [""] * len(requests)

    def one(place: int, request: dict[str, Any]) -> None:
        ending = here.run(**request)
        ends[place] = ending.end if ending.exit_status in (0, None) else f"exit {ending.exit_status}"

    threads = [threading.Thread(target=one, args=item) for item in enumerate(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends

if __name__ == "__main__":
    main()

assert _kernel  # imported before the user changes
