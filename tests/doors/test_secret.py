"""``toolcrib secret``: set without the command line, listed without values, removed."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from tests.program import PROGRAM, WAIT_S, bounded, environment, toolcrib
from toolcrib.trust.vault import VALUE_BYTES_MAX, Vault

VALUE = "sk-very-secret-0815"
CONFIG = """
[secrets]
OPENAI_API_KEY = "vault:openai"

[grants."manifest:x/*"]
env = ["openai", "EDITOR"]

[[source]]
openapi = "api.json"
name = "api"
secret = "bearer=openai"

[[source]]
mcp = "https://example.org/mcp"
headers = {Authorization = "Bearer ${openai}"}
"""


def state_of(home: Path) -> str:
    return str(home / ".local" / "state" / "toolcrib")


def written(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_a_secret_is_set_listed_and_removed_and_its_value_is_never_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = toolcrib(
        "secret", "set", "openai", "--json", cwd=tmp_path, home=home, stdin=b"sk-very-secret-0815\n"
    )
    assert (done.status, done.err) == (0, "")
    assert done.json == {"name": "openai", "status": "set", "where": "file"}
    assert Vault(state_of(home)).get("openai") == VALUE
    (tmp_path / "mine.toml").write_text(CONFIG, encoding="utf-8")
    listed = toolcrib("secret", "list", "--json", "--config", "mine.toml", cwd=tmp_path, home=home)
    (item,) = listed.json
    assert (item["name"], item["where"], item["age_days"]) == ("openai", "file", 0)
    assert item["used_by"] == [
        "[secrets] OPENAI_API_KEY",
        '[grants."manifest:x/*"] env',
        "[[source]] api secret",
        "[[source]] example.org env or headers",
    ]
    shown = toolcrib("secret", "list", "--config", "mine.toml", cwd=tmp_path, home=home)
    gone = toolcrib("secret", "remove", "openai", "--json", cwd=tmp_path, home=home)
    assert gone.json == {"name": "openai", "status": "removed"}
    again = toolcrib("secret", "remove", "openai", cwd=tmp_path, home=home)
    assert (again.status, again.out) == (2, "")
    assert toolcrib("secret", "list", "--json", cwd=tmp_path, home=home).json == []
    for said in (done, listed, shown, gone, again):
        assert VALUE not in said.out + said.err
    assert VALUE.encode() not in written(home)
    told = toolcrib("audit", "export", cwd=tmp_path, home=home).out.splitlines()
    noted = [json.loads(line) for line in told]
    assert [(one["name"], one["done"]) for one in noted if one["what"] == "secret"] == [
        ("openai", "set"),
        ("openai", "removed"),
    ]


@pytest.mark.parametrize("place", ["file", "stdin"])
@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abcd", "abcd"),
        (b"abcd\n", "abcd"),
        (b"abcd\r\n", "abcd"),
        (b"a\nb\n\n", "a\nb\n"),
        (b" x y ", " x y "),
    ],
)
def test_one_line_end_is_not_part_of_a_value(place: str, content: bytes, value: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    source = "key" if place == "file" else "-"
    said = toolcrib("secret", "set", "n", "--from-file", source, cwd=tmp_path, stdin=content)
    assert said.status == 0, said
    assert Vault(state_of(tmp_path / ".home")).get("n") == value


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("n", b"", 2),
        ("n", b"\n", 2),
        ("n", b"\xff\xfe", 2),
        ("n", b"a\0b", 2),
        ("n", b"x" * (VALUE_BYTES_MAX + 10), 2),
        ("a b", b"value", 2),
        ("../n", b"value", 2),
    ],
)
def test_what_cannot_be_a_secret_is_refused(name: str, content: bytes, status: int, tmp_path: Path) -> None:
    said = toolcrib("secret", "set", name, cwd=tmp_path, stdin=content)
    assert said.status == status
    assert "Traceback" not in said.err
    assert not Path(state_of(tmp_path / ".home"), "vault").exists()
    assert toolcrib("secret", "set", "n", "--from-file", "missing", cwd=tmp_path).status == 66
    assert toolcrib("secret", "set", "n", "value-on-the-command-line", cwd=tmp_path).status == 2


def test_a_terminal_is_asked_twice_and_shows_nothing(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    said = b""
    try:
        with subprocess.Popen(
            [PROGRAM, "secret", "set", "openai"],
            cwd=tmp_path,
            env=environment(tmp_path / "home"),
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # no terminal but the one it is given
        ) as asked:
            assert asked.stderr is not None
            with bounded(asked):
                for questions in (1, 2):
                    while said.count(b": ") < questions and (more := asked.stderr.read1(1000)):  # type: ignore[attr-defined]
                        said += more
                    # What was typed before the question is discarded.
                    os.write(controller, f"{VALUE}\n".encode())
                out, rest = asked.communicate(timeout=WAIT_S)
        assert asked.returncode == 0, said + rest
        while select.select([controller], [], [], 0)[0]:  # what was echoed: line ends at most
            assert os.read(controller, 1000).strip() == b""
    finally:
        os.close(controller)
        os.close(terminal)
    assert VALUE.encode() not in said + rest + out
    assert Vault(state_of(tmp_path / "home")).get("openai") == VALUE


def test_a_short_value_is_kept_with_a_warning(tmp_path: Path) -> None:
    said = toolcrib("secret", "set", "pin", cwd=tmp_path, stdin=b"1234")
    assert said.status == 0
    assert "too short or too common" in said.err
    assert "1234" not in said.err.replace(str(tmp_path), "")


def test_a_vault_with_a_passphrase(tmp_path: Path) -> None:
    given = {"TOOLCRIB_VAULT_PASSPHRASE": "correct horse"}
    assert toolcrib("secret", "set", "n", cwd=tmp_path, stdin=b"value", env=given).status == 0
    assert toolcrib("secret", "list", "--json", cwd=tmp_path, env=given).json[0]["name"] == "n"
    for wrong in ({}, {"TOOLCRIB_VAULT_PASSPHRASE": "wrong horse"}):
        said = toolcrib("secret", "list", cwd=tmp_path, env=wrong)
        assert said.status == 74
        assert "TOOLCRIB_VAULT_PASSPHRASE" in said.err
        assert "horse" not in said.err
    assert b"correct horse" not in written(tmp_path / ".home")


def test_a_state_folder_that_others_may_write_keeps_no_secrets(tmp_path: Path) -> None:
    state = Path(state_of(tmp_path / ".home"))
    state.mkdir(parents=True)
    state.chmod(0o777)
    said = toolcrib("secret", "set", "n", cwd=tmp_path, stdin=b"value")
    assert said.status == 74
    assert not (state / "vault").exists()


@pytest.mark.parametrize(
    "line",
    ['OPENAI_API_KEY = "sk-itself-0815"', "OPENAI_API_KEY = 471108154711", 'HOME = "vault:x"',
     'LD_PRELOAD = "vault:x"', 'LC_ALL = "vault:x"', '"a b" = "vault:x"', 'A = "vault:../x"', 'A = "vault:"'],
)  # fmt: skip
def test_a_reference_that_is_none_is_refused_and_not_repeated(line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"[secrets]\n{line}\n", encoding="utf-8")
    said = toolcrib("list", "--config", "mine.toml", cwd=tmp_path)
    assert said.status == 78
    assert "secrets." in said.err
    assert "sk-itself" not in said.err
    assert "4711081" not in said.err
