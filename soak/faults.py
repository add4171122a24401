"""Many calls at once of tools that crash, hang, flood, multiply, run away and hold on: what comes back, what
is left behind, and what the journal says about it."""

from __future__ import annotations

import gc
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import control
import records
from table import Line, at_most, exactly, show
from tools import FAULTS, LONG_BYTES, Fault, Folder, descriptors, resident_bytes, threads

import toolcrib
from toolcrib.errors import Kind
from toolcrib.model import Limits, ToolResult
from toolcrib.sandbox import Cancel, Sandbox, probe
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.portable import Portable

LATE_S = 0.250
WARM_CALLS = 2_000
"""With fewer, memory is shown and not judged."""
LATE_SHARE = 0.001
GONE_WITHIN_S = 1.0
WRONG_SHOWN = 10


@dataclass(frozen=True)
class Done:
    """One call that came back."""

    fault: Fault
    call_id: str
    kind: Kind | None
    wrong: str
    late_s: float | None
    """How long after its time limit it came back."""


def _growth_bytes(memory: Sequence[int]) -> float:
    """How much all calls together add, by a straight line through what was held after each part.

    The first part warms up and does not count. What the C library holds goes up and down by several MiB from
    part to part, so two of them alone say little; what grows with the calls shows in all of them.
    """
    line = statistics.linear_regression(range(1, len(memory)), memory[1:])
    return line.slope * len(memory)


def run(
    calls: int, at_once: int, seed: int, folder: Path, *, modes: Sequence[str] = (), level: str | None = None
) -> bool:
    """Make the calls, look at everything, print the table; whether all goals were met."""
    tools = Folder(folder)
    drawn = random.Random(seed)
    mix = [fault for fault in FAULTS if not modes or fault.mode in modes]
    faults = drawn.choices(mix, [fault.weight for fault in mix], k=calls)
    # As many as there can be at once all hang together first, so that what is kept for later calls is made.
    faults[:at_once] = [fault for fault in mix if fault.mode == "hang"] * min(at_once, calls) or faults[
        :at_once
    ]
    limits = [drawn.uniform(*fault.limit_s) if fault.limit_s else None for fault in faults]
    quiet = _Quiet(tools)
    done: list[Done] = []
    began = time.monotonic()
    with control.beside(folder) as machine:
        crib = toolcrib.open(tools.config(), sandbox=sandbox_of(level))
        reached = crib.hands.sandbox.level
        before = None
        memory: list[int] = []
        try:
            # The first part warms up: pools fill, caches load, the allocator takes what it needs.
            for size in _parts(calls, at_once):
                waiting = list(islice(zip(faults, limits, strict=True), len(done), len(done) + size))
                done += _at_once(crib, waiting, at_once, len(done))
                quiet.look()
                gc.collect()
                memory.append(resident_bytes())
                _let_go(crib)
                if before is None:
                    before = (set(descriptors().values()), len(descriptors()), threads())
                print(f"{len(done):,} of {calls:,} calls, {time.monotonic() - began:.0f} s", file=sys.stderr)
            assert before is not None
            _let_go(crib)
            more_descriptors = len(descriptors()) - before[1]
            more_threads = threads() - before[2]
            new = sorted(set(descriptors().values()) - before[0])
        finally:
            crib.close()
            tools.end_all()
    took_s = time.monotonic() - began

    begun, ended, kinds = records.begins_and_ends(tools.state)
    ids = Counter(call.call_id for call in done)
    told_otherwise = sum(kinds.get(call.call_id) != call.kind for call in done)
    verdict = records.verdict(tools.state)
    kept: list[Line] = []
    wrong = [call.wrong for call in done if call.wrong]
    late = sorted(call.late_s for call in done if call.late_s is not None)
    too_late = sum(late_s > LATE_S for late_s in late)
    if late:
        share = 1 - too_late / len(late)
        words = f"time limits kept within {LATE_S * 1000:.0f} ms"
        kept = [Line(words, f"{share:.2%}", f"≥ {1 - LATE_SHARE:.1%}", share >= 1 - LATE_SHARE)]
    cap = Limits().stdout_bytes_max
    lines = [
        exactly("calls that came back", len(done), calls),
        exactly("wrong outcomes", len(wrong)),
        exactly("zombies", quiet.zombies),
        exactly("leaked processes", quiet.leaked),
        exactly("leaked descriptors", max(0, more_descriptors)),
        exactly("leaked threads", max(0, more_threads)),
        exactly("calls without exactly one begin", sum(begun[name] != 1 for name in ids | begun)),
        exactly("calls without exactly one end", sum(ended[name] != 1 for name in ids | ended)),
        exactly("records that tell another outcome", told_otherwise),
        exactly("flaws in the journal", len(verdict.flaws)),
        *kept,
        *(
            [at_most("host memory growth", (memory[-1] - memory[0]) / (1 << 20), 2 * cap / (1 << 20), "MiB")]
            if calls >= WARM_CALLS
            else []  # the allocator of every thread is still taking what it needs
        ),
    ]
    notes = [
        f"{took_s:.0f} s, {len(done) / took_s:,.0f} calls/s, level {reached}, "
        f"{'C' if tools.compiled else 'Python'} tools, seed {seed}",
        f"host memory after each part: {', '.join(str(size >> 20) for size in memory)} MiB",
        *([f"by a line through them {_growth_bytes(memory) / (1 << 20):.1f} MiB"] if len(memory) > 2 else []),
        f"quiet within {quiet.slowest_s * 1000:.0f} ms after the last call of a batch",
        *([f"late by {_spread(late)}"] if late else []),
        str(machine),
        *(f"wrong: {text} ({count} times)" for text, count in Counter(wrong).most_common(WRONG_SHOWN)),
        *(f"flaw: {flaw.segment} record {flaw.number}: {flaw.why}" for flaw in verdict.flaws[:WRONG_SHOWN]),
        *(f"open now and not before: {name}" for name in new[:WRONG_SHOWN] if more_descriptors > 0),
    ]
    return show(f"{calls:,} calls, {at_once} at once", lines, notes)


def sandbox_of(level: str | None) -> Sandbox | None:
    """A weaker level than the machine's best, to see what it does not hold."""
    match level:
        case None | "supervised":
            return None
        case "restricted":
            return probe.restricted(landlock=probe.try_layers().landlock, scratch=Scratch())
        case _:
            return Portable(Scratch())


def _let_go(crib: toolcrib.Crib) -> None:
    """Empty the pool of what is kept for the next calls: how full it is depends on luck, a leak does not."""
    let_go = getattr(crib.hands.sandbox, "let_go", None)
    if let_go is not None:
        let_go()


def _parts(calls: int, at_once: int) -> list[int]:
    """Tenths, the first one long enough to be a beginning."""
    first = min(calls, max(calls // 10, 6 * at_once))
    whole, rest = divmod(calls - first, 9)
    return [size for size in [first, *([whole] * 8), whole + rest] if size]


def _spread(late: list[float]) -> str:
    at = [late[min(len(late) - 1, int(len(late) * share))] for share in (0.5, 0.99, 0.999)]
    return "{:.0f} / {:.0f} / {:.0f} ms (p50 / p99 / p99.9), at most {:.0f} ms".format(
        *(value * 1000 for value in (*at, late[-1]))
    )


class _Quiet:
    """Looks at what is left when nothing is being called."""

    def __init__(self, tools: Folder) -> None:
        self._tools = tools
        self.leaked = 0
        self.zombies = 0
        self.slowest_s = 0.0

    def look(self) -> None:
        began = time.monotonic()
        while (living := self._tools.living()) and time.monotonic() - began < GONE_WITHIN_S:
            time.sleep(0.005)
        self.leaked += len(living)
        while (dead := self._tools.zombies()) and time.monotonic() - began < 2 * GONE_WITHIN_S:
            time.sleep(0.005)
        self.zombies += len(dead)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


def _at_once(
    crib: toolcrib.Crib, waiting: list[tuple[Fault, float | None]], at_once: int, number: int
) -> list[Done]:
    """Call all of them, so many at a time."""
    numbered = iter(enumerate(waiting, number))
    lock = threading.Lock()
    done: list[Done] = []

    def work() -> None:
        while True:
            with lock:
                place, (fault, limit_s) = next(numbered, (None, (None, None)))
            if fault is None:
                return
            done.append(one(crib, fault, limit_s, f"n{place}"))

    callers = [threading.Thread(target=work, name=f"caller-{index}") for index in range(at_once)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return done


def one(crib: toolcrib.Crib, fault: Fault, limit_s: float | None, nonce: str, caller: str = "soak") -> Done:
    """One call, and whether what came back is what had to."""
    arguments = {"nonce": nonce}
    if fault.long:
        arguments["long"] = "x" * LONG_BYTES
    cancel = Cancel()
    began = time.monotonic()
    result = crib.call(fault.mode, arguments, timeout_s=limit_s, caller=caller, cancel=cancel)
    took_s = time.monotonic() - began
    cancel.close()
    kind = result.error.kind if result.error is not None else None
    late_s = took_s - limit_s if limit_s is not None and kind is Kind.TIMED_OUT else None
    return Done(fault, result.call_id, kind, _wrong(fault, result, nonce, late_s), late_s)


def _wrong(fault: Fault, result: ToolResult, nonce: str, late_s: float | None) -> str:
    kind = result.error.kind if result.error is not None else None
    if kind is not fault.expected:
        said = result.error.message[:100] if result.error is not None else "success"
        return f"{fault.mode}: {fault.expected or 'success'} had to come, {kind or ''} came: {said}"
    if not fault.right(result, nonce):
        told = result.error or result.data
        return f"{fault.mode}: not what it must say: {str(told)[:160]}"
    if fault.limit_s is not None and (late_s is None or late_s < 0):
        return f"{fault.mode}: stopped before its time"
    return ""
