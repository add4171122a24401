"""Configuration: every documented key, what is refused, and what a file that was merely found may do."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from toolcrib.catalog.sources import Source
from toolcrib.config import (
    Config,
    Environment,
    HttpSettings,
    ProxySettings,
    Serving,
    current_folder,
    find_file,
    named_source,
    own_python,
    read_file,
    resolve,
)
from toolcrib.errors import ConfigError, SourceError, UsageError
from toolcrib.formats.mcp import Server
from toolcrib.model import FOUND_FORMATS, Grant, Level, OpenApiOptions, Profile, Severity

WHOLE = """
[[source]]
path = "skills"

[[source]]
path = "bin/tools"
format = "executable"
trusted = true

[[source]]
mcp = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "."]
name = "files"
env = ["FILES_TOKEN"]
timeout = 20
cwd = "work"

[[source]]
mcp = "https://example.org/mcp"
headers = {Authorization = "Bearer ${EXAMPLE_TOKEN}"}

[[source]]
openapi = "api.yaml"
tags = ["pets"]
paths = ["/pets"]
secret = "PETS_TOKEN"

[[source]]
path = "groups"
handlers = "handlers"

[manifest]
strict = true

[skills]
context_mode = "read_on_demand"
allow_scripts = true
disabled = ["a"]
extra_dirs = ["more"]

[selection]
keyword_match = "substring"

[grants."skill:notes/*"]
needs = ["fs.write"]
env = ["EDITOR"]

[tools."executable:bin/*"]
effect = "read"

[secrets]
OPENAI_API_KEY = "vault:openai"

[timeouts]
default_s = 90

[trust]
unsigned = "warn"

[audit]
retention_days = 30
day_file = false

[http]
ca_file = "authorities.pem"
proxy = {url = "http://Proxy.example:3128", hosts = ["api.example", "*.Example.org"], secret = "PROXY_LOGIN"}

[rye]
dev_mode = true
load_dotenv = true

[isolation]
undeclared = "open"
require = "restricted"

[[policy]]
match = { effect = "change" }
decision = "ask"
because = "changes data"

[[policy]]
match = { effect = "read" }
decision = "allow"
because = "only reads"

[[budget]]
calls = 100
within = "1h"
because = "a hundred an hour"
"""
"""Every key, each with a value that widens where it can."""

WIDENING = [
    "skills.allow_scripts",
    "skills.extra_dirs",
    "trust.unsigned",
    "audit.retention_days",
    "audit.day_file",
    "rye.dev_mode",
    "rye.load_dotenv",
    "isolation.undeclared",
    "http.ca_file",
    "http.proxy",
    "timeouts.default_s",
    "source[1].trusted",
    "source[2].mcp",
    "source[2].env",
    "source[2].timeout",
    "source[2].cwd",
    "source[3].mcp",
    "source[3].headers",
    "source[4].openapi",
    "source[4].secret",
    "source[5].handlers",
    "grants",
    "tools.executable:bin/*.effect",
    "secrets",
    "policy[1].decision",
]


def surroundings(home: Path, **more: str) -> Environment:
    return Environment.read({"HOME": str(home), "PATH": "/usr/bin:/bin", **more})


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def ignored(config: Config) -> list[str]:
    """The keys that were reported as not counting."""
    found = [problem for problem in config.problems if problem.code == "config.untrusted"]
    assert all(problem.severity is Severity.WARNING and problem.hint for problem in found)
    return [re.split(" is ignored| lowers no effect", problem.message)[0] for problem in found]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project with every key in its file, and the folders that it names."""
    folder = tmp_path / "clone"
    written(folder / "toolcrib.toml", WHOLE)
    for name in ("skills", "bin/tools", "groups", "handlers", "more"):
        (folder / name).mkdir(parents=True)
    return folder


# -- keys ---------------------------------------------------------------------------------------------------


def test_what_does_not_count_is_told_with_its_line(clone: Path) -> None:
    config = read_file(str(clone / "toolcrib.toml"), trusted=False)
    lines = WHOLE.split("\n")
    assert [problem.code for problem in config.problems] == ["config.untrusted"] * len(WIDENING)
    for problem, where in zip(config.problems, ignored(config), strict=True):
        assert problem.line is not None
        assert where.rpartition(".")[2] in lines[problem.line - 1]
        assert problem.pointer is not None
    # What goes on over several lines is told where it begins.
    wide = 'policy = [\n{ decision = "allow", because = "x" },\n]\n'
    (problem,) = read_file(str(written(clone / "wide.toml", f"\n{wide}")), trusted=False).problems
    assert (problem.line, problem.pointer) == (2, ("policy", 0, "decision"))


def test_every_key_of_a_trusted_file_counts(clone: Path) -> None:
    config = read_file(str(clone / "toolcrib.toml"), trusted=True)
    options = OpenApiOptions(tags=("pets",), paths=("/pets",), secret="PETS_TOKEN")
    files, remote = (Server.read(source.server) for source in config.sources if source.server)
    here = f"{clone}/toolcrib.toml"
    assert config.sources == (
        Source(path=f"{clone}/skills", root=str(clone), starts=True),
        Source(path=f"{clone}/bin/tools", format="executable", probe=True, root=str(clone), starts=True),
        Source(path=here, format="mcp", named=True, server=files.text, starts=True),
        Source(path=here, format="mcp", named=True, server=remote.text, starts=True),
        Source(path=f"{clone}/api.yaml", format="openapi", root=str(clone), openapi=options, starts=True),
        Source(path=f"{clone}/groups", handlers=f"{clone}/handlers", root=str(clone), starts=True),
    )
    assert files == Server(
        name="files",
        definition={
            "timeout": 20,
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "."],
            "cwd": f"{clone}/work",
            "env": {"FILES_TOKEN": "${FILES_TOKEN}"},
        },
        env=("FILES_TOKEN",),
        vaulted=True,
    )
    assert (remote.name, remote.env) == ("example.org", ("EXAMPLE_TOKEN",))
    assert config.manifest_strict is True
    assert config.context_mode == "read_on_demand"
    assert config.allow_scripts is True
    assert config.skills_disabled == ("a",)
    assert config.extra_dirs == (f"{clone}/more",)
    assert config.keyword_match == "substring"
    assert config.timeout_s == 90.0
    assert (config.unsigned, config.retention_days, config.day_file) == ("warn", 30, False)
    assert (config.dev_mode, config.load_dotenv) == (True, True)
    assert (config.undeclared, config.require) == (Profile.OPEN, Level.RESTRICTED)
    hosts = ("api.example", "*.example.org")
    proxy = ProxySettings(host="proxy.example", port=3128, hosts=hosts, secret="PROXY_LOGIN")
    assert config.http == HttpSettings(proxy=proxy, ca_file=f"{clone}/authorities.pem")
    assert config.grants == (Grant(pattern="skill:notes/*", needs=("fs.write",), env=("EDITOR",)),)
    assert config.secrets == {"OPENAI_API_KEY": "openai"}
    assert config.policy == (
        {"match": {"effect": "change"}, "decision": "ask", "because": "changes data"},
        {"match": {"effect": "read"}, "decision": "allow", "because": "only reads"},
    )
    path = clone / "toolcrib.toml"
    headers = [number for number, line in enumerate(WHOLE.split("\n"), 1) if line == "[[policy]]"]
    assert config.policy_places == tuple(f"{path}:{line} policy[{n}]" for n, line in enumerate(headers))
    assert config.budgets == ({"calls": 100, "within": "1h", "because": "a hundred an hour"},)
    assert ignored(config) == []
    assert config.problems == ()
    assert (config.file, config.trusted) == (str(clone / "toolcrib.toml"), True)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "toolcrib.toml", "")
    config = read_file(str(path), trusted=False)
    assert (config.sources, config.problems, config.timeout_s) == ((), (), 30.0)


def test_settings_reach_the_formats(clone: Path) -> None:
    rules = read_file(str(clone / "toolcrib.toml"), trusted=True).rules(context_checks=("b", "a"))
    assert rules.manifest_strict
    assert rules.read_on_demand
    assert rules.skills_disabled == ("a",)
    assert rules.context_checks == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[manifst]", "unknown key 'manifst'", "did you mean 'manifest'?"),
        ("[[sources]]", "unknown key 'sources'", "did you mean 'source'?"),
        (
            "[skills]\nallow_script = true",
            "unknown key 'skills.allow_script'",
            "did you mean 'allow_scripts'?",
        ),
        ('[[source]]\npaht = "x"', "unknown key 'source[0].paht'", "did you mean 'path'?"),
        ('[grants.x]\nneed = ["a"]', "unknown key 'grants.x.need'", "did you mean 'needs'?"),
        ('[[policy]]\ndecison = "deny"', "unknown key 'policy[0].decison'", "did you mean 'decision'?"),
        ('[http]\nproxi = "x"', "unknown key 'http.proxi'", "did you mean 'proxy'?"),
        ('[http]\nproxy = {ur = "x"}', "unknown key 'http.proxy.ur'", "did you mean 'url'?"),
        ("zzzzz = 1", "unknown key 'zzzzz'", "known here: manifest, skills, selection, timeouts"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(
    text: str, message: str, hint: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "toolcrib.toml", text)
    for trusted in (False, True):
        with pytest.raises(ConfigError) as caught:
            read_file(str(path), trusted=trusted)
        assert caught.value.message == f"{path}: {message}"
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[manifest]\nstrict = "yes"', "manifest.strict: must be true or false, got a string"),
        ("[manifest]\nstrict = 1", "manifest.strict: must be true or false, got a whole number"),
        ("[audit]\nretention_days = true", "audit.retention_days: must be a whole number, got true or false"),
        ("[audit]\nretention_days = 2001-01-01", "must be a whole number, got a date or time"),
        ('[skills]\ndisabled = "a"', "skills.disabled: must be a list, got a string"),
        ("[skills]\ndisabled = [1]", "skills.disabled[0]: must be a string, got a whole number"),
        ('[skills]\ncontext_mode = "half"', "must be one of full, read_on_demand (got 'half')"),
        ('manifest = "x"', "manifest: must be a table, written [manifest]"),
        ('grants."a:b/*" = []', 'grants.a:b/*: must be a table, written [grants."PATTERN"]'),
        ('source = "x"', "source: must be a list of tables, written [[source]]"),
        ("source = [1]", "source[0]: must be a table"),
        ("grants = 1", "grants: must be tables, written"),
        ("[grants]\nx = 1", "grants.x: must be a table"),
        ("policy = {}", "policy: must be a list of tables, written [[policy]]"),
        ('[[policy]]\ndecision = "deny"', "policy[0]: needs because"),
        ('[[policy]]\nbecause = "x"', "policy[0]: needs decision"),
        ('[[policy]]\ndecision = "deny"\nbecause = " "', "policy[0]: needs because"),
        ("[[policy]]\n[[policy]]", "policy[0]: needs decision; policy[0]: needs because; policy[1]: needs"),
        (
            '[[policy]]\nmatch.effect = "chnage"\ndecision = "deny"\nbecause = "x"',
            "policy[0]: match.effect: must be one of read, create, change, write (got 'chnage')",
        ),
        (
            '[[policy]]\nmatch.arguments.path = { under = "etc" }\ndecision = "deny"\nbecause = "x"',
            "policy[0]: match.arguments.path.under: must be an absolute path",
        ),
        (
            '[[policy]]\ndecision = "deny"\nbecause = "x"\nexamples = [{call = {}, decision = "allow"}]',
            "policy[0]: examples[0]: expects allow, but it is deny by",
        ),
        ('[[policy]]\ndecision = "deny"\nbecause = "x"\nexamples = [1]', "examples[0]: must be a table"),
        ('[[budget]]\ncalls = 1\nbecause = "x"', "budget[0]: needs within: 2s, 30m, 1h or 7d"),
        ('[[budget]]\ncalls = 1.5\nwithin = "1h"\nbecause = "x"', "budget[0].calls: must be a whole number"),
        ('[[budget]]\nwithin = "1h"\nbecause = "x"', "budget[0]: needs calls or cost"),
        ('[[budget]]\ncost = 1\nwithin = "1h"\nbecause = "x"', "budget[0]: needs unknown_cost"),
        ('[[budget]]\ncalls = 1\nwithin = "1h"\nbecause = "x"\nper = "day"', "must be one of together, tool"),
        ('[[policy]]\ndecision = "maybe"\nbecause = "x"', "must be one of allow, ask, deny"),
        ("[[source]]", "source[0]: needs exactly one of path, mcp and openapi"),
        ('[[source]]\npath = "a"\nmcp = "b"', "source[0]: needs exactly one of path, mcp and openapi"),
        ('[[source]]\npath = "a"\nformat = "toml"', "source[0].format: must be one of skill, manifest"),
        ('[[source]]\nmcp = ["npx", 1]', "source[0].mcp[1]: must be a string"),
        ('[[source]]\npath = "a\\u0000"', "source[0].path: must not hold a NUL character"),
        ("[timeouts]\ndefault_s = 0", "timeouts.default_s: must be above 0"),
        ("[timeouts]\ndefault_s = -1.5", "timeouts.default_s: must be above 0"),
        ("[timeouts]\ndefault_s = inf", "timeouts.default_s: must be above 0"),
        ("[timeouts]\ndefault_s = nan", "timeouts.default_s: must be above 0"),
        ("[serve]\nport = 65536", "serve.port: must be 0 to 65535 (got 65536)"),
        ("[serve]\nport = true", "serve.port: must be a whole number"),
        ("[serve]\ndrain_s = nan", "serve.drain_s: must be 0 to"),
        ("[serve]\nbody_bytes_max = 0", "serve.body_bytes_max: must be"),
        ('[serve]\nhosts = "x"', "serve.hosts: must be a list"),
        ('[http]\nproxy = "http://p:1"', "http.proxy: must be a table, got a string"),
        ("[http.proxy]", "http.proxy.url: must be http://HOST:PORT"),
        ('[http.proxy]\nurl = "https://p:1"', "http.proxy.url: must be http://HOST:PORT"),
        ('[http.proxy]\nurl = "http://p:0"', "http.proxy.url: must be http://HOST:PORT"),
        ('[http.proxy]\nurl = "http://p:99999"', "http.proxy.url: must be http://HOST:PORT"),
        ('[http.proxy]\nurl = "http://p/path"', "http.proxy.url: must be http://HOST:PORT"),
        ('[http.proxy]\nurl = "http://p:1"', "http.proxy.hosts: must name the hosts"),
        ('[http.proxy]\nurl = "http://p:1"\nhosts = "a"', "http.proxy.hosts: must be a list"),
        ('[http.proxy]\nurl = "http://p:1"\nhosts = ["a"]\nsecret = "a:b"', "http.proxy.secret: must be the"),
        ("a = 1\na = 2", "not valid TOML"),
        ("a = " + "[" * 10_000, "not valid TOML"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path / "toolcrib.toml", text)
    with pytest.raises(ConfigError) as caught:
        read_file(str(path), trusted=True)
    assert caught.value.message.startswith(f"{path}: ")
    assert says in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_no_toml_has_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "toolcrib.toml", "a = 1\nb = [2,\n\nc = 3\n")
    with pytest.raises(ConfigError) as caught:
        read_file(str(path), trusted=True)
    assert (caught.value.file, caught.value.line) == (str(path), 4)
    assert str(caught.value).startswith(f"{path}:4: not valid TOML: ")


@pytest.mark.parametrize(
    "host",
    ["", "*", "*.", "a.*", "*.*", "a..b", "a b", "10.0.0.1", "127.1", "::1", "[::1]", "a.1", "*.1", "0x7f.1",
     "a.0x1", "localhost", "*.localhost", "x.localhost", "a:80", "http://a", "a/b", "bücher.example"],
)  # fmt: skip
def test_only_names_can_be_reached_through_a_proxy(host: str, tmp_path: Path) -> None:
    text = f'[http.proxy]\nurl = "http://p:1"\nhosts = ["a.example", "{host}"]'
    with pytest.raises(ConfigError) as caught:
        read_file(str(written(tmp_path / "toolcrib.toml", text)), trusted=True)
    assert "http.proxy.hosts[1]: must be the name of a host, or *. and a domain" in caught.value.message


@pytest.mark.parametrize("trusted", [True, False])
def test_a_proxy_with_a_password_in_its_url_is_refused_without_showing_it(
    trusted: bool, tmp_path: Path
) -> None:
    text = '[http.proxy]\nurl = "http://me:s3cret@proxy.example:3128"\nhosts = ["a.example"]'
    with pytest.raises(ConfigError) as caught:
        read_file(str(written(tmp_path / "toolcrib.toml", text)), trusted=trusted)
    assert 'secret = "NAME"' in caught.value.message
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("\n[manifst]", 2, "unknown key 'manifst'"),
        ("# zygots\n[limits]\nzygotes = 1\nzygots = 2", 4, "unknown key 'limits.zygots'"),
        ("[limits]\n'zygotes' = true", 2, "limits.zygotes: must be a whole number, got true or false"),
        ("limits.zygotes = 0", 1, "limits.zygotes: must be above 0 (got 0)"),
        ("serve = { watch = true, port = 65536 }", 1, "serve.port: must be 0 to 65535 (got 65536)"),
        (
            '[skills]\ndisabled = ["""\n""",\n1]',
            None,
            "skills.disabled[1]: must be a string, got a whole number",
        ),
        ('[[source]]\npath = "a"\n[[source]]\n', 3, "source[1]: needs exactly one of path, mcp and openapi"),
        (
            '[[source]]\npath = "x"\n[[source]]\npath = 1',
            4,
            "source[1].path: must be a string, got a whole number",
        ),
        ('[grants."rye:a.b/*"]\nneeds = ["x"]\nneed = []', 3, "unknown key 'grants.rye:a.b/*.need'"),
        ('\n[[policy]]\ndecision = "deny"', 2, "policy[0]: needs because"),
        (
            '[[policy]]\ndecision = "deny"\nbecause = "x"\n[policy.match]\neffect = "chnage"',
            5,
            "policy[0]: match.effect: must be one of read, create, change, write (got 'chnage')",
        ),
        (
            '[[policy]]\ndecision = "deny"\nbecause = "x"\nmatch = { nmae = "x" }',
            4,
            "policy[0]: unknown key 'match.nmae'",
        ),
        (
            '[[budget]]\ncalls = 1\nwithin = "1h"\nbecause = "x"\nmatch.name = ""',
            5,
            "budget[0]: match.name: must not be empty",
        ),
    ],
)
def test_the_line_of_a_mistake_is_told_where_it_is_sure(
    text: str, line: int | None, says: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "toolcrib.toml", text)
    with pytest.raises(ConfigError) as caught:
        read_file(str(path), trusted=True)
    assert caught.value.line == line
    assert caught.value.message == f"{path}: {says}"
    assert str(caught.value) == (f"{path}: {says}" if line is None else f"{path}:{line}: {says}")


def test_the_line_of_a_rule_is_told_only_where_it_is_sure(tmp_path: Path) -> None:
    rule = 'decision = "deny"\nbecause = "x"'
    inline = 'policy = [{decision = "deny", because = "x"}]'
    fooling = '[[policy]]\nbecause = """\n[[policy]]\n"""\ndecision = "deny"'
    for text, places in (
        (f"\n  [[ policy ]] # one\n{rule}\n[[policy]]\n{rule}", (":2 policy[0]", ":5 policy[1]")),
        (inline, (":1 policy[0]",)),
        (inline.replace("[{", "[\n{"), (" policy[0]",)),
        (fooling, (":1 policy[0]",)),
        (f'{inline}\n[[source]]\npath = """\n[[policy]]\n"""', (":1 policy[0]",)),
    ):
        path = written(tmp_path / "toolcrib.toml", text)
        found = read_file(str(path), trusted=True).policy_places
        assert found == tuple(f"{path}{place}" for place in places)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "bytes.toml", "").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "fifo.toml")
    with (tmp_path / "big.toml").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    for name in ("bytes.toml", "fifo.toml", "big.toml", "loop.toml", "."):
        with pytest.raises(ConfigError) as caught:
            resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path), file=name)
        assert caught.value.exit_code == 78
        assert caught.value.hint
    with pytest.raises(SourceError) as missing:
        resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path), file="missing.toml")
    assert missing.value.exit_code == 66


# -- what a file that was found may do ----------------------------------------------------------------------


def test_each_widening_key_of_a_found_file_is_reported_and_ignored(clone: Path, tmp_path: Path) -> None:
    config = resolve(surroundings(tmp_path / "home"), cwd=str(clone))
    assert sorted(ignored(config)) == sorted(WIDENING)
    assert {problem.path for problem in config.problems} == {str(clone / "toolcrib.toml")}
    assert config.trusted is False
    assert config.sources == (
        Source(path=f"{clone}/skills", root=str(clone)),
        Source(path=f"{clone}/bin/tools", format="executable", probe=False, root=str(clone)),
        Source(path=f"{clone}/groups", handlers=None, root=str(clone)),
    )
    assert config.allow_scripts is False
    assert config.extra_dirs == ()
    assert config.timeout_s == 30.0
    assert (config.undeclared, config.require, config.grants) == (None, Level.RESTRICTED, ())
    assert (config.unsigned, config.dev_mode) == ("refuse", False)
    assert config.http == HttpSettings()
    assert config.policy == ({"match": {"effect": "change"}, "decision": "ask", "because": "changes data"},)
    assert config.policy_places[0].endswith(" policy[0]")
    assert len(config.budgets) == 1, "a budget only narrows"


def test_what_narrows_counts_in_a_found_file_too(clone: Path, tmp_path: Path) -> None:
    config = resolve(surroundings(tmp_path / "home"), cwd=str(clone))
    assert config.manifest_strict
    assert config.skills_disabled == ("a",)
    assert config.context_mode == "read_on_demand"


NARROW = """
[[source]]
path = "skills"
trusted = false
[skills]
allow_scripts = false
extra_dirs = []
[trust]
unsigned = "refuse"
[rye]
dev_mode = false
load_dotenv = false
[isolation]
undeclared = "closed"
require = "supervised"
[timeouts]
default_s = 5
"""


def test_values_that_widen_nothing_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    written(tmp_path / "toolcrib.toml", NARROW)
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path))
    assert config.problems == ()
    assert config.timeout_s == 5
    assert config.undeclared is Profile.CLOSED


SERVING = """
[serve]
host = "0.0.0.0"
port = 9000
hosts = ["tools.example.org"]
origins = ["https://evil.example"]
rate_per_minute = 1000000
body_bytes_max = 1048576
header_bytes_max = 65536
connections_max = 9
header_timeout_s = 1
body_timeout_s = 2.5
keep_alive_s = 3
write_timeout_s = 4
approval_wait_s = 5
drain_s = 6
watch = false
sign_tool = true
"""


def test_a_found_file_opens_no_port_to_others_and_no_door_to_pages(tmp_path: Path) -> None:
    """Attack: a clone that has its tools served to the network, or to a web page of its author's."""
    written(tmp_path / "toolcrib.toml", SERVING)
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path))
    assert config.serve == Serving(watch=False)
    assert len(ignored(config)) == 15
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path), file="toolcrib.toml")
    assert config.problems == ()
    assert config.serve == Serving(
        host="0.0.0.0",
        port=9000,
        hosts=("tools.example.org",),
        origins=("https://evil.example",),
        rate_per_minute=1_000_000,
        body_bytes_max=1 << 20,
        header_bytes_max=1 << 16,
        connections_max=9,
        header_timeout_s=1,
        body_timeout_s=2.5,
        keep_alive_s=3,
        write_timeout_s=4,
        approval_wait_s=5,
        drain_s=6,
        watch=False,
        sign_tool=True,
    )


def test_a_found_file_may_name_loopback(tmp_path: Path) -> None:
    written(tmp_path / "toolcrib.toml", '[serve]\nhost = "::1"\norigins = []\nsign_tool = false\n')
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path))
    assert config.problems == ()
    assert config.serve == Serving(host="::1")


def test_a_project_narrows_what_the_user_allows(tmp_path: Path) -> None:
    user = "[skills]\nallow_scripts = true\n[timeouts]\ndefault_s = 60\n[rye]\ndev_mode = true\n"
    written(tmp_path / "home" / ".config" / "toolcrib" / "config.toml", user)
    (tmp_path / "clone" / "skills").mkdir(parents=True)
    written(tmp_path / "clone" / "toolcrib.toml", NARROW)
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path / "clone"))
    assert (config.allow_scripts, config.timeout_s, config.dev_mode) == (False, 5, False)


def test_a_project_cannot_weaken_what_the_user_demands(tmp_path: Path) -> None:
    """Attack: a clone that takes the user's own limits away by stating weaker ones."""
    user = (
        '[manifest]\nstrict = true\n[timeouts]\ndefault_s = 10\n[skills]\ndisabled = ["x"]\n'
        '[isolation]\nundeclared = "closed"\nrequire = "supervised"\n'
        '[[policy]]\nmatch = {}\ndecision = "deny"\nbecause = "no"\n'
    )
    weaker = (
        "[manifest]\nstrict = false\n[timeouts]\ndefault_s = 11\n[skills]\ndisabled = []\n"
        '[isolation]\nundeclared = "project"\nrequire = "restricted"\n'
        '[[policy]]\nmatch = {}\ndecision = "ask"\nbecause = "please"\n'
    )
    written(tmp_path / "home" / ".config" / "toolcrib" / "config.toml", user)
    written(tmp_path / "clone" / "toolcrib.toml", weaker)
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path / "clone"))
    assert config.manifest_strict
    assert config.timeout_s == 10
    assert config.skills_disabled == ("x",)
    assert config.undeclared is Profile.CLOSED
    assert config.require is Level.SUPERVISED
    assert [rule["decision"] for rule in config.policy] == ["deny", "ask"]
    assert ignored(config) == ["isolation.undeclared", "isolation.require", "timeouts.default_s"]


def test_a_file_named_on_the_command_line_is_trusted(clone: Path, tmp_path: Path) -> None:
    config = resolve(surroundings(tmp_path / "home"), cwd=str(clone), file="toolcrib.toml")
    assert config.trusted
    assert ignored(config) == []
    assert config == resolve(
        surroundings(tmp_path / "home"), cwd=str(tmp_path), file=str(clone / "toolcrib.toml")
    )


def test_the_users_own_configuration_is_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".config" / "toolcrib"
    written(folder / "config.toml", WHOLE)
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path))
    assert ignored(config) == []
    assert config.sources[1] == Source(
        path=f"{folder}/bin/tools", format="executable", probe=True, root=str(folder), starts=True
    )
    assert (config.allow_scripts, config.timeout_s) == (True, 90.0)


def test_a_named_file_replaces_one_that_would_be_found(clone: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.toml", "[manifest]\nstrict = true\n")
    config = resolve(surroundings(tmp_path / "home"), cwd=str(clone), file=str(other))
    assert (config.file, config.problems) == (str(other), ())


@pytest.mark.parametrize("path", ["../elsewhere", "{elsewhere}", "link", "inner/../../elsewhere", "/etc"])
def test_a_found_file_cannot_name_sources_outside_of_its_folder(path: str, tmp_path: Path) -> None:
    """Attack: a clone that lists files from elsewhere on the machine as its tools."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "clone" / "inner").mkdir(parents=True)
    (tmp_path / "clone" / "link").symlink_to(elsewhere)
    text = f'[[source]]\npath = "{path.format(elsewhere=elsewhere)}"\n[[source]]\npath = "inner"\n'
    written(tmp_path / "clone" / "toolcrib.toml", text)
    config = resolve(surroundings(tmp_path / "home"), cwd=str(tmp_path / "clone"))
    assert ignored(config) == ["source[0].path"]
    assert config.sources == (Source(path=str(tmp_path / "clone" / "inner"), root=str(tmp_path / "clone")),)


# -- where things are ---------------------------------------------------------------------------------------


def test_the_nearest_file_above_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    outer = written(tmp_path / "toolcrib.toml", "")
    assert find_file(str(deep)) == str(outer)
    inner = written(tmp_path / "a" / "toolcrib.toml", "")
    assert find_file(str(deep)) == str(inner)
    (deep / "toolcrib.toml").mkdir()
    assert find_file(str(deep)) == str(inner)


def test_flags_come_before_files_and_files_before_the_current_folder(clone: Path, tmp_path: Path) -> None:
    home = surroundings(tmp_path / "home")
    assert resolve(home, cwd=str(tmp_path)).sources == (Source(path=str(tmp_path), found=True),)
    assert len(resolve(home, cwd=str(clone)).sources) == 3
    named = resolve(home, cwd=str(clone), sources=["skills", "executable=bin/tools"])
    assert named.sources == (
        Source(path=f"{clone}/skills", named=True, root=str(clone), starts=True),
        Source(
            path=f"{clone}/bin/tools",
            format="executable",
            probe=True,
            named=True,
            root=f"{clone}/bin",
            starts=True,
        ),
    )


def test_state_lies_where_the_flag_or_the_platform_says(tmp_path: Path) -> None:
    home = surroundings(tmp_path / "home", XDG_STATE_HOME=str(tmp_path / "xdg"))
    assert resolve(home, cwd=str(tmp_path)).state == str(tmp_path / "xdg" / "toolcrib")
    assert resolve(home, cwd=str(tmp_path), state="mine").state == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"state": "/h/.local/state/toolcrib", "user_config": "/h/.config/toolcrib/config.toml"}),
        ({"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"}, {"state": "/s/toolcrib", "user_space": "/h"}),
        ({"XDG_STATE_HOME": "relative", "XDG_CONFIG_HOME": ""}, {"state": "/h/.local/state/toolcrib"}),
        ({"USER_SPACE": "/u"}, {"user_space": "/u", "home": "/h"}),
        ({"NO_COLOR": "1"}, {"colours": False}),
        ({"NO_COLOR": ""}, {"colours": True}),
        ({"TERM": "dumb"}, {"colours": False}),
    ],
)
def test_the_environment_is_read_once(values: Mapping[str, str], expected: Mapping[str, Any]) -> None:
    found = Environment.read({"HOME": "/h", **values})
    assert {name: getattr(found, name) for name in expected} == dict(expected)


def nobody() -> int:
    """A user whom the system does not know."""
    known = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(60_000, 65_536) if uid not in known)


def test_a_user_without_a_home_gets_no_folder_of_the_project_for_one() -> None:
    for values in ({}, {"HOME": ""}, {"HOME": "home"}, {"HOME": "."}):
        found = Environment.read(values, uid=nobody())
        assert (found.home, found.user_space) == ("/", "/")
        assert found.state == "/.local/state/toolcrib"
        assert found.user == f"uid {nobody()}"
        assert Environment.read(values, uid=0).home == pwd.getpwuid(0).pw_dir


def test_a_clone_does_not_bring_the_users_own_configuration_along(tmp_path: Path) -> None:
    """Attack: a folder named `~` in a clone, opened by a user without a home: its configuration would count
    as the user's own, and start programs."""
    written(tmp_path / "~" / ".config" / "toolcrib" / "config.toml", WHOLE)
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        config = resolve(Environment.read({"HOME": "~"}, uid=nobody()), cwd=str(tmp_path))
    finally:
        os.chdir(here)
    assert (config.file, config.trusted) == (None, False)


def test_temporary_files_lie_where_the_environment_says_if_it_is_a_folder(tmp_path: Path) -> None:
    there, file = str(tmp_path), tmp_path / "file"
    file.touch()
    for values in (
        {"TMPDIR": there, "TMP": "/"},
        {"TMPDIR": str(tmp_path / "none"), "TEMP": there},
        {"TMPDIR": str(file), "TEMP": "", "TMP": f"{there}/"},
    ):
        assert Environment.read({"HOME": "/h", **values}).temporary_folder == there
    assert Environment.read({"HOME": "/h", "TMPDIR": os.curdir}).temporary_folder == os.getcwd()
    assert Environment.read({"HOME": "/h"}).temporary_folder in ("/tmp", "/var/tmp", "/usr/tmp")


def test_a_relative_folder_for_temporary_files_is_passed_over_where_we_are_nowhere(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone", os.getcwd()
    gone.mkdir()
    os.chdir(gone)
    try:
        gone.rmdir()
        assert Environment.read({"HOME": "/h", "TMPDIR": "."}).temporary_folder in (
            "/tmp",
            "/var/tmp",
            "/usr/tmp",
        )
    finally:
        os.chdir(here)


def test_a_probed_program_sees_no_credentials() -> None:
    found = Environment.read({"HOME": "/h", "PATH": "/bin", "API_KEY": "secret", "LD_PRELOAD": "x"})
    assert found.probe_environment() == {"PATH": "/bin", "LANG": "C.UTF-8"}


def test_the_current_folder_is_where_we_are() -> None:
    assert current_folder() == os.getcwd()


@pytest.mark.parametrize("format_", FOUND_FORMATS)
def test_a_source_may_name_its_format(format_: str) -> None:
    found = named_source(f"{format_}=a/../b", "/here")
    is_program = format_ == "executable"
    expected = Source(path="/here/b", format=format_, probe=is_program, named=True, root="/here", starts=True)
    assert found == expected


def test_a_source_is_a_path_first(tmp_path: Path) -> None:
    (tmp_path / "x=y").mkdir()
    assert named_source("x=y", str(tmp_path)).path == str(tmp_path / "x=y")
    assert named_source("./skill=y", str(tmp_path)).path == str(tmp_path / "skill=y")
    assert named_source("/abs", "/here").path == "/abs"
    for text in ("", "skill=", "nothing=y"):
        with pytest.raises(UsageError) as caught:
            named_source(text, str(tmp_path))
        assert caught.value.exit_code == 2


# -- a missing path -----------------------------------------------------------------------------------------


def opened(folder: Path, text: str) -> toolcrib.Crib:
    path = written(folder / "toolcrib.toml", text)
    home = surroundings(folder / "home")
    return toolcrib.open(resolve(home, cwd=str(folder), file=str(path)), environment=home)


@pytest.mark.requirement("capability.file.missing-dir", "executable.discover.missing-dir")
@pytest.mark.parametrize(
    "keys", ["", 'format = "capability"', 'format = "executable"\ntrusted = true', 'format = "skill"']
)
def test_a_missing_directory_of_a_source_is_no_tools_and_no_error(keys: str, tmp_path: Path) -> None:
    with opened(tmp_path, f'[[source]]\npath = "missing"\n{keys}\n') as crib:
        assert len(crib.tools) == 0
        (problem,) = crib.problems
    assert (problem.code, problem.severity) == ("source.missing", Severity.WARNING)
    assert problem.path == str(tmp_path / "missing")
    assert problem.message == "no such file or directory: the source has no tools"


@pytest.mark.requirement("capability.file.missing-dir", "executable.discover.missing-dir")
def test_a_conventional_directory_that_is_not_there_is_no_problem_at_all(tmp_path: Path) -> None:
    home = surroundings(tmp_path / "home")  # nothing is there: neither a configuration nor .ai/tools
    (tmp_path / "empty").mkdir()
    project = tmp_path / "project" / ".ai" / "tools" / "a"
    written(
        project / "hello.py",
        '"""Says hello."""\n__version__ = "1.0.0"\n__tool_type__ = "python"\n__category__ = "a"\n'
        '__executor_id__ = "rye/core/runtimes/python/function"\n__tool_description__ = "Say hello"\n'
        "def execute(params, project_path):\n    return {}\n"
        'if __name__ == "__main__":\n    execute({}, ".")\n',
    )
    for folder, names in (("empty", []), ("project", ["a/hello"])):
        cwd = str(tmp_path / folder)
        with toolcrib.open(resolve(home, cwd=cwd, sources=["."]), environment=home) as crib:
            assert [tool.name for tool in crib.tools] == names
            assert crib.problems == ()
            assert crib.skills == ()


def test_a_missing_path_hides_no_other_source(tmp_path: Path) -> None:
    written(tmp_path / "there" / "SKILL.md", "---\ndescription: Notes.\n---\n")
    text = '[[source]]\npath = "missing"\n[[source]]\npath = "there"\n[skills]\nextra_dirs = ["gone"]\n'
    with opened(tmp_path, text) as crib:
        assert [skill.name for skill in crib.skills] == ["there"]
        assert [problem.path for problem in crib.problems] == [
            str(tmp_path / "missing"),
            str(tmp_path / "gone"),
        ]


def test_a_missing_path_that_a_person_named_is_an_error(tmp_path: Path) -> None:
    home = surroundings(tmp_path / "home")
    config = resolve(home, cwd=str(tmp_path), sources=["missing"])
    with pytest.raises(SourceError) as caught:
        toolcrib.open(config, environment=home)
    assert caught.value.exit_code == 66


def test_a_file_that_another_user_could_have_planted_is_not_followed(tmp_path: Path) -> None:
    """On a shared machine anyone can put a file into a folder above ours."""
    above = tmp_path / "toolcrib.toml"
    above.write_text('[[source]]\npath = "planted"\n', encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    assert find_file(str(project)) == str(above)
    above.chmod(0o666)
    assert find_file(str(project)) is None
    above.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(above, 12345, -1)
        assert find_file(str(project)) is None


def test_a_configuration_of_endless_dots_or_brackets_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "toolcrib.toml"
    for text in ("a" + ".a" * 20_000 + " = 1\n", "a = " + "[" * 500 + "]" * 500, "# " + "x" * 200_000):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError):
            read_file(str(path), trusted=True)


def test_python_tools_run_under_our_own_interpreter_where_python_does_not_know_it(tmp_path: Path) -> None:
    """Started without a PATH it knows no path of its own; inside a web server it names the server."""
    usual = tmp_path / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert own_python("/opt/venv/bin/python", str(tmp_path)) == "/opt/venv/bin/python"
    assert own_python("/usr/bin/pypy3", str(tmp_path)) == "/usr/bin/pypy3"
    for unknown in ("", None):
        assert own_python(unknown, str(tmp_path)) == str(usual)
    usual.parent.mkdir()
    usual.touch(0o755)
    assert own_python("/usr/sbin/web-server", str(tmp_path)) == str(usual)
