"""Decisions as tables, and the two promises that hold for every rule: more refusals, never more rights."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from toolcrib.dialects import DIALECTS
from toolcrib.errors import Kind
from toolcrib.model import (
    TIMEOUT_S_MAX,
    Allow,
    Ask,
    DeclareOptions,
    Deny,
    Disabled,
    Effect,
    Grant,
    Intake,
    JsonOnStdin,
    Level,
    Limits,
    Needs,
    NotCallable,
    Origin,
    Permit,
    Profile,
    Programs,
    Role,
    RunProcess,
    Schema,
    Signature,
    Tool,
    ToolCall,
    Trust,
    Vetted,
)
from toolcrib.trust import budgets, policy, rules, signing
from toolcrib.trust.budgets import Tally
from toolcrib.trust.policy import Ground, HostState, HouseRules, Policy, Unsigned

GROUND = Ground(
    project="/p",
    cwd="/p/sub",
    protected=("/p/toolcrib.toml",),
    git=("/p/.git",),
    git_code=("/p/.git/hooks", "/p/.git/config"),
    hidden=("/home/u/.local/state/toolcrib",),
    temporary=("/tmp",),
    named=True,
)
ROOTS = ("/p", "/p/sub")


def tool(needs: Needs | None = None, **more: Any) -> Tool:
    return Tool(
        **{
            "key": "manifest:tools/write",
            "name": "write",
            "scope": "tools",
            "origin": Origin(format="manifest", path="/p/tools.json"),
            "invocation": RunProcess(program="/bin/true", encoding=JsonOnStdin(verbatim=True)),
            "needs": needs or Needs(),
            **more,
        }
    )


def call(**more: Any) -> ToolCall:
    return ToolCall(**{"id": "1", "tool": "write", "arguments": {}, **more})


def decide(
    what: Tool,
    *,
    asked: ToolCall | None = None,
    house: HouseRules | None = None,
    ground: Ground = GROUND,
    vetted: Vetted | None = None,
    state: HostState | None = None,
) -> Any:
    one = Policy(house or HouseRules())
    terms = one.terms(
        what,
        vetted=vetted or unvetted(what),
        ground=ground,
        caller="" if asked is None else asked.caller,
    )
    return one.decide(terms, asked, state or HostState())


def unvetted(what: Tool) -> Vetted:
    """What signatures say while no key is trusted and nothing is locked."""
    if what.signature is None:
        return Vetted()
    content = b"" if not what.signature.key else SIGNED
    item, path = what.signature.item, what.origin.path
    return signing.check(content, path=path, suffix=".py", item=item, keys=NoKeys())


class NoKeys:
    def find(self, key_id: str) -> tuple[signing.TrustedKey, ...]:
        return ()

    def ids(self) -> tuple[str, ...]:
        return ()


_EMPTY = hashlib.sha256(b"").hexdigest()
SIGNED = f"# rye:signed:2026-04-09T00:59:52Z:{_EMPTY}:{'A' * 86}:4b987fd4e40303ac\n".encode()


def permit(what: Tool, **more: Any) -> Permit:
    decision = decide(what, **more)
    assert isinstance(decision, Allow), decision
    return decision.permit


# -- needs become permits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "read", "write", "network", "programs"),
    [
        ((), (), (), False, Programs.OWN),
        (("fs.read",), ROOTS, (), False, Programs.OWN),
        (("fs.write",), ROOTS, ROOTS, False, Programs.OWN),
        (("fs",), ROOTS, ROOTS, False, Programs.OWN),
        (("net.http",), (), (), True, Programs.OWN),
        (("net",), (), (), True, Programs.OWN),
        (("shell.execute",), (), (), False, Programs.ANY),
        (("unheard.of",), (), (), False, Programs.OWN),
        (("git.write", "net.unix", "fs.write.unprotected"), (), (), False, Programs.OWN),
        (("net.http", "net.private"), (), (), True, Programs.OWN),
    ],
)
def test_a_tool_that_states_its_needs_gets_exactly_these(capabilities, read, write, network, programs):
    given_ = permit(tool(Needs(stated=True, capabilities=capabilities)))
    assert (given_.read, given_.write, given_.network, given_.programs) == (read, write, network, programs)
    assert (given_.profile, given_.unix_sockets, given_.unprotected) == (None, False, False)
    assert given_.private is False


def test_private_addresses_are_opened_by_a_grant_alone_and_only_besides_the_network():
    granted = (Grant(pattern="*", needs=("net.http", "net.private")),)
    given_ = permit(tool(Needs()), house=HouseRules(grants=granted))
    assert (given_.network, given_.private) == (True, True)
    assert permit(tool(Needs()), house=HouseRules(undeclared=Profile.OPEN)).private is False


def test_names_that_give_nothing_are_noted():
    decision = decide(tool(Needs(stated=True, capabilities=("unheard.of", "git.write", "fs.read"))))
    assert decision.notes == (
        "required capability unheard.of gives nothing: nobody here knows it",
        "required capability git.write gives nothing: only a host grant of that name does",
    )


@pytest.mark.parametrize(
    ("profile", "named", "read", "write", "network", "unix"),
    [
        (None, True, ("/",), ("/",), True, True),
        (None, False, ROOTS, (*ROOTS, "/tmp"), False, False),
        (Profile.OPEN, True, ("/",), ("/",), True, True),
        (Profile.OPEN, False, ROOTS, (*ROOTS, "/tmp"), False, False),
        (Profile.PROJECT, True, ROOTS, (*ROOTS, "/tmp"), False, False),
        (Profile.CLOSED, True, (), (), False, False),
    ],
)
def test_a_tool_that_states_nothing_follows_the_profile(profile, named, read, write, network, unix):
    given_ = permit(tool(), house=HouseRules(undeclared=profile), ground=replace(GROUND, named=named))
    assert (given_.read, given_.write, given_.network, given_.unix_sockets) == (read, write, network, unix)
    assert given_.programs is Programs.ANY
    assert given_.profile is (profile or Profile.OPEN if named else Profile.PROJECT)
    assert given_.hidden == GROUND.hidden


def test_the_users_settings_for_git_come_with_the_grant_for_git_alone() -> None:
    ground = replace(GROUND, git_settings=("/home/u/.gitconfig",))
    for needs, readable in ((("fs.read", "git.write"), True), (("fs", "shell.execute"), False)):
        house = HouseRules(grants=(Grant(pattern="*", needs=needs),))
        permit = decide(tool(), house=house, ground=ground).permit
        assert ("/home/u/.gitconfig" in permit.read) is readable


@pytest.mark.battery("C11")
def test_what_git_runs_stays_protected_whatever_is_granted():
    writer = tool(Needs(stated=True, capabilities=("fs.write",)))
    assert permit(writer).protected == ("/p/toolcrib.toml", "/p/.git")
    house = HouseRules(grants=(Grant(pattern="manifest:*", needs=("fs", "git.write")),))
    granted = permit(writer, house=house)
    assert granted.protected == ("/p/toolcrib.toml", "/p/.git/hooks", "/p/.git/config")
    assert granted.write == ROOTS  # /p holds /p/.git
    assert permit(tool()).protected == ("/p/toolcrib.toml", "/p/.git"), "in every profile"


def test_a_repository_outside_the_project_becomes_writable_only_by_its_grant():
    ground = replace(GROUND, git=("/elsewhere/.git",), git_code=("/elsewhere/.git/hooks",))
    house = HouseRules(grants=(Grant(pattern="*", needs=("fs.write", "git.write")),))
    found = permit(tool(), house=house, ground=ground)
    assert found.write == (*ROOTS, "/elsewhere/.git")
    assert found.git == ("/elsewhere/.git",)


@pytest.mark.parametrize("capabilities", [("fs.write",), None], ids=["stated", "unstated"])
def test_attack_nobody_can_tell_what_git_would_run_and_a_tool_may_write(capabilities):
    what = tool(None if capabilities is None else Needs(stated=True, capabilities=capabilities))
    refusal = decide(what, ground=replace(GROUND, unclear="/p/.git/config: permission denied"))
    assert isinstance(refusal, Deny)
    assert refusal.kind is Kind.UNAVAILABLE
    assert "/p/.git/config: permission denied" in refusal.message
    assert "that you and git can read" in (refusal.hint or "")


def test_a_tool_that_writes_nothing_runs_though_nobody_can_tell_what_git_would_run():
    what = tool(Needs(stated=True, capabilities=("fs.read",)))
    assert permit(what, ground=replace(GROUND, unclear="/p/.git/config: x")).write == ()


def test_of_repositories_a_permit_names_those_that_the_tool_may_write():
    house = HouseRules(grants=(Grant(pattern="*", needs=("fs.read", "git.write")),))
    assert permit(tool(), house=house).git == ("/p/.git",)
    assert permit(tool(Needs(stated=True, capabilities=("fs.write",)))).git == ()


# -- grants -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.yaml.requires-enforced")
def test_grants_that_name_a_tool_bound_what_it_may_require():
    needs = Needs(stated=True, capabilities=("fs.write", "net.http"))
    house = HouseRules(grants=(Grant(pattern="manifest:tools/*", needs=("fs",)),))
    decision = decide(tool(needs), house=house)
    assert isinstance(decision, Deny)
    assert (decision.message, decision.kind) == ("refused: missing capability net.http", Kind.DENIED)
    assert "net.http" in (decision.hint or "")
    given_ = permit(tool(replace(needs, capabilities=("fs.write",))), house=house)
    assert (given_.write, given_.network) == (ROOTS, False)


@pytest.mark.requirement("rye.yaml.requires-enforced")
def test_grants_of_other_tools_bound_nothing_and_a_wide_grant_adds_nothing_unasked():
    needs = Needs(stated=True, capabilities=("net.http",))
    others = HouseRules(grants=(Grant(pattern="rye:*", needs=()),))
    assert permit(tool(needs), house=others).network
    wide = HouseRules(grants=(Grant(pattern="*", needs=("fs", "net", "shell")),))
    given_ = permit(tool(needs), house=wide)
    assert (given_.network, given_.read, given_.programs) == (True, (), Programs.OWN)


def test_a_grant_states_the_needs_of_a_tool_that_does_not():
    house = HouseRules(grants=(Grant(pattern="manifest:*", needs=("fs.read", "shell")),))
    given_ = permit(tool(), house=house)
    assert (given_.profile, given_.read, given_.write, given_.programs) == (None, ROOTS, (), Programs.ANY)
    nothing = permit(tool(), house=HouseRules(grants=(Grant(pattern="*", needs=()),)))
    assert (nothing.profile, nothing.read, nothing.network) == (None, (), False)


@pytest.mark.requirement("executable.call.env")
def test_a_grant_of_a_variable_alone_leaves_the_profile_as_it_is():
    house = HouseRules(grants=(Grant(pattern="*/write", env=("BRAVE_API_KEY",)),))
    given_ = permit(tool(), house=house)
    assert (given_.profile, given_.network, given_.env) == (Profile.OPEN, True, ("BRAVE_API_KEY",))


@pytest.mark.parametrize(
    ("grant", "name", "covered"),
    [
        ("fs", "fs.write", True),
        ("fs.*", "fs.write", True),
        ("fs.write", "fs.write", True),
        ("fs.write", "fs", False),
        ("fs", "fsx.write", False),
        ("f", "fs", False),
        ("fs", "fs.write.unprotected", False),
        ("fs.write", "fs.write.unprotected", False),
        ("net", "net.unix", False),
        ("net", "net.private", False),
        ("git", "git.write", False),
        ("net.unix", "net.unix", True),
    ],
)
def test_a_grant_covers_the_names_below_it_but_never_those_of_the_host(grant, name, covered):
    assert policy.covers(grant, name) is covered


# -- variables ----------------------------------------------------------------------------------------------


@pytest.mark.battery("D04")
@pytest.mark.requirement("manifest.env.loader-names")
@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "NODE_OPTIONS",
        "BASH_ENV", "ENV", "IFS", "GIT_SSH_COMMAND", "PERL5OPT", "RUBYOPT", "GCONV_PATH", "LD_DEBUG",
        "BASH_FUNC_ls%%", "DYLD_FALLBACK_LIBRARY_PATH", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX",
        "PYTHONBREAKPOINT", "PYTHONWARNINGS", "PYTHONPLATLIBDIR", "PYTHON_PRESITE",
    ],
)  # fmt: skip
def test_d04_a_variable_that_loads_code_needs_a_grant_that_names_it(name):
    asking = tool(Needs(env=(name, "TZ")))
    decision = decide(asking)
    assert decision.permit.env == ("TZ",)
    assert name in decision.notes[0]
    granted = permit(asking, house=HouseRules(grants=(Grant(pattern="*", env=(name,)),)))
    assert granted.env == (name, "TZ")


def test_only_the_host_hands_over_everything():
    assert permit(tool(Needs(env=("*",)))).env == ()
    assert permit(tool(), house=HouseRules(grants=(Grant(pattern="*", env=("*",)),))).env == ("*",)


# -- limits -------------------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "manifest.timeout.override", "manifest.timeout.default", "skill.run.timeout", "rye.yaml.timeout"
)
@pytest.mark.parametrize(
    ("asked", "own", "house", "expected"),
    [
        (None, None, 30.0, 30.0),
        (None, 5.0, 30.0, 5.0),
        (None, 300.0, 30.0, 300.0),
        (7.0, 5.0, 30.0, 7.0),
        (0.0, 5.0, 30.0, 5.0),
        (-1.0, None, 12.0, 12.0),
        (1e12, None, 30.0, 86_400.0),
        (1e-9, None, 30.0, 0.001),
        (float("nan"), None, 30.0, 30.0),
    ],
)
def test_the_callers_time_wins_then_the_tools_then_the_houses(asked, own, house, expected):
    given_ = permit(
        tool(Needs(timeout_s=own)), asked=call(timeout_s=asked), house=HouseRules(timeout_s=house)
    )
    assert given_.limits.timeout_s == expected


@pytest.mark.requirement("executable.call.output-limit")
def test_the_formats_own_output_limit_holds_and_never_widens_the_houses():
    assert permit(tool(Needs(stdout_bytes_max=65_535))).limits.stdout_bytes_max == 65_535
    house = HouseRules(limits=Limits(stdout_bytes_max=1000, memory_bytes_max=5))
    given_ = permit(tool(Needs(stdout_bytes_max=65_535)), house=house)
    assert (given_.limits.stdout_bytes_max, given_.limits.memory_bytes_max) == (1000, 5)


def test_the_level_that_the_house_requires_stands_in_the_permit():
    assert permit(tool(), house=HouseRules(require=Level.SUPERVISED)).level is Level.SUPERVISED


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.control.call-blocked")
@pytest.mark.parametrize("name", ["manifest:tools/write", "write", "Write", "w"])
def test_a_disabled_tool_is_refused_with_the_reason_by_whatever_name(name):
    state = HostState(disabled=(Disabled(tool=name, reason="too slow", until=160.0),), now=100.0)
    decision = decide(tool(spoken="Write", aliases=("w",)), state=state)
    assert isinstance(decision, Deny)
    assert decision.message == "write is disabled: too slow (for another 1 min)"
    over = replace(state, now=160.0)
    assert isinstance(decide(tool(spoken="Write", aliases=("w",)), state=over), Allow)


@pytest.mark.requirement("capability.meta.requires-context")
def test_every_missing_context_key_is_named():
    needs = Needs(context=("memory", "user_id"))
    decision = decide(tool(needs), asked=call(context={"user_id": "u"}))
    assert isinstance(decision, Deny)
    assert (decision.message, decision.kind) == ("missing context: memory", Kind.UNAVAILABLE)
    both = decide(tool(needs), asked=call(context={"memory": None}))
    assert both.message == "missing context: memory, user_id"
    assert isinstance(decide(tool(needs), asked=call(context={"memory": 0, "user_id": ""})), Allow)
    assert isinstance(decide(tool(needs)), Allow), "listing asks for no context"


@pytest.mark.requirement("capability.meta.context-not-model")
def test_context_is_never_taken_from_what_the_model_wrote():
    asked = call(arguments={"user_id": "admin"}, context={})
    assert decide(tool(Needs(context=("user_id",))), asked=asked).message == "missing context: user_id"


def test_what_cannot_be_called_is_refused_with_its_reason():
    decision = decide(tool(invocation=NotCallable(reason="configuration only")))
    assert (decision.message, decision.kind) == (
        "write cannot be called: configuration only",
        Kind.UNAVAILABLE,
    )
    assert isinstance(decide(tool(role=Role.PART)), Deny)


RYE: dict[str, Any] = {
    "name": "text/outline",
    "origin": Origin(format="rye", path="/p/.ai/tools/text/outline.py"),
    "signature": Signature(item="tool:text/outline"),
}


@pytest.mark.requirement("rye.sign.error-unsigned")
def test_an_unsigned_tool_is_refused_in_the_formats_own_words():
    decision = decide(tool(**RYE))
    assert isinstance(decision, Deny)
    assert decision.message == (
        "Unsigned item: /p/.ai/tools/text/outline.py\n  Kind: tool\n  Expected: rye:signed: header\n"
        "  Fix: rye sign tool:text/outline"
    )
    assert decision.kind is Kind.DENIED
    warned = decide(tool(**RYE), house=HouseRules(unsigned=Unsigned.WARN))
    assert warned.notes == ("unsigned: the configuration lets it run",)


@pytest.mark.requirement("rye.sign.error-untrusted")
@pytest.mark.parametrize("unsigned", [*Unsigned])
def test_a_signature_of_a_key_that_nobody_trusts_is_refused(unsigned):
    signed = tool(**{**RYE, "signature": Signature(key="4b987fd4e40303ac", item="tool:text/outline")})
    assert unvetted(signed).trust is Trust.UNTRUSTED
    decision = decide(signed, house=HouseRules(unsigned=unsigned))
    assert decision.message == (
        "Untrusted key 4b987fd4e40303ac for /p/.ai/tools/text/outline.py\n"
        "  Item signed by: 4b987fd4e40303ac\n  Trusted keys: none\n"
        "  Fix: Add this key to your trust store, or re-sign:\n    rye sign tool:text/outline"
    )


@pytest.mark.parametrize("trust", [Trust.TAMPERED, Trust.DRIFTED])
def test_changed_bytes_are_refused_even_where_unsigned_ones_run(trust):
    house = HouseRules(unsigned=Unsigned.WARN)
    assert isinstance(decide(tool(**RYE), vetted=Vetted(trust=trust), house=house), Deny)


def test_formats_without_signatures_are_not_asked_for_one():
    assert unvetted(tool()) == Vetted(trust=Trust.UNSIGNED)
    assert isinstance(decide(tool()), Allow)


# -- [[policy]] ---------------------------------------------------------------------------------------------


def ruled(*tables: dict[str, Any], what: Tool | None = None) -> Any:
    return decide(what or tool(), house=HouseRules(policy=rules.rules_of(tables)))


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([], Allow),
        ([{"decision": "deny"}], Deny),
        ([{"match": {"effect": "change"}, "decision": "ask"}], Ask),
        ([{"match": {"effect": "read"}, "decision": "deny"}], Allow),
        ([{"match": {"key": "manifest:tools/*"}, "decision": "deny"}], Deny),
        ([{"match": {"key": "rye:*"}, "decision": "deny"}], Allow),
        ([{"match": {"name": ["a", "wr?te"]}, "decision": "deny"}], Deny),
        ([{"match": {"format": "manifest", "effect": "read"}, "decision": "deny"}], Allow),
        ([{"decision": "allow"}, {"decision": "deny"}, {"decision": "ask"}], Deny),
        ([{"decision": "ask"}, {"decision": "allow"}], Ask),
        # What cannot be understood refuses more, never less.
        ([{"match": {"moon": "full"}, "decision": "deny"}], Deny),
        ([{"match": {"effect": "read", "moon": "full"}, "decision": "deny"}], Allow),
        ([{"match": {"effect": 5}, "decision": "ask"}], Ask),
        ([{"match": "everything", "decision": "deny"}], Deny),
        ([{"decision": "perhaps"}], Deny),
        ([{"decision": "ask"}, {"match": {"moon": "full"}, "decision": "allow"}], Ask),
    ],
)
def test_of_the_rules_that_fit_a_refusal_wins_then_a_question(tables, expected):
    assert isinstance(ruled(*tables), expected)


def test_the_reason_of_a_rule_is_told():
    assert ruled({"decision": "deny", "because": "changes data"}).message == "denied by policy: changes data"


def test_a_question_that_a_person_has_answered_is_not_asked_and_a_refusal_stays() -> None:
    for answer, kind in (("ask", Allow), ("deny", Deny)):
        house = HouseRules(policy=rules.rules_of([{"decision": answer, "because": "r"}]))
        assert isinstance(decide(tool(), asked=call(approved_by="ann"), house=house), kind)
        assert not isinstance(decide(tool(), asked=call(), house=house), Allow)
    assert ruled({"decision": "ask", "because": "changes data"}).because == "changes data"
    assert ruled({"decision": "allow", "because": "reviewed"}).because == "reviewed"


def test_a_rule_by_name_holds_for_every_name_of_the_tool():
    for name in ("write", "Write", "w"):
        what = tool(spoken="Write", aliases=("w",))
        assert isinstance(ruled({"match": {"name": name}, "decision": "deny"}, what=what), Deny)


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.parametrize("own", ["files.write", "files write", "7zip", "écrire", "a/b.c-d"])
def test_attack_a_tool_escapes_no_rule_by_the_name_that_a_provider_takes(own, dialect):
    what = tool(name=own, key=f"manifest:tools/{own}")
    [given] = DIALECTS[dialect].declare([what], DeclareOptions()).names.keys
    assert isinstance(ruled({"match": {"name": given}, "decision": "deny"}, what=what), Deny)
    state = HostState(disabled=(Disabled(tool=given, reason="moved"),))
    assert decide(what, state=state).because == policy.DISABLED


FORCED = {"match": {"arguments": {"force": True}}, "decision": "deny", "because": "no force"}


@pytest.mark.parametrize("value", [True, "true", "TRUE", 1, 7, -1])
def test_attack_a_switch_that_is_set_by_a_word_or_a_number_escapes_no_rule_about_true(value):
    what = tool(intake=Intake(drop_null_optional=True, lenient_booleans=("force",)))
    house = HouseRules(policy=rules.rules_of([FORCED]))
    assert isinstance(decide(what, asked=call(arguments={"force": value}), house=house), Deny)
    for other in (False, "false", "no", 0):
        assert isinstance(decide(what, asked=call(arguments={"force": other}), house=house), Allow)


def test_attack_an_argument_that_is_left_out_escapes_no_rule_about_its_default() -> None:
    part = {"type": "object", "properties": {"mode": {"default": "wipe"}}}
    schema = {
        "type": "object",
        "properties": {
            "force": {"type": "boolean", "default": True},
            "options": part,
            "reason": {"default": "-"},
        },
    }
    what = tool(input_schema=Schema.of(schema))
    assert not what.intake.fill_defaults, "the tool takes its default by itself"

    def decided(rule: dict[str, Any], given: dict[str, Any]) -> type:
        house = HouseRules(policy=rules.rules_of([{**FORCED, "match": {"arguments": rule}}]))
        return type(decide(what, asked=call(arguments=given), house=house))

    assert decided({"force": True}, {}) is Deny
    assert decided({"force": True}, {"force": False}) is Allow
    assert decided({"/options/mode": "wipe"}, {"options": {}}) is Deny
    assert decided({"/options/mode": "wipe"}, {"options": {"mode": "look"}}) is Allow
    # What nobody gave is still not there, for a rule that wants it to be given.
    assert decided({"reason": {"present": False}}, {}) is Deny
    assert decided({"reason": {"present": False}, "force": True}, {}) is Deny
    assert decided({"reason": {"present": False}}, {"reason": "old"}) is Allow


def test_attack_a_budget_is_not_escaped_by_leaving_an_argument_out() -> None:
    schema = Schema.of({"type": "object", "properties": {"size": {"default": "large"}}})
    what = tool(input_schema=schema)
    table = {"match": {"arguments": {"size": "large"}}, "calls": 0, "within": "1h", "because": "none today"}
    house = HouseRules(budgets=budgets.budgets_of([table]))
    assert isinstance(decide(what, asked=call(), house=house), Deny)
    assert isinstance(decide(what, asked=call(arguments={"size": "small"}), house=house), Allow)


def test_the_rule_that_decides_is_named_with_its_place() -> None:
    tables = [
        {"decision": word, "because": word, "match": {"caller": word}} for word in ("deny", "ask", "allow")
    ]
    house = HouseRules(policy=rules.rules_of(tables, ["f:1 policy[0]", "f:4 policy[1]", "f:7 policy[2]"]))
    found = [
        decide(tool(), asked=call(caller=word), house=house) for word in ("deny", "ask", "allow", "nobody")
    ]
    assert [decision.rule for decision in found] == ["f:1 policy[0]", "f:4 policy[1]", "f:7 policy[2]", ""]
    assert [decision.because for decision in found[:3]] == ["deny", "ask", "allow"]
    assert found[1].question == "May manifest:tools/write run? (ask)"


def test_a_rule_about_the_caller_decides_listing_for_that_caller_too() -> None:
    table = {"match": {"caller": "guest-*"}, "decision": "deny", "because": "no guests"}
    house = HouseRules(policy=rules.rules_of([table]))
    for who, kind in (("guest-7", Deny), ("ann", Allow)):
        given_ = policy.Policy(house)
        terms = given_.terms(tool(), vetted=Vetted(), ground=GROUND, caller=who)
        listed = given_.decide(terms, None, HostState())
        assert isinstance(listed, kind)
        assert isinstance(decide(tool(), asked=call(caller=who), house=house), kind)


def test_attack_a_tool_that_states_no_needs_escapes_no_rule_about_them() -> None:
    table = {"match": {"needs": "net.*"}, "decision": "deny", "because": "offline"}
    house = HouseRules(policy=rules.rules_of([table]))
    assert isinstance(decide(tool(), house=house), Deny), "the profile open gives the network"
    assert isinstance(decide(tool(Needs(stated=True)), house=house), Allow)
    assert isinstance(decide(tool(Needs(stated=True, capabilities=("net",))), house=house), Deny)
    closed = replace(house, undeclared=Profile.CLOSED)
    assert isinstance(decide(tool(), house=closed), Allow)
    granted = replace(closed, grants=(Grant(pattern="*", needs=("net",)),))
    assert isinstance(decide(tool(), house=granted), Deny)
    token = {"match": {"needs": "env:*_TOKEN"}, "decision": "deny", "because": "no tokens"}
    assert isinstance(ruled(token, what=tool(Needs(env=("GH_TOKEN",)))), Deny)


def test_a_rule_about_trust_follows_what_was_found_out() -> None:
    table = {"match": {"trust": "!signed"}, "decision": "ask", "because": "look at it first"}
    house = HouseRules(policy=rules.rules_of([table]))
    for trust, kind in ((Trust.SIGNED, Allow), (Trust.PINNED, Ask), (Trust.UNSIGNED, Ask)):
        assert isinstance(decide(tool(), vetted=Vetted(trust=trust), house=house), kind)


def test_a_rule_about_arguments_says_nothing_where_there_are_none_yet() -> None:
    table = {"match": {"arguments": {"path": {"under": "/p/sub/.git"}}}, "decision": "deny", "because": "no"}
    house = HouseRules(policy=rules.rules_of([table]))
    assert isinstance(decide(tool(), house=house), Allow)
    assert isinstance(decide(tool(), asked=call(arguments={"path": ".git/config"}), house=house), Deny)
    assert isinstance(decide(tool(), asked=call(arguments={"path": "../.git/config"}), house=house), Allow)
    assert isinstance(decide(tool(), asked=call(arguments=None), house=house), Deny)


# -- budgets ------------------------------------------------------------------------------------------------

TWICE = {"calls": 2, "within": "1m", "because": "twice is enough"}


def test_a_call_is_charged_to_every_budget_that_fits_and_refused_where_one_is_used_up() -> None:
    paid = {
        "cost": 1,
        "unknown_cost": 0.4,
        "within": "1d",
        "match": {"arguments": {"big": True}},
        "because": "b",
    }
    house = HouseRules(budgets=budgets.budgets_of([TWICE, {**TWICE, "match": {"name": "other"}}, paid]))
    allowed = decide(tool(), asked=call(caller="ann"), house=house)
    assert [charge.place for charge in allowed.charges] == ["budget[0]"]
    big = decide(tool(), asked=call(arguments={"big": True}), house=house)
    assert [charge.cost for charge in big.charges] == [0, 400_000]
    (counter,) = (charge.counter for charge in allowed.charges)
    spent = {counter: Tally(slots=((100, 2, 0),))}
    refused = decide(tool(), asked=call(), house=house, state=HostState(now=110.0, spent=spent))
    assert isinstance(refused, Deny)
    assert (refused.kind, refused.because, refused.rule) == (Kind.UNAVAILABLE, "twice is enough", "budget[0]")
    assert refused.again_s == 51.0
    assert refused.message == "budget used up: twice is enough (2 calls within 1 min; free again in 51 s)"
    later = decide(tool(), asked=call(), house=house, state=HostState(now=161.0, spent=spent))
    assert isinstance(later, Allow)
    listed = decide(tool(), house=house, state=HostState(now=110.0, spent=spent))
    assert isinstance(listed, Allow), "it is offered: it is only late"


def test_nobody_is_asked_about_a_call_that_has_no_budget_left() -> None:
    house = HouseRules(
        budgets=budgets.budgets_of([{**TWICE, "calls": 0}]),
        policy=rules.rules_of([{"decision": "ask", "because": "r"}]),
    )
    refused = decide(tool(), asked=call(), house=house)
    assert isinstance(refused, Deny)
    assert (refused.kind, refused.again_s) == (Kind.DENIED, None)
    assert "this call alone is more" in refused.message


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "1 s"), (59, "59 s"), (60, "1 min"), (61, "61 s"), (121, "3 min"), (3600, "1 h"), (86_400, "1 d")],
)
def test_times_are_told_in_units_of_people(seconds: float, told: str) -> None:
    assert policy.span(seconds) == told


# -- promises -----------------------------------------------------------------------------------------------

_names = st.sampled_from(["fs", "fs.read", "fs.write", "net.http", "shell.execute", "git.write", "odd", "*"])
_patterns = st.sampled_from(
    [
        "*",
        "manifest:*",
        "rye:*",
        "manifest:tools/write",
        "wr*",
        "read",
        "!wr*",
        "ann",
        "change",
        "fs.*",
        "[",
        "",
    ]
)
_arguments = st.dictionaries(
    st.sampled_from(["path", "/n", "/**"]),
    _patterns | st.integers(0, 3) | st.just({"min": 1}) | st.just({"present": False}) | st.just({"odd": 1}),
    min_size=1,
    max_size=2,
)
_tables = st.fixed_dictionaries(
    {"decision": st.sampled_from(["allow", "ask", "deny"])},
    optional={
        "match": st.dictionaries(
            st.sampled_from([*rules.SUBJECTS, "moon"]),
            _patterns | st.lists(_patterns, max_size=2),
            max_size=2,
        )
        | st.fixed_dictionaries({"arguments": _arguments}, optional={"caller": _patterns}),
        "because": st.text(max_size=5),
    },
)
_grants = st.builds(
    Grant, pattern=_patterns, needs=st.none() | st.lists(_names).map(tuple), env=st.lists(_names).map(tuple)
)
_bounds = st.fixed_dictionaries(
    {"calls": st.integers(0, 2), "within": st.just("1m"), "because": st.just("r")},
    optional={"per": st.sampled_from(["tool", "both"]), "match": st.just({"caller": "ann"})},
)
_houses = st.builds(
    HouseRules,
    grants=st.lists(_grants, max_size=3).map(tuple),
    undeclared=st.none() | st.sampled_from([*Profile]),
    unsigned=st.sampled_from([*Unsigned]),
    policy=st.lists(_tables, max_size=4).map(rules.rules_of),
    budgets=st.lists(_bounds, max_size=1).map(budgets.budgets_of),
)
_tools = st.builds(
    tool,
    st.builds(
        Needs,
        stated=st.booleans(),
        capabilities=st.lists(_names, max_size=3).map(tuple),
        env=st.lists(_names, max_size=2).map(tuple),
        timeout_s=st.none() | st.floats(),
    ),
    effect=st.sampled_from([*Effect]),
    signature=st.none() | st.just(Signature(item="tool:x")) | st.just(Signature(key="k", item="tool:x")),
)
_calls = st.builds(
    call,
    caller=st.sampled_from(["", "ann", "write"]),
    arguments=st.none()
    | st.dictionaries(st.sampled_from(["path", "n"]), st.integers(0, 3) | st.text(max_size=3)),
)
_vetted = st.builds(Vetted, trust=st.sampled_from([*Trust]), message=st.sampled_from(["", "amiss"]))
_states = st.builds(
    HostState,
    disabled=st.lists(st.builds(Disabled, tool=st.sampled_from(["write", "other"])), max_size=1).map(tuple),
)
_ORDER: dict[object, int] = {Deny: 0, Ask: 1, Allow: 2}


@given(
    _tools,
    _houses,
    st.lists(_vetted, min_size=1, max_size=2),
    st.lists(_calls, min_size=1, max_size=3),
    _states,
)
def test_the_same_values_always_give_the_same_decision(what, house, known, asked, state):
    """Whatever was asked about the tool before: terms that still hold are taken over."""
    warm = policy.Policy(house)
    grounds = (GROUND, replace(GROUND, named=False), replace(GROUND, cwd="/q"))
    terms = None
    for _ in range(2):
        for vetted, ground, call_ in ((v, g, c) for v in known for g in grounds for c in asked):
            for other in (call_, replace(call_, caller="else"), replace(call_, timeout_s=7.0)):
                fresh = decide(what, house=house, vetted=vetted, ground=ground, asked=other, state=state)
                terms = warm.terms(what, vetted=vetted, ground=ground, caller=other.caller, known=terms)
                assert warm.decide(terms, other, state) == fresh
                if isinstance(fresh, Allow):
                    assert 0 < fresh.permit.limits.timeout_s <= TIMEOUT_S_MAX


@given(_tools, _houses, _vetted, st.none() | _calls, _states)
def test_every_decision_has_a_reason(what, house, vetted, asked, state):
    decision = decide(what, house=house, vetted=vetted, asked=asked, state=state)
    assert decision.because.strip()
    if isinstance(decision, Deny):
        assert decision.message
    if isinstance(decision, Ask):
        assert what.key in decision.question
        assert decision.because in decision.question


@given(_tools, _houses, _vetted, _tables, st.integers(0, 4), st.none() | _calls)
def test_adding_a_refusal_never_allows_more(what, house, vetted, table, place, asked):
    refusing = rules.rules_of([{**table, "decision": "deny"}])
    stricter = replace(house, policy=(*house.policy[:place], *refusing, *house.policy[place:]))
    before, after = (decide(what, house=rules_, vetted=vetted, asked=asked) for rules_ in (house, stricter))
    assert _ORDER[type(after)] <= _ORDER[type(before)]
    if isinstance(after, Allow):
        assert isinstance(before, Allow)
        assert after.permit == before.permit


@given(_tools, _houses, _vetted, _bounds, _calls)
def test_adding_a_budget_never_allows_more(what, house, vetted, table, asked):
    bounded = replace(house, budgets=(*house.budgets, *budgets.budgets_of([table], ["f budget[9]"])))
    before, after = (decide(what, house=rules_, vetted=vetted, asked=asked) for rules_ in (house, bounded))
    assert _ORDER[type(after)] <= _ORDER[type(before)]


@given(_tools, _houses, _vetted, _calls, _states, st.booleans())
def test_listing_and_calling_never_disagree(what, house, vetted, asked, state, named):
    ground = replace(GROUND, named=named)
    one = policy.Policy(house)
    refusal = one.refusal(what, vetted=vetted, state=state, named=named, caller=asked.caller)
    terms = one.terms(what, vetted=vetted, ground=ground, caller=asked.caller)
    listed = one.decide(terms, None, state)
    called = one.decide(terms, asked, state)
    assert (refusal is not None) is isinstance(listed, Deny)
    assert refusal is None or refusal == listed
    if isinstance(listed, Deny):
        assert isinstance(called, Deny), "what is not offered cannot be called"
    elif isinstance(called, Deny):
        by = {rule.place for rule in house.policy if rule.match.arguments}
        by |= {budget.place for budget in house.budgets}
        assert called.rule in by, "what is offered is refused only for what was not known before"
