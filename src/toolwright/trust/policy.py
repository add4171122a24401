"""Rules to a decision: may this tool run now, and with what. Pure and total.

``decide`` takes everything it looks at as values: the tool, what is known about its bytes, the house's rules,
the ground it would stand on and the host's state. It answers with a permit, a question or a refusal, and
never raises. It does not enforce anything: ``sandbox/rules.py`` says what a permit means to the kernel.

Asking is not being granted. What a tool states is an upper bound on what it gets, grants that name the tool
are another, and some things (``HOST_ONLY``) only a grant gives, however loudly a declaration asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from toolwright.errors import Kind
from toolwright.model import (
    LOADER_NAMES,
    TIMEOUT_S_MAX,
    Allow,
    Ask,
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
from toolwright.records import dataclass, replace

CAPABILITIES: Final = ("fs.read", "fs.write", "net.http", "shell.execute")
"""What a declaration may ask for and get."""
HOST_ONLY: Final = ("git.write", "fs.write.unprotected", "net.private", "net.unix")
"""What only a grant gives, and only by its full name."""

_LIMITS: Final = Limits()
_TIMEOUT_S_MIN: Final = 0.001
_LOADER_PREFIXES: Final = ("LD_", "DYLD_", "BASH_FUNC_")


class Unsigned(StrEnum):
    """What happens to an unsigned tool of a format that has signatures."""

    REFUSE = "refuse"
    WARN = "warn"


class Answer(StrEnum):
    """What a rule of ``[[policy]]`` says, the strongest first."""

    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One ``[[policy]]``: what it fits, and what it says then.

    ``understood`` is False where ``match`` held something we cannot read. Such a rule never allows anything,
    and refuses whatever the rest of it fits: not knowing a word must not open a door.
    """

    match: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Subject (``key``, ``name``, ``format``, ``effect``) and the patterns of which one must fit."""
    answer: Answer
    because: str = ""
    understood: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseRules:
    """What the host's configuration says about running tools."""

    grants: tuple[Grant, ...] = ()
    undeclared: Profile | None = None
    """For tools that state no needs; None: ``open`` where a person named the source. Never wider than
    ``project`` for other sources."""
    require: Level = Level.PORTABLE
    unsigned: Unsigned = Unsigned.REFUSE
    policy: tuple[Rule, ...] = ()
    timeout_s: float = 30.0
    limits: Limits = _LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
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
    hidden: tuple[str, ...] = ()
    """Our own state, keys and journal."""
    temporary: tuple[str, ...] = ()
    """The system's temporary folders."""
    named: bool = False
    """A person or a trusted configuration named the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What changes while the host runs, read once per decision."""

    disabled: tuple[Disabled, ...] = ()
    now: float = 0.0


def decide(
    tool: Tool,
    call: ToolCall | None,
    *,
    vetted: Vetted,
    house: HouseRules,
    ground: Ground,
    state: HostState,
) -> Decision:
    """Whether the tool may run, and with what. Without a call: whether it might."""
    refusal = _off(tool, state) or _not_callable(tool) or _amiss(vetted, house.unsigned)
    if refusal is not None:
        return refusal
    known = _KNOWN.get(tool.key)
    if known is None or known.tool is not tool or known.house is not house or known.ground is not ground:
        known = _know(tool, house, ground)
    strongest, asked = known.strongest, known.asked
    if strongest is not None and strongest.answer is Answer.DENY:
        because = strongest.because or "a rule refuses it"
        return Deny(message=f"denied by policy: {because}", because=because)
    if asked.missing:
        names = ", ".join(asked.missing)
        return Deny(
            message=f"refused: missing capability {names}",
            because="the grants that name the tool do not cover what it requires",
            hint=f'add {names} to the needs of [grants."{tool.key}"]',
        )
    if call is not None and tool.needs.context:
        absent = [key for key in tool.needs.context if call.context.get(key) is None]
        if absent:
            return Deny(
                message=f"missing context: {', '.join(absent)}",
                because="the host did not hand over what the tool needs",
                hint="hand it over with the call's context",
                kind=Kind.UNAVAILABLE,
            )
    approved = call is not None and call.approved_by
    if strongest is not None and strongest.answer is Answer.ASK and not approved:
        because = strongest.because or "a rule asks for it"
        return Ask(question=f"May {tool.name} run? ({because})", because=because)
    timeout_s = call.timeout_s if call is not None else None
    allow = known.allowed.get((timeout_s, vetted))
    if allow is None:
        allow = _allow(known, timeout_s, vetted)
    return allow


# -- the same question again --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """What follows from a tool, the house's rules and the ground alone. Every call asks for it again."""

    tool: Tool
    house: HouseRules
    ground: Ground
    strongest: Rule | None
    asked: _Asked
    permit: Permit
    because: str
    allowed: dict[tuple[float | None, Vetted], Allow]


_KNOWN: Final[dict[str, _Known]] = {}
"""The last answer for each key: a shortcut for the very same values, which never gives another answer."""
_KNOWN_MAX: Final = 1024
_ALLOWED_MAX: Final = 16


def _know(tool: Tool, house: HouseRules, ground: Ground) -> _Known:
    asked = _asked(tool, house.grants)
    permit, because = _permit(asked, house, ground)
    known = _Known(tool, house, ground, _strongest(tool, house.policy), asked, permit, because, {})
    if len(_KNOWN) >= _KNOWN_MAX:
        _KNOWN.clear()
    _KNOWN[tool.key] = known
    return known


def _allow(known: _Known, timeout_s: float | None, vetted: Vetted) -> Allow:
    because, notes = known.because, known.asked.notes
    if known.strongest is not None:
        because = known.strongest.because or because
    if vetted.waived:
        notes = (*notes, vetted.waived)
    elif vetted.message and vetted.trust is Trust.UNSIGNED:
        notes = (*notes, "unsigned: the configuration lets it run")
    permit = replace(known.permit, loads=vetted.loads, limits=_limits(known.tool, timeout_s, known.house))
    allow = Allow(permit=permit, because=because, notes=notes)
    if len(known.allowed) >= _ALLOWED_MAX:
        known.allowed.clear()
    known.allowed[timeout_s, vetted] = allow
    return allow


# -- refusals that need no permit ---------------------------------------------------------------------------


def _off(tool: Tool, state: HostState) -> Deny | None:
    if not state.disabled:
        return None
    # Every name that leads to the tool: switching it off by one must not leave another one open.
    names = (tool.key, tool.name, tool.spoken, *tool.aliases)
    for entry in state.disabled:
        if entry.tool in names and (entry.until is None or state.now < entry.until):
            why = f": {entry.reason}" if entry.reason else ""
            left = ""
            if entry.until is not None:
                seconds = math.ceil(entry.until - state.now)
                span = f"{seconds} s" if seconds < 60 else f"{math.ceil(seconds / 60)} min"
                left = f" (for another {span})"
            return Deny(
                message=f"{tool.name} is disabled{why}{left}",
                because="disabled",
                hint=f"toolwright enable {tool.key}",
            )
    return None


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


# -- [[policy]] ---------------------------------------------------------------------------------------------

_SUBJECTS: Final = ("key", "name", "format", "effect")
_STRENGTH: Final = {answer: place for place, answer in enumerate(Answer)}


def rules_of(tables: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The rules of ``[[policy]]`` tables. Total: what it cannot read, it distrusts."""
    return tuple(_rule(table) for table in tables)


def _rule(table: Mapping[str, Any]) -> Rule:
    match: list[tuple[str, tuple[str, ...]]] = []
    understood = set(table) <= {"match", "decision", "because"}
    given = table.get("match", {})
    if not isinstance(given, Mapping):
        given, understood = {}, False
    for subject, wanted in given.items():
        patterns = (wanted,) if isinstance(wanted, str) else wanted
        readable = isinstance(patterns, (tuple, list)) and all(isinstance(item, str) for item in patterns)
        if subject in _SUBJECTS and readable:
            match.append((subject, tuple(patterns)))
        else:
            understood = False
    decision = str(table.get("decision"))
    answer = Answer(decision) if decision in [*Answer] else Answer.DENY
    because = table.get("because", "")
    return Rule(
        match=tuple(match),
        answer=answer,
        because=because if isinstance(because, str) else "",
        understood=understood and decision in [*Answer],
    )


def _strongest(tool: Tool, rules: Sequence[Rule]) -> Rule | None:
    """The rule that decides: of those that fit, a refusal wins, then a question."""
    found: Rule | None = None
    for rule in rules:
        if rule.answer is Answer.ALLOW and not rule.understood:
            continue
        if (found is None or _STRENGTH[rule.answer] < _STRENGTH[found.answer]) and _fits(tool, rule):
            found = rule
    return found


def _fits(tool: Tool, rule: Rule) -> bool:
    for subject, patterns in rule.match:
        if subject == "key":
            texts: tuple[str, ...] = (tool.key,)
        elif subject == "name":
            # Attack: a tool that escapes a rule by the name it is called by.
            texts = (tool.name, tool.spoken, *tool.aliases)
        elif subject == "format":
            texts = (tool.origin.format,)
        else:
            texts = (tool.effect.value,)
        if not any(fnmatchcase(text, pattern) for text in texts for pattern in patterns):
            return False
    return True


# -- what is asked for, and what of it is granted -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
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
        profile = house.undeclared or Profile.OPEN
        if profile is Profile.OPEN and not ground.named:
            profile = Profile.PROJECT
        permit = _of_profile(profile, roots, ground)
        because = f"it states no needs: profile {profile}"
    return (
        replace(
            permit,
            protected=protected if permit.write else (),
            forbidden=ground.git_absent if has("git.write") and permit.write else (),
            unprotected=has("fs.write.unprotected"),
            hidden=ground.hidden,
            env=asked.env,
            vault=asked.vault,
            level=house.require,
        ),
        because,
    )


def _of_profile(profile: Profile, roots: tuple[str, ...], ground: Ground) -> Permit:
    if profile is Profile.OPEN:
        return Permit(profile=profile, read=("/",), write=("/",), network=True, unix_sockets=True)
    if profile is Profile.PROJECT:
        return Permit(profile=profile, read=roots, write=(*roots, *ground.temporary))
    return Permit(profile=Profile.CLOSED)


def is_below(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of the roots or lies below one. Whole components, so /a-b is not below /a.

    Nothing is below a root that is not known (""), though every absolute path begins like it.
    """
    return any(root and (path == root or path.startswith(f"{root.rstrip('/')}/")) for root in roots)


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
