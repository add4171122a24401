"""The extension modules: how they are built, that they come along, and that all works without them.

What each one does is tested with its twin in Python (tests/journal/test_pen.py).
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from hatch_build import (
    EXTENSIONS,
    HARDENING,
    PACKAGE,
    PROTECTION,
    STRICT,
    WARNINGS,
    compile_extension,
    python_flags,
    shared_variants,
)
from tests.native import sanitized
from tests.native.compiling import COMPILE_S, ROOT, checkout_in, compiler, wheel_of
from toolwright import extensions

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in PROTECTION,
    reason="the extensions are built on Linux on x86-64 and aarch64",
)
SOURCES = pytest.mark.parametrize("source", EXTENSIONS.values(), ids=lambda path: path.stem)
NO_HEADERS = "Python's headers were not found (Debian, Ubuntu: apt-get install python3-dev)"

USED = """
import sys, tempfile
from toolwright.journal.audit import open_audit
from toolwright.journal.pen import PlainPen, installed
from toolwright.model import CallFacts, ToolCall, ToolResult

with tempfile.TemporaryDirectory() as state:
    audit = open_audit(state)
    call = ToolCall(id="a", tool="t", arguments={})
    assert audit.begin(call, CallFacts(door="test", key="k", format="manifest"))
    audit.end(call, ToolResult(call_id="a"))
    audit.close()
print("plain" if installed() is PlainPen else sys.modules["toolwright.journal._pen"].__file__)
"""


def needs_headers() -> None:
    compiler()
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("Python's headers are not installed; install python3-dev to run this test")


def used_by(package: Path) -> str:
    """Which pen a host writes with that has the package here: where the native one lies, or "plain"."""
    done = subprocess.run(
        [sys.executable, "-c", USED],
        env={"PATH": os.defpath, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("target", EXTENSIONS, ids=lambda path: path.name)
def test_one_compiles_without_a_warning_and_hardened_and_can_be_imported(
    tmp_path: Path, target: Path
) -> None:
    needs_headers()
    made = tmp_path / target.name
    assert compile_extension(made, EXTENSIONS[target], (STRICT,)) == ""
    elf = made.read_bytes()
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    headers = dict(struct.unpack_from("<II", elf, offset + number * size) for number in range(count))
    assert headers[0x6474E551] & 1 == 0, "its stack is executable"
    assert 0x6474E552 in headers, "its tables stay writable"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_what_is_built_is_what_is_looked_for() -> None:
    names = {".".join(target.relative_to(PACKAGE.parent).parts) for target in EXTENSIONS}
    assert names == {f"{name}.abi3.so" for name in extensions.MEANINGS}


def test_attack_a_free_threaded_python_crashes_at_what_was_built_for_another() -> None:
    """A wheel fits it, and it takes files of this name for its own (python/cpython#120901)."""
    for name in extensions.MEANINGS:
        assert extensions.load(name, abi_flags="t") is None
        assert "free-threaded" in extensions.why_not(name, abi_flags="td")


@SOURCES
@pytest.mark.parametrize(
    ("command", "machine"),
    [
        ("cc", platform.machine()),
        ("clang", platform.machine()),
        ("aarch64-linux-gnu-gcc", "aarch64"),
        ("x86_64-linux-gnu-gcc", "x86_64"),
    ],
)
def test_it_compiles_strictly_with_other_compilers(
    tmp_path: Path, command: str, machine: str, source: Path
) -> None:
    needs_headers()
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed; install it to run this test")
    flags = (*WARNINGS, STRICT, *HARDENING, *shared_variants(machine)[0], *python_flags())
    argv = [command, *flags, "-o", str(tmp_path / "made.so"), str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if "pyconfig.h" in done.stderr and machine != platform.machine():
        pytest.skip(f"Python's headers here know no {machine}; a Python that was built here has ones that do")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_warning_that_only_some_compilers_know_is_no_reason_for_a_slower_journal(tmp_path: Path) -> None:
    needs_headers()
    (source,) = (path for path in EXTENSIONS.values() if path.name == "pen.c")
    warned = tmp_path / "pen.c"
    warned.write_text(f"static int unused(void) {{ return 0; }}\n#include <{source}>\n", encoding="utf-8")
    assert compile_extension(tmp_path / "_pen.abi3.so", warned) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int nothing_else(void) { return nothing; }\n", "nothing"),
        ("int no_module(void) { return 0; }\n", "PyInit__pen"),
        (
            'int *nowhere;\n__attribute__((visibility("default"))) void *PyInit__pen(void) {'
            " *(volatile int *)nowhere = 1; return 0; }\n",
            "SIGSEGV",
        ),
        ("#include <Python.h>\n#include <another.h>\n", "another.h"),
    ],
    ids=["broken", "no-module", "crashing", "another-header"],
)
def test_what_cannot_be_imported_is_not_left_and_neither_is_an_old_one(
    tmp_path: Path, text: str, why: str
) -> None:
    needs_headers()
    target, source = tmp_path / "_pen.abi3.so", tmp_path / "broken.c"
    target.write_bytes(b"old")
    source.write_text(text, encoding="ascii")
    assert why in compile_extension(target, source)
    assert list(tmp_path.iterdir()) == [source]


def test_a_wheel_carries_them_and_a_host_uses_them(tmp_path: Path) -> None:
    needs_headers()
    wheel, _ = wheel_of(checkout_in(tmp_path / "checkout"), tmp_path / "out")
    assert wheel.name.endswith(
        f"py3-none-manylinux_2_17_{platform.machine()}.musllinux_1_1_{platform.machine()}.whl"
    )
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for target in EXTENSIONS:
            assert names.count(target.relative_to(PACKAGE.parent).as_posix()) == 1
        archive.extractall(tmp_path / "installed")
    assert used_by(tmp_path / "installed") == str(tmp_path / "installed/toolwright/journal/_pen.abi3.so")


@pytest.mark.parametrize("missing", ["compiler", "headers"])
def test_without_a_compiler_or_pythons_headers_the_build_says_why_and_all_works(
    tmp_path: Path, missing: str
) -> None:
    said = NO_HEADERS
    if missing == "compiler":
        without = tmp_path / "missing"
        said = str(without)
    else:
        without = tmp_path / "without-headers"
        without.write_text(WITHOUT_HEADERS.format(" ".join(compiler())), encoding="utf-8")
        without.chmod(0o755)
    wheel, told = wheel_of(checkout_in(tmp_path / "checkout"), tmp_path / "out", CC=str(without))
    told = " ".join(told.split())
    for target in EXTENSIONS:
        assert f"{target.name} was not built, so all calls are slower: " in told
    assert said in told
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert [name for name in names if name.endswith(".so")] == []
    assert ("toolwright/sandbox/_spawner" in names) is (missing == "headers")
    assert wheel.name.endswith("py3-none-any.whl") is (missing == "compiler")
    assert used_by(tmp_path / "installed") == "plain"


WITHOUT_HEADERS = """#!/bin/sh
for word; do
    shift
    case $word in
    -isystem) is_folder=1 ;;
    *) [ -n "$is_folder" ] || set -- "$@" "$word"; is_folder= ;;
    esac
done
exec {} "$@"
"""
"""A compiler that finds no headers of Python."""


def test_under_sanitizers_they_make_no_mistake(tmp_path: Path) -> None:
    """`make sanitize` runs the same and shows it; with ARGS any other test."""
    needs_headers()
    env = sanitized.package_in(tmp_path)
    done = subprocess.run(
        sanitized.tests(*sanitized.TESTS, *sanitized.CHOSEN, "-x"),
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
