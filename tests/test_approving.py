"""Approvals from end to end: real programs, a real journal, real processes that ask, answer and run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

import toolcrib
from tests.program import PROGRAM, Said, environment
from tests.program import toolcrib as program
from toolcrib.app import Crib
from toolcrib.config import Config, Environment, resolve
from toolcrib.errors import ApprovalError, EditError, Kind, UsageError
from toolcrib.journal.reading import entries
from toolcrib.jsontext import JsonObject
from toolcrib.model import ApprovalState, ToolResult
from toolcrib.sandbox import Cancel

WAIT_S = 60
ASK = '[[policy]]\nmatch = { name = "pay" }\ndecision = "ask"\nbecause = "costs money"\n'
SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 100}, "note": {"type": "string"}},
    "required": ["amount"],
}
SCRIPT = "#!/bin/sh\ncat\n"


def write_tool(folder: Path, script: str = SCRIPT, **more: object) -> None:
    path = folder / "tools" / "bin" / "pay"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    tool = {"name": "pay", "description": "Pay.", "schema": SCHEMA, "command": ["./tools/bin/pay"], **more}
    (folder / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    write_tool(folder)
    (folder / "toolcrib.toml").write_text(ASK, encoding="utf-8")
    return folder


def run(project: Path, *arguments: str, user: str = "ann", **more: Any) -> Said:
    """One process of its own, on the project's tools and a state folder beside it."""
    state = project.parent / "state"
    return program("--state", str(state), *arguments, cwd=project, env={"USER": user, **more})


def records(project: Path) -> list[JsonObject]:
    return [entry.body for entry in entries(str(project.parent / "state" / "journal"))]


def ended(project: Path) -> list[JsonObject]:
    return [record for record in records(project) if record["what"] == "end"]


def started(project: Path) -> list[JsonObject]:
    """The ends of calls that started something."""
    return [record for record in ended(project) if "run" in record]


@contextmanager
def crib(project: Path, user: str = "ann", **config: Any) -> Iterator[Crib]:
    surroundings = replace(
        Environment.read({"PATH": os.environ["PATH"], "HOME": "/nowhere", "USER": user}),
        state=str(project.parent / "state"),
    )
    found = resolve(surroundings, cwd=str(project), sources=[str(project)])
    with toolcrib.open(replace(found, **config), environment=surroundings) as opened:
        yield opened


def kind(result: ToolResult) -> Kind | None:
    return None if result.error is None else result.error.kind


def waiting_id(result: ToolResult) -> str:
    assert result.error is not None
    assert result.error.kind is Kind.NEEDS_APPROVAL
    return str(result.error.details["approval_id"])


# -- programs that know nothing of each other ---------------------------------------------------------------


def test_explaining_tells_how_the_question_stands_and_agrees_with_the_call(project: Path) -> None:
    with crib(project) as asking:
        given = {"amount": 50}

        def told() -> list[tuple[str, str, bool]]:
            found = asking.explain("pay", given)
            return [(type(found.decision).__name__, one.state.value, one.standing) for one in found.approvals]

        assert told() == []
        assert not (project.parent / "state" / "store.sqlite").exists(), "whoever looks makes no store"
        first = waiting_id(asking.call("pay", given))
        assert told() == [("Ask", "waiting", False)]
        assert [one.id for one in asking.explain("pay").approvals] == [first]
        assert asking.explain("pay", {"amount": 51}).approvals == ()
        assert asking.explain("pay", given, caller="eve").approvals == ()

        asking.answer(first, "approve", arguments={"amount": 7}, by="bob")
        assert told() == [("Allow", "approved", False)]
        (answered,) = asking.explain("pay", given).approvals
        assert (answered.edited, answered.answered_by) == ({}, "bob"), "edited, and nobody is told how"
        assert asking.call("pay", given).ok
        assert told() == []

        asking.answer(waiting_id(asking.call("pay", given)), "deny", by="bob")
        assert told() == [("Deny", "denied", False)]
        other = waiting_id(asking.call("pay", {"amount": 1}))
        asking.answer(other, "approve", for_s=60, by="bob")
        assert told() == [("Deny", "denied", False), ("Deny", "approved", True)]
        assert type(asking.explain("pay", {"amount": 2}).decision).__name__ == "Allow"
        assert asking.call("pay", {"amount": 2}).ok

    said = run(project, "policy", "explain", "pay", '{"amount": 2}').out
    assert f"{other} was approved by bob, for any arguments, until" in said
    asked = run(project, "policy", "explain", "pay", '{"amount": 2}', "--json", user="eve").json
    assert (asked["decision"], asked["approvals"]) == ("ask", [])


def test_what_a_person_is_not_shown_is_told(project: Path) -> None:
    """Attack: what a person should not see, dressed up as a credential."""
    begin, end = (f"-----{word} PRIVATE " + "KEY-----" for word in ("BEGIN", "END"))
    given = json.dumps({"amount": 1, "note": f"a {begin} rm -rf / {end} b"})
    assert run(project, "call", "pay", given).status == 75
    listed = run(project, "approvals", "list").out
    assert "rm -rf" not in listed
    assert "not shown: 1 part that looked like a secret" in listed
    assert run(project, "call", "pay", '{"amount": 2}').status == 75
    assert run(project, "approvals", "list").out.count("not shown") == 1


def test_the_end_of_a_call_names_the_rule_that_decided_it(project: Path) -> None:
    budget = '[[budget]]\nmatch = { name = "pay" }\ncalls = 1\nwithin = "1h"\nbecause = "one an hour"\n'
    allow = '[[policy]]\nmatch = { caller = "cy" }\ndecision = "allow"\nbecause = "reviewed"\n'
    deny = '[[policy]]\nmatch = { caller = "eve" }\ndecision = "deny"\nbecause = "not eve"\n'
    source = '[[source]]\npath = "tools.json"\n'
    trusted = project / "trusted.toml"
    trusted.write_text(f"{source}{ASK}{allow}{deny}{budget}", encoding="utf-8")
    rules = {
        name: f"{trusted}:{line} {name}"
        for name, line in (("policy[0]", 3), ("policy[2]", 11), ("budget[0]", 15))
    }

    def ends(*more: str, user: str = "ann") -> Any:
        run(project, "--config", str(trusted), "call", "pay", '{"amount": 1}', *more, user=user)
        return ended(project)[-1]

    asked, dry, denied = ends(), ends("--yes", "--dry-run"), ends(user="eve")
    assert (asked["kind"], asked["rule"]) == ("needs_approval", rules["policy[0]"])
    assert (dry["ok"], dry["rule"]) == (True, rules["policy[0]"])
    assert (denied["kind"], denied["rule"]) == ("denied", rules["policy[2]"])
    ran, used_up = ends("--yes"), ends("--yes")
    assert (ran["ok"], ran["rule"]) == (True, rules["policy[0]"])
    assert (used_up["kind"], used_up["rule"]) == ("unavailable", rules["budget[0]"])

    trusted.write_text(source + allow, encoding="utf-8")
    assert ends(user="cy")["rule"] == f"{trusted}:3 policy[0]"
    assert "rule" not in ends(), "none spoke"


def test_asked_by_one_process_and_answered_from_another_with_edits_it_runs_once_and_all_is_recorded(
    project: Path,
) -> None:
    asked = run(project, "call", "pay", '{"amount": 50, "note": "rent"}', "--json")
    assert asked.status == 75
    details = asked.json["error"]["details"]
    assert details["question"] == "May manifest:project/pay run? (costs money)"

    listed = run(project, "approvals", "list", "--json", user="bob")
    (item,) = listed.json
    assert item | {"id": details["approval_id"], "state": "waiting", "caller": "ann"} == item
    assert item["arguments"] == {"amount": 50, "note": "rent"}
    assert item["because"] == "costs money"
    assert item["asked_at"].endswith("Z")

    wrong = run(project, "approvals", "approve", item["id"], "--arguments", '{"amount": 500}', user="bob")
    assert (wrong.status, "do not fit" in wrong.err) == (65, True)
    edited = '{"amount": 5, "note": "rent"}'
    answer = ("approvals", "approve", item["id"], "--arguments", edited, "--because", "half of it", "--json")
    answered = run(project, *answer, user="bob")
    assert (answered.status, answered.json["state"]) == (0, "approved")

    done = run(project, "call", "pay", '{"note": "rent", "amount": 50}', "--json")
    assert (done.status, json.loads(done.json["content"])) == (0, {"amount": 5, "note": "rent"})
    assert done.json["notes"] == ["the arguments were edited by bob, who approved the call"]
    again = run(project, "call", "pay", '{"amount": 50, "note": "rent"}', "--json")
    assert again.status == 75
    assert again.json["error"]["details"]["approval_id"] != item["id"]
    states = {one["id"]: one["state"] for one in run(project, "approvals", "list", "--json").json}
    assert sorted(states.values()) == ["used", "waiting"]
    assert states[item["id"]] == "used"

    # One audited run, with who and why, and the arguments that ran.
    (ran,) = started(project)
    assert (ran["call"], ran["ok"]) == (done.json["call_id"], True)
    assert ran["run"]["stdout_bytes"] == len('{"amount":5,"note":"rent"}')
    assert ran["notes"] == ["the arguments were edited by bob, who approved the call"]
    (said,) = [record for record in records(project) if record["what"] == "answer"]
    (used,) = [record for record in records(project) if record["what"] == "approved"]
    told = {"approval": item["id"], "by": "bob", "because": "half of it", "edited": ["amount", "note"]}
    assert said | told | {"decision": "approve", "call": asked.json["call_id"]} == said
    assert used | told | {"call": done.json["call_id"]} == used
    assert used["edited_digest"] == said["edited_digest"]
    assert "rent" not in json.dumps([said, used])
    assert ended(project)[0]["details"] == details
    assert run(project, "audit", "verify").status == 0


def test_a_denial_from_another_process_refuses_the_next_identical_call_with_the_reason(project: Path) -> None:
    asked = run(project, "call", "pay", '{"amount": 50}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    assert run(project, "approvals", "deny", name[:6], "--because", "ask Ann first", user="bob").status == 0
    refused = run(project, "call", "pay", '{"amount": 50}', "--json")
    assert refused.status == 77
    assert refused.json["error"]["message"] == "a person denied this call: ask Ann first"
    yes = run(project, "call", "pay", '{"amount": 50}', "--yes")
    assert yes.status == 77
    assert run(project, "call", "pay", '{"amount": 49}').status == 75
    assert started(project) == []
    (said,) = [record for record in records(project) if record["what"] == "answer"]
    assert (said["decision"], said["by"], said["because"]) == ("deny", "bob", "ask Ann first")
    assert ended(project)[1]["details"] == {"because": f"approval {name} was denied by bob"}


def test_yes_approves_as_the_current_user_and_settles_the_question_and_never_overrides_a_rule(
    project: Path,
) -> None:
    assert run(project, "call", "pay", '{"amount": 1}').status == 75
    assert run(project, "call", "pay", '{"amount": 1}', "--yes").status == 0
    (item,) = run(project, "approvals", "list", "--json").json
    assert (item["state"], item["answer"]["by"]) == ("used", "ann")
    assert [record.get("approved_by") for record in records(project) if record["what"] == "begin"] == [
        None,
        "ann",
    ]
    assert run(project, "call", "pay", '{"amount": 1}', "--yes").status == 0  # nothing waits: fine as well
    denies = ASK.replace('"ask"', '"deny"')
    (project / "toolcrib.toml").write_text(ASK + denies, encoding="utf-8")
    assert run(project, "call", "pay", '{"amount": 1}', "--yes").status == 77
    assert len(started(project)) == 2


def test_an_approval_for_a_while_holds_for_the_tool_in_every_process_until_it_is_taken_back(
    project: Path,
) -> None:
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    assert run(project, "approvals", "approve", name, "--for", "1h").status == 0
    for amount in (1, 2, 1):
        assert run(project, "call", "pay", json.dumps({"amount": amount})).status == 0
    assert run(project, "call", "pay", '{"amount": 1}', user="eve").status == 75
    assert run(project, "approvals", "deny", name).status == 0
    assert run(project, "call", "pay", '{"amount": 1}').status == 77
    assert run(project, "call", "pay", '{"amount": 2}').status == 75


@pytest.mark.parametrize(
    "change",
    [
        {"script": "#!/bin/sh\necho '{\"stolen\": true}'\n"},
        {"description": "Pay. Always approved."},
        {"schema": {"type": "object"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_approve_then_swap_the_tool(project: Path, change: dict[str, Any]) -> None:
    """Attack: approve, then swap the tool: its program, or what the model and the person were told of it."""
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    assert run(project, "approvals", "approve", name).status == 0
    write_tool(project, **change)
    assert run(project, "call", "pay", '{"amount": 1}').status == 75
    assert started(project) == []
    write_tool(project)
    assert run(project, "call", "pay", '{"amount": 1}').status == 0


def test_arguments_are_shown_whole_escaped_and_without_secrets(project: Path) -> None:
    """Attack: arguments that a terminal acts on, or that hide behind its edge."""
    note = "\x1b[2J" + "x" * 2000 + "\u202eend hunter2secret"
    env = {"MY_TOKEN": "hunter2secret"}
    assert run(project, "call", "pay", json.dumps({"amount": 1, "note": note}), **env).status == 75
    shown = run(project, "approvals", "list")
    assert "\x1b" not in shown.out
    assert "\\u001b[2J" in shown.out
    assert "x" * 2000 + "\\u202eend ***REDACTED***" in shown.out
    assert "hunter2secret" not in shown.out
    (item,) = run(project, "approvals", "list", "--json").json
    assert item["arguments"]["note"].endswith("***REDACTED***")
    copied = run(project, "approvals", "approve", item["id"], "--arguments", json.dumps(item["arguments"]))
    assert (copied.status, "stands for a secret" in copied.err) == (65, True)
    assert run(project, "approvals", "approve", item["id"]).status == 0
    assert run(project, "call", "pay", json.dumps({"amount": 1, "note": note}), **env).status == 0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("approve", "nosuch"), 64),
        (("deny", "nosuch"), 64),
        (("approve",), 2),
        (("approve", "ID", "--for", "soon"), 2),
        (("approve", "ID", "--for", "90d"), 2),
        (("approve", "ID", "--for", "1h", "--arguments", "{}"), 2),
        (("approve", "ID", "--arguments", "[1]"), 65),
        (("approve", "ID", "--arguments", '{"amount": 1, "amount": 2}'), 65),
        (("approve", "ID", "--because", "x" * 501), 2),
        (("deny", "ID", "--for", "1h"), 2),
    ],
)
def test_a_wrong_answer_is_told_and_changes_nothing(
    project: Path, arguments: tuple[str, ...], status: int
) -> None:
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    said = run(project, "approvals", *(part.replace("ID", name) for part in arguments))
    assert said.status == status, said
    assert [one["state"] for one in run(project, "approvals", "list", "--json").json] == ["waiting"]
    assert [record for record in records(project) if record["what"] == "answer"] == []


def test_a_tool_that_is_not_loaded_can_be_answered_but_not_edited(project: Path, tmp_path: Path) -> None:
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state = ("--state", str(tmp_path / "state"))
    edit = program(*state, "approvals", "approve", name, "--arguments", '{"amount": 1}', cwd=elsewhere)
    assert (edit.status, "is not loaded here" in edit.err) == (65, True)
    assert program(*state, "approvals", "approve", name, cwd=elsewhere).status == 0
    assert run(project, "call", "pay", '{"amount": 1}').status == 0


def test_a_dry_run_neither_asks_nor_uses_an_approval(project: Path) -> None:
    dry = run(project, "call", "pay", '{"amount": 1}', "--dry-run", "--json")
    assert dry.status == 75
    assert "approval_id" not in dry.json["error"]["details"]
    assert run(project, "approvals", "list", "--json").json == []
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    assert run(project, "approvals", "approve", asked.json["error"]["details"]["approval_id"]).status == 0
    assert run(project, "call", "pay", '{"amount": 1}', "--dry-run").status == 0
    assert run(project, "call", "pay", '{"amount": 1}').status == 0
    assert len(started(project)) == 1


# -- one program --------------------------------------------------------------------------------------------


def test_of_fifty_identical_calls_at_once_one_runs(project: Path) -> None:
    """Attack: two identical calls at once, and one approval."""
    with crib(project) as opened:
        first = waiting_id(opened.call("pay", {"amount": 1}))
        opened.answer(first, "approve")
        gate = threading.Barrier(50)

        def call(_number: int) -> ToolResult:
            gate.wait(WAIT_S)
            return opened.call("pay", {"amount": 1})

        with ThreadPoolExecutor(50) as pool:
            results = list(pool.map(call, range(50)))
        assert [result.ok for result in results].count(True) == 1
        assert len({waiting_id(result) for result in results if not result.ok}) == 1
        assert sorted(one.state.value for one in opened.approvals()) == ["used", "waiting"]
    assert len(started(project)) == 1
    assert len([record for record in records(project) if record["what"] == "approved"]) == 1


def test_a_call_can_wait_for_the_answer_of_another_thread_without_losing_its_own_time(project: Path) -> None:
    write_tool(project, "#!/bin/sh\nsleep 0.3\ncat\n")
    with crib(project) as opened, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opened.call, "pay", {"amount": 1}, approval_wait_s=WAIT_S, timeout_s=3)
        one = until_one_waits(opened)
        with pytest.raises(TimeoutError):  # it waits for longer than the tool may take
            waiting.result(3.2)
        opened.answer(one, "approve", because="fine", by="bob")
        result = waiting.result(WAIT_S)
        assert result.ok, result.error
        (kept,) = opened.approvals()
        assert (kept.state, kept.answered_by, kept.used_by) == (ApprovalState.USED, "bob", result.call_id)


def nothing() -> None:
    """Do nothing."""


def until_one_waits(opened: Crib) -> str:
    """The id of the question, as soon as it is asked."""
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        found = [one.id for one in opened.approvals() if one.state is ApprovalState.WAITING]
        if found:
            return found[0]
        pause.wait(0.01)
    raise AssertionError("nobody asked")


def test_a_call_can_wait_for_the_answer_of_another_process(project: Path) -> None:
    with crib(project) as opened, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opened.call, "pay", {"amount": 9}, approval_wait_s=WAIT_S)
        one = until_one_waits(opened)
        edited = run(project, "approvals", "approve", one, "--arguments", '{"amount": 3}', user="bob")
        assert edited.status == 0
        result = waiting.result(WAIT_S)
        assert (result.ok, result.data) == (True, {"amount": 3})
        assert result.notes == ("the arguments were edited by bob, who approved the call",)


def test_swap_the_tool_while_its_call_waits(project: Path) -> None:
    """Attack: approve, then swap the tool: this time while the call that asked is still waiting."""
    with crib(project) as opened, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opened.call, "pay", {"amount": 1}, approval_wait_s=WAIT_S)
        one = until_one_waits(opened)
        write_tool(project, "#!/bin/sh\necho '{\"stolen\": true}'\n")
        opened.answer(one, "approve")
        result = waiting.result(WAIT_S)
        assert "stolen" not in result.content
        assert kind(result) is Kind.NEEDS_APPROVAL, "asked anew, about the tool as it is"
        assert waiting_id(result) != one
        assert [approval.state.value for approval in opened.approvals()] == ["used", "waiting"]
    assert not any(record["ok"] for record in ended(project))


def test_waiting_ends_with_a_denial_a_stop_or_the_time(project: Path) -> None:
    with crib(project) as opened, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opened.call, "pay", {"amount": 1}, approval_wait_s=WAIT_S)
        opened.answer(until_one_waits(opened), "deny", because="no")
        assert kind(waiting.result(WAIT_S)) is Kind.DENIED
        stop = Cancel()
        waiting = pool.submit(opened.call, "pay", {"amount": 2}, approval_wait_s=WAIT_S, cancel=stop)
        until_one_waits(opened)
        stop.set()
        assert kind(waiting.result(WAIT_S)) is Kind.CANCELLED
        assert kind(opened.call("pay", {"amount": 3}, approval_wait_s=0.05)) is Kind.NEEDS_APPROVAL
        with pytest.raises(UsageError):
            opened.call("pay", {"amount": 3}, approval_wait_s=-1)
    assert started(project) == []


def test_a_task_can_wait_and_be_cancelled_while_it_waits(project: Path) -> None:
    async def main() -> None:
        async with crib_async(project) as opened, anyio.create_task_group() as tasks:
            results: list[ToolResult] = []

            async def call(amount: int) -> None:
                results.append(await opened.call_async("pay", {"amount": amount}, approval_wait_s=WAIT_S))

            tasks.start_soon(call, 1)
            one = await anyio.to_thread.run_sync(until_one_waits, opened)
            opened.answer(one, "approve")
            with anyio.fail_after(WAIT_S):
                while not results:
                    await anyio.sleep(0.01)
            assert results[0].ok
            tasks.start_soon(call, 2)
            await anyio.to_thread.run_sync(until_one_waits, opened)
            tasks.cancel_scope.cancel()

    anyio.run(main)
    assert [record.get("kind") for record in ended(project)] == [None, "cancelled"]


class crib_async:
    """A crib as tasks open it."""

    def __init__(self, project: Path) -> None:
        self._inner = crib(project)

    async def __aenter__(self) -> Crib:
        return self._inner.__enter__()

    async def __aexit__(self, *gone: Any) -> None:
        self._inner.__exit__(None, None, None)


def test_an_embedder_edits_and_is_told_what_does_not_fit(project: Path) -> None:
    with crib(project) as opened:
        one = waiting_id(opened.call("pay", {"amount": 1}))
        for wrong in ({"amount": "x"}, {}, {"amount": object()}, {"amount": 1, "note": "***REDACTED***"}):
            with pytest.raises(EditError):
                opened.answer(one, "approve", arguments=wrong)
        with pytest.raises(UsageError, match="unknown decision"):
            opened.answer(one, "perhaps")
        with pytest.raises(ApprovalError):
            opened.answer("nosuch", "deny")
        opened.answer(one, "approve", arguments={"amount": 2})
        assert opened.call("pay", {"amount": 1}).data == {"amount": 2}
    with toolcrib.open(Config(state=None), tools=[nothing]) as stateless:
        assert stateless.approvals() == ()


def test_a_host_that_dies_after_taking_an_approval_leaves_it_used(project: Path) -> None:
    """Attack: kill the host in the middle, to have an approved call run twice."""
    marker = project.parent / "alive"
    marker.write_text("", encoding="utf-8")
    marker.chmod(0o666)
    write_tool(project, f"#!/bin/sh\necho started >> {marker}\nsleep {WAIT_S}\n")
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    assert run(project, "approvals", "approve", name).status == 0
    command = [str(PROGRAM), "--state", str(project.parent / "state"), "call", "pay", '{"amount": 1}']
    host = subprocess.Popen(
        command,
        cwd=project,
        env=environment(project / ".home", USER="ann"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        pause = threading.Event()
        for _ in range(WAIT_S * 100):
            if marker.read_text(encoding="utf-8"):
                break
            pause.wait(0.01)
    finally:
        host.kill()
        host.wait(WAIT_S)
    assert run(project, "call", "pay", '{"amount": 1}').status == 75
    states = {one["id"]: one["state"] for one in run(project, "approvals", "list", "--json").json}
    assert states[name] == "used"
    assert sorted(states.values()) == ["used", "waiting"]
    assert marker.read_text(encoding="utf-8") == "started\n"
    shown = run(project, "audit", "tail", "--json").json
    assert [record["what"] for record in shown if record.get("interrupted")] == ["begin"]


def test_calls_that_nobody_is_asked_about_never_look_at_approvals(project: Path) -> None:
    (project / "toolcrib.toml").write_text("", encoding="utf-8")
    assert run(project, "call", "pay", '{"amount": 1}').status == 0
    assert run(project, "call", "pay", '{"amount": 1}', "--yes").status == 0
    assert not (project.parent / "state" / "state.sqlite").exists()


# -- broken stores ------------------------------------------------------------------------------------------


def test_a_broken_store_refuses_calls_that_would_ask_and_runs_nothing(project: Path) -> None:
    """Attack: a store that is broken on purpose, so that nobody is asked."""
    asked = run(project, "call", "pay", '{"amount": 1}', "--json")
    name = asked.json["error"]["details"]["approval_id"]
    assert run(project, "approvals", "approve", name).status == 0
    store = project.parent / "state" / "state.sqlite"
    for ending in ("", "-wal", "-shm"):
        path = Path(f"{store}{ending}")
        if path.exists():
            path.write_bytes(b"no database at all" * 100)
    said = run(project, "call", "pay", '{"amount": 1}', "--json")
    assert (said.status, said.json["error"]["kind"]) == (69, "unavailable")
    assert run(project, "approvals", "list").status == 74
    store.unlink()
    store.symlink_to(store)
    assert run(project, "call", "pay", '{"amount": 1}').status == 69
    assert started(project) == []


def test_a_state_folder_that_others_may_write_answers_nothing(project: Path) -> None:
    """Attack: another user of the machine puts approvals of his own in the place of ours."""
    assert run(project, "call", "pay", '{"amount": 1}').status == 75
    (project.parent / "state").chmod(0o777)
    assert run(project, "approvals", "list").status == 74
