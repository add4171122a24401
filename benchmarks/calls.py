"""What a call costs, beside the least that it could cost and beside what peers need for less.

Every contestant is a process of its own that checks all of its answers; they take turns. ``callers.py`` is
our side, ``native/bare.c`` the yardstick for processes, ``peers.py`` the others, installed from
requirements/bench.txt into build/peers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from callers import GROUP, begin_bytes, prepare
from measuring import (
    RESTED,
    ROOT,
    Contestant,
    Round,
    Row,
    WrongAnswer,
    contested,
    medians,
    per_second,
    timed,
)

from toolcrib.runtimes.javascript import find_node

HERE = Path(__file__).parent
LARGE_BYTES = 2 << 30
MEMORY = Path("/dev/shm")
PEERS = {
    "utcp": "utcp's CLI plugin",
    "toolregistry": "toolregistry",
    "langchain": "langchain-core",
    "fastmcp": "FastMCP in memory",
}
PROCESS_PEERS = ("utcp",)


def calling(work: Path, rounds: int) -> tuple[list[Row], list[str]]:
    """The rows, and what could not be measured and why."""
    folder = work / "calls"
    folder.mkdir()
    for place in (work, folder):
        place.chmod(0o711)  # as root, tools run as somebody else
    skipped: list[str] = []
    rows: list[Row] = []
    echo, bare = _compiled(folder)
    prepare(folder, echo)
    peers = _Peers(skipped)
    setting = _Setting(folder, bare, peers, rounds)
    parts = [
        setting.python,
        setting.javascript,
        setting.inside,
        setting.function,
        setting.audit,
        setting.cold,
    ]
    if echo is None:
        skipped.append("process calls: there is no C compiler (cc) for the tool and its yardstick")
    else:
        parts = [setting.process, setting.verified, setting.large_host, setting.many_callers, *parts]
    for part in parts:
        try:
            rows += part(skipped)
        except WrongAnswer as wrong:
            skipped.append(f"{part.__name__}: {wrong}")
    return rows, skipped


class _Setting:
    """The contestants of one run, by name."""

    def __init__(self, folder: Path, bare: Path | None, peers: _Peers, rounds: int) -> None:
        self._folder = folder
        self._bare = bare
        self._peers = peers
        self._rounds = rounds

    @contextmanager
    def _contestants(self, *names: str) -> Iterator[list[Contestant]]:
        with ExitStack() as stack:
            yield [self._contestant(name, stack) for name in names]

    def _contestant(self, name: str, stack: ExitStack) -> Contestant:
        kind, _, variant = name.partition(":")
        if kind == "bare":
            argv = [str(self._bare), str(self._echo)]
            if variant == "synced":
                record = begin_bytes(self._folder / "state-record")
                argv += [str(self._folder / "record"), str(len(record))]
        elif kind == "waiting":
            assert self._bare is not None
            record = begin_bytes(self._folder / "state-record")
            argv = [str(self._bare.parent / "waiting"), str(self._folder / "waited"), str(len(record))]
        elif kind in PEERS:
            argv = [str(self._peers.python), str(HERE / "peers.py"), kind, str(self._echo)]
        else:
            state = self._folder / f"state-{kind}-{variant}"
            if variant == "memory":
                state = MEMORY / f"toolcrib-bench-{os.getpid()}-{kind}"
                stack.callback(shutil.rmtree, state, ignore_errors=True)
            argv = [sys.executable, str(HERE / "callers.py"), kind, str(self._folder), str(state)]
            if variant == "large":
                argv += ["--ballast", str(LARGE_BYTES)]
        contestant = Contestant(name, argv)
        stack.callback(contestant.close)
        return contestant

    @property
    def _echo(self) -> Path:
        return self._folder / "process" / "tools" / "bin" / "echo"

    # -- programs -------------------------------------------------------------------------------------------

    def process(self, _skipped: list[str]) -> list[Row]:
        peers = [name for name in PROCESS_PEERS if name in self._peers.names]
        names = ("bare", "bare:synced", "python", "stated", "default", "sync")
        with self._contestants(*names, *peers) as contestants:
            found = contested(self._rounds * 2, contestants, 200, rested=100)
        bare, synced = found["bare"], found["sync"]
        rows = []
        for name, words, goal in (
            ("stated", "process call, needs stated", 1.7),
            ("default", "process call, default profile with namespaces", 1.8),
        ):
            apart = _ratios(found[name], bare, less=synced)
            rested = _ratios(found[name + RESTED], found["bare" + RESTED], less=found["sync" + RESTED])
            detail = (
                f"{_ms(found[name])} as it is ({_ratios(found[name], bare):.2f} x; "
                f"{_ratios(found[name], found['bare:synced']):.2f} x bare C that syncs as many bytes first, "
                f"{_ms(found['bare:synced'])}), a bare fdatasync of the begin {_ms(synced)}, "
                f"bare C {_ms(bare)}, bare Python {_ms(found['python'])}; "
                f"the first hundred after a rest {rested:.2f} x"
            )
            rows.append(_at_most(f"{words}, the sync apart, to bare C", apart, "x", goal, detail))
        rows += [
            _at_most(
                f"process call, default profile, to {PEERS[name]}",
                _ratios(found["default"], found[name]),
                "x",
                1.0,
                f"{_ms(found['default'])} to {_ms(found[name])}, which neither isolates nor records",
            )
            for name in peers
        ]
        return rows

    def verified(self, _skipped: list[str]) -> list[Row]:
        with self._contestants("signed", "unsigned", "vet") as contestants:
            found = contested(self._rounds * 2, contestants, 200)
        value = _ratios(found["signed"], found["unsigned"])
        detail = f"{_ms(found['signed'])} verified to {_ms(found['unsigned'])} let run unsigned"
        share = 100 * _ratios(found["vet"], found["signed"])
        us = medians(found["vet"]) * 1e6
        return [
            _at_most("process call with a verified signature, to an unsigned one", value, "x", 1.05, detail),
            _at_most("verifying again, of a warm process call", share, "%", 5.0, f"{us:.1f} us; aim 15 us"),
        ]

    def large_host(self, skipped: list[str]) -> list[Row]:
        if _available_bytes() < 2 * LARGE_BYTES:
            skipped.append("a 2 GiB host: there is too little memory")
            return []
        with self._contestants("stated", "stated:large") as contestants:
            found = contested(self._rounds, contestants, 200)
        value = _ratios(found["stated:large"], found["stated"])
        detail = f"{_ms(found['stated:large'])} to {_ms(found['stated'])}"
        return [_at_most("process call from a 2 GiB host, to a small one", value, "x", 1.2, detail)]

    def many_callers(self, _skipped: list[str]) -> list[Row]:
        with self._contestants("bare", "python", "stated") as contestants:
            found = contested(self._rounds, contestants, 640, threads=64)
        bare = found["bare"]
        value, least = (
            statistics.median(
                (one.count / one.wall_s) / (other.count / other.wall_s)
                for one, other in zip(found[name], bare, strict=True)
            )
            for name in ("stated", "python")
        )
        detail = (
            f"{per_second(found['stated']):,.0f}/s to {per_second(bare):,.0f}/s; durable begins included; "
            f"bare Python, which only starts it: {least:.2f} x"
        )
        return [_at_least("process calls of 64 callers, throughput to bare C", value, "x", 0.4, detail)]

    # -- Python ---------------------------------------------------------------------------------------------

    def python(self, _skipped: list[str]) -> list[Row]:
        rows = []
        for name, words, goal in (
            ("plain", "python3 -S -I", 10.0),
            ("ordinary", "python3 with ordinary imports", 20.0),
        ):
            with self._contestants(f"cold-{name}", name) as contestants:
                found = contested(self._rounds, contestants, 20)
            value = _ratios(found[f"cold-{name}"], found[name])
            detail = f"{_ms(found[name])} to {_ms(found[f'cold-{name}'])}"
            rows.append(
                _at_least(f"isolated Python call, times faster than {words}", value, "x", goal, detail)
            )
        return rows

    def javascript(self, skipped: list[str]) -> list[Row]:
        node = find_node(os.environ)
        if node is None:
            skipped.append("JavaScript calls: there is no Node")
            return []
        with self._contestants("cold-script", "script") as contestants:
            found = contested(self._rounds, contestants, 20)
        version = subprocess.run(
            [node, "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        value = _ratios(found["cold-script"], found["script"])
        detail = f"{_ms(found['script'])} to {_ms(found['cold-script'])}, Node {version}"
        return [_at_least("isolated JavaScript call, times faster than node", value, "x", 10.0, detail)]

    def inside(self, _skipped: list[str]) -> list[Row]:
        memory = "inside:memory" if MEMORY.is_dir() else "inside"
        peers = [name for name in PEERS if name not in PROCESS_PEERS and name in self._peers.names]
        with self._contestants(memory, "inside:disk", "sync", *peers) as contestants:
            found = contested(self._rounds, contestants, 500)
        us = medians(found[memory]) * 1e6
        detail = (
            f"journal in {'memory' if memory.endswith('memory') else 'a file'}; on the disk "
            f"{medians(found['inside:disk']) * 1e6:,.0f} us, of which a bare fdatasync is "
            f"{medians(found['sync']) * 1e6:,.0f} us"
        )
        rows = [_at_most("in-process call, checked and recorded, the sync apart", us, "us", 40.0, detail)]
        rows += [
            _at_most(
                f"in-process call, the sync apart, to {PEERS[name]}",
                _ratios(found[memory], found[name]),
                "x",
                1.0,
                f"{us:,.0f} us to {medians(found[name]) * 1e6:,.0f} us, which records nothing",
            )
            for name in peers
        ]
        return rows

    def function(self, _skipped: list[str]) -> list[Row]:
        memory, where = ("memory", "memory") if MEMORY.is_dir() else ("disk", "a file")
        names = [f"{kind}:{memory}" for kind in ("function", "flat")]
        with self._contestants(*names, *(["function:disk"] if memory == "memory" else [])) as contestants:
            found = contested(self._rounds, contestants, 500)
        us, least = (medians(found[name]) * 1e6 for name in names)
        detail = (
            f"journal in {where}; on the disk {medians(found['function:disk']) * 1e6:,.0f} us; "
            f"all that it has to do as one function, with nothing around: {least:.1f} us"
        )
        return [_at_most("registered function, checked and recorded, the sync apart", us, "us", 40.0, detail)]

    # -- the record and the start ---------------------------------------------------------------------------

    def audit(self, _skipped: list[str]) -> list[Row]:
        names = ("grouped", "audit", "together", "least", *(("waiting",) if self._bare is not None else ()))
        with self._contestants(*names) as contestants:
            found = contested(self._rounds * 2, contestants, 100 * GROUP, threads=GROUP)
        ratios = {
            name: statistics.median(
                one.wall_s / other.wall_s for one, other in zip(rounds, found["grouped"], strict=True)
            )
            for name, rounds in found.items()
        }
        least = f"the least that Python needs for these records alone: {ratios['least']:.2f} x"
        waiting = "there is no C compiler to measure threads that only wait with"
        if "waiting" in ratios:
            waiting = f"C threads that wait for one sync and make no record: {ratios['waiting']:.2f} x"
        rows = []
        for name, who, goal, known in (
            ("audit", "64 callers, a thread each", 15.0, f"{least}; {waiting}"),
            ("together", "64 calls that arrive together, as in a server", 3.0, least),
        ):
            value = ratios[name]
            each = [1e6 / per_second(found[which]) for which in (name, "grouped")]
            detail = f"{each[0]:.1f} us to {each[1]:.1f} us for a record; {known}"
            rows.append(
                _at_most(f"durable begins of {who}, to fdatasync of groups of 64", value, "x", goal, detail)
            )
        return rows

    def cold(self, _skipped: list[str]) -> list[Row]:
        python = sys.executable
        source = "process" if self._echo.exists() else "plain"
        name = "echo" if source == "process" else "echo_plain"
        argv = [str(Path(python).parent / "toolcrib"), "--from", str(self._folder / source)]
        argv += ["--state", str(self._folder / "state-cold"), "call", name, '{"value":7}']
        env = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}
        outputs: list[bytes] = []

        def call() -> None:
            outputs.append(subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=False).stdout)

        def nothing() -> None:
            subprocess.run([python, "-c", "pass"], env=env, check=True)

        call()
        pairs = [(timed(call), timed(nothing)) for _ in range(self._rounds * 4)]
        wrong = [output for output in outputs if b'{"echo":{"value":7}}' not in output]
        if wrong:
            raise WrongAnswer(f"toolcrib call said {wrong[0][:200]!r}")
        value = statistics.median(ours / theirs for ours, theirs in pairs)
        detail = " to ".join(
            f"{statistics.median(column) * 1000:.1f} ms" for column in zip(*pairs, strict=True)
        )
        return [_at_most("toolcrib call, cold, to python -c pass", value, "x", 12.0, detail)]


# -- small parts --------------------------------------------------------------------------------------------


def _ratios(found: Sequence[Round], yardstick: Sequence[Round], less: Sequence[Round] | None = None) -> float:
    """The median over the rounds of what one takes to what another takes, ``less`` taken off first."""
    taken = [0.0] * len(found) if less is None else [one.median_s for one in less]
    return statistics.median(
        (one.median_s - off) / other.median_s for one, off, other in zip(found, taken, yardstick, strict=True)
    )


def _ms(rounds: Sequence[Round]) -> str:
    return f"{medians(rounds) * 1000:.2f} ms"


def _at_most(name: str, value: float, unit: str, goal: float, detail: str) -> Row:
    return Row(name, round(value, 2), unit, goal, value <= goal, detail)


def _at_least(name: str, value: float, unit: str, goal: float, detail: str) -> Row:
    return Row(name, round(value, 2), unit, goal, value >= goal, detail, at_least=True)


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _compiled(folder: Path) -> tuple[Path | None, Path | None]:
    """The tool and its yardstick."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None, None
    built = []
    for name, options in (("echo", ["-static"]), ("bare", ["-pthread"]), ("waiting", ["-pthread"])):
        program = folder / name
        argv = [compiler, "-O2", *options, "-o", str(program), str(HERE / "native" / f"{name}.c")]
        if subprocess.run(argv, check=False).returncode:
            return None, None
        built.append(program)
    return built[0], built[1]


class _Peers:
    """The environment with the peers in it; made when it is not there or not as it should be."""

    def __init__(self, skipped: list[str]) -> None:
        folder = ROOT / "build" / "peers"
        locked = ROOT / "requirements" / "bench.txt"
        stamp, wanted = folder / "installed", hashlib.sha256(locked.read_bytes()).hexdigest()
        self.python = folder / "bin" / "python"
        self.names: tuple[str, ...] = tuple(PEERS)
        if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
            return
        print("installing requirements/bench.txt into build/peers", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
            subprocess.run(
                [
                    str(self.python), "-m", "pip", "install", "-qq", "--disable-pip-version-check",
                    "--require-hashes", "--only-binary", ":all:", "-r", str(locked),
                ],
                check=True,
            )  # fmt: skip
        except (subprocess.CalledProcessError, OSError) as error:
            skipped.append(f"peers: requirements/bench.txt could not be installed ({error})"[:200])
            self.names = ()
            return
        stamp.write_text(wanted, encoding="ascii")
