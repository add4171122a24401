"""What wraps a runtime: limits on how many run at once, retries where they are safe, one run per idempotency
key, and large results kept aside.

Each wrapper is a runtime itself, so none of them can get around policy or audit: the engine calls the
outermost one after it has decided. Nothing here starts anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Final, Protocol

from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.catalog import cache
from toolcrib.errors import StoreError, Unrecorded, shortage_told
from toolcrib.model import (
    Block,
    Effect,
    End,
    Ending,
    HeldName,
    Permit,
    Reply,
    ResourceLink,
    Retry,
    Run,
    TextBlock,
    Tool,
    ToolCall,
    ToolResult,
)
from toolcrib.paths import is_below
from toolcrib.runtimes import Runtime
from toolcrib.sandbox import Cancel, _git, _placeholders
from toolcrib.store import ABSENT, Conflict, Store, Versioned, private
from toolcrib.store.leases import Leases

_WAIT_STEP_S: Final = 0.05
_LEDGER: Final = "ledger"
_TIMES: Final = "ledger-times"
"""The claims of the ledger in the order in which they were made."""
_HEAD_CHARS: Final = 4000
_NOTHING_RAN: Final = (End.NOT_STARTED, End.UNAVAILABLE, End.DENIED, End.REFUSED)
_SHOWN_MAX: Final = 5
_PATH_CHARS_MAX: Final = 200


# -- how many at once ---------------------------------------------------------------------------------------


class _Places:
    """Of one tool: places that are free, and those who wait for one."""

    __slots__ = ("free", "made", "waiting")

    def __init__(self) -> None:
        self.free: list[None] = []
        self.made = 0
        """How many there are, free or not; more are made as they are asked for."""
        self.waiting: deque[threading.Lock] = deque()
        """Each holds a lock, whose release gives it a place."""


class Limited:
    """At most so many calls of one tool at once; the others wait, no longer than they may run.

    Who leaves hands its place to the one that waits longest: waking all of them for one place would cost more
    than many a tool. A place that is free is taken, and one that nobody waits for given back, in one step of
    a list's, which needs no lock.
    """

    def __init__(self, inner: Runtime, per_tool: int, bare: Runtime | None = None) -> None:
        """``bare`` is what ``inner`` wraps, for calls that are neither repeated nor watched: most are not."""
        self._inner = inner
        self._bare = bare or inner
        self._per_tool = per_tool
        self._places: dict[str, _Places] = {}
        self._lock = threading.Lock()

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        places = self._places.get(tool.key) or self._places.setdefault(tool.key, _Places())
        if places.waiting or not places.free or not _is_taken(places):
            refused = self._wait(places, permit.limits.timeout_s, cancel)
            if refused is not None:
                return refused
        try:
            inner = self._bare if tool.retry is None and not Watched.looks_at(permit) else self._inner
            return inner.run(bound, call, permit, cancel)
        finally:
            places.free.append(None)
            if places.waiting:
                self._hand_on(places)

    def _wait(self, places: _Places, timeout_s: float, cancel: Cancel) -> Ending | None:
        with self._lock:
            if not places.waiting:
                if _is_taken(places):
                    return None
                if places.made < self._per_tool:  # whoever waits does so only when all are made
                    places.made += 1
                    return None
            place = threading.Lock()
            place.acquire()
            places.waiting.append(place)
            # Whoever left before that saw nobody who waits; whoever leaves after it hands on.
        try:
            self._hand_on(places)
            has_place = _given(place, time.monotonic() + timeout_s, cancel)
        except BaseException:  # an interrupt, say: nobody may wait behind a place that is never used
            if not self._give_up(places, place):
                places.free.append(None)
                self._hand_on(places)
            raise
        if has_place or not self._give_up(places, place):
            return None
        if cancel.is_set:
            return Ending(end=End.CANCELLED)
        return Ending(
            end=End.UNAVAILABLE,
            reason=f"{self._per_tool} calls of this tool are running, and none ended in time",
            hint="call it again later, or raise [limits] calls_per_tool",
        )

    def _give_up(self, places: _Places, place: threading.Lock) -> bool:
        """False: the place was given just now."""
        with self._lock:
            if place not in places.waiting:
                return False
            places.waiting.remove(place)
            return True

    def _hand_on(self, places: _Places) -> None:
        """Give what is free to those who wait longest."""
        with self._lock:
            while places.waiting and _is_taken(places):
                places.waiting.popleft().release()


def _is_taken(places: _Places) -> bool:
    """Whether a place was free, which is ours then."""
    try:
        places.free.pop()
    except IndexError:
        return False
    return True


def _given(place: threading.Lock, deadline: float, cancel: Cancel) -> bool:
    """Whether the place came before the deadline, or before somebody cancelled."""
    while not cancel.is_set:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        if place.acquire(timeout=min(left_s, _WAIT_STEP_S)):
            return True
    return False


# -- repositories -------------------------------------------------------------------------------------------


class Watched:
    """Compares repositories before and after a call, and denies the call if the tool may have made what git
    would obey. That is renamed, never deleted: it may be a person's.

    Attack: a tool that may write the repository makes a ``hooks`` folder or a ``commondir`` where there was
    none, and the user's next git command runs what it says. At the level ``supervised`` these names are held
    while it runs (``sandbox/_placeholders.py``); this is for those that cannot be, and for the other levels.
    """

    def __init__(self, inner: Runtime) -> None:
        self._inner = inner

    @staticmethod
    def looks_at(permit: Permit) -> bool:
        """Whether there is anything to compare."""
        return bool(permit.forbidden or permit.git)

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        if not self.looks_at(permit):
            return self._inner.run(bound, call, permit, cancel)
        before = _Repositories(permit)
        try:
            ending = self._inner.run(bound, call, permit, cancel)
        except BaseException:  # an interrupt, say: no ending tells what was held
            if found := (*before.renamed(()), *before.unlinked()):
                import_module("logging").getLogger("toolcrib.sandbox").warning("%s", "; ".join(found))
            raise
        if ending.held is None:
            return ending
        found = (*before.renamed(ending.held), *before.unlinked())
        notes = before.changed(ending.held)
        if notes:
            ending = replace(ending, notes=(*ending.notes, *notes))
        if not found:
            return ending
        shown, more = found[:_SHOWN_MAX], len(found) - _SHOWN_MAX
        reason = "; ".join((*shown, f"and {more} more") if more > 0 else shown)
        return replace(ending, end=End.DENIED, reason=reason, value=None, blocks=None)


class _Repositories:
    """The repositories that a tool may reach, as they were before a call."""

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._absent = [path for path in permit.forbidden if _is_absent(path)]
        self._stamps = {path: _stamp(path) for path in permit.protected if is_below(path, permit.git)}
        self._links = self._links_now()

    def renamed(self, held: Sequence[HeldName]) -> Iterator[str]:
        """Rename what took a name that was not held. At a name that was, only another program can be."""
        others = {name.path for name in held}
        for path in self._absent:
            if path in others or _is_absent(path):
                continue
            try:
                moved = _placeholders.set_aside(path)
            except OSError as error:
                if not _is_absent(path):
                    yield f"{path} appeared while it ran; remove it, for git obeys it ({error.strerror})"
            else:
                if moved is not None:
                    old, new = moved
                    yield f"{old} appeared while it ran and is now {new} (rename it back if you made it)"

    def unlinked(self) -> Iterator[str]:
        """Remove the links that appeared and that git would follow out of a repository."""
        for path, target in self._links_now().items():
            if self._links.get(path) == target or self._stays_inside(path):
                continue
            link = f"the link {path[:_PATH_CHARS_MAX]!r} to {target[:_PATH_CHARS_MAX]!r}"
            try:
                _placeholders.remove_link(path)
            except OSError as error:
                yield f"{link} appeared while it ran; remove it, for git follows it ({error.strerror})"
            else:
                yield f"{link} appeared while it ran and was removed, for git would follow it"

    def _links_now(self) -> dict[str, str]:
        return _git.links(self._permit.git, self._permit.protected)

    def _stays_inside(self, link: str) -> bool:
        real = os.path.realpath(link)
        closed = (*self._permit.protected, *self._permit.forbidden)
        return is_below(real, self._permit.git) and not is_below(real, closed)

    def changed(self, held: Sequence[HeldName]) -> tuple[str, ...]:
        """Say what was replaced while the tool ran: the mount that held it is gone with the old file."""
        stamps = {**self._stamps, **{name.path: name.stamp for name in held}}
        return tuple(
            f"{path} changed while the tool ran: check it before you run git"
            for path, stamp in stamps.items()
            if not _is_absent(path) and _stamp(path) != stamp
        )


def _is_absent(path: str) -> bool:
    """Whether nothing is there, or a placeholder of any call."""
    return not os.path.lexists(path) or _placeholders.is_one(path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    with suppress(OSError):
        return _placeholders.stamp(os.lstat(path))
    return None


class Noted:
    """Says when a tool that may write files runs: what appears meanwhile is not used (``Unconfirmed``).
    Raises Unrecorded where that cannot be kept: then nothing runs."""

    def __init__(self, inner: Runtime, notes: Writing, *, stays: bool) -> None:
        """``stays``: something of the tool may run between its calls, too."""
        self._inner = inner
        self._notes = notes
        self._stays = stays

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        if not permit.write:
            return self._inner.run(bound, call, permit, cancel)
        try:
            self._notes.begins(tool.key, permit.write, stays=self._stays)
        except StoreError as error:
            if (short := shortage_told(error.message)) is not None:
                return Ending(end=End.UNAVAILABLE, reason=error.message, hint=short[1])
            # Attack: a state folder that is broken on purpose, so that what a tool plants goes unnoticed.
            why = f"nothing was run, because what tools may change cannot be noted: {error.message}"
            raise Unrecorded(why, error.hint) from None
        try:
            return self._inner.run(bound, call, permit, cancel)
        finally:
            self._notes.ended()


class Writing(Protocol):
    """Notes the beginning and the end of each run that may write files."""

    def begins(self, tool: str, roots: Sequence[str], *, stays: bool) -> None: ...
    def ended(self) -> None: ...


# -- again --------------------------------------------------------------------------------------------------


class Retrying:
    """Repeats transient failures as the tool's retry policy says, and only where that is safe.

    A start that failed did nothing, so it may always be repeated, and so may a request that was turned away,
    where the policy waits as long as the other side asks. After a timeout or a lost contact the tool may have
    done its work: only a tool that reads, or one marked idempotent, is called again.
    """

    def __init__(self, inner: Runtime, pause: Callable[[Cancel, float], bool] = Cancel.wait) -> None:
        self._inner = inner
        self._pause = pause

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        retry = tool.retry
        ending = self._inner.run(bound, call, permit, cancel)
        if retry is None:
            return ending
        runs: tuple[Run, ...] = ()
        for attempt in range(1, retry.max_attempts):
            if not _may_repeat(tool, ending, retry.max_delay_s) or cancel.is_set:
                break
            runs += tuple(replace(run, what="attempt") if run.what == "call" else run for run in ending.runs)
            pause_s = max(retry.initial_delay_s * _growth(retry, attempt), ending.again_s or 0.0)
            if self._pause(cancel, min(pause_s, retry.max_delay_s)):
                return replace(ending, end=End.CANCELLED, runs=runs)
            ending = self._inner.run(bound, call, permit, cancel)
        return replace(ending, runs=runs + ending.runs) if runs else ending


def _growth(retry: Retry, attempt: int) -> float:
    """How many first pauses the one after so many attempts takes."""
    match retry.backoff:
        case "exponential":
            try:
                return retry.multiplier ** (attempt - 1)
            except OverflowError:
                return sys.float_info.max  # the policy's longest pause is shorter
        case "linear":
            return attempt
        case _:
            return 1.0


def _may_repeat(tool: Tool, ending: Ending, delay_s_max: float) -> bool:
    if ending.end is End.NOT_STARTED:
        return True
    if ending.again_s is not None:  # the other side says that it did nothing, and when to come again
        return ending.again_s <= delay_s_max
    return ending.end in (End.TIMED_OUT, End.LOST) and is_repeatable(tool)


def is_repeatable(tool: Tool) -> bool:
    """Whether running it twice does no more than running it once."""
    metadata = tool.notes.metadata
    marked = isinstance(metadata, dict) and metadata.get("idempotent") is True
    return tool.effect is Effect.READ or marked


# -- once ---------------------------------------------------------------------------------------------------


LEDGER_S: Final = 86_400.0
"""How long an idempotency key counts."""
LEDGER_MAX: Final = 10_000
"""How many are remembered; beyond that the oldest go first."""
_SWEEP_EVERY: Final = 64
_SWEPT_MAX: Final = 256
_TRIES_MAX: Final = 8


class Once:
    """Calls with the same idempotency key run once; later ones get what the first one gave, for a day.

    The key is claimed before the start, with the name of a lease that is held while the call runs. So a later
    call sees whether the first one still runs, in whatever process. A claim without an outcome whose lease is
    not held has an unknown one: the host was killed, or lost contact. Then only a repeatable tool is run
    again. Where nothing was started the claim is let go. What was given is kept, to be given again as it was:
    the store is the host's alone.
    """

    def __init__(
        self,
        inner: Runtime,
        store: Callable[[], Store],
        leases: Leases,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._inner = inner
        self._store = store
        self._leases = leases
        self._clock = clock
        self._lock = threading.Lock()
        self._claims = 0

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        if call.idempotency_key is None:
            return self._inner.run(bound, call, permit, cancel)
        named = jsontext.compact([tool.key, call.caller, call.idempotency_key])
        claim = hashlib.sha256(named).hexdigest()
        own = {"call": call.id, "asked": jsontext.digest(call.arguments), "at": self._clock()}
        with ExitStack() as held:
            try:
                ending, store, version = self._claimed(claim, own, held, repeats=is_repeatable(tool))
            except StoreError as error:  # without the claim it might run twice, so it does not run
                reason = f"the idempotency key cannot be kept: {error.message}"
                return Ending(end=End.UNAVAILABLE, reason=reason, hint=error.hint)
            if ending is not None:
                return ending
            ending = self._inner.run(bound, call, permit, cancel)
            with suppress(StoreError):  # the call is over: what cannot be remembered stays a claim
                if _did_nothing(ending):
                    store.remove(_LEDGER, claim, version)  # fixed, it may be tried again with the same key
                elif ending.end not in (End.LOST, End.CANCELLED):
                    kept = {**own, "ending": _written_ending(ending)}
                    store.put(_LEDGER, claim, jsontext.compact(kept), version)
            return ending

    def _claimed(
        self, claim: str, own: jsontext.JsonObject, held: ExitStack, *, repeats: bool
    ) -> tuple[Ending | None, Store, int]:
        """Return what answers the call, or None and the version of the claim under which it may run."""
        store = self._store()
        self._sweep(store, own["at"])
        lease = ""
        for _ in range(_TRIES_MAX):
            found = store.get(_LEDGER, claim)
            entry = None if found is None else _entry(found)
            if found is None or entry is None or _at(entry) <= own["at"] - LEDGER_S:
                lease = lease or held.enter_context(self._leases.taken())
                # Noted first: a claim that no time leads to would stay for ever.
                store.put(_TIMES, f"{int(own['at']) + 1:012d} {claim}", b"", None)
                with suppress(Conflict):  # another thread or host was faster: look again
                    value = jsontext.compact({**own, "lease": lease})
                    return None, store, store.put(_LEDGER, claim, value, found.version if found else ABSENT)
                continue
            ending = self._answer(entry, own)
            if ending is not None:
                return ending, store, found.version
            if repeats:
                return None, store, found.version
            if self._leases.is_held(str(entry.get("lease", ""))):
                ending = Ending(
                    end=End.UNAVAILABLE,
                    reason=f"call {entry['call']} with this idempotency key is in progress",
                    hint="call again with the same key when it has ended, to get its result",
                )
                return ending, store, found.version
            again = store.get(_LEDGER, claim)
            if again is not None and again.version == found.version:  # it did not end just now
                reason = (
                    f"call {entry['call']} with this idempotency key was never reported as over: its host "
                    "ended before it did, or lost contact with the tool"
                )
                return Ending(end=End.LOST, reason=reason), store, found.version
        raise Conflict(f"{_LEDGER}/{claim}: changed again and again", "call again")

    @staticmethod
    def _answer(entry: jsontext.JsonObject, own: jsontext.JsonObject) -> Ending | None:
        """Return what a claim answers, or None if its call is not known to be over."""
        if entry["asked"] != own["asked"]:
            return Ending(
                end=End.REFUSED,
                reason="this idempotency key was used with other arguments",
                hint="use a new key for a new request",
            )
        if "ending" not in entry:
            return None
        note = f"answered by call {entry['call']}, which had the same idempotency key"
        return replace(_read_ending(entry["ending"]), notes=(note,))

    def _sweep(self, store: Store, now: float) -> None:
        """Remove what no longer counts: a bounded part of it, now and then."""
        with self._lock:
            self._claims += 1
            if self._claims % _SWEEP_EVERY != 1:
                return
        self._leases.sweep()
        times = store.keys(_TIMES, limit=LEDGER_MAX + _SWEPT_MAX)
        beyond = len(times) - LEDGER_MAX
        for place, entry in enumerate(times[:_SWEPT_MAX]):
            at, _, claim = entry.partition(" ")
            if place >= beyond and int(at) > now - LEDGER_S:
                return
            held = store.get(_LEDGER, claim)
            with suppress(Conflict):  # another host sweeps as well, or claims it anew
                if held is not None and _at(_entry(held)) <= int(at):
                    store.remove(_LEDGER, claim, held.version)
                store.remove(_TIMES, entry, None)


def _did_nothing(ending: Ending) -> bool:
    """Whether a call may run again under its key.

    Attack: a call that changed what git obeys. Its result is denied after it ran, and the same key must not
    run it a second time.
    """
    if ending.end is End.DENIED and ending.runs:
        return False
    return ending.end in _NOTHING_RAN or ending.again_s is not None


def _entry(held: Versioned) -> jsontext.JsonObject:
    entry = jsontext.loads_own(held.value)
    assert isinstance(entry, dict)
    return entry


def _at(entry: jsontext.JsonObject) -> float:
    return float(entry.get("at", 0.0))


def _written_ending(ending: Ending) -> jsontext.JsonObject:
    return {
        "end": ending.end,
        "exit_status": ending.exit_status,
        "signal": ending.signal,
        "stdout": base64.b64encode(ending.stdout).decode("ascii"),
        "stderr": base64.b64encode(ending.stderr).decode("ascii"),
        "stdout_bytes": ending.stdout_bytes,
        "stderr_bytes": ending.stderr_bytes,
        "value": ending.value,
        "kind_of_value": ending.kind_of_value,
        "reason": ending.reason,
        "hint": ending.hint,
        "blocks": None if ending.blocks is None else cache.encode(ending.blocks).decode("utf-8"),
    }


def _read_ending(entry: jsontext.JsonObject) -> Ending:
    return Ending(
        end=End(entry["end"]),
        exit_status=entry["exit_status"],
        signal=entry["signal"],
        stdout=base64.b64decode(entry["stdout"]),
        stderr=base64.b64decode(entry["stderr"]),
        stdout_bytes=entry["stdout_bytes"],
        stderr_bytes=entry["stderr_bytes"],
        value=entry["value"],
        kind_of_value=entry["kind_of_value"],
        reason=entry["reason"],
        hint=entry.get("hint"),
        blocks=None if entry.get("blocks") is None else _read_blocks(entry["blocks"]),
    )


def _read_blocks(text: str) -> tuple[Block, ...]:
    blocks: tuple[Block, ...] = cache.decode(tuple[Block, ...], text.encode("utf-8"))
    return blocks


# -- large results ------------------------------------------------------------------------------------------


RESULT_URI: Final = "toolcrib://results/{call_id}?offset={offset}"
"""The address of a part of a kept result, as an MCP resource."""
_MCP: Final = "mcp"
_READ_ON: Final = {
    _MCP: f"the resource {RESULT_URI}",
    "http": "GET /v1/results/{call_id}?offset={offset}",
    "cli": "`toolcrib audit show {call_id} --output --offset {offset}`",
    "": "Crib.result_page('{call_id}', offset={offset})",
}
"""How to read the rest of a cut result, by the door that the call came through."""
_JSON_FORMS: Final = (Reply.ENVELOPE, Reply.SUCCESS_DICT, Reply.ITEM)


class Spill:
    """Keeps a result whose text is too long for a model in a file, where it can be paged through."""

    def __init__(self, folder: str | None, inline_bytes: int) -> None:
        self._folder = folder
        self._inline_bytes = inline_bytes

    def __call__(self, tool: Tool, result: ToolResult, door: str = "") -> ToolResult:
        """Return the result, or a short one that says how to read on by this door."""
        text = result.content
        if len(text) * 4 <= self._inline_bytes:  # no character has more than four bytes
            return result
        content = text.encode("utf-8", "replace")
        if len(content) <= self._inline_bytes or self._folder is None:
            return result
        try:
            self._write(result.call_id, content)
        except OSError:
            note = f"the result has {len(content)} bytes and could not be kept aside; it is given whole"
            return replace(result, notes=(*result.notes, note))
        others = tuple(block for block in result.blocks if not isinstance(block, TextBlock))
        head = text[:_HEAD_CHARS]
        offset = len(head.encode("utf-8", "replace"))
        link: tuple[Block, ...] = ()
        if door == _MCP:
            uri = RESULT_URI.format(call_id=result.call_id, offset=offset)
            link = (ResourceLink(uri=uri, name="the rest of the result", media_type="text/plain"),)
        read_on = _READ_ON.get(door, _READ_ON[""]).format(call_id=result.call_id, offset=offset)
        shortened = _shortened(tool, result, head, len(content), read_on)
        return replace(
            result,
            blocks=(TextBlock(text=shortened), *link, *others),
            data=None,
            spent=replace(result.spent, truncated=True),
            notes=(*result.notes, f"the whole result ({len(content)} bytes) is kept under {result.call_id}"),
        )

    def _write(self, call_id: str, content: bytes) -> None:
        assert self._folder is not None
        private.make_folders(self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(os.path.join(self._folder, call_id), flags, 0o600), "wb") as file:
            file.write(content)

    def page(self, call_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        """A part of a kept result, and how long the whole is. Raises OSError where there is none."""
        if self._folder is None or not call_id.isalnum():
            raise FileNotFoundError(call_id)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(os.path.join(self._folder, call_id), flags), "rb") as file:
            whole = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return file.read(limit), whole


def _shortened(tool: Tool, result: ToolResult, head: str, whole_bytes: int, read_on: str) -> str:
    """What the model sees instead: text stays text, and JSON stays one JSON value."""
    is_json = result.data is not None or tool.reply in _JSON_FORMS
    if not is_json or head[:1] not in ("{", "[", '"'):
        return f"{head}\n… cut: the whole result has {whole_bytes} bytes. Ask for less, or read on: {read_on}"
    cut = {"truncated": True, "bytes": whole_bytes, "head": head, "call_id": result.call_id}
    return jsontext.compact({**cut, "read_on": read_on}).decode("utf-8")
