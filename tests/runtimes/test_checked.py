"""The bytes that may run are those that were verified, however often the file is turned meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.strategies import make_tool
from toolwright.catalog import digests
from toolwright.model import CallPython, End, Ending, PythonStyle, ToolCall
from toolwright.records import replace
from toolwright.runtimes import _checked

GOOD, EVIL = b"good", b"evil"


class Turned(digests.Contents):
    """Somebody turns a link before each look at it."""

    def __init__(self, link: Path, targets: Iterator[Path]) -> None:
        super().__init__()
        self._link = link
        self._targets = targets

    def file(self, path: str) -> digests.Held | None:
        turn(self._link, next(self._targets))
        return super().file(path)


def turn(link: Path, target: Path) -> None:
    draft = link.with_suffix(".draft")
    draft.symlink_to(target)
    os.replace(draft, link)


@pytest.mark.battery("G09")
@pytest.mark.parametrize("looks", [[EVIL], [EVIL, GOOD], [EVIL, GOOD, EVIL], [EVIL, EVIL, GOOD]])
def test_attack_a_link_that_leads_to_the_verified_file_at_every_look_but_one(
    tmp_path: Path, looks: list[bytes]
) -> None:
    files = {content: tmp_path / content.decode("ascii") for content in (GOOD, EVIL)}
    for content, path in files.items():
        path.write_bytes(content)
    link = tmp_path / "t.py"
    turn(link, files[GOOD])
    invocation = CallPython(style=PythonStyle.FUNCTION, file=str(link))
    tool = replace(make_tool("t", {"type": "object"}), invocation=invocation)
    verified = digests.Contents().runs(digests.how(invocation), (str(link),))
    call = ToolCall(id="1", tool="t", arguments={}, runs_digest=verified)

    checked = _checked.own_file(tool, call, digests.Contents())
    assert isinstance(checked, _checked.Checked)
    assert checked.content == GOOD

    turn(link, files[EVIL])  # where the link leads is found out first
    answer = _checked.own_file(tool, call, Turned(link, cycle(files[look] for look in looks)))
    assert isinstance(answer, Ending)
    assert answer.end is End.DENIED
