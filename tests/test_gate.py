"""The gate of a crib: what is listed, explained and called is decided by the same function."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.test_servers import keys, marking, starts, surroundings, written
from tests.test_servers import opened as opened_servers
from toolcrib import Config
from toolcrib.app import Crib
from toolcrib.config import resolve
from toolcrib.errors import ConfigError, Kind, UnknownTool, UsageError
from toolcrib.model import Allow, Ask, Deny, Disabled
from toolcrib.store.disabled import switch_off
from toolcrib.store.keep import STORE_NAME
from toolcrib.store.sqlite import SqliteStore


def read_file(path: str) -> str:
    """Read a file."""
    return path


def write_file(path: str, text: str = "") -> str:
    """Write a file."""
    return text


def opened(tmp_path: Path, *rules: Mapping[str, Any], budgets: tuple[Mapping[str, Any], ...] = ()) -> Crib:
    config = Config(state=str(tmp_path / "state"), policy=rules, budgets=budgets)
    return toolcrib.open(config=config, tools=[read_file, write_file])


NO_GUESTS = {
    "match": {"name": "write_*", "caller": "guest-*"},
    "decision": "deny",
    "because": "guests only read",
}
NO_ETC = {
    "match": {"arguments": {"path": {"under": "/etc"}}},
    "decision": "deny",
    "because": "not the system's",
}


def test_a_caller_is_offered_what_he_may_call_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path, NO_GUESTS) as crib:
        for caller, names in (("guest-7", {"read_file"}), ("ann", {"read_file", "write_file"})):
            declared = crib.declare("anthropic", caller=caller)
            assert set(declared.names.keys) == names
            assert {choice.name for choice in crib.select("hello", caller=caller).chosen} == names
            for name in ("read_file", "write_file"):
                result = crib.call(name, {"path": "x"}, caller=caller)
                assert result.ok is (name in names)
        left = crib.declare("openai", names=["write_file"], caller="guest-7").left_out
        assert [(one.tool, one.because) for one in left] == [
            ("python:tests.test_gate/write_file", "denied by policy: guests only read")
        ]
        selected = crib.select("hello", caller="guest-7")
        assert [choice.because for choice in selected.left_out] == ["denied by policy: guests only read"]
        assert len(crib.tools) == 2, "the operator sees everything"


def test_a_tool_that_is_switched_off_is_neither_offered_nor_called_also_before_it_was_loaded(
    tmp_path: Path,
) -> None:
    store = SqliteStore(str(tmp_path / "state" / STORE_NAME))
    for name in ("write_file", "not_loaded_yet"):
        switch_off(store, Disabled(tool=name, reason="being moved"), 0.0)
    store.close()
    with opened(tmp_path) as crib:
        assert set(crib.declare("anthropic").names.keys) == {"read_file"}
        assert crib.select("hello").left_out[0].because == "write_file is disabled: being moved"
        refused = crib.explain("write_file").decision
        result = crib.call("write_file", {"path": "x"})
        assert isinstance(refused, Deny)
        assert result.error is not None
        assert result.error.message == refused.message == "write_file is disabled: being moved"
        # Whoever asks what would be offered at another moment, or with other switches, is told.
        assert len(crib.select("hello", disabled=()).chosen) == 2


def test_an_explanation_tells_rule_permit_and_what_hangs_on_the_arguments(tmp_path: Path) -> None:
    asking = {"match": {"name": "write_*"}, "decision": "ask", "because": "changes data"}
    with opened(tmp_path, asking, NO_ETC, {"decision": "allow", "because": "ours"}) as crib:
        plain = crib.explain("write_file", caller="ann")
        assert isinstance(plain.decision, Ask)
        assert (plain.decision.rule, plain.decision.because) == ("policy[0]", "changes data")
        assert [rule.place for rule in plain.depending] == ["policy[1]"]
        assert plain.permit is not None
        denied = crib.explain("write_file", {"path": "/etc/../etc/hosts"}, caller="ann")
        assert isinstance(denied.decision, Deny)
        assert (denied.decision.rule, denied.permit, denied.depending) == ("policy[1]", None, ())
        allowed = crib.explain("read_file", {"path": "/srv/x"})
        assert isinstance(allowed.decision, Allow)
        assert (allowed.decision.rule, allowed.decision.because) == ("policy[2]", "ours")
        wrong = crib.explain("read_file", {"pth": "/srv/x"})
        assert "would be refused before any rule is asked" in wrong.notes[0]
        with pytest.raises(UnknownTool):
            crib.explain("nothing")
    assert not (tmp_path / "state" / "journal").exists(), "nothing was run, so nothing was recorded"


def test_a_rule_about_an_argument_that_the_tool_does_not_have_is_noted(tmp_path: Path) -> None:
    slip = {"match": {"arguments": {"file": "/etc/*"}}, "decision": "deny", "because": "r"}
    with opened(tmp_path, slip) as crib:
        note = "policy[0] asks for the argument 'file', which the tool does not declare"
        assert crib.explain("read_file").notes == (note,)


def test_64_callers_share_a_budget_and_are_told_when_there_is_room_again(tmp_path: Path) -> None:
    budget = {"match": {"name": "read_*"}, "calls": 10, "within": "1h", "because": "ten an hour"}
    with opened(tmp_path, budgets=(budget,)) as crib:
        with ThreadPoolExecutor(64) as pool:
            results = list(pool.map(lambda _: crib.call("read_file", {"path": "x"}), range(64)))
        assert sum(result.ok for result in results) == 10
        (error, *_) = [result.error for result in results if result.error is not None]
        assert error.kind is Kind.UNAVAILABLE
        assert isinstance(error.details, dict)
        assert 3000 < error.details["again_s"] <= 3660
        assert error.details["rule"] == "budget[0]"
        assert crib.call("write_file", {"path": "x"}).ok
        (left,) = crib.explain("read_file").budgets
        assert (left.calls_left, left.cost_left, left.because) == (0, None, "ten an hour")
        assert left.again_s
        assert "read_file" in crib.declare("anthropic").names.keys
    with opened(tmp_path, budgets=(budget,)) as crib:
        assert not crib.call("read_file", {"path": "x"}).ok, "a restart gives nothing back"


def test_what_is_refused_or_only_tried_takes_nothing_from_a_budget(tmp_path: Path) -> None:
    budget = {"calls": 1, "within": "1h", "per": "caller", "because": "once"}
    with opened(tmp_path, NO_ETC, budgets=(budget,)) as crib:
        assert crib.call("read_file", {"path": "x"}, dry_run=True).ok
        assert not crib.call("read_file", {"path": "/etc/hosts"}).ok
        assert not crib.call("read_file", {}).ok
        assert crib.call("read_file", {"path": "x"}).ok
        assert not crib.call("write_file", {"path": "x"}).ok
        assert crib.call("write_file", {"path": "x"}, caller="another").ok


def test_attack_a_store_that_is_broken_on_purpose_refills_no_budget(tmp_path: Path) -> None:
    budget = {"calls": 1, "within": "1h", "because": "once"}
    with opened(tmp_path, budgets=(budget,)) as crib:
        assert crib.call("read_file", {"path": "x"}).ok
    for path in (tmp_path / "state").glob(f"{STORE_NAME}*"):
        path.write_bytes(b"not a database" * 100)
    with opened(tmp_path, budgets=(budget,)) as crib:
        error = crib.call("read_file", {"path": "x"}).error
    assert error is not None
    assert error.kind is Kind.UNAVAILABLE


def test_what_is_explained_is_what_a_call_gets_also_where_the_store_cannot_be_read(tmp_path: Path) -> None:
    budget = {"calls": 1, "within": "1h", "because": "once"}
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / STORE_NAME).write_bytes(b"not a database" * 100)
    with opened(tmp_path, budgets=(budget,)) as crib:
        error = crib.call("read_file", {"path": "x"}).error
        assert error is not None
        for arguments in (None, {"path": "x"}):
            explained = crib.explain("read_file", arguments)
            refused = explained.decision
            assert isinstance(refused, Deny)
            assert (refused.kind, refused.message, refused.hint) == (error.kind, error.message, error.hint)
            assert STORE_NAME in refused.because
            assert (explained.permit, explained.budgets, explained.approvals) == (None, (), ())


def test_attack_a_store_that_is_broken_on_purpose_switches_no_server_on_again(tmp_path: Path) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / STORE_NAME).write_bytes(b"not a database" * 100)
    with opened_servers(tmp_path) as crib:
        (server,) = crib.server_records()
        decision = crib.gate.decide_server(server)
        (problem,) = crib.problems
    assert isinstance(decision, Deny)
    assert decision.kind is Kind.UNAVAILABLE
    assert decision.message == "what was switched off cannot be read, so no server starts"
    assert STORE_NAME in decision.because
    assert decision.hint is not None
    assert decision.message in problem.message
    assert problem.hint == decision.hint
    assert starts(tmp_path) == 0


def test_rules_that_nobody_understands_open_no_crib(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\[0\]: needs because"):
        opened(tmp_path, {"decision": "deny"})
    with pytest.raises(ConfigError, match=r"budget\[0\]: needs within"):
        opened(tmp_path, budgets=({"calls": 1, "because": "r"},))


def test_a_closed_crib_decides_nothing(tmp_path: Path) -> None:
    crib = opened(tmp_path)
    crib.close()
    with pytest.raises(UsageError, match="closed"):
        crib.declare("anthropic")


@pytest.mark.parametrize("warm", [True, False])
def test_whoever_only_looks_starts_no_server_and_knows_what_it_listed_last(
    warm: bool, tmp_path: Path
) -> None:
    written(tmp_path, {"name": "s", "mcp": marking(tmp_path, "names=a")})
    environment = surroundings(tmp_path)
    config = resolve(environment, cwd=str(tmp_path), file="toolcrib.toml")
    with toolcrib.open(config, environment=environment, only_look=True) as crib:
        assert keys(crib) == []
    assert starts(tmp_path) == 0
    with opened_servers(tmp_path) as crib:
        assert keys(crib) == ["mcp:s/a"]
    once = starts(tmp_path)
    if not warm:
        for path in (tmp_path / "state" / "cache").glob("*"):
            path.unlink()
    with toolcrib.open(config, environment=environment, only_look=True) as crib:
        assert keys(crib) == ["mcp:s/a"]
        assert isinstance(crib.explain("mcp:s/a").decision, Allow)
    assert starts(tmp_path) == once


def test_what_is_switched_or_locked_here_counts_for_the_very_next_call(tmp_path: Path) -> None:
    """However many calls were answered alike just before."""
    with opened(tmp_path) as crib:
        for _ in range(3):
            assert all(crib.call("read_file", {"path": "a"}).ok for _ in range(20))
            crib.disable("read_file", reason="not now")
            refused = crib.call("read_file", {"path": "a"})
            assert (refused.error is not None, refused.ok) == (True, False)
            crib.enable("read_file")
        assert crib.call("read_file", {"path": "a"}).ok
        assert crib.gate.pins is crib.gate.pins  # from now on each call asks the lock
        assert crib.call("read_file", {"path": "a"}).ok


def test_what_another_program_switches_off_counts_soon(tmp_path: Path) -> None:
    with opened(tmp_path) as crib:
        assert crib.call("read_file", {"path": "a"}).ok
        store = SqliteStore(str(tmp_path / "state" / STORE_NAME))
        switch_off(store, Disabled(tool=crib.find("read_file").key), time.time())
        store.close()
        until = time.monotonic() + 10
        while crib.call("read_file", {"path": "a"}).ok:
            assert time.monotonic() < until
