"""What stands in a record, what never does, and what happens when it cannot be written."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.journal import work
from toolcrib.errors import Kind
from toolcrib.journal import reading
from toolcrib.journal.audit import TEXT_CHARS_MAX, Audit, open_audit
from toolcrib.journal.redaction import MARKER
from toolcrib.journal.segments import Disk
from toolcrib.model import Allow, Decision, Deny, Run, Spent, ToolError, Vetted
from toolcrib.trust.policy import Ground, HostState, HouseRules, Policy
from toolcrib.trust.rules import rules_of

HOSTILE = 'a\nb\r\x1b[31m\u2028\u2029\x00\udcff"}\n{"what":"end"'


@contextmanager
def opened(state: Path, **more: Any) -> Iterator[Audit]:
    audit = open_audit(str(state), **more)
    try:
        yield audit
    finally:
        audit.close()


def one(state: Path, id: str = "c1", *, tool: Any = None, call: Any = None, **result: Any) -> None:
    with opened(state) as audit:
        assert audit.begin(call or work.call(id), work.FACTS)
        audit.end(work.call(id), work.result(id, **result), tool)


def test_nothing_is_touched_before_the_first_call(tmp_path: Path) -> None:
    with opened(tmp_path / "state"):
        pass
    assert not (tmp_path / "state").exists()


def test_a_call_has_one_begin_and_one_end(tmp_path: Path) -> None:
    one(tmp_path, spent=Spent(duration_ms=12.5, output_bytes=7), isolation=("landlock", "profile:open"))
    begin, end = work.bodies(tmp_path)
    assert begin == {
        "what": "begin",
        "ts": begin["ts"],
        "call": "c1",
        "tool": "get_time",
        "key": "manifest:t/get_time",
        "format": "manifest",
        "door": "test",
        "caller": "",
        "conversation": "",
        "catalog": "1",
        "seen": None,
        "runs": "sha256:aa",
        "arguments": ["zone"],
        "arguments_digest": begin["arguments_digest"],
    }
    assert end == {
        "what": "end",
        "ts": end["ts"],
        "call": "c1",
        "key": "manifest:t/get_time",
        "ok": True,
        "ms": 12.5,
        "output_bytes": 7,
        "truncated": False,
        "layers": ["landlock", "profile:open"],
    }


def test_begin_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    with opened(tmp_path, disk=Disk(sync=sync)) as audit:
        assert audit.begin(work.call(), work.FACTS)
        (path,) = work.segment_paths(tmp_path)
        assert synced[-1] == path.stat().st_size
        assert [entry.what for entry in work.records(tmp_path)] == ["begin"]


# Put together here, so that nobody's scanner of secrets takes this file for a leak.
CREDENTIALS = (
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2c3" * 8,
    "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nabc+/=\n-----END RSA PRIVATE " + "KEY-----",
    "-----BEGIN PRIVATE " + "KEY-----\nMIIEow without an end",
)


@pytest.mark.battery("I16")
@pytest.mark.parametrize("credential", CREDENTIALS)
def test_i16_credentials_known_by_their_looks_are_in_no_record_and_a_rule_refuses_them(
    tmp_path: Path, credential: str
) -> None:
    told = f"sent '{credential}'"
    asked = replace(
        work.call(), tool=told, arguments={told: told}, caller=told, conversation=told, idempotency_key=told
    )
    error = ToolError(kind=Kind.FAILED, message=told)
    run = Run(argv=("curl", told), cwd=told, note=told)
    with opened(tmp_path) as audit:
        assert audit.begin(asked, work.FACTS)
        audit.note("c1", "answer", {"because": told, "edited": [told]})
        audit.end(asked, work.result("c1", error=error, notes=(told,), runs=(run,), rule=told))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for line in credential.splitlines():
        assert line.encode() not in written
    begin, _, end = work.bodies(tmp_path)
    for text in (begin["tool"], begin["caller"], *begin["arguments"], end["error"], *end["notes"]):
        assert text.startswith(f"sent '{MARKER}")

    patterns = ["*AKIA????????????????*", "*ghp_*", "*github_pat_*", "*-----BEGIN *PRIVATE KEY*"]
    table = {"match": {"arguments": {"/**": patterns}}, "decision": "deny", "because": "no credentials"}
    house = Policy(HouseRules(policy=rules_of([table])))

    def decided(value: object) -> Decision:
        call = work.call(arguments={"a": [{"b": value}]})
        ground = Ground(project="/p", cwd="/p")
        terms = house.terms(work.tool(), vetted=Vetted(), ground=ground, caller=call.caller)
        return house.decide(terms, call, HostState())

    assert isinstance(decided(told), Deny)
    assert isinstance(decided("nothing"), Allow)


@pytest.mark.parametrize("field", ["tool", "caller", "conversation", "idempotency_key", "arguments"])
def test_a_credential_is_found_in_whichever_name_it_stands(tmp_path: Path, field: str) -> None:
    told = CREDENTIALS[0]
    given = {told: 1, "city": 2} if field == "arguments" else told
    one(tmp_path, call=work.call("c1", **{field: given}))
    assert work.bodies(tmp_path)[0][field] == ([MARKER, "city"] if field == "arguments" else MARKER)


def test_a_begin_whose_sync_was_interrupted_is_not_waited_for_and_the_others_are(tmp_path: Path) -> None:
    interrupted = threading.Event()

    def sync(descriptor: int) -> None:
        if interrupted.is_set():
            interrupted.clear()
            raise KeyboardInterrupt
        os.fdatasync(descriptor)

    with opened(tmp_path, disk=Disk(sync=sync)) as audit:
        assert audit.begin(work.call("c1"), work.FACTS)
        interrupted.set()
        with pytest.raises(KeyboardInterrupt):
            audit.begin(work.call("c2"), work.FACTS)
        assert not audit.settle(0.0), "the first one still runs"
        audit.end(work.call("c1"), work.result("c1"), None)
        assert audit.settle(0.0)
    assert work.verdict(tmp_path).ok


def test_a_fork_leaves_what_its_parent_began_and_owes_to_the_parent(tmp_path: Path) -> None:
    """Otherwise it would wait for calls that never end there, and write their ends a second time."""
    is_full = False

    def write(descriptor: int, data: bytes) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return os.write(descriptor, data)

    with opened(tmp_path, disk=Disk(write=write)) as audit:
        assert audit.begin(work.call("c1"), work.FACTS)
        assert audit.begin(work.call("c2"), work.FACTS)
        is_full = True
        audit.end(work.call("c2"), work.result("c2"), None)
        is_full = False
        child = os.fork()
        if child == 0:
            status = 1
            with suppress(BaseException):
                assert audit.settle(0.0)
                audit.end(work.call("c1"), work.result("c1"), None)  # by the thread that forked
                assert audit.begin(work.call("c3"), work.FACTS)
                assert not audit.settle(0.0)
                audit.end(work.call("c3"), work.result("c3"), None)
                assert audit.settle(0.0)
                audit.close()
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not audit.settle(0.0)
        audit.end(work.call("c1"), work.result("c1"), None)
        assert audit.settle(0.0)
    ends = [body["call"] for body in work.bodies(tmp_path) if body["what"] == "end"]
    assert sorted(ends) == ["c1", "c1", "c2", "c3"]
    assert work.verdict(tmp_path).ok


def test_a_begin_that_could_not_be_recorded_is_not_waited_for(tmp_path: Path) -> None:
    def sync(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with opened(tmp_path, disk=Disk(sync=sync)) as audit:
        assert not audit.begin(work.call("c1"), work.FACTS)
        assert audit.settle(0.0)


def test_a_name_that_is_no_text_is_recorded_as_one(tmp_path: Path) -> None:
    one(tmp_path, call=work.call(arguments={1: "a", CREDENTIALS[0]: "b"}))
    assert work.bodies(tmp_path)[0]["arguments"] == ["1", MARKER]


def test_arguments_that_are_no_object_are_recorded_and_not_raised(tmp_path: Path) -> None:
    one(tmp_path, call=work.call(arguments=[1, CREDENTIALS[0], {"a": 2}]))
    assert work.bodies(tmp_path)[0]["arguments"] == ["1", MARKER, "{'a': 2}"]


@pytest.mark.parametrize(
    "text", ["AKIA", "sha256:" + "ab" * 32, "AKIAABCDEFGHIJKLMNOPQ", "x" * 5000, "ghp_short"]
)
def test_what_only_resembles_a_credential_stays(tmp_path: Path, text: str) -> None:
    one(tmp_path, call=replace(work.call(), caller=text))
    assert work.bodies(tmp_path)[0]["caller"] == text


@pytest.mark.requirement("executable.call.audit")
def test_names_and_a_digest_of_arguments_are_recorded_values_are_not(tmp_path: Path) -> None:
    for id, arguments in (
        ("a", {"city": "Oslo-4711"}),
        ("b", {"city": "Oslo-4711"}),
        ("c", {"city": "Rome"}),
    ):
        one(tmp_path, id, call=work.call(id, arguments=arguments))
    first, second, third = (body for body in work.bodies(tmp_path) if body["what"] == "begin")
    assert first["arguments"] == ["city"]
    assert first["arguments_digest"] == second["arguments_digest"] != third["arguments_digest"]
    assert b"Oslo-4711" not in b"".join(path.read_bytes() for path in work.segment_paths(tmp_path))


@pytest.mark.requirement("executable.call.audit")
def test_a_schema_query_and_a_call_are_two_records(tmp_path: Path) -> None:
    """One discovery, one call: path, digest, exit status, duration and output size of each."""
    with opened(tmp_path) as audit:
        assert audit.note(
            "",
            "probe",
            {"path": "/bin/weather", "digest": "sha256:bb", "exit": 0, "ms": 3.5, "stdout_bytes": 120},
        )
        assert audit.begin(work.call(), work.FACTS)
        run = work.ran("/bin/weather", stdout_bytes=9, duration_ms=8.0)
        audit.end(work.call(), work.result(runs=(run,)), work.tool("executable"))
    probe, begin, end = work.bodies(tmp_path)
    assert (probe["what"], probe["path"], probe["exit"], probe["stdout_bytes"]) == (
        "probe",
        "/bin/weather",
        0,
        120,
    )
    assert begin["runs"] == "sha256:aa"
    assert end["run"]["argv"] == ["/bin/weather"]
    assert (end["run"]["exit"], end["run"]["ms"], end["run"]["stdout_bytes"]) == (0, 8.0, 9)


@pytest.mark.requirement("skill.run.audit")
def test_a_call_with_a_resolver_is_two_records_linked_by_call_id(tmp_path: Path) -> None:
    runs = (
        work.ran("/bin/git", "rev-parse", what="resolver", exit_status=0, env_names=("EDITOR",)),
        work.ran("/bin/git", "log", exit_status=3, env_names=("EDITOR",), duration_ms=4.0),
    )
    one(tmp_path, runs=runs, error=work.failed("exit status 3"))
    begin, resolver, end = work.bodies(tmp_path)
    assert [body["call"] for body in (begin, resolver, end)] == ["c1"] * 3
    assert (resolver["what"], resolver["run"]["argv"]) == ("resolver", ["/bin/git", "rev-parse"])
    assert resolver["run"]["env"] == ["EDITOR"]
    assert (end["run"]["argv"], end["run"]["exit"], end["run"]["ms"]) == (["/bin/git", "log"], 3, 4.0)
    assert end["kind"] == "failed"


@pytest.mark.requirement("rye.yaml.cost")
def test_the_estimated_cost_stands_in_the_record(tmp_path: Path) -> None:
    one(tmp_path, tool=work.tool("rye", cost={"per_invocation": 0.01, "currency": "USD"}))
    text = json.dumps(work.bodies(tmp_path)[-1], separators=(",", ":"))
    assert '"cost":0.01,"currency":"USD"' in text


def test_a_cost_in_words_is_no_number(tmp_path: Path) -> None:
    one(tmp_path, tool=work.tool("capability", cost="high"))
    end = work.bodies(tmp_path)[-1]
    assert end["cost_estimate"] == "high"
    assert "cost" not in end


@pytest.mark.battery("J06")
@pytest.mark.parametrize(
    "kind", [Kind.DENIED, Kind.INVALID_ARGUMENTS, Kind.UNKNOWN_TOOL, Kind.NEEDS_APPROVAL]
)
def test_j06_a_refused_call_is_there_with_its_reason_before_the_reply(tmp_path: Path, kind: Kind) -> None:
    with opened(tmp_path) as audit:
        audit.begin(work.call(), work.FACTS)
        audit.end(work.call(), work.result(error=work.failed("the allowlist forbids it", kind)))
        # Not closed, not synced: in the kernel when ``end`` has returned.
        end = work.bodies(tmp_path)[-1]
        assert (end["ok"], end["kind"], end["error"]) == (False, kind.value, "the allowlist forbids it")


@pytest.mark.battery("J08")
def test_j08_a_duration_is_never_negative(tmp_path: Path) -> None:
    one(tmp_path, spent=Spent(duration_ms=-5.0), runs=(work.ran(duration_ms=-1.0),))
    end = work.bodies(tmp_path)[-1]
    assert (end["ms"], end["run"]["ms"]) == (0.0, 0.0)


# -- injection ----------------------------------------------------------------------------------------------


@pytest.mark.battery("J05")
def test_j05_hostile_texts_make_one_record_each(tmp_path: Path) -> None:
    call = work.call(
        HOSTILE, tool=HOSTILE, caller=HOSTILE, arguments={HOSTILE: HOSTILE}, conversation=HOSTILE
    )
    with opened(tmp_path) as audit:
        assert audit.begin(call, work.FACTS)
        run = Run(argv=(HOSTILE, "b\udcff"), cwd=HOSTILE, env_names=(HOSTILE,), note=HOSTILE)
        audit.end(call, work.result(HOSTILE, error=work.failed(HOSTILE), runs=(run,)), work.tool())
        assert audit.note(HOSTILE, "approval", {HOSTILE: [HOSTILE, {"x": HOSTILE}]})
    assert [entry.what for entry in work.records(tmp_path)] == ["begin", "end", "approval"]
    assert work.verdict(tmp_path).ok
    (day,) = (tmp_path / "audit").iterdir()
    (line,) = day.read_text(encoding="utf-8").splitlines()  # also by U+2028
    assert "\x1b" not in line
    assert json.loads(line)["argv"][0].startswith("a\nb")


@given(st.text(st.characters(), max_size=30), st.recursive(st.none() | st.text(), st.lists, max_leaves=4))
def test_no_text_breaks_a_record(tmp_path_factory: pytest.TempPathFactory, text: str, value: Any) -> None:
    state = tmp_path_factory.mktemp("state")
    call = work.call(text, tool=text, arguments={text: value})
    with opened(state, disk=Disk(sync=lambda descriptor: None)) as audit:
        assert audit.begin(call, work.FACTS)
        audit.end(call, work.result(text, error=work.failed(text), runs=(work.ran(text),)))
    assert [entry.what for entry in work.records(state)] == ["begin", "end"]


def test_long_texts_and_lists_are_cut_and_say_so(tmp_path: Path) -> None:
    argv = ("x" * 5000, *(str(number) for number in range(500)))
    names = {f"n{number}": number for number in range(500)}
    one(tmp_path, call=work.call(arguments=names), error=work.failed("y" * 9000), runs=(work.ran(*argv),))
    begin, end = work.bodies(tmp_path)
    assert len(begin["arguments"]) == 64
    assert end["error"] == "y" * TEXT_CHARS_MAX + "… (9,000 characters)"
    assert end["run"]["argv"][-1] == "… 437 more"
    assert end["run"]["argv"][0].endswith("… (5,000 characters)")


def test_integers_beyond_64_bits_are_fine(tmp_path: Path) -> None:
    one(tmp_path, call=work.call(arguments={"n": 2**80}))
    assert len(work.bodies(tmp_path)) == 2


# -- secrets ------------------------------------------------------------------------------------------------

SECRETS = {
    "OAI_API_KEY": "sk-4711-abc",
    "GITHUB_TOKEN": "ghp_secret",
    "PLAIN": "handed-over",
    "HOME": "/root",
}


@pytest.mark.battery("D07")
@pytest.mark.requirement("manifest.audit.env-keys", "manifest.audit.redact")
def test_d07_names_of_variables_are_recorded_and_their_values_nowhere(tmp_path: Path) -> None:
    call = work.call(arguments={"q": "ghp_secret"})
    tool = work.tool(env=("GITHUB_TOKEN",))
    run = work.ran(
        "/bin/x", "--key=sk-4711-abc", "ghp_secret", "handed-over",
        cwd="/tmp/ghp_secret", env_names=("GITHUB_TOKEN", "PLAIN", "HOME"), note="ghp_secret",
    )  # fmt: skip
    with opened(tmp_path, variables=SECRETS) as audit:
        audit.begin(call, work.FACTS)
        result = work.result(
            error=work.failed("could not use ghp_secret"), runs=(run,), notes=("ghp_secret",)
        )
        audit.end(call, result, tool)
        audit.note("c1", "approval", {"why": ["ghp_secret"]})
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for value in ("sk-4711-abc", "ghp_secret", "handed-over"):
        assert value.encode() not in written
    start = work.bodies(tmp_path)[1]["run"]
    assert start["argv"] == ["/bin/x", "--key=***REDACTED***", "***REDACTED***", "***REDACTED***"]
    assert start["env"] == ["GITHUB_TOKEN", "PLAIN", "HOME"]
    (day,) = (tmp_path / "audit").iterdir()
    assert json.loads(day.read_text(encoding="utf-8"))["envKeys"] == ["GITHUB_TOKEN"]


def test_what_a_start_is_told_in_depends_on_what_it_was_handed_however_often_it_is_told(
    tmp_path: Path,
) -> None:
    handed = work.ran("/bin/x", "handed-over", env_names=("PLAIN",), note="handed-over")
    plain = work.ran("/bin/x", "handed-over", note="handed-over")
    with opened(tmp_path, variables=SECRETS) as audit:
        for run in (plain, handed, plain, handed):
            audit.begin(work.call(), work.FACTS)
            audit.end(work.call(), work.result(runs=(run,)), work.tool())
    told = [body["run"] for body in work.bodies(tmp_path) if body["what"] == "end"]
    assert [start["argv"][1] for start in told] == ["handed-over", MARKER] * 2
    assert [start["note"] for start in told] == ["handed-over", MARKER] * 2


def test_a_secret_that_the_cut_goes_through_is_gone_as_well(tmp_path: Path) -> None:
    long = "x" * (TEXT_CHARS_MAX - 5) + "ghp_secret"
    with opened(tmp_path, variables=SECRETS) as audit:
        audit.begin(work.call(), work.FACTS)
        run = work.ran("/bin/x", long, note=long)
        audit.end(work.call(), work.result(error=work.failed(long), runs=(run,), notes=(long,)), work.tool())
        audit.note("c1", "approval", {"why": long})
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"xghp_" not in written


def test_names_of_arguments_cannot_push_the_facts_out_of_a_record(tmp_path: Path) -> None:
    call = work.call(arguments={f"{number}{'x' * 100_000}": 1 for number in range(4)}, caller="ann")
    one(tmp_path, call=call)
    begin = work.bodies(tmp_path)[0]
    assert begin["too_long"] > 400_000
    assert "arguments" not in begin
    facts = ("tool", "key", "door", "caller", "catalog", "runs")
    assert [begin[name] for name in facts] == [
        "get_time", "manifest:t/get_time", "test", "ann", "1", "sha256:aa",
    ]  # fmt: skip
    assert begin["arguments_digest"]


# -- the day file -------------------------------------------------------------------------------------------

LINE_KEYS = ["ts", "tool", "argv", "cwd", "exit", "ms", "stdoutBytes", "stderrBytes", "truncated", "envKeys"]


@pytest.mark.requirement("manifest.audit.record")
def test_the_day_file_has_a_line_for_each_call_in_a_file_per_utc_day(tmp_path: Path) -> None:
    moments = iter([1_800_000_000.0 + 86_400 * (number // 6) for number in range(40)])
    with opened(tmp_path, clock=lambda: next(moments)) as audit:
        for id, run in (("a", work.ran(stdout_bytes=3)), ("b", work.ran(exit_status=-1)), ("c", work.ran())):
            audit.begin(work.call(id), work.FACTS)
            audit.end(work.call(id), work.result(id, runs=(run,)), work.tool())
        audit.end(work.call("d"), work.result("d", runs=(work.ran(),)), work.tool("skill"))
    days = sorted((tmp_path / "audit").iterdir())
    assert [path.name for path in days] == ["2027-01-15.ndjson", "2027-01-16.ndjson"]
    lines = [json.loads(line) for path in days for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 3
    assert [list(line) for line in lines] == [LINE_KEYS] * 3
    timed_out = lines[1]
    assert timed_out["exit"] == -1
    assert lines[0]["stdoutBytes"] == 3
    assert days[0].stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("manifest.audit.best-effort")
def test_a_day_file_that_cannot_be_written_changes_no_result_and_warns_once(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("not a folder", encoding="utf-8")
    told: list[str] = []
    with opened(tmp_path, told=told.append) as audit:
        for id in "abc":
            audit.begin(work.call(id), work.FACTS)
            given = work.result(id, runs=(work.ran(),))
            assert audit.end(work.call(id), given, work.tool()) == given
    assert len(told) == 1
    assert "day file" in told[0]
    assert len(work.bodies(tmp_path)) == 6


def test_the_day_file_can_be_switched_off(tmp_path: Path) -> None:
    with opened(tmp_path, day_file=False) as audit:
        audit.begin(work.call(), work.FACTS)
        audit.end(work.call(), work.result(runs=(work.ran(),)), work.tool())
    assert not (tmp_path / "audit").exists()


# -- a journal that cannot be written -----------------------------------------------------------------------


class Switch:
    """A disk that is full, or not."""

    def __init__(self) -> None:
        self.full = False

    def write(self, descriptor: int, data: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, data)


@pytest.mark.battery("J04", "K03")
def test_j04_nothing_begins_on_a_full_disk_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = Switch()
    with opened(tmp_path, disk=Disk(write=disk.write)) as audit:
        assert audit.begin(work.call("running"), work.FACTS)
        disk.full = True
        assert not audit.begin(work.call("refused"), work.FACTS)
        assert "no space left" in str(audit.trouble)
        given = work.result("running")
        marked = audit.end(work.call("running"), given)
        assert marked.ok
        assert "could not be written" in marked.notes[-1]
        assert not audit.begin(work.call("refused too"), work.FACTS)
        disk.full = False
        assert audit.begin(work.call("later"), work.FACTS)
        assert audit.trouble is None
        audit.end(work.call("later"), work.result("later"))
    assert [(entry.what, entry.call) for entry in work.records(tmp_path)] == [
        ("begin", "running"),
        ("end", "running"),
        ("begin", "later"),
        ("end", "later"),
    ]
    assert work.verdict(tmp_path).ok
    assert reading.interrupted(work.journal(tmp_path)) == []


def test_an_end_that_is_owed_is_written_at_close(tmp_path: Path) -> None:
    disk = Switch()
    with opened(tmp_path, disk=Disk(write=disk.write)) as audit:
        audit.begin(work.call(), work.FACTS)
        disk.full = True
        audit.end(work.call(), work.result())
        disk.full = False
    assert [entry.what for entry in work.records(tmp_path)] == ["begin", "end"]


def test_a_call_in_flight_is_not_interrupted_because_the_disk_was_full(tmp_path: Path) -> None:
    disk = Switch()
    with opened(tmp_path, disk=Disk(write=disk.write)) as audit:
        audit.begin(work.call("long"), work.FACTS)
        disk.full = True
        assert not audit.begin(work.call("refused"), work.FACTS)
        disk.full = False
        assert audit.begin(work.call("other"), work.FACTS)
        assert reading.interrupted(work.journal(tmp_path)) == []


# -- interrupted --------------------------------------------------------------------------------------------


@pytest.mark.battery("K06")
def test_k06_a_begin_without_an_end_reads_as_interrupted_once_its_host_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as audit:
        audit.begin(work.call("left"), work.FACTS)
        audit.begin(work.call("done"), work.FACTS)
        audit.end(work.call("done"), work.result("done"))
        assert reading.interrupted(work.journal(tmp_path)) == []  # the host lives: it is running
    assert [entry.call for entry in reading.interrupted(work.journal(tmp_path))] == ["left"]
    with opened(tmp_path) as audit:  # also when another host has taken the segment over
        audit.begin(work.call("new"), work.FACTS)
        assert [entry.call for entry in reading.interrupted(work.journal(tmp_path))] == ["left"]


@pytest.mark.battery("K06")
def test_k06_a_killed_host_leaves_interrupted_calls_and_no_others(tmp_path: Path) -> None:
    said = work.run_and_kill(tmp_path, after_lines=25, prefix="k", threads=6)
    lost = {entry.call for entry in reading.interrupted(work.journal(tmp_path))}
    assert lost.isdisjoint(said.ended)
    entries = work.records(tmp_path)
    begun = {entry.call for entry in entries if entry.what == "begin"}
    assert lost == begun - {entry.call for entry in entries if entry.what == "end"}
    assert said.begun <= begun


def test_a_call_that_ends_after_a_rotation_is_not_interrupted(tmp_path: Path) -> None:
    with opened(tmp_path) as audit:
        audit.begin(work.call("long"), work.FACTS)
        audit._segments.rotate()
        assert reading.interrupted(work.journal(tmp_path)) == []
        audit.end(work.call("long"), work.result("long"))
    assert reading.interrupted(work.journal(tmp_path)) == []


def test_a_call_of_a_living_host_that_gave_a_segment_up_is_not_interrupted(tmp_path: Path) -> None:
    broken = {"now": False}

    def sync(descriptor: int) -> None:
        if broken["now"]:
            broken["now"] = False
            raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path, disk=Disk(sync=sync), told=lambda text: None) as audit:
        audit.begin(work.call("long"), work.FACTS)
        broken["now"] = True
        assert not audit.begin(work.call("refused"), work.FACTS)
        assert audit.begin(work.call("other"), work.FACTS)
        assert reading.interrupted(work.journal(tmp_path)) == []
        audit.end(work.call("long"), work.result("long"))
    assert "long" not in {entry.call for entry in reading.interrupted(work.journal(tmp_path))}


def test_repairs_are_told_to_the_log_where_nobody_else_listens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one(tmp_path)
    (path,) = work.segment_paths(tmp_path)
    with path.open("ab") as file:
        file.write(b"half")
    with opened(tmp_path) as audit:
        assert audit.begin(work.call("b"), work.FACTS)
    assert "4 bytes of an unfinished record" in caplog.text


def test_every_call_of_many_threads_has_one_begin_and_one_end(tmp_path: Path) -> None:
    with opened(tmp_path) as audit:

        def many(thread: int) -> None:
            for number in range(50):
                call = work.call(f"{thread}-{number}")
                assert audit.begin(call, work.FACTS)
                audit.end(call, work.result(call.id))

        threads = [threading.Thread(target=many, args=(thread,)) for thread in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(work.WAIT_S)
    entries = work.records(tmp_path)
    for what in ("begin", "end"):
        calls = [entry.call for entry in entries if entry.what == what]
        assert len(calls) == len(set(calls)) == 800
    assert work.verdict(tmp_path).ok
