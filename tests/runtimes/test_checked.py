"""The bytes that may run are those that were verified, however often the file is turned meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.moments import turn
from tests.strategies import make_tool
from toolcrib.bound import BoundTool
from toolcrib.catalog import digests
from toolcrib.model import CallPython, End, Ending, PythonStyle, ToolCall
from toolcrib.runtimes import _checked, _dependencies

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

    checked = _checked.own_file(BoundTool(tool), call, digests.Contents())
    assert isinstance(checked, _checked.Checked)
    assert checked.content == GOOD

    turn(link, files[EVIL])  # where the link leads is found out first
    answer = _checked.own_file(BoundTool(tool), call, Turned(link, cycle(files[look] for look in looks)))
    assert isinstance(answer, Ending)
    assert answer.end is End.DENIED


@pytest.mark.battery("G09")
def test_attack_a_link_put_in_the_place_of_a_file_once_its_place_was_found_out(tmp_path: Path) -> None:
    """It leads out of the space, to a file that the tool itself must not read."""
    file = tmp_path / "p" / ".ai" / "tools" / "t.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(GOOD)
    secret = tmp_path / "secret"
    secret.write_bytes(EVIL)
    invocation = CallPython(style=PythonStyle.FUNCTION, file=str(file))
    tool = replace(make_tool("t", {"type": "object"}), invocation=invocation)
    call = ToolCall(id="1", tool="t", arguments={})
    assert isinstance(_checked.own_file(BoundTool(tool), call, digests.Contents()), _checked.Checked)

    answer = _checked.own_file(BoundTool(tool), call, Turned(file, cycle([secret])))
    assert isinstance(answer, Ending)
    assert answer.end is End.DENIED


@pytest.mark.battery("G09")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_attack_a_link_put_among_what_a_tool_loads_once_it_was_found_to_be_none(
    tmp_path: Path, what: str
) -> None:
    anchor = tmp_path / "p"
    file = anchor / "lib" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(GOOD)
    secret = tmp_path / "lib" / "a.py"
    secret.parent.mkdir()
    secret.write_bytes(EVIL)
    scope = _dependencies.Scope(
        folders=((str(anchor), str(anchor)),), extensions=(".py",), excluded=frozenset(), recursive=True
    )
    contents = digests.Contents()
    for _ in range(2):  # where it lies is remembered
        assert [held.content for held in _dependencies.gather(scope, contents).files] == [GOOD]

    path, target = (file, secret) if what == "file" else (file.parent, secret.parent)

    class Replaced(digests.Contents):
        def file(self, wanted: str) -> digests.Held | None:
            if what == "folder":
                path.rename(tmp_path / "gone")
            turn(path, target)
            return super().file(wanted)

    with pytest.raises(_dependencies.Unfit, match=r"^Symlink escape: lib/a\.py$"):
        _dependencies.gather(scope, Replaced())
