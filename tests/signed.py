"""A project of signed rye tools, its user and a key of theirs, for tests that really verify and run them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import toolcrib
from tests.levels import sandbox_of
from toolcrib.app import Crib
from toolcrib.config import Environment, resolve
from toolcrib.journal.reading import entries
from toolcrib.jsontext import JsonObject
from toolcrib.model import Level
from toolcrib.trust import keys, signing

FUNCTION = "rye/core/runtimes/python/function"
SCRIPT = "rye/core/runtimes/python/script"
NODE = "rye/core/runtimes/node/node"
BASH = "rye/core/runtimes/bash/bash"
EXECUTE = "rye/core/primitives/execute"

TIME = "2026-04-09T00:59:52Z"
PYTHON = """__version__ = "1.0.0"
__tool_type__ = "{kind}"
__executor_id__ = "{executor}"
__category__ = "{category}"
__tool_description__ = "Says which bytes ran"
CONFIG_SCHEMA = {{"type": "object", "properties": {{}}}}
"""
SHELL = """# __version__: "1.0.0"
# __tool_type__: script
# __executor_id__: {executor}
# __category__: {category}
# __tool_description__: Says which bytes ran
"""


def python(body: str, category: str = "a", executor: str = FUNCTION, kind: str = "python") -> str:
    return PYTHON.format(category=category, executor=executor, kind=kind) + body


def javascript(body: str, category: str = "a") -> str:
    names = {
        "version": "1.0.0",
        "tool_type": "javascript",
        "executor_id": NODE,
        "category": category,
        "tool_description": "Says which bytes ran",
    }
    return "".join(f"export const __{name}__ = {value!r};\n" for name, value in names.items()) + body


def answer(text: str, category: str = "a", **more: str) -> str:
    """A Python tool that answers with one text."""
    body = f"def execute(params, project_path):\n    return {{'success': True, 'said': {text!r}}}\n"
    return python(body, category, **more)


@dataclass
class Place:
    """A project, a user's home with a key, and a state folder."""

    root: Path
    key: keys.SigningKey = field(init=False)

    def __post_init__(self) -> None:
        self.project, self.home, self.state = (self.root / name for name in ("project", "home", "state"))
        (self.project / ".ai" / "tools").mkdir(parents=True)
        self.home.mkdir()
        self.key = self.new_key("own")
        self.trust(self.key)

    @property
    def tools(self) -> Path:
        return self.project / ".ai" / "tools"

    def new_key(self, name: str) -> keys.SigningKey:
        folder = self.root / f"key-{name}"
        keys.generate(str(folder))
        return keys.load_signing_key(str(folder))

    def trust(self, key: keys.SigningKey) -> Path:
        text = keys.read_key(key.pem.encode())
        assert not isinstance(text, str), text
        return Path(keys.trust(str(self.home), text))

    def write(
        self,
        name: str,
        text: str,
        *,
        key: keys.SigningKey | None = None,
        signed: bool = True,
        time: str = TIME,
    ) -> Path:
        """One file below ``.ai``, signed by our key unless it says otherwise."""
        path = self.project / ".ai" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.signed(name, text, key, time) if signed else text.encode())
        return path

    def signed(self, name: str, text: str, key: keys.SigningKey | None = None, time: str = TIME) -> bytes:
        key = key or self.key
        suffix = "." + name.rpartition(".")[2]
        kind, _, below = name.partition("/")
        item = f"{kind.removesuffix('s')}:{below.removesuffix(suffix)}"
        content, _ = signing.sign(
            text.encode(),
            suffix,
            item,
            time=time,
            key_id=key.id,
            signature_of=key.sign,
        )
        return content

    @contextmanager
    def open(
        self,
        *,
        level: Level | None = None,
        env: Mapping[str, str] | None = None,
        in_process: bool = False,
        **config: Any,
    ) -> Iterator[Crib]:
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", **(env or {})}
        surroundings = replace(Environment.read(variables), state=str(self.state))
        found = replace(resolve(surroundings, cwd=str(self.project), sources=[str(self.project)]), **config)
        if level is None:
            with toolcrib.open(found, environment=surroundings, in_process=in_process) as opened:
                yield opened
            return
        with (
            sandbox_of(level) as sandbox,
            toolcrib.open(found, environment=surroundings, sandbox=sandbox, in_process=in_process) as opened,
        ):
            yield opened

    def records(self) -> list[JsonObject]:
        """What the journal says."""
        return [entry.body for entry in entries(str(self.state / "journal"))]
