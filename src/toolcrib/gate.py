"""What decides, put together: the house's rules, the ground, the store's switches and counters, the vetting.

Listing, explaining and calling ask the same gate, so they never disagree. It needs no sandbox and starts
nothing: a crib that only lists has a gate and no hands. Nothing is decided here: ``trust/policy.py``
does, by what is gathered here. What a call does with the decision is ``engine.py``'s business.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import former, jsontext
from toolcrib.bound import BoundTool, CatalogSnapshot
from toolcrib.catalog import loading, places, sources
from toolcrib.catalog.digests import Contents
from toolcrib.catalog.places import Code, Places
from toolcrib.catalog.searched import MODULE_PATHS
from toolcrib.config import Config, Environment, current_folder, lock_folder, own_code
from toolcrib.errors import Kind, StoreError
from toolcrib.formats import server_of
from toolcrib.model import (
    LOCK_NAME,
    LOCKS,
    Allow,
    Approval,
    Ask,
    CallJavaScript,
    CallMcp,
    CallPython,
    Charge,
    Decision,
    Deny,
    Disabled,
    Grant,
    Permit,
    RunContainer,
    RunProcess,
    Tool,
    ToolCall,
    Trust,
    Vetted,
)
from toolcrib.paths import is_below, is_utf8
from toolcrib.store.keep import FRESH_S, STORE_NAME, Keep
from toolcrib.trust import budgets, policy
from toolcrib.trust.budgets import Tally, budgets_of
from toolcrib.trust.rules import Answer, Rule, rules_of

if TYPE_CHECKING:
    from toolcrib.catalog.unconfirmed import Unconfirmed
    from toolcrib.sandbox.ground import Grounds
    from toolcrib.trust.lock import Entry
    from toolcrib.trust.pinning import LockNotes, Pins
    from toolcrib.trust.seen import Memory, Older, SignedFile
    from toolcrib.trust.spending import Spending
    from toolcrib.trust.vetting import Vetter

_UNVETTED: Final = Vetted()
_DOTENV: Final = ".env"
_FOLDERS_MAX: Final = 64
_NAMES_MAX: Final = 256
"""So much of a project's configuration is looked through for what appeared."""
_STARTING: Final = (RunProcess, CallPython, CallJavaScript, CallMcp, RunContainer)
"""What starts something of the tool's own."""


class BudgetLeft(Struct, frozen=True, kw_only=True):
    """How one budget stands for a caller of a tool."""

    place: str
    because: str
    calls_left: int | None
    cost_left: float | None
    within_s: float
    again_s: float | None
    """In how many seconds the next call fits: 0 now, None never."""


class Explanation(Struct, frozen=True, kw_only=True):
    """A decision and what people want to know besides. Nothing was run for it."""

    tool: Tool
    caller: str
    decision: Decision
    permit: Permit | None
    """What it gets, or would get once a person said yes; None where it is refused."""
    budgets: tuple[BudgetLeft, ...] = ()
    depending: tuple[Rule, ...] = ()
    """Rules that may decide otherwise once the arguments are known; empty where they were."""
    approvals: tuple[Approval, ...] = ()
    """Questions that wait, and answers that count, for this tool and caller; with a call, for it alone."""
    notes: tuple[str, ...] = ()


class Gate:
    """Gathers what a decision needs. Made once for a crib; any thread may ask."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        report: Callable[[], loading.LoadReport],
        *,
        pins: Callable[[Gate], Pins],
        vetter: Callable[[Gate], Vetter],
        unconfirmed: Callable[[], Unconfirmed | None] = lambda: None,
    ) -> None:
        """``pins`` and ``vetter`` make the lock and what verifies signatures, once they are needed.
        ``unconfirmed``: what appeared where tools may write; None where nothing can have."""
        self._report = report
        self.contents = Contents()
        self._pins = LaterPins(lambda: pins(self), config, environment)
        self._make_vetter = vetter
        self._unconfirmed = unconfirmed
        # Attack: any environment variable that switches verifying off. The host must have opted in.
        self.takes_unsigned = policy.Unsigned(config.unsigned) is policy.Unsigned.WARN
        self.is_development = config.dev_mode and environment.variables.get("RYE_DEV_MODE") == "1"
        self._guarded: loading.LoadReport | None = None
        self._others: tuple[str, ...] = ()
        """What is guarded for other hosts."""
        self._placed: tuple[loading.LoadReport, Places] | None = None
        self._listed: tuple[sources.Listing, Places] | None = None
        self._places: dict[str, tuple[str, bool]] = {}
        """Each declaration's project, and whether a person named its source: neither changes."""
        self.cwd = current_folder()
        self._user = environment.user
        self._house = policy.HouseRules(
            grants=config.grants,
            undeclared=config.undeclared,
            require=config.require,
            unsigned=policy.Unsigned(config.unsigned),
            policy=rules_of(config.policy, config.policy_places),
            budgets=budgets_of(config.budgets, config.budget_places),
            timeout_s=config.timeout_s,
            limits=config.limits,
        )
        self._policy = policy.Policy(self._house)
        # A rule that asks a person, or about an effect, is about the calls of a server's tools. A server that
        # never starts could not even be read from where nothing may be written.
        denying = tuple(
            rule
            for rule in self._house.policy
            if rule.answer is Answer.DENY and not rule.match.asks_about(("effect",))
        )
        self._server_policy = policy.Policy(replace(self._house, policy=denying, budgets=()))
        self.spaces = sources.Spaces.installed(environment.user_space)
        self._around = places.Around(
            cwd=self.cwd,
            home=environment.home,
            user=environment.user_space,
            search=_searched(environment, config.grants),
            handlers=tuple(source.handlers for source in config.sources if source.handlers),
            names=(_DOTENV,) if config.load_dotenv else (),
            named=tuple(source.path for source in config.sources if os.path.isabs(source.path)),
        )
        self.named = (
            # Attack: a project whose tools get a wider profile because its configuration is left out.
            *(
                source.path
                for source in config.sources
                if source.named or (config.trusted and not source.found)
            ),
            *config.extra_dirs,
            os.path.join(self.spaces.user, ".ai"),
            *(os.path.join(space, ".ai", "tools") for space in self.spaces.systems),
        )
        self.keep = None if config.state is None else Keep(os.path.join(config.state, STORE_NAME))
        self._spending: Spending | None = None
        if self.keep is not None and self._house.budgets:
            spending = import_module("toolcrib.trust.spending")
            self._spending = spending.Spending(self.keep.opened, self.keep.present)
        self._config = config
        self._environment = environment
        self._making = threading.Lock()
        self._made: Grounds | None = None
        self._vetter: Vetter | None = None
        self._snapshot: tuple[loading.LoadReport, CatalogSnapshot] | None = None
        self._servers: dict[str, BoundTool] = {}
        """MCP servers, by key. Apart from tools: other rules decide about them, while a catalog is loaded."""

    # -- the catalog ----------------------------------------------------------------------------------------

    def snapshot(self) -> CatalogSnapshot:
        """The catalog as it is now, with the tools of it that were called."""
        report, made = self._report(), self._snapshot
        if made is None or made[0] is not report:
            made = self._snapshot = (report, CatalogSnapshot(report.catalog, report.version))
        return made[1]

    def _look(self, tool: Tool) -> BoundTool:
        """The bound tool for one who has a record at hand, also while the first catalog is loaded."""
        return BoundTool(tool) if self._snapshot is None else self._snapshot[1].look(tool)

    # -- calling --------------------------------------------------------------------------------------------

    def decide(
        self, bound: BoundTool, call: ToolCall | None, caller: str | None = None, vetted: Vetted | None = None
    ) -> Decision:
        """Whether a tool may run now, and with what. Without a call: whether it might. ``vetted``: what is
        known about its bytes, from whoever has just looked.

        What is signed and may run now is kept in mind as the newest of its place.
        """
        is_looked_at = vetted is not None or call is None or call.dry_run
        if vetted is None:
            vetted = self._vet(bound, call)
        decision = self._decide(bound, call, self._user if caller is None else caller, vetted)
        if vetted.trust is Trust.SIGNED and isinstance(decision, Allow) and not is_looked_at:
            return self._remember(bound) or decision
        return decision

    def _decide(self, bound: BoundTool, call: ToolCall | None, caller: str, vetted: Vetted) -> Decision:
        now = time.time()
        try:
            disabled = self.disabled(now)
        except StoreError as error:  # Attack: a store that is broken on purpose, to switch a tool on again
            return _unread("what was switched off cannot be read, so nothing runs", error)
        terms = self._terms(bound, caller if call is None else call.caller, vetted)
        spent: dict[str, Tally] = {}
        if self._house.budgets:
            try:
                spent = self._spent(self._policy.charges(terms, call), now)
            except StoreError as error:  # Attack: the same for a budget that is used up
                return _unread("what was spent cannot be read, so nothing that has a budget runs", error)
        state = policy.HostState(disabled=disabled, now=now, spent=spent)
        asked = replace(call, approved_by="") if call is not None and call.approved_by else call
        decision = self._policy.decide(terms, asked, state)
        if call is None or self.keep is None or not isinstance(decision, Ask):
            return decision
        try:  # answers are looked up only where somebody would be asked: most calls need none
            store = self.keep.present()  # whoever only looks makes none
            if store is not None:
                of = import_module("toolcrib.trust.approvals").of
                state = replace(state, approvals=of(store, bound.tool, call))
        except StoreError as error:  # Attack: a store that is broken on purpose, to forget a refusal
            return _unread("what was approved cannot be read, so nothing runs", error)
        return self._policy.decide(terms, call, state)

    def _terms(self, bound: BoundTool, caller: str, vetted: Vetted) -> policy.Terms:
        """On what terms a caller may call a tool, which stand until its bytes or its ground change."""
        ground = self._ground(bound)
        bound.terms = terms = self._policy.terms(
            bound.tool, vetted=vetted, ground=ground, caller=caller, known=bound.terms
        )
        return terms

    def reserve(self, charges: Sequence[Charge]) -> Deny | None:
        """Take a call's share from its budgets, before it runs; else why it does not."""
        assert self._spending is not None
        try:
            return self._spending.reserve(charges, time.time())
        except StoreError as error:
            return _unread("what this call spends cannot be kept, so it does not run", error)

    def decide_server(self, tool: Tool) -> Decision:
        """Whether a server itself may be started, and with what."""
        now = time.time()
        try:
            disabled = self.disabled(now)
        except StoreError as error:  # Attack: a store that is broken on purpose, to switch a server on again
            return _unread("what was switched off cannot be read, so no server starts", error)
        bound = self._servers.get(tool.key)
        if bound is None or bound.tool != tool:
            bound = self._servers[tool.key] = BoundTool(tool)
        named = is_below(tool.origin.path, self.named)
        bound.ground = ground = self._grounds.of(
            tool, project=self.cwd, cwd=self.cwd, named=named, known=bound.ground
        )
        bound.terms = terms = self._server_policy.terms(
            tool,
            vetted=self._vet(bound, None),
            ground=ground.ground,
            caller=self._user,
            known=bound.terms,
        )
        return self._server_policy.decide(terms, None, policy.HostState(disabled=disabled, now=now))

    def vet(self, tool: Tool, call: ToolCall | None = None) -> Vetted:
        """What is known about a tool's bytes, by its signatures and by the lock."""
        return self._vet(self._look(tool), call)

    def _vet(self, bound: BoundTool, call: ToolCall | None) -> Vetted:
        tool = bound.tool
        found = self._pins.vet(tool, call, self._vet_signature(bound, call), bound.locks)
        unconfirmed = self._unconfirmed() if isinstance(tool.invocation, _STARTING) else None
        # Attack: code that a tool put where another one looks for it, and that gets what this one is granted.
        if unconfirmed is not None and unconfirmed.matters(tool):
            bound.code = code = unconfirmed.code(tool, bound.code)
            if (record := unconfirmed.bars(tool, code)) is not None:
                message, hint = import_module("toolcrib.catalog.unconfirmed").words_of(record)
                return replace(found, trust=Trust.UNTRUSTED, message=message, hint=hint, waived="")
        if found.trust is Trust.SIGNED and self.memory is not None and not self._pins.holds(bound.locks):
            return self._unless_older(bound, found, self.memory)
        return found

    def _vet_signature(self, bound: BoundTool, call: ToolCall | None) -> Vetted:
        """What is known about a tool's bytes by its signatures alone."""
        if bound.tool.signature is None:  # most have none: nothing about signatures is imported for them
            return _UNVETTED
        found = bound.vetting = self.vetter.vet(bound.tool, bound.vetting)
        return _UNVETTED if found is None else self.vetter.vetted(found, call)

    def is_verified(self, bound: BoundTool, call: ToolCall) -> bool:
        """Whether a format's signatures, where it has any, vouch for what this call runs."""
        return bound.tool.signature is None or self._vet_signature(bound, call).trust is Trust.SIGNED

    def older(self, tool: Tool) -> Vetted | None:
        """Why a signed tool is older than what ran here, where it is; by its files as they are now."""
        if tool.signature is None or self.memory is None:
            return None
        bound = self._look(tool)
        found = self._pins.vet(tool, None, self._vet_signature(bound, None), bound.locks)
        if found.trust is not Trust.SIGNED or self._pins.holds(bound.locks):
            return None
        vetted = self._unless_older(bound, found, self.memory)
        return None if vetted is found else vetted

    def signed_files(self, tool: Tool) -> tuple[SignedFile, ...]:
        """The files that are verified for a tool, as they lie there now; none where it is not signed."""
        found = self.vetter.vet(tool)
        return () if found is None else found.signed

    def _unless_older(self, bound: BoundTool, vetted: Vetted, memory: Memory) -> Vetted:
        """What is known about a signed tool, once it was asked what has run here before."""
        assert bound.vetting is not None
        files = bound.vetting.signed
        if bound.newest is files:
            return vetted
        try:
            older = memory.older(files)
        except StoreError as error:
            return self.vetter.waived(Vetted(trust=Trust.DRIFTED, message=error.message, hint=error.hint))
        # Attack: an older version of a signed file, with a fault that was fixed since: its signature is good.
        if older is not None:
            return self.vetter.waived(_older(older, files[0].path))
        bound.newest = files
        return vetted

    def _remember(self, bound: BoundTool) -> Deny | None:
        """Keep in mind what runs now; else why it does not."""
        assert bound.vetting is not None
        files = bound.vetting.signed
        if self.memory is None or bound.remembered is files:
            return None
        try:
            older = self.memory.remember(files, accepts=self._pins.holds(bound.locks))
        except StoreError as error:
            return _unread("what runs cannot be kept in mind, so it does not run", error)
        if older is not None:  # another program ran a newer one just now
            refused = _older(older, files[0].path)
            return Deny(message=refused.message, because=str(refused.trust), hint=refused.hint)
        bound.remembered = files
        return None

    @cached_property
    def memory(self) -> Memory | None:
        """What signed files ran here; None without a state folder."""
        state = self._config.state
        made: Memory | None = import_module("toolcrib.trust.seen").Memory(state) if state else None
        return made

    def locked(self, path: str, format: str) -> Entry | None:
        """What was locked of the tool of a format that a file declares."""
        return self._pins.entry_of(path, format)

    def vet_signature(self, tool: Tool) -> Vetted:
        """The same by its signatures alone, as the bytes lie there now."""
        return self._vet_signature(self._look(tool), None)

    @property
    def pins(self) -> Pins:
        """The lock, whether there is one yet or not."""
        return self._pins.made

    @property
    def lock_path(self) -> str:
        """The path of the lock file, whether there is one yet or not."""
        return self._pins.path

    @property
    def is_locked(self) -> bool:
        """Whether there is a lock, or one was written here."""
        return not self._pins.is_absent() and self.pins.exists

    @property
    def vetter(self) -> Vetter:
        """What verifies signatures; made, and its modules imported, when first asked for."""
        if self._vetter is None:
            with self._making:
                made = self._vetter
                if made is None:
                    made = self._vetter = self._make_vetter(self)
                return made
        return self._vetter

    def guard(self, listed: sources.Listing | None) -> None:
        """What must stay read-only before anything was loaded."""
        if self._guarded is None and listed is not None:
            self._grounds.guard(self.places_of(listed).held)

    def places_of(self, listed: sources.Listing) -> Places:
        """What belongs to tools as far as it was only listed: before anything was loaded."""
        known = self._listed
        if known is None or known[0] is not listed:
            known = self._listed = (listed, places.find(listed, self._around))
        return known[1]

    # -- listing and explaining -----------------------------------------------------------------------------

    def refusals(
        self,
        caller: str | None = None,
        *,
        disabled: Sequence[Disabled] | None = None,
        now: float | None = None,
    ) -> Callable[[Tool], Deny | None]:
        """Why a caller is not offered a tool, for many tools at one moment."""
        at = time.time() if now is None else now
        off = self.disabled(at) if disabled is None else tuple(disabled)
        state = policy.HostState(disabled=off, now=at)
        asking = self._user if caller is None else caller

        def refusal(tool: Tool) -> Deny | None:
            return self._policy.refusal(
                tool, vetted=self.vet(tool), state=state, named=self._place(tool)[1], caller=asking
            )

        return refusal

    def explain(self, tool: Tool, call: ToolCall | None, caller: str | None = None) -> Explanation:
        """The decision that a call would get, and what it hangs on. Nothing is run or reserved."""
        asking = call.caller if call is not None else self._user if caller is None else caller
        bound = self._look(tool)
        # As the engine identifies a call: an answer counts for the tool as it is now.
        probe = replace(
            call or ToolCall(id="", tool=tool.key, arguments=None, caller=asking),
            seen_digest=bound.digests.seen,
            runs_digest=self.contents.runs(bound.digests.how, bound.digests.own_files),
        )
        call = None if call is None else probe
        now, vetted = time.time(), self._vet(bound, call)
        terms = self._terms(bound, asking, vetted)
        charges = self._policy.charges(terms, call)
        decision = self.decide(bound, call, asking, vetted)
        try:
            spent = self._spent(charges, now)
        except StoreError:  # the decision says so
            charges, spent = (), {}
        depending = self._policy.depending(terms)
        return Explanation(
            tool=tool,
            caller=asking,
            decision=decision,
            permit=None if isinstance(decision, Deny) else terms.allow.permit,
            budgets=tuple(_left(charge, spent.get(charge.counter, budgets.EMPTY), now) for charge in charges),
            depending=() if call is not None else depending,
            approvals=self._about(tool, probe, now),
            notes=tuple(_strangers(tool, depending)),
        )

    # -- what is gathered -----------------------------------------------------------------------------------

    @property
    def _grounds(self) -> Grounds:
        """What finds the ground of tools. Listing needs none, and the kernel's part of it is slow to load."""
        made = self._made
        if made is None:
            with self._making:  # a second one would not know what the first one guards
                config, environment = self._config, self._environment
                made = self._made = self._made or import_module("toolcrib.sandbox.ground").Grounds(
                    hidden=[] if config.state is None else [config.state],
                    guarded=[
                        # Attack: a tool that adds an authority of its own to those that are trusted.
                        *(
                            path
                            for path in (config.file, environment.user_config, config.http.ca_file)
                            if path
                        ),
                        os.path.join(lock_folder(config, environment), LOCK_NAME),
                        os.path.join(lock_folder(config, environment), former.name_of(LOCK_NAME)),
                        # Attack: a tool that rewrites us, or what our interpreter loads with us.
                        *(path for path in own_code() if not is_below(self.cwd, (path,))),
                    ],
                    temporary=[environment.temporary_folder],
                    git_settings=environment.git_settings(),
                    home=environment.home,
                )
        return made

    def disabled(self, now: float) -> tuple[Disabled, ...]:
        """What is switched off now, here or by another program with the same state folder."""
        return () if self.keep is None else self.keep.disabled(now)

    def _spent(self, charges: Sequence[Charge], now: float) -> dict[str, Tally]:
        if not charges or self._spending is None:
            return {}
        return dict(self._spending.of(charges, now))

    def _about(self, tool: Tool, call: ToolCall, now: float) -> tuple[Approval, ...]:
        """What people were asked, and have answered: without what they wrote in the place of arguments, which
        nobody has looked through for secrets."""
        try:
            store = None if self.keep is None else self.keep.present()
            if store is None:
                return ()
            found = import_module("toolcrib.trust.approvals").about(store, tool, call, now)
        except StoreError:  # the decision says so
            return ()
        digest = None if call.arguments is None else jsontext.digest(call.arguments)
        return tuple(
            replace(one, edited=None if one.edited is None else {})
            for one in found
            if digest is None or one.standing or one.arguments_digest == digest
        )

    def _place(self, tool: Tool) -> tuple[str, bool]:
        path = tool.origin.path
        place = self._places.get(path)
        if place is None:
            place = (self.spaces.project_of(path) or self.cwd, is_below(path, self.named))
            self._places[path] = place
        return place

    def _ground(self, bound: BoundTool) -> policy.Ground:
        report = self._report()
        unconfirmed = self._unconfirmed()
        others = () if unconfirmed is None else unconfirmed.guarded(self.places()[1].roots)
        if report is not self._guarded or others != self._others:
            self._grounds.guard((*self.places()[1].held, *others))
            self._guarded, self._others = report, others
        project, named = self._place(bound.tool)
        bound.ground = found = self._grounds.of(
            bound.tool, project=project, cwd=self.cwd, named=named, known=bound.ground
        )
        return found.ground

    def places(self) -> tuple[sources.Listing, Places]:
        """What is listed now, and what on this machine belongs to the tools that are loaded."""
        report, known = self._report(), self._placed
        if known is None or known[0] is not report:
            found = places.find(report.listing, self._around, report.catalog.tools, self.imported)
            known = self._placed = (report, found)
        return report.listing, known[1]

    def may_write(self, folder: str) -> str | None:
        """The key of a loaded tool that could write in a folder (a real path), if there is one."""
        cwd, temporary = map(os.path.realpath, (self.cwd, self._environment.temporary_folder))
        projects: dict[str, str] = {self.cwd: cwd}
        for tool in self._report().catalog.tools:
            project, named = self._place(tool)
            if project not in projects:
                projects[project] = os.path.realpath(project)
            ground = policy.Ground(project=projects[project], cwd=cwd, temporary=(temporary,), named=named)
            if isinstance(tool.invocation, _STARTING) and self._policy.writes(tool, folder, ground=ground):
                return tool.key
        return None

    def code_of(self, tool: Tool, servers: Mapping[str, tuple[str, str]]) -> Code:
        """What a tool or a server runs, with what else decides that. ``servers``: as a listing has them."""
        if isinstance(tool.invocation, CallMcp) and not tool.chain:
            settings = jsontext.loads_own(tool.invocation.settings)
            named = servers.get(str(settings["definition"]))
            return places.Code() if named is None else places.server_code(server_of(named[0]), named[1])
        return places.code_of(tool, self.cwd)

    def settings_files(self) -> list[str]:
        """The files that set up tools by being where they are: the lock, variables, configuration."""
        found = [os.path.join(lock_folder(self._config, self._environment), LOCK_NAME)]
        for project in self._report().rye_projects:
            found += [os.path.join(project, _DOTENV)] if self._config.load_dotenv else []
            for folder, _, names in islice(os.walk(os.path.join(project, ".ai", "config")), _FOLDERS_MAX):
                found += (os.path.join(folder, name) for name in names[:_NAMES_MAX])
        return [*filter(is_utf8, found)]

    def imported(self, path: str, text: bytes | None, above: bool) -> list[str]:
        shadows = import_module("toolcrib.runtimes._dependencies").shadows
        return [held.path for held in shadows(path, self.contents, above=above, text=text)]

    def close(self) -> None:
        if self.keep is not None:
            self.keep.close()


def _strangers(tool: Tool, rules: Sequence[Rule]) -> Iterator[str]:
    """Rules about arguments that the tool does not declare: most likely somebody's slip."""
    declared = tool.input_schema.document.get("properties") if tool.input_schema is not None else None
    if not isinstance(declared, dict):
        return
    for rule in rules:
        for test in rule.match.arguments:
            name = test.steps[0]
            if name not in declared and name not in ("*", "**"):
                yield f"{rule.place} asks for the argument {name!r}, which the tool does not declare"


def _older(older: Older, own: str) -> Vetted:
    message, hint = import_module("toolcrib.trust.seen").shown(older)
    path = older.file.path
    if path == own:
        return Vetted(trust=Trust.DRIFTED, message=message, hint=hint)
    return Vetted(trust=Trust.BLOCKED, message=message, hint=hint, blocked_by=path)


def _unread(message: str, error: StoreError) -> Deny:
    return Deny(kind=Kind.UNAVAILABLE, message=message, because=error.message, hint=error.hint)


def _left(charge: Charge, tally: Tally, now: float) -> BudgetLeft:
    calls, cost = budgets.used(budgets.current(tally, charge, now))
    return BudgetLeft(
        place=charge.place,
        because=charge.because,
        calls_left=None if charge.calls_max is None else max(charge.calls_max - calls, 0),
        cost_left=None if charge.cost_max is None else max(charge.cost_max - cost, 0) / budgets.MILLION,
        within_s=charge.within_s,
        again_s=budgets.again_s(tally, charge, now),
    )


def _searched(environment: Environment, grants: Sequence[Grant]) -> tuple[str, ...]:
    """Where programs are looked for, and modules where a grant hands over the variable that says so."""
    names = ["PATH", *(name for name in MODULE_PATHS if any({name, "*"} & {*grant.env} for grant in grants))]
    texts = (environment.path if name == "PATH" else environment.variables.get(name, "") for name in names)
    return tuple(filter(os.path.isabs, (folder for text in texts for folder in text.split(os.pathsep))))


class LaterPins:
    """The lock of a host, whose modules are imported only once there is one: without it, a look at two paths
    every moment. Once it is made, every call is decided with it, so what only asks whether there is one asks
    ``is_absent``."""

    def __init__(self, make: Callable[[], Pins], config: Config, environment: Environment) -> None:
        self._make = make
        self.path = os.path.join(lock_folder(config, environment), LOCK_NAME)
        self._memory = os.path.join(config.state, LOCKS) if config.state else ""
        self.found: Pins | None = None
        """The lock, once there was one."""
        self._looked = -1.0

    @property
    def made(self) -> Pins:
        if self.found is None:
            self.found = self._make()
        return self.found

    def vet(self, tool: Tool, call: ToolCall | None, vetted: Vetted, notes: LockNotes) -> Vetted:
        if self.found is None:
            now = time.monotonic()
            if self._looked <= now < self._looked + FRESH_S:
                return vetted
            if self.is_absent():
                self._looked = now
                return vetted
        return self.made.vet(tool, call, vetted, notes)

    def holds(self, notes: LockNotes) -> bool:
        return self.found is not None and self.found.holds(notes)

    def entry_of(self, path: str, format: str) -> Entry | None:
        if self.found is None and self.is_absent():
            return None
        return self.made.entry_of(path, format)

    def is_absent(self) -> bool:
        """Whether there is no lock, and none was written here."""
        return not os.path.lexists(self.path) and not os.path.lexists(self._memory)
