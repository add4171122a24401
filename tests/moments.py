"""Moments inside a function at which other threads may do something: so that a race is lost every time."""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

Trace = Callable[[FrameType, str, Any], Any]


def before_storing(function: Callable[..., object], name: str, do: Callable[[], object]) -> Trace:
    """For ``sys.settrace`` in the thread that runs the function: ``do`` is called each time when the function
    is about to store the attribute, with a value that it knows already."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    stores = {
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname == "STORE_ATTR" and instruction.argval == name
    }
    assert stores, f"{code.co_name} stores no {name}"

    sys._getframe().f_trace_opcodes = True  # 3.12 asks only when tracing begins whether any frame wants that

    def trace(frame: FrameType, event: str, _given: Any) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in stores:
            do()
        return trace

    return trace


_OPENING: dict[tuple[str, CodeType], Callable[[], object]] = {}


def _opens(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and _OPENING:
        do = _OPENING.pop((given[0], sys._getframe(1).f_code), None)
        if do is not None:
            do()


@cache
def _hear() -> None:
    """Once: nobody can take a hook out again."""
    sys.addaudithook(_opens)


@contextmanager
def before_opening(path: Path, by: Callable[..., object], do: Callable[[], object]) -> Iterator[None]:
    """``do`` is called once, when the function is about to open the path, which it must."""
    assert isinstance(by, FunctionType)
    _hear()
    _OPENING[str(path), by.__code__] = do
    try:
        yield
    finally:
        assert _OPENING.pop((str(path), by.__code__), None) is None, "it was not opened"


def turn(path: Path, target: Path) -> None:
    """Put a link in the place of whatever is there, all at once."""
    draft = path.with_name(f".{path.name}.draft")
    draft.symlink_to(target)
    os.replace(draft, path)
