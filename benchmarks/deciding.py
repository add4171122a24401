"""What a decision costs: a policy of a thousand rules, warm, and a call's share of a budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import Row, interleaved

from toolcrib.model import JsonOnStdin, Needs, Origin, RunProcess, Tool, ToolCall, Vetted
from toolcrib.store.sqlite import SqliteStore
from toolcrib.trust import policy
from toolcrib.trust.budgets import budgets_of
from toolcrib.trust.rules import rules_of
from toolcrib.trust.spending import Spending

RULES = 1_000
DECISIONS = 5_000
RESERVED = 50


def tables(count: int) -> list[dict[str, Any]]:
    """Rules of every kind. A tenth of them is about our tool: other callers, and arguments of other names and
    of a name that the call has."""
    kinds = (
        lambda number: {"key": f"manifest:other/tool_{number}"},
        lambda number: {"name": f"delete_{number}_*"},
        lambda number: {"format": "rye", "arguments": {"path": "/etc/*"}},
        lambda number: {"needs": f"env:TOKEN_{number}"},
        lambda number: {"effect": "read", "name": [f"*_{number}", "!get_*"]},
    )
    ours = (
        lambda number: {"name": "write*", "caller": f"guest-{number}"},
        lambda number: {"effect": "change", "arguments": {f"option_{number}": True}},
        lambda number: {"key": "manifest:*", "trust": "tampered"},
    )
    found = []
    for number in range(count):
        match = ours[number % 3](number) if number % 10 == 0 else kinds[number % 5](number)
        if number == 30:
            match = {"name": "write", "arguments": {"path": {"under": ["/etc", "/root"]}}}
        decision = ("deny", "ask", "deny", "allow")[number % 4] if number != 30 else "deny"
        found.append({"match": match, "decision": decision, "because": f"rule {number}"})
    return found


def deciding(work: Path, rounds: int) -> list[Row]:
    tool = Tool(
        key="manifest:tools/write",
        name="write",
        scope="tools",
        origin=Origin(format="manifest", path="/p/tools.json"),
        invocation=RunProcess(program="/bin/true", encoding=JsonOnStdin(verbatim=True)),
        needs=Needs(stated=True, capabilities=("fs.write",)),
    )
    ground = policy.Ground(project="/p", cwd="/p", named=True)
    call = ToolCall(id="1", tool=tool.key, arguments={"path": "/p/a.txt", "text": "hello"}, caller="ann")
    rules = rules_of(tables(RULES))
    assert not any(rule.mistakes for rule in rules)
    state, vetted = policy.HostState(), Vetted()

    def decisions(house: policy.HouseRules) -> Callable[[], None]:
        one = policy.Policy(house)

        def work() -> None:
            terms = None
            for _ in range(DECISIONS):
                terms = one.terms(tool, vetted=vetted, ground=ground, caller=call.caller, known=terms)
                one.decide(terms, call, state)

        work()
        return work

    def first(one: policy.Policy) -> None:
        one.decide(one.terms(tool, vetted=vetted, ground=ground, caller=call.caller), call, state)

    found = interleaved(
        rounds,
        bare=decisions(policy.HouseRules()),
        ruled=decisions(policy.HouseRules(policy=rules)),
        first=lambda: first(policy.Policy(policy.HouseRules(policy=rules))),
    )
    each = found["ruled"] / DECISIONS * 1e6
    detail = f"without rules {found['bare'] / DECISIONS * 1e6:.1f} µs; cold, rules put in order too, "
    detail += f"{found['first'] * 1000:.1f} ms"
    row = Row(f"policy decision with {RULES:,} rules, warm", round(each, 2), "µs", 10.0, each <= 10.0, detail)
    store = SqliteStore(str(work / "spent" / "state.sqlite"))
    (budget,) = budgets_of([{"calls": 10**6, "within": "1h", "because": "r"}])
    spending, charges = Spending(lambda: store, lambda: store), [budget.charge(tool, "ann")]

    def reserve() -> None:
        for _ in range(RESERVED):
            assert spending.reserve(charges, 1000.0) is None

    try:
        took = interleaved(rounds, reserve=reserve)["reserve"]
    finally:
        store.close()
    row.detail += f"; a call's share of a budget, kept on disk, {took / RESERVED * 1000:.2f} ms"
    return [row]
