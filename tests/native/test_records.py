"""The native bodies of records: of each one exactly what ``Audit`` writes itself, or nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal import work
from tests.strategies import (
    OwnDict,
    OwnText,
    Raising,
    calls_of_any_kind,
    credentials,
    durations,
    facts_of_any_kind,
    moments,
    nasty_texts,
    plain_texts,
    results_of_any_kind,
    runs_of_any_kind,
)
from toolwright.journal import audit as auditing
from toolwright.journal.audit import Audit, open_audit
from toolwright.journal.redaction import MARKER, has_credential
from toolwright.model import CallFacts, Run, Tool, ToolCall, ToolResult

try:
    import_module("toolwright.journal._records")
except ImportError:
    pytest.skip("_records was not built; a C compiler builds it", allow_module_level=True)


def _audit() -> Audit:
    return open_audit("/nowhere")  # it touches nothing before the first record


AUDIT = _audit()
BODIES: Any = auditing._bodies()
NOW = 1_800_000_000.25
TOOLS = (None, work.tool(), work.tool(latency="slow"), work.tool(cost={"per_invocation": 1}))


def begin(call: ToolCall, facts: CallFacts, now: float) -> tuple[bytes | None, bytes]:
    """Natively, and by the reference."""
    return BODIES.begin(call, facts, now), AUDIT._begin(call, facts, now)


def end(
    call: ToolCall, result: ToolResult, tool: Tool | None, now: float, run: Run | None
) -> tuple[bytes | None, bytes]:
    words = auditing._NO_WORDS if run is None else AUDIT._in_words(run)
    native = BODIES.end(call, result, tool, now, run, words.start, words.end)
    return native, AUDIT._end(call, result, tool, now, run, words)


# -- whatever it is -----------------------------------------------------------------------------------------


@given(calls_of_any_kind, facts_of_any_kind, moments)
def test_a_begin_is_what_the_reference_writes_or_nothing(
    call: ToolCall, facts: CallFacts, now: float
) -> None:
    native, reference = begin(call, facts, now)
    assert native is None or native == reference


@given(calls_of_any_kind, results_of_any_kind, st.sampled_from(TOOLS), moments, st.none() | runs_of_any_kind)
def test_an_end_is_what_the_reference_writes_or_nothing(
    call: ToolCall, result: ToolResult, tool: Tool | None, now: float, run: Run | None
) -> None:
    native, reference = end(call, result, tool, now, run)
    assert native is None or native == reference


@given(
    plain_texts,
    st.dictionaries(plain_texts, st.integers(0, 9), max_size=64),
    st.floats(1, 2**32),
    st.floats(0, 1e9),
    st.integers(0, 2**64 - 1),
)
def test_what_is_plain_is_written_natively(
    text: str, arguments: dict[str, Any], now: float, ms: float, count: int
) -> None:
    call = work.call(text, tool=text, arguments=arguments, caller=text, conversation=text)
    native, reference = begin(call, replace(work.FACTS, door=text, key=text, seen_digest=None), now)
    assert native == reference
    spent = replace(work.spent(ms), output_bytes=count, truncated=True)
    run = work.ran(duration_ms=ms, stdout_bytes=count, stderr_bytes=count, note=text)
    for tool in (None, work.tool()):
        for each in (None, run, replace(run, exit_status=None, note="")):
            result = work.result(spent=spent, isolation=(text, "layer"))
            native, reference = end(call, result, tool, now, each)
            assert native == reference


@pytest.mark.parametrize("key", ["", None])
def test_a_result_without_a_key_has_its_tool_s(key: Any) -> None:
    for tool in (None, work.tool()):
        native, reference = end(work.call(), ToolResult(call_id="c", key=key), tool, NOW, None)
        assert native == reference
        assert json.loads(reference)["key"] == (tool.key if tool is not None else None)


def _odd_ones() -> Iterator[ToolCall]:
    call = work.call()
    yield replace(call, arguments=None, raw="{")
    yield replace(call, arguments=[1, 2])  # type: ignore[arg-type]
    yield replace(call, arguments=OwnDict(a=1))
    yield replace(call, arguments={f"name {number}": 1 for number in range(65)})
    yield replace(call, arguments={"deep": 2**64})
    yield replace(call, arguments={"\ud800": 1})
    yield replace(call, arguments={"a": "\ud800"})
    yield replace(call, arguments={1: 2})  # type: ignore[dict-item]
    yield replace(call, arguments={OwnText("a"): 1})
    yield replace(call, arguments={"a": float("nan"), "b": object})
    yield replace(call, tool=OwnText("a text of a class of its own"))
    yield replace(call, dry_run=True)
    yield replace(call, approved_by="a person")
    yield replace(call, idempotency_key="")
    for text in ("\n", '"', "\\", "\x00", "\x1f", "\ud800", "a" * 9000):
        yield replace(call, id=text)
        yield replace(call, caller=text)
        yield replace(call, arguments={text: 1})


def test_a_begin_that_is_not_plain_is_left_to_the_reference() -> None:
    for call in _odd_ones():
        assert BODIES.begin(call, work.FACTS, NOW) is None, call
        assert json.loads(AUDIT._begin(call, work.FACTS, NOW))["what"] == "begin"


@pytest.mark.parametrize("text", ["\x7f", "é", "\u2028", "😀", "", " ", "a" * 500])
def test_texts_that_need_no_escape_are_written_as_they_are(text: str) -> None:
    native, reference = begin(work.call(arguments={text: text}, caller=text), work.FACTS, NOW)
    assert native == reference


def test_a_text_longer_than_a_body_is_left_to_the_reference() -> None:
    for size in range(7_700, 8_300, 7):
        native, reference = begin(work.call(caller="a" * size), work.FACTS, NOW)
        assert native is None or native == reference
    assert native is None


# -- numbers ------------------------------------------------------------------------------------------------


@given(st.floats(-(2**32), 2**32))
def test_a_moment_reads_back_within_half_a_millionth_of_a_second(now: float) -> None:
    native, reference = begin(work.call(), work.FACTS, now)
    for written in (native, reference):
        if written is not None:
            # Half of a part, and what doubles of this size do not tell apart.
            assert abs(json.loads(written)["ts"] - now) <= 0.5e-6 + abs(now) * 2**-51


@given(st.floats(0, 1e9))
def test_a_duration_reads_back_within_half_a_millionth_of_a_second(ms: float) -> None:
    native, reference = end(work.call(), work.result(spent=work.spent(ms)), None, NOW, None)
    for written in (native, reference):
        assert written is not None
        assert abs(json.loads(written)["ms"] - ms) <= 0.5e-3 + ms * 2**-51


@given(st.floats(), st.floats())
def test_no_number_that_a_clock_may_say_raises(now: float, ms: float) -> None:
    run = work.ran(duration_ms=ms)
    native, reference = end(work.call(), work.result(spent=work.spent(ms)), None, now, run)
    assert native is None or native == reference
    assert json.loads(reference)["what"] == "end"


@given(durations)
def test_a_duration_that_is_none_is_nothing(ms: float) -> None:
    _, reference = end(work.call(), work.result(spent=work.spent(ms)), None, NOW, None)
    if not ms > 0:
        assert json.loads(reference)["ms"] == 0


# -- credentials --------------------------------------------------------------------------------------------


@given(credentials, st.sampled_from(["", " ", "-", "é", "("]), st.integers(0, 3), nasty_texts)
def test_attack_a_credential_as_a_name_is_in_no_record(
    credential: str, around: str, where: int, other: str
) -> None:
    name = f"{around}{credential}{around}"
    assert has_credential(name)
    fields: dict[str, Any] = [{"tool": name}, {"caller": name}, {"conversation": name}, {}][where]
    arguments = {"a": 1, name: 2, other: 3} if where == 3 else {"a": 1}
    call = work.call(**{"arguments": arguments, **fields})
    for _ in range(2):  # also once it has been seen
        assert BODIES.begin(call, work.FACTS, NOW) is None
        written = AUDIT._begin(call, work.FACTS, NOW)
        assert orjson.dumps(credential)[1:-1] not in written
        assert MARKER.encode("ascii") in written


def test_names_that_are_none_are_looked_at_once_each_and_remembered_while_they_are_short() -> None:
    looked: list[str] = []

    def look(text: str) -> bool:
        looked.append(text)
        return False

    bodies = import_module("toolwright.journal._records").Bodies(
        dumps=orjson.dumps, option=orjson.OPT_SORT_KEYS, has_credential=look
    )
    short, middling, long = "a" * 14, "b" * 15, "c" * 201
    for _ in range(3):
        assert bodies.begin(work.call(arguments={short: 1, middling: 2}), work.FACTS, NOW) is not None
    assert looked == [middling]
    for _ in range(3):
        assert bodies.begin(work.call(arguments={long: 1}), work.FACTS, NOW) is not None
    assert looked == [middling, long, long, long]


def test_attack_names_without_end_are_forgotten_sometimes() -> None:
    bodies = import_module("toolwright.journal._records").Bodies(
        dumps=orjson.dumps, option=orjson.OPT_SORT_KEYS, has_credential=lambda _: False
    )
    names = [f"name number {number:010}" for number in range(5000)]
    before = sum(map(sys.getrefcount, names))
    for name in names:
        assert bodies.begin(work.call(arguments={name: 1}), work.FACTS, NOW) is not None
    assert 0 < sum(map(sys.getrefcount, names)) - before <= 4096
    del bodies, name
    assert sum(map(sys.getrefcount, names)) == before


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError, ValueError])
def test_what_looks_for_credentials_may_raise_and_nothing_is_written(raised: type[BaseException]) -> None:
    def look(text: str) -> bool:
        raise raised

    bodies = import_module("toolwright.journal._records").Bodies(
        dumps=orjson.dumps, option=orjson.OPT_SORT_KEYS, has_credential=look
    )
    for call in (work.call(caller="c" * 20), work.call(arguments={"a" * 20: 1, "b" * 20: 2})):
        with pytest.raises(raised):
            bodies.begin(call, work.FACTS, NOW)
    assert bodies.begin(work.call(), work.FACTS, NOW) is not None


def test_a_call_may_lose_what_it_holds_while_it_is_looked_at() -> None:
    call = SimpleNamespace(**{name: getattr(work.call(), name) for name in ToolCall.__slots__})
    call.caller, call.tool = "".join(["caller ", "x" * 20]), "".join(["tool ", "x" * 20])

    def look(text: str) -> bool:
        call.caller = call.tool = call.conversation = call.arguments = None
        return False

    bodies = import_module("toolwright.journal._records").Bodies(
        dumps=orjson.dumps, option=orjson.OPT_SORT_KEYS, has_credential=look
    )
    written = json.loads(bodies.begin(call, work.FACTS, NOW))
    assert (written["tool"], written["caller"]) == ("tool " + "x" * 20, "caller " + "x" * 20)
    assert written["arguments"] == ["zone"]


# -- what is no record --------------------------------------------------------------------------------------


def test_what_has_no_such_attributes_or_raises_is_not_plain() -> None:
    call, result = work.call(), work.result()
    for odd in (None, 1, "text", object(), Raising(), type):
        assert BODIES.begin(odd, work.FACTS, NOW) is None
        assert BODIES.begin(call, odd, NOW) is None
        assert BODIES.end(odd, result, None, NOW, None, b"", b"") is None
        assert BODIES.end(call, odd, None, NOW, None, b"", b"") is None
        assert BODIES.end(call, result, None, NOW, odd or 1, b"{", b"}") is None
        assert odd is None or BODIES.end(call, result, odd, NOW, None, b"", b"") is None
        assert BODIES.begin(call, work.FACTS, odd) is None
        assert BODIES.end(call, result, None, odd, None, b"", b"") is None
    assert BODIES.end(call, result, None, NOW, work.ran(), b"", b"") is None


def test_wrong_arguments_are_refused() -> None:
    call, result = work.call(), work.result()
    for given_ in ((), (call,), (call, work.FACTS), (call, work.FACTS, NOW, 1)):
        with pytest.raises(TypeError):
            BODIES.begin(*given_)
    for count in (0, 6, 8):
        with pytest.raises(TypeError):
            BODIES.end(*[None] * count)
    for words in (("text", b"}"), (b"{", None)):
        with pytest.raises(TypeError):
            BODIES.end(call, result, None, NOW, work.ran(), *words)
    with pytest.raises(TypeError):
        type(BODIES)(dumps=orjson.dumps)


def test_records_keep_no_references() -> None:
    text = "".join(["a text", " of ours"])
    call = work.call(caller=text, arguments={text: text})
    facts, run, result = replace(work.FACTS, door=text), work.ran(note=text), work.result(isolation=(text,))
    shared = (text, call, facts, run, result, call.arguments, result.spent)

    def once(odd: Any) -> None:
        end(call, result, work.tool(), NOW, run)
        BODIES.begin(call, facts, NOW)
        for wrong in (replace(call, dry_run=True), replace(call, arguments={"\n": text}), odd):
            BODIES.begin(wrong, facts, NOW)
            BODIES.end(wrong, odd, odd, NOW, odd, b"{", b"}")
        with suppress(TypeError):
            BODIES.end(call, result, None, NOW, run, None, None)

    once(Raising())
    before = [*map(sys.getrefcount, shared)]
    for _ in range(1000):
        once(Raising())
    assert [*map(sys.getrefcount, shared)] == before
