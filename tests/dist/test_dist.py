"""The files that are published: built as for a release, installed into an empty environment, and used.

``make dist-test`` runs these; ``make test`` does not, because they take the index and half a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import toolcrib
from tests.levels import tried
from tests.native.compiling import compiler
from tests.program import PATH

ROOT = Path(__file__).parent.parent.parent
EMBEDDER = Path(__file__).parent / "embedder.py"
BUILD_S = 300
JSON_IS_ANY = re.compile(
    r"(?:dict|typing\.Mapping)\[str, Any\]"  # a JSON object
    r"|\b(?:data|details): Any(?= =)"  # a JSON value, in the constructors of results and errors
    r"|\*\*changes: Any"  # the fields of a record
    r"|def \(\*Any, \*\*Any\) -> object"  # whatever function is decorated
    r"|provide: typing\.Mapping\[Any, object\]"  # any type is a key, and a mapping's keys are invariant
    r"|typing\.Coroutine\[Any, Any, "  # what it sends and receives is the event loop's
)
JSON_VALUES = {"ToolError.details", "ToolResult.data"}


def run(*command: str | Path, cwd: Path, home: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=None if home is None else {"PATH": PATH, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A source distribution of this checkout, and a wheel of what is in it."""
    folder = tmp_path_factory.mktemp("built")
    hatchling = (sys.executable, "-m", "hatchling", "build")
    run(*hatchling, "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    run(*hatchling, "-t", "wheel", "-d", folder, cwd=folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, its pinned dependencies, and nothing else."""

    python: Path
    home: Path

    @property
    def toolcrib(self) -> Path:
        return self.python.with_name("toolcrib")


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    folder.chmod(0o755)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    requirements = ROOT / "requirements" / "run.txt"
    run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", requirements, cwd=folder)
    run(*pip, "--no-index", "--no-deps", built.wheel, cwd=folder)
    home = folder / "home"
    home.mkdir(mode=0o700)
    return Installed(python, home)


def test_the_source_distribution_has_the_source_and_nothing_that_was_built(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "CHANGELOG.md", "SECURITY.md", "Makefile", "hatch_build.py"} <= names
    assert {"src/native/spawner.c", "src/toolcrib/py.typed", "tests/conftest.py", "docs/start.md"} <= names
    built_names = re.compile(r"_spawner$|\.node$|\.so$|\.pyc$|(^|/)(build|dist|node_modules|\.venv)/")
    tested = {name for name in names if name.startswith("tests/dist/")}
    assert [name for name in names - tested if built_names.search(name)] == []


def test_the_wheel_has_the_package_its_types_and_its_native_parts(built: Built) -> None:
    compiler()
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    assert {"toolcrib/py.typed", "toolcrib/sandbox/_spawner", "toolcrib/runtimes/_forker.node"} <= {*names}
    metadata = f"toolcrib-{toolcrib.__version__}.dist-info/"
    assert [name for name in names if not name.startswith(("toolcrib/", metadata))] == []


def test_the_installed_program_makes_a_tool_and_calls_it(installed: Installed, tmp_path: Path) -> None:
    program = installed.toolcrib
    said = run(program, "--version", cwd=tmp_path, home=installed.home)
    assert said.split()[-1] == toolcrib.__version__
    run(program, "init", "word-count", cwd=tmp_path, home=installed.home)
    run(program, "check", "word-count", cwd=tmp_path, home=installed.home)
    listed = run(program, "--from", "word-count", "list", "--json", cwd=tmp_path, home=installed.home)
    assert "word_count" in listed
    called = run(
        program, "--from", "word-count", "call", "word_count", '{"name": "Ann"}', "--json",
        cwd=tmp_path, home=installed.home,
    )  # fmt: skip
    assert f'"{tried().level}"' in called


def test_the_installed_package_is_consistent(installed: Installed, tmp_path: Path) -> None:
    run(installed.python, "-m", "pip", "check", cwd=tmp_path, home=installed.home)


def test_a_program_runs_against_the_installed_package(installed: Installed, tmp_path: Path) -> None:
    run(installed.toolcrib, "init", "word-count", cwd=tmp_path, home=installed.home)
    said = run(installed.python, EMBEDDER, "word-count", cwd=tmp_path, home=installed.home)
    assert said.splitlines()[-1] == "3"


# -- its types ----------------------------------------------------------------------------------------------


def checked(program: Path, installed: Installed) -> str:
    """What mypy says of a program that uses the installed package."""
    return run(
        sys.executable, "-m", "mypy", "--config-file=", "--strict", "--disallow-any-unimported",
        "--python-executable", installed.python, "--cache-dir", program.parent / "mypy", program,
        cwd=program.parent, home=program.parent,
    )  # fmt: skip


def test_mypy_accepts_a_program_that_uses_the_installed_package(installed: Installed, tmp_path: Path) -> None:
    program = tmp_path / EMBEDDER.name
    program.write_bytes(EMBEDDER.read_bytes())
    assert checked(program, installed).startswith("Success")


def public_names() -> Iterator[str]:
    """``toolcrib``'s names, and those of each public class."""
    for name in toolcrib.__all__:
        yield name
        value = getattr(toolcrib, name)
        if isinstance(value, type):
            yield from (f"{name}.{inner}" for inner in sorted(dir(value)) if not inner.startswith("_"))


def test_the_type_of_every_public_name_is_known(installed: Installed, tmp_path: Path) -> None:
    names = [*public_names()]
    lines = ["import toolcrib"]
    for name in names:
        owner, _, attribute = name.partition(".")
        subject = f"toolcrib.{name}" if not attribute else f"made_{owner}().{attribute}"
        if not attribute and isinstance(getattr(toolcrib, name), type):
            lines.append(f"def made_{name}() -> toolcrib.{name}: raise NotImplementedError")
        lines.append(f"reveal_type({subject})")
    program = tmp_path / "names.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    revealed = re.findall(r'Revealed type is "(.*)"$', checked(program, installed), re.MULTILINE)
    types = dict(zip(names, revealed, strict=True))
    inherited = {f"{name}.args" for name in toolcrib.__all__ if f"{name}.add_note" in types}
    unknown = {name for name, type_ in types.items() if "Any" in JSON_IS_ANY.sub("", type_)}
    assert unknown - inherited == JSON_VALUES
