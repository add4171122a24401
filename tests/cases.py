"""Runs the cases of tests/conformance: files as an author has them, and everything a load says about them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct

from toolcrib import config, jsontext
from toolcrib.catalog import loading, sources
from toolcrib.model import Problem, Role, Schema
from toolcrib.sandbox import discovery

FOLDER = Path(__file__).parent / "conformance" / "formats"
_KEYS = {
    "title", "requirements", "battery", "programs", "from", "config", "tools", "support", "skills",
    "problems", "files", "modes", "expect", "keys", "checks", "executors",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One case, as its file says it."""

    origin: str
    data: Mapping[str, Any]

    @property
    def requirements(self) -> Sequence[str]:
        named: list[str] = self.data["requirements"]
        return named


def cases() -> Iterator[Case]:
    for path in sorted(FOLDER.rglob("*.toml")):
        for data in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            unknown = set(data) - _KEYS
            assert not unknown, f"{path}: unknown keys {unknown} in case {data.get('title')!r}"
            yield Case(f"{path.parent.name}/{path.stem}: {data['title']}", data)


def run(case: Case, folder: Path) -> loading.LoadReport:
    data = case.data
    for name, text in data.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8") if isinstance(text, str) else bytes(text))
    for name, mode in data.get("modes", {}).items():
        (folder / name).chmod(int(mode, 8))
    settings = config.Config()
    if "config" in data:
        (folder / "toolcrib.toml").write_text(data["config"], encoding="utf-8")
        settings = config.read_file(str(folder / "toolcrib.toml"), trusted=True)
    wanted = settings.sources
    if "from" in data or not wanted:
        wanted = tuple(config.named_source(text, str(folder)) for text in data.get("from", ["."]))
    extra = [sources.Source(path=path, format="skill") for path in settings.extra_dirs]
    installed = data.get("programs")
    return loading.load(
        [*wanted, *extra],
        settings.rules(context_checks=data.get("checks", ()), executors=data.get("executors", ())),
        loading.Machine(
            prober=lambda paths: discovery.probe_all(paths, env={"PATH": "/usr/bin:/bin"}),
            which=lambda name: name if installed is None or name in installed else None,
        ),
    )


def check(case: Case, folder: Path) -> None:
    report = run(case, folder)
    data = case.data
    records = list(report.catalog.tools)
    found = [line(problem, folder) for problem in report.problems]
    expected = list(data.get("problems", []))
    agree = len(found) == len(expected) and all(map(_matches, found, expected))
    listed = "\n    "
    assert agree, (
        f"problems differ\n  found:\n    {listed.join(found)}\n  expected:\n    {listed.join(expected)}"
    )
    assert [record.name for record in records if record.role is not Role.SUPPORT] == data["tools"]
    if "support" in data:
        assert [record.name for record in records if record.role is Role.SUPPORT] == data["support"]
    if "keys" in data:
        assert [record.key for record in records] == data["keys"]
    if "skills" in data:
        assert [skill.name for skill in report.catalog.skills] == data["skills"]
    for name, parts in data.get("expect", {}).items():
        record = next(record for record in records if name in (record.name, record.key))
        for path, value in parts.items():
            actual = _plain(_reach(record, path), folder)
            assert actual == value, f"{name}: {path} is {actual!r}, expected {value!r}"


def line(problem: Problem, folder: Path) -> str:
    path = Path(problem.path)
    where = str(path.relative_to(folder)) if path.is_relative_to(folder) else problem.path
    if problem.pointer is not None:
        where += "#" + jsontext.pointer_text(problem.pointer)
    elif problem.line is not None:
        where += f":{problem.line}"
    message = problem.message.replace(f"{folder}/", "")
    return f"{problem.severity.value} {problem.code} {where} {message}"


def _matches(found: str, expected: str) -> bool:
    if expected.endswith("..."):
        return found.startswith(expected[:-3])
    return found == expected


def _reach(value: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(value, Schema):
            value = value.document
        value = (
            value[int(step)]
            if step.isdigit() and isinstance(value, (tuple, list))
            else (value[step] if isinstance(value, Mapping) else getattr(value, step))
        )
    return value


def _plain(value: Any, folder: Path) -> Any:
    """A compiled value as TOML can write it: null stands as the text "null"."""
    if value is None:
        return "null"
    if isinstance(value, Schema):
        return value.document
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return re.sub(re.escape(f"{folder}/"), "", value)
    if isinstance(value, bytes):
        return jsontext.loads_own(value)
    if isinstance(value, Struct):
        plain = {name: _plain(getattr(value, name), folder) for name in value.__struct_fields__}
        return {"is": type(value).__name__, **plain}
    if isinstance(value, (tuple, list, frozenset)):
        return [_plain(item, folder) for item in value]
    return value
