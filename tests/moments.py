"""Moments inside a function at which other threads may do something: so that a race is lost every time."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
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
