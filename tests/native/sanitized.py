"""``make sanitize``: tests of the extension modules, with these built under AddressSanitizer and UBSan.

The package is copied, with modules that end their process at their first mistake; tests that run with it take
the modules from there. The interpreter itself is as it is: what it leaks is not looked at.
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

from hatch_build import EXTENSIONS, PACKAGE, WARNINGS, python_flags
from tests.native.compiling import BUILT, COMPILE_S, ROOT, compiler

FLAGS = (
    *WARNINGS, "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all", "-fPIC", "-shared",
)  # fmt: skip
TESTS = ("tests/journal/test_pen.py", "tests/journal/test_segments.py")
"""Of what the modules do. What is freed is kept aside for a while, so memory may grow."""
CHOSEN = ("-k", "not plain and not memory_does_not_grow")
USED = """
import sys
from importlib import import_module
for name in sys.argv[2:]:
    assert import_module(name).__file__.startswith(sys.argv[1]), name
assert "libasan" in open("/proc/self/maps", encoding="ascii").read()
"""


def package_in(folder: Path) -> dict[str, str]:
    """Put the package there; the environment in which it is used."""
    library = _said_by(*compiler(), "-print-file-name=libasan.so").strip()
    if not os.path.isabs(library):
        pytest.skip("this compiler has no sanitizers; install gcc with libasan and libubsan to run this test")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=BUILT)
    for target, source in EXTENSIONS.items():
        made = folder / target.relative_to(PACKAGE.parent)
        _said_by(*compiler(), *FLAGS, *python_flags(), "-o", str(made), str(source))
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder),
        "PYTHONMALLOC": "malloc",  # so that objects of Python are watched as well
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    names = [
        ".".join(target.relative_to(PACKAGE.parent).parts).partition(".abi3")[0] for target in EXTENSIONS
    ]
    _said_by(sys.executable, "-c", USED, str(folder), *names, env=env)
    return env


def _said_by(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=COMPILE_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tests(*arguments: str) -> list[str]:
    """The command that runs them, and does not keep what a sanitizer says."""
    return [sys.executable, "-m", "pytest", "-q", "--capture=sys", *arguments]


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            env = package_in(Path(folder))
        except pytest.skip.Exception as why:
            sys.stderr.write(f"{why}\n")
            return 1
        return subprocess.run(
            tests(*(arguments or (*TESTS, *CHOSEN))), env=env, check=False, cwd=ROOT
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
