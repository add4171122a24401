"""Items by reference in three spaces, and signing them: validated first, whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.program import bounded
from tests.trust import checker
from toolcrib.errors import UsageError
from toolcrib.trust import items, keys, signing
from toolcrib.trust.items import Item, Location, Space

NOW = 1_775_696_392.0  # 2026-04-09T00:59:52Z


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.roots = {location: tmp_path / location.value for location in Location}
        self.spaces = [Space(location=location, root=str(root)) for location, root in self.roots.items()]
        keys.generate(str(tmp_path / "keys"))
        self.key = keys.load_signing_key(str(tmp_path / "keys"))
        self.keys_folder = tmp_path / "keys"

    def write(
        self,
        below: str,
        text: str | bytes = "x = 1\n",
        location: Location = Location.PROJECT,
        mode: int = 0o644,
    ) -> Path:
        path = self.roots[location] / ".ai" / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        path.chmod(mode)
        return path

    def find(self, ref: str, location: Location | None = None) -> list[Item]:
        return items.find(ref, self.spaces, location)

    def ids(self, ref: str, location: Location | None = None) -> list[str]:
        return [item.id for item in self.find(ref, location)]

    def sign(self, ref: str) -> items.Signed:
        (item,) = self.find(ref)
        return items.sign(item, self.key, NOW)

    def verdict(self, path: Path) -> str:
        return checker.verdict(path.read_bytes(), path.suffix, {self.key.id: self.key.pem})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -- references ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.sign.ref")
def test_a_reference_names_one_item_and_a_pattern_all_that_fit(world: World) -> None:
    for name in ("bash/bash.py", "bash/other.yaml", "bash/deep/more.sh", "file/write.py"):
        world.write(f"tools/rye/{name}")
    assert world.ids("tool:rye/bash/bash") == ["rye/bash/bash"]
    assert sorted(world.ids("tool:rye/bash/*")) == ["rye/bash/bash", "rye/bash/deep/more", "rye/bash/other"]
    assert world.ids("tool:rye/*/writ?") == ["rye/file/write"]
    assert len(world.ids("tool:*")) == 4
    assert world.ids("tool:rye/bash") == world.ids("tool:nothing") == world.ids("tool:[r]ye/*") == []


@pytest.mark.requirement("rye.sign.ref")
@pytest.mark.parametrize("ref", ["rye/bash/bash", "", ":", "tools:x", "directive:x", "TOOL:x"])
def test_a_bare_id_is_refused(world: World, ref: str) -> None:
    world.write("tools/rye/bash/bash.py")
    with pytest.raises(UsageError, match="is no reference to an item"):
        world.find(ref)


@pytest.mark.parametrize(
    "ref", ["tool:../x", "tool:/etc/passwd", "tool:a//b", "tool:./a", "tool:a/../../b", "tool:", "tool:a\0"]
)
def test_a_reference_does_not_leave_its_space(world: World, ref: str) -> None:
    world.write("x.py")
    world.write("tools/a/b.py")
    world.write("b.py")
    assert world.find(ref) == []


def test_configuration_and_documents_can_be_signed_too(world: World) -> None:
    config, document = world.write("config/text/markers.yaml"), world.write("knowledge/guide.md", "# A\n")
    assert world.sign("config:text/markers").signature.startswith("# rye:signed:2026-04-09T00:59:52Z:")
    assert world.sign("knowledge:guide").signature.startswith("<!-- rye:signed:")
    assert (world.verdict(config), world.verdict(document)) == ("valid", "valid")


def test_the_first_space_that_has_an_item_decides(world: World) -> None:
    for location in Location:
        world.write("tools/a/t.py", location=location)
    world.write("tools/a/u.py", location=Location.USER)
    assert [item.location for item in world.find("tool:a/t")] == [Location.PROJECT]
    assert [item.location for item in world.find("tool:a/t", Location.USER)] == [Location.USER]
    assert [item.location for item in world.find("tool:a/*")] == [
        Location.PROJECT,
        Location.USER,
        Location.USER,
    ]
    assert [item.location for item in world.find("tool:a/*", Location.SYSTEM)] == [Location.SYSTEM]


def test_files_of_other_programs_are_left_alone(world: World) -> None:
    for name in (
        "package.json",
        "package-lock.json",
        "node_modules/a.js",
        "__pycache__/a.py",
        "b.txt",
        "c.pyc",
    ):
        world.write(f"tools/web/{name}")
    world.write("tools/web/__init__.py", "# a library\n")
    assert world.ids("tool:*") == ["web/__init__"]
    assert world.ids("tool:web/package") == []


# -- signing ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.sign.round-trip")
def test_signing_twice_leaves_one_line_the_same_body_and_the_mode(world: World) -> None:
    body = "#!/bin/sh\r\necho one\recho two\n"
    path = world.write("tools/ops/deploy.sh", body, mode=0o750)
    for _ in range(2):
        assert world.sign("tool:ops/deploy").error == ""
        content = path.read_bytes()
        assert content.count(b"rye:signed:") == 1
        shebang, line, rest = content.split(b"\n", 2)
        assert shebang + b"\n" + rest == body.encode("utf-8")
        assert world.verdict(path) == "valid"
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert line.startswith(b"# rye:signed:2026-04-09T00:59:52Z:")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.requirement("rye.sign.all-extensions")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deploy.sh", "#!/bin/sh\necho\n"),
        ("t.json", '{"tool_id": "t"}\n'),
        ("t.toml", 'tool_id = "t"\n'),
        ("t.py", "x = 1\n"),
        ("t.ts", "export const x = 1;\n"),
    ],
)
def test_every_extension_with_a_prefix_is_signed_and_json_warns(world: World, name: str, text: str) -> None:
    path = world.write(f"tools/ops/{name}", text)
    signed = world.sign(f"tool:ops/{path.stem}")
    assert world.verdict(path) == "valid"
    assert signed.warnings == (
        ("the signature line makes this file invalid for ordinary JSON readers",)
        if path.suffix == ".json"
        else ()
    )
    if path.suffix == ".sh":
        assert path.read_text(encoding="utf-8").splitlines()[1] == signed.signature


def test_a_shebang_that_stops_being_one_is_told(world: World) -> None:
    world.write("tools/a.js", "#!/usr/bin/env node\nrun()\n")
    world.write("tools/b.sh", "#! /bin/sh\necho\n")
    assert "remove it" in world.sign("tool:a").warnings[0]
    assert "remove the blank" in world.sign("tool:b").warnings[0]


@pytest.mark.requirement("rye.sign.validate-first")
def test_an_item_with_problems_is_not_signed(world: World) -> None:
    path = world.write("tools/a/t.py")
    (item,) = world.find("tool:a/t")
    issue = "Field 'category' value 'b' must match path category 'a'"
    signed = items.sign(item, world.key, NOW, issues=[issue])
    assert (signed.error, signed.issues, signed.signature) == ("Validation failed", (issue,), "")
    assert path.read_bytes() == b"x = 1\n"


@pytest.mark.requirement("rye.sign.validate-first")
@pytest.mark.parametrize(
    ("content", "issue"),
    [(b"", "Tool file is empty"), (b" \n", "Tool file is empty"), (b"\xff\n", "not UTF-8")],
)
def test_what_is_no_text_is_not_signed(world: World, content: bytes, issue: str) -> None:
    path = world.write("tools/a/t.py", content)
    signed = world.sign("tool:a/t")
    assert signed.error == "Validation failed"
    assert issue in signed.issues[0]
    assert path.read_bytes() == content


@pytest.mark.requirement("rye.sign.system-immutable")
def test_an_item_of_the_system_is_not_signed(world: World) -> None:
    path = world.write("tools/rye/t.py", location=Location.SYSTEM)
    signed = world.sign("tool:rye/t")
    assert signed.error == (
        "System space items are immutable and cannot be signed. Copy to project or user space first."
    )
    assert path.read_bytes() == b"x = 1\n"


# -- whole or not at all ------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.sign.atomic-write")
@pytest.mark.parametrize("how", ["file", "folder"])
def test_a_link_out_of_the_space_is_refused(world: World, tmp_path: Path, how: str) -> None:
    (tmp_path / "outside").mkdir()
    outside = tmp_path / "outside" / "t.py"
    outside.write_text("x = 1\n", encoding="utf-8")
    world.write("tools/other.py")
    tools = world.roots[Location.PROJECT] / ".ai" / "tools"
    if how == "file":
        (tools / "a").mkdir()
        (tools / "a" / "t.py").symlink_to(outside)
    else:
        (tools / "a").symlink_to(outside.parent, target_is_directory=True)
    signed = world.sign("tool:a/t")
    assert signed.error.startswith("Symlink escape: ")
    assert outside.read_text(encoding="utf-8") == "x = 1\n"


@pytest.mark.requirement("rye.sign.atomic-write")
def test_a_link_inside_the_space_stays_a_link(world: World) -> None:
    path = world.write("tools/a/t.py")
    link = path.parent / "u.py"
    link.symlink_to("t.py")
    assert world.sign("tool:a/u").error == ""
    assert link.is_symlink()
    assert world.verdict(path) == "valid"


LOOP = """
import sys
from toolcrib.trust import items, keys
key = keys.load_signing_key(sys.argv[2])
space = items.Space(location=items.Location.PROJECT, root=sys.argv[1])
print("ready", flush=True)
for number in range(100_000):
    (item,) = items.find("tool:a/t", [space])
    items.sign(item, key, 1e9 + number)
"""
KILLS = 12
WAIT_S = 60


@pytest.mark.requirement("rye.sign.atomic-write")
def test_a_crash_while_signing_leaves_the_old_file_or_the_new_one(world: World) -> None:
    body = b"x = 1\n" * 20_000
    path = world.write("tools/a/t.py", body)
    for _ in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP, str(world.roots[Location.PROJECT]), str(world.keys_folder)],
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            with bounded(child):
                assert child.stdout.readline() == b"ready\n"
            before = path.stat().st_ino
            late = time.monotonic() + WAIT_S
            while path.stat().st_ino == before and time.monotonic() < late:
                assert child.poll() is None  # it signs on and on
            os.kill(child.pid, signal.SIGKILL)
            child.wait(timeout=60)
        content = path.read_bytes()
        assert content.endswith(body)
        assert world.verdict(path) == "valid"
    assert world.ids("tool:*") == ["a/t"]  # what a crash leaves beside it is no item


def test_a_folder_that_cannot_be_written_is_told(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; run the tests as a user to see this refused")
    path = world.write("tools/a/t.py")
    path.parent.chmod(0o555)
    try:
        assert world.sign("tool:a/t").error == "cannot be signed: permission denied"
    finally:
        path.parent.chmod(0o755)
    assert signing.read_line(path.read_text(encoding="utf-8"), ".py") is None
