"""Our side of calls.py, and its yardsticks in Python: a process that makes calls when it is asked to.

    python callers.py KIND FOLDER STATE [--ballast BYTES]

Reads lines "COUNT THREADS" and answers each with "MEDIAN_NS WALL_NS WRONG", as native/bare.c does. FOLDER
holds what ``prepare`` wrote there; the journal lies in STATE.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
from msgspec.structs import replace

import toolcrib
from toolcrib.catalog.sources import Source
from toolcrib.config import Environment
from toolcrib.journal import chain, reading
from toolcrib.journal.audit import open_audit
from toolcrib.journal.redaction import has_credential
from toolcrib.model import CallFacts, Grant, Run, Spent, TextBlock, ToolCall, ToolResult
from toolcrib.runtimes.javascript import find_node
from toolcrib.trust import keys, signing

ARGUMENTS = {"value": 7}
EXPECTED = {"echo": {"value": 7}}
SCHEMA = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
ANSWER = {"type": "object", "additionalProperties": SCHEMA}
ORDINARY_IMPORTS = (
    "argparse", "csv", "datetime", "json", "logging", "pathlib", "re", "subprocess", "tempfile",
    "urllib.request",
)  # fmt: skip
GROUP = 64

Call = Callable[[], object]
"""Makes one call; what it returns is checked."""
Prepared = Callable[[int], Callable[[], None]]
"""Gets so many calls ready, and gives what makes them, which alone is measured."""


# -- what is called -----------------------------------------------------------------------------------------


def prepare(folder: Path, echo: Path | None) -> None:
    """Declarations of the same echo tool: a program, Python files, the host's own code."""
    if echo is not None:
        programs = folder / "process" / "tools" / "bin"
        programs.mkdir(parents=True)
        (programs / "echo").write_bytes(echo.read_bytes())
        (programs / "echo").chmod(0o755)
        tool = {"name": "echo", "description": "Echo.", "schema": SCHEMA, "command": ["./tools/bin/echo"]}
        (folder / "process" / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
        signed_and_not(folder, programs / "echo")
    for name, imports in (("plain", ()), ("ordinary", ORDINARY_IMPORTS), ("inside", ())):
        group = folder / name
        (group / "handlers").mkdir(parents=True)
        tool = {
            "name": f"echo_{name}",
            "description": "Echo.",
            "category": "retrieval",
            "input_schema": SCHEMA,
            "metadata": {"executor": name},
        }
        document = {
            "group": name,
            "version": "1.0.0",
            "description": "Echo.",
            "selection": {"strategy": "always"},
            "tools": [tool],
        }
        (group / f"{name}_tools.json").write_text(json.dumps(document), encoding="utf-8")
        if name != "inside":
            lines = [
                *(f"import {module}" for module in imports),
                "",
                f"def execute_{name}_tool(tool_name, tool_input, **context):",
                '    return {"success": True, "result": {"echo": tool_input}}',
                "",
                'if __name__ == "__main__":',
                "    import json, sys",
                f'    print(json.dumps(execute_{name}_tool("echo", json.load(sys.stdin))["result"]))',
                "",
            ]
            (group / "handlers" / f"{name}.py").write_text("\n".join(lines), encoding="utf-8")
    tools = folder / "script" / ".ai" / "tools" / "bench"
    tools.mkdir(parents=True)
    (tools / "echo.mjs").write_text(
        "import { readFileSync } from 'node:fs';\n"
        "export const __version__ = '1.0.0';\n"
        "export const __tool_type__ = 'javascript';\n"
        "export const __executor_id__ = 'rye/core/runtimes/node/node';\n"
        "export const __category__ = 'bench';\n"
        "export const __tool_description__ = 'Echo.';\n"
        f"export const CONFIG_SCHEMA = {json.dumps(SCHEMA)};\n"
        "export default (params) => ({ echo: params });\n"
        "if (process.argv[2] === '--alone') {\n"
        "  console.log(JSON.stringify({ echo: JSON.parse(readFileSync(0, 'utf8')) }));\n"
        "}\n",
        encoding="utf-8",
    )


def signed_and_not(folder: Path, program: Path) -> None:
    """The same rye tool twice, and a user who trusts the key of the one that is signed."""
    declaration = {
        "version": "1.0.0",
        "tool_type": "yaml",
        "executor_id": "rye/core/primitives/execute",
        "category": "bench",
        "description": "Echo.",
        "config_schema": SCHEMA,
        "config": {"command": str(program)},
    }
    text = json.dumps(declaration, indent=1).encode("ascii")
    keys.generate(str(folder / "key"))
    key = keys.load_signing_key(str(folder / "key"))
    public = keys.public_key(str(folder / "key"))
    assert public is not None
    (folder / "user").mkdir()
    keys.trust(str(folder / "user"), public)
    signed, _ = signing.sign(
        text,
        ".yaml",
        "tool:bench/echo",
        time="2026-01-01T00:00:00Z",
        key_id=key.id,
        signature_of=key.sign,
    )
    for name, content in (("signed", signed), ("unsigned", text)):
        tools = folder / name / ".ai" / "tools" / "bench"
        tools.mkdir(parents=True)
        (tools / "echo.yaml").write_bytes(content)


# -- contestants --------------------------------------------------------------------------------------------


def ours(
    folder: Path,
    state: Path,
    *,
    source: str,
    stated: bool = False,
    inside: bool = False,
    vets: bool = False,
) -> Call:
    path = folder / source
    handlers = path / "handlers"
    config = toolcrib.Config(
        sources=(
            Source(
                path=str(path),
                named=True,
                root=str(folder),
                handlers=str(handlers) if handlers.is_dir() else None,
            ),
        ),
        state=str(state),
        grants=(Grant(pattern="*", needs=()),) if stated else (),
        unsigned="warn",
    )
    environment = replace(Environment.read(), user_space=str(folder / "user"))
    crib = toolcrib.open(config, handlers={"inside": _handler} if inside else None, environment=environment)
    if vets:
        tool = crib.find("bench/echo")

        def vet() -> object:
            return EXPECTED if crib.vet(tool).signer else None

        return vet
    names = {"process": "echo", "script": "bench/echo", "signed": "bench/echo", "unsigned": "bench/echo"}
    name = names.get(source, f"echo_{source}")
    result = crib.call(name, ARGUMENTS)
    print(f"{source}: {', '.join(result.isolation)}", *result.notes, file=sys.stderr)

    def call() -> object:
        return crib.call(name, ARGUMENTS)

    return call


def function(state: Path) -> Call:
    """A function that the host registered: no files at all."""
    crib = toolcrib.open(tools=[echo_function], config=toolcrib.Config(state=str(state)))
    result = crib.call("echo_function", ARGUMENTS)
    print(f"function: {', '.join(result.isolation)}", *result.notes, file=sys.stderr)

    def call() -> object:
        return crib.call("echo_function", ARGUMENTS)

    return call


def one_function(state: Path) -> Call:
    """The least that Python needs for the same: what a call of a function has to do, written as one function,
    with nothing around and nothing that could be configured."""
    begin, file = orjson.loads(begin_bytes(state)[chain.HEAD_BYTES :]), yardstick(state)
    fits = jsonschema_rs.Draft202012Validator(SCHEMA).is_valid
    gives = jsonschema_rs.Draft202012Validator(ANSWER).is_valid
    tools = {"echo_function": ("function:echo_function", echo_function, fits, gives)}
    allowed = {("function:echo_function", "bench"): "allow"}
    chance: list[str] = []
    linking, turn, limiting, counting = (threading.Lock() for _ in range(4))
    link, waiting = bytes(32), list[bytes]()
    number = written = synced = running = begun = 0

    def call() -> object:
        nonlocal link, waiting, number, written, synced, running, begun
        arguments = dict(ARGUMENTS)
        text = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
        if not chance:
            chance.extend(os.urandom(6).hex() for _ in range(256))
        name = time.time_ns().to_bytes(8, "big").hex() + chance.pop()
        asked = _call(id=name, tool="echo_function", arguments=arguments, caller="bench", context={})
        key, function, fits, gives = tools[asked.tool]
        if has_credential("\n".join((asked.tool, asked.caller, *arguments))):
            return None
        begin["ts"], begin["call"], begin["arguments"] = time.time(), name, [*arguments]
        begin["arguments_digest"] = sha256(text).hexdigest()
        body = orjson.dumps(begin)
        with linking:
            number += 1
            frame, link = chain.framed(link, number, body)
            waiting.append(frame)
            mine = number
        while synced < mine:  # the first one syncs for all that wait
            with turn:
                if synced >= mine:
                    break
                with linking:
                    taken, waiting, last = waiting, [], number
                data = taken[0] if len(taken) == 1 else b"".join(taken)
                if os.write(file, data) != len(data):
                    return None
                os.fdatasync(file)
                written = synced = last
        with counting:
            begun += 1
        if not fits(arguments) or allowed.get((key, asked.caller)) != "allow":
            return None
        with limiting:
            if running >= 32:
                return None
            running += 1
        try:
            began = time.monotonic()
            value = function(**arguments)
            took_ms = (time.monotonic() - began) * 1000
        finally:
            with limiting:
                running -= 1
        answer = orjson.dumps(value)
        given = orjson.loads(answer)  # nothing of the host's own objects goes on
        content = answer.decode("utf-8")
        if not gives(given) or not content.isascii() or len(answer) > 1 << 16:
            return None
        run = _run(argv=("echo",), cwd="/", duration_ms=took_ms, note="in process")
        result = _result(
            call_id=name,
            key=key,
            blocks=(_text(text=content),),
            data=given,
            spent=_spent(duration_ms=took_ms, output_bytes=len(content)),
            isolation=("in-process",),
            runs=(run,),
        )
        start: dict[str, Any] = {
            "argv": run.argv,
            "cwd": "/",
            "env": [],
            "exit": None,
            "ms": took_ms,
            "note": run.note,
        }
        end = {"what": "end", "ts": time.time(), "call": name, "key": key, "ok": True, "ms": took_ms}
        end |= {"output_bytes": len(content), "truncated": False, "layers": result.isolation, "run": start}
        body = orjson.dumps(end)
        with linking:
            number += 1
            frame, link = chain.framed(link, number, body)
            waiting.append(frame)
            mine = number
        while written < mine:
            with turn:
                if written >= mine:
                    break
                with linking:
                    taken, waiting, last = waiting, [], number
                data = taken[0] if len(taken) == 1 else b"".join(taken)
                if os.write(file, data) != len(data):
                    return None
                written = last
        with counting:
            begun -= 1
        return result

    return call


@toolcrib.tool(effect="read")
def echo_function(value: int) -> dict[str, dict[str, int]]:
    """Echo."""
    return {"echo": {"value": value}}


def _handler(tool_name: str, tool_input: dict[str, Any], **_context: object) -> dict[str, Any]:
    return {"success": True, "result": {"echo": tool_input}}


def cold_python(*argv: str) -> Call:
    return cold(sys.executable, *argv)


def cold_node(folder: Path) -> Call:
    node = find_node(os.environ)
    if node is None:
        raise SystemExit("there is no Node")
    return cold(node, str(folder / "script" / ".ai" / "tools" / "bench" / "echo.mjs"), "--alone")


def cold(*argv: str) -> Call:
    """An interpreter for each call, neither isolated nor recorded."""
    given = json.dumps(ARGUMENTS).encode("ascii")
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}

    def call() -> object:
        ended = subprocess.run(argv, input=given, capture_output=True, env=env, check=True)
        return json.loads(ended.stdout)

    return call


def bare_python(folder: Path) -> Call:
    """The least that Python needs to start the same tool: neither checked, isolated nor recorded."""
    program = str(folder / "process" / "tools" / "bin" / "echo")
    given = json.dumps(ARGUMENTS, separators=(",", ":")).encode("ascii")
    env = {"PATH": "/usr/bin:/bin"}

    def call() -> object:
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        read_errors, stderr = os.pipe()
        places = [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate((stdin, stdout, stderr))]
        process = os.posix_spawn(program, [program], env, file_actions=places)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        os.write(write, given)
        os.close(write)
        answer = _read_all(read)
        _read_all(read_errors)
        os.close(read)
        os.close(read_errors)
        _, status = os.waitpid(process, 0)
        return orjson.loads(answer) if status == 0 else None

    return call


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)


FACTS = CallFacts(door="python", key="manifest:process/echo", format="manifest", catalog="0" * 64)


_call, _result, _run, _spent, _text = (
    ToolCall, ToolResult, Run, Spent, TextBlock,
)  # fmt: skip


def asked(number: int) -> ToolCall:
    return _call(id=f"{number:028x}", tool="echo", arguments=dict(ARGUMENTS), caller="bench")


def audit(state: Path) -> Call:
    """The durable begin of a call, and nothing else."""
    journal = open_audit(str(state))
    numbers = itertools.count()

    def call() -> object:
        return EXPECTED if journal.begin(asked(next(numbers)), FACTS) else None

    return call


def together(state: Path) -> Prepared:
    """The durable begins of calls that arrive at once and have no thread each, as in a server."""
    journal = open_audit(str(state))
    numbers = itertools.count()

    def prepare(count: int) -> Callable[[], None]:
        groups = [[(asked(next(numbers)), FACTS) for _ in range(GROUP)] for _ in range(count // GROUP)]

        def calls() -> None:
            for group in groups:
                if not journal.begin_all(group):
                    raise SystemExit("a begin was not recorded")

        return calls

    return prepare


def begin_bytes(state: Path) -> bytes:
    """A record of a call's beginning as it lies on the disk."""
    audit(state)()
    for segment in reading.segment_files(str(state / "journal")):
        data, _ = reading.contents(segment)
        for record in chain.scan(segment.name, data).records:
            if b'"begin"' in record.body[:40]:
                return data[record.offset : record.end]
    raise SystemExit("no begin was recorded")


def yardstick(state: Path) -> int:
    """A file that is only appended to."""
    return os.open(state / "yardstick", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def sync(state: Path) -> Call:
    """The yardstick of a durable record: its bytes, appended and synced, and nothing else."""
    frame, file = begin_bytes(state), yardstick(state)

    def call() -> object:
        os.write(file, frame)
        os.fdatasync(file)
        return EXPECTED

    return call


def grouped_sync(state: Path) -> Prepared:
    frames, file = begin_bytes(state) * GROUP, yardstick(state)

    def calls(count: int) -> None:
        for _ in range(count // GROUP):
            os.write(file, frames)
            os.fdatasync(file)

    return lambda count: partial(calls, count)


def least(state: Path) -> Prepared:
    """The least that Python needs for such records: the same bytes for each begin, with nothing around."""
    body, file = orjson.loads(begin_bytes(state)[chain.HEAD_BYTES :]), yardstick(state)
    numbers, link = itertools.count(1), bytes(32)

    def frame(number: int) -> bytes:
        nonlocal link
        arguments = orjson.dumps(ARGUMENTS, option=orjson.OPT_SORT_KEYS)
        body["ts"], body["call"] = time.time(), f"{number:028x}"
        body["arguments_digest"] = sha256(arguments).hexdigest()
        record, link = chain.framed(link, number, orjson.dumps(body))
        return record

    def calls(count: int) -> None:
        for _ in range(count // GROUP):
            os.write(file, b"".join([frame(next(numbers)) for _ in range(GROUP)]))
            os.fdatasync(file)

    return lambda count: partial(calls, count)


# -- serving ------------------------------------------------------------------------------------------------


def is_right(answer: object) -> bool:
    if isinstance(answer, ToolResult):
        data = answer.data
        return (
            answer.ok
            and (data["result"] if isinstance(data, dict) and "result" in data else data) == EXPECTED
        )
    return answer == EXPECTED


def measured(call: Call, count: int, threads: int) -> tuple[int, int, int]:
    left = itertools.count()
    times: list[int] = []
    wrong: list[object] = []

    def work() -> None:
        clock = time.perf_counter_ns
        mine = []
        while next(left) < count:
            began = clock()
            answer = call()
            mine.append(clock() - began)
            if not is_right(answer):
                wrong.append(answer)
        times.extend(mine)

    began = time.perf_counter_ns()
    if threads == 1:
        work()
    else:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    wall = time.perf_counter_ns() - began
    if wrong:
        print("wrong:", wrong[0], file=sys.stderr)
    return int(statistics.median(times)), wall, len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("--ballast", type=int, default=0, help="bytes of memory that this host holds besides")
    given = parser.parse_args()
    folder, state = given.folder, given.state
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    ballast = bytearray(given.ballast)
    ballast[::4096] = b"x" * len(ballast[::4096])
    kinds: dict[str, Callable[[], Call]] = {
        "stated": lambda: ours(folder, state, source="process", stated=True),
        "default": lambda: ours(folder, state, source="process"),
        "signed": lambda: ours(folder, state, source="signed"),
        "vet": lambda: ours(folder, state, source="signed", vets=True),
        "unsigned": lambda: ours(folder, state, source="unsigned"),
        "plain": lambda: ours(folder, state, source="plain"),
        "ordinary": lambda: ours(folder, state, source="ordinary"),
        "inside": lambda: ours(folder, state, source="inside", inside=True),
        "function": lambda: function(state),
        "script": lambda: ours(folder, state, source="script"),
        "cold-script": lambda: cold_node(folder),
        "cold-plain": lambda: cold_python("-S", "-I", str(folder / "plain" / "handlers" / "plain.py")),
        "cold-ordinary": lambda: cold_python(str(folder / "ordinary" / "handlers" / "ordinary.py")),
        "python": lambda: bare_python(folder),
        "flat": lambda: one_function(state),
        "audit": lambda: audit(state),
        "sync": lambda: sync(state),
    }
    groups: dict[str, Callable[[Path], Prepared]] = {
        "grouped": grouped_sync,
        "together": together,
        "least": least,
    }
    grouped = groups[given.kind](state) if given.kind in groups else None
    call = kinds[given.kind]() if grouped is None else None
    for line in sys.stdin:
        count, threads = map(int, line.split())
        if grouped is not None:
            made = grouped(count)
            began = time.perf_counter_ns()
            made()
            wall = time.perf_counter_ns() - began
            found = (wall // count, wall, 0)
        else:
            assert call is not None
            found = measured(call, count, threads)
        print(*found, flush=True)


if __name__ == "__main__":
    main()
