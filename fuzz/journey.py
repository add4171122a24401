"""The way of a declaration through the house, and what must hold at every step.

``alone`` takes one declaration as values only: strict reading, the format, the schemas, linking, selection,
every dialect. ``together`` takes several as files, through the loader and its cache. Both say what is wrong,
and let through what is raised. Giants go the same ways with a limit of time for each step.
"""

from __future__ import annotations

import gc
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TypeVar

from declarations import Declaration
from msgspec.structs import replace

from toolcrib import formats, jsontext, schema
from toolcrib.catalog import cache, loading
from toolcrib.catalog.sources import Source
from toolcrib.dialects import DIALECTS
from toolcrib.model import (
    Compiled,
    DeclareOptions,
    Document,
    ProbeOutcome,
    Problem,
    Role,
    Rules,
    Tool,
    ToolMode,
    Unit,
)
from toolcrib.selection import rules as selection

RULES = (
    Rules(),
    Rules(
        manifest_strict=True,
        read_on_demand=True,
        context_checks=("fits",),
        executors=("host",),
        skills_disabled=("off",),
        windows=True,
    ),
)
MESSAGE = "Find my tasks of 3 files and write them to /tmp, please: 你好"
ARGUMENTS: tuple[dict[str, object], ...] = ({}, {"query": 5, "path": None, "x": ["a"] * 3})
_CODE = re.compile(r"[a-z]+(?:\.[a-z0-9-]+)+")
_TOOLS_MAX = 20
_OFFERED_MAX = 2000
"""Far more than any provider takes in one request."""

Answer = TypeVar("Answer")


@dataclass
class Steps:
    """The time of each step, and what was found wrong."""

    spent_s: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    tools: int = 0
    problems: int = 0
    digest: str = ""

    def take(self, name: str, step: Callable[[], Answer]) -> Answer:
        start = time.process_time()
        try:
            return step()
        finally:
            self.spent_s[name] = self.spent_s.get(name, 0.0) + time.process_time() - start


def document(declaration: Declaration, folder: str = "/project") -> Document:
    """What the loader would hand to the formats."""
    path = declaration.path
    content: bytes | None = declaration.files[path]
    neighbours = {PurePath(name).name: text for name, text in declaration.files.items() if name != path}
    if path.endswith("/SKILL.md"):
        neighbours["SKILL.md"], content = declaration.files[path], None
    is_json = declaration.format == "executable" or path.endswith(".json")
    item = path.partition(".ai/tools/")[2] if declaration.format == "rye" else ""
    return Document(
        path=f"{folder}/{path}",
        content=content,
        parsed=jsontext.read(content) if is_json and content is not None else None,
        place=declaration.format if declaration.format in ("skill", "rye", "executable") else None,
        item=item,
        scope=item.rpartition("/")[0] if item else PurePath(f"{folder}/{path}").parent.name,
        neighbours=neighbours,
        handlers=(f"{folder}/handlers",),
        among_groups=declaration.format == "capability",
        probe=ProbeOutcome(exit_status=0) if declaration.format == "executable" else None,
        project=folder,
    )


def gives_tools(declaration: Declaration) -> bool:
    return bool(formats.compile_document(document(declaration), RULES[0])[1].tools)


def alone(declaration: Declaration, neighbour: Declaration, rules: Rules, *, offers: bool = True) -> Steps:
    """One declaration, from its bytes to what providers are sent (``offers``)."""
    steps = Steps()

    def compiled() -> tuple[str | None, Compiled]:
        name, found = formats.compile_document(document(declaration), rules)
        return name, loading._sound(found)

    name, found = steps.take("compile", compiled)
    steps.digest = _digest(found)
    if _digest(compiled()[1]) != steps.digest:
        steps.wrong.append("compiling twice gave two answers")
    steps.wrong += _wrong_problems(found.problems)
    tools: Sequence[Tool] = found.tools
    if name is not None:
        unit = _unit(declaration, found)
        linked = steps.take("link", lambda: formats.link(name, [unit], rules))
        tools = linked.tools
        other, beside = formats.compile_document(document(neighbour, "/other"), rules)
        if other == name:
            units = [replace(_unit(neighbour, beside), path=f"/other/{neighbour.path}"), unit]
            both = steps.take("link with a neighbour", lambda: formats.link(name, units, rules))
            steps.wrong += _wrong_problems(both.problems)
        steps.wrong += _wrong_problems(linked.problems)
    for tool in tools[:20]:
        if cache.decode(Tool, cache.encode(tool)) != tool:
            steps.wrong.append(f"{tool.name}: the cache gives back another tool")
    steps.tools, steps.problems = len(tools), len(found.problems)
    if offers:
        _offered(tools, steps)
    return steps


def _digest(compiled: Compiled) -> str:
    whole = replace(compiled, tools=compiled.tools[:_TOOLS_MAX])  # what many tools share is written with each
    return hashlib.blake2b(cache.encode(whole), digest_size=8).hexdigest()


def _unit(declaration: Declaration, compiled: Compiled) -> Unit:
    given = document(declaration)
    return Unit(path=given.path, item=given.item, compiled=compiled)


def _wrong_problems(problems: Sequence[Problem]) -> Iterator[str]:
    for problem in problems:
        if not (problem.message.strip() and problem.path and _CODE.fullmatch(problem.code)):
            yield f"a problem says nothing: {problem!r}"
        jsontext.compact([problem.message, problem.hint, problem.path, problem.pointer, problem.name])


def _offered(tools: Sequence[Tool], steps: Steps) -> None:
    """Selection, arguments and dialects, for tools that came through."""
    steps.take("select", lambda: selection.select(tools, MESSAGE, context={"project_id": "p"}, checks={}))
    steps.take("search", lambda: selection.search(tools, 'find OR "a b" AND NOT f*'))
    offered = [tool for tool in tools if tool.role is Role.TOOL][:_OFFERED_MAX]
    for tool in offered[:10]:
        for arguments in ARGUMENTS if tool.input_schema is not None else ():
            steps.take(
                "check arguments", lambda given=arguments, of=tool: schema.complaints(of.input_schema, given)
            )
    for dialect in DIALECTS.values():
        for mode in (ToolMode.PLAIN, ToolMode.STRICT):
            options = DeclareOptions(mode=mode, examples=True)
            declared = steps.take(
                f"declare {dialect.NAME} {mode}", lambda to=dialect, how=options: to.declare(offered, how)
            )
            jsontext.compact([declared.payload, [[loss.pointer, loss.what] for loss in declared.losses]])
            accounted = {*declared.names.keys.values(), *(left.tool for left in declared.left_out)}
            if accounted != {tool.key for tool in offered}:
                steps.wrong.append(f"{dialect.NAME} {mode}: a tool was neither declared nor left out")


# -- as files -----------------------------------------------------------------------------------------------


def together(declarations: Sequence[Declaration], folder: Path, rules: Rules) -> Steps:
    """Several declarations, through the loader and its cache: cold, then warm."""
    steps = Steps()
    shutil.rmtree(folder, ignore_errors=True)
    printed = _put(declarations, folder)
    machine = loading.Machine(
        prober=lambda paths: [(printed[path], ProbeOutcome(exit_status=0)) for path in paths],
        which=lambda name: name,
    )
    wanted = [Source(path=str(folder / part), format=format, probe=True) for format, part in _PARTS.items()]
    kept = cache.Cache(str(folder / "cache"))
    answers: list[list[bytes]] = []
    for state in ("cold", "warm"):
        report = steps.take(f"load {state}", lambda: loading.load(wanted, rules, machine, keep=kept))
        tools = steps.take(f"list {state}", lambda of=report: list(of.catalog.tools))
        problems = steps.take(f"problems {state}", lambda of=report: of.problems)
        steps.take("write the cache", report.keep)
        steps.wrong += _wrong_problems(problems)
        steps.tools, steps.problems = len(tools), len(problems)
        answers.append(
            [cache.encode(tools[:_TOOLS_MAX]), cache.encode(problems), cache.encode(report.catalog.skills)]
        )
        for tool in tools[:_TOOLS_MAX]:
            if report.catalog.find(tool.key).key != tool.key:
                steps.wrong.append(f"{tool.key}: not found by its key")
        del report
        gc.collect()  # what is held belongs to the load that comes next
    if answers[0] != answers[1]:
        steps.wrong.append("a warm load gave another answer than a cold one")
    _offered(tools, steps)
    shutil.rmtree(folder, ignore_errors=True)
    return steps


_PARTS = {
    "skill": "skills", None: "manifests", "capability": "groups", "rye": "project", "executable": "programs",
}  # fmt: skip


def _put(declarations: Sequence[Declaration], folder: Path) -> dict[str, bytes]:
    """Write the files; what programs would print stays in memory, by their path."""
    printed: dict[str, bytes] = {}
    for part in _PARTS.values():
        (folder / part).mkdir(parents=True)
    (folder / "project" / ".ai" / "tools").mkdir(parents=True)
    for number, declaration in enumerate(declarations):
        for name, content in declaration.files.items():
            match declaration.format:
                case "skill":
                    path = folder / "skills" / f"{number}-{name}"
                case "manifest":
                    path = folder / "manifests" / f"{number}.json"
                case "capability":
                    path = folder / "groups" / PurePath(name).name
                case "rye":
                    path = folder / "project" / name
                case _:
                    path = folder / "programs" / f"{number}-{PurePath(name).name}"
                    printed[str(path)] = content
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o755)
            except (OSError, ValueError):
                continue  # a file in the place of a folder
    return printed


def giant(declaration: Declaration, folder: Path) -> Steps:
    """A declaration at the size limit, both ways."""
    steps = together([declaration], folder, RULES[0])
    by_value = alone(declaration, declaration, RULES[1], offers=False)
    steps.spent_s |= by_value.spent_s
    steps.wrong += by_value.wrong
    return steps
