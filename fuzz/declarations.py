"""Declarations as an author has them, and where they come from: the examples, the conformance cases and,
where they lie beside the checkout, the corpus of real files and the examples of the documents.

Nothing here changes or judges a declaration: ``mutations`` and ``journey`` lie below.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
SEED_BYTES_MAX = 64 * 1024
SKILL_FILES = ("tools.json", "SKILL.md", "allowlist.json", "execution.json")
SUFFIXES = {
    ".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".js": "javascript",
    ".mjs": "javascript", ".cjs": "javascript", ".ts": "typescript", ".sh": "bash", ".toml": "toml",
}  # fmt: skip


@dataclass(frozen=True)
class Declaration:
    """Files by their path; the first one is the declaration itself, the others lie beside it."""

    format: str
    files: Mapping[str, bytes]

    @property
    def path(self) -> str:
        return next(iter(self.files))

    @property
    def kind(self) -> str:
        """What the summary counts it as."""
        if self.format == "rye":
            return f"rye {SUFFIXES[Path(self.path).suffix]}"
        if self.format == "skill" and len(self.files) > 2:
            return "skill in three files"
        return "SKILL.md" if self.path.endswith("SKILL.md") else self.format

    def to_json(self) -> str:
        files = {name: base64.b64encode(content).decode("ascii") for name, content in self.files.items()}
        return json.dumps({"format": self.format, "files": files})

    @staticmethod
    def from_json(text: str) -> Declaration:
        data = json.loads(text)
        files = {name: base64.b64decode(content) for name, content in data["files"].items()}
        return Declaration(data["format"], files)


def seeds() -> dict[str, list[Declaration]]:
    """Every declaration there is, by kind, in a stable order."""
    found: dict[str, list[Declaration]] = {}
    for declaration in (*_cases(), *_folders(), *_documents()):
        if all(len(content) <= SEED_BYTES_MAX for content in declaration.files.values()):
            found.setdefault(declaration.kind, []).append(declaration)
    return found


def _cases() -> Iterator[Declaration]:
    for path in sorted((ROOT / "tests" / "conformance" / "formats").rglob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            files = {
                name: text.encode("utf-8") if isinstance(text, str) else bytes(text)
                for name, text in case.get("files", {}).items()
            }
            yield from _in(files, path.parent.name)


def _folders() -> Iterator[Declaration]:
    folders = [(ROOT / "examples", None), *((SHARED / "corpus" / name, name) for name in _FORMATS)]
    for folder, format in folders:
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "INDEX.json"
        }
        yield from _in(files, format)


_FORMATS = ("skill", "manifest", "capability", "rye", "executable")
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_RYE_SUFFIX = {"python": ".py", "yaml": ".yaml", "typescript": ".ts", "javascript": ".js", "bash": ".sh"}


def _documents() -> Iterator[Declaration]:
    for format in _FORMATS:
        path = SHARED / "specs" / f"{format}.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for number, (language, block) in enumerate(_BLOCK.findall(text)):
            if format == "rye":
                if language in _RYE_SUFFIX:
                    name = f".ai/tools/documented/block-{number}{_RYE_SUFFIX[language]}"
                    yield Declaration("rye", {name: block.encode("utf-8")})
            elif language == "json":
                yield from _in({_PATHS[format]: block.encode("utf-8")}, format)


_PATHS = {
    "skill": "documented/tools.json",
    "manifest": "tools.json",
    "capability": "documented_tools.json",
    "executable": "bin/documented-tool",
}


def _in(files: Mapping[str, bytes], format: str | None) -> Iterator[Declaration]:
    """The declarations among the files of one case or folder."""
    for name, content in files.items():
        folder, _, base = name.rpartition("/")
        if ".ai/tools/" in name:
            if Path(name).suffix in SUFFIXES:
                yield Declaration("rye", {f".ai/tools/{name.partition('.ai/tools/')[2]}": content})
        elif base in ("tools.json", "SKILL.md"):
            beside = {
                other: files[f"{folder}/{other}" if folder else other]
                for other in SKILL_FILES
                if other != base and (f"{folder}/{other}" if folder else other) in files
            }
            if base == "SKILL.md" and "tools.json" in beside:
                continue
            if format in ("skill", None) and ("SKILL.md" in beside or base == "SKILL.md"):
                here = Path(folder).name or "skill"
                named = {f"{here}/{base}": content}
                yield Declaration(
                    "skill", named | {f"{here}/{other}": text for other, text in beside.items()}
                )
            else:
                yield Declaration("manifest", {"tools.json": content})
        elif base.endswith("-tool") or (format == "executable" and base.endswith(".json")):
            start, end = (
                content.find(b"{"),
                content.rfind(b"}"),
            )  # what a program prints, or a text that has it
            tool = base if base.endswith("-tool") else base.partition(".")[0].replace("_", "-") + "-tool"
            yield Declaration("executable", {f"bin/{tool}": content[start : end + 1] or b"{}"})
        elif base.endswith(".json") and format in ("capability", "manifest", None):
            yield Declaration(format or "capability", {base: content})
