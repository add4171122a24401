"""``sign``, ``verify``, ``keys`` and ``trust`` as a user runs them."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared
from tests.program import Said, toolcrib
from tests.trust import checker

LEO_ID, CI_ID = "4b987fd4e40303ac", "6ea18199041a1ea8"

TOOL = '''"""Say hello."""
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "a"
__tool_description__ = "Says hello"


def execute(params, project_path):
    return {"success": True}
'''


class Desk:
    """A user with a home and a project."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.project = tmp_path / "home", tmp_path / "project"
        for path in (self.home, self.project):
            path.mkdir(mode=0o755)
        self.env: dict[str, str] = {}

    def __call__(self, *arguments: str | Path) -> Said:
        return toolcrib(*arguments, cwd=self.project, home=self.home, env=self.env)

    def write(self, name: str, text: str = TOOL) -> Path:
        path = self.project / ".ai" / "tools" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def generate(self, *more: str) -> str:
        said = self("keys", "generate", "--json", *more)
        assert said.status == 0, said
        key_id = said.json["id"]
        assert isinstance(key_id, str)
        return key_id

    def statuses(self, *paths: str | Path) -> dict[str, str]:
        said = self("verify", "--json", *paths)
        rows: list[dict[str, Any]] = said.json
        bad = any(row["message"] for row in rows)
        assert said.status == (77 if bad else 0), said
        return {row["path"]: row["status"] for row in rows}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def trust_real(desk: Desk, *names: str) -> None:
    for name in names:
        said = desk("trust", shared("corpus") / "rye" / "keys" / "trusted" / f"{name}.toml")
        assert said.status == 0, said


@pytest.mark.requirement("rye.sign.result")
def test_signing_answers_with_item_path_place_signature_and_warnings(desk: Desk) -> None:
    path = desk.write("a/t.py")
    key = desk.generate("--owner", "ada")
    said = desk("sign", "tool:a/t", "--json")
    assert said.status == 0
    (result,) = said.json
    line = path.read_text(encoding="utf-8").splitlines()[0]
    assert result == {
        "path": ".ai/tools/a/t.py",
        "status": "signed",
        "item_id": "a/t",
        "location": "project",
        "signature": line,
        "warnings": result["warnings"],
    }
    assert isinstance(result["warnings"], list)
    assert line.endswith(f":{key}")
    pem = desk("keys", "show").out
    assert checker.verdict(path.read_bytes(), ".py", {key: pem}) == "valid"
    (row,) = desk("verify", "--json").json
    assert row == {
        "path": ".ai/tools/a/t.py",
        "status": "signed",
        "name": "rye:a/t",
        "signer": key,
        "blocked_by": None,
        "message": None,
        "hint": None,
        "warnings": [],
    }


@pytest.mark.requirement("rye.sign.ref", "rye.sign.validate-first", "rye.sign.result")
def test_every_match_is_signed_but_those_with_errors(desk: Desk) -> None:
    good, wrong = desk.write("a/t.py"), desk.write("a/wrong.py", TOOL.replace('"a"', '"b"'))
    desk.generate()
    said = desk("sign", "tool:a/*", "--json")
    assert said.status == 77
    results = {result["item_id"]: result for result in said.json}
    assert results["a/t"]["status"] == "signed"
    refused = results["a/wrong"]
    assert (refused["status"], refused["error"]) == ("error", "Validation failed")
    assert refused["issues"] == ["Field 'category' value 'b' must match path category 'a'"]
    assert "rye:signed:" in good.read_text(encoding="utf-8")
    assert "rye:signed:" not in wrong.read_text(encoding="utf-8")
    assert desk("sign", "a/t").status == 2
    assert desk("sign", "tool:a/nothing").status == 64


@pytest.mark.requirement("rye.sign.no-auto-key")
def test_signing_without_a_key_makes_none(desk: Desk) -> None:
    path = desk.write("a/t.py")
    said = desk("sign", "tool:a/t")
    assert said.status == 77
    assert "No signing keypair found. Generate one first: toolcrib keys generate" in said.err
    assert not (desk.home / ".ai").exists()
    assert path.read_text(encoding="utf-8") == TOOL


@pytest.mark.requirement("rye.sign.key-files")
def test_the_variable_names_the_folder_of_the_key(desk: Desk, tmp_path: Path) -> None:
    desk.write("a/t.py")
    desk.env["RYE_SIGNING_KEY_DIR"] = str(tmp_path / "ci")
    key = desk.generate("--no-trust")
    assert stat.S_IMODE((tmp_path / "ci").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "ci" / "private_key.pem").stat().st_mode) == 0o600
    assert desk("sign", "tool:a/t").status == 0
    assert desk.statuses() == {".ai/tools/a/t.py": "untrusted"}
    assert desk("trust", key).status == 0  # the key of one's own, by its id
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}
    (tmp_path / "ci" / "private_key.pem").chmod(0o644)
    said = desk("sign", "tool:a/t")
    assert said.status == 77
    assert "others may read this private key (mode 0644)" in said.err


def test_an_item_of_the_users_space_is_signed_where_it_is_asked_for(desk: Desk) -> None:
    mine = desk.write("a/t.py")
    theirs = desk.home / ".ai" / "tools" / "a" / "t.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(TOOL, encoding="utf-8")
    desk.generate()
    (result,) = desk("sign", "tool:a/t", "--space", "user", "--json").json
    assert (result["location"], result["path"]) == ("user", str(theirs))
    assert "rye:signed:" not in mine.read_text(encoding="utf-8")
    assert desk.statuses() == {".ai/tools/a/t.py": "unsigned", str(theirs): "signed"}


def test_user_space_moves_keys_and_trust(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir(mode=0o755)
    desk.env["USER_SPACE"] = str(tmp_path / "moved")
    key = desk.generate()
    assert (tmp_path / "moved/.ai/config/keys/signing/private_key.pem").is_file()
    assert (tmp_path / f"moved/.ai/config/keys/trusted/{key}.toml").is_file()
    assert not (desk.home / ".ai").exists()


def test_a_key_whose_making_was_cut_short_can_be_shown_and_trusted(desk: Desk) -> None:
    """The private key is written first. One that was killed after that left somebody who could neither show
    a key, for there was none, nor make one, for there was one."""
    key = desk.generate("--no-trust")
    whole = desk("keys", "show", "--json").json
    (desk.home / ".ai/config/keys/signing/public_key.pem").unlink()
    assert desk("keys", "show", "--json").json == whole
    assert whole["id"] == key
    said = desk("keys", "generate")
    assert said.status == 77
    assert "`toolcrib keys show --json` tells its id, `toolcrib trust ID` trusts it" in said.err
    assert desk("trust", key).status == 0
    (row,) = desk("keys", "list", "--json").json
    assert (row["id"], row["status"], row["yours"]) == (key, "trusted", True)


def test_a_key_is_made_once(desk: Desk) -> None:
    key = desk.generate("--owner", "ada")
    said = desk("keys", "generate")
    assert said.status == 77
    assert "there is a key already" in said.err
    (row,) = desk("keys", "list", "--json").json
    assert (row["id"], row["owner"], row["tier"], row["status"], row["yours"]) == (
        key, "ada", "user", "trusted", True,
    )  # fmt: skip
    assert desk("keys", "show", key, "--json").json["pem"] == desk("keys", "show").out
    assert desk("keys", "show", "0" * 16).status == 66


def test_a_changed_an_unsigned_and_a_strangers_file_are_told_apart(desk: Desk, tmp_path: Path) -> None:
    for name in ("a/t.py", "a/u.py", "a/changed.py", "a/strange.py"):
        desk.write(name)
    desk.generate()
    assert desk("sign", "tool:a/t", "tool:a/changed").status == 0
    with (desk.project / ".ai/tools/a/changed.py").open("a", encoding="utf-8") as file:
        file.write("# more\n")
    desk.env["RYE_SIGNING_KEY_DIR"] = str(tmp_path / "other")
    desk.generate("--no-trust")
    assert desk("sign", "tool:a/strange").status == 0
    assert desk.statuses() == {
        ".ai/tools/a/changed.py": "tampered",
        ".ai/tools/a/strange.py": "untrusted",
        ".ai/tools/a/t.py": "signed",
        ".ai/tools/a/u.py": "unsigned",
    }
    assert desk.statuses(".ai/tools/a/t.py") == {".ai/tools/a/t.py": "signed"}
    said = desk("verify")
    assert said.status == 77
    assert "Content modified since signing: " in said.out
    assert "rye sign tool:a/u" in said.out


def test_lock_check_refuses_a_locked_tool_whose_signature_no_longer_holds(desk: Desk) -> None:
    """Attack: a changed tool that passes as locked, because its broken signature is told instead."""
    path = desk.write("a/t.py")
    desk.generate()
    assert desk("sign", "tool:a/t").status == 0
    assert desk("lock").status == 0
    assert desk("lock", "--check").status == 0
    path.write_text(path.read_text(encoding="utf-8") + "# more\n", encoding="utf-8")
    said = desk("lock", "--check", "--json")
    (row,) = said.json
    assert (said.status, row["status"], row["change"]) == (77, "tampered", "changed")
    assert any("# more" in line for line in row["diff"])
    problems = desk("check", "--json").json["problems"]
    (drifted,) = [each for each in problems if each["code"] == "lock.drifted"]
    assert drifted["message"] == "a/t is not as it was locked: .ai/tools/a/t.py was changed"


def test_a_tool_whose_dependency_was_changed_is_blocked_by_it_on_every_face(desk: Desk) -> None:
    desk.write("a/t.py", TOOL.replace("def execute", "import helper\n\n\ndef execute"))
    helper = desk.write("a/helper.py", "SAID = 1\n")
    desk.generate()
    assert desk("sign", "tool:a/*").status == 0
    assert set(desk.statuses().values()) == {"signed"}
    helper.write_text(helper.read_text(encoding="utf-8") + "SAID = 2\n", encoding="utf-8")
    said = desk("verify", "--json")
    assert said.status == 77
    rows = {row["path"]: (row["status"], row["blocked_by"]) for row in said.json}
    assert rows == {
        ".ai/tools/a/helper.py": ("tampered", None),
        ".ai/tools/a/t.py": ("blocked", ".ai/tools/a/helper.py"),
    }
    lines = desk("verify").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("blocked"))
    assert lines[at + 1] == "    it needs .ai/tools/a/helper.py, which does not verify:"
    assert lines[at + 2] == f"    Content modified since signing: {helper}"
    listed = desk("list", "--json", "--trust", "blocked").json
    assert [(row["name"], row["trust"]) for row in listed] == [("a/t", "blocked")]
    shown = desk("show", "a/t", "--json").json
    assert (shown["trust"], shown["blocked_by"]) == ("blocked", str(helper))
    assert f"blocked_by   {helper}" in desk("show", "a/t").out
    refused = desk("call", "a/t", "--json")
    assert (refused.status, refused.json["error"]["kind"]) == (77, "denied")
    assert str(helper) in refused.json["error"]["message"]
    helper.write_text("SAID = 1\n", encoding="utf-8")
    desk("sign", "tool:a/helper")
    assert set(desk.statuses().values()) == {"signed"}


def test_a_signed_file_in_anothers_place_is_warned_of_by_check_and_verify(desk: Desk) -> None:
    write = desk.write("a/write.py")
    desk.generate()
    assert desk("sign", "tool:a/write").status == 0
    assert [row["warnings"] for row in desk("verify", "--json").json] == [[]]
    read, moved = (desk.project / ".ai/tools" / name for name in ("a/read.py", "b/write.py"))
    moved.parent.mkdir()
    for copy in (read, moved):
        shutil.copyfile(write, copy)
    copied = "{} has the signed text of {}; no signature covers a name"
    warnings = {
        ".ai/tools/a/write.py": [copied.format("a/write", "a/read")],
        ".ai/tools/a/read.py": [copied.format("a/read", "a/write")],
        ".ai/tools/b/write.py": ["Field 'category' value 'a' must match path category 'b'"],
    }
    said = desk("verify", "--json")
    assert said.status == 0
    assert {row["path"]: row["warnings"] for row in said.json} == warnings
    assert {row["status"] for row in said.json} == {"signed"}
    (row,) = desk("verify", "--json", read).json
    assert row["warnings"] == warnings[".ai/tools/a/read.py"]
    assert f"    warning: {warnings['.ai/tools/b/write.py'][0]}" in desk("verify").out.splitlines()
    found = {
        (each["code"], each["severity"], each["path"]) for each in desk("check", "--json").json["problems"]
    }
    assert {("trust.copied", "warning", f".ai/tools/a/{name}.py") for name in ("read", "write")} <= found
    assert ("rye.yaml.category-path", "error", ".ai/tools/b/write.py") in found
    # A copy in another space has the same name, and that is how items are taken over.
    for path in (read, moved):
        path.unlink()
    user = desk.home / ".ai/tools/a/write.py"
    user.parent.mkdir(parents=True)
    shutil.copyfile(write, user)
    assert not any(row["warnings"] for row in desk("verify", "--json").json)


def test_an_older_version_is_refused_by_every_command_until_a_person_takes_it_back(desk: Desk) -> None:
    path = desk.write("a/t.py")
    desk.generate()
    desk("sign", "tool:a/t")
    old = path.read_bytes()
    assert desk("call", "a/t").status == 0
    desk.write("a/t.py", TOOL.replace('"1.0.0"', '"1.1.0"'))
    desk("sign", "tool:a/t")
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}  # which is remembered
    path.write_bytes(old)
    assert desk.statuses() == {".ai/tools/a/t.py": "drifted"}
    assert desk.statuses(path) == {".ai/tools/a/t.py": "drifted"}
    assert f"Older than what was seen here: {path}" in desk("verify").out
    refused = desk("call", "a/t")
    assert refused.status == 77
    assert f"toolcrib trust {path}" in refused.err
    assert [row["trust"] for row in desk("list", "--json").json] == ["drifted"]
    (problem,) = [one for one in desk("check", "--json").json["problems"] if one["code"] == "trust.older"]
    assert (problem["severity"], problem["path"]) == ("error", ".ai/tools/a/t.py")
    assert f"toolcrib trust {path}" in problem["hint"]
    said = desk("trust", path, "--json")
    assert (said.status, said.json["status"]) == (0, "accepted")
    assert desk("call", "a/t").status == 0
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}
    assert any('"trust"' in line and "t.py" in line for line in desk("audit", "export").out.splitlines())
    assert desk("trust", "--remove", path).status == 66


def test_only_a_file_that_verifies_can_be_taken_back(desk: Desk, tmp_path: Path) -> None:
    path = desk.write("a/t.py")
    desk.env["RYE_SIGNING_KEY_DIR"] = str(tmp_path / "other")
    desk.generate("--no-trust")
    desk("sign", "tool:a/t")
    said = desk("trust", path)
    assert (said.status, said.out) == (77, "")
    assert "Untrusted key" in said.err
    desk.write("a/u.py")
    assert desk("trust", ".ai/tools/a/u.py").status == 66


def test_signing_an_older_text_again_takes_it_back(desk: Desk) -> None:
    path = desk.write("a/t.py")
    desk.generate()
    desk("sign", "tool:a/t")
    old = path.read_bytes()
    assert desk("call", "a/t").status == 0
    desk.write("a/t.py", TOOL.replace('"1.0.0"', '"1.1.0"'))
    desk("sign", "tool:a/t")
    assert desk("call", "a/t").status == 0
    path.write_bytes(old)
    assert desk("call", "a/t").status == 77
    desk("sign", "tool:a/t")
    assert desk("call", "a/t").status == 0


@pytest.mark.battery("G06")
def test_g06_a_key_is_trusted_by_file_or_text_and_revoked_by_id(desk: Desk, tmp_path: Path) -> None:
    desk.write("a/t.py")
    desk.env["RYE_SIGNING_KEY_DIR"] = str(tmp_path / "ci")
    key = desk.generate("--no-trust")
    desk("sign", "tool:a/t")
    assert desk.statuses() == {".ai/tools/a/t.py": "untrusted"}
    del desk.env["RYE_SIGNING_KEY_DIR"]
    said = desk("trust", tmp_path / "ci" / "public_key.pem", "--owner", "ci", "--json")
    assert said.json["id"] == key
    assert f"key {key} of ci" in said.err
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}
    assert desk("trust", "--remove", key).status == 0
    assert desk.statuses() == {".ai/tools/a/t.py": "untrusted"}
    assert desk("trust", "--remove", key).status == 77
    assert desk("trust", key).status == 66  # it lies nowhere here
    assert desk("trust", "nowhere.pem").status == 66


@pytest.mark.requirement("rye.trust.project-keys")
def test_a_clone_with_its_own_key_and_tools_signed_by_it_is_not_trusted(desk: Desk, tmp_path: Path) -> None:
    desk.write("a/t.py")
    desk.env["USER_SPACE"] = str(tmp_path / "eve")
    (tmp_path / "eve").mkdir(mode=0o755)
    key = desk.generate()
    desk("sign", "tool:a/t")
    brought = desk.project / ".ai" / "config" / "keys" / "trusted"
    shutil.copytree(tmp_path / "eve/.ai/config/keys/trusted", brought)
    del desk.env["USER_SPACE"]
    said = desk("verify", "--json")
    assert said.status == 77
    assert said.json[0]["message"].startswith(f"Untrusted key {key} for ")
    assert "a project cannot vouch for its own keys" in said.err
    (row,) = desk("keys", "list", "--json").json
    assert (row["tier"], row["status"]) == ("project", "ignored")
    assert desk("trust", key).status == 0  # until the user says so
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}


def test_verify_refuses_a_script_with_carriage_returns_as_calls_do(desk: Desk) -> None:
    """Attack: a line feed became a carriage return. The hash takes them for one, a shell does not."""
    path = desk.write(
        "a/t.sh",
        '#!/bin/bash\n__version__="1.0.0"\n__tool_type__="bash"\n__executor_id__="rye/core/runtimes/bash/bash"\n'
        '__category__="a"\n__tool_description__="says so"\n# guard\nexit 3\n',
    )
    desk.generate()
    signed = desk("sign", "tool:a/t")
    assert signed.status == 0, signed
    assert desk.statuses(path) == desk.statuses() == {".ai/tools/a/t.sh": "signed"}
    path.write_bytes(path.read_bytes().replace(b"# guard\nexit", b"# guard\rexit"))
    assert desk.statuses(path) == desk.statuses() == {".ai/tools/a/t.sh": "tampered"}


@pytest.mark.requirement("rye.trust.project-keys")
def test_a_projects_own_keys_count_once_the_host_trusts_it_and_no_more_once_one_is_added(
    desk: Desk, tmp_path: Path
) -> None:
    desk.write("a/t.py")
    desk.env["USER_SPACE"] = str(tmp_path / "ann")
    (tmp_path / "ann").mkdir(mode=0o755)
    desk.generate()
    desk("sign", "tool:a/t")
    brought = desk.project / ".ai" / "config" / "keys" / "trusted"
    shutil.copytree(tmp_path / "ann/.ai/config/keys/trusted", brought)
    del desk.env["USER_SPACE"]
    assert desk.statuses() == {".ai/tools/a/t.py": "untrusted"}
    said = desk("trust", ".", "--yes")
    assert said.status == 0, said.err
    assert "would vouch for the tools it signed" in said.err
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}
    # Attack: a key that is added to a trusted project later, and vouches for what it signed.
    shutil.copy(next(brought.glob("*.toml")), brought / "0123456789abcdef.toml")
    assert desk.statuses() == {".ai/tools/a/t.py": "untrusted"}
    (brought / "0123456789abcdef.toml").unlink()
    assert desk.statuses() == {".ai/tools/a/t.py": "signed"}
    assert desk("trust", "--remove", ".").status == 0
    assert desk.statuses() == {".ai/tools/a/t.py": "untrusted"}


@pytest.mark.battery("G12")
def test_g12_a_trust_store_that_others_may_write_is_not_read(desk: Desk) -> None:
    desk.write("a/t.py")
    desk.generate()
    desk("sign", "tool:a/t")
    (desk.home / ".ai" / "config" / "keys" / "trusted").chmod(0o777)
    said = desk("verify", "--json")
    assert (said.status, said.json[0]["status"]) == (77, "untrusted")
    assert "others may write to it (mode 0777)" in said.err
    assert "others may write to it (mode 0777)" in desk("keys", "list").err


@pytest.mark.requirement("rye.sign.real-tree", "rye.sign.document")
def test_the_published_tree_and_the_format_document_verify(desk: Desk) -> None:
    """Both keys are trusted by the user; the same files are found whatever lies around them."""
    trust_real(desk, LEO_ID)
    document = shared("specs") / "rye.md"
    assert desk.statuses(document) == {str(document): "untrusted"}
    trust_real(desk, CI_ID)
    assert desk.statuses(document) == {str(document): "signed"}
    corpus = shared("corpus") / "rye"
    entries = json.loads((corpus / "INDEX.json").read_text(encoding="utf-8"))["files"]
    signed = [
        corpus / entry["file"]
        for entry in entries
        if entry["expected"]["signature"] == "valid" and "/.ai/tools/" in entry["file"]
    ]
    assert len(signed) == 29
    assert set(desk.statuses(*signed).values()) == {"signed"}


def test_formats_without_signatures_are_unsigned_and_verify(desk: Desk) -> None:
    tool = {"name": "a", "description": "A.", "command": ["/bin/true"], "schema": {"type": "object"}}
    (desk.project / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    said = desk("verify", "--json")
    assert (said.status, [row["status"] for row in said.json]) == (0, ["unsigned"])
    assert desk("verify").out == f"unsigned  manifest:{desk.project.name}/a  tools.json\n"
    assert desk("verify", "tools.json").status == 0
    assert desk("verify", "nowhere").status == 66


def test_the_later_form_is_named(desk: Desk) -> None:
    desk.write("a/t.yaml", f"# ryeos:signed:2026-08-06T00:00:00Z:{'ab' * 32}:{'A' * 88}:{'cd' * 32}\na: 1\n")
    said = desk("verify", ".ai/tools/a/t.yaml", "--json")
    assert said.status == 77
    assert said.json[0]["status"] == "untrusted"
    assert said.json[0]["message"].startswith("Later signature format, not verified here: ")


def test_calling_an_unsigned_tool_does_not_load_the_library_for_signatures(desk: Desk) -> None:
    program = desk.project / "tools" / "bin" / "hello"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho '{}'\n", encoding="utf-8")
    program.chmod(0o755)
    tool = {"name": "a", "description": "A.", "command": ["./tools/bin/hello"], "schema": {"type": "object"}}
    (desk.project / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    desk.write("a/t.py")
    traced = [sys.executable, "-X", "importtime", "-m", "toolcrib"]
    for name, status in (("a", 0), ("rye:a/t", 77)):
        said = toolcrib("call", name, "{}", cwd=desk.project, home=desk.home, program=traced)
        assert said.status == status, said
        assert "toolcrib.engine" in said.err
        assert "cryptography" not in said.err
