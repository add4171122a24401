"""Hosts killed under load: a real host with callers in many threads gets SIGKILL at a random moment, again
and again, on one state folder. After each: what was begun is recorded, what was answered is recorded as
ended, the journal is whole, and nothing that a tool started lives on.

The host is forked from this process, which opens no crib itself, so that a kill costs a start and no
more. The tools say by themselves that they started, in a file; the host tells each answer through a pipe.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import faults
import records
from table import at_most, exactly, show
from tools import FAULTS, Folder, pids

import toolcrib
from toolcrib.journal import chain, reading

CALLERS = 12
SURVIVES_S = 1.0
FIRST_ANSWER_S = 20.0
VERIFIED_EVERY = 100
SHOWN = 10
MIX = {"echo": 8, "three": 2, "segv": 1, "hang": 2, "stubborn": 1, "swarm": 2, "daemon": 4, "holder": 3}
LEAVES_ITS_GROUP = ("stubborn", "daemon")
"""Which nobody finds below the supervised level."""


def run(kills: int, seed: int, folder: Path, *, level: str | None = None) -> bool:
    tools = Folder(folder)
    scratch = folder / "tmp"
    scratch.mkdir()
    scratch.chmod(0o1777)
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None  # it was asked before
    _import_all()
    drawn = random.Random(seed)
    found = _Found(tools)
    began = time.monotonic()
    for number in range(kills):
        _kill_one(tools, drawn, number, found, level)
        if number % VERIFIED_EVERY == VERIFIED_EVERY - 1 or number == kills - 1:
            found.verify()
            each_s = (time.monotonic() - began) / (number + 1)
            print(f"{number + 1:,} of {kills:,} hosts killed, {each_s:.2f} s each", file=sys.stderr)
    took_s = time.monotonic() - began
    _last_host(tools)
    found.verify()
    found.follow()
    left = [path.name for path in scratch.glob("toolcrib-*/h-*")]
    lost = {entry.call for entry in reading.interrupted(found.journal)}
    never_ended = {call for call in found.begun.values() if call not in found.ended}
    torn = set(reading.torn_files(found.journal))
    lines = [
        exactly("hosts killed", kills, kills),
        exactly("started calls without a begin", len(found.unrecorded)),
        exactly("answered calls without a begin", len(found.unbegun)),
        exactly("answered calls without an end", len(found.unended)),
        exactly("wrong answers", len(found.wrong)),
        exactly("flaws in the journal", len(found.flaws)),
        exactly("interrupted calls not shown as such", len(never_ended ^ lost)),
        exactly("kills with more than one torn tail", found.torn_twice),
        exactly("torn tails that were not reported", len(torn ^ found.torn_told)),
        at_most("longest survival of a process", found.slowest_s * 1000, SURVIVES_S * 1000, "ms"),
        exactly("scratch folders left at the end", len(left)),
    ]
    notes = [
        f"{took_s:.0f} s, {took_s / max(1, kills):.2f} s for a kill and all that is looked at; seed {seed}",
        f"{len(found.begun):,} calls begun, {len(found.ended):,} ended, {len(lost):,} interrupted, "
        f"{found.answered:,} answers told, {found.started_count:,} tools said that they started",
        f"{found.records:,} records in {len(reading.segment_files(found.journal))} segments, "
        f"{len(torn)} torn tails; {found.early} hosts were killed before their first answer",
        *(f"unrecorded: {nonce}" for nonce in found.unrecorded[:SHOWN]),
        *(f"without a begin: {call}" for call in found.unbegun[:SHOWN]),
        *(f"without an end: {call}" for call in found.unended[:SHOWN]),
        *(f"wrong: {text}" for text in found.wrong[:SHOWN]),
        *(f"flaw: {text}" for text in sorted(found.flaws)[:SHOWN]),
        *(f"survived: {text}" for text in found.survivors[:SHOWN]),
    ]
    return show(f"{kills:,} hosts killed under load, {CALLERS} callers each", lines, notes)


class _Found:
    """What all kills so far have shown."""

    def __init__(self, tools: Folder) -> None:
        self._tools = tools
        self.journal = records.journal(tools.state)
        self._known: dict[str, tuple[int, chain.Head | None]] = {}
        self._started = tools.started.open("rb")
        self._torn = 0
        self.begun: dict[str, str] = {}
        """By caller, which is the call's nonce here: the id."""
        self.ended: set[str] = set()
        self.torn_told: set[str] = set()
        self.records = 0
        self.started_count = 0
        self.answered = 0
        self.early = 0
        self.torn_twice = 0
        self.slowest_s = 0.0
        self.unrecorded: list[str] = []
        self.unbegun: list[str] = []
        self.unended: list[str] = []
        self.wrong: list[str] = []
        self.flaws: set[str] = set()
        self.survivors: list[str] = []

    def follow(self) -> None:
        """The records that came since the last time."""
        for entry in reading.follow(self.journal, self._known):
            self.records += 1
            if entry.what == "begin":
                self.begun[str(entry.body.get("caller"))] = entry.call
            elif entry.what == "end":
                self.ended.add(entry.call)
            elif isinstance(entry.body.get("torn_file"), str):
                self.torn_told.add(str(entry.body["torn_file"]))

    def after_a_kill(self, told: bytes) -> None:
        self.follow()
        started = self._started.read().decode("ascii").split()
        self.started_count += len(started)
        self.unrecorded += [nonce for nonce in started if nonce not in self.begun]
        begun = set(self.begun.values())
        # The last line may be half a line: the host was killed while it wrote it.
        for line in told.decode("utf-8").split("\n")[:-1]:
            call, _, wrong = line.partition(" ")
            self.answered += 1
            if call not in begun:
                self.unbegun.append(call)
            if call not in self.ended:
                self.unended.append(call)
            if wrong:
                self.wrong.append(wrong)
        torn = len(reading.torn_files(self.journal))
        self.torn_twice += torn > self._torn + 1
        self._torn = torn

    def verify(self) -> None:
        verdict = records.verdict(self._tools.state)
        self.flaws |= {f"{flaw.segment} record {flaw.number}: {flaw.why}" for flaw in verdict.flaws}


def _kill_one(tools: Folder, drawn: random.Random, number: int, found: _Found, level: str | None) -> None:
    inlet, outlet = os.pipe()
    seed = drawn.getrandbits(32)
    host = os.fork()
    if host == 0:
        os.close(inlet)
        _host(tools, number, seed, outlet, level)
    os.close(outlet)
    try:
        # One in four dies at any moment of its start, the others in the middle of their work.
        early = drawn.random() < 0.25
        wait_s = 0.0 if early else FIRST_ANSWER_S
        if not select.select([inlet], [], [], wait_s)[0] and not early:
            found.wrong.append(f"host {number} gave no answer for {FIRST_ANSWER_S:.0f} s")
        time.sleep(drawn.uniform(0.0, 0.3 if early else 0.12))
        family = _descendants(host)
        os.kill(host, signal.SIGKILL)
        killed_at = time.monotonic()
        os.waitpid(host, 0)
        told = _rest(inlet)
    finally:
        os.close(inlet)
    found.early += not told
    while survivors := [*tools.living(), *(pid for pid, born in family.items() if _born(pid) == born)]:
        if time.monotonic() - killed_at > 3 * SURVIVES_S:
            found.survivors += [f"{pid} of host {number}: {_name(pid)}" for pid in survivors]
            for pid in survivors:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    found.slowest_s = max(found.slowest_s, time.monotonic() - killed_at)
    found.after_a_kill(told)


def _host(tools: Folder, number: int, seed: int, outlet: int, level: str | None) -> NoReturn:
    """Calls without end. Never returns: it is killed, or something is wrong with it."""
    status = 70
    try:
        crib = toolcrib.open(tools.config(), sandbox=faults.sandbox_of(level))
        mix = {fault.mode: fault for fault in FAULTS}
        is_best = level in (None, "supervised")
        drawn_from = {mode: MIX[mode] for mode in MIX if is_best or mode not in LEAVES_ITS_GROUP}

        def call_for_ever(caller: int) -> None:
            drawn = random.Random(seed + caller)
            count = 0
            while True:
                mode = drawn.choices([*drawn_from], [*drawn_from.values()])[0]
                nonce = f"k{number}c{caller}n{count}"
                count += 1
                limit_s = drawn.uniform(0.05, 2.0) if mix[mode].limit_s else None
                done = faults.one(crib, mix[mode], limit_s, nonce, caller=nonce)
                os.write(outlet, f"{done.call_id} {done.wrong}\n".encode())

        callers = [threading.Thread(target=call_for_ever, args=(caller,)) for caller in range(CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        os._exit(status)


def _last_host(tools: Folder) -> None:
    """One that comes after all the dead ones, and goes as it should."""
    host = os.fork()
    if host == 0:
        status = 70
        try:
            with toolcrib.open(tools.config()) as crib:
                result = crib.call("echo", {"nonce": "last"}, caller="last")
                status = 0 if result.ok else 1
        finally:
            os._exit(status)
    _, status = os.waitpid(host, 0)
    if status:
        raise SystemExit(f"soak: the host after all the killed ones failed ({status})")


def _import_all() -> None:
    """What the hosts need is imported once, before they are forked."""
    for name in (
        "catalog.digests", "engine", "journal.audit", "journal.sealing", "runtimes.around",
        "runtimes.process", "runtimes.python", "sandbox.ground", "sandbox.portable", "sandbox.probe",
        "sandbox.restricted", "sandbox.supervised",
        "store.sqlite", "trust.policy",
    ):  # fmt: skip
        importlib.import_module(f"toolcrib.{name}")


def _rest(inlet: int) -> bytes:
    """All that was told. The pipe ends with the host, since nothing else holds it."""
    parts: list[bytes] = []
    while select.select([inlet], [], [], 2 * SURVIVES_S)[0]:
        part = os.read(inlet, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b"".join(parts) + b"? a process that outlives its host holds its descriptors\n"


def _descendants(host: int) -> dict[int, int]:
    """The processes below one, each with its birth, since numbers are used again."""
    parents = {}
    for pid in pids():
        with suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            parents[pid] = int(text.rpartition(")")[2].split()[1])
    family = {host}
    while more := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= more
    return {pid: born for pid in family - {host} if (born := _born(pid))}


def _born(pid: int) -> int:
    """0: it is dead."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = text.rpartition(")")[2].split()
        return 0 if state in "ZX" else int(rest[18])
    return 0


def _name(pid: int) -> str:
    with suppress(OSError):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return argv.decode("utf-8", "replace")[:120]
    return "gone"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--level", help="call on this level")
    parser.add_argument("folder", type=Path, help="an empty folder to work in")
    given = parser.parse_args()
    return 0 if run(given.kills, given.seed, given.folder, level=given.level) else 1


if __name__ == "__main__":
    sys.exit(main())
