"""MCP servers as sources: named in a configuration or a list, asked together, remembered, asked again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import toolcrib
from tests.peers import Peer, Talk, answers, response
from tests.program import bounded
from tests.program import toolcrib as program
from toolcrib.app import Crib
from toolcrib.bound import BoundTool
from toolcrib.catalog import sources
from toolcrib.config import Config, Environment, resolve
from toolcrib.doors import cli
from toolcrib.errors import ConfigError, Kind, UnknownTool
from toolcrib.formats.mcp import Server, server_record
from toolcrib.hands import Later, LaterServers
from toolcrib.journal.reading import entries
from toolcrib.model import CallHttp, Effect, End, Ending, Level, Permit, Problem, Severity, Tool, ToolCall
from toolcrib.sandbox import Cancel, Start, probe
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.portable import Portable
from toolcrib.servers import FIRST_S, LIST_S, NOTES_MAX, ServerLists

SERVER = str(Path(__file__).parent / "peers" / "odd_server.py")
BOUND_S = 20.0


def command(*options: str) -> list[str]:
    return [sys.executable, "-I", "-S", SERVER, *options]


def surroundings(folder: Path, **variables: str) -> Environment:
    values = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    return replace(Environment.read(values), state=str(folder / "state"))


def written(folder: Path, *sources: Mapping[str, Any], more: str = "") -> Path:
    """A configuration with these sources."""
    path = folder / "toolcrib.toml"
    tables = [
        "[[source]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in source.items())
        for source in sources
    ]
    path.write_text("\n".join([*tables, more]), encoding="utf-8")
    return path


def opened(folder: Path, config: Config | None = None, **variables: str) -> Crib:
    """A crib on a configuration that a person named. The level matters to other tests, not to these."""
    home = surroundings(folder, **variables)
    if config is None:
        config = resolve(home, cwd=str(folder), file="toolcrib.toml")
    return toolcrib.open(config, environment=home, sandbox=Portable(Scratch()))


def keys(crib: Crib) -> list[str]:
    return [tool.key for tool in crib.tools]


def codes(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.code for problem in problems]


def starts(folder: Path) -> int:
    path = folder / "marks"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def marking(folder: Path, *options: str) -> list[str]:
    """A server that writes a line for each of its starts."""
    return command(f"marks={folder / 'marks'}", *options)


# -- sources ------------------------------------------------------------------------------------------------


def test_a_server_of_the_configuration_brings_its_tools(tmp_path: Path) -> None:
    written(tmp_path, {"name": "files", "mcp": command("names=read,write")})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:files/read", "mcp:files/write"]
        assert crib.problems == ()
        tool = crib.find("mcp:files/read")
        assert (tool.spoken, tool.description, tool.effect) == ("files__read", "does read", Effect.CHANGE)
        result = crib.call("mcp:files/read", {"text": "hello"})
        assert (result.ok, result.content) == (True, "hello")
        assert crib.call("read", {"text": 3}).error is not None


def test_a_list_of_servers_is_read_when_a_person_names_it(tmp_path: Path) -> None:
    servers = {
        "one": {"command": sys.executable, "args": ["-I", "-S", SERVER, "names=a"]},
        "two words!": {"command": sys.executable, "args": ["-I", "-S", SERVER, "names=b"], "env": {"X": "1"}},
        "off": {"command": "/bin/false", "disabled": True},
        "wrong": {"command": "x", "url": "http://127.0.0.1/"},
        "nothing": 3,
    }
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    home = surroundings(tmp_path)
    config = resolve(home, cwd=str(tmp_path), sources=[".mcp.json"])
    with opened(tmp_path, config) as crib:
        assert keys(crib) == ["mcp:one/a", "mcp:two-words/b"]
        assert codes(crib.problems) == ["mcp.servers.wrong", "mcp.servers.wrong"]
        assert crib.problems[0].line is not None
        assert crib.call("mcp:two-words/b", {"text": "x"}).content == "x"


def test_a_list_that_calls_them_just_servers_is_read_when_a_person_names_it(tmp_path: Path) -> None:
    entry = {"type": "stdio", "command": sys.executable, "args": command("names=a")[1:]}
    path = tmp_path / "mcp.json"
    config = resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=["mcp.json"])
    path.write_text(json.dumps({"servers": {"s": entry}, "inputs": []}), encoding="utf-8")
    with opened(tmp_path, config) as crib:
        assert keys(crib) == ["mcp:s/a"]
        for other in ({"servers": [entry]}, {"servers": {"s": {"about": "x"}}}):
            path.write_text(json.dumps(other), encoding="utf-8")
            crib.reload()
            assert keys(crib) == []


def test_a_bare_map_of_servers_is_read_when_a_person_names_it(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": command("names=a")[1:]}
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"$schema": "x", "s": entry}), encoding="utf-8")
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[".mcp.json"])) as shop:
        assert (keys(shop), shop.problems) == (["mcp:s/a"], ())


def test_comments_and_trailing_commas_of_a_list_are_passed_over(tmp_path: Path) -> None:
    args = json.dumps(command("names=a")[1:])
    path = tmp_path / "mcp.json"
    path.write_text(
        f"""{{
  // the servers of this project
  "servers": {{ /* one: {{ */
    "s": {{"command": {json.dumps(sys.executable)}, "args": {args}, "env": {{"A": "http://x // y"}},}},
  }}, // and no more
}}
""",
        encoding="utf-8",
    )
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=["mcp.json"])) as shop:
        assert (keys(shop), shop.problems) == (["mcp:s/a"], ())


@pytest.mark.parametrize("source", ["config.toml", "mcp=config.toml"])
def test_the_servers_of_codex_are_read_when_a_person_names_its_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "config.toml").write_text(
        'model = "m"\n\n[mcp_servers.s]\n'
        f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(command('names=a,b')[1:])}\n"
        'startup_timeout_sec = 20\ntool_timeout_sec = 60\nenabled_tools = ["b"]\n\n'
        '[mcp_servers.off]\ncommand = "/bin/false"\nenabled = false\n',
        encoding="utf-8",
    )
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[source])) as crib:
        assert (keys(crib), crib.problems) == (["mcp:s/b"], ())


def test_a_tool_that_a_list_switches_off_is_not_there(tmp_path: Path) -> None:
    """Attack: a restriction of another host that is passed over here."""
    base = {"command": sys.executable, "args": command("names=a,b,c")[1:]}
    servers = {
        "one": {**base, "includeTools": ["a", "b"], "excludeTools": ["b"]},
        "two": {**base, "disabledTools": ["a"]},
        "odd": {**base, "excludeTools": "a"},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    config = resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[".mcp.json"])
    with opened(tmp_path, config) as crib:
        assert keys(crib) == ["mcp:one/a", "mcp:two/b", "mcp:two/c"]
        (wrong,) = (found for found in crib.problems if found.code == "mcp.servers.wrong")
        assert "excludeTools must be a list of names of tools" in wrong.message
        assert not crib.call("mcp:one/b", {"text": "x"}).ok


def test_what_a_list_of_a_trusted_source_says_of_effects_is_believed(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": command("names=a", "read=a")[1:]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")
    for trusted, effect in ((True, Effect.READ), (False, Effect.CHANGE)):
        written(tmp_path, {"path": ".mcp.json", **({"trusted": True} if trusted else {})})
        with opened(tmp_path) as crib:
            assert crib.find("mcp:s/a").effect is effect


@pytest.mark.parametrize(("listed", "got"), [([{"name": "s"}], "array"), (None, "null"), ("x", "string")])
def test_a_list_of_servers_that_is_none_says_what_is_wrong(tmp_path: Path, listed: object, got: str) -> None:
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": listed}), encoding="utf-8")
    config = resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[".mcp.json"])
    with opened(tmp_path, config) as crib:
        (problem,) = crib.problems
    assert problem.code == "mcp.servers.wrong"
    assert problem.message == f"mcpServers: must be an object with a server under each name (got {got})"


@pytest.mark.parametrize("program", ["npx -y some-server", "/usr/bin/env python3"])
def test_a_command_line_in_the_place_of_a_program_is_told_plainly(tmp_path: Path, program: str) -> None:
    written(tmp_path, {"name": "s", "mcp": [program]})
    with opened(tmp_path) as crib:
        (problem,) = crib.problems
    assert f"there is no program {program!r}" in problem.message
    assert "each of its arguments by itself" in str(problem.hint)


def test_a_list_of_servers_in_a_folder_starts_nothing(tmp_path: Path) -> None:
    """Attack: a clone whose list of servers is a list of programs to run."""
    server = {"command": sys.executable, "args": ["-I", "-S", SERVER, f"marks={tmp_path / 'marks'}"]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": server}}), encoding="utf-8")
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path))) as crib:
        assert keys(crib) == []
        assert codes(crib.problems) == ["source.not-probed"]
        assert f"--from {tmp_path / '.mcp.json'}" in str(crib.problems[0].hint)
    assert starts(tmp_path) == 0


@pytest.mark.parametrize("source", ["mcp", "path"])
def test_a_configuration_that_was_found_starts_no_server(tmp_path: Path, source: str) -> None:
    """Attack: a clone that brings its own configuration, with a server to start."""
    listed = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, f"marks={tmp_path / 'marks'}"]}
    listed.write_text(json.dumps({"mcpServers": {"x": entry}}), encoding="utf-8")
    written(
        tmp_path,
        {"name": "x", "mcp": marking(tmp_path)} if source == "mcp" else {"path": "servers.json"},
    )
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path))) as crib:
        assert keys(crib) == []
        expected = {"mcp": "config.untrusted", "path": "source.not-probed"}[source]
        assert expected in codes(crib.problems)
    assert starts(tmp_path) == 0


def test_a_list_that_a_trusted_configuration_names_may_start(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, "names=a"]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"x": entry}}), encoding="utf-8")
    written(tmp_path, {"path": "servers.json"})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:x/a"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"mcp": ["/"]}, "must be letters"),
        ({"mcp": ["x"], "name": "a b"}, "must be letters"),
        ({"mcp": [], "name": "a"}, "the command is empty"),
        ({"mcp": "npx server", "name": "a"}, "must be a URL"),
        ({"mcp": ["x"], "name": "a", "timeout": 0}, "must be above 0"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(tmp_path: Path, source: dict[str, Any], words: str) -> None:
    written(tmp_path, source)
    with pytest.raises(ConfigError, match=words):
        opened(tmp_path)


# -- lists --------------------------------------------------------------------------------------------------


def test_a_warm_start_starts_no_server_until_a_call(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
    assert starts(tmp_path) == 1
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
        assert crib._report.warm
        assert starts(tmp_path) == 1
        assert crib.call("mcp:s/a", {"text": "hi"}).content == "hi"
    assert starts(tmp_path) == 2


def test_another_definition_is_asked_anew(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command("names=a")})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
    written(tmp_path, {"name": "s", "mcp": command("names=b")})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/b"]


def test_a_fresh_look_asks_again(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    with opened(tmp_path) as crib:
        assert starts(tmp_path) == 1
    with opened(tmp_path) as crib:
        crib.reload(fresh=True)
        assert starts(tmp_path) == 2
        assert keys(crib) == ["mcp:s/a"]


def test_a_look_that_fails_keeps_the_list_there_was(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    written(tmp_path, {"name": "s", "mcp": [str(program), *command("names=a")[1:]]})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
    program.unlink()
    with opened(tmp_path) as crib:
        crib.reload(fresh=True)
        assert keys(crib) == ["mcp:s/a"]
        (problem,) = crib.problems
        assert problem.code == "mcp.server.unavailable"
        assert "its tools are those it listed last" in problem.message
        error = crib.call("mcp:s/a").error
        assert error is not None
        assert error.kind is Kind.UNAVAILABLE
    program.symlink_to(sys.executable)
    with opened(tmp_path) as crib:
        crib.reload(fresh=True)
        assert crib.problems == ()
        assert crib.call("mcp:s/a").ok


def test_a_list_that_changed_is_asked_for_again_meanwhile(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command()})
    with opened(tmp_path) as crib:
        assert "mcp:s/sprout" not in keys(crib)
        assert crib.call("mcp:s/grow", {"text": "sprout"}).ok
        until = time.monotonic() + BOUND_S
        while "mcp:s/sprout" not in keys(crib) and time.monotonic() < until:
            Cancel().wait(0.02)
        assert "mcp:s/sprout" in keys(crib)
        assert crib.call("mcp:s/sprout", {"text": "green"}).content == "green"
    # What was learnt is kept: the next program knows the new list without asking.
    with opened(tmp_path) as crib:
        assert crib._report.warm
        assert "mcp:s/sprout" in keys(crib)


def test_dead_servers_are_a_warning_each_and_hide_nothing(tmp_path: Path) -> None:
    written(
        tmp_path,
        {"name": "good", "mcp": command("names=a")},
        {"name": "gone", "mcp": ["no-such-program"]},
        {"name": "dead", "mcp": command("complains", "version=0")},
        {"name": "mute", "mcp": command("mute"), "timeout": 0.5},
        {"name": "endless", "mcp": command("endless")},
    )
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:good/a"]
        assert {problem.name: problem.code for problem in crib.problems} == dict.fromkeys(
            ["gone", "dead", "mute", "endless"], "mcp.server.unavailable"
        )
        told = {problem.name: problem for problem in crib.problems}
        assert "there is no program 'no-such-program'" in told["gone"].message
        assert told["dead"].hint == (
            "its last words: odd server: \\x1b[31mcannot find its feet\\x1b[0m; its environment is filtered: "
            "it has the base variables and those that its definition names; to hand over another one: "
            '[grants."mcp:dead/*"] env = ["NAME"]'
        )
        assert "within 0.5 s" in told["mute"].message
        assert "has no end" in told["endless"].message


def test_a_timeout_of_hundreds_of_digits_leaves_out_its_server_alone(tmp_path: Path) -> None:
    """Attack: one entry of a list that makes the whole crib fail to open."""
    good = {"command": sys.executable, "args": ["-I", "-S", SERVER, "names=a"], "timeout": 60_000}
    servers = {"bad": {**good, "timeout": 10**400}, "good": good}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[".mcp.json"])) as crib:
        assert keys(crib) == ["mcp:good/a"]
        assert codes(crib.problems) == ["mcp.servers.wrong"]


class Asked:
    """Stands where servers are asked, and keeps how long each was given."""

    def __init__(self) -> None:
        self.given_s: list[float] = []

    def listed(self, tool: Tool, timeout_s: float, cancel: Cancel) -> list[Any]:
        self.given_s.append(timeout_s)
        return []


def candidate_of(definition: dict[str, Any], name: str = "s") -> sources.Candidate:
    server = Server(name=name, definition=definition)
    return sources.Candidate("/x", (), "mcp", server=server.digest, defined=server.text)


def test_no_server_is_asked_for_longer_than_any_other(tmp_path: Path) -> None:
    """Attack: a server that never answers and gives itself hours."""
    asked: Any = Asked()
    lists = ServerLists(str(tmp_path), lambda: asked, lambda: None)
    for timeout in ({}, {"timeout": 3}, {"timeout": 60_000}):
        lists.ask([candidate_of({"command": "x", **timeout})])
    assert asked.given_s == [LIST_S, 3, LIST_S]


def age(folder: Path, what: str, by_s: float = 120.0) -> None:
    """As if it had been noted some minutes ago."""
    for path in (folder / "state" / "servers").glob(f"*.{what}"):
        then = path.stat().st_mtime - by_s
        os.utime(path, (then, then))


def until_true(is_true: Callable[[], bool]) -> bool:
    """Waited for a bounded time."""
    until = time.monotonic() + BOUND_S
    while not is_true() and time.monotonic() < until:
        Cancel().wait(0.02)
    return is_true()


def test_a_server_that_hangs_holds_up_one_opening_for_a_moment_and_no_other(tmp_path: Path) -> None:
    """Attack: a server that takes the greeting and never answers, to hide or hold up the others."""
    written(
        tmp_path,
        {"name": "good", "mcp": command("names=a")},
        {"name": "hangs", "mcp": marking(tmp_path, "mute", "complains")},
    )
    for number in range(3):
        began = time.monotonic()
        with opened(tmp_path) as crib:
            took_s = time.monotonic() - began
            assert keys(crib) == ["mcp:good/a"]
            (problem,) = crib.problems
            assert (problem.code, problem.name) == ("mcp.server.unavailable", "hangs")
            assert re.search("it has not answered within [0-9]+ s; its tools come", problem.message)
            assert crib.call("mcp:good/a", {"text": "x"}).content == "x"
            # Only the first opening waits; after a minute it is asked again, and nobody waits for it.
            assert took_s < (2 * FIRST_S if number == 0 else FIRST_S)
            if number == 2:
                assert until_true(lambda: starts(tmp_path) == 2)
        if number == 1:
            assert starts(tmp_path) == 1
            age(tmp_path, "failed")


@pytest.mark.parametrize("waits", [False, True])
def test_the_tools_of_a_slow_server_appear_when_it_answers(tmp_path: Path, waits: bool) -> None:
    let_go = tmp_path / "let-go"
    written(
        tmp_path,
        {"name": "good", "mcp": command("names=a")},
        {"name": "slow", "mcp": marking(tmp_path, "names=b", f"when={let_go}", "slow=0.5")},
    )
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:good/a"]
        assert codes(crib.problems) == ["mcp.server.unavailable"]
        began = time.monotonic()
        error = crib.call("mcp:slow/b", timeout_s=0.1).error
        assert error is not None
        assert error.kind is Kind.UNAVAILABLE
        assert crib.call("mcp:good/a", {"text": "x"}).content == "x"
        assert time.monotonic() - began < FIRST_S / 2  # nobody waits for a server that is not his
        let_go.touch()
        if waits:  # a call by the key does, within its time
            assert crib.call("mcp:slow/b", {"text": "soon"}).content == "soon"
        assert until_true(lambda: "mcp:slow/b" in keys(crib))
        assert crib.problems == ()
        assert crib.call("mcp:slow/b", {"text": "late"}).content == "late"
        assert starts(tmp_path) == 1
    with opened(tmp_path) as crib:
        assert crib._report.warm
        assert keys(crib) == ["mcp:good/a", "mcp:slow/b"]


def test_a_list_that_is_remembered_serves_at_once_and_is_asked_for_meanwhile(tmp_path: Path) -> None:
    switch, names = tmp_path / "switch", tmp_path / "names"
    names.write_text("a", encoding="utf-8")
    mcp = marking(tmp_path, f"mute-if={switch}", f"names-in={names}")
    written(tmp_path, {"name": "s", "mcp": mcp, "timeout": 8})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
    age(tmp_path, "listed")
    shutil.rmtree(tmp_path / "state" / "cache")
    switch.touch()  # it hangs from now on
    began = time.monotonic()
    with opened(tmp_path) as crib:
        assert time.monotonic() - began < FIRST_S
        assert keys(crib) == ["mcp:s/a"]
        assert crib.problems == ()
        assert until_true(lambda: starts(tmp_path) == 2)
    age(tmp_path, "listed")
    shutil.rmtree(tmp_path / "state" / "cache")
    switch.unlink()
    names.write_text("a,b", encoding="utf-8")
    with opened(tmp_path) as crib:
        assert until_true(lambda: keys(crib) == ["mcp:s/a", "mcp:s/b"])
        assert crib.problems == ()
        assert crib.call("mcp:s/b", {"text": "x"}).content == "x"
        assert starts(tmp_path) == 3


def test_a_remembered_list_says_so_when_its_server_turns_out_to_be_gone(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    written(tmp_path, {"name": "s", "mcp": [str(program), *command("names=a")[1:]]})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
    age(tmp_path, "listed")
    shutil.rmtree(tmp_path / "state" / "cache")
    program.unlink()
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
        assert until_true(lambda: codes(crib.problems) == ["mcp.server.unavailable"])
        assert "its tools are those it listed last" in crib.problems[0].message
        assert keys(crib) == ["mcp:s/a"]


def test_a_fresh_look_waits_for_a_slow_server(tmp_path: Path) -> None:
    slow = marking(tmp_path, "names=b", f"slow={FIRST_S + 0.5}")
    written(tmp_path, {"name": "slow", "mcp": slow})
    with opened(tmp_path) as crib:
        crib.reload(fresh=True)
        assert keys(crib) == ["mcp:slow/b"]
        assert crib.problems == ()
    assert starts(tmp_path) == 1  # it was under way, and is not asked twice


def test_a_server_that_answers_quickly_again_is_back_at_the_next_opening(tmp_path: Path) -> None:
    program = tmp_path / "server"
    written(tmp_path, {"name": "s", "mcp": [str(program), *command("names=a")[1:]]})
    with opened(tmp_path) as crib:
        assert keys(crib) == []
    program.symlink_to(sys.executable)
    age(tmp_path, "failed")
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
        assert crib.problems == ()


def test_a_change_that_comes_while_the_server_is_asked_is_not_lost(tmp_path: Path) -> None:
    gate, asked_once = threading.Event(), threading.Event()
    lists_of: list[list[Any]] = [[], [{"name": "new"}]]
    reloaded = threading.Event()

    class Changing:
        def listed(self, tool: Tool, timeout_s: float, cancel: Cancel) -> list[Any]:
            found = lists_of[0] if len(lists_of) == 1 else lists_of.pop(0)
            asked_once.set()
            gate.wait(BOUND_S)
            return found

    asked: Any = Changing()
    lists = ServerLists(str(tmp_path), lambda: asked, reloaded.set)
    found = candidate_of({"command": "x"})
    lists.know(sources.Listing(servers={found.server: (found.defined, found.path)}))
    lists.server_changed(found.server)
    assert asked_once.wait(BOUND_S)
    lists.server_changed(found.server)  # after it was asked, and before it answered
    gate.set()
    assert until_true(lambda: b"new" in (lists._remembered(found.server) or b""))
    assert reloaded.wait(BOUND_S)
    lists.close()


def test_an_answer_that_was_waited_for_does_not_undo_a_newer_one(tmp_path: Path) -> None:
    """The opening waits for the one that hangs. Meanwhile the other has answered, and again with more."""
    written(
        tmp_path,
        {"name": "grows", "mcp": command("grows")},
        {"name": "hangs", "mcp": command("mute")},
    )
    with opened(tmp_path) as crib:
        assert until_true(lambda: "mcp:grows/later" in keys(crib))
    shutil.rmtree(tmp_path / "state" / "cache")
    with opened(tmp_path) as crib:  # from what it said last, as long as that is believed
        assert "mcp:grows/later" in keys(crib)


def test_what_came_for_a_server_that_was_taken_out_is_not_told_when_it_is_back(tmp_path: Path) -> None:
    path, names, let_go = tmp_path / ".mcp.json", tmp_path / "names", tmp_path / "let-go"
    entry = {"command": sys.executable, "args": [*command(f"names-in={names}", f"when={let_go}")[1:]]}
    config = resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[str(path)])

    def lists(*named: str) -> None:
        path.write_text(json.dumps({"mcpServers": dict.fromkeys(named, entry)}), encoding="utf-8")

    def remembered() -> str:
        (file,) = (tmp_path / "state" / "servers").glob("*.listed")
        return file.read_text(encoding="utf-8")

    lists("s")
    names.write_text("a", encoding="utf-8")
    let_go.touch()
    opened(tmp_path, config).close()
    let_go.unlink()
    shutil.rmtree(tmp_path / "state" / "cache")
    age(tmp_path, "listed")
    names.write_text("a,b", encoding="utf-8")
    with opened(tmp_path, config) as crib:  # it is asked meanwhile, and taken out before it answers
        assert keys(crib) == ["mcp:s/a"]
        lists()
        crib.reload()
        let_go.touch()
        assert until_true(lambda: '"b"' in remembered())
        assert until_true(lambda: "mcp-refresh" not in [thread.name for thread in threading.enumerate()])
        age(tmp_path, "listed")
        names.write_text("a,b,c", encoding="utf-8")
        lists("s")
        crib.reload()
        assert until_true(lambda: "mcp:s/c" in keys(crib))


def test_a_closed_crib_leaves_no_thread(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command("grows")}, {"name": "dead", "mcp": ["/nowhere/server"]})
    before = {*threading.enumerate()}
    crib = opened(tmp_path)
    assert until_true(lambda: "mcp:s/later" in keys(crib))
    crib.close()
    assert {*threading.enumerate()} <= before


def test_closing_waits_for_what_came_and_is_still_written_down(tmp_path: Path) -> None:
    """Else it is written into a state folder that somebody else may have by then."""
    is_closed, came = threading.Event(), list[bool]()

    class Slow(ServerLists):
        def _arrive(self, look: Any, outcome: Any) -> None:
            arrived.set()
            assert self._stop.wait(BOUND_S)
            came.append(is_closed.wait(0.2))
            super()._arrive(look, outcome)

    arrived = threading.Event()
    asked: Any = Asked()
    lists = Slow(str(tmp_path), lambda: asked, lambda: None)
    lists._look_at("d", candidate_of({"command": "x"}).defined, "/x")
    assert arrived.wait(BOUND_S)
    lists.close()
    is_closed.set()
    assert until_true(lambda: len(came) == 1)
    assert came == [False]
    assert lists._remembered("d") is not None


def test_notes_about_servers_that_nobody_names_any_more_do_not_pile_up(tmp_path: Path) -> None:
    asked: Any = Asked()
    servers = tmp_path / "servers"
    servers.mkdir()
    for number in range(NOTES_MAX + 50):
        path = servers / f"{number:064x}.listed"
        path.write_bytes(b"{}")
        os.utime(path, (number, number))
    lists = ServerLists(str(tmp_path), lambda: asked, lambda: None)
    lists.ask([candidate_of({"command": "x"})])
    lists.close()
    left = sorted(path.name for path in servers.iterdir())
    assert len(left) == NOTES_MAX
    assert f"{0:064x}.listed" not in left
    assert f"{NOTES_MAX + 49:064x}.listed" in left
    assert [*servers.glob(f"{candidate_of({'command': 'x'}).server.rpartition(':')[2]}.*")]


def test_a_call_of_a_server_that_listed_nothing_names_it_and_its_last_words(tmp_path: Path) -> None:
    written(
        tmp_path,
        {"name": "near", "mcp": command("names=echo")},
        {"name": "dead", "mcp": command("complains", "version=0")},
        {"name": "none", "mcp": command("names=")},
    )
    for _ in range(2):  # the second one rests, and is told from what was noted
        with opened(tmp_path) as crib:
            result = crib.call("mcp:dead/echo")
            assert result.error is not None
            assert result.error.kind is Kind.UNAVAILABLE
            assert "the MCP server 'dead' has not listed its tools: it cannot be reached" in (
                result.error.message
            )
            assert "cannot find its feet" in str(result.error.hint)
            with pytest.raises(UnknownTool, match="has not listed its tools"):
                crib.find("mcp:dead/echo")
            for name in ("mcp:near/nothing", "mcp:nobody/echo"):
                error = crib.call(name).error
                assert error is not None
                assert error.kind is Kind.UNKNOWN_TOOL


@pytest.mark.battery("I09")
def test_a_tool_named_like_a_key_does_not_get_the_calls_of_a_server_that_is_down(tmp_path: Path) -> None:
    """Attack: a server that calls its tool by the key of another's, to get its calls while that is down."""
    written(
        tmp_path,
        {"name": "bank", "mcp": ["no-such-program"]},
        {"name": "evil", "mcp": command("names=mcp:bank/transfer")},
    )
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:evil/mcp:bank/transfer"]
        error = crib.call("mcp:bank/transfer", {"text": "x"}).error
        assert error is not None
        assert error.kind is Kind.UNAVAILABLE
        assert crib.call("mcp:evil/mcp:bank/transfer", {"text": "x"}).content == "x"


def test_a_server_that_is_down_is_not_asked_at_every_start(tmp_path: Path) -> None:
    written(tmp_path, {"name": "down", "mcp": marking(tmp_path, "version=0")})
    with opened(tmp_path) as crib:
        assert codes(crib.problems) == ["mcp.server.unavailable"]
    with opened(tmp_path) as crib:
        assert codes(crib.problems) == ["mcp.server.unavailable"]
    assert starts(tmp_path) == 1


def test_a_list_in_pages_is_read_to_its_end(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command("tools=25", "page=10")})
    with opened(tmp_path) as crib:
        assert len(crib.tools) == 25


def test_fifty_servers_are_ready_when_the_slowest_healthy_one_is(tmp_path: Path) -> None:
    slow_s = 2.0
    sources = [{"name": f"s{number}", "mcp": command("tools=45", "slow=1")} for number in range(44)]
    sources.append({"name": "slow", "mcp": command("tools=20", f"slow={slow_s}")})
    sources += [{"name": f"dead{number}", "mcp": ["no-such-program"]} for number in range(5)]
    written(tmp_path, *sources)
    began = time.monotonic()
    with opened(tmp_path) as crib:
        took_s = time.monotonic() - began
        assert len(crib.tools) == 44 * 45 + 20
        assert codes(crib.problems).count("mcp.server.unavailable") == 5
    # Not a measurement: one after the other they would sleep for 46 s, in two halves for 24.
    assert took_s < slow_s + BOUND_S


def is_running(pid: int) -> bool:
    """Waited for a bounded time, while it still is."""
    until = time.monotonic() + BOUND_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        Cancel().wait(0.02)
    return Path(f"/proc/{pid}").exists()


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "marks").read_text(encoding="utf-8").splitlines()]


def test_an_opening_that_fails_leaves_no_server_running(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    home = surroundings(tmp_path)
    config = resolve(home, cwd=str(tmp_path), file="toolcrib.toml")

    def fail(done: int, of: int) -> None:
        if starts(tmp_path):
            raise KeyError("the host's own mistake")

    with pytest.raises(KeyError):
        toolcrib.open(config, environment=home, sandbox=Portable(Scratch()), progress=fail)
    assert not any(map(is_running, pids(tmp_path)))


def test_an_interrupt_while_servers_are_asked_ends_at_once(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "mute")})
    host = (
        "import signal, sys, toolcrib\nfrom toolcrib.config import Environment, resolve\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from toolcrib.sandbox._scratch import Scratch\nfrom toolcrib.sandbox.portable import Portable\n"
        "home = Environment.read()\n"
        "config = resolve(home, cwd=sys.argv[1], file='toolcrib.toml', state=sys.argv[1] + '/state')\n"
        "toolcrib.open(config, environment=home, sandbox=Portable(Scratch()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", host, str(tmp_path)], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + BOUND_S
        while not starts(tmp_path) and time.monotonic() < until:
            Cancel().wait(0.02)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, told = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - began < LIST_S / 2
    assert b"KeyboardInterrupt" in told
    assert not any(map(is_running, pids(tmp_path)))
    assert not [*(tmp_path / "state" / "servers").glob("*.failed")]  # it was not let finish


def test_a_stopped_question_stops_no_later_one(tmp_path: Path) -> None:
    heard: list[Cancel] = []

    class Keeping:
        def listed(self, tool: Tool, timeout_s: float, cancel: Cancel) -> list[Any]:
            heard.append(cancel)
            return []

    class Interrupted(ServerLists):
        def _wait(self, for_long: Any, for_short: Any = ()) -> None:
            if len(heard) < 2:
                raise KeyboardInterrupt

    asked: Any = Keeping()
    lists = Interrupted(str(tmp_path), lambda: asked, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        lists.ask([candidate_of({"command": "x"})])
    assert until_true(lambda: len(heard) == 1)
    lists._look_at("d", candidate_of({"command": "y"}).defined, "/x")
    assert until_true(lambda: len(heard) == 2)
    assert [cancel.is_set for cancel in heard] == [True, False]
    lists.close()
    assert heard[1].is_set


def test_a_server_that_no_source_names_any_more_ends_at_the_next_look(tmp_path: Path) -> None:
    """Attack: a server that somebody took out of the list goes on, with what it was granted."""
    path = tmp_path / ".mcp.json"
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, f"marks={tmp_path / 'marks'}"]}
    path.write_text(json.dumps({"mcpServers": {"a": entry, "b": entry}}), encoding="utf-8")
    config = resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=[".mcp.json"])
    with opened(tmp_path, config) as crib:
        assert crib.call("mcp:b/echo", {"text": "x"}).content == "x"
        first = pids(tmp_path)
        assert len(first) == 2
        path.write_text(json.dumps({"mcpServers": {"b": entry}}), encoding="utf-8")
        crib.reload()
        assert {key.partition("/")[0] for key in keys(crib)} == {"mcp:b"}
        until = time.monotonic() + BOUND_S
        while len(living(first)) > 1 and time.monotonic() < until:
            Cancel().wait(0.02)
        assert len(living(first)) == 1
        assert crib.call("mcp:b/echo", {"text": "y"}).content == "y"
        assert pids(tmp_path) == first  # the one that is still named was not started again
        assert [state.name for state in crib.servers()] == ["b"]


def test_a_server_of_a_tools_own_file_ends_when_its_definition_goes(tmp_path: Path) -> None:
    """Attack: a server that somebody took out of a project goes on, with what it was granted."""
    tools = tmp_path / ".ai" / "tools"
    tools.mkdir(parents=True)
    head = "executor_id: {}\ncategory: ''\nversion: 1.0.0\ndescription: 'd'\n"
    for name in ("one", "two"):
        arguments = "".join(f"    - {json.dumps(part)}\n" for part in marking(tmp_path, f"is={name}")[1:])
        (tools / f"{name}.yaml").write_text(
            f"tool_type: mcp_server\n{head.format('null')}config:\n  transport: stdio\n"
            f"  command: {json.dumps(sys.executable)}\n  args:\n{arguments}",
            encoding="utf-8",
        )
        (tools / f"say_{name}.yaml").write_text(
            f"tool_type: mcp\n{head.format('rye/core/runtimes/mcp/stdio')}"
            f"config: {{server: {name}, tool_name: echo}}\ninput_schema: {{type: object}}\n",
            encoding="utf-8",
        )
    config = replace(resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=["."]), unsigned="warn")
    with opened(tmp_path, config) as crib:
        assert crib.call("say_one").ok
        assert crib.call("say_two").ok
        first = pids(tmp_path)
        assert len(living(first)) == 2
        crib.reload()  # nothing changed, and nothing ends
        assert crib.call("say_two").ok
        assert (pids(tmp_path), len(living(first))) == (first, 2)
        (tools / "say_one.yaml").unlink()
        (tools / "one.yaml").unlink()
        crib.reload()
        assert until_true(lambda: living(first) == first[1:])
        assert crib.call("say_two").ok
        text = (tools / "two.yaml").read_text(encoding="utf-8")
        (tools / "two.yaml").write_text(text.replace("is=two", "is=other"), encoding="utf-8")
        crib.reload()
        assert until_true(lambda: not living(first))
        assert crib.call("say_two").ok
        assert len(pids(tmp_path)) == 3


@pytest.mark.parametrize(
    "entry", [{"command": "/bin/false", "disabled": True}, {"command": 3}, {"command": "x", "url": "y"}, None]
)
def test_a_spoilt_or_switched_off_entry_keeps_its_name(tmp_path: Path, entry: object) -> None:
    """Attack: a namesake, which gets what was granted to an entry that is switched off or has a mistake."""
    (tmp_path / "one.json").write_text(json.dumps({"mcpServers": {"bank": entry}}), encoding="utf-8")
    other = {"command": sys.executable, "args": ["-I", "-S", SERVER, f"marks={tmp_path / 'marks'}"]}
    (tmp_path / "two.json").write_text(json.dumps({"mcpServers": {"bank": other}}), encoding="utf-8")
    written(tmp_path, {"path": "one.json"}, {"path": "two.json"})
    with opened(tmp_path) as crib:
        assert keys(crib) == []
        clash = crib.problems[-1]
        assert (clash.code, clash.name) == ("mcp.servers.clash", "bank")
        assert clash.path == str(tmp_path / "two.json")
    assert starts(tmp_path) == 0


def living(processes: list[int]) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_refresh_that_fails_leaves_the_next_one_possible(tmp_path: Path) -> None:
    reloaded = threading.Semaphore(0)

    def fail() -> None:
        reloaded.release()
        raise KeyError("a mistake of ours")

    asked: Any = Asked()
    lists = ServerLists(str(tmp_path), lambda: asked, fail)
    server = Server(name="s", definition={"command": "x"})
    lists.know(sources.Listing(servers={server.digest: (server.text, "/x")}))
    for _ in range(2):
        lists.server_changed(server.digest)
        assert reloaded.acquire(timeout=BOUND_S)
        for thread in threading.enumerate():
            if thread.name == "mcp-refresh":
                thread.join(BOUND_S)
    lists.close()


# -- who may speak for whom ---------------------------------------------------------------------------------


@pytest.mark.battery("I09")
def test_servers_with_tools_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    """Attack: a server that offers a tool of another's name, to get its calls."""
    written(
        tmp_path,
        {"name": "bank", "mcp": command("names=transfer")},
        {"name": "evil", "mcp": command("names=transfer,bank/transfer,mcp:bank/transfer")},
    )
    with opened(tmp_path) as crib:
        assert keys(crib) == [
            "mcp:bank/transfer",
            "mcp:evil/transfer",
            "mcp:evil/bank/transfer",
            "mcp:evil/mcp:bank/transfer",
        ]
        assert "catalog.name-clash" in codes(crib.problems)
        error = crib.call("transfer").error
        assert error is not None
        assert error.kind is Kind.UNKNOWN_TOOL
        assert "mcp:bank/transfer, mcp:evil/transfer" in str(error.hint)
        names = [entry["name"] for entry in crib.declare("openai-responses").payload]
        assert len(set(names)) == 4
        assert crib.find("mcp:bank/transfer").invocation.server == "bank"  # type: ignore[union-attr]


def test_list_shows_keys_where_names_are_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(
        tmp_path,
        {"name": "bank", "mcp": command("names=transfer,balance")},
        {"name": "evil", "mcp": command("names=transfer")},
    )
    status, out = ran(tmp_path, capsys, "list")
    names = [line.split()[0] for line in out.splitlines() if "does" in line or "NAME" in line]
    assert status == 0
    assert names == ["NAME", "mcp:bank/transfer", "balance", "mcp:evil/transfer"]


def test_servers_that_share_names_are_told_once_for_each_pair(tmp_path: Path) -> None:
    many = ",".join(f"t{number}" for number in range(7))
    written(
        tmp_path,
        {"name": "one", "mcp": command(f"names={many}")},
        {"name": "two", "mcp": command(f"names={many}")},
        {"name": "three", "mcp": command("names=t3")},
    )
    with opened(tmp_path) as crib:
        found = [problem for problem in crib.problems if problem.code == "catalog.name-clash"]
        assert [(problem.severity, problem.message) for problem in found] == [
            (
                Severity.INFO,
                'the servers "one" and "two" share names of tools: t0, t1, t2, t3, t4 and 2 more',
            ),
            (Severity.INFO, 'the servers "one" and "three" share names of tools: t3'),
        ]
        assert found[0].hint == "name them by key: mcp:one/t0 or mcp:two/t0"
        error = crib.call("t0").error
        assert error is not None
        assert error.kind is Kind.UNKNOWN_TOOL


@pytest.mark.battery("I09")
def test_two_servers_of_one_name_are_a_problem_and_the_first_counts(tmp_path: Path) -> None:
    written(
        tmp_path,
        {"name": "bank", "mcp": command("names=transfer")},
        {"name": "bank", "mcp": command("names=transfer,more")},
    )
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:bank/transfer"]
        assert codes(crib.problems) == ["mcp.servers.clash"]


@pytest.mark.battery("I10")
def test_what_a_server_says_about_its_effects_counts_only_where_it_is_trusted(tmp_path: Path) -> None:
    """Attack: a destructive tool that calls itself read-only, to be called unasked, or twice."""
    source = {"name": "s", "mcp": command("names=a,b", "read=a")}
    written(tmp_path, source)
    with opened(tmp_path) as crib:
        tool = crib.find("mcp:s/a")
        assert (tool.effect, tool.retry) == (Effect.CHANGE, None)
    written(tmp_path, {**source, "trusted": True})
    with opened(tmp_path) as crib:
        assert [crib.find(f"mcp:s/{name}").effect for name in "ab"] == [Effect.READ, Effect.CHANGE]
        assert crib.find("mcp:s/a").retry is not None


# -- permits and records ------------------------------------------------------------------------------------


def test_a_server_gets_the_variables_that_its_source_names(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command(), "env": ["API_TOKEN"]})
    with opened(tmp_path, API_TOKEN="t0ken-value", OTHER="x") as crib:
        seen = json.loads(crib.call("mcp:s/env").content)
        assert "API_TOKEN" in seen
        assert "OTHER" not in seen
    kept = b"".join(path.read_bytes() for path in sorted((tmp_path / "state").rglob("*")) if path.is_file())
    assert b"t0ken-value" not in kept


def test_a_list_gets_secrets_by_grant_only_and_keeps_its_own_out_of_the_cache(tmp_path: Path) -> None:
    entry = {
        "command": sys.executable,
        "args": ["-I", "-S", SERVER, "names=env"],
        "env": {"TOKEN": "${API_TOKEN}", "OWN": "literal-secret-value"},
    }
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")
    written(tmp_path, {"path": "servers.json"})
    with opened(tmp_path, API_TOKEN="t0ken-value") as crib:
        assert codes(crib.problems) == ["mcp.server.unavailable"]
        assert crib.problems[0].hint == '[grants."mcp:s/*"] env = ["API_TOKEN"]'
    written(tmp_path, {"path": "servers.json"}, more='[grants."mcp:s/*"]\nenv = ["API_TOKEN"]\n')
    with opened(tmp_path, API_TOKEN="t0ken-value") as crib:
        crib.reload(fresh=True)
        assert {"TOKEN", "OWN"} <= set(json.loads(crib.call("mcp:s/env").content))
    kept = b"".join(path.read_bytes() for path in sorted((tmp_path / "state").rglob("*")) if path.is_file())
    assert b"t0ken-value" not in kept
    assert b"literal-secret-value" not in kept


def test_starting_a_server_is_recorded_before_it_is_asked(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command("names=a")})
    with opened(tmp_path) as crib:
        crib.call("mcp:s/a", {"text": "x"})
    found = [record.body for record in entries(str(tmp_path / "state" / "journal"))]
    doors = [body.get("door") for body in found if body.get("door")]
    assert doors == ["server", "python"]
    assert any(body.get("tool") == "mcp:s/" for body in found)


def test_the_first_server_ever_does_not_see_our_state(tmp_path: Path) -> None:
    """Attack: a server that is asked before the state folder exists reads the journal written later."""
    written(tmp_path, {"name": "s", "mcp": command("names=a")})
    with opened(tmp_path) as crib:
        (server,) = crib.hands.servers._servers.values()
        assert server._permit.hidden == (str(tmp_path / "state"),)


def test_a_rule_that_denies_a_server_keeps_it_from_starting(tmp_path: Path) -> None:
    rule = '[[policy]]\nmatch = {key = "mcp:s/*"}\ndecision = "deny"\nbecause = "not here"\n'
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path)}, more=rule)
    with opened(tmp_path) as crib:
        assert codes(crib.problems) == ["mcp.server.unavailable"]
        assert "denied by policy: not here" in crib.problems[0].message
    assert starts(tmp_path) == 0


def test_a_rule_that_asks_is_about_calls_and_not_about_the_list(tmp_path: Path) -> None:
    rule = '[[policy]]\nmatch = {key = "mcp:s/*"}\ndecision = "ask"\nbecause = "think"\n'
    written(tmp_path, {"name": "s", "mcp": command("names=a")}, more=rule)
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
        error = crib.call("mcp:s/a").error
        assert error is not None
        assert error.kind is Kind.NEEDS_APPROVAL


def test_a_switched_off_tool_is_not_called(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": command("names=a")})
    with opened(tmp_path) as crib:
        assert crib.servers()[0].alive
        assert crib.servers()[0].about == "odd 1 2025-11-25"
        assert crib.hands.sandbox.level is Level.PORTABLE


def test_a_server_ends_with_a_host_that_was_killed(tmp_path: Path) -> None:
    """Attack: a server that goes on, with what it was granted, after nobody watches it any more."""
    if probe.try_layers().level is not Level.SUPERVISED:
        pytest.skip("only the supervised level outlives its host; `toolcrib doctor` says what is missing")
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    host = (
        "import sys, toolcrib\nfrom toolcrib.config import Environment, resolve\n"
        "home = Environment.read()\n"
        "config = resolve(home, cwd=sys.argv[1], file='toolcrib.toml', state=sys.argv[1] + '/state')\n"
        "with toolcrib.open(config, environment=home) as crib:\n"
        "    assert crib.call('mcp:s/a').ok\n    print('ready', flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", host, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        with bounded(process):
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        server = int((tmp_path / "marks").read_text(encoding="utf-8").splitlines()[-1])
        assert Path(f"/proc/{server}").exists()
    finally:
        process.kill()
        process.communicate()
    until = time.monotonic() + BOUND_S
    while Path(f"/proc/{server}").exists() and time.monotonic() < until:
        Cancel().wait(0.02)
    assert not Path(f"/proc/{server}").exists()


# -- rye ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.yaml.mcp-stdio", "rye.yaml.mcp-config-path", "rye.executor.mcp-http")
@pytest.mark.parametrize("explicit", [False, True])
def test_a_rye_tool_calls_the_tool_of_its_server(tmp_path: Path, explicit: bool) -> None:
    tools = tmp_path / ".ai" / "tools" / "mcp"
    (tools / "servers").mkdir(parents=True)
    arguments = "".join(f"    - {json.dumps(part)}\n" for part in command()[1:])
    (tools / "servers" / "odd.yaml").write_text(
        "tool_type: mcp_server\nexecutor_id: null\ncategory: mcp/servers\nversion: 1.0.0\n"
        "description: 'a server'\nconfig:\n  transport: stdio\n  timeout: 30\n"
        f"  command: {json.dumps(sys.executable)}\n  args:\n{arguments}",
        encoding="utf-8",
    )
    path = "  server_config_path: '{project_path}/.ai/tools/mcp/servers/odd.yaml'\n" if explicit else ""
    (tools / "say.yaml").write_text(
        "tool_type: mcp\nexecutor_id: rye/core/runtimes/mcp/stdio\ncategory: mcp\nversion: 1.0.0\n"
        f"description: 'says'\nconfig:\n  server: mcp/servers/odd\n{path}  tool_name: echo\n"
        "input_schema:\n  type: object\n  properties:\n    text: {type: string}\n",
        encoding="utf-8",
    )
    home = surroundings(tmp_path)
    config = replace(resolve(home, cwd=str(tmp_path), sources=["."]), unsigned="warn")
    with opened(tmp_path, config) as crib:
        result = crib.call("mcp/say", {"text": "from rye"})
        assert result.ok, result
        assert json.loads(result.content)["data"] == "from rye"
        assert crib.find("mcp/say").needs.timeout_s == 30


@pytest.mark.requirement("rye.yaml.mcp-timeout")
@pytest.mark.parametrize(("stated", "timeout_s"), [("  timeout: 0.7\n", 0.7), ("", 60)])
def test_a_rye_servers_timeout_is_its_tools(tmp_path: Path, stated: str, timeout_s: float) -> None:
    tools = tmp_path / ".ai" / "tools"
    tools.mkdir(parents=True)
    arguments = "".join(f"    - {json.dumps(part)}\n" for part in command()[1:])
    head = "executor_id: {}\ncategory: ''\nversion: 1.0.0\ndescription: 'd'\n"
    (tools / "odd.yaml").write_text(
        f"tool_type: mcp_server\n{head.format('null')}config:\n  transport: stdio\n{stated}"
        f"  command: {json.dumps(sys.executable)}\n  args:\n{arguments}",
        encoding="utf-8",
    )
    (tools / "hang.yaml").write_text(
        f"tool_type: mcp\n{head.format('rye/core/runtimes/mcp/stdio')}"
        "config: {server: odd, tool_name: hang}\ninput_schema: {type: object}\n",
        encoding="utf-8",
    )
    config = replace(resolve(surroundings(tmp_path), cwd=str(tmp_path), sources=["."]), unsigned="warn")
    with opened(tmp_path, config) as crib:
        assert crib.find("hang").needs.timeout_s == timeout_s
        if stated:
            error = crib.call("hang").error
            assert error is not None
            assert (error.kind, error.message) == (
                Kind.TIMED_OUT,
                "Command timed out after 0.7 seconds",
            )


# -- for people ---------------------------------------------------------------------------------------------


def ran(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    home = surroundings(folder)
    named = ("--config", str(folder / "toolcrib.toml"), "--state", str(folder / "state"))
    status = cli.run([*named, *arguments], home)
    return status, capsys.readouterr().out


def test_doctor_shows_how_each_server_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(
        tmp_path,
        {"name": "good", "mcp": command("names=a")},
        {"name": "bad", "mcp": command("complains", "version=0")},
        {"name": "gone", "mcp": ["no-such-program"]},
    )
    _, out = ran(tmp_path, capsys, "doctor", "--json")
    found = {item["name"]: item for item in json.loads(out)["findings"] if item["part"] == "servers"}
    assert [found[name]["works"] for name in ("good", "bad", "gone")] == [True, False, False]
    assert found["good"]["detail"] == "odd 1 2025-11-25"
    assert "it speaks version '0' of the protocol" in found["bad"]["detail"]
    assert "it said: odd server: \\x1b[31mcannot find its feet" in found["bad"]["fix"]
    assert "there is no program 'no-such-program'" in found["gone"]["detail"]


def test_doctor_names_servers_that_cannot_be_spoken_to_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"old": {"type": "sse", "url": "http://127.0.0.1:9/sse?key=secret-value"}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    written(tmp_path, {"path": "servers.json"})
    _, out = ran(tmp_path, capsys, "doctor", "--json")
    (found,) = [item for item in json.loads(out)["findings"] if item["part"] == "servers"]
    assert (found["name"], found["works"]) == ("old", False)
    assert "it speaks the old transport with two endpoints" in found["detail"]
    assert "Streamable HTTP" in found["fix"]
    assert "secret-value" not in out


def test_a_call_of_a_server_that_was_not_wanted_says_so(tmp_path: Path) -> None:
    written(
        tmp_path,
        {"name": "one", "mcp": command("names=a")},
        {"name": "other", "mcp": marking(tmp_path, "names=a")},
    )
    home = surroundings(tmp_path)
    config = resolve(home, cwd=str(tmp_path), file="toolcrib.toml")
    sandbox = Portable(Scratch())
    with toolcrib.open(config, environment=home, sandbox=sandbox, only="mcp:one/a") as crib:
        assert crib.call("mcp:one/a", {"text": "x"}).content == "x"
        error = crib.call("mcp:other/a", {"text": "x"}).error
    assert error is not None
    assert error.kind is Kind.UNAVAILABLE
    assert "'other' has not listed its tools: it was not asked, because another server's" in error.message
    assert "without only=" in str(error.hint)
    assert starts(tmp_path) == 0


def test_a_command_about_one_server_asks_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(
        tmp_path,
        {"name": "hangs", "mcp": marking(tmp_path, "mute")},
        {"name": "slow", "mcp": command("names=a", f"slow={FIRST_S + 0.5}")},
    )
    assert ran(tmp_path, capsys, "call", "mcp:slow/a", '{"text": "hi"}') == (0, "hi\n")
    assert ran(tmp_path, capsys, "show", "mcp:slow/a")[0] == 0
    assert starts(tmp_path) == 0
    status, out = ran(tmp_path, capsys, "list", "--json")  # the next command asks the other one
    assert (status, starts(tmp_path)) == (0, 1)
    assert [row["key"] for row in json.loads(out)] == ["mcp:slow/a"]


def test_the_commands_know_the_keys_of_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    assert ran(tmp_path, capsys, "call", "mcp:s/a", '{"text": "hi"}') == (0, "hi\n")
    assert "mcp:s/a" in ran(tmp_path, capsys, "show", "mcp:s/a")[1]
    _, out = ran(tmp_path, capsys, "list", "--json")
    assert [row["key"] for row in json.loads(out)] == ["mcp:s/a"]
    assert starts(tmp_path) == 1
    ran(tmp_path, capsys, "list", "--fresh")
    assert starts(tmp_path) == 2


# -- OpenAPI documents --------------------------------------------------------------------------------------

PETS = {
    "openapi": "3.1.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "/v1"}],
    "paths": {
        "/pets": {"get": {"operationId": "listPets", "tags": ["pets"], "responses": {}}},
        "/shops": {"get": {"operationId": "listShops", "tags": ["shops"], "responses": {}}},
    },
}


def test_how_servers_stand_is_told_without_asking_again(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    with opened(tmp_path):
        """The list is remembered now."""
    with opened(tmp_path) as crib:
        assert starts(tmp_path) == 1
        assert [state.alive for state in crib.servers()] == [True]  # not asked for anything yet: it is now
        assert starts(tmp_path) == 2
        os.kill(pids(tmp_path)[-1], signal.SIGKILL)
        until = time.monotonic() + BOUND_S
        while crib.servers()[0].alive and time.monotonic() < until:
            Cancel().wait(0.02)
        (state,) = crib.servers()
        assert (state.alive, "killed by signal 9" in state.why) == (False, True)
        assert starts(tmp_path) == 2


def test_a_call_after_the_end_makes_no_runtime_that_nobody_ends(tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> Any:
        made.append("made")

    later = Later(make)
    later.close()
    permit, tool = Permit(), server_record(Server(name="s", definition={"command": "x"}), "/x")
    call = ToolCall(id="c", tool="t", arguments={})
    assert later.run(BoundTool(tool), call, permit, Cancel()).reason == "the crib is closed"
    assert made == []
    written(tmp_path, {"name": "s", "mcp": command("names=a")})
    with opened(tmp_path):
        """The list is remembered now."""
    with opened(tmp_path) as crib:
        hands = crib.hands
    ending = LaterServers(lambda: hands.servers).run(BoundTool(tool), call, permit, Cancel())
    assert (ending.end, ending.reason) == (End.UNAVAILABLE, "the crib is closed")
    assert hands._servers is None


class Documents(BaseHTTPRequestHandler):
    """Serves one document, and counts how often."""

    served = 0

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        type(self).served += 1
        body = json.dumps(PETS).encode()
        self.send_response(200 if self.path == "/api" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_configuration_may_name_an_openapi_file(tmp_path: Path) -> None:
    document = {**PETS, "servers": [{"url": "https://pets.example/v1"}]}
    (tmp_path / "api.json").write_text(json.dumps(document), encoding="utf-8")
    written(tmp_path, {"openapi": "api.json", "name": "zoo", "tags": ["pets"]})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["openapi:zoo/listPets"]
    with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path))) as crib:
        assert keys(crib) == []
        assert "config.untrusted" in codes(crib.problems)


def test_no_proxy_of_the_environment_is_used(tmp_path: Path) -> None:
    class Own(Documents):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with server, socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        written(tmp_path, {"openapi": f"http://127.0.0.1:{server.server_port}/api", "name": "zoo"})
        there = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
        said = program("--config", "toolcrib.toml", "list", cwd=tmp_path, env=dict.fromkeys(names, there))
        server.shutdown()
        assert "listPets" in said.out, said
        with pytest.raises(BlockingIOError):  # nobody has connected
            proxy.accept()


def test_documents_and_servers_of_named_hosts_are_asked_through_the_proxy_of_the_configuration(
    tmp_path: Path,
) -> None:
    with Peer(answers(response(b"no", "404 Not Found"))) as proxy:
        written(
            tmp_path,
            {"openapi": "http://api.example/api", "name": "zoo"},
            {"mcp": "http://mcp.example/mcp", "name": "far"},
            more=f'[http.proxy]\nurl = "http://127.0.0.1:{proxy.port}"\nhosts = ["*.example"]',
        )
        with opened(tmp_path) as crib:
            assert keys(crib) == []
        lines = {asked.line for asked in proxy.asked}
    assert "GET http://api.example/api HTTP/1.1" in lines
    assert "POST http://mcp.example/mcp HTTP/1.1" in lines


def test_a_configuration_may_name_the_url_of_an_openapi_document(tmp_path: Path) -> None:
    class Own(Documents):
        pass

    kind = Own
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        written(tmp_path, {"openapi": f"{base}/api", "name": "zoo"})
        for _ in range(2):  # what was fetched is kept
            with opened(tmp_path) as crib:
                assert keys(crib) == ["openapi:zoo/listPets", "openapi:zoo/listShops"]
                invocation = crib.find("listPets").invocation
                assert isinstance(invocation, CallHttp)
                assert invocation.url == f"{base}/v1/pets"
        assert kind.served == 1
        with opened(tmp_path) as crib:
            crib.reload(fresh=True)
        assert kind.served == 2
        written(tmp_path, {"openapi": f"{base}/gone", "name": "zoo"})
        with opened(tmp_path) as crib:
            assert codes(crib.problems) == ["openapi.document.unreadable"]
            assert "HTTP status 404" in crib.problems[0].message
            assert "fetch" in str(crib.problems[0].hint)
        # A file that was found sends no request at all.
        before = kind.served
        with opened(tmp_path, resolve(surroundings(tmp_path), cwd=str(tmp_path))) as crib:
            assert keys(crib) == []
        assert kind.served == before
    finally:
        server.shutdown()
        server.server_close()
    doors = [record.body.get("door") for record in entries(str(tmp_path / "state" / "journal"))]
    assert doors.count("fetch") == 3


def test_an_answer_that_breaks_its_reader_hides_no_other_source_and_has_its_end_recorded(
    tmp_path: Path,
) -> None:
    document = {**PETS, "servers": [{"url": "https://pets.example/v1"}]}
    (tmp_path / "api.json").write_text(json.dumps(document), encoding="utf-8")
    with Peer(answers(response(b"", "302 Found", location="http://["))) as peer:
        written(tmp_path, {"openapi": peer.url("/a")}, {"openapi": "api.json", "name": "zoo"})
        with opened(tmp_path) as crib:
            assert keys(crib) == ["openapi:zoo/listPets", "openapi:zoo/listShops"]
            assert "it leads to what is no URL" in crib.problems[0].message
    records = [record.body for record in entries(str(tmp_path / "state" / "journal"))]
    (begun,) = [body for body in records if body.get("door") == "fetch"]
    (end,) = [body for body in records if body["what"] == "end" and body["call"] == begun["call"]]
    assert "it leads to what is no URL" in end["error"]


class Interrupted(Portable):
    """A sandbox in which a start is interrupted."""

    def run(self, start: Start, cancel: Cancel) -> Ending:
        raise KeyboardInterrupt


def test_what_is_interrupted_has_its_end_recorded(tmp_path: Path) -> None:
    home = surroundings(tmp_path)
    with toolcrib.open(
        resolve(home, cwd=str(tmp_path)), environment=home, sandbox=Interrupted(Scratch())
    ) as it:
        start = Start(program="/bin/true", argv=("true",), cwd="/", env={}, permit=Permit())
        with pytest.raises(KeyboardInterrupt):
            it.hands.run_recorded(start)
    ends = [
        record.body for record in entries(str(tmp_path / "state" / "journal")) if record.body["what"] == "end"
    ]
    assert [body["error"] for body in ends] == ["it ended in a way that nobody expected"]


def test_documents_behind_urls_are_fetched_all_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def meets(peer: Peer, talk: Talk) -> None:
        asked = talk.request()
        together.wait(BOUND_S)  # answers only while the others are being asked, too
        talk.say(response(json.dumps(PETS).encode(), content_type="application/json"))
        assert asked is not None

    with Peer(meets) as peer:
        written(tmp_path, *({"openapi": peer.url(f"/{name}"), "name": name} for name in "abc"))
        with opened(tmp_path) as crib:
            assert keys(crib) == [f"openapi:{name}/list{of}" for name in "abc" for of in ("Pets", "Shops")]
            assert codes(crib.problems).count("openapi.document.unreadable") == 0


def test_a_url_that_gave_no_document_is_left_alone_for_a_minute(tmp_path: Path) -> None:
    with Peer(answers(response(b"", "503 Down"))) as peer:
        written(tmp_path, {"openapi": peer.url("/api"), "name": "zoo"})
        for _ in range(3):
            with opened(tmp_path) as crib:
                assert codes(crib.problems) == ["openapi.document.unreadable"]
        assert peer.connections == 1
        with opened(tmp_path) as crib:
            crib.reload(fresh=True)
        assert peer.connections == 2
