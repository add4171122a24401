"""The supervised level with rules made by hand, in this process or in a host of its own.

A host of its own can be killed, can be an ordinary user, and can have few descriptors. Run as a program, this
file is that host: it reads one JSON request per line and answers each with one. Everything is imported before
the user is changed, since the interpreter may lie where that user cannot look.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from toolcrib.model import End, Ending, Limits, Permit, Run
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox._connection import Connection
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.rules import Bind, KernelRules, seccomp_filter
from toolcrib.sandbox.supervised import Supervised

NOBODY = 65534
ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER_S = 60
_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_KILL = 5
_SHARED = (
    "end",
    "exit_status",
    "signal",
    "reason",
    "hint",
    "stdout_bytes",
    "stderr_bytes",
    "layers",
    "notes",
)
_BY_HAND = ("binds", "readable", "filter", "rlimits", "uid")


def request_of(argv: Sequence[str], **more: Any) -> dict[str, Any]:
    """A request that JSON can carry. ``more``: what ``start_of`` and ``rules_of`` read."""
    found = {**more, "argv": list(argv)}
    if "stdin" in more:
        found["stdin"] = base64.b64encode(more["stdin"]).decode("ascii")
    if "sealed" in more:
        found["sealed"] = [(path, base64.b64encode(data).decode("ascii")) for path, data in more["sealed"]]
    return found


def start_of(request: dict[str, Any]) -> Start:
    # The permit carries the rules made by hand, because a level keeps what it made for equal starts.
    by_hand = json.dumps({name: request[name] for name in _BY_HAND if name in request})
    argv = tuple(request["argv"])
    return Start(
        program=request.get("program", argv[0]),
        argv=argv,
        env=request.get("env", {"TMPDIR": ""}),
        cwd=request.get("cwd", "/"),
        stdin=base64.b64decode(request.get("stdin", "")),
        permit=Permit(limits=Limits(**{"timeout_s": 20.0, **request.get("limits", {})}), env=(by_hand,)),
        sealed=tuple((path, base64.b64decode(data)) for path, data in request.get("sealed", ())),
    )


def rules_of(start: Start, _scratch: str) -> KernelRules:
    """``binds``, ``readable`` (then nothing else is), ``filter``, ``rlimits``, ``uid``."""
    by_hand = json.loads(start.permit.env[0])
    readable = by_hand.get("readable")
    machine = os.uname().machine
    return KernelRules(
        fs_handled=0b1111 if readable is not None else 0,
        fs_allowed=tuple((path, 0b1101) for path in readable or ()),
        seccomp=seccomp_filter(machine, network=False, unix_sockets=False, tracing=True)
        if by_hand.get("filter")
        else b"",
        binds=tuple(Bind(source=a, target=b, read_only=c) for a, b, c in by_hand.get("binds", ())),
        rlimits=tuple((number, value) for number, value in by_hand.get("rlimits", ())),
        uid=by_hand.get("uid"),
        limits=start.permit.limits,
        layers=("by hand",),
    )


@contextmanager
def _pressed_at(fifo: str, cancel: Cancel) -> Iterator[None]:
    button = os.open(fifo, os.O_RDWR)  # so that nobody waits for whoever presses it

    def wait() -> None:
        os.read(button, 1)
        cancel.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        os.write(button, b"-")
        waiting.join()
        os.close(button)


class InCompany(Supervised):
    """One in which no call is ever alone: a byte of each spawner's page stays taken."""

    _taken = 0

    def _connected(self) -> Connection:
        connection = super()._connected()
        if connection.pid != self._taken:
            self._taken = connection.pid
            connection.take_place()
        return connection


class Here:
    """The level in this process."""

    def __init__(
        self,
        binary: str | None = None,
        base: str | None = None,
        *,
        in_company: bool = False,
    ) -> None:
        level = InCompany if in_company else Supervised
        self.sandbox = level(rules_of, Scratch(base), binary=binary)

    def run(self, argv: Sequence[str], **more: Any) -> Ending:
        return self.answer(request_of(argv, **more))

    def answer(self, request: dict[str, Any]) -> Ending:
        """``cancel_s``: it is cancelled after so long; ``cancel_at``: when somebody writes to this FIFO."""
        cancel = Cancel()
        timer = threading.Timer(request.get("cancel_s", 0), cancel.set)
        if "cancel_s" in request:
            timer.start()
        try:
            with _pressed_at(request["cancel_at"], cancel) if "cancel_at" in request else nullcontext():
                return self.sandbox.run(start_of(request), cancel)
        finally:
            timer.cancel()
            if timer.ident is not None:
                timer.join()
            cancel.close()

    def together(self, requests: Sequence[dict[str, Any]], at_once: int = 0) -> list[Ending]:
        """All of them, each from a thread of its own or from so many threads."""
        endings: list[Ending | None] = [None] * len(requests)
        waiting = iter(list(enumerate(requests)))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    place, request = next(waiting, (-1, {}))
                if place < 0:
                    return
                endings[place] = self.answer(request)

        threads = [threading.Thread(target=work) for _ in range(at_once or len(requests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [ending for ending in endings if ending is not None]

    def close(self) -> None:
        self.sandbox.close()


class Elsewhere:
    """The level in a host of its own; answers as ``Here`` does."""

    def __init__(
        self,
        binary: str | None = None,
        *,
        uid: int | None = None,
        open_files: int | None = None,
        may_kill: bool = True,
    ) -> None:
        self._base = tempfile.mkdtemp(prefix="toolcrib-host-")
        arguments = {
            "binary": binary, "uid": uid, "open_files": open_files, "may_kill": may_kill, "base": self._base
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sandbox.hosting", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )

    def post(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
        self.process.stdin.flush()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.post(request)
        return self._answer()

    def ending(self) -> Ending:
        """Return the ending of the call that was posted."""
        return _ending(self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_S)[0], "it does not answer"
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def run(self, argv: Sequence[str], **more: Any) -> Ending:
        return _ending(self.ask(request_of(argv, **more)))

    def together(self, requests: Sequence[dict[str, Any]]) -> list[Ending]:
        return [_ending(one) for one in self.ask({"together": list(requests)})["endings"]]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self.process.communicate(timeout=ANSWER_S)
        shutil.rmtree(self._base, ignore_errors=True)

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(ending: Ending) -> dict[str, Any]:
    return {
        **{name: getattr(ending, name) for name in _SHARED},
        "stdout": base64.b64encode(ending.stdout).decode("ascii"),
        "stderr": base64.b64encode(ending.stderr).decode("ascii"),
        "duration_ms": [run.duration_ms for run in ending.runs],
    }


def _ending(answer: dict[str, Any]) -> Ending:
    answer["end"] = End(answer["end"])
    for name in ("stdout", "stderr"):
        answer[name] = base64.b64decode(answer[name])
    for name in ("layers", "notes"):
        answer[name] = tuple(answer[name])
    durations = answer.pop("duration_ms")
    return Ending(**answer, runs=tuple(Run(argv=(), cwd="/", duration_ms=each) for each in durations))


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if arguments["open_files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments["open_files"],) * 2)
    uid = arguments["uid"]
    if uid is not None:
        os.chown(arguments["base"], uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # As after a login of this user: changing the user hides a process from itself.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    if not arguments["may_kill"]:
        _give_up_killing()
    here = Here(arguments["binary"], arguments["base"])
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer(here, json.loads(line))) + "\n")
        sys.stdout.flush()
    here.close()


def _give_up_killing() -> None:
    """Give up root's right to signal processes of other users; what it starts has it again."""
    held = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    libc = ctypes.CDLL(None)
    assert libc.capget(header, held) == 0
    held[0] &= ~(1 << _CAP_KILL)
    assert libc.capset(header, held) == 0


def _answer(here: Here, request: dict[str, Any]) -> dict[str, Any]:
    if request.get("probe"):
        probed = here.sandbox.probe()
        return {"reason": probed.reason, "errors": dict(probed.errors)}
    if "together" in request:
        return {"endings": [_plain(ending) for ending in here.together(request["together"])]}
    return _plain(here.answer(request))


if __name__ == "__main__":
    main()
