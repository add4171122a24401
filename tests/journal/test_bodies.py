"""The bodies of records, whatever was called and however it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.journal import work
from tests.strategies import (
    calls_of_any_kind,
    credentials,
    durations,
    facts_of_any_kind,
    moments,
    nasty_texts,
    results_of_any_kind,
    runs_of_any_kind,
)
from toolcrib.journal.audit import Audit, Seals
from toolcrib.journal.chain import BODY_BYTES_MAX
from toolcrib.journal.redaction import MARKER, has_credential
from toolcrib.journal.segments import Segments
from toolcrib.model import CallFacts, Run, Tool, ToolCall, ToolResult

NOW = 1_800_000_000.25
TOOLS = (None, work.tool(), work.tool(latency="slow"), work.tool(cost={"per_invocation": 1}))


class Kept(Segments):
    """Keeps bodies in memory instead of a file."""

    def __init__(self) -> None:
        super().__init__("/nowhere", seal=Seals("/nowhere"))
        self.bodies: list[bytes] = []

    def append(self, bodies: Sequence[bytes], *, durable: bool) -> None:
        self.bodies += bodies


def begun(call: ToolCall, facts: CallFacts = work.FACTS, now: float = NOW) -> bytes:
    """Return the body of a begin."""
    kept = Kept()
    assert Audit(kept, clock=lambda: now).begin(call, facts)
    (body,) = kept.bodies
    return body


def ended(
    result: ToolResult, tool: Tool | None = None, now: float = NOW, call: ToolCall | None = None
) -> list[bytes]:
    """Return the bodies of an end: its runs first, then the end itself."""
    kept = Kept()
    Audit(kept, clock=lambda: now).end(call or work.call(), result, tool)
    return kept.bodies


@given(calls_of_any_kind, facts_of_any_kind, moments)
def test_every_call_has_one_bounded_begin(call: ToolCall, facts: CallFacts, now: float) -> None:
    body = begun(call, facts, now)
    assert orjson.loads(body)["what"] == "begin"
    assert len(body) <= BODY_BYTES_MAX


@given(calls_of_any_kind, results_of_any_kind, st.sampled_from(TOOLS), moments, st.none() | runs_of_any_kind)
@example(work.call(), work.result(), None, float("inf"), work.ran(exit_status=2**70))
def test_every_result_has_one_bounded_end(
    call: ToolCall, result: ToolResult, tool: Tool | None, now: float, run: Run | None
) -> None:
    more: dict[str, Any] = {name: getattr(result, name) for name in ToolResult.__struct_fields__}
    given_ = ToolResult(**{**more, "runs": () if run is None else (run,)})
    bodies = ended(given_, tool, now, call)
    assert [orjson.loads(body)["what"] for body in bodies].count("end") == 1
    assert all(len(body) <= BODY_BYTES_MAX for body in bodies)


@pytest.mark.parametrize("key", ["", None])
def test_a_result_without_a_key_has_its_tool_s(key: Any) -> None:
    for tool in (None, work.tool()):
        (body,) = ended(ToolResult(call_id="c", key=key), tool)
        assert orjson.loads(body)["key"] == (tool.key if tool is not None else None)


@given(st.floats(-(2**32), 2**32))
def test_a_moment_reads_back_within_half_a_millionth_of_a_second(now: float) -> None:
    # Half of a part, and what doubles of this size do not tell apart.
    assert abs(orjson.loads(begun(work.call(), now=now))["ts"] - now) <= 0.5e-6 + abs(now) * 2**-51


@given(durations)
def test_a_duration_reads_back_within_half_a_millionth_of_a_second_and_is_never_negative(ms: float) -> None:
    (body,) = ended(work.result(spent=work.spent(ms)))
    written = orjson.loads(body)["ms"]
    if not ms > 0:
        assert written == 0
    elif ms < 1e9:
        assert abs(written - ms) <= 0.5e-3 + ms * 2**-51


@given(credentials, st.sampled_from(["", " ", "-", "é", "("]), st.integers(0, 3), nasty_texts)
def test_attack_a_credential_as_a_name_is_in_no_record(
    credential: str, around: str, where: int, other: str
) -> None:
    name = f"{around}{credential}{around}"
    assert has_credential(name)
    fields: dict[str, Any] = [{"tool": name}, {"caller": name}, {"conversation": name}, {}][where]
    arguments = {"a": 1, name: 2, other: 3} if where == 3 else {"a": 1}
    for _ in range(2):  # also once it has been seen
        written = begun(work.call(**{"arguments": arguments, **fields}))
        assert orjson.dumps(credential)[1:-1] not in written
        assert MARKER.encode("ascii") in written
