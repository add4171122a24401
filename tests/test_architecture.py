"""The house stands as ARCHITECTURE.md draws it: imports follow the rooms, pure files stay pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import toolcrib
from tests.syntax import tree

SOURCE = Path(toolcrib.__file__).parent
PACKAGE = "toolcrib"

ROOMS = (
    "records",
    "jsontext",
    "errors",
    "paths",
    "former",
    "forks",
    "model",
    "schema",
    "mcp_wire",
    "formats",
    "functions",
    "dialects",
    "calls",
    "store",
    "trust",
    "journal",
    "catalog",
    "selection",
    "sandbox",
    "bound",
    "runtimes",
    "engine",
    "spans",
    "config",
    "servers",
    "gate",
    "own",
    "hands",
    "app",
    "watching",
    "doors",
    "testing",
    "__main__",
)
"""In the order of the house: a room imports only from rooms before it, and from itself."""

SEPARATE = ("formats", "dialects", "runtimes", "doors")
"""Rooms whose files never import each other, those that begin with ``_`` apart."""

SERVE = SOURCE / "doors" / "cli" / "serve.py"
"""The one file that puts doors together."""

PURE = (
    "jsontext.py", "model.py", "errors.py", "paths.py", "schema.py", "mcp_wire.py", "catalog/catalog.py",
    "catalog/effects.py", "trust/policy.py", "trust/hygiene.py", "trust/naming.py", "trust/lock.py",
    "trust/rules.py", "trust/budgets.py", "trust/signing.py", "trust/placing.py", "journal/chain.py",
    "journal/redaction.py", "sandbox/rules.py", "doors/_visible.py", "doors/console/_forms.py",
)  # fmt: skip
PURE_ROOMS = ("formats", "dialects", "calls", "selection")
PURE_IMPORTS = {
    "__future__", "ast", "base64", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum",
    "errno", "fnmatch", "functools", "hashlib", "itertools", "json", "math", "operator", "posixpath", "re",
    "string", "struct", "types", "typing", "unicodedata", "warnings", "zlib",
    "jsonschema_rs", "msgspec", "orjson", "tomllib", "yaml",
}  # fmt: skip
PURE_PARTS = {"importlib", "urllib.parse"}
IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "__import__", "compile"}


def sources() -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*.py")):
        if "templates" not in path.parts:
            yield path


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, by its full name; ``from a import b`` is ``a.b`` if that is one."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if _is_module(inner) else node.module


def _is_module(name: str) -> bool:
    if not name.startswith(f"{PACKAGE}."):
        return False
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_file_belongs_to_a_room_of_the_house() -> None:
    assert {room_of(path) for path in sources()} - {"__init__"} == set(ROOMS)


def test_imports_follow_the_order_of_the_rooms() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        if room == "__init__":
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == PACKAGE and len(parts) > 1 and ROOMS.index(parts[1]) > ROOMS.index(room):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert wrong == []


def test_files_of_one_room_do_not_import_each_other() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        if room not in SEPARATE or path.name == "__init__.py" or path == SERVE:
            continue
        for name in imports(path):
            parts = name.split(".")
            inside = parts[:2] == [PACKAGE, room] and len(parts) > 2
            if inside and not parts[-1].startswith("_") and not (SOURCE.joinpath(*parts[1:])).is_dir():
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert wrong == []


def test_the_drawing_of_the_house_names_every_file() -> None:
    page = (SOURCE.parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"[\w.]+\.(?:py|js)", page.partition("## 3.")[2].partition("## 4.")[0]))
    commands = SOURCE / "doors" / "cli"
    files = {path.name for path in (*sources(), *SOURCE.glob("runtimes/*.js")) if path.parent != commands}
    assert files - drawn == set()
    assert {name for name in drawn if not [*SOURCE.rglob(name)]} <= LATER


LATER = {"loop.py", "postgres.py", "providers.py", "remote.py", "search.py", "sets.py"}
"""What the drawing shows and nobody has built yet."""


def test_pure_files_know_no_files_clocks_or_processes() -> None:
    wrong = []
    for path in sources():
        if str(path.relative_to(SOURCE)) not in PURE and room_of(path) not in PURE_ROOMS:
            continue
        for name in imports(path):
            top = name.split(".")[0]
            if top not in PURE_IMPORTS and top != PACKAGE and name not in PURE_PARTS:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in IMPURE_CALLS
            ):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno} calls {node.func.id}()")
    assert wrong == []


def test_the_environment_is_read_in_one_place() -> None:
    wrong = []
    for path in sources():
        if path == SOURCE / "config.py" or path == SOURCE / "runtimes" / "_zygote.py":
            continue  # the latter runs inside the tool's own process, whose environment it sets
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr in (
                "environ",
                "environb",
                "getenv",
                "expanduser",
            ):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno} reads os.{node.attr}")
    assert wrong == []


def test_every_module_says_what_it_is() -> None:
    assert [str(path.relative_to(SOURCE)) for path in sources() if not ast.get_docstring(tree(path))] == []


def test_public_names_are_complete_sorted_and_importable() -> None:
    names = toolcrib.__all__
    assert list(names) == sorted(names)
    assert [name for name in names if getattr(toolcrib, name, None) is None] == []


def test_no_shell_is_ever_started() -> None:
    wrong = []
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                wrong.append(f"{path.relative_to(SOURCE)}:{node.value.lineno}")
            if isinstance(node, ast.Attribute) and node.attr in ("system", "popen", "preexec_fn"):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert wrong == []
