"""Functions that the host registered, called in the host's own process.

They are the host's own code: nothing holds them, and nothing can kill them. A sync function runs in the
thread that calls; it cannot be stopped, so one that comes back after its time limit is reported as timed out,
though it has done its work. An async function is really cancelled at its limit. Both can look at
``Context.cancelled``.

Arguments were checked by the schema before; here they become the annotated types. What a function raises is
an ending: the model gets its type and message, the host's log the traceback.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec.structs import replace

from toolcrib.bound import BoundTool
from toolcrib.errors import Failed
from toolcrib.functions import PROGRESS, Context, Function, results
from toolcrib.functions.shapes import Mismatch
from toolcrib.model import CallFunction, End, Ending, Permit, Run, Tool, ToolCall
from toolcrib.runtimes import _loops
from toolcrib.sandbox import Cancel

Own: TypeAlias = Callable[[ToolCall], Ending]
_LOG: Final = logging.getLogger("toolcrib.functions")
_LAYERS: Final = ("in-process",)
_RETURNED: Final = End.RETURNED  # a member of an enumeration costs more to look up
_REASON_CHARS_MAX: Final = 20_000
_PLAIN: Final = frozenset({str, int, bool})
_INT_BITS_MAX: Final = 63
"""What every reader of JSON can hold; longer ones may not even have a text."""


class FunctionTools:
    """The runtime of ``CallFunction``. Any number of threads may call."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        cwd: str,
        *,
        own: Callable[[str], Own | None] = lambda _: None,
    ) -> None:
        """``own`` knows those of the house itself, which get the whole call."""
        self._functions = functions
        self._own = own
        self._cwd = cwd
        self._loops = _loops.Loops()

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        invocation = tool.invocation
        assert isinstance(invocation, CallFunction)
        function = self._functions.get(invocation.name)
        if function is None and (own := self._own(invocation.name)) is not None:
            return self._run_own(own, tool, call, permit)
        if function is None:
            return Ending(
                end=End.UNAVAILABLE,
                reason=f"the host registered no function {invocation.name}",
                hint="hand it to toolcrib.open(tools=[…])",
            )
        limit_s = permit.limits.timeout_s
        began = time.monotonic()
        told: dict[str, object]
        notes: tuple[str, ...] = ()
        try:
            context = partial(_context, tool, call, cancel, began + limit_s)
            value = function.run(call.arguments or {}, context)
            is_async = _loops.is_awaitable(value)
            if is_async:
                value = self._loops.finish(value, limit_s - (time.monotonic() - began), cancel)
            took_s = time.monotonic() - began
            if took_s <= limit_s:
                return _given(value, permit, self._runs(function.where, took_s))
            told = {"end": End.TIMED_OUT, "hint": _loops.late_hint(took_s, is_async=is_async)}
        except Mismatch as mismatch:
            took_s = time.monotonic() - began
            told = {"end": End.REFUSED, "reason": str(mismatch)}
        except KeyboardInterrupt:
            raise
        except _loops.Late as late:
            took_s = time.monotonic() - began
            told = {"end": End.TIMED_OUT, "hint": late.hint}
            notes = (late.note,) if late.note else ()
        except _loops.GivenUp as given_up:
            took_s = time.monotonic() - began
            told = {"end": End.CANCELLED}
            notes = (given_up.note,) if given_up.note else ()
        except _loops.Unfit as unfit:
            took_s = time.monotonic() - began
            told = {"end": End.RAISED, "reason": str(unfit), "hint": unfit.hint}
        except BaseException as error:  # noqa: BLE001 - whatever else it raises, leaving included, is an ending
            took_s = time.monotonic() - began
            told = _raised(error, function)
        runs = self._runs(function.where, took_s)
        return Ending(layers=_LAYERS, runs=runs, notes=notes, **told)  # type: ignore[arg-type]

    def _run_own(self, own: Own, tool: Tool, call: ToolCall, permit: Permit) -> Ending:
        began = time.monotonic()
        ending = own(call)
        if ending.end is End.RETURNED:
            ending = _given(ending.value, permit, ())
        return replace(ending, layers=_LAYERS, runs=self._runs(tool.key, time.monotonic() - began))

    def _runs(self, what: str, took_s: float) -> tuple[Run, ...]:
        return (Run(argv=(what,), cwd=self._cwd, duration_ms=took_s * 1e3, note="in process"),)

    def close(self) -> None:
        self._loops.close()


def _context(tool: Tool, call: ToolCall, cancel: Cancel, deadline: float) -> Context:
    report = PROGRESS.get()
    heard = {} if report is None else {"report": report}
    return Context(
        call_id=call.id,
        tool=tool.key,
        caller=call.caller,
        conversation=call.conversation,
        context=MappingProxyType(dict(call.context)),
        deadline=deadline,
        is_stopped=lambda: cancel.is_set,
        **heard,
    )


def _given(value: object, permit: Permit, runs: tuple[Run, ...]) -> Ending:
    """What a function returned, as an ending. A copy: nothing of the host's own objects goes on."""
    if value is None:
        return Ending(end=_RETURNED, blocks=(), layers=_LAYERS, runs=runs)
    kind = type(value)
    if kind in _PLAIN and not (isinstance(value, int) and value.bit_length() > _INT_BITS_MAX):
        most = permit.limits.stdout_bytes_max
        if isinstance(value, str) and len(value) * 4 > most and (size := _size(value)) > most:
            return _too_large(size, runs)  # no character has more than four bytes
        return Ending(end=_RETURNED, value=value, kind_of_value=kind.__name__, layers=_LAYERS, runs=runs)
    most = permit.limits.stdout_bytes_max
    try:
        if kind is not dict:  # which is data, whatever it holds
            if isinstance(value, (bytes, bytearray, memoryview)):
                reason = "it returned bytes, which no model can read"
                hint = "return a text, or content such as toolcrib.ImageBlock(data=BASE64, media_type=…)"
                return Ending(end=End.RAISED, reason=reason, hint=hint, layers=_LAYERS, runs=runs)
            blocks = results.as_blocks(value)
            if blocks:
                size = results.bytes_of(blocks)
                if size > most:
                    return _too_large(size, runs)
                return Ending(
                    end=_RETURNED, blocks=blocks, kind_of_value=kind.__name__, layers=_LAYERS, runs=runs
                )
        data, size = results.copied(value)
    except results.Unwritable as unwritable:
        hint = "return texts, numbers, lists, mappings, dataclasses, or content blocks"
        return Ending(end=End.RAISED, reason=str(unwritable), hint=hint, layers=_LAYERS, runs=runs)
    if size > most:
        return _too_large(size, runs)
    return Ending(end=_RETURNED, value=data, kind_of_value=kind.__name__, layers=_LAYERS, runs=runs)


def _too_large(size: int, runs: tuple[Run, ...]) -> Ending:
    return Ending(end=End.TOO_LARGE, stdout_bytes=size, layers=_LAYERS, runs=runs)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _cut(text: str) -> str:
    """A text of the function's own, short enough and without halves of characters."""
    return str(text)[:_REASON_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def _raised(error: BaseException, function: Function) -> dict[str, object]:
    if isinstance(error, Failed):
        return {"end": End.RAISED, "reason": _cut(error.message), "hint": error.hint and _cut(error.hint)}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("toolcrib."):
        trace = trace.tb_next  # the host's log need not show our own frames
    _LOG.error("%s raised", function.where, exc_info=(type(error), error, trace))
    try:
        reason = str(error)[:_REASON_CHARS_MAX]
    except Exception:  # noqa: BLE001 - an exception whose text raises has none
        reason = ""
    return {"end": End.RAISED, "reason": reason, "kind_of_value": type(error).__name__}
