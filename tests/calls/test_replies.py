"""What a model is told about a run, in each format's exact words."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.strategies import json_values
from toolcrib import jsontext
from toolcrib.calls import replies
from toolcrib.errors import Kind
from toolcrib.model import (
    CallPython,
    End,
    Ending,
    Invocation,
    JsonOnStdin,
    Limits,
    Origin,
    Permit,
    Profile,
    Programs,
    PythonStyle,
    Reply,
    Run,
    RunProcess,
    Schema,
    TextBlock,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    Usage,
)

PROCESS = RunProcess(program="/opt/bin/bash-tool", encoding=JsonOnStdin(verbatim=False))
FUNCTION = CallPython(style=PythonStyle.FUNCTION, file="/p/.ai/tools/rye/file-system/write.py")
SCRIPT = CallPython(style=PythonStyle.SCRIPT, file="/p/.ai/tools/a/b.py")
HANDLER = CallPython(style=PythonStyle.HANDLER, executor="journal")
CALL = ToolCall(id="c1", tool="x:y/bash", arguments={})
ITEM_ID = "rye/file-system/write"
CHAIN = (ITEM_ID, "rye/core/runtimes/python/function", "rye/core/primitives/execute")


def tool(kind: Reply, invocation: Invocation = PROCESS, **more: Any) -> Tool:
    name = ITEM_ID if kind is Reply.ITEM else "bash"
    chain = CHAIN if kind is Reply.ITEM else ()
    fields: dict[str, Any] = {"name": name, "scope": "y", "chain": chain, **more}
    return Tool(
        key=f"x:y/{name}",
        origin=Origin(format="x", path="/x"),
        invocation=invocation,
        reply=kind,
        **fields,
    )


SKILL = tool(Reply.PLAIN_TEXT)
MANIFEST = tool(Reply.JSON_LINE)
PROGRAM = tool(Reply.ENVELOPE)
CAPABILITY = tool(Reply.SUCCESS_DICT, HANDLER)
RYE_FUNCTION = tool(Reply.ITEM, FUNCTION, version="1.0.0")
RYE_PROCESS = tool(Reply.ITEM, PROCESS)
RYE_SCRIPT = tool(Reply.ITEM, SCRIPT)
ALL = (SKILL, MANIFEST, PROGRAM, CAPABILITY, RYE_FUNCTION, RYE_PROCESS, tool(Reply.BLOCKS))


def exited(status: int = 0, stdout: bytes = b"", stderr: bytes = b"", **more: Any) -> Ending:
    return Ending(
        end=End.EXITED,
        exit_status=status,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=len(stdout),
        stderr_bytes=len(stderr),
        **more,
    )


def returned(value: Any, kind: str = "") -> Ending:
    return Ending(end=End.RETURNED, value=value, kind_of_value=kind or type(value).__name__)


def reply(of: Tool, ending: Ending, **permit: Any) -> ToolResult:
    return replies.reply(of, CALL, ending, permit=Permit(**permit))


def failure(of: Tool, ending: Ending, kind: Kind, **permit: Any) -> str:
    """The content of a call that failed in this way."""
    found = reply(of, ending, **permit)
    assert found.error is not None
    assert found.error.kind is kind
    return found.content


def content(of: Tool, ending: Ending) -> str:
    found = reply(of, ending)
    assert found.error is None, found
    return found.content


# -- plain text (skill) -------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.run.success")
def test_plain_text_is_stdout_and_nothing_else() -> None:
    found = reply(SKILL, exited(0, b"ok\n", b"warn\n"))
    assert (found.content, found.data, found.error) == ("ok\n", None, None)
    assert (found.call_id, found.key) == ("c1", "x:y/bash")


@pytest.mark.requirement("skill.run.failure")
def test_a_failed_program_is_told_with_status_stdout_and_stderr() -> None:
    found = reply(SKILL, exited(1, b"a", b"b"))
    assert found.content == "error: exit exit status: 1: a\nb"
    assert found.error == ToolError(
        kind=Kind.FAILED, message="exit exit status: 1: a\nb", details={"exit_status": 1}
    )
    killed = reply(SKILL, exited(139, b"", b"", signal=11))
    assert killed.content == "error: exit signal: 11 (SIGSEGV): \n"
    assert killed.error is not None
    assert killed.error.details == {"exit_status": 139, "signal": 11}


@pytest.mark.requirement("skill.run.spawn-failure")
def test_a_program_that_cannot_start_is_told_with_the_systems_reason() -> None:
    ending = Ending(end=End.NOT_STARTED, reason="No such file or directory")
    assert failure(SKILL, ending, Kind.UNAVAILABLE) == "error: exec failed: No such file or directory"


@pytest.mark.requirement("skill.run.timeout")
def test_a_hung_program_is_told_to_have_timed_out() -> None:
    ending = Ending(end=End.TIMED_OUT, stdout=b"partial")
    told = failure(SKILL, ending, Kind.TIMED_OUT, limits=Limits(timeout_s=0.5))
    assert told == "error: timed out after 0.5s"


@pytest.mark.requirement("skill.positional.nul-byte")
def test_a_call_that_cannot_be_handed_over_keeps_its_words() -> None:
    ending = Ending(end=End.REFUSED, reason="exec failed: parameter query has a NUL character")
    told = failure(SKILL, ending, Kind.INVALID_ARGUMENTS)
    assert told == "error: exec failed: parameter query has a NUL character"


# -- one line of JSON (manifest) ----------------------------------------------------------------------------


@pytest.mark.requirement("manifest.run.success-line")
@pytest.mark.parametrize(
    ("stdout", "line", "data"),
    [
        (b'{"a":1}\n', '{"a":1}', {"a": 1}),
        (b"", "{}", {}),
        (b" \n", "{}", {}),
        (b'  {"a": 1}  ', '{"a": 1}', {"a": 1}),
        (b"5\n", "5", 5),
    ],
)
def test_a_line_is_stdout_trimmed(stdout: bytes, line: str, data: object) -> None:
    found = reply(MANIFEST, exited(0, stdout))
    assert (found.content, found.data, found.notes, found.error) == (line, data, (), None)


@pytest.mark.requirement("manifest.run.single-line")
@pytest.mark.battery("F07")
def test_json_over_lines_is_written_anew_in_one_line() -> None:
    found = reply(MANIFEST, exited(0, b'{\n "t": "a\\tb"\n}'))
    assert (found.content, found.notes) == ('{"t":"a\\tb"}', ())


@pytest.mark.requirement("manifest.run.single-line", "manifest.run.not-json")
@pytest.mark.battery("F07")
@pytest.mark.parametrize(
    ("stdout", "content"),
    [
        (b"def f():\n\tif x:\n\t    return  1\n\n", "def f():\n\tif x:\n\t    return  1"),
        (b"\n  \n    a  b\n  c\n", "    a  b\n  c"),
        (b"  one line \n", "one line"),
        (b"a\r\nb\r\n", "a\r\nb"),
        (b'{"a":1}\n{"b":2}\n', '{"a":1}\n{"b":2}'),
        ("x\u2028y".encode(), "x\u2028y"),
    ],
)
def test_text_of_a_manifest_tool_that_is_not_json_keeps_its_lines_and_indentation(
    stdout: bytes, content: str
) -> None:
    found = reply(MANIFEST, exited(0, stdout))
    assert (found.content, found.data, found.error) == (content, None, None)
    assert "not JSON" in found.notes[0]


@pytest.mark.parametrize(
    "stdout", [b'{"a":1,"a":2}', b'{"a":NaN}', b"[" * 200 + b"]" * 200, b'{"a":"\0"}', b'{"a":"\\ud800"}']
)
def test_json_that_readers_disagree_about_is_text_and_flagged(stdout: bytes) -> None:
    found = reply(MANIFEST, exited(0, stdout))
    assert found.data is None
    assert "not JSON" in found.notes[0]


def test_an_escaped_nul_is_data_of_the_tool_and_stays_escaped_in_the_text() -> None:
    found = reply(MANIFEST, exited(0, b'{"a\\u0000":"b\\u0000c"}'))
    assert (found.content, found.data) == ('{"a\\u0000":"b\\u0000c"}', {"a\0": "b\0c"})
    assert found.notes == ()


@pytest.mark.requirement("manifest.run.failure", "manifest.run.failure-json", "manifest.run.failure-empty")
@pytest.mark.parametrize(
    ("status", "stderr", "message"),
    [
        (2, b"no zone", "no zone"),
        (2, b" no zone\n", "no zone"),
        (255, b"no zone\n\n  ask again\n", "no zone\n\n  ask again"),
        (1, b'{"error":"bad tz"}', "bad tz"),
        (1, b'{"error":"bad tz"}\n', "bad tz"),
        (1, b'{"error":5}', '{"error":5}'),
        (1, b'{"error":"a","error":"b"}', '{"error":"a","error":"b"}'),
        (3, b"", "exit status 3"),
        (3, b" \n", "exit status 3"),
    ],
)
def test_a_failed_line_is_stderr_as_an_error(status: int, stderr: bytes, message: str) -> None:
    found = failure(MANIFEST, exited(status, b'{"ignored":true}', stderr), Kind.FAILED)
    assert json.loads(found) == {"error": message}
    assert reply(MANIFEST, exited(status, b'{"ignored":true}', stderr)).data is None


def test_a_line_names_the_signal_that_killed_a_silent_program() -> None:
    told = failure(MANIFEST, exited(137, b"", b"", signal=9), Kind.FAILED)
    assert told == '{"error":"signal: 9 (SIGKILL)"}'


@pytest.mark.requirement("manifest.run.failure-limit")
@pytest.mark.parametrize(("char", "count"), [("x", 1000), ("é", 500), ("€", 333), ("𝄞", 250)])
def test_the_error_of_a_line_is_cut_between_characters(char: str, count: int) -> None:
    told = failure(MANIFEST, exited(1, b"", (char * 5000).encode()), Kind.FAILED)
    assert json.loads(told) == {"error": char * count}


@pytest.mark.requirement("manifest.timeout.text", "manifest.run.start-error")
def test_a_line_has_its_own_words_for_time_and_start() -> None:
    assert failure(MANIFEST, Ending(end=End.TIMED_OUT), Kind.TIMED_OUT) == '{"error":"tool timed out"}'
    ending = Ending(end=End.NOT_STARTED, reason="No such file or directory")
    assert failure(MANIFEST, ending, Kind.UNAVAILABLE) == '{"error":"start: No such file or directory"}'


@pytest.mark.parametrize(("number", "limit"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u")])
def test_a_limit_of_the_host_that_lets_nothing_start_is_named(number: int, limit: str) -> None:
    error = reply(MANIFEST, Ending(end=End.NOT_STARTED, reason=os.strerror(number))).error
    assert error is not None
    assert limit in str(error.hint)


# -- the envelope (executable) ------------------------------------------------------------------------------


@pytest.mark.requirement("executable.call.success", "executable.call.tool-level-error")
@pytest.mark.parametrize(
    "result", [{"temperature": 72}, {"error": "no file", "error_code": "FILE_NOT_FOUND"}, [1], None, 5, ""]
)
def test_an_envelope_holds_whatever_json_came(result: object) -> None:
    found = reply(PROGRAM, exited(0, json.dumps(result).encode() + b"\n"))
    assert json.loads(found.content) == {"tool_success": True, "result": result}
    assert (found.data, found.error) == (result, None)


@pytest.mark.requirement("executable.call.success")
def test_an_envelope_is_a_success_by_the_exit_status_alone() -> None:
    printed = b' \t\r\n{"temperature":72} \r\n'
    found = reply(PROGRAM, exited(0, printed, b"Traceback: error: warning: the cache is old\n"))
    assert json.loads(found.content) == {"tool_success": True, "result": {"temperature": 72}}
    assert (found.data, found.error) == ({"temperature": 72}, None)
    for status in (1, 2, 255):
        told = json.loads(failure(PROGRAM, exited(status, printed), Kind.FAILED))
        assert (told["tool_success"], "result" in told) == (False, False)


@pytest.mark.requirement("executable.call.nonzero")
def test_an_envelope_tells_of_a_failure_with_code_and_stderr() -> None:
    told = failure(PROGRAM, exited(2, b"out", b"boom"), Kind.FAILED)
    assert json.loads(told) == {
        "tool_success": False,
        "error": "Tool failed: boom",
        "error_code": "TOOL_CRASHED",
        "exit_code": 2,
        "stdout": "out",
        "stderr": "boom",
    }
    silent = json.loads(failure(PROGRAM, exited(2), Kind.FAILED))
    assert silent["error"] == "Tool exited with non-zero status"


def test_an_envelope_repeats_the_end_of_long_output_and_no_half_character() -> None:
    told = json.loads(failure(PROGRAM, exited(2, b"", "€".encode() * 5000), Kind.FAILED))
    assert told["error"] == "Tool failed: " + "€" * 666
    assert told["stderr"] == "€" * 666


@pytest.mark.requirement("executable.call.signal")
def test_an_envelope_counts_a_signal_as_a_crash() -> None:
    told = json.loads(failure(PROGRAM, exited(139, signal=11), Kind.FAILED))
    assert told["error"] == "Tool 'bash' crashed with exit code 139"
    assert (told["error_code"], told["exit_code"]) == ("TOOL_CRASHED", 139)


@pytest.mark.requirement("executable.call.empty", "executable.call.invalid-json")
@pytest.mark.parametrize(
    ("stdout", "error"),
    [
        (b"", "Tool produced no output"),
        (b" \n", "Tool produced no output"),
        (b"hi", "Tool returned invalid JSON"),
        (b"\xff", "Tool returned invalid JSON"),
    ],
)
def test_an_envelope_wants_json(stdout: bytes, error: str) -> None:
    told = failure(PROGRAM, exited(0, stdout), Kind.BAD_OUTPUT)
    assert json.loads(told) == {"tool_success": False, "error": error, "error_code": "INVALID_OUTPUT"}


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b"[" * 200 + b"]" * 200, "nested more than 100 levels deep"),
        (b"[" + b"0," * 200_000 + b"0]", "more than 100,000 values"),
        (b'{"a":"\\ud800"}', "surrogate"),
    ],
)
def test_an_envelope_refuses_json_that_readers_disagree_about_and_says_why(stdout: bytes, why: str) -> None:
    found = reply(PROGRAM, exited(0, stdout))
    assert found.error is not None
    assert (found.error.kind, found.error.message) == (Kind.BAD_OUTPUT, "Tool returned invalid JSON")
    assert why in (found.error.hint or "")
    assert why in json.loads(found.content)["details"]


@pytest.mark.requirement("executable.call.timeout", "executable.call.output-limit")
def test_an_envelope_names_the_limits() -> None:
    told = json.loads(failure(PROGRAM, Ending(end=End.TIMED_OUT), Kind.TIMED_OUT))
    assert told == {
        "tool_success": False,
        "error": "Tool 'bash' timed out after 30s",
        "error_code": "TOOL_TIMEOUT",
    }
    ending = Ending(end=End.TOO_LARGE, stdout=b"x" * 65_535, stdout_bytes=65_536)
    found = reply(PROGRAM, ending, limits=Limits(stdout_bytes_max=65_535))
    assert found.error is not None
    assert found.error.kind is Kind.TOO_LARGE
    told = json.loads(found.content)
    assert "65535" in told["error"]
    assert told["error_code"] == "INVALID_OUTPUT"
    assert found.spent.truncated
    assert found.spent.output_bytes == 65_536


@pytest.mark.battery("F02")
def test_the_stream_that_was_too_long_is_named() -> None:
    limits = Limits(stdout_bytes_max=10, stderr_bytes_max=20)
    of_stderr = Ending(end=End.TOO_LARGE, stdout_bytes=3, stderr_bytes=21)
    assert "stderr is longer than 20 bytes" in failure(SKILL, of_stderr, Kind.TOO_LARGE, limits=limits)
    both = Ending(end=End.TOO_LARGE, stdout_bytes=11, stderr_bytes=21)
    assert "output is longer than 10 bytes" in failure(SKILL, both, Kind.TOO_LARGE, limits=limits)


# -- a mapping with success (capability) --------------------------------------------------------------------


@pytest.mark.requirement("capability.meta.handler-result")
def test_a_handlers_result_is_passed_on() -> None:
    found = reply(CAPABILITY, returned({"success": True, "result": "# Journal\n"}))
    assert json.loads(found.content) == {"success": True, "result": "# Journal\n"}
    assert (found.data, found.error) == ("# Journal\n", None)
    told = failure(CAPABILITY, returned({"success": False, "error": "no such day"}), Kind.FAILED)
    assert json.loads(told) == {"success": False, "error": "no such day"}
    extra = reply(CAPABILITY, returned({"success": True, "result": 1, "debug": [1]}))
    assert json.loads(extra.content) == {"success": True, "result": 1}
    assert "debug" in extra.notes[0]


@pytest.mark.requirement("capability.meta.handler-result")
@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("ok", "got str"),
        (None, "got NoneType"),
        ({}, "got dict without success"),
        ({"success": 1, "result": 1}, "got success: int"),
        ({"success": True}, "got success without result"),
        ({"success": False}, "got a failure without error"),
    ],
)
def test_anything_else_from_a_handler_is_a_failure(value: object, got: str) -> None:
    told = json.loads(failure(CAPABILITY, returned(value), Kind.BAD_OUTPUT))
    assert set(told) == {"success", "error"}
    assert told["success"] is False
    assert got in told["error"]


@pytest.mark.requirement("capability.meta.handler-result")
def test_an_exception_of_a_handler_is_a_failure() -> None:
    ending = Ending(end=End.RAISED, reason="'id'", kind_of_value="KeyError")
    told = failure(CAPABILITY, ending, Kind.FAILED)
    assert json.loads(told) == {"success": False, "error": "KeyError: 'id'"}
    died = failure(CAPABILITY, exited(3), Kind.FAILED)
    assert json.loads(died)["error"] == "the handler ended without a result (exit status: 3)"


@pytest.mark.requirement("capability.call.unknown", "capability.meta.requires-context")
@pytest.mark.parametrize("reason", ["No executor registered for tool type: file", "missing context: memory"])
def test_what_a_capability_lacks_is_told_in_its_words(reason: str) -> None:
    told = failure(CAPABILITY, Ending(end=End.UNAVAILABLE, reason=reason), Kind.UNAVAILABLE)
    assert json.loads(told) == {"success": False, "error": reason}


# -- an item and its chain (rye) ----------------------------------------------------------------------------


@pytest.mark.requirement("rye.call.result-envelope")
def test_an_item_names_itself_and_its_chain() -> None:
    value = {"success": True, "path": "a.txt", "bytes": 3}
    found = reply(RYE_FUNCTION, replace(returned(value), runs=(Run(duration_ms=12.4),)))
    assert json.loads(found.content) == {
        "status": "success",
        "type": "tool",
        "item_id": "rye/file-system/write",
        "data": value,
        "chain": list(CHAIN),
        "metadata": {"duration_ms": 12, "version": "1.0.0"},
    }
    assert (found.data, found.error) == (value, None)


@pytest.mark.requirement("rye.call.stdout-protected")
@pytest.mark.parametrize("value", [{"success": True, "path": "a.txt"}, {"success": False, "error": "no"}, {}])
def test_what_a_function_printed_is_no_part_of_its_result(value: object) -> None:
    silent = returned(value)
    loud = replace(silent, stdout=b'debug\n{"success": true, "data": 1}\n', stderr=b"warned\n")
    assert reply(RYE_FUNCTION, loud) == reply(RYE_FUNCTION, silent)


@pytest.mark.requirement("rye.call.returns-dict")
@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("ok", "(got str)"),
        (None, "(got NoneType)"),
        ({}, "(got dict without success)"),
        ({"success": "yes"}, "(got success: str)"),
        ({"success": None}, "(got success: NoneType)"),
    ],
)
def test_execute_must_return_a_mapping_with_success(value: object, got: str) -> None:
    found = reply(RYE_FUNCTION, returned(value))
    assert found.error is not None
    assert found.error.kind is Kind.BAD_OUTPUT
    assert found.error.message == f"execute() must return a dict with success: bool {got}"
    told = json.loads(found.content)
    assert (told["status"], told["item_id"], told["chain"]) == ("error", ITEM_ID, list(CHAIN))


@pytest.mark.requirement("rye.call.error-shape")
def test_a_failure_of_an_item_carries_the_remaining_keys() -> None:
    told = failure(RYE_FUNCTION, returned({"success": False, "error": "x", "exit_code": 1}), Kind.FAILED)
    assert json.loads(told) == {
        "status": "error",
        "error": "x",
        "item_id": ITEM_ID,
        "chain": list(CHAIN),
        "data": {"exit_code": 1},
    }
    bare = json.loads(failure(RYE_FUNCTION, returned({"success": False}), Kind.FAILED))
    assert "data" not in bare
    assert bare["error"] == "it failed without saying why"


@pytest.mark.requirement("rye.call.exception")
def test_an_exception_of_an_item_is_its_text_alone() -> None:
    ending = Ending(end=End.RAISED, reason="bad", kind_of_value="ValueError")
    assert json.loads(failure(RYE_FUNCTION, ending, Kind.FAILED))["error"] == "bad"
    silent = Ending(end=End.RAISED, reason="", kind_of_value="AssertionError")
    assert json.loads(failure(RYE_FUNCTION, silent, Kind.FAILED))["error"] == "AssertionError"


@pytest.mark.requirement("rye.call.json-result")
def test_a_value_that_json_cannot_write_becomes_its_text() -> None:
    class Path:
        def __str__(self) -> str:
            return "a"

    found = json.loads(content(RYE_FUNCTION, returned({"success": True, "data": Path()})))
    assert found["data"]["data"] == "a"


@pytest.mark.requirement("rye.call.stdout-json", "rye.call.returns-dict")
@pytest.mark.parametrize("of", [RYE_PROCESS, RYE_SCRIPT], ids=["process", "script"])
def test_a_process_gives_an_object_or_its_streams(of: Tool) -> None:
    plain = json.loads(content(of, exited(0, b"hi")))
    assert plain["data"] == {"stdout": "hi", "stderr": "", "return_code": 0}
    assert json.loads(content(of, exited(0, b'{"n": 1}\n')))["data"] == {"n": 1}
    good = {"success": True, "n": 1}
    assert json.loads(content(of, exited(0, json.dumps(good).encode())))["data"] == good
    for stdout in (b"[1]", b'{"a":1,"a":2}', b"\xff"):
        assert "return_code" in json.loads(content(of, exited(0, stdout)))["data"]


@pytest.mark.requirement("rye.call.stdout-json")
@pytest.mark.parametrize(
    ("ending", "error", "data"),
    [
        (exited(0, b'{"success": false, "error": "x", "n": 1}'), "x", {"n": 1}),
        (exited(1, b'{"success": true, "n": 1}', b"boom"), "boom", {"n": 1}),
        (exited(1, b'{"error": "x"}', b"boom"), "x", None),
        (exited(3, b"hi", b"boom\n"), "boom", {"stdout": "hi", "stderr": "boom\n", "return_code": 3}),
        (exited(3), "exit status 3", {"stdout": "", "stderr": "", "return_code": 3}),
        (exited(0, b'{"success": false}'), "it failed without saying why", None),
    ],
)
def test_a_process_fails_by_its_status_or_its_own_word(
    ending: Ending, error: str, data: dict[str, Any] | None
) -> None:
    told = json.loads(failure(RYE_PROCESS, ending, Kind.FAILED))
    assert told["error"] == error
    assert told.get("data") == data


def test_a_process_whose_success_is_no_boolean_is_no_success() -> None:
    told = json.loads(failure(RYE_PROCESS, exited(0, b'{"success": "no"}'), Kind.BAD_OUTPUT))
    assert told["error"] == "the output must have success: bool, or none (got success: str)"


@pytest.mark.requirement("rye.run.timeout")
def test_an_item_that_timed_out_says_after_how_long() -> None:
    ending = Ending(end=End.TIMED_OUT, stdout=b"so far \xe2\x82", stderr=b"")
    told = json.loads(failure(RYE_PROCESS, ending, Kind.TIMED_OUT, limits=Limits(timeout_s=300.0)))
    assert told["error"] == "Command timed out after 300 seconds"
    assert told["data"] == {"stdout": "so far ", "stderr": "", "return_code": -1}


STATUS = Schema.of({"type": "object", "properties": {"status": {"enum": ["open", "closed"]}}})


@pytest.mark.requirement("rye.yaml.output-schema")
@pytest.mark.parametrize(
    "value",
    [
        {"success": True, "data": {"status": "done"}, "status": "open"},
        {"success": True, "output": {"status": "done"}},
        {"success": True, "status": "done"},
    ],
)
def test_a_result_that_breaks_its_own_schema_is_an_error_with_the_data(value: dict[str, Any]) -> None:
    of = tool(Reply.ITEM, FUNCTION, output_schema=STATUS)
    told = json.loads(failure(of, returned(value), Kind.BAD_OUTPUT))
    assert "status: must be one of" in told["error"]
    assert told["data"] == value
    fitting = json.loads(json.dumps(value).replace("done", "closed"))
    found = reply(of, returned(fitting))
    assert found.error is None
    assert found.data == fitting.get("data", fitting.get("output", fitting)), "what the schema is about"


@pytest.mark.requirement("rye.executor.dry-run")
def test_a_dry_run_says_that_validation_passed() -> None:
    found = replies.dry_run(RYE_FUNCTION, CALL, Permit(profile=Profile.OPEN))
    expected = {"status": "validation_passed", "chain": list(CHAIN), "validated_pairs": 2}
    assert json.loads(found.content) == expected
    assert (found.data, found.error, found.isolation) == (expected, None, ("profile:open",))
    for of in ALL:
        told = replies.dry_run(of, CALL, Permit())
        assert told.ok
        assert told.content


@pytest.mark.requirement("rye.type.not-callable")
def test_what_cannot_run_says_so() -> None:
    error = ToolError(kind=Kind.UNAVAILABLE, message="not executable")
    found = replies.refusal(CALL, error, tool=RYE_FUNCTION, default=Reply.PLAIN_TEXT)
    assert json.loads(found.content) == {
        "status": "error",
        "error": "not executable",
        "item_id": ITEM_ID,
        "chain": list(CHAIN),
    }


# -- calls that never ran -----------------------------------------------------------------------------------


@pytest.mark.requirement(
    "skill.run.unknown-tool",
    "manifest.run.unknown",
    "executable.call.not-found",
    "capability.call.unknown",
    "rye.call.not-found",
)
@pytest.mark.parametrize(
    ("default", "name", "told"),
    [
        (Reply.PLAIN_TEXT, "foo", "error: unknown tool: foo"),
        (Reply.JSON_LINE, "foo", '{"error":"unknown tool: foo"}'),
        (
            Reply.ENVELOPE,
            "foo",
            '{"tool_success":false,"error":"Tool not found in registry","error_code":"TOOL_NOT_FOUND"}',
        ),
        (Reply.SUCCESS_DICT, "foo", '{"success":false,"error":"Unknown tool: foo"}'),
        (
            Reply.ITEM,
            "a/b",
            '{"status":"error","error":"Tool not found: a/b","item_id":"a/b","chain":[]}',
        ),
        (Reply.BLOCKS, "foo", "error: Unknown tool: foo"),
    ],
)
def test_an_unknown_tool_is_answered_in_the_default_words(default: Reply, name: str, told: str) -> None:
    call = ToolCall(id="c2", tool=name, arguments={})
    error = ToolError(kind=Kind.UNKNOWN_TOOL, message="no such tool", hint="did you mean bar?")
    found = replies.refusal(call, error, tool=None, default=default)
    assert (found.call_id, found.key, found.content) == ("c2", "", told)
    assert found.error is not None
    assert (found.error.kind, found.error.hint) == (Kind.UNKNOWN_TOOL, "did you mean bar?")


@pytest.mark.requirement(
    "manifest.schema.arguments", "executable.call.validated", "capability.control.call-blocked"
)
@pytest.mark.parametrize(
    ("of", "told"),
    [
        (SKILL, "error: MESSAGE"),
        (MANIFEST, '{"error":"MESSAGE"}'),
        (PROGRAM, '{"tool_success":false,"error":"MESSAGE","error_code":"CODE"}'),
        (CAPABILITY, '{"success":false,"error":"MESSAGE"}'),
        (tool(Reply.BLOCKS), "error: MESSAGE"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.INVALID_ARGUMENTS, "INVALID_PARAMS"),
        (Kind.DENIED, "DENIED"),
        (Kind.UNAVAILABLE, "UNAVAILABLE"),
        (Kind.NEEDS_APPROVAL, "NEEDS_APPROVAL"),
        (Kind.NOT_AUDITED, "NOT_AUDITED"),
        (Kind.CANCELLED, "CANCELLED"),
        (Kind.INTERNAL, "INTERNAL"),
    ],
)
def test_a_refusal_speaks_as_the_tools_format_does(of: Tool, told: str, kind: Kind, code: str) -> None:
    error = ToolError(kind=kind, message='timezone: is "required"', hint="h", details={"a": 1})
    found = replies.refusal(CALL, error, tool=of, default=Reply.ITEM)
    quoted = told.startswith("{")
    message = error.message.replace('"', '\\"') if quoted else error.message
    assert found.content == told.replace("MESSAGE", message).replace("CODE", code)
    assert found.error == error
    assert found.key == of.key


def test_a_name_that_never_ends_is_not_repeated() -> None:
    call = ToolCall(id="c", tool="x" * 100_000, arguments={})
    error = ToolError(kind=Kind.UNKNOWN_TOOL, message="")
    for default in Reply:
        found = replies.refusal(call, error, tool=None, default=default)
        assert len(found.content) < 1000


# -- the other ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "kind", "words"),
    [
        (Ending(end=End.CANCELLED), Kind.CANCELLED, "cancelled"),
        (Ending(end=End.LOST, reason="the spawner died"), Kind.UNKNOWN_OUTCOME, "the spawner died"),
        (Ending(end=End.OVER_LIMIT, reason="more than 128 processes"), Kind.FAILED, "128 processes"),
        (Ending(end=End.DENIED, reason="it leads out"), Kind.DENIED, "it leads out"),
        (Ending(end=End.UNAVAILABLE, reason="no bash"), Kind.UNAVAILABLE, "no bash"),
        (Ending(end=End.UNAVAILABLE), Kind.UNAVAILABLE, "unavailable"),
    ],
)
@pytest.mark.parametrize("of", ALL, ids=lambda of: of.reply.value)
def test_every_end_has_its_kind_in_every_format(of: Tool, ending: Ending, kind: Kind, words: str) -> None:
    found = reply(of, replace(ending, hint="mend it"))
    assert found.error is not None
    assert (found.error.kind, found.error.hint) == (kind, "mend it")
    assert words in found.content


def test_a_result_carries_what_the_run_cost_and_where_it_ran() -> None:
    ending = exited(
        0,
        b"ok",
        layers=("landlock", "seccomp"),
        usage=Usage(user_ms=1.0, memory_bytes=5),
        notes=("a note",),
        runs=(
            Run(what="resolver", duration_ms=1.0),
            Run(what="attempt", duration_ms=2.0),
            Run(duration_ms=4.0, truncated=True),
        ),
    )
    found = reply(SKILL, ending, profile=Profile.PROJECT)
    assert found.isolation == ("landlock", "seccomp", "profile:project")
    assert found.notes == ("a note",)
    assert found.runs == ending.runs
    spent = found.spent
    assert (spent.duration_ms, spent.output_bytes, spent.truncated) == (7.0, 2, True)
    assert (spent.attempts, spent.usage) == (2, ending.usage)
    assert reply(SKILL, ending).isolation == ("landlock", "seccomp")


# -- what looks like a refusal ------------------------------------------------------------------------------

HELD = ("no-new-privs", "landlock", "seccomp", "network:none")
STATED: dict[str, Any] = {"programs": Programs.OWN}


@pytest.mark.parametrize(
    ("stderr", "permit", "need"),
    [
        (b"curl: (6) Could not resolve host: example.com", STATED, "net.http"),
        (b"connect: Network is unreachable", STATED, "net.http"),
        (b"socket.gaierror: [Errno -3] Temporary failure in name resolution", STATED, "net.http"),
        (b"PermissionError: [Errno 13] Permission denied: socket()", STATED, "net.http"),
        (b"touch: cannot touch '/srv/a': Permission denied", STATED, "fs.write"),
        (b"OSError: [Errno 30] Read-only file system: 'a'", STATED, "fs.write"),
        (b"cat: /srv/p/a: Permission denied", STATED, "fs.read"),
        (b"cat: /srv/p/a: Permission denied", {**STATED, "read": ("/srv/p",)}, "fs.write"),
        (b"Error: EACCES: permission denied, open '/srv/p/a'", STATED, "fs.read"),
        (b"sh: 1: exec: git: Permission denied", STATED, "shell.execute"),
        (
            b"fatal: Unable to create '/srv/p/.git/index.lock': Read-only file system",
            {**STATED, "read": ("/srv/p",), "write": ("/srv/p",), "protected": ("/srv/p/.git",)},
            "git.write",
        ),
        (b"warning: unable to access '/home/a/.gitconfig': Permission denied", STATED, "git.write"),
    ],
)
def test_a_failure_that_looks_like_a_refusal_names_the_missing_grant(
    stderr: bytes, permit: dict[str, Any], need: str
) -> None:
    found = reply(SKILL, exited(1, b"", stderr, layers=HELD), **permit)
    assert found.error is not None
    assert granted(found.error.hint) == {"x:y/bash": {"needs": [need]}}


def granted(hint: str | None) -> dict[str, Any]:
    """The grants in a hint, as somebody would paste them."""
    _, configure, lines = (hint or "").partition("configure\n")
    assert configure
    grants: dict[str, Any] = tomllib.loads(lines)["grants"]
    return grants


def test_a_grant_proposed_under_a_profile_keeps_what_the_profile_gave() -> None:
    permit: dict[str, Any] = {"profile": Profile.PROJECT, "read": ("/srv",), "write": ("/srv",)}
    found = reply(SKILL, exited(1, b"", b"Network is unreachable", layers=HELD), **permit)
    assert found.error is not None
    needs = ["fs.read", "fs.write", "net.http", "shell.execute"]
    assert granted(found.error.hint) == {"x:y/bash": {"needs": needs}}


@given(st.text(min_size=1))
def test_the_lines_of_a_grant_can_be_pasted_whatever_the_key(key: str) -> None:
    text = replies.grant_lines(key, ("fs.read",))
    assert tomllib.loads(f"[isolation]\nundeclared = 'closed'\n{text}\n")["grants"] == {
        key: {"needs": ["fs.read"]}
    }


def test_what_no_grant_gives_is_said_to_be_protected() -> None:
    stderr = b"in execute\nOSError: [Errno 30] Read-only file system: '/srv/p/.ai/config/a.yaml'"
    permit: dict[str, Any] = {
        **STATED,
        "read": ("/srv/p",),
        "write": ("/srv/p",),
        "protected": ("/srv/p/.ai",),
    }
    found = reply(SKILL, exited(1, b"", stderr, layers=(*HELD, "protected:read-only")), **permit)
    assert found.error is not None
    assert found.error.hint == "/srv/p/.ai is protected: no tool may change it"


@pytest.mark.parametrize(
    "stderr",
    [
        b'File "/srv/p/.ai/a.py", line 3\n  os.kill(1, 9)\nPermissionError: Operation not permitted',
        b"Error: kill EPERM\n    at f (file:///srv/p/.ai/tools/a.mjs:3:1)",
        b"/srv/p/.ai/tools/a.sh: line 3: kill: (1) - Operation not permitted",
        b"/srv/p/.ai/tools/a.sh: 3: cannot create /etc/a: Permission denied",
    ],
    ids=["python", "node", "bash", "other path"],
)
def test_a_refusal_of_something_else_is_not_said_to_be_of_what_is_protected(stderr: bytes) -> None:
    permit: dict[str, Any] = {
        **STATED,
        "read": ("/srv/p",),
        "write": ("/srv/p",),
        "protected": ("/srv/p/.ai",),
    }
    found = reply(SKILL, exited(1, b"", stderr, layers=(*HELD, "protected:read-only")), **permit)
    assert found.error is not None
    assert found.error.hint is None


@pytest.mark.parametrize(
    ("stderr", "layers", "permit"),
    [
        (b"cat: a: Permission denied", (), STATED),
        (b"cat: a: Permission denied", HELD, {**STATED, "read": ("/",), "write": ("/",)}),
        (b"Network is unreachable", ("landlock", "seccomp"), {**STATED, "network": True}),
        (b"no such file", HELD, STATED),
        (
            b"error: could not lock config file .git/config: Read-only file system",
            HELD,
            {**STATED, "read": ("/srv/p",), "write": ("/srv/p",), "protected": ("/srv/p/.git/config",)},
        ),
    ],
)
def test_no_grant_is_proposed_where_none_is_missing(
    stderr: bytes, layers: tuple[str, ...], permit: dict[str, Any]
) -> None:
    found = reply(SKILL, exited(1, b"", stderr, layers=layers), **permit)
    assert found.error is not None
    assert found.error.hint is None


# -- text that a model may be given -------------------------------------------------------------------------


@pytest.mark.battery("F05")
def test_bytes_that_are_no_text_are_replaced_and_counted_exactly() -> None:
    stdout = b"a\xff\xfeb \xe2\x82"
    found = reply(SKILL, exited(0, stdout))
    assert found.content == "a\ufffd\ufffdb \ufffd"
    assert found.notes == ("parts of the output that are no text were replaced: 3",)
    assert found.spent.output_bytes == len(stdout)
    assert reply(SKILL, exited(0, "\ufffd".encode())).notes == (), (
        "a replacement character of its own is text"
    )
    nul = reply(SKILL, exited(0, b"a\0b"))
    assert nul.content == "a\\x00b"
    assert nul.notes == ("unseen characters in the output were written as escapes: 1",)


HIDDEN = "a\U000e0041\u202eb\u2066\u200fc"


@pytest.mark.battery("F06")
def test_characters_that_nobody_sees_are_written_out_and_counted() -> None:
    found = reply(SKILL, exited(0, HIDDEN.encode()))
    assert found.content == "a\\U000e0041\\u202eb\\u2066\\u200fc"
    assert found.notes == ("unseen characters in the output were written as escapes: 4",)
    assert found.spent.output_bytes == len(HIDDEN.encode())


@pytest.mark.battery("F06")
@pytest.mark.parametrize("of", [MANIFEST, PROGRAM], ids=["line", "envelope"])
def test_json_without_unseen_characters_means_the_same(of: Tool) -> None:
    found = reply(of, exited(0, json.dumps({"t": HIDDEN}, ensure_ascii=False).encode()))
    assert not set(found.content) & set("\U000e0041\u202e\u2066\u200f")
    value = json.loads(found.content)
    assert value.get("result", value) == {"t": HIDDEN}
    assert found.notes == ("unseen characters in the output were written as escapes: 4",)


@pytest.mark.battery("F06")
def test_errors_are_written_out_too() -> None:
    for of in (SKILL, MANIFEST, PROGRAM, RYE_PROCESS):
        found = reply(of, exited(1, b"", HIDDEN.encode()))
        assert "\\u202e" in found.content
        assert found.error is not None
        assert "\u202e" not in found.error.message


def test_text_that_people_write_stays_as_it_is() -> None:
    text = "naïve 東京 👩‍💻 é\u0301 葛\U000e0100飾 שלום مرحبا \x1b[31m\t\r\n"
    found = reply(SKILL, exited(0, text.encode()))
    assert (found.content, found.notes) == (text, ())
    smuggled = "\U000e0121\U000e0122"
    assert "\U000e0121" not in reply(SKILL, exited(0, f"x{smuggled}".encode())).content


# -- whatever comes -----------------------------------------------------------------------------------------

outputs = (
    st.binary(max_size=60)
    | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | json_values.map(lambda value: json.dumps(value, indent=1).encode())
    | st.sampled_from([b"", b"{", b'{"success":true}', b'{"success":0}', b"[" * 300, b'{"error":"\\u202e"}'])
)
endings = st.builds(
    Ending,
    end=st.sampled_from(End),
    exit_status=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    stdout=outputs,
    stderr=outputs,
    stdout_bytes=st.integers(0, 100),
    value=json_values
    | st.sampled_from([float("nan"), "\ud800", {"success": True, "x": 10**30}, {1: 2}, {(1,): 2}]),
    kind_of_value=st.sampled_from(["", "dict"]),
    reason=st.text(max_size=20),
    layers=st.sampled_from([(), HELD]),
)


@given(st.sampled_from(ALL), endings)
def test_a_reply_never_raises_and_always_gives_what_its_format_promises(of: Tool, ending: Ending) -> None:
    found = reply(of, ending)
    (block,) = found.blocks
    assert isinstance(block, TextBlock)
    text = block.text
    text.encode("utf-8")
    assert not any(char in text for char in "\0\u202e\U000e0041")
    jsontext.compact({"error": found.error.message if found.error else None})
    if of.reply is Reply.JSON_LINE:
        assert len(text.splitlines()) == 1
        if not any("not JSON" in note for note in found.notes):
            json.loads(text)
    elif of.reply is Reply.ENVELOPE:
        assert json.loads(text)["tool_success"] is found.ok
    elif of.reply is Reply.SUCCESS_DICT:
        told = json.loads(text)
        assert set(told) == {"success", "result" if found.ok else "error"}
        assert told["success"] is found.ok
    elif of.reply is Reply.ITEM:
        told = json.loads(text)
        assert (told["status"] == "success") is found.ok
        assert told["item_id"] == ITEM_ID
    elif not found.ok:
        assert text.startswith("error: ")
