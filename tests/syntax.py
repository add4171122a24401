"""Python files as trees, for tests that look at code."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def tree(path: Path) -> ast.Module:
    """The syntax tree of a file.

    No garbage is collected meanwhile: before 3.11.8 and 3.12.2 a finaliser that prints a traceback, as
    asyncio does for a task whose exception nobody fetched, makes the parser raise SystemError.
    """
    text = path.read_text(encoding="utf-8")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()
