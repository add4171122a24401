"""What a runtime returned becomes a result, by the tool's ``Reply``: each format's exact texts stand here.

``reply`` speaks of a run, ``refusal`` of a call that never ran, ``dry_run`` of one that was only checked. The
text for the model is in ``blocks`` (one text), the value for programs in ``data``, the reason in ``error``.
What a tool prints is hostile: JSON is read strictly, bytes that are no text are replaced, and characters that
nobody sees are written out. Nothing here raises because of a tool, runs anything or knows a format by name;
terminals are protected by the doors that write to them.
"""

from __future__ import annotations

import json
import re
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.errors import Kind, did_you_mean
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    Block,
    CallPython,
    EmbeddedResource,
    End,
    Ending,
    Permit,
    Profile,
    Programs,
    PythonStyle,
    Reply,
    Spent,
    TextBlock,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
)
from toolcrib.schema import complaints

# A member of an enumeration costs more to look up than a name of this module: for what every call asks.
_RETURNED: Final = End.RETURNED
_TOO_LARGE: Final = End.TOO_LARGE

LINE_ERROR_BYTES_MAX: Final = 1000
"""The error of a JSON line; the manifest format says so."""
TOLD_BYTES_MAX: Final = 2000
"""How much of the end of stdout or stderr an envelope repeats when its program failed."""
NAME_CHARS_MAX: Final = 200
"""How much of an unknown tool's name is repeated."""

_KINDS: Final = {
    End.RAISED: Kind.FAILED,
    End.UNREADABLE: Kind.BAD_OUTPUT,
    End.NOT_STARTED: Kind.UNAVAILABLE,
    End.UNAVAILABLE: Kind.UNAVAILABLE,
    End.DENIED: Kind.DENIED,
    End.REFUSED: Kind.INVALID_ARGUMENTS,
    End.TIMED_OUT: Kind.TIMED_OUT,
    End.TOO_LARGE: Kind.TOO_LARGE,
    End.OVER_LIMIT: Kind.FAILED,
    End.CANCELLED: Kind.CANCELLED,
    End.LOST: Kind.UNKNOWN_OUTCOME,
}
"""Ends that say by themselves how the call went; the others depend on what came back."""


def kind_of(end: End) -> Kind:
    """The kind of error of a run that went wrong, where nobody looks at what it gave."""
    return _KINDS.get(end, Kind.FAILED)


_CODES: Final = {
    Kind.UNKNOWN_TOOL: "TOOL_NOT_FOUND",
    Kind.INVALID_ARGUMENTS: "INVALID_PARAMS",
    Kind.TIMED_OUT: "TOOL_TIMEOUT",
    Kind.FAILED: "TOOL_CRASHED",
    Kind.BAD_OUTPUT: "INVALID_OUTPUT",
    Kind.TOO_LARGE: "INVALID_OUTPUT",
}
"""The envelope's codes; the other kinds go by their own names in upper case."""

_UNKNOWN: Final = {
    Reply.PLAIN_TEXT: "unknown tool: {name}",
    Reply.JSON_LINE: "unknown tool: {name}",
    Reply.ENVELOPE: "Tool not found in registry",
    Reply.SUCCESS_DICT: "Unknown tool: {name}",
    Reply.ITEM: "Tool not found: {name}",
    Reply.BLOCKS: "Unknown tool: {name}",
}

_TIMED_OUT: Final = {
    Reply.PLAIN_TEXT: "timed out after {seconds}s",
    Reply.JSON_LINE: "tool timed out",
    Reply.ENVELOPE: "Tool '{name}' timed out after {seconds}s",
    Reply.SUCCESS_DICT: "timed out after {seconds}s",
    Reply.ITEM: "Command timed out after {seconds} seconds",
    Reply.BLOCKS: "timed out after {seconds}s",
}

_NOT_STARTED: Final = {
    Reply.PLAIN_TEXT: "exec failed: {reason}",
    Reply.JSON_LINE: "start: {reason}",
    Reply.ENVELOPE: "Tool could not be started: {reason}",
    Reply.SUCCESS_DICT: "could not be started: {reason}",
    Reply.ITEM: "could not be started: {reason}",
    Reply.BLOCKS: "could not be started: {reason}",
}

_START_HINTS: Final = {
    "Exec format error": "begin a script with the line that names its interpreter: #!/usr/bin/env python3",
    "Permission denied": "make its program executable: chmod +x",
    "No such file or directory": "its program, or the interpreter that its first line names, is not there",
}
"""In the system's words why a program did not start, and what its author or the host may have forgotten."""
_LIMIT_HINTS: Final = {
    "Too many open files": "call fewer tools at once, or raise the limit of open files (ulimit -n)",
    "Resource temporarily unavailable": "raise the limit of processes (ulimit -u)",
}
"""The same of what the host ran out of, at whichever step of the start."""

_SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
    31: "SIGSYS",
}  # fmt: skip


# -- the three doors of this room ---------------------------------------------------------------------------


def reply(tool: Tool, call: ToolCall, ending: Ending, *, permit: Permit) -> ToolResult:
    """The result of a run, in the words of the tool's format."""
    hygiene = _Hygiene()
    said = _said(tool, ending, permit, hygiene)
    content = _content(said.form, hygiene)
    blocks: tuple[Block, ...]
    if ending.blocks is None:
        blocks = (TextBlock(text=content),)
    else:
        blocks = _with_blocks(tool, ending, content, said, hygiene)
    error = said.error
    if error is not None and error.hint is None and (hint := _why_refused(tool, ending, permit, error)):
        error = ToolError(kind=error.kind, message=error.message, hint=hint, details=error.details)
    return ToolResult(
        call_id=call.id,
        key=tool.key,
        blocks=blocks,
        data=said.data,
        error=error,
        spent=_spent(ending, content),
        isolation=_isolation(ending.layers, permit),
        notes=ending.notes + said.notes + hygiene.notes(),
        runs=ending.runs,
    )


def refusal(call: ToolCall, error: ToolError, *, tool: Tool | None, default: Reply) -> ToolResult:
    """The result of a call that never ran. ``default`` speaks where there is no tool to speak for itself."""
    kind_of_reply = tool.reply if tool is not None else default
    hygiene = _Hygiene()
    asked = call.tool if len(call.tool) <= NAME_CHARS_MAX else call.tool[: NAME_CHARS_MAX - 1] + "…"
    asked = hygiene.visible(asked)
    message = error.message
    if error.kind is Kind.UNKNOWN_TOOL:
        message = _UNKNOWN[kind_of_reply].format(name=asked)
    message = hygiene.visible(message)
    told = ToolError(kind=error.kind, message=message, hint=error.hint, details=error.details)
    name, chain = (tool.name, tool.chain) if tool is not None else (asked, ())
    content = _content(_failure_form(kind_of_reply, told, name, chain), hygiene)
    return ToolResult(
        call_id=call.id,
        key=tool.key if tool is not None else "",
        blocks=(TextBlock(text=content),),
        error=told,
    )


def dry_run(tool: Tool, call: ToolCall, permit: Permit) -> ToolResult:
    """The result of a call that was found, checked and decided, and then not run."""
    passed: JsonObject = {"status": "validation_passed"}
    form: JsonObject | str
    match tool.reply:
        case Reply.ITEM:
            pairs = max(len(tool.chain) - 1, 0)
            form = passed = {**passed, "chain": list(tool.chain), "validated_pairs": pairs}
        case Reply.JSON_LINE:
            form = passed
        case Reply.ENVELOPE:
            form = {"tool_success": True, "result": passed}
        case Reply.SUCCESS_DICT:
            form = {"success": True, "result": passed}
        case Reply.PLAIN_TEXT | Reply.BLOCKS:
            form = "validation passed; nothing was run"
    hygiene = _Hygiene()
    content = _content(form, hygiene)
    return ToolResult(
        call_id=call.id,
        key=tool.key,
        blocks=(TextBlock(text=content),),
        data=passed,
        isolation=_isolation((), permit),
        notes=hygiene.notes(),
    )


def visible(text: str) -> str:
    """A text for a model, with unseen characters written as escapes."""
    return _Hygiene().visible(text)


# -- what came back -----------------------------------------------------------------------------------------


class _Said(Struct, frozen=True):
    """What a run said, in its format's form."""

    form: JsonObject | str
    """A mapping becomes one line of JSON."""
    data: JsonValue = None
    error: ToolError | None = None
    notes: tuple[str, ...] = ()


_saying: Final = _Said


def _said(tool: Tool, ending: Ending, permit: Permit, hygiene: _Hygiene) -> _Said:
    kind = _KINDS.get(ending.end)
    if kind is not None:
        return _cut_short(tool, ending, permit, kind, hygiene)
    if ending.blocks is not None:
        if tool.reply is Reply.BLOCKS:
            return _structured(tool, ending, hygiene)
        if ending.value is None:
            ending = replace(ending, value=_joined(ending.blocks))
    return _SAYS[tool.reply](tool, ending, hygiene)


def _failed(
    tool: Tool,
    message: str,
    hygiene: _Hygiene,
    *,
    kind: Kind = Kind.FAILED,
    hint: str | None = None,
    details: JsonValue = None,
    more: JsonObject | None = None,
    data: JsonValue = None,
    notes: tuple[str, ...] = (),
) -> _Said:
    """A failure in the format's form; ``more`` is what its form has room for besides."""
    told = ToolError(kind=kind, message=hygiene.visible(message), hint=hint, details=details)
    form = _failure_form(tool.reply, told, tool.name, tool.chain, more)
    return _Said(form, data, told, notes)


def _failure_form(
    kind_of_reply: Reply,
    error: ToolError,
    name: str,
    chain: tuple[str, ...],
    more: JsonObject | None = None,
) -> JsonObject | str:
    match kind_of_reply:
        case Reply.PLAIN_TEXT | Reply.BLOCKS:
            return f"error: {error.message}"
        case Reply.JSON_LINE:
            return {"error": _cut_bytes(error.message, LINE_ERROR_BYTES_MAX)}
        case Reply.ENVELOPE:
            code = _CODES.get(error.kind, error.kind.value.upper())
            return {"tool_success": False, "error": error.message, "error_code": code, **(more or {})}
        case Reply.SUCCESS_DICT:
            return {"success": False, "error": error.message}
        case Reply.ITEM:
            form: JsonObject = {
                "status": "error",
                "error": error.message,
                "item_id": name,
                "chain": list(chain),
            }
            return {**form, "data": more} if more else form


def _cut_short(tool: Tool, ending: Ending, permit: Permit, kind: Kind, hygiene: _Hygiene) -> _Said:
    """A run that did not come to an end of its own, or never began."""
    more: JsonObject | None = None
    reason, hint = ending.reason, ending.hint
    match ending.end:
        case End.TIMED_OUT:
            seconds = _seconds(permit.limits.timeout_s)
            message = _TIMED_OUT[tool.reply].format(name=tool.name, seconds=seconds)
            if tool.reply is Reply.ITEM:
                more = {
                    "stdout": hygiene.text(ending.stdout, is_cut=True),
                    "stderr": hygiene.text(ending.stderr),
                    "return_code": -1,
                }
        case End.NOT_STARTED:
            message = _NOT_STARTED[tool.reply].format(reason=reason)
            hint = hint or _START_HINTS.get(reason) or _LIMIT_HINTS.get(reason.rpartition(": ")[2])
        case End.TOO_LARGE:
            message = _too_large(tool.reply, ending, permit)
        case End.OVER_LIMIT:
            message = f"stopped: {reason}" if reason else "stopped: it took more than it may"
        case End.LOST:
            message = "contact was lost after the start, so whether it took effect is unknown"
            message = f"{message}: {reason}" if reason else message
        case End.CANCELLED:
            message = reason or "cancelled"
        case End.RAISED if tool.reply is not Reply.ITEM and ending.kind_of_value:
            message = f"{ending.kind_of_value}: {reason}" if reason else ending.kind_of_value
        case End.RAISED:
            message = reason or ending.kind_of_value or "it failed without a word"
        case _:
            message = reason or kind.value.replace("_", " ")
    data = more if more else None
    details: JsonValue = None
    if ending.near:
        hint, details = did_you_mean(ending.near), {"did_you_mean": list(ending.near)}
    return _failed(tool, message, hygiene, kind=kind, hint=hint, more=more, data=data, details=details)


def _too_large(kind_of_reply: Reply, ending: Ending, permit: Permit) -> str:
    limits = permit.limits
    stream, limit = "output", limits.stdout_bytes_max
    if ending.stdout_bytes <= limit and ending.stderr_bytes > limits.stderr_bytes_max:
        stream, limit = "stderr", limits.stderr_bytes_max
    whose = "Tool " if kind_of_reply is Reply.ENVELOPE else "its "
    return f"{whose}{stream} is longer than {limit} bytes, so it was stopped"


def _seconds(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}".rstrip("0")


def _status(ending: Ending) -> str:
    """How a process ended, in words."""
    if ending.signal is not None:
        name = _SIGNALS.get(ending.signal)
        return f"signal: {ending.signal} ({name})" if name is not None else f"signal: {ending.signal}"
    return f"exit status: {ending.exit_status}" if ending.exit_status is not None else "no exit status"


def _code(ending: Ending) -> int:
    """The exit status, 128 + signal for death by a signal, -1 where there is none."""
    if ending.exit_status is not None:
        return ending.exit_status
    return 128 + ending.signal if ending.signal is not None else -1


def _is_good(ending: Ending) -> bool:
    return ending.exit_status == 0 and ending.signal is None


def _details(ending: Ending) -> JsonObject:
    found: JsonObject = {"exit_status": _code(ending)}
    return found if ending.signal is None else {**found, "signal": ending.signal}


# -- plain text ---------------------------------------------------------------------------------------------


def _plain_text(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    if ending.end is _RETURNED:
        if isinstance(ending.value, str):
            return _Said(ending.value)
        return _Said(hygiene.json(ending.value), ending.value)
    stdout = hygiene.text(ending.stdout)
    if _is_good(ending):
        return _Said(stdout)
    message = f"exit {_status(ending)}: {stdout}\n{hygiene.text(ending.stderr)}"
    return _failed(tool, message, hygiene, details=_details(ending))


# -- blocks -------------------------------------------------------------------------------------------------


def _structured(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    """Content that came as blocks, if its structured form fits the schema that was promised for it."""
    assert ending.blocks is not None
    if tool.output_schema is not None:
        found = complaints(tool.output_schema, ending.value)
        if ending.value is None or found:
            what = "; ".join(map(str, found[:5])) if ending.value is not None else "there is none"
            message = f"the structured result does not fit its schema: {what}"
            return _failed(tool, message, hygiene, kind=Kind.BAD_OUTPUT, data=ending.value)
    return _Said(_joined(ending.blocks), ending.value)


def _value(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    """What a function returned, if it is what its author promised; a program promises nothing."""
    schema = tool.output_schema if ending.end is _RETURNED else None
    if schema is not None and (found := complaints(schema, ending.value)):
        message = "the result does not fit its schema: " + "; ".join(map(str, found[:5]))
        return _failed(tool, message, hygiene, kind=Kind.BAD_OUTPUT)
    return _plain_text(tool, ending, hygiene)


def _joined(blocks: tuple[Block, ...]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _with_blocks(
    tool: Tool, ending: Ending, content: str, said: _Said, hygiene: _Hygiene
) -> tuple[Block, ...]:
    """The blocks as they came, with their texts made visible. Where the format has a form of its own, or
    something failed, that form is the text, and what it does not hold follows it."""
    blocks = ending.blocks or ()
    shown = tuple(_visible(block, hygiene) for block in blocks)
    if tool.reply is Reply.BLOCKS and said.error is None:
        return shown
    # The form holds the structured value, where there is one, and otherwise the texts.
    is_beside = ending.end is End.RETURNED and ending.value is not None
    left = (
        block
        for block, came in zip(shown, blocks, strict=True)
        if not isinstance(came, TextBlock) or (is_beside and not _repeats(came.text, ending.value))
    )
    return (TextBlock(text=content), *left)


def _repeats(text: str, value: JsonValue) -> bool:
    """Whether a text only says once more, as JSON, what a value says. Many servers add such a text."""
    if text[:1] not in ("{", "["):
        return False
    read, defect = _strict(text.encode("utf-8", "replace"))
    return defect is None and read == value


def _visible(block: Block, hygiene: _Hygiene) -> Block:
    if isinstance(block, (TextBlock, EmbeddedResource)) and block.text is not None:
        text = hygiene.visible(block.text)
        return block if text == block.text else replace(block, text=text)
    return block


# -- one line of JSON ---------------------------------------------------------------------------------------

_OTHER_BREAKS: Final = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_BLANK_LINES: Final = re.compile(r"\A(?:[^\S\n]*\n)+")
_JSON_SPACE: Final = b" \t\r\n"


def _json_line(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    if ending.end is End.RETURNED:
        return _Said(hygiene.json(ending.value), ending.value)
    if not _is_good(ending):
        return _failed(tool, _line_error(ending, hygiene), hygiene, details=_details(ending))
    stdout = ending.stdout.strip()
    if not stdout:
        return _Said("{}", {})
    value, defect = _strict(stdout)
    if defect is None:
        if b"\n" in stdout or b"\r" in stdout:
            return _Said(hygiene.json(value), value)
        return _Said(hygiene.json_text(stdout.decode("utf-8")), value)
    text = _BLANK_LINES.sub("", hygiene.text(ending.stdout)).rstrip()
    text = text if "\n" in text else text.strip()  # the first line's indentation counts beside the others
    return _Said(text or "{}", notes=(f"the output is not JSON, so it is given as text ({defect})",))


def _line_error(ending: Ending, hygiene: _Hygiene) -> str:
    stderr = ending.stderr.strip()
    value, defect = _strict(stderr)
    if defect is None and isinstance(value, dict) and isinstance(value.get("error"), str):
        return str(value["error"])
    text = hygiene.text(stderr).strip()
    if text:
        return text
    return f"exit status {_code(ending)}" if ending.signal is None else _status(ending)


# -- the envelope -------------------------------------------------------------------------------------------


def _envelope(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    if ending.end is End.RETURNED:
        return _Said({"tool_success": True, "result": ending.value}, ending.value)
    if not _is_good(ending):
        stderr = hygiene.text(ending.stderr[-TOLD_BYTES_MAX:], is_tail=True).strip()
        if ending.signal is not None:
            message = f"Tool '{tool.name}' crashed with exit code {_code(ending)}"
        else:
            message = f"Tool failed: {stderr}" if stderr else "Tool exited with non-zero status"
        stdout = hygiene.text(ending.stdout[-TOLD_BYTES_MAX:], is_tail=True)
        more: JsonObject = {"exit_code": _code(ending), "stdout": stdout, "stderr": stderr}
        return _failed(tool, message, hygiene, details=_details(ending), more=more)
    stdout_bytes = ending.stdout.strip(_JSON_SPACE)
    if not stdout_bytes:
        return _failed(tool, "Tool produced no output", hygiene, kind=Kind.BAD_OUTPUT)
    value, defect = _strict(stdout_bytes)
    if defect is None:
        return _Said({"tool_success": True, "result": value}, value)
    # Where it began as JSON, the author is told what is wrong with it.
    began = stdout_bytes[:1] in (b"{", b"[")
    return _failed(
        tool,
        "Tool returned invalid JSON",
        hygiene,
        kind=Kind.BAD_OUTPUT,
        hint=f"its output is no JSON that everybody reads alike: {defect}",
        more={"details": hygiene.visible(defect)} if began else None,
    )


# -- a mapping with success ---------------------------------------------------------------------------------


def _success_dict(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    if ending.end is not _RETURNED:
        message = f"the handler ended without a result ({_status(ending)})"
        return _failed(tool, message, hygiene, details=_details(ending))
    value = ending.value
    if type(value) is dict and len(value) == 2 and value.get("success") is True and "result" in value:
        return _Said({"success": True, "result": value["result"]}, value["result"])  # most often
    wrong = _wrong_success(value, ending.kind_of_value)
    if wrong is None and value["success"] and "result" not in value:
        wrong = "got success without result"
    if wrong is None and not value["success"] and "error" not in value:
        wrong = "got a failure without error"
    if wrong is not None:
        message = f"the handler must return a mapping with success and result, or error ({wrong})"
        return _failed(tool, message, hygiene, kind=Kind.BAD_OUTPUT)
    main = "result" if value["success"] else "error"
    notes: tuple[str, ...] = ()
    if len(value) > 2:
        ignored = [key for key in value if key not in ("success", main)]
        listed = hygiene.visible(", ".join(ignored[:10]))
        notes = (f"what the handler returned besides was left out: {_cut_bytes(listed, 200)}",)
    if main == "result":
        return _Said({"success": True, "result": value["result"]}, value["result"], notes=notes)
    return _failed(tool, _words(value["error"], hygiene), hygiene, notes=notes)


def _wrong_success(value: JsonValue, kind_of_value: str) -> str | None:
    """What is wrong with a mapping that should have a boolean ``success``."""
    if not isinstance(value, dict):
        return f"got {kind_of_value or type(value).__name__}"
    if "success" not in value:
        return f"got {kind_of_value or 'dict'} without success"
    if not isinstance(value["success"], bool):
        return f"got success: {type(value['success']).__name__}"
    return None


def _words(value: JsonValue, hygiene: _Hygiene) -> str:
    """An error that a tool gave, as text."""
    text = value if isinstance(value, str) else "" if value is None else hygiene.json(value)
    return text or "it failed without saying why"


# -- an item and its chain ----------------------------------------------------------------------------------


def _item(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    if ending.end is End.RETURNED:
        return _item_value(tool, ending, hygiene)
    streams: JsonObject = {
        "stdout": hygiene.text(ending.stdout),
        "stderr": hygiene.text(ending.stderr),
        "return_code": _code(ending),
    }
    if _is_function(tool):
        message = f"execute() ended without a result ({_status(ending)})"
        return _failed(tool, message, hygiene, details=_details(ending), more=streams, data=streams)
    value, defect = _strict(ending.stdout.strip(_JSON_SPACE))
    if defect is not None or not isinstance(value, dict):
        if _is_good(ending):
            return _fitting(tool, ending, streams, hygiene)
        message = streams["stderr"].strip() or _status(ending).replace(":", "", 1)
        return _failed(tool, message, hygiene, details=_details(ending), more=streams, data=streams)
    success = value.get("success", True)
    if not isinstance(success, bool):
        return _no_boolean(tool, f"got success: {type(success).__name__}", value, hygiene)
    if _is_good(ending) and success:
        return _fitting(tool, ending, value, hygiene)
    told = value.get("error") or streams["stderr"].strip()
    if _is_good(ending):
        return _failed_item(tool, _words(told, hygiene), value, hygiene)
    told = told or _status(ending).replace(":", "", 1)
    return _failed_item(tool, _words(told, hygiene), value, hygiene, details=_details(ending))


def _item_value(tool: Tool, ending: Ending, hygiene: _Hygiene) -> _Said:
    value = ending.value
    if _is_function(tool):
        wrong = _wrong_success(value, ending.kind_of_value)
        if wrong is not None:
            return _no_boolean(tool, wrong, value, hygiene)
    if isinstance(value, dict) and value.get("success", True) is False:
        return _failed_item(tool, _words(value.get("error"), hygiene), value, hygiene)
    return _fitting(tool, ending, value, hygiene)


def _is_function(tool: Tool) -> bool:
    return isinstance(tool.invocation, CallPython) and tool.invocation.style is PythonStyle.FUNCTION


def _no_boolean(tool: Tool, wrong: str, value: JsonValue, hygiene: _Hygiene) -> _Said:
    message = f"execute() must return a dict with success: bool ({wrong})"
    if not _is_function(tool):
        message = f"the output must have success: bool, or none ({wrong})"
    more = value if isinstance(value, dict) else None
    return _failed(tool, message, hygiene, kind=Kind.BAD_OUTPUT, more=more, data=more)


def _failed_item(
    tool: Tool, message: str, value: JsonObject, hygiene: _Hygiene, *, details: JsonValue = None
) -> _Said:
    rest = {key: item for key, item in value.items() if key not in ("success", "error")}
    return _failed(tool, message, hygiene, details=details, more=rest, data=rest or None)


def _fitting(tool: Tool, ending: Ending, value: JsonValue, hygiene: _Hygiene) -> _Said:
    """A success, if what came back fits the author's own schema for it."""
    part = value
    if tool.output_schema is not None:
        if isinstance(value, dict):
            part = next((value[key] for key in ("data", "output") if key in value), value)
        found = complaints(tool.output_schema, part)
        if found:
            message = "the result does not fit output_schema: " + "; ".join(map(str, found[:5]))
            more = value if isinstance(value, dict) else {"value": value}
            return _failed(tool, message, hygiene, kind=Kind.BAD_OUTPUT, more=more, data=part)
    took = sum(run.duration_ms for run in ending.runs) if ending.runs else 0.0
    metadata: JsonObject = {"duration_ms": round(took)}
    if tool.version is not None:
        metadata["version"] = tool.version
    form: JsonObject = {
        "status": "success",
        "type": "tool",
        "item_id": tool.name,
        "data": value,
        "chain": list(tool.chain),
        "metadata": metadata,
    }
    return _Said(form, part)


_SAYS: Final = {
    Reply.PLAIN_TEXT: _plain_text,
    Reply.JSON_LINE: _json_line,
    Reply.ENVELOPE: _envelope,
    Reply.SUCCESS_DICT: _success_dict,
    Reply.ITEM: _item,
    Reply.BLOCKS: _value,
}
"""What each form of reply makes of a run that came to its own end."""


# -- text that a model may be given -------------------------------------------------------------------------

_UNSEEN: Final = re.compile(
    "[\x00\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
    "|[\U000e0100-\U000e01ef]{2,}"
)
"""NUL, what is no character, bidirectional controls, tags, and rows of variation selectors: these hide a
text as tags do, while a single one chooses a glyph."""


class _Hygiene:
    """Makes text that can be shown out of bytes, and counts what it had to change.

    Attack: instructions for the model in characters that no person sees, or that show in another order.
    """

    replaced = 0
    escaped = 0

    def text(self, content: bytes, *, is_cut: bool = False, is_tail: bool = False) -> str:
        """Bytes as text. Where a limit cut them, a character that is only half there is left out."""
        if is_cut:
            content = _whole_end(content)
        if is_tail:
            content = content.lstrip(_CONTINUATIONS) if content[:1] in _CONTINUATION else content
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            text = content.decode("utf-8", "replace")
            self.replaced += text.count("\ufffd") - content.count(b"\xef\xbf\xbd")
            return text

    def visible(self, text: str) -> str:
        """The text with unseen characters written as escapes."""
        if text.isascii() and "\0" not in text:
            return text
        return _UNSEEN.sub(self._escape, text)

    def json_text(self, text: str) -> str:
        """A JSON text of the same meaning, on one line, without unseen characters."""
        if text.isascii():
            return text
        return _UNSEEN.sub(self._json_escape, text).translate(_OTHER_BREAKS)

    def json(self, value: JsonValue) -> str:
        """A value as one line of JSON; what JSON cannot write becomes its text."""
        try:
            text = orjson.dumps(value, default=str).decode("utf-8")
        except (TypeError, RecursionError):  # integers beyond 64 bits, lone surrogates, keys of other types
            try:
                text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
            except (TypeError, ValueError, RecursionError):
                self.replaced += 1
                unwritten = "[a value that JSON cannot write]"
                if isinstance(value, dict):  # the form's own keys stay: they are what the format promises
                    written = {
                        key: part if isinstance(part, (str, bool)) else unwritten
                        for key, part in value.items()
                        if isinstance(key, str)
                    }
                    text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
                else:
                    text = f'"{unwritten}"'
        return self.json_text(text)

    def _escape(self, match: re.Match[str]) -> str:
        found = match.group()
        if "\ud800" <= found <= "\udfff":
            self.replaced += 1
            return "\ufffd"
        self.escaped += len(found)
        return found.encode("unicode_escape").decode("ascii")

    def _json_escape(self, match: re.Match[str]) -> str:
        found = match.group()
        if "\ud800" <= found <= "\udfff":
            self.replaced += 1
            return "\ufffd"
        self.escaped += len(found)
        units = found.encode("utf-16-be")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    def notes(self) -> tuple[str, ...]:
        if not self.replaced and not self.escaped:
            return ()
        found = []
        if self.replaced:
            found.append(f"parts of the output that are no text were replaced: {self.replaced}")
        if self.escaped:
            found.append(f"unseen characters in the output were written as escapes: {self.escaped}")
        return tuple(found)


_CONTINUATIONS: Final = bytes(range(0x80, 0xC0))
_CONTINUATION: Final = frozenset(bytes([byte]) for byte in _CONTINUATIONS)


def _whole_end(content: bytes) -> bytes:
    """Without the beginning of a character whose rest was cut off."""
    for back in range(1, min(4, len(content) + 1)):
        byte = content[-back]
        if byte >= 0xC0:  # a character begins here
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return content[:-back] if length > back else content
        if byte < 0x80:
            break
    return content


def _cut_bytes(text: str, limit: int) -> str:
    """At most so many bytes of a text, and no half character."""
    if len(text) * 4 <= limit:
        return text
    content = text.encode("utf-8", "replace")
    return text if len(content) <= limit else content[:limit].decode("utf-8", "ignore")


def _content(form: JsonObject | str, hygiene: _Hygiene) -> str:
    return hygiene.visible(form) if isinstance(form, str) else hygiene.json(form)


def _strict(content: bytes) -> tuple[JsonValue, str | None]:
    """A JSON value, or why it is none that everybody would read alike."""
    parsed = jsontext.read(content, allow_nul=True)
    if parsed.defect is not None:
        return None, str(parsed.defect)
    if parsed.duplicates:
        again = parsed.duplicates[0]
        return None, f'line {again.line}: the name "{_cut_bytes(again.key, 60)}" stands there twice'
    return parsed.value, None


# -- what it cost and where it ran --------------------------------------------------------------------------


def _spent(ending: Ending, content: str) -> Spent:
    output_bytes, end = ending.stdout_bytes, ending.end
    if end is _RETURNED:  # nothing was printed: what it gave is what the model gets
        output_bytes = len(content) if content.isascii() else len(content.encode("utf-8", "replace"))
    runs, truncated, attempts = ending.runs, end is _TOO_LARGE, 1
    if len(runs) == 1:  # most often
        duration_ms, truncated = runs[0].duration_ms, truncated or runs[0].truncated
    else:
        duration_ms = sum((run.duration_ms for run in runs), 0.0)
        truncated = truncated or any(run.truncated for run in runs)
        attempts = sum(run.what in ("call", "attempt") for run in runs)
    return Spent(
        duration_ms=duration_ms,
        output_bytes=output_bytes,
        truncated=truncated,
        usage=ending.usage,
        attempts=attempts or 1,
    )


def _isolation(layers: tuple[str, ...], permit: Permit) -> tuple[str, ...]:
    return layers if permit.profile is None else (*layers, _PROFILES[permit.profile])


_PROFILES: Final = {profile: f"profile:{profile.value}" for profile in Profile}


# -- what was missing ---------------------------------------------------------------------------------------

# Compiled when something fails, by ``re`` itself: most calls never need them.
_REFUSED: Final = r"permission denied|operation not permitted|read-only file system|\be(?:acces|perm|rofs)\b"
_NO_NETWORK: Final = (
    r"network is (?:unreachable|down)|name resolution|name or service not known|could not resolve|getaddrinfo"
    r"|nodename nor servname|address family not supported"
    r"|\b(?:enetunreach|eai_again|enotfound|eafnosupport)\b"
)
_OF_SOCKETS: Final = r"socket|connect|network|https?:|urlopen|\bbind\b|\bdns\b"
_OF_WRITING: Final = (
    r"read-only|\berofs\b|creat|writ|mkdir|touch|remov|delet|renam|unlink|sav(?:e|ing)|mkstemp|lock"
)
_OF_STARTING: Final = r"\bexec\b|\bexec[lv]|spawn|popen|cannot run|failed to run"
_OF_SIGNALS: Final = r"\bp?kill\b"
_SCRIPT: Final = r"^[^:]+: (?:line )?\d+: "
_OF_GIT: Final = r"\.git/|\.gitconfig|/git/config"
_HELD: Final = {"protected:read-only", "protected:read-only-parents"}
_LOOKED_AT_BYTES: Final = 4096


def _why_refused(tool: Tool, ending: Ending, permit: Permit, error: ToolError) -> str | None:
    """What to do about a failure that looks like a refusal by the sandbox."""
    if error.kind is not Kind.FAILED or ending.end is End.OVER_LIMIT:
        return None
    tails = (ending.stderr[-_LOOKED_AT_BYTES:], ending.stdout[-_LOOKED_AT_BYTES:])
    said = "\n".join(tail.decode("utf-8", "replace") for tail in tails)
    said = f"{said}\n{error.message[-_LOOKED_AT_BYTES:]}".lower()
    needs = _missing(said, ending, permit)
    if needs:
        lines = grant_lines(tool.key, needs)
        return f"it was not granted what it seems to need; to grant it, configure\n{lines}"
    if _HELD & {*ending.layers}:
        # The very line that tells of the refusal; where a shell puts its script before it, that is no object.
        told = (re.sub(_SCRIPT, "", line) for line in said.splitlines() if re.search(_REFUSED, line))
        refused = "\n".join(line for line in told if not re.search(_OF_SIGNALS, line))
        held = next((path for path in permit.protected if path.lower() in refused), None)
        return f"{held} is protected: no tool may change it" if held else None
    return None


def _missing(said: str, ending: Ending, permit: Permit) -> tuple[str, ...]:
    """What the tool would have to be granted to do what it says it could not."""
    holds_files = "landlock" in ending.layers or "mount-namespace" in ending.layers
    holds_network = "network:none" in ending.layers
    if not holds_files and not holds_network:
        return ()
    is_refusal = re.search(_REFUSED, said) is not None
    lacking = ""
    if holds_network and (re.search(_NO_NETWORK, said) or (is_refusal and re.search(_OF_SOCKETS, said))):
        lacking = "net.http"
    elif is_refusal and holds_files:
        if permit.programs is Programs.OWN and (ending.exit_status == 126 or re.search(_OF_STARTING, said)):
            lacking = "shell.execute"
        elif re.search(_OF_GIT, said) and not any("/.git/" in path for path in permit.protected):
            lacking = "git.write"  # with it, only parts of the repository's folder are protected
        elif not permit.write and re.search(_OF_WRITING, said):
            lacking = "fs.write"
        elif not permit.read and not permit.write:
            lacking = "fs.read"
        elif not permit.write:
            lacking = "fs.write"
    if not lacking:
        return ()
    if permit.profile is None:
        return (lacking,)
    # A grant states the needs, and then the profile answers no more: name what it gave as well.
    given = {
        "fs.read": bool(permit.read),
        "fs.write": bool(permit.write),
        "net.http": permit.network,
        "shell.execute": permit.programs is Programs.ANY,
        "git.write": False,
    }
    return tuple(need for need, has in given.items() if has or need == lacking)


def grant_lines(key: str, needs: tuple[str, ...], *, of: str = "needs") -> str:
    """The lines of configuration that grant these needs to a tool, to be pasted anywhere into the file."""
    listed = ", ".join(f'"{need}"' for need in needs)
    quoted = json.dumps(key, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes it, JSON does not
    return f"[grants.{quoted}]\n{of} = [{listed}]"
