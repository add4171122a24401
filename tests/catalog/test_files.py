"""Contained, bounded reads: nothing blocks, nothing grows, nothing leaves its folder."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolcrib import jsontext, schema
from toolcrib.calls import commands
from toolcrib.catalog import files
from toolcrib.formats import _node, _python_source, _source, _toml, _yaml, capability
from toolcrib.sandbox import discovery


def refusal(path: str | Path, limit: int = files.DOCUMENT_BYTES_MAX) -> str:
    content, why = files.read(str(path), limit)
    assert content is None
    assert why is not None
    return why


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * 100)
    assert files.read(str(path), 100) == (b"x" * 100, None)
    assert refusal(path, 99) == "it has 100 bytes, more than the 99 a declaration may have"
    path.write_bytes(b"")
    assert files.read(str(path)) == (b"", None)


def test_a_document_of_a_mebibyte_is_read_and_not_a_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b" " * files.DOCUMENT_BYTES_MAX)
    content, _ = files.read(str(path))
    assert content is not None
    assert len(content) == 1_048_576
    path.write_bytes(b" " * (files.DOCUMENT_BYTES_MAX + 1))
    assert refusal(path) == "it has 1,048,577 bytes, more than the 1,048,576 a declaration may have"


def test_a_sparse_file_of_a_gibibyte_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch()
    os.truncate(path, 1 << 30)
    assert refusal(path) == "it has 1,073,741,824 bytes, more than the 1,048,576 a declaration may have"


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refusal(tmp_path / "fifo") == "not a regular file"
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder") == "it is a directory"
    assert refusal("/dev/zero") == "not a regular file"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert refusal(tmp_path / "s") == "no such device or address"


def test_the_systems_refusals_are_told_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert refusal(tmp_path / "missing") == "no such file or directory"
    assert refusal(tmp_path / "dangling") == "no such file or directory"
    assert refusal(tmp_path / "loop") == "its symbolic links lead in a circle"
    assert refusal(tmp_path / "file" / "below") == "a part of the path is not a directory"
    assert refusal(tmp_path / ("x" * 300)) == "the path is too long"


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A folder of a user whom permissions stop; root becomes one for a while."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)


def test_a_file_that_may_not_be_read_says_so() -> None:
    with ordinary_user() as folder:
        path = folder / "a.json"
        path.write_bytes(b"{}")
        path.chmod(0)
        assert refusal(path) == "permission denied"
        assert not files.inside(str(folder / "closed" / "x"), str(folder))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("proj", True),
        ("proj/a", True),
        ("proj/../proj/a", True),
        ("proj-evil/a", False),
        ("proj/../proj-evil/a", False),
        ("proj/out", False),
        ("proj/out/a", False),
        ("proj/home", True),
        ("proj/missing", False),
        ("proj/loop", False),
        (".", False),
    ],
)
def test_inside_means_below_the_real_folder(tmp_path: Path, path: str, expected: bool) -> None:
    root = tmp_path.resolve()
    for name in ("proj", "proj-evil"):
        (root / name).mkdir()
        (root / name / "a").touch()
    (root / "proj" / "out").symlink_to(root / "proj-evil")
    (root / "proj" / "home").symlink_to(root / "proj" / "a")
    (root / "proj" / "loop").symlink_to("loop")
    assert files.inside(str(root / path), str(root / "proj")) is expected


def test_a_fingerprint_tells_size_time_and_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    first = files.fingerprint(path.stat())
    assert files.fingerprint(path.stat()) == first
    path.write_bytes(b"22")
    assert files.fingerprint(path.stat())[0] == 2
    os.utime(path, ns=(1, 1))
    assert files.fingerprint(path.stat())[1] == 1
    (tmp_path / "b").write_bytes(b"22")
    os.replace(tmp_path / "b", path)
    assert files.fingerprint(path.stat())[2] != first[2]


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


def test_the_page_of_limits_has_their_values() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for value in (
        files.DOCUMENT_BYTES_MAX,
        files.ENTRIES_MAX,
        files.DEPTH_MAX,
        jsontext.DEPTH_MAX,
        jsontext.VALUES_MAX,
        jsontext.INTEGER_DIGITS_MAX,
        _yaml.NODES_MAX,
        _source.PARTS_MAX,
        _source.TEXT_MAX,
        _node.PROBLEMS_MAX,
        _node.SHOWN_CHARS_MAX,
        _node.NAME_CHARS_MAX,
        schema.DEPTH_MAX,
        schema.NODES_MAX,
        schema.PATTERN_BYTES_MAX,
        schema.COMPLAINTS_MAX,
        schema.PATTERN_CHARS_MAX,
        schema.PATTERNS_BYTES_MAX,
        schema.LISTED_VALUES_MAX,
        _python_source.SOURCE_BYTES_MAX,
        _toml.TOML_BYTES_MAX,
        _yaml.TAG_DIRECTIVES_MAX,
        capability.KEYWORDS_MAX,
        discovery.PROBE_OUTPUT_BYTES_MAX,
        discovery.PROBES_AT_ONCE,
        commands.ELEMENT_BYTES_MAX,
        commands.ARGV_BYTES_MAX,
    ):
        assert f"| {value:,} " in page or f" {value:,} " in page, value
    source = Path(files.__file__).parents[1]
    places = {name for row in page.splitlines() for name in re.findall(r"`([a-z_/]+\.py)`", row)}
    assert len(places) > 8
    assert [name for name in places if not (source / name).is_file()] == []


def test_a_file_that_leads_out_is_not_read_and_neither_is_told_what_lies_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"y")
    for name, target in {"in": "a", "out": "../b", "nowhere": "../c", "dangling": "c"}.items():
        (root / name).symlink_to(target)
    found = {name: files.read(str(root / name), within=str(root)) for name in os.listdir(root)}
    assert found == {
        "a": (b"x", None),
        "in": (b"x", None),
        "out": (None, files.LEADS_OUT),
        "nowhere": (None, files.LEADS_OUT),
        "dangling": (None, "no such file or directory"),
    }
    place = files.place(str(root / "out"))
    assert place == (str(tmp_path / "b"), files.fingerprint(os.stat(tmp_path / "b")))
    assert files.place(str(root / "nowhere")) is None
