"""What an author's configuration means for a call: real folders for three tiers, real files, no run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.moments import before_opening, turn
from toolcrib.catalog import files, loading, sources
from toolcrib.config import Config
from toolcrib.model import (
    CallPython,
    End,
    Ending,
    JsonOnStdin,
    Level,
    Limits,
    NotCallable,
    Origin,
    Permit,
    PythonStyle,
    RunProcess,
    Tool,
    ToolCall,
)
from toolcrib.runtimes import Host, _cascade, _dependencies, _prepared, environment, project_of
from toolcrib.runtimes._prepared import Prepared
from toolcrib.sandbox import Cancel, Start

PYTHON = '''"""Says hello."""
__version__ = "{version}"
__tool_type__ = "python"
__executor_id__ = "{executor}"
__category__ = "{category}"
__tool_description__ = "Say hello"
{more}

def execute(params, project_path):
    return {{"success": True}}

if __name__ == "__main__":
    execute({{}}, ".")
'''
FUNCTION = "rye/core/runtimes/python/function"
EXECUTE = "rye/core/primitives/execute"


class Nowhere:
    """A level that runs nothing: preparing must not start anything."""

    level = Level.PORTABLE

    def run(self, start: Start, cancel: Cancel) -> Ending:
        raise AssertionError("preparing a call starts nothing")

    def open(self, start: Start) -> Ending:
        raise AssertionError("preparing a call starts nothing")

    def close(self) -> None:
        pass


@dataclass
class World:
    """A project, a user and two bundles, each with its ``.ai``."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project, self.user = self.root / "project", self.root / "home"
        self.bundles = [self.root / "bundles" / name for name in ("core", "standard")]
        for folder in (self.project, self.user, *self.bundles):
            (folder / ".ai" / "tools").mkdir(parents=True)
        self.variables = {"PATH": "/usr/bin:/bin", "HOME": str(self.user), **self.variables}

    def write(self, where: Path, name: str, content: Any) -> Path:
        path = where / ".ai" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def python(
        self, name: str = "a/t", where: Path | None = None, executor: str = FUNCTION, **more: Any
    ) -> Path:
        category = name.rpartition("/")[0]
        version = more.pop("version", "1.0.0")
        lines = "\n".join(f"{key} = {value!r}" for key, value in more.items())
        text = PYTHON.format(category=category, executor=executor, version=version, more=lines)
        return self.write(where or self.project, f"tools/{name}.py", text)

    def data(self, name: str = "a/t", where: Path | None = None, **more: Any) -> Path:
        declaration = {
            "tool_type": "yaml",
            "version": "1.0.0",
            "description": "Do something",
            "executor_id": EXECUTE,
            "category": name.rpartition("/")[0],
            **more,
        }
        return self.write(where or self.project, f"tools/{name}.yaml", declaration)

    def host(self, **more: Any) -> Host:
        return Host(
            sandbox=Nowhere(),
            variables=self.variables,
            cwd=str(self.project),
            python="/usr/bin/python3",
            spaces=sources.Spaces(user=str(self.user), systems=tuple(map(str, self.bundles))),
            **more,
        )

    def tool(self, name: str = "a/t") -> Tool:
        spaces = [
            sources.Source(path=str(self.user / ".ai" / "tools"), format="rye", space=1),
            *(
                sources.Source(path=str(bundle / ".ai" / "tools"), format="rye", space=2)
                for bundle in self.bundles
            ),
        ]
        report = loading.load(
            [sources.Source(path=str(self.project), named=True)],
            Config().rules(context_checks=(), executors=()),
            loading.Machine(prober=lambda paths: [], which=lambda name: name),
            rye_spaces=lambda: spaces,
        )
        found = [tool for tool in report.catalog.tools if tool.name == name]
        assert found, [problem.message for problem in report.problems]
        return found[0]

    def prepare(
        self,
        arguments: dict[str, Any] | None = None,
        *,
        name: str = "a/t",
        permit: Permit | None = None,
        **host: Any,
    ) -> Prepared | Ending:
        made = self.host(**host)
        tool = self.tool(name)
        call = ToolCall(id="1", tool=tool.key, arguments=arguments or {})
        permit = permit or Permit(env=tool.needs.env)
        return _prepared.prepare(tool, call, made, permit, project=project_of(tool, made))

    def prepared(self, arguments: dict[str, Any] | None = None, **more: Any) -> Prepared:
        found = self.prepare(arguments, **more)
        assert isinstance(found, Prepared), found.reason
        return found

    def refused(self, arguments: dict[str, Any] | None = None, **more: Any) -> Ending:
        found = self.prepare(arguments, **more)
        assert isinstance(found, Ending)
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


# -- nothing configured -------------------------------------------------------------------------------------


def test_a_tool_of_another_format_is_left_alone() -> None:
    tool = Tool(
        key="manifest:t",
        name="t",
        scope="",
        origin=Origin(format="manifest", path="/nowhere/tools.json"),
        invocation=RunProcess(program="x", encoding=JsonOnStdin(verbatim=True), env=(("A", "${B} {c}"),)),
    )
    host = Host(
        sandbox=Nowhere(),
        variables={"B": "secret"},
        cwd="/nowhere",
        python="/usr/bin/python3",
        load_dotenv=True,
    )
    call = ToolCall(id="1", tool="manifest:t", arguments={"a": "${B}"})
    found = _prepared.prepare(tool, call, host, Permit(), project="/nowhere")
    assert found == Prepared(arguments={"a": "${B}"}, env={"A": "${B} {c}"})


@pytest.mark.requirement("rye.executor.shipped")
def test_a_project_without_any_bundle_needs_no_settings(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.bundles = []
    world.python("rye/file-system/write")
    tool = world.tool("rye/file-system/write")
    assert isinstance(tool.invocation, CallPython)
    assert tool.invocation.settings == b"{}"
    assert tool.chain == ("rye/file-system/write", FUNCTION, EXECUTE)
    prepared = world.prepared({"a": 1}, name="rye/file-system/write")
    assert prepared == Prepared(arguments={"a": 1}, cwd=str(world.project))


def test_a_call_without_settings_takes_a_few_microseconds(world: World) -> None:
    world.python()
    tool, host = world.tool(), world.host()
    call = ToolCall(id="1", tool=tool.key, arguments={"a": 1})
    started = time.thread_time()
    for _ in range(1000):
        _prepared.prepare(tool, call, host, Permit(), project=str(world.project))
    assert time.thread_time() - started < 0.2  # 200 µs each, some fifty times what it takes


@pytest.mark.requirement("rye.type.not-callable")
def test_what_is_not_executable_says_so(world: World) -> None:
    world.data("a/lib", tool_type="library", executor_id=None)
    assert world.tool("a/lib").invocation == NotCallable(reason="not executable")
    ending = world.refused(name="a/lib")
    assert (ending.end, ending.reason) == (End.UNAVAILABLE, "not executable")


@pytest.mark.requirement("rye.executor.primitive")
def test_another_primitive_is_refused_by_name(world: World) -> None:
    world.data("rye/core/primitives/foo", tool_type="primitive", executor_id=None)
    world.python(executor="rye/core/primitives/foo")
    ending = world.refused()
    assert (ending.end, ending.reason) == (End.UNAVAILABLE, "Unknown primitive: rye/core/primitives/foo")


# -- configuration files ------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.resolve.inject", "rye.resolve.deep-merge")
def test_the_tiers_are_merged_and_handed_over(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "web/websearch.yaml", "mode": "deep_merge"})
    world.write(
        world.bundles[0], "config/web/websearch.yaml", "a: {x: 1, y: 2}\nextends: base\nlist: [1, 2]\n"
    )
    world.write(world.user, "config/web/websearch.yaml", "# mine\nuser: true\nlist: [3]\n")
    world.write(world.project, "config/web/websearch.yaml", "a: {x: 9}\n")
    assert world.prepared({"q": 1}).arguments == {
        "q": 1,
        "resolved_config": {"a": {"x": 9, "y": 2}, "list": [3], "user": True},
    }


@pytest.mark.requirement("rye.resolve.inject", "rye.sh.run")
@pytest.mark.parametrize("language", ["python", "yaml", "json", "bash"])
def test_every_language_gets_its_configuration(world: World, language: str) -> None:
    request = {"path": "web/websearch.yaml"}
    world.write(world.project, "config/web/websearch.yaml", "limit: 3\n")
    if language == "python":
        world.python(CONFIG_RESOLVE=request)
    elif language == "bash":
        head = ["#!/bin/bash", '# __version__ = "1.0.0"', '# __tool_type__ = "script"']
        head += ['# __executor_id__ = "rye/core/runtimes/bash/bash"', '# __category__ = "a"']
        head += ['# __tool_description__ = "Say hello"', f"# CONFIG_RESOLVE = {json.dumps(request)}", "cat"]
        world.write(world.project, "tools/a/t.sh", "\n".join(head))
    else:
        path = world.data(config={"command": "cat"}, config_resolve=request)
        path.rename(path.with_suffix(f".{language}"))
    prepared = world.prepared({"x": "$(id)"})
    assert prepared.arguments == {"x": "$(id)", "resolved_config": {"limit": 3}}
    assert prepared.argv is None


@pytest.mark.requirement("rye.resolve.first-match")
def test_the_first_file_counts_whole(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "a/b.json", "mode": "first_match"})
    world.write(world.bundles[1], "config/a/b.json", {"system": 1})
    world.write(world.user, "config/a/b.json", "# rye:signed:2026-01-01T00:00:00Z:x:y:z\n" + '{"user": [1]}')
    assert world.prepared().arguments == {"resolved_config": {"user": [1]}}


@pytest.mark.requirement("rye.resolve.first-match")
@pytest.mark.parametrize(
    ("name", "text"),
    [("b.yaml", ""), ("b.yaml", "# nothing yet\n"), ("b.yaml", "{}\n"), ("b.json", "{}"), ("b.json", "null")],
)
def test_an_empty_first_file_counts_too(world: World, name: str, text: str) -> None:
    """Attack: settings that the project took away on purpose come back from the user or the system."""
    world.python(CONFIG_RESOLVE={"path": f"a/{name}", "mode": "first_match"})
    world.write(world.bundles[1], f"config/a/{name}", {"system": 1})
    world.write(world.user, f"config/a/{name}", {"user": 1})
    world.write(world.project, f"config/a/{name}", text)
    assert world.prepared().arguments == {"resolved_config": {}}


@pytest.mark.requirement("rye.resolve.first-match")
def test_the_project_s_file_counts_before_the_user_s_and_that_before_the_system_s(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "a/b.json", "mode": "first_match"})
    for space, name in ((world.bundles[0], "system"), (world.user, "user"), (world.project, "project")):
        world.write(space, "config/a/b.json", {name: 1})
        assert world.prepared().arguments == {"resolved_config": {name: 1}}


def test_of_two_bundles_the_first_counts_in_both_modes(world: World) -> None:
    world.write(world.bundles[0], "config/a.yaml", "who: core")
    world.write(world.bundles[1], "config/a.yaml", "who: standard\nmore: 1")
    for mode, expected in (("deep_merge", {"who": "core", "more": 1}), ("first_match", {"who": "core"})):
        world.python(CONFIG_RESOLVE={"path": "a.yaml", "mode": mode})
        assert world.prepared().arguments["resolved_config"] == expected


@pytest.mark.requirement("rye.resolve.multiple")
def test_a_list_of_requests_gives_a_mapping_by_path(world: World) -> None:
    wanted = [{"path": "agent/agent.yaml", "mode": "deep_merge"}, {"path": "agent/coordination.yaml"}]
    world.write(world.user, "config/agent/agent.yaml", "a: 1")
    world.python(CONFIG_RESOLVE=wanted)
    assert world.prepared().arguments["resolved_config"] == {
        "agent/agent.yaml": {"a": 1},
        "agent/coordination.yaml": {},
    }
    world.python(CONFIG_RESOLVE=wanted[:1])
    assert world.prepared().arguments["resolved_config"] == {"agent/agent.yaml": {"a": 1}}


@pytest.mark.requirement("rye.resolve.missing")
@pytest.mark.parametrize("mode", ["deep_merge", "first_match"])
def test_no_file_gives_an_empty_mapping(world: World, mode: str) -> None:
    world.python(CONFIG_RESOLVE={"path": "web/none.yaml", "mode": mode})
    assert world.prepared().arguments == {"resolved_config": {}}
    world.write(world.project, "config/web/none.yaml", "# nothing yet\n")
    assert world.prepared().arguments == {"resolved_config": {}}


@pytest.mark.requirement("rye.resolve.caller-key")
def test_a_callers_own_resolved_config_does_not_count(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "web/websearch.yaml"})
    assert world.prepared({"resolved_config": {"evil": 1}}).arguments == {"resolved_config": {}}
    assert "resolved_config" in world.tool().intake.reserved_names


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.yaml", "a: [1", "not YAML: line 1"),
        ("a.yaml", "a: 1\na: 2", 'duplicate key "a" in line 2'),
        ("a.yaml", "a: !!python/object:os.system 1", "not YAML: line 1"),
        ("a.yaml", "- 1", "must be a mapping to be merged"),
        ("a.json", '{"a": 1,}', "not JSON: line 1"),
        ("a.toml", "a = 1", "only .yaml, .yml and .json files are configuration"),
    ],
)
def test_a_broken_configuration_stops_the_call_by_name(
    world: World, name: str, content: str, complaint: str
) -> None:
    world.python(CONFIG_RESOLVE={"path": f"web/{name}"})
    world.write(world.user, f"config/web/{name}", content)
    ending = world.refused()
    assert ending.end is End.UNAVAILABLE
    assert ending.reason.startswith(f"configuration web/{name} of the user: {complaint}")


def test_a_configuration_that_is_too_long_or_no_file_stops_the_call(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "web/a.yaml"})
    path = world.write(world.project, "config/web/a.yaml", "#" * ((1 << 20) + 1))
    assert "1,048,577 bytes" in world.refused().reason
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in world.refused().reason


def test_a_link_out_of_the_configuration_folder_is_refused(world: World) -> None:
    """Attack: a link in a cloned project that leads to the user's files."""
    world.python(CONFIG_RESOLVE={"path": "web/a.yaml"})
    secret = world.root / "secret.yaml"
    secret.write_text("password: hunter2", encoding="utf-8")
    folder = world.project / ".ai" / "config" / "web"
    folder.mkdir(parents=True)
    (folder / "a.yaml").symlink_to(secret)
    assert world.refused().reason == "Symlink escape: configuration web/a.yaml of the project"
    (folder / "a.yaml").unlink()
    folder.rmdir()
    outside = world.root / "outside"
    outside.mkdir()
    (outside / "a.yaml").write_text("password: hunter2", encoding="utf-8")
    folder.symlink_to(outside)
    assert world.refused().reason == "Symlink escape: configuration web/a.yaml of the project"
    folder.unlink()
    folder.parent.rmdir()
    (world.root / "outside" / "web").mkdir()
    (outside / "a.yaml").rename(outside / "web" / "a.yaml")
    folder.parent.symlink_to(outside)
    assert world.refused().reason == "Symlink escape: configuration web/a.yaml of the project"


def test_attack_a_link_put_in_the_place_of_a_configuration_once_it_was_found_to_be_none(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "web/a.yaml"})
    path = world.write(world.project, "config/web/a.yaml", "a: 1")
    secret = world.root / "secret.yaml"
    secret.write_text("password: hunter2", encoding="utf-8")
    with before_opening(path, files.read, lambda: turn(path, secret)):
        assert "it leads out of its folder" in world.refused().reason


def test_a_link_inside_the_configuration_folder_is_followed(world: World) -> None:
    world.python(CONFIG_RESOLVE={"path": "web/a.yaml"})
    real = world.write(world.project, "config/web/b.yaml", "a: 1")
    (real.parent / "a.yaml").symlink_to("b.yaml")
    assert world.prepared().arguments["resolved_config"] == {"a": 1}


def test_keys_and_hidden_files_are_no_configuration(world: World) -> None:
    """Attack: a request for the keys that lie beside the configuration, or for our own state."""
    world.write(world.user, "config/keys/signing/a.yaml", "private: 1")
    world.python(CONFIG_RESOLVE={"path": "keys/signing/a.yaml"})
    assert world.refused().reason.endswith("keys are no configuration")
    world.write(world.user, "config/state/a.yaml", "private: 1")
    world.python(CONFIG_RESOLVE={"path": "state/a.yaml"})
    hidden = Permit(hidden=(str(world.user / ".ai" / "config" / "state"),))
    assert world.refused(permit=hidden).reason.endswith("keys are no configuration")


@given(path=st.text(st.sampled_from("./\\:ab\0 "), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_reads_outside_its_folder(tmp_path: Path, path: str) -> None:
    """Attack: dots, roots and foreign separators in a path, had the format let them through."""
    folder = tmp_path / "p" / ".ai" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("a", "b", "ab", "ba"):
        (tmp_path / "p" / ".ai" / f"{name}.yaml").write_text("out: 1", encoding="utf-8")
        (tmp_path / f"{name}.yaml").write_text("out: 1", encoding="utf-8")
    tier = _cascade.Tier(name="project", folder=str(folder), within=os.path.realpath(tmp_path / "p"))
    found: Any = {}
    with contextlib.suppress(_cascade.Broken):
        found = _cascade.resolve({"path": f"{path}.yaml"}, [tier])
    assert found == {}


# -- templates ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.run.no-caller-templates", "rye.run.author-templates")
def test_what_the_caller_sends_is_never_expanded(world: World) -> None:
    world.variables["SECRET_KEY"] = "hunter2"
    value = "${SECRET_KEY} {a} {project_path}"
    config = {
        "command": "deploy",
        "args": ["{project_path}", "{params_json}"],
        "fixed_params": {"where": "{a}"},
        "a": "x",
    }
    world.data(config=config)
    prepared = world.prepared({"value": value, "a": "{project_path}"})
    assert prepared.arguments == {"value": value, "a": "{project_path}", "where": "x"}
    assert prepared.argv is not None
    assert json.loads(prepared.argv[2]) == prepared.arguments
    assert prepared.argv[:2] == ("deploy", str(world.project))
    assert "hunter2" not in repr(prepared)


@pytest.mark.requirement("rye.run.author-templates")
def test_what_the_author_wrote_is_expanded(world: World) -> None:
    world.variables |= {"REGION": "eu", "SECRET_KEY": "hunter2", "EMPTY": ""}
    config = {
        "command": "deploy",
        "args": [
            "--region=${REGION}", "${ZONE:-north}", "${EMPTY:-none}", "${SECRET_KEY}", "{unknown}",
            "{server_config_path}", "{replicas}", "x{replicas}{flag}", "{tool_dir}", "{user_space}",
            "{system_space}",
        ],
        "env": ["REGION", "EMPTY", "ZONE"],
        "server_config_path": "{project_path}/.ai/tools/x.yaml",
        "replicas": 3,
        "flag": True,
    }  # fmt: skip
    world.data(config=config)
    assert world.prepared().argv == (
        "deploy", "--region=eu", "north", "none", "${SECRET_KEY}", "{unknown}",
        f"{world.project}/.ai/tools/x.yaml", "3", "x3true", f"{world.project}/.ai/tools/a", str(world.user),
        str(world.bundles[0]),
    )  # fmt: skip


@pytest.mark.requirement("rye.run.author-templates", "rye.run.fixed-params")
def test_a_value_that_is_exactly_a_name_keeps_its_type(world: World) -> None:
    fixed = {
        "count": "{count}",
        "list": "{list}",
        "text": "n={count}",
        "deep": {"inner": ["{flag}"]},
        "x": "{x}",
    }
    world.data(config={"command": "x", "fixed_params": fixed, "count": 3, "list": [1], "flag": False})
    assert world.prepared().arguments == {
        "count": 3, "list": [1], "text": "n=3", "deep": {"inner": [False]}, "x": "{x}",
    }  # fmt: skip


def test_templates_end_even_when_they_name_each_other(world: World) -> None:
    world.data(config={"command": "x", "args": ["{a}", "{b}{b}"], "a": "{b}-", "b": "{a}"})
    argv = world.prepared().argv
    assert argv is not None
    assert all(len(part) < 50 for part in argv)


def test_values_that_are_put_in_are_not_read_as_templates(world: World) -> None:
    """Attack: a folder or a variable whose value is itself a template for a secret."""
    world.variables |= {"NAMED": "${SECRET_KEY}{project_path}", "SECRET_KEY": "hunter2"}
    world.data(config={"command": "x", "args": ["${NAMED}", "{a}"], "env": ["NAMED"], "a": "${NAMED}"})
    argv = world.prepared().argv
    assert argv == ("x", "${SECRET_KEY}{project_path}", "${SECRET_KEY}{project_path}")


def test_a_name_with_shell_code_stays_a_word(tmp_path: Path) -> None:
    """Attack: a project folder whose name ends the word it is put into and goes on as code."""
    world = World(tmp_path / "it's $(id)")
    world.data(
        executor_id="rye/core/runtimes/bash/bash",
        config={
            "command": 'ls {project_path} "$HOME" ${HOME:-x} {params_json}',
            "env": {"A": "{project_path}"},
        },
    )
    prepared = world.prepared({"x": "$(id)"})
    quoted = f"'{tmp_path}/it'\"'\"'s $(id)/project'"
    assert prepared.argv == ("bash", "-c", f'ls {quoted} "$HOME" ${{HOME:-x}} {{params_json}}')
    assert prepared.env["A"] == str(world.project)


# -- the command --------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.yaml.config-command", "rye.yaml.config-env-forms")
def test_a_command_runs_with_its_arguments_in_the_project(world: World) -> None:
    world.data(config={"command": "python", "args": ["deploy.py"], "env": {"LOG_LEVEL": "INFO"}})
    tool = world.tool()
    assert tool.invocation == RunProcess(
        program="python",
        fixed=("deploy.py",),
        encoding=JsonOnStdin(verbatim=False),
        env=(("LOG_LEVEL", "INFO"),),
    )
    assert world.prepared() == Prepared(arguments={}, env={"LOG_LEVEL": "INFO"}, cwd=str(world.project))


@pytest.mark.requirement("rye.yaml.config-env-forms", "rye.run.env")
def test_a_list_of_names_takes_values_from_the_host(world: World) -> None:
    world.variables |= {"KUBECONFIG": "/etc/kube", "OPENAI_API_KEY": "hunter2"}
    world.data(config={"command": "x", "env": ["KUBECONFIG", "UNSET"]})
    tool, host = world.tool(), world.host()
    permit = Permit(env=tool.needs.env)
    assert tool.needs.env == ("KUBECONFIG", "UNSET")
    assert environment(host, tool, permit) == {
        "PATH": "/usr/bin:/bin", "HOME": str(world.user), "KUBECONFIG": "/etc/kube",
    }  # fmt: skip
    assert world.prepared().env == {}


@pytest.mark.requirement("rye.yaml.config-env-forms")
def test_a_request_is_filled_in_from_the_values_of_its_env(world: World) -> None:
    world.data(
        tool_type="http",
        executor_id="rye/core/primitives/http_client",
        config={
            "url": "https://example.com/${A}", "headers": {"X": "${A}-${B}"}, "env": {"A": "a", "B": "${A}b"},
        },
        env_config={"env": {"A": "less", "B": "less"}},
    )  # fmt: skip
    request = world.prepared().http
    assert request is not None
    assert (request.url, request.headers) == ("https://example.com/a", (("X", "a-ab"),))


def test_a_relative_command_lies_in_the_project(world: World) -> None:
    world.data(config={"command": "bin/deploy", "args": ["now"]})
    assert world.prepared().argv == (f"{world.project}/bin/deploy", "now")


def test_a_command_that_climbs_out_of_the_project_is_refused(world: World) -> None:
    """Attack: a command that climbs out of the project by dots."""
    world.data(config={"command": "bin/../../deploy"})
    ending = world.refused()
    assert (ending.end, ending.reason) == (
        End.DENIED, "config.command: bin/../../deploy leaves the project",
    )  # fmt: skip


def test_a_command_that_nothing_is_known_for_does_not_start(world: World) -> None:
    world.data(config={"command": "${NOBODY_SET_THIS}"})
    ending = world.refused()
    assert (ending.end, ending.reason) == (
        End.UNAVAILABLE, "config.command: nothing is known for ${NOBODY_SET_THIS}",
    )  # fmt: skip


def test_parameters_that_fit_in_no_argument_are_refused(world: World) -> None:
    world.data(config={"command": "x", "args": ["{params_json}"]})
    assert world.refused({"text": "a" * 140_000}).end is End.REFUSED


# -- fixed parameters, nesting, actions ---------------------------------------------------------------------


@pytest.mark.requirement("rye.run.fixed-params")
def test_fixed_parameters_win_and_are_nested(world: World) -> None:
    world.data(config={"command": "x", "fixed_params": {"mode": "safe"}})
    assert world.prepared({"mode": "x", "other": 1}).arguments == {"mode": "safe", "other": 1}
    world.data(config={"command": "x", "fixed_params": {"mode": "safe"}, "params_key": "inner"})
    world.write(world.project, "config/a.yaml", "a: 1")
    assert world.prepared({"mode": "x"}).arguments == {"inner": {"mode": "safe"}}
    world.data(config={"command": "x", "params_key": "inner"}, config_resolve={"path": "a.yaml"})
    assert world.prepared({"mode": "x"}).arguments == {"inner": {"mode": "x"}, "resolved_config": {"a": 1}}


@pytest.mark.requirement("rye.yaml.actions")
def test_an_action_gets_its_own_parameters_and_those_of_all(world: World) -> None:
    actions = {
        "deploy": {"parameters": [{"name": "service_name", "type": "string", "required": True}]},
        "rollback": {
            "parameters": [
                {"name": "deployment_id", "type": "string", "required": True},
                {"name": "reason", "type": "string", "default": "none"},
            ]
        },
    }
    shared = [
        {"name": "quiet", "type": "boolean", "default": False},
        {"name": "deployment_id", "type": "string"},
    ]
    world.data(config={"command": "x"}, actions=actions, parameters=shared)
    prepared = world.prepared(
        {"action": "deploy", "service_name": "web", "reason": "none", "quiet": False, "deployment_id": "7"}
    )
    assert prepared.arguments == {
        "action": "deploy", "service_name": "web", "quiet": False, "deployment_id": "7",
    }  # fmt: skip
    assert prepared.notes == ("reason is left out: it belongs to another action",)


# -- the environment ----------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.run.env")
def test_env_config_and_config_add_to_a_small_base(world: World) -> None:
    world.variables |= {"OPENAI_API_KEY": "hunter2", "TOKEN": "t"}
    world.data(
        config={
            "command": "x",
            "env": {"B": "${A}-b", "GONE": "${UNSET}", "KEPT": "${UNSET}-x", "T": "${TOKEN}"},
        },
        env_config={"env": {"A": "a", "P": "/opt/x:${PATH}", "N": 3}},
    )
    prepared = world.prepared()
    assert prepared.env == {
        "A": "a", "P": "/opt/x:/usr/bin:/bin", "N": "3", "B": "a-b", "KEPT": "${UNSET}-x", "T": "t",
    }  # fmt: skip
    assert "hunter2" not in str({**prepared.env})


def test_a_variable_that_is_not_granted_is_not_put_in(world: World) -> None:
    """Attack: a declaration that copies a secret of the host into a variable or an argument of its own."""
    world.variables["AWS_SECRET"] = "hunter2"
    world.data(
        config={
            "command": "x",
            "args": ["${AWS_SECRET}"],
            "env": {"COPY": "${AWS_SECRET}", "X": "-${AWS_SECRET}"},
        }
    )
    prepared = world.prepared(permit=Permit())
    assert prepared.env == {"X": "-${AWS_SECRET}"}
    assert prepared.argv == ("x", "${AWS_SECRET}")


@pytest.mark.requirement("rye.run.env")
def test_the_projects_dotenv_is_loaded_only_when_the_host_allows_it(world: World) -> None:
    world.data(config={"command": "x", "env": {"C": "${A}"}})
    lines = [
        "# secrets",
        "A=1",
        "export B='two words'",
        'D="x=y" ',
        "PATH=/evil",
        "LD_PRELOAD=/evil.so",
        "bad line",
    ]
    (world.project / ".env").write_text("\n".join(lines), encoding="utf-8")
    assert world.prepared().env == {}
    prepared = world.prepared(load_dotenv=True)
    assert prepared.env == {"A": "1", "B": "two words", "D": "x=y", "C": "1"}
    assert prepared.notes == (".env: LD_PRELOAD is left out: it makes programs load code",)


@pytest.mark.requirement("rye.run.env")
@pytest.mark.parametrize("name", ["a/command", "a/function"])
def test_that_a_project_is_trusted_does_not_load_its_dotenv(world: World, name: str) -> None:
    world.data("a/command", config={"command": "x"})
    world.python("a/function")
    (world.project / ".env").write_text("A=1\n", encoding="utf-8")
    trusted = frozenset({str(world.project)})
    assert "A" not in world.prepared(name=name, trusted_projects=trusted).env
    assert "A" not in world.prepared(name=name).env
    assert world.prepared(name=name, load_dotenv=True).env["A"] == "1"
    assert world.prepared(name=name, load_dotenv=True, trusted_projects=trusted).env["A"] == "1"


@pytest.mark.requirement("rye.run.env")
@pytest.mark.parametrize("name", ["a/command", "a/function"])
def test_a_process_sees_a_small_base_and_nothing_else_until_it_is_granted(world: World, name: str) -> None:
    base = {
        **world.variables, "USER": "ada", "LOGNAME": "ada", "LANG": "C.UTF-8", "LANGUAGE": "en", "TZ": "UTC",
        "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": "/run/user/1",
    }  # fmt: skip
    others = (
        "OPENAI_API_KEY", "TOKEN", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "NODE_OPTIONS", "BASH_ENV",
        "IFS", "EDITOR", "SSH_AUTH_SOCK", "VIRTUAL_ENV", "LANGUAGES", "PATHS", "HOMEPAGE", "TZDIR", "LC",
        "XDG",
    )  # fmt: skip
    world.variables = {**base, **dict.fromkeys(others, "hunter2")}
    world.data("a/command", config={"command": "x", "env": ["TOKEN"]})
    world.python("a/function")
    tool, host = world.tool(name), world.host()
    assert environment(host, tool, Permit()) == base
    assert environment(host, tool, Permit(env=("TOKEN",))) == {**base, "TOKEN": "hunter2"}
    assert "hunter2" not in str(world.prepared(name=name, permit=Permit()).env)


def test_a_dotenv_that_is_a_link_out_of_the_project_is_refused(world: World) -> None:
    world.data(config={"command": "x"})
    (world.root / "other.env").write_text("A=1", encoding="utf-8")
    (world.project / ".env").symlink_to(world.root / "other.env")
    assert world.refused(load_dotenv=True).reason == "Symlink escape: .env of the project"


def test_attack_a_link_put_in_the_place_of_a_dotenv_once_it_was_found_to_be_none(world: World) -> None:
    world.data(config={"command": "x"})
    path = world.project / ".env"
    path.write_text("A=1", encoding="utf-8")
    (world.root / "other.env").write_text("A=hunter2", encoding="utf-8")
    with before_opening(path, files.read, lambda: turn(path, world.root / "other.env")):
        assert world.refused(load_dotenv=True).reason == "Symlink escape: .env of the project"


# -- the interpreter ----------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.run.interpreter")
def test_the_projects_own_interpreter_runs_only_in_trusted_projects(world: World) -> None:
    """Attack: a cloned project that brings its own interpreter."""
    world.python()
    python = world.project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/env")
    (world.project / ".venv" / "pyvenv.cfg").write_text("", encoding="utf-8")
    assert world.prepared().interpreter is None
    trusted = world.prepared(trusted_projects=frozenset({str(world.project)}))
    assert trusted.interpreter == str(python)
    assert trusted.own == (str(world.project / ".venv"),)
    assert trusted.env == {"RYE_PYTHON": str(python)}
    elsewhere = world.prepared(trusted_projects=frozenset({str(world.root)}))
    assert elsewhere.interpreter is None


@pytest.mark.requirement("rye.run.interpreter")
def test_a_path_in_its_variable_comes_first_then_search_paths_then_the_fallback(world: World) -> None:
    local, given, system = (
        executable(world.root / name / "py") for name in ("tools/bin", "given", "system")
    )  # fmt: skip
    world.variables["PATH"] = f"relative:{system.parent}"
    wish = {
        "type": "local_binary",
        "binary": "python",
        "candidates": ["py"],
        "search_roots": [str(world.root / "tools")],
        "search_paths": ["none", "bin"],
        "var": "RYE_PYTHON",
        "fallback": "py",
    }
    world.python(ENV_CONFIG={"interpreter": wish, "env": {"PROJECT_VENV_PYTHON": "${RYE_PYTHON}"}})
    assert world.prepared().interpreter == str(local)
    assert world.prepared().env == {"RYE_PYTHON": str(local), "PROJECT_VENV_PYTHON": str(local)}
    world.variables["RYE_PYTHON"] = str(given)
    assert world.prepared().interpreter == str(given)
    world.variables["RYE_PYTHON"] = str(world.root / "gone")
    assert world.prepared().interpreter == str(local)
    local.chmod(0o644)
    assert world.prepared().interpreter == str(system)
    system.unlink()
    ending = world.refused()
    assert (ending.end, ending.reason) == (End.UNAVAILABLE, "Interpreter not found: py")


@pytest.mark.requirement("rye.run.interpreter")
@pytest.mark.parametrize("kind", ["system_binary", "command"])
def test_a_system_binary_is_looked_for_on_the_hosts_path(world: World, kind: str) -> None:
    found = executable(world.root / "bin" / "py3")
    world.variables["PATH"] = str(found.parent)
    wish = {"type": kind, "binary": "py3", "resolve_cmd": ["touch", str(world.root / "ran")]}
    world.python(ENV_CONFIG={"interpreter": wish})
    prepared = world.prepared()
    assert prepared.interpreter == str(found)
    assert len(prepared.notes) == 1
    assert not (world.root / "ran").exists()


def test_no_other_word_for_a_folder_makes_the_projects_interpreter_run(world: World) -> None:
    """Attack: search paths and fallbacks that reach into the project by dots, links or absolute paths."""
    inside = executable(world.project / "bin" / "py")
    link = world.root / "link"
    link.symlink_to(world.project)
    for wish in (
        {"search_roots": [str(link)], "search_paths": ["bin"]},
        {"search_roots": [str(world.root)], "search_paths": ["home/../project/bin"]},
        {"search_roots": ["."], "search_paths": ["bin"]},
        {"search_paths": [str(inside.parent)]},
        {"search_roots": ["{project_path}"], "search_paths": ["bin"]},
        {"fallback": str(inside)},
        {"fallback": f"{world.root}/home/../project/bin/py"},
        {"type": "venv_python", "venv_path": "../project", "binary": "py"},
    ):
        world.python(ENV_CONFIG={"interpreter": {"binary": "py", **wish}})
        assert world.refused().end is End.UNAVAILABLE, wish
        assert world.prepared(trusted_projects=frozenset({str(world.project)})).interpreter is not None, wish


# -- anchors and what lies below them -----------------------------------------------------------------------


@pytest.mark.requirement("rye.run.anchor")
def test_a_package_folder_comes_first_on_the_python_path(world: World) -> None:
    tool = world.python()
    (tool.parent / "__init__.py").write_text("", encoding="utf-8")
    (tool.parent / "lib").mkdir()
    prepared = world.prepared()
    assert prepared.env == {"PYTHONPATH": f"{tool.parent}:{tool.parent / 'lib'}"}
    assert prepared.own == (str(tool.parent), str(tool.parent / "lib"))
    digest = hashlib.sha256(b"").hexdigest()
    assert ("__init__.py", digest) in prepared.dependencies
    assert {name for name, _ in prepared.dependencies} == {"__init__.py", "t.py"}
    granted = world.prepared(permit=Permit(env=("PYTHONPATH",), read=(str(world.project),)))
    assert granted.own == ()


@pytest.mark.requirement("rye.run.anchor")
def test_an_anchor_has_a_mode_a_root_a_folder_and_paths(world: World) -> None:
    anchor = {
        "enabled": True,
        "mode": "auto",
        "markers_any": ["package.json"],
        "root": "tool_parent",
        "lib": "lib",
        "cwd": "{anchor_path}",
        "env_paths": {"PATH": {"prepend": ["{anchor_path}/bin"], "append": ["{runtime_lib}", "/usr/bin"]}},
    }
    world.data(config={"command": "x"}, anchor=anchor)
    assert world.prepared().env == {}
    folder = world.project / ".ai" / "tools"
    (folder / "a" / "package.json").write_text("{}", encoding="utf-8")
    world.variables["PATH"] = "/usr/bin:/bin"
    ending = world.refused()
    assert ending.reason == "anchor.env_paths.PATH: /usr/bin lies outside the project and the anchor"
    anchor["env_paths"] = {
        "PATH": {"prepend": ["{anchor_path}/bin"], "append": ["{runtime_lib}", "{nothing}/x"]}
    }
    (folder / "lib").mkdir()
    world.data(config={"command": "x"}, anchor=anchor)
    prepared = world.prepared()
    assert prepared.env == {"PATH": f"{folder}/bin:/usr/bin:/bin:{folder}/lib"}
    assert prepared.cwd == str(folder)
    for off in ({"mode": "never"}, {"enabled": False}):
        world.data(config={"command": "x"}, anchor={**anchor, **off})
        assert world.prepared().env == {}
    (folder / "a" / "package.json").unlink()
    world.data(config={"command": "x"}, anchor={**anchor, "mode": "always", "root": "project_path"})
    assert world.prepared().env == {"PATH": f"{world.project}/bin:/usr/bin:/bin"}


def test_a_link_below_the_anchor_that_leads_out_is_refused(world: World) -> None:
    """Attack: a link below the anchor to code that nobody looked at."""
    tool = world.python()
    (tool.parent / "__init__.py").write_text("", encoding="utf-8")
    outside = world.root / "evil.py"
    outside.write_text("", encoding="utf-8")
    (tool.parent / "helper.txt").symlink_to(outside)
    assert world.prepared().dependencies
    (tool.parent / "inner.py").symlink_to("t.py")
    assert world.prepared().dependencies
    (tool.parent / "deep").mkdir()
    (tool.parent / "deep" / "helper.py").symlink_to(outside)
    ending = world.refused()
    assert (ending.end, ending.reason) == (End.DENIED, "Symlink escape: deep/helper.py")
    (tool.parent / "deep" / "helper.py").unlink()
    (tool.parent / "deep" / "package").symlink_to(world.root)
    assert world.refused().reason == "Symlink escape: deep/package"
    (tool.parent / "deep" / "package").rename(tool.parent / "deep" / "__pycache__")
    assert world.prepared().dependencies


def test_what_lies_below_an_anchor_is_bounded(world: World) -> None:
    tool = world.python()
    (tool.parent / "__init__.py").write_text("", encoding="utf-8")
    os.mkfifo(tool.parent / "pipe.py")
    assert world.refused().reason == "pipe.py below the anchor is not a regular file"
    (tool.parent / "pipe.py").unlink()
    deep = tool.parent
    for _ in range(26):
        deep = deep / "d"
    deep.mkdir(parents=True)
    assert "24 deep" in world.refused().reason
    with open(tool.parent / "big.json", "wb") as file:
        file.truncate(_dependencies.DEPENDENCIES_BYTES_MAX + 1)
    assert "67,108,864 bytes" in world.refused().reason


def test_dependencies_have_a_scope(world: World) -> None:
    tool = world.python()
    (tool.parent / "__init__.py").write_text("", encoding="utf-8")
    (tool.parent / "deep").mkdir()
    (tool.parent / "deep" / "x.js").write_text("", encoding="utf-8")
    wish = {"enabled": True, "extensions": [".js", ".py"]}
    for scope, expected in (
        ("anchor", ["__init__.py", "deep/x.js", "t.py"]),
        ("tool_dir", ["__init__.py", "deep/x.js", "t.py"]),
        ("tool_siblings", ["__init__.py", "t.py"]),
        ("tool_file", []),
    ):
        world.python(__verify_deps__={**wish, "scope": scope})
        assert [name for name, _ in world.prepared().dependencies] == expected
    world.python(__verify_deps__={**wish, "enabled": False})
    assert world.prepared().dependencies == ()


# -- runtimes that a project brings -------------------------------------------------------------------------


@pytest.mark.requirement("rye.executor.required-chain", "rye.run.author-templates", "rye.run.interpreter")
def test_a_runtime_of_the_projects_own_runs_by_its_command(world: World) -> None:
    interpreter = executable(world.root / "bin" / "fastpy")
    world.variables["PATH"] = str(interpreter.parent)
    world.data(
        "my/runtimes/fast",
        tool_type="runtime",
        env_config={
            "interpreter": {"type": "system_binary", "binary": "fastpy", "var": "FAST"},
            "env": {"M": "{mode}"},
        },
        anchor={
            "enabled": True,
            "mode": "always",
            "lib": "lib",
            "env_paths": {"FASTPATH": {"append": ["{runtime_lib}"]}},
        },
        config={
            "command": "${FAST}",
            "args": ["{tool_path}", "--project-path", "{project_path}", "--mode={mode}", "{params_json}"],
            "mode": "slow",
            "timeout": 7,
            "env": {"R": 1},
        },
    )
    lib = world.project / ".ai" / "tools" / "my" / "runtimes" / "lib"
    lib.mkdir(parents=True)
    tool_path = world.python("my/t", executor="my/runtimes/fast", __config__={"mode": "fast"})
    tool = world.tool("my/t")
    assert tool.needs.timeout_s == 7.0
    assert isinstance(tool.invocation, RunProcess)
    assert tool.invocation.fixed[0] == str(tool_path), "so that records and checks see the file that runs"
    prepared = world.prepared({"a": "{mode}"}, name="my/t")
    assert prepared.argv == (
        str(interpreter), str(tool_path), "--project-path", str(world.project), "--mode=fast",
        '{"a":"{mode}"}',
    )  # fmt: skip
    assert prepared.env == {"FAST": str(interpreter), "M": "fast", "R": "1", "FASTPATH": str(lib)}


def test_a_runtime_may_be_a_shell_that_takes_the_tools_command(world: World) -> None:
    world.data(
        "my/runtimes/sh",
        tool_type="runtime",
        config={"command": "/bin/sh", "args": ["-c", "{command}", "{tool_path}", "{params_json}"]},
    )
    world.data(executor_id="my/runtimes/sh", config={"command": "ls {project_path}; cat {params_json}"})
    prepared = world.prepared({"x": "$(id)"})
    assert prepared.argv == (
        "/bin/sh", "-c", f"ls {world.project}; cat {{params_json}}",
        f"{world.project}/.ai/tools/a/t.yaml", '{"x":"$(id)"}',
    )  # fmt: skip


def test_parameters_never_become_a_shells_code(world: World) -> None:
    """Attack: a runtime that pastes the caller's parameters into the command line of a shell."""
    for args in (["-c", "{params_json}"], ["-c", "echo {params_json}"], ["-ec", "x {params_json}"]):
        world.data("my/runtimes/sh", tool_type="runtime", config={"command": "bash", "args": args})
        world.data(executor_id="my/runtimes/sh")
        assert world.prepared({"x": "$(id)"}).argv == ("bash", *args)


@pytest.mark.requirement("rye.executor.shipped")
def test_our_own_runtime_answers_for_a_documented_id_and_keeps_the_items_wishes(world: World) -> None:
    world.data(
        FUNCTION,
        where=world.bundles[0],
        tool_type="runtime",
        env_config={"env": {"PYTHONUNBUFFERED": "1", "HOME_COPY": "${HOME}"}},
        config={"command": "/bin/false", "args": ["-c", "evil"], "timeout": 11},
    )
    world.python()
    tool = world.tool()
    assert isinstance(tool.invocation, CallPython)
    assert tool.invocation.style is PythonStyle.FUNCTION
    assert tool.needs.timeout_s == 11.0
    prepared = world.prepared()
    assert prepared.argv is None
    assert prepared.env == {"PYTHONUNBUFFERED": "1", "HOME_COPY": str(world.user)}


@pytest.mark.requirement("rye.yaml.timeout")
def test_the_tools_own_limit_comes_before_the_runtimes(world: World) -> None:
    world.data("my/r", tool_type="runtime", config={"command": "x", "timeout": 7})
    declarations: list[tuple[dict[str, Any], float]] = [
        ({"timeout": 5, "config": {"timeout": 6}}, 5.0),
        ({"config": {"timeout": 6}}, 6.0),
        ({}, 7.0),
        ({"executor_id": EXECUTE, "config": {"command": "x"}}, 300.0),
    ]
    for own, expected in declarations:
        world.data(**{"executor_id": "my/r", **own})
        assert world.tool().needs.timeout_s == expected
    assert Limits().timeout_s == 30.0, "the engine's default, which no rye tool falls back to"


@pytest.mark.requirement("rye.executor.version-constraints")
@pytest.mark.parametrize(
    ("limits", "version", "said"),
    [
        ({"T": {"min_version": "1.2.0"}}, "1.0.0", "1.0.0 < minimum required 1.2.0"),
        ({"min_version": "1.2.0"}, "1.0.0", "1.0.0 < minimum required 1.2.0"),
        ({"T": {"max_version": "1.9.0"}}, "1.10.0", "1.10.0 > maximum allowed 1.9.0"),
        ({"T": {"min_version": "1.2.0", "max_version": "1.9.0"}}, "1.9.0", None),
        ({"U": {"min_version": "9.0.0"}}, "1.0.0", None),
    ],
)
def test_a_runtime_refuses_versions_it_does_not_know(
    world: World, limits: dict[str, Any], version: str, said: str | None
) -> None:
    world.data("my/r", tool_type="runtime", child_constraints=limits, config={"command": "x"})
    world.python("T", executor="my/r", version=version)
    if said is None:
        assert world.prepared(name="T").argv is None
    else:
        ending = world.refused(name="T")
        expected = f"Version constraint failed: 'T' version {said}"
        assert (ending.end, ending.reason) == (End.UNAVAILABLE, expected)


# -- whatever authors write ---------------------------------------------------------------------------------


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("a{}$:-/. \0", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab={}", max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def some(*names: str, **fixed: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these members, whatever their values; ``fixed`` always."""
    always = {name: st.just(value) for name, value in fixed.items()}
    return st.fixed_dictionaries(always, optional=dict.fromkeys(names, odd))


interpreters = some("type", "var", "binary", "candidates", "search_paths", "search_roots", "fallback")
members = st.fixed_dictionaries(
    {},
    optional={
        "config": some("fixed_params", "params_key", "env", "a", "b"),
        "env_config": st.fixed_dictionaries({}, optional={"env": odd, "interpreter": interpreters}),
        "anchor": some("root", "lib", "cwd", "env_paths", "markers_any", enabled=True, mode="always"),
        "verify_deps": some("scope", "extensions", "exclude_dirs", "recursive", enabled=True),
        "config_resolve": odd | st.lists(some("path", "mode"), max_size=2),
        "actions": st.dictionaries(st.text("ab", max_size=1), st.lists(st.text("ab", max_size=1))),
        "expand": st.booleans(),
    },
)


@given(members=members, arguments=st.dictionaries(st.text(max_size=3), odd, max_size=3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_settings_make_it_raise(
    tmp_path: Path, members: dict[str, Any], arguments: dict[str, Any]
) -> None:
    folder = tmp_path / ".ai" / "tools" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    tool = Tool(
        key="rye:a/t",
        name="a/t",
        scope="a",
        origin=Origin(format="rye", path=str(folder / "t.yaml")),
        invocation=RunProcess(
            program="{a}",
            fixed=("-c", "{b}${B}"),
            encoding=JsonOnStdin(verbatim=False),
            settings=json.dumps(members).encode(),
        ),
        chain=("a/t", EXECUTE),
    )
    host = Host(
        sandbox=Nowhere(),
        variables={"PATH": "/nowhere", "B": "x"},
        cwd=str(tmp_path),
        python="/usr/bin/python3",
    )
    call = ToolCall(id="1", tool="rye:a/t", arguments=arguments)
    found = _prepared.prepare(tool, call, host, Permit(env=("B",)), project=str(tmp_path))
    if isinstance(found, Prepared):
        assert not any("\0" in part for part in (*(found.argv or ()), *found.env, *found.env.values()))
    else:
        assert found.end in (End.DENIED, End.UNAVAILABLE, End.REFUSED)
        assert found.reason
