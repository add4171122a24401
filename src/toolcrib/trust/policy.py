"""Rules to a decision: may this tool run now, and with what. Pure and total.

``Policy`` holds the house's rules and decides by them, for listing, explaining and calling alike. It takes
everything else it looks at as values: the tool, what is known about its bytes, the ground it would stand on
and the host's state. It answers with a permit, a question or a refusal, and never raises. It does not enforce
anything: ``sandbox/rules.py`` says what a permit means to the kernel. What a rule of ``[[policy]]`` or
``[[budget]]`` is, ``rules.py`` and ``budgets.py`` say.

Asking is not being granted. What a tool states is an upper bound on what it gets, grants that name the tool
are another, and some things (``HOST_ONLY``) only a grant gives, however loudly a declaration asks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.calls import meaning
from toolcrib.errors import Kind
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    LOADER_NAMES,
    TIMEOUT_S_MAX,
    Allow,
    Approval,
    ApprovalState,
    Ask,
    Charge,
    Decision,
    Deny,
    Disabled,
    Grant,
    Level,
    Limits,
    NotCallable,
    Permit,
    Profile,
    Programs,
    Role,
    Tool,
    ToolCall,
    Trust,
    Vetted,
)
from toolcrib.paths import is_below
from toolcrib.trust import budgets
from toolcrib.trust.budgets import Budget, Tally
from toolcrib.trust.rules import LASTING, PASSING, Answer, ByArgument, Index, Rule

CAPABILITIES: Final = ("fs.read", "fs.write", "net.http", "shell.execute")
"""What a declaration may ask for and get."""
HOST_ONLY: Final = ("git.write", "fs.write.unprotected", "net.private", "net.unix")
"""What only a grant gives, and only by its full name."""

DISABLED: Final = "disabled"
"""The reason of a refusal because somebody switched the tool off."""

_LIMITS: Final = Limits()
_TIMEOUT_S_MIN: Final = 0.001
_LOADER_PREFIXES: Final = ("LD_", "DYLD_", "BASH_FUNC_")


class Unsigned(StrEnum):
    """What happens to an unsigned tool of a format that has signatures."""

    REFUSE = "refuse"
    WARN = "warn"


class HouseRules(Struct, frozen=True, kw_only=True):
    """What the host's configuration says about running tools."""

    grants: tuple[Grant, ...] = ()
    undeclared: Profile | None = None
    """For tools that state no needs; None: ``open`` where a person named the source. Never wider than
    ``project`` for other sources."""
    require: Level = Level.PORTABLE
    unsigned: Unsigned = Unsigned.REFUSE
    policy: tuple[Rule, ...] = ()
    budgets: tuple[Budget, ...] = ()
    timeout_s: float = 30.0
    limits: Limits = _LIMITS


class Ground(Struct, frozen=True, kw_only=True):
    """Where a tool would stand: real paths that ``sandbox/ground.py`` found."""

    project: str
    """The root of the project that the tool belongs to."""
    cwd: str
    """Where the call runs."""
    protected: tuple[str, ...] = ()
    """Declarations, lock file, configuration and keys: read-only wherever a writable root holds them."""
    git: tuple[str, ...] = ()
    """The repositories' own folders."""
    git_absent: tuple[str, ...] = ()
    """What git would run or obey inside them if it were there."""
    git_code: tuple[str, ...] = ()
    """What git runs or obeys inside them: hooks and configuration."""
    git_settings: tuple[str, ...] = ()
    """The user's own settings for git, without which git refuses to do anything."""
    absent: tuple[str, ...] = ()
    """What git would run or obey outside of them if it were there."""
    hidden: tuple[str, ...] = ()
    """Our own state, keys and journal."""
    temporary: tuple[str, ...] = ()
    """The system's temporary folders."""
    named: bool = False
    """A person or a trusted configuration named the source."""
    unclear: str = ""
    """Why it cannot be told what git would run or obey, with the file: then no tool may write."""


class HostState(Struct, frozen=True, kw_only=True):
    """What changes while the host runs, read once per decision."""

    disabled: tuple[Disabled, ...] = ()
    approvals: tuple[Approval, ...] = ()
    """Those that may concern the call at hand."""
    now: float = 0.0
    spent: Mapping[str, Tally] = field(default_factory=dict)
    """What was taken from the counters of the budgets that the call is charged to."""


class Terms(Struct, frozen=True):
    """On what terms a caller may call a tool: all that a decision needs besides the call and the state."""

    tool: Tool
    vetted: Vetted
    ground: Ground
    caller: str
    rules: ToolRules
    ruling: Ruling
    allow: Allow
    """The answer where no rule and no budget has a say, for a call that asks for no time of its own."""


class Policy:
    """The house's rules, and the one place that decides by them. It keeps nothing between two questions."""

    def __init__(self, house: HouseRules) -> None:
        self.house = house
        self._index = Index(house.policy)

    def terms(
        self, tool: Tool, *, vetted: Vetted, ground: Ground, caller: str, known: Terms | None = None
    ) -> Terms:
        """What follows from the rules for a tool and a caller. ``known``: the last terms of this very tool
        under these rules, if there are any; what still holds of them is taken over."""
        if known is None or known.ground.named is not ground.named:
            rules = self._rules(tool, named=ground.named)
        elif known.ground is ground and known.vetted == vetted:
            if known.caller == caller:
                return known
            return replace(known, caller=caller, ruling=self._ruling(known.rules, vetted.trust, caller))
        else:
            rules = known.rules
        ruling = self._ruling(rules, vetted.trust, caller)
        return Terms(tool, vetted, ground, caller, rules, ruling, self._allow(rules, vetted, ground))

    def decide(self, terms: Terms, call: ToolCall | None, state: HostState) -> Decision:
        """Whether the tool may run, and with what. Without a call: whether it might."""
        ruling, cwd = terms.ruling, terms.ground.cwd
        rule = ruling.rule(call, cwd)
        charges = ruling.charges(call, cwd)
        refusal = self._refusal(terms.rules, call, terms.vetted, state, rule, charges)
        if refusal is not None:
            return refusal
        approval: Approval | None = None
        if rule is not None and rule.answer is Answer.ASK:
            approval = _approval(terms.tool, call, state)
            if approval is not None and approval.state is ApprovalState.DENIED:
                return _denied(approval, state.now)
            said_yes = call is not None and call.approved_by
            if not said_yes and (approval is None or approval.state is not ApprovalState.APPROVED):
                question = f"May {terms.tool.key} run? ({rule.because})"
                return Ask(question=question, because=rule.because, rule=rule.place)
        allow = terms.allow
        if terms.ground.unclear and allow.permit.write:
            return Deny(
                message=f"git's files cannot be protected from it: {terms.ground.unclear}",
                because="it cannot be told what your next git command would run or obey",
                hint="make it a file that you and git can read and no other program locks",
                kind=Kind.UNAVAILABLE,
            )
        if call is not None and call.timeout_s is not None:
            limits = _limits(terms.tool, call.timeout_s, self.house)
            allow = replace(allow, permit=replace(allow.permit, limits=limits))
        if charges:
            allow = replace(allow, charges=charges)
        if rule is None:
            return allow
        allow = replace(allow, because=rule.because, rule=rule.place)
        if approval is None:
            return allow
        by = approval.answered_by if approval.edited is not None else ""
        return replace(allow, approval=approval.id, arguments=approval.edited, edited_by=by)

    def refusal(
        self, tool: Tool, *, vetted: Vetted, state: HostState, named: bool, caller: str = ""
    ) -> Deny | None:
        """Why a caller is not offered the tool; None: it is. The very refusal that ``decide`` gives without
        a call, for those who want to know it of many tools and need no permit."""
        rules = self._rules(tool, named=named)
        rule = self._ruling(rules, vetted.trust, caller).rule(None, "")
        return self._refusal(rules, None, vetted, state, rule, ())

    def writes(self, tool: Tool, folder: str, *, ground: Ground) -> bool:
        """Whether the tool could get a permit to write in a folder (a real path)."""
        permit, _ = _permit(_asked(tool, self.house.grants), self.house, ground)
        return is_below(folder, permit.write)

    def charges(self, terms: Terms, call: ToolCall | None) -> tuple[Charge, ...]:
        """What a call would take from which budgets. Read these counters before you decide."""
        return terms.ruling.charges(call, terms.ground.cwd)

    def depending(self, terms: Terms) -> tuple[Rule, ...]:
        """The rules that decide only when the arguments are known, the strongest first."""
        return tuple(rule for rule in terms.ruling.rules if rule.match.arguments)

    # -- what follows from the rules ------------------------------------------------------------------------

    def _rules(self, tool: Tool, *, named: bool) -> ToolRules:
        asked = _asked(tool, self.house.grants)
        if not self._index and not self.house.budgets:
            return ToolRules(tool, asked, (), ())
        seen = {
            # Attack: a tool that escapes a rule by the name it is called by.
            "name": names_of(tool),
            "key": (tool.key,),
            "format": (tool.origin.format,),
            "effect": (tool.effect.value,),
            "needs": _needed(tool, asked, self.house, named),
        }
        kept: list[Rule] = []
        for rule in self._index.fitting(seen):
            kept.append(rule)
            if not rule.match.arguments and not rule.match.asks_about(PASSING):
                break  # whatever else is known, it decides before those behind it
        fitting = tuple(budget for budget in self.house.budgets if budget.match.fits(seen, LASTING))
        return ToolRules(tool, asked, tuple(kept), fitting)

    @staticmethod
    def _ruling(rules: ToolRules, trust: Trust, caller: str) -> Ruling:
        if not rules.rules and not rules.budgets:
            return Ruling(rules.tool, (), None, None, ())
        seen = {"trust": (trust.value,), "caller": (caller,)}
        open_ones = _open_ones([rule for rule in rules.rules if rule.match.fits(seen, PASSING)])
        last = open_ones[-1] if open_ones and not open_ones[-1].match.arguments else None
        return Ruling(
            rules.tool,
            open_ones,
            last,
            ByArgument(open_ones) if len(open_ones) > (last is not None) else None,
            tuple(
                (budget, budget.charge(rules.tool, caller))
                for budget in rules.budgets
                if budget.match.fits(seen, PASSING)
            ),
        )

    def _allow(self, rules: ToolRules, vetted: Vetted, ground: Ground) -> Allow:
        permit, because = _permit(rules.asked, self.house, ground)
        notes = rules.asked.notes
        if vetted.waived:
            notes = (*notes, vetted.waived)
        elif vetted.message and vetted.trust is Trust.UNSIGNED:
            notes = (*notes, "unsigned: the configuration lets it run")
        permit = replace(permit, loads=vetted.loads, limits=_limits(rules.tool, None, self.house))
        return Allow(permit=permit, because=because, notes=notes)

    def _refusal(
        self,
        rules: ToolRules,
        call: ToolCall | None,
        vetted: Vetted,
        state: HostState,
        rule: Rule | None,
        charges: Sequence[Charge],
    ) -> Deny | None:
        tool = rules.tool
        refusal = _off(tool, state) or _not_callable(tool) or _amiss(vetted, self.house.unsigned)
        if refusal is not None:
            return refusal
        if rule is not None and rule.answer is Answer.DENY:
            return Deny(message=f"denied by policy: {rule.because}", because=rule.because, rule=rule.place)
        if rules.asked.missing:
            names = ", ".join(rules.asked.missing)
            return Deny(
                message=f"refused: missing capability {names}",
                because="the grants that name the tool do not cover what it requires",
                hint=f'add {names} to the needs of [grants."{tool.key}"]',
            )
        if call is None:
            return None
        if tool.needs.context:
            absent = [key for key in tool.needs.context if call.context.get(key) is None]
            if absent:
                return Deny(
                    message=f"missing context: {', '.join(absent)}",
                    because="the host did not hand over what the tool needs",
                    hint="hand it over with the call's context",
                    kind=Kind.UNAVAILABLE,
                )
        for charge in charges:
            again_s = budgets.again_s(state.spent.get(charge.counter, budgets.EMPTY), charge, state.now)
            if again_s != 0.0:
                return used_up(charge, again_s)
        return None


def used_up(charge: Charge, again_s: float | None) -> Deny:
    """The refusal where a budget has too little left: free again after a while, or never for such a call."""
    limits = [f"{charge.calls_max} calls"] if charge.calls_max is not None else []
    if charge.cost_max is not None:
        limits.append(f"a cost of {charge.cost_max / budgets.MILLION:g}")
    said = f"{' and '.join(limits) or 'nothing'} within {span(charge.within_s)}"
    if again_s is None:
        return Deny(
            message=f"no budget: {charge.because} ({said}; this call alone is more)",
            because=charge.because,
            hint=f"raise the budget at {charge.place}",
            rule=charge.place,
        )
    return Deny(
        message=f"budget used up: {charge.because} ({said}; free again in {span(again_s)})",
        because=charge.because,
        hint=f"call again in {span(again_s)}",
        kind=Kind.UNAVAILABLE,
        rule=charge.place,
        again_s=round(again_s, 3),
    )


def span(seconds: float) -> str:
    """A time for people: in the largest unit that divides it, else rounded up in one it holds twice."""
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s or (seconds and seconds % unit_s == 0):
            return f"{math.ceil(seconds / unit_s)} {unit}"
    return f"{math.ceil(seconds)} s"


# -- what the rules say about one tool ---------------------------------------------------------------------


class ToolRules(Struct, frozen=True):
    """What follows from a tool and the house's rules alone."""

    tool: Tool
    asked: _Asked
    rules: tuple[Rule, ...]
    budgets: tuple[Budget, ...]


class Ruling(Struct, frozen=True):
    """What the rules leave open once the tool, the caller and the trust are known: the arguments."""

    tool: Tool
    rules: tuple[Rule, ...]
    """Those that may still decide, the strongest first; behind one that asks for no arguments comes none."""
    last: Rule | None
    """That one."""
    by_argument: ByArgument | None
    """None: there are no others."""
    budgets: tuple[tuple[Budget, Charge], ...]

    def rule(self, call: ToolCall | None, cwd: str) -> Rule | None:
        if call is None or self.by_argument is None:
            return self.last
        return self.by_argument.first(call.arguments, cwd, self._meant(call))

    def charges(self, call: ToolCall | None, cwd: str) -> tuple[Charge, ...]:
        """The same counter is charged once, though two budgets say the same."""
        if not self.budgets:
            return ()
        meant = None if call is None else self._meant(call)
        found = {
            charge.counter: charge
            for budget, charge in self.budgets
            if call is None or budget.match.holds(call.arguments, cwd, meant)
        }
        return tuple(found.values())

    def _meant(self, call: ToolCall) -> JsonObject | None:
        """The arguments as the tool will understand them; None: as they are."""
        given = call.arguments
        if given is None:
            return None
        meant = meaning.meant(self.tool, given)
        return None if meant is given else meant


def _open_ones(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules up to the first that decides whatever the arguments are."""
    kept: list[Rule] = []
    for rule in rules:
        kept.append(rule)
        if not rule.match.arguments:
            break
    return tuple(kept)


def names_of(tool: Tool) -> tuple[str, ...]:
    """Every name that a tool is known by: its own, aliases, and how models of any provider speak of it."""
    own = tuple(filter(None, (tool.name, tool.spoken, *tool.aliases)))
    spoken = [pattern.sub("_", name) for name in own for pattern in _UNSPEAKABLE]
    spoken += [f"_{name}" for name in spoken if not _BEGINS.match(name)]
    return tuple(dict.fromkeys((*own, *spoken)))


_UNSPEAKABLE: Final = (re.compile(r"[^A-Za-z0-9_-]"), re.compile(r"[^A-Za-z0-9._-]"))
"""What the providers' rules of names, and MCP's, put ``_`` for (``dialects/``)."""
_BEGINS: Final = re.compile(r"[A-Za-z_]")


def _needed(tool: Tool, asked: _Asked, house: HouseRules, named: bool) -> tuple[str, ...]:
    """What rules about needs look at: what a tool asks for, and what it gets.

    Attack: a tool that escapes a rule about its needs by stating none, and gets them from the profile.
    """
    names = {*tool.needs.capabilities, *asked.capabilities, *(f"env:{name}" for name in asked.env)}
    if not asked.stated:
        names |= _OF_PROFILE[_profile(house, named)]
    names |= {name for name in CAPABILITIES if any(covers(need, name) for need in tool.needs.capabilities)}
    return tuple(sorted(names))


# -- what a person has answered -----------------------------------------------------------------------------


def scope_of(tool: Tool, call: ToolCall) -> str | None:
    """The digest of all that an approval is about but the arguments; None where nobody knows what would run.

    Attack: approve, then swap the tool. Its description, schema, program and scripts are part of this, and
    the effect that it declares.
    """
    if call.seen_digest is None or call.runs_digest is None:
        return None
    effect = (tool.declared_effect or tool.effect).value
    return jsontext.digest([tool.key, call.caller, call.seen_digest, call.runs_digest, effect])


def _approval(tool: Tool, call: ToolCall | None, state: HostState) -> Approval | None:
    """The approval that is about this very call and still counts: a refusal first, then an answer to these
    arguments, then one to any arguments of the tool, then the question that waits."""
    if call is None or not state.approvals:
        return None
    scope = scope_of(tool, call)
    mine = [one for one in state.approvals if one.scope == scope and state.now < one.until]
    if not mine:
        return None
    digest = jsontext.digest(call.arguments)
    exact = {one.state: one for one in mine if one.arguments_digest == digest}
    for wanted in (ApprovalState.DENIED, ApprovalState.APPROVED):
        if wanted in exact:
            return exact[wanted]
    for one in mine:
        if one.standing and one.state is ApprovalState.APPROVED:
            return one
    return exact.get(ApprovalState.WAITING)


def _denied(approval: Approval, now: float) -> Deny:
    why = f": {approval.answer_because}" if approval.answer_because else ""
    return Deny(
        message=f"a person denied this call{why}",
        because=f"approval {approval.id} was denied by {approval.answered_by}",
        hint=f"it may be asked for again in {span(approval.until - now)}",
    )


# -- refusals that need no permit ---------------------------------------------------------------------------


def switch_of(tool: Tool, disabled: Sequence[Disabled], now: float) -> Disabled | None:
    """What holds a tool off, whichever of its names was switched; None: it is on."""
    if not disabled:
        return None
    # Every name that leads to the tool: switching it off by one must not leave another one open.
    names = (tool.key, *names_of(tool))
    return next(
        (off for off in disabled if off.tool in names and (off.until is None or now < off.until)), None
    )


def why_off(tool: Tool, disabled: Sequence[Disabled], now: float) -> str | None:
    """Why a tool is switched off, for listing and calling alike; None: it is not."""
    off = switch_of(tool, disabled, now)
    if off is None:
        return None
    why = f": {off.reason}" if off.reason else ""
    left = ""
    if off.until is not None:
        seconds = math.ceil(off.until - now)
        left = f"{seconds} s" if seconds < 60 else f"{math.ceil(seconds / 60)} min"
        left = f" (for another {left})"
    return f"disabled{why}{left}"


def _off(tool: Tool, state: HostState) -> Deny | None:
    why = why_off(tool, state.disabled, state.now)
    if why is None:
        return None
    return Deny(
        message=f"{tool.name} is {why}",
        because=DISABLED,
        hint=f"toolcrib enable {tool.key}",
    )


def _not_callable(tool: Tool) -> Deny | None:
    if isinstance(tool.invocation, NotCallable):
        return Deny(
            message=f"{tool.name} cannot be called: {tool.invocation.reason}",
            because="nothing runs",
            kind=Kind.UNAVAILABLE,
        )
    if tool.role is not Role.TOOL:
        return Deny(
            message=f"{tool.name} cannot be called: other tools use it",
            because=f"its role is {tool.role}",
            kind=Kind.UNAVAILABLE,
        )
    return None


def _amiss(vetted: Vetted, unsigned: Unsigned) -> Deny | None:
    """A refusal in the format's own words, where something is amiss with the bytes."""
    if vetted.trust in (Trust.SIGNED, Trust.PINNED) or vetted.waived:
        return None
    if vetted.trust is Trust.UNSIGNED and (not vetted.message or unsigned is Unsigned.WARN):
        return None
    message = vetted.message or f"its files are {vetted.trust}"
    return Deny(message=message, because=str(vetted.trust), hint=vetted.hint)


# -- what is asked for, and what of it is granted -----------------------------------------------------------


class _Asked(Struct, frozen=True):
    """What a tool gets by name. ``stated`` is False where nobody said anything: a profile answers then."""

    stated: bool
    capabilities: frozenset[str] = frozenset()
    env: tuple[str, ...] = ()
    vault: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    because: str = ""


def covers(grant: str, name: str) -> bool:
    """Whether a grant covers a capability: its own name, and names below it (``fs`` covers ``fs.write``)."""
    return name == grant or (name.startswith(f"{grant.removesuffix('.*')}.") and name not in HOST_ONLY)


def _asked(tool: Tool, grants: Sequence[Grant]) -> _Asked:
    needs = tool.needs
    granting = [grant for grant in grants if fnmatchcase(tool.key, grant.pattern)] if grants else []
    env, notes = _env(tool, granting)
    vault = tuple(dict.fromkeys(name for grant in granting for name in grant.env if name != "*"))
    bounding = [grant for grant in granting if grant.needs is not None]
    granted = tuple(dict.fromkeys(name for grant in bounding for name in grant.needs or ()))
    because = f'[grants."{bounding[0].pattern}"]' if bounding else "what it states"
    if not needs.stated:
        if not bounding:
            return _Asked(stated=False, env=env, vault=vault, notes=notes)
        got = {name for name in CAPABILITIES if any(covers(grant, name) for grant in granted)}
        notes += _unknown(
            [
                grant
                for grant in granted
                if not any(covers(grant, name) for name in (*CAPABILITIES, *HOST_ONLY))
            ],
            "granted",
        )
        got |= set(granted) & set(HOST_ONLY)
        return _Asked(
            stated=True, capabilities=frozenset(got), env=env, vault=vault, notes=notes, because=because
        )
    missing: tuple[str, ...] = ()
    if bounding:
        missing = tuple(
            name for name in needs.capabilities if not any(covers(grant, name) for grant in granted)
        )
    got = {name for name in CAPABILITIES if any(covers(asked, name) for asked in needs.capabilities)}
    if bounding:  # `requires: [fs]` under grants of `fs.write` alone is missing above, never widened here
        got = {name for name in got if any(covers(grant, name) for grant in granted)}
    notes += _unknown(
        [
            asked
            for asked in needs.capabilities
            if not any(covers(asked, name) for name in CAPABILITIES) and asked not in granted
        ],
        "required",
    )
    got |= set(granted) & set(HOST_ONLY)
    return _Asked(
        stated=True,
        capabilities=frozenset(got),
        env=env,
        vault=vault,
        missing=missing,
        notes=notes,
        because=because,
    )


def _unknown(names: Sequence[str], how: str) -> tuple[str, ...]:
    return tuple(
        f"{how} capability {name} gives nothing: only a host grant of that name does"
        if name in HOST_ONLY
        else f"{how} capability {name} gives nothing: nobody here knows it"
        for name in names
    )


def _env(tool: Tool, granting: Sequence[Grant]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables a tool receives, and what to say about those it does not.

    Attack: a declaration that passes ``LD_PRELOAD`` through, and with it code of the host's surroundings into
    the tool. Only a grant, which the host wrote, may name such a variable.
    """
    granted = [name for grant in granting for name in grant.env]
    if "*" in granted:
        return ("*",), ()
    kept: list[str] = []
    notes: list[str] = []
    for name in tool.needs.env:
        if name == "*":
            notes.append("all variables were asked for: only a host grant gives them")
        elif is_loader(name) and name not in granted:
            notes.append(
                f"{name} is not handed over: it makes programs load code, so a host grant must name it"
            )
        else:
            kept.append(name)
    return tuple(dict.fromkeys((*kept, *granted))), tuple(notes)


def is_loader(name: str) -> bool:
    """Whether a variable makes a program load or run code."""
    return name in LOADER_NAMES or name.startswith(_LOADER_PREFIXES)


# -- the permit ---------------------------------------------------------------------------------------------


def _permit(asked: _Asked, house: HouseRules, ground: Ground) -> tuple[Permit, str]:
    has = asked.capabilities.__contains__
    roots = (ground.project,) if ground.cwd == ground.project else (ground.project, ground.cwd)
    protected = (*ground.protected, *(ground.git_code if has("git.write") else ground.git))
    if asked.stated:
        read: tuple[str, ...] = roots if has("fs.read") or has("fs.write") else ()
        write: tuple[str, ...] = roots if has("fs.write") else ()
        if has("git.write"):
            write = (*write, *(path for path in ground.git if not is_below(path, write)))
            read = (*read, *ground.git_settings)
        permit = Permit(
            read=read,
            write=write,
            programs=Programs.ANY if has("shell.execute") else Programs.OWN,
            network=has("net.http"),
            private=has("net.private"),
            unix_sockets=has("net.unix"),
        )
        because = asked.because
    else:
        profile = _profile(house, ground.named)
        permit = _of_profile(profile, roots, ground)
        because = f"it states no needs: profile {profile}"
    return (
        replace(
            permit,
            protected=protected if permit.write else (),
            forbidden=_forbidden(permit, ground, with_git=has("git.write")),
            git=tuple(path for path in ground.git if is_below(path, permit.write))
            if has("git.write")
            else (),
            unprotected=has("fs.write.unprotected"),
            hidden=ground.hidden,
            env=asked.env,
            vault=asked.vault,
            level=house.require,
        ),
        because,
    )


def _forbidden(permit: Permit, ground: Ground, *, with_git: bool) -> tuple[str, ...]:
    """Return what must not come to be where the tool may write."""
    absent = (*ground.absent, *(ground.git_absent if with_git else ()))
    return tuple(path for path in absent if is_below(path, permit.write))


def _profile(house: HouseRules, named: bool) -> Profile:
    """What answers for a tool that states no needs."""
    profile = house.undeclared or Profile.OPEN
    return Profile.PROJECT if profile is Profile.OPEN and not named else profile


_OF_PROFILE: Final = {
    Profile.OPEN: {*CAPABILITIES, "net.unix"},
    Profile.PROJECT: {"fs.read", "fs.write", "shell.execute"},
    Profile.CLOSED: {"shell.execute"},
}
"""The same in the words of needs."""


def _of_profile(profile: Profile, roots: tuple[str, ...], ground: Ground) -> Permit:
    if profile is Profile.OPEN:
        return Permit(profile=profile, read=("/",), write=("/",), network=True, unix_sockets=True)
    if profile is Profile.PROJECT:
        return Permit(profile=profile, read=roots, write=(*roots, *ground.temporary))
    return Permit(profile=Profile.CLOSED)


def _limits(tool: Tool, asked_s: float | None, house: HouseRules) -> Limits:
    """The caller's time, else the tool's own, else the house's; everything else as the house says."""
    asked = (asked_s, tool.needs.timeout_s, house.timeout_s)
    timeout_s = next((value for value in asked if value is not None and value > 0), _LIMITS.timeout_s)
    stdout = house.limits.stdout_bytes_max
    if tool.needs.stdout_bytes_max is not None:
        stdout = min(stdout, tool.needs.stdout_bytes_max)
    return replace(
        house.limits,
        timeout_s=min(max(timeout_s, _TIMEOUT_S_MIN), TIMEOUT_S_MAX),
        stdout_bytes_max=stdout,
    )
