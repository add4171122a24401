"""Mutates declarations and looks for what breaks: exceptions, crashes, hangs, slowness, memory, two answers
to one question.

Every input takes the real way (``journey``): strict reading, the format, the schema check, linking alone and
among neighbours, selection, every dialect in plain and strict mode, and with others the loader and its cache.
Before them go the giants, declarations at the size limit. Seeds are the examples, the conformance cases and,
where they lie beside the checkout, the corpus of real files and the examples of the documents.

    make fuzz                                     100,000 inputs in two processes
    make fuzz ARGS="--count 5000 --seed 7"        fewer, from another seed
    make fuzz ARGS="--giants 0"                   without the giants

An input follows from the seed and its number, and each worker writes down the number before it begins, so
that even an input that kills the interpreter is found. What is found lies in build/fuzz, with the command
that runs it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

import journey
from declarations import ROOT, Declaration, seeds
from giants import giants
from journey import RULES, Steps
from mutations import mutated

FINDINGS = ROOT / "build" / "fuzz"
SLOW_S = 1.0
OF_ALL_TOOLS = {"list warm", "problems cold", "problems warm", "write the cache"}
"""What a giant of tens of thousands of tools is asked after it was compiled may take twice as long."""
HANGS_S = 300
MEMORY_MIB_MAX = 200
TOGETHER = 10
MEMORY = "/dev/shm"
TOO_MUCH_MEMORY = 75
"""How a worker ends that went over the limit: what it holds will not shrink, so another one takes over."""


@dataclass
class Tally:
    """What a worker did; all of them are added up in the end."""

    kinds: dict[str, list[float]] = field(default_factory=dict)
    """By kind: how many inputs, how many of them gave a tool, the slowest."""
    groups: int = 0
    memory_mib: float = 0.0
    giants: dict[str, list[float]] = field(default_factory=dict)
    """By name: the slowest step and the memory."""
    digests: dict[str, str] = field(default_factory=dict)
    """By number: the answers to the inputs that every worker gets, each in its own order of hashes."""

    def add(self, kind: str, inputs: float, accepted: float, slowest_s: float) -> None:
        so_far = self.kinds.get(kind, [0, 0, 0.0])
        self.kinds[kind] = [so_far[0] + inputs, so_far[1] + accepted, max(so_far[2], slowest_s)]


# -- inputs -------------------------------------------------------------------------------------------------


class Inputs:
    """The numbered inputs of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.found = seeds()
        self.kinds = sorted(self.found)
        self.good = {
            kind: [one for one in found if journey.gives_tools(one)] or found
            for kind, found in self.found.items()
        }

    def __getitem__(self, number: int) -> tuple[Declaration, Declaration, journey.Rules]:
        """The input, the seed that it came from, and the rules to read it by."""
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.choice(self.kinds)
        origin = rng.choice((self.good if rng.random() < 0.7 else self.found)[kind])
        others = (rng.choice(self.found[kind]), rng.choice(self.found[rng.choice(self.kinds)]))
        return mutated(origin, others, rng), origin, rng.choice(RULES)


def keep(declarations: list[Declaration], wrong: str, how: str) -> dict[str, str]:
    """Write an input down; the finding."""
    text = json.dumps(
        {"wrong": wrong, "how": how, "declarations": [found.to_json() for found in declarations]}
    )
    path = FINDINGS / f"finding-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}.json"
    path.write_text(text, encoding="utf-8")
    return {
        "wrong": wrong,
        "again": f"{Path(sys.executable).name} fuzz/fuzz.py --again {path.relative_to(ROOT)}",
    }


def again(path: Path) -> int:
    """Run one kept input in this process; what is raised is not caught."""
    data = json.loads(path.read_text(encoding="utf-8"))
    declarations = [Declaration.from_json(text) for text in data["declarations"]]
    print(f"kept because: {data['wrong']}")
    with tempfile.TemporaryDirectory() as folder:
        for rules in RULES:
            if data["how"] == "alone":
                steps = journey.alone(declarations[0], declarations[-1], rules)
            else:
                steps = journey.together(declarations, Path(folder, "w"), rules)
            print(json.dumps(asdict(steps), indent=2))
    print(f"peak memory: {memory_mib():.0f} MiB")
    return 0


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- one worker ---------------------------------------------------------------------------------------------


class Worker:
    """Runs its share of the inputs and tells each finding as soon as there is one, as lines of JSON."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tally = Tally()
        self.folder = Path(
            tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        )
        self.last = os.open(FINDINGS / f"worker-{options.worker}.last", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)

    def run(self) -> int:
        try:
            if self.options.first == 0:
                self.giants()
            self.hand_over()
            return self.inputs()
        finally:
            self.hand_over()
            shutil.rmtree(self.folder, ignore_errors=True)

    def hand_over(self) -> None:
        """Tell what was done so far: a worker that dies has nothing to say any more."""
        self.tally.memory_mib = memory_mib()
        print(json.dumps({"tally": asdict(self.tally)}), flush=True)
        self.tally = Tally()

    def tell(self, finding: dict[str, str]) -> None:
        print(json.dumps({"finding": finding}), flush=True)

    def inputs(self) -> int:
        options = self.options
        inputs = Inputs(options.seed)
        group: list[Declaration] = []
        stop_at = time.monotonic() + options.seconds
        for number in range(options.first, options.count):
            is_shared = number < options.shared
            if not is_shared and number % options.workers != options.worker:
                continue
            if time.monotonic() > stop_at:
                break
            os.pwrite(self.last, f"{number:12}".encode(), 0)
            signal.setitimer(
                signal.ITIMER_REAL, HANGS_S
            )  # nobody handles it, so it ends us, wherever we hang
            declaration, origin, rules = inputs[number]
            planted = options.plant if number == 2 else None
            steps = self.one(declaration, origin, rules, planted)
            spent = sum(steps.spent_s.values())
            if spent > SLOW_S and not steps.wrong:
                # A busy machine makes everything slow once.
                once_more = self.one(declaration, origin, rules, planted)
                spent = min(spent, sum(once_more.spent_s.values()))
                if spent > SLOW_S:
                    slowest = max(steps.spent_s, key=lambda name: steps.spent_s[name])
                    steps.wrong.append(f"took {spent:.1f} s, most of it to {slowest}")
            for wrong in steps.wrong[:1]:
                self.tell(keep([declaration, origin], f"input {number}: {wrong}", "alone"))
            if not is_shared or options.worker == 0:
                self.tally.add(declaration.kind, 1, steps.tools > 0, spent)
            if is_shared:
                self.tally.digests[str(number)] = steps.digest
            group.append(declaration)
            if len(group) == TOGETHER:
                self.group(group, rules, number)
                group = []
            if memory_mib() > MEMORY_MIB_MAX:
                wrong = f"input {number}: the process needed {memory_mib():.0f} MiB"
                self.tell(keep([declaration, origin], wrong, "alone"))
                return TOO_MUCH_MEMORY
            if number % 1000 < options.workers:
                print(f"  worker {options.worker}: input {number:,}", file=sys.stderr, flush=True)
            if number % 200 < options.workers:
                self.hand_over()
        return 0

    def one(
        self, declaration: Declaration, origin: Declaration, rules: journey.Rules, planted: str | None = None
    ) -> Steps:
        try:
            steps = journey.alone(declaration, origin, rules)
            if planted is not None:
                plant(planted, steps)
            return steps
        except BaseException as error:  # panics of native code are no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            return Steps(wrong=[told(error)])

    def group(self, declarations: list[Declaration], rules: journey.Rules, number: int) -> None:
        self.tally.groups += 1
        try:
            wrong = journey.together(declarations, self.folder / "group", rules).wrong
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong = [told(error)]
        for text in wrong[:1]:
            self.tell(keep(declarations, f"the group that ends with input {number}: {text}", "together"))

    # -- giants: each in a process of its own, so that its memory is its own --------------------------------

    def giants(self) -> None:
        options = self.options
        every = list(giants())
        wanted = len(every) if options.giants is None else options.giants
        for number in range(wanted):
            name, made = every[number * len(every) // wanted]
            if number % options.workers == options.worker:
                declaration = made()
                slowest, spent, memory, wrong = self.giant(declaration)
                if not wrong and (spent > SLOW_S or memory > MEMORY_MIB_MAX):
                    slowest, spent, memory, wrong = min(
                        (slowest, spent, memory, wrong), self.giant(declaration)
                    )
                if not wrong and spent > SLOW_S:
                    wrong = f"{spent:.1f} s to {slowest}"
                if not wrong and memory > MEMORY_MIB_MAX:
                    wrong = f"{memory:.0f} MiB"
                self.tally.giants[name] = [spent, memory]
                if wrong:
                    self.tell(keep([declaration], f"giant {name!r}: {wrong}", "together"))
            if number % 50 == 0:
                print(f"  worker {options.worker}: giant {number}", file=sys.stderr, flush=True)

    def giant(self, declaration: Declaration) -> tuple[str, float, float, str]:
        """Its slowest step, the time of it, the memory, and what is wrong."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            signal.setitimer(signal.ITIMER_REAL, HANGS_S)
            try:
                steps = journey.giant(declaration, self.folder / "giant")
            except BaseException as error:  # noqa: BLE001 (told by the parent)
                steps = Steps(wrong=[told(error)])
            for name in OF_ALL_TOOLS & steps.spent_s.keys():
                steps.spent_s[name] /= 2
            slowest = max(steps.spent_s, key=lambda name: steps.spent_s[name], default="")
            wrong = steps.wrong[0] if steps.wrong else ""
            said = json.dumps([slowest, steps.spent_s.get(slowest, 0.0), memory_mib(), wrong])
            os.write(writing, said.encode()[:60_000])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0 or not said:
            return "", 0.0, 0.0, ended(status)
        slowest, spent, memory, wrong = json.loads(said)
        return slowest, spent, memory, wrong


def told(error: BaseException) -> str:
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" ({Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno})" if where else ""
    return f"{type(error).__name__}{place}: {str(error)[:200]}"


def ended(status: int) -> str:
    if status == -signal.SIGALRM:
        return f"did not come to an end within {HANGS_S} s"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def plant(what: str, steps: Steps) -> None:
    """Break something on purpose, to see that it is noticed."""
    match what:
        case "raise":
            raise RecursionError("planted")
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            threading.Event().wait()
        case "grow":
            bytearray(b"x" * (MEMORY_MIB_MAX << 20))
        case "slow":
            steps.spent_s["planted"] = 2 * SLOW_S
        case "differ":
            steps.digest = os.environ["PYTHONHASHSEED"]


# -- all workers --------------------------------------------------------------------------------------------


@dataclass
class Whole:
    tallies: list[Tally] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def lead(options: argparse.Namespace, number: int, whole: Whole) -> None:
    """Run one worker to its end; where it dies, note its last input and let another go on after it."""
    first = 0
    for _ in count():
        command = [sys.executable, __file__, "--worker", str(number), "--first", str(first)]
        for name in ("count", "seed", "seconds", "workers", "shared", "giants", "plant"):
            if (value := getattr(options, name)) is not None:
                command += [f"--{name}", str(value)]
        env = {**os.environ, "PYTHONHASHSEED": str(number + 1)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                said = json.loads(line)
                with whole.lock:
                    if "tally" in said:
                        whole.tallies.append(Tally(**said["tally"]))
                    else:
                        whole.findings.append(said["finding"])
        if worker.returncode == 0:
            return
        last = int((FINDINGS / f"worker-{number}.last").read_text(encoding="ascii") or -1)
        if worker.returncode != TOO_MUCH_MEMORY:
            with whole.lock:
                whole.findings.append(lost(options, last, worker.returncode))
        if last < first:
            return  # it did not even begin
        first = last + 1


def lost(options: argparse.Namespace, number: int, status: int) -> dict[str, str]:
    if number < 0:
        return {"wrong": f"a worker ended before its first input: {ended(status)}", "again": "fuzz/fuzz.py"}
    declaration, origin, _ = Inputs(options.seed)[number]
    return keep([declaration, origin], f"input {number}: {ended(status)}", "alone")


def disagreements(whole: Whole, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Inputs to which workers with other orders of hashes gave other answers."""
    answers: dict[str, set[str]] = {}
    for tally in whole.tallies:
        for number, digest in tally.digests.items():
            answers.setdefault(number, set()).add(digest)
    for number, digests in answers.items():
        if len(digests) > 1:
            declaration, origin, _ = Inputs(options.seed)[int(number)]
            yield keep(
                [declaration, origin], f"input {number}: the answer depends on the order of hashes", "alone"
            )


def report(whole: Whole, spent_s: float, options: argparse.Namespace) -> None:
    total = Tally()
    for tally in whole.tallies:
        for kind, numbers in tally.kinds.items():
            total.add(kind, *numbers)
        total.groups += tally.groups
        total.memory_mib = max(total.memory_mib, tally.memory_mib)
        total.giants |= tally.giants
    inputs = sum(int(numbers[0]) for numbers in total.kinds.values())
    print(f"{'kind':24}{'inputs':>10}{'with tools':>12}{'slowest':>12}")
    for kind, (number, accepted, slowest) in sorted(total.kinds.items()):
        print(f"{kind:24}{number:>10,}{accepted:>12,}{slowest * 1000:>9.0f} ms")
    print()
    print(f"inputs        {inputs:,} ({inputs / max(0.001, spent_s):,.0f} a second, seed {options.seed})")
    print(f"as files      {total.groups:,} groups of {TOGETHER}, cold and warm")
    print(f"peak memory   {total.memory_mib:.0f} MiB (at most {MEMORY_MIB_MAX})")
    if total.giants:
        slow = max(total.giants, key=lambda name: total.giants[name][0])
        large = max(total.giants, key=lambda name: total.giants[name][1])
        print(f"giants        {len(total.giants):,}")
        print(f"  slowest     {total.giants[slow][0]:.2f} s ({slow})")
        print(f"  largest     {total.giants[large][1]:.0f} MiB ({large})")
    print(f"findings      {len(whole.findings)}")
    for finding in whole.findings[:50]:
        print(f"  {finding['wrong']}\n    again: {finding['again']}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs in all (100,000)")
    parser.add_argument("--seed", type=int, default=1, help="where they start from (1)")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so long (an hour)")
    parser.add_argument("--workers", type=int, default=2, help="how many processes (2)")
    parser.add_argument("--giants", type=int, help="how many of the giants (all)")
    parser.add_argument("--again", type=Path, help="run one kept input again")
    for name in ("worker", "first", "shared"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--plant", choices=("raise", "die", "hang", "grow", "slow", "differ"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    FINDINGS.mkdir(parents=True, exist_ok=True)
    if options.again:
        return again(options.again)
    if options.shared is None:
        options.shared = min(2000, options.count // 20)
    if options.worker is not None:
        return Worker(options).run()
    started = time.monotonic()
    whole = Whole()
    leads = [
        threading.Thread(target=lead, args=(options, number, whole)) for number in range(options.workers)
    ]
    for thread in leads:
        thread.start()
    for thread in leads:
        thread.join()
    whole.findings += disagreements(whole, options)
    report(whole, time.monotonic() - started, options)
    return 1 if whole.findings else 0


if __name__ == "__main__":
    sys.exit(main())
