"""Mutates declarations and looks for what breaks: exceptions, crashes, slowness, memory, two answers to one
question.

Every input takes the real way: strict reading, the format, the schema check, linking (alone and among
neighbours), selection, and every dialect in plain and strict mode. Seeds are the examples, the conformance
cases and, where it lies beside the checkout, the corpus of real files.

    make fuzz                               100,000 inputs in two processes
    make fuzz ARGS="--count 5000 --seed 7"  fewer, from another seed

Each worker writes its input down before it runs it, so that even an input that kills the interpreter is
found in build/fuzz, with the command that runs it again.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import resource
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from toolwright import formats, jsontext
from toolwright.catalog import loading
from toolwright.dialects import DIALECTS
from toolwright.model import DeclareOptions, Document, ProbeOutcome, Role, Rules, Tool, ToolMode, Unit
from toolwright.selection import rules as selection

ROOT = Path(__file__).parent.parent
FINDINGS = ROOT / "build" / "fuzz"
SLOW_S = 1.0
MEMORY_BYTES_MAX = 200 * 1024 * 1024
RULES = (Rules(), Rules(manifest_strict=True, read_on_demand=True, context_checks=("x",)))


@dataclass(frozen=True)
class Declaration:
    """Files as an author has them; the first is the declaration itself, the others lie beside it."""

    place: str | None
    item: str
    files: dict[str, bytes]

    def to_json(self) -> str:
        files = {name: base64.b64encode(content).decode("ascii") for name, content in self.files.items()}
        return json.dumps({"place": self.place, "item": self.item, "files": files})

    @staticmethod
    def from_json(text: str) -> Declaration:
        data = json.loads(text)
        files = {name: base64.b64decode(content) for name, content in data["files"].items()}
        return Declaration(data["place"], data["item"], files)

    def document(self) -> Document:
        (name, content), *beside = self.files.items()
        is_json = self.place == "executable" or name.endswith(".json")
        return Document(
            path=f"/w/{name}",
            content=None if name == "SKILL.md" else content,
            parsed=jsontext.read(content) if is_json else None,
            place=self.place,
            item=self.item,
            scope="scope",
            neighbours=dict(beside) if name != "SKILL.md" else self.files,
            probe=ProbeOutcome(exit_status=0) if self.place == "executable" else None,
            project="/w",
            handlers=("/w/handlers",),
        )


# -- seeds --------------------------------------------------------------------------------------------------


def seeds() -> list[Declaration]:
    found: list[Declaration] = []
    for path in sorted((ROOT / "tests" / "conformance" / "formats").rglob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            files = {
                name: text.encode("utf-8") if isinstance(text, str) else bytes(text)
                for name, text in case.get("files", {}).items()
            }
            found += _declarations(files, path.parent.name)
    folders = [ROOT / "examples", ROOT.parent / "shared" / "corpus"]
    for folder in folders:
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.stat().st_size < 64 * 1024
        }
        found += _declarations(files, None)
    return found


def _declarations(files: dict[str, bytes], format: str | None) -> Iterator[Declaration]:
    for name, content in files.items():
        folder, _, base = name.rpartition("/")
        if ".ai/tools/" in name:
            item = name.partition(".ai/tools/")[2]
            yield Declaration("rye", item, {base: content})
        elif base in ("tools.json", "SKILL.md"):
            beside = {
                other.rpartition("/")[2]: text
                for other, text in files.items()
                if other.rpartition("/")[0] == folder and other != name
                and other.rpartition("/")[2] in ("SKILL.md", "allowlist.json", "execution.json")
            }  # fmt: skip
            place = "skill" if "SKILL.md" in beside or base == "SKILL.md" else format
            yield Declaration(place, "", {base: content, **beside})
        elif base.endswith(".json"):
            yield Declaration("executable" if "executable" in name else None, "", {base: content})
        elif base.endswith("-tool"):
            start, end = content.find(b"{"), content.rfind(b"}")
            yield Declaration("executable", "", {base: content[start : end + 1] or b"{}"})


# -- mutations ----------------------------------------------------------------------------------------------

FRAGMENTS: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"\xed\xa0\x80", b"[" * 300, b'{"a":' * 200,
    b"9" * 5000, b"1e999", b"NaN", b"-Infinity", b"&a [*a, *a]", b"*a", b"!!python/object:os.system x", b"\t",
    b"'", b'"', b"\x1b[31m", b"\xe2\x80\xae", b"__proto__", b"^(a+)+$", b"(?=x)", b'"$ref": "http://x/y"',
    b'"$ref": "#"', b"${HOME}", b"{project_path}", b"---\n", b"\n---\n", b"<<: *x", b"`${x}`", b"/*", b"//",
    b"(" * 300, b"-" * 500, b"not " * 200, b"lambda: " * 100, b"*" * 100, b"\r", b"\xe2\x80\xa8", b"null",
    b"{}", b"[]", b"true", b'""', b"\\", b"#!/bin/sh\n", b"# rye:signed:a:b:c:d\n", b"A" * 3000,
    b"\xf0\x9f\x98\x80",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 10**30, "", " ", "x", "../x", "-n", "a\nb", "\u202e", [], [[]], {},
    {"a": {}}, ["x", 1], {"type": "object"}, {"$ref": "#"}, "object", "string", "str", {"pattern": "["},
    "x" * 300,
)  # fmt: skip


def mutate(seed: Declaration, other: Declaration, rng: random.Random) -> Declaration:
    names = list(seed.files)
    name = names[0] if rng.random() < 0.8 else rng.choice(names)
    content = seed.files[name]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if rng.random() < 0.5:
            content = _structural(content, rng) or _bytes(content, next(iter(other.files.values())), rng)
        else:
            content = _bytes(content, next(iter(other.files.values())), rng)
    files = {**seed.files, name: content[: 256 * 1024]}
    return Declaration(seed.place, seed.item, files)


def _bytes(content: bytes, other: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice((1, 2, 8, 64)))
    match rng.randrange(8):
        case 0:
            return content[:at] + bytes([rng.randrange(256)]) + content[end:]
        case 1:
            return content[:at] + rng.choice(FRAGMENTS) + content[at:]
        case 2:
            return content[:at] + rng.choice(FRAGMENTS) + content[end:]
        case 3:
            return content[:at]
        case 4:
            return content[:at] + content[end:]
        case 5:
            return content[:at] + content[at:end] * rng.choice((2, 50)) + content[end:]
        case 6:
            start = rng.randrange(len(other) + 1)
            return content[:at] + other[start : start + rng.choice((20, 200, 2000))] + content[end:]
        case _:
            lines = content.split(b"\n")
            rng.shuffle(lines)
            return b"\n".join(lines)


def _structural(content: bytes, rng: random.Random) -> bytes | None:
    """Change one place of a JSON value; None where the content is none."""
    try:
        root = json.loads(content)
    except (ValueError, RecursionError):
        return None
    places = list(jsontext.walk(root))
    pointer, value = rng.choice(places)
    if not pointer:
        return json.dumps(rng.choice(VALUES)).encode("utf-8")
    holder = jsontext.at(root, pointer[:-1])
    last = pointer[-1]
    match rng.randrange(6):
        case 0:
            holder[last] = rng.choice(VALUES)
        case 1:
            holder[last] = jsontext.at(root, rng.choice(places)[0])
        case 2 if isinstance(holder, dict):
            holder[rng.choice((f"{last}x", str(last).upper(), "__x__", ""))] = holder.pop(last)
        case 3:
            del holder[last]
        case 4 if isinstance(holder, list):
            holder.extend([value] * rng.choice((1, 30)))
        case _:
            holder[last] = {"properties": {"a": value}, "type": "object", "items": [value]}
    try:
        return json.dumps(root).encode("utf-8")
    except (ValueError, RecursionError):  # it holds itself now
        return None


# -- one input ----------------------------------------------------------------------------------------------


def exercise(declaration: Declaration, neighbour: Document, rules: Rules) -> str | None:
    """Take one declaration through the house; what is wrong with the outcome, if anything."""
    document = declaration.document()
    name, compiled = formats.compile_document(document, rules)
    again = formats.compile_document(declaration.document(), rules)
    if repr(again) != repr((name, compiled)):
        return "compiling twice gave two answers"
    for problem in compiled.problems:
        if not (problem.code and problem.message and problem.path):
            return f"a problem says nothing: {problem!r}"
        orjson.dumps([problem.message, problem.hint, problem.pointer])
    sound = loading._sound(compiled, whole=False)
    unit = Unit(path=document.path, item=document.item, compiled=sound)
    tools: list[Tool] = []
    if name is not None:
        tools += formats.link(name, [unit], rules).tools
        other, found = formats.compile_document(neighbour, rules)
        if other == name:
            formats.link(name, [Unit(path=neighbour.path, item=neighbour.item, compiled=found), unit], rules)
    offered = [tool for tool in tools if tool.role is Role.TOOL][:200]
    selection.select(offered, "find my task", context={"project_id": "p"}, checks={})
    for dialect in DIALECTS.values():
        for mode in (ToolMode.PLAIN, ToolMode.STRICT):
            declared = dialect.declare(offered, DeclareOptions(mode=mode, examples=True))
            jsontext.compact(declared.payload)
            if len(set(declared.names.keys.values())) + len(declared.left_out) < len(offered):
                return f"{dialect.NAME} {mode}: a tool was neither declared nor left out"
    return None


# -- workers ------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    inputs: int = 0
    slowest_s: float = 0.0
    memory_bytes: int = 0
    findings: list[str] = field(default_factory=list)


def work(number: int, count: int, seed: int, stop_at: float) -> int:
    """Run one worker's share; prints its tally as JSON."""
    found = seeds()
    kinds: dict[tuple[str | None, str], list[int]] = {}
    for index, declaration in enumerate(found):
        kind = "" if declaration.place == "executable" else next(iter(declaration.files)).rpartition(".")[2]
        kinds.setdefault((declaration.place, kind), []).append(index)
    documents = [declaration.document() for declaration in found]
    last = FINDINGS / f"worker-{number}.json"
    tally = Tally()
    rng = random.Random(f"{seed}/{number}")
    while tally.inputs < count and time.monotonic() < stop_at:
        first = rng.choice(kinds[rng.choice(list(kinds))])  # as many of each kind
        declaration = mutate(found[first], rng.choice(found), rng)
        last.write_text(declaration.to_json(), encoding="utf-8")
        started = time.perf_counter()
        try:
            wrong = exercise(declaration, documents[first], rng.choice(RULES))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong = f"{type(error).__name__}: {str(error)[:200]}"
        spent = time.perf_counter() - started
        if spent > SLOW_S and _cpu_slow(declaration, documents[first]):
            wrong = wrong or f"took {spent:.1f} s"
        tally.inputs += 1
        tally.slowest_s = max(tally.slowest_s, spent)
        if wrong is not None:
            tally.findings.append(_keep(declaration, wrong))
        if tally.inputs % 500 == 0:
            print(f"{number} {tally.inputs}", file=sys.stderr, flush=True)
    tally.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(tally.__dict__))
    return 0


def _cpu_slow(declaration: Declaration, neighbour: Document) -> bool:
    """Whether an input that seemed slow really costs that much, on a machine that may be busy."""
    started = time.process_time()
    exercise(declaration, neighbour, RULES[0])
    return time.process_time() - started > SLOW_S


def _keep(declaration: Declaration, wrong: str) -> str:
    text = declaration.to_json()
    path = FINDINGS / f"finding-{abs(hash(text)):x}.json"
    path.write_text(text, encoding="utf-8")
    return f"{wrong}  (again: {Path(sys.executable).name} fuzz/fuzz.py --again {path.relative_to(ROOT)})"


def again(path: Path) -> int:
    """Run one kept input in this process, with its traceback."""
    declaration = Declaration.from_json(path.read_text(encoding="utf-8"))
    for rules in RULES:
        started = time.perf_counter()
        wrong = exercise(declaration, declaration.document(), rules)
        print(wrong or "nothing wrong", f"({time.perf_counter() - started:.3f} s)")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", type=Path, help="run one kept input again")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    FINDINGS.mkdir(parents=True, exist_ok=True)
    if options.again:
        return again(options.again)
    share = -(-options.count // options.workers)
    if options.worker is not None:
        return work(options.worker, share, options.seed, time.monotonic() + options.seconds)
    started = time.monotonic()
    tally = _together(options, share)
    per_second = tally.inputs / max(0.001, time.monotonic() - started)
    print(f"inputs        {tally.inputs:,} ({per_second:,.0f} a second, seed {options.seed})")
    print(f"slowest       {tally.slowest_s:.3f} s")
    print(f"peak memory   {tally.memory_bytes / 2**20:.0f} MiB")
    print(f"findings      {len(tally.findings)}")
    for finding, times in Counter(tally.findings).most_common(50):
        print(f"  {times} x {finding}")
    return 1 if tally.findings else 0


def _together(options: argparse.Namespace, share: int) -> Tally:
    def command(number: int) -> list[str]:
        named = {"worker": number, "count": options.count, "seed": options.seed, "seconds": options.seconds}
        given = [text for name, value in named.items() for text in (f"--{name}", str(value))]
        return [sys.executable, __file__, "--workers", str(options.workers), *given]

    workers = [
        subprocess.Popen(command(number), stdout=subprocess.PIPE, text=True)
        for number in range(options.workers)
    ]
    tally = Tally()
    for number, worker in enumerate(workers):
        output, _ = worker.communicate()
        if worker.returncode != 0:
            last = FINDINGS / f"worker-{number}.json"
            tally.findings.append(f"worker {number} died with {worker.returncode}; its last input is {last}")
            continue
        part = Tally(**json.loads(output.strip().splitlines()[-1]))
        tally.inputs += part.inputs
        tally.slowest_s = max(tally.slowest_s, part.slowest_s)
        tally.memory_bytes = max(tally.memory_bytes, part.memory_bytes)
        tally.findings += part.findings
    if tally.memory_bytes > MEMORY_BYTES_MAX:
        tally.findings.append(f"a worker needed {tally.memory_bytes / 2**20:.0f} MiB")
    return tally


if __name__ == "__main__":
    sys.exit(main())
