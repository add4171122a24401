"""``toolcrib token``: a value is shown once, at its making, and nowhere else."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from tests.doors.test_serving_attacks import Server, project
from tests.program import serving, toolcrib
from tests.wire import asked
from toolcrib.journal.redaction import Redaction


def written(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_a_token_is_made_listed_and_revoked_and_its_value_is_shown_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = toolcrib("token", "create", "ci", cwd=tmp_path, home=home)
    assert made.status == 0
    assert "nobody can show it again" in made.err
    value = made.out.strip()
    assert value.startswith("tw_")
    assert len(value) == 46
    full = toolcrib(
        "token", "create", "ann", "--tools", "rye:*", "--effect", "read", "--right", "call",
        "--right", "approve", "--for", "1h", "--json", cwd=tmp_path, home=home,
    )  # fmt: skip
    assert full.json["token"].startswith("tw_")
    assert {name: full.json[name] for name in ("name", "tools", "effects", "rights")} == {
        "name": "ann",
        "tools": ["rye:*"],
        "effects": ["read"],
        "rights": ["approve", "call"],
    }
    listed = toolcrib("token", "list", "--json", cwd=tmp_path, home=home)
    assert [(item["name"], item["rights"], item["status"]) for item in listed.json] == [
        ("ci", ["call"], "good"),
        ("ann", ["approve", "call"], "good"),
    ]
    assert all("token" not in item and item["last_used_at"] is None for item in listed.json)
    shown = toolcrib("token", "list", cwd=tmp_path, home=home)
    assert "ann  approve, call; rye:* (read); until" in shown.out
    gone = toolcrib("token", "revoke", "ci", cwd=tmp_path, home=home)
    assert gone.out == "ci is revoked\n"
    by_id = toolcrib("token", "revoke", full.json["id"], "--json", cwd=tmp_path, home=home)
    assert by_id.json == {"id": full.json["id"], "name": "ann", "status": "revoked"}
    assert toolcrib("token", "list", "--json", cwd=tmp_path, home=home).json == []
    for said in (listed, shown, gone, by_id):
        assert "tw_" not in said.out + said.err
    assert value.encode() not in written(home)
    noted = [
        json.loads(line) for line in toolcrib("audit", "export", cwd=tmp_path, home=home).out.splitlines()
    ]
    assert [(one["name"], one["done"]) for one in noted if one["what"] == "token"] == [
        ("ci", "created"),
        ("ann", "created"),
        ("ci", "revoked"),
        ("ann", "revoked"),
    ]


def test_mistakes_are_told_and_end_with_their_status(tmp_path: Path) -> None:
    toolcrib("token", "create", "ci", cwd=tmp_path)
    again = toolcrib("token", "create", "ci", cwd=tmp_path)
    assert (again.status, again.out) == (64, "")
    assert "toolcrib token revoke ci" in again.err
    assert toolcrib("token", "create", "c i", cwd=tmp_path).status == 64
    assert toolcrib("token", "revoke", "nobody", cwd=tmp_path).status == 64
    assert toolcrib("token", "create", "x", "--for", "soon", cwd=tmp_path).status == 2
    assert toolcrib("token", "create", "x", "--right", "everything", cwd=tmp_path).status == 2


def test_a_state_folder_that_others_may_write_takes_no_token(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    said = toolcrib("token", "create", "ci", "--state", state, cwd=tmp_path)
    assert (said.status, said.out) == (74, "")


def test_our_own_tokens_are_known_by_their_looks_and_stand_in_no_record(tmp_path: Path) -> None:
    value = toolcrib("token", "create", "ci", cwd=tmp_path).out.strip()
    redacted = Redaction()(f"Authorization: Bearer {value}; {{'x': '{value}'}}")
    assert value[3:] not in redacted
    assert "tw_session" in Redaction()("the cookie tw_session and the name tw_x")


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("ann", "ann"), ("ann", "ANN"), ("ann", "a.nn"), ("Bill-1", "bill1"), ("\u0430nn", "ann"),
        ("\uff41nn", "ann"), ("", pwd.getpwuid(os.getuid()).pw_name),
    ],
)  # fmt: skip
def test_attack_a_token_is_named_like_the_owner(tmp_path: Path, user: str, name: str) -> None:
    """A caller is its name, in records, results, events, approvals and rules."""
    env = {"USER": user} if user else {}
    said = toolcrib("token", "create", name, cwd=tmp_path, env=env)
    assert (said.status, said.out) == (64, "")
    assert "the owner's name" in said.err
    assert "take another name" in said.err
    assert toolcrib("token", "create", f"{name}-laptop", cwd=tmp_path, env=env).status == 0
    secret = tmp_path / "tokens"
    secret.write_text(f"{name} {'x' * 40}\n", encoding="ascii")
    secret.chmod(0o600)
    options = ("--from", tmp_path, "serve", "--port", "0", "--token-file", secret)
    started = toolcrib(*options, cwd=tmp_path, env=env)
    assert started.status == 74
    assert f"{secret}:1: {name}: this is the owner's name" in started.err


def test_attack_a_token_of_the_owners_name_was_made_under_another_one(tmp_path: Path) -> None:
    """It reads what the owner's calls gave, and hears of them beyond its reach."""
    folder, home = project(tmp_path / "project"), tmp_path / "home"
    arguments = ("--from", "tools.json", "--config", "mine.toml", "serve")

    def made(name: str) -> str:
        options = ("token", "create", name, "--tools", "*/nothing")
        return toolcrib(*options, cwd=folder, home=home, env={"USER": "bob"}).out.strip()

    def refused(server: Server, value: str) -> set[int]:
        call = json.loads(asked(server.port, "POST", "/v1/tools/add/call", body=b'{"arguments":{}}').body)
        paths = ("/v1/tools", f"/v1/results/{call['call_id']}", "/v1/events")
        bearer = f"Authorization: Bearer {value}"
        return {asked(server.port, "GET", path, bearer).status for path in paths}

    other = made("ci")
    with serving(*arguments, cwd=folder, home=home, USER="ann") as started:
        server = Server(started.process, int(started.address.rpartition(":")[2]))
        value = made("ann")
        assert refused(server, value) == {503}
        assert server.is_well()  # the owner needs none
    said = toolcrib(*arguments, "--port", "0", cwd=folder, home=home, env={"USER": "ann"})
    assert said.status == 64
    assert "ann: this is the owner's name" in said.err
    assert "toolcrib token revoke" in said.err
    assert toolcrib("token", "revoke", "ann", cwd=folder, home=home, env={"USER": "ann"}).status == 0
    with serving(*arguments, cwd=folder, home=home, USER="ann") as started:
        server = Server(started.process, int(started.address.rpartition(":")[2]))
        bearer = f"Authorization: Bearer {other}"
        assert asked(server.port, "GET", "/v1/tools", bearer).status == 200
        assert refused(server, value) <= {401, 429}
