"""The extension modules: C for the host's own Python, built where there is a compiler and Python's headers.

Each has a twin in Python, which stands in where it cannot be loaded and says what both do. Nothing here knows
what that is, and nothing here builds one: ``hatch_build.py`` does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Final

PEN: Final = "toolwright.journal._pen"

MEANINGS: Final = {
    PEN: "recording costs calls less, most of all many at once",
}
"""All of them, each with what it is good for."""

FREE_THREADED: Final = "a free-threaded Python cannot use it"
_ABI_FLAGS: Final = getattr(sys, "abiflags", "")


def load(name: str, abi_flags: str = _ABI_FLAGS) -> ModuleType | None:
    """The module; None where its twin has to do."""
    try:
        return _loaded(name, abi_flags)
    except ImportError:
        return None


def why_not(name: str, abi_flags: str = _ABI_FLAGS) -> str:
    """Why it cannot be loaded, for people; empty: it can."""
    try:
        _loaded(name, abi_flags)
    except ModuleNotFoundError:
        return "not built"
    except ImportError as error:
        return str(error)
    return ""


def _loaded(name: str, abi_flags: str) -> ModuleType:
    if "t" in abi_flags:  # it takes them for its own, and crashes: its objects are laid out in another way
        raise ImportError(FREE_THREADED)
    return import_module(name)
