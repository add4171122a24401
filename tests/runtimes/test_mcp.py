"""MCP servers as processes: kept connections, servers that misbehave, and what a caller is told about it."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.lateness import measured
from tests.levels import each_level, sandbox_of
from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.calls import replies
from toolcrib.errors import Kind
from toolcrib.functions import PROGRESS, Report
from toolcrib.model import (
    AudioBlock,
    CallMcp,
    Effect,
    EmbeddedResource,
    End,
    Ending,
    ImageBlock,
    Level,
    Limits,
    Needs,
    Origin,
    Permit,
    Profile,
    Reply,
    ResourceLink,
    Retry,
    Schema,
    TextBlock,
    Tool,
    ToolCall,
    ToolResult,
)
from toolcrib.runtimes import Host, around
from toolcrib.runtimes._mcp_client import WireLimits
from toolcrib.runtimes._mcp_definition import definition_of
from toolcrib.runtimes._mcp_server import tail_of
from toolcrib.runtimes._mcp_stdio import StdioLine
from toolcrib.runtimes.mcp import McpTools, param_headers
from toolcrib.sandbox import Cancel, Sandbox, Standing, Start

SERVER = str(Path(__file__).parent.parent / "peers" / "odd_server.py")
OPEN = Permit(profile=Profile.OPEN, read=("/",), write=("/",), network=True, limits=Limits(timeout_s=10.0))
BOUND_S = 10.0


class House:
    """A runtime with what it is usually handed by the app."""

    def __init__(self, sandbox: Sandbox, variables: dict[str, str] | None = None, **more: Any) -> None:
        self.sandbox = sandbox
        self.started: list[Start] = []
        self.changed: list[str] = []
        self.noticed = threading.Event()
        host = Host(
            sandbox=sandbox,
            variables={"PATH": "/usr/bin:/bin", **(variables or {})},
            cwd="/",
            python=sys.executable,
        )
        self.tools = McpTools(
            host,
            permit_of=lambda tool: OPEN,
            definitions=lambda digest: None,
            opener=self.open,
            changed=self.notice,
            **more,
        )

    def open(self, key: str, start: Start) -> Standing | Ending:
        self.started.append(start)
        return self.sandbox.open(start)

    def notice(self, digest: str) -> None:
        self.changed.append(digest)
        self.noticed.set()

    def call(
        self, name: str, text: str = "", *options: str, cancel: Cancel | None = None, **more: Any
    ) -> Ending:
        arguments = {"text": text} if text else {}
        permit = replace(OPEN, limits=replace(OPEN.limits, **more)) if more else OPEN
        return self.tools.run(
            BoundTool(tool_of(name, *options)), call_of(arguments), permit, cancel or Cancel()
        )

    def text(self, name: str, text: str = "", *options: str) -> str:
        ending = self.call(name, text, *options)
        assert ending.end is End.RETURNED, ending
        assert ending.blocks is not None
        return "\n".join(block.text for block in ending.blocks if isinstance(block, TextBlock))


def call_of(arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(id="c", tool="t", arguments=arguments)


def tool_of(name: str, *options: str, **server: Any) -> Tool:
    definition = {"command": sys.executable, "args": ["-I", "-S", SERVER, *options], **server}
    return Tool(
        key=f"rye:odd/{name}",
        name=name,
        scope="odd",
        origin=Origin(format="rye", path="/x.yaml"),
        invocation=CallMcp(server="odd", tool=name, settings=jsontext.compact({"server": definition})),
        reply=Reply.BLOCKS,
        needs=Needs(),
    )


def result_of(ending: Ending, tool: Tool | None = None) -> ToolResult:
    return replies.reply(tool or tool_of("x"), call_of({}), ending, permit=OPEN)


@contextmanager
def house_of(level: Level = Level.PORTABLE, **more: Any) -> Iterator[House]:
    with sandbox_of(level) as sandbox:
        house = House(sandbox, **more)
        try:
            yield house
        finally:
            house.tools.close()


def patient(low: float, high: float) -> float:
    """For ``jitter``: a pause that lasts, however long the machine stands still meanwhile."""
    return 100.0


@pytest.fixture
def house() -> Iterator[House]:
    with house_of() as made:
        yield made


# -- calls --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.yaml.mcp-stdio")
@pytest.mark.parametrize("level", each_level())
def test_one_process_serves_all_calls(level: Level) -> None:
    with house_of(level) as house:
        assert [house.text("echo", word) for word in ("one", "two", "three")] == ["one", "two", "three"]
        assert len(house.started) == 1
        assert level.value in house.call("echo").layers


def test_many_threads_share_one_connection(house: House) -> None:
    said: dict[int, str] = {}

    def ask(number: int) -> None:
        for step in range(5):
            words = f"{number}/{step}"
            assert house.text("echo", words) == words
            said[number] = words

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert said == {number: f"{number}/4" for number in range(8)}
    assert len(house.started) == 1


def test_answers_may_come_in_any_order(house: House) -> None:
    said: dict[str, str] = {}

    def ask(word: str) -> None:
        said[word] = house.text("slow-then-fast", word)

    house.text("echo")
    threads = [threading.Thread(target=ask, args=(word,)) for word in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert said == {"a": "a", "b": "b", "c": "c"}


def test_every_kind_of_content_comes_through_unchanged(house: House) -> None:
    ending = house.call("blocks")
    assert ending.blocks == (
        TextBlock(text="a word", more={"annotations": {"audience": ["user"]}}),
        ImageBlock(data="aGk=", media_type="image/png"),
        AudioBlock(data="aGk=", media_type="audio/wav"),
        ResourceLink(uri="file:///a", name="a", more={"title": "A", "size": 3}),
        EmbeddedResource(uri="file:///b", text="in", media_type="text/x"),
        EmbeddedResource(uri="file:///c", data="aGk=", more={"resource": {"_meta": {"k": 1}}}),
    )
    result = result_of(ending)
    assert result.blocks == ending.blocks
    assert result.data == {"n": 1}
    assert result.notes == ("content of kinds that nobody here knows was left out: 1",)


def test_a_failed_call_is_told_in_the_servers_words(house: House) -> None:
    result = result_of(house.call("fail", "no such file"))
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (Kind.FAILED, "it went wrong: no such file")
    refused = result_of(house.call("refuse"))
    assert refused.error is not None
    assert refused.error.message == "Unknown tool"


def test_a_structured_result_must_fit_the_schema_that_was_promised(house: House) -> None:
    promised = Schema.of({"type": "object", "required": ["there"]})
    tool = replace(tool_of("not-fitting"), output_schema=promised)
    result = result_of(house.call("not-fitting"), tool)
    assert result.error is not None
    assert result.error.kind is Kind.BAD_OUTPUT
    assert "there" in result.error.message


@pytest.mark.parametrize("content", ["null", '"a text"', '{"type": "text"}', "3"])
def test_a_result_whose_content_is_no_list_is_no_success(house: House, content: str) -> None:
    """Attack: a result that other readers understand, and that looks like an empty success here."""
    result = result_of(house.call("no-list", content))
    assert result.error is not None
    assert result.error.kind is Kind.BAD_OUTPUT
    assert "content must be a list" in result.error.message
    assert result_of(house.call("no-list", "[]")).ok


def test_structured_content_that_is_no_object_is_left_out_and_said(house: House) -> None:
    result = result_of(house.call("odd-structured", "[1]"))
    assert (result.ok, result.content, result.data) == (True, "a word", None)
    assert result.notes == ("structuredContent is no object (got a list), so it was left out",)


def test_texts_beside_a_structured_result_follow_the_form_of_an_item(house: House) -> None:
    tool = replace(tool_of("beside"), reply=Reply.ITEM)
    result = result_of(house.call("beside"), tool)
    form, *others = result.blocks
    assert isinstance(form, TextBlock)
    assert json.loads(form.text)["data"] == {"n": 1}
    assert others == [TextBlock(text="in words")]  # and not once more the text that only repeats the data


def test_progress_is_counted(house: House) -> None:
    assert house.call("steps").notes == ("messages of progress: 3",)


@contextmanager
def listening(report: Report) -> Iterator[None]:
    heard = PROGRESS.set(report)
    try:
        yield
    finally:
        PROGRESS.reset(heard)


def test_progress_is_told_to_whoever_listens(house: House) -> None:
    told: list[tuple[float, float | None, str]] = []
    with listening(lambda *step: told.append(step)):
        assert house.call("steps").notes == ("messages of progress: 3",)
    assert told == [(0, None, ""), (1, None, ""), (2, None, "")]


def test_progress_is_told_while_the_call_runs_and_may_call_the_same_server(house: House) -> None:
    heard: list[str] = []

    def report(_done: float, _total: float | None, message: str) -> None:
        heard.append(house.text("let-go", message))

    with listening(report):
        ending = house.call("held-back")  # the server ends it only when the other call has come
    assert ending.end is End.RETURNED
    assert heard == ["gone on"]


def test_whoever_listens_badly_loses_no_answer(house: House) -> None:
    def report(_done: float, _total: float | None, _message: str) -> None:
        raise ValueError("not so fast")

    with listening(report):
        ending = house.call("steps")
    assert ending.end is End.RETURNED
    assert ending.notes == ("messages of progress: 3", "its progress was told no further: ValueError")


def test_progress_tells_no_secret_and_nothing_endless() -> None:
    """Attack: a server that tells its credentials, or endless words, where results are not looked at."""
    told: list[tuple[float, float | None, str]] = []
    with listening(lambda *step: told.append(step)):
        ending, _ = handed("odd-steps", SECRET, replace(OPEN, env=("APIK",)))
    assert ending.end is End.RETURNED
    assert told == [(1, 4, "with [secret APIK]"), (2.5, None, "m" * 1000)]


def test_a_server_may_ask_whether_we_are_there_and_nothing_else(house: House) -> None:
    """Attack: a server that reads the user's model, files or keyboard by asking the client for them."""
    alive, refused = json.loads(house.text("ask-us"))
    assert alive["result"] == {}
    assert refused["error"]["code"] == -32601


# -- greetings ----------------------------------------------------------------------------------------------


def test_a_server_of_the_stateless_era_is_spoken_to_in_its_own_way(house: House) -> None:
    options = ("modern", "names=heard")
    first, *rest = json.loads(house.text("heard", "", *options))
    assert first["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert first["io.modelcontextprotocol/clientCapabilities"] == {}
    assert rest == ["listening"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_older_versions_are_spoken_too(house: House, version: str) -> None:
    assert house.text("echo", "hi", f"version={version}") == "hi"


def test_a_version_that_nobody_knows_is_refused(house: House) -> None:
    ending = house.call("echo", "", "version=1999-01-01")
    assert ending.end is End.UNAVAILABLE
    assert "1999-01-01" in ending.reason


def test_the_server_is_told_that_it_may_begin(house: House) -> None:
    assert json.loads(house.text("heard"))[0] == "notifications/initialized"


# -- servers that misbehave ---------------------------------------------------------------------------------


@pytest.mark.battery("I15")
@pytest.mark.parametrize("level", each_level())
def test_a_server_that_dies_in_the_middle_of_a_call_leaves_its_outcome_unknown(level: Level) -> None:
    with house_of(level, jitter=patient) as house:
        house.text("echo")
        ending = house.call("die")
        assert ending.end is End.LOST
        assert "7" in ending.reason
        again = house.call("echo")
        assert again.end is End.UNAVAILABLE
        found = re.search(r"it is tried again in ([0-9.]+) s", again.reason)
        assert found is not None
        assert 0 < float(found[1]) <= 50


def test_a_half_message_at_death_is_no_answer(house: House) -> None:
    house.text("echo")
    assert house.call("half").end is End.LOST


def test_a_server_that_died_is_started_again_after_a_pause_that_grows() -> None:
    def jitter(low: float, high: float) -> float:
        assert (low, high) == (0.75, 1.25)
        return 0.0  # nobody waits in a test; the pause itself is read below

    with house_of(jitter=jitter) as house:
        for _ in range(4):
            assert house.call("die").end is End.LOST
        assert len(house.started) == 4
    with house_of(jitter=lambda low, high: 1.0) as house:
        house.call("die")
        (server,) = house.tools._servers.values()
        for pause_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0):
            began = time.monotonic()
            server.failed("down")
            assert began + pause_s <= server._retry_at <= time.monotonic() + pause_s


def test_a_call_that_works_makes_the_next_death_the_first_one_again() -> None:
    with house_of(jitter=lambda low, high: 0.0) as house:
        house.call("die")
        house.text("echo")
        (server,) = house.tools._servers.values()
        assert server._failures == 0


def test_only_a_tool_that_reads_is_called_again_after_a_death() -> None:
    with house_of(jitter=lambda low, high: 0.0) as house:
        retrying = around.Retrying(house.tools, pause=lambda cancel, delay: False)
        reading = replace(tool_of("die"), effect=Effect.READ, retry=Retry(max_attempts=2))
        assert retrying.run(BoundTool(reading), call_of({}), OPEN, Cancel()).end is End.LOST
        assert len(house.started) == 2
        changing = replace(tool_of("die"), retry=Retry(max_attempts=2))
        assert retrying.run(BoundTool(changing), call_of({}), OPEN, Cancel()).end is End.LOST
        assert len(house.started) == 3


def test_a_server_that_hangs_is_given_up_at_the_deadline(house: House) -> None:
    house.text("echo")
    began = time.monotonic()
    ending = house.call("hang", timeout_s=0.3)
    assert ending.end is End.TIMED_OUT
    assert time.monotonic() - began < BOUND_S
    assert house.text("echo", "still here") == "still here"
    assert json.loads(house.text("heard"))[-1] == "notifications/cancelled"
    assert len(house.started) == 1


def deafened(house: House) -> StdioLine:
    """The line to a server that reads nothing more for some seconds, and whose pipe is full."""
    assert house.call("deaf", "4", timeout_s=0.2).end is End.TIMED_OUT
    (server,) = house.tools._servers.values()
    line = server._line
    assert isinstance(line, StdioLine)
    until = time.monotonic() + BOUND_S
    while b"deaf now" not in line.stderr() and time.monotonic() < until:
        Cancel().wait(0.02)
    assert b"deaf now" in line.stderr()
    return line


def test_a_server_that_does_not_read_makes_nobody_come_late(house: House) -> None:
    """Attack: a server that reads nothing more, so that giving up on it takes longer than the deadline."""
    house.text("echo")
    line = deafened(house)
    took_s: list[float] = []

    def ask(text: str) -> None:
        began = time.monotonic()
        assert house.call("echo", text, timeout_s=0.4).end is End.TIMED_OUT
        took_s.append(time.monotonic() - began)

    # Each goes out whole, so that its caller waits for an answer while the next one fills the pipe.
    threads = [threading.Thread(target=ask, args=("x" * 31_000,)) for _ in range(2)]
    with measured() as machine:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        with pytest.raises(BlockingIOError):
            os.write(line._standing.stdin, b" " * 4096)
        ask("x")
        ask("x" * 100_000)
    assert len(took_s) == 4
    assert max(took_s) < 0.4 + 0.25 + machine.all_s


def test_a_server_that_is_gone_is_told_by_how_it_ended_and_not_by_its_pipe() -> None:
    with house_of(jitter=patient) as house:
        house.text("echo")
        os.kill(int(house.text("pid")), 9)
        ending = house.call("echo", "x" * 200_000)
    assert ending.end in (End.LOST, End.UNAVAILABLE)
    assert "it ended (killed by signal 9)" in ending.reason
    assert "pipe" not in ending.reason.lower()


def test_a_program_that_cannot_be_started_is_told_plainly(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/no/such/interpreter\n", encoding="utf-8")
    script.chmod(0o755)
    for level in (Level.PORTABLE, Level.SUPERVISED):
        if level not in each_level():
            continue
        with house_of(level) as house:
            tool = tool_of("echo", command=str(script))
            ending = house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
            assert ending.end is End.UNAVAILABLE
            assert "could not be started" in ending.reason or "cannot be started" in ending.reason
            assert "no such file" in ending.reason.lower()
            assert "start:" not in ending.reason


def test_a_call_can_be_cancelled_and_the_server_is_told(house: House) -> None:
    house.text("echo")
    cancel, ended = Cancel(), []
    thread = threading.Thread(target=lambda: ended.append(house.call("hang", cancel=cancel)))
    thread.start()
    cancel.set()
    thread.join(BOUND_S)
    assert [ending.end for ending in ended] == [End.CANCELLED]
    assert json.loads(house.text("heard"))[-1] == "notifications/cancelled"


def test_a_server_that_never_greets_is_given_up(house: House) -> None:
    ending = house.call("echo", "", "mute", timeout_s=0.5)
    assert ending.end is End.TIMED_OUT
    assert "it did not answer the greeting within 0.5 s" in ending.reason


def test_the_time_that_a_server_had_to_greet_is_told_and_not_how_late_we_looked(house: House) -> None:
    class Slow(Cancel):
        """As on a machine that stands still whenever it is looked at."""

        @property
        def is_set(self) -> bool:
            threading.Event().wait(0.3)
            return super().is_set

    ending = house.call("echo", "", "mute", cancel=Slow(), timeout_s=0.5)
    assert ending.end is End.TIMED_OUT
    assert "it did not answer the greeting within 0.5 s" in ending.reason


def test_callers_with_little_time_do_not_start_a_slow_server_again_and_again(house: House) -> None:
    for _ in range(4):
        assert house.call("echo", "", "mute", timeout_s=0.1).end is End.TIMED_OUT
    assert len(house.started) == 1


def test_closing_ends_a_server_that_is_still_being_connected() -> None:
    with house_of() as house:
        assert house.call("echo", "", "mute", timeout_s=0.2).end is End.TIMED_OUT
        began = time.monotonic()
    assert time.monotonic() - began < BOUND_S
    assert house.call("echo").end is End.UNAVAILABLE


@pytest.mark.requirement("rye.yaml.mcp-timeout")
def test_the_servers_own_timeout_bounds_connecting(house: House) -> None:
    tool = tool_of("echo", "mute", timeout=0.4)
    ending = house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
    assert ending.end is End.UNAVAILABLE
    assert "it did not answer the greeting within 0.4 s" in ending.reason


@pytest.mark.battery("I15")
def test_a_message_without_end_is_stopped_at_the_limit() -> None:
    with house_of(limits=WireLimits(message_bytes_max=1 << 20)) as house:
        ending = house.call("long-line", "50")
        assert ending.end is End.LOST
        assert "a message of more than 1048576 bytes" in ending.reason


def test_a_storm_of_notifications_ends_the_connection() -> None:
    with house_of(limits=WireLimits(unasked_max=1000)) as house:
        other = tool_of("echo", "banner")
        assert house.tools.run(BoundTool(other), call_of({"text": "b"}), OPEN, Cancel()).end is End.RETURNED
        ending = house.call("storm")
        assert ending.end is End.LOST
        assert "more than 1000 messages" in ending.reason
        # Another server is none the wiser.
        assert house.tools.run(BoundTool(other), call_of({"text": "b"}), OPEN, Cancel()).end is End.RETURNED


def test_a_result_over_the_limit_fails_its_call_and_no_other(house: House) -> None:
    ending = house.call("huge", "2", stdout_bytes_max=1 << 20)
    assert ending.end is End.TOO_LARGE
    assert house.text("echo", "fine") == "fine"
    assert len(house.started) == 1


@pytest.mark.battery("I15")
def test_lines_that_are_no_json_are_passed_over(house: House) -> None:
    assert house.text("echo", "hi", "banner") == "hi"
    assert house.text("noise") == "after the noise"


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        # Attack: a message with two results, of which every reader takes another one.
        ("broken", 'the name "result" is repeated'),
        ("emoji", "surrogate"),
    ],
)
def test_an_answer_that_cannot_be_read_costs_its_own_call_and_no_other(
    house: House, tool: str, why: str
) -> None:
    ending = house.call(tool)
    assert ending.end is End.UNREADABLE
    assert why in ending.reason
    assert house.text("echo", "fine") == "fine"
    assert len(house.started) == 1


def test_broken_json_without_a_number_ends_the_connection_and_says_why(house: House) -> None:
    ending = house.call("torn")
    assert ending.end is End.LOST
    assert "broken JSON" in ending.reason


@pytest.mark.battery("I15")
def test_answers_that_nobody_waits_for_are_ignored(house: House) -> None:
    assert house.text("wrong-id") == "for you"
    assert house.text("twice") == "once"
    assert house.text("echo", "next") == "next"


def test_too_many_open_questions_are_refused_at_once() -> None:
    with house_of(limits=WireLimits(pending_max=1)) as house:
        house.text("echo")
        cancel = Cancel()
        thread = threading.Thread(target=lambda: house.call("hang", cancel=cancel))
        thread.start()
        (server,) = house.tools._servers.values()
        desk = server._line
        assert isinstance(desk, StdioLine)
        until = time.monotonic() + BOUND_S
        while not desk.is_busy and time.monotonic() < until:
            cancel.wait(0.01)
        ending = house.call("echo")
        cancel.set()
        thread.join(BOUND_S)
        assert ending.end is End.UNAVAILABLE
        assert "1 calls already wait" in ending.reason


def test_a_daemon_of_the_server_ends_with_it() -> None:
    if not any(getattr(found, "id", "") == "supervised" and not found.marks for found in each_level()):  # type: ignore[attr-defined]
        pytest.skip("this machine lacks a layer; `toolcrib doctor` names it and the fix")
    with house_of(Level.SUPERVISED) as house:
        daemon = int(house.text("daemon"))
        assert Path(f"/proc/{daemon}").exists()
    until = time.monotonic() + BOUND_S
    while Path(f"/proc/{daemon}").exists() and time.monotonic() < until:
        Cancel().wait(0.02)
    assert not Path(f"/proc/{daemon}").exists()


@pytest.mark.parametrize("level", each_level()[2:])
def test_attack_a_server_writes_a_protected_file_that_a_person_has_replaced(
    tmp_path: Path, level: Level
) -> None:
    """The mount that held it is gone with the old file, so the server is started again."""
    config = tmp_path.resolve() / "config"
    config.write_text("mine", encoding="ascii")
    permit = replace(OPEN, profile=None, write=(str(config.parent),), protected=(str(config),))
    tool = tool_of("write")
    with house_of(level) as house:

        def wrote() -> bool:
            ending = house.tools.run(BoundTool(tool), call_of({"text": str(config)}), permit, Cancel())
            assert ending.blocks is not None
            (block,) = ending.blocks
            assert isinstance(block, TextBlock)
            return block.text == "written"

        assert not wrote()
        assert not wrote()
        assert len(house.started) == 1
        (config.parent / "config.lock").write_text("mine", encoding="ascii")
        (config.parent / "config.lock").replace(config)
        until = time.monotonic() + BOUND_S
        while wrote() and time.monotonic() < until:  # as long as the last look at the mounts counts
            config.write_text("mine", encoding="ascii")
        assert not wrote()
        assert len(house.started) == 2
    assert config.read_text(encoding="ascii") == "mine"


def test_a_server_says_when_its_tools_are_others() -> None:
    with sandbox_of(Level.PORTABLE) as sandbox:
        house = House(sandbox)
        definition = jsontext.compact(
            {"definition": {"command": sys.executable, "args": ["-I", "-S", SERVER]}, "name": "odd"}
        )
        house.tools._definitions = lambda digest: definition.decode()
        settings = jsontext.compact({"key": "mcp:odd/", "definition": "d1"})
        tool = replace(tool_of("grow"), invocation=CallMcp(server="odd", tool="grow", settings=settings))
        house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
        assert house.noticed.wait(BOUND_S)
        assert house.changed == ["d1"]
        house.tools.close()


# -- what a server sees -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", each_level())
def test_a_server_sees_no_variable_that_it_was_not_given(level: Level) -> None:
    """Attack: a server that prints the host's environment, with its credentials."""
    variables = {"HOME": "/tmp", "AWS_SECRET_ACCESS_KEY": "s3cret", "LD_PRELOAD": "", "EDITOR": "vi"}
    with house_of(level, variables=variables) as house:
        tool = tool_of("env", env={"GREETING": "hello", "WHERE": "${HOME}/x"})
        ending = house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
        assert ending.blocks is not None
        (block,) = ending.blocks
        assert isinstance(block, TextBlock)
        seen = set(json.loads(block.text)) - {"LC_CTYPE", "PWD"}
        assert seen == {"PATH", "HOME", "TMPDIR", "GREETING", "WHERE", "PYTHONDONTWRITEBYTECODE"}
        assert house.started[0].env["WHERE"] == "/tmp/x"


def test_a_definition_cannot_name_a_secret_that_was_not_granted() -> None:
    """Attack: a definition that hands any variable of the host to its server."""
    with house_of(variables={"GITHUB_TOKEN": "ghp"}) as house:
        tool = tool_of("echo", env={"T": "Bearer ${GITHUB_TOKEN}"})
        ending = house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
        assert ending.end is End.UNAVAILABLE
        assert "needs the variable GITHUB_TOKEN, which it was not granted" in ending.reason
        assert ending.hint == '[grants."rye:odd/echo"] env = ["GITHUB_TOKEN"]'
        granted = replace(OPEN, env=("GITHUB_TOKEN",))
        assert house.tools.run(BoundTool(tool), call_of({}), granted, Cancel()).end is End.RETURNED
        fallback = tool_of("echo", env={"T": "${NOT_SET:-default}"})
        assert house.tools.run(BoundTool(fallback), call_of({}), OPEN, Cancel()).end is End.RETURNED
        assert house.started[-1].env["T"] == "default"


def test_what_a_dying_server_complained_about_is_a_hint(house: House) -> None:
    ending = house.call("complain", "the weather")
    assert ending.end is End.LOST
    assert ending.hint == "its last words: about the weather"


def test_last_words_cannot_steer_a_terminal() -> None:
    assert tail_of(b"one\n\x1b[31mred\x1b[0m\x07\n\n", 5) == "one\n\\x1b[31mred\\x1b[0m\\x07"


def test_a_server_is_not_looked_up_in_a_relative_folder_of_path(tmp_path: Path) -> None:
    """Attack: a PATH whose entry is relative, in a folder that holds a fake program of the server's name."""
    fake = tmp_path / "fake-npx"
    fake.write_text("#!/bin/sh\n", encoding="utf-8")
    fake.chmod(0o755)
    folder = os.path.relpath(tmp_path)
    with house_of(variables={"PATH": f"{folder}:.:"}) as house:
        tool = tool_of("echo", command="fake-npx", cwd=str(tmp_path))
        tool = replace(tool, needs=Needs(base_env=("PATH",)))
        ending = house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
        assert "there is no program 'fake-npx'" in ending.reason
        tool = replace(tool_of("echo", command="./fake-npx", cwd=str(tmp_path)), needs=tool.needs)
        house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
        assert [start.program for start in house.started] == [str(fake)]


def test_a_program_that_is_not_there_is_named(house: House) -> None:
    tool = tool_of("echo", command="no-such-program-at-all", args=[])
    ending = house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
    assert ending.end is End.UNAVAILABLE
    assert "there is no program 'no-such-program-at-all'" in ending.reason


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({}, "neither a url nor a command"),
        ({"transport": "http"}, "neither a url nor a command"),
        ({"url": "http://127.0.0.1/sse", "type": "sse"}, "the old transport with two endpoints"),
        ({"command": ""}, "neither a url nor a command"),
    ],
)
def test_a_definition_that_leads_nowhere_is_an_answer(server: dict[str, Any], words: str) -> None:
    found = definition_of("x", "", jsontext.compact({"server": server}))
    assert isinstance(found, str)
    assert words in found


def test_arguments_go_into_headers_only_where_the_servers_schema_says_so() -> None:
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            "odd": {"type": "string", "x-mcp-header": "Bad Name:"},
            "word": {"type": "string"},
            "inner": {"type": "object", "properties": {"id": {"type": "integer", "x-mcp-header": "Id"}}},
        },
    }
    arguments = {"region": "smörgås", "dry": True, "odd": "x", "word": "w", "inner": {"id": 7}}
    assert param_headers(schema, arguments) == {
        "Mcp-Param-Region": "=?base64?c23DtnJnw6Vz?=",
        "Mcp-Param-Dry": "true",
        "Mcp-Param-Id": "7",
    }


def test_an_attempt_that_fails_by_our_own_mistake_is_followed_by_a_pause() -> None:
    started: list[Start] = []

    def fail(key: str, start: Start) -> Standing | Ending:
        started.append(start)
        raise KeyError("a mistake of ours")

    with house_of(jitter=patient) as house:
        house.tools.opener = fail
        assert "cannot be reached: KeyError" in house.call("echo").reason
        assert "is down: KeyError; it is tried again in" in house.call("echo").reason
        assert len(started) == 1


# -- servers that nobody names any more ---------------------------------------------------------------------


def test_a_server_that_is_still_asked_ends_after_its_answer() -> None:
    with house_of() as house:
        text = jsontext.compact({"name": "odd", "definition": {"command": sys.executable, "args": [SERVER]}})
        house.tools._definitions = lambda digest: text.decode()
        settings = jsontext.compact({"key": "mcp:odd/", "definition": "d"})

        def tool(name: str) -> Tool:
            return replace(tool_of(name), invocation=CallMcp(server="odd", tool=name, settings=settings))

        assert house.tools.run(BoundTool(tool("echo")), call_of({}), OPEN, Cancel()).end is End.RETURNED
        house.tools.keep_only(["d"])
        (server,) = house.tools._servers.values()
        line = server._line
        assert line is not None
        endings: list[Ending] = []
        cancel = Cancel()
        caller = threading.Thread(
            target=lambda: endings.append(house.tools.run(BoundTool(tool("hang")), call_of({}), OPEN, cancel))
        )
        caller.start()
        until = time.monotonic() + BOUND_S
        while not server._users and time.monotonic() < until:
            Cancel().wait(0.01)
        house.tools.keep_only([])
        assert house.tools.states() == ()
        assert line.why_closed is None
        cancel.set()
        caller.join(BOUND_S)
        assert [ending.end for ending in endings] == [End.CANCELLED]
        assert line.why_closed is not None


# -- what a server was handed -------------------------------------------------------------------------------

SECRET = 'sk-"9\\q/Zz-77é'


def handed(name: str, text: str, permit: Permit = OPEN, **server: Any) -> tuple[Ending, str]:
    """What came of a call of a server that has the secret, and how the server stands."""
    with house_of(variables={"APIK": SECRET, "PLACE": "/usr"}) as house:
        ending = house.tools.run(
            BoundTool(tool_of(name, **server)), call_of({"text": text}), permit, Cancel()
        )
        if ending.end is End.LOST:  # once more: now it is told why it is down
            again = house.tools.run(
                BoundTool(tool_of(name, **server)), call_of({"text": text}), permit, Cancel()
            )
            assert again.end is not End.RETURNED
            ending = replace(ending, notes=(*ending.notes, again.reason or "", again.hint or ""))
        return ending, repr(house.tools.states())


@pytest.mark.parametrize("server", [{"env": {"X": "${APIK}"}}, {"env": {"AUTH_TOKEN": SECRET}}, {}])
@pytest.mark.parametrize("name", ["echo", "repeat", "fail", "refuse", "complain"])
def test_a_server_cannot_tell_the_secrets_it_was_handed(name: str, server: dict[str, Any]) -> None:
    """Attack: a server that repeats its credentials in its answer, its structured content, an error or its
    stderr, and so tells them to the model, the record, the cache or the terminal."""
    permit = replace(OPEN, env=("APIK",))
    ending, states = handed(name, f"it is {SECRET}.", permit, **server)
    told = json.dumps([repr(ending), states, ending.reason, ending.hint, ending.value], ensure_ascii=False)
    assert "Zz-77" not in told
    mark = "[secret APIK]"
    assert mark in told
    if name == "repeat":
        clean = f"it is {mark}."
        assert ending.notes[-1].endswith(" secrets were taken out of what came back: APIK")
        assert ending.value == {"list": [clean], clean: 1}


def test_what_is_no_secret_stays_in_answers() -> None:
    ending, _ = handed("echo", "in /usr/share", replace(OPEN, env=("PLACE",)))
    assert ending.blocks == (TextBlock(text="in /usr/share"),)


def test_a_definition_cannot_make_its_program_load_code() -> None:
    """Attack: `LD_PRELOAD` in a definition, which a reviewer takes for that of a known program."""
    loaders = {"LD_PRELOAD": "", "NODE_OPTIONS": "--no-warnings", "BASH_FUNC_ls%%": "() { :; }", "PLAIN": "1"}
    permit = replace(OPEN, env=("NODE_OPTIONS",))
    ending, _ = handed("env", "", permit, env=loaders)
    assert ending.blocks is not None
    (block,) = ending.blocks
    assert isinstance(block, TextBlock)
    assert {*loaders} & {*json.loads(block.text)} == {"NODE_OPTIONS", "PLAIN"}
    assert [note.split()[0] for note in ending.notes] == ["BASH_FUNC_ls%%", "LD_PRELOAD"]


def test_a_program_is_looked_up_on_the_hosts_path(tmp_path: Path) -> None:
    """Attack: a definition whose own PATH leads a known name to its author's program."""
    fake = tmp_path / "env"
    fake.write_text("#!/bin/sh\necho fake >&2\n", encoding="utf-8")
    fake.chmod(0o755)
    with house_of() as house:
        tool = tool_of("echo", command="env", args=["true"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        house.tools.run(BoundTool(tool), call_of({}), OPEN, Cancel())
        assert [start.program for start in house.started] == ["/usr/bin/env"]
