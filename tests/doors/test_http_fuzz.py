"""Some hundreds of requests by schemathesis, the same in every run; `make fuzz-http` makes ten thousand."""

from __future__ import annotations

from pathlib import Path

from tests.doors.fuzzing import fuzz
from tests.program import WAIT_S


def test_generated_requests_are_answered_as_the_document_promises(tmp_path: Path) -> None:
    found = fuzz(tmp_path, examples=12, seed=20261115, timeout_s=4 * WAIT_S)
    assert found.status == 0, found.said[-5000:]
    assert found.requests > 500
    assert found.calls["ok"] > 0, "no tool was reached"
