"""The build hook: compiles the spawner and the forker into the package.

With a C compiler, an installation (also an editable one) and a wheel carry ``toolcrib/sandbox/_spawner``
and ``toolcrib/runtimes/_forker.node``; this wheel fits one architecture. Without a compiler the package
lacks only these two: the isolation level drops to ``restricted`` or ``portable``, and each JavaScript call
starts a Node. ``toolcrib doctor`` and every result say so.

``python hatch_build.py`` compiles them by hand and lists them; ``make`` does so when a source is newer.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, where only compiling is wanted
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "src" / "native"
PACKAGE = ROOT / "src" / "toolcrib"
SOURCE = NATIVE / "spawner.c"
BINARY = PACKAGE / "sandbox" / "_spawner"
FORKER_SOURCE = NATIVE / "forker.c"
FORKER = PACKAGE / "runtimes" / "_forker.node"

WARNINGS = ("-std=c17", "-Wall", "-Wextra", "-Wshadow", "-Wconversion")
STRICT = "-Werror"
_COMPILE_S = 120
_TRIAL_S = 30
HARDENING = (
    "-O2", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now",
    "-Wl,-z,noexecstack", "-s",
)  # fmt: skip
# Per architecture: jumps land only where the compiler meant them to.
PROTECTION = {"x86_64": "-fcf-protection", "aarch64": "-mbranch-protection=standard"}


def variants(machine: str) -> tuple[tuple[str, ...], ...]:
    """In this order: not every compiler and libc has all of them, and a result must run before it counts."""
    return (
        (PROTECTION[machine], "-fPIE", "-static-pie"),
        ("-fPIE", "-static-pie"),
        (PROTECTION[machine], "-static"),
        ("-static",),
    )


def shared_variants(machine: str) -> tuple[tuple[str, ...], ...]:
    """For what Node loads; only its one entrance can be seen from outside."""
    shared = ("-fPIC", "-fvisibility=hidden", "-shared")
    return ((PROTECTION[machine], *shared), shared)


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it puts a wheel together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        made = []
        for target, reason in compile_all().items():
            if reason:
                self.app.display_warning(complaint(target, reason))
            else:
                made.append(target)
        if not made:
            return
        if version != "editable":
            for target in made:
                build_data["force_include"][str(target)] = target.relative_to(PACKAGE.parent).as_posix()
        build_data["pure_python"] = False
        # The spawner is static, so it fits every Linux of the architecture, whatever its C library. The
        # forker needs what Node itself needs, and a C library that is as new as the one here; where it cannot
        # be loaded, it is not used.
        build_data["tag"] = f"py3-none-{_platform_tag()}"


def compile_all() -> dict[Path, str]:
    """All that is compiled into the package, each with the reason why there is none; empty: there is."""
    return {BINARY: compile_spawner(BINARY), FORKER: compile_forker(FORKER)}


def complaint(target: Path, reason: str) -> str:
    """What people read where something was not built."""
    if target == BINARY:
        return f"the spawner was not built, so tools run less isolated: {reason}"
    return f"the forker was not built, so JavaScript tools are slower: {reason}"


def compile_spawner(target: Path, source: Path = SOURCE, extra: tuple[str, ...] = ()) -> str:
    """Compile the source; an empty text, or why there is no binary. An old one is not left in its place."""
    return _compile(target, source, variants, extra, lambda made: [str(made), "--version"])


def compile_forker(target: Path, source: Path = FORKER_SOURCE, extra: tuple[str, ...] = ()) -> str:
    """As ``compile_spawner``. Node's functions are found when Node loads it, so nothing is tried here."""
    return _compile(target, source, shared_variants, extra, None)


Variants = Callable[[str], tuple[tuple[str, ...], ...]]
Trial = Callable[[Path], list[str]] | None


def _compile(target: Path, source: Path, kinds: Variants, extra: tuple[str, ...], trial: Trial) -> str:
    try:
        reason = _compiled(target, source, kinds, extra, trial)
    except OSError as error:  # the folder cannot be written to, or the disk is full
        reason = str(error)
    if reason:
        with suppress(OSError):
            target.unlink(missing_ok=True)
    return reason


def _compiled(target: Path, source: Path, kinds: Variants, extra: tuple[str, ...], trial: Trial) -> str:
    if sys.platform != "linux" or platform.machine() not in PROTECTION:
        return f"it runs on Linux on {' and '.join(PROTECTION)}"
    compiler = os.environ.get("CC", "").split() or _compiler()
    if not compiler:
        return "no C compiler was found (Debian, Ubuntu: apt-get install gcc libc6-dev)"
    reason = ""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder, target.name)
        # Strictly first. But a compiler that knows a new warning is no reason for less isolation.
        choices = [(*strict, *variant) for strict in ((STRICT,), ()) for variant in kinds(platform.machine())]
        for choice in choices:
            command = [*compiler, *WARNINGS, *HARDENING, *choice, *extra, "-o", str(made), str(source)]
            try:
                _run(command, _COMPILE_S)
                if trial:
                    _run(trial(made), _TRIAL_S)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                lines = said.splitlines() if isinstance(said, str) else [str(error)]
                reason = reason or next((line for line in lines if "error" in line.lower()), str(error))
                continue
            made.chmod(0o755)
            made.replace(target)
            return ""
    return reason


def _run(command: list[str], time_s: float) -> None:
    env = {**os.environ, "LC_ALL": "C"}  # what is said is searched for the reason
    subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=time_s)


def _compiler() -> list[str]:
    found = (shutil.which(name) for name in ("cc", "gcc", "clang"))
    return [path for path in found if path][:1]


def _platform_tag() -> str:
    return f"manylinux_2_17_{platform.machine()}.musllinux_1_1_{platform.machine()}"


def main() -> int:
    """Compile for ``make``; what cannot be built is no failure, since the package works without it."""
    for target, reason in compile_all().items():
        if reason:
            sys.stderr.write(f"{complaint(target, reason)}\n")
        sys.stdout.write(f"{target.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
