"""Races between verifying a file and replacing it: does anything run that nobody verified?

    make races                                 10,000 races
    make races ARGS="--races 600 --seed 7"     fewer, drawn as before

A process of its own keeps replacing a signed file, link or folder by an unsigned one and back, while the
tool is called again and again. The unsigned bytes leave a mark as soon as they run, whatever becomes of the
answer. The last row verifies the bytes and then starts the path, as one would without thinking: it shows that
the race is a real one. Prints a table; exit status 1 where a mark was left, or the naive way never lost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.program import bounded
from tests.signed import BASH, SHELL, Place, answer, javascript, python
from toolcrib.errors import Kind
from toolcrib.model import ToolResult, Trust
from toolcrib.runtimes.javascript import find_node, runs_types
from toolcrib.trust import keys, signing

RACES = 10_000
REPLACING_S_MAX = 900.0

# Replaces in a loop, for as long as its parent is there. The pauses are drawn, so that every moment between
# looking and running is met sooner or later.
REPLACER = r"""
import ctypes, os, random, sys, time
kind, good, evil, target, seed, limit_s = sys.argv[1:7]
random.seed(int(seed))
libc = ctypes.CDLL(None, use_errno=True)
ends, parent = time.monotonic() + float(limit_s), os.getppid()
contents = [open(path, "rb").read() for path in (good, evil)] if kind in ("content", "rewrite") else []
turn = 0
print("ready", flush=True)
while time.monotonic() < ends and os.getppid() == parent:
    turn ^= 1
    if kind == "rewrite":
        with open(target, "wb") as file:
            file.write(contents[turn])
    elif kind == "content":
        with open(target + "~", "wb") as file:
            file.write(contents[turn])
        os.rename(target + "~", target)
    elif kind == "link":
        os.symlink((good, evil)[turn], target + "~")
        os.rename(target + "~", target)
    else:  # two folders change places, at once
        if libc.renameat2(-100, evil.encode(), -100, target.encode(), 2):
            sys.exit(os.strerror(ctypes.get_errno()))
    time.sleep(random.random() ** 3 * (0.001 if turn else 0.004))
"""


@dataclass
class Tally:
    """How the calls of one kind of race ended."""

    what: str
    races: int = 0
    ran: int = 0
    refused: int = 0
    other: int = 0
    unverified: int = 0
    """Times that bytes ran which nobody verified."""
    seconds: float = 0.0
    first: str = ""
    """What went neither way."""

    def take(self, result: ToolResult) -> None:
        self.races += 1
        if result.ok:
            self.ran += 1
        elif result.error is not None and result.error.kind in (Kind.DENIED, Kind.UNKNOWN_TOOL):
            self.refused += 1
        else:
            self.other += 1
            self.first = self.first or str(result.error)


@contextmanager
def replacing(kind: str, good: Path, evil: Path, target: Path, seed: int) -> Iterator[None]:
    argv = [sys.executable, "-S", "-c", REPLACER, kind, str(good), str(evil), str(target), str(seed)]
    replacer = subprocess.Popen([*argv, str(REPLACING_S_MAX)], stdout=subprocess.PIPE)
    try:
        assert replacer.stdout is not None
        with bounded(replacer):
            assert replacer.stdout.readline() == b"ready\n"
        yield
        assert replacer.poll() is None, "the replacer ended early"
    finally:
        replacer.kill()
        replacer.wait()
        assert replacer.stdout is not None
        replacer.stdout.close()


class Track:
    """A project with one tool, the same tool as an enemy would have it, and the place for marks."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o711)
        self.place = Place(root)
        self.mark = root / "mark"
        self.mark.write_bytes(b"")
        self.mark.chmod(0o666)
        self.aside = self.place.project / "aside"
        self.aside.mkdir()

    def marked(self) -> int:
        return len(self.mark.read_bytes())

    def evil_python(self) -> str:
        leave = f"open({str(self.mark)!r}, 'a').write('x')\n"
        return leave + answer("evil").replace("    return", f"    {leave}    return")

    def evil_script(self) -> str:
        leave = f"fs.appendFileSync({json.dumps(str(self.mark))}, 'x');\n"
        return f"import fs from 'node:fs';\n{leave}console.log('{{}}');\n//# sourceURL=node:harmless\n"

    def evil_shell(self) -> str:
        return (
            SHELL.format(executor=BASH, category="a") + f"echo -n x >>'{self.mark}'\necho '{{\"said\": 1}}'\n"
        )


def race(kind: str, subject: str, count: int, seed: int) -> Tally:
    """``count`` calls of one subject while it is being replaced."""
    tally = Tally(f"{subject}: {kind}")
    with tempfile.TemporaryDirectory(prefix="toolcrib-races-") as folder:
        track = Track(Path(folder).resolve())
        place, aside = track.place, track.aside
        name = {"shell": "t.sh", "javascript": "t.mjs", "typescript": "t.ts"}.get(subject, "t.py")
        swapped = "helper.py" if subject == "neighbour" else name
        good, evil = aside / f"good-{swapped}", aside / f"evil-{swapped}"
        if subject == "shell":
            script = SHELL.format(executor=BASH, category="a") + "echo '{\"said\": 1}'\n"
            good.write_bytes(place.signed(f"tools/a/{name}", script))
            evil.write_text(track.evil_shell(), encoding="utf-8")
        elif subject == "javascript":  # a script: Node opens it anew in every call
            good.write_bytes(place.signed(f"tools/a/{name}", javascript("console.log('{\"said\": 1}');\n")))
            evil.write_text(javascript(track.evil_script()), encoding="utf-8")
        elif subject == "typescript":
            typed = "const said: number = 1;\nconsole.log(JSON.stringify({ said }));\n"
            good.write_bytes(place.signed(f"tools/a/{name}", javascript(typed)))
            evil.write_text(javascript("const n: number = 1;\n" + track.evil_script()), encoding="utf-8")
        elif subject == "python":
            good.write_bytes(place.signed(f"tools/a/{name}", answer("good")))
            evil.write_text(track.evil_python(), encoding="utf-8")
        else:
            body = "    return {'success': True, 'said': helper.SAID}\n"
            body = "import helper\ndef execute(params, project_path):\n" + body
            place.write(f"tools/a/{name}", python(body))
            good.write_bytes(place.signed("tools/a/helper.py", "SAID = 1\n"))
            evil.write_text(f"open({str(track.mark)!r}, 'a').write('x')\nSAID = 2\n", encoding="utf-8")
        target = place.tools / "a" / swapped
        target.parent.mkdir(exist_ok=True)
        if kind == "link":
            target.symlink_to(good)
        else:
            target.write_bytes(good.read_bytes())
        if kind == "folder":
            other = aside / "a"
            other.mkdir()
            for path in target.parent.iterdir():
                (other / path.name).write_bytes(path.read_bytes())
            (other / swapped).write_bytes(evil.read_bytes())
            evil, target = other, target.parent
        began = time.monotonic()
        with place.open() as crib, replacing(kind, good, evil, target, seed):
            while tally.races < count:
                tally.take(crib.call("a/t"))
        tally.seconds = time.monotonic() - began
        tally.unverified = track.marked()
    return tally


def naive(count: int, seed: int) -> Tally:
    """Verify the bytes, then start the path: stops at its first loss."""
    tally = Tally("verified, then started by its path")
    with tempfile.TemporaryDirectory(prefix="toolcrib-races-") as folder:
        track = Track(Path(folder).resolve())
        good, evil = track.aside / "good", track.aside / "evil"
        script = SHELL.format(executor=BASH, category="a") + "echo '{\"said\": 1}'\n"
        good.write_bytes(track.place.signed("tools/a/t.sh", script))
        evil.write_text(track.evil_shell(), encoding="utf-8")
        target = track.place.write("tools/a/t.sh", script)
        ring = keys.Keyring(str(track.place.home))
        began = time.monotonic()
        with replacing("content", good, evil, target, seed):
            while tally.races < count and not track.marked():
                tally.races += 1
                content = target.read_bytes()
                vetted = signing.check(content, path=str(target), suffix=".sh", item="tool:a/t", keys=ring)
                if vetted.trust is Trust.SIGNED:
                    subprocess.run(["bash", str(target)], check=False, stdout=subprocess.DEVNULL)
                    tally.ran += 1
                else:
                    tally.refused += 1
        tally.seconds = time.monotonic() - began
        tally.unverified = track.marked()
    return tally


KINDS = ("content", "rewrite", "link", "folder")
SUBJECTS = {"python": 3, "shell": 3, "neighbour": 3, "javascript": 1, "typescript": 1}
"""With their shares: a Node is started for each call."""


def subjects() -> list[str]:
    """Those that this machine can run."""
    needs: dict[str, Callable[[], object]] = {
        "javascript": lambda: find_node(os.environ),
        "typescript": runs_typescript,
    }
    return [subject for subject in SUBJECTS if subject not in needs or needs[subject]()]


@cache
def runs_typescript() -> bool:
    """Whether there is a Node here that does."""
    node = find_node(os.environ, file="a.ts")
    if node is None:
        return False
    told = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return runs_types(told.stdout.strip())


def all_races(count: int, seed: int, told: Callable[[Tally], None] = lambda _tally: None) -> list[Tally]:
    shares = [(kind, subject, SUBJECTS[subject]) for subject in subjects() for kind in KINDS]
    whole = sum(share for *_, share in shares)
    tallies: list[Tally] = []
    left = count
    for number, (kind, subject, share) in enumerate(shares):
        races = left if number == len(shares) - 1 else count * share // whole
        left -= races
        tallies.append(race(kind, subject, races, seed + number))
        told(tallies[-1])
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--races", type=int, default=RACES, help=f"so many in all ({RACES:,})")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeat a draw")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    print(f"{'race':38} {'races':>6} {'ran':>6} {'refused':>8} {'other':>6} {'unverified':>11}")

    def tell(tally: Tally) -> None:
        counts = f"{tally.races:6} {tally.ran:6} {tally.refused:8} {tally.other:6} {tally.unverified:11}"
        print(f"{tally.what:38} {counts}   {tally.seconds:5.0f} s {tally.first}", flush=True)

    tallies = all_races(given.races, given.seed, tell)
    control = naive(5000, given.seed)
    tell(control)
    lost, ran = sum(tally.unverified for tally in tallies), sum(tally.ran for tally in tallies)
    print(f"{sum(tally.races for tally in tallies):,} races, {ran:,} ran, {lost} of them unverified bytes")
    return 0 if not lost and ran and control.unverified else 1


if __name__ == "__main__":
    sys.exit(main())
