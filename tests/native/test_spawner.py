"""The spawner as a program: how it is compiled, what is in it, that it comes along, and its parser.

What it does to tools is shown in tests/sandbox/test_supervised.py.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hatch_build import HARDENING, PROTECTION, STRICT, WARNINGS, compile_spawner, shared_variants, variants
from tests.native.compiling import (
    COMPILE_S,
    FORKER,
    KERNEL_HEADERS,
    ROOT,
    SPAWNER,
    checkout_in,
    compiled,
    compiler,
    wheel_of,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in PROTECTION,
    reason="the spawner is for Linux on x86-64 and aarch64",
)

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FUZZ_S = 3


def test_it_compiles_without_a_warning_and_hardened(tmp_path):
    compiler()
    target = tmp_path / "_spawner"
    assert compile_spawner(target) == ""
    said = subprocess.run([target, "--version"], capture_output=True, text=True, timeout=10, check=True)
    assert said.stdout == "toolcrib-spawner 6\n"
    headers = dict(_program_headers(target.read_bytes()))
    assert 3 not in headers, "it needs a loader, and so the C library of this machine"
    assert headers[0x6474E551] & 1 == 0, "its stack is executable"
    assert 0x6474E552 in headers, "its tables stay writable"
    assert [path.name for path in tmp_path.iterdir()] == ["_spawner"]


def _program_headers(elf: bytes) -> list[tuple[int, int]]:
    """Kind and flags of each."""
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    return [struct.unpack_from("<II", elf, offset + number * size) for number in range(count)]


@pytest.mark.parametrize("source", [SPAWNER, FORKER], ids=["spawner", "forker"])
@pytest.mark.parametrize(
    ("command", "machine"),
    [
        ("cc", platform.machine()),
        ("clang", platform.machine()),
        ("musl-gcc", platform.machine()),
        ("aarch64-linux-gnu-gcc", "aarch64"),
        ("x86_64-linux-gnu-gcc", "x86_64"),
    ],
)
def test_it_compiles_strictly_with_other_compilers(
    tmp_path: Path, request: pytest.FixtureRequest, command: str, machine: str, source: Path
) -> None:
    if command == "musl-gcc":
        request.getfixturevalue("musl_gcc")
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed; install it to run this test")
    kinds = variants if source is SPAWNER else shared_variants
    flags = (*WARNINGS, STRICT, *HARDENING, *kinds(machine)[0], *KERNEL_HEADERS.get(command, ()))
    argv = [command, *flags, "-o", str(tmp_path / "made"), str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "target",
    ["x86_64-linux-musl", "aarch64-linux-musl", "x86_64-linux-gnu.2.28", "aarch64-linux-gnu.2.28"],
)
def test_it_compiles_strictly_for_other_machines(tmp_path: Path, target: str) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; `.venv/bin/pip install ziglang` (90 MB) to run this test")
    machine = target.split("-")[0]
    for source, kinds in ((SPAWNER, variants), (FORKER, shared_variants)):
        flags = (*WARNINGS, STRICT, *HARDENING, PROTECTION[machine], *kinds(machine)[-1])
        argv = [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags, "-c"]
        argv += ["-Wno-unused-command-line-argument", "-o", str(tmp_path / "made.o"), str(source)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_S, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_warning_that_only_some_compilers_know_is_no_reason_for_less_isolation(tmp_path):
    compiler()
    target, source = tmp_path / "_spawner", tmp_path / "warned.c"
    source.write_text("int main(void) { int unused; return 0; }\n", encoding="ascii")
    assert compile_spawner(target, source) == ""
    assert subprocess.run([target], timeout=10, check=False).returncode == 0


def test_it_says_why_there_is_none_and_leaves_no_old_one(tmp_path):
    compiler()
    target, source = tmp_path / "_spawner", tmp_path / "broken.c"
    target.write_bytes(b"old")
    source.write_text("int main(void) { return nothing; }\n", encoding="ascii")
    assert "nothing" in compile_spawner(target, source)
    assert not target.exists()
    assert "No such file or directory" in compile_spawner(tmp_path / "missing" / "_spawner")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout_in(tmp_path_factory.mktemp("checkout"))


def test_a_wheel_carries_it_ready_to_run(checkout, tmp_path):
    compiler()
    wheel, _ = wheel_of(checkout, tmp_path / "out")
    assert wheel.name.endswith(
        f"py3-none-manylinux_2_17_{platform.machine()}.musllinux_1_1_{platform.machine()}.whl"
    )
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert names.count("toolcrib/sandbox/_spawner") == 1
        assert names.count("toolcrib/runtimes/_forker.node") == 1
        assert names.count("toolcrib/runtimes/_driver.js") == 1
        assert (archive.getinfo("toolcrib/sandbox/_spawner").external_attr >> 16) & 0o111 == 0o111
        path = archive.extract("toolcrib/sandbox/_spawner", tmp_path)
    os.chmod(path, 0o755)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    assert said.stdout == "toolcrib-spawner 6\n"


def test_without_a_compiler_a_wheel_is_complete_but_for_it_and_the_build_says_so(checkout, tmp_path):
    wheel, said = wheel_of(checkout, tmp_path / "out", CC=str(tmp_path / "missing"))
    assert wheel.name.endswith("py3-none-any.whl")
    assert "the spawner was not built, so tools run less isolated" in said
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "toolcrib/sandbox/_spawner" not in names
    assert "toolcrib/runtimes/_forker.node" not in names
    assert "toolcrib/sandbox/supervised.py" in names


def test_no_message_breaks_the_parser():
    """`make fuzz-spawner` is the large run."""
    program = compiled("fuzz-spawner", ROOT / "fuzz" / "spawner.c", SANITIZED)
    done = subprocess.run(
        [program, str(FUZZ_S), "20261115"],
        capture_output=True,
        text=True,
        timeout=FUZZ_S + COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    messages, accepted = (int(word) for word in done.stdout.split() if word.isdigit())
    assert messages > 10_000
    assert accepted > 1_000
