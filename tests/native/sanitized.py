"""``make sanitize``: tests of the spawner and the forker, with these built under AddressSanitizer and UBSan.

The package is copied, with native parts that end their process at their first mistake; tests that run with it
take them from there. Node comes without AddressSanitizer, so the forker has UBSan alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from hatch_build import BINARY, FORKER, FORKER_SOURCE, PACKAGE, SOURCE, shared_variants
from tests.native.compiling import BUILT, COMPILE_S, ROOT, compiler

SPAWNER_FLAGS = (
    "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # fmt: skip
FORKER_FLAGS = (
    "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=undefined", "-fno-sanitize-recover=all",
    "-static-libubsan",
)  # fmt: skip
TESTS = (
    "tests/sandbox/test_supervised.py",
    "tests/native/test_forker.py",
    "tests/runtimes/test_javascript.py",
)
USED = """
import sys
from toolcrib.runtimes.javascript import installed_addon
from toolcrib.sandbox.supervised import installed
for found in (installed(), installed_addon()):
    assert str(found).startswith(sys.argv[1]), found
    assert b"ubsan" in open(found, "rb").read(), found
"""
CHOSEN = ("-k", "not musl and not compiles and not an_old_one")


def package_in(folder: Path) -> dict[str, str]:
    """Put the package there; return the environment in which it is used."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=BUILT)
    (shared, *_) = shared_variants(os.uname().machine)
    for target, source, flags in (
        (BINARY, SOURCE, SPAWNER_FLAGS),
        (FORKER, FORKER_SOURCE, (*FORKER_FLAGS, *shared)),
    ):
        made = folder / target.relative_to(PACKAGE.parent)
        done = subprocess.run(
            [*compiler(), "-std=gnu17", *flags, "-o", str(made), str(source)],
            capture_output=True, text=True, timeout=COMPILE_S, check=False,
        )  # fmt: skip
        if done.returncode != 0 and ("sanitize" in done.stderr or "san" in done.stderr):
            pytest.skip("this compiler has no sanitizers; install gcc with libasan and libubsan")
        assert done.returncode == 0, done.stderr
        made.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-c", USED, str(folder)], env=env, timeout=COMPILE_S, check=True)
    return env


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)  # as root, tools run as another user
        try:
            env = package_in(place)
        except pytest.skip.Exception as why:
            sys.stderr.write(f"{why}\n")
            return 1
        tests = [sys.executable, "-m", "pytest", "-q", *(arguments or (*TESTS, *CHOSEN))]
        return subprocess.run(tests, env=env, check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
