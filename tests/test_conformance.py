"""Every case of tests/conformance/formats holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cases


@pytest.mark.parametrize("case", list(cases.cases()), ids=lambda case: case.origin)
def test_a_case_gives_exactly_what_it_says(case: cases.Case, tmp_path: Path) -> None:
    cases.check(case, tmp_path.resolve())
