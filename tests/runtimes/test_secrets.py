"""Secrets from the vault to the program that needs them, and nowhere else: whole calls of every kind."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.levels import each_level, sandbox_of, tried
from tests.peers import Peer, answers, response
from toolcrib.app import Crib
from toolcrib.config import Environment, resolve
from toolcrib.errors import Kind
from toolcrib.journal.reading import entries
from toolcrib.model import Level
from toolcrib.runtimes.javascript import find_node
from toolcrib.trust.vault import Vault

SECRET = 'Vault/Secret+42~é"x\\y-0815'
SERVER = str(Path(__file__).parent.parent / "peers" / "odd_server.py")
MARK = "[secret API]"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    folder = tmp_path / "p"
    folder.mkdir()
    return folder


@contextmanager
def opened(
    project: Path, config: str, level: Level | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Crib]:
    """A crib on a configuration that a person named."""
    state = project.parent / "state"
    surroundings = replace(
        Environment.read({"PATH": os.environ["PATH"], "HOME": "/nowhere", "LANG": "C.UTF-8", **(env or {})}),
        state=str(state),
    )
    (project / "toolcrib.toml").write_text(config, encoding="utf-8")
    found = resolve(surroundings, cwd=str(project), file=str(project / "toolcrib.toml"))
    here = os.getcwd()
    with sandbox_of(level or tried().level) as sandbox:
        os.chdir(project)
        try:
            with toolcrib.open(found, environment=surroundings, sandbox=sandbox) as crib:
                yield crib
        finally:
            os.chdir(here)


def kept(project: Path, **secrets: str) -> Vault:
    vault = Vault(str(project.parent / "state"))
    for name, value in secrets.items():
        vault.set(name, value)
    return vault


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def manifest(project: Path, code: str, *, declares: tuple[str, ...] = ("API",)) -> None:
    """A tool ``t`` that is a Python program."""
    program(project / "tools" / "bin" / "t", f"#!{sys.executable} -I\n{code}")
    tool = {"name": "t", "description": "d", "schema": {"type": "object"}, "command": ["./tools/bin/t"]}
    more = {"envPassthrough": list(declares)} if declares else {}
    (project / "tools.json").write_text(json.dumps({"tools": [{**tool, **more}]}), encoding="utf-8")


def rye(project: Path, name: str, text: str) -> None:
    path = project / ".ai" / "tools" / "x" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def holds_nothing(project: Path, *values: str) -> None:
    """Nothing that was written anywhere holds a value, in the open."""
    for path in (project.parent / "state").rglob("*"):
        if path.is_file() and path.parent.name != "cache":  # what authors wrote is theirs
            content = path.read_bytes()
            for value in values:
                assert value.encode() not in content, path
                assert json.dumps(value, ensure_ascii=False)[1:-1].encode() not in content, path
                assert base64.b64encode(value.encode()) not in content, path


MAPPED = '[[source]]\npath = "."\n[secrets]\nAPI = "vault:mine"\n[trust]\nunsigned = "warn"\n'
GRANTED = '[[source]]\npath = "."\n[grants."*"]\nenv = ["API"]\n[trust]\nunsigned = "warn"\n'
PRINTS = """
import base64, json, os, sys, urllib.parse
value = os.environ.get("API", "")
told = [value, base64.b64encode(b"ann:" + value.encode()).decode(), urllib.parse.quote(value), value.upper()]
print(json.dumps({"told": told, value: len(value)}))
print("its last words", value, file=sys.stderr)
"""


# -- from the vault to the program --------------------------------------------------------------------------


@pytest.mark.battery("D07")
@pytest.mark.parametrize("level", each_level())
def test_d07_a_secret_reaches_the_program_and_no_record_message_or_result(
    project: Path, level: Level
) -> None:
    kept(project, mine=SECRET)
    manifest(project, PRINTS)
    with opened(project, MAPPED, level) as crib:
        result = crib.call("t")
    assert result.data == {"told": [MARK, f"YW5uOl{MARK}", MARK, MARK], MARK: len(SECRET)}
    assert result.notes == ("6 secrets were taken out of what came back: API",)
    for value in (SECRET, SECRET.upper(), "0815"):
        assert value not in repr(result) + result.content
    holds_nothing(project, SECRET)
    ends = [entry.body for entry in entries(str(project.parent / "state" / "journal"))]
    assert "API" in ends[-1]["run"]["env"]


def test_what_only_a_declaration_names_does_not_come_out_of_the_vault(project: Path) -> None:
    """Attack: a tool of a cloned project that declares every usual name."""
    kept(project, API=SECRET)
    manifest(project, "import json, os\nprint(json.dumps({'got': os.environ.get('API')}))\n")
    with opened(project, '[[source]]\npath = "."\n') as crib:
        assert crib.call("t").data == {"got": None}
    with opened(project, '[[source]]\npath = "."\n', env={"API": "of the host"}) as crib:
        assert crib.call("t").data == {"got": "of the host"}
    with opened(project, GRANTED, env={"API": "of the host"}) as crib:
        assert crib.call("t").data == {"got": MARK}
    everything = GRANTED.replace('["API"]', '["*"]')
    with opened(project, everything, env={"API": "of the host"}) as crib:
        assert crib.call("t").data == {"got": "of the host"}


def test_a_grant_without_a_secret_is_the_hosts_variable(project: Path) -> None:
    manifest(project, "import json, os\nprint(json.dumps({'got': os.environ.get('API')}))\n", declares=())
    with opened(project, GRANTED, env={"API": "plain"}) as crib:
        assert crib.call("t").data == {"got": "plain"}
    assert not (project.parent / "state" / "vault").exists()


def test_a_secret_that_is_missing_or_cannot_be_had_stops_the_call(project: Path) -> None:
    manifest(project, PRINTS)
    with opened(project, MAPPED, env={"API": "of the host"}) as crib:
        result = crib.call("t")
        assert result.error is not None
        assert (result.error.kind, result.error.hint) == (Kind.UNAVAILABLE, "toolcrib secret set mine")
        assert "the secret 'mine' is not in the vault" in result.error.message
        kept(project, mine=SECRET)  # set meanwhile: the next start looks again
        assert crib.call("t").ok
        path = project.parent / "state" / "vault" / "vault.json"
        path.write_text(path.read_text(encoding="utf-8").replace('"whole":"', '"whole":"0'), encoding="utf-8")
        result = crib.call("t")
        assert result.error is not None
        assert result.error.kind is Kind.UNAVAILABLE
        assert "does not fit its key" in result.error.message


def test_a_dry_run_says_that_a_secret_is_missing_and_reads_none(project: Path) -> None:
    manifest(project, "print('{}')")
    with opened(project, '[[source]]\npath = "."\n[secrets]\nAPI = "vault:forge"\n') as crib:
        missing = crib.call("t", dry_run=True)
        assert missing.error is not None
        assert (missing.error.kind, missing.error.message) == (
            Kind.UNAVAILABLE,
            "the secret 'forge' is not in the vault ([secrets] API)",
        )
        assert missing.error.hint == "toolcrib secret set forge"
        called = crib.call("t")
        assert called.error is not None
        assert called.error.message == missing.error.message
        kept(project, forge=SECRET)
        (project.parent / "state" / "keys" / "vault.key").unlink()
        assert crib.call("t", dry_run=True).ok, "it is there: no value, and no key, is needed to see that"


def test_the_vaults_passphrase_reaches_no_tool(project: Path) -> None:
    """Attack: a tool that is granted all variables and opens the vault with them."""
    manifest(project, "import json, os\nprint(json.dumps(sorted(os.environ)))\n")
    everything = GRANTED.replace('["API"]', '["*"]')
    env = {"TOOLCRIB_VAULT_PASSPHRASE": "correct horse", "OTHER": "x"}
    Vault(str(project.parent / "state"), passphrase=lambda: "correct horse").set("mine", SECRET)
    with opened(project, everything, env=env) as crib:
        seen = crib.call("t").data
        assert isinstance(seen, list)
        assert "OTHER" in seen
        assert "TOOLCRIB_VAULT_PASSPHRASE" not in seen
    with opened(project, MAPPED, env=env) as crib:
        assert crib.call("t").ok
    with opened(project, MAPPED) as crib:
        locked = crib.call("t")
        assert locked.error is not None
        assert "it has a passphrase" in locked.error.message


# -- what comes back ----------------------------------------------------------------------------------------


def test_a_long_result_and_one_with_an_idempotency_key_are_kept_without_the_secret(project: Path) -> None:
    kept(project, mine=SECRET)
    manifest(project, "import json, os\nprint(json.dumps([os.environ['API']] * 3000))\n")
    with opened(project, MAPPED + "[limits]\nresult_bytes = 2000\n") as crib:
        result = crib.call("t", idempotency_key="k")
        page, _ = crib.result_page(result.call_id, limit=1 << 20)
        assert json.loads(page) == [MARK] * 3000
        again = crib.call("t", idempotency_key="k")
        assert MARK in again.content
    holds_nothing(project, SECRET)


def test_a_secret_that_the_limit_on_output_cuts_in_two_is_not_told(project: Path) -> None:
    """Attack: so much output that the limit goes through the secret."""
    kept(project, mine="abcdefghijklmnopqrstuvwxyz")
    code = "import os, sys\nsys.stderr.write('x' * (1 << 20) + os.environ['API'] + 'y' * ((1 << 20) - 10))\n"
    manifest(project, code + "sys.exit(3)\n")
    with opened(project, MAPPED) as crib:
        result = crib.call("t")
    assert not result.ok
    told = repr(result)
    for start in range(20):
        assert "abcdefghijklmnopqrstuvwxyz"[start : start + 6] not in told


DOTENV = "API_KEY=from-the-dotenv-file\nURL=https://ann:pass-in-url@host.example/\nNAME=plain-name\n"


def test_values_of_a_dotenv_file_and_of_the_author_are_taken_out_too(project: Path) -> None:
    (project / "show.sh").write_text('echo "$API_KEY $URL $NAME $AUTHOR_TOKEN"\n', encoding="utf-8")
    (project / ".env").write_text(DOTENV, encoding="utf-8")
    rye(
        project,
        "show.yaml",
        "tool_type: process\nversion: 1.0.0\nexecutor_id: rye/core/primitives/subprocess\ncategory: x\n"
        "description: d\nconfig:\n  command: sh\n"
        "  args: [show.sh, '${API_KEY}', written-by-the-author]\n"
        "  env: {AUTHOR_TOKEN: written-by-the-author}\n",
    )
    config = MAPPED.replace('[secrets]\nAPI = "vault:mine"\n', "[rye]\nload_dotenv = true\n")
    with opened(project, config) as crib:
        result = crib.call("x/show")
        assert result.ok, result
    assert "[secret API_KEY]" in result.content
    assert "https://ann:[secret URL]@host.example/" in result.content
    assert "plain-name" in result.content
    assert "[secret AUTHOR_TOKEN]" in result.content
    holds_nothing(project, "from-the-dotenv-file", "pass-in-url", "written-by-the-author")
    runs = [
        entry.body["run"]
        for entry in entries(str(project.parent / "state" / "journal"))
        if "run" in entry.body
    ]
    assert runs[-1]["argv"][-2:] == ["***REDACTED***", "***REDACTED***"]


def test_a_call_without_secrets_is_not_looked_at(project: Path) -> None:
    manifest(project, 'print(\'{"API": "vault:mine [secret X]"}\')\n', declares=())
    with opened(project, '[[source]]\npath = "."\n') as crib:
        result = crib.call("t")
    assert (result.data, result.notes) == ({"API": "vault:mine [secret X]"}, ())


# -- rye ----------------------------------------------------------------------------------------------------


def yaml_tool(config: str) -> str:
    return (
        "tool_type: process\nversion: 1.0.0\nexecutor_id: rye/core/primitives/subprocess\ncategory: x\n"
        f"description: d\nconfig:\n  command: sh\n{config}"
    )


def test_a_template_fills_a_secret_into_the_environment_and_never_into_a_command_line(
    project: Path,
) -> None:
    """Attack: an author's template that puts a secret where every process of the machine sees it."""
    kept(project, mine=SECRET, API=SECRET)
    (project / "show.sh").write_text('echo "${#HEADER}"\n', encoding="utf-8")
    rye(project, "good.yaml", yaml_tool("  args: [show.sh]\n  env: {HEADER: 'Bearer ${API}'}\n"))
    rye(project, "bad.yaml", yaml_tool("  args: [show.sh, '--key=${API}']\n  env: {HEADER: x}\n"))
    rye(project, "sly.yaml", yaml_tool("  args: [show.sh, '${HEADER}']\n  env: {HEADER: 'x${API}'}\n"))
    rye(project, "fixed.yaml", yaml_tool("  args: [show.sh]\n  fixed_params: {key: '${API}'}\n"))
    with opened(project, GRANTED) as crib:
        good = crib.call("x/good")
        assert str(len(f"Bearer {SECRET}".encode())) in good.content, good
        for name in ("bad", "sly", "fixed"):
            result = crib.call(f"x/{name}")
            assert result.error is not None, name
            assert result.error.kind is Kind.UNAVAILABLE
            assert "names a secret of the vault" in result.error.message
    holds_nothing(project, SECRET)


PYTHON_TOOL = """
import os
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "x"
__tool_description__ = "d"
CONFIG_SCHEMA = {"type": "object", "properties": {}}
AT_THE_TOP = os.environ.get("API")
def execute(params, project_path):
    return {"success": True, "top": AT_THE_TOP, "got": os.environ.get("API"), "parent": os.getppid()}
"""


def test_only_the_child_of_a_call_receives_a_secret(project: Path) -> None:
    """Attack: a later call, or whoever reaches the zygote, finds an earlier call's secret in it."""
    secret = f"{SECRET}-{os.getpid()}"  # tests beside this one hand theirs to processes of this machine
    kept(project, API=secret)
    rye(project, "py.py", PYTHON_TOOL)
    with opened(project, GRANTED) as crib:
        for _ in range(3):
            result = crib.call("x/py")
            assert result.ok, result
            assert isinstance(result.data, dict)
            data = result.data.get("data", result.data)
            assert (data["got"], data["top"]) == (MARK, MARK)
            for entry in Path("/proc").iterdir():
                with suppress(OSError):
                    if entry.name.isdigit():
                        assert secret.encode() not in (entry / "environ").read_bytes()
                        assert secret.encode() not in (entry / "cmdline").read_bytes()
            parent = data["parent"]
            if os.geteuid() == 0 and "zygote" in result.isolation:
                with suppress(OSError), open(f"/proc/{parent}/environ", "rb") as environ:
                    assert secret.encode() not in environ.read()
    holds_nothing(project, secret)


JAVASCRIPT_TOOL = """
export const __version__ = "1.0.0";
export const __tool_type__ = "javascript";
export const __executor_id__ = "rye/core/runtimes/node/node";
export const __category__ = "x";
export const __tool_description__ = "d";
export const CONFIG_SCHEMA = {type: "object", properties: {}};
const coded = () => Buffer.from(process.env.API).toString("base64");
export default () => ({success: true, got: process.env.API, coded: coded()});
"""


def test_a_javascript_tool_receives_it_too(project: Path) -> None:
    if find_node({"PATH": os.environ["PATH"]}) is None:
        pytest.skip("there is no Node here: the extra `node` brings one")
    kept(project, API=SECRET)
    rye(project, "js.js", JAVASCRIPT_TOOL)
    with opened(project, GRANTED) as crib:
        result = crib.call("x/js")
        assert result.ok, result
        assert result.content.count(MARK) == 2, result
    holds_nothing(project, SECRET)


# -- requests and servers -----------------------------------------------------------------------------------

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {"/me": {"get": {"operationId": "me", "responses": {"200": {"description": "d"}}}}},
    "components": {"securitySchemes": {"b": {"type": "http", "scheme": "bearer"}}},
    "security": [{"b": []}],
}


def test_a_request_is_proven_by_a_secret_of_the_vault(project: Path) -> None:
    value = "tok-Vault-4711"
    with Peer(
        answers(*[response(b'{"you": "tok-Vault-4711"}', **{"Content-Type": "application/json"})] * 2)
    ) as peer:
        document = {**DOCUMENT, "servers": [{"url": peer.url("")}]}
        (project / "api.json").write_text(json.dumps(document), encoding="utf-8")
        config = (
            '[[source]]\nopenapi = "api.json"\nname = "api"\nsecret = "API"\n'
            '[grants."openapi:api/*"]\nneeds = ["net.http", "net.private"]\n'
        )
        with opened(project, config) as crib:
            missing = crib.call("me")
            assert missing.error is not None
            assert missing.error.hint is not None
            assert missing.error.hint.startswith("toolcrib secret set API")
            kept(project, API=value)
            result = crib.call("me")
        assert result.ok, result
        assert result.data == {"you": MARK}
        assert [asked.headers["authorization"] for asked in peer.asked] == [f"Bearer {value}"]
    holds_nothing(project, value)


def test_a_server_is_handed_a_secret_when_it_is_started_and_cannot_tell_it(project: Path) -> None:
    value = "tok-Vault-4711"
    command = [sys.executable, "-I", "-S", SERVER, "names=echo"]
    config = f'[[source]]\nmcp = {json.dumps(command)}\nname = "odd"\nenv = ["API"]\n'
    with opened(project, config.replace("odd", "unset")) as crib:
        (problem,) = crib.problems
        assert "needs the variable API, which is not set" in problem.message
        assert "toolcrib secret set API" in str(problem.hint)
    kept(project, API=value)
    with opened(project, config) as crib:
        result = crib.call("mcp:odd/echo", {"text": f"it is {value}"})
        assert result.content == f"it is {MARK}", result
    told = f'[[source]]\nmcp = {json.dumps([*command, "--key=${API}"])}\nname = "odd2"\n'
    with opened(project, told) as crib:
        (problem,) = (problem for problem in crib.problems if "odd2" in problem.message)
        assert "secrets of the vault never go there" in problem.message
    holds_nothing(project, value)


def test_a_list_of_servers_does_not_reach_into_the_vault(project: Path) -> None:
    """Attack: a cloned ``.mcp.json`` that names every usual variable."""
    kept(project, API="tok-Vault-4711")
    server = {"command": sys.executable, "args": ["-I", "-S", SERVER, "names=echo"], "env": {"API": "${API}"}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"odd": server}}), encoding="utf-8")
    with opened(project, '[[source]]\npath = ".mcp.json"\n') as crib:
        (problem,) = crib.problems
        assert "needs the variable API, which is not set" in problem.message
