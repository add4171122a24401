"""Compiles what the native tests need; a machine without a compiler skips them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from hatch_build import HARDENING, STRICT, WARNINGS, variants
from toolcrib.sandbox import supervised

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SPAWNER = ROOT / "src" / "native" / "spawner.c"
FORKER = SPAWNER.with_name("forker.c")
COMPILE_S = 120
KERNEL_HEADERS = {
    "musl-gcc": ("-idirafter", "/usr/include", "-idirafter", f"/usr/include/{os.uname().machine}-linux-gnu")
}
"""Where Debian's musl-gcc finds the kernel's headers; other systems with musl have them in their place."""


def compiler() -> list[str]:
    """The command of the C compiler."""
    found = (
        os.environ.get("CC", "").split()
        or [path for path in map(shutil.which, ("cc", "gcc", "clang")) if path][:1]
    )
    if not found:
        pytest.skip("there is no C compiler; install gcc to run this test")
    return found


@cache
def _held() -> tempfile.TemporaryDirectory[str]:
    """Removed when the interpreter ends."""
    return tempfile.TemporaryDirectory(prefix="toolcrib-native-")


def folder() -> Path:
    """Where the compiled programs lie: every user may reach it, unlike pytest's own folders."""
    path = Path(os.path.realpath(_held().name))
    path.chmod(0o755)
    return path


@cache
def compiled(name: str, source: Path, flags: Sequence[str] = ("-O1", "-static", "-pthread")) -> Path:
    target = folder() / name
    command = [*compiler(), "-std=gnu17", *flags, "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if done.returncode != 0 and ("sanitize" in done.stderr or "asan" in done.stderr):
        pytest.skip("this compiler has no sanitizers; install libasan and libubsan to run this test")
    assert done.returncode == 0, done.stderr
    target.chmod(0o755)
    return target


@cache
def spawner() -> str:
    """A copy of the installed spawner, where every user may start it."""
    found = supervised.installed()
    if found is None:
        pytest.skip("the spawner was not built; install a C compiler and run `make` to run this test")
    target = folder() / "spawner"
    shutil.copyfile(found, target)
    target.chmod(0o755)
    return str(target)


@cache
def checked_spawner() -> str:
    """The spawner with the sanitizers in it, which end it at its first mistake."""
    flags = (
        "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
    )  # fmt: skip
    return str(compiled("checked-spawner", SPAWNER, flags))


@cache
def musl_spawner() -> str:
    """The spawner with the other C library in it, as on Alpine. Needs the fixture ``musl_gcc``."""
    target = folder() / "musl-spawner"
    flags = (*WARNINGS, STRICT, *HARDENING, *variants(os.uname().machine)[0], *KERNEL_HEADERS["musl-gcc"])
    command = ["musl-gcc", *flags, "-o", str(target), str(SPAWNER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    target.chmod(0o755)
    return str(target)


def trouble() -> str:
    """The tool that misbehaves as it is told."""
    return str(compiled("trouble", HERE / "trouble.c"))


BUILT = shutil.ignore_patterns("_spawner", "_forker.node", "*.so", "__pycache__")


def checkout_in(folder: Path) -> Path:
    """What a build needs of this checkout, without what was built here."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=BUILT)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def wheel_of(checkout: Path, target: Path, **env: str) -> tuple[Path, str]:
    """A wheel, and what was said while it was built."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel, done.stdout + done.stderr
