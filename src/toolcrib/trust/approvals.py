"""Questions that wait for a person, durably: asked by one program, answered from another, used up once.

One entry of the store's shelf stands for one call that could be repeated: the tool (its key, what the model
sees of it and what runs), the caller and the arguments. Every change puts the entry back with the version
that was read, so that whatever races, an approval is used by one call. An approval for any arguments of the
tool (``standing``) has an entry of its own.

A call that asks gets the entry's id; the next identical call finds the answer. Whether an answer lets a call
through is ``policy.py``'s business, the order of things ``engine.py``'s. Who answered, and which call
used the answer, is recorded before it counts. Texts are bounded and without secrets; the arguments that a
person wrote in the place of others are kept whole, because they have to run.
"""

from __future__ import annotations

import hashlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, Final, Protocol

from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.errors import ApprovalError, Kind, StoreError, Unrecorded, UsageError
from toolcrib.jsontext import JsonObject
from toolcrib.model import Approval, ApprovalState, Ask, Tool, ToolCall, ToolError
from toolcrib.store import ABSENT, Conflict, Store, Versioned
from toolcrib.trust import policy

SHELF: Final = "approvals"
WAITING_S: Final = 86_400.0
"""How long a question waits for its answer."""
APPROVED_S: Final = 86_400.0
"""How long an approval waits for its call."""
DENIED_S: Final = 3_600.0
"""How long identical calls are refused after a denial; then the question may be asked again."""
FOR_S_MAX: Final = 30 * 86_400.0
"""The longest time that an approval may last."""
KEPT_S: Final = 7 * 86_400.0
"""How long what is over stays in the list; the journal keeps the answer for longer."""
KEPT_MAX: Final = 1_000
"""How many that are over are kept; beyond that the oldest go first."""
WAITING_MAX: Final = 256
WAITING_PER_CALLER_MAX: Final = 32
"""How many questions wait at once. Attack: a model that floods the person who answers."""
ARGUMENTS_BYTES_MAX: Final = 64 << 10
"""Longer arguments are not asked about: nothing may be approved that a person was not shown."""
TEXT_CHARS_MAX: Final = 500
"""Of a reason, a question, the name of who asked."""

_STANDING: Final = "*"
_PAST: Final = "past-"
_PART_CHARS_MIN: Final = 4
_PAGE: Final = 1000
_TRIES: Final = 16
_POLL_S: Final = (0.02, 1.0)
"""How long to wait before looking again, at first and at most: for answers that other programs give."""


class Answer(StrEnum):
    """What a person says to a question."""

    APPROVE = "approve"
    DENY = "deny"


class Stop(Protocol):
    """A stop button (``sandbox.Cancel``): its descriptor is readable once it was pressed."""

    @property
    def is_set(self) -> bool: ...

    def fileno(self) -> int: ...


Note = Callable[[str, str, JsonObject], str | None]
"""Records something about a call, durably: its id, what, the body. Why it could not be, or None."""


def _unchanged(text: str) -> str:
    return text


class Approvals:
    """The questions of one state folder. Used from many threads, and by many programs at once."""

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        note: Note,
        present: Callable[[], Store | None] | None = None,
        redact: Callable[[str], str] = _unchanged,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._present = present or store  # whoever only looks makes no store
        self._note = note
        self._redact = redact
        self._clock = clock
        self._asking = threading.Lock()
        self._bells: dict[str, list[int]] = {}
        self._ringing = threading.Lock()

    # -- looking --------------------------------------------------------------------------------------------

    def all(self) -> tuple[Approval, ...]:
        """Every question that is kept, the oldest first, as people may see it."""
        now = self._clock()
        each = {
            approval.id: self._shown(as_of(approval, now))
            for _, _, approval in sorted(self._entries(), key=_weight)
        }
        return tuple(sorted(each.values(), key=lambda approval: (approval.asked_at, approval.id)))

    def find(self, name: str) -> Approval:
        """The one with this id, or the only one whose id begins so. Raises ApprovalError."""
        return self._shown(as_of(self._found(name)[2], self._clock()))

    def of(self, tool: Tool, call: ToolCall) -> tuple[Approval, ...]:
        """Those that may concern a call, for ``policy.HostState``."""
        return of(self._store(), tool, call)

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(self, tool: Tool, call: ToolCall, question: Ask) -> Approval | ToolError:
        """Keep the question, or find the same one that waits or was just answered: its state tells."""
        scope = policy.scope_of(tool, call)
        if scope is None:
            message = "what would run cannot be read, so nobody can approve it"
            return ToolError(kind=Kind.UNAVAILABLE, message=message, hint="make the tool's files readable")
        arguments = call.arguments or {}
        size = len(jsontext.compact(arguments))
        if size > ARGUMENTS_BYTES_MAX:
            # Attack: arguments so long that the harmful part lies behind what a person reads.
            message = (
                f"the arguments are too long to be approved ({size} bytes, at most {ARGUMENTS_BYTES_MAX})"
            )
            return ToolError(kind=Kind.TOO_LARGE, message=message, hint="ask for less at once")
        digest = jsontext.digest(arguments)
        fresh = Approval(
            id=os.urandom(6).hex(),
            key=tool.key,
            caller=_cut(call.caller),
            arguments=self._clean(arguments),
            question=_cut(self._redact(question.question)),
            because=_cut(self._redact(question.because)),
            call_id=call.id,
            asked_at=0.0,
            scope=scope,
            arguments_digest=digest,
        )
        store, name = self._store(), _name(scope, digest)
        with self._asking:
            for _ in range(_TRIES):
                now = self._clock()
                kept = store.get(SHELF, name)
                there = None if kept is None else _read(kept.value)
                if there is not None and there.state is not ApprovalState.USED and now < there.until:
                    return there
                lasting = store.get(SHELF, _name(scope, _STANDING))
                there = None if lasting is None else _read(lasting.value)
                if there is not None and there.standing and now < there.until:  # answered just now
                    return there
                full = self._make_room(store, call.caller, now)
                if full is not None:
                    return full
                self._keep_past(store, kept, now)
                fresh = replace(fresh, asked_at=now, until=now + WAITING_S)
                with suppress(Conflict):  # another program asks the same at this very moment
                    store.put(SHELF, name, _written(fresh), ABSENT if kept is None else kept.version)
                    return fresh
        raise StoreError("the approvals change too often to keep another question", "call again")

    @staticmethod
    def _keep_past(store: Store, kept: Versioned | None, now: float) -> None:
        """What is over stays in the list though another takes its place."""
        past = None if kept is None else _read(kept.value)
        if past is not None:
            store.put(SHELF, f"{_PAST}{past.id}", _written(replace(past, until=min(past.until, now))), None)

    def _make_room(self, store: Store, caller: str, now: float) -> ToolError | None:
        """Forget what has been over for long; refuse where too many wait."""
        caller, waiting, mine = _cut(caller), 0, 0
        over: list[tuple[float, str, int]] = []
        for name, kept, approval in self._entries():
            if approval.state is ApprovalState.WAITING and now < approval.until:
                waiting += 1
                mine += approval.caller == caller
            elif approval.state is ApprovalState.USED or approval.until <= now:
                over.append((min(approval.until, approval.answered_at or now), name, kept.version))
        over.sort()
        for at, (ended, name, version) in enumerate(over):
            if ended > now - KEPT_S and at >= len(over) - KEPT_MAX:
                break
            with suppress(Conflict):
                store.remove(SHELF, name, version)
        if mine < WAITING_PER_CALLER_MAX and waiting < WAITING_MAX:
            return None
        who = f"{mine} calls of this caller" if mine >= WAITING_PER_CALLER_MAX else f"{waiting} calls"
        return ToolError(
            kind=Kind.UNAVAILABLE,
            message=f"{who} wait for an approval already, so no more are asked for",
            hint="answer some first: `toolcrib approvals list`",
        )

    # -- answering ------------------------------------------------------------------------------------------

    def answer(
        self,
        name: str,
        answer: Answer,
        *,
        by: str,
        because: str = "",
        for_s: float | None = None,
        arguments: JsonObject | None = None,
    ) -> Approval:
        """Answer a question, or change an answer that no call has used. Recorded before it counts.

        Raises ApprovalError where there is nothing to answer, Unrecorded where the journal cannot be written.
        """
        _check(answer, because, for_s, arguments)
        place, kept, approval = self._found(name)
        now = self._clock()
        if approval.state is ApprovalState.USED or approval.until <= now:
            state = as_of(approval, now).state
            raise ApprovalError(
                f"{approval.id}: it is {state}, and over", "the next identical call asks anew"
            )
        lasts = {Answer.APPROVE: APPROVED_S if for_s is None else for_s, Answer.DENY: DENIED_S}[answer]
        answered = replace(
            approval,
            state=ApprovalState.APPROVED if answer is Answer.APPROVE else ApprovalState.DENIED,
            until=now + lasts,
            standing=for_s is not None,
            edited=arguments,
            answered_by=by,
            answered_at=now,
            answer_because=because,
        )
        told: JsonObject = {"decision": answer.value, "for_s": for_s}
        self._record(approval.call_id, "answer", {**self._told(answered), **told})
        try:
            self._put_answer(place, kept, answered)
        except StoreError as error:
            # The record says approved, and it is not: that has to be recorded as well.
            with suppress(Unrecorded):
                body = {**self._told(answered), **told, "failed": error.message}
                self._record(approval.call_id, "answer", body)
            if isinstance(error, Conflict):
                hint = "`toolcrib approvals list` shows how it stands"
                raise ApprovalError(f"{approval.id}: it changed meanwhile", hint) from None
            raise
        self._ring(approval.id)
        return self._shown(answered)

    def _put_answer(self, place: str, kept: Versioned, answered: Approval) -> None:
        store = self._store()
        own = _name(answered.scope, _STANDING)
        if not answered.standing or place == own:
            store.put(SHELF, place, _written(answered), kept.version)
            return
        # Claimed first: of two who answer at once, one fails before anything counts.
        version = store.put(SHELF, place, kept.value, kept.version)
        self._keep_past(store, store.get(SHELF, own), answered.answered_at or 0.0)
        store.put(SHELF, own, _written(answered), None)
        with suppress(Conflict):  # asked anew meanwhile: that is another question
            store.remove(SHELF, place, version)

    # -- using ----------------------------------------------------------------------------------------------

    def take(self, tool: Tool, call: ToolCall, approval_id: str) -> bool:
        """Use an approval up, before anything starts. False where it no longer counts: decide again.

        What happens after this is not known to anybody but the journal: an approval that was taken by a call
        whose host died is used, and lets nothing run a second time.
        """
        for place, kept, approval in _concerning(self._store(), tool, call):
            now = self._clock()
            if approval.id != approval_id or now >= approval.until:
                continue
            if approval.state is ApprovalState.WAITING and call.approved_by:
                approval = replace(approval, answered_by=call.approved_by, answered_at=now)
            elif approval.state is not ApprovalState.APPROVED:
                continue
            if not approval.standing:
                used = replace(approval, state=ApprovalState.USED, used_by=call.id)
                try:
                    self._store().put(SHELF, place, _written(used), kept.version)
                except Conflict:  # Attack: two identical calls at once, and one approval
                    return False
                self._ring(approval.id)
            self._record(call.id, "approved", self._told(approval))
            return True
        return False

    # -- waiting --------------------------------------------------------------------------------------------

    def wait(self, approval: Approval, stop: Stop, timeout_s: float) -> bool:
        """Wait until a question no longer waits, at most so long. Whether that is so."""
        ends = time.monotonic() + timeout_s
        pause_s, longest_s = _POLL_S
        with self._bell(approval.id) as bell:
            watching = select.poll()
            watching.register(bell, select.POLLIN)
            watching.register(stop.fileno(), select.POLLIN)
            while True:
                if not self._waits(approval):
                    return True
                left_s = ends - time.monotonic()
                if stop.is_set or left_s <= 0:
                    return False
                watching.poll(min(pause_s, left_s) * 1000)
                pause_s = min(pause_s * 1.5, longest_s)

    def _waits(self, approval: Approval) -> bool:
        kept = self._store().get(SHELF, _name(approval.scope, approval.arguments_digest))
        there = None if kept is None else _read(kept.value)
        if there is None or there.id != approval.id:
            return False
        return as_of(there, self._clock()).state is ApprovalState.WAITING

    @contextmanager
    def _bell(self, approval_id: str) -> Iterator[int]:
        """A descriptor that is readable once the question was answered in this program."""
        reading, writing = os.pipe()
        with self._ringing:
            self._bells.setdefault(approval_id, []).append(writing)
        try:
            yield reading
        finally:
            with self._ringing:
                bells = self._bells[approval_id]
                bells.remove(writing)
                if not bells:
                    del self._bells[approval_id]
            os.close(reading)
            os.close(writing)

    def _ring(self, approval_id: str) -> None:
        with self._ringing:
            for writing in self._bells.get(approval_id, ()):
                os.write(writing, b"x")

    # -- the shelf ------------------------------------------------------------------------------------------

    def _entries(self) -> Iterator[tuple[str, Versioned, Approval]]:
        store = self._present()
        return iter(()) if store is None else _each(store)

    def _found(self, name: str) -> tuple[str, Versioned, Approval]:
        is_part = len(name) >= _PART_CHARS_MIN
        found = [
            entry
            for entry in self._entries()
            if entry[2].id == name or (is_part and entry[2].id.startswith(name))
        ]
        ids = {approval.id for _, _, approval in found}
        if len(ids) != 1:
            what = f"{len(ids)} approvals begin so" if ids else "there is no such approval"
            raise ApprovalError(f"{name[:60]!r}: {what}", "`toolcrib approvals list` shows their ids")
        return max(found, key=_weight)

    # -- what others see ------------------------------------------------------------------------------------

    def _record(self, call_id: str, what: str, body: JsonObject) -> None:
        why = self._note(call_id, what, body)
        if why is not None:
            raise Unrecorded(
                f"the audit journal cannot be written, so nothing was done: {why}", "mend the journal"
            )

    def _told(self, approval: Approval) -> JsonObject:
        """What the journal says: names of arguments and a digest, never values."""
        told: JsonObject = {
            "approval": approval.id,
            "key": approval.key,
            "caller": approval.caller,
            "question": approval.question,
            "by": approval.answered_by,
            "because": approval.answer_because,
        }
        if approval.standing:
            told["until"] = approval.until
        if approval.edited is not None:
            told["edited"] = [*approval.edited]
            told["edited_digest"] = jsontext.digest(approval.edited)
        return told

    def _shown(self, approval: Approval) -> Approval:
        if approval.edited is None:
            return approval
        return replace(approval, edited=self._clean(approval.edited))

    def _clean(self, value: Any) -> Any:
        """A value without secrets."""
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, dict):
            return {self._redact(name): self._clean(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._clean(item) for item in value]
        return value


def of(store: Store, tool: Tool, call: ToolCall) -> tuple[Approval, ...]:
    """The approvals that may concern a call, for ``policy.HostState``."""
    return tuple(approval for _, _, approval in _concerning(store, tool, call))


def about(store: Store, tool: Tool, call: ToolCall, now: float) -> tuple[Approval, ...]:
    """What still counts of a tool and a caller, whatever the call's arguments are; the oldest first."""
    scope = policy.scope_of(tool, call)
    found = (one for name, _, one in _each(store) if one.scope == scope and not name.startswith(_PAST))
    live = (one for one in found if one.state is not ApprovalState.USED and now < one.until)
    return tuple(sorted(live, key=lambda one: (one.asked_at, one.id)))


def _each(store: Store) -> Iterator[tuple[str, Versioned, Approval]]:
    after = ""
    while names := store.keys(SHELF, after, _PAGE):
        for name in names:
            kept = store.get(SHELF, name)
            approval = None if kept is None else _read(kept.value)
            if kept is not None and approval is not None:
                yield name, kept, approval
        after = names[-1]


def _concerning(store: Store, tool: Tool, call: ToolCall) -> list[tuple[str, Versioned, Approval]]:
    scope = policy.scope_of(tool, call)
    if scope is None:
        return []
    found = []
    for part in (jsontext.digest(call.arguments or {}), _STANDING):
        place = _name(scope, part)
        kept = store.get(SHELF, place)
        approval = None if kept is None else _read(kept.value)
        if kept is not None and approval is not None:
            found.append((place, kept, approval))
    return found


def _weight(entry: tuple[str, Versioned, Approval]) -> tuple[bool, bool]:
    """Which of two entries with one id counts, where a host died between two steps: the one that is in its
    place, and of a question and its lasting answer the answer."""
    return not entry[0].startswith(_PAST), entry[2].standing


def as_of(approval: Approval, now: float) -> Approval:
    """How a question stands at a moment: what nobody answered, or used, in time has expired."""
    is_open = approval.state in (ApprovalState.WAITING, ApprovalState.APPROVED)
    return replace(approval, state=ApprovalState.EXPIRED) if is_open and approval.until <= now else approval


def _check(answer: Answer, because: str, for_s: float | None, arguments: JsonObject | None) -> None:
    """What only whoever answers can get wrong."""
    if len(because) > TEXT_CHARS_MAX:
        raise UsageError(f"because: may have {TEXT_CHARS_MAX} characters (got {len(because)})")
    if answer is Answer.DENY and (for_s is not None or arguments is not None):
        raise UsageError("a denial has no arguments and no duration", "leave them out")
    if for_s is not None and arguments is not None:
        raise UsageError(
            "an approval that lasts is for any arguments, so it cannot edit them", "leave one of the two out"
        )
    if for_s is not None and not 0 < for_s <= FOR_S_MAX:
        raise UsageError(f"an approval lasts at most {FOR_S_MAX / 86_400:.0f} days", "name a shorter time")
    if arguments is not None and len(jsontext.compact(arguments)) > ARGUMENTS_BYTES_MAX:
        raise UsageError(f"arguments: may have {ARGUMENTS_BYTES_MAX} bytes", "make them shorter")


# -- the form in the store ----------------------------------------------------------------------------------


def _name(scope: str, part: str) -> str:
    """The place of an entry. Hashed once more, so that it is short; the digests inside are compared whole."""
    return hashlib.sha256(f"{scope} {part}".encode()).hexdigest()


def _written(approval: Approval) -> bytes:
    return jsontext.compact({name: getattr(approval, name) for name in _FIELDS})


def _read(value: bytes) -> Approval | None:
    """None where it cannot be read: then nothing was approved, and the question is asked anew."""
    try:
        plain = jsontext.loads_own(value)
        state = ApprovalState(plain.pop("state"))
        if not isinstance(plain["arguments"], dict) or not isinstance(plain["edited"], (dict, type(None))):
            return None
        return Approval(**{**plain, "state": state, "until": float(plain["until"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


_FIELDS: Final = (
    "id", "key", "caller", "arguments", "question", "because", "call_id", "asked_at", "scope",
    "arguments_digest", "state", "until", "standing", "edited", "answered_by", "answered_at",
    "answer_because", "used_by",
)  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"
