"""The codes of problems, as the source writes them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import toolcrib
from tests.syntax import tree
from toolcrib import config
from toolcrib.formats import FORMATS

FAMILIES: Final = (
    "source", "catalog", "hygiene", "schema", "config", "python", "lock", "trust", *FORMATS,
)  # fmt: skip
CODE: Final = re.compile(rf"(?:{'|'.join(FAMILIES)})\.[a-z][a-z0-9-]*(?:\.[a-z][a-z0-9-]*)*")
NO_CODES: Final = frozenset({"config.toml", "config.server"})
"""A file name and a place in a YAML file."""


def codes() -> set[str]:
    """Return every text in the source that looks like a problem code."""
    keys = {f"{name}.{key}" for name, keys in config._SECTIONS.items() for key in keys}
    found = set()
    for path in Path(toolcrib.__file__).parent.rglob("*.py"):
        if "templates" not in path.parts:
            for node in ast.walk(tree(path)):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and CODE.fullmatch(node.value)
                ):
                    found.add(node.value)
    return found - keys - NO_CODES
