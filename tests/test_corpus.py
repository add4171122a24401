"""Real public declarations give the outcomes that were worked out for them without this program.

The corpus lies beside the checkout and is read from there, never copied. Where an outcome differs because a
requirement says otherwise, tests/corpus_differences.toml lists the file and quotes the requirement.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared
from toolcrib.catalog import loading
from toolcrib.catalog.sources import Source
from toolcrib.model import Always, CallPython, OnKeywords, Problem, Role, Rules, Severity, Tool
from toolcrib.sandbox import discovery

DIFFERENCES = Path(__file__).parent / "corpus_differences.toml"
REQUIREMENTS = Path(__file__).parent / "requirements"
DIFFERENCES_MAX = 10
ENTRIES = {"skill": 130, "manifest": 9, "capability": 7, "rye": 104, "executable": 11}

Entry = dict[str, Any]


def load(path: Path, format: str | None = None, rules: Rules | None = None) -> loading.LoadReport:
    """Load one place on a machine that has every program."""
    return loading.load(
        [Source(path=str(path), format=format, probe=True)],
        rules or Rules(),
        loading.Machine(
            prober=lambda paths: discovery.probe_all(paths, env={"PATH": "/usr/bin:/bin"}),
            which=lambda name: name,
        ),
    )


def names(report: loading.LoadReport) -> list[str]:
    return [tool.name for tool in report.catalog.tools]


def errors(problems: Sequence[Problem]) -> list[str]:
    return [problem.message for problem in problems if problem.severity is Severity.ERROR]


def difference(what: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{what}: {found!r} instead of {expected!r}"


def untold(problems: Sequence[Problem], lint: dict[str, list[str]]) -> Iterator[str]:
    """The remarks that are missing: each is ``SUBJECT`` or ``SUBJECT: DETAIL``, one problem for each."""
    for title, remarks in lint.items():
        code = title.partition(" ")[0]
        for subject, count in Counter(remark.partition(": ")[0] for remark in remarks).items():
            found = [
                problem
                for problem in problems
                if problem.code == code
                and (
                    problem.name == subject
                    or subject in (problem.pointer or ())
                    or f'"{subject}"' in problem.message
                )
            ]
            if len(found) < count:
                yield f"{len(found)} of {count} {code} for {subject}"


# -- one entry of each format --------------------------------------------------------------------------------


def skill(folder: Path, entry: Entry, tmp_path: Path) -> Iterator[str]:
    expected = entry["expected"]
    report = load((folder / entry["file"]).parent, "skill")
    yield from difference("tools", names(report), expected["tools"])
    yield from difference("skills", [found.name for found in report.catalog.skills], [expected["skill_name"]])
    for tool, reasons in expected.get("tools_dropped", {}).items():
        codes = {reason.partition(":")[0] for reason in reasons}
        own = {problem.code for problem in report.problems if problem.name == tool and _is_error(problem)}
        if not own & codes:
            yield f"{tool}: dropped for {sorted(own)} instead of {sorted(codes)}"
    yield from untold(report.problems, expected.get("lint", {}))


def manifest(folder: Path, entry: Entry, tmp_path: Path) -> Iterator[str]:
    expected = entry["expected"]
    path = (folder / entry["file"]).parent
    report = load(path, "manifest")
    yield from difference("tools", names(report), expected["tools"])
    yield from difference("problems", errors(report.problems), expected["problem_texts"])
    missing = [problem for problem in report.problems if problem.code == "manifest.command.missing-file"]
    yield from difference("programs that are not there", len(missing), expected["tools_accepted"])
    strict = load(path, "manifest", Rules(manifest_strict=True))
    yield from difference("tools in strict mode", len(names(strict)), expected["strict_mode_tools_accepted"])


def capability(folder: Path, entry: Entry, tmp_path: Path) -> Iterator[str]:
    expected = entry["expected"]
    if expected.get("not_a_group_file"):
        content = json.loads((folder / entry["file"]).read_text(encoding="utf-8"))
        count = expected.get("lists") or expected["keyword_sets"]
        yield from difference("what the file holds", len(content), count)
        yield from difference("tools", names(load(folder / entry["file"])), [])
        return
    report = load(folder / entry["file"])
    tools = list(report.catalog.tools)
    yield from difference("tools", names(report), expected["tools"])
    yield from difference("errors", errors(report.problems), [])
    yield from difference("groups", {tool.scope for tool in tools}, {expected["group"]})
    rules = {tool.selection for tool in tools}
    strategies: dict[object, str] = {Always: "always", OnKeywords: "keyword"}
    yield from difference("strategy", {strategies.get(type(rule)) for rule in rules}, {expected["strategy"]})
    yield from difference(
        "keywords", {len(getattr(rule, "keywords", ())) for rule in rules}, {expected["keywords"]}
    )
    executors = {tool.invocation.executor for tool in tools if isinstance(tool.invocation, CallPython)}
    yield from difference("executors", executors, set(expected["executors"]))
    context = {key for tool in tools for key in tool.needs.context}
    yield from difference("context", context, set(expected["requires_context"]))


def executable(folder: Path, entry: Entry, tmp_path: Path) -> Iterator[str]:
    expected = entry["expected"]
    printed = folder / entry["file"]
    name = printed.name.partition(".")[0].removesuffix("_tool").replace("_", "-")
    program = tmp_path / printed.stem / f"{name}-tool"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat '{printed}'\n", encoding="utf-8")
    program.chmod(0o755)
    report = load(program.parent, "executable")
    yield from difference("tools", names(report), expected.get("tools", []))
    if expected.get("not_a_schema_output"):
        content = json.loads(printed.read_text(encoding="utf-8"))
        yield from difference("members", list(content), expected["members"])
        return
    yield from difference("errors", errors(report.problems), [])
    # Nothing else is said of a keyword than what is expected.
    soft = [problem for problem in report.problems if problem.code == "executable.params.unsupported-soft"]
    lint = expected.get("lint", {}).get("executable.params.unsupported-soft", [])
    found = [f"{(problem.pointer or ())[-2]}: {(problem.pointer or ())[-1]}" for problem in soft]
    yield from difference("unsupported keywords", found, lint)


def rye(folder: Path, entry: Entry, tmp_path: Path) -> Iterator[str]:
    expected = entry["expected"]
    project, marker, _ = entry["file"].partition("/.ai/tools/")
    path = str(folder / entry["file"])
    if not marker:  # keys, bundles and configuration lie beside the tools
        yield from difference("tools", expected["tools_accepted"], 0)
        return
    report = rye_project(folder / project)
    tools: list[Tool] = [tool for tool in report.catalog.tools if tool.origin.path == path]
    problems = [problem for problem in report.problems if problem.path == path]
    if path.endswith(
        ("/package.json", "/package-lock.json")
    ):  # rye.file.not-a-tool, decided after the corpus
        yield from difference("records and problems of an npm file", (tools, problems), ([], []))
        return
    if expected.get("reading") == "literal":  # rye.type.support-item, decided after the corpus
        yield from difference("support items", [tool.role for tool in tools], [Role.SUPPORT])
        yield from difference("errors", errors(problems), [])
    else:
        counted = [tool.name for tool in tools if tool.role is not Role.SUPPORT]
        yield from difference("tools", counted, [expected["item_id"]] * expected["tools_accepted"])
        if expected["tools_accepted"]:
            yield from difference("errors", errors(problems), [])
        for text in expected.get("problems", []):
            if not any(text in (found.message, f"{found.code}: {found.message}") for found in problems):
                yield f"no problem {text!r}, but {[found.message for found in problems]}"
    yield from untold(problems, expected.get("lint", {}))


@cache
def rye_project(path: Path) -> loading.LoadReport:
    return load(path, "rye")


def _is_error(problem: Problem) -> bool:
    return problem.severity is Severity.ERROR


COMPARED: dict[str, Callable[[Path, Entry, Path], Iterator[str]]] = {
    "skill": skill,
    "manifest": manifest,
    "capability": capability,
    "rye": rye,
    "executable": executable,
}


# -- the tests -----------------------------------------------------------------------------------------------


def listed() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8")).get("difference", [])
    return found


@pytest.mark.parametrize("format", COMPARED)
def test_every_real_file_gives_its_outcome_or_is_a_listed_difference(format: str, tmp_path: Path) -> None:
    folder = shared("corpus") / format
    entries: list[Entry] = json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))["files"]
    assert len(entries) == ENTRIES[format]
    allowed = {entry["file"] for entry in listed()}
    different = {}
    for entry in entries:
        if found := list(COMPARED[format](folder, entry, tmp_path)):
            different[f"{format}/{entry['file']}"] = found
    unlisted = {file: found for file, found in different.items() if file not in allowed}
    assert unlisted == {}
    assert {file for file in allowed if file.startswith(f"{format}/")} == set(
        different
    )  # none is listed in vain


def test_a_listed_difference_quotes_the_requirement_that_says_so() -> None:
    texts = {
        requirement["id"]: requirement
        for path in sorted(REQUIREMENTS.glob("*.toml"))
        for requirement in tomllib.loads(path.read_text(encoding="utf-8"))["requirement"]
    }
    assert len(listed()) <= DIFFERENCES_MAX
    for entry in listed():
        requirement = texts[entry["requirement"]]
        assert any(entry["quote"] in requirement.get(key, "") for key in ("must", "example", "conflict")), (
            entry
        )
